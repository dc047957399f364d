//! Record locks and flocks.
//!
//! The locks that are held are part of the metadata (one record per inode), changed by logged operations: they
//! survive a restart. Requests that wait are state of this life only: their sessions send them again.
//!
//! An owner whose top bit is set is a flock; it conflicts with flocks only. Deadlock is looked for among record locks:
//! a request that would close a circle of waiting owners is refused. Flocks need no such look: an owner that wants
//! another kind and cannot have it at once loses what it has first, see [`Table::give_up`].

use std::collections::{HashMap, HashSet};

use vos_api::fs::Lock;
use zerocopy::{FromBytes, IntoBytes};

use crate::core::Fs;
use crate::error::Errno;
use crate::model::{Reader, key, key1, number_of, tag};
use crate::store::From;
use crate::txn::Txn;

#[cfg(test)]
const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const UNLOCK: u32 = 2;
const FLOCK: u64 = 1 << 63;
/// Ranges held on one file: more would make its record too large.
const LOCKS_PER_FILE_MAX: usize = 8192;
/// Requests that may wait.
const WAITING_MAX: usize = 4096;
const STEP_FILES: usize = 256;
const HELD_BYTES: usize = 16 + size_of::<Lock>();

/// Goes on with a request that waited; called without locks.
type Resume = Box<dyn FnOnce() + Send>;

/// A range that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub session: u64,
    /// Through which open file it was set; it goes with it. 0: none.
    pub handle: u64,
    pub owner: u64,
    pub start: u64,
    /// Inclusive.
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

impl Held {
    pub fn new(session: u64, handle: u64, lock: &Lock) -> Result<Held, Errno> {
        let held = Held {
            session,
            handle,
            owner: lock.owner.get(),
            start: lock.start.get(),
            end: lock.end.get(),
            kind: lock.kind.get(),
            pid: lock.pid.get(),
        };
        if held.start > held.end || held.kind > UNLOCK { Err(Errno::Invalid) } else { Ok(held) }
    }

    pub fn to_lock(self) -> Lock {
        Lock {
            owner: self.owner.into(),
            start: self.start.into(),
            end: self.end.into(),
            kind: self.kind.into(),
            pid: self.pid.into(),
        }
    }

    fn who(&self) -> (u64, u64) {
        (self.session, self.owner)
    }

    pub fn is_flock(&self) -> bool {
        self.owner & FLOCK != 0
    }

    fn conflicts(&self, other: &Held) -> bool {
        self.who() != other.who()
            && self.is_flock() == other.is_flock()
            && self.start <= other.end
            && other.start <= self.end
            && (self.kind == WRITE || other.kind == WRITE)
    }
}

/// Requests that wait for a lock.
#[derive(Default)]
pub struct Waiting {
    requests: Vec<Parked>,
    next: u64,
}

struct Parked {
    id: u64,
    ino: u64,
    wanted: Held,
    sequence: u64,
    blocked_by: HashSet<(u64, u64)>,
    retry: Resume,
    cancel: Resume,
}

/// The locks of one inode.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Table(Vec<Held>);

impl Table {
    pub fn load(txn: &Txn<'_>, ino: u64) -> Result<Table, Errno> {
        match txn.get(&key1(tag::LOCKS, ino))? {
            Some(bytes) => Table::decode(&bytes).ok_or(Errno::Io),
            None => Ok(Table::default()),
        }
    }

