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

/// Most that is said of a thread at once: a set of 1,024 CPUs.
pub const SAID_BYTES_MAX: usize = 128;

fn checked(said: libc::c_long) -> io::Result<usize> {
    usize::try_from(said).map_err(|_| io::Error::last_os_error())
}

/// Its priority for real time (`sched_getparam(2)`), as `struct sched_param` has it.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn parameters_of(thread: i32) -> io::Result<[u8; 4]> {
    let mut said = [0; 4];
    // SAFETY: (1) the call writes a `struct sched_param`, which is one `int`, and `said` lives across it.
    checked(unsafe { libc::syscall(libc::SYS_sched_getparam, thread, said.as_mut_ptr()) })?;
    Ok(said)
}

/// How long its turn is (`sched_rr_get_interval(2)`), as `struct timespec` has it.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn interval_of(thread: i32) -> io::Result<[u8; 16]> {
    let mut said = [0; 16];
    // SAFETY: (1) the call writes a `struct timespec` of two 64-bit words, and `said` lives across it.
    checked(unsafe { libc::syscall(libc::SYS_sched_rr_get_interval, thread, said.as_mut_ptr()) })?;
    Ok(said)
}

/// How it is scheduled, as the kernel's own `struct sched_attr` has it, which begins with its size.
///
/// # Errors
/// `ESRCH`: there is none.
pub fn attributes_of(thread: i32) -> io::Result<Vec<u8>> {
    let mut said = vec![0; SAID_BYTES_MAX];
    // SAFETY: (1) the call writes at most as many bytes as it is told that there are.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, thread, said.as_mut_ptr(), SAID_BYTES_MAX, 0) })?;
    let length = said.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length) as usize);
    said.truncate(length);
    Ok(said)
}

/// The CPUs it may use (`sched_getaffinity(2)`), as many bytes as the kernel says, of at most `room`.
///
/// # Errors
/// `ESRCH`: there is none. `EINVAL`: less room than this kernel's set has, or no whole number of words.
pub fn affinity_of(thread: i32, room: usize) -> io::Result<Vec<u8>> {
    let mut said = vec![0; SAID_BYTES_MAX];
    let room = if room > SAID_BYTES_MAX { SAID_BYTES_MAX } else { room };
    // SAFETY: (1) the call writes at most `room` bytes, of which there are so many.
    let length = checked(unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, room, said.as_mut_ptr()) })?;
    said.truncate(length);
    Ok(said)
}

/// A limit of a process, soft and hard, as it was before `new`.
///
/// # Errors
/// As of `prlimit(2)`.
pub fn limit_of(process: i32, resource: u32, new: Option<[u64; 2]>) -> io::Result<[u64; 2]> {
    let mut before = [0; 2];
    let new = new.as_ref().map_or(std::ptr::null(), |new| new.as_ptr());
    // SAFETY: (1) a `struct rlimit64` is two 64-bit words; both, where there are two, live across the call.
    checked(unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, new, before.as_mut_ptr()) })?;
    Ok(before)
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
        assert_eq!(parameters_of(own).unwrap(), [0; 4]);
        interval_of(own).unwrap();
        let attributes = attributes_of(own).unwrap();
        assert!((48..=SAID_BYTES_MAX).contains(&attributes.len()), "{attributes:?}");
        let cpus = rustix::thread::sched_getaffinity(None).unwrap();
        let said = affinity_of(own, 4096).unwrap();
        let is_said = |cpu: usize| said.get(cpu / 8).is_some_and(|byte| byte & 1 << (cpu % 8) != 0);
        assert!((0..said.len() * 8).all(|cpu| is_said(cpu) == cpus.is_set(cpu)) && said.len().is_multiple_of(8));
        assert_eq!(affinity_of(own, 7).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let files = limit_of(own, libc::RLIMIT_NOFILE, None).unwrap();
        assert_eq!(limit_of(own, libc::RLIMIT_NOFILE, Some(files)).unwrap(), files);
        assert_eq!(limit_of(own, 99, None).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let none = (1 << 22) + 1;
        assert_eq!(attributes_of(none).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        for said in [scheduler_of(none), group_of(none), session_of(none)] {
            assert_eq!(said.unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
        for whose in [IoPriorityOf::Thread(none), IoPriorityOf::Group(none)] {
            assert_eq!(io_priority_of(whose).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
