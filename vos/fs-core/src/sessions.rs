//! Sessions: each changing operation once, whatever happens to the link or to this server.
//!
//! A session is `Open` (it has a ring), `Away` (it has none; its locks and handles stay for a while) or `Fenced` (it was
//! silent while others needed what it held, or away too long: everything it asks gets `ESTALE`, its number is remembered).
//!
//! The reply of an executed operation is part of its log record. The replies of the last [`REPLIES_KEPT`] stay: twice
//! what may be in flight, because as many again may have been executed but not answered when the server died.
//! Failures are not recorded: executing them again changes nothing that was promised.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use vos_api::session::{IN_FLIGHT_MAX, SESSIONS_MAX};

use crate::calls::{Answer, Reply};
use crate::core::{Fs, locked};
use crate::error::Errno;
use crate::log::GAP_BYTES;
use crate::model::{Inode, Reader, key, key1, key2, number_of, tag};
use crate::store::From;
use crate::txn::Txn;

const REPLIES_KEPT: usize = 2 * IN_FLIGHT_MAX as usize;
/// A session without a ring is given up after this long.
pub const AWAY_MS_MAX: u64 = 10 * 60 * 1000;
/// Keys removed in one step when a session ends.
const STEP_KEYS: usize = 512;

/// Numbers of events that each byte of the log sets aside: a restarted server goes on above all that its predecessor used. Every
/// opening of the volume moves the log on by [`GAP_BYTES`], whether anything was changed before or not.
const RECALLS_PER_LOG_BYTE_BITS: u32 = 12;
const _: () = assert!(GAP_BYTES << RECALLS_PER_LOG_BYTE_BITS > 1 << 32);

const LIVE: u8 = 0;
const FENCED: u8 = 1;

/// Whose operation a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub session: u64,
    pub sequence: u64,
}

#[derive(Default)]
pub(crate) struct Sessions {
    table: Mutex<HashMap<u64, Session>>,
}

#[derive(Default)]
struct Session {
    is_fenced: bool,
    rings: u32,
    away_since_ms: u64,
    highest: u64,
    /// Executed sequences whose replies are kept, oldest first.
    executed: VecDeque<u64>,
    /// Being executed, and who else asked meanwhile over another ring.
    in_flight: HashMap<u64, Vec<Answer>>,
}

/// How a session ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It said goodbye: nothing of it is kept.
    Forget,
    /// It must not go on: its number stays refused.
    Fence,
}

/// What to do with an operation that carries a sequence.
pub(crate) enum Begun {
    Execute(Answer),
    /// Somebody is executing it; the answer was put beside the first one.
    Joined,
    /// Executed before.
    Answered(Answer, Vec<u8>),
    Refused(Answer, Errno),
}

impl Sessions {
    /// Adds the reply to the operation's changes and drops the oldest.
    pub fn record(&self, txn: &mut Txn<'_>, mark: Mark, number: u64, reply: Vec<u8>) {
        let mut table = locked(&self.table);
        let Some(session) = table.get_mut(&mark.session) else { return };
        session.highest = session.highest.max(mark.sequence);
        session.executed.push_back(mark.sequence);
        let mut value = number.to_le_bytes().to_vec();
        value.extend_from_slice(&reply);
        txn.put(key2(tag::REPLY, mark.session, mark.sequence), value);
        if session.executed.len() == 1 {
            txn.put(key1(tag::SESSION, mark.session), vec![LIVE]);
        }
        if session.executed.len() > REPLIES_KEPT
            && let Some(old) = session.executed.pop_front()
        {
            txn.delete(key2(tag::REPLY, mark.session, old));
        }
    }

    pub fn check(&self, session: u64) -> Result<(), Errno> {
        match locked(&self.table).get(&session) {
            Some(known) if !known.is_fenced => Ok(()),
            _ => Err(Errno::Stale),
        }
    }

    pub fn has_away(&self) -> bool {
        locked(&self.table).values().any(|session| session.rings == 0 && !session.is_fenced)
    }

    /// Everything waiting for this operation, to be answered by the caller.
    pub fn finish(&self, mark: Mark) -> Vec<Answer> {
        let mut table = locked(&self.table);
        table.get_mut(&mark.session).and_then(|session| session.in_flight.remove(&mark.sequence)).unwrap_or_default()
    }
}

