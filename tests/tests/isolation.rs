//! What the members of a container can and cannot reach.

use std::time::Duration;

use end_to_end::{Cluster, eventually};

const SERVE: &str =
    "mkdir -p /tmp/www && echo $PAGE > /tmp/www/index.html && cd /tmp/www && exec python3 -m http.server 80";

#[test]
fn two_containers_with_the_same_addresses_see_only_their_own_server() {
    let cluster = Cluster::up(2);
    for name in ["red", "blue"] {
        cluster.container(name, 2, &["--subnet", "10.9.0.0/24"]);
        let page = format!("PAGE={name}");
        cluster.ok(&["run", name, "--node", "n1", "-d", "--env", &page, "--", "bash", "-c", SERVE]);
    }
    for name in ["red", "blue"] {
        let page = eventually("the server answers", Duration::from_secs(20), || {
            let done = cluster.output(&[
                "run",
                name,
                "--node",
                "n2",
                "--",
                "curl",
                "-sf",
                "--max-time",
                "2",
                "http://10.9.0.1/",
            ]);
            done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
        });
        assert_eq!(page, format!("{name}\n"));
    }
}

#[test]
fn root_of_a_container_cannot_see_or_signal_its_own_servers() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let fs = cluster.server_pid("shop", "n1", "fs").expect("fs runs");
    let seen = cluster.sh("shop", "n1", "ls /proc | grep -E '^[0-9]+$' | sort -n");
    assert!(!seen.lines().any(|line| line == fs.to_string()), "{seen}");
    assert!(
        seen.lines().filter_map(|line| line.parse::<u32>().ok()).all(|pid| pid == 1 || pid / 65_536 == 1),
        "{seen}"
    );
    let (_, message) = cluster.fails(&["run", "shop", "--", "kill", "-9", &fs.to_string()]);
    assert!(message.contains("No such process"), "{message}");
    assert_eq!(cluster.server_pid("shop", "n1", "fs"), Some(fs), "the server was restarted");
}

#[test]
fn host_files_outside_the_system_directories_are_not_there() {
    let cluster = Cluster::up(1);
    cluster.container("shop", 1, &[]);
    let state = cluster.state_dir().display().to_string();
    let (code, _) = cluster.fails(&["run", "shop", "--", "ls", &state]);
    assert_ne!(code, 0);
    let (code, message) = cluster.fails(&["run", "shop", "--", "touch", "/usr/bin/evil"]);
    assert_ne!(code, 0);
    assert!(message.contains("Read-only") || message.contains("Permission denied"), "{message}");
}
