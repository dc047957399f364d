//! Primaries and backups as they are, in a world that a seed decides: links that delay and are cut, servers that are
//! killed, nodes that stand still, lose power or are lost for good, an engine that is away.
//!
//! Clients of each node read all blocks, and write those that are theirs, some at a time, each with rising numbers: so
//! what a read may answer is known from when it began and ended. In the end all is healed, and all copies are equal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use histories::rng::{Rng, seeds};
use replica_core::{
    Backup, BackupAct, BlockRange, CopyOperation, Decided, DiskReply, DiskRequest, Kept, Layout, OperationTicket,
    Primary, PrimaryAct, Replica, ReplicaAnswer, ReplicaMessage, ReplicaRecord, Verification, record,
};

/// A number for each block.
type Data = Vec<u64>;

const LAYOUT: Layout = Layout { blocks: 24, extent_blocks: 4, hot_extents: 3 };
const SET: u64 = 77;
/// Of what happens by chance.
const TROUBLE_MS: u64 = 20_000;
/// Until all is as it should be after that.
const HEAL_MS: u64 = 20_000;
/// A client asks again.
const CLIENT_PATIENCE_MS: u64 = 400;
/// When a verification was asked for that must find what rotted.
const ROTTEN_S: u64 = 1;
/// From the loss of a node until the cluster says so.
const VERDICT_MS: u64 = 400;

/// What can go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Power {
    /// Nothing is lost but what a process knew; one machine at a time may lose power, when all copies are current.
    OneAtATime,
    /// Any, also all at once: only what was flushed is promised.
    Any,
}

#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    version: u64,
    value: u64,
}

/// A copy: what readers see, and what survives loss of power.
#[derive(Clone, Default)]
struct Disk {
    seen: BTreeMap<u64, Cell>,
    durable: BTreeMap<u64, Cell>,
    kept: Kept,
    writes: u64,
}

impl Disk {
    fn value(&self, block: u64) -> u64 {
        self.seen.get(&block).map_or(0, |cell| cell.value)
    }

    fn values(&self, range: BlockRange) -> Data {
        (range.first..range.end()).map(|block| self.value(block)).collect()
    }

    fn write(&mut self, range: BlockRange, data: &Data) {
        assert_eq!(data.len(), range.count as usize);
        self.writes += 1;
        for (block, value) in (range.first..).zip(data) {
            self.seen.insert(block, Cell { version: self.writes, value: *value });
        }
    }

    fn make_durable(&mut self, what: &BTreeMap<u64, Cell>) {
        for (block, cell) in what {
            let durable = self.durable.entry(*block).or_default();
            if cell.version > durable.version {
                *durable = *cell;
            }
        }
    }

    fn lose_power(&mut self, rng: &mut Rng) {
        // Any part of what was not flushed may be there.
        let reached: BTreeMap<u64, Cell> =
            self.seen.iter().filter(|_| rng.one_in(2)).map(|(block, cell)| (*block, *cell)).collect();
        self.make_durable(&reached);
        self.seen = self.durable.clone();
    }
}

enum Underway {
    Keep(Kept),
    Write(BlockRange, Data),
    Flush(BTreeMap<u64, Cell>),
    Sum(BlockRange),
}

struct Server {
    /// Which of its lives.
    life: u64,
    backup: Backup<Data>,
    primary: Option<Primary<Data>>,
    operations: Vec<(u64, OperationTicket, Underway)>,
}

#[derive(Default)]
struct Node {
    disk: Disk,
    boot: u64,
    is_on: bool,
    is_lost: bool,
    /// Nothing of it runs until then.
    stands_until_ms: u64,
    server: Option<Server>,
    starts_at_ms: u64,
    gone_since_ms: Option<u64>,
    /// Its medium takes nothing more until then.
    is_full_until_ms: u64,
}

enum Packet {
    Down(u32, ReplicaMessage<Data>),
    Up(u32, ReplicaAnswer),
}

/// Between the primary of an epoch and a member.
struct Link {
    lives: (u64, u64),
    packets: VecDeque<(u64, Packet)>,
    /// It broke, and the ends hear of it then.
    broken_until_ms: Option<u64>,
    /// The member had no room: nobody makes a link to it for a while after this one.
    rests: bool,
}

#[derive(Clone, Debug)]
enum Asked {
    Read(BlockRange),
    /// The last: it is durable when it is answered.
    Write(BlockRange, Data, bool),
    Flush,
    Hold,
}

impl Asked {
    fn makes_durable(&self) -> bool {
        matches!(self, Asked::Flush | Asked::Write(_, _, true))
    }
}

enum Answer {
    Read(Data),
    Done,
    Refused,
    Held(u64),
}

struct Pending {
    client: usize,
    asked: Asked,
    begun_ms: u64,
    /// What a read must at least answer.
    least: Vec<u64>,
    /// What was acknowledged when a flush, or a durable write, began.
    acknowledged: Vec<u64>,
    /// Who has it, and since when.
    at: Option<(usize, u64, u64)>,
}

