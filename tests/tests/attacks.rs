//! A tenant with bad intent: one attack after the other, as root of container `red` (`attack.py` says what each does),
//! while container `blue` runs on the same nodes. After each, blue answers as quickly as before, nobody's servers were
//! restarted, red itself works, and nothing of the machine is changed. `SECURITY.md` names this file and
//! `node/keeper/tests/attacks.rs` for what it promises.
//!
//! Time is compared with what blue needed in the same minute, by medians, and looked at again before it counts: the
//! machine has other work too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use end_to_end::{Cluster, c_library, eventually, is_long_run};
// Cargo builds the archive of the library together with what imports it.
use ipc_c as _;
use serde_json::Value;

const ATTACK: &str = include_str!("../src/attack.py");
/// What blue does to be measured: a program starts, reads the node's files, writes and reads the tree.
const PROBE: &str = "ls /usr/bin | wc -l > /dc/probe && cat /dc/probe && id -u nobody";
const PROBES: usize = 5;
const TIDY: &str = "rm -f /tmp/full-* /dev/shm/full-* /dc/attack-* && rm -rf /dc/links && ipcrm --all && ls /dc";
/// Blue may take so many times as long as before.
const SLOWER_MAX: u32 = 2;
/// A median is noise below this.
const NOISE: Duration = Duration::from_millis(100);
/// An attack leaves work behind that the kernel does later; blue is measured until it is done.
const RECOVERY: Duration = Duration::from_secs(20);
const MEMORY: &str = "256M";

struct Arena {
    cluster: Cluster,
    /// Where blue is measured; red attacks from the first.
    probed: &'static str,
    proxies: [Option<u32>; 2],
    servers: Vec<Value>,
    machine: Machine,
}

impl Arena {
    fn new() -> Arena {
        Arena::over(1, "n1")
    }

    fn over(nodes: usize, probed: &'static str) -> Arena {
        let cluster = Cluster::up(nodes);
        for name in ["red", "blue"] {
            let limits = ["--memory", MEMORY, "--pids", "256", "--disk", "64M", "--open-files", "1024", "--egress"];
            cluster.container(name, nodes, &[&["--fs-node", "n1", "--disk-node", "n1"][..], &limits].concat());
        }
        let (servers, proxies) = (servers(&cluster), proxies(&cluster));
        Arena { machine: Machine::now(), cluster, probed, servers, proxies }
    }

    fn probe(&self) -> Duration {
        let begin = Instant::now();
        self.cluster.sh("blue", self.probed, PROBE);
        begin.elapsed()
    }

    fn median(&self) -> Duration {
        let mut all: Vec<Duration> = (0..PROBES).map(|_| self.probe()).collect();
        all.sort();
        all[PROBES / 2]
    }

    /// What red's root got, line by line.
    fn attack(&self, name: &str, seconds: f64, more: &[&str]) -> Vec<String> {
        let seconds = seconds.to_string();
        let argv = ["run", "red", "--node", "n1", "--", "/usr/bin/python3", "-c", ATTACK, name, &seconds];
        // How it ends is its own affair: many are killed.
        let done = self.cluster.output(&[&argv, more].concat());
        let text = String::from_utf8_lossy(&done.stdout);
        let mut lines = text.lines().map(str::to_owned);
        let begun = lines.next().is_some_and(|line| line == "begun");
        assert!(begun, "'{name}' did not run: {} {}", done.status, String::from_utf8_lossy(&done.stderr));
        lines.collect()
    }

    /// One attack, with all that is to be true after it. Answers what red's root got.
    fn survive(&self, name: &str, seconds: f64) -> Vec<String> {
        self.survive_with(name, seconds, &[])
    }

