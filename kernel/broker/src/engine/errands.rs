//! What concerns one endpoint and is done by the broker of its node: here, or by another broker that is asked.
//!
//! An errand that went to another node is told again whenever the link to it came up, by another pair of proxies when that takes
//! over, and to every new proxy: what was lost on the way is not known. Who was asked remembers what it answered last, so that what
//! comes again is not done again, unless its broker was replaced: every errand may be done twice. It ends with its answer, with the
//! last link (`NoLink`), or when its asker gives it up. The asker's rights were checked by its own broker; brokers believe each other, as their nodes do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use abi::{DcId, Endpoint, IpcError, NodeId, PairId, Privileges};
use ipc::protocol::{Op, Packet};
use ipc_core::table::{Home, OwnerId};

use super::{Engine, clock_millis};
use crate::limits::{ANSWERS_KEPT, ERRANDS_MAX};

/// Errands under way to other nodes, by the number under which they went.
#[derive(Debug)]
pub(super) struct Errands {
    under_way: BTreeMap<u32, Errand>,
    /// Its lower half is the number that was given last.
    last: u64,
    /// Nodes that heard, since they could be reached, that nothing which was held there before is held any more.
    disowned: BTreeSet<NodeId>,
    answered: Answered,
}

/// What other brokers were answered last. An errand that was done may come again when its answer was lost with a link, and by then
/// somebody else may have asked for the opposite.
#[derive(Default, Debug)]
struct Answered(VecDeque<Answer>);

#[derive(Debug)]
struct Answer {
    node: NodeId,
    request: u32,
    message: Vec<u8>,
}

impl Answered {
    fn keep(&mut self, node: NodeId, request: u32, message: &[u8]) {
        // 0 needs no answer.
        if request == 0 || self.to(node, request).is_some() {
            return;
        }
        if self.0.len() == ANSWERS_KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Answer { node, request, message: message.to_vec() });
    }

    fn to(&self, node: NodeId, request: u32) -> Option<&[u8]> {
        self.0.iter().find(|it| (it.node, it.request) == (node, request)).map(|it| &it.message[..])
    }
}

#[derive(Debug)]
struct Errand {
    asker: Asker,
    node: NodeId,
    message: Vec<u8>,
}

/// Who asked, and is to hear the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asker {
    /// A process of this node.
    Port { owner: OwnerId, request: u32 },
    /// The broker of another node, which is answered over the pair by which it asked: that it looks after. Of one that holds something for a
    /// process, which one it is; else 0.
    Broker { node: NodeId, pair: PairId, request: u32, process: u32 },
    /// This broker, for a step of a migration of its own.
    Migration { dc: DcId, endpoint: Endpoint, hold: u32, step: Op },
    /// Nobody waits for it; it is to be done all the same.
    Nobody,
}

impl Errands {
    /// Numbers go on from `first`, the clock's milliseconds, which is ahead of those that a broker of this node gave before: an answer to one
    /// of them, which may come as late as it likes, is none to an errand of ours.
    pub fn numbered_from(first: u64) -> Errands {
        Errands { under_way: BTreeMap::new(), last: first, disowned: BTreeSet::new(), answered: Answered::default() }
    }

    /// The number of the next errand. It keeps up with the clock, so that a successor's numbers come after it however long this broker runs.
    fn new_number(&mut self, now: u64) -> u32 {
        self.last = now.max(self.last + 1);
        // 0 is the number of what needs no answer.
        self.last += u64::from(self.last as u32 == 0);
        self.last as u32
    }

    pub fn forget(&mut self, owner: OwnerId) {
        self.under_way.retain(|_, errand| !matches!(errand.asker, Asker::Port { owner: of, .. } if of == owner));
    }

    /// Whether there is room for some more.
    pub fn has_room_for(&self, more: usize) -> bool {
        self.under_way.len() + more <= ERRANDS_MAX
    }

    /// Whether it was under way.
    pub fn cancel(&mut self, owner: OwnerId, request: u32) -> bool {
        let before = self.under_way.len();
        self.under_way.retain(|_, errand| errand.asker != Asker::Port { owner, request });
        self.under_way.len() < before
    }
}

/// The answer to an errand.
pub(super) struct Done {
    packet: Packet,
    body: Vec<u8>,
}

impl Done {
    pub fn plain() -> Done {
        Done { packet: Packet::new(Op::Done), body: Vec::new() }
    }
}

/// How an errand stands that was begun: done, or to be answered later.
pub(super) type Progress = Result<Option<Done>, IpcError>;

