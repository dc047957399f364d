//! Sessions of the file system: what one holds goes with it, and where the record lies in the store (`sessions` has the
//! rest).
//!
//! A session without a ring keeps its locks and handles for a while. It is fenced when it was silent while others
//! needed what it held, or away too long: leases and locks are gone, replies and handles stay, and its client may
//! revive it until it has been away too long. The reply of an executed operation is part of its log record. Failures
//! are not recorded: executing them again changes nothing that was promised.
//!
//! Locks: `progress`, then the table of sessions, then the leases.

use std::sync::Arc;

use parking_lot::Mutex;
use sessions::{Opened, Opening, Place, Record, Reply, Standing, Step, Table};
use vos_api::session::Progress;

use crate::calls::Responder;
use crate::core::Fs;
use crate::error::Errno;
use crate::log::GAP_BYTES;
use crate::model::{Inode, Reader, key, key1, key2, number_of, tag};
use crate::store::{From, Store};
use crate::txn::Txn;

pub use sessions::{End, Mark};

/// A session without a ring is given up after this long.
pub const AWAY_MS_MAX: u64 = 10 * 60 * 1000;
/// Keys removed in one step when a session ends.
const STEP_KEYS: usize = 512;

/// Numbers of events that each byte of the log sets aside: a restarted server goes on above all that its predecessor
/// used. Every opening of the volume moves the log on by [`GAP_BYTES`], whether anything was changed before or not.
const RECALLS_PER_LOG_BYTE_BITS: u32 = 12;
const _: () = assert!(GAP_BYTES << RECALLS_PER_LOG_BYTE_BITS > 1 << 32);

// How a session's standing is stored.
const LIVE: u8 = 0;
const ENDED: u8 = 1;
const FENCED: u8 = 2;

/// What is stored of a session, little-endian; what is 0 at the end may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    standing: u8,
    /// 0: none. See `Table::settle`.
    fence: u64,
    /// Who has it, as the server's loop calls its clients; 0: nobody said.
    client: u32,
    /// It changes before it tells ([`crate::leases::exclusive`]).
    writes_behind: bool,
}

/// One of which nothing is stored.
const NEW: Kept = Kept { standing: LIVE, fence: 0, client: 0, writes_behind: false };

impl Kept {
    fn of(bytes: &[u8]) -> Kept {
        let mut rest = Reader(bytes.get(1..).unwrap_or_default());
        let standing = bytes.first().copied().unwrap_or(ENDED);
        let (fence, client) = (rest.u64().unwrap_or(0), rest.u32().unwrap_or(0));
        Kept { standing, fence, client, writes_behind: rest.0.first() == Some(&1) }
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.standing];
        if (self.fence, self.client) != (0, 0) || self.writes_behind {
            bytes.extend(self.fence.to_le_bytes());
        }
        if self.client != 0 || self.writes_behind {
            bytes.extend(self.client.to_le_bytes());
        }
        if self.writes_behind {
            bytes.push(1);
        }
        bytes
    }
}

impl Fs {
    /// A ring of a session opened; `ESTALE` when the session was fenced or forgotten. Only looks at memory;
    /// [`Fs::keep_session`] must follow, from a thread that may wait.
    pub fn hello(&self, session: u64, progress: Progress) -> Result<Opened, Errno> {
        if session == 0 {
            return Err(Errno::Invalid);
        }
        let mut table = self.sessions.lock();
        let opened = table.open(Opening { session, progress, now_ms: self.now() })?;
        self.leases.redeliver(session);
        Ok(opened)
    }

    /// Makes the session known to the server after this one, and lets it hold leases: those of a session that nobody
    /// remembers could not be asked back. Ends the one that made room for it. `client`: see [`Fs::fence_clients`].
    pub fn keep_session(self: &Arc<Fs>, session: u64, client: u32, opened: Opened) -> Result<(), Errno> {
        if let Some(leaving) = opened.leaving {
            self.end_session(leaving, End::Forget)?;
        }
        let key = key1(tag::SESSION, session);
        let kept = self.store.get(&key)?.map(|kept| Kept::of(&kept));
        if kept.is_none_or(|kept| kept.standing != LIVE || kept.client != client) {
            self.transact_quietly(|txn| {
                if self.sessions.lock().is_live(session) {
                    let kept = txn.get(&key)?.map_or(NEW, |kept| Kept::of(&kept));
                    txn.put(key.clone(), Kept { standing: LIVE, client, ..kept }.bytes());
                }
                Ok(())
            })?;
        }
        self.log.settle()?;
        // Meanwhile it may have been fenced.
        let table = self.sessions.lock();
        if table.is_live(session) {
            self.leases.admit(session);
        }
        Ok(())
    }

    /// Whether whoever has the session now understands [`vos_api::fs::TELL`]: it may be of an earlier release than who
    /// had it before.
    pub fn understands(&self, session: u64, tell: bool) {
        self.leases.understands(session, tell);
    }

