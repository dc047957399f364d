//! Interfaces of one network namespace: made, changed and removed by name or index. Everything that makes is
//! idempotent: what exists with the same kind is kept and brought to the wished state.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};

use crate::netlink::{Mode, NetlinkError, Request, Socket, attributes, read_u32};
use crate::netns::{self, NetnsError};

/// Bytes of an interface name; the kernel's IFNAMSIZ less the final NUL.
pub const NAME_BYTES_MAX: usize = 15;

pub use sys::packet::Mac;

#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    #[error("'{0}' is no interface name")]
    BadName(String),
    #[error("there is no interface '{0}'")]
    Missing(String),
    #[error("interface '{name}' exists, but is a '{kind}', not a '{wanted}'")]
    OtherKind { name: String, kind: String, wanted: &'static str },
    #[error("no interface has the address {0}")]
    NoSuchAddress(IpAddr),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Namespace(#[from] NetnsError),
}

/// An interface as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    pub index: u32,
    pub name: String,
    /// `veth`, `bridge`, `vxlan` …; empty for hardware and loopback.
    pub kind: String,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
    /// Index of the bridge it is a port of.
    pub bridge: Option<u32>,
}

/// How a VXLAN device is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vxlan {
    /// 24 bits, not 0.
    pub vni: u32,
    pub local: IpAddr,
    pub port: u16,
}

/// What a bridge does with frames at a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortTrust {
    /// Any source is believed.
    Open,
    /// Only sources with a static entry at this port may send (Linux 5.18).
    Locked,
}

/// An entry of a neighbour or forwarding table; all are permanent, none is learned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// `address` is at `mac`.
    Neighbour { address: IpAddr, mac: Mac },
    /// The bridge sends frames for `mac` to this port.
    Port { mac: Mac },
    /// The VXLAN device sends frames for `mac` to the node at `remote`.
    Remote { mac: Mac, remote: IpAddr },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum IpFamily {
    Ipv4,
    Ipv6,
}

/// Packets of a family and a protocol go by a table of routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteRule {
    pub family: IpFamily,
    /// As in the header of a packet.
    pub protocol: u8,
    pub table: u32,
    /// Rules with lower ones are asked first.
    pub priority: u32,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Network {
    pub address: IpAddr,
    pub prefix_bits: u8,
}

impl Network {
    pub const ALL_OF_IPV4: Network = Network { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix_bits: 0 };
    pub const ALL_OF_IPV6: Network = Network { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix_bits: 0 };

    /// Whether every address of the other one is in it.
    pub fn contains(self, other: Network) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
            IpAddr::V6(address) => address.to_bits(),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_bits)).unwrap_or(0);
        self.address.is_ipv4() == other.address.is_ipv4()
            && self.prefix_bits <= other.prefix_bits
            && bits(self.address) & mask == bits(other.address) & mask
    }
}

/// Interfaces of one namespace.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

// linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_NEWNEIGH: u16 = 28;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;
const RTA_TABLE: u16 = 15;
const ROUTE_UNICAST: u8 = 1;
const ROUTE_LOCAL: u8 = 2;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const AF_BRIDGE: u8 = 7;
const IFF_UP: u32 = 1;

impl Links {
    /// Of the calling thread's namespace.
    pub fn here() -> Result<Links, InterfaceError> {
        Ok(Links { socket: Socket::open()? })
    }

    /// Of another namespace.
    pub fn within(namespace: impl AsFd) -> Result<Links, InterfaceError> {
        Ok(Links { socket: netns::within(namespace, Socket::open)?? })
    }

    pub fn list(&mut self) -> Result<Vec<Interface>, InterfaceError> {
        let mut links = Vec::new();
        self.socket.dump(RTM_GETLINK, &link_head(0, 0, 0), RTM_NEWLINK, |body| links.extend(parse_interface(body)))?;
        Ok(links)
    }

    pub fn find(&mut self, name: &str) -> Result<Option<Interface>, InterfaceError> {
        Ok(self.list()?.into_iter().find(|interface| interface.name == name))
    }

    /// Like [`Links::find`], but must be there.
    pub fn get(&mut self, name: &str) -> Result<Interface, InterfaceError> {
        self.find(name)?.ok_or_else(|| InterfaceError::Missing(name.to_owned()))
    }

