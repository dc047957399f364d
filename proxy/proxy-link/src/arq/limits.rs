//! Bounds of sessions, with their reasons.

use std::time::Duration;

/// Bytes a receiver holds for its reader, whether in order or after a hole: 10 Gbit/s over 0.8 ms.
pub const WINDOW_BYTES: usize = 1 << 20;
/// Bytes a sender holds until they are acknowledged: what the receiver may have, and as much again that waits.
pub const SEND_BYTES: usize = 2 * WINDOW_BYTES;
/// Congestion window at the beginning (RFC 6928) and at least, in segments.
pub const CWND_FIRST: usize = 10;
pub const CWND_MIN: usize = 4;
/// Later segments that have arrived when one counts as lost.
pub const REORDER_MAX: u64 = 3;
/// Ranges told after the acknowledged bytes.
pub const RANGES_MAX: usize = 32;
/// Retransmission time before a round trip was measured, at least (a busy machine's pauses) and at most (a link is
/// suspected after 300 ms).
pub const RTO_FIRST: Duration = Duration::from_millis(50);
pub const RTO_MIN: Duration = Duration::from_millis(10);
pub const RTO_MAX: Duration = Duration::from_millis(200);
/// Time without any acknowledgement while something is to be acknowledged, after which a session has failed. Links act
/// on silence long before.
pub const FAILED_AFTER: Duration = Duration::from_secs(5);
/// How long a closed session tries to deliver what was written before.
pub const LINGER: Duration = Duration::from_secs(1);
/// Sessions of one node: a link to every other node, and as many that are just beginning or ending.
pub const SESSIONS_MAX: usize = 2 * abi::limits::NODES_PER_CLUSTER as usize;
/// Sessions nobody has accepted yet.
pub const BACKLOG_MAX: usize = 64;
