//! A container's private layer-2 network: one flat segment over its nodes.
//!
//! ```text
//!   node's network namespace                                  container's
//!   [underlay] ── dvsxDC (VXLAN, VNI = DC) ── dvsbDC (bridge) ── dvsvDC ══ eth0
//! ```
//!
//! The container holds only the end of the veth pair. Nothing is learned and nothing is flooded: where each member is,
//! is programmed by the daemon from the registry, on the VXLAN device (which node), the bridge (which port) and inside
//! (which layer-2 address). Layer-2 addresses follow from container and node index, so no discovery is needed at all;
//! broadcast and multicast do not exist. The filter at `dvsvDC` keeps members from being anybody else.
//!
//! Addresses of IPv4 are of a network that people choose; those of IPv6 follow from the container's number and the
//! node's index, so nothing of them is recorded. They are used at once (nothing is negotiated), there are none of the
//! link, and nobody inside believes advertisements of routers. A node that has no IPv6 ([`ipv6_here`]) gives none.
//!
//! All of this lives in the network namespace of the calling thread, except the inner end. Everything is idempotent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;

use crate::filter;
use crate::links::{Entry, Interface, InterfaceError, Links, Mac, PortTrust, Vxlan};
use crate::netns::{self, NetnsError};

/// The registered port of VXLAN.
pub const PORT: u16 = 4789;
/// Name of the interface inside.
pub const INNER_NAME: &str = "eth0";
/// Outer Ethernet, IP, UDP and VXLAN headers.
const OVERHEAD_IPV4: u32 = 50;
const OVERHEAD_IPV6: u32 = 70;
/// IPv4's smallest allowed MTU; an underlay that leaves less is misconfigured.
const MTU_MIN: u32 = 576;
/// IPv6's: on an interface with less the kernel has none.
const MTU_MIN_IPV6: u32 = 1280;
/// What an Ethernet device takes; the loopback interface has more.
const MTU_MAX: u32 = 65_000;
/// VXLAN network identifiers have 24 bits, 0 is none.
const VNI_MAX: u32 = (1 << 24) - 1;

#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error("container number {0} is no network number: 1 to {VNI_MAX}")]
    BadNumber(u32),
    #[error("'{0}' is no IPv4 subnet such as 10.1.0.0/24, with a prefix of 8 to 30 bits")]
    BadSubnet(String),
    #[error("'{text}' lies in a subnet: the subnet itself is {subnet}")]
    InSubnet { text: String, subnet: Subnet },
    #[error("the subnet {subnet} has no address for node index {index}")]
    SubnetTooSmall { subnet: Subnet, index: u8 },
    #[error("the interface '{name}' of {underlay} takes {mtu} bytes, too few for a network inside")]
    MtuTooSmall { name: String, underlay: IpAddr, mtu: u32 },
    #[error("could not say how eth0 of the container network {dc} treats IPv6 ({setting})")]
    Setting {
        dc: u32,
        setting: &'static str,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("could not {step} of the container network {dc}")]
    Step {
        dc: u32,
        step: &'static str,
        #[source]
        cause: InterfaceError,
    },
}

/// An IPv4 network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subnet {
    base: Ipv4Addr,
    prefix_bits: u8,
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_bits)
    }
}

impl std::str::FromStr for Subnet {
    type Err = OverlayError;

    /// `10.1.0.0/24`: the base address exactly, 8 to 30 bits.
    fn from_str(text: &str) -> Result<Subnet, OverlayError> {
        let bad = || OverlayError::BadSubnet(text.to_owned());
        let (base, bits) = text.split_once('/').ok_or_else(bad)?;
        let base: Ipv4Addr = base.parse().map_err(|_| bad())?;
        let prefix_bits: u8 = bits.parse().map_err(|_| bad())?;
        if !(8..=30).contains(&prefix_bits) {
            return Err(bad());
        }
        let itself = Ipv4Addr::from(u32::from(base) & !(u32::MAX >> prefix_bits));
        let subnet = Subnet { base: itself, prefix_bits };
        if base == itself { Ok(subnet) } else { Err(OverlayError::InSubnet { text: text.to_owned(), subnet }) }
    }
}

