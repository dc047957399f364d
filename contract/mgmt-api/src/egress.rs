//! The way out of a container: what its programs may reach outside (`docs/design/egress.md`).

use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// ```toml
/// [egress]
/// allow = ["198.51.100.0/24", "10.0.0.0/8:5432"]
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EgressSpec {
    /// Networks of IPv4, each with one port or all, as [`EgressRule`] is written; everything when empty. Addresses of
    /// the cluster's nodes, of the machine itself and of its wire are never reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

impl EgressSpec {
    /// Whether everything that `other` lets out is let out here, too, as far as single rules of both show it.
    pub fn allows_all_of(&self, other: &EgressSpec) -> bool {
        let rules = |spec: &EgressSpec| -> Vec<EgressRule> {
            let all = Some(EgressRule::ALL).filter(|_| spec.allow.is_empty());
            spec.allow.iter().filter_map(|rule| rule.parse().ok()).chain(all).collect()
        };
        let wide = rules(self);
        rules(other).iter().all(|narrow| wide.iter().any(|rule| rule.contains(narrow)))
    }
}

/// A network, and of it one port or all: `NETWORK[/BITS][:PORT]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EgressRule {
    pub network: Ipv4Addr,
    pub prefix_bits: u8,
    pub port: Option<NonZeroU16>,
}

impl EgressRule {
    pub const ALL: EgressRule = EgressRule { network: Ipv4Addr::UNSPECIFIED, prefix_bits: 0, port: None };

    fn contains(&self, other: &EgressRule) -> bool {
        let bits = |address: Ipv4Addr| u32::from(address).checked_shr(32 - u32::from(self.prefix_bits)).unwrap_or(0);
        self.prefix_bits <= other.prefix_bits
            && bits(self.network) == bits(other.network)
            && self.port.is_none_or(|port| other.port == Some(port))
    }
}

/// It is no network, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is no network that may be reached: NETWORK[/BITS][:PORT], as in 10.0.0.0/8 or 192.0.2.7:443")]
pub struct NoEgressRule(pub String);

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix_bits)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for EgressRule {
    type Err = NoEgressRule;

    fn from_str(text: &str) -> Result<EgressRule, NoEgressRule> {
        parse(text).ok_or_else(|| NoEgressRule(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<EgressRule> {
    let (rest, port) = match text.split_once(':') {
        Some((rest, port)) => (rest, Some(port.parse().ok()?)),
        None => (text, None),
    };
    let (network, prefix_bits) = match rest.split_once('/') {
        Some((network, bits)) => (network, bits.parse().ok().filter(|bits| *bits <= 32)?),
        None => (rest, 32),
    };
    let network: Ipv4Addr = network.parse().ok()?;
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix_bits)).unwrap_or(0);
    // One that has more than the network is a slip of the pen.
    (u32::from(network) & !mask == 0).then_some(EgressRule { network, prefix_bits, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_as_they_are_read() {
        let written = |text: &str| text.parse::<EgressRule>().map(|rule| rule.to_string());
        for (text, whole) in [
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
            ("192.0.2.7", "192.0.2.7/32"),
            ("192.0.2.7:443", "192.0.2.7/32:443"),
        ] {
            assert_eq!(written(text).as_deref(), Ok(whole));
        }
        assert_eq!(written("0.0.0.0/0"), Ok(EgressRule::ALL.to_string()));
        for bad in ["", "x", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8:0", "10.0.0.0/8:", "::/0", "10.0.0.0/"] {
            assert!(bad.parse::<EgressRule>().is_err(), "{bad}");
        }
    }
}
