//! Whether processes gain by moving to the CPU on which the message they take was written ("affinity inheritance"):
//! round trips a second of pairs that are left alone, kept on two CPUs, kept on one, of which the caller follows the
//! server, and of which each follows the other; alternating in one run. What came of it is in `docs/design/bench.md`.
//!
//! `cargo run --release -p broker --example affinity [ROUNDS [PAIRS]]`

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use ipc::{DcId, Endpoint, Message, Port, WAIT_MODE_VARIABLE, Wait};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(500);
const LAST: i32 = -1;
const MODES: [&str; 2] = ["park", "adaptive"];
const SIZES: [usize; 2] = [0, 2048];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Placement {
    Free,
    TwoCpus,
    OneCpu,
    /// The caller keeps to the CPU on which the last answer was written.
    CallerFollows,
    /// And the server to the one on which the last request was written.
    EachFollows,
}

const PLACEMENTS: [Placement; 5] =
    [Placement::Free, Placement::TwoCpus, Placement::OneCpu, Placement::CallerFollows, Placement::EachFollows];

impl Placement {
    fn named(name: &str) -> Placement {
        PLACEMENTS.into_iter().find(|it| format!("{it:?}") == name).expect("a placement")
    }
}

/// Who keeps to the CPU on which the last message was written.
struct Follower {
    at: Option<usize>,
    moves: u64,
}

impl Follower {
    fn new() -> Follower {
        Follower { at: None, moves: 0 }
    }

    fn follow(&mut self, message: &Message) {
        let cpu = message.word(0) as usize;
        if self.at != Some(cpu) {
            keep_to(cpu);
            (self.at, self.moves) = (Some(cpu), self.moves + 1);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("echo") => echo(arguments[2].as_str().as_ref(), &arguments[3]),
        Some("call") => call(&arguments[2..]),
        _ => {
            let number = |index: usize| arguments.get(index).and_then(|text| text.parse().ok());
            compare(number(1).unwrap_or(ROUNDS).max(1), number(2).unwrap_or(1).max(1));
        }
    }
}

fn compare(rounds: usize, pairs: usize) {
    let directory = std::env::temp_dir().join(format!("affinity-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the socket");
    let path = directory.join("m3ipc");
    let broker = Broker::start(BrokerConfig::local()).expect("a broker");
    let options =
        DcOptions { listen: Some(path.clone()), program_privileges: Privileges::server(), ..DcOptions::default() };
    broker.add_dc(DcId(1), options).expect("a container");
    println!(
        "round trips a second of {pairs} pairs, median of {rounds} (least to most); moves of callers in a thousand"
    );
    for mode in MODES {
        for bytes in SIZES {
            let mut seen = PLACEMENTS.map(|_| Vec::new());
            let mut moves = PLACEMENTS.map(|_| 0.0);
            for _ in 0..rounds {
                for (index, placement) in PLACEMENTS.into_iter().enumerate() {
                    let (rate, moved) = run(&path, mode, bytes, placement, pairs);
                    seen[index].push(rate);
                    moves[index] = moved;
                }
            }
            for ((placement, mut rates), moved) in PLACEMENTS.into_iter().zip(seen).zip(moves) {
                rates.sort_by(f64::total_cmp);
                println!(
                    "{mode:<8} {:>4} bytes  {:<13} {:>9.0}   ({:.0} to {:.0})   {moved:.1}",
                    64 + bytes,
                    format!("{placement:?}"),
                    rates[rounds / 2],
                    rates[0],
                    rates[rounds - 1],
                );
            }
        }
    }
    broker.shutdown();
    let _ = std::fs::remove_dir_all(&directory);
}

/// Round trips a second of all pairs, and how often callers moved in a thousand of them.
fn run(path: &Path, mode: &str, bytes: usize, placement: Placement, pairs: usize) -> (f64, f64) {
    let path = path.to_str().expect("a path");
    let placed = format!("{placement:?}");
    let start = |_| {
        let mut echo = child(mode, &["echo", path, &placed]);
        let mut number = [0; 4];
        echo.stdout.take().expect("stdout").read_exact(&mut number).expect("its endpoint");
        let server = u32::from_le_bytes(number).to_string();
        (echo, child(mode, &["call", path, &placed, &server, &bytes.to_string()]))
    };
    let started: Vec<(Child, Child)> = (0..pairs).map(start).collect();
    let (mut trips, mut moves) = (0.0, 0.0);
    for (mut echo, mut caller) in started {
        let mut said = String::new();
        caller.stdout.take().expect("stdout").read_to_string(&mut said).expect("figures");
        let (rate, moved) = said.trim().split_once(' ').expect("two figures");
        trips += rate.parse::<f64>().expect("a rate");
        moves += moved.parse::<f64>().expect("a share");
        let _ = (caller.wait(), echo.wait());
    }
    (trips, moves / pairs as f64)
}

fn child(mode: &str, arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(arguments).env(WAIT_MODE_VARIABLE, mode).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("a child")
}

fn keep_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("placed");
}

/// The first and the last CPU that there is.
fn ends() -> (usize, usize) {
    let all = sched_getaffinity(None).expect("CPUs");
    let mut there = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
    let first = there.next().unwrap_or(0);
    (first, there.next_back().unwrap_or(first))
}

fn echo(path: &Path, placement: &str) {
    let placement = Placement::named(placement);
    if matches!(placement, Placement::TwoCpus | Placement::OneCpu) {
        keep_to(ends().0);
    }
    let mut follower = Follower::new();
    let mut port = Port::connect(path, None).expect("a port");
    let mut out = std::io::stdout();
    std::io::Write::write_all(&mut out, &port.endpoint().number().to_le_bytes()).expect("written");
    std::io::Write::flush(&mut out).expect("written");
    loop {
        let request = port.rcvrqst(Wait::Forever).expect("a request");
        let data = port.inline().to_vec();
        if placement == Placement::EachFollows {
            follower.follow(&request);
        }
        let reply = request.with_word(0, sched_getcpu() as u64);
        port.reply_inline(request.source.expect("a source"), &reply, &data).expect("replied");
        if request.kind == LAST {
            return;
        }
    }
}

fn call(arguments: &[String]) {
    let placement = Placement::named(&arguments[1]);
    match placement {
        Placement::TwoCpus => keep_to(ends().1),
        Placement::OneCpu => keep_to(ends().0),
        Placement::Free | Placement::CallerFollows | Placement::EachFollows => {}
    }
    let mut port = Port::connect(arguments[0].as_ref(), None).expect("a port");
    let server = Endpoint::new(arguments[2].parse().expect("a number")).expect("an endpoint");
    let data = vec![1; arguments[3].parse().expect("a size")];
    let (mut trips, mut follower, begun) = (0_u64, Follower::new(), Instant::now());
    while trips % 64 != 0 || begun.elapsed() < TIME {
        let request = Message::new(1).with_word(0, sched_getcpu() as u64);
        let reply = port.sendrec_inline(server, &request, &data, Wait::Forever).expect("a reply");
        if matches!(placement, Placement::CallerFollows | Placement::EachFollows) {
            follower.follow(&reply);
        }
        trips += 1;
    }
    let rate = trips as f64 / begun.elapsed().as_secs_f64();
    println!("{rate} {}", follower.moves as f64 * 1000.0 / trips as f64);
    port.sendrec(server, &Message::new(LAST), Wait::Forever).expect("the last reply");
}
