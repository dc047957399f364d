//! Mounting a container's file tree so that it belongs to the container's user namespace.
//!
//! The kernel wants the FUSE device opened by somebody of the user namespace that the mount will belong to, and the
//! device file is the host root's alone. So a helper keeps the host's uid 0 and enters the user namespace, opens the
//! device with the host's `/dev` still before it, then enters the mount namespace and mounts. The mount answers to
//! nobody until the gate serves the descriptor; nothing here may look into it.
//!
//! Whoever waits for a gate that read his request and then stopped cannot even be killed. [`Connection::abort`] lets
//! all of them go, whoever else still holds the descriptor.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, openat, statx};
use rustix::io::write;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create, fsmount, fsopen, mount,
    unmount,
};
use sys::ns::Kinds;

use crate::helper::{HelperError, InPid, Place, TimeLimit, in_child_with};

/// Mounts on top of each other that are taken away before a new one is made.
const LAYERS_MAX: usize = 16;
/// Taking a mount away writes what was changed through memory; a gate that does it at all does it within this.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum FuseMountError {
    #[error("could not mount the file tree at {place}")]
    Helper {
        place: String,
        #[source]
        cause: HelperError,
    },
    #[error("the mount helper answered without a descriptor")]
    NoDescriptor,
    #[error("the mount has the device number {0:?}, which is none")]
    NoDevice(String),
    #[error("could not cut the file tree's connection {connection} off")]
    Abort {
        connection: u32,
        #[source]
        cause: io::Error,
    },
}

/// A mount's connection to its gate. Its control files are opened while the mount is there: the kernel gives the number
/// of a mount that is gone to the next one, which may be another container's. What is open stays with this connection,
/// and does nothing once it is gone.
#[derive(Debug)]
pub struct Connection {
    number: u32,
    abort: rustix::io::Result<OwnedFd>,
    waiting: rustix::io::Result<OwnedFd>,
}

impl Connection {
    fn of_device(device: &str) -> Result<Connection, FuseMountError> {
        let minor = device.split_once(':').and_then(|(_, minor)| minor.parse().ok());
        let number = minor.ok_or_else(|| FuseMountError::NoDevice(device.to_owned()))?;
        let abort = control(number, "abort", OFlags::WRONLY);
        Ok(Connection { number, abort, waiting: control(number, "waiting", OFlags::RDONLY) })
    }

    /// Every request under way and to come fails. A connection that is gone already is no error. The caller must be the
    /// host's root.
    pub fn abort(&self) -> Result<(), FuseMountError> {
        let file = self.abort.as_ref().map_err(|errno| *errno);
        let aborted = file.and_then(|file| write(file, b"1"));
        let connection = self.number;
        aborted.map(drop).map_err(|cause| FuseMountError::Abort { connection, cause: cause.into() })
    }

    /// Requests that the gate has not answered yet, 0 when the connection is gone. `None`: the kernel does not tell.
    pub fn waiting(&self) -> Option<u64> {
        let mut text = [0; 24];
        // The kernel counts when it is read from the beginning.
        match rustix::io::pread(self.waiting.as_ref().ok()?, &mut text, 0).ok()? {
            0 => Some(0),
            got => std::str::from_utf8(text.get(..got)?).ok()?.trim().parse().ok(),
        }
    }
}

/// A gate that is killed with everybody who has its connection may not end: a thread that told the kernel to drop a
/// page waits for the request that holds the page, nobody answers that, and by its wait the connection stays open. Cuts
/// off the connections of threads that were killed (SIGKILL is pending) and are still there; gives how many they were.
///
/// The kernel tells since Linux 6.18 which they are; before, none is found. The caller must be the host's root.
pub fn abandon(pid: u32) -> usize {
    let text = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let names = |path: String| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut numbers = BTreeSet::new();
    for thread in names(format!("/proc/{pid}/task")) {
        if !sys::procfs::is_killed(&text(thread.join("status").display().to_string())) {
            continue;
        }
        for descriptor in names(thread.join("fdinfo").display().to_string()) {
            let said = text(descriptor.display().to_string());
            let number = said.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
            numbers.extend(number.and_then(|number| number.trim().parse::<u32>().ok()));
        }
    }
    let cut = |number: &&u32| control(**number, "abort", OFlags::WRONLY).is_ok_and(|it| write(it, b"1").is_ok());
    numbers.iter().filter(cut).count()
}

