//! The broker: makes channels, watches deaths, and is never on the message path.
//!
//! A library with a thread of its own; the node daemon embeds it, tests start it directly.
//!
//! - `config`: what a broker is told at its start and of each container.
//! - `handle`: the daemon's handle of a running broker.
//! - `command`: what the daemon asks of the broker's thread.
//! - `event_loop`: the thread, with a map of its own.
//! - `connection`: one connection, and what is not yet written to it.
//! - `container`: one container as this node's broker knows it.
//! - `directory`: where endpoints live in the cluster, as the daemon knows it.
//! - `names`: a table of names, for directories.
//! - `links`: the proxies of this node, and which of their links stand.
//! - `ledger`: descriptors that members make the broker hold, and who pays for how many.
//! - `closer`: closes descriptors that members sent, away from the broker's thread.
//! - `meters`: counts of channels, read where their parties count.
//! - `info`: what a broker tells about itself.
//! - [`shelf`]: the process that holds copies of the broker's descriptors.
//! - [`limits`]: bounds, each with its reason.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod closer;
mod command;
mod config;
mod connection;
mod container;
mod directory;
mod event_loop;
mod handle;
mod info;
mod ledger;
pub mod limits;
mod links;
mod meters;
mod names;
pub mod shelf;

pub use abi::{Calls, EndpointName, Peers, Privileges};
pub use config::{BrokerConfig, DcOptions, ServerIdentity};
pub use directory::{Claim, Directory, LocalOnly, Location};
pub use handle::{Broker, BrokerError};
pub use info::{ChannelInfo, DcInfo, EndpointInfo, Home, Snapshot};
pub use ipc_core::pairs::pair_of;
pub use names::Names;
pub use shelf::{Shelf, ShelfError};
