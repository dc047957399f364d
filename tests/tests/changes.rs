//! Containers that become other while they run.

use std::time::Duration;

use end_to_end::outside::SERVER;
use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);

/// How many children can be had at a time, of those asked for.
const CHILDREN: &str = "import os, sys, time
children = 0
try:
    for _ in range(int(sys.argv[1])):
        if not os.fork(): time.sleep(100)
        children += 1
except OSError: pass
import subprocess, signal
print(children, flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, signal.SIGTERM)";

fn children(cluster: &Cluster, node: &str, wanted: u32) -> u32 {
    let wanted = wanted.to_string();
    let words = ["run", "shop", "-n", node, "--", "setsid", "-w", "python3", "-c", CHILDREN, &wanted];
    cluster.ok(&words).trim().parse().expect("a number")
}

fn generation(cluster: &Cluster) -> u64 {
    cluster.json(&["dc", "inspect", "shop", "-o", "json"])["generation"].as_u64().expect("a number")
}

#[test]
fn limits_hold_at_once_and_one_that_a_node_cannot_have_changes_nothing() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--memory", "512M"]);
    let hold = "x = b'x' * (100 << 20); print('held', flush=True); import time; time.sleep(1000)";
    let holder = cluster.ok(&["run", "-d", "shop", "-n", "n2", "--", "python3", "-c", hold]);
    eventually("it holds its memory", SOON, || {
        cluster.ok(&["logs", "shop", holder.trim()]).contains("held").then_some(())
    });

    assert_eq!([children(&cluster, "n1", 60), children(&cluster, "n2", 60)], [60, 60]);
    cluster.ok(&["dc", "set", "shop", "--pids", "40"]);
    for node in ["n1", "n2"] {
        let had = children(&cluster, node, 60);
        assert!((20..40).contains(&had), "{node}: {had}");
    }
    let before = generation(&cluster);
    cluster.ok(&["dc", "set", "shop", "--pids", "40"]);
    assert_eq!(generation(&cluster), before, "what makes no difference is no change");
    cluster.ok(&["dc", "set", "shop", "--pids", "default", "--cpu-list", "1"]);
    assert_eq!(children(&cluster, "n1", 60), 60);
    // Of what runs already, and of servers.
    let allowed = |pid: u32| {
        let look = format!("/proc/{pid}/status");
        let status = cluster.ok(&["dev", "exec", "n1", "--", "cat", &look]);
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t").map(str::to_owned));
        line.expect("its CPUs")
    };
    let server = |name| cluster.server_pid("shop", "n1", name).expect("it runs");
    assert_eq!(["fs", "gate", "disk-root"].map(|name| allowed(server(name))), ["1"; 3]);
    assert_eq!(cluster.sh("shop", "n1", "nproc"), "1\n");

    // One node of both holds more than that: neither has less.
    let (status, said) = cluster.fails(&["dc", "set", "shop", "--memory", "64M", "--cpu-list", "default"]);
    assert!(status == 1 && said.contains("node n2") && said.contains("more memory than 64 MiB"), "{said}");
    let spec = &cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    assert_eq!((&spec["spec"]["limits"]["memory_bytes"], &spec["phase"]), (&(512 << 20).into(), &"running".into()));
    assert_eq!(cluster.sh("shop", "n1", "nproc"), "1\n");
    let greedy = "x = b'x' * (80 << 20); print('fits')";
    assert_eq!(cluster.ok(&["run", "shop", "-n", "n1", "--", "python3", "-c", greedy]), "fits\n");
    // What its nodes promised is as it was, too.
    let promised = || cluster.json(&["node", "inspect", "n1", "-o", "json"])["promised"]["memory_bytes"].clone();
    assert_eq!(promised(), 512 << 20);
    cluster.ok(&["dc", "set", "shop", "--memory", "256M"]);
    assert_eq!(promised(), 256 << 20);
    let (status, said) = cluster.fails(&["dc", "set", "shop", "--memory", "1000G"]);
    assert!(status == 1 && said.contains("cannot promise the memory"), "{said}");
    for bad in [["--memory", "1K"], ["--cpus", "-1"], ["--cpu-list", "77"], ["--open-files", "3"]] {
        let (status, said) = cluster.fails(&[&["dc", "set", "shop"][..], &bad[..]].concat());
        assert!(status != 0 && said.contains("try:"), "{said}");
    }
    assert_eq!(promised(), 256 << 20);
    let left = cluster.ok(&["ps", "shop", "-o", "name"]);
    assert!(left.contains(holder.trim()), "it goes on: {left}");
}

