//! `/proc` over all nodes of a container, before programs that know nothing of nodes.

use std::process::Stdio;
use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually};

fn shop(more: &[&str]) -> Cluster {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, more);
    cluster
}

fn said(cluster: &Cluster, node: &str, script: &str) -> String {
    cluster.ok(&["run", "shop", "--node", node, "--", "bash", "-c", &format!("{script}\nexit 0")]).trim().to_owned()
}

fn start(cluster: &Cluster, node: &str, more: &[&str], program: &[&str]) -> String {
    let all = [&["run", "-d"], more, &["shop", "--node", node, "--"], program].concat();
    cluster.ok(&all).trim().to_owned()
}

/// Whether the program is there: not every machine has all.
fn has(program: &str) -> bool {
    ["/usr/bin", "/bin", "/usr/sbin"].iter().any(|dir| std::path::Path::new(dir).join(program).exists())
}

#[test]
fn programs_see_the_processes_of_all_nodes() {
    let cluster = shop(&[]);
    let pids = ["n1", "n2", "n3"].map(|node| start(&cluster, node, &["--user", "33:44"], &["sleep", "1234"]));
    let everywhere = pids.join("\n");
    for node in ["n1", "n2", "n3"] {
        assert_eq!(said(&cluster, node, "pgrep -x sleep | sort -n"), everywhere, "{node}");
        assert_eq!(said(&cluster, node, "ps -eo pid=,args= | grep 'sleep 123[4]' | wc -l"), "3", "{node}");
        assert_eq!(said(&cluster, node, "ps -u 33 -o pid= | tr -d ' ' | sort -n"), everywhere, "{node}");
        assert_eq!(said(&cluster, node, "top -b -n 1 | grep -c 'sleep$'"), "3", "{node}");
        assert_eq!(said(&cluster, node, "cat /proc/[0-9]*/comm | grep -c '^sleep$'"), "3", "{node}");
    }
    let far = &pids[2];
    let of_far = |what: &str| said(&cluster, "n1", &format!("{what} /proc/{far}"));
    assert_eq!(of_far("stat -c %u:%g"), "33:44");
    assert!(of_far("ls").contains("status") && of_far("ls").contains("cmdline"));
    let line =
        |file: &str, name: &str| said(&cluster, "n1", &format!("grep '^{name}:' /proc/{far}/{file} | tr '\\t' ' '"));
    assert_eq!(line("status", "Uid"), "Uid: 33 33 33 33");
    assert_eq!(line("status", "Pid"), format!("Pid: {far}"));
    assert_eq!(said(&cluster, "n1", &format!("tr '\\0' ' ' < /proc/{far}/cmdline")), "sleep 1234");
    assert!(said(&cluster, "n1", &format!("cat /proc/{far}/limits")).contains("Max open files"));
    assert!(said(&cluster, "n1", &format!("ps -o etimes= -p {far}")).trim().parse::<u64>().expect("seconds") < 600);
    // Numbers that nobody has, and nonsense.
    for none in ["131071", "196607", "262143", "999999", "4294967297", "-1", "0131073", "x"] {
        assert_eq!(said(&cluster, "n1", &format!("cat /proc/{none}/stat >/dev/null 2>&1; echo $?")), "1", "{none}");
    }
    assert_eq!(
        said(
            &cluster,
            "n1",
            "touch /proc/x 2>/dev/null; mkdir /proc/y 2>/dev/null; ls -d /proc/x /proc/y 2>/dev/null; echo end"
        ),
        "end"
    );
    // Nobody of another container.
    cluster.container("other", 3, &[]);
    let others = cluster.ok(&["run", "other", "--node", "n1", "--", "bash", "-c", "pgrep -x sleep; echo none"]);
    assert_eq!(others.trim(), "none");
    // And they are killed by name.
    if has("pstree") {
        assert!(said(&cluster, "n1", &format!("pstree -p {far}")).contains("sleep"));
    }
    if has("lsof") {
        assert!(said(&cluster, "n1", &format!("lsof -p {far} 2>/dev/null")).contains("sleep"));
    }
    assert_eq!(said(&cluster, "n1", "pkill -x sleep; echo $?"), "0");
    eventually("all are gone", Duration::from_secs(10), || {
        (!cluster.ok(&["ps", "shop"]).contains("sleep 1234")).then_some(())
    });
    eventually("from the table, too", Duration::from_secs(10), || {
        said(&cluster, "n2", "pgrep -x sleep").is_empty().then_some(())
    });
}

