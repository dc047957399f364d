//! UDP sockets that send and receive several datagrams by one system call.
//!
//! Segmentation offload (`UDP_SEGMENT`, Linux 4.18): one buffer goes out as datagrams of equal length, the last may be
//! shorter. Receive offload (`UDP_GRO`, Linux 5.0): such a run comes in as one buffer again, with the length of a
//! datagram beside it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
use rustix::net::{RecvFlags, SendFlags, SocketAddrAny};

/// What the kernel may hold for a reader that is busy, and of a writer.
const BUFFER_BYTES: libc::c_int = 8 << 20;
/// The longest run the kernel sends by one call.
pub const SEGMENTS_MAX: usize = 64;
/// The longest datagram of IPv4, and so the longest run that is sent or received at once.
pub const RUN_BYTES_MAX: usize = 65_507;

/// A non-blocking socket at `address`, in the network namespace of the calling thread. It never sends fragments, so
/// that the longest datagram of a path can be found by trying.
pub fn open(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    match address {
        SocketAddr::V4(_) => set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?,
        SocketAddr::V6(_) => set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?,
    }
    // A kernel that refuses these has smaller buffers, and hands over datagrams one by one.
    for (forced, option) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)] {
        let _ = set(&socket, libc::SOL_SOCKET, forced, BUFFER_BYTES)
            .or_else(|_| set(&socket, libc::SOL_SOCKET, option, BUFFER_BYTES));
    }
    let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    Ok(socket.into())
}

fn set(socket: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: (1) the value is an int of the length that is given; (2) it is only read.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends one datagram, or with `segment_bytes` a run of them: at most [`SEGMENTS_MAX`] and [`RUN_BYTES_MAX`].
/// `WouldBlock` when the kernel's buffer is full: nothing was sent.
pub fn send(socket: impl AsFd, to: SocketAddr, bytes: &[u8], segment_bytes: Option<u16>) -> io::Result<()> {
    let Some(segment_bytes) = segment_bytes else {
        rustix::net::sendto(socket, bytes, SendFlags::DONTWAIT, &to)?;
        return Ok(());
    };
    // SAFETY: (1) the closure passes the address and its length on as it gets them, while they are valid.
    unsafe {
        to.with_sockaddr(|address, address_bytes| {
            send_run(socket.as_fd(), address.cast(), address_bytes, bytes, segment_bytes)
        })
    }
}

/// # Safety
/// `address` points to `address_bytes` bytes that are a socket's address.
unsafe fn send_run(
    socket: BorrowedFd<'_>,
    address: *const libc::c_void,
    address_bytes: libc::socklen_t,
    bytes: &[u8],
    segment_bytes: u16,
) -> io::Result<()> {
    let mut control = Control::EMPTY;
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = message(address.cast_mut(), address_bytes, &mut vector, &mut control);
    // SAFETY: (1) the control buffer is aligned for a head and longer than one with a number of 16 bits; (2)
    // CMSG_FIRSTHDR and CMSG_DATA point into it.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_UDP;
        (*head).cmsg_type = libc::UDP_SEGMENT;
        (*head).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(head).cast::<u16>().write_unaligned(segment_bytes);
    }
    // SAFETY: (1) all that the message points to lives until the call ends and is only read: address (by contract),
    // bytes, control.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What came by one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    pub bytes: usize,
    pub from: SocketAddr,
    /// Length of each datagram but the last, when it may be several; never 0.
    pub segment_bytes: usize,
}

