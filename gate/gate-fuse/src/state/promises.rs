//! Promises in the state object ([`crate::behind`]): a record each, and bytes of writes, or names, in blocks of 4 KiB.
//!
//! The bytes are written first, then the record, which counts only if its check value does. A record is emptied once
//! the server has what it promises.

use std::collections::HashMap;

use vos_api::fs::{Attr, BEHIND_COUNT_MAX, SetAttr};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{State, StateError, mix};
use crate::behind::names::{Goal, Made, Naming, What};
use crate::behind::{Change, Promise};

const RECORD_BYTES: usize = 128;
const RECORDS: usize = BEHIND_COUNT_MAX;
const RECORDS_AT: u64 = super::TAKEN_END.next_multiple_of(4096);
const BLOCK: usize = 4096;
/// Twice what may wait: what is short takes a block of its own.
const BLOCKS: usize = 512;
const BLOCKS_AT: u64 = RECORDS_AT + (RECORDS * RECORD_BYTES) as u64;
pub const END: u64 = BLOCKS_AT + (BLOCKS * BLOCK) as u64;

const WRITE: u32 = 1;
const SET: u32 = 2;
const MADE: u32 = 3;
const REMOVED: u32 = 4;
const MOVED: u32 = 5;
const UNLINKED: u32 = 6;
const LINKED: u32 = 7;
const MOVED_TO: u32 = 8;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    id: u64,
    key: u64,
    ino: u64,
    time_ns: u64,
    before_ns: u64,
    offset: u64,
    kind: u32,
    bytes: u32,
    block: u64,
    set: [u8; 48],
    /// 0: that of its inode.
    chain: u64,
    check: u64,
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES && size_of::<SetAttr>() == 48);
const _: () = assert!(BLOCKS_AT.is_multiple_of(4096));

/// Of a changed name, where a change of attributes has its fields; the inode lies in `offset`. The bytes are the name
/// and what follows it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct NameFields {
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    /// 0: nothing.
    replaced: u64,
    name_bytes: u64,
    /// Of a move to another directory.
    goal: u64,
    goal_before_ns: u64,
}

const _: () = assert!(size_of::<NameFields>() == size_of::<SetAttr>());

impl NameFields {
    fn of(naming: &Naming) -> (u32, NameFields) {
        let fields = NameFields { name_bytes: naming.name.len() as u64, ..NameFields::new_zeroed() };
        match &naming.what {
            What::Made(Made { mode, uid, gid, rdev, .. }) => {
                (MADE, NameFields { mode: *mode, uid: *uid, gid: *gid, rdev: *rdev, ..fields })
            }
            What::Removed => (REMOVED, fields),
            What::Unlinked => (UNLINKED, fields),
            What::Linked(_) => (LINKED, fields),
            What::Moved { replaced, goal: None, .. } => {
                (MOVED, NameFields { replaced: replaced.unwrap_or(0), ..fields })
            }
            What::Moved { replaced, goal: Some(goal), .. } => {
                let (replaced, goal, goal_before_ns) = (replaced.unwrap_or(0), goal.directory, goal.before_ns);
                (MOVED_TO, NameFields { replaced, goal, goal_before_ns, ..fields })
            }
        }
    }

    fn naming(&self, kind: u32, ino: u64, bytes: &[u8]) -> Option<Naming> {
        let (name, more) = bytes.split_at_checked(usize::try_from(self.name_bytes).ok()?)?;
        let NameFields { mode, uid, gid, rdev, replaced, goal, goal_before_ns, .. } = *self;
        let what = match kind {
            MADE => What::Made(Made { mode, uid, gid, rdev, target: more.to_vec() }),
            REMOVED => What::Removed,
            UNLINKED => What::Unlinked,
            LINKED => What::Linked(Attr::read_from_bytes(more).ok()?),
            MOVED | MOVED_TO => {
                let goal = Goal { directory: goal, before_ns: goal_before_ns };
                let (replaced, goal) = (Some(replaced).filter(|ino| *ino != 0), (kind == MOVED_TO).then_some(goal));
                What::Moved { to: more.to_vec(), replaced, goal }
            }
            _ => return None,
        };
        Some(Naming { name: name.to_vec(), ino, what })
    }
}

/// Which places are free.
#[derive(Default)]
pub struct Shelf {
    free: Vec<usize>,
    /// Record and blocks of a promise.
    taken: HashMap<u64, (usize, std::ops::Range<usize>)>,
    is_used: Vec<bool>,
}

