//! The file tree. Operations follow FUSE's low-level model, because a gate speaks it, and POSIX in meaning.
//!
//! Inodes are numbers, 1 is the root; a node number is never used twice. Names are 1 to 255 bytes without `/` and NUL.
//! The caller's identity (uid, gid) and the time are the client's to say: permission checks are made by the kernel of
//! the client's node (`default_permissions`), the server checks what only it can know.
//!
//! The fourth word of every reply says what of it may be kept ([`LEASE`]). Operations that change something happen
//! `once`.
//!
//! # Caching
//!
//! A reply whose `results[3]` has [`LEASE`] allows the client to keep attributes, entry and pages of this inode until
//! the inode arrives in [`Events`]. The server completes a conflicting change only after every other holder said so
//! with [`Released`], or was fenced because it stayed silent for [`RECALL_MS`].
//!
//! A [`Read`] waits for changes of others that are under way, and comes with a lease; a [`Write`] leaves the writer
//! one. Either comes without a lease only when the client has been asked for it and has not said [`Released`] yet, or
//! holds too many leases: then the client drops the bytes again before it says [`Released`].
//!
//! Errors are POSIX's. `ENOSPC` full volume or out of inodes, `EDQUOT` a quota of a directory is used up
//! ([`QUOTA_NAME`]), `EFBIG` above [`FILE_BYTES_MAX`], `EIO` a checksum failed, `ESTALE` the session was fenced: drop
//! caches, begin a new session (or, if the greeting says that an epoch is old, learn the placement of today). `EIDRM`:
//! there is no such inode any more; `ENOENT` is said of names alone. An inode without name and handle goes some seconds
//! later, so that who has just looked its name up still finds it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::operation::{AfterNul, Empty, Measured, Prefixed, Third, in_data, operations, replies, words};

pub const ROOT: u64 = 1;
/// The directory of all snapshots. `MKDIR` in it takes one, `RMDIR` removes one; what a snapshot shows are inodes whose
/// numbers have this bit, too. Nothing else changes any of them (`EROFS`).
pub const SNAPSHOTS: u64 = 1 << 62;
/// An inode of a snapshot has this bit, the number of the snapshot above these bits, and in them the number that the
/// inode itself has in the tree.
pub const SNAPSHOT_INO_BITS: u32 = 44;
/// Where [`SNAPSHOTS`] is found in the root, which does not list it.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshots";
/// Names of extended attributes that the server answers itself; no listing has them. Who lets programs in lets only
/// root change them.
pub const OWN_NAMES: &[u8] = b"dvs.";
/// Of a directory: its quota, which counts all that is made in it and below from when it is set, and what was there.
/// Setting it takes `bytes=N inodes=N`, each of which may be missing: no limit. It tells the same, and `used_bytes=N
/// used_inodes=N counted=0|1`: 0 while what was there is still being counted. `EEXIST`: a directory above or below has
/// one. Removing it ends it.
pub const QUOTA_NAME: &[u8] = b"dvs.quota";
/// Of [`ROOT`], followed by a number in decimal: quotas whose numbers are at least that, a line for each: its number,
/// what [`QUOTA_NAME`] tells, the path. As many as fit; none: there are no more.
pub const QUOTAS_NAME: &[u8] = b"dvs.quotas.";
/// Of the root of a snapshot, followed by the number of an earlier one, a dot and the number of an inode, in decimal:
/// inodes from that number on that differ between the two snapshots, or are in one only, as u64 in rising order: their
/// own numbers, without what says the snapshot. As many as fit; none: there are no more. `ENODATA`: there is no such
/// earlier snapshot.
pub const SINCE_NAME: &[u8] = b"dvs.since.";
pub const NAME_BYTES_MAX: usize = 255;
pub const SYMLINK_BYTES_MAX: usize = 4095;
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;
pub const FILE_BYTES_MAX: u64 = 1 << 44;
pub const LINKS_MAX: u32 = 65_000;
/// How long a holder of a lease may take to give it back before it is fenced.
pub const RECALL_MS: u64 = 3_000;

