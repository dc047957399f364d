//! Who may keep what in caches, and how it is asked back.
//!
//! A session holds a lease on an inode (attributes, pages, names inside it). A change by session A first recalls the
//! leases of all others on the inodes it touches: `begin_change` queues events for them and answers `Wait`; when
//! each has said RELEASED up to its event, or was fenced, the change goes on. From the first look until the change is
//! applied its inodes are blocked: nobody gets a new lease on them, so a stream of readers cannot starve a writer, and
//! nothing read before the change is kept after it. A's own leases stay.
//!
//! A restarted server does not know who holds what: every session of before owes one event "drop everything"
//! (inode 0), and until it is acknowledged the session counts as a holder of everything.
//!
//! The lock here is a leaf; answers of parked EVENTS requests are given under it, so that a reply with the lease bit
//! ([`Leases::deliver`]) can never be overtaken by the event that takes the lease back.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vos_api::fs::{ENTRY, Event, INODE, RECALL_MS};
use zerocopy::IntoBytes;

use crate::calls::{Answer, Reply};

/// Leases one session may hold; beyond that it caches nothing new.
const LEASES_PER_SESSION_MAX: usize = 100_000;
/// Events that may wait for one session; a session this far behind is told to drop everything.
const EVENTS_MAX: usize = 16_384;
/// Stands for every inode in an event.
const EVERYTHING: u64 = 0;

/// What a change touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    pub inos: BTreeSet<u64>,
    /// Parent and name.
    pub names: Vec<(u64, Vec<u8>)>,
}

impl Touch {
    pub fn inode(ino: u64) -> Touch {
        Touch { inos: [ino].into(), names: Vec::new() }
    }

    pub fn name(parent: u64, name: &[u8]) -> Touch {
        Touch { inos: [parent].into(), names: vec![(parent, name.to_vec())] }
    }

    pub fn and(mut self, ino: u64) -> Touch {
        self.inos.insert(ino);
        self
    }

    pub fn join(mut self, other: Touch) -> Touch {
        self.inos.extend(other.inos);
        self.names.extend(other.names);
        self
    }
}

/// Inodes that are blocked for new leases. Given back to [`Leases::end_change`].
#[must_use]
#[derive(Debug)]
pub struct Blocked(Vec<u64>);

/// Goes on with a change; called without locks.
pub type Resume = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub struct Leases {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Who holds what, and the event that asks it back.
    holders: HashMap<u64, BTreeMap<u64, Option<u64>>>,
    blocked: HashMap<u64, u32>,
    mailboxes: HashMap<u64, Mailbox>,
    waiters: Vec<Waiter>,
}

#[derive(Default)]
struct Mailbox {
    /// The session is remembered over a restart, so what it holds can be asked back.
    is_kept: bool,
    leases: usize,
    next_recall: u64,
    /// Not delivered yet.
    events: VecDeque<(u64, u64, Option<Vec<u8>>)>,
    /// Delivered and not released: delivered again over the next ring, because who took them may be dead.
    taken: VecDeque<(u64, u64, Option<Vec<u8>>)>,
    /// Delivered or not, but not released: recall, inode (`None` for a name), since when.
    owed: VecDeque<(u64, Option<u64>, u64)>,
    /// The recall that asks for everything.
    everything: Option<u64>,
    poll: Option<(usize, Answer)>,
}

struct Waiter {
    /// Session and the recall it must release.
    needs: HashMap<u64, u64>,
    resume: Resume,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a lease before the state it covers is read. Whether it still stands is decided by [`Leases::deliver`].
    pub fn register(&self, session: u64, ino: u64) {
        if session == 0 {
            return;
        }
        let mut state = self.lock();
        if state.blocked.contains_key(&ino) {
            return;
        }
        if !state.may_hold(session) {
            return;
        }
        let holders = state.holders.entry(ino).or_default();
        if holders.contains_key(&session) {
            return;
        }
        holders.insert(session, None);
        if let Some(mailbox) = state.mailboxes.get_mut(&session) {
            mailbox.leases += 1;
        }
    }

