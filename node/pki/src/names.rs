//! Names inside certificates.

use rustls_pki_types::{CertificateDer, ServerName};

use crate::PkiError;

const NAME_BYTES_MAX: usize = 32;
/// The last label of every name; no public authority signs it.
const SUFFIX: &str = "dvs";
/// First label of the authority's own name. Node names have no dot, and this one is refused for nodes.
const AUTHORITY: &str = "certificate-authority";

/// `NODE.CLUSTER.dvs`
pub fn node_dns_name(node: &str, cluster: &str) -> String {
    format!("{node}.{cluster}.{SUFFIX}")
}

pub(crate) fn authority_dns_name(cluster: &str) -> String {
    node_dns_name(AUTHORITY, cluster)
}

/// What a client expects of the server it dials.
///
/// # Errors
/// `BadName` when one of the names is not a name.
pub fn server_name(node: &str, cluster: &str) -> Result<ServerName<'static>, PkiError> {
    check_name(node)?;
    check_name(cluster)?;
    ServerName::try_from(node_dns_name(node, cluster)).map_err(|_| PkiError::BadName { name: node.to_owned() })
}

/// The node that a certificate speaks for. The certificate has been verified by the TLS library before: here only its
/// name is read.
///
/// # Errors
/// `NotANode` when it names no node of `cluster`.
pub fn peer_node_name(certificate: &CertificateDer<'_>, cluster: &str) -> Result<String, PkiError> {
    let tail = format!(".{cluster}.{SUFFIX}");
    let node = |name: &str| name.strip_suffix(&tail).filter(|node| check_name(node).is_ok()).map(str::to_owned);
    webpki::EndEntityCert::try_from(certificate)
        .ok()
        .and_then(|parsed| parsed.valid_dns_names().find_map(node))
        .ok_or_else(|| PkiError::NotANode { cluster: cluster.to_owned() })
}

/// Whether a certificate has a name as nodes of any cluster have. Whoever shows one is a node, or nobody.
pub fn names_a_node(certificate: &CertificateDer<'_>) -> bool {
    let is_of_a_node = |name: &str| {
        let last = name.trim_end_matches('.').rsplit('.').next();
        last.is_some_and(|last| last.eq_ignore_ascii_case(SUFFIX))
    };
    // What cannot be read is not believed to be harmless.
    webpki::EndEntityCert::try_from(certificate).map_or(true, |parsed| parsed.valid_dns_names().any(is_of_a_node))
}

/// The cluster that an authority's certificate belongs to.
pub(crate) fn authority_cluster(certificate: &CertificateDer<'_>) -> Option<String> {
    let (head, tail) = (format!("{AUTHORITY}."), format!(".{SUFFIX}"));
    let cluster = |name: &str| name.strip_prefix(&head).and_then(|rest| rest.strip_suffix(&tail)).map(str::to_owned);
    webpki::EndEntityCert::try_from(certificate).ok()?.valid_dns_names().find_map(cluster)
}

pub(crate) fn check_name(name: &str) -> Result<(), PkiError> {
    let shape = name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && !name.ends_with('-');
    if shape && name != AUTHORITY { Ok(()) } else { Err(PkiError::BadName { name: name.to_owned() }) }
}
