//! Frames between two proxies: what travels over a link, byte by byte.
//!
//! A link is an ordered stream of bytes between the proxies of two nodes. A frame is a head of eight bytes and a body:
//!
//! ```text
//! 0  body_bytes  u32   everything is little-endian
//! 4  kind        u8    [`frame::kind`]
//! 5  version     u8    [`LAYOUT`]
//! 6  packing     u8    0; SUBMIT and COMPLETE only: 1, the data comes in blocks ([`Block`])
//! 7  zero        u8    reserved, must be 0
//! 8  body              of packed data `body_bytes` counts what it is unpacked
//! ```
//!
//! Every field is written and read by name; no structure is dumped. [`Frame::decode`] takes bytes nobody has checked
//! and gives a frame whose lengths, enumerations and identifiers lie inside the limits, or a [`WireError`]; it never
//! panics and never allocates more than the bytes it was given. What a frame means for a channel is in `proxy-link`.
//!
//! Not here: batching, credit, reconnection (`proxy-link`), sockets and encryption (`proxy-host`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod block;
mod codec;
mod decode;
mod encode;
mod error;
pub mod fault;
pub mod frame;
pub mod limits;

pub use block::Block;
pub use codec::Sink;
pub use encode::{complete_head, submit_head};
pub use error::WireError;
pub use frame::{Frame, Hello, OpenTag, Packing, Refusal, Resync, RingEntry, RingHead, WireChannel};

/// How frames are laid out: this head, HELLO and REFUSE. It does not change with a release, so that any two of them can
/// say why they do not talk. What else may be said on a link is of the version that both sides of its HELLOs speak
/// ([`versions::LINK`]): a frame that a later release changes gets a new kind, which is said from that version on.
pub const LAYOUT: u8 = 4;

/// Length of a frame's head.
pub const HEAD_BYTES: usize = 8;

/// Bytes the whole frame at the beginning of `bytes` takes, as soon as its head is there; of packed data, what it
/// unpacks to.
///
/// # Errors
/// A head that no peer writes, so that nobody waits for a gigabyte that never comes.
pub fn frame_bytes(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    decode::frame_bytes(bytes)
}

/// What lies at the beginning of bytes that came.
#[derive(Clone, PartialEq, Debug)]
pub enum Next<'a> {
    /// Not enough to tell.
    Incomplete,
    /// A whole frame, and its length.
    Frame(Frame<'a>, usize),
    /// The first [`Frame::RING_OVERHEAD_BYTES`] of SUBMIT or COMPLETE; its data, packed or not, may be there, or on its
    /// way.
    Ring(RingHead),
}

/// Takes the frame at the beginning of `bytes`: a ring's without its data, any other when all of it is there.
///
/// # Errors
/// As [`frame_bytes`] and [`Frame::decode`].
pub fn next(bytes: &[u8]) -> Result<Next<'_>, WireError> {
    decode::next(bytes)
}
