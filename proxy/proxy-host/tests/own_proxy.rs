//! A proxy that somebody else wrote, in a process of its own: `examples/shaped_proxy.rs` against one of ours. It also
//! makes a wire that is slow.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use abi::{Endpoint, IpcError, Message};
use common::{PATIENCE, Pair, RunningProxy, Way, Which, calm_times};
use ipc::{Completion, Event, Port, RingSpec, Submission, Wait};
use proxy_host::transport::Encryption;

const SERVER: Endpoint = Endpoint::FS;
const CLIENT: Endpoint = Endpoint::GATE;
const WAIT: Wait = Wait::For(PATIENCE);
const RATE: u64 = 100_000;
const DENIED: i32 = 66;

/// Built with the tests, beside them.
fn example() -> PathBuf {
    let tests = std::env::current_exe().expect("own path");
    let profile = tests.parent().and_then(|deps| deps.parent()).expect("a target directory");
    let program = profile.join("examples").join("shaped_proxy");
    assert!(program.exists(), "{} is missing: cargo build -p proxy-host --examples", program.display());
    program
}

#[test]
fn proxy_of_ones_own_shapes_logs_and_filters() {
    let mut pair = Pair::over(Way::Tcp);
    let (mut peer_a, mut peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    let mut command = Command::new(example());
    command.stderr(Stdio::piped());
    peer_b.transport = Some("shaped".to_owned());
    let options = serde_json::json!({ "rate": RATE, "deny_kind": DENIED });
    let (mut proxy_a, control_a) = pair.a.spawn_program(&peer_b, command, options);
    let RunningProxy::Process(child) = &mut proxy_a else { panic!("a process") };
    let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let log = thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    peer_a.transport = None;
    let (_proxy_b, _control_b) = pair.b.start_proxy(&peer_a, Encryption::Tls, calm_times());
    let status = control_a.wait_until(|status| status.links.iter().any(|link| link.state == common::UP));
    assert_eq!(status.links[0].transport, "shaped");
    assert!(status.listen.contains_key("shaped"));

    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let served = thread::spawn(move || {
        for _ in 0..30 {
            let request = server.rcvrqst(WAIT).expect("a request");
            server.reply(request.source.expect("a source"), &request).expect("replied");
        }
        server
    });
    let (data, start) = (vec![7; 2000], Instant::now());
    for _ in 0..30 {
        client.sendrec_inline(SERVER, &Message::new(5), &data, WAIT).expect("answered");
    }
    // 60 kB at 100 kB/s; what may be saved up is 2 kB.
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    let answer = client.sendrec(SERVER, &Message::new(DENIED), WAIT);
    assert_eq!(answer.err(), Some(IpcError::Denied));
    served.join().expect("served");

    proxy_a.kill();
    let log = log.join().expect("read");
    let count = |what: &str| log.iter().filter(|line| line.contains(what)).count();
    assert!(count("kind 5 passes") >= 60, "{log:#?}");
    assert!(count("kind 66 denied") >= 1, "{log:#?}");
}

const ENTRIES: u32 = 4;
const ENTRY_BYTES: u32 = 256 * 1024;
const REQUESTS: u32 = 32;
/// Bytes per second, so few that also a machine with much else to do waits for the link.
const SLOW: u64 = 8_000_000;

/// Takes requests until the ring closes, and checks their data.
fn take_all(server: &mut Port, expected: &[u8]) -> u32 {
    let (mut ring, mut taken) = (None, 0);
    loop {
        match server.wait_event(WAIT).expect("an event") {
            Event::RingOpened(opened) => ring = Some(opened),
            Event::RingReady(_) => {
                let ring = ring.as_ref().expect("opened before");
                while let Some(request) = ring.next().expect("a correct client") {
                    let offset = request.arena_offset as usize;
                    let data = ring.arena().to_vec(offset, request.out_bytes as usize).expect("in range");
                    assert!(data == expected, "request {}", request.sequence);
                    ring.complete(&Completion { tag: request.tag, ..Completion::default() }).expect("room");
                    taken += 1;
                }
                ring.publish();
            }
            Event::RingClosed(..) => return taken,
            other => panic!("{other:?}"),
        }
    }
}

/// Sends `REQUESTS` entries of `data` over a slow link; what the link says of packing, and how long it took.
fn over_a_slow_link(data: Vec<u8>, compression: &str) -> (u64, u64, Duration) {
    let mut pair = Pair::over(Way::Tcp);
    let (mut peer_a, mut peer_b) = (pair.a.as_peer(), pair.b.as_peer());
    (peer_a.transport, peer_b.transport) = (None, Some("shaped".to_owned()));
    let mut command = Command::new(example());
    command.stderr(Stdio::null());
    let options = serde_json::json!({ "rate": SLOW, "compression": compression });
    let (_proxy_a, control_a) = pair.a.spawn_program(&peer_b, command, options);
    let (_proxy_b, _control_b) = pair.b.start_proxy(&peer_a, Encryption::Tls, calm_times());
    control_a.wait_until_up();
    let (mut client, mut server) = (pair.bind(Which::A, CLIENT), pair.bind(Which::B, SERVER));
    let expected = data.clone();
    let served = thread::spawn(move || take_all(&mut server, &expected));
    let spec = RingSpec { entries: ENTRIES, arena_bytes: ENTRIES * ENTRY_BYTES };
    let ring = client.open_ring(SERVER, spec, WAIT).expect("opened");
    (0..ENTRIES).for_each(|tag| ring.arena().copy_in((tag * ENTRY_BYTES) as usize, &data).expect("in range"));
    let submit = |tag: u32| {
        let arena_offset = tag * ENTRY_BYTES;
        let request = Submission { tag, arena_offset, out_bytes: ENTRY_BYTES, ..Submission::default() };
        ring.submit(&request).expect("room");
    };
    let start = Instant::now();
    (0..ENTRIES).for_each(submit);
    let (mut submitted, mut answered) = (ENTRIES, 0);
    while answered < REQUESTS {
        ring.publish();
        ring.wait(WAIT).expect("an answer");
        while let Some(completion) = ring.poll().expect("no error") {
            answered += 1;
            if submitted < REQUESTS {
                submit(completion.tag);
                submitted += 1;
            }
        }
    }
    let took = start.elapsed();
    control_a.ask();
    let all_sent = u64::from(REQUESTS * ENTRY_BYTES);
    let status = control_a.wait_until(|status| status.links[0].sent_entries >= u64::from(REQUESTS));
    drop(ring);
    assert_eq!(served.join().expect("served"), REQUESTS);
    let link = &status.links[0];
    eprintln!("{compression}: {} of {all_sent} bytes became {} in {took:?}", link.packed_from, link.packed_to);
    (link.packed_from, link.packed_to, took)
}

#[test]
fn slow_link_packs_text_and_leaves_noise_and_what_was_not_agreed_alone() {
    let all = u64::from(REQUESTS * ENTRY_BYTES);
    let text: Vec<u8> = (0_u32..)
        .flat_map(|line| format!("{line}: all work and no play\n").into_bytes())
        .take(ENTRY_BYTES as usize)
        .collect();
    let (plain, _, plain_took) = over_a_slow_link(text.clone(), "off");
    assert_eq!(plain, 0);
    let (from, to, took) = over_a_slow_link(text, "lz4");
    // Packed data frees the wire, and a free wire is not packed for: not all of it is.
    assert!(from > all / 4 && to < from / 2, "{from} became {to}");
    assert!(took < plain_took, "{took:?} against {plain_took:?}");

    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..ENTRY_BYTES).map(|_| next()).collect();
    let (from, ..) = over_a_slow_link(noise, "lz4");
    assert!(from < all / 5, "{from} of {all} bytes were tried");
}