impl Subnet {
    fn host_mask(self) -> u32 {
        u32::MAX >> self.prefix_bits
    }

    pub fn base(self) -> Ipv4Addr {
        self.base
    }

    /// The bits of an address that say which network it is of.
    pub fn mask(self) -> u32 {
        !self.host_mask()
    }

    pub fn prefix_bits(self) -> u8 {
        self.prefix_bits
    }

    /// The address of the container on the node at position `index`: the `index`+1-th.
    pub fn address(self, index: u8) -> Result<Ipv4Addr, OverlayError> {
        let host = u32::from(index) + 1;
        // The last one is the network's broadcast address.
        if host >= self.host_mask() {
            return Err(OverlayError::SubnetTooSmall { subnet: self, index });
        }
        Ok(Ipv4Addr::from(u32::from(self.base) + host))
    }
}

/// Bits of an address of IPv6 that say of which container it is.
pub const PREFIX_BITS_IPV6: u8 = 64;

/// The IPv6 network of container `dc`: `fd64:7673:` (unique local addresses, RFC 4193, and "dvs"), the container's
/// number, 64 bits for its nodes. Whoever else uses the same addresses is as far away as whoever else uses 10.1.0.0/24:
/// no packet of it ever comes here.
pub fn network_ipv6(dc: u32) -> Ipv6Addr {
    let [high, low] = [(dc >> 16) as u16, dc as u16];
    Ipv6Addr::new(0xfd64, 0x7673, high, low, 0, 0, 0, 0)
}

/// The address of container `dc` on the node at position `index`, which ends in the `index`+1-th number, as that of
/// IPv4.
pub fn address_ipv6(dc: u32, index: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(network_ipv6(dc).to_bits() | (u128::from(index) + 1))
}

/// Why containers have no IPv6 on this node.
#[derive(Debug, thiserror::Error)]
pub enum NoIpv6 {
    #[error("its kernel has no IPv6")]
    Kernel,
    #[error("IPv6 is switched off there (sysctl net.ipv6.conf.{0}.disable_ipv6)")]
    SwitchedOff(&'static str),
    #[error(
        "what the interface '{name}' takes ({mtu} bytes) leaves too little inside for IPv6, which needs {MTU_MIN_IPV6}"
    )]
    Mtu { name: String, mtu: u32 },
    #[error("it cannot be found out")]
    Unknown(#[from] InterfaceError),
    #[error("its settings cannot be read")]
    Unread(#[source] std::io::Error),
}

/// Whether containers have IPv6 on the node in whose network namespace the calling thread is, which others reach at
/// `underlay`.
///
/// # Errors
/// They have none, and why.
pub fn ipv6_here(underlay: IpAddr) -> Result<(), NoIpv6> {
    ipv6_is_on()?;
    let Interface { name, mtu, .. } = Links::here()?.holding(underlay)?;
    if mtu < MTU_MIN_IPV6 + overhead(underlay) {
        return Err(NoIpv6::Mtu { name, mtu });
    }
    Ok(())
}

/// Whether the kernel has IPv6, and nobody switched it off where the calling thread is.
///
/// # Errors
/// What is not so.
pub fn ipv6_is_on() -> Result<(), NoIpv6> {
    for of in ["all", "default"] {
        match std::fs::read_to_string(setting(of, "disable_ipv6")) {
            Ok(said) if said.trim() == "0" => (),
            Ok(_) => return Err(NoIpv6::SwitchedOff(of)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(NoIpv6::Kernel),
            Err(error) => return Err(NoIpv6::Unread(error)),
        }
    }
    Ok(())
}

/// Of the network namespace of the calling thread.
fn setting(interface: &str, name: &str) -> std::path::PathBuf {
    Path::new("/proc/sys/net/ipv6/conf").join(interface).join(name)
}

fn overhead(underlay: IpAddr) -> u32 {
    if underlay.is_ipv4() { OVERHEAD_IPV4 } else { OVERHEAD_IPV6 }
}

/// Another node of the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Position in the container's node list.
    pub index: u8,
    /// Where encapsulated frames for it go.
    pub underlay: IpAddr,
    /// The container has an address of IPv6 there.
    pub has_ipv6: bool,
}

/// One container's network on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay {
    pub dc: u32,
    /// Position of this node in the container's node list.
    pub index: u8,
    pub subnet: Subnet,
    /// This node's address among the nodes.
    pub underlay: IpAddr,
    /// UDP port, the same on all nodes; [`PORT`] usually.
    pub port: u16,
    /// The container gets an address of IPv6 here: [`ipv6_here`].
    pub has_ipv6: bool,
    /// The container's other nodes.
    pub peers: Vec<Peer>,
}

