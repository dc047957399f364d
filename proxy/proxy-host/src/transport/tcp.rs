//! TCP over IPv4 and IPv6: addresses are `address:port`.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use super::{Stream, Target, Transport};

pub struct Tcp {
    listener: TcpListener,
}

impl Tcp {
    pub fn new(listener: TcpListener) -> io::Result<Tcp> {
        listener.set_nonblocking(true)?;
        Ok(Tcp { listener })
    }
}

fn parse(address: &str) -> io::Result<SocketAddr> {
    address.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        parse(address).map(drop).map_err(|_| format!("'{address}' is no numeric address with a port"))
    }

    fn local_address(&self) -> String {
        self.listener.local_addr().map_or_else(|_| String::new(), |address| address.to_string())
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let address = parse(target.address)?;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        // Batching is ours: what is written is meant to go.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn system_calls(&self) -> &'static [i64] {
        SYSTEM_CALLS
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

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// socket, connect, accept4, setsockopt, getsockname, getpeername, ioctl.
#[cfg(target_arch = "x86_64")]
const SYSTEM_CALLS: &[i64] = &[41, 42, 288, 54, 51, 52, 16];
#[cfg(target_arch = "aarch64")]
const SYSTEM_CALLS: &[i64] = &[198, 203, 242, 208, 204, 205, 29];
