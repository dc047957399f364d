//! A bound endpoint.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use abi::{Endpoint, Epoch, IpcError, Message, Source};

use crate::{RingClient, RingId, RingServer, RingSpec, Wait, Waker};

/// What `wait_event` reports.
#[derive(Debug)]
pub enum Event {
    /// A message was taken; `reply` answers it when it was a request. Its inline data is in [`Port::inline`].
    Message(Message),
    /// Bits that `from` posted since the last report.
    Notified { from: Endpoint, mask: u64 },
    /// Somebody opened a ring to this endpoint.
    RingOpened(RingServer),
    /// The ring has submissions that were not taken. Reported again at every wait until they are.
    RingReady(RingId),
    /// The client closed the ring, died or cannot be reached, or wrote garbage. Final.
    RingClosed(RingId, IpcError),
    /// A [`Waker`] of this port was used.
    Woken,
}

/// An endpoint bound by this process. Unbound when dropped.
pub struct Port {
    _private: (),
}

impl Port {
    /// Binds over a socket that the daemon handed over. `None` takes the number the daemon foresaw.
    pub fn from_socket(broker: OwnedFd, endpoint: Option<Endpoint>) -> Result<Port, IpcError> {
        let _ = (broker, endpoint);
        unimplemented!()
    }

    /// Binds over the container's socket, `/run/dvs/…` inside. `None` lets the broker choose a number.
    pub fn connect(path: &Path, endpoint: Option<Endpoint>) -> Result<Port, IpcError> {
        let _ = (path, endpoint);
        unimplemented!()
    }

    pub fn endpoint(&self) -> Endpoint {
        unimplemented!()
    }

    pub fn epoch(&self) -> Epoch {
        unimplemented!()
    }

    /// Sends and waits until the peer has taken the message. To a peer that waits for our reply it is the reply.
    pub fn send(&mut self, to: Endpoint, message: &Message, wait: Wait) -> Result<(), IpcError> {
        let _ = (to, message, wait);
        unimplemented!()
    }

    /// `send` with up to [`abi::limits::INLINE_BYTES_MAX`] bytes of data.
    pub fn send_inline(&mut self, to: Endpoint, message: &Message, data: &[u8], wait: Wait) -> Result<(), IpcError> {
        let _ = (to, message, data, wait);
        unimplemented!()
    }

    /// Takes a message. Notifications are taken by `wait_event` and `take_notification` only.
    pub fn receive(&mut self, source: Source, wait: Wait) -> Result<Message, IpcError> {
        let _ = (source, wait);
        unimplemented!()
    }

    /// Sends a request and waits for its reply.
    pub fn sendrec(&mut self, to: Endpoint, message: &Message, wait: Wait) -> Result<Message, IpcError> {
        let _ = (to, message, wait);
        unimplemented!()
    }

    pub fn sendrec_inline(&mut self, to: Endpoint, message: &Message, data: &[u8], wait: Wait) -> Result<Message, IpcError> {
        let _ = (to, message, data, wait);
        unimplemented!()
    }

    /// Takes the next request of anybody.
    pub fn rcvrqst(&mut self, wait: Wait) -> Result<Message, IpcError> {
        let _ = wait;
        unimplemented!()
    }

    /// Answers the request that was taken from `to` last. Never blocks.
    pub fn reply(&mut self, to: Endpoint, message: &Message) -> Result<(), IpcError> {
        let _ = (to, message);
        unimplemented!()
    }

    pub fn reply_inline(&mut self, to: Endpoint, message: &Message, data: &[u8]) -> Result<(), IpcError> {
        let _ = (to, message, data);
        unimplemented!()
    }

    /// Sets bits at `to`. Blocks only to open the channel, the first time.
    pub fn notify(&mut self, to: Endpoint, mask: u64) -> Result<(), IpcError> {
        let _ = (to, mask);
        unimplemented!()
    }

    /// Data that came with the last message or reply that was taken.
    pub fn inline(&self) -> &[u8] {
        unimplemented!()
    }

    /// The endpoint of a process of the container, by its pid inside the container.
    pub fn getep(&mut self, pid: i32) -> Result<Endpoint, IpcError> {
        let _ = pid;
        unimplemented!()
    }

    /// Waits until somebody is bound to `endpoint`.
    pub fn wait4bind(&mut self, endpoint: Endpoint, wait: Wait) -> Result<(), IpcError> {
        let _ = (endpoint, wait);
        unimplemented!()
    }

    /// Waits until nobody is bound to `endpoint`.
    pub fn wait4unbind(&mut self, endpoint: Endpoint, wait: Wait) -> Result<(), IpcError> {
        let _ = (endpoint, wait);
        unimplemented!()
    }

    /// Gives the endpoint up; channels end at once.
    pub fn unbind(self) -> Result<(), IpcError> {
        unimplemented!()
    }

    /// Opens a ring to `to`, waiting until it is bound.
    pub fn open_ring(&mut self, to: Endpoint, spec: RingSpec, wait: Wait) -> Result<RingClient, IpcError> {
        let _ = (to, spec, wait);
        unimplemented!()
    }

    /// The next thing that concerns this endpoint: notifications first, then channels in turn. `TimedOut` when nothing
    /// came in time; `NoBroker` is not reported here, existing channels go on.
    pub fn wait_event(&mut self, wait: Wait) -> Result<Event, IpcError> {
        let _ = wait;
        unimplemented!()
    }

    pub fn waker(&self) -> Waker {
        unimplemented!()
    }

    /// Readable when `wait_event` may have something, provided that the last `wait_event` answered `TimedOut`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
}
