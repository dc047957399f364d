//! Rings: many requests in flight between one client and one server.

mod client;
mod server;

pub use client::RingClient;
pub(crate) use client::RingParts;
pub use server::RingServer;
pub(crate) use server::RingShared;

use std::os::fd::OwnedFd;

use abi::IpcError;
use abi::limits;
use ipc_core::ChannelId;
use ipc_shm::{ForkGuard, Link, Size};

use crate::protocol::{Op, Packet};

/// Names a ring within this process's port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RingId(pub u64);

/// The size of a ring, chosen by the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSpec {
    /// Requests that may be in flight: a power of two, at most [`limits::RING_ENTRIES_MAX`].
    pub entries: u32,
    /// Bulk memory, at most [`limits::ARENA_BYTES_MAX`], a multiple of 4096; 0 for none.
    pub arena_bytes: u32,
}

impl RingSpec {
    pub fn check(self) -> Result<RingSpec, IpcError> {
        let good = self.entries.is_power_of_two()
            && self.entries <= limits::RING_ENTRIES_MAX
            && self.arena_bytes <= limits::ARENA_BYTES_MAX
            && self.arena_bytes.is_multiple_of(4096);
        if good { Ok(self) } else { Err(IpcError::BadArgument) }
    }

    pub fn size(self) -> Size {
        Size { entries: self.entries, arena_bytes: self.arena_bytes }
    }
}

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

/// Closes one end: the peer sees it in memory, the broker forgets the channel. A forked child says nothing.
fn goodbye(link: &Link, guard: &ForkGuard, socket: &OwnedFd, channel: ChannelId) {
    if !guard.holds() {
        return;
    }
    if link.own_closed() == 0 {
        link.set_own_closed(IpcError::NotBound.code());
    }
    link.kick();
    let close = Packet { channel, value: IpcError::NotBound.code(), ..Packet::new(Op::Close) };
    // Without a broker there is nobody who needs to forget it.
    let _ = sys::seqpacket::send(socket, &close.to_bytes(), &[] as &[OwnedFd]);
}
