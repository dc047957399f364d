//! Keys and values, compared and set; listed and watched.
//!
//! A change happens once: its transaction also writes what its session did last (`s/NODE.SESSION`), and compares that
//! nobody wrote that since. So whether an attempt happened is read from there, by this server or the next one. One
//! session's changes are made one after the other, in its order; of the last [`DONE_KEPT`] the revisions are kept,
//! which is as many as a client can be waiting for.

use std::collections::{BTreeMap, VecDeque};

use vos_api::Errno;
use vos_api::cs::{ABSENT, ANY, Found, IN_FLIGHT_MAX, Version, change};
use vos_api::desk::{DeskQuestion, Edit, Given, Known, Stay, Unanswered};

use crate::core::{Answered, Answers, Ticket};
use crate::desk::{Desk, Patience, Purpose, Reply};
use crate::names;
use crate::replica::Replica;

/// Changes of a session of which the revision is kept.
pub const DONE_KEPT: usize = IN_FLIGHT_MAX as usize;
/// Where values are.
const VALUES: &str = "k/";
/// Bytes before key and value of an entry in an answer.
const ENTRY_HEAD_BYTES: usize = 16;

/// A change that a client asks for.
pub struct Order {
    pub sequence: u64,
    pub key: String,
    /// `None`: it is deleted.
    pub value: Option<Vec<u8>>,
    pub condition: u64,
}

/// What a session did last.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Memory {
    /// Sequence and revision; that of the last one is the memory's own.
    done: VecDeque<(u64, u64)>,
    /// Revision of the key that keeps it.
    at: Option<u64>,
}

/// Whether what sessions did before is in the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Past {
    /// This server was just started again, and the lease under which its predecessor kept it never ended.
    Remembered,
    /// The lease ended meanwhile, or in the life of the predecessor.
    Forgotten,
    /// Who has not come back by now is forgotten.
    Over,
}

#[derive(Default)]
struct Client {
    memory: Memory,
    waiting: VecDeque<(Ticket, Order)>,
    is_busy: bool,
}

struct Watcher {
    ticket: Ticket,
    session: u64,
    prefix: String,
    seen: u64,
    until: u64,
    room: usize,
}

pub struct Values {
    node: u8,
    clients: BTreeMap<u64, Client>,
    watchers: Vec<Watcher>,
}

impl Memory {
    fn of(known: &Known) -> Memory {
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let pairs = known.value.chunks_exact(16).map(|pair| (word(pair), word(pair.get(8..).unwrap_or_default())));
        let mut done: VecDeque<(u64, u64)> = pairs.collect();
        if let Some(last) = done.back_mut() {
            last.1 = known.modified;
        }
        Memory { done, at: Some(known.modified) }
    }

    fn revision_of(&self, sequence: u64) -> Option<u64> {
        self.done.iter().find(|(of, _)| *of == sequence).map(|(_, revision)| *revision)
    }

    fn highest(&self) -> u64 {
        self.done.back().map_or(0, |(sequence, _)| *sequence)
    }

    /// With one more, whose revision is not known before it happened.
    fn with(&self, sequence: u64) -> Vec<u8> {
        let skipped = (self.done.len() + 1).saturating_sub(DONE_KEPT);
        let all = self.done.iter().copied().skip(skipped).chain([(sequence, 0)]);
        all.flat_map(|(sequence, revision)| [sequence.to_le_bytes(), revision.to_le_bytes()].concat()).collect()
    }

    fn remember(&mut self, sequence: u64, revision: u64) {
        self.done.push_back((sequence, revision));
        while self.done.len() > DONE_KEPT {
            self.done.pop_front();
        }
        self.at = Some(revision);
    }
}

impl Values {
    pub fn new(node: u8) -> Values {
        Values { node, clients: BTreeMap::new(), watchers: Vec::new() }
    }

    /// A session begins, or goes on after a restart: the highest of its changes that happened. `ESTALE`: it has done
    /// something, and what that was may be forgotten.
    pub fn open(&mut self, session: u64, acknowledged: u64, past: Past, replica: &Replica) -> Result<u64, Errno> {
        let memory = replica.get(&self.memory_key(session)).map(Memory::of).unwrap_or_default();
        let highest = memory.highest();
        let is_forgotten = match past {
            // Of changes that failed nothing is kept, so a session may have done more than there is a memory of.
            Past::Remembered => false,
            Past::Over => acknowledged > highest,
            Past::Forgotten => acknowledged > 0,
        };
        if is_forgotten {
            return Err(Errno::Stale);
        }
        self.clients.insert(session, Client { memory, ..Client::default() });
        Ok(highest)
    }

    pub fn end(&mut self, session: u64, desk: &mut Desk) {
        self.watchers.retain(|watcher| watcher.session != session);
        let Some(client) = self.clients.remove(&session) else { return };
        if client.memory.at.is_some() || client.is_busy {
            let edits = vec![Edit::Delete { key: self.memory_key(session) }];
            desk.ask(DeskQuestion::Transact { givens: Vec::new(), edits }, Purpose::Tidy, Patience::Waits);
        }
    }

