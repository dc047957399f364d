//! One process table over all nodes: the decisions, without memory, clocks or system calls
//! (`docs/design/processes.md`).
//!
//! - [`range`]: whose node a process number is of.
//! - [`calls`]: the system calls that cross nodes, a row each, and what a call that was intercepted asks for.
//! - [`filter`]: the part of a program's seccomp filter that follows from those rows.
//! - [`caller`]: who asks, from what the kernel shows of a thread.
//! - [`permission`]: who may signal whom.
//! - [`order`]: what one node asks another one to do, as it travels.
//! - [`errand`]: what a call gate and the init of its node say to each other.
//! - [`executor`]: carries orders out, each at most once.
//! - [`journal`]: intercepted calls as they lie in memory that outlives the call gate.
//! - [`start`]: the far end of a job, which one node asks another one to start.
//! - [`origin`]: the calls of one node, from the kernel's notification to the one answer.
//!
//! `tests/` has a world of nodes in which all of this runs while call gates are killed, links are cut and nodes are
//! lost; and the kernel, which is asked the same as [`filter`] and [`permission`].

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod caller;
pub mod calls;
pub mod errand;
pub mod executor;
pub mod filter;
pub mod journal;
pub mod limits;
pub mod order;
pub mod origin;
pub mod permission;
pub mod range;
pub mod start;
