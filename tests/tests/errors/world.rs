//! Where lines of the table are tried: a cluster with a container, a program, somebody with access; and files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, dvs_binary, eventually};

use crate::table::{Row, Short, Well};

/// Lines tried at a time: those that wait for somebody who is away wait together.
const AT_ONCE: usize = 40;
/// A line that goes on until it is ended has begun by then, or was refused.
const BEGUN: &str = "3";
/// No line takes longer, whatever is wrong.
pub const BOUND: Duration = Duration::from_secs(20);
/// Of a test that hangs.
const NEVER: &str = "120";

/// What lines are filled with, and with which environment they are tried.
pub struct Files {
    directory: tempfile::TempDir,
    names: AtomicU32,
    pub words: BTreeMap<&'static str, String>,
}

impl Files {
    pub fn new() -> Files {
        let directory = tempfile::Builder::new().prefix("dvs-e").tempdir_in("/tmp").expect("temporary directory");
        let for_us_alone = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(directory.path(), for_us_alone).expect("a mode");
        let files = Files { directory, names: AtomicU32::new(0), words: BTreeMap::new() };
        let path = |name: &str| files.path(name);
        fs::create_dir(path("tree")).expect("a directory");
        fs::write(path("tree/file"), "content").expect("a file");
        // As `idle` is made, but for a limit.
        let idle = "name = 'idle'\nlimits = { pids = 77 }\n[[services]]\nname = 'clock'\ncommand = ['true']\n\
            [[ports]]\npublished = 18079\nport = 18079\n";
        fs::write(path("idle.toml"), idle).expect("a file");
        let make = |arguments: &[&str]| {
            let done = files.dvs(arguments).output().expect("dvs starts");
            assert!(done.status.success(), "{arguments:?}: {done:?}");
        };
        make(&["node", "ca", "home", "--out", &path("ca").display().to_string()]);
        make(&["access", "key", "bob", "--out", &path("").display().to_string()]);
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Clusters elsewhere of whoever runs these lines.
    pub fn contexts(&self) -> PathBuf {
        self.path("config")
    }

    pub fn fill(&self, line: &[&str]) -> Vec<String> {
        let new = format!("new{}", self.names.fetch_add(1, Ordering::Relaxed));
        let token = format!("{}.{}.{}", "0a".repeat(4), "5e".repeat(16), "ff".repeat(32));
        let directory = self.directory.path().display().to_string();
        let own = ["--config", "{dir}/own/dvsd.toml", "--data", "{dir}/own/state", "--run", "{dir}/own/run"];
        let words = line.iter().flat_map(|word| if *word == "{own}" { own.to_vec() } else { vec![*word] });
        let words = words.map(|word| {
            let word = word.replace("{dir}", &directory).replace("{new}", &new).replace("{token}", &token);
            self.words.iter().fold(word, |word, (name, value)| word.replace(&format!("{{{name}}}"), value))
        });
        words.collect()
    }

    /// The part of a message that is awaited.
    pub fn fill_word(&self, word: &str) -> String {
        self.fill(&[word]).concat()
    }

    /// `dvs` as somebody runs it who has these files and no cluster.
    pub fn dvs<S: AsRef<std::ffi::OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", NEVER]).arg(dvs_binary()).args(arguments);
        self.environment(&mut command);
        command.env("DVS_STATE_DIR", self.path("nothing")).current_dir(self.directory.path());
        command
    }

    /// The same on a machine of its own network, which has this address.
    pub fn dvs_at<S: AsRef<std::ffi::OsStr>>(&self, address: &str, arguments: &[S]) -> Command {
        let script = "ip link set lo up; ip address add $0/32 dev lo; exec \"$@\"";
        let inner = self.dvs(arguments);
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-ec", script, address]).arg(inner.get_program()).args(inner.get_args());
        self.environment(&mut command);
        command.env("DVS_STATE_DIR", self.path("nothing")).current_dir(self.directory.path());
        command
    }

    pub fn environment(&self, command: &mut Command) {
        for name in ["DVS_SOCKET", "DVS_CONTEXT", "DVS_CLUSTER"] {
            command.env_remove(name);
        }
        command.env("XDG_CONFIG_HOME", self.contexts()).env("RUST_BACKTRACE", "1").stdin(Stdio::null());
    }

