//! The comparison of copies while they serve: which piece is next, and what was found.

use std::collections::{BTreeMap, BTreeSet};

use crate::encoding::RANGES_MAX;
use crate::record::{Replica, Verification, Verified};
use crate::{BlockRange, Layout, RangeSet};

/// Blocks of a piece.
const PIECE_BLOCKS: u64 = 256;
/// Blocks that are named.
const NAMED_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct Comparison {
    number: u64,
    me: Replica,
    /// Of the others that were current all the time: extents in which they differ, and blocks.
    others: BTreeMap<Replica, (RangeSet, u64)>,
    blocks: BTreeSet<u64>,
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
    }

    pub fn extents_of(&self, member: Replica) -> Option<&RangeSet> {
        self.others.get(&member).map(|differs| &differs.0)
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
        let Some(own) = sums.get(&self.me).filter(|own| own.len() == range.count as usize) else { return };
        self.next = range.end();
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

    /// Everything was compared, or there is nothing to compare with.
    pub fn is_over(&self, layout: Layout) -> bool {
        self.next >= layout.blocks || self.others.is_empty()
    }

    pub fn found(&self) -> Verified {
        let different = self.others.iter().map(|(member, differs)| (*member, differs.1)).collect();
        Verified { primary: Some(self.me), different, blocks: self.blocks.clone() }
    }
}
