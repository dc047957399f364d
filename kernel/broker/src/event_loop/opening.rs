//! Making channels.

use std::os::fd::OwnedFd;

use abi::ring::RingSpec;
use abi::{DcId, Endpoint, IpcError, NodeId};
use broker_api::{Offer, Open, PartiesCalls, ProxiedOffer, ToPort, ToProxy};
use ipc::descriptors::channel_descriptors;
use ipc_core::ChannelId;
use ipc_core::table::{Awaited, Channel, Home, LaneWish, OwnerId, Waiter};
use ipc_shm::{ChannelFiles, Role, Size};

use super::EventLoop;
use crate::connection::{Connection, Packed, Sent};
use crate::container::{Container, Kept};
use crate::ledger::{Charge, Cost, Member};
use crate::limits::{ACCEPTED_UNREAD_MAX, LINES_DESCRIPTORS, PROXIED_DESCRIPTORS};
use crate::meters::Meter;

/// A channel that was made and recorded, not yet handed out.
pub(super) struct Made {
    pub channel: Channel,
    pub files: ChannelFiles,
    pub charge: Option<Charge>,
}

impl EventLoop {
    /// Opens what `own` asked for; its peer is bound, here or elsewhere.
    pub(super) fn open_channel(&mut self, dc: DcId, own: Endpoint, request: u32, open: &Open) -> Result<(), IpcError> {
        self.check_pair(dc, own, open.peer)?;
        let made = self.make_channel(dc, own, open.peer, wish_of(open), open.ring)?;
        self.hand_out(dc, made, request, 0)
    }

    /// Gives both parties what they need: the initiator as the answer to its request. When that fails, there is no
    /// channel.
    pub(super) fn hand_out(&mut self, dc: DcId, made: Made, request: u32, far: u64) -> Result<(), IpcError> {
        let channel = made.channel;
        let result = self.try_hand_out(dc, made, request, far);
        if result.is_err() {
            self.forget_channel(dc, channel.id);
        }
        result
    }

    fn try_hand_out(&mut self, dc: DcId, made: Made, request: u32, far: u64) -> Result<(), IpcError> {
        let Made { channel, files, charge } = made;
        let notices = self.notices(dc, &channel, &files, request, far)?;
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let copies = files.try_clone()?;
        let meter = self.meters.over(&files, &channel);
        let kept = match channel.proxied {
            Some(_) => Kept::Proxied { files, far, charge, meter },
            None => lines_of(files, charge, meter),
        };
        container.kept.insert(channel.id, kept);
        self.keep_untold_channel(dc, channel.id, request, &copies);
        self.tell(dc, channel.id, notices);
        Ok(())
    }

    /// What both parties of a channel are told: the acceptor first.
    pub(super) fn notices(
        &self,
        dc: DcId,
        channel: &Channel,
        files: &ChannelFiles,
        request: u32,
        far: u64,
    ) -> Result<Vec<(OwnerId, Packed)>, IpcError> {
        let mut notices = Vec::new();
        for role in [Role::Right, Role::Left] {
            let offer = self.offer(dc, channel, role);
            let descriptors = self.party_descriptors(dc, channel, files, role)?;
            match (self.home(dc, offer.own), self.links.proxy(channel.pair)) {
                (Some(Home::Local { owner }), _) => {
                    let unread = self.connections.get(&owner).map_or(0, Connection::unread);
                    if unread >= ACCEPTED_UNREAD_MAX {
                        return Err(IpcError::TableFull);
                    }
                    notices.push((owner, told_to_port(offer, request, descriptors)));
                }
                (Some(Home::Remote { node }), Some(proxy)) => {
                    notices.push((proxy, told_to_proxy(proxied(&offer, node, far), request, descriptors)));
                }
                // It is handed to the next proxy.
                (Some(Home::Remote { .. }), None) => {}
                (None, _) => return Err(IpcError::NoSuchEndpoint),
            }
        }
        Ok(notices)
    }

    /// What a party is told of a channel.
    pub(super) fn offer(&self, dc: DcId, channel: &Channel, role: Role) -> Offer {
        let (own, peer) = match role {
            Role::Left => (channel.left, channel.right),
            Role::Right => (channel.right, channel.left),
        };
        Offer {
            dc,
            channel: channel.id,
            own,
            peer,
            proxied: channel.proxied,
            lane: channel.lane,
            role,
            ring: ring_of(channel),
            calls: PartiesCalls { own: self.calls_over(dc, own, peer), peer: self.calls_over(dc, peer, own) },
        }
    }

