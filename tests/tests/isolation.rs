//! What the members of a container can and cannot reach.

use std::time::Duration;

use end_to_end::{Cluster, eventually};

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
