//! The way out of a container: everything that its programs send by TCP or UDP to addresses outside of its own network
//! is delivered to sockets inside, two of each family, which a gate serves (`gate/gate-port`).
//!
//! Routes make such addresses local (a table of its own, asked after all others, for these two protocols alone:
//! anything else has no route), and a program of the kernel's says who hears them (`sys::sk_lookup`). No packet leaves
//! the container's network namespace, so the filter at its cable stays what it is.
//!
//! By IPv4 these are all addresses there are. By IPv6 they are those to which the node has a route, and that may be
//! reached: whoever finds no way by IPv6 is told so at once, and takes IPv4.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use sys::sk_lookup::OwnNetwork;

use crate::links::{InterfaceError, IpFamily, Links, Network, RouteRule};
use crate::netns::{self, NetnsError};
use crate::overlay::Subnet;

/// Of the routes.
const TABLE: u32 = 100;
/// After those of the kernel (32,766 and 32,767).
const PRIORITY: u32 = 40_000;
/// Of one container's ways out by IPv6. Where the node has more, all of its table is one.
pub const NETWORKS_MAX: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error("could not {step} of the way out")]
    Routes {
        step: &'static str,
        #[source]
        cause: InterfaceError,
    },
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error("could not {step} of the way out")]
    Sockets {
        step: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// On which programs are heard that want out.
#[derive(Debug)]
pub struct Ears {
    pub stream: OwnedFd,
    pub datagrams: OwnedFd,
}

/// Makes the routes of IPv4; may be repeated. `address` is that of the container on this node, and there already.
pub fn ensure_routes(container: impl AsFd, address: Ipv4Addr) -> Result<(), EgressError> {
    let mut inside = Links::within(container).map_err(routes("reach the routes"))?;
    inside.ensure_local(TABLE, Network::ALL_OF_IPV4, address.into()).map_err(routes("make the route"))?;
    rules(IpFamily::Ipv4).try_for_each(|rule| inside.ensure_rule(rule)).map_err(routes("make a rule"))
}

/// Makes the routes of IPv6 to these networks, and to no others; may be repeated. `address` as above.
pub fn follow_routes(container: impl AsFd, address: Ipv6Addr, networks: &[Network]) -> Result<(), EgressError> {
    if !has_ipv6() {
        return Ok(());
    }
    let mut inside = Links::within(container).map_err(routes("reach the routes"))?;
    for network in networks {
        inside.ensure_local(TABLE, *network, address.into()).map_err(routes("make a route"))?;
    }
    let there = inside.local_networks(TABLE).map_err(routes("list the routes"))?;
    for network in there.into_iter().filter(|network| !networks.contains(network)) {
        inside.remove_local(TABLE, network).map_err(routes("remove a route"))?;
    }
    rules(IpFamily::Ipv6).try_for_each(|rule| inside.ensure_rule(rule)).map_err(routes("make a rule"))
}

/// Networks of IPv6 that are reached through the node in whose network namespace the calling thread is: those to which
/// it has a route, as far as something of them is in one of `allowed`.
pub fn reachable(allowed: &[Network]) -> Result<Vec<Network>, EgressError> {
    let mut node = Links::here().map_err(routes("reach the node's routes"))?;
    let reached = node.reachable_networks().map_err(routes("list the node's routes"))?;
    Ok(in_common(&reached, allowed))
}

fn in_common(reached: &[Network], allowed: &[Network]) -> Vec<Network> {
    // Of the wire, and of groups: nothing that a gate reaches.
    let near = [("fe80::", 10), ("ff00::", 8)].map(|(address, prefix_bits)| {
        let address = address.parse().unwrap_or(Ipv6Addr::LOCALHOST);
        Network { address: address.into(), prefix_bits }
    });
    let is_far = |network: &&Network| !near.iter().any(|near| near.contains(**network));
    let mut common: Vec<Network> = Vec::new();
    for reached in reached.iter().filter(is_far) {
        common.extend(allowed.iter().filter(|allowed| reached.contains(**allowed)));
        common.extend(allowed.iter().any(|allowed| allowed.contains(*reached)).then_some(reached));
    }
    common.sort_unstable();
    common.dedup();
    // What lies in another one says nothing.
    let whole: Vec<Network> = common
        .iter()
        .filter(|network| !common.iter().any(|other| other != *network && other.contains(**network)))
        .copied()
        .collect();
    if whole.len() > NETWORKS_MAX { vec![Network::ALL_OF_IPV6] } else { whole }
}

/// Nothing is routed there any more; may be repeated.
pub fn remove_routes(container: impl AsFd) -> Result<(), EgressError> {
    let mut inside = Links::within(container).map_err(routes("reach the routes"))?;
    let mut all = rules(IpFamily::Ipv4).chain(rules(IpFamily::Ipv6).filter(|_| has_ipv6()));
    all.try_for_each(|rule| inside.remove_rule(rule)).map_err(routes("remove a rule"))
}

fn routes(step: &'static str) -> impl FnOnce(InterfaceError) -> EgressError {
    move |cause| EgressError::Routes { step, cause }
}

fn rules(family: IpFamily) -> impl Iterator<Item = RouteRule> {
    let of = move |protocol| RouteRule { family, protocol: protocol as u8, table: TABLE, priority: PRIORITY };
    [libc::IPPROTO_TCP, libc::IPPROTO_UDP].into_iter().map(of)
}

/// The kernel.
fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6").exists()
}

