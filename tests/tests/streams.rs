//! The streams of programs on other nodes: what a program wrote, and how it ended, reaches its client, whatever happens
//! to its input.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually};

/// So many times in a row: these were races.
const ROUNDS: usize = 100;

#[test]
fn output_and_status_arrive_when_input_is_left_unread() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    for round in 0..ROUNDS {
        let done = fed(&cluster, &["run", "-i", "shop", "-n", "n3", "--", "head", "-1"], numbers.as_bytes());
        assert_eq!((done.status.code(), done.stdout.as_slice()), (Some(0), &b"1\n"[..]), "round {round}: {done:?}");
    }
    for round in 0..ROUNDS / 10 {
        let suicide = ["run", "-i", "shop", "-n", "n3", "--", "sh", "-c", "kill -9 $$"];
        let done = fed(&cluster, &suicide, numbers.as_bytes());
        assert_eq!(done.status.code(), Some(137), "round {round}: {done:?}");
    }
    // tar ends at the archive's end, and leaves what it is padded with.
    let mut archive = tar_of_one_file();
    archive.resize(archive.len() + 3_000_000, 0);
    for round in 0..ROUNDS / 5 {
        let done = fed(&cluster, &["import", "-n", "n3", "shop", "-", &format!("/round{round}")], &archive);
        assert!(done.status.success(), "round {round}: {done:?}");
    }
}

#[test]
fn client_of_a_node_that_falls_silent_or_whose_daemon_dies_hears_it_and_where_to_go_on() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    let started = |node: &str| {
        let waiting = cluster.spawn(&["run", "-i", "shop", "-n", node, "-w", "/", "--", "sleep", "1000"]);
        let pid = eventually("the program runs", Duration::from_secs(20), || {
            let listed = cluster.json(&["ps", "shop", "-o", "json"]);
            let listed = listed.as_array()?.iter().find(|process| process["command"][0] == "sleep")?.clone();
            listed["pid"].as_u64()
        });
        (waiting, pid)
    };
    let told = |waiting: Child, pid: u64| {
        let done = waiting.wait_with_output().expect("dvs ends");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(125), "{said}");
        assert!(said.contains(&format!("program {pid}")), "{said}");
        assert!(said.contains(&format!("dvs attach shop {pid}")), "{said}");
    };

    // A daemon that does not come back.
    let (waiting, pid) = started("n2");
    kill_daemon(&cluster, "n2");
    told(waiting, pid);
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("the daemon is back", Duration::from_secs(30), || {
        cluster.output(&["kill", "-s", "KILL", "shop", &pid.to_string()]).status.success().then_some(())
    });
    eventually("the program has ended", Duration::from_secs(20), || {
        let listed = cluster.output(&["ps", "shop", "-o", "json"]);
        (listed.status.success() && !String::from_utf8_lossy(&listed.stdout).contains("1000")).then_some(())
    });

    // No power: nothing comes from the node, not even that its connections have ended.
    let (waiting, pid) = started("n2");
    let begun = Instant::now();
    cluster.ok(&["dev", "kill", "n2"]);
    told(waiting, pid);
    // Nine seconds, the thirty for which it tries again, and what a busy machine takes.
    assert!(begun.elapsed() < Duration::from_secs(70), "{:?}", begun.elapsed());
    // The program went with its node, which says so when it is back.
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("the program is listed as lost", Duration::from_secs(30), || {
        let listed = cluster.output(&["ps", "-a", "shop", "-o", "json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).ok()?;
        let process = listed.as_array()?.iter().find(|process| process["pid"] == pid)?;
        (process["cause"] == "lost with its keeper").then_some(())
    });
}

#[test]
fn stream_goes_on_where_it_was_when_the_daemons_it_passes_are_killed() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    let numbers: String = (1..=300_000).map(|number| format!("{number}\n")).collect();
    let script = "seq 1 300000; cat; echo end >&2; exit 7";
    let mut command = cluster.command(&["run", "-i", "shop", "-n", "n2", "-w", "/", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("dvs starts");
    let (mut stdin, mut stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let input = numbers.clone();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).expect("all input is taken"));

    let mut heard = vec![0; 2 * numbers.len()];
    let part = heard.len() / 7;
    for (round, node) in ["n2", "n1", "n2", "n1", "n2", "n1"].iter().enumerate() {
        stdout.read_exact(&mut heard[round * part..][..part]).expect("output");
        // It waits for a reader, so it is in the midst of its output, or of its input.
        kill_daemon(&cluster, node);
        cluster.ok(&["dev", "restart", node]);
    }
    stdout.read_exact(&mut heard[6 * part..]).expect("output");
    assert!(heard == [numbers.as_bytes(), numbers.as_bytes()].concat(), "other bytes came than were written");
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("the end");
    let done = child.wait_with_output().expect("dvs ends");
    assert_eq!((rest.len(), done.status.code()), (0, Some(7)), "{done:?}");
    assert!(String::from_utf8_lossy(&done.stderr).ends_with("end\n"), "{done:?}");
    writer.join().expect("the writer is done");
}

#[test]
fn end_of_a_program_is_told_to_a_client_that_was_away() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    for node in ["n1", "n2"] {
        let script = "echo begun; sleep 4; echo ended; exit 9";
        let mut waiting = cluster.spawn(&["run", "shop", "-n", "n2", "-w", "/", "--", "sh", "-c", script]);
        let mut stdout = BufReader::new(waiting.stdout.take().expect("a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("output");
        kill_daemon(&cluster, node);
        // Longer than the program goes on; people read meanwhile for what they wait.
        std::thread::sleep(Duration::from_secs(6));
        cluster.ok(&["dev", "restart", node]);
        stdout.read_to_string(&mut line).expect("output");
        let done = waiting.wait_with_output().expect("dvs ends");
        assert_eq!((done.status.code(), line.as_str()), (Some(9), "begun\nended\n"), "{node}: {done:?}");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let away = if node == "n1" { "the daemon of this node is away" } else { "node n2 cannot be reached" };
        assert!(said.contains(away) && said.contains("waiting up to 30 s"), "{node}: {said}");
    }
}

#[test]
fn client_that_is_killed_is_not_waited_for() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    let script = "echo begun; cat; echo over > /dc/over";
    let mut command =
        cluster.command_without_limit(&["run", "-i", "shop", "-n", "n2", "-w", "/", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("output");
    child.kill().expect("it is ours");
    let begun = Instant::now();
    eventually("the program's input has ended", Duration::from_secs(20), || {
        cluster.output(&["run", "shop", "-n", "n1", "--", "test", "-e", "/dc/over"]).status.success().then_some(())
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    child.wait().expect("it was killed");
}

/// SIGKILL to the daemon of a node.
fn kill_daemon(cluster: &Cluster, node: &str) {
    let pids = cluster.ok(&["dev", "exec", node, "--", "pgrep", "-f", "daemon --config"]);
    for daemon in pids.split_whitespace() {
        cluster.kill(node, daemon.parse().expect("a number"));
    }
}

/// Runs the command with this on its standard input.
fn fed(cluster: &Cluster, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = cluster.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("dvs starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    std::thread::scope(|scope| {
        // A program that does not read its input closes the pipe: that is its right.
        scope.spawn(move || stdin.write_all(input).is_ok());
        child.wait_with_output().expect("dvs ends")
    })
}

fn tar_of_one_file() -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("file"), vec![b'x'; 300_000]).expect("a file");
    let done = std::process::Command::new("tar").args(["-c", "-C"]).arg(directory.path()).arg("file").output();
    done.expect("tar starts").stdout
}
