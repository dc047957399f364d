//! Requests of the virtual OS's servers, as they travel in rings ([`abi::ring`]).
//!
//! Each module is one server: its operations, declared once ([`operation`]) with their arguments and replies by name,
//! which errors they answer, and whether they may be repeated. Codec, number and request of each follow from that.
//! Errors are Linux errno numbers.
//!
//! Every ring begins with [`session::Hello`]. See `docs/design/sessions.md` for exactly-once.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod calls;
pub mod copy;
pub mod cs;
pub mod desk;
pub mod disk;
pub mod ds;
pub mod fs;
pub mod gates;
pub mod job_door;
pub mod jobs;
pub mod operation;
pub mod ports;
pub mod session;

pub use operation::{Class, Empty, Encoded, Errno, Measured, Operation, Reply, Unreadable};
