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
}