    /// Whether the session could keep what it is told of this inode, if it were answered now.
    pub fn holds(&self, session: u64, ino: u64) -> bool {
        self.lock().holds(session, ino)
    }

    /// Calls `answer` with whether all of `inos` may be kept, in order with the session's events.
    pub fn deliver(&self, session: u64, inos: &[u64], answer: impl FnOnce(bool)) {
        let state = self.lock();
        answer(session != 0 && !inos.is_empty() && inos.iter().all(|ino| state.holds(session, *ino)));
    }

    /// Blocks `touch` for new leases and asks the others for theirs; [`Leases::wait`] follows.
    pub fn begin_change(&self, session: u64, touch: &Touch, now_ms: u64) -> Blocked {
        let mut state = self.lock();
        for ino in &touch.inos {
            *state.blocked.entry(*ino).or_default() += 1;
        }
        state.recall(session, touch, now_ms);
        Blocked(touch.inos.iter().copied().collect())
    }

    /// Calls `resume` when nobody but `session` holds any of the blocked inodes; `false`, and not at all, when that is so now.
    pub fn wait(&self, session: u64, inos: &[u64], resume: Resume) -> bool {
        let mut state = self.lock();
        let needs = state.needs(session, inos);
        if needs.is_empty() {
            return false;
        }
        state.waiters.push(Waiter { needs, resume });
        true
    }

    /// The change was applied or given up.
    pub fn end_change(&self, blocked: Blocked) {
        let mut state = self.lock();
        for ino in blocked.0 {
            if let Some(count) = state.blocked.get_mut(&ino) {
                *count -= 1;
                if *count == 0 {
                    state.blocked.remove(&ino);
                }
            }
        }
    }

    /// Grants leases on what a change of the session itself made, while its inodes are still blocked for others.
    pub fn grant_own(&self, session: u64, ino: u64) {
        if session == 0 {
            return;
        }
        let mut state = self.lock();
        let others = state.holders.get(&ino).is_some_and(|holders| holders.keys().any(|holder| *holder != session));
        let blocks = state.blocked.get(&ino).copied().unwrap_or(0);
        if others || blocks > 1 || !state.may_hold(session) {
            return;
        }
        if state.holders.entry(ino).or_default().insert(session, None).is_none()
            && let Some(mailbox) = state.mailboxes.get_mut(&session)
        {
            mailbox.leases += 1;
        }
    }

    /// Parks an EVENTS request; answers at once when there is something. A second one displaces the first.
    pub fn poll(&self, session: u64, capacity: usize, answer: Answer) {
        let mut state = self.lock();
        let mailbox = state.mailboxes.entry(session).or_default();
        if let Some((_, old)) = mailbox.poll.replace((capacity, answer)) {
            old(Reply::failed(crate::error::Errno::Interrupted));
        }
        mailbox.serve();
    }

    /// A new ring of the session: what an older one took and did not release comes again, in order.
    pub fn redeliver(&self, session: u64) {
        let mut state = self.lock();
        let Some(mailbox) = state.mailboxes.get_mut(&session) else { return };
        // The older ring's request must not swallow them.
        drop(mailbox.poll.take());
        while let Some(event) = mailbox.taken.pop_back() {
            mailbox.events.push_front(event);
        }
    }

    /// The ring is gone, and the parked request with it.
    pub fn drop_poll(&self, session: u64) {
        let poll = self.lock().mailboxes.get_mut(&session).and_then(|mailbox| mailbox.poll.take());
        drop(poll);
    }

