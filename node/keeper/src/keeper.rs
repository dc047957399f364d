//! The keeper itself: making the container's share, the loop, and what each event does.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use sandbox::fusemount::{Connection, Covers, FuseMount, FuseMountError, Namespaces};
use sandbox::rootfs::{Opt, RootFs, RootFsError, View};
use sandbox::userns::UsernsError;
use seccompiler::BpfProgram;
use service_core::restart::RunEnd;
use sys::without::{Feature, without};

use crate::callgate::CallGate;
use crate::init::{Init, InitError, Order};
use crate::jobs::{self, JobDoor};
use crate::launch::{PorterStand, Report};
use crate::list;
use crate::log::Total;
use crate::looks::LookDoor;
use crate::memory::MemoryDoor;
use crate::packet::{self, PacketError};
use crate::placeholders::Placeholders;
use crate::poll::{Interest, Poll, Ready, Source, Watched};
use crate::program::{HungUp, Life, Program};
use crate::protocol::{Answer, CONNECTIONS_MAX, FuseOptions, KeeperOptions, Request};
use crate::refusal::{Refusal, Task};
use crate::runs::Runs;

/// Ended programs that are remembered, as the contract says.
pub const ENDED_MAX: usize = 1000;
/// Programs that run at a time, of those started by `run`.
pub const PROGRAMS_MAX: usize = 4096;
/// Connections that wait to be accepted; who finds no room waits. The kernel's own limit (somaxconn) is 4,096.
const BACKLOG: i32 = 1024;
/// A process table is read in milliseconds; a helper that takes this long waits for a file tree that does not answer.
const LIST_LIMIT: Duration = Duration::from_secs(10);
/// Helpers that read the process table at a time, those that hang and cannot be killed among them. Who asks beyond them
/// waits for one to end, and occupies a connection meanwhile: half of those stay for requests that are answered at
/// once.
const LIST_HELPERS_MAX: usize = CONNECTIONS_MAX / 2;
/// How often a table is read in which a program is missing.
const LIST_ATTEMPTS: u32 = 5;
/// Status of a helper that read such a table.
const LOOK_AGAIN: i32 = 75;
/// When the helpers take this long nobody waits for one: they hang. A node's daemon waits 5 s for the whole answer.
const LIST_PATIENCE: Duration = Duration::from_secs(3);
const _: () = assert!(LIST_PATIENCE.as_secs() < LIST_LIMIT.as_secs());
/// While stopping: how often the process table is looked at. Orphans have no descriptor that says when they end.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// Between SIGTERM and SIGKILL when the keeper itself gets SIGTERM.
const OWN_GRACE: Duration = Duration::from_secs(10);
/// Every process of a killed namespace is gone within this, unless it is stuck in the kernel.
const END_LIMIT: Duration = Duration::from_secs(10);
/// A killed program that is still there after this waits for a gate that does not answer: the file tree is cut off.
const CUT_OFF: Duration = Duration::from_secs(3);
const _: () = assert!(CUT_OFF.as_secs() < END_LIMIT.as_secs());
/// As a shell shows SIGKILL.
const KILLED: u8 = 137;
const OUT_OF_MEMORY: &str = "out of memory";
pub const FUSE_KEY: &str = "fuse";
pub const FUSE_PLACE: &str = "/dc";
const PROC_PLACE: &str = "/proc";
/// Linux that knows `FUSE_NOTIFY_RESEND`.
const RESEND_SINCE: (u32, u32) = (6, 9);
const OWN_PROC: &str = "/proc shows the processes of this node alone, not of all (Linux 6.9 shows all)";
/// Files there are short.
const PROC_READ_BYTES: u32 = 128 << 10;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("pid base {base} and span {span} are no node's range")]
    BadRange { base: u32, span: u32 },
    #[error("could not make the container's user namespace")]
    UserNamespace(#[from] UsernsError),
    #[error("could not make the container's init")]
    Init(#[from] InitError),
    #[error("could not make the container's root")]
    Root(#[from] RootFsError),
    #[error("could not use the container's control group")]
    Cgroup(#[from] sandbox::cgroup::CgroupError),
    #[error("could not {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not mount what /proc shows")]
    Proc(#[source] FuseMountError),
    #[error("could not wait for events")]
    Poll(#[source] io::Error),
}

/// Where the keeper is in its life.
#[derive(Debug)]
pub enum Phase {
    Serving,
    /// SIGTERM was sent; at the deadline init is killed.
    Stopping {
        deadline: Instant,
        askers: Vec<u32>,
    },
    /// Init was killed and is waited for.
    Ending {
        /// When the file tree is cut off; it is once.
        cut_off: Option<Instant>,
        deadline: Instant,
        askers: Vec<u32>,
    },
    /// Init is gone, and with it everything.
    Over {
        askers: Vec<u32>,
    },
}

pub struct Conversation {
    pub socket: Watched,
    /// A request is being worked on; the next one waits.
    pub busy: bool,
    /// What is spoken on it. None: it has not greeted.
    pub version: Option<u8>,
}

/// A process that reads the process table.
struct Helper {
    pidfd: Watched,
    /// Whom it answers; nobody waits for one that took too long.
    asker: Option<u32>,
    begun: Instant,
    attempt: u32,
}

impl Helper {
    /// When it is given up.
    fn limit(&self) -> Instant {
        self.begun + LIST_LIMIT
    }
}

pub struct Keeper {
    pub options: KeeperOptions,
    pub dc_name: String,
    pub poll: Poll,
    listener: Watched,
    signals: Watched,
    pub connections: BTreeMap<u32, Conversation>,
    pub programs: BTreeMap<u32, Program>,
    pub runs: Runs,
    pub memory: MemoryDoor,
    pub placeholders: Placeholders,
    pub looks: LookDoor,
    /// To the file gate.
    pub deaths: Option<Watched>,
    helpers: BTreeMap<u32, Helper>,
    /// Who waits for a helper to end, to get one of its own; at most as many as there are connections.
    list_askers: VecDeque<u32>,
    pub stored: BTreeMap<String, OwnedFd>,
    pub init: Init,
    init_end: Watched,
    pub proc_dir: OwnedFd,
    pub ptmx: OwnedFd,
    pub members: Vec<OwnedFd>,
    /// Of the host's system directories.
    pub views: Vec<View>,
    pub filter: BpfProgram,
    /// Absent where calls to other nodes are not answered: of a container that has no others.
    pub call_gate: Option<CallGate>,
    /// Likewise.
    pub job_door: Option<JobDoor>,
    /// Of far ends, while there are jobs.
    pub porters: Option<PorterStand>,
    pub degraded: Vec<String>,
    pub phase: Phase,
    pub fuse: Option<Connection>,
    /// Of `/proc`, where it shows all nodes.
    pub proc_fuse: Option<(OwnedFd, Connection)>,
    pub(crate) log_bytes: Total,
    /// Kills for want of memory that some program's end was ascribed to.
    oom_told: u64,
    next_id: u32,
}

fn file_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |cause| BuildError::File { what, path, cause }
}

impl Keeper {
    /// Makes the namespaces, the mount tree, init and the control socket.
    pub fn build(mut options: KeeperOptions, dc_name: String) -> Result<Keeper, BuildError> {
        let (base, span) = (options.pid_base, options.pid_span);
        if base < 300 || span < 64 || base.checked_add(span).is_none_or(|end| end > 4_194_304) {
            return Err(BuildError::BadRange { base, span });
        }
        let signals = sys::signals::open(&[libc::SIGTERM, libc::SIGINT]).map_err(BuildError::Poll)?;
        let members = options.cgroup.as_ref().map(|group| group.member_files()).transpose()?.unwrap_or_default();
        let user_namespace = sandbox::userns::create(options.uid_base)?;
        let init = Init::start(&user_namespace)?;
        let own = options.spans.then(|| crate::orders::seat_of(base)).flatten();
        let (call_gate, orders) = match own {
            Some(_) => {
                let (ours, theirs) = sys::seqpacket::pair().map_err(BuildError::Poll)?;
                let bytes = proc_core::journal::WORDS as u64 * 8;
                (Some(CallGate::new(ours, bytes).map_err(BuildError::Poll)?), Some(theirs))
            }
            None => (None, None),
        };
        let (mut on, mut job_door) = (None, None);
        if let Some(dir) = &options.ipc_dir {
            on = Some(jobs::prepare_on(dir).map_err(file_error("prepare", dir))?);
            job_door = own.map(|_| JobDoor::new(dir).map_err(file_error("listen in", dir))).transpose()?;
        }
        let asked_to_show = options.shows_all && call_gate.is_some();
        options.shows_all = asked_to_show && asks_again();
        let mut degraded = settle(&options, &init, &user_namespace, on.as_deref(), orders)?;
        if asked_to_show && !options.shows_all {
            degraded.push(OWN_PROC.to_owned());
        }
        let inside = PathBuf::from(format!("/proc/{}/root", init.pid));
        let open_inside = |path: &str, flags: OFlags| {
            let path = inside.join(path);
            open(&path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|cause| file_error("open", &path)(cause.into()))
        };
        let proc_dir = open_inside("proc", OFlags::DIRECTORY | OFlags::RDONLY)?;
        let ptmx = open_inside("dev/pts/ptmx", OFlags::PATH)?;
        make_private(&options.log_dir).map_err(file_error("make", &options.log_dir))?;
        let poll = Poll::new().map_err(BuildError::Poll)?;
        let listener = listen(&options.control)?;
        let init_end = init.pidfd.try_clone().map_err(BuildError::Poll)?;
        let watch = |fd, source| poll.watch(fd, source, Interest::Read).map_err(BuildError::Poll);
        let oom_told = oom_kills(&options);
        let mut keeper = Keeper {
            listener: watch(listener, Source::Listener)?,
            signals: watch(signals, Source::Signals)?,
            init_end: watch(init_end, Source::Init)?,
            options,
            dc_name,
            connections: BTreeMap::new(),
            programs: BTreeMap::new(),
            runs: Runs::default(),
            memory: MemoryDoor::default(),
            placeholders: Placeholders::default(),
            looks: LookDoor::default(),
            deaths: None,
            helpers: BTreeMap::new(),
            list_askers: VecDeque::new(),
            stored: BTreeMap::new(),
            init,
            proc_dir,
            ptmx,
            members,
            views: View::all(&inside),
            filter: crate::seccomp::program(own),
            call_gate,
            job_door,
            porters: None,
            degraded,
            phase: Phase::Serving,
            fuse: None,
            proc_fuse: None,
            log_bytes: Total::default(),
            oom_told,
            next_id: 0,
            poll,
        };
        keeper.cover_proc()?;
        keeper.options.cgroup.iter().for_each(sandbox::cgroup::Cgroup::sweep_runs);
        keeper.remember_earlier();
        Ok(keeper)
    }

    /// Until everything of the container ended here. Gives whether that was asked for.
    pub fn serve(mut self) -> io::Result<Asked> {
        loop {
            let ready = self.poll.wait(self.pause())?;
            for event in ready {
                self.handle(event);
            }
            self.proceed();
            self.keep_logs_short();
            self.abandon_late_launches();
            self.look_after_runs();
            self.abandon_late_readers();
            self.abandon_late_helpers();
            self.lose_late_clients();
            self.dismiss_idle_porters();
            self.serve_list_askers();
            self.admit();
            if let Phase::Over { askers } = &self.phase {
                let asked = if askers.is_empty() { Asked::No } else { Asked::Yes };
                let askers = askers.clone();
                self.clean_up();
                askers.into_iter().for_each(|asker| self.answer(asker, &Answer::Done, &[]));
                return Ok(asked);
            }
        }
    }

    fn handle(&mut self, event: Ready) {
        match event.source {
            Source::Listener => self.accept(),
            Source::Signals => {
                let _ = sys::signals::next(&self.signals);
                self.stop(OWN_GRACE, None);
            }
            Source::Init => self.bury_init(),
            Source::Connection(id) => self.converse(id),
            Source::Helper(id) => self.bury_helper(id),
            Source::Report(id) => self.take_report(id),
            Source::End(id) => self.bury(id),
            Source::CallGate => self.hear_call_gate(),
            Source::Calls(number) => self.forget_listener(number),
            Source::Jobs => self.hear_jobs(),
            Source::Memory => self.hear_memory(),
            Source::Reader(id) => self.bury_reader(id),
            Source::Looks => self.hear_looks(),
            Source::Looker(id) => self.bury_looker(id),
            Source::Placeholder(process) => self.bury_placeholder(process),
            Source::Deaths => self.hear_deaths(),
            Source::Output(id, _) | Source::Input(id) => self.with_program(id, Program::pump),
            Source::Client(id, number) => {
                let hung_up = if event.hung_up { HungUp::Yes } else { HungUp::No };
                self.with_program(id, |program| program.hear(number, hung_up));
            }
        }
    }

    fn with_program(&mut self, id: u32, act: impl FnOnce(&mut Program)) {
        if let Some(program) = self.programs.get_mut(&id) {
            act(program);
        }
    }

    /// Numbers for programs, clients, connections and helpers.
    pub fn next_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Who comes when there are too many waits in the kernel until there is room.
    fn admit(&mut self) {
        let has_room = self.connections.len() < CONNECTIONS_MAX;
        let _ = self.listener.set(if has_room { Interest::Read } else { Interest::Nothing });
    }

    fn accept(&mut self) {
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        let Ok(socket) = sys::seqpacket::accept(&self.listener) else { return };
        // The socket file is mode 0600; this is the second lock.
        if !sys::seqpacket::peer(&socket).is_ok_and(|peer| peer.uid == 0) {
            return;
        }
        let id = self.next_id();
        if let Ok(socket) = self.poll.watch(socket, Source::Connection(id), Interest::Read) {
            self.connections.insert(id, Conversation { socket, busy: false, version: None });
        }
    }

    /// Takes requests of a connection until one has to be waited for.
    fn converse(&mut self, id: u32) {
        while let Some(connection) = self.connections.get(&id).filter(|connection| !connection.busy) {
            match packet::receive_now::<Request>(connection.socket.as_fd()) {
                Ok(Some((request, fds))) => self.work(id, request, fds),
                Ok(None) => return,
                Err(PacketError::Malformed(cause)) => {
                    tracing::warn!(%cause, "a request is not what this protocol knows");
                    self.connections.remove(&id);
                }
                Err(_) => {
                    self.connections.remove(&id);
                }
            }
        }
    }

    /// A request is under way that some later event will answer.
    pub fn set_busy(&mut self, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.busy = true;
            let _ = connection.socket.set(Interest::Nothing);
        }
    }

    /// Answers; a connection whose other end does not read its answers is closed.
    pub fn answer(&mut self, id: u32, answer: &Answer, fds: &[BorrowedFd<'_>]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if packet::send_now(connection.socket.as_fd(), answer, fds).is_err() {
            self.connections.remove(&id);
            return;
        }
        self.release(id);
    }

    fn release(&mut self, id: u32) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.busy = false;
            let _ = connection.socket.set(Interest::Read);
        }
    }

    /// The process table, as soon as a helper is free.
    pub fn list(&mut self, asker: u32) {
        self.set_busy(asker);
        self.list_askers.push_back(asker);
        self.serve_list_askers();
    }

    /// Gives helpers to those who wait for one, or says that there will be none.
    fn serve_list_askers(&mut self) {
        while self.helpers.len() < LIST_HELPERS_MAX {
            let Some(asker) = self.list_askers.pop_front() else { return };
            self.start_list(asker, 1);
        }
        if self.lists_hang_from().is_some_and(|hanging| hanging <= Instant::now()) {
            for asker in std::mem::take(&mut self.list_askers) {
                self.answer(asker, &Answer::Refused(Refusal::ListLate), &[]);
            }
        }
    }

    /// From when on the process table is taken for one that cannot be read: even the youngest helper takes long.
    fn lists_hang_from(&self) -> Option<Instant> {
        self.helpers.values().map(|helper| helper.begun + LIST_PATIENCE).max()
    }

    /// By a child that answers the connection itself. A program that ends after the child was made and before it reads
    /// is neither in `/proc` nor among those that it knows to have ended: then another child looks.
    fn start_list(&mut self, asker: u32, attempt: u32) {
        use sys::child::{Forked, Parentage, exit_now, fork};
        let ended = self.ended_programs();
        let known = self.known_programs();
        let Some(connection) = self.connections.get(&asker) else { return };
        match fork(Parentage::Mine) {
            Ok(Forked::Child) => {
                // It may wait for a page from the file tree, and must not keep the tree's connection open.
                if sys::child::close_all_but(&[self.proc_dir.as_fd(), connection.socket.as_fd()]).is_err() {
                    exit_now(1);
                }
                let options = &self.options;
                let mut all = list::read(self.proc_dir.as_fd(), &options.node, options.uid_base, &known);
                if attempt < LIST_ATTEMPTS && !list::has_all(&all, &known) {
                    exit_now(LOOK_AGAIN);
                }
                all.extend(ended);
                let sent = packet::send_now(connection.socket.as_fd(), &Answer::Processes(all), &[]);
                exit_now(i32::from(sent.is_err()))
            }
            Ok(Forked::Parent { pidfd, .. }) => {
                let id = self.next_id();
                match self.poll.watch(pidfd, Source::Helper(id), Interest::Read) {
                    Ok(pidfd) => {
                        self.helpers.insert(id, Helper { pidfd, asker: Some(asker), begun: Instant::now(), attempt });
                    }
                    // It answers all the same.
                    Err(_) => self.release(asker),
                }
            }
            Err(error) => self.answer(asker, &Answer::Refused(Task::ReadTable.failed()(error)), &[]),
        }
    }

    fn bury_helper(&mut self, id: u32) {
        let Some(helper) = self.helpers.remove(&id) else { return };
        let status = waitid(WaitId::PidFd(helper.pidfd.as_fd()), WaitIdOptions::EXITED);
        let Some(asker) = helper.asker else { return };
        match status.ok().flatten().and_then(|status| status.exit_status()) {
            Some(0) => self.release(asker),
            Some(LOOK_AGAIN) => self.start_list(asker, helper.attempt + 1),
            _ => {
                self.connections.remove(&asker);
            }
        }
    }

    /// Helpers that hang give their places back. The kernel may not let them end, so only their askers are told.
    fn abandon_late_helpers(&mut self) {
        let now = Instant::now();
        let late = |helper: &Helper| helper.asker.is_some() && now >= helper.limit();
        let askers: Vec<u32> = self
            .helpers
            .values_mut()
            .filter(|helper| late(helper))
            .filter_map(|helper| {
                let _ = sys::child::send_signal(&helper.pidfd, libc::SIGKILL);
                helper.asker.take()
            })
            .collect();
        for asker in askers {
            let Some(connection) = self.connections.get(&asker) else { continue };
            let _ = packet::send_now(connection.socket.as_fd(), &Answer::Refused(Refusal::ListLate), &[]);
            // The helper still holds it, and an answer that comes late would be taken for another one's.
            let _ = rustix::net::shutdown(connection.socket.as_fd(), rustix::net::Shutdown::Both);
            self.connections.remove(&asker);
        }
    }

    fn take_report(&mut self, id: u32) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some((pipe, bytes)) = &mut program.report else { return };
        let mut buffer = [0; 64];
        let ended = loop {
            match rustix::io::read(pipe.as_fd(), &mut buffer) {
                Ok(0) => break true,
                Ok(got) if bytes.len() < 64 => bytes.extend_from_slice(buffer.get(..got).unwrap_or_default()),
                Err(rustix::io::Errno::INTR) => (),
                Err(rustix::io::Errno::AGAIN) => break false,
                _ => break true,
            }
        };
        let report = Report::parse(bytes);
        match (report, ended) {
            (Report::Pid(pid, user), true) => {
                program.uid = user.unwrap_or(program.uid);
                self.executed(id, pid);
            }
            (Report::Failed(failure), _) => {
                self.refuse_program(id, failure.into());
            }
            (Report::Nothing, true) => {
                let cause = io::Error::from(io::ErrorKind::UnexpectedEof);
                self.refuse_program(id, Task::StartProgram.failed()(cause));
            }
            _ => (),
        }
    }

    /// The program runs: tell who asked, let output and input flow.
    fn executed(&mut self, id: u32, pid: u32) {
        self.forget_namesake(pid);
        let Some(program) = self.programs.get_mut(&id) else { return };
        if program.is_recorded() && !program.request.unlogged {
            let log = crate::log::Log::create(&self.options.log_dir, pid, &self.log_bytes);
            program.log = log.inspect_err(|cause| tracing::warn!(%cause, pid, "a program has no log")).ok();
        }
        program.report = None;
        let trapped = program.trapped.take();
        program.pid = pid;
        program.life = Life::Running;
        for client in &mut program.clients {
            client.push(mgmt_api::stream::Kind::Started, &pid.to_le_bytes());
        }
        let (asker, job, instance) = (program.asker.take(), program.job, program.instance.clone());
        program.hear_all();
        program.pump();
        self.keep_record(id);
        if let Some(trapped) = trapped {
            self.take_listener(&trapped);
        }
        if let Some(instance) = instance {
            self.run_executed(&instance, pid);
        }
        if let Some(asker) = asker {
            self.answer(asker, &Answer::Started { pid }, &[]);
        }
        if let Some(ticket) = job {
            self.answer_job(ticket, 0);
        }
    }

    /// PIDs come again; the record of an ended program gives way.
    fn forget_namesake(&mut self, pid: u32) {
        let namesake = |program: &&Program| program.pid == pid && program.life.is_over();
        let namesakes: Vec<u32> = self.programs.values().filter(namesake).map(|program| program.id).collect();
        namesakes.into_iter().for_each(|id| self.forget(id));
    }

    /// The program never ran. Its process says so a moment before it ends, so it is told only when that is buried: who
    /// hears it finds nothing of it in the process table.
    fn refuse_program(&mut self, id: u32, refusal: Refusal) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        program.report = None;
        program.life = Life::Refused;
        program.refusal = Some(refusal);
    }

    /// Tells who asked, if it was not told before.
    fn tell_refused(&mut self, id: u32) {
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(refusal) = program.refusal.take() else { return };
        // The daemon that asked has the client's socket too, and says the last word.
        program.clients.clear();
        if let Some(ticket) = program.job {
            self.answer_job(ticket, jobs::errno_of(&refusal));
        } else if let Some(asker) = program.asker.take() {
            self.answer(asker, &Answer::Refused(refusal), &[]);
        }
    }

    fn bury(&mut self, id: u32) {
        // The report may be ready in the same round, and it says whether there was a program at all.
        self.take_report(id);
        let Some(program) = self.programs.get_mut(&id) else { return };
        let Some(pidfd) = program.pidfd.take() else { return };
        if matches!(program.life, Life::Refused | Life::Abandoned) {
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
            if let Some(instance) = program.instance.clone() {
                self.run_ended(&instance, id, RunEnd::NotStarted);
            }
            self.tell_refused(id);
            self.forget(id);
            return;
        }
        let status = match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)),
            _ => None,
        };
        let status = status.and_then(|status| u8::try_from(status).ok()).unwrap_or(255);
        if status == KILLED {
            let kills = oom_kills(&self.options);
            // Of a kill before it began it was not the victim, nor of one that explained another end.
            if kills > self.oom_told.max(program.oom_before) {
                self.oom_told = self.oom_told.max(program.oom_before) + 1;
                program.explain(OUT_OF_MEMORY);
            }
        }
        if let Some((signal, by)) = program.asked_to.take()
            && program.cause.is_none()
            && i32::from(status) == 128 + signal
        {
            program.cause = Some(format!("signal {signal} of {by}"));
        }
        program.life = Life::Ended(status);
        program.pump();
        let is_recorded = program.is_recorded();
        if let Some(instance) = program.instance.clone() {
            self.run_ended(&instance, id, RunEnd::Exit(status));
        }
        if !is_recorded {
            return self.forget(id);
        }
        self.keep_record(id);
        self.forget_oldest();
    }

    pub fn running(&self) -> usize {
        self.programs.values().filter(|program| !program.life.is_over()).count()
    }

    /// Begins to stop; one who asks later joins those who wait.
    pub fn stop(&mut self, grace: Duration, asker: Option<u32>) {
        if let Some(asker) = asker {
            self.set_busy(asker);
        }
        match &mut self.phase {
            Phase::Serving => {
                for pid in list::pids(self.proc_dir.as_fd()) {
                    if let Ok(process) = list::open(self.proc_dir.as_fd(), pid) {
                        let _ = sys::child::send_signal(&process, libc::SIGTERM);
                        // A stopped process would not hear it.
                        let _ = sys::child::send_signal(&process, libc::SIGCONT);
                    }
                }
                let deadline = Instant::now() + grace;
                self.phase = Phase::Stopping { deadline, askers: asker.into_iter().collect() };
            }
            Phase::Stopping { deadline, askers } => {
                *deadline = (*deadline).min(Instant::now() + grace);
                askers.extend(asker);
            }
            Phase::Ending { askers, .. } | Phase::Over { askers } => askers.extend(asker),
        }
    }

    /// How long nothing needs to be looked at.
    fn pause(&self) -> Option<Duration> {
        let now = Instant::now();
        let phase = match &self.phase {
            Phase::Serving | Phase::Over { .. } => None,
            Phase::Stopping { deadline, .. } => Some((*deadline).min(now + STOP_LOOK)),
            Phase::Ending { deadline, cut_off, .. } => Some(cut_off.unwrap_or(*deadline)),
        };
        let refused = self.lists_hang_from().filter(|_| !self.list_askers.is_empty());
        let due = self
            .programs
            .values()
            .filter(|program| program.is_awaited())
            .map(|program| program.launch_limit)
            .chain(self.helpers.values().filter(|helper| helper.asker.is_some()).map(Helper::limit))
            .chain(refused)
            .chain(self.runs.due())
            .chain(self.memory.due())
            .chain(self.porters.as_ref().map(PorterStand::until))
            .chain(self.programs.values().filter_map(Program::awaits_client_until))
            .chain(phase)
            .min();
        due.map(|due| due.saturating_duration_since(now))
    }

    /// Moves a stop forward.
    fn proceed(&mut self) {
        let now = Instant::now();
        match &mut self.phase {
            Phase::Stopping { deadline, askers }
                if (now >= *deadline || list::pids(self.proc_dir.as_fd()).is_empty()) =>
            {
                let askers = std::mem::take(askers);
                let _ = sys::child::send_signal(&self.init.pidfd, libc::SIGKILL);
                self.phase = Phase::Ending { cut_off: Some(now + CUT_OFF), deadline: now + END_LIMIT, askers };
            }
            Phase::Ending { cut_off, .. } if cut_off.is_some_and(|limit| now >= limit) => {
                *cut_off = None;
                if self.somebody_waits_for_the_gate() {
                    tracing::warn!("killed programs do not end: cutting the file tree off");
                    self.cut_off();
                }
            }
            Phase::Ending { deadline, askers, .. } if now >= *deadline => {
                tracing::error!("processes of the container are stuck in the kernel; they go when it lets them");
                let askers = std::mem::take(askers);
                self.phase = Phase::Over { askers };
            }
            _ => (),
        }
    }

    /// When nobody does, cutting off frees nobody, and what is not written yet would be lost for nothing.
    fn somebody_waits_for_the_gate(&self) -> bool {
        self.connections_of_gates().any(|connection| connection.waiting().is_none_or(|requests| requests > 0))
    }

    fn connections_of_gates(&self) -> impl Iterator<Item = &Connection> {
        self.fuse.iter().chain(self.proc_fuse.as_ref().map(|(_, connection)| connection))
    }

    /// Lets those go who wait for the gate.
    fn cut_off(&self) {
        for error in self.connections_of_gates().filter_map(|connection| connection.abort().err()) {
            tracing::error!(error = sandbox::helper::chain(&error), "a file system of a gate stays");
        }
    }

    /// A program that hangs before exec, on a file tree that does not answer, has nobody who would end it.
    fn abandon_late_launches(&mut self) {
        let now = Instant::now();
        let late = |program: &&Program| program.is_awaited() && now >= program.launch_limit;
        let late: Vec<u32> = self.programs.values().filter(late).map(|program| program.id).collect();
        for id in late {
            let Some(program) = self.programs.get_mut(&id) else { continue };
            if let Some(pidfd) = &program.pidfd {
                let _ = sys::child::send_signal(pidfd, libc::SIGKILL);
            }
            program.life = Life::Abandoned;
            program.report = None;
            let limit_ms = self.options.launch_limit().as_millis() as u64;
            program.refusal.get_or_insert(Refusal::LaunchLate { limit_ms });
            self.tell_refused(id);
        }
    }

    fn lose_late_clients(&mut self) {
        let now = Instant::now();
        let is_late = |program: &&mut Program| program.awaits_client_until().is_some_and(|limit| now >= limit);
        self.programs.values_mut().filter(is_late).for_each(|program| program.lose_late_clients(now));
    }

    fn bury_init(&mut self) {
        let _ = self.init_end.set(Interest::Nothing);
        let _ = waitid(WaitId::PidFd(self.init.pidfd.as_fd()), WaitIdOptions::EXITED);
        let askers = match &mut self.phase {
            Phase::Stopping { askers, .. } | Phase::Ending { askers, .. } | Phase::Over { askers } => {
                std::mem::take(askers)
            }
            Phase::Serving => {
                tracing::error!("the container's init died");
                Vec::new()
            }
        };
        self.phase = Phase::Over { askers };
    }

    /// Last words to clients, then the files.
    /// What was kept of programs stays.
    fn clean_up(&mut self) {
        let ids: Vec<u32> = self.programs.keys().copied().collect();
        for id in ids {
            self.bury_ended(id);
            self.keep_record(id);
        }
        self.programs.clear();
        let _ = std::fs::remove_file(&self.options.control);
    }

    fn bury_ended(&mut self, id: u32) {
        let has_end = self.programs.get(&id).is_some_and(|program| program.pidfd.is_some());
        if has_end {
            self.bury(id);
        }
    }

    /// Covers `/proc`. Nobody looks there before a call gate answers.
    fn cover_proc(&mut self) -> Result<(), BuildError> {
        if !self.options.shows_all {
            return Ok(());
        }
        let fds = self.namespaces().map_err(BuildError::Poll)?;
        let [user, mount, ..] = fds.as_slice() else { return Ok(()) };
        let process = Some(self.init.pidfd.as_fd());
        let fuse = FuseMount {
            place: PROC_PLACE,
            max_read_bytes: PROC_READ_BYTES,
            read_ahead_kib: PROC_READ_BYTES >> 10,
            covers: Covers::What,
        };
        let mounted = fuse.mount(None, Namespaces { user: user.as_fd(), mount: mount.as_fd(), process });
        self.proc_fuse = Some(mounted.map_err(BuildError::Proc)?);
        Ok(())
    }

    /// Mounts the file tree; the descriptor is stored too.
    pub fn mount_fuse(&mut self, options: &FuseOptions) -> Result<OwnedFd, Refusal> {
        let fuse = FuseMount {
            place: FUSE_PLACE,
            max_read_bytes: options.max_read_bytes,
            read_ahead_kib: options.read_ahead_kib,
            covers: Covers::Nothing,
        };
        let before = self.fuse.as_ref();
        let (fd, connection) = self.with_mount(|namespaces| fuse.mount(before, namespaces), Task::MountTree)?;
        self.fuse = Some(connection);
        let copy = fd.try_clone().map_err(Task::MountTree.failed())?;
        self.open_deaths().map_err(Task::MountTree.failed())?;
        self.stored.insert(FUSE_KEY.to_owned(), copy);
        Ok(fd)
    }

    pub fn unmount_fuse(&mut self) -> Result<(), Refusal> {
        let connection = self.fuse.as_ref();
        self.with_mount(|namespaces| FuseMount::unmount(FUSE_PLACE, connection, namespaces), Task::UnmountTree)?;
        // Detached only: programs that are in it, and wait for a gate that does not answer, must get to know.
        if let Some(Err(error)) = self.fuse.as_ref().map(Connection::abort) {
            tracing::error!(error = sandbox::helper::chain(&error), "the file tree stays");
        }
        self.stored.remove(FUSE_KEY);
        self.close_deaths();
        self.fuse = None;
        Ok(())
    }

    fn with_mount<T>(
        &self,
        work: impl FnOnce(Namespaces<'_>) -> Result<T, FuseMountError>,
        task: Task,
    ) -> Result<T, Refusal> {
        let fds = self.namespaces().map_err(task.failed())?;
        let [user, mount, ..] = fds.as_slice() else {
            return Err(task.failed()(io::Error::from(io::ErrorKind::NotFound)));
        };
        work(Namespaces { user: user.as_fd(), mount: mount.as_fd(), process: None }).map_err(task.failed())
    }

    /// user, mount, pid, net, ipc, uts
    pub fn namespaces(&self) -> io::Result<Vec<OwnedFd>> {
        let dir = PathBuf::from(format!("/proc/{}/ns", self.init.pid));
        let names = ["user", "mnt", "pid", "net", "ipc", "uts"];
        let mut fds =
            names.iter().map(|name| File::open(dir.join(name)).map(OwnedFd::from)).collect::<io::Result<Vec<_>>>()?;
        fds.push(self.init.pidfd.try_clone()?);
        Ok(fds)
    }
}

