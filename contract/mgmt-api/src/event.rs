//! What becomes other in a cluster, as it is told to who listens.

use serde::{Deserialize, Serialize};

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EventSubject {
    /// A container, `NAME`.
    Container,
    /// A container on one of its nodes, `NAME@NODE`.
    Share,
    /// An instance of a service, `DC/SERVICE/INDEX`.
    Service,
    /// A node, `NAME`.
    Node,
}

/// Something is another than before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EventInfo {
    /// When it was seen, in milliseconds since 1970.
    pub at_ms: u64,
    pub subject: EventSubject,
    pub name: String,
    /// Its state from now on; `created`, `changed`, `deleted`, `joined`, `removed`, `cordoned`, `uncordoned`,
    /// `moved`, `paused`, `unpaused`, `renamed`.
    pub what: String,
    /// The state that it had; of `renamed`, its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
    /// Where it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// How a program ended, as a shell shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// What is wrong, or why it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A state as it is called in JSON.
pub fn word(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        other => other.map(|other| other.to_string()).unwrap_or_default(),
    }
}
