//! One group, as one host has it.
//!
//! A host is `Outside`, `Follower`, `Collecting` (the next sequencer, which looks what the others have) or
//! `Sequencing`.
//!
//! ```text
//!            charter made here, or all of its hosts are gone
//!         ┌────────────────────────────────────────────────────┐
//!      Outside ──── first view with this host ────► Follower   ▼
//!         ▲                                            │    Sequencing
//!         │ a view without this host                   │ sequencer gone, this host is the first  ▲
//!         └────────────────────────────────────────────┴──────────► Collecting ─────────────────┘
//! ```
//!
//! The order is a log of entries, messages and views alike, with indices that only the sequencer of the epoch gives. A
//! host takes entries without gaps, refuses those of earlier epochs, and keeps what is not stable. The next sequencer
//! takes everything that any of the remaining hosts has before it goes on, so members that go from one view to the next
//! were given the same messages in between. A view is given to members when all its hosts have it; so none is given
//! that others skip. Who is excluded while it still runs (cut off, too slow) may have been given agreed messages that
//! the others never see, never safe ones.
//!
//! What a member sends is kept by its host until it shows in the log, and submitted again in a new epoch. The log
//! counts messages by member, so nothing is ordered twice.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use vos_api::Errno;
use vos_api::cs::{Joined, MEMBERS_MAX};
use vos_api::desk::{DeskQuestion, Edit, Given, Stay};

use super::charter::{Charter, Host, Member};
use super::local::{Local, Receiving, Standing};
use super::log::Log;
use super::wire::{Burst, Entry, FRAME_BYTES, Frame, View};
use crate::core::{Answered, Answers, Ticket};
use crate::desk::{Desk, Patience, Purpose, Reply};

/// Bytes that are ordered and not stable: more waits until all hosts have these.
pub const WINDOW_BYTES: usize = 2 << 20;
/// Bytes of a log beyond which a host does not say that it has more: a member here does not take what it is given.
pub const LOG_BYTES_MAX: usize = 8 << 20;
/// Bytes of one host's members that wait to be ordered.
pub const PENDING_BYTES_MAX: usize = 1 << 20;
/// A member that takes nothing for so long, while the log is full, is excluded.
pub const SLOW_MS: u64 = 10_000;
/// A host that says nothing for so long is excluded, though its lease goes on: the link to it is cut.
pub const SILENT_MS: u64 = 8_000;
/// Sequencer and hosts hear of each other at least so often.
pub const HEARTBEAT_MS: u64 = 1_000;

pub struct World<'a> {
    pub own: Host,
    pub now: u64,
    pub alive: &'a dyn Fn(Host) -> bool,
    pub desk: &'a mut Desk,
    pub answers: &'a mut Answers,
    pub frames: &'a mut Vec<(Host, Vec<u8>)>,
}

pub struct Group {
    name: String,
    /// As far as it is known, with its revision.
    charter: Option<(Charter, u64)>,
    /// What was proposed and is not decided. `None` inside: the end of the group.
    proposed: Option<Option<Charter>>,
    /// The highest that was heard of; frames of lower ones are refused.
    epoch: u64,
    log: Log,
    role: Role,
    pub locals: BTreeMap<u64, Local>,
    /// Of members here, not in the log yet; the first `submitted` are with the sequencer.
    pending: VecDeque<Burst>,
    pending_bytes: usize,
    submitted: usize,
    /// Of the newest view in the log.
    view_epoch: u64,
    /// The sequencer is to be told what this host has.
    must_tell: bool,
    told_have: u64,
    /// When the sequencer was last told which members are wanted here, and which.
    wanted_told: Option<(u64, Vec<Member>)>,
    /// Since when the log is full because of a member here.
    full_since: Option<u64>,
}

enum Role {
    Outside,
    Follower,
    Collecting(Collecting),
    Sequencing(Sequencing),
}

struct Collecting {
    since: u64,
    /// What each other host has; outer `None`: it did not answer yet.
    states: BTreeMap<Host, Option<Option<u64>>>,
    fetching: Option<Host>,
}

