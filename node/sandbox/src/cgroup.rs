//! Control groups: limits and accounts of a container's programs on one node, version 1 and 2 behind one type.
//!
//! The group is `dvs/NAME` below the mount of version 2, or below each controller's mount of version 1 (hosts mix them: a
//! version 2 mount without controllers counts for nothing). It has no children; programs are its only members.
//!
//! Not here: which limits a container has, reservations and their admission (later: VTM).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mgmt_api::Limits;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// All groups of ours are below this one.
const PARENT: &str = "dvs";
/// Processes one group may have, threads included, whatever the limits say: half of a node's PID range, so that the
/// keeper can always go back to the range's start before its end is reached.
pub const PIDS_MAX: u64 = 32_768;
const PERIOD_US: u64 = 100_000;
/// Killed processes that do not go within this time are stuck in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// A group without members can be busy for a moment while the kernel cleans up behind the last one.
const REMOVE_LIMIT: Duration = Duration::from_secs(2);
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Whoever removes the last group removes the parent too, perhaps just before a new one is made below it.
const MAKE_TRIES: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("the name '{0}' has a character other than a-z, 0-9, '-', or is too long")]
    BadName(String),
    #[error("this host has no control groups mounted below /sys/fs/cgroup")]
    NotMounted,
    #[error("a limit of {limit} was asked for, but this host has no '{controller}' controller")]
    NoController { controller: Controller, limit: &'static str },
    #[error("could not {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("{count} processes in control group '{name}' do not end")]
    Unkillable { name: String, count: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    Cpu,
    Cpuacct,
    Cpuset,
    Memory,
    Pids,
    Freezer,
}

impl Controller {
    const ALL: [Controller; 6] = [
        Controller::Cpu,
        Controller::Cpuacct,
        Controller::Cpuset,
        Controller::Memory,
        Controller::Pids,
        Controller::Freezer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuacct => "cpuacct",
            Controller::Cpuset => "cpuset",
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Freezer => "freezer",
        }
    }
}

impl std::fmt::Display for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Where control groups are on this host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hierarchy {
    /// Mount point of each controller.
    V1(BTreeMap<Controller, PathBuf>),
    /// The one mount point.
    V2(PathBuf),
}

impl Hierarchy {
    pub fn detect() -> Result<Hierarchy, CgroupError> {
        let path = Path::new("/proc/self/mounts");
        let mounts = std::fs::read_to_string(path).map_err(|cause| file_error("read", path, cause))?;
        Hierarchy::from_mounts(&mounts, |unified| {
            std::fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default()
        })
    }

    /// `controllers` reads the list of controllers of a version 2 mount.
    fn from_mounts(mounts: &str, controllers: impl Fn(&Path) -> String) -> Result<Hierarchy, CgroupError> {
        let mut v1 = BTreeMap::new();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, place, kind, options, ..] = fields[..] else { continue };
            let place = PathBuf::from(place);
            if kind == "cgroup2" && controllers(&place).split_whitespace().any(|name| name == "memory") {
                return Ok(Hierarchy::V2(place));
            }
            if kind == "cgroup" {
                let named = |name: &str| Controller::ALL.into_iter().find(|controller| controller.name() == name);
                for controller in options.split(',').filter_map(named) {
                    v1.entry(controller).or_insert_with(|| place.clone());
                }
            }
        }
        if v1.is_empty() { Err(CgroupError::NotMounted) } else { Ok(Hierarchy::V1(v1)) }
    }
}

/// Whether somebody wished the limit, so that it must not be passed over in silence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Yes,
    No,
}

impl Asked {
    fn by<T>(wish: &Option<T>) -> Asked {
        if wish.is_some() { Asked::Yes } else { Asked::No }
    }
}

/// What a group has used and has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    pub cpu_ns: u64,
    pub memory_bytes: u64,
    pub pids: u64,
}

/// One container's group on this host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cgroup {
    hierarchy: Hierarchy,
    name: String,
}

impl Cgroup {
    /// Makes the group, or brings the one that exists to these limits.
    pub fn ensure(name: &str, limits: &Limits) -> Result<Cgroup, CgroupError> {
        Cgroup::ensure_in(Hierarchy::detect()?, name, limits)
    }

    pub fn ensure_in(hierarchy: Hierarchy, name: &str, limits: &Limits) -> Result<Cgroup, CgroupError> {
        let fine = (1..=128).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if !fine {
            return Err(CgroupError::BadName(name.to_owned()));
        }
        let group = Cgroup { hierarchy, name: name.to_owned() };
        group.make_with_parent()?;
        group.apply(limits)?;
        Ok(group)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Files that take the number of a process, one per hierarchy. A process that writes `0` moves itself.
    pub fn member_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        let open = |dir: PathBuf| {
            let path = dir.join("cgroup.procs");
            let file = OpenOptions::new().write(true).open(&path);
            file.map(OwnedFd::from).map_err(|cause| file_error("open", &path, cause))
        };
        self.dirs().into_iter().map(open).collect()
    }

