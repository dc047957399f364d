//! A bound endpoint.
//!
//! One thread uses a port at a time. Calls to one peer sleep on that channel's futex; `wait_event`, `receive` from any
//! and `rcvrqst` sleep in one epoll that holds the bells of the armed channels, the broker's socket and the waker.
//!
//! - `calls.rs`: messages.
//! - `copying.rs`: grants and copies.
//! - `delegating.rs`: requests passed on, notifications on behalf of others.
//! - `events.rs`: waiting for anything.
//! - `informing.rs`: what else is in the container.
//! - `migrating.rs`: change of owner.
//! - `naming.rs`: names.
//! - `opening.rs`: channels and the broker.
//! - `attached.rs`: which channel is looked at.
//! - `watch.rs`: what the pollable descriptor promises.

mod attached;
mod calls;
mod copying;
mod delegating;
mod events;
mod informing;
mod migrating;
mod naming;
mod opening;
mod watch;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use abi::{Endpoint, Epoch, IpcError, Message};
use broker_api::{FromPort, IfAbsent, ToPort};
use ipc_core::{Budget, WaitMode};
use ipc_shm::{ControlPage, ForkGuard};
use sys::eventfd::{Poller, Trigger};

use crate::connection::{Connection, Notice};
use crate::errors;
use crate::lanes::Lanes;
use crate::ring::{RingId, RingServer};
use crate::talk::Inbox;
use crate::wait::Wait;
use crate::waiting::{new_budget, own_end};
use crate::waker::Waker;
use attached::AttachedChannels;
use migrating::Hold;
pub(crate) use opening::{NO_ROOM, map_channel};
use watch::Watch;

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
    /// The client closed the ring, died or cannot be reached, or wrote garbage ([`errors::RING`]). Final.
    RingClosed(RingId, IpcError),
    /// A [`Waker`] of this port was used.
    Woken,
}

/// An endpoint bound by this process. Unbound when dropped.
#[derive(Debug)]
pub struct Port {
    guard: ForkGuard,
    connection: Connection,
    endpoint: Endpoint,
    epoch: Epoch,
    control: Arc<ControlPage>,
    attached: AttachedChannels,
    poller: Poller,
    waker: Waker,
    /// Events not reported yet: rings opened and closed, at most two for each channel, and the one that was found last.
    pending: VecDeque<Event>,
    ready: Vec<u64>,
    inbox: Inbox,
    budget: Budget,
    lanes: Lanes,
    /// Events reported since the descriptors were last looked at.
    unpolled: u32,
    /// The event of the own page before that look.
    polled_event: u32,
    woken_up: bool,
    seen_wakeups: u32,
    hold: Hold,
    watch: Watch,
}

/// Connections tried before there is no broker: each but the last was to one that was killed in the moment of it.
const CONNECTS_MAX: u32 = 3;

const TOKEN_BROKER: u64 = 0;
const TOKEN_WAKER: u64 = 1;

impl Port {
    /// Binds over a socket that the daemon handed over. `None` takes the number the daemon foresaw. Errors:
    /// [`errors::BIND`].
    pub fn from_socket(broker: OwnedFd, endpoint: Option<Endpoint>) -> Result<Port, IpcError> {
        let mut connection = Connection::new(broker);
        let bind = FromPort::Bind { endpoint, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks };
        let answer = errors::BIND.only(connection.call(&bind))?;
        Port::bound(connection, answer)
    }

    /// Connects as [`Port::connect`] does and waits until a manager has bound this process: [`Port::bind_for`].
    /// Errors: [`errors::BIND_LATER`].
    pub fn connect_when_bound(path: &Path, wait: Wait) -> Result<Port, IpcError> {
        let socket = sys::seqpacket::connect(path).map_err(|_| IpcError::NoBroker)?;
        let mut connection = Connection::new(socket);
        let bind = FromPort::Bind { endpoint: None, if_absent: IfAbsent::Wait, speaks: versions::PORT.speaks };
        let answer = errors::BIND_LATER.only(connection.call_waiting(&bind, wait))?;
        Port::bound(connection, answer)
    }

