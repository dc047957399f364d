//! Published ports: clients outside reach programs on whichever node of a container.

use std::time::{Duration, Instant};

use end_to_end::outside::{Outside, SERVER};
use end_to_end::{Cluster, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

/// Of a node's machine.
fn address(cluster: &Cluster, node: &str) -> String {
    let nodes = cluster.json(&["node", "ls", "-o", "json"]);
    let of = nodes.as_array().expect("a list").iter().find(|one| one["name"] == node).cloned();
    of.expect("a node")["address"].as_str().expect("an address").to_owned()
}

fn url(cluster: &Cluster, node: &str, port: u16) -> String {
    format!("http://{}:{port}/", address(cluster, node))
}

/// What a program of a node's machine says to a program that is given on the command line.
fn outside(cluster: &Cluster, node: &str, program: &str, arguments: &[&str]) -> (bool, String) {
    let words = ["dev", "exec", node, "--", "timeout", "20", "python3", "-c", program];
    let done = cluster.output(&[&words, arguments].concat());
    (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Who answers at a URL; nothing if nobody does.
fn fetched(cluster: &Cluster, from: &str, url: &str) -> Option<String> {
    const GET: &str =
        "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())";
    let (fine, said) = outside(cluster, from, GET, &[url]);
    fine.then_some(said)
}

fn ports(cluster: &Cluster) -> Value {
    cluster.json(&["port", "ls", "shop", "-o", "json"])
}

fn serve(cluster: &Cluster, node: &str, port: u16) -> String {
    let port = port.to_string();
    let pid = cluster.ok(&["run", "-d", "shop", "-n", node, "--", "python3", "-c", SERVER, &port]);
    pid.trim().to_owned()
}

#[test]
fn clients_reach_a_program_wherever_it_runs_and_lose_it_not_with_gates_or_daemons() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["-p", "8080:80"]);
    serve(&cluster, "n3", 80);
    let urls: Vec<String> = ["n1", "n2", "n3"].map(|node| url(&cluster, node, 8080)).to_vec();
    for url in &urls {
        eventually("it is reached through each node", SOON, || fetched(&cluster, "n2", url).filter(|by| by == "n3"));
    }
    // Both families lead there.
    assert_eq!(fetched(&cluster, "n1", "http://[::1]:8080/").as_deref(), Some("n3"));

    // Connections of a gate that is killed break; others do not, and nobody finds a closed door.
    let client = Outside::begin(&cluster, "n2", &urls[..1]);
    for round in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        let killed = cluster.output(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^dvs gate ports"]);
        assert!(killed.status.success(), "{round}: no port gate on n1: {}", cluster.logs());
        eventually("there is another one", SOON, || {
            let gates = cluster.output(&["dev", "exec", "n1", "--", "pgrep", "-f", "^dvs gate ports"]);
            gates.status.success().then_some(())
        });
    }
    let told = client.end();
    // The one that stays, and the one that is asked at that moment.
    assert!(told.failed.len() <= 10 && told.answered > 30, "{told:?}{}", cluster.logs());
    let of_new = told.failed.iter().filter(|why| why.as_str().is_some_and(|why| why.contains("refused")));
    assert_eq!(of_new.count(), 0, "{told:?}");

    let client = Outside::begin(&cluster, "n2", &urls[..1]);
    let daemon = ["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"];
    assert!(cluster.output(&daemon).status.success());
    std::thread::sleep(Duration::from_secs(1));
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("the daemon knows its ports", SOON, || {
        let listed = ports(&cluster);
        let open = listed[0]["nodes"].as_array()?.iter().all(|at| at["state"] == "open");
        open.then_some(())
    });
    let told = client.end();
    assert!(told.failed.is_empty() && told.answered > 30, "{told:?}{}", cluster.logs());

    // What is published no more is closed, and what is connected goes on.
    let client = Outside::begin(&cluster, "n2", &[url(&cluster, "n2", 8080)]);
    cluster.ok(&["port", "rm", "shop", "8080"]);
    assert_eq!(ports(&cluster), Value::Array(Vec::new()));
    assert_eq!(fetched(&cluster, "n2", &urls[0]), None);
    std::thread::sleep(Duration::from_millis(300));
    let told = client.end();
    let broken = told.failed.iter().filter(|why| why.as_str().is_none_or(|why| !why.contains("refused")));
    assert_eq!(broken.count(), 0, "{told:?}");
    cluster.ok(&["port", "add", "shop", "8080:80"]);
    assert_eq!(fetched(&cluster, "n2", &urls[1]).as_deref(), Some("n3"));
}

#[test]
fn clients_follow_a_service_that_moves_and_the_loss_of_its_node() {
    let cluster = Cluster::up(3);
    cluster.container("shop", 3, &["-p", "8080:80", "--disk-node", "n1", "--fs-node", "n1"]);
    let web = ["service", "add", "--node", "n2", "shop", "two", "--", "python3", "-c", SERVER, "80"];
    cluster.ok(&web);
    let at = url(&cluster, "n1", 8080);
    eventually("it is reached", SOON, || fetched(&cluster, "n1", &at).filter(|by| by == "n2"));
    let client = Outside::begin(&cluster, "n1", std::slice::from_ref(&at));
    // Another one is there before it goes.
    cluster.ok(&["service", "add", "--node", "n3", "shop", "three", "--", "python3", "-c", SERVER, "80"]);
    eventually("both answer", SOON, || fetched(&cluster, "n3", &url(&cluster, "n3", 8080)).filter(|by| by == "n3"));
    cluster.ok(&["service", "rm", "shop", "two"]);
    eventually("the other one answers", SOON, || fetched(&cluster, "n1", &at).filter(|by| by == "n3"));
    let told = client.end();
    // Its connections end with a program that does not wait for them.
    assert!(told.failed.len() <= 2 && told.answered > 10, "{told:?}{}", cluster.logs());

    // A node that is lost says nothing: the next one is asked meanwhile.
    cluster.ok(&["service", "add", "--node", "n2", "shop", "two", "--", "python3", "-c", SERVER, "80"]);
    eventually("both answer", SOON, || fetched(&cluster, "n2", &url(&cluster, "n2", 8080)).filter(|by| by == "n2"));
    cluster.ok(&["dev", "kill", "n3"]);
    let begun = Instant::now();
    assert_eq!(fetched(&cluster, "n1", &at).as_deref(), Some("n2"), "after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn port_that_cannot_be_published_is_refused_with_a_reason_and_nothing_is_half_done() {
    const LISTEN: &str = "import socket, sys, time; s = socket.create_server(('', 9000)); print('listens', flush=True); sys.stdin.read()";
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &[]);
    let mut other = cluster.command_without_limit(&["dev", "exec", "n2", "--", "python3", "-c", LISTEN]);
    other.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut other = other.spawn().expect("dvs starts");
    let mut line = [0; 8];
    std::io::Read::read_exact(other.stdout.as_mut().expect("a pipe"), &mut line).expect("it listens");

    let (status, said) = cluster.fails(&["port", "add", "shop", "9000:80"]);
    assert!(status == 1 && said.contains("port 9000/tcp of node n2 is taken"), "{said}");
    assert_eq!(ports(&cluster), Value::Array(Vec::new()));
    let refused = outside(&cluster, "n1", "import socket; socket.create_connection(('127.0.0.1', 9000))", &[]);
    assert!(!refused.0, "n1 does not listen either");
    cluster.ok(&["port", "add", "--nodes", "n1", "shop", "9000:80"]);
    let (_, said) = cluster.fails(&["port", "add", "shop", "127.0.0.1:9000:81", "--nodes", "n1"]);
    assert!(said.contains("published twice"), "{said}");
    let (_, said) = cluster.fails(&["port", "add", "shop", "192.0.2.1:9001:81"]);
    assert!(said.contains("has no address 192.0.2.1"), "{said}");
    let (_, said) = cluster.fails(&["port", "add", "shop", "9001:81/udp", "--proxy-protocol"]);
    assert!(said.contains("datagrams"), "{said}");

    // A container that is made with it does not come into being.
    let (_, said) = cluster.fails(&["dc", "create", "other", "--nodes", "n1", "-p", "9000:80", "--start"]);
    assert!(said.contains("port 9000/tcp of node n1 is taken"), "{said}");
    let (_, said) = cluster.fails(&["dc", "inspect", "other"]);
    assert!(said.contains("other"), "{said}");
    // Of one that stops the port is free again.
    cluster.ok(&["dc", "stop", "shop"]);
    cluster.ok(&["dc", "create", "other", "--nodes", "n1", "-p", "9000:80", "--start"]);
    let (_, said) = cluster.fails(&["dc", "start", "shop"]);
    assert!(said.contains("port 9000/tcp of node n1 is taken"), "{said}");
    drop(other.stdin.take());
    other.wait().expect("it ends");
}

#[test]
fn datagrams_and_addresses_of_clients_arrive() {
    const ECHO: &str = "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5353))
while True:
    data, who = s.recvfrom(2000)
    s.sendto(data[::-1], who)";
    const ASK: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
for part in (b'abc', b'defg'):
    s.sendto(part, (sys.argv[1], 53))
    print(s.recv(100).decode())";
    const WHO: &str = "import socket, struct
s = socket.create_server(('', 81))
while True:
    c, _ = s.accept()
    head = c.recv(28, socket.MSG_WAITALL)
    c.sendall(socket.inet_ntoa(head[16:20]).encode())
    c.close()";
    const HEAR: &str = "import socket, sys
s = socket.create_connection((sys.argv[1], 8081), 10)
print(s.recv(100).decode())";
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["-p", "53:5353/udp"]);
    cluster.ok(&["port", "add", "shop", "8081:81", "--proxy-protocol"]);
    for program in [ECHO, WHO] {
        cluster.ok(&["run", "-d", "shop", "-n", "n2", "--", "python3", "-c", program]);
    }
    let (one, two) = (address(&cluster, "n1"), address(&cluster, "n2"));
    for at in [&one, &two] {
        eventually("datagrams are answered", SOON, || {
            let (fine, said) = outside(&cluster, "n1", ASK, &[at.as_str()]);
            (fine && said == "cba\ngfed\n").then_some(())
        });
    }
    let (fine, said) = outside(&cluster, "n1", HEAR, &[two.as_str()]);
    assert!(fine && said.trim() == one, "{said}");
}

