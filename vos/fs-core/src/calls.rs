//! From a request to its answer.
//!
//! Four classes. Reads answer what they find, after everything they may have seen is in the log. Changes go through
//! the session (once only), through the leases of others (recall, wait), are executed, and answer when their record
//! is written. Lock requests are changes that may wait. The rest is about this server itself: fsync, events.
//!
//! A change that waits is a [`Job`] in a table, not a blocked thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use sessions::{Begun, Record, Step};
use vos_api::fs::{self as api, Request, Waits};
use vos_api::{Class, Unreadable};

use crate::cache::Part;
use crate::core::{Fs, Growth};
use crate::error::Errno;
use crate::leases::exclusive::Still;
use crate::leases::{Blocked, Change, Go, Look, Pages, Resume, Seen, Touch, When, Woken};
use crate::locks::{self, Held, LockTable, UNLOCK};
use crate::model::{Inode, key2, tag};
use crate::ops;
use crate::sessions::{AWAY_MS_MAX, End, Mark, SharedAnswer};

/// One request, as vos-api describes it.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// 0: nobody's; no leases are granted and nothing is recorded.
    pub session: u64,
    pub sequence: u64,
    pub op: u16,
    pub flags: u16,
    pub args: [u64; 3],
    pub data: Vec<u8>,
    /// Bytes the reply may have.
    pub capacity: usize,
}

impl Call {
    pub fn request(&self) -> Result<Request<'_>, Unreadable> {
        Request::decode(self.op, self.flags, self.args, &self.data)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// 0 or a Linux errno.
    pub status: u32,
    pub results: [u64; 4],
    pub data: Vec<u8>,
    /// Instead of `data`: pieces of the cache, one after the other.
    pub parts: Vec<Part>,
    /// The lease bit is set when the session still holds all of these at the moment of answering.
    pub lease: Vec<Seen>,
    /// A regular file that was changed: the session may get it exclusively.
    pub changed: Option<u64>,
    /// And nobody has a lock of it.
    pub is_unlocked: bool,
    /// Directories whose names were changed: the same, of all or of none.
    pub names_of: Vec<u64>,
    /// What the reply tells of and others have exclusively.
    pub untold: Vec<u64>,
}

pub type Responder = Box<dyn FnOnce(Reply) + Send>;

/// Whether a reader waits until others have told of what they have exclusively.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Left,
    None,
}

/// Times a change looks again because a name leads elsewhere than before the recall.
const LOOKS_MAX: u32 = 64;

impl Reply {
    pub fn done(words: impl Into<[u64; 4]>) -> Reply {
        Reply { results: words.into(), ..Reply::default() }
    }

    pub fn with_data(words: impl Into<[u64; 4]>, data: Vec<u8>) -> Reply {
        Reply { results: words.into(), data, ..Reply::default() }
    }

    pub fn failed(errno: Errno) -> Reply {
        Reply { status: errno.number(), ..Reply::default() }
    }

    /// To a change, which had the leases that its session has.
    pub fn lease_on(mut self, inos: impl IntoIterator<Item = u64>) -> Reply {
        self.lease.extend(inos.into_iter().map(Seen::by_change));
        self
    }

    /// To whoever only looked.
    pub fn seen(mut self, seen: impl IntoIterator<Item = Seen>) -> Reply {
        self.lease.extend(seen);
        self
    }

    /// To a change of a file, or directory, that its session may have exclusively.
    pub fn changes(mut self, ino: u64, inode: &Inode) -> Reply {
        self.changed = inode.is_file().then_some(ino);
        self.names_of = inode.is_dir().then_some(ino).into_iter().collect();
        self
    }

    /// To a change of names of directories that its session may have exclusively.
    pub fn names_of(mut self, directories: impl IntoIterator<Item = u64>) -> Reply {
        self.names_of = directories.into_iter().collect();
        self
    }

    /// To a change of the locks of a file: when none is left its session may have the file exclusively.
    pub fn of_locks(mut self, ino: u64, inode: &Inode, table: &LockTable) -> Reply {
        if !table.is_empty() {
            return self;
        }
        self.is_unlocked = true;
        self.lease_on([ino]).changes(ino, inode)
    }
}

impl From<sessions::Reply> for Reply {
    fn from(stored: sessions::Reply) -> Reply {
        let sessions::Reply { status, results, data } = stored;
        Reply { status, results, data, ..Reply::default() }
    }
}

