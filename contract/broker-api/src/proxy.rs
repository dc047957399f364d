//! A proxy and its broker.

use std::num::NonZeroU64;

use abi::layout::Role;
use abi::ring::RingSpec;
use abi::{ChannelId, DcId, Endpoint, IpcError, Lane, NodeId};

use crate::values::{CHANNEL, Field, PartiesCalls};

messages! {
    /// What a proxy asks and tells.
    FromProxy {
        8 Close { channel: ChannelId = channel, reason: IpcError = value };
        /// Answered by `Opened` or `Failed`.
        20 OpenIn(open: OpenIn);
        /// An endpoint of another node ended.
        21 RemoteGone { dc: DcId = dc, endpoint: Endpoint = peer, node: NodeId = node, reason: IpcError = value };
        22 Link { node: NodeId = node, state: LinkState = value };
        /// What the broker of a node says: a [`crate::BetweenBrokers`]. It may come twice.
        23 Parcel { node: NodeId = node, message: Vec<u8> = body };
    }
}

messages! {
    /// What a broker answers and tells a proxy.
    ToProxy {
        23 Parcel { node: NodeId = node, message: Vec<u8> = body };
        101 Opened(offer: ProxiedOffer) with CHANNEL;
        104 Failed { error: IpcError = value };
        /// An endpoint of this node opened a channel to one of another.
        110 Accepted(offer: ProxiedOffer) with CHANNEL;
        111 Ended { dc: DcId = dc, channel: ChannelId = channel, reason: IpcError = value };
        /// A channel that the receiver's predecessor held.
        112 Resumed(offer: ProxiedOffer) with CHANNEL;
        /// That was all of them.
        113 AllResumed;
        /// As to a port: see [`crate::ToPort::Restarted`].
        114 Restarted;
    }
}

record! {
    /// A request to open a channel from a remote endpoint to a local one.
    OpenIn {
        dc: DcId = dc,
        /// The remote caller and its node.
        caller: Endpoint = peer,
        node: NodeId = node,
        /// The local endpoint.
        target: Endpoint = own,
        lane: Lane = lane,
        ring: Option<RingSpec> = size,
        /// The far node's number of the channel; comes back in [`ProxiedOffer`].
        peer_channel: u64 = far,
        /// The serial number of the caller's control page on its own node: a grant to it holds for this process only.
        incarnation: Option<NonZeroU64> = incarnation,
    }
}

record! {
    /// A channel, as the proxy is told that plays its remote party.
    ProxiedOffer {
        dc: DcId = dc,
        channel: ChannelId = channel,
        /// The endpoint of this node.
        local: Endpoint = own,
        /// The endpoint that the proxy plays, and its node.
        remote: Endpoint = peer,
        node: NodeId = node,
        lane: Lane = lane,
        /// Of the remote party.
        role: Role = is_right,
        ring: Option<RingSpec> = size,
        calls: PartiesCalls = value,
        /// What [`OpenIn::peer_channel`] said; 0 when the local party opened the channel.
        peer_channel: u64 = far,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkState {
    Up,
    Down,
}

impl Field<u32> for LinkState {
    fn put(&self, slot: &mut u32) {
        *slot = u32::from(*self == LinkState::Up);
    }

    fn take(slot: &mut u32) -> Option<LinkState> {
        match std::mem::take(slot) {
            0 => Some(LinkState::Down),
            1 => Some(LinkState::Up),
            _ => None,
        }
    }
}
