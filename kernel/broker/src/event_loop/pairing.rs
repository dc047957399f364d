//! Several pairs of proxies between two nodes: by which of them two endpoints talk, and what ends when one is down.
//!
//! A channel belongs to the pair that was computed when it was opened, until it ends. Which links stand is in
//! `links.rs`.

use abi::{DcId, Endpoint, IpcError, NodeId, PairId};
use broker_api::IfAbsent;
use ipc_core::pairs::{common, pair_of};
use ipc_core::table::{Awaited, Channel, Home, OwnerId};

use super::EventLoop;
use super::proxying::Resolved;

impl EventLoop {
    /// How many pairs this node has with another one.
    pub(super) fn pairs_with(&self, node: NodeId) -> u8 {
        match self.pairs {
            1 => 1,
            ours => common(ours, self.directory.pairs(node)),
        }
    }

    /// By which pair two endpoints talk, one of them on that node.
    pub(super) fn pair_between(&self, dc: DcId, one: Endpoint, other: Endpoint, node: NodeId) -> PairId {
        match self.pairs_with(node) {
            1 => PairId::FIRST,
            pairs => pair_of(dc, one, other, pairs),
        }
    }

    pub(super) fn is_node_down(&self, node: NodeId) -> bool {
        self.links.is_down(node, self.pairs_with(node))
    }

    /// Makes sure that an endpoint is bound in the table, and that the pair is not down by which `own` talks with it.
    pub(super) fn reach(&mut self, dc: DcId, own: Endpoint, to: Endpoint) -> Result<Resolved, IpcError> {
        let resolved = self.resolve(dc, to)?;
        if resolved == Resolved::InTransit {
            return Ok(resolved);
        }
        if self.give_up_abandoned(dc, to) {
            return Err(IpcError::NoLink);
        }
        self.check_pair(dc, own, to).map(|()| resolved)
    }

    /// With one pair, whose proxy is expected no more: also the node of an endpoint is given up that this broker has
    /// never met, so that whoever waits goes on when its link is up. Whether it was given up.
    pub(super) fn give_up_abandoned(&mut self, dc: DcId, endpoint: Endpoint) -> bool {
        let Some(Home::Remote { node }) = self.home(dc, endpoint) else { return false };
        let is_abandoned = self.pairs == 1 && self.is_abandoned(PairId::FIRST);
        if is_abandoned {
            self.link_down(node, PairId::FIRST);
        }
        is_abandoned
    }

    /// Whether no proxy is there, and none is expected any more.
    pub(super) fn is_abandoned(&self, pair: PairId) -> bool {
        self.links.proxy(pair).is_none() && !self.unmanned.contains_key(&pair)
    }

    pub(super) fn check_pair(&self, dc: DcId, own: Endpoint, to: Endpoint) -> Result<(), IpcError> {
        match self.home(dc, to) {
            Some(Home::Remote { node }) => {
                let pair = self.pair_between(dc, own, to, node);
                let is_cut_off = self.links.is_pair_down(node, pair) || self.is_abandoned(pair);
                if is_cut_off { Err(IpcError::NoLink) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Calls that go on waiting for an endpoint although it is bound: the pair of proxies is down that leads their
    /// callers to it.
    pub(super) fn cut_off_from(&self, dc: DcId, endpoint: Endpoint) -> Vec<(OwnerId, u32)> {
        let Some(container) = self.containers.get(&dc).filter(|_| self.pairs > 1) else { return Vec::new() };
        let is_cut_off = |owner: OwnerId| {
            let bound = self.connections.get(&owner).and_then(|connection| connection.bound.as_ref());
            bound.is_some_and(|bound| self.check_pair(dc, bound.endpoint, endpoint).is_err())
        };
        // An open that waited for the end of a migration only is told that there is no link.
        let may_wait = |owner: OwnerId, request: u32| {
            self.waiting_opens.get(&(owner, request)).is_none_or(|open| open.if_absent == IfAbsent::Wait)
        };
        let waiters = container.table.waiters().of(endpoint).filter(|waiter| waiter.awaited == Awaited::Bound);
        waiters
            .map(|waiter| (waiter.owner, waiter.request))
            .filter(|(owner, request)| may_wait(*owner, *request) && is_cut_off(*owner))
            .collect()
    }

    /// A pair is down and another one is not.
    pub(super) fn end_channels_of(&mut self, node: NodeId, pair: PairId) {
        let mut ended = Vec::new();
        for (dc, container) in &mut self.containers {
            let is_of = |channel: &&Channel| channel.proxied == Some(node) && channel.pair == pair;
            let ids: Vec<_> = container.table.channels().iter().filter(is_of).map(|channel| channel.id).collect();
            ended.extend(ids.into_iter().filter_map(|id| Some((*dc, container.table.close(id)?))));
        }
        for (dc, channel) in ended {
            self.end_between_living(dc, channel, IpcError::NoLink);
        }
    }
}