struct World {
    rng: Rng,
    now_ms: u64,
    power: Power,
    nodes: Vec<Node>,
    engine: ReplicaRecord,
    engine_back_ms: u64,
    /// Due, who asks, in which life, what it knows, what it wants.
    proposals: Vec<(u64, usize, u64, ReplicaRecord, ReplicaRecord)>,
    /// Primary's node and epoch, member.
    links: BTreeMap<(usize, u32, usize), Link>,
    /// Of members without room: no link until then.
    resting: BTreeMap<usize, u64>,
    cut: BTreeSet<(usize, usize)>,
    requests: BTreeMap<u64, Pending>,
    next_request: u64,
    next_life: u64,
    /// Of each block: the newest that was asked to be written, acknowledged, read, flushed.
    written: Vec<u64>,
    acknowledged: Vec<u64>,
    read: Vec<u64>,
    flushed: Vec<u64>,
    answers: u64,
    refused: u64,
    changes: u64,
    /// By whom a primary was told that nobody else is one: its node, and until when.
    held: Vec<(usize, u64)>,
    /// Who should be primary instead.
    better: Option<usize>,
    /// No client asks anything new until then.
    asleep_until_ms: u64,
    is_calm: bool,
    /// Blocks that may differ.
    rotten: u64,
    verified: u64,
    wrong: Vec<String>,
    trace: Vec<String>,
}

impl World {
    fn new(seed: u64, nodes: usize, power: Power) -> World {
        let mut rng = Rng::new(seed);
        let others: Vec<Replica> = (1..nodes as u8).map(Replica).collect();
        let engine = ReplicaRecord::new(SET, Replica(0), &others);
        let mut world = World {
            now_ms: 0,
            power,
            nodes: (0..nodes).map(|_| Node { is_on: true, boot: rng.draw(), ..Node::default() }).collect(),
            engine,
            engine_back_ms: 0,
            proposals: Vec::new(),
            links: BTreeMap::new(),
            resting: BTreeMap::new(),
            cut: BTreeSet::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            next_life: 0,
            written: vec![0; LAYOUT.blocks as usize],
            acknowledged: vec![0; LAYOUT.blocks as usize],
            read: vec![0; LAYOUT.blocks as usize],
            flushed: vec![0; LAYOUT.blocks as usize],
            answers: 0,
            refused: 0,
            changes: 0,
            held: Vec::new(),
            better: None,
            asleep_until_ms: 0,
            is_calm: false,
            rotten: 0,
            verified: 0,
            wrong: Vec::new(),
            trace: Vec::new(),
            rng,
        };
        let first = &mut world.nodes[0];
        first.disk.kept.mark = Some(record::CopyMark { set: SET, generation: 1, whole: true, boot: first.boot });
        world
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        if std::env::var_os("TRACE").is_some() {
            self.trace.push(format!("{:>6} {}", self.now_ms, what()));
        }
    }

    fn runs(&self, node: usize) -> bool {
        let it = &self.nodes[node];
        it.is_on && it.stands_until_ms <= self.now_ms
    }

    fn hears(&self, one: usize, other: usize) -> bool {
        one == other || !self.cut.contains(&(one.min(other), one.max(other)))
    }

    // ---- one millisecond

    fn step(&mut self) {
        self.now_ms += 1;
        for node in 0..self.nodes.len() {
            if self.runs(node) {
                self.run_node(node);
            }
        }
        self.carry_links();
        self.decide();
        self.tell_primary();
        self.place();
        self.clients();
        if !self.is_calm {
            self.trouble();
        }
    }

    fn run_node(&mut self, node: usize) {
        if self.nodes[node].server.is_none() && self.nodes[node].starts_at_ms <= self.now_ms {
            self.next_life += 1;
            let it = &mut self.nodes[node];
            let backup = Backup::begin(LAYOUT, SET, it.boot, it.disk.kept.clone(), self.now_ms);
            it.server = Some(Server { life: self.next_life, backup, primary: None, operations: Vec::new() });
        }
        let now_ms = self.now_ms;
        let it = &mut self.nodes[node];
        let Some(server) = &mut it.server else { return };
        let mut todo = Vec::new();
        while let Some(at) = server.operations.iter().position(|operation| operation.0 <= now_ms) {
            let (_, ticket, what) = server.operations.remove(at);
            match what {
                Underway::Keep(kept) => it.disk.kept = kept,
                Underway::Write(range, mut data) if it.is_full_until_ms > now_ms => {
                    let count = self.rng.below(u64::from(range.count) + 1) as u32;
                    data.truncate(count as usize);
                    it.disk.write(BlockRange { first: range.first, count }, &data);
                    // All of it was there already, perhaps.
                    if count < range.count {
                        todo.extend(server.backup.refused(ticket));
                        continue;
                    }
                }
                Underway::Write(range, data) => it.disk.write(range, &data),
                Underway::Flush(seen) => it.disk.make_durable(&seen),
                Underway::Sum(range) => {
                    let sums = it.disk.values(range).iter().map(|value| *value as u32).collect();
                    todo.extend(server.backup.summed(ticket, sums));
                    continue;
                }
            }
            todo.extend(server.backup.done(ticket));
        }
        let primary = server.primary.as_mut().filter(|primary| !primary.is_quiet(now_ms));
        let acts = primary.map(|primary| primary.tick(now_ms)).unwrap_or_default();
        self.do_all(node, todo);
        self.act_all(node, acts);
        self.own_link(node);
    }

