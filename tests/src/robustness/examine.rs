//! Whether everything is well again, and whether everything was as it should be.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use histories::models::race::Race;
use histories::models::register::Register;
use histories::placement::{self, Life};
use histories::{Bounds, Verdict, check, terms};
use serde_json::Value;

use crate::robustness::Notes;
use crate::robustness::faults::{NODES, Role};
use crate::robustness::people::RAN;
use crate::robustness::site::Site;
use crate::robustness::watch::table;

/// After the last fault of a round is healed. A node's lease is 5 s, that for its containers' locks 10 s.
pub const WELL_WITHIN: Duration = Duration::from_secs(60);
/// After which it is said what is wrong.
const SLOW: Duration = Duration::from_secs(10);
/// Traces of a container that was deleted: a node that was away removes them when it is back.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// What is not well; empty when everything is. From every node.
pub fn unwell(site: &Site, dc: Option<&str>) -> Vec<String> {
    let mut unwell = Vec::new();
    for (node, name) in NODES.iter().enumerate() {
        match site.states(node) {
            None => unwell.push(format!("{name} does not list the nodes")),
            Some(states) => {
                let others = states.iter().filter(|(_, state)| state != "ready");
                unwell.extend(others.map(|(of, state)| format!("{of} is {state}, as {name} says")));
                if states.len() != NODES.len() {
                    unwell.push(format!("{name} lists {states:?}"));
                }
            }
        }
        if let Some(dc) = dc {
            let phase = site.json(node, &["dc", "inspect", dc]);
            let phase = phase.as_ref().and_then(|it| it["phase"].as_str()).unwrap_or("not shown");
            if phase != "running" {
                unwell.push(format!("{dc} is {phase}, as {name} says"));
            }
        }
    }
    let processes = table(site);
    for (node, name) in NODES.iter().enumerate() {
        for role in [Role::Daemon, Role::Member, Role::Proxy] {
            let count = processes.iter().filter(|one| one.node == node && one.role == Some(role)).count();
            if count != 1 {
                unwell.push(format!("{count} {role:?} on {name}"));
            }
        }
    }
    unwell
}

