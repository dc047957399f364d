//! The frame every server of the virtual OS runs in.
//!
//! - [`run`]: a server process from its spawn record to its end.
//! - [`serve`], [`Service`]: the main loop and what it calls.
//! - [`Request`]: a client's request, which is also the promise to answer it.
//! - [`WorkerPool`]: threads for what would block the loop. [`FileReader`]: reads that need none.
//!
//! Every server has a file `server.rs` (from the spawn record to the service). `disk` and `ds` have the service in
//! `service.rs`; `fs` has it in `server.rs`, because its operations are in `fs-core`.
//!
//! Not here: exactly once over restarts (`vos/sessions`), what a server does (`vos/disk`, `vos/fs`, `vos/ds`), the
//! client's side (`vos/libvos`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod desk;
mod file_reader;
mod frame;
pub mod log;
mod pool;
mod request;
mod run;
mod service;
#[cfg(feature = "testkit")]
#[allow(clippy::print_stdout, reason = "a harness of tests")]
pub mod testkit;

pub use desk::DeskSocket;
pub use file_reader::{FileReader, ReadBy};
pub use frame::{FrameError, TURN_REQUESTS, serve};
pub use pool::{AbortOnPanic, JOBS_MAX, PoolError, WorkerPool};
pub use request::{ClientId, Request, Room, answer_all};
pub use run::{Boot, Failure, Kind, run};
pub use service::{Handle, HelloReply, Service};
pub use sessions::{Fence, Judgement, Reply, Tenure};
pub use sys::spawn::{Spawn, SpawnError, VARIABLE as SPAWN_VARIABLE};
pub use vos_api::session::Hello;

/// Rings one server serves at a time.
pub const RINGS_MAX: usize = 256;
