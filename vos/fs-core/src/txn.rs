//! One operation's changes while they are being collected: reads see them, nobody else does. Either all of them
//! become a log record, or they are forgotten.

use std::collections::BTreeMap;

use vos_api::fs::NAME_BYTES_MAX;

use crate::error::Errno;
use crate::extents::{Run, Window, push_block};
use crate::log::{Counters, DataWrite, Record};
use crate::model::{Entry, Inode, key_name, key1, key2, tag};
use crate::snapshots::{is_of_snapshot, is_way_in};
use crate::store::{Change, From, Key, Store};

pub struct Txn<'a> {
    store: &'a Store,
    changes: BTreeMap<Key, Change>,
    pub allocated: Vec<Run>,
    pub freed: Vec<Run>,
    /// Data that goes to the volume together with the record.
    pub writes: Vec<DataWrite>,
    pub counters: Counters,
    /// Bytes of `changes`, kept so that steps can stop in time.
    weight: usize,
}

impl<'a> Txn<'a> {
    pub fn new(store: &'a Store, counters: Counters) -> Txn<'a> {
        let (changes, writes) = (BTreeMap::new(), Vec::new());
        Txn { store, changes, allocated: Vec::new(), freed: Vec::new(), writes, counters, weight: 0 }
    }

    /// As it was before this operation.
    pub fn store(&self) -> &Store {
        self.store
    }

    /// Bytes the record will have, not less.
    pub fn weight(&self) -> usize {
        self.weight + 16 * (self.allocated.len() + self.freed.len()) + 64
    }

    pub fn into_record(self) -> Record {
        Record {
            counters: self.counters,
            allocated: self.allocated,
            freed: self.freed,
            changes: self.changes.into_iter().collect(),
        }
    }

    /// Nothing may.
    pub fn changes_snapshots(&self) -> bool {
        let is_shown = |key: &Key| is_of_snapshot(key) || is_way_in(key) && !self.store.has_own_way_in();
        self.changes.keys().any(is_shown)
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self.changes.get(key) {
            Some(change) => Ok(change.clone()),
            None => Ok(self.store.get(key)?),
        }
    }

    /// Entries as they were before this operation.
    pub fn scan_stored(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Key, Vec<u8>)>, Errno> {
        Ok(self.store.scan(from, to, limit, From::Start)?)
    }

    /// Inodes that change, each as it was and as it will be.
    pub fn changed_inodes(&self) -> Result<Vec<(Change, Change)>, Errno> {
        let changed = self.changes.range(vec![tag::INODE]..vec![tag::INODE + 1]);
        changed.map(|(key, new)| Ok((self.store.get(key)?, new.clone()))).collect()
    }

    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.weight += 6 + key.len() + value.len();
        self.changes.insert(key, Some(value));
    }

    pub fn delete(&mut self, key: Key) {
        self.weight += 6 + key.len();
        self.changes.insert(key, None);
    }

    pub fn inode(&self, ino: u64) -> Result<Inode, Errno> {
        let bytes = self.get(&key1(tag::INODE, ino))?.ok_or(Errno::Gone)?;
        Ok(Inode::decode(&bytes)?)
    }

    pub fn directory(&self, ino: u64) -> Result<Inode, Errno> {
        let inode = self.inode(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Errno::NotDirectory) }
    }

    pub fn put_inode(&mut self, ino: u64, inode: &Inode) {
        self.put(key1(tag::INODE, ino), inode.encode());
    }

    pub fn entry(&self, parent: u64, name: &[u8]) -> Result<Option<Entry>, Errno> {
        match self.get(&key_name(tag::ENTRY, parent, name))? {
            Some(bytes) => Ok(Some(Entry::decode(&bytes)?)),
            None => Ok(None),
        }
    }

    pub fn window(&self, ino: u64, window: u64) -> Result<Option<Window>, Errno> {
        match self.get(&key2(tag::EXTENTS, ino, window))? {
            Some(bytes) => Ok(Some(Window::decode(&bytes)?)),
            None => Ok(None),
        }
    }

    pub fn put_window(&mut self, ino: u64, number: u64, window: &Window) {
        let key = key2(tag::EXTENTS, ino, number);
        if window.is_empty() { self.delete(key) } else { self.put(key, window.encode()) }
    }

    pub fn free_block(&mut self, block: u64) {
        push_block(&mut self.freed, block);
    }
}

/// A name, if it may be created.
pub fn checked(name: &[u8]) -> Result<&[u8], Errno> {
    check_name(name).map(|()| name)
}

/// A name as it may be created or looked up.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NameTooLong);
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::Invalid);
    }
    Ok(())
}