/// The layer-2 address of container `dc` at node `index`.
pub fn mac(dc: u32, index: u8) -> Mac {
    let [_, a, b, c] = dc.to_be_bytes();
    [filter::MAC_PREFIX[0], filter::MAC_PREFIX[1], a, b, c, index]
}

impl Overlay {
    /// Makes or updates everything; call it again when the peers changed. `container` is its network namespace.
    pub fn ensure(&self, container: impl AsFd) -> Result<(), OverlayError> {
        if !(1..=VNI_MAX).contains(&self.dc) {
            return Err(OverlayError::BadNumber(self.dc));
        }
        let address = self.subnet.address(self.index)?;
        let container = container.as_fd();
        let mut node = Links::here().map_err(self.step("open the node's side"))?;
        let mut inner = Links::within(container).map_err(self.step("open the container's side"))?;
        let mtu = self.mtu(&mut node)?;
        let (vxlan, bridge) = self.ensure_trunk(&mut node, mtu)?;
        let port = self.ensure_cable(&mut node, &mut inner, container)?;
        // The filter first: the port must never carry a frame without it.
        let address_ipv6 = self.has_ipv6.then(|| address_ipv6(self.dc, self.index));
        let bounds = filter::Bounds { mac: mac(self.dc, self.index), address, subnet: self.subnet, address_ipv6 };
        filter::ensure(&mut node, &port, &bounds).map_err(self.step("set the filter"))?;
        self.ensure_port(&mut node, &port, &bridge, mtu)?;
        self.ensure_forwarding(&mut node, &vxlan, &port)?;
        self.ensure_inside(&mut inner, address, mtu)?;
        self.ensure_ipv6_inside(&mut inner, container, address_ipv6)
    }

    /// Removes everything of container `dc` from the calling thread's namespace. Nothing there is no error.
    pub fn remove(dc: u32) -> Result<(), OverlayError> {
        let fail = |cause| OverlayError::Step { dc, step: "remove a part", cause };
        let mut node = Links::here().map_err(fail)?;
        for name in [veth_name(dc), vxlan_name(dc), bridge_name(dc)] {
            node.delete(&name).map_err(fail)?;
        }
        Ok(())
    }

    fn step(&self, step: &'static str) -> impl Fn(InterfaceError) -> OverlayError + use<> {
        let dc = self.dc;
        move |cause| OverlayError::Step { dc, step, cause }
    }

    fn mtu(&self, node: &mut Links) -> Result<u32, OverlayError> {
        let interface = node.holding(self.underlay).map_err(self.step("find the underlay"))?;
        match interface.mtu.checked_sub(overhead(self.underlay)) {
            Some(mtu) if mtu >= MTU_MIN => Ok(mtu.min(MTU_MAX)),
            _ => Err(OverlayError::MtuTooSmall { name: interface.name, underlay: self.underlay, mtu: interface.mtu }),
        }
    }

    fn ensure_trunk(&self, node: &mut Links, mtu: u32) -> Result<(Interface, Interface), OverlayError> {
        let fail = self.step("make the trunk");
        let wanted = Vxlan { vni: self.dc, local: self.underlay, port: self.port };
        let vxlan = node.ensure_vxlan(&vxlan_name(self.dc), &wanted).map_err(&fail)?;
        let bridge = node.ensure_bridge(&bridge_name(self.dc)).map_err(&fail)?;
        for interface in [&vxlan, &bridge] {
            node.without_ipv6_address(interface).map_err(&fail)?;
            node.set_mtu(interface, mtu).map_err(&fail)?;
        }
        self.deafen([&vxlan, &bridge]);
        node.set_port(&vxlan, &bridge, PortTrust::Open).map_err(&fail)?;
        node.set_up(&bridge).map_err(&fail)?;
        node.set_up(&vxlan).map_err(&fail)?;
        Ok((vxlan, bridge))
    }