    /// A primary speaks with the copy beside it without a network.
    fn own_link(&mut self, node: usize) {
        let Some(server) = &self.nodes[node].server else { return };
        let Some(epoch) = server.primary.as_ref().map(Primary::epoch) else { return };
        let life = server.life;
        self.connect(node, epoch, node, (life, life));
    }

    fn connect(&mut self, primary: usize, epoch: u32, member: usize, lives: (u64, u64)) {
        if self.links.get(&(primary, epoch, member)).is_some_and(|link| link.lives == lives) {
            return;
        }
        let link = Link { lives, packets: VecDeque::new(), broken_until_ms: None, rests: false };
        self.links.insert((primary, epoch, member), link);
        let now_ms = self.now_ms;
        let acts = self.with_primary(primary, |primary| primary.link_up(Replica(member as u8), now_ms));
        self.act_all(primary, acts);
    }

    fn with_primary(
        &mut self,
        node: usize,
        what: impl FnOnce(&mut Primary<Data>) -> Vec<PrimaryAct<Data>>,
    ) -> Vec<PrimaryAct<Data>> {
        let primary = self.nodes[node].server.as_mut().and_then(|server| server.primary.as_mut());
        primary.map(what).unwrap_or_default()
    }

    fn do_all(&mut self, node: usize, todo: Vec<BackupAct<Data>>) {
        for one in todo {
            match one {
                BackupAct::Do(ticket, operation) => {
                    let due = self.now_ms + self.rng.below(if self.rng.clone().one_in(20) { 60 } else { 5 });
                    let disk = &self.nodes[node].disk;
                    let what = match operation {
                        CopyOperation::Keep(kept) => Underway::Keep(kept),
                        CopyOperation::Write { range, data } => Underway::Write(range, data),
                        CopyOperation::Flush => Underway::Flush(disk.seen.clone()),
                        CopyOperation::Sum(range) => Underway::Sum(range),
                    };
                    if let Some(server) = &mut self.nodes[node].server {
                        server.operations.push((due, ticket, what));
                    }
                }
                BackupAct::Answer(epoch, mut answer) => {
                    if let ReplicaAnswer::Welcome(state) = &mut answer {
                        state.is_blank = self.nodes[node].disk.seen.values().all(|cell| cell.value == 0);
                    }
                    let delay = self.delay();
                    let due = self.now_ms + delay;
                    let links = self.links.iter_mut().filter(|link| link.0.1 == epoch && link.0.2 == node);
                    for (_, link) in links {
                        push(link, due, Packet::Up(epoch, answer.clone()));
                    }
                }
            }
        }
    }

    fn delay(&mut self) -> u64 {
        if self.rng.one_in(30) { self.rng.below(80) } else { self.rng.below(3) }
    }

    fn act_all(&mut self, node: usize, acts: Vec<PrimaryAct<Data>>) {
        for act in acts {
            let Some(server) = &self.nodes[node].server else { return };
            let life = server.life;
            let Some((epoch, known)) = server.primary.as_ref().map(|it| (it.epoch(), it.record().clone())) else {
                return;
            };
            match act {
                PrimaryAct::Send(member, message) => self.send(node, epoch, member, message),
                PrimaryAct::Copy { to, seq, range } => {
                    let data = self.nodes[node].disk.values(range);
                    self.send(node, epoch, to, ReplicaMessage::Copy { seq, range, data });
                }
                PrimaryAct::Read { id, range } => {
                    let values = self.nodes[node].disk.values(range);
                    self.answered(id, node, Answer::Read(values));
                }
                PrimaryAct::Reply { id, reply: DiskReply::Written | DiskReply::Flushed } => {
                    self.answered(id, node, Answer::Done)
                }
                PrimaryAct::Reply { id, reply: DiskReply::Refused } => {
                    self.refused += 1;
                    self.answered(id, node, Answer::Refused);
                }
                PrimaryAct::Reply { id, reply: DiskReply::Held { for_ms } } => {
                    self.answered(id, node, Answer::Held(for_ms))
                }
                PrimaryAct::Propose(next) => {
                    let due = self.now_ms + 1 + self.rng.below(20);
                    self.proposals.push((due, node, life, known, next));
                }
                PrimaryAct::Over { epoch } => {
                    self.say(|| format!("n{node} is over: {epoch}"));
                    self.end_primary(node);
                }
                PrimaryAct::Better(member) => {
                    self.say(|| format!("n{node}: better {member:?}"));
                    self.better = Some(usize::from(member.0));
                    self.end_primary(node);
                }
            }
        }
    }

    fn end_primary(&mut self, node: usize) {
        if let Some(server) = &mut self.nodes[node].server {
            server.primary = None;
        }
        self.links.retain(|link, _| link.0 != node);
    }

    fn send(&mut self, node: usize, epoch: u32, member: Replica, message: ReplicaMessage<Data>) {
        let due = self.now_ms + if usize::from(member.0) == node { 0 } else { self.delay() };
        if let Some(link) = self.links.get_mut(&(node, epoch, usize::from(member.0))) {
            push(link, due, Packet::Down(epoch, message));
        }
    }

    // ---- links

