//! Unix stream sockets, for two daemons on one machine: addresses are absolute paths.
//!
//! Who may dial is the file's owner and mode, set by whoever binds the socket; who is let in is decided by TLS and
//! HELLO as over any other transport.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Stream, Target, Transport};

pub struct Unix {
    listener: UnixListener,
}

impl Unix {
    pub fn new(listener: UnixListener) -> io::Result<Unix> {
        listener.set_nonblocking(true)?;
        Ok(Unix { listener })
    }
}

impl Transport for Unix {
    fn name(&self) -> &'static str {
        "unix"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        if address.starts_with('/') && SocketAddrUnix::new(address).is_ok() {
            return Ok(());
        }
        Err(format!("'{address}' is no absolute path that a socket may have"))
    }

    fn local_address(&self) -> String {
        let address = self.listener.local_addr().ok();
        let path = address.as_ref().and_then(|address| address.as_pathname());
        path.map_or_else(String::new, |path| path.display().to_string())
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let address = SocketAddrUnix::new(target.address)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // It stands at once, or not at all: a full backlog is `WouldBlock`, and dialling is repeated.
        rustix::net::connect(&socket, &address)?;
        Ok(Box::new(UnixStream::from(socket)))
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        Ok(Box::new(stream))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn system_calls(&self) -> &'static [i64] {
        SYSTEM_CALLS
    }
}

impl Stream for UnixStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        Some(Ok(()))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// socket, connect, accept4, getsockname, ioctl.
#[cfg(target_arch = "x86_64")]
const SYSTEM_CALLS: &[i64] = &[41, 42, 288, 51, 16];
#[cfg(target_arch = "aarch64")]
const SYSTEM_CALLS: &[i64] = &[198, 203, 242, 204, 29];
