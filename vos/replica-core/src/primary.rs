//! The primary of an epoch: when a write is acknowledged, who leaves and comes back, how it takes over.
//!
//! At most one write or copy is under way for each block, and a read waits for it: so the order in which a member does
//! what it was told does not matter, and saying it again does no harm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::encoding::CopyState;
use crate::lease::{Lease, TERM_MS};
use crate::message::{Recent, ReplicaAnswer, ReplicaMessage};
use crate::record::{CopyMark, CopyVerdict, Replica, ReplicaRecord, ReplicaStanding, judge};
use crate::verify::Comparison;
use crate::{BlockRange, Extent, Layout, RangeSet};

/// So long a current member may be away before it is left behind.
pub const AWAY_MS: u64 = 300;
/// When no client has asked for so long, nobody is asked for leases: the next one who asks waits for them.
const IDLE_MS: u64 = 1000;
/// Copies under way to each member that catches up, and blocks of each.
const COPIES: usize = 8;
const COPY_BLOCKS: u32 = 64;

/// What a client asks; `id` names it in the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskRequest<D> {
    Read {
        range: BlockRange,
    },
    Write {
        range: BlockRange,
        data: D,
        /// Answered when it survives loss of power, with all that was acknowledged before.
        durable: bool,
    },
    /// All that was acknowledged before survives loss of power.
    Flush,
    /// How long nobody else is primary.
    Hold,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskReply {
    Written,
    /// There is no room for it: of these blocks each is as before or as it was to be, and the same on all copies.
    Refused,
    Flushed,
    /// Not before so much time has passed since it was *asked*.
    Held {
        for_ms: u64,
    },
}

/// What became of a proposed record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decided {
    Accepted,
    /// It was another one already: this. Also said when somebody else changed it, and nothing was proposed.
    Conflict(ReplicaRecord),
}

/// What a primary wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrimaryAct<D> {
    Send(Replica, ReplicaMessage<D>),
    /// The block is read from the own copy and sent with that number, now.
    Copy {
        to: Replica,
        seq: u64,
        range: BlockRange,
    },
    /// The block is read from the own copy for a client, now.
    Read {
        id: u64,
        range: BlockRange,
    },
    Reply {
        id: u64,
        reply: DiskReply,
    },
    /// To the engine, in place of the record it is known to have.
    Propose(ReplicaRecord),
    /// Another one has that epoch. Nothing is done any more.
    Over {
        epoch: u32,
    },
    /// This member should be primary instead: it knows more. Nothing is done any more.
    Better(Replica),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Leases that it granted have not run out.
    WaitsOut {
        until_ms: u64,
    },
    Gathers {
        until_ms: u64,
    },
    /// Copies what members may have differently.
    Settles,
    /// Flushes it.
    Seals,
    Serves,
    Over,
}

#[derive(Clone, Debug)]
enum Kind<D> {
    Write {
        id: u64,
        range: BlockRange,
        data: D,
        /// Of one that is to be durable: up to where every write is, with it.
        covers: Option<u64>,
    },
    /// `refuses`: the write of a client that the own copy had no room for.
    Copy { range: BlockRange, refuses: Option<u64> },
    /// Members say what they have.
    Sum { range: BlockRange },
    /// Of a client, or its own. Every write up to `covers` was accepted when it began; 0 where only a member that
    /// catches up flushes.
    Flush { id: Option<u64>, covers: u64 },
}

#[derive(Clone, Debug)]
struct CopyOperation<D> {
    kind: Kind<D>,
    /// Current members that have not answered.
    awaits: BTreeSet<Replica>,
    /// Others that have not; nobody waits for them.
    also: BTreeSet<Replica>,
    is_replied: bool,
    /// The own copy has no room for it.
    is_refused: bool,
}

impl<D> CopyOperation<D> {
    fn new(kind: Kind<D>, awaits: BTreeSet<Replica>, also: BTreeSet<Replica>) -> CopyOperation<D> {
        CopyOperation { kind, awaits, also, is_replied: false, is_refused: false }
    }
}

/// What it knows of a member.
#[derive(Clone, Debug, Default)]
struct Peer {
    is_up: bool,
    /// Of a link that is not there, or over which it was not welcome.
    away_since_ms: Option<u64>,
    is_lost: bool,
    welcome: Option<Welcome>,
    lease: Lease,
    catches_up: Option<CatchUp>,
    /// Of a member that was all zeros when it was welcome: where the own copy was not.
    lacks: Option<RangeSet>,
}

#[derive(Clone, Debug)]
struct Welcome {
    mark: Option<CopyMark>,
    is_doubtful: bool,
    recent: RangeSet,
    hot: BTreeSet<Extent>,
    behind: BTreeMap<Replica, RangeSet>,
}

#[derive(Clone, Debug, Default)]
struct CatchUp {
    /// Of its mark meanwhile.
    generation: u64,
    /// It is marked as no whole one.
    is_begun: bool,
    todo: RangeSet,
    seal: Seal,
}

/// How far it is with becoming current, when all is copied. Nothing is written meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Seal {
    #[default]
    Open,
    /// It is told what others miss: once it is current it may have to know alone.
    Told,
    /// It knows.
    Knows,
    /// It flushes, and grants a lease: what others were promised without it is over before it may be primary.
    Flushes(u64),
    Proposed,
}

