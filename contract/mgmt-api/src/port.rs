//! Published ports: what of a container is reached from outside, by a port of its nodes (`docs/design/ports.md`).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// ```toml
/// [[ports]]
/// published = 8080
/// port = 80
/// address = "192.0.2.7"
/// protocol = "tcp"
/// nodes = ["n1", "n2"]
/// proxy_protocol = true
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortSpec {
    /// At the nodes.
    pub published: NonZeroU16,
    /// Inside: whichever node of the container listens there gets the connections.
    pub port: NonZeroU16,
    /// Of the nodes, at which they listen; all that they have when absent. The unspecified one of IPv4 leaves out IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    #[serde(default)]
    pub protocol: PortProtocol,
    /// Where it is published; on all nodes of the container when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Each connection begins with a header of the PROXY protocol, version 2, which says who the client is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proxy_protocol: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    #[default]
    Tcp,
    Udp,
}

impl PortProtocol {
    pub fn name(self) -> &'static str {
        match self {
            PortProtocol::Tcp => "tcp",
            PortProtocol::Udp => "udp",
        }
    }
}

/// As people write it: `[ADDRESS:]PUBLISHED:PORT[/udp]`, addresses of IPv6 in brackets.
impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]:")?,
            Some(IpAddr::V4(address)) => write!(f, "{address}:")?,
            None => (),
        }
        write!(f, "{}:{}/{}", self.published, self.port, self.protocol.name())
    }
}

/// It is no published port, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no published port: [ADDRESS:]PORT:PORT[/udp], as in 8080:80 or 127.0.0.1:5353:53/udp")]
pub struct NoPort(pub String);

impl FromStr for PortSpec {
    type Err = NoPort;

    fn from_str(text: &str) -> Result<PortSpec, NoPort> {
        parse(text).ok_or_else(|| NoPort(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<PortSpec> {
    let (rest, protocol) = match text.rsplit_once('/') {
        None => (text, PortProtocol::Tcp),
        Some((rest, "tcp")) => (rest, PortProtocol::Tcp),
        Some((rest, "udp")) => (rest, PortProtocol::Udp),
        Some(_) => return None,
    };
    let (rest, port) = match rest.rsplit_once(':') {
        Some((rest, port)) => (rest, port.parse().ok()?),
        // One number is both.
        None => (rest, rest.parse().ok()?),
    };
    let (address, published) = match rest.rsplit_once(':') {
        None => (None, rest),
        Some((address, published)) => {
            let bare = address.strip_prefix('[').and_then(|address| address.strip_suffix(']'));
            let address: IpAddr = match bare {
                Some(bare) => IpAddr::V6(bare.parse::<Ipv6Addr>().ok()?),
                None => IpAddr::V4(address.parse().ok()?),
            };
            (Some(address), published)
        }
    };
    let published = published.parse().ok()?;
    Some(PortSpec { published, port, address, protocol, nodes: Vec::new(), proxy_protocol: false })
}

impl PortSpec {
    /// Whether a node of the container publishes it.
    pub fn is_at(&self, node: &str) -> bool {
        self.nodes.is_empty() || self.nodes.iter().any(|one| one == node)
    }

    /// Whether both are of one port of one address.
    pub fn collides(&self, other: &PortSpec) -> bool {
        let any = |address: Option<IpAddr>| address.is_none_or(|address| address.is_unspecified());
        let meets = any(self.address) || any(other.address) || self.address == other.address;
        let on_one = self.nodes.is_empty() || other.nodes.is_empty() || self.nodes.iter().any(|node| other.is_at(node));
        (self.published, self.protocol) == (other.published, other.protocol) && meets && on_one
    }
}

/// A published port and how it is with it at each node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortInfo {
    pub spec: PortSpec,
    pub nodes: Vec<PortAtNode>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortAtNode {
    pub node: String,
    pub state: PortState,
    /// Why it does not listen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum PortState {
    /// The node listens.
    Open,
    /// The container does not run there.
    Closed,
    /// The node cannot listen; it tries again.
    Failed,
    /// The node's daemon says nothing.
    Unknown,
}

/// Of a node's share: a port at which it is to listen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharePort {
    /// As [`PortSpec`] is written.
    pub port: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_written_as_they_are_read() {
        let written = |text: &str| text.parse::<PortSpec>().map(|port| port.to_string());
        for (text, whole) in [
            ("80", "80:80/tcp"),
            ("8080:80", "8080:80/tcp"),
            ("127.0.0.1:5353:53/udp", "127.0.0.1:5353:53/udp"),
            ("0.0.0.0:1:2", "0.0.0.0:1:2/tcp"),
            ("[::1]:8080:80/tcp", "[::1]:8080:80/tcp"),
        ] {
            assert_eq!(written(text).as_deref(), Ok(whole));
            assert_eq!(written(whole).as_deref(), Ok(whole));
        }
        for bad in [
            "",
            ":",
            "0:80",
            "80:0",
            "80:65536",
            "a:80",
            "80/sctp",
            "::1:8080:80",
            "[127.0.0.1]:1:2",
            "1:2:3",
            "80:80:",
            "/tcp",
            "80/",
        ] {
            assert!(bad.parse::<PortSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ports_collide_where_one_socket_could_not_have_both() {
        let port = |text: &str, nodes: &[&str]| PortSpec {
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..text.parse().unwrap()
        };
        let collide = |left: &PortSpec, right: &PortSpec| {
            assert_eq!(left.collides(right), right.collides(left));
            left.collides(right)
        };
        let all = port("8080:80", &[]);
        assert!(collide(&all, &port("8080:81", &[])));
        assert!(collide(&all, &port("127.0.0.1:8080:81", &["n1"])));
        assert!(!collide(&all, &port("8081:80", &[])));
        assert!(!collide(&all, &port("8080:80/udp", &[])));
        assert!(!collide(&port("8080:80", &["n1"]), &port("8080:80", &["n2"])));
        assert!(!collide(&port("127.0.0.1:8080:80", &[]), &port("127.0.0.2:8080:80", &[])));
    }
}
