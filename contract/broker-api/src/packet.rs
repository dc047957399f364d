//! The bytes of a message: little-endian, the same layout for every operation. Fields that an operation does not have
//! are empty, which is 0, and for the two endpoints `u32::MAX`.
//!
//! | bytes | field | bytes | field |
//! |---|---|---|---|
//! | 0–1 | operation | 24–31 | channel |
//! | 2–3 | bit 0: right; bit 1: waits | 32–39 | epoch |
//! | 4–7 | request | 40–47 | size: entries, bytes of the arena |
//! | 8–11 | container | 48–51 | value |
//! | 12–15 | own endpoint | 52–59 | far |
//! | 16–19 | peer | 60–67 | incarnation |
//! | 20–21, 22–23 | node, lane | 68–71 | 0 |
//!
//! Operations are below 100 when they ask for something, and above when they answer or tell.

use abi::Endpoint;
use abi::layout::Size;
use abi::limits::{PARCEL_BYTES_MAX, PRIVILEGES_BYTES_MAX};

use crate::Descriptor;

/// Bytes of a packet.
pub const PACKET_BYTES: usize = 72;
/// Bytes after a packet: the privileges of an endpoint, alone or in a packet from broker to broker; a name; records of
/// an answer.
pub const BODY_BYTES_MAX: usize = PARCEL_BYTES_MAX;
/// Bytes of the longest message.
pub const MESSAGE_BYTES_MAX: usize = PACKET_BYTES + BODY_BYTES_MAX;

const _: () = assert!(PACKET_BYTES + PRIVILEGES_BYTES_MAX <= PARCEL_BYTES_MAX);

const NO_ENDPOINT: u32 = u32::MAX;

/// Why bytes are no message of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    #[error("not a packet")]
    Layout,
    #[error("operation {0} is none of this conversation")]
    UnknownOperation(u16),
    #[error("the message has no field '{0}'")]
    Unused(&'static str),
    /// The message has its form; one value is missing, or one that the field cannot have. Its sender may be told.
    #[error("request {request}: '{field}' cannot have this value")]
    Value { request: u32, field: &'static str },
}

/// A message of one direction of a conversation.
pub trait Message: Sized {
    /// Writes the fields and answers the operation.
    #[doc(hidden)]
    fn put(&self, slots: &mut Slots) -> u16;

    /// Takes the fields out: what is left in the slots was no field of the message.
    #[doc(hidden)]
    fn take(operation: u16, slots: &mut Slots) -> Result<Self, Fault>;

    /// What travels with it, in this order.
    fn descriptors(&self) -> &'static [Descriptor];

    /// The message as it is sent, as or in answer to this request.
    fn to_bytes(&self, request: u32) -> Vec<u8> {
        let mut slots = Slots::default();
        let operation = self.put(&mut slots);
        slots.to_bytes(operation, request)
    }

    /// Reads one message, and the number of its request.
    fn from_bytes(bytes: &[u8]) -> Result<(u32, Self), Malformed> {
        let (operation, request, mut slots) = Slots::from_bytes(bytes).ok_or(Malformed::Layout)?;
        let message = Self::take(operation, &mut slots).map_err(|fault| match fault {
            Fault::Operation => Malformed::UnknownOperation(operation),
            Fault::Field(field) => Malformed::Value { request, field },
        })?;
        slots.left().map_or(Ok((request, message)), |field| Err(Malformed::Unused(field)))
    }
}

/// Why a message cannot be taken out of its slots.
#[derive(Debug)]
pub enum Fault {
    Operation,
    Field(&'static str),
}

/// A packet's fields, each in its width. Only this crate knows them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slots {
    pub(crate) is_right: bool,
    pub(crate) waits: bool,
    pub(crate) dc: u32,
    pub(crate) own: Option<Endpoint>,
    pub(crate) peer: Option<Endpoint>,
    pub(crate) node: u16,
    pub(crate) lane: u16,
    pub(crate) channel: u64,
    pub(crate) epoch: u64,
    pub(crate) size: Size,
    pub(crate) value: u32,
    pub(crate) far: u64,
    pub(crate) incarnation: u64,
    pub(crate) body: Vec<u8>,
}

impl Slots {
    fn to_bytes(&self, operation: u16, request: u32) -> Vec<u8> {
        let number = |endpoint: Option<Endpoint>| endpoint.map_or(NO_ENDPOINT, Endpoint::number);
        let mut out = Vec::with_capacity(PACKET_BYTES + self.body.len());
        out.extend(operation.to_le_bytes());
        out.extend((u16::from(self.is_right) | u16::from(self.waits) << 1).to_le_bytes());
        for word in [request, self.dc, number(self.own), number(self.peer)] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.node.to_le_bytes());
        out.extend(self.lane.to_le_bytes());
        out.extend(self.channel.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        for word in [self.size.entries, self.size.arena_bytes, self.value] {
            out.extend(word.to_le_bytes());
        }
        out.extend(self.far.to_le_bytes());
        out.extend(self.incarnation.to_le_bytes());
        out.extend([0; 4]);
        out.extend_from_slice(&self.body);
        out
    }

    /// The operation, the request, and the rest; `None` for what is no packet.
    #[allow(clippy::indexing_slicing, reason = "every place is a number below `PACKET_BYTES`")]
    fn from_bytes(bytes: &[u8]) -> Option<(u16, u32, Slots)> {
        let (packet, body) = bytes.split_first_chunk::<PACKET_BYTES>()?;
        let u16_at = |at: usize| u16::from_le_bytes([packet[at], packet[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let endpoint = |number: u32| match number {
            NO_ENDPOINT => Some(None),
            number => Endpoint::new(number).map(Some),
        };
        let flags = u16_at(2);
        if flags > 3 || u32_at(68) != 0 || body.len() > BODY_BYTES_MAX {
            return None;
        }
        let slots = Slots {
            is_right: flags & 1 != 0,
            waits: flags & 2 != 0,
            dc: u32_at(8),
            own: endpoint(u32_at(12))?,
            peer: endpoint(u32_at(16))?,
            node: u16_at(20),
            lane: u16_at(22),
            channel: u64_at(24),
            epoch: u64_at(32),
            size: Size { entries: u32_at(40), arena_bytes: u32_at(44) },
            value: u32_at(48),
            far: u64_at(52),
            incarnation: u64_at(60),
            body: body.to_vec(),
        };
        Some((u16_at(0), u32_at(4), slots))
    }

    /// A field that nobody took out although there is something in it.
    fn left(&self) -> Option<&'static str> {
        let fields = [
            (self.is_right, "right"),
            (self.waits, "waits"),
            (self.dc != 0, "dc"),
            (self.own.is_some(), "own"),
            (self.peer.is_some(), "peer"),
            (self.node != 0, "node"),
            (self.lane != 0, "lane"),
            (self.channel != 0, "channel"),
            (self.epoch != 0, "epoch"),
            (self.size != Size::default(), "size"),
            (self.value != 0, "value"),
            (self.far != 0, "far"),
            (self.incarnation != 0, "incarnation"),
            (!self.body.is_empty(), "body"),
        ];
        fields.into_iter().find(|(is_left, _)| *is_left).map(|(_, field)| field)
    }
}
