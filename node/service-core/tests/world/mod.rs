//! Three nodes and an engine, in steps of 10 ms. A node has a daemon, which may be killed, stand still and know what
//! was true a while ago, and a keeper, which may be killed with what it holds. Every daemon that reaches the engine is
//! a placer, too. Nodes are cut off and heal; people stop, start and move the instance; requests to keepers and reports
//! to the engine are on their way for a while, also when who sent them is dead. Decisions are those of the crate.

use std::time::{Duration, Instant};

use service_core::record::{self, InstanceRecord, NextPlace, Wish};
use service_core::tenure::{
    self, Begin, EXTEND_EVERY, HEARING, OBJECTION, Over, PERMIT, PlacerView, Run, RunRefusal, RunTenure,
};

pub const NODES: usize = 3;
const STEP: Duration = Duration::from_millis(10);
/// Of a link: nothing heard for so long.
const SUSPECT: Duration = Duration::from_millis(300);
const ASLEEP: Duration = Duration::from_millis(150);

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// A keeper holds on when its permit is over.
    Permit,
    /// A keeper takes a request however late it comes.
    LateStart,
    /// A successor is placed as soon as there is a verdict.
    Succession,
    /// A node that begins anew goes on with what was placed in the incarnation that is over.
    Incarnation,
    /// An answer to a node whose incarnation was judged counts.
    Judged,
    /// A move is taken back in the same epoch.
    TakenBack,
    /// What is said of another incarnation of the node extends a permit.
    Stranger,
    /// A daemon reports that it is over before its keeper ended it.
    Report,
    /// Records are written without a look at what is there.
    Compare,
}

impl Broken {
    pub const ALL: [Broken; 9] = [
        Broken::Permit,
        Broken::LateStart,
        Broken::Succession,
        Broken::Incarnation,
        Broken::Judged,
        Broken::TakenBack,
        Broken::Stranger,
        Broken::Report,
        Broken::Compare,
    ];
}

#[derive(Clone, Default, Debug)]
pub struct Seen {
    pub runs: u64,
    pub verdicts: u64,
    /// Successors of a node that said nothing.
    pub taken: u64,
    /// Successors of a node that said that it was over there.
    pub moved: u64,
    pub expired: u64,
    pub late_reports: u64,
    pub late_starts: u64,
    /// Permits that were extended while no daemon did.
    pub vouched: u64,
    /// Of two placers.
    pub lost_races: u64,
    pub keepers_lost: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.runs += other.runs;
        self.verdicts += other.verdicts;
        self.vouched += other.vouched;
        self.taken += other.taken;
        self.moved += other.moved;
        self.expired += other.expired;
        self.late_reports += other.late_reports;
        self.late_starts += other.late_starts;
        self.lost_races += other.lost_races;
        self.keepers_lost += other.keepers_lost;
    }
}

/// What the engine holds.
struct Engine {
    instance: InstanceRecord,
    wish: Wish,
    incarnations: [u64; NODES],
    verdicts: [u64; NODES],
    said_over: [u64; NODES],
}

struct Node {
    cut_since: Option<Instant>,
    daemon: Option<Daemon>,
    keeper: RunTenure,
    /// The epoch that its daemon permits, and in which incarnation: the node's proxies extend it while no daemon does.
    permitted: Option<(u64, u64)>,
    /// The incarnation for which they speak.
    proxies: u64,
    /// The program that the keeper started; it ends some time after a kill, and by itself.
    dies_at: Option<Instant>,
    to_keeper: Vec<(Instant, Request)>,
    /// Since when most accuse it, without an objection.
    hearing: Option<Instant>,
}

struct Daemon {
    stands_still_until: Instant,
    incarnation: u64,
    /// As it was told last, in this incarnation.
    known: Option<(InstanceRecord, u64)>,
    /// The last moment at which it knows that its node was there.
    was_there: Option<Instant>,
    extended: Option<Instant>,
    looked: Instant,
    /// Of the others: their last verdict and since when it is known here, and the hearing in which it took part.
    verdicts: [Option<(u64, Instant)>; NODES],
    hearings: [Option<Instant>; NODES],
    said_over: u64,
    /// A record that it is about to write, and the one that it came from.
    writes: Option<(Instant, InstanceRecord, InstanceRecord, bool)>,
}

