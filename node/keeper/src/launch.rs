//! From a request to a running program: the chain of processes, and what the last of them does before it is the
//! program.
//!
//! ```text
//! keeper ── fork ── porter: joins the control group and all namespaces, forks a sibling, says its PID, ends
//!        └───────── program: session, terminal, root, identity, directory, filter, exec
//! ```
//!
//! The porter is needed because only children enter a pid namespace; the program is the keeper's own child, so the
//! keeper learns its exit status. Until exec the program is undumpable: nobody inside can trace it or look at the
//! memory it inherited. Of the keeper's descriptors both have only what they need, closed on exec: on the way to exec
//! the program may wait for the file tree, and must not itself be what keeps the tree's connection open.
//!
//! Reports come over a pipe that exec closes: first the program's PID inside, then, if something failed, what and why.

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mgmt_api::{Bytes, NoHex, ProgramUser, RootFs, RunRequest};
use proc_core::start::JobOwner;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Resource, Rlimit, Uid, WaitId, WaitIdOptions, chdir, setrlimit, setsid, umask, waitid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_keep_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use sandbox::rootfs::Links;
use sandbox::volumes::VolumeMount;
use seccompiler::BpfProgram;
use sys::child::{ForkError, Forked, Parentage, exec, exit_now, fork};
use sys::ns::Kinds;

use crate::refusal::{BadRun, Refusal, Stage};
use crate::restraints::{Restraints, retain_in_bounding_set};
use crate::users::Wanted;

/// Arguments and environment together; the kernel's own limit is of this order.
pub const ARGUMENT_BYTES_MAX: usize = 2 << 20;
/// Strings among them.
pub const ARGUMENTS_MAX: usize = 65_536;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/dvs/bin";
/// Descriptors a program may open before it raises its own limit; some programs close them all one by one.
const OPEN_FILES: u64 = 1024;
/// Of -1,000 to 1,000: the higher, the sooner the kernel takes a process.
const OUT_OF_MEMORY_SCORE: &str = "500";
/// Of a variable that is none: enough to recognise it.
const SHOWN_CHARS_MAX: usize = 200;
/// How long there are porters after the last job.
const STAND_FOR: Duration = Duration::from_secs(60);
/// What one is told.
const STAND_BYTES_MAX: usize = 2048;
/// The porter waits for nothing but the kernel.
const PORTER_LIMIT: Duration = Duration::from_secs(5);

/// What went wrong between the request and the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    pub stage: Stage,
    pub errno: i32,
}

impl Failure {
    fn new(stage: Stage) -> impl Fn(io::Error) -> Failure {
        move |cause| Failure { stage, errno: cause.raw_os_error().unwrap_or(libc::EIO) }
    }

    fn errno(stage: Stage) -> impl Fn(rustix::io::Errno) -> Failure {
        move |cause| Failure { stage, errno: cause.raw_os_error() }
    }
}

impl From<Failure> for Refusal {
    fn from(Failure { stage, errno }: Failure) -> Refusal {
        Refusal::Launch { stage, errno }
    }
}

/// A request that was checked and brought into the kernel's form.
#[derive(Debug)]
pub struct Plan {
    argv: Vec<CString>,
    env: Vec<CString>,
    paths: Vec<CString>,
    root: RootFs,
    workdir: Option<CString>,
    owner: Owner,
    /// Whether it gets the home of its user: nobody said another.
    takes_home: bool,
    restraints: Restraints,
}

/// As whom a program runs.
#[derive(Clone, Debug)]
enum Owner {
    User {
        uid: u32,
        gid: u32,
    },
    /// As the program's root knows it.
    Named(Wanted),
    /// As the process that asked for it, on another node.
    Job(JobOwner),
}

/// What a launch needs beside the plan; all of it is the keeper's own.
pub struct Surroundings<'a> {
    /// Whose namespaces the program shares: init, or the program of `dvs exec`.
    pub process: BorrowedFd<'a>,
    /// Files that take the process into the control group.
    pub members: &'a [OwnedFd],
    pub filter: &'a BpfProgram,
    /// Whether the filter has calls that somebody answers.
    pub trap: Trap,
    /// The most that the program may raise its limit of open files to.
    pub open_files: u64,
    /// Host volumes, which a program has in a root of its own, too.
    pub volumes: &'a [VolumeMount],
}

