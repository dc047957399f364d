//! What the daemon and the keeper say to each other over the control socket (Unix SEQPACKET): one JSON packet per
//! request and one per answer, descriptors beside them. What does not fit into a packet travels in a memfd.
//!
//! A packet begins with one byte: [`INLINE`] (JSON follows) or [`IN_MEMFD`] (the first descriptor holds the JSON).
//! Requests on one connection are answered in order; several connections work at the same time.
//!
//! **Versions.** A keeper is of the version of the binary that made it, and outlives daemons, so a newer daemon meets
//! older keepers. The first request of each connection is [`Request::Hello`] with the versions that the daemon speaks;
//! the keeper answers with the newest that both speak, or with those that it speaks. A keeper that knows no greeting
//! closes the connection: it is of version 1.
//!
//! | version | differs from the one before |
//! |---|---|
//! | 1 | no greeting; a refusal is an `ErrorBody`, said to the client of a stream by the keeper itself |
//! | 2 | the greeting; a refusal is a [`Refusal`], and the daemon says the last word to the client of a stream; what a call gate begins with; runs of services |
//!
//! The rule: a daemon speaks its own version and at least the one before ([`VERSIONS`]), a keeper may speak its own
//! alone. What is added so that a side that does not know it ignores it without harm (a field with a default) needs no
//! new version; a new request or answer, or another meaning, does, and is said only to who speaks that version. So a
//! node is updated version by version, containers going on; whoever leaves one out stops its containers with the daemon
//! that started them, first.

use std::path::PathBuf;
use std::time::Duration;

use mgmt_api::{ErrorBody, ExecRequest, LogForm, Process, RunRequest};
use sandbox::cgroup::Cgroup;
use sandbox::volumes::VolumeMount;
use serde::{Deserialize, Serialize};
use service_core::restart::RunEnd;
use service_core::tenure::Run;

pub use versions::Versions;

use crate::refusal::Refusal;

/// The JSON follows in the packet.
pub const INLINE: u8 = 0;
/// The JSON is in the packet's first descriptor.
pub const IN_MEMFD: u8 = 1;
/// Larger JSON goes into a memfd: a packet must fit into a socket buffer of the smallest usual size.
pub const INLINE_BYTES_MAX: usize = 32 * 1024;
/// JSON of one request or answer: arguments and environment of a program may have 2 MiB, JSON escapes may double them.
pub const JSON_BYTES_MAX: usize = 8 << 20;
/// Connections at a time: the daemon keeps one and opens one more for each waiting request.
pub const CONNECTIONS_MAX: usize = 64;
/// Descriptors the daemon may store: FUSE, control pages and the objects of proxied channels.
pub const STORED_MAX: usize = 8192;
/// Bytes of a stored descriptor's name.
pub const KEY_BYTES_MAX: usize = 128;

/// Of a keeper that closes the connection of who greets.
pub(crate) const UNGREETED: u8 = 1;
/// What a daemon of this source speaks.
pub const VERSIONS: Versions = versions::KEEPER.speaks;
const _: () = assert!(VERSIONS.oldest < VERSIONS.newest, "a daemon speaks with keepers of the version before");
/// What a keeper of this source speaks.
pub(crate) const OF_A_KEEPER: Versions = Versions { oldest: VERSIONS.newest, newest: VERSIONS.newest };

/// From the request to exec; images and programs come from the file tree, which may have to wait for a failover.
pub const LAUNCH_LIMIT: Duration = Duration::from_secs(20);

/// `options` of the keeper's spawn record. Paths are the host's and come from the daemon.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KeeperOptions {
    /// Where the control socket is made, mode 0600.
    pub control: PathBuf,
    /// Logs and records of programs, made when missing; what is kept there outlives the keeper.
    pub log_dir: PathBuf,
    /// Host uid (and gid) of the container's root; 65,536 of them are used.
    pub uid_base: u32,
    /// First PID of this node's range; a multiple of 65,536.
    pub pid_base: u32,
    /// Name of the node, as programs' records show it.
    pub node: String,
    pub hostname: String,
    /// Lines of `/etc/hosts` beside localhost: (name, address).
    #[serde(default)]
    pub hosts: Vec<(String, String)>,
    /// Directory of the container's M3-IPC socket, seen at `/run/dvs` inside.
    #[serde(default)]
    pub ipc_dir: Option<PathBuf>,
    /// Where programs run; made by the daemon.
    #[serde(default)]
    pub cgroup: Option<Cgroup>,
    /// `K=V` that every program gets unless its request says otherwise.
    #[serde(default)]
    pub env: Vec<String>,
    /// PIDs of this node from `pid_base` on; 65,536 but in tests.
    #[serde(default = "pids_per_node")]
    pub pid_span: u32,
    /// Room for `/tmp`, `/var`, `/run`, `/root`, `/home` together; absent: 1 GiB.
    #[serde(default)]
    pub volatile_bytes: Option<u64>,
    /// Pseudo-terminals at a time; absent: `Limits::TERMINALS`.
    #[serde(default)]
    pub terminals: Option<u32>,
    /// Files that each process of it may open at most; absent: `Limits::OPEN_FILES`.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// The node's `/opt` is seen, as `/usr` is.
    #[serde(default)]
    pub with_opt: bool,
    /// Directories of the node that programs see.
    #[serde(default)]
    pub volumes: Vec<VolumeMount>,
    /// The container has other nodes, and programs may name their processes: there is a call gate.
    #[serde(default)]
    pub spans: bool,
    /// `/proc` shows the processes of all its nodes: its call gate says what it shows.
    #[serde(default)]
    pub shows_all: bool,
    /// From a request to run to exec; absent: [`LAUNCH_LIMIT`]. Only tests are less patient.
    #[serde(default)]
    pub launch_limit_ms: Option<u64>,
}

