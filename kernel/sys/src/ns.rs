//! Namespaces: leaving one's own, entering another's.
//!
//! What a set can name excludes `CLONE_FILES` and `CLONE_FS`, so that splitting a descriptor table, the one use of
//! `unshare` that can hurt other threads, cannot be written. The kernel itself refuses user and mount changes in a
//! process that has threads.

use std::io;
use std::ops::BitOr;
use std::os::fd::{AsFd, AsRawFd};

/// A set of namespace kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kinds(libc::c_int);

impl Kinds {
    pub const USER: Kinds = Kinds(libc::CLONE_NEWUSER);
    pub const MOUNT: Kinds = Kinds(libc::CLONE_NEWNS);
    /// Children only: the caller keeps its own.
    pub const PID: Kinds = Kinds(libc::CLONE_NEWPID);
    pub const NET: Kinds = Kinds(libc::CLONE_NEWNET);
    pub const IPC: Kinds = Kinds(libc::CLONE_NEWIPC);
    pub const UTS: Kinds = Kinds(libc::CLONE_NEWUTS);
    pub const CGROUP: Kinds = Kinds(libc::CLONE_NEWCGROUP);
}

impl BitOr for Kinds {
    type Output = Kinds;

    fn bitor(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }
}

/// Moves the calling thread (for [`Kinds::PID`]: its future children) into new namespaces.
pub fn unshare(kinds: Kinds) -> io::Result<()> {
    // SAFETY: (1) no pointers; (2) `Kinds` cannot name CLONE_FILES, CLONE_FS or CLONE_VM, so no other thread is
    // affected.
    check(unsafe { libc::unshare(kinds.0) })
}

/// Moves the calling thread into the namespaces of the process behind a pidfd, or into the one namespace that a
/// descriptor from `/proc/PID/ns` stands for (then `kinds` must name exactly that kind).
pub fn join(target: impl AsFd, kinds: Kinds) -> io::Result<()> {
    // SAFETY: (1) no pointers; (2) the descriptor is borrowed, hence open.
    check(unsafe { libc::setns(target.as_fd().as_raw_fd(), kinds.0) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
