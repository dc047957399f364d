//! Processes of two nodes talk through two proxies as if they were on one.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Pair, UP, Way, Which, calm_times};
use abi::{Endpoint, IpcError, Message};
use ipc::{Completion, Event, Port, RingClient, RingServer, RingSpec, Source, Submission, Wait};
use proxy_host::control::PeerAddress;
use proxy_host::transport::Encryption;
use proxy_link::LinkTimes;

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);

/// Answers `count` requests with their number doubled and their data reversed.
fn answer(server: &mut Port, count: u64) {
    for _ in 0..count {
        let request = server.rcvrqst(WAIT).expect("a request");
        let data: Vec<u8> = server.inline().iter().rev().copied().collect();
        let reply = Message::new(1).with_word(0, request.word(0) * 2);
        server.reply_inline(request.source.expect("a source"), &reply, &data).expect("replied");
    }
}

fn call(client: &mut Port, number: u64) {
    let data = vec![number as u8; (number % 2049) as usize];
    let request = Message::new(7).with_word(0, number);
    let reply = client.sendrec_inline(SERVER, &request, &data, WAIT).expect("answered");
    assert_eq!((reply.kind, reply.word(0)), (1, number * 2));
    assert_eq!(client.inline(), &data[..]);
}

/// Whether the link says that it is encrypted.
fn calls_pass(way: Way, encryption: Encryption) -> bool {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (_proxy_a, control) = pair.a.start_proxy(&peer_b, encryption, calm_times());
    let _proxy_b = pair.b.start_proxy(&peer_a, encryption, calm_times());
    control.wait_until_up();
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || answer(&mut server, 300));
    (0..300).for_each(|number| call(&mut client, number * 7));
    served.join().expect("served");
    control.ask();
    control.next().links[0].tls
}

fn call_reaches_a_server_of_another_node_and_its_answer_comes_back(way: Way) {
    assert!(calls_pass(way, Encryption::Tls));
}

fn links_the_operator_trusts_work_without_encryption_except_over_quic_which_always_encrypts(way: Way) {
    assert_eq!(calls_pass(way, Encryption::Plain), way == Way::Quic);
}

fn node_with_the_higher_number_calls_as_well(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, mut server) = (pair.bind(Which::B, CLIENT), pair.bind(Which::A, SERVER));
    let served = thread::spawn(move || answer(&mut server, 20));
    (0..20).for_each(|number| call(&mut client, number));
    served.join().expect("served");
}

fn state_of_a_link_says_how_it_goes_and_what_passed(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (_proxy_a, control) = pair.a.start_proxy(&peer_b, Encryption::Tls, calm_times());
    let _proxy_b = pair.b.start_proxy(&peer_a, Encryption::Tls, calm_times());
    control.wait_until_up();
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || answer(&mut server, 20));
    (0..20).for_each(|number| call(&mut client, number));
    served.join().expect("served");
    // Asked until it is idle for as long as it takes to measure.
    let status = loop {
        control.ask();
        let status = control.next();
        if status.links[0].round_trip_us.is_some() {
            break status;
        }
        thread::yield_now();
    };
    let link = &status.links[0];
    assert_eq!((link.sent_messages, link.received_messages), (20, 20));
    assert_eq!((link.transport.as_str(), link.tls, link.reconnects), (pair.a.address.0, true, 0));
    assert!(link.sent_bytes > 20 * 64, "{link:?}");
}

fn notification_crosses_nodes(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    client.notify(SERVER, 0b101).expect("posted");
    match server.wait_event(WAIT).expect("an event") {
        Event::Notified { from, mask } => assert_eq!((from, mask), (CLIENT, 0b101)),
        other => panic!("{other:?}"),
    }
}

fn timed_send_that_nobody_takes_is_withdrawn_on_the_other_node(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let early = client.send(SERVER, &Message::new(1), Wait::For(Duration::from_millis(200)));
    assert_eq!(early, Err(IpcError::TimedOut));
    assert_eq!(server.receive(abi::Source::Any, Wait::NoWait).err(), Some(IpcError::TimedOut));
    let taken = thread::spawn(move || server.receive(abi::Source::Any, WAIT).expect("a message").kind);
    client.send(SERVER, &Message::new(2), WAIT).expect("taken");
    assert_eq!(taken.join().expect("taken"), 2);
}

/// Serves a ring: the answer's data is the request's, each byte plus one. Ends when the ring does.
fn serve_ring(server: &mut Port) -> u64 {
    let (mut ring, mut served): (Option<RingServer>, u64) = (None, 0);
    loop {
        match server.wait_event(WAIT).expect("an event") {
            Event::RingOpened(opened) => ring = Some(opened),
            Event::RingReady(_) => served += serve_ready(ring.as_ref().expect("opened before")),
            Event::RingClosed(..) => return served,
            other => panic!("{other:?}"),
        }
    }
}

