//! Making a channel's objects; the broker does it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::layout::{shared, side};
use abi::ring::ENTRY_BYTES;

/// How large a channel is: ring entries (0 for a channel of messages) and bytes of its arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Size {
    pub entries: u32,
    pub arena_bytes: u32,
}

impl Size {
    pub fn side_bytes(self) -> usize {
        side::PAGE_BYTES + (self.entries as usize * ENTRY_BYTES).next_multiple_of(4096)
    }

    pub fn shared_bytes(self) -> usize {
        shared::PAGE_BYTES + self.arena_bytes as usize
    }
}

/// Which end of a channel a party is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The initiator.
    Left,
    /// The acceptor.
    Right,
}

impl Role {
    pub fn other(self) -> Role {
        match self {
            Role::Left => Role::Right,
            Role::Right => Role::Left,
        }
    }
}

/// What one party maps, and its bells: `bell_in` is an ear ([`sys::eventfd::ear`]) for the peer and the broker, `bell_out` the event that this
/// party signals. Nobody else but the broker holds it, so a peer cannot make the signal block.
#[derive(Debug)]
pub struct PartyFiles {
    pub own: OwnedFd,
    pub peer: OwnedFd,
    pub shared: OwnedFd,
    pub bell_in: OwnedFd,
    pub bell_out: OwnedFd,
}

/// The three objects and the bells of a channel, writable, as their maker holds them. Each party is woken by two events: one that its
/// peer signals and one that the broker does. They are apart, because whoever can signal can also make the other's signal block.
#[derive(Debug)]
pub struct ChannelFiles {
    left: OwnedFd,
    right: OwnedFd,
    shared: OwnedFd,
    bell_left: OwnedFd,
    bell_right: OwnedFd,
    broker_bell_left: OwnedFd,
    broker_bell_right: OwnedFd,
}

/// Descriptors of one [`ChannelFiles`].
pub const CHANNEL_DESCRIPTORS: usize = 7;

impl ChannelFiles {
    pub fn create(size: Size) -> io::Result<ChannelFiles> {
        let side_bytes = size.side_bytes() as u64;
        Ok(ChannelFiles {
            left: sys::memfd::create_sealed("dvs-left", side_bytes)?,
            right: sys::memfd::create_sealed("dvs-right", side_bytes)?,
            shared: sys::memfd::create_sealed("dvs-shared", size.shared_bytes() as u64)?,
            bell_left: sys::eventfd::create()?,
            bell_right: sys::eventfd::create()?,
            broker_bell_left: sys::eventfd::create()?,
            broker_bell_right: sys::eventfd::create()?,
        })
    }

    /// Descriptors for one party; the peer's side is read-only for good.
    pub fn party(&self, role: Role) -> io::Result<PartyFiles> {
        let (own, peer, bells, bell_out) = match role {
            Role::Left => (&self.left, &self.right, [&self.bell_left, &self.broker_bell_left], &self.bell_right),
            Role::Right => (&self.right, &self.left, [&self.bell_right, &self.broker_bell_right], &self.bell_left),
        };
        Ok(PartyFiles {
            own: own.try_clone()?,
            peer: sys::memfd::reopen_read_only(peer.as_fd())?,
            shared: self.shared.try_clone()?,
            bell_in: sys::eventfd::ear(bells.map(AsFd::as_fd))?,
            bell_out: bell_out.try_clone()?,
        })
    }

    /// What an earlier broker made: in the order of [`ChannelFiles::descriptors`].
    pub fn adopt(descriptors: [OwnedFd; CHANNEL_DESCRIPTORS]) -> ChannelFiles {
        let [left, right, shared, bell_left, bell_right, broker_bell_left, broker_bell_right] = descriptors;
        ChannelFiles { left, right, shared, bell_left, bell_right, broker_bell_left, broker_bell_right }
    }

    /// The events by which the broker wakes the left and the right party; the rest is closed.
    pub fn into_bells(self) -> (OwnedFd, OwnedFd) {
        (self.broker_bell_left, self.broker_bell_right)
    }

    /// Second descriptors of the same objects.
    pub fn try_clone(&self) -> io::Result<ChannelFiles> {
        Ok(ChannelFiles {
            left: self.left.try_clone()?,
            right: self.right.try_clone()?,
            shared: self.shared.try_clone()?,
            bell_left: self.bell_left.try_clone()?,
            bell_right: self.bell_right.try_clone()?,
            broker_bell_left: self.broker_bell_left.try_clone()?,
            broker_bell_right: self.broker_bell_right.try_clone()?,
        })
    }

    /// All of it, writable: for whoever keeps it over the broker's restart, for nobody else.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; CHANNEL_DESCRIPTORS] {
        let ChannelFiles { left, right, shared, bell_left, bell_right, broker_bell_left, broker_bell_right } = self;
        [left, right, shared, bell_left, bell_right, broker_bell_left, broker_bell_right].map(AsFd::as_fd)
    }

    /// The event by which the broker wakes the party of this role.
    pub fn bell(&self, role: Role) -> BorrowedFd<'_> {
        match role {
            Role::Left => self.broker_bell_left.as_fd(),
            Role::Right => self.broker_bell_right.as_fd(),
        }
    }
}
