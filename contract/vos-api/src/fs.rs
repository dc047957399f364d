//! The file tree. Operations follow FUSE's low-level model, because a gate speaks it, and POSIX in meaning.
//!
//! Inodes are numbers, 1 is the root; a node number is never used twice. Names are 1 to 255 bytes without `/` and NUL.
//! The caller's identity (uid, gid) and the time are the client's to say: permission checks are made by the kernel of
//! the client's node (`default_permissions`), the server checks what only it can know.
//!
//! Reply data of every operation that answers attributes begins with an [`Attr`]. Operations marked *seq* change
//! something and carry a session sequence; the others may be repeated.
//!
//! # Caching
//!
//! A reply whose `results[3]` has [`LEASE`] allows the client to keep attributes, entry and pages of this inode until the
//! inode arrives in [`EVENTS`]. The server completes a conflicting change only after every other holder said so with
//! [`RELEASED`], or was fenced because it stayed silent for [`RECALL_MS`].
//!
//! A [`READ`] waits for changes of others that are under way, and comes with a lease; a [`WRITE`] leaves the writer
//! one. They come without
//! one only when the client has been asked for it and has not said [`RELEASED`] yet (or holds too many): then it drops
//! the bytes again before it says so.
//!
//! Errors are POSIX's. `ENOSPC` full volume or out of inodes, `EDQUOT` never, `EFBIG` above [`FILE_BYTES_MAX`], `EIO`
//! a checksum failed, `ESTALE` the session was fenced: drop caches, begin a new session. `EIDRM`: there is no such inode any more; `ENOENT` is said of
//! names alone. An inode without name and handle goes some seconds later, so that who has just looked its name up still finds it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const ROOT: u64 = 1;
pub const NAME_BYTES_MAX: usize = 255;
pub const SYMLINK_BYTES_MAX: usize = 4095;
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
pub const FILE_BYTES_MAX: u64 = 1 << 44;
pub const LINKS_MAX: u32 = 65_000;
/// How long a holder of a lease may take to give it back before it is fenced.
pub const RECALL_MS: u64 = 3_000;

/// Request data prefix of operations that create: `Create`, then the name (and for [`SYMLINK`] NUL and the target).
/// `args[0]` parent, `args[1]` bytes of the name. Reply: [`Attr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Create {
    /// File type and permission bits as `st_mode` has them, umask already applied.
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    /// Device number of MKNOD.
    pub rdev: U32,
    /// Nanoseconds since 1970, UTC.
    pub time_ns: U64,
}

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Attr {
    pub ino: U64,
    pub bytes: U64,
    /// 512-byte units.
    pub blocks: U64,
    pub atime_ns: U64,
    pub mtime_ns: U64,
    pub ctime_ns: U64,
    pub mode: U32,
    pub links: U32,
    pub uid: U32,
    pub gid: U32,
    pub rdev: U32,
    pub reserved: U32,
}

/// Request data of [`SETATTR`]; `valid` tells which fields count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SetAttr {
    pub valid: U32,
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    pub bytes: U64,
    pub atime_ns: U64,
    pub mtime_ns: U64,
    pub ctime_ns: U64,
}

pub mod valid {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 2;
    pub const GID: u32 = 4;
    pub const BYTES: u32 = 8;
    pub const ATIME: u32 = 16;
    pub const MTIME: u32 = 32;
    pub const CTIME: u32 = 64;
    /// Clear set-user-id and set-group-id, as a write by somebody without CAP_FSETID does.
    pub const KILL_SUID: u32 = 128;
}

