//! The end that completes.

use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError};
use ipc_shm::Arena;

use super::{RingId, RingSpec};

/// Takes requests of one client and completes them. May be shared by threads.
#[derive(Debug)]
pub struct RingServer {
    _private: (),
}

impl RingServer {
    pub fn id(&self) -> RingId {
        unimplemented!()
    }

    /// Who submits: the broker's word.
    pub fn client(&self) -> Endpoint {
        unimplemented!()
    }

    pub fn spec(&self) -> RingSpec {
        unimplemented!()
    }

    /// The next request, its range checked against the arena. An error is final.
    pub fn next(&self) -> Result<Option<Submission>, IpcError> {
        unimplemented!()
    }

    /// Writes a completion; the client sees it after `publish`. One for each submission.
    pub fn complete(&self, completion: &Completion) -> Result<(), IpcError> {
        let _ = completion;
        unimplemented!()
    }

    /// Shows completions to the client, and wakes it when it sleeps.
    pub fn publish(&self) {
        unimplemented!()
    }

    /// A handle of the bulk memory, for worker threads.
    pub fn arena(&self) -> Arena {
        unimplemented!()
    }

    pub fn is_closed(&self) -> Option<IpcError> {
        unimplemented!()
    }
}
