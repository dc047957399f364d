//! What a node shows and whom it believes, read again when the files change: connections made from then on use what is
//! new, those that stand go on.
//!
//! The settings that are handed out stay the same objects; they look here at each handshake. No session is resumed:
//! that would not look at a certificate again, which may be revoked or have expired.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};

use crate::introduction::Fingerprint;
use crate::{CA_CERT, CA_CRL, CertificateSummary, NODE_CERT, NODE_KEY, PkiError, files};

/// Whom a server lets in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// Nodes of the cluster alone.
    Nodes,
    /// Peers without a certificate too, and with one that names no node: who they are, and what they may ask for, is
    /// the server's affair, who knows only that they have its key. A certificate that names a node has to be good
    /// here as well. It shows its roots behind its certificate, for [`crate::introduction_config`].
    Anyone,
}

/// A node's certificates, from its directory.
pub struct NodeCredentials {
    dir: PathBuf,
    current: RwLock<Arc<Loaded>>,
}

/// Nothing secret is shown.
impl std::fmt::Debug for NodeCredentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "credentials in {}", self.dir.display())
    }
}

/// What the files said together.
struct Loaded {
    files: Files,
    own: Arc<CertifiedKey>,
    with_roots: Arc<CertifiedKey>,
    facts: CertificateSummary,
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

#[derive(PartialEq, Eq)]
struct Files {
    roots: Vec<CertificateDer<'static>>,
    revoked: Vec<CertificateRevocationListDer<'static>>,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl NodeCredentials {
    /// Reads `ca.crt`, `ca.crl` when it is there, `node.crt` and `node.key` in `dir`.
    pub fn load(dir: &Path) -> Result<Arc<NodeCredentials>, PkiError> {
        let loaded = Loaded::of(dir, Files::read(dir)?)?;
        Ok(Arc::new(NodeCredentials { dir: dir.to_owned(), current: RwLock::new(Arc::new(loaded)) }))
    }

    /// Looks at the files again; true when something is new. What was loaded stays when they make no sense: somebody
    /// may be writing them.
    pub fn reload(&self) -> Result<bool, PkiError> {
        let files = Files::read(&self.dir)?;
        if self.current().files == files {
            return Ok(false);
        }
        let loaded = Arc::new(Loaded::of(&self.dir, files)?);
        *self.current.write() = loaded;
        Ok(true)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Of the node's own certificate.
    pub fn facts(&self) -> CertificateSummary {
        self.current().facts.clone()
    }

    /// Whether the authority's word for this certificate is good now.
    pub fn admits(&self, certificate: &CertificateDer<'_>) -> bool {
        self.current().clients.verify_client_cert(certificate, &[], UnixTime::now()).is_ok()
    }

    /// Fingerprints of the roots that are believed.
    pub fn roots(&self) -> Vec<String> {
        self.current().files.roots.iter().map(|root| Fingerprint::of(root).to_string()).collect()
    }

    /// Fingerprint of the root that signed what the node shows, as far as names tell; empty when it is none of those
    /// that are believed.
    pub fn shown_root(&self) -> String {
        let current = self.current();
        let certificate = &current.files.certificate;
        let root = current.files.roots.iter().find(|root| crate::facts::is_named_as_issuer(root, certificate));
        root.map(|root| Fingerprint::of(root).to_string()).unwrap_or_default()
    }

    /// Whether the root that comes first in `ca.crt` signed the node's certificate, as far as their names tell.
    pub fn is_by_the_first_root(&self) -> bool {
        let current = self.current();
        let root = current.files.roots.first();
        root.is_some_and(|root| crate::facts::is_named_as_issuer(root, &current.files.certificate))
    }

    fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.read())
    }

    /// For connections the node dials: it shows its certificate and checks the server's by name. TLS 1.3 only.
    pub fn client_config(self: &Arc<Self>) -> Result<Arc<ClientConfig>, PkiError> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|source| PkiError::Tls { path: self.dir.join(NODE_CERT), source })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Current(Arc::clone(self), Door::Nodes)))
            .with_client_cert_resolver(Arc::new(Current(Arc::clone(self), Door::Nodes)));
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// For connections the node accepts. TLS 1.3 only.
    pub fn server_config(self: &Arc<Self>, door: Door) -> Result<Arc<ServerConfig>, PkiError> {
        let current = || Arc::new(Current(Arc::clone(self), door));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|source| PkiError::Tls { path: self.dir.join(NODE_CERT), source })?
            .with_client_cert_verifier(current())
            .with_cert_resolver(current());
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

impl Files {
    fn read(dir: &Path) -> Result<Files, PkiError> {
        Ok(Files {
            roots: files::read_certificates(&dir.join(CA_CERT))?,
            revoked: files::read_revocations(&dir.join(CA_CRL))?,
            certificate: files::read_certificate(&dir.join(NODE_CERT))?,
            key: files::read_key(&dir.join(NODE_KEY))?,
        })
    }
}

impl Loaded {
    fn of(dir: &Path, files: Files) -> Result<Loaded, PkiError> {
        let (authority, certificate) = (dir.join(CA_CERT), dir.join(NODE_CERT));
        let mut roots = RootCertStore::empty();
        for root in &files.roots {
            roots.add(root.clone()).map_err(|source| PkiError::Tls { path: authority.clone(), source })?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let malformed = || PkiError::Malformed { path: authority.clone(), what: "the certificate of an authority" };
        let mut servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let mut clients = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        if !files.revoked.is_empty() {
            // A root that has revoked nothing yet has no list.
            servers = servers
                .with_crls(files.revoked.clone())
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
            clients = clients
                .with_crls(files.revoked.clone())
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status();
        }
        let own = |chain| {
            CertifiedKey::from_der(chain, files.key.clone_key(), &provider).map_err(|source| match source {
                Error::InconsistentKeys(_) => {
                    PkiError::KeyMismatch { key: dir.join(NODE_KEY), certificate: certificate.clone() }
                }
                source => PkiError::Tls { path: certificate.clone(), source },
            })
        };
        let facts = CertificateSummary::of(&files.certificate)
            .ok_or_else(|| PkiError::Malformed { path: certificate.clone(), what: "a certificate" })?;
        let chain = std::iter::once(&files.certificate).chain(&files.roots).cloned().collect();
        Ok(Loaded {
            own: Arc::new(own(vec![files.certificate.clone()])?),
            with_roots: Arc::new(own(chain)?),
            facts,
            servers: servers.build().map_err(|_| malformed())?,
            clients: clients.build().map_err(|_| malformed())?,
            files,
        })
    }
}

/// Looks at what is loaded, each time it is asked.
struct Current(Arc<NodeCredentials>, Door);

impl std::fmt::Debug for Current {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(out)
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current().own))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.0.current();
        Some(Arc::clone(match self.1 {
            Door::Nodes => &current.own,
            Door::Anyone => &current.with_roots,
        }))
    }
}

impl ServerCertVerifier for Current {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.current().servers.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().servers.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().servers.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&ring::default_provider())
    }
}

impl ClientCertVerifier for Current {
    fn client_auth_mandatory(&self) -> bool {
        self.1 == Door::Nodes
    }

    /// None are hinted at: clients have one certificate.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.1 == Door::Anyone && !crate::names_a_node(end_entity) {
            return Ok(ClientCertVerified::assertion());
        }
        self.0.current().clients.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().clients.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.current().clients.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes(&ring::default_provider())
    }
}

fn schemes(provider: &CryptoProvider) -> Vec<SignatureScheme> {
    provider.signature_verification_algorithms.supported_schemes()
}
