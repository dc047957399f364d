//! Which ring of a client is served, and what older ones still have under way.
//!
//! A client endpoint has one ring. A new one replaces the older: the client died, or its link broke. Requests that the
//! older ring had handed over may still wait for the medium; a write among them that came to an end after the new
//! ring's first requests would overwrite what the new ring wrote. So nothing of a newer ring touches the image before
//! everything that was begun for older ones has ended, and nothing more is begun for those.
//!
//! Waiting happens in the pool. It cannot last for ever: jobs begin in the order of submission, so whoever waits
//! for an older request waits for one that a thread has already taken.

use std::collections::HashMap;
use std::sync::Arc;

use abi::Endpoint;
use parking_lot::{Condvar, Mutex};
use vos_rt::ClientId;

#[derive(Default)]
pub struct Rings {
    seats: Mutex<HashMap<Endpoint, Seat>>,
    ended: Condvar,
}

struct Seat {
    newest: ClientId,
    is_open: bool,
    /// Requests under way of the newest ring, and of all before it.
    running: usize,
    older: usize,
}

/// A request under way; dropping it ends it.
pub struct Ticket {
    rings: Arc<Rings>,
    from: Endpoint,
    client: ClientId,
    /// Goes with it.
    kept: Option<Box<dyn Send + Sync>>,
}

impl Rings {
    /// Answers the ring that it replaces.
    pub fn opened(&self, from: Endpoint, client: ClientId) -> Option<ClientId> {
        let mut seats = self.seats.lock();
        let seat = seats.entry(from).or_insert(Seat { newest: client, is_open: true, running: 0, older: 0 });
        seat.is_open = true;
        let earlier = seat.newest;
        if earlier == client {
            return None;
        }
        seat.older += std::mem::take(&mut seat.running);
        seat.newest = client;
        Some(earlier)
    }

    pub fn closed(&self, client: ClientId) {
        let mut seats = self.seats.lock();
        if let Some(seat) = seats.values_mut().find(|seat| seat.newest == client) {
            seat.is_open = false;
        }
        seats.retain(|_, seat| !seat.is_unused());
    }

    /// Whether no other ring has replaced it.
    pub fn is_newest(&self, from: Endpoint, client: ClientId) -> bool {
        self.seats.lock().get(&from).is_some_and(|seat| seat.newest == client)
    }

    /// A request begins; `None` when its ring was replaced.
    pub fn begin(self: &Arc<Rings>, from: Endpoint, client: ClientId) -> Option<Ticket> {
        let mut seats = self.seats.lock();
        let seat = seats.get_mut(&from).filter(|seat| seat.newest == client)?;
        seat.running += 1;
        Some(Ticket { rings: Arc::clone(self), from, client, kept: None })
    }
}

impl Seat {
    fn is_unused(&self) -> bool {
        !self.is_open && self.running == 0 && self.older == 0
    }
}

impl Ticket {
    /// Something that is to be dropped when the request has ended.
    pub fn keep(&mut self, it: Box<dyn Send + Sync>) {
        self.kept = Some(it);
    }

    /// Whether requests of older rings are still under way. Once they are not, they never are again for this request,
    /// unless its own ring is replaced too.
    pub fn must_wait(&self) -> bool {
        self.is_behind(&self.rings.seats.lock())
    }

    /// Returns when the requests of older rings have ended.
    pub fn wait(&self) {
        let mut seats = self.rings.seats.lock();
        while self.is_behind(&seats) {
            self.rings.ended.wait(&mut seats);
        }
    }

    /// A request whose own ring was replaced meanwhile is one of the older ones: it counts itself among them and goes
    /// on.
    fn is_behind(&self, seats: &HashMap<Endpoint, Seat>) -> bool {
        seats.get(&self.from).is_some_and(|seat| seat.newest == self.client && seat.older > 0)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut seats = self.rings.seats.lock();
        let Some(seat) = seats.get_mut(&self.from) else { return };
        if seat.newest == self.client {
            seat.running = seat.running.saturating_sub(1);
        } else {
            seat.older = seat.older.saturating_sub(1);
        }
        if seat.is_unused() {
            seats.remove(&self.from);
        }
        drop(seats);
        self.rings.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_of_a_new_ring_waits_for_those_of_the_old_one_and_the_old_one_begins_no_more() {
        let rings = Arc::new(Rings::default());
        let (from, old, new) = (Endpoint::FS, ClientId(1), ClientId(2));
        rings.opened(from, old);
        let late = rings.begin(from, old).unwrap();
        assert!(!late.must_wait());
        rings.opened(from, new);
        rings.closed(old);
        assert!(rings.begin(from, old).is_none());
        assert!(rings.is_newest(from, new) && !rings.is_newest(from, old));
        let first = rings.begin(from, new).unwrap();
        assert!(first.must_wait());
        let waiting = std::thread::spawn(move || {
            first.wait();
            first
        });
        drop(late);
        assert!(!waiting.join().unwrap().must_wait());
    }

    #[test]
    fn clients_do_not_wait_for_each_other() {
        let rings = Arc::new(Rings::default());
        rings.opened(Endpoint::FS, ClientId(1));
        let _busy = rings.begin(Endpoint::FS, ClientId(1)).unwrap();
        rings.opened(Endpoint::DISK, ClientId(2));
        assert!(!rings.begin(Endpoint::DISK, ClientId(2)).unwrap().must_wait());
    }

    #[test]
    fn nothing_is_kept_of_clients_that_left() {
        let rings = Arc::new(Rings::default());
        rings.opened(Endpoint::FS, ClientId(1));
        let last = rings.begin(Endpoint::FS, ClientId(1)).unwrap();
        rings.closed(ClientId(1));
        drop(last);
        assert!(rings.seats.lock().is_empty());
    }
}
