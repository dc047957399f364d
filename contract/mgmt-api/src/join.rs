//! How machines join a cluster: tokens, and what a machine that has one is told.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Of a token's secret and its number, in hexadecimal digits.
const ID_DIGITS: usize = 8;
const SECRET_DIGITS: usize = 32;
const FINGERPRINT_DIGITS: usize = 64;
/// Shortest and longest time a token may be good.
pub const TOKEN_SECONDS: std::ops::RangeInclusive<u64> = 10..=30 * 24 * 3600;

/// What a person carries from the cluster to a new machine: `ID.SECRET.FINGERPRINT`, the last of these the SHA-256 of
/// the authority's certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub id: String,
    /// Secret.
    pub secret: String,
    pub fingerprint: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("that is no token: it is three groups of digits and a to f, with points between")]
pub struct NoToken;

impl FromStr for JoinToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<JoinToken, NoToken> {
        let parts: Vec<&str> = text.split('.').collect();
        let is_hex = |text: &&str, digits| {
            text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        match parts.as_slice() {
            [id, secret, fingerprint]
                if is_hex(id, ID_DIGITS)
                    && is_hex(secret, SECRET_DIGITS)
                    && is_hex(fingerprint, FINGERPRINT_DIGITS) =>
            {
                let own = |text: &&str| (*text).to_owned();
                Ok(JoinToken { id: own(id), secret: own(secret), fingerprint: own(fingerprint) })
            }
            _ => Err(NoToken),
        }
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.id, self.secret, self.fingerprint)
    }
}

/// Without its secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "token {}", self.id)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TokenRequest {
    /// How long it is good, in seconds.
    pub ttl_s: u64,
    /// Only a node of this name may use it; `None`: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A new token: shown once, kept nowhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NewToken {
    pub token: String,
    /// Second since 1970 after which it is worth nothing.
    pub ends_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Of a node that lets the machine in: `192.0.2.11`, with its port where that is not the usual one.
    pub address: String,
}

/// A token as it can be looked at later.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TokenInfo {
    pub id: String,
    pub ends_s: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Who came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_by: Option<String>,
}

/// What a machine asks that is not a node yet. May be repeated with the same key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JoinRequest {
    pub id: String,
    pub secret: String,
    /// Its name from now on.
    pub node: String,
    /// Where the others will reach it.
    pub address: String,
    /// For a certificate: PKCS #10 in PEM form.
    pub request_pem: String,
    /// Of its dvs.
    pub version: String,
    /// The series that it follows, and the formats of the cluster's records that it reads.
    #[serde(default)]
    pub follows: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schemars(with = "Option<crate::node::shapes::Versions>"))]
    pub records: Option<versions::Versions>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JoinAnswer {
    pub cluster: String,
    pub certificate_pem: String,
    /// The one that signs first.
    pub roots_pem: String,
    /// Certificates that are good no more.
    pub revocations_pem: String,
    pub engine: EngineAnswer,
}

/// Where the cluster's engine is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum EngineAnswer {
    /// Members of etcd that the nodes run, by node.
    Managed { members: BTreeMap<String, MemberAddress> },
    /// An etcd that somebody else looks after.
    Etcd {
        members: Vec<String>,
        root: String,
        /// A user with a password is needed beside the certificate.
        has_user: bool,
    },
}

/// Where a member of etcd is: `192.0.2.11:2379`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemberAddress {
    pub client: String,
    pub peer: String,
}

/// How the cluster's authority stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuthorityState {
    pub stage: AuthorityStage,
    /// Fingerprints of the roots that are believed, the one that signs first.
    pub roots: Vec<String>,
    pub certificate_lifetime_s: u64,
    /// Certificates that were taken back and have not expired.
    pub revoked: u64,
    /// Nodes that have not come to the end of this stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// How far a new root has taken the place of the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum AuthorityStage {
    /// There is one.
    Settled,
    /// All are to believe both.
    Announced,
    /// All are to show what the new one signed.
    Switched,
}

/// What people say of a node. What is absent stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NodeChange {
    /// Nothing new is placed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned: Option<bool>,
    /// `null` takes a label away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_what_it_was_printed_as_and_shows_no_secret_by_accident() {
        let text = format!("{}.{}.{}", "0a".repeat(4), "5e".repeat(16), "ff".repeat(32));
        let token: JoinToken = text.parse().unwrap();
        assert_eq!(token.to_string(), text);
        assert!(!format!("{token:?}").contains("5e5e"));
        for bad in ["", "a.b.c", &text[1..], &text.to_uppercase(), &format!("{text}.")] {
            assert_eq!(bad.parse::<JoinToken>(), Err(NoToken), "{bad}");
        }
    }
}
