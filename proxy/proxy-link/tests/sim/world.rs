//! Two proxies, what carries their bytes, and parties that never stop talking.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use abi::layout::word;
use abi::ring::{Completion, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId};
use proxy_link::{
    Action, Bodies, Ends, Identity, InBuffer, Indices, LinkTimes, LocalChannel, LocalRole, Peer, RingSpec, WireChannel,
};

use crate::memory::{ARENA_BYTES, ENTRIES, Memory, SLOT_BYTES, SimChannel, State};
use crate::party::{Party, begin_to_take, carried, is_timed, kind, reply_to, take, value_of, value_of_reply};
use crate::pieces::gathered;

/// splitmix64
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Mostly few bytes, sometimes all that fit a slot.
    fn data_bytes(&mut self) -> u32 {
        let most = if self.one_in(100) { SLOT_BYTES } else { 64 };
        self.below(u64::from(most) + 1) as u32
    }

    /// How much a pipe moves at once: cuts anywhere.
    pub fn moved_bytes(&mut self) -> usize {
        let most = if self.one_in(4) { 80_000 } else { 3000 };
        self.below(most) as usize
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// What may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weather {
    Calm,
    Cuts,
    CutsAndKilledProxies,
    /// The dialler dials again while its connection still carries bytes; links are cut off for long, or go silent one
    /// way.
    Storm,
}

impl Weather {
    pub fn is_storm(self) -> bool {
        self == Weather::Storm
    }
}

pub struct Node {
    pub id: NodeId,
    incarnation: u64,
    pub peer: Peer<SimChannel>,
    input: InBuffer,
    pub channels: BTreeMap<WireChannel, (SimChannel, Ends)>,
    pub parties: BTreeMap<WireChannel, Party>,
    /// What the broker was asked and has not answered yet.
    asked: VecDeque<(WireChannel, Ends)>,
    pub downs: u64,
    /// This life of the proxy has compared all channels with its peer.
    knows_all: bool,
    /// Whether a channel that the far side ends is no fault; and why those did that it ended.
    pub may_end: bool,
    pub ended: BTreeMap<WireChannel, IpcError>,
}

fn identity(id: u16) -> Identity {
    Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) }
}

fn times() -> LinkTimes {
    // Cuts must not make a node dead here; that has tests of its own.
    LinkTimes { down: Duration::from_secs(1_000_000), ..LinkTimes::default() }
}

impl Node {
    fn new(id: u16, far: u16) -> Node {
        Node {
            id: NodeId(id),
            incarnation: 1,
            peer: Peer::new(identity(id), Epoch(1), identity(far), times(), Duration::ZERO),
            input: InBuffer::new(),
            channels: BTreeMap::new(),
            parties: BTreeMap::new(),
            asked: VecDeque::new(),
            downs: 0,
            knows_all: true,
            may_end: false,
            ended: BTreeMap::new(),
        }
    }

    /// The proxy is killed and another one is handed the channels.
    fn replace_proxy(&mut self, now: Duration) {
        self.incarnation += 1;
        self.knows_all = false;
        let far = self.peer.identity().clone();
        let me = identity(self.id.0);
        self.peer = Peer::new(me, Epoch(self.incarnation), far, times(), now);
        // What the broker had been asked by the old one is never answered.
        self.asked.clear();
        for (channel, (local, ends)) in &self.channels {
            assert!(self.peer.resume(*channel, *ends, local.clone()).is_ok());
        }
    }

    /// Its connection is gone.
    pub fn cut(&mut self) {
        self.peer.cut();
        self.input.clear();
    }

    /// What is to be sent, wherever it lies.
    pub fn outgoing(&mut self, now: Duration, bodies: Bodies) -> Vec<u8> {
        let bytes = gathered(&mut self.peer, bodies, now);
        assert_eq!(bytes.len(), self.peer.pending_bytes());
        assert_eq!(self.peer.has_data_in_place(), bytes.len() > self.peer.outgoing().pending().len());
        bytes
    }

    pub fn forget_input(&mut self) {
        self.input.clear();
    }

    pub fn take_in(&mut self, bytes: &[u8]) {
        assert_eq!(self.input.append(bytes), bytes.len(), "the buffer has room for what a window allows");
    }

    pub fn hear(&mut self, now: Duration) {
        self.peer.receive(&mut self.input, now).expect("the peer is correct");
    }

