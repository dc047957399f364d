//! Signals as descriptors: a blocked signal is read like data, so no code of ours runs in a handler.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// Blocks `signals` for the calling thread (and those it makes later) and returns a descriptor that delivers them.
/// Call it before the first thread is made: a signal goes to any thread that does not block it.
pub fn open(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    // SAFETY: (1) an all-zero sigset_t is a valid value; (2) the calls get pointers to this local only.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for &signal in signals {
            if libc::sigaddset(&mut set, signal) < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let refused = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: (1) signalfd just returned this descriptor to us and nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Waits for the next signal of `fd` (from [`open`]) and returns its number.
pub fn next(fd: impl AsFd) -> io::Result<libc::c_int> {
    let fd = fd.as_fd().as_raw_fd();
    loop {
        // SAFETY: (1) all-zero is a valid signalfd_siginfo; (2) read writes at most its size into it.
        let (got, info) = unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let got = libc::read(fd, (&raw mut info).cast(), size_of::<libc::signalfd_siginfo>());
            (got, info)
        };
        if got == size_of::<libc::signalfd_siginfo>() as isize {
            return Ok(info.ssi_signo as libc::c_int);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
