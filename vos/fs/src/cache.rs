//! Clean data blocks in memory, by their place on the volume, and the loads that are under way.
//!
//! Blocks are written once and never changed in place, so an entry cannot become stale; it is dropped when its blocks
//! are handed out again ([`Cache::forget`]). Entries never overlap.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::BLOCK;
use crate::extents::Run;

pub struct Cache {
    state: Mutex<State>,
    loaded: Condvar,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    /// Oldest use first.
    order: BTreeMap<u64, u64>,
    clock: u64,
    bytes: usize,
    loading: HashSet<Run>,
}

struct Entry {
    data: Arc<[u8]>,
    used: u64,
}

/// A load that was begun; dropping it lets those who wait for it go on.
pub struct Loading<'a> {
    cache: &'a Cache,
    pub run: Run,
}

impl Cache {
    pub fn new(bytes_max: usize) -> Cache {
        Cache { state: Mutex::default(), loaded: Condvar::new(), bytes_max }
    }

    /// Copies blocks out when all of them are here, waiting for a load that brings them.
    pub fn read(&self, run: Run, out: &mut [u8]) -> bool {
        let mut state = self.lock();
        while state.loading.iter().any(|load| overlaps(*load, run)) {
            state = self.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut parts = Vec::new();
        let mut block = run.start;
        while block < run.start + run.count {
            let Some((data, from)) = state.find(block) else { return false };
            let until = (run.start + run.count - block).min((data.len() / BLOCK) as u64 - from);
            parts.push((data, from, until));
            block += until;
        }
        drop(state);
        let mut rest = out;
        for (data, from, count) in parts {
            let (here, behind) = rest.split_at_mut(count as usize * BLOCK);
            let from = from as usize * BLOCK;
            here.copy_from_slice(&data[from..from + here.len()]);
            rest = behind;
        }
        true
    }

    /// Claims a load, unless its first block is here or somebody loads it already.
    pub fn begin_load(&self, run: Run) -> Option<Loading<'_>> {
        let mut state = self.lock();
        if state.find(run.start).is_some() || state.loading.iter().any(|load| overlaps(*load, run)) {
            return None;
        }
        state.loading.insert(run);
        Some(Loading { cache: self, run })
    }

    pub fn insert(&self, start: u64, data: Arc<[u8]>) {
        if data.len() > self.bytes_max {
            return;
        }
        let mut state = self.lock();
        state.remove(Run { start, count: (data.len() / BLOCK) as u64 });
        state.clock += 1;
        let used = state.clock;
        state.bytes += data.len();
        state.order.insert(used, start);
        state.entries.insert(start, Entry { data, used });
        while state.bytes > self.bytes_max {
            let Some((_, oldest)) = state.order.pop_first() else { break };
            if let Some(entry) = state.entries.remove(&oldest) {
                state.bytes -= entry.data.len();
            }
        }
    }

    /// The blocks get new content.
    pub fn forget(&self, runs: &[Run]) {
        let mut state = self.lock();
        for run in runs {
            state.remove(*run);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.lock().loading.remove(&self.run);
        self.cache.loaded.notify_all();
    }
}

impl State {
    fn find(&mut self, block: u64) -> Option<(Arc<[u8]>, u64)> {
        let (start, entry) = self.entries.range_mut(..=block).next_back()?;
        let from = block - start;
        if from >= (entry.data.len() / BLOCK) as u64 {
            return None;
        }
        self.clock += 1;
        self.order.remove(&entry.used);
        entry.used = self.clock;
        self.order.insert(entry.used, *start);
        Some((entry.data.clone(), from))
    }

    fn remove(&mut self, run: Run) {
        let mut doomed = Vec::new();
        for (start, entry) in self.entries.range(..run.start + run.count).rev() {
            let count = (entry.data.len() / BLOCK) as u64;
            if !overlaps(Run { start: *start, count }, run) {
                break;
            }
            doomed.push(*start);
        }
        for start in doomed {
            if let Some(entry) = self.entries.remove(&start) {
                self.bytes -= entry.data.len();
                self.order.remove(&entry.used);
            }
        }
    }
}

fn overlaps(one: Run, other: Run) -> bool {
    one.start < other.start + other.count && other.start < one.start + one.count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(blocks: usize, byte: u8) -> Arc<[u8]> {
        vec![byte; blocks * BLOCK].into()
    }

    #[test]
    fn blocks_of_neighbouring_entries_are_read_together_and_forgotten_when_reused() {
        let cache = Cache::new(64 * BLOCK);
        cache.insert(10, data(2, 1));
        cache.insert(12, data(2, 2));
        let mut out = vec![0; 3 * BLOCK];
        assert!(cache.read(Run { start: 11, count: 3 }, &mut out));
        assert_eq!((out[0], out[BLOCK], out[2 * BLOCK]), (1, 2, 2));
        cache.forget(&[Run { start: 13, count: 1 }]);
        assert!(!cache.read(Run { start: 11, count: 3 }, &mut out));
        assert!(cache.read(Run { start: 10, count: 2 }, &mut out[..2 * BLOCK]));
    }

    #[test]
    fn least_recently_used_blocks_give_way() {
        let cache = Cache::new(2 * BLOCK);
        let mut out = vec![0; BLOCK];
        cache.insert(1, data(1, 1));
        cache.insert(2, data(1, 2));
        assert!(cache.read(Run { start: 1, count: 1 }, &mut out));
        cache.insert(3, data(1, 3));
        assert!(!cache.read(Run { start: 2, count: 1 }, &mut out));
        assert!(cache.read(Run { start: 1, count: 1 }, &mut out));
    }
}
