//! Notifications by source, the source that came first before the others.

use std::collections::{HashMap, VecDeque};

use abi::Endpoint;

/// One mask for each source: at most as many as there are endpoints.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    masks: HashMap<Endpoint, u64>,
    /// The sources that have a mask.
    turns: VecDeque<Endpoint>,
}

impl Bits {
    pub fn add(&mut self, source: Endpoint, mask: u64) {
        if mask == 0 {
            return;
        }
        *self.masks.entry(source).or_insert_with(|| {
            self.turns.push_back(source);
            0
        }) |= mask;
    }

    pub fn pop(&mut self) -> Option<(Endpoint, u64)> {
        let source = self.turns.pop_front()?;
        Some((source, self.masks.remove(&source)?))
    }

    /// Those of one source.
    pub fn take_of(&mut self, source: Endpoint) -> Option<u64> {
        let mask = self.masks.remove(&source)?;
        self.turns.retain(|waiting| *waiting != source);
        Some(mask)
    }

    pub fn has(&self, source: Endpoint) -> bool {
        self.masks.contains_key(&source)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_a_source_merge_and_sources_take_turns() {
        let mut bits = Bits::default();
        for (source, mask) in [(Endpoint::FS, 1), (Endpoint::DS, 2), (Endpoint::FS, 4), (Endpoint::PM, 0)] {
            bits.add(source, mask);
        }
        assert_eq!(bits.pop(), Some((Endpoint::FS, 5)));
        bits.add(Endpoint::FS, 8);
        assert_eq!(bits.pop(), Some((Endpoint::DS, 2)));
        assert_eq!(bits.pop(), Some((Endpoint::FS, 8)));
        bits.add(Endpoint::DS, 1);
        assert!(bits.has(Endpoint::DS) && !bits.has(Endpoint::FS));
        assert_eq!((bits.take_of(Endpoint::FS), bits.take_of(Endpoint::DS)), (None, Some(1)));
        assert!(bits.is_empty() && bits.pop().is_none());
    }
}