/// What becomes of the filter's listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trap {
    /// The keeper gets it.
    Calls,
    /// There is none.
    Nothing,
}

/// Descriptors of the program's side.
pub struct Stdio {
    pub input: OwnedFd,
    pub output: OwnedFd,
    pub error: OwnedFd,
    pub terminal: Terminal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Terminal {
    /// The three descriptors are one terminal, which becomes the controlling one.
    Controlling,
    None,
}

/// A program on its way.
#[derive(Debug)]
pub struct Launched {
    pub pidfd: OwnedFd,
    /// Four bytes of PID inside, then nothing (executed) or a [`Failure`].
    pub report: OwnedFd,
    /// Over it the listener of its filter comes, before it is executed: with [`Trap::Calls`].
    pub trapped: Option<OwnedFd>,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("could not make a process")]
    Fork(#[from] ForkError),
    #[error("could not make a pipe")]
    Pipe(#[source] io::Error),
    /// It did not even come into the container.
    #[error("the program failed early")]
    Early(Failure),
    #[error("the program vanished at once")]
    Vanished(#[source] io::Error),
    /// What holds the porter (a frozen control group) holds it against the kill too: the caller buries it when it ends.
    #[error("the container's control group or its namespaces cannot be entered")]
    Stuck(OwnedFd),
}

impl Plan {
    /// `defaults` are the keeper's `K=V`; the request's own come last and win.
    pub fn check(run: &RunRequest, hostname: &str, defaults: &[String]) -> Result<Plan, BadRun> {
        let all = |strings: &[Bytes]| -> Result<Vec<Vec<u8>>, NoHex> {
            strings.iter().map(|one| Ok(one.bytes()?.into_owned())).collect()
        };
        let no_hex = |_: NoHex| BadRun::NoHex;
        let argv = all(&run.argv).map_err(no_hex)?;
        let asked = all(&run.env).map_err(no_hex)?;
        let workdir = run.workdir.as_ref().map(Bytes::bytes).transpose().map_err(no_hex)?;
        let strings = argv.len() + asked.len();
        let bytes: usize = argv.iter().chain(&asked).map(Vec::len).sum();
        if strings > ARGUMENTS_MAX || bytes > ARGUMENT_BYTES_MAX {
            return Err(BadRun::TooLarge);
        }
        let name = argv.first().filter(|name| !name.is_empty()).ok_or(BadRun::NoProgram)?;
        if run.uid >= sandbox::userns::UIDS || run.gid >= sandbox::userns::UIDS {
            return Err(BadRun::NoSuchUser);
        }
        if workdir.as_ref().is_some_and(|dir| !dir.starts_with(b"/")) {
            return Err(BadRun::RelativeDirectory);
        }
        let root = match &run.root {
            RootFs::Host => RootFs::Host,
            RootFs::Tree(path) => RootFs::Tree(mgmt_api::in_tree(path).ok_or(BadRun::RootOutside)?),
        };
        let mut variables = Variables::default();
        variables.set("PATH", PATH);
        variables.set("HOME", if run.uid == 0 { "/root" } else { "/tmp" });
        let usual_home = variables.get(b"HOME").map(<[u8]>::to_vec);
        variables.set("HOSTNAME", hostname);
        variables.set("LANG", "C.UTF-8");
        if run.terminal.is_some() {
            variables.set("TERM", "xterm-256color");
        }
        for pair in defaults.iter().map(String::as_bytes).chain(asked.iter().map(Vec::as_slice)) {
            let mut parts = pair.splitn(2, |byte| *byte == b'=');
            let (Some(name @ [_, ..]), Some(value)) = (parts.next(), parts.next()) else {
                let shown = String::from_utf8_lossy(pair).chars().take(SHOWN_CHARS_MAX).collect();
                return Err(BadRun::BadVariable(shown));
            };
            variables.set(name, value);
        }
        let owner = match &run.user {
            None => Owner::User { uid: run.uid, gid: run.gid },
            Some(user) => match user.parse()? {
                ProgramUser::Numbers { uid, gid } => Owner::User { uid, gid },
                ProgramUser::Named(user) => Owner::Named(Wanted::parse(&user)),
            },
        };
        let takes_home = matches!(owner, Owner::Named(_)) && variables.get(b"HOME") == usual_home.as_deref();
        let path = variables.get(b"PATH").unwrap_or(PATH.as_bytes()).to_owned();
        let nul = |_| BadRun::Nul;
        Ok(Plan {
            argv: c_strings(argv.iter().cloned()).map_err(nul)?,
            env: c_strings(variables.pairs()).map_err(nul)?,
            paths: c_strings(candidates(name, &path)).map_err(nul)?,
            root,
            workdir: workdir.map(CString::new).transpose().map_err(nul)?,
            owner,
            takes_home,
            restraints: Restraints::of(run),
        })
    }

    /// For the far end of a job: with these rights, and no others. `program`: whatever the request's name leads to.
    pub fn of_job(self, program: &CStr, owner: JobOwner) -> Plan {
        Plan { paths: vec![program.to_owned()], owner: Owner::Job(owner), ..self }
    }

    /// Starts the chain of processes; returns when the program exists, before it is executed.
    pub fn launch(&self, around: &Surroundings<'_>, stdio: Stdio) -> Result<Launched, LaunchError> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|cause| LaunchError::Pipe(cause.into()));
        let ((report, say), (number, say_number)) = (pipe()?, pipe()?);
        let (trapped, hand_over) = match around.trap {
            Trap::Calls => sys::seqpacket::pair().map(|(ours, theirs)| (Some(ours), Some(theirs))),
            Trap::Nothing => Ok((None, None)),
        }
        .map_err(LaunchError::Pipe)?;
        match fork(Parentage::Mine)? {
            Forked::Child => {
                drop((report, number, trapped));
                self.porter(around, &stdio, Says { report: &say, listener: hand_over.as_ref() }, say_number)
            }
            Forked::Parent { pidfd, .. } => {
                drop((say, say_number, hand_over, stdio));
                await_program(pidfd, number, report, trapped)
            }
        }
    }

    fn porter(&self, around: &Surroundings<'_>, stdio: &Stdio, say: Says<'_>, say_number: OwnedFd) -> ! {
        let pipes: Vec<&OwnedFd> = say.all().chain([&say_number]).collect();
        let ready = keep_only(around, stdio, &pipes).and_then(|()| join_groups(around));
        self.carry(ready, around, stdio, say, say_number)
    }

    /// The last steps of the porter, which ends with them.
    fn carry(
        &self,
        ready: Result<(), Failure>,
        around: &Surroundings<'_>,
        stdio: &Stdio,
        say: Says<'_>,
        say_number: OwnedFd,
    ) -> ! {
        let failure = match ready.and_then(|()| enter(around)) {
            Ok(Forked::Child) => {
                drop(say_number);
                self.program(around, stdio, say)
            }
            Ok(Forked::Parent { pid, .. }) => {
                let told = File::from(say_number).write_all(&pid.to_ne_bytes());
                exit_now(i32::from(told.is_err()))
            }
            Err(failure) => failure,
        };
        tell(say.report, &0_u32.to_ne_bytes());
        tell_failure(say.report, failure)
    }

    fn program(&self, around: &Surroundings<'_>, stdio: &Stdio, say: Says<'_>) -> ! {
        let own = rustix::process::getpid().as_raw_nonzero().get() as u32;
        tell(say.report, &own.to_ne_bytes());
        let failure = match self.become_program(around, stdio, say) {
            Ok(never) => match never {},
            Err(failure) => failure,
        };
        tell_failure(say.report, failure)
    }

    fn become_program(
        &self,
        around: &Surroundings<'_>,
        stdio: &Stdio,
        say: Says<'_>,
    ) -> Result<std::convert::Infallible, Failure> {
        sys::child::default_signals();
        take_terminal(stdio).map_err(Failure::errno(Stage::Terminal))?;
        let kept: Vec<BorrowedFd<'_>> = say.all().map(AsFd::as_fd).collect();
        sys::child::close_all_but(&kept).map_err(Failure::new(Stage::Descriptors))?;
        let core = Rlimit { current: Some(0), maximum: None };
        let _ = setrlimit(Resource::Core, core);
        let files = rustix::process::getrlimit(Resource::Nofile);
        let most = files.maximum.map_or(around.open_files, |maximum| maximum.min(around.open_files));
        let few = Rlimit { current: Some(most.min(OPEN_FILES)), maximum: Some(most) };
        setrlimit(Resource::Nofile, few).map_err(Failure::errno(Stage::Limits))?;
        // Root inside first: the file tree knows nobody else of us, and a change of root needs its privileges.
        become_user(0, &[0]).map_err(Failure::errno(Stage::Identity))?;
        if let RootFs::Tree(path) = &self.root {
            // What the kernel calls the root of a job's deputy leads over no link; who owns the place could make one.
            let links = if matches!(self.owner, Owner::Job(_)) { Links::Refused } else { Links::Followed };
            sandbox::rootfs::enter_tree(path, links, around.volumes)
                .map_err(|error| Failure { stage: Stage::Root, errno: errno_of(&error) })?;
        }
        self.restraints.limit().map_err(Failure::errno(Stage::Limits))?;
        self.restraints.drop_capabilities().map_err(Failure::errno(Stage::Identity))?;
        umask(rustix::fs::Mode::from_raw_mode(0o022));
        let mut env = Cow::Borrowed(&self.env);
        match &self.owner {
            Owner::User { uid, gid } => become_user(*uid, &[*gid]),
            Owner::Named(wanted) => {
                let failed = |(stage, cause)| Failure::new(stage)(cause);
                let found = wanted.look_up().map_err(failed)?;
                tell(say.report, &Report::user(found.uid));
                let home = found.home.filter(|_| self.takes_home);
                if let Some(home) = home.and_then(|home| CString::new([b"HOME=", &home[..]].concat()).ok()) {
                    env.to_mut().retain(|pair| !pair.as_bytes().starts_with(b"HOME="));
                    env.to_mut().push(home);
                }
                become_user(found.uid, &found.groups)
            }
            Owner::Job(owner) => become_owner(owner),
        }
        .map_err(Failure::errno(Stage::Identity))?;
        self.enter_directory().map_err(Failure::errno(Stage::Directory))?;
        // Sets no_new_privs too.
        match say.listener {
            None => seccompiler::apply_filter(around.filter)
                .map_err(|_| Failure::new(Stage::Filter)(io::Error::last_os_error()))?,
            Some(keeper) => {
                let listener = sys::notify::install(around.filter).map_err(Failure::new(Stage::Filter))?;
                sys::seqpacket::send(keeper, &[1], &[listener.as_fd()]).map_err(Failure::new(Stage::Filter))?;
            }
        }
        Err(self.execute(&env))
    }

    fn enter_directory(&self) -> rustix::io::Result<()> {
        match (&self.workdir, &self.root) {
            (Some(dir), _) => chdir(dir.as_c_str()),
            // Where a program can write. Without the file tree it is an empty directory.
            (None, RootFs::Host) => chdir("/dc").or_else(|_| chdir("/")),
            (None, RootFs::Tree(_)) => chdir("/"),
        }
    }

    /// Tries the places in PATH as a shell does: one that is there but cannot be executed is remembered.
    fn execute(&self, env: &[CString]) -> Failure {
        let mut errno = libc::ENOENT;
        for path in &self.paths {
            match exec(path, &self.argv, env).raw_os_error() {
                // The kernel says the same of a script whose interpreter is missing.
                Some(libc::ENOENT) if rustix::fs::access(path.as_c_str(), rustix::fs::Access::EXISTS).is_ok() => {
                    return Failure { stage: Stage::Interpreter, errno: libc::ENOENT };
                }
                Some(libc::ENOENT | libc::ENOTDIR) => (),
                Some(libc::EACCES) => errno = libc::EACCES,
                other => return Failure { stage: Stage::Exec, errno: other.unwrap_or(libc::EIO) },
            }
        }
        Failure { stage: Stage::Exec, errno }
    }
}

/// When memory ends for all, programs go before what serves them; and they count for their container.
fn join_groups(around: &Surroundings<'_>) -> Result<(), Failure> {
    // When memory ends for all, programs go before what serves them. The file is the host's: inside there is
    // another /proc.
    let _ = std::fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE);
    for members in around.members {
        rustix::io::write(members, b"0").map_err(Failure::errno(Stage::Cgroup))?;
    }
    Ok(())
}

/// Only children of who joined a pid namespace are in it.
fn enter(around: &Surroundings<'_>) -> Result<Forked, Failure> {
    let all = Kinds::USER | Kinds::MOUNT | Kinds::PID | Kinds::NET | Kinds::IPC | Kinds::UTS;
    sys::ns::join(around.process, all).map_err(Failure::new(Stage::Namespaces))?;
    fork(Parentage::Sibling).map_err(|error| match error {
        ForkError::Kernel(cause) => Failure::new(Stage::Fork)(cause),
        ForkError::Threads => Failure { stage: Stage::Fork, errno: libc::EINVAL },
    })
}

fn await_program(
    porter: OwnedFd,
    number: OwnedFd,
    report: OwnedFd,
    trapped: Option<OwnedFd>,
) -> Result<Launched, LaunchError> {
    let mut bytes = [0; 4];
    if !comes_within(&number, PORTER_LIMIT) {
        let _ = sys::child::send_signal(&porter, libc::SIGKILL);
        return Err(LaunchError::Stuck(porter));
    }
    let told = File::from(number).read_exact(&mut bytes);
    let _ = waitid(WaitId::PidFd(porter.as_fd()), WaitIdOptions::EXITED);
    if told.is_err() {
        return Err(early(report));
    }
    let pid = u32::from_ne_bytes(bytes);
    // It is our child: even if it ended, its number is not given away before we have waited for it.
    let pidfd = sys::pidfd::open(pid as i32).map_err(LaunchError::Vanished)?;
    Ok(Launched { pidfd, report, trapped })
}

/// A process in the control groups, of which porters are forked: with version 1 of control groups the kernel lets who
/// joins, and meanwhile everybody who forks or ends, wait for all CPUs, which takes longer than everything else. Who is
/// forked is a member from the beginning.
#[derive(Debug)]
pub struct PorterStand {
    process: OwnedFd,
    socket: OwnedFd,
    used: Instant,
}

impl PorterStand {
    /// `plan_of`: what shall be started, from what [`PorterStand::launch`] is given.
    ///
    /// # Errors
    /// The kernel makes no process.
    pub fn prepare(
        around: &Surroundings<'_>,
        stdio: &Stdio,
        plan_of: impl Fn(&[u8]) -> Option<Plan>,
    ) -> Result<PorterStand, LaunchError> {
        let (socket, theirs) = sys::seqpacket::pair().map_err(LaunchError::Pipe)?;
        match fork(Parentage::Mine)? {
            Forked::Child => {
                drop(socket);
                let joined = keep_only(around, stdio, &[&theirs]).and_then(|()| join_groups(around));
                stand(joined, around, stdio, &theirs, plan_of)
            }
            Forked::Parent { pidfd, .. } => Ok(PorterStand { process: pidfd, socket, used: Instant::now() }),
        }
    }

    /// As long as nobody needs it.
    pub fn until(&self) -> Instant {
        self.used + STAND_FOR
    }

    /// As [`Plan::launch`]. `None`: it is gone, or held by something, and nothing was begun.
    pub fn launch(&mut self, what: &[u8], trap: Trap) -> Option<Result<Launched, LaunchError>> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC).ok();
        let ((report, say), (number, say_number)) = (pipe()?, pipe()?);
        let (trapped, hand_over) = match trap {
            Trap::Calls => sys::seqpacket::pair().ok().map(|(ours, theirs)| (Some(ours), Some(theirs)))?,
            Trap::Nothing => (None, None),
        };
        let given: Vec<&OwnedFd> = [&say, &say_number].into_iter().chain(&hand_over).collect();
        sys::seqpacket::send(&self.socket, what, &given).ok()?;
        drop((say, say_number, hand_over));
        self.used = Instant::now();
        if !comes_within(&self.socket, PORTER_LIMIT) {
            return None;
        }
        // Its child is ours.
        let porter = sys::seqpacket::receive(&self.socket, &mut [0; 8]).ok()?.descriptors.into_iter().next()?;
        Some(await_program(porter, number, report, trapped))
    }