    /// The first frame of a connection that the far side dialled; `false` while it is not all here.
    pub fn hear_hello(&mut self, now: Duration) -> bool {
        let Ok(Some(whole)) = wire::frame_bytes(self.input.waiting()) else { return false };
        let Some(first) = self.input.waiting().get(..whole) else { return false };
        let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(first) else { panic!("HELLO comes first") };
        self.peer.accepted(now, &hello).expect("let in");
        self.input.consume(whole);
        true
    }

    fn do_actions(&mut self) {
        while let Some(action) = self.peer.next_action() {
            match action {
                Action::OpenIn { channel, ends } => self.asked.push_back((channel, ends)),
                Action::Close { channel, reason, .. } => {
                    assert!(self.may_end, "channel {channel:?} closed: {reason}");
                    self.ended.insert(channel, reason);
                }
                Action::Up => self.knows_all = true,
                Action::Forget { .. } | Action::Suspect => {}
                Action::Down => self.downs += 1,
                // Brokers are not simulated.
                Action::Parcel(_) => {}
            }
        }
    }

    fn answer_opens(&mut self) {
        if let Some((channel, ends)) = self.asked.pop_front() {
            let local = SimChannel(Rc::new(RefCell::new(Memory::new(LocalRole::Server))));
            if self.peer.opened_in(channel, ends, Ok(local.clone())).is_ok() {
                self.channels.insert(channel, (local, ends));
                self.parties.entry(channel).or_default();
            }
        }
    }
}

/// What carries the bytes between the two.
pub trait Link {
    fn new(seed: u64) -> Self;

    /// What the weather does to it.
    fn suffer(&mut self, stage: &mut Stage, weather: Weather);

    /// Time has passed: the connection is made, if there is none, or is found to be gone.
    fn turn(&mut self, stage: &mut Stage, weather: Weather);

    /// From the node's out buffer, in pieces.
    fn transmit(&mut self, stage: &mut Stage, from: usize);

    /// To the other node, in pieces.
    fn deliver(&mut self, stage: &mut Stage, from: usize, weather: Weather);

    /// The proxy of a node goes, and with it what it held of the connection.
    fn kill(&mut self, stage: &mut Stage, victim: usize);
}

/// Who is at the ends, and when it is.
pub struct Stage {
    pub chance: Chance,
    pub nodes: [Node; 2],
    pub now: Duration,
    pub goal: u64,
}

pub struct World<L> {
    pub stage: Stage,
    link: L,
}

impl<L: Link> World<L> {
    pub fn new(seed: u64, goal: u64) -> World<L> {
        let nodes = [Node::new(1, 2), Node::new(2, 1)];
        let stage = Stage { chance: Chance(seed), nodes, now: Duration::ZERO, goal };
        let mut world = World { stage, link: L::new(seed) };
        for node in 0..2 {
            for lane in 0..2 {
                world.stage.open(node, lane);
            }
        }
        world
    }

    pub fn step(&mut self, weather: Weather) {
        let World { stage, link } = self;
        stage.now += Duration::from_millis(stage.chance.below(4));
        link.suffer(stage, weather);
        if weather == Weather::CutsAndKilledProxies && stage.chance.one_in(150) {
            let victim = stage.chance.below(2) as usize;
            if stage.can_lose_proxy(victim) {
                self.kill_proxy(victim);
            }
        }
        let World { stage, link } = self;
        link.turn(stage, weather);
        for node in 0..2 {
            stage.parties_act(node);
            link.transmit(stage, node);
            link.deliver(stage, node, weather);
            let node = &mut stage.nodes[node];
            assert_eq!(node.peer.tick(stage.now), Ok(()));
            node.do_actions();
            if stage.chance.one_in(2) {
                node.answer_opens();
            }
        }
    }

    pub fn kill_proxy(&mut self, victim: usize) {
        self.link.kill(&mut self.stage, victim);
        let now = self.stage.now;
        self.stage.nodes[victim].replace_proxy(now);
    }
}

