//! The durable layer of the metadata: what the last checkpoint committed, and what it was for each snapshot.
//!
//! Two tables. `fs` is the tree as it is; `before` has, for a snapshot, the values that keys of the tree had when it
//! was taken and that a later checkpoint replaced. What was not replaced it has not: a look into a snapshot looks into
//! its own old values, then into those of the snapshots after it, in the order in which they were taken, and then into
//! the tree as it is. So taking a snapshot writes nothing, and a checkpoint adds to the newest one only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};
use vos_api::fs::{ROOT, SNAPSHOTS};

use crate::alloc::Held;
use crate::error::StoreError;
use crate::model::{CookieEntry, DIRECTORY, Entry, Inode, key1, key2, number_of, tag};
use crate::quotas::{self, Recount, quota_key};
use crate::snapshots::{Snapshot, is_of_tree, split, translate};
use crate::store::{Change, Key};

const TREE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("fs");
const BEFORE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("before");
/// First byte of a value of before. What has only this was not there.
const NOTHING: u8 = 0;
const VALUE: u8 = 1;
/// Old values that one checkpoint hands on, or drops, of a snapshot that was removed.
const LEAVING_KEYS: usize = 4096;
/// Bytes of keys and values that are in memory for one step, besides the one that is one too many.
const STEP_BYTES: usize = 4 << 20;

type Bytes = &'static [u8];
type Entries = Vec<(Key, Vec<u8>)>;

pub struct Base {
    tree: ReadOnlyTable<Bytes, Bytes>,
    before: ReadOnlyTable<Bytes, Bytes>,
    /// In the order in which they were taken.
    snapshots: Vec<Snapshot>,
}

impl Base {
    /// Makes the tables of an empty database.
    pub fn make(write: &WriteTransaction) -> Result<(), StoreError> {
        write.open_table(TREE)?;
        write.open_table(BEFORE)?;
        Ok(())
    }

    pub fn open(db: &Database) -> Result<Base, StoreError> {
        let read = db.begin_read()?;
        let tree = read.open_table(TREE)?;
        let mut snapshots = Vec::new();
        for entry in tree.range::<&[u8]>(bounds(&key1(tag::SNAPSHOT, 0), &[tag::SNAPSHOT + 1]))? {
            let (key, value) = entry?;
            let id = number_of(key.value(), 0).ok_or(StoreError::Damaged("snapshot key"))?;
            snapshots.push(Snapshot::decode(id, value.value())?);
        }
        Ok(Base { tree, before: read.open_table(BEFORE)?, snapshots })
    }

    /// The tree as it is.
    pub fn tree(&self) -> &ReadOnlyTable<Bytes, Bytes> {
        &self.tree
    }

    /// Those that were not removed.
    pub fn living(&self) -> impl Iterator<Item = &Snapshot> {
        self.snapshots.iter().filter(|snapshot| !snapshot.is_leaving)
    }

    pub fn has_leaving(&self) -> bool {
        self.snapshots.iter().any(|snapshot| snapshot.is_leaving)
    }

    /// The snapshot whose old values what is replaced now belongs to.
    pub fn newest(&self) -> Option<u64> {
        // What nobody looks into needs none.
        self.living().next()?;
        self.snapshots.last().map(|snapshot| snapshot.id)
    }

    /// Blocks that each living snapshot has, together: one look at each record of the bitmap, and of its changes.
    pub fn held(&self, blocks: u64) -> Result<Option<Held>, StoreError> {
        const DAMAGED: StoreError = StoreError::Damaged("bitmap of a snapshot");
        if self.living().next().is_none() {
            return Ok(None);
        }
        let (mut held, mut then) = (Held::new(blocks), BTreeMap::new());
        for entry in self.tree.range::<&[u8]>(bounds(&[tag::BITMAP], &[tag::BITMAP + 1]))? {
            let (key, value) = entry?;
            then.insert(number_of(key.value(), 0).ok_or(DAMAGED)?, value.value().to_vec());
        }
        // Going back from one to the one before; what is the same is held already.
        let mut changed: BTreeSet<u64> = then.keys().copied().collect();
        for snapshot in self.snapshots.iter().rev() {
            let (from, to) = (before(snapshot.id, &[tag::BITMAP]), before(snapshot.id, &[tag::BITMAP + 1]));
            for entry in self.before.range::<&[u8]>(bounds(&from, &to))? {
                let (key, value) = entry?;
                let chunk = number_of(key.value().get(ID_BYTES..).unwrap_or_default(), 0).ok_or(DAMAGED)?;
                match decode(value.value())? {
                    Some(bytes) => then.insert(chunk, bytes),
                    None => then.remove(&chunk),
                };
                changed.insert(chunk);
            }
            if snapshot.is_leaving {
                continue;
            }
            for chunk in std::mem::take(&mut changed) {
                if let Some(bytes) = then.get(&chunk) {
                    held.add(chunk, bytes).ok_or(DAMAGED)?;
                }
            }
        }
        Ok(Some(held))
    }