/// How long it took; or what is still wrong.
pub fn await_well(site: &Site, dc: Option<&str>) -> Result<Duration, Vec<String>> {
    let begin = Instant::now();
    let mut told = SLOW;
    loop {
        let unwell = unwell(site, dc);
        if unwell.is_empty() {
            return Ok(begin.elapsed());
        }
        if begin.elapsed() > told {
            let nodes = site.json(0, &["node", "ls"]).unwrap_or_default();
            let all = nodes.as_array().into_iter().flatten();
            let problems: Vec<&Value> = all.filter_map(|one| one.get("problems")).collect();
            println!("     not well after {:.1} s: {unwell:?} {problems:?}", told.as_secs_f64());
            told += SLOW;
        }
        if begin.elapsed() > WELL_WITHIN {
            return Err(unwell);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// How much was judged.
#[derive(Default, Debug)]
pub struct Judged {
    pub operations: usize,
    pub unknown: usize,
    pub histories: usize,
    pub lives: usize,
}

pub fn judge(notes: &Notes, lives: &[Life]) -> Judged {
    let mut judged = Judged { lives: lives.len(), ..Judged::default() };
    for (key, history) in notes.values.histories() {
        judged.add(history.len(), history.iter().filter(|one| one.output.is_none()).count());
        report(notes, &key, check(&Register, &history, Bounds::default()));
    }
    for (name, history) in notes.races.histories() {
        judged.add(history.len(), history.iter().filter(|one| one.output.is_none()).count());
        report(notes, &name, check(&Race, &history, Bounds::default()));
    }
    for what in terms::contradictions(&notes.all_told()).into_iter().chain(placement::contradictions(lives)) {
        notes.is_wrong(what);
    }
    judged
}

impl Judged {
    fn add(&mut self, operations: usize, unknown: usize) {
        self.histories += 1;
        self.operations += operations;
        self.unknown += unknown;
    }
}

fn report(notes: &Notes, of: &str, verdict: Verdict) {
    match verdict {
        Verdict::Linearizable { .. } => (),
        Verdict::Impossible { why } => notes.is_wrong(format!("the history of {of} is impossible: {why}")),
        Verdict::Undecided => notes.is_wrong(format!("the history of {of} is too large to be judged")),
    }
}

/// Each program said once at most that it was started.
pub fn judge_programs(site: &Site, notes: &Notes, dc: &str) -> usize {
    let done = site.dvs(0, &["run", dc, "--", "cat", RAN]);
    let mut times = BTreeMap::<String, u32>::new();
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        *times.entry(line.to_owned()).or_default() += 1;
    }
    for (tag, times) in times.iter().filter(|(_, times)| **times > 1) {
        notes.is_wrong(format!("program {tag} ran {times} times"));
    }
    times.len()
}

/// Deletes all containers; what is left of them on machines and in the engine afterwards is wrong.
pub fn clear(site: &Site, notes: &Notes) {
    for node in NODES {
        // What people say of nodes outlives containers.
        let _ = site.dvs(0, &["node", "label", node, "color-"]);
        let _ = site.dvs(0, &["node", "uncordon", node]);
    }
    let begin = Instant::now();
    loop {
        let listed = site.json(0, &["dc", "ls"]);
        let names: Option<Vec<String>> = listed
            .as_ref()
            .and_then(|it| it.as_array())
            .map(|all| all.iter().filter_map(|one| one["spec"]["name"].as_str().map(str::to_owned)).collect());
        if names.as_ref().is_some_and(Vec::is_empty) {
            break;
        }
        for name in names.iter().flatten() {
            let done = site.dvs(0, &["dc", "rm", "--force", name]);
            if !done.status.success() {
                notes.heard(&format!("rm at the end: {}", String::from_utf8_lossy(&done.stderr)));
            }
        }
        if begin.elapsed() > WELL_WITHIN {
            return notes.is_wrong(format!("containers are not deleted: {names:?}"));
        }
    }
    let begin = Instant::now();
    loop {
        let left = left(site);
        if left.is_empty() {
            return;
        }
        if begin.elapsed() > GONE_WITHIN {
            return notes.is_wrong(format!("left of deleted containers: {left:#?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Processes, mounts, control groups, interfaces, files and keys of containers, when there are none.
fn left(site: &Site) -> Vec<String> {
    let mut left: Vec<String> = table(site)
        .into_iter()
        .filter(|one| one.dc.is_some() || one.tag.is_some())
        .map(|one| format!("process {} of {}: {}", one.pid, NODES[one.node], one.command))
        .collect();
    for (node, name) in NODES.iter().enumerate() {
        let lines = |path: &str| {
            let path = site.inside(node, path);
            let text = path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let mounts = lines("/proc/1/mountinfo").into_iter().filter(|line| line.contains("/dvs/dcs/"));
        left.extend(mounts.map(|line| format!("mount of {name}: {line}")));
        for place in ["/run/dvs/dcs", "/var/lib/dvs/dcs"] {
            let entries = site.inside(node, place).and_then(|path| std::fs::read_dir(path).ok());
            left.extend(
                entries.into_iter().flatten().flatten().map(|one| format!("file of {name}: {}", one.path().display())),
            );
        }
        // The machine's own group is what stands there for programs of the machine.
        let groups = site.inside(node, "/sys/fs/cgroup/pids/dvs").and_then(|path| std::fs::read_dir(path).ok());
        let groups = groups.into_iter().flatten().flatten().filter(|one| one.path().is_dir());
        left.extend(groups.map(|one| format!("control group of {name}: {}", one.path().display())));
        if let Some(pid) = site.machine_pid(node) {
            let links = std::fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
            let links = links.lines().filter(|line| line.trim_start().starts_with("dvs"));
            left.extend(links.map(|line| format!("interface of {name}: {}", line.trim())));
        }
    }
    match site.engine_keys(0) {
        None => left.push("the engine's keys were not read".to_owned()),
        Some(keys) => {
            let of_containers = ["/eps/", "/dcs/", "/names/", "/programs/", "/ids/dc/of/", "/ids/dc/used/"];
            let is_left = |key: &&String| {
                of_containers.iter().any(|prefix| key.starts_with(prefix))
                    || (key.starts_with("/epochs/") && !key.starts_with("/epochs/node/"))
            };
            left.extend(keys.iter().filter(is_left).map(|key| format!("key {key}")));
        }
    }
    left
}
