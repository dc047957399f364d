//! The virtual disk, without a word about rings or processes: what `vos_api::disk` promises, over any medium.
//!
//! - [`Volume`]: bounds, alignment, who may change what, what a failed write-back means.
//! - [`Medium`]: what a volume lies on. [`ImageFile`] is a file of the host, a block device, or memory; another one is
//!   a volume of an NBD server (`vos/nbd-client`).
//! - [`Bulk`]: the client's end of a transfer; plain memory is one ([`ReadInto`], [`WriteFrom`]).
//!
//! Not here: the server around it, which thread waits for the medium (`vos/disk`); copies (`vos/replica-core`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod image;
mod medium;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod volume;

pub use image::{Image, ImageError, ImageFile};
pub use medium::{Access, Bulk, Medium, Need, ReadInto, WriteFrom};
pub use volume::{Durability, Volume};
