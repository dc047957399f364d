//! The key-value store of a container, from the command line.

use std::io::BufRead;
use std::process::Stdio;
use std::time::Duration;

use end_to_end::{Cluster, eventually};
use serde_json::json;

#[test]
fn key_is_written_compared_listed_and_removed_from_any_node() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--ds-node", "n2"]);
    let first: u64 = cluster.ok(&["ds", "put", "shop", "config/a", "1"]).trim().parse().expect("a revision");
    assert_eq!(cluster.ok(&["ds", "get", "shop", "config/a"]), "1");
    let revision = first.to_string();
    cluster.ok(&["ds", "cas", "shop", "config/a", &revision, "2"]);
    let (status, said) = cluster.fails(&["ds", "cas", "shop", "config/a", &revision, "3"]);
    assert!(status == 1 && said.contains("another revision wrote it"), "{status}: {said}");
    cluster.ok(&["ds", "cas", "shop", "other", "0", "new"]);
    assert_eq!(cluster.ok(&["ds", "ls", "shop", "config/", "-o", "name"]), "config/a\n");
    assert_eq!(cluster.json(&["ds", "get", "shop", "other", "-o", "json"])["value"], "new");
    cluster.ok(&["ds", "delete", "shop", "other"]);
    let (status, said) = cluster.fails(&["ds", "get", "shop", "other"]);
    assert!(status == 1 && said.contains("there is no such key"), "{status}: {said}");
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "start", "shop"]);
    assert_eq!(cluster.ok(&["ds", "get", "shop", "config/a"]), "2");
}

#[test]
fn pipe_answers_every_line_and_bytes_go_through_it_unchanged() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let requests =
        "{\"op\":\"put\",\"key\":\"k\",\"value\":{\"hex\":\"00ff\"}}\nnonsense\n{\"op\":\"get\",\"key\":\"k\"}\n";
    let file = cluster.state_dir().join("requests");
    std::fs::write(&file, requests).expect("a file");
    let input = std::fs::File::open(&file).expect("the file");
    let done = cluster.command(&["ds", "pipe", "shop"]).stdin(Stdio::from(input)).output().expect("dvs starts");
    let text = String::from_utf8_lossy(&done.stdout);
    let answers: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers.len(), 3, "{text}");
    assert!(answers[1]["error"].is_string(), "{text}");
    assert_eq!(answers[2]["value"], json!({ "hex": "00ff" }));
    let raw = cluster.output(&["ds", "get", "shop", "k"]);
    assert_eq!(raw.stdout, [0, 0xff]);
}

#[test]
fn largest_value_of_any_bytes_is_kept_as_it_is() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    for byte in [0_u8, 0xff, b'a', b'"'] {
        let value = vec![byte; 65_536];
        let file = cluster.state_dir().join("value");
        std::fs::write(&file, &value).expect("a file");
        let input = std::fs::File::open(&file).expect("the file");
        let put = cluster.command(&["ds", "put", "shop", "k", "-"]).stdin(Stdio::from(input)).output();
        let put = put.expect("dvs starts");
        assert!(put.status.success(), "{}", String::from_utf8_lossy(&put.stderr));
        assert!(cluster.output(&["ds", "get", "shop", "k"]).stdout == value, "byte {byte}");
    }
}

#[test]
fn store_of_another_container_is_another_store() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    cluster.container("yard", 1, &[]);
    cluster.ok(&["ds", "put", "shop", "k", "of the shop"]);
    assert_eq!(cluster.ok(&["ds", "ls", "yard", "-o", "name"]), "");
}

#[test]
fn watch_ends_after_its_reader_is_gone() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    // What happened before is told first: nobody has to know when the watch began.
    cluster.ok(&["ds", "put", "shop", "k", "1"]);
    let mut watch = cluster.spawn(&["ds", "watch", "shop", "--after", "1"]);
    let mut reader = std::io::BufReader::new(watch.stdout.take().expect("its output"));
    cluster.ok(&["ds", "put", "shop", "k", "2"]);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    drop(reader);
    eventually("the watch ends when it has something to say", Duration::from_secs(20), || {
        cluster.ok(&["ds", "put", "shop", "k", "3"]);
        watch.try_wait().expect("its status")
    });
    let left = || cluster.ok(&["ps", "shop", "-o", "name"]);
    eventually("its process in the container is gone", Duration::from_secs(20), || left().is_empty().then_some(()));
}
