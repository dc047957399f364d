//! Locks of files that nobody else has: this gate keeps them, and the server knows of none.
//!
//! Pure. They lie in the state object as well ([`crate::state`]), from before their programs are answered.

use std::collections::HashMap;

use file_locks::{Held, LockTable};

/// Inodes of which it is remembered that the server was asked for locks of them.
const ASKED_MAX: usize = 4096;

#[derive(Default)]
pub struct KeptLocks {
    tables: HashMap<u64, LockTable>,
    /// When the server was last asked for a lock, or answered, by inode; of others before `floor`.
    asked: HashMap<u64, u64>,
    now: u64,
    floor: u64,
}

impl KeptLocks {
    /// Whether anybody has a lock of it.
    pub fn has(&self, ino: u64) -> bool {
        self.tables.contains_key(&ino)
    }

    pub fn inos(&self) -> Vec<u64> {
        self.tables.keys().copied().collect()
    }

    pub fn table(&self, ino: u64) -> LockTable {
        self.tables.get(&ino).cloned().unwrap_or_default()
    }

    pub fn put(&mut self, ino: u64, table: LockTable) {
        if table.is_empty() {
            self.tables.remove(&ino);
        } else {
            self.tables.insert(ino, table);
        }
    }

    /// A request for a lock goes to the server, or is answered by it.
    pub fn asks(&mut self, ino: u64) {
        self.now += 1;
        if self.asked.len() >= ASKED_MAX {
            self.asked.clear();
            self.floor = self.now;
        }
        self.asked.insert(ino, self.now);
    }

    /// When that was last so. What an answer says of all locks counts if it is the same as when it was asked for: the
    /// server does not answer in the order in which it does things.
    pub fn asked(&self, ino: u64) -> u64 {
        self.asked.get(&ino).copied().unwrap_or(self.floor)
    }

    /// They are the server's from now on.
    pub fn take(&mut self, ino: u64) -> Vec<Held> {
        self.tables.remove(&ino).map(|table| table.ranges().to_vec()).unwrap_or_default()
    }
}