/// What an inode is to be when it is made.
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
    /// [`BARE`], [`CONTENT`].
    pub marks: U32,
}

/// In [`Attr::marks`]: the inode has no extended attributes. Without it, it may have some.
pub const BARE: u32 = 1;

/// In [`Attr::marks`], of a listing: the file's bytes follow.
pub const CONTENT: u32 = 2;
/// Longer files are read by themselves.
pub const CONTENT_BYTES_MAX: u64 = 16 << 10;

/// What [`Setattr`] changes; `valid` tells which fields count.
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
    /// Changes nothing: see [`super::BEHIND`].
    pub const BEHIND: u32 = 256;
}

operations! {
    enum Request<'a>;

    /// `ENOENT` may be kept when the reply has [`LEASE`] (on the parent).
    LOOKUP = 16: repeatable Lookup<'a> { parent: u64, name: &'a [u8] } -> Attributes [NoEntry, NotDirectory, NameTooLong, Gone];

    /// With [`BEHIND`] it waits for nothing but what others have exclusively; [`EXCLUSIVE`] in the reply: the session
    /// has the inode for itself, or will have been the only one that had until it has [`Told`].
    GETATTR = 17: repeatable Getattr {
        marks: u16,
        ino: u64,
    } -> Attributes [Gone];

    /// Size 0 to size n truncates or extends.
    SETATTR = 18: once Setattr { ino: u64, time_ns: u64, wanted: SetAttr } -> Attributes [IsDirectory, FileTooBig, NoSpace, QuotaExceeded, ReadOnly, Gone];

    /// Makes and opens a regular file.
    CREATE = 19: once CreateFile<'a> { parent: u64, create: Create, name: Measured<'a>, existing: Existing } -> Created
        [NoEntry, Exists, NotDirectory, IsDirectory, NoSpace, QuotaExceeded, NameTooLong, ReadOnly, Gone];

    /// Fifos, sockets, devices, regular files, without a handle.
    MKNOD = 20: once Mknod<'a> { parent: u64, create: Create, name: Measured<'a> } -> Attributes
        [NoEntry, Exists, NotDirectory, NoSpace, QuotaExceeded, NameTooLong, ReadOnly, Gone];

    /// In [`SNAPSHOTS`] it takes a snapshot of that name: of all that was answered, or promised, before. `EMLINK`:
    /// there are as many as there can be.
    MKDIR = 21: once Mkdir<'a> { parent: u64, create: Create, name: Measured<'a> } -> Attributes
        [NoEntry, Exists, NotDirectory, NoSpace, QuotaExceeded, TooManyLinks, NameTooLong, ReadOnly, Gone];

    SYMLINK = 22: once Symlink<'a> { parent: u64, create: Create, name: Measured<'a>, target: AfterNul<'a> } -> Attributes
        [NoEntry, Exists, NotDirectory, NoSpace, QuotaExceeded, NameTooLong, ReadOnly, Gone];

    /// Reply data: the target.
    READLINK = 23: repeatable Readlink { ino: u64 } -> Bytes [Gone];

    /// An open file lives until its last handle is closed. `ENOSPC`: a snapshot has the file, and there is no room to
    /// keep what was.
    UNLINK = 24: once Unlink<'a> {
        /// [`DELEGATED`].
        marks: u16,
        parent: u64,
        time_ns: Third,
        name: &'a [u8],
    } -> Removed [NoEntry, NotDirectory, IsDirectory, NotEmpty, NameTooLong, NoSpace, ReadOnly, Gone];

    RMDIR = 25: once Rmdir<'a> { parent: u64, time_ns: Third, name: &'a [u8] } -> Removed
        [NoEntry, NotDirectory, IsDirectory, NotEmpty, NameTooLong, NoSpace, ReadOnly, Gone];

    /// `how`: renameat2's flags (NOREPLACE 1, EXCHANGE 2), [`DELEGATED`]. What moves to where another quota counts, or
    /// none, counts there; a directory that is not empty cannot (`EXDEV`).
    RENAME = 26: once Rename<'a> {
        how: u16,
        from: u64,
        to: u64,
        time_ns: u64,
        old: Prefixed<'a>,
        new: &'a [u8],
    } -> Renamed [NoEntry, Exists, NotDirectory, IsDirectory, NoSpace, QuotaExceeded, CrossDevice, TooManyLinks, NameTooLong, NotEmpty, ReadOnly, Gone];

    LINK = 27: once Link<'a> { ino: u64, parent: u64, time_ns: u64, name: &'a [u8] } -> Attributes
        [NotPermitted, NoEntry, Exists, NotDirectory, NoSpace, TooManyLinks, NameTooLong, ReadOnly, Gone];

    /// `O_TRUNC` truncates and leaves `time_ns` (0: times stay).
    OPEN = 28: once Open {
        /// [`KILL_SUID`], [`BEHIND`].
        marks: u16,
        ino: u64,
        /// open(2)'s.
        flags: u64,
        time_ns: u64,
    } -> Opened [NoSpace, ReadOnly, Gone];

    /// Frees the last claim on an unlinked file, and the locks that were set through the handle.
    RELEASE = 29: once Release { ino: u64, handle: u64 } -> Empty [BadHandle];

    /// Reply data: bytes, fewer at the end of the file.
    ///
    /// With the mark [`WHERE`] the answer may instead say where they lie on the volume, for a client that reads there
    /// itself: it has [`PLACES`], and a number of [`Span`](crate::disk::Span)s of whole blocks, which the reply data
    /// begins with; after them a CRC-32 of each block, u32. The bytes are the file's while the lease of this answer
    /// lasts and the session changes nothing in them itself. A block without its checksum is not: ask again without the
    /// mark.
    READ = 30: repeatable Read {
        /// [`WHERE`], [`WRITABLE`].
        marks: u16,
        ino: u64,
        offset: u64,
        bytes: u64,
    } -> ReadReply [IsDirectory, Gone];

    /// Reply data: an [`Attr`] without [`BARE`], for whoever has room for it.
    WRITE = 31: once Write<'a> {
        /// [`APPEND`] ignores the offset and writes at the end; [`LATE`], [`BEHIND`], [`PROMISED`], [`KILL_SUID`],
        /// [`SYNC_FOLLOWS`].
        marks: u16,
        ino: u64,
        offset: u64,
        time_ns: u64,
        bytes: &'a [u8],
    } -> Written [IsDirectory, FileTooBig, NoSpace, QuotaExceeded, ReadOnly, Gone];

    /// All that was completed before is durable when this completes: of `ino`, 0 of the whole tree.
    FSYNC = 32: repeatable Fsync { ino: u64 } -> Empty [];

    /// Entries after `cookie` (0: from the start). Reply data: entries [`DirEntry`] + name, padded to 8 bytes, each
    /// followed by an [`Attr`] when asked for, and that by the content, padded to 8, when asked for and [`CONTENT`] is
    /// among its marks. "." and ".." are not among them; their cookies, 1 and 2, are left to the
    /// client. Other cookies are 3 to `i64::MAX`, never given twice in a directory.
    READDIR = 33: repeatable Readdir { ino: u64, cookie: u64, entries: Entries } -> Page [NoEntry, NotDirectory, Gone];

    /// Of what counts with `ino`, which may have a quota ([`QUOTA_NAME`]); 0: of the whole tree.
    STATFS = 34: repeatable Statfs { ino: u64 } -> Space [];

    /// `how`: setxattr's flags. [`QUOTA_NAME`] needs a directory.
    SETXATTR = 35: once Setxattr<'a> { how: u16, ino: u64, name: Measured<'a>, time_ns: u64, value: &'a [u8] } -> Empty
        [ArgumentTooLong, Exists, NotDirectory, NoData, NoSpace, ReadOnly, Gone];

    /// Reply data: the value.
    GETXATTR = 36: repeatable Getxattr<'a> { ino: u64, name: &'a [u8] } -> Bytes [NoData, Gone];

    /// Reply data: names, each ended by NUL.
    LISTXATTR = 37: repeatable Listxattr { ino: u64 } -> Bytes [Gone];

    REMOVEXATTR = 38: once Removexattr<'a> { ino: u64, time_ns: u64, name: &'a [u8] } -> Empty [NoData, NoSpace, ReadOnly, Gone];

    FALLOCATE = 39: once Fallocate {
        /// fallocate's mode (KEEP_SIZE 1, PUNCH_HOLE 2, ZERO_RANGE 16), and [`KILL_SUID`].
        mode: u16,
        ino: u64,
        offset: u64,
        bytes: u64,
        time_ns: U64,
    } -> Empty [IsDirectory, FileTooBig, NoSpace, QuotaExceeded, ReadOnly, Gone];

    /// `whence`: SEEK_DATA 3, SEEK_HOLE 4.
    LSEEK = 40: repeatable Lseek { ino: u64, offset: u64, whence: u64 } -> Offset [NoAddress, Gone];

    /// Reply data: the conflicting [`Lock`], or kind `F_UNLCK`.
    GETLK = 41: repeatable Getlk { ino: u64, lock: Lock } -> Conflict [Gone];

    SETLK = 42: once Setlk {
        ino: u64,
        waits: Waits,
        /// Through which it is set (0: none), with which it goes.
        handle: u64,
        lock: Lock,
    } -> Empty [Interrupted, BadHandle, Deadlock, NoLocks, NoSpace, Gone];

    /// The waiting [`Setlk`] of this sequence completes with `EINTR`.
    CANCEL = 43: repeatable Cancel { sequence: u64 } -> Empty [];

    /// The client gives up all locks of an owner on an inode (close).
    UNLOCK_OWNER = 44: once UnlockOwner { ino: u64, owner: u64 } -> Empty [];

    /// Stays open until something is to be dropped. Reply data: [`Event`]s. Over a new ring of the session all events
    /// that were not [`Released`] come again with their numbers. One such request per session; a later one makes the
    /// earlier answer `EINTR`.
    EVENTS = 45: repeatable Events {} -> EventCount [Interrupted];

    /// The client dropped what the events up to this recall number named.
    RELEASED = 46: repeatable Released { recall: u64 } -> Empty [];

    /// Shares extents where it can.
    COPY_RANGE = 47: once CopyRange {
        /// [`KILL_SUID`].
        marks: u16,
        source: u64,
        target: u64,
        from: U64,
        to: U64,
        bytes: U64,
        time_ns: U64,
    } -> Copied [IsDirectory, FileTooBig, NoSpace, QuotaExceeded, ReadOnly, Gone];

    /// From now on, for good, the client may make changes of files that it has exclusively ([`EXCLUSIVE`]) before it
    /// tells of them, and understands [`TELL`].
    WRITES_BEHIND = 49: repeatable WritesBehind {} -> Empty [NoSpace];

    /// The client told of everything that it had changed when the events up to this recall number came, of the inodes
    /// that they name, and has none of these exclusively any more. What it keeps in caches it may keep.
    TOLD = 50: repeatable Told { recall: u64 } -> Empty [];

    /// Changes names of directories that were changed before this was told, while the session had the directories
    /// exclusively ([`EXCLUSIVE_NAMES`]): all of them, in order, or none.
    NAMES = 51: once Names<'a> {
        /// [`BEHIND`] or [`PROMISED`], as of [`Write`].
        marks: u16,
        /// Of the first of them, and of those after it ([`OF`]).
        parent: u64,
        /// Of the last of them in this directory.
        time_ns: u64,
        /// [`NameChange`]s of at most [`BEHIND_COUNT_MAX`] directories, at most so many besides [`OF`].
        changes: &'a [u8],
    } -> Empty [NoEntry, Exists, NotDirectory, IsDirectory, NoSpace, QuotaExceeded, TooManyLinks, NameTooLong, NotEmpty, ReadOnly, Gone];

    /// Numbers for inodes that the client makes before it tells ([`Names`]). Each is good for one inode, of this
    /// session or of a client that goes on with it.
    NUMBERS = 52: repeatable Numbers {} -> Numbered [];

    /// Makes a whole regular file in one step.
    PLACE = 48: once PlaceFile<'a> {
        parent: u64,
        create: Create,
        name: Measured<'a>,
        /// Its atime and mtime.
        mtime_ns: u64,
        content: &'a [u8],
    } -> Attributes [NoEntry, Exists, NotDirectory, FileTooBig, NoSpace, QuotaExceeded, NameTooLong, ReadOnly, Gone];
}

