//! Every bound of M3-IPC, in one place, with its reason.

/// Endpoints in one container.
pub const ENDPOINTS_PER_DC: u32 = 8192;
/// Numbers that configuration gives to servers and gates; the broker allocates from here upward.
pub const WELL_KNOWN_ENDPOINTS: u32 = 256;
/// What the programs of a container can bind in all, whatever number of nodes it spans. Its nodes share so many; the
/// numbers after these are for nodes that come later.
pub const ENDPOINTS_PROMISED: u32 = 4096;
/// Disks one container may have.
pub const DISKS_PER_DC: u32 = 32;
/// Copies of all replicated disks of a container together.
pub const COPIES_PER_DC: u32 = 16;
/// Containers in one cluster. The identifier itself has 24 bits, because it is also a VXLAN network identifier.
pub const DCS_PER_CLUSTER: u32 = 1024;
/// Nodes in one cluster.
pub const NODES_PER_CLUSTER: u16 = 1024;
/// Pairs of proxies between two nodes: each has a thread on either node, so more than processors are of no use.
pub const PAIRS_MAX: u8 = 8;
/// Nodes in one container: each has a range of 65,536 PIDs, PIDs end at 4,194,304 on Linux, and the range below
/// 65,536 belongs to no node.
pub const NODES_PER_DC: usize = 63;
/// PIDs in the range of one node of a container.
pub const PIDS_PER_NODE: u32 = 65_536;
/// User and group numbers each container may use: 0 to 65,535 inside.
pub const UIDS_PER_DC: u32 = 65_536;

/// Channels one process may hold: each costs up to four descriptors while it is being mapped and one eventfd after.
pub const CHANNELS_PER_PROCESS: usize = 4096;
/// Lanes between two endpoints: one of messages, those of rings, and for each of the two one of delegation and one of
/// copies.
pub const LANES_PER_PAIR: u16 = 16;
/// Lanes of rings are 1 up to here.
pub const RING_LANES_END: u16 = DELEGATE_LANES_END - 2;
/// Those of delegation lie between, those of copies after them.
pub const DELEGATE_LANES_END: u16 = LANES_PER_PAIR - 2;

/// Bytes that may travel with a message inside the channel itself.
pub const INLINE_BYTES_MAX: usize = 2048;
/// Entries of a ring; a power of two.
pub const RING_ENTRIES_MAX: u32 = 1024;
/// Bytes of a ring's arena.
pub const ARENA_BYTES_MAX: u32 = 256 << 20;
/// Bytes that one ring entry may carry in either direction; proxies split nothing.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Bytes that one vcopy may move.
pub const VCOPY_BYTES_MAX: usize = 64 << 20;
/// Grants one endpoint may have given at a time.
pub const GRANTS_PER_ENDPOINT: usize = 4096;
/// Bytes of a copy that one request moves: small enough to stay in the cache between the two copies.
pub const COPY_CHUNK_BYTES: u32 = 64 << 10;
/// Requests of a copy lane in flight: bandwidth times delay of 10 Gbit/s and 0.8 ms.
pub const COPY_ENTRIES: u32 = 16;
/// Peers that may copy from and to one endpoint at a time: a waiter sleeps on a word of each.
pub const COPIERS_PER_ENDPOINT: usize = 61;

/// Numbers that managers of one container keep for processes that have not bound yet, on one node.
pub const RESERVATIONS_PER_DC: usize = 1024;
/// Bytes of the name of an endpoint: the published interface has 16. An endpoint has one name at most, so a container
/// has no more names than endpoints.
pub const ENDPOINT_NAME_BYTES_MAX: usize = 32;
/// Calls of one container that wait, on one node, for somebody to have a name. One of each connection.
pub const FINDS_PER_DC: usize = 1024;
/// Ranges in one set of peers.
pub const PEER_RANGES_MAX: usize = 64;
/// Bytes of an endpoint's privileges as they travel: three sets of four bytes a range, their lengths, the calls.
pub const PRIVILEGES_BYTES_MAX: usize = 1024;

/// Bytes that a broker tells another at a time: a packet with privileges after it.
pub const PARCEL_BYTES_MAX: usize = 72 + PRIVILEGES_BYTES_MAX;

/// Entries of a delegate lane: relays in flight, and the next.
pub const DELEGATE_ENTRIES: u32 = 64;
/// Relays that one lane may carry at a time. The rest is kept for notifications, which a server may need to hear of
/// before it can answer what it was passed.
pub const RELAYS_PER_LANE: u32 = 48;
/// Servers that may delegate to one endpoint at a time.
pub const DELEGATORS_PER_ENDPOINT: usize = 32;
/// Endpoints to which one server may be delegating at a time: a waiter sleeps on two words of each.
pub const DELEGATES_PER_ENDPOINT: usize = 16;
/// Words a waiter for one peer sleeps on besides those of that peer and its own.
pub const WORDS_OF_LANES: usize = COPIERS_PER_ENDPOINT + DELEGATORS_PER_ENDPOINT + 2 * DELEGATES_PER_ENDPOINT;

/// Names of containers, nodes, servers: 1 to 32 of `[a-z0-9-]`, beginning with a letter.
pub const NAME_BYTES_MAX: usize = 32;

const _: () = assert!(RING_ENTRIES_MAX.is_power_of_two());
const _: () = assert!(TRANSFER_BYTES_MAX <= ARENA_BYTES_MAX);
const _: () = assert!((NODES_PER_DC as u32 + 1) * PIDS_PER_NODE <= 4_194_304);
const _: () = assert!(COPY_CHUNK_BYTES <= TRANSFER_BYTES_MAX && COPY_ENTRIES <= RING_ENTRIES_MAX);
const _: () = assert!(RELAYS_PER_LANE < DELEGATE_ENTRIES && DELEGATE_ENTRIES <= RING_ENTRIES_MAX);
const _: () = assert!(WORDS_OF_LANES + 3 <= 128, "the kernel takes no more in one wait");
const _: () = assert!(WELL_KNOWN_ENDPOINTS + ENDPOINTS_PROMISED + NODES_PER_DC as u32 <= ENDPOINTS_PER_DC);
