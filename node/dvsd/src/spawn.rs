//! Starts one of our own processes, `/proc/self/exe`, or a program in its place, with a spawn record (`sys::spawn` is
//! the other side).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::CpuSet;
use sandbox::cgroup::Cgroup;
use serde_json::{Map, Value, json};
use sys::launch::{Launch, PidNamespace, WhenCallerEnds, launch};

use crate::state::{self, Child, ChildRecord, StateError};

/// A log is moved aside when it is larger; one older generation is kept.
pub const LOG_BYTES_MAX: u64 = 4 << 20;
/// Each finds those that were made since the one before.
const LOOKS_AT_THREADS_MAX: usize = 100;

/// What to start and what it is told.
pub struct Role {
    /// File name of its record and log; also shown.
    pub name: String,
    /// In place of `dvs`.
    pub program: Option<PathBuf>,
    /// After `dvs`: `["server", "fs"]`.
    pub arguments: Vec<&'static str>,
    /// Fields of the spawn record beside descriptors, options and identity.
    pub fields: Map<String, Value>,
    pub options: Value,
    pub broker: Option<OwnedFd>,
    pub fds: BTreeMap<String, OwnedFd>,
    /// Host uid and gid it changes to by itself; `None`: stays root.
    pub uid: Option<u32>,
    /// `NAME=VALUE`, beside what every role has.
    pub environment: Vec<String>,
    /// What it may run on, from its first instruction; `None`: all.
    pub cpus: Option<CpuSet>,
    pub pid_namespace: PidNamespace,
    /// Whose servers it belongs to; `None`: the node's own.
    pub group: Option<Cgroup>,
    pub epoch: u64,
    pub restarts: u64,
    /// See [`ChildRecord::serving`].
    pub serving: Option<&'static str>,
}

/// A child that has not said yet that it serves.
#[derive(Debug)]
pub struct Started {
    pub child: Child,
    /// Readable when it serves, at its end when it never will.
    pub ready: OwnedFd,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot open the log {}", .path.display())]
    Log {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("cannot prepare the start of {role}")]
    Prepare {
        role: String,
        #[source]
        cause: io::Error,
    },
    #[error("cannot start {role}")]
    Launch {
        role: String,
        #[source]
        cause: sys::launch::LaunchError,
    },
    #[error(transparent)]
    State(#[from] StateError),
}

/// Starts it; the record is at `run_dir/NAME.json`, the log at `log_dir/NAME.log`.
pub fn start(role: Role, run_dir: &Path, log_dir: &Path) -> Result<Started, StartError> {
    let prepare = |cause: io::Error| StartError::Prepare { role: role.name.clone(), cause };
    let log = open_log(&log_dir.join(format!("{}.log", role.name)))?;
    let null = File::open("/dev/null").map_err(prepare)?;
    let (ready, ready_in) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| prepare(error.into()))?;
    rustix::io::ioctl_fionbio(&ready, true).map_err(|error| prepare(error.into()))?;

    let variable = format!("{}={}", sys::spawn::VARIABLE, spawn_record(&role, &ready_in));
    let mut environment = vec![variable, "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    // Chosen by the operator for the daemon and everything it starts.
    environment.extend(
        ["RUST_BACKTRACE", "DVS_LOG", sys::without::VARIABLE]
            .iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?))),
    );
    environment.extend(role.environment.iter().cloned());
    let program = role.program.as_deref().unwrap_or(Path::new("/proc/self/exe")).as_os_str().as_encoded_bytes();
    let program = CString::new(program).map_err(|error| prepare(io::Error::other(error)))?;
    let own_name = role.program.as_ref().map_or_else(|| "dvs".into(), |program| program.to_string_lossy());
    let arguments = std::iter::once(&*own_name).chain(role.arguments.iter().copied()).map(str::to_owned);
    let inherit: Vec<BorrowedFd<'_>> =
        role.fds.values().chain(&role.broker).map(AsFd::as_fd).chain([ready_in.as_fd()]).collect();

    let path = run_dir.join(format!("{}.json", role.name));
    let mut record = ChildRecord {
        role: role.name.clone(),
        pid: 0,
        start_ticks: 0,
        boot: state::boot_id(),
        epoch: role.epoch,
        ready: false,
        restarts: role.restarts,
        serving: role.serving.map(str::to_owned),
    };
    let what = Launch {
        program: &program,
        arguments: &c_strings(arguments).map_err(prepare)?,
        environment: &c_strings(environment.into_iter()).map_err(prepare)?,
        input: null.as_fd(),
        log: log.as_fd(),
        inherit: &inherit,
        pid_namespace: role.pid_namespace,
        when_caller_ends: WhenCallerEnds::GoOn,
    };
    let launched = launch(&what, |pid| {
        record.pid = pid;
        if let (Some(group), Ok(pid)) = (&role.group, u32::try_from(pid)) {
            group.add_server(pid).map_err(io::Error::other)?;
        }
        if let Some(cpus) = &role.cpus {
            let child = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
            rustix::thread::sched_setaffinity(Some(child), cpus)?;
        }
        record.start_ticks = sys::pidfd::start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
        state::write(&path, &record).map_err(io::Error::other)
    })
    .map_err(|cause| StartError::Launch { role: role.name.clone(), cause })?;
    tracing::info!(role = role.name, pid = launched.pid, epoch = role.epoch, "started");
    Ok(Started { child: Child::new(record, launched.pidfd, path), ready })
}

