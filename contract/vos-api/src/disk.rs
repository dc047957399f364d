//! Virtual disk. All offsets and lengths are bytes, multiples of [`BLOCK_BYTES`].
//!
//! A write that was completed survives the death of the server process; [`FLUSH`] makes all writes completed before
//! it was submitted survive loss of power. Reads and writes may be repeated (idempotent), so none has a sequence.
//! Errors: `EINVAL` range or alignment, `ENOSPC` the image's file system is full, `EIO` the medium or a checksum
//! failed, `EROFS`, `EACCES` a change by somebody who is not the volume's owner (a server that only reads), `ESTALE` the epoch is old.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub const BLOCK_BYTES: u32 = 4096;
/// Spans of one [`READV`].
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

/// `results`: size in bytes, block bytes, flags ([`READ_ONLY`]), epoch of the volume.
pub const INFO: u16 = 16;
/// `args`: offset, bytes. Reply data: the bytes.
pub const READ: u16 = 17;
/// `args`: offset. Request data: the bytes. With flag [`FUA`] durable when completed.
pub const WRITE: u16 = 18;
pub const FLUSH: u16 = 19;
/// `args`: offset, bytes. The range reads as zeros afterwards; the space of a sparse volume may be given back.
pub const DISCARD: u16 = 20;
/// Request data: up to [`SPANS_MAX`] [`Span`]s. Reply data: the bytes of each, one after the other; together at most one transfer.
pub const READV: u16 = 21;

/// `args`: offset, bytes. Writes to the range fail no more with `ENOSPC` afterwards; what it holds stays. `EOPNOTSUPP`: the host cannot tell.
/// With flag [`SERVERS_OWN`] the owner needs the space to work at all; without it, what the host keeps back for itself is not touched.
pub const ALLOCATE: u16 = 22;

/// Flag of [`WRITE`].
pub const FUA: u16 = 1;
/// Flag of [`ALLOCATE`].
pub const SERVERS_OWN: u16 = 1;
/// Bit of `INFO`'s third result.
pub const READ_ONLY: u64 = 1;