    fn memory_key(&self, session: u64) -> String {
        names::of_session("s/", self.node, session)
    }

    /// Memories of sessions that did not come back after a restart.
    pub fn forget_absent(&self, replica: &Replica, desk: &mut Desk) {
        for known in replica.below("s/") {
            let is_gone = names::session_of(&known.key)
                .is_some_and(|(node, session)| node == self.node && !self.clients.contains_key(&session));
            if is_gone {
                let givens = vec![Given::Modified(known.key.clone(), known.modified)];
                let edits = vec![Edit::Delete { key: known.key.clone() }];
                desk.ask(DeskQuestion::Transact { givens, edits }, Purpose::Tidy, Patience::Waits);
            }
        }
    }

    pub fn get(key: &str, ticket: Ticket, desk: &mut Desk) {
        desk.ask(DeskQuestion::Read { key: format!("{VALUES}{key}") }, Purpose::Get(ticket), Patience::Fails);
    }

    /// What the engine answered to [`Values::get`].
    pub fn got(ticket: Ticket, reply: Reply, answers: &mut Answers) {
        match reply {
            Reply::Found(Some(known)) => {
                answers
                    .give(ticket, Answered { words: Version { revision: known.modified }.into(), data: known.value });
            }
            Reply::Found(None) => answers.refuse(ticket, Errno::NoEntry),
            _ => answers.refuse(ticket, Errno::Unreachable),
        }
    }

    pub fn change(&mut self, session: u64, order: Order, ticket: Ticket, (desk, answers): (&mut Desk, &mut Answers)) {
        let Some(client) = self.clients.get_mut(&session) else { return answers.refuse(ticket, Errno::Stale) };
        if let Some(revision) = client.memory.revision_of(order.sequence) {
            return answers.give(ticket, Answered::words(Version { revision }));
        }
        if order.sequence <= client.memory.highest() {
            return answers.refuse(ticket, Errno::Stale);
        }
        if client.waiting.len() >= IN_FLIGHT_MAX as usize {
            return answers.refuse(ticket, Errno::TryAgain);
        }
        client.waiting.push_back((ticket, order));
        self.go_on(session, desk);
    }

    fn go_on(&mut self, session: u64, desk: &mut Desk) {
        let key = self.memory_key(session);
        let Some(client) = self.clients.get_mut(&session).filter(|client| !client.is_busy) else { return };
        let Some((_, order)) = client.waiting.front() else { return };
        client.is_busy = true;
        let place = format!("{VALUES}{}", order.key);
        let mut givens = vec![match client.memory.at {
            Some(at) => Given::Modified(key.clone(), at),
            None => Given::Absent(key.clone()),
        }];
        givens.extend(match order.condition {
            ANY if order.value.is_some() => None,
            ANY => Some(Given::Present(place.clone())),
            ABSENT => Some(Given::Absent(place.clone())),
            revision => Some(Given::Modified(place.clone(), revision)),
        });
        let effect = match &order.value {
            Some(value) => Edit::Put { key: place, value: value.clone(), stay: Stay::Kept },
            None => Edit::Delete { key: place },
        };
        let memory = Edit::Put { key, value: client.memory.with(order.sequence), stay: Stay::Leased };
        let question = DeskQuestion::Transact { givens, edits: vec![effect, memory] };
        desk.ask(question, Purpose::Value(session), Patience::Fails);
    }

    /// What became of the change that a session had under way.
    pub fn was_changed(&mut self, session: u64, reply: Reply, (desk, answers): (&mut Desk, &mut Answers)) {
        let Some(client) = self.clients.get_mut(&session) else { return };
        client.is_busy = false;
        let Some((ticket, order)) = client.waiting.pop_front() else { return };
        match reply {
            Reply::Done(revision) => {
                client.memory.remember(order.sequence, revision);
                answers.give(ticket, Answered::words(Version { revision }));
            }
            Reply::Conflict(mut current) => {
                let memory = if current.is_empty() { None } else { current.swap_remove(0) };
                let memory = memory.as_ref().map(Memory::of).unwrap_or_default();
                if memory.at == client.memory.at {
                    answers.refuse(ticket, failed_condition(&order, current.first().and_then(Option::as_ref)));
                } else {
                    client.memory = memory;
                    match client.memory.revision_of(order.sequence) {
                        Some(revision) => answers.give(ticket, Answered::words(Version { revision })),
                        // The memory went with the node's lease.
                        None => client.waiting.push_front((ticket, order)),
                    }
                }
            }
            Reply::Failed(Unanswered::Full) => answers.refuse(ticket, Errno::NoSpace),
            Reply::Failed(Unanswered::Refused) => answers.refuse(ticket, Errno::Invalid),
            Reply::Failed(_) | Reply::Found(_) => answers.refuse(ticket, Errno::Unreachable),
        }
        self.go_on(session, desk);
    }

