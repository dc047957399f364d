//! Making channels.

use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint, IpcError, NodeId};
use ipc::protocol::{Op, Packet, channel_descriptors};
use ipc_core::table::{Awaited, Channel, Home, LaneWish, OwnerId};
use ipc_shm::{ChannelFiles, Role, Size};

use super::Engine;
use crate::container::{Container, Kept};

/// A channel that was made and recorded, not yet handed out.
pub(super) struct Made {
    pub channel: Channel,
    pub files: ChannelFiles,
}

impl Engine {
    /// Opens what `own` asked for; `to` is bound, here or elsewhere.
    pub(super) fn open_channel(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        to: Endpoint,
        packet: Packet,
    ) -> Result<(), IpcError> {
        let wish = if packet.ring().is_some() { LaneWish::AnyRing } else { LaneWish::Messages };
        let made = self.make_channel(dc, own, to, wish, packet.size)?;
        let channel = made.channel;
        let opened = Packet { request: packet.request, ..notice(Op::Opened, dc, &channel, Role::Left) };
        let left = self.party_descriptors(dc, &made, Role::Left)?;
        match self.home(dc, to) {
            Some(Home::Local { owner: acceptor }) => {
                let right = self.party_descriptors(dc, &made, Role::Right)?;
                self.keep_bells(dc, made)?;
                self.send(acceptor, notice(Op::Accepted, dc, &channel, Role::Right), right);
            }
            Some(Home::Remote { .. }) => self.proxy_channel(dc, made, Role::Right, 0, Op::Accepted, 0)?,
            None => return Err(IpcError::NoSuchEndpoint),
        }
        self.send(owner, opened, left);
        Ok(())
    }

    /// Makes the objects and records the channel. When something later fails, the channel is closed by its caller.
    pub(super) fn make_channel(
        &mut self,
        dc: DcId,
        left: Endpoint,
        right: Endpoint,
        wish: LaneWish,
        size: Size,
    ) -> Result<Made, IpcError> {
        let id = self.new_channel();
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let lane = container.table.lane_for(left, right, wish)?;
        let proxied = remote_node(container, left).or(remote_node(container, right));
        let channel = Channel { id, left, right, lane, entries: size.entries, arena_bytes: size.arena_bytes, proxied };
        let files = ChannelFiles::create(size).map_err(os)?;
        container.table.open(channel)?;
        self.channels_made += 1;
        Ok(Made { channel, files })
    }

    /// What one party is handed; a failure closes the channel.
    pub(super) fn party_descriptors(&mut self, dc: DcId, made: &Made, role: Role) -> Result<Vec<OwnedFd>, IpcError> {
        let result = self.try_party_descriptors(dc, &made.channel, &made.files, role);
        if result.is_err() {
            self.forget_channel(dc, made.channel.id);
        }
        result
    }

    pub(super) fn try_party_descriptors(
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
        let page = container.pages.get(&peer).ok_or(IpcError::NoSuchEndpoint)?;
        Ok(channel_descriptors(files.party(role).map_err(os)?, page.reader().map_err(os)?))
    }

    pub(super) fn home(&self, dc: DcId, endpoint: Endpoint) -> Option<Home> {
        Some(self.containers.get(&dc)?.table.binding(endpoint)?.home)
    }

    pub(super) fn forget_channel(&mut self, dc: DcId, channel: ipc_core::ChannelId) {
        if let Some(container) = self.containers.get_mut(&dc) {
            container.table.close(channel);
            container.kept.remove(&channel);
        }
    }

    /// Somebody was bound: whoever waited for it goes on.
    pub(super) fn appeared(&mut self, dc: DcId, endpoint: Endpoint) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        for waiter in container.table.waiters_mut().take(endpoint, Awaited::Bound) {
            let Some(packet) = self.waiting_opens.remove(&(waiter.owner, waiter.request)) else {
                self.answer(waiter.owner, Packet { request: waiter.request, ..Packet::new(Op::Done) });
                continue;
            };
            let bound = self.connections.get(&waiter.owner).and_then(|connection| connection.bound.as_ref());
            let Some(own) = bound.map(|bound| bound.endpoint) else { continue };
            if let Err(error) = self.open_channel(waiter.owner, dc, own, endpoint, packet) {
                self.fail(waiter.owner, waiter.request, error);
            }
        }
    }

    fn keep_bells(&mut self, dc: DcId, made: Made) -> Result<(), IpcError> {
        let id = made.channel.id;
        let bells = made.files.bell(Role::Left).and_then(|left| Ok((left, made.files.bell(Role::Right)?)));
        match (bells, self.containers.get_mut(&dc)) {
            (Ok((left, right)), Some(container)) => {
                container.kept.insert(id, Kept::Bells { left, right });
                Ok(())
            }
            (Err(error), _) => {
                self.forget_channel(dc, id);
                Err(os(error))
            }
            (_, None) => Err(IpcError::DcNotRunning),
        }
    }
}

/// What a party is told of a channel.
pub(super) fn notice(op: Op, dc: DcId, channel: &Channel, role: Role) -> Packet {
    let (own, peer) = match role {
        Role::Left => (channel.left, channel.right),
        Role::Right => (channel.right, channel.left),
    };
    Packet {
        dc,
        own: Some(own),
        peer: Some(peer),
        node: channel.proxied.unwrap_or(NodeId(0)),
        lane: channel.lane,
        role,
        channel: channel.id,
        size: Size { entries: channel.entries, arena_bytes: channel.arena_bytes },
        ..Packet::new(op)
    }
}

pub(super) fn os(error: std::io::Error) -> IpcError {
    IpcError::Os(error.raw_os_error().unwrap_or(0))
}

fn remote_node(container: &Container, endpoint: Endpoint) -> Option<NodeId> {
    match container.table.binding(endpoint)?.home {
        Home::Remote { node } => Some(node),
        Home::Local { .. } => None,
    }
}