    /// What a key had when a snapshot was taken.
    pub fn get_at(&self, id: u64, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        for later in self.snapshots.iter().filter(|snapshot| snapshot.id >= id) {
            if let Some(value) = self.before.get(before(later.id, key).as_slice())? {
                return decode(value.value());
            }
        }
        Ok(self.tree.get(key)?.map(|value| value.value().to_vec()))
    }

    /// Up to `limit` entries with `from <= key < to` as they were when a snapshot was taken. Fewer than `limit` means
    /// that there are no more.
    pub fn scan_at(&self, id: u64, from: &[u8], to: &[u8], limit: usize) -> Result<Entries, StoreError> {
        let (mut found, mut low) = (Entries::new(), from.to_vec());
        while found.len() < limit && low.as_slice() < to {
            let mut round = Round::new(limit, self.snapshots.len() + 1);
            for later in self.snapshots.iter().filter(|snapshot| snapshot.id >= id) {
                let part = self.before.range::<&[u8]>(bounds(&before(later.id, &low), &before(later.id, to)))?;
                round.add(part, |key, value| Ok((key.get(ID_BYTES..).unwrap_or_default().to_vec(), decode(value)?)))?;
            }
            let part = self.tree.range::<&[u8]>(bounds(&low, to))?;
            round.add(part, |key, value| Ok((key.to_vec(), Some(value.to_vec()))))?;
            let Round { merged, cut, .. } = round;
            let known = merged.into_iter().filter(|(key, _)| cut.as_ref().is_none_or(|cut| key <= cut));
            found.extend(known.filter_map(|(key, change)| Some((key, change?))));
            let Some(mut next) = cut else { break };
            next.push(0);
            low = next;
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Inodes from `from` on, up to `limit`, that differ between two snapshots for whoever looks at them. Fewer than
    /// `limit` means that there are no more.
    pub fn changed(&self, earlier: u64, later: u64, from: u64, limit: usize) -> Result<Vec<u64>, StoreError> {
        let between = || self.snapshots.iter().filter(|snapshot| (earlier..later).contains(&snapshot.id));
        let (mut found, mut low) = (Vec::new(), key1(tag::INODE, from));
        while found.len() < limit {
            let mut round = Round::new(limit, between().count());
            for snapshot in between() {
                let end = before(snapshot.id, &[tag::INODE + 1]);
                let part = self.before.range::<&[u8]>(bounds(&before(snapshot.id, &low), &end))?;
                round.add(part, |key, value| Ok((key.get(ID_BYTES..).unwrap_or_default().to_vec(), decode(value)?)))?;
            }
            let Round { merged, cut, .. } = round;
            for (key, then) in merged.into_iter().filter(|(key, _)| cut.as_ref().is_none_or(|cut| key <= cut)) {
                // It was replaced, perhaps by what differs for this server alone.
                if !looks_the_same(then.as_deref(), self.get_at(later, &key)?.as_deref()) {
                    found.extend(number_of(&key, 0));
                }
            }
            let Some(mut next) = cut else { break };
            next.push(0);
            low = next;
        }
        found.truncate(limit);
        Ok(found)
    }

    /// A value of an inode that has a number of a snapshot, or of [`SNAPSHOTS`].
    pub fn look(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(ino) = number_of(key, 0) else { return Ok(None) };
        if ino == SNAPSHOTS {
            return self.look_at_all(key);
        }
        let (id, ino) = split(ino);
        let Some(snapshot) = self.living().find(|snapshot| snapshot.id == id) else { return Ok(None) };
        let key = with_number(key, ino);
        self.get_at(id, &key)?.map(|value| translate(snapshot, &key, value)).transpose()
    }

    /// The same of a range of keys of one such inode.
    pub fn list(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Entries, StoreError> {
        let Some(number) = number_of(from, 0) else { return Ok(Entries::new()) };
        if number == SNAPSHOTS {
            let entries = self.living().filter(|_| from.first() == Some(&tag::COOKIE)).map(|snapshot| {
                let value = CookieEntry::encode(snapshot.root(), DIRECTORY, &snapshot.name);
                (key2(tag::COOKIE, SNAPSHOTS, snapshot.cookie()), value)
            });
            return Ok(entries.filter(|(key, _)| from <= key.as_slice() && key.as_slice() < to).take(limit).collect());
        }
        let (id, ino) = split(number);
        let Some(snapshot) = self.living().find(|snapshot| snapshot.id == id) else { return Ok(Entries::new()) };
        let end = with_number(to, number_of(to, 0).map_or(u64::MAX, |to| split(to).1));
        let found = self.scan_at(id, &with_number(from, ino), &end, limit)?;
        let outer = |(key, value): (Key, Vec<u8>)| {
            let value = translate(snapshot, &key, value)?;
            Ok((with_number(&key, number), value))
        };
        found.into_iter().map(outer).collect()
    }

    /// The directory of all snapshots.
    fn look_at_all(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match key.first() {
            Some(&tag::INODE) => {
                let root = self.tree.get(key1(tag::INODE, ROOT).as_slice())?;
                let root = root.map_or(Ok(Inode::default()), |root| Inode::decode(root.value()))?;
                let count = self.living().count() as u32;
                let changed_ns = self.living().map(|snapshot| snapshot.made_ns).max().unwrap_or(root.ctime_ns);
                let inode = Inode {
                    mode: DIRECTORY | 0o755,
                    links: 2 + count,
                    uid: root.uid,
                    gid: root.gid,
                    atime_ns: changed_ns,
                    mtime_ns: changed_ns,
                    ctime_ns: changed_ns,
                    parent: ROOT,
                    entries: count.into(),
                    ..Inode::default()
                };
                Ok(Some(inode.encode()))
            }
            Some(&tag::ENTRY) => {
                let name = key.get(1 + ID_BYTES..);
                let found = self.living().find(|snapshot| Some(snapshot.name.as_slice()) == name);
                let entry =
                    |snapshot: &Snapshot| Entry { ino: snapshot.root(), cookie: snapshot.cookie(), kind: DIRECTORY };
                Ok(found.map(|snapshot| entry(snapshot).encode()))
            }
            _ => Ok(None),
        }
    }
}

/// One round of a scan over several sources, of which earlier ones count.
struct Round {
    merged: BTreeMap<Key, Change>,
    /// Entries, and bytes, of each source.
    limit: usize,
    bytes: usize,
    /// The nearest key at which a source was cut off: nothing behind it is known.
    cut: Option<Key>,
}

impl Round {
    fn new(limit: usize, sources: usize) -> Round {
        Round { merged: BTreeMap::new(), limit, bytes: STEP_BYTES / sources.max(1), cut: None }
    }

    fn add(
        &mut self,
        range: redb::Range<'_, Bytes, Bytes>,
        read: impl Fn(&[u8], &[u8]) -> Result<(Key, Change), StoreError>,
    ) -> Result<(), StoreError> {
        let (found, is_all) = part(range, self.limit, self.bytes)?;
        let mut last = None;
        for (key, value) in found {
            let (key, change) = read(&key, &value)?;
            last = Some(key.clone());
            self.merged.entry(key).or_insert(change);
        }
        if !is_all {
            self.cut = self.cut.take().into_iter().chain(last).min();
        }
        Ok(())
    }
}

/// The tables while a checkpoint writes them.
pub struct Writing<'a> {
    tree: Table<'a, Bytes, Bytes>,
    before: Table<'a, Bytes, Bytes>,
    base: &'a Base,
    /// Bytes of keys and values that came, less what went.
    pub grown: i64,
}

impl<'a> Writing<'a> {
    pub fn begin(write: &'a WriteTransaction, base: &'a Base) -> Result<Writing<'a>, StoreError> {
        Ok(Writing { tree: write.open_table(TREE)?, before: write.open_table(BEFORE)?, base, grown: 0 })
    }

    /// Changes the tree. What was there is kept for the newest snapshot, if that has nothing older.
    pub fn apply(&mut self, key: &[u8], change: &Change) -> Result<(), StoreError> {
        let newest = self.base.newest().filter(|_| is_of_tree(key));
        let old = match change {
            Some(value) => {
                self.grown += (key.len() + value.len()) as i64;
                self.tree.insert(key, value.as_slice())?
            }
            None => self.tree.remove(key)?,
        };
        if let Some(old) = &old {
            self.grown -= (key.len() + old.value().len()) as i64;
        }
        let Some(id) = newest else { return Ok(()) };
        let old = old.map(|old| old.value().to_vec());
        match (&old, change) {
            (Some(old), Some(new)) if is_same_to_snapshots(key, old, new) => Ok(()),
            // It came and went since the last checkpoint.
            (None, None) => Ok(()),
            // It came after the snapshot, and is as it was then.
            (Some(_), None) if self.was_nothing(id, key)? => self.drop_value(&before(id, key)),
            _ => self.keep(before(id, key), encode(old.as_deref())),
        }
    }

    fn was_nothing(&self, id: u64, key: &[u8]) -> Result<bool, StoreError> {
        let kept = self.before.get(before(id, key).as_slice())?;
        Ok(kept.is_some_and(|kept| kept.value() == [NOTHING]))
    }

    fn drop_value(&mut self, key: &[u8]) -> Result<(), StoreError> {
        if let Some(old) = self.before.remove(key)? {
            self.grown -= (key.len() + old.value().len()) as i64;
        }
        Ok(())
    }

    fn keep(&mut self, key: Key, value: Vec<u8>) -> Result<(), StoreError> {
        if self.before.get(key.as_slice())?.is_none() {
            self.grown += (key.len() + value.len()) as i64;
            self.before.insert(key.as_slice(), value.as_slice())?;
        }
        Ok(())
    }

    /// Goes on with the first snapshot that was removed: what it has goes to the one before it, or nowhere.
    pub fn go_on_leaving(&mut self) -> Result<(), StoreError> {
        let snapshots = &self.base.snapshots;
        let Some(at) = snapshots.iter().position(|snapshot| snapshot.is_leaving) else { return Ok(()) };
        let (earlier, [leaving, ..]) = snapshots.split_at(at) else { return Ok(()) };
        let (from, to) = (before(leaving.id, &[]), before(leaving.id + 1, &[]));
        let (found, is_all) = part(self.before.range::<&[u8]>(bounds(&from, &to))?, LEAVING_KEYS, STEP_BYTES)?;
        for (key, value) in &found {
            self.drop_value(key)?;
            if let Some(heir) = earlier.last() {
                self.keep(before(heir.id, key.get(ID_BYTES..).unwrap_or_default()), value.clone())?;
            }
        }
        if is_all {
            self.apply(&leaving.key(), &None)?;
        }
        Ok(())
    }
}

/// Keys of the tree that are changed back together.
const BACK_KEYS: usize = 1024;

impl Writing<'_> {
    /// Makes the tree what it was when a snapshot was taken, with nobody in it: no sessions, handles and locks. Later
    /// snapshots stay what they are. Answers the number of inodes.
    pub fn go_back(&mut self, id: u64) -> Result<u64, StoreError> {
        let mut low: Key = Vec::new();
        loop {
            let mut round = Round::new(BACK_KEYS, self.base.snapshots.len());
            for later in self.base.snapshots.iter().filter(|snapshot| snapshot.id >= id) {
                let end = before(later.id + 1, &[]);
                let part = self.before.range::<&[u8]>(bounds(&before(later.id, &low), &end))?;
                round.add(part, |key, value| Ok((key.get(ID_BYTES..).unwrap_or_default().to_vec(), decode(value)?)))?;
            }
            let Round { merged, cut, .. } = round;
            for (key, change) in merged.iter().filter(|(key, _)| cut.as_ref().is_none_or(|cut| *key <= cut)) {
                self.apply(key, change)?;
            }
            let Some(mut next) = cut else { break };
            next.push(0);
            low = next;
        }
        for tag in [tag::HANDLE, tag::LOCKS, tag::ORPHAN, tag::SESSION, tag::REPLY] {
            self.remove_all(tag)?;
        }
        self.leave_alone()
    }

