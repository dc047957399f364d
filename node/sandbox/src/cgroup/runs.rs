//! A group for one program and whatever it starts: it has ended when nobody is in its group, however its processes left
//! each other, and it is killed as one.
//!
//! In version 2 it is below the group of programs and has no limits of its own. In version 1 it is so in one hierarchy,
//! that of the freezer where there is one; in the others its members are with all programs.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Cgroup, CgroupError, Controller, Hierarchy, Level, RETRY_PAUSE, kill, make_dir, member_file, pids, write};

const PREFIX: &str = "run-";
/// Where they can be in version 1: not the group of CPUs, which needs settings of its own.
const PLACES: [Controller; 5] =
    [Controller::Freezer, Controller::Pids, Controller::Cpuacct, Controller::Cpu, Controller::Memory];
/// For what was killed to be gone. Who waits in the kernel for longer does nothing else.
const SWEEP_LIMIT: Duration = Duration::from_secs(2);
/// Until all members stand still. Who waits in the kernel may take longer, and forks nobody meanwhile.
const FREEZE_LIMIT: Duration = Duration::from_millis(5);

/// Empty and without a directory once it was removed.
#[derive(Debug)]
pub struct RunGroup {
    dir: PathBuf,
}

impl Cgroup {
    /// Makes a group below that of programs; what an earlier keeper left under this number is killed.
    pub fn make_run(&self, number: u32) -> Result<RunGroup, CgroupError> {
        let group = RunGroup { dir: self.place_of_runs()?.join(format!("{PREFIX}{number}")) };
        make_dir(&group.dir)?;
        if !group.is_empty() {
            group.kill();
        }
        Ok(group)
    }

    /// Files that take a process into the group of programs and into this one, as [`Cgroup::member_files`].
    pub fn member_files_of(&self, run: &RunGroup) -> Result<Vec<OwnedFd>, CgroupError> {
        let place = self.place_of_runs()?;
        let of_run = |dir: PathBuf| if dir == place { run.dir.clone() } else { dir };
        self.dirs(Level::Programs).into_iter().map(|dir| member_file(&of_run(dir))).collect()
    }

    /// Kills and removes what earlier keepers left. When it returns nothing of it runs any more: what is left waits in
    /// the kernel, and dies when that lets it go.
    pub fn sweep_runs(&self) {
        let until = Instant::now() + SWEEP_LIMIT;
        let place = self.place_of_runs();
        let mut left: Vec<RunGroup> =
            place.iter().flat_map(|place| run_dirs(place)).map(|dir| RunGroup { dir }).collect();
        loop {
            left.iter().for_each(RunGroup::kill);
            left.retain(|group| !group.remove());
            if left.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return tracing::warn!(runs = left.len(), "killed, and not gone yet");
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn place_of_runs(&self) -> Result<PathBuf, CgroupError> {
        let place = match &self.hierarchy {
            Hierarchy::V1(_) => PLACES.into_iter().find_map(|controller| self.dir(controller, Level::Programs)),
            Hierarchy::V2(_) => self.dir(Controller::Pids, Level::Programs),
        };
        place.ok_or(CgroupError::NotMounted)
    }
}

impl RunGroup {
    /// Whether nobody is in it. What cannot be read is gone.
    pub fn is_empty(&self) -> bool {
        members(&self.dir).is_empty()
    }

    /// SIGKILL for all that are in it now. They may need a moment to go; who waits in the kernel, longer.
    pub fn kill(&self) {
        if write(&self.dir.join("cgroup.kill"), "1").is_ok() {
            return;
        }
        // Whoever stands still forks nobody while the others are killed.
        let is_frozen = freeze(&self.dir);
        for pid in members(&self.dir) {
            drop(kill(pid));
        }
        if is_frozen {
            thaw(&self.dir);
        }
    }

    /// Whether it is gone: it is not as long as the kernel has members of it.
    pub fn remove(&self) -> bool {
        match std::fs::remove_dir(&self.dir) {
            Ok(()) => true,
            Err(cause) => cause.kind() == std::io::ErrorKind::NotFound,
        }
    }
}

/// Directories of runs below a group of programs.
pub(super) fn run_dirs(programs: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(programs).into_iter().flatten().flatten();
    let is_run = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    entries.filter(is_run).map(|entry| entry.path()).collect()
}

pub(super) fn members(dir: &Path) -> Vec<u32> {
    pids(&std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default())
}

fn freeze(dir: &Path) -> bool {
    let state = dir.join("freezer.state");
    if write(&state, "FROZEN").is_err() {
        return false;
    }
    let until = Instant::now() + FREEZE_LIMIT;
    let stands = || std::fs::read_to_string(&state).is_ok_and(|state| state.trim() == "FROZEN");
    while !stands() && Instant::now() < until {
        std::thread::sleep(RETRY_PAUSE);
    }
    true
}

/// Of version 1: what is frozen does not end, killed or not. A keeper that was killed may have left it so.
pub(super) fn thaw(dir: &Path) {
    let _ = write(&dir.join("freezer.state"), "THAWED");
}
