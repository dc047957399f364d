//! Locks and elections: queues in the engine, whose first entry is the owner.
//!
//! A wish of one session in one queue:
//!
//! ```text
//!            put          first of the queue
//! Putting ────────► Waiting ────────► Held
//!    │                 │ nobody waits   │ released, session over
//!    └──── nobody ─────┴────► Leaving ◄─┘
//!          waits               │ gone: nothing, or Putting when somebody asked meanwhile
//! ```
//!
//! The revision that made the entry is the token. A wish whose key is gone although nobody here deleted it was lost
//! with the node's lease: it is put again while somebody waits for it, and forgotten when it was held.

use std::collections::{BTreeMap, BTreeSet};

use vos_api::Errno;
use vos_api::cs::{ANY, Fencing, Owned, Race, WISHES_MAX};
use vos_api::desk::{DeskQuestion, Edit, Given, Known, Stay, Unanswered};

use crate::core::{Answered, Answers, Ticket};
use crate::desk::{Desk, Patience, Purpose, Reply};
use crate::names;
use crate::replica::Replica;

/// One session's wish, by its key in the engine.
pub type WishKey = String;

struct Wish {
    session: u64,
    value: Vec<u8>,
    stage: Stage,
    waiters: Vec<Waiter>,
    /// Whose time is over: they hear it when the wish is gone, however long the engine is away. A server that is killed
    /// before would otherwise leave a wish of which its client thinks that it is none, and which it may be given.
    late: Vec<Ticket>,
    /// Who released it, and waits until it is gone.
    releasing: Vec<Ticket>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Putting,
    Waiting(u64),
    Held(u64),
    Leaving,
}

#[derive(Clone, Copy)]
struct Waiter {
    ticket: Ticket,
    until: u64,
}

/// Somebody who asks who the owner is.
struct Observer {
    ticket: Ticket,
    session: u64,
    prefix: String,
    seen: u64,
    until: u64,
}

pub struct Races {
    node: u8,
    wishes: BTreeMap<WishKey, Wish>,
    observers: Vec<Observer>,
    /// Keys of this node's sessions from before a restart of this server, until their sessions are back.
    orphans: BTreeSet<WishKey>,
}

/// Whose turn it is in a queue.
fn owner<'a>(replica: &'a Replica, prefix: &'a str) -> Option<&'a Known> {
    replica.below(prefix).min_by_key(|known| known.created)
}

fn prefix_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(queue, _)| key.get(..=queue.len()).unwrap_or(key))
}

impl Races {
    pub fn new(node: u8) -> Races {
        Races { node, wishes: BTreeMap::new(), observers: Vec::new(), orphans: BTreeSet::new() }
    }

    /// Everything was told for the first time: what lies there of this node is from before a restart.
    pub fn begin(&mut self, replica: &Replica) {
        let own = |known: &&Known| names::session_of(&known.key).is_some_and(|(node, _)| node == self.node);
        let keys = ["l/", "e/"].into_iter().flat_map(|kind| replica.below(kind).filter(own));
        self.orphans = keys.map(|known| known.key.clone()).collect();
    }

    /// A session is back after a restart of this server, and so is what it wants.
    pub fn adopt(&mut self, session: u64, replica: &Replica) {
        let is_its = |key: &&String| names::session_of(key).is_some_and(|(_, of)| of == session);
        let keys: Vec<WishKey> = self.orphans.iter().filter(is_its).cloned().collect();
        for key in keys {
            self.orphans.remove(&key);
            let Some(known) = replica.get(&key) else { continue };
            let is_first = owner(replica, prefix_of(&key)).is_some_and(|first| first.key == key);
            let stage = if is_first { Stage::Held(known.created) } else { Stage::Waiting(known.created) };
            let wish = Wish {
                session,
                value: known.value.clone(),
                stage,
                waiters: Vec::new(),
                late: Vec::new(),
                releasing: Vec::new(),
            };
            self.wishes.insert(key, wish);
        }
    }

