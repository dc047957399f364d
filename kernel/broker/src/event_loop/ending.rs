//! Deaths, and what follows: pages, lines, notices.

use abi::{ChannelId, DcId, Endpoint, IpcError};
use broker_api::{ToPort, ToProxy};
use ipc_core::table::{Channel, Ending, Event, Home, OwnerId};
use ipc_shm::{Role, ring_line};

use super::EventLoop;
use crate::closer::Waste;
use crate::connection::{Connection, Party};
use crate::container::Kept;

impl EventLoop {
    /// The kernel says that the process behind a connection has ended.
    pub(super) fn process_died(&mut self, owner: OwnerId) {
        self.deaths += 1;
        self.drop_connection(owner);
    }

    pub(super) fn drop_connection(&mut self, owner: OwnerId) {
        self.unbind(owner, IpcError::SourceDied);
        let Some(connection) = self.connections.remove(&owner) else { return };
        // The shelf may hold it, so closing ours neither takes it out of the poller nor tells the other end.
        let _ = self.poller.remove(&connection.socket);
        let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
        self.drop_kept_connection(owner);
        if let Some(container) = connection.dc().and_then(|dc| self.containers.get_mut(&dc)) {
            container.connections = container.connections.saturating_sub(1);
            container.table.waiters_mut().forget(owner);
            container.finds.take(owner, None);
        }
        self.errands.forget(owner);
        self.claims.remove(&owner);
        self.waiting_binds.remove(&owner);
        self.standing_by.remove(&owner);
        self.release_holdings(owner);
        if let Some(dc) = connection.dc() {
            self.end_reservations(dc, owner);
        }
        self.waiting_opens.retain(|(waiting, _), _| *waiting != owner);
        // A proxy's channels stay for its successor.
        if let Some(pair) = self.links.pair_of(owner) {
            self.watch_unmanned(pair);
        }
        let elsewhere = self.links.lost(owner);
        if !elsewhere.is_empty() {
            elsewhere.into_iter().for_each(|node| self.send_errands_again(Some(node)));
            self.chase_again();
        }
        self.close_socket(connection);
    }

    /// What a member sent and nobody read is closed with its connection.
    fn close_socket(&mut self, connection: Connection) {
        let Party::Program { dc, .. } = connection.party else { return };
        if !sys::seqpacket::can_refuse_descriptors()
            && let Some(container) = self.containers.get_mut(&dc)
        {
            container.closer.take(Waste::Socket(connection.socket));
        }
    }

    /// Ends the binding of a connection, which itself stays.
    pub(super) fn unbind(&mut self, owner: OwnerId, reason: IpcError) {
        let dc = self.connections.get(&owner).and_then(Connection::dc);
        let (Some(endpoint), Some(dc)) = (self.take_bound(owner), dc) else { return };
        let is_ours = matches!(self.home(dc, endpoint), Some(Home::Local { owner: of }) if of == owner);
        if is_ours {
            self.happens(dc, endpoint, Event::Ends { ending: Ending::Dead, reason });
        }
    }

    /// The connection is bound no longer; whether its endpoint was still its own says the table. The endpoint.
    pub(super) fn take_bound(&mut self, owner: OwnerId) -> Option<Endpoint> {
        let bound = self.connections.get_mut(&owner)?.bound.take()?;
        // The descriptor may live on elsewhere, so closing ours would not take it out.
        let _ = self.poller.remove(&bound.pidfd);
        self.keep_connection(owner);
        Some(bound.endpoint)
    }

    /// A channel was taken out of the table: wakes and tells who is left. `by` ended it and needs no telling.
    pub(super) fn channel_ended(&mut self, dc: DcId, channel: Channel, by: Option<Endpoint>, reason: IpcError) {
        let kept = self.containers.get_mut(&dc).and_then(|container| container.end_channel(&channel));
        self.drop_kept_channel(dc, channel.id);
        for role in [Role::Left, Role::Right] {
            let party = match role {
                Role::Left => channel.left,
                Role::Right => channel.right,
            };
            if by != Some(party) {
                ring_bell(kept.as_ref(), role);
            }
        }
        // The initiator sees the end in memory; it may be a mere client that never reads its socket.
        if let Some(Home::Local { owner }) = self.home(dc, channel.right) {
            self.send(owner, &ToPort::Ended { dc, channel: channel.id, reason });
        }
        if let (Some(_), Some(proxy)) = (channel.proxied, self.links.proxy(channel.pair)) {
            self.send(proxy, &ToProxy::Ended { dc, channel: channel.id, reason });
        }
    }

    /// Ends a channel whose parties live. Both are told, and look at once: no page says so, and the proxy, or a peer
    /// that is hostile, may not write it into its memory.
    pub(super) fn end_between_living(&mut self, dc: DcId, channel: Channel, reason: IpcError) {
        self.channel_ended(dc, channel, None, reason);
        self.tell_initiator(dc, channel, reason);
        if let Some(owner) = self.local_owner(dc, channel.right) {
            self.announce(owner);
        }
        self.loses_channel(dc, channel.left);
        self.loses_channel(dc, channel.right);
    }

    /// A party closed one of its channels.
    pub(super) fn close_by_party(&mut self, dc: DcId, own: Endpoint, id: ChannelId, reason: IpcError) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let Some(channel) = container.table.channels().get(id).filter(|it| it.peer_of(own).is_some()) else { return };
        let is_refused = own == channel.right && is_refusal(reason);
        if is_refused && let Some(meter) = container.meter(id) {
            // The opener of a ring reads no notices.
            meter.refuse(reason);
        }
        if let Some(channel) = container.table.close(id) {
            self.channel_ended(dc, channel, Some(own), reason);
            if is_refused {
                self.tell_initiator(dc, channel, reason);
            }
            if let Some(peer) = channel.peer_of(own) {
                self.loses_channel(dc, peer);
            }
        }
    }

    pub(super) fn tell_initiator(&mut self, dc: DcId, channel: Channel, reason: IpcError) {
        if let Some(owner) = self.local_owner(dc, channel.left) {
            self.send_and_announce(owner, ToPort::Ended { dc, channel: channel.id, reason });
        }
    }
}

/// Whether the acceptor could not have the channel at all, so that it said nothing of its end in it.
pub(super) fn is_refusal(reason: IpcError) -> bool {
    matches!(reason, IpcError::Os(_) | IpcError::NoBroker | IpcError::TableFull | IpcError::BadArgument)
}

fn ring_bell(kept: Option<&Kept>, role: Role) {
    match (kept, role) {
        (Some(Kept::Lines { left, .. }), Role::Left) => ring_line(left),
        (Some(Kept::Lines { right, .. }), Role::Right) => ring_line(right),
        (Some(Kept::Proxied { files, .. }), role) => ring_line(files.line(role)),
        (None, _) => {}
    }
}