#[derive(Default)]
struct Sequencing {
    /// Hosts of the newest view, this one included.
    hosts: Vec<Host>,
    wanted: BTreeMap<Host, Vec<Member>>,
    have: BTreeMap<Host, u64>,
    sent: BTreeMap<Host, u64>,
    heard: BTreeMap<Host, u64>,
    /// When and up to where it was last told what is stable.
    told: BTreeMap<Host, (u64, u64)>,
    backlog: VecDeque<Burst>,
    /// A view is due even if it has the same members: an epoch begins with one.
    is_due: bool,
}

impl Group {
    pub fn new(name: &str, charter: Option<(Charter, u64)>) -> Group {
        Group {
            name: name.to_owned(),
            epoch: charter.as_ref().map_or(0, |(charter, _)| charter.epoch),
            charter,
            proposed: None,
            log: Log::default(),
            role: Role::Outside,
            locals: BTreeMap::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            submitted: 0,
            view_epoch: 0,
            must_tell: false,
            told_have: 0,
            wanted_told: None,
            full_since: None,
        }
    }

    /// Nobody here has to do with it any more.
    pub fn is_over(&self) -> bool {
        self.locals.is_empty() && self.proposed.is_none() && matches!(self.role, Role::Outside)
    }

    pub fn is_full(&self) -> bool {
        self.charter.as_ref().map_or(0, |(charter, _)| charter.members.len()).max(self.locals.len()) >= MEMBERS_MAX
    }

    // ---- members here

    pub fn join(&mut self, id: u64, session: u64, name: &str, (ticket, until): (Ticket, u64), world: &mut World<'_>) {
        let standing = Standing::Joining { ticket, until };
        let (name, receiving, sending) = (name.to_owned(), None, Vec::new());
        self.locals.insert(id, Local { session, name, standing, receiving, sending, next_sent: 1 });
        self.advance(world);
    }

    pub fn leave(&mut self, id: u64, world: &mut World<'_>) {
        let Some(local) = self.locals.remove(&id) else { return };
        if let Some(receiving) = local.receiving {
            world.answers.refuse(receiving.ticket, Errno::Stale);
        }
        local.sending.into_iter().for_each(|ticket| world.answers.refuse(ticket, Errno::Stale));
        self.advance(world);
    }

    pub fn send(&mut self, id: u64, burst: Burst, ticket: Ticket, answers: &mut Answers) {
        let Some(local) = self.locals.get_mut(&id) else { return answers.refuse(ticket, Errno::Stale) };
        if local.standing == Standing::Excluded {
            return answers.refuse(ticket, Errno::Stale);
        }
        if burst.first != local.next_sent {
            return answers.refuse(ticket, Errno::Invalid);
        }
        local.next_sent += u64::from(burst.count);
        self.pending_bytes += burst.data.len();
        self.pending.push_back(burst);
        if self.pending_bytes > PENDING_BYTES_MAX {
            local.sending.push(ticket);
        } else {
            answers.give(ticket, Answered::default());
        }
    }

    pub fn receive(&mut self, id: u64, receiving: Receiving, answers: &mut Answers) {
        match self.locals.get_mut(&id) {
            Some(local) if local.standing != Standing::Excluded => {
                // One at a time: whoever asks again has given up the one before.
                if let Some(before) = local.receiving.replace(receiving) {
                    answers.refuse(before.ticket, Errno::TryAgain);
                }
                local.deliver(&self.log, answers);
            }
            _ => answers.refuse(receiving.ticket, Errno::Stale),
        }
    }

    fn exclude(&mut self, which: impl Fn(u64, &Local) -> bool, answers: &mut Answers) {
        let mut excluded = BTreeSet::new();
        for (id, local) in &mut self.locals {
            if matches!(local.standing, Standing::Member { .. }) && which(*id, local) {
                local.standing = Standing::Excluded;
                local.receiving.take().into_iter().for_each(|one| answers.refuse(one.ticket, Errno::Stale));
                local.sending.drain(..).for_each(|ticket| answers.refuse(ticket, Errno::Stale));
                excluded.insert(*id);
            }
        }
        if !excluded.is_empty() {
            self.locals.retain(|id, _| !excluded.contains(id));
            self.forget_pending(&excluded);
        }
    }

    fn forget_pending(&mut self, of: &BTreeSet<u64>) {
        let submitted = self.pending.iter().take(self.submitted).filter(|burst| !of.contains(&burst.member)).count();
        self.pending.retain(|burst| !of.contains(&burst.member));
        self.submitted = submitted;
        self.pending_bytes = self.pending.iter().map(|burst| burst.data.len()).sum();
    }