#[test]
fn variables_are_those_of_what_starts_from_now_on() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--env", "COLOUR=red", "--env", "SHAPE=round"]);
    let look = |node| cluster.sh("shop", node, "echo $COLOUR $SHAPE $SIZE");
    assert_eq!(look("n2"), "red round\n");
    let tell =
        "import os, time\nwhile 1: print(os.environ.get('COLOUR'), os.environ['SIZE'], flush=True); time.sleep(0.1)";
    cluster.ok(&["service", "add", "shop", "teller", "--env", "SIZE=9", "--", "python3", "-c", tell]);
    let told = |what: &str| {
        eventually("the service says so", SOON, || {
            let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
            let pid = services[0]["instances"][0]["pid"].as_u64()?;
            let said = cluster.output(&["logs", "shop", &pid.to_string(), "--tail", "1"]);
            (said.status.success() && said.stdout == format!("{what}\n").as_bytes()).then_some(())
        });
    };
    told("red 9");

    cluster.ok(&["dc", "set", "shop", "--env", "COLOUR=blue", "--env", "SIZE=1", "--unset", "SHAPE"]);
    assert_eq!([look("n1"), look("n2")], ["blue 1\n"; 2]);
    let own = cluster.ok(&["run", "shop", "--env", "COLOUR=green", "--", "sh", "-c", "echo $COLOUR"]);
    assert_eq!(own, "green\n");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a path of text");
    std::fs::write(path, "# of one program\nSIZE=7\nCOLOUR=a b\n").expect("written");
    let from_file = ["run", "shop", "--env-file", path, "--env", "SIZE=8", "--", "sh", "-c", "echo $COLOUR $SIZE"];
    assert_eq!(cluster.ok(&from_file), "a b 8\n");
    std::fs::write(path, "SIZE=7\n=8\n").expect("written");
    let (status, said) = cluster.fails(&from_file);
    assert!(status == 125 && said.contains("line 2") && said.contains("needs a name"), "{said}");
    told("red 9");
    cluster.ok(&["service", "restart", "shop", "teller"]);
    told("blue 9");
    for bad in [["--env", "=1"], ["--unset", "A=B"]] {
        let (status, said) = cluster.fails(&["dc", "set", "shop", bad[0], bad[1]]);
        assert!(status != 0 && said.contains("try:"), "{said}");
    }
    assert_eq!(look("n1"), "blue 1\n");
    // A daemon that begins anew knows them as well.
    cluster.ok(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
    cluster.ok(&["dev", "restart", "n1"]);
    assert_eq!(look("n1"), "blue 1\n");
}

#[test]
fn container_that_is_paused_stands_still_on_all_nodes_and_goes_on_where_it_stood() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let count = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done";
    let begin = |node| cluster.ok(&["run", "-d", "shop", "-n", node, "--", "sh", "-c", count]).trim().to_owned();
    let counters = ["n1", "n2"].map(begin);
    let reached = || {
        counters.each_ref().map(|pid| {
            let said = cluster.ok(&["logs", "shop", pid, "--tail", "1"]);
            said.trim().parse::<u64>().unwrap_or(0)
        })
    };
    let go_on = || {
        let before = reached();
        eventually("both count", SOON, || {
            reached().iter().zip(before).all(|(now, before)| *now > before).then_some(())
        });
    };
    let web = ["service", "add", "shop", "web", "--health-command", "true", "--health-interval", "1"];
    cluster.ok(&[&web[..], &["--", "sleep", "1000"]].concat());
    let service = || {
        let services = cluster.json(&["service", "ls", "shop", "-o", "json"]);
        let web = &services[0]["instances"][0];
        (web["state"] == "healthy").then(|| web["pid"].clone())
    };
    let served_by = eventually("the service is healthy", SOON, service);
    go_on();

    cluster.ok(&["pause", "shop"]);
    cluster.ok(&["pause", "shop"]);
    assert!(cluster.ok(&["dc", "ls"]).contains("paused"));
    let stand = || {
        let before = reached();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(reached(), before, "they stand still");
    };
    stand();
    for refused in
        [&["run", "shop", "--", "true"][..], &["service", "restart", "shop", "web"], &["exec", "shop", "true"]]
    {
        let (status, said) = cluster.fails(refused);
        assert!(status != 0 && said.contains("is paused") && said.contains("try: dvs unpause shop"), "{said}");
    }
    // A daemon that begins anew leaves it so.
    cluster.ok(&["dev", "exec", "n2", "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
    cluster.ok(&["dev", "restart", "n2"]);
    stand();
    // Longer than the service's health may be missed.
    std::thread::sleep(Duration::from_secs(5));
    cluster.ok(&["unpause", "shop"]);
    go_on();
    assert_eq!(eventually("the service is healthy", SOON, service), served_by);
    cluster.ok(&["run", "shop", "-n", "n2", "--", "true"]);

    // What stands still is ended like the rest.
    cluster.ok(&["pause", "shop"]);
    cluster.ok(&["stop", "-t", "1", "shop"]);
    let (status, said) = cluster.fails(&["pause", "shop"]);
    assert!(status == 1 && said.contains("try: dvs start shop"), "{said}");
    cluster.ok(&["start", "shop"]);
    cluster.ok(&["run", "shop", "-n", "n2", "--", "true"]);
    cluster.ok(&["pause", "shop"]);
    cluster.ok(&["rm", "-f", "shop"]);
    // A cluster goes away with what stands still in it.
    cluster.container("shop", 1, &[]);
    cluster.ok(&["run", "-d", "shop", "--", "sleep", "1000"]);
    cluster.ok(&["pause", "shop"]);
}

#[test]
fn port_that_goes_while_its_daemon_is_away_is_closed_when_that_is_back() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["-p", "18080:80"]);
    cluster.ok(&["run", "-d", "shop", "-n", "n1", "--", "python3", "-c", SERVER, "80"]);
    let gates = |node: &str| {
        let found = cluster.output(&["dev", "exec", node, "--", "pgrep", "-f", "^dvs gate ports"]);
        found.status.success()
    };
    eventually("both have a gate", SOON, || (gates("n1") && gates("n2")).then_some(()));
    cluster.lose_daemon("n1", "n2");
    cluster.ok(&["--at", "n2", "port", "rm", "shop", "18080"]);
    assert!(gates("n1"));
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("no gate is left", SOON, || (!gates("n1") && !gates("n2")).then_some(()));
}

