//! What a broker tells the members of a container about it, and how that travels.
//!
//! A broker answers from what it knows itself: endpoints that are bound on its node, those of other nodes that were
//! heard of here, and the channels that have a party here. Lists come in pages, each one packet. Records of one list
//! are of different moments.
//!
//! Counts of a channel are those of its parties, read from the sides that these write: see [`EndCounts`]. Nobody counts
//! for the sake of this.
//!
//! Not here: who may ask, and the looking up (`kernel/broker`).

use std::ops::Range;

use abi::ring::RingSpec;
use abi::{ChannelId, DcId, Endpoint, Epoch, Lane, NodeId, PairId};

use crate::BODY_BYTES_MAX;

/// What is asked for: one record, or a list from a place on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// [`DcInfo`].
    Dc,
    /// [`EndpointInfo`] of one, wherever it is.
    Endpoint(Endpoint),
    /// [`EndpointInfo`].
    Endpoints { from: Cursor },
    /// [`ChannelInfo`] of the channels of one endpoint, or of all.
    Channels { of: Option<Endpoint>, from: Cursor },
    /// [`ProxyInfo`].
    Proxies { from: Cursor },
}

impl Question {
    /// Where the list begins.
    pub fn from(self) -> Cursor {
        match self {
            Question::Dc | Question::Endpoint(_) => Cursor::START,
            Question::Endpoints { from } | Question::Channels { from, .. } | Question::Proxies { from } => from,
        }
    }
}

/// Where a list goes on. Good for as long as the caller likes: what came and went meanwhile is skipped or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor(pub u64);

impl Cursor {
    pub const START: Cursor = Cursor(0);
}

/// A part of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// Possibly none although more follow.
    pub records: Vec<T>,
    /// `None` at the end.
    pub next: Option<Cursor>,
}

/// The container, as the node knows it that was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DcInfo {
    pub dc: DcId,
    /// The node that was asked: the caller's own.
    pub node: NodeId,
    /// Endpoints that are bound there.
    pub endpoints_here: u32,
    /// Endpoints of other nodes that are known there.
    pub endpoints_elsewhere: u32,
    /// Nodes of those.
    pub nodes_elsewhere: u32,
    pub channels: u32,
    /// Calls that wait for an endpoint to be bound or unbound.
    pub waiters: u32,
    /// Numbers that this node gives to programs.
    pub programs: Range<u32>,
    pub endpoints_max: u32,
    /// Channels that one endpoint may have.
    pub channels_max: u32,
}

/// How an endpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointState {
    Bound,
    /// Its owner takes nothing new: it is about to be handed over.
    Held,
    /// Of another node: it has ended, and its last words are still on their way.
    Leaving,
}

/// What an endpoint sent over all channels that it had on the node that was asked, since it was bound there. The broker
/// that tells it may have been restarted: what was counted before is not in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Messages, requests and replies: the sum of [`EndCounts::messages`].
    pub messages: u64,
    /// Notifications, before they merged.
    pub notifications: u64,
    /// Requests or answers in rings.
    pub entries: u64,
    /// Requests of copies, of up to 64 KiB each: a small copy makes up to four.
    pub copies: u64,
}

impl Traffic {
    /// With what one end counted over a channel of this kind.
    #[must_use]
    pub fn with(self, kind: ChannelKind, side: Side, counts: &EndCounts) -> Traffic {
        let messages = self.messages.saturating_add(u64::from(counts.messages));
        let notifications = self.notifications.saturating_add(u64::from(counts.notifications));
        let entries = u64::from(counts.entries);
        match (kind, side) {
            (ChannelKind::Messages, _) => Traffic { messages, notifications, ..self },
            (ChannelKind::Ring, _) => Traffic { entries: self.entries.saturating_add(entries), ..self },
            (ChannelKind::Copies, Side::Left) => Traffic { copies: self.copies.saturating_add(entries), ..self },
            (ChannelKind::Copies, Side::Right) | (ChannelKind::Delegation, _) => self,
        }
    }
}

/// An endpoint, as the node knows it that was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointInfo {
    pub endpoint: Endpoint,
    pub node: NodeId,
    /// Of its process inside the container; `None` for servers, which are outside, and on other nodes.
    pub pid: Option<i32>,
    pub epoch: Epoch,
    pub state: EndpointState,
    /// For whose answer it waits, or for whom without a limit.
    pub waits_for: Option<Endpoint>,
    /// Channels it has on that node.
    pub channels: u32,
    /// To endpoints of that node.
    pub near: Traffic,
    /// Over its proxies.
    pub far: Traffic,
}

/// What a channel is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelKind {
    Messages,
    Ring,
    Delegation,
    Copies,
}

impl ChannelKind {
    pub fn of(lane: Lane) -> ChannelKind {
        match lane {
            Lane::MESSAGES => ChannelKind::Messages,
            lane if lane.is_for_copies() => ChannelKind::Copies,
            lane if lane.is_for_delegation() => ChannelKind::Delegation,
            _ => ChannelKind::Ring,
        }
    }
}

