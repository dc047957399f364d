//! One connection to the broker, and what is not yet written to it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint};
use ipc::protocol::Packet;

use crate::limits::OUTBOX_MAX;
use crate::{Privileges, ServerIdentity};

/// Who is at the other end, as the broker knows it from how the connection was made.
#[derive(Debug)]
pub(crate) enum Party {
    /// Came over the container's socket; `pid` is who connected.
    Program {
        dc: DcId,
        pid: i32,
    },
    /// The daemon made the socket for it.
    Server {
        dc: DcId,
        identity: ServerIdentity,
    },
    Proxy,
}

/// The process behind a bound connection.
#[derive(Debug)]
pub(crate) struct Bound {
    pub endpoint: Endpoint,
    pub pid: i32,
    /// The pid as the container knows it.
    pub inner_pid: i32,
    /// In the poller until the binding ends.
    pub pidfd: OwnedFd,
    pub privileges: Privileges,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub socket: OwnedFd,
    pub party: Party,
    pub bound: Option<Bound>,
    /// Whether the poller reports when the socket takes more.
    pub waits_to_write: bool,
    outbox: VecDeque<(Packet, Vec<OwnedFd>)>,
}

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    All,
    /// Some wait until the socket takes more.
    Waiting,
    /// The other end is closed or does not read: drop the connection.
    Lost,
}

impl Connection {
    pub fn new(socket: OwnedFd, party: Party) -> Connection {
        Connection { socket, party, bound: None, waits_to_write: false, outbox: VecDeque::new() }
    }

    pub fn dc(&self) -> Option<DcId> {
        match &self.party {
            Party::Program { dc, .. } | Party::Server { dc, .. } => Some(*dc),
            Party::Proxy => None,
        }
    }

    /// Sends or queues; never blocks.
    pub fn send(&mut self, packet: Packet, descriptors: Vec<OwnedFd>) -> Sent {
        if self.outbox.len() >= OUTBOX_MAX {
            return Sent::Lost;
        }
        self.outbox.push_back((packet, descriptors));
        self.flush()
    }

    pub fn flush(&mut self) -> Sent {
        while let Some((packet, descriptors)) = self.outbox.front() {
            match sys::seqpacket::send(&self.socket, &packet.to_bytes(), descriptors) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Waiting,
                Err(_) => return Sent::Lost,
            }
        }
        Sent::All
    }
}