    /// This host begins a new life, or the group went on without it.
    pub fn fall_out(&mut self, answers: &mut Answers) {
        self.exclude(|_, _| true, answers);
        self.role = Role::Outside;
        self.log = Log::default();
        self.pending.clear();
        (self.pending_bytes, self.submitted, self.told_have, self.view_epoch) = (0, 0, 0, 0);
        self.wanted_told = None;
    }

    // ---- the charter

    /// What the engine has now, as of `revision`.
    pub fn charter_is(&mut self, charter: Option<(Charter, u64)>, revision: u64, world: &mut World<'_>) {
        let known = self.charter.as_ref().map_or(0, |(_, modified)| *modified);
        let is_newer = charter.as_ref().map_or(revision, |(_, modified)| *modified) > known;
        if is_newer {
            self.charter = charter;
        }
        self.advance(world);
    }

    fn propose(&mut self, next: Option<Charter>, world: &mut World<'_>) {
        let key = format!("g/{}", self.name);
        let given = match &self.charter {
            Some((_, modified)) => Given::Modified(key.clone(), *modified),
            None => Given::Absent(key.clone()),
        };
        let edit = match &next {
            Some(charter) => Edit::Put { key, value: charter.to_bytes(), stay: Stay::Kept },
            None => Edit::Delete { key },
        };
        self.proposed = Some(next);
        let question = DeskQuestion::Transact { givens: vec![given], edits: vec![edit] };
        world.desk.ask(question, Purpose::Charter(self.name.clone()), Patience::Waits);
    }

    /// What became of the proposal.
    pub fn decided(&mut self, reply: Reply, world: &mut World<'_>) {
        let Some(proposed) = self.proposed.take() else { return };
        match reply {
            Reply::Done(revision) => self.settle(proposed, revision, world),
            Reply::Conflict(current) => {
                let current = current.into_iter().flatten().next();
                let is_own = match (&current, &proposed) {
                    (Some(known), Some(charter)) => known.value == charter.to_bytes(),
                    (None, None) => true,
                    _ => false,
                };
                let revision = current.as_ref().map_or(0, |known| known.modified);
                if is_own {
                    return self.settle(proposed, revision, world);
                }
                self.charter = current.as_ref().and_then(Charter::of);
                self.advance(world);
            }
            Reply::Found(_) => {}
            Reply::Failed(_) => {
                // The container has its keys: whoever waits to get in is told.
                self.refuse_joining(Errno::NoSpace, world.answers);
            }
        }
    }

    fn settle(&mut self, decided: Option<Charter>, revision: u64, world: &mut World<'_>) {
        let Some(charter) = decided else {
            self.charter = None;
            self.fall_out(world.answers);
            return self.advance(world);
        };
        let charter = charter.counted_from(revision);
        let is_old = self.charter.as_ref().is_some_and(|(_, modified)| *modified > revision);
        if is_old || charter.epoch < self.epoch {
            // Others have decided more since.
            return self.advance(world);
        }
        let (is_new_epoch, is_new_view) = (charter.epoch > self.epoch, Some(charter.number) != self.number());
        self.epoch = charter.epoch;
        self.charter = Some((charter.clone(), revision));
        match (&mut self.role, is_new_epoch, is_new_view) {
            (_, true, true) => self.begin(&charter, revision, world),
            (_, true, false) => self.collect(&charter, world),
            (Role::Sequencing(_), false, _) => self.append_view(&charter, world),
            _ => {}
        }
        self.advance(world);
    }

    fn number(&self) -> Option<u64> {
        self.charter.as_ref().map(|(charter, _)| charter.number)
    }

    /// The first host of a group, or of one that is left by all.
    fn begin(&mut self, charter: &Charter, revision: u64, world: &mut World<'_>) {
        self.log.begin(first_index(revision));
        self.role = Role::Sequencing(Sequencing::default());
        self.append_view(charter, world);
    }

    // ---- what to do next

