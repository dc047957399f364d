//! Streams between two nodes whose wire is cut, shortly and for longer than a session bears, one way or both; nodes
//! that forget everything, as a proxy that was killed does; streams that are made anew. A stream carries what belongs
//! to it and nothing else.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use proxy_link::arq::limits::FAILED_AFTER;
use proxy_link::arq::wire::{Dice, Weather, Wire};
use proxy_link::arq::{Packet, Received, Sessions, refusal};

use histories::rng::seeds;

const PACKET_BYTES: usize = 1500;
/// A stream over which nobody says who he is has ended after this time.
const GREETING_MAX: Duration = Duration::from_secs(3);
/// Far more than is needed when the wire is whole.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of the stream, which the owner that dials puts before everything else.
const HEAD_BYTES: usize = 8;

fn content(number: u64, from: usize, bytes: std::ops::Range<usize>) -> impl Iterator<Item = u8> {
    let body = move |at: u64| (at * 31 + at / 253 + number * 7 + from as u64) as u8;
    bytes.map(move |at| number.to_le_bytes().get(at).copied().unwrap_or_else(|| body(at as u64)))
}

/// A session, as its owner sees it.
struct Stream {
    id: u32,
    /// 0: not heard yet.
    number: u64,
    begun: Duration,
    brought: Duration,
    written: usize,
    head: Vec<u8>,
    read: usize,
}

struct Node {
    sessions: Sessions<usize>,
    streams: Vec<Stream>,
}

impl Node {
    fn new(seed: u64) -> Node {
        let mut dice = Dice::new(seed);
        let draw = move || Ok(dice.roll(1 << 31) as u32);
        Node { sessions: Sessions::new(PACKET_BYTES, Box::new(draw)), streams: Vec::new() }
    }
}

