//! Processes by descriptor: readable when the process has ended, immune to reuse of its number.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal};

use crate::procfs;

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

/// A descriptor of the process `pid`, with flags as a program may say them. `ESRCH`, `EINVAL`: as the kernel says.
pub fn open_with(pid: i32, flags: u32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::from_bits_retain(flags))?)
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
    open_tid(number.as_raw_nonzero().get())
}

/// A descriptor of one thread, by its number. `ESRCH` when there is none; `EINVAL` before Linux 6.9.
pub fn open_tid(tid: i32) -> io::Result<OwnedFd> {
    let tid = Pid::from_raw(tid).ok_or(io::ErrorKind::InvalidInput)?;
    // PIDFD_THREAD (linux/pidfd.h).
    let thread = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    Ok(rustix::process::pidfd_open(tid, thread | PidfdFlags::NONBLOCK)?)
}

/// Who a process, or thread, is: numbers as the caller's own namespaces have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identified {
    pub process: u32,
    /// Real.
    pub uid: u32,
    /// Saved.
    pub suid: u32,
    /// Effective.
    pub euid: u32,
    /// Real, effective, saved.
    pub gids: [u32; 3],
}

/// `ESRCH`: it has ended. `ENOTTY`: a kernel before Linux 6.13.
pub fn identify(process: impl AsFd) -> io::Result<Identified> {
    /// `struct pidfd_info` in its first size.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        pid: u32,
        tgid: u32,
        ppid: u32,
        /// Of user and group by turns: real, effective, saved, of the file system.
        ids: [u32; 8],
        exit_code: i32,
    }
    const _: () = assert!(size_of::<Info>() == 64);
    /// `PIDFD_GET_INFO`
    const GET_INFO: libc::c_ulong = 3 << 30 | 64 << 16 | 0xff << 8 | 11;
    /// Process numbers and ids, which the kernel always gives.
    const PID_AND_IDS: u64 = 3;
    let mut info = Info { mask: PID_AND_IDS, ..Info::default() };
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) the command reads and writes the 64 bytes of `info`.
    let result = unsafe { libc::ioctl(process.as_fd().as_raw_fd(), GET_INFO as libc::Ioctl, &raw mut info) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    if info.mask & PID_AND_IDS != PID_AND_IDS {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    let [uid, gid, euid, egid, suid, sgid, ..] = info.ids;
    Ok(Identified { process: info.tgid, uid, suid, euid, gids: [gid, egid, sgid] })
}

/// A signal that says of itself whatever the kernel lets a process say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    pub signal: i32,
    /// Negative, and not SI_TKILL.
    pub code: i32,
    pub pid: u32,
    pub uid: u32,
    pub value: u64,
}

/// Sends a signal to the process, or the thread, behind the descriptor. What it says of its sender is kept as it is if
/// the caller is in the receiver's pid namespace.
///
/// # Errors
/// `ESRCH`: it has ended. `EAGAIN`: as many are queued as it may have. `EPERM`: the caller may not, or the code is one
/// that others may not say.
pub fn queue(process: impl AsFd, queued: &Queued) -> io::Result<()> {
    /// `siginfo_t` with what `SI_QUEUE` has (`sigaction(2)`): numbers of the signal, then sender and value.
    #[repr(C)]
    struct Info {
        signal: i32,
        errno: i32,
        code: i32,
        padding: i32,
        pid: u32,
        uid: u32,
        value: u64,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());
    let Queued { signal, code, pid, uid, value } = *queued;
    let info = Info { signal, errno: 0, code, padding: 0, pid, uid, value, rest: [0; 12] };
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) `info` has the size and layout of a siginfo and lives
    // across the call, which copies it.
    let result =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_fd().as_raw_fd(), signal, &raw const info, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the process has ended, reaped or not.
pub fn has_ended(process: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let process = process.as_fd();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An ended process is readable; one whose end cannot be asked for is none to rely on.
    !matches!(poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], Some(&now)), Ok(0))
}

/// Whether a process was killed, or its first thread has ended: it executes nothing of its own any more. Threads of it
/// may be in the kernel still, where nothing ends them but what they wait for; until then its descriptors are open, and
/// [`has_ended`] says no.
pub fn is_ending(pid: i32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return false };
    let state = status.lines().find_map(|line| line.strip_prefix("State:")).map(str::trim);
    state.is_some_and(|state| state.starts_with('Z')) || procfs::is_killed(&status) || is_exiting(pid)
}

/// Whether a thread that took its last signal is on its way out: nothing is pending for it any more.
fn is_exiting(pid: i32) -> bool {
    // `include/linux/sched.h`: PF_EXITING, PF_SIGNALED.
    const ON_ITS_WAY: u64 = 0x4 | 0x400;
    let flags = field_behind_name(pid, 6).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & ON_ITS_WAY != 0)
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
    field_behind_name(pid, 19)?.parse().ok()
}

/// Of `/proc/PID/stat`. The command name may hold anything, blanks and parentheses too; the fields begin after its last
/// one.
fn field_behind_name(pid: i32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(index).map(str::to_owned)
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

    #[test]
    fn process_whose_first_thread_has_ended_is_ending_and_has_not_ended() {
        const PROGRAM: &str = "
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
time.sleep(0.3)
ctypes.CDLL(None).syscall(ctypes.c_long(60 if platform.machine() == 'x86_64' else 93), 0)
";
        let python = std::process::Command::new("python3").args(["-c", PROGRAM]).spawn();
        let Ok(mut python) = python else { return eprintln!("SKIPPED: there is no python3") };
        let pid = python.id() as i32;
        let pidfd = open(pid).unwrap();
        assert!(!is_ending(pid));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !is_ending(pid) && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(is_ending(pid) && !has_ended(&pidfd));
        python.kill().unwrap();
        python.wait().unwrap();
        assert!(!is_ending(pid) && has_ended(&pidfd));
    }

    #[test]
    fn process_that_was_killed_is_ending_before_it_ends() {
        let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = sleeper.id() as i32;
        assert!(!is_ending(pid));
        sleeper.kill().unwrap();
        assert!(is_ending(pid));
        sleeper.wait().unwrap();
        assert!(!is_ending(pid));
    }

    #[test]
    fn process_and_its_threads_are_identified() {
        let own = std::process::id();
        let uid = rustix::process::getuid().as_raw();
        let euid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let expected = Identified { process: own, uid, suid: uid, euid, gids: [gid; 3] };
        assert_eq!(identify(open(own as i32).unwrap()).unwrap(), expected);
        // The test's own thread is not the first one of the process.
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(identify(open_tid(thread).unwrap()).unwrap(), expected);
        assert_eq!(open_tid(1 << 22).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn signal_says_of_its_sender_what_it_was_told_to() {
        let set = [libc::SIGRTMIN()];
        let signals = crate::signals::open(&set).unwrap();
        let thread = open_tid(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let queued = Queued { signal: set[0], code: libc::SI_QUEUE, pid: 131_072, uid: 33, value: 0x1234_5678_9abc };
        queue(&thread, &queued).unwrap();
        // `struct signalfd_siginfo`
        let mut bytes = [0; 128];
        assert_eq!(rustix::io::read(&signals, &mut bytes).unwrap(), 128);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8) as i32), (queued.signal as u32, queued.code));
        assert_eq!((word(12), word(16)), (queued.pid, queued.uid));
        assert_eq!(u64::from_le_bytes(bytes[48..56].try_into().unwrap()), queued.value);
    }
}
