//! Two nodes over loopback: round trips of a remote call and bytes of a ring, beside plain TCP in the same run.
//!
//! `cargo run -p proxy-host --example link_bench [unix|eth|quic]` prints medians of alternating runs. Brokers, proxies
//! and parties are threads of one process.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Endpoint, Message};
use common::{Pair, Way, Which, calm_times};
use ipc::{Completion, Event, Port, RingSpec, Submission, Wait};
use proxy_host::transport::Encryption;

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(Duration::from_secs(60));
const RUNS: usize = 5;
const CALLS: u32 = 5_000;
const READ_BYTES: u32 = 1 << 20;
const READS: u32 = 1_000;
const DEPTH: u32 = 8;

fn main() {
    let way = match std::env::args().nth(1).as_deref() {
        Some("unix") => Way::Unix,
        Some("eth") => Way::Eth,
        Some("quic") => Way::Quic,
        _ => Way::Tcp,
    };
    // QUIC has no plain form.
    let encryptions = [Encryption::Tls, Encryption::Plain].into_iter().take(if way == Way::Quic { 1 } else { 2 });
    for encryption in encryptions {
        let mut pair = Pair::over(way);
        let _proxies = pair.start_proxies(encryption, calm_times());
        let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
        thread::spawn(move || serve(&mut server));
        let (mut ours, mut tcp) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            ours.push(calls(&mut client));
            tcp.push(tcp_calls());
        }
        println!(
            "{encryption:?}: remote call {:.1} us a round trip (runs {ours:.1?}), plain TCP {:.1} us",
            median(&ours),
            median(&tcp)
        );
        let spec = RingSpec { entries: DEPTH * 2, arena_bytes: DEPTH * READ_BYTES };
        let ring = client.open_ring(SERVER, spec, WAIT).expect("opened");
        let (mut ours, mut tcp) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            ours.push(reads(&ring));
            tcp.push(tcp_reads());
        }
        println!(
            "{encryption:?}: ring of 1 MiB reads, {DEPTH} in flight, {:.0} MB/s (runs {ours:.0?}), plain TCP {:.0} MB/s",
            median(&ours),
            median(&tcp)
        );
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn serve(server: &mut Port) {
    let mut ring = None;
    loop {
        match server.wait_event(WAIT) {
            Ok(Event::Message(request)) => {
                let _ = server.reply(request.source.expect("a source"), &request);
            }
            Ok(Event::RingOpened(opened)) => ring = Some(opened),
            Ok(Event::RingReady(_)) => {
                let Some(ring) = &ring else { continue };
                while let Ok(Some(request)) = ring.next() {
                    let completion =
                        Completion { tag: request.tag, in_bytes: request.in_capacity, ..Completion::default() };
                    ring.complete(&completion).expect("room");
                }
                ring.publish();
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn calls(client: &mut Port) -> f64 {
    let start = Instant::now();
    for number in 0..CALLS {
        let request = Message::new(1).with_word(0, u64::from(number));
        client.sendrec(SERVER, &request, WAIT).expect("answered");
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
}

fn reads(ring: &ipc::RingClient) -> f64 {
    let submit = |slot: u32| {
        let request =
            Submission { tag: slot, arena_offset: slot * READ_BYTES, in_capacity: READ_BYTES, ..Submission::default() };
        ring.submit(&request).expect("room");
    };
    let start = Instant::now();
    (0..DEPTH).for_each(submit);
    ring.publish();
    let (mut submitted, mut answered) = (DEPTH, 0);
    while answered < READS {
        ring.wait(WAIT).expect("an answer");
        while let Some(completion) = ring.poll().expect("no error") {
            answered += 1;
            if submitted < READS {
                submit(completion.tag);
                submitted += 1;
            }
        }
        ring.publish();
    }
    f64::from(READS) * f64::from(READ_BYTES) / start.elapsed().as_secs_f64() / 1e6
}

fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let dialled = TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
    let accepted = listener.accept().expect("accepted").0;
    for stream in [&dialled, &accepted] {
        stream.set_nodelay(true).expect("no delay");
    }
    (dialled, accepted)
}

fn tcp_calls() -> f64 {
    let (mut client, mut server) = tcp_pair();
    let served = thread::spawn(move || {
        let mut message = [0; 64];
        while server.read_exact(&mut message).is_ok() {
            server.write_all(&message).expect("written");
        }
    });
    let start = Instant::now();
    let mut message = [1; 64];
    for _ in 0..CALLS {
        client.write_all(&message).expect("written");
        client.read_exact(&mut message).expect("read");
    }
    let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS);
    drop(client);
    served.join().expect("ended");
    micros
}

fn tcp_reads() -> f64 {
    let (mut client, mut server) = tcp_pair();
    let served = thread::spawn(move || {
        let data = vec![7; READ_BYTES as usize];
        for _ in 0..READS {
            server.write_all(&data).expect("written");
        }
    });
    let mut data = vec![0; READ_BYTES as usize];
    let start = Instant::now();
    for _ in 0..READS {
        client.read_exact(&mut data).expect("read");
    }
    let rate = f64::from(READS) * f64::from(READ_BYTES) / start.elapsed().as_secs_f64() / 1e6;
    served.join().expect("ended");
    rate
}