    fn carry_links(&mut self) {
        let keys: Vec<_> = self.links.keys().copied().collect();
        for key @ (primary, epoch, member) in keys {
            let life = |node: usize| self.nodes[node].server.as_ref().map(|server| server.life);
            let lives = (life(primary), life(member));
            let is_whole = self.hears(primary, member) && self.nodes[primary].is_on && self.nodes[member].is_on;
            let Some(link) = self.links.get_mut(&key) else { continue };
            if lives.0 != Some(link.lives.0) {
                self.links.remove(&key);
                continue;
            }
            if link.broken_until_ms.is_none() && (!is_whole || lives.1 != Some(link.lives.1)) {
                link.packets.clear();
                link.broken_until_ms = Some(self.now_ms + self.rng.below(100));
            }
            let rests = link.rests;
            if link.broken_until_ms.is_some_and(|until_ms| until_ms <= self.now_ms) {
                if !self.runs(primary) {
                    continue;
                }
                if rests {
                    self.resting.insert(member, self.now_ms + 1000);
                }
                self.links.remove(&key);
                let now_ms = self.now_ms;
                let acts = self.with_primary(primary, |it| it.link_down(Replica(member as u8), now_ms));
                self.act_all(primary, acts);
                continue;
            }
            loop {
                let (up, down) = (self.runs(primary), self.runs(member));
                let now_ms = self.now_ms;
                let Some(link) = self.links.get_mut(&key).filter(|link| link.broken_until_ms.is_none()) else { break };
                let is_due = |packet: &(u64, Packet)| {
                    packet.0 <= now_ms && if matches!(packet.1, Packet::Up(..)) { up } else { down }
                };
                let Some(at) = link.packets.iter().position(is_due) else { break };
                let Some((_, packet)) = link.packets.remove(at) else { break };
                match packet {
                    Packet::Down(epoch, message) => {
                        let Some(server) = &mut self.nodes[member].server else { break };
                        let todo = server.backup.hear(epoch, message, now_ms);
                        self.do_all(member, todo);
                    }
                    Packet::Up(of, ReplicaAnswer::NoRoom { .. }) if of == epoch && member != primary => {
                        let link = self.links.get_mut(&key).into_iter();
                        link.for_each(|link| {
                            link.packets.clear();
                            (link.broken_until_ms, link.rests) = (Some(now_ms), true);
                        });
                    }
                    Packet::Up(of, answer) if of == epoch => {
                        if matches!(&answer, ReplicaAnswer::Welcome(state) if state.is_blank) {
                            let disk = &self.nodes[primary].disk;
                            let has = |block: &u64| disk.value(*block) != 0;
                            let data_from = |from| (from..LAYOUT.blocks).find(has).map(|block| (block, block + 1));
                            let data = LAYOUT.extents_with_data(data_from);
                            self.with_primary(primary, |it| {
                                it.is_blank(Replica(member as u8), data);
                                Vec::new()
                            });
                        }
                        let acts = self.with_primary(primary, |it| it.answered(Replica(member as u8), answer, now_ms));
                        self.act_all(primary, acts);
                    }
                    Packet::Up(..) => {}
                }
            }
        }
        // New ones.
        for primary in 0..self.nodes.len() {
            let Some(server) = self.nodes[primary].server.as_ref().filter(|_| self.runs(primary)) else { continue };
            let Some(epoch) = server.primary.as_ref().map(Primary::epoch) else { continue };
            let life = server.life;
            let known = server.primary.as_ref().map(|it| it.record().members.clone()).unwrap_or_default();
            let is_member = |member: &usize| known.contains_key(&Replica(*member as u8));
            self.links.retain(|link, _| link.0 != primary || is_member(&link.2));
            for member in (0..self.nodes.len()).filter(|member| *member != primary && is_member(member)) {
                let rests = self.resting.get(&member).is_some_and(|until_ms| *until_ms > self.now_ms);
                let is_there = rests || self.links.contains_key(&(primary, epoch, member));
                let other = self.nodes[member].server.as_ref().filter(|_| self.runs(member)).map(|server| server.life);
                if let (false, Some(other), true) = (is_there, other, self.hears(primary, member))
                    && self.rng.one_in(20)
                {
                    self.connect(primary, epoch, member, (life, other));
                }
            }
        }
    }

    // ---- engine and placer

    fn decide(&mut self) {
        if self.engine_back_ms > self.now_ms {
            return;
        }
        while let Some(at) = self.proposals.iter().position(|proposal| proposal.0 <= self.now_ms) {
            let (_, node, life, known, next) = self.proposals.remove(at);
            let decided = if known == self.engine {
                self.say(|| format!("n{node}: {next:?}"));
                let found = next.verification.iter().filter_map(|it| it.found.as_ref());
                let differs: u64 = found.flat_map(|found| found.different.values()).sum();
                if differs > self.rotten {
                    self.wrong.push(format!("copies differ in {differs} blocks"));
                }
                self.verified += u64::from(next.verification != self.engine.verification);
                self.engine = next;
                self.changes += 1;
                // Between what the engine has and what members know is where it hurts.
                if !self.is_calm && self.rng.one_in(8) {
                    self.kill(node);
                }
                Decided::Accepted
            } else {
                Decided::Conflict(self.engine.clone())
            };
            // Who asked may be gone, cut off from the engine's answer, or standing still: then it asks again, here at
            // once.
            let is_there = self.nodes[node].server.as_ref().is_some_and(|server| server.life == life);
            if !is_there {
                continue;
            }
            let now_ms = self.now_ms;
            let acts = self.with_primary(node, |it| it.decided(decided, now_ms));
            self.act_all(node, acts);
        }
    }

