//! The kernel's FUSE interface, as far as this gate speaks it: structures and constants of `<linux/fuse.h>` 7.31 to
//! 7.45.
//!
//! Numbers are in the machine's own byte order, as the kernel writes them. Structures that only travel to the kernel
//! derive `IntoBytes` alone; none has padding that is not named.
//!
//! Not here: which lengths are acceptable ([`crate::request`]), what the fields mean to fs ([`crate::translate`]).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const VERSION_MAJOR: u32 = 7;
/// The oldest interface we serve: 7.31 is Linux 5.4, the containers need 6.1 anyway.
pub const VERSION_MINOR_MIN: u32 = 31;
/// The interface this file was written against (Linux 6.18).
pub const VERSION_MINOR: u32 = 45;

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident = $bytes:literal { $($field:ident: $ty:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
            #[repr(C)]
            pub struct $name { $(pub $field: $ty),* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

structs! {
    /// In front of every request.
    InHeader = 40 { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// In front of every answer and notification.
    OutHeader = 16 { len: u32, error: i32, unique: u64 }

    InitIn = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// Follows [`InitIn`] since 7.36.
    InitInExt = 48 { flags2: u32, unused: [u32; 11] }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16, max_write: u32,
        time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut = 128 { nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    WriteOut = 8 { size: u32, padding: u32 }
    StatfsOut = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    GetxattrOut = 8 { size: u32, padding: u32 }
    LkOut = 24 { lk: FileLock }
    LseekOut = 8 { offset: u64 }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }

    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    GetattrIn = 16 { flags: u32, dummy: u32, fh: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// The short form: the extended one is not negotiated.
    SetxattrIn = 8 { size: u32, flags: u32 }
    GetxattrIn = 8 { size: u32, padding: u32 }
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn = 56 { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }

    IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }

    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64 }
    NotifyStore = 24 { ino: u64, offset: u64, size: u32, padding: u32 }
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32 }
}

/// Set in `unique` of a request that comes again because a new gate asked for it.
pub const UNIQUE_RESEND: u64 = 1 << 63;

pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
}

/// INIT's flags, the second word shifted up by 32.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const HAS_RESEND: u64 = 1 << 39;
}

pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// The number of an ioctl that takes `bytes` from its caller; more than 14 bits do not fit.
pub const fn iow(group: u8, number: u8, bytes: u32) -> u32 {
    1 << 30 | bytes << 16 | (group as u32) << 8 | number as u32
}

/// Flags in the answer to OPEN and CREATE.
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// The page was changed through a mapping, earlier.
pub const WRITE_CACHE: u32 = 1;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const LK_FLOCK: u32 = 1 << 0;

pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RESEND: i32 = 7;
    /// Flag of `INVAL_ENTRY`.
    pub const EXPIRE_ONLY: u32 = 1;
}
