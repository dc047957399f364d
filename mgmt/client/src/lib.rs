//! Typed client of the management API: over a node daemon's Unix socket, or over TLS to a cluster elsewhere.
//!
//! What it is: one method per resource of `mgmt-api`, the `dvs-stream` upgrade, the rule which daemon to talk to, and
//! the contexts of a person, which are clusters elsewhere.
//! What it is not: it never touches a terminal, prints, reads arguments or retries; the `dvs` command does that.
//!
//! Every request opens a connection of its own: a Unix connect costs microseconds, and there is no pool to go stale.

#![forbid(unsafe_code)]

mod connection;
pub mod contexts;
mod error;
mod far;
mod frames;
pub mod places;
mod requests;
mod wire;

pub use connection::{Client, Media, TextStream, join};
pub use contexts::{Context, ContextError, Contexts};
pub use error::Error;
pub use frames::{Frame, FrameReader, FrameWriter, Stream};
pub use places::{DevCluster, DevNode, LocateError, Places, ProcessId, Wanted, locate};
pub use requests::{AfterCreate, AfterRemoval, BeforeDelete, Data, LogQuery, NodeGone, Processes, Session, Unpacked};
