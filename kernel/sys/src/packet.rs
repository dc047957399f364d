//! Packet sockets: frames of one EtherType on one network interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A hardware address.
pub type Mac = [u8; 6];

/// Destination, source, EtherType.
pub const HEAD_BYTES: usize = 14;
/// What the kernel may hold for a reader that is busy: a few windows of a few peers.
const RECEIVE_BUFFER_BYTES: libc::c_int = 8 << 20;

/// Opens a non-blocking socket that sees the frames of this type which come in over the interface, and sends over it;
/// in the network namespace of the calling thread. Frames are read and written with their Ethernet head. Needs
/// `CAP_NET_RAW`.
pub fn open(interface: &str, ether_type: u16) -> io::Result<OwnedFd> {
    let index = rustix::net::netdevice::name_to_index(control_socket()?, interface)?;
    let index = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Until it is bound it must see nothing: protocol 0.
    // SAFETY: (1) plain numbers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: (1) the descriptor was just made and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // A kernel that refuses has a smaller buffer: more is sent again.
    set_receive_buffer(&socket);
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_type.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: (1) the address is a sockaddr_ll of the length that is given; (2) it is only read.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn control_socket() -> io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    Ok(socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

fn set_receive_buffer(socket: &OwnedFd) {
    let bytes = RECEIVE_BUFFER_BYTES;
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        // SAFETY: (1) the value is an int of the length that is given; (2) it is only read.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const bytes).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
    }
}

/// The interface's hardware address and the longest payload of a frame, in the network namespace of the calling thread.
pub fn interface(name: &str) -> io::Result<(Mac, usize)> {
    let socket = control_socket()?;
    let mut request = request_for(name)?;
    // SAFETY: (1) the request is an ifreq; (2) this number fills its address and nothing else.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) })?;
    // SAFETY: (1) the call filled this member.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    let mut mac = [0; 6];
    for (byte, value) in mac.iter_mut().zip(data) {
        *byte = value as u8;
    }
    // SAFETY: (1) the request is an ifreq; (2) this number fills its mtu and nothing else.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) })?;
    // SAFETY: (1) the call filled this member.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok((mac, usize::try_from(mtu).unwrap_or(0)))
}

fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: (1) all zeros is a valid ifreq: numbers and pointers that are not followed.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One frame, cut to `buffer`. `WouldBlock` when none is there.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let (_, bytes) = rustix::net::recv(borrowed(&socket), buffer, rustix::net::RecvFlags::DONTWAIT)?;
    Ok(bytes)
}

/// Sends one frame.
pub fn send(socket: impl AsFd, frame: &[u8]) -> io::Result<()> {
    rustix::net::send(borrowed(&socket), frame, rustix::net::SendFlags::DONTWAIT)?;
    Ok(())
}

fn borrowed(socket: &impl AsFd) -> BorrowedFd<'_> {
    socket.as_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_address_and_unknown_interfaces_have_none() {
        assert!(interface("lo").is_ok_and(|(mac, mtu)| mac == [0; 6] && mtu >= 1500));
        assert!(interface("no-such-if").is_err());
        assert_eq!(interface("a-name-that-is-too-long").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
