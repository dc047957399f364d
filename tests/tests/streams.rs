//! The streams of programs on other nodes: what a program wrote, and how it ended, reaches its client, whatever happens to its input.

use std::io::Write;
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

    // The daemon beside the program, and the one beside the client.
    for node in ["n2", "n1"] {
        let (waiting, pid) = started("n2");
        let pids = cluster.ok(&["dev", "exec", node, "--", "pgrep", "-f", "daemon --config"]);
        for daemon in pids.split_whitespace() {
            cluster.kill(node, daemon.parse().expect("a number"));
        }
        told(waiting, pid);
        cluster.ok(&["dev", "restart", node]);
        eventually("the daemon is back", Duration::from_secs(30), || {
            cluster.output(&["kill", "-s", "KILL", "shop", &pid.to_string()]).status.success().then_some(())
        });
        eventually("the program has ended", Duration::from_secs(20), || {
            let listed = cluster.output(&["ps", "shop", "-o", "json"]);
            (listed.status.success() && !String::from_utf8_lossy(&listed.stdout).contains("1000")).then_some(())
        });
    }

    // No power: nothing comes from the node, not even that its connections have ended.
    let (waiting, pid) = started("n2");
    let begun = Instant::now();
    cluster.ok(&["dev", "kill", "n2"]);
    told(waiting, pid);
    // Nine seconds, and what a busy machine takes.
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
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
