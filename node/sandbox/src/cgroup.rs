//! Control groups: limits and accounts of a container on one node, version 1 and 2 behind one type.
//!
//! ```text
//! dvs                all containers together: what they may have of the node, so that it lives
//! └─ NAME            one container: its weight, and the account of all it spends
//!    ├─ programs     what its limits limit
//!    └─ servers      keeper, servers and gate: a limit of their own, so that no program takes their memory from them
//! ```
//!
//! They are below the mount of version 2, or below each controller's mount of version 1 (hosts mix them: a version 2
//! mount without controllers counts for nothing). Only the inmost have members. A process that has too little memory is
//! killed within its own group. Programs do not see groups at all; nothing of them is mounted in a container.
//!
//! A program that is to be ended as one with whatever it starts has a group of its own below `programs` ([`RunGroup`]).
//!
//! Not here: which limits a container has, reservations and their admission (later: VTM).

mod runs;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mgmt_api::Limits;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

pub use runs::RunGroup;

use crate::fusemount;

/// All groups of ours are below this one.
const PARENT: &str = "dvs";
const PROGRAMS: &str = "programs";
const SERVERS: &str = "servers";
/// Processes of a container's programs, threads included, whatever the limits say: half of a node's PID range, so that
/// the keeper can always go back to the range's start before its end is reached.
pub const PIDS_MAX: u64 = 32_768;
/// Threads of a container's servers, and helpers of its keeper.
const SERVER_PIDS: u64 = 1024;
/// Servers get this part of the node's memory, and no less than [`SERVER_MEMORY_MIN`]: what they cache is given back
/// when it is needed.
const SERVER_MEMORY_DIVISOR: u64 = 4;
const SERVER_MEMORY_MIN: u64 = 512 << 20;
/// What all containers together leave to the node: an eighth of its memory, but no more than this.
const NODE_MEMORY_MAX: u64 = 4 << 30;
/// Of the memory of programs, what the buffers of their sockets may hold. Version 2 counts it with the rest. In version
/// 1 the name of the account says TCP, but UDP's buffers are in it too.
const SOCKETS_DIVISOR: u64 = 8;
const PERIOD_US: u64 = 100_000;
/// Killed processes that do not go within this time are stuck in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Those that do not go within this time may wait for gates that are gone.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// A group without members can be busy for a moment while the kernel cleans up after the last one.
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
    #[error("programs hold more memory than {} MiB", .limit >> 20)]
    MemoryInUse { limit: u64 },
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

/// What a container's limits come to on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effective {
    pub memory_bytes: u64,
    pub pids: u64,
}

/// What the node has to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capacity {
    pub memory_bytes: u64,
    /// Processes and threads at a time.
    pub pids: u64,
}

impl Capacity {
    pub fn of_this_node() -> Capacity {
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let known = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"].into_iter().filter_map(number);
        let memory = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        Capacity { memory_bytes: memory.map_or(u64::MAX, |kib| kib << 10), pids: known.min().unwrap_or(u64::MAX) }
    }

    /// For one container: what was asked for, or what leaves the others theirs.
    pub fn grant(self, limits: &Limits) -> Effective {
        Effective {
            memory_bytes: limits.memory_bytes.unwrap_or(self.memory_bytes / Limits::MEMORY_DIVISOR),
            pids: limits.pids.unwrap_or(Limits::PIDS.min(self.pids / 4)).min(PIDS_MAX),
        }
    }

    /// For all containers together.
    fn of_all(self) -> Effective {
        Effective { memory_bytes: self.memory_of_all(), pids: self.pids / 4 * 3 }
    }

    pub fn memory_of_all(self) -> u64 {
        self.memory_bytes - (self.memory_bytes / 8).min(NODE_MEMORY_MAX)
    }