/// `args[0]` parent. Request data: name. Reply: [`Attr`]; `ENOENT` may be cached when `results[3]` has [`LEASE`] (on the parent).
pub const LOOKUP: u16 = 16;
/// `args[0]` inode. Reply: [`Attr`].
pub const GETATTR: u16 = 17;
/// *seq.* `args[0]` inode, `args[1]` time_ns. Request data: [`SetAttr`]. Reply: [`Attr`]. Size 0 to size n truncates or extends.
pub const SETATTR: u16 = 18;
/// *seq.* Request data: [`Create`], name. Reply: [`Attr`]. `args[2]` 1: fail with `EEXIST` when the name exists (mknod,
/// mkdir always do); 0: answer the existing regular file (open with O_CREAT without O_EXCL). Opens the file: `results[0]` is the handle.
pub const CREATE: u16 = 19;
/// *seq.* Like [`CREATE`], without a handle: fifos, sockets, devices, regular files.
pub const MKNOD: u16 = 20;
/// *seq.*
pub const MKDIR: u16 = 21;
/// *seq.* Request data: [`Create`], name, target; `args[1]` bytes of the name.
pub const SYMLINK: u16 = 22;
/// `args[0]` inode. Reply data: target.
pub const READLINK: u16 = 23;
/// *seq.* `args[0]` parent, `args[2]` time_ns. Request data: name. An open file lives until its last handle is closed.
pub const UNLINK: u16 = 24;
/// *seq.* As [`UNLINK`].
pub const RMDIR: u16 = 25;
/// *seq.* `args[0]` old parent, `args[1]` new parent, `args[2]` time_ns. `flags`: renameat2's (NOREPLACE 1, EXCHANGE 2).
/// Request data: old name length u16 little-endian, old name, new name.
pub const RENAME: u16 = 26;
/// *seq.* `args[0]` inode, `args[1]` new parent, `args[2]` time_ns. Request data: new name. Reply: [`Attr`].
pub const LINK: u16 = 27;
/// *seq.* `args[0]` inode, `args[1]` open flags, `args[2]` time_ns that `O_TRUNC` leaves (0: times stay). `results[0]` handle. `O_TRUNC` truncates.
pub const OPEN: u16 = 28;
/// *seq.* `args[0]` inode, `args[1]` handle. Frees the last claim on an unlinked file, and the locks that were set through the handle.
pub const RELEASE: u16 = 29;
/// `args[0]` inode, `args[1]` offset, `args[2]` bytes. Reply data: bytes, fewer at the end of the file. `results[0]`: how many.
///
/// With the flag [`WHERE`] the answer may instead say where they lie on the volume, for a client that reads there itself: `results[3]` has [`PLACES`],
/// `results[1]` is a number of [`Span`](crate::disk::Span)s of whole blocks, which the reply data begins with; behind them a CRC-32 of each block, u32. The bytes are
/// the file's while the lease of this answer lasts and the session changes nothing in them itself. A block without its checksum is not: ask again without the flag.
pub const READ: u16 = 30;
/// *seq.* `args[0]` inode, `args[1]` offset, `args[2]` time_ns. Request data: bytes. `results`: bytes written, new size.
/// `flags`: [`APPEND`] ignores the offset and writes at the end.
pub const WRITE: u16 = 31;
/// `args[0]` inode (0: the whole tree). All that was completed before is durable when this completes.
pub const FSYNC: u16 = 32;
/// `args[0]` inode, `args[1]` cookie (0 from the start), `args[2]` 1 with attributes. Reply data: entries [`DirEntry`] + name,
/// padded to 8 bytes, each followed by an [`Attr`] when asked for. `results`: entries, 1 when the end was reached. "." and ".." are not
/// among them; their cookies, 1 and 2, are left to the client. Other cookies are 3 to `i64::MAX`, never given twice in a directory.
pub const READDIR: u16 = 33;
/// `results`: blocks of 4 KiB in all, free; inodes in all, free.
pub const STATFS: u16 = 34;
/// *seq.* `args[0]` inode, `args[1]` bytes of the name, `args[2]` time_ns. `flags`: setxattr's. Request data: name, value.
pub const SETXATTR: u16 = 35;
/// `args[0]` inode. Request data: name. Reply data: value. `results`: bytes.
pub const GETXATTR: u16 = 36;
/// `args[0]` inode. Reply data: names, each ended by NUL. `results`: bytes.
pub const LISTXATTR: u16 = 37;
/// *seq.* `args[0]` inode, `args[1]` time_ns. Request data: name.
pub const REMOVEXATTR: u16 = 38;
/// *seq.* `args[0]` inode, `args[1]` offset, `args[2]` bytes. `flags`: fallocate's mode (KEEP_SIZE 1, PUNCH_HOLE 2, ZERO_RANGE 16).
/// Request data: time_ns, u64.
pub const FALLOCATE: u16 = 39;
/// `args[0]` inode, `args[1]` offset, `args[2]` whence (SEEK_DATA 3, SEEK_HOLE 4). `results`: offset.
pub const LSEEK: u16 = 40;
/// `args[0]` inode. Request data: [`Lock`]. Reply data: the conflicting [`Lock`], or kind `F_UNLCK`.
pub const GETLK: u16 = 41;
/// *seq.* `args[0]` inode, `args[1]` 1: wait until it is granted, `args[2]` handle through which it is set (0: none), with which it goes.
/// Request data: [`Lock`]. `EAGAIN`, `EDEADLK`.
pub const SETLK: u16 = 42;
/// `args[0]` sequence of a waiting [`SETLK`]; that one completes with `EINTR`.
pub const CANCEL: u16 = 43;
/// The client gives up all locks of an owner on an inode (close): `args[0]` inode, `args[1]` owner. *seq.*
pub const UNLOCK_OWNER: u16 = 44;
/// Stays open until something is to be dropped. Reply data: [`Event`]s. `results`: events. Over a new ring of the session all events that were not
/// [`RELEASED`] come again with their numbers. One such request per session; a later one makes the earlier answer `EINTR`.
pub const EVENTS: u16 = 45;
/// The client dropped what these events named: `args[0]` recall number up to which all are done.
pub const RELEASED: u16 = 46;
/// *seq.* `args[0]` source inode, `args[1]` destination inode. Request data: source offset, destination offset, bytes, time_ns as
/// four u64. Shares extents where it can. `results`: bytes.
pub const COPY_RANGE: u16 = 47;
/// *seq.* Makes a whole regular file in one step: `args[0]` parent, `args[1]` bytes of the name, `args[2]` its atime and mtime.
/// Request data: [`Create`], name, content. `EEXIST` when there is the name. Reply: [`Attr`].
pub const PLACE: u16 = 48;

