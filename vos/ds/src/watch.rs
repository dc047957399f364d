//! Who subscribed to what, what they have not seen, and who waits for it.
//!
//! `NEXT` carries the highest revision its client saw; all events of one revision travel in the same answer, so that
//! this number is enough to go on from. Where the events of a single revision do not fit into an answer, those
//! subscriptions that find no room are told that events were lost.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use vos_api::ds::event;
use vos_rt::{ClientId, Request};

use crate::change::{Change, Order};
use crate::history::{Event, History};
use crate::store::Outcome;

/// Bytes before key and value of an event in an answer.
pub const EVENT_HEAD_BYTES: usize = 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    pub prefix: Vec<u8>,
    /// Events above this revision belong to it.
    pub begin: u64,
}

/// Events for one answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Events {
    pub count: u64,
    pub data: Vec<u8>,
}

struct Waiter {
    request: Request,
    seen: u64,
    until: Instant,
}

/// The recent events and the subscriptions. The committer and the loop have a copy each, so that neither waits for the
/// other; the bytes of the events are shared (`Arc`).
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    pub history: History,
    subscriptions: HashMap<u64, BTreeMap<u32, Subscription>>,
}

impl Catalog {
    pub fn new(history: History) -> Catalog {
        Catalog { history, ..Catalog::default() }
    }

    pub fn subscribe(&mut self, session: u64, number: u32, subscription: Subscription) {
        self.subscriptions.entry(session).or_default().insert(number, subscription);
    }

    /// Takes in what a committed change did.
    pub fn take_in(&mut self, order: &Order, outcome: &Outcome) {
        if order.change == Change::EndSession {
            self.subscriptions.remove(&order.session);
        }
        if let Some(event) = &outcome.event {
            self.history.push(event.clone());
            let floor = self.history.floor_with(&[]);
            self.history.drop_to(floor);
        }
        if let Some((number, subscription)) = &outcome.subscribed {
            self.subscribe(order.session, *number, subscription.clone());
        }
        if let Some(number) = outcome.unsubscribed
            && let Some(of_session) = self.subscriptions.get_mut(&order.session)
        {
            of_session.remove(&number);
        }
    }

    pub fn subscriptions_of(&self, session: u64) -> usize {
        self.subscriptions.get(&session).map_or(0, BTreeMap::len)
    }

    /// Subscriptions that a message on `topic` reaches.
    pub fn subscribers(&self, topic: &[u8]) -> u64 {
        let all = self.subscriptions.values().flat_map(BTreeMap::values);
        all.filter(|subscription| topic.starts_with(&subscription.prefix)).count() as u64
    }

    /// What `session` has not seen yet, as much as `room` holds. `None` when `room` cannot hold the smallest answer.
    pub fn collect(&self, session: u64, seen: u64, room: usize) -> Option<Events> {
        let mut events = Events::default();
        let Some(subscriptions) = self.subscriptions.get(&session) else { return Some(events) };
        if room < subscriptions.len() * EVENT_HEAD_BYTES {
            return None;
        }
        let floor = self.history.floor();
        for (&number, subscription) in subscriptions {
            if seen.max(subscription.begin) < floor {
                events.add_lost(number, floor);
            }
        }
        let from = subscriptions.values().map(|subscription| subscription.begin.max(seen)).min().unwrap_or(seen);
        for event in self.history.after(from) {
            let matching = subscriptions.iter().filter(|(_, subscription)| {
                event.revision > subscription.begin.max(seen) && event.key.starts_with(&subscription.prefix)
            });
            if !events.add_all(event, matching.map(|(&number, _)| number), room) {
                break;
            }
        }
        Some(events)
    }
}

/// The loop's view of events, and who waits for them.
#[derive(Default)]
pub struct Watch {
    pub catalog: Catalog,
    waiters: HashMap<u64, Vec<Waiter>>,
}

impl Watch {
    pub fn new(catalog: Catalog) -> Watch {
        Watch { catalog, waiters: HashMap::new() }
    }

    /// Takes a committed change in.
    pub fn take_in(&mut self, order: &Order, outcome: &Outcome) {
        if order.change == Change::EndSession {
            self.end_session(order.session);
        }
        self.catalog.take_in(order, outcome);
    }

    /// Answers `NEXT` now when there is something, or keeps it until there is or it is overdue.
    pub fn next(&mut self, request: Request, seen: u64, until: Instant) {
        let session = request.session();
        match self.catalog.collect(session, seen, request.in_capacity() as usize) {
            None => request.fail(rustix::io::Errno::INVAL),
            Some(events) if events.count > 0 => answer(request, &events),
            Some(_) => self.waiters.entry(session).or_default().push(Waiter { request, seen, until }),
        }
    }

    /// Answers `NEXT` now, also that there is nothing: only who knows that nobody else has changed anything says so.
    pub fn now(&mut self, request: Request, seen: u64) {
        match self.catalog.collect(request.session(), seen, request.in_capacity() as usize) {
            None => request.fail(rustix::io::Errno::INVAL),
            Some(events) => answer(request, &events),
        }
    }

    /// Answers everybody for whom something has arrived.
    pub fn announce(&mut self) {
        let sessions: Vec<u64> = self.waiters.keys().copied().collect();
        for session in sessions {
            for waiter in self.waiters.remove(&session).unwrap_or_default() {
                self.next(waiter.request, waiter.seen, waiter.until);
            }
        }
    }