    fn of_servers(self) -> Effective {
        let memory_bytes = (self.memory_bytes / SERVER_MEMORY_DIVISOR).max(SERVER_MEMORY_MIN);
        Effective { memory_bytes, pids: SERVER_PIDS }
    }
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
        group.apply(limits, Capacity::of_this_node())?;
        Ok(group)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Files that take the number of a process into the group of programs, one per hierarchy. A process that writes `0`
    /// moves itself.
    pub fn member_files(&self) -> Result<Vec<OwnedFd>, CgroupError> {
        self.dirs(Level::Programs).iter().map(|dir| member_file(dir)).collect()
    }

    /// Moves a process (all its threads) into the group of programs.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.add_to(Level::Programs, pid)
    }

    /// Moves a process (all its threads) into the group of servers.
    pub fn add_server(&self, pid: u32) -> Result<(), CgroupError> {
        self.add_to(Level::Servers, pid)
    }

    fn add_to(&self, level: Level, pid: u32) -> Result<(), CgroupError> {
        self.dirs(level).into_iter().try_for_each(|dir| write(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// The programs' processes, as this process's pid namespace numbers them.
    pub fn members(&self) -> Result<Vec<u32>, CgroupError> {
        self.members_of(Level::Programs)
    }

    /// Its servers and gates.
    pub fn servers(&self) -> Result<Vec<u32>, CgroupError> {
        self.members_of(Level::Servers)
    }

    fn members_of(&self, level: Level) -> Result<Vec<u32>, CgroupError> {
        let Some(dir) = self.dirs(level).into_iter().next() else { return Ok(Vec::new()) };
        let path = dir.join("cgroup.procs");
        let mut members = match std::fs::read_to_string(&path) {
            Ok(text) => pids(&text),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(file_error("read", &path, cause)),
        };
        if level == Level::Programs {
            members.extend(runs::run_dirs(&dir).iter().flat_map(|run| runs::members(run)));
        }
        Ok(members)
    }

    /// Of programs and servers. What cannot be read is 0.
    pub fn stats(&self) -> Stats {
        let number = |controller, file: &str| {
            let text = std::fs::read_to_string(self.dir(controller, Level::Container)?.join(file)).ok()?;
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

    /// All programs stand still, or go on where they stood. Those that wait in the kernel stand still when that lets
    /// them go; who comes to the group meanwhile does so at once.
    ///
    /// # Errors
    /// A host without a freezer.
    pub fn hold(&self, is_held: bool) -> Result<(), CgroupError> {
        let missing = CgroupError::NoController { controller: Controller::Freezer, limit: "standstill" };
        let dir = self.dir(Controller::Freezer, Level::Programs).ok_or(missing)?;
        match &self.hierarchy {
            Hierarchy::V1(_) => write(&dir.join("freezer.state"), if is_held { "FROZEN" } else { "THAWED" }),
            Hierarchy::V2(_) => write(&dir.join("cgroup.freeze"), if is_held { "1" } else { "0" }),
        }
    }

    /// SIGKILL for every program, until there is none.
    pub fn kill_all(&self) -> Result<(), CgroupError> {
        self.kill_level(Level::Programs)
    }

    fn kill_level(&self, level: Level) -> Result<(), CgroupError> {
        let until = Instant::now() + KILL_LIMIT;
        loop {
            // Version 2 since Linux 5.14 does it in one stroke; the loop then only waits.
            if let Hierarchy::V2(_) = self.hierarchy {
                let _ = self.dirs(level).first().map(|dir| write(&dir.join("cgroup.kill"), "1"));
            }
            let dirs = self.dirs(level);
            let runs = dirs.iter().flat_map(|dir| runs::run_dirs(dir));
            dirs.iter().cloned().chain(runs).for_each(|dir| runs::thaw(&dir));
            let members = self.members_of(level)?;
            if members.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(CgroupError::Unkillable { name: self.name.clone(), count: members.len() });
            }
            let killed: Vec<OwnedFd> = members.iter().filter_map(|pid| kill(*pid)).collect();
            let patience = until.min(Instant::now() + KILL_PATIENCE);
            await_ends(&killed, patience);
            if Instant::now() < patience {
                continue;
            }
            // Programs wait for gates, which are servers.
            let servers = self.members_of(Level::Servers).unwrap_or_default();
            let cut: usize = members.iter().chain(&servers).map(|pid| fusemount::abandon(*pid)).sum();
            if cut > 0 {
                tracing::warn!(
                    group = self.name,
                    connections = cut,
                    "cut off: a gate that was killed waited for itself"
                );
            }
        }
    }

    /// Kills what is left and removes the group. Nothing there is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let until = Instant::now() + REMOVE_LIMIT;
        for level in [Level::Programs, Level::Servers, Level::Container] {
            self.kill_level(level)?;
            let dirs = self.dirs(level);
            dirs.iter().flat_map(|dir| runs::run_dirs(dir)).try_for_each(|run| remove_empty(&run, until))?;
            dirs.iter().try_for_each(|dir| remove_empty(dir, until))?;
        }
        for dir in self.dirs(Level::All) {
            // Busy as long as other groups are below it.
            let _ = std::fs::remove_dir(dir);
        }
        Ok(())
    }

    /// A level's directory for a controller, when the host has the controller.
    fn dir(&self, controller: Controller, level: Level) -> Option<PathBuf> {
        let mount = match &self.hierarchy {
            Hierarchy::V1(mounts) => mounts.get(&controller)?,
            Hierarchy::V2(mount) => mount,
        };
        Some(level.below(mount, &self.name))
    }

    /// Every directory of a level, each once: version 1 may mount controllers together.
    fn dirs(&self, level: Level) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> =
            Controller::ALL.into_iter().filter_map(|controller| self.dir(controller, level)).collect();
        dirs.sort();
        dirs.dedup();
        dirs
    }

    fn make_with_parent(&self) -> Result<(), CgroupError> {
        for _ in 1..MAKE_TRIES {
            match self.make() {
                // The last of others is gone, and with it the group of all: also while one of its files was open.
                Err(CgroupError::File { cause, .. })
                    if cause.kind() == io::ErrorKind::NotFound || cause.raw_os_error() == Some(libc::ENODEV) => {}
                made => return made,
            }
        }
        self.make()
    }

    fn make(&self) -> Result<(), CgroupError> {
        if let Hierarchy::V2(mount) = &self.hierarchy {
            pass_on(mount);
        }
        for level in [Level::All, Level::Container, Level::Programs, Level::Servers] {
            self.dirs(level).iter().try_for_each(|dir| make_dir(dir))?;
            let has_members = matches!(level, Level::Programs | Level::Servers);
            match &self.hierarchy {
                Hierarchy::V2(mount) if !has_members => pass_on(&level.below(mount, &self.name)),
                Hierarchy::V2(_) => (),
                Hierarchy::V1(mounts) => {
                    // Version 1 gives a new group no CPU and no memory node; then nothing can be moved in.
                    if let (Some(mount), Some(dir)) =
                        (mounts.get(&Controller::Cpuset), self.dir(Controller::Cpuset, level))
                    {
                        inherit_cpuset(if level == Level::All { mount } else { dir.parent().unwrap_or(mount) }, &dir)?;
                    }
                    // Before Linux 5.11 a group did not count what is below it unless told to; since, it cannot be told
                    // otherwise.
                    if let (false, Some(dir)) = (has_members, self.dir(Controller::Memory, level)) {
                        let _ = write(&dir.join("memory.use_hierarchy"), "1");
                    }
                }
            }
        }
        Ok(())
    }

    fn apply(&self, limits: &Limits, node: Capacity) -> Result<(), CgroupError> {
        let granted = node.grant(limits);
        self.limit(Level::All, node.of_all(), Asked::No, Asked::No)?;
        self.limit(Level::Servers, node.of_servers(), Asked::No, Asked::No)?;
        self.limit(Level::Programs, granted, Asked::by(&limits.memory_bytes), Asked::by(&limits.pids))?;
        let quota = limits.cpu_max.map(|cpus| ((cpus * PERIOD_US as f64) as u64).max(1000));
        let weight = limits.cpu_weight.map(|weight| u64::from(weight.clamp(1, 10_000)));
        let share = |value: String| {
            self.set(Level::Container, Controller::Cpu, self.weight_file(), &value, Asked::by(&weight), "CPU weight")
        };
        let set = |controller, file, value: &str, asked, what| {
            self.set(Level::Programs, controller, file, value, asked, what)
        };
        match &self.hierarchy {
            Hierarchy::V1(mounts) => {
                // 1,024 shares are the weight 100.
                share(weight.map_or(1024, |weight| (weight * 1024 / 100).clamp(2, 262_144)).to_string())?;
                let time = quota.map_or("-1".to_owned(), |value| value.to_string());
                set(Controller::Cpu, "cpu.cfs_quota_us", &time, Asked::by(&quota), "CPU time")?;
                let all = mounts.get(&Controller::Cpuset).map(|mount| read(&mount.join("cpuset.cpus")));
                let cpus = limits.cpus.clone().or(all.transpose()?).unwrap_or_default();
                set(Controller::Cpuset, "cpuset.cpus", &cpus, Asked::by(&limits.cpus), "CPUs")?;
                if let Some(dir) = self.dir(Controller::Memory, Level::Programs) {
                    // Not every kernel of version 1 counts it.
                    let sockets = (granted.memory_bytes / SOCKETS_DIVISOR).to_string();
                    let _ = write(&dir.join("memory.kmem.tcp.limit_in_bytes"), &sockets);
                }
            }
            Hierarchy::V2(_) => {
                share(weight.unwrap_or(100).to_string())?;
                let time = quota.map_or("max".to_owned(), |value| value.to_string());
                set(Controller::Cpu, "cpu.max", &format!("{time} {PERIOD_US}"), Asked::by(&quota), "CPU time")?;
                // An empty mask means all.
                let cpus = limits.cpus.clone().unwrap_or("\n".to_owned());
                set(Controller::Cpuset, "cpuset.cpus", &cpus, Asked::by(&limits.cpus), "CPUs")?;
            }
        }
        Ok(())
    }

    fn weight_file(&self) -> &'static str {
        match &self.hierarchy {
            Hierarchy::V1(_) => "cpu.shares",
            Hierarchy::V2(_) => "cpu.weight",
        }
    }

    fn limit(&self, level: Level, to: Effective, memory_asked: Asked, pids_asked: Asked) -> Result<(), CgroupError> {
        let file = match &self.hierarchy {
            Hierarchy::V1(_) => "memory.limit_in_bytes",
            Hierarchy::V2(_) => "memory.max",
        };
        self.demand_less_memory(level, to.memory_bytes)?;
        match self.set(level, Controller::Memory, file, &to.memory_bytes.to_string(), memory_asked, "memory") {
            // As version 1 says it.
            Err(CgroupError::File { cause, .. }) if cause.kind() == io::ErrorKind::ResourceBusy => {
                return Err(CgroupError::MemoryInUse { limit: to.memory_bytes });
            }
            done => done?,
        }
        self.set(level, Controller::Pids, "pids.max", &to.pids.to_string(), pids_asked, "processes")
    }

    /// Version 2 would kill programs for a limit below what they hold.
    fn demand_less_memory(&self, level: Level, limit: u64) -> Result<(), CgroupError> {
        let (Hierarchy::V2(_), Some(dir)) = (&self.hierarchy, self.dir(Controller::Memory, level)) else {
            return Ok(());
        };
        let texts = ["memory.current", "memory.stat"].map(|file| std::fs::read_to_string(dir.join(file)));
        let [Ok(current), Ok(stat)] = texts else { return Ok(()) };
        match held_bytes(&current, &stat) {
            Some(held) if held > limit => Err(CgroupError::MemoryInUse { limit }),
            _ => Ok(()),
        }
    }

    /// Writes one limit; a missing controller matters only when the limit was asked for.
    fn set(
        &self,
        level: Level,
        controller: Controller,
        file: &str,
        value: &str,
        asked: Asked,
        limit: &'static str,
    ) -> Result<(), CgroupError> {
        match self.dir(controller, level).map(|dir| dir.join(file)).filter(|path| path.exists()) {
            Some(path) => write(&path, value),
            None if asked == Asked::Yes => Err(CgroupError::NoController { controller, limit }),
            None => Ok(()),
        }
    }

    /// How many programs the kernel has killed for want of memory; `None` when it does not say. Version 1 counts them
    /// in their own group only.
    pub fn oom_kills(&self) -> Option<u64> {
        let file = match &self.hierarchy {
            Hierarchy::V1(_) => "memory.oom_control",
            Hierarchy::V2(_) => "memory.events",
        };
        let text = std::fs::read_to_string(self.dir(Controller::Memory, Level::Programs)?.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    }

    fn unified_cpu_us(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.dir(Controller::Cpu, Level::Container)?.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
    }
}

/// Which of the groups.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    All,
    Container,
    Programs,
    Servers,
}

