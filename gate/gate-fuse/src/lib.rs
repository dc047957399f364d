//! The file gate: serves one FUSE mount of a container on one node from the container's fs server.
//!
//! One process per container and node, without privileges, started by the node daemon with the descriptor of a
//! connection that is mounted already ([`main_from_spawn`]). It may be killed at any time: the next one takes the
//! connection over and programs see a pause. `docs/design/gate-fuse.md` says how, and what each file holds.
//!
//! Not here: mounting (`node/sandbox`), permissions (the kernel), files (`vos/fs-core`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod ahead;
pub mod backend;
mod behind;
mod cache;
mod complete;
mod dry;
mod extents;
mod flight;
mod gate;
mod init;
mod kept;
pub mod kernel;
mod memory;
mod names;
mod notify;
mod opens;
mod recall;
pub mod request;
mod spawn;
mod state;
mod syncs;
mod translate;

pub use dry::DryGate;
pub use gate::{Counters, End, Gate, GateError};
pub use spawn::main_from_spawn;
pub use state::STATE_BYTES;
