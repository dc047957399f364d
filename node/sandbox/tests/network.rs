//! The overlay between two simulated nodes: two namespaces joined by a cable, each with containers that are only
//! network namespaces here. Everything is anonymous: when a test ends, however it ends, the kernel removes it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use sandbox::links::{Links, Mac};
use sandbox::netns;
use sandbox::overlay::{INNER_NAME, Overlay, PORT, Peer, mac};

/// What arrives at all arrives within this.
const SOON: Duration = Duration::from_secs(10);
/// So long what must not arrive is waited for.
const NEVER_MIND: Duration = Duration::from_millis(300);

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: this test needs root");
    }
    root
}

fn node_address(index: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(172, 31, 7, index + 1))
}

/// Two nodes with a cable between them.
struct Nodes([OwnedFd; 2]);

impl Nodes {
    fn new() -> Nodes {
        let nodes = [netns::create_anonymous().expect("node"), netns::create_anonymous().expect("node")];
        let mut first = Links::within(&nodes[0]).expect("links");
        first.ensure_veth("up0", "up0", &nodes[1]).expect("cable");
        for (index, node) in nodes.iter().enumerate() {
            let mut links = Links::within(node).expect("links");
            links.set_loopback_up().expect("lo");
            let up = links.get("up0").expect("up0");
            links.ensure_address(&up, node_address(index as u8), 24).expect("address");
            links.set_up(&up).expect("up");
        }
        Nodes(nodes)
    }

    /// A container with this number on both nodes. Its first message has passed: links come up a while after they are
    /// told to, and a frame that a test sends raw is sent once.
    fn container(&self, dc: u32) -> [OwnedFd; 2] {
        let inside = [self.share(dc, 0), self.share(dc, 1)];
        let (sender, listener) = (udp(&inside[0], "10.1.0.1:3999"), udp(&inside[1], "10.1.0.2:3999"));
        let begin = Instant::now();
        while !(sender.send_to(b"up", "10.1.0.2:3999").is_ok() && arrives_within(&listener, NEVER_MIND)) {
            assert!(begin.elapsed() < SOON, "the container's network does not come up");
        }
        inside
    }

    fn share(&self, dc: u32, index: u8) -> OwnedFd {
        let inside = netns::create_anonymous().expect("container");
        self.plug(dc, index, &inside);
        inside
    }

    fn plug(&self, dc: u32, index: u8, inside: &OwnedFd) {
        let overlay = Overlay {
            dc,
            index,
            subnet: "10.1.0.0/24".parse().expect("subnet"),
            underlay: node_address(index),
            port: PORT,
            peers: vec![Peer { index: 1 - index, underlay: node_address(1 - index) }],
        };
        netns::within(&self.0[usize::from(index)], || overlay.ensure(inside)).expect("enter").expect("overlay");
    }
}

fn udp(namespace: &OwnedFd, address: &str) -> UdpSocket {
    netns::within(namespace, || UdpSocket::bind(address)).expect("enter").expect("bind")
}

fn arrives(socket: &UdpSocket) -> bool {
    arrives_within(socket, SOON)
}

fn stays_away(socket: &UdpSocket) -> bool {
    !arrives_within(socket, NEVER_MIND)
}

fn arrives_within(socket: &UdpSocket, limit: Duration) -> bool {
    socket.set_read_timeout(Some(limit)).expect("time limit");
    let mut buffer = [0; 64];
    match socket.recv_from(&mut buffer) {
        Ok(_) => true,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            false
        }
    }
}

#[test]
fn containers_with_the_same_subnet_on_the_same_nodes_hear_only_themselves() {
    if !is_root() {
        return;
    }
    let nodes = Nodes::new();
    let (first, second) = (nodes.container(5), nodes.container(6));
    let listen = [udp(&first[1], "10.1.0.2:4000"), udp(&second[1], "10.1.0.2:4000")];
    udp(&first[0], "10.1.0.1:0").send_to(b"hello", "10.1.0.2:4000").expect("send");
    assert!(arrives(&listen[0]), "own container");
    assert!(stays_away(&listen[1]), "other container");
    udp(&second[0], "10.1.0.1:0").send_to(b"hello", "10.1.0.2:4000").expect("send");
    assert!(arrives(&listen[1]), "own container");
    assert!(stays_away(&listen[0]), "other container");
}

