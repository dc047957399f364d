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

/// Streams that stand at once, of which nothing comes, and that take bytes while there is room.
struct Narrow {
    event: OwnedFd,
    has_room: Arc<AtomicBool>,
}

struct NarrowStream(Arc<AtomicBool>);

impl Transport for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn local_address(&self) -> String {
        String::new()
    }

    fn dial(&mut self, _: Target<'_>) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(NarrowStream(Arc::clone(&self.has_room))))
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

/// Streams that stand at once; their far ends are kept with the names of the nodes.
struct Pairs {
    event: OwnedFd,
    far: Arc<Mutex<Vec<(String, UnixStream)>>>,
}

impl Transport for Pairs {
    fn name(&self) -> &'static str {
        "pairs"
    }

    fn check(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    fn local_address(&self) -> String {
        String::new()
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        let (here, there) = UnixStream::pair()?;
        here.set_nonblocking(true)?;
        self.far.lock().expect("one thread").push((target.node.to_owned(), there));
        Ok(Box::new(here))
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
    proxy.set_peers(&peers).expect("peers");
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
    let event = sys::eventfd::create().expect("eventfd");
    let mut proxy = proxy(&broker, Narrow { event, has_room: Arc::clone(&has_room) }, 1);
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
    let far = Arc::default();
    let event = sys::eventfd::create().expect("eventfd");
    let mut proxy = proxy(&broker, Pairs { event, far: Arc::clone(&far) }, PEERS as u16);
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
