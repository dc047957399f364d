//! Requests of the virtual OS's servers, as they travel in rings ([`abi::ring`]).
//!
//! Each module is one server: its operation numbers, how `args`, request data, `results` and reply data are used,
//! which errors it answers, and whether an operation may be repeated. Errors are Linux errno numbers.
//!
//! Every ring begins with [`session::HELLO`]. See `docs/design/sessions.md` for exactly-once.

#![forbid(unsafe_code)]

pub mod disk;
pub mod ds;
pub mod fs;
pub mod session;
