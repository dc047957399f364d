//! Records of running children: `RUN_DIR/dcs/ID/ROLE.json`, so that a restarted daemon finds what it had started.
//!
//! A record is written before the process becomes a program (`sys::launch`) and removed after the process was seen to
//! be gone: a process without a record does not exist, a record without a process may. The start time tells a process
//! from a later one with the same number; the boot id tells this boot from an earlier one.
//!
//! What a record has its room in stays when it goes (`ROLE.spare`), for the next one: a server that dies when the disk
//! is full has to be started again, and what it left free others would have taken.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChildRecord {
    pub role: String,
    pub pid: i32,
    pub start_ticks: u64,
    pub boot: String,
    /// Incarnation; also the epoch of its endpoint.
    pub epoch: u64,
    /// It said that it serves.
    pub ready: bool,
    pub restarts: u64,
    /// Name of the thread that does everything, if its end counts as that of the process. A file gate's other threads
    /// may wait in the kernel for the lock of a directory, which a program holds until the *next* gate has answered it:
    /// that one cannot wait until the process is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<String>,
}

/// A process the daemon looks after, started by this daemon or by an earlier one.
#[derive(Debug)]
pub struct Child {
    pub record: ChildRecord,
    pidfd: OwnedFd,
    /// Of the thread that serves, if that one's end is the end: see [`ChildRecord::serving`].
    serving: Option<OwnedFd>,
    path: PathBuf,
}

/// Processes that have ended as far as anybody is concerned, and are not gone yet: to be buried later.
static LINGERING: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}", .path.display())]
pub struct StateError {
    pub doing: &'static str,
    pub path: PathBuf,
    #[source]
    pub cause: io::Error,
}

impl Child {
    pub fn new(record: ChildRecord, pidfd: OwnedFd, path: PathBuf) -> Child {
        let mut child = Child { record, pidfd, serving: None, path };
        if child.record.ready {
            child.find_serving();
        }
        child
    }

    /// The descriptor of the process keeps its number from another one meanwhile.
    fn find_serving(&mut self) {
        let open = |name: &String| sys::pidfd::open_thread(self.record.pid, name);
        // Without it the whole process counts, as on an earlier kernel.
        self.serving = self.record.serving.as_ref().and_then(|name| open(name).ok());
    }

    /// Readable once it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.serving.as_ref().unwrap_or(&self.pidfd).as_fd()
    }

    pub fn has_ended(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// True when it has ended within `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        has_ended_within(self.pidfd(), limit)
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended meanwhile, which is what signals are for.
        if let Err(error) = sys::pidfd::signal(&self.pidfd, signal) {
            tracing::debug!(role = self.record.role, pid = self.record.pid, %error, "signal not delivered");
        }
    }

    /// SIGTERM, then after `grace` SIGKILL; the record goes. Returns what it was told by the kernel, when it was our
    /// own child.
    pub fn end(self, grace: Duration) -> Result<(), StateError> {
        self.signal(Signal::TERM);
        // One that somebody stopped could not even hear that it shall end.
        self.signal(Signal::CONT);
        if !self.wait(grace) {
            tracing::warn!(role = self.record.role, pid = self.record.pid, ?grace, "did not end in time; killed");
            self.signal(Signal::KILL);
            self.wait(KILL_LIMIT);
        }
        self.bury().map(|_| ())
    }

    /// Of a child that has ended: takes its status and removes the record.
    pub fn bury(self) -> Result<Option<String>, StateError> {
        let reap =
            |pidfd: &OwnedFd| waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        let mut lingering = LINGERING.lock();
        lingering.retain(|pidfd| !sys::pidfd::has_ended(pidfd) || reap(pidfd).is_err());
        if !has_ended_within(self.pidfd.as_fd(), LAST_WORDS) {
            // Nobody needs the rest of it; and its endpoint is its successor's as soon as it is killed.
            self.signal(Signal::KILL);
        }
        let status = reap(&self.pidfd);
        if !sys::pidfd::has_ended(&self.pidfd) {
            tracing::warn!(role = self.record.role, pid = self.record.pid, "a thread of it is still in the kernel");
            lingering.push(self.pidfd);
        }
        drop(lingering);
        lay_by(&self.path)?;
        Ok(status.ok().flatten().map(|status| match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => "unknown end".to_owned(),
        }))
    }

    /// Of one that ends by itself, some day: the record goes.
    pub fn release(self) -> Result<(), StateError> {
        LINGERING.lock().push(self.pidfd);
        lay_by(&self.path)
    }

    pub fn mark_ready(&mut self) -> Result<(), StateError> {
        self.record.ready = true;
        self.find_serving();
        write(&self.path, &self.record)
    }
}

