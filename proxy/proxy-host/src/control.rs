//! What the node daemon and its proxy say to each other: JSON objects, one per message of a SEQPACKET socket.
//!
//! The daemon tells the whole list of peers each time it changes ([`ToProxy`]); the proxy answers with the state of all
//! its links ([`FromProxy`]), once for all that it was asked while an answer was still on its way, and sends it unasked
//! when a link goes up, falls silent or is given up. A long list goes in portions ([`End`]).

mod end;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use crate::secure::CredentialTexts;
pub use end::{End, MESSAGE_BYTES_MAX, Portioned, Said};

/// Bytes of a text for people; what is longer is cut.
pub const TEXT_BYTES_MAX: usize = 1024;

/// From the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ToProxy {
    /// All nodes to keep a link with; one that is missing is given up. `None`: unchanged, only tell the states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<PeerAddress>>,
    /// How many other nodes there are: those that judge this one, also where this proxy has no link with them. Beside
    /// `peers`; absent: as many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<usize>,
    /// Names of the peers that this node accuses of being lost, or may yet. `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accused: Option<BTreeSet<String>>,
    /// What connections that are made from now on show and believe. `None`: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialTexts>,
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
    /// Names of the transports over which the node is believed without encryption, where `tls` allows that; `None`:
    /// over all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_over: Option<Vec<String>>,
}

/// From the proxy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FromProxy {
    /// Where it listens, by transport: for a port that was given as 0.
    pub listen: BTreeMap<String, String>,
    pub links: Vec<LinkStatus>,
    /// The last moment at which this node surely was there, because half of the others vouch for it, by the node's
    /// monotonic clock in nanoseconds ([`proxy_link::presence::there`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub there_ns: Option<u64>,
    /// Set when the last list of peers was not taken, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Its connection with the broker was lost: channels go on, new ones cannot be opened. It does not come back.
    #[serde(default, skip_serializing_if = "is_not")]
    pub is_alone: bool,
}

fn is_not(said: &bool) -> bool {
    !*said
}

impl Portioned for ToProxy {
    fn entries(&self) -> usize {
        self.peers.as_ref().map_or(0, Vec::len)
    }

    fn split_off(&mut self, at: usize) -> ToProxy {
        ToProxy { peers: self.peers.as_mut().map(|peers| peers.split_off(at)), ..ToProxy::default() }
    }

    fn append(&mut self, next: ToProxy) {
        self.peers.get_or_insert_default().extend(next.peers.unwrap_or_default());
    }
}

impl Portioned for FromProxy {
    fn entries(&self) -> usize {
        self.links.len()
    }

    fn split_off(&mut self, at: usize) -> FromProxy {
        FromProxy { links: self.links.split_off(at), ..FromProxy::default() }
    }

    fn append(&mut self, next: FromProxy) {
        self.links.extend(next.links);
    }
}

impl FromProxy {
    /// Cuts what people read to [`TEXT_BYTES_MAX`].
    pub fn shorten_texts(&mut self) {
        let errors = self.links.iter_mut().filter_map(|link| link.last_error.as_mut());
        errors.chain(&mut self.refused).for_each(shorten);
    }
}

/// Cuts a text to [`TEXT_BYTES_MAX`].
pub fn shorten(text: &mut String) {
    text.truncate(beginning(text, TEXT_BYTES_MAX).len());
}

/// The beginning of a text, of so many bytes at most.
pub(crate) fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
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
    /// In which version the two talk, when there is a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u8>,
    /// Why the last connection failed or ended, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}
