//! Entries of a ring: how the virtual OS's servers, gates and proxies keep many requests in flight.
//!
//! The initiator of the channel (left) submits, the acceptor (right) completes. Each entry is 64 bytes. A request's
//! bulk data is one range of the channel's arena: the first `out_bytes` of it go with the submission, and the
//! completion brings `in_bytes` (at most `in_capacity`) to the same place. That makes a ring location-transparent: a
//! proxy copies exactly these ranges and needs to know nothing of the operation.

use crate::layout::Size;
use crate::{IpcError, limits};

/// The size of a ring, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSpec {
    /// Requests that may be in flight: a power of two, at most [`limits::RING_ENTRIES_MAX`].
    pub entries: u32,
    /// Bulk memory, at most [`limits::ARENA_BYTES_MAX`], a multiple of 4096; 0 for none.
    pub arena_bytes: u32,
}

impl RingSpec {
    pub fn check(self) -> Result<RingSpec, IpcError> {
        let good = self.entries.is_power_of_two()
            && self.entries <= limits::RING_ENTRIES_MAX
            && self.arena_bytes <= limits::ARENA_BYTES_MAX
            && self.arena_bytes.is_multiple_of(4096);
        if good { Ok(self) } else { Err(IpcError::BadArgument) }
    }

    pub fn size(self) -> Size {
        Size { entries: self.entries, arena_bytes: self.arena_bytes }
    }
}

/// One request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Submission {
    /// The client's own name for the request; comes back in the completion. Unique among those in flight.
    pub tag: u32,
    /// Operation number of the service.
    pub op: u16,
    /// Of the service.
    pub flags: u16,
    /// Position in the session: what is repeated after a restart has the number it had before. 0: not in a session,
    /// the operation may be repeated freely.
    pub sequence: u64,
    pub arena_offset: u32,
    pub out_bytes: u32,
    pub in_capacity: u32,
    /// Must be 0.
    pub reserved: u32,
    pub args: [u64; 3],
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    pub tag: u32,
    /// 0, or a Linux errno as a positive number.
    pub status: u32,
    pub sequence: u64,
    pub in_bytes: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The server's incarnation.
    pub epoch: u64,
    pub results: [u64; 4],
}

pub const ENTRY_BYTES: usize = 64;

impl Submission {
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[0..4].copy_from_slice(&self.tag.to_le_bytes());
        out[4..6].copy_from_slice(&self.op.to_le_bytes());
        out[6..8].copy_from_slice(&self.flags.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.arena_offset.to_le_bytes());
        out[20..24].copy_from_slice(&self.out_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.in_capacity.to_le_bytes());
        out[28..32].copy_from_slice(&self.reserved.to_le_bytes());
        put_words(&mut out[32..56], &self.args);
        out
    }

    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Submission {
        Submission {
            tag: u32_at(bytes, 0),
            op: u16::from_le_bytes([bytes[4], bytes[5]]),
            flags: u16::from_le_bytes([bytes[6], bytes[7]]),
            sequence: u64_at(bytes, 8),
            arena_offset: u32_at(bytes, 16),
            out_bytes: u32_at(bytes, 20),
            in_capacity: u32_at(bytes, 24),
            reserved: u32_at(bytes, 28),
            args: [u64_at(bytes, 32), u64_at(bytes, 40), u64_at(bytes, 48)],
        }
    }

    /// Bytes of the arena that the request owns while it is in flight.
    pub fn span_bytes(&self) -> u32 {
        self.out_bytes.max(self.in_capacity)
    }

    /// Whether the request's range lies inside an arena of `arena_bytes` and within the limits.
    pub fn fits(&self, arena_bytes: u32) -> bool {
        let span = self.span_bytes();
        span <= crate::limits::TRANSFER_BYTES_MAX
            && self.arena_offset.checked_add(span).is_some_and(|end| end <= arena_bytes)
    }
}

impl Completion {
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut out = [0; ENTRY_BYTES];
        out[0..4].copy_from_slice(&self.tag.to_le_bytes());
        out[4..8].copy_from_slice(&self.status.to_le_bytes());
        out[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        out[16..20].copy_from_slice(&self.in_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.reserved.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        put_words(&mut out[32..64], &self.results);
        out
    }

    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Completion {
        Completion {
            tag: u32_at(bytes, 0),
            status: u32_at(bytes, 4),
            sequence: u64_at(bytes, 8),
            in_bytes: u32_at(bytes, 16),
            reserved: u32_at(bytes, 20),
            epoch: u64_at(bytes, 24),
            results: [u64_at(bytes, 32), u64_at(bytes, 40), u64_at(bytes, 48), u64_at(bytes, 56)],
        }
    }
}

fn put_words(out: &mut [u8], words: &[u64]) {
    for (place, word) in out.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

#[allow(
    clippy::indexing_slicing,
    reason = "every caller names a place inside the entry, so that the check is compiled away"
)]
fn u32_at(bytes: &[u8; ENTRY_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8; ENTRY_BYTES], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_the_round_trip_through_bytes() {
        let submission = Submission {
            tag: 1,
            op: 2,
            flags: 3,
            sequence: 4,
            arena_offset: 5,
            out_bytes: 6,
            in_capacity: 7,
            reserved: 0,
            args: [8, 9, u64::MAX],
        };
        assert_eq!(Submission::from_bytes(&submission.to_bytes()), submission);
        let completion = Completion {
            tag: 1,
            status: 2,
            sequence: 3,
            in_bytes: 4,
            reserved: 0,
            epoch: 5,
            results: [6, 7, 8, u64::MAX],
        };
        assert_eq!(Completion::from_bytes(&completion.to_bytes()), completion);
    }

    #[test]
    fn range_that_leaves_the_arena_does_not_fit() {
        let mut submission = Submission { arena_offset: 4096, in_capacity: 4096, ..Default::default() };
        assert!(submission.fits(8192));
        assert!(!submission.fits(8191));
        submission.arena_offset = u32::MAX;
        assert!(!submission.fits(u32::MAX));
    }
}