impl crate::core::Reply for Reply {
    fn to_bytes(&self) -> Vec<u8> {
        sessions::Reply::encode(self.status, self.results, &self.data)
    }
}

/// A change on its way.
pub(crate) struct Job {
    pub fs: Arc<Fs>,
    pub call: Call,
    answer: SharedAnswer,
    /// What is blocked for others while this waits or runs.
    blocked: Mutex<Option<(Touch, Blocked)>>,
    looks: AtomicU32,
}

impl Fs {
    /// Executes a request on this thread, except for what it has to wait for. `answer` is called once, from any thread.
    pub fn submit(self: &Arc<Fs>, call: Call, answer: Responder) {
        if call.session != 0
            && let Err(errno) = self.check_session(call.session)
        {
            return answer(Reply::failed(errno));
        }
        match call.request() {
            Ok(Request::Read(read)) => self.begin_read(read, call, answer),
            Ok(Request::Fsync(fsync)) => self.begin_sync(fsync.ino, &call, answer),
            Ok(Request::WritesBehind(_)) => {
                let kept = self.keep_behind(call.session);
                answer(kept.map_or_else(Reply::failed, |()| Reply::default()));
            }
            Ok(Request::Numbers(_)) => answer(self.grant_numbers(call.session).unwrap_or_else(Reply::failed)),
            Ok(Request::Told(told)) => {
                let woken = self.leases.told(call.session, told.recall);
                answer(Reply::default());
                self.wake(woken);
            }
            Ok(Request::Events(_)) => self.leases.poll(call.session, call.capacity, answer),
            Ok(Request::Released(released)) => {
                let woken = self.leases.released(call.session, released.recall, self.now());
                answer(Reply::default());
                self.wake(woken);
            }
            Ok(Request::Cancel(cancel)) => {
                self.cancel_waiting(call.session, Some(cancel.sequence));
                answer(Reply::default());
            }
            Ok(Request::Mkdir(it)) if it.parent == api::SNAPSHOTS => self.begin_still(call, answer),
            Ok(Request::Setxattr(it)) if it.name.0 == api::QUOTA_NAME => self.begin_still(call, answer),
            Ok(Request::Setlk(_)) => self.begin_change(call, answer, Fs::run_setlk),
            Ok(_) if api::class_of(call.op) == Some(Class::Once) => self.begin_change(call, answer, Fs::run_change),
            Ok(_) => self.begin_look(call, answer),
            Err(why) => answer(Reply::failed(why.into())),
        }
    }

    /// Executes a request and waits for its answer.
    pub fn call(self: &Arc<Fs>, call: Call) -> Reply {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.submit(call, Box::new(move |reply| drop(sender.send(reply))));
        let mut reply = receiver.recv().unwrap_or_else(|_| Reply::failed(Errno::Io));
        std::mem::take(&mut reply.parts).iter().for_each(|part| reply.data.extend_from_slice(part.bytes()));
        reply
    }

    /// What depends on time: fences sessions that others wait for, gives up those that stayed away, asks for what is
    /// not used, makes a checkpoint.
    pub fn tick(self: &Arc<Fs>, now_ms: u64) {
        self.clock.tell(now_ms);
        self.leases.tick(now_ms);
        let mut doomed = self.leases.silent(now_ms);
        let blockers = self.waiting.lock().blockers();
        let lapsed = {
            let table = self.sessions.lock();
            doomed.extend(blockers.into_iter().filter(|session| table.is_away(*session, api::RECALL_MS, now_ms)));
            doomed.extend(table.away_for(AWAY_MS_MAX, now_ms));
            table.lapsed(AWAY_MS_MAX, now_ms)
        };
        for session in doomed {
            tracing::warn!(session, "fenced: it did not give back what others need, or was away for too long");
            self.end(session, End::Fence);
        }
        for session in lapsed {
            tracing::warn!(session, "given up: it was fenced, and its client stayed away");
            self.end(session, End::Lapse);
        }
        self.reap_due(now_ms);
    }

    fn end(&self, session: u64, end: End) {
        if let Err(errno) = self.end_session(session, end) {
            tracing::error!(session, ?end, "a session could not be ended: {errno}");
        }
    }

    /// Lets those go on who were parked for leases.
    pub(crate) fn wake(&self, woken: Woken) {
        for (resume, go) in woken {
            (self.spawn)(Box::new(move || resume(go)));
        }
    }

