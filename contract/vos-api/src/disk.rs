//! Virtual disk. All offsets and lengths are bytes, multiples of [`BLOCK_BYTES`].
//!
//! A write that was completed survives the death of the server process; [`Flush`] makes all writes completed before
//! it was submitted survive loss of power. Reads and writes may be repeated (idempotent), so none has a sequence.
//! Errors: `EINVAL` range or alignment, `ENOSPC` the image's file system is full, `EIO` the medium or a checksum
//! failed, `EROFS`, `EACCES` a change by somebody who is not the volume's owner (a server that only reads), `ESTALE`
//! the owner has a successor: another one of a later epoch greeted, now or before the disk was started again, or the
//! ring was replaced by a newer one of the same endpoint. A greeting is answered `EAGAIN` as long as the owner's
//! predecessor holds the volume ([`Hold`]).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::operation::{Empty, operations, replies, words};

pub const BLOCK_BYTES: u32 = 4096;
/// What is read as one by who reads all of a disk.
pub const EXTENT_BYTES: u64 = 1 << 20;
/// Spans of one [`Readv`].
pub const SPANS_MAX: usize = 256;

/// What writers of files leave of the file system on which a sparse image lies to the node's own records and logs.
pub const fn host_reserve_bytes(whole_bytes: u64) -> u64 {
    const MOST: u64 = 256 << 20;
    let part = whole_bytes / 16;
    if part < MOST { part } else { MOST }
}

/// A range of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Span {
    pub offset: U64,
    pub bytes: U64,
}

operations! {
    enum Request;

    INFO = 16: repeatable Info {} -> VolumeInfo [];

    /// Reply data: the bytes.
    READ = 17: repeatable Read { offset: u64, bytes: u64 } -> Empty [TimedOut];

    /// Request data: the bytes.
    WRITE = 18: repeatable Write { durability: Durability, offset: u64 } -> Empty [NoSpace, ReadOnly, Access];

    FLUSH = 19: repeatable Flush {} -> Empty [];

    /// The range reads as zeros afterwards; the space of a sparse volume may be given back.
    DISCARD = 20: repeatable Discard { offset: u64, bytes: u64 } -> Empty [NoSpace, ReadOnly, Access];

    /// Request data: up to [`SPANS_MAX`] [`Span`]s. Reply data: the bytes of each, one after the other; together at
    /// most one transfer.
    READV = 21: repeatable Readv {} -> Empty [];

    /// Writes to the range fail no more with `ENOSPC` afterwards; what it holds stays. `EOPNOTSUPP`: the host cannot
    /// tell.
    ALLOCATE = 22: repeatable Allocate { need: Need, offset: u64, bytes: u64 } -> Empty [NoSpace, ReadOnly, Access];

    /// The owner asks to be the only one for a while: its successor is served after that. Answered when the disk itself
    /// is sure of its place.
    HOLD = 23: repeatable Hold {} -> Held [Access];

    /// Reads another copy of the disk than the one that is read usually: what that one has may be damaged. `which`
    /// counts them from 0; `ENXIO`: so many there are not. Reply data: the bytes. Nobody may write there meanwhile.
    READ_OTHER = 24: repeatable ReadOther { which: u64, offset: u64, bytes: u64 } -> Empty [NoAddress];

    /// The asker's ring reads the disk from now on as it is at this moment, each extent of [`EXTENT_BYTES`] once and as
    /// a whole: whoever changes one that it has not read waits until it has. Answered when all that was begun before
    /// has ended; over with the ring. `EBUSY`: another one does so. When others wait too long its reads, and this, are
    /// answered with `ETIMEDOUT`.
    FREEZE = 25: repeatable Freeze {} -> Empty [Busy, TimedOut];

    /// Of who reads so: extents that somebody waits for. Reply data: their numbers, u64 little-endian, none when nobody
    /// has waited for so long.
    WANTED = 26: repeatable Wanted { for_ms: u64 } -> Empty [TimedOut];

    /// Where the range may hold other than zeros. Reply data: [`Span`]s, in their order, at most [`SPANS_MAX`].
    TELL_DATA = 27: repeatable TellData { offset: u64, bytes: u64 } -> DataTold [];
}

replies! {
    VolumeInfo {
        bytes,
        block_bytes,
        /// Bits: [`READ_ONLY`].
        flags,
        /// Of the server.
        epoch
    };

    DataTold {
        /// What was told reaches so far; there may be more behind.
        until
    };

    Held {
        /// From when it was *asked*, by the clock of who asked, which may be up to a tenth slower than the disk's.
        for_ms
    };
}

words! {
    /// When a write is complete.
    enum Durability: u16 {
        /// When it survives the death of the disk server.
        Server = 0,
        /// When it survives the loss of power.
        Power = 1,
    }

    /// Who needs space.
    enum Need: u16 {
        /// Somebody who writes files: what the host keeps back for itself is not touched.
        Users = 0,
        /// The server that is the volume's owner, to work at all.
        Server = 1,
    }
}

/// Bit of [`VolumeInfo::flags`].
pub const READ_ONLY: u64 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}
