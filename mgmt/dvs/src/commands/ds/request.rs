//! Requests to the key-value store and their answers as JSON: what `dvs ds pipe` reads and writes.

pub use mgmt_api::{Bytes, NoHex};
use serde::{Deserialize, Serialize};

use crate::output::{Row, printable};

/// Bytes of a value that a person is shown in a list.
const SHOWN: usize = 60;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    Get {
        key: Bytes,
    },
    Put {
        key: Bytes,
        value: Bytes,
        /// The revision it must have; 0: it must not be there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
    Delete {
        key: Bytes,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revision: Option<u64>,
    },
    List {
        #[serde(default)]
        prefix: Bytes,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<Bytes>,
    },
    Publish {
        topic: Bytes,
        value: Bytes,
    },
    Watch {
        #[serde(default)]
        prefix: Bytes,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "StoreEntry"))]
pub struct Entry {
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub key: Bytes,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub value: Bytes,
    pub revision: u64,
}

/// The answer to a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "StoreChange"))]
pub struct Changed {
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub key: Bytes,
    pub revision: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub entries: Vec<Entry>,
    /// Whether there are keys after the last one.
    pub more: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Published {
    pub subscribers: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failed {
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "StoreEvent"))]
pub struct Event {
    pub revision: u64,
    /// `put`, `delete`, `message` or `lost`.
    pub kind: &'static str,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub key: Bytes,
    #[cfg_attr(test, schemars(schema_with = "crate::shapes::bytes"))]
    pub value: Bytes,
}

impl Request {
    /// The key it names.
    pub fn key(&self) -> Option<&Bytes> {
        match self {
            Request::Get { key } | Request::Put { key, .. } | Request::Delete { key, .. } => Some(key),
            Request::List { .. } | Request::Publish { .. } | Request::Watch { .. } => None,
        }
    }
}

/// For a person's eyes.
pub fn shown(bytes: &Bytes) -> String {
    match bytes {
        Bytes::Text(text) => printable(text),
        Bytes::Hex { hex } => format!("0x{hex}"),
    }
}

impl Row for Entry {
    const HEADINGS: &'static [&'static str] = &["KEY", "REVISION", "VALUE"];

    fn cells(&self) -> Vec<String> {
        let mut value = shown(&self.value);
        if let Some((end, _)) = value.char_indices().nth(SHOWN) {
            value.truncate(end);
            value.push('…');
        }
        vec![shown(&self.key), self.revision.to_string(), value]
    }

    fn name(&self) -> String {
        shown(&self.key)
    }
}

impl Row for Changed {
    const HEADINGS: &'static [&'static str] = &["KEY", "REVISION"];

    fn cells(&self) -> Vec<String> {
        vec![shown(&self.key), self.revision.to_string()]
    }

    fn name(&self) -> String {
        shown(&self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Request> {
        serde_json::from_str(text).ok()
    }

    #[test]
    fn request_is_what_the_help_says_and_nothing_else() {
        let put = parsed(r#"{"op":"put","key":"a","value":{"hex":"ff"},"revision":3}"#);
        let value = Bytes::Hex { hex: "ff".to_owned() };
        assert_eq!(put, Some(Request::Put { key: "a".to_owned().into(), value, revision: Some(3) }));
        assert_eq!(parsed(r#"{"op":"list"}"#), Some(Request::List { prefix: Bytes::default(), after: None }));
        assert_eq!(parsed(r#"{"op":"put","key":"a"}"#), None);
        assert_eq!(parsed(r#"{"op":"put","key":"a","value":"b","revison":3}"#), None);
        assert_eq!(parsed(r#"{"op":"drop"}"#), None);
    }
}