/// `environ`, `io` and `fd` are for who may trace the process: its user, and root with the capability.
#[test]
fn processes_of_other_nodes_are_looked_into_by_whom_the_kernel_would_let() {
    let cluster = shop(&[]);
    let script = "cd /dc; exec 5</etc/hostname; exec sleep 1236";
    let environ = ["--user", "33:44", "--env", "SECRET=of-the-other"];
    let far = start(&cluster, "n3", &environ, &["sh", "-c", script]);
    let of_root = start(&cluster, "n3", &["--env", "SECRET=of-root"], &["sh", "-c", script]);
    let as_user = |node: &str, user: &str, script: &str| {
        let seen = ["run", "--user", user, "shop", "--node", node, "--", "sh", "-c", &format!("{script}; exit 0")];
        cluster.ok(&seen).trim().to_owned()
    };
    let look = |pid: &str| {
        format!(
            "tr '\\0' '\\n' < /proc/{pid}/environ 2>&1 | grep SECRET; ls /proc/{pid}/fd 2>&1 | sort -n | tr '\\n' ' ';
             readlink /proc/{pid}/fd/5 /proc/{pid}/exe /proc/{pid}/cwd /proc/{pid}/root 2>&1; grep -c rchar: /proc/{pid}/io 2>&1; cat /proc/{pid}/environ >/dev/null 2>&1; echo $?"
        )
    };
    // The other node's own view is the measure: of each asker, for a process of a user and one of root.
    for user in ["0:0", "33:44", "34:44"] {
        for pid in [&far, &of_root] {
            let (here, there) = (as_user("n1", user, &look(pid)), as_user("n3", user, &look(pid)));
            let message = |text: &str| text.replace("Permission denied", "").lines().count();
            assert_eq!(message(&here), message(&there), "{user} of {pid}: {here}\nthere: {there}");
            if there.ends_with('0') {
                assert_eq!(here, there, "{user} of {pid}");
            }
        }
    }
    let seen = as_user("n1", "33:44", &look(&far));
    assert!(seen.starts_with("SECRET=of-the-other\n0 1 2 5 /etc/hostname\n/usr/bin/sleep\n/dc\n/\n1\n"), "{seen}");
    let seen = as_user("n1", "34:44", &look(&far));
    assert!(!seen.contains("SECRET") && seen.ends_with('1'), "{seen}");
    // What leads elsewhere is seen to.
    let wandering = "cd /; exec 5</etc/hostname; read go; cd /dc; exec 5</etc/passwd; read go";
    let go = "mkfifo /dc/go; exec 9<>/dc/go";
    said(&cluster, "n3", go);
    let wanders = start(&cluster, "n3", &[], &["sh", "-c", &format!("exec 0<>/dc/go; {wandering}")]);
    let leads = || said(&cluster, "n1", &format!("readlink /proc/{wanders}/fd/5 /proc/{wanders}/cwd"));
    eventually("it has begun", Duration::from_secs(10), || (leads() == "/etc/hostname\n/").then_some(()));
    said(&cluster, "n3", "echo > /dc/go");
    eventually("it leads elsewhere", Duration::from_secs(10), || (leads() == "/etc/passwd\n/dc").then_some(()));
    // Whoever goes over all is read ahead for, and nobody else sees what was read.
    let all = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c SECRET=of";
    for _ in 0..2 {
        assert_eq!((as_user("n1", "0:0", all), as_user("n1", "34:44", all)), ("2".to_owned(), "0".to_owned()));
        assert_eq!(as_user("n1", "33:44", all), "1");
    }
    assert_eq!(
        as_user(
            "n1",
            "33:44",
            &format!("cat /proc/{far}/fd/99 2>/dev/null; ls /proc/{far}/fd/5x 2>/dev/null; echo $?")
        ),
        "2"
    );
    if has("lsof") {
        assert!(as_user("n1", "0:0", &format!("lsof -p {far} 2>/dev/null")).contains("sleep"));
    }
}

