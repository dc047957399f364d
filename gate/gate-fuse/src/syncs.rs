//! Files whose programs make each write durable: a log that is written, and synced, over and over. Of the next write of
//! such a file the server is told that a sync follows (`vos_api::fs::SYNC_FOLLOWS`). If it says that the write is
//! durable, and the file was not changed since, the sync is answered here.
//!
//! A guess: who is wrong has made something durable that nobody asked for.

use std::collections::HashMap;

/// Files that are remembered; the one that was synced longest ago goes first.
const FILES_MAX: usize = 64;

#[derive(Default, Debug)]
pub struct Syncs {
    files: HashMap<u64, File>,
    count: u64,
}

#[derive(Default, Debug)]
struct File {
    /// When it was synced last.
    synced: u64,
    /// Since then.
    writes: u32,
    /// There was one between the last two.
    is_log: bool,
    /// Change time of the file when all of it was durable.
    durable_ns: Option<u64>,
}

impl Syncs {
    /// Also said again of the same one.
    pub fn synced(&mut self, ino: u64) {
        self.count += 1;
        if !self.files.contains_key(&ino)
            && self.files.len() >= FILES_MAX
            && let Some(oldest) = self.files.iter().min_by_key(|file| file.1.synced).map(|file| *file.0)
        {
            self.files.remove(&oldest);
        }
        let file = self.files.entry(ino).or_default();
        if file.writes > 0 {
            file.is_log = file.writes == 1;
        }
        (file.synced, file.writes) = (self.count, 0);
    }

    pub fn written(&mut self, ino: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.writes = file.writes.saturating_add(1);
        }
    }

    /// With its change of that time, and all before it.
    pub fn made_durable(&mut self, ino: u64, changed_ns: u64) {
        if let Some(file) = self.files.get_mut(&ino) {
            file.durable_ns = Some(changed_ns);
        }
    }

    /// Whether there is nothing to sync of a file that was changed then for the last time.
    pub fn has_synced(&self, ino: u64, changed_ns: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| file.durable_ns == Some(changed_ns))
    }

    /// Of a write that is told: whether a sync is likely to be next, or waits for it already.
    pub fn follows(&self, ino: u64) -> bool {
        self.files.get(&ino).is_some_and(|file| file.is_log && file.writes <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: u64 = 7;

    fn written(syncs: &mut Syncs, times: u32) -> bool {
        (0..times).for_each(|_| syncs.written(LOG));
        syncs.follows(LOG)
    }

    #[test]
    fn sync_is_expected_after_a_write_that_was_synced_alone_before() {
        let mut syncs = Syncs::default();
        assert!(!written(&mut syncs, 1), "nobody ever synced it");
        syncs.synced(LOG);
        assert!(!written(&mut syncs, 1), "nothing is known yet");
        syncs.synced(LOG);
        // Asked again, because it had to wait.
        syncs.synced(LOG);
        assert!(written(&mut syncs, 1));
        syncs.synced(LOG);
        assert!(syncs.follows(LOG), "it was asked before the write was told");
        assert!(written(&mut syncs, 1));
        assert!(!written(&mut syncs, 1), "it was another one that followed");
        syncs.synced(LOG);
        assert!(!written(&mut syncs, 1), "two writes, one sync");
        syncs.synced(LOG);
        assert!(written(&mut syncs, 1));
    }

    #[test]
    fn file_that_was_synced_longest_ago_is_forgotten_first() {
        let mut syncs = Syncs::default();
        let turn = |syncs: &mut Syncs, ino| {
            syncs.written(ino);
            syncs.synced(ino);
        };
        (0..FILES_MAX as u64).for_each(|ino| (0..2).for_each(|_| turn(&mut syncs, ino)));
        turn(&mut syncs, 0);
        turn(&mut syncs, 1000);
        assert_eq!(syncs.files.len(), FILES_MAX);
        syncs.written(0);
        syncs.written(1);
        assert!(syncs.follows(0) && !syncs.follows(1));
    }
}