impl Engine {
    /// Does it, or has it done.
    pub(super) fn run_errand(
        &mut self,
        owner: OwnerId,
        dc: DcId,
        own: Endpoint,
        packet: Packet,
        body: &[u8],
    ) -> Result<(), IpcError> {
        let endpoint = packet.peer.ok_or(IpcError::BadEndpoint)?;
        let is_of_owner =
            matches!(packet.op, Op::MigrationStart | Op::MigrationCommit | Op::MigrationRollback) && endpoint == own;
        if packet.op != Op::GetPrivileges && !is_of_owner {
            self.check_manager(dc, own)?;
        }
        if packet.request == 0 {
            return Err(IpcError::BadArgument);
        }
        let asker = Asker::Port { owner, request: packet.request };
        let packet = Packet { dc, ..packet };
        if let Some(node) = self.place_of_errand(dc, endpoint, &packet)? {
            self.note_holder(owner, &packet, node);
            // Which process of this node it is that holds.
            let is_start = packet.op == Op::MigrationStart;
            let packet = if is_start { Packet { value: owner.0 as u32, ..packet } } else { packet };
            return self.send_errand(asker, node, packet, body);
        }
        if let Some(Done { packet, body }) = self.do_errand(asker, packet, body)? {
            self.answer_asker(asker, packet, &body);
        }
        Ok(())
    }

    /// The node whose broker has to do it; `None` for this one.
    fn place_of_errand(&mut self, dc: DcId, endpoint: Endpoint, packet: &Packet) -> Result<Option<NodeId>, IpcError> {
        if packet.op == Op::Promote {
            return Ok(Some(packet.node).filter(|node| *node != self.node));
        }
        if self.is_migrating(dc, endpoint) {
            return Ok(None);
        }
        match self.resolve(dc, endpoint) {
            // Handed over at this moment.
            Err(IpcError::Moved) => return Err(IpcError::Busy),
            result => result?,
        }
        match self.home(dc, endpoint) {
            Some(Home::Remote { node }) => Ok(Some(node)),
            _ => Ok(None),
        }
    }

