//! Decisions about services, programs of a container that DVS keeps running. Pure: the time is handed in, nothing is
//! asked and nothing is done here (`docs/design/supervised-services.md`).
//!
//! - [`wish`]: whether `[[services]]` make sense
//! - [`order`]: what comes after what
//! - [`choose`]: the node of an instance
//! - [`record`]: which placement follows which, by epochs
//! - [`tenure`]: what a keeper starts and ends, and when a successor may be placed
//! - [`life`]: the states of an instance on its node, with [`restart`] and [`health`]
//!
//! An instance runs at most once: a keeper holds it only as long as it is permitted, and its successor is placed only
//! when that is over, or was said to be.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod choose;
pub mod health;
pub mod life;
pub mod order;
pub mod record;
pub mod restart;
pub mod tenure;
pub mod wish;
