//! Who may call whom: what is asked where a channel is made, and what a change ends. See `docs/design/privileges.md`.
//!
//! Each broker asks the privileges of the endpoints that are bound on its node, so of a channel between two nodes each
//! checks its own end.

use abi::ring::RingSpec;
use abi::{Calls, DcId, Endpoint, IpcError, Lane, Privileges};
use ipc_core::table::{Channel, Home, OwnerId};

use super::EventLoop;
use super::opening::ring_of;
use crate::connection::Bound;

impl EventLoop {
    /// Whether `own`, bound here, may open a channel to `to`: of messages, or a ring.
    pub(super) fn may_open(
        &self,
        dc: DcId,
        own: Endpoint,
        to: Endpoint,
        (lane, ring): (Lane, Option<RingSpec>),
    ) -> Result<(), IpcError> {
        let privileges = self.privileges_of(dc, own).ok_or(IpcError::NotBound)?;
        let may_talk = privileges.to.contains(to);
        let is_allowed = match ring {
            None => may_talk,
            Some(_) if lane.is_for_copies() => privileges.calls.contains(Calls::COPY) && self.may_copy(dc, own, to),
            // Whoever has one names others as the source.
            Some(_) if lane.is_for_delegation() => privileges.calls.contains(Calls::DELEGATE) && may_talk,
            Some(_) => privileges.calls.contains(Calls::RING) && privileges.rings.contains(to),
        };
        if is_allowed { self.may_be_called(dc, own, to, lane) } else { Err(IpcError::Denied) }
    }

    /// Whether `to` lets `caller` open a channel to it, as far as this broker has a say.
    pub(super) fn may_be_called(&self, dc: DcId, caller: Endpoint, to: Endpoint, lane: Lane) -> Result<(), IpcError> {
        let accepts = self.privileges_of(dc, to).is_none_or(|it| it.from.contains(caller));
        let is_allowed = accepts || lane.is_for_copies() && self.talk(dc, caller, to);
        if is_allowed { Ok(()) } else { Err(IpcError::Denied) }
    }

    /// A server copies from whoever calls it.
    fn may_copy(&self, dc: DcId, own: Endpoint, owner: Endpoint) -> bool {
        self.privileges_of(dc, own).is_some_and(|it| it.to.contains(owner)) || self.talk(dc, own, owner)
    }

    /// Which calls `from` may make to `to` over a channel of messages. An answer needs none.
    pub(super) fn calls_over(&self, dc: DcId, from: Endpoint, to: Endpoint) -> Calls {
        let accepts = self.privileges_of(dc, to).is_none_or(|it| it.from.contains(from));
        match self.privileges_of(dc, from) {
            _ if !accepts => Calls::NONE,
            Some(privileges) if privileges.to.contains(to) => privileges.calls.only(Calls::MESSAGES),
            Some(_) => Calls::NONE,
            // Its own node's broker sees to it.
            None => Calls::ALL,
        }
    }

    /// From now on; channels that they forbid, and those whose parties were told other calls, end with `Denied`.
    pub(super) fn change_privileges(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        privileges: Privileges,
    ) -> Result<(), IpcError> {
        let owner = self.local_owner(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?;
        let before = self.calls_of_channels(dc, endpoint);
        let bound = self.bound_mut(owner).ok_or(IpcError::NoSuchEndpoint)?;
        bound.privileges = privileges;
        self.keep_connection(owner);
        for (channel, calls) in before {
            let is_allowed = match self.privileges_of(dc, channel.left) {
                Some(_) => self.may_open(dc, channel.left, channel.right, (channel.lane, ring_of(&channel))),
                None => self.may_be_called(dc, channel.left, channel.right, channel.lane),
            };
            if is_allowed.is_err() || self.calls_of(dc, &channel) != calls {
                self.revoke(dc, channel);
            }
        }
        Ok(())
    }

    fn calls_of_channels(&self, dc: DcId, endpoint: Endpoint) -> Vec<(Channel, Option<(Calls, Calls)>)> {
        let Some(container) = self.containers.get(&dc) else { return Vec::new() };
        container.table.channels().of(endpoint).map(|channel| (*channel, self.calls_of(dc, channel))).collect()
    }

    /// What the parties of a channel of messages were told.
    fn calls_of(&self, dc: DcId, channel: &Channel) -> Option<(Calls, Calls)> {
        let both =
            || (self.calls_over(dc, channel.left, channel.right), self.calls_over(dc, channel.right, channel.left));
        (channel.entries == 0).then(both)
    }

    fn revoke(&mut self, dc: DcId, channel: Channel) {
        let closed = self.containers.get_mut(&dc).and_then(|container| container.table.close(channel.id));
        if closed.is_some() {
            self.end_between_living(dc, channel, IpcError::Denied);
        }
    }

    /// Those of an endpoint that is bound here.
    pub(super) fn privileges_of(&self, dc: DcId, endpoint: Endpoint) -> Option<&Privileges> {
        let owner = self.local_owner(dc, endpoint)?;
        Some(&self.connections.get(&owner)?.bound.as_ref()?.privileges)
    }

    pub(super) fn local_owner(&self, dc: DcId, endpoint: Endpoint) -> Option<OwnerId> {
        match self.home(dc, endpoint)? {
            Home::Local { owner } => Some(owner),
            Home::Remote { .. } => None,
        }
    }

    pub(super) fn check_manager(&self, dc: DcId, own: Endpoint) -> Result<(), IpcError> {
        let privileges = self.privileges_of(dc, own).ok_or(IpcError::NotBound)?;
        if privileges.calls.contains(Calls::MANAGE) { Ok(()) } else { Err(IpcError::Denied) }
    }

    fn bound_mut(&mut self, owner: OwnerId) -> Option<&mut Bound> {
        self.connections.get_mut(&owner)?.bound.as_mut()
    }

    /// Whether the two have a channel of messages.
    fn talk(&self, dc: DcId, one: Endpoint, other: Endpoint) -> bool {
        let container = self.containers.get(&dc);
        container.is_some_and(|it| it.table.channels().of_pair(one, other, Lane::MESSAGES).is_some())
    }
}
