//! Programs are answered before the server is told ([`crate::behind`]).
//!
//! A write, or a change of attributes, of a file that the session has exclusively is written into the state object, and
//! answered. It is told at once, if nothing else of the inode is being told. Requests for which the server has to know
//! all of it wait until it does; those are flights without an operation, so that a signal finds them. Of names:
//! [`super::names`].
//!
//! Nothing is promised by a gate that may be too late to hear that others want the file ([`Gate::is_heard`]), while a
//! change is under way that may be of the same inode, or when the server said that it has no room.

use std::collections::BTreeSet;

use vos_api::Operation;
use vos_api::fs::{
    self, Getattr, NAMES, OPEN, SETATTR, SETLK, Setattr, Setlk, WRITE, Waits, Write, WritesBehind, valid,
};
use zerocopy::IntoBytes;

use super::{Backend, Gate, GateError, Held, IN_FLIGHT_MAX, Phase, now_ns};
use crate::backend::{Done, Op, Token};
use crate::behind::{Answer, Change, Next, Promise, Telling, Told, kills_ids};
use crate::complete::{attr_of, attributes};
use crate::flight::{Flight, Loser};
use crate::kernel;
use crate::notify;
use crate::recall::What;
use crate::request::{self, Body, Request};
use crate::translate::{self, Then, is_delegated};

/// Chains that are told at a time, beside the requests of programs.
const TELLS_MAX: usize = IN_FLIGHT_MAX / 4;
/// No backend counts that far.
const WAITING: u64 = 1 << 63;
/// As status of an operation: there is no such inode any more.
const GONE: u32 = libc::EIDRM as u32;
const ROOM_FOR_ATTR: u32 = size_of::<fs::Attr>() as u32;

/// Whether the server lets this gate answer before it is told.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Consent {
    #[default]
    No,
    Asked(Token),
    Given,
}

/// A request that waits for the promises of a chain.
pub(super) struct Waiting {
    token: Token,
    chain: u64,
    /// For those of all chains, this one first.
    is_for_all: bool,
    held: Held,
}

/// What has to be told before the server can carry a request out.
enum Needs {
    Nothing,
    Chain(u64),
    All,
}

impl<B: Backend> Gate<B> {
    /// Asks the server whether this gate may answer before it tells.
    pub(super) fn ask_for_consent(&mut self) {
        if self.consent == Consent::No
            && let Ok(token) = self.backend.submit(&Op::of(&WritesBehind {}.encode(), 0, None))
        {
            self.consent = Consent::Asked(token);
        }
    }

    /// `true`: it was the answer to that.
    pub(super) fn consented(&mut self, done: &Done<B::Data>) -> bool {
        let is_it = self.consent == Consent::Asked(done.token);
        if is_it {
            // A server of an earlier release does not know the question.
            self.consent = if done.status == 0 { Consent::Given } else { Consent::No };
        }
        is_it
    }

    /// What an answer to a change of a regular file says of further ones.
    pub(super) fn note_terms(&mut self, ino: u64, results: [u64; 4]) {
        self.has_room = results[3] & fs::ROOM != 0;
        self.cache.set_exclusive(ino, results[3] & fs::EXCLUSIVE != 0 && self.may_write_behind());
    }