    pub fn list(prefix: &str, after: &str, room: usize, replica: &Replica) -> Result<Answered, Errno> {
        let (mut data, mut entries, mut has_more) = (Vec::new(), 0, 0);
        let (prefix, after) = (format!("{VALUES}{prefix}"), format!("{VALUES}{after}"));
        for known in replica.below(&prefix).filter(|known| known.key > after) {
            if !add(&mut data, room, change::PUT, &known.key, known.modified, &known.value) {
                has_more = 1;
                break;
            }
            entries += 1;
        }
        if entries == 0 && has_more == 1 {
            return Err(Errno::OutOfRange);
        }
        Ok(Answered { words: Found { entries, revision: replica.seen(), has_more }.into(), data })
    }

    pub fn watch(
        &mut self,
        (prefix, seen): (&str, u64),
        session: u64,
        (ticket, until, room): (Ticket, u64, usize),
        now: u64,
        (replica, answers): (&Replica, &mut Answers),
    ) {
        let watcher = Watcher { ticket, session, prefix: format!("{VALUES}{prefix}"), seen, until, room };
        if !watcher.is_answered(until <= now, replica, answers) {
            self.watchers.push(watcher);
        }
    }

    pub fn news(&mut self, changed: &[String], (replica, answers): (&Replica, &mut Answers)) {
        if !changed.iter().any(|key| key.starts_with(VALUES)) {
            return;
        }
        self.watchers.retain(|watcher| {
            let concerns = changed.iter().any(|key| key.starts_with(&watcher.prefix));
            !concerns || !watcher.is_answered(false, replica, answers)
        });
    }

    pub fn deadline(&self) -> Option<u64> {
        self.watchers.iter().map(|watcher| watcher.until).min()
    }

    pub fn tick(&mut self, now: u64, (replica, answers): (&Replica, &mut Answers)) {
        self.watchers.retain(|watcher| watcher.until > now || !watcher.is_answered(true, replica, answers));
    }
}

/// Which condition of the change did not hold.
fn failed_condition(order: &Order, current: Option<&Known>) -> Errno {
    match (order.condition, current) {
        (ABSENT, _) => Errno::Exists,
        (_, None) => Errno::NoEntry,
        _ => Errno::Stale,
    }
}

impl Watcher {
    fn is_answered(&self, is_late: bool, replica: &Replica, answers: &mut Answers) -> bool {
        let changed = self.changed(replica);
        if changed.is_empty() && !is_late {
            return false;
        }
        let (mut data, mut entries, mut up_to) = (Vec::new(), 0, replica.seen());
        for (revision, kind, key, value) in changed {
            if !add(&mut data, self.room, kind, key, revision, value) {
                if entries == 0 {
                    answers.refuse(self.ticket, Errno::OutOfRange);
                    return true;
                }
                // Those of one revision stay together: a change of several keys is none of ours.
                break;
            }
            entries += 1;
            up_to = revision;
        }
        if entries == 0 || self.is_all(up_to, replica) {
            up_to = replica.seen().max(self.seen);
        }
        answers.give(self.ticket, Answered { words: Found { entries, revision: up_to, has_more: 0 }.into(), data });
        true
    }

    /// Nothing more follows.
    fn is_all(&self, up_to: u64, replica: &Replica) -> bool {
        !self.changed(replica).iter().any(|(revision, ..)| *revision > up_to)
    }

    /// What is different since `seen`, the earliest first.
    fn changed<'a>(&'a self, replica: &'a Replica) -> Vec<(u64, u8, &'a str, &'a [u8])> {
        let mut changed = Vec::new();
        if self.seen < replica.floor() {
            changed.push((replica.floor(), change::LOST, VALUES, &[][..]));
        }
        let put = replica.below(&self.prefix).filter(|known| known.modified > self.seen);
        changed.extend(put.map(|known| (known.modified, change::PUT, known.key.as_str(), known.value.as_slice())));
        let gone = replica.gone_after(self.seen.max(replica.floor()));
        let gone = gone.filter(|(_, key)| key.starts_with(&self.prefix) && replica.get(key).is_none());
        changed.extend(gone.map(|(revision, key)| (revision, change::DELETE, key, &[][..])));
        changed.sort_by_key(|(revision, ..)| *revision);
        changed
    }
}

/// Adds an entry, without the place of values in its key. False when it finds no room.
fn add(data: &mut Vec<u8>, room: usize, kind: u8, key: &str, revision: u64, value: &[u8]) -> bool {
    let key = key.strip_prefix(VALUES).unwrap_or(key);
    if data.len() + ENTRY_HEAD_BYTES + key.len() + value.len() > room {
        return false;
    }
    data.extend_from_slice(&(key.len() as u16).to_le_bytes());
    data.extend_from_slice(&[kind, 0]);
    data.extend_from_slice(&(value.len() as u32).to_le_bytes());
    data.extend_from_slice(&revision.to_le_bytes());
    data.extend_from_slice(key.as_bytes());
    data.extend_from_slice(value);
    true
}
