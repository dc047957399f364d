//! Containers over several nodes, from the command line.

use std::process::Stdio;
use std::time::Duration;

use end_to_end::{Cluster, eventually};

#[test]
fn file_written_on_one_node_is_read_on_the_others() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster.sh("shop", "n1", "echo hello > /dc/greeting && mkdir /dc/d && ln -s ../greeting /dc/d/link");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(cluster.sh("shop", node, "cat /dc/d/link"), "hello\n");
    }
    cluster.sh("shop", "n3", "echo more >> /dc/greeting");
    assert_eq!(cluster.sh("shop", "n1", "cat /dc/greeting"), "hello\nmore\n");
}

#[test]
fn tree_survives_stop_and_start_of_the_container() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    cluster.sh("shop", "n1", "mkdir -p /dc/a/b && echo kept > /dc/a/b/c && sync");
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.sh("shop", "n2", "cat /dc/a/b/c"), "kept\n");
}

#[test]
fn exit_status_is_what_people_know_from_docker() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let status = |arguments: &[&str]| {
        let mut all = vec!["run", "shop", "--"];
        all.extend_from_slice(arguments);
        cluster.output(&all).status.code()
    };
    assert_eq!(status(&["true"]), Some(0));
    assert_eq!(status(&["sh", "-c", "exit 3"]), Some(3));
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]), Some(137));
    assert_eq!(status(&["no-such-program"]), Some(127));
    assert_eq!(status(&["/etc/passwd"]), Some(126));
    let (code, message) = cluster.fails(&["run", "no-such-container", "--", "true"]);
    assert_eq!(code, 125, "{message}");
}

#[test]
fn input_and_output_pass_through_unchanged() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let input: Vec<u8> = (0..3_000_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let done = cluster.sh_with_input("shop", "n1", "tee /dc/copy; echo problem >&2; exit 4", &input);
    assert_eq!(done.status.code(), Some(4));
    assert!(done.stdout == input, "{} bytes of {} came back", done.stdout.len(), input.len());
    assert_eq!(String::from_utf8_lossy(&done.stderr), "problem\n");
}

#[test]
fn pids_tell_their_node_and_ps_shows_all_nodes() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let first: u32 = cluster.sh("shop", "n1", "echo $$").trim().parse().unwrap();
    let second: u32 = cluster.sh("shop", "n2", "echo $$").trim().parse().unwrap();
    assert_eq!((first / 65_536, second / 65_536), (1, 2));
    let pid = cluster.ok(&["run", "shop", "--node", "n2", "-d", "--", "sleep", "1000"]).trim().to_owned();
    let listed = cluster.json(&["ps", "shop", "-o", "json"]);
    let sleeper =
        listed.as_array().unwrap().iter().find(|process| process["pid"].as_u64() == pid.parse().ok()).expect("listed");
    assert_eq!(sleeper["node"], "n2");
    cluster.ok(&["kill", "shop", &pid]);
}

#[test]
fn log_of_a_program_is_followed_to_its_end_from_another_node_and_after_it_ended() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let script = "echo first; until test -e /dc/go; do sleep 0.02; done; echo last";
    let pid = cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", script]);
    let follower = cluster.spawn(&["logs", "-f", "shop", pid.trim()]);
    cluster.sh("shop", "n1", "touch /dc/go");
    let followed = follower.wait_with_output().expect("it ends with the program");
    assert_eq!(String::from_utf8_lossy(&followed.stdout), "first\nlast\n", "{followed:?}");
    for more in [&[][..], &["-f"]] {
        assert_eq!(cluster.ok(&[&["logs", "shop", pid.trim()], more].concat()), "first\nlast\n", "{more:?}");
    }
}

