//! Programs in a container.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Capabilities, Ulimit};

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
    /// `USER[:GROUP]` by name, as `/etc/passwd` and `/etc/group` of the program's root know them: in place of `uid` and
    /// `gid`, with all groups of the user and its home. A daemon of an earlier release does not know it: for that one
    /// they should say [`ProgramUser::NOBODY`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Limits of each of its processes, below those of the container. They hold mistakes: a hostile program may have
    /// others start what it wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ulimits: Vec<Ulimit>,
    /// What neither it nor anything that it starts has, whoever it becomes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<Capabilities>,
}

impl RunRequest {
    /// Whether it is to have less than its container. Daemons of an earlier release do not know of it.
    pub fn is_restrained(&self) -> bool {
        !(self.ulimits.is_empty() && self.cap_drop.is_empty())
    }
}

/// As whom a program runs: `USER[:GROUP]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProgramUser {
    /// Both by number, at most [`ProgramUser::ID_MAX`]. Without a group it has the user's number.
    Numbers { uid: u32, gid: u32 },
    /// At least one of them by name; who starts the program looks them up.
    Named(String),
}

/// Neither numbers that a container has nor names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{0:?} is no user of a container: USER or USER:GROUP, names of its /etc/passwd or numbers up to {max}", max = ProgramUser::ID_MAX)]
pub struct NoUser(pub String);

impl ProgramUser {
    pub const ID_MAX: u32 = 65_535;
    /// Number of the user and the group that may nothing.
    pub const NOBODY: u32 = 65_534;
    const ROOT: ProgramUser = ProgramUser::Numbers { uid: 0, gid: 0 };
    const NAME_BYTES_MAX: usize = 64;

    /// Numbers of user and group, and what [`RunRequest::user`] says.
    pub fn of_request(self) -> (u32, u32, Option<String>) {
        match self {
            ProgramUser::Numbers { uid, gid } => (uid, gid, None),
            ProgramUser::Named(user) => (ProgramUser::NOBODY, ProgramUser::NOBODY, Some(user)),
        }
    }
}

impl Default for ProgramUser {
    fn default() -> ProgramUser {
        ProgramUser::ROOT
    }
}

impl std::str::FromStr for ProgramUser {
    type Err = NoUser;

    fn from_str(text: &str) -> Result<ProgramUser, NoUser> {
        let number = |part: &str| match part {
            "root" => Some(0),
            _ if part.bytes().all(|byte| byte.is_ascii_digit()) => {
                part.parse().ok().filter(|id| *id <= ProgramUser::ID_MAX)
            }
            _ => None,
        };
        // What useradd(8) takes, and capital letters.
        let is_name = |part: &str| {
            let is_usual = |(at, byte): (usize, u8)| match byte {
                b'_' | b'a'..=b'z' | b'A'..=b'Z' => true,
                b'0'..=b'9' | b'-' | b'.' => at > 0,
                b'$' => at > 0 && at + 1 == part.len(),
                _ => false,
            };
            (1..=ProgramUser::NAME_BYTES_MAX).contains(&part.len()) && part.bytes().enumerate().all(is_usual)
        };
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        match (number(user), number(group)) {
            (Some(uid), Some(gid)) => Ok(ProgramUser::Numbers { uid, gid }),
            (uid, gid) if (uid.is_some() || is_name(user)) && (gid.is_some() || is_name(group)) => {
                Ok(ProgramUser::Named(text.to_owned()))
            }
            _ => Err(NoUser(text.to_owned())),
        }
    }
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
    /// Why it ended, where the status alone does not say: `out of memory`, `lost with its keeper`, `signal 15 of alice`
    /// (who asked for it with `dvs kill` or `dvs stop`).
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
    /// Absent: it has no file tree there at the moment, or one of an earlier release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileUsage>,
}

/// How a container's file tree is used on one of its nodes, since its gate there began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileUsage {
    /// Requests of programs that were answered on the node.
    pub here: u64,
    /// Operations that the file server was asked for.
    pub asked: u64,
    /// What the server asked back, because other nodes wanted it.
    pub recalls: u64,
    /// Changes that programs were answered before the server was told.
    pub promised: u64,
    /// Of these, how many the server has not been told yet.
    pub untold: u64,
    /// For how long the oldest of them waits, in milliseconds.
    pub untold_ms: u64,
}

/// A piece of what a program wrote: one stream, one moment. It begins and ends anywhere in a line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LogPiece {
    /// When it was written, to a hundredth of a second: milliseconds since 1970 by the clock of its node. Absent: an
    /// earlier release kept it, which did not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
    pub stream: LogStream,
    /// At most [`LogPiece::TEXT_BYTES_MAX`] bytes.
    pub text: Bytes,
}

impl LogPiece {
    pub const TEXT_BYTES_MAX: usize = 32 << 10;
}

/// Where a program wrote it. Of one with a terminal all is `stdout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogStream {
    Stdout,
    Stderr,
}

/// How a log is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// Its bytes, both streams as they came: `text/plain`.
    #[default]
    Text,
    /// A [`LogPiece`] in each line: `application/x-ndjson`.
    Pieces,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SignalRequest {
    pub signal: i32,
    /// Who asked, of a request that a node passes on; of another one it is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_or_names() {
        let numbers = |uid, gid| Ok(ProgramUser::Numbers { uid, gid });
        for (text, expected) in [("1000", numbers(1000, 1000)), ("root:5", numbers(0, 5)), ("33:7", numbers(33, 7))] {
            assert_eq!(text.parse::<ProgramUser>(), expected);
        }
        for named in ["www-data", "postgres:tape", "33:tape", "tape:33", "Ada_2.x", "machine$"] {
            assert_eq!(named.parse::<ProgramUser>(), Ok(ProgramUser::Named(named.to_owned())));
        }
        assert_eq!(ProgramUser::Named("a".to_owned()).of_request(), (65_534, 65_534, Some("a".to_owned())));
        let long = "x".repeat(65);
        for bad in [
            "", ":", "1:", ":1", "a:", ":a", "-1", "65536", "1:65536", "a:b:c", "a b", "-a", "a/b", "$", "a$b", "3a",
            &long,
        ] {
            assert_eq!(bad.parse::<ProgramUser>(), Err(NoUser(bad.to_owned())), "{bad}");
        }
    }
}
