//! Bounds of the broker, each with its reason.

/// Connections of one container: one for each endpoint it may have, and some that have not bound yet.
pub const CONNECTIONS_PER_DC: usize = abi::limits::ENDPOINTS_PER_DC as usize + 256;
/// Packets kept for a connection that does not read. A port reads whenever it asks or waits, so more is a stuck peer.
pub const OUTBOX_MAX: usize = 512;
/// Requests read from one connection before the others get their turn.
pub const REQUESTS_PER_TURN: usize = 16;
/// Connections accepted in one turn.
pub const ACCEPTS_PER_TURN: usize = 16;
/// Connections that wait in the kernel to be accepted.
pub const BACKLOG: i32 = 128;
/// Commands of the daemon that wait.
pub const COMMANDS_MAX: usize = 256;
/// Bits of a channel's number below the milliseconds of its broker's start: making one takes tens of microseconds, so a
/// broker never gets ahead of the clock.
pub const CHANNELS_PER_MILLI_BITS: u32 = 14;
/// What other brokers may be asked at a time, by all endpoints of this node.
pub const ERRANDS_MAX: usize = 512;
/// Nodes whose link is down: every node there may be.
pub const NODES_DOWN_MAX: usize = abi::limits::NODES_PER_CLUSTER as usize;
