//! From the primary to a copy: messages become requests of a session, completions answers of the machine.
//!
//! A link goes on in *turns*, each with a session of its own: what was said in one and not answered is never said again
//! by the session, only by the machine, which greets first. A session opens ring after ring by itself and says again
//! what it has, but a copy takes nothing over a ring that was not greeted: that refusal, like any other, ends the turn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use abi::Endpoint;
use libvos::{Armed, Done, Identity, Op, PortConnect, Session, SharedPort, Size, SubmitError, Token};
use parking_lot::Mutex;
use replica_core::{BlockRange, CopyState, ENCODED_BYTES_MAX, Replica, ReplicaAnswer, ReplicaMessage, encode_behind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vos_api::Operation;
use vos_api::copy as api;
use vos_api::disk::{BLOCK_BYTES, Need};
use vos_rt::Handle;

use super::endpoint_of;

const SIZE: Size = Size { entries: 256, arena_bytes: 32 << 20 };
/// Bytes that wait because the ring is full; with more the link is of no use.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Nobody sets it free earlier but what arrives.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What is written.
#[derive(Clone, Debug)]
pub enum Content {
    Bytes(Arc<Vec<u8>>),
    Zeros,
}

/// What links said and nobody has looked at, and who is told that there is something.
#[derive(Default)]
pub struct LinkInbox {
    said: Mutex<Vec<(Replica, LinkSaid)>>,
    told: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug)]
pub enum LinkSaid {
    Answer(u64, ReplicaAnswer),
    Reserved(u64, Result<(), Errno>),
    /// What its medium has.
    Looked(u64, Result<Vec<u8>, Errno>),
    /// Its medium has no room for that write, or copy, of that turn.
    NoRoom(u64, u64),
    /// That turn is over.
    Broken(u64),
}

impl LinkInbox {
    pub fn take(&self) -> Vec<(Replica, LinkSaid)> {
        std::mem::take(&mut self.said.lock())
    }

    /// By the thread of a link that heard something, which waits for it.
    pub fn tell(&self, told: impl Fn() + Send + Sync + 'static) {
        // Once.
        let _ = self.told.set(Box::new(told));
    }
}

pub struct Link {
    shared: Arc<Shared>,
}

/// See [`Link::in_turn`].
pub struct LinkTurn {
    shared: Arc<Shared>,
    turn: u64,
}

impl LinkTurn {
    pub fn say(self, epoch: u32, message: ReplicaMessage<Content>) {
        self.shared.put(Saying::Message(epoch, message), Some(self.turn));
    }
}

struct Shared {
    to: Replica,
    copy: Endpoint,
    port: SharedPort,
    state: Mutex<State>,
    inbox: Arc<LinkInbox>,
    handle: Handle,
}

struct State {
    /// `None` between turns: nothing is said.
    session: Option<Session>,
    /// Rises when one ends.
    turn: u64,
    asked: HashMap<Token, Asked>,
    waiting: VecDeque<Saying>,
    waiting_bytes: usize,
    /// Of what is not answered.
    heard: Instant,
    set: u64,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Welcome,
    Accepted(u64),
    /// It is not, before the copy has flushed as well.
    Written(u64),
    Durable(u64),
    Marked(u64, bool),
    Granted(u64),
    Reserved(u64),
    Sums(u64),
    Looked(u64),
}

enum Saying {
    Message(u32, ReplicaMessage<Content>),
    Reserve(u64, Need, BlockRange),
    Look(u64, BlockRange),
    /// What ends a durable write to a copy of an earlier release.
    Flush(u64),
}

impl Link {
    pub fn open(port: &SharedPort, to: Replica, set: u64, inbox: &Arc<LinkInbox>, handle: &Handle) -> io::Result<Link> {
        let copy = endpoint_of(to).ok_or(io::ErrorKind::InvalidInput)?;
        let state = State {
            session: None,
            turn: 0,
            asked: HashMap::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            heard: Instant::now(),
            set,
        };
        let (inbox, handle, port) = (Arc::clone(inbox), handle.clone(), port.clone());
        Ok(Link { shared: Arc::new(Shared { to, copy, port, state: Mutex::new(state), inbox, handle }) })
    }

