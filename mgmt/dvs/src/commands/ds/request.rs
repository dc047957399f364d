//! Requests to the key-value store and their answers as JSON: what `dvs ds pipe` reads and writes.

use std::borrow::Cow;

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

/// Text where it is text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    Text(String),
    Hex { hex: String },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub key: Bytes,
    pub value: Bytes,
    pub revision: u64,
}

/// The answer to a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Changed {
    pub key: Bytes,
    pub revision: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listed {
    pub entries: Vec<Entry>,
    /// Whether there are keys after the last one.
    pub more: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Published {
    pub subscribers: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Failed {
    pub error: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    pub revision: u64,
    /// `put`, `delete`, `message` or `lost`.
    pub kind: &'static str,
    pub key: Bytes,
    pub value: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'hex' must be an even number of hexadecimal digits")]
pub struct NoHex;

impl Request {
    /// The key it names.
    pub fn key(&self) -> Option<&Bytes> {
        match self {
            Request::Get { key } | Request::Put { key, .. } | Request::Delete { key, .. } => Some(key),
            Request::List { .. } | Request::Publish { .. } | Request::Watch { .. } => None,
        }
    }
}

impl Bytes {
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, NoHex> {
        match self {
            Bytes::Text(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Bytes::Hex { hex } => Ok(Cow::Owned(from_hex(hex).ok_or(NoHex)?)),
        }
    }

    /// For a person's eyes.
    pub fn shown(&self) -> String {
        match self {
            Bytes::Text(text) => printable(text),
            Bytes::Hex { hex } => format!("0x{hex}"),
        }
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Text(String::new())
    }
}

impl From<String> for Bytes {
    fn from(text: String) -> Bytes {
        Bytes::Text(text)
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        String::from_utf8(bytes).map_or_else(|error| Bytes::Hex { hex: to_hex(error.as_bytes()) }, Bytes::Text)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |symbol: u8| char::from(symbol).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, []) = hex.as_bytes().as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

impl Row for Entry {
    const HEADINGS: &'static [&'static str] = &["KEY", "REVISION", "VALUE"];

    fn cells(&self) -> Vec<String> {
        let mut value = self.value.shown();
        if let Some((end, _)) = value.char_indices().nth(SHOWN) {
            value.truncate(end);
            value.push('…');
        }
        vec![self.key.shown(), self.revision.to_string(), value]
    }

    fn name(&self) -> String {
        self.key.shown()
    }
}

impl Row for Changed {
    const HEADINGS: &'static [&'static str] = &["KEY", "REVISION"];

    fn cells(&self) -> Vec<String> {
        vec![self.key.shown(), self.revision.to_string()]
    }

    fn name(&self) -> String {
        self.key.shown()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<Request> {
        serde_json::from_str(text).ok()
    }

    #[test]
    fn every_sequence_of_bytes_goes_through_json_unchanged() {
        for bytes in [&b""[..], b"plain", b"\0\xff\x80", "käse".as_bytes()] {
            let written = serde_json::to_string(&Bytes::from(bytes.to_vec())).unwrap();
            let read: Bytes = serde_json::from_str(&written).unwrap();
            assert_eq!(&*read.bytes().unwrap(), bytes, "{written}");
        }
        for hex in ["0", "zz", "+1", "é"] {
            assert_eq!(Bytes::Hex { hex: hex.to_owned() }.bytes(), Err(NoHex), "{hex}");
        }
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
