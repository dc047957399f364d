//! What the node daemon tells the port gate of a container on its node, a packet each (`docs/design/ports.md`).
//!
//! Everything may be told again: a daemon that begins tells all of it. Only [`ToPortGate::Count`] is answered, by the
//! counts of every port, in packets of at most [`COUNTS_PER_PACKET`]; one with fewer is the last.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where programs of a container that may go out find the name server of their node.
pub const RESOLVER: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 53);
/// Of one container on a node.
pub const PORTS_MAX: usize = 128;
/// Of any packet.
pub const PORT_PACKET_BYTES_MAX: usize = 4096;
pub const COUNTS_PER_PACKET: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PortTransport {
    Tcp,
    Udp,
}

/// What is published: where the node listens. The unspecified address of IPv6 stands for all addresses of the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortName {
    pub transport: PortTransport,
    pub address: IpAddr,
    pub port: u16,
}

/// Whether a connection begins with who the client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Introduction {
    None,
    /// A header of the PROXY protocol, version 2.
    Proxy,
}

/// Where a container is on one of its nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeAddress {
    pub ipv4: Ipv4Addr,
    /// Where both that node and the gate's own have IPv6.
    pub ipv6: Option<Ipv6Addr>,
}

impl NodeAddress {
    pub fn all(self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(IpAddr::V4(self.ipv4)).chain(self.ipv6.map(IpAddr::V6))
    }
}

impl From<Ipv4Addr> for NodeAddress {
    fn from(ipv4: Ipv4Addr) -> NodeAddress {
        NodeAddress { ipv4, ipv6: None }
    }
}

/// Nodes of a container, as a gate on one of them sees them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAddresses {
    /// Of the gate's own node.
    pub own: NodeAddress,
    /// Of the others, without those that are lost.
    pub others: Vec<NodeAddress>,
}

impl NodeAddresses {
    pub fn nodes(&self) -> impl Iterator<Item = NodeAddress> {
        std::iter::once(self.own).chain(self.others.iter().copied())
    }

    /// As gates of the release before understand them.
    pub fn without_ipv6(&self) -> NodeAddresses {
        let others = self.others.iter().map(|node| node.ipv4.into()).collect();
        NodeAddresses { own: self.own.ipv4.into(), others }
    }

    fn has_ipv6(&self) -> bool {
        self.nodes().any(|node| node.ipv6.is_some())
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToPortGate {
    /// With the listening socket, or the bound one of UDP. A port that is known already stays with the socket that it
    /// has.
    Open {
        name: PortName,
        inside: u16,
        introduction: Introduction,
    },
    /// Its connections go on.
    Close(PortName),
    Nodes(NodeAddresses),
    Count,
    /// Takes nothing new, and ends with its last connection.
    Leave,
    /// Addresses that programs which get out never reach, in place of those that were told before; in as many packets
    /// as it takes.
    Never {
        part: NeverPart,
        addresses: Vec<IpAddr>,
    },
}

/// Which packet of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeverPart {
    pub is_first: bool,
    /// From now on they hold.
    pub is_last: bool,
}

/// Of all packets together: what a gate keeps.
pub const NEVER_MAX: usize = 1 << 17;
/// Of one packet, with the longest.
pub const NEVER_PER_PACKET: usize = (PORT_PACKET_BYTES_MAX - 3) / 17;

impl ToPortGate {
    /// These addresses, packet by packet.
    pub fn never(addresses: &[IpAddr]) -> Vec<ToPortGate> {
        let mut chunks: Vec<&[IpAddr]> = addresses.chunks(NEVER_PER_PACKET).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let last = chunks.len() - 1;
        let packet = |(at, chunk): (usize, &[IpAddr])| {
            let part = NeverPart { is_first: at == 0, is_last: at == last };
            ToPortGate::Never { part, addresses: chunk.to_vec() }
        };
        chunks.into_iter().enumerate().map(packet).collect()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortCounts {
    pub name: PortName,
    /// Now.
    pub open: u32,
    /// Since the gate began.
    pub taken: u64,
    /// Of them, those for which nobody listened inside.
    pub refused: u64,
}

/// The packet is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPortPacket;

const VERSION: u8 = 1;
const OPEN: u8 = 0;
const CLOSE: u8 = 1;
const NODES: u8 = 2;
const COUNT: u8 = 3;
const LEAVE: u8 = 4;
/// Not [`NODES`], of which gates of the release before know one form.
const NODES_WITH_IPV6: u8 = 5;
const NEVER: u8 = 6;

impl ToPortGate {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            ToPortGate::Open { name, inside, introduction } => {
                bytes.push(OPEN);
                name.encode(&mut bytes);
                bytes.extend(inside.to_le_bytes());
                bytes.push(u8::from(*introduction == Introduction::Proxy));
            }
            ToPortGate::Close(name) => {
                bytes.push(CLOSE);
                name.encode(&mut bytes);
            }
            ToPortGate::Nodes(nodes) if nodes.has_ipv6() => {
                bytes.push(NODES_WITH_IPV6);
                nodes.nodes().for_each(|node| node.encode(&mut bytes));
            }
            ToPortGate::Nodes(nodes) => {
                bytes.push(NODES);
                bytes.extend(nodes.nodes().flat_map(|node| node.ipv4.octets()));
            }
            ToPortGate::Count => bytes.push(COUNT),
            ToPortGate::Leave => bytes.push(LEAVE),
            ToPortGate::Never { part, addresses } => {
                bytes.extend([NEVER, u8::from(part.is_first) | u8::from(part.is_last) << 1]);
                addresses.iter().for_each(|address| encode_address(*address, &mut bytes));
            }
        }
        bytes
    }