    /// Bytes are kept by whoever reads them, so they are read under a lease.
    fn begin_read(self: &Arc<Fs>, read: api::Read, call: Call, answer: Responder) {
        let (session, ino) = (call.session, read.ino);
        let pages = if read.marks & api::WRITABLE != 0 { Pages::Changed } else { Pages::Kept };
        let fs = self.clone();
        let resume = Box::new(move |go| match go {
            Go::On => fs.run_read(call, answer, Patience::Left),
            Go::Fenced => answer(Reply::failed(Errno::Stale)),
        });
        match self.leases.read(session, ino, pages, self.now(), resume) {
            Ok(woken) => self.wake(woken),
            Err(resume) => resume(Go::On),
        }
    }

    /// Attributes are told under a lease: while changes of others are under way, whoever looks waits for them.
    fn begin_look(self: &Arc<Fs>, call: Call, answer: Responder) {
        if let Some(directory) = ops::looked_into(&call).filter(|ino| self.leases.is_taken(call.session, *ino)) {
            return self.after_told(directory, call, answer, Fs::begin_look);
        }
        let Some((ino, look)) = ops::looked_at(self, &call) else {
            return self.run_read(call, answer, Patience::Left);
        };
        let (session, fs) = (call.session, self.clone());
        let resume = Box::new(move |go| match go {
            Go::On => fs.run_read(call, answer, Patience::Left),
            Go::Fenced => answer(Reply::failed(Errno::Stale)),
        });
        if let Err(resume) = self.leases.look(session, ino, look, self.now(), resume) {
            resume(Go::On);
        }
    }

    /// Goes on when whoever has `ino` exclusively has told of it.
    fn after_told(
        self: &Arc<Fs>,
        ino: u64,
        call: Call,
        answer: Responder,
        go_on: impl FnOnce(&Arc<Fs>, Call, Responder) + Send + 'static,
    ) {
        let (session, fs) = (call.session, self.clone());
        let resume = Box::new(move |go| match go {
            Go::On => go_on(&fs, call, answer),
            Go::Fenced => answer(Reply::failed(Errno::Stale)),
        });
        if let Err(resume) = self.leases.look(session, ino, Look::Told, self.now(), resume) {
            resume(Go::On);
        }
    }

    /// What others changed and did not tell yet is made durable, too.
    fn begin_sync(self: &Arc<Fs>, ino: u64, call: &Call, answer: Responder) {
        let (session, fs) = (call.session, self.clone());
        let resume: Resume = Box::new(move |go| match go {
            Go::On => answer(fs.sync().map_or_else(Reply::failed, |()| Reply::default())),
            Go::Fenced => answer(Reply::failed(Errno::Stale)),
        });
        let parked = match ino {
            0 => self.leases.settle(session, None, self.now(), resume),
            _ => self.leases.look(session, ino, Look::Told, self.now(), resume),
        };
        if let Err(resume) = parked {
            resume(Go::On);
        }
    }

    /// A change that comes after all that anybody was answered and did not tell yet: a snapshot has it, a quota counts
    /// it.
    fn begin_still(self: &Arc<Fs>, call: Call, answer: Responder) {
        let still = Still::new(self);
        let answer = Box::new(move |reply| {
            drop(still);
            answer(reply);
        });
        self.settle_all(call, answer);
    }

    /// What is told may be of directories that were made before they were told of, and are had exclusively from then
    /// on: so it is asked again, until nothing is left.
    fn settle_all(self: &Arc<Fs>, call: Call, answer: Responder) {
        let request = Arc::new(Mutex::new(Some((call, answer))));
        let (fs, waiting) = (self.clone(), request.clone());
        let resume: Resume = Box::new(move |go| {
            let Some((call, answer)) = waiting.lock().take() else { return };
            match go {
                Go::On => fs.settle_all(call, answer),
                Go::Fenced => answer(Reply::failed(Errno::Stale)),
            }
        });
        const NOBODYS: u64 = 0;
        if self.leases.settle(NOBODYS, None, self.now(), resume).is_err()
            && let Some((call, answer)) = request.lock().take()
        {
            self.begin_change(call, answer, Fs::run_change);
        }
    }

