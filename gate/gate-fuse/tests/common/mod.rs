//! A real mount in a mount namespace of its own, served by a gate in a process of its own, with the model as fs server.
//!
//! Everything is gone when the fixture is dropped, also after a panic; a test that hangs is ended by aborting the
//! connection.

// Each test program uses a part of this.
#![allow(dead_code)]

/// The processes that a test program's tests start: not tests, but entry points of the same binary.
macro_rules! gate_processes {
    () => {
        /// The gate process of the others.
        #[test]
        #[ignore = "started by the other tests as a process of its own"]
        fn gate_child() {
            common::run_gate_child();
        }

        /// Starts and kills the gate processes.
        #[test]
        #[ignore = "started by the other tests as a process of its own"]
        fn launcher_child() {
            common::run_launcher_child();
        }
    };
}

pub mod model;
pub mod real;
pub mod server;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use gate_fuse::Gate;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::Signal;

use server::{Server, SocketBackend};

/// Set for a test that is a process of its own.
const ALONE: &str = "DVS_GATE_TEST_ALONE";
const SOCKET: &str = "DVS_GATE_TEST_SOCKET";
/// A test that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(40);

/// A seed, from the environment or the one of every day, which is said.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_128);
    eprintln!("SEED={seed}");
    seed
}

/// Numbers below a limit, the same for the same seed.
pub fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut random = seed | 1;
    move |limit| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) as usize % limit
    }
}

/// The file server of a world that has the real one.
pub fn server(world: &mut World) -> &mut real::Real {
    world.real.as_mut().expect("the real server")
}

/// A gate that has just heard the server answers by itself for a second.
pub fn hear(mounted: &Mounted) {
    rustix::fs::statvfs(&mounted.path).expect("statfs");
}

/// Runs `test` on a thread in a mount namespace of its own. Without root nothing is tested, and said.
///
/// Each test is a process of its own too. Whatever starts a program copies all open files of its process, and before
/// the copies are gone it waits for the gates of those in a mount. A test whose gate stands still would so hold sockets
/// of all others.
pub fn in_private_mounts(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: mounting needs root");
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        // The harness calls the thread after its test.
        return in_own_process(std::thread::current().name().expect("the name of a test"));
    }
    let thread = std::thread::spawn(move || {
        sys::ns::unshare(sys::ns::Kinds::MOUNT).expect("a mount namespace");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).expect("private mounts");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn in_own_process(test: &str) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(ALONE, "1")
        .stdin(Stdio::null())
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    eprint!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains(" 1 passed;"), "{test} by itself: {}", output.status);
}

/// One mount with its gate.
pub struct Mounted {
    pub path: PathBuf,
    /// Starts and kills the gates. A process of its own, because one that has files of the mount open would wait for
    /// the gate when it starts the gate: a new process closes them.
    launcher: OwnedFd,
    process: Child,
    /// Where gates get their socket of the broker, when the server is the real one.
    sockets: Option<real::Sockets>,
    abort: Arc<File>,
    watchdog: Sender<()>,
    _directory: Arc<tempfile::TempDir>,
}

/// A server and the directory for its sockets.
pub struct World {
    pub server: Server,
    pub real: Option<real::Real>,
    /// Features that its gates do without.
    without: &'static str,
    directory: Arc<tempfile::TempDir>,
}

impl World {
    pub fn new() -> World {
        let directory = Arc::new(tempfile::Builder::new().prefix("dvs-gate-").tempdir().expect("a directory"));
        World { server: Server::start(&directory.path().join("fs")), real: None, without: "", directory }
    }

    /// With the real fs server over real rings.
    pub fn real() -> World {
        let mut world = World::new();
        world.real = Some(real::Real::start());
        world
    }

    /// On a kernel that does not have these.
    pub fn without(features: &'static str) -> World {
        let mut world = World::new();
        world.without = features;
        world
    }

    /// Mounts a tree as `name` and starts its gate.
    pub fn mount(&self, name: &str) -> Mounted {
        self.mount_for(name, PATIENCE)
    }

    /// Two nodes, for a run that takes its time.
    pub fn mount_two(&self) -> [Mounted; 2] {
        ["one", "two"].map(|name| self.mount_for(name, Duration::from_secs(300)))
    }

