//! Several servers with one engine, whatever happens to them decided by a seed: daemons that go between question and
//! answer, news that come late or as the last of several, links that are cut, servers that are killed, nodes that are
//! lost.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, VecDeque};

use cs_core::{Act, Answered, ClientCall, Core, Host, Ticket};
use vos_api::Errno;
use vos_api::cs::Request;
use vos_api::desk::{DeskQuestion, Edit, FromDesk, Given, Known, Stay, ToDesk};

/// Small and good enough: the same sequence for the same seed, everywhere.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

#[derive(Default)]
pub struct Engine {
    pub revision: u64,
    pub keys: BTreeMap<String, (Known, Option<u8>)>,
    /// Every value that was ever written, with its key.
    pub written: Vec<(String, Vec<u8>)>,
}

impl Engine {
    fn holds(&self, given: &Given) -> bool {
        let known = self.keys.get(given.key()).map(|(known, _)| known);
        match (given, known) {
            (Given::Absent(_), known) => known.is_none(),
            (Given::Present(_), known) => known.is_some(),
            (Given::Modified(_, at), known) => known.is_some_and(|known| known.modified == *at),
            (Given::Created(_, at), known) => known.is_some_and(|known| known.created == *at),
        }
    }

    fn answer(&mut self, asked: &ToDesk, node: u8) -> FromDesk {
        let id = asked.id;
        let (givens, edits) = match &asked.question {
            DeskQuestion::Read { key } => {
                return FromDesk::Found { id, known: self.keys.get(key).map(|(known, _)| known.clone()) };
            }
            DeskQuestion::Transact { givens, edits } => (givens, edits),
        };
        if !givens.iter().all(|given| self.holds(given)) {
            let current = givens.iter().map(|given| self.keys.get(given.key()).map(|(known, _)| known.clone()));
            return FromDesk::Conflict { id, current: current.collect() };
        }
        if !edits.is_empty() {
            self.revision += 1;
        }
        for edit in edits {
            match edit {
                Edit::Put { key, value, stay } => {
                    let created = self.keys.get(key).map_or(self.revision, |(known, _)| known.created);
                    let known = Known { key: key.clone(), value: value.clone(), created, modified: self.revision };
                    self.written.push((key.clone(), value.clone()));
                    self.keys.insert(key.clone(), (known, (*stay == Stay::Leased).then_some(node)));
                }
                Edit::Delete { key } => drop(self.keys.remove(key)),
            }
        }
        FromDesk::Done { id, revision: self.revision }
    }

    fn end_lease(&mut self, node: u8) -> Vec<String> {
        self.revision += 1;
        let gone: Vec<String> =
            self.keys.iter().filter(|(_, (_, of))| *of == Some(node)).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.keys.remove(key)));
        gone
    }
}

pub struct Node {
    pub core: Core,
    pub is_up: bool,
    lives: u64,
    to_desk: VecDeque<ToDesk>,
    from_desk: VecDeque<FromDesk>,
    /// Keys of which there is news, with the revision of it.
    news: BTreeMap<String, u64>,
}

/// A frame on its way.
type Flying = (Host, Host, Vec<u8>);

pub type Answer = Result<Answered, Errno>;

pub struct World {
    pub rng: Rng,
    pub now: u64,
    pub engine: Engine,
    pub nodes: Vec<Node>,
    links: BTreeMap<(u8, u8), VecDeque<Flying>>,
    pub cut: Vec<(u8, u8)>,
    /// By node and life.
    pub answers: VecDeque<(u8, Ticket, Answer)>,
    next_ticket: Ticket,
}

impl World {
    pub fn new(seed: u64, nodes: u8) -> World {
        let mut world = World {
            rng: Rng::new(seed),
            now: 1,
            engine: Engine::default(),
            nodes: Vec::new(),
            links: BTreeMap::new(),
            cut: Vec::new(),
            answers: VecDeque::new(),
            next_ticket: 1,
        };
        for node in 0..nodes {
            world.nodes.push(Node {
                core: Core::new(Host { node, incarnation: 1 << 16 }, world.now),
                is_up: true,
                lives: 1,
                to_desk: VecDeque::new(),
                from_desk: VecDeque::new(),
                news: BTreeMap::new(),
            });
            world.daemon_takes_over(node);
        }
        world
    }

    pub fn node(&mut self, node: u8) -> &mut Node {
        &mut self.nodes[usize::from(node)]
    }

    /// What was asked or answered and not read by the server is lost.
    pub fn daemon_takes_over(&mut self, node: u8) {
        let all: Vec<FromDesk> = self.engine.keys.values().map(|(known, _)| FromDesk::Put(known.clone())).collect();
        let revision = self.engine.revision;
        let place = self.node(node);
        place.to_desk.clear();
        place.news.clear();
        place.from_desk = [FromDesk::Hello(versions::DESK.speaks)]
            .into_iter()
            .chain(all)
            .chain([FromDesk::Listed { revision }])
            .collect();
    }

    /// `kill -9` and a new start: what its clients had of groups is gone.
    pub fn kill(&mut self, node: u8) {
        let now = self.now;
        let place = self.node(node);
        place.lives += 1;
        place.core = Core::new(Host { node, incarnation: place.lives << 16 }, now);
        place.is_up = true;
        self.answers.retain(|(of, ..)| *of != node);
        self.lose_frames(node);
        self.daemon_takes_over(node);
    }

    /// The node is gone, and its lease ends.
    pub fn lose(&mut self, node: u8) {
        self.node(node).is_up = false;
        self.answers.retain(|(of, ..)| *of != node);
        self.lose_frames(node);
        self.end_lease(node);
    }

