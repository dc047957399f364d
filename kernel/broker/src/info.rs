//! What a broker tells about itself.

use abi::{DcId, Endpoint, Epoch, Lane, NodeId, PairId};
use ipc::{ChannelId, RingSpec};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    pub dcs: Vec<DcInfo>,
    /// Channels made since the start.
    pub channels_made: u64,
    /// Bindings that ended by the death of their process.
    pub deaths: u64,
    pub proxy_connected: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DcInfo {
    pub dc: DcId,
    pub endpoints: Vec<EndpointInfo>,
    pub channels: Vec<ChannelInfo>,
    /// Calls that wait for an endpoint to be bound or unbound.
    pub waiters: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// Bound here by this process (its pid as the node sees it).
    Local {
        pid: i32,
    },
    Remote {
        node: NodeId,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointInfo {
    pub endpoint: Endpoint,
    pub epoch: Epoch,
    pub home: Home,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelInfo {
    pub channel: ChannelId,
    pub initiator: Endpoint,
    pub acceptor: Endpoint,
    pub lane: Lane,
    pub ring: Option<RingSpec>,
    /// The node of the remote party, if one is remote.
    pub proxied: Option<NodeId>,
    /// Which pair of proxies carries it, then.
    pub pair: PairId,
}
