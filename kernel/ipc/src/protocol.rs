//! What ports and proxies say to their broker over a sequenced Unix socket, and what it says to them.
//!
//! Every message is one packet of [`Packet::BYTES`] bytes, little-endian, for some operations a body of at most [`BODY_BYTES_MAX`]
//! behind it, and up to seven descriptors. Fields that an operation does not use are 0. A packet that is shorter, longer, or of
//! an unknown operation is an error of its sender, who is dropped.
//!
//! A request carries a number of the sender's; its answer carries the same. Number 0 asks for no answer. Whatever else the
//! broker says comes unasked.
//!
//! Numbers rise over the life of a connection. A broker that is killed and started again may have read a request without
//! answering it, so it says `Restarted` on every connection it took over, and whoever waits for an answer asks again with the
//! same number. A request that the new broker has read already (it lay in the socket) is then not done twice.
//!
//! Not here: who may ask for what (`kernel/broker`).

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use abi::limits::{PARCEL_BYTES_MAX, PRIVILEGES_BYTES_MAX};
use abi::{Calls, DcId, Endpoint, Epoch, IpcError, Lane, NodeId};
use ipc_core::ChannelId;
use ipc_shm::{PartyFiles, Role, Size};

use crate::RingSpec;

/// Operations. Requests are below 100, answers and notices above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Op {
    /// `own`: the number wished, or none; `patience`: whether to wait until a manager has kept a number for the sender.
    Bind = 1,
    Unbind = 2,
    /// `peer`, `size`, `wait`.
    Open = 3,
    /// `peer`: answered by `Done` when it is bound.
    AwaitBound = 4,
    AwaitUnbound = 5,
    /// `value`: the request to give up. Its answer comes in any case: what it waited for, or `TimedOut`.
    Cancel = 6,
    /// `value`: a pid.
    GetEndpoint = 7,
    /// `channel`, `value`: the code of the reason.
    Close = 8,
    /// Of a manager: ends the wait of `peer`.
    WakeUp = 9,
    /// Of a manager, with [`abi::Privileges`] behind the packet: those of `peer` from now on. Answered by `Done` once every channel that
    /// they forbid was closed.
    SetPrivileges = 10,
    /// Those of `peer`; anybody may ask.
    GetPrivileges = 11,
    /// The sender waits for `peer` and nothing else ends its wait; `value`: which wait it is.
    Waits = 12,
    /// `value`: which wait is over.
    WaitOver = 13,
    /// `value`: which wait goes on. The answer to `AskWait`.
    StillWaiting = 14,
    /// Of a manager: keeps a number, `own` or a free one, for the process `value` of this node. Answered by `Found`.
    BindFor = 15,
    /// Of the owner of `peer` or a manager: holds it. Answered by `Done` when nothing that its owner took is unanswered.
    MigrationStart = 16,
    /// Hands `peer`, which is held, over to the process `value` of `node` that stands by for it. Answered by `Done` when that is its owner.
    MigrationCommit = 17,
    /// Lets `peer` go on.
    MigrationRollback = 18,
    /// Of an owner that is held: it owes nothing. `value`: the number of the hold in its page.
    Drained = 19,
    /// Of a proxy: a channel from `peer` on `node` to `own`.
    OpenIn = 20,
    /// Of a proxy: `peer` on `node` ended, `value` is the code of the reason.
    RemoteGone = 21,
    /// Of a proxy: `value` is 1 for up, 0 for down.
    Link = 22,
    /// Of a proxy and to it: what the broker of `node` says, or is to be told, lies behind the packet. It may come twice.
    Parcel = 23,
    /// Of another broker, with a probe behind the packet that goes on at `peer`.
    Probe = 24,
    /// Of another broker: the wait `value` of `peer` is to be refused.
    Refuse = 25,

    /// Of a manager: makes the process `value` of `node`, which stands by for `peer`, its owner with `epoch`, whoever was before.
    Promote = 26,
    /// `own`: answered by `Bound` once the sender is its owner.
    StandBy = 27,
    /// Of another broker: whether the process `value` stands by for `peer`.
    Prepare = 28,
    /// Of another broker: its `peer` is handed over; answered by `Done` when nobody here has a channel with it.
    Leave = 29,
    /// Of another broker, with the privileges behind the packet: the process `value` that stands by for `peer` owns it with `epoch`.
    TakeOver = 30,
    /// Of another broker: `peer` is on `node` with `epoch`; on no node when that is 0.
    MovedTo = 31,
    /// `value`: an [`crate::info::Topic`]; `peer` when it is about one endpoint; `far`: where the list goes on; `size`: the most records as `entries`.
    Inform = 32,

    /// With a name behind the packet: what the sender is called from now on. Answered by `Done`.
    SetName = 33,
    /// With a name behind the packet; `patience`: whether to wait until somebody has it. Answered by `Found`.
    Find = 34,

    /// `own`, `epoch`; descriptor: the own control page.
    Bound = 100,
    /// A channel; `value`: see [`Packet::with_calls`]; descriptors: see [`channel_descriptors`].
    Opened = 101,
    Done = 102,
    /// `peer`; of a name also `node`.
    Found = 103,
    /// `value`: the code of the error.
    Failed = 104,
    /// With [`abi::Privileges`] behind the packet.
    Privileges = 105,
    /// With records behind the packet; `far`: where the list goes on, 0 at its end.
    Information = 106,
    /// Somebody opened this channel to the receiver.
    Accepted = 110,
    /// `channel`, `value`: the code of the reason.
    Ended = 111,
    /// To a proxy: a channel its predecessor held.
    Resumed = 112,
    /// To a proxy: that was all of them.
    AllResumed = 113,
    /// Another broker reads this connection from now on: what has no answer is to be asked again, with its number.
    Restarted = 114,
    /// `value`: a wait of the receiver's. Whoever is still in it, and finds nothing, says so.
    AskWait = 115,
    /// `value`: a wait of the receiver's, to be given up: it is part of a deadlock.
    RefuseWait = 116,
    /// The receiver is held, goes on, or is no owner any more: its page says which.
    Hold = 117,
}

