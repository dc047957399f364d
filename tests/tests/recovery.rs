//! The cluster's engine is lost, moved, or locked by certificates that expired: it is begun anew, and containers go on.

use std::time::{Duration, Instant};

use end_to_end::clock::{CLOCK, LONGEST_GAP, ticks};
use end_to_end::machines::Machines;
use end_to_end::{eventually, has_etcd};

const SOON: Duration = Duration::from_secs(60);

fn demand_that_the_clock_went_on(machines: &Machines, node: &str) {
    let (lines, gap) = ticks(&machines.ok(node, &["run", "shop", "--node", node, "--", "sh", "-c", LONGEST_GAP]));
    assert!(lines > 20 && gap < 3000, "{lines} lines, {gap} ms");
}

fn stop_daemon(machines: &Machines, node: &str) {
    let pid = machines.daemon_pid(node).expect("it runs");
    machines.sh(node, &format!("kill {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"));
}

fn await_ready(machines: &Machines, at: &str, nodes: &[&str]) {
    let until = Instant::now() + SOON;
    let listed = || -> Option<serde_json::Value> {
        serde_json::from_slice(&machines.dvs(at, &["node", "ls", "-o", "json"]).stdout).ok()
    };
    let is_ready = |listed: &serde_json::Value, node: &str| {
        listed.as_array().is_some_and(|all| all.iter().any(|one| one["name"] == *node && one["state"] == "ready"))
    };
    while !listed().is_some_and(|listed| nodes.iter().all(|node| is_ready(&listed, node))) {
        let logs = || nodes.iter().map(|node| machines.log(node)).collect::<String>();
        assert!(Instant::now() < until, "not all of {nodes:?} are ready: {:?}{}", listed(), logs());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn engine_whose_data_are_all_lost_is_begun_anew_of_a_backup_under_running_containers() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined(3, &[]);
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2,n3", "--start"]);
    machines.ok("n2", &["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", CLOCK]);
    machines.ok("n3", &["cluster", "backup", "/var/lib/dvs/home.backup"]);
    assert_eq!(machines.sh("n3", "stat -c %a /var/lib/dvs/home.backup").trim(), "600");
    let refused = machines.fails("n3", &["cluster", "backup", "/var/lib/dvs/home.backup"]);
    assert!(refused.contains("--force"), "{refused}");
    let piped = machines.ok("n2", &["cluster", "backup", "-"]);
    assert!(piped.starts_with("{\"dvs_backup\":1") && piped.contains("/authority"), "{piped}");
    // What the copy does not know.
    machines.ok("n1", &["dc", "create", "later", "--nodes", "n2", "--start"]);
    machines.ok("n1", &["run", "later", "--", "sh", "-c", "echo precious > /dc/file"]);
    let token = machines.token(&[]);

    for node in ["n1", "n2", "n3"] {
        let member = machines.member_pid(node).expect("each runs a member");
        machines.sh(node, &format!("mv /var/lib/dvs/etcd/data /var/lib/dvs/etcd/broken; kill -9 {member}"));
    }
    let refused = machines.fails("n3", &["cluster", "restore", "/var/lib/dvs/home.backup"]);
    assert!(refused.contains("daemon runs") && refused.contains("systemctl stop"), "{refused}");
    stop_daemon(&machines, "n3");
    machines.sh("n3", "head -c 2000 /var/lib/dvs/home.backup > /tmp/cut.backup");
    let refused = machines.fails("n3", &["cluster", "restore", "/tmp/cut.backup"]);
    assert!(refused.contains("too early"), "{refused}");
    machines.ok("n3", &["cluster", "restore", "/var/lib/dvs/home.backup"]);
    assert_eq!(machines.member_pid("n3"), None, "nothing goes on that nobody looks after");
    machines.start_daemon("n3");
    // The others find it by themselves: their daemons were there all the time.
    await_ready(&machines, "n3", &["n1", "n2", "n3"]);
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    demand_that_the_clock_went_on(&machines, "n2");
    let listed = machines.ok("n1", &["dc", "ls"]);
    assert!(listed.contains("shop") && !listed.contains("later"), "{listed}");
    eventually("what came after the copy is put aside", SOON, || {
        machines.run("n2", &["sh", "-c", "ls -d /var/lib/dvs/kept/later-*"]).status.success().then_some(())
    });
    let again = machines.ok("n2", &["node", "token", "ls"]);
    assert!(!again.contains(token.split('.').next().expect("a number")), "{again}");
    machines.ok("n1", &["dc", "create", "next", "--nodes", "n1,n2,n3", "--start"]);
    machines.ok("n1", &["run", "next", "--node", "n3", "--", "true"]);

    // An engine from before is no more the cluster's: its daemon does not take it.
    stop_daemon(&machines, "n1");
    let member = machines.member_pid("n1").expect("it runs one");
    machines.sh(
        "n1",
        &format!(
            "kill -9 {member}; sed -i 's/\"generation\":[0-9]*/\"generation\":9999999999/' /var/lib/dvs/identity.json"
        ),
    );
    let said = machines.sh(
        "n1",
        &format!("timeout 20 {} daemon --config /etc/dvs/dvsd.toml 2>&1 || true", end_to_end::dvs_binary().display()),
    );
    assert!(said.contains("begun anew since") && said.contains("--again"), "{said}");
}

#[test]
fn engine_that_lost_its_majority_is_recovered_of_the_member_that_is_left() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined(3, &[]);
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1", "--start"]);
    machines.ok("n1", &["run", "-d", "shop", "--", "sh", "-c", CLOCK]);
    for node in ["n2", "n3"] {
        machines.dev(&["kill", node]);
    }
    eventually("changes are refused", SOON, || {
        (!machines.dvs("n1", &["dc", "create", "more", "--nodes", "n1"]).status.success()).then_some(())
    });
    stop_daemon(&machines, "n1");
    machines.ok("n1", &["cluster", "recover"]);
    assert_eq!(machines.sh("n1", "stat -c %a /var/lib/dvs/recovered-*.backup").trim(), "600");
    assert!(machines.sh("n1", "ls -d /var/lib/dvs/etcd/data.*").contains("data."), "its data are put aside");
    machines.sh("n1", "! test -e /var/lib/dvs/salvage");
    machines.start_daemon("n1");
    machines.ok("n1", &["dc", "create", "more", "--nodes", "n1", "--start"]);
    demand_that_the_clock_went_on(&machines, "n1");
    for node in ["n2", "n3"] {
        eventually("what is left of it goes", SOON, || {
            machines.dvs("n1", &["node", "remove", node, "--lost"]).status.success().then_some(())
        });
    }
    // Once more: the data of before the first time go when the member serves again, those of before the second stay.
    let put_aside = || {
        machines
            .sh("n1", "find /var/lib/dvs/etcd -maxdepth 1 -name 'data.*'")
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let first = put_aside();
    stop_daemon(&machines, "n1");
    machines.ok("n1", &["cluster", "recover"]);
    assert_eq!((first.len(), put_aside().len()), (1, 2));
    machines.start_daemon("n1");
    eventually("only the newest stay", SOON, || (put_aside().len() == 1 && put_aside() != first).then_some(()));
    machines.ok("n1", &["dc", "create", "again", "--nodes", "n1"]);
    // A node that was away while that was done does not come back with what it had.
    machines.dev(&["restart", "n2"]);
    let at = machines.token(&[]);
    machines.ok("n2", &["node", "join", &at, "--again"]);
    machines.start_daemon("n2");
    await_ready(&machines, "n1", &["n1", "n2"]);
}

#[test]
fn one_machine_without_etcd_becomes_a_cluster_of_two_under_a_running_container() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::up(2);
    machines.ok("n1", &["cluster", "init", "home", "--engine", "local"]);
    machines.start_daemon("n1");
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1", "--start"]);
    machines.ok("n1", &["run", "-d", "shop", "--", "sh", "-c", CLOCK]);
    let refused = machines.fails("n1", &["node", "token"]);
    assert!(refused.contains("one machine") && refused.contains("move-engine"), "{refused}");
    let refused = machines.fails("n1", &["cluster", "move-engine"]);
    assert!(refused.contains("daemon runs"), "{refused}");
    stop_daemon(&machines, "n1");
    machines.ok("n1", &["cluster", "move-engine"]);
    machines.start_daemon("n1");
    machines.join("n2");
    await_ready(&machines, "n2", &["n1", "n2"]);
    demand_that_the_clock_went_on(&machines, "n1");
    assert!(machines.ok("n2", &["dc", "ls"]).contains("shop"));
    stop_daemon(&machines, "n1");
    let refused = machines.fails("n1", &["cluster", "move-engine"]);
    assert!(refused.contains("etcd already"), "{refused}");
    machines.start_daemon("n1");
}