    /// Looks at everything, and does what is due.
    pub fn advance(&mut self, world: &mut World<'_>) {
        if self.proposed.is_some() {
            return;
        }
        let Some((charter, _)) = self.charter.clone() else {
            if !matches!(self.role, Role::Outside) {
                self.fall_out(world.answers);
            }
            if !self.locals.is_empty() {
                let members = self.wanted(world.own);
                self.propose(Some(Charter::new(world.own, members)), world);
            }
            return;
        };
        if !charter.hosts.contains(&world.own) && !matches!(self.role, Role::Outside) {
            self.fall_out(world.answers);
        }
        if charter.epoch > self.epoch {
            self.follow(charter.epoch);
        }
        if charter.sequencer == world.own {
            return self.lead(&charter, world);
        }
        if (world.alive)(charter.sequencer) {
            return self.tell_wanted(charter.sequencer, &charter, world);
        }
        let epoch = charter.epoch.max(self.epoch) + 1;
        match charter.hosts.iter().find(|host| (world.alive)(**host)) {
            Some(host) if *host == world.own => {
                self.propose(Some(Charter { epoch, sequencer: world.own, ..charter }), world);
            }
            Some(_) => {}
            None if !self.locals.is_empty() => {
                let (number, hosts, members) = (charter.number + 1, vec![world.own], self.wanted(world.own));
                self.propose(Some(Charter { epoch, number, sequencer: world.own, hosts, members }), world);
            }
            None => {}
        }
    }

    /// A later epoch: what this host was in an earlier one is over.
    fn follow(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.wanted_told = None;
        if matches!(self.role, Role::Sequencing(_) | Role::Collecting(_)) {
            self.role = Role::Follower;
        }
    }

    /// Members here, as they should be in the next view.
    fn wanted(&self, host: Host) -> Vec<Member> {
        let locals = self.locals.iter().filter(|(_, local)| local.standing != Standing::Excluded);
        locals.map(|(id, local)| Member { id: *id, host, name: local.name.clone() }).collect()
    }

    fn tell_wanted(&mut self, sequencer: Host, charter: &Charter, world: &mut World<'_>) {
        let wanted = self.wanted(world.own);
        let has = charter.members.iter().filter(|member| member.host == world.own).count();
        let is_so = has == wanted.len() && wanted.iter().all(|member| charter.members.contains(member));
        let is_told =
            self.wanted_told.as_ref().is_some_and(|(at, told)| *told == wanted && world.now < *at + HEARTBEAT_MS);
        if !is_so && !is_told {
            self.wanted_told = Some((world.now, wanted.clone()));
            world.frames.push((sequencer, Frame::Want { members: wanted }.encode(&self.name)));
        }
    }

    // ---- taking over

    fn collect(&mut self, charter: &Charter, world: &mut World<'_>) {
        let others = charter.hosts.iter().filter(|host| **host != world.own && (world.alive)(**host));
        let states: BTreeMap<Host, _> = others.map(|host| (*host, None)).collect();
        for host in states.keys() {
            world.frames.push((*host, Frame::Stop { epoch: self.epoch }.encode(&self.name)));
        }
        self.role = Role::Collecting(Collecting { since: world.now, states, fetching: None });
    }

    fn go_on_collecting(&mut self, charter: &Charter, world: &mut World<'_>) {
        let (own, epoch) = (self.log.is_begun().then(|| self.log.high()), self.epoch);
        let Role::Collecting(collecting) = &mut self.role else { return };
        let is_silent = world.now >= collecting.since + SILENT_MS;
        collecting.states.retain(|host, state| (world.alive)(*host) && (state.is_some() || !is_silent));
        if collecting.states.values().any(Option::is_none) {
            return;
        }
        let best = collecting.states.iter().filter_map(|(host, state)| Some((state.flatten()?, *host))).max();
        if let Some((high, host)) = best.filter(|(high, _)| own.is_none_or(|own| *high > own)) {
            if collecting.fetching != Some(host) {
                collecting.fetching = Some(host);
                let from = own.map_or(0, |own| own + 1);
                tracing::debug!(group = self.name, high, "fetching what another host has");
                world.frames.push((host, Frame::Fetch { epoch, from }.encode(&self.name)));
            }
            return;
        }
        let mut sequencing = Sequencing { is_due: true, ..Sequencing::default() };
        for (host, state) in &collecting.states {
            sequencing.heard.insert(*host, world.now);
            if let Some(high) = state.flatten() {
                sequencing.have.insert(*host, high);
                sequencing.sent.insert(*host, high);
            }
            let its = charter.members.iter().filter(|member| member.host == *host);
            sequencing.wanted.insert(*host, its.cloned().collect());
        }
        if !self.log.is_begun() {
            self.log.begin(first_index(self.charter.as_ref().map_or(0, |(_, modified)| *modified)));
        }
        self.role = Role::Sequencing(sequencing);
        self.lead(charter, world);
    }

