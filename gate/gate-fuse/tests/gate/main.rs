//! The gate under tests of its own, in mount namespaces of their own. One program, because most of what it is made of
//! is the same for all: with one for each file the compiler takes six minutes.

#[macro_use]
#[path = "../common/mod.rs"]
mod common;

mod adoption;
mod behind;
mod codec;
mod delegation;
mod locks;
mod mount;
mod names;
mod posix;
mod real;
mod shared;

gate_processes!();