#[test]
fn bulk_data_passes_with_the_computed_mtu() {
    if !is_root() {
        return;
    }
    use std::io::{Read, Write};
    let nodes = Nodes::new();
    let inside = nodes.container(9);
    let mut links = Links::within(&inside[0]).expect("links");
    assert_eq!(links.get(INNER_NAME).expect("eth0").mtu, 1450);
    let listener = netns::within(&inside[1], || TcpListener::bind("10.1.0.2:5000")).expect("enter").expect("bind");
    let sender = std::thread::spawn(move || {
        let target: SocketAddr = "10.1.0.2:5000".parse().expect("address");
        let connect = || TcpStream::connect_timeout(&target, Duration::from_secs(5));
        let mut stream = netns::within(&inside[0], connect).expect("enter").expect("connect");
        stream.write_all(&vec![7; 4 << 20]).expect("write");
    });
    let (mut stream, _) = listener.accept().expect("accept");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes.len(), 4 << 20);
    sender.join().expect("sender");
}

/// Sends a raw frame from inside a container, as root in it can.
fn send_frame(namespace: &OwnedFd, frame: &[u8]) {
    netns::within(namespace, || {
        let index = Links::here().expect("links").get(INNER_NAME).expect("eth0").index;
        raw::send(index, frame);
    })
    .expect("enter");
}

mod raw {
    use rustix::net::{AddressFamily, SocketType, socket};

