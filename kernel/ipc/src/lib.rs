//! M3-IPC: the calls.
//!
//! - [`Port`]: a bound endpoint; messages, notifications, both also on behalf of others, grants and copies, opening and
//!   accepting rings.
//! - [`RingClient`], [`RingServer`]: the two ends of a ring.
//! - [`Waker`]: lets another thread end a wait of a port.
//! - [`stand_in`]: what a proxy needs to stand in for endpoints of other nodes.
//!
//! A port is one connection to the broker and so one endpoint; a process may have several. A call on a port that a
//! forked child inherited answers `NotBound`.
//!
//! An echo server and its client, as in `examples/echo.rs`:
//!
//! ```no_run
#![doc = include_str!("../examples/echo.rs")]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]
//! ```
//!
//! Not here: the memory (`kernel/ipc-shm`), who may do what (`kernel/broker`).

#![forbid(unsafe_code)]

pub mod conformance;
mod connection;
mod copy;
mod delegate;
pub mod descriptors;
pub mod errors;
mod lanes;
mod port;
mod ring;
pub mod stand_in;
mod talk;
mod wait;
mod waiting;
mod waker;

pub use abi::ring::{Completion, Submission};
pub use abi::{Calls, Peers, Privileges};
pub use abi::{DcId, Endpoint, Epoch, IpcError, Lane, Message, NodeId, Source};
pub use abi::{Direction, GrantId};
pub use broker_api::info;
pub use copy::{COPY_SPEC, Place};
pub use delegate::DELEGATE_SPEC;
pub use ipc_core::{ChannelId, WaitMode};
pub use ipc_shm::{Arena, OutOfArena};
#[cfg(feature = "reads")]
pub use ipc_shm::{NotBegun, ReadRing};
pub use port::{Event, Port};
pub use ring::{Arming, RingClient, RingFull, RingId, RingServer, RingSpec};
pub use wait::Wait;
pub use waiting::WAIT_MODE_VARIABLE;
pub use waker::Waker;