    fn remove_all(&mut self, tag: u8) -> Result<(), StoreError> {
        loop {
            let (found, is_all) = part(self.tree.range::<&[u8]>(bounds(&[tag], &[tag + 1]))?, BACK_KEYS, STEP_BYTES)?;
            for (key, _) in &found {
                self.apply(key, &None)?;
            }
            if is_all {
                return Ok(());
            }
        }
    }

    /// Nobody has an inode open any more. Answers how many there are.
    fn leave_alone(&mut self) -> Result<u64, StoreError> {
        let (mut low, mut count, mut counted) = (vec![tag::INODE], 0, Recount::default());
        loop {
            let range = self.tree.range::<&[u8]>(bounds(&low, &[tag::INODE + 1]))?;
            let (found, is_all) = part(range, BACK_KEYS, STEP_BYTES)?;
            for (key, value) in &found {
                let inode = Inode::decode(value)?;
                count += 1;
                if inode.links == 0 {
                    let ino = number_of(key, 0).ok_or(StoreError::Damaged("inode key"))?;
                    self.apply(&key1(tag::ORPHAN, ino), &Some(Vec::new()))?;
                }
                let alone = Inode { opens: 0, ..inode };
                counted.add(&alone);
                if inode.opens > 0 {
                    self.apply(key, &Some(alone.encode()))?;
                }
            }
            let Some((last, _)) = found.last().filter(|_| !is_all) else {
                self.correct_quotas(&counted)?;
                return Ok(count);
            };
            low.clone_from(last);
            low.push(0);
        }
    }
}