    pub fn end_lease(&mut self, node: u8) {
        for key in self.engine.end_lease(node) {
            self.spread(&key);
        }
    }

    /// What was on its way from or to it may have arrived, or not.
    fn lose_frames(&mut self, node: u8) {
        for ((from, to), queue) in &mut self.links {
            if *to == node {
                queue.clear();
            } else if *from == node {
                let kept = self.rng.below(queue.len() as u64 + 1) as usize;
                queue.truncate(kept);
            }
        }
    }

    fn spread(&mut self, key: &str) {
        let revision = self.engine.revision;
        for node in &mut self.nodes {
            node.news.insert(key.to_owned(), revision);
        }
    }

    pub fn call(&mut self, node: u8, session: u64, sequence: u64, request: Request<'_>) -> Ticket {
        self.next_ticket += 1;
        let (ticket, now) = (self.next_ticket, self.now);
        let room = 1 << 20;
        let call = ClientCall { ticket, session, sequence, room, request };
        self.node(node).core.call(call, (now, now * 1000));
        self.turn(node);
        ticket
    }

    pub fn turn(&mut self, node: u8) {
        let now = self.now;
        let effects = self.node(node).core.turn(now);
        for effect in effects {
            match effect {
                Act::Answer(ticket, answer) => self.answers.push_back((node, ticket, answer)),
                Act::Ask(asked) => self.node(node).to_desk.push_back(asked),
                Act::Send(to, frame) => {
                    let from = self.node(node).core.own();
                    self.links.entry((node, to.node)).or_default().push_back((from, to, frame));
                }
                Act::Reborn(_) => {}
            }
        }
    }

    /// One thing that can happen does. False when nothing can.
    pub fn step(&mut self) -> bool {
        let count = self.nodes.len() as u64;
        let begin = self.rng.below(count) as u8;
        let first = self.rng.below(4);
        for offset in 0..count as u8 {
            let node = (begin + offset) % count as u8;
            if !self.node(node).is_up {
                continue;
            }
            for kind in 0..4 {
                let happens = match (first + kind) % 4 {
                    0 => self.desk_reads(node),
                    1 => self.desk_tells(node),
                    2 => self.core_hears(node),
                    _ => self.frame_arrives(node),
                };
                if happens {
                    return true;
                }
            }
        }
        false
    }

    fn desk_reads(&mut self, node: u8) -> bool {
        let Some(asked) = self.node(node).to_desk.pop_front() else { return false };
        let asked = ToDesk::decode(&asked.encode()).expect("what is said is understood");
        let before = self.engine.revision;
        let answer = self.engine.answer(&asked, node);
        if self.engine.revision > before
            && let DeskQuestion::Transact { edits, .. } = &asked.question
        {
            edits.iter().for_each(|edit| self.spread(edit.key()));
        }
        self.node(node).from_desk.push_back(answer);
        true
    }

    fn desk_tells(&mut self, node: u8) -> bool {
        let news = std::mem::take(&mut self.node(node).news);
        let mut ordered: Vec<(u64, String)> = news.into_iter().map(|(key, revision)| (revision, key)).collect();
        ordered.sort();
        let any = !ordered.is_empty();
        for (revision, key) in ordered {
            let known = self.engine.keys.get(&key).map(|(known, _)| known.clone());
            let said = known.map_or(FromDesk::Gone { key, revision }, FromDesk::Put);
            self.node(node).from_desk.push_back(said);
        }
        any
    }

    fn core_hears(&mut self, node: u8) -> bool {
        let now = self.now;
        let place = self.node(node);
        let Some(said) = place.from_desk.pop_front() else { return false };
        let said = FromDesk::decode(&said.encode()).expect("what is said is understood");
        place.core.desk_said(said, now);
        self.turn(node);
        true
    }

    fn frame_arrives(&mut self, node: u8) -> bool {
        let cut = &self.cut;
        let queues = self.links.iter_mut().filter(|((from, to), queue)| {
            let is_cut = cut.contains(&(*from, *to)) || cut.contains(&(*to, *from));
            *to == node && !queue.is_empty() && !is_cut
        });
        let mut queues: Vec<_> = queues.map(|(_, queue)| queue).collect();
        if queues.is_empty() {
            return false;
        }
        let which = self.rng.below(queues.len() as u64) as usize;
        let (from, to, frame) = queues[which].pop_front().expect("not empty");
        let now = self.now;
        let place = self.node(node);
        if place.core.own() == to {
            place.core.linked(from, &frame, (now, now * 1000));
            self.turn(node);
        }
        true
    }

    /// Who wants something, by key, in the order in which they came.
    pub fn queue(&self) -> Vec<(&String, u64)> {
        let queued = self.engine.keys.iter().filter(|(key, _)| key.starts_with("l/"));
        queued.map(|(key, (known, _))| (key, known.created)).collect()
    }

    /// Time goes on for everybody.
    pub fn pass(&mut self, ms: u64) {
        self.now += ms;
        for node in 0..self.nodes.len() as u8 {
            if self.node(node).is_up {
                self.turn(node);
            }
        }
    }

    /// Until nothing happens any more, and then for a while.
    pub fn settle(&mut self, ms: u64, mut between: impl FnMut(&mut World)) {
        let until = self.now + ms;
        while self.now < until {
            for _ in 0..100_000 {
                between(self);
                if !self.step() {
                    break;
                }
            }
            self.pass(250);
        }
    }
}