    /// What others have exclusively and this change reads, opens or locks, they have to tell of first.
    fn begin_change(self: &Arc<Fs>, call: Call, answer: Responder, run: fn(&Arc<Fs>, Arc<Job>)) {
        let session = call.session;
        let is_taken = |ino: &u64| self.leases.is_taken(session, *ino);
        // What names lead to is known then.
        if let Some(directory) = ops::directories_of(&call).into_iter().flatten().find(is_taken) {
            return self
                .after_told(directory, call, answer, move |fs, call, answer| fs.begin_change(call, answer, run));
        }
        match ops::read_by_change(self, &call).filter(is_taken) {
            Some(ino) => self.after_told(ino, call, answer, move |fs, call, answer| fs.begin_job(call, answer, run)),
            None => self.begin_job(call, answer, run),
        }
    }

    fn run_read(self: &Arc<Fs>, call: Call, answer: Responder, patience: Patience) {
        let mut reply = ops::read(self, &call).unwrap_or_else(Reply::failed);
        let untold = std::mem::take(&mut reply.untold);
        if !untold.is_empty() && patience == Patience::Left {
            // A listing: told of all at once it can be kept.
            let (fs, session) = (self.clone(), call.session);
            let resume: Resume = Box::new(move |go| match go {
                Go::On => fs.run_read(call, answer, Patience::None),
                Go::Fenced => answer(Reply::failed(Errno::Stale)),
            });
            if let Err(resume) = self.leases.settle(session, Some(&untold), self.now(), resume) {
                resume(Go::On);
            }
            return;
        }
        let (fs, session) = (self.clone(), call.session);
        self.log.after(Box::new(move |result| match result {
            Ok(()) => fs.deliver(session, reply, answer),
            Err(errno) => answer(Reply::failed(errno)),
        }));
    }

    fn deliver(&self, session: u64, mut reply: Reply, answer: Responder) {
        let seen = std::mem::take(&mut reply.lease);
        self.leases.deliver(session, &seen, |is_held| {
            if is_held {
                reply.results[3] |= api::LEASE | api::DELEGATES;
            }
            answer(reply);
        });
    }

    /// The same of a change.
    fn deliver_change(&self, session: u64, mut reply: Reply, answer: Responder) {
        let stills = self.leases.stills();
        // Where a quota counts nobody promises anything: it might not allow that.
        if self.quotas.are_any() {
            reply.changed = reply.changed.filter(|ino| !self.is_counted(*ino));
            if reply.names_of.iter().any(|ino| self.is_counted(*ino)) {
                reply.names_of.clear();
            }
        }
        if reply.changed.is_none() && reply.names_of.is_empty() {
            return self.deliver(session, reply, answer);
        }
        let seen = std::mem::take(&mut reply.lease);
        let room = if self.has_room_behind() { api::ROOM } else { 0 };
        let directories = std::mem::take(&mut reply.names_of);
        self.leases.deliver_change(session, &seen, (reply.changed, &directories), stills, |terms| {
            if terms.is_held {
                reply.results[3] |= api::LEASE | api::DELEGATES;
            }
            if terms.is_exclusive {
                reply.results[3] |= api::EXCLUSIVE | if reply.is_unlocked { api::UNLOCKED } else { 0 };
            }
            if terms.has_names {
                reply.results[3] |= api::EXCLUSIVE_NAMES | api::MOVES_BETWEEN;
            }
            reply.results[3] |= room;
            answer(reply);
        });
    }

    fn begin_job(self: &Arc<Fs>, call: Call, answer: Responder, run: fn(&Arc<Fs>, Arc<Job>)) {
        let mark = Mark { session: call.session, sequence: call.sequence };
        if mark.session == 0 || mark.sequence == 0 {
            return run(self, Job::new(self, call, answer));
        }
        let (begun, void) = {
            let mut table = self.sessions.lock();
            // Of a lock that went with a fence nobody was told that it was had.
            if call.op == api::SETLK { table.begin_held(mark, answer) } else { (table.begin(mark, answer), None) }
        };
        match begun {
            Begun::Execute(answer) => {
                let job = Job::new(self, call, answer);
                if let Some(place) = void {
                    match self.transact_quietly(|txn| txn.drop_reply(mark.session, place)) {
                        Ok(()) => self.log.drive(),
                        Err(errno) => return job.fail(errno),
                    }
                }
                run(self, job);
            }
            Begun::Joined => (),
            Begun::Executed(answer, place) => {
                let stored = self.store.reply(mark.session, place).and_then(|reply| reply.ok_or(Errno::Io));
                let reply = stored.map_or_else(Reply::failed, Reply::from);
                self.log.after(Box::new(move |result| answer(result.map_or_else(Reply::failed, |()| reply))));
            }
            Begun::Refused(answer, refusal) => answer(Reply::failed(refusal.into())),
        }
    }

