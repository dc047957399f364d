//! A session for programs made of threads: each call waits for its own answer.
//!
//! One of the waiting threads leads: it waits on the ring and hands out what arrives; the others sleep until theirs is
//! there or the lead is free. A single caller therefore waits on the ring itself, with all of its spinning, and no
//! thread of ours stands between caller and server.
//!
//! A thread may also wait for room. Room comes with completions, but also when another thread has copied its reply data
//! out. A leader that waits for room therefore waits on descriptors, one of which the copying thread writes to.
//!
//! Lock order: `Inner::state`, then the arena's space. The state is never locked while waiting or copying.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::{Arena, Wait};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vos_api::{Operation, Reply};

use crate::connecting::Connect;
use crate::op::{Done, Op, SubmitError, Token};
use crate::session::{Armed, Fenced, Identity, Reserved, Session, Size, Waiter};

/// Many threads' session with one server. Clones are the same session.
#[derive(Clone)]
pub struct BlockingSession {
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    /// Something was completed for another thread, the lead is free, or there is room again.
    changed: Condvar,
}

struct State {
    session: Session,
    /// Completions whose thread has not come for them yet.
    arrived: HashMap<Token, Done>,
    /// Operations whose thread will never come.
    abandoned: HashSet<Token>,
    lead: Lead,
    sleepers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lead {
    Free,
    /// Waits on the ring.
    ForCompletion,
    /// Waits on the session's descriptor.
    ForRoom,
}

/// The answer of a successful operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Completed {
    pub results: [u64; 4],
    pub data: Vec<u8>,
}

/// An operation that was submitted and is waited for later.
#[must_use = "the answer of an operation nobody waits for is lost"]
pub struct Started {
    session: BlockingSession,
    token: Token,
    is_over: bool,
}

/// An answer's data where its server put it. Others have the room when this is dropped.
pub struct Fetched {
    session: BlockingSession,
    done: Option<Done>,
}

/// Room for a request whose bytes come before it is submitted, where its server will find them. Others have it when
/// this is dropped.
pub struct RequestRoom {
    session: BlockingSession,
    place: Option<Reserved>,
}

impl BlockingSession {
    pub fn open(connect: Box<dyn Connect>, size: Size, identity: Identity) -> io::Result<BlockingSession> {
        let session = Session::open(connect, size, identity)?;
        let (arrived, abandoned) = (HashMap::new(), HashSet::new());
        let state = State { session, arrived, abandoned, lead: Lead::Free, sleepers: 0 };
        Ok(BlockingSession { inner: Arc::new(Inner { state: Mutex::new(state), changed: Condvar::new() }) })
    }

    /// Carries an operation out. Waits as long as it takes, over any number of restarts of the server.
    pub fn call(&self, op: Op<'_>) -> Result<Completed, Errno> {
        self.start(op)?.wait()
    }

    /// Carries a declared operation out; `room` is for reply data besides what always comes. Answers its reply, and
    /// that data.
    pub fn ask<'a, O: Operation<'a>>(&self, operation: O, room: u32) -> Result<(O::Reply, Vec<u8>), Errno> {
        let answer = self.call(Op::of(&operation.encode(), O::CLASS, room.max(O::Reply::DATA_BYTES)))?;
        Ok((answer.results.into(), answer.data))
    }

    /// Submits an operation; waits only while there is no room for it. A thread that has operations started already
    /// uses [`BlockingSession::try_start`]: the room it waits for might be what it holds itself.
    pub fn start(&self, op: Op<'_>) -> Result<Started, Errno> {
        let mut state = self.lock();
        loop {
            match self.submit(&mut state, op)? {
                Some(started) => return Ok(started),
                None => state = self.step(state, Lead::ForRoom),
            }
        }
    }

    /// Submits an operation if there is room for it.
    pub fn try_start(&self, op: Op<'_>) -> Result<Option<Started>, Errno> {
        self.submit(&mut self.lock(), op)
    }

