//! A node's own part of the host's control groups.
//!
//! In every hierarchy a group `dvs-dev-CLUSTER-NODE` is made and, inside the machine, bind-mounted over the hierarchy:
//! what the node believes to be the root is its own part. So two nodes that make a group of the same name do not meet,
//! and what a killed node leaves is found by name. No process is put into the group itself, as version 2 wants it.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::Places;
use rustix::mount::mount_bind;
use sha2::{Digest, Sha256};

/// Beginning of the names of all groups of development clusters.
pub const PREFIX: &str = "dvs-dev-";
/// A group whose last process was just killed is busy for a moment.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
const REMOVE_PAUSE: Duration = Duration::from_millis(2);

/// Name of a node's group. Clusters below different `--state-dir`s may have the same name, so theirs carries a hash.
pub fn name(places: &Places, cluster: &str, node: &str) -> String {
    if *places == Places::system() {
        return format!("{PREFIX}{cluster}-{node}");
    }
    let digest = Sha256::digest(places.run.as_os_str().as_bytes());
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{PREFIX}{cluster}.{hash}-{node}")
}

/// Whether `group` is one of the cluster's. `a` and `a-b` are different clusters: a node's name has no dash.
pub fn is_of(places: &Places, cluster: &str, group: &str) -> bool {
    group.strip_prefix(&name(places, cluster, "")).is_some_and(|node| !node.contains('-'))
}

/// Mount points of all hierarchies that can be seen.
pub fn hierarchies() -> io::Result<Vec<PathBuf>> {
    Ok(parse(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// Lines of `/proc/self/mountinfo`: `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw`.
fn parse(mountinfo: &str) -> Vec<PathBuf> {
    let places = mountinfo.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        let place = left.split(' ').nth(4)?;
        (kind == "cgroup" || kind == "cgroup2").then(|| PathBuf::from(place))
    });
    let mut places: Vec<PathBuf> = places.collect();
    places.sort();
    places.dedup();
    places
}

/// Makes the group in every hierarchy that lets us: one that refuses is then shared with the host.
pub fn make_everywhere(name: &str) -> io::Result<()> {
    for place in hierarchies()? {
        let _ = make(&place, name);
    }
    Ok(())
}

/// In the calling process' mount namespace, puts the group in the place of every hierarchy that has it. The group is
/// made by whoever starts the machine, not here: so it can be removed again without waiting for a machine that comes up
/// meanwhile.
pub fn take_over(name: &str) -> io::Result<()> {
    for place in hierarchies()? {
        let group = place.join(name);
        if group.is_dir() {
            mount_bind(group, &place)?;
        }
    }
    Ok(())
}

fn make(place: &Path, name: &str) -> io::Result<()> {
    let group = place.join(name);
    // Version 2 gives children the controllers that are named here; each by itself, as one unknown refuses all.
    for controller in ["+cpu", "+cpuset", "+memory", "+pids"] {
        let _ = fs::write(place.join("cgroup.subtree_control"), controller);
    }
    match fs::create_dir(&group) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    // Version 1 starts a group without any CPU or memory node.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(place.join(file)) {
            fs::write(group.join(file), value)?;
        }
    }
    Ok(())
}

/// Removes the groups of which `chosen` approves, with all below them. Gives back what was (or would not be) removed.
pub fn remove(chosen: impl Fn(&str) -> bool) -> io::Result<Vec<(PathBuf, io::Result<()>)>> {
    let found = find(chosen)?;
    Ok(found.into_iter().map(|group| (group.clone(), remove_tree(&group, Instant::now() + REMOVE_LIMIT))).collect())
}

/// Groups of development clusters of which `chosen` approves.
pub fn find(chosen: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for place in hierarchies()? {
        let Ok(entries) = fs::read_dir(&place) else { continue };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        found.extend(names.filter(|name| name.starts_with(PREFIX) && chosen(name)).map(|name| place.join(name)));
    }
    found.sort();
    Ok(found)
}

/// Groups are directories whose files cannot be removed: only directories are, the deepest first.
pub fn remove_tree(group: &Path, until: Instant) -> io::Result<()> {
    let children = fs::read_dir(group)?.filter_map(|entry| {
        let entry = entry.ok()?;
        entry.file_type().ok()?.is_dir().then(|| entry.path())
    });
    for child in children.collect::<Vec<_>>() {
        remove_tree(&child, until)?;
    }
    loop {
        match fs::remove_dir(group) {
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return other,
        }
    }
}

/// Lets go what is held in the group of a process: what stands still there does not die either (cgroup v1; on v2 it
/// does). Of a process that is gone, or a host without a freezer, nothing is to be done.
pub fn thaw(pid: u32) {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.split_once(":freezer:")).map(|(_, group)| group) else {
        return;
    };
    let places = hierarchies().unwrap_or_default();
    let place = places.iter().find(|place| place.file_name().is_some_and(|name| name == "freezer"));
    // The root group has no such file.
    let _ = place.map(|place| fs::write(place.join(group.trim_start_matches('/')).join("freezer.state"), "THAWED"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_whose_names_begin_alike_keep_their_groups_apart() {
        let places = Places::system();
        let group = name(&places, "a-b", "n1");
        assert!(is_of(&places, "a-b", &group));
        assert!(!is_of(&places, "a", &group));
        let elsewhere = Places::under(Path::new("/tmp/x"));
        assert!(!is_of(&elsewhere, "a-b", &group));
        assert!(is_of(&elsewhere, "a", &name(&elsewhere, "a", "hub")));
    }

    #[test]
    fn hierarchies_are_found_among_other_mounts() {
        let text = "\
22 1 0:20 / /sys rw - sysfs sysfs rw
30 22 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu
31 22 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
40 30 0:26 /dvs-dev-a-n1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
";
        assert_eq!(parse(text), [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
