//! Leftovers of a node that runs on the host itself (`dvs daemon` as a service), for `dvs doctor --clean`.
//!
//! A daemon that is gone leaves containers that go on: that is meant so. A share of a container is dead only when its
//! daemon does not answer **and** its keeper is gone, for the keeper is the parent of every program in it. Then what is
//! recorded or named after the share belongs to nobody: server processes, interfaces `dvs[xbv]ID`, control groups
//! `dvs/…-ID`, mounts and its run directory.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use client::{Places, ProcessId};
use sandbox::links::Links;
use serde::Deserialize;

use super::clean::Leftover;
use super::{cgroup, processes};

/// Parent of all groups of a node, see `sandbox::cgroup`.
const PARENT: &str = "dvs";
const KEEPER: &str = "keeper";

/// The part of `dvsd`'s record of a child that names the process.
#[derive(Deserialize)]
struct Child {
    role: String,
    pid: u32,
    start_ticks: u64,
    boot: String,
}

impl Child {
    fn living(&self) -> Option<ProcessId> {
        let process = ProcessId { pid: self.pid, start_ticks: self.start_ticks };
        (self.boot == processes::boot_id() && processes::is_alive(process)).then_some(process)
    }
}

pub fn find(places: &Places) -> Vec<Leftover> {
    if UnixStream::connect(places.system_socket()).is_ok() {
        return Vec::new();
    }
    let shares = shares(places);
    let dead: Vec<&Share> = shares.iter().filter(|share| !share.lives()).collect();
    let lives = |id: &str| shares.iter().any(|share| share.id == id && share.lives());
    let mut found = Vec::new();
    for share in &dead {
        found.extend(share.children.iter().filter_map(|child| {
            Some(Leftover::Process {
                what: format!("{} of container {}", child.role, share.id),
                process: child.living()?,
            })
        }));
    }
    found.extend(mounts(&dead).into_iter().map(Leftover::Mount));
    // Names on the host carry no place: with another place than the system's they are not ours to judge.
    if *places == Places::system() {
        found.extend(interfaces().into_iter().filter(|(_, id)| !lives(id)).map(|(name, _)| Leftover::Interface(name)));
        found.extend(groups(lives).into_iter().map(Leftover::Cgroup));
    }
    found.extend(dead.iter().map(|share| Leftover::Directory(share.directory.clone())));
    found
}

/// Numbers of the containers that live here.
pub fn living(places: &Places) -> Vec<String> {
    shares(places).into_iter().filter(Share::lives).map(|share| share.id).collect()
}

/// What belongs to the node and outlives its daemon: shelf, proxies, a member of the cluster engine.
pub fn children_of_the_node(places: &Places) -> Vec<(String, ProcessId)> {
    children(&places.run).into_iter().filter_map(|child| Some((child.role.clone(), child.living()?))).collect()
}

/// Those above all containers, when none is left in them; one that has a container stays.
pub fn remove_parent_groups() {
    for place in cgroup::hierarchies().unwrap_or_default() {
        let _ = fs::remove_dir(place.join(PARENT));
    }
}

/// What a container has on this node.
struct Share {
    id: String,
    directory: PathBuf,
    children: Vec<Child>,
}

impl Share {
    fn lives(&self) -> bool {
        self.children.iter().any(|child| child.role == KEEPER && child.living().is_some())
    }
}

fn shares(places: &Places) -> Vec<Share> {
    let entries = fs::read_dir(places.run.join("dcs")).into_iter().flatten().filter_map(Result::ok);
    let shares = entries.filter_map(|entry| {
        let id = entry.file_name().into_string().ok()?;
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then(|| Share { id, directory: entry.path(), children: children(&entry.path()) })
    });
    shares.collect()
}

fn children(directory: &Path) -> Vec<Child> {
    let entries = fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok()).collect()
}

/// The deepest first, as they must be taken away.
fn mounts(dead: &[&Share]) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = text.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut mounts: Vec<PathBuf> =
        places.filter(|place| dead.iter().any(|share| place.starts_with(&share.directory))).collect();
    mounts.sort_by_key(|place| std::cmp::Reverse(place.components().count()));
    mounts
}

/// Interfaces of the host that carry a container's number; a deleted bridge or device takes its other end along.
fn interfaces() -> Vec<(String, String)> {
    let links = Links::here().and_then(|mut links| links.list()).unwrap_or_default();
    let ours = links.into_iter().filter_map(|link| {
        let id = ["dvsx", "dvsb", "dvsv"].iter().find_map(|prefix| link.name.strip_prefix(prefix))?.to_owned();
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then_some((link.name, id))
    });
    ours.collect()
}

/// Groups without members whose container does not live; their names end in its number.
fn groups(lives: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let places = cgroup::hierarchies().unwrap_or_default();
    let entries =
        places.iter().filter_map(|place| fs::read_dir(place.join(PARENT)).ok()).flatten().filter_map(Result::ok);
    let dead = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let id = name.rsplit('-').next()?.to_owned();
        (entry.path().is_dir() && !lives(&id) && is_empty(&entry.path())).then(|| entry.path())
    });
    dead.collect()
}

/// Neither members nor, in a group below, any.
fn is_empty(group: &Path) -> bool {
    let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|members| members.is_empty())
        && below.filter(|path| path.is_dir()).all(|group| is_empty(&group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_child(places: &Places, role: &str, process: ProcessId) {
        let directory = places.run.join("dcs/7");
        fs::create_dir_all(&directory).unwrap();
        let record = serde_json::json!({
            "role": role, "pid": process.pid, "start_ticks": process.start_ticks, "boot": processes::boot_id(), "epoch": 1
        });
        fs::write(directory.join(format!("{role}.json")), record.to_string()).unwrap();
    }

    #[test]
    fn share_without_keeper_and_daemon_is_left_over_and_one_with_a_keeper_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        let own = processes::identify(std::process::id()).unwrap();
        write_child(&places, "fs", own);
        write_child(&places, KEEPER, own);
        assert_eq!(find(&places), []);
        write_child(&places, KEEPER, ProcessId { start_ticks: own.start_ticks + 1, ..own });
        let process = Leftover::Process { what: "fs of container 7".to_owned(), process: own };
        assert_eq!(find(&places), [process, Leftover::Directory(places.run.join("dcs/7"))]);
    }

    #[test]
    fn what_lives_of_the_node_and_of_containers_is_found_by_its_records() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        let own = processes::identify(std::process::id()).unwrap();
        write_child(&places, KEEPER, own);
        fs::copy(places.run.join("dcs/7/keeper.json"), places.run.join("shelf.json")).unwrap();
        fs::write(places.run.join("other.json"), "{}").unwrap();
        assert_eq!(living(&places), ["7"]);
        assert_eq!(children_of_the_node(&places), [(KEEPER.to_owned(), own)]);
        write_child(&places, KEEPER, ProcessId { start_ticks: own.start_ticks + 1, ..own });
        assert!(living(&places).is_empty());
    }

    #[test]
    fn nothing_is_left_over_while_the_daemon_answers() {
        let directory = tempfile::tempdir().unwrap();
        let places = Places::under(directory.path());
        write_child(&places, "fs", processes::identify(std::process::id()).unwrap());
        let _daemon = std::os::unix::net::UnixListener::bind(places.system_socket()).unwrap();
        assert_eq!(find(&places), []);
    }
}
