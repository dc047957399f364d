//! Whatever of ours is killed, applications do not notice, and nothing stays behind.

use std::process::Child;
use std::time::Duration;

use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Appends 300 numbered lines and says how many there are, and how many different ones.
const WRITER: &str = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i >> /dc/log || exit 9; sleep 0.005; done
    echo $(wc -l < /dc/log) $(sort -u /dc/log | wc -l)";

/// Processes of a node whose command line matches, as the node numbers them.
fn pids(cluster: &Cluster, node: &str, pattern: &str) -> Vec<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-f", pattern]);
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

fn kill(cluster: &Cluster, node: &str, pid: &str) {
    cluster.ok(&["dev", "exec", node, "--", "kill", "-9", pid]);
}

fn write_on(cluster: &Cluster, node: &str) -> Child {
    let writer = cluster.spawn(&["run", "shop", "--node", node, "--", "sh", "-c", WRITER]);
    eventually("the program writes", SOON, || {
        let seen = cluster.output(&["run", "shop", "--node", "n1", "--", "sh", "-c", "wc -l < /dc/log"]);
        String::from_utf8_lossy(&seen.stdout).trim().parse::<usize>().ok().filter(|lines| *lines > 5)
    });
    writer
}

fn assert_complete(cluster: &Cluster, writer: Child) {
    let output = writer.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim() == "300 300", "{output:?}{}", cluster.logs());
}

fn await_running(cluster: &Cluster) {
    eventually("the container runs whole again", SOON, || {
        (cluster.json(&["dc", "inspect", "shop", "-o", "json"])["phase"] == "running").then_some(())
    });
}

#[test]
fn program_does_not_notice_the_death_of_any_server_gate_or_proxy() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let writer = write_on(&cluster, "n2");
    for (node, pattern) in [
        ("n1", "^dvs server fs"),
        ("n1", "^dvs server disk"),
        ("n1", "^dvs proxy"),
        ("n2", "^dvs gate"),
        ("n2", "^dvs proxy"),
    ] {
        let found = pids(&cluster, node, pattern);
        assert_eq!(found.len(), 1, "{pattern} on {node}");
        kill(&cluster, node, &found[0]);
        eventually("it is started again", SOON, || {
            pids(&cluster, node, pattern).first().filter(|pid| **pid != found[0]).cloned()
        });
    }
    await_running(&cluster);
    assert_complete(&cluster, writer);
}

#[test]
fn program_and_its_client_go_on_without_the_daemon_which_then_adopts_them() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let writer = write_on(&cluster, "n1");
    let keepers = pids(&cluster, "n1", "^dvs keeper");
    let daemon = pids(&cluster, "n1", "daemon --config");
    assert_eq!(daemon.len(), 1, "{daemon:?}");
    kill(&cluster, "n1", &daemon[0]);
    cluster.ok(&["dev", "restart", "n1"]);
    await_running(&cluster);
    assert_complete(&cluster, writer);
    assert_eq!(pids(&cluster, "n1", "^dvs keeper"), keepers);
}

#[test]
fn node_that_returns_removes_what_was_deleted_while_it_was_away() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    kill(&cluster, "n2", &pids(&cluster, "n2", "daemon --config")[0]);
    // Its lease must end before the others stop waiting for it.
    eventually("n2 is down", SOON, || {
        let nodes = cluster.json(&["node", "ls", "-o", "json"]);
        nodes.as_array()?.iter().find(|node| node["name"] == "n2" && node["state"] == "down").cloned()
    });
    cluster.ok(&["dc", "delete", "--force", "shop"]);
    assert!(!pids(&cluster, "n2", "^dvs keeper").is_empty(), "nobody told it yet");
    cluster.ok(&["dev", "restart", "n2"]);
    eventually("n2 has cleaned up", SOON, || {
        let left: usize =
            ["^dvs gate", "^dvs keeper", "^dvs server"].iter().map(|role| pids(&cluster, "n2", role).len()).sum();
        (left == 0).then_some(())
    });
}
