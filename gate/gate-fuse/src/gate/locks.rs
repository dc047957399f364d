//! Locks of files that only this node uses are kept here, and told when somebody else wants the file.
//!
//! The server says of a file that the session has it exclusively and that nobody has a lock of it
//! ([`vos_api::fs::UNLOCKED`]). From then on locks that are free are set, asked for and given up here. They become
//! promises ([`crate::behind`]) as soon as the server has to know them: it wants to hear what was changed, a program
//! waits for a lock, a gate takes over. From then on it is the server that is asked.
//!
//! A fenced session has lost its locks, those that were kept here as well as any other.

use std::collections::BTreeMap;

use file_locks::{Held, LockTable, UNLOCK};
use vos_api::fs;
use zerocopy::IntoBytes;

use super::{Backend, Gate, GateError, Phase};
use crate::backend::Done;
use crate::behind::{Change, Promise};
use crate::complete::lk_out;
use crate::flight::Flight;
use crate::kernel::LkIn;
use crate::recall::What;
use crate::request::{Blocking, Body, Request};
use crate::translate;

/// Ranges kept of one file: more are the server's.
const RANGES_MAX: usize = 64;
/// Numbers of promises that are locks; what follows is their place in the state object.
const LOCK_ID: u64 = 1 << 60;

impl<B: Backend> Gate<B> {
    /// Whether all locks of the file that there are are here.
    fn keeps_locks(&self, ino: u64) -> bool {
        self.kept.has(ino) || self.cache.is_unlocked(ino)
    }