    /// For a test that takes longer than others.
    pub fn mount_for(&self, name: &str, patience: Duration) -> Mounted {
        let root = self.directory.path();
        let path = root.join(name);
        std::fs::create_dir(&path).expect("a mount point");
        let fuse: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/fuse").expect("fuse").into();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other,max_read=1048576",
            fuse.as_raw_fd()
        );
        let options = std::ffi::CString::new(options).expect("options");
        mount(c"dvs-test", path.as_path(), c"fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))
            .expect("mount");
        let state = rustix::fs::memfd_create("gate-state", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let socket = root.join(format!("{name}.control"));
        let control = sys::seqpacket::listen(&socket, 8).expect("a control socket");
        let abort = abort_file(root, &path);
        let watchdog = watch(Arc::clone(&abort), patience);
        let process = child_process("launcher_child", &socket, &root.join("fs"), self.without);
        wait_readable(&control);
        let launcher = sys::seqpacket::accept(&control).expect("the launcher connects");
        let deaths = answers_about_deaths();
        sys::seqpacket::send(&launcher, b"d", &[fuse.as_fd(), state.as_fd(), deaths.as_fd()])
            .expect("descriptors are sent");
        let directory = Arc::clone(&self.directory);
        let sockets = self.real.as_ref().map(real::Real::sockets);
        let mut mounted = Mounted { path, launcher, process, sockets, abort, watchdog, _directory: directory };
        mounted.command(START);
        mounted
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = unmount(self.directory.path().join("fusectl").as_path(), UnmountFlags::DETACH);
    }
}

impl Mounted {
    /// Kills the gate with SIGKILL and starts the next one, as the node daemon does.
    pub fn replace_gate(&mut self) {
        self.kill_gate();
        self.command(START);
    }

    pub fn kill_gate(&mut self) {
        self.command(KILL);
    }

    /// The gate stands still while `meanwhile` runs.
    pub fn stop_gate<R>(&mut self, meanwhile: impl FnOnce() -> R) -> R {
        self.command(STAND);
        let result = meanwhile();
        self.command(GO_ON);
        result
    }

    /// Tells the launcher and waits until it has done so.
    fn command(&mut self, what: u8) {
        let socket = self.sockets.as_mut().filter(|_| what == START).map(real::Sockets::next);
        let socket = socket.as_slice();
        sys::seqpacket::send(&self.launcher, &[what], socket).expect("the launcher is there");
        wait_readable(&self.launcher);
        let done = sys::seqpacket::receive(&self.launcher, &mut [0; 16]).expect("the launcher answers");
        assert_eq!(done.bytes, 1, "the launcher lives");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.watchdog.send(());
        // Nothing may wait for a gate any more, then the mount goes, then the launcher with its gate.
        let _ = unmount(self.path.as_path(), UnmountFlags::DETACH);
        let _ = (&*self.abort).write(b"1");
        let _ = sys::seqpacket::send(&self.launcher, &[END], &[] as &[OwnedFd]);
        let _ = self.process.wait();
    }
}

/// The test harness calls its thread after the test.
const SERVING: &str = "gate_child";

const START: u8 = b'g';
const KILL: u8 = b'k';
const STAND: u8 = b's';
const GO_ON: u8 = b'c';
const END: u8 = b'e';

fn child_process(role: &str, socket: &Path, server: &Path, without: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args([role, "--exact", "--ignored", "--nocapture"])
        .env(SOCKET, socket)
        .env("DVS_GATE_TEST_FS", server)
        .env(sys::without::VARIABLE, without)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a process")
}

/// The body of the launcher process; returns at once in an ordinary test run.
pub fn run_launcher_child() {
    let (Ok(socket), Ok(server)) = (std::env::var(SOCKET), std::env::var("DVS_GATE_TEST_FS")) else { return };
    let link = sys::seqpacket::connect(Path::new(&socket)).expect("the control socket");
    wait_readable(&link);
    let descriptors = sys::seqpacket::receive(&link, &mut [0; 16]).expect("descriptors").descriptors;
    let own = PathBuf::from(socket).with_extension("gate");
    let control = sys::seqpacket::listen(&own, 8).expect("a control socket");
    let mut gate: Option<(Child, OwnedFd)> = None;
    let mut killed = Vec::new();
    loop {
        wait_readable(&link);
        let mut command = [0; 16];
        let received = sys::seqpacket::receive(&link, &mut command).unwrap_or_default();
        let kind = if received.bytes == 1 { command[0] } else { END };
        if let (STAND | GO_ON, Some((gate, _))) = (kind, &gate) {
            let pid = rustix::process::Pid::from_child(gate);
            let signal = if kind == STAND { Signal::STOP } else { Signal::CONT };
            rustix::process::kill_process(pid, signal).expect("the gate is signalled");
        } else if let Some((mut gate, _link)) = gate.take() {
            let pid = rustix::process::Pid::from_child(&gate).as_raw_pid();
            let serving = sys::pidfd::open_thread(pid, SERVING);
            gate.kill().expect("the gate is killed");
            // Others of its threads may wait in the kernel until the next gate has answered.
            // It is not there when the tree was cut off from the gate.
            serving.iter().for_each(wait_readable);
            killed.retain_mut(|gate: &mut Child| gate.try_wait().expect("a child").is_none());
            killed.push(gate);
        }
        match kind {
            START => {
                let child = child_process(
                    "gate_child",
                    &own,
                    Path::new(&server),
                    &sys::without::variable().unwrap_or_default(),
                );
                wait_readable(&control);
                let gate_link = sys::seqpacket::accept(&control).expect("the gate connects");
                let handed: Vec<_> = descriptors.iter().chain(&received.descriptors).collect();
                sys::seqpacket::send(&gate_link, b"d", &handed).expect("descriptors are sent");
                gate = Some((child, gate_link));
            }
            KILL | STAND | GO_ON => {}
            _ => {
                killed.iter_mut().for_each(|gate| drop(gate.wait()));
                return;
            }
        }
        let _ = sys::seqpacket::send(&link, b"d", &[] as &[OwnedFd]);
    }
}

/// The file that aborts the connection of `path`, in a control file system of our own. Opened while the mount is there:
/// its number goes to the next mount, another test's maybe.
fn abort_file(root: &Path, path: &Path) -> Arc<File> {
    let control = root.join("fusectl");
    if !control.exists() {
        std::fs::create_dir(&control).expect("a mount point");
        mount(c"none", control.as_path(), c"fusectl", MountFlags::empty(), None).expect("fusectl");
    }
    let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mounts");
    let wanted = path.to_string_lossy();
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(&wanted)).expect("our mount");
    let device = line.split(' ').nth(2).and_then(|device| device.split(':').nth(1)).expect("a device number");
    Arc::new(File::options().write(true).open(control.join(device).join("abort")).expect("the abort file"))
}

