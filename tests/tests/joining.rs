//! Machines become a cluster by commands, and stay one: they join with a token, go, are lost, and renew their
//! certificates.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use end_to_end::clock::{self, CLOCK, LONGEST_GAP};
use end_to_end::machines::Machines;
use end_to_end::{eventually, has_etcd};

const SOON: Duration = Duration::from_secs(60);

/// Where what a machine becomes is easily taken away again.
const ELSEWHERE: [&str; 6] =
    ["--config", "/var/lib/dvs/x/dvsd.toml", "--data", "/var/lib/dvs/x/state", "--run", "/var/lib/dvs/x/run"];

fn ticks(machines: &Machines, node: &str, dc: &str) -> (u64, u64) {
    clock::ticks(&machines.ok(node, &["run", dc, "--node", node, "--", "sh", "-c", LONGEST_GAP]))
}

/// State of a node as another one lists it; empty when it does not.
fn state_of(machines: &Machines, at: &str, node: &str) -> String {
    let nodes = machines.json(at, &["node", "ls"]);
    let found = nodes.as_array().expect("a list").iter().find(|one| one["name"] == node);
    found.map(|one| one["state"].as_str().expect("a state").to_owned()).unwrap_or_default()
}

#[test]
fn three_machines_become_a_cluster_whose_engine_survives_each_of_them() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined(3, &[]);
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2,n3", "--start"]);
    machines.ok("n2", &["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", CLOCK]);
    for node in ["n1", "n2", "n3"] {
        let killed = machines.member_pid(node).expect("each runs a member");
        machines.sh(node, &format!("kill -9 {killed}"));
        machines.ok(node, &["dc", "create", &format!("of-{node}"), "--nodes", node]);
        eventually("the member is started again", SOON, || machines.member_pid(node).filter(|pid| *pid != killed));
    }
    let (daemon, member) = (machines.daemon_pid("n1").expect("it runs"), machines.member_pid("n1"));
    machines.sh("n1", &format!("kill -9 {daemon}"));
    machines.start_daemon("n1");
    assert_eq!(machines.member_pid("n1"), member, "the next daemon takes the member over");
    let (lines, gap) = ticks(&machines, "n2", "shop");
    assert!(lines > 10 && gap < 3000, "{lines} lines, {gap} ms");

    // The first machine goes for good; nothing was only there.
    machines.ok("n2", &["dc", "delete", "--force", "of-n1"]);
    machines.ok("n2", &["dc", "delete", "--force", "shop"]);
    machines.dev(&["kill", "n1"]);
    eventually("it is seen to be down", SOON, || (state_of(&machines, "n2", "n1") == "down").then_some(()));
    let refused = machines.fails("n2", &["node", "remove", "n1"]);
    assert!(refused.contains("does not answer") && refused.contains("--lost"), "{refused}");
    machines.ok("n2", &["node", "remove", "n1", "--lost"]);
    // Etcd may stand still for ten seconds when a member is removed whose machine is off (engine.md).
    eventually("changes are possible", SOON, || {
        machines.dvs("n3", &["dc", "create", "after", "--nodes", "n2,n3"]).status.success().then_some(())
    });
    // Leases end while the engine stands still, and are taken again.
    eventually("it starts", SOON, || machines.dvs("n3", &["dc", "start", "after"]).status.success().then_some(()));
    machines.await_members(&["n2"], &["n2", "n3"]);

    // It comes back and stays out, until it joins anew.
    machines.dev(&["restart", "n1"]);
    machines.sh("n1", &format!("{} daemon --config /etc/dvs/dvsd.toml >/var/lib/dvs/late.log 2>&1 </dev/null & sleep 4; kill $! 2>/dev/null; true", end_to_end::dvs_binary().display()));
    assert_eq!(state_of(&machines, "n2", "n1"), "", "{}", machines.sh("n1", "cat /var/lib/dvs/late.log"));
    let members = machines.sh("n1", "pkill -x etcd; cat /var/lib/dvs/late.log");
    assert!(!members.contains("serving"), "{members}");
    let token = machines.ok("n3", &["node", "token", "-o", "json"]);
    let token: serde_json::Value = serde_json::from_str(&token).expect("JSON");
    let at =
        format!("{}@{}", token["token"].as_str().expect("a token"), token["address"].as_str().expect("an address"));
    let refused = machines.fails("n1", &["node", "join", &at]);
    assert!(refused.contains("node already") && refused.contains("--again"), "{refused}");
    machines.ok("n1", &["node", "join", &at, "--again"]);
    machines.start_daemon("n1");
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    eventually("they reach each other again", SOON, || (state_of(&machines, "n3", "n1") == "ready").then_some(()));
}

