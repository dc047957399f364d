//! Machines without anything, of which a test makes a cluster as people do: `dvs cluster init`, `dvs node join`.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::{Cluster, dvs_binary, eventually};

/// A daemon that is not ready by then, or a cluster that has not come to rest, never will be.
const SOON: Duration = Duration::from_secs(60);
const LOG: &str = "/var/lib/dvs/dvsd.log";

/// Names `n1`, `n2` …; addresses `10.255.0.1` and so on. Go away when dropped.
pub struct Machines {
    cluster: Cluster,
}

impl Machines {
    pub fn up(count: usize) -> Machines {
        Machines { cluster: Cluster::up_with(count, &["--bare"]) }
    }

    /// All of them are one cluster, and each runs its daemon.
    pub fn joined(count: usize, init: &[&str]) -> Machines {
        Machines::joined_beside(0, count, init)
    }

    /// The first `count` of them are; `spare` more have nothing.
    pub fn joined_beside(spare: usize, count: usize, init: &[&str]) -> Machines {
        let machines = Machines::up(count + spare);
        machines.ok("n1", &[&["cluster", "init", "home"], init].concat());
        machines.start_daemon("n1");
        for index in 2..=count {
            machines.join(&format!("n{index}"));
        }
        machines
    }

    /// `dvs dev` with these arguments, about the machines themselves.
    pub fn dev(&self, arguments: &[&str]) -> String {
        self.cluster.ok(&[&["dev"], arguments].concat())
    }

    /// Any program on a machine, for who ends it or gives it a terminal.
    pub fn command(&self, node: &str, argv: &[&str]) -> Command {
        self.cluster.command_without_limit(&[&["dev", "exec", node, "--"], argv].concat())
    }

    /// The same, when it may fail.
    pub fn try_dev(&self, arguments: &[&str]) -> Output {
        self.cluster.output(&[&["dev"], arguments].concat())
    }

    /// The first process of a machine that is on, as this host numbers it.
    pub fn machine_pid(&self, node: &str) -> Option<u32> {
        let record = self.cluster.record_of(node)?;
        u32::try_from(record["machine"]["pid"].as_u64()?).ok()
    }

    /// Any program on a machine.
    pub fn run(&self, node: &str, argv: &[&str]) -> Output {
        self.cluster.output(&[&["dev", "exec", node, "--"], argv].concat())
    }

    /// Standard output of a shell script on a machine.
    pub fn sh(&self, node: &str, script: &str) -> String {
        let done = self.run(node, &["sh", "-ec", script]);
        assert!(done.status.success(), "{script}: {done:?}");
        String::from_utf8(done.stdout).expect("output is UTF-8")
    }

    /// `dvs` on a machine.
    pub fn dvs(&self, node: &str, arguments: &[&str]) -> Output {
        let program = dvs_binary();
        self.run(node, &[&[program.to_str().expect("a path of text")], arguments].concat())
    }

    /// Its standard output; it must succeed.
    pub fn ok(&self, node: &str, arguments: &[&str]) -> String {
        let done = self.dvs(node, arguments);
        assert!(
            done.status.success(),
            "on {node}, dvs {arguments:?}: {}\n{}{}",
            String::from_utf8_lossy(&done.stderr),
            self.log(node),
            self.cluster.logs()
        );
        String::from_utf8(done.stdout).expect("output is UTF-8")
    }

    /// Its standard error; it must fail.
    pub fn fails(&self, node: &str, arguments: &[&str]) -> String {
        let done = self.dvs(node, arguments);
        assert!(!done.status.success(), "on {node}, dvs {arguments:?} succeeded: {done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    pub fn json(&self, node: &str, arguments: &[&str]) -> Value {
        let text = self.ok(node, &[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"))
    }

    /// As `dvs node token` on `n1` prints it: `TOKEN@ADDRESS`.
    pub fn token(&self, more: &[&str]) -> String {
        let said = self.ok("n1", &[&["node", "token"], more].concat());
        said.split_whitespace().find(|word| word.contains('@')).expect("a token").to_owned()
    }

    pub fn join(&self, node: &str) {
        self.ok(node, &["node", "join", &self.token(&[])]);
        self.start_daemon(node);
    }

    /// In the background, as a service would be; waits until it is ready.
    pub fn start_daemon(&self, node: &str) {
        let program = dvs_binary();
        let script = format!(
            "setsid {} daemon --config /etc/dvs/dvsd.toml >>{LOG} 2>&1 </dev/null & sleep 0",
            program.display()
        );
        self.sh(node, &script);
        eventually("the daemon is ready", SOON, || {
            let nodes = self.dvs(node, &["node", "ls", "-o", "json"]);
            let nodes: Value = serde_json::from_slice(&nodes.stdout).ok()?;
            nodes.as_array()?.iter().find(|one| one["name"] == node && one["state"] == "ready").map(|_| ())
        });
    }

    pub fn daemon_pid(&self, node: &str) -> Option<String> {
        let found = self.run(node, &["pgrep", "-f", "daemon --config"]);
        String::from_utf8_lossy(&found.stdout).lines().next().map(str::to_owned)
    }

    /// The member of etcd of a machine.
    pub fn member_pid(&self, node: &str) -> Option<String> {
        let found = self.run(node, &["pgrep", "-x", "etcd"]);
        String::from_utf8_lossy(&found.stdout).lines().next().map(str::to_owned)
    }

    /// Nodes that run a member of the engine, as a machine's own file has them.
    pub fn engine_members(&self, node: &str) -> Vec<String> {
        let file = self.run(node, &["cat", "/var/lib/dvs/engine.json"]);
        let file: Value = serde_json::from_slice(&file.stdout).unwrap_or_default();
        file["members"].as_object().map(|members| members.keys().cloned().collect()).unwrap_or_default()
    }

    /// Waits until these nodes run the members, and those nodes know it.
    pub fn await_members(&self, members: &[&str], as_known_on: &[&str]) {
        eventually(&format!("members on {members:?}"), SOON, || {
            let all_know = as_known_on.iter().all(|node| self.engine_members(node) == members);
            (all_know && members.iter().all(|node| self.member_pid(node).is_some())).then_some(())
        });
    }

    /// The end of what its daemon logged.
    pub fn log(&self, node: &str) -> String {
        let done = self.run(node, &["tail", "-n", "30", LOG]);
        format!("\n--- daemon of {node}\n{}", String::from_utf8_lossy(&done.stdout))
    }

    pub fn whole_log(&self, node: &str) -> String {
        String::from_utf8_lossy(&self.run(node, &["cat", LOG]).stdout).into_owned()
    }
}