    pub fn store(&self, txn: &mut Txn<'_>, ino: u64) {
        let key = key1(tag::LOCKS, ino);
        if self.0.is_empty() { txn.delete(key) } else { txn.put(key, self.encode()) }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len() * HELD_BYTES);
        for held in &self.0 {
            out.extend_from_slice(&held.session.to_le_bytes());
            out.extend_from_slice(&held.handle.to_le_bytes());
            out.extend_from_slice(held.to_lock().as_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Table> {
        let mut reader = Reader(bytes);
        let mut table = Table::default();
        while !reader.0.is_empty() {
            let (session, handle) = (reader.u64()?, reader.u64()?);
            let lock = Lock::read_from_bytes(reader.take(size_of::<Lock>())?).ok()?;
            table.0.push(Held::new(session, handle, &lock).ok()?);
        }
        Some(table)
    }

    pub fn conflict(&self, wanted: &Held) -> Option<Held> {
        self.0.iter().find(|held| held.conflicts(wanted)).copied()
    }

    /// Takes away what the owner of a flock has, if it wants another kind and others are in the way: changing the kind
    /// of a flock means to unlock and to lock again (flock(2)), also when the second fails. Two owners that both want
    /// more do not wait for each other so. `true` when something was taken.
    pub fn give_up(&mut self, wanted: &Held) -> bool {
        wanted.is_flock() && self.conflict(wanted).is_some() && self.drop_owner(wanted.session, wanted.owner)
    }

    fn blockers(&self, wanted: &Held) -> HashSet<(u64, u64)> {
        self.0.iter().filter(|held| held.conflicts(wanted)).map(Held::who).collect()
    }

    /// Sets or clears a range for its owner: what the owner had there is replaced, what is left and right of it stays.
    pub fn set(&mut self, wanted: Held) -> Result<(), Errno> {
        let mut kept = Vec::with_capacity(self.0.len() + 2);
        for held in self.0.drain(..) {
            if held.who() != wanted.who() || held.end < wanted.start || wanted.end < held.start {
                kept.push(held);
                continue;
            }
            if held.start < wanted.start {
                kept.push(Held { end: wanted.start - 1, ..held });
            }
            if held.end > wanted.end {
                kept.push(Held { start: wanted.end + 1, ..held });
            }
        }
        if wanted.kind != UNLOCK {
            kept.push(wanted);
        }
        self.0 = kept;
        self.join(wanted.who());
        if self.0.len() > LOCKS_PER_FILE_MAX { Err(Errno::NoLocks) } else { Ok(()) }
    }

    /// Joins neighbouring ranges of one owner that end together.
    fn join(&mut self, who: (u64, u64)) {
        self.0.sort_unstable_by_key(|held| (held.who(), held.start));
        self.0.dedup_by(|next, last| {
            let is_alike = (last.kind, last.handle) == (next.kind, next.handle);
            let joins = last.who() == who && next.who() == who && is_alike;
            let touches = last.end.checked_add(1) == Some(next.start);
            if joins && touches {
                last.end = next.end;
            }
            joins && touches
        });
    }

    pub fn drop_session(&mut self, session: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.session != session);
        before != self.0.len()
    }

    pub fn drop_owner(&mut self, session: u64, owner: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|held| held.who() != (session, owner));
        before != self.0.len()
    }

    pub fn drop_handle(&mut self, session: u64, handle: u64) -> bool {
        let before = self.0.len();
        self.0.retain(|held| (held.session, held.handle) != (session, handle));
        before != self.0.len()
    }

    pub fn sessions(&self) -> HashSet<u64> {
        self.0.iter().map(|held| held.session).collect()
    }
}

impl Waiting {
    /// Parks a request before it is tried, so that an unlock between the try and the wait is not missed.
    pub fn park(&mut self, ino: u64, wanted: Held, sequence: u64, retry: Resume, cancel: Resume) -> Result<u64, Errno> {
        if self.requests.len() >= WAITING_MAX {
            return Err(Errno::NoLocks);
        }
        self.next += 1;
        let blocked_by = HashSet::new();
        self.requests.push(Parked { id: self.next, ino, wanted, sequence, blocked_by, retry, cancel });
        Ok(self.next)
    }

    /// The request was granted or failed. `false` when somebody else took it meanwhile.
    pub fn unpark(&mut self, id: u64) -> bool {
        let before = self.requests.len();
        self.requests.retain(|parked| parked.id != id);
        before != self.requests.len()
    }

    /// The request has to wait for these owners. [`Errno::Deadlock`] when they wait for it.
    pub fn block(&mut self, id: u64, table: &Table) -> Result<(), Errno> {
        let Some(parked) = self.requests.iter_mut().find(|parked| parked.id == id) else { return Ok(()) };
        let wanted = parked.wanted;
        parked.blocked_by = table.blockers(&wanted);
        if !wanted.is_flock() && self.closes_circle(wanted.who()) {
            self.unpark(id);
            return Err(Errno::Deadlock);
        }
        Ok(())
    }

    fn closes_circle(&self, start: (u64, u64)) -> bool {
        let mut edges: HashMap<(u64, u64), Vec<(u64, u64)>> = HashMap::new();
        for parked in self.requests.iter().filter(|parked| !parked.wanted.is_flock()) {
            edges.entry(parked.wanted.who()).or_default().extend(parked.blocked_by.iter().copied());
        }
        let mut seen = HashSet::new();
        let mut open = edges.get(&start).cloned().unwrap_or_default();
        while let Some(who) = open.pop() {
            if who == start {
                return true;
            }
            if seen.insert(who) {
                open.extend(edges.get(&who).into_iter().flatten().copied());
            }
        }
        false
    }

    /// Locks of an inode changed: the requests that wait there try again.
    #[must_use]
    pub fn wake(&mut self, ino: u64) -> Vec<Resume> {
        self.requests.extract_if(.., |parked| parked.ino == ino).map(|parked| parked.retry).collect()
    }

