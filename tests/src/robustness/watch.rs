//! Processes of all machines as the kernel of this host has them, whatever daemons say of them.

use std::collections::BTreeMap;
use std::time::Duration;

use histories::placement::{Life, Sightings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::robustness::Notes;
use crate::robustness::faults::{NODES, Node, Role};
use crate::robustness::people::SERVICE;
use crate::robustness::site::Site;

/// What a program that is started once has in its environment.
pub const TAG: &str = "ROBUST";
/// Who was killed has it pending until he is gone, however long the kernel holds him; he executes nothing meanwhile.
const KILLED: u64 = 1 << (Signal::KILL.as_raw() - 1);
const PAUSE: Duration = Duration::from_millis(150);

#[derive(Clone, Debug)]
pub struct Process {
    pub node: Node,
    /// As this host numbers it.
    pub pid: u32,
    pub began: u64,
    pub role: Option<Role>,
    /// Number of its container, for servers and keepers.
    pub dc: Option<u64>,
    pub endpoint: Option<u64>,
    pub epoch: Option<u64>,
    pub tag: Option<String>,
    pub command: String,
    /// Stopped by a signal.
    pub stands_still: bool,
}

/// Everything that descends from the machines' first processes; these not.
pub fn table(site: &Site) -> Vec<Process> {
    let mut children = BTreeMap::<u32, Vec<(u32, u64)>>::new();
    for entry in std::fs::read_dir("/proc").expect("a process file system").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if let Some(Stat { parent, began, .. }) = alive(pid) {
            children.entry(parent).or_default().push((pid, began));
        }
    }
    let mut found = Vec::new();
    for node in 0..NODES.len() {
        let mut left: Vec<(u32, u64)> =
            site.machine_pid(node).and_then(|pid| children.remove(&pid)).unwrap_or_default();
        while let Some((pid, began)) = left.pop() {
            left.extend(children.remove(&pid).unwrap_or_default());
            found.extend(process(node, pid, began));
        }
    }
    found
}

/// What the kernel says of one that lives.
struct Stat {
    parent: u32,
    began: u64,
    threads: u32,
    /// Stopped by a signal.
    stands_still: bool,
}

/// `None` for remains, and for who was killed.
fn alive(pid: u32) -> Option<Stat> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"))?;
    if u64::from_str_radix(pending.trim(), 16).ok()? & KILLED != 0 {
        return None;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let state = *fields.first()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let (parent, began) = (fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?);
    Some(Stat { parent, began, threads: fields.get(17)?.parse().ok()?, stands_still: state == "T" })
}

/// `None`: it has no memory any more, so it runs nothing.
fn process(node: Node, pid: u32, began: u64) -> Option<Process> {
    let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).ok().filter(|bytes| !bytes.is_empty());
    let command = String::from_utf8_lossy(&read("cmdline")?).trim_end_matches('\0').replace('\0', " ");
    let environment = read("environ").unwrap_or_default();
    let variable = |name: &str| {
        let mut all = environment.split(|byte| *byte == 0);
        all.find_map(|text| std::str::from_utf8(text).ok()?.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
    };
    let spawn: Value = variable("DVS_SPAWN").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let role = match command.as_str() {
        "dvs proxy" => Some(Role::Proxy),
        "dvs keeper" => Some(Role::Keeper),
        "dvs gate fuse" => Some(Role::Gate),
        "dvs server fs" => Some(Role::Fs),
        "dvs server disk" => Some(Role::Disk),
        "dvs server copy" => Some(Role::Copy),
        "dvs server ds" => Some(Role::Ds),
        "dvs server cs" => Some(Role::Cs),
        // One that was started long enough to have become etcd.
        other if other.starts_with("etcd --name") => Some(Role::Member),
        other if is_daemon(other) => {
            // What it is about to start has one thread, and its name, until it is that.
            alive(pid).filter(|stat| stat.threads > 1).map(|_| Role::Daemon)
        }
        _ => None,
    };
    let number = |name: &str| spawn[name].as_u64();
    let tag = role.is_none().then(|| variable(TAG)).flatten();
    let (dc, endpoint, epoch) = (number("dc"), number("endpoint"), number("epoch"));
    let stands_still = alive(pid).is_some_and(|stat| stat.stands_still);
    Some(Process { node, pid, began, role, dc, endpoint, epoch, tag, command, stands_still })
}

/// Or what a daemon is about to start, which has its name for a moment.
pub fn is_daemon(command: &str) -> bool {
    command.contains(" daemon --config")
        && !["sh ", "setsid ", "timeout "].iter().any(|other| command.starts_with(other))
}

pub fn signal(process: &Process, signal: Signal) {
    let is_same = alive(process.pid).is_some_and(|stat| stat.began == process.began);
    if let (true, Some(pid)) = (is_same, Pid::from_raw(process.pid.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
}

/// The oldest one of a role: that of a node, or of a server that a container has once that of any node; of the
/// container with the smallest number.
pub fn find(site: &Site, role: Role, node: Node) -> Option<Process> {
    let is_anywhere = matches!(role, Role::Fs | Role::Disk | Role::Ds);
    let all = table(site).into_iter().filter(|one| one.role == Some(role) && (is_anywhere || one.node == node));
    all.min_by_key(|one| (one.dc, one.began))
}

/// Looks until the traffic ends.
pub fn watch(site: &Site, notes: &Notes) -> Vec<Life> {
    let mut seen = Sightings::default();
    while !notes.has_ended() {
        for process in table(site) {
            let thing = match (&process.role, process.dc, process.endpoint) {
                // One that was cut off lingers, and answers nobody once another one is served by what both stand on:
                // what programs read of files and keys says whether that is so.
                (Some(Role::Fs | Role::Ds | Role::Disk | Role::Copy), Some(dc), Some(endpoint)) => {
                    format!("container {dc} endpoint {endpoint} on {}", NODES[process.node])
                }
                (Some(Role::Cs | Role::Gate), Some(dc), Some(endpoint)) => {
                    format!("container {dc} endpoint {endpoint}")
                }
                (Some(Role::Member | Role::Daemon | Role::Proxy), ..) => {
                    format!("{:?} of {}", process.role, NODES[process.node])
                }
                _ => match &process.tag {
                    Some(tag) => format!("program {tag}"),
                    None => continue,
                },
            };
            // A keeper that stood still as well ends a service whose time is over, before it does anything else.
            let is_service = process.tag.as_deref().is_some_and(|tag| tag.starts_with(SERVICE));
            if is_service && process.stands_still {
                seen.stands_still((process.pid, process.began));
                continue;
            }
            let epoch = process.endpoint.and(process.epoch);
            // Once more, now: a table is read for some milliseconds.
            let now = notes.now();
            if alive(process.pid).is_some_and(|stat| stat.began == process.began) {
                seen.saw(&thing, NODES[process.node], (process.pid, process.began), epoch, now);
            }
        }
        std::thread::sleep(PAUSE);
    }
    // A service that was seen once, between two looks, may have been ended in that moment.
    let is_sure = |life: &Life| life.from < life.until || !life.thing.contains(SERVICE);
    seen.lives().into_iter().filter(is_sure).collect()
}