/// CPUs of this daemon, which those it starts have, too, unless they are kept to others.
pub fn own_cpus() -> CpuSet {
    rustix::thread::sched_getaffinity(None).unwrap_or_default()
}

/// All threads of a process that runs, and those that it makes from now on, have these CPUs.
pub fn keep_to(pid: u32, cpus: &CpuSet) -> io::Result<()> {
    let mut kept = BTreeSet::new();
    // A thread that was made by another one before that was kept is seen by the next look.
    for _ in 0..LOOKS_AT_THREADS_MAX {
        let mut is_complete = true;
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = entry?.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(thread) = thread.and_then(rustix::process::Pid::from_raw) else { continue };
            if !kept.insert(thread.as_raw_nonzero()) {
                continue;
            }
            is_complete = false;
            match rustix::thread::sched_setaffinity(Some(thread), cpus) {
                Err(error) if error != rustix::io::Errno::SRCH => return Err(error.into()),
                _ => (),
            }
        }
        if is_complete {
            return Ok(());
        }
    }
    Err(io::Error::other("it makes threads faster than they are found"))
}

fn spawn_record(role: &Role, ready: &OwnedFd) -> Value {
    let fds: Map<String, Value> = role.fds.iter().map(|(name, fd)| (name.clone(), json!(fd.as_raw_fd()))).collect();
    let mut record = role.fields.clone();
    record.insert("epoch".to_owned(), json!(role.epoch));
    record.insert("fds".to_owned(), Value::Object(fds));
    record.insert("options".to_owned(), role.options.clone());
    record.insert("ready_fd".to_owned(), json!(ready.as_raw_fd()));
    if let Some(broker) = &role.broker {
        record.insert("broker_fd".to_owned(), json!(broker.as_raw_fd()));
    }
    if let Some(uid) = role.uid {
        record.insert("uid".to_owned(), json!(uid));
        record.insert("gid".to_owned(), json!(uid));
    }
    Value::Object(record)
}

fn c_strings(texts: impl Iterator<Item = String>) -> io::Result<Vec<CString>> {
    texts.map(|text| CString::new(text).map_err(io::Error::other)).collect()
}

/// Opened for appending, so that it may be shortened while it is written.
fn open_log(path: &Path) -> Result<File, StartError> {
    bound_log(path);
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map_err(|cause| StartError::Log { path: path.to_owned(), cause })
}

/// Keeps a log that is being written below its bound: copied aside and shortened.
pub fn bound_log(path: &Path) {
    let too_long = std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX);
    if !too_long {
        return;
    }
    if let Err(error) = shorten(path) {
        tracing::warn!(path = %path.display(), %error, "cannot shorten a log");
    }
}

/// The same for what this daemon writes, when that is a file.
pub fn bound_own_log() {
    if let Ok(path) = std::fs::read_link("/proc/self/fd/2")
        && path.is_file()
    {
        bound_log(&path);
    }
}

/// The older generation is made anew, for root alone. Where there is no room for it, what it would hold is lost, and
/// the log says so.
fn shorten(path: &Path) -> io::Result<()> {
    use std::io::Write;
    let older = path.with_extension("log.1");
    let _ = std::fs::remove_file(&older);
    let kept = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&older);
    let kept = kept.and_then(|mut kept| io::copy(&mut File::open(path)?.take(LOG_BYTES_MAX * 2), &mut kept));
    let mut log = OpenOptions::new().append(true).open(path)?;
    let bytes = log.metadata()?.len();
    log.set_len(0)?;
    let (what, older) = match kept {
        Ok(_) => ("before this line are in", older),
        Err(_) => {
            let _ = std::fs::remove_file(&older);
            ("are lost: there was no room for", older)
        }
    };
    writeln!(log, "{bytes} bytes {what} {}", older.display())
}

/// The last line of a log from `from` on: what a child said before it died.
pub fn last_words(path: &Path, from: u64) -> Option<String> {
    const BYTES: u64 = 2048;
    let file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    // A log that was shortened since holds nothing older.
    let said = if length < from { length } else { length - from }.min(BYTES);
    let mut bytes = vec![0; usize::try_from(said).ok()?];
    file.read_exact_at(&mut bytes, length - said).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // The advice that follows the words of a panic says nothing.
    let tells = |line: &&str| !line.trim().is_empty() && !line.starts_with("note: run with");
    // The innermost cause of an error is what it is about.
    text.lines().rev().find(tells).map(str::trim).map(|line| line.strip_prefix("because: ").unwrap_or(line).to_owned())
}

/// What a ready descriptor says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    NotYet,
    Ready,
    /// The other end closed without a word.
    Never,
}

pub fn readiness(ready: &OwnedFd) -> Readiness {
    let mut byte = [0_u8; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(ready, &mut byte)) {
        Ok(1) if byte[0] == sys::spawn::READY_BYTE => Readiness::Ready,
        Err(rustix::io::Errno::AGAIN) => Readiness::NotYet,
        _ => Readiness::Never,
    }
}