    fn run_change(self: &Arc<Fs>, job: Arc<Job>) {
        let touch = match ops::touch(self, &job.call) {
            Ok(touch) => touch,
            Err(errno) => return job.fail(errno),
        };
        let session = job.call.session;
        let when = match job.call.request() {
            Ok(Request::Write(write)) if write.marks & api::BEHIND != 0 => When::Behind,
            Ok(Request::Setattr(it)) if it.wanted.valid.get() & api::valid::BEHIND != 0 => When::Behind,
            Ok(Request::Names(names)) if names.marks & api::BEHIND != 0 => When::Behind,
            Ok(Request::Write(write)) if write.marks & api::LATE != 0 => When::Earlier,
            _ => When::Now,
        };
        let blocked = self.leases.begin_change(session, &touch);
        let number = blocked.number;
        *job.blocked.lock() = Some((touch.clone(), blocked));
        let (fs, waiting) = (self.clone(), job.clone());
        let resume = Box::new(move |go| fs.execute(waiting, go));
        let (parked, woken) = self.leases.wait(number, Change { session, touch: &touch, when }, self.now(), resume);
        if let Err(resume) = parked {
            resume(Go::On);
        }
        self.wake(woken);
    }

    fn execute(self: &Arc<Fs>, job: Arc<Job>, go: Go) {
        let Some((touch, blocked)) = job.blocked.lock().take() else { return job.fail(Errno::Io) };
        let result = match go {
            Go::On => job.check_session().and_then(|()| ops::change(&job, &touch)),
            Go::Fenced => Err(Errno::Stale),
        };
        self.wake(self.leases.end_change(blocked, self.now()));
        match result {
            Ok(()) => self.log.drive(),
            // The name leads elsewhere than before: ask its holders too.
            Err(Errno::TryAgain) if job.looks.fetch_add(1, Ordering::Relaxed) < LOOKS_MAX => self.run_change(job),
            Err(errno) => job.fail(errno),
        }
    }

    fn run_setlk(self: &Arc<Fs>, job: Arc<Job>) {
        let Ok(Request::Setlk(setlk)) = job.call.request() else { return job.fail(Errno::Invalid) };
        let wanted = match Held::new(job.call.session, setlk.handle, &setlk.lock) {
            Ok(wanted) => wanted,
            Err(errno) => return job.fail(errno),
        };
        if wanted.is_flock()
            && wanted.kind != UNLOCK
            && let Err(errno) = self.give_up_flock(setlk.ino, wanted)
        {
            return job.fail(errno);
        }
        let waits = setlk.waits == Waits::Yes && wanted.kind != UNLOCK;
        let parked = if waits { self.park(&job, setlk.ino, wanted).map(Some) } else { Ok(None) };
        match parked {
            Ok(parked) => self.try_lock(&job, setlk.ino, wanted, parked),
            Err(errno) => job.fail(errno),
        }
    }

    /// A change of its own, before the request is tried or waits: it stays also when the request fails.
    fn give_up_flock(self: &Arc<Fs>, ino: u64, wanted: Held) -> Result<(), Errno> {
        let mut is_lost = false;
        self.transact_quietly(|txn| {
            let mut table = locks::load(txn, ino)?;
            is_lost = table.give_up(&wanted);
            if is_lost {
                locks::store(&table, txn, ino);
            }
            Ok(())
        })?;
        if is_lost {
            self.log.drive();
            self.wake_lockers(ino);
        }
        Ok(())
    }

    fn park(self: &Arc<Fs>, job: &Arc<Job>, ino: u64, wanted: Held) -> Result<u64, Errno> {
        let (fs, again, cancelled) = (self.clone(), job.clone(), job.clone());
        self.waiting.lock().park(
            ino,
            wanted,
            job.call.sequence,
            Box::new(move || fs.run_setlk(again)),
            Box::new(move || cancelled.fail(Errno::Interrupted)),
        )
    }