/// Flag of [`WRITE`].
pub const APPEND: u16 = 1;
/// Flag of [`WRITE`]: these bytes were changed earlier, without a word ([`WRITABLE`]). From a client that has been
/// asked for its lease they come before whatever it was
/// asked for.
pub const LATE: u16 = 2;
/// Flag of [`WRITE`], [`OPEN`] with `O_TRUNC`, [`FALLOCATE`] and [`COPY_RANGE`]: in the same step, a regular file loses set-user-id,
/// and set-group-id when its group may execute it (the caller lacks CAP_FSETID).
pub const KILL_SUID: u16 = 1 << 8;
/// Flag of [`READ`]: the client can read the volume.
pub const WHERE: u16 = 1;
/// Flag of [`READ`]: the client may change what it keeps of the bytes without a word (a file that is mapped and open
/// for writing). All others give their
/// leases back first.
pub const WRITABLE: u16 = 2;
/// Shorter reads are answered with bytes, whatever their flag: what the detour saves is less than a round trip to the disk.
pub const WHERE_BYTES_MIN: u32 = 128 << 10;
/// Bit of `results[3]`: the answer may be kept until recalled.
pub const LEASE: u64 = 1;
/// Bit of `results[3]` of [`READ`]: the reply data says where the bytes lie.
pub const PLACES: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DirEntry {
    pub ino: U64,
    /// Where to go on after this entry.
    pub cookie: U64,
    /// File type bits of `st_mode`, shifted right by 12.
    pub kind: U32,
    pub name_bytes: U32,
}

/// A POSIX record lock or (owner with the top bit set) a flock. `end` inclusive, `u64::MAX` for the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Lock {
    pub owner: U64,
    pub start: U64,
    pub end: U64,
    /// `F_RDLCK` 0, `F_WRLCK` 1, `F_UNLCK` 2.
    pub kind: U32,
    pub pid: U32,
}

/// How a program asks a gate for [`PLACE`]: an ioctl on the directory, which takes no lock of it, so that many files of one directory
/// can be made at a time. This head, the name, the content; `_IOW` of group [`PLACE_GROUP`], number [`PLACE_NUMBER`] and the length of all.
/// Only the container's root may. Returns 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PlaceHead {
    /// Permission bits.
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    pub name_bytes: U32,
    pub mtime_ns: U64,
}

pub const PLACE_GROUP: u8 = 0xd5;
pub const PLACE_NUMBER: u8 = 1;
/// What the number of an ioctl has room for.
pub const PLACE_BYTES_MAX: usize = (1 << 14) - 1;

/// One thing to drop from caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Event {
    /// Rises with each event of this session, also over restarts of the server.
    pub recall: U64,
    /// For [`ENTRY`] the parent. 0 with [`INODE`]: everything, because the server does not know any more who keeps what.
    pub ino: U64,
    /// [`INODE`] or [`ENTRY`].
    pub kind: U32,
    /// Bytes that follow, padded to 8. [`ENTRY`]: the name. [`INODE`]: none, or 8 bytes: a u64, how long a file is about
    /// to be at least, for clients that go by the size they know.
    pub name_bytes: U32,
}

pub const INODE: u32 = 1;
pub const ENTRY: u32 = 2;

const _: () = assert!(size_of::<Attr>() == 72);
const _: () = assert!(size_of::<SetAttr>() == 48);
const _: () = assert!(size_of::<Create>() == 24);
const _: () = assert!(size_of::<PlaceHead>() == 24);
