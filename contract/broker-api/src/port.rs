//! A program or server and its broker.

use abi::layout::{Role, Size};
use abi::ring::RingSpec;
use abi::{ChannelId, DcId, Endpoint, EndpointName, Epoch, HoldId, IpcError, Lane, NodeId, Pid, Privileges};

use versions::Versions;

use crate::brokers::Answer;
use crate::info::{Cursor, Question};
use crate::packet::{Fault, Slots};
use crate::values::{CHANNEL, IfAbsent, PAGE, PartiesCalls, Record, WaitId, taken};

messages! {
    /// What a port asks and tells. Only a request to be bound, and its cancelling, may come before there is an
    /// endpoint.
    FromPort {
        /// Binds the sender. A sender without a wish may wait until a manager has kept a number for it. Answered by
        /// `Bound`, or the kernel's `EPROTONOSUPPORT` when the two share no version of `versions::PORT`.
        1 Bind { endpoint: Option<Endpoint> = own, if_absent: IfAbsent = waits, speaks: Versions = value };
        2 Unbind;
        /// Answered by `Opened`.
        3 Open(open: Open);
        /// Answered by `Done` when somebody is bound.
        4 AwaitBound { peer: Endpoint = peer };
        /// Answered by `Done` when nobody is.
        5 AwaitUnbound { peer: Endpoint = peer };
        /// Gives up a request. Its answer comes in any case: what it waited for, or `TimedOut`.
        6 Cancel { cancelled: u32 = value };
        /// Answered by `Found`.
        7 GetEndpoint { pid: Pid = value };
        8 Close { channel: ChannelId = channel, reason: IpcError = value };
        /// Of a manager: ends the wait of an endpoint.
        9 WakeUp { endpoint: Endpoint = peer };
        /// Of a manager: what an endpoint may do from now on. Answered by `Done` once every channel that this forbids
        /// was closed.
        10 SetPrivileges { endpoint: Endpoint = peer, privileges: Privileges = body };
        /// Anybody may ask.
        11 GetPrivileges { endpoint: Endpoint = peer };
        /// The sender waits for `peer` and nothing else ends its wait.
        12 Waits { wait: WaitId = value, peer: Endpoint = peer };
        13 WaitOver { wait: WaitId = value };
        /// The answer to `AskWait`.
        14 StillWaiting { wait: WaitId = value };
        /// Of a manager: keeps a number, this one or a free one, for a process of this node. Answered by `Found`.
        15 BindFor { pid: Pid = value, endpoint: Option<Endpoint> = own };
        /// Of the owner or a manager: holds the endpoint. Answered by `Done` when nothing that its owner took is
        /// unanswered.
        16 MigrationStart { endpoint: Endpoint = peer };
        /// Hands the endpoint, which is held, over to a process that stands by for it. Answered by `Done` when that is
        /// its owner.
        17 MigrationCommit { endpoint: Endpoint = peer, node: NodeId = node, pid: Pid = value };
        /// Lets the endpoint go on.
        18 MigrationRollback { endpoint: Endpoint = peer };
        /// Of an owner that is held: it owes nothing.
        19 Drained { hold: HoldId = value };
        /// Of a manager: makes a process that stands by for the endpoint its owner, whoever was before.
        26 Promote { endpoint: Endpoint = peer, node: NodeId = node, pid: Pid = value, epoch: Epoch = epoch };
        /// Answered by `Bound` once the sender is the owner.
        27 StandBy { endpoint: Endpoint = own, speaks: Versions = value };
        /// Answered by `Information`.
        32 Inform(inquiry: Inquiry);
        /// What the sender is called from now on. Answered by `Done`.
        33 SetName { name: EndpointName = body };
        /// Answered by `Found`.
        34 Find { name: EndpointName = body, if_absent: IfAbsent = waits };
    }
}

