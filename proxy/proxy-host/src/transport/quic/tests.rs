use std::net::UdpSocket;
use std::path::Path;
use std::thread;

use pki::{Authority, NodeRequest, Validity};

use super::*;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const CLUSTER: &str = "c1";

fn issue(authority: &Authority, node: &str, dir: &Path) -> Credentials {
    let request = NodeRequest { node, addresses: &[], valid: Validity::of_a_node() };
    let dir = dir.join(node);
    authority.issue_node(&request, &dir).expect("issued");
    Credentials::load(&dir, CLUSTER).expect("loaded")
}

/// Certificates of `n1` and `n2`.
fn credentials() -> (Credentials, Credentials) {
    let dir = tempfile::tempdir().expect("directory");
    let authority = Authority::create(&dir.path().join("ca"), CLUSTER).expect("authority");
    (issue(&authority, "n1", dir.path()), issue(&authority, "n2", dir.path()))
}

fn socket() -> OwnedFd {
    sys::udp::open("127.0.0.1:0".parse().expect("an address")).expect("a socket")
}

fn transport(credentials: &Credentials) -> Quic {
    Quic::new(socket(), credentials.clone()).expect("transport")
}

fn pair() -> (Quic, Quic) {
    let (a, b) = credentials();
    (transport(&a), transport(&b))
}

fn dial(from: &mut Quic, to: &Quic, node: &str) -> Box<dyn Stream> {
    from.dial(Target { node, address: &to.local_address() }).expect("dialled")
}

/// Does rounds of what a proxy's loop does until `what` says it is done.
fn until<'a, T>(transports: &mut [&mut Quic], mut what: impl FnMut(&mut [&mut Quic]) -> Option<T> + 'a) -> T {
    let begun = Instant::now();
    loop {
        for transport in transports.iter_mut() {
            transport.turn().expect("turned");
        }
        if let Some(result) = what(transports) {
            return result;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing comes of it");
        thread::yield_now();
    }
}

/// What came, `None` when nothing did.
fn read(stream: &mut dyn Stream) -> Option<io::Result<Vec<u8>>> {
    let mut buffer = vec![0; 100_000];
    match stream.read(&mut buffer) {
        Ok(count) => {
            buffer.truncate(count);
            Some(Ok(buffer))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(error)),
    }
}

fn write_some(stream: &mut dyn Stream, bytes: &[u8]) -> usize {
    match stream.write(bytes) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// A stream of which both ends stand.
fn connected(a: &mut Quic, b: &mut Quic) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let mut near = dial(a, b, "n2");
    let (mut far, mut sent) = (None, 0);
    until(&mut [a, b], |transports| {
        near.established()?.expect("stands");
        if sent == 0 {
            sent = write_some(near.as_mut(), b"!");
        }
        far = far.take().or_else(|| transports[1].accept().ok());
        far.as_mut().and_then(|far| read(far.as_mut()))
    })
    .expect("a byte");
    (near, far.expect("accepted"))
}

fn numbered(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(7) ^ (at >> 8)) as u8).collect()
}

#[test]
fn bytes_arrive_as_they_were_sent_both_ways_and_the_end_behind_them() {
    let (mut a, mut b) = pair();
    let (mut near, mut far) = connected(&mut a, &mut b);
    let (there, back) = (numbered(6_000_001), numbered(2_000_003));
    let (mut got_there, mut got_back, mut sent_there, mut sent_back) = (Vec::new(), Vec::new(), 0, 0);
    until(&mut [&mut a, &mut b], |_| {
        sent_there += write_some(near.as_mut(), &there[sent_there..]);
        sent_back += write_some(far.as_mut(), &back[sent_back..]);
        got_back.extend(read(near.as_mut()).and_then(Result::ok).unwrap_or_default());
        got_there.extend(read(far.as_mut()).and_then(Result::ok).unwrap_or_default());
        (got_there.len() == there.len() && got_back.len() == back.len()).then_some(())
    });
    assert!(got_there == there && got_back == back);

    // What was written before a stream was dropped is delivered.
    let last = numbered(300_000);
    assert_eq!(write_some(near.as_mut(), &last), last.len());
    drop(near);
    let mut got = Vec::new();
    let end = until(&mut [&mut a, &mut b], |_| match read(far.as_mut())? {
        Ok(bytes) if !bytes.is_empty() => {
            got.extend(bytes);
            None
        }
        end => Some(end),
    });
    assert!(end.is_ok_and(|bytes| bytes.is_empty()) && got == last);
    drop(far);
    until(&mut [&mut a, &mut b], |transports| {
        transports.iter().all(|transport| transport.shared.lock().is_empty()).then_some(())
    });
}

