//! Distributed containers: what people ask for (`DcSpec`, also the content of `dc.toml`) and what is.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize};

use crate::bytes::Bytes;
use crate::egress::EgressSpec;
use crate::nbd::NbdSpec;
use crate::placement::{Placement, ServerKind};
use crate::port::{PortSpec, SharePort};
use crate::service::ServiceSpec;
use crate::volume::HostVolume;

/// ```toml
/// name = "shop"
/// nodes = ["n1", "n2", "n3"]
/// subnet = "10.1.0.0/24"
/// wait = "adaptive"
///
/// [limits]
/// memory_bytes = 1073741824
///
/// [[servers]]
/// kind = "fs"
/// node = "n2"
///
/// [[disks]]
/// name = "root"
/// node = "n3"
/// bytes = 2147483648
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DcSpec {
    pub name: String,
    /// In order: a node's position when the container is made gives its PID range and its address, which it keeps. They
    /// share the endpoints that programs can bind.
    pub nodes: Vec<String>,
    /// The private network of IPv4; node at position i has the i+1-th address, one that comes later the next one.
    /// Several containers may use the same one. That of IPv6 follows from the container's number.
    #[serde(default = "default_subnet")]
    pub subnet: String,
    /// Its programs see the nodes' `/opt`, as they see `/usr`: read-only, and of it what everybody on the node may
    /// read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_opt: bool,
    /// What `/proc` shows on each of its nodes.
    #[serde(default, skip_serializing_if = "ProcView::is_default")]
    pub proc: ProcView,
    /// How its programs and servers wait for messages; adaptively when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<WaitMode>,
    /// `K=V`, for each program that starts, before what that is given itself; servers have none of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<Bytes>,
    #[serde(default)]
    pub limits: Limits,
    /// Servers of the virtual OS. What is not named here is placed all the same: one `fs`, one `ds`.
    #[serde(default)]
    pub servers: Vec<ServerSpec>,
    /// The first one holds the file tree. None: there will be one of 1 GiB.
    #[serde(default)]
    pub disks: Vec<DiskSpec>,
    /// Programs that are kept running. More come and go by `dvs service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceSpec>,
    /// What its programs reach outside; nothing when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressSpec>,
    /// Those of its disks that are served over NBD; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbd: Option<NbdSpec>,
    /// What of it is reached from outside. More come and go by `dvs port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortSpec>,
    /// Directories of its nodes that its programs see, where the nodes allow them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<HostVolume>,
}

/// What becomes other of a container, whether it runs or not. What is absent stays as it is.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DcChange {
    /// Refused when the container has another one by now: for who has read it and decided by that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Names and values of [`Limits`]; null: as if it were absent there. Open files and terminals hold from the next
    /// start of the container on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, serde_json::Value>,
    /// Variables of the environment, by name; null: none of this name. For programs that start from now on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Option<Bytes>>,
    /// The way out; null: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub egress: Option<Option<EgressSpec>>,
    /// Its disks over NBD; null: none.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub nbd: Option<Option<NbdSpec>>,
    /// All that it publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortSpec>>,
    /// All directories of its nodes that its programs see, from the next start of the container on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<HostVolume>>,
}

/// Null is a value, too.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A node that comes to a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DcNodeRequest {
    pub node: String,
}

pub fn default_subnet() -> String {
    "10.1.0.0/24".to_owned()
}

/// Whose processes a program sees in `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProcView {
    /// Those of all nodes of the container.
    #[default]
    All,
    /// Its node's, as the kernel shows them: for programs that look at the type of the file system.
    Node,
}

impl ProcView {
    pub const ALL: [ProcView; 2] = [ProcView::All, ProcView::Node];

    /// As in `dc.toml`.
    pub fn name(self) -> &'static str {
        match self {
            ProcView::All => "all",
            ProcView::Node => "node",
        }
    }

    fn is_default(&self) -> bool {
        *self == ProcView::default()
    }
}

/// A program or an endpoint may choose another: `DVS_WAIT`, `Port::set_wait_mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Sleep at once: least CPU time, slowest answers.
    Park,
    /// Look for as long as that paid lately, then sleep.
    Adaptive,
    /// Look for about a second: no system call while messages flow, and a CPU of its own for each endpoint.
    Spin,
}

impl WaitMode {
    pub const ALL: [WaitMode; 3] = [WaitMode::Park, WaitMode::Adaptive, WaitMode::Spin];

    /// As in `dc.toml` and in `DVS_WAIT`.
    pub fn name(self) -> &'static str {
        match self {
            WaitMode::Park => "park",
            WaitMode::Adaptive => "adaptive",
            WaitMode::Spin => "spin",
        }
    }
}

/// Per node of the container. What is absent is not limited (CPU time), or has a limit that leaves the node and its
/// other containers alive: see the constants.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Linux CPU list, "0-1,3": of its programs and its servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Relative weight, 1 to 10,000; 100 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_weight: Option<u32>,
    /// CPUs' worth of time, e.g. 1.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_max: Option<f64>,
    /// Of its programs, with what the kernel keeps for them. Servers and gates have a group of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Processes and threads of its programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Files that one process may open at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Pseudo-terminals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminals: Option<u32>,
}