    /// A bridge that neither learns from multicast nor takes part in spanning trees.
    pub fn ensure_bridge(&mut self, name: &str) -> Result<Interface, InterfaceError> {
        const IFLA_BR_STP_STATE: u16 = 5;
        const IFLA_BR_MCAST_SNOOPING: u16 = 23;
        self.ensure(name, "bridge", |data| {
            data.u32(IFLA_BR_STP_STATE, 0).u8(IFLA_BR_MCAST_SNOOPING, 0);
        })
    }

    /// A VXLAN device that learns nothing. One that exists with the name is taken as it is: its identifier and
    /// local address cannot be read back on all kernels, so names must follow from them.
    pub fn ensure_vxlan(&mut self, name: &str, vxlan: &Vxlan) -> Result<Interface, InterfaceError> {
        const IFLA_VXLAN_ID: u16 = 1;
        const IFLA_VXLAN_LOCAL: u16 = 4;
        const IFLA_VXLAN_LEARNING: u16 = 7;
        const IFLA_VXLAN_PORT: u16 = 15;
        const IFLA_VXLAN_LOCAL6: u16 = 17;
        self.ensure(name, "vxlan", |data| {
            data.u32(IFLA_VXLAN_ID, vxlan.vni).u8(IFLA_VXLAN_LEARNING, 0);
            data.attribute(IFLA_VXLAN_PORT, &vxlan.port.to_be_bytes());
            match vxlan.local {
                IpAddr::V4(local) => data.attribute(IFLA_VXLAN_LOCAL, &local.octets()),
                IpAddr::V6(local) => data.attribute(IFLA_VXLAN_LOCAL6, &local.octets()),
            };
        })
    }

