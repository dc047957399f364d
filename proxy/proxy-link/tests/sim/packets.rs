//! A link over sessions of `arq`, over a wire that loses, doubles, delays and reorders, and is cut: for a moment, for
//! longer than a session bears, or one way. Each node finds out by itself that a connection is no more, as two that
//! have only packets do.

use std::io;
use std::time::Duration;

use proxy_link::arq::limits::FAILED_AFTER;
use proxy_link::arq::wire::{self, Dice, Wire};
use proxy_link::arq::{Packet, Received, Sessions, State, refusal};
use proxy_link::{InBuffer, Phase};

use crate::world::{Link, Stage, Weather};

const PACKET_BYTES: usize = 1500;
/// A connection over which the other side does not say who it is ends after this time, as in a proxy: that it is closed
/// may be lost.
const GREETING_MAX: Duration = Duration::from_secs(3);
/// Steps in a cut wire may be this long: nothing happens but that time passes.
const LEAP_MS: u64 = 100;

pub struct Packets {
    wire: Wire,
    dice: Dice,
    ends: [End; 2],
    /// Accepted, and nobody has said HELLO.
    strangers: Vec<Stranger>,
}

struct End {
    sessions: Sessions<usize>,
    /// The one that carries the link, or is dialled to.
    current: Option<u32>,
    /// The peer was told of it.
    is_joined: bool,
    /// When it was dialled.
    since: Duration,
}

struct Stranger {
    id: u32,
    since: Duration,
    input: InBuffer,
}

impl End {
    fn new(seed: u64) -> End {
        let mut dice = Dice::new(seed);
        let draw = move || Ok(dice.roll(1 << 31) as u32);
        End {
            sessions: Sessions::new(PACKET_BYTES, Box::new(draw)),
            current: None,
            is_joined: false,
            since: Duration::ZERO,
        }
    }

    fn joined(&self) -> Option<u32> {
        self.current.filter(|_| self.is_joined)
    }
}

impl Link for Packets {
    fn new(seed: u64) -> Packets {
        let mut dice = Dice::new(!seed);
        let weather = wire::Weather {
            lost_percent: dice.roll(16),
            doubled_percent: dice.roll(16),
            delay_us: 20 + dice.roll(3000),
            jitter_us: dice.roll(6000),
        };
        let ends = [1, 2].map(|end| End::new(seed ^ end << 32));
        Packets { wire: Wire::new(seed, weather), dice, ends, strangers: Vec::new() }
    }

    fn suffer(&mut self, stage: &mut Stage, weather: Weather) {
        if weather == Weather::Calm {
            return self.wire.mend();
        }
        if (0..2).all(|to| self.wire.is_cut(to, stage.now)) {
            stage.now += Duration::from_millis(self.dice.roll(LEAP_MS));
        }
        let millis = Duration::from_millis;
        if self.dice.one_in(60) {
            let until = stage.now + millis(self.dice.roll(60));
            (0..2).for_each(|to| self.wire.cut(to, until));
        }
        if self.dice.one_in(300) {
            let until = stage.now + millis(self.dice.roll(600));
            (0..2).for_each(|to| self.wire.cut(to, until));
        }
        if weather.is_storm() && self.dice.one_in(80) {
            let (to, until) = (self.dice.roll(2) as usize, stage.now + millis(self.dice.roll(90)));
            self.wire.cut(to, until);
        }
        // No session lives through that.
        if weather.is_storm() && self.dice.one_in(600) {
            let until = stage.now + FAILED_AFTER + millis(self.dice.roll(2000));
            (0..2).for_each(|to| self.wire.cut(to, until));
        }
        // Given up by one who does not wait, as the node that dials does when it is told another address.
        if self.dice.one_in(150) {
            self.lose(stage, 0);
        }
        if self.dice.one_in(300) {
            self.lose(stage, 1);
        }
    }

    fn turn(&mut self, stage: &mut Stage, _weather: Weather) {
        self.exchange(stage.now);
        self.dial(stage);
        self.greet(stage);
    }