fn serve_ready(ring: &RingServer) -> u64 {
    let mut served = 0;
    while let Some(request) = ring.next().expect("a correct client") {
        let arena = ring.arena();
        let offset = request.arena_offset as usize;
        let data = arena.to_vec(offset, request.out_bytes as usize).expect("in range");
        let changed: Vec<u8> = data.iter().map(|byte| byte.wrapping_add(1)).collect();
        arena.copy_in(offset, &changed).expect("in range");
        ring.complete(&Completion {
            tag: request.tag,
            sequence: request.sequence,
            in_bytes: request.out_bytes,
            ..Completion::default()
        })
        .expect("room");
        served += 1;
    }
    ring.publish();
    served
}

const ENTRIES: u32 = 16;
const SLOT_BYTES: u32 = 64 * 1024;

fn open_ring(client: &mut Port) -> RingClient {
    let spec = RingSpec { entries: ENTRIES, arena_bytes: ENTRIES * SLOT_BYTES };
    client.open_ring(SERVER, spec, WAIT).expect("opened")
}

/// Runs `count` requests with data through the ring, as many at once as it takes; every answer is checked.
fn run_ring(ring: &RingClient, count: u64, mut each: impl FnMut(u64)) {
    let (mut submitted, mut answered) = (0, 0);
    let mut under_way: Vec<Option<u64>> = vec![None; ENTRIES as usize];
    while answered < count {
        while submitted < count
            && let Some(tag) = under_way.iter().position(Option::is_none)
        {
            let bytes = (submitted * 7919 % u64::from(SLOT_BYTES)) as u32;
            let offset = tag as u32 * SLOT_BYTES;
            ring.arena().copy_in(offset as usize, &vec![submitted as u8; bytes as usize]).expect("in range");
            let request = Submission {
                tag: tag as u32,
                sequence: submitted,
                arena_offset: offset,
                out_bytes: bytes,
                in_capacity: bytes,
                ..Submission::default()
            };
            ring.submit(&request).expect("room");
            under_way[tag] = Some(submitted);
            submitted += 1;
        }
        ring.publish();
        ring.wait(WAIT).expect("an answer");
        while let Some(completion) = ring.poll().expect("no error") {
            let slot = under_way.get_mut(completion.tag as usize).expect("a tag of ours");
            let sequence = slot.take().expect("answered once");
            assert_eq!(completion.sequence, sequence);
            let offset = completion.tag as usize * SLOT_BYTES as usize;
            let data = ring.arena().to_vec(offset, completion.in_bytes as usize).expect("in range");
            assert_eq!(data.len() as u64, sequence * 7919 % u64::from(SLOT_BYTES));
            assert!(data.iter().all(|byte| *byte == (sequence as u8).wrapping_add(1)), "data of {sequence}");
            answered += 1;
            each(answered);
        }
    }
}

fn ring_carries_data_both_ways_between_nodes(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || serve_ring(&mut server));
    let ring = open_ring(&mut client);
    run_ring(&ring, 2000, |_| {});
    drop(ring);
    assert_eq!(served.join().expect("served"), 2000);
}

fn client_learns_that_the_server_on_the_other_node_died(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let died = thread::spawn(move || {
        server.rcvrqst(WAIT).expect("a request");
        drop(server);
    });
    let answer = client.sendrec(SERVER, &Message::new(1), WAIT);
    assert_eq!(answer.err(), Some(IpcError::SourceDied));
    died.join().expect("ended");
}

fn call_to_an_endpoint_nobody_holds_any_more_is_refused_and_not_silent(way: Way) {
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let (mut client, server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    drop(server);
    let answer = client.sendrec(SERVER, &Message::new(1), WAIT).expect_err("nobody is there");
    assert!(
        matches!(answer, IpcError::NoSuchEndpoint | IpcError::DestinationDied | IpcError::SourceDied),
        "{answer:?}"
    );
}

fn cut_link_ends_calls_with_no_link_and_calls_work_when_it_is_back(way: Way) {
    let mut pair = Pair::over(way);
    // Short, because the end of a link without a descriptor is its silence.
    let times = LinkTimes { down: Duration::from_secs(2), ..LinkTimes::default() };
    let (_proxy_a, proxy_b) = pair.start_proxies(Encryption::Tls, times);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || {
        answer(&mut server, 1);
        server
    });
    call(&mut client, 1);
    let mut server = served.join().expect("served");
    drop(proxy_b);
    let answer_without_link = client.sendrec(SERVER, &Message::new(1), WAIT);
    assert_eq!(answer_without_link.err(), Some(IpcError::NoLink));

    let peer = pair.a.as_peer();
    let _proxy_b = pair.b.start_proxy(&peer, Encryption::Tls, times);
    let served = thread::spawn(move || answer(&mut server, 1));
    client.wait4bind(SERVER, WAIT).expect("the node is back");
    call(&mut client, 2);
    served.join().expect("served");
}

