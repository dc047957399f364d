//! Who a client is, told to the program that serves it: the header of the PROXY protocol, version 2
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>, section 2.2).

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, on behalf of somebody.
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// `client` connected to `at`.
pub fn header(client: SocketAddr, at: SocketAddr) -> Vec<u8> {
    // A socket of both families shows addresses of IPv4 in those of IPv6.
    let (from, to) = (client.ip().to_canonical(), at.ip().to_canonical());
    let (family, addresses) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => (TCP_OVER_IPV4, [from.octets(), to.octets()].concat()),
        (from, to) => (TCP_OVER_IPV6, [wide(from), wide(to)].concat()),
    };
    let ports = [client.port(), at.port()].map(u16::to_be_bytes).concat();
    let length = (addresses.len() + ports.len()) as u16;
    [&SIGNATURE[..], &[PROXY, family], &length.to_be_bytes(), &addresses, &ports].concat()
}

fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn header_is_as_the_protocol_describes_it() {
        let header = |client: &str, at: &str| super::header(client.parse().unwrap(), at.parse().unwrap());
        let mut expected = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c".to_vec();
        expected.extend([192, 0, 2, 1, 198, 51, 100, 2, 0x30, 0x39, 0x1f, 0x90]);
        assert_eq!(header("192.0.2.1:12345", "198.51.100.2:8080"), expected);
        assert_eq!(header("[::ffff:192.0.2.1]:12345", "[::ffff:198.51.100.2]:8080"), expected);
        let of_six = header("[2001:db8::1]:1", "[2001:db8::2]:2");
        assert_eq!((of_six[13], of_six.len()), (0x21, 16 + 36));
    }
}
