//! A copy of a replicated disk, as the disk's primary speaks with it (`docs/design/replication.md`). Blocks have
//! [`BLOCK_BYTES`](crate::disk::BLOCK_BYTES).
//!
//! A ring begins with [`Greet`]; whatever comes over a ring that was not greeted, or was of an epoch that is over,
//! answers `ESTALE`: with [`Outdated`] words when there is a later epoch, without when the ring is to be greeted. All
//! of it may be said again: writes set bytes. `EACCES`: the ring is not the disk's. A copy whose medium fails ends.
//! `ENOSPC` to blocks: its medium has no room for all of them, and it goes on; a primary that may not be told so finds
//! a copy that ends ([`NO_ROOM_SINCE`]).

use zerocopy::little_endian::U64;

use crate::disk::Need;
use crate::operation::{Decoder, Empty, Encoder, Field, operations, replies};
pub use crate::session::Outdated;

operations! {
    enum Request<'a>;

    /// First over each ring. Reply data: what the copy says of itself (`replica_core::CopyState`).
    GREET = 16: repeatable Greet { epoch: u64, set: u64 } -> Welcomed [Access];

    /// Request data: the blocks. `behind`: how far `floor` and `flushed` lie below `seq` ([`Behind`]).
    PUT = 17: repeatable PutBlocks { seq: u64, first: u64, behind: Behind } -> Empty [Access, NoSpace];

    /// Like [`PutBlocks`], of blocks of zeros.
    PUT_ZEROS = 18: repeatable PutZeros { seq: u64, first: u64, behind: Behind, count: U64 } -> Empty [Access, NoSpace];

    /// Request data: the blocks, which the copy misses.
    COPY = 19: repeatable CopyBlocks { seq: u64, first: u64 } -> Empty [Access, NoSpace];

    /// What was answered before survives loss of power.
    SYNC = 20: repeatable SyncCopy { seq: u64 } -> Empty [Access];

    /// Its mark; what each copy that is behind misses is in the data (`replica_core::encode_behind`).
    MARK = 21: repeatable MarkCopy<'a> { generation: u64, whole: u64, missing: &'a [u8] } -> Empty [Access];

    /// Until its answer is too old, the primary may answer reads. `asked_ms` is the primary's.
    LEASE = 22: repeatable AskLease { asked_ms: u64 } -> Empty [Access];

    /// As [`crate::disk::Allocate`], for this copy.
    RESERVE = 23: repeatable Reserve { need: Need, first: u64, count: u64 } -> Empty [Access, NoSpace];

    /// What is on the medium of these blocks, at most [`SUMS_MAX`], whatever is in memory. Reply data: the CRC32 of
    /// each, as `u32`; none when one of them cannot be read.
    SUM = 24: repeatable SumBlocks { seq: u64, first: u64, count: u64 } -> Empty [Access];

    /// Reply data: these blocks as they are on this copy's medium. `EIO`: they cannot be read.
    LOOK = 25: repeatable LookAt { first: u64, count: u64 } -> Empty [Access];

    /// Like [`PutBlocks`]; when it is answered the blocks survive loss of power, with all that was answered before. Not
    /// asked of copies before [`PUT_DURABLE_SINCE`].
    PUT_DURABLE = 26: repeatable PutDurable { seq: u64, first: u64, behind: Behind } -> Empty [Access, NoSpace];
}

/// From this version of [`versions::SERVERS`] on a primary may be told that there is no room. An earlier one asks again
/// for ever, and leaves the copy behind only when it is gone.
pub const NO_ROOM_SINCE: u8 = 3;
/// From this version of [`versions::SERVERS`] on a copy understands [`PutDurable`].
pub const PUT_DURABLE_SINCE: u8 = 4;
/// Blocks of one [`SumBlocks`].
pub const SUMS_MAX: u64 = 1024;

replies! {
    Welcomed {
        /// So long nobody may become primary yet, by its promises, in milliseconds.
        promised_ms,
        /// Of the reply data.
        bytes
    };
}

/// How far the lowest write that some copy has not accepted, and the last one that is durable everywhere, lie below a
/// write. Too far is told as farther off than it is, which is safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Behind {
    pub floor: u32,
    pub flushed: u32,
}

impl Behind {
    pub fn new(seq: u64, floor: u64, flushed: u64) -> Behind {
        let below = |number: u64| u32::try_from(seq.saturating_sub(number)).unwrap_or(u32::MAX);
        Behind { floor: below(floor), flushed: below(flushed) }
    }

    pub fn floor(self, seq: u64) -> u64 {
        seq.saturating_sub(self.floor.into())
    }

    pub fn flushed(self, seq: u64) -> u64 {
        seq.saturating_sub(self.flushed.into())
    }
}

/// Both in one argument.
impl Field<'_> for Behind {
    fn put(&self, to: &mut Encoder<'_>) {
        (u64::from(self.floor) << 32 | u64::from(self.flushed)).put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Option<Behind> {
        let both = u64::take(from)?;
        Some(Behind { floor: (both >> 32) as u32, flushed: both as u32 })
    }
}
