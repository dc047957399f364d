//! All connections of a node and the socket they share.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{ClientConfig, ConnectionHandle, DatagramEvent, Endpoint, Incoming, Transmit};
use rustix::io::Errno;
use sys::udp;

use super::config::Configs;
use super::connection::{Connection, Holder, Number, Side};
use super::limits;
use crate::limits::GREETING_MAX;
use crate::transport::receive_some;

pub(super) struct Core {
    socket: OwnedFd,
    endpoint: Endpoint,
    client: ClientConfig,
    connections: HashMap<Number, Connection>,
    handles: HashMap<ConnectionHandle, Number>,
    backlog: VecDeque<Number>,
    next: u64,
    /// What the socket did not take; nothing more is made until it does.
    unsent: Option<Unsent>,
    /// 1 when the kernel or the interface sends no runs.
    segments_max: usize,
    out: Vec<u8>,
    buffer: Box<[u8]>,
    due: Option<Instant>,
}

struct Unsent {
    to: SocketAddr,
    bytes: Vec<u8>,
    segment: Option<u16>,
    again: Instant,
}

/// From interfaces without checksums of their own, and kernels that know no runs.
const NO_RUNS: [i32; 3] = [Errno::IO.raw_os_error(), Errno::INVAL.raw_os_error(), Errno::OPNOTSUPP.raw_os_error()];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    /// Or lost, as on the wire.
    Gone,
    Full,
}

impl Core {
    /// For connections that are made from now on. The key by which a successor tells peers that connections are gone
    /// stays that of the start, as these were made with it.
    pub(super) fn set_configs(&mut self, configs: Configs) {
        self.client = configs.client;
        self.endpoint.set_server_config(Some(configs.server));
    }

    pub(super) fn new(socket: OwnedFd, configs: Configs) -> Core {
        // The socket sends no fragments, so the longest datagram can be found by trying.
        let endpoint = Endpoint::new(configs.endpoint, Some(configs.server), true, None);
        Core {
            socket,
            endpoint,
            client: configs.client,
            connections: HashMap::new(),
            handles: HashMap::new(),
            backlog: VecDeque::new(),
            next: 0,
            unsent: None,
            segments_max: limits::SEGMENTS_MAX,
            out: Vec::new(),
            buffer: vec![0; udp::RUN_BYTES_MAX].into_boxed_slice(),
            due: None,
        }
    }

    // ---- Connections come and go.

    pub(super) fn dial(&mut self, address: SocketAddr, name: &str) -> io::Result<Number> {
        if self.connections.len() >= limits::CONNECTIONS_MAX {
            return Err(io::Error::other("too many connections"));
        }
        let config = self.client.clone();
        let dialled = self.endpoint.connect(Instant::now(), config, address, name);
        let (handle, protocol) = dialled.map_err(io::Error::other)?;
        let number = self.add(Connection::new(protocol, handle, Side::Dialled, Holder::Stream), handle);
        self.drive(number);
        Ok(number)
    }

