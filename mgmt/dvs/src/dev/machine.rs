//! A simulated machine: the process that is PID 1 of it, and the way in.
//!
//! States of the process: `Making` (namespaces, mounts; its maker hears the PID first, then `ready`) → `Waiting` (for
//! the maker's byte, which says that the machine is written down) → `Running` for ever. When the maker dies in between,
//! standard input ends and so does the machine: nothing is left that nobody knows.
//!
//! PID 1 does nothing: orphans vanish by themselves (`SIGCHLD` ignored), and signals do not reach it except SIGKILL.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use clap::Args;
use client::ProcessId;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use sys::child::{Forked, Parentage, exit_now, fork};
use sys::ns::Kinds;

use super::{cgroup, processes};
use crate::commands::Outcome;
use crate::errors::Failure;

/// What the maker writes when the machine is in the record.
const GO: u8 = b'g';
/// What the machine writes when it waits for that.
const READY: &str = "ready";

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("cannot start the machine's first process")]
    Spawn(#[source] io::Error),
    #[error("the machine's first process did not come up{}", said(.0))]
    NotUp(String),
    #[error("the machine is not running")]
    Gone,
    #[error("cannot enter the machine")]
    Enter(#[source] io::Error),
    #[error("cannot start {program} in the machine{}", said(.reason))]
    NotStarted { program: String, reason: String },
    /// It was started and is gone; its log may say why.
    #[error("the program ended at once")]
    EndedAtOnce,
}

fn said(text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

#[derive(Args, Debug)]
pub struct Options {
    /// Host name inside.
    #[arg(long)]
    hostname: String,
    /// Control group to live in.
    #[arg(long)]
    cgroup: String,
    /// Directory for an /etc, a /var/lib/dvs and a /run/dvs of its own.
    #[arg(long)]
    home: Option<PathBuf>,
}

/// A machine that is up and ends with us, unless it is told to stay.
pub struct Machine {
    pub process: ProcessId,
    /// Closed: the machine ends.
    leash: ChildStdin,
}

impl Machine {
    /// Starts the process; [`Machine::await_up`] waits for it, so that several come up at the same time.
    /// `home`: where a machine that shares no settings with its host keeps its own.
    pub fn spawn(hostname: &str, cgroup: &str, home: Option<&Path>) -> Result<Starting, MachineError> {
        let maker = Command::new(own_program()?)
            .args(["internal", "machine", "--hostname", hostname, "--cgroup", cgroup])
            .args(home.map(|home| format!("--home={}", home.display())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .current_dir("/")
            .spawn()
            .map_err(MachineError::Spawn)?;
        Ok(Starting { maker })
    }

    /// From here on it lives until it is killed.
    pub fn stay(mut self) -> Result<ProcessId, MachineError> {
        self.leash.write_all(&[GO]).map_err(|_| MachineError::Gone)?;
        Ok(self.process)
    }
}

pub struct Starting {
    maker: Child,
}

impl Starting {
    pub fn await_up(mut self) -> Result<Machine, MachineError> {
        // Taken out first: waiting would close it.
        let leash = self.maker.stdin.take().ok_or(MachineError::Gone)?;
        // Two processes say one line each, in either order: the first one its child's PID, the child that it is ready.
        let lines = BufReader::new(self.maker.stdout.take().ok_or(MachineError::Gone)?).lines();
        let mut said: Vec<String> = lines.take(2).map_while(Result::ok).collect();
        said.sort();
        let process = match said.as_slice() {
            [pid, ready] if ready == READY => pid.parse().ok().and_then(processes::identify),
            _ => None,
        };
        match (process, self.maker.wait()) {
            (Some(process), Ok(_)) => Ok(Machine { process, leash }),
            _ => {
                drop(leash);
                let mut reason = String::new();
                if let Some(stderr) = self.maker.stderr.take() {
                    let _ = stderr.take(4096).read_to_string(&mut reason);
                }
                Err(MachineError::NotUp(reason.replace('\n', "; ")))
            }
        }
    }
}

fn own_program() -> Result<PathBuf, MachineError> {
    std::env::current_exe().map_err(MachineError::Spawn)
}

/// `dvs internal machine`.
pub fn execute(options: &Options) -> Outcome {
    let failed = |what: &str, cause: io::Error| Failure::new(what).because(&cause);
    sys::child::close_inherited().map_err(|cause| failed("cannot close inherited descriptors", cause))?;
    sys::ns::unshare(Kinds::NET | Kinds::MOUNT | Kinds::PID | Kinds::IPC | Kinds::UTS)
        .map_err(|cause| failed("cannot make namespaces", cause))?;
    match fork(Parentage::Mine).map_err(|cause| Failure::new("cannot fork").because(&cause))? {
        Forked::Parent { pid, .. } => {
            println!("{pid}");
            Ok(ExitCode::SUCCESS)
        }
        Forked::Child => {
            sys::child::ignore_child_deaths();
            furnish(options).map_err(|cause| failed("cannot set up the machine", cause))?;
            println!("{READY}");
            live()
        }
    }
}

fn furnish(options: &Options) -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    cgroup::take_over(&options.cgroup)?;
    mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?;
    if let Some(home) = &options.home {
        furnish_home(home)?;
    }
    rustix::system::sethostname(options.hostname.as_bytes())?;
    rustix::process::setsid()?;
    Ok(())
}

/// A machine that is as if it were newly installed: changes to its /etc stay its own, and it has no state yet, or that
/// of before it was switched off.
fn furnish_home(home: &Path) -> io::Result<()> {
    let [upper, work, state] = ["etc", "etc.work", "state"].map(|name| home.join(name));
    for dir in [&upper, &work, &state] {
        fs::create_dir_all(dir)?;
    }
    let layers = format!("lowerdir=/etc,upperdir={},workdir={}", upper.display(), work.display());
    let layers = std::ffi::CString::new(layers).map_err(io::Error::other)?;
    mount("overlay", "/etc", "overlay", MountFlags::empty(), Some(layers.as_c_str()))?;
    for place in ["/var/lib/dvs", "/run/dvs"] {
        fs::create_dir_all(place)?;
    }
    mount_bind(&state, "/var/lib/dvs")?;
    mount("tmpfs", "/run/dvs", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, None)?;
    Ok(())
}

fn live() -> Outcome {
    let mut byte = [0];
    match io::stdin().read(&mut byte) {
        Ok(1) if byte == [GO] => {}
        _ => return Err(Failure::new("whoever made this machine went away")),
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null).map_err(io::Error::from)?;
    rustix::stdio::dup2_stdout(&null).map_err(io::Error::from)?;
    rustix::stdio::dup2_stderr(&null).map_err(io::Error::from)?;
    drop(null);
    loop {
        std::thread::park();
    }
}

/// The namespace of the machine's network.
pub fn network_of(machine: ProcessId) -> Result<OwnedFd, MachineError> {
    // The descriptor of the process proves afterwards that the path meant the right one.
    let opened = fs::File::open(format!("/proc/{}/ns/net", machine.pid)).map_err(MachineError::Enter)?;
    if processes::is_alive(machine) { Ok(opened.into()) } else { Err(MachineError::Gone) }
}

/// `dvs internal enter`: starts a program that stays, and prints its PID inside.
#[derive(Args, Debug)]
pub struct EnterOptions {
    #[arg(long)]
    pid: u32,
    #[arg(long)]
    start_ticks: u64,
    /// File for what it writes.
    #[arg(long)]
    log: PathBuf,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    argv: Vec<String>,
}

/// Where daemons answer for names, which nodes of a cluster on one machine are not told otherwise.
const NAMES_VARIABLE: &str = "DVS_NAMES_LISTEN";

/// Starts a program in a session of its own, as a child of the machine's PID 1. Its environment is bare, but for the
/// features it is to do without.
pub fn start_inside(machine: ProcessId, log: &Path, argv: &[&str]) -> Result<ProcessId, MachineError> {
    let program = argv.first().copied().unwrap_or_default().to_owned();
    let output = Command::new(own_program()?)
        .args([
            "internal",
            "enter",
            "--pid",
            &machine.pid.to_string(),
            "--start-ticks",
            &machine.start_ticks.to_string(),
        ])
        .arg("--log")
        .arg(log)
        .arg("--")
        .args(argv)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .envs(sys::without::variable().map(|features| (sys::without::VARIABLE, features)))
        .envs(std::env::var_os(NAMES_VARIABLE).map(|listen| (NAMES_VARIABLE, listen)))
        .stdin(Stdio::null())
        .current_dir("/")
        .output()
        .map_err(MachineError::Spawn)?;
    match String::from_utf8_lossy(&output.stdout).trim().parse() {
        Ok(inner) => processes::seen_from_here(machine, inner).ok_or(MachineError::EndedAtOnce),
        Err(_) => {
            let reason = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            Err(MachineError::NotStarted { program, reason })
        }
    }
}

/// Three processes: this one is outside; a child of it is inside but a stranger there, whose end makes *its* child an
/// orphan that PID 1 of the machine adopts. Otherwise the host would have to bury it, and the machine could not end
/// before.
pub fn enter(options: &EnterOptions) -> Outcome {
    let failed = |what: &str, cause: &dyn std::error::Error| Failure::new(what).because(cause);
    sys::child::close_inherited().map_err(|cause| failed("cannot close inherited descriptors", &cause))?;
    let machine = ProcessId { pid: options.pid, start_ticks: options.start_ticks };
    let pidfd = processes::open(machine).ok_or_else(|| Failure::new(MachineError::Gone.to_string()))?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&options.log)
        .map_err(|cause| failed("cannot open the log", &cause))?;
    sys::ns::join(&pidfd, Kinds::PID).map_err(|cause| failed("cannot enter", &cause))?;
    if let Forked::Parent { pidfd, .. } = fork(Parentage::Mine).map_err(|cause| failed("cannot fork", &cause))? {
        rustix::process::waitid(
            rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(&pidfd)),
            rustix::process::WaitIdOptions::EXITED,
        )
        .map_err(|cause| failed("cannot wait", &cause))?;
        return Ok(ExitCode::SUCCESS);
    }
    sys::ns::join(&pidfd, Kinds::MOUNT | Kinds::NET | Kinds::IPC | Kinds::UTS)
        .map_err(|cause| failed("cannot enter", &cause))?;
    match fork(Parentage::Mine).map_err(|cause| failed("cannot fork", &cause))? {
        Forked::Parent { pid, .. } => {
            println!("{pid}");
            io::stdout().flush()?;
            exit_now(0)
        }
        Forked::Child => Err(become_program(&options.argv, log)),
    }
}

/// Returns only what went wrong.
fn become_program(argv: &[String], log: fs::File) -> Failure {
    let [program, arguments @ ..] = argv else { return Failure::usage("no program") };
    if let Err(cause) = rustix::process::setsid() {
        return Failure::new("cannot begin a session").because(&cause);
    }
    let errors = match log.try_clone() {
        Ok(errors) => errors,
        Err(cause) => return Failure::new("cannot open the log").because(&cause),
    };
    let cause =
        Command::new(program).args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors).current_dir("/").exec();
    Failure::new(format!("cannot start {program}")).because(&cause)
}

/// Runs a program of the host in the machine's namespaces, on our own terminal, and gives back its status.
/// `without`: variables of ours that mean nothing there.
pub fn run_inside(
    machine: ProcessId,
    argv: &[String],
    without: &[&str],
) -> Result<std::process::ExitStatus, MachineError> {
    let [program, arguments @ ..] = argv else { return Err(MachineError::Gone) };
    let here = std::env::current_dir().ok();
    let pidfd = processes::open(machine).ok_or(MachineError::Gone)?;
    sys::ns::join(&pidfd, Kinds::PID | Kinds::MOUNT | Kinds::NET | Kinds::IPC | Kinds::UTS)
        .map_err(MachineError::Enter)?;
    let mut command = Command::new(program);
    command.args(arguments);
    for variable in without {
        command.env_remove(variable);
    }
    if let Some(here) = here.filter(|path| path.is_dir()) {
        command.current_dir(here);
    }
    command.status().map_err(|cause| MachineError::NotStarted { program: program.clone(), reason: cause.to_string() })
}