/// Two sockets of a family in the container's network namespace.
pub fn listen(container: impl AsFd, family: IpFamily) -> Result<Ears, EgressError> {
    let host: IpAddr = match family {
        IpFamily::Ipv4 => Ipv4Addr::LOCALHOST.into(),
        IpFamily::Ipv6 => Ipv6Addr::LOCALHOST.into(),
    };
    let made = netns::within(container, || -> io::Result<Ears> {
        let stream = TcpListener::bind(SocketAddr::new(host, 0))?;
        let datagrams = UdpSocket::bind(SocketAddr::new(host, 0))?;
        sys::sk_lookup::stand_for_others(&stream)?;
        sys::sk_lookup::ask_for_destination(&datagrams)?;
        Ok(Ears { stream: stream.into(), datagrams: datagrams.into() })
    })?;
    made.map_err(|cause| EgressError::Sockets { step: "make the sockets", cause })
}

/// What of IPv4 is the container's own.
pub fn own_network(subnet: Subnet) -> OwnNetwork {
    OwnNetwork::Ipv4(subnet.base(), Ipv4Addr::from(subnet.mask()))
}

/// Until the answer is closed, they hear what is sent outside of the container's network by their family.
pub fn attach(container: impl AsFd, own: OwnNetwork, ears: &Ears) -> Result<OwnedFd, EgressError> {
    sys::sk_lookup::attach(container.as_fd(), own, &ears.stream, &ears.datagrams)
        .map_err(|cause| EgressError::Sockets { step: "attach the sockets (it takes Linux 5.9)", cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<Network> {
        let network = |text: &&str| {
            let (address, bits) = text.split_once('/').unwrap();
            Network { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
        };
        texts.iter().map(network).collect()
    }

    #[test]
    fn ways_out_are_what_the_node_reaches_of_what_is_allowed() {
        let common = |reached: &[&str], allowed: &[&str]| in_common(&networks(reached), &networks(allowed));
        let all = ["0.0.0.0/0", "::/0"];
        assert_eq!(common(&["fe80::/64", "ff00::/8"], &all), []);
        assert_eq!(common(&["fe80::/64", "2001:db8::/64", "::/0"], &all), networks(&["::/0"]));
        assert_eq!(common(&["2001:db8::/64", "fd12::/16"], &all), networks(&["2001:db8::/64", "fd12::/16"]));
        // Nobody who may reach IPv4 alone is sent a way that leads nowhere.
        assert_eq!(common(&["::/0"], &["0.0.0.0/0"]), []);
        assert_eq!(common(&["::/0"], &["2001:db8:1::/48"]), networks(&["2001:db8:1::/48"]));
        assert_eq!(common(&["2001:db8:1:2::/64"], &["2001:db8:1::/48"]), networks(&["2001:db8:1:2::/64"]));
        assert_eq!(common(&["2001:db8:2::/48"], &["2001:db8:1::/48"]), []);
        let many: Vec<Network> = (0..300)
            .map(|at| Network { address: Ipv6Addr::new(0x2001, 0xdb8, at, 0, 0, 0, 0, 0).into(), prefix_bits: 48 })
            .collect();
        assert_eq!(in_common(&many, &networks(&all)), networks(&["::/0"]));
    }
}
