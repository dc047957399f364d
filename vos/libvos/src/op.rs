//! What a caller asks for and what it gets.

use std::sync::Arc;

use ipc::Arena;
use parking_lot::Mutex;
use rustix::io::Errno;
use vos_api::{Class, Encoded};

use crate::space::{Range, Space};

/// Whether an operation is part of the session, so that it happens once however often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sequenced {
    /// May be repeated freely.
    #[default]
    No,
    /// Gets the session's next number.
    Yes,
    /// Repeats the operation that had this number, for a client that adopts the session of one that died.
    As(u64),
}

/// One operation, before it is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Op<'a> {
    pub op: u16,
    pub flags: u16,
    pub args: [u64; 3],
    /// Goes with the request; at most `TRANSFER_BYTES_MAX`.
    pub out: &'a [u8],
    /// Room for reply data; at most `TRANSFER_BYTES_MAX`.
    pub in_capacity: u32,
    pub sequenced: Sequenced,
}

impl<'a> Op<'a> {
    pub fn new(op: u16, args: [u64; 3]) -> Op<'a> {
        Op { op, args, ..Op::default() }
    }

    /// A declared operation; `room` for its reply data.
    pub fn of(encoded: &'a Encoded<'_>, class: Class, room: u32) -> Op<'a> {
        let Encoded { op, flags, args, ref data } = *encoded;
        let sequenced = if class == Class::Once { Sequenced::Yes } else { Sequenced::No };
        Op { op, flags, args, out: data, in_capacity: room, sequenced }
    }

    pub fn out(mut self, out: &'a [u8]) -> Op<'a> {
        self.out = out;
        self
    }

    pub fn room(mut self, in_capacity: u32) -> Op<'a> {
        self.in_capacity = in_capacity;
        self
    }

    pub fn flags(mut self, flags: u16) -> Op<'a> {
        self.flags = flags;
        self
    }

    pub fn sequenced(mut self) -> Op<'a> {
        self.sequenced = Sequenced::Yes;
        self
    }
}

/// Names a submitted operation within its `Session`. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// A completed operation.
#[derive(Debug)]
pub struct Done {
    pub token: Token,
    /// The number the operation had in the session, 0 for none.
    pub sequence: u64,
    /// `None` for success.
    pub error: Option<Errno>,
    pub results: [u64; 4],
    pub data: Data,
}

impl Done {
    /// The completion itself when it succeeded, its error otherwise.
    pub fn into_result(self) -> Result<Done, Errno> {
        match self.error {
            None => Ok(self),
            Some(errno) => Err(errno),
        }
    }
}

/// Reply data, still where the server put it. The range is given back when this is dropped.
///
/// The server can change these bytes at any time: copy what will be parsed.
#[derive(Debug)]
pub struct Data {
    bytes: u32,
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    arena: Arena,
    range: Option<Range>,
    space: Arc<Mutex<Space>>,
}

impl Data {
    pub(crate) fn none() -> Data {
        Data { bytes: 0, place: None }
    }

    pub(crate) fn new(arena: Arena, range: Range, bytes: u32, space: Arc<Mutex<Space>>) -> Data {
        Data { bytes: bytes.min(range.bytes()), place: Some(Place { arena, range: Some(range), space }) }
    }

    pub fn len(&self) -> usize {
        self.bytes as usize
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Forgets what lies after the first `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    /// The arena that holds the bytes and where they begin, to hand them to a file without a copy.
    pub fn arena(&self) -> Option<(&Arena, usize)> {
        let place = self.place.as_ref()?;
        Some((&place.arena, place.range.as_ref()?.offset() as usize))
    }

    /// Copies from `at` on into `into`; `ERANGE` when there are fewer bytes.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) -> Result<(), Errno> {
        if into.is_empty() {
            return Ok(());
        }
        if at.checked_add(into.len()).is_none_or(|end| end > self.len()) {
            return Err(Errno::RANGE);
        }
        let (arena, offset) = self.arena().ok_or(Errno::RANGE)?;
        arena.copy_out(offset + at, into).map_err(|_| Errno::RANGE)
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let data = self.arena().and_then(|(arena, offset)| arena.to_vec(offset, self.len()).ok());
        data.unwrap_or_default()
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(place) = &mut self.place
            && let Some(range) = place.range.take()
        {
            place.space.lock().free(range);
        }
    }
}

/// Why an operation was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitError {
    /// As many operations as the ring holds are in flight, or the arena has no room: take completions, then repeat.
    #[error("too many operations are in flight")]
    Full,
    /// The data can never be carried: longer than a transfer or than the arena.
    #[error("the operation's data is longer than a transfer")]
    TooLong,
}
