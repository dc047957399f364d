//! What `dvs doctor` asks the daemons: facts of each node, and what they mean for the cluster.

use serde::{Deserialize, Serialize};

use crate::node::HealthCheck;

/// What a node says of itself, for who examines the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeFacts {
    pub node: String,
    pub version: String,
    /// Its clock when it answered, since 1970.
    pub clock_ms: u64,
    pub checks: Vec<HealthCheck>,
    pub certificates: Vec<CertificateFacts>,
    /// File systems of the daemon's directories.
    pub space: Vec<SpaceFacts>,
    /// Of the cluster engine, where the node should run one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<MemberFacts>,
    /// Where the node's logs are.
    pub log_dir: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CertificateFacts {
    pub path: String,
    /// Since 1970; absent: it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SpaceFacts {
    pub path: String,
    pub free_bytes: u64,
    pub whole_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemberFacts {
    pub is_running: bool,
    /// The last line of its log, when it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_words: Option<String>,
}

/// How bad something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Gravity {
    /// Everything works; it will not for ever, or is not as it should be.
    Degraded,
    /// Something does not work.
    Broken,
}

/// One thing that is wrong with the cluster, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Trouble {
    /// Of which node.
    pub node: String,
    /// In a word or two: `clock`, `certificate`.
    pub subject: String,
    pub gravity: Gravity,
    pub found: String,
    /// With the command to run.
    pub what_to_do: String,
}

/// The cluster as one node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Examination {
    pub cluster: String,
    /// Who looked.
    pub seen_from: String,
    pub nodes: Vec<String>,
    /// Empty: all is well.
    pub troubles: Vec<Trouble>,
}
