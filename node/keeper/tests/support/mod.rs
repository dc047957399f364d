//! A keeper under test: its own process, its own directory and range of users, gone when dropped.
#![allow(dead_code, reason = "each test file uses a part")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use keeper::{KeeperClient, KeeperError, KeeperOptions, StreamEnd};
use mgmt_api::stream::{Decoder, Kind};
use mgmt_api::{Limits, RunRequest};
use sandbox::cgroup::Cgroup;

/// A program that answers at all answers within this.
pub const LIMIT: Duration = Duration::from_secs(20);
static NEXT: AtomicU32 = AtomicU32::new(0);

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

pub struct Keeper {
    pub client: KeeperClient,
    pub child: Child,
    pub cgroup: Cgroup,
    pub dir: tempfile::TempDir,
    pub options: KeeperOptions,
}

impl Keeper {
    pub fn start() -> Keeper {
        Keeper::start_with(|_| ())
    }

    pub fn start_with(adapt: impl FnOnce(&mut KeeperOptions)) -> Keeper {
        Keeper::start_saying(None, adapt)
    }

    /// One whose own log is another file than usual.
    pub fn start_saying(log: Option<&Path>, adapt: impl FnOnce(&mut KeeperOptions)) -> Keeper {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("test-{}-{number}", std::process::id());
        let dir = tempfile::Builder::new().prefix("dvs-keeper-").tempdir().expect("directory");
        let cgroup = Cgroup::ensure(&name, &Limits::default()).expect("control group");
        // What is absent here is as a daemon leaves it.
        let options = serde_json::json!({
            "control": dir.path().join("control"),
            "log_dir": dir.path().join("log"),
            "uid_base": 1_000_000_000 + (std::process::id() % 10_000) * 65_536 + number * 65_536,
            "pid_base": 131_072,
            "node": "n2",
            "hostname": "shop",
            "hosts": [("n1", "10.1.0.1")],
            "cgroup": cgroup,
            "env": ["FROM_KEEPER=1"],
            "volatile_bytes": 64 << 20,
        });
        let mut options: KeeperOptions = serde_json::from_value(options).expect("options");
        adapt(&mut options);
        // Some keepers are to be refused what they want: the group goes then, too.
        let group = RemovedUnless(Some(cgroup));
        let child = spawn(&options, dir.path(), log);
        let client = KeeperClient::connect(&options.control).expect("connect");
        Keeper { client, child, cgroup: group.kept(), dir, options }
    }

    /// A keeper in the place of one that ended.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.options, self.dir.path(), None);
        self.client = self.connect();
    }

    pub fn connect(&self) -> KeeperClient {
        KeeperClient::connect(&self.options.control).expect("connect")
    }

    /// Runs a program in the foreground to its end.
    pub fn run(&self, request: &RunRequest) -> Result<Ended, KeeperError> {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let pid = self.client.run(request, Some(&StreamEnd::of(theirs.as_fd())))?;
        drop(theirs);
        let ended = Watcher::new(ours).into_end();
        assert_eq!(ended.pid, Some(pid));
        Ok(ended)
    }

    pub fn shell(&self, script: &str) -> Ended {
        self.run(&request(&["sh", "-c", script])).expect("run")
    }

    /// A Python program of the container; its arguments are what follows the program.
    pub fn python(&self, program: &str, arguments: &[&str]) -> Ended {
        let mut argv = vec!["/usr/bin/python3", "-c", program];
        argv.extend_from_slice(arguments);
        self.run(&request(&argv)).expect("run")
    }

    /// Every process of the container, on the host.
    pub fn host_pids(&self) -> Vec<u32> {
        let init = self.client.status().expect("status").init_pid;
        let mut pids = self.cgroup.members().expect("members");
        pids.push(init);
        pids
    }
}

/// A control group that goes with the attempt to start a keeper in it.
struct RemovedUnless(Option<Cgroup>);

impl RemovedUnless {
    fn kept(mut self) -> Cgroup {
        self.0.take().expect("kept once")
    }
}

impl Drop for RemovedUnless {
    fn drop(&mut self) {
        self.0.iter().for_each(remove);
    }
}

fn remove(cgroup: &Cgroup) {
    if let Err(error) = cgroup.remove() {
        eprintln!("the control group stays: {error}");
    }
}

