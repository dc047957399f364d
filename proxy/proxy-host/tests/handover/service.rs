//! The service that hands itself over: what each of its two processes does, and what the test tells and hears.
//!
//! A process is the owner of the endpoint, or it stands by as a backup; each hand-over swaps that. Besides, each has an
//! endpoint of its own, over which the state goes: the owner, which is held and so takes nothing any more, lends it,
//! and the next owner copies it before it takes a request. Nothing else connects the two.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use abi::{Endpoint, Epoch, GrantId, IpcError, Message, NodeId, Source};
use ipc::{Arena, Direction, Place, Port, Wait};
use rustix::time::{ClockId, clock_gettime};

pub const SERVICE: Endpoint = Endpoint::DS;
pub const CLIENTS: usize = 16;
pub const SOON: Wait = Wait::For(Duration::from_secs(20));
/// Answers between two hand-overs.
const CALLS_EACH: u32 = 40;
/// A client's number and its last message.
const BYTES_EACH: usize = 8;

/// Payload words of a client's message, and of its answer.
pub const IS_SENT: usize = 0;
pub const EPOCH: usize = 0;

/// The same in all processes of the machine.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the service is, besides its endpoint: the last number of each client, negative once that is done.
#[derive(Default)]
struct State(BTreeMap<u32, i32>);

impl State {
    fn take(&mut self, client: Endpoint, number: i32) {
        let last = self.0.entry(client.number()).or_default();
        if number < 0 {
            assert_eq!(-number, *last, "the end of {client}");
        } else {
            assert_eq!(number, *last + 1, "of {client}: a message is lost, doubled or out of order");
        }
        *last = number;
    }

    fn is_done(&self) -> bool {
        self.0.values().filter(|last| **last < 0).count() == CLIENTS
    }

    fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|(client, last)| [client.to_le_bytes(), last.to_le_bytes()].concat()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> State {
        let word = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).expect("four bytes");
        let pair = |bytes: &[u8]| (u32::from_le_bytes(word(&bytes[..4])), i32::from_le_bytes(word(&bytes[4..])));
        State(bytes.chunks_exact(BYTES_EACH).map(pair).collect())
    }
}

/// The other process.
struct Peer {
    node: NodeId,
    pid: i32,
    side: Endpoint,
}

struct Process {
    socket: PathBuf,
    side: Port,
    peer: Peer,
    /// Of the owner that hands itself to nobody.
    last: Epoch,
}

