//! The end that submits.

use std::os::fd::BorrowedFd;

use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError};
use ipc_shm::Arena;

use super::{Arming, RingFull, RingSpec};
use crate::Wait;

/// Submits requests and takes their completions. May be shared by threads: one of them waits at a time.
pub struct RingClient {
    _private: (),
}

impl RingClient {
    /// Writes an entry; the server sees it after `publish`. The caller keeps arena ranges of requests in flight disjoint.
    /// Never more than `spec().entries` are in flight.
    pub fn submit(&self, submission: &Submission) -> Result<(), RingFull> {
        let _ = submission;
        unimplemented!()
    }

    /// Shows what was submitted to the server, and wakes it when it sleeps.
    pub fn publish(&self) {
        unimplemented!()
    }

    /// The next completion, if there is one. After an error the ring is closed for good; completions that were published
    /// before the server died still come first.
    pub fn poll(&self) -> Result<Option<Completion>, IpcError> {
        unimplemented!()
    }

    /// Waits until `poll` has something to say, adaptively. `TimedOut` when nothing came.
    pub fn wait(&self, wait: Wait) -> Result<(), IpcError> {
        let _ = wait;
        unimplemented!()
    }

    pub fn arena(&self) -> &Arena {
        unimplemented!()
    }

    /// For event loops: readable after [`RingClient::arm`] when there is something to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }

    /// Call before sleeping on `fd`; on `Ready` poll first and do not sleep.
    pub fn arm(&self) -> Arming {
        unimplemented!()
    }

    /// Call after sleeping on `fd`, before polling.
    pub fn disarm(&self) {
        unimplemented!()
    }

    /// Why the ring ended, when it has.
    pub fn is_closed(&self) -> Option<IpcError> {
        unimplemented!()
    }

    /// Requests submitted whose completion was not polled.
    pub fn in_flight(&self) -> u32 {
        unimplemented!()
    }

    pub fn spec(&self) -> RingSpec {
        unimplemented!()
    }

    pub fn peer(&self) -> Endpoint {
        unimplemented!()
    }
}
