//! Nodes that come to a container and leave it while it runs.

use std::time::Duration;

use end_to_end::clock::{CLOCK, LONGEST_GAP, ticks};
use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// What a node has to say, at the address by which the others know it.
const SAY: &str = "cd /tmp && hostname > said && exec python3 -m http.server 8000";

fn address(cluster: &Cluster, node: &str) -> String {
    let dc: Value = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let shares = dc["shares"].as_array().expect("shares");
    let share = shares.iter().find(|share| share["node"] == node).expect("a share of the node");
    share["address"].as_str().expect("an address").to_owned()
}

fn nodes(cluster: &Cluster) -> Vec<String> {
    let dc: Value = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let nodes = dc["spec"]["nodes"].as_array().expect("nodes");
    nodes.iter().map(|node| node.as_str().expect("a name").to_owned()).collect()
}

/// A program on one node asks another one over the container's network, by its name.
fn ask(cluster: &Cluster, from: &str, whom: &str) {
    let script = format!(
        "for i in $(seq 50); do python3 -c \"import urllib.request as r; \
         print(r.urlopen('http://{whom}:8000/said', timeout=2).read().decode(), end='')\" 2>/dev/null && exit; \
         sleep 0.1; done; cat /etc/hosts; exit 1"
    );
    assert_eq!(cluster.sh("shop", from, &script).trim(), whom);
}

#[test]
fn node_comes_and_goes_and_comes_back_while_programs_run() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", CLOCK]);
    cluster.ok(&["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", SAY]);
    // Whoever began before finds the new node by its name as well.
    let early = "until getent hosts n3; do sleep 0.1; done > /dc/early; echo done >> /dc/early";
    cluster.ok(&["run", "-d", "shop", "--node", "n1", "--", "sh", "-c", early]);
    cluster.sh("shop", "n1", "echo there > /dc/before");

    cluster.ok(&["dc", "add-node", "shop", "n3"]);
    assert_eq!(nodes(&cluster), ["n1", "n2", "n3"]);
    cluster.ok(&["dc", "add-node", "shop", "n3"]);
    assert_eq!(cluster.sh("shop", "n3", "cat /dc/before; echo from-n3 > /dc/after"), "there\n");
    assert_eq!(cluster.sh("shop", "n2", "cat /dc/after"), "from-n3\n");
    cluster.ok(&["run", "-d", "shop", "--node", "n3", "--", "sh", "-c", SAY]);
    ask(&cluster, "n3", "n2");
    ask(&cluster, "n1", "n3");
    eventually("a program that began before knows the node", SOON, || {
        cluster.sh("shop", "n1", "cat /dc/early").contains("done").then_some(())
    });
    let pid: u32 = cluster.sh("shop", "n3", "echo $$").trim().parse().expect("a number");
    assert_eq!(pid / 65_536, 3);
    let at = address(&cluster, "n3");

    let (_, refused) = cluster.fails(&["dc", "remove-node", "shop", "n1"]);
    assert!(refused.contains("fs") && refused.contains("stand"), "{refused}");
    let (_, refused) = cluster.fails(&["dc", "remove-node", "shop", "n3"]);
    assert!(refused.contains("1 of its processes") && refused.contains("--force"), "{refused}");
    let (_, refused) = cluster.fails(&["dc", "remove-node", "shop", "n9"]);
    assert!(refused.contains("does not span") && refused.contains("n1, n2, n3"), "{refused}");
    let (_, refused) = cluster.fails(&["dc", "add-node", "shop", "n9"]);
    assert!(refused.contains("no node"), "{refused}");
    cluster.ok(&["dc", "remove-node", "--force", "shop", "n3"]);
    assert_eq!(nodes(&cluster), ["n1", "n2"]);
    let run_dir = cluster.socket_of("n3").parent().expect("a directory").join("dcs");
    let left = || std::fs::read_dir(&run_dir).map(|entries| entries.count()).unwrap_or(0);
    assert_eq!(left(), 0, "nothing of it is left in {}", run_dir.display());
    let listed: Value = cluster.json(&["ps", "shop", "-o", "json"]);
    assert!(listed.as_array().is_some_and(|all| all.iter().all(|one| one["node"] != "n3")), "{listed}");
    eventually("the others forget its name", SOON, || {
        (!cluster.sh("shop", "n2", "cat /etc/hosts").contains("n3")).then_some(())
    });
    let (_, refused) = cluster.fails(&["run", "shop", "--node", "n3", "--", "true"]);
    assert!(refused.contains("does not span"), "{refused}");

    cluster.ok(&["dc", "add-node", "shop", "n3"]);
    assert_eq!(address(&cluster, "n3"), at, "it has the seat that it had");
    assert_eq!(cluster.sh("shop", "n3", "cat /dc/after"), "from-n3\n");
    // Also across a stop.
    cluster.ok(&["dc", "remove-node", "shop", "n3", "--force"]);
    let (lines, gap) = ticks(&cluster.sh("shop", "n1", LONGEST_GAP));
    assert!(lines > 5 && gap < 3000, "{lines} lines, {gap} ms");
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "add-node", "shop", "n3"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(nodes(&cluster), ["n1", "n2", "n3"]);
    for node in ["n1", "n2", "n3"] {
        assert_eq!(cluster.sh("shop", node, "cat /dc/after"), "from-n3\n");
    }
    cluster.ok(&["dc", "delete", "--force", "shop"]);
}

#[test]
fn node_that_was_taken_out_while_it_was_dead_ends_what_it_has_when_it_comes_back() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.ok(&["dev", "kill", "n3"]);
    eventually("it is seen to be down", SOON, || cluster.ok(&["node", "ls"]).contains("down").then_some(()));
    let (_, refused) = cluster.fails(&["dc", "remove-node", "shop", "n3"]);
    assert!(refused.contains("down") && refused.contains("--force"), "{refused}");
    cluster.ok(&["dc", "remove-node", "--force", "shop", "n3"]);
    assert_eq!(cluster.sh("shop", "n2", "echo on"), "on\n");
    cluster.ok(&["dev", "restart", "n3"]);
    let run_dir = cluster.socket_of("n3").parent().expect("a directory").join("dcs");
    eventually("what it had is gone", SOON, || {
        std::fs::read_dir(&run_dir).map(|entries| entries.count() == 0).unwrap_or(true).then_some(())
    });
    cluster.ok(&["dc", "add-node", "shop", "n3"]);
    assert_eq!(cluster.sh("shop", "n3", "echo back"), "back\n");
}