    // ---- sequencing

    fn lead(&mut self, charter: &Charter, world: &mut World<'_>) {
        if matches!(self.role, Role::Collecting(_)) {
            return self.go_on_collecting(charter, world);
        }
        let own_wanted = self.wanted(world.own);
        let Role::Sequencing(sequencing) = &mut self.role else { return };
        sequencing.wanted.insert(world.own, own_wanted);
        let is_silent = |host: &Host| sequencing.heard.get(host).is_some_and(|heard| world.now >= heard + SILENT_MS);
        let gone: Vec<Host> = sequencing
            .wanted
            .keys()
            .filter(|host| **host != world.own && (!(world.alive)(**host) || is_silent(host)))
            .copied()
            .collect();
        for host in gone {
            sequencing.drop_host(host);
        }
        let desired: Vec<&Member> = sequencing.wanted.values().flatten().collect();
        let stays = |member: &&Member| desired.contains(member);
        let mut members: Vec<Member> = charter.members.iter().filter(stays).cloned().collect();
        let comes = desired.iter().filter(|member| !charter.members.contains(member)).map(|member| (*member).clone());
        members.extend(comes);
        members.truncate(MEMBERS_MAX);
        let has_members = |host: &Host| *host == world.own || members.iter().any(|member| member.host == *host);
        let mut hosts: Vec<Host> = charter.hosts.iter().copied().filter(has_members).collect();
        for member in &members {
            if !hosts.contains(&member.host) {
                hosts.push(member.host);
            }
        }
        if members.is_empty() {
            return self.propose(None, world);
        }
        if sequencing.is_due || members != charter.members || hosts != charter.hosts {
            let (epoch, number, sequencer) = (charter.epoch, charter.number + 1, world.own);
            self.propose(Some(Charter { epoch, number, sequencer, hosts, members }), world);
        }
    }

    fn append_view(&mut self, charter: &Charter, world: &mut World<'_>) {
        let members = charter.members.iter().map(|member| (member.clone(), self.log.counted(member.id))).collect();
        let (number, epoch, hosts) = (charter.number, charter.epoch, charter.hosts.clone());
        let before = self.log.high();
        if let Role::Sequencing(sequencing) = &mut self.role {
            sequencing.is_due = false;
            sequencing.hosts.clone_from(&hosts);
            for host in hosts.iter().filter(|host| **host != world.own) {
                // One that is new begins with this view.
                sequencing.sent.entry(*host).or_insert(before);
                sequencing.have.entry(*host).or_insert(before);
                sequencing.heard.entry(*host).or_insert(world.now);
            }
            sequencing.have.retain(|host, _| hosts.contains(host));
            sequencing.sent.retain(|host, _| hosts.contains(host));
            sequencing.told.retain(|host, _| hosts.contains(host));
            let is_member = |burst: &Burst| charter.members.iter().any(|member| member.id == burst.member);
            sequencing.backlog.retain(is_member);
        }
        self.take_entry(Arc::new(Entry::View(View { number, epoch, hosts, members })), world);
    }

    fn order(&mut self, burst: Burst) {
        let Role::Sequencing(sequencing) = &mut self.role else { return };
        sequencing.backlog.push_back(burst);
    }

    /// Gives the next places to what waits for one.
    fn sequence(&mut self, world: &mut World<'_>) {
        loop {
            let Role::Sequencing(sequencing) = &mut self.role else { return };
            // Nothing of an epoch comes before its first view.
            if sequencing.is_due || self.log.bytes() > LOG_BYTES_MAX + WINDOW_BYTES {
                return;
            }
            let Some(burst) = sequencing.backlog.front() else { return };
            if self.log.unstable_bytes() > WINDOW_BYTES {
                return;
            }
            // One of an earlier submission, or of who is no member any more, is not ordered.
            let is_next = self.log.knows(burst.member) && burst.first == self.log.counted(burst.member) + 1;
            let Some(burst) = sequencing.backlog.pop_front().filter(|_| is_next) else { continue };
            self.take_entry(Arc::new(Entry::Burst(burst)), world);
        }
    }