    fn place(&mut self) {
        for node in &mut self.nodes {
            let is_there = node.is_on && node.stands_until_ms <= self.now_ms + 100;
            node.gone_since_ms = if is_there { None } else { node.gone_since_ms.or(Some(self.now_ms)) };
        }
        if self.engine_back_ms > self.now_ms {
            return;
        }
        let now_ms = self.now_ms;
        let is_gone =
            |node: &Node| node.is_lost || node.gone_since_ms.is_some_and(|since| now_ms >= since + VERDICT_MS);
        let gone: Vec<usize> = (0..self.nodes.len()).filter(|node| is_gone(&self.nodes[*node])).collect();
        let primary = usize::from(self.engine.primary.0);
        for member in &gone {
            if *member != primary {
                // Channels to a node that is sentenced end.
                self.links.retain(|link, _| link.2 != *member || link.0 == *member);
                let acts = self.with_primary(primary, |it| it.lost(Replica(*member as u8), now_ms));
                self.act_all(primary, acts);
            }
        }
        let epoch = self.engine.epoch;
        let serves = self.nodes[primary]
            .server
            .as_ref()
            .is_some_and(|server| server.primary.as_ref().is_some_and(|primary| primary.epoch() == epoch));
        let is_cut_off = (0..self.nodes.len()).all(|other| other == primary || !self.hears(primary, other));
        let by_plan = !self.is_calm && self.rng.one_in(4000);
        let is_first = epoch == 1 && !serves;
        if serves
            && self.better.is_none()
            && !gone.contains(&primary)
            && !by_plan
            && !(is_cut_off && self.rng.one_in(500))
        {
            return;
        }
        let may = |member: &Replica| {
            let node = usize::from(member.0);
            !gone.contains(&node) && self.nodes[node].is_on && self.nodes[node].server.is_some()
        };
        let candidates: Vec<Replica> = self.engine.current().filter(may).collect();
        if candidates.is_empty() || !self.rng.one_in(20) {
            return;
        }
        let wanted = self.better.map(|node| Replica(node as u8)).filter(|better| candidates.contains(better));
        let chosen = if is_first { Replica(0) } else { wanted.unwrap_or_else(|| *self.rng.pick(&candidates)) };
        self.better = None;
        let Some(next) = self.engine.succeeded_by(chosen) else { return };
        self.say(|| format!("placer: {next:?}"));
        self.engine = next.clone();
        self.changes += 1;
        let node = usize::from(chosen.0);
        self.links.retain(|link, _| link.0 != node);
        let mut todo = Vec::new();
        if let Some(server) = &mut self.nodes[node].server {
            // The copy beside it hears of the epoch first: nobody of before is promised anything after that.
            todo = server.backup.hear(next.epoch, ReplicaMessage::Hello, now_ms);
            let until_ms = server.backup.promised_until_ms();
            server.primary = Some(Primary::begin(LAYOUT, next, until_ms));
        }
        self.do_all(node, todo);
        self.own_link(node);
    }

    // ---- clients

