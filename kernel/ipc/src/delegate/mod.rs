//! Requests passed on and notifications on behalf of others, see `docs/design/delegation.md`.
//!
//! - `mod.rs`: what a port remembers beside its lanes.
//! - `outward.rs`: the delegator's end of a lane: relays in flight, notifications that wait for room.
//! - `inward.rs`: the target's end: what came and was not taken yet.
//! - `bits.rs`: notifications by source.
//! - `port/delegating.rs`: the calls.
//! - `lanes.rs`: when the lanes are served.
//!
//! A request that came by relay is `came` (it lies in its slot), then `passed` (taken, an answer is owed), then
//! completed. A relay is in flight in an [`Outward`] until its completion makes it an answer, which is handed to whom
//! it is for.

mod bits;
mod inward;
mod outward;

use std::collections::HashMap;
use std::sync::Arc;

use abi::delegation::SLOT_BYTES;
use abi::limits::DELEGATE_ENTRIES;
use abi::{Endpoint, IpcError, Message};
use ipc_core::{ChannelId, Timing, Word};
use ipc_shm::ChannelHalf;

pub(crate) use bits::Bits;
pub(crate) use inward::{Came, Inward};
pub(crate) use outward::{Outward, Relay};

use crate::ring::RingSpec;

/// The size of every delegate lane.
pub const DELEGATE_SPEC: RingSpec = RingSpec { entries: DELEGATE_ENTRIES, arena_bytes: DELEGATE_ENTRIES * SLOT_BYTES };
const _: () = assert!(DELEGATE_SPEC.arena_bytes.is_multiple_of(4096));

/// What a port remembers of requests that were passed on, to it or by it.
#[derive(Debug, Default)]
pub(crate) struct Delegating {
    /// Requests that came by relay, were taken and not answered: one for each client.
    pub passed: HashMap<Endpoint, Passed>,
    /// Relays of this port in flight.
    pub in_flight: u32,
    /// Channels that ended while the port waited for something else, and still have a slot.
    pub ended: Vec<(ChannelId, IpcError)>,
    /// Bits that others posted for their sources, or sources before they ended, not reported yet.
    pub notified: Bits,
    /// Answers that came and were not handed on yet.
    pub answers: Vec<(Origin, Outcome)>,
}

/// A request that came by relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub lane: ChannelId,
    pub tag: u32,
    pub arena_offset: u32,
    /// Of the client's call.
    pub timing: Timing,
}

/// Whom an answer is for.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// The caller of this request, at the other end of a channel of messages.
    Caller { half: Arc<ChannelHalf>, channel: ChannelId, request: Word },
    /// Another delegator.
    Delegator(Passed),
}

impl Origin {
    pub fn timing(&self) -> Timing {
        match self {
            Origin::Caller { request, .. } => request.timing,
            Origin::Delegator(passed) => passed.timing,
        }
    }
}

/// The reply, or the error with which the client's call ends.
pub(crate) type Outcome = Result<(Message, Vec<u8>), IpcError>;

impl Delegating {
    /// Whether a call has anything to do with this.
    #[inline]
    pub fn is_involved(&self) -> bool {
        !self.passed.is_empty() || self.in_flight != 0 || !self.ended.is_empty()
    }
}

/// What a client is told: other errors of somebody else's call would mean something else to its own.
pub(crate) fn told_to_client(error: IpcError) -> IpcError {
    match error {
        IpcError::NoLink | IpcError::Fenced | IpcError::Corrupt | IpcError::BadArgument | IpcError::TableFull => error,
        _ => IpcError::SourceDied,
    }
}
