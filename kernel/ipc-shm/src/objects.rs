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

/// What one party maps. The bells are event descriptors: `bell_in` is rung by the peer, `bell_out` by this party.
#[derive(Debug)]
pub struct PartyFiles {
    pub own: OwnedFd,
    pub peer: OwnedFd,
    pub shared: OwnedFd,
    pub bell_in: OwnedFd,
    pub bell_out: OwnedFd,
}

/// The three objects and two bells of a channel, writable, as their maker holds them.
#[derive(Debug)]
pub struct ChannelFiles {
    left: OwnedFd,
    right: OwnedFd,
    shared: OwnedFd,
    bell_left: OwnedFd,
    bell_right: OwnedFd,
}

impl ChannelFiles {
    pub fn create(size: Size) -> io::Result<ChannelFiles> {
        let side_bytes = size.side_bytes() as u64;
        Ok(ChannelFiles {
            left: sys::memfd::create_sealed("dvs-left", side_bytes)?,
            right: sys::memfd::create_sealed("dvs-right", side_bytes)?,
            shared: sys::memfd::create_sealed("dvs-shared", size.shared_bytes() as u64)?,
            bell_left: sys::eventfd::create()?,
            bell_right: sys::eventfd::create()?,
        })
    }

    /// Descriptors for one party; the peer's side is read-only for good.
    pub fn party(&self, role: Role) -> io::Result<PartyFiles> {
        let (own, peer, bell_in, bell_out) = match role {
            Role::Left => (&self.left, &self.right, &self.bell_left, &self.bell_right),
            Role::Right => (&self.right, &self.left, &self.bell_right, &self.bell_left),
        };
        Ok(PartyFiles {
            own: own.try_clone()?,
            peer: sys::memfd::reopen_read_only(peer.as_fd())?,
            shared: self.shared.try_clone()?,
            bell_in: bell_in.try_clone()?,
            bell_out: bell_out.try_clone()?,
        })
    }

    /// What an earlier broker made: in the order of [`ChannelFiles::descriptors`].
    pub fn adopt([left, right, shared, bell_left, bell_right]: [OwnedFd; 5]) -> ChannelFiles {
        ChannelFiles { left, right, shared, bell_left, bell_right }
    }

    /// The event descriptors that wake the left and the right party; the rest is closed.
    pub fn into_bells(self) -> (OwnedFd, OwnedFd) {
        (self.bell_left, self.bell_right)
    }

    /// Second descriptors of the same objects.
    pub fn try_clone(&self) -> io::Result<ChannelFiles> {
        Ok(ChannelFiles {
            left: self.left.try_clone()?,
            right: self.right.try_clone()?,
            shared: self.shared.try_clone()?,
            bell_left: self.bell_left.try_clone()?,
            bell_right: self.bell_right.try_clone()?,
        })
    }

    /// All of it, writable: for whoever keeps it over the broker's restart, for nobody else.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 5] {
        [&self.left, &self.right, &self.shared, &self.bell_left, &self.bell_right].map(AsFd::as_fd)
    }

    /// A second descriptor of the event descriptor that wakes the party of this role.
    pub fn bell(&self, role: Role) -> io::Result<OwnedFd> {
        match role {
            Role::Left => self.bell_left.try_clone(),
            Role::Right => self.bell_right.try_clone(),
        }
    }
}