in_data!(Create, SetAttr, Lock);

words! {
    /// What creating a file does with one that exists.
    enum Existing: u64 {
        /// A regular file is opened (open with O_CREAT without O_EXCL).
        Opens = 0,
        Refuses = 1,
    }

    /// What is told of the entries of a directory.
    enum Entries: u64 {
        Names = 0,
        WithAttributes = 1,
        /// And the bytes of regular files up to [`CONTENT_BYTES_MAX`].
        WithContents = 2,
    }

    /// Whether a lock that is not free is waited for.
    enum Waits: u64 {
        No = 0,
        Yes = 1,
        /// The client set it before it told ([`UNLOCKED`]): it waits for nobody.
        Kept = 2,
    }
}

replies! {
    /// Reply data: an [`Attr`].
    Attributes {} + Attr;

    /// Reply data: an [`Attr`].
    Created { handle } + Attr;

    Opened { handle };

    Removed {
        /// What the name led to.
        ino,
        /// 0, or an open file that the client has to release ([`DELEGATED`]).
        handle
    };

    Renamed {
        ino,
        /// What the new name led to before; 0: nothing.
        replaced,
        /// As of [`Removed`], of what was replaced.
        handle
    };

    /// Bytes of reply data.
    Bytes { bytes };

    ReadReply {
        /// Of the file; the reply data may be fewer, or where they lie.
        bytes,
        /// With [`PLACES`].
        spans,
        /// Nothing yet.
        unused,
        /// [`LEASE`], [`PLACES`].
        keeps
    };

    Written {
        bytes,
        /// Size of the file afterwards.
        size
    };

    Page {
        entries,
        /// 1 when the end was reached.
        is_end
    };

    /// Blocks of 4 KiB, and inodes.
    Space { blocks, blocks_free, inodes, inodes_free };

    Offset { offset };

    /// `first` and those that follow.
    Numbered { first, count };

    Conflict {} + Lock;

    EventCount { events };

    Copied { bytes };
}

