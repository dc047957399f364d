//! The end that submits.
//!
//! Locks, none held while another is taken: `submitting` (tail), `polling` (head), `sleeping` (who sleeps). Uncontended
//! when one thread uses the ring.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError};
use ipc_core::wake::fall_asleep;
use ipc_core::{Budget, ChannelId, Sleep, WaitMode, Words};
use ipc_shm::{Arena, ChannelHalf, ControlPage, ForkGuard, Woken};

use super::{Arming, RingFull, RingSpec, end_of_peer, goodbye, lock};
use crate::errors;
use crate::wait::{Deadline, Wait};
use crate::waiting::{look_awake, nap_within, new_budget, own_end};

/// Submits requests and takes their completions. May be shared by threads: several may submit, poll and wait; an event
/// loop that sleeps on `fd` must be the only one that waits. The ring closes when this is dropped.
#[derive(Debug)]
pub struct RingClient {
    half: Arc<ChannelHalf>,
    own_control: Arc<ControlPage>,
    guard: ForkGuard,
    socket: Arc<OwnedFd>,
    channel: ChannelId,
    peer: Endpoint,
    spec: RingSpec,
    arena: Arena,
    submitting: Mutex<Submitting>,
    polling: Mutex<Polling>,
    sleeping: Mutex<Sleeping>,
    budget: Mutex<Budget>,
    in_flight: AtomicU32,
    /// Code of the reason the ring was closed for, once poll saw it.
    closed: AtomicU32,
}

#[derive(Debug)]
struct Submitting {
    tail: u32,
}

#[derive(Debug)]
struct Polling {
    head: u32,
}

#[derive(Debug)]
struct Sleeping {
    threads: u32,
}

/// What a new ring is made of.
pub(crate) struct RingParts {
    pub half: ChannelHalf,
    pub own_control: Arc<ControlPage>,
    pub guard: ForkGuard,
    pub socket: Arc<OwnedFd>,
    pub channel: ChannelId,
    pub peer: Endpoint,
    pub spec: RingSpec,
}

impl RingClient {
    pub(crate) fn new(parts: RingParts) -> RingClient {
        RingClient {
            arena: parts.half.arena(),
            submitting: Mutex::new(Submitting { tail: parts.half.own_tail() }),
            polling: Mutex::new(Polling { head: parts.half.own_head() }),
            sleeping: Mutex::new(Sleeping { threads: 0 }),
            budget: Mutex::new(new_budget()),
            in_flight: AtomicU32::new(0),
            closed: AtomicU32::new(0),
            half: Arc::new(parts.half),
            own_control: parts.own_control,
            guard: parts.guard,
            socket: parts.socket,
            channel: parts.channel,
            peer: parts.peer,
            spec: parts.spec,
        }
    }

    pub(crate) fn channel(&self) -> ChannelId {
        self.channel
    }

    pub(crate) fn half(&self) -> &Arc<ChannelHalf> {
        &self.half
    }

    /// Writes an entry; the server sees it after `publish`. The caller keeps arena ranges of requests in flight
    /// disjoint. Never more than `spec().entries` are in flight. A ring that a forked child inherited takes none;
    /// `poll` says so.
    pub fn submit(&self, submission: &Submission) -> Result<(), RingFull> {
        if self.is_inherited() {
            return Err(RingFull);
        }
        let mut submitting = lock(&self.submitting);
        let unseen = submitting.tail.wrapping_sub(self.half.peer_head());
        if unseen >= self.spec.entries || self.in_flight.load(Ordering::Acquire) >= self.spec.entries {
            return Err(RingFull);
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        self.half.write_entry(submitting.tail, &submission.to_bytes());
        submitting.tail = submitting.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows what was submitted to the server, and wakes it when it sleeps.
    pub fn publish(&self) {
        let submitting = lock(&self.submitting);
        if self.guard.holds() && self.half.own_tail() != submitting.tail {
            self.half.set_own_tail(submitting.tail);
            drop(submitting);
            self.half.kick();
        }
    }

    /// The next completion, if there is one. After an error the ring is closed for good; completions that were
    /// published before the server died still come first. Errors: [`errors::RING`].
    pub fn poll(&self) -> Result<Option<Completion>, IpcError> {
        if self.is_inherited() {
            return Err(IpcError::NotBound);
        }
        match self.take_completion()? {
            Some(completion) => Ok(Some(completion)),
            None => match self.is_closed() {
                None => Ok(None),
                // It may have been published between the two looks.
                Some(reason) => errors::RING.only(self.take_completion()?.map(Some).ok_or(reason)),
            },
        }
    }

    /// Waits until `poll` has something to say, adaptively. `TimedOut` when nothing came, `NotBound` in a forked child:
    /// [`errors::RING_WAIT`].
    pub fn wait(&self, wait: Wait) -> Result<(), IpcError> {
        if self.is_inherited() {
            return Err(IpcError::NotBound);
        }
        let mut look = || self.has_news().then_some(());
        if look().is_some() {
            return Ok(());
        }
        let deadline = Deadline::after(wait);
        if wait != Wait::NoWait {
            // A second waiter does not spin: the first one does.
            if let Ok(mut budget) = self.budget.try_lock() {
                let mut is_over = || deadline.has_passed();
                if look_awake(&mut budget, &mut is_over, &mut look).is_some() {
                    return Ok(());
                }
            }
        }
        let mut is_new = true;
        while !self.has_news() {
            let left = deadline.left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(IpcError::TimedOut);
            }
            let seen = self.half.seen(&self.own_control);
            self.begin_sleep();
            let slept = match std::mem::take(&mut is_new) {
                _ if self.has_news() => Ok(Woken::Look),
                true => self.half.nap(seen.event, nap_within(left)),
                false => self.half.sleep(seen, &self.own_control, left),
            };
            self.end_sleep();
            slept?;
        }
        Ok(())
    }

    /// How `wait` waits from now on.
    pub fn set_wait_mode(&self, mode: WaitMode) {
        lock(&self.budget).set_mode(mode);
    }

    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// For event loops: readable after [`RingClient::arm`] when there is something to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.half.bell_in()
    }

