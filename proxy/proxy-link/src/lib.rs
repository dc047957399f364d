//! One link between the proxies of two nodes, without I/O.
//!
//! A [`Peer`] holds the link to one other node and every channel that crosses it. Bytes and the time are passed in,
//! bytes and [`Action`]s come out; sockets, encryption and the broker are the caller's (`proxy-host`). The simulation
//! in `tests/` drives two of them through a pipe that cuts and delays.
//!
//! **Where state lives.** A channel's memory holds everything that must survive: words, heads, tails. A link only keeps
//! what it has told the peer so far. After every connection both sides tell what their channels hold (RESYNC) and go on
//! from there, so there is no buffer of unacknowledged frames, and a proxy that was killed is replaced by one that maps
//! the same channels. A frame is never repeated within a connection; what the peer holds already is never sent again.
//!
//! **States of a link** ([`Phase`]):
//!
//! ```text
//!           connected                HELLO                 peer's RESYNC_END
//! Apart ──────────────▶ Greeting ──────────▶ Resyncing ────────────────────▶ Up
//!   ▲                       │                    │                            │
//!   └───────────────────────┴──── cut ───────────┴────────────────────────────┘
//! ```
//!
//! A peer that was not heard for `suspect` is suspected (told, nothing else happens); after `down` it is given up:
//! every channel closes with `NoLink`. `down` also runs while the link is `Apart`.
//!
//! **States of a channel** ([`crossing`]): the opener's is `Opening` until OPENED, the acceptor's is `Asked` until its
//! broker answered, then both are `Open`; `Draining` when the local party is gone but what it had published has not
//! been sent yet, and `Ending` from CLOSE until the peer's CLOSED. A cut makes `Ending` `Draining` again.
//!
//! **Fencing.** HELLO carries the incarnation of the peer's proxy. A smaller one than was ever seen is refused, so that
//! a proxy that was replaced while it was stopped cannot come back.
//!
//! One owner, one thread: no locks.
//!
//! **A stream where there is none**: [`arq`] makes one of packets that may be lost, for transports that have only
//! those.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod arq;
mod body;
mod buffer;
mod channel;
mod crossing;
mod error;
mod in_place;
pub mod limits;
mod link;
mod peer;
pub mod presence;
mod tags;
mod thrift;

pub use abi::ring::RingSpec;
pub use abi::{Carried, Indices, LocalRole, Settled};
pub use buffer::{InBuffer, OutBuffer};
pub use channel::{Ends, LocalChannel};
pub use error::LinkError;
pub use in_place::{Bodies, OutPiece};
pub use link::{Counters, Identity, LinkTimes, Phase};
pub use peer::{Action, Due, Peer, refusal};
pub use thrift::{NotPacked, Packer};
pub use wire::{Hello, Refusal, WireChannel};
