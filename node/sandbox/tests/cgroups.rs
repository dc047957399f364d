//! Control groups: version 1 of this machine with real processes; version 2 where the host has it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use mgmt_api::Limits;
use sandbox::cgroup::{Cgroup, CgroupError, Controller, Hierarchy};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A group that goes when the test does.
struct Group(Cgroup);

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            eprintln!("the control group stays: {error}");
        }
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

fn group(limits: &Limits) -> Result<Group, CgroupError> {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Cgroup::ensure(&format!("cgtest-{}-{number}", std::process::id()), limits).map(Group)
}

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().expect("sleep")
}

#[test]
fn members_are_counted_and_killed_together_and_the_group_goes() {
    if !is_root() {
        return;
    }
    let group = group(&Limits::default()).expect("group");
    let mut children: Vec<Child> = (0..3).map(|_| sleeper()).collect();
    children.iter().for_each(|child| group.0.add(child.id()).expect("add"));
    assert_eq!(group.0.members().expect("members").len(), 3);
    let stats = group.0.stats();
    assert_eq!(stats.pids, 3);
    // Whoever waits for the dead is somebody else's business: here this test, after the fact.
    group.0.kill_all().expect("kill");
    for child in &mut children {
        assert_eq!(child.wait().expect("wait").signal(), Some(libc::SIGKILL));
    }
    group.0.remove().expect("remove");
    group.0.remove().expect("remove twice");
}

#[test]
fn limit_of_processes_holds() {
    if !is_root() {
        return;
    }
    let limits = Limits { pids: Some(4), ..Limits::default() };
    let group = group(&limits).expect("group");
    let mut shell = Command::new("sh")
        .args(["-c", "read x; for i in 1 2 3 4 5 6 7 8; do sleep 100 >/dev/null 2>&1 & done; echo made all"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("shell");
    group.0.add(shell.id()).expect("add");
    drop(shell.stdin.take());
    let output = shell.wait_with_output().expect("wait");
    assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), output.status.success()), ("", false));
    assert!(group.0.members().expect("members").len() <= 4);
}

#[test]
fn limits_are_written_changed_and_lifted() {
    if !is_root() {
        return;
    }
    let limits = Limits {
        cpus: Some("0".into()),
        cpu_weight: Some(200),
        cpu_max: Some(0.5),
        memory_bytes: Some(64 << 20),
        pids: Some(100_000),
    };
    let group = group(&limits).expect("group");
    let Ok(Hierarchy::V1(mounts)) = Hierarchy::detect() else {
        eprintln!("SKIPPED: this part reads the files of version 1");
        return;
    };
    let read = |controller: Controller, file: &str| {
        let path = mounts[&controller].join("dvs").join(group.0.name()).join(file);
        std::fs::read_to_string(path).expect("read").trim().to_owned()
    };
    assert_eq!(read(Controller::Cpuset, "cpuset.cpus"), "0");
    assert_eq!(read(Controller::Cpu, "cpu.shares"), "2048");
    assert_eq!(read(Controller::Cpu, "cpu.cfs_quota_us"), "50000");
    assert_eq!(read(Controller::Memory, "memory.limit_in_bytes"), (64 << 20).to_string());
    assert_eq!(read(Controller::Pids, "pids.max"), "32768", "half of a node's range at most");
    Cgroup::ensure(group.0.name(), &Limits::default()).expect("lift");
    assert_eq!(read(Controller::Cpu, "cpu.cfs_quota_us"), "-1");
    assert_ne!(read(Controller::Memory, "memory.limit_in_bytes"), (64 << 20).to_string());
}

#[test]
fn version_2_on_an_imitation_directory_gets_the_right_values_in_the_right_files() {
    let dir = tempfile::tempdir().expect("directory");
    let place = dir.path().join("dvs/shop");
    std::fs::create_dir_all(&place).expect("directory");
    for level in [dir.path(), &dir.path().join("dvs")] {
        std::fs::write(level.join("cgroup.subtree_control"), "").expect("file");
    }
    for file in ["cpu.max", "cpu.weight", "memory.max", "cpuset.cpus", "pids.max", "cgroup.procs"] {
        std::fs::write(place.join(file), "").expect("file");
    }
    std::fs::write(place.join("cpu.stat"), "usage_usec 1500\nuser_usec 1000\n").expect("file");
    std::fs::write(place.join("memory.current"), "4096\n").expect("file");
    std::fs::write(place.join("pids.current"), "2\n").expect("file");
    let limits = Limits {
        cpus: Some("0-1".into()),
        cpu_weight: Some(300),
        cpu_max: Some(1.5),
        memory_bytes: Some(1 << 20),
        pids: None,
    };
    let hierarchy = Hierarchy::V2(dir.path().to_owned());
    let group = Cgroup::ensure_in(hierarchy.clone(), "shop", &limits).expect("group");
    let read = |file: &str| std::fs::read_to_string(place.join(file)).expect("read");
    assert_eq!(read("cpu.max"), "150000 100000");
    assert_eq!(read("cpu.weight"), "300");
    assert_eq!(read("memory.max"), "1048576");
    assert_eq!(read("cpuset.cpus"), "0-1");
    assert_eq!(read("pids.max"), "32768");
    let stats = group.stats();
    assert_eq!((stats.cpu_ns, stats.memory_bytes, stats.pids), (1_500_000, 4096, 2));
    std::fs::remove_file(place.join("memory.max")).expect("remove");
    let refused = Cgroup::ensure_in(hierarchy.clone(), "shop", &limits);
    assert!(matches!(refused, Err(CgroupError::NoController { controller: Controller::Memory, .. })));
    assert!(matches!(Cgroup::ensure_in(hierarchy, "../x", &limits), Err(CgroupError::BadName(_))));
}

#[test]
fn doctor_finds_on_this_machine_what_the_other_tests_use_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let checks = sandbox::doctor::checks();
    for name in ["root", "overlay network", "control groups", "sealed memory", "pidfd", "futex_waitv"] {
        let check = checks.iter().find(|check| check.name == name).expect("known");
        assert_eq!(check.state, sandbox::doctor::State::Ok, "{check:?}");
    }
    // Probes that fork say that they could not be tried in a process with threads, as this one is.
    let check = checks.iter().find(|check| check.name == "user namespaces").expect("known");
    assert!(check.found.contains("threads"), "{check:?}");
    let leftover = sandbox::cgroup::list(&Hierarchy::detect().expect("hierarchy"));
    let own = format!("doctor-{}", std::process::id());
    assert!(leftover.iter().all(|group| group.name() != own));
}
