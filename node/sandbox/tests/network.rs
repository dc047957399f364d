//! The overlay between two simulated nodes: two namespaces joined by a cable, each with containers that are only
//! network namespaces here. Everything is anonymous: when a test ends, however it ends, the kernel removes it.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use sandbox::links::{Links, Mac};
use sandbox::netns;
use sandbox::overlay::{INNER_NAME, NoIpv6, Overlay, PORT, Peer, address_ipv6, ipv6_here, mac};

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
        let overlay = Nodes::overlay(dc, index);
        netns::within(&self.0[usize::from(index)], || overlay.ensure(inside)).expect("enter").expect("overlay");
    }

    fn overlay(dc: u32, index: u8) -> Overlay {
        Overlay {
            dc,
            index,
            subnet: "10.1.0.0/24".parse().expect("subnet"),
            underlay: node_address(index),
            port: PORT,
            has_ipv6: true,
            peers: vec![Peer { index: 1 - index, underlay: node_address(1 - index), has_ipv6: true }],
        }
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

// ---- IPv6

/// As this machine's kernel is.
fn has_ipv6() -> bool {
    let has = std::path::Path::new("/proc/sys/net/ipv6").exists();
    if !has {
        eprintln!("SKIPPED: this kernel has no IPv6");
    }
    has
}

/// At port 4000 of `address`.
fn udp_at(namespace: &OwnedFd, address: Ipv6Addr) -> UdpSocket {
    udp(namespace, &format!("[{address}]:4000"))
}

fn checksum(bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)));
    let mut sum: u32 = pairs.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What is behind the header of IPv6, with its checksum at a place.
fn summed(source: Ipv6Addr, target: Ipv6Addr, kind: u8, mut body: Vec<u8>, at: usize) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    let pseudo = [&source.octets()[..], &target.octets(), &length, &[0, 0, 0, kind], &body].concat();
    body[at..at + 2].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    body
}

/// From port 4242 to port 4000.
fn datagram(source: Ipv6Addr, target: Ipv6Addr, body: &[u8]) -> Vec<u8> {
    let fields = [4242, 4000, (8 + body.len()) as u16, 0].map(u16::to_be_bytes).concat();
    summed(source, target, 17, [&fields, body].concat(), 6)
}

fn icmp(source: Ipv6Addr, target: Ipv6Addr, kind: u8, body: &[u8]) -> Vec<u8> {
    summed(source, target, 58, [&[kind, 0, 0, 0], body].concat(), 2)
}

fn frame_ipv6(to: Mac, from: Mac, source: Ipv6Addr, target: Ipv6Addr, kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    let head = [&[0x60, 0, 0, 0][..], &length, &[kind, 255], &source.octets(), &target.octets()].concat();
    [&to[..], &from[..], &[0x86, 0xdd], &head, body].concat()
}

/// Hears every message of ICMP that comes to the stack of a namespace, and says of which kinds they are.
fn icmp_heard(namespace: &OwnedFd) -> impl FnMut() -> Vec<u8> + use<> {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with};
    let open = || socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::NONBLOCK, Some(ipproto::ICMPV6));
    let socket = netns::within(namespace, open).expect("enter").expect("raw socket");
    move || {
        let mut kinds = Vec::new();
        let mut buffer = [0; 2000];
        while let Ok((bytes, _)) = recv(&socket, &mut buffer[..], RecvFlags::empty()) {
            kinds.extend(buffer[..bytes].first());
        }
        kinds
    }
}