/// Asks for addresses: prints them, or the code of the answer.
const RESOLVE: &str = "
import socket, struct, sys
name, kind = sys.argv[1], {'A': 1, 'AAAA': 28}[sys.argv[2]]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
labels = b''.join(bytes([len(label)]) + label.encode() for label in name.split('.'))
s.sendto(struct.pack('>6H', 7, 256, 1, 0, 0, 0) + labels + b'\\0' + struct.pack('>2H', kind, 1), ('127.0.0.54', 53))
answer = s.recv(1000)
number, flags, _, count = struct.unpack('>4H', answer[:8])
assert number == 7 and flags >> 15
size = 4 if kind == 1 else 16
family = socket.AF_INET if kind == 1 else socket.AF_INET6
at = 12 + len(labels) + 1 + 4
found = [socket.inet_ntop(family, answer[at + index * (12 + size) + 12:][:size]) for index in range(count)]
print(' '.join(found) or 'code %d' % (flags & 15))
";

#[test]
fn names_lead_programs_of_a_node_to_published_ports() {
    let cluster = Cluster::up(2);
    for node in ["n1", "n2"] {
        let mut restart = cluster.command(&["dev", "restart", node]);
        let restarted = restart.env("DVS_NAMES_LISTEN", "127.0.0.54:53").output().expect("dvs starts");
        assert!(restarted.status.success(), "{restarted:?}");
    }
    cluster.container("shop", 2, &[]);
    cluster.ok(&["service", "add", "shop", "web", "--node", "n2", "--", "python3", "-c", SERVER, "80"]);
    let told = |node: &str, name: &str| outside(&cluster, node, RESOLVE, &[name, "A"]).1.trim().to_owned();
    let becomes = |node: &str, name: &str, wanted: &str| {
        eventually(&format!("{name} is {wanted} on {node}"), SOON, || (told(node, name) == wanted).then_some(()));
    };
    // There are such names, and nothing is to be reached.
    for name in ["shop.dvs", "web.shop.dvs", "n2.shop.dvs"] {
        becomes("n1", name, "code 0");
    }
    for (name, code) in [("nobody.shop.dvs", 3), ("web.other.dvs", 3), ("a.web.shop.dvs", 3), ("n1.example", 5)] {
        assert_eq!(told("n1", name), format!("code {code}"), "{name}");
    }
    let (first, second) = (address(&cluster, "n1"), address(&cluster, "n2"));
    cluster.ok(&["port", "add", "shop", "8080:80"]);
    for node in ["n1", "n2"] {
        becomes(node, "Web.Shop.DVS", "127.0.0.1");
        becomes(node, "shop.dvs", "127.0.0.1");
        assert_eq!(outside(&cluster, node, RESOLVE, &["web.shop.dvs", "AAAA"]).1.trim(), "::1");
    }
    becomes("n1", "n2.shop.dvs", &second);
    becomes("n2", "n1.shop.dvs", &first);
    // It is there what the name promises, also from a node at which nobody serves.
    eventually("the service answers", SOON, || {
        fetched(&cluster, "n1", &format!("http://{}:8080/", told("n1", "web.shop.dvs"))).filter(|by| by == "n2")
    });
    cluster.ok(&["port", "rm", "shop", "8080"]);
    cluster.ok(&["port", "add", "shop", "8081:80", "--nodes", "n2"]);
    becomes("n1", "web.shop.dvs", &second);
    becomes("n2", "web.shop.dvs", "127.0.0.1");
    // Packets that are none, and the engine's silence, keep nobody from being answered.
    let garbage = "
import os, random, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for size in range(2000):
    s.sendto(os.urandom(random.randrange(600)), ('127.0.0.54', 53))
";
    assert!(outside(&cluster, "n1", garbage, &[]).0);
    becomes("n1", "web.shop.dvs", &second);
    // Programs inside have names of their own.
    assert!(!cluster.sh("shop", "n1", "cat /etc/resolv.conf").contains("127.0.0.54"));
    cluster.ok(&["rm", "--force", "shop"]);
    becomes("n1", "web.shop.dvs", "code 3");
}
