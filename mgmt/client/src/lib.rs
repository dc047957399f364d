//! Typed client of the management API over a node daemon's Unix socket.
//!
//! What it is: one method per resource of `mgmt-api`, the `dvs-stream` upgrade, and the rule which daemon to talk to.
//! What it is not: it never touches a terminal, prints, reads arguments or retries; the `dvs` command does that.
//!
//! Every request opens a connection of its own: a Unix connect costs microseconds, and there is no pool to go stale.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod frames;
pub mod places;
mod requests;

pub use connection::{Client, LogStream, join};
pub use error::Error;
pub use frames::{Frame, FrameReader, FrameWriter, Stream};
pub use places::{DevCluster, DevNode, LocateError, Places, ProcessId, Wanted, locate};
pub use requests::{AfterCreate, BeforeDelete, Data, LogQuery, NodeGone, Processes, Session};
