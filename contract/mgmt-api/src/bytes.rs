//! Bytes in JSON, which has text only: a string where they are UTF-8, `{"hex": "..."}` where they are not.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde::{Deserialize, Serialize};

/// Text where it is text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Bytes {
    Text(String),
    Hex { hex: String },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'hex' must be an even number of hexadecimal digits")]
pub struct NoHex;

impl Bytes {
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, NoHex> {
        match self {
            Bytes::Text(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Bytes::Hex { hex } => Ok(Cow::Owned(from_hex(hex).ok_or(NoHex)?)),
        }
    }

    /// For a list or a message: what is no text is replaced.
    pub fn lossy(&self) -> String {
        self.bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Text(String::new())
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Bytes {
        Bytes::Text(text.to_owned())
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

impl From<OsString> for Bytes {
    fn from(text: OsString) -> Bytes {
        text.into_vec().into()
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
