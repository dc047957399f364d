//! Bounds of the QUIC transport, with their reasons.

use std::time::Duration;

/// Connections of one node: a link to every other node, and as many that are just beginning or ending.
pub const CONNECTIONS_MAX: usize = 2 * abi::limits::NODES_PER_CLUSTER as usize;
/// Connections that others dialled and nobody has accepted yet.
pub const BACKLOG_MAX: usize = 64;
/// From so many on, whoever dials has to prove first that he receives what is sent to his address (RFC 9000 section
/// 8.1.2): forged addresses take no more places.
pub const BACKLOG_UNPROVEN_MAX: usize = BACKLOG_MAX / 4;
/// Bytes of one stream that a receiver holds for its reader, and a sender until they are acknowledged: 10 Gbit/s over 3
/// ms.
pub const WINDOW_BYTES: u32 = 4 << 20;
/// Longest datagram that is tried: jumbo frames less the heads of IPv6 and UDP. Paths that carry less are found to.
pub const DATAGRAM_BYTES_MAX: u16 = 8952;
/// Runs of datagrams taken in one turn, so that other things get theirs, and acknowledgements go well before a window
/// is full.
pub const RUNS_PER_TURN: usize = 64;
/// Longest run that is sent at once: what one write of a link makes, and a burst that switches take.
pub const SEGMENTS_MAX: usize = 32;
/// Round trip that is assumed before one was measured. A first packet that is lost is sent again after three of them.
pub const ROUND_TRIP_FIRST: Duration = Duration::from_millis(30);
/// Time without any datagram after which a connection has failed. Links act on silence long before.
pub const FAILED_AFTER_MS: u32 = 5000;
/// How long a closed stream tries to deliver what was written before.
pub const LINGER: Duration = Duration::from_secs(1);
/// Pause after which a datagram is offered again to a socket that was full.
pub const FULL_PAUSE: Duration = Duration::from_millis(1);

// What is held back for one address is less than what all have.
const _: () = assert!(BACKLOG_UNPROVEN_MAX < BACKLOG_MAX && BACKLOG_MAX < CONNECTIONS_MAX);
const _: () = assert!(SEGMENTS_MAX <= sys::udp::SEGMENTS_MAX);
const _: () = assert!((DATAGRAM_BYTES_MAX as usize) < sys::udp::RUN_BYTES_MAX);
