//! What a container's way out is made of on this node (`docs/design/egress.md`): routes and sockets in its network
//! namespace, which its keeper keeps, and the gate that serves them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use keeper::KeeperClient;
use mgmt_api::EgressSpec;
use sandbox::egress::{self, Ears};
use sandbox::links::{IpFamily, Network};
use sandbox::overlay::Subnet;
use serde_json::{Value, json};
use sys::sk_lookup::OwnNetwork;
use vos_api::ports::RESOLVER;

use crate::supervise::Problem;

/// The daemon's end of the gate's socket, which the keeper holds.
pub const CONTROL: &str = "egress";
/// What the keeper holds for each family of addresses.
struct Kept {
    stream: &'static str,
    datagrams: &'static str,
    /// As long as it is open, the sockets hear.
    hearing: &'static str,
    family: IpFamily,
}

const OF_IPV4: Kept =
    Kept { stream: "egress stream", datagrams: "egress datagrams", hearing: "egress hearing", family: IpFamily::Ipv4 };
const OF_IPV6: Kept = Kept {
    stream: "egress stream6",
    datagrams: "egress datagrams6",
    hearing: "egress hearing6",
    family: IpFamily::Ipv6,
};
/// What the node knows of name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS: u16 = 53;

/// The container's own `/etc/resolv.conf`.
pub fn resolv_conf() -> String {
    format!("# The name server of the node, through the container's way out.\nnameserver {RESOLVER}\n")
}

/// Where the container is on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContainerAddresses {
    pub subnet: Subnet,
    pub address: Ipv4Addr,
    /// Where the node has IPv6.
    pub address_ipv6: Option<Ipv6Addr>,
}

/// All that a gate begins with, but its control.
pub fn descriptors(keeper: &KeeperClient, inside: &ContainerAddresses) -> Result<BTreeMap<String, OwnedFd>, Problem> {
    let net = keeper.namespaces()?.net;
    egress::ensure_routes(&net, inside.address)?;
    let Ears { stream, datagrams } = ears(keeper, &net, &OF_IPV4, egress::own_network(inside.subnet))?;
    let mut all: BTreeMap<String, OwnedFd> =
        [("stream", stream), ("datagrams", datagrams)].map(|(name, fd)| (name.to_owned(), fd)).into();
    if let Some(address) = inside.address_ipv6 {
        let Ears { stream, datagrams } = ears(keeper, &net, &OF_IPV6, OwnNetwork::Ipv6(address))?;
        all.extend([("stream6", stream), ("datagrams6", datagrams)].map(|(name, fd)| (name.to_owned(), fd)));
    }
    all.insert("net".to_owned(), net);
    Ok(all)
}

/// Those that the keeper has, or new ones.
fn ears(keeper: &KeeperClient, net: &OwnedFd, kept: &Kept, own: OwnNetwork) -> Result<Ears, Problem> {
    let ears = match keeper.fetch(kept.stream)?.zip(keeper.fetch(kept.datagrams)?) {
        Some((stream, datagrams)) => Ears { stream, datagrams },
        None => {
            let ears = egress::listen(net, kept.family)?;
            keeper.store(kept.stream, ears.stream.as_fd())?;
            keeper.store(kept.datagrams, ears.datagrams.as_fd())?;
            ears
        }
    };
    if keeper.fetch(kept.hearing)?.is_none() {
        keeper.store(kept.hearing, egress::attach(net, own, &ears)?.as_fd())?;
    }
    Ok(ears)
}

/// Where to the container gets out by IPv6 through this node, as things are.
pub fn ways_of_ipv6(spec: &EgressSpec) -> Result<Vec<Network>, Problem> {
    let rules = spec.rules()?;
    let networks = rules.iter().map(|rule| Network { address: rule.network, prefix_bits: rule.prefix_bits });
    Ok(egress::reachable(&networks.collect::<Vec<_>>())?)
}

/// These are its ways out by IPv6, and no others.
pub fn follow_ways(keeper: &KeeperClient, address: Ipv6Addr, ways: &[Network]) -> Result<(), Problem> {
    Ok(egress::follow_routes(keeper.namespaces()?.net, address, ways)?)
}

/// Nothing of it is left in the container.
pub fn close(keeper: &KeeperClient) -> Result<(), Problem> {
    keeper.drop_stored(CONTROL)?;
    for kept in [OF_IPV4, OF_IPV6] {
        [kept.hearing, kept.stream, kept.datagrams].into_iter().try_for_each(|name| keeper.drop_stored(name))?;
    }
    Ok(egress::remove_routes(keeper.namespaces()?.net)?)
}

/// Addresses that a gate never reaches, as it reads them: there may be more than fit into its record.
pub fn never(nodes: &[IpAddr]) -> Result<OwnedFd, Problem> {
    let mut file = File::from(rustix::fs::memfd_create("never", rustix::fs::MemfdFlags::CLOEXEC)?);
    let lines: String = nodes.iter().map(|node| format!("{node}\n")).collect();
    file.write_all(lines.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// Of the gate's spawn record.
pub fn options(spec: &EgressSpec) -> Result<Value, Problem> {
    let allowed: Vec<Value> = spec
        .rules()?
        .iter()
        .map(|rule| json!([rule.network, rule.prefix_bits, rule.port.map_or(0, |port| port.get())]))
        .collect();
    let known = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let resolver = resolver(&known).map(|address| SocketAddr::new(address, DNS).to_string());
    Ok(json!({ "allowed": allowed, "resolver": resolver }))
}

/// The first name server of IPv4, else the first one (`resolv.conf(5)`).
fn resolver(text: &str) -> Option<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next()?.parse().ok()
    });
    let servers: Vec<IpAddr> = servers.collect();
    servers.iter().find(|server| server.is_ipv4()).or(servers.first()).copied()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn name_server_is_the_first_of_ipv4_else_the_first() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver ::1\nnameserver 127.0.0.53 # local\nnameserver 192.0.2.1";
        assert_eq!(resolver(text), Some(Ipv4Addr::new(127, 0, 0, 53).into()));
        let text = "nameserver 2001:db8::53\nnameserver ::1";
        assert_eq!(resolver(text).map(|server| server.to_string()).as_deref(), Some("2001:db8::53"));
        for none in ["", "nameserver", "nameserver x", "nameservers 192.0.2.1"] {
            assert_eq!(resolver(none), None, "{none}");
        }
    }

    #[test]
    fn gate_is_told_what_is_allowed() {
        let spec = |allow: &[&str]| EgressSpec { allow: allow.iter().map(|rule| (*rule).to_owned()).collect() };
        let told = options(&spec(&[])).unwrap();
        assert_eq!(told["allowed"], json!([["0.0.0.0", 0, 0], ["::", 0, 0]]));
        let mut never = String::new();
        let nodes = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        File::from(super::never(&nodes).unwrap()).read_to_string(&mut never).unwrap();
        assert_eq!(never, "192.0.2.1\n2001:db8::1\n");
        let told = options(&spec(&["198.51.100.0/24:443", "[2001:db8::]/32:80"])).unwrap();
        assert_eq!(told["allowed"], json!([["198.51.100.0", 24, 443], ["2001:db8::", 32, 80]]));
        assert!(options(&spec(&["x"])).is_err());
    }
}