    pub(super) fn accept(&mut self) -> Option<Number> {
        loop {
            let number = self.backlog.pop_front()?;
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.holder = Holder::Stream;
                return Some(number);
            }
        }
    }

    fn add(&mut self, connection: Connection, handle: ConnectionHandle) -> Number {
        let number = Number(self.next);
        self.next += 1;
        self.connections.insert(number, connection);
        self.handles.insert(handle, number);
        number
    }

    pub(super) fn let_go(&mut self, number: Number) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.let_go();
            self.drive(number);
        }
    }

    /// Somebody dials.
    fn admit(&mut self, incoming: Incoming) -> Option<Number> {
        let is_waiting = |c: &&Connection| matches!(c.holder, Holder::Stranger { .. } | Holder::Backlog);
        let waiting = self.connections.values().filter(is_waiting).count();
        self.out.clear();
        if waiting >= limits::BACKLOG_MAX || self.connections.len() >= limits::CONNECTIONS_MAX {
            let refusal = self.endpoint.refuse(incoming, &mut self.out);
            self.send(&refusal);
            return None;
        }
        if waiting >= limits::BACKLOG_UNPROVEN_MAX && !incoming.remote_address_validated() {
            if let Ok(retry) = self.endpoint.retry(incoming, &mut self.out) {
                self.send(&retry);
            }
            return None;
        }
        let now = Instant::now();
        match self.endpoint.accept(incoming, now, &mut self.out, None) {
            Ok((handle, protocol)) => {
                let holder = Holder::Stranger { until: now + GREETING_MAX };
                Some(self.add(Connection::new(protocol, handle, Side::Accepted, holder), handle))
            }
            Err(error) => {
                tracing::debug!("a QUIC connection was refused: {}", error.cause);
                if let Some(response) = error.response {
                    self.send(&response);
                }
                None
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.handles.is_empty()
    }

    // ---- Streams ask.

    /// Does something with a connection, and sends what follows from it.
    pub(super) fn with<T>(&mut self, number: Number, work: impl FnOnce(&mut Connection) -> T) -> io::Result<T> {
        let result = self.look(number, work)?;
        self.drive(number);
        Ok(result)
    }

    /// The same where nothing can follow.
    pub(super) fn look<T>(&mut self, number: Number, work: impl FnOnce(&mut Connection) -> T) -> io::Result<T> {
        self.connections.get_mut(&number).map(work).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    // ---- The loop asks.

    pub(super) fn turn(&mut self, now: Instant) -> io::Result<()> {
        let result = self.take_datagrams();
        self.send_again(now);
        let is_due = |(number, connection): (&Number, &mut Connection)| {
            connection.due().is_some_and(|due| due <= now).then_some(*number)
        };
        let due: Vec<Number> = self.connections.iter_mut().filter_map(is_due).collect();
        for number in due {
            if let Some(connection) = self.connections.get_mut(&number) {
                connection.protocol.handle_timeout(now);
                connection.tick(now);
            }
            self.drive(number);
        }
        let again = self.unsent.as_ref().map(|unsent| unsent.again);
        self.due = self.connections.values_mut().filter_map(Connection::due).chain(again).min();
        result
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes what came, up to a bound, and answers it.
    fn take_datagrams(&mut self) -> io::Result<()> {
        let mut touched = Vec::new();
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = receive_some(limits::RUNS_PER_TURN, || {
            let received = udp::receive(&self.socket, &mut buffer)?;
            let run = buffer.get(..received.bytes).unwrap_or(&[]);
            for datagram in run.chunks(received.segment_bytes) {
                let number = self.take_datagram(received.from, datagram);
                if let Some(number) = number.filter(|number| touched.last() != Some(number)) {
                    touched.push(number);
                }
            }
            Ok(())
        });
        self.buffer = buffer;
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|number| self.drive(number));
        result
    }

    fn take_datagram(&mut self, from: SocketAddr, datagram: &[u8]) -> Option<Number> {
        self.out.clear();
        let heard = self.endpoint.handle(Instant::now(), from, None, None, BytesMut::from(datagram), &mut self.out)?;
        match heard {
            DatagramEvent::ConnectionEvent(handle, event) => {
                let number = *self.handles.get(&handle)?;
                self.connections.get_mut(&number)?.protocol.handle_event(event);
                Some(number)
            }
            DatagramEvent::NewConnection(incoming) => self.admit(incoming),
            DatagramEvent::Response(response) => {
                self.send(&response);
                None
            }
        }
    }

    // ---- The protocol.

    /// Lets the protocol do what follows from what just happened to a connection.
    fn drive(&mut self, number: Number) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let held = connection.holder;
        loop {
            connection.take_events();
            let Some((handle, event)) = connection.handle.zip(connection.protocol.poll_endpoint_events()) else {
                break;
            };
            if event.is_drained() {
                self.handles.remove(&handle);
                connection.handle = None;
            }
            if let Some(answer) = self.endpoint.handle_event(handle, event) {
                connection.protocol.handle_event(answer);
            }
        }
        if held != Holder::Backlog && connection.holder == Holder::Backlog {
            self.backlog.push_back(number);
        }
        self.transmit(number);
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.can_be_forgotten() {
            self.connections.remove(&number);
            return;
        }
        self.due = self.due.into_iter().chain(connection.due()).min();
    }

    fn transmit(&mut self, number: Number) {
        while self.unsent.is_none() {
            let Some(connection) = self.connections.get_mut(&number) else { return };
            if connection.handle.is_none() {
                return;
            }
            let longest = udp::RUN_BYTES_MAX / usize::from(connection.protocol.current_mtu()).max(1);
            let segments = self.segments_max.min(longest).max(1);
            self.out.clear();
            let made = connection.protocol.poll_transmit(Instant::now(), segments, &mut self.out);
            let Some(transmit) = made else { return };
            self.send(&transmit);
        }
    }

    /// Sends what was made into `out`, or keeps it until the socket takes it.
    fn send(&mut self, transmit: &Transmit) {
        let bytes = self.out.get(..transmit.size).unwrap_or(&self.out);
        let segment = transmit.segment_size.and_then(|segment| u16::try_from(segment).ok());
        if self.unsent.is_some() {
            // An answer to a stranger, who will ask again.
            return;
        }
        if offer(&self.socket, &mut self.segments_max, transmit.destination, bytes, segment) == Sent::Full {
            let again = Instant::now() + limits::FULL_PAUSE;
            self.unsent = Some(Unsent { to: transmit.destination, bytes: bytes.to_vec(), segment, again });
            self.due = self.due.into_iter().chain([again]).min();
        }
    }

    /// The socket was full: what it did not take comes first, then all connections.
    fn send_again(&mut self, now: Instant) {
        let Some(mut unsent) = self.unsent.take_if(|unsent| unsent.again <= now) else { return };
        let sent = offer(&self.socket, &mut self.segments_max, unsent.to, &unsent.bytes, unsent.segment);
        if sent == Sent::Full {
            unsent.again = now + limits::FULL_PAUSE;
            self.unsent = Some(unsent);
            return;
        }
        let all: Vec<Number> = self.connections.keys().copied().collect();
        all.into_iter().for_each(|number| self.drive(number));
    }
}

/// A datagram that the interface does not take for another reason than that it is busy is lost, as it may be on the
/// wire.
fn offer(socket: &OwnedFd, segments_max: &mut usize, to: SocketAddr, bytes: &[u8], segment: Option<u16>) -> Sent {
    let Err(error) = udp::send(socket, to, bytes, segment) else { return Sent::Gone };
    match segment {
        _ if error.kind() == io::ErrorKind::WouldBlock => Sent::Full,
        // For good: any other error may be over in a moment, as that of an interface that is down.
        Some(segment) if error.raw_os_error().is_some_and(|error| NO_RUNS.contains(&error)) => {
            tracing::debug!("runs of datagrams cannot be sent: {error}");
            *segments_max = 1;
            for datagram in bytes.chunks(usize::from(segment).max(1)) {
                let _ = udp::send(socket, to, datagram, None);
            }
            Sent::Gone
        }
        _ => Sent::Gone,
    }
}