impl Shelf {
    /// The first blocks in a row that have room for so many bytes.
    fn room(&self, bytes: usize) -> Option<std::ops::Range<usize>> {
        let count = bytes.div_ceil(BLOCK);
        let mut from = 0;
        for (at, is_used) in self.is_used.iter().enumerate() {
            if at - from == count {
                break;
            }
            if *is_used {
                from = at + 1;
            }
        }
        (from + count <= self.is_used.len()).then_some(from..from + count)
    }

    fn set(&mut self, blocks: std::ops::Range<usize>, is_used: bool) {
        self.is_used.get_mut(blocks).into_iter().flatten().for_each(|used| *used = is_used);
    }
}

impl State {
    /// Writes a promise down. `false`: there is no room for it.
    pub fn promise(&mut self, promise: &Promise) -> Result<bool, StateError> {
        let Some(blocks) = self.shelf.room(promise.change.len()) else { return Ok(false) };
        let Some(slot) = self.shelf.free.pop() else { return Ok(false) };
        let Promise { id, key, ino, time_ns, before_ns, .. } = *promise;
        let chain = if promise.chain == ino { 0 } else { promise.chain };
        let record = Record { id, key, ino, chain, time_ns, before_ns, ..Record::new_zeroed() };
        let record = Record { block: blocks.start as u64, bytes: promise.change.len() as u32, ..record };
        let bytes_at = BLOCKS_AT + (blocks.start * BLOCK) as u64;
        let mut record = match &promise.change {
            Change::Write { offset, bytes } => {
                self.write(bytes, bytes_at)?;
                Record { kind: WRITE, offset: *offset, ..record }
            }
            Change::Name(naming) => {
                self.write(&[naming.name.as_slice(), naming.kept()].concat(), bytes_at)?;
                let (kind, fields) = NameFields::of(naming);
                let mut record = Record { kind, offset: naming.ino, ..record };
                record.set.copy_from_slice(fields.as_bytes());
                record
            }
            // They have a place of their own.
            Change::Lock(_) => return Ok(false),
            Change::Set(wanted) => {
                let mut record = Record { kind: SET, ..record };
                record.set.copy_from_slice(wanted.as_bytes());
                record
            }
        };
        record.check = check_of(&record);
        self.write(record.as_bytes(), RECORDS_AT + (slot * RECORD_BYTES) as u64)?;
        self.shelf.set(blocks.clone(), true);
        self.shelf.taken.insert(id, (slot, blocks));
        Ok(true)
    }

    /// The server has it, or it is given up.
    pub fn forget_promise(&mut self, id: u64) -> Result<(), StateError> {
        let Some((slot, blocks)) = self.shelf.taken.remove(&id) else { return Ok(()) };
        self.shelf.set(blocks, false);
        self.shelf.free.push(slot);
        self.write(&[0; RECORD_BYTES], RECORDS_AT + (slot * RECORD_BYTES) as u64)
    }

    /// What gates before this one promised and did not tell, in order.
    pub(super) fn load_promises(&mut self) -> Result<(), StateError> {
        let mut bytes = vec![0; RECORDS * RECORD_BYTES];
        self.read(&mut bytes, RECORDS_AT)?;
        self.shelf.is_used = vec![false; BLOCKS];
        for (slot, record) in bytes.chunks_exact(RECORD_BYTES).enumerate().rev() {
            let found = match Record::read_from_bytes(record) {
                Ok(record) if record.id != 0 && record.check == check_of(&record) => self.load_promise(&record)?,
                _ => None,
            };
            let Some((promise, blocks)) = found else {
                self.shelf.free.push(slot);
                continue;
            };
            self.shelf.set(blocks.clone(), true);
            self.shelf.taken.insert(promise.id, (slot, blocks));
            self.inherited_promises.push(promise);
        }
        self.inherited_promises.sort_by_key(|promise| promise.id);
        Ok(())
    }

