//! Bounds of the process, with their reasons.

use std::time::Duration;

/// Peers one proxy keeps links with: all nodes of the largest cluster.
pub const PEERS_MAX: usize = abi::limits::NODES_PER_CLUSTER as usize;
/// Entries of a list of peers that the daemon is told the refusal of, and the length of each: more than a person reads.
pub const REFUSALS_TOLD: usize = 4;
pub const REFUSAL_BYTES_MAX: usize = 256;
/// Transports of one proxy: far more than exist.
pub const TRANSPORTS_MAX: usize = 16;
/// Connections whose peer has not said who it is. Each has a deadline, so a flood of strangers is shed.
pub const STRANGERS_MAX: usize = 64;
/// When all places are taken, one that has said nothing for so long makes room for the next who dials: a handshake
/// takes milliseconds, also among many.
pub const STRANGER_GIVES_WAY: Duration = Duration::from_millis(500);
/// Lines of the log about those who were refused, in each while: enough to see who it is.
pub const REFUSALS_LOGGED: u32 = 5;
pub const REFUSALS_LOGGED_WITHIN: Duration = Duration::from_secs(10);
/// A connection must be encrypted and greeted within this time.
pub const GREETING_MAX: Duration = Duration::from_secs(3);
/// Nobody is let in for this long when there is no descriptor left for him.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// First pause before a link is dialled again; doubles up to the longest.
pub const REDIAL_MIN: Duration = Duration::from_millis(20);
pub const REDIAL_MAX: Duration = Duration::from_millis(500);
/// The same where releases do not talk: that takes people to change.
pub const REDIAL_OTHER_RELEASE: Duration = Duration::from_secs(5);
/// Local events taken in one round, so that the sockets get their turn.
pub const EVENTS_PER_ROUND: usize = 256;
/// Connections that are read in every round without asking whether they are ready: each costs a system call, as asking
/// for all does.
pub const HOT_MAX: usize = 2;
/// Reads in vain after which a connection is asked for with all others again.
pub const IDLE_LOOKS_MAX: u32 = 256;
/// Rounds of a busy loop in which only hot connections are looked at: others wait some microseconds longer.
pub const UNPOLLED_ROUNDS_MAX: u32 = 8;
/// Looks that find as many descriptors ready as one can tell, after which each of them was told once: the kernel takes
/// turns.
pub const FULL_LOOKS_MAX: u32 = ((PEERS_MAX + STRANGERS_MAX + TRANSPORTS_MAX) / sys::eventfd::READY_MAX + 2) as u32;
/// Bytes read from one connection in one round.
pub const READ_ROUND_BYTES: usize = 4 << 20;
/// Ciphertext read by one system call.
pub const READ_BYTES: usize = 128 * 1024;
/// Plain bytes encrypted before they are written: a batch; they stay in the cache on their way.
pub const WRITE_BYTES: usize = proxy_link::limits::BATCH_BYTES;
/// What is read behind data that goes to its place at once: the head of the next frame. More would be copied.
pub const READ_BEHIND_BYTES: usize = 512;
/// Data of which less is left is read with what follows it.
pub const READ_IN_PLACE_MIN: u32 = 4096;
/// Channels that wait for their node to become a known peer.
pub const ORPHANS_MAX: usize = 4096;
/// Requests to the broker that are not answered yet.
pub const ASKED_MAX: usize = 4096;
