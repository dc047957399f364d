//! What a container's way out is made of on this node (`docs/design/egress.md`): routes and sockets in its network
//! namespace, which its keeper keeps, and the gate that serves them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};

use keeper::KeeperClient;
use mgmt_api::{EgressRule, EgressSpec};
use sandbox::egress::{self, Ears};
use sandbox::overlay::Subnet;
use serde_json::{Value, json};
use vos_api::ports::RESOLVER;

use crate::supervise::Problem;

/// The daemon's end of the gate's socket, which the keeper holds.
pub const CONTROL: &str = "egress";
const STREAM: &str = "egress stream";
const DATAGRAMS: &str = "egress datagrams";
/// As long as it is open, the sockets hear.
const HEARING: &str = "egress hearing";
/// What the node knows of name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS: u16 = 53;

/// The container's own `/etc/resolv.conf`.
pub fn resolv_conf() -> String {
    format!("# The name server of the node, through the container's way out.\nnameserver {RESOLVER}\n")
}

/// All that a gate begins with, but its control.
pub fn descriptors(
    keeper: &KeeperClient,
    subnet: Subnet,
    address: Ipv4Addr,
) -> Result<BTreeMap<String, OwnedFd>, Problem> {
    let net = keeper.namespaces()?.net;
    egress::ensure_routes(&net, address)?;
    let ears = match keeper.fetch(STREAM)?.zip(keeper.fetch(DATAGRAMS)?) {
        Some((stream, datagrams)) => Ears { stream, datagrams },
        None => {
            let ears = egress::listen(&net)?;
            keeper.store(STREAM, ears.stream.as_fd())?;
            keeper.store(DATAGRAMS, ears.datagrams.as_fd())?;
            ears
        }
    };
    if keeper.fetch(HEARING)?.is_none() {
        keeper.store(HEARING, egress::attach(&net, subnet, &ears)?.as_fd())?;
    }
    let Ears { stream, datagrams } = ears;
    Ok([("net", net), ("stream", stream), ("datagrams", datagrams)].map(|(name, fd)| (name.to_owned(), fd)).into())
}

/// Nothing of it is left in the container.
pub fn close(keeper: &KeeperClient) -> Result<(), Problem> {
    for kept in [CONTROL, HEARING, STREAM, DATAGRAMS] {
        keeper.drop_stored(kept)?;
    }
    Ok(egress::remove_routes(keeper.namespaces()?.net)?)
}

/// Of the gate's spawn record. `nodes`: addresses that it never reaches.
pub fn options(spec: &EgressSpec, nodes: &[Ipv4Addr]) -> Result<Value, Problem> {
    let rules = spec.allow.iter().map(|rule| rule.parse()).collect::<Result<Vec<EgressRule>, _>>()?;
    let rules = if rules.is_empty() { vec![EgressRule::ALL] } else { rules };
    let allowed = rules
        .iter()
        .map(|rule| json!([u32::from(rule.network), rule.prefix_bits, rule.port.map_or(0, |port| port.get())]));
    let never = nodes.iter().map(|node| json!(u32::from(*node)));
    let known = std::fs::read_to_string(RESOLV_CONF).unwrap_or_default();
    let resolver = resolver(&known).map(|address| SocketAddrV4::new(address, DNS).to_string());
    Ok(json!({
        "allowed": allowed.collect::<Vec<_>>(), "never": never.collect::<Vec<_>>(), "resolver": resolver,
    }))
}

/// The first name server of IPv4 (`resolv.conf(5)`).
fn resolver(text: &str) -> Option<Ipv4Addr> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        match words.next()?.parse() {
            Ok(IpAddr::V4(address)) => Some(address),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_server_is_the_first_of_this_family() {
        let text = "# nameserver 192.0.2.9\nsearch example.org\nnameserver ::1\nnameserver 127.0.0.53 # local\nnameserver 192.0.2.1";
        assert_eq!(resolver(text), Some(Ipv4Addr::new(127, 0, 0, 53)));
        for none in ["", "nameserver", "nameserver x", "nameservers 192.0.2.1"] {
            assert_eq!(resolver(none), None, "{none}");
        }
    }

    #[test]
    fn gate_is_told_what_is_allowed_in_numbers() {
        let spec = |allow: &[&str]| EgressSpec { allow: allow.iter().map(|rule| (*rule).to_owned()).collect() };
        let told = options(&spec(&[]), &[Ipv4Addr::new(0, 0, 1, 0)]).unwrap();
        assert_eq!((&told["allowed"], &told["never"]), (&json!([[0, 0, 0]]), &json!([256])));
        let told = options(&spec(&["0.0.2.0/24:443"]), &[]).unwrap();
        assert_eq!(told["allowed"], json!([[512, 24, 443]]));
        assert!(options(&spec(&["x"]), &[]).is_err());
    }
}
