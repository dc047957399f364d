//! The proc gate: `/proc` of a container that spans nodes (`docs/design/processes.md`).
//!
//! Processes of the own node, and everything that is no process, are symbolic links into the native procfs behind.
//! Processes of other nodes are directories, whose entries their nodes are asked for.
//!
//! - `number.rs`: what each inode is; all of it is in its number
//! - `ask.rs`: what gates ask each other, and answer
//! - `visible.rs`: who may see of a process what not everybody may
//! - `render.rs`: a process of another node as it looks from here
//! - `native.rs`: the procfs behind, and answers about its processes
//! - `nodes.rs`: the other nodes, and which of them answer
//! - `glance.rs`: reading ahead for who goes over all processes
//! - `directory.rs`: what directories contain, a page at a time
//! - `gate.rs`: the kernel's requests
//!
//! Nothing that must outlive a gate is in its memory: inodes and places in directories are numbers that the next gate
//! understands, and what a file says is asked for again.
//!
//! Not here: the process, whose threads these are, and rings to other nodes (`gate-syscall`).
//!
//! Locks: `Lately`, `Owners` and `Nodes` have one each, held for a look-up alone, none while another is taken.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod ask;
mod directory;
mod gate;
pub mod glance;
mod lately;
mod native;
mod nodes;
pub mod number;
pub mod render;
pub mod visible;

pub use gate::{ProcGate, ProcSetting, WhyEnded};
pub use native::{Directly, Look, NativeProc};
pub use nodes::{Others, PATIENCE, SilentNode};