impl Fs {
    /// A ring of a session opened. Answers the highest sequence that was executed; `ESTALE` when the session was fenced
    /// or forgotten. Only looks at memory; [`Fs::keep_session`] must follow, from a thread that may wait.
    pub fn hello(&self, session: u64, acknowledged: u64) -> Result<u64, Errno> {
        if session == 0 {
            return Err(Errno::Invalid);
        }
        let mut table = locked(&self.sessions.table);
        if let Some(known) = table.get_mut(&session) {
            if known.is_fenced {
                return Err(Errno::Stale);
            }
            known.rings += 1;
            self.leases.redeliver(session);
            return Ok(known.highest);
        }
        if acknowledged > 0 {
            return Err(Errno::Stale);
        }
        if table.len() >= SESSIONS_MAX && table.values().all(|known| known.rings > 0) {
            return Err(Errno::NoSpace);
        }
        table.insert(session, Session { rings: 1, ..Session::default() });
        Ok(0)
    }

    /// Makes the session known to the server after this one, and lets it hold leases: those of a session that nobody
    /// remembers could not be asked back. Gives up the oldest session without a ring when there are too many.
    pub fn keep_session(self: &Arc<Fs>, session: u64) -> Result<(), Errno> {
        let oldest = {
            let table = locked(&self.sessions.table);
            let away = table.iter().filter(|(_, known)| known.rings == 0);
            let oldest = away.min_by_key(|(_, known)| (!known.is_fenced, known.away_since_ms)).map(|(id, _)| *id);
            oldest.filter(|_| table.len() > SESSIONS_MAX)
        };
        if let Some(oldest) = oldest {
            self.end_session(oldest, End::Forget)?;
        }
        if self.store.get(&key1(tag::SESSION, session))?.is_none() {
            self.transact_quietly(|txn| {
                txn.put(key1(tag::SESSION, session), vec![LIVE]);
                Ok(())
            })?;
        }
        self.log.settle()?;
        self.leases.admit(session);
        Ok(())
    }

    /// A ring opened and the session is kept: for callers that may wait.
    pub fn open_session(self: &Arc<Fs>, session: u64, acknowledged: u64) -> Result<u64, Errno> {
        let highest = self.hello(session, acknowledged)?;
        self.keep_session(session)?;
        Ok(highest)
    }

    /// A ring of the session closed. What it holds stays, in case it comes back.
    pub fn detach(&self, session: u64) {
        let now = self.now();
        if let Some(known) = locked(&self.sessions.table).get_mut(&session) {
            known.rings = known.rings.saturating_sub(1);
            known.away_since_ms = now;
            if known.rings > 0 {
                // The parked request is the newer ring's.
                return;
            }
        }
        self.leases.drop_poll(session);
    }

    pub fn goodbye(&self, session: u64) -> Result<(), Errno> {
        self.end_session(session, End::Forget)?;
        self.log.settle()
    }

    /// Whether the session is without a ring since at least `ms`.
    pub(crate) fn is_away(&self, session: u64, ms: u64) -> bool {
        let now = self.now();
        locked(&self.sessions.table)
            .get(&session)
            .is_none_or(|known| known.rings == 0 && now.saturating_sub(known.away_since_ms) >= ms)
    }

    /// Releases everything a session holds: leases, locks, handles.
    pub fn end_session(&self, session: u64, end: End) -> Result<(), Errno> {
        if let Some(known) = locked(&self.sessions.table).get_mut(&session) {
            if known.is_fenced && end == End::Fence {
                return Ok(());
            }
            known.is_fenced = true;
        }
        // From here on no change of the session is recorded ([`Fs::transact`]); what it has parked need not wait any
        // more.
        self.wake(self.leases.end_parked(session));
        self.drop_locks_of(session)?;
        self.drop_handles_of(session)?;
        self.drop_keys(tag::REPLY, session)?;
        self.transact_quietly(|txn| {
            match end {
                End::Forget => txn.delete(key1(tag::SESSION, session)),
                End::Fence => txn.put(key1(tag::SESSION, session), vec![FENCED]),
            }
            Ok(())
        })?;
        if end == End::Forget {
            locked(&self.sessions.table).remove(&session);
        }
        self.log.drive();
        // Only now may others act on what it held.
        self.wake(self.leases.forget(session, self.now()));
        Ok(())
    }

    fn drop_keys(&self, tag: u8, session: u64) -> Result<(), Errno> {
        loop {
            let found = self.store.scan(&key1(tag, session), &key2(tag, session, u64::MAX), STEP_KEYS, From::Start)?;
            let is_last = found.len() < STEP_KEYS;
            self.transact_quietly(|txn| {
                found.into_iter().for_each(|(key, _)| txn.delete(key));
                Ok(())
            })?;
            if is_last {
                return Ok(());
            }
        }
    }

