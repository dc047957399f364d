//! The virtual disk's process: the volume of `disk-core` behind its clients' rings.
//!
//! - [`Disk`]: the service; who waits for which thread.
//! - [`main_from_spawn`]: the process.
//!
//! A completed write is in the host's page cache and survives the death of this process, and every operation may be
//! repeated, so nothing needs recovery. One number is kept beside the image: the fence, the highest epoch of the
//! volume's owner ([`KeptFence`]).
//!
//! Not here: what a volume is and what it lies on (`vos/disk-core`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod entrance;
mod fence;
mod moment;
mod replica;
mod rings;
mod server;
mod service;

pub use entrance::Entrance;
pub use fence::KeptFence;
pub use replica::copy::main_from_spawn as copy_main_from_spawn;
pub use server::main_from_spawn;
pub use service::{Disk, WORKERS};
