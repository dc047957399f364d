//! Inodes that nothing claims any more and that stay for a while.
//!
//! A program that opens a file asks twice: what the name leads to, then for that inode. Between the two, somebody may
//! have put another file in its place. A local kernel holds the inode that it found; here it is the server that holds
//! it. So an inode that lost its last name and its last handle is an orphan, which can still be opened and asked about,
//! and is removed [`LINGER_MS`] later: sooner when its space is needed, or when more than [`FILES_MAX`] linger. Then
//! the kernel of the client's node looks the name up once more ([`Errno::Gone`](crate::Errno::Gone)).
//!
//! Programs work in directories and list them without a handle at the server. So a removed directory stays, whatever
//! the time, until [`DIRECTORIES_MAX`] others were removed after it, or its space is needed. It also stays when the
//! server restarts.

use std::collections::{HashMap, VecDeque};

use crate::core::Fs;
use crate::error::Errno;
use crate::model::Inode;

/// Above what a program takes from finding a name to opening it, on a loaded machine and over a slow link.
pub const LINGER_MS: u64 = 3_000;
const FILES_MAX: usize = 8192;
const DIRECTORIES_MAX: usize = 8192;
/// How many are removed together when there are too many: their changes share a record.
const BATCH: usize = 256;

/// An inode without name and handle.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orphan {
    ino: u64,
    blocks: u64,
    is_dir: bool,
}

impl Orphan {
    pub fn new(ino: u64, inode: &Inode) -> Orphan {
        Orphan { ino, blocks: inode.blocks, is_dir: inode.is_dir() }
    }
}

#[derive(Default)]
pub struct Lingering {
    /// Blocks of each.
    blocks: HashMap<u64, u64>,
    /// In the order in which they came, with the time. May name some that were claimed again.
    files: VecDeque<(u64, u64)>,
    directories: VecDeque<u64>,
}

impl Lingering {
    /// Answers those for which there is no room any more.
    #[must_use]
    fn add(&mut self, orphan: Orphan, now_ms: u64) -> Vec<u64> {
        self.blocks.insert(orphan.ino, orphan.blocks);
        let mut excess: Vec<u64> = if orphan.is_dir {
            self.directories.push_back(orphan.ino);
            let count = if self.directories.len() > DIRECTORIES_MAX { BATCH } else { 0 };
            self.directories.drain(..count).collect()
        } else {
            self.files.push_back((orphan.ino, now_ms));
            let count = if self.files.len() > FILES_MAX { BATCH } else { 0 };
            self.files.drain(..count).map(|(ino, _)| ino).collect()
        };
        excess.retain(|ino| self.claim(*ino));
        excess
    }

    /// `false`: it does not linger.
    fn claim(&mut self, ino: u64) -> bool {
        self.blocks.remove(&ino).is_some()
    }

    /// They could not be removed yet, and are tried again.
    fn put_back(&mut self, inos: &[u64], now_ms: u64) {
        for ino in inos {
            self.blocks.insert(*ino, 0);
            self.files.push_back((*ino, now_ms));
        }
    }

    #[must_use]
    fn due(&mut self, now_ms: u64) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some((ino, since_ms)) = self.files.front().copied()
            && now_ms.saturating_sub(since_ms) >= LINGER_MS
        {
            self.files.pop_front();
            if self.claim(ino) {
                due.push(ino);
            }
        }
        due
    }

    #[must_use]
    fn take_all(&mut self) -> Vec<u64> {
        self.files.clear();
        self.directories.clear();
        self.blocks.drain().map(|(ino, _)| ino).collect()
    }

    /// How many linger, and their blocks.
    pub fn sizes(&self) -> (u64, u64) {
        (self.blocks.len() as u64, self.blocks.values().sum())
    }

    pub fn needs_time(&self) -> bool {
        !self.files.is_empty()
    }
}

impl Fs {
    /// An operation took the last claim on an inode, and is in the log or on its way there.
    pub(crate) fn linger(&self, orphan: Option<Orphan>) {
        let Some(orphan) = orphan else { return };
        let excess = self.lingering.lock().add(orphan, self.now());
        self.reap_or_leave(&excess);
    }

    /// Somebody opened the inode, by a name that it had.
    pub(crate) fn claim(&self, ino: u64) {
        self.lingering.lock().claim(ino);
    }

    /// Removes those whose time is over.
    pub(crate) fn reap_due(&self, now_ms: u64) {
        if !self.may_reap() {
            return;
        }
        let due = self.lingering.lock().due(now_ms);
        if !due.is_empty() {
            self.reap_or_leave(&due);
            self.log.drive();
        }
    }

    /// Removes all, because there is no space left. `false`: there were none, or nothing comes of it.
    pub(crate) fn reap_lingering(&self) -> Result<bool, Errno> {
        if !self.may_reap() {
            return Ok(false);
        }
        let all = self.lingering.lock().take_all();
        match self.reap(&all) {
            // What there is to be had of those that were put back a checkpoint tells.
            Ok(()) | Err(Errno::NoSpace) => Ok(!all.is_empty()),
            Err(errno) => Err(errno),
        }
    }

    /// Those that are left for a time when snapshots leave more room.
    pub(crate) fn put_back(&self, inos: &[u64]) {
        self.lingering.lock().put_back(inos, self.now());
    }

    /// What snapshots have of those that are removed takes room among the metadata.
    pub(crate) fn may_reap(&self) -> bool {
        !self.blocks.lock().holds() || self.has_metadata()
    }

    fn reap_or_leave(&self, inos: &[u64]) {
        match self.reap(inos) {
            // They were put back.
            Ok(()) | Err(Errno::NoSpace) => {}
            Err(errno) => tracing::warn!(count = inos.len(), "removing them is left to the next start: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64) -> Orphan {
        Orphan { ino, blocks: 2, is_dir: false }
    }

    #[test]
    fn file_lingers_for_its_time_unless_it_is_opened_again() {
        let mut lingering = Lingering::default();
        assert!(lingering.add(file(5), 100).is_empty());
        assert!(lingering.add(file(6), 200).is_empty());
        assert_eq!(lingering.sizes(), (2, 4));
        assert!(lingering.due(99 + LINGER_MS).is_empty());
        assert!(lingering.claim(6));
        assert_eq!(lingering.due(200 + LINGER_MS), [5]);
        assert_eq!((lingering.sizes(), lingering.needs_time()), ((0, 0), false));
    }

    #[test]
    fn oldest_go_when_too_many_linger_and_directories_only_then() {
        let mut lingering = Lingering::default();
        let directory = |ino| Orphan { ino, blocks: 0, is_dir: true };
        for ino in 0..DIRECTORIES_MAX as u64 {
            assert!(lingering.add(directory(ino), 0).is_empty());
        }
        assert!(lingering.due(u64::MAX).is_empty());
        assert_eq!(lingering.add(directory(1 << 20), 0), (0..BATCH as u64).collect::<Vec<_>>());
        for ino in 0..FILES_MAX as u64 {
            assert!(lingering.add(file(1 << 30 | ino), 0).is_empty());
        }
        assert_eq!(lingering.add(file(1 << 20 | 1), 0).len(), BATCH);
        assert_eq!(lingering.take_all().len(), FILES_MAX + DIRECTORIES_MAX + 2 - 2 * BATCH);
    }
}
