//! The metadata: one sorted map of byte strings in three layers.
//!
//! `base` is the last durable commit of redb, `frozen` what the running checkpoint is writing into redb, `active` what
//! changed since. A read looks from the newest to the oldest. Changes are made to `active` in memory only; that they
//! survive is the log's business. [`Store::freeze`] begins a checkpoint, [`Store::commit`] ends it.
//!
//! Locks: `layers` is held for map operations only, never while redb reads its pages.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::RwLock;
use redb::{Database, Durability};
use vos_api::fs::{ROOT, SNAPSHOTS_NAME};

use crate::base::{Base, Writing};
use crate::error::StoreError;
use crate::model::{key_name, tag};
use crate::snapshots::{is_of_snapshot, is_way_in, kept_bytes_max, way_in};

pub type Key = Vec<u8>;
/// `None`: the key is gone.
pub type Change = Option<Vec<u8>>;
type Changes = BTreeMap<Key, Change>;
/// What one entry of the memory layers costs beyond its bytes, roughly.
const ENTRY_OVERHEAD: usize = 64;

pub struct Store {
    db: Database,
    layers: RwLock<Layers>,
}

struct Layers {
    active: Changes,
    active_bytes: Bytes,
    frozen: Option<Arc<Changes>>,
    /// Of what is frozen, until [`Store::counted`].
    frozen_bytes: Bytes,
    base: Arc<Base>,
}

/// What changes may add to the durable layer, counted generously.
#[derive(Clone, Copy, Default)]
struct Bytes {
    tree: usize,
    /// What was there, if a snapshot needs it.
    before: usize,
}

/// Whether the region has room for the pages that the commit before gave up, beside those of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    Plenty,
    /// They are given back first, by a commit that changes nothing: redb frees what a commit gave up with the next one,
    /// and not before that has written its own pages.
    Scarce,
}

/// Which end of a range a scan begins at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum From {
    Start,
    End,
}

/// What one round of a scan found, and where it was cut off.
type ScanPart = (Vec<(Key, Vec<u8>)>, Option<Key>);

impl Store {
    /// Takes over a database, empty or not.
    pub fn new(db: Database) -> Result<Store, StoreError> {
        let write = begin_durable(&db)?;
        Base::make(&write)?;
        write.commit()?;
        let base = Arc::new(Base::open(&db)?);
        let none = Bytes::default();
        let layers = Layers { active: BTreeMap::new(), active_bytes: none, frozen: None, frozen_bytes: none, base };
        Ok(Store { db, layers: RwLock::new(layers) })
    }

    /// What the last checkpoint left.
    pub fn base(&self) -> Arc<Base> {
        self.layers.read().base.clone()
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if is_of_snapshot(key) {
            return self.base().look(key);
        }
        let found = self.get_now(key)?;
        // A file of this name that was there before there were snapshots stays where it is.
        Ok(found.or_else(|| is_way_in(key).then(|| way_in().encode())))
    }

    /// Whether the tree has something of its own where snapshots would be found.
    pub fn has_own_way_in(&self) -> bool {
        let key = key_name(tag::ENTRY, ROOT, SNAPSHOTS_NAME);
        self.get_now(&key).is_ok_and(|found| found.is_some())
    }

    fn get_now(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let base = {
            let layers = self.layers.read();
            if let Some(change) = layers.active.get(key) {
                return Ok(change.clone());
            }
            if let Some(change) = layers.frozen.as_ref().and_then(|frozen| frozen.get(key)) {
                return Ok(change.clone());
            }
            layers.base.clone()
        };
        Ok(base.tree().get(key)?.map(|value| value.value().to_vec()))
    }