#[test]
fn cluster_all_of_whose_certificates_have_expired_is_opened_again() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined(2, &["--certificate-lifetime", "15s"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    machines.ok("n2", &["run", "shop", "--node", "n2", "--", "sh", "-c", "echo kept > /dc/file"]);
    for node in ["n1", "n2"] {
        stop_daemon(&machines, node);
    }
    let expires = "while openssl x509 -checkend 0 -noout -in /var/lib/dvs/tls/node.crt; do sleep 0.5; done";
    for node in ["n1", "n2"] {
        machines.sh(node, expires);
    }
    let said = machines.sh(
        "n1",
        &format!("timeout 10 {} daemon --config /etc/dvs/dvsd.toml 2>&1 || true", end_to_end::dvs_binary().display()),
    );
    assert!(said.contains("expired") && said.contains("dvs cluster recover"), "{said}");
    let told = machines.dvs("n1", &["cluster", "recover"]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("new certificate"), "{told}");
    machines.start_daemon("n1");
    // The other one comes with a token for its name.
    let refused = machines.fails("n2", &["node", "join", &machines.token(&[]), "--again"]);
    assert!(refused.contains("expired") && refused.contains("--node n2"), "{refused}");
    machines.ok("n2", &["node", "join", &machines.token(&["--node", "n2"]), "--again"]);
    machines.start_daemon("n2");
    await_ready(&machines, "n1", &["n1", "n2"]);
    let said = machines.ok("n2", &["run", "shop", "--node", "n2", "--", "cat", "/dc/file"]);
    assert_eq!(said.trim(), "kept");
}
