//! Sockets that hear what is sent to addresses of others, in one network namespace: a program of the kernel's
//! (`BPF_PROG_TYPE_SK_LOOKUP`, Linux 5.9) that is asked for whom a connection or datagram is before the kernel looks at
//! ports. And what whoever hears so needs besides: to whom a datagram was sent, and answers in that name.
//!
//! Not here: that packets to such addresses are delivered at all (a local route, `node/sandbox`).

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Addresses that stay what they are: network and mask.
pub type OwnNetwork = (Ipv4Addr, Ipv4Addr);

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_SOCKMAP: u32 = 15;
const PROG_TYPE_SK_LOOKUP: u32 = 30;
const ATTACH_SK_LOOKUP: u32 = 36;

/// Until the answer is closed, everything that programs of the namespace send by TCP or UDP to an address of IPv4
/// outside of `own` and 127.0.0.0/8 goes to `stream`, which listens, or `datagrams`. Both are of that namespace.
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

fn program((network, mask): OwnNetwork, map: i32) -> Vec<Instruction> {
    const LOAD_WORD: u8 = 0x61;
    const STORE_WORD: u8 = 0x62;
    const LOAD_LONG: u8 = 0x18;
    const MOVE: u8 = 0xbf;
    const MOVE_CONSTANT: u8 = 0xb7;
    const ADD_CONSTANT: u8 = 0x07;
    const AND_CONSTANT: u8 = 0x54;
    const IF_EQUAL: u8 = 0x15;
    const IF_EQUAL_32: u8 = 0x16;
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
    /// Patched to what passes the packet on as it is.
    const TO_END: i16 = i16::MAX;

    let one = |code, target, source, offset, constant| Instruction { code, target, source, offset, constant };
    // Addresses are in the order of the network.
    let word = |address: Ipv4Addr| i32::from_ne_bytes(address.octets());
    let within = |network: Ipv4Addr, mask: Ipv4Addr| {
        [one(MOVE, 2, 3, 0, 0), one(AND_CONSTANT, 2, 0, 0, word(mask)), one(IF_EQUAL_32, 2, 0, TO_END, word(network))]
    };
    let mut code = vec![
        one(MOVE, 6, 1, 0, 0),
        one(LOAD_WORD, 2, 6, FAMILY, 0),
        one(IF_OTHER, 2, 0, TO_END, libc::AF_INET),
        one(LOAD_WORD, 3, 6, LOCAL_IP4, 0),
    ];
    code.extend(within(Ipv4Addr::new(127, 0, 0, 0), Ipv4Addr::new(255, 0, 0, 0)));
    code.extend(within(network, mask));
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
    switch_on(&socket.as_fd(), libc::IP_TRANSPARENT)
}

/// From now on [`receive`] tells of the socket's datagrams to whom they were sent.
pub fn ask_for_destination(datagrams: impl AsFd) -> io::Result<()> {
    switch_on(&datagrams.as_fd(), libc::IP_RECVORIGDSTADDR)
}