impl Op {
    fn may_have_body(self) -> bool {
        let is_asked = matches!(self, Op::SetPrivileges | Op::SetName | Op::Find);
        is_asked || matches!(self, Op::Privileges | Op::Information | Op::Parcel | Op::Probe | Op::TakeOver)
    }

    fn of(number: u16) -> Option<Op> {
        Some(match number {
            1 => Op::Bind,
            2 => Op::Unbind,
            3 => Op::Open,
            4 => Op::AwaitBound,
            5 => Op::AwaitUnbound,
            6 => Op::Cancel,
            7 => Op::GetEndpoint,
            8 => Op::Close,
            9 => Op::WakeUp,
            10 => Op::SetPrivileges,
            11 => Op::GetPrivileges,
            12 => Op::Waits,
            13 => Op::WaitOver,
            14 => Op::StillWaiting,
            15 => Op::BindFor,
            16 => Op::MigrationStart,
            17 => Op::MigrationCommit,
            18 => Op::MigrationRollback,
            19 => Op::Drained,
            20 => Op::OpenIn,
            21 => Op::RemoteGone,
            22 => Op::Link,
            23 => Op::Parcel,
            24 => Op::Probe,
            25 => Op::Refuse,
            26 => Op::Promote,
            27 => Op::StandBy,
            28 => Op::Prepare,
            29 => Op::Leave,
            30 => Op::TakeOver,
            31 => Op::MovedTo,
            32 => Op::Inform,
            33 => Op::SetName,
            34 => Op::Find,
            100 => Op::Bound,
            101 => Op::Opened,
            102 => Op::Done,
            103 => Op::Found,
            104 => Op::Failed,
            105 => Op::Privileges,
            106 => Op::Information,
            110 => Op::Accepted,
            111 => Op::Ended,
            112 => Op::Resumed,
            113 => Op::AllResumed,
            114 => Op::Restarted,
            115 => Op::AskWait,
            116 => Op::RefuseWait,
            117 => Op::Hold,
            _ => return None,
        })
    }
}

