//! The virtual OS's client library: sessions with its servers that outlive the servers.
//!
//! - [`Session`]: for event loops. Operations are submitted and completed in any number at a time.
//! - [`BlockingSession`]: for threads. Each call waits for its own answer.
//! - [`DiskClient`], [`DsClient`], [`CsClient`]: the servers' operations as methods.
//!
//! A server may be killed and started again at any time: what was in flight is sent again over a new ring, and
//! operations of the session happen once (`docs/design/sessions.md`). Callers see a pause, never an error.
//!
//! Not here: how channels are made and waited on (`kernel/ipc`), what operations mean (`contract/vos-api`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod blocking;
mod connect;
mod connecting;
mod cs;
mod disk;
mod ds;
mod hold;
mod op;
mod session;
mod space;

pub use blocking::{BlockingSession, Completed, Fetched, RequestRoom, Started};
pub use connect::{PortConnect, SharedPort};
pub use connecting::{ATTEMPT, Connect};
pub use cs::{
    ConnectError, CsClient, GroupEvent, GroupMember, GroupMembership, Holder, NodeVitals, ValueChange, ValueEvent,
};
pub use disk::{Access, DiskClient, DiskInfo, Durability, Need, ReadBegun, ReservedWrite, WriteBegun};
pub use ds::{DsClient, DsEvent, Entry, EventKind, Listing};
pub use hold::OwnHold;
pub use op::{Data, Done, Op, Sequenced, SubmitError, Token};
pub use session::{Armed, Fenced, Identity, Session, Size};
pub use vos_api::session::Epochs;
