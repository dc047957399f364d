//! How a machine that has no certificate yet knows that it talks to its cluster: by the fingerprint of a root.
//!
//! A server of the cluster shows its certificate and the roots. One of these must have the fingerprint that the machine
//! was told, and must have signed the server's certificate; which node the server is does not matter.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::PkiError;
use crate::hex::{hex, unhex};

/// SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        let digest = ::ring::digest::digest(&::ring::digest::SHA256, certificate);
        Fingerprint(digest.as_ref().try_into().unwrap_or([0; 32]))
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&hex(&self.0))
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Fingerprint, PkiError> {
        let bytes = unhex(text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Fingerprint).ok_or_else(|| PkiError::BadFingerprint { text: text.to_owned() })
    }
}

/// For a connection to any node of the cluster with this root; the machine shows no certificate. TLS 1.3 only.
pub fn introduction_config(root: Fingerprint) -> Result<Arc<ClientConfig>, PkiError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Introduced { root, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| PkiError::Tls { path: crate::CA_CERT.into(), source })?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[derive(Debug)]
struct Introduced {
    root: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Introduced {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        shown: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let unknown = || Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let root = shown.iter().find(|shown| Fingerprint::of(shown) == self.root).ok_or_else(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(root.clone().into_owned())?;
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|_| unknown())?;
        // Whatever node it is: its own name is the one it is asked for.
        let name = webpki::EndEntityCert::try_from(end_entity)
            .ok()
            .and_then(|parsed| ServerName::try_from(parsed.valid_dns_names().next()?.to_owned()).ok())
            .ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        verifier.verify_server_cert(end_entity, &[], &name, ocsp_response, now)
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