/// A package manager's way to replace its list, and a name that was looked for before it existed.
#[test]
fn names_made_or_replaced_on_one_node_are_seen_at_once_on_another() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster.sh("shop", "n1", "mkdir /dc/d && echo 0 > /dc/d/list");
    for round in 1..=10 {
        let replace =
            format!("cd /dc/d; echo {round} > new; rm -f old; ln list old; mv new list; echo {round} > file{round}");
        assert_eq!(cluster.sh("shop", "n1", &format!("ls /dc/d/file{round} 2>/dev/null || echo absent")), "absent\n");
        cluster.sh("shop", "n3", &replace);
        let seen = cluster.sh("shop", "n1", &format!("cd /dc/d; cat list file{round}"));
        assert_eq!(seen, format!("{round}\n{round}\n"));
    }
}

#[test]
fn limits_hold_for_the_container_and_for_nobody_else() {
    let cluster = Cluster::up(1);
    cluster.container("small", 1, &["--memory", "64M", "--pids", "30", "--cpu-list", "1"]);
    let greedy = ["run", "small", "--", "python3", "-c", "x = bytearray(300 << 20); print(len(x))"];
    assert_eq!(cluster.output(&greedy).status.code(), Some(137), "killed, as it took more memory than there is");
    // The one that exceeds it is killed, not the rest.
    let beside = "python3 -c 'x = bytearray(300 << 20)' || echo $?; echo alive > /dc/file; cat /dc/file; nproc";
    assert_eq!(cluster.sh("small", "n1", beside), "137\nalive\n1\n");
    let many = "for i in $(seq 60); do sleep 1000 & done 2>/dev/null; kill $(jobs -p); wait; echo over";
    let (code, message) = cluster.fails(&["run", "small", "--", "bash", "-c", many]);
    assert!(code != 0 || message.contains("fork"), "60 processes where 30 may be: {code} {message}");
    let left = cluster.ok(&["ps", "small", "-o", "name"]);
    let kill = ["kill", "-s", "KILL", "small"].into_iter().chain(left.lines()).collect::<Vec<_>>();
    // Some may have ended by themselves.
    let _ = cluster.output(&kill);
    eventually("there is room for a program again", Duration::from_secs(20), || {
        (cluster.output(&["run", "small", "--", "echo", "goes on"]).stdout == b"goes on\n").then_some(())
    });
    assert_eq!(cluster.json(&["dc", "inspect", "small", "-o", "json"])["phase"], "running");
}

#[test]
fn container_says_on_which_cpus_its_programs_and_servers_run_and_how_they_wait() {
    let cluster = Cluster::up(1);
    cluster.container("small", 1, &["--cpu-list", "1", "--wait", "park"]);
    let look = "echo $DVS_WAIT; grep Cpus_allowed_list /proc/self/status";
    assert_eq!(cluster.sh("small", "n1", look), "park\nCpus_allowed_list:\t1\n");
    for server in ["fs", "disk-root", "gate"] {
        let pid = cluster.server_pid("small", "n1", server).expect("it runs");
        let look =
            format!("tr '\\0' '\\n' < /proc/{pid}/environ | grep DVS_WAIT; grep Cpus_allowed_list /proc/{pid}/status");
        let seen = cluster.ok(&["dev", "exec", "n1", "--", "bash", "-c", &look]);
        assert_eq!(seen, "DVS_WAIT=park\nCpus_allowed_list:\t1\n", "{server}");
    }
    // A program has the last word.
    let other = cluster.ok(&["run", "small", "--env", "DVS_WAIT=spin", "--", "sh", "-c", "echo $DVS_WAIT"]);
    assert_eq!(other, "spin\n");
    assert_eq!(cluster.json(&["dc", "inspect", "small", "-o", "json"])["spec"]["wait"], "park");
}