/// Through a mount of the control file system that nobody else sees: the host need not have one.
fn control(connection: u32, file: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    openat(&root, format!("{connection}/{file}"), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Whose the mount will be, and where; descriptors from `/proc/PID/ns`. (A pidfd would not do: after the first step the
/// helper has no right to its process any more.)
#[derive(Clone, Copy, Debug)]
pub struct Namespaces<'a> {
    pub user: BorrowedFd<'a>,
    pub mount: BorrowedFd<'a>,
    /// A pidfd, in whose pid namespace the gate hears who asks. `None`: in the host's.
    pub process: Option<BorrowedFd<'a>>,
}

/// How and where.
#[derive(Clone, Debug)]
pub struct FuseMount<'a> {
    /// Path inside the container's mount namespace.
    pub place: &'a str,
    pub max_read_bytes: u32,
    pub read_ahead_kib: u32,
    /// What becomes of a mount that is there.
    pub covers: Covers,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Covers {
    /// It is taken away.
    Nothing,
    /// It stays below.
    What,
}

impl FuseMount<'_> {
    /// Mounts in place of an older mount, whose connection is cut off when its gate does not answer, and returns the
    /// device's descriptor. The caller must be the host's root and have one thread.
    pub fn mount(
        &self,
        before: Option<&Connection>,
        namespaces: Namespaces<'_>,
    ) -> Result<(OwnedFd, Connection), FuseMountError> {
        let fail = |cause| FuseMountError::Helper { place: self.place.to_owned(), cause };
        let patience = TimeLimit { limit: UNMOUNT_LIMIT, free: || cut_off(before) };
        let place = namespaces.process.map(|process| Place { process, kinds: Kinds::PID, pid: InPid::Yes });
        let (fds, device) = in_child_with(place, patience, || {
            sys::ns::join(namespaces.user, Kinds::USER)?;
            let fuse = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
                .map_err(|cause| format!("could not open /dev/fuse: {cause}"))?;
            sys::ns::join(namespaces.mount, Kinds::MOUNT)?;
            if self.covers == Covers::Nothing {
                take_away(self.place)?;
            }
            self.attach(&fuse)?;
            let device = device_number(self.place)?;
            Ok((vec![fuse], device))
        })
        .map_err(fail)?;
        let connection = Connection::of_device(&device)?;
        // The host's own sysfs: the container's is read-only.
        let knob = Path::new("/sys/class/bdi").join(device).join("read_ahead_kb");
        if let Err(cause) = std::fs::write(&knob, self.read_ahead_kib.to_string()) {
            tracing::warn!(%cause, path = %knob.display(), "the file tree keeps the kernel's read-ahead: first reads are slow");
        }
        fds.into_iter().next().map(|fd| (fd, connection)).ok_or(FuseMountError::NoDescriptor)
    }

    /// Takes the mount away. Nothing there is no error. When its gate does not answer, the connection is cut off.
    pub fn unmount(
        place: &str,
        connection: Option<&Connection>,
        namespaces: Namespaces<'_>,
    ) -> Result<(), FuseMountError> {
        let patience = TimeLimit { limit: UNMOUNT_LIMIT, free: || cut_off(connection) };
        let outcome = in_child_with(None, patience, || {
            sys::ns::join(namespaces.user, Kinds::USER)?;
            sys::ns::join(namespaces.mount, Kinds::MOUNT)?;
            take_away(place)?;
            Ok((Vec::new(), String::new()))
        });
        outcome.map(|_| ()).map_err(|cause| FuseMountError::Helper { place: place.to_owned(), cause })
    }

    fn attach(&self, fuse: &OwnedFd) -> Result<(), String> {
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={}\0",
            fuse.as_raw_fd(),
            self.max_read_bytes
        );
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).map_err(|error| error.to_string())?;
        mount("dvs", self.place, "fuse", MountFlags::NODEV | MountFlags::NOSUID, options)
            .map_err(|cause| format!("the kernel refused the mount: {cause}"))
    }
}

fn cut_off(connection: Option<&Connection>) {
    if let Some(Err(error)) = connection.map(Connection::abort) {
        tracing::error!(error = crate::helper::chain(&error), "the gate does not answer, and cannot be left alone");
    }
}

fn take_away(place: &str) -> io::Result<()> {
    for _ in 0..LAYERS_MAX {
        match unmount(place, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => (),
            // Not a mount (any more).
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(cause) => return Err(cause.into()),
        }
    }
    Ok(())
}

/// `major:minor`, without asking the gate, which may not run yet.
fn device_number(place: &str) -> io::Result<String> {
    let root = open(place, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(root.as_fd(), "", flags, StatxFlags::empty())?;
    Ok(format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor))
}
