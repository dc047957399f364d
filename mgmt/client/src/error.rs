//! What can go wrong between a client and a daemon. A refusal by the daemon is a different thing from not reaching it.

use std::io;
use std::path::PathBuf;

use mgmt_api::ErrorBody;
use mgmt_api::stream::BadFrame;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens: no such socket, or nobody behind it. Safe to repeat.
    #[error("no daemon answers on {}", socket.display())]
    NoDaemon {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The socket exists, but this user may not use it.
    #[error("no permission to use {}", socket.display())]
    NotPermitted {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    /// No node of a cluster elsewhere can be reached. Safe to repeat.
    #[error("no node of cluster '{cluster}' can be reached")]
    Unreachable {
        cluster: String,
        /// Each address, and why.
        tried: Vec<String>,
    },
    /// Whoever answers does not prove to be a node of the cluster.
    #[error("whoever answers at {address} is not believed to be a node of cluster '{cluster}'")]
    Untrusted { cluster: String, address: String, why: pki::Distrust },
    /// The daemon understood and said no.
    #[error(transparent)]
    Refused(ErrorBody),
    /// The daemon went away in the middle. Whether the request was carried out is not known.
    #[error("the daemon closed the connection before it answered")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Something answered that does not speak this API.
    #[error("unexpected answer: {0}")]
    Foreign(String),
    /// The answer is longer than any answer should be.
    #[error("the answer is longer than {limit_bytes} bytes")]
    TooLong { limit_bytes: usize },
    /// No answer in time. Whether the request was carried out is not known.
    #[error("no answer within {seconds} s")]
    TimedOut { seconds: u64 },
    /// No answer, nor one to the question whether it lives. Whether the request was carried out is not known.
    #[error("the daemon hangs: it does not even say that it lives")]
    Silent,
    #[error("the stream broke the protocol")]
    BadFrame(#[source] BadFrame),
    /// The stream ended without saying how the program ended.
    #[error("the connection to the program ended before the program did")]
    StreamEnded,
    /// The request cannot be written as HTTP: a control character in a name, for instance.
    #[error("the request cannot be sent")]
    Unsendable(#[source] hyper::http::Error),
}

impl Error {
    pub(crate) fn broken(cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        Error::Broken(Box::new(cause))
    }

    /// The kind of a refusal.
    pub fn kind(&self) -> Option<mgmt_api::ErrorKind> {
        match self {
            Error::Refused(body) => Some(body.kind),
            _ => None,
        }
    }
}
