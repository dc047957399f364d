//! Proxies, and endpoints of other nodes.
//!
//! A remote endpoint has a binding and a page here like a local one: its stand-in. Channels with it have the proxy as
//! one party; the broker keeps all their objects, so that a proxy can be replaced. There may be several proxies: see
//! `pairing.rs`.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::time::Instant;

use abi::{ChannelId, DcId, Endpoint, Epoch, IpcError, NodeId, PairId};
use broker_api::{FromProxy, LinkState, OpenIn, ToProxy};
use ipc_core::table::{Change, Channel, Ending, Event, Home, LaneWish, OwnerId, Rest, Told};
use ipc_shm::{ControlWriter, Role};

use super::EventLoop;
use super::ending::is_refusal;
use super::opening::proxied;
use crate::Location;
use crate::connection::{Packed, Sent};
use crate::container::Kept;

/// Where an endpoint was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resolved {
    Bound,
    /// It is being handed over: who wants it waits.
    InTransit,
}

impl EventLoop {
    /// Makes sure that an endpoint is bound in the table, asking the directory for those of other nodes.
    pub(super) fn resolve(&mut self, dc: DcId, endpoint: Endpoint) -> Result<Resolved, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        if container.table.left_from(endpoint).is_some() {
            return Ok(Resolved::InTransit);
        }
        if container.table.binding(endpoint).is_some() && !container.table.is_leaving(endpoint) {
            return Ok(Resolved::Bound);
        }
        match self.directory.locate(dc, endpoint) {
            Location::Remote { node, .. } if self.is_node_down(node) => Err(IpcError::NoLink),
            Location::Remote { node, epoch } => {
                match self.bind_remote(dc, endpoint, node, epoch, Told::ByDirectory, Change::Promoted) {
                    // That one is of the past: the directory will hear of the next.
                    Err(IpcError::Fenced) => Err(IpcError::NoSuchEndpoint),
                    result => result.map(|()| Resolved::Bound),
                }
            }
            Location::Local | Location::Unknown => Err(IpcError::NoSuchEndpoint),
        }
    }

    pub(super) fn remote_bound(&mut self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) {
        self.is_on(dc, endpoint, node, epoch, Change::Promoted);
    }

    /// The far proxy closes its channels in order, after what it said last; until then it is leaving.
    pub(super) fn remote_unbound(&mut self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch) {
        let Some(container) = self.containers.get(&dc) else { return };
        let is_carried = container.table.channels().of(endpoint).any(|it| self.links.proxy(it.pair).is_some());
        let rest = if is_carried { Rest::Comes } else { Rest::Lost };
        self.happens(dc, endpoint, Event::IsGone { node, epoch, rest });
    }

    /// Gives every channel of its pair to a proxy that is new: as many as it reads, the others when it has read those.
    /// There may be thousands, each with descriptors, and it may not run yet.
    pub(super) fn hand_over_to_proxy(&mut self, pair: PairId) {
        let Some(proxy) = self.links.proxy(pair) else { return };
        let is_its = |channel: &&Channel| channel.proxied.is_some() && channel.pair == pair;
        let mut channels = VecDeque::new();
        for (dc, container) in &self.containers {
            channels.extend(container.table.channels().iter().filter(is_its).map(|channel| (*dc, channel.id)));
        }
        if let Some(connection) = self.connections.get_mut(&proxy) {
            connection.to_resume = Some(channels);
        }
        self.go_on_handing_over(proxy);
    }

    pub(super) fn go_on_handing_over(&mut self, proxy: OwnerId) {
        while let Some(connection) = self.connections.get_mut(&proxy)
            && !connection.waits_to_write
            && let Some(channels) = &mut connection.to_resume
        {
            let Some((dc, id)) = channels.pop_front() else {
                connection.to_resume = None;
                self.send(proxy, &ToProxy::AllResumed);
                return self.send_errands_again(None);
            };
            // One that has ended meanwhile is none.
            let container = self.containers.get(&dc);
            let Some(channel) = container.and_then(|container| container.table.channels().get(id)).copied() else {
                continue;
            };
            let sent = match self.resumed(dc, &channel) {
                Some(Ok(packed)) => self.send_packed(proxy, packed),
                Some(Err(error)) => {
                    tracing::error!(channel = %id, %error, "a channel was not handed to the proxy and ends");
                    self.refuse_proxied(dc, channel, IpcError::NoLink);
                    continue;
                }
                None => continue,
            };
            if sent == Sent::Lost {
                return;
            }
        }
    }

    fn resumed(&self, dc: DcId, channel: &Channel) -> Option<Result<Packed, IpcError>> {
        let Kept::Proxied { files, far, .. } = self.containers.get(&dc)?.kept.get(&channel.id)? else { return None };
        let role = self.proxy_role(dc, channel.left);
        let offer = proxied(&self.offer(dc, channel, role), channel.proxied?, *far);
        let descriptors = self.party_descriptors(dc, channel, files, role);
        Some(descriptors.map(|descriptors| Packed::new(0, &ToProxy::Resumed(offer), descriptors)))
    }

    pub(super) fn take_proxy_request(&mut self, owner: OwnerId, request: u32, message: FromProxy) {
        let Some(pair) = self.links.pair_of(owner) else { return self.doom(owner) };
        self.unmanned.remove(&pair);
        match message {
            FromProxy::OpenIn(open) => {
                if let Err(error) = self.open_in(request, &open, pair) {
                    // An endpoint that was bound for the sake of this channel has no other one.
                    self.loses_channel(open.dc, open.caller);
                    self.answer(owner, request, &ToProxy::Failed { error });
                }
            }
            FromProxy::RemoteGone { dc, endpoint, node, reason } => self.remote_gone(dc, endpoint, node, reason),
            FromProxy::Link { node, state: LinkState::Up } => self.link_up(node, pair),
            FromProxy::Link { node, state: LinkState::Down } => self.link_down(node, pair),
            FromProxy::Close { channel, reason } => self.close_by_proxy(channel, reason),
            FromProxy::Parcel { node, message } => self.hear_parcel(node, pair, &message),
        }
    }

    fn open_in(&mut self, request: u32, open: &OpenIn, pair: PairId) -> Result<(), IpcError> {
        let OpenIn { dc, caller, node, target, lane, ring, peer_channel, incarnation } = *open;
        if self.pair_between(dc, caller, target, node) != pair {
            // One of the two has not heard how many pairs the other has now.
            return Err(IpcError::NoLink);
        }
        if let Some(ring) = ring {
            ring.check()?;
        }
        match self.home(dc, target) {
            Some(Home::Local { .. }) => {}
            home => return Err(self.not_here(dc, target, home, node)),
        }
        self.may_be_called(dc, caller, target, lane)?;
        self.bind_caller(dc, caller, node)?;
        self.tell_incarnation(dc, caller, incarnation)?;
        self.settle_glare(dc, caller, target, lane, pair)?;
        let made = self.make_channel(dc, caller, target, LaneWish::Exactly(lane), ring)?;
        self.hand_out(dc, made, request, peer_channel)
    }

    /// Why an endpoint that `asker` looks for here cannot be opened.
    fn not_here(&mut self, dc: DcId, endpoint: Endpoint, home: Option<Home>, asker: NodeId) -> IpcError {
        let Some(container) = self.containers.get(&dc) else { return IpcError::DcNotRunning };
        let is_elsewhere = matches!(home, Some(Home::Remote { node }) if node != asker);
        if container.table.is_migrating(endpoint) || is_elsewhere {
            self.tell_where(dc, endpoint, asker);
            return IpcError::Moved;
        }
        IpcError::NoSuchEndpoint
    }

    /// Both nodes may open the channel of one pair and lane at the same time. The lower endpoint's stays; the other's
    /// party is told `EndpointInUse` and finds the one that stays. All that within one link: what is said over several
    /// has no order.
    fn settle_glare(
        &mut self,
        dc: DcId,
        caller: Endpoint,
        target: Endpoint,
        lane: abi::Lane,
        pair: PairId,
    ) -> Result<(), IpcError> {
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let Some(ours) = container.table.channels().of_pair(caller, target, lane).copied() else { return Ok(()) };
        if ours.pair != pair {
            // From when there was another number of pairs. Its end comes over its own.
            return Err(IpcError::NoLink);
        }
        if ours.left == target && target < caller {
            return Err(IpcError::EndpointInUse);
        }
        // One that the caller opened itself before is one that it has given up.
        container.table.close(ours.id);
        self.channel_ended(dc, ours, None, IpcError::EndpointInUse);
        Ok(())
    }

    /// A caller's node says which process it is. Another than before has a page of its own: its peers must not take it
    /// for the one they know.
    fn tell_incarnation(&mut self, dc: DcId, caller: Endpoint, home: Option<NonZeroU64>) -> Result<(), IpcError> {
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let (Some(home), Some(binding)) = (home, container.table.binding(caller)) else { return Ok(()) };
        match container.page(caller) {
            Some(page) if page.home_serial() == Some(home) => {}
            Some(page) if page.home_serial().is_none() => page.set_home_serial(home),
            _ => {
                let page = ControlWriter::stand_in(binding.epoch)?;
                page.set_home_serial(home);
                if let Some(kept) = container.bindings.get_mut(&caller) {
                    kept.page = page;
                }
                self.keep_binding(dc, caller);
            }
        }
        Ok(())
    }

    fn remote_gone(&mut self, dc: DcId, endpoint: Endpoint, node: NodeId, reason: IpcError) {
        if self.home(dc, endpoint) == Some(Home::Remote { node }) {
            let ending = if reason == IpcError::NoLink { Ending::Unreachable } else { Ending::Dead };
            self.happens(dc, endpoint, Event::Ends { ending, reason });
        }
    }

    /// A proxy is gone, or none has come: the next one goes on with its channels, if it comes soon.
    pub(super) fn watch_unmanned(&mut self, pair: PairId) {
        if pair.number() < self.pairs {
            self.unmanned.entry(pair).or_insert_with(|| Instant::now() + self.unmanned_max);
        }
    }

    /// Nobody is there who would judge the silence of its peers, which have given this node up.
    pub(super) fn give_up_unmanned(&mut self) {
        let now = Instant::now();
        let is_over = |pair: &PairId| self.unmanned.get(pair).is_some_and(|end| *end <= now);
        for pair in PairId::all(self.pairs).filter(is_over).collect::<Vec<_>>() {
            self.unmanned.remove(&pair);
            let of_pair = |channel: &&Channel| channel.pair == pair;
            let mut nodes: BTreeSet<NodeId> = self.links.met().collect();
            for container in self.containers.values() {
                nodes.extend(container.table.channels().iter().filter(of_pair).filter_map(|channel| channel.proxied));
            }
            if !nodes.is_empty() {
                tracing::error!(%pair, "no proxy has come; its links are taken for broken");
            }
            nodes.into_iter().for_each(|node| self.link_down(node, pair));
        }
    }

    /// What crossed the link ends. While another pair of the node is there, its endpoints stay.
    pub(super) fn link_down(&mut self, node: NodeId, pair: PairId) {
        let was_route = self.links.route(node) == Some(pair);
        if self.links.went_down(node, pair, self.pairs_with(node)) {
            self.keep_link_down(node, pair);
        }
        if self.is_node_down(node) {
            return self.node_down(node);
        }
        self.end_channels_of(node, pair);
        if was_route {
            self.send_errands_again(Some(node));
            self.chase_again();
        }
    }

    fn node_down(&mut self, node: NodeId) {
        self.end_errands(node);
        self.end_transits_from(node);
        let mut gone = Vec::new();
        for (dc, container) in &self.containers {
            let of_node = container.table.bindings().filter(|(_, binding)| binding.home == (Home::Remote { node }));
            gone.extend(of_node.map(|(endpoint, _)| (*dc, endpoint)));
        }
        for (dc, endpoint) in gone {
            self.happens(dc, endpoint, Event::Ends { ending: Ending::Unreachable, reason: IpcError::NoLink });
        }
    }

    /// Whoever waited for an endpoint of that node goes on.
    fn link_up(&mut self, node: NodeId, pair: PairId) {
        let was_given_up = self.links.came_up(node, pair);
        if self.links.route(node) == Some(pair) {
            self.disown_holds(node);
            // It may be another connection than that over which they went.
            self.send_errands_again(Some(node));
            self.chase_again();
        }
        // With several, there may be more of them than when the wait began.
        if !was_given_up && self.pairs == 1 {
            return;
        }
        self.drop_kept_link_down(node, pair);
        let mut awaited = Vec::new();
        for (dc, container) in &self.containers {
            awaited.extend(container.table.waiters().awaited_endpoints().into_iter().map(|endpoint| (*dc, endpoint)));
        }
        for (dc, endpoint) in awaited {
            if self.resolve(dc, endpoint) == Ok(Resolved::Bound) {
                self.appeared(dc, endpoint);
            }
        }
        self.seek_again();
    }

    fn close_by_proxy(&mut self, channel: ChannelId, reason: IpcError) {
        let found = self
            .containers
            .iter()
            .find_map(|(dc, container)| Some((*dc, container.table.channels().get(channel).copied()?)));
        // It has nothing to say of a channel of others.
        let Some((dc, channel)) = found.filter(|(_, channel)| channel.proxied.is_some()) else { return };
        if is_refusal(reason) {
            self.refuse_proxied(dc, channel, reason);
        } else {
            self.end_proxied(dc, channel, reason);
        }
    }

    /// The proxy does not have the channel, so it says nothing of its end where the opener looks.
    fn refuse_proxied(&mut self, dc: DcId, channel: Channel, reason: IpcError) {
        let meter = self.containers.get(&dc).and_then(|container| container.meter(channel.id));
        if let Some(meter) = meter.filter(|_| self.proxy_role(dc, channel.left) == Role::Right) {
            meter.refuse(reason);
        }
        self.end_proxied(dc, channel, reason);
        self.tell_initiator(dc, channel, reason);
    }

    fn end_proxied(&mut self, dc: DcId, channel: Channel, reason: IpcError) {
        if let Some(container) = self.containers.get_mut(&dc) {
            container.table.close(channel.id);
        }
        self.channel_ended(dc, channel, None, reason);
        if let (IpcError::Moved, Some(from)) = (reason, channel.proxied) {
            self.happens(dc, channel.left, Event::HasLeft { from });
            self.happens(dc, channel.right, Event::HasLeft { from });
        }
        self.loses_channel(dc, channel.left);
        self.loses_channel(dc, channel.right);
    }

    /// The proxy plays the party that is not of this node.
    fn proxy_role(&self, dc: DcId, left: Endpoint) -> Role {
        match self.home(dc, left) {
            Some(Home::Remote { .. }) => Role::Left,
            _ => Role::Right,
        }
    }
}
