//! Sockets that hear what is sent to addresses of others, in one network namespace: a program of the kernel's
//! (`BPF_PROG_TYPE_SK_LOOKUP`, Linux 5.9) that is asked for whom a connection or datagram is before the kernel looks at
//! ports. And what whoever hears so needs besides: to whom a datagram was sent, and answers in that name.
//!
//! Not here: that packets to such addresses are delivered at all (a local route, `node/sandbox`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Addresses that stay what they are: network and mask, or the network of 64 bits that an address is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnNetwork {
    Ipv4(Ipv4Addr, Ipv4Addr),
    Ipv6(Ipv6Addr),
}

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;

/// Until the answer is closed, everything that programs of the namespace send by TCP or UDP to an address of the family
/// of `own` outside of that network and of this host alone (127.0.0.0/8; ::1 and addresses of a link) goes to `stream`,
/// which listens, or `datagrams`. Both are of that namespace and family.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN, EINVAL on a kernel before 5.9.
pub fn attach(
    namespace: BorrowedFd<'_>,
    own: OwnNetwork,
    stream: impl AsFd,
    datagrams: impl AsFd,
) -> io::Result<OwnedFd> {
    let map = create_map()?;
    for (key, socket) in [stream.as_fd(), datagrams.as_fd()].into_iter().enumerate() {
        put(&map, key as u32, socket)?;
    }
    let program = load(&program(own, map.as_raw_fd()))?;
    link(&program, namespace)
}

