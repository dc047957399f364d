//! What lies beside a copy and what a member says of itself, as bytes: little-endian, every count before what it
//! counts. Sets that would become too long are told as supersets: then more is copied than would have to be.

use std::collections::{BTreeMap, BTreeSet};

use crate::backup::Kept;
use crate::message::Recent;
use crate::record::{CopyMark, Replica};
use crate::{Extent, RangeSet};

/// Ranges of one set.
pub const RANGES_MAX: usize = 2048;
/// Members of a set.
pub const MEMBERS_MAX: usize = 16;
/// Bytes of anything here.
pub const ENCODED_BYTES_MAX: usize = MEMBERS_MAX * (RANGES_MAX * 16 + 8) + 2 * (RANGES_MAX * 16) + 256;

/// What a member says when it is greeted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyState {
    pub mark: Option<CopyMark>,
    /// It lost what it had not flushed.
    pub is_doubtful: bool,
    /// All of it is zeros.
    pub is_blank: bool,
    pub recent: Recent,
    /// What is in its activity log.
    pub hot: BTreeSet<Extent>,
    /// The extents that others miss, as far as it knows.
    pub behind: BTreeMap<Replica, RangeSet>,
}

impl CopyState {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.mark(self.mark);
        out.u8(self.is_doubtful.into());
        out.u8(self.is_blank.into());
        match &self.recent {
            Recent::Blocks(blocks) => {
                out.u8(0);
                out.ranges(blocks);
            }
            Recent::Extents(extents) => {
                out.u8(1);
                out.extents(extents);
            }
        }
        out.extents(&self.hot);
        out.behind(&self.behind);
        out.0
    }

    /// `None`: it is none.
    pub fn decode(bytes: &[u8]) -> Option<CopyState> {
        let mut from = In(bytes);
        let (mark, is_doubtful, is_blank) = (from.mark()?, from.bool()?, from.bool()?);
        let recent = if from.bool()? { Recent::Extents(from.extents()?) } else { Recent::Blocks(from.ranges()?) };
        let state = CopyState { mark, is_doubtful, is_blank, recent, hot: from.extents()?, behind: from.behind()? };
        from.0.is_empty().then_some(state)
    }
}

impl Kept {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Out::default();
        out.mark(self.mark);
        out.u32(self.fence);
        out.extents(&self.hot);
        out.behind(&self.behind);
        out.0
    }

    /// `None`: it is none.
    pub fn decode(bytes: &[u8]) -> Option<Kept> {
        let mut from = In(bytes);
        let kept = Kept { mark: from.mark()?, fence: from.u32()?, hot: from.extents()?, behind: from.behind()? };
        from.0.is_empty().then_some(kept)
    }
}

/// What each member that is behind misses.
pub fn encode_behind(behind: &BTreeMap<Replica, RangeSet>) -> Vec<u8> {
    let mut out = Out::default();
    out.behind(behind);
    out.0
}

/// `None`: it is none.
pub fn decode_behind(bytes: &[u8]) -> Option<BTreeMap<Replica, RangeSet>> {
    let mut from = In(bytes);
    let behind = from.behind()?;
    from.0.is_empty().then_some(behind)
}