/// Flag of [`Write`].
pub const APPEND: u16 = 1;
/// Flag of [`Write`]: these bytes were changed earlier, without a word to the server ([`WRITABLE`]). From a client that
/// has been asked for its lease, such writes come before whatever change the lease was asked for.
pub const LATE: u16 = 2;
/// Flag of [`Write`]: its program was answered earlier, while the session had the inode exclusively. Such a change
/// comes before whatever the client was asked for. [`valid::BEHIND`] says the same of [`Setattr`]. [`Open`] with it
/// waits for nobody who may have the inode exclusively: the client opens it for a lock that it kept ([`UNLOCKED`]).
pub const BEHIND: u16 = 4;
/// Flag of [`Write`]: its program was answered earlier, but others may have had the inode since: it comes when it
/// comes. Its room was kept back, as that of the others was.
pub const PROMISED: u16 = 8;
/// Flag of [`Write`]: an [`Fsync`] is likely to follow at once. The server may make the bytes durable with the write,
/// and has nothing left to do then. One of an earlier release does not look at it.
pub const SYNC_FOLLOWS: u16 = 16;
/// From this version of [`versions::SERVERS`] on a client may be sent [`TELL`].
pub const TELL_SINCE: u8 = 2;
/// Flag of [`Write`], [`Open`] with `O_TRUNC`, [`Fallocate`] and [`CopyRange`]: in the same step, a regular file loses
/// set-user-id, and set-group-id when its group may execute it (the caller lacks CAP_FSETID).
pub const KILL_SUID: u16 = 1 << 8;
/// Flag of [`Read`]: the client can read the volume.
pub const WHERE: u16 = 1;
/// Flag of [`Read`]: the client may change what it keeps of the bytes without a word (a file that is mapped and open
/// for writing). All others give their leases back first.
pub const WRITABLE: u16 = 2;
/// Shorter reads are answered with bytes, whatever their flag: what the detour saves is less than a round trip to the
/// disk.
pub const WHERE_BYTES_MIN: u32 = 128 << 10;
/// A volume that is smaller has no room for the file system itself: whoever makes one is told before.
pub const VOLUME_BYTES_MIN: u64 = 32 << 20;
/// Bit of `results[3]`: the answer may be kept until recalled.
pub const LEASE: u64 = 1;
/// Bit of `results[3]`, beside [`LEASE`]: while the lease stands, the session may open its inode without a word
/// (`O_TRUNC` excepted). Who is asked for the lease and has the file open says so with [`Open`] before [`Released`].
pub const DELEGATES: u64 = 4;
/// Flag of [`Unlink`] and [`Rename`]: the client has files open of which it has not told ([`DELEGATES`]). When the last
/// name goes of one that may be among them, the reply has a handle through which it stays.
pub const DELEGATED: u16 = 1 << 8;
/// Bit of `results[3]` of [`CreateFile`], [`Write`], [`Setattr`], [`Setlk`] and [`UnlockOwner`], beside [`LEASE`]:
/// nobody else keeps anything of the regular file or has it open, and whoever looks waits until the client said
/// [`Told`]. Until it is asked the client may answer programs that write or change attributes before it tells the
/// server, as long as the server has [`ROOM`].
pub const EXCLUSIVE: u64 = 8;
/// Bit of `results[3]` of the same: what the client has not told yet has room, if it is at most [`BEHIND_BYTES_MAX`]
/// and [`BEHIND_COUNT_MAX`] changes. An answer without it: nothing more is to be changed before it is told.
pub const ROOM: u64 = 16;
/// Bit of `results[3]` of [`Setlk`] and [`UnlockOwner`], beside [`EXCLUSIVE`]: nobody has a lock of the file. Until it
/// is asked to tell the client may keep the file's locks itself: whoever wants one has to open the file first. It tells
/// of those that are held with [`Setlk`] before [`Told`].
pub const UNLOCKED: u64 = 32;
/// Bit of `results[3]` of what makes, removes or moves names: nobody else keeps anything of the directory, and whoever
/// looks into it waits until the client said [`Told`]. Until it is asked the client may answer programs that make and
/// remove names there before it tells the server ([`Names`]), as long as the server has [`ROOM`]. An inode that it
/// makes so it has exclusively, and nobody has a lock of it; one that it removes so nobody else may have anything of.
/// In the answer to a [`Rename`] it is said of both directories.
pub const EXCLUSIVE_NAMES: u64 = 64;
/// Bit of `results[3]` of a [`Write`] with [`SYNC_FOLLOWS`]: this change, and all before it, survives loss of power.
pub const SYNCED: u64 = 256;
/// Bit of `results[3]`, beside [`EXCLUSIVE_NAMES`]: the server knows [`OF`] and [`MOVES_TO`].
pub const MOVES_BETWEEN: u64 = 128;
/// Bytes that a client may have written without having told of them.
pub const BEHIND_BYTES_MAX: usize = 1 << 20;
/// The same of changes.
pub const BEHIND_COUNT_MAX: usize = 128;
/// Bytes of names and of what follows them in one [`Names`], but for regular files that are made: what they become is
/// below what a record may have.
pub const NAMES_BYTES_MAX: usize = 256 << 10;
/// Bit of `results[3]` of [`Read`]: the reply data says where the bytes lie.
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