    /// Ends one waiting request, or all of a session.
    #[must_use]
    pub fn cancel(&mut self, session: u64, sequence: Option<u64>) -> Vec<Resume> {
        let is_meant = |parked: &mut Parked| {
            parked.wanted.session == session && sequence.is_none_or(|sequence| parked.sequence == sequence)
        };
        self.requests.extract_if(.., is_meant).map(|parked| parked.cancel).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Sessions that waiting requests wait for.
    pub fn blockers(&self) -> HashSet<u64> {
        self.requests.iter().flat_map(|parked| parked.blocked_by.iter().map(|(session, _)| *session)).collect()
    }
}

impl Fs {
    /// Lets those try again who wait for locks on an inode.
    pub(crate) fn wake_lockers(&self, ino: u64) {
        let retries = self.waiting.lock().wake(ino);
        for retry in retries {
            (self.spawn)(retry);
        }
    }

    pub(crate) fn cancel_waiting(&self, session: u64, sequence: Option<u64>) {
        let cancels = self.waiting.lock().cancel(session, sequence);
        cancels.into_iter().for_each(|cancel| cancel());
    }

    pub(crate) fn drop_locks_of(&self, session: u64) -> Result<(), Errno> {
        self.cancel_waiting(session, None);
        let mut from = key(tag::LOCKS);
        loop {
            let found = self.store.scan(&from, &key(tag::LOCKS + 1), STEP_FILES, From::Start)?;
            for (stored, bytes) in &found {
                let ino = number_of(stored, 0).ok_or(Errno::Io)?;
                if !Table::decode(bytes).ok_or(Errno::Io)?.sessions().contains(&session) {
                    continue;
                }
                self.transact_quietly(|txn| {
                    let mut table = Table::load(txn, ino)?;
                    if table.drop_session(session) {
                        table.store(txn, ino);
                    }
                    Ok(())
                })?;
                self.wake_lockers(ino);
            }
            match found.last() {
                Some((last, _)) if found.len() == STEP_FILES => {
                    from = last.clone();
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owner: u64, start: u64, end: u64, kind: u32) -> Held {
        Held { session: 1, handle: 0, owner, start, end, kind, pid: 0 }
    }

    #[test]
    fn unlocking_the_middle_leaves_both_sides_and_relocking_joins_them() {
        let mut table = Table::default();
        table.set(held(1, 0, 99, WRITE)).unwrap();
        table.set(held(1, 40, 59, UNLOCK)).unwrap();
        assert_eq!(table.0, [held(1, 0, 39, WRITE), held(1, 60, 99, WRITE)]);
        assert!(table.conflict(&held(2, 40, 59, WRITE)).is_none());
        assert!(table.conflict(&held(2, 39, 59, READ)).is_some());
        table.set(held(1, 40, 59, WRITE)).unwrap();
        assert_eq!(table.0, [held(1, 0, 99, WRITE)]);
        assert_eq!(Table::decode(&table.encode()), Some(table));
    }

    #[test]
    fn record_lock_and_flock_do_not_conflict() {
        let mut table = Table::default();
        table.set(held(1, 0, u64::MAX, WRITE)).unwrap();
        assert!(table.conflict(&held(2 | FLOCK, 0, u64::MAX, WRITE)).is_none());
        assert!(table.conflict(&held(2, 5, 5, READ)).is_some());
    }

    #[test]
    fn flock_that_cannot_become_a_write_lock_is_lost_and_a_record_lock_stays() {
        for (flag, is_lost) in [(FLOCK, true), (0, false)] {
            let mut table = Table::default();
            table.set(held(1 | flag, 0, u64::MAX, READ)).unwrap();
            // Nobody is in the way: the kind is changed in one step.
            assert!(!table.give_up(&held(1 | flag, 0, u64::MAX, WRITE)));
            table.set(held(2 | flag, 0, u64::MAX, READ)).unwrap();
            assert_eq!(table.give_up(&held(1 | flag, 0, u64::MAX, WRITE)), is_lost);
            assert_eq!(table.conflict(&held(2 | flag, 0, u64::MAX, WRITE)).is_none(), is_lost);
        }
    }

    #[test]
    fn request_that_closes_a_circle_is_refused() {
        let mut waiting = Waiting::default();
        let nothing = || -> Resume { Box::new(|| ()) };
        let mut first = Table::default();
        first.set(held(1, 0, 0, WRITE)).unwrap();
        let mut second = Table::default();
        second.set(held(2, 0, 0, WRITE)).unwrap();
        let one = waiting.park(10, held(2, 0, 0, WRITE), 1, nothing(), nothing()).unwrap();
        assert_eq!(waiting.block(one, &first), Ok(()));
        let two = waiting.park(11, held(1, 0, 0, WRITE), 2, nothing(), nothing()).unwrap();
        assert_eq!(waiting.block(two, &second), Err(Errno::Deadlock));
        assert_eq!(waiting.wake(10).len(), 1);
    }
}
