//! People, as certificates see them. Nobody signs for a person: the cluster keeps the fingerprint of each certificate
//! that it knows, and whoever shows that certificate has its key. So no certificate of a person is one of the cluster's
//! authority, which opens links and etcd, and none that the authority signed is a person's.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};

use crate::authority::{BACKDATED, random_serial, set_validity};
use crate::introduction::Fingerprint;
use crate::{CertificateSummary, PkiError, Validity, names};

/// A certificate of a person, as it is registered: made by whom does not matter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PersonCertificate {
    pub fingerprint: Fingerprint,
    pub facts: CertificateSummary,
}

impl PersonCertificate {
    /// Reads the first certificate of a text.
    ///
    /// # Errors
    /// `Malformed` for what is none, `NamesANode` for one with a name that nodes have.
    pub fn of_pem(pem: &str) -> Result<PersonCertificate, PkiError> {
        let malformed = || PkiError::Malformed { path: "the request".into(), what: "a certificate in PEM form" };
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| malformed())?;
        let facts = CertificateSummary::of(&certificate).ok_or_else(malformed)?;
        webpki::EndEntityCert::try_from(&certificate).map_err(|_| malformed())?;
        if names::names_a_node(&certificate) {
            return Err(PkiError::NamesANode);
        }
        Ok(PersonCertificate { fingerprint: Fingerprint::of(&certificate), facts })
    }
}

/// A new key, and a certificate that says its owner's name, signed by that key: `(certificate, key)` in PEM form.
pub fn make_person(name: &str, valid: Duration) -> Result<(String, String), PkiError> {
    names::check_name(name)?;
    let key = KeyPair::generate().map_err(PkiError::Sign)?;
    let mut params = CertificateParams::new(Vec::new()).map_err(PkiError::Sign)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    let now = SystemTime::now();
    set_validity(&mut params, Validity { from: now - BACKDATED, until: now + valid });
    let certificate = params.self_signed(&key).map_err(PkiError::Sign)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// What a person shows, in PEM form.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    pub certificate_pem: &'a str,
    /// Secret.
    pub key_pem: &'a str,
}

/// By what nodes are known, in PEM form.
#[derive(Clone, Copy)]
pub struct Trust<'a> {
    pub cluster: &'a str,
    pub roots_pem: &'a str,
    /// Certificates that are good no more, as far as is known; may be empty.
    pub revocations_pem: &'a str,
}

/// For connections to any node of the cluster. TLS 1.3 only.
pub fn visitor_config(trust: Trust<'_>, shown: Option<Shown<'_>>) -> Result<Arc<ClientConfig>, PkiError> {
    let failed = |source| PkiError::Tls { path: "the access".into(), source };
    let malformed = |what| PkiError::Malformed { path: "the access".into(), what };
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(trust.roots_pem.as_bytes()) {
        roots.add(root.map_err(|_| malformed("roots in PEM form"))?).map_err(failed)?;
    }
    let revoked: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(trust.revocations_pem.as_bytes()).collect();
    let revoked = revoked.map_err(|_| malformed("lists of revoked certificates in PEM form"))?;
    let provider = Arc::new(ring::default_provider());
    let mut verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    if !revoked.is_empty() {
        // A root that has revoked nothing yet has no list.
        verifier = verifier.with_crls(revoked).only_check_end_entity_revocation().allow_unknown_revocation_status();
    }
    let verifier = verifier.build().map_err(|_| malformed("roots in PEM form"))?;
    let verifier = AnyNode { cluster: trust.cluster.to_owned(), verifier, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match shown {
        None => config.with_no_client_auth(),
        Some(shown) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(shown.certificate_pem.as_bytes()).collect();
            let chain = chain.map_err(|_| malformed("a certificate in PEM form"))?;
            let key = PrivateKeyDer::from_pem_slice(shown.key_pem.as_bytes());
            let key = key.map_err(|_| malformed("a private key in PEM form"))?;
            config.with_client_auth_cert(chain, key).map_err(failed)?
        }
    };
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// A server is believed to be of the cluster when one of the roots signed its certificate and that names a node of the
/// cluster; which one does not matter.
#[derive(Debug)]
struct AnyNode {
    cluster: String,
    verifier: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let node = names::peer_node_name(end_entity, &self.cluster);
        let node = node.map_err(|_| Error::InvalidCertificate(CertificateError::NotValidForName))?;
        let name = names::server_name(&node, &self.cluster)
            .map_err(|_| Error::InvalidCertificate(CertificateError::NotValidForName))?;
        // Roots that the server shows prove nothing.
        let _ = shown;
        self.verifier.verify_server_cert(end_entity, &[], &name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Why a handshake with what should be a node came to nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Distrust {
    /// None of the roots that are believed signed its certificate.
    OtherRoot,
    /// It is of another cluster, or no node.
    OtherCluster,
    /// Its node was taken out of the cluster.
    Revoked,
    /// By the clock here; seconds since 1970.
    Expired {
        ended_s: u64,
        here_s: u64,
    },
    NotYet {
        begins_s: u64,
        here_s: u64,
    },
    /// Whatever TLS says.
    Other(String),
}

impl Distrust {
    /// `None`: the failure is not one of TLS.
    pub fn of(error: &std::io::Error) -> Option<Distrust> {
        let error = error.get_ref()?.downcast_ref::<Error>()?;
        let s = |time: &UnixTime| time.as_secs();
        Some(match error {
            Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                Distrust::OtherRoot
            }
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => Distrust::OtherCluster,
            Error::InvalidCertificate(CertificateError::Revoked) => Distrust::Revoked,
            Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after }) => {
                Distrust::Expired { ended_s: s(not_after), here_s: s(time) }
            }
            Error::InvalidCertificate(CertificateError::NotValidYetContext { time, not_before }) => {
                Distrust::NotYet { begins_s: s(not_before), here_s: s(time) }
            }
            error => Distrust::Other(error.to_string()),
        })
    }
}

/// Seconds since 1970 of a time.
pub fn second(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
