//! A gate between clients and programs of "nodes" that are loopback addresses: 127.0.0.2 is its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gate_port::{PortGate, PortGateEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vos_api::ports::{
    Introduction, NodeAddress, NodeAddresses, PORT_PACKET_BYTES_MAX, PortCounts, PortName, PortTransport, ToPortGate,
};

const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const THIRD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);
const SOON: Duration = Duration::from_secs(20);

struct Site {
    control: OwnedFd,
    stop: OwnedFd,
    gate: Option<JoinHandle<PortGateEnd>>,
}

impl Site {
    fn begin() -> Site {
        let (theirs, control) = sys::seqpacket::pair().unwrap();
        let stop = sys::eventfd::create().unwrap();
        let gate = PortGate::new(theirs, stop.try_clone().unwrap()).unwrap();
        let gate = Some(std::thread::spawn(move || gate.run().unwrap()));
        let site = Site { control, stop, gate };
        site.tell(
            &ToPortGate::Nodes(NodeAddresses { own: OWN.into(), others: vec![SECOND.into(), THIRD.into()] }),
            &[],
        );
        site
    }

    fn tell(&self, told: &ToPortGate, descriptors: &[OwnedFd]) {
        sys::seqpacket::send(&self.control, &told.encode(), descriptors).unwrap();
    }

    /// A published port for a port inside; gives where clients go.
    fn publish(&self, transport: PortTransport, inside: u16, introduction: Introduction) -> (SocketAddr, PortName) {
        let any = (Ipv4Addr::LOCALHOST, 0);
        let (socket, at): (OwnedFd, SocketAddr) = match transport {
            PortTransport::Tcp => {
                let listener = TcpListener::bind(any).unwrap();
                let at = listener.local_addr().unwrap();
                (listener.into(), at)
            }
            PortTransport::Udp => {
                let socket = UdpSocket::bind(any).unwrap();
                let at = socket.local_addr().unwrap();
                (socket.into(), at)
            }
        };
        let name = PortName { transport, address: at.ip(), port: at.port() };
        self.tell(&ToPortGate::Open { name, inside, introduction }, &[socket]);
        (at, name)
    }

    fn publish_tcp(&self, inside: u16) -> SocketAddr {
        self.publish(PortTransport::Tcp, inside, Introduction::None).0
    }

    fn counts(&self) -> Vec<PortCounts> {
        self.tell(&ToPortGate::Count, &[]);
        let mut ready = [PollFd::new(&self.control, PollFlags::IN)];
        poll(&mut ready, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        let mut packet = [0; PORT_PACKET_BYTES_MAX];
        let received = sys::seqpacket::receive(self.control.as_fd(), &mut packet).unwrap();
        PortCounts::decode_all(&packet[..received.bytes]).unwrap()
    }

    fn end(&mut self) -> PortGateEnd {
        self.gate.take().unwrap().join().unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        sys::eventfd::signal(&self.stop);
        if let Some(gate) = self.gate.take() {
            gate.join().unwrap();
        }
    }
}

/// Answers every connection with its name and what it hears, backwards, until it ends.
fn serve(listener: TcpListener, name: &'static str) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                stream.write_all(name.as_bytes()).unwrap();
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    bytes[..count].reverse();
                    stream.write_all(&bytes[..count]).unwrap();
                }
            });
        }
    });
}

