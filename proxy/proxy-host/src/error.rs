//! What ends the proxy, and what ends one connection.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use abi::IpcError;
use thiserror::Error;

/// The process cannot begin or go on.
#[derive(Debug, Error)]
pub enum ProxyError {
    #[error("the proxy was not started properly")]
    Spawn(#[from] sys::spawn::SpawnError),
    #[error("the proxy could not give up its privileges")]
    Harden(#[from] sys::harden::HardenError),
    #[error("cannot listen on {address}: another program may use the port")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("signals cannot be received")]
    Signals(#[source] io::Error),
    #[error("waiting for events failed")]
    Poll(#[source] io::Error),
    #[error("the broker refused the proxy")]
    Broker(#[source] IpcError),
    #[error("cannot read {path}: the node needs its certificate, key and authority there, or links with tls off")]
    ReadTls {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} does not contain {what}")]
    MalformedTls { path: PathBuf, what: &'static str },
    #[error("TLS cannot be set up from {path}")]
    Tls {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("encrypted links need option 'tls_dir'")]
    NoTlsDir,
    #[error("links over QUIC are always encrypted: they need option 'tls_dir'")]
    NoTlsDirForQuic,
    #[error("this program was built without TIPC (cargo feature 'tipc')")]
    NoTipc,
    #[error("QUIC cannot be used: {0}")]
    Quic(&'static str),
    #[error("there are two transports of the name '{0}'")]
    TransportTwice(&'static str),
    #[error("a proxy needs one to {max} transports, not {0}", max = crate::limits::TRANSPORTS_MAX)]
    TransportCount(usize),
}

/// One connection ended. The link goes on with the next.
#[derive(Debug, Error)]
pub enum CutReason {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
    #[error("TLS failed: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Link(#[from] proxy_link::LinkError),
    #[error("the certificate does not name the node '{node}'")]
    Name { node: String },
    #[error("the peer encrypts, and this node has no certificates")]
    NoCredentials,
    #[error("the peer does not encrypt, and this link must be encrypted")]
    NotEncrypted,
    #[error("node {0} is not among the peers")]
    Stranger(u16),
    #[error("too many have not said who they are")]
    Crowded,
    #[error("the connection was not greeted in time")]
    Greeting,
    #[error("a newer connection took its place")]
    Replaced,
    #[error("the node's address or encryption changed")]
    Moved,
}

impl CutReason {
    /// See [`proxy_link::LinkError::is_of_versions`].
    pub(crate) fn is_of_versions(&self) -> bool {
        matches!(self, CutReason::Link(error) if error.is_of_versions())
    }

    /// In one line, with its causes.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let more = error.to_string();
            // Some causes are told by the error itself.
            if !text.ends_with(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            cause = error.source();
        }
        text
    }
}

/// Writes an error and its causes as people read them.
pub fn tell(error: &dyn std::error::Error) {
    tracing::error!("{error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        tracing::error!("  because: {error}");
        cause = error.source();
    }
}
