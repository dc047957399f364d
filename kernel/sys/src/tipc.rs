//! TIPC stream sockets (`linux/tipc.h`), where the kernel has them: most distributions ship them as the module `tipc`,
//! which has to be loaded and given a bearer (`tipc bearer enable media eth device eth0`) before it reaches other
//! nodes.
//!
//! A server binds a service type and an instance of it, anywhere in the cluster; who connects names both.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What a socket is bound to, and dialled by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    pub kind: u32,
    pub instance: u32,
}

/// Types below are the protocol's own.
pub const SERVICE_KIND_MIN: u32 = 64;

/// `struct sockaddr_tipc` with the member `name` of its union.
#[repr(C)]
struct Address {
    family: u16,
    address_type: u8,
    scope: i8,
    kind: u32,
    instance: u32,
    domain: u32,
}

const _: () = assert!(size_of::<Address>() == 16);

/// `TIPC_SERVICE_ADDR`, `TIPC_CLUSTER_SCOPE`.
const SERVICE_ADDRESS: u8 = 2;
const CLUSTER_SCOPE: i8 = 2;
/// Connections that wait to be accepted.
const BACKLOG: libc::c_int = 128;

impl Service {
    fn address(self) -> Address {
        Address {
            family: libc::AF_TIPC as u16,
            address_type: SERVICE_ADDRESS,
            scope: CLUSTER_SCOPE,
            kind: self.kind,
            instance: self.instance,
            // Wherever in the cluster it is.
            domain: 0,
        }
    }
}

/// Whether the kernel knows TIPC; asking loads the module where that is permitted.
///
/// # Errors
/// `EAFNOSUPPORT` when it does not.
pub fn probe() -> io::Result<()> {
    open().map(drop)
}

fn open() -> io::Result<OwnedFd> {
    // SAFETY: (1) plain numbers.
    let fd = unsafe { libc::socket(libc::AF_TIPC, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: (1) the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A non-blocking socket that accepts connections to this service.
pub fn listen(service: Service) -> io::Result<OwnedFd> {
    let socket = open()?;
    let address = service.address();
    // SAFETY: (1) the address is a sockaddr_tipc of the length that is given; (2) it is only read.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_BYTES) })?;
    // SAFETY: (1) plain numbers.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// A non-blocking socket that is being connected to this service: it stands when it becomes writable and has a peer.
///
/// # Errors
/// `EHOSTUNREACH` when nobody offers the service.
pub fn connect(service: Service) -> io::Result<OwnedFd> {
    let socket = open()?;
    let address = service.address();
    // SAFETY: (1) the address is a sockaddr_tipc of the length that is given; (2) it is only read.
    match check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_BYTES) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

/// Whether a socket that was connected has its peer by now.
///
/// # Errors
/// `ENOTCONN` while it has not.
pub fn check_peer(socket: &OwnedFd) -> io::Result<()> {
    let mut address = Service { kind: 0, instance: 0 }.address();
    let mut bytes = ADDRESS_BYTES;
    // SAFETY: (1) the kernel writes at most as many bytes as are given, into an address of plain numbers.
    check(unsafe { libc::getpeername(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut bytes) })
}

const ADDRESS_BYTES: libc::socklen_t = size_of::<Address>() as libc::socklen_t;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_without_tipc_says_so_and_one_with_it_listens() {
        let service = Service { kind: 0x4456_5300, instance: std::process::id() };
        match probe() {
            Err(error) => {
                eprintln!("SKIPPED: the kernel has no TIPC: {error}");
                assert_eq!(error.raw_os_error(), Some(libc::EAFNOSUPPORT));
                assert!(listen(service).is_err() && connect(service).is_err());
            }
            Ok(()) => assert!(listen(service).is_ok()),
        }
    }
}
