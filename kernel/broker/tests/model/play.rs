//! Plays one seed: who calls what, and what came of it.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ipc::conformance::World;
use ipc::{Endpoint, Event, IpcError, Message, Port, Source, Wait};

use crate::common::OneNode;

/// The number of the first; the index of a player is the rest.
const FIRST: u32 = 10;
const CALLS: usize = 30;

pub fn endpoint(player: usize) -> Endpoint {
    Endpoint::new(FIRST + player as u32).unwrap()
}

fn player(endpoint: Endpoint) -> usize {
    (endpoint.number() - FIRST) as usize
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timing {
    Timed,
    Forever,
}

/// What was called. Messages have a number of their own; that of a reply also says which request it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Send {
        to: usize,
        message: u64,
        timing: Timing,
    },
    Call {
        to: usize,
        message: u64,
        timing: Timing,
    },
    Reply {
        to: usize,
        message: u64,
        request: u64,
    },
    Receive {
        from: Option<usize>,
    },
    ReceiveRequest,
    Notify {
        to: usize,
        bits: u64,
    },
    /// `wait_event`, which takes everything.
    WaitEvent,
    /// The end of the port in the middle of the others' calls.
    Die,
    /// The end of the port after everybody's last call.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    Done,
    Message { from: usize, message: u64, is_request: bool },
    Bits { from: usize, bits: u64 },
    Failed(IpcError),
}

#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub by: usize,
    pub begun: Duration,
    pub ended: Duration,
    pub what: What,
    pub came: Came,
}

/// splitmix64
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Plain messages are even, requests odd, so that a receiver knows what it took.
const SEND: i32 = 2;
const REQUEST: i32 = 3;
const REPLY: i32 = 4;

struct Player<'a> {
    index: usize,
    players: usize,
    port: Port,
    chance: Chance,
    next_message: u64,
    /// Requests it took and has not answered, the newest of each caller.
    owed: VecDeque<(usize, u64)>,
    begin: Instant,
    calls: Vec<Call>,
    /// Players that still follow their script.
    busy: &'a AtomicUsize,
    /// Of those who do not die.
    done: &'a Barrier,
}