#[test]
fn stopped_container_gets_another_name_and_keeps_all_that_it_has() {
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--fs-node", "n1", "--disk-node", "n1", "-p", "18453:8080"]);
    cluster.container("other", 1, &[]);
    cluster.sh("shop", "n2", "echo kept > /dc/file; sync");
    cluster.ok(&["ds", "put", "shop", "key", "value"]);
    cluster.ok(&["service", "add", "shop", "clock", "--", "sh", "-c", "echo $DVS_DC >> /dc/names; exec sleep 1000"]);
    eventually("the service has run", SOON, || {
        (cluster.sh("shop", "n2", "cat /dc/names || true") == "shop\n").then_some(())
    });
    let id = cluster.json(&["dc", "inspect", "shop", "-o", "json"])["id"].clone();

    let (status, said) = cluster.fails(&["rename", "shop", "store"]);
    assert!(status == 1 && said.contains("not stopped") && said.contains("dvs stop shop"), "{said}");
    cluster.ok(&["stop", "shop"]);
    let (status, said) = cluster.fails(&["rename", "shop", "other"]);
    assert!(status == 1 && said.contains("there is a container 'other' already"), "{said}");
    cluster.ok(&["rename", "shop", "store"]);
    let (_, said) = cluster.fails(&["dc", "inspect", "shop"]);
    assert!(said.contains("there is no container 'shop'"), "{said}");
    // What a daemon remembers of it has the earlier name.
    cluster.ok(&["dev", "kill", "n2"]);
    cluster.ok(&["dev", "restart", "n2"]);
    let renamed = cluster.json(&["dc", "inspect", "store", "-o", "json"]);
    assert_eq!((&renamed["id"], &renamed["phase"]), (&id, &"stopped".into()), "{renamed}");
    // The name is anybody's.
    cluster.container("shop", 1, &[]);
    assert_eq!(cluster.sh("shop", "n1", "ls /dc"), "");
    cluster.ok(&["start", "store"]);
    assert_eq!(cluster.sh("store", "n2", "cat /dc/file; echo $DVS_DC"), "kept\nstore\n");
    assert_eq!(cluster.ok(&["ds", "get", "store", "key"]).trim(), "value");
    eventually("its service goes on", SOON, || {
        (cluster.sh("store", "n2", "cat /dc/names || true") == "shop\nstore\n").then_some(())
    });
    assert!(cluster.ok(&["port", "ls", "store"]).contains("18453"));
    cluster.ok(&["rm", "--force", "shop"]);
    assert_eq!(cluster.sh("store", "n1", "cat /dc/file"), "kept\n");
    cluster.ok(&["rm", "--force", "store"]);
    let left = std::fs::read_dir(cluster.path_of("n1", "state_dir").join("dcs")).expect("containers").flatten().count();
    assert_eq!(left, 1, "the other one's");
}