    fn transmit(&mut self, stage: &mut Stage, from: usize) {
        let node = &mut stage.nodes[from];
        node.peer.fill(stage.now);
        let end = &mut self.ends[from];
        let Some(session) = end.joined().and_then(|id| end.sessions.get_mut(id)) else { return };
        let pending = node.peer.outgoing().pending();
        let count = stage.chance.moved_bytes().min(pending.len());
        match session.write(&pending[..count]) {
            Ok(count) => node.peer.sent(stage.now, count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return self.lose(stage, from),
        }
        self.flush_current(stage.now, from);
    }

    fn deliver(&mut self, stage: &mut Stage, from: usize, _weather: Weather) {
        let to = 1 - from;
        let end = &mut self.ends[to];
        let Some(session) = end.joined().and_then(|id| end.sessions.get_mut(id)) else { return };
        let mut buffer = vec![0; 1 + stage.chance.moved_bytes()];
        match session.read(&mut buffer) {
            Ok(0) => return self.lose(stage, to),
            Ok(count) => stage.hand_over(to, &buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return self.lose(stage, to),
        }
        self.flush_current(stage.now, to);
    }

    /// Nothing is said any more.
    fn kill(&mut self, stage: &mut Stage, victim: usize) {
        self.ends[victim] = End::new(self.dice.roll(u64::MAX));
        if victim == 1 {
            self.strangers.clear();
        }
        stage.nodes[victim].cut();
    }
}

impl Packets {
    /// What arrived, and what time brings.
    fn exchange(&mut self, now: Duration) {
        while let Some((to, bytes)) = self.wire.arrived(now) {
            let packet = Packet::decode(&bytes).expect("ours");
            match self.ends[to].sessions.receive(1 - to, &packet, now) {
                Received::By(id) => self.flush(now, to, id),
                Received::Refused => {
                    let mut answer = Vec::new();
                    refusal(&packet).encode(&mut answer);
                    self.wire.carry(now, 1 - to, &answer);
                }
                Received::Dropped => {}
            }
        }
        for end in 0..2 {
            for id in self.ends[end].sessions.tick(now) {
                self.flush(now, end, id);
            }
        }
    }

    fn flush(&mut self, now: Duration, end: usize, id: u32) {
        let sessions = &mut self.ends[end].sessions;
        let mut packet = Vec::new();
        while sessions.get_mut(id).is_some_and(|session| session.transmit(now, &mut packet)) {
            self.wire.carry(now, 1 - end, &packet);
            packet.clear();
        }
        sessions.forget_ended(id);
    }

    fn flush_current(&mut self, now: Duration, end: usize) {
        if let Some(id) = self.ends[end].current {
            self.flush(now, end, id);
        }
    }

    fn release(&mut self, now: Duration, end: usize, id: u32) {
        self.ends[end].sessions.release(id, now);
        self.flush(now, end, id);
    }

    /// One side knows that its connection is no more.
    fn lose(&mut self, stage: &mut Stage, end: usize) {
        self.ends[end].is_joined = false;
        if let Some(id) = self.ends[end].current.take() {
            self.release(stage.now, end, id);
            stage.nodes[end].cut();
        }
    }

    fn dial(&mut self, stage: &mut Stage) {
        let end = &mut self.ends[0];
        let Some(id) = end.current else {
            if stage.chance.one_in(4) {
                let id = end.sessions.dial(1, stage.now).expect("there is room");
                (end.current, end.since) = (Some(id), stage.now);
                self.flush(stage.now, 0, id);
            }
            return;
        };
        let is_greeted = |stage: &Stage| stage.nodes[0].peer.phase() != Phase::Greeting;
        match end.sessions.get(id).map(|session| session.state()) {
            Some(State::Dialling) => {}
            Some(State::Open) if !end.is_joined => {
                end.is_joined = true;
                stage.nodes[0].peer.dialled(stage.now);
            }
            Some(State::Open) if is_greeted(stage) || stage.now < end.since + GREETING_MAX => {}
            _ => self.lose(stage, 0),
        }
    }

    /// Reads what those who dialled say first, and turns to one who may come in.
    fn greet(&mut self, stage: &mut Stage) {
        while let Some(id) = self.ends[1].sessions.accept() {
            self.strangers.push(Stranger { id, since: stage.now, input: InBuffer::new() });
        }
        for mut stranger in std::mem::take(&mut self.strangers) {
            match self.hear_stranger(stage, &mut stranger) {
                Greeted::In => self.turn_to(stage, stranger),
                Greeted::NotYet if stage.now < stranger.since + GREETING_MAX => self.strangers.push(stranger),
                Greeted::NotYet | Greeted::Refused => self.release(stage.now, 1, stranger.id),
            }
        }
    }

    fn hear_stranger(&mut self, stage: &mut Stage, stranger: &mut Stranger) -> Greeted {
        let Some(session) = self.ends[1].sessions.get_mut(stranger.id) else { return Greeted::Refused };
        let mut buffer = vec![0; 1 + stage.chance.moved_bytes()];
        match session.read(&mut buffer) {
            Ok(0) => return Greeted::Refused,
            Ok(count) => assert_eq!(stranger.input.append(&buffer[..count]), count, "HELLO fits"),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Greeted::NotYet,
            Err(_) => return Greeted::Refused,
        }
        let Ok(::wire::Next::Frame(frame, whole)) = ::wire::next(stranger.input.waiting()) else {
            return Greeted::NotYet;
        };
        let ::wire::Frame::Hello(hello) = frame else { panic!("HELLO comes first") };
        // An older connection may be heard later than the one that took its place.
        if stage.nodes[1].peer.accepted(stage.now, &hello).is_err() {
            return Greeted::Refused;
        }
        stranger.input.consume(whole);
        Greeted::In
    }

    fn turn_to(&mut self, stage: &mut Stage, stranger: Stranger) {
        if let Some(old) = self.ends[1].current.replace(stranger.id) {
            self.release(stage.now, 1, old);
        }
        self.ends[1].is_joined = true;
        stage.nodes[1].forget_input();
        stage.nodes[1].take_in(stranger.input.waiting());
        stage.nodes[1].hear(stage.now);
        self.flush_current(stage.now, 1);
    }
}

enum Greeted {
    In,
    NotYet,
    Refused,
}
