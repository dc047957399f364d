//! What the coordination server does, without I/O: events in, effects out, and the time passed in.
//!
//! [`Core`] is one server's. It hears what its clients ask, what its daemon's desk says of the cluster engine, and what
//! servers of other nodes send; it says what is to be answered, asked and sent ([`Act`]).
//!
//! - `core.rs`: hands each event to whom it concerns
//! - `desk.rs`: questions to the engine, asked again until they are answered
//! - `replica.rs`: the container's keys, as the desk tells them
//! - `races.rs`: locks and elections
//! - `values.rs`: keys and values
//! - `groups/`: groups, their views and their messages
//! - `sensing.rs`: what nodes are like
//! - `names.rs`: what may be a name
//!
//! | state | owner | survives |
//! |---|---|---|
//! | who wants and who has a lock | engine, `l/NAME/NODE.SESSION` | a server; ends with the node's lease |
//! | candidates | engine, `e/NAME/NODE.SESSION` | likewise |
//! | values | engine, `k/KEY` | everything but the container |
//! | what a session changed last | engine, `s/NODE.SESSION` | a server; ends with the node's lease |
//! | which servers there are | engine, `n/NODE` | ends with the node's lease |
//! | members and sequencer of a group | engine, `g/NAME` | the loss of servers, as long as one of its hosts is left |
//! | messages of a group | servers of its members | the loss of servers, as long as one that has them is left |
//!
//! Everything that is asked of the engine may happen twice (`vos_api::desk`), so each transaction compares what makes a
//! second one fail, and a failed one looks whether it was its own first.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod core;
mod desk;
mod groups;
mod names;
mod races;
mod replica;
mod sensing;
mod values;

pub use crate::core::{Act, Answered, ClientCall, Core, LIVES_BITS, Ticket};
pub use crate::groups::Host;
pub use crate::sensing::Vitals;