    /// The node's own stack has nothing to say or to hear by IPv6 on these. What keeps it so is the filter; where the
    /// setting cannot be written, that alone does.
    fn deafen<const COUNT: usize>(&self, interfaces: [&Interface; COUNT]) {
        for interface in interfaces {
            let path = setting(&interface.name, "disable_ipv6");
            if path.exists()
                && let Err(cause) = std::fs::write(&path, "1")
            {
                tracing::debug!(dc = self.dc, interface = interface.name, %cause, "IPv6 stays on");
            }
        }
    }

    /// The veth pair. One whose inner end is not in the container belonged to an earlier life of it.
    fn ensure_cable(
        &self,
        node: &mut Links,
        inner: &mut Links,
        container: impl AsFd,
    ) -> Result<Interface, OverlayError> {
        let fail = self.step("make the cable");
        let name = veth_name(self.dc);
        if inner.find(INNER_NAME).map_err(&fail)?.is_none() {
            node.delete(&name).map_err(&fail)?;
        }
        node.ensure_veth(&name, INNER_NAME, container).map_err(&fail)
    }

    fn ensure_port(
        &self,
        node: &mut Links,
        port: &Interface,
        bridge: &Interface,
        mtu: u32,
    ) -> Result<(), OverlayError> {
        let fail = self.step("make the port");
        node.without_ipv6_address(port).map_err(&fail)?;
        self.deafen([port]);
        node.set_mtu(port, mtu).map_err(&fail)?;
        node.set_port(port, bridge, PortTrust::Locked).map_err(&fail)?;
        node.set_up(port).map_err(&fail)
    }

    fn ensure_forwarding(&self, node: &mut Links, vxlan: &Interface, port: &Interface) -> Result<(), OverlayError> {
        let fail = self.step("program the forwarding");
        let remote = |peer: &Peer| Entry::Remote { mac: mac(self.dc, peer.index), remote: peer.underlay };
        let remotes: Vec<Entry> = self.peers.iter().map(remote).collect();
        let stale: Vec<Entry> = node.remotes(vxlan).map_err(&fail)?;
        let stale: Vec<Entry> = stale.into_iter().filter(|entry| !remotes.contains(entry)).collect();
        node.remove_entries(vxlan, &stale).map_err(&fail)?;
        node.ensure_entries(vxlan, &remotes).map_err(&fail)?;
        let ports: Vec<Entry> = self.peers.iter().map(|peer| Entry::Port { mac: mac(self.dc, peer.index) }).collect();
        node.ensure_entries(vxlan, &ports).map_err(&fail)?;
        node.ensure_entries(port, &[Entry::Port { mac: mac(self.dc, self.index) }]).map_err(&fail)
    }

    fn ensure_inside(&self, inner: &mut Links, address: Ipv4Addr, mtu: u32) -> Result<(), OverlayError> {
        let fail = self.step("set up the inside");
        inner.set_loopback_up().map_err(&fail)?;
        let eth0 = inner.get(INNER_NAME).map_err(&fail)?;
        inner.set_mac(&eth0, mac(self.dc, self.index)).map_err(&fail)?;
        inner.set_mtu(&eth0, mtu).map_err(&fail)?;
        inner.without_ipv6_address(&eth0).map_err(&fail)?;
        inner.ensure_address(&eth0, IpAddr::V4(address), self.subnet.prefix_bits()).map_err(&fail)?;
        inner.set_up(&eth0).map_err(&fail)?;
        let mut entries = Vec::new();
        for peer in &self.peers {
            let address = IpAddr::V4(self.subnet.address(peer.index)?);
            entries.push(Entry::Neighbour { address, mac: mac(self.dc, peer.index) });
        }
        inner.ensure_entries(&eth0, &entries).map_err(&fail)
    }

