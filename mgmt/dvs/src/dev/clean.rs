//! What crashed runs leave behind, and how it goes away: `dvs doctor --clean`.
//!
//! Only what is provably nobody's is touched: a cluster none of whose machines lives, control groups that carry our prefix and
//! name no cluster that lives. A cluster that a command is working on is left alone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use client::Places;

use super::record::Lock;
use super::{cgroup, down};

const GROUP_LIMIT: Duration = Duration::from_secs(2);

/// Something that is left over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Leftover {
    /// A cluster that does not run.
    Cluster(String),
    /// A group of a cluster that does not exist.
    Cgroup(PathBuf),
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Leftover::Cluster(name) => write!(out, "development cluster '{name}', which does not run"),
            Leftover::Cgroup(path) => write!(out, "control group {}", path.display()),
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
    found.extend(groups.into_iter().filter(|group| !is_in_use(group)).map(Leftover::Cgroup));
    Ok(found)
}

/// Removes one. False: somebody took it over meanwhile.
pub fn remove(places: &Places, leftover: &Leftover) -> Result<bool, down::DownError> {
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
            Err(source) => Err(down::DownError::Remove { path: path.clone(), source }),
        },
    }
}

fn is_running(places: &Places, name: &str) -> bool {
    matches!(places.dev_record(name), Ok(Some(cluster)) if down::is_running(&cluster))
}

fn is_busy(places: &Places, name: &str) -> bool {
    matches!(Lock::take(places, name), Ok(None))
}

/// Members in it or below, or a machine somewhere that has it for its own: such a mount cannot be seen from here, so the
/// processes of the host are asked.
fn is_in_use(group: &std::path::Path) -> bool {
    let Some(name) = group.file_name().and_then(|name| name.to_str()) else { return true };
    let argument = name.as_bytes();
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    entries.filter_map(Result::ok).any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument)
    })
}
