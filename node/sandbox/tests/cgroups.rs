//! Control groups: version 1 of this machine with real processes; version 2 where the host has it.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use mgmt_api::Limits;
use sandbox::cgroup::{Capacity, Cgroup, CgroupError, Controller, Hierarchy};

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
fn programs_stand_still_go_on_and_are_killed_in_between() {
    if !is_root() {
        return;
    }
    let group = group(&Limits::default()).expect("group");
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
    let mut children: Vec<Child> = (0..2).map(|_| busy()).collect();
    children.iter().for_each(|child| group.0.add(child.id()).expect("add"));
    let run = group.0.make_run(1).expect("a group below");
    let mut below = busy();
    for mut file in group.0.member_files_of(&run).expect("files").into_iter().map(std::fs::File::from) {
        std::io::Write::write_all(&mut file, below.id().to_string().as_bytes()).expect("add");
    }
    let used = || group.0.stats().cpu_ns;
    let goes_on = |before: u64| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while used() <= before && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
        used() > before
    };
    assert!(goes_on(used()));
    group.0.hold(true).expect("a freezer");
    // Who is in the kernel at this moment goes on until it leaves it, on a busy machine when it is its turn again.
    let mut before = used();
    for _ in 0..100 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        if std::mem::replace(&mut before, used()) == before {
            break;
        }
    }
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(used(), before);
    group.0.hold(false).expect("a freezer");
    assert!(goes_on(before));
    group.0.hold(true).expect("a freezer");
    group.0.kill_all().expect("kill");
    for child in children.iter_mut().chain([&mut below]) {
        assert_eq!(child.wait().expect("wait").signal(), Some(libc::SIGKILL));
    }
    group.0.remove().expect("remove");
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

/// The content of a group's file; `level` is below the container's group.
fn read(group: &Group, controller: Controller, level: &str, file: &str) -> String {
    let mount = match Hierarchy::detect().expect("hierarchy") {
        Hierarchy::V1(mounts) => mounts[&controller].clone(),
        Hierarchy::V2(mount) => mount,
    };
    let path = mount.join("dvs").join(group.0.name()).join(level).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

/// With whichever version this machine has.
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
        ..Limits::default()
    };
    let group = group(&limits).expect("group");
    let unified = matches!(Hierarchy::detect(), Ok(Hierarchy::V2(_)));
    let memory = |level: &str| {
        let file = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        read(&group, Controller::Memory, level, file).parse::<u64>().expect("a number: everything is limited")
    };
    let quota = || {
        let file = if unified { "cpu.max" } else { "cpu.cfs_quota_us" };
        read(&group, Controller::Cpu, "programs", file)
    };
    assert_eq!(read(&group, Controller::Cpuset, "programs", "cpuset.cpus"), "0");
    let (file, weight) = if unified { ("cpu.weight", "200") } else { ("cpu.shares", "2048") };
    assert_eq!(read(&group, Controller::Cpu, "", file), weight);
    assert_eq!(quota(), if unified { "50000 100000" } else { "50000" });
    assert_eq!(memory("programs"), 64 << 20);
    assert_eq!(read(&group, Controller::Pids, "programs", "pids.max"), "32768", "half of a node's range at most");
    Cgroup::ensure(group.0.name(), &Limits::default()).expect("lift");
    assert_eq!(quota(), if unified { "max 100000" } else { "-1" });
    let node = Capacity::of_this_node();
    let page = 4096;
    assert_eq!(memory("programs") / page, node.memory_bytes / 2 / page, "half of the node's");
    assert!(memory("servers") < node.memory_bytes, "servers have a limit of their own");
    assert!(memory("..") < node.memory_bytes, "all containers together leave something to the node");
    let pids = read(&group, Controller::Pids, "programs", "pids.max").parse::<u64>().expect("number");
    assert!(pids <= Limits::PIDS && pids * 4 <= node.pids, "{pids}");
}

