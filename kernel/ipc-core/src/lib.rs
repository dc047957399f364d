//! The decisions of M3-IPC, without memory, clocks or system calls.
//!
//! - [`Word`] and [`both_send`]: what a publication word says.
//! - [`Budget`]: how long a waiter looks before it parks.
//! - [`grants`]: what an endpoint has lent.
//! - [`judge`]: which of two requests of one client may be forgotten.
//! - [`words`]: every word of a channel and the order of each access, over any memory.
//! - [`exchange`], [`wake`], [`slot`], [`posting`]: the steps of a channel: messages, sleeping and waking, copying what
//!   may be written anew, notifying. `tests/channel_model.rs` runs them over memory that loom watches.
//! - [`waits`]: who waits for whom, and cycles in it.
//! - [`pairs`]: by which pair of proxies two endpoints talk.
//! - [`table`]: the broker's table of one container.
//!
//! Everything here is a function of its arguments, so that it is tested exhaustively or with random histories.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod budget;
pub mod exchange;
pub mod grants;
mod owed;
pub mod pairs;
pub mod posting;
pub mod slot;
pub mod table;
pub mod waits;
pub mod wake;
mod word;
pub mod words;

pub use abi::ChannelId;
pub use budget::{Budget, CROWDED_AFTER, Cpus, Ended, PAUSES_MAX, Plan, WaitMode};
pub use exchange::Proxied;
pub use owed::{Owed, Verdict, judge};
pub use wake::Sleep;
pub use word::{Both, Data, Kind, Timing, Word, both_send};
pub use words::{Direction, Words};