    /// Ends it. What holds it (a frozen control group) holds it against the kill too; then it stays unburied until the
    /// keeper ends.
    pub fn dismiss(self) {
        let _ = sys::child::send_signal(&self.process, libc::SIGKILL);
        if comes_within(&self.process, Duration::from_millis(100)) {
            let _ = waitid(WaitId::PidFd(self.process.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

fn stand(
    joined: Result<(), Failure>,
    around: &Surroundings<'_>,
    stdio: &Stdio,
    socket: &OwnedFd,
    plan_of: impl Fn(&[u8]) -> Option<Plan>,
) -> ! {
    let mut packet = [0; STAND_BYTES_MAX];
    loop {
        while !comes_within(socket, STAND_FOR) {}
        let Ok(received) = sys::seqpacket::receive(socket, &mut packet) else { exit_now(1) };
        let mut given = received.descriptors.into_iter();
        // With nothing the keeper is gone.
        let (Some(report), Some(say_number)) = (given.next(), given.next()) else { exit_now(0) };
        let hand_over = given.next();
        let what = packet.get(..received.bytes).unwrap_or_default();
        match fork(Parentage::Sibling) {
            Ok(Forked::Child) => {
                let say = Says { report: &report, listener: hand_over.as_ref() };
                match plan_of(what) {
                    Some(plan) => plan.carry(joined, around, stdio, say, say_number),
                    None => {
                        tell(say.report, &0_u32.to_ne_bytes());
                        tell_failure(say.report, Failure { stage: Stage::Exec, errno: libc::EPROTO })
                    }
                }
            }
            Ok(Forked::Parent { pidfd, .. }) => {
                if sys::seqpacket::send(socket, &[1], &[pidfd]).is_err() {
                    exit_now(1);
                }
            }
            // The keeper sees that nothing comes of it.
            Err(_) => exit_now(1),
        }
    }
}

/// How the processes of a launch speak to the keeper.
#[derive(Clone, Copy)]
struct Says<'a> {
    report: &'a OwnedFd,
    /// With [`Trap::Calls`].
    listener: Option<&'a OwnedFd>,
}

impl<'a> Says<'a> {
    fn all(self) -> impl Iterator<Item = &'a OwnedFd> {
        std::iter::once(self.report).chain(self.listener)
    }
}

/// What of the keeper's goes along into the container, for a moment.
fn keep_only(around: &Surroundings<'_>, stdio: &Stdio, pipes: &[&OwnedFd]) -> Result<(), Failure> {
    let streams = [&stdio.input, &stdio.output, &stdio.error];
    let owned = streams.into_iter().chain(pipes.iter().copied()).chain(around.members).map(AsFd::as_fd);
    let kept: Vec<BorrowedFd<'_>> = owned.chain([around.process]).collect();
    sys::child::close_all_but(&kept).map_err(Failure::new(Stage::Descriptors))
}

/// Whether there is something to read (or the end) in time.
fn comes_within(fd: &OwnedFd, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let until = Instant::now() + limit;
    loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => (),
            ready => return ready.is_ok_and(|count| count > 0),
        }
    }
}

fn take_terminal(stdio: &Stdio) -> rustix::io::Result<()> {
    setsid()?;
    if stdio.terminal == Terminal::Controlling {
        rustix::process::ioctl_tiocsctty(&stdio.input)?;
    }
    rustix::stdio::dup2_stdin(&stdio.input)?;
    rustix::stdio::dup2_stdout(&stdio.output)?;
    rustix::stdio::dup2_stderr(&stdio.error)
}

/// The first of its groups is its own.
pub fn become_user(uid: u32, groups: &[u32]) -> rustix::io::Result<()> {
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(uid), groups.first().copied().unwrap_or(Gid::ROOT));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// What it may do after exec is what the other process may: the kernel gives a user with number 0 all that its bounding
/// set has, the others what is ambient.
fn become_owner(owner: &JobOwner) -> rustix::io::Result<()> {
    let set = CapabilitySet::from_bits_retain;
    let permitted = set(owner.permitted);
    retain_in_bounding_set(permitted)?;
    let (inheritable, ambient) = (set(owner.inheritable) & permitted, set(owner.ambient) & permitted);
    let own = rustix::thread::capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable, ..own })?;
    let groups: Vec<Gid> = owner.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    set_thread_res_gid(gid, gid, gid)?;
    // Until exec, for what is ambient.
    set_keep_capabilities(!ambient.is_empty())?;
    set_thread_res_uid(uid, uid, uid)?;
    let own = rustix::thread::capabilities(None)?;
    let (effective, permitted) = (own.effective & permitted, own.permitted & permitted);
    set_capabilities(None, CapabilitySets { inheritable, effective, permitted })?;
    ambient.iter().try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

