//! A development cluster of this run alone, and programs on it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::Outcome;
use crate::ending::{Registered, clean_up_by};

pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The container that is measured.
pub const DC: &str = "bench";
/// Where this binary lies in the container's tree.
const INSIDE: &str = "/dc/dvs-bench";
/// For what a cluster needs for something that is not measured.
pub const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Taken down when dropped.
pub struct Testbed {
    dvs: PathBuf,
    directory: tempfile::TempDir,
    /// Whose daemon is asked; any.
    asked: Option<&'static str>,
    _at_signal: Registered,
}

impl Testbed {
    pub fn up(dvs: &Path, options: &[&str]) -> Outcome<Testbed> {
        // Paths of sockets are short.
        let directory = tempfile::Builder::new().prefix("dvs-b").tempdir_in("/tmp")?;
        let (program, place) = (dvs.to_owned(), directory.path().to_owned());
        let at_signal = clean_up_by(move || {
            take_down(&program, &place);
            let _ = std::fs::remove_dir_all(&place);
        })?;
        let testbed = Testbed { dvs: dvs.to_owned(), directory, asked: None, _at_signal: at_signal };
        testbed.say(&[&["dev", "up", "--nodes", "3"], options].concat())?;
        Ok(testbed)
    }

    /// From now on this node's daemon is asked, because others are lost.
    pub fn ask(&mut self, node: &'static str) {
        self.asked = Some(node);
    }

    /// A container over all nodes with this binary in its tree; with one copy of its disk unless `more` says otherwise.
    pub fn container(&self, name: &str, more: &[&str]) -> Outcome<()> {
        let (nodes, own) = (NODES.join(","), std::env::current_exe()?);
        let copies: &[&str] = if more.contains(&"--replicas") { &[] } else { &["--replicas", "1"] };
        self.say(&[&["dc", "create", name, "--nodes", &nodes, "--start"], copies, more].concat())?;
        self.say(&[OsStr::new("cp"), own.as_os_str(), OsStr::new(&format!("{name}:{INSIDE}"))])?;
        Ok(())
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    pub fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = command(&self.dvs, self.path(), arguments);
        if let Some(node) = self.asked {
            command.env("DVS_SOCKET", self.path().join(format!("run/dev/dev/{node}/dvsd.sock")));
        }
        command
    }

    /// What it writes.
    pub fn say(&self, arguments: &[impl AsRef<OsStr>]) -> Outcome<String> {
        said(&self.command(arguments).output()?, arguments)
    }

    pub fn json(&self, arguments: &[&str]) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.say(&[arguments, &["-o", "json"]].concat())?)?)
    }

    /// What `dvs-bench program …` on a node of a container writes.
    pub fn program(&self, dc: &str, node: &str, arguments: &[&str]) -> Outcome<String> {
        self.say(&program(dc, node, arguments))
    }

    /// Starts one, and waits until it has written its first line. It ends with its input at the latest.
    pub fn begin(&self, dc: &str, node: &str, arguments: &[&str]) -> Outcome<Running> {
        let mut run = program(dc, node, arguments);
        run.insert(1, "--interactive");
        let mut child = self.command(&run).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(BufReader::new).ok_or("a program without output")?;
        let mut running = Running { child, output, first: String::new() };
        running.first = running.line()?;
        if running.first.is_empty() {
            return Err(format!("{arguments:?} said nothing ({})", running.child.wait()?).into());
        }
        Ok(running)
    }

    /// Starts a program of the machine on a node, outside of containers. It ends with its machine at the latest.
    pub fn serve(&self, node: &str, words: &[&str]) -> Outcome<Served> {
        let child = self.command(&[&["dev", "exec", node, "--"], words].concat()).stdout(Stdio::null()).spawn()?;
        Ok(Served(child))
    }

    /// A message from the first node to the second and its answer: microseconds at the median.
    pub fn far_trip(&self, dc: &str, seconds: &str) -> Outcome<f64> {
        let mut echo = self.begin(dc, NODES[1], &["echo"])?;
        let trip = super::read(&self.program(dc, NODES[0], &["call", echo.first(), "--seconds", seconds])?)?;
        echo.line()?;
        Ok(trip)
    }

    /// Runs a command of the shell on a node, outside of containers: about a part of a container there, whose process
    /// number is in `$PID`.
    pub fn about(&self, dc: &str, node: &str, kind: &str, command: &str) -> Outcome<String> {
        let pid = eventually(&format!("the {kind} of {dc} on {node}"), || {
            let shares = self.json(&["dc", "inspect", dc]).ok()?["shares"].clone();
            let share = shares.as_array()?.iter().find(|share| share["node"] == *node)?;
            share["servers"].as_array()?.iter().find(|server| server["kind"] == *kind)?["pid"].as_u64()
        })?;
        self.say(&["dev", "exec", node, "--", "sh", "-c", &format!("PID={pid}; {command}")])
    }

    /// The first processes of the nodes' machines.
    pub fn machines(&self) -> Outcome<Vec<u32>> {
        let record = std::fs::read(self.path().join("run/dev/dev/cluster.json"))?;
        let record: Value = serde_json::from_slice(&record)?;
        let nodes = record["nodes"].as_array().ok_or("a record without nodes")?;
        let pid = |node: &Value| node["machine"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        Ok(nodes.iter().filter_map(pid).collect())
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        take_down(&self.dvs, self.path());
    }
}

fn take_down(dvs: &Path, directory: &Path) {
    match command(dvs, directory, &["dev", "down"]).output() {
        Ok(done) if done.status.success() => (),
        other => eprintln!("dvs-bench: the cluster in {} was not taken down: {other:?}", directory.display()),
    }
}

fn command(dvs: &Path, directory: &Path, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(dvs);
    command.args(arguments).env("DVS_STATE_DIR", directory).env("XDG_CONFIG_HOME", directory.join("config"));
    command.env_remove("DVS_SOCKET").env_remove("DVS_CONTEXT").stdin(Stdio::null());
    command
}

fn program<'a>(dc: &'a str, node: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
    [&["run", dc, "--node", node, "--", INSIDE, "program"], arguments].concat()
}

fn said(done: &Output, arguments: &[impl AsRef<OsStr>]) -> Outcome<String> {
    if !done.status.success() {
        let what: Vec<_> = arguments.iter().map(|one| one.as_ref().to_string_lossy()).collect();
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("{} ({}): {}", what.join(" "), done.status, why.trim()).into());
    }
    Ok(String::from_utf8(done.stdout.clone())?)
}

/// The same natively.
pub fn native(arguments: &[&str]) -> Outcome<String> {
    let arguments = [&["program"], arguments].concat();
    said(&Command::new(std::env::current_exe()?).args(&arguments).stdin(Stdio::null()).output()?, &arguments)
}

/// A program that is there until it ends by itself, or this is dropped.
pub struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    first: String,
}

impl Running {
    /// The line with which it said that it is there.
    pub fn first(&self) -> &str {
        &self.first
    }

    /// It reads nothing more.
    pub fn end_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Empty at the end.
    pub fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

pub struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Signals that this process waits for are blocked in those that it starts.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Until it says something, for [`PATIENCE`] at most.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        if Instant::now() > until {
            return Err(format!("{what}: not within {} s", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