    /// A new turn: what was said before is not answered any more.
    pub fn begin_turn(&self) -> io::Result<()> {
        let shared = &self.shared;
        shared.state.lock().end_turn();
        let connect = PortConnect::new(shared.port.clone(), shared.copy, SIZE);
        let session = Session::open(Box::new(connect), SIZE, Identity::default())?;
        let readable = session.fd().try_clone_to_owned()?;
        let mut state = shared.state.lock();
        state.session = Some(session);
        let (also, turn) = (Arc::clone(shared), state.turn);
        let name = format!("copy-{}", shared.to.0);
        let spawned = std::thread::Builder::new().name(name).spawn(move || also.run(turn, &readable));
        spawned.map(drop).inspect_err(|_| state.end_turn())
    }

    pub fn end_turn(&self) {
        self.shared.state.lock().end_turn();
    }

    pub fn say(&self, epoch: u32, message: ReplicaMessage<Content>) {
        self.shared.put(Saying::Message(epoch, message), None);
    }

    /// To say something later, if that turn still goes on then.
    pub fn in_turn(&self) -> LinkTurn {
        LinkTurn { shared: Arc::clone(&self.shared), turn: self.turn() }
    }

    pub fn reserve(&self, id: u64, need: Need, range: BlockRange) {
        self.shared.put(Saying::Reserve(id, need, range), None);
    }

    pub fn look(&self, id: u64, range: BlockRange) {
        self.shared.put(Saying::Look(id, range), None);
    }

    pub fn turn(&self) -> u64 {
        self.shared.state.lock().turn
    }

    /// For how long something was asked and nothing heard.
    pub fn silent_for(&self) -> Duration {
        let state = self.shared.state.lock();
        if state.asked.is_empty() { Duration::ZERO } else { state.heard.elapsed() }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end_turn();
    }
}

impl Shared {
    fn put(&self, saying: Saying, of: Option<u64>) {
        let mut state = self.state.lock();
        if of.is_some_and(|turn| turn != state.turn) {
            return;
        }
        let said = if state.waiting.is_empty() { state.send(&saying) } else { Err(SubmitError::Full) };
        match said {
            Ok(()) => state.flush(),
            Err(SubmitError::Full) => {
                state.waiting_bytes += saying.bytes();
                state.waiting.push_back(saying);
                if state.waiting_bytes > WAITING_BYTES_MAX {
                    self.break_turn(&mut state);
                }
            }
            Err(SubmitError::TooLong) => {
                tracing::error!(to = self.to.0, "a message to a copy is longer than a transfer");
                self.break_turn(&mut state);
            }
        }
    }

    /// Until the turn is over.
    fn run(&self, turn: u64, readable: &OwnedFd) {
        loop {
            let armed = {
                let mut state = self.state.lock();
                if state.turn != turn {
                    return;
                }
                let has_news = self.collect(&mut state);
                let Some(session) = state.session.as_mut().filter(|_| !has_news) else {
                    drop(state);
                    self.tell();
                    continue;
                };
                session.arm()
            };
            if armed == Armed::Sleep {
                let readable: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(readable);
                // Interrupted or not: looked at anyway.
                let _ = poll(&mut [PollFd::from_borrowed_fd(readable, PollFlags::IN)], Some(&LOOK_AGAIN));
            }
        }
    }

    fn tell(&self) {
        match self.inbox.told.get() {
            Some(tell) => tell(),
            None => self.handle.poke(),
        }
    }

