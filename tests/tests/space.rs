//! What a full disk of a node does, and to whom.

use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually, fill};

const SOON: Duration = Duration::from_secs(60);
/// A server comes back within a second or two; a machine with all CPUs busy needs more.
const QUICKLY: Duration = Duration::from_secs(20);
const DISK_BYTES: u64 = 512 << 20;

#[test]
fn full_disk_is_enospc_to_who_wants_more_ends_nothing_is_shown_and_heals_by_itself() {
    let Some(cluster) = Cluster::up_on_disk(1, DISK_BYTES) else {
        eprintln!("SKIPPED: this machine mounts no loop device");
        return;
    };
    // More than there is, is refused before anything is made, unless it is asked for in so many words.
    let (status, said) = cluster.fails(&["dc", "create", "large", "--nodes", "n1", "--disk", "1G", "--start"]);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("do not fit on node n1") && said.contains("--sparse"), "{said}");
    cluster.container("greedy", 1, &["--disk", "2G", "--sparse"]);
    cluster.container("other", 1, &["--disk", "64M"]);
    let pid = cluster.ok(&["run", "-d", "other", "--", "sh", "-c", "echo began; exec sleep 1000"]);
    let pid = pid.trim();
    let is_running = || {
        let processes = cluster.json(&["ps", "other", "-o", "json"]);
        let all = processes.as_array().expect("a list");
        all.iter().any(|process| process["pid"].as_u64() == pid.parse().ok())
    };
    cluster.sh("other", "n1", "echo kept > /dc/kept; sync /dc/kept");

    // A tenant writes what the node's disk does not have: it hears so, nobody else notices.
    let filling = ["run", "greedy", "--", "dd", "if=/dev/zero", "of=/dc/big", "bs=1M", "conv=fsync"];
    let (_, said) = cluster.fails(&filling);
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(
        cluster.sh("other", "n1", "dd if=/dev/zero of=/dc/own bs=1M count=16 conv=fsync 2>/dev/null; cat /dc/kept"),
        "kept\n"
    );
    let problems = |of: &serde_json::Value| of["problems"].to_string();
    eventually("the node says that its disk is full", SOON, || {
        let node = cluster.json(&["node", "inspect", "n1", "-o", "json"]);
        (node["state"] == "degraded" && problems(&node).contains("disk full")).then_some(())
    });
    assert!(cluster.ok(&["node", "ls"]).contains("disk full"));
    let inspected = cluster.json(&["dc", "inspect", "other", "-o", "json"]);
    assert!(problems(&inspected["shares"][0]).contains("disk full"), "{inspected}");
    assert_eq!(inspected["phase"], "degraded");

    // Somebody else takes what was kept back, too.
    let filler = cluster.state_dir().join("filler");
    fill(&filler);
    let used = cluster.sh("other", "n1", "echo more >> /dc/kept; sync /dc/kept; cat /dc/kept");
    assert_eq!(used, "kept\nmore\n");
    let (_, said) = cluster.fails(&["run", "greedy", "--", "dd", "if=/dev/zero", "of=/dc/more", "bs=1M", "conv=fsync"]);
    assert!(said.contains("No space left on device"), "{said}");
    assert!(is_running());
    // A server that dies now cannot be started, perhaps, but will be.
    let server = cluster.server_pid("other", "n1", "fs").expect("a server");
    cluster.kill("n1", server);

    std::fs::remove_file(&filler).expect("room");
    assert_eq!(cluster.sh("other", "n1", "cat /dc/kept"), "kept\nmore\n");
    assert_eq!(cluster.sh("greedy", "n1", "rm /dc/big; test ! -e /dc/big"), "");
    assert!(is_running());
    assert_eq!(cluster.ok(&["logs", "other", pid]), "began\n");
    cluster.ok(&["dc", "stop", "other"]);
    cluster.ok(&["dc", "start", "other"]);
    assert_eq!(cluster.sh("other", "n1", "cat /dc/kept"), "kept\nmore\n");
    cluster.ok(&["dc", "delete", "--force", "greedy"]);
    await_well(&cluster);
    assert_eq!(cluster.json(&["dc", "inspect", "other", "-o", "json"])["phase"], "running");
}

fn await_well(cluster: &Cluster) {
    let begin = Instant::now();
    eventually("the node is well again", SOON, || {
        let node = cluster.json(&["node", "inspect", "n1", "-o", "json"]);
        assert!(begin.elapsed() < SOON / 2, "{node}{}", cluster.logs());
        (node["state"] == "ready").then_some(())
    });
}

/// Small changes, each told with its errno and its seconds.
const SMALL_CHANGES: &str = r#"
import os, sys, time
def append(data):
    file = os.open("/dc/small", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, data)
        os.fsync(file)
    finally:
        os.close(file)
