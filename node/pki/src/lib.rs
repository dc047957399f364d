//! Certificates of a cluster: one authority, one certificate per node, and the TLS settings made from them.
//!
//! Nodes authenticate each other, and nobody else is let in: every connection between two daemons or two proxies is
//! TLS 1.3, both ends show a certificate that the cluster's own authority signed. A node's certificate names
//! `NODE.CLUSTER.dvs`, so a certificate of another node or another cluster under the same authority is refused too.
//!
//! ```text
//! authority directory (operator's machine)     node directory (each node)
//! ca.crt    certificate                         ca.crt    the same certificate
//! ca.key    mode 0600                           ca.crl    certificates of that authority that are good no more
//!                                               node.crt
//!                                               node.key  mode 0600
//! ```
//!
//! In a cluster that machines join by a token the authority lies in the cluster's engine ([`Authority::from_pem`]);
//! `ca.crt` may then have two roots, the one that signs first, and nodes renew their certificates themselves.
//!
//! Not here: who may do what (the API decides by node name), sockets.

#![forbid(unsafe_code)]
// No `eprintln!` in what lives long: it panics when the disk is full (`sys::log`).
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod authority;
mod credentials;
mod error;
mod facts;
mod files;
mod hex;
mod introduction;
mod names;
mod people;
mod request;

pub use authority::{Authority, Issued, NodeRequest, Revoked, Validity};
pub use credentials::{Door, NodeCredentials};
pub use error::PkiError;
pub use facts::{CertificateSummary, expiry_s, fingerprint};
pub use files::{NodeFiles, mend_node_files, write_node_files, write_public};
pub use hex::{hex, unhex};
pub use introduction::{Fingerprint, introduction_config};
pub use names::{names_a_node, node_dns_name, peer_node_name, server_name};
pub use people::{Distrust, PersonCertificate, Shown, Trust, make_person, second, visitor_config};
pub use request::{NodeKey, is_request_of};

/// File names inside a directory.
pub const CA_CERT: &str = "ca.crt";
pub const CA_KEY: &str = "ca.key";
/// Missing: none is revoked.
pub const CA_CRL: &str = "ca.crl";
pub const NODE_CERT: &str = "node.crt";
pub const NODE_KEY: &str = "node.key";
/// Key and certificate in one, written before the two: what counts when a daemon died between them.
pub const NODE_PAIR: &str = "node.pair";
