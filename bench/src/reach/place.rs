//! nginx in a container, whose port is published at every node; the same nginx on the node; and a network behind the
//! first node, to which the kernel forwards, with the same nginx, and with a client whose address is translated.

use std::path::PathBuf;

use crate::Outcome;
use crate::containers::nginx;
use crate::containers::testbed::{DC, NODES, Served, Testbed, eventually};

/// Where nginx has a long file.
pub const BIG: &str = "/big";
const BIG_BYTES: u64 = 256 << 20;
/// How long requests are counted.
const LASTS: &str = "2s";

const SERVER: &str = "10.255.0.1";
const PASSES_ON: &str = "10.255.0.3";
const PUBLISHED: u16 = 8080;
const OWN: u16 = 8081;
const FORWARDED: u16 = 8082;
/// Of nginx in the container, and in the network behind the node.
const PORT: u16 = 8000;
const BEHIND: &str = "10.77.0.2";

/// A network with nginx, and one with a client, each behind a cable of the first node, which forwards and translates
/// as a router does. Both are held by a process that ends with the machine.
const ROUTER: &str = "
hold() { unshare -n sleep infinity & held=$!; until test \"$(readlink /proc/$held/ns/net)\" != \"$(readlink /proc/self/ns/net)\"; do sleep 0.01; done; }
join() { ip link add $1 type veth peer name eth0 netns $held; ip addr add $2.1/24 dev $1; ip link set $1 up
  nsenter -t $held -n sh -c \"ip link set lo up; ip addr add $2.2/24 dev eth0; ip link set eth0 up; ip route add default via $2.1\"; }
hold; join behind 10.77.0; nsenter -t $held -n nginx -c $1 &
hold; join client 10.78.0; echo $held > $2
echo 1 > /proc/sys/net/ipv4/ip_forward
nft add table ip bench
nft 'add chain ip bench in { type nat hook prerouting priority -100; }'
nft 'add chain ip bench out { type nat hook postrouting priority 100; }'
nft add rule ip bench in iifname != client tcp dport $3 dnat to 10.77.0.2:$4
nft add rule ip bench out ip saddr 10.78.0.0/24 masquerade
echo ready > $2.ready
wait
";

pub struct Place<'a> {
    testbed: &'a Testbed,
    /// Says which process holds the client's network.
    client: PathBuf,
    _served: [Served; 2],
}

impl Place<'_> {
    pub fn prepare(testbed: &Testbed) -> Outcome<Place<'_>> {
        testbed.container(DC, &["--egress", "-p", &format!("{PUBLISHED}:{PORT}")])?;
        let root = testbed.path().join("root");
        std::fs::create_dir(&root)?;
        let zeros = vec![b'.'; usize::try_from(BIG_BYTES)?];
        std::fs::write(root.join(&BIG[1..]), zeros)?;
        let configuration = |name: &str, port: u16, root: &str| -> Outcome<String> {
            let path = testbed.path().join(name);
            std::fs::write(&path, nginx(name, port, root))?;
            Ok(path.to_string_lossy().into_owned())
        };
        let natively = root.to_string_lossy();
        let own = configuration("own.conf", OWN, &natively)?;
        let behind = configuration("behind.conf", PORT, &natively)?;
        let inside = configuration("inside.conf", PORT, "/tmp")?;
        testbed.say(&["cp", &inside, &format!("{DC}:/dc/nginx.conf")])?;
        // Neither of them reads what is measured from a disk.
        let fill = format!("head -c {BIG_BYTES} /dev/zero > /tmp{BIG}");
        testbed.say(&["run", DC, "--node", NODES[0], "--", "sh", "-c", &fill])?;
        testbed.say(&["run", "-d", DC, "--node", NODES[0], "--", "nginx", "-c", "/dc/nginx.conf"])?;
        let client = testbed.path().join("client");
        let (holder, to, port) = (client.to_string_lossy(), FORWARDED.to_string(), PORT.to_string());
        let served = [
            testbed.serve(NODES[0], &["nginx", "-c", &own])?,
            testbed.serve(NODES[0], &["sh", "-ec", ROUTER, "sh", &behind, &holder, &to, &port])?,
        ];
        let place = Place { testbed, client, _served: served };
        for at in [place.own(), place.published(), place.elsewhere(), at(SERVER, FORWARDED)] {
            eventually("a web server", || place.on(&["curl", "-sf", "-o", "/dev/null", &at]).ok())?;
        }
        place.fetch_inside().map_err(|error| format!("from inside to the network behind the node: {error}"))?;
        place.fetch_forwarded()?;
        Ok(place)
    }

    pub fn own(&self) -> String {
        at(SERVER, OWN)
    }

    /// At the node where the server is.
    pub fn published(&self) -> String {
        at(SERVER, PUBLISHED)
    }

    /// At another one.
    pub fn elsewhere(&self) -> String {
        at(PASSES_ON, PUBLISHED)
    }

    /// The long file, through the kernel of the first node.
    pub fn forwarded(&self) -> String {
        format!("{}{BIG}", at(SERVER, FORWARDED))
    }

    /// On the node of clients.
    fn on(&self, words: &[&str]) -> Outcome<String> {
        self.testbed.say(&[&["dev", "exec", NODES[1], "--"], words].concat())
    }

    /// A second, over connections that stay.
    pub fn requests(&self, at: &str, connections: &str) -> Outcome<f64> {
        let said = self.on(&["wrk", "-t", "1", "-c", connections, "-d", LASTS, at])?;
        if said.contains("Non-2xx") || said.contains("Socket errors") {
            return Err(format!("requests to {at} failed: {said}").into());
        }
        let rate = said.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
        Ok(rate.ok_or_else(|| format!("wrk says no rate: {said}"))?.trim().parse()?)
    }

    /// MB/s of the long file.
    pub fn fetch(&self, at: &str) -> Outcome<f64> {
        speed(&self.on(&curl(at))?)
    }

    /// The long file from behind the node, by the client whose address the kernel translates.
    pub fn fetch_forwarded(&self) -> Outcome<f64> {
        let holder = std::fs::read_to_string(&self.client)?;
        let at = behind();
        let words = [&["dev", "exec", NODES[0], "--", "nsenter", "-t", holder.trim(), "-n"], &curl(&at)[..]].concat();
        speed(&self.testbed.say(&words)?)
    }

    /// By a program of the container, on the same node.
    pub fn fetch_inside(&self) -> Outcome<f64> {
        let at = behind();
        speed(&self.testbed.say(&[&["run", DC, "--node", NODES[0], "--"], &curl(&at)[..]].concat())?)
    }
}

fn at(address: &str, port: u16) -> String {
    format!("http://{address}:{port}")
}

fn behind() -> String {
    format!("{}{BIG}", at(BEHIND, PORT))
}

fn curl(at: &str) -> [&str; 7] {
    ["curl", "-sf", "-m60", "-o/dev/null", "-w", "%{speed_download}", at]
}

fn speed(said: &str) -> Outcome<f64> {
    Ok(said.trim().parse::<f64>()? / 1e6)
}

/// Answers twelve bytes at once, or sends a file.
fn nginx(name: &str, port: u16, root: &str) -> String {
    let server = format!("location = / {{ return 200 'twelve bytes'; }} location / {{ root {root}; }}");
    nginx::configuration(name, port, &server)
}
