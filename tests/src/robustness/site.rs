//! Three machines, each with a small disk of its own for its state, and who runs what on them.
//!
//! The disk is a file with an ext4, mounted inside the machine: it goes with the machine, and can be full, slow and
//! hung without the host's being so. A disk that hangs is thawed by a process of its own, so that it does whatever
//! becomes of the run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::machines::Machines;
use crate::robustness::faults::{NODES, Node};
use crate::{dvs_binary, eventually};

/// Room for a member of the engine, whose log is 64 MiB at a time, and the container's disk.
const DISK_BYTES: &str = "900M";
const STATE: &str = "/var/lib/dvs";
/// A daemon that is not ready by then never will be.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// No command of people lasts longer, whatever happens.
pub const COMMAND_SECONDS: &str = "60";

pub struct Site {
    machines: Machines,
    disks: tempfile::TempDir,
}

impl Site {
    /// One cluster of three, with a member of the engine on each.
    pub fn up() -> Site {
        let disks = tempfile::Builder::new().prefix("dvs-d").tempdir_in("/tmp").expect("temporary directory");
        let site = Site { machines: Machines::up(NODES.len()), disks };
        for node in 0..NODES.len() {
            site.new_disk(node);
            site.mount(node);
        }
        site.machines.ok("n1", &["cluster", "init", "home"]);
        site.start_daemon(0);
        for node in 1..NODES.len() {
            site.join(node);
        }
        site.machines.await_members(&NODES, &NODES);
        site
    }

    fn disk(&self, node: Node) -> PathBuf {
        self.disks.path().join(NODES[node])
    }

