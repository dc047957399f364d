//! Grants, and the requests of a copy lane. See `docs/design/copy.md`.

use core::fmt;

use crate::limits;
use crate::ring::Submission;

/// Names a grant of one endpoint; fits into a word of a message. 0 is never given.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GrantId(u64);

impl GrantId {
    const SLOT_BITS: u32 = 16;

    /// `generation` counts the grants of the slot from 1.
    pub const fn new(slot: u16, generation: u32) -> GrantId {
        GrantId((generation as u64) << GrantId::SLOT_BITS | slot as u64)
    }

    pub const fn slot(self) -> usize {
        (self.0 & ((1 << GrantId::SLOT_BITS) - 1)) as usize
    }

    /// More than 32 bits name no generation anybody had.
    pub const fn generation(self) -> u64 {
        self.0 >> GrantId::SLOT_BITS
    }

    /// As it travels. Any number may come back; the owner of the grant checks it.
    pub const fn from_number(number: u64) -> GrantId {
        GrantId(number)
    }

    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// What may be done with granted memory, as its user sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Read,
    Write,
    ReadWrite,
}

impl Direction {
    /// Whether one who has `self` may do what `wanted` says.
    pub const fn allows(self, wanted: Direction) -> bool {
        matches!(
            (self, wanted),
            (Direction::ReadWrite, _) | (Direction::Read, Direction::Read) | (Direction::Write, Direction::Write)
        )
    }
}

/// One chunk of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The granted bytes come with the completion.
    Read(Chunk),
    /// The bytes go with the submission.
    Write(Chunk),
}

/// `offset..offset + bytes` of the grant is moved now; the whole copy ends at `whole_end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub grant: GrantId,
    pub offset: u64,
    pub bytes: u32,
    pub whole_end: u64,
}

const READ: u16 = 1;
const WRITE: u16 = 2;

impl Request {
    pub fn to_submission(self, tag: u32, arena_offset: u32) -> Submission {
        let (op, chunk, out_bytes, in_capacity) = match self {
            Request::Read(chunk) => (READ, chunk, 0, chunk.bytes),
            Request::Write(chunk) => (WRITE, chunk, chunk.bytes, 0),
        };
        let args = [chunk.grant.number(), chunk.offset, chunk.whole_end];
        Submission { tag, op, arena_offset, out_bytes, in_capacity, args, ..Submission::default() }
    }

    /// `None` for what no copier asks.
    pub fn from_submission(submission: &Submission) -> Option<Request> {
        let [grant, offset, whole_end] = submission.args;
        let bytes = match submission.op {
            READ if submission.out_bytes == 0 => submission.in_capacity,
            WRITE if submission.in_capacity == 0 => submission.out_bytes,
            _ => return None,
        };
        let is_inside = offset.checked_add(u64::from(bytes)).is_some_and(|end| end <= whole_end);
        if bytes > limits::COPY_CHUNK_BYTES || !is_inside {
            return None;
        }
        let chunk = Chunk { grant: GrantId::from_number(grant), offset, bytes, whole_end };
        Some(if submission.op == READ { Request::Read(chunk) } else { Request::Write(chunk) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_survives_the_round_trip_through_a_submission() {
        let chunk = Chunk { grant: GrantId::new(7, 9), offset: 4096, bytes: 65_536, whole_end: 1 << 20 };
        for request in [Request::Read(chunk), Request::Write(chunk)] {
            assert_eq!(Request::from_submission(&request.to_submission(3, 0)), Some(request));
        }
    }

    #[test]
    fn chunk_that_leaves_its_copy_is_no_request() {
        let chunk = Chunk { grant: GrantId::new(0, 1), offset: 10, bytes: 10, whole_end: 19 };
        assert_eq!(Request::from_submission(&Request::Read(chunk).to_submission(0, 0)), None);
        let wrapping = Chunk { offset: u64::MAX, whole_end: u64::MAX, ..chunk };
        assert_eq!(Request::from_submission(&Request::Write(wrapping).to_submission(0, 0)), None);
    }
}
