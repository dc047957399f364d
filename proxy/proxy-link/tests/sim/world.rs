//! Two proxies, a pipe that delays, splits and cuts, and parties that never stop talking.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use abi::layout::word;
use abi::ring::{Completion, Submission};
use abi::{DcId, Endpoint, Epoch, Lane, NodeId};
use proxy_link::{Action, Cursor, Ends, Identity, InBuffer, LinkTimes, Peer, Phase, RingSpec, Role, WireChannel};

use crate::memory::{ARENA_BYTES, ENTRIES, Memory, SLOT_BYTES, SimChannel, State};
use crate::party::{Party, carried, is_request, take, value_of};

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
    fn moved_bytes(&mut self) -> usize {
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

    fn do_actions(&mut self) {
        while let Some(action) = self.peer.next_action() {
            match action {
                Action::OpenIn { channel, ends } => self.asked.push_back((channel, ends)),
                Action::Close { channel, reason, .. } => panic!("channel {channel:?} closed: {reason}"),
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
            let local = SimChannel(Rc::new(RefCell::new(Memory::new(Role::Server))));
            if self.peer.opened_in(channel, ends, Ok(local.clone())).is_ok() {
                self.channels.insert(channel, (local, ends));
                self.parties.entry(channel).or_default();
            }
        }
    }
}

pub struct World {
    pub chance: Chance,
    pub nodes: [Node; 2],
    pipes: [VecDeque<u8>; 2],
    connected: bool,
    pub now: Duration,
    pub goal: u64,
}

impl World {
    pub fn new(seed: u64, goal: u64) -> World {
        let mut world = World {
            chance: Chance(seed),
            nodes: [Node::new(1, 2), Node::new(2, 1)],
            pipes: [VecDeque::new(), VecDeque::new()],
            connected: false,
            now: Duration::ZERO,
            goal,
        };
        for node in 0..2 {
            for lane in 0..2 {
                world.open(node, lane);
            }
        }
        world
    }

    fn open(&mut self, node: usize, lane: u16) {
        let node = &mut self.nodes[node];
        let ring = (lane > 0).then_some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
        let ends = Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(lane), ring };
        let local = SimChannel(Rc::new(RefCell::new(Memory::new(Role::Client))));
        let number = u64::from(lane) + 1;
        let Ok(channel) = node.peer.open_out(number, ends, local.clone()) else { panic!("not admitted") };
        node.channels.insert(channel, (local, ends));
        node.parties.insert(channel, Party::default());
    }

    pub fn step(&mut self, weather: Weather) {
        self.now += Duration::from_millis(self.chance.below(4));
        if weather != Weather::Calm && self.connected && self.chance.one_in(60) {
            self.cut();
        }
        if weather == Weather::CutsAndKilledProxies && self.chance.one_in(150) {
            self.cut();
            // Ranges of open requests live in the two proxies: one of them must know them. Both lost is a test of its own.
            let victim = self.chance.below(2) as usize;
            if self.nodes[1 - victim].knows_all {
                self.nodes[victim].replace_proxy(self.now);
            }
        }
        if !self.connected && (weather == Weather::Calm || self.chance.one_in(4)) {
            self.nodes[0].peer.dialled(self.now);
            self.connected = true;
        }
        for node in 0..2 {
            self.parties_act(node);
            self.transmit(node);
            if self.chance.one_in(3) {
                self.deliver(node);
            }
            let node = &mut self.nodes[node];
            assert_eq!(node.peer.tick(self.now), Ok(()));
            node.do_actions();
            if self.chance.one_in(2) {
                node.answer_opens();
            }
        }
    }

    fn cut(&mut self) {
        self.connected = false;
        for node in &mut self.nodes {
            node.peer.cut();
            node.input.clear();
        }
        self.pipes.iter_mut().for_each(VecDeque::clear);
    }

    /// From the node's out buffer into the pipe, in pieces.
    fn transmit(&mut self, from: usize) {
        let node = &mut self.nodes[from];
        node.peer.fill(self.now);
        if !self.connected {
            return;
        }
        let pending = node.peer.outgoing().pending();
        let count = self.chance.moved_bytes().min(pending.len());
        self.pipes[from].extend(&pending[..count]);
        node.peer.sent(self.now, count);
    }

    /// From the pipe to the other node, in pieces. The accepting node learns by HELLO that there is a connection.
    fn deliver(&mut self, from: usize) {
        let node = &mut self.nodes[1 - from];
        let count = self.chance.moved_bytes().min(self.pipes[from].len());
        let bytes: Vec<u8> = self.pipes[from].drain(..count).collect();
        assert_eq!(node.input.append(&bytes), bytes.len(), "the buffer has room for what a window allows");
        if node.peer.phase() == Phase::Apart {
            let Ok(Some(whole)) = wire::frame_bytes(node.input.waiting()) else { return };
            let Some(first) = node.input.waiting().get(..whole) else { return };
            let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(first) else { panic!("HELLO comes first") };
            node.peer.accepted(self.now, &hello).expect("let in");
            node.input.consume(whole);
        }
        node.peer.receive(&mut node.input, self.now).expect("the peer is correct");
    }

    fn parties_act(&mut self, node: usize) {
        let channels: Vec<WireChannel> = self.nodes[node].channels.keys().copied().collect();
        for channel in channels {
            if !self.chance.one_in(2) {
                continue;
            }
            let node = &mut self.nodes[node];
            let (local, ends) = node.channels.get(&channel).expect("listed");
            let party = node.parties.get_mut(&channel).expect("has a party");
            let mut memory = local.0.borrow_mut();
            match (ends.ring, memory.role) {
                (None, _) => talk(&mut memory, party, &mut self.chance, self.goal),
                (Some(_), Role::Client) => request(&mut memory, party, &mut self.chance, self.goal),
                (Some(_), Role::Server) => serve(&mut memory, party, &mut self.chance),
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
                            && memory.mask_in == 0
                            && !party.awaits
                            && party.owes.is_none()
                            && memory.inbound.is_none_or(|m| m.word == memory.taken || memory.inbound_withdrawn)
                    }
                    (Some(_), Role::Client) => party.answered.len() as u64 == self.goal,
                    (Some(_), Role::Server) => party.working.is_empty(),
                }
            })
        }) && self.nodes.iter().map(|node| node.channels.len()).sum::<usize>() == 8
    }
}

