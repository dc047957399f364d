//! A member whose client is here, and how it is given what was ordered.

use vos_api::Errno;
use vos_api::cs::{Delivered, EVENT_HEAD_BYTES, event};

use super::log::Log;
use super::wire::{Entry, View};
use crate::core::{Answered, Answers, Ticket};

pub struct Local {
    pub session: u64,
    pub name: String,
    pub standing: Standing,
    pub receiving: Option<Receiving>,
    /// Sends that wait for room, the first of them first.
    pub sending: Vec<Ticket>,
    /// Number of the next message that it sends.
    pub next_sent: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// No view has it yet.
    Joining { ticket: Ticket, until: u64 },
    /// The next entry that it is given.
    Member { next: u64 },
    /// Of a view without it; it is told and forgotten.
    Excluded,
}

pub struct Receiving {
    pub ticket: Ticket,
    pub until: u64,
    pub room: usize,
}

impl Local {
    pub fn next(&self) -> Option<u64> {
        match self.standing {
            Standing::Member { next } => Some(next),
            Standing::Joining { .. } | Standing::Excluded => None,
        }
    }

    /// Gives what there is, if somebody waits for it.
    pub fn deliver(&mut self, log: &Log, answers: &mut Answers) {
        let (Standing::Member { next }, Some(receiving)) = (&mut self.standing, &self.receiving) else { return };
        let (mut data, mut events) = (Vec::new(), 0);
        while let Some(entry) = log.get(*next).filter(|entry| !entry.waits() || *next <= log.stable()) {
            if EVENT_HEAD_BYTES + bytes_of(entry) + data.len() > receiving.room {
                break;
            }
            put_event(&mut data, *next, entry);
            events += 1;
            *next += 1;
        }
        let is_ready = log.get(*next).is_some_and(|entry| !entry.waits() || *next <= log.stable());
        if events == 0 && !is_ready {
            return;
        }
        let ticket = receiving.ticket;
        self.receiving = None;
        if events == 0 {
            return answers.refuse(ticket, Errno::OutOfRange);
        }
        answers.give(ticket, Answered { words: Delivered { events }.into(), data });
    }
}

fn bytes_of(entry: &Entry) -> usize {
    match entry {
        Entry::View(view) => view.members.iter().map(|(member, _)| 12 + member.name.len()).sum(),
        Entry::Burst(burst) => burst.data.len(),
    }
}

fn put_event(data: &mut Vec<u8>, index: u64, entry: &Entry) {
    let (kind, level, sender, number) = match entry {
        Entry::View(view) => (event::VIEW, 0, 0, view.number),
        Entry::Burst(burst) => (event::MESSAGES, burst.level as u16 as u8, burst.member, burst.first),
    };
    data.extend_from_slice(&[kind, level, 0, 0]);
    data.extend_from_slice(&(bytes_of(entry) as u32).to_le_bytes());
    [index, sender, number].iter().for_each(|word| data.extend_from_slice(&word.to_le_bytes()));
    match entry {
        Entry::View(view) => put_members(data, view),
        Entry::Burst(burst) => data.extend_from_slice(&burst.data),
    }
}

fn put_members(data: &mut Vec<u8>, view: &View) {
    for (member, _) in &view.members {
        put_member(data, member);
    }
}

pub fn put_member(data: &mut Vec<u8>, member: &super::charter::Member) {
    data.extend_from_slice(&member.id.to_le_bytes());
    data.extend_from_slice(&u16::from(member.host.node).to_le_bytes());
    data.extend_from_slice(&(member.name.len() as u16).to_le_bytes());
    data.extend_from_slice(member.name.as_bytes());
}
