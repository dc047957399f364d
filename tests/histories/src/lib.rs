//! Whether what clients saw can have happened: histories of operations, and what judges them.
//!
//! ```text
//! history.rs    operations with when they were asked and answered, and those of which nobody knows what came of them
//! search.rs     is there one order in which a single copy would have answered the same? (Wing & Gong, Lowe)
//! models/       what a single copy does: a register with compare-and-set, a race (lock, election)
//! terms.rs      what watchers of an election were told: one leader in a term, terms that only rise
//! placement.rs  processes that were seen: a thing runs at most once, epochs grow
//! rng.rs        the same numbers for the same seed, and which seeds a test takes
//! ```
//!
//! No I/O, no clock, no processes: whoever records gives the time. docs/design/robustness.md says who does.

#![forbid(unsafe_code)]

pub mod history;
pub mod models;
pub mod placement;
pub mod rng;
pub mod search;
pub mod terms;

pub use history::{History, Operation, Recorder, Ticket};
pub use rng::Rng;
pub use search::{Bounds, Model, Verdict, check};