fn spawn(options: &KeeperOptions, dir: &Path, log: Option<&Path>) -> Child {
    let (ready, say_ready) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("pipe");
    rustix::io::fcntl_setfd(&say_ready, rustix::io::FdFlags::empty()).expect("inheritable");
    let record = serde_json::json!({
        "dc": 1, "dc_name": "shop", "options": options, "ready_fd": say_ready.as_raw_fd(),
    });
    let log = log.map_or_else(|| dir.join("keeper.log"), Path::to_owned);
    let log = std::fs::File::create(log).expect("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_keeper-for-tests"))
        .env("DVS_SPAWN", record.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("keeper");
    let pidfd = sys::pidfd::open(child.id() as i32).expect("pidfd");
    wait_for(&[&ready, &pidfd]);
    let mut byte = [0];
    // Another test's child may hold a copy of the pipe's end, so its end alone says nothing; the keeper's own death
    // does.
    rustix::io::ioctl_fionbio(&ready, true).expect("non-blocking");
    let told = rustix::io::read(&ready, &mut byte);
    let log = std::fs::read_to_string(dir.join("keeper.log")).unwrap_or_default();
    if !matches!(told, Ok(1)) {
        let _ = child.kill();
        let _ = child.wait();
        panic!("the keeper did not start:\n{log}");
    }
    child
}

/// Until one of them is readable; panics after [`LIMIT`].
pub fn wait_for(fds: &[&OwnedFd]) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
    let limit = Timespec::try_from(LIMIT).expect("limit");
    let ready = poll(&mut fds, Some(&limit)).expect("poll");
    assert!(ready > 0, "nothing happened within {LIMIT:?}");
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("keeper.log")).unwrap_or_default();
            eprintln!("keeper's log:\n{log}");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove(&self.cgroup);
    }
}

pub fn request(argv: &[&str]) -> RunRequest {
    serde_json::from_value(serde_json::json!({ "argv": argv })).expect("request")
}

/// What a client saw to the end.
#[derive(Debug, Default)]
pub struct Ended {
    pub pid: Option<u32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub exit: Option<u8>,
    pub error: Option<mgmt_api::ErrorBody>,
}

impl Ended {
    pub fn text(&self) -> String {
        assert_eq!(String::from_utf8_lossy(&self.stderr), "");
        assert_eq!(self.exit, Some(0), "{self:?}");
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }
}

pub struct Watcher {
    pub stream: UnixStream,
    decoder: Decoder,
    pub seen: Ended,
}

impl Watcher {
    pub fn new(stream: UnixStream) -> Watcher {
        stream.set_read_timeout(Some(LIMIT)).expect("limit");
        Watcher { stream, decoder: Decoder::default(), seen: Ended::default() }
    }

    pub fn send(&mut self, kind: Kind, payload: &[u8]) {
        use std::io::Write;
        let mut frame = mgmt_api::stream::header(kind, payload.len()).to_vec();
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).expect("send");
    }

    /// Reads until `enough` or the end of the stream; true when there is more to come.
    pub fn until(&mut self, enough: impl Fn(&Ended) -> bool) -> bool {
        use std::io::Read;
        let mut buffer = vec![0; 65_536];
        while !enough(&self.seen) {
            let got = self.stream.read(&mut buffer).expect("read");
            if got == 0 {
                return false;
            }
            self.decoder.push(&buffer[..got]);
            while let Some((kind, payload)) = self.decoder.pop().expect("frame") {
                match kind {
                    Kind::Started => self.seen.pid = Some(u32::from_le_bytes(payload.try_into().expect("pid"))),
                    Kind::Stdout => self.seen.stdout.extend_from_slice(payload),
                    Kind::Stderr => self.seen.stderr.extend_from_slice(payload),
                    Kind::Exit => self.seen.exit = payload.first().copied(),
                    Kind::Error => self.seen.error = serde_json::from_slice(payload).ok(),
                    Kind::Session | Kind::Heard => (),
                    other => panic!("{other:?}"),
                }
            }
        }
        true
    }

    pub fn into_end(mut self) -> Ended {
        self.until(|_| false);
        self.seen
    }
}
