//! Locks in the state object that this gate keeps ([`crate::kept`]): a record each.
//!
//! What a change leaves is written before what it replaces is emptied. A gate that dies in between leaves both, and the
//! one that follows sets them in the order in which they were written; it is asked once more what was not answered.

use std::collections::HashMap;

use file_locks::Held;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{State, StateError, mix};

const RECORD_BYTES: usize = 64;
/// Of all files together.
pub const RECORDS: usize = 256;
const AT: u64 = super::promises::END.next_multiple_of(4096);
pub const END: u64 = AT + (RECORDS * RECORD_BYTES) as u64;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    ino: u64,
    handle: u64,
    owner: u64,
    start: u64,
    end: u64,
    kind: u32,
    pid: u32,
    order: u64,
    check: u64,
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

#[derive(Default)]
pub struct Shelf {
    free: Vec<usize>,
    taken: HashMap<(u64, Held), usize>,
    last_order: u64,
}

impl State {
    /// Writes down what the locks of a file are after a change. `false`: there is no room, and nothing was written.
    pub fn keep_locks(&mut self, ino: u64, before: &[Held], after: &[Held]) -> Result<bool, StateError> {
        let new: Vec<Held> = after.iter().filter(|held| !before.contains(held)).copied().collect();
        if new.len() > self.locks.free.len() {
            return Ok(false);
        }
        for held in new {
            let Some(slot) = self.locks.free.pop() else { return Ok(false) };
            self.locks.last_order += 1;
            let Held { handle, owner, start, end, kind, pid, .. } = held;
            let order = self.locks.last_order;
            let record = Record { ino, handle, owner, start, end, kind, pid, order, check: 0 };
            self.write(Record { check: check_of(&record), ..record }.as_bytes(), at(slot))?;
            self.locks.taken.insert((ino, held), slot);
        }
        before.iter().filter(|held| !after.contains(held)).try_for_each(|held| self.forget_lock(ino, held))?;
        Ok(true)
    }

    /// The server has it, or it is given up.
    pub fn forget_lock(&mut self, ino: u64, held: &Held) -> Result<(), StateError> {
        let Some(slot) = self.locks.taken.remove(&(ino, *held)) else { return Ok(()) };
        self.locks.free.push(slot);
        self.write(&[0; RECORD_BYTES], at(slot))
    }

    /// A number for what tells the server of it, the same for all gates.
    pub fn place_of_lock(&self, ino: u64, held: &Held) -> Option<usize> {
        self.locks.taken.get(&(ino, *held)).copied()
    }

    pub(super) fn load_locks(&mut self) -> Result<(), StateError> {
        let mut bytes = vec![0; RECORDS * RECORD_BYTES];
        self.read(&mut bytes, AT)?;
        let mut found = Vec::new();
        for (slot, record) in bytes.chunks_exact(RECORD_BYTES).enumerate().rev() {
            match Record::read_from_bytes(record) {
                Ok(record) if record.ino != 0 && record.check == check_of(&record) => found.push((slot, record)),
                _ => self.locks.free.push(slot),
            }
        }
        found.sort_by_key(|(_, record)| record.order);
        self.locks.last_order = found.last().map_or(0, |(_, record)| record.order);
        for (slot, record) in found {
            let Record { ino, handle, owner, start, end, kind, pid, .. } = record;
            let held = Held { session: 0, handle, owner, start, end, kind, pid };
            self.locks.taken.insert((ino, held), slot);
            self.inherited_locks.push((ino, held));
        }
        Ok(())
    }

    /// What gates before this one kept, in the order in which it was set.
    pub fn inherited_locks(&mut self) -> Vec<(u64, Held)> {
        std::mem::take(&mut self.inherited_locks)
    }
}

fn at(slot: usize) -> u64 {
    AT + (slot * RECORD_BYTES) as u64
}

fn check_of(record: &Record) -> u64 {
    let Record { ino, handle, owner, start, end, kind, pid, order, .. } = *record;
    mix(&[ino, handle, owner, start, end, u64::from(kind) << 32 | u64::from(pid), order])
}

#[cfg(test)]
mod tests {
    use file_locks::{LockTable, UNLOCK, WRITE};

    use super::*;

    fn again(state: &State) -> Vec<(u64, Held)> {
        State::open(state.fd.try_clone().expect("clone")).expect("open").inherited_locks()
    }

    fn held(start: u64, end: u64, kind: u32) -> Held {
        Held { session: 0, handle: 3, owner: 9, start, end, kind, pid: 4 }
    }

    #[test]
    fn next_gate_finds_the_locks_in_the_order_in_which_they_were_set() {
        let object = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut state = State::open(object).expect("open");
        let mut table = LockTable::default();
        for wanted in [held(0, 99, WRITE), held(40, 59, UNLOCK), held(45, 50, WRITE)] {
            let before = table.ranges().to_vec();
            table.set(wanted).expect("set");
            assert!(state.keep_locks(5, &before, table.ranges()).expect("written"));
        }
        let found = again(&state);
        let mut other = LockTable::default();
        found.iter().for_each(|(ino, held)| {
            assert_eq!(*ino, 5);
            other.set(*held).expect("set");
        });
        assert_eq!(other, table);
        assert!(state.keep_locks(5, table.ranges(), &[]).expect("written"));
        assert_eq!(again(&state), []);
    }

    #[test]
    fn what_has_no_room_is_not_kept() {
        let object = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let mut state = State::open(object).expect("open");
        let many: Vec<Held> = (0..RECORDS as u64).map(|number| held(2 * number, 2 * number, WRITE)).collect();
        assert!(state.keep_locks(5, &[], &many).expect("written"));
        assert!(!state.keep_locks(6, &[], &many[..1]).expect("refused"));
        state.forget_lock(5, &many[0]).expect("written");
        assert!(state.keep_locks(6, &[], &many[..1]).expect("written"));
        assert_eq!(again(&state).len(), RECORDS);
    }
}
