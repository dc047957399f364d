//! What the parties of a channel count in their sides, read by a process that is neither.
//!
//! The words are there for the parties' own sake: nobody writes one more, and nobody is disturbed by a look. Each party
//! writes its side alone, so a reading says what that party claims. But one that never had its side can close the
//! channel by nobody else.

use std::io;
use std::sync::atomic::Ordering;

use abi::layout::{Role, Size, side};

use crate::mapping::{Access, Mapping};
use crate::objects::ChannelFiles;

/// Both sides of a channel, mapped for reading, and the acceptor's to be closed in its place. Holds no descriptor.
#[derive(Debug)]
pub struct Gauge {
    left: Mapping,
    right: Mapping,
}

/// Words of one side at one moment, each for itself; see [`abi::layout::side`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    pub word: u32,
    pub taken: u32,
    pub awaits: u32,
    pub notified: u32,
    pub ring_tail: u32,
    pub ring_head: u32,
}

impl Gauge {
    /// Of the objects of a channel of this size. An object of another size is refused.
    pub fn of(files: &ChannelFiles, size: Size) -> io::Result<Gauge> {
        let side = |role, access| Mapping::of(files.side(role), size.side_bytes(), access);
        Ok(Gauge { left: side(Role::Left, Access::Read)?, right: side(Role::Right, Access::ReadWrite)? })
    }

    /// Closes the channel for the acceptor, who could not map it and so cannot say so where the opener looks. That is
    /// not woken.
    pub fn close_for_acceptor(&self, code: u32) {
        self.right.store(side::CLOSED, code, Ordering::Release);
    }

    /// What the party of this role has counted.
    pub fn read(&self, role: Role) -> Reading {
        let side = match role {
            Role::Left => &self.left,
            Role::Right => &self.right,
        };
        let load = |at| side.load(at, Ordering::Relaxed);
        Reading {
            word: load(side::MESSAGE_WORD),
            taken: load(side::TAKEN),
            awaits: load(side::AWAITS),
            notified: load(side::NOTIFIED),
            ring_tail: load(side::RING_TAIL),
            ring_head: load(side::RING_HEAD),
        }
    }
}