/// A process of the service: told by its surroundings where the broker is and how often to hand over, by its first line
/// of input who the other one is.
pub fn main() {
    let Ok(socket) = std::env::var("SERVICE_SOCKET").map(PathBuf::from) else { return };
    let moves: u64 = std::env::var("SERVICE_MOVES").expect("moves").parse().expect("a number");
    let side = Port::connect(&socket, None).expect("bound");
    say(&format!("side {} {}", side.endpoint(), std::process::id()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("who the other one is");
    let words: Vec<u32> = line.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [node, pid, endpoint] = words[..] else { panic!("{line}") };
    let side_of_peer = Endpoint::new(endpoint).expect("an endpoint");
    let peer = Peer { node: NodeId(node as u16), pid: pid as i32, side: side_of_peer };
    Process { socket, side, peer, last: Epoch(moves + 1) }.run();
}

fn say(line: &str) {
    println!("service: {line}");
    std::io::stdout().flush().expect("the test listens");
}

impl Process {
    fn run(mut self) {
        self.side.wait4bind(self.peer.side, SOON).expect("there");
        loop {
            let (mut port, mut state) = self.become_owner();
            let epoch = port.epoch();
            let calls = if epoch == self.last { u32::MAX } else { CALLS_EACH };
            self.serve(&mut port, &mut state, calls);
            if epoch == self.last {
                return;
            }
            self.hand_over(&mut port, &state);
            if Epoch(epoch.0 + 1) == self.last {
                return;
            }
        }
    }

    /// The first owner is promoted, and begins with nothing.
    fn become_owner(&mut self) -> (Port, State) {
        let socket = self.socket.clone();
        thread::scope(|scope| {
            let standing_by = scope.spawn(|| stand_by(&socket));
            let state = loop {
                match self.side.receive(Source::From(self.peer.side), Wait::For(Duration::from_millis(50))) {
                    Ok(offer) => break self.copy(&offer),
                    Err(IpcError::TimedOut) if standing_by.is_finished() => break State::default(),
                    Err(IpcError::TimedOut) => {}
                    Err(error) => panic!("no state: {error}"),
                }
            };
            (standing_by.join().expect("the next owner"), state)
        })
    }

    fn copy(&mut self, offer: &Message) -> State {
        let place = Place { owner: self.peer.side, grant: GrantId::from_number(offer.word(0)), offset: 0 };
        let mut bytes = vec![0; offer.word(1) as usize];
        self.side.copy_from(place, &mut bytes, SOON).expect("copied");
        self.side.reply(self.peer.side, &Message::new(0)).expect("answered");
        State::from_bytes(&bytes)
    }

    fn serve(&mut self, port: &mut Port, state: &mut State, calls: u32) {
        for _ in 0..calls {
            if state.is_done() {
                return;
            }
            let message = port.receive(Source::Any, SOON).unwrap_or_else(|error| panic!("{:?}: {error}", port.epoch()));
            let client = message.source.expect("a source");
            state.take(client, message.kind);
            if message.word(IS_SENT) == 0 {
                let answer = Message::new(message.kind).with_word(EPOCH, port.epoch().0);
                port.reply(client, &answer).expect("answered");
            }
        }
    }

    fn hand_over(&mut self, port: &mut Port, state: &State) {
        let held = now();
        port.migration_start(SERVICE, SOON).expect("held");
        self.lend(state);
        let committed = loop {
            let begin = now();
            match port.migration_commit(SERVICE, self.peer.node, self.peer.pid, SOON) {
                Ok(()) => break begin,
                // The next owner has not said yet that it stands by.
                Err(IpcError::NoSuchEndpoint) => thread::yield_now(),
                Err(error) => panic!("cannot be handed over: {error}"),
            }
        };
        assert_eq!(port.receive(Source::Any, Wait::NoWait), Err(IpcError::Moved));
        say(&format!("moved {} {} {}", port.epoch().0 + 1, held.as_nanos(), committed.as_nanos()));
    }

    fn lend(&mut self, state: &State) {
        let bytes = state.to_bytes();
        let memory = Arena::private(bytes.len()).expect("memory");
        memory.copy_in(0, &bytes).expect("it fits");
        let grant = self.side.grant(self.peer.side, &memory, Direction::Read).expect("lent");
        let offer = Message::new(0).with_word(0, grant.number()).with_word(1, bytes.len() as u64);
        self.side.sendrec(self.peer.side, &offer, SOON).expect("the next owner has it");
        self.side.revoke(grant).expect("taken back");
    }
}

fn stand_by(socket: &Path) -> Port {
    Port::stand_by(socket, SERVICE, SOON).expect("the next owner")
}

/// A process of the service, in the hands of the test. It ends with it.
pub struct Running {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    pub node: NodeId,
    pub pid: i32,
    side: Endpoint,
}

/// When an owner was held, and when it began to commit.
#[derive(Clone, Copy)]
pub struct Move {
    pub held: Duration,
    pub committed: Duration,
}

impl Running {
    /// `test`: the one in this binary that calls [`main`].
    pub fn start(node: NodeId, socket: &Path, moves: u64, test: &str) -> Running {
        let mut child = Command::new(std::env::current_exe().expect("own path"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env("SERVICE_SOCKET", socket)
            .env("SERVICE_MOVES", moves.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut running = Running { child, input, lines, node, pid: 0, side: SERVICE };
        let said = running.next().expect("it says who it is");
        let words: Vec<&str> = said.split(' ').collect();
        let ["side", side, pid] = words[..] else { panic!("{said}") };
        running.side = Endpoint::new(side.parse().expect("a number")).expect("an endpoint");
        running.pid = pid.parse().expect("a number");
        running
    }

    pub fn tell_of(&mut self, other: &Running) {
        writeln!(self.input, "{} {} {}", other.node, other.pid, other.side).expect("it listens");
    }

    /// What it did, by the epoch that began with it; after it has ended, as it should.
    pub fn moves(mut self) -> Vec<(u64, Move)> {
        let mut moves = Vec::new();
        while let Some(said) = self.next() {
            let words: Vec<&str> = said.split(' ').collect();
            let ["moved", epoch, held, committed] = words[..] else { panic!("{said}") };
            let time = |nanos: &str| Duration::from_nanos(nanos.parse().expect("a number"));
            moves.push((epoch.parse().expect("a number"), Move { held: time(held), committed: time(committed) }));
        }
        assert!(self.child.wait().expect("it ends").success(), "a process of the service failed");
        moves
    }

    fn next(&mut self) -> Option<String> {
        self.lines.find_map(|line| line.ok()?.split_once("service: ").map(|(_, said)| said.to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