    /// Call before sleeping on `fd`; on `Ready` poll first and do not sleep.
    pub fn arm(&self) -> Arming {
        if self.is_inherited() {
            return Arming::Ready;
        }
        match fall_asleep(&*self.half, Sleep::EventFd, || (), |()| self.has_news().then_some(())) {
            Ok(()) => Arming::Ready,
            Err(()) => Arming::Armed,
        }
    }

    /// Call after sleeping on `fd`, before polling.
    pub fn disarm(&self) {
        if self.is_inherited() {
            return;
        }
        self.half.prepare_sleep(Sleep::Awake);
        sys::eventfd::hear(self.half.bell_in());
    }

    /// Whether this is a forked child of the process that opened the ring. What it wrote would be taken for its
    /// parent's, and its waits for those of its parent, who would be woken no more.
    pub fn is_inherited(&self) -> bool {
        !self.guard.holds()
    }

    /// Why the ring ended, when it has. Completions may still be there.
    pub fn is_closed(&self) -> Option<IpcError> {
        match self.closed.load(Ordering::Acquire) {
            0 => end_of_peer(&self.half).or_else(|| own_end(&self.own_control)),
            code => Some(IpcError::from_code(code)),
        }
    }

    /// Requests submitted whose completion was not polled.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    pub fn spec(&self) -> RingSpec {
        self.spec
    }

    pub fn peer(&self) -> Endpoint {
        self.peer
    }

    fn take_completion(&self) -> Result<Option<Completion>, IpcError> {
        let mut polling = lock(&self.polling);
        if self.closed.load(Ordering::Acquire) != 0 {
            return Ok(None);
        }
        let waiting = self.half.peer_tail().wrapping_sub(polling.head);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.in_flight.load(Ordering::Acquire) {
            return Err(self.close(IpcError::Corrupt));
        }
        let completion = Completion::from_bytes(&self.half.read_entry(polling.head));
        if completion.in_bytes as usize > self.arena.len() || completion.reserved != 0 {
            return Err(self.close(IpcError::Corrupt));
        }
        polling.head = polling.head.wrapping_add(1);
        self.half.set_own_head(polling.head);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        Ok(Some(completion))
    }

    pub(crate) fn has_news(&self) -> bool {
        self.half.peer_tail() != self.half.own_head() || self.is_closed().is_some()
    }

    fn close(&self, reason: IpcError) -> IpcError {
        self.closed.store(reason.code(), Ordering::Release);
        reason
    }

    fn begin_sleep(&self) {
        let mut sleeping = lock(&self.sleeping);
        sleeping.threads += 1;
        self.half.prepare_sleep(Sleep::Futex);
    }

    fn end_sleep(&self) {
        let mut sleeping = lock(&self.sleeping);
        sleeping.threads -= 1;
        if sleeping.threads == 0 {
            self.half.prepare_sleep(Sleep::Awake);
        }
    }
}

impl Drop for RingClient {
    fn drop(&mut self) {
        goodbye(&self.half, &self.guard, &self.socket, self.channel);
    }
}