impl KeeperOptions {
    pub(crate) fn launch_limit(&self) -> Duration {
        self.launch_limit_ms.map_or(LAUNCH_LIMIT, Duration::from_millis)
    }
}

fn pids_per_node() -> u32 {
    abi::limits::PIDS_PER_NODE
}

/// How the container's file tree is mounted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FuseOptions {
    /// Largest read the gate serves.
    pub max_read_bytes: u32,
    /// Read-ahead of the mount; FACTS: the default of 128 KiB costs half the speed.
    pub read_ahead_kib: u32,
}

impl Default for FuseOptions {
    fn default() -> FuseOptions {
        FuseOptions { max_read_bytes: 1 << 20, read_ahead_kib: 4096 }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub dc_name: String,
    /// PIDs on the host.
    pub keeper_pid: u32,
    pub init_pid: u32,
    pub uid_base: u32,
    pub pid_base: u32,
    /// Programs that run, of those started by `run`.
    pub running: usize,
    pub stored: usize,
    pub fuse_mounted: bool,
    /// It knows when what was said in a log, and in which stream.
    #[serde(default)]
    pub times_logs: bool,
    /// It starts programs as users by name.
    #[serde(default)]
    pub names_users: bool,
    /// Whether programs may have less than their container.
    #[serde(default)]
    pub restrains: bool,
    /// What this kernel or host could not give, and what it means.
    pub degraded: Vec<String>,
}

/// What may be held for longer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Permit {
    pub instance: String,
    pub epoch: u64,
}

/// Where the node's proxies say that it is heard (`sys::presence`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PresenceWatch {
    pub path: PathBuf,
    /// Of the node, in which all was permitted.
    pub incarnation: u64,
}

/// How the runs of an instance of a service stand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunStanding {
    pub instance: String,
    /// The last that began.
    pub last: Run,
    /// Nothing up to this epoch begins any more.
    pub closed: u64,
    /// It has not ended: its processes, and what they started, are there.
    pub is_held: bool,
    /// Of its first process; 0 before that was executed.
    pub pid: u32,
    /// How it ended.
    pub end: Option<RunEnd>,
    /// And why, where that alone does not say.
    #[serde(default)]
    pub cause: Option<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// The first one of a connection.
    Hello(Versions),
    Status,
    /// A stream may come along; `pending` was read from it already. With a session its client may come back (`Resume`).
    Run {
        run: RunRequest,
        pending: Vec<u8>,
        #[serde(default)]
        session: Option<u64>,
    },
    Exec {
        exec: ExecRequest,
        pending: Vec<u8>,
        #[serde(default)]
        session: Option<u64>,
    },
    Attach {
        pid: u32,
        pending: Vec<u8>,
        #[serde(default)]
        session: Option<u64>,
    },
    /// The client of a session is back, and has heard so many frames.
    Resume {
        pid: u32,
        pending: Vec<u8>,
        session: u64,
        heard: u64,
    },
    List,
    Signal {
        pid: u32,
        signal: i32,
        /// Who asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    Logs {
        pid: u32,
        tail_lines: Option<usize>,
        follow: Follow,
        /// Milliseconds since 1970.
        #[serde(default)]
        since_ms: Option<u64>,
        #[serde(default)]
        form: LogForm,
    },
    Stop {
        grace_ms: u64,
    },
    Store {
        key: String,
    },
    Fetch {
        key: String,
    },
    Drop {
        key: String,
    },
    Namespaces,
    /// A call gate begins: in place of the one before.
    BeginCallGate,
    MountFuse(FuseOptions),
    UnmountFuse,
    /// A run of a service begins, unless it did, or may not any more. It is held until a moment of the node's monotonic
    /// clock.
    BeginRun {
        instance: String,
        run: Run,
        until_ns: u64,
        /// It asks whether another one is well: what it writes and how it ended is not kept.
        is_check: bool,
        request: RunRequest,
    },
    /// It may be held for longer; the answer is how all runs stand.
    HoldRuns {
        permits: Vec<Permit>,
        until_ns: u64,
        /// What is said there extends these permits, too, as long as nobody asks.
        #[serde(default)]
        presence: Option<PresenceWatch>,
    },
    /// Nothing of it up to this epoch begins any more. What runs goes on.
    CloseRun {
        instance: String,
        epoch: u64,
    },
    SignalRun {
        instance: String,
        run: Run,
        signal: i32,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Follow {
    /// What is there now.
    No,
    /// And what comes, until the program ends.
    Yes,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    /// In this version it goes on.
    Hello {
        version: u8,
    },
    /// There is none in common; these the keeper speaks.
    OtherVersion(Versions),
    Refused(Refusal),
    Status(Status),
    Started {
        pid: u32,
    },
    Processes(Vec<Process>),
    /// One descriptor comes along.
    Descriptor,
    NotStored,
    /// user, mount, pid, net, ipc, uts, and the pidfd of init.
    Namespaces,
    /// That very run began before.
    Begun,
    Runs(Vec<RunStanding>),
    /// The call gate's socket to the keeper, the journal, its socket to init, one for memory, two for jobs (`jobs.rs`),
    /// three for `/proc`.
    CallGate,
    /// The refusal of a keeper of version 1, and what one of a later version says to a client that does not greet.
    Failed(ErrorBody),
}
