//! What becomes of endpoints: `docs/design/endpoint-life.md`.
//!
//! `ipc_core::table` decides what an event changes. Here is how its effects reach pages, processes, other brokers, the
//! directory and the shelf, and what is asked of the rest of the broker for the sake of an event.

use abi::{DcId, Endpoint, Epoch, HoldId, IpcError, NodeId};
use broker_api::{BetweenBrokers, Errand, ToPort};
use ipc_core::table::{Awaited, Change, Claim, Effect, Ending, Event, Home, OwnerId, Parting, Place, Told};
use ipc_shm::{ControlWriter, Life};

use super::EventLoop;
use super::errands::{Asker, Stage};
use super::requests::Succession;
use crate::container::KeptBinding;

impl EventLoop {
    /// Lets something happen to an endpoint. An error refuses it.
    pub(super) fn step(&mut self, dc: DcId, endpoint: Endpoint, event: Event<Asker>) -> Result<(), IpcError> {
        self.step_with(dc, endpoint, event, None)
    }

    /// With the page of the binding that begins.
    pub(super) fn step_with(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        event: Event<Asker>,
        mut page: Option<ControlWriter>,
    ) -> Result<(), IpcError> {
        let container = self.containers.get_mut(&dc).ok_or(IpcError::DcNotRunning)?;
        let mut known_at_once = Vec::new();
        for (endpoint, effect) in container.table.step(endpoint, event)? {
            known_at_once.extend(self.carry_out(dc, endpoint, effect, &mut page));
        }
        for event in known_at_once {
            self.happens(dc, endpoint, event);
        }
        Ok(())
    }

    /// As [`EventLoop::step`], where nobody waits for an answer: a refusal is only logged.
    pub(super) fn happens(&mut self, dc: DcId, endpoint: Endpoint, event: Event<Asker>) {
        if let Err(error) = self.step(dc, endpoint, event) {
            tracing::debug!(%dc, %endpoint, %error, "too late for an endpoint");
        }
    }

    /// Carries one effect out. Returns the events that are known at once, as that a node cannot be reached.
    fn carry_out(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        effect: Effect<Asker>,
        page: &mut Option<ControlWriter>,
    ) -> Vec<Event<Asker>> {
        match effect {
            Effect::EndPage(ending) => self.end_page(dc, endpoint, ending),
            Effect::BeginPage => {
                if let (Some(container), Some(page)) = (self.containers.get_mut(&dc), page.take()) {
                    container.bindings.insert(endpoint, KeptBinding::new(page));
                }
            }
            Effect::Keep => self.keep_binding(dc, endpoint),
            Effect::EndChannel { channel, by, reason } => self.channel_ended(dc, channel, by, reason),
            Effect::LetGo(owner) => self.let_go(owner),
            Effect::SetHold(hold) => self.set_hold(dc, endpoint, hold),
            Effect::TellUnbound { epoch } => self.directory.unbound(dc, endpoint, epoch),
            Effect::Disappears => self.disappeared(dc, endpoint),
            Effect::FailOpens(error) => self.fail_opens(dc, endpoint, error),
            Effect::Answer { asker, result } => self.finish_errand(asker, result),
            Effect::Prepare { to, hold } => return self.prepare(dc, endpoint, to, hold),
            Effect::AskToLeave { nodes, epoch, hold } => {
                let asker = Asker::Migration { dc, endpoint, hold, stage: Stage::Leave };
                let leave = BetweenBrokers::Errand { dc, endpoint, errand: Errand::Leave { epoch } };
                let unreachable =
                    nodes.into_iter().filter(|node| self.send_errand(asker, *node, leave.clone()).is_err());
                return unreachable.map(|node| Event::LeftBy { hold, node }).collect();
            }
            Effect::HandOver { to, epoch, privileges, hold } => {
                let succession = Succession { epoch, privileges };
                return self.hand_over(dc, endpoint, (to, hold), succession).into_iter().collect();
            }
            Effect::TellMoved { nodes, to } => {
                let news = BetweenBrokers::MovedTo { dc, endpoint, to };
                for node in nodes {
                    // The directory tells them too where it is. That it is nowhere nobody else says, so they are asked
                    // until they have heard it.
                    if to.is_some() || self.send_errand(Asker::Nobody, node, news.clone()).is_err() {
                        self.tell_broker(node, &news);
                    }
                }
            }
            Effect::FindAt { node, epoch } => self.is_on(dc, endpoint, node, epoch, Change::HandedOver),
        }
        Vec::new()
    }

