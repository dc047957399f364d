//! The memory of channels: mappings, and what may be done with them.
//!
//! This crate and `kernel/sys` hold all unsafe code of M3-IPC. A mapping is touched through raw pointers only, by
//! atomic access to words and by copies; see `docs/design/channel.md` for what lies where.
//!
//! - [`Mapping`]: one object in memory. [`Arena`]: bulk memory both parties write to.
//! - [`ChannelFiles`]: making a channel's objects. [`ChannelHalf`]: a channel as one party holds it.
//! - [`ControlPage`], [`ControlWriter`]: what the broker says of an endpoint.
//! - [`Gauge`]: what the parties of a channel count, as the broker reads it.
//! - [`ReadRing`]: reads of a file into arenas, without a thread for each.
//! - [`ForkGuard`]: tells a forked child from its parent.
//!
//! Not here: who may have a channel (`kernel/broker`), the calls (`kernel/ipc`).

// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod arena;
mod control;
mod fork;
mod gauge;
mod half;
mod mapping;
mod objects;
#[cfg(feature = "reads")]
mod reads;

pub use abi::layout::{Role, Size};
pub use arena::{Arena, OutOfArena, SENT_PARTS_MAX, SentPart, send_parts};
pub use control::{ControlPage, ControlWriter, Life};
pub use fork::ForkGuard;
pub use gauge::{Gauge, Reading};
pub use half::{ChannelHalf, Other, Seen};
pub use mapping::{Access, Mapping};
pub use objects::{CHANNEL_DESCRIPTORS, ChannelFiles, PartyFiles, ring_line};
#[cfg(feature = "reads")]
pub use reads::{NotBegun, READS_MAX, ReadRing};
pub use sys::futex::Woken;