/// One message. Which fields mean something depends on `op`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    pub op: Op,
    pub request: u32,
    pub dc: DcId,
    /// The receiver's or sender's endpoint.
    pub own: Option<Endpoint>,
    pub peer: Option<Endpoint>,
    pub node: NodeId,
    pub lane: Lane,
    pub role: Role,
    pub channel: ChannelId,
    pub epoch: Epoch,
    pub size: Size,
    pub value: u32,
    /// Of a proxied channel: what the far node calls it.
    pub far: u64,
    /// Of `OpenIn`: the serial number of the caller's control page on its own node.
    pub incarnation: Option<NonZeroU64>,
    /// Of `Open` and `Find`: whether to wait until the peer is bound.
    pub patience: Patience,
}

/// Whether an open or a find waits for its peer to be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    AtOnce,
    UntilBound,
}

const NO_ENDPOINT: u32 = u32::MAX;
const _: () = assert!(Packet::BYTES + PRIVILEGES_BYTES_MAX <= PARCEL_BYTES_MAX);

/// Bytes behind a packet: the privileges of an endpoint, alone or in a packet from broker to broker; a name; records of an answer.
pub const BODY_BYTES_MAX: usize = PARCEL_BYTES_MAX;
/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = Packet::BYTES + BODY_BYTES_MAX;

impl Packet {
    pub const BYTES: usize = 72;

    pub fn new(op: Op) -> Packet {
        Packet {
            op,
            request: 0,
            dc: DcId(0),
            own: None,
            peer: None,
            node: NodeId(0),
            lane: Lane::MESSAGES,
            role: Role::Left,
            channel: ChannelId(0),
            epoch: Epoch(0),
            size: Size::default(),
            value: 0,
            far: 0,
            incarnation: None,
            patience: Patience::AtOnce,
        }
    }

    pub fn failed(request: u32, error: IpcError) -> Packet {
        Packet { request, value: error.code(), ..Packet::new(Op::Failed) }
    }

    pub fn to_bytes(&self) -> [u8; Packet::BYTES] {
        let number = |endpoint: Option<Endpoint>| endpoint.map_or(NO_ENDPOINT, Endpoint::number);
        let flags = u16::from(self.role == Role::Right) | u16::from(self.patience == Patience::UntilBound) << 1;
        let mut out = [0; Packet::BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(self.op as u16).to_le_bytes());
        put(&flags.to_le_bytes());
        put(&self.request.to_le_bytes());
        put(&self.dc.0.to_le_bytes());
        put(&number(self.own).to_le_bytes());
        put(&number(self.peer).to_le_bytes());
        put(&self.node.0.to_le_bytes());
        put(&self.lane.0.to_le_bytes());
        put(&self.channel.0.to_le_bytes());
        put(&self.epoch.0.to_le_bytes());
        put(&self.size.entries.to_le_bytes());
        put(&self.size.arena_bytes.to_le_bytes());
        put(&self.value.to_le_bytes());
        put(&self.far.to_le_bytes());
        put(&self.incarnation.map_or(0, NonZeroU64::get).to_le_bytes());
        out
    }