impl Writing<'_> {
    /// What was open when the snapshot was taken, and had no name any more, does not count.
    fn correct_quotas(&mut self, counted: &Recount) -> Result<(), StoreError> {
        let range = self.tree.range::<&[u8]>(bounds(&quota_key(0), &[tag::QUOTA + 1]))?;
        let (found, _) = part(range, quotas::COUNT_MAX, usize::MAX)?;
        for (key, value) in &found {
            self.apply(key, &counted.corrected(quotas::number_in(key)?, value)?)?;
        }
        Ok(())
    }
}

/// The beginning of a range, as far as there are so many entries or bytes; whether that is all of it.
fn part(range: redb::Range<'_, Bytes, Bytes>, entries: usize, bytes: usize) -> Result<(Entries, bool), StoreError> {
    let (mut found, mut left) = (Entries::new(), bytes);
    for entry in range {
        let (key, value) = entry?;
        let (key, value) = (key.value().to_vec(), value.value().to_vec());
        left = left.saturating_sub(key.len() + value.len());
        found.push((key, value));
        if found.len() == entries || left == 0 {
            return Ok((found, false));
        }
    }
    Ok((found, true))
}

/// Whether who looks into a snapshot sees no difference between two values of a key: nobody has anything open there.
fn is_same_to_snapshots(key: &[u8], one: &[u8], other: &[u8]) -> bool {
    let closed = |value| Inode::decode(value).map(|inode| Inode { opens: 0, ..inode });
    let is_inode = key.first() == Some(&tag::INODE);
    one == other || is_inode && matches!((closed(one), closed(other)), (Ok(one), Ok(other)) if one == other)
}

