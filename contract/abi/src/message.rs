//! The message: 64 bytes, one cache line.

use crate::Endpoint;

/// What one call carries. `kind` and `payload` are the sender's to fill; `source` is filled in by the receiver's
/// library from what the broker said of the channel, never from the channel's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    pub source: Option<Endpoint>,
    pub kind: i32,
    pub payload: [u8; Message::PAYLOAD_BYTES],
}

impl Message {
    pub const BYTES: usize = 64;
    /// 64 less the publication word and `kind`.
    pub const PAYLOAD_BYTES: usize = 56;

    pub const fn new(kind: i32) -> Message {
        Message { source: None, kind, payload: [0; Message::PAYLOAD_BYTES] }
    }

    /// The `index`-th of seven 64-bit words, little-endian. Panics when `index` is above 6: an error of the program.
    #[allow(clippy::indexing_slicing, reason = "the promise above: only the program chooses `index`")]
    pub fn word(&self, index: usize) -> u64 {
        u64::from_le_bytes(self.payload.as_chunks().0[index])
    }

    /// Sets the `index`-th of seven 64-bit words, little-endian. Panics as [`Message::word`] does.
    #[allow(clippy::indexing_slicing, reason = "the promise above: only the program chooses `index`")]
    pub fn set_word(&mut self, index: usize, value: u64) {
        self.payload.as_chunks_mut().0[index] = value.to_le_bytes();
    }

    pub fn with_word(mut self, index: usize, value: u64) -> Message {
        self.set_word(index, value);
        self
    }
}

impl Default for Message {
    fn default() -> Message {
        Message::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_fill_the_payload_without_overlap() {
        let mut message = Message::new(7);
        for index in 0..7 {
            message.set_word(index, index as u64 + 1);
        }
        assert_eq!((0..7).map(|index| message.word(index)).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    }
}
