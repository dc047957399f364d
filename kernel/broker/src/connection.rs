//! One connection to the broker, and what is not yet written to it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint, PairId};

use crate::ledger::{Charge, Member, Person};
use crate::limits::OUTBOX_MAX;
use crate::{Privileges, ServerIdentity};

/// Who is at the other end, as the broker knows it from how the connection was made.
#[derive(Debug)]
pub(crate) enum Party {
    /// Came over the container's socket; `pid` is who connected.
    Program {
        dc: DcId,
        pid: i32,
        uid: u32,
    },
    /// The daemon made the socket for it.
    Server {
        dc: DcId,
        identity: ServerIdentity,
    },
    Proxy {
        pair: PairId,
    },
}

/// The process behind a bound connection.
#[derive(Debug)]
pub(crate) struct Bound {
    pub endpoint: Endpoint,
    pub pid: i32,
    /// The pid as the container knows it; 0 for a server, which is outside.
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
    /// For what it holds here; of a member.
    pub charge: Option<Charge>,
    outbox: VecDeque<Packed>,
    /// The first request this broker read, and the highest.
    requests_read: Option<(u32, u32)>,
}

/// A message as it is sent.
#[derive(Debug)]
pub(crate) struct Packed {
    pub message: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
    /// For the descriptors, while they cannot be sent.
    pub _charge: Option<Charge>,
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
        Connection {
            socket,
            party,
            bound: None,
            waits_to_write: false,
            charge: None,
            outbox: VecDeque::new(),
            requests_read: None,
        }
    }

    /// Who pays for what this connection asks for.
    pub fn member(&self) -> Option<Member> {
        match &self.party {
            Party::Program { dc, pid, uid } => Some(Member { dc: *dc, person: Some(Person { uid: *uid, pid: *pid }) }),
            Party::Server { .. } | Party::Proxy { .. } => None,
        }
    }

    pub fn dc(&self) -> Option<DcId> {
        match &self.party {
            Party::Program { dc, .. } | Party::Server { dc, .. } => Some(*dc),
            Party::Proxy { .. } => None,
        }
    }

    /// Whether this broker has not read the request yet. One that it has is asked again because of a restart, and is being
    /// answered already. Numbers rise, and what lay in the socket comes before what is asked again, so what was read is
    /// always one range.
    pub fn is_new_request(&mut self, request: u32) -> bool {
        if request == 0 {
            return true;
        }
        let Some((first, last)) = self.requests_read else {
            self.requests_read = Some((request, request));
            return true;
        };
        let is_at_least = |one: u32, other: u32| one.wrapping_sub(other) as i32 >= 0;
        if !is_at_least(last, request) {
            self.requests_read = Some((first, request));
            return true;
        }
        !is_at_least(request, first)
    }

    /// Sends or queues; never blocks.
    pub fn send(&mut self, packed: Packed) -> Sent {
        if self.outbox.len() >= OUTBOX_MAX {
            return Sent::Lost;
        }
        self.outbox.push_back(packed);
        self.flush()
    }

    pub fn flush(&mut self) -> Sent {
        while let Some(packed) = self.outbox.front() {
            match sys::seqpacket::send(&self.socket, &packed.message, &packed.descriptors) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Waiting,
                Err(_) => return Sent::Lost,
            }
        }
        Sent::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_asked_again_is_new_only_to_a_broker_that_has_not_read_it() {
        let (socket, _other) = sys::seqpacket::pair().unwrap();
        let mut connection = Connection::new(socket, Party::Proxy { pair: PairId::FIRST });
        // The predecessor read 5; 6 and 7 lay in the socket; then all three are asked again.
        for (request, is_new) in [(6, true), (7, true), (5, true), (6, false), (7, false), (8, true), (0, true)] {
            assert_eq!(connection.is_new_request(request), is_new, "{request}");
        }
    }
}
