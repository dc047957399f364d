//! Errors on their way to people: every handler answers with an `ErrorBody`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use cluster::EngineError;
use keeper::KeeperError;
use mgmt_api::{ErrorBody, ErrorKind};

use crate::supervise::causes;

#[derive(Debug)]
pub struct Failure(pub ErrorBody);

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let kind = self.0.kind;
        let status = StatusCode::from_u16(kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (status, Json(self.0)).into_response();
        // For the audit log.
        answer.extensions_mut().insert(kind);
        answer
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Failure {
        Failure(body)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        let (kind, hint) = match &error {
            EngineError::Busy { .. } => {
                (ErrorKind::Unavailable, "a process that is stopped holds the engine's file; continue or end it")
            }
            EngineError::Unreachable(_) | EngineError::LeaseGone(_) => {
                (ErrorKind::Unavailable, "again; if it stays so, dvs node ls and the daemon's log")
            }
            EngineError::NoQuorum(_) => (
                ErrorKind::Unavailable,
                "more of the engine's members must run; programs go on meanwhile. dvs node ls and etcd's log",
            ),
            EngineError::Unknown(_) => {
                (ErrorKind::Unavailable, "look whether it happened, then again: the engine's answer was lost")
            }
            EngineError::Full(_) => (
                ErrorKind::Unavailable,
                "room where the engine's file is; with etcd: compact, defragment, disarm its alarm",
            ),
            EngineError::Untrusted(_) => {
                (ErrorKind::Unavailable, "certificates of this node and of the engine: dvs node cert")
            }
            EngineError::Denied(_) => {
                (ErrorKind::Unavailable, "the rights of the node's user of etcd for the cluster's keys")
            }
            EngineError::BadKey(_) | EngineError::TooMany { .. } => (ErrorKind::BadRequest, "shorter or fewer names"),
            _ => (ErrorKind::Internal, "the daemon's log"),
        };
        Failure(ErrorBody::new(kind, "the cluster engine did not do it").because(causes(&error)).hint(hint))
    }
}

impl From<KeeperError> for Failure {
    fn from(error: KeeperError) -> Failure {
        let kind = match &error {
            // The words of a keeper of version 1.
            KeeperError::Told(body) => return Failure(body.clone()),
            KeeperError::OtherVersion { .. } => {
                return Failure(
                    ErrorBody::new(ErrorKind::Conflict, "the container's keeper on this node is of another version")
                        .because(error)
                        .hint("stop the container, or go on with the daemon of the version that started it"),
                );
            }
            KeeperError::NoTree { .. } => {
                return Failure(
                    ErrorBody::new(ErrorKind::Unavailable, "the container is not ready for programs on this node")
                        .because(error)
                        .hint("dvs dc inspect shows what is missing"),
                );
            }
            KeeperError::NotThere { .. } | KeeperError::Unreachable { .. } | KeeperError::Gone { .. } => {
                ErrorKind::Unavailable
            }
            KeeperError::TimedOut { .. } => ErrorKind::TimedOut,
            _ => ErrorKind::Internal,
        };
        Failure(
            ErrorBody::new(kind, "the container's keeper on this node did not answer")
                .because(causes(&error))
                .hint("dvs dc inspect shows the container's parts"),
        )
    }
}

/// What failed, and what to try: somebody reads this.
pub fn failure(kind: ErrorKind, what: impl Into<String>, hint: impl Into<String>) -> Failure {
    Failure(ErrorBody::new(kind, what).hint(hint))
}

/// It stays as it is: why, and what to try.
pub fn conflict(what: impl Into<String>, because: impl ToString, hint: impl Into<String>) -> Failure {
    Failure(ErrorBody::new(ErrorKind::Conflict, what).because(because).hint(hint))
}

pub fn no_such_disk(dc: &str, disk: &str, known: &[String]) -> Failure {
    let what = format!("container '{dc}' has no disk '{disk}'");
    failure(ErrorKind::NotFound, what, format!("one of {}", known.join(", ")))
}

pub fn no_such_dc(dc: &str) -> Failure {
    Failure(
        ErrorBody::new(ErrorKind::NotFound, format!("there is no container '{dc}'"))
            .hint("dvs dc ls shows the containers there are"),
    )
}