#[test]
fn node_that_left_the_list_and_is_back_is_linked_by_the_first_connection() {
    let mut pair = Pair::over(Way::Tcp);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (_proxy_a, control) = pair.a.start_proxy(&peer_b, Encryption::Plain, calm_times());
    let _proxy_b = pair.b.start_proxy(&peer_a, Encryption::Plain, calm_times());
    control.wait_until_up();
    for change in 0..20 {
        let tls = change % 2 == 0;
        control.set_peers(&[PeerAddress { tls: Some(tls), ..peer_b.clone() }]);
        control.wait_until(|status| status.links[0].state == UP && status.links[0].tls == tls);
    }
    control.set_peers(&[]);
    control.wait_until(|status| status.links.is_empty());
    control.set_peers(&[peer_b]);
    let status = control.wait_until(|status| status.links.iter().any(|link| link.state == UP));
    assert_eq!(status.links[0].last_error, None);
}

/// From the last call of a circle until one is refused: two round trips and so much, on nodes that have nothing else to
/// do.
const FOUND_WITHIN: Duration = Duration::from_millis(10);
/// Beside whatever else a short run has for company: only that it is the search that finds it, not somebody's limit.
const FOUND_IN_COMPANY: Duration = Duration::from_millis(500);
const TRIES: usize = 20;
const TRIES_LONG: usize = 100;

/// The machine may be busy, so the quickest of several counts, of the round trip too.
fn circle_of_calls_over_two_nodes_is_found_within_two_round_trips_and_ten_milliseconds(way: Way) {
    const LOW: Endpoint = Endpoint::FS;
    const MIDDLE: Endpoint = Endpoint::DS;
    const HIGH: Endpoint = Endpoint::PM;
    let mut pair = Pair::over(way);
    let _proxies = pair.start_proxies(Encryption::Tls, calm_times());
    let ends = [(Which::B, LOW), (Which::A, MIDDLE), (Which::B, HIGH)];
    let [mut low, mut middle, mut high] = ends.map(|(which, endpoint)| pair.bind(which, endpoint));
    let serve_one = |port: &mut Port, from: Endpoint| {
        let request = port.receive(Source::From(from), WAIT).expect("a request");
        port.reply(from, &request).expect("replied");
    };
    let is_long = std::env::var_os("DVS_TEST_LONG").is_some();
    let (tries, within) = if is_long { (TRIES_LONG, FOUND_WITHIN) } else { (TRIES, FOUND_IN_COMPANY) };
    let (mut found, mut round_trips) = (Vec::new(), Vec::new());
    for _ in 0..tries {
        let begun = Barrier::new(3);
        thread::scope(|scope| {
            let (low, middle, high, begun) = (&mut low, &mut middle, &mut high, &begun);
            let lowest = scope.spawn(move || {
                begun.wait();
                let called = Instant::now();
                low.sendrec(MIDDLE, &Message::new(1), Wait::Forever).expect("answered");
                let start = Instant::now();
                low.sendrec(MIDDLE, &Message::new(2), WAIT).expect("answered");
                (called, start.elapsed())
            });
            let between = scope.spawn(move || {
                begun.wait();
                let called = Instant::now();
                middle.sendrec(HIGH, &Message::new(1), Wait::Forever).expect("answered");
                serve_one(middle, LOW);
                serve_one(middle, LOW);
                called
            });
            begun.wait();
            let highest_called = Instant::now();
            assert_eq!(high.sendrec(LOW, &Message::new(1), Wait::Forever), Err(IpcError::Deadlock));
            let refused = Instant::now();
            serve_one(high, MIDDLE);
            let middle_called = between.join().expect("answered");
            let (lowest_called, round_trip) = lowest.join().expect("answered");
            let last_called = highest_called.max(middle_called).max(lowest_called);
            found.push(refused.duration_since(last_called));
            round_trips.push(round_trip);
        });
    }
    found.sort_unstable();
    round_trips.sort_unstable();
    let limit = 2 * round_trips[0] + within;
    let (median, most, last) = (found[tries / 2], found[tries * 9 / 10], found[tries - 1]);
    eprintln!(
        "{way:?}: found after {:?} to {last:?}, median {median:?}, 90 % {most:?}; round trip {:?}",
        found[0], round_trips[0]
    );
    assert!(found[0] < limit, "{found:?}, round trips {round_trips:?}");
}

crate::over_each_transport!(
    circle_of_calls_over_two_nodes_is_found_within_two_round_trips_and_ten_milliseconds,
    call_reaches_a_server_of_another_node_and_its_answer_comes_back,
    links_the_operator_trusts_work_without_encryption_except_over_quic_which_always_encrypts,
    node_with_the_higher_number_calls_as_well,
    notification_crosses_nodes,
    state_of_a_link_says_how_it_goes_and_what_passed,
    timed_send_that_nobody_takes_is_withdrawn_on_the_other_node,
    ring_carries_data_both_ways_between_nodes,
    client_learns_that_the_server_on_the_other_node_died,
    call_to_an_endpoint_nobody_holds_any_more_is_refused_and_not_silent,
    cut_link_ends_calls_with_no_link_and_calls_work_when_it_is_back,
);
