//! What the nodes of the container are like: this server says it of its node, and asks those of the others.

use std::collections::BTreeMap;

use vos_api::cs::{SENSED_BYTES, Sensed, sensed};

use crate::core::{Answered, Answers, Ticket};

/// How long others are waited for at most.
const PATIENCE_MS: u64 = 2000;
/// Clients that wait; one more is answered from what was heard last.
const ASKERS_MAX: usize = 256;

/// Of one node, as it says itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vitals {
    pub cpus: u32,
    /// Thousandths of a process that ran or wanted to, over one minute.
    pub load: u64,
    pub memory_bytes: u64,
    pub available_bytes: u64,
    /// Servers of other nodes that it is connected with.
    pub links: u64,
}

#[derive(Clone, Copy)]
struct Heard {
    vitals: Vitals,
    at: u64,
    round_trip_us: u64,
}

struct Asker {
    ticket: Ticket,
    session: u64,
    until: u64,
    /// Who did not answer since.
    missing: Vec<u8>,
}

#[derive(Default)]
pub struct Sensing {
    heard: BTreeMap<u8, Heard>,
    askers: Vec<Asker>,
    /// In microseconds, when others were asked last.
    asked_us: u64,
}

impl Vitals {
    pub fn to_bytes(self) -> Vec<u8> {
        let words = [u64::from(self.cpus), self.load, self.memory_bytes, self.available_bytes, self.links];
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Vitals> {
        let mut words = bytes.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(*word.first_chunk()?)));
        let mut next = || words.next();
        Some(Vitals {
            cpus: u32::try_from(next()?).ok()?,
            load: next()?,
            memory_bytes: next()?,
            available_bytes: next()?,
            links: next()?,
        })
    }
}

impl Sensing {
    /// Whether the others are to be asked.
    pub fn ask(
        &mut self,
        (ticket, session, wait_ms): (Ticket, u64, u64),
        others: &[u8],
        (now, now_us): (u64, u64),
        own: (u8, Vitals),
        answers: &mut Answers,
    ) -> bool {
        self.heard.insert(own.0, Heard { vitals: own.1, at: now, round_trip_us: 0 });
        let until = now + wait_ms.min(PATIENCE_MS);
        let asker = Asker { ticket, session, until, missing: others.to_vec() };
        if others.is_empty() || until <= now || self.askers.len() >= ASKERS_MAX {
            self.answer(&asker, now, answers);
            return false;
        }
        self.askers.push(asker);
        self.asked_us = now_us;
        true
    }

    pub fn heard(&mut self, node: u8, vitals: Vitals, (now, now_us): (u64, u64), answers: &mut Answers) {
        let round_trip_us = now_us.saturating_sub(self.asked_us);
        self.heard.insert(node, Heard { vitals, at: now, round_trip_us });
        self.askers.iter_mut().for_each(|asker| asker.missing.retain(|one| *one != node));
        self.settle(now, answers);
    }

    pub fn end(&mut self, session: u64) {
        self.askers.retain(|asker| asker.session != session);
    }

    pub fn deadline(&self) -> Option<u64> {
        self.askers.iter().map(|asker| asker.until).min()
    }

    pub fn settle(&mut self, now: u64, answers: &mut Answers) {
        let (over, waiting): (Vec<Asker>, Vec<Asker>) = std::mem::take(&mut self.askers)
            .into_iter()
            .partition(|asker| asker.missing.is_empty() || asker.until <= now);
        self.askers = waiting;
        over.iter().for_each(|asker| self.answer(asker, now, answers));
    }

    fn answer(&self, asker: &Asker, now: u64, answers: &mut Answers) {
        let mut nodes: BTreeMap<u8, Option<Heard>> = asker.missing.iter().map(|node| (*node, None)).collect();
        nodes.extend(self.heard.iter().map(|(node, heard)| (*node, Some(*heard))));
        let mut data = Vec::with_capacity(nodes.len() * SENSED_BYTES);
        for (node, heard) in &nodes {
            let is_missing = asker.missing.contains(node);
            let state = if is_missing { sensed::SILENT } else { sensed::HERE };
            let heard = heard.unwrap_or(Heard { vitals: Vitals::default(), at: now, round_trip_us: 0 });
            let Vitals { cpus, load, memory_bytes, available_bytes, links } = heard.vitals;
            data.extend_from_slice(&u16::from(*node).to_le_bytes());
            data.extend_from_slice(&state.to_le_bytes());
            data.extend_from_slice(&cpus.to_le_bytes());
            for word in [load, memory_bytes, available_bytes, heard.round_trip_us, links, now.saturating_sub(heard.at)]
            {
                data.extend_from_slice(&word.to_le_bytes());
            }
        }
        answers.give(asker.ticket, Answered { words: Sensed { nodes: nodes.len() as u64 }.into(), data });
    }

    /// A node that has no server any more.
    pub fn forget(&mut self, node: u8) {
        self.heard.remove(&node);
    }
}
