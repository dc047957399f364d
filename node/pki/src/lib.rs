//! Certificates of a cluster: one authority, one certificate per node, and the TLS settings made from them.
//!
//! Nodes authenticate each other, and nobody else is let in: every connection between two daemons or two proxies is
//! TLS 1.3, both ends show a certificate that the cluster's own authority signed. A node's certificate names
//! `NODE.CLUSTER.dvs`, so a certificate of another node or another cluster under the same authority is refused too.
//!
//! ```text
//! authority directory (operator's machine)     node directory (each node)
//! ca.crt    certificate                         ca.crt    the same certificate
//! ca.key    mode 0600                           node.crt
//!                                               node.key  mode 0600
//! ```
//!
//! Not here: who may do what (the API decides by node name), sockets.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod authority;
mod config;
mod error;
mod expiry;
mod files;
mod names;

pub use authority::{Authority, NodeRequest, Validity};
pub use config::{client_config, server_config};
pub use error::PkiError;
pub use expiry::expiry_s;
pub use names::{node_dns_name, peer_node_name, server_name};

/// File names inside a directory.
pub const CA_CERT: &str = "ca.crt";
pub const CA_KEY: &str = "ca.key";
pub const NODE_CERT: &str = "node.crt";
pub const NODE_KEY: &str = "node.key";
