//! Who dials and is not let in is told why.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use crate::common::{CLUSTER, PATIENCE, Pair, RunningProxy, Way, calm_times};
use abi::{Epoch, NodeId, PairId};
use proxy_host::control::PeerAddress;
use proxy_host::transport::{Compression, Encryption, Stream, Target, Tcp, Transport};
use proxy_host::{Proxy, ProxyConfig};
use proxy_link::Refusal;
use rustix::io::Errno;
use versions::Versions;

/// Place of the version in a frame's head.
const LAYOUT_AT: usize = 5;
const ANOTHER_VERSION: u8 = wire::LAYOUT + 1;

fn hello(node: u16) -> Vec<u8> {
    hello_of(node, versions::LINK.speaks)
}

fn hello_of(node: u16, speaks: Versions) -> Vec<u8> {
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
        speaks,
        release: "7.0.0",
    });
    let mut bytes = Vec::new();
    hello.encode(&mut bytes);
    bytes
}

/// What is answered before the connection is closed, or reset because nobody read what came.
fn answer(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut answer = Vec::new();
    let closed = stream.write_all(bytes).and_then(|()| stream.read_to_end(&mut answer));
    if let Err(error) = closed {
        assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
    }
    answer
}

fn refusal(answer: &[u8]) -> Option<(Refusal, String)> {
    match wire::Frame::decode(answer) {
        Ok(wire::Frame::Refuse { refusal, reason }) => Some((refusal, reason.to_owned())),
        _ => None,
    }
}