/// `bpf(2)`, with the fields of its attribute that a command uses.
fn bpf<const WORDS: usize>(command: libc::c_long, mut attribute: [u64; WORDS]) -> io::Result<libc::c_long> {
    // SAFETY: (1) the attribute is as long as it says; (2) what it points to is borrowed by the callers until the call
    // ends, and only read, or is null.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attribute.as_mut_ptr(), size_of_val(&attribute)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

fn descriptor(number: libc::c_long) -> OwnedFd {
    // SAFETY: (1) bpf just returned this descriptor to us and nobody else.
    unsafe { OwnedFd::from_raw_fd(number as i32) }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Of two sockets, under 0 and 1.
fn create_map() -> io::Result<OwnedFd> {
    const KEY_BYTES: u32 = 4;
    const VALUE_BYTES: u32 = 8;
    bpf(MAP_CREATE, [pair(MAP_TYPE_SOCKMAP, KEY_BYTES), pair(VALUE_BYTES, 2), 0]).map(descriptor)
}

fn put(map: &OwnedFd, key: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    let value = socket.as_raw_fd() as u64;
    let number = map.as_raw_fd() as u32;
    bpf(MAP_UPDATE_ELEM, [pair(number, 0), &raw const key as u64, &raw const value as u64, 0]).map(drop)
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let code: Vec<u64> = program.iter().map(|instruction| instruction.word()).collect();
    let license = c"Apache-2.0";
    // Type and count, code, license, log (three words), kernel's version and flags, name (two words), interface index
    // and attachment.
    let attribute = [
        pair(PROG_TYPE_SK_LOOKUP, code.len() as u32),
        code.as_ptr() as u64,
        license.as_ptr() as u64,
        0,
        0,
        0,
        0,
        0,
        pair(0, ATTACH_SK_LOOKUP),
    ];
    bpf(PROG_LOAD, attribute).map(descriptor)
}

fn link(program: &OwnedFd, namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let [program, namespace] = [program.as_raw_fd(), namespace.as_raw_fd()].map(|number| number as u32);
    bpf(LINK_CREATE, [pair(program, namespace), pair(ATTACH_SK_LOOKUP, 0)]).map(descriptor)
}

/// One of eBPF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Instruction {
    code: u8,
    target: u8,
    source: u8,
    offset: i16,
    constant: i32,
}

impl Instruction {
    fn word(self) -> u64 {
        u64::from(self.code)
            | u64::from(self.target | self.source << 4) << 8
            | u64::from(self.offset as u16) << 16
            | u64::from(self.constant as u32) << 32
    }
}

/// Of `struct bpf_sk_lookup`.
const FAMILY: i16 = 8;
const PROTOCOL: i16 = 12;
const LOCAL_IP4: i16 = 40;
const LOCAL_IP6: i16 = 44;

const LOAD_WORD: u8 = 0x61;
const AND_CONSTANT: u8 = 0x54;
const IF_EQUAL_32: u8 = 0x16;
const IF_OTHER_32: u8 = 0x56;
/// Patched to what passes the packet on as it is.
const TO_END: i16 = i16::MAX;

fn one(code: u8, target: u8, source: u8, offset: i16, constant: i32) -> Instruction {
    Instruction { code, target, source, offset, constant }
}

/// A word of the address that is asked for, in a mask, is this one. All in the order of the network.
#[derive(Clone, Copy)]
struct IsWord {
    at: i16,
    mask: [u8; 4],
    value: [u8; 4],
}

/// What has all these words is passed on as it is.
fn unless_all(words: &[IsWord]) -> Vec<Instruction> {
    const EACH: usize = 3;
    let mut code = Vec::new();
    for (index, IsWord { at, mask, value }) in words.iter().enumerate() {
        let [mask, value] = [mask, value].map(|bytes| i32::from_ne_bytes(*bytes));
        let left = words.len() - index - 1;
        code.push(one(LOAD_WORD, 2, 6, *at, 0));
        code.push(one(AND_CONSTANT, 2, 0, 0, mask));
        code.push(match left {
            0 => one(IF_EQUAL_32, 2, 0, TO_END, value),
            _ => one(IF_OTHER_32, 2, 0, (left * EACH) as i16, value),
        });
    }
    code
}

/// Whom to leave alone: what comes to `own`, and to this host.
fn exceptions(own: OwnNetwork) -> (i32, Vec<Instruction>) {
    const ALL: [u8; 4] = [0xff; 4];
    match own {
        OwnNetwork::Ipv4(network, mask) => {
            let within = |network: [u8; 4], mask| unless_all(&[IsWord { at: LOCAL_IP4, mask, value: network }]);
            let host = within([127, 0, 0, 0], [255, 0, 0, 0]);
            (libc::AF_INET, [host, within(network.octets(), mask.octets())].concat())
        }
        OwnNetwork::Ipv6(address) => {
            let words = |address: Ipv6Addr, count: usize| -> Vec<IsWord> {
                let words = address.octets();
                let (words, _) = words.as_chunks::<4>();
                let word =
                    |(at, value): (usize, &[u8; 4])| IsWord { at: LOCAL_IP6 + 4 * at as i16, mask: ALL, value: *value };
                words.iter().enumerate().take(count).map(word).collect()
            };
            let link = IsWord { at: LOCAL_IP6, mask: [0xff, 0xc0, 0, 0], value: [0xfe, 0x80, 0, 0] };
            let host = unless_all(&words(Ipv6Addr::LOCALHOST, 4));
            (libc::AF_INET6, [host, unless_all(&[link]), unless_all(&words(address, 2))].concat())
        }
    }
}

fn program(own: OwnNetwork, map: i32) -> Vec<Instruction> {
    const STORE_WORD: u8 = 0x62;
    const LOAD_LONG: u8 = 0x18;
    const MOVE: u8 = 0xbf;
    const MOVE_CONSTANT: u8 = 0xb7;
    const ADD_CONSTANT: u8 = 0x07;
    const IF_EQUAL: u8 = 0x15;
    const IF_OTHER: u8 = 0x55;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const MAP_LOOKUP: i32 = 1;
    const SK_RELEASE: i32 = 86;
    const SK_ASSIGN: i32 = 124;
    const FROM_MAP: u8 = 1;
    const STACK: u8 = 10;
    const KEY_AT: i16 = -4;
    const PASS: i32 = 1;

    let (family, exceptions) = exceptions(own);
    let mut code = vec![one(MOVE, 6, 1, 0, 0), one(LOAD_WORD, 2, 6, FAMILY, 0), one(IF_OTHER, 2, 0, TO_END, family)];
    code.extend(exceptions);
    code.extend([
        one(STORE_WORD, STACK, 0, KEY_AT, 0),
        one(LOAD_WORD, 2, 6, PROTOCOL, 0),
        one(IF_EQUAL, 2, 0, 1, libc::IPPROTO_TCP),
        one(STORE_WORD, STACK, 0, KEY_AT, 1),
        one(MOVE, 2, STACK, 0, 0),
        one(ADD_CONSTANT, 2, 0, 0, i32::from(KEY_AT)),
        one(LOAD_LONG, 1, FROM_MAP, 0, map),
        one(0, 0, 0, 0, 0),
        one(CALL, 0, 0, 0, MAP_LOOKUP),
        one(IF_EQUAL, 0, 0, TO_END, 0),
        one(MOVE, 7, 0, 0, 0),
        one(MOVE, 1, 6, 0, 0),
        one(MOVE, 2, 7, 0, 0),
        one(MOVE_CONSTANT, 3, 0, 0, 0),
        one(CALL, 0, 0, 0, SK_ASSIGN),
        one(MOVE, 1, 7, 0, 0),
        one(CALL, 0, 0, 0, SK_RELEASE),
        one(MOVE_CONSTANT, 0, 0, 0, PASS),
        one(EXIT, 0, 0, 0, 0),
    ]);
    let end = code.len().saturating_sub(2);
    for (at, instruction) in code.iter_mut().enumerate().filter(|(_, instruction)| instruction.offset == TO_END) {
        instruction.offset = (end - at - 1) as i16;
    }
    code
}

/// From now on the socket answers in the name of whoever it is spoken to as: without this the kernel sends nothing from
/// an address that no interface has.
///
/// # Errors
/// EPERM without CAP_NET_RAW or CAP_NET_ADMIN over its network namespace.
pub fn stand_for_others(socket: impl AsFd) -> io::Result<()> {
    switch_on(socket.as_fd(), libc::IP_TRANSPARENT, libc::IPV6_TRANSPARENT)
}

/// From now on [`receive`] tells of the socket's datagrams to whom they were sent.
pub fn ask_for_destination(datagrams: impl AsFd) -> io::Result<()> {
    switch_on(datagrams.as_fd(), libc::IP_RECVORIGDSTADDR, libc::IPV6_RECVORIGDSTADDR)
}

/// The option of the socket's family.
fn switch_on(socket: BorrowedFd<'_>, ipv4: libc::c_int, ipv6: libc::c_int) -> io::Result<()> {
    let is_ipv6 = rustix::net::sockopt::socket_domain(socket)? == rustix::net::AddressFamily::INET6;
    let (level, option) = if is_ipv6 { (libc::SOL_IPV6, ipv6) } else { (libc::SOL_IP, ipv4) };
    let on: libc::c_int = 1;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: (1) the value is an int of the length that is given, and is only read.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A datagram: its bytes, who sent it, and to whom.
pub type Addressed = (usize, SocketAddr, SocketAddr);

/// Takes one datagram; never waits. What is longer than the buffer is cut. Without both addresses it is an error
/// (`InvalidData`): nobody asked for its destination.
pub fn receive(datagrams: impl AsFd, buffer: &mut [u8]) -> io::Result<Addressed> {
    // SAFETY: (1) all zeros is a valid address: a family, and bytes.
    let mut from: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut control = Control([0; CONTROL_BYTES]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: (1) all zeros is a valid msghdr: numbers, and pointers that are null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: (1) all that the message points to lives until the call ends, is borrowed by it alone, and is as long as
    // it says.
    let received = unsafe { libc::recvmsg(datagrams.as_fd().as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: (1) the kernel filled the message just now, and its control buffer is still there.
    let to = unsafe { destination_of(&message) };
    // SAFETY: (1) the structure is longer than an address of IPv4, aligned like one, and all its bytes are there.
    let as_ipv4 = unsafe { (&raw const from).cast::<libc::sockaddr_in>().read() };
    let from = match (message.msg_namelen as usize, i32::from(from.sin6_family)) {
        (IPV4_BYTES, libc::AF_INET) => Some(ipv4_of(&as_ipv4)),
        (IPV6_BYTES, libc::AF_INET6) => Some(ipv6_of(&from)),
        _ => None,
    };
    from.zip(to).map(|(from, to)| (bytes, from, to)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

const IPV4_BYTES: usize = size_of::<libc::sockaddr_in>();
const IPV6_BYTES: usize = size_of::<libc::sockaddr_in6>();

/// # Safety
/// `message` was filled by `recvmsg`, and its control buffer is still there.
unsafe fn destination_of(message: &libc::msghdr) -> Option<SocketAddr> {
    // SAFETY: (1) CMSG_FIRSTHDR and CMSG_NXTHDR answer null or a head within the control buffer (contract); (2) heads
    // of these types are followed by an address of their family.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            match ((*head).cmsg_level, (*head).cmsg_type) {
                (libc::SOL_IP, libc::IP_ORIGDSTADDR) => {
                    return Some(ipv4_of(&libc::CMSG_DATA(head).cast::<libc::sockaddr_in>().read_unaligned()));
                }
                (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                    return Some(ipv6_of(&libc::CMSG_DATA(head).cast::<libc::sockaddr_in6>().read_unaligned()));
                }
                _ => head = libc::CMSG_NXTHDR(message, head),
            }
        }
    }
    None
}

/// Room for the destination, aligned as its head must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: (1) it computes with plain numbers.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(IPV6_BYTES as u32) } as usize;

fn ipv4_of(address: &libc::sockaddr_in) -> SocketAddr {
    let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
    SocketAddrV4::new(ip, u16::from_be(address.sin_port)).into()
}

fn ipv6_of(address: &libc::sockaddr_in6) -> SocketAddr {
    let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
    SocketAddrV6::new(ip, u16::from_be(address.sin6_port), 0, address.sin6_scope_id).into()
}

/// A socket of datagrams that speaks as `own`, whoever has that address, with `peer` alone. Non-blocking, in the
/// network namespace of the calling thread.
///
/// # Errors
/// As of [`stand_for_others`].
pub fn speak_as(own: SocketAddr, peer: SocketAddr) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    // For several peers there are several that speak as the same.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    stand_for_others(&socket)?;
    bind(&socket, &own)?;
    connect(&socket, &peer)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::ns::{Kinds, unshare};

    /// In a network namespace with an address of its own, and everything else local.
    fn somewhere() -> bool {
        let script = "ip link set lo up && ip link add d0 type veth peer name d1 && ip addr add 10.1.0.1/24 dev d0 &&
            ip link set d0 up && ip link set d1 up && ip route add local default dev lo table 100 src 10.1.0.1 &&
            ip rule add pref 40000 ipproto tcp table 100 && ip rule add pref 40000 ipproto udp table 100";
        is_done(script)
    }

    fn by_ipv6_too() -> bool {
        let script = "ip addr add fd64:7673:0:1::1/64 dev d0 nodad &&
            ip -6 route add local ::/0 dev lo table 100 src fd64:7673:0:1::1 &&
            ip -6 rule add pref 40000 ipproto tcp table 100 && ip -6 rule add pref 40000 ipproto udp table 100";
        is_done(script)
    }

    fn is_done(script: &str) -> bool {
        Command::new("sh").args(["-ec", script]).status().is_ok_and(|done| done.success())
    }

    /// Addresses of one family.
    struct Family {
        own: OwnNetwork,
        here: &'static str,
        host: &'static str,
        web: &'static str,
        name_server: &'static str,
    }

    fn hears_and_answers(family: &Family) {
        let at = |host: &str, port: u16| SocketAddr::new(host.parse().unwrap(), port);
        let stream = TcpListener::bind(at(family.host, 0)).unwrap();
        let datagrams = UdpSocket::bind(at(family.host, 0)).unwrap();
        ask_for_destination(&datagrams).unwrap();
        stand_for_others(&stream).unwrap();
        let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
        let attached = attach(namespace.as_fd(), family.own, &stream, &datagrams).unwrap();

        let web = at(family.web, 80);
        let mut client = TcpStream::connect(web).unwrap();
        let (mut heard, from) = stream.accept().unwrap();
        assert_eq!((heard.local_addr().unwrap(), from), (web, client.local_addr().unwrap()));
        heard.write_all(b"hello").unwrap();
        let mut said = [0; 5];
        client.read_exact(&mut said).unwrap();
        assert_eq!((&said, from.ip().to_string().as_str()), (b"hello", family.here));

        let client = UdpSocket::bind(SocketAddr::new(if web.is_ipv4() { [0; 4].into() } else { [0; 16].into() }, 0));
        let client = client.unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let server = at(family.name_server, 53);
        client.send_to(b"question", server).unwrap();
        let mut buffer = [0; 100];
        let (bytes, from, to) = receive(&datagrams, &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], to), (&b"question"[..], server));
        let speaker = UdpSocket::from(speak_as(to, from).unwrap());
        speaker.send(b"answer").unwrap();
        assert_eq!(client.recv_from(&mut buffer).unwrap(), (6, to));
        // From now on this one hears it.
        client.send_to(b"more", to).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(speaker.recv(&mut buffer).unwrap(), 4);

        // The own network and this host are what they were.
        for nobody in [at(family.host, 1), at(family.here, 1)] {
            assert!(TcpStream::connect(nobody).is_err(), "{nobody}");
        }
        drop(attached);
        let late = TcpStream::connect_timeout(&web, Duration::from_millis(200));
        assert!(late.is_err(), "nobody hears it any more");
    }

    #[test]
    fn what_is_sent_elsewhere_is_heard_and_answered_in_the_name_of_whom_it_was_for() {
        let test = || {
            if !(unshare(Kinds::NET).is_ok() && somewhere()) {
                return eprintln!("SKIPPED: this test needs root, and ip");
            }
            hears_and_answers(&Family {
                own: OwnNetwork::Ipv4(Ipv4Addr::new(10, 1, 0, 0), Ipv4Addr::new(255, 255, 255, 0)),
                here: "10.1.0.1",
                host: "127.0.0.1",
                web: "192.0.2.1",
                name_server: "192.0.2.53",
            });
            if !by_ipv6_too() {
                return eprintln!("SKIPPED: this machine has no IPv6");
            }
            hears_and_answers(&Family {
                own: OwnNetwork::Ipv6("fd64:7673:0:1::1".parse().unwrap()),
                here: "fd64:7673:0:1::1",
                host: "::1",
                web: "2001:db8::1",
                name_server: "2001:db8::53",
            });
        };
        std::thread::spawn(test).join().unwrap();
    }
}