    /// Room for a request with so many bytes, if there is any and a server.
    pub fn try_reserve(&self, bytes: u32) -> Result<Option<RequestRoom>, Errno> {
        match self.lock().session.reserve(bytes) {
            Ok(place) => Ok(place.map(|place| RequestRoom { session: self.clone(), place: Some(place) })),
            Err(SubmitError::Full) => Ok(None),
            Err(SubmitError::TooLong) => Err(Errno::INVAL),
        }
    }

    /// Rings opened after the first one.
    pub fn restarts(&self) -> u64 {
        self.lock().session.restarts()
    }

    /// Why everything answers `ESTALE`; `None` as long as the session goes on.
    pub fn fenced(&self) -> Option<Fenced> {
        self.lock().session.fenced()
    }

    /// The session number.
    pub fn id(&self) -> u64 {
        self.lock().session.id()
    }

    /// After `ESTALE`: begins a new session. Caches and handles of the old one are void.
    pub fn renew(&self) -> io::Result<()> {
        let renewed = self.lock().session.renew();
        self.inner.changed.notify_all();
        renewed
    }

    fn submit(&self, state: &mut State, op: Op<'_>) -> Result<Option<Started>, Errno> {
        match state.session.submit(op) {
            Ok(token) => {
                state.session.flush();
                Ok(Some(Started { session: self.clone(), token, is_over: false }))
            }
            Err(SubmitError::Full) => Ok(None),
            Err(SubmitError::TooLong) => Err(Errno::INVAL),
        }
    }

    fn wait(&self, token: Token) -> Done {
        let mut state = self.lock();
        loop {
            if let Some(done) = state.arrived.remove(&token) {
                return done;
            }
            state = self.step(state, Lead::ForCompletion);
        }
    }

    /// Waits once, as leader or behind one. May return although nothing changed for the caller.
    fn step<'a>(&'a self, mut state: MutexGuard<'a, State>, lead: Lead) -> MutexGuard<'a, State> {
        if state.lead != Lead::Free {
            state.sleepers += 1;
            self.inner.changed.wait(&mut state);
            state.sleepers -= 1;
            return state;
        }
        if !state.collect() {
            let Some(waiter) = state.prepare(lead) else { return state };
            state.lead = lead;
            drop(state);
            waiter.wait();
            state = self.lock();
            state.lead = Lead::Free;
            state.session.on_ready();
            state.collect();
        }
        // Also without a completion: the lead is free and somebody must take it.
        if state.sleepers > 0 {
            self.inner.changed.notify_all();
        }
        state
    }

    /// Whoever waits for room learns that there is some again.
    fn release(&self, give_back: impl FnOnce(&mut Session)) {
        let mut state = self.lock();
        give_back(&mut state.session);
        if state.sleepers > 0 {
            self.inner.changed.notify_all();
        }
        if state.lead == Lead::ForRoom {
            state.session.poke();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock()
    }
}

impl State {
    /// Takes what was completed; says whether there was anything.
    fn collect(&mut self) -> bool {
        let mut found = false;
        while let Some(done) = self.session.complete() {
            found = true;
            if !self.abandoned.remove(&done.token) {
                self.arrived.insert(done.token, done);
            }
        }
        found
    }

    fn prepare(&mut self, lead: Lead) -> Option<LeadWaiter> {
        match lead {
            Lead::Free | Lead::ForCompletion => Some(LeadWaiter::Session(self.session.waiter())),
            Lead::ForRoom => match self.session.arm() {
                Armed::Sleep => Some(LeadWaiter::Descriptor(self.session.shared_fd())),
                Armed::Work => {
                    self.session.on_ready();
                    None
                }
            },
        }
    }
}

impl Started {
    /// Whether the answer is there: then [`Started::wait`] does not wait.
    pub fn is_done(&self) -> bool {
        let mut state = self.session.lock();
        // Whoever leads takes what comes, and must not wait for what somebody else has taken.
        if !state.arrived.contains_key(&self.token) && state.lead == Lead::Free && state.collect() && state.sleepers > 0
        {
            self.session.inner.changed.notify_all();
        }
        state.arrived.contains_key(&self.token)
    }

