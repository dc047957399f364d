//! Steps of the loop, one by one.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use abi::{Epoch, PairId};
use broker::{Broker, BrokerConfig};
use proxy_link::LinkTimes;
use sys::eventfd::READY_MAX;

use super::*;
use crate::control::PeerAddress;
use crate::transport::{Compression, Stream, Transport};

/// Dials as the test says, streams that stand at once; nobody dials it.
struct Dialler<D> {
    event: OwnedFd,
    dial: D,
}

impl<D: FnMut(&str) -> io::Result<Box<dyn Stream>>> Dialler<D> {
    fn new(dial: D) -> Dialler<D> {
        Dialler { event: sys::eventfd::create().expect("eventfd"), dial }
    }
}

impl<D: FnMut(&str) -> io::Result<Box<dyn Stream>> + Send> Transport for Dialler<D> {
    fn name(&self) -> &'static str {
        "dialler"
    }

    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn local_address(&self) -> String {
        String::new()
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        (self.dial)(target.node)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn system_calls(&self) -> &'static [i64] {
        &[]
    }
}

/// Nothing comes of it, and it takes bytes while there is room.
struct NarrowStream(Arc<AtomicBool>);

impl Read for NarrowStream {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl Write for NarrowStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.load(Ordering::Relaxed) { Ok(bytes.len()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for NarrowStream {
    fn established(&mut self) -> Option<io::Result<()>> {
        Some(Ok(()))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// With so many peers, nodes 2 and up.
fn proxy(broker: &Broker, transport: impl Transport + 'static, peers: u16) -> Proxy {
    let config = ProxyConfig {
        node: "n1".to_owned(),
        node_id: NodeId(1),
        cluster: "c1".to_owned(),
        pair: PairId::FIRST,
        incarnation: Epoch(1),
        times: LinkTimes::default(),
        transports: vec![Box::new(transport)],
        inspector: None,
        encryption: Encryption::Plain,
        compression: Compression::Off,
        tls_dir: None,
        broker: broker.proxy_socket_of(PairId::FIRST).expect("proxy socket"),
        control: None,
        presence: None,
    };
    let mut proxy = Proxy::new(config).expect("proxy");
    let peer = |id| PeerAddress {
        name: format!("n{id}"),
        id,
        transport: None,
        addr: String::new(),
        tls: None,
        plain_over: None,
    };
    let peers: Vec<_> = (2..peers + 2).map(peer).collect();
    proxy.set_peers(&peers, peers.len()).expect("peers");
    proxy.standing.is_complete = true;
    proxy
}

fn broker() -> Broker {
    Broker::start(BrokerConfig::local()).expect("broker")
}

#[test]
fn turn_of_a_transport_whose_streams_have_something_to_send_is_followed_by_another_try() {
    let broker = broker();
    let has_room = Arc::new(AtomicBool::new(false));
    let room = Arc::clone(&has_room);
    let narrow = Dialler::new(move |_| Ok(Box::new(NarrowStream(Arc::clone(&room)))));
    let mut proxy = proxy(&broker, narrow, 1);
    let now = proxy.now();
    proxy.dial_due(now);
    proxy.turn(Carrier::FIRST);
    assert!(!proxy.send_all(now), "no room for HELLO");
    has_room.store(true, Ordering::Relaxed);
    assert!(proxy.turn(Carrier::FIRST), "there may be room now");
    assert!(proxy.send_all(now));
    assert!(!proxy.turn(Carrier::FIRST), "everything went");
}

/// The node at the far end takes HELLO and answers it.
fn answer_hello(name: &str, far: &mut UnixStream) {
    let mut bytes = [0; 1024];
    let count = far.read(&mut bytes).expect("HELLO");
    let Ok(wire::Frame::Hello(hello)) = wire::Frame::decode(&bytes[..count]) else { panic!("HELLO") };
    let node_id = NodeId(name[1..].parse().expect("a number"));
    let answer = wire::Frame::Hello(wire::Hello { node: name, node_id, ..hello });
    let mut bytes = Vec::new();
    answer.encode(&mut bytes);
    far.write_all(&bytes).expect("sent");
}

#[test]
fn proxy_that_did_not_run_for_a_while_hears_all_its_peers_before_it_judges_their_silence() {
    const PEERS: usize = READY_MAX + 10;
    let broker = broker();
    // With the names of the nodes.
    let far = Arc::<Mutex<Vec<(String, UnixStream)>>>::default();
    let kept = Arc::clone(&far);
    let pairs = Dialler::new(move |node| {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        kept.lock().expect("one thread").push((node.to_owned(), there));
        Ok(Box::new(here))
    });
    let mut proxy = proxy(&broker, pairs, PEERS as u16);
    let now = proxy.now();
    proxy.dial_due(now);
    let tokens: Vec<u64> = proxy.connections.keys().copied().collect();
    for token in &tokens {
        proxy.serve(*token, now);
    }
    assert!(proxy.send_all(now));
    far.lock().expect("one thread").iter_mut().for_each(|(name, far)| answer_hello(name, far));

    proxy.origin -= 2 * proxy.common.times.down;
    let mut rounds = 0;
    while proxy.peers.values().any(|entry| entry.peer.phase() == Phase::Greeting) {
        let mut found = false;
        let now = proxy.now();
        proxy.look_at_descriptors(now, &mut found).expect("polled");
        proxy.tick_if_due(now);
        rounds += 1;
        assert!(rounds < 10, "not all are heard");
    }
    assert!(tokens.iter().all(|token| proxy.connections.contains_key(token)), "cut although it had spoken");
    proxy.tick_if_due(proxy.now());
    assert!(proxy.next_due > proxy.now(), "time goes on");
}