    /// Answers a change that can be told later. `false`: it cannot.
    pub(super) fn promise(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let (unique, key) = (request.header.unique, request.key());
        let ino = match request.body {
            Body::CopyFileRange(head) => head.nodeid_out,
            _ => request.header.nodeid,
        };
        // Nor while somebody waits for what is promised of it: they would wait for ever.
        let chain = self.behind.chain(ino);
        let is_wanted = self.is_waited_for(ino) || [ino, chain].into_iter().any(|ino| self.recalls.awaits(ino));
        let may = self.cache.is_exclusive(ino) && self.may_promise() && !is_wanted;
        if !may || self.state.noted(key).is_some() {
            return Ok(false);
        }
        let Some(attr) = self.cache.memory.certain(ino).copied().filter(|_| self.cache.is_bare(ino)) else {
            return Ok(false);
        };
        // Each has a time of its own: by it a fenced session sees what it has done.
        let time_ns = now_ns().max(attr.ctime_ns.get().saturating_add(1));
        let change = match request.body {
            Body::Write { head, data } => {
                let marks = translate::write_marks(&head);
                let goes_elsewhere = marks & fs::APPEND != 0 && head.offset != attr.bytes.get();
                if marks & fs::LATE != 0 || goes_elsewhere || kills_ids(marks, &attr) {
                    return Ok(false);
                }
                Change::Write { offset: head.offset, bytes: data.to_vec() }
            }
            Body::Setattr(head) => Change::Set(translate::setattr(&head, time_ns)),
            // As `cp` does it, of a small file that is known here.
            Body::CopyFileRange(head) => match self.known_bytes(request.header.nodeid, &head) {
                Some(bytes) => Change::Write { offset: head.off_out, bytes },
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        let Some(after) = change.applied_to(&attr, time_ns).filter(|_| self.behind.fits(&change)) else {
            return Ok(false);
        };
        let (id, before_ns) = (self.behind.next_id(), attr.ctime_ns.get());
        let promise = Promise { id, key, ino, chain, time_ns, before_ns, change };
        if !self.state.promise(&promise)? {
            return Ok(false);
        }
        self.counters.promises += 1;
        if let Change::Write { .. } = promise.change {
            self.syncs.written(ino);
        }
        self.cache.memory.promise(ino, &after, &promise.change);
        let answer = promise.answer();
        self.behind.add(promise);
        match answer {
            Answer::Bytes(size) => self.answer(unique, 0, kernel::WriteOut { size, padding: 0 }.as_bytes())?,
            _ => self.answer(unique, 0, attributes(&after, false).as_bytes())?,
        }
        Ok(true)
    }

    /// Whether a request waits until what was promised of an inode is told.
    pub(super) fn is_waited_for(&self, ino: u64) -> bool {
        let chain = self.behind.chain(ino);
        self.waiting.iter().any(|waiting| waiting.is_for_all || waiting.chain == chain || waiting.chain == ino)
    }

    /// Bytes that are to be copied, if they are known.
    fn known_bytes(&self, source: u64, head: &kernel::CopyFileRangeIn) -> Option<Vec<u8>> {
        if source == head.nodeid_out || head.flags != 0 || !self.cache.is_leased(source) {
            return None;
        }
        let content = self.cache.memory.content(source)?;
        let rest = content.get(usize::try_from(head.off_in).ok()?..)?;
        Some(rest.get(..usize::try_from(head.len).unwrap_or(usize::MAX)).unwrap_or(rest).to_vec())
    }

    pub(super) fn may_promise(&self) -> bool {
        self.has_room && matches!(self.phase, Phase::Serving) && self.is_heard() && self.owed.is_empty()
    }

    /// A request that a dead gate had promised and perhaps not answered.
    pub(super) fn answer_promised(&mut self, request: &Request<'_>) -> Result<bool, GateError> {
        let unique = request.header.unique;
        match self.behind.inherited(request.key()) {
            Some(Answer::Bytes(size)) => {
                self.answer(unique, 0, kernel::WriteOut { size, padding: 0 }.as_bytes())?;
            }
            Some(Answer::Entry(attr)) => self.answer_inherited(request, &attr)?,
            Some(Answer::Nothing) => self.answer(unique, 0, &[])?,
            Some(Answer::Attributes) | None => return Ok(false),
        }
        Ok(true)
    }

    /// The same of a change of attributes, whose answer has to be asked for.
    pub(super) fn was_promised(&self, request: &Request<'_>) -> bool {
        matches!(request.body, Body::Setattr(_)) && self.behind.inherited(request.key()).is_some()
    }

    /// Puts a request off until the server has been told what it must know for it. `false`: it knows.
    pub(super) fn put_off(&mut self, request: &Request<'_>, bytes: &[u8], step: u32) -> bool {
        if self.behind.is_empty() {
            return false;
        }
        let (chain, is_for_all) = match self.needs(request) {
            Needs::Nothing => return false,
            Needs::Chain(chain) => (chain, false),
            Needs::All => match self.behind.any() {
                Some(chain) => (chain, true),
                None => return false,
            },
        };
        self.waits += 1;
        let token = Token(WAITING | self.waits);
        let (unique, key, thread) = (request.header.unique, request.key(), request.header.pid);
        let flight = Flight { thread, ..Flight::new(unique, key, request.header.nodeid, Then::Waits) };
        self.flights.insert(token, flight);
        self.waiting.push(Waiting { token, chain, is_for_all, held: Held { bytes: bytes.to_vec(), step } });
        true
    }

    fn needs(&self, request: &Request<'_>) -> Needs {
        let ino = request.header.nodeid;
        let of = |ino: u64| self.behind.waits_on(ino).map_or(Needs::Nothing, Needs::Chain);
        let first = |inos: &[u64]| inos.iter().find_map(|ino| self.behind.waits_on(*ino)).map(Needs::Chain);
        match request.body {
            Body::Syncfs => Needs::All,
            Body::Getattr
            | Body::Read(_)
            | Body::Write { .. }
            | Body::Setattr(_)
            | Body::Fsync(_)
            | Body::Fsyncdir
            | Body::Fallocate(_)
            | Body::Lseek(_)
            | Body::Setxattr { .. }
            | Body::Removexattr { .. }
            | Body::Readdir { .. }
            | Body::Create { .. }
            | Body::Mknod { .. }
            | Body::Mkdir { .. }
            | Body::Symlink { .. }
            | Body::Ioctl { .. } => of(ino),
            // Other names than those that are promised are as the server knows them.
            Body::Lookup { name } if self.behind.is_unborn(ino) || self.cache.memory.is_promised_name(ino, name) => {
                of(ino)
            }
            // It may have been moved.
            Body::Lookup { name: b".." } => of(ino),
            // They have something to give up, or to ask, where the locks are.
            Body::Setlk { .. } | Body::Getlk(_) | Body::Flush(_) | Body::Release(_) if self.behind.has_locks(ino) => {
                Needs::Chain(ino)
            }
            Body::Open(head) if head.flags & libc::O_TRUNC as u32 != 0 => of(ino),
            // There has to be such an inode.
            Body::Open(_)
            | Body::Readlink
            | Body::Getxattr { .. }
            | Body::Listxattr { .. }
            | Body::Setlk { .. }
            | Body::Getlk(_)
                if self.behind.home(ino).is_some() =>
            {
                of(ino)
            }
            Body::Link { ino: target, .. } => first(&[target, ino]).unwrap_or(Needs::Nothing),
            Body::CopyFileRange(head) => first(&[head.nodeid_out, ino]).unwrap_or(Needs::Nothing),
            Body::Rmdir { name } => {
                let child = self.cache.memory.name(ino, name).flatten();
                first(&[ino, child.unwrap_or(ino)]).unwrap_or(Needs::Nothing)
            }
            // Their change times follow those of what was promised.
            Body::Unlink { .. } => match (first(&[ino]), self.loser(request)) {
                (Some(needs), _) => needs,
                // Nobody will see it again.
                (_, Loser::Inode(ino)) if self.is_last_name(ino) && !self.state.is_open(ino) => Needs::Nothing,
                (_, Loser::Inode(ino)) => of(ino),
                (_, Loser::Unknown) => Needs::All,
                (_, Loser::Nothing) => Needs::Nothing,
            },
            Body::Rename { to, old, .. } => match (self.cache.memory.name(ino, old), self.loser(request)) {
                (Some(Some(moved)), Loser::Inode(replaced)) => {
                    first(&[ino, to, moved, replaced]).unwrap_or(Needs::Nothing)
                }
                (Some(Some(moved)), Loser::Nothing) => first(&[ino, to, moved]).unwrap_or(Needs::Nothing),
                _ => Needs::All,
            },
            _ => Needs::Nothing,
        }
    }

    fn is_last_name(&self, ino: u64) -> bool {
        self.cache.memory.attr(ino).is_some_and(|attr| attr.links.get() == 1)
    }

    /// Tells what can be told.
    pub(super) fn tell_promises(&mut self) -> Result<(), GateError> {
        if !matches!(self.phase, Phase::Serving) {
            return Ok(());
        }
        self.ask_for_numbers();
        while self.tells < TELLS_MAX
            && let Some(ino) = self.behind.ready()
        {
            let Some(id) = self.behind.first(ino) else { continue };
            let key = promise_key(id);
            let noted = self.state.noted(key);
            let count = noted.map(|noted| noted.step as usize).filter(|count| *count > 0);
            let mut looked_at = None;
            let submitted = match self.behind.next(ino, count) {
                None => continue,
                Some(Next::Tell(Telling { change: Told::One(Change::Lock(held)), .. }))
                    if is_delegated(&self.state, held.handle) =>
                {
                    let sequence = Some(self.state.note(key, 0, OPEN)?);
                    let flags = self.state.handle(held.handle).map_or(0, |handle| handle.flags);
                    let plan = translate::open_for_lock(ino, flags);
                    let submitted = self.backend.submit(&Op::of(&plan.asked, plan.in_capacity, sequence));
                    submitted.map(|token| (token, Then::Opens { fh: held.handle }, 1, Vec::new()))
                }
                Some(Next::Look(member)) => {
                    looked_at = Some(member);
                    let asked = Getattr { marks: fs::BEHIND, ino: member }.encode();
                    self.backend
                        .submit(&Op::of(&asked, ROOM_FOR_ATTR, None))
                        .map(|token| (token, Then::Looks, 0, Vec::new()))
                }
                Some(Next::Tell(mut telling)) => {
                    let (op, folds) = match &mut telling.change {
                        Told::One(Change::Write { .. }) => (WRITE, Vec::new()),
                        Told::One(Change::Set(_)) => (SETATTR, Vec::new()),
                        Told::One(Change::Lock(_)) => (SETLK, Vec::new()),
                        Told::One(Change::Name(_)) => continue,
                        Told::Names(batch) => (NAMES, std::mem::take(&mut batch.folds)),
                    };
                    let sequence = Some(self.state.note(key, telling.count as u32, op)?);
                    let count = telling.count;
                    self.submit_telling(telling, sequence).map(|token| (token, Then::Behind, count, folds))
                }
            };
            let Ok((token, then, count, folds)) = submitted else {
                self.behind.again(ino);
                break;
            };
            self.tells += 1;
            match looked_at {
                Some(member) => self.behind.looks(member),
                None => self.behind.began(ino, count, folds),
            }
            let about = looked_at.unwrap_or(ino);
            self.flights.insert(token, Flight { is_left: true, ..Flight::new(key, key, about, then) });
        }
        Ok(())
    }

    fn submit_telling(&mut self, telling: Telling, sequence: Option<u64>) -> Result<Token, crate::backend::Refused> {
        let Telling { ino, time_ns, change, is_exclusive, .. } = telling;
        let marks = if is_exclusive { fs::BEHIND } else { fs::PROMISED };
        let change = match change {
            Told::One(change) => change,
            Told::Names(batch) => {
                let asked = fs::Names { marks, parent: batch.parent, time_ns, changes: &batch.changes }.encode();
                return self.backend.submit(&Op::of(&asked, 0, sequence));
            }
        };
        match change {
            Change::Name(_) => Err(crate::backend::Refused::TooLong),
            Change::Write { offset, bytes } => {
                let marks = marks | if self.syncs.follows(ino) { fs::SYNC_FOLLOWS } else { 0 };
                let asked = Write { marks, ino, offset, time_ns, bytes: &bytes }.encode();
                self.backend.submit(&Op::of(&asked, ROOM_FOR_ATTR, sequence))
            }
            Change::Set(mut wanted) => {
                wanted.valid = (wanted.valid.get() | if is_exclusive { valid::BEHIND } else { 0 }).into();
                let asked = Setattr { ino, time_ns, wanted }.encode();
                self.backend.submit(&Op::of(&asked, ROOM_FOR_ATTR, sequence))
            }
            Change::Lock(held) => {
                let handle = self.state.handle(held.handle).map_or(0, |handle| handle.known_as());
                let asked = Setlk { ino, waits: Waits::Kept, handle, lock: held.to_lock() }.encode();
                self.backend.submit(&Op::of(&asked, 0, sequence))
            }
        }
    }

    /// The answer to what was told.
    pub(super) fn told(&mut self, flight: &Flight, done: &Done<B::Data>) -> Result<(), GateError> {
        self.tells = self.tells.saturating_sub(1);
        let chain = flight.ino;
        let told = self.behind.told(chain);
        let ino = told.first().map_or(chain, |promise| promise.ino);
        let is_lock = told.first().is_some_and(|promise| promise.change.is_lock());
        let are_names = told.first().is_some_and(|promise| matches!(promise.change, Change::Name(_)));
        let of_names = told.iter().filter(|promise| matches!(promise.change, Change::Name(_)));
        let directories: BTreeSet<u64> = of_names.flat_map(Promise::directories).chain([ino]).collect();
        self.state.answered_once(flight.key)?;
        self.forget_promises(&told)?;
        match done.status {
            0 if is_lock => {}
            0 if are_names || self.is_directory(ino) => self.note_names_told(directories, done.results),
            0 if self.is_file(ino) => {
                self.note_terms(ino, done.results);
                if let Some(last) = told.last().filter(|_| done.results[3] & fs::SYNCED != 0) {
                    self.syncs.made_durable(ino, last.time_ns);
                }
            }
            0 => {}
            GONE if !are_names => self.give_up(ino, GONE)?,
            errno => {
                self.has_room &= is_lock;
                let errno = for_programs(errno);
                self.names_not_kept(&told, errno);
                directories.into_iter().for_each(|ino| self.not_kept(ino, errno));
            }
        }
        // Others may have what is told as any change.
        if self.behind.has(chain) && !self.behind.holds_back(chain) {
            for ino in self.behind.directories(chain).into_iter().chain([ino]) {
                self.cache.set_exclusive(ino, false);
            }
        }
        let is_kept = done.status == 0 && (!are_names || done.results[3] & fs::LEASE != 0);
        let said = attr_of(&done.data).filter(|_| is_kept && !are_names);
        self.settle(&told, is_kept, said.as_ref());
        if are_names && !is_kept {
            self.leave_names(&told);
        }
        Ok(())
    }

    /// Promises are over: what the inodes are is known, if it `is_kept`; `said`: what the server said of one of them.
    pub(super) fn settle(&mut self, over: &[Promise], is_kept: bool, said: Option<&fs::Attr>) {
        for ino in over.iter().flat_map(Promise::subjects) {
            if self.behind.is_marked(ino) {
                continue;
            }
            let promised = self.cache.memory.promised(ino).copied();
            let attr = said.filter(|attr| attr.ino.get() == ino).copied().or(promised);
            let is_known = is_kept && self.cache.is_leased(ino);
            self.cache.memory.told(ino, attr.filter(|attr| is_known && attr.links.get() > 0).as_ref());
        }
        for promise in over {
            if let Change::Name(naming) = &promise.change {
                naming.names(promise.ino).for_each(|(parent, name)| self.cache.memory.told_name(parent, name));
            }
        }
        self.behind.take_ended().into_iter().for_each(|chain| self.all_told(chain));
    }

    /// The server has a file open, or not, through which a lock was set.
    pub(super) fn opened_for_lock(&mut self, flight: &Flight, fh: u64, done: &Done<B::Data>) -> Result<(), GateError> {
        if done.status != 0 {
            return self.told(flight, done);
        }
        self.tells = self.tells.saturating_sub(1);
        self.state.replace(fh, fs::Opened::from(done.results).handle)?;
        self.state.answered_once(flight.key)?;
        self.behind.goes_on(flight.ino);
        Ok(())
    }

    /// What a fenced session finds of an inode.
    pub(super) fn looked(&mut self, flight: &Flight, done: &Done<B::Data>) -> Result<(), GateError> {
        self.tells = self.tells.saturating_sub(1);
        let ino = flight.ino;
        match (done.status, attr_of(&done.data)) {
            (0, Some(attr)) => {
                let is_exclusive = done.results[3] & fs::EXCLUSIVE != 0;
                self.found(ino, Some(attr.ctime_ns.get()), is_exclusive)?;
            }
            (GONE, _) if self.behind.may_be_missing(ino) => self.found(ino, None, true)?,
            (errno, _) => self.give_up(ino, errno)?,
        }
        Ok(())
    }

    fn found(&mut self, ino: u64, changed_ns: Option<u64>, is_exclusive: bool) -> Result<(), GateError> {
        let (over, is_kept) = self.behind.looked(ino, changed_ns, is_exclusive);
        self.forget_promises(&over)?;
        if !is_kept {
            self.names_not_kept(&over, libc::EIO);
            let inos: BTreeSet<u64> = over.iter().flat_map(Promise::directories).chain([ino]).collect();
            inos.into_iter().for_each(|ino| self.not_kept(ino, libc::EIO));
        }
        self.settle(&over, false, None);
        Ok(())
    }

    /// Nothing of an inode's chain is told any more, because of what the server said of the inode. A file that is gone
    /// nobody misses; names, and what was promised of other inodes together with them, somebody does.
    fn give_up(&mut self, ino: u64, errno: u32) -> Result<(), GateError> {
        let lost = self.behind.give_up(ino);
        self.forget_promises(&lost)?;
        let has_names = lost.iter().any(|promise| matches!(promise.change, Change::Name(_)));
        let (is_missed, errno) = (has_names || errno != GONE, for_programs(errno));
        self.names_not_kept(&lost, errno);
        let inos: BTreeSet<u64> = lost.iter().flat_map(Promise::directories).chain([ino]).collect();
        inos.into_iter().filter(|it| is_missed || *it != ino).for_each(|ino| self.not_kept(ino, errno));
        self.settle(&lost, false, None);
        Ok(())
    }

    pub(super) fn forget_promises(&mut self, over: &[Promise]) -> Result<(), GateError> {
        // Under the number of the first they may have been told.
        if let Some(first) = over.first() {
            self.state.answered_once(promise_key(first.id))?;
        }
        let state = &mut self.state;
        // Names last, and in their order: by the last of them whoever follows sees that what went with them is done.
        let (names, others): (Vec<_>, Vec<_>) =
            over.iter().partition(|promise| matches!(promise.change, Change::Name(_)));
        Ok(others.into_iter().chain(names).try_for_each(|promise| match &promise.change {
            Change::Lock(held) => state.forget_lock(promise.ino, held),
            _ => state.forget_promise(promise.id),
        })?)
    }

    pub(super) fn not_kept(&mut self, ino: u64, errno: i32) {
        tracing::error!(ino, errno, "a change that its program was answered is lost");
        self.behind.fails(ino, errno);
        // What the kernel has been told is not so. Attributes alone: that takes no lock.
        notify::drop_attributes(&self.fuse, ino);
        self.drop_pages(ino, None, None, None);
        self.cache.memory.forget(ino);
        self.cache.set_exclusive(ino, false);
    }

    /// A chain is over: whoever waited for that goes on.
    fn all_told(&mut self, chain: u64) {
        for waiting in self.waiting.extract_if(.., |waiting| waiting.chain == chain) {
            // One that is left has its answer.
            if self.flights.remove(waiting.token).is_some_and(|flight| !flight.is_left) {
                self.held.push_back(waiting.held);
            }
        }
    }

    /// Chains that an event of the server is about.
    pub(super) fn promised_of(&self, what: &What) -> Vec<u64> {
        match what {
            What::Inode { ino, .. } | What::Tell { ino } => {
                let own = Some(self.behind.chain(*ino)).filter(|ino| self.behind.has(*ino));
                own.into_iter().chain(self.behind.home(*ino)).collect()
            }
            What::Everything => self.behind.inos().collect(),
            What::Name { .. } => Vec::new(),
        }
    }

    /// Says up to which event everything is told, where the server waits for nothing else.
    pub(super) fn say_told(&mut self, recall: u64) -> bool {
        self.backend.submit(&Op::of(&fs::Told { recall }.encode(), 0, None)).is_ok()
    }

    /// Takes over what a dead gate had promised, with the numbers under which it was telling.
    pub(super) fn go_on_promising(&mut self) -> Result<(), GateError> {
        self.behind.inherit(self.state.inherited_promises());
        // Before any of it is told, and forgotten.
        for held in std::mem::take(&mut self.held) {
            let answered = match request::parse(&held.bytes) {
                Ok(request) => self.answer_promised(&request)?,
                Err(_) => false,
            };
            if !answered {
                self.held.push_back(held);
            }
        }
        self.inherit_locks()?;
        for id in self.behind.claims() {
            self.state.claim(promise_key(id));
        }
        Ok(())
    }

    pub(super) fn may_write_behind(&self) -> bool {
        self.consent == Consent::Given
    }

    /// No answer comes to what was being told, and nobody waits for it any more.
    pub(super) fn interrupt_promises(&mut self) {
        self.tells = 0;
        self.numbers.interrupted();
        self.behind.interrupted();
        self.waiting.clear();
        self.consent = Consent::No;
        (self.has_room, self.moves_between) = (false, false);
    }

    /// Whether all that was done to a file is durable, as the server said when it was told.
    pub(super) fn has_synced(&self, ino: u64) -> bool {
        let is_own = self.cache.is_exclusive(ino) && self.is_heard();
        let attr = self.cache.memory.certain(ino).filter(|_| is_own);
        attr.is_some_and(|attr| self.syncs.has_synced(ino, attr.ctime_ns.get()))
    }

    /// What whoever syncs or closes the file has to be told of.
    pub(super) fn failure(&mut self, request: &Request<'_>, has_locks: bool) -> Option<i32> {
        match request.body {
            Body::Fsync(_) | Body::Fsyncdir => self.behind.take_failure(request.header.nodeid),
            Body::Flush(head) if !has_locks && self.state.may_write(head.fh) => {
                self.behind.failure(request.header.nodeid)
            }
            _ => None,
        }
    }
}

/// What a program hears of a promise that was not kept, by what the server said.
fn for_programs(status: u32) -> i32 {
    if matches!(status, 0 | GONE) { libc::EIO } else { status as i32 }
}

/// Journal key of what tells promises, by the number of the first. Keys of open files are below for all that the table
/// will ever hold.
fn promise_key(id: u64) -> u64 {
    1 << 62 | id << 1 & ((1 << 62) - 1) | 1
}
