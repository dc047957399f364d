//! One connection to the broker, and what is not yet written to it.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint, PairId};
use broker_api::{Message, ToPort, ToProxy};
use ipc_core::ChannelId;

use crate::ledger::{Charge, Member, Person};
use crate::limits::{OUTBOX_MAX, OUTBOX_OF_CHANNELS_MAX, OUTBOX_OF_PROXY_MAX};
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
    /// Channels that a proxy is still to be handed: `None` when it has heard of all.
    pub to_resume: Option<VecDeque<(DcId, ChannelId)>>,
    outbox: VecDeque<Packed>,
    /// Those in the outbox that others caused.
    about_channels: usize,
    /// The first request this broker read, and the highest.
    requests_read: Option<(u32, u32)>,
}

/// A message as it is sent.
#[derive(Debug)]
pub(crate) struct Packed {
    sort: Sort,
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    /// For the descriptors, while they cannot be sent.
    _charge: Option<Charge>,
}

/// What a receiver that does not read is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    /// What the receiver itself caused.
    Own,
    /// What the party of a channel is told because another one opened or ended it.
    OfChannel,
    /// What has its receiver look at its own page, where all is that happened by then: one says as much as many.
    Nudge,
}

/// What the broker sends over a connection.
pub(crate) trait Sendable: Message {
    fn sort(&self) -> Sort;
}

impl Sendable for ToPort {
    fn sort(&self) -> Sort {
        match self {
            ToPort::Accepted(_) | ToPort::Ended { .. } => Sort::OfChannel,
            ToPort::WakeUp | ToPort::Hold => Sort::Nudge,
            _ => Sort::Own,
        }
    }
}

impl Sendable for ToProxy {
    fn sort(&self) -> Sort {
        Sort::Own
    }
}

impl Packed {
    /// `descriptors`: those that the message declares.
    pub fn new(request: u32, message: &impl Sendable, descriptors: Vec<OwnedFd>) -> Packed {
        debug_assert_eq!(descriptors.len(), message.descriptors().len(), "operation {:?}", message.sort());
        Packed { sort: message.sort(), message: message.to_bytes(request), descriptors, _charge: None }
    }

    /// The descriptors are somebody's to pay.
    pub fn charged(self, payer: Option<&Charge>) -> Packed {
        Packed { _charge: payer.map(|charge| charge.besides(self.descriptors.len())), ..self }
    }

    pub fn is_about_channel(&self) -> bool {
        self.sort == Sort::OfChannel
    }
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
            to_resume: None,
            outbox: VecDeque::new(),
            about_channels: 0,
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

    /// Whether this broker has not read the request yet. One that it has is asked again because of a restart, and is
    /// being answered already. Numbers rise, and what lay in the socket comes before what is asked again, so what was
    /// read is always one range.
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

    /// Packets that it has not read, but for those that its socket holds.
    pub fn unread(&self) -> usize {
        self.outbox.len()
    }

    /// Sends or queues; never blocks.
    pub fn send(&mut self, packed: Packed) -> Sent {
        if packed.sort == Sort::Nudge && self.outbox.iter().any(|waiting| waiting.message == packed.message) {
            return Sent::Waiting;
        }
        let is_about_channel = packed.is_about_channel();
        let (waiting, most) = match self.party {
            Party::Proxy { .. } => (self.outbox.len(), OUTBOX_OF_PROXY_MAX),
            _ if is_about_channel => (self.about_channels, OUTBOX_OF_CHANNELS_MAX),
            _ => (self.outbox.len() - self.about_channels, OUTBOX_MAX),
        };
        if waiting >= most {
            return Sent::Lost;
        }
        self.about_channels += usize::from(is_about_channel);
        self.outbox.push_back(packed);
        self.flush()
    }

    pub fn flush(&mut self) -> Sent {
        while let Some(packed) = self.outbox.front() {
            match sys::seqpacket::send(&self.socket, &packed.message, &packed.descriptors) {
                Ok(()) => {
                    self.about_channels -= usize::from(packed.is_about_channel());
                    self.outbox.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Waiting,
                Err(_) => return Sent::Lost,
            }
        }
        Sent::All
    }
}

#[cfg(test)]
mod tests {
    use broker_api::MESSAGE_BYTES_MAX;

    use super::*;

    #[test]
    fn who_does_not_read_is_woken_as_often_as_somebody_likes() {
        let (socket, other) = sys::seqpacket::pair().unwrap();
        let mut connection = Connection::new(socket, Party::Program { dc: DcId(1), pid: 1, uid: 0 });
        let mut send = |message: ToPort| connection.send(Packed::new(0, &message, Vec::new()));
        while send(ToPort::Done) == Sent::All {}
        for _ in 0..2 * OUTBOX_MAX {
            assert_eq!((send(ToPort::WakeUp), send(ToPort::Hold)), (Sent::Waiting, Sent::Waiting));
        }
        let mut read = Vec::new();
        while read.last() != Some(&ToPort::Hold) {
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            match sys::seqpacket::receive(&other, &mut buffer) {
                Ok(received) => read.push(ToPort::from_bytes(&buffer[..received.bytes]).unwrap().1),
                Err(_) => assert_eq!(connection.flush(), Sent::All),
            }
        }
        read.retain(|message| *message != ToPort::Done);
        assert_eq!(read, [ToPort::WakeUp, ToPort::Hold]);
        assert_eq!(connection.send(Packed::new(0, &ToPort::WakeUp, Vec::new())), Sent::All);
    }

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
