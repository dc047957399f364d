//! A world for many inputs: a broker, an honest server, and a member without the library whose memory the input writes.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
use ipc::protocol::{Op, Packet};
use ipc::{ChannelId, DcId, Endpoint, Epoch, Port, RingSpec};
use ipc_shm::{Access, Mapping};

pub const DC: DcId = DcId(1);
pub const SERVER: Endpoint = Endpoint::FS;
pub const MEMBER: Endpoint = Endpoint::DS;
const LIMIT: Duration = Duration::from_secs(10);

pub struct World {
    pub broker: Broker,
    pub server: Port,
    member: Member,
}

/// A member without the library.
pub struct Member {
    socket: OwnedFd,
    request: u32,
    /// Channels that were opened to it, which nobody has looked at.
    accepted: Vec<ChannelId>,
}

/// The bare memory of a channel as the member holds it, until it closes it.
pub struct Channel {
    pub packet: Packet,
    pub own: Mapping,
    pub peer: Mapping,
    pub shared: Mapping,
    _files: Vec<OwnedFd>,
}

impl World {
    pub fn new() -> World {
        let broker = Broker::start(BrokerConfig::local()).unwrap();
        broker.add_dc(DC, DcOptions::default()).unwrap();
        let server = Port::from_socket(socket_of(&broker, SERVER), None).unwrap();
        World { member: Member::join(&broker), server, broker }
    }

    /// Opened by the member to the server.
    pub fn open(&mut self, ring: Option<RingSpec>) -> Channel {
        self.member.open(SERVER, ring)
    }

    /// Opened by the server to the member.
    pub fn accept_ring(&mut self, spec: RingSpec) -> (Channel, ipc::RingClient) {
        let ring = self.server.open_ring(MEMBER, spec, ipc::Wait::For(LIMIT)).unwrap();
        (self.member.accept(), ring)
    }

    pub fn close(&mut self, channel: Channel) {
        self.member.end(channel.packet.channel);
    }
}

fn socket_of(broker: &Broker, endpoint: Endpoint) -> OwnedFd {
    broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(1))).unwrap()
}

impl Member {
    pub fn join(broker: &Broker) -> Member {
        let mut member = Member { socket: socket_of(broker, MEMBER), request: 0, accepted: Vec::new() };
        assert_eq!(member.ask(Packet::new(Op::Bind)).0.op, Op::Bound);
        member
    }

    fn ask(&mut self, packet: Packet) -> (Packet, Vec<OwnedFd>) {
        self.request += 1;
        let packet = Packet { request: self.request, ..packet };
        say(&self.socket, &packet);
        self.hear(|answer| answer.request == packet.request)
    }

    fn hear(&mut self, wanted: impl Fn(&Packet) -> bool) -> (Packet, Vec<OwnedFd>) {
        let until = Instant::now() + LIMIT;
        let mut buffer = [0; Packet::BYTES + 1];
        loop {
            match sys::seqpacket::receive(&self.socket, &mut buffer) {
                Ok(received) => {
                    let packet = Packet::from_bytes(&buffer[..received.bytes]).expect("the broker is alive");
                    if wanted(&packet) {
                        return (packet, received.descriptors);
                    }
                    if packet.op == Op::Accepted {
                        self.accepted.push(packet.channel);
                    }
                }
                Err(_) => {
                    assert!(Instant::now() < until, "the broker does not answer");
                    std::thread::yield_now();
                }
            }
        }
    }

    pub fn open(&mut self, to: Endpoint, ring: Option<RingSpec>) -> Channel {
        let size = ring.map(RingSpec::size).unwrap_or_default();
        let open = Packet { peer: Some(to), size, ..Packet::new(Op::Open) };
        loop {
            let (answer, files) = self.ask(open);
            if answer.op == Op::Opened {
                return Channel::map(answer, files);
            }
            // The peer's own is in the way: it opened one to answer, after ours had ended.
            for channel in std::mem::take(&mut self.accepted) {
                self.end(channel);
            }
        }
    }

    /// What was opened to it.
    pub fn accept(&mut self) -> Channel {
        let (packet, files) = self.hear(|packet| packet.op == Op::Accepted);
        Channel::map(packet, files)
    }

    pub fn end(&self, channel: ChannelId) {
        say(&self.socket, &Packet { channel, value: 5, ..Packet::new(Op::Close) });
    }
}

pub fn say(socket: &OwnedFd, packet: &Packet) {
    let until = Instant::now() + LIMIT;
    while sys::seqpacket::send(socket, &packet.to_bytes(), &[] as &[OwnedFd]).is_err() {
        assert!(Instant::now() < until, "the broker takes nothing");
        std::thread::yield_now();
    }
}

impl Channel {
    fn map(packet: Packet, files: Vec<OwnedFd>) -> Channel {
        let map = |index: usize, bytes, access| Mapping::of(&files[index], bytes, access).unwrap();
        Channel {
            own: map(0, packet.size.side_bytes(), Access::ReadWrite),
            peer: map(1, packet.size.side_bytes(), Access::Read),
            shared: map(2, packet.size.shared_bytes(), Access::ReadWrite),
            packet,
            _files: files,
        }
    }
}
