//! A session with a server, for programs that have an event loop of their own.
//!
//! A session is `Down` (a ring is being opened in the background), `Greeting` (HELLO was sent), `Up`, or `Fenced` (it
//! must not go on, [`Fenced`] says why: everything answers `ESTALE` until the caller begins a new session, or revives
//! this one by another ([`Identity::revives`])). Callers submit in every state; what has no completion when a ring ends
//! is kept and sent again, in order, over the next one. They see nothing of it but the time it takes. A server that was
//! left behind is one that died: the ring ends, and the next one leads to its successor.
//!
//! Request data stays in the arena of the ring it was put into; mappings live as long as we hold them. Where a server
//! may put reply data over it, a copy is kept.
//!
//! What comes from the server is not trusted: an unknown tag, a wrong sequence or more reply data than there is room
//! for ends the ring, and the work begins anew with the next one.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use abi::limits::{ARENA_BYTES_MAX, RING_ENTRIES_MAX, TRANSFER_BYTES_MAX};
use abi::ring::{Completion, Submission};
use ipc::{Arena, Arming, RingClient, RingSpec};
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use versions::Versions;
use vos_api::Operation;
use vos_api::session::{Epochs, Greeting, Hello, OtherVersion, Outdated, Progress};

use crate::connecting::{Connect, Connecting, Poke};
use crate::op::{Data, Done, Op, Sequenced, SubmitError, Token};
use crate::space::{RANGE_BYTES_MIN, Range, Space};

/// Tag of the greeting; others are slot numbers.
const HELLO_TAG: u32 = u32::MAX;

/// Before a server is greeted again that could not take the greeting.
const GREETING_PAUSE: Duration = Duration::from_millis(5);

/// Who we are to the server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity {
    /// `None`: a new session with a random number. `Some`: the session of a client that died.
    pub session: Option<u64>,
    /// The first sequence not used yet; 0 and 1 mean the same.
    pub next_sequence: u64,
    /// The lowest sequence that may come again as [`Sequenced::As`]: the server must remember from there on.
    pub repeats_from: Option<u64>,
    /// The caller knows that the session was fenced, and keeps nothing that a lease covered.
    pub revives: bool,
    /// What we were told of placements; nothing, for a program.
    pub epochs: Epochs,
}

/// Why a session must not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fenced {
    #[error("the server ended the session, or forgot it")]
    Forgotten,
    #[error("the server was placed anew: its epoch is {now}, and we were told {told}")]
    ServerMoved { told: u32, now: u64 },
    #[error("we were placed anew: our epoch is {now}, and this process was told {told}")]
    Replaced { told: u32, now: u64 },
    #[error("epochs are not for programs to say")]
    NotPermitted,
    #[error("{}", in_words(*server))]
    OtherVersion { server: Versions },
    #[error("no thread can be started to open a ring")]
    NoThread,
}

/// For the log of whoever cannot go on: its own release takes its place, or the server's.
fn in_words(server: Versions) -> String {
    let refused = versions::SERVERS.agree(server);
    refused.map_or_else(|mismatch| mismatch.to_string(), |_| "the server refused a version that it speaks".to_owned())
}

impl Fenced {
    /// Whether a new session can go on where this one ended; if not, what we were told of placements is old or wrong.
    pub fn is_renewable(self) -> bool {
        matches!(self, Fenced::Forgotten | Fenced::NoThread)
    }
}

/// Requests in flight and arena of a session's rings.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub entries: u32,
    pub arena_bytes: u32,
}

impl Size {
    /// The nearest ring that M3-IPC makes.
    pub(crate) fn spec(self) -> RingSpec {
        let entries = self.entries.clamp(1, RING_ENTRIES_MAX).next_power_of_two();
        let arena_bytes = self.arena_bytes.min(ARENA_BYTES_MAX) / RANGE_BYTES_MIN * RANGE_BYTES_MIN;
        RingSpec { entries, arena_bytes }
    }
}

impl Default for Size {
    fn default() -> Size {
        Size { entries: 256, arena_bytes: 64 << 20 }
    }
}