    /// Moves a process (all its threads) into the group.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.dirs().into_iter().try_for_each(|dir| write(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// The group's processes, as this process's pid namespace numbers them.
    pub fn members(&self) -> Result<Vec<u32>, CgroupError> {
        let Some(dir) = self.dirs().into_iter().next() else { return Ok(Vec::new()) };
        let path = dir.join("cgroup.procs");
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(cause) => Err(file_error("read", &path, cause)),
        }
    }

    /// What cannot be read is 0.
    pub fn stats(&self) -> Stats {
        let number = |controller, file: &str| {
            let text = std::fs::read_to_string(self.dir(controller)?.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        match &self.hierarchy {
            Hierarchy::V1(_) => Stats {
                cpu_ns: number(Controller::Cpuacct, "cpuacct.usage").unwrap_or(0),
                memory_bytes: number(Controller::Memory, "memory.usage_in_bytes").unwrap_or(0),
                pids: number(Controller::Pids, "pids.current").unwrap_or(0),
            },
            Hierarchy::V2(_) => Stats {
                cpu_ns: self.unified_cpu_us().unwrap_or(0).saturating_mul(1000),
                memory_bytes: number(Controller::Memory, "memory.current").unwrap_or(0),
                pids: number(Controller::Pids, "pids.current").unwrap_or(0),
            },
        }
    }

    /// SIGKILL for every member, until there is none.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        let until = Instant::now() + KILL_LIMIT;
        loop {
            // Version 2 since Linux 5.14 does it in one stroke; the loop then only waits.
            if let Hierarchy::V2(_) = self.hierarchy {
                let _ = self.dirs().first().map(|dir| write(&dir.join("cgroup.kill"), "1"));
            }
            let members = self.members()?;
            if members.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(CgroupError::Unkillable { name: self.name.clone(), count: members.len() });
            }
            let killed: Vec<OwnedFd> = members.iter().filter_map(|pid| kill(*pid)).collect();
            await_ends(&killed, until);
        }
    }

    /// Kills what is left and removes the group. Nothing there is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        self.kill_all()?;
        let until = Instant::now() + REMOVE_LIMIT;
        for dir in self.dirs() {
            loop {
                match std::fs::remove_dir(&dir) {
                    Ok(()) => break,
                    Err(cause) if cause.kind() == io::ErrorKind::NotFound => break,
                    Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                        std::thread::sleep(RETRY_PAUSE);
                    }
                    Err(cause) => return Err(file_error("remove", &dir, cause)),
                }
            }
            if let Some(parent) = dir.parent() {
                // Busy as long as other groups are below it.
                let _ = std::fs::remove_dir(parent);
            }
        }
        Ok(())
    }

    /// The group's directory for a controller, when the host has the controller.
    fn dir(&self, controller: Controller) -> Option<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V1(mounts) => mounts.get(&controller).map(|mount| mount.join(PARENT).join(&self.name)),
            Hierarchy::V2(mount) => Some(mount.join(PARENT).join(&self.name)),
        }
    }

    /// Every directory of the group, each once: version 1 may mount controllers together.
    fn dirs(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> =
            Controller::ALL.into_iter().filter_map(|controller| self.dir(controller)).collect();
        dirs.sort();
        dirs.dedup();
        dirs
    }

    fn make_with_parent(&self) -> Result<(), CgroupError> {
        for _ in 1..MAKE_TRIES {
            match self.make() {
                Err(CgroupError::File { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
                made => return made,
            }
        }
        self.make()
    }

    fn make(&self) -> Result<(), CgroupError> {
        if let Hierarchy::V2(mount) = &self.hierarchy {
            // A controller works in a group when every ancestor passes it on.
            for level in [mount.clone(), mount.join(PARENT)] {
                make_dir(&level)?;
                for controller in [Controller::Cpu, Controller::Cpuset, Controller::Memory, Controller::Pids] {
                    // One that the host lacks is reported when a limit needs it.
                    let _ = write(&level.join("cgroup.subtree_control"), &format!("+{controller}"));
                }
            }
        }
        for dir in self.dirs() {
            if let Some(parent) = dir.parent() {
                make_dir(parent)?;
            }
            make_dir(&dir)?;
        }
        if let (Hierarchy::V1(mounts), Some(dir)) = (&self.hierarchy, self.dir(Controller::Cpuset)) {
            // Version 1 gives a new group no CPU and no memory node; then nothing can be moved in.
            let mount = mounts.get(&Controller::Cpuset).map(PathBuf::as_path).unwrap_or(Path::new("/"));
            inherit_cpuset(mount, &mount.join(PARENT))?;
            inherit_cpuset(&mount.join(PARENT), &dir)?;
        }
        Ok(())
    }

    fn apply(&self, limits: &Limits) -> Result<(), CgroupError> {
        let pids = limits.pids.unwrap_or(PIDS_MAX).min(PIDS_MAX);
        let quota = limits.cpu_max.map(|cpus| ((cpus * PERIOD_US as f64) as u64).max(1000));
        let weight = limits.cpu_weight.map(|weight| u64::from(weight.clamp(1, 10_000)));
        match &self.hierarchy {
            Hierarchy::V1(mounts) => {
                let unlimited = |value: Option<u64>| value.map_or("-1".to_owned(), |value| value.to_string());
                // 1,024 shares are the weight 100.
                let shares = weight.map_or(1024, |weight| (weight * 1024 / 100).clamp(2, 262_144)).to_string();
                self.set(Controller::Cpu, "cpu.cfs_quota_us", &unlimited(quota), Asked::by(&quota), "CPU time")?;
                self.set(Controller::Cpu, "cpu.shares", &shares, Asked::by(&weight), "CPU weight")?;
                let memory = unlimited(limits.memory_bytes);
                let wanted = Asked::by(&limits.memory_bytes);
                self.set(Controller::Memory, "memory.limit_in_bytes", &memory, wanted, "memory")?;
                let all = mounts.get(&Controller::Cpuset).map(|mount| read(&mount.join("cpuset.cpus")));
                let cpus = limits.cpus.clone().or(all.transpose()?).unwrap_or_default();
                self.set(Controller::Cpuset, "cpuset.cpus", &cpus, Asked::by(&limits.cpus), "CPUs")?;
            }
            Hierarchy::V2(_) => {
                let unlimited = |value: Option<u64>| value.map_or("max".to_owned(), |value| value.to_string());
                let time = format!("{} {PERIOD_US}", unlimited(quota));
                self.set(Controller::Cpu, "cpu.max", &time, Asked::by(&quota), "CPU time")?;
                let share = weight.unwrap_or(100).to_string();
                self.set(Controller::Cpu, "cpu.weight", &share, Asked::by(&weight), "CPU weight")?;
                let memory = unlimited(limits.memory_bytes);
                self.set(Controller::Memory, "memory.max", &memory, Asked::by(&limits.memory_bytes), "memory")?;
                // An empty mask means all.
                let cpus = limits.cpus.clone().unwrap_or("\n".to_owned());
                self.set(Controller::Cpuset, "cpuset.cpus", &cpus, Asked::by(&limits.cpus), "CPUs")?;
            }
        }
        self.set(Controller::Pids, "pids.max", &pids.to_string(), Asked::by(&limits.pids), "processes")
    }

    /// Writes one limit; a missing controller matters only when the limit was asked for.
    fn set(
        &self,
        controller: Controller,
        file: &str,
        value: &str,
        asked: Asked,
        limit: &'static str,
    ) -> Result<(), CgroupError> {
        match self.dir(controller).map(|dir| dir.join(file)).filter(|path| path.exists()) {
            Some(path) => write(&path, value),
            None if asked == Asked::Yes => Err(CgroupError::NoController { controller, limit }),
            None => Ok(()),
        }
    }

    fn unified_cpu_us(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.dir(Controller::Cpu)?.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
    }
}

/// Names of all groups of ours on this host, for clean-up.
pub fn list(hierarchy: &Hierarchy) -> Vec<Cgroup> {
    let mounts: Vec<PathBuf> = match hierarchy {
        Hierarchy::V1(mounts) => mounts.values().cloned().collect(),
        Hierarchy::V2(mount) => vec![mount.clone()],
    };
    let mut names: Vec<String> = mounts
        .iter()
        .filter_map(|mount| std::fs::read_dir(mount.join(PARENT)).ok())
        .flatten()
        .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir())?.file_name().into_string().ok())
        .collect();
    names.sort();
    names.dedup();
    names.into_iter().map(|name| Cgroup { hierarchy: hierarchy.clone(), name }).collect()
}

fn kill(pid: u32) -> Option<OwnedFd> {
    let pidfd = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
    pidfd_send_signal(&pidfd, Signal::KILL).ok()?;
    Some(pidfd)
}

fn await_ends(pidfds: &[OwnedFd], until: Instant) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    for pidfd in pidfds {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&left));
    }
}

fn inherit_cpuset(from: &Path, to: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if read(&to.join(file))?.is_empty() {
            write(&to.join(file), &read(&from.join(file))?)?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), CgroupError> {
    match std::fs::create_dir(path) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
            Err(file_error("make the directory", path, cause))
        }
        _ => Ok(()),
    }
}

fn read(path: &Path) -> Result<String, CgroupError> {
    let text = std::fs::read_to_string(path).map_err(|cause| file_error("read", path, cause))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    let file: io::Result<File> = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|cause| file_error("write", path, cause))
}

fn file_error(what: &'static str, path: &Path, cause: io::Error) -> CgroupError {
    CgroupError::File { what, path: path.to_owned(), cause }
}
