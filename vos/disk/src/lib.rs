//! The virtual disk server: a file or block device of the host, as `vos_api::disk` describes it.
//!
//! - [`Volume`]: the image; bounds, alignment, what a failed write-back means.
//! - [`Disk`]: the service; who waits for which thread.
//! - [`main_from_spawn`]: the process.
//!
//! A completed write is in the host's page cache and survives the death of this process: nothing is kept here, so
//! nothing needs recovery, and every operation may be repeated.
//!
//! Not here: replication between disks.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod rings;
mod server;
mod service;
mod volume;

pub use server::main_from_spawn;
pub use service::{Disk, WORKERS};
pub use volume::{Access, Image, Volume, VolumeError};