    /// All files below the directory, with their content. Not the key of a machine that asked to join: it is kept for
    /// the same again, and lets nobody in.
    pub fn listed(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let (own, kept) = (self.path("own"), self.path("own/state"));
        let is_kept = |path: &Path| {
            let is_of_join = path.file_name().is_some_and(|name| name == "join.key" || name == "join.csr");
            path == own || path == kept || path.starts_with(&kept) && is_of_join
        };
        listed(self.directory.path()).into_iter().filter(|(path, _)| !is_kept(path)).collect()
    }
}

/// Directories too; those have no content.
pub fn listed(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let content = if is_directory { Vec::new() } else { fs::read(&path).unwrap_or_default() };
            if is_directory {
                open.push(path.clone());
            }
            found.insert(path, content);
        }
    }
    found
}

/// A cluster with `shop` on `node`, `idle`, which does not run, and `ada`, who has access.
pub struct World {
    pub files: Files,
    pub cluster: Cluster,
}

impl World {
    pub fn begin(cluster: Cluster, node: &str, other: &str) -> World {
        let mut files = Files::new();
        cluster.ok(&["dc", "create", "shop", "--nodes", node, "--disk", "64M", "--start"]);
        cluster.ok(&["dc", "create", "idle", "--nodes", node, "--disk", "64M"]);
        cluster.ok(&["run", "shop", "--", "mkdir", "/dc/srv"]);
        for snapshot in ["kept", "doomed"] {
            cluster.ok(&["fs", "snapshot", "create", "shop", snapshot]);
        }
        for key in ["key", "doomed"] {
            cluster.ok(&["ds", "put", "shop", key, "value"]);
        }
        cluster.ok(&["service", "add", "idle", "clock", "--", "true"]);
        cluster.ok(&["port", "add", "idle", "18079"]);
        cluster.ok(&["service", "add", "shop", "clock", "--", "sleep", "100000"]);
        eventually("the service runs", BOUND, || {
            let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
            (services[0]["instances"][0]["pid"].as_u64()? > 0).then_some(())
        });
        cluster.ok(&["dc", "backup", "shop", &files.path("shop.backup").display().to_string()]);
        let pid = cluster.ok(&["run", "-d", "shop", "--", "sleep", "100000"]);
        let access = files.path("ada.access");
        cluster.ok(&["access", "token", "ada", "--role", "viewer", "--out", &access.display().to_string()]);
        let contexts = files.contexts().join("dvs/contexts");
        fs::create_dir_all(&contexts).expect("a directory");
        fs::copy(&access, contexts.join("far.json")).expect("a context");
        files.words.insert("node", node.to_owned());
        files.words.insert("other", other.to_owned());
        files.words.insert("pid", pid.trim().to_owned());
        World { files, cluster }
    }

    /// `dvs` with a line, aimed at the daemon of a node.
    pub fn at(&self, node: &str, typed: &str, line: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", NEVER]).arg(dvs_binary());
        command.args(typed.split_whitespace()).args(line);
        self.files.environment(&mut command);
        command.env("DVS_STATE_DIR", self.cluster.state_dir()).env("DVS_SOCKET", self.cluster.socket_of(node));
        command.current_dir(self.files.path(""));
        command
    }

    /// What the cluster decided, as people see it, without what changes by itself.
    pub fn decided(&self, node: &str) -> String {
        let ask = |arguments: &[&str]| {
            let mut words = arguments.to_vec();
            words.extend(["-o", "json"]);
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let done = self.at(node, "", &words).output().expect("dvs starts");
            assert!(done.status.success(), "{arguments:?}: {done:?}");
            serde_json::from_slice::<serde_json::Value>(&done.stdout).expect("JSON")
        };
        let mut said = String::new();
        for dc in ask(&["dc", "ls"]).as_array().expect("a list") {
            said.push_str(&format!("container {} {}\n", dc["spec"], dc["phase"] == "stopped"));
        }
        for node in ask(&["node", "ls"]).as_array().expect("a list") {
            said.push_str(&format!("node {} {} {}\n", node["name"], node["labels"], node["cordoned"]));
        }
        for access in ask(&["access", "ls"]).as_array().expect("a list") {
            said.push_str(&format!("access {} {}\n", access["name"], access["role"]));
        }
        said
    }
}

