//! Groups: members, views, and messages in one order.
//!
//! - `charter.rs`: what is agreed on in the engine
//! - `group.rs`: one group as one host has it: who orders, what is where, who takes over
//! - `log.rs`: the order, as far as it is held
//! - `local.rs`: members here and what they are given
//! - `wire.rs`: what hosts send each other

mod charter;
mod group;
mod local;
mod log;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use vos_api::Errno;
use vos_api::cs::{ANY, GROUPS_MAX, Level, Viewed};

use charter::Charter;
pub use charter::Host;
use group::{Group, World};
use local::Receiving;
use wire::{Burst, Frame, count_messages};

use crate::core::{Answered, Answers, Ticket};
use crate::desk::{Desk, Reply};
use crate::replica::Replica;

struct Observer {
    ticket: Ticket,
    session: u64,
    group: String,
    seen: u64,
    until: u64,
}

/// What a call needs besides its arguments.
pub struct Around<'a> {
    pub now: u64,
    pub replica: &'a Replica,
    pub desk: &'a mut Desk,
    pub answers: &'a mut Answers,
    pub frames: &'a mut Vec<(Host, Vec<u8>)>,
}

pub struct Groups {
    own: Host,
    next_member: u32,
    groups: BTreeMap<String, Group>,
    /// Which group a member here is in.
    members: BTreeMap<u64, String>,
    observers: Vec<Observer>,
    /// Groups in which something happened in this turn.
    touched: BTreeSet<String>,
    due: BTreeMap<String, u64>,
}

/// Whether a server lives its life still.
pub fn is_alive(host: Host, own: Host, replica: &Replica) -> bool {
    let said = replica.get(&format!("n/{}", host.node));
    host == own || said.is_some_and(|known| known.value == host.incarnation.to_string().into_bytes())
}

fn charter_of(group: &str, replica: &Replica) -> Option<(Charter, u64)> {
    Charter::of(replica.get(&format!("g/{group}"))?)
}

impl Groups {
    pub fn new(own: Host) -> Groups {
        Groups {
            own,
            next_member: 1,
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            observers: Vec::new(),
            touched: BTreeSet::new(),
            due: BTreeMap::new(),
        }
    }

