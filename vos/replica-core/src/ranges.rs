//! Sets of numbers that mostly lie side by side: blocks of a disk, and extents.

use std::collections::BTreeMap;

use crate::Extent;

/// Blocks side by side.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BlockRange {
    pub first: u64,
    /// 0 where nothing is asked of any.
    pub count: u32,
}

impl BlockRange {
    pub fn one(block: u64) -> BlockRange {
        BlockRange { first: block, count: 1 }
    }

    /// The block behind it.
    pub fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}

/// A set of numbers, kept as ranges that neither overlap nor touch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    /// The first of each, and the one behind it.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// First, and the one behind, of each, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|(first, end)| (*first, *end))
    }

    /// How many ranges.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// How many numbers.
    pub fn total(&self) -> u64 {
        self.iter().map(|(first, end)| end - first).sum()
    }

    pub fn insert(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let (mut first, mut end) = (first, end);
        while let Some((other, other_end)) = self.ends.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if other_end < first {
                break;
            }
            self.ends.remove(&other);
            (first, end) = (first.min(other), end.max(other_end));
        }
        self.ends.insert(first, end);
    }

    pub fn insert_one(&mut self, number: u64) {
        self.insert(number, number.saturating_add(1));
    }

    pub fn insert_extents<'a>(&mut self, extents: impl IntoIterator<Item = &'a Extent>) {
        extents.into_iter().for_each(|extent| self.insert_one(extent.0));
    }

    pub fn insert_blocks(&mut self, range: BlockRange) {
        self.insert(range.first, range.end());
    }

    pub fn extend(&mut self, others: &RangeSet) {
        others.iter().for_each(|(first, end)| self.insert(first, end));
    }

    pub fn remove(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        while let Some((other, other_end)) = self.overlapping(first, end) {
            self.ends.remove(&other);
            self.insert(other, first.min(other_end));
            self.insert(end.max(other), other_end);
        }
    }

    /// Without what is not below `end`.
    pub fn below(mut self, end: u64) -> RangeSet {
        self.remove(end, u64::MAX);
        self
    }

    pub fn overlaps(&self, range: BlockRange) -> bool {
        range.count > 0 && self.overlapping(range.first, range.end()).is_some()
    }

    /// The first piece of at most `count` that has nothing in common with `others`.
    pub fn first_beside(&self, others: &RangeSet, count: u32) -> Option<BlockRange> {
        for (first, end) in self.iter() {
            let mut at = first;
            while at < end {
                let Some((other, other_end)) = others.next_overlapping(at, end) else {
                    return Some(piece(at, end, count));
                };
                if other > at {
                    return Some(piece(at, other, count));
                }
                at = other_end;
            }
        }
        None
    }

    /// The same, or a superset of at most so many ranges.
    pub fn at_most(&self, count: usize) -> RangeSet {
        let mut ranges = self.clone();
        let mut grain = 2;
        while ranges.len() > count.max(1) {
            let rough =
                self.iter().map(|(first, end)| (first / grain * grain, end.div_ceil(grain).saturating_mul(grain)));
            ranges = RangeSet::default();
            rough.for_each(|(first, end)| ranges.insert(first, end));
            grain *= 2;
        }
        ranges
    }

    /// The last one that has something in common.
    fn overlapping(&self, first: u64, end: u64) -> Option<(u64, u64)> {
        self.ends.range(..end).next_back().map(|(a, b)| (*a, *b)).filter(|(_, other_end)| *other_end > first)
    }

    /// The first one.
    fn next_overlapping(&self, first: u64, end: u64) -> Option<(u64, u64)> {
        let before = self.ends.range(..=first).next_back().filter(|(_, other_end)| **other_end > first);
        let found = before.or_else(|| self.ends.range(first..end).next());
        found.map(|(a, b)| (*a, *b))
    }
}

fn piece(first: u64, end: u64, count: u32) -> BlockRange {
    BlockRange { first, count: u32::try_from(end - first).unwrap_or(u32::MAX).min(count).max(1) }
}

impl FromIterator<u64> for RangeSet {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> RangeSet {
        let mut ranges = RangeSet::default();
        numbers.into_iter().for_each(|number| ranges.insert_one(number));
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use histories::rng::Rng;

    use super::*;

    fn members(ranges: &RangeSet) -> BTreeSet<u64> {
        ranges.iter().flat_map(|(first, end)| first..end).collect()
    }

    #[test]
    fn ranges_are_the_set_of_their_numbers() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut ranges, mut other, mut model) = (RangeSet::default(), RangeSet::default(), BTreeSet::new());
            for _ in 0..40 {
                let first = rng.below(60);
                let end = first + rng.below(12);
                match rng.below(4) {
                    0 => {
                        ranges.remove(first, end);
                        model.retain(|number| !(first..end).contains(number));
                    }
                    1 => {
                        ranges.insert_one(first);
                        model.insert(first);
                    }
                    2 => other.insert(first, end),
                    _ => {
                        ranges.insert(first, end);
                        model.extend(first..end);
                    }
                }
                assert_eq!(members(&ranges), model, "seed {seed}");
                let all: Vec<(u64, u64)> = ranges.iter().collect();
                assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].0), "seed {seed}: {all:?}");
                assert_eq!((ranges.total(), ranges.len()), (model.len() as u64, all.len()));
                let range = BlockRange { first, count: (end - first) as u32 };
                let has_some = (range.first..range.end()).any(|number| model.contains(&number));
                assert_eq!(ranges.overlaps(range), has_some, "seed {seed}");
                let avoided = members(&other);
                let found = ranges.first_beside(&other, 3);
                let wanted = model.iter().find(|number| !avoided.contains(number));
                assert_eq!(found.map(|piece| piece.first), wanted.copied(), "seed {seed}");
                let is_free = |number: &u64| model.contains(number) && !avoided.contains(number);
                assert!(found.is_none_or(|piece| (piece.first..piece.end()).all(|number| is_free(&number))));
            }
            let mut both = ranges.clone();
            both.extend(&other);
            assert_eq!(members(&both), model.union(&members(&other)).copied().collect());
        }
    }
}
