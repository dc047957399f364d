//! TLS settings of a node, from the files in its directory.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::{CA_CERT, NODE_CERT, NODE_KEY, PkiError, files};

/// For connections the node accepts: the client must show a certificate of the same authority. TLS 1.3 only.
pub fn server_config(dir: &Path) -> Result<Arc<ServerConfig>, PkiError> {
    let (roots, chain, key) = load(dir)?;
    let path = dir.join(CA_CERT);
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|_| PkiError::Malformed { path: path.clone(), what: "the certificate of an authority" })?;
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| PkiError::Tls { path: path.clone(), source })?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|source| tls_error(dir, source))?;
    Ok(Arc::new(config))
}

/// For connections the node dials: it shows its certificate and checks the server's, by name, under the same
/// authority. TLS 1.3 only.
pub fn client_config(dir: &Path) -> Result<Arc<ClientConfig>, PkiError> {
    let (roots, chain, key) = load(dir)?;
    let path = dir.join(CA_CERT);
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|_| PkiError::Malformed { path: path.clone(), what: "the certificate of an authority" })?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|source| PkiError::Tls { path: path.clone(), source })?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, key)
        .map_err(|source| tls_error(dir, source))?;
    Ok(Arc::new(config))
}

type Loaded = (RootCertStore, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn load(dir: &Path) -> Result<Loaded, PkiError> {
    let authority_path = dir.join(CA_CERT);
    let mut roots = RootCertStore::empty();
    roots
        .add(files::read_certificate(&authority_path)?)
        .map_err(|source| PkiError::Tls { path: authority_path, source })?;
    let chain = vec![files::read_certificate(&dir.join(NODE_CERT))?];
    let key = files::read_key(&dir.join(NODE_KEY))?;
    Ok((roots, chain, key))
}

fn tls_error(dir: &Path, source: rustls::Error) -> PkiError {
    match source {
        rustls::Error::InconsistentKeys(_) => {
            PkiError::KeyMismatch { key: dir.join(NODE_KEY), certificate: dir.join(NODE_CERT) }
        }
        source => PkiError::Tls { path: dir.join(NODE_CERT), source },
    }
}
