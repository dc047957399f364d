//! The key-value server with publish and subscribe, as `vos_api::ds` describes it.
//!
//! - [`Store`]: keys, sessions, subscriptions and recent events in one transactional file.
//! - [`Catalog`]: the recent events in memory, and who subscribed to what.
//! - [`Ds`]: the service; a committer thread turns what arrived into one durable transaction after the other.
//! - [`main_from_spawn`]: the process.
//!
//! Every change of a key and every message has a revision and leaves one event. Events are kept, also over a restart,
//! until there are too many ([`history::EVENTS_MAX`], [`history::BYTES_MAX`]); a subscriber that comes later is told
//! that events were lost. `NEXT` names the highest revision the client saw, so that repeating it loses and doubles
//! nothing. A subscription sees the events above both that revision and its own beginning.
//!
//! Where the store's file is on a disk with copies, it is placed as a file server is: another one goes on with it when
//! the node of this one is lost, and this one answers nothing more then (`libvos::OwnHold`).
//!
//! Not here: replication (`vos/disk`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod backend;
mod change;
mod committer;
mod disk;
pub mod history;
mod server;
mod service;
mod store;
mod watch;

pub use backend::{FileStore, StoreFile};
pub use change::{Change, Order};
pub use disk::{Blocks, DiskFile, StoreDisk};
pub use server::main_from_spawn;
pub use service::Ds;
pub use store::{Limits, Outcome, Store, StoreError};
pub use watch::{Catalog, Subscription};
