//! The gate: one thread that moves requests from the kernel to the fs server and answers back.
//!
//! States: `Collecting` (a new process, or a session that was fenced and is revived: everything the kernel resends is
//! taken before anything is submitted), `Serving`, and `Reopening` (the session was forgotten: files are opened again
//! in a new one before the kernel is asked to resend). Requests that were read and could not be submitted wait in
//! `held`, in order, and nothing is read while one waits; reads and writes of an inode whose lease is about to be given
//! back wait in `deferred` until it is. What is in memory is bounded by [`IN_FLIGHT_MAX`] requests.
//!
//! Order of writing, which exactly-once rests on (`docs/design/gate-fuse.md`): journal, then submission; handle table,
//! then answer; answer, then the journal's slot is free.
//!
//! Not here: what requests mean ([`crate::translate`], [`crate::complete`]), dropping caches ([`crate::notify`]), what
//! is answered without the server ([`known`], [`opens`]), what is fetched ahead ([`ahead`]), programs that do not want
//! to wait any more ([`interrupt`]).

mod ahead;
mod behind;
mod interrupt;
mod known;
mod locks;
mod names;
mod opens;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant, SystemTime};

use libvos::Fenced;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vos_api::fs::{Attr, Events, Getattr, MKNOD, ROOT, Released, UNLOCKED, Waits};
use vos_api::gates::GateFigures;
use vos_api::session::Goodbye;
use vos_api::{Class, Operation};
use zerocopy::{FromBytes, IntoBytes};

use crate::backend::{Backend, BackendError, Done, Event, Loss, Op, Refused, ReplyData, Start, Token};
use crate::behind::Behind;
use crate::cache::{Cache, Keep, NAME_TIMEOUT, Use};
use crate::complete::{self, After, Asked, Completer, FuseReply};
use crate::flight::{Flight, Flights, Loser};
use crate::init::{self, TRANSFER_BYTES};
use crate::kept::KeptLocks;
use crate::kernel::{self, InHeader, OutHeader, fopen, opcode};
use crate::names::Names;
use crate::notify::{self, JOBS_MAX, Job, News, Notifier};
use crate::recall::{self, Begin, InFlight, Recalls, Stage, What, Why};
use crate::request::{self, Body, Request};
use crate::state::{HANDLES_MAX, State, StateError};
use crate::syncs::Syncs;
use crate::translate::{self, Context, Own, Plan, Step, Then};

/// Requests taken from the kernel and not answered. The bound is below the journal's slots, and below the replies that
/// the server keeps.
pub const IN_FLIGHT_MAX: usize = 512;
/// Of these, locks that wait: the others must be able to pass, an unlock among them.
const WAITING_LOCKS_MAX: usize = IN_FLIGHT_MAX / 2;
/// Requests read before completions are looked at again.
const READ_BATCH: usize = 32;
/// Bytes of one read from the kernel: the largest request and its head.
const BUFFER_BYTES: usize = TRANSFER_BYTES as usize + 4096;
/// Room for one poll of events.
const EVENTS_BYTES: u32 = 64 << 10;
/// For how long a gate that does not hear the server answers by itself. Above what the restart of a server takes; with
/// the second after which a link that is cut ends a ring it is less than the server waits for a gate
/// ([`vos_api::fs::RECALL_MS`]).
const DEAF_MAX: Duration = Duration::from_secs(1);
const _: () = assert!(DEAF_MAX.as_millis() as u64 + 1000 < vos_api::fs::RECALL_MS);
/// Looks at the ring before the gate sleeps: while another CPU works for us, an answer comes sooner than a sleep and a
/// wake-up take.
const LOOKS_MAX: u32 = 64;
const LOOKS_MIN: u32 = 2;
/// Every so many sleeps the full number of looks is tried, in case it pays again.
const SLEEPS_PER_TRIAL: u32 = 64;

/// For how long a gate whose tree was unmounted tells what it has promised: below what a daemon lets a process end in.
/// One that is asked to end has a quarter of it, as the tree may go next; what it leaves then the next gate finds.
const LAST_WORDS_MAX: Duration = Duration::from_secs(8);
/// For how long it then waits for the server to forget its session.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(IN_FLIGHT_MAX < crate::state::JOURNAL_SLOTS);

#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error("the FUSE connection cannot be {verb}")]
    Fuse {
        verb: &'static str,
        #[source]
        cause: Errno,
    },
    #[error("the kernel's FUSE interface is too old: 7.{} is the least", kernel::VERSION_MINOR_MIN)]
    KernelTooOld,
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The next gate, which is told the placement of today, goes on with the session.
    #[error("the fs server does not take this gate")]
    Outdated(#[source] Fenced),
    #[error("the notifier thread cannot be started")]
    Notifier(#[source] std::io::Error),
    #[error("waiting failed")]
    Wait(#[source] Errno),
}

/// Why the gate stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The file tree was unmounted or the connection aborted.
    Unmounted,
    /// `stop` became readable; the connection goes on and waits for the next gate.
    Stopped,
}

/// Figures for logs and tests.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    pub requests: u64,
    pub resent: u64,
    /// Resent requests whose operation the dead gate had begun.
    pub repeated: u64,
    pub recalls: u64,
    /// Requests that were answered without the server.
    pub here: u64,
    /// Changes that programs were answered before the server was told.
    pub promises: u64,
    pub sessions_lost: u64,
    /// Of these, how many went on.
    pub sessions_revived: u64,
}

