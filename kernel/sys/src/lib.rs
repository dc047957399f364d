//! Raw system calls that the safe crates need and rustix does not offer, each behind a safe function.

// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod by_number;
pub mod child;
pub mod clock;
pub mod dying;
pub mod eventfd;
pub mod futex;
pub mod harden;
pub mod ioctl;
pub mod launch;
pub mod log;
pub mod memfd;
pub mod memory;
pub mod mount;
pub mod notify;
pub mod ns;
pub mod packet;
pub mod pidfd;
pub mod presence;
pub mod procfs;
pub mod seqpacket;
pub mod signals;
pub mod sk_lookup;
pub mod spawn;
pub mod tipc;
pub mod udp;
pub mod without;

pub use without::without;