    /// The session writes behind, and the server after this one must know.
    pub(crate) fn keep_behind(&self, session: u64) -> Result<(), Errno> {
        if session == 0 || self.leases.is_behind(session) {
            return Ok(());
        }
        if self.leases.behind_count() >= self.blocks.lock().behind_max() {
            return Err(Errno::NoSpace);
        }
        let key = key1(tag::SESSION, session);
        self.transact_quietly(|txn| {
            if !self.sessions.lock().is_live(session) {
                return Err(Errno::Stale);
            }
            let kept = txn.get(&key)?.map_or(NEW, |kept| Kept::of(&kept));
            txn.put(key.clone(), Kept { writes_behind: true, ..kept }.bytes());
            Ok(())
        })?;
        self.log.settle()?;
        let table = self.sessions.lock();
        if table.is_live(session) {
            self.leases.writes_behind(session);
        }
        drop(table);
        self.keep_back();
        Ok(())
    }

    /// A ring opened and the session is kept: for callers that may wait. Answers the highest sequence that was
    /// executed.
    pub fn open_session(self: &Arc<Fs>, session: u64, acknowledged: u64) -> Result<u64, Errno> {
        let opened = self.hello(session, Progress { acknowledged, revives: false })?;
        self.keep_session(session, 0, opened)?;
        Ok(opened.highest)
    }

    /// Fences the sessions of clients that are known to be lost: others need not wait until they were silent for long.
    pub fn fence_clients(&self, is_lost: impl Fn(u32) -> bool) -> Result<(), Errno> {
        let found = self.store.scan(&key(tag::SESSION), &key(tag::SESSION + 1), usize::MAX, From::Start)?;
        for (key, kept) in found {
            let (session, kept) = (number_of(&key, 0).ok_or(Errno::Io)?, Kept::of(&kept));
            if kept.standing == LIVE && is_lost(kept.client) {
                tracing::info!(session, client = kept.client, "fenced: its client is lost");
                self.end_session(session, End::Fence)?;
            }
        }
        Ok(())
    }

    /// A ring of the session closed. What it holds stays, in case it comes back.
    pub fn detach(&self, session: u64) {
        // As long as there is a ring, the parked request is that one's.
        if self.sessions.lock().detach(session, self.now()) {
            self.leases.drop_poll(session);
        }
    }

    pub fn goodbye(&self, session: u64) -> Result<(), Errno> {
        self.end_session(session, End::Forget)?;
        self.log.settle()
    }

    pub(crate) fn check_session(&self, session: u64) -> Result<(), Errno> {
        if self.sessions.lock().is_live(session) { Ok(()) } else { Err(Errno::Stale) }
    }

    /// Takes from a session what it holds: leases and locks; handles and replies, too, unless it may be revived.
    pub fn end_session(&self, session: u64, end: End) -> Result<(), Errno> {
        if !self.sessions.lock().refuse(session, end) {
            return Ok(());
        }
        // From here on no change of the session is recorded ([`Fs::transact`]); what it has parked need not wait any
        // more.
        self.wake(self.leases.end_parked(session));
        let fence = self.applied() + 1;
        self.drop_locks_of(session)?;
        match end {
            End::Fence => self.transact_quietly(|txn| {
                // It may have said goodbye meanwhile.
                if self.sessions.lock().is_fencing(session) {
                    let key = key1(tag::SESSION, session);
                    let kept = txn.get(&key)?.map_or(NEW, |kept| Kept::of(&kept));
                    txn.put(key, Kept { standing: FENCED, fence, ..kept }.bytes());
                }
                Ok(())
            })?,
            End::Forget => {
                self.drop_kept(session, |txn| txn.drop_standing(session))?;
                self.sessions.lock().forget(session);
            }
            End::Lapse => self.drop_kept(session, |txn| txn.put_standing(session, Standing::Ended))?,
        }
        self.log.drive();
        // Only now may others act on what it held.
        if end == End::Fence {
            self.wake(self.leases.fence(session, self.now()));
            self.sessions.lock().settle(session, fence);
        } else {
            self.wake(self.leases.forget(session, self.now()));
            self.keep_back();
        }
        Ok(())
    }

