//! Clusters and containers end within bounds, whatever state they are in, and leave nothing behind.

use std::time::{Duration, Instant};

use end_to_end::load::Load;
use end_to_end::traces::Traces;
use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);
/// Two stages of servers with ten seconds each to end, and a busy machine. What waits for something stopped would wait
/// for ever.
const BOUND: Duration = Duration::from_secs(45);

/// A container with programs, a file that is being written, and a terminal's worth of namespaces.
fn busy_cluster() -> Cluster {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n2"]);
    for node in ["n1", "n2"] {
        let writer = "while :; do echo line >> /dc/lines; done";
        cluster.ok(&["run", "-d", "shop", "--node", node, "--", "sh", "-c", writer]);
    }
    cluster
}

fn stop_process(cluster: &Cluster, node: &str, name: &str) {
    let pid = eventually("it serves", SOON, || cluster.server_pid("shop", node, name));
    cluster.ok(&["dev", "exec", node, "--", "kill", "-STOP", &pid.to_string()]);
}

fn assert_gone(traces: &Traces) {
    // The kernel buries namespaces of the dead in its own time.
    let mut left = Vec::new();
    let start = Instant::now();
    while start.elapsed() < SOON {
        left = traces.left();
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("left over: {left:#?}");
}

#[test]
fn nothing_is_left_of_a_cluster_that_was_taken_down() {
    let cluster = busy_cluster();
    let traces = Traces::of(&cluster);
    assert!(traces.processes() > 15, "{} processes", traces.processes());
    assert!(!traces.left().is_empty());
    cluster.ok(&["dev", "down"]);
    assert_gone(&traces);
}

#[test]
fn nothing_is_left_of_a_cluster_that_was_killed_once_the_doctor_has_cleaned() {
    let cluster = busy_cluster();
    let traces = Traces::of(&cluster);
    traces.kill_everything();
    cluster.ok(&["doctor", "--clean"]);
    assert_gone(&traces);
}

#[test]
fn container_with_a_stopped_gate_or_file_server_ends_in_time_and_starts_again() {
    let cluster = busy_cluster();
    for (node, name) in [("n1", "gate"), ("n2", "fs"), ("n1", "disk-root")] {
        let load = Load::start(&cluster, "shop", "n1", &format!("/dc/{name}"), 1);
        stop_process(&cluster, node, name);
        let start = Instant::now();
        cluster.ok(&["dc", "stop", "--grace", "1", "shop"]);
        let took = start.elapsed();
        eprintln!("stopped {name}: the container ended in {took:?}");
        assert!(took < BOUND, "{name}: {took:?}{}", cluster.logs());
        cluster.ok(&["dc", "start", "shop"]);
        load.lost(&cluster, "n2");
    }
    stop_process(&cluster, "n2", "fs");
    stop_process(&cluster, "n2", "gate");
    let start = Instant::now();
    cluster.ok(&["dc", "delete", "--force", "shop"]);
    assert!(start.elapsed() < BOUND, "{:?}{}", start.elapsed(), cluster.logs());
}

#[test]
fn cluster_with_stopped_processes_is_taken_down_in_time() {
    let cluster = busy_cluster();
    let traces = Traces::of(&cluster);
    for (node, name) in [("n1", "gate"), ("n2", "fs")] {
        stop_process(&cluster, node, name);
    }
    cluster.ok(&["dev", "exec", "n2", "--", "sh", "-c", "kill -STOP $(pgrep -o -f 'daemon --config')"]);
    let start = Instant::now();
    cluster.ok(&["dev", "down"]);
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    assert_gone(&traces);
}

#[test]
fn processes_of_a_node_that_is_down_are_missing_and_the_others_are_listed() {
    let cluster = busy_cluster();
    let everything = cluster.output(&["ps", "shop", "-o", "name"]);
    assert!(everything.stderr.is_empty(), "{everything:?}");
    cluster.ok(&["dev", "exec", "n2", "--", "sh", "-c", "kill -9 $(pgrep -o -f 'daemon --config')"]);
    let listed = eventually("n2 is missed", SOON, || {
        let listed = cluster.output(&["ps", "shop", "-o", "name"]);
        (!listed.stderr.is_empty()).then_some(listed)
    });
    assert!(listed.status.success(), "{listed:?}");
    let said = String::from_utf8_lossy(&listed.stderr).into_owned();
    assert!(said.contains("processes of 'shop' are missing from node n2"), "{said}");
    let (all, some) = (everything.stdout, listed.stdout);
    let (all, some) = (String::from_utf8_lossy(&all), String::from_utf8_lossy(&some));
    assert!(some.lines().count() > 0 && some.lines().count() < all.lines().count(), "{some} of {all}");
    // Once its lease has ended.
    eventually("a start is refused", SOON, || {
        let (status, refused) = cluster.fails(&["dc", "start", "shop"]);
        (status == 1 && refused.contains("node n2 is down")).then_some(())
    });
}