    fn try_lock(self: &Arc<Fs>, job: &Arc<Job>, ino: u64, wanted: Held, parked: Option<u64>) {
        let mut conflict: Option<LockTable> = None;
        let mut is_taken = false;
        let result = job.transact(Growth::Grows, |txn| {
            let inode = txn.inode(ino)?;
            // A request that was parked when its file was closed must not leave a lock behind.
            if wanted.handle != 0 && txn.get(&key2(tag::HANDLE, wanted.session, wanted.handle))?.is_none() {
                return Err(Errno::BadHandle);
            }
            let mut table = locks::load(txn, ino)?;
            if wanted.kind != UNLOCK && table.conflict(&wanted).is_some() {
                conflict = Some(table);
                return Err(Errno::TryAgain);
            }
            // While it was parked somebody else may have taken it up, or cancelled it.
            if parked.is_some_and(|id| !self.waiting.lock().unpark(id)) {
                is_taken = true;
                return Err(Errno::TryAgain);
            }
            table.set(wanted)?;
            locks::store(&table, txn, ino);
            Ok(Reply::default().of_locks(ino, &inode, &table))
        });
        match (result, parked, conflict) {
            (Ok(()), ..) => {
                self.log.drive();
                // A range that was given up, or turned from writing to reading, lets others in.
                self.wake_lockers(ino);
            }
            (Err(_), ..) if is_taken => (),
            (Err(_), parked, Some(table)) => self.lock_conflict(job, parked, &table),
            (Err(errno), parked, None) => {
                if parked.is_none_or(|id| self.waiting.lock().unpark(id)) {
                    job.fail(errno);
                }
            }
        }
    }

    fn lock_conflict(self: &Arc<Fs>, job: &Arc<Job>, parked: Option<u64>, table: &LockTable) {
        let Some(id) = parked else { return job.fail(Errno::TryAgain) };
        let outcome = self.waiting.lock().block(id, table);
        if let Err(errno) = outcome {
            job.fail(errno);
        }
    }
}

impl Job {
    fn new(fs: &Arc<Fs>, call: Call, answer: Responder) -> Arc<Job> {
        let answer = Arc::new(Mutex::new(Some(answer)));
        Arc::new(Job { fs: fs.clone(), call, answer, blocked: Mutex::new(None), looks: AtomicU32::new(0) })
    }

    /// A session may have ended while its change was parked.
    fn check_session(&self) -> Result<(), Errno> {
        match self.call.session {
            0 => Ok(()),
            session => self.fs.check_session(session),
        }
    }

    fn mark(&self) -> Option<Mark> {
        let mark = Mark { session: self.call.session, sequence: self.call.sequence };
        (mark.session != 0 && mark.sequence != 0).then_some(mark)
    }

    /// The last step of the change: its effect, its reply and its place in the session in one record.
    pub fn transact(
        self: &Arc<Job>,
        growth: Growth,
        work: impl FnOnce(&mut crate::txn::Txn<'_>) -> Result<Reply, Errno>,
    ) -> Result<(), Errno> {
        let job = self.clone();
        let finish = Box::new(move |result| job.conclude(result));
        self.fs.transact(growth, self.mark(), finish, work).map_err(|(errno, _)| errno)
    }

    /// As [`Job::transact`], for what is not done before the next checkpoint. Waits for both.
    pub fn transact_and_commit(
        self: &Arc<Job>,
        growth: Growth,
        work: impl FnOnce(&mut crate::txn::Txn<'_>) -> Result<Reply, Errno>,
    ) -> Result<(), Errno> {
        let (sender, written) = std::sync::mpsc::sync_channel(1);
        let finish = Box::new(move |result| drop(sender.send(result)));
        self.fs.transact(growth, self.mark(), finish, work).map_err(|(errno, _)| errno)?;
        self.fs.log.drive();
        let result = written.recv().unwrap_or(Err(Errno::Io));
        self.conclude(result.and_then(|reply| self.fs.checkpoint().map(|()| reply)));
        Ok(())
    }

    /// Nothing was changed. The answer may tell of changes by others, so it waits for their records too.
    pub fn fail(self: &Arc<Job>, errno: Errno) {
        let job = self.clone();
        self.fs.log.after(Box::new(move |_| job.conclude(Err(errno))));
    }

    fn conclude(&self, result: Result<Reply, Errno>) {
        let mut reply = result.unwrap_or_else(Reply::failed);
        let asks = self.call.op == api::WRITE && self.call.flags & api::SYNC_FOLLOWS != 0;
        if asks && reply.status == 0 && self.fs.log.is_flushed() {
            reply.results[3] |= api::SYNCED;
        }
        let others = self.mark().map(|mark| self.fs.sessions.lock().finish(mark)).unwrap_or_default();
        let own = self.answer.lock().take();
        for answer in own.into_iter().chain(others) {
            self.fs.deliver_change(self.call.session, reply.clone(), answer);
        }
    }
}
