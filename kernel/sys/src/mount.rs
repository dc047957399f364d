//! `mount_setattr`, the one mount call that rustix lacks: attributes and id mapping of a mount or a whole detached
//! tree. And the identity with which files are looked at, which an overlay keeps from the moment it is made.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What a mount permits. Everything set here is added; nothing is taken away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    pub access: Access,
    pub devices: Devices,
    pub set_uid: SetUid,
    pub programs: Programs,
    /// Owners are shifted by this user namespace's map. Only on a tree that was never attached, Linux 5.12 and a file
    /// system that supports it.
    pub owners: Option<BorrowedFd<'a>>,
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $usual:ident, $strict:ident }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub enum $name {
            #[default]
            $usual,
            $strict,
        }
    };
}

choice!(Access { AsIs, ReadOnly });
choice!(Devices { Usable, Refused });
choice!(SetUid { Honoured, Ignored });
choice!(Programs { Runnable, Refused });

/// This mount alone, or all below it too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    One,
    Tree,
}

/// Sets attributes of the mount `tree` refers to (from `open_tree` or `fsmount`).
pub fn set_attributes(tree: BorrowedFd<'_>, attributes: Attributes<'_>, reach: Reach) -> io::Result<()> {
    let mut set = 0;
    for (wanted, bit) in [
        (attributes.access == Access::ReadOnly, libc::MOUNT_ATTR_RDONLY),
        (attributes.devices == Devices::Refused, libc::MOUNT_ATTR_NODEV),
        (attributes.set_uid == SetUid::Ignored, libc::MOUNT_ATTR_NOSUID),
        (attributes.programs == Programs::Refused, libc::MOUNT_ATTR_NOEXEC),
        (attributes.owners.is_some(), libc::MOUNT_ATTR_IDMAP),
    ] {
        if wanted {
            set |= bit;
        }
    }
    let request = libc::mount_attr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: attributes.owners.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    let flags = libc::AT_EMPTY_PATH | if reach == Reach::Tree { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: (1) the path is a NUL-terminated literal; (2) `request` lives across the call and its size is passed with
    // it; (3) both descriptors are borrowed, hence open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const request,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Does `work` with files as user and group `id`, without the privileges over files that root has, though with all
/// others. Supplementary groups stay.
pub fn as_user_of_files<T>(id: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    let before = file_identity();
    set_file_identity(id, id);
    let switched = file_identity() == (id, id);
    let done = switched.then(work);
    set_file_identity(before.0, before.1);
    done.ok_or_else(|| io::ErrorKind::PermissionDenied.into())
}

/// The group first: changing it may need what the user has.
fn set_file_identity(uid: u32, gid: u32) {
    // SAFETY: (1) plain numbers; (2) they change the calling thread alone. What was refused shows in `file_identity`.
    unsafe {
        libc::setfsgid(gid);
        libc::setfsuid(uid);
    }
}

/// User and group: the calls answer what was before, and an invalid number changes nothing.
fn file_identity() -> (u32, u32) {
    // SAFETY: (1) plain numbers.
    unsafe { (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32) }
}
