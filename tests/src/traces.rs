//! What a cluster has of this machine, taken down while it lives and looked for when it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::{Cluster, eventually, files_ending};

/// A process that waits for a file tree dies when the last process that holds the tree's connection does.
const DEATH: Duration = Duration::from_secs(30);
const NAMESPACES: [&str; 6] = ["net", "mnt", "pid", "user", "ipc", "uts"];

/// Everything of one cluster that would outlive it if it were forgotten. Other clusters on the machine do not matter.
pub struct Traces {
    directory: PathBuf,
    /// PID and start time, so that a later process of the same number is not blamed.
    processes: BTreeSet<(u32, String)>,
    /// As `/proc/PID/ns/…` names them.
    namespaces: BTreeSet<String>,
    groups: BTreeSet<PathBuf>,
}

impl Traces {
    /// Of the machines of the cluster and every process that descends from them.
    pub fn of(cluster: &Cluster) -> Traces {
        let directory = cluster.state_dir().to_owned();
        let children = children();
        let mut left: Vec<u32> = roots(&directory);
        let mut traces =
            Traces { directory, processes: BTreeSet::new(), namespaces: BTreeSet::new(), groups: BTreeSet::new() };
        while let Some(pid) = left.pop() {
            left.extend(children.get(&pid).into_iter().flatten());
            traces.add(pid);
        }
        traces
    }

    fn add(&mut self, pid: u32) {
        // One that ends while we look leaves nothing to remember.
        let Some(start) = start_of(pid) else { return };
        self.processes.insert((pid, start));
        self.namespaces.extend(namespaces_of(pid));
        self.groups.extend(groups_of(pid));
    }

    /// With SIGKILL, machines included: nobody is left to clean up. Returns when all are dead.
    pub fn kill_everything(&self) {
        let pids: Vec<String> = self.processes.iter().map(|(pid, _)| pid.to_string()).collect();
        // Those that end with their machine are gone before their turn.
        let _ = std::process::Command::new("kill").arg("-9").args(&pids).output().expect("kill starts");
        eventually("the killed are dead", DEATH, || self.left_processes().is_empty().then_some(()));
    }

    pub fn processes(&self) -> usize {
        self.processes.len()
    }

    /// What is still there, for people.
    pub fn left(&self) -> Vec<String> {
        let mut left = self.left_processes();
        left.extend(self.left_namespaces().into_iter().map(|name| format!("namespace {name}")));
        let groups = self.groups.iter().filter(|group| group.exists());
        left.extend(groups.map(|group| format!("control group {}", group.display())));
        let place = self.directory.display().to_string();
        for (what, table) in [("mount", "/proc/self/mountinfo"), ("socket", "/proc/net/unix")] {
            let text = fs::read_to_string(table).unwrap_or_default();
            left.extend(text.lines().filter(|line| line.contains(&place)).map(|line| format!("{what} {line}")));
        }
        left.extend(files_ending(&self.directory, "").into_iter().map(|path| format!("file {}", path.display())));
        left
    }

    fn left_processes(&self) -> Vec<String> {
        let here = self.processes.iter().filter(|(pid, start)| start_of(*pid).as_ref() == Some(start));
        here.map(|(pid, _)| format!("process {pid} {}", command_of(*pid))).collect()
    }

    /// Whether it was there already, or is in a control group of the cluster.
    fn is_ours(&self, pid: u32) -> bool {
        let was_there = start_of(pid).is_some_and(|start| self.processes.contains(&(pid, start)));
        was_there || groups_of(pid).iter().any(|group| self.groups.contains(group))
    }

    /// Held by a process of the cluster, or mounted. Others may hold one of the same name: the kernel gives the number
    /// of one that is gone to the next.
    fn left_namespaces(&self) -> BTreeSet<String> {
        let own: BTreeSet<String> = namespaces_of(std::process::id()).collect();
        let mut held: BTreeSet<String> =
            pids().into_iter().filter(|pid| self.is_ours(*pid)).flat_map(namespaces_of).collect();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        held.extend(mounts.lines().filter_map(|line| Some(line.split(' ').nth(3)?.to_owned())));
        self.namespaces.iter().filter(|name| !own.contains(*name) && held.contains(*name)).cloned().collect()
    }
}

/// First processes of the machines, from the records of the clusters below a directory.
fn roots(directory: &Path) -> Vec<u32> {
    let records = files_ending(directory, "cluster.json").into_iter().filter_map(|path| fs::read(path).ok());
    let records = records.filter_map(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let of_record = |record: Value| {
        let nodes = record["nodes"].as_array().cloned().unwrap_or_default();
        let machines = nodes.into_iter().map(|node| node["machine"].clone()).chain([record["hub"].clone()]);
        machines.filter_map(|machine| u32::try_from(machine["pid"].as_u64()?).ok()).collect::<Vec<_>>()
    };
    records.flat_map(of_record).collect()
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("a process file system").filter_map(Result::ok);
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn children() -> BTreeMap<u32, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in pids() {
        if let Some(parent) = field(pid, 4).and_then(|text| text.parse().ok()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// Field of `/proc/PID/stat`, numbered as in proc(5), from the third on.
fn field(pid: u32, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = stat.rsplit_once(')')?.1;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// None for remains that only wait to be buried by a stranger.
fn start_of(pid: u32) -> Option<String> {
    if field(pid, 3).as_deref() == Some("Z") { None } else { field(pid, 22) }
}

fn command_of(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

fn namespaces_of(pid: u32) -> impl Iterator<Item = String> {
    let link = move |kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    let names: Vec<String> = NAMESPACES.iter().filter_map(|kind| Some(link(kind)?.to_str()?.to_owned())).collect();
    names.into_iter()
}

/// Directories of its control groups that belong to development clusters.
fn groups_of(pid: u32) -> Vec<PathBuf> {
    let lines = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places: Vec<&str> =
        mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4)).collect();
    let paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains("dvs-dev-"));
    let candidates = paths.flat_map(|path| places.iter().map(move |place| PathBuf::from(format!("{place}{path}"))));
    candidates.filter(|path| path.exists()).collect()
}