    // ---- the log

    /// The entry after the last one.
    fn take_entry(&mut self, entry: Arc<Entry>, world: &mut World<'_>) {
        let index = self.log.high() + 1;
        self.log.push(Arc::clone(&entry));
        match &*entry {
            Entry::View(view) => self.take_view(index, view, world),
            Entry::Burst(burst) => self.take_off_pending(burst.member, burst.first, world.answers),
        }
    }

    fn take_view(&mut self, index: u64, view: &View, world: &mut World<'_>) {
        let is_in = |id: u64| view.members.iter().any(|(member, _)| member.id == id);
        self.exclude(|id, _| !is_in(id), world.answers);
        for (id, local) in self.locals.iter_mut().filter(|(id, _)| is_in(**id)) {
            if let Standing::Joining { ticket, .. } = local.standing {
                local.standing = Standing::Member { next: index };
                world.answers.give(ticket, Answered::words(Joined { member: *id }));
            }
        }
        if std::mem::replace(&mut self.view_epoch, view.epoch) != view.epoch {
            // A new sequencer has heard of nothing that is not in the log.
            self.submitted = 0;
        }
        let orphans: BTreeSet<u64> =
            self.pending.iter().map(|burst| burst.member).filter(|member| !self.locals.contains_key(member)).collect();
        self.forget_pending(&orphans);
    }

    fn take_off_pending(&mut self, member: u64, first: u64, answers: &mut Answers) {
        if !self.locals.contains_key(&member) {
            return;
        }
        let Some(place) = self.pending.iter().position(|burst| burst.member == member) else { return };
        if self.pending.get(place).is_some_and(|burst| burst.first == first)
            && let Some(burst) = self.pending.remove(place)
        {
            self.pending_bytes -= burst.data.len();
            self.submitted -= usize::from(place < self.submitted);
        }
        if self.pending_bytes <= PENDING_BYTES_MAX {
            let waiting = self.locals.values_mut().flat_map(|local| local.sending.drain(..));
            waiting.for_each(|ticket| answers.give(ticket, Answered::default()));
        }
    }

    /// Entries from `first` on; those that are known are passed over, and nothing is taken after a gap.
    fn take_entries(&mut self, first: u64, entries: Vec<Arc<Entry>>, world: &mut World<'_>) {
        for (index, entry) in (first..).zip(entries) {
            if !self.log.is_begun() {
                let is_begin = matches!(&*entry, Entry::View(view) if view.hosts.contains(&world.own));
                if !is_begin && !matches!(self.role, Role::Collecting(_)) {
                    continue;
                }
                self.log.begin(index);
            }
            if index > self.log.high() + 1 {
                // The group went on without this host, which has not heard of it.
                return self.fall_out(world.answers);
            }
            if index == self.log.high() + 1 {
                self.take_entry(entry, world);
            }
        }
    }

    // ---- frames

    pub fn heard(&mut self, from: Host, frame: Frame, world: &mut World<'_>) {
        if let Role::Sequencing(sequencing) = &mut self.role {
            sequencing.heard.insert(from, world.now);
        }
        match frame {
            Frame::Want { members } => {
                if let Role::Sequencing(sequencing) = &mut self.role
                    && members.iter().all(|member| member.host == from)
                {
                    sequencing.wanted.insert(from, members);
                    self.advance(world);
                }
            }
            Frame::Submit { epoch, bursts } => {
                let charter = self.charter.as_ref().filter(|_| epoch == self.epoch);
                let Some((charter, _)) = charter else { return };
                let is_its = |burst: &Burst| {
                    charter.members.iter().any(|member| member.id == burst.member && member.host == from)
                };
                let bursts: Vec<Burst> = bursts.into_iter().filter(is_its).collect();
                bursts.into_iter().for_each(|burst| self.order(burst));
            }
            Frame::Append { epoch, stable, first, entries } => self.appended(epoch, stable, first, entries, world),
            Frame::Have { epoch, index } => {
                if let Role::Sequencing(sequencing) = &mut self.role
                    && epoch == self.epoch
                    && let Some(have) = sequencing.have.get_mut(&from)
                {
                    *have = index.min(self.log.high()).max(*have);
                }
            }
            Frame::Stop { epoch } => {
                if epoch > self.epoch {
                    self.follow(epoch);
                }
                if epoch == self.epoch {
                    let high = self.log.is_begun().then(|| self.log.high());
                    world.frames.push((from, Frame::Stopped { epoch, high }.encode(&self.name)));
                }
            }
            Frame::Stopped { epoch, high } => {
                if let Role::Collecting(collecting) = &mut self.role
                    && epoch == self.epoch
                    && let Some(state) = collecting.states.get_mut(&from)
                {
                    *state = Some(high);
                    self.advance(world);
                }
            }
            Frame::Fetch { epoch, from: index } => self.fill(from, epoch, index, world),
            Frame::Fill { epoch, first, entries, counted } => {
                if epoch == self.epoch && matches!(self.role, Role::Collecting(_)) {
                    self.take_entries(first, entries, world);
                    self.log.count_up(&counted);
                    self.advance(world);
                }
            }
        }
    }