    /// Writes into the page why the binding is over. This comes first: whoever is woken later reads it there.
    fn end_page(&mut self, dc: DcId, endpoint: Endpoint, ending: Ending) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        if let Some(kept) = container.bindings.remove(&endpoint) {
            kept.page.set_life(match ending {
                Ending::Dead => Life::Dead,
                Ending::Unreachable => Life::Unreachable,
                Ending::Fenced => Life::Fenced,
                Ending::Moved => Life::Moved,
            });
        }
        container.waits.forget(endpoint);
    }

    fn prepare(&mut self, dc: DcId, endpoint: Endpoint, to: Place, hold: HoldId) -> Vec<Event<Asker>> {
        let Place { node, pid } = to;
        if node == self.node {
            let is_there = self.stands_by(dc, endpoint, pid).ok_or(IpcError::NoSuchEndpoint);
            let result = is_there.map(|_| self.parting(dc, endpoint));
            return vec![Event::Prepared { hold, result }];
        }
        let asker = Asker::Migration { dc, endpoint, hold, stage: Stage::Prepare };
        let prepare = BetweenBrokers::Errand { dc, endpoint, errand: Errand::Prepare { node, pid } };
        let failed = self.send_errand(asker, node, prepare).err();
        failed.map(|error| Event::Prepared { hold, result: Err(error) }).into_iter().collect()
    }

    fn parting(&self, dc: DcId, endpoint: Endpoint) -> Parting {
        let channels = self.containers.get(&dc).map(|container| container.table.channels().of(endpoint));
        let of_channels = channels.into_iter().flatten().filter_map(|channel| channel.proxied);
        Parting {
            here: self.node,
            nodes: of_channels.chain(self.links.met()).collect(),
            privileges: self.privileges_of(dc, endpoint).cloned(),
            room: self.errands.room(),
        }
    }

    fn hand_over(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        (to, hold): (Place, HoldId),
        succession: Succession,
    ) -> Option<Event<Asker>> {
        let Place { node, pid } = to;
        if node == self.node {
            let result = self.take_over(dc, endpoint, pid, succession).map(drop);
            return Some(Event::TakenOver { hold, result });
        }
        let asker = Asker::Migration { dc, endpoint, hold, stage: Stage::TakeOver };
        let sent = match succession {
            Succession { epoch, privileges: Some(privileges) } => {
                let errand = Errand::TakeOver { node, pid, epoch, privileges };
                self.send_errand(asker, node, BetweenBrokers::Errand { dc, endpoint, errand })
            }
            Succession { privileges: None, .. } => Err(IpcError::NoSuchEndpoint),
        };
        sent.err().map(|error| Event::TakenOver { hold, result: Err(error) })
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
        let event = match stage {
            Stage::Prepare => Event::Prepared { hold, result: result.map(|()| self.parting(dc, endpoint)) },
            Stage::Leave => Event::LeftBy { hold, node },
            Stage::TakeOver => Event::TakenOver { hold, result },
        };
        self.happens(dc, endpoint, event);
    }

    /// Takes the binding from a connection whose endpoint has another owner now, and wakes its process: a process that
    /// sleeps does not look at its page.
    fn let_go(&mut self, owner: OwnerId) {
        self.take_bound(owner);
        self.send(owner, &ToPort::Hold);
    }

    fn set_hold(&mut self, dc: DcId, endpoint: Endpoint, hold: u32) {
        if let Some(page) = self.containers.get(&dc).and_then(|container| container.page(endpoint)) {
            page.set_hold(hold);
        }
        if let Some(owner) = self.local_owner(dc, endpoint) {
            self.send(owner, &ToPort::Hold);
        }
    }

    /// Nobody is bound there any more: whoever waited for that goes on.
    fn disappeared(&mut self, dc: DcId, endpoint: Endpoint) {
        let Some(container) = self.containers.get_mut(&dc) else { return };
        for waiter in container.table.waiters_mut().take(endpoint, Awaited::Unbound) {
            self.answer(waiter.owner, waiter.request, &ToPort::Done);
        }
    }

    /// Another node has the endpoint now. `change`: how it came after an owner before.
    pub(super) fn is_on(&mut self, dc: DcId, endpoint: Endpoint, node: NodeId, epoch: Epoch, change: Change) {
        let Some(container) = self.containers.get(&dc) else { return };
        if container.table.judge(endpoint, node, epoch, Told::ByDirectory) == Claim::Refused {
            return;
        }
        if self.is_node_down(node) {
            // It stays unbound here; `link_up` looks again.
            self.happens(dc, endpoint, Event::TransitEnds { error: IpcError::NoLink });
        } else if self.bind_remote(dc, endpoint, node, epoch, Told::ByDirectory, change).is_ok() {
            self.appeared(dc, endpoint);
        }
    }

    pub(super) fn bind_remote(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        node: NodeId,
        epoch: Epoch,
        told: Told,
        change: Change,
    ) -> Result<(), IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let page = match container.table.judge(endpoint, node, epoch, told) {
            Claim::Refused => return Err(IpcError::Fenced),
            Claim::Known => None,
            Claim::New => Some(ControlWriter::stand_in(epoch)?),
        };
        self.step_with(dc, endpoint, Event::IsElsewhere { node, epoch, told, change }, page)
    }

    /// A caller of another node is bound by its first message; its own node's broker made sure of its rights.
    pub(super) fn bind_caller(&mut self, dc: DcId, caller: Endpoint, node: NodeId) -> Result<(), IpcError> {
        if self.is_node_down(node) {
            return Err(IpcError::NoLink);
        }
        if self.home(dc, caller).is_some() {
            return self.step(dc, caller, Event::Speaks { node });
        }
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        let epoch = container.table.highest_epoch(caller);
        self.bind_remote(dc, caller, node, epoch, Told::ByFirstMessage, Change::Promoted)
    }

    /// Its channels may have been the last that kept it.
    pub(super) fn loses_channel(&mut self, dc: DcId, endpoint: Endpoint) {
        self.happens(dc, endpoint, Event::LosesChannel);
    }

    pub(super) fn home(&self, dc: DcId, endpoint: Endpoint) -> Option<Home> {
        Some(self.containers.get(&dc)?.table.binding(endpoint)?.home)
    }
}
