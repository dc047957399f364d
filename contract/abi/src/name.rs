//! What an endpoint is called in its container.

use core::fmt;

use crate::limits::ENDPOINT_NAME_BYTES_MAX;

/// A name that was checked: 1 to [`ENDPOINT_NAME_BYTES_MAX`] printable ASCII characters, none of them a blank or a `/`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointName {
    /// 0 after the name, so that equal names are equal bytes.
    bytes: [u8; ENDPOINT_NAME_BYTES_MAX],
    length: u8,
}

impl EndpointName {
    /// `None` for what is no name.
    pub fn new(name: &[u8]) -> Option<EndpointName> {
        let is_allowed = |byte: &u8| byte.is_ascii_graphic() && *byte != b'/';
        if name.is_empty() || !name.iter().all(is_allowed) {
            return None;
        }
        let mut bytes = [0; ENDPOINT_NAME_BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(EndpointName { bytes, length: name.len() as u8 })
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    pub fn as_str(&self) -> &str {
        // Always ASCII.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl fmt::Display for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

impl fmt::Debug for EndpointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_short_and_printable_and_one_part_of_a_path() {
        let longest = [b'x'; ENDPOINT_NAME_BYTES_MAX];
        for good in [&b"a"[..], b"Front-end.2", b"~!", &longest] {
            let name = EndpointName::new(good).unwrap();
            assert_eq!(name.as_bytes(), good);
            assert_eq!(name.as_str().as_bytes(), good);
        }
        let too_long = [b'x'; ENDPOINT_NAME_BYTES_MAX + 1];
        for bad in [&b""[..], b"a/b", b"a b", b"a\0", b"\x7f", "\u{e9}".as_bytes(), &too_long] {
            assert_eq!(EndpointName::new(bad), None, "{bad:?}");
        }
    }
}
