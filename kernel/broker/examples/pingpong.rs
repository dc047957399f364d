//! Round trips a second of sendrec between two processes, beside a pair of pipes: both unpinned, alternating in one
//! run. Prints each round, medians, the spread, the median of the rounds' ratios, the load before and the steal during
//! the run.
//!
//! `cargo run --release -p broker --example pingpong [ROUNDS]`

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use broker::{Broker, BrokerConfig, DcOptions, Privileges};
use ipc::{DcId, Endpoint, Message, Port, Wait};

const ROUNDS: usize = 7;
/// About a second each: where the two processes run at first counts little.
const PIPE_TRIPS: u32 = 60_000;
const IPC_TRIPS: u32 = 1_500_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("echo-pipe") => echo_pipe(),
        Some("echo-ipc") => echo_ipc(arguments[2].as_str().into()),
        rounds => compare(rounds.and_then(|text| text.parse().ok()).unwrap_or(ROUNDS).max(1)),
    }
}

fn compare(rounds: usize) {
    let directory = std::env::temp_dir().join(format!("pingpong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the socket");
    let path = directory.join("m3ipc");
    let broker = Broker::start(BrokerConfig::local()).expect("a broker");
    let open = Privileges::server();
    let options = DcOptions { listen: Some(path.clone()), program_privileges: open, ..DcOptions::default() };
    broker.add_dc(DcId(1), options).expect("a container");
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let before = Cpu::now();
    let (mut pipes, mut calls, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let (pipe, call) = (pipe_rate(), ipc_rate(&path));
        println!("round {round}: pipe {pipe:>9.0}/s   sendrec {call:>9.0}/s   {:>5.1} times", call / pipe);
        pipes.push(pipe);
        calls.push(call);
        ratios.push(call / pipe);
    }
    let stolen = Cpu::now().since(&before);
    println!("round trips of 64 bytes, two processes, unpinned, adaptive waiting; load before: {}", load.trim());
    println!("pipe     {}", Spread::of(pipes));
    println!("sendrec  {}", Spread::of(calls));
    println!("ratio    {}   steal {stolen:.1} %", Spread::of(ratios));
    broker.shutdown();
    let _ = std::fs::remove_dir_all(&directory);
}

/// Ticks of all CPUs: stolen by the host, and in total.
struct Cpu {
    steal: f64,
    total: f64,
}

impl Cpu {
    fn now() -> Cpu {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest time is part of user's.
        let ticks: Vec<f64> = line.split_whitespace().skip(1).take(8).filter_map(|one| one.parse().ok()).collect();
        Cpu { steal: ticks.get(7).copied().unwrap_or(0.0), total: ticks.iter().sum() }
    }

    /// Percent of all time that the host took away.
    fn since(&self, before: &Cpu) -> f64 {
        100.0 * (self.steal - before.steal) / (self.total - before.total).max(1.0)
    }
}

/// Median, least and most.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        Spread { median: values[values.len() / 2], least: values[0], most: values[values.len() - 1] }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "median {:>10.1}   ({:.1} to {:.1})", self.median, self.least, self.most)
    }
}

fn pipe_rate() -> f64 {
    let mut echo = child(&["echo-pipe"]);
    let (mut to, mut from) = (echo.stdin.take().expect("stdin"), echo.stdout.take().expect("stdout"));
    let mut buffer = [0; 64];
    let begin = Instant::now();
    for _ in 0..PIPE_TRIPS {
        to.write_all(&buffer).expect("write");
        from.read_exact(&mut buffer).expect("read");
    }
    let rate = f64::from(PIPE_TRIPS) / begin.elapsed().as_secs_f64();
    drop(to);
    let _ = echo.wait();
    rate
}

fn ipc_rate(path: &Path) -> f64 {
    let mut echo = child(&["echo-ipc", path.to_str().expect("a path")]);
    let mut number = [0; 4];
    echo.stdout.take().expect("stdout").read_exact(&mut number).expect("its endpoint");
    let server = Endpoint::new(u32::from_le_bytes(number)).expect("an endpoint");
    let mut port = Port::connect(path, None).expect("a port");
    let begin = Instant::now();
    for trip in 0..IPC_TRIPS {
        let reply = port.sendrec(server, &Message::new(trip as i32), Wait::Forever).expect("a reply");
        assert_eq!(reply.kind, trip as i32);
    }
    let rate = f64::from(IPC_TRIPS) / begin.elapsed().as_secs_f64();
    port.sendrec(server, &Message::new(-1), Wait::Forever).expect("the last reply");
    let _ = echo.wait();
    rate
}

fn child(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program");
    Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child")
}

fn echo_pipe() {
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut buffer = [0; 64];
    while from.read_exact(&mut buffer).is_ok() {
        to.write_all(&buffer).and_then(|()| to.flush()).expect("write");
    }
}

fn echo_ipc(path: PathBuf) {
    let mut port = Port::connect(&path, None).expect("a port");
    let number = port.endpoint().number().to_le_bytes();
    std::io::stdout().write_all(&number).and_then(|()| std::io::stdout().flush()).expect("write");
    loop {
        let request = port.rcvrqst(Wait::Forever).expect("a request");
        let caller = request.source.expect("a caller");
        port.reply(caller, &request).expect("it waits");
        if request.kind == -1 {
            return;
        }
    }
}
