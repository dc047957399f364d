//! What a publication word says, and what may be done about it: the decisions of `docs/design/channel.md`.

use abi::layout::{state, word};

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    Request,
    Reply,
}

/// Whether its sender may withdraw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timing {
    Untimed,
    Timed,
}

/// Whether data travels with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    None,
    Inline,
}

impl Data {
    #[inline]
    pub fn of(bytes: &[u8]) -> Data {
        if bytes.is_empty() { Data::None } else { Data::Inline }
    }

    fn flag(self) -> u32 {
        match self {
            Data::None => 0,
            Data::Inline => word::INLINE,
        }
    }
}

/// A publication word that was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    raw: u32,
    pub kind: Kind,
    pub timing: Timing,
    pub data: Data,
}

impl Word {
    /// `None` for a word no honest party writes (0 is not a word).
    #[inline]
    pub fn of(raw: u32) -> Option<Word> {
        let kind = match raw & word::KIND_MASK {
            word::SEND => Kind::Send,
            word::REQUEST => Kind::Request,
            word::REPLY => Kind::Reply,
            _ => return None,
        };
        if raw >> word::FLAG_BITS == 0 {
            return None;
        }
        let timing = if raw & word::TIMED != 0 { Timing::Timed } else { Timing::Untimed };
        let data = if raw & word::INLINE != 0 { Data::Inline } else { Data::None };
        Some(Word { raw, kind, timing, data })
    }

    /// The word that follows `previous`.
    #[inline]
    pub fn after(previous: u32, kind: Kind, timing: Timing, data: Data) -> Word {
        let flags = match kind {
            Kind::Send => word::SEND,
            Kind::Request => word::REQUEST,
            Kind::Reply => word::REPLY,
        } | if timing == Timing::Timed { word::TIMED } else { 0 };
        Word { raw: word::next(previous, flags | data.flag()), kind, timing, data }
    }

    /// The word of the reply to a request: the request's counter, so that replies to different requests differ.
    #[inline]
    pub fn reply_to(request: Word, data: Data) -> Word {
        Word { raw: request.in_state(word::REPLY | data.flag()), kind: Kind::Reply, timing: Timing::Untimed, data }
    }

    /// Whether this is the reply to that request.
    #[inline]
    pub fn answers(self, request: Word) -> bool {
        self == Word::reply_to(request, self.data)
    }

    #[inline]
    pub fn raw(self) -> u32 {
        self.raw
    }

    /// This message's state word in a state of [`abi::layout::state`].
    #[inline]
    pub fn in_state(self, state: u32) -> u32 {
        self.raw >> word::FLAG_BITS << word::FLAG_BITS | state
    }

    /// What a state word says of this message: `IDLE` when it speaks of another one.
    #[inline]
    pub fn state_of(self, state_word: u32) -> u32 {
        let mask = (1 << word::FLAG_BITS) - 1;
        if state_word & !mask == self.raw & !mask { state_word & mask } else { state::IDLE }
    }
}

impl Word {
    /// Whether a state word speaks of a later message: then this one, which has no limit, is over, and what was said of
    /// it is no more there to be read. Its sender cleared the word of anything that looks so before it published.
    #[inline]
    pub fn is_before(self, state_word: u32) -> bool {
        let counter = |word: u32| word >> word::FLAG_BITS;
        let ahead = counter(state_word).wrapping_sub(counter(self.raw)) & (u32::MAX >> word::FLAG_BITS);
        state_word != state::IDLE && ahead != 0 && ahead <= u32::MAX >> (word::FLAG_BITS + 1)
    }

    /// Whether a state word must be cleared before this message, which has no limit, is published.
    #[inline]
    pub fn is_misjudged_by(self, state_word: u32) -> bool {
        self.state_of(state_word) != state::IDLE || self.is_before(state_word)
    }
}

/// What a sender that waits sees of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Both {
    /// The peer offers nothing, or will resolve itself.
    Wait,
    /// This party has the higher number and gives way.
    GiveWay,
}