/// Takes one datagram or a run of them from one sender. `buffer` should take [`RUN_BYTES_MAX`]: what is longer is cut.
/// `WouldBlock` when none is there.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Received> {
    let mut address = std::mem::MaybeUninit::<SocketAddrStorage>::zeroed();
    let mut control = Control::EMPTY;
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let address_bytes = size_of::<SocketAddrStorage>() as libc::socklen_t;
    let mut message = message(address.as_mut_ptr().cast(), address_bytes, &mut vector, &mut control);
    let flags = RecvFlags::DONTWAIT.bits() as libc::c_int;
    // SAFETY: (1) all that the message points to lives until the call ends, is borrowed by it alone, and is as long as
    // it says.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    if !(2..=address_bytes).contains(&message.msg_namelen) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: (1) the storage was zeroed, and the kernel wrote an address of this length, which was checked, into it.
    let from = unsafe { SocketAddrAny::read(address.as_ptr(), message.msg_namelen) };
    let from = SocketAddr::try_from(from)?;
    // SAFETY: (1) the kernel filled the message.
    let segment = unsafe { segment_of(&message) };
    Ok(Received { bytes, from, segment_bytes: segment.filter(|segment| *segment > 0).unwrap_or(bytes.max(1)) })
}

/// # Safety
/// `message` was filled by `recvmsg`, and its control buffer is still there.
unsafe fn segment_of(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: (1) CMSG_FIRSTHDR and CMSG_NXTHDR answer null or a head within the control buffer (contract); (2) a head
    // of this type is followed by an int.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_UDP && (*head).cmsg_type == libc::UDP_GRO {
                let segment = libc::CMSG_DATA(head).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(segment).ok();
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    None
}

/// Room for one control message with an int, aligned as its head must be.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: (1) it computes with plain numbers.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as usize;

impl Control {
    const EMPTY: Control = Control([0; CONTROL_BYTES]);
}

fn message(
    address: *mut libc::c_void,
    address_bytes: libc::socklen_t,
    vector: &mut libc::iovec,
    control: &mut Control,
) -> libc::msghdr {
    // SAFETY: (1) all zeros is a valid msghdr: numbers, and pointers that are null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = address;
    message.msg_namelen = address_bytes;
    message.msg_iov = vector;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(socket: &OwnedFd) -> SocketAddr {
        rustix::net::getsockname(socket).unwrap().try_into().unwrap()
    }

    fn pair(address: &str) -> (OwnedFd, OwnedFd) {
        let any: SocketAddr = address.parse().unwrap();
        (open(any).unwrap(), open(any).unwrap())
    }

    /// Everything that is there, datagram by datagram.
    fn take_all(socket: &OwnedFd) -> Vec<(Vec<u8>, SocketAddr)> {
        let mut buffer = vec![0; RUN_BYTES_MAX];
        let mut taken = Vec::new();
        while let Ok(received) = receive(socket, &mut buffer) {
            let run = &buffer[..received.bytes];
            taken.extend(run.chunks(received.segment_bytes).map(|datagram| (datagram.to_vec(), received.from)));
        }
        taken
    }

    #[test]
    fn run_of_datagrams_arrives_as_the_same_datagrams() {
        // A machine may do without IPv6.
        let addresses = ["127.0.0.1:0", "[::1]:0"];
        for address in addresses.into_iter().filter(|address| UdpSocket::bind(address).is_ok()) {
            let (a, b) = pair(address);
            let run: Vec<u8> = (0..10_500_u32).map(|at| (at / 1000) as u8).collect();
            send(&a, address_of(&b), &run, Some(1000)).unwrap();
            let wanted: Vec<_> = run.chunks(1000).map(|datagram| (datagram.to_vec(), address_of(&a))).collect();
            assert_eq!(take_all(&b), wanted, "{address}");
            send(&b, address_of(&a), b"one", None).unwrap();
            assert_eq!(take_all(&a), [(b"one".to_vec(), address_of(&b))]);
        }
    }

    #[test]
    fn empty_socket_would_block_and_an_empty_datagram_is_one() {
        let (a, b) = pair("127.0.0.1:0");
        let mut buffer = [0; 16];
        assert_eq!(receive(&b, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&a, address_of(&b), b"", None).unwrap();
        let received = receive(&b, &mut buffer).unwrap();
        assert_eq!((received.bytes, received.segment_bytes), (0, 1));
    }
}
