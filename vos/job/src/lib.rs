//! A job on another node: its deputy, which stays with whoever started it, and its far end, which is the program's
//! parent there (`docs/design/jobs.md`).
//!
//! - [`Deputy`]: serves what the far end asks, passes signals on, ends as the program did.
//! - [`FarEnd`]: begins with one process, asks the deputy what to run, runs it, carries its streams.
//!
//! - [`door`]: where a deputy asks for its far end.
//!
//! Not here: who starts the far end, and as whom (`gate-syscall`, `keeper`).

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod absence;
mod deputy;
mod desk;
pub mod door;
mod far;
mod inherit;
mod nursery;
mod streams;
mod terminal;
mod tree;

pub use deputy::{Deputy, DeputyError, JobEnd};
pub use far::{FarEnd, FarError};
pub use inherit::{Inherited, Strange};
pub use nursery::run_here;
