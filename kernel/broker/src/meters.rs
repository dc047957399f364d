//! Counts of channels, read where their parties count: in the channel's own memory.
//!
//! A channel between two processes of this node is theirs alone, the broker keeps no descriptor of its memory. A meter
//! keeps the two sides mapped instead, for reading, and for the refusal of an acceptor that has no room. Mappings are
//! bounded too, so there may be channels without a meter; they have no counts.

use std::sync::Arc;

use abi::IpcError;
use abi::layout::word;
use broker_api::info::{EndCounts, Sent as LastSent, Side, Traffic};
use ipc_core::table::Channel;
use ipc_shm::{ChannelFiles, Gauge, Reading, Role, Size};

use crate::limits::METERS_MAX;

/// Gives out meters.
#[derive(Debug, Default)]
pub(crate) struct Meters(Arc<()>);

/// Reads one channel.
#[derive(Debug)]
pub(crate) struct Meter {
    gauge: Gauge,
    /// Counts it while it lives.
    _place: Arc<()>,
}

impl Meters {
    /// `None` when there are too many, or no room for another mapping.
    pub fn over(&self, files: &ChannelFiles, channel: &Channel) -> Option<Meter> {
        if Arc::strong_count(&self.0) > METERS_MAX {
            return None;
        }
        let size = Size { entries: channel.entries, arena_bytes: channel.arena_bytes };
        let gauge = Gauge::of(files, size).ok()?;
        Some(Meter { gauge, _place: self.0.clone() })
    }
}

impl Meter {
    /// The acceptor refuses the channel, which it could not map.
    pub fn refuse(&self, reason: IpcError) {
        self.gauge.close_for_acceptor(reason.code());
    }

    pub fn read(&self, side: Side) -> EndCounts {
        let role = match side {
            Side::Left => Role::Left,
            Side::Right => Role::Right,
        };
        counts_of(&self.gauge.read(role))
    }
}

/// What an endpoint sent, by where it went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    pub near: Traffic,
    pub far: Traffic,
}

impl Sent {
    /// With what the endpoint on this side of a channel counted.
    #[must_use]
    pub fn over(self, channel: &Channel, side: Side, counts: &EndCounts) -> Sent {
        let kind = ipc::info::ChannelKind::of(channel.lane);
        match channel.proxied {
            None => Sent { near: self.near.with(kind, side, counts), ..self },
            Some(_) => Sent { far: self.far.with(kind, side, counts), ..self },
        }
    }
}

fn counts_of(reading: &Reading) -> EndCounts {
    let last = match reading.word & word::KIND_MASK {
        _ if reading.word == 0 => LastSent::Nothing,
        word::REQUEST => LastSent::Request,
        word::REPLY => LastSent::Reply,
        _ => LastSent::Message,
    };
    EndCounts {
        messages: reading.word >> word::FLAG_BITS,
        last,
        taken: reading.taken >> word::FLAG_BITS,
        awaits_answer: reading.awaits != 0,
        notifications: reading.notified,
        entries: reading.ring_tail,
        entries_taken: reading.ring_head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_messages_and_kinds_are_those_of_the_words() {
        let of = |word, taken, awaits| counts_of(&Reading { word, taken, awaits, ..Reading::default() });
        let counts = of(word::next(6 << word::FLAG_BITS, word::REQUEST | word::TIMED), 5 << word::FLAG_BITS, 1);
        assert_eq!((counts.messages, counts.last, counts.taken, counts.awaits_answer), (7, LastSent::Request, 5, true));
        assert_eq!(of(0, 0, 0).last, LastSent::Nothing);
        assert_eq!(of(9 << word::FLAG_BITS | word::REPLY | word::INLINE, 0, 0).last, LastSent::Reply);
    }
}
