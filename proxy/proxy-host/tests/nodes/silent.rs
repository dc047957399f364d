//! A peer that says nothing any more, and does not close: suspected, given up, and taken back.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{self, PATIENCE, Pair, RunningProxy, Way, Which};
use abi::{Endpoint, Message};
use ipc::Wait;
use proxy_host::control::LinkState;
use proxy_host::transport::Encryption;
use proxy_link::LinkTimes;
use rustix::process::{Pid, Signal, kill_process};

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);
const SUSPECT: Duration = Duration::from_millis(300);
const DOWN: Duration = Duration::from_millis(1500);
/// What a loaded machine may add.
const SLACK: Duration = Duration::from_millis(700);
const TRIES: usize = 5;
/// The last request.
const END: i32 = 0;

fn silent_peer_is_suspected_in_300_ms_given_up_at_the_limit_and_taken_back(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let down_ms = DOWN.as_millis() as u64;
    let (_proxy_a, control_a) = pair.a.spawn_proxy(&peer_b, down_ms);
    let (proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, down_ms);
    control_a.wait_until_up();
    let RunningProxy::Process(child) = &proxy_b else { panic!("a process") };
    let pid = Pid::from_child(child);

    let is = |state| move |status: &proxy_host::control::FromProxy| status.links.iter().any(|link| link.state == state);
    once_in_time(|| {
        kill_process(pid, Signal::STOP).expect("stopped");
        let stopped = Instant::now();
        control_a.wait_until(is(LinkState::Suspect));
        let suspected = stopped.elapsed();
        control_a.wait_until(is(LinkState::Down));
        let given_up = stopped.elapsed();
        kill_process(pid, Signal::CONT).expect("goes on");
        control_a.wait_until(is(LinkState::Up));
        eprintln!("{way:?}: suspected after {suspected:?}, given up after {given_up:?}");
        is_in_time(suspected, SUSPECT) && is_in_time(given_up, DOWN)
    });
}

/// A loaded machine is late, or suspects a peer that only waits for its turn: one try of several counts.
fn once_in_time(mut attempt: impl FnMut() -> bool) {
    assert!((0..TRIES).any(|_| attempt()), "never in time");
}

fn is_in_time(took: Duration, limit: Duration) -> bool {
    // The peer was heard last at most one heartbeat before it fell silent.
    (limit - Duration::from_millis(150)..limit + SLACK).contains(&took)
}

/// A cable that is pulled, and plugged in again: the session of the transport and then the link come back by
/// themselves.
#[test]
fn pulled_cable_is_suspected_in_300_ms_and_what_waits_is_delivered_when_it_is_back() {
    if !common::can_use_namespaces() {
        return;
    }
    let mut pair = Pair::over(Way::Eth);
    let times = LinkTimes { down: Duration::from_secs(10), ..LinkTimes::default() };
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (_proxy_a, control_a) = pair.a.start_proxy(&peer_b, Encryption::Tls, times);
    let (_proxy_b, _control_b) = pair.b.start_proxy(&peer_a, Encryption::Tls, times);
    control_a.wait_until_up();
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || {
        loop {
            let request = server.rcvrqst(WAIT).expect("a request");
            server.reply(request.source.expect("a source"), &request).expect("replied");
            if request.kind == END {
                return;
            }
        }
    });
    client.sendrec(SERVER, &Message::new(1), WAIT).expect("answered");

    let cable = pair.cable();
    once_in_time(|| {
        cable.pull();
        let pulled = Instant::now();
        let suspected = thread::scope(|scope| {
            let calling = scope.spawn(|| client.sendrec(SERVER, &Message::new(2), WAIT).expect("answered").kind);
            control_a.wait_until(|status| status.links.iter().any(|link| link.state == LinkState::Suspect));
            let suspected = pulled.elapsed();
            cable.plug();
            assert_eq!(calling.join().expect("answered"), 2);
            suspected
        });
        eprintln!("suspected after {suspected:?}");
        is_in_time(suspected, SUSPECT)
    });
    client.sendrec(SERVER, &Message::new(END), WAIT).expect("answered");
    served.join().expect("served");
}

crate::over_each_transport!(silent_peer_is_suspected_in_300_ms_given_up_at_the_limit_and_taken_back);
