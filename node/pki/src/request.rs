//! A node's own key, and its request for a certificate.

use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, PublicKeyData};

use crate::PkiError;

/// A private key that never leaves its node.
pub struct NodeKey(KeyPair);

impl NodeKey {
    pub fn generate() -> Result<NodeKey, PkiError> {
        KeyPair::generate().map(NodeKey).map_err(PkiError::Sign)
    }

    pub fn from_pem(pem: &str) -> Result<NodeKey, PkiError> {
        KeyPair::from_pem(pem).map(NodeKey).map_err(PkiError::Sign)
    }

    /// Secret.
    pub fn pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// PKCS #10, in PEM form, signed with the key. It names nothing: what a certificate says, the authority decides.
    pub fn request_pem(&self) -> Result<String, PkiError> {
        let params = CertificateParams::new(Vec::new()).map_err(PkiError::Sign)?;
        params.serialize_request(&self.0).and_then(|request| request.pem()).map_err(PkiError::Sign)
    }
}

/// Whether a request for a certificate was made with this key.
pub fn is_request_of(request_pem: &str, key: &NodeKey) -> bool {
    let parsed = CertificateSigningRequestParams::from_pem(request_pem);
    parsed.is_ok_and(|request| request.public_key.der_bytes() == key.0.der_bytes())
}
