//! Locks of one file: record locks and flocks, who has which range, who is in the way of whom.
//!
//! An owner whose top bit is set is a flock; it conflicts with flocks only. Pure: the file server keeps the tables of
//! all sessions, a gate those of files that nobody else has.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

use vos_api::Errno;
use vos_api::fs::Lock;

/// `F_RDLCK`.
pub const READ: u32 = 0;
pub const WRITE: u32 = 1;
pub const UNLOCK: u32 = 2;
/// Of an owner.
pub const FLOCK: u64 = 1 << 63;
/// Ranges held on one file: more would make its record too large.
pub const LOCKS_PER_FILE_MAX: usize = 8192;

/// A range that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    pub fn who(&self) -> (u64, u64) {
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

/// The locks of one inode.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct LockTable(Vec<Held>);

impl LockTable {
    /// Of what [`LockTable::ranges`] said.
    pub fn of(ranges: Vec<Held>) -> LockTable {
        LockTable(ranges)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
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

    /// Owners that are in the way.
    pub fn blockers(&self, wanted: &Held) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().filter(|held| held.conflicts(wanted)).map(Held::who)
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

    pub fn ranges(&self) -> &[Held] {
        &self.0
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
        let mut table = LockTable::default();
        table.set(held(1, 0, 99, WRITE)).unwrap();
        table.set(held(1, 40, 59, UNLOCK)).unwrap();
        assert_eq!(table.0, [held(1, 0, 39, WRITE), held(1, 60, 99, WRITE)]);
        assert!(table.conflict(&held(2, 40, 59, WRITE)).is_none());
        assert!(table.conflict(&held(2, 39, 59, READ)).is_some());
        table.set(held(1, 40, 59, WRITE)).unwrap();
        assert_eq!(table.0, [held(1, 0, 99, WRITE)]);
    }

    #[test]
    fn record_lock_and_flock_do_not_conflict() {
        let mut table = LockTable::default();
        table.set(held(1, 0, u64::MAX, WRITE)).unwrap();
        assert!(table.conflict(&held(2 | FLOCK, 0, u64::MAX, WRITE)).is_none());
        assert!(table.conflict(&held(2, 5, 5, READ)).is_some());
    }

    #[test]
    fn flock_that_cannot_become_a_write_lock_is_lost_and_a_record_lock_stays() {
        for (flag, is_lost) in [(FLOCK, true), (0, false)] {
            let mut table = LockTable::default();
            table.set(held(1 | flag, 0, u64::MAX, READ)).unwrap();
            // Nobody is in the way: the kind is changed in one step.
            assert!(!table.give_up(&held(1 | flag, 0, u64::MAX, WRITE)));
            table.set(held(2 | flag, 0, u64::MAX, READ)).unwrap();
            assert_eq!(table.give_up(&held(1 | flag, 0, u64::MAX, WRITE)), is_lost);
            assert_eq!(table.conflict(&held(2 | flag, 0, u64::MAX, WRITE)).is_none(), is_lost);
        }
    }
}