    fn do_errand(&mut self, asker: Asker, packet: Packet, body: &[u8]) -> Progress {
        let dc = packet.dc;
        let endpoint = packet.peer.ok_or(IpcError::BadEndpoint)?;
        match packet.op {
            Op::GetPrivileges => {
                let body = self.privileges_of(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?.to_bytes();
                Ok(Some(Done { packet: Packet { peer: Some(endpoint), ..Packet::new(Op::Privileges) }, body }))
            }
            Op::SetPrivileges => {
                let privileges = Privileges::from_bytes(body).ok_or(IpcError::BadArgument)?;
                self.change_privileges(dc, endpoint, privileges)?;
                Ok(Some(Done::plain()))
            }
            Op::WakeUp => {
                let owner = self.local_owner(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?;
                if let Some(page) = self.containers.get(&dc).and_then(|container| container.pages.get(&endpoint)) {
                    page.wake_up();
                }
                self.send(owner, Packet::new(Op::WakeUp), Vec::new());
                Ok(Some(Done::plain()))
            }
            _ => self.migration_errand(asker, endpoint, &packet, body),
        }
    }

    /// `Asker::Port` with a number, or this broker itself.
    pub(super) fn send_errand(
        &mut self,
        asker: Asker,
        node: NodeId,
        packet: Packet,
        body: &[u8],
    ) -> Result<(), IpcError> {
        if self.is_node_down(node) {
            return Err(IpcError::NoLink);
        }
        if !self.errands.has_room_for(1) {
            return Err(IpcError::TableFull);
        }
        let number = self.errands.new_number(clock_millis());
        let message = Packet { request: number, ..packet }.with_body(body);
        self.tell_broker(node, &message);
        self.errands.under_way.insert(number, Errand { asker, node, message });
        Ok(())
    }

    /// What came of an errand that was begun.
    pub(super) fn answer_asker(&mut self, asker: Asker, packet: Packet, body: &[u8]) {
        match asker {
            Asker::Port { owner, request } => {
                self.send_with_body(owner, Packet { request, ..packet }, body);
            }
            Asker::Broker { node, pair, request, .. } => {
                let message = Packet { request, ..packet }.with_body(body);
                self.errands.answered.keep(node, request, &message);
                self.answer_broker(node, pair, &message);
            }
            Asker::Migration { .. } | Asker::Nobody => {}
        }
    }

    fn answer_broker(&mut self, node: NodeId, pair: PairId, message: &[u8]) {
        let pair = Some(pair).filter(|pair| self.links.proxy(*pair).is_some()).or(self.links.route(node));
        self.tell_broker_by(pair, node, message);
    }

    pub(super) fn finish_errand(&mut self, asker: Asker, result: Result<(), IpcError>) {
        let packet = match result {
            Ok(()) => Packet::new(Op::Done),
            Err(error) => Packet::failed(0, error),
        };
        self.answer_asker(asker, packet, &[]);
    }

    /// Says something to the broker of another node. Without a proxy it is lost.
    pub(super) fn tell_broker(&mut self, node: NodeId, message: &[u8]) {
        self.tell_broker_by(self.links.route(node), node, message);
    }

    fn tell_broker_by(&mut self, pair: Option<PairId>, node: NodeId, message: &[u8]) {
        if let Some(proxy) = pair.and_then(|pair| self.links.proxy(pair)) {
            self.send_with_body(proxy, Packet { node, ..Packet::new(Op::Parcel) }, message);
        }
    }

    pub(super) fn hear_parcel(&mut self, node: NodeId, pair: PairId, message: &[u8]) {
        let Some((packet, body)) = Packet::split(message) else {
            tracing::warn!(%node, "its broker said something that is no packet");
            return;
        };
        let process = if packet.op == Op::MigrationStart { packet.value } else { 0 };
        let asker = Asker::Broker { node, pair, request: packet.request, process };
        let is_errand = !matches!(packet.op, Op::Probe | Op::Refuse | Op::Done | Op::Failed | Op::Privileges);
        if is_errand && let Some(answer) = self.errands.answered.to(node, packet.request).map(<[u8]>::to_vec) {
            return self.answer_broker(node, pair, &answer);
        }
        match packet.op {
            Op::Probe | Op::Refuse => self.hear_chase(&packet, body),
            Op::MovedTo => {
                self.hear_moved_to(&packet);
                if packet.request != 0 {
                    self.finish_errand(asker, Ok(()));
                }
            }
            Op::MigrationRollback if packet.peer.is_none() => {
                // Perhaps a new broker, whose clock may have been set back.
                self.errands.answered.0.retain(|it| it.node != node);
                self.roll_back_of(|holder| match holder {
                    Asker::Broker { node: of, request, .. } => *of == node && is_before(*request, packet.request),
                    _ => false,
                });
                self.finish_errand(asker, Ok(()));
            }
            Op::Done | Op::Failed | Op::Privileges => self.errand_done(node, packet, body),
            _ => match self.do_errand(asker, packet, body) {
                Ok(Some(Done { packet, body })) => self.answer_asker(asker, packet, &body),
                Ok(None) => {}
                Err(error) => self.finish_errand(asker, Err(error)),
            },
        }
    }

    /// An answer that came twice finds nobody.
    fn errand_done(&mut self, node: NodeId, packet: Packet, body: &[u8]) {
        let is_asked = self.errands.under_way.get(&packet.request).is_some_and(|errand| errand.node == node);
        if is_asked && let Some(errand) = self.errands.under_way.remove(&packet.request) {
            let result = if packet.op == Op::Failed { Err(packet.error()) } else { Ok(()) };
            match errand.asker {
                Asker::Migration { dc, endpoint, hold, step } => {
                    self.migration_heard(dc, endpoint, (hold, step), node, result);
                }
                Asker::Port { owner, .. } if result.is_ok() => {
                    if let Some((asked, _)) = Packet::split(&errand.message) {
                        self.note_handed_over(owner, &asked, node);
                    }
                    self.answer_asker(errand.asker, packet, body);
                }
                asker => self.answer_asker(asker, packet, body),
            }
        }
    }

    /// To one node, or to all.
    pub(super) fn send_errands_again(&mut self, to: Option<NodeId>) {
        let open = self.errands.under_way.values().filter(|errand| to.is_none_or(|node| errand.node == node));
        let messages: Vec<_> = open.map(|errand| (errand.node, errand.message.clone())).collect();
        for (node, message) in messages {
            self.tell_broker(node, &message);
        }
    }

    /// The node can be reached, perhaps for the first time in this broker's life: whatever was held there for a process of this node before is
    /// held no more. This broker has forgotten it, or has taken it for let go when the node was out of reach.
    pub(super) fn disown_holds(&mut self, node: NodeId) {
        if self.errands.disowned.contains(&node) {
            return;
        }
        let all = Packet::new(Op::MigrationRollback);
        if self.send_errand(Asker::Nobody, node, all, &[]).is_ok() {
            self.errands.disowned.insert(node);
        }
    }

    pub(super) fn end_errands(&mut self, node: NodeId) {
        self.errands.disowned.remove(&node);
        let under_way = std::mem::take(&mut self.errands.under_way);
        let (ended, others): (BTreeMap<u32, Errand>, _) =
            under_way.into_iter().partition(|(_, errand)| errand.node == node);
        self.errands.under_way = others;
        for errand in ended.into_values() {
            match errand.asker {
                Asker::Migration { dc, endpoint, hold, step } => {
                    self.migration_heard(dc, endpoint, (hold, step), node, Err(IpcError::NoLink));
                }
                asker => self.finish_errand(asker, Err(IpcError::NoLink)),
            }
        }
    }
}

/// Whether an errand was sent before another one of the same node.
fn is_before(one: u32, other: u32) -> bool {
    (1..=u32::MAX / 2).contains(&other.wrapping_sub(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_successor_come_after_those_of_a_broker_that_ran_for_a_month() {
        const MONTH: u64 = 30 * 24 * 3600 * 1000;
        for start in [1, u64::from(u32::MAX) - 3, 1_795_000_000_000] {
            let mut errands = Errands::numbered_from(start);
            errands.new_number(start);
            let last = errands.new_number(start + MONTH);
            // In the same millisecond, and when the clock is set back.
            let more = [0, 1000].map(|back| errands.new_number(start + MONTH - back));
            let successor = Errands::numbered_from(start + MONTH + 100).new_number(start + MONTH + 100);
            for (earlier, later) in [(last, more[0]), (more[0], more[1]), (more[1], successor)] {
                assert!(is_before(earlier, later), "{earlier} {later}");
            }
        }
        assert_eq!(Errands::numbered_from(u64::from(u32::MAX)).new_number(0), 1);
    }
}
