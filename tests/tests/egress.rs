//! The way out of a container: programs reach hosts beyond their node, and nothing of the cluster.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use end_to_end::{Cluster, eventually};

const SOON: Duration = Duration::from_secs(30);
/// Within which a daemon has looked what its node reaches, and who the nodes are.
const LOOKED: Duration = Duration::from_secs(60);

/// A host beyond the machine of a node, 192.0.2.1: port 80 says everything back, and `end` at the end; datagrams to
/// port 53 come back backwards. The machine is 192.0.2.254 there.
const BEYOND: &str = r#"
import ctypes, os, signal, socket, subprocess, sys, threading
def sh(line): subprocess.check_call(["sh", "-ec", line])
ready, go = os.pipe(), os.pipe()
host = os.fork()
if host == 0:
    if ctypes.CDLL(None).unshare(0x40000000): os._exit(1)
    os.write(ready[1], b"1"); os.read(go[0], 1)
    sh("ip link set lo up; ip addr add 192.0.2.1/24 dev out1; ip link set out1 up")
    def names():
        while True:
            data, who = asked.recvfrom(2000)
            asked.sendto(data[::-1], who)
    def one(c):
        while data := c.recv(1 << 16): c.sendall(data)
        c.sendall(b"end"); c.close()
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); asked.bind(("", 53))
    server = socket.create_server(("", 80))
    threading.Thread(target=names, daemon=True).start()
    print("there", flush=True)
    while True:
        c, _ = server.accept()
        threading.Thread(target=one, args=(c,), daemon=True).start()
os.read(ready[0], 1)
sh(f"ip link add out0 type veth peer name out1; ip link set out1 netns {host}; ip addr add 192.0.2.254/24 dev out0; ip link set out0 up")
os.write(go[1], b"1")
sys.stdin.read()
os.kill(host, signal.SIGKILL)
"#;

/// Everything that was sent comes back, and the end.
const SPEAK: &str = "import socket, threading
c = socket.create_connection(('192.0.2.1', 80), 10)
who = c.getpeername()[0]
sent = bytes(range(256)) * 12000
def send():
    c.sendall(sent); c.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = bytearray()
while data := c.recv(1 << 16): back += data
print(back == sent + b'end', who)";

/// Who answers is who was asked.
const ASK: &str = "import socket, sys
for _ in range(2):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
    for part in (b'abc', b'defg'):
        s.sendto(part, (sys.argv[1], 53))
        print(*s.recvfrom(100)[1], end=' ')
print()";

/// What becomes of a connection.
const TRY: &str = "import socket, sys
for at in sys.argv[1:]:
    host, port = at.split(':')
    try:
        c = socket.create_connection((host, int(port)), 5); c.settimeout(5); c.recv(1); print(at, 'reached')
    except OSError as why: print(at, type(why).__name__, why.errno)";

/// Where somebody listens at the loopback interface (`proc_pid_net(5)`).
const HEARS: &str = "for line in open('/proc/net/tcp').readlines()[1:]:
    words = line.split(); host, port = words[1].split(':')
    if host == '0100007F' and words[3] == '0A': print(f'127.0.0.1:{int(port, 16)}')";

struct Beyond(Child);

impl Beyond {
    fn of(cluster: &Cluster, node: &str) -> Beyond {
        Beyond::doing(cluster, node, BEYOND)
    }