    /// The session dropped what its events up to `recall` named. Answers what can go on now.
    #[must_use]
    pub fn released(&self, session: u64, recall: u64) -> Vec<Resume> {
        let mut state = self.lock();
        let mut returned = Vec::new();
        if let Some(mailbox) = state.mailboxes.get_mut(&session) {
            while let Some((number, ino, _)) = mailbox.owed.front().copied() {
                if number > recall {
                    break;
                }
                mailbox.owed.pop_front();
                returned.extend(ino.map(|ino| (number, ino)));
            }
            while mailbox.taken.front().is_some_and(|(number, ..)| *number <= recall) {
                mailbox.taken.pop_front();
            }
            if mailbox.everything.is_some_and(|number| number <= recall) {
                mailbox.everything = None;
            }
        }
        for (number, ino) in returned {
            state.give_up(session, ino, number);
        }
        state.satisfied(session, recall)
    }

    /// The session is gone; its leases with it. Answers what can go on now.
    #[must_use]
    pub fn forget(&self, session: u64) -> Vec<Resume> {
        let mut state = self.lock();
        state.holders.retain(|_, holders| {
            holders.remove(&session);
            !holders.is_empty()
        });
        if let Some(Mailbox { poll: Some((_, answer)), .. }) = state.mailboxes.remove(&session) {
            answer(Reply::failed(crate::error::Errno::Stale));
        }
        state.satisfied(session, u64::MAX)
    }

    /// After a restart: the session may hold anything. Events are numbered from behind `first`, so that a client that
    /// lives on takes them for new.
    pub fn expect_everything(&self, session: u64, first: u64, now_ms: u64) {
        let mut state = self.lock();
        let mailbox = state.mailboxes.entry(session).or_default();
        mailbox.next_recall = mailbox.next_recall.max(first);
        mailbox.is_kept = true;
        mailbox.ask_everything(now_ms);
    }

    /// From now on the session may hold leases.
    pub fn admit(&self, session: u64) {
        self.lock().mailboxes.entry(session).or_default().is_kept = true;
    }

    /// Whether a change waits for a session.
    pub fn has_waiters(&self) -> bool {
        !self.lock().waiters.is_empty()
    }

    /// Sessions that changes wait for and that stayed silent for too long.
    pub fn silent(&self, now_ms: u64) -> Vec<u64> {
        let state = self.lock();
        let is_silent = |session: &u64| {
            let mailbox = state.mailboxes.get(session);
            let since = mailbox.and_then(|mailbox| mailbox.owed.front().map(|(_, _, since)| *since));
            since.is_some_and(|since| now_ms.saturating_sub(since) >= RECALL_MS)
        };
        let needed: BTreeSet<u64> = state.waiters.iter().flat_map(|waiter| waiter.needs.keys().copied()).collect();
        needed.into_iter().filter(is_silent).collect()
    }
}

impl State {
    fn holds(&self, session: u64, ino: u64) -> bool {
        self.holders.get(&ino).is_some_and(|holders| holders.get(&session) == Some(&None))
    }

    fn may_hold(&self, session: u64) -> bool {
        self.mailboxes.get(&session).is_some_and(|mailbox| mailbox.is_kept && mailbox.leases < LEASES_PER_SESSION_MAX)
    }

    fn recall(&mut self, session: u64, touch: &Touch, now_ms: u64) {
        let mut asked: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for ino in &touch.inos {
            for holder in
                self.holders.get(ino).into_iter().flat_map(BTreeMap::keys).filter(|holder| **holder != session)
            {
                asked.entry(*holder).or_default().push(*ino);
            }
        }
        for (holder, inos) in asked {
            let mailbox = self.mailboxes.entry(holder).or_default();
            if mailbox.events.len() + mailbox.taken.len() + touch.names.len() + inos.len() > EVENTS_MAX {
                let number = mailbox.ask_everything(now_ms);
                for ino in &inos {
                    self.holders.entry(*ino).or_default().insert(holder, Some(number));
                    mailbox.owed.push_back((number, Some(*ino), now_ms));
                }
                continue;
            }
            for (parent, name) in &touch.names {
                mailbox.push(*parent, Some(name.clone()), now_ms);
            }
            for ino in inos {
                let recall = self.holders.entry(ino).or_default().entry(holder).or_default();
                if recall.is_none() {
                    *recall = Some(mailbox.push(ino, None, now_ms));
                }
            }
            mailbox.serve();
        }
    }

