//! The memory of channels: mappings, and what may be done with them.
//!
//! This crate and `kernel/sys` hold all unsafe code of M3-IPC. A mapping is touched through raw pointers only, by atomic
//! access to words and by copies; see `docs/design/channel.md` for what lies where.
//!
//! - [`Mapping`]: one object in memory.
//! - [`Arena`]: bulk memory both parties write to.
//!
//! Not here: who may have a channel (`kernel/broker`), the calls (`kernel/ipc`).

mod arena;
mod mapping;

pub use arena::{Arena, OutOfArena};
pub use mapping::{Access, Mapping};
