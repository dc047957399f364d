//! The loop: listening sockets, connections and clients of datagrams, all on one thread.
//!
//! ```text
//! listening ──accept──> Dialling ──a node takes it──> Relaying ──both ways over──> closed
//!                          └──nobody does──> reset       └──one side breaks──> both reset
//! ```
//!
//! What belongs to whom is in one number that rises and never comes again: what the kernel reports is of a socket that
//! is still there, or of nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, accept_with, connect, getsockname,
    recvfrom, sendto, socket_with, sockopt,
};
use vos_api::ports::{
    COUNTS_PER_PACKET, Introduction, NEVER_MAX, NeverPart, NodeAddresses, PORT_PACKET_BYTES_MAX, PORTS_MAX, PortCounts,
    PortName, PortTransport, ToPortGate,
};

use crate::datagrams::{DATAGRAM_BYTES_MAX, Flows};
use crate::dial::{Dial, DialStep, Listening};
use crate::egress::{FlowSide, Insider, OutFlows, Policy};
use crate::introduction;
use crate::relay::{self, CHUNK_BYTES, Means, Pipes, Progress, Readiness, Relay, Side};

/// Of all ports; further clients wait to be accepted.
pub const CONNECTIONS_MAX: usize = 4096;
/// Clients, or datagrams, taken of one port in a row.
const TURN_MAX: usize = 64;
const EVENTS_MAX: usize = 256;
/// After the last descriptor was taken.
const REST_MS: u64 = 100;
/// Between looks for clients of datagrams that are idle.
const SWEEP_MS: u64 = 5_000;
/// One that was told to leave waits for its connections no longer.
const LEAVE_MS: u64 = 3_600_000;

/// In place of a port, of connections that leave.
const OUT: u64 = u64::MAX;

/// Why the loop ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortGateEnd {
    /// Told to leave, and nobody is connected any more.
    Left,
    /// There is nobody who could tell it anything any more.
    Alone,
    Asked,
}

struct Port {
    name: PortName,
    inside: u16,
    introduction: Introduction,
    listening: Listening,
    socket: OwnedFd,
    flows: Option<Flows>,
    counts: PortCounts,
}

enum Link {
    Dialling(Dialling),
    Relaying { port: u64, relay: Relay },
}

/// A client for whom somebody is looked for.
struct Dialling {
    port: u64,
    /// As of the port when the client came.
    inside: u16,
    introduction: Introduction,
    client: OwnedFd,
    dial: Dial,
    attempts: Vec<(u64, IpAddr, OwnedFd)>,
    /// What the kernel said of the client meanwhile.
    said: Readiness,
}

/// What a number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Control,
    Stop,
    Port(u64),
    Client(u64),
    Node(u64),
    /// An attempt of a link.
    Attempt(u64),
    Flow(u64),
    /// Sockets on which programs are heard that want out; by their place.
    OutStream(u64),
    OutDatagrams(u64),
    OutFlow(u64, FlowSide),
}

/// On which programs are heard that want out, of one family of addresses (`sys::sk_lookup`).
pub struct OutEars {
    /// Listens.
    pub stream: OwnedFd,
    pub datagrams: OwnedFd,
}

/// What a gate needs through which programs of a container get out.
pub struct WayOut {
    /// A few, one for each family.
    pub ears: Vec<OutEars>,
    pub policy: Policy,
    pub insider: Insider,
}

struct Leaving {
    way: WayOut,
    /// Addresses that are being told.
    never: Vec<IpAddr>,
    flows: OutFlows,
}

pub struct PortGate {
    epoll: OwnedFd,
    control: OwnedFd,
    /// Readable: it is to end.
    stop: OwnedFd,
    nodes: NodeAddresses,
    ports: BTreeMap<u64, Port>,
    links: BTreeMap<u64, Link>,
    /// Of attempts: the link.
    attempts: BTreeMap<u64, u64>,
    /// Of clients of datagrams: the port.
    flows: BTreeMap<u64, u64>,
    leaving: Option<Leaving>,
    /// When links are to be looked at.
    due: BTreeSet<(u64, u64)>,
    /// Links with more to do than they were given.
    going_on: Vec<u64>,
    last: u64,
    begun: Instant,
    rests_until_ms: Option<u64>,
    sweep_ms: u64,
    /// Told to leave; until then at most.
    leaves_ms: Option<u64>,
    means: Means,
    datagram: Box<[u8; DATAGRAM_BYTES_MAX]>,
}