messages! {
    /// What a broker answers and tells a port.
    ToPort {
        100 Bound { dc: DcId = dc, endpoint: Endpoint = own, epoch: Epoch = epoch } with PAGE;
        101 Opened(offer: Offer) with CHANNEL;
        102 Done;
        /// With the node when a name was sought.
        103 Found { endpoint: Endpoint = peer, node: Option<NodeId> = node };
        /// As an answer to request 0: the broker does not serve this process at all.
        104 Failed { error: IpcError = value };
        105 Privileges { endpoint: Endpoint = peer, privileges: Privileges = body };
        /// `records`: [`crate::info::records`]; `next`: where the list goes on.
        106 Information { next: Option<Cursor> = far, records: Vec<u8> = body };
        /// Somebody opened this channel to the receiver.
        110 Accepted(offer: Offer) with CHANNEL;
        111 Ended { dc: DcId = dc, channel: ChannelId = channel, reason: IpcError = value };
        /// Another broker reads this connection from now on: what has no answer is to be asked again, with its number.
        114 Restarted;
        /// Whoever is still in this wait, and finds nothing, says so.
        115 AskWait { wait: WaitId = value };
        /// The wait is to be given up: it is part of a deadlock.
        116 RefuseWait { wait: WaitId = value };
        /// The receiver is held, goes on, or is no owner any more: its page says which.
        117 Hold;
        /// A manager ended the receiver's wait: its page counts them.
        9 WakeUp;
    }
}

record! {
    /// A channel that a port wants.
    Open {
        peer: Endpoint = peer,
        /// Of a ring any that is free, but for those of the library.
        lane: Lane = lane,
        ring: Option<RingSpec> = size,
        if_absent: IfAbsent = waits,
    }
}

record! {
    /// A channel, as one of its parties is told.
    Offer {
        dc: DcId = dc,
        channel: ChannelId = channel,
        own: Endpoint = own,
        peer: Endpoint = peer,
        /// Of the other party, when a proxy plays it.
        proxied: Option<NodeId> = node,
        lane: Lane = lane,
        role: Role = is_right,
        ring: Option<RingSpec> = size,
        calls: PartiesCalls = value,
    }
}

/// A question about the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inquiry {
    pub question: Question,
    /// Records that are wanted; not 0.
    pub at_most: u32,
}

impl Record for Inquiry {
    fn put(&self, slots: &mut Slots) {
        let (topic, endpoint, from) = match self.question {
            Question::Dc => (0, None, Cursor::START),
            Question::Endpoint(endpoint) => (1, Some(endpoint), Cursor::START),
            Question::Endpoints { from } => (2, None, from),
            Question::Channels { of, from } => (3, of, from),
            Question::Proxies { from } => (4, None, from),
        };
        (slots.value, slots.peer, slots.far) = (topic, endpoint, from.0);
        slots.size = Size { entries: self.at_most, arena_bytes: 0 };
    }

    fn take(slots: &mut Slots) -> Result<Inquiry, Fault> {
        let mut from = || Cursor(std::mem::take(&mut slots.far));
        let question = match std::mem::take(&mut slots.value) {
            0 => Question::Dc,
            1 => Question::Endpoint(taken(&mut slots.peer, "endpoint")?),
            2 => Question::Endpoints { from: from() },
            3 => Question::Channels { of: slots.peer.take(), from: from() },
            4 => Question::Proxies { from: from() },
            _ => return Err(Fault::Field("topic")),
        };
        match std::mem::take(&mut slots.size) {
            Size { entries: at_most @ 1.., arena_bytes: 0 } => Ok(Inquiry { question, at_most }),
            _ => Err(Fault::Field("at_most")),
        }
    }
}

impl From<Answer> for ToPort {
    fn from(answer: Answer) -> ToPort {
        match answer {
            Answer::Done => ToPort::Done,
            Answer::Failed { error } => ToPort::Failed { error },
            Answer::Privileges { endpoint, privileges } => ToPort::Privileges { endpoint, privileges },
        }
    }
}
