//! The port gate: what reaches a published port of a node goes to the program of a container that listens for it, on
//! whichever of its nodes.
//!
//! One process per container and node, without privileges and inside the container's network namespace, started by the
//! node daemon ([`main_from_spawn`]), which gives it the listening sockets. `docs/design/ports.md` says why and how.
//!
//! - [`dial`]: which node takes a connection. Pure.
//! - [`relay`]: bytes between two streams. [`datagrams`]: likewise, of clients that never connect.
//! - [`egress`]: the way out, for programs of a container that may go there: the same loop in a process of its own, in
//!   the node's network, with what programs send to others as what it listens to.
//! - [`gate`]: the loop.
//!
//! Not here: who listens at which port of a node, and what for (`node/dvsd`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod datagrams;
mod dial;
mod egress;
mod gate;
mod introduction;
mod names;
mod recent;
mod relay;
mod spawn;

pub use egress::{Allowed, Insider, Policy};
pub use gate::{CONNECTIONS_MAX, OutEars, PortGate, PortGateEnd, WayOut};
pub use spawn::{main_from_spawn, main_of_egress};
