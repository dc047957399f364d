//! The call gate: answers the system calls of a container's programs that name a process of another node
//! (`docs/design/processes.md`). Decisions are those of `proc-core`; this crate brings them together with the kernel.
//!
//! - `memory.rs`: the journal in memory that the keeper holds
//! - `listeners.rs`: the descriptors by which calls come, by the keeper's numbers
//! - `receiver.rs`: the thread that receives calls into the journal, at once, so that signals do not interrupt them
//! - `calls.rs`: the thread that has the state of every call, and answers
//! - `look.rs`: who makes a call
//! - `reader.rs`: the socket to the keeper, who reads what a call points at
//! - `doorway.rs`: the socket to the keeper, over which listeners come
//! - `init.rs`: the socket to init, who carries out what other nodes ask
//! - `links.rs`: rings to the call gates of other nodes
//! - `jobs.rs`: the socket at which programs ask for jobs, and the one over which the keeper is asked for far ends
//! - `table.rs`: `/proc` over all nodes
//! - `placeholders.rs`: when processes of other nodes have ended that somebody here has opened
//! - `lookers.rs`: the socket to the keeper, whose children look into processes for it
//! - `peers.rs`: questions to other nodes that are given up after a while
//! - `service.rs`: orders that come over rings of theirs
//! - `spawn.rs`: the process, from its spawn record
//!
//! ```text
//! kernel ──▶ receiver ── slot ──▶ calls ── order ──▶ NodeLinks ──▶ other nodes
//!   ▲                              │  ▲                │
//!   └─────────── answer ───────────┘  └── outcome ─────┘
//! ```
//!
//! Who is killed loses nothing: a successor over the same journal goes on with every call that had been received.
//!
//! Locks: `Listeners` has one, held for a look-up alone; free slots have one, likewise, and placeholders. None is
//! held while another is taken, or during a system call that waits.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod calls;
mod doorway;
mod init;
mod jobs;
mod links;
mod listeners;
mod look;
mod lookers;
mod memory;
mod peers;
mod placeholders;
mod reader;
mod receiver;
mod service;
mod spawn;
mod table;

pub use calls::{CallStates, News, NodeLinks, Setting};
pub use doorway::Doorway;
pub use init::InitSocket;
pub use listeners::Listeners;
pub use memory::{JOURNAL_BYTES, KeptMemory};
pub use placeholders::Lives;
pub use reader::{MemoryReader, ReadArgument};
pub use receiver::{CallReceiver, Wake};
pub use spawn::main_from_spawn;