    /// Whether it heard something.
    fn collect(&self, state: &mut State) -> bool {
        let mut has_news = false;
        let turn = state.turn;
        if let Some(session) = &mut state.session {
            session.on_ready();
        }
        while let Some(done) = state.session.as_mut().and_then(Session::complete) {
            let Some(asked) = state.asked.remove(&done.token) else { continue };
            state.heard = Instant::now();
            if let (Asked::Written(seq), None) = (asked, done.error) {
                state.waiting.push_back(Saying::Flush(seq));
                state.waiting_bytes += Saying::Flush(seq).bytes();
                continue;
            }
            has_news = true;
            match said(turn, asked, done) {
                Some(said) => self.inbox.said.lock().push((self.to, said)),
                None => {
                    self.break_turn(state);
                    return true;
                }
            }
        }
        while let Some(saying) = state.waiting.pop_front() {
            state.waiting_bytes = state.waiting_bytes.saturating_sub(saying.bytes());
            if state.send(&saying).is_err() {
                state.waiting_bytes += saying.bytes();
                state.waiting.push_front(saying);
                break;
            }
        }
        state.flush();
        has_news
    }

    fn break_turn(&self, state: &mut State) {
        let turn = state.turn;
        state.end_turn();
        self.inbox.said.lock().push((self.to, LinkSaid::Broken(turn)));
        self.handle.poke();
    }
}

impl State {
    fn end_turn(&mut self) {
        self.turn += 1;
        self.session = None;
        self.asked.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
    }

    fn flush(&mut self) {
        if let Some(session) = &mut self.session {
            session.flush();
        }
    }

    fn send(&mut self, saying: &Saying) -> Result<(), SubmitError> {
        match saying {
            Saying::Reserve(id, need, range) => {
                let reserve = api::Reserve { need: *need, first: range.first, count: range.count.into() };
                self.ask(&reserve, 0, None, Asked::Reserved(*id))
            }
            Saying::Look(id, range) => {
                let look = api::LookAt { first: range.first, count: range.count.into() };
                self.ask(&look, range.count * BLOCK_BYTES, None, Asked::Looked(*id))
            }
            Saying::Flush(seq) => self.ask(&api::SyncCopy { seq: *seq }, 0, None, Asked::Accepted(*seq)),
            Saying::Message(epoch, message) => self.send_message(*epoch, message),
        }
    }

    fn send_message(&mut self, epoch: u32, message: &ReplicaMessage<Content>) -> Result<(), SubmitError> {
        match message {
            ReplicaMessage::Hello => {
                let greet = api::Greet { epoch: epoch.into(), set: self.set };
                self.ask(&greet, ENCODED_BYTES_MAX as u32, None, Asked::Welcome)
            }
            ReplicaMessage::Write { seq, floor, flushed, range, data, durable } => {
                let (seq, first, behind) = (*seq, range.first, api::Behind::new(*seq, *floor, *flushed));
                let written = if *durable { Asked::Written(seq) } else { Asked::Accepted(seq) };
                match data {
                    Content::Bytes(bytes) if *durable && self.knows_durable() => {
                        let put = api::PutDurable { seq, first, behind };
                        self.ask(&put, 0, Some(bytes), Asked::Accepted(seq))
                    }
                    Content::Bytes(bytes) => {
                        let put = api::PutBlocks { seq, first, behind };
                        self.ask(&put, 0, Some(bytes), written)
                    }
                    Content::Zeros => {
                        let count = u64::from(range.count).into();
                        self.ask(&api::PutZeros { seq, first, behind, count }, 0, None, written)
                    }
                }
            }
            ReplicaMessage::Copy { seq, range, data } => match data {
                Content::Bytes(bytes) => {
                    let copy = api::CopyBlocks { seq: *seq, first: range.first };
                    self.ask(&copy, 0, Some(bytes), Asked::Accepted(*seq))
                }
                Content::Zeros => Ok(()),
            },
            ReplicaMessage::Flush { seq } => self.ask(&api::SyncCopy { seq: *seq }, 0, None, Asked::Durable(*seq)),
            ReplicaMessage::Sum { seq, range } => {
                let sum = api::SumBlocks { seq: *seq, first: range.first, count: range.count.into() };
                self.ask(&sum, range.count * size_of::<u32>() as u32, None, Asked::Sums(*seq))
            }
            ReplicaMessage::Mark { generation, whole, behind } => {
                let missing = encode_behind(behind);
                let mark = api::MarkCopy { generation: *generation, whole: (*whole).into(), missing: &missing };
                self.ask(&mark, 0, None, Asked::Marked(*generation, *whole))
            }
            ReplicaMessage::Lease { asked_ms } => {
                self.ask(&api::AskLease { asked_ms: *asked_ms }, 0, None, Asked::Granted(*asked_ms))
            }
        }
    }