/// Left is who opened a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Left,
    Right,
}

/// What lies in the message slot of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    Nothing,
    Message,
    Request,
    Reply,
}

/// What one end of a channel has counted, as it says itself; for a party of another node the proxy counts. Numbers
/// wrap: those of messages at 2^28, the others at 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndCounts {
    /// The number of what it sent last: messages and requests count on, a reply has the number of its request. So it is
    /// how many an end sent that only asks, and how many were asked of one that only answers.
    pub messages: u32,
    /// What that was.
    pub last: Sent,
    /// The number of what it took last from the other end.
    pub taken: u32,
    /// Whether it waits for an answer of the other end.
    pub awaits_answer: bool,
    pub notifications: u32,
    /// Requests (left) or answers (right) it put into the ring.
    pub entries: u32,
    /// Entries of the other end that it took.
    pub entries_taken: u32,
}

/// One channel with a party on the node that was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelInfo {
    /// Never that of another channel of the node.
    pub channel: ChannelId,
    /// Who opened it.
    pub left: Endpoint,
    pub right: Endpoint,
    pub lane: Lane,
    /// Of what is no channel of messages.
    pub ring: Option<RingSpec>,
    /// The node of the other party, and the pair of proxies that carries it, when a party is of another node.
    pub via: Option<(NodeId, PairId)>,
    /// Left and right. `None` when the broker cannot look: it was restarted since the channel was made, or has too
    /// many.
    pub counts: Option<[EndCounts; 2]>,
}

impl ChannelInfo {
    pub fn kind(&self) -> ChannelKind {
        ChannelKind::of(self.lane)
    }
}

/// Whether a pair of proxies can carry anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyState {
    Up,
    /// It was given up.
    Down,
    /// Nothing is known of it yet, or the proxy is being replaced.
    Unknown,
}

/// One pair of proxies that leads to a node on which the container has endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProxyInfo {
    pub node: NodeId,
    pub pair: PairId,
    pub state: ProxyState,
    /// The container's endpoints on that node that are known here.
    pub endpoints: u32,
    /// The container's channels that the pair carries.
    pub channels: u32,
}

/// What travels as records of one length.
pub trait Record: Sized {
    const BYTES: usize;

    fn write(&self, out: &mut Vec<u8>);

    /// `None` for what no broker writes.
    fn read(from: &mut Fields<'_>) -> Option<Self>;
}

/// Records that fit into one answer.
pub const fn records_max<T: Record>() -> usize {
    BODY_BYTES_MAX / T::BYTES
}

/// Reads a body of whole records.
pub fn records<T: Record>(body: &[u8]) -> Option<Vec<T>> {
    let chunks = body.chunks_exact(T::BYTES);
    if !chunks.remainder().is_empty() {
        return None;
    }
    chunks.map(|chunk| T::read(&mut Fields(chunk))).collect()
}

/// Little-endian fields, one after the other.
#[derive(Debug)]
pub struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn endpoint(&mut self) -> Option<Endpoint> {
        self.u32().and_then(Endpoint::new)
    }
}

const NO_ENDPOINT: u32 = u32::MAX;

/// Writes fields of different widths.
macro_rules! put {
    ($out:expr, $($field:expr),+ $(,)?) => { $($out.extend_from_slice(&$field.to_le_bytes());)+ };
}

impl Record for DcInfo {
    const BYTES: usize = 44;

    fn write(&self, out: &mut Vec<u8>) {
        put!(out, self.dc.0, u32::from(self.node.0), self.endpoints_here, self.endpoints_elsewhere);
        put!(out, self.nodes_elsewhere, self.channels, self.waiters, self.programs.start, self.programs.end);
        put!(out, self.endpoints_max, self.channels_max);
    }

    fn read(from: &mut Fields<'_>) -> Option<DcInfo> {
        Some(DcInfo {
            dc: DcId(from.u32()?),
            node: NodeId(u16::try_from(from.u32()?).ok()?),
            endpoints_here: from.u32()?,
            endpoints_elsewhere: from.u32()?,
            nodes_elsewhere: from.u32()?,
            channels: from.u32()?,
            waiters: from.u32()?,
            programs: from.u32()?..from.u32()?,
            endpoints_max: from.u32()?,
            channels_max: from.u32()?,
        })
    }
}

impl Traffic {
    fn write(&self, out: &mut Vec<u8>) {
        put!(out, self.messages, self.notifications, self.entries, self.copies);
    }

    fn read(from: &mut Fields<'_>) -> Option<Traffic> {
        let (messages, notifications, entries, copies) = (from.u64()?, from.u64()?, from.u64()?, from.u64()?);
        Some(Traffic { messages, notifications, entries, copies })
    }
}

impl Record for EndpointInfo {
    const BYTES: usize = 96;

    fn write(&self, out: &mut Vec<u8>) {
        put!(out, self.endpoint.number(), self.pid.unwrap_or(0), self.node.0, self.state as u16);
        put!(out, self.waits_for.map_or(NO_ENDPOINT, Endpoint::number), self.epoch.0, self.channels, 0u32);
        self.near.write(out);
        self.far.write(out);
    }

