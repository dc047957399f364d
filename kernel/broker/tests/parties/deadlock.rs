//! Deadlocks on one node: how long it takes to find one.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::OneNode;
use broker_api::{FromPort, IfAbsent, Message as _, WaitId};
use ipc::conformance::World;
use ipc::{Endpoint, IpcError, Message, Port, Source, Wait};

const SOON: Wait = Wait::For(Duration::from_secs(10));
/// From the last call of a circle until one is refused, on a node that has nothing else to do.
const FOUND_WITHIN: Duration = Duration::from_millis(10);
const TRIES: usize = 20;

fn serve_one(port: &mut Port, from: Endpoint) {
    let request = port.receive(Source::From(from), SOON).unwrap();
    port.reply(from, &request).unwrap();
}

/// The machine may be busy, so the quickest of several counts.
#[test]
fn circle_of_calls_is_found_within_ten_milliseconds() {
    let world = OneNode::new();
    let [mut low, mut middle, mut high] = [Endpoint::FS, Endpoint::DS, Endpoint::PM].map(|it| world.server(it, 1));
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let begun = Barrier::new(3);
        thread::scope(|scope| {
            let (low, middle, high, begun) = (&mut low, &mut middle, &mut high, &begun);
            scope.spawn(move || {
                begun.wait();
                low.sendrec(Endpoint::DS, &Message::new(1), Wait::Forever).unwrap();
            });
            scope.spawn(move || {
                begun.wait();
                middle.sendrec(Endpoint::PM, &Message::new(1), Wait::Forever).unwrap();
                serve_one(middle, Endpoint::FS);
            });
            begun.wait();
            let start = Instant::now();
            assert_eq!(high.sendrec(Endpoint::FS, &Message::new(1), Wait::Forever), Err(IpcError::Deadlock));
            times.push(start.elapsed());
            serve_one(high, Endpoint::DS);
        });
    }
    times.sort_unstable();
    eprintln!("found after {:?} to {:?}, median {:?}", times[0], times[TRIES - 1], times[TRIES / 2]);
    assert!(times[0] < FOUND_WITHIN, "{times:?}");
}

#[test]
fn program_that_tells_of_waits_without_end_disturbs_nobody() {
    let world = OneNode::new();
    let [mut server, mut client] = [Endpoint::FS, Endpoint::DS].map(|it| world.server(it, 1));
    let socket = sys::seqpacket::connect(&world.socket()).unwrap();
    let send =
        |request: u32, message: FromPort| sys::seqpacket::send(&socket, &message.to_bytes(request), &[&socket; 0]);
    send(1, FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks }).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for serial in 0..20_000_u32 {
                // To itself, to a server, and confirmations of what nobody asked.
                let peer = Endpoint::new(serial % 400).unwrap();
                let wait = WaitId(serial);
                let told =
                    if serial % 3 == 0 { FromPort::StillWaiting { wait } } else { FromPort::Waits { wait, peer } };
                // A full socket is the broker's right to let it wait, a closed one to end it.
                match send(0, told) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::yield_now(),
                    Err(_) => return,
                    Ok(()) => {}
                }
            }
        });
        scope.spawn(|| (0..200).for_each(|_| serve_one(&mut server, Endpoint::DS)));
        for round in 0..200 {
            let answer = client.sendrec(Endpoint::FS, &Message::new(round), SOON).unwrap();
            assert_eq!(answer.kind, round);
        }
    });
}