    fn clients(&mut self) {
        let now_ms = self.now_ms;
        let clients = self.nodes.len();
        for client in 0..clients {
            if self.asleep_until_ms > now_ms {
                break;
            }
            if self.requests.values().filter(|it| it.client == client).count() >= 4 || !self.rng.one_in(4) {
                continue;
            }
            let own_blocks = LAYOUT.blocks / clients as u64;
            let own_first = own_blocks * client as u64;
            let asked = match self.rng.below(10) {
                0 => Asked::Flush,
                9 => Asked::Hold,
                1..=5 if !self.is_calm => {
                    let range = some_of(&mut self.rng, own_first, own_first + own_blocks);
                    let is_under_way = |it: &Pending| matches!(&it.asked, Asked::Write(of, ..) if of.first < range.end() && range.first < of.end());
                    if self.requests.values().any(is_under_way) {
                        continue;
                    }
                    let written = &mut self.written[range.first as usize..range.end() as usize];
                    written.iter_mut().for_each(|number| *number += 1);
                    let data = written.to_vec();
                    Asked::Write(range, data, self.rng.one_in(4))
                }
                _ => Asked::Read(some_of(&mut self.rng, 0, LAYOUT.blocks)),
            };
            self.next_request += 1;
            let least = match &asked {
                Asked::Read(range) => {
                    let blocks = range.first as usize..range.end() as usize;
                    blocks.map(|block| self.acknowledged[block].max(self.read[block])).collect()
                }
                Asked::Write(..) | Asked::Flush | Asked::Hold => Vec::new(),
            };
            let acknowledged = if asked.makes_durable() { self.acknowledged.clone() } else { Vec::new() };
            let pending = Pending { client, asked, begun_ms: now_ms, least, acknowledged, at: None };
            self.requests.insert(self.next_request, pending);
        }
        // A client of each node asks the primary that it knows: of its own node, as long as that thinks it is one.
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            let Some(pending) = self.requests.get(&id) else { continue };
            let (client, asked) = (pending.client, pending.asked.clone());
            let is_waiting = pending.at.is_some_and(|(node, life, since)| {
                let same = self.nodes[node].server.as_ref().is_some_and(|it| it.life == life && it.primary.is_some());
                same && now_ms < since + CLIENT_PATIENCE_MS
            });
            if is_waiting || !self.runs(client) {
                continue;
            }
            let has_primary = |node: usize| self.nodes[node].server.as_ref().is_some_and(|it| it.primary.is_some());
            let known = if has_primary(client) { client } else { usize::from(self.engine.primary.0) };
            if !has_primary(known) || !self.runs(known) || !self.hears(client, known) {
                continue;
            }
            let Some(life) = self.nodes[known].server.as_ref().map(|server| server.life) else { continue };
            let request = match asked {
                Asked::Read(range) => DiskRequest::Read { range },
                Asked::Write(range, data, durable) => DiskRequest::Write { range, data, durable },
                Asked::Flush => DiskRequest::Flush,
                Asked::Hold => DiskRequest::Hold,
            };
            // Said again it is another one: an answer to the one before counts as well.
            self.next_request += 1;
            let Some(mut again) = self.requests.remove(&id) else { continue };
            again.at = Some((known, life, now_ms));
            self.requests.insert(self.next_request, again);
            let number = self.next_request;
            let acts = self.with_primary(known, |it| it.ask(number, request, now_ms));
            self.act_all(known, acts);
        }
    }

    fn answered(&mut self, id: u64, node: usize, answer: Answer) {
        self.held.retain(|held| held.1 > self.now_ms);
        // What was written may be told later, by whoever wrote it.
        let is_of_now = !matches!(answer, Answer::Done | Answer::Refused);
        if let Some((other, until_ms)) = self.held.iter().find(|held| is_of_now && held.0 != node) {
            self.wrong.push(format!("{}: n{node} answers, and n{other} was promised {until_ms}", self.now_ms));
        }
        let Some(pending) = self.requests.get(&id) else { return };
        if !self.hears(pending.client, node) {
            return;
        }
        let Some(pending) = self.requests.remove(&id) else { return };
        self.answers += 1;
        match (pending.asked, answer) {
            // Counted from when it was asked of this one.
            (Asked::Hold, Answer::Held(for_ms)) => {
                let asked_ms = pending.at.map_or(pending.begun_ms, |at| at.2);
                self.held.push((node, asked_ms + for_ms));
            }
            (Asked::Read(range), Answer::Read(values)) => {
                for ((block, value), least) in (range.first as usize..).zip(values).zip(pending.least) {
                    if value < least || value > self.written[block] {
                        let (most, begun) = (self.written[block], pending.begun_ms);
                        self.wrong.push(format!(
                            "{}: n{node} says {value} for {block}, not {least} to {most} (asked {begun})",
                            self.now_ms
                        ));
                    }
                    self.read[block] = self.read[block].max(value);
                }
            }
            (Asked::Write(range, values, durable), Answer::Done) => {
                for (block, value) in (range.first as usize..).zip(values) {
                    self.acknowledged[block] = self.acknowledged[block].max(value);
                    if durable {
                        self.flushed[block] = self.flushed[block].max(value);
                    }
                }
                self.has_flushed(pending.acknowledged);
            }
            // As if it had never been answered.
            (Asked::Write(..), Answer::Refused) => {}
            (Asked::Flush, Answer::Done) => self.has_flushed(pending.acknowledged),
            _ => self.wrong.push(format!("{}: another answer than was asked", self.now_ms)),
        }
    }

    fn has_flushed(&mut self, acknowledged: Vec<u64>) {
        for (flushed, acknowledged) in self.flushed.iter_mut().zip(acknowledged) {
            *flushed = (*flushed).max(acknowledged);
        }
    }

    // ---- trouble

    fn trouble(&mut self) {
        let node = self.rng.below(self.nodes.len() as u64) as usize;
        let other = self.rng.below(self.nodes.len() as u64) as usize;
        let pair = (node.min(other), node.max(other));
        match self.rng.below(3000) {
            0..3 => self.kill(node),
            3..6 if node != other && !self.cut.contains(&pair) => _ = self.cut.insert(pair),
            3..6 => _ = self.cut.remove(&pair),
            6..9 => self.cut.clear(),
            9..12 => self.nodes[node].stands_until_ms = self.now_ms + self.rng.below(1500),
            12..14 => self.engine_back_ms = self.now_ms + self.rng.below(1500),
            14..17 => self.power_off(node),
            17..22 => self.power_on(node),
            22 if self.power == Power::Any && self.rng.one_in(3) => {
                (0..self.nodes.len()).for_each(|node| self.power_off(node));
            }
            23 if self.rng.one_in(3) => self.replace(node),
            24..26 => self.change_members(node),
            27 => self.verify(),
            28..30 => {
                self.say(|| format!("n{node} is full"));
                self.nodes[node].is_full_until_ms = self.now_ms + self.rng.below(2500);
            }
            26 => self.asleep_until_ms = self.now_ms + self.rng.below(4000),
            _ => {}
        }
    }

    fn kill(&mut self, node: usize) {
        self.say(|| format!("kill n{node}"));
        let it = &mut self.nodes[node];
        for (_, _, what) in it.server.take().into_iter().flat_map(|server| server.operations) {
            // Some of it was done.
            if let Underway::Write(range, mut data) = what {
                let count = self.rng.below(u64::from(range.count) + 1) as u32;
                data.truncate(count as usize);
                it.disk.write(BlockRange { first: range.first, count }, &data);
            }
        }
        self.nodes[node].starts_at_ms = self.now_ms + self.rng.below(400);
        self.links.retain(|link, _| link.0 != node);
    }

    /// Whether another loss of power is one too many.
    fn is_whole(&self) -> bool {
        let serves = |node: &Node| {
            let primary = node.server.as_ref().and_then(|server| server.primary.as_ref());
            primary.is_some_and(|primary| primary.is_serving() && primary.record() == &self.engine)
        };
        // One that is current and not marked yet gives way to one that is, also when that one has lost something.
        let is_marked = |node: &Node| {
            node.disk.kept.mark.is_some_and(|mark| mark.whole && mark.generation == self.engine.generation)
        };
        let is_certain = |server: &Server| !server.backup.is_doubtful();
        let sure = |node: &Node| node.is_on && is_marked(node) && node.server.as_ref().is_some_and(is_certain);
        self.engine.current().count() == self.nodes.len()
            && self.engine.leaving.is_empty()
            && self.proposals.is_empty()
            && self.nodes.iter().all(sure)
            && self.nodes.iter().any(serves)
    }

    fn power_off(&mut self, node: usize) {
        if !self.nodes[node].is_on || self.power == Power::OneAtATime && !self.is_whole() {
            return;
        }
        self.say(|| format!("power of n{node} is off"));
        if self.power == Power::Any {
            // What was acknowledged and not flushed may be gone, or come back another time: nothing is known of it.
            (self.acknowledged, self.read) = (self.flushed.clone(), self.flushed.clone());
            for pending in self.requests.values_mut() {
                pending.least.fill(0);
                if pending.asked.makes_durable() {
                    pending.acknowledged.clone_from(&self.flushed);
                }
            }
        }
        self.kill(node);
        let it = &mut self.nodes[node];
        it.is_on = false;
        it.boot = self.rng.draw();
        it.disk.lose_power(&mut self.rng);
    }

    fn power_on(&mut self, node: usize) {
        if !self.nodes[node].is_lost {
            self.nodes[node].is_on = true;
        }
    }

    /// Its machine and its copy are gone; another one comes, with nothing.
    fn replace(&mut self, node: usize) {
        if self.nodes[node].is_lost {
            // When the record says that its copy is not current.
            if !self.engine.is_current(Replica(node as u8)) {
                let it = &mut self.nodes[node];
                (it.is_lost, it.is_on, it.disk) = (false, true, Disk::default());
            }
        } else if self.is_whole() && self.nodes.len() > 1 {
            self.say(|| format!("n{node} is lost"));
            self.kill(node);
            (self.nodes[node].is_on, self.nodes[node].is_lost) = (false, true);
            self.nodes[node].boot = self.rng.draw();
        }
    }

    /// Somebody says that its copy will not come back.
    fn remove_for_good(&mut self, node: usize) {
        let (member, primary) = (Replica(node as u8), usize::from(self.engine.primary.0));
        if !self.engine.is_current(member) || node == primary {
            return;
        }
        self.engine = self.engine.without(&[member]);
        let (record, now_ms) = (self.engine.clone(), self.now_ms);
        let acts = self.with_primary(primary, |it| it.decided(Decided::Conflict(record), now_ms));
        self.act_all(primary, acts);
    }

    /// People add a copy, or do not want one any more.
    fn change_members(&mut self, node: usize) {
        let member = Replica(node as u8);
        if self.engine_back_ms > self.now_ms || self.nodes[node].is_lost {
            return;
        }
        let next = match (self.engine.members.contains_key(&member), self.engine.leaving.contains(&member)) {
            (true, true) => None,
            (true, false) => self.engine.dismissed(member),
            (false, true) => {
                // Its image may stay.
                if self.rng.one_in(2) {
                    self.kill(node);
                    self.nodes[node].disk = Disk::default();
                }
                Some(self.engine.forgotten(member))
            }
            (false, false) => self.engine.joined_by(member),
        };
        if let Some(next) = next {
            self.say(|| format!("people: {next:?}"));
            self.engine = next;
        }
    }

    /// Since a block rotted, with what is different made what the primary has.
    fn is_verified(&self) -> bool {
        let is_over = |it: &Verification| it.repair && it.found.is_some() && it.asked_s == ROTTEN_S;
        self.engine.verification.as_ref().is_some_and(is_over)
    }

    fn verify_and_repair(&mut self) {
        if let Some(next) = self.engine.verifying(true, ROTTEN_S) {
            self.engine = next;
        }
    }

    fn verify(&mut self) {
        let repair = self.rng.one_in(2);
        if self.engine_back_ms <= self.now_ms
            && let Some(next) = self.engine.verifying(repair, 0)
        {
            self.say(|| format!("people: {next:?}"));
            self.engine = next;
        }
    }

    /// A block of a copy that is current, and not the primary's, is not what was written any more.
    fn rot(&mut self) {
        let others: Vec<Replica> = self.engine.current().filter(|member| *member != self.engine.primary).collect();
        let member = others[self.rng.below(others.len() as u64) as usize];
        let block = self.rng.below(LAYOUT.blocks);
        let disk = &mut self.nodes[usize::from(member.0)].disk;
        let value = disk.value(block) ^ 1 << 20;
        disk.write(BlockRange::one(block), &vec![value]);
        disk.durable = disk.seen.clone();
        self.rotten = 1;
    }

    /// A primary hears of what others did to the record, unless it is about to change it itself.
    fn tell_primary(&mut self) {
        let primary = usize::from(self.engine.primary.0);
        let proposes = self.proposals.iter().any(|proposal| proposal.1 == primary);
        if self.engine_back_ms > self.now_ms || proposes || !self.runs(primary) || !self.rng.one_in(20) {
            return;
        }
        let server = self.nodes[primary].server.as_ref().and_then(|server| server.primary.as_ref());
        if server.is_some_and(|primary| primary.record() != &self.engine) {
            let (record, now_ms) = (self.engine.clone(), self.now_ms);
            let acts = self.with_primary(primary, |it| it.decided(Decided::Conflict(record), now_ms));
            self.act_all(primary, acts);
        }
    }

    fn heal(&mut self) {
        self.is_calm = true;
        self.cut.clear();
        self.engine_back_ms = 0;
        for node in 0..self.nodes.len() {
            (self.nodes[node].stands_until_ms, self.nodes[node].is_full_until_ms) = (0, 0);
            self.power_on(node);
        }
    }

    fn is_equal(&self) -> bool {
        let first = &self.nodes[0].disk;
        (0..LAYOUT.blocks).all(|block| self.nodes.iter().all(|node| node.disk.value(block) == first.value(block)))
    }
}

