//! The broker: makes channels, watches deaths, and is never on the message path.
//!
//! A library with a thread of its own; the node daemon embeds it, tests start it directly.

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
