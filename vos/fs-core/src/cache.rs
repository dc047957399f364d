//! Clean data blocks in memory, by their place on the volume, and the loads that are under way.
//!
//! Blocks are written once and never changed in place, so an entry cannot become stale; it is dropped when its blocks
//! are handed out again ([`Cache::forget`]). Entries never overlap.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::device::BLOCK;
use crate::extents::Run;

/// Buffers of evicted entries that are kept for the next loads: fresh memory costs a page fault for every 4 KiB.
const SPARES_MAX: usize = 8;
/// Smaller ones come from the heap cheaply.
const SPARE_BYTES_MIN: usize = 256 << 10;

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
    spares: Vec<Vec<u8>>,
}

/// Bytes of an entry, shared with the cache: they never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    data: Arc<Vec<u8>>,
    from: usize,
    bytes: usize,
}

impl Part {
    pub fn bytes(&self) -> &[u8] {
        self.data.get(self.from..self.from + self.bytes).unwrap_or_default()
    }

    /// Without its first `skip` bytes, and at most `bytes` of the rest.
    fn cut(mut self, skip: usize, bytes: usize) -> Part {
        let skip = skip.min(self.bytes);
        self.from += skip;
        self.bytes = (self.bytes - skip).min(bytes);
        self
    }
}

struct Entry {
    data: Arc<Vec<u8>>,
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
        let Some(parts) = self.parts(run) else { return false };
        let mut rest = out;
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.bytes);
            here.copy_from_slice(part.bytes());
            rest = behind;
        }
        true
    }

    /// `bytes` of the blocks from byte `skip` on, appended to `parts` without a copy, when all blocks are here.
    pub fn read_parts(&self, run: Run, skip: usize, bytes: usize, parts: &mut Vec<Part>) -> bool {
        let Some(found) = self.parts(run) else { return false };
        let (mut skip, mut left) = (skip, bytes);
        for part in found {
            let whole = part.bytes;
            let part = part.cut(skip, left);
            skip = skip.saturating_sub(whole);
            left -= part.bytes;
            if part.bytes > 0 {
                parts.push(part);
            }
        }
        left == 0
    }

    /// Whole blocks, waiting for a load that brings them.
    fn parts(&self, run: Run) -> Option<Vec<Part>> {
        let mut state = self.state.lock();
        while state.loading.iter().any(|load| overlaps(*load, run)) {
            self.loaded.wait(&mut state);
        }
        let mut parts = Vec::new();
        let mut block = run.start;
        while block < run.start + run.count {
            let (data, from) = state.find(block)?;
            let count = (run.start + run.count - block).min((data.len() / BLOCK) as u64 - from);
            parts.push(Part { data, from: from as usize * BLOCK, bytes: count as usize * BLOCK });
            block += count;
        }
        Some(parts)
    }

    /// Memory to load `bytes` into, with anything in it.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        let spare = if bytes < SPARE_BYTES_MIN { None } else { self.state.lock().spares.pop() };
        let mut buffer = spare.unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// Claims a load, unless its first block is here or somebody loads it already.
    pub fn begin_load(&self, run: Run) -> Option<Loading<'_>> {
        let mut state = self.state.lock();
        if state.find(run.start).is_some() || state.loading.iter().any(|load| overlaps(*load, run)) {
            return None;
        }
        state.loading.insert(run);
        Some(Loading { cache: self, run })
    }

    pub fn insert(&self, start: u64, data: impl Into<Arc<Vec<u8>>>) {
        let data = data.into();
        if data.len() > self.bytes_max {
            return;
        }
        let mut state = self.state.lock();
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
                state.keep_spare(entry);
            }
        }
    }

    /// The blocks get new content.
    pub fn forget(&self, runs: &[Run]) {
        let mut state = self.state.lock();
        for run in runs {
            state.remove(*run);
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.cache.state.lock().loading.remove(&self.run);
        self.cache.loaded.notify_all();
    }
}

impl State {
    fn find(&mut self, block: u64) -> Option<(Arc<Vec<u8>>, u64)> {
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
                self.keep_spare(entry);
            }
        }
    }

    /// Keeps the memory of an entry that nobody reads any more.
    fn keep_spare(&mut self, entry: Entry) {
        if entry.data.len() >= SPARE_BYTES_MIN
            && self.spares.len() < SPARES_MAX
            && let Some(buffer) = Arc::into_inner(entry.data)
        {
            self.spares.push(buffer);
        }
    }
}

fn overlaps(one: Run, other: Run) -> bool {
    one.start < other.start + other.count && other.start < one.start + one.count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(blocks: usize, byte: u8) -> Vec<u8> {
        vec![byte; blocks * BLOCK]
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
    fn parts_begin_and_end_at_any_byte_and_outlive_their_entry() {
        let cache = Cache::new(4 * BLOCK);
        cache.insert(10, data(2, 1));
        cache.insert(12, data(2, 2));
        let mut parts = Vec::new();
        assert!(cache.read_parts(Run { start: 10, count: 3 }, BLOCK + 100, BLOCK, &mut parts));
        cache.forget(&[Run { start: 10, count: 4 }]);
        let bytes: Vec<&[u8]> = parts.iter().map(Part::bytes).collect();
        assert_eq!(bytes, [&vec![1; BLOCK - 100][..], &vec![2; 100][..]]);
        assert!(!cache.read_parts(Run { start: 10, count: 3 }, 0, BLOCK, &mut parts));
    }

    #[test]
    fn memory_of_an_evicted_entry_is_used_again_unless_somebody_reads_it() {
        let blocks = SPARE_BYTES_MIN / BLOCK;
        let cache = Cache::new(SPARE_BYTES_MIN);
        cache.insert(0, data(blocks, 1));
        let mut parts = Vec::new();
        assert!(cache.read_parts(Run { start: 0, count: 1 }, 0, BLOCK, &mut parts));
        cache.insert(1000, data(blocks, 2));
        cache.insert(2000, data(blocks, 3));
        assert_eq!(parts[0].bytes()[0], 1);
        assert_eq!(cache.buffer(SPARE_BYTES_MIN)[0], 2);
        assert_eq!(cache.buffer(SPARE_BYTES_MIN)[0], 0);
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
