//! The end that completes.
//!
//! Locks: `taking` (head) and `completing` (tail), never both at once.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError};
use ipc_core::{ChannelId, Words};
use ipc_shm::{Arena, ChannelHalf, ForkGuard};

use super::{RingId, RingSpec, end_of_peer, goodbye, lock};
use crate::errors;

/// Takes requests of one client and completes them. May be shared by threads. The ring closes when this is dropped.
#[derive(Debug)]
pub struct RingServer {
    shared: Arc<RingShared>,
    client: Endpoint,
    spec: RingSpec,
    guard: ForkGuard,
    socket: Arc<OwnedFd>,
    channel: ChannelId,
    taking: Mutex<Taking>,
    completing: Mutex<Completing>,
}

/// What the port sees of a ring whose handle is elsewhere.
#[derive(Debug)]
pub(crate) struct RingShared {
    pub half: Arc<ChannelHalf>,
    /// Code of the reason for which this end closed the ring; 0 while it is open.
    pub closed: AtomicU32,
}

impl RingShared {
    pub fn end(&self) -> Option<IpcError> {
        match self.closed.load(Ordering::Acquire) {
            0 => end_of_peer(&self.half),
            code => Some(IpcError::from_code(code)),
        }
    }

    /// Why this end closed it.
    pub fn closed_here(&self) -> Option<IpcError> {
        match self.closed.load(Ordering::Acquire) {
            0 => None,
            code => Some(IpcError::from_code(code)),
        }
    }

    /// Submissions that were not taken.
    pub fn has_submissions(&self) -> bool {
        self.half.peer_tail() != self.half.own_head()
    }
}

#[derive(Debug)]
struct Taking {
    head: u32,
}

#[derive(Debug)]
struct Completing {
    tail: u32,
}

impl RingServer {
    pub(crate) fn new(
        shared: Arc<RingShared>,
        client: Endpoint,
        spec: RingSpec,
        guard: ForkGuard,
        socket: Arc<OwnedFd>,
        channel: ChannelId,
    ) -> RingServer {
        let (head, tail) = (shared.half.own_head(), shared.half.own_tail());
        RingServer {
            shared,
            client,
            spec,
            guard,
            socket,
            channel,
            taking: Mutex::new(Taking { head }),
            completing: Mutex::new(Completing { tail }),
        }
    }

    pub fn id(&self) -> RingId {
        RingId(self.channel.0)
    }

    pub(crate) fn half(&self) -> &Arc<ChannelHalf> {
        &self.shared.half
    }

    pub(crate) fn has_submissions(&self) -> bool {
        self.shared.has_submissions()
    }

    /// Who submits: the broker's word.
    pub fn client(&self) -> Endpoint {
        self.client
    }

    pub fn spec(&self) -> RingSpec {
        self.spec
    }

    /// The next request, its range checked against the arena. An error is final: [`errors::RING`].
    pub fn next(&self) -> Result<Option<Submission>, IpcError> {
        let mut taking = lock(&self.taking);
        if let Some(reason) = self.shared.closed_here() {
            return Err(reason);
        }
        if !self.guard.holds() {
            return Err(IpcError::NotBound);
        }
        let half = &self.shared.half;
        let waiting = half.peer_tail().wrapping_sub(taking.head);
        if waiting == 0 {
            return errors::RING.only(self.is_closed().map_or(Ok(None), Err));
        }
        // What was taken and not completed counts too: a client with more than N in flight overruns our completions.
        let in_flight = taking.head.wrapping_sub(half.own_tail());
        // A tail below what was taken is a huge number, which must not wrap.
        if waiting.saturating_add(in_flight) > self.spec.entries {
            return Err(self.close(IpcError::Corrupt));
        }
        let submission = Submission::from_bytes(&half.read_entry(taking.head));
        if submission.reserved != 0 || !submission.fits(self.spec.arena_bytes) {
            return Err(self.close(IpcError::Corrupt));
        }
        taking.head = taking.head.wrapping_add(1);
        half.set_own_head(taking.head);
        Ok(Some(submission))
    }

    /// Writes a completion; the client sees it after `publish`. One for each submission: one more is `BadArgument`.
    /// After the ring was closed it goes nowhere, with the reason: [`errors::RING`].
    pub fn complete(&self, completion: &Completion) -> Result<(), IpcError> {
        if !self.guard.holds() {
            return Err(IpcError::NotBound);
        }
        if let Some(reason) = self.is_closed() {
            return errors::RING.only(Err(reason));
        }
        let half = &self.shared.half;
        let mut completing = lock(&self.completing);
        if completing.tail == half.own_head() {
            return Err(IpcError::BadArgument);
        }
        half.write_entry(completing.tail, &completion.to_bytes());
        completing.tail = completing.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows completions to the client, and wakes it when it sleeps.
    pub fn publish(&self) {
        let half = &self.shared.half;
        let completing = lock(&self.completing);
        if self.guard.holds() && half.own_tail() != completing.tail {
            half.set_own_tail(completing.tail);
            drop(completing);
            half.kick();
        }
    }

    /// A handle of the bulk memory, for worker threads.
    pub fn arena(&self) -> Arena {
        self.shared.half.arena()
    }

    pub fn is_closed(&self) -> Option<IpcError> {
        self.shared.end()
    }

    /// Why this end closed it.
    pub(crate) fn is_closed_here(&self) -> Option<IpcError> {
        self.shared.closed_here()
    }

    fn close(&self, reason: IpcError) -> IpcError {
        self.shared.closed.store(reason.code(), Ordering::Release);
        self.shared.half.close(reason.code());
        reason
    }
}

impl Drop for RingServer {
    fn drop(&mut self) {
        self.shared.closed.store(IpcError::NotBound.code(), Ordering::Release);
        goodbye(&self.shared.half, &self.guard, &self.socket, self.channel);
    }
}
