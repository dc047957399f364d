//! What crashed runs leave behind, and how it goes away: `dvs doctor --clean`.
//!
//! Only what is provably nobody's is touched: a cluster none of whose machines lives, control groups that carry our
//! prefix and name no cluster that lives, and what `host.rs` finds. A cluster that a command is working on is left
//! alone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::{Places, ProcessId};
use rustix::mount::{UnmountFlags, unmount};
use sandbox::links::Links;

use super::record::Lock;
use super::{cgroup, down, host};

const GROUP_LIMIT: Duration = Duration::from_secs(2);
const SETTLED: Duration = Duration::from_secs(60);

/// Something that is left over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Leftover {
    /// A cluster that does not run.
    Cluster(String),
    /// A group of a cluster or container that does not exist.
    Cgroup(PathBuf),
    /// A server of a container whose keeper and daemon are gone.
    Process {
        what: String,
        process: ProcessId,
    },
    Mount(PathBuf),
    Interface(String),
    Directory(PathBuf),
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Leftover::Cluster(name) => write!(out, "development cluster '{name}', which does not run"),
            Leftover::Cgroup(path) => write!(out, "control group {}", path.display()),
            Leftover::Process { what, process } => write!(out, "process {} ({what})", process.pid),
            Leftover::Mount(path) => write!(out, "mount {}", path.display()),
            Leftover::Interface(name) => write!(out, "network interface {name}"),
            Leftover::Directory(path) => write!(out, "directory {}", path.display()),
        }
    }
}

/// Finds leftovers. Groups of clusters in other places are not ours to judge while they have members.
pub fn find(places: &Places) -> std::io::Result<Vec<Leftover>> {
    let names = places.dev_names();
    let dead = names.iter().filter(|name| !is_running(places, name) && !is_busy(places, name));
    let mut found: Vec<Leftover> = dead.map(|name| Leftover::Cluster(name.clone())).collect();
    let known = |group: &str| names.iter().any(|name| cgroup::is_of(places, name, group));
    let groups = cgroup::find(|group| !known(group))?;
    let nobody_s = |group: &PathBuf| is_settled(group) && !is_in_use(group);
    found.extend(groups.into_iter().filter(nobody_s).map(Leftover::Cgroup));
    found.extend(host::find(places));
    Ok(found)
}

/// Removes one. False: somebody took it over meanwhile.
pub fn remove(places: &Places, leftover: &Leftover) -> Result<bool, down::DownError> {
    let failed = |path: &Path, source| down::DownError::Remove { path: path.to_owned(), source };
    match leftover {
        Leftover::Cluster(name) => {
            let Ok(Some(lock)) = Lock::take(places, name) else { return Ok(false) };
            if is_running(places, name) {
                return Ok(false);
            }
            down::remove(places, name)?;
            let _ = lock.discard();
            Ok(true)
        }
        Leftover::Cgroup(path) => match cgroup::remove_tree(path, Instant::now() + GROUP_LIMIT) {
            Ok(()) => Ok(true),
            Err(source) => Err(failed(path, source)),
        },
        Leftover::Process { what, process } => down::end_machine(what, *process),
        Leftover::Mount(path) => match unmount(path, UnmountFlags::DETACH) {
            Ok(()) => Ok(true),
            Err(cause) => Err(failed(path, cause.into())),
        },
        Leftover::Interface(name) => {
            let deleted = Links::here().and_then(|mut links| links.delete(name));
            deleted.map(|()| true).map_err(|cause| failed(Path::new(name), std::io::Error::other(cause)))
        }
        Leftover::Directory(path) => {
            std::fs::remove_dir_all(path).map(|()| true).map_err(|source| failed(path, source))
        }
    }
}

fn is_running(places: &Places, name: &str) -> bool {
    matches!(places.dev_record(name), Ok(Some(cluster)) if down::is_running(&cluster))
}

fn is_busy(places: &Places, name: &str) -> bool {
    matches!(Lock::take(places, name), Ok(None))
}

/// Old enough that a cluster that is just being made elsewhere would have its machines by now.
fn is_settled(group: &Path) -> bool {
    let made = std::fs::metadata(group).and_then(|meta| meta.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > SETTLED))
}

/// Members in it or below, or a machine somewhere that has it for its own: such a mount cannot be seen from here, so
/// the processes of the host are asked.
fn is_in_use(group: &Path) -> bool {
    let Some(name) = group.file_name().and_then(|name| name.to_str()) else { return true };
    let argument = name.as_bytes();
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    entries.filter_map(Result::ok).any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument)
    })
}
