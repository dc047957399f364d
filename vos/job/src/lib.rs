//! A job on another node: its deputy, which stays with whoever started it, and its far end, which is the program's
//! parent there (`docs/design/jobs.md`).
//!
//! - [`Deputy`]: serves what the far end asks, passes signals on, ends as the program did.
//! - [`FarEnd`]: begins with one process, asks the deputy what to run, runs it, carries its streams.
//!
//! Not here: who starts the far end, and as whom.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod deputy;
mod desk;
mod far;
mod inherit;
mod nursery;
mod streams;

pub use deputy::{Deputy, DeputyError, JobEnd};
pub use far::{FarEnd, FarError};
pub use inherit::{Inherited, Strange};