    fn bound(connection: Connection, answer: Notice<ToPort>) -> Result<Port, IpcError> {
        let ToPort::Bound { endpoint, epoch, .. } = answer.message else { return Err(IpcError::NoBroker) };
        let control = answer.descriptors.into_iter().next().ok_or(IpcError::NoBroker)?;
        let (poller, waker) = (Poller::new()?, Waker::new()?);
        poller.add(connection.socket(), TOKEN_BROKER, Trigger::Level)?;
        poller.add(waker.fd(), TOKEN_WAKER, Trigger::Level)?;
        let guard = ForkGuard::new()?;
        let control = Arc::new(ControlPage::of(control)?);
        Ok(Port {
            guard,
            connection,
            endpoint,
            epoch,
            lanes: Lanes::new(guard, endpoint, &control),
            control,
            attached: AttachedChannels::default(),
            poller,
            waker,
            pending: VecDeque::new(),
            ready: Vec::new(),
            inbox: Inbox { message: Message::default(), data: Vec::new() },
            budget: new_budget(),
            unpolled: 0,
            polled_event: 0,
            woken_up: false,
            seen_wakeups: 0,
            hold: Hold::No,
            watch: Watch::default(),
        })
    }

    /// Binds over the container's socket, `/run/dvs/…` inside. `None` lets the broker choose a number. Errors:
    /// [`errors::BIND`].
    pub fn connect(path: &Path, endpoint: Option<Endpoint>) -> Result<Port, IpcError> {
        for _ in 1..CONNECTS_MAX {
            match Port::connect_once(path, endpoint) {
                // A broker that was killed before it could keep the connection; the listening socket lives on.
                Err(IpcError::NoBroker) => {}
                result => return result,
            }
        }
        Port::connect_once(path, endpoint)
    }

    fn connect_once(path: &Path, endpoint: Option<Endpoint>) -> Result<Port, IpcError> {
        let socket = sys::seqpacket::connect(path).map_err(|_| IpcError::NoBroker)?;
        Port::from_socket(socket, endpoint)
    }

    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The incarnation of this binding.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// How this endpoint waits from now on; at first as [`crate::WAIT_MODE_VARIABLE`] says, else adaptively.
    pub fn set_wait_mode(&mut self, mode: WaitMode) {
        self.budget.set_mode(mode);
    }

    /// Data that came with the last message or reply that was taken.
    pub fn inline(&self) -> &[u8] {
        &self.inbox.data
    }

    /// Gives the endpoint up; channels end at once. `NoBroker` when the broker did not say within two seconds that it
    /// did so: the endpoint ends then as soon as the broker is there again, or is known to be gone with this process.
    /// Errors: [`errors::UNBIND`].
    pub fn unbind(mut self) -> Result<(), IpcError> {
        self.check_bound()?;
        match self.connection.say_goodbye() {
            // Done by a broker that died before it said so.
            Ok(()) | Err(IpcError::NotBound) => Ok(()),
            Err(error) => errors::UNBIND.only(Err(error)),
        }
    }

    /// Ends a wait of `wait_event` in another thread.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Readable when `wait_event` may have something, from when one answered `TimedOut` until the next one. Other calls
    /// in between, a late reply for instance, change nothing of this; what came during them makes it readable. Likewise
    /// with `receive` from anybody and `rcvrqst`, for what the one of the three takes that was called last. It may be
    /// readable for nothing, and is so when it is asked for the first time. Do not read from it.
    pub fn fd(&self) -> BorrowedFd<'_> {
        if !self.watch.begin() {
            // Nobody kept the promise until now.
            self.waker.ring();
        }
        self.poller.as_fd()
    }

    /// Whether the broker's end of the connection is closed. Channels that exist go on working.
    pub fn is_broker_lost(&self) -> bool {
        self.connection.is_lost()
    }

    /// Whether calls can succeed: not in a child that inherited the port, nor after the binding ended.
    pub fn is_bound(&self) -> bool {
        self.check_bound().is_ok()
    }

    /// Runs a call that is no wait for anything; the promise of [`Port::fd`] holds on.
    #[inline(always)]
    fn beside_watch<T>(&mut self, call: impl FnOnce(&mut Port) -> T) -> T {
        let result = call(self);
        if self.watch.is_kept() {
            self.keep_watch();
        }
        result
    }

    fn check_bound(&self) -> Result<(), IpcError> {
        if !self.guard.holds() {
            return Err(IpcError::NotBound);
        }
        own_end(&self.control).map_or(Ok(()), Err)
    }
}
