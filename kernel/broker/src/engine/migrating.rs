//! Endpoints that change their owner: `docs/design/migration.md`.
//!
//! The broker of an endpoint's home has its [`Migration`]; brokers of other nodes know that it is in [`Transit`]. Until
//! `Step::Leaving` everything is taken back when it fails, from then on it goes forward.

use std::collections::BTreeSet;

use abi::{DcId, Endpoint, Epoch, IpcError, NodeId, PairId};
use broker_api::{Answer, BetweenBrokers, Errand, HoldId, IfAbsent, Pid, ToPort};
use ipc_core::table::{Awaited, Home, OwnerId, Told};
use ipc_shm::Life;

use super::Engine;
use super::errands::{Asker, Progress};
use super::requests::{BindRequest, Succession};

/// An endpoint of this node that is being handed over.
#[derive(Debug)]
pub(crate) struct Migration {
    /// Tells a late word of the owner about an earlier hold apart.
    hold: HoldId,
    step: Step,
    /// Who waits for the end of its start, or of its commit; in `Step::Held` nobody does.
    waiting: Asker,
    /// On whose behalf: it is taken back with this one's end.
    holder: Asker,
    /// Other nodes that hear where the endpoint went.
    told: BTreeSet<NodeId>,
}

#[derive(Debug)]
enum Step {
    Draining,
    Held,
    Asking { to: Place },
    Leaving { to: Place, succession: Succession, nodes: BTreeSet<NodeId> },
    Taking { to: Place, epoch: Epoch },
}

impl Migration {
    /// Nothing is under way any more. Who waited for it is to be told.
    fn hold(&mut self) -> Asker {
        self.step = Step::Held;
        std::mem::replace(&mut self.waiting, Asker::Nobody)
    }
}

/// A process that stands by, by its node and its pid in the container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub node: NodeId,
    pub pid: Pid,
}

/// What another broker was asked for the sake of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Prepare,
    Leave,
    TakeOver,
}

/// An endpoint that has no owner for the moment.
#[derive(Debug)]
pub(crate) struct Transit {
    /// Where it was, and with which epoch: news of that, or of what was before, come late.
    from: NodeId,
    epoch: Epoch,
    /// Who waits for its last channel here to end.
    left: Option<Asker>,
}

/// What a process of this node holds on another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holding {
    owner: OwnerId,
    dc: DcId,
    endpoint: Endpoint,
    node: NodeId,
}

impl Engine {
    pub(super) fn is_migrating(&self, dc: DcId, endpoint: Endpoint) -> bool {
        self.containers.get(&dc).is_some_and(|container| container.migrations.contains_key(&endpoint))
    }

    // ---- The home of the endpoint.

