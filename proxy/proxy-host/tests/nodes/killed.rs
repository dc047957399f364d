//! Proxies as processes: killed and replaced without anybody noticing, and quiet when there is nothing to do.

use std::thread;
use std::time::Duration;

use crate::common::{PATIENCE, Pair, RunningProxy, Way, Which};
use abi::{Endpoint, Message};
use ipc::{Completion, Event, Port, RingServer, RingSpec, Submission, Wait};

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);
const DOWN_MS: u64 = 10_000;

const ENTRIES: u32 = 8;
const SLOT_BYTES: u32 = 16 * 1024;
const REQUESTS: u64 = 3000;
/// A proxy is killed whenever this many more requests were answered.
const KILL_EVERY: u64 = 500;

/// Takes requests until the ring closes; what it saw, in order.
fn serve(server: &mut Port) -> Vec<u64> {
    let (mut ring, mut seen): (Option<RingServer>, Vec<u64>) = (None, Vec::new());
    loop {
        match server.wait_event(WAIT).expect("an event") {
            Event::RingOpened(opened) => ring = Some(opened),
            Event::RingReady(_) => {
                let ring = ring.as_ref().expect("opened before");
                while let Some(request) = ring.next().expect("a correct client") {
                    let offset = request.arena_offset as usize;
                    let data = ring.arena().to_vec(offset, request.out_bytes as usize).expect("in range");
                    assert!(data.iter().all(|byte| *byte == request.sequence as u8), "data of {}", request.sequence);
                    seen.push(request.sequence);
                    ring.arena().copy_in(offset, &vec![!(request.sequence as u8); SLOT_BYTES as usize]).expect("fits");
                    let completion = Completion {
                        tag: request.tag,
                        sequence: request.sequence,
                        in_bytes: SLOT_BYTES,
                        ..Completion::default()
                    };
                    ring.complete(&completion).expect("room");
                }
                ring.publish();
            }
            Event::RingClosed(..) => return seen,
            other => panic!("{other:?}"),
        }
    }
}

fn ring_survives_killed_proxies_without_loss_or_repetition(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (mut proxy_a, mut control_a) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
    let (mut proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, DOWN_MS);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || serve(&mut server));
    let spec = RingSpec { entries: ENTRIES, arena_bytes: ENTRIES * SLOT_BYTES };
    let ring = client.open_ring(SERVER, spec, WAIT).expect("opened");

    let (mut submitted, mut answered) = (0_u64, Vec::new());
    let mut under_way: Vec<Option<u64>> = vec![None; ENTRIES as usize];
    while answered.len() < REQUESTS as usize {
        while submitted < REQUESTS
            && let Some(tag) = under_way.iter().position(Option::is_none)
        {
            let offset = tag as u32 * SLOT_BYTES;
            ring.arena().copy_in(offset as usize, &vec![submitted as u8; SLOT_BYTES as usize]).expect("in range");
            let (tag, sequence, out_bytes) = (tag as u32, submitted, SLOT_BYTES);
            let request = Submission {
                tag,
                sequence,
                arena_offset: offset,
                out_bytes,
                in_capacity: SLOT_BYTES,
                ..Submission::default()
            };
            ring.submit(&request).expect("room");
            under_way[tag as usize] = Some(submitted);
            submitted += 1;
        }
        ring.publish();
        ring.wait(WAIT).expect("no error reaches the client");
        while let Some(completion) = ring.poll().expect("no error reaches the client") {
            let sequence = under_way[completion.tag as usize].take().expect("answered once");
            assert_eq!(completion.sequence, sequence);
            let offset = (completion.tag * SLOT_BYTES) as usize;
            let data = ring.arena().to_vec(offset, completion.in_bytes as usize).expect("in range");
            assert!(data.len() == SLOT_BYTES as usize && data.iter().all(|byte| *byte == !(sequence as u8)));
            answered.push(sequence);
            // One at a time, and the second only when both know the channel again.
            match answered.len() as u64 % (2 * KILL_EVERY) {
                KILL_EVERY => {
                    proxy_a.kill();
                    (proxy_a, control_a) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
                    control_a.wait_until_up();
                }
                0 => {
                    proxy_b.kill();
                    (proxy_b, _) = pair.b.spawn_proxy(&peer_a, DOWN_MS);
                    control_a.wait_until(|status| status.links.iter().any(|link| link.reconnects > 0));
                }
                _ => {}
            }
        }
    }
    drop(ring);
    let seen = served.join().expect("served");
    assert_eq!(seen, (0..REQUESTS).collect::<Vec<_>>(), "the server saw every request once and in order");
    answered.sort_unstable();
    assert_eq!(answered, seen);
}

fn calls_go_on_when_a_proxy_is_killed_between_and_under_them(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (mut proxy_a, _control_a) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
    let (_proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, DOWN_MS);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let calls = 400_u64;
    let served = thread::spawn(move || {
        for expected in 0..calls {
            let request = server.rcvrqst(WAIT).expect("a request");
            assert_eq!(request.word(0), expected, "every request once and in order");
            server.reply(request.source.expect("a source"), &request).expect("replied");
        }
    });
    let caller = thread::spawn(move || {
        for number in 0..calls {
            let reply = client.sendrec(SERVER, &Message::new(1).with_word(0, number), WAIT).expect("answered");
            assert_eq!(reply.word(0), number);
        }
    });
    for _ in 0..3 {
        proxy_a.kill();
        let control;
        (proxy_a, control) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
        control.wait_until_up();
    }
    caller.join().expect("all answered");
    served.join().expect("all served");
    drop(proxy_a);
}

/// Processor time of a process in ticks of 10 ms.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    fields[11].parse::<u64>().expect("user") + fields[12].parse::<u64>().expect("system")
}

fn idle_proxies_use_no_processor_and_an_open_ring_does_not_change_that(way: Way) {
    let mut pair = Pair::over(way);
    let (peer_a, peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let (proxy_a, control_a) = pair.a.spawn_proxy(&peer_b, DOWN_MS);
    let (_proxy_b, _control_b) = pair.b.spawn_proxy(&peer_a, DOWN_MS);
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || serve(&mut server));
    let ring = client.open_ring(SERVER, RingSpec { entries: ENTRIES, arena_bytes: 4096 }, WAIT).expect("opened");
    control_a.wait_until_up();
    let RunningProxy::Process(process) = &proxy_a else { panic!("a process") };
    let used = || {
        let before = ticks(process.id());
        // Not for synchronisation: the time over which it is measured.
        thread::sleep(Duration::from_millis(700));
        ticks(process.id()) - before
    };
    // On a busy machine it may still come to rest.
    let quietest = (0..10).map(|_| used()).find(|used| *used <= 3);
    assert!(quietest.is_some(), "more than 3 ticks of 10 ms in each 700 ms");
    drop(ring);
    served.join().expect("served");
}

crate::over_each_transport!(
    ring_survives_killed_proxies_without_loss_or_repetition,
    calls_go_on_when_a_proxy_is_killed_between_and_under_them,
    idle_proxies_use_no_processor_and_an_open_ring_does_not_change_that,
);
