//! Bounds of the broker, each with its reason.

use std::time::Duration;

/// Containers of one broker: all of the cluster may span its node.
pub const DCS_MAX: usize = abi::limits::DCS_PER_CLUSTER as usize;
/// Connections of one container: one for each endpoint it may have, and some that have not bound yet.
pub const CONNECTIONS_PER_DC: usize = abi::limits::ENDPOINTS_PER_DC as usize + 256;
/// Packets kept for a connection that asks and does not read. A port reads whenever it asks or waits, so more is a
/// stuck peer.
pub const OUTBOX_MAX: usize = 512;
/// Packets about channels, which others open and end, kept for one that does not read, as a process that computes: each
/// of its channels may end meanwhile, and so may all that were opened to it.
pub const OUTBOX_OF_CHANNELS_MAX: usize = 2 * ACCEPTED_UNREAD_MAX + 2 * abi::limits::CHANNELS_PER_PROCESS;
/// With so many packets unread nobody opens another channel to a process: `TableFull`.
pub const ACCEPTED_UNREAD_MAX: usize = 4096;
/// Packets kept for a proxy, which speaks for all nodes at once: when one is cut off, each of its channels has one.
/// Losing the proxy would cut off all of them.
pub const OUTBOX_OF_PROXY_MAX: usize = 1 << 16;
/// How long a pair may be without a proxy that says something, before its links are taken for broken: far longer than
/// starting one takes. Unless links are set to last longer, its peers have given this node up by then.
pub const UNMANNED_MAX: Duration = Duration::from_secs(5);
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
/// Answers to other brokers that are kept, in case they are asked for again: as many as one node may ask at a time.
pub const ANSWERS_KEPT: usize = ERRANDS_MAX;
/// Descriptors that members make the broker hold are bounded by parts of what its process may have (RLIMIT_NOFILE). It
/// takes 12,288 of 20,000 to hold the endpoints that are promised to a container (`tests/many.rs`).
pub const DESCRIPTOR_PARTS: usize = 16;
/// All members together. The rest is for servers, proxies, the daemon itself, and what is made and closed at once.
pub const DESCRIPTORS_OF_ALL: usize = 14;
/// Members of one container: another one has room at any time.
pub const DESCRIPTORS_OF_DC: usize = 12;
/// One user of a container.
pub const DESCRIPTORS_OF_USER: usize = 11;
/// One process.
pub const DESCRIPTORS_OF_PROCESS: usize = 6;
const _: () = assert!(DESCRIPTORS_OF_PROCESS < DESCRIPTORS_OF_USER && DESCRIPTORS_OF_USER < DESCRIPTORS_OF_DC);
const _: () = assert!(DESCRIPTORS_OF_DC < DESCRIPTORS_OF_ALL && DESCRIPTORS_OF_ALL < DESCRIPTOR_PARTS);
/// Of a connection: its socket, its process, its page.
pub const CONNECTION_DESCRIPTORS: usize = 3;
/// Of a channel between two processes of this node: its lines.
pub const LINES_DESCRIPTORS: usize = 2;
/// Of a channel to another node: all of it, and the page of the endpoint there.
pub const PROXIED_DESCRIPTORS: usize = ipc_shm::CHANNEL_DESCRIPTORS + 1;
/// Bytes of the arenas of channels to other nodes that the members of one container have open: four of the largest, or
/// a thousand of a mebibyte. A proxy fills them, and belongs to no container that could be charged.
pub const ARENA_BYTES_OF_DC: usize = 4 * abi::limits::ARENA_BYTES_MAX as usize;
/// Channels whose counts can be read: each takes two mappings of the 65,530 a process may have (vm.max_map_count).
pub const METERS_MAX: usize = 12_288;
/// Channels looked at for one answer about the container: a few hundred microseconds of the broker's thread. One
/// endpoint is always told whole, with all the channels it may have.
pub const LOOKS_PER_PAGE: usize = 1024;
/// How long nobody is accepted when the process has no descriptor left.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);
