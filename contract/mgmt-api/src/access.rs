//! Who may ask the cluster from elsewhere, and what they are given to do so (`docs/design/people.md`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dc::valid_name;

/// Shortest and longest time an access may be good.
pub const ACCESS_SECONDS: std::ops::RangeInclusive<u64> = 10..=10 * 365 * 24 * 3600;
/// Of a token's secret, in hexadecimal digits.
const SECRET_DIGITS: usize = 64;
const TOKEN_PREFIX: &str = "dvs_";

/// What somebody may do. Each may what those before it may.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AccessRole {
    /// Looks: nodes, containers, their processes, health, numbers. Nothing that programs read or write.
    Viewer,
    /// Works with containers and their programs.
    Operator,
    /// Everything.
    Administrator,
}

impl AccessRole {
    pub const ALL: [AccessRole; 3] = [AccessRole::Viewer, AccessRole::Operator, AccessRole::Administrator];

    pub fn name(self) -> &'static str {
        match self {
            AccessRole::Viewer => "viewer",
            AccessRole::Operator => "operator",
            AccessRole::Administrator => "administrator",
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for AccessRole {
    type Err = String;

    fn from_str(text: &str) -> Result<AccessRole, String> {
        let found = AccessRole::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| "a role is viewer, operator or administrator".to_owned())
    }
}

/// How somebody shows who they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Means {
    Token,
    Certificate,
    /// The Unix socket of a node, which belongs to its root.
    Socket,
    /// The certificate of a node.
    Node,
    /// Not at all.
    Nothing,
}

impl fmt::Display for Means {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Means::Token => "token",
            Means::Certificate => "certificate",
            Means::Socket => "socket",
            Means::Node => "node",
            Means::Nothing => "nothing",
        })
    }
}

/// `dvs_NAME_SECRET`: what stands behind `Authorization: Bearer`.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    pub name: String,
    /// Secret: 256 bits in hexadecimal digits.
    pub secret: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("that is no token: it is dvs_NAME_ and 64 digits and a to f")]
pub struct NoAccessToken;

impl FromStr for AccessToken {
    type Err = NoAccessToken;

    fn from_str(text: &str) -> Result<AccessToken, NoAccessToken> {
        let (name, secret) =
            text.strip_prefix(TOKEN_PREFIX).and_then(|rest| rest.split_once('_')).ok_or(NoAccessToken)?;
        let is_hex =
            secret.len() == SECRET_DIGITS && secret.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex || !valid_name(name) {
            return Err(NoAccessToken);
        }
        Ok(AccessToken { name: name.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Display for AccessToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{TOKEN_PREFIX}{}_{}", self.name, self.secret)
    }
}

/// Without its secret.
impl fmt::Debug for AccessToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "token of {}", self.name)
    }
}

/// Asks for a new access.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessRequest {
    /// Of the person or program; 1 to 32 of `a-z`, `0-9` and `-`, beginning with a letter.
    pub name: String,
    pub role: AccessRole,
    /// How long it is good, in seconds: 10 seconds to 10 years.
    pub ttl_s: u64,
    /// In PEM form: whoever shows it and has its key is meant. Absent: the cluster makes a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_pem: Option<String>,
}

/// What somebody needs to ask the cluster from elsewhere. A file of this is a token file, or a context of `dvs`; it is
/// secret where it has a token or a key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AccessFile {
    pub cluster: String,
    pub name: String,
    pub role: AccessRole,
    /// Second since 1970 after which it is worth nothing.
    pub ends_s: u64,
    /// Of all nodes: `192.0.2.11:7420`.
    pub addresses: Vec<String>,
    /// The roots by which nodes are known, in PEM form.
    pub roots_pem: String,
    /// Certificates of nodes that are good no more: lists in PEM form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revocations_pem: String,
    /// Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// To show, instead of a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_pem: Option<String>,
    /// Secret. The cluster never has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_pem: Option<String>,
}

/// Without its secrets.
impl fmt::Debug for AccessFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "access of {} to cluster {}", self.name, self.cluster)
    }
}

