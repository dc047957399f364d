//! The part of a group's order that a host holds: what some member here, or some other host, may still need.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::wire::{Entry, FRAME_BYTES};

#[derive(Default)]
pub struct Log {
    /// Index of the first entry that is held.
    first: u64,
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    unstable_bytes: usize,
    /// All hosts have everything up to here.
    stable: u64,
    /// Messages of each member that were ordered.
    counted: BTreeMap<u64, u64>,
    is_begun: bool,
}

impl Log {
    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// The first entry will be `first`.
    pub fn begin(&mut self, first: u64) {
        *self = Log { first, stable: first.saturating_sub(1), is_begun: true, ..Log::default() };
    }

    pub fn first(&self) -> u64 {
        self.first
    }

    /// Index of the last entry; one less than the first when there is none.
    pub fn high(&self) -> u64 {
        (self.first + self.entries.len() as u64).saturating_sub(1)
    }

    pub fn stable(&self) -> u64 {
        self.stable
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of those that some host may not have.
    pub fn unstable_bytes(&self) -> usize {
        self.unstable_bytes
    }

    /// Whether it is a member of the newest view.
    pub fn knows(&self, member: u64) -> bool {
        self.counted.contains_key(&member)
    }

    pub fn all_counted(&self) -> Vec<(u64, u64)> {
        self.counted.iter().map(|(member, count)| (*member, *count)).collect()
    }

    /// Counts of a host that had more of the log.
    pub fn count_up(&mut self, counted: &[(u64, u64)]) {
        for (member, count) in counted {
            let own = self.counted.entry(*member).or_default();
            *own = (*own).max(*count);
        }
    }

    pub fn counted(&self, member: u64) -> u64 {
        self.counted.get(&member).copied().unwrap_or(0)
    }

    pub fn get(&self, index: u64) -> Option<&Arc<Entry>> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    pub fn push(&mut self, entry: Arc<Entry>) {
        match &*entry {
            Entry::View(view) => {
                self.counted = view.members.iter().map(|(member, counted)| (member.id, *counted)).collect();
            }
            Entry::Burst(burst) => {
                self.counted.insert(burst.member, burst.first + u64::from(burst.count) - 1);
            }
        }
        self.bytes += entry.bytes();
        self.unstable_bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    /// True when it rose.
    pub fn settle(&mut self, stable: u64) -> bool {
        let stable = stable.min(self.high());
        let rises = stable > self.stable;
        for index in self.stable + 1..=stable {
            self.unstable_bytes -= self.get(index).map_or(0, |entry| entry.bytes());
        }
        self.stable = self.stable.max(stable);
        rises
    }

    /// Nobody here needs what lies before `needed`, and no other host what is stable.
    pub fn trim(&mut self, needed: u64) {
        while self.first < needed && self.first <= self.stable {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.bytes();
            self.first += 1;
        }
    }

    /// As many entries from `from` on as one frame holds.
    pub fn some(&self, from: u64) -> Vec<Arc<Entry>> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        let mut index = from;
        while let Some(entry) = self.get(index) {
            bytes += entry.bytes();
            if !some.is_empty() && bytes > FRAME_BYTES {
                break;
            }
            some.push(Arc::clone(entry));
            index += 1;
        }
        some
    }

    /// Whether an entry after `after` and up to `up_to` waits until all hosts have it. One that is not held any more
    /// may.
    pub fn waits_between(&self, after: u64, up_to: u64) -> bool {
        after < up_to
            && (after + 1 < self.first
                || (after + 1..=up_to).filter_map(|index| self.get(index)).any(|one| one.waits()))
    }
}

impl Entry {
    /// Whether it is given to members only once all hosts have it.
    pub fn waits(&self) -> bool {
        match self {
            Entry::View(_) => true,
            Entry::Burst(burst) => burst.level == vos_api::cs::Level::Safe,
        }
    }
}
