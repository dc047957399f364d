//! Requests of a delegate lane. See `docs/design/delegation.md`.

use crate::limits::INLINE_BYTES_MAX;
use crate::ring::Submission;
use crate::{Endpoint, Message};

/// What one slot of the arena holds: a message, then its data.
pub const SLOT_BYTES: u32 = (Message::BYTES + INLINE_BYTES_MAX) as u32;
const HEAD_BYTES: u32 = Message::BYTES as u32;

/// What a delegator asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    Relay(Relayed),
    /// Bits at the receiver in the name of `source`.
    Notify {
        source: Endpoint,
        mask: u64,
    },
}

/// A request that is passed on; its message and data lie in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relayed {
    /// Who waits for the reply.
    pub client: Endpoint,
    pub limit: Limit,
    /// Bytes of data after the message, at most [`INLINE_BYTES_MAX`].
    pub data_bytes: u32,
}

/// Whether the client's call may end before its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    Untimed,
    Timed,
}

const RELAY: u16 = 1;
const NOTIFY: u16 = 2;
const TIMED: u16 = 1;

impl Request {
    pub fn to_submission(self, tag: u32, arena_offset: u32) -> Submission {
        match self {
            Request::Relay(relayed) => Submission {
                tag,
                op: RELAY,
                flags: if relayed.limit == Limit::Timed { TIMED } else { 0 },
                arena_offset,
                out_bytes: HEAD_BYTES + relayed.data_bytes,
                in_capacity: SLOT_BYTES,
                args: [u64::from(relayed.client.number()), 0, 0],
                ..Submission::default()
            },
            Request::Notify { source, mask } => {
                Submission { tag, op: NOTIFY, args: [u64::from(source.number()), mask, 0], ..Submission::default() }
            }
        }
    }

    /// `None` for what no delegator asks.
    pub fn from_submission(submission: &Submission) -> Option<Request> {
        let [number, mask, zero] = submission.args;
        let named = Endpoint::from_u64(number)?;
        let limit = match submission.flags {
            0 => Limit::Untimed,
            TIMED if submission.op == RELAY => Limit::Timed,
            _ => return None,
        };
        let has_room = submission.in_capacity == SLOT_BYTES && submission.out_bytes <= SLOT_BYTES;
        match submission.op {
            RELAY if has_room && mask == 0 && zero == 0 => {
                let data_bytes = submission.out_bytes.checked_sub(HEAD_BYTES)?;
                Some(Request::Relay(Relayed { client: named, limit, data_bytes }))
            }
            NOTIFY if submission.span_bytes() == 0 && zero == 0 => Some(Request::Notify { source: named, mask }),
            _ => None,
        }
    }
}

/// A message as it lies in a slot.
pub fn head_of(message: &Message) -> [u8; Message::BYTES] {
    let mut head = [0; Message::BYTES];
    head[..4].copy_from_slice(&message.kind.to_le_bytes());
    head[8..].copy_from_slice(&message.payload);
    head
}

/// The reverse. Whose message it is, the bytes do not say.
pub fn message_of(head: &[u8; Message::BYTES]) -> Message {
    let mut message = Message::new(i32::from_le_bytes([head[0], head[1], head[2], head[3]]));
    message.payload.copy_from_slice(&head[8..]);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_round_trip_through_a_submission() {
        let relayed = Relayed { client: Endpoint::PM, limit: Limit::Timed, data_bytes: 7 };
        let untimed = Relayed { limit: Limit::Untimed, data_bytes: INLINE_BYTES_MAX as u32, ..relayed };
        let notify = Request::Notify { source: Endpoint::DS, mask: u64::MAX };
        for request in [Request::Relay(relayed), Request::Relay(untimed), notify] {
            assert_eq!(Request::from_submission(&request.to_submission(3, 0)), Some(request));
        }
    }

    #[test]
    fn what_names_nobody_or_has_no_room_for_the_reply_is_no_request() {
        let good = Request::Relay(Relayed { client: Endpoint::PM, limit: Limit::Untimed, data_bytes: 0 });
        let good = good.to_submission(0, 0);
        let beyond = u64::from(crate::limits::ENDPOINTS_PER_DC);
        let hostile = [
            Submission { args: [beyond, 0, 0], ..good },
            Submission { args: [u64::MAX, 0, 0], ..good },
            Submission { out_bytes: HEAD_BYTES - 1, ..good },
            Submission { out_bytes: SLOT_BYTES + 1, ..good },
            Submission { in_capacity: 0, ..good },
            Submission { op: NOTIFY, ..good },
            Submission { op: 3, ..good },
            Submission { flags: 2, ..good },
        ];
        for submission in hostile {
            assert_eq!(Request::from_submission(&submission), None, "{submission:?}");
        }
    }

    #[test]
    fn message_survives_the_round_trip_through_a_slot() {
        let message = Message::new(-5).with_word(0, 1).with_word(6, u64::MAX);
        assert_eq!(message_of(&head_of(&message)), message);
    }
}