fn watch(abort: Arc<File>, patience: Duration) -> Sender<()> {
    let (sender, ended) = channel();
    std::thread::spawn(move || {
        if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            eprintln!("HANGS: aborting the connection");
            let _ = (&*abort).write(b"1");
        }
    });
    sender
}

/// As a keeper gives them: until the last gate is gone.
fn answers_about_deaths() -> OwnedFd {
    let (ours, theirs) = sys::seqpacket::pair().expect("a pair");
    std::thread::spawn(move || {
        while sys::dying::answer(&ours).is_ok() {
            wait_readable(&ours);
        }
    });
    theirs
}

fn wait_readable(fd: impl AsFd) {
    let fd = fd.as_fd();
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, None).expect("poll");
}

/// The body of the gate process; returns at once in an ordinary test run.
pub fn run_gate_child() {
    let (Ok(socket), Ok(server)) = (std::env::var(SOCKET), std::env::var("DVS_GATE_TEST_FS")) else { return };
    if std::env::var("DVS_LOG").is_ok() {
        let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
    }
    let link = sys::seqpacket::connect(Path::new(&socket)).expect("the control socket");
    wait_readable(&link);
    let received = sys::seqpacket::receive(&link, &mut [0; 16]).expect("descriptors");
    let mut descriptors = received.descriptors.into_iter();
    let fuse = descriptors.next().expect("fuse");
    let state = descriptors.next().expect("state");
    let deaths = descriptors.next().expect("deaths");
    // The link becomes readable when the test closes it or dies.
    match descriptors.next() {
        None => serve(Gate::new(fuse, state, SocketBackend::new(Path::new(&server))).expect("a gate"), deaths, &link),
        Some(broker) => serve(Gate::new(fuse, state, real::backend(broker)).expect("a gate"), deaths, &link),
    }
}

fn serve<B: gate_fuse::backend::Backend>(gate: Gate<B>, deaths: OwnedFd, link: &OwnedFd) {
    let mut gate = gate.told_of_deaths_by(deaths);
    let end = gate.run(link);
    eprintln!("gate ended: {end:?}, {:?}", gate.counters());
}
