//! What a call gate and the container's init on its node say to each other, a packet each, told apart by their lengths.
//!
//! ```text
//! call gate                                   init
//! Begin { life, peers } (24 bytes) ─────────▶
//!                       ◀───────── Begun { life } (16 bytes): the first one that was said; it stays
//! Carry(Order) (80 bytes) ──────────────────▶
//!                       ◀───────── Done(Outcome) (24 to 152 bytes)
//! ```
//!
//! The socket outlives call gates: one that starts finds in it what its predecessor did not read, and passes over it.

use crate::order::{BadRecord, LifeNumber, ORDER_BYTES, OUTCOME_BYTES, OUTCOME_BYTES_MAX, Order, Outcome};
use crate::range::Seats;

const BEGIN: u64 = 1;
const BEGIN_BYTES: usize = 24;
const BEGUN_BYTES: usize = 16;
/// Room for any packet to init.
pub const FOR_INIT_BYTES_MAX: usize = ORDER_BYTES;
/// Room for any packet from init.
pub const FROM_INIT_BYTES_MAX: usize = OUTCOME_BYTES_MAX;

const _: () = assert!(BEGUN_BYTES < OUTCOME_BYTES);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForInit {
    /// `life`: that of a journal that is new, or of the one there is. `peers`: the other nodes of the container.
    Begin {
        life: LifeNumber,
        peers: Seats,
    },
    Carry(Order),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromInit {
    Begun { life: LifeNumber },
    Done(Outcome),
}

impl ForInit {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ForInit::Begin { life, peers } => {
                [BEGIN, life.0, peers.bits()].iter().flat_map(|word| word.to_le_bytes()).collect()
            }
            ForInit::Carry(order) => order.encode().to_vec(),
        }
    }

    /// # Errors
    /// The packet is none of these.
    pub fn decode(packet: &[u8]) -> Result<ForInit, BadRecord> {
        if packet.len() != BEGIN_BYTES {
            return Order::decode(packet).map(ForInit::Carry);
        }
        let word = |at| word(packet, at).ok_or(BadRecord);
        match (word(0)?, word(1)?, Seats::from_bits(word(2)?)) {
            (BEGIN, life, peers) if peers.bits() == word(2)? && life != 0 => {
                Ok(ForInit::Begin { life: LifeNumber(life), peers })
            }
            _ => Err(BadRecord),
        }
    }
}

impl FromInit {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FromInit::Begun { life } => [BEGIN, life.0].iter().flat_map(|word| word.to_le_bytes()).collect(),
            FromInit::Done(outcome) => outcome.encode(),
        }
    }

    /// # Errors
    /// The packet is none of these.
    pub fn decode(packet: &[u8]) -> Result<FromInit, BadRecord> {
        if packet.len() != BEGUN_BYTES {
            return Outcome::decode(packet).map(FromInit::Done);
        }
        match (word(packet, 0), word(packet, 1)) {
            (Some(BEGIN), Some(life)) => Ok(FromInit::Begun { life: LifeNumber(life) }),
            _ => Err(BadRecord),
        }
    }
}

fn word(packet: &[u8], at: usize) -> Option<u64> {
    packet.get(at * 8..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{OrderResult, ResultBytes, Sequence};
    use crate::range::Seat;

    #[test]
    fn packets_arrive_as_they_were_sent_and_others_are_refused() {
        let begin = ForInit::Begin { life: LifeNumber(9), peers: Seats::from_bits(5) };
        assert_eq!(ForInit::decode(&begin.encode()), Ok(begin));
        let begun = FromInit::Begun { life: LifeNumber(9) };
        assert_eq!(FromInit::decode(&begun.encode()), Ok(begun));
        let done = FromInit::Done(Outcome {
            origin: Seat::new(1).unwrap(),
            origin_life: LifeNumber(9),
            sequence: Sequence(3),
            carried: OrderResult::Done(1),
            data: ResultBytes::NONE,
        });
        assert_eq!(FromInit::decode(&done.encode()), Ok(done));
        for length in 0..100 {
            let zeroes = vec![0; length];
            assert_eq!((ForInit::decode(&zeroes), FromInit::decode(&zeroes)), (Err(BadRecord), Err(BadRecord)));
        }
        let mut many = begin.encode();
        many[23] = 0xff;
        assert_eq!(ForInit::decode(&many), Err(BadRecord), "there are no so many nodes");
    }
}