impl Level {
    fn below(self, mount: &Path, name: &str) -> PathBuf {
        let all = mount.join(PARENT);
        match self {
            Level::All => all,
            Level::Container => all.join(name),
            Level::Programs => all.join(name).join(PROGRAMS),
            Level::Servers => all.join(name).join(SERVERS),
        }
    }
}

/// What the kernel cannot take back by writing files to disks.
fn held_bytes(current: &str, stat: &str) -> Option<u64> {
    let current: u64 = current.trim().parse().ok()?;
    let files = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        ["active_file", "inactive_file", "slab_reclaimable"].contains(&name).then(|| bytes.parse::<u64>().ok())?
    });
    Some(current.saturating_sub(files.sum()))
}

/// Of version 2: a controller works in a group when every ancestor passes it on. One that the host lacks is reported
/// when a limit needs it.
fn pass_on(dir: &Path) {
    for controller in [Controller::Cpu, Controller::Cpuset, Controller::Memory, Controller::Pids] {
        let _ = write(&dir.join("cgroup.subtree_control"), &format!("+{controller}"));
    }
}

fn remove_empty(dir: &Path, until: Instant) -> Result<(), CgroupError> {
    loop {
        match std::fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(RETRY_PAUSE);
            }
            Err(cause) => return Err(file_error("remove", dir, cause)),
        }
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

/// What takes whoever writes its number there into a group; may be written by a child that sees no groups any more.
fn member_file(dir: &Path) -> Result<OwnedFd, CgroupError> {
    let path = dir.join("cgroup.procs");
    let file = OpenOptions::new().write(true).open(&path);
    file.map(OwnedFd::from).map_err(|cause| file_error("open", &path, cause))
}

/// Of a file of members; 0 is who is outside of this process's pid namespace.
fn pids(text: &str) -> Vec<u32> {
    text.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid != 0).collect()
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    let file: io::Result<File> = OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|cause| file_error("write", path, cause))
}

fn file_error(what: &'static str, path: &Path, cause: io::Error) -> CgroupError {
    CgroupError::File { what, path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_what_files_and_caches_leave() {
        let stat = "anon 700\nactive_file 100\ninactive_file 50\nslab_reclaimable 25\nslab 4000\nfile 9";
        assert_eq!(held_bytes("1000\n", stat), Some(825));
        assert_eq!(held_bytes("100\n", stat), Some(0));
        assert_eq!((held_bytes("", stat), held_bytes("7", "")), (None, Some(7)));
    }
}
