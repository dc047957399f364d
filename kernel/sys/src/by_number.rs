//! What the kernel says of a process or thread, by its number, to everybody who asks.

use std::io;

/// The number of its process group; 0 for one of another pid namespace.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn group_of(process: i32) -> io::Result<u32> {
    // SAFETY: (1) the call takes a plain number.
    let said = unsafe { libc::getpgid(process) };
    u32::try_from(said).map_err(|_| io::Error::last_os_error())
}

/// The number of its session; 0 for one of another pid namespace.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn session_of(process: i32) -> io::Result<u32> {
    // SAFETY: (1) the call takes a plain number.
    let said = unsafe { libc::getsid(process) };
    u32::try_from(said).map_err(|_| io::Error::last_os_error())
}

/// How a thread is scheduled: `SCHED_OTHER` and its like, perhaps with `SCHED_RESET_ON_FORK`.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn scheduler_of(thread: i32) -> io::Result<u32> {
    // SAFETY: (1) the call takes a plain number.
    let said = unsafe { libc::sched_getscheduler(thread) };
    u32::try_from(said).map_err(|_| io::Error::last_os_error())
}

/// Whose I/O priority (`ioprio_get(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoPriorityOf {
    Thread(i32),
    /// The best of its members.
    Group(i32),
}

/// Class and data, as the kernel packs them.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn io_priority_of(whose: IoPriorityOf) -> io::Result<u32> {
    // `IOPRIO_WHO_PROCESS`, which is about a thread, and `IOPRIO_WHO_PGRP`.
    let (which, who): (libc::c_int, _) = match whose {
        IoPriorityOf::Thread(thread) => (1, thread),
        IoPriorityOf::Group(leader) => (2, leader),
    };
    // SAFETY: (1) the call takes plain numbers.
    let said = unsafe { libc::syscall(libc::SYS_ioprio_get, which, who) };
    u32::try_from(said).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_is_known_and_nobody_is_not() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        assert_eq!(scheduler_of(own).unwrap(), libc::SCHED_OTHER as u32);
        assert_eq!(group_of(own).unwrap(), group as u32);
        session_of(own).unwrap();
        io_priority_of(IoPriorityOf::Thread(own)).unwrap();
        io_priority_of(IoPriorityOf::Group(group)).unwrap();
        let none = (1 << 22) + 1;
        for said in [scheduler_of(none), group_of(none), session_of(none)] {
            assert_eq!(said.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
        for whose in [IoPriorityOf::Thread(none), IoPriorityOf::Group(none)] {
            assert_eq!(io_priority_of(whose).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
