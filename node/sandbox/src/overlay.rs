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
//! All of this lives in the network namespace of the calling thread, except the inner end. Everything is idempotent.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

use crate::filter;
use crate::links::{Entry, Interface, InterfaceError, Links, Mac, PortTrust, Vxlan};

/// The registered port of VXLAN.
pub const PORT: u16 = 4789;
/// Name of the interface inside.
pub const INNER_NAME: &str = "eth0";
/// Outer Ethernet, IP, UDP and VXLAN headers.
const OVERHEAD_IPV4: u32 = 50;
const OVERHEAD_IPV6: u32 = 70;
/// IPv4's smallest allowed MTU; an underlay that leaves less is misconfigured.
const MTU_MIN: u32 = 576;
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

/// Another node of the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Position in the container's node list.
    pub index: u8,
    /// Where encapsulated frames for it go.
    pub underlay: IpAddr,
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
        let bounds = filter::Bounds { mac: mac(self.dc, self.index), address, subnet: self.subnet };
        filter::ensure(&mut node, &port, &bounds).map_err(self.step("set the filter"))?;
        self.ensure_port(&mut node, &port, &bridge, mtu)?;
        self.ensure_forwarding(&mut node, &vxlan, &port)?;
        self.ensure_inside(&mut inner, address, mtu)
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
        let overhead = if self.underlay.is_ipv4() { OVERHEAD_IPV4 } else { OVERHEAD_IPV6 };
        match interface.mtu.checked_sub(overhead) {
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
        node.set_port(&vxlan, &bridge, PortTrust::Open).map_err(&fail)?;
        node.set_up(&bridge).map_err(&fail)?;
        node.set_up(&vxlan).map_err(&fail)?;
        Ok((vxlan, bridge))
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
    fn what_is_no_subnet_is_refused() {
        for bad in ["10.1.0.0", "10.1.0.1/24", "10.1.0.0/33", "10.1.0.0/31", "0.0.0.0/0", "x/8", "fd00::/64", ""] {
            assert!(bad.parse::<Subnet>().is_err(), "{bad}");
        }
    }
}
