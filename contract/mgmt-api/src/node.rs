//! Nodes and what `dvs node` shows of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use versions::{Release, Versions};

use crate::dc::ServerState;
use crate::placement::{Capacity, Promise};
use crate::volume::AllowedVolume;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Version {
    pub version: String,
    pub node: String,
    pub cluster: String,
    /// The series of releases that it follows, and talks with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub follows: String,
    /// What it speaks, by the names in `versions`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, shapes::Versions>"))]
    pub speaks: BTreeMap<String, Versions>,
    /// The file from which the daemon was started.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub binary: String,
    pub pid: Option<u32>,
}

/// In which format the cluster writes what it keeps in its engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ClusterLevel {
    pub level: u64,
    /// The newest that all nodes read.
    pub readable: u64,
    /// The newest that the daemon that was asked knows.
    pub newest: u64,
    /// Nodes that do not read that one yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_back_by: Vec<String>,
    /// Of each node.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, shapes::Release>"))]
    pub releases: BTreeMap<String, Release>,
}

/// How far a node is that gets another release.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UpgradeState {
    /// Of the daemon.
    pub release: String,
    pub pid: u32,
    /// Raised at each start of the daemon.
    pub epoch: u64,
    /// What is not of the daemon's binary yet, or does not serve at this moment.
    pub pending: Vec<PendingServer>,
}

/// A server or gate of a running container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PendingServer {
    pub dc: String,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub state: ServerState,
    /// It executes another file than its daemon.
    pub is_earlier: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Health {
    pub ok: bool,
    /// One line per part that is not well.
    pub problems: Vec<String>,
    /// Every part, when the question was `?verbose`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<HealthCheck>,
}

/// One part of a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HealthCheck {
    pub name: String,
    /// Empty: it is well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

impl HealthCheck {
    pub fn new(name: &str, problems: impl IntoIterator<Item = String>) -> HealthCheck {
        HealthCheck { name: name.to_owned(), problems: problems.into_iter().collect() }
    }

    pub fn is_passed(&self) -> bool {
        self.problems.is_empty()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    Ready,
    /// Its lease runs, but a part of it is not well.
    Degraded,
    /// The node that was asked heard nothing of it for a moment, or is just connecting to it again.
    Suspect,
    /// Its lease runs, but the node that was asked has no link to it (any more).
    Unreachable,
    /// The others decided that it is lost: what it was is over, and it may come back anew. Its lease may still run.
    Fenced,
    /// Its lease ended.
    Down,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Node {
    pub name: String,
    pub id: u16,
    pub state: NodeState,
    /// Nothing new is placed there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// What people say of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Of its dvs; empty: the daemon that was asked does not tell.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Where proxies and daemons of other nodes reach it.
    pub address: String,
    pub proxy_port: u16,
    /// UDP, for QUIC; 0: it does not listen there.
    #[serde(default)]
    pub proxy_quic_port: u16,
    /// Proxies it has: the ports are those of the first, the following ones are the others'.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pairs: u8,
    pub api_port: u16,
    /// Raised at each start of the daemon.
    pub epoch: u64,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// What it has for containers; absent as long as its daemon has not said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// What of that it promised to all containers together.
    #[serde(default)]
    pub promised: Promise,
    /// Directories that containers may have as volumes, as its administrator said it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AllowedVolume>,
    /// Names of the containers that have a share on this node.
    pub dcs: Vec<String>,
    /// What is not well there, as the node says; a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What images of disks may still take of its state directory's file system; absent as the links are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_free_bytes: Option<u64>,
    /// As the node itself sees them; absent when it was not asked or does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<Vec<LinkInfo>>,
}

/// Pairs of proxies between two nodes: `abi::limits::PAIRS_MAX`.
pub const PAIRS_MAX: u8 = 8;

fn one() -> u8 {
    1
}

fn is_one(pairs: &u8) -> bool {
    *pairs == 1
}

fn is_first(pair: &u8) -> bool {
    *pair == 0
}

/// How a node stands with another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    Up,
    /// Nothing was heard for the suspicion time; channels are kept.
    Suspect,
    /// The connection broke, the limit has not passed: channels are kept.
    Broken,
    /// The limit passed, or there never was a connection.
    Down,
    /// The proxy that knows does not answer its daemon.
    Unknown,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LinkInfo {
    pub peer: String,
    /// Which of the links with that node.
    #[serde(default, skip_serializing_if = "is_first")]
    pub pair: u8,
    pub transport: String,
    pub state: LinkState,
    pub tls: bool,
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Messages and entries of rings among the frames.
    #[serde(default)]
    pub sent_messages: u64,
    #[serde(default)]
    pub received_messages: u64,
    #[serde(default)]
    pub sent_entries: u64,
    #[serde(default)]
    pub received_entries: u64,
    /// Plain bytes of data that was packed, and what they became on the wire.
    #[serde(default)]
    pub packed_from: u64,
    #[serde(default)]
    pub packed_to: u64,
    pub reconnects: u64,
    pub channels: u32,
    /// Milliseconds since the last byte from the peer, when there is a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// Milliseconds since the proxy said all this, when it does not answer any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_ms: Option<u64>,
}

/// What a channel is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ChannelKind {
    Messages,
    Ring,
    /// Requests passed on, and notifications on behalf of others.
    Delegation,
    Copies,
}

/// A channel of a container with an end on the node that was asked. Left opened it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChannelInfo {
    pub left: u32,
    pub right: u32,
    pub lane: u16,
    pub kind: ChannelKind,
    /// `local`, or the node on the other side.
    pub via: String,
    /// Not known of channels within a node that were made before its daemon was restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<ChannelCounts>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ChannelCounts {
    pub left: EndCounts,
    pub right: EndCounts,
}

/// What one end of a channel sent, as it says itself. Numbers wrap: messages at 2^28, the others at 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndCounts {
    /// The number of the last: messages and requests count on, a reply has the number of its request.
    pub messages: u32,
    pub notifications: u32,
    /// Requests (left) or answers (right) in the ring.
    pub entries: u32,
    /// Whether it waits for an answer of the other end.
    pub awaits_answer: bool,
}

/// What `versions` has, for the description in OpenAPI.
#[cfg(test)]
pub(crate) mod shapes {
    /// The oldest and the newest that is spoken.
    #[derive(schemars::JsonSchema)]
    #[allow(dead_code, reason = "a shape")]
    pub struct Versions {
        oldest: u8,
        newest: u8,
    }

    /// A release, and the series that it follows.
    #[derive(schemars::JsonSchema)]
    #[allow(dead_code, reason = "a shape")]
    pub struct Release {
        release: String,
        follows: Option<String>,
    }
}
