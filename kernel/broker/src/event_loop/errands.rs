//! What concerns one endpoint and is done by the broker of its node: here, or by another broker that is asked.
//!
//! An errand that went to another node is told again whenever the link to it came up, by another pair of proxies when
//! that takes over, and to every new proxy: what was lost on the way is not known. The broker that was asked remembers
//! its last answers, so that an errand that comes again is not done again, unless that broker was replaced: every
//! errand may be done twice. It ends with its answer, with the last link (`NoLink`), or when its asker gives it up. The
//! asker's rights were checked by its own broker; brokers believe each other, as their nodes do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use abi::{DcId, Endpoint, IpcError, NodeId, PairId};
use broker_api::{Answer, BetweenBrokers, Errand, HoldId, Message, ToPort, ToProxy};
use ipc_core::table::{Asking, Home, OwnerId, Place};

use super::proxying::Resolved;
use super::requests::Succession;
use super::{EventLoop, clock_millis};
use crate::limits::{ANSWERS_KEPT, ERRANDS_MAX};

/// Errands under way to other nodes, by the number under which they went.
#[derive(Debug)]
pub(super) struct Errands {
    under_way: BTreeMap<u32, UnderWay>,
    /// Its lower half is the number that was given last.
    last: u64,
    /// Nodes that heard, since they could be reached, that nothing which was held there before is held any more.
    disowned: BTreeSet<NodeId>,
    answered: Answered,
}

/// What other brokers were answered last. An errand that was done may come again when its answer was lost with a link,
/// and by then somebody else may have asked for the opposite.
#[derive(Default, Debug)]
struct Answered(VecDeque<(NodeId, u32, Answer)>);

impl Answered {
    fn keep(&mut self, node: NodeId, request: u32, answer: &Answer) {
        // 0 needs no answer.
        if request == 0 || self.to(node, request).is_some() {
            return;
        }
        if self.0.len() == ANSWERS_KEPT {
            self.0.pop_front();
        }
        self.0.push_back((node, request, answer.clone()));
    }

    fn to(&self, node: NodeId, request: u32) -> Option<&Answer> {
        self.0.iter().find(|(of, number, _)| (*of, *number) == (node, request)).map(|(.., answer)| answer)
    }
}

#[derive(Debug)]
struct UnderWay {
    asker: Asker,
    node: NodeId,
    message: BetweenBrokers,
}

/// Who asked, and is to hear the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// A process of this node.
    Port { owner: OwnerId, request: u32 },
    /// The broker of another node, which is answered over the pair by which it asked: that it looks after. Of one that
    /// holds something for a process, which one it is; else 0.
    Broker { node: NodeId, pair: PairId, request: u32, process: u32 },
    /// This broker, for a step of a migration of its own.
    Migration { dc: DcId, endpoint: Endpoint, hold: HoldId, stage: Stage },
    /// Nobody waits for it; it is to be done all the same.
    Nobody,
}

/// What another broker was asked for the sake of a migration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Prepare,
    Leave,
    TakeOver,
}

