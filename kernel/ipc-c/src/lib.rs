//! M3-IPC for C: what `libm3ipc` is made of.
//!
//! - `m3_*` ([`port`], [`message`], [`copying`], [`ring`], [`delegating`], [`managing`], [`informing`],
//!   [`migrating`], [`naming`], [`waker`], [`strings`]): ports and rings by handle.
//! - `m3_cs_*`, `m3_group_*` ([`coordination`]): locks, elections, values and groups.
//! - `m3_job_start` ([`jobs`]): programs on other nodes.
//! - `dvk_*` ([`dvk`], [`dvk_informing`]): the published names, on a port that each thread has of its own.
//!
//! Every function returns 0 or more on success and an error number of [`abi::errno`] otherwise. Three more are of the
//! library itself, see [`failure`]. No panic leaves a function: it becomes an error number, and the handle it happened
//! on is closed.
//!
//! A handle is the address of a [`cell::Cell`], which is never freed, only used again: a handle that was closed answers
//! an error as long as no later one has its place. Null answers an error; any other address that is no handle is the
//! caller's mistake, as for every C library.
//!
//! The header is `include/m3ipc.h`, what each function promises is in `man/`, the list of exported names in
//! `m3ipc.map`.
//!
//! Not here: the calls themselves (`kernel/ipc`), linking (`library.sh`).

mod cell;
mod coordination;
mod copying;
mod delegating;
mod dvk;
mod dvk_informing;
mod failure;
mod informing;
mod jobs;
mod managing;
mod message;
mod migrating;
mod naming;
mod pointer;
mod port;
mod ring;
mod ring_server;
mod strings;
mod types;
mod wait;
mod waker;
