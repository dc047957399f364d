//! Who sent datagrams lately, with what is kept for each: by who it is, and by a number. Bounded: who was silent for
//! [`IDLE_MS`] is forgotten, and with [`KEPT_MAX`] the one that was silent for longest makes room.

use std::collections::HashMap;
use std::hash::Hash;

/// As the kernel's own translation keeps those that were answered.
pub const IDLE_MS: u64 = 120_000;
pub const KEPT_MAX: usize = 1024;

#[derive(Debug)]
pub struct Recent<K, T> {
    numbers: HashMap<K, u64>,
    kept: HashMap<u64, Kept<K, T>>,
}

#[derive(Debug)]
struct Kept<K, T> {
    who: K,
    value: T,
    used_ms: u64,
}

impl<K, T> Default for Recent<K, T> {
    fn default() -> Recent<K, T> {
        Recent { numbers: HashMap::new(), kept: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash, T> Recent<K, T> {
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    pub fn number(&self, who: &K) -> Option<u64> {
        self.numbers.get(who).copied()
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.kept.get(&number).map(|kept| &kept.value)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.kept.get_mut(&number).map(|kept| &mut kept.value)
    }

    /// Nobody of this name or number is there yet.
    pub fn insert(&mut self, who: K, number: u64, value: T, now_ms: u64) {
        if self.kept.len() >= KEPT_MAX {
            self.forget_oldest();
        }
        self.numbers.insert(who, number);
        self.kept.insert(number, Kept { who, value, used_ms: now_ms });
    }

    /// Something came or went.
    pub fn used(&mut self, number: u64, now_ms: u64) {
        if let Some(kept) = self.kept.get_mut(&number) {
            kept.used_ms = now_ms;
        }
    }

    pub fn forget_idle(&mut self, now_ms: u64) {
        self.kept.retain(|_, kept| now_ms.saturating_sub(kept.used_ms) < IDLE_MS);
        self.numbers.retain(|_, number| self.kept.contains_key(number));
    }

    fn forget_oldest(&mut self) {
        let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.used_ms).map(|(number, _)| *number);
        if let Some(kept) = oldest.and_then(|number| self.kept.remove(&number)) {
            self.numbers.remove(&kept.who);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_ones_are_forgotten_and_the_most_silent_one_makes_room() {
        let mut recent = Recent::default();
        (0..KEPT_MAX as u64).for_each(|number| recent.insert(number + 7, number, (), number));
        recent.used(0, 5_000);
        recent.insert(1, 9_999, (), 5_001);
        assert_eq!((recent.count(), recent.number(&8), recent.get(1)), (KEPT_MAX, None, None), "1 was silent longest");
        assert_eq!((recent.number(&7), recent.number(&1)), (Some(0), Some(9_999)));
        recent.forget_idle(5_000 + IDLE_MS);
        assert_eq!((recent.count(), recent.number(&7), recent.number(&1)), (1, None, Some(9_999)));
    }
}