    fn knows_durable(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.version() >= api::PUT_DURABLE_SINCE)
    }

    fn ask<'a, O: Operation<'a>>(
        &mut self,
        operation: &O,
        room: u32,
        bulk: Option<&Arc<Vec<u8>>>,
        asked: Asked,
    ) -> Result<(), SubmitError> {
        let encoded = operation.encode();
        let op = Op::of(&encoded, O::CLASS, room);
        let op = bulk.map_or(op, |bytes| op.out(bytes));
        if self.asked.is_empty() {
            self.heard = Instant::now();
        }
        let Some(session) = &mut self.session else { return Ok(()) };
        let token = session.submit(op)?;
        self.asked.insert(token, asked);
        Ok(())
    }
}

impl Saying {
    fn bytes(&self) -> usize {
        const AROUND: usize = 128;
        match self {
            Saying::Message(
                _,
                ReplicaMessage::Write { data: Content::Bytes(bytes), .. }
                | ReplicaMessage::Copy { data: Content::Bytes(bytes), .. },
            ) => AROUND + bytes.len(),
            Saying::Message(..) | Saying::Reserve(..) | Saying::Look(..) | Saying::Flush(_) => AROUND,
        }
    }
}

/// `None`: the copy does not take what is said.
fn said(turn: u64, asked: Asked, done: Done) -> Option<LinkSaid> {
    // Whoever takes nothing over this ring is greeted again.
    let is_stale = done.error == Some(Errno::STALE);
    if let Asked::Reserved(id) = asked
        && !is_stale
    {
        return Some(LinkSaid::Reserved(id, done.error.map_or(Ok(()), Err)));
    }
    if let Asked::Looked(id) = asked
        && !is_stale
    {
        return Some(LinkSaid::Looked(id, done.error.map_or_else(|| Ok(done.data.to_vec()), Err)));
    }
    if let (Some(Errno::NOSPC), Asked::Accepted(seq) | Asked::Written(seq)) = (done.error, asked) {
        return Some(LinkSaid::NoRoom(turn, seq));
    }
    let answer = match (done.error, asked) {
        (Some(Errno::STALE), _) => {
            let outdated = api::Outdated::from(done.results);
            ReplicaAnswer::Outdated { epoch: u32::try_from(outdated.own).ok().filter(|epoch| *epoch != 0)? }
        }
        (Some(_), _) => return None,
        (None, Asked::Welcome) => ReplicaAnswer::Welcome(CopyState::decode(&done.data.to_vec())?),
        (None, Asked::Accepted(seq)) => ReplicaAnswer::Accepted { seq },
        (None, Asked::Durable(seq)) => ReplicaAnswer::Durable { seq },
        (None, Asked::Marked(generation, whole)) => ReplicaAnswer::Marked { generation, whole },
        (None, Asked::Granted(asked_ms)) => ReplicaAnswer::Granted { asked_ms },
        (None, Asked::Sums(seq)) => {
            let words = done.data.to_vec();
            let sums = words.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
            ReplicaAnswer::Sums { seq, sums: sums.collect() }
        }
        (None, Asked::Reserved(_) | Asked::Looked(_) | Asked::Written(_)) => return None,
    };
    Some(LinkSaid::Answer(turn, answer))
}