    /// AF_PACKET by way of a bound name: rustix has no such address, a plain `send` on a socket that `SO_BINDTODEVICE`
    /// names has no destination either, so the one raw call of this test is made here.
    pub fn send(index: u32, frame: &[u8]) {
        use std::os::fd::AsRawFd;
        let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).expect("packet socket");
        // SAFETY: (1) all-zero is a valid sockaddr_ll; (2) the pointers are to locals that outlive the call.
        let sent = unsafe {
            let mut to: libc::sockaddr_ll = std::mem::zeroed();
            to.sll_family = libc::AF_PACKET as u16;
            to.sll_ifindex = index as i32;
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

/// Ethernet, IPv4 and UDP without checksum (which UDP over IPv4 allows).
fn udp_frame(to: Mac, from: Mac, source: [u8; 4], target: [u8; 4], port: u16, body: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    ip[2..4].copy_from_slice(&((28 + body.len()) as u16).to_be_bytes());
    ip.extend_from_slice(&source);
    ip.extend_from_slice(&target);
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut udp = Vec::new();
    for field in [4242, port, (8 + body.len()) as u16, 0] {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    [&to[..], &from[..], &[8, 0], &ip, &udp, body].concat()
}

#[test]
fn root_inside_can_send_as_nobody_else() {
    if !is_root() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    let listener = udp(&inside[1], "10.1.0.2:4000");
    let (own, peer) = (mac(5, 0), mac(5, 1));
    let (address, target) = ([10, 1, 0, 1], [10, 1, 0, 2]);
    send_frame(&inside[0], &udp_frame(peer, own, address, target, 4000, b"fine"));
    assert!(arrives(&listener), "the frame itself is right");
    send_frame(&inside[0], &udp_frame(peer, mac(5, 7), address, target, 4000, b"spoofed layer 2"));
    assert!(stays_away(&listener), "source layer-2 address of another member");
    send_frame(&inside[0], &udp_frame(peer, own, [10, 1, 0, 9], target, 4000, b"spoofed address"));
    assert!(stays_away(&listener), "source address of another member");
    send_frame(&inside[0], &udp_frame([0xff; 6], own, address, target, 4000, b"broadcast"));
    assert!(stays_away(&listener), "broadcast");
    send_frame(&inside[0], &udp_frame(peer, own, address, target, 4000, b"fine"));
    assert!(arrives(&listener), "the filter did not close for good");
}

#[test]
fn root_inside_cannot_reach_the_node_nor_a_foreign_network() {
    if !is_root() {
        return;
    }
    let nodes = Nodes::new();
    let (attacker, victim) = (nodes.container(5), nodes.container(6));
    let listener = udp(&victim[0], "10.1.0.1:4000");
    let node = udp(&nodes.0[0], "0.0.0.0:4100");
    let bridge = Links::within(&nodes.0[0]).expect("links").get("dvsb5").expect("bridge").mac.expect("mac");

    // What a node's own VXLAN device would send for the victim's network.
    let inner = udp_frame(mac(6, 0), mac(6, 1), [10, 1, 0, 2], [10, 1, 0, 1], 4000, b"foreign");
    let vxlan = [&[8, 0, 0, 0, 0, 0, 6, 0][..], &inner].concat();
    let node_ip = [172, 31, 7, 1];
    for to in [bridge, mac(5, 1), mac(6, 0)] {
        send_frame(&attacker[0], &udp_frame(to, mac(5, 0), [10, 1, 0, 1], node_ip, PORT, &vxlan));
        send_frame(&attacker[0], &udp_frame(to, mac(5, 0), [10, 1, 0, 1], node_ip, 4100, b"to the node"));
    }
    assert!(stays_away(&listener), "foreign network");
    assert!(stays_away(&node), "the node's own stack");

    // The same bytes, sent by a node, do arrive: the attack itself is well-formed.
    let peer = udp(&nodes.0[1], "172.31.7.2:0");
    peer.send_to(&vxlan, (node_address(0), PORT)).expect("send");
    assert!(arrives(&listener), "the control");
}

/// Where a node's firewall sees bridged frames and rewrites destinations, an address is enough to reach the node. Here
/// a member has the foreign address: what it does not hear, no rule hears.
#[test]
fn root_inside_sends_to_addresses_of_its_own_network_only() {
    if !is_root() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    let mut links = Links::within(&inside[1]).expect("links");
    let eth0 = links.get(INNER_NAME).expect("eth0");
    let foreign = [[10, 1, 1, 2], [172, 31, 7, 1], [192, 0, 2, 1]];
    for address in foreign {
        links.ensure_address(&eth0, IpAddr::from(address), 24).expect("address");
        let listener = udp(&inside[1], &format!("{}:4000", Ipv4Addr::from(address)));
        send_frame(&inside[0], &udp_frame(mac(5, 1), mac(5, 0), [10, 1, 0, 1], address, 4000, b"foreign"));
        assert!(stays_away(&listener), "{address:?}");
    }
    let listener = udp(&inside[1], "0.0.0.0:4000");
    send_frame(&inside[0], &udp_frame(mac(5, 1), mac(5, 0), [10, 1, 0, 1], [10, 1, 0, 2], 4000, b"own"));
    assert!(arrives(&listener), "its own network");
}

#[test]
fn overlay_is_idempotent_follows_its_peers_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    nodes.plug(5, 0, &inside[0]);
    let names = |node: &OwnedFd| -> Vec<String> {
        let links = Links::within(node).expect("links").list().expect("list");
        links.into_iter().map(|link| link.name).filter(|name| name.starts_with("dvs")).collect()
    };
    assert_eq!(names(&nodes.0[0]).len(), 3);

    // The container starts again: its old namespace is gone, a new one is plugged into the same network.
    let [first, second] = inside;
    drop(first);
    let first = netns::create_anonymous().expect("container");
    nodes.plug(5, 0, &first);
    let listener = udp(&second, "10.1.0.2:4000");
    udp(&first, "10.1.0.1:0").send_to(b"again", "10.1.0.2:4000").expect("send");
    assert!(arrives(&listener));

    for node in &nodes.0 {
        netns::within(node, || Overlay::remove(5)).expect("enter").expect("remove");
        netns::within(node, || Overlay::remove(5)).expect("enter").expect("remove twice");
        assert_eq!(names(node), Vec::<String>::new());
    }
}

#[test]
fn named_namespace_lives_as_long_as_its_file() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let made = netns::create(dir.path(), "n1").expect("create");
    Links::within(&made).expect("links").ensure_bridge("br0").expect("bridge");
    drop(made);
    assert!(matches!(netns::create(dir.path(), "n1"), Err(netns::NetnsError::Exists(_))));
    let again = netns::ensure(dir.path(), "n1").expect("ensure");
    assert!(Links::within(again.as_fd()).expect("links").find("br0").expect("find").is_some());
    assert_eq!(netns::list(dir.path()).expect("list"), ["n1"]);
    netns::remove(dir.path(), "n1").expect("remove");
    netns::remove(dir.path(), "n1").expect("remove twice");
    assert!(matches!(netns::open(dir.path(), "n1"), Err(netns::NetnsError::Missing(_))));
    assert!(matches!(netns::open(dir.path(), "../n1"), Err(netns::NetnsError::BadName(_))));
}