/// An access as it can be looked at later.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AccessInfo {
    pub name: String,
    pub role: AccessRole,
    /// `token` or `certificate`.
    pub by: Means,
    pub made_s: u64,
    /// Who made it.
    pub made_by: String,
    /// Second since 1970 after which it is worth nothing.
    pub ends_s: u64,
    /// SHA-256 of the certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
}

/// Who asks, as the cluster sees it, and how the cluster is reached now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Myself {
    pub name: String,
    /// Absent of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<AccessRole>,
    pub by: Means,
    /// Second since 1970 after which the access is worth nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_s: Option<u64>,
    pub cluster: String,
    /// Which answered.
    pub node: String,
    /// Of all nodes: `192.0.2.11:7420`.
    pub addresses: Vec<String>,
    /// The roots by which nodes are known, in PEM form.
    pub roots_pem: String,
    /// Certificates of nodes that are good no more: lists in PEM form.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revocations_pem: String,
}

/// Who asked for something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditWho {
    /// Of a person or node; empty: nobody knows.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<AccessRole>,
    pub by: Means,
    /// From where; absent: the Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Of whoever is at the Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
}

/// A line of the audit log: a change, or a request that was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AuditEntry {
    /// When it was answered, in milliseconds since 1970.
    pub at_ms: u64,
    /// Which node was asked.
    pub node: String,
    pub who: AuditWho,
    /// Of the API; empty for what is none.
    pub operation: String,
    pub method: String,
    /// Without its query; at most 256 bytes.
    pub path: String,
    /// How it was answered; absent: whoever asked did not wait for the answer, and what was asked may have happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The error's words, of what failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub took_ms: u64,
    /// So many like it were not written, because there were too many of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
    /// So many entries before this one were lost: the disk was full, or too slow.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// `2026-11-24T13:05:00Z`, of a second since 1970.
pub fn utc(second: u64) -> String {
    let (day, of_day) = (second / 86_400, second % 86_400);
    // Years begin in March here, so that the leap day is the last one.
    let shifted = day.saturating_add(719_468);
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The same to the millisecond, of milliseconds since 1970.
pub fn utc_ms(at_ms: u64) -> String {
    let whole = utc(at_ms / 1000);
    format!("{}.{:03}Z", whole.trim_end_matches('Z'), at_ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_what_it_was_printed_as_and_shows_no_secret_by_accident() {
        let text = format!("dvs_ada-2_{}", "5e".repeat(32));
        let token: AccessToken = text.parse().unwrap();
        assert_eq!((token.to_string(), token.name.as_str()), (text.clone(), "ada-2"));
        assert!(!format!("{token:?}").contains("5e5e"));
        let upper = text.to_uppercase();
        for bad in ["", "dvs_", "dvs_ada", "dvs_ada_5e", &text[1..], &upper, &format!("{text}0"), "dvs_A_5e"] {
            assert_eq!(bad.parse::<AccessToken>(), Err(NoAccessToken), "{bad}");
        }
        let file = AccessFile {
            cluster: "home".to_owned(),
            name: "ada".to_owned(),
            role: AccessRole::Viewer,
            ends_s: 1,
            addresses: Vec::new(),
            roots_pem: String::new(),
            revocations_pem: String::new(),
            token: Some(text),
            certificate_pem: None,
            key_pem: Some("5e5e".to_owned()),
        };
        assert!(!format!("{file:?}").contains("5e5e"));
    }

    #[test]
    fn each_role_may_what_those_before_it_may() {
        assert!(AccessRole::Viewer < AccessRole::Operator && AccessRole::Operator < AccessRole::Administrator);
        for role in AccessRole::ALL {
            assert_eq!(role.name().parse(), Ok(role));
            assert_eq!(serde_json::to_string(&role).unwrap(), format!("\"{role}\""));
        }
        assert!("Viewer".parse::<AccessRole>().is_err() && "root".parse::<AccessRole>().is_err());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(utc(4_102_444_800), "2100-01-01T00:00:00Z");
        assert!(!utc(u64::MAX).is_empty());
    }
}