/// The other nodes' leases go on: only the links tell.
#[test]
fn node_whose_wire_is_pulled_is_shown_as_unreachable_and_who_waits_for_it_is_told() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n2", "--disk-node", "n2"]);
    let states = || {
        let node = cluster.json(&["node", "inspect", "n2", "-o", "json"])["state"].clone();
        let container = cluster.json(&["dc", "ls", "-o", "json"])[0]["phase"].clone();
        (node.as_str().map(str::to_owned), container.as_str().map(str::to_owned))
    };
    let settle = |node: &str, container: &str| {
        eventually(&format!("n2 is {node} and the container {container}"), Duration::from_secs(20), || {
            (states() == (Some(node.to_owned()), Some(container.to_owned()))).then_some(())
        });
    };
    settle("ready", "running");
    let links = cluster.json(&["node", "inspect", "n2", "-o", "json"])["links"].clone();
    assert_eq!((links[0]["peer"].as_str(), links[0]["state"].as_str()), (Some("n1"), Some("up")), "{links}");
    cluster.ok(&["dev", "wire", "n2", "down"]);
    settle("unreachable", "degraded");
    let inspected = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let problem = inspected["shares"][1]["problems"][0].as_str().unwrap_or_default().to_owned();
    assert!(problem.contains("no link"), "{inspected}");
    assert!(cluster.json(&["node", "inspect", "n2", "-o", "json"]).get("links").is_none());
    let listed = cluster.output(&["ps", "shop"]);
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(listed.status.success() && said.contains("missing from node n2"), "{listed:?}");

    let note = "the tree of 'shop' waits for n2: there is no link between n1 and n2";
    assert!(said.contains(note), "{listed:?}");
    assert!(inspected["shares"][0]["problems"][0].as_str().unwrap_or_default().starts_with(note), "{inspected}");
    // Begun outside the tree, of which it needs nothing before its first line runs.
    let words = ["run", "-d", "shop", "--node", "n1", "--workdir", "/", "--", "cat", "/dc/never-read-before"];
    let pid: u64 = cluster.ok(&words).trim().parse().expect("a PID");
    let waits = || {
        let processes = cluster.json(&["ps", "shop", "-o", "json"]);
        let process = processes.as_array()?.iter().find(|one| one["pid"] == pid)?.clone();
        Some(process["waits_for_tree"] == true)
    };
    eventually("the program is shown to wait", Duration::from_secs(20), || waits().filter(|waits| *waits));

    cluster.ok(&["dev", "wire", "n2", "up"]);
    settle("ready", "running");
    eventually("nothing waits", Duration::from_secs(20), || waits().is_none_or(|waits| !waits).then_some(()));
    // What other nodes report of the tree is some seconds old.
    eventually("nobody says that something waits", Duration::from_secs(20), || {
        cluster.output(&["ps", "shop"]).stderr.is_empty().then_some(())
    });
}

/// A small system of one program, for `--root`.
fn busybox_system() -> tempfile::TempDir {
    let system = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(system.path().join("bin")).expect("bin");
    std::fs::copy("/bin/busybox", system.path().join("bin/busybox")).expect("busybox-static is installed");
    for name in ["sh", "cat", "ls", "sleep", "grep"] {
        std::os::unix::fs::symlink("busybox", system.path().join("bin").join(name)).expect("a link");
    }
    system
}