#[test]
fn uninvited_machine_gets_nothing_and_a_node_goes_by_its_own_will() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined_beside(1, 2, &[]);
    // Whoever shows no certificate may ask for nothing but to join.
    let asked = machines.sh(
        "n2",
        "curl -sk https://10.255.0.1:7420/v1/nodes; curl -sk -X POST -d '{}' https://10.255.0.1:7420/v1/join",
    );
    assert!(
        asked.contains("unauthenticated") && asked.contains("makes no sense") && !asked.contains("10.255.0.2"),
        "{asked}"
    );
    assert!(!machines.run("n2", &["curl", "-sk", "https://10.255.0.1:2379/version"]).status.success());

    let used = machines.token(&[]);
    let ended = machines.token(&["--ttl", "10s"]);
    let for_another = machines.token(&["--node", "n9"]);
    let wrong = {
        let (id, rest) = used.split_once('.').expect("points");
        let flipped = if rest.starts_with('0') { "1" } else { "0" };
        format!("{id}.{flipped}{}", &rest[1..])
    };
    let foreign = {
        let (head, tail) = used.rsplit_once('@').expect("an address");
        let flipped = if head.ends_with('0') { "1" } else { "0" };
        format!("{}{flipped}@{tail}", &head[..head.len() - 1])
    };
    let join = |token: &str, name: &str| {
        machines.dvs("n3", &[&["node", "join", token, "--node", name], &ELSEWHERE[..]].concat())
    };
    let words = |token: &str, name: &str| {
        let done = join(token, name);
        assert!(!done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let said = words(&wrong, "n3");
    assert!(said.contains("does not know the token"), "{said}");
    assert!(words(&foreign, "n3").contains("not of the cluster that made the token"));
    assert!(words(&for_another, "n3").contains("for a node of another name"));
    assert!(words(&used, "n2").contains("there is a node 'n2' already"));
    assert!(words(&used, "N3").contains("cannot be a node's name"));
    assert!(
        machines.run("n3", &["test", "-e", "/var/lib/dvs/x/dvsd.toml"]).status.code() == Some(1),
        "nothing half done"
    );
    let done = join(&used, "n3");
    assert!(done.status.success(), "{done:?}");
    machines.sh("n3", "rm -r /var/lib/dvs/x");
    assert!(words(&used, "n3").contains("another machine came with the token"));
    let id = ended.split('.').next().expect("points").to_owned();
    eventually("the token has ended", SOON, || {
        let tokens = machines.json("n1", &["node", "token", "ls"]);
        tokens.as_array()?.iter().all(|token| token["id"] != id.as_str()).then_some(())
    });
    assert!(words(&ended, "n4").contains("the token has ended"));
    let tokens = machines.json("n1", &["node", "token", "ls"]);
    assert!(tokens.as_array().expect("a list").iter().any(|token| token["used_by"] == "n3"), "{tokens}");

    // Nothing new comes to a node that is cordoned.
    machines.ok("n1", &["node", "label", "n2", "rack=a3"]);
    machines.ok("n1", &["node", "cordon", "n2"]);
    let refused = machines.fails("n1", &["dc", "create", "late", "--nodes", "n1,n2"]);
    assert!(refused.contains("cordoned") && refused.contains("dvs node uncordon n2"), "{refused}");
    let shown = machines.json("n1", &["node", "inspect", "n2"]);
    assert!(shown["labels"]["rack"] == "a3" && shown["cordoned"] == true, "{shown}");
    machines.ok("n1", &["node", "uncordon", "n2"]);
    machines.ok("n1", &["dc", "create", "there", "--nodes", "n1,n2", "--start"]);
    let refused = machines.fails("n1", &["node", "remove", "n2"]);
    assert!(refused.contains("containers are on it") && refused.contains("there"), "{refused}");
    assert!(machines.fails("n1", &["node", "remove", "n2", "--lost"]).contains("containers are on it"));
    machines.ok("n1", &["dc", "delete", "--force", "there"]);
    machines.ok("n1", &["node", "remove", "n2"]);
    eventually("its daemon ends by itself", SOON, || machines.daemon_pid("n2").is_none().then_some(()));
    assert!(machines.whole_log("n2").contains("taken out of the cluster"), "{}", machines.log("n2"));
    assert!(machines.fails("n1", &["node", "remove", "n1"]).contains("last node"));
}

#[test]
fn certificates_renew_themselves_and_no_link_breaks() {
    if !has_etcd() {
        return;
    }
    // Renewed when four of the twelve seconds are left.
    let machines = Machines::joined(2, &["--certificate-lifetime", "12s"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2", "--start"]);
    machines.ok("n2", &["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", CLOCK]);
    let serial = |node: &str| machines.sh(node, "openssl x509 -in /var/lib/dvs/tls/node.crt -noout -serial");
    let mut seen = [serial("n1"), serial("n2")];
    // Longer than any certificate lasts that there was at the beginning.
    for _ in 0..2 {
        for (index, node) in ["n1", "n2"].into_iter().enumerate() {
            seen[index] =
                eventually("a new certificate", SOON, || Some(serial(node)).filter(|now| *now != seen[index]));
        }
    }
    let links = machines.json("n1", &["node", "inspect", "n2"]);
    let links = links["links"].as_array().expect("links");
    assert!(links.iter().all(|link| link["state"] == "up" && link["reconnects"] == 0), "{links:?}");
    // What is new between the two is made with what is new.
    machines.ok("n1", &["run", "shop", "--node", "n2", "--", "true"]);
    machines.ok("n2", &["dc", "create", "other", "--nodes", "n1,n2", "--start"]);
    let (lines, gap) = ticks(&machines, "n2", "shop");
    assert!(lines > 10 && gap < 2000, "{lines} lines, {gap} ms");
    // Links that are made anew show the new ones.
    machines.dev(&["wire", "n2", "down"]);
    eventually("the link is given up", SOON, || (state_of(&machines, "n1", "n2") != "ready").then_some(()));
    machines.dev(&["wire", "n2", "up"]);
    eventually("it is there again", SOON, || (state_of(&machines, "n1", "n2") == "ready").then_some(()));
}

#[test]
fn authority_is_replaced_while_everything_goes_on() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined_beside(1, 3, &[]);
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    machines.ok("n1", &["dc", "create", "shop", "--nodes", "n1,n2,n3", "--start"]);
    machines.ok("n2", &["run", "-d", "shop", "--node", "n2", "--", "sh", "-c", CLOCK]);
    let old_token = machines.token(&[]);
    let serial = |node: &str| machines.sh(node, "openssl x509 -in /var/lib/dvs/tls/node.crt -noout -serial");
    let before = ["n1", "n2", "n3"].map(serial);
    let first = machines.json("n1", &["cluster", "authority"])[0]["roots"][0].clone();
    machines.ok("n1", &["cluster", "rotate-ca", "--wait", "0s"]);
    // Whoever does not know whether it began asks again, at another daemon.
    machines.ok("n2", &["cluster", "rotate-ca", "--wait", "100s"]);
    let state = machines.json("n2", &["cluster", "authority"])[0].clone();
    assert!(state["stage"] == "settled" && state["roots"].as_array().expect("roots").len() == 1, "{state}");
    assert_ne!(state["roots"][0], first);
    for (node, before) in ["n1", "n2", "n3"].into_iter().zip(before) {
        assert_ne!(serial(node), before);
        eventually("the old root is forgotten", SOON, || {
            let roots = machines.sh(node, "grep -c BEGIN /var/lib/dvs/tls/ca.crt");
            (roots.trim() == "1").then_some(())
        });
    }
    // All that is made anew is made with the new one: links, calls between daemons, members of etcd.
    machines.dev(&["wire", "n3", "down"]);
    eventually("the link is given up", SOON, || (state_of(&machines, "n1", "n3") != "ready").then_some(()));
    machines.dev(&["wire", "n3", "up"]);
    eventually("it is there again", SOON, || (state_of(&machines, "n1", "n3") == "ready").then_some(()));
    // A machine so loaded that a cut takes long has n3 judged lost before it is back; its daemon then begins anew.
    let repeat = |arguments: &[&str]| {
        eventually("n3 does it", SOON, || {
            let done = machines.dvs("n3", arguments);
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(!said.contains("certificate"), "{said}");
            (done.status.success() || said.contains("already")).then_some(())
        });
    };
    repeat(&["dc", "create", "later", "--nodes", "n1,n2,n3"]);
    repeat(&["dc", "start", "later"]);
    let member = machines.member_pid("n1").expect("it runs");
    machines.sh("n1", &format!("kill -9 {member}"));
    eventually("n1's member is back", SOON, || machines.member_pid("n1").filter(|pid| *pid != member));
    machines.ok("n1", &["dc", "create", "latest", "--nodes", "n1"]);
    let refused = machines.fails("n4", &["node", "join", &old_token]);
    assert!(refused.contains("not of the cluster that made the token"), "{refused}");
    let (lines, gap) = ticks(&machines, "n2", "shop");
    assert!(lines > 10 && gap < 3000, "{lines} lines, {gap} ms");
}

#[test]
fn address_of_another_machine_and_a_port_that_is_taken_are_refused_before_anything_is_written() {
    if !has_etcd() {
        return;
    }
    let machines = Machines::joined_beside(1, 1, &[]);
    let token = machines.token(&[]);
    // Until its input ends.
    let listen = |port: u16| {
        let script = format!(
            "import socket, sys; s = socket.create_server(('', {port})); print('ready', flush=True); sys.stdin.read()"
        );
        let mut child = machines.command("n2", &["python3", "-c", &script]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("a word");
        assert_eq!(said, "ready\n");
        child
    };
    let nothing =
        || assert_eq!(machines.sh("n2", "ls -A /var/lib/dvs /etc/dvs 2>/dev/null || true").trim(), "/var/lib/dvs:");
    for become_node in [&["cluster", "init", "home"][..], &["node", "join", &token]] {
        let refused = machines.fails("n2", &[become_node, &["--advertise", "10.255.0.1"]].concat());
        assert!(refused.contains("does not have the address 10.255.0.1"), "{refused}");
        assert!(refused.contains("10.255.0.2") && refused.contains("--listen"), "{refused}");
        nothing();
        for (port, whose) in [(7420, "the daemon"), (7421, "the daemon"), (2379, "etcd"), (2380, "etcd")] {
            let mut holder = listen(port);
            let refused = machines.fails("n2", become_node);
            drop(holder.stdin.take());
            holder.wait().expect("it ends");
            assert!(refused.contains(&format!("port {port} ")) && refused.contains(whose), "{refused}");
        }
    }
    // The token was shown to the cluster, and is this machine's until it ends.
    machines.ok("n2", &["node", "join", &token]);
    machines.start_daemon("n2");
}

/// As behind a router that translates a floating address to the machine's own, and does not send back what the machine
/// itself sends there.
const TRANSLATE: &str = "nft -f - <<END
table ip floating {
    chain in { type nat hook prerouting priority dstnat; ip daddr 10.255.1.1 dnat to 10.255.0.1; }
    chain out { type nat hook postrouting priority srcnat; oifname eth0 ip saddr 10.255.0.1 snat to 10.255.1.1; }
}
END
ip route add blackhole 10.255.1.1/32";

#[test]
fn machine_behind_a_translated_address_is_a_node_with_a_member_like_any_other() {
    let has_nft = std::process::Command::new("nft").arg("--version").output().is_ok();
    if !has_etcd() || !has_nft {
        eprintln!("SKIPPED: there is no etcd or no nft (Debian: etcd-server, nftables)");
        return;
    }
    let machines = Machines::up(3);
    machines.sh("n1", TRANSLATE);
    for node in ["n2", "n3"] {
        machines.sh(node, "ip route add 10.255.1.1/32 via 10.255.0.1");
    }
    let refused = machines.fails("n1", &["cluster", "init", "home", "--advertise", "10.255.1.1"]);
    assert!(refused.contains("--advertise 10.255.1.1 --listen ADDRESS"), "{refused}");
    machines.ok("n1", &["cluster", "init", "home", "--advertise", "10.255.1.1", "--listen", "10.255.0.1"]);
    // It asks its own member, although nobody sends it back what it sends to its address for others.
    machines.start_daemon("n1");
    assert!(machines.token(&[]).ends_with("@10.255.1.1"));
    machines.join("n2");
    machines.join("n3");
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
    machines.ok("n2", &["dc", "create", "shop", "--nodes", "n1,n2,n3", "--start"]);
    for node in ["n1", "n2", "n3"] {
        machines.ok("n1", &["run", "shop", "--node", node, "--", "sh", "-c", "hostname >> /dc/names"]);
    }
    let names = machines.ok("n3", &["run", "shop", "--node", "n1", "--", "sh", "-c", "wc -l < /dc/names"]);
    assert_eq!(names.trim(), "3");
    // The containers' own network, in both directions.
    for (from, to) in [("n1", "n2"), ("n2", "n1"), ("n1", "n3")] {
        let shares = machines.json("n2", &["dc", "inspect", "shop"]);
        let share = shares["shares"].as_array().expect("shares").iter().find(|share| share["node"] == to).cloned();
        let address = share.expect("a share")["address"].as_str().expect("an address").to_owned();
        let address = address.split('/').next().expect("an address").to_owned();
        let serve = "import socket\ns = socket.create_server(('', 7000))\nwhile True:\n  c = s.accept()[0]\n  c.sendall(b'heard')\n  c.close()";
        let server = machines.ok("n2", &["run", "-d", "shop", "--node", to, "--", "python3", "-c", serve]);
        let ask = format!("exec 3<>/dev/tcp/{address}/7000 && cat <&3");
        eventually("the other end answers", SOON, || {
            let done = machines.dvs("n2", &["run", "shop", "--node", from, "--", "timeout", "5", "bash", "-c", &ask]);
            (done.stdout == b"heard").then_some(())
        });
        machines.ok("n2", &["kill", "shop", server.trim(), "--signal", "KILL"]);
    }
    let member = machines.member_pid("n1").expect("it runs");
    machines.sh("n1", &format!("kill -9 {member}"));
    machines.ok("n1", &["dc", "create", "more", "--nodes", "n1"]);
    eventually("the member is started again", SOON, || machines.member_pid("n1").filter(|pid| *pid != member));
    machines.await_members(&["n1", "n2", "n3"], &["n1", "n2", "n3"]);
}
