//! Names of containers for programs of this node: `web.shop.dvs` (`docs/design/ports.md`).
//!
//! A node's own network reaches nothing of a container but what is published. So a name leads to where published ports
//! of its container are reached from this node, and has no address where none is.

mod server;
pub use server::{NameServer, NamesProblem, Settings};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cluster::Lookup;
use dns::Resolution;
use mgmt_api::{DcPhase, NodeShare, PortSpec};

use crate::context::Context;
use crate::records::{self, DcView, Desired};
use crate::services;

/// All names end so.
const ZONE: &str = "dvs";

/// What is known of a name, the most specific label first.
pub fn known(context: &Context, labels: &[&str]) -> Resolution {
    let (dc, part) = match labels {
        [ZONE] => return Resolution::Name(Vec::new()),
        [dc, ZONE] => (*dc, None),
        [part, dc, ZONE] => (*dc, Some(*part)),
        [.., ZONE] => return Resolution::Nothing,
        _ => return Resolution::Foreign,
    };
    if !mgmt_api::valid_name(dc) {
        return Resolution::Nothing;
    }
    let Ok(view) = records::dc_view(&context.answers, dc) else { return Resolution::Unknown };
    let Some(view) = view.filter(|view| !matches!(view.record.desired, Desired::Deleted { .. })) else {
        return Resolution::Nothing;
    };
    let is_its_node = |name: &str| view.record.spec.nodes.iter().any(|node| node == name);
    let nodes = match part {
        Some(part) if is_its_node(part) => vec![part.to_owned()],
        Some(part) if !is_service(&context.answers, view.record.id, part) => return Resolution::Nothing,
        _ => view.record.spec.nodes.clone(),
    };
    let addresses: BTreeMap<String, IpAddr> = {
        let members = context.members.read();
        nodes.iter().filter_map(|node| Some((node.clone(), members.get(node)?.address.parse().ok()?))).collect()
    };
    Resolution::Name(reached(&view, &nodes, &context.config.node, &addresses))
}

fn is_service(lookup: &dyn Lookup, dc: u32, name: &str) -> bool {
    // What cannot be read now was not there.
    services::record::views(lookup, dc).is_ok_and(|views| views.contains_key(name))
}

/// Where ports are published on these nodes, as the node `own` reaches them: those of its own alone, where it has some.
fn reached(view: &DcView, nodes: &[String], own: &str, addresses: &BTreeMap<String, IpAddr>) -> Vec<IpAddr> {
    let at = |node: &String| {
        let ports = published(view, node);
        let mut found: Vec<IpAddr> = Vec::new();
        for port in &ports {
            let is_own = node == own;
            let here: &[IpAddr] = &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            match port.address {
                None if is_own => found.extend(here),
                Some(IpAddr::V4(any)) if is_own && any.is_unspecified() => found.extend(here.first()),
                Some(IpAddr::V6(any)) if is_own && any.is_unspecified() => found.extend(here.last()),
                // Nobody else reaches it there.
                Some(address) if address.is_loopback() && !is_own => (),
                Some(address) if !address.is_unspecified() => found.push(address),
                _ => found.extend(addresses.get(node)),
            }
        }
        found
    };
    let of_own: Vec<IpAddr> = nodes.iter().filter(|node| *node == own).flat_map(at).collect();
    let mut found: Vec<IpAddr> = if of_own.is_empty() { nodes.iter().flat_map(at).collect() } else { of_own };
    let mut seen = Vec::new();
    found.retain(|address| {
        !seen.contains(address) && {
            seen.push(*address);
            true
        }
    });
    found
}

/// What a node of it said that it listens at.
fn published(view: &DcView, node: &str) -> Vec<PortSpec> {
    let is_there = |share: &&NodeShare| matches!(share.phase, DcPhase::Running | DcPhase::Degraded);
    let share = view.shares.get(node).map(|record| &record.share).filter(is_there);
    let ports = share.into_iter().flat_map(|share| &share.ports);
    ports.filter(|port| port.problem.is_none()).filter_map(|port| port.port.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(ports: &[(&str, &[&str])]) -> DcView {
        let nodes: Vec<&str> = ports.iter().map(|(node, _)| *node).collect();
        let record = json!({
            "id": 7, "spec": { "name": "shop", "nodes": nodes }, "generation": 3, "created_s": 0,
            "desired": { "kind": "running" },
        });
        let share = |(node, ports): &(&str, &[&str])| {
            let ports: Vec<_> = ports
                .iter()
                .map(|port| match port.strip_prefix('!') {
                    Some(port) => json!({ "port": port, "problem": "taken" }),
                    None => json!({ "port": port }),
                })
                .collect();
            let share = json!({
                "node": node, "phase": "running", "address": "10.1.0.1", "pid_base": 65536,
                "endpoints": { "start": 256, "end": 512 }, "servers": [], "ports": ports,
            });
            let record = json!({ "id": 7, "generation": 3, "stage": "up", "gone": false, "share": share });
            ((*node).to_owned(), serde_json::from_value(record).unwrap())
        };
        DcView {
            record: serde_json::from_value(record).unwrap(),
            modified: Default::default(),
            shares: ports.iter().map(share).collect(),
        }
    }

    fn told(ports: &[(&str, &[&str])], of: &[&str], own: &str) -> Vec<String> {
        let addresses = [("n1", "192.0.2.1"), ("n2", "192.0.2.2"), ("n3", "2001:db8::3")];
        let addresses = addresses.map(|(node, address)| (node.to_owned(), address.parse().unwrap())).into();
        let of: Vec<String> = of.iter().map(|node| (*node).to_owned()).collect();
        reached(&view(ports), &of, own, &addresses).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn name_leads_to_where_a_port_is_published_on_this_node_or_else_on_others() {
        let everywhere: [(&str, &[&str]); 3] =
            [("n1", &["8080:80/tcp"]), ("n2", &["8080:80/tcp"]), ("n3", &["8080:80/tcp"])];
        let all = ["n1", "n2", "n3"];
        assert_eq!(told(&everywhere, &all, "n1"), ["127.0.0.1", "::1"]);
        assert_eq!(told(&everywhere, &all, "n9"), ["192.0.2.1", "192.0.2.2", "2001:db8::3"]);
        assert_eq!(told(&everywhere, &["n2"], "n1"), ["192.0.2.2"]);
        assert_eq!(told(&everywhere, &["n2"], "n2"), ["127.0.0.1", "::1"]);
        // Not here.
        let there: [(&str, &[&str]); 2] = [("n1", &["!8080:80/tcp"]), ("n2", &["8080:80/tcp", "81:81/udp"])];
        assert_eq!(told(&there, &["n1", "n2"], "n1"), ["192.0.2.2"]);
        assert!(told(&there, &["n1"], "n1").is_empty());
    }

    #[test]
    fn port_at_one_address_is_reached_there() {
        let at = |port: &str, own: &str| told(&[("n1", &[port])], &["n1"], own);
        assert_eq!(at("192.0.2.77:8080:80/tcp", "n1"), ["192.0.2.77"]);
        assert_eq!(at("192.0.2.77:8080:80/tcp", "n2"), ["192.0.2.77"]);
        assert_eq!(at("127.0.0.1:8080:80/tcp", "n1"), ["127.0.0.1"]);
        assert!(at("127.0.0.1:8080:80/tcp", "n2").is_empty());
        assert_eq!(at("0.0.0.0:8080:80/tcp", "n1"), ["127.0.0.1"]);
        assert_eq!(at("0.0.0.0:8080:80/tcp", "n2"), ["192.0.2.1"]);
    }
}