#[test]
fn program_with_a_root_of_its_own_keeps_its_mounts_when_gate_and_file_server_are_killed() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    let system = busybox_system();
    cluster.ok(&["import", "shop", system.path().to_str().expect("UTF-8"), "/system"]);
    // A service sees it, too, and its health command.
    let look = "grep -qs ^busy /etc/passwd && exit 9; ls /system && exit 8; ls bin; while :; do sleep 1; done";
    let well = ["--health-command", "test -e /bin/busybox && ! test -e /usr/bin/env"];
    let add = ["service", "add", "shop", "inside", "--node", "n1", "--root", "/system"];
    cluster.ok(&[&add[..], &well, &["--", "sh", "-c", look]].concat());
    eventually("the service is well in its root", Duration::from_secs(30), || {
        cluster.ok(&["service", "ls", "shop"]).contains("healthy").then_some(())
    });
    assert!(cluster.ok(&["service", "logs", "shop", "inside"]).contains("busybox\n"));
    cluster.ok(&["service", "rm", "shop", "inside"]);
    let (status, said) = cluster.fails(&["run", "shop", "--root", "/system", "-u", "daemon", "--", "sh", "-c", ":"]);
    assert!(status == 125 && said.contains("no user 'daemon'") && said.contains("/dc/system/etc/passwd"), "{said}");
    let shell = ["run", "-d", "shop", "--node", "n2", "--root", "/system", "--", "sh", "-c", "sleep 1000"];
    let pid = cluster.ok(&shell);
    let look = "grep -c ^ /proc/mounts; ls /dev/null /proc/self/stat /sys/kernel > /dev/null && echo there";
    let inside = || cluster.ok(&["exec", "shop", "--beside", pid.trim(), "--", "sh", "-c", look]);
    let before = inside();
    assert!(before.ends_with("there\n"), "{before}");
    for (node, server) in [("n2", "gate"), ("n1", "fs"), ("n2", "gate")] {
        let old = cluster.server_pid("shop", node, server).expect("it runs");
        cluster.kill(node, old);
        eventually("another one serves", Duration::from_secs(30), || {
            cluster.server_pid("shop", node, server).filter(|new| *new != old)
        });
        // Changes in the same directory by the other node take the names there away from the gate.
        cluster.sh("shop", "n1", "echo x > /dc/system/new; rm /dc/system/new");
        assert_eq!(inside(), before, "after {server} on {node} was killed");
    }
}

#[test]
fn last_of_a_nodes_memory_goes_to_one_of_two_who_ask_two_daemons_for_it_at_the_same_time() {
    let cluster = Cluster::up(2);
    let node = || cluster.json(&["node", "inspect", "n1", "-o", "json"]);
    let whole = node()["capacity"]["memory_bytes"].as_u64().expect("what it has");
    // More than half: there is enough for one.
    let wanted_mib = (whole >> 21) + 1;
    let memory = format!("{wanted_mib}M");
    for round in 0..4 {
        let ask = |(at, dc): (&str, &str)| {
            let mut command =
                cluster.command(&["--at", at, "dc", "create", dc, "--nodes", "n1,n2", "--memory", &memory]);
            (dc.to_owned(), command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("dvs starts"))
        };
        let asked = [("n1", "one"), ("n2", "two")].map(ask);
        let answers = asked.map(|(dc, child)| (dc, child.wait_with_output().expect("it ends")));
        let (made, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|(_, done)| done.status.success());
        assert_eq!((made.len(), refused.len()), (1, 1), "round {round}: {answers:?}");
        let said = String::from_utf8_lossy(&refused[0].1.stderr);
        assert!(said.contains("cannot promise the memory") && said.contains("not promised yet"), "{said}");
        assert!(said.contains("try: a smaller --memory"), "{said}");
        for name in ["n1", "n2"] {
            let promised = cluster.json(&["node", "inspect", name, "-o", "json"])["promised"].clone();
            assert_eq!((&promised["memory_bytes"], &promised["containers"]), (&(wanted_mib << 20).into(), &1.into()));
        }
        assert!(cluster.ok(&["node", "ls"]).contains("PROMISED"));
        let (winner, _) = made[0];
        let inspected = cluster.json(&["dc", "inspect", winner, "-o", "json"]);
        let described = &inspected["spec"]["disks"][0];
        let usual = (&described["node"], &described["replicas"]);
        assert_eq!(usual, (&serde_json::Value::Null, &2.into()), "nobody asked for a certain disk");
        let placed = inspected["placement"]["instances"].as_array().expect("a list");
        let disk = placed.iter().find(|one| one["name"] == "disk-root").expect("a disk");
        assert_eq!((&disk["node"], &disk["why"]["kind"]), (&"n1".into(), &"fewest-servers".into()));
        cluster.ok(&["dc", "delete", winner]);
        assert_eq!(node()["promised"]["memory_bytes"], 0);
    }
}