/// Up to six, also of two extents.
fn some_of(rng: &mut Rng, first: u64, end: u64) -> BlockRange {
    let first = first + rng.below(end - first);
    BlockRange { first, count: 1 + rng.below(6.min(end - first)) as u32 }
}

fn push(link: &mut Link, due: u64, packet: Packet) {
    // In the order in which it was said, each way.
    let is_up = matches!(packet, Packet::Up(..));
    let before = link.packets.iter().filter(|other| matches!(other.1, Packet::Up(..)) == is_up).map(|other| other.0);
    let due = due.max(before.max().unwrap_or(0));
    if link.broken_until_ms.is_none() {
        link.packets.push_back((due, packet));
    }
}

fn run(seed: u64, nodes: usize, power: Power) -> [u64; 3] {
    let mut world = World::new(seed, nodes, power);
    let fail = |world: &World, why: &str| {
        world.trace.iter().for_each(|line| eprintln!("{line}"));
        let states: Vec<String> = world
            .nodes
            .iter()
            .map(|node| {
                let server = node.server.as_ref();
                let primary = server.and_then(|it| it.primary.as_ref()).map(|it| (it.epoch(), it.is_serving()));
                let whole = server.and_then(|it| it.primary.as_ref()).filter(|_| std::env::var_os("TRACE").is_some());
                format!("on {} {primary:?} kept {:?} {whole:#?}", node.is_on, node.disk.kept)
            })
            .collect();
        panic!(
            "seed {seed}, {nodes} nodes, {power:?} at {}: {why}\n{:?}\n{}\nlast: {:?}",
            world.now_ms,
            world.engine,
            states.join("\n"),
            world.wrong.last()
        );
    };
    while world.now_ms < TROUBLE_MS {
        world.step();
        if !world.wrong.is_empty() {
            fail(&world, "a wrong answer");
        }
    }
    world.heal();
    let until_ms = world.now_ms + HEAL_MS;
    loop {
        world.step();
        if !world.wrong.is_empty() {
            fail(&world, "a wrong answer");
        }
        for node in 0..nodes {
            if world.nodes[node].is_lost {
                world.remove_for_good(node);
                world.replace(node);
            }
            if !world.engine.members.contains_key(&Replica(node as u8)) {
                world.change_members(node);
            }
        }
        let pending = world.requests.values().any(|it| matches!(it.asked, Asked::Write(..)));
        // What nobody waits for any more may still be under way.
        if world.is_whole() && !pending && world.is_equal() {
            if world.rotten == 0 && nodes > 1 {
                world.rot();
            } else if world.is_verified() {
                break;
            }
        }
        if world.rotten > 0 && !world.is_verified() {
            world.verify_and_repair();
        }
        if world.now_ms >= until_ms {
            fail(&world, if world.is_whole() { "copies differ" } else { "it does not become whole" });
        }
    }
    for block in 0..LAYOUT.blocks as usize {
        let value = world.nodes[0].disk.value(block as u64);
        if value < world.acknowledged[block] || value < world.flushed[block] {
            fail(&world, &format!("block {block} is {value}"));
        }
    }
    assert!(world.verified > 0, "seed {seed}");
    [world.answers, world.changes, world.refused]
}

#[test]
fn copies_are_one_disk_whatever_fails() {
    let mut sums = [0; 3];
    for seed in seeds(25, 2500) {
        for (nodes, power) in [(3, Power::OneAtATime), (2, Power::OneAtATime), (3, Power::Any), (2, Power::Any)] {
            std::iter::zip(&mut sums, run(seed, nodes, power)).for_each(|(sum, more)| *sum += more);
        }
    }
    let [answers, changes, refused] = sums;
    eprintln!("{answers} answers, {changes} changes of the record, {refused} writes without room");
    assert!(refused > 0);
}
