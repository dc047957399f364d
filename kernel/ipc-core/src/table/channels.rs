//! The channels of a container, by name, by pair and lane, and by endpoint.

use std::collections::{BTreeMap, BTreeSet};

use abi::limits::{CHANNELS_PER_PROCESS, LANES_PER_PAIR, RING_LANES_END};
use abi::{Endpoint, IpcError, Lane, NodeId, PairId};

use crate::ChannelId;

/// One channel: the initiator is left, the acceptor right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Channel {
    pub id: ChannelId,
    pub left: Endpoint,
    pub right: Endpoint,
    pub lane: Lane,
    /// Entries and arena bytes of its ring; zeroes on lane 0.
    pub entries: u32,
    pub arena_bytes: u32,
    /// The node of the party that a proxy plays.
    pub proxied: Option<NodeId>,
    /// Which pair of proxies carries it, then.
    pub pair: PairId,
}

impl Channel {
    /// The other party; `None` when `endpoint` is no party.
    pub fn peer_of(&self, endpoint: Endpoint) -> Option<Endpoint> {
        if endpoint == self.left {
            Some(self.right)
        } else if endpoint == self.right {
            Some(self.left)
        } else {
            None
        }
    }
}

/// Which lane a new channel shall have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneWish {
    /// The one lane of messages.
    Messages,
    /// Any free lane for a ring.
    AnyRing,
    /// The one lane over which the initiator copies.
    Copies,
    /// The one lane over which the initiator delegates.
    Delegation,
    /// The lane another node's broker chose.
    Exactly(Lane),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Channels {
    by_id: BTreeMap<ChannelId, Channel>,
    by_pair: BTreeMap<(Endpoint, Endpoint, Lane), ChannelId>,
    by_endpoint: BTreeMap<Endpoint, BTreeSet<ChannelId>>,
}

impl Channels {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_id.values()
    }

    pub fn get(&self, id: ChannelId) -> Option<&Channel> {
        self.by_id.get(&id)
    }

    pub fn of_pair(&self, one: Endpoint, other: Endpoint, lane: Lane) -> Option<&Channel> {
        self.by_id.get(self.by_pair.get(&pair(one, other, lane))?)
    }

    pub fn of(&self, endpoint: Endpoint) -> impl Iterator<Item = &Channel> {
        self.by_endpoint.get(&endpoint).into_iter().flatten().filter_map(|id| self.by_id.get(id))
    }

    /// Those of `endpoint`, or all, in order of their names and from this one on.
    pub fn starting_at(&self, first: ChannelId, endpoint: Option<Endpoint>) -> impl Iterator<Item = &Channel> {
        let of_one = endpoint.map(|it| self.by_endpoint.get(&it).into_iter().flat_map(move |ids| ids.range(first..)));
        let of_all = endpoint.is_none().then(|| self.by_id.range(first..).map(|(_, channel)| channel));
        let named = of_one.into_iter().flatten().filter_map(|id| self.by_id.get(id));
        named.chain(of_all.into_iter().flatten())
    }

    /// How many `endpoint` has.
    pub fn count_of(&self, endpoint: Endpoint) -> usize {
        self.by_endpoint.get(&endpoint).map_or(0, BTreeSet::len)
    }

    pub(super) fn lane_for(&self, one: Endpoint, other: Endpoint, wish: LaneWish) -> Result<Lane, IpcError> {
        let is_free = |lane: Lane| !self.by_pair.contains_key(&pair(one, other, lane));
        match wish {
            LaneWish::Messages if is_free(Lane::MESSAGES) => Ok(Lane::MESSAGES),
            LaneWish::Messages => Err(IpcError::EndpointInUse),
            // From opposite ends, so that two nodes that open at the same time do not choose the same one.
            LaneWish::AnyRing if one < other => {
                (1..RING_LANES_END).map(Lane).find(|lane| is_free(*lane)).ok_or(IpcError::TableFull)
            }
            LaneWish::AnyRing => {
                (1..RING_LANES_END).rev().map(Lane).find(|lane| is_free(*lane)).ok_or(IpcError::TableFull)
            }
            LaneWish::Copies | LaneWish::Delegation => {
                let lane =
                    if wish == LaneWish::Copies { Lane::copies(one, other) } else { Lane::delegation(one, other) };
                if is_free(lane) { Ok(lane) } else { Err(IpcError::EndpointInUse) }
            }
            LaneWish::Exactly(lane) if lane.0 >= LANES_PER_PAIR => Err(IpcError::BadArgument),
            LaneWish::Exactly(lane) if is_free(lane) => Ok(lane),
            LaneWish::Exactly(_) => Err(IpcError::TableFull),
        }
    }

    pub(super) fn insert(&mut self, channel: Channel) -> Result<(), IpcError> {
        let key = pair(channel.left, channel.right, channel.lane);
        if self.by_pair.contains_key(&key) || self.by_id.contains_key(&channel.id) {
            return Err(IpcError::EndpointInUse);
        }
        for party in [channel.left, channel.right] {
            if self.count_of(party) >= CHANNELS_PER_PROCESS {
                return Err(IpcError::TableFull);
            }
        }
        for party in [channel.left, channel.right] {
            self.by_endpoint.entry(party).or_default().insert(channel.id);
        }
        self.by_pair.insert(key, channel.id);
        self.by_id.insert(channel.id, channel);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: ChannelId) -> Option<Channel> {
        let channel = self.by_id.remove(&id)?;
        self.by_pair.remove(&pair(channel.left, channel.right, channel.lane));
        for party in [channel.left, channel.right] {
            if let Some(ids) = self.by_endpoint.get_mut(&party) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_endpoint.remove(&party);
                }
            }
        }
        Some(channel)
    }

    pub(super) fn remove_of(&mut self, endpoint: Endpoint) -> Vec<Channel> {
        let ids: Vec<ChannelId> = self.by_endpoint.get(&endpoint).into_iter().flatten().copied().collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }
}

fn pair(one: Endpoint, other: Endpoint, lane: Lane) -> (Endpoint, Endpoint, Lane) {
    (one.min(other), one.max(other), lane)
}