#[test]
fn accepting_side_knows_the_certificate_of_whoever_dialled() {
    let (mut a, mut b) = pair();
    let (near, far) = connected(&mut a, &mut b);
    let session = crate::secure::Session::Sealed(far.peer_certificate());
    assert!(session.is_from("n1", CLUSTER) && !session.is_from("n2", CLUSTER) && !session.is_from("n1", "c2"));
    assert!(near.round_trip().is_some_and(|time| time < Duration::from_secs(1)));
    assert!(!crate::secure::Session::Sealed(None).is_from("n1", CLUSTER));
}

#[test]
fn node_with_another_name_or_of_another_cluster_is_not_let_in() {
    let (mut a, mut b) = pair();
    let mut wrong_name = dial(&mut a, &b, "n3");
    let error = until(&mut [&mut a, &mut b], |_| wrong_name.established()).expect_err("it is n2");
    assert!(error.to_string().contains("not valid for name"), "{error}");

    // Another authority: each end refuses the other.
    let (stranger, _) = credentials();
    let mut stranger = transport(&stranger);
    let mut refused = dial(&mut stranger, &b, "n2");
    until(&mut [&mut stranger, &mut b], |_| refused.established()).expect_err("another authority's certificate");
    assert!(b.accept().is_err());
    drop((wrong_name, refused));
    until(&mut [&mut a, &mut b, &mut stranger], |transports| {
        transports.iter().all(|transport| transport.shared.lock().is_empty()).then_some(())
    });
}

#[test]
fn dialling_side_that_knows_the_authority_but_has_no_certificate_of_it_is_not_let_in() {
    let (ours, others) = (tempfile::tempdir().expect("directory"), tempfile::tempdir().expect("directory"));
    let authority = Authority::create(&ours.path().join("ca"), CLUSTER).expect("authority");
    let mut b = transport(&issue(&authority, "n2", ours.path()));
    let foreign = Authority::create(&others.path().join("ca"), CLUSTER).expect("authority");
    issue(&foreign, "n1", others.path());
    std::fs::copy(ours.path().join("n2/ca.crt"), others.path().join("n1/ca.crt")).expect("copied");
    let mut a = transport(&Credentials::load(&others.path().join("n1"), CLUSTER).expect("loaded"));

    let mut near = dial(&mut a, &b, "n2");
    let error = until(&mut [&mut a, &mut b], |_| {
        // To the dialling side it stands before the other has seen its certificate.
        let _ = near.write(b"let me in");
        read(near.as_mut())
    });
    assert_eq!(error.expect_err("refused").kind(), io::ErrorKind::ConnectionRefused);
    assert!(b.accept().is_err());
}

/// Between two sockets: what one sends reaches the other, or not, once or twice, sooner or later.
struct Wire {
    /// Each stands in for the node at the other end.
    doors: [UdpSocket; 2],
    ends: [SocketAddr; 2],
    late: Vec<(usize, Vec<u8>)>,
    random: u64,
}

impl Wire {
    fn between(a: &Quic, b: &Quic, seed: u64) -> Wire {
        let door = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.set_nonblocking(true).expect("non-blocking");
            socket
        };
        Wire { doors: [door(), door()], ends: [a.local, b.local], late: Vec::new(), random: seed }
    }

    /// Marsaglia's xorshift.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn pass(&mut self) {
        let mut buffer = vec![0; 70_000];
        for side in [0, 1] {
            while let Ok((bytes, _)) = self.doors[side].recv_from(&mut buffer) {
                let datagram = buffer[..bytes].to_vec();
                match self.below(100) {
                    0..5 => {}
                    5..10 => self.late.push((side, datagram)),
                    10..13 => {
                        self.hand_on(side, &datagram);
                        self.hand_on(side, &datagram);
                    }
                    _ => self.hand_on(side, &datagram),
                }
            }
        }
        if self.below(4) == 0 {
            for (side, datagram) in std::mem::take(&mut self.late) {
                self.hand_on(side, &datagram);
            }
        }
    }

    fn hand_on(&self, side: usize, datagram: &[u8]) {
        let _ = self.doors[1 - side].send_to(datagram, self.ends[1 - side]);
    }
}