impl Limits {
    /// Unless asked otherwise, programs have the node's memory divided by this.
    pub const MEMORY_DIVISOR: u64 = 2;
    /// Unless asked otherwise; a node that has few numbers for processes gives a quarter of them.
    pub const PIDS: u64 = 4096;
    /// Unless asked otherwise; a program begins with 1,024.
    pub const OPEN_FILES: u64 = 16_384;
    /// Unless asked otherwise. The kernel has 4,096 for a machine.
    pub const TERMINALS: u32 = 256;
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    pub kind: ServerKind,
    /// Absent: chosen; the placement says which.
    #[serde(default)]
    pub node: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    pub name: String,
    #[serde(default)]
    pub node: Option<String>,
    /// Multiple of 4,096.
    pub bytes: u64,
    #[serde(default)]
    pub store: DiskStore,
    /// Copies of it, each on another node of the container, all written before a write is done: the loss of a node
    /// loses nothing, and each takes the space of the disk. Absent in what is asked for: two, or one in a container of
    /// one node. Absent in what there is: one, and the disk is lost with its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
}

impl DiskSpec {
    /// Whether its image is on several nodes.
    pub fn is_replicated(&self) -> bool {
        self.replicas.is_some_and(|replicas| replicas > 1)
    }
}

/// The name that a container is to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DcRename {
    pub name: String,
}

/// What becomes of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskChange {
    /// Multiple of 4,096, and no less than it has.
    pub bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiskStore {
    /// A file in the node's state directory that has all its space from the start.
    #[default]
    Image,
    /// A file there that takes space as it is used. Together such files may be larger than what is free: whoever writes
    /// when there is nothing left gets `ENOSPC`.
    Sparse,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DcPhase {
    Stopped,
    Starting,
    Running,
    /// It should run, but a node or server of it does not.
    Degraded,
    Stopping,
    Failed,
}

/// A container as it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Dc {
    pub id: u32,
    /// What was asked for.
    pub spec: DcSpec,
    /// What was decided from it.
    #[serde(default)]
    pub placement: Placement,
    pub phase: DcPhase,
    /// Its programs stand still.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    pub shares: Vec<NodeShare>,
    /// Counts what was asked for: starts, stops, changes.
    #[serde(default)]
    pub generation: u64,
    /// Seconds since 1970, UTC.
    pub created_s: u64,
    /// Of disks with several copies that were started once; where one container is asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<DiskCopies>,
}

/// A disk with several copies, as the cluster engine's record of it says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskCopies {
    pub disk: String,
    /// Raised with each start of the disk, and when it stands elsewhere.
    pub epoch: u32,
    /// Raised when a copy begins or ceases to have everything.
    pub generation: u64,
    pub copies: Vec<DiskCopy>,
    /// The last time that people had its copies compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<DiskVerification>,
}

/// All current copies of a disk are compared with its primary's, while it serves.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskVerification {
    /// Seconds since 1970, UTC.
    pub asked_s: u64,
    /// What differs becomes what the primary has.
    pub repair: bool,
    /// Of each copy that was current all the time. Absent: it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<Vec<DiskDifference>>,
    /// Where the first blocks begin that differ, in bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offsets: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskDifference {
    /// Where the copy is. The primary's own: it could not be read there.
    pub node: String,
    /// Blocks of 4 KiB.
    pub blocks: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DiskCopy {
    pub node: String,
    pub state: DiskCopyState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DiskCopyState {
    /// It has everything that was acknowledged, and the disk is beside it.
    Primary,
    /// It has everything that was acknowledged.
    Current,
    /// It misses something, and gets it while its node and the primary's are there.
    Behind,
}

impl fmt::Display for DiskCopyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskCopyState::Primary => "primary",
            DiskCopyState::Current => "current",
            DiskCopyState::Behind => "behind",
        })
    }
}

/// What one node has of a container.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeShare {
    pub node: String,
    pub phase: DcPhase,
    /// Address of the container on this node.
    pub address: String,
    /// Its other one, where the node has IPv6. It follows from the container's number and the node's seat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_ipv6: Option<std::net::Ipv6Addr>,
    /// First PID of the node's range.
    pub pid_base: u32,
    /// Endpoints that this node gives to programs: the first, and the one after the last.
    pub endpoints: Range<u32>,
    pub servers: Vec<ServerStatus>,
    /// What it publishes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<SharePort>,
    /// Why it is not running, outermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    Starting,
    Running,
    /// Died and waits to be started again.
    Resting,
    Stopped,
    /// Its node's daemon says nothing.
    Unknown,
}

/// A server that is to stand elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServerMoveRequest {
    pub node: String,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServerStatus {
    pub name: String,
    pub kind: ServerKind,
    pub endpoint: u32,
    pub state: ServerState,
    /// PID on the node.
    pub pid: Option<u32>,
    pub restarts: u64,
}

/// 1 to 32 of `a-z`, `0-9` and `-`, beginning with a letter: fits interface names, paths and cgroups after hashing.
pub fn valid_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_escape_a_path_are_refused() {
        assert!(valid_name("shop-2"));
        for bad in ["", "-a", "a/b", "..", "A", "a b", "2a", &"a".repeat(33)] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    #[test]
    fn unknown_field_in_a_description_is_refused() {
        let text = r#"{"name":"a","nodes":["n1"],"nods":[]}"#;
        assert!(serde_json::from_str::<DcSpec>(text).is_err());
    }
}
