//! Two sessions and a wire between them that does its worst, from a seed.

#[path = "arq/reconnect.rs"]
mod reconnect;

use std::io::ErrorKind;
use std::time::Duration;

use histories::rng::seeds;
use proxy_link::arq::limits::{FAILED_AFTER, LINGER, WINDOW_BYTES};
use proxy_link::arq::wire::{Dice, Weather, Wire};
use proxy_link::arq::{Kind, Packet, Ranges, Session, State};

const PACKET_BYTES: usize = 1500;

/// One end: what it writes, what it has read.
struct End {
    session: Session,
    writes: Vec<u8>,
    written: usize,
    read: Vec<u8>,
    at_end: bool,
}

struct World {
    wire: Wire,
    dice: Dice,
    ends: [End; 2],
    now: Duration,
    seed: u64,
}

fn pattern(bytes: usize, salt: u64) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at * 31 + at / 253 + salt) as u8).collect()
}

impl World {
    fn new(seed: u64, weather: Weather, bytes: [usize; 2]) -> World {
        let end = |session, bytes, salt| End {
            session,
            writes: pattern(bytes, salt),
            written: 0,
            read: Vec::new(),
            at_end: false,
        };
        let now = Duration::from_secs(1);
        let dialling = Session::dial(11, PACKET_BYTES, now);
        let accepting = Session::accept(22, 11, PACKET_BYTES, now);
        let wire = Wire::new(seed, weather);
        World {
            wire,
            dice: Dice::new(!seed),
            ends: [end(dialling, bytes[0], 1), end(accepting, bytes[1], 2)],
            now,
            seed,
        }
    }

    fn send(&mut self, from: usize) {
        let mut packet = Vec::new();
        while self.ends[from].session.transmit(self.now, &mut packet) {
            assert!(packet.len() <= PACKET_BYTES, "seed {}", self.seed);
            self.wire.carry(self.now, 1 - from, &packet);
            packet.clear();
        }
    }

    /// What the owners do: write in odd pieces, read in others, close when all is written.
    fn own(&mut self) {
        for end in &mut self.ends {
            let piece = 1 + self.dice.roll(9000) as usize;
            let rest = &end.writes[end.written..];
            if let Ok(count) = end.session.write(&rest[..rest.len().min(piece)]) {
                end.written += count;
            }
            let mut buffer = vec![0; 1 + self.dice.roll(9000) as usize];
            match end.session.read(&mut buffer) {
                Ok(0) => end.at_end = true,
                Ok(count) => end.read.extend_from_slice(&buffer[..count]),
                Err(_) => {}
            }
        }
    }

    fn step(&mut self) {
        self.own();
        for from in 0..2 {
            self.send(from);
        }
        let due = self.ends.iter().filter_map(|end| end.session.due()).min();
        let arrival = self.wire.next_arrival();
        let step = self.now + Duration::from_micros(20);
        self.now =
            due.into_iter().chain(arrival).min().unwrap_or(step).clamp(step, self.now + Duration::from_millis(5));
        while let Some((to, bytes)) = self.wire.arrived(self.now) {
            let packet = Packet::decode(&bytes).expect("ours");
            self.ends[to].session.receive(&packet, self.now);
        }
        for end in &mut self.ends {
            if end.session.due().is_some_and(|due| due <= self.now) {
                end.session.tick(self.now);
            }
        }
    }

    fn run_until(&mut self, limit: Duration, done: impl Fn(&World) -> bool) {
        let start = self.now;
        while !done(self) {
            self.step();
            let left = self.now - start < limit;
            assert!(left, "seed {}, {:?}: {:?}", self.seed, self.wire.weather, self.ends.each_ref().map(End::summary));
        }
    }

    fn everything_came(&self) -> bool {
        self.ends[0].read.len() == self.ends[1].writes.len() && self.ends[1].read.len() == self.ends[0].writes.len()
    }

    fn assert_equal(&self) {
        assert!(self.ends[0].read == self.ends[1].writes, "seed {}", self.seed);
        assert!(self.ends[1].read == self.ends[0].writes, "seed {}", self.seed);
    }
}

impl End {
    fn summary(&self) -> (State, usize, usize, usize) {
        (self.session.state(), self.written, self.writes.len(), self.read.len())
    }
}