#[derive(Debug)]
pub struct Primary<D> {
    me: Replica,
    layout: Layout,
    record: ReplicaRecord,
    phase: Phase,
    peers: BTreeMap<Replica, Peer>,
    operations: BTreeMap<u64, CopyOperation<D>>,
    held: VecDeque<(u64, DiskRequest<D>)>,
    /// When a client asked last.
    asked_ms: u64,
    next_seq: u64,
    /// Every write up to it is durable on all current members.
    flushed: u64,
    /// Extents with writes that are not, by the last one.
    hot: BTreeMap<Extent, u64>,
    behind: BTreeMap<Replica, RangeSet>,
    proposal: Option<ReplicaRecord>,
    /// Of the copies, which people asked for.
    comparison: Option<Comparison>,
    /// Members that left while this one served: what they may have otherwise than the others is known without them.
    left_here: BTreeSet<Replica>,
    /// Members whose mark of the record's generation is not there yet: nothing is acknowledged meanwhile.
    marking: BTreeSet<Replica>,
}

impl<D: Clone> Primary<D> {
    /// `record` says that it is. `promised_until_ms`: of its own backup.
    pub fn begin(layout: Layout, record: ReplicaRecord, promised_until_ms: u64) -> Primary<D> {
        let peers = record.members.keys().map(|member| (*member, Peer::default())).collect();
        Primary {
            me: record.primary,
            layout,
            phase: Phase::WaitsOut { until_ms: promised_until_ms },
            record,
            peers,
            operations: BTreeMap::new(),
            held: VecDeque::new(),
            asked_ms: 0,
            next_seq: 1,
            flushed: 0,
            hot: BTreeMap::new(),
            behind: BTreeMap::new(),
            proposal: None,
            comparison: None,
            left_here: BTreeSet::new(),
            marking: BTreeSet::new(),
        }
    }

    pub fn epoch(&self) -> u32 {
        self.record.epoch
    }