impl Stage {
    fn open(&mut self, node: usize, lane: u16) {
        let node = &mut self.nodes[node];
        let ring = (lane > 0).then_some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
        let ends =
            Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(lane), ring, incarnation: None };
        let local = SimChannel(Rc::new(RefCell::new(Memory::new(LocalRole::Client))));
        let number = u64::from(lane) + 1;
        let Ok(channel) = node.peer.open_out(number, ends, local.clone()) else { panic!("not admitted") };
        node.channels.insert(channel, (local, ends));
        node.parties.insert(channel, Party::default());
    }

    /// Ranges of open requests live in the two proxies: one of them must know them. Both lost is a test of its own.
    pub fn can_lose_proxy(&self, victim: usize) -> bool {
        self.nodes[1 - victim].knows_all
    }

    /// Bytes from the far node: data that is due by whoever read it, what follows as those that were decrypted
    /// elsewhere, or by way of the buffer.
    pub fn hand_over(&mut self, to: usize, bytes: &[u8]) {
        let node = &mut self.nodes[to];
        let mut bytes = bytes;
        if self.chance.one_in(2) && node.input.waiting().is_empty() {
            let count = node.peer.due().map_or(0, |due| {
                let count = bytes.len().min(due.bytes as usize);
                due.local.copy_in(due.at, &bytes[..count]).expect("inside");
                count
            });
            node.peer.data_came(count as u32, self.now);
            bytes = &bytes[count..];
            node.hear(self.now);
        }
        if self.chance.one_in(2) {
            let taken = node.peer.receive_from(bytes, &mut node.input, self.now).expect("the peer is correct");
            assert_eq!(taken, bytes.len(), "the buffer has room for what a window allows");
            return;
        }
        node.take_in(bytes);
        node.hear(self.now);
    }

    fn parties_act(&mut self, node: usize) {
        let channels: Vec<WireChannel> = self.nodes[node].channels.keys().copied().collect();
        for channel in channels {
            if !self.chance.one_in(2) {
                continue;
            }
            let node = &mut self.nodes[node];
            let (local, ends) = node.channels.get(&channel).expect("listed");
            let Some(party) = node.parties.get_mut(&channel) else { continue };
            let mut memory = local.0.borrow_mut();
            match (ends.ring, memory.role) {
                (None, _) => talk(&mut memory, party, &mut self.chance, self.goal),
                (Some(_), LocalRole::Client) => request(&mut memory, party, &mut self.chance, self.goal),
                (Some(_), LocalRole::Server) => serve(&mut memory, party, &mut self.chance),
            }
            drop(memory);
            node.peer.active(channel);
        }
    }

    pub fn is_done(&self) -> bool {
        self.nodes.iter().all(|node| {
            node.channels.iter().all(|(channel, (local, ends))| {
                let (party, memory) = (&node.parties[channel], local.0.borrow());
                match (ends.ring, memory.role) {
                    (None, _) => {
                        party.next_value == self.goal
                            && party.last_word == 0
                            && memory.out_state != State::Pending
                            && memory.mask_out == 0
                            && memory.carried.1 == 0
                            && memory.mask_in == 0
                            && memory.awaits == 0
                            && party.owes.is_none()
                            && memory
                                .inbound
                                .as_ref()
                                .is_none_or(|m| m.word == memory.taken || memory.inbound_withdrawn)
                    }
                    (Some(_), LocalRole::Client) => party.answered.len() as u64 == self.goal,
                    (Some(_), LocalRole::Server) => party.working.is_empty(),
                }
            })
        }) && self.nodes.iter().map(|node| node.channels.len()).sum::<usize>() == 8
    }
}

/// Sends numbered messages, some timed and withdrawn, some requests, some of them given up after they were taken;
/// answers requests, also too late; notifies.
fn talk(memory: &mut Memory, party: &mut Party, chance: &mut Chance, goal: u64) {
    if memory.out.is_some() && memory.out_state != State::Pending && party.last_word != 0 {
        settle(memory, party);
    }
    if chance.one_in(2) {
        begin_to_take(memory);
    } else if let Some(message) = take(memory) {
        let value = value_of(&message);
        party.received.push(value);
        match kind(message.word) {
            word::REQUEST => party.owes = Some(message.word),
            word::REPLY => memory.awaits = 0,
            _ => {}
        }
    }
    if memory.mask_in != 0 {
        let mask = std::mem::take(&mut memory.mask_in);
        (0..4).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| party.notifications[bit] += 1);
    }
    if party.last_word != 0 {
        if is_timed(party.last_word) && chance.one_in(4) {
            memory.cancel = true;
        }
        return;
    }
    // Who was seen to be taken is not waited for for ever; the far side is told where nothing else tells it.
    if is_timed(memory.awaits) && chance.one_in(4) {
        memory.awaits = 0;
        memory.cancel = true;
    }
    if party.next_value < goal && chance.one_in(5) {
        let bit = chance.below(4) as usize;
        memory.mask_out |= 1 << bit;
        party.notified[bit] += 1;
    }
    let message = if let Some(request) = party.owes {
        if chance.one_in(2) {
            return;
        }
        party.owes = None;
        if memory.far_awaits != request {
            return;
        }
        let word = reply_to(request);
        carried(word, value_of_reply(word))
    } else if party.next_value == goal || memory.awaits != 0 {
        return;
    } else {
        // Only the opener asks, as a client does: two that ask each other are a deadlock by definition.
        let flags = match (chance.below(4), memory.role) {
            (0, _) => word::SEND,
            (1, LocalRole::Client) => word::REQUEST,
            (2, LocalRole::Client) => word::REQUEST | word::TIMED,
            _ => word::SEND | word::TIMED,
        };
        party.counted = word::next(party.counted, flags);
        carried(party.counted, party.next_value)
    };
    if kind(message.word) == word::REQUEST {
        memory.awaits = message.word;
    }
    party.last_word = message.word;
    memory.out = Some(message);
    (memory.out_state, memory.cancel) = (State::Pending, false);
}