    /// Whether a close has locks to give up at the server: those that are kept here go at once.
    pub(super) fn closes_with_locks(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let ino = request.header.nodeid;
        match request.body {
            Body::Flush(head) => {
                let owner = translate::posix_owner(head.lock_owner);
                if self.keeps_locks(ino) {
                    self.drop_kept(ino, |held| held.owner == owner)?;
                    return Ok(false);
                }
                Ok(self.cache.may_have_locks(ino, owner))
            }
            Body::Release(head) => {
                self.drop_kept(ino, |held| held.handle == head.fh)?;
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    fn drop_kept(&mut self, ino: u64, is_meant: impl Fn(&Held) -> bool) -> Result<(), GateError> {
        if !self.kept.has(ino) {
            return Ok(());
        }
        let before = self.kept.table(ino);
        let left = before.ranges().iter().filter(|held| !is_meant(held)).copied().collect();
        let after = LockTable::of(left);
        self.state.keep_locks(ino, before.ranges(), after.ranges())?;
        self.kept.put(ino, after);
        Ok(())
    }

    /// Answers a request for a lock, if the server need not know of it. `false`: it has to be asked.
    pub(super) fn lock_here(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let ino = request.header.nodeid;
        let (head, is_question, waits) = match request.body {
            Body::Setlk { head, blocking } => (head, false, blocking == Blocking::Yes),
            Body::Getlk(head) => (head, true, false),
            _ => return Ok(false),
        };
        if !self.keeps_locks(ino) {
            return Ok(false);
        }
        let is_served = matches!(self.phase, Phase::Serving) && self.is_heard() && self.owed.is_empty();
        if !is_served || !self.cache.is_exclusive(ino) {
            self.tell_locks(ino);
            return Ok(false);
        }
        let (unique, key) = (request.header.unique, request.key());
        let wanted = match Held::new(0, head.fh, &translate::lock(&head)) {
            Ok(wanted) => wanted,
            Err(errno) => return self.answer_lock(unique, key, errno.number() as i32, &[]),
        };
        let before = self.kept.table(ino);
        if is_question {
            return self.answer_question(&head, before.conflict(&wanted), (unique, key));
        }
        let mut after = before.clone();
        let is_free = wanted.kind == UNLOCK || before.conflict(&wanted).is_none();
        if !is_free && waits {
            self.tell_locks(ino);
            return Ok(false);
        }
        let is_set = if is_free {
            after.set(wanted).is_ok()
        } else {
            after.give_up(&wanted);
            true
        };
        let has_room = is_set && after.ranges().len() <= RANGES_MAX;
        if !has_room || !self.state.keep_locks(ino, before.ranges(), after.ranges())? {
            self.tell_locks(ino);
            return Ok(false);
        }
        self.kept.put(ino, after);
        self.answer_lock(unique, key, if is_free { 0 } else { libc::EAGAIN }, &[])
    }

    fn answer_question(
        &mut self,
        head: &LkIn,
        conflict: Option<Held>,
        (unique, key): (u64, u64),
    ) -> Result<bool, GateError> {
        let free = || fs::Lock { kind: UNLOCK.into(), ..translate::lock(head) };
        let lock = conflict.map_or_else(free, Held::to_lock);
        self.answer_lock(unique, key, 0, lk_out(&lock).as_bytes())
    }

    fn answer_lock(&mut self, unique: u64, key: u64, errno: i32, data: &[u8]) -> Result<bool, GateError> {
        self.answer(unique, -errno, data)?;
        self.state.answered(key);
        Ok(true)
    }

    /// The server is to know the locks of a file.
    pub(super) fn tell_locks(&mut self, ino: u64) {
        self.cache.set_unlocked(ino, false);
        for held in self.kept.take(ino) {
            let Some(place) = self.state.place_of_lock(ino, &held) else { continue };
            // When they are closed these have something to give up there.
            self.cache.locking(ino, held.owner, held.handle);
            let id = LOCK_ID | place as u64;
            self.behind.add(Promise {
                id,
                key: 0,
                ino,
                chain: ino,
                time_ns: 0,
                before_ns: 0,
                change: Change::Lock(held),
            });
        }
    }

    /// The same of those that an event of the server is about.
    pub(super) fn tell_locks_of(&mut self, what: &What) {
        match what {
            What::Inode { ino, .. } | What::Tell { ino } => self.tell_locks(*ino),
            What::Everything => self.kept.inos().into_iter().for_each(|ino| self.tell_locks(ino)),
            What::Name { .. } => {}
        }
    }

    /// What an answer about locks says of further ones.
    pub(super) fn note_unlocked(&mut self, flight: &Flight, done: &Done<B::Data>) {
        let (ino, bits) = (flight.ino, fs::EXCLUSIVE | fs::UNLOCKED);
        // A lock that is asked for at the server may be had there by now.
        let is_asked_for = self.kept.asked(ino) != flight.locks_asked
            || self.flights.is_locking(ino)
            || self.behind.has_locks(ino)
            || !self.held.is_empty();
        if done.status == 0 && done.results[3] & bits == bits && self.may_write_behind() && !is_asked_for {
            self.cache.set_exclusive(ino, true);
            self.cache.set_unlocked(ino, true);
        }
    }

    /// Whoever follows a dead gate tells what that had kept, with the numbers under which it was telling.
    pub(super) fn inherit_locks(&mut self) -> Result<(), GateError> {
        let mut written: BTreeMap<u64, Vec<Held>> = BTreeMap::new();
        for (ino, held) in self.state.inherited_locks() {
            written.entry(ino).or_default().push(held);
        }
        for (ino, ranges) in written {
            // It may have died between what it wrote and what that replaced.
            let mut table = LockTable::default();
            let is_set = ranges.iter().try_for_each(|held| table.set(*held)).is_ok();
            let table = if is_set && self.state.keep_locks(ino, &ranges, table.ranges())? {
                table
            } else {
                LockTable::of(ranges)
            };
            self.kept.put(ino, table);
            self.tell_locks(ino);
        }
        Ok(())
    }

    /// The session has lost its locks.
    pub(super) fn lose_locks(&mut self) -> Result<(), GateError> {
        let untold = self.behind.lose_locks();
        let kept =
            self.kept.inos().into_iter().flat_map(|ino| self.kept.take(ino).into_iter().map(move |it| (ino, it)));
        for (ino, held) in kept.chain(untold).collect::<Vec<_>>() {
            tracing::warn!(ino, "a lock is gone with its session's leases");
            self.state.forget_lock(ino, &held)?;
        }
        Ok(())
    }
}