    /// Lets `work` see one group with the world around it.
    fn within<T>(
        &mut self,
        name: &str,
        around: &mut Around<'_>,
        work: impl FnOnce(&mut Group, &mut World<'_>) -> T,
    ) -> Option<T> {
        let group = self.groups.get_mut(name)?;
        let (own, replica) = (self.own, around.replica);
        let alive = |host: Host| is_alive(host, own, replica);
        let mut world = World {
            own,
            now: around.now,
            alive: &alive,
            desk: around.desk,
            answers: around.answers,
            frames: around.frames,
        };
        let done = work(group, &mut world);
        self.touched.insert(name.to_owned());
        Some(done)
    }

    pub fn join(&mut self, name: &str, called: &str, session: u64, wait: (Ticket, u64), around: &mut Around<'_>) {
        if !self.groups.contains_key(name) {
            if self.groups.len() >= GROUPS_MAX {
                return around.answers.refuse(wait.0, Errno::NoSpace);
            }
            self.groups.insert(name.to_owned(), Group::new(name, charter_of(name, around.replica)));
        }
        let Some(group) = self.groups.get(name) else { return };
        let is_member = group.locals.values().any(|local| local.session == session);
        if is_member || group.is_full() {
            let errno = if is_member { Errno::Exists } else { Errno::NoSpace };
            return around.answers.refuse(wait.0, errno);
        }
        let Host { node, incarnation } = self.own;
        let id = u64::from(node) << 56 | (incarnation & 0xff_ffff) << 32 | u64::from(self.next_member);
        self.next_member = self.next_member.wrapping_add(1);
        self.members.insert(id, name.to_owned());
        self.within(name, around, |group, world| group.join(id, session, called, wait, world));
    }

    /// The group of a member, if it is of this session.
    fn group_of(&self, member: u64, session: u64) -> Option<String> {
        let name = self.members.get(&member)?;
        let is_its = self.groups.get(name)?.locals.get(&member).is_some_and(|local| local.session == session);
        is_its.then(|| name.clone())
    }

    pub fn leave(&mut self, member: u64, session: u64, ticket: Ticket, around: &mut Around<'_>) {
        if let Some(name) = self.group_of(member, session) {
            self.within(&name, around, |group, world| group.leave(member, world));
        }
        around.answers.give(ticket, Answered::default());
    }

    pub fn send(
        &mut self,
        (member, session): (u64, u64),
        (level, first): (Level, u64),
        data: &[u8],
        ticket: Ticket,
        around: &mut Around<'_>,
    ) {
        let Some(name) = self.group_of(member, session) else { return around.answers.refuse(ticket, Errno::Stale) };
        let Some(count) = count_messages(data) else { return around.answers.refuse(ticket, Errno::Invalid) };
        let burst = Burst { level, member, first, count, data: data.into() };
        self.within(&name, around, |group, world| group.send(member, burst, ticket, world.answers));
    }

    pub fn receive(
        &mut self,
        (member, session): (u64, u64),
        (ticket, until, room): (Ticket, u64, usize),
        around: &mut Around<'_>,
    ) {
        let Some(name) = self.group_of(member, session) else { return around.answers.refuse(ticket, Errno::Stale) };
        let receiving = Receiving { ticket, until, room };
        self.within(&name, around, |group, world| group.receive(member, receiving, world.answers));
    }

    pub fn view(
        &mut self,
        (name, seen): (&str, u64),
        session: u64,
        (ticket, until): (Ticket, u64),
        now: u64,
        (replica, answers): (&Replica, &mut Answers),
    ) {
        let observer = Observer { ticket, session, group: name.to_owned(), seen, until };
        if !observer.is_answered(until <= now, replica, answers) {
            self.observers.push(observer);
        }
    }

    /// A session is over, and its memberships with it.
    pub fn end(&mut self, session: u64, around: &mut Around<'_>) {
        self.observers.retain(|observer| observer.session != session);
        let its = |group: &Group| -> Vec<u64> {
            group.locals.iter().filter(|(_, local)| local.session == session).map(|(id, _)| *id).collect()
        };
        let leaving: Vec<(String, Vec<u64>)> =
            self.groups.iter().map(|(name, group)| (name.clone(), its(group))).collect();
        for (name, ids) in leaving {
            for id in ids {
                self.within(&name, around, |group, world| group.leave(id, world));
            }
        }
    }

    pub fn heard(&mut self, from: Host, frame: &[u8], around: &mut Around<'_>) {
        let Some((name, frame)) = Frame::decode(frame) else {
            return tracing::warn!(?from, "a frame of a group makes no sense");
        };
        self.within(&name, around, |group, world| group.heard(from, frame, world));
    }

    pub fn decided(&mut self, name: &str, reply: Reply, around: &mut Around<'_>) {
        self.within(name, around, |group, world| group.decided(reply, world));
    }

    /// These keys are different now.
    pub fn news(&mut self, changed: &[String], around: &mut Around<'_>) {
        for name in changed.iter().filter_map(|key| key.strip_prefix("g/")) {
            let (charter, seen) = (charter_of(name, around.replica), around.replica.seen());
            self.within(name, around, |group, world| group.charter_is(charter, seen, world));
            let (replica, answers) = (around.replica, &mut *around.answers);
            self.observers.retain(|observer| observer.group != name || !observer.is_answered(false, replica, answers));
        }
        if changed.iter().any(|key| key.starts_with("n/")) {
            let names: Vec<String> = self.groups.keys().cloned().collect();
            for name in names {
                self.within(&name, around, |group, world| group.advance(world));
            }
        }
    }

    /// This server begins a new life: the node's lease ended, and others went on without it.
    pub fn begin_anew(&mut self, own: Host, around: &mut Around<'_>) {
        let names: Vec<String> = self.groups.keys().cloned().collect();
        for name in names {
            self.within(&name, around, |group, world| group.fall_out(world.answers));
        }
        self.own = own;
        // Who was joining joins as a member of the new life.
        let names: Vec<String> = self.groups.keys().cloned().collect();
        for name in names {
            self.within(&name, around, |group, world| group.advance(world));
        }
    }

    pub fn deadline(&self) -> Option<u64> {
        let observed = self.observers.iter().map(|observer| observer.until);
        observed.chain(self.due.values().copied()).min()
    }

    /// The end of a turn.
    pub fn flush(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let (replica, answers) = (around.replica, &mut *around.answers);
        self.observers.retain(|observer| observer.until > now || !observer.is_answered(true, replica, answers));
        let due: Vec<String> = self.due.iter().filter(|(_, due)| **due <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.within(&name, around, |group, world| group.tick(world));
        }
        for name in std::mem::take(&mut self.touched) {
            let due = self.within(&name, around, |group, world| {
                group.flush(world);
                (!group.is_over()).then(|| group.deadline(now))
            });
            match due {
                Some(Some(Some(due))) => drop(self.due.insert(name, due)),
                Some(Some(None)) => drop(self.due.remove(&name)),
                Some(None) | None => {
                    self.groups.remove(&name);
                    self.due.remove(&name);
                }
            }
        }
        self.touched.clear();
        let groups = &self.groups;
        self.members.retain(|id, name| groups.get(name).is_some_and(|group| group.locals.contains_key(id)));
    }
}

impl Observer {
    fn is_answered(&self, is_late: bool, replica: &Replica, answers: &mut Answers) -> bool {
        let charter = charter_of(&self.group, replica);
        let number = charter.as_ref().map_or(0, |(charter, _)| charter.number);
        if number <= self.seen && self.seen != ANY && !is_late && !(number == 0 && self.seen > 0) {
            return false;
        }
        let mut data = Vec::new();
        let members = charter.map(|(charter, _)| charter.members).unwrap_or_default();
        members.iter().for_each(|member| local::put_member(&mut data, member));
        answers.give(self.ticket, Answered { words: Viewed { number, members: members.len() as u64 }.into(), data });
        true
    }
}
