//! The file system: one tree of files on one block device, without a word about rings or processes.
//!
//! From the bottom:
//!
//! - `device`: what a disk promises.
//! - `layout`: where things lie on the volume.
//! - `backend`: the metadata region as a file for redb.
//! - `model`: keys and values of the metadata.
//! - `snapshots`: numbers and records of snapshots.
//! - `base`: metadata as the last checkpoint left it, and as it was for each snapshot.
//! - `store`: metadata: that below, changes in memory above.
//! - `log`: what makes changes survive.
//! - `alloc`: which data blocks are free.
//! - `extents`: where a file's bytes lie.
//! - `cache`: clean data blocks in memory.
//! - `readahead`: what a sequential reader will ask for next.
//! - `aside`: space that is set aside on the disk before it is written.
//! - `txn`: the changes of one operation while they are collected.
//! - `core`: what all operations share, and how their changes become permanent.
//! - `open`: making and recovering a file system.
//! - `ops`: the operations.
//! - `sessions`: who asks.
//! - `leases`: who may keep what in caches.
//! - `locks`: record locks and flocks.
//! - `linger`: inodes that have neither a name nor a handle, and stay for a while.
//! - `quotas`: what may be made in a directory.
//! - `calls`: from request to answer.
//! - `error`: why an operation, or the opening of a volume, failed.
//! - `scratch`: a device that is looked at and not changed.
//! - `check`: walks a volume and says what does not fit together.
//! - [`testing`]: devices for tests.
//!
//! An operation is answered when its record was written to the disk, without a flush: it survives the death of the
//! server. `FSYNC` flushes. A crash at any point leaves a prefix of the operations that contains everything that was
//! flushed. `docs/design/fs-format.md` has the format and the argument.
//!
//! Not here: the server around it (`vos/fs`), permission checks (the kernel of the client's node makes them), caches of
//! the clients (`gate/gate-fuse`). Volumes are not replicated anywhere yet.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod alloc;
mod aside;
mod backend;
mod base;
mod cache;
mod calls;
mod check;
mod clock;
mod core;
pub mod device;
mod error;
mod extents;
mod layout;
mod leases;
mod linger;
mod locks;
mod log;
mod model;
mod open;
mod ops;
mod quotas;
mod readahead;
mod scratch;
mod sessions;
mod snapshots;
mod store;
pub mod testing;
mod txn;

pub use calls::{Call, Reply, Responder};
pub use check::{Census, Depth, Finding};
pub use clock::Clock;
pub use core::{Fs, GoBack, Options, Spawn};
pub use error::{Errno, OpenError, StoreError};
pub use layout::VOLUME_BYTES_MIN;
pub use scratch::Scratch;
pub use sessions::{AWAY_MS_MAX, End};
