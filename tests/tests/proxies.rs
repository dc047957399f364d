//! Proxies that live and do not serve: one whose broker does not hear it any more.

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