pub struct Session {
    id: u64,
    next_sequence: u64,
    repeats_from: Option<u64>,
    /// Said until a server greets.
    revives: bool,
    epochs: Epochs,
    next_token: u64,
    entries: u32,
    /// What the server said it accepts, at most `entries`.
    in_flight_max: usize,
    stage: Stage,
    /// Here while no helper thread has it.
    connect: Option<Box<dyn Connect>>,
    slots: Vec<Option<Pending>>,
    free_slots: Vec<u32>,
    /// Places that were handed out and hold no operation.
    reserved: usize,
    /// Slots of operations without completion, in the order of submission.
    order: BTreeMap<Token, u32>,
    space: Arc<Mutex<Space>>,
    ready: VecDeque<Done>,
    unpublished: bool,
    poke: Poke,
    epoll: Arc<OwnedFd>,
    incarnation: u64,
    /// Agreed upon with the server that greeted last, 0 before.
    version: u8,
    restarts: u64,
}

enum Stage {
    Down(Option<Connecting>),
    Greeting(Arc<RingClient>),
    Up(Arc<RingClient>),
    Fenced(Fenced),
}

struct Pending {
    token: Token,
    submission: Submission,
    range: Range,
    held: Held,
}

/// A place for an operation whose bytes come first.
pub(crate) struct Reserved {
    slot: u32,
    range: Range,
    arena: Arena,
    bytes: u32,
}

impl Reserved {
    /// Where its bytes belong.
    pub(crate) fn arena(&self) -> (&Arena, usize) {
        (&self.arena, self.range.offset() as usize)
    }
}

/// Where the request's bytes are until the completion comes.
enum Held {
    Nothing,
    Arena(Arena),
    Copy(Box<[u8]>),
}

/// What an event loop may do after it took everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Armed {
    /// Wait on [`Session::fd`].
    Sleep,
    /// Something arrived meanwhile: take it first.
    Work,
}

/// A handle to wait with, while others use the session.
pub(crate) enum Waiter {
    Ring(Arc<RingClient>),
    Poke(Poke),
}

impl Session {
    /// Begins a session. Returns at once; the ring is opened in the background.
    pub fn open(connect: Box<dyn Connect>, size: Size, identity: Identity) -> io::Result<Session> {
        let poke = Poke::new()?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, &poke, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let RingSpec { entries, arena_bytes } = size.spec();
        let mut session = Session {
            id: identity.session.map_or_else(random_id, Ok)?,
            next_sequence: identity.next_sequence.max(1),
            repeats_from: identity.repeats_from,
            revives: identity.revives,
            epochs: identity.epochs,
            next_token: 1,
            entries,
            in_flight_max: entries as usize,
            stage: Stage::Down(None),
            connect: Some(connect),
            slots: (0..entries).map(|_| None).collect(),
            free_slots: (0..entries).rev().collect(),
            reserved: 0,
            order: BTreeMap::new(),
            space: Arc::new(Mutex::new(Space::new(arena_bytes))),
            ready: VecDeque::new(),
            unpublished: false,
            poke,
            epoll,
            incarnation: 0,
            version: 0,
            restarts: 0,
        };
        session.reconnect(Duration::ZERO)?;
        Ok(session)
    }

    /// The session number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number the next sequenced operation gets; a client that may be replaced writes it down before it submits.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Operations that were submitted and not completed.
    pub fn in_flight(&self) -> usize {
        self.order.len()
    }

    /// Rings opened after the first one.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Incarnation of the server that greeted last, 0 before.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Of [`versions::SERVERS`], as agreed upon with the server that greeted last; 0 before.
    pub fn version(&self) -> u8 {
        self.version
    }

    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    /// Why everything answers `ESTALE`; `None` as long as the session goes on.
    pub fn fenced(&self) -> Option<Fenced> {
        match self.stage {
            Stage::Fenced(why) => Some(why),
            Stage::Down(_) | Stage::Greeting(_) | Stage::Up(_) => None,
        }
    }

