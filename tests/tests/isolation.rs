//! What the members of a container can and cannot reach.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use end_to_end::{Cluster, eventually};

/// What root of a container tries by hand.
const M3IPC: &str = include_str!("../src/m3ipc.py");

const SERVE: &str =
    "mkdir -p /tmp/www && echo $PAGE > /tmp/www/index.html && cd /tmp/www && exec python3 -m http.server 80";

#[test]
fn two_containers_with_the_same_addresses_see_only_their_own_server() {
    let cluster = Cluster::up(2);
    for name in ["red", "blue"] {
        cluster.container(name, 2, &["--subnet", "10.9.0.0/24"]);
        let page = format!("PAGE={name}");
        cluster.ok(&["run", name, "--node", "n1", "-d", "--env", &page, "--", "bash", "-c", SERVE]);
    }
    for name in ["red", "blue"] {
        let page = eventually("the server answers", Duration::from_secs(20), || {
            let done = cluster.output(&[
                "run",
                name,
                "--node",
                "n2",
                "--",
                "curl",
                "-sf",
                "--max-time",
                "2",
                "http://10.9.0.1/",
            ]);
            done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
        });
        assert_eq!(page, format!("{name}\n"));
    }
}

#[test]
fn root_of_a_container_cannot_see_or_signal_its_own_servers() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let fs = cluster.server_pid("shop", "n1", "fs").expect("fs runs");
    let seen = cluster.sh("shop", "n1", "ls /proc | grep -E '^[0-9]+$' | sort -n");
    assert!(!seen.lines().any(|line| line == fs.to_string()), "{seen}");
    assert!(
        seen.lines().filter_map(|line| line.parse::<u32>().ok()).all(|pid| pid == 1 || pid / 65_536 == 1),
        "{seen}"
    );
    let (_, message) = cluster.fails(&["run", "shop", "--", "kill", "-9", &fs.to_string()]);
    assert!(message.contains("No such process"), "{message}");
    assert_eq!(cluster.server_pid("shop", "n1", "fs"), Some(fs), "the server was restarted");
}

#[test]
fn host_files_outside_the_system_directories_are_not_there() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let state = cluster.state_dir().display().to_string();
    let (code, _) = cluster.fails(&["run", "shop", "--", "ls", &state]);
    assert_ne!(code, 0);
    let (code, message) = cluster.fails(&["run", "shop", "--", "touch", "/usr/bin/evil"]);
    assert_ne!(code, 0);
    assert!(message.contains("Read-only") || message.contains("Permission denied"), "{message}");
}

/// System calls that are the host's alone, or would escape the filter.
#[test]
fn root_of_a_container_gets_no_call_that_is_the_hosts() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let script = "import ctypes, errno\nl = ctypes.CDLL(None, use_errno=True)\n\
        calls = dict(io_uring_setup=425, bpf=321, perf_event_open=298, init_module=175, kexec_load=246, keyctl=250, \
        open_by_handle_at=304, reboot=169, settimeofday=164, syslog=103)\n\
        for name, number in calls.items():\n  r = l.syscall(number, 0, 0, 0, 0, 0, 0)\n  print(name, r, errno.errorcode[ctypes.get_errno()])";
    let printed = cluster.ok(&["run", "shop", "--", "/usr/bin/python3", "-c", script]);
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("io_uring_setup -1 ENOSYS"));
    assert!(lines.clone().count() == 9 && lines.all(|line| line.ends_with(" -1 EPERM")), "{printed}");
}

#[test]
fn limit_of_processes_holds_for_the_whole_container() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &["--pids", "40"]);
    let script = "import os, time\nn = 0\ntry:\n  while n < 200:\n    if os.fork() == 0:\n      time.sleep(60); os._exit(0)\n    n += 1\nexcept BlockingIOError: pass\nprint(n)\n\
        import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(0, signal.SIGTERM)";
    let made: u32 =
        cluster.ok(&["run", "shop", "--", "/usr/bin/python3", "-uc", script]).trim().parse().expect("a number");
    assert!((1..=40).contains(&made), "{made}");
    assert_eq!(cluster.sh("shop", "n1", "echo goes on"), "goes on\n");
}