    fn survive_with(&self, name: &str, seconds: f64, more: &[&str]) -> Vec<String> {
        let before = self.median();
        let (got, during) = std::thread::scope(|scope| {
            let attack = scope.spawn(|| self.attack(name, seconds, more));
            // Blue goes on meanwhile, if not as fast: red has a right to its share of the machine.
            let during = self.probe();
            (attack.join().expect("attack"), during)
        });
        let limit = before * SLOWER_MAX + NOISE;
        let mut after = Duration::MAX;
        eventually(&format!("blue is as quick as before '{name}' ({limit:?})"), RECOVERY, || {
            after = after.min(self.median());
            (after <= limit).then_some(())
        });
        println!("{name}: blue before {before:?}, during {during:?}, after {after:?}");
        // What an attacker leaves in its memory is its own; it would keep the next attack from running.
        eventually(&format!("red works again after '{name}'"), RECOVERY, || {
            let argv = ["run", "red", "--node", "n1", "--", "sh", "-c", TIDY];
            self.cluster.output(&argv).status.success().then_some(())
        });
        // Red's own gate goes with red's own init.
        let whose = if name == "own_init" { 1.. } else { 0.. };
        let (now, before) = (&servers(&self.cluster)[whose.clone()], &self.servers[whose]);
        assert!(now == before, "'{name}' ended a server: {before:?} before, {now:?} now{}", self.cluster.logs());
        assert_eq!(proxies(&self.cluster), self.proxies, "'{name}' ended a proxy{}", self.cluster.logs());
        self.machine.assert_unchanged(name);
        got
    }
}

/// Of both containers: who serves, since when.
fn servers(cluster: &Cluster) -> Vec<Value> {
    let of = |name: &str| {
        let inspected = cluster.json(&["dc", "inspect", name, "-o", "json"]);
        let shares = inspected["shares"].as_array().cloned().unwrap_or_default();
        Value::Array(shares.into_iter().map(|share| share["servers"].clone()).collect())
    };
    ["red", "blue"].map(of).to_vec()
}

fn proxies(cluster: &Cluster) -> [Option<u32>; 2] {
    ["n1", "n2"].map(|node| cluster.proxy_of(node).map(|(pid, _)| pid))
}

/// What of the machine a tenant would like to change.
struct Machine {
    settings: BTreeMap<String, String>,
    /// Of the wall clock against one that nobody can set, in seconds.
    clock: i64,
}

impl Machine {
    fn now() -> Machine {
        let mut settings = BTreeMap::new();
        for dir in ["/proc/sys/kernel", "/proc/sys/vm", "/proc/sys/fs"] {
            read_settings(Path::new(dir), &mut settings);
        }
        for file in ["/etc/passwd", "/etc/hostname", "/proc/swaps", "/proc/modules", "/sys/kernel/uevent_helper"] {
            settings.insert(file.to_owned(), std::fs::read_to_string(file).unwrap_or_default());
        }
        Machine { settings, clock: clock() }
    }

    fn assert_unchanged(&self, attack: &str) {
        let now = Machine::now();
        let changed: Vec<_> =
            self.settings.iter().filter(|(name, value)| now.settings.get(*name) != Some(value)).collect();
        assert!(changed.is_empty(), "'{attack}' changed {changed:?}");
        assert!((now.clock - self.clock).abs() <= 2, "'{attack}' set the clock");
        std::fs::File::options().read(true).write(true).open("/dev/ptmx").expect("the machine has terminals left");
    }
}

fn clock() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::Realtime).tv_sec - clock_gettime(ClockId::Boottime).tv_sec
}

/// Settings proper; what the kernel counts there changes by itself.
fn read_settings(dir: &Path, into: &mut BTreeMap<String, String>) {
    const COUNTS: [&str; 16] = [
        "random",
        "ns_last_pid",
        "dentry-state",
        "inode-nr",
        "inode-state",
        "file-nr",
        "aio-nr",
        "nr",
        "tainted",
        "quota",
        "stat_refresh",
        "pty",
        "sched_domain",
        "binfmt_misc",
        "keys",
        "epoll",
    ];
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if COUNTS.iter().any(|count| name == *count) {
            continue;
        }
        if path.is_dir() {
            read_settings(&path, into);
        } else if let Ok(value) = std::fs::read_to_string(&path) {
            into.insert(path.display().to_string(), value);
        }
    }
}

fn has_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).expect("capabilities");
    u64::from_str_radix(effective, 16).expect("hexadecimal") >> CAP_SYS_RESOURCE & 1 == 1
}

fn assert_refused(got: &[String], but: &[&str]) {
    let done: Vec<_> = got.iter().filter(|line| line.ends_with(" done")).collect();
    assert!(done.iter().all(|line| but.iter().any(|name| line.strip_suffix(" done") == Some(name))), "{done:?}");
}