/// Everybody's calls, in the order in which they began.
pub fn play(seed: u64) -> Vec<Call> {
    let mut chance = Chance(seed);
    let players = 2 + chance.below(3);
    let dying = (chance.below(3) == 0).then(|| chance.below(players));
    let world = OneNode::new();
    let ports: Vec<Port> = (0..players).map(|index| world.server(endpoint(index), 1)).collect();
    let (begin, busy, start) = (Instant::now(), AtomicUsize::new(players), Barrier::new(players));
    let done = Barrier::new(players - usize::from(dying.is_some()));
    let mut history = std::thread::scope(|scope| {
        let threads: Vec<_> = ports
            .into_iter()
            .enumerate()
            .map(|(index, port)| {
                let chance = Chance(chance.next());
                let next_message = (index as u64) << 32;
                let (owed, calls, busy, start, done) = (VecDeque::new(), Vec::new(), &busy, &start, &done);
                let player = Player { index, players, port, chance, next_message, owed, begin, calls, busy, done };
                scope.spawn(move || {
                    start.wait();
                    player.run(dying == Some(index))
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<Call>>()
    });
    history.sort_by_key(|call| call.begun);
    history
}

impl Player<'_> {
    fn run(mut self, dies: bool) -> Vec<Call> {
        let last = if dies { self.chance.below(CALLS) } else { CALLS };
        (0..last).for_each(|_| self.call_something());
        self.busy.fetch_sub(1, Ordering::SeqCst);
        if !dies {
            self.drain();
            // Whoever ends takes back the notifications that nobody has looked at.
            self.done.wait();
        }
        let Player { index, begin, port, mut calls, .. } = self;
        let begun = begin.elapsed();
        drop(port);
        calls.push(Call {
            by: index,
            begun,
            ended: begin.elapsed(),
            what: if dies { What::Die } else { What::End },
            came: Came::Done,
        });
        calls
    }

    /// Takes and answers everything, so that whoever waits for ever ends, and until nothing came for a while after all
    /// are done.
    fn drain(&mut self) {
        loop {
            self.answer_all();
            let was_last = self.busy.load(Ordering::SeqCst) == 0;
            let came = self.record(What::WaitEvent, |player| player.wait_event(Wait::For(Duration::from_millis(3))));
            if was_last && came == Came::Failed(IpcError::TimedOut) {
                return;
            }
        }
    }

    fn answer_all(&mut self) {
        while let Some((to, request)) = self.owed.pop_front() {
            self.reply(to, request);
        }
    }

    fn reply(&mut self, to: usize, request: u64) {
        let message = self.number();
        let content = Message::new(REPLY).with_word(0, message).with_word(1, request);
        self.record(What::Reply { to, message, request }, |player| done(player.port.reply(endpoint(to), &content)));
    }

    fn number(&mut self) -> u64 {
        self.next_message += 1;
        self.next_message
    }

    fn wait(&mut self) -> Wait {
        match self.chance.below(4) {
            0 => Wait::NoWait,
            _ => Wait::For(Duration::from_micros(self.chance.next() % 1500)),
        }
    }

    /// Waits for ever only where that cannot close a ring of more than two: of two with each other, else of the higher
    /// for the lower.
    fn wait_of_sender(&mut self, to: usize) -> (Wait, Timing) {
        let may_last = self.players == 2 || to < self.index;
        if may_last && self.chance.below(2) == 0 {
            return (Wait::Forever, Timing::Forever);
        }
        (self.wait(), Timing::Timed)
    }

    fn other(&mut self) -> usize {
        let other = self.chance.below(self.players - 1);
        if other >= self.index { other + 1 } else { other }
    }

    fn call_something(&mut self) {
        match self.chance.below(12) {
            0..=1 => {
                let to = self.other();
                // Who owes an answer and waits for ever for its caller would have it wait for ever too.
                self.answer_all();
                let (wait, timing) = self.wait_of_sender(to);
                let message = self.number();
                let content = Message::new(SEND).with_word(0, message);
                let what = What::Send { to, message, timing };
                self.record(what, |player| done(player.port.send(endpoint(to), &content, wait)));
            }
            2..=3 => {
                let to = self.other();
                self.answer_all();
                let (wait, timing) = self.wait_of_sender(to);
                let message = self.number();
                let content = Message::new(REQUEST).with_word(0, message);
                let what = What::Call { to, message, timing };
                self.record(what, |player| match player.port.sendrec(endpoint(to), &content, wait) {
                    Ok(reply) => player.took(reply, false),
                    Err(error) => Came::Failed(error),
                });
            }
            4..=5 => {
                let wait = self.wait();
                self.record(What::Receive { from: None }, |player| player.receive(Source::Any, wait));
            }
            6..=7 => {
                let (from, wait) = (self.other(), self.wait());
                let source = Source::From(endpoint(from));
                self.record(What::Receive { from: Some(from) }, |player| player.receive(source, wait));
            }
            8 => {
                let wait = self.wait();
                self.record(What::ReceiveRequest, |player| match player.port.rcvrqst(wait) {
                    Ok(message) => player.took(message, true),
                    Err(error) => Came::Failed(error),
                });
            }
            9 => {
                let (to, bits) = (self.other(), 1 << self.chance.below(4));
                self.record(What::Notify { to, bits }, |player| done(player.port.notify(endpoint(to), bits)));
            }
            10 => {
                let wait = self.wait();
                self.record(What::WaitEvent, |player| player.wait_event(wait));
            }
            _ => {
                if let Some((to, request)) = self.owed.pop_back() {
                    self.reply(to, request);
                }
            }
        }
    }

    fn record(&mut self, what: What, call: impl FnOnce(&mut Self) -> Came) -> Came {
        let begun = self.begin.elapsed();
        let came = call(self);
        self.calls.push(Call { by: self.index, begun, ended: self.begin.elapsed(), what, came });
        came
    }

    fn receive(&mut self, source: Source, wait: Wait) -> Came {
        match self.port.receive(source, wait) {
            Ok(message) => self.took(message, true),
            Err(error) => Came::Failed(error),
        }
    }

    fn wait_event(&mut self, wait: Wait) -> Came {
        match self.port.wait_event(wait) {
            Ok(Event::Message(message)) => self.took(message, true),
            Ok(Event::Notified { from, mask }) => Came::Bits { from: player(from), bits: mask },
            Ok(other) => panic!("{other:?}"),
            Err(error) => Came::Failed(error),
        }
    }

    fn took(&mut self, message: Message, may_owe: bool) -> Came {
        let from = player(message.source.unwrap());
        let is_request = message.kind == REQUEST;
        if is_request && may_owe {
            self.owed.retain(|(caller, _)| *caller != from);
            self.owed.push_back((from, message.word(0)));
        }
        Came::Message { from, message: message.word(0), is_request }
    }
}

fn done(result: Result<(), IpcError>) -> Came {
    result.map_or_else(Came::Failed, |()| Came::Done)
}
