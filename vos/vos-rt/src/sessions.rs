//! What a server remembers of its clients' sessions, so that each changing operation happens once.
//!
//! For every session the table holds the replies of the last [`IN_FLIGHT_MAX`] executed operations, oldest first. A
//! server that keeps state stores each reply **in the same atomic step as the effect** ([`SessionTable::record`] says
//! which older one may go) and fills the table from its store when it starts ([`SessionTable::restore`]).
//!
//! Why the bound is exact: a client has at most `IN_FLIGHT_MAX` operations without a completion, and takes completions
//! in the order of the ring. A reply may therefore be forgotten once as many later ones were *completed*. A server must
//! for that reason complete the operations of one batch before it records the next one.
//!
//! Not here: operations that are being executed ([`crate::running`]), the store itself.

use std::collections::{BTreeMap, HashMap, VecDeque};

use vos_api::session::{IN_FLIGHT_MAX, SESSIONS_MAX};

/// Bytes of reply data that a changing operation may answer; they are kept with the session.
pub const REPLY_BYTES_MAX: usize = 512;

/// The answer of an executed operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// 0 or a Linux errno.
    pub status: u32,
    pub results: [u64; 4],
    /// At most [`REPLY_BYTES_MAX`].
    pub data: Vec<u8>,
}

impl Reply {
    pub fn done(results: [u64; 4]) -> Reply {
        Reply { status: 0, results, data: Vec::new() }
    }

    pub fn failed(errno: u32) -> Reply {
        Reply { status: errno, ..Reply::default() }
    }

    /// Form in the store: status, results, data, all little-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::HEAD_BYTES + self.data.len());
        out.extend_from_slice(&self.status.to_le_bytes());
        for word in self.results {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.data);
        out
    }

    /// `None` when the bytes are no reply.
    pub fn from_bytes(bytes: &[u8]) -> Option<Reply> {
        let (head, data) = bytes.split_at_checked(Self::HEAD_BYTES)?;
        if data.len() > REPLY_BYTES_MAX {
            return None;
        }
        let (status, words) = head.split_at_checked(4)?;
        let mut results = [0; 4];
        for (result, word) in results.iter_mut().zip(words.chunks_exact(8)) {
            *result = u64::from_le_bytes(word.try_into().ok()?);
        }
        Some(Reply { status: u32::from_le_bytes(status.try_into().ok()?), results, data: data.to_vec() })
    }

    const HEAD_BYTES: usize = 4 + 4 * 8;
}

/// What is known of one operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup<'a> {
    /// Not executed: execute it.
    Fresh,
    /// Executed before: answer this.
    Answered(&'a Reply),
    /// The session was never opened or was forgotten: `ESTALE`.
    Unknown,
}

/// The client knows of completed operations, the server does not: it was forgotten. Answer `ESTALE`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the session was forgotten")]
pub struct Forgotten;

/// What opening a session did.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    /// Highest sequence that was executed.
    pub highest: u64,
    /// A session without a ring that had to go to make room: its records may be removed from the store.
    pub forgotten: Option<u64>,
}

/// All sessions of one server.
#[derive(Debug, Default)]
pub struct SessionTable {
    sessions: HashMap<u64, Record>,
    /// Counts openings, so that the oldest session without a ring can be found.
    openings: u64,
}

#[derive(Debug, Default)]
struct Record {
    replies: BTreeMap<u64, Reply>,
    /// Sequences in the order of execution, the oldest in front.
    order: VecDeque<u64>,
    highest: u64,
    rings: u32,
    opened: u64,
}

impl SessionTable {
    pub fn new() -> SessionTable {
        SessionTable::default()
    }

    /// A ring said HELLO. `acknowledged` is the client's word: everything up to it was completed.
    pub fn open(&mut self, session: u64, acknowledged: u64) -> Result<Opened, Forgotten> {
        self.openings += 1;
        let opened = self.openings;
        if let Some(record) = self.sessions.get_mut(&session) {
            record.rings += 1;
            record.opened = opened;
            return Ok(Opened { highest: record.highest, forgotten: None });
        }
        if acknowledged > 0 {
            return Err(Forgotten);
        }
        let forgotten = self.make_room()?;
        self.sessions.insert(session, Record { rings: 1, opened, ..Record::default() });
        Ok(Opened { highest: 0, forgotten })
    }

    /// Frees a place when the table is full: the oldest session without a ring goes.
    fn make_room(&mut self) -> Result<Option<u64>, Forgotten> {
        if self.sessions.len() < SESSIONS_MAX {
            return Ok(None);
        }
        let idle = self.sessions.iter().filter(|(_, record)| record.rings == 0);
        let oldest = idle.min_by_key(|(_, record)| record.opened).map(|(&id, _)| id).ok_or(Forgotten)?;
        self.sessions.remove(&oldest);
        Ok(Some(oldest))
    }

