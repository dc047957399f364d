//! Who dials and is not let in is told why.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use abi::{Epoch, NodeId, PairId};
use common::{CLUSTER, PATIENCE, Pair, Way, calm_times};
use proxy_host::control::PeerAddress;
use proxy_host::transport::Encryption;
use proxy_link::Refusal;

/// Place of the version in a frame's head.
const VERSION_AT: usize = 5;
const ANOTHER_VERSION: u8 = wire::VERSION + 1;

fn hello(node: u16) -> Vec<u8> {
    let name = format!("n{node}");
    let hello = wire::Frame::Hello(wire::Hello {
        cluster: CLUSTER,
        node: &name,
        node_id: NodeId(node),
        incarnation: Epoch(1),
        connection: 1,
        features: 0,
        frame_bytes_max: wire::limits::FRAME_BYTES_MAX as u32,
        window_bytes: proxy_link::limits::WINDOW_BYTES,
        pair: PairId::FIRST,
    });
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    bytes
}

/// What is answered before the connection is closed.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("closed");
    answer
}

fn refusal(answer: &[u8]) -> Option<(Refusal, String)> {
    match wire::Frame::decode(answer) {
        Ok(wire::Frame::Refuse { refusal, reason }) => Some((refusal, reason.to_owned())),
        _ => None,
    }
}

#[test]
fn proxy_of_another_version_and_a_node_nobody_knows_are_told_why_they_are_refused() {
    let mut pair = Pair::over(Way::Tcp);
    let peer = pair.a.as_peer();
    let (_proxy, _control) = pair.b.start_proxy(&peer, Encryption::Plain, calm_times());
    let address = pair.b.as_peer().addr;
    // Nobody is heard before the broker has said what there was before.
    let until = Instant::now() + PATIENCE;
    let (refused, reason) = loop {
        match refusal(&answer(&address, &hello(9))) {
            Some(told) => break told,
            None => assert!(Instant::now() < until, "a stranger is told nothing"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((refused, reason.as_str()), (Refusal::Identity, "node 9 is not among the peers"));

    let mut of_another_version = hello(1);
    of_another_version[VERSION_AT] = ANOTHER_VERSION;
    let (refused, reason) = refusal(&answer(&address, &of_another_version)).expect("told");
    assert_eq!(refused, Refusal::Version);
    assert!(reason.contains(&format!("version {ANOTHER_VERSION}")), "{reason}");
}

#[test]
fn proxy_that_dials_one_of_another_version_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut pair = Pair::over(Way::Tcp);
    let addr = listener.local_addr().expect("address").to_string();
    let peer = PeerAddress { addr, ..pair.b.as_peer() };
    let (_proxy, control) = pair.a.start_proxy(&peer, Encryption::Plain, calm_times());
    let (mut stream, _) = listener.accept().expect("dialled");
    stream.read_exact(&mut [0]).expect("HELLO");
    let mut refusal = Vec::new();
    wire::Frame::Refuse { refusal: Refusal::Version, reason: "another version" }.encode(&mut refusal);
    refusal[VERSION_AT] = ANOTHER_VERSION;
    stream.write_all(&refusal).expect("sent");
    let until = Instant::now() + PATIENCE;
    let wanted = format!("version {ANOTHER_VERSION}");
    loop {
        let error = control.latest().links[0].last_error.clone();
        if error.as_ref().is_some_and(|error| error.contains(&wanted)) {
            break;
        }
        assert!(Instant::now() < until, "{error:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
