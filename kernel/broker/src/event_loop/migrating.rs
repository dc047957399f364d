//! Endpoints that change their owner: `docs/design/migration.md`.
//!
//! What becomes of the endpoint is decided in `ipc_core::table`; here are the calls and errands that ask for it, what
//! processes of this node hold on others, and who stands by.

use abi::{DcId, Endpoint, Epoch, HoldId, IpcError, NodeId};
use broker_api::{Answer, BetweenBrokers, Errand, IfAbsent, Pid};
use ipc_core::table::{Awaited, Change, Event, Home, OwnerId, Place};

use super::EventLoop;
use super::errands::{Asker, Progress};
use super::requests::{BindRequest, Succession};

/// What a process of this node holds on another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holding {
    owner: OwnerId,
    dc: DcId,
    endpoint: Endpoint,
    node: NodeId,
}

impl EventLoop {
    // ---- The home of the endpoint. The state machine answers the asker.

    pub(super) fn migration_start(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint) -> Progress {
        self.last_hold = self.last_hold.checked_add(1).unwrap_or(1);
        let by = if let Asker::Port { owner, .. } = asker { Some(owner) } else { None };
        let hold = HoldId(self.last_hold);
        self.step(dc, endpoint, Event::Start { asker, by, hold }).map(|()| None)
    }

    pub(super) fn migration_rollback(&mut self, dc: DcId, endpoint: Endpoint) -> Progress {
        self.step(dc, endpoint, Event::Rollback)?;
        Ok(Some(Answer::Done))
    }

    pub(super) fn migration_commit(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint, to: Place) -> Progress {
        let behind = self.pid_behind(dc, endpoint).map(|pid| Place { node: self.node, pid });
        self.step(dc, endpoint, Event::Commit { asker, to, behind }).map(|()| None)
    }

    /// The asker does not wait any longer. Returns whether it had asked for a hand-over.
    pub(super) fn cancel_migration(&mut self, dc: DcId, asker: Asker) -> bool {
        let awaited = self.containers.get(&dc).and_then(|container| container.table.awaited_by(&asker));
        if let Some(endpoint) = awaited {
            self.happens(dc, endpoint, Event::Cancelled { asker });
        }
        awaited.is_some()
    }

    /// Takes back what was held for somebody who is gone.
    pub(super) fn roll_back_of(&mut self, is_gone: impl Fn(&Asker) -> bool) {
        let mut held = Vec::new();
        for (dc, container) in &self.containers {
            held.extend(container.table.held_for(&is_gone).map(|endpoint| (*dc, endpoint)));
        }
        for (dc, endpoint) in held {
            self.happens(dc, endpoint, Event::Rollback);
        }
    }

    fn pid_behind(&self, dc: DcId, endpoint: Endpoint) -> Option<Pid> {
        let owner = self.local_owner(dc, endpoint)?;
        Pid::new(self.connections.get(&owner)?.bound.as_ref()?.inner_pid)
    }

    /// Says where an endpoint is that was looked for here.
    pub(super) fn tell_where(&mut self, dc: DcId, endpoint: Endpoint, to: NodeId) {
        let Some(container) = self.containers.get(&dc) else { return };
        if container.table.is_migrating(endpoint) {
            return self.happens(dc, endpoint, Event::Sought { node: to });
        }
        if let Some(binding) = container.table.binding(endpoint)
            && let Home::Remote { node } = binding.home
        {
            let news = BetweenBrokers::MovedTo { dc, endpoint, to: Some((node, binding.epoch)) };
            self.tell_broker(to, &news);
        }
    }

    // ---- The node of the asker.

    /// Remembers what is held elsewhere for a process of this node, so that it is let go with it.
    pub(super) fn note_holder(&mut self, owner: OwnerId, dc: DcId, endpoint: Endpoint, errand: &Errand, node: NodeId) {
        let holding = Holding { owner, dc, endpoint, node };
        match errand {
            Errand::MigrationStart { .. } if !self.holding.contains(&holding) => self.holding.push(holding),
            Errand::MigrationRollback => self.holding.retain(|of| *of != holding),
            _ => {}
        }
    }

    /// Another broker did what a process of this node asked: what was handed over is held no more.
    pub(super) fn note_handed_over(&mut self, owner: OwnerId, dc: DcId, endpoint: Endpoint, node: NodeId) {
        self.holding.retain(|of| *of != Holding { owner, dc, endpoint, node });
    }

    /// A process of this node is gone: what it held is let go.
    pub(super) fn release_holdings(&mut self, owner: OwnerId) {
        let (gone, kept): (Vec<Holding>, Vec<Holding>) = self.holding.drain(..).partition(|of| of.owner == owner);
        self.holding = kept;
        for Holding { dc, endpoint, node, .. } in gone {
            let rollback = BetweenBrokers::Errand { dc, endpoint, errand: Errand::MigrationRollback };
            // A node without a link lets go by itself.
            let _ = self.send_errand(Asker::Nobody, node, rollback);
        }
        self.roll_back_of(|holder| matches!(holder, Asker::Port { owner: of, .. } if *of == owner));
    }