    pub(super) fn tell(&mut self, dc: DcId, channel: ChannelId, notices: Vec<(OwnerId, Packed)>) {
        let mut all = true;
        for (owner, packed) in notices {
            let is_accepted = packed.is_about_channel();
            // Who opened the channel pays also for what its peer does not read.
            let kept = self.containers.get(&dc).and_then(|container| container.kept.get(&channel));
            let packed = packed.charged(kept.and_then(Kept::charge));
            all &= self.send_packed(owner, packed) == Sent::All;
            if is_accepted {
                self.announce(owner);
            }
        }
        // Otherwise a successor tells them again.
        if all {
            self.keep_channel(dc, channel);
        }
    }

    /// Makes a process look at what it was sent that sleeps in a call to one peer, or spins.
    pub(super) fn announce(&self, owner: OwnerId) {
        let connection = self.connections.get(&owner);
        let bound = connection.and_then(|it| Some((it.dc()?, it.bound.as_ref()?.endpoint)));
        let page = bound.and_then(|(dc, endpoint)| self.containers.get(&dc)?.page(endpoint));
        if let Some(page) = page {
            page.announce();
        }
    }

    /// Tells a process something that concerns a call it may be in.
    pub(super) fn send_and_announce(&mut self, owner: OwnerId, message: ToPort) {
        self.send(owner, &message);
        self.announce(owner);
    }

    /// Makes the objects and records the channel. When something later fails, the channel is closed by its caller.
    pub(super) fn make_channel(
        &mut self,
        dc: DcId,
        left: Endpoint,
        right: Endpoint,
        wish: LaneWish,
        ring: Option<RingSpec>,
    ) -> Result<Made, IpcError> {
        let size = ring.map(RingSpec::size).unwrap_or_default();
        let id = self.new_channel();
        let charge = self.charge_channel(dc, left, right, size.arena_bytes)?;
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let proxied = remote_node(container, left).or(remote_node(container, right));
        let pair = proxied.map(|node| self.pair_between(dc, left, right, node)).unwrap_or_default();
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let lane = container.table.lane_for(left, right, wish)?;
        let Size { entries, arena_bytes } = size;
        let channel = Channel { id, left, right, lane, entries, arena_bytes, proxied, pair };
        let files = ChannelFiles::create(size)?;
        container.table.open(channel)?;
        self.channels_made += 1;
        Ok(Made { channel, files, charge })
    }

    /// The opener pays; `TableFull` when it holds too much. One of another node has only its container to pay.
    fn charge_channel(
        &self,
        dc: DcId,
        left: Endpoint,
        right: Endpoint,
        arena_bytes: u32,
    ) -> Result<Option<Charge>, IpcError> {
        let Some((member, cost)) = self.payer(dc, left, right, arena_bytes) else { return Ok(None) };
        self.ledger.charge(member, cost).map(Some)
    }

    /// Of a channel that is there.
    pub(super) fn charge_of_channel(
        &self,
        dc: DcId,
        left: Endpoint,
        right: Endpoint,
        arena_bytes: u32,
    ) -> Option<Charge> {
        self.payer(dc, left, right, arena_bytes).map(|(member, cost)| self.ledger.charge_anyway(member, cost))
    }

    fn payer(&self, dc: DcId, left: Endpoint, right: Endpoint, arena_bytes: u32) -> Option<(Member, Cost)> {
        // Servers and gates of other nodes open as many as there are nodes, and no program can have their endpoints.
        let is_program = left.number() >= abi::limits::WELL_KNOWN_ENDPOINTS;
        let arena_bytes = if is_program { arena_bytes as usize } else { 0 };
        let carried = Cost { descriptors: PROXIED_DESCRIPTORS, arena_bytes };
        match (self.home(dc, left), self.home(dc, right)) {
            (Some(Home::Local { owner }), of_right) => {
                let member = self.connections.get(&owner)?.member()?;
                let is_near = !matches!(of_right, Some(Home::Remote { .. }));
                Some((member, if is_near { Cost::of_descriptors(LINES_DESCRIPTORS) } else { carried }))
            }
            _ => Some((Member { dc, person: None }, carried)),
        }
    }

