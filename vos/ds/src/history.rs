//! The recent events, oldest first, within bounds.

use std::collections::VecDeque;
use std::sync::Arc;

/// Events that are kept at most.
pub const EVENTS_MAX: usize = 16_384;
/// Bytes of keys and values that are kept at most.
pub const BYTES_MAX: usize = 16 << 20;

/// One change, as subscribers see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub revision: u64,
    /// One of `vos_api::ds::event`.
    pub kind: u8,
    pub key: Arc<[u8]>,
    pub value: Arc<[u8]>,
}

impl Event {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// Form in the store: kind, key length, key, value.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(2 + self.bytes());
        out.push(self.kind);
        // Keys have at most 255 bytes.
        out.push(self.key.len() as u8);
        out.extend_from_slice(&self.key);
        out.extend_from_slice(&self.value);
        out
    }

    pub fn from_bytes(revision: u64, bytes: &[u8]) -> Option<Event> {
        let (&[kind, key_bytes], rest) = bytes.split_first_chunk::<2>()?;
        let (key, value) = rest.split_at_checked(usize::from(key_bytes))?;
        Some(Event { revision, kind, key: key.into(), value: value.into() })
    }
}

/// Events with rising revisions. All up to `floor` were dropped.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: VecDeque<Event>,
    bytes: usize,
    floor: u64,
}

impl History {
    pub fn new(floor: u64) -> History {
        History { floor, ..History::default() }
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    pub fn push(&mut self, event: Event) {
        self.bytes += event.bytes();
        self.events.push_back(event);
    }

    /// The floor after `more` will have been pushed.
    pub fn floor_with(&self, more: &[Event]) -> u64 {
        let mut count = self.events.len() + more.len();
        let mut bytes = self.bytes + more.iter().map(Event::bytes).sum::<usize>();
        let mut floor = self.floor;
        for event in self.events.iter().chain(more) {
            if count <= EVENTS_MAX && bytes <= BYTES_MAX {
                break;
            }
            count -= 1;
            bytes -= event.bytes();
            floor = event.revision;
        }
        floor
    }

    /// Forgets everything up to `floor`.
    pub fn drop_to(&mut self, floor: u64) {
        while let Some(event) = self.events.front()
            && event.revision <= floor
        {
            self.bytes -= event.bytes();
            self.events.pop_front();
        }
        self.floor = self.floor.max(floor);
    }

    /// Events above `revision`, oldest first.
    pub fn after(&self, revision: u64) -> impl Iterator<Item = &Event> {
        let first = self.events.partition_point(|event| event.revision <= revision);
        self.events.iter().skip(first)
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64, bytes: usize) -> Event {
        Event { revision, kind: 1, key: vec![b'k'].into(), value: vec![0; bytes - 1].into() }
    }

    #[test]
    fn oldest_events_go_when_there_are_too_many_or_too_large_ones() {
        let mut history = History::new(0);
        for revision in 1..=EVENTS_MAX as u64 {
            history.push(event(revision, 1));
        }
        assert_eq!(history.floor_with(&[]), 0);
        assert_eq!(history.floor_with(&[event(EVENTS_MAX as u64 + 1, 1)]), 1);
        let large = [event(EVENTS_MAX as u64 + 1, BYTES_MAX)];
        assert_eq!(history.floor_with(&large), EVENTS_MAX as u64);
        history.drop_to(10);
        assert_eq!((history.floor(), history.len()), (10, EVENTS_MAX - 10));
        assert_eq!(history.after(12).next().map(|event| event.revision), Some(13));
    }

    #[test]
    fn stored_event_is_the_same_when_it_is_read_again() {
        let event = Event { revision: 9, kind: 3, key: vec![7; 255].into(), value: vec![1, 2].into() };
        assert_eq!(Event::from_bytes(9, &event.to_bytes()), Some(event));
        assert_eq!(Event::from_bytes(9, &[1]), None);
        assert_eq!(Event::from_bytes(9, &[1, 5, 0]), None);
    }
}
