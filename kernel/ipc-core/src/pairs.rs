//! By which pair of proxies two endpoints of different nodes talk.
//!
//! Both nodes compute it, so it is a contract between them as a frame is. Everything between two endpoints goes one
//! way: who wins when both open, and what comes before what, is decided within one link.

use abi::limits::PAIRS_MAX;
use abi::{DcId, Endpoint, PairId};

/// The pair of all channels between `one` and `other`, of `pairs` that their nodes have in common.
pub fn pair_of(dc: DcId, one: Endpoint, other: Endpoint, pairs: u8) -> PairId {
    let (low, high) = (one.min(other), one.max(other));
    let names = u64::from(low.number()) << 32 | u64::from(high.number());
    let spread = mix(mix(u64::from(dc.0)) ^ names);
    PairId::new((spread % u64::from(common(pairs, pairs))) as u8).unwrap_or_default()
}

/// How many pairs two nodes have, of which one has `ours` and the other `theirs`.
pub fn common(ours: u8, theirs: u8) -> u8 {
    ours.min(theirs).clamp(1, PAIRS_MAX)
}

/// Every bit of the number changes half of the result's: the finalizer of SplitMix64 (Steele, Lea, Flood: Fast
/// Splittable Pseudorandom Number Generators).
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn endpoint(number: u32) -> Endpoint {
        Endpoint::new(number).unwrap()
    }

    #[test]
    fn pair_is_what_it_was_in_every_version() {
        let of = |dc, one, other| [2, 3, 8].map(|n| pair_of(DcId(dc), endpoint(one), endpoint(other), n).number());
        assert_eq!([of(1, 1, 256), of(1, 1, 257), of(7, 3, 4)], [[0, 0, 2], [1, 0, 5], [0, 1, 6]]);
    }

    #[test]
    fn many_pairs_of_endpoints_are_spread_evenly() {
        for pairs in 2..=PAIRS_MAX {
            let mut counts = [0_u32; PAIRS_MAX as usize];
            for number in 0..4000 {
                counts[usize::from(pair_of(DcId(5), Endpoint::FS, endpoint(256 + number), pairs).number())] += 1;
            }
            let even = 4000 / u32::from(pairs);
            let used = &counts[..usize::from(pairs)];
            assert!(used.iter().all(|count| count.abs_diff(even) < even / 4), "{pairs}: {counts:?}");
        }
    }

    proptest! {
        #[test]
        fn both_ends_compute_the_same_and_none_that_is_not_there(
            dc in 1_u32..1 << 24, one in 0_u32..8192, other in 0_u32..8192, ours: u8, theirs: u8
        ) {
            let (here, there) = (common(ours, theirs), common(theirs, ours));
            let pair = pair_of(DcId(dc), endpoint(one), endpoint(other), here);
            prop_assert_eq!(pair, pair_of(DcId(dc), endpoint(other), endpoint(one), there));
            prop_assert!(pair.number() < here && here <= PAIRS_MAX);
            if here == 1 {
                prop_assert_eq!(pair, PairId::FIRST);
            }
        }
    }
}
