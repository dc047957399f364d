//! The file server's process: the file system of `fs-core` between its clients' rings and its disk.
//!
//! - [`FsService`]: the service; which thread does what, and what time makes due.
//! - [`DiskDevice`]: the virtual disk below it, which refuses a server that has a successor.
//! - [`main_from_spawn`]: the process.
//! - [`examine`]: whether a tree that nobody serves is sound.
//!
//! Not here: everything that is a file system (`vos/fs-core`), caches of the clients (`gate/gate-fuse`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod disk;
pub mod examine;
mod server;

pub use disk::DiskDevice;
pub use server::{FsService, main_from_spawn};
