//! Programs in a container.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Start a program. Both `dvs run` and `dvs exec` send this; they differ in defaults only.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunRequest {
    /// Program and arguments; the program is looked up in PATH inside. Each is a string, or `{"hex": "ff00"}` when it
    /// is no UTF-8.
    pub argv: Vec<Bytes>,
    /// Absent: the first node of the container.
    #[serde(default)]
    pub node: Option<String>,
    /// `K=V`, added to a small default environment; of bytes like the arguments.
    #[serde(default)]
    pub env: Vec<Bytes>,
    #[serde(default)]
    pub workdir: Option<Bytes>,
    #[serde(default)]
    pub root: RootFs,
    /// Inside the container.
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
    /// Give it a terminal.
    #[serde(default)]
    pub terminal: Option<TerminalSize>,
    /// Keep standard input connected.
    #[serde(default)]
    pub interactive: bool,
    /// Answer at once; the program goes on, its output goes to the log.
    #[serde(default)]
    pub detach: bool,
    /// Keep nothing of its output for the log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlogged: bool,
}

/// Body of [`crate::path::DC_EXEC`]: runs on the node and with the root of an existing program; `run.node` and
/// `run.root` are ignored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExecRequest {
    pub pid: u32,
    pub run: RunRequest,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind", content = "path")]
pub enum RootFs {
    /// The host's system directories, read-only, and the tree at `/dc`.
    #[default]
    Host,
    /// A directory of the tree ([`crate::in_tree`]).
    Tree(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunResponse {
    /// PID in the container, unique over its nodes.
    pub pid: u32,
    pub node: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProcessState {
    Running,
    Sleeping,
    Stopped,
    Zombie,
    /// Started by `run`, ended; kept, also while the container is stopped, until 1,000 newer ones ended or a program
    /// gets its PID.
    Exited,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    pub node: String,
    pub uid: u32,
    pub state: ProcessState,
    pub cpu_ms: u64,
    pub memory_bytes: u64,
    /// Milliseconds since 1970, UTC.
    pub start_ms: u64,
    /// Bytes that are no UTF-8 are replaced.
    pub command: Vec<String>,
    /// It has a terminal of its own: who attaches to it makes theirs raw.
    #[serde(default)]
    pub terminal: bool,
    /// It is in a call that the file tree has not answered yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_tree: bool,
    /// Exit status as a shell shows it (128 + signal), when `state` is `Exited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Why it ended, where the status alone does not say: `out of memory`, `lost with its keeper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// What a container uses of one of its nodes: its programs, servers and gates together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeUsage {
    pub node: String,
    /// Since it was started there.
    pub cpu_ms: u64,
    pub memory_bytes: u64,
    /// Of its programs alone.
    pub memory_limit_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Of its programs alone.
    pub pids_limit: u64,
    /// Programs that were killed for want of memory.
    pub oom_kills: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SignalRequest {
    pub signal: i32,
}