    /// Takes an operation; [`Session::flush`] makes it visible to the server.
    pub fn submit(&mut self, op: Op<'_>) -> Result<Token, SubmitError> {
        let out_bytes = u32::try_from(op.out.len()).map_err(|_| SubmitError::TooLong)?;
        let span = self.checked_span(out_bytes.max(op.in_capacity))?;
        if self.fenced().is_some() {
            return Ok(self.refuse());
        }
        let (slot, range) = self.take_place(span).ok_or(SubmitError::Full)?;
        let submission = self.submission(slot, &range, op, out_bytes);
        let held = self.hold(op.out, &submission);
        Ok(self.accept(submission, range, held))
    }

    /// A place for an operation with so many bytes, which are put into it before it is submitted. `None`: there is none
    /// at the moment, or no server. It is submitted or given back.
    pub(crate) fn reserve(&mut self, bytes: u32) -> Result<Option<Reserved>, SubmitError> {
        let bytes = self.checked_span(bytes)?;
        let Stage::Up(ring) = &self.stage else { return Ok(None) };
        let arena = ring.arena().clone();
        let place = self.take_place(bytes).map(|(slot, range)| Reserved { slot, range, arena, bytes });
        self.reserved += usize::from(place.is_some());
        Ok(place)
    }

    pub(crate) fn give_back(&mut self, Reserved { slot, range, .. }: Reserved) {
        self.reserved -= 1;
        self.free_slots.push(slot);
        self.space.lock().free(range);
    }

    /// Takes an operation whose bytes are there already. Its own `out` is for nothing, and no data is answered.
    pub(crate) fn submit_reserved(&mut self, op: Op<'_>, place: Reserved) -> Token {
        if self.fenced().is_some() {
            self.give_back(place);
            return self.refuse();
        }
        self.reserved -= 1;
        let Reserved { slot, range, arena, bytes } = place;
        let submission = self.submission(slot, &range, op.room(0), bytes);
        let mut held = Held::Arena(arena);
        // Another server may have come since. One that is only greeted is sent what lies ready in any case.
        if let Stage::Up(ring) = &self.stage
            && held.move_to(ring.arena(), &submission).is_err()
        {
            self.lost(&"the new ring has no room for what was reserved");
        }
        self.accept(submission, range, held)
    }

    /// An operation's room, if there can be so much.
    fn checked_span(&self, bytes: u32) -> Result<u32, SubmitError> {
        let is_possible = bytes <= TRANSFER_BYTES_MAX && self.space.lock().could_hold(bytes);
        if is_possible { Ok(bytes) } else { Err(SubmitError::TooLong) }
    }

    fn take_place(&mut self, bytes: u32) -> Option<(u32, Range)> {
        if self.order.len() + self.reserved >= self.in_flight_max {
            return None;
        }
        let slot = *self.free_slots.last()?;
        let range = self.space.lock().take(bytes)?;
        self.free_slots.pop();
        Some((slot, range))
    }

    fn submission(&mut self, slot: u32, range: &Range, op: Op<'_>, out_bytes: u32) -> Submission {
        Submission {
            tag: slot,
            op: op.op,
            flags: op.flags,
            sequence: self.sequence_of(op.sequenced),
            arena_offset: range.offset(),
            out_bytes,
            in_capacity: op.in_capacity,
            reserved: 0,
            args: op.args,
        }
    }