    pub fn record(&self) -> &ReplicaRecord {
        &self.record
    }

    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serves
    }

    /// Whether time alone changes nothing.
    pub fn is_quiet(&self, now_ms: u64) -> bool {
        let is_settled = |one: (&Replica, &Peer)| {
            let (member, peer) = one;
            peer.catches_up.is_none() && (peer.away_since_ms.is_none() || !self.record.is_current(*member))
        };
        self.phase == Phase::Serves
            && self.is_idle(now_ms)
            && self.operations.is_empty()
            && self.proposal.is_none()
            && self.marking.is_empty()
            && self.comparison.is_none()
            && self.record.leaving.iter().all(|member| !self.record.members.contains_key(member))
            && self.peers.iter().all(is_settled)
    }

    /// Whether somebody would wait for it if it stood still.
    pub fn is_waited_for(&self, member: Replica) -> bool {
        self.record.is_current(member) || self.takes_part(member)
    }

    fn is_idle(&self, now_ms: u64) -> bool {
        self.held.is_empty() && now_ms.saturating_sub(self.asked_ms) >= IDLE_MS
    }

    // ---- what happens

    /// There is a link to a member, a new one perhaps. The own copy has one too.
    pub fn link_up(&mut self, member: Replica, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        self.lose_link(member, now_ms);
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.is_up = true;
            peer.is_lost = false;
            if !matches!(self.phase, Phase::WaitsOut { .. } | Phase::Over) {
                acts.push(PrimaryAct::Send(member, ReplicaMessage::Hello));
            }
        }
        self.go_on(now_ms, &mut acts);
        acts
    }

    pub fn link_down(&mut self, member: Replica, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        self.lose_link(member, now_ms);
        self.go_on(now_ms, &mut acts);
        acts
    }

    /// The cluster has decided that its node is gone, which it may come back from.
    pub fn lost(&mut self, member: Replica, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        self.lose_link(member, now_ms);
        if let Some(peer) = self.peers.get_mut(&member) {
            peer.is_lost = true;
        }
        self.go_on(now_ms, &mut acts);
        acts
    }

    pub fn tick(&mut self, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        self.go_on(now_ms, &mut acts);
        acts
    }

    pub fn ask(&mut self, id: u64, request: DiskRequest<D>, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        self.asked_ms = now_ms;
        self.held.push_back((id, request));
        self.go_on(now_ms, &mut acts);
        acts
    }

    pub fn decided(&mut self, decided: Decided, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        let record = match (decided, self.proposal.take()) {
            (Decided::Accepted, Some(proposed)) => proposed,
            (Decided::Accepted, None) => return acts,
            (Decided::Conflict(record), _) => {
                self.unseal();
                record
            }
        };
        if record.epoch > self.record.epoch {
            self.end(PrimaryAct::Over { epoch: record.epoch }, &mut acts);
            return acts;
        }
        self.adopt(record, now_ms, &mut acts);
        self.go_on(now_ms, &mut acts);
        acts
    }

    pub fn answered(&mut self, member: Replica, answer: ReplicaAnswer, now_ms: u64) -> Vec<PrimaryAct<D>> {
        let mut acts = Vec::new();
        if self.phase == Phase::Over || !self.peers.get(&member).is_some_and(|peer| peer.is_up) {
            return acts;
        }
        match answer {
            ReplicaAnswer::Outdated { epoch } => {
                self.end(PrimaryAct::Over { epoch }, &mut acts);
                return acts;
            }
            ReplicaAnswer::Welcome(CopyState { mark, is_doubtful, is_blank: _, recent, hot, behind }) => {
                let recent = match recent {
                    Recent::Blocks(blocks) => blocks,
                    Recent::Extents(extents) => {
                        let mut blocks = RangeSet::default();
                        extents.iter().for_each(|extent| blocks.extend(&self.layout.blocks_of(*extent)));
                        blocks
                    }
                };
                // Nobody makes it copy what the disk does not have.
                let (recent, extents) = (recent.below(self.layout.blocks), self.layout.extents());
                let hot = hot.into_iter().filter(|extent| extent.0 < extents).collect();
                let behind = behind.into_iter().map(|(of, missing)| (of, missing.below(extents))).collect();
                self.welcomed(member, Welcome { mark, is_doubtful, recent, hot, behind }, &mut acts);
            }
            ReplicaAnswer::Accepted { seq } | ReplicaAnswer::Durable { seq } => {
                if let Some(operation) = self.operations.get_mut(&seq) {
                    operation.awaits.remove(&member);
                    operation.also.remove(&member);
                }
            }
            // Another one that has no room is as good as away: whoever has its link ends that.
            ReplicaAnswer::NoRoom { seq } => {
                if let Some(operation) = self.operations.get_mut(&seq).filter(|_| member == self.me) {
                    operation.awaits.remove(&member);
                    operation.is_refused = true;
                }
            }
            ReplicaAnswer::Sums { seq, sums } => {
                if let Some(operation) = self.operations.get_mut(&seq)
                    && operation.awaits.remove(&member)
                    && let Some(comparison) = &mut self.comparison
                {
                    comparison.heard(member, sums);
                }
            }
            ReplicaAnswer::Marked { generation, whole: true } => {
                if generation == self.record.generation {
                    self.marking.remove(&member);
                }
            }
            ReplicaAnswer::Marked { whole: false, .. } => self.begin_copies(member),
            ReplicaAnswer::Granted { asked_ms } => {
                if let Some(peer) = self.peers.get_mut(&member) {
                    peer.lease.granted(asked_ms);
                }
            }
        }
        self.go_on(now_ms, &mut acts);
        acts
    }

    /// Said before its welcome is: it is blank, and the own copy has data nowhere but in these extents.
    pub fn is_blank(&mut self, member: Replica, data: RangeSet) {
        if let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.welcome.is_none()) {
            peer.lacks = Some(data);
        }
    }

    // ---- members

    fn lose_link(&mut self, member: Replica, now_ms: u64) {
        let Some(peer) = self.peers.get_mut(&member) else { return };
        peer.is_up = false;
        peer.welcome = None;
        peer.catches_up = None;
        peer.lacks = None;
        peer.away_since_ms.get_or_insert(now_ms);
        for operation in self.operations.values_mut() {
            operation.also.remove(&member);
        }
    }

    fn welcomed(&mut self, member: Replica, welcome: Welcome, acts: &mut Vec<PrimaryAct<D>>) {
        let verdict = judge(&self.record, member, welcome.mark.as_ref());
        let is_current = self.record.is_current(member);
        let is_sound = matches!(verdict, CopyVerdict::Current | CopyVerdict::Lagging) && !welcome.is_doubtful;
        let Some(peer) = self.peers.get_mut(&member) else { return };
        // Once over each link: what is under way is said again once.
        if peer.welcome.is_some() {
            return;
        }
        peer.welcome = Some(welcome);
        if is_current && is_sound {
            peer.away_since_ms = None;
            // What it was told before and has not answered.
            self.say_again(member, acts);
        }
    }

    fn say_again(&self, member: Replica, acts: &mut Vec<PrimaryAct<D>>) {
        for (seq, operation) in self.operations.iter().filter(|one| one.1.awaits.contains(&member)) {
            self.say(member, *seq, &operation.kind, acts);
        }
        if self.marking.contains(&member) {
            acts.push(PrimaryAct::Send(member, self.mark()));
        }
    }

    fn say(&self, member: Replica, seq: u64, kind: &Kind<D>, acts: &mut Vec<PrimaryAct<D>>) {
        match kind {
            Kind::Write { range, data, covers, .. } => {
                let (range, data, durable) = (*range, data.clone(), covers.is_some());
                let (floor, flushed) = (self.floor(), self.flushed);
                let write = ReplicaMessage::Write { seq, floor, flushed, range, data, durable };
                acts.push(PrimaryAct::Send(member, write));
            }
            Kind::Copy { range, .. } => acts.push(PrimaryAct::Copy { to: member, seq, range: *range }),
            Kind::Flush { .. } => acts.push(PrimaryAct::Send(member, ReplicaMessage::Flush { seq })),
            Kind::Sum { range } => acts.push(PrimaryAct::Send(member, ReplicaMessage::Sum { seq, range: *range })),
        }
    }

    fn mark(&self) -> ReplicaMessage<D> {
        ReplicaMessage::Mark { generation: self.record.generation, whole: true, behind: self.behind.clone() }
    }

    /// Every write below it is accepted by all.
    fn floor(&self) -> u64 {
        let pending = |one: &(&u64, &CopyOperation<D>)| {
            let is_pending = !one.1.awaits.is_empty() || one.1.is_refused;
            matches!(one.1.kind, Kind::Write { .. } | Kind::Copy { .. }) && is_pending
        };
        self.operations.iter().find(pending).map_or(self.next_seq, |one| *one.0)
    }

    /// The record is this one now.
    fn adopt(&mut self, record: ReplicaRecord, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        if record.generation == self.record.generation {
            // Nothing else can be other.
            self.record.verification = record.verification;
            return;
        }
        if record.generation < self.record.generation {
            return;
        }
        if !record.is_current(self.me) {
            return self.end(PrimaryAct::Over { epoch: record.epoch }, acts);
        }
        let is_member = |member: &Replica| record.members.contains_key(member);
        self.peers.retain(|member, _| is_member(member));
        self.behind.retain(|member, _| is_member(member));
        self.left_here.retain(is_member);
        self.operations.values_mut().for_each(|operation| operation.also.retain(is_member));
        let left = self.record.current().filter(|member| is_member(member) && !record.is_current(*member));
        let left: Vec<Replica> = left.collect();
        let joined: Vec<Replica> = record.current().filter(|member| !self.record.is_current(*member)).collect();
        self.record = record;
        for member in self.record.members.keys() {
            self.peers.entry(*member).or_insert_with(|| Peer { away_since_ms: Some(now_ms), ..Peer::default() });
        }
        // What is under way now may be on no copy yet.
        for member in self.record.behind().filter(|member| !left.contains(member)) {
            let hot = &self.hot;
            self.behind.entry(member).or_insert_with(|| hot.keys().map(|extent| extent.0).collect());
        }
        for member in left {
            let missing = self.behind.entry(member).or_default();
            // It had what all had, but for what is not flushed.
            missing.insert_extents(self.hot.keys());
            if self.phase == Phase::Serves {
                self.left_here.insert(member);
            }
            if let Some(peer) = self.peers.get_mut(&member) {
                peer.lease = Lease::default();
                let welcome = peer.welcome.iter().filter(|_| self.phase != Phase::Serves);
                missing.insert_extents(welcome.flat_map(|welcome| &welcome.hot));
            }
        }
        for member in joined {
            self.behind.remove(&member);
            self.left_here.remove(&member);
            if let Some(peer) = self.peers.get_mut(&member) {
                (peer.catches_up, peer.lacks) = (None, None);
                // What it says when it is greeted again may be of before.
                peer.away_since_ms = (!peer.is_up || peer.welcome.is_none()).then_some(now_ms);
            }
        }
        let is_wanted = |it: &Comparison| it.goes_on(self.record.verification.as_ref());
        self.comparison = self.comparison.take().filter(is_wanted);
        if let Some(comparison) = &mut self.comparison {
            comparison.keep_to(self.record.current());
        }
        self.unseal();
        if matches!(self.phase, Phase::Serves) {
            self.mark_all(acts);
        }
    }

    /// Who is about to become current begins again with that.
    fn unseal(&mut self) {
        let waiting = self.peers.values_mut().filter_map(|peer| peer.catches_up.as_mut());
        waiting.for_each(|catches_up| catches_up.seal = Seal::Open);
    }

    fn mark_all(&mut self, acts: &mut Vec<PrimaryAct<D>>) {
        self.marking = self.record.current().collect();
        let message = self.mark();
        for member in self.marking.iter().filter(|member| self.takes_part(**member)) {
            acts.push(PrimaryAct::Send(*member, message.clone()));
        }
    }

    /// It is here, with all that it had. What somebody answers who lost something is worth nothing.
    fn takes_part(&self, member: Replica) -> bool {
        self.peers.get(&member).is_some_and(|peer| {
            let catches_up = peer.catches_up.as_ref().is_some_and(|it| it.is_begun);
            let is_sound = peer.welcome.is_some() && peer.away_since_ms.is_none();
            peer.is_up && if self.record.is_current(member) { is_sound } else { catches_up }
        })
    }

    fn current(&self) -> BTreeSet<Replica> {
        self.record.current().collect()
    }

    // ---- what follows

    fn end(&mut self, act: PrimaryAct<D>, acts: &mut Vec<PrimaryAct<D>>) {
        self.phase = Phase::Over;
        self.operations.clear();
        self.held.clear();
        acts.push(act);
    }

    fn go_on(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        match self.phase {
            Phase::Over => return,
            Phase::WaitsOut { until_ms } if now_ms >= until_ms => {
                self.phase = Phase::Gathers { until_ms: now_ms + AWAY_MS };
                for (member, peer) in &mut self.peers {
                    match peer.is_up {
                        true => acts.push(PrimaryAct::Send(*member, ReplicaMessage::Hello)),
                        false => peer.away_since_ms = Some(now_ms),
                    }
                }
            }
            Phase::WaitsOut { .. } => return,
            Phase::Gathers { until_ms } => self.gather(until_ms, now_ms, acts),
            Phase::Settles | Phase::Seals | Phase::Serves => {}
        }
        self.complete(acts);
        self.leave_behind(now_ms, acts);
        match self.phase {
            Phase::Settles if self.operations.is_empty() => {
                self.phase = Phase::Seals;
                self.start(Kind::Flush { id: None, covers: self.next_seq - 1 }, acts);
            }
            Phase::Seals if self.operations.is_empty() && self.marking.is_empty() => {
                self.phase = Phase::Serves;
                self.mark_all(acts);
            }
            _ => {}
        }
        if self.phase == Phase::Serves {
            self.catch_up(now_ms, acts);
            self.compare(now_ms, acts);
            self.ask_leases(now_ms, acts);
            self.admit(now_ms, acts);
        }
    }

    /// Every current member is there, or has left.
    fn gather(&mut self, until_ms: u64, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        let Some(own) = self.peers.get(&self.me).and_then(|peer| peer.welcome.as_ref()) else { return };
        let own_generation = own.mark.map_or(0, |mark| mark.generation);
        let is_sure =
            matches!(judge(&self.record, self.me, own.mark.as_ref()), CopyVerdict::Current) && !own.is_doubtful;
        let others: Vec<Replica> = self.record.current().filter(|member| *member != self.me).collect();
        let welcome = |member: &Replica| self.peers.get(member).and_then(|peer| peer.welcome.as_ref());
        let is_unproven = |welcome: &Welcome| !welcome.mark.is_some_and(|mark| mark.whole);
        if !is_sure {
            let knows_more = |member: &&Replica| {
                welcome(member).is_some_and(|other| {
                    let generation = other.mark.map_or(0, |mark| mark.generation);
                    let is_proven = !is_unproven(other);
                    is_proven && (generation, !other.is_doubtful) > (own_generation, !own.is_doubtful)
                })
            };
            if let Some(better) = others.iter().find(knows_more) {
                return self.end(PrimaryAct::Better(*better), acts);
            }
            // Somebody who is away may know more, for however long; only people can say that it will not come back.
            if !others.iter().all(|member| welcome(member).is_some()) {
                return;
            }
        }
        let is_sound = |member: &Replica| {
            welcome(member).is_some_and(|other| {
                let is_as_sure = !other.is_doubtful || own.is_doubtful;
                let verdict = judge(&self.record, *member, other.mark.as_ref());
                let is_as_new = other.mark.is_some_and(|mark| mark.generation >= own_generation);
                is_as_sure && is_as_new && matches!(verdict, CopyVerdict::Current | CopyVerdict::Lagging)
            })
        };
        let unsound: Vec<Replica> = others.iter().copied().filter(|member| !is_sound(member)).collect();
        if unsound.is_empty() {
            return self.settle(acts);
        }
        let is_heard =
            |member: &Replica| welcome(member).is_some() || self.peers.get(member).is_some_and(|peer| peer.is_lost);
        if self.proposal.is_none() && (now_ms >= until_ms || unsound.iter().all(is_heard)) {
            self.propose(self.record.without(&unsound), acts);
        }
    }

    /// All current members are here.
    fn settle(&mut self, acts: &mut Vec<PrimaryAct<D>>) {
        let current = self.current();
        let welcomes: Vec<&Welcome> =
            current.iter().filter_map(|member| self.peers.get(member)?.welcome.as_ref()).collect();
        let hot: BTreeSet<Extent> = welcomes.iter().flat_map(|welcome| welcome.hot.iter().copied()).collect();
        let mut recent = RangeSet::default();
        welcomes.iter().for_each(|welcome| recent.extend(&welcome.recent));
        // Who is in no map left in this moment: nothing was acknowledged without it but what is in an activity log.
        for member in self.record.behind() {
            let missing = self.behind.entry(member).or_default();
            missing.insert_extents(&hot);
            welcomes.iter().filter_map(|welcome| welcome.behind.get(&member)).for_each(|more| missing.extend(more));
        }
        for member in current {
            if let Some(peer) = self.peers.get_mut(&member) {
                peer.away_since_ms = (!peer.is_up).then_some(0);
            }
        }
        self.phase = Phase::Settles;
        if self.record.current().count() > 1 {
            while let Some(range) = recent.first_beside(&RangeSet::default(), COPY_BLOCKS) {
                recent.remove(range.first, range.end());
                self.start(Kind::Copy { range, refuses: None }, acts);
            }
        }
    }

    /// Begins what all current members have to do.
    fn start(&mut self, kind: Kind<D>, acts: &mut Vec<PrimaryAct<D>>) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        let mut awaits = self.current();
        let mut also = BTreeSet::new();
        match &kind {
            // The own copy is what is copied.
            Kind::Copy { .. } => _ = awaits.remove(&self.me),
            Kind::Write { range, .. } => {
                for extent in self.layout.extents_of(*range) {
                    self.hot.insert(extent, seq);
                    self.behind.values_mut().for_each(|missing| missing.insert_one(extent.0));
                }
                also.extend(self.catching_up());
            }
            Kind::Flush { .. } | Kind::Sum { .. } => {}
        }
        self.begin_operation(seq, CopyOperation::new(kind, awaits, also), acts);
        seq
    }

    /// Members that are behind and hear of every write.
    fn catching_up(&self) -> Vec<Replica> {
        let takes = |peer: &Peer| peer.catches_up.as_ref().is_some_and(|it| it.is_begun);
        self.peers.iter().filter(|one| takes(one.1)).map(|one| *one.0).collect()
    }

    fn begin_operation(&mut self, seq: u64, operation: CopyOperation<D>, acts: &mut Vec<PrimaryAct<D>>) {
        let kind = operation.kind.clone();
        let members: Vec<Replica> = operation.awaits.union(&operation.also).copied().collect();
        self.operations.insert(seq, operation);
        for member in members.into_iter().filter(|member| self.takes_part(*member)) {
            self.say(member, seq, &kind, acts);
        }
    }

    /// What is done is answered, and forgotten.
    fn complete(&mut self, acts: &mut Vec<PrimaryAct<D>>) {
        let is_marking = !self.marking.is_empty();
        let current = self.current();
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for (seq, operation) in &mut self.operations {
            if is_marking {
                break;
            }
            // Who left with the record is waited for no more, now that all marks say so.
            operation.awaits.retain(|member| current.contains(member));
            if !operation.awaits.is_empty() {
                continue;
            }
            if operation.is_refused
                && let Kind::Write { id, range, .. } = operation.kind
            {
                if operation.also.is_empty() {
                    refused.push((*seq, id, range));
                }
                continue;
            }
            if !std::mem::replace(&mut operation.is_replied, true) {
                match operation.kind {
                    Kind::Write { id, covers, .. } => {
                        self.flushed = self.flushed.max(covers.unwrap_or(0));
                        acts.push(PrimaryAct::Reply { id, reply: DiskReply::Written });
                    }
                    Kind::Flush { id, covers } => {
                        self.flushed = self.flushed.max(covers);
                        acts.extend(id.map(|id| PrimaryAct::Reply { id, reply: DiskReply::Flushed }));
                    }
                    Kind::Copy { refuses, .. } => {
                        acts.extend(refuses.map(|id| PrimaryAct::Reply { id, reply: DiskReply::Refused }));
                    }
                    Kind::Sum { .. } => {}
                }
            }
            if operation.also.is_empty() {
                done.push(*seq);
            }
        }
        for seq in done {
            self.operations.remove(&seq);
        }
        // Others had room for it: they get what the own copy has, which is what readers see. Under the same number, and
        // still refused: until then it is one that members may have differently.
        for (seq, id, range) in refused {
            let (mut awaits, also): (_, BTreeSet<Replica>) =
                (current.clone(), self.catching_up().into_iter().collect());
            awaits.remove(&self.me);
            if awaits.is_empty() && also.is_empty() {
                self.operations.remove(&seq);
                acts.push(PrimaryAct::Reply { id, reply: DiskReply::Refused });
                continue;
            }
            let copied = CopyOperation::new(Kind::Copy { range, refuses: Some(id) }, awaits, also);
            self.begin_operation(seq, CopyOperation { is_refused: true, ..copied }, acts);
        }
        let flushed = self.flushed;
        self.hot.retain(|_, last| *last > flushed);
    }

    /// Who is away for too long, or came back without what it had.
    fn leave_behind(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        if self.proposal.is_some() || !matches!(self.phase, Phase::Settles | Phase::Seals | Phase::Serves) {
            return;
        }
        let is_gone = |member: &Replica| {
            let Some(peer) = self.peers.get(member) else { return true };
            let is_late = peer.away_since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) >= AWAY_MS);
            let is_unsound = peer.is_up
                && peer.welcome.as_ref().is_some_and(|welcome| {
                    let verdict = judge(&self.record, *member, welcome.mark.as_ref());
                    !matches!(verdict, CopyVerdict::Current | CopyVerdict::Lagging) || welcome.is_doubtful
                });
            let joins = self.marking.contains(member) && peer.is_up && !is_late;
            peer.is_lost || is_late || (is_unsound && peer.away_since_ms.is_some() && !joins)
        };
        let gone: Vec<Replica> = self.record.current().filter(|member| *member != self.me && is_gone(member)).collect();
        if !gone.is_empty() {
            return self.propose(self.record.without(&gone), acts);
        }
        if self.phase == Phase::Serves
            && let Some(next) = self.record.leaving.iter().find_map(|member| self.record.left_by(*member))
        {
            self.propose(next, acts);
        }
    }

    fn propose(&mut self, record: ReplicaRecord, acts: &mut Vec<PrimaryAct<D>>) {
        self.proposal = Some(record.clone());
        acts.push(PrimaryAct::Propose(record));
    }

    fn ask_leases(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        // Who catches up is asked so that it is known to be there: what is under way to it others wait for.
        let mut others = self.joining();
        others.extend(self.catching_up());
        if !self.is_idle(now_ms) || self.comparison.is_some() {
            others.extend(self.record.current().filter(|member| *member != self.me));
        }
        for member in others {
            if self.takes_part(member)
                && let Some(peer) = self.peers.get_mut(&member)
                && peer.lease.ask(now_ms)
            {
                acts.push(PrimaryAct::Send(member, ReplicaMessage::Lease { asked_ms: now_ms }));
            }
        }
    }

    // ---- members that come back

    fn catch_up(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        let behind: Vec<Replica> = self.record.behind().collect();
        for member in behind {
            self.begin_catch_up(member, acts);
            self.copy_on(member, acts);
            self.seal(member, now_ms, acts);
        }
    }

    fn begin_catch_up(&mut self, member: Replica, acts: &mut Vec<PrimaryAct<D>>) {
        let Some(ReplicaStanding::Behind { since }) = self.record.members.get(&member).copied() else { return };
        let Some(peer) = self.peers.get_mut(&member).filter(|peer| peer.is_up && peer.catches_up.is_none()) else {
            return;
        };
        let Some(welcome) = &peer.welcome else { return };
        let missing = self.behind.entry(member).or_default();
        let generation = match judge(&self.record, member, welcome.mark.as_ref()) {
            CopyVerdict::CatchesUp => {
                if !self.left_here.contains(&member) {
                    missing.insert_extents(&welcome.hot);
                }
                since.unwrap_or(0)
            }
            CopyVerdict::CopyAll => {
                match &peer.lacks {
                    Some(data) => missing.extend(data),
                    None => missing.insert(0, self.layout.extents()),
                }
                0
            }
            CopyVerdict::Current | CopyVerdict::Lagging | CopyVerdict::Refused(_) => return,
        };
        peer.catches_up = Some(CatchUp { generation, ..CatchUp::default() });
        self.mark_no_whole_one(member, acts);
    }

    fn mark_no_whole_one(&self, member: Replica, acts: &mut Vec<PrimaryAct<D>>) {
        let Some(catches_up) = self.peers.get(&member).and_then(|peer| peer.catches_up.as_ref()) else { return };
        let generation = catches_up.generation;
        let mut behind = self.behind.clone();
        behind.remove(&member);
        acts.push(PrimaryAct::Send(member, ReplicaMessage::Mark { generation, whole: false, behind }));
    }

    /// It is marked; from now on it hears of every write.
    fn begin_copies(&mut self, member: Replica) {
        let missing = self.behind.get(&member).cloned().unwrap_or_default();
        let layout = self.layout;
        let Some(catches_up) = self.peers.get_mut(&member).and_then(|peer| peer.catches_up.as_mut()) else { return };
        if catches_up.seal == Seal::Told {
            catches_up.seal = Seal::Knows;
        }
        if !std::mem::replace(&mut catches_up.is_begun, true) {
            missing.iter().for_each(|(first, end)| layout.add_blocks(&mut catches_up.todo, first, end));
        }
    }

    fn copy_on(&mut self, member: Replica, acts: &mut Vec<PrimaryAct<D>>) {
        let is_copy = |operation: &&CopyOperation<D>| {
            matches!(operation.kind, Kind::Copy { .. }) && operation.also.contains(&member)
        };
        let mut room = COPIES.saturating_sub(self.operations.values().filter(is_copy).count());
        let mut busy = self.busy();
        while room > 0 {
            let Some(catches_up) = self.peers.get_mut(&member).and_then(|peer| peer.catches_up.as_mut()) else {
                return;
            };
            let Some(range) = catches_up.todo.first_beside(&busy, COPY_BLOCKS) else { return };
            catches_up.todo.remove(range.first, range.end());
            busy.insert_blocks(range);
            let seq = self.next_seq;
            self.next_seq += 1;
            let also = BTreeSet::from([member]);
            let kind = Kind::Copy { range, refuses: None };
            self.begin_operation(seq, CopyOperation::new(kind, BTreeSet::new(), also), acts);
            room -= 1;
        }
    }

    /// Nothing is missing: it hears what others miss, flushes, and becomes current.
    fn seal(&mut self, member: Replica, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        let Some(catches_up) = self.peers.get(&member).and_then(|peer| peer.catches_up.as_ref()) else { return };
        let is_quiet = self.operations.values().all(|one| !matches!(one.kind, Kind::Write { .. } | Kind::Copy { .. }));
        if !catches_up.is_begun || !catches_up.todo.is_empty() || !is_quiet || self.proposal.is_some() {
            return;
        }
        let next = match catches_up.seal {
            Seal::Open => {
                self.mark_no_whole_one(member, acts);
                Seal::Told
            }
            Seal::Knows => {
                let seq = self.next_seq;
                self.next_seq += 1;
                let kind = Kind::Flush { id: None, covers: 0 };
                let also = BTreeSet::from([member]);
                self.begin_operation(seq, CopyOperation::new(kind, BTreeSet::new(), also), acts);
                Seal::Flushes(seq)
            }
            Seal::Flushes(seq) if !self.operations.contains_key(&seq) && self.has_lease(member, now_ms) => {
                self.propose(self.record.with(member), acts);
                Seal::Proposed
            }
            Seal::Told | Seal::Flushes(_) | Seal::Proposed => return,
        };
        let Some(peer) = self.peers.get_mut(&member) else { return };
        if matches!(next, Seal::Flushes(_)) {
            // One that it grants now, and no earlier one.
            peer.lease = Lease::from(now_ms);
        }
        if let Some(catches_up) = peer.catches_up.as_mut() {
            catches_up.seal = next;
        }
    }

    fn has_lease(&self, member: Replica, now_ms: u64) -> bool {
        self.peers.get(&member).is_some_and(|peer| peer.lease.left_ms(now_ms) > 0)
    }

    // ---- comparison

    /// One piece after the other, which nobody writes to meanwhile.
    fn compare(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        let Some(wanted) = self.record.verification.as_ref().filter(|it| it.found.is_none()) else { return };
        let wanted = wanted.number;
        if self.comparison.as_ref().is_some_and(|it| !it.has_others()) {
            // Of nobody anything can be said: with the next one that is current it begins anew.
            self.comparison = None;
        }
        if self.comparison.is_none() {
            let others: BTreeSet<Replica> = self.record.current().filter(|member| *member != self.me).collect();
            if others.is_empty() {
                return;
            }
            self.comparison = Some(Comparison::new(wanted, self.me, others, now_ms));
        }
        let repairs = self.record.verification.as_ref().is_some_and(|it| it.repair);
        let is_summing = self.operations.values().any(|one| matches!(one.kind, Kind::Sum { .. }));
        let is_in_use = !self.is_idle(now_ms);
        let Some(comparison) = self.comparison.as_mut().filter(|_| !is_summing) else { return };
        comparison.judge(self.layout, now_ms, is_in_use);
        match comparison.next(self.layout, now_ms) {
            Some(range) if !self.busy().overlaps(range) && self.marking.is_empty() => {
                if let Some(comparison) = &mut self.comparison {
                    comparison.begin(range, now_ms);
                }
                self.start(Kind::Sum { range }, acts);
            }
            Some(range) => {
                if let Some(comparison) = &mut self.comparison {
                    comparison.waits = Some(range);
                }
            }
            None if self.proposal.is_none()
                && self.marking.is_empty()
                && self.comparison.as_ref().is_some_and(|it| it.is_over(self.layout)) =>
            {
                // Before the record says that they miss something, whoever may be primary then knows what.
                let is_told = self.comparison.as_mut().is_some_and(|it| std::mem::replace(&mut it.is_told, true));
                let differ: Vec<(Replica, RangeSet)> =
                    self.comparison.iter().flat_map(Comparison::differing).map(|it| (it.0, it.1.clone())).collect();
                if repairs && !is_told && !differ.is_empty() {
                    for (member, extents) in differ {
                        self.behind.entry(member).or_default().extend(&extents);
                    }
                    return self.mark_all(acts);
                }
                if let Some(found) = self.comparison.as_ref().map(Comparison::found) {
                    self.propose(self.record.verified(found), acts);
                }
            }
            None => {}
        }
    }

    /// Members that may be current by now, whether this one has heard of it or not.
    fn joining(&self) -> BTreeSet<Replica> {
        let is_late = |peer: &Peer| {
            peer.catches_up.as_ref().is_some_and(|it| matches!(it.seal, Seal::Flushes(_) | Seal::Proposed))
        };
        let sealed = self.peers.iter().filter(|one| is_late(one.1)).map(|one| *one.0);
        let proposed = self.proposal.iter().flat_map(ReplicaRecord::current);
        sealed.chain(proposed).filter(|member| !self.record.is_current(*member)).collect()
    }

    /// Whether a member is about to become current: writes wait a moment. Also when it is away by now: the record may
    /// say that it is current, and it would not have them.
    fn is_sealing(&self) -> bool {
        let seals = |peer: &Peer| peer.catches_up.as_ref().is_some_and(|it| it.is_begun && it.todo.is_empty());
        let joins = |proposal: &ReplicaRecord| proposal.current().any(|member| !self.record.is_current(member));
        self.peers.values().any(seals) || self.proposal.as_ref().is_some_and(joins)
    }

    // ---- clients

    /// Blocks for which something is under way.
    fn busy(&self) -> RangeSet {
        let mut busy = RangeSet::default();
        for operation in self.operations.values() {
            if let Kind::Write { range, .. } | Kind::Copy { range, .. } | Kind::Sum { range } = operation.kind {
                busy.insert_blocks(range);
            }
        }
        busy
    }

    fn admit(&mut self, now_ms: u64, acts: &mut Vec<PrimaryAct<D>>) {
        let mut waits = VecDeque::new();
        let (mut busy, mut is_full) = (self.busy(), false);
        // Who writes without end is not compared without end.
        self.comparison.iter().filter_map(|it| it.waits).for_each(|range| busy.insert_blocks(range));
        let held_ms = self.held_ms(now_ms);
        let may_read = self.marking.is_empty() && held_ms > 0;
        let may_write = !self.is_sealing();
        // What waits keeps its place before later ones for the same block.
        while let Some((id, request)) = self.held.pop_front() {
            match request {
                DiskRequest::Read { range } if may_read && !busy.overlaps(range) => {
                    acts.push(PrimaryAct::Read { id, range })
                }
                DiskRequest::Write { range, data, durable }
                    if may_write && !busy.overlaps(range) && self.has_room(range) =>
                {
                    busy.insert_blocks(range);
                    // Each copy makes it durable after what it has accepted: with nothing under way, that is all.
                    let covers =
                        durable.then(|| if self.floor() == self.next_seq { self.next_seq } else { self.floor() - 1 });
                    self.start(Kind::Write { id, range, data, covers }, acts);
                }
                DiskRequest::Hold if may_read => {
                    acts.push(PrimaryAct::Reply { id, reply: DiskReply::Held { for_ms: held_ms } });
                }
                DiskRequest::Flush => _ = self.start(Kind::Flush { id: Some(id), covers: self.floor() - 1 }, acts),
                other => {
                    if let DiskRequest::Write { range, .. } = &other {
                        is_full |= !self.has_room(*range);
                        busy.insert_blocks(*range);
                    }
                    waits.push_back((id, other));
                }
            }
        }
        self.held = waits;
        let is_flushing = |one: &CopyOperation<D>| matches!(one.kind, Kind::Flush { covers, .. } if covers > 0);
        if is_full && !self.operations.values().any(is_flushing) && self.floor() > self.flushed + 1 {
            self.start(Kind::Flush { id: None, covers: self.floor() - 1 }, acts);
        }
    }

    /// In the activity log.
    fn has_room(&self, range: BlockRange) -> bool {
        let more = self.layout.extents_of(range).filter(|extent| !self.hot.contains_key(extent)).count();
        more == 0 || self.hot.len() + more <= self.layout.hot_extents
    }

    /// How long reads may be answered.
    fn held_ms(&self, now_ms: u64) -> u64 {
        let joining = self.joining();
        let others = self.record.current().filter(|member| *member != self.me).chain(joining);
        let left = others.map(|member| self.peers.get(&member).map_or(0, |peer| peer.lease.left_ms(now_ms)));
        left.chain([TERM_MS]).min().unwrap_or(0)
    }
}
