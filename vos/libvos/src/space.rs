//! Who owns which range of a ring's arena: a buddy allocator of power-of-two ranges from 4 KiB to 1 MiB.
//!
//! The client alone decides where a request's data lies, so the state is private to it and survives the ring: a new
//! ring has an arena of the same size, and every range means the same there.

use std::collections::BTreeSet;

use abi::limits::TRANSFER_BYTES_MAX;

/// The smallest range: a page, so that data stays aligned for the disk.
pub const RANGE_BYTES_MIN: u32 = 4096;
const ORDERS: usize = (TRANSFER_BYTES_MAX / RANGE_BYTES_MIN).ilog2() as usize + 1;

/// A range handed out by [`Space`]; give it back with [`Space::free`].
#[derive(Debug, PartialEq, Eq)]
pub struct Range {
    offset: u32,
    order: u8,
    is_empty: bool,
}

impl Range {
    /// Where it begins in the arena.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    pub fn bytes(&self) -> u32 {
        if self.is_empty { 0 } else { RANGE_BYTES_MIN << self.order }
    }
}

/// The free ranges of one arena.
#[derive(Debug)]
pub struct Space {
    free: [BTreeSet<u32>; ORDERS],
    arena_bytes: u32,
}

#[allow(
    clippy::indexing_slicing,
    reason = "an order is below `ORDERS`: `order_of` refuses others, and joining stops there"
)]
impl Space {
    /// All of an arena of `arena_bytes`; what is left of the last whole page is not used.
    pub fn new(arena_bytes: u32) -> Space {
        let mut space = Space { free: Default::default(), arena_bytes };
        let mut at = 0;
        for order in (0..ORDERS).rev() {
            let bytes = RANGE_BYTES_MIN << order;
            while arena_bytes - at >= bytes {
                space.free[order].insert(at);
                at += bytes;
            }
        }
        space
    }

    /// A range of at least `bytes`, `None` when there is no such range at the moment. No range is needed for 0 bytes.
    pub fn take(&mut self, bytes: u32) -> Option<Range> {
        if bytes == 0 {
            return Some(Range { offset: 0, order: 0, is_empty: true });
        }
        let wanted = order_of(bytes)?;
        let found = (wanted..ORDERS).find(|&order| !self.free[order].is_empty())?;
        let offset = self.free[found].pop_first()?;
        for order in (wanted..found).rev() {
            self.free[order].insert(offset + (RANGE_BYTES_MIN << order));
        }
        Some(Range { offset, order: wanted as u8, is_empty: false })
    }

    pub fn free(&mut self, range: Range) {
        if range.is_empty {
            return;
        }
        let (mut offset, mut order) = (range.offset, usize::from(range.order));
        // Joins with its buddy as long as that one is free too.
        while order + 1 < ORDERS && self.free[order].remove(&(offset ^ (RANGE_BYTES_MIN << order))) {
            offset &= !(RANGE_BYTES_MIN << order);
            order += 1;
        }
        self.free[order].insert(offset);
    }

    /// Whether a range of `bytes` could be had if nothing were in use.
    pub fn could_hold(&self, bytes: u32) -> bool {
        bytes == 0 || order_of(bytes).is_some_and(|order| RANGE_BYTES_MIN << order <= self.arena_bytes)
    }

    #[cfg(test)]
    fn free_bytes(&self) -> u32 {
        self.free.iter().enumerate().map(|(order, set)| set.len() as u32 * (RANGE_BYTES_MIN << order)).sum()
    }
}

fn order_of(bytes: u32) -> Option<usize> {
    let ranges = bytes.div_ceil(RANGE_BYTES_MIN).max(1).next_power_of_two();
    let order = ranges.ilog2() as usize;
    (order < ORDERS).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_overlap_and_join_again_when_all_are_given_back() {
        let arena = 5 * TRANSFER_BYTES_MAX + 3 * RANGE_BYTES_MIN + 100;
        let mut space = Space::new(arena);
        let whole = space.free_bytes();
        assert_eq!(whole, arena - 100);
        let mut seed = 0x9e37_79b9_u32;
        let mut held: Vec<Range> = Vec::new();
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let wish = (1 + (seed >> 8) % TRANSFER_BYTES_MAX) >> ((seed >> 3) % 9);
            if seed >> 31 == 0 || held.is_empty() {
                if let Some(range) = space.take(wish.max(1)) {
                    assert!(range.bytes() >= wish.max(1) && range.offset() + range.bytes() <= arena);
                    let clash = |other: &Range| {
                        range.offset() < other.offset() + other.bytes()
                            && other.offset() < range.offset() + range.bytes()
                    };
                    assert!(!held.iter().any(clash), "overlap");
                    held.push(range);
                }
            } else {
                space.free(held.swap_remove(seed as usize % held.len()));
            }
        }
        for range in held {
            space.free(range);
        }
        assert_eq!(space.free_bytes(), whole);
        for _ in 0..5 {
            assert!(space.take(TRANSFER_BYTES_MAX).is_some());
        }
        assert!(space.take(TRANSFER_BYTES_MAX).is_none());
    }

    #[test]
    fn more_than_a_transfer_is_never_handed_out() {
        let mut space = Space::new(8 * TRANSFER_BYTES_MAX);
        assert!(space.take(TRANSFER_BYTES_MAX + 1).is_none());
        assert!(!space.could_hold(TRANSFER_BYTES_MAX + 1));
        assert_eq!(space.take(0).map(|range| range.bytes()), Some(0));
    }
}