fn switch_on(socket: &impl AsRawFd, option: libc::c_int) -> io::Result<()> {
    let one: libc::c_int = 1;
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: (1) the value is an int of the length that is given, and is only read.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_IP, option, (&raw const one).cast(), bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A datagram of IPv4: its bytes, who sent it, and to whom.
pub type Addressed = (usize, SocketAddrV4, SocketAddrV4);

/// Takes one datagram; never waits. What is longer than the buffer is cut. `None` for both addresses is an error
/// (`InvalidData`): it is of another family, or nobody asked for its destination.
pub fn receive(datagrams: impl AsFd, buffer: &mut [u8]) -> io::Result<Addressed> {
    let mut from = no_address();
    let mut control = Control([0; CONTROL_BYTES]);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: (1) all zeros is a valid msghdr: numbers, and pointers that are null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
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
    let is_whole = message.msg_namelen as usize == size_of::<libc::sockaddr_in>();
    match to.filter(|_| is_whole && from.sin_family == libc::AF_INET as u16) {
        Some(to) => Ok((bytes, address_of(&from), address_of(&to))),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// # Safety
/// `message` was filled by `recvmsg`, and its control buffer is still there.
unsafe fn destination_of(message: &libc::msghdr) -> Option<libc::sockaddr_in> {
    // SAFETY: (1) CMSG_FIRSTHDR and CMSG_NXTHDR answer null or a head within the control buffer (contract); (2) a head
    // of this type is followed by an address of IPv4.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_IP && (*head).cmsg_type == libc::IP_ORIGDSTADDR {
                return Some(libc::CMSG_DATA(head).cast::<libc::sockaddr_in>().read_unaligned());
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    None
}

/// Room for the destination, aligned as its head must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: (1) it computes with plain numbers.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::sockaddr_in>() as u32) } as usize;

fn no_address() -> libc::sockaddr_in {
    libc::sockaddr_in { sin_family: 0, sin_port: 0, sin_addr: libc::in_addr { s_addr: 0 }, sin_zero: [0; 8] }
}

fn address_of(address: &libc::sockaddr_in) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()), u16::from_be(address.sin_port))
}

/// A socket of datagrams that speaks as `own`, whoever has that address, with `peer` alone. Non-blocking, in the
/// network namespace of the calling thread.
///
/// # Errors
/// As of [`stand_for_others`].
pub fn speak_as(own: SocketAddrV4, peer: SocketAddrV4) -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
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
        unshare(Kinds::NET).is_ok()
            && Command::new("sh").args(["-ec", script]).status().is_ok_and(|done| done.success())
    }

    #[test]
    fn what_is_sent_elsewhere_is_heard_and_answered_in_the_name_of_whom_it_was_for() {
        let test = || {
            if !somewhere() {
                return eprintln!("SKIPPED: this test needs root, and ip");
            }
            let stream = TcpListener::bind("127.0.0.1:0").unwrap();
            let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
            ask_for_destination(&datagrams).unwrap();
            stand_for_others(&stream).unwrap();
            let own = (Ipv4Addr::new(10, 1, 0, 0), Ipv4Addr::new(255, 255, 255, 0));
            let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
            let attached = attach(namespace.as_fd(), own, &stream, &datagrams).unwrap();

            let mut client = TcpStream::connect("192.0.2.1:80").unwrap();
            let (mut heard, from) = stream.accept().unwrap();
            assert_eq!(
                (heard.local_addr().unwrap(), from),
                ("192.0.2.1:80".parse().unwrap(), client.local_addr().unwrap())
            );
            heard.write_all(b"hello").unwrap();
            let mut said = [0; 5];
            client.read_exact(&mut said).unwrap();
            assert_eq!((&said, from.ip().to_string().as_str()), (b"hello", "10.1.0.1"));

            let client = UdpSocket::bind("0.0.0.0:0").unwrap();
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            client.send_to(b"question", "192.0.2.53:53").unwrap();
            let mut buffer = [0; 100];
            let (bytes, from, to) = receive(&datagrams, &mut buffer).unwrap();
            assert_eq!((&buffer[..bytes], to), (&b"question"[..], "192.0.2.53:53".parse().unwrap()));
            let speaker = UdpSocket::from(speak_as(to, from).unwrap());
            speaker.send(b"answer").unwrap();
            assert_eq!(client.recv_from(&mut buffer).unwrap(), (6, to.into()));
            // From now on this one hears it.
            client.send_to(b"more", to).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(speaker.recv(&mut buffer).unwrap(), 4);

            // The own network and this host are what they were.
            for nobody in ["127.0.0.1:1", "10.1.0.1:1"] {
                assert!(TcpStream::connect(nobody).is_err(), "{nobody}");
            }
            drop(attached);
            let late = TcpStream::connect_timeout(&"192.0.2.1:80".parse().unwrap(), Duration::from_millis(200));
            assert!(late.is_err(), "nobody hears it any more");
        };
        std::thread::spawn(test).join().unwrap();
    }
}