    fn accept(&mut self, submission: Submission, range: Range, held: Held) -> Token {
        let (token, slot) = (self.token(), submission.tag);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            *place = Some(Pending { token, submission, range, held });
        }
        self.order.insert(token, slot);
        self.send(&submission);
        token
    }

    /// Makes everything submitted visible to the server. Cheap when there is nothing new.
    pub fn flush(&mut self) {
        if std::mem::take(&mut self.unpublished)
            && let Stage::Up(ring) | Stage::Greeting(ring) = &self.stage
        {
            ring.publish();
        }
    }

    /// The next completed operation, `None` when there is none at the moment.
    pub fn complete(&mut self) -> Option<Done> {
        if self.ready.is_empty() {
            self.flush();
            self.advance();
        }
        self.ready.pop_front()
    }

    /// Readable when [`Session::complete`] has something to do, provided that [`Session::arm`] said `Sleep` before.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Call it before waiting on [`Session::fd`].
    pub fn arm(&mut self) -> Armed {
        self.flush();
        self.advance();
        if !self.ready.is_empty() {
            return Armed::Work;
        }
        match &self.stage {
            Stage::Up(ring) | Stage::Greeting(ring) => match ring.arm() {
                Arming::Armed => Armed::Sleep,
                Arming::Ready => Armed::Work,
            },
            Stage::Down(_) | Stage::Fenced(_) => Armed::Sleep,
        }
    }

    /// Call it after waking up: takes what arrived, so that [`Session::complete`] returns it.
    pub fn on_ready(&mut self) {
        // Before looking, so that what is set meanwhile wakes us again.
        self.poke.clear();
        if let Stage::Up(ring) | Stage::Greeting(ring) = &self.stage {
            ring.disarm();
        }
        self.advance();
    }

    /// After `ESTALE`: begins a new session with a new number ([`Fenced::is_renewable`]). Caches and handles of the old
    /// one are void.
    pub fn renew(&mut self) -> io::Result<()> {
        if self.fenced().is_some() {
            self.id = random_id()?;
            self.next_sequence = 1;
            self.repeats_from = None;
            self.revives = false;
            self.reconnect(Duration::ZERO)?;
        }
        Ok(())
    }

    pub(crate) fn shared_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Makes the session's descriptor readable.
    pub(crate) fn poke(&self) {
        self.poke.set();
    }

    pub(crate) fn waiter(&self) -> Waiter {
        match &self.stage {
            Stage::Up(ring) | Stage::Greeting(ring) => Waiter::Ring(Arc::clone(ring)),
            Stage::Down(_) | Stage::Fenced(_) => Waiter::Poke(self.poke.clone()),
        }
    }

    /// Moves the state on as far as it goes without waiting.
    fn advance(&mut self) {
        if let Stage::Down(connecting) = &mut self.stage {
            let Some((ring, connect)) = connecting.as_mut().and_then(Connecting::poll) else { return };
            self.connect = Some(connect);
            self.greet(ring);
        }
        // Bounded by what can be in flight, so that a busy server cannot keep us here.
        for _ in 0..=self.entries {
            let (Stage::Up(ring) | Stage::Greeting(ring)) = &self.stage else { return };
            match ring.poll() {
                Ok(Some(completion)) if completion.tag == HELLO_TAG => self.greeted(&completion),
                Ok(Some(completion)) => self.take(&completion),
                Ok(None) => return,
                Err(error) => self.lost(&error),
            }
        }
    }

    fn greet(&mut self, ring: RingClient) {
        let progress = Progress { acknowledged: self.acknowledged(), revives: self.revives };
        let (epochs, speaks) = (self.epochs, versions::SERVERS.speaks);
        let hello = Hello { session: self.id, progress, epochs, speaks }.encode();
        let (op, flags, args) = (hello.op, hello.flags, hello.args);
        let hello = Submission { tag: HELLO_TAG, op, flags, args, ..Submission::default() };
        let ring = Arc::new(ring);
        let watched = epoll::add(&self.epoll, ring.fd(), epoll::EventData::new_u64(1), epoll::EventFlags::IN);
        let sent = ring.submit(&hello).is_ok();
        ring.publish();
        self.stage = Stage::Greeting(ring);
        if !sent || watched.is_err() {
            self.lost(&"the new ring takes no request");
        }
    }

    /// Everything up to this sequence is known to be complete.
    fn acknowledged(&self) -> u64 {
        let open = self.order.values().filter_map(|&slot| self.slots.get(slot as usize)?.as_ref());
        let oldest = open.map(|pending| pending.submission.sequence).filter(|&sequence| sequence > 0).min();
        let oldest = oldest.unwrap_or(self.next_sequence).min(self.repeats_from.unwrap_or(u64::MAX));
        oldest.saturating_sub(1)
    }

    fn greeted(&mut self, completion: &Completion) {
        let Stage::Greeting(ring) = &self.stage else { return self.lost(&"a second answer to the greeting") };
        if completion.status != 0 {
            return self.unwelcome(completion);
        }
        let greeting = Greeting::from(completion.results);
        if !greeting.version().is_some_and(|version| versions::SERVERS.speaks.includes(version)) {
            return self.lost(&"the server speaks a version that was not offered");
        }
        self.version = greeting.version().unwrap_or_default();
        self.restarts += u64::from(self.incarnation != 0);
        self.incarnation = greeting.incarnation.max(1);
        if greeting.in_flight() > 0 {
            self.in_flight_max = greeting.in_flight().min(self.entries) as usize;
        }
        self.revives = false;
        self.stage = Stage::Up(Arc::clone(ring));
        self.resend();
    }

    fn unwelcome(&mut self, completion: &Completion) {
        let errno = Errno::from_raw_os_error(errno_of(completion.status));
        let (told, Outdated { server, own }) = (self.epochs, completion.results.into());
        match errno {
            Errno::PERM => self.fence(Fenced::NotPermitted),
            Errno::OPNOTSUPP => match OtherVersion::from(completion.results).speaks() {
                Some(server) => self.fence(Fenced::OtherVersion { server }),
                None => self.lost(&"the server refused the greeting"),
            },
            Errno::STALE if server > u64::from(told.server) => {
                self.fence(Fenced::ServerMoved { told: told.server, now: server });
            }
            Errno::STALE if own > u64::from(told.own) => self.fence(Fenced::Replaced { told: told.own, now: own }),
            Errno::STALE if (server, own) == (0, 0) => self.fence(Fenced::Forgotten),
            Errno::STALE => self.lost(&"the server was left behind"),
            _ => self.lost_for(&format!("the greeting was answered with {errno}"), GREETING_PAUSE),
        }
    }

    /// Sends everything without a completion over the new ring, in order.
    fn resend(&mut self) {
        let Stage::Up(ring) = &self.stage else { return };
        let ring = Arc::clone(ring);
        for &slot in self.order.values() {
            let Some(pending) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { continue };
            if pending.held.move_to(ring.arena(), &pending.submission).is_err()
                || ring.submit(&pending.submission).is_err()
            {
                return self.lost(&"the new ring has no room for what was in flight");
            }
        }
        ring.publish();
    }

    fn send(&mut self, submission: &Submission) {
        let Stage::Up(ring) = &self.stage else { return };
        match ring.submit(submission) {
            Ok(()) => self.unpublished = true,
            Err(_) => self.lost(&"the ring is full although the operation was within its entries"),
        }
    }

    fn take(&mut self, completion: &Completion) {
        let Some(place) = self.slots.get_mut(completion.tag as usize) else {
            return self.lost(&"the server completed an operation that is not in flight");
        };
        let is_answer = place.as_ref().is_some_and(|pending| {
            pending.submission.sequence == completion.sequence && completion.in_bytes <= pending.submission.in_capacity
        });
        let (true, Stage::Up(ring)) = (is_answer, &self.stage) else {
            return self.lost(&"a completion does not match its operation");
        };
        let arena = ring.arena().clone();
        let Some(pending) = place.take() else { return };
        self.free_slots.push(completion.tag);
        self.order.remove(&pending.token);
        let data = match completion.in_bytes {
            // Others need not wait until somebody comes for it.
            0 => {
                self.space.lock().free(pending.range);
                Data::none()
            }
            bytes => Data::new(arena, pending.range, bytes, Arc::clone(&self.space)),
        };
        self.ready.push_back(Done {
            token: pending.token,
            sequence: completion.sequence,
            error: (completion.status != 0).then(|| Errno::from_raw_os_error(errno_of(completion.status))),
            results: completion.results,
            data,
        });
    }

    /// The ring ended: everything without a completion stays, and a new ring is opened.
    fn lost(&mut self, why: &dyn std::fmt::Display) {
        self.lost_for(why, Duration::ZERO);
    }

    fn lost_for(&mut self, why: &dyn std::fmt::Display, pause: Duration) {
        tracing::debug!(session = self.id, %why, in_flight = self.order.len(), "ring lost");
        self.leave_ring();
        if let Err(error) = self.reconnect(pause) {
            // No thread can be started: give the caller an answer rather than silence.
            tracing::error!(%error, "cannot open a new ring");
            self.fence(Fenced::NoThread);
        }
    }

    fn leave_ring(&mut self) {
        if let Stage::Up(ring) | Stage::Greeting(ring) = &self.stage {
            let _ = epoll::delete(&self.epoll, ring.fd());
        }
        self.unpublished = false;
        self.stage = Stage::Down(None);
    }

    fn reconnect(&mut self, pause: Duration) -> io::Result<()> {
        let Some(connect) = self.connect.take() else { return Ok(()) };
        self.stage = Stage::Down(Some(Connecting::start(connect, self.poke.clone(), pause)?));
        Ok(())
    }

    fn fence(&mut self, why: Fenced) {
        tracing::warn!(session = self.id, %why, "the session must not go on");
        self.leave_ring();
        self.stage = Stage::Fenced(why);
        self.poke.set();
        for (token, slot) in std::mem::take(&mut self.order) {
            let Some(pending) = self.slots.get_mut(slot as usize).and_then(Option::take) else { continue };
            self.free_slots.push(slot);
            self.space.lock().free(pending.range);
            self.ready.push_back(stale(token, pending.submission.sequence));
        }
    }

    fn refuse(&mut self) -> Token {
        let token = self.token();
        self.ready.push_back(stale(token, 0));
        self.poke.set();
        token
    }

    /// Puts the request's bytes where the server finds them, and keeps them for a repetition.
    fn hold(&self, out: &[u8], submission: &Submission) -> Held {
        if out.is_empty() {
            return Held::Nothing;
        }
        let (Stage::Up(ring) | Stage::Greeting(ring)) = &self.stage else { return Held::Copy(out.into()) };
        let is_put = ring.arena().copy_in(submission.arena_offset as usize, out).is_ok();
        if is_put && submission.in_capacity == 0 { Held::Arena(ring.arena().clone()) } else { Held::Copy(out.into()) }
    }

    fn sequence_of(&mut self, sequenced: Sequenced) -> u64 {
        match sequenced {
            Sequenced::No => 0,
            Sequenced::As(sequence) => sequence,
            Sequenced::Yes => {
                self.next_sequence += 1;
                self.next_sequence - 1
            }
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token - 1)
    }
}

impl Held {
    /// Moves the request's bytes into the arena of another ring.
    fn move_to(&mut self, arena: &Arena, submission: &Submission) -> Result<(), Errno> {
        let (offset, bytes) = (submission.arena_offset as usize, submission.out_bytes as usize);
        match self {
            Held::Nothing => Ok(()),
            Held::Copy(copy) => arena.copy_in(offset, copy).map_err(|_| Errno::INVAL),
            Held::Arena(old) if old.is(arena) => Ok(()),
            Held::Arena(old) => {
                arena.copy_from(offset, old, offset, bytes).map_err(|_| Errno::INVAL)?;
                *self = Held::Arena(arena.clone());
                Ok(())
            }
        }
    }
}

fn stale(token: Token, sequence: u64) -> Done {
    Done { token, sequence, error: Some(Errno::STALE), results: [0; 4], data: Data::none() }
}

/// A server's status as an errno; nonsense becomes `EIO`.
fn errno_of(status: u32) -> i32 {
    const ERRNO_MAX: u32 = 4095;
    if status <= ERRNO_MAX { status as i32 } else { Errno::IO.raw_os_error() }
}

fn random_id() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // 0 means "no session" to some readers of logs and stores.
    Ok(u64::from_le_bytes(bytes).max(1))
}
