//! The daemon's side of the control socket. Synchronous; every call has a time limit.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mgmt_api::{ErrorBody, ExecRequest, LogForm, Process, RunRequest};
use service_core::tenure::Run;

use crate::log::Part as LogPart;
use crate::packet::{self, PacketError};
use crate::protocol::{
    Answer, Follow, FuseOptions, LAUNCH_LIMIT, Permit, PresenceWatch, Request, RunStanding, Status, UNGREETED,
    VERSIONS, Versions,
};
use crate::refusal::Refusal;

/// How often somebody who waits for the tree looks.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A keeper that serves answers at once; an `exec` on a slow file system may take [`LAUNCH_LIMIT`] of it.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
const _: () =
    assert!(LAUNCH_LIMIT.as_secs() < ANSWER_LIMIT.as_secs(), "the keeper says why before its client gives up");

#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    #[error("no keeper listens at {path}")]
    NotThere {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    /// There may be one, and it takes nobody.
    #[error("the keeper at {path} cannot be reached")]
    Unreachable {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("the keeper at {path} ended or closed the connection")]
    Gone { path: PathBuf },
    #[error("the keeper at {path} did not answer within {limit:?}")]
    TimedOut { path: PathBuf, limit: Duration },
    #[error("the conversation with the keeper at {path} broke")]
    Conversation {
        path: PathBuf,
        #[source]
        cause: PacketError,
    },
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The words of a keeper of version 1, ready for whoever asked; the client of a stream has heard them.
    #[error(transparent)]
    Told(ErrorBody),
    /// It goes on, but only a daemon of another version can speak with it.
    #[error("the keeper at {path} speaks {keeper} of its protocol, this daemon {}", VERSIONS)]
    OtherVersion { path: PathBuf, keeper: Versions },
    #[error("the keeper at {path} answered something else than was asked")]
    Confused { path: PathBuf },
    #[error("the container's file tree was not mounted here within {limit:?}")]
    NoTree { limit: Duration },
}

/// No socket, or a socket file that a dead keeper left.
fn is_nobody(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

/// Descriptors of a container's namespaces on this node, and the pidfd of its init.
#[derive(Debug)]
pub struct NamespaceFds {
    pub user: OwnedFd,
    pub mount: OwnedFd,
    pub pid: OwnedFd,
    pub net: OwnedFd,
    pub ipc: OwnedFd,
    pub uts: OwnedFd,
    pub init: OwnedFd,
}

/// What a call gate begins with.
#[derive(Debug)]
pub struct CallGateFds {
    /// Over it come the listeners of programs.
    pub keeper: OwnedFd,
    pub journal: OwnedFd,
    /// Over it go orders of other nodes to init.
    pub init: OwnedFd,
    /// Over it the keeper is asked for memory of programs.
    pub memory: OwnedFd,
    /// `None`: its programs see no socket of the container.
    pub jobs: Option<JobFds>,
    /// `None`: `/proc` is the kernel's.
    pub proc: Option<ProcFds>,
}

/// What of it is for `/proc`.
#[derive(Debug)]
pub struct ProcFds {
    pub fuse: OwnedFd,
    /// The directory of the container's procfs.
    pub native: OwnedFd,
    /// Over it the keeper is asked for lookers.
    pub looks: OwnedFd,
}

/// What of it is for jobs.
#[derive(Debug)]
pub struct JobFds {
    /// Programs ask there.
    pub door: OwnedFd,
    /// Over it go orders for far ends.
    pub starter: OwnedFd,
}

/// The connected socket of a client.
#[derive(Clone, Copy, Debug)]
pub struct StreamEnd<'a> {
    pub socket: BorrowedFd<'a>,
    /// What was read from it already.
    pub pending: &'a [u8],
    /// With a session the client may come back when the socket breaks (`mgmt_api::stream::session`).
    pub session: Option<u64>,
}