impl PortGate {
    /// Over `control` it is told what to do ([`ToPortGate`]); `stop` ends it when it is readable. Connections are made
    /// in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No descriptors.
    pub fn new(control: OwnedFd, stop: OwnedFd) -> io::Result<PortGate> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let gate = PortGate {
            epoll,
            control,
            stop,
            nodes: NodeAddresses { own: Ipv4Addr::LOCALHOST.into(), others: Vec::new() },
            ports: BTreeMap::new(),
            links: BTreeMap::new(),
            attempts: BTreeMap::new(),
            flows: BTreeMap::new(),
            leaving: None,
            due: BTreeSet::new(),
            going_on: Vec::new(),
            last: 0,
            begun: Instant::now(),
            rests_until_ms: None,
            sweep_ms: 0,
            leaves_ms: None,
            means: Means { chunk: Box::new([0; CHUNK_BYTES]), pipes: Pipes::default() },
            datagram: Box::new([0; DATAGRAM_BYTES_MAX]),
        };
        gate.watch(&gate.control, Token::Control, epoll::EventFlags::IN)?;
        gate.watch(&gate.stop, Token::Stop, epoll::EventFlags::IN)?;
        Ok(gate)
    }

    /// Its programs get out, too. Connections to the outside are made in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No descriptors.
    pub fn with_way_out(mut self, way: WayOut) -> io::Result<PortGate> {
        for (at, OutEars { stream, datagrams }) in (0..).zip(&way.ears) {
            for (socket, token) in [(stream, Token::OutStream(at)), (datagrams, Token::OutDatagrams(at))] {
                rustix::io::ioctl_fionbio(socket, true)?;
                self.watch(socket, token, epoll::EventFlags::IN)?;
            }
        }
        self.leaving = Some(Leaving { way, never: Vec::new(), flows: OutFlows::default() });
        Ok(self)
    }

    /// # Errors
    /// The kernel does not say any more what happens.
    pub fn run(mut self) -> io::Result<PortGateEnd> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS_MAX];
        loop {
            let limit = self.limit();
            let count = match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(cause) => return Err(cause.into()),
            };
            for event in events.iter().take(count) {
                // Copied: the structure is packed.
                let (data, flags) = (event.data, event.flags);
                let Some(token) = Token::of(data.u64()) else { continue };
                match token {
                    Token::Control => {
                        if !self.hear_control() {
                            return Ok(PortGateEnd::Alone);
                        }
                    }
                    Token::Stop => return Ok(PortGateEnd::Asked),
                    token => self.hear(token, flags),
                }
            }
            let now = self.now_ms();
            self.go_on(now);
            if self.has_left(now) {
                return Ok(PortGateEnd::Left);
            }
        }
    }

    fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn watch(&self, socket: impl AsFd, token: Token, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token.number()), flags)?)
    }

    fn limit(&self) -> Option<Timespec> {
        let now = self.now_ms();
        let sweep = self.has_flows().then_some(self.sweep_ms);
        let due = self.due.first().map(|(at, _)| *at);
        let until = [due, self.rests_until_ms, sweep, self.leaves_ms].into_iter().flatten().min();
        let wait_ms = if self.going_on.is_empty() { until?.saturating_sub(now) } else { 0 };
        let wait = Duration::from_millis(wait_ms);
        Some(Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() })
    }

    fn has_flows(&self) -> bool {
        !self.flows.is_empty() || self.leaving.as_ref().is_some_and(|leaving| leaving.flows.count() > 0)
    }

    fn has_left(&self, now_ms: u64) -> bool {
        self.leaves_ms.is_some_and(|limit| now_ms >= limit || (self.links.is_empty() && self.flows.is_empty()))
    }

    /// What time brings, and what was not finished.
    fn go_on(&mut self, now_ms: u64) {
        for link in std::mem::take(&mut self.going_on) {
            self.pump(link);
        }
        while let Some((_, link)) = self.due.first().copied().filter(|(at, _)| *at <= now_ms) {
            self.due.pop_first();
            self.dial(link);
        }
        if self.rests_until_ms.is_some_and(|until| until <= now_ms) {
            self.rests_until_ms = None;
            self.listen(epoll::EventFlags::IN);
        }
        if self.sweep_ms <= now_ms && self.has_flows() {
            self.sweep_ms = now_ms + SWEEP_MS;
            self.leaving.iter_mut().for_each(|leaving| leaving.flows.forget_idle(now_ms));
            self.ports.values_mut().filter_map(|port| port.flows.as_mut()).for_each(|flows| flows.forget_idle(now_ms));
            let is_there = |number: &u64, port: &mut u64| {
                let flows = self.ports.get(port).and_then(|port| port.flows.as_ref());
                flows.is_some_and(|flows| flows.socket(*number).is_some())
            };
            self.flows.retain(is_there);
        }
    }

    // ---- what it is told

    /// False: nobody tells it anything any more.
    fn hear_control(&mut self) -> bool {
        let mut packet = [0; PORT_PACKET_BYTES_MAX];
        loop {
            let received = match sys::seqpacket::receive(&self.control, &mut packet) {
                Ok(received) if received.bytes > 0 => received,
                Ok(_) => return false,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return true,
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return false,
            };
            let bytes = packet.get(..received.bytes).unwrap_or_default();
            let socket = received.descriptors.into_iter().next();
            match (ToPortGate::decode(bytes), socket) {
                (Ok(ToPortGate::Open { name, inside, introduction }), Some(socket)) => {
                    if let Err(cause) = self.open(name, inside, introduction, socket) {
                        tracing::error!(%cause, ?name, "a port is not served");
                    }
                }
                (Ok(ToPortGate::Close(name)), _) => self.ports.retain(|_, port| port.name != name),
                (Ok(ToPortGate::Nodes(nodes)), _) => self.nodes = nodes,
                (Ok(ToPortGate::Count), _) => self.tell_counts(),
                (Ok(ToPortGate::Never { part, addresses }), _) => self.keep_from(part, addresses),
                (Ok(ToPortGate::Leave), _) => {
                    self.leave();
                    return true;
                }
                (Ok(ToPortGate::Open { name, .. }), None) => tracing::error!(?name, "a port came without its socket"),
                (Err(_), _) => tracing::error!("what the daemon said is not understood"),
            }
        }
    }

    fn open(&mut self, name: PortName, inside: u16, introduction: Introduction, socket: OwnedFd) -> io::Result<()> {
        if let Some(port) = self.ports.values_mut().find(|port| port.name == name) {
            (port.inside, port.introduction) = (inside, introduction);
            return Ok(());
        }
        if self.ports.len() >= PORTS_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let number = self.number();
        rustix::io::ioctl_fionbio(&socket, true)?;
        self.watch(&socket, Token::Port(number), epoll::EventFlags::IN)?;
        let counts = PortCounts { name, open: 0, taken: 0, refused: 0 };
        let flows = (name.transport == PortTransport::Udp).then(|| Flows::new(inside));
        let listening = Listening::default();
        self.ports.insert(number, Port { name, inside, introduction, listening, socket, flows, counts });
        Ok(())
    }

    /// Somebody else has the sockets, too.
    fn leave(&mut self) {
        self.leaves_ms = Some(self.now_ms() + LEAVE_MS);
        self.ports.clear();
        self.flows.clear();
        self.leaving = None;
        // Its end is none of this gate's business any more.
        if let Err(cause) = epoll::delete(&self.epoll, &self.control) {
            tracing::error!(%cause, "the daemon is still listened to");
        }
    }

    /// What goes on already goes on.
    fn keep_from(&mut self, part: NeverPart, addresses: Vec<IpAddr>) {
        let Some(Leaving { way, never, .. }) = &mut self.leaving else { return };
        if part.is_first {
            never.clear();
        }
        never.extend(addresses);
        // A cluster has not so many; what was told before holds.
        never.truncate(NEVER_MAX);
        if part.is_last {
            way.policy.never = std::mem::take(never).into_iter().collect();
            tracing::info!(addresses = way.policy.never.len(), "the cluster's nodes have other addresses");
        }
    }

    fn tell_counts(&self) {
        let counts: Vec<PortCounts> = self
            .ports
            .values()
            .map(|port| {
                let flows = port.flows.as_ref().map_or(0, Flows::count) as u32;
                PortCounts { open: port.counts.open + flows, ..port.counts }
            })
            .collect();
        let mut packets: Vec<&[PortCounts]> = counts.chunks(COUNTS_PER_PACKET).collect();
        if packets.last().is_none_or(|last| last.len() == COUNTS_PER_PACKET) {
            packets.push(&[]);
        }
        for packet in packets {
            // Who does not listen asks again.
            let _ = sys::seqpacket::send(&self.control, &PortCounts::encode_all(packet), &[] as &[OwnedFd]);
        }
    }

    /// Whether clients are accepted.
    fn listen(&mut self, flags: epoll::EventFlags) {
        let ports = self.ports.iter().map(|(number, port)| (Token::Port(*number), &port.socket));
        let out = self.leaving.iter().flat_map(|leaving| (0..).zip(&leaving.way.ears));
        let out = out.map(|(at, ears)| (Token::OutStream(at), &ears.stream));
        for (token, socket) in ports.chain(out) {
            let token = epoll::EventData::new_u64(token.number());
            if let Err(cause) = epoll::modify(&self.epoll, socket, token, flags) {
                tracing::error!(%cause, "a port is not served");
            }
        }
    }

    fn rest(&mut self) {
        self.rests_until_ms = Some(self.now_ms() + REST_MS);
        self.listen(epoll::EventFlags::empty());
    }

    // ---- what the kernel says

    fn hear(&mut self, token: Token, flags: epoll::EventFlags) {
        use epoll::EventFlags as Flags;
        let readiness = Readiness {
            comes: flags.intersects(Flags::IN | Flags::HUP | Flags::ERR),
            ends: flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR),
            takes: flags.intersects(Flags::OUT | Flags::HUP | Flags::ERR),
        };
        match token {
            Token::Port(number) => match self.ports.get(&number).map(|port| port.name.transport) {
                Some(PortTransport::Tcp) => self.accept(token),
                Some(PortTransport::Udp) => self.take_datagrams(number),
                None => (),
            },
            Token::Client(link) => self.hear_side(link, Side::Client, readiness),
            Token::Node(link) => self.hear_side(link, Side::Node, readiness),
            Token::Attempt(attempt) => self.hear_attempt(attempt),
            Token::Flow(number) => self.answer_datagrams(number),
            Token::OutStream(_) => self.accept(token),
            Token::OutDatagrams(at) => self.take_leaving(at),
            Token::OutFlow(number, side) => self.carry_leaving(number, side),
            Token::Control | Token::Stop => (),
        }
    }

    /// Clients of a port, or programs that want out.
    fn accept(&mut self, from: Token) {
        for _ in 0..TURN_MAX {
            if self.links.len() >= CONNECTIONS_MAX {
                return self.rest();
            }
            let socket = match from {
                Token::Port(number) => self.ports.get(&number).map(|port| &port.socket),
                Token::OutStream(at) => self.ears(at).map(|ears| &ears.stream),
                _ => None,
            };
            let Some(socket) = socket else { return };
            match accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(client) => match self.whom_to_dial(from, &client) {
                    Some((port, inside, introduction, dial)) => {
                        let (attempts, said) = (Vec::new(), Readiness::default());
                        self.begin(Dialling { port, inside, introduction, client, dial, attempts, said });
                    }
                    None => relay::reset(client),
                },
                Err(Errno::AGAIN) => return,
                // One that was there, and went again.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => (),
                Err(cause) => {
                    tracing::warn!(%cause, ?from, "clients wait to be accepted");
                    return self.rest();
                }
            }
        }
    }

    /// `None`: nobody, for a program that may not go where it wants.
    fn whom_to_dial(&mut self, from: Token, client: &OwnedFd) -> Option<(u64, u16, Introduction, Dial)> {
        let now = self.now_ms();
        if let Token::Port(number) = from {
            let port = self.ports.get_mut(&number)?;
            port.counts.taken += 1;
            port.counts.open += 1;
            let dial = Dial::new(port.listening.order(&self.nodes), now);
            return Some((number, port.inside, port.introduction, dial));
        }
        let way = self.leaving.as_ref()?.way.policy.way_of_node(meant(client)?)?;
        Some((OUT, way.port(), Introduction::None, Dial::one(way.ip(), now)))
    }

    fn begin(&mut self, dialling: Dialling) {
        let link = self.number();
        let watched = self.watch(&dialling.client, Token::Client(link), stream_flags());
        self.links.insert(link, Link::Dialling(dialling));
        match watched {
            Ok(()) => self.dial(link),
            Err(cause) => {
                tracing::warn!(%cause, "a client is sent away");
                self.end(link);
            }
        }
    }

    fn hear_side(&mut self, number: u64, side: Side, readiness: Readiness) {
        match self.links.get_mut(&number) {
            Some(Link::Relaying { relay, .. }) => relay.hear(side, readiness),
            Some(Link::Dialling(Dialling { said, client, .. })) => {
                // What it says is for whoever takes it; but one that broke off is waited for by nobody.
                *said = said.and(readiness);
                if !matches!(sockopt::socket_error(&*client), Ok(Ok(()))) {
                    self.end(number);
                }
                return;
            }
            None => return,
        }
        self.pump(number);
    }

    fn pump(&mut self, number: u64) {
        let Some(Link::Relaying { relay, .. }) = self.links.get_mut(&number) else { return };
        match relay.pump(&mut self.means) {
            Ok(Progress::Waits) => (),
            Ok(Progress::GoesOn) => self.going_on.push(number),
            Ok(Progress::Over) | Err(_) => self.end(number),
        }
    }

    /// Closes what there is of a link. What is not over breaks.
    fn end(&mut self, number: u64) {
        let Some(link) = self.links.remove(&number) else { return };
        let port = match link {
            Link::Relaying { port, relay } => {
                relay.end(&mut self.means);
                port
            }
            Link::Dialling(Dialling { port, client, attempts, .. }) => {
                for (attempt, ..) in &attempts {
                    self.attempts.remove(attempt);
                }
                relay::reset(client);
                port
            }
        };
        if let Some(port) = self.ports.get_mut(&port) {
            port.counts.open = port.counts.open.saturating_sub(1);
        }
    }

    // ---- who takes a connection

    fn dial(&mut self, number: u64) {
        loop {
            let now = self.now_ms();
            let Some(Link::Dialling(dialling)) = self.links.get_mut(&number) else { return };
            let (port, inside) = (dialling.port, dialling.inside);
            match dialling.dial.step(now) {
                DialStep::Try(node) => self.attempt(number, node, inside),
                DialStep::Wait { until_ms } => {
                    self.due.insert((until_ms, number));
                    return;
                }
                DialStep::GiveUp => {
                    if let Some(port) = self.ports.get_mut(&port) {
                        port.counts.refused += 1;
                    }
                    return self.end(number);
                }
            }
        }
    }

    fn attempt(&mut self, number: u64, node: IpAddr, inside: u16) {
        let attempt = self.number();
        let begun = socket_with(family(node), SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .and_then(|socket| match connect(&socket, &SocketAddr::new(node, inside)) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(cause) => Err(cause),
            });
        let watched = begun.map_err(io::Error::from).and_then(|socket| {
            self.watch(&socket, Token::Attempt(attempt), epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                self.attempts.insert(attempt, number);
                if let Some(Link::Dialling(dialling)) = self.links.get_mut(&number) {
                    dialling.attempts.push((attempt, node, socket));
                }
            }
            Err(_) => self.refused(number, node),
        }
    }

    fn refused(&mut self, number: u64, node: IpAddr) {
        let now = self.now_ms();
        let Some(Link::Dialling(dialling)) = self.links.get_mut(&number) else { return };
        dialling.dial.refused(now);
        if let Some(port) = self.ports.get_mut(&dialling.port) {
            port.listening.refused(node);
        }
    }

    /// An attempt succeeded or failed.
    fn hear_attempt(&mut self, attempt: u64) {
        let Some(number) = self.attempts.remove(&attempt) else { return };
        let Some(Link::Dialling(Dialling { attempts, .. })) = self.links.get_mut(&number) else { return };
        let Some(at) = attempts.iter().position(|(one, ..)| *one == attempt) else { return };
        let (_, node, socket) = attempts.swap_remove(at);
        match sockopt::socket_error(&socket) {
            Ok(Ok(())) => self.connect(number, node, socket),
            Ok(Err(_)) | Err(_) => {
                self.refused(number, node);
                self.dial(number);
            }
        }
    }

    fn connect(&mut self, number: u64, node: IpAddr, socket: OwnedFd) {
        let Some(Link::Dialling(dialling)) = self.links.remove(&number) else { return };
        let Dialling { port, introduction, client, attempts, said, .. } = dialling;
        for (other, ..) in &attempts {
            self.attempts.remove(other);
        }
        if let Some(port) = self.ports.get_mut(&port) {
            port.listening.took(node);
        }
        let first = match introduction {
            Introduction::None => Vec::new(),
            Introduction::Proxy => introduced(&client),
        };
        let token = epoll::EventData::new_u64(Token::Node(number).number());
        let watched = epoll::modify(&self.epoll, &socket, token, stream_flags());
        // Programs that go out to the node's name server.
        let is_of_names = port == OUT && meant(&client).is_some_and(Policy::is_resolver);
        let relay = Relay::new(client, socket, first);
        let mut relay = if is_of_names { relay.with_sieves() } else { relay };
        relay.hear(Side::Client, said);
        self.links.insert(number, Link::Relaying { port, relay });
        match watched {
            Ok(()) => self.pump(number),
            Err(cause) => {
                tracing::warn!(%cause, "a client is sent away");
                self.end(number);
            }
        }
    }

    // ---- programs that want out

    fn ears(&self, at: u64) -> Option<&OutEars> {
        self.leaving.as_ref()?.way.ears.get(usize::try_from(at).ok()?)
    }

    fn take_leaving(&mut self, at: u64) {
        let now = self.now_ms();
        for _ in 0..TURN_MAX {
            let fresh = self.number();
            let Some(Leaving { way, flows, .. }) = &mut self.leaving else { return };
            let Some(ears) = usize::try_from(at).ok().and_then(|at| way.ears.get(at)) else { return };
            let (bytes, from, to) = match sys::sk_lookup::receive(&ears.datagrams, &mut self.datagram[..]) {
                Ok(taken) => taken,
                Err(cause) if cause.kind() == io::ErrorKind::InvalidData => continue,
                Err(_) => return,
            };
            let Some(out) = way.policy.way_of_node(to) else { continue };
            let datagram = self.datagram.get(..bytes).unwrap_or_default();
            match flows.put((from, to), out, datagram, (now, fresh), &way.insider) {
                Ok(true) => {
                    for side in [FlowSide::Inside, FlowSide::Outside] {
                        let token = epoll::EventData::new_u64(Token::OutFlow(fresh, side).number());
                        let socket = flows.socket(fresh, side);
                        let watched = socket.map(|it| epoll::add(&self.epoll, it, token, epoll::EventFlags::IN));
                        if let Some(Err(cause)) = watched {
                            tracing::warn!(%cause, "answers are lost");
                        }
                    }
                }
                Ok(false) => (),
                Err(cause) => tracing::warn!(%cause, "datagrams are lost"),
            }
        }
    }

    fn carry_leaving(&mut self, number: u64, side: FlowSide) {
        let now = self.now_ms();
        if let Some(leaving) = &mut self.leaving {
            leaving.flows.carry(number, side, &mut self.datagram[..], now, TURN_MAX);
        }
    }

    // ---- datagrams

    fn take_datagrams(&mut self, number: u64) {
        let now = self.now_ms();
        for _ in 0..TURN_MAX {
            let fresh = self.number();
            let Some(port) = self.ports.get_mut(&number) else { return };
            let Some(flows) = &mut port.flows else { return };
            let (bytes, client) = match recvfrom(&port.socket, &mut self.datagram[..], RecvFlags::DONTWAIT) {
                Ok((bytes, _, Some(from))) => match internet(&from) {
                    Some(client) => (bytes, client),
                    None => continue,
                },
                Ok(_) | Err(Errno::INTR | Errno::CONNREFUSED) => continue,
                Err(_) => return,
            };
            let datagram = self.datagram.get(..bytes).unwrap_or_default();
            match flows.put(client, datagram, now, fresh, (&mut port.listening, &self.nodes)) {
                Ok(true) => {
                    port.counts.taken += 1;
                    let token = epoll::EventData::new_u64(Token::Flow(fresh).number());
                    if let Some(socket) = flows.socket(fresh)
                        && epoll::add(&self.epoll, socket, token, epoll::EventFlags::IN).is_ok()
                    {
                        self.flows.insert(fresh, number);
                    }
                }
                Ok(false) => (),
                Err(cause) => {
                    tracing::warn!(%cause, "datagrams are lost");
                    return;
                }
            }
        }
    }

    fn answer_datagrams(&mut self, flow: u64) {
        let now = self.now_ms();
        let Some(port) = self.flows.get(&flow).and_then(|port| self.ports.get_mut(port)) else { return };
        let Some(flows) = &mut port.flows else { return };
        for _ in 0..TURN_MAX {
            let answer = flows.answer(flow, &mut self.datagram[..], now, &mut port.listening);
            let Some((client, datagram)) = answer else { return };
            // A datagram may be lost.
            let _ = sendto(&port.socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &client);
        }
    }
}

