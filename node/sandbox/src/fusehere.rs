//! Mounts a FUSE file system where the caller is, in its own namespaces: as root by itself, as somebody else by
//! `fusermount3`, which is there for this (`fuse3`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const HELPER: &str = "fusermount3";
/// Under which the helper finds the socket over which it hands the descriptor back.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";
const MAX_READ_BYTES: u32 = 1 << 20;

/// What is to be mounted.
#[derive(Clone, Debug)]
pub struct FuseHere {
    /// An absolute path.
    pub place: PathBuf,
    /// What `mount` shows as its source.
    pub source: String,
    /// Whether others than who mounts may use it; root always lets them.
    pub allow_other: bool,
    /// Whether programs may only look.
    pub read_only: bool,
}

impl FuseHere {
    /// The descriptor of the device, mounted.
    pub fn mount(&self) -> io::Result<OwnedFd> {
        if is_root() { self.mount_as_root() } else { self.mount_by_helper() }
    }

    /// As long as nobody uses it.
    pub fn unmount(&self) -> io::Result<()> {
        self.take_away(UnmountFlags::NOFOLLOW, &["-u"])
    }

    /// Whoever uses it keeps what it has until the server ends.
    pub fn detach(&self) -> io::Result<()> {
        self.take_away(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH, &["-u", "-z"])
    }

    fn mount_as_root(&self) -> io::Result<OwnedFd> {
        let fuse = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={MAX_READ_BYTES}",
            fuse.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        let only = if self.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        let flags = MountFlags::NODEV | MountFlags::NOSUID | only;
        mount(self.source.as_str(), &self.place, "fuse.dvs", flags, &*options)?;
        Ok(fuse)
    }

    fn mount_by_helper(&self) -> io::Result<OwnedFd> {
        let (own, helpers) = sys::seqpacket::pair()?;
        // It is to be open there, under the number that it is told.
        rustix::io::fcntl_setfd(&helpers, rustix::io::FdFlags::empty())?;
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        let mut options =
            format!("nodev,nosuid,default_permissions,max_read={MAX_READ_BYTES},subtype=dvs,fsname={source}");
        if self.allow_other {
            options.push_str(",allow_other");
        }
        if self.read_only {
            options.push_str(",ro");
        }
        let mut helper = Command::new(HELPER);
        helper.args(["-o", &options, "--"]).arg(&self.place).stdin(Stdio::null());
        let done = helper.env(SOCKET_VARIABLE, helpers.as_raw_fd().to_string()).output().map_err(no_helper)?;
        drop(helpers);
        if !done.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
        }
        let received = sys::seqpacket::receive(&own, &mut [0; 8])?;
        let fuse = received.descriptors.into_iter().next();
        fuse.ok_or_else(|| io::Error::other(format!("{HELPER} handed no descriptor over")))
    }

    fn take_away(&self, flags: UnmountFlags, options: &[&str]) -> io::Result<()> {
        if is_root() {
            return Ok(unmount(&self.place, flags)?);
        }
        let done = Command::new(HELPER).args(options).arg("--").arg(&self.place).output().map_err(no_helper)?;
        if done.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn no_helper(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{HELPER} cannot be started: {error}"))
}