/// Root in `dc` tries `what`; its lines.
fn attempts(cluster: &Cluster, dc: &str, what: &[&str]) -> Vec<String> {
    let mut command = vec!["run", dc, "--node", "n1", "--", "/usr/bin/python3", "-c", M3IPC];
    command.extend_from_slice(what);
    cluster.ok(&command).lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn endpoints_of_another_container_and_of_servers_cannot_be_named_or_taken() {
    let cluster = Cluster::up(1);
    cluster.container("red", 1, &[]);
    cluster.container("blue", 1, &[]);
    let mut holder = cluster.spawn(&["run", "blue", "--node", "n1", "--", "/usr/bin/python3", "-uc", M3IPC, "hold"]);
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let foreign = line.trim().strip_prefix("endpoint ").expect("an endpoint").to_owned();
    let blue = cluster.json(&["dc", "inspect", "blue", "-o", "json"]);
    let blue = blue["id"].as_u64().expect("the number of the container").to_string();
    let fs = cluster.server_pid("red", "n1", "fs").expect("fs runs").to_string();

    let seen = attempts(&cluster, "red", &["numbers", &foreign, &blue, &fs]);
    // The container is the socket's: a packet that names one ends the connection. A number of another container names
    // nobody here (12: denied, 3: nobody).
    let expected = [
        "bind-in-foreign dropped",
        "bind-any bound",
        "open-foreign failed 3",
        "ring-foreign failed 3",
        "copy-foreign failed 3",
        "ring-fs failed 12",
        "ring-disk failed 12",
        "other-program failed 3",
        "bind-fs failed 12",
        "bind-ds failed 12",
        "bind-disk failed 12",
        "bind-gate failed 12",
        "getep failed 3",
        "getep failed 3",
        "getep failed 3",
        "bind-same-number bound",
        "open-in-foreign dropped",
    ];
    assert_eq!(seen, expected);
    drop(cluster);
    let _ = holder.wait();
}

#[test]
fn memory_of_channels_cannot_be_opened_for_writing_by_who_may_read_it() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let seen = attempts(&cluster, "shop", &["descriptors"]);
    let expected = [
        "bind bound",
        "open opened",
        "peer-write EBADF",
        "peer-map EACCES",
        "peer-reopen EACCES",
        "peer-chmod EPERM",
        "page-write EBADF",
        "page-map EACCES",
        "page-reopen EACCES",
        "page-chmod EPERM",
        "own-shrink EPERM",
        "own-grow EPERM",
        "shared-shrink EPERM",
        "shared-grow EPERM",
    ];
    assert_eq!(seen, expected);
}

#[test]
fn root_of_a_container_cannot_trace_signal_or_read_servers_gate_proxy_and_daemon() {
    let cluster = Cluster::up(1);
    cluster.container("red", 1, &[]);
    cluster.container("blue", 1, &[]);
    let pids = |dc: &str| -> Vec<u32> {
        let inspected = cluster.json(&["dc", "inspect", dc, "-o", "json"]);
        let servers = inspected["shares"][0]["servers"].as_array().expect("servers").clone();
        servers.iter().filter_map(|server| server["pid"].as_u64()).map(|pid| pid as u32).collect()
    };
    let before = [pids("red"), pids("blue")];
    assert!(before.iter().all(|found| found.len() >= 4), "fs, ds, disk and gate of each: {before:?}");
    // Whoever is up the tree from a server: its daemon.
    let of_all: Vec<String> = before.concat().iter().map(u32::to_string).collect();
    let mut command = vec!["processes"];
    command.extend(of_all.iter().map(String::as_str));
    let seen = attempts(&cluster, "red", &command);
    assert_eq!(seen.len(), 8 * of_all.len());
    let is_refused = |line: &String| ["ESRCH", "ENOENT", "EPERM", "EACCES"].iter().any(|name| line.ends_with(name));
    assert!(seen.iter().all(is_refused), "{seen:?}");
    assert_eq!([pids("red"), pids("blue")], before, "a server was restarted");
}
