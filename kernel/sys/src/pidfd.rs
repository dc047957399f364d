//! Processes by descriptor: readable when the process has ended, immune to reuse of its number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal};

/// A descriptor of the process `pid`. `ESRCH` when there is none.
///
/// It does not block: `waitid` on it gives `EAGAIN`, and leaves a zombie, as long as it is not readable.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).or_else(|_| {
        // NONBLOCK needs Linux 5.10.
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    })?)
}

/// A descriptor of the thread of this name: readable when that one has ended, whatever the others wait for in the
/// kernel. Not for a process's first thread, of which the kernel tells only with the last one. `EINVAL` before Linux
/// 6.9, `ESRCH` when there is no such thread.
pub fn open_thread(pid: i32, name: &str) -> io::Result<OwnedFd> {
    let is_named = |tid: &i32| {
        let said = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
        said.is_ok_and(|said| said.trim_end() == name)
    };
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
    let mut numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    let number = numbers.find(is_named).and_then(Pid::from_raw).ok_or(rustix::io::Errno::SRCH)?;
    // PIDFD_THREAD (linux/pidfd.h).
    let thread = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    Ok(rustix::process::pidfd_open(number, thread | PidfdFlags::NONBLOCK)?)
}

/// Whether the process has ended, reaped or not.
pub fn has_ended(process: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let process = process.as_fd();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An ended process is readable; one whose end cannot be asked for is none to rely on.
    !matches!(poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], Some(&now)), Ok(0))
}

/// Sends a signal to exactly the process behind the descriptor.
pub fn signal(process: impl AsFd, signal: Signal) -> io::Result<()> {
    Ok(rustix::process::pidfd_send_signal(process, signal)?)
}

/// The process number as the process itself and its innermost pid namespace know it; `None` when it is gone.
pub fn innermost_pid(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Clock ticks since boot at which the process started: with the number it names a process for good.
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold anything, blanks and parentheses too; the fields begin after its last one.
    let fields = &stat[stat.rfind(')')? + 1..];
    fields.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_a_descriptor_a_start_time_and_an_inner_number() {
        let own = std::process::id() as i32;
        open(own).unwrap();
        assert!(start_ticks(own).unwrap() > 0);
        assert!(innermost_pid(own).unwrap() > 0);
    }

    #[test]
    fn thread_is_told_from_others_and_its_end_from_theirs() {
        let own = std::process::id() as i32;
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("serve-test".to_owned()).spawn(move || told.recv()).unwrap();
        // The name is given by the thread itself.
        let found =
            std::iter::repeat_with(|| open_thread(own, "serve-test")).take(100_000).find_map(Result::ok).unwrap();
        assert!(!has_ended(&found));
        drop(tell);
        let _ = thread.join().unwrap();
        assert!(std::iter::repeat_with(|| has_ended(&found)).take(100_000).any(|ended| ended));
        assert!(open_thread(own, "nobody").is_err());
    }
}