    /// `None` for anything no honest sender writes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Packet> {
        let bytes: &[u8; Packet::BYTES] = bytes.try_into().ok()?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let endpoint = |number: u32| match number {
            NO_ENDPOINT => Some(None),
            number => Endpoint::new(number).map(Some),
        };
        let flags = u16_at(2);
        if flags > 3 || bytes[68..].iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(Packet {
            op: Op::of(u16_at(0))?,
            request: u32_at(4),
            dc: DcId(u32_at(8)),
            own: endpoint(u32_at(12))?,
            peer: endpoint(u32_at(16))?,
            node: NodeId(u16_at(20)),
            lane: Lane(u16_at(22)),
            role: if flags & 1 == 0 { Role::Left } else { Role::Right },
            channel: ChannelId(u64_at(24)),
            epoch: Epoch(u64_at(32)),
            size: Size { entries: u32_at(40), arena_bytes: u32_at(44) },
            value: u32_at(48),
            far: u64_at(52),
            incarnation: NonZeroU64::new(u64_at(60)),
            patience: if flags & 2 == 0 { Patience::AtOnce } else { Patience::UntilBound },
        })
    }

    /// The ring of a channel; `None` on lane 0.
    pub fn ring(&self) -> Option<RingSpec> {
        (self.size.entries > 0).then_some(RingSpec { entries: self.size.entries, arena_bytes: self.size.arena_bytes })
    }

    /// The channel's node of the remote party, when a proxy plays it.
    pub fn proxied(&self) -> Option<NodeId> {
        (self.node.0 != 0).then_some(self.node)
    }

    /// A channel's notice that says which calls its reader may make over it, and which its peer may.
    #[must_use]
    pub fn with_calls(self, own: Calls, peer: Calls) -> Packet {
        Packet { value: u32::from(own.bits()) | u32::from(peer.bits()) << 16, ..self }
    }

    pub fn own_calls(&self) -> Calls {
        Calls::of(self.value as u16).unwrap_or(Calls::NONE)
    }

    pub fn peer_calls(&self) -> Calls {
        Calls::of((self.value >> 16) as u16).unwrap_or(Calls::NONE)
    }

    /// The packet as it is sent, with what belongs behind it.
    pub fn with_body(&self, body: &[u8]) -> Vec<u8> {
        [&self.to_bytes()[..], body].concat()
    }

    /// Reads one message: the packet, and what lies behind it. `None` for what nobody of ours sends.
    pub fn split(message: &[u8]) -> Option<(Packet, &[u8])> {
        let (packet, body) = message.split_at_checked(Packet::BYTES)?;
        let packet = Packet::from_bytes(packet)?;
        (packet.op.may_have_body() || body.is_empty()).then_some((packet, body))
    }

    /// The error of `Failed` and `Ended`.
    pub fn error(&self) -> IpcError {
        IpcError::from_code(self.value)
    }

    /// The number of a process in its container.
    ///
    /// # Errors
    /// `BadArgument`: no process has it.
    pub fn pid(&self) -> Result<i32, IpcError> {
        i32::try_from(self.value).ok().filter(|pid| *pid > 0).ok_or(IpcError::BadArgument)
    }
}

/// Descriptors of a channel in the order in which they travel; the peer's control page is the last.
pub fn channel_descriptors(files: PartyFiles, peer_control: OwnedFd) -> Vec<OwnedFd> {
    vec![files.own, files.peer, files.shared, files.bell_in, files.bell_out, files.lifeline, peer_control]
}

/// The reverse; `None` when it is another number of descriptors.
pub fn take_channel_descriptors(descriptors: Vec<OwnedFd>) -> Option<(PartyFiles, OwnedFd)> {
    let [own, peer, shared, bell_in, bell_out, lifeline, control] = <[OwnedFd; 7]>::try_from(descriptors).ok()?;
    Some((PartyFiles { own, peer, shared, bell_in, bell_out, lifeline }, control))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packet_survives_the_round_trip_through_bytes() {
        let packet = Packet {
            request: 1,
            dc: DcId(2),
            own: Endpoint::new(3),
            peer: None,
            node: NodeId(4),
            lane: Lane(5),
            role: Role::Right,
            channel: ChannelId(6),
            epoch: Epoch(7),
            size: Size { entries: 8, arena_bytes: 4096 },
            value: 9,
            far: 10,
            incarnation: NonZeroU64::new(11),
            patience: Patience::UntilBound,
            ..Packet::new(Op::Open)
        };
        assert_eq!(Packet::from_bytes(&packet.to_bytes()), Some(packet));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_what_is_read_writes_the_same(
            bytes in proptest::collection::vec(any::<u8>(), 0..Packet::BYTES + 6)
        ) {
            if let Some(packet) = Packet::from_bytes(&bytes) {
                prop_assert_eq!(&packet.to_bytes()[..], &bytes[..]);
            }
        }
    }
}