#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn mark(&mut self, mark: Option<CopyMark>) {
        self.u8(mark.is_some().into());
        if let Some(CopyMark { set, generation, whole, boot }) = mark {
            self.u64(set);
            self.u64(generation);
            self.u8(whole.into());
            self.u64(boot);
        }
    }

    fn ranges(&mut self, ranges: &RangeSet) {
        let ranges = ranges.at_most(RANGES_MAX);
        self.u32(ranges.len() as u32);
        for (first, end) in ranges.iter() {
            self.u64(first);
            self.u64(end);
        }
    }

    fn extents(&mut self, extents: &BTreeSet<Extent>) {
        self.ranges(&extents.iter().map(|extent| extent.0).collect());
    }

    fn behind(&mut self, behind: &BTreeMap<Replica, RangeSet>) {
        let count = behind.len().min(MEMBERS_MAX);
        self.u8(count as u8);
        for (member, missing) in behind.iter().take(count) {
            self.u8(member.0);
            self.ranges(missing);
        }
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[number]| number)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn mark(&mut self) -> Option<Option<CopyMark>> {
        if !self.bool()? {
            return Some(None);
        }
        let (set, generation) = (self.u64()?, self.u64()?);
        Some(Some(CopyMark { set, generation, whole: self.bool()?, boot: self.u64()? }))
    }

    fn ranges(&mut self) -> Option<RangeSet> {
        let count = self.u32()?;
        let mut ranges = RangeSet::default();
        for _ in 0..count {
            let (first, end) = (self.u64()?, self.u64()?);
            if first >= end {
                return None;
            }
            ranges.insert(first, end);
        }
        Some(ranges)
    }

    /// The activity log: never more than fit in it, so that nobody is made to list a disk.
    fn extents(&mut self) -> Option<BTreeSet<Extent>> {
        let ranges = self.ranges()?;
        let is_short = ranges.total() <= (RANGES_MAX * 2) as u64;
        is_short.then(|| ranges.iter().flat_map(|(first, end)| first..end).map(Extent).collect())
    }

    fn behind(&mut self) -> Option<BTreeMap<Replica, RangeSet>> {
        let count = self.u8()?;
        (0..count).map(|_| Some((Replica(self.u8()?), self.ranges()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use histories::rng::Rng;

    use super::*;

    fn some_ranges(rng: &mut Rng) -> RangeSet {
        (0..rng.below(5)).map(|_| rng.below(100)).collect()
    }

    fn some_kept(rng: &mut Rng) -> Kept {
        let mark = CopyMark { set: rng.draw(), generation: rng.draw(), whole: rng.one_in(2), boot: rng.draw() };
        Kept {
            mark: (!rng.one_in(4)).then_some(mark),
            fence: rng.draw() as u32,
            hot: (0..rng.below(6)).map(|_| Extent(rng.below(1000))).collect(),
            behind: (0..rng.below(3)).map(|_| (Replica(rng.below(16) as u8), some_ranges(rng))).collect(),
        }
    }

    #[test]
    fn everything_comes_back_and_nothing_shorter_longer_or_spoiled_does_harm() {
        for seed in 0..300 {
            let rng = &mut Rng::new(seed);
            let kept = some_kept(rng);
            let bytes = kept.encode();
            assert!(bytes.len() <= ENCODED_BYTES_MAX);
            assert_eq!(Kept::decode(&bytes).as_ref(), Some(&kept), "seed {seed}");
            let is_by_blocks = rng.one_in(2);
            let recent =
                if is_by_blocks { Recent::Blocks(some_ranges(rng)) } else { Recent::Extents(kept.hot.clone()) };
            let Kept { mark, hot, behind, .. } = kept;
            let (is_doubtful, is_blank) = (rng.one_in(2), rng.one_in(2));
            let state = CopyState { mark, is_doubtful, is_blank, recent, hot, behind };
            let said = state.encode();
            assert_eq!(CopyState::decode(&said).as_ref(), Some(&state), "seed {seed}");
            assert_eq!(decode_behind(&encode_behind(&state.behind)), Some(state.behind));
            assert!((0..bytes.len()).all(|end| Kept::decode(&bytes[..end]).is_none()));
            assert!((0..said.len()).all(|end| CopyState::decode(&said[..end]).is_none()));
            for bytes in [bytes, said] {
                let longer = [&bytes[..], &[0]].concat();
                assert!(Kept::decode(&longer).is_none() || CopyState::decode(&longer).is_none());
                let mut spoiled = bytes;
                let at = rng.below(spoiled.len() as u64) as usize;
                spoiled[at] ^= 1 << rng.below(8);
                let _ = (Kept::decode(&spoiled), CopyState::decode(&spoiled), decode_behind(&spoiled));
            }
        }
    }

    #[test]
    fn set_of_too_many_ranges_is_told_as_a_larger_one() {
        let scattered: RangeSet = (0..100_000).map(|number| number * 7).collect();
        let behind = BTreeMap::from([(Replica(3), scattered.clone())]);
        let told = decode_behind(&encode_behind(&behind)).expect("told").remove(&Replica(3)).expect("of it");
        assert!(told.len() <= RANGES_MAX);
        assert!(scattered.iter().all(|(first, end)| told.iter().any(|(from, to)| from <= first && end <= to)));
    }
}
