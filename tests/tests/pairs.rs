//! Clusters whose nodes have several links with each other: all are used, one that is lost is nobody else's loss, and a
//! node may have fewer than the others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
const NAMES: [&str; 3] = ["one", "two", "three"];

/// Appends 300 numbered lines and says how many there are, and how many different ones.
const WRITER: &str = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i >> /dc/log || exit 9; sleep 0.005; done
    echo $(wc -l < /dc/log) $(sort -u /dc/log | wc -l)";

/// Two nodes with two pairs, and containers whose file server and disk are not on one node.
fn cluster() -> Cluster {
    let cluster = Cluster::up_with(2, &["--pairs", "2"]);
    for name in NAMES {
        cluster.container(name, 2, &["--fs-node", "n1", "--disk-node", "n2"]);
    }
    cluster
}

fn links(cluster: &Cluster, node: &str) -> Vec<Value> {
    let node = cluster.json(&["node", "inspect", node, "-o", "json"]);
    node["links"].as_array().cloned().unwrap_or_default()
}

fn await_links(cluster: &Cluster, node: &str, count: usize) -> Vec<Value> {
    eventually("so many links are up", SOON, || {
        let links = links(cluster, node);
        (links.len() == count && links.iter().all(|link| link["state"] == "up")).then_some(links)
    })
}

fn proxies(cluster: &Cluster, node: &str) -> Vec<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-f", "^dvs proxy"]);
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

fn write_in_all(cluster: &Cluster) -> Vec<Child> {
    let script = ["sh", "-c", WRITER];
    let writers = NAMES.map(|name| cluster.spawn(&[&["run", name, "--node", "n2", "--"][..], &script].concat()));
    for name in NAMES {
        eventually("the program writes", SOON, || {
            let seen = cluster.output(&["run", name, "--node", "n1", "--", "sh", "-c", "wc -l < /dc/log"]);
            String::from_utf8_lossy(&seen.stdout).trim().parse::<usize>().ok().filter(|lines| *lines > 5)
        });
    }
    writers.into()
}

fn assert_complete(cluster: &Cluster, writers: Vec<Child>) {
    for writer in writers {
        let output = writer.wait_with_output().expect("the program ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.trim() == "300 300", "{output:?}{}", cluster.logs());
    }
}

#[test]
fn containers_spread_over_two_pairs_and_no_program_notices_the_death_of_a_proxy() {
    let cluster = cluster();
    await_links(&cluster, "n1", 2);
    let shown = cluster.ok(&["node", "inspect", "n1"]);
    assert!(shown.contains("n2 (pair 0)") && shown.contains("n2 (pair 1)"), "{shown}");
    let writers = write_in_all(&cluster);
    for node in ["n1", "n2"] {
        let before = proxies(&cluster, node);
        assert_eq!(before.len(), 2, "{before:?}");
        for pid in &before {
            cluster.ok(&["dev", "exec", node, "--", "kill", "-9", pid]);
            eventually("it is started again", SOON, || {
                let now = proxies(&cluster, node);
                (now.len() == 2 && !now.contains(pid)).then_some(())
            });
        }
    }
    assert_complete(&cluster, writers);
    let carried =
        |link: &Value| link["sent_entries"].as_u64().unwrap_or(0) + link["received_entries"].as_u64().unwrap_or(0);
    for link in await_links(&cluster, "n1", 2) {
        assert!(carried(&link) > 0, "each carries some of it: {link}");
    }
}

#[test]
fn node_that_comes_back_with_fewer_pairs_has_as_many_links_and_programs_go_on() {
    let cluster = cluster();
    await_links(&cluster, "n1", 2);
    let writers = write_in_all(&cluster);
    set_pairs(&cluster, 1);
    cluster.ok(&["dev", "restart", "n2"]);
    await_links(&cluster, "n1", 1);
    await_links(&cluster, "n2", 1);
    assert_eq!((proxies(&cluster, "n1").len(), proxies(&cluster, "n2").len()), (2, 1));
    // Whoever watched them went with the daemon that it asked; they did not.
    writers.into_iter().for_each(|writer| drop(writer.wait_with_output()));
    for name in NAMES {
        eventually("the program has written everything", SOON, || {
            let seen = cluster.sh(name, "n1", "echo $(wc -l < /dc/log) $(sort -u /dc/log | wc -l)");
            (seen.trim() == "300 300").then_some(())
        });
    }
    set_pairs(&cluster, 2);
    cluster.ok(&["dev", "restart", "n2"]);
    await_links(&cluster, "n2", 2);
    for name in NAMES {
        assert_eq!(cluster.sh(name, "n2", "wc -l < /dc/log").trim(), "300");
    }
}

#[test]
fn more_pairs_than_raw_ethernet_has_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = directory.path().join("dvsd.toml");
    let text = "node = \"n1\"\nadvertise = \"127.0.0.1\"\npairs = 2\ntransports = [\"eth\"]\nethernet = \"lo\"\n";
    fs::write(&config, text).expect("written");
    let mut daemon = std::process::Command::new(end_to_end::dvs_binary());
    let ended = daemon.args(["daemon", "--config"]).arg(&config).output().expect("dvs starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("take 'eth' out of 'transports', or say pairs = 1"), "{said}");
}

/// What the next daemon that is started is told.
fn set_pairs(cluster: &Cluster, pairs: u8) {
    let path = find(cluster.state_dir(), "cluster.json").expect("the cluster's record");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    record["pairs"] = pairs.into();
    fs::write(&path, record.to_string()).expect("written");
}

fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).ok()?;
    entries.flatten().find_map(|entry| match entry.file_type().ok()? {
        kind if kind.is_dir() => find(&entry.path(), name),
        kind if kind.is_file() && entry.file_name() == name => Some(entry.path()),
        _ => None,
    })
}