    fn read(from: &mut Fields<'_>) -> Option<EndpointInfo> {
        let endpoint = from.endpoint()?;
        let pid = Some(from.u32()? as i32).filter(|pid| *pid != 0);
        let node = NodeId(from.u16()?);
        let state = match from.u16()? {
            0 => EndpointState::Bound,
            1 => EndpointState::Held,
            2 => EndpointState::Leaving,
            _ => return None,
        };
        let waits_for = match from.u32()? {
            NO_ENDPOINT => None,
            number => Some(Endpoint::new(number)?),
        };
        let (epoch, channels, _) = (Epoch(from.u64()?), from.u32()?, from.u32()?);
        let (near, far) = (Traffic::read(from)?, Traffic::read(from)?);
        Some(EndpointInfo { endpoint, node, pid, epoch, state, waits_for, channels, near, far })
    }
}

impl EndCounts {
    fn write(&self, out: &mut Vec<u8>) {
        put!(out, self.messages, self.taken, self.notifications, self.entries, self.entries_taken);
        put!(out, self.last as u16, u16::from(self.awaits_answer));
    }

    fn read(from: &mut Fields<'_>) -> Option<EndCounts> {
        let (messages, taken, notifications) = (from.u32()?, from.u32()?, from.u32()?);
        let (entries, entries_taken) = (from.u32()?, from.u32()?);
        let last = match from.u16()? {
            0 => Sent::Nothing,
            1 => Sent::Message,
            2 => Sent::Request,
            3 => Sent::Reply,
            _ => return None,
        };
        let awaits_answer = flag(from.u16()?)?;
        Some(EndCounts { messages, last, taken, awaits_answer, notifications, entries, entries_taken })
    }
}

fn flag(number: u16) -> Option<bool> {
    match number {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl Record for ChannelInfo {
    const BYTES: usize = 80;

    fn write(&self, out: &mut Vec<u8>) {
        let (node, pair) = self.via.map_or((0, 0), |(node, pair)| (node.0, pair.number()));
        let (entries, arena_bytes) = self.ring.map_or((0, 0), |ring| (ring.entries, ring.arena_bytes));
        put!(out, self.channel.0, self.left.number(), self.right.number(), self.lane.0, node);
        put!(out, pair, u8::from(self.counts.is_some()), 0u16, entries, arena_bytes);
        match &self.counts {
            Some(ends) => ends.iter().for_each(|end| end.write(out)),
            None => out.extend_from_slice(&[0; 48]),
        }
    }

    fn read(from: &mut Fields<'_>) -> Option<ChannelInfo> {
        let channel = ChannelId(from.u64()?);
        let (left, right, lane) = (from.endpoint()?, from.endpoint()?, Lane(from.u16()?));
        let (node, pair) = (from.u16()?, PairId::new(from.u8()?)?);
        let is_counted = flag(u16::from(from.u8()?))?;
        let (_, entries, arena_bytes) = (from.u16()?, from.u32()?, from.u32()?);
        let ends = [EndCounts::read(from)?, EndCounts::read(from)?];
        Some(ChannelInfo {
            channel,
            left,
            right,
            lane,
            ring: (entries > 0).then_some(RingSpec { entries, arena_bytes }),
            via: (node != 0).then_some((NodeId(node), pair)),
            counts: is_counted.then_some(ends),
        })
    }
}

impl Record for ProxyInfo {
    const BYTES: usize = 12;

    fn write(&self, out: &mut Vec<u8>) {
        put!(out, self.node.0, self.pair.number(), self.state as u8, self.endpoints, self.channels);
    }

    fn read(from: &mut Fields<'_>) -> Option<ProxyInfo> {
        let (node, pair) = (NodeId(from.u16()?), PairId::new(from.u8()?)?);
        let state = match from.u8()? {
            0 => ProxyState::Up,
            1 => ProxyState::Down,
            2 => ProxyState::Unknown,
            _ => return None,
        };
        Some(ProxyInfo { node, pair, state, endpoints: from.u32()?, channels: from.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What is read of arbitrary bytes, written again and read again, is the same.
    fn is_stable<T: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        let Some(read) = records::<T>(bytes) else { return };
        let mut written = Vec::new();
        read.iter().for_each(|record| record.write(&mut written));
        assert_eq!(written.len(), read.len() * T::BYTES);
        assert_eq!(records::<T>(&written), Some(read));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_and_what_is_read_survives_the_way(
            bytes in proptest::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..200)
        ) {
            for end in [12, 24, 44, 80, 96, bytes.len()] {
                let bytes = bytes.get(..end).unwrap_or(&bytes);
                is_stable::<DcInfo>(bytes);
                is_stable::<EndpointInfo>(bytes);
                is_stable::<ChannelInfo>(bytes);
                is_stable::<ProxyInfo>(bytes);
            }
        }
    }
}
