//! Whether a node is lost is decided by the others and the engine: machines that die, stand still, and networks that
//! are cut in every way.

use std::time::{Duration, Instant};

use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);
/// Far longer than a decision takes; nothing may be decided meanwhile.
const LONG: Duration = Duration::from_secs(4);

fn cluster() -> Option<Cluster> {
    if std::process::Command::new("etcd").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return None;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    // Whether there was a link before decides how long one is waited for.
    for at in ["n1", "n2", "n3"] {
        await_state(&cluster, at, &["n1", "n2", "n3"], "ready");
    }
    Some(cluster)
}

/// State of a node as another one lists it.
fn state(cluster: &Cluster, at: &str, node: &str) -> String {
    let socket = cluster.socket_of(at);
    let listed = cluster.command(&["node", "ls", "-o", "json"]).env("DVS_SOCKET", socket).output().expect("dvs starts");
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    let found = listed.as_array().and_then(|nodes| nodes.iter().find(|one| one["name"] == node));
    found.and_then(|one| one["state"].as_str()).unwrap_or_default().to_owned()
}

fn await_state(cluster: &Cluster, at: &str, nodes: &[&str], wanted: &str) {
    eventually(&format!("{nodes:?} {wanted}, as {at} sees it"), SOON, || {
        nodes.iter().all(|node| state(cluster, at, node) == wanted).then_some(())
    });
}

/// How often a node's daemon began, which each verdict raises.
fn epoch(cluster: &Cluster, node: &str) -> u64 {
    cluster.json(&["node", "inspect", node, "-o", "json"])["epoch"].as_u64().expect("a number")
}

fn on(cluster: &Cluster, node: &str, script: &str) {
    cluster.ok(&["dev", "exec", node, "--", "sh", "-c", script]);
}

#[test]
fn dead_machine_is_fenced_within_a_second_or_so_and_comes_back_anew() {
    let Some(cluster) = cluster() else { return };
    cluster.ok(&[
        "dc",
        "create",
        "shop",
        "--nodes",
        "n1,n2,n3",
        "--start",
        "--replicas",
        "1",
        "--fs-node",
        "n1",
        "--disk-node",
        "n1",
    ]);
    let before = epoch(&cluster, "n3");
    let began = Instant::now();
    cluster.ok(&["dev", "kill", "n3"]);
    for at in ["n1", "n2"] {
        eventually("it is fenced, or already down", SOON, || {
            ["fenced", "down"].contains(&state(&cluster, at, "n3").as_str()).then_some(())
        });
    }
    // A machine that is busy with other tests is slow; the figure is in docs/design/verdicts.md.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let refused = cluster.fails(&["run", "shop", "--node", "n3", "--", "true"]);
    assert!(refused.0 != 0 && began.elapsed() < SOON, "{refused:?}");
    await_state(&cluster, "n1", &["n3"], "down");
    assert_eq!(cluster.sh("shop", "n2", "echo on > /dc/f; cat /dc/f"), "on\n");
    cluster.ok(&["dev", "restart", "n3"]);
    await_state(&cluster, "n1", &["n1", "n2", "n3"], "ready");
    assert!(epoch(&cluster, "n3") > before);
    // The node is ready a moment before its containers are.
    eventually("its programs see the file", SOON, || {
        let seen =
            cluster.command(&["run", "shop", "--node", "n3", "--", "cat", "/dc/f"]).output().expect("dvs starts");
        (seen.stdout == b"on\n").then_some(())
    });
}

#[test]
fn machine_that_stands_still_is_fenced_and_begins_anew_when_it_goes_on() {
    let Some(cluster) = cluster() else { return };
    let before = epoch(&cluster, "n3");
    // All of it but its first process, which does nothing.
    on(&cluster, "n3", "kill -STOP -1");
    eventually("it is fenced", SOON, || {
        ["fenced", "down"].contains(&state(&cluster, "n1", "n3").as_str()).then_some(())
    });
    on(&cluster, "n3", "kill -CONT -1");
    await_state(&cluster, "n1", &["n1", "n2", "n3"], "ready");
    eventually("it began anew", SOON, || (epoch(&cluster, "n3") > before).then_some(()));
}

#[test]
fn machine_without_network_knows_that_it_is_cut_off_before_the_others_go_on_without_it() {
    let Some(cluster) = cluster() else { return };
    let before = epoch(&cluster, "n2");
    cluster.ok(&["dev", "wire", "n2", "down"]);
    eventually("the others decided", SOON, || {
        ["fenced", "down"].contains(&state(&cluster, "n1", "n2").as_str()).then_some(())
    });
    let socket = cluster.socket_of("n2");
    eventually("it says so itself", SOON, || {
        let ready = cluster.command(&["node", "ls"]).env("DVS_SOCKET", &socket).output().expect("dvs starts");
        let said = String::from_utf8_lossy(&ready.stdout).into_owned() + &String::from_utf8_lossy(&ready.stderr);
        said.contains("cut off").then_some(())
    });
    cluster.ok(&["dev", "wire", "n2", "up"]);
    await_state(&cluster, "n1", &["n1", "n2", "n3"], "ready");
    eventually("it began anew", SOON, || (epoch(&cluster, "n2") > before).then_some(()));
}

#[test]
fn nobody_is_fenced_whom_one_other_hears_or_who_reaches_the_engine() {
    let Some(cluster) = cluster() else { return };
    let epochs = || ["n1", "n2", "n3"].map(|node| epoch(&cluster, node));
    let before = epochs();
    let address = |node: &str| format!("10.255.0.{}", &node[1..]);
    let cut = |from: &str, to: &str| on(&cluster, from, &format!("ip route add blackhole {}", address(to)));
    let heal = |from: &str, to: &str| on(&cluster, from, &format!("ip route del blackhole {}", address(to)));
    // Between two, both ways; then one way.
    for both in [true, false] {
        cut("n1", "n2");
        if both {
            cut("n2", "n1");
        }
        await_state(&cluster, "n1", &["n2"], "unreachable");
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            assert_eq!([state(&cluster, "n3", "n1"), state(&cluster, "n3", "n2")], ["ready", "ready"], "n3 hears both");
            assert_eq!(state(&cluster, "n1", "n2"), "unreachable");
        }
        heal("n1", "n2");
        if both {
            heal("n2", "n1");
        }
        await_state(&cluster, "n1", &["n1", "n2", "n3"], "ready");
    }
    assert_eq!(epochs(), before, "nobody began anew");
}