#[derive(Clone, Copy)]
enum Request {
    Begin {
        run: Run,
        until: Instant,
    },
    Extend {
        epoch: u64,
        until: Instant,
        incarnation: u64,
    },
    /// Nothing is permitted any more.
    Hold,
    Close {
        epoch: u64,
    },
}

/// A report on its way to the engine.
struct Report {
    at: Instant,
    node: usize,
    epoch: u64,
    is_late: bool,
}

pub struct World {
    now: Instant,
    engine: Engine,
    nodes: Vec<Node>,
    reports: Vec<Report>,
    broken: Option<Broken>,
    random: u64,
    is_calm: bool,
    began: std::collections::BTreeSet<(usize, u64, Run)>,
    /// Lives of keepers: a run may begin once in each.
    lives: [u64; NODES],
    pub seen: Seen,
}

impl World {
    pub fn new(seed: u64, broken: Option<Broken>) -> World {
        let node = || Node {
            cut_since: None,
            daemon: None,
            keeper: RunTenure::default(),
            permitted: None,
            proxies: 0,
            dies_at: None,
            to_keeper: Vec::new(),
            hearing: None,
        };
        let engine = Engine {
            instance: InstanceRecord::default(),
            wish: Wish::Runs,
            incarnations: [0; NODES],
            verdicts: [0; NODES],
            said_over: [0; NODES],
        };
        World {
            now: Instant::now(),
            engine,
            nodes: (0..NODES).map(|_| node()).collect(),
            reports: Vec::new(),
            broken,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            is_calm: false,
            began: Default::default(),
            lives: [0; NODES],
            seen: Seen::default(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % bound
    }

    fn chance(&mut self, of: u64) -> bool {
        !self.is_calm && self.below(of) == 0
    }

    fn ms(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most.max(1)))
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    pub fn turn(&mut self) -> Result<(), String> {
        self.now += STEP;
        self.disturb();
        for at in 0..NODES {
            self.judge(at);
        }
        for at in 0..NODES {
            self.daemon(at);
            self.requests(at)?;
            self.keeper(at);
        }
        self.land_reports();
        self.check()
    }

    /// Everything heals; then it runs where its record says, if it is to run.
    pub fn calm(&mut self) -> Result<(), String> {
        self.is_calm = true;
        for node in &mut self.nodes {
            node.cut_since = None;
        }
        for _ in 0..2_000 {
            self.turn()?;
        }
        let holders: Vec<usize> = (0..NODES).filter(|at| self.nodes[*at].keeper.held().is_some()).collect();
        let record = &self.engine.instance;
        let placed = record.placement.as_ref().map(|it| number(&it.node));
        match (self.engine.wish, holders.as_slice()) {
            (Wish::Stopped, []) if placed.is_none() => Ok(()),
            (Wish::Runs, [at]) if placed == Some(*at) => {
                let epoch = self.nodes[*at].keeper.held().map(|run| run.epoch);
                if epoch == Some(record.epoch) { Ok(()) } else { Err(format!("of another epoch: {record:?}")) }
            }
            (wish, holders) => Err(format!("all is well, {wish:?}, it is on {holders:?}, recorded {record:?}")),
        }
    }

    fn disturb(&mut self) {
        for at in 0..NODES {
            if self.nodes[at].cut_since.is_none() && self.chance(500) {
                self.nodes[at].cut_since = Some(self.now);
            } else if self.nodes[at].cut_since.is_some() && self.chance(130) {
                self.nodes[at].cut_since = None;
            }
            if self.nodes[at].daemon.is_some() && self.chance(500) {
                self.nodes[at].daemon = None;
            }
            if self.nodes[at].daemon.is_none() && (self.is_calm || self.below(150) == 0) && self.reaches(at) {
                self.begin_anew(at);
            }
            if self.chance(300) {
                let until = self.now + self.ms(4000);
                if let Some(daemon) = &mut self.nodes[at].daemon {
                    daemon.stands_still_until = until;
                }
            }
            if self.chance(700) {
                // Programs and requests end with it.
                self.nodes[at].keeper = RunTenure::default();
                self.nodes[at].permitted = None;
                self.nodes[at].dies_at = None;
                self.nodes[at].to_keeper.clear();
                self.lives[at] += 1;
                self.seen.keepers_lost += 1;
            }
            if self.nodes[at].keeper.held().is_some() && self.chance(400) {
                self.nodes[at].dies_at = Some(self.now);
            }
        }
        if self.chance(300) {
            self.engine.wish = if self.engine.wish == Wish::Runs { Wish::Stopped } else { Wish::Runs };
        }
        if self.chance(150)
            && let Some(next) = record::move_away(&self.engine.instance)
        {
            self.engine.instance = next;
        }
    }

    fn reaches(&self, at: usize) -> bool {
        self.nodes[at].cut_since.is_none()
    }

    /// Registers in the next incarnation: a new daemon, and one that heard that its incarnation is over.
    fn begin_anew(&mut self, at: usize) {
        self.engine.incarnations[at] += 1;
        self.nodes[at].proxies = self.engine.incarnations[at];
        self.nodes[at].hearing = None;
        self.nodes[at].daemon = Some(Daemon {
            stands_still_until: self.now,
            incarnation: self.engine.incarnations[at],
            known: None,
            was_there: None,
            extended: None,
            looked: self.now,
            verdicts: [None; NODES],
            hearings: [None; NODES],
            said_over: 0,
            writes: None,
        });
    }

    /// What the others do about a node that they do not hear: accuse, and sentence it after a hearing. It objects as
    /// long as it reaches the engine.
    fn judge(&mut self, at: usize) {
        let now = self.now;
        let is_silent = self.nodes[at].cut_since.is_some_and(|since| now - since >= SUSPECT);
        let is_over = self.engine.verdicts[at] >= self.engine.incarnations[at];
        if !is_silent || is_over || self.nodes.iter().filter(|node| node.cut_since.is_none()).count() < 2 {
            self.nodes[at].hearing = None;
            return;
        }
        let began = *self.nodes[at].hearing.get_or_insert(now);
        for other in (0..NODES).filter(|other| *other != at) {
            let reaches = self.reaches(other);
            if let Some(daemon) = &mut self.nodes[other].daemon
                && reaches
                && now >= daemon.stands_still_until
            {
                // Seen later than it began, never earlier.
                daemon.hearings[at].get_or_insert(now.max(began));
            }
        }
        // The engine may be without a leader meanwhile.
        if now - began >= HEARING && (self.is_calm || self.below(40) == 0) {
            self.engine.verdicts[at] = self.engine.incarnations[at];
            self.seen.verdicts += 1;
        }
    }

    fn daemon(&mut self, at: usize) {
        let now = self.now;
        let reaches = self.reaches(at);
        let is_there = reaches || self.is_cut_shortly(at);
        let counts_anyhow = self.is(Broken::Judged);
        let is_told = reaches && (self.is_calm || self.below(8) == 0);
        let is_heard: Vec<bool> = (0..NODES)
            .map(|other| {
                self.nodes[other].hearing.is_none() && self.engine.verdicts[other] < self.engine.incarnations[other]
            })
            .collect();
        let Some(daemon) = &mut self.nodes[at].daemon else { return };
        if now < daemon.stands_still_until {
            return;
        }
        // Who did not look knows nothing of what happened meanwhile, as `judge` has it.
        let was_asleep = now - daemon.looked > ASLEEP;
        daemon.looked = now;
        for (hearing, is_heard) in daemon.hearings.iter_mut().zip(is_heard) {
            hearing.take_if(|_| is_heard || was_asleep);
        }
        if reaches && self.engine.verdicts[at] >= daemon.incarnation {
            self.begin_anew(at);
            return;
        }
        // Whoever hears it, and the engine, knows the verdict: a stranger is not heard, and an answer says so.
        if is_there && (self.engine.verdicts[at] < daemon.incarnation || counts_anyhow) {
            daemon.was_there = Some(now);
        }
        if is_told || reaches && daemon.known.is_none() {
            daemon.known = Some((self.engine.instance.clone(), self.engine.verdicts[at]));
            for (known, judged) in daemon.verdicts.iter_mut().zip(self.engine.verdicts) {
                if judged > 0 && known.is_none_or(|(before, _)| before < judged) {
                    *known = Some((judged, now));
                }
            }
        }
        self.work(at);
        if reaches {
            self.place(at);
        }
    }

    /// Half of the others may have heard it until it is suspected; the engine until its first objection would be due.
    fn is_cut_shortly(&self, at: usize) -> bool {
        self.nodes[at].cut_since.is_some_and(|since| self.now - since < SUSPECT + OBJECTION)
    }

    /// What the worker of a node does about its keeper.
    fn work(&mut self, at: usize) {
        let now = self.now;
        let (late, delay) = (self.chance(3), self.ms(400));
        let broken = self.broken;
        let due = now + if late { delay * 5 } else { STEP };
        let node = &mut self.nodes[at];
        let Some(daemon) = &mut node.daemon else { return };
        let (Some((instance, verdict)), Some(was_there)) = (daemon.known.clone(), daemon.was_there) else { return };
        let until = was_there + PERMIT;
        let verdict = if broken == Some(Broken::Incarnation) { 0 } else { verdict };
        let keeps = record::may_hold(&instance, &name(at), verdict);
        if keeps {
            if daemon.extended.is_none_or(|last| now - last >= EXTEND_EVERY) {
                daemon.extended = Some(now);
                let last = node.keeper.last();
                let number = if last.epoch == instance.epoch { last.number + 1 } else { 1 };
                let run = Run { epoch: instance.epoch, number };
                let has = node.keeper.held().is_some_and(|held| held.epoch == instance.epoch);
                if has {
                    let (epoch, incarnation) = (instance.epoch, daemon.incarnation);
                    node.to_keeper.push((now + STEP, Request::Extend { epoch, until, incarnation }));
                } else {
                    if let Some(held) = node.keeper.held() {
                        node.to_keeper.push((now + STEP, Request::Close { epoch: held.epoch }));
                    }
                    node.to_keeper.push((due, Request::Begin { run, until }));
                }
            }
            return;
        }
        node.to_keeper.push((now + STEP, Request::Hold));
        // Whatever is here of this record and earlier ones is over.
        let Some(placement) = &instance.placement else {
            if node.keeper.held().is_some() {
                node.to_keeper.push((now + STEP, Request::Close { epoch: instance.epoch }));
            }
            return;
        };
        let epoch = if placement.node == name(at) { instance.epoch } else { instance.epoch - 1 };
        if !node.keeper.is_over(epoch) {
            node.to_keeper.push((now + STEP, Request::Close { epoch }));
        }
        let is_over = node.keeper.is_over(epoch) || broken == Some(Broken::Report);
        if is_over && placement.node == name(at) && daemon.said_over < epoch {
            daemon.said_over = epoch;
            let at_engine = now + if late { delay * 10 } else { STEP };
            self.reports.push(Report { at: at_engine, node: at, epoch, is_late: late });
        }
        // A daemon says it again when it was not heard.
        if self.below(100) == 0
            && let Some(daemon) = &mut self.nodes[at].daemon
        {
            daemon.said_over = 0;
        }
    }

    /// What a placer does about the record.
    fn place(&mut self, at: usize) {
        let now = self.now;
        let jitter = self.ms(300);
        let compares = !self.is(Broken::Compare);
        let due = self.nodes[at].daemon.as_mut().and_then(|daemon| daemon.writes.take_if(|(due, ..)| *due <= now));
        if let Some((_, from, to, is_taken)) = due {
            if self.engine.instance == from || !compares {
                if from.placement.is_some() && to.placement.is_none() {
                    self.seen.taken += u64::from(is_taken);
                    self.seen.moved += u64::from(!is_taken);
                }
                self.engine.instance = to;
            } else {
                self.seen.lost_races += 1;
            }
            return;
        }
        let start = self.below(NODES as u64) as usize;
        let wish = self.engine.wish;
        let reachable: Vec<bool> =
            (0..NODES).map(|node| self.reaches(node) && self.nodes[node].daemon.is_some()).collect();
        let engine = &self.engine;
        let broken = self.broken;
        let Some(daemon) = &mut self.nodes[at].daemon else { return };
        let Some((instance, _)) = &daemon.known else { return };
        if daemon.writes.is_some() {
            return;
        }
        let standing = instance.placement.as_ref().map(|placement| {
            let of = number(&placement.node);
            let standing = PlacerView {
                verdict: daemon.verdicts[of],
                hearing: daemon.hearings[of],
                said_over: engine.said_over[of],
            };
            (tenure::over(instance.epoch, placement.incarnation, &standing, now), standing, placement.incarnation)
        });
        let is_judged =
            standing.is_some_and(|(_, it, incarnation)| it.verdict.is_some_and(|(over, _)| over >= incarnation));
        let over = match standing {
            Some(_) if broken == Some(Broken::Succession) && is_judged => Over::Yes,
            Some((over, ..)) => over,
            None => Over::No,
        };
        let is_taken = standing.is_some_and(|(_, it, _)| it.said_over < instance.epoch);
        let chosen = (0..NODES).map(|step| (start + step) % NODES).find(|node| reachable[*node]);
        let place = chosen.map(|node| NextPlace { node: name(node), incarnation: engine.incarnations[node] });
        let mut next = record::next(instance, wish, over, place.as_ref());
        if broken == Some(Broken::TakenBack) && wish == Wish::Runs && next.is_none() {
            let mut back = instance.clone();
            if let Some(placement) = &mut back.placement {
                placement.stay = record::Staying::Stays;
            }
            next = (back != *instance).then_some(back);
        }
        if let Some(next) = next {
            daemon.writes = Some((now + jitter, instance.clone(), next, is_taken));
        }
    }

    fn requests(&mut self, at: usize) -> Result<(), String> {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) = self.nodes[at].to_keeper.drain(..).partition(|(due, _)| *due <= now);
        self.nodes[at].to_keeper = later;
        for (_, request) in due {
            let ends_in = self.ms(120);
            let takes_late = self.is(Broken::LateStart);
            let node = &mut self.nodes[at];
            match request {
                Request::Begin { run, until } => {
                    let until = if takes_late { until.max(now + PERMIT) } else { until };
                    match node.keeper.begin(run, until, now) {
                        Begin::Start => {
                            self.seen.runs += 1;
                            if !self.began.insert((at, self.lives[at], run)) {
                                return Err(format!("{run:?} began twice in one keeper"));
                            }
                        }
                        Begin::Refused(RunRefusal::Late) => self.seen.late_starts += 1,
                        Begin::Begun | Begin::Refused(_) => (),
                    }
                }
                Request::Extend { epoch, until, incarnation } => {
                    node.keeper.extend(epoch, until);
                    node.permitted = Some((epoch, incarnation));
                }
                Request::Hold => node.permitted = None,
                Request::Close { epoch } => {
                    if node.keeper.close(epoch).is_some() {
                        node.dies_at.get_or_insert(now + ends_in);
                    }
                }
            }
        }
        Ok(())
    }