    /// Up to `limit` entries with `from <= key < to`, from one end. Fewer than `limit` means that there are no more.
    pub fn scan(&self, from: &[u8], to: &[u8], limit: usize, end: From) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        if is_of_snapshot(from) {
            // Only changes begin at the end.
            return if end == From::Start { self.base().list(from, to, limit) } else { Ok(Vec::new()) };
        }
        let mut found = Vec::new();
        let (mut low, mut high) = (from.to_vec(), to.to_vec());
        while found.len() < limit && low < high {
            let (part, reached) = self.scan_part(&low, &high, limit - found.len(), end)?;
            found.extend(part);
            match (reached, end) {
                (None, _) => break,
                (Some(key), From::Start) => {
                    low = key;
                    low.push(0);
                }
                (Some(key), From::End) => high = key,
            }
        }
        Ok(found)
    }

    /// One round of [`Store::scan`]: what it found, and how far it got when that was not the end.
    fn scan_part(&self, from: &[u8], to: &[u8], limit: usize, end: From) -> Result<ScanPart, StoreError> {
        let mut merged: BTreeMap<Key, Change> = BTreeMap::new();
        // The nearest key at which some layer was cut off: nothing beyond it is known.
        let mut cut: Option<Key> = None;
        let base = {
            let layers = self.layers.read();
            if let Some(frozen) = &layers.frozen {
                collect(frozen, from, to, limit, end, &mut merged, &mut cut);
            }
            collect(&layers.active, from, to, limit, end, &mut merged, &mut cut);
            layers.base.clone()
        };
        let range = base.tree().range::<&[u8]>((Bound::Included(from), Bound::Excluded(to)))?;
        let mut add = |key: &[u8], value: &[u8]| {
            merged.entry(key.to_vec()).or_insert_with(|| Some(value.to_vec()));
        };
        let mut count = 0;
        let mut last = None;
        let mut step = |entry: redb::Result<_>| -> Result<bool, StoreError> {
            let (key, value): (redb::AccessGuard<&[u8]>, redb::AccessGuard<&[u8]>) = entry?;
            add(key.value(), value.value());
            count += 1;
            last = Some(key.value().to_vec());
            Ok(count == limit)
        };
        match end {
            From::Start => {
                for entry in range {
                    if step(entry)? {
                        break;
                    }
                }
            }
            From::End => {
                for entry in range.rev() {
                    if step(entry)? {
                        break;
                    }
                }
            }
        }
        if count == limit {
            cut = nearer(cut, last, end);
        }
        Ok(within(merged, cut, limit, end))
    }

    /// Lays the changes of one operation over what is there.
    pub fn apply(&self, changes: impl IntoIterator<Item = (Key, Change)>) {
        let mut layers = self.layers.write();
        for (key, change) in changes {
            layers.active_bytes.tree += key.len() + change.as_ref().map_or(0, Vec::len) + ENTRY_OVERHEAD;
            let before = kept_bytes_max(&key);
            if layers.active.insert(key, change).is_none() {
                layers.active_bytes.before += before;
            }
        }
    }

    /// Bytes that the next checkpoint may add, counted generously.
    pub fn active_bytes(&self) -> usize {
        self.layers.read().active_bytes.tree
    }

    /// Bytes that the running checkpoint and the next one may add, counted generously.
    pub fn pending_bytes(&self) -> usize {
        let layers = self.layers.read();
        let kept =
            if layers.base.newest().is_some() { layers.active_bytes.before + layers.frozen_bytes.before } else { 0 };
        layers.active_bytes.tree + layers.frozen_bytes.tree + kept
    }

    /// What the last checkpoint added is counted with what is committed from now on.
    pub fn counted(&self) {
        self.layers.write().frozen_bytes = Bytes::default();
    }

    /// Sets the changes made so far aside for [`Store::commit`]. No second freeze before that.
    pub fn freeze(&self) -> Arc<Changes> {
        let mut layers = self.layers.write();
        debug_assert!(layers.frozen.is_none());
        let frozen = Arc::new(std::mem::take(&mut layers.active));
        layers.frozen_bytes = std::mem::take(&mut layers.active_bytes);
        layers.frozen = Some(frozen.clone());
        frozen
    }

    /// Makes the frozen changes and `extra` durable in one step, and `last` of the bytes by which the store grew, which
    /// it answers.
    pub fn commit(
        &self,
        frozen: &Changes,
        extra: &Changes,
        room: Room,
        last: impl FnOnce(i64) -> (Key, Change),
    ) -> Result<i64, StoreError> {
        if room == Room::Scarce {
            begin_durable(&self.db)?.commit()?;
        }
        let (write, base) = (begin_durable(&self.db)?, self.base());
        let grown = {
            let mut tables = Writing::begin(&write, &base)?;
            for (key, change) in frozen.iter().chain(extra) {
                tables.apply(key, change)?;
            }
            tables.go_on_leaving()?;
            let grown = tables.grown;
            let (key, change) = last(grown);
            tables.apply(&key, &change)?;
            grown
        };
        write.commit()?;
        let base = Arc::new(Base::open(&self.db)?);
        let mut layers = self.layers.write();
        layers.base = base;
        layers.frozen = None;
        Ok(grown)
    }
}

