//! Hands each event to whom it concerns, and collects what is to be done.

use std::collections::BTreeSet;

use vos_api::Errno;
use vos_api::cs::{CANDIDATE_BYTES_MAX, Race, Request, VALUE_BYTES_MAX, WAIT_MAX_MS};
use vos_api::desk::{DeskQuestion, Edit, FromDesk, Stay, ToDesk};

use crate::desk::{Desk, Patience, Purpose, Reply};
use crate::groups::{Around, Groups, Host, is_alive};
use crate::names;
use crate::races::Races;
use crate::replica::Replica;
use crate::sensing::{Sensing, Vitals};
use crate::values::{Order, Past, Values};

/// Sessions that did not come back for so long after a restart of this server are over.
const RETURN_MS: u64 = 5_000;
/// New lives of one process ([`Act::Reborn`]) lie between the incarnations of its successors.
pub const LIVES_BITS: u32 = 16;
/// What a frame between servers is about.
const GROUP_FRAME: u8 = 1;
const ASK_VITALS: u8 = 2;
const VITALS: u8 = 3;

/// Names a request that is not answered yet.
pub type Ticket = u64;

/// What a request is answered with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answered {
    pub words: [u64; 4],
    pub data: Vec<u8>,
}

impl Answered {
    pub fn words(words: impl Into<[u64; 4]>) -> Answered {
        Answered { words: words.into(), data: Vec::new() }
    }
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    Answer(Ticket, Result<Answered, Errno>),
    Ask(ToDesk),
    /// Frames to one host arrive in order as long as both live.
    Send(Host, Vec<u8>),
    /// This server begins a new life under this number.
    Reborn(u64),
}

#[derive(Default)]
pub struct Answers(Vec<(Ticket, Result<Answered, Errno>)>);

impl Answers {
    pub fn give(&mut self, ticket: Ticket, said: Answered) {
        self.0.push((ticket, Ok(said)));
    }

    pub fn refuse(&mut self, ticket: Ticket, errno: Errno) {
        self.0.push((ticket, Err(errno)));
    }
}

/// A request of a client's session.
pub struct ClientCall<'a> {
    pub ticket: Ticket,
    pub session: u64,
    /// 0 for what may be repeated.
    pub sequence: u64,
    /// Bytes for reply data.
    pub room: usize,
    pub request: Request<'a>,
}

/// One server's decisions. Times are milliseconds of a clock that only goes forward.
pub struct Core {
    own: Host,
    /// Until then sessions may come back after a restart of this server; `None`: those that did not are over.
    returns_until: Option<u64>,
    past: Past,
    /// Others see that this server lives.
    has_settled: bool,
    replica: Replica,
    desk: Desk,
    races: Races,
    values: Values,
    groups: Groups,
    sensing: Sensing,
    sessions: BTreeSet<u64>,
    answers: Answers,
    frames: Vec<(Host, Vec<u8>)>,
    plain: Vec<Act>,
    /// What this node is like, as it was told last.
    vitals: Vitals,
    now: u64,
    is_own_asked: bool,
    /// Revision in which this server's own key was put last.
    own_put_at: u64,
}

impl Core {
    pub fn new(own: Host, now: u64) -> Core {
        Core {
            own,
            returns_until: Some(now + RETURN_MS),
            past: Past::Forgotten,
            has_settled: false,
            replica: Replica::default(),
            desk: Desk::default(),
            races: Races::new(own.node),
            values: Values::new(own.node),
            groups: Groups::new(own),
            sensing: Sensing::default(),
            sessions: BTreeSet::new(),
            answers: Answers::default(),
            frames: Vec::new(),
            plain: Vec::new(),
            vitals: Vitals::default(),
            now,
            is_own_asked: false,
            own_put_at: 0,
        }
    }

    pub fn own(&self) -> Host {
        self.own
    }

    /// Whether clients may be welcomed: everything in the engine is known.
    pub fn is_ready(&self) -> bool {
        self.replica.is_listed()
    }

    pub fn set_vitals(&mut self, vitals: Vitals) {
        self.vitals = vitals;
    }

    /// Servers of the other nodes that live.
    pub fn peers(&self) -> Vec<Host> {
        let hosts = self.replica.below("n/").filter_map(|known| {
            let node = known.key.strip_prefix("n/")?.parse().ok()?;
            let incarnation = std::str::from_utf8(&known.value).ok()?.parse().ok()?;
            Some(Host { node, incarnation })
        });
        hosts.filter(|host| host.node != self.own.node).collect()
    }

