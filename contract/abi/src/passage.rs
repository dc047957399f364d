//! What a proxy takes out of a channel's memory on one node and puts into it on another: the words that the library and
//! the link between nodes share.

/// Which party of a channel is on this node; the other one is far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalRole {
    /// It opened the channel: submissions go out, completions come in.
    Client,
    /// The far party opened it: submissions come in, completions go out.
    Server,
}

/// A message as it travels. `word` says what it is: see [`crate::layout::word`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    pub word: u32,
    pub kind: i32,
    pub payload: [u8; crate::Message::PAYLOAD_BYTES],
    /// At most [`crate::limits::INLINE_BYTES_MAX`]. Most messages have none, and cost no allocation.
    pub inline: Vec<u8>,
}

/// How a message that was to be withdrawn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled {
    Taken,
    Withdrawn,
}

/// Entries produced and consumed so far, modulo 2^32: `head..tail` wait to be consumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Indices {
    pub head: u32,
    pub tail: u32,
}

impl Indices {
    pub fn waiting(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }
}
