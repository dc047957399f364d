//! Host volumes: directories of the node in a container's mount tree.
//!
//! This is the one place where a container shares inodes with its node (`docs/design/volumes.md`). What keeps it from
//! more than it was given:
//!
//! - The directory is found from a descriptor of the one that the administrator named, with no link of any kind
//!   followed and nothing above it: whoever may write in there cannot make it lead elsewhere, whenever he tries.
//! - What is taken is a clone, with all that is mounted below: nothing shows that the node has covered. Set-uid files
//!   and devices are dead in it, and what is read-only is so throughout.
//! - Its owners are shifted: root inside is there the user that the administrator named, never the node's root, and
//!   users of the node that nobody named are nobody inside, with nobody's privileges over their files.
//! - It is attached before the tree is copied into the container's namespace, so the kernel locks it with the rest:
//!   root inside can neither make it writable nor take it away.
//!
//! Not here: which directories are allowed to whom (`dvsd::volumes`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, mkdirat, openat2};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use serde::{Deserialize, Serialize};
use sys::mount::{Access, Attributes, Devices, Reach, SetUid, set_attributes};

use crate::userns::{self, UIDS, UsernsError};

/// The kernel asks to look again when somebody renames directories meanwhile; who does so all the time is no reason to
/// wait for ever.
const LOOKS_MAX: usize = 64;

/// A directory of the node, and where programs see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeMount {
    /// What the administrator allows: a path from the root, without links.
    pub allowed: PathBuf,
    /// From there; empty: itself.
    pub below: PathBuf,
    /// From the container's root.
    pub place: PathBuf,
    pub read_only: bool,
    /// Whose files there are root's inside. `None`: nobody owns anything, and nobody writes.
    pub owners: Option<Owners>,
}

/// Which ids of the node those inside are, in a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owners {
    /// Of root.
    pub uid: u32,
    pub gid: u32,
    /// User N inside is this one and N further; likewise groups. Root's is not used.
    pub users_from: u32,
}

impl Owners {
    /// Lines of a map from ids in the files to those that the container's processes have.
    fn map(root: u32, users_from: u32, uid_base: u32) -> String {
        format!("{root} {uid_base} 1\n{} {} {}\n", users_from + 1, uid_base + 1, UIDS - 1)
    }
}

