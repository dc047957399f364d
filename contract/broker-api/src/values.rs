//! What stands in the fields of messages, and how it is written there.

use std::num::NonZeroU64;

use abi::layout::{Role, Size};
use abi::ring::RingSpec;
use abi::{Calls, ChannelId, DcId, Endpoint, EndpointName, Epoch, HoldId, IpcError, Lane, NodeId, Pid, Privileges};

use versions::Versions;

use crate::info::Cursor;
use crate::packet::{Fault, Slots};

/// One wait of an endpoint, as it counts them itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitId(pub u32);

/// What an open or a find does when nobody is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfAbsent {
    Fail,
    Wait,
}

/// Which calls the two parties of a channel of messages may make over it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartiesCalls {
    /// Of the party that is told, or that the proxy plays.
    pub own: Calls,
    pub peer: Calls,
}

/// What travels beside a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// The receiver's control page.
    OwnPage,
    /// Of a channel: the side that the receiver writes, the other one, and what both write.
    OwnSide,
    PeerSide,
    Shared,
    BellIn,
    BellOut,
    Lifeline,
    /// The control page of the other party.
    PeerPage,
}

/// Of a message that tells an owner of its endpoint.
pub(crate) const PAGE: &[Descriptor] = &[Descriptor::OwnPage];
/// Of a message that gives a party its channel.
pub(crate) const CHANNEL: &[Descriptor] = &[
    Descriptor::OwnSide,
    Descriptor::PeerSide,
    Descriptor::Shared,
    Descriptor::BellIn,
    Descriptor::BellOut,
    Descriptor::Lifeline,
    Descriptor::PeerPage,
];

/// Fields that are written and read together.
pub trait Record: Sized {
    fn put(&self, slots: &mut Slots);

    fn take(slots: &mut Slots) -> Result<Self, Fault>;
}

/// How a type stands in a slot.
pub trait Field<Slot>: Sized {
    fn put(&self, slot: &mut Slot);

    /// Leaves the slot empty; `None` for a value that the type does not have.
    fn take(slot: &mut Slot) -> Option<Self>;
}

pub(crate) fn taken<Slot, F: Field<Slot>>(slot: &mut Slot, field: &'static str) -> Result<F, Fault> {
    F::take(slot).ok_or(Fault::Field(field))
}

/// `Type: Slot, value => what stands in the slot, taken => the type, if it is one`.
macro_rules! fields {
    ($($type:ty: $slot:ty, $value:ident => $put:expr, $taken:ident => $take:expr;)+) => {
        $(impl Field<$slot> for $type {
            fn put(&self, slot: &mut $slot) {
                let $value = self;
                *slot = $put;
            }

            fn take(slot: &mut $slot) -> Option<$type> {
                let $taken = std::mem::take(slot);
                $take
            }
        })+
    };
}

fields! {
    Endpoint: Option<Endpoint>, it => Some(*it), slot => slot;
    Option<Endpoint>: Option<Endpoint>, it => *it, slot => Some(slot);
    DcId: u32, it => it.0, slot => Some(DcId(slot));
    NodeId: u16, it => it.0, slot => (slot != 0).then_some(NodeId(slot));
    Option<NodeId>: u16, it => it.map_or(0, |node| node.0), slot => Some((slot != 0).then_some(NodeId(slot)));
    Lane: u16, it => it.0, slot => Some(Lane(slot));
    Role: bool, it => *it == Role::Right, slot => Some(if slot { Role::Right } else { Role::Left });
    IfAbsent: bool, it => *it == IfAbsent::Wait, slot => Some(if slot { IfAbsent::Wait } else { IfAbsent::Fail });
    ChannelId: u64, it => it.0, slot => Some(ChannelId(slot));
    Epoch: u64, it => it.0, slot => Some(Epoch(slot));
    Option<NonZeroU64>: u64, it => it.map_or(0, NonZeroU64::get), slot => Some(NonZeroU64::new(slot));
    u64: u64, it => *it, slot => Some(slot);
    u32: u32, it => *it, slot => Some(slot);
    // Who says nothing speaks version 1.
    Versions: u32, it => u32::from(it.to_u16()), slot => Versions::from_u16(u16::try_from(slot).ok()?);
    HoldId: u32, it => it.0, slot => Some(HoldId(slot));
    WaitId: u32, it => it.0, slot => Some(WaitId(slot));
    Pid: u32, it => it.number() as u32, slot => i32::try_from(slot).ok().and_then(Pid::new);
    // An error that only a later version has is `Corrupt`.
    IpcError: u32, it => it.code(), slot => Some(IpcError::from_code(slot));
    PartiesCalls: u32, it => u32::from(it.own.bits()) | u32::from(it.peer.bits()) << 16,
        slot => Some(PartiesCalls { own: Calls::of(slot as u16)?, peer: Calls::of((slot >> 16) as u16)? });
    Option<Cursor>: u64, it => it.map_or(0, |cursor| cursor.0), slot => Some((slot != 0).then_some(Cursor(slot)));
    Privileges: Vec<u8>, it => it.to_bytes(), slot => Privileges::from_bytes(&slot);
    EndpointName: Vec<u8>, it => it.as_bytes().to_vec(), slot => EndpointName::new(&slot);
    Vec<u8>: Vec<u8>, it => it.clone(), slot => Some(slot);
    // Nothing is a channel of messages.
    Option<RingSpec>: Size, it => it.map(RingSpec::size).unwrap_or_default(), slot => match slot {
        Size { entries: 0, arena_bytes: 0 } => Some(None),
        Size { entries: 0, .. } => None,
        Size { entries, arena_bytes } => Some(Some(RingSpec { entries, arena_bytes })),
    };
}
