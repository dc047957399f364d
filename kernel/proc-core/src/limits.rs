//! Bounds of what crosses nodes, each with its reason.

use abi::limits::{NODES_PER_DC, PIDS_PER_NODE};

/// Slots of a journal: intercepted calls of one node that are under way. A container has as many threads by default
/// (`docs/design/daemon.md`), and each has one call at a time; those beyond wait in the kernel.
pub const CALLS_MAX: usize = 4096;

/// Orders of one origin to one node whose outcome the origin may still ask for.
pub const WINDOW: u64 = 4096;

/// Rounds that an order to everybody makes, because processes fork meanwhile. Who forks faster than the eighth round
/// ends is heard by nobody; the bound of a container's processes ends that.
pub const ROUNDS_MAX: usize = 8;

/// How long an order waits for the call gate of a node to which there is a link. Daemons start a gate again within
/// a second.
pub const PATIENCE_MS: u64 = 10_000;

/// Bytes of a `/proc/TID/status` that are looked at: 65,536 groups of eleven bytes, and the rest.
pub const STATUS_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(WINDOW as usize >= CALLS_MAX, "a call has one order at a time: all of them fit into the window");
const _: () = assert!(NODES_PER_DC <= 64, "sets of nodes are 64 bits");
const _: () = assert!((NODES_PER_DC as u32 + 1) * PIDS_PER_NODE <= 1 << 22, "Linux has no more process numbers");
