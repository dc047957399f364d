//! What can go wrong with certificates: which file, and what to try ([`PkiError::hint`]).

use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum PkiError {
    #[error("cannot read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write {path}", path = path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} exists already: it is the authority of a cluster", path = path.display())]
    AuthorityExists { path: PathBuf },
    #[error("{path} does not contain {what}", path = path.display())]
    Malformed { path: PathBuf, what: &'static str },
    #[error("{path} may be read by others (mode {mode:03o})", path = path.display())]
    KeyExposed { path: PathBuf, mode: u32 },
    #[error("{key} does not belong to {certificate}", key = key.display(), certificate = certificate.display())]
    KeyMismatch { key: PathBuf, certificate: PathBuf },
    #[error("'{name}' cannot be a name: 1 to 32 of a-z, 0-9 and '-', beginning with a letter")]
    BadName { name: String },
    #[error("the authority in {path} belongs to cluster '{found}', not '{wanted}'", path = path.display())]
    OtherCluster { path: PathBuf, found: String, wanted: String },
    #[error("that is no request for a certificate")]
    BadRequest(#[source] rcgen::Error),
    #[error("'{serial}' is no serial number of a certificate")]
    BadSerial { serial: String },
    #[error("'{text}' is no fingerprint: 64 digits from 0 to f")]
    BadFingerprint { text: String },
    #[error("the system gives no random numbers")]
    NoRandom,
    #[error("the certificate could not be made")]
    Sign(#[source] rcgen::Error),
    #[error("TLS cannot be set up from {path}", path = path.display())]
    Tls {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the peer's certificate names no node of cluster '{cluster}'")]
    NotANode { cluster: String },
    #[error("the certificate has a name that nodes have")]
    NamesANode,
}

impl PkiError {
    /// For people: what to try.
    pub fn hint(&self) -> &'static str {
        const ISSUE: &str =
            "dvs node cert NODE --ca DIR --out DIR makes a node's certificates; tls_dir names where they are";
        match self {
            PkiError::Read { .. } | PkiError::NotANode { .. } => ISSUE,
            PkiError::Malformed { .. } | PkiError::KeyMismatch { .. } | PkiError::Tls { .. } => {
                "restore the files, or issue them again: dvs node cert NODE --ca DIR --out DIR"
            }
            PkiError::BadRequest(_) => "a dvs of the same version on both machines",
            PkiError::BadSerial { .. } | PkiError::BadFingerprint { .. } => "as it was printed",
            PkiError::NoRandom => "again",
            PkiError::Write { .. } | PkiError::Sign(_) => "a directory that exists or can be made, with room, as root",
            PkiError::AuthorityExists { .. } => {
                "use it (dvs node cert), or remove it by hand: all certificates under it are worthless then"
            }
            PkiError::KeyExposed { .. } => "chmod 600, if nobody read it; new certificates otherwise",
            PkiError::BadName { .. } => "a name such as n1",
            PkiError::NamesANode => "a certificate of the person's own: dvs access key NAME makes one",
            PkiError::OtherCluster { .. } => "another directory, or the name of its cluster",
        }
    }
}