    fn appended(&mut self, epoch: u64, stable: u64, first: u64, entries: Vec<Arc<Entry>>, world: &mut World<'_>) {
        if epoch < self.epoch {
            return;
        }
        if epoch > self.epoch {
            self.follow(epoch);
        }
        if matches!(self.role, Role::Sequencing(_) | Role::Collecting(_)) {
            return;
        }
        self.take_entries(first, entries, world);
        if self.log.is_begun() {
            self.role = Role::Follower;
            self.log.settle(stable);
            self.must_tell = true;
        }
    }

    fn fill(&self, to: Host, epoch: u64, from: u64, world: &mut World<'_>) {
        if epoch != self.epoch || !self.log.is_begun() {
            return;
        }
        let mut first = from.max(self.log.first());
        while first <= self.log.high() {
            let entries = self.log.some(first);
            let (count, counted) = (entries.len() as u64, self.log.all_counted());
            world.frames.push((to, Frame::Fill { epoch, first, entries, counted }.encode(&self.name)));
            first += count.max(1);
        }
    }

    // ---- once in each turn

    /// Orders, sends and gives what there is.
    pub fn flush(&mut self, world: &mut World<'_>) {
        self.submit(world);
        self.sequence(world);
        self.replicate(world);
        self.tell_have(world);
        for local in self.locals.values_mut() {
            local.deliver(&self.log, world.answers);
        }
        self.log.trim(self.locals.values().filter_map(Local::next).min().unwrap_or(u64::MAX));
        let is_full = self.log.bytes() > LOG_BYTES_MAX;
        self.full_since = if is_full { self.full_since.or(Some(world.now)) } else { None };
    }

    fn submit(&mut self, world: &mut World<'_>) {
        let Some((charter, _)) = &self.charter else { return };
        let sequencer = charter.sequencer;
        if charter.epoch != self.epoch || self.submitted >= self.pending.len() {
            return;
        }
        if sequencer == world.own {
            // What is ordered leaves `pending` meanwhile.
            let bursts: Vec<Burst> = self.pending.iter().skip(self.submitted).cloned().collect();
            self.submitted = self.pending.len();
            bursts.into_iter().for_each(|burst| self.order(burst));
        } else if matches!(self.role, Role::Follower) {
            let epoch = self.epoch;
            while self.submitted < self.pending.len() {
                let (mut bursts, mut bytes) = (Vec::new(), 0);
                for burst in self.pending.iter().skip(self.submitted) {
                    bytes += burst.data.len();
                    if !bursts.is_empty() && bytes > FRAME_BYTES {
                        break;
                    }
                    bursts.push(burst.clone());
                }
                self.submitted += bursts.len();
                world.frames.push((sequencer, Frame::Submit { epoch, bursts }.encode(&self.name)));
            }
        }
    }

    /// What this host says that it has: no more while a member here lets the log grow.
    fn have(&mut self) -> u64 {
        if self.log.bytes() <= LOG_BYTES_MAX {
            self.told_have = self.log.high();
        }
        self.told_have
    }

