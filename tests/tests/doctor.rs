//! `dvs doctor` on a node of a cluster: what is wrong with it, in words; and a report without secrets.

use std::process::Command;
use std::time::Duration;

use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(40);

/// What is not well of the cluster: name, state, words and advice.
fn findings(cluster: &Cluster) -> (i32, Vec<(String, String, String)>) {
    let done = cluster.output(&["doctor", "-o", "json"]);
    let checks: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let text = |check: &Value, field: &str| check[field].as_str().unwrap_or_default().to_owned();
    let of_the_cluster = checks.as_array().expect("a list").iter().filter(|check| check["node"].is_string());
    let told = of_the_cluster.map(|check| {
        let words = format!("{} | {}", text(check, "found"), text(check, "what_to_do"));
        assert!(!text(check, "what_to_do").is_empty(), "{check}");
        (text(check, "name"), text(check, "state"), words)
    });
    (done.status.code().unwrap_or(-1), told.collect())
}

fn finding(cluster: &Cluster, name: &str, words: &[&str]) {
    eventually(&format!("{name} is found"), SOON, || {
        let (status, found) = findings(cluster);
        let one = found.iter().find(|(found, ..)| found == name)?;
        (status == 1 && one.1 == "broken" && words.iter().all(|word| one.2.contains(word))).then_some(())
    });
}

#[test]
fn what_is_wrong_with_a_cluster_is_said_with_what_to_do_and_shown_by_the_exit_status() {
    if Command::new("etcd").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no etcd (Debian: etcd-server)");
        return;
    }
    let cluster = Cluster::up_with(3, &["--engine", "etcd"]);
    let well =
        eventually("the cluster is well", SOON, || Some(findings(&cluster)).filter(|(_, found)| found.is_empty()));
    let table = cluster.output(&["doctor"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("\ncluster "), "{table:?}");
    assert_eq!(table.status.code(), Some(well.0));

    let certificate = cluster.path_of("n2", "state_dir").join("tls/node.crt");
    let kept = std::fs::read(&certificate).expect("a certificate");
    std::fs::write(&certificate, "no certificate").expect("written");
    finding(&cluster, "n2: certificate", &["cannot be read", "dvs node cert n2"]);
    std::fs::write(&certificate, kept).expect("written");

    cluster.ok(&["dev", "kill", "n3"]);
    finding(&cluster, "n3: node", &["down", "systemctl start dvsd"]);
    // In n2 there is no etcd any more, and one of three members is no majority.
    cluster.ok(&[
        "dev",
        "exec",
        "n2",
        "--",
        "sh",
        "-ec",
        "mount --bind /dev/null \"$(command -v etcd)\"; pkill -9 -x etcd",
    ]);
    finding(&cluster, "n2: engine members", &["ends again and again", "cannot start", "tail", "log/etcd.log"]);
    finding(&cluster, "n1: engine", &["too few members", "journalctl -u dvsd"]);
    let socket = cluster.socket_of("n1");
    cluster.ok(&["dev", "kill", "n1"]);
    let mut asked = cluster.command(&["doctor", "--socket", socket.to_str().expect("UTF-8")]);
    let done = asked.output().expect("dvs starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.code() == Some(well.0), "a machine without a daemon's records is no node: {said}");
    std::fs::create_dir_all(socket.parent().expect("a directory")).expect("made");
    std::fs::write(socket.with_file_name("shelf.json"), "{}").expect("written");
    let done = asked.output().expect("dvs starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.code() == Some(1) && said.contains("dvs dev restart NODE"), "{said}");
}

/// Words that are nowhere else.
const IN_ENVIRONMENT: &str = "zebra-of-the-environment";
const IN_ARGUMENTS: &str = "zebra-of-the-arguments";
const IN_OUTPUT: &str = "zebra-of-the-output";
const IN_TREE: &str = "zebra-of-the-tree";
const IN_STORE: &str = "zebra-of-the-store";
const IN_TOKEN: &str = "zebra-of-the-token";
const IN_PASSWORD: &str = "zebra-of-the-password";
const IN_OPTIONS: &str = "zebra-of-the-options";

#[test]
fn report_has_what_a_fault_needs_and_no_secret() {
    let cluster = Cluster::up(2);
    let (state, config) = (cluster.path_of("n1", "state_dir"), cluster.config_of("n1"));
    let settings = std::fs::read_to_string(&config).expect("settings");
    std::fs::write(&config, format!("{settings}\n[proxy_options]\nkey = \"{IN_OPTIONS}\"\n")).expect("written");
    cluster.ok(&["dev", "restart", "n1"]);
    // Where the engine is a file, a node without a network keeps its lease.
    cluster.ok(&["dev", "wire", "n2", "down"]);
    finding(&cluster, "n2: node", &["its daemon lives, but n1 has no link to it", "TCP 7420 and 7421"]);
    cluster.ok(&["dev", "wire", "n2", "up"]);
    eventually("the cluster is well", SOON, || findings(&cluster).1.is_empty().then_some(()));
    cluster.container("shop", 2, &[]);
    let environment = format!("SECRET={IN_ENVIRONMENT}");
    let script = format!("echo {IN_OUTPUT}; echo {IN_TREE} > /dc/secret; echo {IN_OUTPUT} >&2; exec sleep 1000");
    let run = ["run", "-d", "shop", "--env", &environment, "--", "sh", "-c", &script, IN_ARGUMENTS];
    let pid = cluster.ok(&run);
    eventually("the program wrote", SOON, || {
        cluster.ok(&["logs", "shop", pid.trim()]).contains(IN_OUTPUT).then_some(())
    });
    cluster.ok(&["ds", "put", "shop", "key", IN_STORE]);
    std::fs::write(state.join("join-token"), format!("{IN_TOKEN}\n")).expect("written");
    std::fs::write(state.join("etcd-password"), format!("{IN_PASSWORD}\n")).expect("written");
    // Somebody logs what should not be logged.
    let key = std::fs::read_to_string(state.join("tls/node.key")).expect("the node's key");
    let log = std::fs::read_to_string(state.join("log/proxy.log")).expect("a log");
    let spilt = format!("{log}token {IN_TOKEN}, password {IN_PASSWORD}\n{key}a line behind it\n");
    std::fs::write(state.join("log/proxy.log"), spilt).expect("written");

    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().join("report.tar");
    cluster.ok(&["doctor", "report", "--out", out.to_str().expect("UTF-8")]);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&out).expect("it").permissions());
    assert_eq!(mode & 0o777, 0o600);
    let archive = String::from_utf8_lossy(&std::fs::read(&out).expect("it can be read")).into_owned();
    let key_lines = key.lines().filter(|line| !line.starts_with("-----"));
    for secret in
        [IN_ENVIRONMENT, IN_ARGUMENTS, IN_OUTPUT, IN_TREE, IN_STORE, IN_TOKEN, IN_PASSWORD, IN_OPTIONS, "PRIVATE KEY"]
            .into_iter()
            .chain(key_lines)
    {
        assert!(!archive.contains(secret), "the report tells {secret}");
    }
    for there in [
        "dvs-report/settings.json",
        "dvs-report/metrics/n2.txt",
        "dvs-report/processes/shop.json",
        "dvs-report/logs/daemon.log",
        "dvs-report/logs/dcs/1/fs.log",
        "dvs_node_info{node=\"n2\"",
        "# kernel\nLinux version",
        "\"name\": \"user namespaces\"",
        "token [secret], password [secret]",
        "a line behind it",
    ] {
        assert!(archive.contains(there), "the report lacks {there}");
    }
}
