//! What a container is made of on one node: namespaces, a mount tree, a network, control groups. Synchronous, without
//! any external tool.
//!
//! | module | gives |
//! |---|---|
//! | [`netns`] | network namespaces kept by files, threads that work inside one |
//! | [`links`] | interfaces, addresses, forwarding and neighbour entries over netlink |
//! | [`overlay`] | a container's private layer-2 network over its nodes |
//! | [`cgroup`] | limits and accounts, version 1 and 2 behind one type |
//! | [`userns`] | the user namespace with a container's range of 65,536 uids |
//! | [`rootfs`] | the container's mount tree |
//! | [`volumes`] | directories of the node in that tree |
//! | [`fusemount`] | mounting the file tree so that it belongs to the container's user namespace |
//! | [`doctor`] | which of this the machine can do, found out by doing it |
//!
//! `userns`, `rootfs` and `fusemount` work on the calling process (they unshare, fork, change identity): they are
//! called by the keeper, which has one thread. The others may be called from any thread.
//!
//! Not here: which container runs where (`dvsd`), the processes inside (`keeper`).

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod cgroup;
pub mod doctor;
pub mod egress;
mod etc;
mod filter;
pub mod fusehere;
pub mod fusemount;
pub mod helper;
pub mod links;
mod netlink;
pub mod netns;
pub mod overlay;
pub mod rootfs;
pub mod userns;
pub mod volumes;

pub use netlink::NetlinkError;
