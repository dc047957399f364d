//! What a server is to the frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use abi::Endpoint;
use ipc::Waker;
use rustix::io::Errno;
use vos_api::session::{Hello, Outdated};

use crate::request::{ClientId, Life, Request};

/// What a client is told when it greets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelloReply {
    Welcome {
        /// Highest sequence of the session that was executed.
        highest: u64,
        /// Requests in flight this server accepts; 0 for as many as the ring holds.
        in_flight: u32,
        /// Means what the service's contract says.
        service: u64,
    },
    /// `ESTALE`: the session was forgotten.
    Refused(Errno),
    /// `ESTALE`: the epochs are not those of today.
    Outdated(Outdated),
}

impl HelloReply {
    /// For servers without sessions.
    pub const STATELESS: HelloReply = HelloReply::Welcome { highest: 0, in_flight: 0, service: 0 };
}

/// A server. All calls come from the loop's thread and must not block: work that waits goes to a
/// [`crate::WorkerPool`] or becomes state, and the [`Request`] is answered later from anywhere.
pub trait Service {
    /// A ring said HELLO. Requests of the session may still be running for an older ring.
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply;

    /// An operation of a client that was welcomed.
    fn submit(&mut self, request: Request);

    /// The ring of a client ended. Its session stays.
    fn closed(&mut self, client: ClientId);

    /// The client ends its session for good; answer the request once nothing of it is kept. May be repeated.
    fn goodbye(&mut self, request: Request) {
        request.reply([0; 4], 0);
    }

    /// When [`Service::tick`] must be called at the latest.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Called after each turn of the loop, and when the deadline has passed or the handle was poked.
    fn tick(&mut self, now: Instant) {
        let _ = now;
    }
}

/// Reaches a running server's loop from other threads.
#[derive(Clone)]
pub struct Handle {
    waker: Waker,
    stop: Arc<AtomicBool>,
    life: Arc<Life>,
}

impl Handle {
    pub fn new(waker: Waker) -> Handle {
        Handle { waker, stop: Arc::new(AtomicBool::new(false)), life: Arc::new(Life::default()) }
    }

    /// Ends the loop after its present turn.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Makes the loop call [`Service::tick`] soon.
    pub fn poke(&self) {
        self.waker.wake();
    }

    /// Ends the loop as if the process had been killed: nothing is answered from now on. For tests.
    pub fn cut(&self) {
        self.life.cut();
        self.stop();
    }

    pub(crate) fn life(&self) -> Arc<Life> {
        Arc::clone(&self.life)
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
