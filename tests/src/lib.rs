//! Whole clusters for tests: `Cluster::up(3)` is what `dvs dev up` makes, in a state directory of its own, and goes
//! away when dropped.
//!
//! Tests here use the command as people do; what can be shown at a lower level is tested there. They need root and the
//! built binary (`cargo build --package dvs`).

#![forbid(unsafe_code)]

pub mod c_library;
pub mod clock;
pub mod debian;
pub mod load;
pub mod machines;
pub mod nbd;
pub mod openapi;
pub mod outside;
pub mod robustness;
pub mod store_load;
pub mod terminal;
pub mod traces;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No single command of a test takes longer; `timeout` ends it.
const COMMAND_SECONDS: &str = "120";

/// A cluster of simulated nodes `n1`, `n2` … on this machine.
pub struct Cluster {
    directory: tempfile::TempDir,
    /// The file system on which all of it lies, when it has one of its own.
    disk: Option<tempfile::NamedTempFile>,
    /// Whose daemon is asked; `None`: that of the first node.
    asked: Option<String>,
}

impl Cluster {
    /// Panics with everything the command said when it does not come up.
    pub fn up(nodes: usize) -> Cluster {
        Cluster::up_with(nodes, &[])
    }

    /// With more options of `dvs dev up`.
    pub fn up_with(nodes: usize, more: &[&str]) -> Cluster {
        let directory = tempfile::Builder::new().prefix("dvs-t").tempdir_in("/tmp").expect("temporary directory");
        let cluster = Cluster { directory, disk: None, asked: None };
        cluster.begin(nodes, more);
        cluster
    }

    /// On a kernel that has none of these features (`DVS_WITHOUT`).
    pub fn up_without(nodes: usize, features: &str) -> Cluster {
        let directory = tempfile::Builder::new().prefix("dvs-t").tempdir_in("/tmp").expect("temporary directory");
        let cluster = Cluster { directory, disk: None, asked: None };
        let mut command = cluster.command(&["dev", "up", "--nodes", &nodes.to_string()]);
        let done = command.env("DVS_WITHOUT", features).output().expect("dvs starts");
        assert!(done.status.success(), "{done:?}{}", cluster.logs());
        cluster
    }

    /// On a small ext4 of its own, which can be filled. `None`: this machine cannot mount one.
    pub fn up_on_disk(nodes: usize, bytes: u64) -> Option<Cluster> {
        let directory = tempfile::Builder::new().prefix("dvs-t").tempdir_in("/tmp").expect("temporary directory");
        let disk = tempfile::NamedTempFile::new_in("/tmp").expect("temporary file");
        disk.as_file().set_len(bytes).expect("a sparse file");
        let done = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        let is_mounted = done(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(disk.path()))
            && done(Command::new("mount").args(["-o", "loop"]).arg(disk.path()).arg(directory.path()));
        let cluster = Cluster { directory, disk: is_mounted.then_some(disk), asked: None };
        cluster.disk.as_ref()?;
        cluster.begin(nodes, &[]);
        Some(cluster)
    }

    fn begin(&self, nodes: usize, more: &[&str]) {
        self.ok(&[&["dev", "up", "--nodes", &nodes.to_string()], more].concat());
    }

    /// A container over the first `nodes` nodes, started. Its disk has one copy unless `more` says otherwise, which is
    /// faster than what people get who say nothing; `$DVS_TEST_REPLICAS` has all tests on disks with so many copies,
    /// where there are as many nodes.
    pub fn container(&self, name: &str, nodes: usize, more: &[&str]) {
        let list = (1..=nodes).map(|index| format!("n{index}")).collect::<Vec<_>>().join(",");
        let mut arguments = vec!["dc", "create", name, "--nodes", &list, "--start"];
        arguments.extend_from_slice(more);
        let asked = std::env::var("DVS_TEST_REPLICAS").ok();
        let asked = asked.as_deref().filter(|replicas| replicas.parse().is_ok_and(|many: usize| many <= nodes));
        if !more.contains(&"--replicas") {
            arguments.extend(["--replicas", asked.unwrap_or("1")]);
        }
        self.ok(&arguments);
    }

    /// From now on this node's daemon is asked.
    pub fn asking(mut self, node: &str) -> Cluster {
        self.asked = Some(node.to_owned());
        self
    }