    /// Sessions that did not come back: what they had is free.
    pub fn abandon_orphans(&mut self, replica: &Replica, desk: &mut Desk) {
        for key in std::mem::take(&mut self.orphans) {
            if let Some(known) = replica.get(&key) {
                desk.ask(withdrawal(&key, known.created), Purpose::Tidy, Patience::Waits);
            }
        }
        // Waiting wishes that their sessions did not ask for again.
        let idle = |wish: &Wish| matches!(wish.stage, Stage::Waiting(_)) && wish.waiters.is_empty();
        let keys: Vec<WishKey> =
            self.wishes.iter().filter(|(_, wish)| idle(wish)).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.withdraw(key, desk));
    }

    #[allow(clippy::too_many_arguments, reason = "the operation's arguments and the world")]
    pub fn acquire(
        &mut self,
        (race, name): (Race, &str),
        session: u64,
        value: &[u8],
        (ticket, until): (Ticket, u64),
        now: u64,
        (replica, desk, answers): (&Replica, &mut Desk, &mut Answers),
    ) {
        let prefix = names::queue_prefix(race, name);
        let key = names::of_session(&prefix, self.node, session);
        if let Some(wish) = self.wishes.get_mut(&key) {
            // Whose time was over heard so, perhaps before the wish was gone: this is another one, which says something
            // else of itself.
            let is_another = wish.waiters.is_empty() && wish.value != value;
            match wish.stage {
                Stage::Held(token) => answers.give(ticket, Answered::words(Fencing { token })),
                _ => wish.waiters.push(Waiter { ticket, until }),
            }
            if is_another && !matches!(wish.stage, Stage::Held(_)) {
                wish.value = value.to_vec();
                self.withdraw(&key, desk);
            }
            // One that was adopted may be the first meanwhile.
            return self.look_at(&key, (replica, desk, answers));
        }
        if until <= now && owner(replica, &prefix).is_some() {
            return answers.refuse(ticket, Errno::TimedOut);
        }
        if self.wishes.len() >= WISHES_MAX {
            return answers.refuse(ticket, Errno::NoSpace);
        }
        let waiters = vec![Waiter { ticket, until }];
        let wish = Wish {
            session,
            value: value.to_vec(),
            stage: Stage::Putting,
            waiters,
            late: Vec::new(),
            releasing: Vec::new(),
        };
        put(&key, &wish, desk);
        self.wishes.insert(key, wish);
    }

    pub fn release(
        &mut self,
        (race, name): (Race, &str),
        session: u64,
        token: u64,
        ticket: Ticket,
        (desk, answers): (&mut Desk, &mut Answers),
    ) {
        let key = names::of_session(&names::queue_prefix(race, name), self.node, session);
        match self.wishes.get_mut(&key) {
            Some(wish) if wish.stage == Stage::Held(token) => {
                wish.releasing.push(ticket);
                self.withdraw(&key, desk);
            }
            Some(wish) if wish.stage == Stage::Leaving => wish.releasing.push(ticket),
            _ => answers.give(ticket, Answered::default()),
        }
    }

    pub fn owner(
        &mut self,
        (race, name): (Race, &str),
        seen: u64,
        session: u64,
        (ticket, until): (Ticket, u64),
        now: u64,
        (replica, answers): (&Replica, &mut Answers),
    ) {
        let prefix = names::queue_prefix(race, name);
        let observer = Observer { ticket, session, prefix, seen, until };
        if !observer.is_answered(until <= now, replica, answers) {
            self.observers.push(observer);
        }
    }

    pub fn confirm((race, name): (Race, &str), node: u8, session: u64, token: u64, ticket: Ticket, desk: &mut Desk) {
        let key = names::of_session(&names::queue_prefix(race, name), node, session);
        let question = DeskQuestion::Transact { givens: vec![Given::Created(key, token)], edits: Vec::new() };
        desk.ask(question, Purpose::Confirm(ticket), Patience::Fails);
    }

    /// A session is over: it wants nothing any more.
    pub fn end(&mut self, session: u64, desk: &mut Desk) {
        self.observers.retain(|observer| observer.session != session);
        let its = |(_, wish): &(&WishKey, &Wish)| wish.session == session;
        let keys: Vec<WishKey> = self.wishes.iter().filter(its).map(|(key, _)| key.clone()).collect();
        for key in keys {
            if let Some(wish) = self.wishes.get_mut(&key) {
                wish.waiters.clear();
                wish.late.clear();
                wish.releasing.clear();
            }
            self.withdraw(&key, desk);
        }
    }

    /// A wish was put, or could not be.
    pub fn was_put(&mut self, key: &WishKey, reply: Reply, world: (&Replica, &mut Desk, &mut Answers)) {
        let (replica, desk, answers) = world;
        let Some(wish) = self.wishes.get_mut(key).filter(|wish| wish.stage == Stage::Putting) else { return };
        let token = match reply {
            Reply::Done(token) => token,
            // It was put by an attempt before.
            Reply::Conflict(current) => match current.into_iter().flatten().next() {
                Some(known) => known.created,
                None => return put(key, wish, desk),
            },
            Reply::Found(_) => return,
            Reply::Failed(why) => {
                let errno = if why == Unanswered::Full { Errno::NoSpace } else { Errno::Unreachable };
                wish.waiters.drain(..).for_each(|waiter| answers.refuse(waiter.ticket, errno));
                self.wishes.remove(key);
                return;
            }
        };
        wish.stage = Stage::Waiting(token);
        if wish.waiters.is_empty() {
            return self.withdraw(key, desk);
        }
        self.look_at(key, (replica, desk, answers));
    }

    /// A withdrawn wish is gone.
    pub fn was_withdrawn(&mut self, key: &WishKey, (desk, answers): (&mut Desk, &mut Answers)) {
        let Some(wish) = self.wishes.get_mut(key).filter(|wish| wish.stage == Stage::Leaving) else { return };
        wish.releasing.drain(..).for_each(|ticket| answers.give(ticket, Answered::default()));
        wish.late.drain(..).for_each(|ticket| answers.refuse(ticket, Errno::TimedOut));
        if wish.waiters.is_empty() {
            self.wishes.remove(key);
        } else {
            wish.stage = Stage::Putting;
            put(key, wish, desk);
        }
    }

    /// These keys are different now.
    pub fn news(&mut self, changed: &[String], world: (&Replica, &mut Desk, &mut Answers)) {
        let (replica, desk, answers) = world;
        let queues: BTreeSet<&str> =
            changed.iter().filter(|key| names::race_of(key).is_some()).map(|key| prefix_of(key)).collect();
        for prefix in queues {
            let own: Vec<WishKey> = self
                .wishes
                .range(prefix.to_owned()..)
                .map(|(key, _)| key)
                .take_while(|key| key.starts_with(prefix))
                .cloned()
                .collect();
            own.iter().for_each(|key| self.look_at(key, (replica, desk, answers)));
            self.observers
                .retain(|observer| observer.prefix != prefix || !observer.is_answered(false, replica, answers));
        }
    }

    fn look_at(&mut self, key: &WishKey, (replica, desk, answers): (&Replica, &mut Desk, &mut Answers)) {
        let Some(wish) = self.wishes.get_mut(key) else { return };
        let (Stage::Waiting(token) | Stage::Held(token)) = wish.stage else { return };
        match replica.get(key) {
            Some(known) if known.created == token => {
                // One that was adopted is held only when its client asks for it again.
                let is_wanted = matches!(wish.stage, Stage::Held(_)) || !wish.waiters.is_empty();
                if is_wanted && owner(replica, prefix_of(key)).is_some_and(|first| first.key == *key) {
                    wish.stage = Stage::Held(token);
                    wish.waiters
                        .drain(..)
                        .for_each(|waiter| answers.give(waiter.ticket, Answered::words(Fencing { token })));
                }
            }
            // The news of it is under way.
            None if replica.seen() < token => {}
            Some(_) if replica.seen() < token => {}
            _ if wish.waiters.is_empty() => drop(self.wishes.remove(key)),
            _ => {
                wish.stage = Stage::Putting;
                put(key, wish, desk);
            }
        }
    }

    fn withdraw(&mut self, key: &WishKey, desk: &mut Desk) {
        let Some(wish) = self.wishes.get_mut(key) else { return };
        match wish.stage {
            Stage::Waiting(token) | Stage::Held(token) => {
                wish.stage = Stage::Leaving;
                desk.ask(withdrawal(key, token), Purpose::Withdrawal(key.clone()), Patience::Waits);
            }
            // It is looked at again once it is there.
            Stage::Putting | Stage::Leaving => {}
        }
    }

    pub fn deadline(&self, replica: &Replica) -> Option<u64> {
        let decided = self.wishes.values().filter(|wish| wish.is_decided(replica));
        let waiters = decided.flat_map(|wish| &wish.waiters).map(|waiter| waiter.until);
        waiters.chain(self.observers.iter().map(|observer| observer.until)).min()
    }

    pub fn tick(&mut self, now: u64, (replica, desk, answers): (&Replica, &mut Desk, &mut Answers)) {
        self.observers.retain(|observer| observer.until > now || !observer.is_answered(true, replica, answers));
        let mut idle = Vec::new();
        for (key, wish) in &mut self.wishes {
            if !wish.is_decided(replica) {
                continue;
            }
            let (late, waiting): (Vec<Waiter>, Vec<Waiter>) =
                std::mem::take(&mut wish.waiters).into_iter().partition(|waiter| waiter.until <= now);
            wish.waiters = waiting;
            wish.late.extend(late.into_iter().map(|waiter| waiter.ticket));
            // The wish is somebody else's, of the same session, who asks for it again after a restart.
            if !wish.waiters.is_empty() {
                wish.late.drain(..).for_each(|ticket| answers.refuse(ticket, Errno::TimedOut));
            }
            if !wish.late.is_empty() && matches!(wish.stage, Stage::Waiting(_)) {
                idle.push(key.clone());
            }
        }
        idle.iter().for_each(|key| self.withdraw(key, desk));
    }
}

