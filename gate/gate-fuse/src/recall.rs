//! Recalls on their way: which events of the server were carried out, and up to which one the server may be told so.
//!
//! Pure: time is passed in. Events are finished in any order, released in theirs. An event that hangs longer than its grace while
//! one of our own changes is in flight counts as finished: the kernel's lock it waits for may be that change's, and the change may wait at the
//! server for somebody who waits for us (`docs/design/gate-fuse.md`, *Recall*).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use vos_api::fs;
use zerocopy::FromBytes;

/// How long a notification may hang before we suspect that it waits for ourselves.
pub const GRACE: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    Inode {
        ino: u64,
    },
    Name {
        parent: u64,
        name: Vec<u8>,
    },
    /// The server does not know any more who keeps what.
    Everything,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub recall: u64,
    pub what: What,
}

/// Reads the events of a completion. `None` when they make no sense.
pub fn parse(mut bytes: &[u8]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = fs::Event::read_from_prefix(bytes).ok()?;
        let name_bytes = head.name_bytes.get() as usize;
        if name_bytes > fs::NAME_BYTES_MAX {
            return None;
        }
        let name = rest.get(..name_bytes)?;
        bytes = rest.get(name_bytes.next_multiple_of(8)..)?;
        let ino = head.ino.get();
        let what = match head.kind.get() {
            fs::INODE if ino == 0 => What::Everything,
            fs::INODE => What::Inode { ino },
            fs::ENTRY if name_bytes > 0 => What::Name { parent: ino, name: name.to_vec() },
            _ => return None,
        };
        events.push(Event { recall: head.recall.get(), what });
    }
    Some(events)
}

struct Under {
    recall: u64,
    since: Instant,
    grace: Duration,
    finished: bool,
}

#[derive(Default)]
pub struct Recalls {
    under_way: VecDeque<Under>,
    /// Highest event seen, carried out with all before it, and told to the server.
    seen: u64,
    released: u64,
    told: u64,
}

/// Whether a recall takes names with it: an inode's does when it is a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamesToo {
    Yes,
    No,
}

impl Recalls {
    /// Takes an event; `false` when it is known already.
    pub fn begin(&mut self, event: &Event, now: Instant, grace: Duration) -> bool {
        if event.recall <= self.seen {
            return false;
        }
        self.seen = event.recall;
        self.under_way.push_back(Under { recall: event.recall, since: now, grace, finished: false });
        true
    }

    pub fn finish(&mut self, recall: u64) {
        if let Some(event) = self.under_way.iter_mut().find(|event| event.recall == recall) {
            event.finished = true;
        }
    }

    /// Counts what hangs too long as finished. `may_block`: a change of ours is in flight.
    pub fn tick(&mut self, now: Instant, may_block: bool) {
        if !may_block {
            return;
        }
        for event in self.under_way.iter_mut().filter(|event| !event.finished) {
            if now.saturating_duration_since(event.since) >= event.grace {
                event.finished = true;
            }
        }
    }

    /// Up to which event the server can be told, when that is news. Call [`Recalls::told`] once it was.
    pub fn released(&mut self) -> Option<u64> {
        while let Some(event) = self.under_way.front().filter(|event| event.finished) {
            self.released = self.released.max(event.recall);
            self.under_way.pop_front();
        }
        (self.released > self.told).then_some(self.released)
    }

    pub fn told(&mut self, recall: u64) {
        self.told = self.told.max(recall);
    }

    /// When to look at the clock next.
    pub fn deadline(&self) -> Option<Instant> {
        self.under_way.iter().filter(|event| !event.finished).map(|event| event.since + event.grace).min()
    }

    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Another session: its numbers begin anew.
    pub fn reset(&mut self) {
        *self = Recalls::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(recall: u64) -> Event {
        Event { recall, what: What::Inode { ino: 5 } }
    }

    #[test]
    fn events_are_released_in_order_whatever_the_order_they_finish_in() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        assert!(recalls.begin(&event(1), now, GRACE) && recalls.begin(&event(2), now, GRACE));
        assert!(!recalls.begin(&event(2), now, GRACE));
        recalls.finish(2);
        assert_eq!(recalls.released(), None);
        recalls.finish(1);
        assert_eq!(recalls.released(), Some(2));
        recalls.told(2);
        assert_eq!(recalls.released(), None);
    }

    #[test]
    fn hanging_event_is_released_after_its_grace_only_while_a_change_is_in_flight() {
        let (mut recalls, now) = (Recalls::default(), Instant::now());
        recalls.begin(&event(1), now, GRACE);
        recalls.tick(now + GRACE, false);
        recalls.tick(now + GRACE / 2, true);
        assert_eq!(recalls.released(), None);
        recalls.tick(now + GRACE, true);
        assert_eq!(recalls.released(), Some(1));
    }

    #[test]
    fn events_that_make_no_sense_are_refused() {
        assert_eq!(parse(&[]), Some(Vec::new()));
        assert_eq!(parse(&[1; 24]), None);
        let mut bytes = [0; 32];
        bytes[0] = 9;
        bytes[8] = 5;
        bytes[16] = fs::ENTRY as u8;
        bytes[20] = 2;
        bytes[24..26].copy_from_slice(b"ab");
        let name = What::Name { parent: 5, name: b"ab".to_vec() };
        assert_eq!(parse(&bytes), Some(vec![Event { recall: 9, what: name }]));
        assert_eq!(parse(&bytes[..31]), None);
    }
}