/// Whether the kernel asks the next gate what one that was killed had read; else whoever waited would wait for ever.
fn asks_again() -> bool {
    if without(Feature::FuseResend) {
        return false;
    }
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(RESEND_SINCE.0), Some(RESEND_SINCE.1))
}

fn oom_kills(options: &KeeperOptions) -> u64 {
    options.cgroup.as_ref().and_then(sandbox::cgroup::Cgroup::oom_kills).unwrap_or(0)
}

/// Whether somebody asked the keeper to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Yes,
    No,
}

fn settle(
    options: &KeeperOptions,
    init: &Init,
    user_namespace: &OwnedFd,
    on: Option<&Path>,
    orders: Option<OwnedFd>,
) -> Result<Vec<String>, BuildError> {
    let pid = rustix::process::Pid::from_raw(init.pid as i32);
    // It must get the CPU when the container's programs want all of it: PIDs depend on it.
    if let Err(cause) = rustix::process::setpriority_process(pid, -20) {
        tracing::warn!(%cause, "the container's init has no priority");
    }
    let root = RootFs {
        user_namespace: user_namespace.as_fd(),
        uid_base: options.uid_base,
        hostname: &options.hostname,
        hosts: &options.hosts,
        ipc_dir: options.ipc_dir.as_deref(),
        on,
        volatile_bytes: options.volatile_bytes,
        with_native_proc: options.shows_all,
        terminals: options.terminals.unwrap_or(mgmt_api::Limits::TERMINALS),
        opt: if options.with_opt { Opt::Shown } else { Opt::Hidden },
        volumes: &options.volumes,
    };
    let built = root.build(init.pidfd.as_fd())?;
    let order = Order { hostname: options.hostname.clone(), pid_base: options.pid_base, pid_span: options.pid_span };
    let mut degraded = built.degraded;
    degraded.extend(init.settle(&built.mount_namespace, orders, &order)?);
    Ok(degraded)
}

/// Makes a directory that only root may look into; one that is there becomes so.
fn make_private(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))
}

fn listen(path: &Path) -> Result<OwnedFd, BuildError> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(file_error("make", dir))?;
    }
    // Nobody may connect between bind and a later chmod.
    let old = rustix::process::umask(Mode::from_raw_mode(0o177));
    let listener = sys::seqpacket::listen(path, BACKLOG).map_err(file_error("listen at", path));
    rustix::process::umask(old);
    listener
}