#[test]
fn bytes_arrive_once_and_in_order_over_a_wire_that_loses_doubles_and_reorders() {
    for seed in [1, 2, 3] {
        let (mut a, mut b) = pair();
        let mut wire = Wire::between(&a, &b, seed);
        let door = wire.doors[0].local_addr().expect("address").to_string();
        let mut near = a.dial(Target { node: "n2", address: &door }).expect("dialled");
        let (sending, mut sent, mut got, mut far) = (numbered(500_000), 0, Vec::new(), None::<Box<dyn Stream>>);
        until(&mut [&mut a, &mut b], |transports| {
            wire.pass();
            near.established()?.expect("stands");
            sent += write_some(near.as_mut(), &sending[sent..]);
            far = far.take().or_else(|| transports[1].accept().ok());
            got.extend(read(far.as_mut()?.as_mut())?.expect("bytes"));
            (got.len() >= sending.len()).then_some(())
        });
        assert!(got == sending, "seed {seed}");
    }
}

#[test]
fn successor_of_a_killed_proxy_ends_its_connections_at_once() {
    let (a, b) = credentials();
    let (mut a, socket) = (transport(&a), socket());
    let mut killed = Quic::new(socket.try_clone().expect("socket"), b.clone()).expect("transport");
    let (mut near, far) = connected(&mut a, &mut killed);
    // Nothing is said any more, as when a process is killed.
    std::mem::forget((killed, far));
    let mut successor = Quic::new(socket, b).expect("transport");
    let begun = Instant::now();
    let error = until(&mut [&mut a, &mut successor], |_| {
        let _ = near.write(&[0; 100]);
        read(near.as_mut())
    });
    assert_eq!(error.expect_err("reset").kind(), io::ErrorKind::ConnectionReset);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn many_may_dial_at_once_and_more_than_the_limit_are_refused() {
    let (mut a, mut b) = pair();
    let mut dialled: Vec<_> = (0..limits::BACKLOG_MAX + 20).map(|_| dial(&mut a, &b, "n2")).collect();
    // Nobody accepts, so none of them leaves the backlog.
    let (mut standing, mut refused) = (0, 0);
    until(&mut [&mut a, &mut b], |_| {
        let outcomes: Vec<_> = dialled.iter_mut().map(|stream| stream.established()).collect();
        standing = outcomes.iter().flatten().filter(|outcome| outcome.is_ok()).count();
        refused = outcomes.iter().flatten().filter(|outcome| outcome.is_err()).count();
        outcomes.iter().all(Option::is_some).then_some(())
    });
    assert_eq!((standing, refused), (limits::BACKLOG_MAX, 20));
}

#[test]
fn nonsense_from_anybody_disturbs_nobody() {
    let (mut a, mut b) = pair();
    let (mut near, mut far) = connected(&mut a, &mut b);
    let mut wire = Wire::between(&a, &b, 7);
    for round in 0..3000 {
        let bytes = 1 + wire.below(1400) as usize;
        let mut datagram: Vec<u8> = (0..bytes).map(|_| wire.below(256) as u8).collect();
        // Heads of all kinds: long and short, versions that exist.
        datagram[0] = [0xc0, 0xe0, 0xf0, 0x40, 0x00][round % 5] | (datagram[0] & 0x0f);
        if round % 2 == 0 {
            drop(datagram.splice(1..bytes.min(5), [0, 0, 0, 1]));
        }
        wire.doors[0].send_to(&datagram, b.local).expect("sent");
        if round % 50 == 0 {
            b.turn().expect("turned");
        }
    }
    near.write_all(b"still here").expect("taken");
    let got = until(&mut [&mut a, &mut b], |_| read(far.as_mut()));
    assert_eq!(got.expect("bytes"), b"still here");
}

#[test]
fn addresses_are_numeric_with_a_port_and_of_the_sockets_family() {
    let (a, _) = pair();
    assert!(a.check("127.0.0.1:7421").is_ok());
    for wrong in ["127.0.0.1", "127.0.0.1:0", "localhost:7421", "[::1]:7421", ""] {
        assert!(a.check(wrong).is_err(), "{wrong}");
    }
}
