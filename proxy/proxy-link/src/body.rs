//! Data of a ring entry on its way, piece by piece.
//!
//! An entry carries up to a megabyte. A frame that was built or awaited as a whole would go to memory and back on both
//! nodes; a piece of it that is handed on at once stays in the processor's cache. So a frame's head goes ahead, and its
//! data is copied from the arena when there is room in the out buffer, and into the far arena when it comes. The entry
//! is put into the far ring after its last byte.
//!
//! Lengths are fixed by the head. What a party writes into its arena meanwhile changes the bytes that are sent, nothing
//! else. Of a frame that was cut in the middle nothing is remembered: the entry was not put, so it is sent again, and
//! until then its range belongs to its request.

use abi::IpcError;
use wire::{Block, Packing, RingEntry, Sink, WireChannel};

use crate::buffer::OutBuffer;
use crate::channel::LocalChannel;
use crate::thrift::Thrift;

/// Data that must follow a head that was put, before any other frame.
pub(crate) struct Outgoing {
    pub(crate) channel: WireChannel,
    /// Where the rest lies in the arena.
    at: u32,
    left: u32,
    rest: Rest,
    packing: Packing,
}

/// Where the rest of it can be read.
pub(crate) enum Place<'a> {
    InArena { at: u32, bytes: u32 },
    Kept(&'a [u8]),
}

enum Rest {
    InArena,
    /// The channel ended: its memory goes, and what was left of the data is here.
    Kept(Vec<u8>),
    /// It cannot be had: the connection must be cut.
    Lost,
}

impl Outgoing {
    pub(crate) fn new(channel: WireChannel, at: u32, bytes: u32, packing: Packing) -> Outgoing {
        Outgoing { channel, at, left: bytes, rest: Rest::InArena, packing }
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
        if let Err(error) = self.copy_next(out.grow(count), local) {
            out.shrink(count);
            return Err(error);
        }
        self.advance(count);
        Ok(())
    }

    /// The same for data that travels in blocks: as many as the batch takes. Answers the plain bytes that went, and
    /// what they became.
    pub(crate) fn put_blocks<C: LocalChannel>(
        &mut self,
        out: &mut OutBuffer,
        local: Option<&C>,
        thrift: &mut Thrift,
    ) -> Result<(u64, u64), IpcError> {
        let (mut from, mut to) = (0, 0);
        while self.left > 0 {
            let count = Block::plain_bytes(self.left as usize);
            if out.room_in_batch() < Block::HEAD_BYTES + count {
                break;
            }
            match self.copy_next(thrift.plain(count), local) {
                // What went before it is on its way: the connection is cut, as `rest` is lost.
                Err(_) if from > 0 => break,
                copied => copied?,
            }
            let (block, bytes) = thrift.pack(count);
            block.encode(out);
            out.put(bytes);
            self.advance(count);
            (from, to) = (from + count as u64, to + (Block::HEAD_BYTES + bytes.len()) as u64);
        }
        Ok((from, to))
    }

    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "a piece is at most what is left, and what is left at most what is kept"
    )]
    fn copy_next<C: LocalChannel>(&mut self, piece: &mut [u8], local: Option<&C>) -> Result<(), IpcError> {
        let copied = match (&self.rest, local) {
            (Rest::InArena, Some(local)) => local.copy_out(self.at, piece),
            (Rest::Kept(bytes), _) => {
                let from = bytes.len() - self.left as usize;
                piece.copy_from_slice(&bytes[from..from + piece.len()]);
                Ok(())
            }
            (Rest::InArena, None) | (Rest::Lost, _) => Err(IpcError::SourceDied),
        };
        if copied.is_err() {
            self.rest = Rest::Lost;
        }
        copied
    }

    /// `None`: nowhere.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        match &self.rest {
            Rest::InArena => Some(Place::InArena { at: self.at, bytes: self.left }),
            Rest::Kept(bytes) => bytes.get(bytes.len() - self.left as usize..).map(Place::Kept),
            Rest::Lost => None,
        }
    }

    /// The next `count` bytes of it went, or were put.
    pub(crate) fn advance(&mut self, count: usize) {
        self.at += count as u32;
        self.left -= count as u32;
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
    pub(crate) packing: Packing,
}
