//! Proxies of several nodes in one process. One program, so that what all have in common is compiled once.

#[path = "../common/mod.rs"]
mod common;

mod control;
mod daemon;
mod handover;
mod killed;
mod pair;
mod pairs;
mod relays;
mod session;
mod silent;
mod strangers;
