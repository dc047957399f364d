//! Rings: many requests in flight between one client and one server.

mod client;
mod server;

pub use abi::ring::RingSpec;
pub use client::RingClient;
pub(crate) use client::RingParts;
pub use server::RingServer;
pub(crate) use server::RingShared;

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abi::IpcError;
use ipc_core::{ChannelId, Words};
use ipc_shm::{ChannelHalf, ForkGuard};

use broker_api::{FromPort, Message};

use crate::errors;
use crate::waiting::gone;

/// Names a ring within this process's port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RingId(pub u64);

/// As many requests are in flight as the ring has entries: take completions first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ring is full")]
pub struct RingFull;

/// What arming a descriptor found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Arming {
    /// The descriptor becomes readable when something comes.
    Armed,
    /// Something is there already (or the ring is closed): look first; the descriptor is not armed.
    Ready,
}

/// Why the other end of a ring is said to have closed it. One that was closed on purpose and one that died are the same
/// to this end.
pub(crate) fn why_closed(reason: IpcError) -> IpcError {
    if reason == IpcError::Moved { reason } else { errors::heard(reason) }
}

/// Why a ring has ended for its other end.
fn end_of_peer(half: &ChannelHalf) -> Option<IpcError> {
    gone(half).map(|gone| why_closed(gone.reason(IpcError::SourceDied)))
}

/// Closes one end: the peer sees it in memory, the broker forgets the channel. A forked child says nothing.
fn goodbye(half: &ChannelHalf, guard: &ForkGuard, socket: &OwnedFd, channel: ChannelId) {
    if !guard.holds() {
        return;
    }
    if half.own_closed() == 0 {
        half.set_own_closed(IpcError::NotBound.code());
    }
    half.kick();
    let close = FromPort::Close { channel, reason: IpcError::NotBound };
    // Without a broker there is nobody who needs to forget it.
    let _ = sys::seqpacket::send(socket, &close.to_bytes(0), &[] as &[OwnedFd]);
}

/// A panic of another thread leaves counters whole: each is changed in one step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
