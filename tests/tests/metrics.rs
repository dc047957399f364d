//! Numbers and answers for who watches a cluster: `/metrics`, `/livez`, `/readyz`.

use std::collections::BTreeMap;
use std::time::Duration;

use abi::{Message, Source};
use end_to_end::{Cluster, eventually};
use ipc::{Port, Wait};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Of counters, the one that nothing here moves; `node/dvsd/src/metrics/engine.rs` has a test of it.
const STAYS: [&str; 1] = ["dvs_engine_errors"];

/// Not a test: a program of the container that answers, or asks. Outside it does nothing.
#[test]
fn child_process() {
    let Ok(role) = std::env::var("METRICS_ROLE") else { return };
    let wait = Wait::For(SOON);
    let mut port = Port::connect(std::path::Path::new("/run/dvs/broker"), None).expect("bound");
    if role == "answers" {
        port.set_name("answers").expect("a name");
        let request = port.receive(Source::Any, wait).expect("a request");
        return port.reply(request.source.expect("a source"), &request).expect("answered");
    }
    let peer = port.find("answers", wait).expect("found");
    port.sendrec(peer, &Message::new(7), wait).expect("an answer");
    println!("was answered");
}

/// A message to another node and back.
fn exchange_a_message(cluster: &Cluster) {
    let place = tempfile::tempdir().expect("a directory");
    std::fs::copy(std::env::current_exe().expect("a path"), place.path().join("metrics")).expect("copied");
    cluster.ok(&["import", "shop", place.path().to_str().expect("UTF-8"), "/programs"]);
    let program = ["/dc/programs/metrics", "child_process", "--exact", "--nocapture", "--test-threads=1"];
    let on = |node: &'static str, role: &'static str, more: &[&'static str]| {
        let run = ["run", "shop", "--node", node, "--env", role, "--"];
        [&run[..1], more, &run[1..], &program[..]].concat()
    };
    cluster.ok(&on("n1", "METRICS_ROLE=answers", &["-d"]));
    let asked = cluster.output(&on("n2", "METRICS_ROLE=asks", &[]));
    assert!(String::from_utf8_lossy(&asked.stdout).contains("was answered"), "{asked:?}");
}

/// Sum of the samples of each metric, by its name; and the kinds of all that are declared.
#[derive(Default)]
struct Numbers {
    sums: BTreeMap<String, f64>,
    kinds: BTreeMap<String, String>,
    lines: Vec<String>,
}

impl Numbers {
    fn add(&mut self, text: &str) {
        assert!(text.ends_with("# EOF\n"), "{text}");
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                self.kinds.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (name, number) = line.rsplit_once(' ').expect("a name and a number");
                let name = name.split('{').next().expect("a name");
                let ends = ["_total", "_info", "_count", "_sum", "_bucket"];
                let is_whole = self.kinds.contains_key(name);
                let family = ends.iter().find_map(|end| name.strip_suffix(end)).filter(|_| !is_whole).unwrap_or(name);
                assert!(self.kinds.contains_key(family), "{line} is of nothing that was declared");
                *self.sums.entry(family.to_owned()).or_default() += number.parse::<f64>().expect("a number");
                self.lines.push(line.to_owned());
            }
        }
    }

    fn of(cluster: &Cluster, nodes: &[&str]) -> Numbers {
        let mut numbers = Numbers::default();
        nodes.iter().for_each(|node| numbers.add(&cluster.ok(&["metrics", node])));
        numbers
    }

    fn sum(&self, name: &str) -> f64 {
        self.sums.get(name).copied().unwrap_or_default()
    }

    fn has(&self, line: &str) -> bool {
        self.lines.iter().any(|one| one == line)
    }
}

fn process(cluster: &Cluster, node: &str, name: &str) -> Option<String> {
    let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-x", name]);
    String::from_utf8_lossy(&found.stdout).lines().next().map(str::to_owned)
}