/// A line that was tried.
pub struct Tried {
    pub row: &'static Row,
    pub line: Vec<String>,
    pub done: Output,
    pub took: Duration,
}

impl Tried {
    pub fn of(row: &'static Row, line: Vec<String>, mut command: Command) -> Tried {
        let began = Instant::now();
        let done = command.output().expect("dvs starts");
        Tried { row, line, done, took: began.elapsed() }
    }

    pub fn words(&self) -> String {
        format!("dvs {} {}", self.row.typed, self.line.join(" "))
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.done.stderr).into_owned()
    }

    /// One error in the form of the house, with the status that is documented, soon, and no data.
    pub fn demand_refusal(&self, status: i32, part: &str) -> Result<(), String> {
        self.demand_refusal_within(BOUND, status, part)
    }

    pub fn demand_refusal_within(&self, bound: Duration, status: i32, part: &str) -> Result<(), String> {
        let said = self.said();
        let fault = |what: &str| {
            Err(format!(
                "{}: {what}\n  status {:?} after {:?}\n{said}",
                self.words(),
                self.done.status.code(),
                self.took
            ))
        };
        let mut lines = said.lines();
        if self.done.status.code() != Some(status) {
            return fault(&format!("the status is not {status}"));
        }
        if !lines.next().is_some_and(|line| line.starts_with("dvs: ")) {
            return fault("it does not begin with what failed");
        }
        let rest: Vec<&str> = lines.collect();
        let Some((last, causes)) = rest.split_last() else { return fault("it says nothing but what failed") };
        if !last.starts_with("  try: ") || last.len() < "  try: ".len() + 3 {
            return fault("it does not end with what to try");
        }
        if let Some(other) = causes.iter().find(|line| !line.starts_with("  because: ")) {
            return fault(&format!("{other:?} is neither a cause nor advice"));
        }
        if !said.contains(part) {
            return fault(&format!("it does not say {part:?}"));
        }
        if said.contains("panicked") || said.contains("RUST_BACKTRACE") {
            return fault("it panicked");
        }
        if self.took > bound {
            return fault("it takes too long");
        }
        if !self.done.stdout.is_empty() {
            return fault(&format!("it prints data as well: {}", String::from_utf8_lossy(&self.done.stdout)));
        }
        Ok(())
    }

    /// It did what it was asked for, or goes on doing so.
    pub fn demand_success(&self) -> Result<(), String> {
        const STILL_AT_IT: i32 = 124;
        let expected = if self.row.well == Well::Endless { STILL_AT_IT } else { 0 };
        if self.done.status.code() == Some(expected) {
            return Ok(());
        }
        Err(format!(
            "{}: status {:?} after {:?}, not {expected}\n{}",
            self.words(),
            self.done.status.code(),
            self.took,
            self.said()
        ))
    }

    /// Whichever it may be.
    pub fn demand(&self, short: Short, part: &str) -> Result<(), String> {
        match short {
            Short::Refused => self.demand_refusal(self.row.status(), part),
            Short::Answers => self.demand_success(),
            Short::Either => self.demand_success().or_else(|_| self.demand_refusal(self.row.status(), "")),
        }
    }
}

/// Ends what goes on until it is ended.
pub fn bounded(row: &Row, command: Command) -> Command {
    if row.well != Well::Endless {
        return command;
    }
    let mut bounded = Command::new("timeout");
    bounded.arg(BEGUN).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        bounded.current_dir(directory);
    }
    bounded
}

/// Tries lines, several at a time.
pub fn try_all(lines: Vec<(&'static Row, Vec<String>, Command)>) -> Vec<Tried> {
    let (queue, tried) = (Mutex::new(lines.into_iter().rev().collect::<Vec<_>>()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no panic").pop();
                    let Some((row, line, command)) = next else { return };
                    let one = Tried::of(row, line, command);
                    tried.lock().expect("no panic").push(one);
                }
            });
        }
    });
    tried.into_inner().expect("no panic")
}

/// All that is not as it should be, at once: who mends one line wants to see the others.
#[track_caller]
pub fn demand_none(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{what}: {} lines\n\n{}", faults.len(), faults.join("\n\n"));
}
