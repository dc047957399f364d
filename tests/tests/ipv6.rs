//! IPv6 inside of a container, beside IPv4: its nodes meet by it, are found by names and through published ports, and
//! nobody speaks for others.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(45);
const BY_HAND: &str = include_str!("../src/ipv6.py");

fn has_ipv6() -> bool {
    let has = std::path::Path::new("/proc/sys/net/ipv6").exists();
    if !has {
        eprintln!("SKIPPED: this kernel has no IPv6");
    }
    has
}

fn words<'a>(node: &'a str, does: &[&'a str]) -> Vec<&'a str> {
    [&["shop", "--node", node, "--", "python3", "-c", BY_HAND], does].concat()
}

/// In the container.
fn inside(cluster: &Cluster, node: &str, does: &[&str]) -> String {
    cluster.ok(&[&["run"], &words(node, does)[..]].concat())
}

fn try_inside(cluster: &Cluster, node: &str, does: &[&str]) -> Option<String> {
    let done = cluster.output(&[&["run"], &words(node, does)[..]].concat());
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// One that goes on; gives its PID.
fn serve(cluster: &Cluster, node: &str, port: &str, kind: &str) -> String {
    let pid = cluster.ok(&[&["run", "-d"], &words(node, &["serve", port, kind])[..]].concat()).trim().to_owned();
    eventually("it serves", SOON, || cluster.ok(&["logs", "shop", &pid]).contains("serves").then_some(()));
    pid
}

/// On the machine of a node.
fn on_machine(cluster: &Cluster, node: &str, command: &[&str]) -> String {
    cluster.ok(&[&["dev", "exec", node, "--"], command].concat())
}

fn address(cluster: &Cluster, node: &str) -> Option<String> {
    let dc = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let shares = dc["shares"].as_array().expect("shares").clone();
    let share = shares.into_iter().find(|share| share["node"] == node).expect("a share");
    share["address_ipv6"].as_str().map(str::to_owned)
}

#[test]
fn programs_of_nodes_meet_by_ipv6_and_find_each_other_by_name() {
    if !has_ipv6() {
        return;
    }
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let dc = cluster.json(&["dc", "inspect", "shop", "-o", "json"]);
    let number = dc["id"].as_u64().expect("a number");
    let [first, second] = [1, 2].map(|last| format!("fd64:7673:0:{number:x}::{last}"));
    assert_eq!((address(&cluster, "n1"), address(&cluster, "n2")), (Some(first.clone()), Some(second.clone())));
    assert!(cluster.ok(&["dc", "inspect", "shop"]).contains(&second), "people see it, too");

    serve(&cluster, "n2", "8080", "only");
    for name in ["n2", "n2.shop.dvs", &second] {
        let said = inside(&cluster, "n1", &["ask", name, "8080"]);
        assert_eq!(said.trim(), format!("n2 {second} n2 {second}"), "{name}");
    }
    assert_eq!(inside(&cluster, "n1", &["echo", "n2"]).trim(), format!("echo {second}"));
    assert_eq!(inside(&cluster, "n1", &["echo", "n1"]).trim(), format!("echo {first}"));
    // A service by its name, at whichever family it listens, and its health.
    let web = ["service", "add", "--node", "n2", "--health-tcp", "8081", "shop", "web", "--"];
    cluster.ok(&[&web[..], &["python3", "-c", BY_HAND, "serve", "8081", "only"]].concat());
    let said = eventually("the service answers", SOON, || try_inside(&cluster, "n1", &["ask", "web", "8081"]));
    assert_eq!(said, format!("n2 {second} n2 {second}"));
    let listed = cluster.ok(&["service", "ls", "shop"]);
    assert!(listed.contains("web") && !listed.contains("unwell"), "{listed}");
    // A library that prefers one family finds the other, too.
    serve(&cluster, "n2", "8082", "four");
    let any = "import socket, sys; print(socket.create_connection(('n2', 8082), 10).recv(9).decode())";
    assert_eq!(cluster.ok(&["run", "shop", "--node", "n1", "--", "python3", "-c", any]).trim(), "n2");

    // What is outside is said not to be there at once.
    for far in ["2001:db8::1", "fd64:7673:0:ffff::1"] {
        assert_eq!(inside(&cluster, "n1", &["meet", far, "80"]).trim(), "ENETUNREACH at once", "{far}");
    }
}

#[test]
fn published_ports_lead_to_listeners_of_either_family() {
    const ASK: &str = "import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
by_stream = c.recv(9).decode()
d = socket.socket(c.family, socket.SOCK_DGRAM); d.settimeout(5)
d.sendto(b'?', c.getpeername())
print(by_stream, d.recv(9).decode())";
    if !has_ipv6() {
        return;
    }
    let cluster = Cluster::up(2);
    let published: Vec<String> = ["9001:8001", "9002:8002", "9003:8003"]
        .iter()
        .flat_map(|port| [(*port).to_owned(), format!("{port}/udp")])
        .collect();
    let options: Vec<&str> = published.iter().flat_map(|port| ["-p", port]).collect();
    cluster.container("shop", 2, &options);
    for (port, kind) in [("8001", "only"), ("8002", "both"), ("8003", "four")] {
        serve(&cluster, "n2", port, kind);
    }
    for port in ["9001", "9002", "9003"] {
        for (node, at) in [("n1", "127.0.0.1"), ("n1", "::1"), ("n2", "127.0.0.1")] {
            let said = eventually("it is reached", SOON, || {
                let done = cluster.output(&["dev", "exec", node, "--", "python3", "-c", ASK, at, port]);
                done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
            });
            assert_eq!(said, "n2 n2", "{port} at {at} of {node}");
        }
    }
}

struct Hears(Child);

impl Hears {
    fn begin(cluster: &Cluster, before: &[&str]) -> Hears {
        let mut command = cluster.command_without_limit(&[before, &["python3", "-c", BY_HAND, "hear", "30"]].concat());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let mut line = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut line).expect("it hears");
        assert_eq!(&line, b"hears\n");
        Hears(child)
    }

    /// All that came until `last` did.
    fn all(mut self) -> Vec<String> {
        let lines = BufReader::new(self.0.stdout.take().expect("a pipe")).lines();
        let all = lines.map(|line| line.expect("text")).collect();
        self.0.wait().expect("it ends");
        all
    }
}

#[test]
fn root_inside_speaks_for_nobody_else_and_not_to_the_node() {
    if !has_ipv6() {
        return;
    }
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let [own, peer] = ["n1", "n2"].map(|node| address(&cluster, node).expect("an address"));
    let number = cluster.json(&["dc", "inspect", "shop", "-o", "json"])["id"].as_u64().expect("a number");
    let mac = |node: &str| cluster.sh("shop", node, "cat /sys/class/net/eth0/address").trim().to_owned();
    // The node's machine would hear what comes to its bridge.
    let bridge = format!("dvsb{number}");
    let allow = format!("echo 0 > /proc/sys/net/ipv6/conf/{bridge}/disable_ipv6");
    on_machine(&cluster, "n1", &["sh", "-ec", &allow]);
    let of_node = ["fe80::1".to_owned(), own.replace("::1", "::77"), "2001:db8:7::1".to_owned()];
    for address in &of_node {
        on_machine(&cluster, "n1", &["ip", "addr", "add", &format!("{address}/64"), "dev", &bridge, "nodad"]);
    }
    let machine = Hears::begin(&cluster, &["dev", "exec", "n1", "--"]);
    let member = Hears::begin(&cluster, &["run", "shop", "--node", "n2", "--"]);

    let (own_mac, peer_mac, other) = (mac("n1"), mac("n2"), peer.replace("::2", "::9"));
    let mut attack = vec!["attack", &own, &peer, &other, &own_mac, &peer_mac];
    attack.extend(of_node.iter().map(String::as_str));
    assert_eq!(inside(&cluster, "n1", &attack).trim(), "done");
    assert_eq!(member.all(), [format!("datagram last {own}")]);
    // To the machine's own ears, so that it need not be waited for.
    let last = "import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b'last', ('::1', 4000))";
    on_machine(&cluster, "n1", &["python3", "-c", last]);
    assert_eq!(machine.all(), ["datagram last ::1"]);

    // Neighbours and routes are what they were.
    let routes = cluster.sh("shop", "n2", "cat /proc/net/ipv6_route /proc/net/if_inet6");
    assert!(!routes.contains("20010db8") && !routes.contains("fe80000000000000"), "{routes}");
    serve(&cluster, "n2", "8080", "only");
    assert_eq!(inside(&cluster, "n1", &["ask", "n2", "8080"]).trim(), format!("n2 {peer} n2 {peer}"));
}

#[test]
fn node_on_which_ipv6_is_switched_off_has_ipv4_alone_and_says_so() {
    if !has_ipv6() {
        return;
    }
    let cluster = Cluster::up(2);
    let switch = |value: &str| {
        let line = format!("echo {value} > /proc/sys/net/ipv6/conf/all/disable_ipv6");
        on_machine(&cluster, "n2", &["sh", "-ec", &line]);
    };
    switch("1");
    cluster.container("shop", 2, &[]);
    eventually("it has none", SOON, || address(&cluster, "n2").is_none().then_some(()));
    let own = address(&cluster, "n1").expect("the other one has");
    let hosts = |node: &str| cluster.sh("shop", node, "cat /etc/hosts");
    eventually("names say so", SOON, || {
        let (first, second) = (hosts("n1"), hosts("n2"));
        let is_so = first.contains(&own) && first.matches("fd64").count() == 1 && !second.contains("fd64");
        is_so.then_some(())
    });
    serve(&cluster, "n2", "8080", "four");
    let any = "import socket, sys; print(socket.create_connection(('n2', 8080), 10).recv(9).decode())";
    assert_eq!(cluster.ok(&["run", "shop", "--node", "n1", "--", "python3", "-c", any]).trim(), "n2");
    assert_eq!(inside(&cluster, "n2", &["meet", &own, "80"]).trim(), "ENETUNREACH at once");

    // It comes while the container runs.
    switch("0");
    let second = eventually("it has one", SOON, || address(&cluster, "n2"));
    eventually("names say so", SOON, || hosts("n1").contains(&second).then_some(()));
    serve(&cluster, "n2", "8081", "only");
    assert_eq!(inside(&cluster, "n1", &["ask", "n2", "8081"]).trim(), format!("n2 {second} n2 {second}"));
}