/// Of a process, or of a thread.
fn has_ended_within(pidfd: BorrowedFd<'_>, limit: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: limit.subsec_nanos().into() };
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).is_ok_and(|ready| ready > 0)
}

/// For a process whose serving thread has ended, to say why.
const LAST_WORDS: Duration = Duration::from_millis(30);
/// A killed process that does not go away is stuck in the kernel; we do not wait for it for ever.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// All records of a directory, of processes that run or not. What is none is not looked at.
pub fn recorded(directory: &Path) -> Vec<ChildRecord> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let records = entries.filter(|path| path.extension().is_some_and(|end| end == "json"));
    let mut found: Vec<ChildRecord> =
        records.filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok()).collect();
    found.sort_by(|one, other| one.role.cmp(&other.role));
    found
}

/// Whether the very process of a record runs. One that has ended and was not buried does not.
pub fn is_running(record: &ChildRecord) -> bool {
    // The pidfd first: afterwards the number cannot change its owner unnoticed.
    let Ok(pidfd) = sys::pidfd::open(record.pid) else { return false };
    let same = record.boot == boot_id() && sys::pidfd::start_ticks(record.pid) == Some(record.start_ticks);
    same && !Child::new(record.clone(), pidfd, PathBuf::new()).has_ended()
}

/// What was recorded, if the very process still runs.
pub fn adopt(path: &Path) -> Result<Option<Child>, StateError> {
    let failed = |doing, cause| StateError { doing, path: path.to_owned(), cause };
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|cause| failed("read", cause))?,
    };
    let Ok(record) = serde_json::from_slice::<ChildRecord>(&bytes) else {
        tracing::warn!(path = %path.display(), "not a record of a child; ignored");
        remove(path)?;
        return Ok(None);
    };
    // The pidfd first: afterwards the number cannot change its owner unnoticed.
    let pidfd = sys::pidfd::open(record.pid);
    let same = record.boot == boot_id() && sys::pidfd::start_ticks(record.pid) == Some(record.start_ticks);
    match pidfd {
        Ok(pidfd) if same => {
            let child = Child::new(record, pidfd, path.to_owned());
            if child.has_ended() { child.bury().map(|_| None) } else { Ok(Some(child)) }
        }
        _ => lay_by(path).map(|()| None),
    }
}

pub fn write(path: &Path, record: &impl Serialize) -> Result<(), StateError> {
    let failed = |cause| StateError { doing: "write", path: path.to_owned(), cause };
    let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
    let (fresh, spare) = (path.with_extension("new"), spare_of(path));
    let put = || {
        // Without one there has to be room.
        let _ = fs::rename(&spare, &fresh);
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&fresh)?;
        io::Write::write_all(&mut file, &text)?;
        file.set_len(text.len() as u64)?;
        // Renaming makes the change whole for a daemon killed in between; power loss ends the children anyway.
        match renameat_with(CWD, &fresh, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => fs::rename(&fresh, &spare),
            Err(_) => fs::rename(&fresh, path),
        }
    };
    put().map_err(failed)
}

fn spare_of(path: &Path) -> PathBuf {
    path.with_extension("spare")
}