/// Sends numbered messages, some timed and withdrawn, some requests; answers requests; notifies.
fn talk(memory: &mut Memory, party: &mut Party, chance: &mut Chance, goal: u64) {
    if memory.out.is_some() && memory.out_state != State::Pending && party.last_word != 0 {
        settle(memory, party);
    }
    if let Some(message) = take(memory) {
        let value = value_of(&message);
        party.received.push(value);
        match message.word & word::KIND_MASK {
            word::REQUEST => party.owes = Some(value),
            word::REPLY => party.awaits = false,
            _ => {}
        }
    }
    if memory.mask_in != 0 {
        let mask = std::mem::take(&mut memory.mask_in);
        (0..4).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| party.notifications[bit] += 1);
    }
    if party.last_word != 0 {
        if memory.out.is_some_and(|m| m.word & word::TIMED != 0) && chance.one_in(4) {
            memory.cancel = true;
        }
        return;
    }
    if party.next_value < goal && chance.one_in(5) {
        let bit = chance.below(4) as usize;
        memory.mask_out |= 1 << bit;
        party.notified[bit] += 1;
    }
    let kind = if party.owes.take().is_some() {
        word::REPLY
    } else if party.next_value == goal || party.awaits {
        return;
    } else {
        // Only the opener asks, as a client does: two that ask each other are a deadlock by definition.
        match (chance.below(3), memory.role) {
            (0, _) => word::SEND,
            (1, Role::Client) => word::REQUEST,
            _ => word::SEND | word::TIMED,
        }
    };
    let before = memory.out.map_or(0, |m| m.word);
    party.last_word = word::next(before, kind);
    let value = if kind == word::REPLY { u64::from(party.last_word) << 32 } else { party.next_value };
    let message = carried(party.last_word, value);
    party.awaits = is_request(&message) || party.awaits;
    memory.out = Some(message);
    (memory.out_state, memory.cancel) = (State::Pending, false);
}

fn settle(memory: &Memory, party: &mut Party) {
    let message = memory.out.expect("was sent");
    let is_reply = message.word & word::KIND_MASK == word::REPLY;
    match memory.out_state {
        State::Taken => party.delivered.push(value_of(&message)),
        State::Withdrawn => party.withdrawn += 1,
        State::Pending => return,
    }
    party.last_word = 0;
    if !is_reply {
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
        let Cursor { tail, .. } = memory.submission_cursor;
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
