//! Services: programs of a container that DVS keeps running (`docs/design/supervised-services.md`). What people ask
//! for, and the states of an instance. Whether a description makes sense says `service-core`.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// ```toml
/// [[services]]
/// name = "web"
/// command = ["/usr/bin/python3", "-m", "http.server", "8080"]
/// workdir = "/dc/www"
/// user = "www-data"
/// place = "spread"
/// instances = 2
/// after = ["db"]
/// restart = "always"
/// stop = { signal = "INT", grace_ms = 5000 }
/// health = { http = "8080/", interval_ms = 2000 }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    pub name: String,
    /// Program and arguments, as of `RunRequest`.
    pub command: Vec<Bytes>,
    /// `K=V`, added to a small default environment.
    #[serde(default)]
    pub env: Vec<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Bytes>,
    /// `USER[:GROUP]` inside the container ([`crate::ProgramUser`]); root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its root directory, also of its health command: a directory of the tree ([`crate::in_tree`]). Absent: that of
    /// the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// All instances stand here; excludes `place` and `near`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Absent: spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PlacePolicy>,
    /// Where instances of this service stand; excludes `node` and `place`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<String>,
    #[serde(default = "one")]
    pub instances: u32,
    /// Services that are up before an instance of this one is started.
    #[serde(default)]
    pub after: Vec<String>,
    #[serde(default)]
    pub restart: RestartPolicy,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthSpec>,
    #[serde(default)]
    pub stop: StopSpec,
}

fn one() -> u32 {
    1
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PlacePolicy {
    /// As few of one service on a node as possible.
    Spread,
    /// On as few nodes as possible.
    Pack,
    /// Where programs leave most of the CPUs unused.
    LeastLoaded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    #[default]
    Always,
    /// Not after exit status 0.
    OnFailure,
    Never,
}

/// Exactly one of `command`, `tcp` and `http`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthSpec {
    /// Well when it ends with status 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<Bytes>>,
    /// Well when somebody listens on this port of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<u16>,
    /// `PORT/PATH`: well when the answer is 200 to 399.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<String>,
    #[serde(default = "interval_ms")]
    pub interval_ms: u64,
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// So many failures in a row, and it is unhealthy.
    #[serde(default = "retries")]
    pub retries: u32,
    /// After a start failures do not count for so long, or until it was well once.
    #[serde(default = "start_ms")]
    pub start_ms: u64,
}

impl Default for HealthSpec {
    /// Asks nothing yet.
    fn default() -> HealthSpec {
        HealthSpec {
            command: None,
            tcp: None,
            http: None,
            interval_ms: interval_ms(),
            timeout_ms: timeout_ms(),
            retries: retries(),
            start_ms: start_ms(),
        }
    }
}

fn interval_ms() -> u64 {
    5_000
}

fn timeout_ms() -> u64 {
    2_000
}

fn retries() -> u32 {
    3
}

fn start_ms() -> u64 {
    10_000
}

/// What is asked, of a `HealthSpec` that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HealthProbe {
    Command(Vec<Bytes>),
    Tcp(u16),
    Http { port: u16, path: String },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct StopSpec {
    /// By name or number.
    pub signal: String,
    /// From the signal to SIGKILL.
    pub grace_ms: u64,
}

impl Default for StopSpec {
    fn default() -> StopSpec {
        StopSpec { signal: "TERM".to_owned(), grace_ms: 10_000 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ServiceState {
    /// For a node, or for services that it comes after.
    Waiting,
    /// A node was decided on; its keeper was not asked yet.
    Placed,
    Starting,
    /// It has no health check, or was not well yet.
    Running,
    Healthy,
    Unhealthy,
    /// Ended, and is started again when its delay is over.
    BackingOff,
    Stopping,
    /// Asked for, or ended as its policy wants.
    Stopped,
    /// Ended with a failure, and its policy starts it no more.
    Failed,
}

/// A service of a container: what was asked for, and how its instances are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServiceInfo {
    pub spec: ServiceSpec,
    /// False: somebody stopped it.
    pub is_wanted: bool,
    pub instances: Vec<ServiceInstance>,
}

/// One of the programs of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ServiceInstance {
    /// `NAME/INDEX`, from 0.
    pub name: String,
    pub state: ServiceState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Of its last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How its last run ended, as a shell shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Starts after the first one, where it stands now.
    pub restarts: u64,
    /// Rises with each placement; no two placements of an instance have the same.
    pub epoch: u64,
    /// Since when it is in this state, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_s: Option<u64>,
    /// Why it stands where it stands, or nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Instances that are to stand elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u32>,
    /// Absent: its policy decides, and not for the node where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}