/// Why a directory of the node is not in a container.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("the volume {}: no directory {} is reached without symbolic links", .host.display(), .missing.display())]
    NoDirectory {
        host: PathBuf,
        missing: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(
        "the volume {}: its file system, or one mounted below, cannot map owners (Linux 5.12 with ext4, xfs, btrfs and \
         others can; tmpfs since 6.3; none that is mapped already): without 'owner' it can be read",
        .host.display()
    )]
    NoOwners {
        host: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the volume {}: the kernel does not let it be {what}", .host.display())]
    Kernel {
        host: PathBuf,
        what: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error(
        "the volume {}: {} is no directory of the container that could be covered",
        .host.display(),
        .place.display()
    )]
    NoPlace {
        host: PathBuf,
        place: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the volume {}: no user namespace maps its owners", .host.display())]
    Namespace {
        host: PathBuf,
        #[source]
        cause: UsernsError,
    },
}

impl VolumeMount {
    pub fn host(&self) -> PathBuf {
        if self.below.as_os_str().is_empty() { self.allowed.clone() } else { self.allowed.join(&self.below) }
    }

    /// A user namespace that nobody is ever in: its map shifts the owners. The caller must be the host's root, in its
    /// pid namespace, and have one thread.
    pub fn map(&self, uid_base: u32) -> Result<Option<OwnedFd>, VolumeError> {
        let Some(owners) = self.owners else { return Ok(None) };
        let [uids, gids] = [owners.uid, owners.gid].map(|root| Owners::map(root, owners.users_from, uid_base));
        userns::create_mapped(&uids, &gids)
            .map(Some)
            .map_err(|cause| VolumeError::Namespace { host: self.host(), cause })
    }

    /// A clone of the directory and of all that is mounted below, fit for a container. `map` is what [`Self::map`]
    /// gave.
    pub fn take(&self, map: Option<BorrowedFd<'_>>) -> Result<OwnedFd, VolumeError> {
        let host = self.host();
        let dir = self.find()?;
        let kernel = |what| {
            let host = host.clone();
            move |cause| VolumeError::Kernel { host, what, cause }
        };
        let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
        let tree = open_tree(&dir, "", whole | OpenTreeFlags::AT_EMPTY_PATH).map_err(io::Error::from);
        let tree = tree.map_err(kernel("taken"))?;
        // Without a map nobody inside owns anything, but what everybody on the node may write, everybody inside may.
        let is_read_only = self.read_only || map.is_none();
        let bounds = Attributes {
            access: if is_read_only { Access::ReadOnly } else { Access::AsIs },
            devices: Devices::Refused,
            set_uid: SetUid::Ignored,
            ..Attributes::default()
        };
        set_attributes(tree.as_fd(), bounds, Reach::Tree).map_err(kernel("bounded"))?;
        if map.is_some() {
            let shifted = Attributes { owners: map, ..Attributes::default() };
            set_attributes(tree.as_fd(), shifted, Reach::Tree)
                .map_err(|cause| VolumeError::NoOwners { host: host.clone(), cause })?;
        }
        Ok(tree)
    }

    /// From a descriptor of what is allowed, over no link and never above it.
    fn find(&self) -> Result<OwnedFd, VolumeError> {
        let missing = |missing: PathBuf| {
            let host = self.host();
            move |cause: Errno| VolumeError::NoDirectory { host, missing, cause: cause.into() }
        };
        let no_links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let allowed = directory(CWD, &self.allowed, no_links).map_err(missing(self.allowed.clone()))?;
        let below = if self.below.as_os_str().is_empty() { Path::new(".") } else { &self.below };
        directory(allowed.as_fd(), below, no_links | ResolveFlags::BENEATH).map_err(missing(self.host()))
    }

    /// Attaches the clone in the tree whose root is the current directory. Directories that are missing on the way
    /// become `owner`'s.
    pub fn attach(&self, tree: &OwnedFd, owner: u32) -> Result<(), VolumeError> {
        let no_place =
            |cause: Errno| VolumeError::NoPlace { host: self.host(), place: self.place.clone(), cause: cause.into() };
        let place = make_place(&self.place, PlaceLinks::Refused, Some(owner)).map_err(no_place)?;
        let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(tree, "", &place, "", onto).map_err(no_place)
    }
}

fn directory(from: BorrowedFd<'_>, path: &Path, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for _ in 0..LOOKS_MAX {
        match openat2(from, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => (),
            found => return found,
        }
    }
    Err(Errno::AGAIN)
}

/// What becomes of symbolic links on the way to a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaceLinks {
    /// As if the current directory were the root.
    Inside,
    Refused,
}

/// A directory below the current one, which is as good as a root here: made with those above it where they are missing.
pub(crate) fn make_place(path: &Path, links: PlaceLinks, owner: Option<u32>) -> Result<OwnedFd, Errno> {
    let refused = if links == PlaceLinks::Refused { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | refused;
    let mut above = directory(CWD, Path::new("."), resolve)?;
    let mut so_far = PathBuf::new();
    for part in path.components() {
        let name = match part {
            Component::RootDir | Component::CurDir => continue,
            Component::Normal(name) => name,
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL),
        };
        so_far.push(name);
        above = match directory(CWD, &so_far, resolve) {
            Err(Errno::NOENT) => {
                mkdirat(&above, name, Mode::from_raw_mode(0o755))?;
                if let Some(owner) = owner {
                    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
                    chownat(&above, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
                }
                directory(CWD, &so_far, resolve)?
            }
            found => found?,
        };
    }
    Ok(above)
}

/// In a directory of the file tree that is about to become a program's root: the same volumes as in the container's.
/// The current directory is that root, `/` is still the container's.
pub(crate) fn attach_again(place: &Path) -> Result<(), Errno> {
    let whole = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, Path::new("/").join(place), whole)?;
    let there = make_place(place, PlaceLinks::Inside, None)?;
    let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(&tree, "", &there, "", onto)
}