    /// Takes out everybody whose time is over: what was asked, and behind which revision.
    pub fn overdue(&mut self, now: Instant) -> Vec<(Request, u64)> {
        let mut overdue = Vec::new();
        for waiting in self.waiters.values_mut() {
            let (over, waits): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|waiter| waiter.until <= now);
            *waiting = waits;
            overdue.extend(over.into_iter().map(|waiter| (waiter.request, waiter.seen)));
        }
        self.waiters.retain(|_, waiting| !waiting.is_empty());
        overdue
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.waiters.values().flatten().map(|waiter| waiter.until).min()
    }

    /// A ring is gone and with it whoever waited over it.
    pub fn forget(&mut self, client: ClientId) {
        for waiting in self.waiters.values_mut() {
            waiting.retain(|waiter| waiter.request.client() != client);
        }
        self.waiters.retain(|_, waiting| !waiting.is_empty());
    }

    /// The session is over: a `NEXT` that waits in it is answered without events.
    fn end_session(&mut self, session: u64) {
        for waiter in self.waiters.remove(&session).unwrap_or_default() {
            answer(waiter.request, &Events::default());
        }
    }
}

fn answer(request: Request, events: &Events) {
    match request.put(0, &events.data) {
        Ok(()) => request.reply(vos_api::ds::Events { events: events.count }, events.data.len() as u32),
        Err(errno) => request.fail(errno),
    }
}

impl Events {
    /// Adds one event for each of `numbers`. False when it must wait for the next answer.
    fn add_all(&mut self, event: &Event, numbers: impl Iterator<Item = u32>, room: usize) -> bool {
        let numbers: Vec<u32> = numbers.collect();
        let bytes = EVENT_HEAD_BYTES + event.key.len() + event.value.len();
        if self.data.len() + numbers.len() * bytes <= room {
            numbers.iter().for_each(|&number| self.add(number, event.kind, event.revision, &event.key, &event.value));
            return true;
        }
        if self.count > 0 {
            return false;
        }
        // Alone too large: as many as fit beside the news that the others lost it.
        for (index, &number) in numbers.iter().enumerate() {
            let others = (numbers.len() - index - 1) * EVENT_HEAD_BYTES;
            if self.data.len() + bytes + others <= room {
                self.add(number, event.kind, event.revision, &event.key, &event.value);
            } else {
                self.add_lost(number, event.revision);
            }
        }
        false
    }

    fn add_lost(&mut self, number: u32, revision: u64) {
        self.add(number, event::LOST, revision, &[], &[]);
    }

    fn add(&mut self, number: u32, kind: u8, revision: u64, key: &[u8], value: &[u8]) {
        self.count += 1;
        self.data.extend_from_slice(&number.to_le_bytes());
        self.data.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.data.extend_from_slice(&[kind, 0]);
        self.data.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.data.extend_from_slice(&revision.to_le_bytes());
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(revision: u64, key: &str, bytes: usize) -> Event {
        Event { revision, kind: event::PUT, key: key.as_bytes().into(), value: vec![0; bytes].into() }
    }

    fn catalog(prefixes: &[(&str, u64)]) -> Catalog {
        let mut catalog = Catalog::default();
        for (index, (prefix, begin)) in prefixes.iter().enumerate() {
            catalog.subscribe(7, index as u32 + 1, Subscription { prefix: prefix.as_bytes().to_vec(), begin: *begin });
        }
        catalog
    }

    #[test]
    fn each_subscription_sees_its_prefix_from_its_beginning() {
        let mut catalog = catalog(&[("a", 0), ("", 2)]);
        for (revision, key) in [(1, "a1"), (2, "b1"), (3, "a2"), (4, "b2")] {
            catalog.history.push(event(revision, key, 1));
        }
        // 1 and 3 for the first, 3 and 4 for the second.
        assert_eq!(catalog.collect(7, 0, 4096).map(|events| events.count), Some(4));
        assert_eq!(catalog.collect(7, 3, 4096).map(|events| events.count), Some(1));
        assert_eq!(catalog.collect(8, 0, 4096), Some(Events::default()));
    }

    #[test]
    fn events_of_one_revision_are_never_parted() {
        let mut catalog = catalog(&[("a", 0), ("a", 0)]);
        for revision in 1..=3 {
            catalog.history.push(event(revision, "a", 100));
        }
        let one_revision = 2 * (EVENT_HEAD_BYTES + 101);
        assert_eq!(catalog.collect(7, 0, one_revision * 2 - 1).map(|events| events.count), Some(2));
        assert_eq!(catalog.collect(7, 0, one_revision * 2).map(|events| events.count), Some(4));
    }

    #[test]
    fn subscription_that_finds_no_room_for_a_single_event_learns_that_it_lost_it() {
        let mut catalog = catalog(&[("a", 0), ("a", 0)]);
        catalog.history.push(event(1, "a", 100));
        let room = EVENT_HEAD_BYTES + 101 + EVENT_HEAD_BYTES;
        let events = catalog.collect(7, 0, room).expect("room");
        assert_eq!((events.count, events.data.len()), (2, room));
        assert_eq!(events.data.get(EVENT_HEAD_BYTES + 101 + 6), Some(&event::LOST));
        assert_eq!(catalog.collect(7, 0, EVENT_HEAD_BYTES), None);
    }

    #[test]
    fn client_that_comes_too_late_is_told_once_that_events_were_lost() {
        let mut catalog = catalog(&[("a", 0)]);
        catalog.history = History::new(5);
        catalog.history.push(event(6, "a", 1));
        let events = catalog.collect(7, 3, 4096).expect("room");
        assert_eq!((events.count, events.data.get(6)), (2, Some(&event::LOST)));
        let events = catalog.collect(7, 5, 4096).expect("room");
        assert_eq!((events.count, events.data.get(6)), (1, Some(&event::PUT)));
    }
}