    /// Handles and replies, in steps, the last of which is also `last`.
    fn drop_kept(&self, session: u64, last: impl Fn(&mut Txn<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        self.drop_handles_of(session)?;
        let mut is_last = false;
        while !is_last {
            let places = self.sessions.lock().clear(session, STEP_KEYS);
            is_last = places.len() < STEP_KEYS;
            self.transact_quietly(|txn| {
                places.into_iter().try_for_each(|place| txn.drop_reply(session, place))?;
                if is_last { last(txn) } else { Ok(()) }
            })?;
        }
        Ok(())
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
        let mut table = Table::load(&self.store, now)?;
        let ids: Vec<u64> = table.ids().collect();
        for session in ids {
            self.restore_open(session)?;
            let kept = self.store.get(&key1(tag::SESSION, session))?.map(|kept| Kept::of(&kept));
            if let Some(kept) = kept {
                table.restore_fence(session, kept.fence);
            }
            if table.is_live(session) {
                let writes_behind = kept.is_some_and(|kept| kept.writes_behind);
                self.leases.expect_everything(session, first_recall, writes_behind, now);
            }
        }
        *self.sessions.lock() = table;
        self.keep_back();
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
}

impl Step for Txn<'_> {
    type Error = Errno;

    fn put_standing(&mut self, session: u64, standing: Standing) -> Result<(), Errno> {
        let key = key1(tag::SESSION, session);
        let kept = self.get(&key)?.map_or(NEW, |kept| Kept::of(&kept));
        let standing = match standing {
            Standing::Live => LIVE,
            Standing::Fenced => FENCED,
            Standing::Ended => ENDED,
        };
        self.put(key, Kept { standing, ..kept }.bytes());
        Ok(())
    }

    fn drop_standing(&mut self, session: u64) -> Result<(), Errno> {
        self.delete(key1(tag::SESSION, session));
        Ok(())
    }

    fn put_reply(&mut self, session: u64, place: Place, reply: &[u8]) -> Result<(), Errno> {
        let value = [&place.order.to_le_bytes(), reply].concat();
        self.put(key2(tag::REPLY, session, place.sequence), value);
        Ok(())
    }

    fn drop_reply(&mut self, session: u64, place: Place) -> Result<(), Errno> {
        self.delete(key2(tag::REPLY, session, place.sequence));
        Ok(())
    }
}

impl Record for Store {
    type Error = Errno;

    fn standings(&self) -> Result<Vec<(u64, Standing)>, Errno> {
        let found = self.scan(&key(tag::SESSION), &key(tag::SESSION + 1), usize::MAX, From::Start)?;
        let standing = |kept: &[u8]| match kept.first() {
            Some(&LIVE) => Standing::Live,
            Some(&FENCED) => Standing::Fenced,
            _ => Standing::Ended,
        };
        found.iter().map(|(key, kept)| Ok((number_of(key, 0).ok_or(Errno::Io)?, standing(kept)))).collect()
    }

    fn places(&self, session: u64) -> Result<Vec<Place>, Errno> {
        let range = (key1(tag::REPLY, session), key2(tag::REPLY, session, u64::MAX));
        let found = self.scan(&range.0, &range.1, usize::MAX, From::Start)?;
        let place =
            |key: &[u8], value: &[u8]| Some(Place { order: Reader(value).u64()?, sequence: number_of(key, 1)? });
        found.iter().map(|(key, value)| place(key, value).ok_or(Errno::Io)).collect()
    }

    fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, Errno> {
        let found = self.get(&key2(tag::REPLY, session, place.sequence))?;
        found.map(|value| value.get(8..).and_then(Reply::from_bytes).ok_or(Errno::Io)).transpose()
    }
}

/// Whether a file without a name may go.
pub(crate) fn is_unused(inode: &Inode) -> bool {
    inode.links == 0 && inode.opens == 0
}

/// Shared so that parked work can answer from any thread.
pub(crate) type SharedAnswer = Arc<Mutex<Option<Responder>>>;

#[cfg(test)]
mod tests {
    use sessions::conformance::{Fate, Subject, Work, check};

    use super::*;
    use crate::Options;
    use crate::layout::VOLUME_BYTES_MIN;
    use crate::testing::MemoryDevice;

    struct Volume {
        device: Arc<MemoryDevice>,
        /// `None` while the next server opens: the one before must not write any more.
        fs: Option<Arc<Fs>>,
        lives: u64,
    }

    fn volume() -> Volume {
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
        let mut volume = Volume { device, fs: None, lives: 0 };
        volume.restart();
        volume
    }

    impl Volume {
        fn fs(&self) -> &Fs {
            self.fs.as_ref().expect("open")
        }
    }

    impl Record for Volume {
        type Error = Errno;

        fn standings(&self) -> Result<Vec<(u64, Standing)>, Errno> {
            self.fs().store.standings()
        }

        fn places(&self, session: u64) -> Result<Vec<Place>, Errno> {
            self.fs().store.places(session)
        }

        fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, Errno> {
            self.fs().store.reply(session, place)
        }
    }

    impl Subject for Volume {
        fn step(&mut self, fate: Fate, work: Work<'_, Errno>) -> Result<(), Errno> {
            self.fs().transact_quietly(|txn| {
                work(txn)?;
                if fate == Fate::Fails { Err(Errno::Io) } else { Ok(()) }
            })?;
            self.fs().log.settle()
        }

        fn restart(&mut self) {
            self.lives += 1;
            self.fs = None;
            self.fs = Some(Fs::open(self.device.clone(), Options::inline(self.lives)).expect("the volume opens"));
        }
    }

    #[test]
    fn store_of_the_file_system_conforms() {
        check(volume);
    }

    #[test]
    fn session_is_kept_in_as_many_bytes_as_it_needs_and_those_of_before_are_read() {
        for (kept, bytes) in [
            (NEW, vec![0]),
            (Kept { standing: FENCED, fence: 3, ..NEW }, vec![2, 3, 0, 0, 0, 0, 0, 0, 0]),
            (Kept { client: 65, ..NEW }, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 65, 0, 0, 0]),
            (Kept { writes_behind: true, ..NEW }, vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ] {
            assert_eq!((kept.bytes(), Kept::of(&bytes)), (bytes, kept));
        }
    }
}