    pub fn state_dir(&self) -> &Path {
        self.directory.path()
    }

    /// Where the daemon of a node listens.
    pub fn socket_of(&self, node: &str) -> PathBuf {
        self.path_of(node, "socket")
    }

    /// The settings of a node.
    pub fn config_of(&self, node: &str) -> PathBuf {
        self.path_of(node, "config")
    }

    /// Something that the cluster's record has of a node.
    pub fn path_of(&self, node: &str, what: &str) -> PathBuf {
        PathBuf::from(self.record_of(node).expect("the node")[what].as_str().expect("a path"))
    }

    /// What the cluster's record has of a node.
    pub fn record_of(&self, node: &str) -> Option<Value> {
        let place = self.directory.path().join("run").join("dev").join("dev").join("cluster.json");
        let record: Value = serde_json::from_slice(&std::fs::read(place).ok()?).ok()?;
        record["nodes"].as_array()?.iter().find(|one| one["name"] == node).cloned()
    }

    /// `dvs` with these arguments, aimed at this cluster, ended after two minutes.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", COMMAND_SECONDS]).arg(dvs_binary()).args(arguments);
        command.env("DVS_STATE_DIR", self.directory.path()).env_remove("DVS_SOCKET").stdin(Stdio::null());
        self.without_contexts(&mut command);
        if let Some(node) = &self.asked {
            command.env("DVS_SOCKET", self.socket_of(node));
        }
        command
    }

    /// Whoever runs the tests may have contexts of their own.
    fn without_contexts(&self, command: &mut Command) {
        command.env_remove("DVS_CONTEXT").env("XDG_CONFIG_HOME", self.directory.path().join("config"));
    }

    /// As [`Cluster::command`], for a program that is ended by whoever started it: it heeds interrupts, although jobs
    /// in the background of a script, as these tests may be, ignore them.
    pub fn command_without_limit<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(dvs_binary());
        command.args(arguments).env("DVS_STATE_DIR", self.directory.path()).env_remove("DVS_SOCKET");
        self.without_contexts(&mut command);
        command
    }

    pub fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Output {
        self.command(arguments).output().expect("dvs starts")
    }

    /// Standard output of a command that must succeed.
    pub fn ok<S: AsRef<OsStr>>(&self, arguments: &[S]) -> String {
        let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy().into_owned()).collect();
        let done = self.output(arguments);
        assert!(
            done.status.success(),
            "dvs {} failed ({})\nstdout: {}\nstderr: {}{}",
            words.join(" "),
            done.status,
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr),
            self.logs(),
        );
        String::from_utf8(done.stdout).expect("output is UTF-8")
    }

    pub fn json<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Value {
        let text = self.ok(arguments);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
    }

    /// Exit status and standard error of a command that may fail.
    pub fn fails<S: AsRef<OsStr>>(&self, arguments: &[S]) -> (i32, String) {
        let done = self.output(arguments);
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).into_owned())
    }

    /// Runs a shell script in the container on a node and gives its output.
    pub fn sh(&self, dc: &str, node: &str, script: &str) -> String {
        self.ok(&["run", dc, "--node", node, "--", "bash", "-ec", script])
    }

    /// As [`Cluster::sh`], with bytes on standard input.
    pub fn sh_with_input(&self, dc: &str, node: &str, script: &str, input: &[u8]) -> Output {
        let mut child = self
            .command(&["run", dc, "--node", node, "-i", "--", "bash", "-ec", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dvs starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let done = child.wait_with_output().expect("dvs ends");
        // A program that does not read its input closes the pipe: that is its right.
        let _ = writer.join().expect("writer does not panic");
        done
    }

    /// A detached program that goes on while the test does something else.
    pub fn spawn<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("dvs starts")
    }

    /// PID, on its node, of a running server (`fs`, `ds`, `disk-root`, `gate` …) of a container.
    pub fn server_pid(&self, dc: &str, node: &str, name: &str) -> Option<u32> {
        let inspected = self.json(&["dc", "inspect", dc, "-o", "json"]);
        let share = inspected["shares"].as_array()?.iter().find(|share| share["node"] == node)?.clone();
        let server = share["servers"].as_array()?.iter().find(|server| server["name"] == name)?.clone();
        server["pid"].as_u64().map(|pid| pid as u32)
    }

    /// Ends the connection that the proxy of a node has with its broker, which lives. Answers the proxy's PID here.
    pub fn cut_proxy_from_broker(&self, node: &str) -> Option<u32> {
        let (pid, record) = self.proxy_of(node)?;
        let process = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
        let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()?;
        let number = i32::try_from(record["broker_fd"].as_i64()?).ok()?;
        let flags = rustix::process::PidfdGetfdFlags::empty();
        let socket = rustix::process::pidfd_getfd(process, number, flags).ok()?;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).ok()?;
        Some(pid)
    }

    /// The first proxy of a node: its PID here, and what it was started with.
    pub fn proxy_of(&self, node: &str) -> Option<(u32, Value)> {
        let own = |record: &Value| {
            let tls_dir = record["options"]["tls_dir"].as_str().unwrap_or_default();
            record["node"] == node && Path::new(tls_dir).starts_with(self.state_dir())
        };
        let processes = std::fs::read_dir("/proc").ok()?.flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find_map(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let record = environment.split(|byte| *byte == 0).find_map(|text| text.strip_prefix(b"DVS_SPAWN="))?;
            let record = serde_json::from_slice(record).ok()?;
            (command == b"dvs\0proxy\0" && own(&record)).then_some((pid, record))
        })
    }

    /// SIGKILL to a process of a node, by its PID there.
    pub fn kill(&self, node: &str, pid: u32) {
        self.ok(&["dev", "exec", node, "--", "kill", "-9", &pid.to_string()]);
    }

    /// Kills a node's daemon, and waits until another node's knows it.
    pub fn lose_daemon(&self, node: &str, witness: &str) {
        self.ok(&["dev", "exec", node, "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
        eventually("its daemon is away", Duration::from_secs(30), || {
            let nodes = self.json(&["--at", witness, "node", "ls", "-o", "json"]);
            let state = nodes.as_array()?.iter().find(|one| one["name"] == node)?["state"].clone();
            (state == "down").then_some(())
        });
    }

    /// The end of every log of the cluster, for a failure's message.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for path in files_ending(self.directory.path(), ".log") {
            let content = std::fs::read(&path).unwrap_or_default();
            let tail = &content[content.len().saturating_sub(2000)..];
            text.push_str(&format!("\n--- {}\n{}", path.display(), String::from_utf8_lossy(tail)));
        }
        text
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A test may have taken it down itself.
        let is_down = files_ending(self.directory.path(), "cluster.json").is_empty();
        let done = (!is_down).then(|| self.output(&["dev", "down"]));
        if self.disk.is_some() {
            let _ = Command::new("umount").arg("-l").arg(self.directory.path()).status();
        }
        if let Some(done) = done.filter(|done| !done.status.success() && !std::thread::panicking()) {
            panic!("dev down failed: {}", String::from_utf8_lossy(&done.stderr));
        }
    }
}

/// Asks again until it is so; panics when `limit` passes. For states that another process reaches on its own.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The binary that was built beside the tests.
pub fn dvs_binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/.../deps");
    let binary = folder.join("dvs");
    assert!(binary.exists(), "{} is missing: run `cargo build --package dvs` first", binary.display());
    binary
}

/// Whether this run may take longer than minutes.
pub fn is_long_run() -> bool {
    std::env::var_os("DVS_TEST_LONG").is_some()
}

fn files_ending(directory: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            found.extend(files_ending(&entry.path(), suffix));
        } else if kind.is_file() && entry.file_name().to_string_lossy().ends_with(suffix) {
            found.push(entry.path());
        }
    }
    found
}

/// Takes everything that is left of a file system.
pub fn fill(path: &Path) {
    let mut file = std::fs::File::create(path).expect("a file");
    let mut piece = vec![7; 1 << 20];
    // Large pieces first, then what is left beside them.
    while !piece.is_empty() {
        match file.write(&piece) {
            Ok(_) => (),
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => piece.truncate(piece.len() / 16),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether there is an etcd; says that what needs one is skipped when there is none.
pub fn has_etcd() -> bool {
    let is_there = Command::new("etcd").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
    }
    is_there
}
