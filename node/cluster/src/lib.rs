//! The cluster engine: what all node daemons agree on.
//!
//! [`Engine`] is a small ordered key-value store with compare-and-set transactions, watches from a revision, and
//! leases. Everything else here is built on that trait alone and therefore works with every back end:
//!
//! - [`lease`]: a lease that a thread keeps alive, and that knows by the clock when it was lost;
//! - [`lock`]: mutual exclusion and leader election, first come first served, each holder with a fencing token;
//! - [`group`]: members and agreed, numbered views;
//! - [`allocate`]: numbers nobody else has;
//! - [`follow`]: a list that keeps itself current;
//! - [`known`]: answers while the engine is away, from what was followed.
//!
//! Back ends: [`local`] (one machine, a SQLite file), [`etcd`] (several machines). [`conformance`] holds the cases that
//! every back end must pass; [`steered`] an engine for tests that are of none.
//!
//! A lease that expired is not mutual exclusion: whoever acts on the strength of a lock carries its token
//! ([`Revision`]) and the resource refuses older ones. Not here: what daemons store (`node/dvsd`), how a lost node is
//! suspected (`proxy/proxy-link`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod allocate;
pub mod conformance;
mod engine;
pub mod etcd;
pub mod follow;
pub mod group;
pub mod known;
pub mod lease;
pub mod local;
pub mod lock;
pub mod steered;

pub use engine::{
    Canceller, Compare, Conflict, Engine, EngineError, Entry, Event, EventKind, KEY_BYTES_MAX, LEASES_MAX,
    LIST_ENTRIES_MAX, LeaseId, Listing, Lookup, OPS_PER_TRANSACTION_MAX, Op, Outcome, Revision, TTL_MAX, TTL_MIN,
    VALUE_BYTES_MAX, Watch, boot_clock, check_key, check_prefix, each_listed, listed,
};