    /// A pair of interfaces: `name` here, `peer` in `peer_namespace`. An existing `name` is kept with whatever its
    /// other end is.
    pub fn ensure_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: impl AsFd,
    ) -> Result<Interface, InterfaceError> {
        const VETH_INFO_PEER: u16 = 1;
        checked(peer)?;
        let namespace = peer_namespace.as_fd().as_raw_fd() as u32;
        self.ensure(name, "veth", |data| {
            data.nested(VETH_INFO_PEER, |other| {
                other.raw(&link_head(0, 0, 0)).text(IFLA_IFNAME, peer).u32(IFLA_NET_NS_FD, namespace);
            });
        })
    }

    /// Makes `link` a port of `bridge` that learns nothing and gets no frames but those with an entry.
    pub fn set_port(
        &mut self,
        interface: &Interface,
        bridge: &Interface,
        trust: PortTrust,
    ) -> Result<(), InterfaceError> {
        const BRPORT_LEARNING: u16 = 8;
        const BRPORT_UNICAST_FLOOD: u16 = 9;
        const BRPORT_MCAST_FLOOD: u16 = 27;
        const BRPORT_BCAST_FLOOD: u16 = 30;
        const BRPORT_LOCKED: u16 = 39;
        let mut join = change(interface, format!("make '{}' a port of '{}'", interface.name, bridge.name));
        join.u32(IFLA_MASTER, bridge.index);
        let mut settings = change(interface, format!("set how the bridge treats '{}'", interface.name));
        settings.nested(IFLA_LINKINFO, |info| {
            info.text(INFO_SLAVE_KIND, "bridge").nested(INFO_SLAVE_DATA, |data| {
                data.u8(BRPORT_LEARNING, 0).u8(BRPORT_UNICAST_FLOOD, 0);
                data.u8(BRPORT_MCAST_FLOOD, 0).u8(BRPORT_BCAST_FLOOD, 0);
                data.u8(BRPORT_LOCKED, u8::from(trust == PortTrust::Locked));
            });
        });
        Ok(self.socket.perform_all(vec![join, settings])?)
    }

    /// Makes `link` an ordinary port of `bridge`: learning and flooding as any switch does.
    pub fn set_plain_port(&mut self, interface: &Interface, bridge: &Interface) -> Result<(), InterfaceError> {
        let mut join = change(interface, format!("make '{}' a port of '{}'", interface.name, bridge.name));
        join.u32(IFLA_MASTER, bridge.index);
        Ok(self.socket.perform(join)?)
    }

    pub fn set_mac(&mut self, interface: &Interface, mac: Mac) -> Result<(), InterfaceError> {
        let mut request = change(interface, format!("set the address of '{}'", interface.name));
        request.attribute(IFLA_ADDRESS, &mac);
        Ok(self.socket.perform(request)?)
    }

    pub fn set_mtu(&mut self, interface: &Interface, mtu: u32) -> Result<(), InterfaceError> {
        let mut request = change(interface, format!("set the MTU of '{}' to {mtu}", interface.name));
        request.u32(IFLA_MTU, mtu);
        Ok(self.socket.perform(request)?)
    }

    /// The interface makes itself no IPv6 address when it goes up. Without IPv6 in the kernel there is nothing to do.
    pub fn without_ipv6_address(&mut self, interface: &Interface) -> Result<(), InterfaceError> {
        const AF_INET6: u16 = 10;
        const ADDR_GEN_MODE: u16 = 8;
        const MODE_NONE: u8 = 1;
        let mut request = change(interface, format!("keep '{}' without an IPv6 address", interface.name));
        request.nested(IFLA_AF_SPEC, |families| {
            families.nested(AF_INET6, |settings| {
                settings.u8(ADDR_GEN_MODE, MODE_NONE);
            });
        });
        tolerate(self.socket.perform(request), &[libc::EAFNOSUPPORT, libc::EOPNOTSUPP])
    }

    pub fn set_up(&mut self, interface: &Interface) -> Result<(), InterfaceError> {
        let head = link_head(interface.index, IFF_UP, IFF_UP);
        Ok(self.socket.perform(Request::new(
            RTM_NEWLINK,
            Mode::Change,
            &head,
            format!("set '{}' up", interface.name),
        ))?)
    }

    pub fn set_down(&mut self, interface: &Interface) -> Result<(), InterfaceError> {
        let head = link_head(interface.index, 0, IFF_UP);
        Ok(self.socket.perform(Request::new(
            RTM_NEWLINK,
            Mode::Change,
            &head,
            format!("set '{}' down", interface.name),
        ))?)
    }

    /// The loopback interface, which every fresh namespace has down.
    pub fn set_loopback_up(&mut self) -> Result<(), InterfaceError> {
        let loopback = self.get("lo")?;
        self.set_up(&loopback)
    }

    pub fn ensure_address(
        &mut self,
        interface: &Interface,
        address: IpAddr,
        prefix_bits: u8,
    ) -> Result<(), InterfaceError> {
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        /// No duplicate detection: the address is given, not negotiated.
        const IFA_F_NODAD: u8 = 2;
        let mut head = vec![family(address), prefix_bits, if address.is_ipv6() { IFA_F_NODAD } else { 0 }, 0];
        head.extend_from_slice(&interface.index.to_ne_bytes());
        let what = format!("give '{}' the address {address}/{prefix_bits}", interface.name);
        let mut request = Request::new(RTM_NEWADDR, Mode::Replace, &head, what);
        request.attribute(IFA_LOCAL, &octets(address)).attribute(IFA_ADDRESS, &octets(address));
        Ok(self.socket.perform(request)?)
    }

    /// All of IPv6 that others may reach: none of the link or of this machine alone.
    pub fn addresses_ipv6(&mut self) -> Result<Vec<Ipv6Addr>, InterfaceError> {
        const IFA_ADDRESS: u16 = 1;
        const SCOPE_GLOBAL: u8 = 0;
        let mut found = Vec::new();
        let mut head = [0; 8];
        head[0] = libc::AF_INET6 as u8;
        self.socket.dump(RTM_GETADDR, &head, RTM_NEWADDR, |body| {
            let is_meant = body.first() == Some(&head[0]) && body.get(3) == Some(&SCOPE_GLOBAL);
            let Some(rest) = body.get(8..).filter(|_| is_meant) else { return };
            let addresses = attributes(rest).filter(|(kind, _)| *kind == IFA_ADDRESS);
            found.extend(addresses.filter_map(|(_, value)| <[u8; 16]>::try_from(value).map(Ipv6Addr::from).ok()));
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// Everything without a better route goes to `gateway` by way of `link`.
    pub fn ensure_default_route(&mut self, interface: &Interface, gateway: IpAddr) -> Result<(), InterfaceError> {
        const RTA_OIF: u16 = 4;
        const RTA_GATEWAY: u16 = 5;
        const TABLE_MAIN: u8 = 254;
        const PROTOCOL_STATIC: u8 = 4;
        const TYPE_UNICAST: u8 = 1;
        let head = [family(gateway), 0, 0, 0, TABLE_MAIN, PROTOCOL_STATIC, 0, TYPE_UNICAST, 0, 0, 0, 0];
        let mut request = Request::new(RTM_NEWROUTE, Mode::Replace, &head, format!("route by way of {gateway}"));
        request.attribute(RTA_GATEWAY, &octets(gateway)).u32(RTA_OIF, interface.index);
        Ok(self.socket.perform(request)?)
    }

    /// In a table of its own: every address of a network is one of this machine, which speaks as `source` to them.
    pub fn ensure_local(&mut self, table: u32, network: Network, source: IpAddr) -> Result<(), InterfaceError> {
        let request = self.local_request(RTM_NEWROUTE, Mode::Replace, table, network, Some(source))?;
        Ok(self.socket.perform(request)?)
    }

    /// Networks of IPv6 in such a table.
    pub fn local_networks(&mut self, table: u32) -> Result<Vec<Network>, InterfaceError> {
        self.networks(table, ROUTE_LOCAL)
    }

    /// Networks of IPv6 to which this machine has a route, by any way.
    pub fn reachable_networks(&mut self) -> Result<Vec<Network>, InterfaceError> {
        const TABLE_MAIN: u32 = 254;
        self.networks(TABLE_MAIN, ROUTE_UNICAST)
    }

    /// One that is not there is no error.
    pub fn remove_local(&mut self, table: u32, network: Network) -> Result<(), InterfaceError> {
        let request = self.local_request(RTM_DELROUTE, Mode::Change, table, network, None)?;
        tolerate(self.socket.perform(request), &[libc::ESRCH, libc::ENOENT])
    }

    fn local_request(
        &mut self,
        kind: u16,
        mode: Mode,
        table: u32,
        network: Network,
        source: Option<IpAddr>,
    ) -> Result<Request, InterfaceError> {
        const RTA_DST: u16 = 1;
        const RTA_OIF: u16 = 4;
        const RTA_PREFSRC: u16 = 7;
        const PROTOCOL_STATIC: u8 = 4;
        const SCOPE_HOST: u8 = 254;
        let loopback = self.get("lo")?;
        let (address, bits) = (network.address, network.prefix_bits);
        // IPv6 has no scopes of routes.
        let scope = if address.is_ipv4() { SCOPE_HOST } else { 0 };
        let head = [family(address), bits, 0, 0, 0, PROTOCOL_STATIC, scope, ROUTE_LOCAL, 0, 0, 0, 0];
        let what = format!("make the addresses of {address}/{bits} local ones");
        let mut request = Request::new(kind, mode, &head, what);
        request.u32(RTA_TABLE, table).u32(RTA_OIF, loopback.index);
        if bits > 0 {
            request.attribute(RTA_DST, &octets(address));
        }
        if let Some(source) = source {
            request.attribute(RTA_PREFSRC, &octets(source));
        }
        Ok(request)
    }

    fn networks(&mut self, table: u32, wanted: u8) -> Result<Vec<Network>, InterfaceError> {
        const RTM_GETROUTE: u16 = 26;
        let mut found = Vec::new();
        let mut head = [0; 12];
        head[0] = libc::AF_INET6 as u8;
        self.socket.dump(RTM_GETROUTE, &head, RTM_NEWROUTE, |body| {
            let is_meant =
                |(of, kind, to): &(u32, u8, Network)| (*of, *kind) == (table, wanted) && to.address.is_ipv6();
            found.extend(parse_route(body).filter(is_meant).map(|(.., network)| network));
        })?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Packets of a protocol are routed by `table`, too, after everything of a lower `priority`.
    pub fn ensure_rule(&mut self, rule: RouteRule) -> Result<(), InterfaceError> {
        tolerate(self.socket.perform(rule_request(RTM_NEWRULE, Mode::Create, rule)), &[libc::EEXIST])
    }

    /// A rule that is not there is no error.
    pub fn remove_rule(&mut self, rule: RouteRule) -> Result<(), InterfaceError> {
        tolerate(self.socket.perform(rule_request(RTM_DELRULE, Mode::Change, rule)), &[libc::ENOENT])
    }

    /// The interface that has `address`.
    pub fn holding(&mut self, address: IpAddr) -> Result<Interface, InterfaceError> {
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        let wanted = octets(address);
        let mut index = None;
        self.socket.dump(RTM_GETADDR, &[0; 8], RTM_NEWADDR, |body| {
            let Some(rest) = body.get(8..) else { return };
            if attributes(rest).any(|(kind, value)| (kind == IFA_LOCAL || kind == IFA_ADDRESS) && value == wanted) {
                index = read_u32(body, 4);
            }
        })?;
        let index = index.ok_or(InterfaceError::NoSuchAddress(address))?;
        let found = self.list()?.into_iter().find(|interface| interface.index == index);
        found.ok_or(InterfaceError::NoSuchAddress(address))
    }

    /// Adds or overwrites entries of `link`, in batches.
    pub fn ensure_entries(&mut self, interface: &Interface, entries: &[Entry]) -> Result<(), InterfaceError> {
        let requests =
            entries.iter().map(|entry| entry_request(RTM_NEWNEIGH, Mode::Replace, interface, entry)).collect();
        Ok(self.socket.perform_all(requests)?)
    }

    /// Removes entries; those that are not there are no error.
    pub fn remove_entries(&mut self, interface: &Interface, entries: &[Entry]) -> Result<(), InterfaceError> {
        for entry in entries {
            let request = entry_request(RTM_DELNEIGH, Mode::Change, interface, entry);
            tolerate(self.socket.perform(request), &[libc::ENOENT])?;
        }
        Ok(())
    }

    /// Remote entries of a VXLAN device, as they are.
    pub fn remotes(&mut self, vxlan: &Interface) -> Result<Vec<Entry>, InterfaceError> {
        let mut entries = Vec::new();
        self.socket.dump(RTM_GETNEIGH, &neighbour_head(AF_BRIDGE, 0, 0, 0), RTM_NEWNEIGH, |body| {
            entries.extend(parse_remote(body, vxlan.index));
        })?;
        Ok(entries)
    }

    /// Removes an interface (and, for a veth, its other end). One that is not there is no error.
    pub fn delete(&mut self, name: &str) -> Result<(), InterfaceError> {
        checked(name)?;
        let mut request =
            Request::new(RTM_DELLINK, Mode::Change, &link_head(0, 0, 0), format!("remove the interface '{name}'"));
        request.text(IFLA_IFNAME, name);
        tolerate(self.socket.perform(request), &[libc::ENODEV])
    }

    pub(crate) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    fn ensure(
        &mut self,
        name: &str,
        kind: &'static str,
        data: impl FnOnce(&mut Request),
    ) -> Result<Interface, InterfaceError> {
        checked(name)?;
        if let Some(interface) = self.find(name)? {
            return expect_kind(interface, kind);
        }
        let what = format!("make the {kind} interface '{name}'");
        let mut request = Request::new(RTM_NEWLINK, Mode::Create, &link_head(0, 0, 0), what);
        request.text(IFLA_IFNAME, name).nested(IFLA_LINKINFO, |info| {
            info.text(INFO_KIND, kind).nested(INFO_DATA, data);
        });
        self.socket.perform(request)?;
        expect_kind(self.get(name)?, kind)
    }
}

fn expect_kind(interface: Interface, wanted: &'static str) -> Result<Interface, InterfaceError> {
    if interface.kind == wanted {
        return Ok(interface);
    }
    Err(InterfaceError::OtherKind { name: interface.name, kind: interface.kind, wanted })
}

fn change(interface: &Interface, what: String) -> Request {
    Request::new(RTM_NEWLINK, Mode::Change, &link_head(interface.index, 0, 0), what)
}

fn rule_request(kind: u16, mode: Mode, rule: RouteRule) -> Request {
    let RouteRule { family, protocol, table, priority } = rule;
    let family = match family {
        IpFamily::Ipv4 => libc::AF_INET,
        IpFamily::Ipv6 => libc::AF_INET6,
    };
    const FRA_PRIORITY: u16 = 6;
    const FRA_TABLE: u16 = 15;
    const FRA_IP_PROTO: u16 = 22;
    const TO_TABLE: u8 = 1;
    let head = [family as u8, 0, 0, 0, 0, 0, 0, TO_TABLE, 0, 0, 0, 0];
    let mut request = Request::new(kind, mode, &head, format!("route by table {table}"));
    request.u32(FRA_PRIORITY, priority).u32(FRA_TABLE, table).u8(FRA_IP_PROTO, protocol);
    request
}

fn tolerate(outcome: Result<(), NetlinkError>, errnos: &[i32]) -> Result<(), InterfaceError> {
    match outcome {
        Err(error) if error.errno().is_some_and(|errno| errnos.contains(&errno)) => Ok(()),
        other => Ok(other?),
    }
}

fn checked(name: &str) -> Result<(), InterfaceError> {
    let fine = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && name != "."
        && name != "..";
    if fine { Ok(()) } else { Err(InterfaceError::BadName(name.to_owned())) }
}

/// `struct ifinfomsg`.
fn link_head(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

/// `struct ndmsg`.
fn neighbour_head(family: u8, index: u32, state: u16, flags: u8) -> [u8; 12] {
    let mut head = [0; 12];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..10].copy_from_slice(&state.to_ne_bytes());
    head[10] = flags;
    head
}

fn entry_request(kind: u16, mode: Mode, interface: &Interface, entry: &Entry) -> Request {
    const PERMANENT: u16 = 0x80;
    /// A bridge calls an entry permanent that is for itself; static ones have this state.
    const NO_ARP: u16 = 0x40;
    const SELF: u8 = 2;
    const MASTER: u8 = 4;
    let what = format!("set an entry of '{}'", interface.name);
    match entry {
        Entry::Neighbour { address, mac } => {
            let head = neighbour_head(family(*address), interface.index, PERMANENT, 0);
            let mut request = Request::new(kind, mode, &head, what);
            request.attribute(NDA_DST, &octets(*address)).attribute(NDA_LLADDR, mac);
            request
        }
        Entry::Port { mac } => {
            let mut request =
                Request::new(kind, mode, &neighbour_head(AF_BRIDGE, interface.index, NO_ARP, MASTER), what);
            request.attribute(NDA_LLADDR, mac);
            request
        }
        Entry::Remote { mac, remote } => {
            let head = neighbour_head(AF_BRIDGE, interface.index, PERMANENT, SELF);
            let mut request = Request::new(kind, mode, &head, what);
            request.attribute(NDA_LLADDR, mac).attribute(NDA_DST, &octets(*remote));
            request
        }
    }
}

fn parse_interface(body: &[u8]) -> Option<Interface> {
    let (index, flags) = (read_u32(body, 4)?, read_u32(body, 8)?);
    let mut interface = Interface {
        index,
        name: String::new(),
        kind: String::new(),
        mac: None,
        mtu: 0,
        up: flags & IFF_UP != 0,
        bridge: None,
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_IFNAME => interface.name = text(value),
            IFLA_ADDRESS => interface.mac = value.try_into().ok(),
            IFLA_MTU => interface.mtu = read_u32(value, 0)?,
            IFLA_MASTER => interface.bridge = read_u32(value, 0),
            IFLA_LINKINFO => {
                let found = attributes(value).find(|(kind, _)| *kind == INFO_KIND);
                interface.kind = found.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => (),
        }
    }
    Some(interface)
}

fn parse_remote(body: &[u8], index: u32) -> Option<Entry> {
    if read_u32(body, 4)? != index {
        return None;
    }
    let (mut mac, mut remote) = (None, None);
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            NDA_LLADDR => mac = value.try_into().ok(),
            NDA_DST => remote = address(value),
            _ => (),
        }
    }
    Some(Entry::Remote { mac: mac?, remote: remote? })
}

/// `struct rtmsg` and its attributes: table, kind, and where to.
fn parse_route(body: &[u8]) -> Option<(u32, u8, Network)> {
    const RTA_DST: u16 = 1;
    let (of, prefix_bits, mut table, kind) = (*body.first()?, *body.get(1)?, u32::from(*body.get(4)?), *body.get(7)?);
    let mut to = if i32::from(of) == libc::AF_INET6 { Network::ALL_OF_IPV6 } else { Network::ALL_OF_IPV4 };
    for (attribute, value) in attributes(body.get(12..)?) {
        match attribute {
            RTA_DST => to.address = address(value)?,
            RTA_TABLE => table = read_u32(value, 0)?,
            _ => (),
        }
    }
    (prefix_bits <= 128).then_some((table, kind, Network { prefix_bits, ..to }))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
