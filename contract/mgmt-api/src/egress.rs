//! The way out of a container: what its programs may reach outside (`docs/design/egress.md`).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
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
    /// Networks, each with one port or all, as [`EgressRule`] is written; everything when empty. Addresses of the
    /// cluster's nodes, of the machine itself and of its wire are never reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

impl EgressSpec {
    /// What it lets out.
    ///
    /// # Errors
    /// Something that it names is no network.
    pub fn rules(&self) -> Result<Vec<EgressRule>, NoEgressRule> {
        let named: Vec<EgressRule> = self.allow.iter().map(|rule| rule.parse()).collect::<Result<_, _>>()?;
        Ok(if named.is_empty() { EgressRule::EVERYTHING.to_vec() } else { named })
    }

    /// Whether everything that `other` lets out is let out here, too, as far as single rules of both show it.
    pub fn allows_all_of(&self, other: &EgressSpec) -> bool {
        let (Ok(wide), Ok(narrow)) = (self.rules(), other.rules()) else { return false };
        narrow.iter().all(|narrow| wide.iter().any(|rule| rule.contains(narrow)))
    }
}

/// A network, and of it one port or all: `NETWORK[/BITS][:PORT]`. A network of IPv6 before a port is in brackets, as in
/// `[2001:db8::]/32:443`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EgressRule {
    pub network: IpAddr,
    pub prefix_bits: u8,
    pub port: Option<NonZeroU16>,
}

/// The bits of an address that say which network of so many it is of, in front.
fn network_bits(address: IpAddr, prefix_bits: u8) -> u128 {
    let bits = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)) << 96,
        IpAddr::V6(address) => address.to_bits(),
    };
    bits & u128::MAX.checked_shl(128 - u32::from(prefix_bits)).unwrap_or(0)
}

impl EgressRule {
    /// By both families.
    pub const EVERYTHING: [EgressRule; 2] = [
        EgressRule { network: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix_bits: 0, port: None },
        EgressRule { network: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix_bits: 0, port: None },
    ];

    fn contains(&self, other: &EgressRule) -> bool {
        let bits = |address: IpAddr| network_bits(address, self.prefix_bits);
        self.network.is_ipv4() == other.network.is_ipv4()
            && self.prefix_bits <= other.prefix_bits
            && bits(self.network) == bits(other.network)
            && self.port.is_none_or(|port| other.port == Some(port))
    }
}

/// It is no network, and how one is written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "'{0}' is no network that may be reached: NETWORK[/BITS][:PORT], as in 10.0.0.0/8, 192.0.2.7:443 or [2001:db8::]/32:443"
)]
pub struct NoEgressRule(pub String);

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.network, self.port) {
            (IpAddr::V6(network), Some(_)) => write!(f, "[{network}]/{}", self.prefix_bits)?,
            (network, _) => write!(f, "{network}/{}", self.prefix_bits)?,
        }
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
    // Without brackets colons are those of the address.
    let is_bare_ipv6 = !text.starts_with('[') && text.matches(':').count() > 1;
    let port_at = text.rfind(':').filter(|at| !is_bare_ipv6 && text.rfind(']').is_none_or(|bracket| bracket < *at));
    let (rest, port) = match port_at {
        Some(at) => (text.get(..at)?, Some(text.get(at + 1..)?.parse().ok()?)),
        None => (text, None),
    };
    let (network, bits) = match rest.split_once('/') {
        Some((network, bits)) => (network, Some(bits.parse::<u8>().ok()?)),
        None => (rest, None),
    };
    let network: IpAddr = match network.strip_prefix('[') {
        Some(network) => IpAddr::V6(network.strip_suffix(']')?.parse().ok()?),
        None => network.parse().ok()?,
    };
    let bits_max = if network.is_ipv4() { 32 } else { 128 };
    let prefix_bits = bits.unwrap_or(bits_max);
    // One that has more than the network is a slip of the pen.
    let is_network = prefix_bits <= bits_max && network_bits(network, prefix_bits) == network_bits(network, bits_max);
    is_network.then_some(EgressRule { network, prefix_bits, port })
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
            ("::/0", "::/0"),
            ("2001:db8::7", "2001:db8::7/128"),
            ("[2001:db8::7]", "2001:db8::7/128"),
            ("[2001:db8::7]:443", "[2001:db8::7]/128:443"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
            ("::1:443", "::1:443/128"),
        ] {
            assert_eq!(written(text).as_deref(), Ok(whole), "{text}");
            assert_eq!(written(whole).as_deref(), Ok(whole), "{text}");
        }
        assert_eq!(EgressSpec::default().rules(), Ok(EgressRule::EVERYTHING.to_vec()));
        for bad in ["", "x", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/8:0", "10.0.0.0/8:", "10.0.0.0/"] {
            assert!(bad.parse::<EgressRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn networks_of_ipv6_that_are_none_are_refused() {
        let bad = [
            "2001:db8::1/32",
            "::/129",
            "[::]/0:0",
            "[::1",
            "::1]",
            "[10.0.0.1]",
            "[2001:db8::]:443/32",
            "[::]x",
            "fe80::1%eth0",
        ];
        for bad in bad {
            assert!(bad.parse::<EgressRule>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_lets_out_more_contains_what_lets_out_less_of_the_same_family() {
        let spec = |rules: &[&str]| EgressSpec { allow: rules.iter().map(|rule| (*rule).to_owned()).collect() };
        let all = spec(&[]);
        for narrow in [&["10.0.0.0/8"][..], &["2001:db8::/32"], &["10.0.0.1:80", "::/0"], &[]] {
            assert!(all.allows_all_of(&spec(narrow)), "{narrow:?}");
        }
        assert!(!spec(&["0.0.0.0/0"]).allows_all_of(&all) && !spec(&["::/0"]).allows_all_of(&spec(&["10.0.0.0/8"])));
        assert!(spec(&["2001:db8::/32"]).allows_all_of(&spec(&["[2001:db8:1::]/48:443"])));
        assert!(!spec(&["2001:db8::/32"]).allows_all_of(&spec(&["2001:db9::/48"])));
        assert!(!spec(&["[2001:db8::]/32:443"]).allows_all_of(&spec(&["2001:db8::/32"])));
    }
}