#[test]
fn every_metric_is_set_and_every_counter_moves_with_what_it_counts() {
    let has_etcd = std::process::Command::new("etcd").arg("--version").output().is_ok();
    let engine: &[&str] = if has_etcd { &["--engine", "etcd"] } else { &[] };
    let cluster = Cluster::up_with(3, engine);
    cluster.container("shop", 3, &["--fs-node", "n2", "--disk-node", "n3", "-p", "8080:80"]);
    cluster.ok(&[
        "run",
        "shop",
        "--node",
        "n1",
        "--",
        "sh",
        "-c",
        "head -c 300000 /dev/zero > /dc/zeros; cat /dc/zeros | wc -c",
    ]);
    let before = Numbers::of(&cluster, &NODES);

    let fs = cluster.server_pid("shop", "n2", "fs").expect("fs runs");
    cluster.kill("n2", fs);
    let (proxy, _) = cluster.proxy_of("n3").expect("a proxy");
    rustix::process::kill_process(rustix::process::Pid::from_raw(proxy as i32).unwrap(), rustix::process::Signal::KILL)
        .expect("killed");
    // All of them: which one a node talks to depends on which one was up first.
    for node in NODES.iter().filter(|_| has_etcd) {
        let member = process(&cluster, node, "etcd").expect("each node runs a member");
        cluster.ok(&["dev", "exec", node, "--", "kill", "-9", &member]);
    }
    exchange_a_message(&cluster);
    // A client, whom nobody serves.
    cluster.output(&["dev", "exec", "n1", "--", "curl", "-s", "http://127.0.0.1:8080/"]);
    // A refusal, and a stream.
    assert_eq!(cluster.fails(&["dc", "inspect", "nothing"]).0, 1);
    cluster.ok(&["run", "shop", "--node", "n1", "--", "true"]);
    let stays: &[&str] = if has_etcd { &STAYS } else { &[STAYS[0], "dvs_engine_connections"] };
    let is_counter = |numbers: &Numbers, name: &str| numbers.kinds.get(name).is_some_and(|kind| kind == "counter");
    let after = eventually("what was killed is counted", SOON, || {
        let after = Numbers::of(&cluster, &NODES);
        let counters = after.kinds.keys().filter(|name| is_counter(&after, name));
        let still = counters.filter(|name| after.sum(name) <= before.sum(name) && !stays.contains(&name.as_str()));
        let still: Vec<String> = still.cloned().collect();
        // What is missing at last is in the output of a test that fails.
        println!("not moved yet: {still:?}");
        still.is_empty().then_some(after)
    });
    let unset: Vec<&String> = after.kinds.keys().filter(|name| !after.sums.contains_key(*name)).collect();
    assert!(unset.is_empty(), "declared and never set: {unset:?}");
    for name in ["dvs_engine_call_seconds", "dvs_link_round_trip_seconds", "dvs_daemon_resident_memory_bytes"] {
        assert!(after.sum(name) > 0.0, "{name}");
    }

    let one = Numbers::of(&cluster, &["n1"]);
    for line in [
        "dvs_node_info{node=\"n1\",cluster=\"dev\"} 1",
        "dvs_cluster_nodes_alive 3",
        "dvs_daemon_check_passed{check=\"engine\"} 1",
        "dvs_link_state{peer=\"n2\",pair=\"0\",dvs_link_state=\"up\"} 1",
        "dvs_container_phase{dc=\"shop\",dvs_container_phase=\"running\"} 1",
    ] {
        assert!(one.has(line), "{line} is not in {:#?}", one.lines);
    }
    let (status, said) = cluster.fails(&["metrics", "n9"]);
    assert!(status == 1 && said.contains("there is no node 'n9'") && said.contains("dvs node ls"), "{said}");
    another_node_and_a_collector_with_a_certificate_get_the_same(&cluster);
    probes_are_answered_by_name_of_check(&cluster);
}

/// Whoever has a certificate of the cluster, and nobody else.
fn another_node_and_a_collector_with_a_certificate_get_the_same(cluster: &Cluster) {
    let tls = cluster.path_of("n1", "state_dir").join("tls");
    let fetch = |certificate: &str| {
        format!(
            "curl -fsS --resolve n2.dev.dvs:7420:10.255.0.2 --cacert {0}/ca.crt {certificate} https://n2.dev.dvs:7420/metrics",
            tls.display()
        )
    };
    let with = format!("--cert {0}/node.crt --key {0}/node.key", tls.display());
    let text = cluster.ok(&["dev", "exec", "n1", "--", "sh", "-c", &fetch(&with)]);
    assert!(text.contains("dvs_node_info{node=\"n2\",cluster=\"dev\"} 1\n"), "{text}");
    // Or who was given access to look.
    let file = cluster.state_dir().join("watcher.access");
    cluster.ok(&["access", "token", "watcher", "--role", "viewer", "--out", file.to_str().expect("text")]);
    let file: Value = serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let bearer = format!("-H 'Authorization: Bearer {}'", file["token"].as_str().expect("a token"));
    let again = cluster.ok(&["dev", "exec", "n1", "--", "sh", "-c", &fetch(&bearer)]);
    assert!(again.contains("dvs_node_info{node=\"n2\",cluster=\"dev\"} 1\n"), "{again}");
    assert!(again.contains("\ndvs_api_people_connections 1\n"), "{again}");
    let (status, said) = cluster.fails(&["dev", "exec", "n1", "--", "sh", "-c", &fetch("")]);
    assert!(status != 0, "a stranger was answered: {said}");
}

fn probes_are_answered_by_name_of_check(cluster: &Cluster) {
    let socket = cluster.socket_of("n1");
    let ask = |path: &str| {
        let url = format!("http://dvs{path}");
        let mut curl = std::process::Command::new("curl");
        let done = curl.args(["-s", "-w", "%{http_code}", "--unix-socket"]).arg(&socket).arg(url).output();
        let done = done.expect("curl");
        String::from_utf8(done.stdout).expect("text")
    };
    eventually("the node is well again", SOON, || (ask("/readyz") == "ok\n200").then_some(()));
    assert_eq!(ask("/livez"), "ok\n200");
    let all = "[+] engine\n[+] lease\n[+] broker\n[+] disk-space\n[+] certificates\n[+] engine-members\n[+] proxy\n[+] cut-off\n[+] audit\n[+] names\n[+] releases\n[+] progress\npassed\n200";
    assert_eq!(ask("/readyz?verbose"), all);
    let old = ask("/v1/health/ready");
    assert_eq!(old, "{\"ok\":true,\"problems\":[]}200");
    assert!(ask("/v1/health/live?verbose=1").contains("\"checks\":[{\"name\":\"progress\"}]"));
    let (proxy, _) = cluster.proxy_of("n1").expect("a proxy");
    let proxy = rustix::process::Pid::from_raw(proxy as i32).unwrap();
    rustix::process::kill_process(proxy, rustix::process::Signal::STOP).expect("stopped");
    let said = eventually("the proxy is missed", SOON, || Some(ask("/readyz")).filter(|said| said.ends_with("503")));
    rustix::process::kill_process(proxy, rustix::process::Signal::CONT).expect("continued");
    assert!(said.starts_with("[-] proxy: ") && said.ends_with("failed\n503"), "{said}");
    assert_eq!(ask("/livez"), "ok\n200", "a daemon that is not ready lives");
}
