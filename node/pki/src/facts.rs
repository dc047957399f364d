//! What a certificate says of itself.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::hex::hex;
use crate::introduction::Fingerprint;
use crate::{PkiError, files};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateSummary {
    /// In lower-case hexadecimal digits.
    pub serial: String,
    pub from: SystemTime,
    pub until: SystemTime,
}

impl CertificateSummary {
    /// `None` for what is no certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<CertificateSummary> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let validity = parsed.validity();
        Some(CertificateSummary {
            serial: hex(parsed.raw_serial()),
            from: time(validity.not_before.timestamp()),
            until: time(validity.not_after.timestamp()),
        })
    }

    pub fn of_pem(pem: &str) -> Option<CertificateSummary> {
        CertificateSummary::of(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?)
    }

    /// Of its whole time so much is left; nothing of one that has expired.
    pub fn left(&self, now: SystemTime) -> Duration {
        self.until.duration_since(now).unwrap_or_default()
    }
}

/// Second since 1970 at which the first certificate in a file ends.
pub fn expiry_s(path: &Path) -> Result<u64, PkiError> {
    let facts = CertificateSummary::of(&files::read_certificate(path)?);
    let facts = facts.ok_or_else(|| PkiError::Malformed { path: path.to_owned(), what: "a certificate" })?;
    Ok(facts.until.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Whether the certificate says that this root signed it.
pub(crate) fn is_named_as_issuer(root: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    match (X509Certificate::from_der(root), X509Certificate::from_der(certificate)) {
        (Ok((_, root)), Ok((_, certificate))) => root.subject().as_raw() == certificate.issuer().as_raw(),
        _ => false,
    }
}

/// Of the first certificate in a text.
///
/// # Errors
/// `Malformed` when there is none.
pub fn fingerprint(pem: &str) -> Result<Fingerprint, PkiError> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| PkiError::Malformed { path: crate::CA_CERT.into(), what: "a certificate in PEM form" })?;
    Ok(Fingerprint::of(&certificate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, NODE_CERT, NodeRequest, Validity};

    #[test]
    fn node_certificate_ends_when_it_was_said_to() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create(&dir.path().join("ca"), "test").unwrap();
        let valid = Validity::of_a_node();
        let request = NodeRequest { node: "n1", addresses: &[], valid };
        authority.issue_node(&request, &dir.path().join("n1")).unwrap();
        let expires = expiry_s(&dir.path().join("n1").join(NODE_CERT)).unwrap();
        assert_eq!(expires, valid.until.duration_since(UNIX_EPOCH).unwrap().as_secs());
        assert!(expiry_s(&dir.path().join("ca").join(crate::CA_CERT)).unwrap() > expires);
    }

    #[test]
    fn what_is_no_certificate_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.crt");
        assert!(expiry_s(&path).is_err());
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n").unwrap();
        assert!(expiry_s(&path).is_err());
    }
}