impl Wish {
    /// Whether it is known if it is the first. Until then nobody's time is over: who does not want to wait may have it.
    fn is_decided(&self, replica: &Replica) -> bool {
        match self.stage {
            Stage::Putting => false,
            Stage::Waiting(token) => replica.seen() >= token,
            Stage::Held(_) | Stage::Leaving => true,
        }
    }
}

impl Observer {
    fn is_answered(&self, is_late: bool, replica: &Replica, answers: &mut Answers) -> bool {
        let owner = owner(replica, &self.prefix);
        let token = owner.map_or(0, |known| known.created);
        if token == self.seen && !is_late && self.seen != ANY {
            return false;
        }
        let node = owner.and_then(|known| names::session_of(&known.key)).map_or(0, |(node, _)| u64::from(node));
        let data = owner.map(|known| known.value.clone()).unwrap_or_default();
        answers.give(self.ticket, Answered { words: Owned { token, node }.into(), data });
        true
    }
}

fn put(key: &WishKey, wish: &Wish, desk: &mut Desk) {
    let edits = vec![Edit::Put { key: key.clone(), value: wish.value.clone(), stay: Stay::Leased }];
    let question = DeskQuestion::Transact { givens: vec![Given::Absent(key.clone())], edits };
    desk.ask(question, Purpose::Wish(key.clone()), Patience::Fails);
}

fn withdrawal(key: &WishKey, token: u64) -> DeskQuestion {
    let edits = vec![Edit::Delete { key: key.clone() }];
    DeskQuestion::Transact { givens: vec![Given::Created(key.clone(), token)], edits }
}