#[test]
fn ipv6_works_at_once_beside_ipv4_and_containers_hear_only_themselves() {
    if !is_root() || !has_ipv6() {
        return;
    }
    use std::io::{Read, Write};
    let nodes = Nodes::new();
    let (first, second) = (nodes.container(5), nodes.container(6));
    for index in 0..2_u8 {
        let listed = |namespace: &OwnedFd| {
            let list = || std::fs::read_to_string("/proc/thread-self/net/if_inet6").expect("addresses");
            let list = netns::within(namespace, list).expect("enter");
            list.lines().filter(|line| line.ends_with(INNER_NAME)).map(str::to_owned).collect::<Vec<_>>()
        };
        let [only] = &listed(&first[usize::from(index)])[..] else { panic!("one address, none of the link") };
        // Address, index, prefix, scope, flags: permanent, without a check for others, not tentative.
        assert!(only.starts_with(&format!("fd64767300000005{:016x} ", index + 1)), "{only}");
        assert_eq!(only.split_whitespace().skip(2).take(3).collect::<Vec<_>>(), ["40", "00", "82"], "{only}");
    }
    let (from, to) = (address_ipv6(5, 0), address_ipv6(5, 1));
    let listen = [udp_at(&first[1], to), udp_at(&second[1], address_ipv6(6, 1))];
    udp_at(&first[0], from).send_to(b"hello", (to, 4000)).expect("send");
    assert!(arrives(&listen[0]), "own container");
    assert!(stays_away(&listen[1]), "other container");
    let foreign = udp(&first[0], "[::]:0").send_to(b"hello", (address_ipv6(6, 1), 4000));
    assert_eq!(foreign.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH), "no route leads to another one");

    // As much as there is room for, and more than a frame takes at once.
    let listener = netns::within(&first[1], || TcpListener::bind((to, 5000))).expect("enter").expect("bind");
    let sender = std::thread::spawn(move || {
        let connect = || TcpStream::connect_timeout(&(to, 5000).into(), SOON);
        let mut stream = netns::within(&first[0], connect).expect("enter").expect("connect");
        stream.write_all(&vec![7; 4 << 20]).expect("write");
        first
    });
    let (mut stream, peer) = listener.accept().expect("accept");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("read");
    assert_eq!((bytes.len(), peer.ip()), (4 << 20, IpAddr::V6(from)));
    let first = sender.join().expect("sender");
    let large = [7; 9000];
    udp(&first[0], "[::]:0").send_to(&large, (to, 4000)).expect("send");
    listen[0].set_read_timeout(Some(SOON)).expect("time limit");
    let mut buffer = [0; 10_000];
    assert_eq!(listen[0].recv(&mut buffer).expect("fragments come together"), large.len());
}

#[test]
fn root_inside_can_send_as_nobody_else_by_ipv6() {
    if !is_root() || !has_ipv6() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    let (own, peer) = (mac(5, 0), mac(5, 1));
    let (source, target) = (address_ipv6(5, 0), address_ipv6(5, 1));
    let listener = udp_at(&inside[1], target);
    let send = |to: Mac, from: Mac, source: Ipv6Addr| {
        send_frame(&inside[0], &frame_ipv6(to, from, source, target, 17, &datagram(source, target, b"x")));
    };
    send(peer, own, source);
    assert!(arrives(&listener), "the frame itself is right");
    send(peer, mac(5, 7), source);
    assert!(stays_away(&listener), "source layer-2 address of another member");
    send([0xff; 6], own, source);
    send([0x33, 0x33, 0, 0, 0, 1], own, source);
    assert!(stays_away(&listener), "addresses of groups");
    for spoofed in ["fd64:7673:0:5::9", "fd64:7673:0:6::1", "fe80::5444:ff:fe00:500", "2001:db8::1", "::ffff:10.1.0.1"]
    {
        send(peer, own, spoofed.parse().expect("address"));
        assert!(stays_away(&listener), "{spoofed}");
    }
    send(peer, own, source);
    assert!(arrives(&listener), "the filter did not close for good");
}

