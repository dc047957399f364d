//! Disks of a container for whoever speaks NBD (`docs/design/nbd.md`).

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// The port of NBD.
pub const NBD_PORT: u16 = 10809;

/// ```toml
/// [nbd]
/// listen = "192.0.2.7:10809"
/// node = "n2"
/// disks = ["data"]
/// tls = true
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NbdSpec {
    /// Where clients connect; an address of the node.
    #[serde(default = "loopback")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub listen: SocketAddr,
    /// Where the gate stands; beside its first disk when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// By their names, which clients ask for; the first for who names none. Empty: all but the one of the file tree,
    /// or that one, if it is the only one. Of the file tree's disk clients only read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<String>,
    /// Encrypted, and only for clients with a certificate that the node's `nbd/ca-cert.pem` signed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls: bool,
    /// Clients only read all of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, NBD_PORT).into()
}

impl Default for NbdSpec {
    fn default() -> NbdSpec {
        NbdSpec { listen: loopback(), node: None, disks: Vec::new(), tls: false, read_only: false }
    }
}