impl<'a> StreamEnd<'a> {
    /// A fresh socket, whose client goes with it.
    pub fn of(socket: BorrowedFd<'a>) -> StreamEnd<'a> {
        StreamEnd { socket, pending: &[], session: None }
    }
}

fn early_of(stream: Option<&StreamEnd<'_>>) -> (Vec<u8>, Option<u64>) {
    stream.map_or((Vec::new(), None), |stream| (stream.pending.to_vec(), stream.session))
}

fn logs(pid: u32, part: LogPart, form: LogForm, follow: Follow) -> Request {
    Request::Logs { pid, tail_lines: part.tail_lines, follow, since_ms: part.since_ms, form }
}

/// One connection to a keeper. Calls from several threads take turns; whoever expects to wait opens a connection of its
/// own.
#[derive(Debug)]
pub struct KeeperClient {
    path: PathBuf,
    version: u8,
    socket: Mutex<OwnedFd>,
}

impl KeeperClient {
    pub fn connect(path: impl AsRef<Path>) -> Result<KeeperClient, KeeperError> {
        let mut client = KeeperClient::call(path.as_ref().to_owned())?;
        match client.ask(&Request::Hello(VERSIONS), &[]) {
            Ok((Answer::Hello { version }, _)) => client.version = version,
            Ok((Answer::OtherVersion(keeper), _)) => {
                return Err(KeeperError::OtherVersion { path: client.path, keeper });
            }
            Ok(_) => return Err(client.confused()),
            // It knows no greeting. One that ended in this moment is not there.
            Err(KeeperError::Gone { path }) if VERSIONS.oldest == UNGREETED => return KeeperClient::call(path),
            Err(error) => return Err(error),
        }
        Ok(client)
    }

    fn call(path: PathBuf) -> Result<KeeperClient, KeeperError> {
        match sys::seqpacket::connect_within(&path, ANSWER_LIMIT) {
            Ok(socket) => Ok(KeeperClient { path, version: UNGREETED, socket: Mutex::new(socket) }),
            Err(cause) if is_nobody(&cause) => Err(KeeperError::NotThere { path, cause }),
            Err(cause) => Err(KeeperError::Unreachable { path, cause }),
        }
    }

    /// Of the protocol, in which this conversation is.
    pub fn version(&self) -> u8 {
        self.version
    }

    pub fn status(&self) -> Result<Status, KeeperError> {
        match self.ask(&Request::Status, &[])?.0 {
            Answer::Status(status) => Ok(status),
            _ => Err(self.confused()),
        }
    }