#[test]
fn both_directions_arrive_whole_and_in_order_in_any_weather() {
    for seed in seeds(400, 10_000) {
        let mut dice = Dice::new(seed ^ 0xdead);
        let weather = Weather {
            lost_percent: dice.roll(31),
            doubled_percent: dice.roll(20),
            delay_us: 20 + dice.roll(3000),
            jitter_us: dice.roll(4000),
        };
        let bytes = [dice.roll(120_000) as usize, dice.roll(60_000) as usize];
        let mut world = World::new(seed, weather, bytes);
        world.run_until(Duration::from_secs(60), World::everything_came);
        world.assert_equal();
    }
}

#[test]
fn closed_session_delivers_what_was_written_and_its_end() {
    for seed in seeds(100, 10_000) {
        let weather = Weather { lost_percent: 10, doubled_percent: 5, delay_us: 100, jitter_us: 300 };
        let mut world = World::new(seed, weather, [20_000, 20_000]);
        world.run_until(Duration::from_secs(60), |world| {
            let stands = |end: &End| end.session.state() == State::Open && end.written == end.writes.len();
            world.ends.iter().all(stands)
        });
        let now = world.now;
        world.ends[0].session.close(now);
        world.run_until(LINGER * 2, |world| world.ends[1].at_end);
        world.run_until(LINGER * 2, |world| world.ends[0].session.state() == State::Closed);
        assert!(world.ends[1].read == world.ends[0].writes, "seed {seed}");
    }
}

#[test]
fn calm_wire_sees_every_byte_once_and_few_acknowledgements() {
    let mut world = World::new(1, Weather::CALM, [3_000_000, 0]);
    world.run_until(Duration::from_secs(10), World::everything_came);
    world.assert_equal();
    let needed = 3_000_000_u64.div_ceil(1456);
    // Owners write in odd pieces, so some segments are short; nothing is sent twice.
    assert!(world.wire.carried() < needed * 5 / 2, "{} packets for {needed}", world.wire.carried());
    let round_trip = world.ends[0].session.round_trip().expect("measured");
    assert!(round_trip >= Duration::from_micros(100) && round_trip < Duration::from_millis(2), "{round_trip:?}");
}

#[test]
fn reader_that_does_not_read_stops_the_writer_and_lets_it_go_on() {
    let now = Duration::from_secs(1);
    let mut ends = [Session::dial(11, PACKET_BYTES, now), Session::accept(22, 11, PACKET_BYTES, now)];
    let mut now = now;
    let data = vec![7; 8 * WINDOW_BYTES];
    let (mut written, mut read) = (0, 0);
    let exchange = |ends: &mut [Session; 2], now: &mut Duration, steps: u32| {
        for _ in 0..steps {
            for from in 0..2 {
                let mut bytes = Vec::new();
                while ends[from].transmit(*now, &mut bytes) {
                    ends[1 - from].receive(&Packet::decode(&bytes).expect("ours"), *now);
                    bytes.clear();
                }
            }
            *now += Duration::from_millis(10);
            ends.iter_mut().for_each(|end| end.tick(*now));
        }
    };
    exchange(&mut ends, &mut now, 3);
    for _ in 0..2000 {
        written += ends[0].write(&data[written..]).unwrap_or(0);
        exchange(&mut ends, &mut now, 1);
    }
    // What the receiver holds, and what waits at the sender; longer than a session without an answer would live.
    assert!(written <= 3 * WINDOW_BYTES, "{written}");
    assert_eq!(ends[0].state(), State::Open);
    let mut buffer = vec![0; 100_000];
    while read < data.len() {
        read += ends[1].read(&mut buffer).unwrap_or(0);
        written += ends[0].write(&data[written..]).unwrap_or(0);
        exchange(&mut ends, &mut now, 1);
        assert!(now < Duration::from_secs(60), "{read} of {written}");
    }
}

#[test]
fn peer_that_is_not_heard_any_more_fails_the_session() {
    let mut world = World::new(1, Weather::CALM, [10_000, 0]);
    world.run_until(Duration::from_secs(5), World::everything_came);
    world.wire.weather.lost_percent = 100;
    world.ends[0].writes.extend([1; 100]);
    let cut = world.now;
    world.run_until(FAILED_AFTER * 2, |world| world.ends[0].session.state() == State::Failed(ErrorKind::TimedOut));
    assert!(world.now - cut >= FAILED_AFTER);
}

