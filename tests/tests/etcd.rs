//! A cluster whose engine is etcd, on three of its nodes: what dies of the engine, programs do not notice.

use std::time::{Duration, Instant};

use end_to_end::clock::{self, CLOCK, LONGEST_GAP};
use end_to_end::{Cluster, eventually, has_etcd};

const SOON: Duration = Duration::from_secs(30);

fn etcd_cluster() -> Option<Cluster> {
    has_etcd().then(|| Cluster::up_with(3, &["--engine", "etcd"]))
}

/// The member of etcd on a node, as the node numbers it.
fn member(cluster: &Cluster, node: &str) -> Option<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-x", "etcd"]);
    String::from_utf8_lossy(&found.stdout).lines().next().map(str::to_owned)
}

fn ticks(cluster: &Cluster, dc: &str, node: &str) -> (u64, u64) {
    clock::ticks(&cluster.sh(dc, node, LONGEST_GAP))
}

#[test]
fn programs_and_people_go_on_when_members_of_the_engine_and_daemons_are_killed() {
    let Some(cluster) = etcd_cluster() else { return };
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3"]);
    cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", "sh", "-c", CLOCK]);
    for node in ["n1", "n2", "n3"] {
        let killed = member(&cluster, node).expect("each node runs a member");
        cluster.ok(&["dev", "exec", node, "--", "kill", "-9", &killed]);
        // Whoever led, and whoever is asked.
        let began = Instant::now();
        cluster.ok(&["ds", "put", "shop", "key", node]);
        cluster.ok(&["dc", "create", &format!("of-{node}"), "--nodes", "n1,n2,n3"]);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        eventually("the member is started again", SOON, || member(&cluster, node).filter(|pid| *pid != killed));
    }
    let before = member(&cluster, "n1");
    let daemon = cluster.output(&["dev", "exec", "n1", "--", "pgrep", "-f", "daemon --config"]);
    let daemon = String::from_utf8_lossy(&daemon.stdout).trim().to_owned();
    cluster.ok(&["dev", "exec", "n1", "--", "kill", "-9", &daemon]);
    cluster.ok(&["dev", "restart", "n1"]);
    assert_eq!(member(&cluster, "n1"), before, "the next daemon takes the member over");
    // All of this may be over before it ticked so often.
    let (lines, gap) = eventually("it ticks", SOON, || Some(ticks(&cluster, "shop", "n2")).filter(|said| said.0 > 10));
    assert!(gap < 3000, "{lines} lines, {gap} ms");
}

#[test]
fn without_a_majority_changes_are_refused_in_words_and_programs_and_their_people_go_on() {
    let Some(cluster) = etcd_cluster() else { return };
    cluster.ok(&["dc", "create", "solo", "--nodes", "n3", "--start"]);
    let pid = cluster.ok(&["run", "-d", "solo", "--", "sh", "-c", CLOCK]);
    let pid = pid.trim();
    for node in ["n1", "n2"] {
        cluster.ok(&["dev", "kill", node]);
    }
    let socket = cluster.socket_of("n3");
    let at_n3 = |arguments: &[&str]| {
        let done = cluster.command(arguments).env("DVS_SOCKET", &socket).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (done.status.code(), text(&done.stdout), text(&done.stderr))
    };
    let refused = at_n3(&["dc", "create", "late", "--nodes", "n3"]);
    assert_eq!(refused.0, Some(1), "{refused:?}");
    assert!(refused.2.contains("too few members of the engine") && refused.2.contains("try: "), "{refused:?}");
    eventually("the node has noticed, and says so", SOON, || {
        at_n3(&["ps", "solo"]).2.contains("the cluster engine does not answer").then_some(())
    });
    // From what the node knows.
    for (arguments, expected) in [
        (&["node", "ls"][..], "n3"),
        (&["dc", "ls"], "solo"),
        (&["ps", "solo"], pid),
        (&["dc", "inspect", "solo"], "n3"),
        (&["run", "solo", "--", "cat", "/dc/clock"], "."),
    ] {
        let began = Instant::now();
        let answered = at_n3(arguments);
        assert!(answered.0 == Some(0) && answered.1.contains(expected), "{arguments:?}: {answered:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{arguments:?} took {:?}", began.elapsed());
    }
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("changes are possible again", SOON, || {
        (at_n3(&["dc", "create", "late", "--nodes", "n3"]).0 == Some(0)).then_some(())
    });
    let (lines, gap) = ticks(&cluster, "solo", "n3");
    assert!(lines > 10 && gap < 3000, "{lines} lines, {gap} ms");
}