    fn new_disk(&self, node: Node) {
        let disk = self.disk(node);
        let _ = std::fs::remove_file(&disk);
        let made = Command::new("truncate").args(["-s", DISK_BYTES]).arg(&disk).status().is_ok_and(|it| it.success())
            && Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&disk).status().is_ok_and(|it| it.success());
        assert!(made, "no file system in {}", disk.display());
    }

    fn mount(&self, node: Node) {
        let disk = self.disk(node);
        let disk = disk.to_str().expect("a path of text");
        // The kernel lets go of the disk of a machine that is gone when its last process is.
        eventually("the disk is mounted", READY_WITHIN, || {
            self.machines.run(NODES[node], &["mount", "-o", "loop", disk, STATE]).status.success().then_some(())
        });
    }

    fn join(&self, node: Node) {
        let helper = NODES[(node + NODES.len() - 1) % NODES.len()];
        let said = self.machines.ok(helper, &["node", "token"]);
        let token = said.split_whitespace().find(|word| word.contains('@')).expect("a token").to_owned();
        self.machines.ok(NODES[node], &["node", "join", &token]);
        self.start_daemon(node);
    }

    pub fn machines(&self) -> &Machines {
        &self.machines
    }

    // ---- one machine

    /// In the background, as a service would be.
    pub fn start_daemon(&self, node: Node) {
        self.begin_daemon(node);
        self.await_ready(node);
    }

    pub fn begin_daemon(&self, node: Node) {
        let script = format!(
            "setsid {} daemon --config /etc/dvs/dvsd.toml >>{STATE}/dvsd.log 2>&1 </dev/null & sleep 0",
            dvs_binary().display()
        );
        self.machines.sh(NODES[node], &script);
    }

    /// What a second daemon of a node says, and that it ends. One that finds the first one gone works for a second.
    pub fn second_daemon(&self, node: Node) -> String {
        let program = dvs_binary();
        let program = program.to_str().expect("a path of text");
        let run = ["timeout", "--signal=TERM", "10", program, "daemon", "--config", "/etc/dvs/dvsd.toml"];
        let done = self.machines.run(NODES[node], &run);
        String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout)
    }

    fn await_ready(&self, node: Node) {
        let begin = Instant::now();
        loop {
            if self.states(node).is_some_and(|states| states.iter().any(|(of, is)| of == NODES[node] && is == "ready"))
            {
                return;
            }
            assert!(begin.elapsed() < READY_WITHIN, "{} is not ready:{}", NODES[node], self.machines.log(NODES[node]));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn power_off(&self, node: Node) {
        self.machines.dev(&["kill", NODES[node]]);
    }

    pub fn power_on(&self, node: Node) {
        self.machines.dev(&["restart", NODES[node]]);
        self.mount(node);
        self.begin_daemon(node);
    }

    /// The machine is lost with its disk, and a new one of its name joins. No container may have been on it.
    pub fn replace(&self, node: Node) -> Result<(), String> {
        let other = (node + 1) % NODES.len();
        self.power_off(node);
        let begin = Instant::now();
        // While it seems to live a node is not taken for lost; and the engine may stand still for ten seconds.
        loop {
            let done = self.dvs(other, &["node", "remove", NODES[node], "--lost"]);
            if done.status.success() {
                break;
            }
            if begin.elapsed() > READY_WITHIN {
                return Err(format!("{} was not removed: {}", NODES[node], String::from_utf8_lossy(&done.stderr)));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.machines.dev(&["restart", NODES[node]]);
        self.new_disk(node);
        self.mount(node);
        // A new machine has no settings either.
        self.machines.sh(NODES[node], "rm -f /etc/dvs/dvsd.toml");
        let begin = Instant::now();
        let token = loop {
            let done = self.dvs(other, &["node", "token"]);
            let said = String::from_utf8_lossy(&done.stdout).into_owned();
            if let Some(token) = said.split_whitespace().find(|word| word.contains('@')) {
                break token.to_owned();
            }
            if begin.elapsed() > READY_WITHIN {
                return Err(format!("no token: {}", String::from_utf8_lossy(&done.stderr)));
            }
            std::thread::sleep(Duration::from_millis(100));
        };
        loop {
            let done = self.machines.dvs(NODES[node], &["node", "join", &token]);
            if done.status.success() {
                break;
            }
            if begin.elapsed() > READY_WITHIN {
                return Err(format!("it did not join: {}", String::from_utf8_lossy(&done.stderr)));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.begin_daemon(node);
        Ok(())
    }

    // ---- what is said of them

    /// The first process of a machine, as this host numbers it.
    pub fn machine_pid(&self, node: Node) -> Option<u32> {
        self.machines.machine_pid(NODES[node])
    }

    /// A place inside a machine, seen from here.
    pub fn inside(&self, node: Node, path: &str) -> Option<PathBuf> {
        Some(PathBuf::from(format!("/proc/{}/root{path}", self.machine_pid(node)?)))
    }

    /// `dvs` of this host, which talks to the daemon of a node.
    pub fn command(&self, node: Node, arguments: &[&str]) -> Command {
        self.command_within(node, COMMAND_SECONDS, arguments)
    }

    pub fn command_within(&self, node: Node, seconds: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", seconds]).arg(dvs_binary()).args(arguments);
        self.aim(&mut command, node);
        command
    }

    /// For a program that is ended by whoever started it.
    pub fn command_without_limit(&self, node: Node, arguments: &[&str]) -> Command {
        let mut command = Command::new(dvs_binary());
        command.args(arguments);
        self.aim(&mut command, node);
        command
    }

    fn aim(&self, command: &mut Command, node: Node) {
        let socket = self.inside(node, "/run/dvs/dvsd.sock").unwrap_or_else(|| PathBuf::from("/nonexistent"));
        command.env("DVS_SOCKET", socket).env_remove("DVS_STATE_DIR").stdin(Stdio::null());
    }

    pub fn dvs(&self, node: Node, arguments: &[&str]) -> Output {
        self.command(node, arguments).output().expect("dvs starts")
    }

    pub fn json(&self, node: Node, arguments: &[&str]) -> Option<Value> {
        let done = self.dvs(node, &[arguments, &["-o", "json"]].concat());
        done.status.success().then(|| serde_json::from_slice(&done.stdout).ok())?
    }

    /// Of all nodes, as this one lists them.
    pub fn states(&self, node: Node) -> Option<Vec<(String, String)>> {
        let listed = self.json(node, &["node", "ls"])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(listed.as_array()?.iter().map(|one| (text(&one["name"]), text(&one["state"]))).collect())
    }

    /// Keys of the engine, below the cluster's root.
    pub fn engine_keys(&self, node: Node) -> Option<Vec<String>> {
        let done = self.etcdctl(node, &["get", "--prefix", "--keys-only", "dvs/home/"]);
        let keys = String::from_utf8(done.stdout).ok().filter(|_| done.status.success())?;
        Some(keys.lines().filter_map(|line| line.strip_prefix("dvs/home")).map(str::to_owned).collect())
    }

    pub fn etcdctl(&self, node: Node, arguments: &[&str]) -> Output {
        let address = format!("--endpoints=https://10.255.0.{}:2379", node + 1);
        let tls = |name: &str, file: &str| format!("--{name}={STATE}/tls/{file}");
        let [ca, cert, key] = [tls("cacert", "ca.crt"), tls("cert", "node.crt"), tls("key", "node.key")];
        let head = ["timeout", "30", "env", "ETCDCTL_API=3", "etcdctl", &address, &ca, &cert, &key];
        self.machines.run(NODES[node], &[&head[..], arguments].concat())
    }

    // ---- disks

    /// A process of this host that lets the disk hang for a time, and ends.
    pub fn hang_disk(&self, node: Node, script: &str) {
        let Some(place) = self.inside(node, STATE) else { return };
        let script = format!("exec 3<{} || exit; f() {{ fsfreeze -$1 /proc/self/fd/3; }}; {script}", place.display());
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Ok(mut child) = command.spawn() {
            let _ = child.wait();
        }
    }

    pub fn filler(&self, node: Node) -> Option<PathBuf> {
        self.inside(node, &format!("{STATE}/filler"))
    }

    /// Copies the logs of all daemons and members for people.
    pub fn save_logs(&self, to: &Path) {
        let _ = std::fs::create_dir_all(to);
        for (node, name) in NODES.iter().enumerate() {
            let Some(state) = self.inside(node, STATE) else { continue };
            let _ = Command::new("sh")
                .args(["-c", "cd \"$0\" && cp --parents dvsd.log log/* dcs/*/log/* engine.json \"$1\" 2>/dev/null"])
                .arg(state)
                .arg({
                    let place = to.join(name);
                    let _ = std::fs::create_dir_all(&place);
                    place
                })
                .status();
        }
    }
}
