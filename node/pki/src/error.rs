//! What can go wrong with certificates, in words that say which file and what to do.

use std::path::PathBuf;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum PkiError {
    #[error("cannot read {path}: run 'dvs node cert' for this node, or point tls_dir at its certificates")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot write {path}: check that the directory exists and is writable")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{path} exists already: it is the authority of a cluster; remove it by hand if it really is to be replaced"
    )]
    AuthorityExists { path: PathBuf },
    #[error("{path} does not contain {what}: restore the file or issue it again")]
    Malformed { path: PathBuf, what: &'static str },
    #[error("{path} may be read by others (mode {mode:03o}): run 'chmod 600 {path}'", path = path.display())]
    KeyExposed { path: PathBuf, mode: u32 },
    #[error("{key} does not belong to {certificate}: issue both again", key = key.display(), certificate = certificate.display())]
    KeyMismatch { key: PathBuf, certificate: PathBuf },
    #[error("'{name}' cannot be a name: 1 to 32 of a-z, 0-9 and '-', beginning with a letter")]
    BadName { name: String },
    #[error("the authority in {path} belongs to cluster '{found}', not '{wanted}'", path = path.display())]
    OtherCluster { path: PathBuf, found: String, wanted: String },
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
}