    pub(super) fn migration_start(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint) -> Progress {
        if let Some(migration) = self.migration(dc, endpoint) {
            if migration.holder.party() != asker.party() {
                return Err(IpcError::Busy);
            }
            return match migration.step {
                Step::Held => {
                    migration.holder = asker;
                    Ok(Some(Answer::Done))
                }
                Step::Draining => {
                    (migration.waiting, migration.holder) = (asker, asker);
                    Ok(None)
                }
                Step::Asking { .. } | Step::Leaving { .. } | Step::Taking { .. } => Err(IpcError::Busy),
            };
        }
        let owner = self.local_owner(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?;
        // Who holds itself owes nothing, its library saw to that.
        let is_own = matches!(asker, Asker::Port { owner: of, .. } if of == owner);
        let (step, waiting) = if is_own { (Step::Held, Asker::Nobody) } else { (Step::Draining, asker) };
        self.last_hold = self.last_hold.checked_add(1).unwrap_or(1);
        let hold = HoldId(self.last_hold);
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        container.handed.remove(&endpoint);
        container.migrations.insert(endpoint, Migration { hold, step, waiting, holder: asker, told: BTreeSet::new() });
        self.set_hold(dc, endpoint, hold.0);
        Ok(is_own.then_some(Answer::Done))
    }

    /// The owner is held and owes nothing.
    pub(super) fn drained(&mut self, dc: DcId, endpoint: Endpoint, hold: HoldId) {
        let Some(migration) = self.migration(dc, endpoint) else { return };
        if matches!(migration.step, Step::Draining) && migration.hold == hold {
            let asker = migration.hold();
            self.finish_errand(asker, Ok(()));
        }
    }

    pub(super) fn migration_rollback(&mut self, dc: DcId, endpoint: Endpoint) -> Progress {
        let Some(migration) = self.migration(dc, endpoint) else { return Ok(Some(Answer::Done)) };
        if !matches!(migration.step, Step::Held | Step::Draining) {
            return Err(IpcError::Busy);
        }
        let asker = migration.hold();
        self.finish_errand(asker, Err(IpcError::TimedOut));
        self.forget_migration(dc, endpoint);
        self.set_hold(dc, endpoint, 0);
        Ok(Some(Answer::Done))
    }

    pub(super) fn migration_commit(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint, to: Place) -> Progress {
        let own_node = self.node;
        let Some(migration) = self.migration(dc, endpoint) else {
            // Asked twice: the answer was lost with its link, or with the broker that gave it.
            let before = self.containers.get(&dc).and_then(|container| container.handed.get(&endpoint));
            if let Some((_, result)) = before.filter(|(place, _)| *place == to) {
                return result.map(|()| Some(Answer::Done));
            }
            let is_there = to.node == own_node && self.pid_behind(dc, endpoint) == Some(to.pid);
            return if is_there { Ok(Some(Answer::Done)) } else { Err(IpcError::BadArgument) };
        };
        match &migration.step {
            Step::Held => {
                migration.step = Step::Asking { to };
                migration.waiting = asker;
            }
            Step::Asking { to: under_way }
            | Step::Leaving { to: under_way, .. }
            | Step::Taking { to: under_way, .. }
                if *under_way == to =>
            {
                migration.waiting = asker;
                return Ok(None);
            }
            _ => return Err(IpcError::Busy),
        }
        let hold = migration.hold;
        let asked = if to.node != own_node {
            let errand = Errand::Prepare { node: to.node, pid: to.pid };
            let asker = Asker::Migration { dc, endpoint, hold, stage: Stage::Prepare };
            self.send_errand(asker, to.node, BetweenBrokers::Errand { dc, endpoint, errand })
        } else if self.stands_by(dc, endpoint, to.pid).is_some() {
            self.leave_home(dc, endpoint);
            Ok(())
        } else {
            Err(IpcError::NoSuchEndpoint)
        };
        if let Err(error) = asked {
            // Its asker hears it by this answer.
            let _ = self.migration(dc, endpoint).map(Migration::hold);
            return Err(error);
        }
        Ok(None)
    }

    /// The asker does not wait any longer. A start is taken back, a commit goes on. Whether it had asked for one.
    pub(super) fn cancel_migration(&mut self, dc: DcId, asker: Asker) -> bool {
        let Some(container) = self.containers.get_mut(&dc) else { return false };
        let mut all = container.migrations.iter_mut();
        let Some((endpoint, migration)) = all.find(|(_, migration)| migration.waiting == asker) else { return false };
        migration.waiting = Asker::Nobody;
        if matches!(migration.step, Step::Draining) {
            let endpoint = *endpoint;
            let _ = self.migration_rollback(dc, endpoint);
        }
        true
    }

    /// What another broker did for a step of a migration of ours; perhaps of one that has ended since.
    pub(super) fn migration_heard(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        (hold, stage): (HoldId, Stage),
        node: NodeId,
        result: Result<(), IpcError>,
    ) {
        let Some(migration) = self.migration(dc, endpoint).filter(|migration| migration.hold == hold) else { return };
        match (&mut migration.step, stage) {
            (Step::Asking { .. }, Stage::Prepare) => match result {
                Ok(()) => self.leave_home(dc, endpoint),
                Err(error) => {
                    let asker = migration.hold();
                    self.finish_errand(asker, Err(error));
                }
            },
            // One that cannot be reached has no channel with the endpoint any more either.
            (Step::Leaving { nodes, .. }, Stage::Leave) => {
                nodes.remove(&node);
                if nodes.is_empty() {
                    self.hand_over(dc, endpoint);
                }
            }
            (Step::Taking { .. }, Stage::TakeOver) => self.handed_over(dc, endpoint, result),
            _ => {}
        }
    }

    /// The old owner ends. Nobody can take this back.
    fn leave_home(&mut self, dc: DcId, endpoint: Endpoint) {
        let Some(container) = self.containers.get(&dc) else { return };
        let Some(epoch) = container.table.binding(endpoint).map(|binding| binding.epoch) else { return };
        let of_channels = container.table.channels().of(endpoint).filter_map(|channel| channel.proxied);
        let mut nodes: BTreeSet<NodeId> = of_channels.chain(self.links.met()).collect();
        let privileges = self.privileges_of(dc, endpoint).cloned();
        let (owner, own_node) = (self.local_owner(dc, endpoint), self.node);
        // One to the next owner's node, and one to take over.
        let has_room = self.errands.has_room_for(nodes.len() + 2);
        let Some(migration) = self.migration(dc, endpoint) else { return };
        let Step::Asking { to } = migration.step else { return };
        if to.node != own_node {
            // Its clients may open a channel at this moment, although they had none.
            nodes.insert(to.node);
        }
        if !has_room {
            let asker = migration.hold();
            return self.finish_errand(asker, Err(IpcError::TableFull));
        }
        migration.told.clone_from(&nodes);
        let asker = Asker::Migration { dc, endpoint, hold: migration.hold, stage: Stage::Leave };
        let succession = Succession { epoch: Epoch(epoch.0.saturating_add(1)), privileges };
        migration.step = Step::Leaving { to, succession, nodes: nodes.clone() };
        let leave = BetweenBrokers::Errand { dc, endpoint, errand: Errand::Leave { epoch } };
        let unreachable: Vec<NodeId> =
            nodes.into_iter().filter(|node| self.send_errand(asker, *node, leave.clone()).is_err()).collect();
        if let Some(container) = self.containers.get_mut(&dc) {
            container.in_transit.insert(endpoint, Transit { from: self.node, epoch, left: None });
        }
        self.end_binding(dc, endpoint, Life::Moved, IpcError::Moved);
        if let Some(owner) = owner {
            self.let_go(owner);
        }
        if let Some(Migration { step: Step::Leaving { nodes, .. }, .. }) = self.migration(dc, endpoint) {
            nodes.retain(|node| !unreachable.contains(node));
            if nodes.is_empty() {
                self.hand_over(dc, endpoint);
            }
        }
    }

    /// Nobody talks with the old owner any more: the new one begins.
    fn hand_over(&mut self, dc: DcId, endpoint: Endpoint) {
        let own_node = self.node;
        let Some(migration) = self.migration(dc, endpoint) else { return };
        let Step::Leaving { to, succession, .. } = &migration.step else { return };
        let (to, succession) = (*to, succession.clone());
        migration.step = Step::Taking { to, epoch: succession.epoch };
        let asker = Asker::Migration { dc, endpoint, hold: migration.hold, stage: Stage::TakeOver };
        if to.node == own_node {
            let taken = self.take_over(dc, endpoint, to.pid, succession);
            return self.handed_over(dc, endpoint, taken.map(drop));
        }
        let Place { node, pid } = to;
        let Succession { epoch, privileges: Some(privileges) } = succession else {
            return self.handed_over(dc, endpoint, Err(IpcError::NoSuchEndpoint));
        };
        let errand = Errand::TakeOver { node, pid, epoch, privileges };
        if let Err(error) = self.send_errand(asker, node, BetweenBrokers::Errand { dc, endpoint, errand }) {
            self.handed_over(dc, endpoint, Err(error));
        }
    }

    /// The new owner has begun, or will not.
    fn handed_over(&mut self, dc: DcId, endpoint: Endpoint, result: Result<(), IpcError>) {
        let Some(migration) = self.forget_migration(dc, endpoint) else { return };
        let Step::Taking { to, epoch } = migration.step else { return };
        let result = result.map_err(|error| if error == IpcError::NoLink { error } else { IpcError::DestinationDied });
        let at = result.is_ok().then_some((to.node, epoch));
        let news = BetweenBrokers::MovedTo { dc, endpoint, to: at };
        for node in migration.told.into_iter().filter(|node| *node != to.node) {
            // The directory tells them too where it is. That it is nowhere nobody else says, so they are asked until they have heard it.
            if result.is_ok() || self.send_errand(Asker::Nobody, node, news.clone()).is_err() {
                self.tell_broker(node, &news);
            }
        }
        if to.node != self.node || result.is_err() {
            self.hear_moved_to(dc, endpoint, at);
        }
        if result.is_err() {
            self.directory.unbound(dc, endpoint, Epoch(epoch.0.saturating_sub(1)));
        }
        if let Some(container) = self.containers.get_mut(&dc) {
            container.handed.insert(endpoint, (to, result));
        }
        self.finish_errand(migration.waiting, result);
    }

    /// An owner has ended: so has what was to become of its endpoint, unless it had left already.
    pub(super) fn end_migration(&mut self, dc: DcId, endpoint: Endpoint) {
        let is_over =
            |migration: &mut Migration| matches!(migration.step, Step::Draining | Step::Held | Step::Asking { .. });
        if !self.migration(dc, endpoint).is_some_and(is_over) {
            return;
        }
        if let Some(migration) = self.forget_migration(dc, endpoint) {
            self.finish_errand(migration.waiting, Err(IpcError::DestinationDied));
        }
    }

    /// Takes back what was held for somebody who is gone.
    pub(super) fn roll_back_of(&mut self, is_gone: impl Fn(&Asker) -> bool) {
        let mut held = Vec::new();
        for (dc, container) in &self.containers {
            let of_it = container.migrations.iter().filter(|(_, migration)| is_gone(&migration.holder));
            held.extend(of_it.map(|(endpoint, _)| (*dc, *endpoint)));
        }
        for (dc, endpoint) in held {
            // One that left already goes on.
            let _ = self.migration_rollback(dc, endpoint);
        }
    }

    fn migration(&mut self, dc: DcId, endpoint: Endpoint) -> Option<&mut Migration> {
        self.containers.get_mut(&dc)?.migrations.get_mut(&endpoint)
    }

    fn forget_migration(&mut self, dc: DcId, endpoint: Endpoint) -> Option<Migration> {
        self.containers.get_mut(&dc)?.migrations.remove(&endpoint)
    }

    fn set_hold(&mut self, dc: DcId, endpoint: Endpoint, hold: u32) {
        if let Some(page) = self.containers.get(&dc).and_then(|container| container.pages.get(&endpoint)) {
            page.set_hold(hold);
        }
        if let Some(owner) = self.local_owner(dc, endpoint) {
            self.send(owner, &ToPort::Hold);
        }
    }

    fn pid_behind(&self, dc: DcId, endpoint: Endpoint) -> Option<Pid> {
        let owner = self.local_owner(dc, endpoint)?;
        Pid::new(self.connections.get(&owner)?.bound.as_ref()?.inner_pid)
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
            // Asked twice.
            let is_done = self.pid_behind(dc, endpoint) == Some(pid) && self.epoch_of(dc, endpoint) >= succession.epoch;
            return if is_done { Ok(Some(Answer::Done)) } else { Err(IpcError::NoSuchEndpoint) };
        };
        if self.epoch_of(dc, endpoint) >= succession.epoch {
            return Err(IpcError::Fenced);
        }
        let was_here = self.local_owner(dc, endpoint).is_some();
        if was_here {
            // The one before, on this very node.
            self.fence_local(dc, endpoint);
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

    fn fence_local(&mut self, dc: DcId, endpoint: Endpoint) {
        if let Some(owner) = self.local_owner(dc, endpoint) {
            self.end_for_successor(dc, endpoint, Life::Fenced, IpcError::Fenced);
            self.let_go(owner);
        }
    }

    /// A connection whose endpoint has another owner now. Its process may sleep where it sees its page only when it is woken.
    pub(super) fn let_go(&mut self, owner: OwnerId) {
        self.take_bound(owner);
        self.send(owner, &ToPort::Hold);
    }

    /// Where an endpoint was that is in transit.
    pub(super) fn left_from(&self, dc: DcId, endpoint: Endpoint) -> Option<NodeId> {
        self.containers.get(&dc)?.in_transit.get(&endpoint).map(|transit| transit.from)
    }

    fn epoch_of(&self, dc: DcId, endpoint: Endpoint) -> Epoch {
        self.containers.get(&dc).map_or(Epoch(0), |container| container.table.highest_epoch(endpoint))
    }

    // ---- Nodes of clients.

    /// The endpoint leaves its home, so its channels with this node end; the asker hears when the last one has.
    pub(super) fn leave(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint, epoch: Epoch) -> Progress {
        let Asker::Broker { node: from, .. } = asker else { return Err(IpcError::BadArgument) };
        let Some(container) = self.containers.get_mut(&dc) else { return Ok(Some(Answer::Done)) };
        if container.table.highest_epoch(endpoint) > epoch {
            // Asked twice, and over since.
            return Ok(Some(Answer::Done));
        }
        match container.table.binding(endpoint).map(|binding| binding.home) {
            Some(Home::Remote { node }) if node == from => {}
            // It is known to be elsewhere.
            Some(_) => return Ok(Some(Answer::Done)),
            None => {
                container.in_transit.insert(endpoint, Transit { from, epoch, left: None });
                return Ok(Some(Answer::Done));
            }
        }
        container.in_transit.insert(endpoint, Transit { from, epoch, left: Some(asker) });
        container.leaving.insert(endpoint);
        self.end_if_left(dc, endpoint);
        Ok(None)
    }

    /// An OPEN came to a node that the endpoint has left.
    pub(super) fn left_behind(&mut self, dc: DcId, endpoint: Endpoint, from: NodeId) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        let home = container.table.binding(endpoint).map(|binding| binding.home);
        if home == Some(Home::Remote { node: from }) && !container.in_transit.contains_key(&endpoint) {
            let epoch = container.table.highest_epoch(endpoint);
            container.in_transit.insert(endpoint, Transit { from, epoch, left: None });
            container.leaving.insert(endpoint);
        }
    }

    /// The last channel of an endpoint that is in transit has ended here.
    pub(super) fn has_left(&mut self, dc: DcId, endpoint: Endpoint) {
        let transit = self.containers.get_mut(&dc).and_then(|container| container.in_transit.get_mut(&endpoint));
        if let Some(asker) = transit.and_then(|transit| transit.left.take()) {
            self.finish_errand(asker, Ok(()));
        }
    }

    /// Where an endpoint is after a migration.
    pub(super) fn hear_moved_to(&mut self, dc: DcId, endpoint: Endpoint, to: Option<(NodeId, Epoch)>) {
        if let Some((node, epoch)) = to {
            self.is_on(dc, endpoint, node, epoch, IpcError::Moved);
        } else if self.end_transit(dc, endpoint, IpcError::NoSuchEndpoint) {
            self.disappeared(dc, endpoint);
        }
    }

    /// Another node has the endpoint now; `reason`: what becomes of channels with an owner before.
    pub(super) fn is_on(&mut self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch, reason: IpcError) {
        let transit = self.containers.get(&dc).and_then(|container| container.in_transit.get(&endpoint));
        if transit.is_some_and(|transit| transit.epoch >= epoch) {
            return;
        }
        if self.is_node_down(node) {
            // It stays unbound here; `link_up` looks again.
            self.end_transit(dc, endpoint, IpcError::NoLink);
        } else if self.bind_remote(dc, endpoint, node, epoch, Told::ByDirectory, reason).is_ok() {
            self.appeared(dc, endpoint);
        }
    }

    /// Whoever waits only for the end of a transit waits no more. Whether there was one.
    fn end_transit(&mut self, dc: DcId, endpoint: Endpoint, error: IpcError) -> bool {
        let transit = self.containers.get_mut(&dc).and_then(|container| container.in_transit.remove(&endpoint));
        if transit.is_some() {
            self.fail_opens(dc, endpoint, error);
        }
        transit.is_some()
    }

    /// Says where an endpoint is that was looked for here.
    pub(super) fn tell_where(&mut self, dc: DcId, endpoint: Endpoint, to: NodeId) {
        if let Some(migration) = self.migration(dc, endpoint) {
            migration.told.insert(to);
            return;
        }
        let Some(container) = self.containers.get(&dc) else { return };
        if let Some(binding) = container.table.binding(endpoint)
            && let Home::Remote { node } = binding.home
        {
            let news = BetweenBrokers::MovedTo { dc, endpoint, to: Some((node, binding.epoch)) };
            self.tell_broker(to, &news);
        }
    }

    /// A node is cut off: what waits for an endpoint that was there does not wait for ever.
    pub(super) fn end_transits_from(&mut self, from: NodeId) {
        let mut ended = Vec::new();
        for (dc, container) in &mut self.containers {
            let of_node = |_: &Endpoint, transit: &mut Transit| transit.from == from;
            ended.extend(container.in_transit.extract_if(of_node).map(|(endpoint, _)| (*dc, endpoint)));
        }
        for (dc, endpoint) in ended {
            self.fail_opens(dc, endpoint, IpcError::NoLink);
        }
        self.roll_back_of(|holder| matches!(holder, Asker::Broker { node, .. } if *node == from));
        self.holding.retain(|holding| holding.node != from);
    }

    /// Opens that wait only because of a transit.
    fn fail_opens(&mut self, dc: DcId, endpoint: Endpoint, error: IpcError) {
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

impl Asker {
    /// The same in each of its requests.
    fn party(self) -> Asker {
        match self {
            Asker::Port { owner, .. } => Asker::Port { owner, request: 0 },
            Asker::Broker { node, process, .. } => Asker::Broker { node, pair: PairId::FIRST, request: 0, process },
            other => other,
        }
    }
}