/// Settings that belong to a container's own namespaces: its network, its System V IPC and message queues, its own
/// names and numbers.
fn is_of_the_container(setting: &str) -> bool {
    let own = ["net/", "fs/mqueue/", "user/", "kernel/msg", "kernel/sem", "kernel/shm", "kernel/auto_msgmni"];
    let names = ["kernel/hostname", "kernel/domainname", "kernel/pid_max", "kernel/arch"];
    let Some(name) = setting.strip_prefix("/proc/sys/") else { return false };
    own.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
}

#[test]
fn quick_attacks_of_a_tenant_cost_its_neighbour_nothing() {
    let arena = Arena::new();
    let bounded = |name: &str, most: usize| {
        let got = arena.survive(name, 2.0);
        let counts = got.iter().filter_map(|line| line.strip_prefix("got ")?.split(' ').next()?.parse::<usize>().ok());
        let counts: Vec<usize> = counts.collect();
        assert!(!counts.is_empty() && counts.iter().all(|count| *count <= most), "{name}: {got:?}");
    };
    arena.survive("forks", 2.0);
    arena.survive("computing", 2.0);
    arena.survive("memory", 2.0);
    arena.survive("tree", 2.0);
    bounded("terminals", 256);
    arena.survive("descriptors", 2.0);
    bounded("connections", 1024);
    arena.survive("logs", 2.0);
    // Lowering the score is refused where the daemon has the privilege to set a floor to it.
    let floor: &[&str] = if has_sys_resource() { &[] } else { &["kill score"] };
    assert_refused(&arena.survive("signals", 2.0), floor);
    arena.survive("network", 1.0);
    arena.survive("way_out", 2.0);
    assert_refused(&arena.survive("mounts", 2.0), &["name of the node"]);
    let settings = arena.survive("settings", 2.0);
    let writable: Vec<&str> = settings.iter().filter_map(|line| line.strip_prefix("writable ")).collect();
    assert!(writable.iter().all(|path| is_of_the_container(path)), "{writable:?}");
    assert_refused(&settings, &[]);
    arena.survive("own_init", 1.0);
}

/// Red is on two nodes and has an accomplice on the other one: what crosses the link is carried by proxies that carry
/// blue's, too.
#[test]
fn attacks_over_two_nodes_cost_the_neighbour_nothing() {
    let Some(library) = c_library::built() else { return };
    let arena = Arena::over(2, "n2");
    arena.cluster.ok(&["import", "red", library.path().to_str().expect("UTF-8"), "/m3"]);
    let seconds = if is_long_run() { 20.0 } else { 2.0 };
    let accomplice = ["run", "-d", "red", "--node", "n2", "--", "/usr/bin/python3", "-c", ATTACK, "accomplice", "3600"];
    for name in ["far_arenas", "far_messages", "far_names"] {
        let pid = arena.cluster.ok(&accomplice);
        let number = eventually("the accomplice says its number", RECOVERY, || {
            let log = arena.cluster.ok(&["logs", "red", pid.trim()]);
            Some(log.lines().find_map(|line| line.strip_prefix("endpoint "))?.to_owned())
        });
        let got = arena.survive_with(name, seconds, &[&number]);
        let did = got.iter().find_map(|line| line.strip_prefix("did ")?.parse::<u64>().ok());
        assert!(did.is_some_and(|did| did > 0), "'{name}' did nothing: {got:?}");
        println!("{name}: {did:?} times");
        arena.cluster.output(&["kill", "red", pid.trim(), "-s", "KILL"]);
    }
}

#[test]
#[ignore = "minutes"]
fn heavy_attacks_of_a_tenant_cost_its_neighbour_nothing() {
    let arena = Arena::new();
    for name in [
        "forks",
        "computing",
        "memory",
        "files_in_memory",
        "kernel_memory",
        "tree",
        "links",
        "file_flood",
        "descriptors",
        "connections",
        "watches",
        "semaphores",
        "logs",
        "network",
        "way_out",
        "sockets",
    ] {
        arena.survive(name, 15.0);
    }
}
