//! Steps of the loop, one by one.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::{Epoch, PairId};
use broker::{Broker, BrokerConfig, LocalOnly};
use proxy_link::LinkTimes;

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

fn proxy(broker: &Broker, transport: impl Transport + 'static) -> Proxy {
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
    let peer = PeerAddress { name: "n2".to_owned(), id: 2, transport: None, addr: String::new(), tls: None };
    proxy.set_peers(&[peer]).expect("peers");
    proxy.standing.is_complete = true;
    proxy
}

fn broker() -> Broker {
    Broker::start(BrokerConfig { node: NodeId(1), directory: Box::new(LocalOnly::default()), shelf: None })
        .expect("broker")
}

#[test]
fn turn_of_a_transport_whose_streams_have_something_to_send_is_followed_by_another_try() {
    let broker = broker();
    let has_room = Arc::new(AtomicBool::new(false));
    let event = sys::eventfd::create().expect("eventfd");
    let mut proxy = proxy(&broker, Narrow { event, has_room: Arc::clone(&has_room) });
    let now = proxy.now();
    proxy.dial_due(now);
    proxy.turn(Carrier::FIRST);
    assert!(!proxy.send_all(now), "no room for HELLO");
    has_room.store(true, Ordering::Relaxed);
    assert!(proxy.turn(Carrier::FIRST), "there may be room now");
    assert!(proxy.send_all(now));
    assert!(!proxy.turn(Carrier::FIRST), "everything went");
}