impl Asking for Asker {
    fn is_of_same_party(&self, other: &Asker) -> bool {
        self.party() == other.party()
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

impl Errands {
    /// Numbers go on from `first`, the clock's milliseconds, which is ahead of those that a broker of this node gave
    /// before: an answer to one of them, which may come as late as it likes, is none to an errand of ours.
    pub fn numbered_from(first: u64) -> Errands {
        Errands { under_way: BTreeMap::new(), last: first, disowned: BTreeSet::new(), answered: Answered::default() }
    }

    /// The number of the next errand. It keeps up with the clock, so that a successor's numbers come after it however
    /// long this broker runs.
    fn new_number(&mut self, now: u64) -> u32 {
        self.last = now.max(self.last + 1);
        // 0 is the number of what needs no answer.
        self.last += u64::from(self.last as u32 == 0);
        self.last as u32
    }

    pub fn forget(&mut self, owner: OwnerId) {
        self.under_way.retain(|_, errand| !matches!(errand.asker, Asker::Port { owner: of, .. } if of == owner));
    }

    /// How many more there may be.
    pub fn room(&self) -> usize {
        ERRANDS_MAX.saturating_sub(self.under_way.len())
    }

    /// Whether it was under way.
    pub fn cancel(&mut self, owner: OwnerId, request: u32) -> bool {
        let before = self.under_way.len();
        self.under_way.retain(|_, errand| errand.asker != Asker::Port { owner, request });
        self.under_way.len() < before
    }
}

/// How an errand stands that was begun: done, or to be answered later.
pub(super) type Progress = Result<Option<Answer>, IpcError>;

impl EventLoop {
    /// What a process of this node asks: does it, or has it done.
    pub(super) fn ask_errand(
        &mut self,
        (owner, request): (OwnerId, u32),
        dc: DcId,
        own: Endpoint,
        endpoint: Endpoint,
        errand: Errand,
    ) -> Result<(), IpcError> {
        let is_allowed = match errand {
            Errand::GetPrivileges => true,
            Errand::MigrationStart { .. } | Errand::MigrationCommit { .. } | Errand::MigrationRollback => {
                endpoint == own
            }
            _ => false,
        };
        if !is_allowed {
            self.check_manager(dc, own)?;
        }
        if request == 0 {
            return Err(IpcError::BadArgument);
        }
        let asker = Asker::Port { owner, request };
        if let Some(node) = self.place_of_errand(dc, endpoint, &errand)? {
            self.note_holder(owner, dc, endpoint, &errand, node);
            return self.send_errand(asker, node, BetweenBrokers::Errand { dc, endpoint, errand });
        }
        if let Some(answer) = self.do_errand(asker, dc, endpoint, errand)? {
            self.answer_asker(asker, answer);
        }
        Ok(())
    }

    /// The node whose broker has to do it; `None` for this one.
    fn place_of_errand(&mut self, dc: DcId, endpoint: Endpoint, errand: &Errand) -> Result<Option<NodeId>, IpcError> {
        if let Errand::Promote { node, .. } = errand {
            return Ok(Some(*node).filter(|node| *node != self.node));
        }
        if self.containers.get(&dc).is_some_and(|container| container.table.is_migrating(endpoint)) {
            return Ok(None);
        }
        if self.resolve(dc, endpoint)? == Resolved::InTransit {
            return Err(IpcError::Busy);
        }
        match self.home(dc, endpoint) {
            Some(Home::Remote { node }) => Ok(Some(node)),
            _ => Ok(None),
        }
    }

    fn do_errand(&mut self, asker: Asker, dc: DcId, endpoint: Endpoint, errand: Errand) -> Progress {
        match errand {
            Errand::GetPrivileges => {
                let privileges = self.privileges_of(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?.clone();
                Ok(Some(Answer::Privileges { endpoint, privileges }))
            }
            Errand::SetPrivileges { privileges } => {
                self.change_privileges(dc, endpoint, privileges)?;
                Ok(Some(Answer::Done))
            }
            Errand::WakeUp => {
                let owner = self.local_owner(dc, endpoint).ok_or(IpcError::NoSuchEndpoint)?;
                if let Some(page) = self.containers.get(&dc).and_then(|container| container.page(endpoint)) {
                    page.wake_up();
                }
                self.send(owner, &ToPort::WakeUp);
                Ok(Some(Answer::Done))
            }
            Errand::MigrationStart { .. } => self.migration_start(asker, dc, endpoint),
            Errand::MigrationCommit { node, pid } => self.migration_commit(asker, dc, endpoint, Place { node, pid }),
            Errand::MigrationRollback => self.migration_rollback(dc, endpoint),
            Errand::Prepare { pid, .. } => match self.stands_by(dc, endpoint, pid) {
                Some(_) => Ok(Some(Answer::Done)),
                None => Err(IpcError::NoSuchEndpoint),
            },
            Errand::Leave { epoch } => self.leave(asker, dc, endpoint, epoch),
            Errand::TakeOver { pid, epoch, privileges, .. } => {
                self.take_over(dc, endpoint, pid, Succession { epoch, privileges: Some(privileges) })
            }
            Errand::Promote { pid, epoch, .. } => {
                self.take_over(dc, endpoint, pid, Succession { epoch, privileges: None })
            }
        }
    }

    /// `Asker::Port` with a number, or this broker itself.
    pub(super) fn send_errand(&mut self, asker: Asker, node: NodeId, message: BetweenBrokers) -> Result<(), IpcError> {
        if self.is_node_down(node) {
            return Err(IpcError::NoLink);
        }
        if self.errands.room() == 0 {
            return Err(IpcError::TableFull);
        }
        let number = self.errands.new_number(clock_millis());
        self.tell_broker_by(self.links.route(node), node, number, &message);
        self.errands.under_way.insert(number, UnderWay { asker, node, message });
        Ok(())
    }

    /// What came of an errand that was begun.
    pub(super) fn answer_asker(&mut self, asker: Asker, answer: Answer) {
        match asker {
            Asker::Port { owner, request } => self.answer(owner, request, &ToPort::from(answer)),
            Asker::Broker { node, pair, request, .. } => {
                self.errands.answered.keep(node, request, &answer);
                self.answer_broker(node, pair, request, answer);
            }
            Asker::Migration { .. } | Asker::Nobody => {}
        }
    }

    fn answer_broker(&mut self, node: NodeId, pair: PairId, request: u32, answer: Answer) {
        let pair = Some(pair).filter(|pair| self.links.proxy(*pair).is_some()).or(self.links.route(node));
        self.tell_broker_by(pair, node, request, &BetweenBrokers::Answer(answer));
    }

    pub(super) fn finish_errand(&mut self, asker: Asker, result: Result<(), IpcError>) {
        self.answer_asker(asker, result.map_or_else(|error| Answer::Failed { error }, |()| Answer::Done));
    }

    /// Says something to the broker of another node that needs no answer. Without a proxy it is lost.
    pub(super) fn tell_broker(&mut self, node: NodeId, message: &BetweenBrokers) {
        self.tell_broker_by(self.links.route(node), node, 0, message);
    }

    fn tell_broker_by(&mut self, pair: Option<PairId>, node: NodeId, request: u32, message: &BetweenBrokers) {
        if let Some(proxy) = pair.and_then(|pair| self.links.proxy(pair)) {
            self.send(proxy, &ToProxy::Parcel { node, message: message.to_bytes(request) });
        }
    }

    pub(super) fn hear_parcel(&mut self, node: NodeId, pair: PairId, message: &[u8]) {
        let (request, message) = match BetweenBrokers::from_bytes(message) {
            Ok(read) => read,
            Err(error) => return tracing::warn!(%node, %error, "its broker said something that makes no sense"),
        };
        let process = match &message {
            BetweenBrokers::Errand { errand: Errand::MigrationStart { holder }, .. } => *holder,
            _ => 0,
        };
        let asker = Asker::Broker { node, pair, request, process };
        let answered = self.errands.answered.to(node, request).cloned();
        let result = match (message, answered) {
            (BetweenBrokers::Probe { dc, at, probe }, _) => return self.hear_probe(dc, at, &probe),
            (BetweenBrokers::RefuseWait { dc, endpoint, wait }, _) => return self.refuse_wait(dc, endpoint, wait),
            (BetweenBrokers::Answer(answer), _) => return self.errand_done(node, request, answer),
            (_, Some(answer)) => return self.answer_broker(node, pair, request, answer),
            (BetweenBrokers::MovedTo { dc, endpoint, to }, None) => {
                self.hear_moved_to(dc, endpoint, to);
                if request == 0 {
                    return;
                }
                Ok(Some(Answer::Done))
            }
            (BetweenBrokers::DisownHolds, None) => {
                // Perhaps a new broker, whose clock may have been set back.
                self.errands.answered.0.retain(|(of, ..)| *of != node);
                self.roll_back_of(|holder| match holder {
                    Asker::Broker { node: of, request: earlier, .. } => *of == node && is_before(*earlier, request),
                    _ => false,
                });
                Ok(Some(Answer::Done))
            }
            (BetweenBrokers::Errand { dc, endpoint, errand }, None) => self.do_errand(asker, dc, endpoint, errand),
        };
        match result {
            Ok(Some(answer)) => self.answer_asker(asker, answer),
            Ok(None) => {}
            Err(error) => self.finish_errand(asker, Err(error)),
        }
    }

    /// An answer that came twice finds nobody.
    fn errand_done(&mut self, node: NodeId, request: u32, answer: Answer) {
        if self.errands.under_way.get(&request).is_none_or(|errand| errand.node != node) {
            return;
        }
        let Some(errand) = self.errands.under_way.remove(&request) else { return };
        let result = if let Answer::Failed { error } = answer { Err(error) } else { Ok(()) };
        match errand.asker {
            Asker::Migration { dc, endpoint, hold, stage } => {
                self.migration_heard(dc, endpoint, (hold, stage), node, result);
            }
            Asker::Port { owner, .. } if result.is_ok() => {
                if let BetweenBrokers::Errand { dc, endpoint, errand: Errand::MigrationCommit { .. } } = errand.message
                {
                    self.note_handed_over(owner, dc, endpoint, node);
                }
                self.answer_asker(errand.asker, answer);
            }
            asker => self.answer_asker(asker, answer),
        }
    }

    /// To one node, or to all.
    pub(super) fn send_errands_again(&mut self, to: Option<NodeId>) {
        let open = self.errands.under_way.iter().filter(|(_, errand)| to.is_none_or(|node| errand.node == node));
        let messages: Vec<_> = open.map(|(number, errand)| (errand.node, *number, errand.message.clone())).collect();
        for (node, number, message) in messages {
            self.tell_broker_by(self.links.route(node), node, number, &message);
        }
    }

    /// The node can be reached, perhaps for the first time in this broker's life: whatever was held there for a process
    /// of this node before is held no more. This broker has forgotten it, or has taken it for let go when the node was
    /// out of reach.
    pub(super) fn disown_holds(&mut self, node: NodeId) {
        if self.errands.disowned.contains(&node) {
            return;
        }
        if self.send_errand(Asker::Nobody, node, BetweenBrokers::DisownHolds).is_ok() {
            self.errands.disowned.insert(node);
        }
    }

    pub(super) fn end_errands(&mut self, node: NodeId) {
        self.errands.disowned.remove(&node);
        let under_way = std::mem::take(&mut self.errands.under_way);
        let (ended, others): (BTreeMap<u32, UnderWay>, _) =
            under_way.into_iter().partition(|(_, errand)| errand.node == node);
        self.errands.under_way = others;
        for errand in ended.into_values() {
            match errand.asker {
                Asker::Migration { dc, endpoint, hold, stage } => {
                    self.migration_heard(dc, endpoint, (hold, stage), node, Err(IpcError::NoLink));
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
