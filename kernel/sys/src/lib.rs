//! Raw system calls that the safe crates need and rustix does not offer, each behind a safe function.

pub mod harden;
pub mod signals;
pub mod spawn;