    fn doing(cluster: &Cluster, node: &str, program: &str) -> Beyond {
        let mut command = cluster.command_without_limit(&["dev", "exec", node, "--", "python3", "-c", program]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("dvs starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it speaks");
        assert_eq!(line, "there\n");
        Beyond(child)
    }
}

impl Drop for Beyond {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn python(cluster: &Cluster, dc: &str, program: &str, arguments: &[&str]) -> String {
    cluster.ok(&[&["run", dc, "-n", "n1", "--", "python3", "-c", program], arguments].concat())
}

#[test]
fn programs_reach_what_they_may_and_nothing_of_the_cluster_or_the_machine() {
    let cluster = Cluster::up(2);
    let _beyond = Beyond::of(&cluster, "n1");
    let known = cluster.state_dir().join("resolv.conf");
    std::fs::write(&known, "nameserver 192.0.2.1\n").expect("written");
    let known = known.to_str().expect("text");
    cluster.ok(&["dev", "exec", "n1", "--", "mount", "--bind", known, "/etc/resolv.conf"]);
    cluster.container("shop", 2, &["--egress"]);

    assert_eq!(python(&cluster, "shop", SPEAK, &[]), "True 192.0.2.1\n");
    assert_eq!(python(&cluster, "shop", ASK, &["192.0.2.1"]).trim(), ["192.0.2.1 53"; 4].join(" "));
    // The node's name server, by the container's own.
    let conf = cluster.sh("shop", "n1", "cat /etc/resolv.conf");
    let server = conf.lines().find_map(|line| line.strip_prefix("nameserver ")).expect("a name server");
    assert_eq!(python(&cluster, "shop", ASK, &[server]).trim(), [format!("{server} 53").as_str(); 4].join(" "));

    // Doors of nodes, of the machine, of its wire; and what only the machine's owner should reach.
    let doors = ["10.255.0.1:7420", "10.255.0.2:7420", "192.0.2.254:7420", "169.254.169.254:80", "255.255.255.255:1"];
    for line in python(&cluster, "shop", TRY, &doors).lines() {
        assert!(!line.contains("reached") && line.contains("Error"), "{line}");
    }
    // What is its own stays so.
    let own = python(&cluster, "shop", TRY, &["127.0.0.1:7420", "10.1.0.1:1"]);
    assert_eq!(own.matches("ConnectionRefusedError 111").count(), 2, "{own}");

    // Whoever finds where the gate listens has found nothing.
    let door = python(&cluster, "shop", HEARS, &[]);
    let said = python(&cluster, "shop", TRY, &[door.trim()]);
    assert!(said.starts_with("127.0.0.1:") && said.contains("ConnectionResetError"), "{said}");

    // Who dies is replaced, and who connects meanwhile waits.
    for _ in 0..3 {
        cluster.ok(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^dvs gate egress"]);
        assert_eq!(python(&cluster, "shop", SPEAK, &[]), "True 192.0.2.1\n");
    }
    cluster.ok(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("datagrams are answered", SOON, || {
        let asked = cluster.output(&["run", "shop", "-n", "n1", "--", "python3", "-c", ASK, "192.0.2.1"]);
        asked.status.success().then_some(())
    });
}

#[test]
fn container_without_a_way_out_has_none_and_a_narrow_one_is_as_narrow_as_it_says() {
    let cluster = Cluster::up(1);
    let _beyond = Beyond::of(&cluster, "n1");
    cluster.container("closed", 1, &[]);
    let said = python(&cluster, "closed", TRY, &["192.0.2.1:80"]);
    assert!(said.contains("OSError 101"), "no route at all: {said}");
    cluster.container("narrow", 1, &["--egress-allow", "192.0.2.1:53", "--egress-allow", "198.51.100.0/24"]);
    assert_eq!(python(&cluster, "narrow", ASK, &["192.0.2.1"]).trim(), ["192.0.2.1 53"; 4].join(" "));
    let said = python(&cluster, "narrow", TRY, &["192.0.2.1:80"]);
    assert!(said.contains("ConnectionResetError"), "{said}");
    let (status, said) = cluster.fails(&["dc", "create", "bad", "--nodes", "n1", "--egress-allow", "10.0.0.1/8"]);
    assert!(status == 2 && said.contains("10.0.0.1/8") && said.contains("192.0.2.7:443"), "{said}");
}

/// As [`BEYOND`], by IPv6: 2001:db8::1, on the wire of the machine, which is 2001:db8::254 there; and 2001:db8:9::1,
/// beyond it.
const BEYOND_BY_IPV6: &str = r#"
import ctypes, os, signal, socket, subprocess, sys, threading
def sh(line): subprocess.check_call(["sh", "-ec", line])
ready, go = os.pipe(), os.pipe()
host = os.fork()
if host == 0:
    if ctypes.CDLL(None).unshare(0x40000000): os._exit(1)
    os.write(ready[1], b"1"); os.read(go[0], 1)
    sh("ip link set lo up; ip addr add 2001:db8::1/64 dev out1 nodad; ip addr add 2001:db8:9::1/128 dev lo nodad; ip link set out1 up")
    def names():
        while True:
            data, who, = asked.recvfrom(2000)
            asked.sendto(data[::-1], who)
    def one(c):
        while data := c.recv(1 << 16): c.sendall(data)
        c.sendall(b"end"); c.close()
    asked = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); asked.bind(("2001:db8::1", 53))
    server = socket.create_server(("::", 80), family=socket.AF_INET6)
    threading.Thread(target=names, daemon=True).start()
    print("there", flush=True)
    while True:
        c, _ = server.accept()
        threading.Thread(target=one, args=(c,), daemon=True).start()
os.read(ready[0], 1)
sh(f"ip link add out0 type veth peer name out1; ip link set out1 netns {host}; ip addr add 2001:db8::254/64 dev out0 nodad; ip link set out0 up")
sh("ip -6 route add 2001:db8:9::/48 via 2001:db8::1")
os.write(go[1], b"1")
sys.stdin.read()
os.kill(host, signal.SIGKILL)
"#;

/// Everything that was sent comes back, and the end; likewise of datagrams.
const SPEAK_BY_IPV6: &str = "import socket, sys, threading
c = socket.create_connection((sys.argv[1], 80), 10)
who = c.getpeername()[0]
sent = bytes(range(256)) * 12000
def send():
    c.sendall(sent); c.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = bytearray()
while data := c.recv(1 << 16): back += data
print(back == sent + b'end', who)";
const ASK_BY_IPV6: &str = "import socket, sys
for _ in range(2):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(5)
    for part in (b'abc', b'defg'):
        s.sendto(part, (sys.argv[1], 53))
        data, who = s.recvfrom(100)
        print(data == part[::-1], *who[:2], end=' ')
print()";
/// What becomes of connections to port 80, and whether that was said at once.
const TRY_BY_IPV6: &str = "import errno, socket, sys, time
for at in sys.argv[1:]:
    begun = time.monotonic()
    try:
        c = socket.create_connection((at, 80), 5); c.settimeout(5); c.sendall(b'x'); said = c.recv(1)
        print(at, 'reached' if said else 'ended')
    except OSError as why: print(at, errno.errorcode.get(why.errno, type(why).__name__), time.monotonic() - begun < 1)";

#[test]
fn programs_reach_by_ipv6_what_their_node_reaches_and_nothing_of_the_cluster_or_the_machine() {
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        return eprintln!("SKIPPED: this kernel has no IPv6");
    }
    let cluster = Cluster::up(2);
    cluster.container("shop", 2, &["--egress"]);
    let tried = |dc: &str, at: &[&str]| python(&cluster, dc, TRY_BY_IPV6, at);
    // As long as the node has no way, neither has anybody inside, and hears that at once.
    assert_eq!(tried("shop", &["2001:db8::1"]), "2001:db8::1 ENETUNREACH True\n");

    let _beyond = Beyond::doing(&cluster, "n1", BEYOND_BY_IPV6);
    for at in ["2001:db8::1", "2001:db8:9::1"] {
        eventually("there is a way", LOOKED, || tried("shop", &[at]).contains("reached").then_some(()));
        assert_eq!(python(&cluster, "shop", SPEAK_BY_IPV6, &[at]), format!("True {at}\n"));
    }
    assert_eq!(python(&cluster, "shop", ASK_BY_IPV6, &["2001:db8::1"]).trim(), ["True 2001:db8::1 53"; 4].join(" "));
    assert_eq!(tried("shop", &["2001:db8:8::1"]), "2001:db8:8::1 ENETUNREACH True\n", "no route of the node's");

    // Nodes have doors by IPv6, too; of this one at several addresses.
    const LISTEN: &str = "import socket, sys
s = socket.create_server(('::', 80), family=socket.AF_INET6)
print('listens', flush=True)
while True: c, _ = s.accept(); c.sendall(b'door')";
    let doors = |node: &str| {
        let mut door = cluster.command_without_limit(&["dev", "exec", node, "--", "python3", "-c", LISTEN]);
        let mut door = door.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("dvs starts");
        let mut line = String::new();
        BufReader::new(door.stdout.as_mut().expect("a pipe")).read_line(&mut line).expect("it listens");
        assert_eq!(line, "listens\n");
        door
    };
    let on_machine = |node: &str, line: &str| cluster.ok(&["dev", "exec", node, "--", "sh", "-ec", line]);
    on_machine("n1", "ip addr add 2001:db8:5::1/64 dev eth0 nodad");
    on_machine("n2", "ip addr add 2001:db8:5::2/64 dev eth0 nodad");
    let mut doors = ["n1", "n2"].map(doors);
    let own = ["2001:db8::254", "2001:db8:5::1", "2001:db8:5::2"];
    let from_machine = cluster.ok(&[&["dev", "exec", "n1", "--", "python3", "-c", TRY_BY_IPV6], &own[..]].concat());
    assert_eq!(from_machine.matches("reached").count(), own.len(), "they are doors: {from_machine}");
    // The address of the other node is known once its daemon has said it.
    eventually("nothing of the cluster is reached", LOOKED, || {
        let said = tried("shop", &own);
        assert!(!said.lines().take(2).any(|line| line.contains("reached")), "{said}");
        (!said.contains("reached")).then_some(())
    });
    for near in ["::1", "fe80::1", "::ffff:127.0.0.1", "ff02::1", "2001:db8::"] {
        let said = tried("shop", &[near]);
        assert!(!said.contains("reached"), "{said}");
    }
    assert_eq!(python(&cluster, "shop", SPEAK_BY_IPV6, &["2001:db8::1"]), "True 2001:db8::1\n");

    // Who dies is replaced; a daemon that comes back finds what there is.
    cluster.ok(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^dvs gate egress"]);
    assert_eq!(python(&cluster, "shop", SPEAK_BY_IPV6, &["2001:db8:9::1"]), "True 2001:db8:9::1\n");
    cluster.ok(&["dev", "exec", "n1", "--", "pkill", "-9", "-f", "^[^ ]*dvs daemon"]);
    cluster.ok(&["dev", "restart", "n1"]);
    assert_eq!(python(&cluster, "shop", SPEAK_BY_IPV6, &["2001:db8::1"]), "True 2001:db8::1\n");

    // As narrow as it says; who may go nowhere by IPv6 hears that at once.
    cluster.container("four", 2, &["--egress-allow", "192.0.2.0/24"]);
    assert_eq!(tried("four", &["2001:db8::1"]), "2001:db8::1 ENETUNREACH True\n");
    cluster.container("six", 2, &["--egress-allow", "[2001:db8:9::]/48:80", "--egress-allow", "[2001:db8::1]:53"]);
    eventually("there is a way", LOOKED, || tried("six", &["2001:db8:9::1"]).contains("reached").then_some(()));
    assert!(!tried("six", &["2001:db8::1"]).contains("reached"));
    assert_eq!(python(&cluster, "six", ASK_BY_IPV6, &["2001:db8::1"]).trim(), ["True 2001:db8::1 53"; 4].join(" "));
    cluster.ok(&["dc", "set", "six", "--no-egress"]);
    assert_eq!(tried("six", &["2001:db8:9::1"]), "2001:db8:9::1 ENETUNREACH True\n");
    doors.iter_mut().for_each(|door| drop(door.kill()));
    doors.iter_mut().for_each(|door| drop(door.wait()));
}

/// Tells what becomes of a connection that stays.
const STAY: &str = "import socket, time
c = socket.create_connection(('192.0.2.1', 80), 10)
while True:
    try:
        c.sendall(b'x'); print('alive' if c.recv(10) else 'ended', flush=True)
    except OSError: print('ended', flush=True)
    time.sleep(0.05)";

#[test]
fn way_out_comes_and_goes_while_the_container_runs() {
    let cluster = Cluster::up(2);
    let _beyond = Beyond::of(&cluster, "n1");
    cluster.container("shop", 2, &[]);
    let tried = |at: &str| python(&cluster, "shop", TRY, &[at]);
    let none = |said: &str| said.contains("OSError 101");
    assert!(none(&tried("192.0.2.1:80")));
    assert!(!cluster.sh("shop", "n1", "cat /etc/resolv.conf").contains("nameserver "));

    cluster.ok(&["dc", "set", "shop", "--egress-allow", "192.0.2.1:80"]);
    assert_eq!(python(&cluster, "shop", SPEAK, &[]), "True 192.0.2.1\n");
    assert!(cluster.sh("shop", "n1", "cat /etc/resolv.conf").contains("nameserver "));
    assert!(tried("192.0.2.1:81").contains("ConnectionResetError"));
    let stays = cluster.ok(&["run", "-d", "shop", "-n", "n1", "--", "python3", "-c", STAY]);
    let last = || cluster.ok(&["logs", "shop", stays.trim(), "--tail", "1"]);
    eventually("it is connected", SOON, || (last() == "alive\n").then_some(()));

    // What may be reached still goes on; what may not any more ends.
    cluster.ok(&["dc", "set", "shop", "--egress"]);
    assert!(tried("192.0.2.1:81").contains("ConnectionResetError"), "nobody listens there");
    assert!(!cluster.ok(&["logs", "shop", stays.trim()]).contains("ended"));
    cluster.ok(&["dc", "set", "shop", "--egress-allow", "192.0.2.1:81"]);
    eventually("it has ended", SOON, || (last() == "ended\n").then_some(()));
    assert!(tried("192.0.2.1:80").contains("ConnectionResetError"));
    cluster.ok(&["dc", "set", "shop", "--no-egress"]);
    assert!(none(&tried("192.0.2.1:80")) && none(&tried("192.0.2.1:81")));
    assert!(!cluster.sh("shop", "n1", "cat /etc/resolv.conf").contains("nameserver "));

    // A daemon that was away meanwhile brings its node up to date.
    cluster.ok(&["dc", "set", "shop", "--egress"]);
    assert_eq!(python(&cluster, "shop", SPEAK, &[]), "True 192.0.2.1\n");
    cluster.lose_daemon("n1", "n2");
    cluster.ok(&["--at", "n2", "dc", "set", "shop", "--no-egress"]);
    cluster.ok(&["dev", "restart", "n1"]);
    eventually("it has none", SOON, || none(&tried("192.0.2.1:80")).then_some(()));
    let gates = cluster.output(&["dev", "exec", "n1", "--", "pgrep", "-f", "^dvs gate egress"]);
    assert!(!gates.status.success(), "no gate is left");
}
