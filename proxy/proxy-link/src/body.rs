//! Data of a ring entry on its way, piece by piece.
//!
//! An entry carries up to a megabyte. A frame that was built or awaited as a whole would go to memory and back on both
//! nodes; a piece of it that is handed on at once stays in the processor's cache. So a frame's head goes ahead, and its data
//! is copied from the arena when there is room in the out buffer, and into the far arena when it comes. The entry is put into
//! the far ring behind its last byte.
//!
//! Lengths are fixed by the head. What a party writes into its arena meanwhile changes the bytes that are sent, nothing else.
//! Of a frame that was cut in the middle nothing is remembered: the entry was not put, so it is sent again, and until then its
//! range belongs to its request.

use abi::IpcError;
use wire::{RingEntry, WireChannel};

use crate::buffer::OutBuffer;
use crate::channel::LocalChannel;

/// Data that must follow a head that was put, before any other frame.
pub(crate) struct Outgoing {
    pub(crate) channel: WireChannel,
    /// Where the rest lies in the arena.
    at: u32,
    left: u32,
    rest: Rest,
}

enum Rest {
    InArena,
    /// The channel ended: its memory goes, and what was left of the data is here.
    Kept(Vec<u8>),
    /// It cannot be had: the connection must be cut.
    Lost,
}

impl Outgoing {
    pub(crate) fn new(channel: WireChannel, at: u32, bytes: u32) -> Outgoing {
        Outgoing { channel, at, left: bytes, rest: Rest::InArena }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.rest, Rest::Lost)
    }

    /// Puts as much as `out` takes of a batch. `local` is the channel's, as long as there is one.
    pub(crate) fn put<C: LocalChannel>(&mut self, out: &mut OutBuffer, local: Option<&C>) -> Result<(), IpcError> {
        let count = out.room_in_batch().min(self.left as usize);
        let piece = out.grow(count);
        let copied = match (&self.rest, local) {
            (Rest::InArena, Some(local)) => local.copy_out(self.at, piece),
            (Rest::Kept(bytes), _) => {
                let from = bytes.len() - self.left as usize;
                piece.copy_from_slice(&bytes[from..from + count]);
                Ok(())
            }
            (Rest::InArena, None) | (Rest::Lost, _) => Err(IpcError::SourceDied),
        };
        if let Err(error) = copied {
            out.shrink(count);
            self.rest = Rest::Lost;
            return Err(error);
        }
        self.at += count as u32;
        self.left -= count as u32;
        Ok(())
    }

    /// The channel's memory goes: the far side still gets what the head announced.
    pub(crate) fn keep<C: LocalChannel>(&mut self, local: &C) {
        let mut bytes = vec![0; self.left as usize];
        self.rest = match local.copy_out(self.at, &mut bytes) {
            Ok(()) => Rest::Kept(bytes),
            Err(_) => Rest::Lost,
        };
    }
}

/// Data that is due before any other frame.
pub(crate) struct Incoming {
    pub(crate) channel: WireChannel,
    pub(crate) entry: RingEntry,
    /// Where its next byte goes in the arena; `None` when nobody wants it any more.
    pub(crate) at: Option<u32>,
    pub(crate) left: u32,
}