    /// The answer with its data, copied out.
    pub fn wait(mut self) -> Result<Completed, Errno> {
        let done = self.take();
        let answer = match done.error {
            None => Ok(Completed { results: done.results, data: done.data.to_vec() }),
            Some(errno) => Err(errno),
        };
        self.session.release(|_| drop(done));
        answer
    }

    /// The answer's data is copied to the beginning of `into`. Returns results and bytes; `ERANGE` when `into` is
    /// short.
    pub fn wait_into(mut self, into: &mut [u8]) -> Result<([u64; 4], usize), Errno> {
        let done = self.take();
        let answer = match done.error {
            None => into
                .get_mut(..done.data.len())
                .ok_or(Errno::RANGE)
                .and_then(|place| done.data.copy_to(0, place))
                .map(|()| (done.results, done.data.len())),
            Some(errno) => Err(errno),
        };
        self.session.release(|_| drop(done));
        answer
    }

    /// The answer's data, where it lies.
    pub fn fetch(mut self) -> Result<Fetched, Errno> {
        let done = self.take();
        let error = done.error;
        let fetched = Fetched { session: self.session.clone(), done: Some(done) };
        error.map_or(Ok(fetched), Err)
    }

    fn take(&mut self) -> Done {
        let done = self.session.wait(self.token);
        self.is_over = true;
        done
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let arrived = {
            let mut state = self.session.lock();
            let arrived = state.arrived.remove(&self.token);
            if arrived.is_none() {
                state.abandoned.insert(self.token);
            }
            arrived
        };
        if let Some(done) = arrived {
            self.session.release(|_| drop(done));
        }
    }
}

impl Fetched {
    pub fn len(&self) -> usize {
        self.done.as_ref().map_or(0, |done| done.data.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The arena that has the bytes, and where they begin.
    pub fn arena(&self) -> Option<(&Arena, usize)> {
        self.done.as_ref()?.data.arena()
    }

    /// Copies from its beginning; `ERANGE` when there are fewer bytes.
    pub fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
        self.done.as_ref().ok_or(Errno::RANGE)?.data.copy_to(0, into)
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            self.session.release(|_| drop(done));
        }
    }
}

impl RequestRoom {
    /// The arena that takes the bytes, and from where on.
    pub fn arena(&self) -> Option<(&Arena, usize)> {
        self.place.as_ref().map(Reserved::arena)
    }

    /// Submits an operation with the bytes that were put here; `op` has none itself, and room for no reply data.
    pub fn start(mut self, op: Op<'_>) -> Result<Started, Errno> {
        let session = self.session.clone();
        let mut state = session.lock();
        let token = state.session.submit_reserved(op, self.place.take().ok_or(Errno::INVAL)?);
        state.session.flush();
        drop(state);
        Ok(Started { session, token, is_over: false })
    }
}

impl Drop for RequestRoom {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.session.release(|session| session.give_back(place));
        }
    }
}

enum LeadWaiter {
    Session(Waiter),
    Descriptor(Arc<OwnedFd>),
}

impl LeadWaiter {
    /// Waits until the session has something to do. Spurious returns are harmless: the caller looks again.
    fn wait(&self) {
        match self {
            // An ended ring shows when it is looked at.
            LeadWaiter::Session(Waiter::Ring(ring)) => drop(ring.wait(Wait::Forever)),
            LeadWaiter::Session(Waiter::Poke(fd)) => drop(poll(&mut [PollFd::new(fd, PollFlags::IN)], None)),
            LeadWaiter::Descriptor(fd) => drop(poll(&mut [PollFd::new(fd, PollFlags::IN)], None)),
        }
    }
}
