//! Fields of a frame: written into a sink, read from bytes nobody has checked.

use crate::WireError;

/// Where encoded bytes go. A link's buffer implements it, so that a frame is built in place.
pub trait Sink {
    /// Appends. The caller has made sure that there is room.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Reads fields from the front.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_le_bytes(*self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    /// Text after its length in one byte.
    pub(crate) fn text(&mut self, bytes_max: usize, name: &'static str) -> Result<&'a str, WireError> {
        let count = usize::from(self.u8()?);
        if count > bytes_max {
            return Err(WireError::Field(name));
        }
        core::str::from_utf8(self.bytes(count)?).map_err(|_| WireError::Field(name))
    }

    /// Bytes not taken yet.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing) }
    }
}
