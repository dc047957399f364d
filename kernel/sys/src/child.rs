//! Making processes: fork without exec, and what a child does before it becomes a program.
//!
//! A child of a process with threads may call next to nothing (another thread may have held the allocator's lock), so
//! [`fork`] refuses to run in one. A process with one thread may go on in its child as if nothing had happened.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// 0 to 2 are a process's own streams.
const FIRST_BEYOND_STDIO: libc::c_uint = 3;

/// Whose child the new process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parentage {
    Mine,
    /// Of my own parent, who will have to wait for it: how a helper that entered a pid namespace hands the first
    /// process there to who sent it.
    Sibling,
}

/// In whom [`fork`] returned.
#[derive(Debug)]
pub enum Forked {
    Child,
    Parent {
        /// As the caller's pid namespace numbers it.
        pid: u32,
        pidfd: OwnedFd,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("a process with several threads may not go on in a child")]
    Threads,
    #[error("the kernel made no process")]
    Kernel(#[source] io::Error),
}

/// Makes a child that goes on from here with a copy of everything.
pub fn fork(parentage: Parentage) -> Result<Forked, ForkError> {
    // The kernel's own test, which works without /proc: sharing no memory is granted to who shares none, refused to
    // others. SAFETY: (1) no pointers; (2) on success nothing changes.
    if unsafe { libc::unshare(libc::CLONE_VM) } < 0 {
        return Err(ForkError::Threads);
    }
    let mut pidfd: libc::c_int = -1;
    // SAFETY: (1) all-zero is a valid clone_args.
    let mut request: libc::clone_args = unsafe { std::mem::zeroed() };
    request.flags = libc::CLONE_PIDFD as u64;
    request.pidfd = &raw mut pidfd as u64;
    match parentage {
        Parentage::Mine => request.exit_signal = libc::SIGCHLD as u64,
        // The exit signal is then the caller's own.
        Parentage::Sibling => request.flags |= libc::CLONE_PARENT as u64,
    }
    // SAFETY: (1) `request` and `pidfd` live across the call; (2) without CLONE_VM the child has its own copy of this
    // memory and stack; (3) there is one thread, so no lock is held by somebody who does not exist in the child.
    let mut pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const request, size_of::<libc::clone_args>()) };
    if pid < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        // In a container: filters cannot look at the flags of clone3.
        let flags = request.flags | request.exit_signal;
        // SAFETY: as above; (4) without a stack of its own the child goes on on a copy of ours.
        pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) };
    }
    match pid {
        -1 => Err(ForkError::Kernel(io::Error::last_os_error())),
        0 => Ok(Forked::Child),
        // SAFETY: (1) the kernel just opened this descriptor for us.
        pid => Ok(Forked::Parent { pid: pid as u32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
    }
}

/// A copy of a descriptor that this process was started with, by its number. `None`: there is none.
pub fn inherited(descriptor: u32) -> Option<OwnedFd> {
    let number = i32::try_from(descriptor).ok().filter(|number| *number >= FIRST_BEYOND_STDIO as i32)?;
    // SAFETY: (1) no pointers; (2) a descriptor that is open is copied, and of one that is not nothing happens.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_BEYOND_STDIO) };
    // SAFETY: (1) the kernel just opened it for us.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Ends the process at once: no destructors, no buffers flushed twice.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: (1) _exit does not return and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Closes every descriptor from 3 on but the `kept`: what a child must not hold open while it waits for something
/// foreign.
///
/// Only for a child made by [`fork`] that ends in [`exec`] or [`exit_now`]: its copies of the parent's values still
/// name what is closed here, so none of them may be used or dropped afterwards.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<libc::c_uint> = kept.iter().map(|fd| fd.as_raw_fd() as libc::c_uint).collect();
    kept.sort_unstable();
    let mut first = FIRST_BEYOND_STDIO;
    for fd in kept {
        if fd > first {
            close_range(first, fd - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first, libc::c_uint::MAX)
}

/// Closes what whoever started this program left open beyond its standard streams: it would be held for as long as the
/// program and everything it starts live. For the first lines of a program, before it opens anything itself.
pub fn close_inherited() -> io::Result<()> {
    close_range(FIRST_BEYOND_STDIO, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: (1) no pointers; (2) no memory of ours depends on a descriptor: mappings stay; (3) the caller's process
    // is a copy that ends without using or dropping what owned the descriptors, or a program that has opened none yet.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Replaces this process by the program at `path`. Returns only what went wrong.
pub fn exec(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let arguments = pointers(arguments);
    let environment = pointers(environment);
    // SAFETY: (1) all strings are NUL-terminated and outlive the call; (2) both arrays end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    io::Error::last_os_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}

/// Gives every signal its default action and blocks none, as a program expects to find them.
pub fn default_signals() {
    // SAFETY: (1) SIG_DFL runs no code of ours; the numbers a C library keeps for itself and SIGKILL, SIGSTOP answer an
    // error that changes nothing; (2) the set is a local that outlives the calls.
    unsafe {
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}

/// Whether two descriptors of this process are one open file, which has one offset (`kcmp(2)`). `None`: the kernel does
/// not tell.
pub fn is_one_open_file(one: impl AsFd, other: impl AsFd) -> Option<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let own = std::process::id() as libc::pid_t;
    let numbers = [one.as_fd().as_raw_fd(), other.as_fd().as_raw_fd()].map(|number| number as libc::c_ulong);
    // SAFETY: no pointers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, own, own, KCMP_FILE, numbers[0], numbers[1]) };
    (result >= 0).then_some(result == 0)
}

/// From then on the process is ended by SIGALRM, in whole seconds; zero: not any more (`alarm(2)`).
pub fn end_after(time: std::time::Duration) {
    // SAFETY: no pointers; the signal's action is the process's own choice.
    unsafe { libc::alarm(u32::try_from(time.as_secs()).unwrap_or(u32::MAX)) };
}

/// [`default_signals`], then those of `ignored` are ignored and those of `blocked` blocked: bit *n - 1* is signal *n*.
pub fn inherit_signals(ignored: u64, blocked: u64) {
    default_signals();
    // SAFETY: (1) SIG_IGN runs no code of ours; (2) the set is a local that outlives the calls; (3) numbers that do not
    // exist, and those a C library keeps for itself, answer an error that changes nothing.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in 1..=64 {
            if ignored >> (signal - 1) & 1 == 1 {
                libc::signal(signal, libc::SIG_IGN);
            }
            if blocked >> (signal - 1) & 1 == 1 {
                libc::sigaddset(&mut set, signal);
            }
        }
        libc::sigprocmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}

/// Children (and adopted orphans) of this process vanish when they end, without being waited for.
pub fn ignore_child_deaths() {
    // SAFETY: (1) SIG_IGN runs no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Soft and hard limit of a resource of this process, as `prlimit` numbers them.
pub fn limit(resource: u32) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: (1) the kernel writes one rlimit into a local of that type.
    let result = unsafe { libc::prlimit(0, resource as _, std::ptr::null(), &mut limit) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((limit.rlim_cur, limit.rlim_max)) }
}

/// Sets both limits of a resource of this process.
pub fn set_limit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: (1) the kernel reads one rlimit from a local of that type.
    let result = unsafe { libc::prlimit(0, resource as _, &limit, std::ptr::null_mut()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends `signal` to the process behind a pidfd or a `/proc/PID` directory. Signal 0 only asks whether it is there.
pub fn send_signal(process: impl AsFd, signal: i32) -> io::Result<()> {
    // SAFETY: (1) the descriptor is borrowed, hence open; (2) a null siginfo is allowed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_fd().as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_with_threads_may_not_fork() {
        // The test harness itself has a main thread beside this one.
        assert!(matches!(fork(Parentage::Mine), Err(ForkError::Threads)));
    }
}