/// The node 0 dials, and dials again.
struct World {
    seed: u64,
    dice: Dice,
    wire: Wire,
    nodes: [Node; 2],
    now: Duration,
    /// Each sends so much over every stream.
    bytes: [usize; 2],
    /// A stream that brings nothing for so long is given up.
    give_up: Duration,
    dialled: u64,
    heard: BTreeSet<u64>,
    completed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut dice = Dice::new(seed ^ 0xbeef);
        let weather = Weather {
            lost_percent: dice.roll(21),
            doubled_percent: dice.roll(20),
            delay_us: 20 + dice.roll(3000),
            jitter_us: dice.roll(4000),
        };
        World {
            seed,
            wire: Wire::new(seed, weather),
            nodes: [Node::new(seed ^ 1), Node::new(seed ^ 2)],
            now: Duration::from_secs(1),
            bytes: [40_000, 20_000].map(|most| HEAD_BYTES + dice.roll(most) as usize),
            give_up: if dice.one_in(4) { FAILED_AFTER * 2 } else { Duration::from_secs(1) },
            dialled: 0,
            heard: BTreeSet::new(),
            completed: 0,
            dice,
        }
    }

    /// Something happens to the wire or to a node.
    fn suffer(&mut self) {
        let millis = Duration::from_millis;
        match self.dice.roll(8) {
            0..4 => {
                let until = self.now + millis(self.dice.roll(500));
                (0..2).for_each(|to| self.wire.cut(to, until));
            }
            4 | 5 => {
                let (to, until) = (self.dice.roll(2) as usize, self.now + millis(self.dice.roll(1500)));
                self.wire.cut(to, until);
            }
            6 => {
                let until = self.now + FAILED_AFTER + millis(self.dice.roll(1500));
                (0..2).for_each(|to| self.wire.cut(to, until));
            }
            _ => {
                let victim = self.dice.roll(2) as usize;
                self.nodes[victim] = Node::new(self.dice.roll(u64::MAX));
            }
        }
    }

    fn step(&mut self) {
        self.complete();
        self.dial();
        for node in 0..2 {
            self.own(node);
        }
        let dues = self.nodes.iter().filter_map(|node| node.sessions.due());
        let (soonest, latest) = (self.now + Duration::from_micros(20), self.now + Duration::from_millis(10));
        let next = dues.chain(self.wire.next_arrival()).min().unwrap_or(latest);
        self.now = next.clamp(soonest, latest);
        while let Some((to, bytes)) = self.wire.arrived(self.now) {
            let packet = Packet::decode(&bytes).expect("ours");
            match self.nodes[to].sessions.receive(1 - to, &packet, self.now) {
                Received::By(id) => self.flush(to, id),
                Received::Refused => {
                    let mut answer = Vec::new();
                    refusal(&packet).encode(&mut answer);
                    self.wire.carry(self.now, 1 - to, &answer);
                }
                Received::Dropped => {}
            }
        }
        for node in 0..2 {
            for id in self.nodes[node].sessions.tick(self.now) {
                self.flush(node, id);
            }
        }
    }

    fn flush(&mut self, node: usize, id: u32) {
        let sessions = &mut self.nodes[node].sessions;
        let mut packet = Vec::new();
        while sessions.get_mut(id).is_some_and(|session| session.transmit(self.now, &mut packet)) {
            assert!(packet.len() <= PACKET_BYTES, "seed {}", self.seed);
            self.wire.carry(self.now, 1 - node, &packet);
            packet.clear();
        }
        sessions.forget_ended(id);
    }

    fn dial(&mut self) {
        let node = &mut self.nodes[0];
        if node.streams.is_empty() {
            self.dialled += 1;
            let id = node.sessions.dial(1, self.now).expect("there is room");
            node.streams.push(stream(id, self.dialled, self.now));
        }
        let node = &mut self.nodes[1];
        while let Some(id) = node.sessions.accept() {
            node.streams.push(stream(id, 0, self.now));
        }
    }

    /// Both ends of the stream have everything: the next one.
    fn complete(&mut self) {
        let is_whole = |node: usize, stream: &&Stream| stream.read == self.bytes[1 - node];
        let Some(number) = self.nodes[0].streams.iter().find(|s| is_whole(0, s)).map(|s| s.number) else { return };
        if self.nodes[1].streams.iter().any(|stream| stream.number == number && is_whole(1, &stream)) {
            self.completed += 1;
            let stream = self.nodes[0].streams.remove(0);
            self.nodes[0].sessions.release(stream.id, self.now);
            self.flush(0, stream.id);
        }
    }

    /// What an owner does with its streams.
    fn own(&mut self, node: usize) {
        let newest = self.heard.last().copied().unwrap_or(0);
        for mut stream in std::mem::take(&mut self.nodes[node].streams) {
            let id = stream.id;
            let is_kept = self.read(node, &mut stream) && self.is_wanted(node, &stream, newest);
            if is_kept {
                self.write(node, &mut stream);
                self.nodes[node].streams.push(stream);
            } else {
                self.nodes[node].sessions.release(id, self.now);
            }
            self.flush(node, id);
        }
    }

    /// `false`: it has ended.
    fn read(&mut self, node: usize, stream: &mut Stream) -> bool {
        let mut buffer = vec![0; 1 + self.dice.roll(9000) as usize];
        let session = self.nodes[node].sessions.get_mut(stream.id).expect("held");
        let fresh = match session.read(&mut buffer) {
            Ok(0) => return false,
            Ok(count) => &buffer[..count],
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        };
        stream.brought = self.now;
        stream.head.extend(fresh.iter().take(HEAD_BYTES - stream.head.len()));
        if let (0, Some(head)) = (stream.number, stream.head.first_chunk()) {
            stream.number = u64::from_le_bytes(*head);
            let is_dialled = (1..=self.dialled).contains(&stream.number);
            assert!(
                is_dialled && self.heard.insert(stream.number),
                "seed {}: {} comes twice",
                self.seed,
                stream.number
            );
        }
        let place = stream.read..stream.read + fresh.len();
        stream.read = place.end;
        if stream.number != 0 {
            let is_right = content(stream.number, 1 - node, place.clone()).eq(fresh.iter().copied());
            assert!(is_right && place.end <= self.bytes[1 - node], "seed {}: {}", self.seed, stream.number);
        }
        true
    }

    fn is_wanted(&self, node: usize, stream: &Stream, newest: u64) -> bool {
        match (node, stream.number) {
            (1, 0) => self.now < stream.begun + GREETING_MAX,
            (1, number) if number < newest => false,
            _ => self.now < stream.brought + self.give_up,
        }
    }

    fn write(&mut self, node: usize, stream: &mut Stream) {
        if stream.number == 0 {
            return;
        }
        let piece = 1 + self.dice.roll(9000) as usize;
        let until = self.bytes[node].min(stream.written + piece);
        let rest: Vec<u8> = content(stream.number, node, stream.written..until).collect();
        let session = self.nodes[node].sessions.get_mut(stream.id).expect("held");
        stream.written += session.write(&rest).unwrap_or(0);
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) && self.now < end {
            self.step();
        }
        done(self)
    }
}

fn stream(id: u32, number: u64, now: Duration) -> Stream {
    Stream { id, number, begun: now, brought: now, written: 0, head: Vec::new(), read: 0 }
}

#[test]
fn streams_made_anew_after_partitions_carry_everything_and_nothing_of_those_before() {
    for seed in seeds(400, 10_000) {
        let mut world = World::new(seed);
        for _ in 0..2 + world.dice.roll(5) {
            let fair = Duration::from_millis(world.dice.roll(400));
            world.run_until(fair, |_| false);
            world.suffer();
        }
        let before = world.completed;
        // It may be that a long cut just began.
        let is_done = world.run_until(PATIENCE, |world| world.completed > before);
        assert!(is_done, "seed {seed}, {:?}: {} streams, none whole", world.wire.weather, world.dialled);
    }
}
