//! Why a keeper did not do what it was asked: what it was about, how far it came, what the kernel said. These are facts
//! for the daemon, which knows what was asked, in which version it speaks with people, and makes the words. The texts
//! here are for logs.

use std::error::Error;
use std::io;

use mgmt_api::stream::session::Miscounted;
use serde::{Deserialize, Serialize};
use service_core::tenure::RunRefusal;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    #[error("no program can be started so: {0}")]
    BadRun(BadRun),
    #[error("there is no process {pid}")]
    NoSuchProcess { pid: u32 },
    /// Only what was started by `run` has streams and logs.
    #[error("no program with the PID {pid} was started by the keeper")]
    NoProgram { pid: u32 },
    #[error("the program {pid} has ended")]
    HasEnded { pid: u32 },
    #[error("too many watch the program {pid}")]
    ClientsFull { pid: u32 },
    /// The client was away for longer than `AWAY_LIMIT`, or did not keep up.
    #[error("the program {pid} waits for that client no longer")]
    SessionOver { pid: u32 },
    #[error("the client of a session counts wrong")]
    Miscounted { heard: u64, confirmed: u64, said: u64 },
    #[error("there is no signal {signal}")]
    NoSignal { signal: i32 },
    /// PID 1 is nobody's to signal.
    #[error("PID 1 is the container's virtual init")]
    IsInit,
    #[error("a request came without its descriptor")]
    NoDescriptor,
    #[error("a stored descriptor's name has 1 to {} bytes", crate::protocol::KEY_BYTES_MAX)]
    BadKey,
    #[error("{} descriptors are stored already", crate::protocol::STORED_MAX)]
    StoreFull,
    /// Of a service.
    #[error("the run does not begin: {0:?}")]
    Run(RunRefusal),
    #[error("the container is being stopped")]
    Stopping,
    #[error("the container has too many programs on this node")]
    ProgramsFull,
    /// There was a process, which did not become the program.
    #[error("the program was not executed: {stage:?}, {}", io::Error::from_raw_os_error(*errno))]
    Launch { stage: Stage, errno: i32 },
    /// The file tree lets it wait.
    #[error("the program was not executed within {limit_ms} ms")]
    LaunchLate { limit_ms: u64 },
    #[error("the process table cannot be read: a process waits for the file tree")]
    ListLate,
    /// Nothing that the caller could change. `causes` are the layers below, outermost first.
    #[error("could not {}: {}", task.doing(), causes.join(": "))]
    Failed { task: Task, errno: Option<i32>, causes: Vec<String> },
}

/// What is wrong with a request to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum BadRun {
    #[error("'hex' must be an even number of hexadecimal digits")]
    NoHex,
    #[error("the arguments and the environment are too large")]
    TooLarge,
    #[error("no program was named")]
    NoProgram,
    #[error("users and groups of a container are 0 to 65535")]
    NoSuchUser,
    /// As it came.
    #[error(transparent)]
    NoUser(#[from] mgmt_api::NoUser),
    #[error("the working directory does not begin with '/'")]
    RelativeDirectory,
    #[error("the root leads out of the tree")]
    RootOutside,
    /// As it came, made readable.
    #[error("the environment variable '{0}' is not of the form NAME=VALUE")]
    BadVariable(String),
    #[error("an argument contains a NUL character")]
    Nul,
}

/// Where a launch can fail; the byte that says so over the report pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum Stage {
    Cgroup = 1,
    Namespaces,
    Fork,
    Terminal,
    Identity,
    Root,
    Directory,
    Filter,
    Exec,
    Descriptors,
    /// The program is there; what shall interpret or load it is not.
    Interpreter,
    Limits,
    /// Its name is looked up.
    User,
    Group,
}

impl Stage {
    pub const ALL: [Stage; 14] = [
        Stage::Cgroup,
        Stage::Namespaces,
        Stage::Fork,
        Stage::Terminal,
        Stage::Identity,
        Stage::Root,
        Stage::Directory,
        Stage::Filter,
        Stage::Exec,
        Stage::Descriptors,
        Stage::Interpreter,
        Stage::Limits,
        Stage::User,
        Stage::Group,
    ];
}

/// What the keeper was at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Task {
    StartProgram,
    WatchProgram,
    UseProgram,
    MakeStreams,
    WatchStream,
    SendSignal,
    ReadLog,
    ReadTable,
    OpenNamespaces,
    CopyStored,
    MountTree,
    UnmountTree,
    PrepareCallGate,
    MakeGroup,
}

impl Task {
    /// Behind `could not`.
    pub fn doing(self) -> &'static str {
        match self {
            Task::StartProgram => "start the program",
            Task::WatchProgram => "watch the program",
            Task::UseProgram => "use the program",
            Task::MakeStreams => "make the program's streams",
            Task::WatchStream => "watch the stream",
            Task::SendSignal => "send the signal",
            Task::ReadLog => "read the program's log",
            Task::ReadTable => "read the process table",
            Task::OpenNamespaces => "open the namespaces",
            Task::CopyStored => "copy a stored descriptor",
            Task::MountTree => "mount the file tree",
            Task::UnmountTree => "unmount the file tree",
            Task::PrepareCallGate => "prepare what the call gate begins with",
            Task::MakeGroup => "make a control group for the service",
        }
    }

    pub(crate) fn failed<E: Error + 'static>(self) -> impl Fn(E) -> Refusal {
        move |error| {
            let mut causes = vec![error.to_string()];
            let (mut errno, mut next) = (errno_of(&error), error.source());
            while let Some(cause) = next {
                causes.push(cause.to_string());
                errno = errno.or(errno_of(cause));
                next = cause.source();
            }
            Refusal::Failed { task: self, errno, causes }
        }
    }
}

fn errno_of(error: &(dyn Error + 'static)) -> Option<i32> {
    error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error)
}

impl From<BadRun> for Refusal {
    fn from(bad: BadRun) -> Refusal {
        Refusal::BadRun(bad)
    }
}

impl From<Miscounted> for Refusal {
    fn from(Miscounted { heard, confirmed, said }: Miscounted) -> Refusal {
        Refusal::Miscounted { heard, confirmed, said }
    }
}