/// One change of [`Names`]. Name and what follows it come behind, padded to 8 together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NameChange {
    /// What is made (one of [`Numbers`]), removed, moved, or gets one name more. [`OF`]: the directory.
    pub ino: U64,
    /// [`MAKES`], [`REMOVES`], [`MOVES`], [`LINKS`], [`OF`], [`MOVES_TO`].
    pub kind: U16,
    pub name_bytes: U16,
    /// [`MAKES`]: the bytes of a regular file, or a symbolic link's target. [`MOVES`]: the new name, in the same
    /// directory. [`MOVES_TO`]: another directory (a u64), and the new name there.
    pub more_bytes: U32,
    /// When it was changed. [`OF`]: when the directory was for the last time.
    pub time_ns: U64,
    /// Of what is made: as it is from the beginning, whatever the directory hands down.
    pub mode: U32,
    pub uid: U32,
    pub gid: U32,
    pub rdev: U32,
    pub atime_ns: U64,
    pub mtime_ns: U64,
    pub ctime_ns: U64,
}

pub const MAKES: u16 = 1;
pub const REMOVES: u16 = 2;
pub const MOVES: u16 = 3;
pub const LINKS: u16 = 4;
/// Changes nothing, and has no name: what follows is of another directory.
pub const OF: u16 = 5;
/// [`MOVES`] to another directory.
pub const MOVES_TO: u16 = 6;

