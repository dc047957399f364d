//! A volume of an NBD server as a medium of disks (`contract/nbd` has the protocol).
//!
//! | module | is |
//! |---|---|
//! | [`connect`] | a connection, and what its server offers: done by whoever may open sockets |
//! | [`volume`] | [`NbdVolume`], the medium over it: needs nothing but the connection |
//!
//! One connection serves all threads; answers come in any order. Once it is lost, so is the volume: a connection made
//! anew might lead to a server that lost what the one before had said is written, and nobody could tell. What was
//! flushed is there, as after a loss of power; whoever uses the volume begins anew from there.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod connect;
pub mod volume;

pub use connect::{NbdConnection, NbdError, Offer, connect};
pub use volume::{NbdEnder, NbdVolume};
