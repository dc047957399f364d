//! Structures that C and we share; `include/m3ipc.h` has the same, and `tests/c/layout.c` checks it.

use std::ffi::c_int;

use abi::ring::{Completion, Submission};
use abi::{GrantId, Message};
use ipc::Place;

use crate::failure::Outcome;
use crate::pointer;

/// `m3_message`, and `message` of the published interface.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CMessage {
    pub source: c_int,
    pub kind: c_int,
    pub payload: [u8; Message::PAYLOAD_BYTES],
}

/// The source of a message that has none.
pub const NO_SOURCE: c_int = -1;

impl CMessage {
    /// What travels: the source is the broker's to say.
    pub fn to_message(self) -> Message {
        Message { source: None, kind: self.kind, payload: self.payload }
    }

    pub fn of(message: &Message) -> CMessage {
        let source = message.source.map_or(NO_SOURCE, pointer::number);
        CMessage { source, kind: message.kind, payload: message.payload }
    }
}

/// `m3_place`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPlace {
    pub owner: c_int,
    pub reserved: c_int,
    pub grant: u64,
    pub offset: u64,
}

impl CPlace {
    pub fn to_place(self) -> Outcome<Place> {
        let owner = pointer::endpoint(self.owner)?;
        Ok(Place { owner, grant: GrantId::from_number(self.grant), offset: self.offset })
    }
}

/// `m3_submission`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSubmission {
    pub tag: u32,
    pub op: u16,
    pub flags: u16,
    pub sequence: u64,
    pub arena_offset: u32,
    pub out_bytes: u32,
    pub in_capacity: u32,
    pub reserved: u32,
    pub args: [u64; 3],
}

impl CSubmission {
    pub fn to_submission(self) -> Submission {
        let CSubmission { tag, op, flags, sequence, arena_offset, out_bytes, in_capacity, reserved, args } = self;
        Submission { tag, op, flags, sequence, arena_offset, out_bytes, in_capacity, reserved, args }
    }

    pub fn of(from: &Submission) -> CSubmission {
        let Submission { tag, op, flags, sequence, arena_offset, out_bytes, in_capacity, reserved, args } = *from;
        CSubmission { tag, op, flags, sequence, arena_offset, out_bytes, in_capacity, reserved, args }
    }
}

/// `m3_completion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CCompletion {
    pub tag: u32,
    pub status: u32,
    pub sequence: u64,
    pub in_bytes: u32,
    pub reserved: u32,
    pub epoch: u64,
    pub results: [u64; 4],
}

impl CCompletion {
    pub fn to_completion(self) -> Completion {
        let CCompletion { tag, status, sequence, in_bytes, reserved, epoch, results } = self;
        Completion { tag, status, sequence, in_bytes, reserved, epoch, results }
    }

    pub fn of(from: &Completion) -> CCompletion {
        let Completion { tag, status, sequence, in_bytes, reserved, epoch, results } = *from;
        CCompletion { tag, status, sequence, in_bytes, reserved, epoch, results }
    }
}

const _: () = assert!(size_of::<CMessage>() == 64 && align_of::<CMessage>() == 8);
const _: () = assert!(size_of::<CPlace>() == 24);
const _: () = assert!(size_of::<CSubmission>() == 56 && size_of::<CCompletion>() == 64);
