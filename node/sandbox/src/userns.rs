//! A container's user namespace: its users 0 to 65,535 are a range of the host's.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sys::child::{ForkError, Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;

/// Uids, and gids, of one container.
pub const UIDS: u32 = 65_536;

#[derive(Debug, thiserror::Error)]
pub enum UsernsError {
    #[error("uid base {0} leaves no room for {UIDS} uids, or is the host's own range")]
    BadBase(u32),
    #[error("could not make a process for the user namespace")]
    Fork(#[from] ForkError),
    #[error("the kernel made no user namespace (see user.max_user_namespaces)")]
    Refused,
    #[error("could not {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not make a pipe")]
    Pipe(#[source] io::Error),
}

/// Makes one whose root is the host's `uid_base`. The caller must be the host's root and have one thread.
pub fn create(uid_base: u32) -> Result<OwnedFd, UsernsError> {
    if !(UIDS..=u32::MAX - 2 * UIDS).contains(&uid_base) {
        return Err(UsernsError::BadBase(uid_base));
    }
    let map = format!("0 {uid_base} {UIDS}\n");
    create_mapped(&map, &map)
}

/// Makes one with these maps of users and of groups, in the kernel's form. The caller must be the host's root, in its
/// pid namespace, and have one thread.
pub fn create_mapped(uids: &str, gids: &str) -> Result<OwnedFd, UsernsError> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|cause| UsernsError::Pipe(cause.into()));
    let ((made, say_made), (done, say_done)) = (pipe()?, pipe()?);
    match fork(Parentage::Mine)? {
        Forked::Child => {
            drop((made, say_done));
            if sys::ns::unshare(Kinds::USER).is_ok() && File::from(say_made).write_all(b"1").is_ok() {
                // The namespace lives as long as we do; the end of the pipe says that it was opened.
                let _ = File::from(done).read(&mut [0]);
            }
            exit_now(0)
        }
        Forked::Parent { pid, pidfd } => {
            drop((say_made, done));
            let opened = match File::from(made).read_exact(&mut [0]) {
                Ok(()) => map_and_open(pid, uids, gids),
                Err(_) => Err(UsernsError::Refused),
            };
            drop(say_done);
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            opened
        }
    }
}

fn map_and_open(pid: u32, uids: &str, gids: &str) -> Result<OwnedFd, UsernsError> {
    let dir = Path::new("/proc").join(pid.to_string());
    for (file, map) in [("gid_map", gids), ("uid_map", uids)] {
        let path = dir.join(file);
        std::fs::write(&path, map).map_err(|cause| UsernsError::File { what: "write", path, cause })?;
    }
    let path = dir.join("ns/user");
    File::open(&path).map(OwnedFd::from).map_err(|cause| UsernsError::File { what: "open", path, cause })
}