#[test]
fn members_hear_nothing_of_neighbours_and_routers_that_root_inside_makes_up() {
    if !is_root() || !has_ipv6() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    let (own, peer) = (mac(5, 0), mac(5, 1));
    let (source, target, other) = (address_ipv6(5, 0), address_ipv6(5, 1), address_ipv6(5, 2));
    let link: Ipv6Addr = "fe80::5444:ff:fe00:500".parse().expect("address");
    let mut heard = icmp_heard(&inside[1]);
    let said = |source: Ipv6Addr, to: Mac, target: Ipv6Addr, kind: u8, body: &[u8]| {
        frame_ipv6(to, own, source, target, 58, &icmp(source, target, kind, body))
    };
    let source_mac = [&[1, 1][..], &own].concat();
    let target_mac = [&[2, 1][..], &own].concat();
    // A router for everybody, with a prefix of its own, for half an hour.
    let prefix = [
        &[3, 4, 64, 0xc0][..],
        &[0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0],
        &"2001:db8::".parse::<Ipv6Addr>().expect("address").octets(),
    ]
    .concat();
    let router = [&[64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &source_mac, &prefix].concat();
    let is_at = [&[0x60, 0, 0, 0][..], &other.octets(), &target_mac].concat();
    let asks = [&[0; 4][..], &target.octets(), &source_mac].concat();
    let better = [&[0; 4][..], &source.octets(), &other.octets(), &target_mac].concat();
    let all: Ipv6Addr = "ff02::1".parse().expect("address");
    let group = [0x33, 0x33, 0, 0, 0, 1];
    let mut hostile = vec![said(link, group, all, 134, &router), said(source, group, all, 136, &is_at)];
    for (kind, body) in
        [(133, &[0; 4][..]), (134, &router), (135, &asks), (136, &is_at), (137, &better), (143, &[0; 4])]
    {
        for from in [source, link, Ipv6Addr::UNSPECIFIED, other] {
            hostile.push(said(from, peer, target, kind, body));
        }
        // Behind headers that say nothing, and in pieces.
        let message = icmp(source, target, kind, body);
        for before in [0, 60, 43] {
            let hidden = [&[58, 0, 1, 4, 0, 0, 0, 0][..], &message].concat();
            hostile.push(frame_ipv6(peer, own, source, target, before, &hidden));
        }
        let whole = [&[58, 0, 0, 0, 0, 0, 0, 1][..], &message].concat();
        hostile.push(frame_ipv6(peer, own, source, target, 44, &whole));
    }
    hostile.iter().for_each(|frame| send_frame(&inside[0], frame));
    let echo = [0, 1, 0, 1];
    send_frame(&inside[0], &said(source, peer, target, 128, &echo));
    let begin = Instant::now();
    let mut kinds = Vec::new();
    while !kinds.contains(&128) {
        assert!(begin.elapsed() < SOON, "the control does not arrive: {kinds:?}");
        std::thread::yield_now();
        kinds.extend(heard());
    }
    // Frames arrive in the order in which they were sent.
    assert_eq!(kinds, [128]);
}

#[test]
fn root_inside_reaches_by_ipv6_neither_the_node_nor_a_foreign_network() {
    if !is_root() || !has_ipv6() {
        return;
    }
    let nodes = Nodes::new();
    let (attacker, victim) = (nodes.container(5), nodes.container(6));
    let (source, foreign) = (address_ipv6(5, 0), address_ipv6(6, 0));
    let mut links = Links::within(&nodes.0[0]).expect("links");
    // The node would hear what comes to its bridge: it has addresses there, and belongs to the group of all.
    let bridge = links.get("dvsb5").expect("bridge");
    let bridge_mac = bridge.mac.expect("mac");
    let enable = || std::fs::write("/proc/sys/net/ipv6/conf/dvsb5/disable_ipv6", "0");
    netns::within(&nodes.0[0], enable).expect("enter").expect("IPv6 on the bridge");
    let of_node = ["fe80::1", "2001:db8::1", "fd64:7673:0:5::1"].map(|text| text.parse::<Ipv6Addr>().expect("address"));
    for address in of_node {
        links.ensure_address(&bridge, address.into(), 64).expect("address");
    }
    let node = udp(&nodes.0[0], "[::]:4000");
    let mut node_heard = icmp_heard(&nodes.0[0]);
    let listener = udp_at(&victim[0], foreign);
    let group = [0x33, 0x33, 0, 0, 0, 1];
    let all: Ipv6Addr = "ff02::1".parse().expect("address");
    for to in [bridge_mac, mac(5, 1), mac(5, 0), mac(6, 0), group, [0x33, 0x33, 0, 0, 0, 2], [0xff; 6]] {
        for target in of_node.into_iter().chain([all, foreign]) {
            for from in [source, "fe80::5444:ff:fe00:500".parse().expect("address")] {
                let frame = |kind, body: &[u8]| frame_ipv6(to, mac(5, 0), from, target, kind, body);
                send_frame(&attacker[0], &frame(17, &datagram(from, target, b"x")));
                for kind in [128, 133, 134, 135, 136, 143] {
                    send_frame(&attacker[0], &frame(58, &icmp(from, target, kind, &[0; 20])));
                }
            }
        }
    }
    assert!(stays_away(&node), "the node's own stack");
    assert!(stays_away(&listener), "foreign network");
    assert_eq!(node_heard(), Vec::<u8>::new(), "the node's own stack");

    // Members with foreign addresses do not hear what is sent to these: the address alone is kept away.
    let mut inside = Links::within(&attacker[1]).expect("links");
    let eth0 = inside.get(INNER_NAME).expect("eth0");
    for address in [of_node[1], foreign] {
        inside.ensure_address(&eth0, address.into(), 64).expect("address");
        let member = udp_at(&attacker[1], address);
        let frame = frame_ipv6(mac(5, 1), mac(5, 0), source, address, 17, &datagram(source, address, b"x"));
        send_frame(&attacker[0], &frame);
        assert!(stays_away(&member), "{address}");
    }
    let (target, member) = (address_ipv6(5, 1), udp_at(&attacker[1], address_ipv6(5, 1)));
    let frame = frame_ipv6(mac(5, 1), mac(5, 0), source, target, 17, &datagram(source, target, b"x"));
    send_frame(&attacker[0], &frame);
    assert!(arrives(&member), "the control");
}

#[test]
fn node_without_ipv6_gives_none_and_takes_back_what_it_gave() {
    if !is_root() || !has_ipv6() {
        return;
    }
    let nodes = Nodes::new();
    let inside = nodes.container(5);
    let here = || netns::within(&nodes.0[0], || ipv6_here(node_address(0))).expect("enter");
    assert!(here().is_ok());
    let switch = |value: &'static str| {
        let write = || std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", value);
        netns::within(&nodes.0[0], write).expect("enter").expect("a setting");
    };
    switch("1");
    assert!(matches!(here(), Err(NoIpv6::SwitchedOff(_))));
    switch("0");
    let mut links = Links::within(&nodes.0[0]).expect("links");
    let up = links.get("up0").expect("up0");
    links.set_mtu(&up, 1329).expect("MTU");
    assert!(matches!(here(), Err(NoIpv6::Mtu { mtu: 1329, .. })));
    links.set_mtu(&up, 1330).expect("MTU");
    assert!(here().is_ok(), "1280 bytes inside are enough");

    let bind = |at: Ipv6Addr| netns::within(&inside[0], || UdpSocket::bind((at, 4000))).expect("enter");
    assert!(bind(address_ipv6(5, 0)).is_ok());
    let plug = |has_ipv6| {
        let overlay = Overlay { has_ipv6, ..Nodes::overlay(5, 0) };
        netns::within(&nodes.0[0], || overlay.ensure(&inside[0])).expect("enter").expect("overlay");
    };
    plug(false);
    assert!(bind(address_ipv6(5, 0)).is_err());
    let sent = udp(&inside[0], "[::]:0").send_to(b"x", (address_ipv6(5, 1), 4000));
    assert_eq!(sent.unwrap_err().raw_os_error(), Some(libc::ENETUNREACH), "at once");
    let listener = udp(&inside[1], "10.1.0.2:4000");
    udp(&inside[0], "10.1.0.1:0").send_to(b"hello", "10.1.0.2:4000").expect("send");
    assert!(arrives(&listener), "IPv4 is what it was");
    plug(true);
    let listener = udp_at(&inside[1], address_ipv6(5, 1));
    bind(address_ipv6(5, 0)).expect("bound").send_to(b"hello", (address_ipv6(5, 1), 4000)).expect("send");
    assert!(arrives(&listener), "and again");
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
