//! The key-value store's client.

use std::time::Duration;

use abi::limits::TRANSFER_BYTES_MAX;
use rustix::io::Errno;
use vos_api::Measured;
use vos_api::ds::{
    Delete, Get, KEY_BYTES_MAX, List, Next, Publish, Put, Subscribe, Unsubscribe, VALUE_BYTES_MAX, event,
};
use vos_api::session::Goodbye;

use crate::blocking::BlockingSession;

/// A store. Clones share the session and so its subscriptions.
#[derive(Clone)]
pub struct DsClient {
    session: BlockingSession,
}

/// A key with its value and the revision that wrote it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub revision: u64,
}

/// A part of a listing, in the order of keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Whether a listing that starts after the last of these finds more.
    pub has_more: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    Put,
    Delete,
    /// Published, not stored.
    Message,
    /// Older events were dropped: list again.
    Lost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DsEvent {
    pub subscription: u32,
    pub kind: EventKind,
    pub revision: u64,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl DsClient {
    pub fn new(session: BlockingSession) -> DsClient {
        DsClient { session }
    }

    pub fn session(&self) -> &BlockingSession {
        &self.session
    }

    /// The value and its revision. `ENOENT` when there is none.
    pub fn get(&self, key: &[u8]) -> Result<(Vec<u8>, u64), Errno> {
        let (found, value) = self.session.ask(Get { key: Measured(key) }, VALUE_BYTES_MAX as u32)?;
        Ok((value, found.revision))
    }

    /// Sets a value. `condition` is `ds::ANY`, `ds::ABSENT` or the revision it must have. Returns the new revision.
    pub fn put(&self, key: &[u8], value: &[u8], condition: u64) -> Result<u64, Errno> {
        Ok(self.session.ask(Put { key: Measured(key), condition, value }, 0)?.0.revision)
    }

    /// Removes a key. Returns the revision of the removal.
    pub fn delete(&self, key: &[u8], condition: u64) -> Result<u64, Errno> {
        Ok(self.session.ask(Delete { key: Measured(key), condition }, 0)?.0.revision)
    }

    /// Keys that begin with `prefix` and come after `after` (empty: from the first).
    pub fn list(&self, prefix: &[u8], after: &[u8]) -> Result<Listing, Errno> {
        let list = List { prefix: Measured(prefix), after: Measured(after) };
        let (listed, data) = self.session.ask(list, TRANSFER_BYTES_MAX)?;
        let mut rest = data.as_slice();
        let mut entries = Vec::new();
        for _ in 0..listed.entries {
            entries.push(take_entry(&mut rest).ok_or(Errno::PROTO)?);
        }
        Ok(Listing { entries, has_more: listed.has_more == 1 })
    }

    /// Subscribes to keys and topics that begin with `prefix`, from after `revision` on (0: from now on). Returns the
    /// subscription and the revision at which it begins.
    pub fn subscribe(&self, prefix: &[u8], revision: u64) -> Result<(u32, u64), Errno> {
        let (made, _) = self.session.ask(Subscribe { prefix: Measured(prefix), revision }, 0)?;
        Ok((u32::try_from(made.subscription).map_err(|_| Errno::PROTO)?, made.begin))
    }

    pub fn unsubscribe(&self, subscription: u32) -> Result<(), Errno> {
        self.session.ask(Unsubscribe { subscription }, 0).map(drop)
    }

    /// Events of all subscriptions after revision `seen`, in order; empty when there was none within `wait`.
    pub fn next(&self, seen: u64, wait: Duration) -> Result<Vec<DsEvent>, Errno> {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let (arrived, data) = self.session.ask(Next { seen, wait_ms }, TRANSFER_BYTES_MAX)?;
        let mut rest = data.as_slice();
        let mut events = Vec::new();
        for _ in 0..arrived.events {
            events.push(take_event(&mut rest).ok_or(Errno::PROTO)?);
        }
        Ok(events)
    }

    /// Sends a message to the subscribers of a prefix of `topic`. Returns how many there were.
    pub fn publish(&self, topic: &[u8], value: &[u8]) -> Result<u64, Errno> {
        Ok(self.session.ask(Publish { topic: Measured(topic), value }, 0)?.0.subscribers)
    }

    /// Ends the session, which is of no use afterwards; the server forgets it. Optional: forgotten sessions end when
    /// there are too many.
    pub fn goodbye(self) -> Result<(), Errno> {
        self.session.ask(Goodbye {}, 0).map(drop)
    }
}

fn take_entry(rest: &mut &[u8]) -> Option<Entry> {
    let key_bytes = usize::from(u16::from_le_bytes(take(rest)?));
    let value_bytes = u32::from_le_bytes(take(rest)?) as usize;
    let revision = u64::from_le_bytes(take(rest)?);
    let (key, value) = take_pair(rest, key_bytes, value_bytes)?;
    Some(Entry { key, value, revision })
}

fn take_event(rest: &mut &[u8]) -> Option<DsEvent> {
    let subscription = u32::from_le_bytes(take(rest)?);
    let key_bytes = usize::from(u16::from_le_bytes(take(rest)?));
    let [kind, _reserved] = take(rest)?;
    let value_bytes = u32::from_le_bytes(take(rest)?) as usize;
    let revision = u64::from_le_bytes(take(rest)?);
    let (key, value) = take_pair(rest, key_bytes, value_bytes)?;
    let kind = match kind {
        event::PUT => EventKind::Put,
        event::DELETE => EventKind::Delete,
        event::MESSAGE => EventKind::Message,
        event::LOST => EventKind::Lost,
        _ => return None,
    };
    Some(DsEvent { subscription, kind, revision, key, value })
}

fn take_pair(rest: &mut &[u8], key_bytes: usize, value_bytes: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
        return None;
    }
    let (key, after) = rest.split_at_checked(key_bytes)?;
    let (value, after) = after.split_at_checked(value_bytes)?;
    *rest = after;
    Some((key.to_vec(), value.to_vec()))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_from_a_lying_server_is_an_error_not_a_panic() {
        for bytes in [&[0_u8; 13][..], &[255; 64], &[]] {
            assert_eq!(take_event(&mut &*bytes), None);
            assert_eq!(take_entry(&mut &*bytes), None);
        }
    }
}