/// The first system error among an error's causes.
fn errno_of(error: &(dyn std::error::Error + 'static)) -> i32 {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return errno;
        }
        next = error.source();
    }
    libc::EINVAL
}

fn tell(say: &OwnedFd, bytes: &[u8]) {
    // The keeper is gone when this fails; then so are we in a moment.
    let _ = rustix::io::write(say, bytes);
}

fn tell_failure(say: &OwnedFd, failure: Failure) -> ! {
    let mut bytes = [failure.stage as u8, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&failure.errno.to_ne_bytes());
    tell(say, &bytes);
    exit_now(127)
}

fn early(report: OwnedFd) -> LaunchError {
    let mut bytes = Vec::new();
    let _ = File::from(report).take(16).read_to_end(&mut bytes);
    match Report::parse(&bytes) {
        Report::Failed(failure) => LaunchError::Early(failure),
        _ => LaunchError::Vanished(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What came over a report pipe so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    Nothing,
    /// PID inside; with the end of the pipe: executed. As which user, if that was looked up.
    Pid(u32, Option<u32>),
    Failed(Failure),
}

impl Report {
    /// No stage.
    const USER: u8 = 0;

    /// What a program says when its user was looked up.
    fn user(uid: u32) -> [u8; 5] {
        let mut bytes = [Report::USER, 0, 0, 0, 0];
        bytes[1..].copy_from_slice(&uid.to_ne_bytes());
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Report {
        let Some((pid, mut rest)) = bytes.split_first_chunk() else { return Report::Nothing };
        let mut user = None;
        if let Some(([Report::USER, uid @ ..], after)) = rest.split_first_chunk::<5>() {
            (user, rest) = (Some(u32::from_ne_bytes(*uid)), after);
        }
        let Some(([stage, errno @ ..], _)) = rest.split_first_chunk::<5>() else {
            return Report::Pid(u32::from_ne_bytes(*pid), user);
        };
        let stage = Stage::ALL.into_iter().find(|known| *known as u8 == *stage).unwrap_or(Stage::Exec);
        Report::Failed(Failure { stage, errno: i32::from_ne_bytes(*errno) })
    }
}

#[derive(Default)]
struct Variables(Vec<(Vec<u8>, Vec<u8>)>);

impl Variables {
    fn set(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref().to_owned());
        match self.0.iter_mut().find(|(known, _)| known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_slice())
    }

    fn pairs(self) -> impl Iterator<Item = Vec<u8>> {
        self.0.into_iter().map(|(key, value)| [&key[..], b"=", &value].concat())
    }
}

/// Where the program may be: itself when it is a path, else every directory of `path`.
fn candidates(name: &[u8], path: &[u8]) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_owned()];
    }
    let place = |dir: &[u8]| [if dir.is_empty() { b"." } else { dir }, b"/", name].concat();
    path.split(|byte| *byte == b':').map(place).collect()
}