/// What is of the own node is what it is without a gate.
#[test]
fn own_processes_are_the_kernels() {
    let cluster = shop(&[]);
    cluster.ok(&["dc", "create", "plain", "--nodes", "n1,n2,n3", "--proc", "node", "--start"]);
    let both = |script: &str| {
        ["shop", "plain"]
            .map(|dc| cluster.ok(&["run", dc, "--node", "n1", "--", "bash", "-c", script]).trim().to_owned())
    };
    let scripts = [
        "readlink /proc/self/exe; readlink /proc/$$/exe; readlink /proc/thread-self/exe",
        "cat /proc/self/comm; head -c 9 /proc/self/cmdline; grep -c bash /proc/$$/maps; ls /proc/self/task | wc -l",
        "echo text | cat /proc/self/fd/0; echo more | cat /dev/stdin; cat <(echo third)",
        "exec 5</etc/hostname; cat /proc/$$/fd/5; cat /proc/self/fdinfo/5 | head -1",
        "ls /proc/$$ | md5sum; ls /proc/self/ns | md5sum; ls -l /proc/$$/cwd | grep -c ' /dc$'",
        "cat /proc/sys/kernel/ostype /proc/filesystems | md5sum; cat /proc/net/dev | wc -l; head -1 /proc/net/tcp",
        "cat /proc/mounts | grep -c ' /dc '; cat /proc/self/mountinfo | grep -c ' /dev/pts '; cat /proc/1/comm",
        "echo 10 > /proc/self/oom_score_adj 2>&1; cat /proc/self/oom_score_adj; echo x > /proc/version 2>/dev/null; echo $?",
        "python3 -c 'import os; print(os.getpid() == int(os.readlink(\"/proc/self\")), len(os.listdir(\"/proc/self/fd\")))'",
        "python3 -c 'import os, threading; r = []; t = threading.Thread(target=lambda: r.append(os.readlink(\"/proc/thread-self\") == f\"{os.getpid()}/task/{threading.get_native_id()}\")); t.start(); t.join(); print(r)'",
        "sleep 100 & grep -c . /proc/$!/status; kill $!; wait $! 2>/dev/null; test -e /proc/$!; echo $?; ls /proc | grep -vE '^[0-9]+$|^dvs$' | md5sum",
        "stat -L -c '%F %a' /proc/self /proc/version; test -d /proc/$$ && test -e /proc/meminfo; echo $?",
    ];
    for script in scripts {
        let [shown, plain] = both(script);
        assert_eq!(shown, plain, "{script}");
        assert!(!plain.is_empty(), "{script}");
    }
    let [shown, plain] = both("ls -d /proc/dvs 2>/dev/null; stat -f -c %T /proc");
    assert_eq!((shown.as_str(), plain.as_str()), ("/proc/dvs\nfuseblk", "proc"));
    let inspected = cluster.ok(&["dc", "inspect", "plain"]);
    assert!(inspected.contains("of each node"), "{inspected}");
    // In an image /proc is its node's.
    let image =
        "mkdir -p /dc/image/bin /dc/image/lib64 /dc/image/lib; cp /bin/busybox /dc/image/bin/ 2>/dev/null; echo made";
    said(&cluster, "n1", image);
    if said(&cluster, "n1", "ls /dc/image/bin").contains("busybox") {
        let inside = [
            "run",
            "--root",
            "/image",
            "shop",
            "--node",
            "n1",
            "--",
            "/bin/busybox",
            "sh",
            "-c",
            "cat /proc/self/comm",
        ];
        assert_eq!(cluster.ok(&inside).trim(), "cat");
    }
}

#[test]
fn nodes_that_do_not_answer_are_left_out_until_they_are_back() {
    let cluster = shop(&[]);
    let far = start(&cluster, "n3", &[], &["sleep", "1235"]);
    let states = || said(&cluster, "n1", "cat /proc/dvs/nodes");
    assert_eq!(said(&cluster, "n1", "pgrep -x sleep"), far);
    assert_eq!(states(), "0 65536 own\n1 131072 answers\n2 196608 answers");
    cluster.ok(&["dev", "wire", "n3", "down"]);
    let script = "for i in 1 2 3 4 5 6 7 8; do s=$(date +%s%N); ps -e >/dev/null; echo $(( ($(date +%s%N) - s) / 1000000 )); done";
    let took: Vec<u64> = said(&cluster, "n1", script).lines().map(|ms| ms.parse().expect("a number")).collect();
    assert!(took.iter().sum::<u64>() < 4000, "one second, once: {took:?}");
    assert!(states().contains("196608 silent"), "{}", states());
    assert_eq!(said(&cluster, "n1", "pgrep -x sleep"), "");
    cluster.ok(&["dev", "wire", "n3", "up"]);
    eventually("it answers again", Duration::from_secs(30), || {
        (said(&cluster, "n1", "pgrep -x sleep") == far).then_some(())
    });
    assert!(states().contains("196608 answers"), "{}", states());
}