impl NameChange {
    /// Adds a change to those of [`Names`].
    pub fn push(&self, name: &[u8], more: &[u8], to: &mut Vec<u8>) {
        let sizes = (u16::try_from(name.len()).unwrap_or(u16::MAX), u32::try_from(more.len()).unwrap_or(u32::MAX));
        let head = NameChange { name_bytes: sizes.0.into(), more_bytes: sizes.1.into(), ..*self };
        to.extend_from_slice(head.as_bytes());
        to.extend_from_slice(name);
        to.extend_from_slice(more);
        to.resize(to.len().next_multiple_of(8), 0);
    }

    /// The first of several, with its name, what follows that, and the rest.
    pub fn split(bytes: &[u8]) -> Option<(NameChange, [&[u8]; 3])> {
        let (head, rest) = NameChange::read_from_prefix(bytes).ok()?;
        let (name_bytes, more_bytes) = (usize::from(head.name_bytes.get()), head.more_bytes.get() as usize);
        let (both, rest) = rest.split_at_checked((name_bytes + more_bytes).next_multiple_of(8))?;
        let (name, more) = both.split_at_checked(name_bytes)?;
        Some((head, [name, more.get(..more_bytes)?, rest]))
    }
}

/// How a program asks a gate for [`PlaceFile`]: an ioctl on the directory, which takes no lock of it, so that many
/// files of one directory can be made at a time. This head, the name, the content; `_IOW` of group [`PLACE_GROUP`],
/// number [`PLACE_NUMBER`] and the length of all. Only the container's root may. Returns 0.
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
    /// For [`ENTRY`] the parent. 0 with [`INODE`]: everything, because the server does not know any more who keeps
    /// what.
    pub ino: U64,
    /// [`INODE`], [`ENTRY`] or [`TELL`].
    pub kind: U32,
    /// Bytes that follow, padded to 8. [`ENTRY`]: the name. [`INODE`]: none, or 8 bytes: a u64, how long a file is
    /// about to be at least, for clients that go by the size they know; or one, [`SPARE`].
    pub name_bytes: U32,
}

pub const INODE: u32 = 1;
/// What follows an [`INODE`] that nobody wants: the session has many leases, and has not asked for this one for long.
pub const SPARE: u8 = 1;
pub const ENTRY: u32 = 2;
/// Nothing is to be dropped: what was changed and not told is wanted ([`Told`]). Only for clients that write behind.
pub const TELL: u32 = 3;

const _: () = assert!(size_of::<Attr>() == 72);
const _: () = assert!(size_of::<SetAttr>() == 48);
const _: () = assert!(size_of::<Create>() == 24);
const _: () = assert!(size_of::<PlaceHead>() == 24);
const _: () = assert!(size_of::<NameChange>() == 64);