def rewrite():
    file = os.open("/dc/small", os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(file, b"hello\n", 0)
        os.fsync(file)
    finally:
        os.close(file)
for step in range(int(sys.argv[1])):
    changes = [
        ("append", lambda: append(b"hello\n")),
        ("block", lambda: append(bytes(4096))),
        ("rewrite", rewrite),
        ("mkdir", lambda: os.mkdir(f"/dc/made-{time.monotonic_ns()}")),
    ]
    name, change = changes[step % len(changes)]
    begin, errno = time.monotonic(), 0
    try:
        change()
    except OSError as error:
        errno = error.errno
    print(name, errno, time.monotonic() - begin, flush=True)
"#;

/// What small changes in a container answered: what, errno, seconds.
fn small_changes(cluster: &Cluster, dc: &str, count: u32) -> Vec<(String, i32, f64)> {
    let said = cluster.ok(&["run", dc, "--", "python3", "-c", SMALL_CHANGES, &count.to_string()]);
    let parse = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    said.lines().map(|line| parse(line).expect("three words")).collect()
}

#[test]
fn server_that_dies_while_its_host_is_full_comes_back_and_nothing_hangs_or_says_eio() {
    const ENOSPC: i32 = 28;
    let Some(cluster) = Cluster::up_on_disk(1, DISK_BYTES) else {
        eprintln!("SKIPPED: this machine mounts no loop device");
        return;
    };
    cluster.container("greedy", 1, &["--disk", "2G", "--sparse"]);
    cluster.container("other", 1, &["--disk", "64M"]);
    // What files leave free stays the image's. So somebody else must give more back than the node keeps for itself.
    let spare = cluster.state_dir().join("spare");
    std::fs::write(&spare, vec![7; 16 << 20]).expect("a file");
    cluster.sh("greedy", "n1", "echo begin > /dc/small; sync /dc/small");
    let filling = ["run", "greedy", "--", "dd", "if=/dev/zero", "of=/dc/big", "bs=1M", "conv=fsync"];
    let (_, said) = cluster.fails(&filling);
    assert!(said.contains("No space left on device"), "{said}");
    // What the node keeps back goes, too.
    let filler = cluster.state_dir().join("filler");
    fill(&filler);

    let assert_well = |when: &str| {
        let answers = small_changes(&cluster, "greedy", 40);
        assert_eq!(answers.len(), 40);
        let wrong: Vec<_> = answers
            .iter()
            .filter(|(_, errno, seconds)| !(*errno == 0 || *errno == ENOSPC) || *seconds > QUICKLY.as_secs_f64())
            .collect();
        let slowest = answers.iter().map(|(.., seconds)| *seconds).fold(0.0, f64::max);
        let refused = answers.iter().filter(|(_, errno, _)| *errno == ENOSPC).count();
        println!("{when}: {refused} of 40 refused, the slowest {slowest:.2} s");
        assert!(wrong.is_empty(), "{when}: {wrong:?}{}", cluster.logs());
        cluster.sh("other", "n1", "echo on >> /dc/own; sync /dc/own; tail -1 /dc/own");
    };
    assert_well("full");
    for life in ["second", "third"] {
        let server = cluster.server_pid("greedy", "n1", "fs").expect("a server");
        cluster.kill("n1", server);
        assert_well(life);
    }
    let server = cluster.server_pid("greedy", "n1", "fs").expect("a server");
    cluster.kill("n1", server);
    let begin = Instant::now();
    assert_eq!(cluster.sh("greedy", "n1", "rm /dc/big; test ! -e /dc/big"), "");
    println!("rm: {:?}", begin.elapsed());
    assert!(begin.elapsed() < QUICKLY, "rm took {:?}{}", begin.elapsed(), cluster.logs());
    assert_well("emptied");

    for file in [&filler, &spare] {
        std::fs::remove_file(file).expect("room");
    }
    await_well(&cluster);
    let answers = small_changes(&cluster, "greedy", 20);
    assert!(answers.iter().all(|(_, errno, _)| *errno == 0), "{answers:?}{}", cluster.logs());
    cluster.sh("greedy", "n1", "dd if=/dev/zero of=/dc/big bs=1M count=64 conv=fsync 2>/dev/null");
    assert!(cluster.sh("greedy", "n1", "head -1 /dc/small").starts_with("hello"));
}

#[test]
fn stopped_container_still_has_the_logs_and_ends_of_its_programs() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let started = cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", "echo word; exit 7"]);
    let pid = started.trim();
    let record = || {
        let listed = cluster.json(&["ps", "-a", "shop", "-o", "json"]);
        listed
            .as_array()?
            .iter()
            .find(|process| process["pid"].as_u64() == pid.parse().ok() && process["exit"] == 7)
            .cloned()
    };
    eventually("the program has ended", SOON, record);
    cluster.ok(&["dc", "stop", "shop"]);
    assert!(record().is_some());
    assert_eq!(cluster.ok(&["logs", "shop", pid]), "word\n");
    cluster.ok(&["dc", "start", "shop"]);
    assert!(record().is_some());
    assert_eq!(cluster.ok(&["logs", "shop", pid]), "word\n");
}