    /// What one party is handed.
    pub(super) fn party_descriptors(
        &self,
        dc: DcId,
        channel: &Channel,
        files: &ChannelFiles,
        role: Role,
    ) -> Result<Vec<OwnedFd>, IpcError> {
        let peer = match role {
            Role::Left => channel.right,
            Role::Right => channel.left,
        };
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let page = container.page(peer).ok_or(IpcError::NoSuchEndpoint)?;
        Ok(channel_descriptors(files.party(role)?, page.reader()?))
    }

    pub(super) fn forget_channel(&mut self, dc: DcId, channel: ipc_core::ChannelId) {
        if let Some(container) = self.containers.get_mut(&dc)
            && let Some(channel) = container.table.close(channel)
        {
            container.end_channel(&channel);
        }
        self.drop_kept_channel(dc, channel);
    }

    /// Somebody was bound: whoever waited for it goes on.
    pub(super) fn appeared(&mut self, dc: DcId, endpoint: Endpoint) {
        if self.give_up_abandoned(dc, endpoint) {
            return;
        }
        self.named_appeared(dc, endpoint);
        let stay = self.cut_off_from(dc, endpoint);
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let goes_on = |it: &Waiter| it.awaited == Awaited::Bound && !stay.contains(&(it.owner, it.request));
        for waiter in container.table.waiters_mut().take_some(endpoint, goes_on) {
            let Some(open) = self.waiting_opens.remove(&(waiter.owner, waiter.request)) else {
                self.answer(waiter.owner, waiter.request, &ToPort::Done);
                continue;
            };
            let bound = self.connections.get(&waiter.owner).and_then(|connection| connection.bound.as_ref());
            let Some(own) = bound.map(|bound| bound.endpoint) else { continue };
            if let Err(error) = self.open_channel(dc, own, waiter.request, &open) {
                self.fail(waiter.owner, waiter.request, error);
            }
        }
    }
}

/// Between parties of this node only the lines are kept.
pub(super) fn lines_of(files: ChannelFiles, charge: Option<Charge>, meter: Option<Meter>) -> Kept {
    let (left, right) = files.into_lines();
    Kept::Lines { left, right, charge, meter }
}

/// The same channel, as the proxy is told that plays the party.
pub(super) fn proxied(offer: &Offer, node: NodeId, far: u64) -> ProxiedOffer {
    let Offer { dc, channel, own: remote, peer: local, lane, role, ring, calls, .. } = *offer;
    ProxiedOffer { dc, channel, local, remote, node, lane, role, ring, calls, peer_channel: far }
}

fn told_to_port(offer: Offer, request: u32, descriptors: Vec<OwnedFd>) -> Packed {
    match offer.role {
        Role::Right => Packed::new(0, &ToPort::Accepted(offer), descriptors),
        Role::Left => Packed::new(request, &ToPort::Opened(offer), descriptors),
    }
}

fn told_to_proxy(offer: ProxiedOffer, request: u32, descriptors: Vec<OwnedFd>) -> Packed {
    match offer.role {
        Role::Right => Packed::new(0, &ToProxy::Accepted(offer), descriptors),
        Role::Left => Packed::new(request, &ToProxy::Opened(offer), descriptors),
    }
}

/// Among which lanes a port's channel gets its own.
pub(super) fn wish_of(open: &Open) -> LaneWish {
    match open.ring {
        None => LaneWish::Messages,
        Some(_) if open.lane.is_for_copies() => LaneWish::Copies,
        Some(_) if open.lane.is_for_delegation() => LaneWish::Delegation,
        Some(_) => LaneWish::AnyRing,
    }
}

/// `None` of a channel of messages.
pub(super) fn ring_of(channel: &Channel) -> Option<RingSpec> {
    (channel.entries > 0).then_some(RingSpec { entries: channel.entries, arena_bytes: channel.arena_bytes })
}

fn remote_node(container: &Container, endpoint: Endpoint) -> Option<NodeId> {
    match container.table.binding(endpoint)?.home {
        Home::Remote { node } => Some(node),
        Home::Local { .. } => None,
    }
}
