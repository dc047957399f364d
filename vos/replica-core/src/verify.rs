//! The comparison of copies while they serve: which piece is next, and what was found.

use std::collections::{BTreeMap, BTreeSet};

use crate::encoding::RANGES_MAX;
use crate::record::{Replica, Verification, Verified};
use crate::{BlockRange, EXTENT_BLOCKS, Layout, RangeSet};

/// Blocks of a piece.
const PIECE_BLOCKS: u64 = EXTENT_BLOCKS;
/// Blocks that are named.
const NAMED_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Comparison {
    number: u64,
    me: Replica,
    /// Of the others that were current all the time: extents in which they differ, and blocks.
    others: BTreeMap<Replica, (RangeSet, u64)>,
    blocks: BTreeSet<u64>,
    /// Blocks in pieces of the own copy that cannot be read.
    unreadable: u64,
    /// Copies that shall become what the own one is were told of to those who have to know.
    pub is_told: bool,
    /// What is being compared, since when, and what was said of it.
    piece: Option<(BlockRange, u64)>,
    sums: BTreeMap<Replica, Vec<u32>>,
    next: u64,
    /// A piece that something is under way for.
    pub waits: Option<BlockRange>,
    /// Who uses the disk has it for himself until then.
    pauses_until_ms: u64,
}

impl Comparison {
    pub fn new(number: u64, me: Replica, others: BTreeSet<Replica>, now_ms: u64) -> Comparison {
        Comparison {
            number,
            me,
            others: others.into_iter().map(|member| (member, Default::default())).collect(),
            blocks: BTreeSet::new(),
            unreadable: 0,
            is_told: false,
            piece: None,
            sums: BTreeMap::new(),
            next: 0,
            waits: None,
            pauses_until_ms: now_ms,
        }
    }

    pub fn goes_on(&self, wanted: Option<&Verification>) -> bool {
        wanted.is_some_and(|it| it.number == self.number && it.found.is_none())
    }

    /// Who is current no more need not have the same.
    pub fn keep_to(&mut self, current: impl Iterator<Item = Replica>) {
        let current: BTreeSet<Replica> = current.collect();
        self.others.retain(|member, _| current.contains(member));
        self.waits = None;
    }

    /// Extents in which members differ that do.
    pub fn differing(&self) -> impl Iterator<Item = (Replica, &RangeSet)> {
        self.others.iter().filter(|one| one.1.1 > 0).map(|(member, differs)| (*member, &differs.0))
    }

    pub fn heard(&mut self, member: Replica, sums: Vec<u32>) {
        self.sums.insert(member, sums);
    }

    pub fn begin(&mut self, range: BlockRange, now_ms: u64) {
        (self.piece, self.waits) = (Some((range, now_ms)), None);
        self.sums.clear();
    }

    /// What was said of the piece, by all who have to.
    pub fn judge(&mut self, layout: Layout, now_ms: u64, is_in_use: bool) {
        let Some((range, began_ms)) = self.piece.take() else { return };
        if is_in_use {
            // As long as it took.
            self.pauses_until_ms = now_ms + now_ms.saturating_sub(began_ms).max(1);
        }
        let sums = std::mem::take(&mut self.sums);
        // Its link broke, and it is asked again.
        let Some(own) = sums.get(&self.me) else { return };
        self.next = range.end();
        if own.len() != range.count as usize {
            // It cannot be read there, and nothing is compared with it.
            self.unreadable += u64::from(range.count);
            self.blocks.extend((self.blocks.len() < NAMED_MAX).then_some(range.first));
            return;
        }
        for (member, (extents, count)) in &mut self.others {
            let theirs = sums.get(member).map_or(&[][..], Vec::as_slice);
            for (at, (block, own)) in (range.first..).zip(own).enumerate() {
                // What somebody does not say is no better than what is wrong.
                if theirs.get(at) == Some(own) {
                    continue;
                }
                *count += 1;
                if self.blocks.len() < NAMED_MAX {
                    self.blocks.insert(block);
                }
                let touched = layout.extents_of(BlockRange::one(block));
                touched.for_each(|extent| extents.insert_one(extent.0));
            }
            if extents.len() > RANGES_MAX {
                *extents = extents.at_most(RANGES_MAX / 2);
            }
        }
    }

    /// `None`: nothing now.
    pub fn next(&self, layout: Layout, now_ms: u64) -> Option<BlockRange> {
        let left = layout.blocks.saturating_sub(self.next).min(PIECE_BLOCKS);
        let count = u32::try_from(left).ok().filter(|count| *count > 0)?;
        let is_time = now_ms >= self.pauses_until_ms && !self.others.is_empty();
        is_time.then_some(BlockRange { first: self.next, count })
    }

    /// Whether somebody was current all the time.
    pub fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Everything was compared.
    pub fn is_over(&self, layout: Layout) -> bool {
        self.next >= layout.blocks
    }

    pub fn found(&self) -> Verified {
        let own = (self.unreadable > 0).then_some((self.me, self.unreadable));
        let others = self.others.iter().map(|(member, differs)| (*member, differs.1));
        let different = others.chain(own).collect();
        Verified { primary: Some(self.me), different, blocks: self.blocks.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_that_the_primary_cannot_read_is_said_and_passed() {
        let layout = Layout { blocks: 300, extent_blocks: 10, hot_extents: 4 };
        let (me, other) = (Replica(0), Replica(1));
        let mut comparison = Comparison::new(1, me, BTreeSet::from([other]), 0);
        let mut pieces = 0;
        while let Some(range) = comparison.next(layout, 0) {
            comparison.begin(range, 0);
            if pieces == 1 {
                comparison.heard(other, vec![7; range.count as usize]);
                comparison.judge(layout, 0, false);
                assert_eq!(comparison.next(layout, 0), Some(range), "it did not say anything");
                comparison.begin(range, 0);
            }
            comparison.heard(me, if pieces == 0 { Vec::new() } else { vec![7; range.count as usize] });
            comparison.heard(other, vec![7; range.count as usize]);
            comparison.judge(layout, 0, false);
            pieces += 1;
        }
        assert!(comparison.is_over(layout) && pieces == 2);
        let found = comparison.found();
        assert_eq!(found.different, BTreeMap::from([(me, 256), (other, 0)]));
        assert_eq!(found.blocks, BTreeSet::from([0]));
    }
}