/// Nobody is heard before the broker has said what there was before.
fn told(address: &str, hello: &[u8]) -> (Refusal, String) {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(told) = refusal(&answer(address, hello)) {
            return told;
        }
        assert!(Instant::now() < until, "a stranger is told nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A node that nobody knows is told so.
fn refuse_stranger(address: &str) {
    let (refused, reason) = told(address, &hello(9));
    assert_eq!((refused, reason.as_str()), (Refusal::Identity, "node 9 is not among the peers"));
}

#[test]
fn proxy_of_another_version_and_a_node_nobody_knows_are_told_why_they_are_refused() {
    let mut pair = Pair::over(Way::Tcp);
    let peer = pair.a.as_peer();
    let (_proxy, _control) = pair.b.start_proxy(&peer, Encryption::Plain, calm_times());
    let address = pair.b.as_peer().addr;
    refuse_stranger(&address);

    let mut of_another_version = hello(1);
    of_another_version[LAYOUT_AT] = ANOTHER_VERSION;
    let (refused, reason) = refusal(&answer(&address, &of_another_version)).expect("told");
    assert_eq!(refused, Refusal::Version);
    assert!(reason.contains(&format!("layout {ANOTHER_VERSION}")), "{reason}");

    // A release that does not follow this one, and one that speaks ours beside its own.
    let newest = versions::LINK.speaks.newest;
    let (refused, reason) = told(&address, &hello_of(1, Versions::from_to(newest + 1, newest + 2)));
    assert_eq!(refused, Refusal::Version);
    for word in ["n1 (release 7.0.0)", "n2 (release", &format!("versions {} to {}", newest + 1, newest + 2)] {
        assert!(reason.contains(word), "{reason}");
    }
    assert!(reason.ends_with("dvs node upgrade on n2"), "the older one: {reason}");
    let greeted = greeted(&address, &hello_of(1, Versions::from_to(newest, newest + 1)));
    assert!(matches!(wire::next(&greeted), Ok(wire::Next::Frame(wire::Frame::Hello(_), _))), "{greeted:?}");
}

/// The first bytes that are answered to a node that is let in.
fn greeted(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream.write_all(bytes).expect("sent");
    let mut answer = vec![0; 1024];
    let length = stream.read(&mut answer).expect("an answer");
    answer.truncate(length);
    answer
}

#[test]
fn node_that_may_be_plain_over_one_transport_is_not_believed_over_another() {
    let mut pair = Pair::over(Way::Tcp);
    let plain_over = Some(vec!["unix".to_owned(), "one that is not here".to_owned()]);
    let peer = PeerAddress { tls: Some(false), plain_over, ..pair.a.as_peer() };
    let (_proxy, _control) = pair.b.start_proxy(&peer, Encryption::Tls, calm_times());
    let (refused, reason) = told(&pair.b.as_peer().addr, &hello(1));
    assert!(refused == Refusal::Identity && reason.contains("encrypt"), "{refused:?} {reason}");
}

#[test]
fn flood_of_strangers_who_say_nothing_keeps_nobody_out() {
    let mut pair = Pair::over(Way::Tcp);
    let peer = pair.a.as_peer();
    let (_proxy, _control) = pair.b.start_proxy(&peer, Encryption::Plain, calm_times());
    let address = pair.b.as_peer().addr;
    refuse_stranger(&address);
    // As long as a machine does not stand still, some of them are not overdue when one more is heard.
    let is_heard_beside_them = || {
        let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(&address).expect("connected")).collect();
        refuse_stranger(&address);
        silent.iter().any(is_open)
    };
    assert!((0..5).any(|_| is_heard_beside_them()), "one more is heard when all have had their time");
}

fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
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
    refusal[LAYOUT_AT] = ANOTHER_VERSION;
    stream.write_all(&refusal).expect("sent");
    let until = Instant::now() + PATIENCE;
    let wanted = format!("layout {ANOTHER_VERSION}");
    loop {
        let error = control.latest().links[0].last_error.clone();
        if error.as_ref().is_some_and(|error| error.contains(&wanted)) {
            break;
        }
        assert!(Instant::now() < until, "{error:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// TCP in a process that has no descriptor left for so many tries.
struct Exhausted {
    tcp: Tcp,
    tries: u32,
    tried: Sender<Instant>,
}

impl Transport for Exhausted {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn check(&self, address: &str) -> Result<(), String> {
        self.tcp.check(address)
    }

    fn local_address(&self) -> String {
        self.tcp.local_address()
    }

    fn dial(&mut self, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        self.tcp.dial(target)
    }

    fn accept(&mut self) -> io::Result<Box<dyn Stream>> {
        if self.tries == 0 {
            return self.tcp.accept();
        }
        self.tries -= 1;
        let _ = self.tried.send(Instant::now());
        Err(Errno::MFILE.into())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.tcp.descriptor()
    }

    fn system_calls(&self) -> &'static [i64] {
        self.tcp.system_calls()
    }
}

#[test]
fn proxy_without_a_descriptor_left_tries_now_and_then_and_lets_in_when_it_has_one_again() {
    const TRIES: u32 = 4;
    let pair = Pair::over(Way::Tcp);
    let (tried, tries) = channel();
    let tcp = Tcp::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("tcp");
    let address = tcp.local_address();
    let mut proxy = Proxy::new(ProxyConfig {
        node: pair.b.name.clone(),
        node_id: pair.b.id,
        cluster: CLUSTER.to_owned(),
        pair: PairId::FIRST,
        incarnation: Epoch(1),
        times: calm_times(),
        transports: vec![Box::new(Exhausted { tcp, tries: TRIES, tried })],
        inspector: None,
        encryption: Encryption::Plain,
        compression: Compression::Off,
        tls_dir: None,
        broker: pair.b.broker.proxy_socket_of(PairId::FIRST).expect("proxy socket"),
        control: None,
        presence: None,
    })
    .expect("proxy");
    let stop = sys::eventfd::create().expect("eventfd");
    proxy.stop_on(stop.try_clone().expect("eventfd")).expect("watched");
    let thread = std::thread::spawn(move || {
        proxy.run().expect("the loop does not fail");
    });
    let _running = RunningProxy::Thread { stop, thread: Some(thread) };

    refuse_stranger(&address);
    let tries: Vec<Instant> = tries.try_iter().collect();
    assert_eq!(tries.len(), TRIES as usize);
    for pause in tries.windows(2).map(|two| two[1] - two[0]) {
        assert!(pause >= Duration::from_millis(100), "tried again after {pause:?}");
    }
}