/// The same of two inodes, or of none, for whoever sees them: with which quota they count shows nowhere.
fn looks_the_same(one: Option<&[u8]>, other: Option<&[u8]>) -> bool {
    let shown = |value: &[u8]| Inode::decode(value).map(|inode| Inode { opens: 0, quota: 0, ..inode }).ok();
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one == other || shown(one).is_some_and(|one| shown(other) == Some(one)),
        _ => false,
    }
}

const ID_BYTES: usize = size_of::<u64>();

/// Where a snapshot has the old value of a key.
fn before(id: u64, key: &[u8]) -> Key {
    [&id.to_be_bytes(), key].concat()
}

fn encode(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        Some(value) => [&[VALUE], value].concat(),
        None => vec![NOTHING],
    }
}

fn decode(bytes: &[u8]) -> Result<Change, StoreError> {
    match bytes.split_first() {
        Some((&NOTHING, [])) => Ok(None),
        Some((&VALUE, value)) => Ok(Some(value.to_vec())),
        _ => Err(StoreError::Damaged("value of a snapshot")),
    }
}

/// The same key of another inode.
fn with_number(key: &[u8], number: u64) -> Key {
    let (tag, rest) = (key.get(..1).unwrap_or_default(), key.get(1 + ID_BYTES..).unwrap_or_default());
    [tag, &number.to_be_bytes(), rest].concat()
}

fn bounds<'a>(from: &'a [u8], to: &'a [u8]) -> (Bound<&'a [u8]>, Bound<&'a [u8]>) {
    (Bound::Included(from), Bound::Excluded(to))
}