/// The record is none any more.
fn lay_by(path: &Path) -> Result<(), StateError> {
    match fs::rename(path, spare_of(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => remove(path),
        _ => Ok(()),
    }
}

/// As a whole or not at all, and on the disk when this returns: for what has to survive a loss of power.
pub fn write_durably(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let fresh = path.with_extension("new");
    // One that was left behind may have another mode.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

pub fn remove(path: &Path) -> Result<(), StateError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StateError { doing: "remove", path: path.to_owned(), cause: error })
        }
        _ => Ok(()),
    }
}

/// Makes a directory that only root may look into; one that is there becomes so.
pub fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
}

/// Names this boot of the machine.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn sleeper(dir: &Path) -> (std::process::Child, ChildRecord, PathBuf) {
        let process = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
        let pid = process.id() as i32;
        let record = ChildRecord {
            role: "fs".to_owned(),
            pid,
            start_ticks: sys::pidfd::start_ticks(pid).unwrap(),
            boot: boot_id(),
            epoch: 1,
            ready: true,
            restarts: 0,
            serving: None,
        };
        let path = dir.join("fs.json");
        write(&path, &record).unwrap();
        (process, record, path)
    }

    #[test]
    fn record_is_written_where_the_one_before_had_its_room() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fs.json");
        let inode = |path: &Path| fs::metadata(path).map(|file| file.ino()).ok();
        write(&path, &"a longer one").unwrap();
        let first = inode(&path);
        lay_by(&path).unwrap();
        assert_eq!((inode(&path), inode(&spare_of(&path))), (None, first));
        write(&path, &"short").unwrap();
        assert_eq!((inode(&path), inode(&spare_of(&path))), (first, None));
        write(&path, &"as ready").unwrap();
        assert_eq!(inode(&spare_of(&path)), first);
        write(&path, &"again").unwrap();
        assert_eq!((inode(&path), fs::read_to_string(&path).unwrap()), (first, "\"again\"".to_owned()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn child_that_serves_no_more_is_killed_with_what_is_left_of_it() {
        const PROGRAM: &str = "
import ctypes, threading, time
def serve():
    ctypes.CDLL(None).prctl(15, b'serve', 0, 0, 0)
    time.sleep(1)
threading.Thread(target=serve).start()
time.sleep(60)
";
        let dir = tempfile::tempdir().unwrap();
        let (mut sleeper, record, path) = sleeper(dir.path());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        let Ok(mut python) = Command::new("python3").args(["-c", PROGRAM]).spawn() else {
            return eprintln!("SKIPPED: there is no python3");
        };
        let pid = python.id() as i32;
        let record = ChildRecord { pid, serving: Some("serve".to_owned()), ready: true, ..record };
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while sys::pidfd::open_thread(pid, "serve").is_err() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let child = Child::new(record, sys::pidfd::open(pid).unwrap(), path);
        assert!(!child.has_ended());
        assert!(child.wait(Duration::from_secs(20)), "the thread has ended");
        assert!(!sys::pidfd::is_ending(pid), "and the process has not");
        child.bury().unwrap();
        // Ours, so it may be gone already.
        let ended = python.wait();
        assert!(ended.is_err() || !ended.unwrap().success());
    }

    #[test]
    fn running_child_is_adopted_and_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (mut process, record, path) = sleeper(dir.path());
        let child = adopt(&path).unwrap().expect("it runs");
        assert_eq!(child.record, record);
        child.end(Duration::from_secs(10)).unwrap();
        assert!(!path.exists());
        let _ = process.wait();
    }

    #[test]
    fn process_with_the_number_of_a_dead_child_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let (mut process, mut record, path) = sleeper(dir.path());
        record.start_ticks -= 1;
        write(&path, &record).unwrap();
        assert!(adopt(&path).unwrap().is_none());
        assert!(process.try_wait().unwrap().is_none(), "it was left alone");
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn record_that_makes_no_sense_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fs.json");
        fs::write(&path, "{").unwrap();
        assert!(adopt(&path).unwrap().is_none());
        assert!(!path.exists());
    }
}
