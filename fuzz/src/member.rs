//! A world for many inputs: a broker, an honest server, and a member without the library whose memory the input writes.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
use ipc::protocol::{Op, Packet};
use ipc::{ChannelId, DcId, Endpoint, Epoch, Port, RingSpec};
use ipc_shm::{Access, Mapping};

pub const DC: DcId = DcId(1);
pub const SERVER: Endpoint = Endpoint::FS;
const MEMBER: Endpoint = Endpoint::DS;
const LIMIT: Duration = Duration::from_secs(10);

pub struct World {
    pub broker: Broker,
    pub server: Port,
    member: OwnedFd,
    request: u32,
    /// Channels that the server opened to the member, which nobody has looked at.
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
        let socket = |endpoint| broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(1))).unwrap();
        let server = Port::from_socket(socket(SERVER), None).unwrap();
        let mut world = World { member: socket(MEMBER), server, request: 0, accepted: Vec::new(), broker };
        assert_eq!(world.ask(Packet::new(Op::Bind)).0.op, Op::Bound);
        world
    }

    fn ask(&mut self, packet: Packet) -> (Packet, Vec<OwnedFd>) {
        self.request += 1;
        let packet = Packet { request: self.request, ..packet };
        say(&self.member, &packet);
        self.hear(|answer| answer.request == packet.request)
    }

    fn hear(&mut self, wanted: impl Fn(&Packet) -> bool) -> (Packet, Vec<OwnedFd>) {
        let until = Instant::now() + LIMIT;
        let mut buffer = [0; Packet::BYTES + 1];
        loop {
            match sys::seqpacket::receive(&self.member, &mut buffer) {
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

    /// Opened by the member to the server.
    pub fn open(&mut self, ring: Option<RingSpec>) -> Channel {
        let size = ring.map(RingSpec::size).unwrap_or_default();
        let open = Packet { peer: Some(SERVER), size, ..Packet::new(Op::Open) };
        loop {
            let (answer, files) = self.ask(open);
            if answer.op == Op::Opened {
                return Channel::map(answer, files);
            }
            // The server's own is in the way: it opened one to answer, after ours had ended.
            for channel in std::mem::take(&mut self.accepted) {
                self.end(channel);
            }
        }
    }

    /// Opened by the server to the member.
    pub fn accept_ring(&mut self, spec: RingSpec) -> (Channel, ipc::RingClient) {
        let ring = self.server.open_ring(MEMBER, spec, ipc::Wait::For(LIMIT)).unwrap();
        let (packet, files) = self.hear(|packet| packet.op == Op::Accepted);
        (Channel::map(packet, files), ring)
    }

    pub fn close(&mut self, channel: Channel) {
        self.end(channel.packet.channel);
    }

    fn end(&self, channel: ChannelId) {
        say(&self.member, &Packet { channel, value: 5, ..Packet::new(Op::Close) });
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