    // ---- the engine

    pub fn desk_said(&mut self, said: FromDesk, now: u64) {
        self.now = now;
        let was_listed = self.replica.is_listed();
        if matches!(said, FromDesk::Hello(_)) {
            self.desk.restart();
        }
        if let Some((purpose, reply)) = self.desk.take(said.clone(), now) {
            return self.answered(purpose, reply);
        }
        let changed = self.replica.take(said);
        if !was_listed && self.replica.is_listed() {
            self.races.begin(&self.replica);
            self.past = self.past_of_node();
            self.returns_until = Some(now + RETURN_MS);
        }
        if self.replica.is_listed() {
            self.keep_own();
            self.news(&changed);
        }
    }

    fn news(&mut self, changed: &[String]) {
        if changed.is_empty() {
            return;
        }
        self.races.news(changed, (&self.replica, &mut self.desk, &mut self.answers));
        self.values.news(changed, (&self.replica, &mut self.answers));
        self.groups
            .news(changed, &mut around(self.now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames)));
        for node in changed.iter().filter_map(|key| key.strip_prefix("n/")?.parse().ok()) {
            if self.replica.get(&format!("n/{node}")).is_none() {
                self.sensing.forget(node);
            }
        }
    }

    /// This server's own key: without it others take it for dead, so a new life has to begin.
    fn keep_own(&mut self) {
        if is_alive_in_engine(self.own, &self.replica) {
            self.has_settled = true;
            return;
        }
        // The news of what was put last may be under way.
        if self.is_own_asked || self.replica.seen() < self.own_put_at {
            return;
        }
        if std::mem::take(&mut self.has_settled) {
            self.own.incarnation += 1;
            self.plain.push(Act::Reborn(self.own.incarnation));
            let own = self.own;
            let mut around = around(self.now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
            self.groups.begin_anew(own, &mut around);
        }
        self.is_own_asked = true;
        let (key, value) = (format!("n/{}", self.own.node), self.own.incarnation.to_string().into_bytes());
        let edits = vec![Edit::Put { key, value, stay: Stay::Leased }];
        self.desk.ask(DeskQuestion::Transact { givens: Vec::new(), edits }, Purpose::Own, Patience::Waits);
    }

    fn answered(&mut self, purpose: Purpose, reply: Reply) {
        match purpose {
            Purpose::Wish(key) => {
                self.races.was_put(&key, reply, (&self.replica, &mut self.desk, &mut self.answers));
            }
            Purpose::Withdrawal(key) => self.races.was_withdrawn(&key, (&mut self.desk, &mut self.answers)),
            Purpose::Confirm(ticket) => match reply {
                Reply::Done(_) => self.answers.give(ticket, Answered::default()),
                Reply::Conflict(_) | Reply::Found(_) => self.answers.refuse(ticket, Errno::NoEntry),
                Reply::Failed(_) => self.answers.refuse(ticket, Errno::Unreachable),
            },
            Purpose::Get(ticket) => Values::got(ticket, reply, &mut self.answers),
            Purpose::Value(session) => {
                self.values.was_changed(session, reply, (&mut self.desk, &mut self.answers));
            }
            Purpose::Own => {
                self.is_own_asked = false;
                if let Reply::Done(revision) = reply {
                    self.own_put_at = revision;
                }
            }
            Purpose::Charter(name) => {
                let mut around = around(self.now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
                self.groups.decided(&name, reply, &mut around);
            }
            Purpose::Tidy => {}
        }
    }

    /// Whether the predecessor of this server had one life only, whose lease goes on.
    fn past_of_node(&self) -> Past {
        let known = self.replica.get(&format!("n/{}", self.own.node));
        let before = known.and_then(|known| std::str::from_utf8(&known.value).ok()?.parse::<u64>().ok());
        let is_first_life = before.is_some_and(|incarnation| incarnation.is_multiple_of(1 << LIVES_BITS));
        if is_first_life { Past::Remembered } else { Past::Forgotten }
    }

    // ---- sessions

    /// A client greeted: the highest of its changes that happened. `ESTALE`: what it did is not known any more.
    pub fn open(&mut self, session: u64, acknowledged: u64, now: u64) -> Result<u64, Errno> {
        self.now = now;
        if self.sessions.contains(&session) {
            self.close(session, now);
        }
        let past = if self.returns_until.is_some() { self.past } else { Past::Over };
        let highest = self.values.open(session, acknowledged, past, &self.replica)?;
        self.sessions.insert(session);
        self.races.adopt(session, &self.replica);
        Ok(highest)
    }

    /// The ring of a client ended, and with it all it had.
    pub fn close(&mut self, session: u64, now: u64) {
        self.now = now;
        if !self.sessions.remove(&session) {
            return;
        }
        self.races.end(session, &mut self.desk);
        self.values.end(session, &mut self.desk);
        self.sensing.end(session);
        let mut around = around(now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
        self.groups.end(session, &mut around);
    }

    /// Time is that of the call, in milliseconds and microseconds.
    pub fn call(&mut self, call: ClientCall<'_>, (now, now_us): (u64, u64)) {
        self.now = now;
        let ticket = call.ticket;
        if let Err(errno) = self.try_call(call, now_us) {
            self.answers.refuse(ticket, errno);
        }
    }

    fn try_call(&mut self, call: ClientCall<'_>, now_us: u64) -> Result<(), Errno> {
        let ClientCall { ticket, session, sequence, room, request } = call;
        let now = self.now;
        let until = |wait_ms: u64| now + wait_ms.min(WAIT_MAX_MS);
        let named = |race: Race, bytes: &[u8]| Ok::<_, Errno>((race, names::name(bytes)?));
        match request {
            Request::Acquire(ask) => {
                let (race, name) = named(ask.race, ask.name.0)?;
                let is_lock = race == Race::Lock;
                if ask.value.len() > if is_lock { 0 } else { CANDIDATE_BYTES_MAX } {
                    return Err(Errno::Invalid);
                }
                let world = (&self.replica, &mut self.desk, &mut self.answers);
                let wait = (ticket, until(ask.wait_ms));
                self.races.acquire((race, &name), session, ask.value, wait, now, world);
            }
            Request::Release(ask) => {
                let (race, name) = named(ask.race, ask.name.0)?;
                let world = (&mut self.desk, &mut self.answers);
                self.races.release((race, &name), session, ask.token, ticket, world);
            }
            Request::Owner(ask) => {
                let (race, name) = named(ask.race, ask.name.0)?;
                let (wait, world) = ((ticket, until(ask.wait_ms)), (&self.replica, &mut self.answers));
                self.races.owner((race, &name), ask.seen, session, wait, now, world);
            }
            Request::Confirm(ask) => {
                let (race, name) = named(ask.race, ask.name.0)?;
                Races::confirm((race, &name), self.own.node, session, ask.token, ticket, &mut self.desk);
            }
            Request::Get(ask) => Values::get(&names::key(ask.key.0)?, ticket, &mut self.desk),
            Request::Put(ask) => {
                if ask.value.len() > VALUE_BYTES_MAX {
                    return Err(Errno::Invalid);
                }
                let (key, value) = (names::key(ask.key.0)?, Some(ask.value.to_vec()));
                self.change(session, ticket, Order { sequence, key, value, condition: ask.condition })?;
            }
            Request::Delete(ask) => {
                let key = names::key(ask.key.0)?;
                self.change(session, ticket, Order { sequence, key, value: None, condition: ask.condition })?;
            }
            Request::List(ask) => {
                let (prefix, after) = (names::prefix(ask.prefix.0)?, names::prefix(ask.after.0)?);
                self.answers.give(ticket, Values::list(&prefix, &after, room, &self.replica)?);
            }
            Request::Watch(ask) => {
                let prefix = names::prefix(ask.prefix.0)?;
                let (wait, world) = ((ticket, until(ask.wait_ms), room), (&self.replica, &mut self.answers));
                self.values.watch((&prefix, ask.seen), session, wait, now, world);
            }
            Request::Sense(ask) => self.sense((ticket, session, ask.wait_ms), now_us),
            Request::ViewOf(ask) => {
                let group = names::name(ask.group.0)?;
                let (wait, world) = ((ticket, until(ask.wait_ms)), (&self.replica, &mut self.answers));
                self.groups.view((&group, ask.seen), session, wait, now, world);
            }
            Request::Join(_) | Request::Leave(_) | Request::Send(_) | Request::Receive(_) => {
                self.call_group(request, ticket, session, room)?;
            }
            Request::Link(_) => return Err(Errno::NotPermitted),
        }
        Ok(())
    }

    fn call_group(&mut self, request: Request<'_>, ticket: Ticket, session: u64, room: usize) -> Result<(), Errno> {
        let now = self.now;
        let until = |wait_ms: u64| now + wait_ms.min(WAIT_MAX_MS);
        let mut around = around(now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
        match request {
            Request::Join(ask) => {
                let (group, called) = (names::name(ask.group.0)?, names::name(ask.name)?);
                self.groups.join(&group, &called, session, (ticket, until(ask.wait_ms)), &mut around);
            }
            Request::Leave(ask) => self.groups.leave(ask.member, session, ticket, &mut around),
            Request::Send(ask) => {
                let (member, place) = ((ask.member, session), (ask.level, ask.first));
                self.groups.send(member, place, ask.messages, ticket, &mut around);
            }
            Request::Receive(ask) => {
                let wait = (ticket, until(ask.wait_ms), room);
                self.groups.receive((ask.member, session), wait, &mut around);
            }
            _ => {}
        }
        Ok(())
    }

    fn change(&mut self, session: u64, ticket: Ticket, order: Order) -> Result<(), Errno> {
        if order.sequence == 0 {
            return Err(Errno::Invalid);
        }
        self.values.change(session, order, ticket, (&mut self.desk, &mut self.answers));
        Ok(())
    }

    fn sense(&mut self, asker: (Ticket, u64, u64), now_us: u64) {
        let peers = self.peers();
        let nodes: Vec<u8> = peers.iter().map(|host| host.node).collect();
        let own = (self.own.node, self.vitals);
        if self.sensing.ask(asker, &nodes, (self.now, now_us), own, &mut self.answers) {
            self.plain.extend(peers.into_iter().map(|host| Act::Send(host, vec![ASK_VITALS])));
        }
    }

    // ---- other servers

    /// A frame of another server, in the order in which it sent them.
    pub fn linked(&mut self, from: Host, frame: &[u8], (now, now_us): (u64, u64)) {
        self.now = now;
        match frame.split_first() {
            Some((&GROUP_FRAME, rest)) => {
                let mut around = around(now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
                self.groups.heard(from, rest, &mut around);
            }
            Some((&ASK_VITALS, [])) => {
                let frame = [&[VITALS][..], &self.vitals.to_bytes()].concat();
                self.plain.push(Act::Send(from, frame));
            }
            Some((&VITALS, rest)) => {
                if let Some(vitals) = Vitals::from_bytes(rest) {
                    self.sensing.heard(from.node, vitals, (now, now_us), &mut self.answers);
                }
            }
            _ => tracing::warn!(?from, "a frame makes no sense"),
        }
    }

    // ---- turns

    pub fn deadline(&self) -> Option<u64> {
        let parts = [
            self.desk.deadline(),
            self.races.deadline(&self.replica),
            self.values.deadline(),
            self.groups.deadline(),
            self.sensing.deadline(),
            self.returns_until,
        ];
        parts.into_iter().flatten().min()
    }

    /// The end of a turn: what is to be done now.
    pub fn turn(&mut self, now: u64) -> Vec<Act> {
        self.now = now;
        self.desk.tick(now);
        self.races.tick(now, (&self.replica, &mut self.desk, &mut self.answers));
        self.values.tick(now, (&self.replica, &mut self.answers));
        self.sensing.settle(now, &mut self.answers);
        if self.is_ready() && self.returns_until.take_if(|until| *until <= now).is_some() {
            self.races.abandon_orphans(&self.replica, &mut self.desk);
            self.values.forget_absent(&self.replica, &mut self.desk);
        }
        let mut around = around(now, &self.replica, (&mut self.desk, &mut self.answers, &mut self.frames));
        self.groups.flush(&mut around);
        let mut effects = std::mem::take(&mut self.plain);
        effects.extend(self.answers.0.drain(..).map(|(ticket, answer)| Act::Answer(ticket, answer)));
        effects.extend(self.desk.packets().into_iter().map(Act::Ask));
        let framed = |(host, frame): (Host, Vec<u8>)| Act::Send(host, [vec![GROUP_FRAME], frame].concat());
        effects.extend(self.frames.drain(..).map(framed));
        effects
    }
}

fn is_alive_in_engine(own: Host, replica: &Replica) -> bool {
    // An impossible own host, so that the engine alone decides.
    is_alive(own, Host { node: u8::MAX, incarnation: 0 }, replica)
}

fn around<'a>(
    now: u64,
    replica: &'a Replica,
    (desk, answers, frames): (&'a mut Desk, &'a mut Answers, &'a mut Vec<(Host, Vec<u8>)>),
) -> Around<'a> {
    Around { now, replica, desk, answers, frames }
}
