//! What the node daemon and its proxy say to each other: one JSON object per message of a SEQPACKET socket.
//!
//! The daemon tells the whole list of peers each time it changes ([`ToProxy`]); the proxy answers every message with
//! the state of all its links ([`FromProxy`]), and sends it unasked when a link goes up, falls silent or is given up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes of one message: some 400 peers with their counters, and less than a socket's default buffer.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;

/// From the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ToProxy {
    /// All nodes to keep a link with; one that is missing is given up. `None`: unchanged, only tell the states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<PeerAddress>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerAddress {
    pub name: String,
    pub id: u16,
    /// Name of the transport that is dialled; the first of this proxy's when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Where its proxy listens, in the transport's form: `address:port` with a numeric address, a path.
    pub addr: String,
    /// `None`: as the spawn record says for all links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
}

/// From the proxy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FromProxy {
    /// Where it listens, by transport: for a port that was given as 0.
    pub listen: BTreeMap<String, String>,
    pub links: Vec<LinkStatus>,
    /// Set when the last list of peers was not taken, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    Up,
    /// Nothing was heard for the suspicion time; channels are kept.
    Suspect,
    /// The connection broke, the limit has not passed: channels are kept.
    Broken,
    /// The limit passed, or there never was a connection.
    Down,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    pub peer: String,
    pub id: u16,
    pub state: LinkState,
    /// Of the connection there is, else of the next that is dialled.
    pub transport: String,
    pub tls: bool,
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Messages and entries of rings among the frames.
    pub sent_messages: u64,
    pub received_messages: u64,
    pub sent_entries: u64,
    pub received_entries: u64,
    /// Plain bytes of data that was packed, and what they became.
    pub packed_from: u64,
    pub packed_to: u64,
    pub reconnects: u64,
    pub channels: u32,
    /// Milliseconds since the last byte from the peer, when there is a connection.
    pub silent_ms: Option<u64>,
    /// Microseconds of a round trip, as heartbeats measured it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// Why the last connection failed or ended, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