/// What says who the client is; nothing of one that is gone.
fn introduced(client: &OwnedFd) -> Vec<u8> {
    let from = rustix::net::getpeername(client).ok().flatten().and_then(|from| internet(&from));
    let at = getsockname(client).ok().and_then(|at| internet(&at));
    from.zip(at).map_or(Vec::new(), |(from, at)| introduction::header(from, at))
}

/// Whom a connection was for, on which the gate stands for him.
fn meant(client: &OwnedFd) -> Option<SocketAddr> {
    internet(&getsockname(client).ok()?)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn stream_flags() -> epoll::EventFlags {
    use epoll::EventFlags as Flags;
    Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET
}

fn internet(address: &SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(address.clone()).ok()
}

impl Token {
    fn number(self) -> u64 {
        let (number, kind) = match self {
            Token::Control => (0, 0),
            Token::Stop => (0, 1),
            Token::Port(number) => (number, 2),
            Token::Client(number) => (number, 3),
            Token::Node(number) => (number, 4),
            Token::Attempt(number) => (number, 5),
            Token::Flow(number) => (number, 6),
            Token::OutStream(at) => (at + 1, 0),
            Token::OutDatagrams(at) => (at + 1, 1),
            Token::OutFlow(number, FlowSide::Inside) => (number << 1, 7),
            Token::OutFlow(number, FlowSide::Outside) => (number << 1 | 1, 7),
        };
        number << 3 | kind
    }

    fn of(number: u64) -> Option<Token> {
        let (number, kind) = (number >> 3, number & 7);
        Some(match kind {
            0 => number.checked_sub(1).map_or(Token::Control, Token::OutStream),
            1 => number.checked_sub(1).map_or(Token::Stop, Token::OutDatagrams),
            2 => Token::Port(number),
            3 => Token::Client(number),
            4 => Token::Node(number),
            5 => Token::Attempt(number),
            6 => Token::Flow(number),
            7 if number & 1 == 0 => Token::OutFlow(number >> 1, FlowSide::Inside),
            7 => Token::OutFlow(number >> 1, FlowSide::Outside),
            _ => return None,
        })
    }
}