    /// Whom a change of these inodes must wait for, and up to which event.
    fn needs(&self, session: u64, inos: &[u64]) -> HashMap<u64, u64> {
        let mut needs: HashMap<u64, u64> = HashMap::new();
        // Opening, closing and unlocking change nothing that anybody keeps.
        if inos.is_empty() {
            return needs;
        }
        for ino in inos {
            for holder in
                self.holders.get(ino).into_iter().flat_map(BTreeMap::keys).filter(|holder| **holder != session)
            {
                // Names asked for at the same time have higher numbers than a recall that was already under way.
                let last = self.mailboxes.get(holder).map_or(0, |mailbox| mailbox.next_recall);
                needs.insert(*holder, last);
            }
        }
        for (holder, mailbox) in self.mailboxes.iter().filter(|(holder, _)| **holder != session) {
            if let Some(everything) = mailbox.everything {
                let need = needs.entry(*holder).or_default();
                *need = everything.max(*need);
            }
        }
        needs
    }

    fn give_up(&mut self, session: u64, ino: u64, recall: u64) {
        let Some(holders) = self.holders.get_mut(&ino) else { return };
        if holders.get(&session) != Some(&Some(recall)) {
            return;
        }
        holders.remove(&session);
        if holders.is_empty() {
            self.holders.remove(&ino);
        }
        if let Some(mailbox) = self.mailboxes.get_mut(&session) {
            mailbox.leases = mailbox.leases.saturating_sub(1);
        }
    }

    fn satisfied(&mut self, session: u64, recall: u64) -> Vec<Resume> {
        for waiter in &mut self.waiters {
            if waiter.needs.get(&session).is_some_and(|need| *need <= recall) {
                waiter.needs.remove(&session);
            }
        }
        self.waiters.extract_if(.., |waiter| waiter.needs.is_empty()).map(|waiter| waiter.resume).collect()
    }
}

impl Mailbox {
    fn push(&mut self, ino: u64, name: Option<Vec<u8>>, now_ms: u64) -> u64 {
        self.next_recall += 1;
        let recalled = if name.is_none() { Some(ino) } else { None };
        self.events.push_back((self.next_recall, ino, name));
        self.owed.push_back((self.next_recall, recalled, now_ms));
        self.next_recall
    }

    fn ask_everything(&mut self, now_ms: u64) -> u64 {
        if self.everything.is_none() {
            self.events.clear();
            self.taken.clear();
            self.next_recall += 1;
            self.events.push_back((self.next_recall, EVERYTHING, None));
            self.owed.push_back((self.next_recall, None, now_ms));
            self.everything = Some(self.next_recall);
            self.serve();
        }
        self.next_recall
    }

    /// Answers the parked request with what there is.
    fn serve(&mut self) {
        if self.events.is_empty() {
            return;
        }
        let Some((capacity, answer)) = self.poll.take() else { return };
        let mut data = Vec::new();
        let mut count = 0;
        while let Some(event) = self.events.front() {
            let (recall, ino, name) = event;
            let name = name.as_deref().unwrap_or_default();
            let bytes = size_of::<Event>() + name.len().next_multiple_of(8);
            if data.len() + bytes > capacity && count > 0 {
                break;
            }
            let kind = if name.is_empty() { INODE } else { ENTRY };
            let event = Event {
                recall: (*recall).into(),
                ino: (*ino).into(),
                kind: kind.into(),
                name_bytes: (name.len() as u32).into(),
            };
            data.extend_from_slice(event.as_bytes());
            data.extend_from_slice(name);
            data.resize(data.len().next_multiple_of(8), 0);
            count += 1;
            self.taken.extend(self.events.pop_front());
        }
        answer(Reply::with_data([count, 0, 0, 0], data));
    }
}