fn settle(memory: &mut Memory, party: &mut Party) {
    let message = memory.out.clone().expect("was sent");
    match memory.out_state {
        State::Taken => party.delivered.push(value_of(&message)),
        // Its caller had given up.
        State::Withdrawn if kind(message.word) == word::REPLY => {}
        State::Withdrawn => {
            party.withdrawn += 1;
            memory.awaits = 0;
        }
        State::Pending => return,
    }
    party.last_word = 0;
    if kind(message.word) != word::REPLY {
        party.next_value += 1;
    }
}

/// Keeps requests under way, each with data of its own in a slot of the arena of its own.
fn request(memory: &mut Memory, party: &mut Party, chance: &mut Chance, goal: u64) {
    while memory.completion_cursor.head != memory.completion_cursor.tail && !chance.one_in(3) {
        let completion = memory.completions[&(memory.completion_cursor.head % ENTRIES)];
        memory.completion_cursor.head += 1;
        let value = party.under_way.remove(&completion.tag).expect("answered once");
        assert_eq!(completion.sequence, value);
        let offset = (completion.tag * SLOT_BYTES) as usize;
        let data = &memory.arena[offset..offset + completion.in_bytes as usize];
        assert!(data.iter().all(|byte| *byte == !(value as u8)), "the answer's data");
        party.answered.push(value);
    }
    while party.submitted < goal && !chance.one_in(3) {
        let Some(tag) = (0..ENTRIES).find(|tag| !party.under_way.contains_key(tag)) else { return };
        let Indices { tail, .. } = memory.submission_cursor;
        let value = party.submitted;
        let out_bytes = chance.data_bytes();
        let offset = tag * SLOT_BYTES;
        memory.arena[offset as usize..(offset + out_bytes) as usize].fill(value as u8);
        let entry = Submission {
            tag,
            sequence: value,
            arena_offset: offset,
            out_bytes,
            in_capacity: SLOT_BYTES,
            ..Submission::default()
        };
        memory.submissions.insert(tail % ENTRIES, entry);
        memory.submission_cursor.tail += 1;
        party.under_way.insert(tag, value);
        party.submitted += 1;
    }
}

/// Takes requests in order, answers in any order.
fn serve(memory: &mut Memory, party: &mut Party, chance: &mut Chance) {
    while memory.submission_cursor.head != memory.submission_cursor.tail && !chance.one_in(3) {
        let entry = memory.submissions[&(memory.submission_cursor.head % ENTRIES)];
        memory.submission_cursor.head += 1;
        let from = entry.arena_offset as usize;
        let data = &memory.arena[from..from + entry.out_bytes as usize];
        assert!(data.iter().all(|byte| *byte == entry.sequence as u8), "the request's data");
        party.served.push(entry.sequence);
        party.working.push_back(entry);
    }
    while !party.working.is_empty() && !chance.one_in(3) {
        let index = chance.below(party.working.len() as u64) as usize;
        let entry = party.working.remove(index).expect("in range");
        let in_bytes = chance.data_bytes();
        let from = entry.arena_offset as usize;
        memory.arena[from..from + in_bytes as usize].fill(!(entry.sequence as u8));
        let tail = memory.completion_cursor.tail;
        let completion = Completion { tag: entry.tag, sequence: entry.sequence, in_bytes, ..Completion::default() };
        memory.completions.insert(tail % ENTRIES, completion);
        memory.completion_cursor.tail += 1;
    }
}
