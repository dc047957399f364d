//! A differential tester of files: the same random program of system calls runs on one tmpfs, where the kernel says
//! what is right, and on a tree that several nodes share, where each call is made on the node that the program names.
//! Every answer must be the same.
//!
//! | file | what |
//! |---|---|
//! | `program.rs` | a call and its arguments, as values and as text |
//! | `generate.rs` | a program from a seed |
//! | `worker.rs`, `worker/raw.rs` | the process that makes the calls, told by lines |
//! | `worker/together.rs` | what a worker does while others do the same |
//! | `lane.rs` | a worker in the hands of the tester |
//! | `world.rs` | the workers of one tree; what of an answer is compared |
//! | `shrink.rs` | a smaller program that differs, too |
//! | `session.rs` | programs until the time is over, and the report of the first that differs |
//! | `crowd.rs` | calls at the same time, where only invariants can be asked for |
//!
//! Where workers run is the caller's: as processes over two mounts, or as programs of a container on its nodes.
//! `docs/design/difftest.md`.

#![deny(unsafe_code)]

mod crowd;
mod generate;
mod lane;
mod program;
mod session;
mod shrink;
mod worker;
mod world;

pub use crowd::{Crowd, crowd};
pub use lane::Lane;
pub use program::{Call, Op, Program};
pub use session::{AfterFirst, SetId, Settings, Tester};
pub use worker::{FROM, WORKER, be_worker};
pub use world::{Difference, Shape, Times, World};
