//! A node whose proxy is a program of somebody's own, in a cluster of nodes that know nothing of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use end_to_end::{Cluster, dvs_binary, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

/// `examples/shaped_proxy.rs` of `proxy-host`, built with the tests.
fn example() -> PathBuf {
    let program = dvs_binary().with_file_name("examples").join("shaped_proxy");
    assert!(program.exists(), "{} is missing: cargo build -p proxy-host --examples", program.display());
    program
}

/// The daemon as an operator of one node sets it up: what it reads is written anew at each start, so this adds to it.
fn daemon_with_own_proxy(directory: &Path) -> PathBuf {
    let script = format!(
        "#!/bin/sh
case \"$3\" in */n1/*) printf 'proxy_program = \"%s\"\\n[proxy_options]\\nrate = 50000000\\n' '{}' >> \"$3\" ;; esac
exec '{}' \"$@\"
",
        example().display(),
        dvs_binary().display()
    );
    let path = directory.join("dvs-with-own-proxy");
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

fn link(cluster: &Cluster, node: &str) -> Value {
    eventually("the link is up", SOON, || {
        let node = cluster.json(&["node", "inspect", node, "-o", "json"]);
        let link = node["links"].as_array()?.first()?.clone();
        (link["state"] == "up").then_some(link)
    })
}

fn own_proxy(cluster: &Cluster) -> Option<String> {
    let found = cluster.output(&["dev", "exec", "n1", "--", "pgrep", "-f", "^/.*/shaped_proxy$"]);
    String::from_utf8_lossy(&found.stdout).lines().next().map(str::to_owned)
}

#[test]
fn proxy_of_ones_own_carries_a_container_and_is_started_again_when_it_dies() {
    let place = tempfile::tempdir().expect("a directory");
    let daemon = daemon_with_own_proxy(place.path());
    let cluster = Cluster::up_with(2, &["--daemon", daemon.to_str().expect("UTF-8")]);
    assert_eq!(link(&cluster, "n1")["transport"], "shaped");
    assert_eq!(link(&cluster, "n2")["transport"], "tcp", "the other node has our proxy");

    cluster.container("shop", 2, &["--fs-node", "n2", "--disk-node", "n1"]);
    cluster.sh("shop", "n1", "for i in $(seq 100); do echo $i >> /dc/log; done");
    assert_eq!(cluster.sh("shop", "n2", "wc -l < /dc/log").trim(), "100");
    // The daemon hears of counters now and then.
    eventually("its file server is on the other node", SOON, || {
        (link(&cluster, "n1")["sent_entries"].as_u64() > Some(100)).then_some(())
    });

    let first = own_proxy(&cluster).expect("it runs");
    cluster.ok(&["dev", "exec", "n1", "--", "kill", "-9", &first]);
    cluster.sh("shop", "n1", "echo more >> /dc/log");
    assert_eq!(cluster.sh("shop", "n2", "tail -n 1 /dc/log"), "more\n");
    assert_ne!(own_proxy(&cluster).expect("it runs again"), first);
    assert_eq!(link(&cluster, "n1")["transport"], "shaped");
}
