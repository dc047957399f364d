//! Taking a cluster down: pull every plug, then remove what lies about. Works for half-made and crashed ones, too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{DevCluster, DevNode, Places, ProcessId};
use rustix::process::Signal;

use super::{cgroup, processes};

/// A killed machine is gone when the kernel has buried everything in it.
const END_LIMIT: Duration = Duration::from_secs(20);
/// What is not gone by then may wait for a gate that went with it.
const END_PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum DownError {
    #[error("{what} does not end within {} s (PID {})", END_LIMIT.as_secs(), process.pid)]
    DoesNotEnd { what: String, process: ProcessId },
    #[error("cannot end {what} (PID {})", process.pid)]
    Kill {
        what: String,
        process: ProcessId,
        #[source]
        source: io::Error,
    },
    #[error("cannot remove {}", path.display())]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Whether anything of it runs.
pub fn is_running(cluster: &DevCluster) -> bool {
    cluster.boot_id == processes::boot_id()
        && machines(cluster).iter().any(|(_, process)| processes::is_alive(*process))
}

fn machines(cluster: &DevCluster) -> Vec<(String, ProcessId)> {
    let nodes = cluster.nodes.iter().filter_map(|node| Some((format!("machine {}", node.name), node.machine?)));
    nodes.chain(cluster.hub.map(|hub| ("the hub".to_owned(), hub))).collect()
}

/// Removes everything of a cluster, and says what was there. The caller holds its lock.
pub fn remove(places: &Places, name: &str) -> Result<Vec<String>, DownError> {
    let mut removed = Vec::new();
    // A record that cannot be read names nobody that could be ended; its files go all the same.
    if let Ok(Some(cluster)) = places.dev_record(name)
        && cluster.boot_id == processes::boot_id()
    {
        end_machines(&cluster, &mut removed)?;
    }
    let groups = remove_cgroups(|group| cgroup::is_of(places, name, group))?;
    removed.extend(groups.iter().map(|path| format!("control group {}", path.display())));
    for directory in [places.dev_run(name), places.dev_state(name)] {
        if remove_dir(&directory)? {
            removed.push(format!("directory {}", directory.display()));
        }
    }
    Ok(removed)
}

fn end_machines(cluster: &DevCluster, removed: &mut Vec<String>) -> Result<(), DownError> {
    // First all plugs, then the waiting: nobody sees the others go for long.
    for (_, process) in machines(cluster) {
        if let Some(pidfd) = processes::open(process) {
            let _ = sys::pidfd::signal(&pidfd, Signal::KILL);
        }
    }
    for (what, process) in machines(cluster) {
        if end_machine(&what, process)? {
            removed.push(format!("{what} (PID {})", process.pid));
        }
    }
    Ok(())
}

/// Kills a process and waits for its end. True when it was there.
pub fn end_machine(what: &str, process: ProcessId) -> Result<bool, DownError> {
    let there = processes::open(process).is_some();
    let what = || what.to_owned();
    let ended = processes::end(process, Signal::KILL, END_PATIENCE).and_then(|is_gone| match is_gone {
        true => Ok(true),
        false => {
            for pid in processes::below(process) {
                sandbox::fusemount::abandon(pid);
                cgroup::thaw(pid);
            }
            processes::end(process, Signal::KILL, END_LIMIT)
        }
    });
    match ended {
        Ok(true) => Ok(there),
        Ok(false) => Err(DownError::DoesNotEnd { what: what(), process }),
        Err(source) => Err(DownError::Kill { what: what(), process, source }),
    }
}

/// Pulls the plug of one node and removes what a reboot would remove: its run directory and control groups.
pub fn power_off(places: &Places, cluster: &DevCluster, node: &DevNode) -> Result<(), DownError> {
    if let Some(machine) = node.machine {
        end_machine(&format!("machine {}", node.name), machine)?;
    }
    let group = cgroup::name(places, &cluster.name, &node.name);
    remove_cgroups(|name| name == group)?;
    remove_dir(&node.run_dir)?;
    Ok(())
}

/// Removes the groups of which `chosen` approves, or says which one would not go.
fn remove_cgroups(chosen: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, DownError> {
    let failed = |path: &Path, source| DownError::Remove { path: path.to_owned(), source };
    let results = cgroup::remove(chosen).map_err(|source| failed(Path::new("/sys/fs/cgroup"), source))?;
    results
        .into_iter()
        .map(|(path, result)| result.map(|()| path.clone()).map_err(|source| failed(&path, source)))
        .collect()
}

/// True when it was there.
fn remove_dir(path: &Path) -> Result<bool, DownError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(DownError::Remove { path: path.to_owned(), source }),
    }
}