    /// # Errors
    /// The bytes are none of this version.
    pub fn decode(bytes: &[u8]) -> Result<ToPortGate, BadPortPacket> {
        let mut bytes = Bytes(bytes);
        if bytes.byte()? != VERSION {
            return Err(BadPortPacket);
        }
        let told = match bytes.byte()? {
            OPEN => {
                let (name, inside) = (PortName::decode(&mut bytes)?, bytes.half()?);
                let introduction = match bytes.byte()? {
                    0 => Introduction::None,
                    1 => Introduction::Proxy,
                    _ => return Err(BadPortPacket),
                };
                ToPortGate::Open { name, inside, introduction }
            }
            CLOSE => ToPortGate::Close(PortName::decode(&mut bytes)?),
            NODES => {
                let own = Ipv4Addr::from(bytes.take::<4>()?).into();
                let mut others = Vec::new();
                while !bytes.0.is_empty() {
                    others.push(Ipv4Addr::from(bytes.take::<4>()?).into());
                }
                ToPortGate::Nodes(NodeAddresses { own, others })
            }
            NODES_WITH_IPV6 => {
                let own = NodeAddress::decode(&mut bytes)?;
                let mut others = Vec::new();
                while !bytes.0.is_empty() {
                    others.push(NodeAddress::decode(&mut bytes)?);
                }
                let nodes = NodeAddresses { own, others };
                if !nodes.has_ipv6() {
                    return Err(BadPortPacket);
                }
                ToPortGate::Nodes(nodes)
            }
            COUNT => ToPortGate::Count,
            LEAVE => ToPortGate::Leave,
            NEVER => {
                let bits = Some(bytes.byte()?).filter(|bits| *bits < 4).ok_or(BadPortPacket)?;
                let part = NeverPart { is_first: bits & 1 != 0, is_last: bits & 2 != 0 };
                let mut addresses = Vec::new();
                while !bytes.0.is_empty() {
                    addresses.push(decode_address(&mut bytes)?);
                }
                ToPortGate::Never { part, addresses }
            }
            _ => return Err(BadPortPacket),
        };
        if bytes.0.is_empty() { Ok(told) } else { Err(BadPortPacket) }
    }
}

impl NodeAddress {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ipv4.octets());
        bytes.push(u8::from(self.ipv6.is_some()));
        bytes.extend(self.ipv6.iter().flat_map(Ipv6Addr::octets));
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<NodeAddress, BadPortPacket> {
        let ipv4 = Ipv4Addr::from(bytes.take::<4>()?);
        let ipv6 = match bytes.byte()? {
            0 => None,
            1 => Some(Ipv6Addr::from(bytes.take::<16>()?)),
            _ => return Err(BadPortPacket),
        };
        Ok(NodeAddress { ipv4, ipv6 })
    }
}

impl PortName {
    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.transport == PortTransport::Udp));
        encode_address(self.address, bytes);
        bytes.extend(self.port.to_le_bytes());
    }

    fn decode(bytes: &mut Bytes<'_>) -> Result<PortName, BadPortPacket> {
        let transport = match bytes.byte()? {
            0 => PortTransport::Tcp,
            1 => PortTransport::Udp,
            _ => return Err(BadPortPacket),
        };
        let address = decode_address(bytes)?;
        Ok(PortName { transport, address, port: bytes.half()? })
    }
}

fn encode_address(address: IpAddr, bytes: &mut Vec<u8>) {
    match address {
        IpAddr::V4(address) => {
            bytes.push(4);
            bytes.extend(address.octets());
        }
        IpAddr::V6(address) => {
            bytes.push(6);
            bytes.extend(address.octets());
        }
    }
}

fn decode_address(bytes: &mut Bytes<'_>) -> Result<IpAddr, BadPortPacket> {
    match bytes.byte()? {
        4 => Ok(Ipv4Addr::from(bytes.take::<4>()?).into()),
        6 => Ok(Ipv6Addr::from(bytes.take::<16>()?).into()),
        _ => Err(BadPortPacket),
    }
}

