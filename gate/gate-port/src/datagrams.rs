//! Datagrams of one published port: a socket inside for each client, so that answers find their way back.
//!
//! Nobody says when a client is done ([`crate::recent`]). A node at which nobody listens says so by ICMP; the next one
//! is asked then, with the datagram that was refused.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, connect_unspec, recv, send, socket_with,
    sockopt,
};
use vos_api::ports::NodeAddresses;

use crate::dial::Listening;
use crate::recent::Recent;

/// The longest datagram there is.
pub const DATAGRAM_BYTES_MAX: usize = 65_535;

/// One client's way inside.
#[derive(Debug)]
struct Flow {
    client: SocketAddr,
    /// Connected to the node that is spoken to.
    socket: OwnedFd,
    /// Of the socket.
    family: AddressFamily,
    order: Vec<IpAddr>,
    at: usize,
    /// By this node.
    is_answered: bool,
    /// What went last, as long as nobody has answered.
    last: Option<Vec<u8>>,
}

/// Of one port, by numbers that the gate gives.
#[derive(Debug)]
pub struct Flows {
    /// Inside.
    port: u16,
    clients: Recent<SocketAddr, Flow>,
}

impl Flows {
    pub fn new(port: u16) -> Flows {
        Flows { port, clients: Recent::default() }
    }

    pub fn count(&self) -> usize {
        self.clients.count()
    }

    pub fn socket(&self, number: u64) -> Option<BorrowedFd<'_>> {
        self.clients.get(number).map(|flow| flow.socket.as_fd())
    }

    /// A datagram of a client goes inside. `fresh` is the number of the client if nothing is known of it; true: it was
    /// taken, and its socket is to be watched.
    ///
    /// # Errors
    /// No socket. That a datagram is lost is none.
    pub fn put(
        &mut self,
        client: SocketAddr,
        datagram: &[u8],
        now_ms: u64,
        fresh: u64,
        (listening, nodes): (&mut Listening, &NodeAddresses),
    ) -> io::Result<bool> {
        let known = self.clients.number(&client);
        let number = known.unwrap_or(fresh);
        if known.is_none() {
            let flow = Flow::begin(client, listening.order(nodes), self.port)?;
            self.clients.insert(client, fresh, flow, now_ms);
        }
        self.clients.used(number, now_ms);
        if let Some(flow) = self.clients.get_mut(number) {
            flow.put(datagram, self.port, listening);
        }
        Ok(known.is_none())
    }

    /// What a node answers, and to whom; `None`: nothing more now.
    pub fn answer<'a>(
        &mut self,
        number: u64,
        buffer: &'a mut [u8],
        now_ms: u64,
        listening: &mut Listening,
    ) -> Option<(SocketAddr, &'a [u8])> {
        let flow = self.clients.get_mut(number)?;
        let (client, bytes) = (flow.client, flow.hear(buffer, self.port, listening)?);
        self.clients.used(number, now_ms);
        Some((client, buffer.get(..bytes)?))
    }

    pub fn forget_idle(&mut self, now_ms: u64) {
        self.clients.forget_idle(now_ms);
    }
}

impl Flow {
    fn begin(client: SocketAddr, order: Vec<IpAddr>, port: u16) -> io::Result<Flow> {
        let is_mixed = order.iter().any(IpAddr::is_ipv6);
        let family = if is_mixed { AddressFamily::INET6 } else { AddressFamily::INET };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        if is_mixed {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        let mut flow = Flow { client, socket, family, order, at: 0, is_answered: false, last: None };
        flow.turn_to(port);
        Ok(flow)
    }

    /// To the node at its place. A way that is not there shows with the next datagram.
    fn turn_to(&mut self, port: u16) {
        let Some(node) = self.order.get(self.at).copied() else { return };
        let to = match node {
            // As a socket of both families writes it.
            IpAddr::V4(node) if self.family == AddressFamily::INET6 => {
                SocketAddrV6::new(node.to_ipv6_mapped(), port, 0, 0).into()
            }
            node => SocketAddr::new(node, port),
        };
        // Its own address was of the way to the last one.
        let _ = connect_unspec(&self.socket);
        let _ = connect(&self.socket, &to);
    }

    /// Nobody listens at the node: the next one is spoken to. False: that was the last one.
    fn turn_away(&mut self, port: u16, listening: &mut Listening) -> bool {
        if let Some(node) = self.order.get(self.at) {
            listening.refused(*node);
        }
        self.is_answered = false;
        self.at += 1;
        let is_another = self.at < self.order.len();
        if !is_another {
            self.at = 0;
        }
        self.turn_to(port);
        is_another
    }

    fn put(&mut self, datagram: &[u8], port: u16, listening: &mut Listening) {
        // An error of a datagram before is told to the next call, which then did nothing.
        for _ in 0..=self.order.len() {
            match send(&self.socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    if !self.turn_away(port, listening) {
                        break;
                    }
                }
                Err(Errno::INTR) => (),
                _ => break,
            }
        }
        if !self.is_answered {
            self.last = Some(datagram.to_vec());
        }
    }

    fn hear(&mut self, buffer: &mut [u8], port: u16, listening: &mut Listening) -> Option<usize> {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    (self.is_answered, self.last) = (true, None);
                    if let Some(node) = self.order.get(self.at) {
                        listening.took(*node);
                    }
                    return Some(bytes);
                }
                Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                    if !self.turn_away(port, listening) {
                        return None;
                    }
                    if let Some(datagram) = self.last.take() {
                        self.put(&datagram, port, listening);
                    }
                }
                Err(Errno::INTR) => (),
                Err(_) => return None,
            }
        }
    }
}