/// A port that is free on all three.
fn listener(node: Ipv4Addr) -> (TcpListener, u16) {
    let listener = TcpListener::bind((node, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn client(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

fn heard(stream: &mut TcpStream, bytes: usize) -> String {
    let mut buffer = vec![0; bytes];
    stream.read_exact(&mut buffer).unwrap();
    String::from_utf8(buffer).unwrap()
}

#[test]
fn client_reaches_the_program_on_whichever_node_and_the_own_one_first() {
    let site = Site::begin();
    let (third, port) = listener(THIRD);
    serve(third, "third");
    let at = site.publish_tcp(port);
    let mut stream = client(at);
    assert_eq!(heard(&mut stream, 5), "third");
    stream.write_all(b"abc").unwrap();
    assert_eq!(heard(&mut stream, 3), "cba");
    serve(TcpListener::bind((OWN, port)).unwrap(), "owned");
    assert_eq!(heard(&mut client(at), 5), "owned");
    // The older one goes on.
    stream.write_all(b"de").unwrap();
    assert_eq!(heard(&mut stream, 2), "ed");
    let counts = site.counts();
    assert_eq!((counts.len(), counts[0].taken, counts[0].refused), (1, 2, 0));
}

#[test]
fn end_of_one_way_leaves_the_other_and_everything_arrives_that_was_sent() {
    const BYTES: usize = 8 << 20;
    let site = Site::begin();
    let (second, port) = listener(SECOND);
    let at = site.publish_tcp(port);
    let program = std::thread::spawn(move || {
        let (mut stream, _) = second.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        // Slowly taken by the client.
        stream.write_all(&all).unwrap();
    });
    let mut stream = client(at);
    let sent: Vec<u8> = (0..BYTES).map(|index| (index * 31 % 251) as u8).collect();
    stream.write_all(&sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    let mut chunk = [0; 7919];
    loop {
        match stream.read(&mut chunk).unwrap() {
            0 => break,
            count => back.extend_from_slice(&chunk[..count]),
        }
        if back.len() % 97 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(back == sent, "{} of {BYTES} bytes", back.len());
    program.join().unwrap();
    let until = Instant::now() + SOON;
    while site.counts()[0].open > 0 {
        assert!(Instant::now() < until, "the connection is never over");
    }
}

#[test]
fn connection_that_breaks_breaks_on_the_other_side_too() {
    let site = Site::begin();
    let (own, port) = listener(OWN);
    let at = site.publish_tcp(port);
    let mut stream = client(at);
    let (mut program, _) = own.accept().unwrap();
    stream.write_all(b"x").unwrap();
    // One that is reset before anything went over it is tried again.
    program.read_exact(&mut [0]).unwrap();
    rustix::net::sockopt::set_socket_linger(&program, Some(Duration::ZERO)).unwrap();
    drop(program);
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn client_waits_for_a_listener_that_begins_anew_and_is_told_when_nobody_comes() {
    let site = Site::begin();
    let (second, port) = listener(SECOND);
    drop(second);
    let at = site.publish_tcp(port);
    let begun = Instant::now();
    let mut nobody = client(at);
    assert_eq!(nobody.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(begun.elapsed() >= Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!(site.counts()[0].refused, 1);
    let mut early = client(at);
    early.write_all(b"ab").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    serve(TcpListener::bind((SECOND, port)).unwrap(), "late");
    assert_eq!(heard(&mut early, 6), "lateba");
}

#[test]
fn program_is_told_who_the_client_is_where_that_is_asked() {
    let site = Site::begin();
    let (own, port) = listener(OWN);
    let (at, _) = site.publish(PortTransport::Tcp, port, Introduction::Proxy);
    let mut stream = client(at);
    stream.write_all(b"hello").unwrap();
    let (mut program, _) = own.accept().unwrap();
    let mut header = [0; 28 + 5];
    program.read_exact(&mut header).unwrap();
    assert_eq!(&header[..14], b"\r\n\r\n\0\r\nQUIT\n\x21\x11");
    let from = stream.local_addr().unwrap();
    assert_eq!((&header[16..20], &header[20..24]), (&[127, 0, 0, 1][..], &[127, 0, 0, 1][..]));
    assert_eq!(header[24..26], from.port().to_be_bytes());
    assert_eq!(header[26..28], at.port().to_be_bytes());
    assert_eq!(&header[28..], b"hello");
}

#[test]
fn datagrams_find_a_program_and_their_answers_the_client() {
    let site = Site::begin();
    let program = UdpSocket::bind((THIRD, 0)).unwrap();
    let (at, _) = site.publish(PortTransport::Udp, program.local_addr().unwrap().port(), Introduction::None);
    std::thread::spawn(move || {
        let mut bytes = [0; 70_000];
        while let Ok((count, from)) = program.recv_from(&mut bytes) {
            bytes[..count].reverse();
            program.send_to(&bytes[..count], from).unwrap();
        }
    });
    let clients: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let mut bytes = [0; 70_000];
    for round in 0..3_u8 {
        for (index, client) in clients.iter().enumerate() {
            client.set_read_timeout(Some(SOON)).unwrap();
            client.send_to(&[index as u8, round], at).unwrap();
            let (count, from) = client.recv_from(&mut bytes).unwrap();
            assert_eq!((&bytes[..count], from), (&[round, index as u8][..], at));
        }
    }
    clients[0].send_to(&[7; 60_000], at).unwrap();
    assert_eq!(clients[0].recv_from(&mut bytes).unwrap().0, 60_000);
    assert_eq!((site.counts()[0].open, site.counts()[0].taken), (3, 3));
}

/// One of the others has IPv6, and is the only one at which somebody listens.
#[test]
fn listener_at_an_address_of_ipv6_alone_is_found_by_both_protocols() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else {
        return eprintln!("SKIPPED: this machine has no IPv6");
    };
    let site = Site::begin();
    let third = NodeAddress { ipv6: Some(Ipv6Addr::LOCALHOST), ..THIRD.into() };
    site.tell(&ToPortGate::Nodes(NodeAddresses { own: OWN.into(), others: vec![SECOND.into(), third] }), &[]);
    let at = site.publish_tcp(listener.local_addr().unwrap().port());
    serve(listener, "six");
    for _ in 0..3 {
        assert_eq!(heard(&mut client(at), 3), "six");
    }
    let program = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let (at, _) = site.publish(PortTransport::Udp, program.local_addr().unwrap().port(), Introduction::None);
    std::thread::spawn(move || {
        let mut bytes = [0; 100];
        while let Ok((count, from)) = program.recv_from(&mut bytes) {
            bytes[..count].reverse();
            program.send_to(&bytes[..count], from).unwrap();
        }
    });
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    let mut bytes = [0; 100];
    for round in 0..3_u8 {
        client.send_to(&[1, round], at).unwrap();
        let (count, from) = client.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..count], from), (&[round, 1][..], at));
    }
}

#[test]
fn port_that_is_closed_takes_nobody_and_what_is_connected_goes_on() {
    let site = Site::begin();
    let (own, port) = listener(OWN);
    serve(own, "own");
    let (at, name) = site.publish(PortTransport::Tcp, port, Introduction::None);
    let mut stream = client(at);
    assert_eq!(heard(&mut stream, 3), "own");
    site.tell(&ToPortGate::Close(name), &[]);
    assert_eq!(site.counts(), []);
    assert_eq!(TcpStream::connect(at).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    stream.write_all(b"xy").unwrap();
    assert_eq!(heard(&mut stream, 2), "yx");
}

#[test]
fn gate_that_gives_way_loses_no_client_and_ends_with_its_last_one() {
    let mut old = Site::begin();
    let new = Site::begin();
    let (own, port) = listener(OWN);
    serve(own, "own");
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listening.local_addr().unwrap();
    let name = PortName { transport: PortTransport::Tcp, address: at.ip(), port: at.port() };
    let open = ToPortGate::Open { name, inside: port, introduction: Introduction::None };
    old.tell(&open, &[listening.try_clone().unwrap().into()]);
    let mut stream = client(at);
    assert_eq!(heard(&mut stream, 3), "own");
    old.tell(&ToPortGate::Leave, &[]);
    // Waits in the socket that the daemon has, too.
    let mut between = client(at);
    new.tell(&open, &[listening.into()]);
    assert_eq!(heard(&mut between, 3), "own");
    stream.write_all(b"ab").unwrap();
    assert_eq!(heard(&mut stream, 2), "ba");
    drop(stream);
    assert_eq!(old.end(), PortGateEnd::Left);
}

#[test]
fn nonsense_is_not_obeyed_and_the_end_of_the_daemon_is_the_gates() {
    let mut site = Site::begin();
    sys::seqpacket::send(&site.control, &[9; 100], &[] as &[OwnedFd]).unwrap();
    sys::seqpacket::send(&site.control, &[1; PORT_PACKET_BYTES_MAX + 1], &[] as &[OwnedFd]).unwrap();
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let name = PortName { transport: PortTransport::Tcp, address: any, port: 1 };
    site.tell(&ToPortGate::Open { name, inside: 1, introduction: Introduction::None }, &[]);
    assert_eq!(site.counts(), []);
    let (_, gone) = sys::seqpacket::pair().unwrap();
    site.control = gone;
    assert_eq!(site.end(), PortGateEnd::Alone);
}