impl PortCounts {
    pub fn encode_all(counts: &[PortCounts]) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        for one in counts {
            one.name.encode(&mut bytes);
            bytes.extend(one.open.to_le_bytes());
            bytes.extend([one.taken, one.refused].into_iter().flat_map(u64::to_le_bytes));
        }
        bytes
    }

    /// # Errors
    /// The bytes are none of this version.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<PortCounts>, BadPortPacket> {
        let mut bytes = Bytes(bytes);
        if bytes.byte()? != VERSION {
            return Err(BadPortPacket);
        }
        let mut counts = Vec::new();
        while !bytes.0.is_empty() {
            let (name, open) = (PortName::decode(&mut bytes)?, u32::from_le_bytes(bytes.take()?));
            let (taken, refused) = (u64::from_le_bytes(bytes.take()?), u64::from_le_bytes(bytes.take()?));
            counts.push(PortCounts { name, open, taken, refused });
        }
        Ok(counts)
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadPortPacket> {
        let (first, rest) = self.0.split_first_chunk().ok_or(BadPortPacket)?;
        self.0 = rest;
        Ok(*first)
    }

    fn byte(&mut self) -> Result<u8, BadPortPacket> {
        self.take().map(|[byte]| byte)
    }

    fn half(&mut self) -> Result<u16, BadPortPacket> {
        self.take().map(u16::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> [PortName; 2] {
        let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        [
            PortName { transport: PortTransport::Tcp, address: any, port: 8080 },
            PortName { transport: PortTransport::Udp, address: Ipv4Addr::LOCALHOST.into(), port: 53 },
        ]
    }

    #[test]
    fn what_is_told_is_heard_and_nothing_else_is() {
        let [tcp, udp] = names();
        let [own, other] = [1, 2].map(|last| NodeAddress::from(Ipv4Addr::new(10, 1, 0, last)));
        let wide = NodeAddress { ipv6: Some(Ipv6Addr::new(0xfd64, 0x7673, 0, 7, 0, 0, 0, 2)), ..other };
        let mixed = NodeAddresses { own, others: vec![wide, other] };
        let nodes = NodeAddresses { own, others: vec![other, other] };
        assert_eq!(mixed.without_ipv6(), nodes);
        let all = [
            ToPortGate::Open { name: tcp, inside: 80, introduction: Introduction::Proxy },
            ToPortGate::Open { name: udp, inside: 53, introduction: Introduction::None },
            ToPortGate::Close(udp),
            ToPortGate::Nodes(nodes),
            ToPortGate::Nodes(mixed),
            ToPortGate::Count,
            ToPortGate::Leave,
            ToPortGate::never(&[]).remove(0),
            ToPortGate::never(&[IpAddr::V6(Ipv6Addr::LOCALHOST), Ipv4Addr::LOCALHOST.into()]).remove(0),
        ];
        for told in all {
            let whole = told.encode();
            assert_eq!(ToPortGate::decode(&whole), Ok(told));
            for at in 0..whole.len() {
                let cut = ToPortGate::decode(&whole[..at]);
                assert!(cut.is_err() || cut.is_ok_and(|cut| cut.encode() == whole[..at]), "{at}");
                for bit in 0..8 {
                    let mut changed = whole.clone();
                    changed[at] ^= 1 << bit;
                    if let Ok(read) = ToPortGate::decode(&changed) {
                        assert_eq!(read.encode(), changed, "byte {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn many_addresses_come_in_packets_of_which_one_is_the_first_and_one_the_last() {
        let all = vec![IpAddr::V6(Ipv6Addr::LOCALHOST); 2 * NEVER_PER_PACKET + 1];
        let packets = ToPortGate::never(&all);
        let mut told = Vec::new();
        for (at, packet) in packets.iter().enumerate() {
            assert!(packet.encode().len() <= PORT_PACKET_BYTES_MAX);
            let ToPortGate::Never { part, addresses } = packet else { panic!("{packet:?}") };
            assert_eq!((part.is_first, part.is_last), (at == 0, at == 2));
            told.extend(addresses);
        }
        assert_eq!((packets.len(), told), (3, all.iter().collect()));
    }

    #[test]
    fn counts_arrive_and_the_longest_list_fits_its_packet() {
        let longest = PortName { address: IpAddr::V6(Ipv6Addr::LOCALHOST), ..names()[0] };
        let counts = vec![PortCounts { name: longest, open: 1, taken: 2, refused: 3 }; COUNTS_PER_PACKET];
        let bytes = PortCounts::encode_all(&counts);
        assert!(bytes.len() <= PORT_PACKET_BYTES_MAX);
        assert_eq!(PortCounts::decode_all(&bytes), Ok(counts));
        assert_eq!(PortCounts::decode_all(&bytes[..bytes.len() - 1]), Err(BadPortPacket));
    }
}
