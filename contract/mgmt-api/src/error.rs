//! What the daemon answers instead of a resource.

use serde::{Deserialize, Serialize};

/// What a caller can do about it, not where it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// 400
    BadRequest,
    /// 401: it is not known who asks.
    Unauthenticated,
    /// 403: whoever asks may not.
    Forbidden,
    /// 404
    NotFound,
    /// 409: the name is taken, or the state does not allow it.
    Conflict,
    /// 429: whoever asks has too much under way, or failed too often.
    TooMany,
    /// 422: the program does not exist inside the container (exit status 127).
    NoSuchProgram,
    /// 422: the program cannot be executed (exit status 126).
    NotExecutable,
    /// 503: a node, link or server is down.
    Unavailable,
    /// 507
    NoSpace,
    /// 504
    TimedOut,
    /// 500
    Internal,
}

impl ErrorKind {
    pub const ALL: [ErrorKind; 12] = [
        ErrorKind::BadRequest,
        ErrorKind::Unauthenticated,
        ErrorKind::Forbidden,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::TooMany,
        ErrorKind::NoSuchProgram,
        ErrorKind::NotExecutable,
        ErrorKind::Unavailable,
        ErrorKind::NoSpace,
        ErrorKind::TimedOut,
        ErrorKind::Internal,
    ];

    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::BadRequest => 400,
            ErrorKind::Unauthenticated => 401,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Conflict => 409,
            ErrorKind::TooMany => 429,
            ErrorKind::NoSuchProgram | ErrorKind::NotExecutable => 422,
            ErrorKind::Unavailable => 503,
            ErrorKind::NoSpace => 507,
            ErrorKind::TimedOut => 504,
            ErrorKind::Internal => 500,
        }
    }
}

/// `what` failed, `because` of these (outermost first), `try` this.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[error("{what}{}", self.because.iter().map(|cause| format!(": {cause}")).collect::<String>())]
pub struct ErrorBody {
    pub kind: ErrorKind,
    pub what: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub because: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "try")]
    pub hint: Option<String>,
}

impl ErrorBody {
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> ErrorBody {
        ErrorBody { kind, what: what.into(), because: Vec::new(), hint: None }
    }

    pub fn because(mut self, cause: impl ToString) -> ErrorBody {
        self.because.push(cause.to_string());
        self
    }

    pub fn hint(mut self, hint: impl Into<String>) -> ErrorBody {
        self.hint = Some(hint.into());
        self
    }
}