    // ---- The node of the next owner.

    /// Lets the request wait until the endpoint is given to its sender.
    pub(super) fn stand_by(&mut self, owner: OwnerId, request: BindRequest) -> Result<(), IpcError> {
        if request.request == 0 {
            return Err(IpcError::BadArgument);
        }
        // One for each connection, so this is bounded as they are.
        self.standing_by.insert(owner, request);
        Ok(())
    }

    pub(super) fn stands_by(&self, dc: DcId, endpoint: Endpoint, pid: Pid) -> Option<OwnerId> {
        let is_it = |it: &BindRequest| it.dc == dc && it.endpoint == Some(endpoint) && it.inner_pid == pid.number();
        self.standing_by.iter().find(|(_, it)| is_it(it)).map(|(owner, _)| *owner)
    }

    pub(super) fn take_over(&mut self, dc: DcId, endpoint: Endpoint, pid: Pid, succession: Succession) -> Progress {
        let Some(owner) = self.stands_by(dc, endpoint, pid) else {
            // Asked twice: it has taken over already.
            let is_done = self.pid_behind(dc, endpoint) == Some(pid) && self.epoch_of(dc, endpoint) >= succession.epoch;
            return if is_done { Ok(Some(Answer::Done)) } else { Err(IpcError::NoSuchEndpoint) };
        };
        if self.epoch_of(dc, endpoint) >= succession.epoch {
            return Err(IpcError::Fenced);
        }
        let was_here = self.local_owner(dc, endpoint).is_some();
        if was_here {
            // The one before, on this very node.
            self.happens(dc, endpoint, Event::IsFenced);
        }
        let Some(of) = self.standing_by.remove(&owner) else { return Err(IpcError::NoSuchEndpoint) };
        let request = of.request;
        let before = Epoch(succession.epoch.0.saturating_sub(1));
        match self.bind(owner, of, Some(succession)) {
            Ok(()) => Ok(Some(Answer::Done)),
            Err(error) => {
                if was_here {
                    // The directory has not heard yet that it ended.
                    self.directory.unbound(dc, endpoint, before);
                }
                self.fail(owner, request, error);
                Err(error)
            }
        }
    }

    fn epoch_of(&self, dc: DcId, endpoint: Endpoint) -> Epoch {
        self.containers.get(&dc).map_or(Epoch(0), |container| container.table.highest_epoch(endpoint))
    }

    // ---- Nodes of clients.

    /// The endpoint leaves its home, so its channels with this node end; the asker hears when the last one has.
    pub(super) fn leave(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint, epoch: Epoch) -> Progress {
        let Asker::Broker { node: from, .. } = asker else { return Err(IpcError::BadArgument) };
        if !self.containers.contains_key(&dc) {
            return Ok(Some(Answer::Done));
        }
        self.step(dc, endpoint, Event::Leaves { asker, from, epoch }).map(|()| None)
    }

    /// Where an endpoint is after a migration.
    pub(super) fn hear_moved_to(&mut self, dc: DcId, endpoint: Endpoint, to: Option<(NodeId, Epoch)>) {
        match to {
            Some((node, epoch)) => self.is_on(dc, endpoint, node, epoch, Change::HandedOver),
            None => self.happens(dc, endpoint, Event::TransitEnds { error: IpcError::NoSuchEndpoint }),
        }
    }

    /// A node is cut off: what waits for an endpoint that was there does not wait for ever.
    pub(super) fn end_transits_from(&mut self, from: NodeId) {
        let mut left = Vec::new();
        for (dc, container) in &self.containers {
            left.extend(container.table.in_transit_from(from).map(|endpoint| (*dc, endpoint)));
        }
        for (dc, endpoint) in left {
            self.happens(dc, endpoint, Event::TransitEnds { error: IpcError::NoLink });
        }
        self.roll_back_of(|holder| matches!(holder, Asker::Broker { node, .. } if *node == from));
        self.holding.retain(|holding| holding.node != from);
    }

    /// Opens that wait only because of a transit.
    pub(super) fn fail_opens(&mut self, dc: DcId, endpoint: Endpoint, error: IpcError) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let opens = &self.waiting_opens;
        let failed = container.table.waiters_mut().take_some(endpoint, |waiter| {
            let open = opens.get(&(waiter.owner, waiter.request));
            waiter.awaited == Awaited::Bound && open.is_some_and(|it| it.if_absent == IfAbsent::Fail)
        });
        for waiter in failed {
            self.waiting_opens.remove(&(waiter.owner, waiter.request));
            self.fail(waiter.owner, waiter.request, error);
        }
    }
}