#[test]
fn programs_do_not_notice_that_call_gates_are_killed() {
    let cluster = shop(&[]);
    let far = start(&cluster, "n2", &[], &["sleep", "1236"]);
    let reads = format!(
        "import os\nfor count in range(4000):\n    assert open('/proc/self/stat').read().startswith(str(os.getpid()))\n    \
         assert open('/proc/version').read().startswith('Linux')\n    names = os.listdir('/proc')\n    \
         assert str(os.getpid()) in names and 'meminfo' in names\n    \
         assert count % 10 or '{far}' not in names or open('/proc/{far}/comm').read() == 'sleep\\n'\nprint('read')"
    );
    let mut run = cluster.command(&["run", "shop", "--node", "n1", "--", "/usr/bin/python3", "-c", &reads]);
    let mut run = run.stdout(Stdio::piped()).spawn().expect("a program");
    let (mut kills, begun) = (0, Instant::now());
    while run.try_wait().expect("a child").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(90), "{kills} kills");
        if let Some(pid) = cluster.server_pid("shop", "n1", "calls") {
            cluster.kill("n1", pid);
            kills += 1;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    let output = run.wait_with_output().expect("its end");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "read", "{kills} kills");
    assert!(kills > 2, "{kills}");
    eventually("the other node is seen", Duration::from_secs(10), || {
        (said(&cluster, "n1", "pgrep -x sleep") == far).then_some(())
    });
    // A container whose call gates are dead stops all the same.
    for node in ["n1", "n2", "n3"] {
        if let Some(pid) = cluster.server_pid("shop", node, "calls") {
            cluster.kill(node, pid);
        }
    }
    let stopping = Instant::now();
    cluster.ok(&["dc", "stop", "shop"]);
    assert!(stopping.elapsed() < Duration::from_secs(30), "{:?}", stopping.elapsed());
}

/// What a killed gate had read would be waited for, for ever.
#[test]
fn older_kernels_show_their_nodes_processes() {
    let cluster = Cluster::up_without(2, "resend");
    cluster.container("shop", 2, &[]);
    start(&cluster, "n2", &[], &["sleep", "1237"]);
    assert_eq!(said(&cluster, "n1", "stat -f -c %T /proc; pgrep -x sleep; on n2 -- pgrep -x sleep | wc -l"), "proc\n1");
}

/// Forks until the numbers have come round so often.
const STORM: &str = "prev=0; wraps=0; while [ $wraps -lt 5 ]; do : & p=$!; wait $p; [ $p -lt $prev ] && wraps=$((wraps + 1)); prev=$p; done; echo $wraps";

/// Numbers come round on every node, and none is ever that of two processes, of another node, or of one that lives.
#[test]
#[ignore = "takes its time: run by `make test-long`"]
fn numbers_that_come_round_are_nobody_elses() {
    let cluster = shop(&[]);
    let nodes = ["n1", "n2", "n3"];
    let pids = nodes.map(|node| start(&cluster, node, &[], &["sleep", "12345"]));
    std::thread::scope(|scope| {
        let storms = nodes.map(|node| {
            let cluster = &cluster;
            scope.spawn(move || {
                cluster.command_without_limit(&["run", "shop", "--node", node, "--", "dash", "-c", STORM]).output()
            })
        });
        let look = "ls /proc | grep -E '^[0-9]+$' | sort -n | uniq -d; ls /proc | awk '/^[0-9]+$/ && $1 != 1 && ($1 < 65536 || $1 >= 262144)'; pgrep -f '^sleep 12345$' | sort -n";
        let mut looks = 0;
        while !storms.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            for node in nodes {
                assert_eq!(said(&cluster, node, look), pids.join("\n"), "on {node}");
                looks += 1;
            }
        }
        for storm in storms {
            let done = storm.join().expect("no panic").expect("it runs");
            assert_eq!(String::from_utf8_lossy(&done.stdout), "5\n", "{done:?}");
        }
        println!("{looks} looks while numbers came round 15 times");
    });
}