#[test]
fn what_a_container_gets_unless_it_asks_leaves_the_node_and_others_theirs() {
    let node = Capacity { memory_bytes: 16 << 30, pids: 8192 };
    let granted = node.grant(&Limits::default());
    assert_eq!((granted.memory_bytes, granted.pids), (8 << 30, 2048));
    let asked = Limits { memory_bytes: Some(15 << 30), pids: Some(8000), ..Limits::default() };
    assert_eq!((node.grant(&asked).memory_bytes, node.grant(&asked).pids), (15 << 30, 8000));
}

/// Programs that fill memory are killed; servers beside them keep theirs, though both are in the container's account.
#[test]
fn program_that_takes_all_memory_takes_none_from_servers() {
    if !is_root() {
        return;
    }
    let group = group(&Limits { memory_bytes: Some(32 << 20), ..Limits::default() }).expect("group");
    let hog = |megabytes: u32| {
        let script = format!("read x; head -c {megabytes}M /dev/zero | tail | sleep 1000");
        Command::new("sh")
            .args(["-c", &script])
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("shell")
    };
    let (mut server, mut program) = (hog(64), hog(1000));
    group.0.add_server(server.id()).expect("add");
    group.0.add(program.id()).expect("add");
    drop(server.stdin.take());
    let held = |megabytes: u64| {
        let begin = std::time::Instant::now();
        while group.0.stats().memory_bytes < megabytes << 20 {
            assert!(begin.elapsed().as_secs() < 60, "{:?}", group.0.stats());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    held(64);
    drop(program.stdin.take());
    // What is killed is `tail`: the shell then ends the pipeline.
    let begin = std::time::Instant::now();
    let failures = |level: &str| match Hierarchy::detect().expect("hierarchy") {
        Hierarchy::V1(_) => {
            let text = read(&group, Controller::Memory, level, "memory.oom_control");
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok()).unwrap_or(0)
        }
        Hierarchy::V2(_) => {
            let text = read(&group, Controller::Memory, level, "memory.events");
            text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok()).unwrap_or(0)
        }
    };
    while failures("programs") == 0 {
        assert!(begin.elapsed().as_secs() < 60, "nothing of it was killed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(failures("servers"), 0);
    held(64);
    assert!(server.try_wait().expect("status").is_none(), "the server goes on");
    group.0.remove().expect("remove");
    assert!(server.wait().is_ok() && program.wait().is_ok());
}

/// Fills the receive buffers of many sockets that nobody reads, as it is told by a line; then tells how many bytes
/// came, and waits.
const UDP_HOARDER: &str = r#"
import socket, sys
sys.stdin.readline()
sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(200)]
for it in sockets:
    it.bind(("127.0.0.1", 0))
for it in sockets:
    for _ in range(40):
        sockets[0].sendto(bytes(4000), it.getsockname())
print("sent", flush=True)
sys.stdin.readline()
came = 0
for it in sockets:
    it.setblocking(False)
    try:
        while True:
            came += len(it.recv(4000))
    except BlockingIOError:
        pass
print(came, flush=True)
"#;

/// Version 1 has one account for it, whose name says TCP. Version 2 counts buffers with all other memory.
#[test]
fn buffers_of_udp_sockets_are_bounded_as_those_of_tcp() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    if !is_root() {
        return;
    }
    let group = group(&Limits { memory_bytes: Some(64 << 20), ..Limits::default() }).expect("group");
    let Ok(Hierarchy::V1(mounts)) = Hierarchy::detect() else {
        eprintln!("SKIPPED: control groups of version 2 count buffers with all other memory");
        return;
    };
    let account = mounts[&Controller::Memory].join("dvs").join(group.0.name()).join("programs");
    if !account.join("memory.kmem.tcp.limit_in_bytes").exists() {
        eprintln!("SKIPPED: this kernel does not count the buffers of sockets");
        return;
    }
    let count = |file: &str| read(&group, Controller::Memory, "programs", file).parse::<u64>().expect("a number");
    let limit = count("memory.kmem.tcp.limit_in_bytes");
    assert_eq!(limit, 8 << 20);
    let mut hoarder = Command::new("python3")
        .args(["-c", UDP_HOARDER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3");
    group.0.add(hoarder.id()).expect("add");
    let (mut stdin, stdout) = (hoarder.stdin.take().expect("a pipe"), hoarder.stdout.take().expect("a pipe"));
    let mut lines = BufReader::new(stdout).lines();
    let mut next = || {
        stdin.write_all(b"\n").expect("it reads");
        lines.next().expect("a line").expect("text")
    };
    assert_eq!(next(), "sent");
    let used = count("memory.kmem.tcp.usage_in_bytes");
    let came: u64 = next().parse().expect("a number");
    println!("limit {limit}, counted {used}, of {} bytes sent came {came}", 200 * 40 * 4000);
    // 32 MB were sent.
    assert!(used <= limit && came <= limit, "limit {limit}, counted {used}, came {came}");
    assert!(came > limit / 4, "the limit is why no more came: {came}");
    assert!(hoarder.wait().expect("wait").success());
}

#[test]
fn version_2_on_an_imitation_directory_gets_the_right_values_in_the_right_files() {
    let dir = tempfile::tempdir().expect("directory");
    let (all, place) = (dir.path().join("dvs"), dir.path().join("dvs/shop"));
    let (programs, servers) = (place.join("programs"), place.join("servers"));
    for level in [&programs, &servers] {
        std::fs::create_dir_all(level).expect("directory");
    }
    for level in [dir.path(), &all, &place] {
        std::fs::write(level.join("cgroup.subtree_control"), "").expect("file");
    }
    for file in ["cpu.max", "cpu.weight", "memory.max", "cpuset.cpus", "pids.max", "cgroup.procs", "cgroup.freeze"] {
        for level in [&all, &place, &programs, &servers] {
            std::fs::write(level.join(file), "").expect("file");
        }
    }
    std::fs::write(place.join("cpu.stat"), "usage_usec 1500\nuser_usec 1000\n").expect("file");
    std::fs::write(place.join("memory.current"), "4096\n").expect("file");
    std::fs::write(place.join("pids.current"), "2\n").expect("file");
    let limits = Limits {
        cpus: Some("0-1".into()),
        cpu_weight: Some(300),
        cpu_max: Some(1.5),
        memory_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let hierarchy = Hierarchy::V2(dir.path().to_owned());
    let group = Cgroup::ensure_in(hierarchy.clone(), "shop", &limits).expect("group");
    let read = |file: &str| std::fs::read_to_string(programs.join(file)).expect("read");
    group.hold(true).expect("a file");
    assert_eq!(read("cgroup.freeze"), "1");
    group.hold(false).expect("a file");
    assert_eq!(read("cgroup.freeze"), "0");
    assert_eq!(read("cpu.max"), "150000 100000");
    assert_eq!(std::fs::read_to_string(place.join("cpu.weight")).expect("read"), "300");
    assert_eq!(read("memory.max"), "1048576");
    assert_eq!(read("cpuset.cpus"), "0-1");
    assert_eq!(read("pids.max"), Capacity::of_this_node().grant(&limits).pids.to_string());
    assert_eq!(std::fs::read_to_string(place.join("memory.max")).expect("read"), "", "its two groups have limits");
    assert_ne!(std::fs::read_to_string(servers.join("memory.max")).expect("read"), "");
    for (level, passes_on) in [(dir.path(), true), (&all, true), (&place, true), (&programs, false), (&servers, false)]
    {
        let controllers = std::fs::read_to_string(level.join("cgroup.subtree_control")).unwrap_or_default();
        // The kernel's file takes words one by one; here the last one lies over what was longer.
        assert_eq!(controllers.starts_with("+pids"), passes_on, "{}", level.display());
    }
    group.add(7).expect("add");
    group.add_server(8).expect("add");
    assert_eq!((read("cgroup.procs").as_str(), group.members().expect("members")), ("7", vec![7]));
    assert_eq!(std::fs::read_to_string(servers.join("cgroup.procs")).expect("read"), "8");
    let stats = group.stats();
    assert_eq!((stats.cpu_ns, stats.memory_bytes, stats.pids), (1_500_000, 4096, 2));
    std::fs::remove_file(programs.join("memory.max")).expect("remove");
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