    /// A ring of the session closed; the session stays.
    pub fn detach(&mut self, session: u64) {
        if let Some(record) = self.sessions.get_mut(&session) {
            record.rings = record.rings.saturating_sub(1);
        }
    }

    /// The session is over: nothing of it is kept.
    pub fn end(&mut self, session: u64) {
        self.sessions.remove(&session);
    }

    pub fn look(&self, session: u64, sequence: u64) -> Lookup<'_> {
        match self.sessions.get(&session) {
            None => Lookup::Unknown,
            Some(record) => record.replies.get(&sequence).map_or(Lookup::Fresh, Lookup::Answered),
        }
    }

    /// Remembers the reply of an executed operation. Returns the sequence whose reply is forgotten in exchange.
    pub fn record(&mut self, session: u64, sequence: u64, reply: Reply) -> Option<u64> {
        let record = self.sessions.get_mut(&session)?;
        record.highest = record.highest.max(sequence);
        if record.replies.insert(sequence, reply).is_none() {
            record.order.push_back(sequence);
        }
        if record.order.len() <= IN_FLIGHT_MAX as usize {
            return None;
        }
        let forgotten = record.order.pop_front()?;
        record.replies.remove(&forgotten);
        Some(forgotten)
    }

    /// Puts a stored reply back; call it in the order of execution.
    pub fn restore(&mut self, session: u64, sequence: u64, reply: Reply) {
        self.sessions.entry(session).or_default();
        self.record(session, sequence, reply);
    }

    /// Sessions with their executed operations in the order of execution, for a store that writes the table as a whole.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Reply)> {
        self.sessions.iter().flat_map(|(&session, record)| {
            record.order.iter().filter_map(move |&sequence| Some((session, sequence, record.replies.get(&sequence)?)))
        })
    }

    /// Takes over from `other` which sessions have rings, after this table was read from the store again.
    pub fn adopt_rings(&mut self, other: &SessionTable) {
        self.openings = other.openings;
        for (&session, of_other) in &other.sessions {
            let record = self.sessions.entry(session).or_default();
            (record.rings, record.opened) = (of_other.rings, of_other.opened);
        }
    }

    pub fn contains(&self, session: u64) -> bool {
        self.sessions.contains_key(&session)
    }

    pub fn sessions(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().copied()
    }

    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_operation_is_answered_from_the_record() {
        let mut table = SessionTable::new();
        table.open(7, 0).expect("room");
        assert_eq!(table.look(7, 1), Lookup::Fresh);
        let reply = Reply { status: 0, results: [1, 2, 3, 4], data: vec![9; 72] };
        assert_eq!(table.record(7, 1, reply.clone()), None);
        assert_eq!(table.look(7, 1), Lookup::Answered(&reply));
        assert_eq!(table.look(8, 1), Lookup::Unknown);
    }

    #[test]
    fn oldest_reply_goes_when_more_than_can_be_in_flight_were_executed() {
        let mut table = SessionTable::new();
        table.open(7, 0).expect("room");
        for sequence in 2..=u64::from(IN_FLIGHT_MAX) + 1 {
            assert_eq!(table.record(7, sequence, Reply::default()), None);
        }
        // An operation that waited long is the newest, whatever its number.
        assert_eq!(table.record(7, 1, Reply::default()), Some(2));
        assert!(matches!(table.look(7, 1), Lookup::Answered(_)));
    }

    #[test]
    fn client_that_was_forgotten_learns_it_at_hello() {
        let mut table = SessionTable::new();
        assert_eq!(table.open(7, 3), Err(Forgotten));
        assert!(table.open(7, 0).is_ok());
    }

    #[test]
    fn oldest_session_without_a_ring_makes_room() {
        let mut table = SessionTable::new();
        for session in 0..SESSIONS_MAX as u64 {
            table.open(session, 0).expect("room");
        }
        assert_eq!(table.open(5000, 0), Err(Forgotten));
        table.detach(4);
        table.detach(3);
        assert_eq!(table.open(5000, 0), Ok(Opened { highest: 0, forgotten: Some(3) }));
        assert_eq!(table.len(), SESSIONS_MAX);
    }

    #[test]
    fn restored_table_equals_the_stored_one() {
        let mut table = SessionTable::new();
        table.open(7, 0).expect("room");
        for sequence in [3, 1, 2] {
            table.record(7, sequence, Reply::failed(sequence as u32));
        }
        let mut restored = SessionTable::new();
        for (session, sequence, reply) in table.iter() {
            let bytes = reply.to_bytes();
            restored.restore(session, sequence, Reply::from_bytes(&bytes).expect("own bytes"));
        }
        assert!(restored.iter().eq(table.iter()));
        assert_eq!(restored.open(7, 2), Ok(Opened { highest: 3, forgotten: None }));
        assert_eq!(Reply::from_bytes(&[0; 35]), None);
    }
}
