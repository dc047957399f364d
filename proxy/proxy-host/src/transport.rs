//! Byte streams between nodes. TCP is the first; a sibling implements the two traits and nothing else.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

/// Whether the bytes of a link are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    Tls,
    Plain,
}

/// An ordered, reliable, non-blocking stream of bytes.
pub trait Stream: Read + Write + AsFd {
    /// For a stream that was dialled: `None` while it is being made, then whether it stands.
    fn established(&mut self) -> Option<io::Result<()>>;
}

/// Makes streams.
pub trait Transport {
    type Stream: Stream;
    /// Of a peer, and of this side.
    type Address: Clone + PartialEq + std::fmt::Display;

    /// Begins to dial; never blocks.
    fn dial(&self, address: &Self::Address) -> io::Result<Self::Stream>;
    /// The next stream that somebody dialled; `WouldBlock` when there is none.
    fn accept(&self) -> io::Result<Self::Stream>;
    fn local_address(&self) -> io::Result<Self::Address>;
    /// Readable when somebody dials.
    fn listener(&self) -> BorrowedFd<'_>;
}

/// System calls a transport makes beyond the base, for the filter of the process.
pub const SYSTEM_CALLS: &[i64] =
    &[SYS_SOCKET, SYS_CONNECT, SYS_ACCEPT4, SYS_SETSOCKOPT, SYS_GETSOCKNAME, SYS_GETPEERNAME, SYS_IOCTL];
#[cfg(target_arch = "x86_64")]
const SYS_SOCKET: i64 = 41;
#[cfg(target_arch = "x86_64")]
const SYS_CONNECT: i64 = 42;
#[cfg(target_arch = "x86_64")]
const SYS_ACCEPT4: i64 = 288;
#[cfg(target_arch = "x86_64")]
const SYS_SETSOCKOPT: i64 = 54;
#[cfg(target_arch = "x86_64")]
const SYS_GETSOCKNAME: i64 = 51;
#[cfg(target_arch = "x86_64")]
const SYS_GETPEERNAME: i64 = 52;
#[cfg(target_arch = "x86_64")]
const SYS_IOCTL: i64 = 16;
#[cfg(target_arch = "aarch64")]
const SYS_SOCKET: i64 = 198;
#[cfg(target_arch = "aarch64")]
const SYS_CONNECT: i64 = 203;
#[cfg(target_arch = "aarch64")]
const SYS_ACCEPT4: i64 = 242;
#[cfg(target_arch = "aarch64")]
const SYS_SETSOCKOPT: i64 = 208;
#[cfg(target_arch = "aarch64")]
const SYS_GETSOCKNAME: i64 = 204;
#[cfg(target_arch = "aarch64")]
const SYS_GETPEERNAME: i64 = 205;
#[cfg(target_arch = "aarch64")]
const SYS_IOCTL: i64 = 29;

/// TCP over IPv4 and IPv6.
pub struct Tcp {
    listener: TcpListener,
}

impl Tcp {
    pub fn new(listener: TcpListener) -> io::Result<Tcp> {
        listener.set_nonblocking(true)?;
        Ok(Tcp { listener })
    }
}

impl Transport for Tcp {
    type Stream = TcpStream;
    type Address = SocketAddr;

    fn dial(&self, address: &SocketAddr) -> io::Result<TcpStream> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match rustix::net::connect(&socket, address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        // Batching is ours: what is written is meant to go.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Stream for TcpStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        match self.take_error() {
            Ok(Some(error)) | Err(error) => return Some(Err(error)),
            Ok(None) => {}
        }
        match self.peer_addr() {
            Ok(_) => Some(Ok(())),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => Some(Err(error)),
        }
    }
}
