//! Grants and copies, see `docs/design/copy.md`.
//!
//! - `mod.rs`: what a port remembers.
//! - `lane.rs`: the copier's end: one copy, cut into chunks, pipelined.
//! - `serve.rs`: the owner's end: one request against the table of grants.
//! - `port/copying.rs`: the calls.
//! - `lanes.rs`: when others are served.

mod lane;
mod serve;

pub(crate) use lane::{CopyLane, Job, Local, Waiting};
pub(crate) use serve::serve;

use std::collections::HashMap;

use abi::limits::{COPY_CHUNK_BYTES, COPY_ENTRIES};
use abi::{Endpoint, GrantId};
use ipc_core::grants::Grants;
use ipc_shm::Arena;

use crate::ring::RingSpec;

/// The size of every copy lane.
pub const COPY_SPEC: RingSpec = RingSpec { entries: COPY_ENTRIES, arena_bytes: COPY_ENTRIES * COPY_CHUNK_BYTES };

/// A place in granted memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Who gave the grant; may be the caller itself.
    pub owner: Endpoint,
    pub grant: GrantId,
    pub offset: u64,
}

/// What a port remembers of grants and copies.
#[derive(Debug, Default)]
pub(crate) struct Copying {
    pub grants: Grants<Arena>,
    /// Lanes over which this port copies, by the owner of the grants.
    pub lanes: HashMap<Endpoint, CopyLane>,
}
