//! Round trips a second of sendrec between two processes, beside a pair of pipes. Alternates the two; prints medians.
//!
//! `cargo run -p broker --example pingpong`

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use broker::{Broker, BrokerConfig, DcOptions, Peers, Privileges};
use ipc::{DcId, Endpoint, Message, Port, Wait};

const ROUNDS: usize = 5;
const PIPE_TRIPS: u32 = 20_000;
const IPC_TRIPS: u32 = 400_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("echo-pipe") => echo_pipe(),
        Some("echo-ipc") => echo_ipc(arguments[2].as_str().into()),
        _ => compare(),
    }
}

fn compare() {
    let directory = std::env::temp_dir().join(format!("pingpong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory for the socket");
    let path = directory.join("m3ipc");
    let broker = Broker::start(BrokerConfig::local()).expect("a broker");
    let open = Privileges { messages: Peers::Any, rings: Peers::Any };
    let options = DcOptions { listen: Some(path.clone()), program_privileges: open, ..DcOptions::default() };
    broker.add_dc(DcId(1), options).expect("a container");
    let (mut pipes, mut calls) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        pipes.push(pipe_rate());
        calls.push(ipc_rate(&path));
        println!("round {round}: pipe {:>9.0}/s   sendrec {:>9.0}/s", pipes[round - 1], calls[round - 1]);
    }
    let (pipe, call) = (median(pipes), median(calls));
    println!(
        "median: pipe {pipe:.0}/s, sendrec {call:.0}/s round trips of 64 bytes, unpinned: {:.1} times",
        call / pipe
    );
    broker.shutdown();
    let _ = std::fs::remove_dir_all(&directory);
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

fn ipc_rate(path: &PathBuf) -> f64 {
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

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
