//! A whole cluster on this machine, up and down, with real daemons. Needs root; each test has a cluster of its own name
//! below a directory of its own, so that tests (and test runs) do not meet.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A cluster that is taken down however the test ends.
struct Cluster {
    name: String,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// None without root, loudly.
    fn up(name: &str, nodes: u16) -> Option<Cluster> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: development clusters need root");
            return None;
        }
        let cluster =
            Cluster { name: name.to_owned(), directory: tempfile::Builder::new().prefix("dvs").tempdir().unwrap() };
        let output = cluster.dvs(&["dev", "up", "--name", name, "--nodes", &nodes.to_string()]);
        assert!(output.status.success(), "{}", stderr(&output));
        Some(cluster)
    }

    fn dvs(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dvs"));
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("DVS_STATE_DIR", self.directory.path());
        command.args(arguments).stdin(Stdio::null()).output().unwrap()
    }

    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.dvs(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn states(&self) -> Vec<(String, Option<u64>)> {
        let json: serde_json::Value = serde_json::from_str(&self.stdout(&["dev", "ls", "-o", "json"])).unwrap();
        let rows = json.as_array().unwrap().iter();
        rows.map(|row| (row["state"].as_str().unwrap().to_owned(), row["daemon_pid"].as_u64())).collect()
    }

    fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for place in ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"] {
            let Ok(entries) = std::fs::read_dir(place) else { continue };
            let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            found.extend(names.filter(|name| name.starts_with(&format!("dvs-dev-{}.", self.name))));
        }
        for directory in ["dev", "run/dev"] {
            let path = self.directory.path().join(directory);
            let entries = std::fs::read_dir(path).into_iter().flatten();
            found.extend(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
        }
        found.extend(processes_naming(self.directory.path()));
        found
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.dvs(&["dev", "down", "--name", &self.name]);
    }
}

/// Command lines of living processes in which the directory occurs.
fn processes_naming(directory: &Path) -> Vec<String> {
    let wanted = directory.to_str().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(wanted)).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn cluster_comes_up_with_isolated_nodes_and_goes_without_a_trace() {
    let Some(cluster) = Cluster::up("whole", 2) else { return };
    assert_eq!(cluster.stdout(&["node", "ls", "-o", "name"]), "n1\nn2\n");
    assert_eq!(cluster.stdout(&["dev", "exec", "n2", "--", "hostname"]), "n2\n");
    let addresses = cluster.stdout(&["dev", "exec", "n2", "--", "cat", "/proc/net/fib_trie"]);
    assert!(addresses.contains("10.255.0.2") && !addresses.contains("10.255.0.1\n"), "{addresses}");
    let second = cluster.dvs(&["dev", "up", "--name", "whole"]);
    assert_eq!(second.status.code(), Some(1));
    assert_eq!(
        stderr(&second),
        "dvs: cluster 'whole' exists already\n  try: dvs dev ls, or dvs dev down --name whole\n"
    );
    cluster.stdout(&["dev", "down"]);
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}

#[test]
fn killed_daemon_and_killed_node_come_back() {
    let Some(cluster) = Cluster::up("again", 2) else { return };
    let pid = cluster.states()[1].1.unwrap();
    let process = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty());
    if let Ok(pidfd) = pidfd {
        let mut watched = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut watched, None).unwrap();
    }
    assert_eq!(cluster.states()[1], ("no daemon".to_owned(), None));
    cluster.stdout(&["dev", "restart", "n2"]);
    assert_eq!(cluster.states()[1].0, "on");
    let unplugged = cluster.dvs(&["dev", "wire", "n2", "down"]);
    assert_eq!(stderr(&unplugged), "node n2 is unplugged\nback again: dvs dev wire n2 up\n");
    assert_eq!(stderr(&cluster.dvs(&["dev", "wire", "n2", "up"])), "node n2 is plugged in\n");
    let killed = cluster.dvs(&["dev", "kill", "n2"]);
    assert_eq!(stderr(&killed), "node n2 is off\nback again: dvs dev restart n2\n");
    assert_eq!(cluster.states()[1], ("off".to_owned(), None));
    assert_eq!(cluster.states()[0].0, "on");
    cluster.stdout(&["dev", "restart", "n2"]);
    assert_eq!(cluster.states()[1].0, "on");
    assert_eq!(cluster.stdout(&["dev", "exec", "n2", "--", "hostname"]), "n2\n");
    // The others' neighbour tables still hold: the node has the address it had on the wire, too.
    let connect = "exec 3<>/dev/tcp/10.255.0.2/7420";
    cluster.stdout(&["dev", "exec", "n1", "--", "timeout", "2", "bash", "-c", connect]);
}

#[test]
fn crashed_cluster_is_found_and_removed_by_the_doctor() {
    let Some(cluster) = Cluster::up("crashed", 1) else { return };
    let record = cluster.directory.path().join("run/dev/crashed/cluster.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    for machine in [&record["hub"], &record["nodes"][0]["machine"]] {
        let process = rustix::process::Pid::from_raw(machine["pid"].as_i64().unwrap() as i32).unwrap();
        let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
        let mut watched = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut watched, None).unwrap();
    }
    let again = cluster.dvs(&["dev", "up", "--name", "crashed"]);
    assert!(stderr(&again).contains("try: dvs dev down --name crashed"), "{}", stderr(&again));
    let dry = stderr(&cluster.dvs(&["doctor", "--clean", "--dry-run"]));
    assert!(dry.contains("would remove development cluster 'crashed', which does not run"), "{dry}");
    let clean = stderr(&cluster.dvs(&["doctor", "--clean"]));
    assert!(clean.contains("removed development cluster 'crashed'"), "{clean}");
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}

#[test]
fn cluster_whose_daemons_do_not_come_up_is_not_left_by_half() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: development clusters need root");
        return;
    }
    let directory = tempfile::Builder::new().prefix("dvs").tempdir().unwrap();
    let cluster = Cluster { name: "broken".to_owned(), directory };
    let output = cluster.dvs(&["dev", "up", "--name", "broken", "--daemon", "/bin/false"]);
    assert_eq!(output.status.code(), Some(1));
    // Which daemon is seen to have ended first is chance.
    let text = stderr(&output);
    assert!(text.contains("because: the daemon of n") && text.contains(" ended and logged nothing"), "{text}");
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}
