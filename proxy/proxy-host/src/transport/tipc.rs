//! TIPC, for clusters that have it: addresses are `TYPE:INSTANCE` of a service, numbers both. Behind the cargo feature
//! `tipc`.
//!
//! A stream socket of the kernel, as TCP is one; what finds the other node, over which bearer, is the kernel's
//! configuration (`tipc(8)`).
//!
//! **Not tested where the kernel has no TIPC**, and the kernels on which this was written have none: the tests of all
//! transports run over it where `socket(AF_TIPC)` works, and say that they were skipped where it does not.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use sys::tipc::{SERVICE_KIND_MIN, Service};

use super::{Stream, Target, Transport};

pub struct Tipc {
    listener: OwnedFd,
    service: Service,
}

impl Tipc {
    /// `listener` comes from [`sys::tipc::listen`] for the same service.
    pub fn new(listener: OwnedFd, service: Service) -> Tipc {
        Tipc { listener, service }
    }
}

pub fn parse_service(text: &str) -> Option<Service> {
    let (kind, instance) = text.split_once(':')?;
    let service = Service { kind: kind.parse().ok()?, instance: instance.parse().ok()? };
    (service.kind >= SERVICE_KIND_MIN).then_some(service)
}

pub fn show_service(service: Service) -> String {
    format!("{}:{}", service.kind, service.instance)
}

impl Transport for Tipc {
    fn name(&self) -> &'static str {
        "tipc"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        let wrong = || format!("'{address}' is no TYPE:INSTANCE of a TIPC service, TYPE from {SERVICE_KIND_MIN} on");
        parse_service(address).map(drop).ok_or_else(wrong)
    }

    fn local_address(&self) -> String {
        show_service(self.service)
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let service = parse_service(target.address).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Box::new(TipcStream(sys::tipc::connect(service)?)))
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        let socket = rustix::net::accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        Ok(Box::new(TipcStream(socket)))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn system_calls(&self) -> &'static [i64] {
        SYSTEM_CALLS
    }
}

struct TipcStream(OwnedFd);

impl Read for TipcStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::net::recv(&self.0, buffer, RecvFlags::DONTWAIT) {
            Ok((_, bytes)) => Ok(bytes),
            // The peer has shut down, and nothing of it is left.
            Err(Errno::NOTCONN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

impl Write for TipcStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for TipcStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        match rustix::net::sockopt::socket_error(&self.0) {
            Ok(Err(error)) | Err(error) => return Some(Err(error.into())),
            Ok(Ok(())) => {}
        }
        match sys::tipc::check_peer(&self.0) {
            Ok(()) => Some(Ok(())),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => None,
            Err(error) => Some(Err(error)),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// socket, connect, accept4, getpeername.
#[cfg(target_arch = "x86_64")]
const SYSTEM_CALLS: &[i64] = &[41, 42, 288, 52];
#[cfg(target_arch = "aarch64")]
const SYSTEM_CALLS: &[i64] = &[198, 203, 242, 205];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_read_as_they_are_written() {
        let service = Service { kind: 0x4456_5300, instance: u32::MAX };
        assert_eq!(parse_service(&show_service(service)), Some(service));
        for wrong in ["", "100", "100:", ":1", "63:1", "100:-1", "100:4294967296", "100:1:2"] {
            assert_eq!(parse_service(wrong), None, "{wrong}");
        }
    }
}
