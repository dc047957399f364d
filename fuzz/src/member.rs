//! A world for many inputs: a broker, an honest server, and a member without the library whose memory the input writes.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use broker::{Broker, BrokerConfig, DcOptions, ServerIdentity};
use broker_api::{FromPort, IfAbsent, MESSAGE_BYTES_MAX, Message, Offer, Open, ToPort};
use ipc::{ChannelId, DcId, Endpoint, Epoch, IpcError, Lane, Port, RingSpec};
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
    pub offer: Offer,
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
        self.member.end(channel.offer.channel);
    }
}

fn socket_of(broker: &Broker, endpoint: Endpoint) -> OwnedFd {
    broker.server_socket(DC, ServerIdentity::new(endpoint, Epoch(1))).unwrap()
}

impl Member {
    pub fn join(broker: &Broker) -> Member {
        let mut member = Member { socket: socket_of(broker, MEMBER), request: 0, accepted: Vec::new() };
        let (bound, _) =
            member.ask(&FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks });
        assert!(matches!(bound, ToPort::Bound { .. }), "{bound:?}");
        member
    }

    fn ask(&mut self, message: &FromPort) -> (ToPort, Vec<OwnedFd>) {
        self.request += 1;
        let request = self.request;
        say(&self.socket, request, message);
        self.hear(|of, _| of == request)
    }

    fn hear(&mut self, is_wanted: impl Fn(u32, &ToPort) -> bool) -> (ToPort, Vec<OwnedFd>) {
        let until = Instant::now() + LIMIT;
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            match sys::seqpacket::receive(&self.socket, &mut buffer) {
                Ok(received) => {
                    let (request, message) =
                        ToPort::from_bytes(&buffer[..received.bytes]).expect("the broker is alive");
                    if is_wanted(request, &message) {
                        return (message, received.descriptors);
                    }
                    if let ToPort::Accepted(offer) = message {
                        self.accepted.push(offer.channel);
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
        let open = FromPort::Open(Open { peer: to, lane: Lane::MESSAGES, ring, if_absent: IfAbsent::Fail });
        loop {
            if let (ToPort::Opened(offer), files) = self.ask(&open) {
                return Channel::map(offer, files);
            }
            // The peer's own is in the way: it opened one to answer, after ours had ended.
            for channel in std::mem::take(&mut self.accepted) {
                self.end(channel);
            }
        }
    }

    /// What was opened to it.
    pub fn accept(&mut self) -> Channel {
        match self.hear(|_, message| matches!(message, ToPort::Accepted(_))) {
            (ToPort::Accepted(offer), files) => Channel::map(offer, files),
            (message, _) => panic!("{message:?} was not wanted"),
        }
    }

    pub fn end(&self, channel: ChannelId) {
        say(&self.socket, 0, &FromPort::Close { channel, reason: IpcError::TableFull });
    }
}

pub fn say(socket: &OwnedFd, request: u32, message: &FromPort) {
    let until = Instant::now() + LIMIT;
    while sys::seqpacket::send(socket, &message.to_bytes(request), &[] as &[OwnedFd]).is_err() {
        assert!(Instant::now() < until, "the broker takes nothing");
        std::thread::yield_now();
    }
}

impl Channel {
    fn map(offer: Offer, files: Vec<OwnedFd>) -> Channel {
        let size = offer.ring.map(RingSpec::size).unwrap_or_default();
        let map = |index: usize, bytes, access| Mapping::of(&files[index], bytes, access).unwrap();
        Channel {
            own: map(0, size.side_bytes(), Access::ReadWrite),
            peer: map(1, size.side_bytes(), Access::Read),
            shared: map(2, size.shared_bytes(), Access::ReadWrite),
            offer,
            _files: files,
        }
    }
}