enum Phase {
    Collecting,
    Serving,
    Reopening { left: VecDeque<(u64, translate::Plan<'static>)>, in_flight: Vec<(Token, u64)> },
}

/// An answer that waits until pages are dropped.
struct Late {
    /// The request's number as the kernel wrote it.
    unique: u64,
    data: Vec<u8>,
    ino: u64,
    /// Bytes that are dropped after the answer.
    last: Option<(u64, u64)>,
}

/// A request that waits for its turn.
struct Held {
    bytes: Vec<u8>,
    step: u32,
}

pub struct Gate<B: Backend> {
    fuse: OwnedFd,
    state: State,
    backend: B,
    cache: Cache,
    notifier: Notifier,
    names: Names,
    /// Until then the kernel may trust names that a predecessor told and that are not in `names`.
    unknown_names_until: Option<Instant>,
    recalls: Recalls,
    flights: Flights,
    /// What left pages in the kernel that no lease covers, by inode, until they are dropped.
    drops: HashMap<u64, usize>,
    /// Answers that follow such a drop, by the keys of their requests.
    answers: HashMap<u64, Late>,
    /// Changes of extended attributes, counted when they are submitted and when they complete.
    xattr_changes: u64,
    held: VecDeque<Held>,
    deferred: VecDeque<Held>,
    phase: Phase,
    events: Option<Token>,
    /// The server repeated itself: ask again only when something was released.
    events_paused: bool,
    buffer: Vec<u8>,
    looks: Looks,
    /// When the loop last turned.
    turned: Instant,
    /// Until when nothing that the server said can have passed unheard.
    heard: Instant,
    /// Since when the request for events is out.
    listens_since: Instant,
    /// Is answered by a server that has fenced this session with that.
    probe: Option<Token>,
    /// Pages of directories that were asked for ahead.
    pages: Vec<ahead::Page>,
    /// Inodes of which the server has to be told that they are open before it is asked anything else.
    owed: Vec<u64>,
    /// What programs were answered and the server was not told.
    behind: Behind,
    /// Locks that the server does not know of.
    kept: KeptLocks,
    syncs: Syncs,
    numbers: names::OwnNumbers,
    consent: behind::Consent,
    /// The server has room for more of that.
    has_room: bool,
    /// It knows of names that move between directories.
    moves_between: bool,
    /// Operations in flight that tell it.
    tells: usize,
    waiting: Vec<behind::Waiting>,
    /// Requests that ever waited.
    waits: u64,
    leftovers: interrupt::Leftovers,
    deaths: interrupt::Deaths,
    /// Figures that were written last.
    said: GateFigures,
    end: Option<End>,
    /// Until when what is promised is told although the tree is gone.
    last_words: Option<Instant>,
    counters: Counters,
}

impl<B: Backend> Gate<B> {
    /// Takes over a connection: one that was just mounted, or one whose gate died. `fuse` must be non-blocking.
    pub fn new(fuse: OwnedFd, state: OwnedFd, backend: B) -> Result<Gate<B>, GateError> {
        let state = State::open(state)?;
        let verb = "set up";
        let flags = rustix::fs::fcntl_getfl(&fuse).map_err(|cause| GateError::Fuse { verb, cause })?;
        rustix::fs::fcntl_setfl(&fuse, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(|cause| GateError::Fuse { verb, cause })?;
        let notifier = Notifier::start(fuse.try_clone().map_err(GateError::Notifier)?).map_err(GateError::Notifier)?;
        let is_new = state.negotiated().is_none();
        Ok(Gate {
            fuse,
            state,
            backend,
            cache: Cache::new(is_new),
            notifier,
            names: Names::default(),
            unknown_names_until: None,
            recalls: Recalls::default(),
            flights: Flights::default(),
            drops: HashMap::new(),
            answers: HashMap::new(),
            xattr_changes: 0,
            held: VecDeque::new(),
            deferred: VecDeque::new(),
            phase: Phase::Collecting,
            events: None,
            events_paused: false,
            buffer: resident(BUFFER_BYTES),
            looks: Looks::default(),
            turned: Instant::now(),
            heard: Instant::now(),
            listens_since: Instant::now(),
            probe: None,
            pages: Vec::new(),
            owed: Vec::new(),
            behind: Behind::default(),
            kept: KeptLocks::default(),
            syncs: Syncs::default(),
            numbers: names::OwnNumbers::default(),
            consent: behind::Consent::default(),
            has_room: false,
            moves_between: false,
            tells: 0,
            waiting: Vec::new(),
            waits: 0,
            leftovers: interrupt::Leftovers::default(),
            deaths: interrupt::Deaths::default(),
            said: GateFigures::default(),
            end: None,
            last_words: None,
            counters: Counters::default(),
        })
    }

    /// With somebody who says over this socket who is about to die ([`sys::dying`]).
    pub fn told_of_deaths_by(mut self, socket: OwnedFd) -> Gate<B> {
        self.deaths = interrupt::Deaths::told_by(socket);
        self
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Serves until the mount is gone or `stop` is readable.
    pub fn run(&mut self, stop: impl AsFd) -> Result<End, GateError> {
        self.adopt()?;
        loop {
            let mut is_busy = self.take_completions()?;
            self.listen();
            self.follow_recalls()?;
            self.tell_opens()?;
            self.tell_promises()?;
            self.count_time();
            self.leave_due()?;
            self.clear_up()?;
            is_busy |= self.submit_held()?;
            is_busy |= self.read_requests()?;
            if let Some(end) = self.end
                && !self.has_to_tell(end)
            {
                if end == End::Unmounted {
                    self.leave_session();
                }
                return Ok(end);
            }
            if is_busy {
                self.looks.found();
            } else if self.flights.is_empty() || !self.looks.again() {
                self.sleep(stop.as_fd())?;
            }
        }
    }

    // ---- adoption

    /// Takes everything a dead gate left unanswered, then begins (or goes on with) the session.
    fn adopt(&mut self) -> Result<(), GateError> {
        let abandoned = self.collect()?;
        if self.state.session() == 0 {
            self.state.begin_session(random())?;
        }
        if self.state.negotiated().is_some() {
            // Which names the predecessor told nobody knows; the kernel trusts none of them for longer.
            self.unknown_names_until = Some(Instant::now() + NAME_TIMEOUT);
        }
        self.begin_backend(false)?;
        self.phase = Phase::Serving;
        if abandoned > 0 {
            // Some of these may have changed what the kernel keeps.
            let everything = self.everything(None);
            self.give(everything);
            tracing::warn!(abandoned, "requests of the dead gate failed: this kernel cannot send them again");
        }
        if self.counters.resent > 0 {
            let Counters { resent, repeated, .. } = self.counters;
            tracing::info!(resent, repeated, "took over a connection with requests in flight");
        }
        Ok(())
    }

    /// Takes what was read before and not answered, as far as the kernel sends it again; answers how many requests got
    /// an error instead.
    fn collect(&mut self) -> Result<usize, GateError> {
        notify::resend(&self.fuse);
        let abandoned = self.fail_abandoned()?;
        while self.end.is_none() && self.held.len() < 2 * IN_FLIGHT_MAX {
            let Some(bytes) = self.read_one()? else { break };
            let Ok(header) = self.buffered_header(bytes) else { break };
            let is_resent = header.unique & kernel::UNIQUE_RESEND != 0;
            self.hold(bytes, 0);
            // Interrupts and forgets overtake what is resent.
            if !is_resent && !matches!(header.opcode, opcode::INTERRUPT | opcode::FORGET | opcode::BATCH_FORGET) {
                break;
            }
        }
        self.sort_held();
        self.go_on_telling();
        self.go_on_promising()?;
        self.state.forget_unclaimed();
        Ok(abandoned)
    }

    /// A kernel that cannot resend keeps the requests that the dead gate had taken, and their programs wait: they get
    /// an error.
    fn fail_abandoned(&mut self) -> Result<usize, GateError> {
        let abandoned = self.state.taken();
        for unique in &abandoned {
            self.answer(*unique, -libc::EIO, &[])?;
        }
        Ok(abandoned.len())
    }

    /// Claims the journal's entries of resent requests and puts those that were begun first, in the order of their
    /// sequences.
    fn sort_held(&mut self) {
        let mut keyed: Vec<(u64, u64, Held)> = Vec::with_capacity(self.held.len());
        for mut held in std::mem::take(&mut self.held) {
            let Ok((header, _)) = InHeader::read_from_prefix(&held.bytes) else { continue };
            let key = header.unique & !kernel::UNIQUE_RESEND;
            let mut order = u64::MAX;
            if header.unique & kernel::UNIQUE_RESEND != 0 {
                self.counters.resent += 1;
                if let Some(noted) = self.state.claim(key) {
                    self.counters.repeated += 1;
                    held.step = noted.step;
                    order = noted.sequence;
                }
            }
            keyed.push((order, key, held));
        }
        // Stable: what has no sequence keeps the kernel's order.
        keyed.sort_by_key(|(order, ..)| *order);
        self.held = keyed.into_iter().map(|(_, _, held)| held).collect();
    }

    fn begin_backend(&mut self, revives: bool) -> Result<(), GateError> {
        let start = Start {
            session: self.state.session(),
            next_sequence: self.state.next_sequence(),
            acknowledged: self.state.acknowledged(),
            revives,
        };
        self.backend.begin(start)?;
        self.ask_for_consent();
        Ok(())
    }

    // ---- from the kernel

    /// Reads requests while there is room. `true` when there was one.
    fn read_requests(&mut self) -> Result<bool, GateError> {
        for count in 0..READ_BATCH {
            if !self.may_read() {
                return Ok(count > 0);
            }
            let Some(bytes) = self.read_one()? else { return Ok(count > 0) };
            // The buffer is lent out while the request that lies in it is handled.
            let buffer = std::mem::take(&mut self.buffer);
            let handled = self.handle(buffer.get(..bytes).unwrap_or_default(), 0);
            self.buffer = buffer;
            if handled? == Handled::Later {
                self.hold(bytes, 0);
            }
        }
        Ok(true)
    }

    fn may_read(&self) -> bool {
        let is_full = self.flights.len() + self.deferred.len() + self.answers.len() >= IN_FLIGHT_MAX;
        let is_ready = matches!(self.phase, Phase::Serving) && self.held.is_empty() && self.owed.is_empty();
        is_ready && !self.is_blind() && !is_full && self.end.is_none()
    }

    /// Whether something is promised of an inode of which this gate does not know what it is: what a dead gate promised
    /// is told first.
    fn is_blind(&self) -> bool {
        self.behind.changed_count() > self.cache.memory.promised_count()
    }

    /// Nobody goes on with the session of a tree that is gone, and others need not wait for what it held.
    fn leave_session(&mut self) {
        if !matches!(self.phase, Phase::Serving) || !self.behind.is_empty() || !self.backend.is_up() {
            return;
        }
        let Ok(token) = self.backend.submit(&Op::of(&Goodbye {}.encode(), 0, None)) else { return };
        let until = Instant::now() + GOODBYE_MAX;
        while Instant::now() < until {
            match self.backend.poll() {
                Some(Event::Done(done)) if done.token == token => return,
                Some(Event::Done(_)) => {}
                Some(_) => return,
                None => {
                    if self.backend.may_sleep() {
                        let left = rustix::event::Timespec::try_from(GOODBYE_MAX / 10).ok();
                        let _ = poll(&mut [PollFd::from_borrowed_fd(self.backend.fd(), PollFlags::IN)], left.as_ref());
                        self.backend.awake();
                    }
                }
            }
        }
    }

    /// Whether a tree that is gone leaves something to be told, for a while.
    fn has_to_tell(&mut self, end: End) -> bool {
        if self.behind.is_empty() {
            return false;
        }
        let max = if end == End::Stopped { LAST_WORDS_MAX / 4 } else { LAST_WORDS_MAX };
        Instant::now() < *self.last_words.get_or_insert(Instant::now() + max)
    }

    /// One request into the buffer; `None` when there is none, or the mount is gone.
    fn read_one(&mut self) -> Result<Option<usize>, GateError> {
        loop {
            match rustix::io::read(&self.fuse, self.buffer.as_mut_slice()) {
                Ok(0) => self.end = Some(End::Unmounted),
                Ok(bytes) => {
                    self.note_taken(bytes)?;
                    return Ok(Some(bytes));
                }
                Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => self.end = Some(End::Unmounted),
                // ENOENT: the request was taken back while it was being copied.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) => {}
                Err(cause) => return Err(GateError::Fuse { verb: "read", cause }),
            }
            return Ok(None);
        }
    }

    /// The next gate must know what it will not be sent.
    fn note_taken(&mut self, bytes: usize) -> Result<(), GateError> {
        if self.state.negotiated().is_none() || self.can_resend() {
            return Ok(());
        }
        match self.buffered_header(bytes) {
            Ok(header) if !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT) => {
                Ok(self.state.take(header.unique)?)
            }
            _ => Ok(()),
        }
    }

    fn buffered_header(&self, bytes: usize) -> Result<InHeader, Errno> {
        let read = self.buffer.get(..bytes).unwrap_or_default();
        InHeader::read_from_prefix(read).map(|(header, _)| header).map_err(|_| Errno::IO)
    }

    fn hold(&mut self, bytes: usize, step: u32) {
        let bytes = self.buffer.get(..bytes).unwrap_or_default().to_vec();
        self.held.push_back(Held { bytes, step });
    }

    /// Tries what waits, in order. `true` when something was submitted.
    fn submit_held(&mut self) -> Result<bool, GateError> {
        let mut is_busy = false;
        while !matches!(self.phase, Phase::Reopening { .. })
            && self.owed.is_empty()
            && !self.is_blind()
            && self.flights.len() < IN_FLIGHT_MAX
            && let Some(held) = self.held.pop_front()
        {
            if self.handle(&held.bytes, held.step)? == Handled::Later {
                self.held.push_front(held);
                break;
            }
            is_busy = true;
        }
        Ok(is_busy)
    }

    fn handle(&mut self, bytes: &[u8], step: u32) -> Result<Handled, GateError> {
        let request = match request::parse(bytes) {
            Ok(request) => request,
            Err(error) => {
                tracing::warn!(%error, "a request was refused");
                if let Some(unique) = error.unique() {
                    self.answer(unique, -error.errno(), &[])?;
                }
                return Ok(Handled::Done);
            }
        };
        let is_answered = self.answer_from_memory(&request)? || self.answer_promised(&request)?;
        let is_promised = is_answered || self.promise(&request)? || self.promise_name(&request)?;
        if is_promised || self.lock_here(&request)? {
            self.counters.here += 1;
            return Ok(Handled::Done);
        }
        if let Body::Fsync(_) = request.body {
            self.syncs.synced(request.header.nodeid);
        }
        if self.put_off(&request, bytes, step) {
            return Ok(Handled::Done);
        }
        if matches!(request.body, Body::Read(_) | Body::Write { .. }) && self.recalls.is_draining(request.header.nodeid)
        {
            self.deferred.push_back(Held { bytes: bytes.to_vec(), step });
            return Ok(Handled::Done);
        }
        let has_locks = self.closes_with_locks(&request)?;
        if let Some(errno) = self.failure(&request, has_locks) {
            return self.finish(request.header.unique, request.key(), -errno, &[]);
        }
        if matches!(request.body, Body::Fsync(_)) && self.has_synced(request.header.nodeid) {
            self.counters.here += 1;
            return self.finish(request.header.unique, request.key(), 0, &[]);
        }
        let may_be_untold = match self.loser(&request) {
            Loser::Inode(ino) => self.state.is_untold(ino),
            Loser::Unknown => self.state.has_untold(),
            Loser::Nothing => false,
        };
        let parent = request.header.nodeid;
        // What a dead gate began so is gone on with so.
        let delegates = match self.state.noted(request.key()) {
            Some(noted) => noted.op == MKNOD,
            None => self.cache.delegates(parent) && !self.cache.is_contested(parent, Instant::now()),
        };
        let now_ns = now_ns();
        let context = Context { state: &self.state, now_ns, has_locks, may_be_untold, delegates };
        if self.was_promised(&request) {
            return self.submit(&request, bytes, (step, now_ns), &translate::look_after_set(request.header.nodeid));
        }
        match translate::plan(&request, step, &context) {
            Step::Silent => Ok(Handled::Done),
            Step::Answer(errno) => self.finish(request.header.unique, request.key(), -errno, &[]),
            Step::Own(own) => self.handle_own(own, &request),
            Step::Submit(plan) => self.submit(&request, bytes, (step, now_ns), &plan),
        }
    }

    fn handle_own(&mut self, own: Own, request: &Request<'_>) -> Result<Handled, GateError> {
        let unique = request.header.unique;
        match own {
            Own::Init => {
                let Body::Init { head, flags2 } = request.body else { return Ok(Handled::Done) };
                self.negotiate(unique, &head, flags2)?;
            }
            Own::Interrupt { unique } => return self.interrupt(unique & !kernel::UNIQUE_RESEND),
            Own::Release { fh } => return self.close_here(request, fh),
            Own::Opendir => {
                let ino = request.header.nodeid;
                let leased = self.cache.is_leased(ino);
                let open_flags = match leased.then(|| self.cache.opened(ino, true, Use::Reading)) {
                    Some(Keep::Keep) => fopen::CACHE_DIR | fopen::KEEP_CACHE,
                    Some(Keep::Drop) => fopen::CACHE_DIR,
                    None => 0,
                };
                let out = kernel::OpenOut { fh: 0, open_flags, backing_id: 0 };
                self.answer(unique, 0, out.as_bytes())?;
            }
        }
        Ok(Handled::Done)
    }

    fn negotiate(&mut self, unique: u64, head: &kernel::InitIn, flags2: u32) -> Result<(), GateError> {
        match init::negotiate(head, flags2) {
            init::Outcome::Agreed { agreed, answer } => {
                self.counters.requests += 1;
                self.state.set_negotiated(agreed)?;
                self.answer(unique, 0, &answer)
            }
            init::Outcome::AskAgain { answer } => self.answer(unique, 0, &answer),
            init::Outcome::Refused => {
                self.answer(unique, -libc::EPROTO, &[])?;
                Err(GateError::KernelTooOld)
            }
        }
    }

    fn submit(
        &mut self,
        request: &Request<'_>,
        bytes: &[u8],
        (step, time_ns): (u32, u64),
        plan: &Plan<'_>,
    ) -> Result<Handled, GateError> {
        let (key, unique, ino) = (request.key(), request.header.unique, request.header.nodeid);
        let waits = matches!(plan.then, Then::Lock { waits: Waits::Yes, .. });
        if waits && self.flights.waiting_locks() >= WAITING_LOCKS_MAX {
            return self.finish(unique, key, -libc::ENOLCK, &[]);
        }
        match plan.then {
            // The program that closed a file expects its locks to be gone, and the server does two things at a time.
            Then::Lock { .. } | Then::Getlk if self.flights.is_closing(ino, |fh| self.cache.may_unlock(fh)) => {
                return Ok(Handled::Later);
            }
            Then::Lock { owner, fh, .. } => self.cache.locking(ino, owner, fh),
            // What was begun by a gate before this one was counted by it.
            Then::Open { .. } | Then::Create { .. } | Then::Made { .. }
                if self.is_full() && self.state.noted(key).is_none() =>
            {
                return self.finish(unique, key, -libc::ENFILE, &[]);
            }
            _ => {}
        }
        let changes = plan.class == Class::Once;
        let is_repeated = self.state.noted(key).is_some();
        let sequence = match plan.class {
            Class::Once => Some(self.state.note(key, step, plan.asked.op)?),
            Class::Repeatable => None,
        };
        let op = Op::of(&plan.asked, plan.in_capacity, sequence);
        let token = match self.backend.submit(&op) {
            Ok(token) => token,
            Err(Refused::Full) => return Ok(Handled::Later),
            Err(Refused::TooLong) => return self.finish(unique, key, -libc::EINVAL, &[]),
        };
        self.counters.requests += 1;
        let locked = match request.body {
            Body::Write { head, .. } => Some((head.offset, head.offset.saturating_add(u64::from(head.size)))),
            Body::Read(head) => Some((head.offset, head.offset.saturating_add(u64::from(head.size)))),
            _ => None,
        };
        // What is read beside a write of our own may be of before it, and would stay in the kernel.
        let reads = locked.filter(|_| matches!(plan.then, Then::Read { .. }));
        let is_beside = reads.is_some_and(|bytes| self.flights.writes(ino, bytes));
        self.xattr_changes += u64::from(plan.then == Then::Changed);
        if matches!(plan.then, Then::Lock { .. }) {
            self.kept.asks(ino);
        }
        // When a dead gate asked it nobody knows.
        let directories = if is_repeated { Vec::new() } else { self.directories_after(request, time_ns) };
        let asked = self.cache.memory.now();
        let touched = known::touched(request, &self.cache.memory);
        let loses = self.loser(request);
        self.cache.memory.begins(&touched);
        let flight = Flight {
            loses,
            asked,
            touched,
            directories,
            is_repeated,
            step,
            changes,
            xattr_changes: self.xattr_changes,
            locks_asked: self.kept.asked(ino),
            waiting_lock: sequence.filter(|_| waits),
            locked,
            request: (has_more(plan.then) || is_beside).then(|| bytes.to_vec()),
            names: names_of(request),
            thread: request.header.pid,
            ..Flight::new(unique, key, ino, plan.then)
        };
        let since = flight.since;
        self.flights.insert(token, flight);
        if matches!(plan.then, Then::Unlocked { .. }) {
            self.flights.leave_at(token, since + interrupt::PATIENCE);
        }
        Ok(Handled::Done)
    }

    /// A server that is within reach is heard while a request for events is out. Who stood still, with events that lie
    /// there since whenever, asks first: meanwhile others may have gone on without it.
    fn listen(&mut self) {
        if !self.backend.is_up() {
            return;
        }
        let has_listened = self.events.is_some() && self.listens_since <= self.heard;
        if has_listened || self.is_heard() {
            self.heard = Instant::now();
        } else if self.probe.is_none() {
            let asked = Getattr { marks: 0, ino: ROOT }.encode();
            self.probe = self.backend.submit(&Op::of(&asked, size_of::<Attr>() as u32, None)).ok();
        }
    }

    /// Whether what was said under leases still counts: a gate that cannot hear is not asked for them, and fenced
    /// later.
    fn is_heard(&self) -> bool {
        self.heard.elapsed() < DEAF_MAX
    }

    /// Whether the table of open files has room for those in flight alone.
    fn is_full(&self) -> bool {
        self.state.open_files() + self.flights.len() >= HANDLES_MAX
    }

    // ---- from the server

    /// Takes completions while there are any. `true` when there was one.
    fn take_completions(&mut self) -> Result<bool, GateError> {
        let mut is_busy = false;
        // Bounded by what can be in flight, so that a busy server cannot keep the kernel waiting.
        for _ in 0..2 * IN_FLIGHT_MAX {
            match self.backend.poll() {
                None => break,
                Some(Event::SessionLost(loss)) => self.lost(loss)?,
                Some(Event::Outdated(why)) => return Err(GateError::Outdated(why)),
                Some(Event::Done(done)) => self.complete(&done)?,
            }
            is_busy = true;
        }
        Ok(is_busy)
    }

    fn complete(&mut self, done: &Done<B::Data>) -> Result<(), GateError> {
        if self.events == Some(done.token) {
            self.events = None;
            return self.take_events(done);
        }
        if let Some(flight) = self.flights.remove(done.token) {
            return self.complete_request(flight, done);
        }
        if self.probe == Some(done.token) {
            (self.probe, self.heard) = (None, Instant::now());
            return Ok(());
        }
        if self.page_came(done) || self.consented(done) || self.numbers_came(done) {
            return Ok(());
        }
        self.reopened(done)
    }

    fn complete_request(&mut self, flight: Flight, done: &Done<B::Data>) -> Result<(), GateError> {
        if flight.is_left {
            return self.complete_left(&flight, done);
        }
        let now = Instant::now();
        match (flight.then, flight.locked, &flight.request) {
            (Then::Read { .. }, _, Some(bytes)) if flight.is_overtaken => {
                self.held.push_front(Held { bytes: bytes.clone(), step: flight.step });
                return Ok(());
            }
            (Then::Read { .. }, Some(bytes), _) => self.flights.were_read(flight.ino, bytes),
            (Then::Write { .. }, Some(bytes), _) => self.flights.were_written(flight.ino, bytes),
            _ => {}
        }
        self.xattr_changes += u64::from(flight.then == Then::Changed);
        match (flight.names.as_slice(), flight.then) {
            ([(parent, name)], Then::Placed) => self.placed(*parent, name, done.status),
            // The kernel moves what it knows of the old name to the new one.
            ([(from, old), (to, new)], _) if done.status == 0 => {
                if self.names.is_told(*from, old) {
                    self.names.told(*to, new, now);
                }
                if self.names.is_told(*to, new) {
                    self.names.told(*from, old, now);
                }
            }
            _ => {}
        }
        let ended = self.changed(&flight, done);
        let asked = Asked { at: flight.asked, ended, touched: &flight.touched.inos };
        let (cache, state, names) = (&mut self.cache, &mut self.state, &mut self.names);
        let name = flight.names.first().map(|(_, name)| name.as_slice());
        let is_current = flight.xattr_changes == self.xattr_changes;
        let mut completer = Completer { cache, state, names, name, is_current, asked, now };
        let (answer, after) = completer.finish(flight.ino, flight.then, done);
        if let Some(ino) = changed_file(&flight, done) {
            self.note_terms(ino, done.results);
        }
        self.note_names(&flight, done);
        if done.results[3] & UNLOCKED != 0 {
            self.note_unlocked(&flight, done);
        }
        if matches!(flight.then, Then::Lock { .. }) {
            self.kept.asks(flight.ino);
        }
        if let After::Stands { ino, handle } = after {
            self.stands(ino, handle);
        }
        self.learnt(&flight, done, ended);
        self.note_asked(&flight, done);
        if after == After::Again {
            if let Some(bytes) = flight.request {
                self.held.push_front(Held { bytes, step: flight.step });
            }
            return Ok(());
        }
        if after == After::Next && flight.is_interrupted {
            self.answer(flight.unique, -libc::EINTR, &[])?;
            self.state.answered(flight.key);
            return Ok(());
        }
        if after == After::Next {
            if let Some(bytes) = flight.request {
                self.held.push_front(Held { bytes, step: flight.step + 1 });
            }
            return Ok(());
        }
        if let (After::DropPages { ino }, FuseReply::Bytes(bytes)) = (after, &answer) {
            self.backend.recalled(Some(ino));
            // The last page of the write may be locked until the answer.
            let last = flight.locked.and_then(|(first, end)| (first < end).then_some((end - 1, end)));
            self.answers.insert(flight.key, Late { unique: flight.unique, data: bytes.clone(), ino, last });
            return match self.drop_pages(ino, None, last, Some(flight.key)) {
                true => Ok(()),
                false => self.answer_behind(flight.key),
            };
        }
        // What a gate before this one let be read beside it nobody knows.
        let drops = after == After::DropBytes || flight.is_repeated && matches!(flight.then, Then::Write { .. });
        let whole = flight.locked.filter(|(first, end)| drops && first < end);
        if let (Some(beside), FuseReply::Bytes(bytes)) = (flight.read_beside, &answer) {
            // Of what was read the write itself has nothing locked.
            let late = Late { unique: flight.unique, data: bytes.clone(), ino: flight.ino, last: whole };
            self.answers.insert(flight.key, late);
            return match self.drop_pages(flight.ino, Some(beside), None, Some(flight.key)) {
                true => Ok(()),
                false => self.answer_behind(flight.key),
            };
        }
        match answer {
            FuseReply::Errno(errno) => self.answer(flight.unique, -errno, &[])?,
            FuseReply::Bytes(bytes) => self.answer(flight.unique, 0, &bytes)?,
            FuseReply::Data { bytes } => self.answer_data(flight.unique, &done.data, bytes)?,
        }
        self.state.answered(flight.key);
        if drops {
            self.drop_pages(flight.ino, whole, None, None);
        }
        if flight.distrusts {
            for (parent, name) in flight.names {
                self.give(Job::Names { parent, names: vec![name] });
            }
        }
        Ok(())
    }

    /// Pages that no lease covers, or that are wrong. A lease of the inode is not given back before that is done.
    fn drop_pages(&mut self, ino: u64, bytes: Option<(u64, u64)>, but: Option<(u64, u64)>, key: Option<u64>) -> bool {
        let is_taken = self.give(Job::Drop { ino, bytes, but, key });
        if is_taken {
            *self.drops.entry(ino).or_default() += 1;
        }
        is_taken
    }

    /// What had to be dropped first is dropped.
    fn answer_behind(&mut self, key: u64) -> Result<(), GateError> {
        let Some(Late { unique, data, ino, last }) = self.answers.remove(&key) else { return Ok(()) };
        self.answer(unique, 0, &data)?;
        self.state.answered(key);
        if last.is_some() {
            self.drop_pages(ino, last, None, None);
        }
        Ok(())
    }

    /// A file was made that the kernel does not know: what it keeps of the directory and of the name is wrong.
    fn placed(&self, parent: u64, name: &[u8], status: u32) {
        if status != 0 {
            return;
        }
        // Attributes alone: takes no lock, so this thread may do it.
        let head = kernel::NotifyInvalInode { ino: parent, off: -1, len: 0 };
        let _ = notify::send(&self.fuse, kernel::notify::INVAL_INODE, head.as_bytes(), &[]);
        if self.names.is_told(parent, name) {
            self.give(Job::Names { parent, names: vec![name.to_vec()] });
        }
    }

    /// A file that was opened again in the new session, or a completion nobody waits for.
    fn reopened(&mut self, done: &Done<B::Data>) -> Result<(), GateError> {
        let Phase::Reopening { in_flight, .. } = &mut self.phase else { return Ok(()) };
        let Some(at) = in_flight.iter().position(|(token, _)| *token == done.token) else { return Ok(()) };
        let (_, fh) = in_flight.swap_remove(at);
        self.state.answered(reopen_key(fh));
        if done.status == 0 {
            self.state.replace(fh, done.results[0])?;
        } else {
            tracing::warn!(fh, errno = done.status, "an open file is gone with the old session");
        }
        self.go_on_reopening()
    }

    // ---- a lost session

    /// Nothing the kernel keeps is covered by a lease any more, and nothing in flight gets an answer.
    fn lost(&mut self, loss: Loss) -> Result<(), GateError> {
        self.counters.sessions_lost += 1;
        let flights = self.flights.drain();
        self.cache.memory.reset();
        self.pages.clear();
        tracing::warn!(in_flight = flights.len(), ?loss, "the fs server does not take this gate's session any more");
        let can_resend = self.can_resend();
        for flight in &flights {
            if flight.is_left {
                self.leftovers.lost(flight);
            } else if !can_resend {
                self.answer(flight.unique, -libc::EIO, &[])?;
            }
        }
        // What has happened is not to be resent.
        for key in self.answers.keys().copied().collect::<Vec<_>>() {
            self.answer_behind(key)?;
        }
        // What was read and not submitted is resent with the rest, or by nobody.
        if can_resend {
            self.held.clear();
            self.deferred.clear();
        } else {
            self.held.append(&mut self.deferred);
        }
        (self.events, self.probe) = (None, None);
        self.interrupt_promises();
        self.lose_locks()?;
        self.recalls.reset();
        let everything = self.everything(None);
        self.give(everything);
        match loss {
            // A session in which files are still being opened again has done nothing else.
            Loss::Fenced if !matches!(self.phase, Phase::Reopening { .. }) => self.revive(),
            _ => self.begin_anew(),
        }
    }

    /// Goes on with the session: what was in flight keeps its numbers.
    fn revive(&mut self) -> Result<(), GateError> {
        self.counters.sessions_revived += 1;
        self.state.disown();
        match self.can_resend() {
            true => drop(self.collect()?),
            false => {
                self.go_on_telling();
                self.go_on_promising()?;
                self.state.forget_unclaimed();
            }
        }
        self.begin_backend(true)?;
        self.phase = Phase::Serving;
        // Others may have what we had leases on: what programs have open is told before anything else.
        self.owed = self.state.opens().untold();
        Ok(())
    }

    fn begin_anew(&mut self) -> Result<(), GateError> {
        tracing::warn!("beginning a new session: what was in flight may have happened, and happens again");
        self.state.begin_session(random())?;
        self.state.forget_standing()?;
        self.numbers = names::OwnNumbers::default();
        self.owed.clear();
        self.begin_backend(false)?;
        let left = self.state.handles().map(|(fh, handle)| (fh, translate::reopen(handle.ino, handle.flags))).collect();
        self.phase = Phase::Reopening { left, in_flight: Vec::new() };
        self.go_on_reopening()
    }

    fn go_on_reopening(&mut self) -> Result<(), GateError> {
        let Phase::Reopening { left, in_flight } = &mut self.phase else { return Ok(()) };
        while in_flight.len() < IN_FLIGHT_MAX / 4
            && let Some((fh, plan)) = left.pop_front()
        {
            let sequence = Some(self.state.note(reopen_key(fh), 0, plan.asked.op)?);
            match self.backend.submit(&Op::of(&plan.asked, plan.in_capacity, sequence)) {
                Ok(token) => in_flight.push((token, fh)),
                Err(Refused::Full | Refused::TooLong) => {
                    left.push_front((fh, plan));
                    break;
                }
            }
        }
        if left.is_empty() && in_flight.is_empty() {
            self.phase = Phase::Serving;
            // What was in flight comes again, as to a new gate.
            notify::resend(&self.fuse);
        }
        Ok(())
    }

    fn can_resend(&self) -> bool {
        self.state.negotiated().is_some_and(|agreed| agreed.flags & kernel::init::HAS_RESEND != 0)
    }

    // ---- recalls

    fn take_events(&mut self, done: &Done<B::Data>) -> Result<(), GateError> {
        if done.status == libc::EINTR as u32 {
            return Ok(());
        }
        if done.status != 0 {
            tracing::warn!(errno = done.status, "the fs server answers no events");
            self.events_paused = true;
            return Ok(());
        }
        let Some(events) = recall::parse(&done.data.to_vec()) else {
            tracing::warn!("the fs server sent events that make no sense");
            self.events_paused = true;
            return Ok(());
        };
        let now = Instant::now();
        let mut is_news = events.is_empty();
        for event in events {
            if !self.recalls.is_news(event.recall) {
                continue;
            }
            is_news = true;
            self.counters.recalls += 1;
            self.begin_recall(event.recall, event.what, now);
        }
        self.events_paused = !is_news;
        Ok(())
    }

    fn begin_recall(&mut self, recall: u64, what: What, now: Instant) {
        let not_before = self.unknown_names_until.filter(|at| now < *at);
        let (stage, names_until, found_in, bytes) = (Stage::Begun, None, None, None);
        // From here on nothing more of it is opened without the server's knowledge.
        let untold = match what {
            What::Inode { ino, .. } => Some(ino).filter(|ino| self.state.is_untold(*ino)).into_iter().collect(),
            What::Name { .. } | What::Tell { .. } => Vec::new(),
            What::Everything => {
                // After the restart of a server, which may be of another release.
                self.ask_for_consent();
                self.state.opens().ask_again();
                self.state.opens().untold()
            }
        };
        self.tell_locks_of(&what);
        let promised = self.promised_of(&what);
        let is_told_early = !matches!(what, What::Name { .. });
        let mut begin = Begin {
            recall,
            ino: None,
            stage,
            names_until,
            names: Vec::new(),
            not_before,
            found_in,
            bytes,
            untold,
            promised,
            is_told_early,
        };
        let job = match what {
            What::Inode { ino, bytes, why } => {
                begin.bytes = bytes;
                self.backend.recalled(Some(ino));
                let trusted = self.names.take(ino, now);
                begin.names_until = trusted.as_ref().map(|trusted| trusted.until);
                let mut names = trusted.map(|trusted| trusted.names).unwrap_or_default();
                self.flights.leave_out_changed(ino, &mut names);
                if names.is_empty() {
                    begin.names_until = None;
                }
                begin.names.clone_from(&names);
                begin.ino = Some(ino);
                // While a change of ours holds that directory's lock, nobody is looking up anything there.
                let found_in = self.cache.recalled(ino, (why == Why::Change).then_some(now));
                begin.found_in = found_in.filter(|directory| !self.flights.changes_names_of(*directory));
                let busy = self.flights.locked_ranges(ino);
                Some(Job::Inode { recall, ino, busy, found_in: begin.found_in, bytes, names })
            }
            What::Name { parent, name } if self.names.is_told(parent, &name) => {
                (begin.stage, begin.names_until) = (Stage::Pages, Some(now + NAME_TIMEOUT));
                Some(Job::Name { recall, parent, name })
            }
            What::Name { .. } => {
                begin.stage = Stage::Done;
                None
            }
            What::Tell { ino } => {
                self.cache.set_exclusive(ino, false);
                (begin.stage, begin.not_before) = (Stage::Done, None);
                None
            }
            What::Everything => {
                begin.names_until = Some(now + NAME_TIMEOUT);
                Some(self.everything(Some(recall)))
            }
        };
        self.recalls.begin(begin, now);
        if let Some(job) = job {
            self.give(job);
        }
    }

    /// Drops all that the kernel was ever told to keep, one by one.
    fn everything(&mut self, recall: Option<u64>) -> Job {
        // The notifier waits for pages that are being read: for none longer than a server takes.
        self.backend.recalled(None);
        self.cache.lost();
        let (busy, inos) = self.state.cached().into_iter().partition(|ino| self.flights.has_bytes(*ino));
        Job::Everything { recall, inos, busy, names: self.names.take_all() }
    }

    fn give(&self, job: Job) -> bool {
        let is_taken = self.notifier.give(job);
        if !is_taken {
            tracing::error!("the notifier's queue is full although events were asked for");
        }
        is_taken
    }

    fn follow_recalls(&mut self) -> Result<(), GateError> {
        while let Some(news) = self.notifier.news() {
            match news {
                News::Reached { recall, stage } => self.recalls.reached(recall, stage),
                News::Dropped { ino, key } => {
                    self.dropped(ino);
                    key.map_or(Ok(()), |key| self.answer_behind(key))?;
                }
            }
        }
        if self.names.is_full() {
            // Behind no recall and ahead of those to come.
            for (parent, names) in self.names.take_all() {
                self.give(Job::Names { parent, names });
            }
        }
        let now = Instant::now();
        self.help_hanging(now);
        if !matches!(self.phase, Phase::Serving) {
            return Ok(());
        }
        let ours = Ours { flights: &self.flights, drops: &self.drops, state: &self.state, behind: &self.behind };
        self.recalls.forget_told(&ours);
        let ours = Ours { flights: &self.flights, drops: &self.drops, state: &self.state, behind: &self.behind };
        if let Some(recall) = self.recalls.released(now, &ours) {
            let asked = Released { recall }.encode();
            if self.backend.submit(&Op::of(&asked, 0, None)).is_ok() {
                self.recalls.told(recall);
                self.events_paused = false;
                // Behind it: what they read or write is covered by the next lease.
                while let Some(deferred) = self.deferred.pop_back() {
                    self.held.push_front(deferred);
                }
            }
        }
        let ours = Ours { flights: &self.flights, drops: &self.drops, state: &self.state, behind: &self.behind };
        let early = self.recalls.told_early(&ours).filter(|_| self.consent != behind::Consent::No);
        if let Some(recall) = early
            && self.say_told(recall)
        {
            self.recalls.said_told(recall);
        }
        // A single completion carries at most so many events; the queue must take them all.
        const EVENTS_MAX: usize = EVENTS_BYTES as usize / size_of::<vos_api::fs::Event>();
        const _: () = assert!(EVENTS_MAX < JOBS_MAX);
        if self.events.is_none() && !self.events_paused && self.recalls.len() + EVENTS_MAX < JOBS_MAX {
            let asked = Events {}.encode();
            self.events = self.backend.submit(&Op::of(&asked, EVENTS_BYTES, None)).ok();
            self.listens_since = Instant::now();
        }
        Ok(())
    }

    fn dropped(&mut self, ino: u64) {
        if let Some(count) = self.drops.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.drops.remove(&ino);
            }
        }
    }

    /// Recalls for which a notifier waits in the kernel for one of our own requests.
    fn help_hanging(&mut self, now: Instant) {
        if self.recalls.len() == 0 {
            return;
        }
        let ours = Ours { flights: &self.flights, drops: &self.drops, state: &self.state, behind: &self.behind };
        let settled = self.recalls.settled(&ours);
        let hanging = self.recalls.hanging(now, &ours);
        self.recalls.settle_names(|directory, names| self.flights.leave_out_changed(directory, names));
        for (recall, ino) in settled {
            notify::drop_attributes(&self.fuse, ino);
            self.recalls.reached(recall, Stage::Done);
        }
        for (recall, ino, bytes) in hanging {
            let busy = self.flights.locked_ranges(ino);
            self.give(Job::Inode { recall, ino, busy, found_in: None, bytes, names: Vec::new() });
        }
    }

    // ---- to the kernel

    /// Answers and closes the journal's entry of a request that needed no (further) operation.
    fn finish(&mut self, unique: u64, key: u64, error: i32, data: &[u8]) -> Result<Handled, GateError> {
        self.answer(unique, error, data)?;
        self.state.answered(key);
        Ok(Handled::Done)
    }

    fn answer(&mut self, unique: u64, error: i32, data: &[u8]) -> Result<(), GateError> {
        let head = OutHeader { len: (size_of::<OutHeader>() + data.len()) as u32, error, unique };
        let parts = [std::io::IoSlice::new(head.as_bytes()), std::io::IoSlice::new(data)];
        let written = loop {
            match rustix::io::writev(&self.fuse, &parts) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        self.check_answer(unique, written.map(|_| ()))
    }

    fn answer_data(&mut self, unique: u64, data: &B::Data, bytes: usize) -> Result<(), GateError> {
        let head = OutHeader { len: (size_of::<OutHeader>() + bytes) as u32, error: 0, unique };
        let written = loop {
            match data.write_after(head.as_bytes(), bytes, self.fuse.as_fd()) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.check_answer(unique, written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }

    fn check_answer(&mut self, unique: u64, written: Result<(), Errno>) -> Result<(), GateError> {
        self.state.give_back(unique)?;
        match written {
            Ok(()) => Ok(()),
            // Its program was killed, or the connection aborted, meanwhile.
            Err(Errno::NOENT) => Ok(()),
            Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN | Errno::PERM) => {
                self.end = Some(End::Unmounted);
                Ok(())
            }
            Err(errno) => {
                // The kernel did not like the answer; without any the program would wait for ever.
                tracing::error!(%errno, "the kernel refused an answer");
                let head = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EIO, unique };
                let _ = rustix::io::write(&self.fuse, head.as_bytes());
                Ok(())
            }
        }
    }

    // ---- waiting

    fn sleep(&mut self, stop: std::os::fd::BorrowedFd<'_>) -> Result<(), GateError> {
        if !self.backend.may_sleep() {
            return Ok(());
        }
        self.say_figures()?;
        let (reads, is_ending) = (self.may_read(), self.end.is_some());
        let timeout = self.timeout();
        let fuse_flags = if reads { PollFlags::IN } else { PollFlags::empty() };
        let deaths = self.deaths.fd().map_or_else(
            || PollFd::new(&self.fuse, PollFlags::empty()),
            |socket| PollFd::from_borrowed_fd(socket, PollFlags::IN),
        );
        let (stop_flags, fuse) =
            if is_ending { (PollFlags::empty(), stop) } else { (PollFlags::IN, self.fuse.as_fd()) };
        let mut fds = [
            PollFd::new(&stop, stop_flags),
            PollFd::from_borrowed_fd(self.backend.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.notifier.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(fuse, fuse_flags),
            deaths,
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(GateError::Wait(errno)),
        }
        let [is_stopped, _, has_news, fuse, of_deaths] = fds.map(|fd| fd.revents());
        if !is_stopped.is_empty() {
            self.end = Some(End::Stopped);
        }
        if fuse.contains(PollFlags::ERR) {
            self.end = Some(End::Unmounted);
        }
        if !has_news.is_empty() {
            self.notifier.quiet();
        }
        if !of_deaths.is_empty() {
            self.hear_deaths();
        }
        self.backend.awake();
        Ok(())
    }

    /// For whoever looks at this node.
    fn say_figures(&mut self) -> Result<(), GateError> {
        let Counters { here, requests, recalls, promises, .. } = self.counters;
        let figures = GateFigures {
            here: here.into(),
            asked: requests.into(),
            recalls: recalls.into(),
            promised: promises.into(),
            untold: (self.behind.untold().1 as u64).into(),
            untold_since_ns: self.behind.oldest_ns().unwrap_or(0).into(),
            ..GateFigures::default()
        };
        if figures != self.said {
            self.said = figures;
            self.state.say(figures)?;
        }
        Ok(())
    }

    fn timeout(&self) -> Option<rustix::event::Timespec> {
        let now = Instant::now();
        // While something is in flight the loop turns now and then, to know how long it stood still.
        let turn = (!self.flights.is_empty()).then(|| now + interrupt::TURN);
        let deadlines = self.flights.next_leave().into_iter().chain(turn).chain(self.last_words);
        let deadline = self.recalls.deadline(now).into_iter().chain(deadlines).min()?;
        let left = deadline.saturating_duration_since(now).max(Duration::from_millis(1));
        rustix::event::Timespec::try_from(left).ok()
    }
}

/// How often to look before sleeping: more while it pays, less while it does not.
#[derive(Default)]
struct Looks {
    budget: u32,
    used: u32,
    sleeps: u32,
}

impl Looks {
    fn found(&mut self) {
        if self.used > 0 {
            self.budget = (self.budget * 2).min(LOOKS_MAX);
        }
        self.used = 0;
    }

    /// `false`: enough, sleep.
    fn again(&mut self) -> bool {
        if self.used >= self.budget.max(LOOKS_MIN) {
            self.used = 0;
            self.sleeps = self.sleeps.wrapping_add(1);
            self.budget =
                if self.sleeps.is_multiple_of(SLEEPS_PER_TRIAL) { LOOKS_MAX } else { (self.budget / 2).max(LOOKS_MIN) };
            return false;
        }
        self.used += 1;
        std::thread::yield_now();
        true
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
enum Handled {
    Done,
    /// There is no room at the moment.
    Later,
}

/// Journal key of an open that no request of the kernel asked for; the kernel's numbers are even.
fn reopen_key(fh: u64) -> u64 {
    fh << 1 & !kernel::UNIQUE_RESEND | 1
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Memory whose pages are all there. One that is not is brought in while the kernel copies a request, and in a process
/// that is being killed it is not: FUSE then ends the request with `EIO`, which the next gate would have carried out.
fn resident(bytes: usize) -> Vec<u8> {
    // Zeros would be pages that nobody has written yet.
    vec![0xff; bytes]
}

/// The same of what stands for files that the server was not told of. Numbers of inodes that are cached are below all
/// of the handle table.
fn stand_key(ino: u64) -> u64 {
    reopen_key(ino)
}

/// A session number: never 0.
fn random() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail for so few bytes once the system has booted; the clock would do.
    if rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).is_err() {
        bytes = now_ns().to_ne_bytes();
    }
    u64::from_ne_bytes(bytes).max(1)
}

/// Whether the request may be needed once more.
fn has_more(then: Then) -> bool {
    matches!(then, Then::Told { .. } | Then::Made { .. } | Then::Lookup | Then::Attr)
}

/// The regular file that a change was about, as its answer has it.
fn changed_file<D: ReplyData>(flight: &Flight, done: &Done<D>) -> Option<u64> {
    if done.status != 0 || !flight.changes {
        return None;
    }
    match flight.then {
        Then::Write { .. } => Some(flight.ino),
        Then::Create { .. } | Then::Made { .. } | Then::Set => {
            let attr = complete::attr_of(&done.data)?;
            (attr.mode.get() & libc::S_IFMT == libc::S_IFREG).then(|| attr.ino.get())
        }
        _ => None,
    }
}

/// Names that the request is about, with their directories: of the answer's inode, or the old and the new one.
fn names_of(request: &Request<'_>) -> Vec<(u64, Vec<u8>)> {
    let parent = request.header.nodeid;
    match request.body {
        Body::Lookup { name }
        | Body::Symlink { name, .. }
        | Body::Mknod { name, .. }
        | Body::Mkdir { name, .. }
        | Body::Create { name, .. }
        | Body::Unlink { name }
        | Body::Rmdir { name }
        | Body::Link { name, .. } => vec![(parent, name.to_vec())],
        Body::Rename { to, old, new, .. } => vec![(parent, old.to_vec()), (to, new.to_vec())],
        Body::Ioctl { data, .. } => {
            translate::place_parts(data).map(|(_, name, _)| (parent, name.to_vec())).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// What of ours is in flight, for [`Recalls`].
struct Ours<'a> {
    flights: &'a Flights,
    drops: &'a HashMap<u64, usize>,
    state: &'a State,
    behind: &'a Behind,
}

impl InFlight for Ours<'_> {
    fn has_bytes(&self, ino: u64) -> bool {
        self.flights.has_bytes(ino) || self.drops.contains_key(&ino)
    }

    fn changes_names_of(&self, directory: u64) -> bool {
        self.flights.changes_names_of(directory)
    }

    fn has_changes(&self) -> bool {
        self.flights.has_changes()
    }

    fn is_untold(&self, ino: u64) -> bool {
        self.state.is_untold(ino)
    }

    fn is_promised(&self, ino: u64) -> bool {
        self.behind.holds_back(ino)
    }
}