#[test]
fn dialling_nobody_fails_in_time_and_a_refusal_at_once() {
    let now = Duration::from_secs(1);
    let mut session = Session::dial(1, PACKET_BYTES, now);
    let mut sent = 0;
    let mut at = now;
    while session.state() == State::Dialling {
        let mut bytes = Vec::new();
        while session.transmit(at, &mut bytes) {
            sent += 1;
        }
        at = session.due().unwrap_or(at) + Duration::from_millis(1);
        session.tick(at);
    }
    assert_eq!(session.state(), State::Failed(ErrorKind::TimedOut));
    assert!((10..100).contains(&sent) && at - now >= FAILED_AFTER, "{sent} {at:?}");

    let mut session = Session::dial(1, PACKET_BYTES, now);
    let mut bytes = Vec::new();
    session.transmit(now, &mut bytes);
    let refusal = Packet { kind: Kind::Rst, to: 1, from: 0, ..Packet::decode(&bytes).expect("ours") };
    session.receive(&refusal, now);
    assert_eq!(session.state(), State::Failed(ErrorKind::ConnectionRefused));
}

#[test]
fn hostile_packets_never_panic_nor_fill_memory_nor_change_what_is_read() {
    for seed in seeds(300, 10_000) {
        let mut dice = Dice::new(seed);
        let now = Duration::from_secs(1);
        let mut session = Session::accept(22, 11, PACKET_BYTES, now);
        let _ = session.write(&[1; 5000]);
        let mut out = Vec::new();
        while session.transmit(now, &mut out) {}
        let mut read = 0;
        for _ in 0..200 {
            let near = |dice: &mut Dice| match dice.roll(4) {
                0 => dice.roll(6000),
                1 => WINDOW_BYTES as u64 - 100 + dice.roll(200),
                2 => u64::MAX - dice.roll(10),
                _ => dice.roll(3),
            };
            let data = vec![9; dice.roll(1400) as usize];
            let ranges: Vec<(u32, u32)> =
                (0..dice.roll(5)).map(|_| (near(&mut dice) as u32, near(&mut dice) as u32)).collect();
            let packet = Packet {
                kind: [Kind::Data, Kind::Data, Kind::Data, Kind::Syn, Kind::SynAck][dice.roll(5) as usize],
                to: 22,
                from: 11,
                offset: near(&mut dice),
                ack: if dice.roll(10) == 0 { near(&mut dice) } else { dice.roll(3) },
                window: near(&mut dice) as u32,
                stamp: near(&mut dice) as u32,
                echo: near(&mut dice) as u32,
                fin: dice.roll(10) == 0,
                ranges: Ranges::Listed(&ranges),
                data: &data,
            };
            let mut bytes = Vec::new();
            packet.encode(&mut bytes);
            let cut = bytes.len() - if dice.roll(10) == 0 { dice.roll(bytes.len() as u64) as usize } else { 0 };
            if let Some(packet) = Packet::decode(&bytes[..cut]) {
                session.receive(&packet, now);
            }
            let mut out = Vec::new();
            while session.transmit(now, &mut out) {}
            let mut buffer = [0; 4096];
            let count = session.read(&mut buffer).unwrap_or(0);
            assert!(buffer[..count].iter().all(|byte| *byte == 9), "seed {seed}");
            read += count;
        }
        assert!(read <= 200 * 1400, "seed {seed}: {read}");
    }
}

#[test]
fn packet_is_read_as_it_was_written_and_padding_is_ignored() {
    let ranges = [(5, 6), (70, 8)];
    let packet = Packet {
        kind: Kind::Data,
        to: 1,
        from: 2,
        offset: 3,
        ack: 4,
        window: 5,
        stamp: 6,
        echo: 7,
        fin: true,
        ranges: Ranges::Listed(&ranges),
        data: b"abc",
    };
    let mut bytes = Vec::new();
    packet.encode(&mut bytes);
    let length = bytes.len();
    bytes.extend([0; 20]);
    let back = Packet::decode(&bytes).expect("ours");
    assert_eq!((back.kind, back.to, back.from, back.offset, back.ack), (Kind::Data, 1, 2, 3, 4));
    assert_eq!((back.window, back.stamp, back.echo, back.fin, back.data), (5, 6, 7, true, &b"abc"[..]));
    assert_eq!(back.ranges.iter().collect::<Vec<_>>(), ranges);
    for cut in 0..length {
        assert_eq!(Packet::decode(&bytes[..cut]), None);
    }
}