    fn replicate(&mut self, world: &mut World<'_>) {
        if !matches!(&self.role, Role::Sequencing(sequencing) if !sequencing.is_due) {
            return;
        }
        let own_have = self.have();
        let Role::Sequencing(sequencing) = &mut self.role else { return };
        let others = sequencing.hosts.iter().filter(|host| **host != world.own);
        let least = others.clone().map(|host| sequencing.have.get(host).copied().unwrap_or(0)).min();
        self.log.settle(least.map_or(own_have, |least| least.min(own_have)));
        let (stable, high, epoch) = (self.log.stable(), self.log.high(), self.epoch);
        for host in others {
            let mut sent = sequencing.sent.get(host).copied().unwrap_or(high);
            let (told, told_at) = sequencing.told.get(host).copied().unwrap_or((0, 0));
            let mut is_told = false;
            while sent < high {
                let entries = self.log.some(sent + 1);
                let (first, count) = (sent + 1, entries.len() as u64);
                world.frames.push((*host, Frame::Append { epoch, stable, first, entries }.encode(&self.name)));
                sent += count.max(1);
                is_told = true;
            }
            let waits = self.log.waits_between(told, stable) || stable >= told + 256;
            let is_late = world.now >= told_at + HEARTBEAT_MS;
            if !is_told && ((told < stable && waits) || is_late) {
                let frame = Frame::Append { epoch, stable, first: high + 1, entries: Vec::new() };
                world.frames.push((*host, frame.encode(&self.name)));
                is_told = true;
            }
            if is_told {
                sequencing.told.insert(*host, (stable, world.now));
            }
            sequencing.sent.insert(*host, sent);
        }
    }

    fn tell_have(&mut self, world: &mut World<'_>) {
        let before = self.told_have;
        let Some((charter, _)) = &self.charter else { return };
        let sequencer = charter.sequencer;
        if !matches!(self.role, Role::Follower) || charter.epoch != self.epoch || !self.log.is_begun() {
            return;
        }
        let index = self.have();
        if std::mem::take(&mut self.must_tell) || index > before {
            world.frames.push((sequencer, Frame::Have { epoch: self.epoch, index }.encode(&self.name)));
        }
    }

    // ---- time

    pub fn deadline(&self, now: u64) -> Option<u64> {
        let joining = self.locals.values().filter_map(|local| match local.standing {
            Standing::Joining { until, .. } => Some(until),
            _ => None,
        });
        let receiving = self.locals.values().filter_map(|local| Some(local.receiving.as_ref()?.until));
        let beats = match &self.role {
            Role::Sequencing(sequencing) => sequencing.hosts.len() > 1,
            Role::Collecting(_) => true,
            Role::Outside | Role::Follower => !self.locals.is_empty() && self.wanted_told.is_some(),
        };
        let beat = (beats || self.full_since.is_some()).then_some(now + HEARTBEAT_MS / 2);
        joining.chain(receiving).chain(beat).min()
    }

    pub fn tick(&mut self, world: &mut World<'_>) {
        let now = world.now;
        let mut late = Vec::new();
        for (id, local) in &mut self.locals {
            if let Some(receiving) = local.receiving.take_if(|receiving| receiving.until <= now) {
                world.answers.give(receiving.ticket, Answered::default());
            }
            if let Standing::Joining { ticket, until } = local.standing
                && until <= now
            {
                world.answers.refuse(ticket, Errno::TimedOut);
                late.push(*id);
            }
        }
        late.iter().for_each(|id| drop(self.locals.remove(id)));
        if self.full_since.is_some_and(|since| now >= since + SLOW_MS) {
            self.full_since = None;
            let slowest = self.locals.values().filter_map(Local::next).min();
            self.exclude(|_, local| local.next() == slowest, world.answers);
        }
        self.advance(world);
    }

    fn refuse_joining(&mut self, errno: Errno, answers: &mut Answers) {
        let joining: Vec<(u64, Ticket)> = self
            .locals
            .iter()
            .filter_map(|(id, local)| match local.standing {
                Standing::Joining { ticket, .. } => Some((*id, ticket)),
                _ => None,
            })
            .collect();
        for (id, ticket) in joining {
            self.locals.remove(&id);
            answers.refuse(ticket, errno);
        }
    }
}

/// Of a log that begins with what is agreed in `revision`: an index is given once, also after all that had it are gone.
fn first_index(revision: u64) -> u64 {
    revision << 32 | 1
}

impl Sequencing {
    fn drop_host(&mut self, host: Host) {
        self.wanted.remove(&host);
        self.heard.remove(&host);
    }
}