    /// After the interface is up. Without an address nothing of IPv6 is left there.
    fn ensure_ipv6_inside(
        &self,
        inner: &mut Links,
        container: impl AsFd,
        address: Option<Ipv6Addr>,
    ) -> Result<(), OverlayError> {
        let switch = if address.is_some() { "0" } else { "1" };
        self.set_inside(container.as_fd(), &[("disable_ipv6", switch)])?;
        let Some(address) = address else { return Ok(()) };
        // What others advertise and redirect is nobody's business here, whatever the filter lets through.
        let deaf = [("accept_ra", "0"), ("autoconf", "0"), ("accept_redirects", "0")];
        self.set_inside(container.as_fd(), &deaf)?;
        let fail = self.step("set up IPv6 on the inside");
        let eth0 = inner.get(INNER_NAME).map_err(&fail)?;
        inner.ensure_address(&eth0, IpAddr::V6(address), PREFIX_BITS_IPV6).map_err(&fail)?;
        let peers = self.peers.iter().filter(|peer| peer.has_ipv6);
        let entries: Vec<Entry> = peers
            .map(|peer| Entry::Neighbour {
                address: IpAddr::V6(address_ipv6(self.dc, peer.index)),
                mac: mac(self.dc, peer.index),
            })
            .collect();
        inner.ensure_entries(&eth0, &entries).map_err(&fail)
    }

    /// Settings of the interface inside. Without IPv6 in the kernel there are none.
    fn set_inside(&self, container: impl AsFd, settings: &[(&'static str, &str)]) -> Result<(), OverlayError> {
        netns::within(container, || {
            settings.iter().try_for_each(|(name, value)| {
                match std::fs::write(setting(INNER_NAME, name), value) {
                    // With a read-only /proc/sys they are what they are: the filter keeps away what they would
                    // believe, and an address that cannot be had shows when it is given.
                    Err(cause) if matches!(cause.raw_os_error(), Some(libc::ENOENT | libc::EROFS | libc::EACCES)) => {
                        tracing::debug!(dc = self.dc, name, %cause, "a setting stays as it is");
                        Ok(())
                    }
                    written => written.map_err(|cause| OverlayError::Setting { dc: self.dc, setting: name, cause }),
                }
            })
        })?
    }
}

fn vxlan_name(dc: u32) -> String {
    format!("dvsx{dc}")
}

fn bridge_name(dc: u32) -> String {
    format!("dvsb{dc}")
}

fn veth_name(dc: u32) -> String {
    format!("dvsv{dc}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_at_position_i_has_the_next_address() {
        let subnet: Subnet = "10.1.0.0/24".parse().expect("subnet");
        assert_eq!(subnet.address(0).expect("first"), Ipv4Addr::new(10, 1, 0, 1));
        assert_eq!(subnet.address(62).expect("last node"), Ipv4Addr::new(10, 1, 0, 63));
        let small: Subnet = "10.1.0.4/30".parse().expect("subnet");
        assert!(small.address(1).is_ok());
        assert!(matches!(small.address(2), Err(OverlayError::SubnetTooSmall { .. })));
    }

    #[test]
    fn addresses_of_ipv6_follow_from_container_and_node_and_are_nobody_elses() {
        assert_eq!(address_ipv6(7, 0).to_string(), "fd64:7673:0:7::1");
        assert_eq!(address_ipv6(VNI_MAX, 62).to_string(), "fd64:7673:ff:ffff::3f");
        assert_eq!(address_ipv6(1, u8::MAX).to_string(), "fd64:7673:0:1::100");
        assert!(address_ipv6(7, 3).is_unique_local());
        let network = |address: Ipv6Addr| address.to_bits() >> (128 - PREFIX_BITS_IPV6);
        assert_eq!(network(address_ipv6(7, 9)), network(network_ipv6(7)));
        assert_ne!(network(network_ipv6(7)), network(network_ipv6(7 << 16)));
    }

    #[test]
    fn what_is_no_subnet_is_refused() {
        for bad in ["10.1.0.0", "10.1.0.1/24", "10.1.0.0/33", "10.1.0.0/31", "0.0.0.0/0", "x/8", "fd00::/64", ""] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }
}
