//! Proxies that live and do not serve: one whose broker does not hear it any more, and one that is stopped.

use std::time::Duration;

use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn proxy_whose_connection_with_the_broker_is_lost_is_replaced_and_what_is_on_other_nodes_can_be_reached() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    cluster.sh("shop", "n2", "echo before > /dc/log");
    let alone = cluster.cut_proxy_from_broker("n2").expect("a proxy");
    eventually("it is replaced", SOON, || cluster.proxy_of("n2").filter(|(pid, _)| *pid != alone));
    eventually("its link is up", SOON, || {
        let node = cluster.json(&["node", "inspect", "n2", "-o", "json"]);
        (node["links"][0]["state"] == "up").then_some(())
    });
    // A container that is new needs new channels between the nodes.
    cluster.container("store", 2, &["--fs-node", "n1", "--disk-node", "n1"]);
    assert_eq!(cluster.sh("store", "n2", "echo after > /dc/log; cat /dc/log"), "after\n");
    assert_eq!(cluster.sh("shop", "n2", "cat /dc/log"), "before\n");
}

#[test]
fn proxy_that_does_not_answer_is_shown_and_left_alone_and_serves_when_it_goes_on() {
    let cluster = Cluster::up(2);
    let node = || cluster.json(&["node", "inspect", "n1", "-o", "json"]);
    let is_well = || {
        let node = node();
        (node["links"][0]["state"] == "up" && node["state"] == "ready").then_some(())
    };
    eventually("all is well", SOON, is_well);
    let (stopped, _) = cluster.proxy_of("n1").expect("a proxy");
    let signal = |name: &str| {
        let sent = std::process::Command::new("kill").args([name, &stopped.to_string()]).status();
        assert!(sent.expect("kill runs").success());
    };
    signal("-STOP");
    let told_ms = eventually("its links are shown as unknown, and the node as not well", SOON, || {
        let node = node();
        let is_shown = node["links"][0]["state"] == "unknown" && node["state"] == "degraded";
        is_shown.then(|| node["links"][0]["told_ms"].as_u64()).flatten()
    });
    assert!(told_ms >= 2000, "{told_ms} ms");
    let shown = cluster.ok(&["node", "inspect", "n1"]);
    assert!(shown.contains("the proxy does not answer"), "{shown}");
    assert_eq!(cluster.proxy_of("n1").map(|(pid, _)| pid), Some(stopped));
    signal("-CONT");
    eventually("all is well again", SOON, is_well);
    assert_eq!(cluster.proxy_of("n1").map(|(pid, _)| pid), Some(stopped));
}
