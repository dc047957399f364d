//! Copies of one disk on several nodes, without a word about rings, files or the engine (`docs/design/replication.md`).
//!
//! - [`record`]: who is current, as the engine keeps it, and whether a copy is what the record says.
//! - [`Backup`]: what a member does with what the primary says. The primary's own copy has one, too.
//! - [`Primary`]: when a write is acknowledged, who leaves and comes back, how another one takes over.
//! - [`lease`]: until when a primary may answer reads.
//!
//! Nothing here waits or looks at a clock: what happens comes in, with the time, and what to do comes out.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod backup;
mod encoding;
pub mod lease;
mod message;
mod primary;
mod ranges;
pub mod record;
mod verify;

pub use backup::{Backup, BackupAct, CopyOperation, Kept, OperationTicket};
use encoding::RANGES_MAX;
pub use encoding::{CopyState, ENCODED_BYTES_MAX, decode_behind, encode_behind};
pub use message::{Recent, ReplicaAnswer, ReplicaMessage};
pub use primary::{AWAY_MS, Decided, DiskReply, DiskRequest, Primary, PrimaryAct};
pub use ranges::{BlockRange, RangeSet};
pub use record::{CopyMark, CopyVerdict, Replica, ReplicaRecord, ReplicaStanding, Verification, Verified, judge};

/// Blocks of an extent: of 4 KiB each, 1 MiB.
pub const EXTENT_BLOCKS: u64 = 256;
/// Extents that may differ between members after a crash.
pub const HOT_EXTENTS: usize = 64;

/// What is remembered about changes has this grain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent(pub u64);

/// How a disk is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub blocks: u64,
    /// Of an extent; at least 1.
    pub extent_blocks: u64,
    /// At least 1.
    pub hot_extents: usize,
}

impl Layout {
    pub fn of_disk(blocks: u64) -> Layout {
        Layout { blocks, extent_blocks: EXTENT_BLOCKS, hot_extents: HOT_EXTENTS }
    }

    pub fn extents_of(&self, range: BlockRange) -> impl Iterator<Item = Extent> + use<> {
        let each = self.extent_blocks.max(1);
        (range.first / each..range.end().div_ceil(each)).map(Extent)
    }

    pub fn blocks_of(&self, extent: Extent) -> RangeSet {
        let mut blocks = RangeSet::default();
        self.add_blocks(&mut blocks, extent.0, extent.0.saturating_add(1));
        blocks
    }

    /// Of extents that lie side by side.
    fn add_blocks(&self, to: &mut RangeSet, first: u64, end: u64) {
        let each = self.extent_blocks.max(1);
        to.insert(first.saturating_mul(each), end.saturating_mul(each).min(self.blocks));
    }

    /// The extents in which blocks for which `data_from` answers a range lie: from a block on, the first range of
    /// blocks that may hold other than zeros. All of the rest, when there are too many ranges.
    pub fn extents_with_data(&self, data_from: impl Fn(u64) -> Option<(u64, u64)>) -> RangeSet {
        let (mut extents, mut from) = (RangeSet::default(), 0);
        while let Some((first, end)) = data_from(from).filter(|_| from < self.blocks) {
            let end = if extents.len() < RANGES_MAX { end.max(first + 1) } else { self.blocks };
            let touched = BlockRange { first, count: 1 };
            let begin = self.extents_of(touched).next().map_or(0, |extent| extent.0);
            extents.insert(begin, end.div_ceil(self.extent_blocks.max(1)).max(begin + 1));
            from = end;
        }
        extents.below(self.extents())
    }

    /// How many there are; their numbers begin with 0.
    pub fn extents(&self) -> u64 {
        self.blocks.div_ceil(self.extent_blocks.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_with_data_are_found_and_what_cannot_be_told_apart_is_data() {
        let layout = Layout { blocks: 1003, extent_blocks: 10, hot_extents: 4 };
        let among = |data: &[(u64, u64)]| {
            let data_from =
                |from: u64| data.iter().find(|range| range.1 > from).map(|range| (range.0.max(from), range.1));
            layout.extents_with_data(data_from).iter().collect::<Vec<_>>()
        };
        assert_eq!(among(&[]), []);
        assert_eq!(among(&[(0, 1), (19, 21), (1002, 1003)]), [(0, 3), (100, 101)]);
        assert_eq!(among(&[(0, 1003)]), [(0, 101)]);
        let wide = Layout { blocks: 10 * RANGES_MAX as u64 * 30, ..layout };
        let scattered = |from: u64| Some((from.next_multiple_of(20), from.next_multiple_of(20) + 1));
        let found = wide.extents_with_data(scattered);
        assert!(found.len() <= RANGES_MAX + 1 && found.iter().last() == Some((2 * RANGES_MAX as u64, wide.extents())));
    }
}