fn c_strings(strings: impl IntoIterator<Item = Vec<u8>>) -> Result<Vec<CString>, std::ffi::NulError> {
    strings.into_iter().map(CString::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(argv: &[&str]) -> RunRequest {
        serde_json::from_value(serde_json::json!({ "argv": argv })).expect("request")
    }

    #[test]
    fn request_that_no_program_can_have_is_refused() {
        let cases: [fn(&mut RunRequest); 10] = [
            |run| run.argv.clear(),
            |run| run.argv = vec![Bytes::default()],
            |run| run.argv.push(Bytes::Hex { hex: "f".into() }),
            |run| run.argv.push("a\0b".into()),
            |run| run.env.push("novalue".into()),
            |run| run.uid = 65_536,
            |run| run.user = Some("www data".into()),
            |run| run.workdir = Some("relative".into()),
            |run| run.root = RootFs::Tree("/a/../../etc".into()),
            |run| run.argv.push("x".repeat(ARGUMENT_BYTES_MAX).into()),
        ];
        for (at, spoil) in cases.iter().enumerate() {
            let mut run = request(&["true"]);
            spoil(&mut run);
            assert!(Plan::check(&run, "h", &[]).is_err(), "{at}");
        }
    }

    #[test]
    fn arguments_and_environment_are_bytes() {
        let mut run = request(&["tool"]);
        run.argv.push(vec![0xff, b'a'].into());
        run.env.push(vec![b'K', b'=', 0xfe].into());
        run.workdir = Some(vec![b'/', 0xfd].into());
        let plan = Plan::check(&run, "h", &[]).expect("plan");
        assert_eq!(plan.argv[1].as_bytes(), [0xff, b'a']);
        assert!(plan.env.iter().any(|pair| pair.as_bytes() == [b'K', b'=', 0xfe]));
        assert_eq!(plan.workdir.expect("a directory").as_bytes(), [b'/', 0xfd]);
    }

    #[test]
    fn program_is_searched_in_the_path_of_the_request() {
        let mut run = request(&["tool"]);
        run.env.push("PATH=/a:/b".into());
        let plan = Plan::check(&run, "h", &["PATH=/c".into()]).expect("plan");
        assert_eq!(plan.paths[0].as_c_str(), c"/a/tool");
        assert_eq!(Plan::check(&request(&["./tool"]), "h", &[]).expect("plan").paths, [c"./tool".to_owned()]);
    }

    #[test]
    fn report_is_understood_however_much_of_it_came() {
        let failure = Failure { stage: Stage::Exec, errno: libc::EACCES };
        let mut bytes = 65_540_u32.to_ne_bytes().to_vec();
        bytes.push(failure.stage as u8);
        bytes.extend_from_slice(&failure.errno.to_ne_bytes());
        assert_eq!(Report::parse(&bytes[..3]), Report::Nothing);
        assert_eq!(Report::parse(&bytes[..4]), Report::Pid(65_540, None));
        assert_eq!(Report::parse(&bytes[..8]), Report::Pid(65_540, None));
        assert_eq!(Report::parse(&bytes), Report::Failed(failure));
        bytes.splice(4..4, Report::user(33));
        assert_eq!(Report::parse(&bytes[..8]), Report::Pid(65_540, None));
        assert_eq!(Report::parse(&bytes[..9]), Report::Pid(65_540, Some(33)));
        assert_eq!(Report::parse(&bytes), Report::Failed(failure));
    }
}
