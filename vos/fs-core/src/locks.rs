//! Record locks and flocks.
//!
//! The locks that are held are part of the metadata (one record per inode), changed by logged operations: they
//! survive a restart. Requests that wait are state of this life only: their sessions send them again.
//!
//! An owner whose top bit is set is a flock; it conflicts with flocks only. Deadlock is looked for among record locks:
//! a request that would close a circle of waiting owners is refused. Flocks need no such look: an owner that wants
//! another kind and cannot have it at once loses what it has first, see [`LockTable::give_up`].

use std::collections::{HashMap, HashSet};

pub use file_locks::{Held, LockTable, UNLOCK};
use vos_api::fs::Lock;
use zerocopy::{FromBytes, IntoBytes};

use crate::core::Fs;
use crate::error::Errno;
use crate::model::{Reader, key, key1, number_of, tag};
use crate::store::From;
use crate::txn::Txn;

/// Requests that may wait.
const WAITING_MAX: usize = 4096;
const STEP_FILES: usize = 256;
const HELD_BYTES: usize = 16 + size_of::<Lock>();

/// Goes on with a request that waited; called without locks.
type Resume = Box<dyn FnOnce() + Send>;

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
pub fn load(txn: &Txn<'_>, ino: u64) -> Result<LockTable, Errno> {
    match txn.get(&key1(tag::LOCKS, ino))? {
        Some(bytes) => decode(&bytes).ok_or(Errno::Io),
        None => Ok(LockTable::default()),
    }
}

pub fn store(table: &LockTable, txn: &mut Txn<'_>, ino: u64) {
    let key = key1(tag::LOCKS, ino);
    if table.is_empty() { txn.delete(key) } else { txn.put(key, encode(table)) }
}

fn encode(table: &LockTable) -> Vec<u8> {
    let mut out = Vec::with_capacity(table.ranges().len() * HELD_BYTES);
    for held in table.ranges() {
        out.extend_from_slice(&held.session.to_le_bytes());
        out.extend_from_slice(&held.handle.to_le_bytes());
        out.extend_from_slice(held.to_lock().as_bytes());
    }
    out
}

pub fn decode(bytes: &[u8]) -> Option<LockTable> {
    let mut reader = Reader(bytes);
    let mut ranges = Vec::new();
    while !reader.0.is_empty() {
        let (session, handle) = (reader.u64()?, reader.u64()?);
        let lock = Lock::read_from_bytes(reader.take(size_of::<Lock>())?).ok()?;
        ranges.push(Held::new(session, handle, &lock).ok()?);
    }
    Some(LockTable::of(ranges))
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
    pub fn block(&mut self, id: u64, table: &LockTable) -> Result<(), Errno> {
        let Some(parked) = self.requests.iter_mut().find(|parked| parked.id == id) else { return Ok(()) };
        let wanted = parked.wanted;
        parked.blocked_by = table.blockers(&wanted).collect();
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

    /// What waits for locks or leases is answered by nobody: the server ends, and what waits keeps it.
    pub fn abandon(&self) {
        let parked = std::mem::take(&mut self.waiting.lock().requests);
        let joined = self.sessions.lock().abandon();
        drop((parked, joined, self.leases.abandon()));
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
                let table = decode(bytes).ok_or(Errno::Io)?;
                if table.ranges().iter().all(|held| held.session != session) {
                    continue;
                }
                self.transact_quietly(|txn| {
                    let mut table = load(txn, ino)?;
                    if table.drop_session(session) {
                        store(&table, txn, ino);
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
    use file_locks::{FLOCK, READ, WRITE};

    use super::*;

    fn held(owner: u64, start: u64, end: u64, kind: u32) -> Held {
        Held { session: 1, handle: 0, owner, start, end, kind, pid: 0 }
    }

    #[test]
    fn table_is_read_as_it_was_written() {
        let mut table = LockTable::default();
        table.set(held(1, 0, 99, WRITE)).unwrap();
        table.set(held(1 | FLOCK, 0, u64::MAX, READ)).unwrap();
        assert_eq!(decode(&encode(&table)), Some(table));
    }

    #[test]
    fn request_that_closes_a_circle_is_refused() {
        let mut waiting = Waiting::default();
        let nothing = || -> Resume { Box::new(|| ()) };
        let mut first = LockTable::default();
        first.set(held(1, 0, 0, WRITE)).unwrap();
        let mut second = LockTable::default();
        second.set(held(2, 0, 0, WRITE)).unwrap();
        let one = waiting.park(10, held(2, 0, 0, WRITE), 1, nothing(), nothing()).unwrap();
        assert_eq!(waiting.block(one, &first), Ok(()));
        let two = waiting.park(11, held(1, 0, 0, WRITE), 2, nothing(), nothing()).unwrap();
        assert_eq!(waiting.block(two, &second), Err(Errno::Deadlock));
        assert_eq!(waiting.wake(10).len(), 1);
    }
}
