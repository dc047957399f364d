//! Exactly once: what a server remembers of its clients' sessions (`docs/design/sessions.md`).
//!
//! - [`Table`]: the sessions of one server. It decides what is executed, what joins an execution that is under way,
//!   what is answered from the record, and whose turn it is to be forgotten.
//! - [`Record`], [`Step`]: the store below it. A reply becomes permanent in the same atomic step as the effect.
//! - [`Reply`]: what is recorded.
//! - [`Tenure`], [`Fence`]: whether a greeting's epochs are those of today.
//! - [`conformance`]: the cases that every store must pass, and the whole of it against clients that lose rings and
//!   servers.
//!
//! Not here: how requests arrive (`vos/vos-rt`), what an operation does, how a server's store writes.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod conformance;
mod epoch;
mod record;
mod reply;
mod table;

pub use epoch::{Fence, Judgement, Speaker, Tenure, Unwelcome};
pub use record::{Place, Record, Standing, Step};
pub use reply::{REPLY_BYTES_MAX, Reply};
pub use table::{Begun, End, Entry, Mark, Opened, Opening, REPLIES_KEPT, Refusal, Table};