    fn keeper(&mut self, at: usize) {
        let now = self.now;
        let holds_on = self.is(Broken::Permit);
        // A proxy that a verdict covers is a stranger to the others; without the rule it asks nobody which it is of.
        let is_judged = self.engine.verdicts[at] >= self.nodes[at].proxies && !self.is(Broken::Stranger);
        let is_vouched_for = (self.reaches(at) || self.is_cut_shortly(at)) && !is_judged;
        let node = &mut self.nodes[at];
        let is_of_it = |incarnation: u64| incarnation == node.proxies || self.broken == Some(Broken::Stranger);
        if let Some((epoch, _)) = node.permitted.filter(|(_, incarnation)| is_vouched_for && is_of_it(*incarnation))
            && node.keeper.expired(now).is_some()
        {
            self.seen.vouched += 1;
            node.keeper.extend(epoch, now + PERMIT);
        }
        if node.keeper.expired(now).is_some() && !holds_on {
            self.seen.expired += 1;
            // SIGKILL.
            node.dies_at = Some(now);
        }
        if node.dies_at.is_some_and(|at| at <= now) {
            node.dies_at = None;
            if let Some(run) = node.keeper.held() {
                node.keeper.ended(run);
            }
        }
    }

    fn land_reports(&mut self) {
        let now = self.now;
        for report in self.reports.extract_if(.., |report| report.at <= now).collect::<Vec<_>>() {
            // A member that hands it on is not cut off, whatever its node is.
            let said = &mut self.engine.said_over[report.node];
            *said = (*said).max(report.epoch);
            self.seen.late_reports += u64::from(report.is_late);
        }
    }

    fn check(&self) -> Result<(), String> {
        let holders: Vec<(usize, Run)> =
            self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.keeper.held()?))).collect();
        if holders.len() > 1 {
            return Err(format!("it runs twice: {holders:?}, recorded {:?}", self.engine.instance));
        }
        Ok(())
    }
}

fn name(at: usize) -> String {
    format!("n{at}")
}

fn number(name: &str) -> usize {
    name.trim_start_matches('n').parse().unwrap_or(0)
}