impl Store {
    /// Makes the tree what it was when a snapshot was taken, and true of it what `extra` makes of the number of inodes
    /// and of the bytes by which the store grew. Nothing may be changed in memory.
    pub fn go_back(&self, id: u64, extra: impl FnOnce(u64, i64) -> Changes) -> Result<(), StoreError> {
        let (write, base) = (begin_durable(&self.db)?, self.base());
        {
            let mut tables = Writing::begin(&write, &base)?;
            let inodes = tables.go_back(id)?;
            for (key, change) in &extra(inodes, tables.grown) {
                tables.apply(key, change)?;
            }
        }
        Ok(write.commit()?)
    }
}

fn begin_durable(db: &Database) -> Result<redb::WriteTransaction, StoreError> {
    let mut write = db.begin_write()?;
    write.set_durability(Durability::Immediate)?;
    // Without it, opening after a crash walks the whole store.
    write.set_quick_repair(true);
    Ok(write)
}

fn collect(
    layer: &Changes,
    from: &[u8],
    to: &[u8],
    limit: usize,
    end: From,
    merged: &mut Changes,
    cut: &mut Option<Key>,
) {
    let range = layer.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)));
    let mut count = 0;
    let mut last = None;
    let mut step = |key: &Key, change: &Change| {
        merged.insert(key.clone(), change.clone());
        last = Some(key.clone());
        count += 1;
        count == limit
    };
    match end {
        From::Start => range.into_iter().any(|(key, change)| step(key, change)),
        From::End => range.rev().any(|(key, change)| step(key, change)),
    };
    if count == limit {
        *cut = nearer(cut.take(), last, end);
    }
}

fn nearer(one: Option<Key>, other: Option<Key>, end: From) -> Option<Key> {
    match (one, other, end) {
        (Some(one), Some(other), From::Start) => Some(one.min(other)),
        (Some(one), Some(other), From::End) => Some(one.max(other)),
        (one, other, _) => one.or(other),
    }
}

/// The living entries up to the cut, and the key at which the next round goes on.
fn within(merged: Changes, cut: Option<Key>, limit: usize, end: From) -> (Vec<(Key, Vec<u8>)>, Option<Key>) {
    let inside = |key: &Key| match (&cut, end) {
        (None, _) => true,
        (Some(cut), From::Start) => key <= cut,
        (Some(cut), From::End) => key >= cut,
    };
    let living = |(key, change): (Key, Change)| change.map(|value| (key, value));
    let mut found: Vec<_> = match end {
        From::Start => merged.into_iter().filter(|(key, _)| inside(key)).filter_map(living).collect(),
        From::End => merged.into_iter().rev().filter(|(key, _)| inside(key)).filter_map(living).collect(),
    };
    let reached = if found.len() > limit {
        found.truncate(limit);
        found.last().map(|(key, _)| key.clone())
    } else {
        cut
    };
    (found, reached)
}