/// Two parties that send to each other: the higher endpoint gives way, but only to a message that cannot be withdrawn,
/// because only then the peer is stuck and nothing races.
#[inline]
pub fn both_send(own: u32, peer: u32, peer_word: Option<Word>) -> Both {
    match peer_word {
        Some(word) if word.kind != Kind::Reply && word.timing == Timing::Untimed && own > peer => Both::GiveWay,
        _ => Both::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_keeps_its_kind_and_patience_and_whether_data_comes_with_it() {
        let mut previous = 0;
        for kind in [Kind::Send, Kind::Request, Kind::Reply] {
            for timing in [Timing::Untimed, Timing::Timed] {
                for data in [Data::None, Data::Inline] {
                    let next = Word::after(previous, kind, timing, data);
                    assert_eq!(Word::of(next.raw()), Some(next));
                    assert_ne!(next.raw(), previous);
                    previous = next.raw();
                }
            }
        }
    }

    #[test]
    fn reply_answers_its_request_only_and_differs_from_what_went_before() {
        let first = Word::after(0, Kind::Request, Timing::Timed, Data::None);
        let second = Word::after(first.raw(), Kind::Request, Timing::Untimed, Data::None);
        assert!(Word::reply_to(first, Data::None).answers(first));
        assert!(Word::reply_to(first, Data::Inline).answers(first));
        assert!(!Word::reply_to(first, Data::None).answers(second));
        let send = Word::after(0, Kind::Send, Timing::Untimed, Data::None);
        assert_ne!(Word::reply_to(first, Data::None).raw(), send.raw());
        assert_ne!(
            Word::after(Word::reply_to(first, Data::None).raw(), Kind::Send, Timing::Untimed, Data::None).raw(),
            send.raw()
        );
    }

    #[test]
    fn garbage_is_no_word() {
        assert_eq!(Word::of(0), None);
        assert_eq!(Word::of(7 << 4 | 3), None);
        assert_eq!(Word::of(1), None);
    }

    #[test]
    fn state_of_another_message_says_nothing() {
        let first = Word::after(0, Kind::Send, Timing::Timed, Data::None);
        let second = Word::after(first.raw(), Kind::Send, Timing::Timed, Data::None);
        let state_word = first.in_state(state::TAKEN);
        assert_eq!(first.state_of(state_word), state::TAKEN);
        assert_eq!(second.state_of(state_word), state::IDLE);
    }

    #[test]
    fn message_is_over_when_its_state_speaks_of_the_next_but_not_when_of_the_last() {
        let mut words = vec![Word::after(0, Kind::Send, Timing::Untimed, Data::None)];
        for _ in 0..3 {
            let last = words.last().unwrap().raw();
            words.push(Word::after(last, Kind::Send, Timing::Untimed, Data::None));
        }
        let [before, word, next, later] = words[..] else { unreachable!() };
        for state in [state::OFFERED, state::TAKEN, state::WITHDRAWN] {
            assert!(word.is_before(next.in_state(state)) && word.is_before(later.in_state(state)));
            assert!(!word.is_before(before.in_state(state)) && !word.is_before(word.in_state(state)));
            assert!(word.is_misjudged_by(next.in_state(state)) && word.is_misjudged_by(word.in_state(state)));
            assert!(!word.is_misjudged_by(before.in_state(state)));
        }
        assert!(!word.is_before(state::IDLE) && !word.is_misjudged_by(state::IDLE));
        // Over the wrap of the counter.
        let last = Word::of(u32::MAX << abi::layout::word::FLAG_BITS | abi::layout::word::SEND).unwrap();
        let first = Word::after(last.raw(), Kind::Send, Timing::Timed, Data::None);
        assert!(last.is_before(first.in_state(state::OFFERED)) && !first.is_before(last.in_state(state::TAKEN)));
    }

    #[test]
    fn only_the_higher_endpoint_gives_way_and_only_to_an_untimed_message() {
        let untimed = Some(Word::after(0, Kind::Request, Timing::Untimed, Data::None));
        let timed = Some(Word::after(0, Kind::Request, Timing::Timed, Data::None));
        assert_eq!(both_send(2, 1, untimed), Both::GiveWay);
        assert_eq!(both_send(1, 2, untimed), Both::Wait);
        assert_eq!(both_send(2, 1, timed), Both::Wait);
        assert_eq!(both_send(2, 1, None), Both::Wait);
    }
}
