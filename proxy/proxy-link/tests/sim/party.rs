//! The processes at the ends of a channel: what they want and what they saw.

use std::collections::{HashMap, VecDeque};

use abi::layout::word;
use abi::ring::Submission;
use proxy_link::Carried;

use crate::memory::Memory;

/// What the local party of a channel wants and what it saw.
#[derive(Default)]
pub struct Party {
    pub last_word: u32,
    /// The last word that was no reply: words count on from there.
    pub counted: u32,
    /// Values of messages it sent that were taken, in order.
    pub delivered: Vec<u64>,
    pub received: Vec<u64>,
    pub next_value: u64,
    pub withdrawn: u64,
    pub notified: [u64; 4],
    pub notifications: [u64; 4],
    /// Client: requests under way by tag, with the value that the answer must carry.
    pub under_way: HashMap<u32, u64>,
    pub answered: Vec<u64>,
    pub submitted: u64,
    /// Server: what it has taken and not completed; what it ever took, in order.
    pub working: VecDeque<Submission>,
    pub served: Vec<u64>,
    /// The word of the request it took last, while it has not answered.
    pub owes: Option<u32>,
}

pub fn carried(word: u32, value: u64) -> Carried {
    let mut payload = [0; 56];
    payload[..8].copy_from_slice(&value.to_le_bytes());
    let inline = vec![value as u8; (value % 7) as usize * 100];
    Carried { word, kind: value as i32, payload, inline }
}

pub fn value_of(message: &Carried) -> u64 {
    let value = u64::from_le_bytes(message.payload[..8].try_into().expect("eight bytes"));
    assert_eq!(*message, carried(message.word, value), "a message arrives whole");
    value
}

pub fn kind(word: u32) -> u32 {
    word & word::KIND_MASK
}

pub fn is_timed(word: u32) -> bool {
    word & word::TIMED != 0
}

/// The reply to a request carries its counter, as `ipc_core::Word::reply_to` makes it.
pub fn reply_to(request: u32) -> u32 {
    request >> word::FLAG_BITS << word::FLAG_BITS | word::REPLY
}

/// What a reply with this word says: nothing that another message says.
pub fn value_of_reply(word: u32) -> u64 {
    u64::from(word) << 32
}

/// The local party begins to take the next message from the far one, which cannot be withdrawn any more.
pub fn begin_to_take(memory: &mut Memory) {
    if let Some(message) = memory.inbound.as_ref().filter(|m| m.word != memory.taken && !memory.inbound_withdrawn) {
        memory.won = message.word;
    }
}

/// The local party takes the next message from the far one.
pub fn take(memory: &mut Memory) -> Option<Carried> {
    let message = memory.inbound.clone().filter(|m| m.word != memory.taken && !memory.inbound_withdrawn)?;
    (memory.won, memory.taken) = (message.word, message.word);
    Some(message)
}