    /// Returns when the container's file tree is mounted here. A program that begins before finds an empty directory
    /// that nobody can write to, and one in it when the tree comes stays there.
    ///
    /// # Errors
    /// [`KeeperError::NoTree`] after `limit`.
    pub fn wait_for_tree(&self, limit: Duration) -> Result<Status, KeeperError> {
        let until = Instant::now() + limit;
        loop {
            let status = self.status()?;
            if status.fuse_mounted {
                return Ok(status);
            }
            if Instant::now() >= until {
                return Err(KeeperError::NoTree { limit });
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Starts a program; returns its PID in the container once it was executed. On the `stream` the keeper speaks
    /// frames of `mgmt_api::stream` from then on, refusals included.
    pub fn run(&self, run: &RunRequest, stream: Option<&StreamEnd<'_>>) -> Result<u32, KeeperError> {
        let (pending, session) = early_of(stream);
        self.start(&Request::Run { run: run.clone(), pending, session }, stream)
    }

    /// Like [`KeeperClient::run`], with the root of an existing process of the container.
    pub fn exec(&self, exec: &ExecRequest, stream: Option<&StreamEnd<'_>>) -> Result<u32, KeeperError> {
        let (pending, session) = early_of(stream);
        self.start(&Request::Exec { exec: exec.clone(), pending, session }, stream)
    }

    /// Connects a stream to a program started by [`KeeperClient::run`]. What it printed before is in its log.
    pub fn attach(&self, pid: u32, stream: &StreamEnd<'_>) -> Result<(), KeeperError> {
        let (pending, session) = early_of(Some(stream));
        self.done(&Request::Attach { pid, pending, session }, &[stream.socket])
    }

    /// Goes on with the session of a stream that broke, whose client has heard so many frames.
    pub fn resume(
        &self,
        pid: u32,
        session: u64,
        heard: u64,
        socket: BorrowedFd<'_>,
        pending: &[u8],
    ) -> Result<(), KeeperError> {
        // Version 1 remembers no session.
        if self.version == UNGREETED {
            return Err(Refusal::SessionOver { pid }.into());
        }
        self.done(&Request::Resume { pid, pending: pending.to_vec(), session, heard }, &[socket])
    }

    /// All processes of the container on this node, and ended programs that are remembered.
    pub fn list(&self) -> Result<Vec<Process>, KeeperError> {
        match self.ask(&Request::List, &[])?.0 {
            Answer::Processes(processes) => Ok(processes),
            _ => Err(self.confused()),
        }
    }

    /// Any process of the container on this node, by its PID in the container.
    pub fn signal(&self, pid: u32, signal: i32, by: Option<String>) -> Result<(), KeeperError> {
        self.done(&Request::Signal { pid, signal, by }, &[])
    }

    /// What is kept of a program's output. A keeper without [`Status::times_logs`] knows no form but text, and no
    /// times.
    pub fn logs(&self, pid: u32, part: LogPart, form: LogForm) -> Result<Vec<u8>, KeeperError> {
        let log = self.descriptor(&logs(pid, part, form, Follow::No))?;
        let mut text = Vec::new();
        match File::from(log).read_to_end(&mut text) {
            Ok(_) => Ok(text),
            Err(cause) => Err(KeeperError::Conversation { path: self.path.clone(), cause: PacketError::Socket(cause) }),
        }
    }

    /// Like [`KeeperClient::logs`], as the reading end of a socket that goes on until the program ends.
    pub fn follow(&self, pid: u32, part: LogPart, form: LogForm) -> Result<OwnedFd, KeeperError> {
        self.descriptor(&logs(pid, part, form, Follow::Yes))
    }

    /// SIGTERM for all programs, SIGKILL after `grace`; returns when nothing of the container is left here. The keeper
    /// then ends.
    pub fn stop(&self, grace: Duration) -> Result<(), KeeperError> {
        let request = Request::Stop { grace_ms: grace.as_millis().try_into().unwrap_or(u64::MAX) };
        match self.ask_within(&request, &[], grace.saturating_add(ANSWER_LIMIT))?.0 {
            Answer::Done => Ok(()),
            _ => Err(self.confused()),
        }
    }

    /// Keeps a copy of a descriptor under a name; replaces an older one.
    pub fn store(&self, key: &str, fd: BorrowedFd<'_>) -> Result<(), KeeperError> {
        self.done(&Request::Store { key: key.to_owned() }, &[fd])
    }

    pub fn fetch(&self, key: &str) -> Result<Option<OwnedFd>, KeeperError> {
        let (answer, mut fds) = self.ask(&Request::Fetch { key: key.to_owned() }, &[])?;
        match (answer, fds.pop()) {
            (Answer::Descriptor, Some(fd)) => Ok(Some(fd)),
            (Answer::NotStored, None) => Ok(None),
            _ => Err(self.confused()),
        }
    }

    /// Forgets a stored descriptor; one that is not there is no error.
    pub fn drop_stored(&self, key: &str) -> Result<(), KeeperError> {
        self.done(&Request::Drop { key: key.to_owned() }, &[])
    }

    pub fn namespaces(&self) -> Result<NamespaceFds, KeeperError> {
        let (answer, fds) = self.ask(&Request::Namespaces, &[])?;
        let fds: Result<[OwnedFd; 7], _> = fds.try_into();
        match (answer, fds) {
            (Answer::Namespaces, Ok([user, mount, pid, net, ipc, uts, init])) => {
                Ok(NamespaceFds { user, mount, pid, net, ipc, uts, init })
            }
            _ => Err(self.confused()),
        }
    }

    /// What a call gate begins with. `None`: the container's programs have none here.
    pub fn begin_call_gate(&self) -> Result<Option<CallGateFds>, KeeperError> {
        let (answer, fds) = self.ask(&Request::BeginCallGate, &[])?;
        let mut fds = fds.into_iter();
        let first = (fds.next(), fds.next(), fds.next(), fds.next());
        let jobs = fds.next().zip(fds.next()).map(|(door, starter)| JobFds { door, starter });
        let proc = fds.next().zip(fds.next()).zip(fds.next());
        let proc = proc.map(|((fuse, native), looks)| ProcFds { fuse, native, looks });
        match (answer, first) {
            (Answer::CallGate, (Some(keeper), Some(journal), Some(init), Some(memory))) => {
                Ok(Some(CallGateFds { keeper, journal, init, memory, jobs, proc }))
            }
            (Answer::NotStored, _) => Ok(None),
            _ => Err(self.confused()),
        }
    }

    /// Mounts the container's file tree at `/dc` (instead of the one that may be there) and returns the FUSE
    /// descriptor, of which the keeper keeps a copy under the name `fuse`.
    pub fn mount_fuse(&self, options: &FuseOptions) -> Result<OwnedFd, KeeperError> {
        self.descriptor(&Request::MountFuse(options.clone()))
    }

    pub fn unmount_fuse(&self) -> Result<(), KeeperError> {
        self.done(&Request::UnmountFuse, &[])
    }

    /// Starts a run of a service, which is held until a moment of `sys::clock`. `None`: that very run
    /// began before. May be asked again.
    ///
    /// # Errors
    /// [`Refusal::Run`]: it does not begin, for now or ever. [`Refusal::Launch`] and others: it began, and its program
    /// did not start.
    pub fn begin_run(
        &self,
        instance: &str,
        run: Run,
        until_ns: u64,
        request: &RunRequest,
    ) -> Result<Option<u32>, KeeperError> {
        self.begin_any(instance, (run, until_ns), false, request)
    }

    /// The same for a program that asks whether another one is well: nothing of it is kept but its end in
    /// [`KeeperClient::hold_runs`].
    ///
    /// # Errors
    /// As of [`KeeperClient::begin_run`].
    pub fn begin_check(
        &self,
        instance: &str,
        run: Run,
        until_ns: u64,
        request: &RunRequest,
    ) -> Result<Option<u32>, KeeperError> {
        self.begin_any(instance, (run, until_ns), true, request)
    }

    fn begin_any(
        &self,
        instance: &str,
        (run, until_ns): (Run, u64),
        is_check: bool,
        request: &RunRequest,
    ) -> Result<Option<u32>, KeeperError> {
        let (instance, request) = (instance.to_owned(), request.clone());
        let request = Request::BeginRun { instance, run, until_ns, is_check, request };
        match self.ask(&request, &[])?.0 {
            Answer::Started { pid } => Ok(Some(pid)),
            Answer::Begun => Ok(None),
            _ => Err(self.confused()),
        }
    }

    /// Lets runs be held until that moment; says how all stand.
    pub fn hold_runs(
        &self,
        permits: Vec<Permit>,
        until_ns: u64,
        presence: Option<PresenceWatch>,
    ) -> Result<Vec<RunStanding>, KeeperError> {
        match self.ask(&Request::HoldRuns { permits, until_ns, presence }, &[])?.0 {
            Answer::Runs(standings) => Ok(standings),
            _ => Err(self.confused()),
        }
    }

    /// Nothing of an instance up to this epoch begins any more. What runs of it goes on.
    pub fn close_run(&self, instance: &str, epoch: u64) -> Result<(), KeeperError> {
        self.done(&Request::CloseRun { instance: instance.to_owned(), epoch }, &[])
    }

    /// For the first process of a run; SIGKILL for all that it started.
    pub fn signal_run(&self, instance: &str, run: Run, signal: i32) -> Result<(), KeeperError> {
        self.done(&Request::SignalRun { instance: instance.to_owned(), run, signal }, &[])
    }

    fn start(&self, request: &Request, stream: Option<&StreamEnd<'_>>) -> Result<u32, KeeperError> {
        let fds: Vec<BorrowedFd<'_>> = stream.into_iter().map(|stream| stream.socket).collect();
        match self.ask(request, &fds)?.0 {
            Answer::Started { pid } => Ok(pid),
            _ => Err(self.confused()),
        }
    }

    fn done(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), KeeperError> {
        match self.ask(request, fds)?.0 {
            Answer::Done => Ok(()),
            _ => Err(self.confused()),
        }
    }

    fn descriptor(&self, request: &Request) -> Result<OwnedFd, KeeperError> {
        let (answer, mut fds) = self.ask(request, &[])?;
        match (answer, fds.pop()) {
            (Answer::Descriptor, Some(fd)) => Ok(fd),
            _ => Err(self.confused()),
        }
    }

    fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(Answer, Vec<OwnedFd>), KeeperError> {
        self.ask_within(request, fds, ANSWER_LIMIT)
    }

    fn ask_within(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        limit: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), KeeperError> {
        let until = Instant::now() + limit;
        // A caller that panicked between sending and receiving left an answer behind: such a connection is unusable.
        let Ok(socket) = self.socket.lock() else { return Err(self.confused()) };
        let outcome = packet::send(socket.as_fd(), request, fds, until)
            .and_then(|()| packet::receive_until::<Answer>(socket.as_fd(), until));
        match outcome {
            Ok((Answer::Refused(refusal), _)) => Err(refusal.into()),
            Ok((Answer::Failed(body), _)) => Err(KeeperError::Told(body)),
            Ok(answer) => Ok(answer),
            Err(PacketError::Closed) => Err(KeeperError::Gone { path: self.path.clone() }),
            Err(PacketError::TimedOut) => {
                // The answer may still come and would be taken for the next one's.
                let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
                Err(KeeperError::TimedOut { path: self.path.clone(), limit })
            }
            Err(cause) => Err(KeeperError::Conversation { path: self.path.clone(), cause }),
        }
    }

    fn confused(&self) -> KeeperError {
        KeeperError::Confused { path: self.path.clone() }
    }
}