    fn drop_handles_of(&self, session: u64) -> Result<(), Errno> {
        loop {
            let range = (key1(tag::HANDLE, session), key2(tag::HANDLE, session, u64::MAX));
            let found = self.store.scan(&range.0, &range.1, STEP_KEYS, From::Start)?;
            for (key, _) in &found {
                let handle = number_of(key, 1).ok_or(Errno::Io)?;
                let mut closed = None;
                self.transact_quietly(|txn| {
                    closed = crate::ops::handles::close(txn, session, handle)?;
                    Ok(())
                })?;
                self.linger(closed);
            }
            if found.len() < STEP_KEYS {
                return Ok(());
            }
        }
    }

    /// Fills the table from the store after opening. All sessions are away; what their clients keep in caches was
    /// granted by the server before this one, so each must drop everything once.
    pub(crate) fn restore_sessions(&self) -> Result<(), Errno> {
        let now = self.now();
        // The checkpoint made at opening holds this position, so that no successor begins here again.
        let first_recall = self.log.tail_for(self.applied()).lsn << RECALLS_PER_LOG_BYTE_BITS;
        let found = self.store.scan(&key(tag::SESSION), &key(tag::SESSION + 1), SESSIONS_MAX + 1, From::Start)?;
        for (stored, value) in found {
            let number = number_of(&stored, 0).ok_or(Errno::Io)?;
            let mut session = Session { away_since_ms: now, ..Session::default() };
            session.is_fenced = value != [LIVE];
            let range = (key1(tag::REPLY, number), key2(tag::REPLY, number, u64::MAX));
            let replies = self.store.scan(&range.0, &range.1, 2 * REPLIES_KEPT, From::Start)?;
            let mut order = Vec::with_capacity(replies.len());
            for (reply, value) in &replies {
                let sequence = number_of(reply, 1).ok_or(Errno::Io)?;
                order.push((Reader(value).u64().ok_or(Errno::Io)?, sequence));
                session.highest = session.highest.max(sequence);
            }
            order.sort_unstable();
            session.executed = order.into_iter().map(|(_, sequence)| sequence).collect();
            self.restore_open(number)?;
            if !session.is_fenced {
                self.leases.expect_everything(number, first_recall, now);
            }
            locked(&self.sessions.table).insert(number, session);
        }
        Ok(())
    }

    /// What the session has open, for [`crate::leases`].
    fn restore_open(&self, session: u64) -> Result<(), Errno> {
        let to = key2(tag::HANDLE, session, u64::MAX);
        let mut from = key1(tag::HANDLE, session);
        loop {
            let found = self.store.scan(&from, &to, STEP_KEYS, From::Start)?;
            for (_, ino) in &found {
                self.leases.opened(session, Reader(ino).u64().ok_or(Errno::Io)?);
            }
            match found.last() {
                Some((last, _)) if found.len() == STEP_KEYS => {
                    from = last.clone();
                    from.push(0);
                }
                _ => return Ok(()),
            }
        }
    }

    pub(crate) fn begin(&self, mark: Mark, answer: Answer) -> Begun {
        {
            let mut table = locked(&self.sessions.table);
            let Some(session) = table.get_mut(&mark.session).filter(|session| !session.is_fenced) else {
                return Begun::Refused(answer, Errno::Stale);
            };
            if let Some(others) = session.in_flight.get_mut(&mark.sequence) {
                others.push(answer);
                return Begun::Joined;
            }
            if session.in_flight.len() >= IN_FLIGHT_MAX as usize {
                return Begun::Refused(answer, Errno::TryAgain);
            }
            session.in_flight.insert(mark.sequence, Vec::new());
        }
        match self.store.get(&key2(tag::REPLY, mark.session, mark.sequence)) {
            Ok(None) => Begun::Execute(answer),
            Ok(Some(value)) => Begun::Answered(answer, value),
            Err(error) => {
                let errno = Errno::from(error);
                self.sessions.finish(mark).into_iter().for_each(|other| other(Reply::failed(errno)));
                Begun::Refused(answer, errno)
            }
        }
    }

    /// Sessions that were away for too long.
    pub(crate) fn expired_sessions(&self) -> Vec<u64> {
        let now = self.now();
        let table = locked(&self.sessions.table);
        let is_expired = |session: &Session| {
            !session.is_fenced && session.rings == 0 && now.saturating_sub(session.away_since_ms) > AWAY_MS_MAX
        };
        table.iter().filter(|(_, session)| is_expired(session)).map(|(number, _)| *number).collect()
    }
}

/// The reply inside a stored value.
pub(crate) fn stored_reply(value: &[u8]) -> Result<Reply, Errno> {
    value.get(8..).and_then(Reply::from_bytes).ok_or(Errno::Io)
}

/// Whether a file without a name may go.
pub(crate) fn is_unused(inode: &Inode) -> bool {
    inode.links == 0 && inode.opens == 0
}

/// Shared so that parked work can answer from any thread.
pub(crate) type SharedAnswer = Arc<Mutex<Option<Answer>>>;