    fn load_promise(&self, record: &Record) -> Result<Option<(Promise, std::ops::Range<usize>)>, StateError> {
        let Record { id, key, ino, time_ns, before_ns, offset, .. } = *record;
        let mut bytes = vec![0; (record.bytes as usize).min(BLOCKS * BLOCK)];
        let first = usize::try_from(record.block).unwrap_or(usize::MAX);
        let end = first.saturating_add(bytes.len().div_ceil(BLOCK));
        if end > BLOCKS {
            return Ok(None);
        }
        self.read(&mut bytes, BLOCKS_AT + (first * BLOCK) as u64)?;
        let change = match record.kind {
            WRITE => Some(Change::Write { offset, bytes }),
            SET => SetAttr::read_from_bytes(&record.set).ok().map(Change::Set),
            kind => {
                let fields = NameFields::read_from_bytes(&record.set).ok();
                fields.and_then(|fields| fields.naming(kind, offset, &bytes)).map(Change::Name)
            }
        };
        let chain = if record.chain == 0 { ino } else { record.chain };
        Ok(change.map(|change| (Promise { id, key, ino, chain, time_ns, before_ns, change }, first..end)))
    }
}

fn check_of(record: &Record) -> u64 {
    let Record { id, key, ino, time_ns, before_ns, offset, block, .. } = *record;
    let sizes = u64::from(record.kind) << 32 | u64::from(record.bytes);
    let set = record.set.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let chain = Some(record.chain).filter(|chain| *chain != 0);
    let words = [id, key, ino, time_ns, before_ns, offset, block, sizes].into_iter().chain(set).chain(chain);
    let words: Vec<u64> = words.collect();
    mix(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(state: &State) -> State {
        State::open(state.fd.try_clone().expect("clone")).expect("open")
    }

    fn promise(id: u64, change: Change) -> Promise {
        Promise { id, key: 2 * id, ino: 5, chain: 5, time_ns: 7, before_ns: 6, change }
    }

    fn naming(ino: u64, what: What) -> Change {
        Change::Name(Naming { name: b"name".to_vec(), ino, what })
    }

    fn elsewhere(ino: u64, replaced: Option<u64>) -> Change {
        let goal = Some(Goal { directory: 77, before_ns: 5 });
        naming(ino, What::Moved { to: b"there".to_vec(), replaced, goal })
    }

    #[test]
    fn next_gate_finds_what_was_promised_and_not_told() {
        let object = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut state = State::open(object).expect("open");
        let wanted = SetAttr { mode: 0o600.into(), ..SetAttr::new_zeroed() };
        let all = [
            promise(3, Change::Write { offset: 9, bytes: vec![1; 5000] }),
            promise(4, Change::Set(wanted)),
            promise(5, Change::Write { offset: 10, bytes: vec![2; 1] }),
            promise(6, naming(8, What::Made(Made { mode: 1, uid: 2, gid: 3, rdev: 4, target: vec![5; 4095] }))),
            promise(7, naming(9, What::Removed)),
            promise(8, naming(8, What::Moved { to: b"else".to_vec(), replaced: Some(9), goal: None })),
            promise(9, naming(8, What::Moved { to: b"where".to_vec(), replaced: None, goal: None })),
            promise(11, naming(8, What::Linked(Attr { links: 2.into(), ..Attr::new_zeroed() }))),
            promise(12, naming(8, What::Unlinked)),
            Promise { chain: 4, ..promise(13, elsewhere(8, Some(9))) },
            promise(14, elsewhere(8, None)),
        ];
        for promise in &all {
            assert!(state.promise(promise).expect("written"));
        }
        let mut state = again(&state);
        assert_eq!(state.inherited_promises, all);
        state.forget_promise(3).expect("written");
        let mut state = again(&state);
        assert_eq!(state.inherited_promises, all[1..]);
        assert!(state.promise(&promise(10, Change::Write { offset: 0, bytes: vec![3; 6000] })).expect("written"));
        assert_eq!(again(&state).inherited_promises.len(), all.len());
    }

    #[test]
    fn what_does_not_fit_is_not_promised_and_what_was_told_makes_room() {
        let object = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut state = State::open(object).expect("open");
        let write = |id, bytes| promise(id, Change::Write { offset: 0, bytes: vec![id as u8; bytes] });
        for id in 1..=2 {
            assert!(state.promise(&write(id, BLOCKS / 2 * BLOCK)).expect("written"));
        }
        assert!(!state.promise(&write(3, 1)).expect("refused"));
        state.forget_promise(1).expect("written");
        let mut id = 3;
        while state.promise(&write(id, 1)).expect("written") {
            id += 1;
        }
        assert_eq!(id - 3, RECORDS as u64 - 1);
        assert_eq!(again(&state).inherited_promises.len(), RECORDS);
    }
}
