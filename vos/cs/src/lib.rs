//! The coordination server: locks, elections, small shared values and groups for the programs of its node, and what the
//! container's nodes are like, as `vos_api::cs` describes it.
//!
//! One thread decides everything (`cs_core`), in turns; around it:
//!
//! - `service.rs`: clients' requests in, answers out
//! - `links.rs`: frames to servers of other nodes, over M3-IPC, in order
//! - `vitals.rs`: what this node is like
//! - `server.rs`: the process

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod links;
mod server;
mod service;
mod vitals;

pub use server::main_from_spawn;
pub use service::Cs;
