//! The worker of a container's services on this node: a thread that reads what was placed here, has its keeper begin
//! and end it, extends permits, asks whether it is well, and reports.
//!
//! What may wait for a file tree or a network (the start of a program, a check) is done by threads of their own, which
//! say what came of it; permits are extended meanwhile.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use keeper::{KeeperClient, KeeperError, Permit, PresenceWatch, Refusal, RunStanding};
use mgmt_api::{Bytes, HealthProbe, NoUser, ProgramUser, RootFs, RunRequest, ServiceSpec, ServiceState};
use service_core::life::{FoundRun, InstanceLife, LifeStep};
use service_core::record::{Staying, may_hold};
use service_core::restart::RunEnd;
use service_core::tenure::{EXTEND_EVERY, Run, RunRefusal};
use service_core::{order, wish};
use vos_api::ports::NodeAddress;

use super::assurance::{Assurance, Holding};
use super::probe;
use super::record::{Asked, ServiceView, StoredInstance, Told, over_key, service_key, told_key, views};
use super::reporter::Reporter;
use crate::context::Context;
use crate::reconcile::parts::keeper_socket;
use crate::reconcile::share::Share;
use crate::records::{DcRecord, Desired, encode, now_s};
use crate::waiting;

/// Without anything here.
const IDLE: Duration = Duration::from_secs(30);
/// After a start that the keeper did not even try.
const TRY_AGAIN: Duration = Duration::from_millis(500);
/// What a keeper has of an instance that nobody describes any more.
const STRAY_GRACE: Duration = Duration::from_secs(10);

/// What all workers of a node share.
pub struct Common {
    pub context: Arc<Context>,
    pub assurance: Assurance,
    pub reporter: Reporter,
}

/// Service and instance.
type Key = (String, usize);

struct Entry {
    life: InstanceLife,
    spec: ServiceSpec,
    epoch: u64,
    times: u64,
    told: Option<Told>,
    pid: u32,
    problem: Option<String>,
    /// It may not be here any more: how it ends says nothing about whether it is wanted.
    is_leaving: bool,
    /// A start is under way.
    is_beginning: bool,
    not_before: Option<Instant>,
    /// Of which run a check by command was begun, and as which run of its own.
    check: Option<(Run, Run)>,
}

enum Happened {
    Begun { key: Key, run: Run, answer: Result<Option<u32>, KeeperError> },
    Probed { key: Key, run: Run, is_well: bool },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    Service,
    Check,
}

pub struct Bell {
    pub fd: OwnedFd,
    pub is_over: AtomicBool,
    /// What the follower told is other than before.
    has_news: AtomicBool,
}

impl Bell {
    pub fn new() -> std::io::Result<Bell> {
        let (is_over, has_news) = (AtomicBool::new(false), AtomicBool::new(true));
        Ok(Bell { fd: sys::eventfd::create()?, is_over, has_news })
    }

    pub fn ring(&self) {
        sys::eventfd::signal(&self.fd);
    }

    pub fn ring_for_news(&self) {
        self.has_news.store(true, Ordering::Release);
        self.ring();
    }
}

pub struct Worker {
    common: Arc<Common>,
    dc: u32,
    bell: Arc<Bell>,
    keeper: Option<KeeperClient>,
    holding: Option<Holding>,
    entries: BTreeMap<Key, Entry>,
    /// Runs that the keeper has of what stands here no more, and when they are killed.
    strays: BTreeMap<String, Instant>,
    happened: (Sender<Happened>, Receiver<Happened>),
    /// As of the last news; nothing is ended before there are any.
    services: Option<BTreeMap<String, ServiceView>>,
}

impl Worker {
    pub fn new(common: Arc<Common>, dc: u32, bell: Arc<Bell>) -> Worker {
        Worker {
            common,
            dc,
            bell,
            keeper: None,
            holding: None,
            entries: BTreeMap::new(),
            strays: BTreeMap::new(),
            happened: channel(),
            services: None,
        }
    }

    pub fn run(mut self) {
        while !self.bell.is_over.load(Ordering::Acquire) {
            if self.bell.has_news.swap(false, Ordering::AcqRel) {
                // What makes no sense ends nothing: what was known before holds.
                match views(&*self.context().answers.mirror, self.dc) {
                    Ok(services) => self.services = Some(services),
                    Err(error) => {
                        tracing::error!(dc = self.dc, %error, "the services of a container are not understood")
                    }
                }
            }
            let until = match (self.services.take(), self.record()) {
                (Some(services), Some(record)) => {
                    let until = self.turn(&services, &record);
                    self.services = Some(services);
                    until
                }
                // A daemon that begins has heard of the services, and not yet of their container: what its keeper holds
                // is nobody's stray because of that.
                (services, _) => {
                    self.services = services;
                    Instant::now() + EXTEND_EVERY
                }
            };
            waiting::until_readable([self.bell.fd.as_fd()].into_iter(), until);
            sys::eventfd::drain(&self.bell.fd);
        }
    }

    fn context(&self) -> &Context {
        &self.common.context
    }

    /// Gives when to look again.
    fn turn(&mut self, services: &BTreeMap<String, ServiceView>, record: &DcRecord) -> Instant {
        let runs = record.desired == Desired::Running;
        let has_work = !self.entries.is_empty() || services.values().any(|view| self.concerns(view));
        let standings = match self.standings(services, runs) {
            Ok(standings) => standings,
            Err(KeeperError::NotThere { .. }) => {
                // Nothing of it is here, and nothing begins before there is another keeper.
                self.entries.clear();
                self.strays.clear();
                self.holding = None;
                if !runs {
                    self.report_over_without_a_keeper(services);
                }
                return Instant::now() + if has_work { TRY_AGAIN } else { IDLE };
            }
            Err(error) => {
                tracing::warn!(dc = self.dc, error = crate::supervise::causes(&error), "a keeper is not asked");
                return Instant::now() + TRY_AGAIN;
            }
        };
        self.follow(services, &standings, runs);
        if record.paused {
            let now = Instant::now();
            self.entries.values_mut().for_each(|entry| entry.life.stand(now));
        }
        self.hear_ends(&standings);
        self.hear();
        if runs && !record.paused {
            self.step(services);
        }
        self.end_strays(services, &standings);
        self.report(services, &standings);
        let rests = |entry: &Entry| matches!(entry.life.state(), ServiceState::Stopped | ServiceState::Failed);
        if standings.iter().any(|one| one.is_held) || !self.entries.values().all(rests) {
            self.hold();
            return Instant::now() + EXTEND_EVERY;
        }
        // Nothing has to be permitted; what is new rings.
        self.holding = None;
        Instant::now() + if has_work { TRY_AGAIN } else { IDLE }
    }

    /// From now on the node's being there is established.
    fn hold(&mut self) {
        if self.holding.is_none() {
            self.holding = Some(self.common.assurance.hold());
        }
    }

    fn record(&self) -> Option<DcRecord> {
        self.context().observed.lock().record_of(self.dc).cloned()
    }

    /// With the container's variables; the service's own come last and win.
    fn request(&self, spec: &ServiceSpec) -> RunRequest {
        let mut request = request(spec);
        let of_all = self.record().map(|record| record.spec.env).unwrap_or_default();
        request.env.splice(0..0, of_all);
        request
    }

    fn concerns(&self, view: &ServiceView) -> bool {
        let own = &self.context().config.node;
        let mut placements = view.record.instances.iter().filter_map(|it| it.placement.as_ref());
        placements.any(|placement| placement.node == *own)
    }

    /// Extends the permits of what may go on, and asks how everything stands.
    fn standings(
        &mut self,
        services: &BTreeMap<String, ServiceView>,
        runs: bool,
    ) -> Result<Vec<RunStanding>, KeeperError> {
        if self.keeper.is_none() {
            self.keeper = Some(self.connect()?);
        }
        let mut epochs: BTreeMap<Key, u64> = BTreeMap::new();
        if runs {
            // A daemon that begins has no life yet of what its keeper holds.
            epochs.extend(self.placed_here(services).into_iter().map(|(key, (_, stored))| (key, stored.epoch)));
        }
        epochs.extend(self.entries.iter().map(|(key, entry)| (key.clone(), entry.epoch)));
        let permit = |((name, index), epoch): (Key, u64)| Permit { instance: instance(&name, index), epoch };
        let permits = epochs.into_iter().map(permit).collect();
        let until = self.common.assurance.until_ns();
        let Some(keeper) = &self.keeper else { return Ok(Vec::new()) };
        let presence = PresenceWatch {
            path: crate::proxyctl::presence(&self.context().config),
            incarnation: self.context().node.epoch,
        };
        match keeper.hold_runs(permits, until, Some(presence)) {
            Err(error) => {
                self.keeper = None;
                let path = keeper_socket(&self.context().config.dc_run_dir(self.dc));
                Err(match error {
                    KeeperError::Gone { .. } => {
                        KeeperError::NotThere { path, cause: std::io::ErrorKind::NotFound.into() }
                    }
                    other => other,
                })
            }
            standings => standings,
        }
    }

    fn connect(&self) -> Result<KeeperClient, KeeperError> {
        KeeperClient::connect(keeper_socket(&self.context().config.dc_run_dir(self.dc)))
    }

    /// One life for each instance that stands here, and an end for each that does not any more.
    fn follow(&mut self, services: &BTreeMap<String, ServiceView>, standings: &[RunStanding], runs: bool) {
        let now = Instant::now();
        let here = self.placed_here(services);
        for (key, (view, stored)) in &here {
            self.keep(key, view, stored, standings, runs, now);
        }
        // What leaves is ended by its own life: signal, grace, kill.
        let gone: Vec<Key> = self.entries.keys().filter(|key| !here.contains_key(*key)).cloned().collect();
        for key in gone {
            self.end(&key, standings, now);
        }
    }

    /// What this node may hold.
    fn placed_here<'a>(
        &self,
        services: &'a BTreeMap<String, ServiceView>,
    ) -> BTreeMap<Key, (&'a ServiceView, &'a StoredInstance)> {
        let own = &self.context().config.node;
        let verdict = self.context().verdicts.read().get(own).copied().unwrap_or(0);
        let instances = services.iter().flat_map(|(name, view)| {
            view.record.instances.iter().enumerate().map(move |(index, stored)| ((name.clone(), index), (view, stored)))
        });
        instances.filter(|(_, (_, stored))| may_hold(&stored.decided(), own, verdict)).collect()
    }

    fn keep(
        &mut self,
        key: &Key,
        view: &ServiceView,
        stored: &StoredInstance,
        standings: &[RunStanding],
        runs: bool,
        now: Instant,
    ) {
        let spec = &view.record.spec;
        let times = view.record.asked.times();
        if self.entries.get(key).is_some_and(|entry| entry.epoch != stored.epoch) {
            self.entries.remove(key);
        }
        if !self.entries.contains_key(key) {
            if !runs {
                return;
            }
            let name = instance(&key.0, key.1);
            let standing = standings.iter().find(|standing| standing.instance == name);
            let told = view.told(key.1);
            let last = standing.map(|standing| standing.last).unwrap_or_default();
            let found = match (standing, told.filter(|told| told.times == times).map(|told| told.state)) {
                (Some(standing), _) if standing.is_held && last.epoch == stored.epoch => Some(FoundRun::Held),
                (_, Some(ServiceState::Stopped)) => Some(FoundRun::Stopped),
                (_, Some(ServiceState::Failed)) => Some(FoundRun::Failed),
                (Some(standing), _) if last.epoch == stored.epoch => standing.end.map(FoundRun::Ended),
                _ => None,
            };
            let number = told.map_or(0, |told| told.number);
            let of = if last.epoch == stored.epoch { last } else { Run { epoch: stored.epoch, number } };
            let life = match found {
                Some(found) => InstanceLife::found(of, found, spec, now),
                None => InstanceLife::new(stored.epoch, last),
            };
            let entry = Entry {
                life,
                spec: spec.clone(),
                epoch: stored.epoch,
                // A start that was asked for while nobody was here.
                times: told.map_or(times, |told| told.times),
                told: told.cloned(),
                pid: standing.map(|standing| standing.pid).or(told.map(|told| told.pid)).unwrap_or(0),
                problem: None,
                is_leaving: false,
                is_beginning: false,
                not_before: None,
                check: None,
            };
            self.entries.insert(key.clone(), entry);
        }
        let Some(entry) = self.entries.get_mut(key) else { return };
        if let Asked::Runs { times } = view.record.asked
            && times > entry.times
        {
            entry.times = times;
            let step = entry.life.restart(&entry.spec, now);
            self.act(key, step);
        }
    }

    /// It is to end here, for good.
    fn end(&mut self, key: &Key, standings: &[RunStanding], now: Instant) {
        let name = instance(&key.0, key.1);
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.is_leaving = true;
        let (epoch, run) = (entry.epoch, entry.life.run());
        let step = entry.life.stop(&entry.spec, now);
        let standing = standings.iter().find(|standing| standing.instance == name);
        let closed = standing.map_or(0, |standing| standing.closed);
        if closed < epoch
            && let Some(keeper) = &self.keeper
            && let Err(error) = keeper.close_run(&name, epoch)
        {
            tracing::warn!(service = name, error = crate::supervise::causes(&error), "a placement is not closed");
        }
        self.act(key, step);
        let is_held = standing.is_some_and(|standing| standing.is_held && standing.last.epoch == epoch);
        if closed >= epoch && !is_held {
            // Whether it began, the keeper knows: it holds nothing.
            if let Some(entry) = self.entries.get_mut(key) {
                let end = standing.and_then(|standing| standing.end).unwrap_or(RunEnd::Lost);
                entry.life.ended(run, end, &entry.spec, now);
            }
        }
    }

    fn hear_ends(&mut self, standings: &[RunStanding]) {
        let now = Instant::now();
        for standing in standings {
            if let Some((key, of_check)) = parse(&standing.instance) {
                let Some(entry) = self.entries.get_mut(&key) else { continue };
                if of_check {
                    let is_it = |check: Run| check == standing.last && !standing.is_held;
                    if let Some((run, _)) = entry.check.take_if(|(_, check)| is_it(*check)) {
                        entry.life.probed(run, standing.end == Some(RunEnd::Exit(0)), now);
                    }
                    continue;
                }
                if standing.last == entry.life.run() {
                    if standing.pid != 0 {
                        entry.pid = standing.pid;
                    }
                    if let Some(end) = standing.end.filter(|_| !standing.is_held) {
                        // Of a start that failed the answer has said more.
                        entry.problem = standing.cause.clone().or(entry.problem.take());
                        entry.life.ended(standing.last, end, &entry.spec, now);
                    }
                }
            }
        }
    }

    fn hear(&mut self) {
        let now = Instant::now();
        while let Ok(happened) = self.happened.1.try_recv() {
            match happened {
                Happened::Probed { key, run, is_well } => {
                    if let Some(entry) = self.entries.get_mut(&key) {
                        entry.life.probed(run, is_well, now);
                    }
                }
                Happened::Begun { key, run, answer } => {
                    let Some(entry) = self.entries.get_mut(&key) else { continue };
                    entry.is_beginning = false;
                    match answer {
                        Ok(pid) => {
                            entry.pid = pid.unwrap_or(entry.pid);
                            entry.problem = None;
                            entry.life.began(run, &entry.spec, now);
                        }
                        Err(KeeperError::Refused(Refusal::Run(RunRefusal::Over))) if run.epoch == entry.epoch => {
                            // Another daemon of this node began more of it than this one knows: looked at anew.
                            self.entries.remove(&key);
                        }
                        Err(KeeperError::Refused(Refusal::Run(_))) => (),
                        Err(error) => {
                            entry.problem = Some(crate::supervise::causes(&error));
                            entry.not_before = Some(now + TRY_AGAIN);
                        }
                    }
                }
            }
        }
    }

    fn step(&mut self, services: &BTreeMap<String, ServiceView>) {
        let now = Instant::now();
        let keys: Vec<Key> = self.entries.keys().cloned().collect();
        for key in keys {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let is_up = entry.spec.after.iter().all(|other| services.get(other).is_some_and(is_up));
            if entry.not_before.is_some_and(|at| now < at) {
                continue;
            }
            let step = entry.life.look(&entry.spec, is_up, now);
            self.act(&key, step);
        }
    }

    fn act(&mut self, key: &Key, step: LifeStep) {
        let name = instance(&key.0, key.1);
        match step {
            LifeStep::Begin(run) => self.begin(key, run),
            LifeStep::Signal(run) => {
                let signal = self.entries.get(key).and_then(|entry| wish::parse_signal(&entry.spec.stop.signal).ok());
                self.signal(&name, run, signal.unwrap_or(libc::SIGTERM));
            }
            LifeStep::Kill(run) => self.signal(&name, run, libc::SIGKILL),
            LifeStep::Probe { run, until } => self.probe(key, run, until),
            LifeStep::Wait(_) => (),
        }
    }

    fn signal(&mut self, instance: &str, run: Run, signal: i32) {
        let Some(keeper) = &self.keeper else { return };
        match keeper.signal_run(instance, run, signal) {
            // It has ended, which the next look shows.
            Ok(()) | Err(KeeperError::Refused(Refusal::Run(_))) => (),
            Err(error) => {
                tracing::warn!(instance, signal, error = crate::supervise::causes(&error), "a service hears no signal");
            }
        }
    }

    fn begin(&mut self, key: &Key, run: Run) {
        self.hold();
        let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.is_beginning) else { return };
        let until = self.common.assurance.until_ns();
        // Nobody has said yet that this node is there.
        if until <= sys::clock::monotonic_ns() {
            return;
        }
        entry.is_beginning = true;
        let (spec, instance) = (entry.spec.clone(), instance(&key.0, key.1));
        let request = self.request(&spec);
        self.have_begun(key.clone(), instance, run, until, request, Begins::Service);
    }

    /// Says what came of it; of a check the keeper's list tells.
    fn have_begun(&self, key: Key, instance: String, run: Run, until: u64, request: RunRequest, what: Begins) {
        let socket = keeper_socket(&self.context().config.dc_run_dir(self.dc));
        let (tell, bell) = (self.happened.0.clone(), Arc::clone(&self.bell));
        let begin = move || {
            let keeper = KeeperClient::connect(socket);
            let answer = keeper.and_then(|keeper| match what {
                Begins::Service => {
                    let left = until.saturating_sub(sys::clock::monotonic_ns());
                    keeper.wait_for_tree(Duration::from_nanos(left))?;
                    keeper.begin_run(&instance, run, until, &request)
                }
                Begins::Check => keeper.begin_check(&instance, run, until, &request),
            });
            if what == Begins::Service {
                let _ = tell.send(Happened::Begun { key, run, answer });
                bell.ring();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("service-start".to_owned()).spawn(begin) {
            tracing::warn!(%error, "no thread for the start of a service");
        }
    }

    fn probe(&mut self, key: &Key, run: Run, until: Instant) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let asked = entry.spec.health.as_ref().and_then(|health| wish::probe(health).ok());
        match asked {
            Some(HealthProbe::Command(command)) => {
                // Each number once, in the lives of all daemons here.
                let check = Run { epoch: entry.epoch, number: sys::clock::monotonic_ns() };
                entry.check = Some((run, check));
                let spec = entry.spec.clone();
                let left = until.saturating_duration_since(Instant::now());
                let ends = sys::clock::monotonic_ns().saturating_add(left.as_nanos() as u64);
                let ends = ends.min(self.common.assurance.until_ns());
                let request = RunRequest { argv: command, ..self.request(&spec) };
                let instance = check_of(&key.0, key.1);
                self.have_begun(key.clone(), instance, check, ends, request, Begins::Check);
            }
            Some(probe) => {
                let own = &self.context().config.node;
                let share = self.record().and_then(|record| Share::of(&record, own));
                let (Some(share), Some(keeper)) = (share, &self.keeper) else { return };
                let ipv6 = self.context().has_ipv6(own).then_some(share.address_ipv6);
                let addresses = NodeAddress { ipv4: share.address, ipv6 };
                let Ok(namespaces) = keeper.namespaces() else { return };
                let (tell, bell, key) = (self.happened.0.clone(), Arc::clone(&self.bell), key.clone());
                let ask = move || {
                    let is_well = probe::ask(&probe, addresses, &namespaces.net, until);
                    let _ = tell.send(Happened::Probed { key, run, is_well });
                    bell.ring();
                };
                if let Err(error) = std::thread::Builder::new().name("service-check".to_owned()).spawn(ask) {
                    tracing::warn!(%error, "no thread for a check of a service");
                }
            }
            None => (),
        }
    }

    /// Runs of what is placed here no more, of an epoch that is over, or of nobody.
    fn end_strays(&mut self, services: &BTreeMap<String, ServiceView>, standings: &[RunStanding]) {
        let now = Instant::now();
        let mut there = BTreeMap::new();
        for standing in standings.iter().filter(|standing| standing.is_held) {
            let Some((key, false)) = parse(&standing.instance) else { continue };
            if self.entries.get(&key).is_some_and(|entry| entry.epoch == standing.last.epoch) {
                continue;
            }
            let spec = services.get(&key.0).map(|view| &view.record.spec);
            let name = &standing.instance;
            let kill_at = match self.strays.get(name) {
                Some(at) => *at,
                None => {
                    if let Some(keeper) = &self.keeper {
                        let _ = keeper.close_run(name, standing.last.epoch);
                    }
                    let signal = spec.and_then(|spec| wish::parse_signal(&spec.stop.signal).ok());
                    self.signal(name, standing.last, signal.unwrap_or(libc::SIGTERM));
                    now + spec.map_or(STRAY_GRACE, |spec| Duration::from_millis(spec.stop.grace_ms))
                }
            };
            if now >= kill_at {
                self.signal(name, standing.last, libc::SIGKILL);
            }
            there.insert(name.clone(), kill_at);
        }
        self.strays = there;
    }

    fn report(&mut self, services: &BTreeMap<String, ServiceView>, standings: &[RunStanding]) {
        let own = self.context().config.node.clone();
        for (name, view) in services {
            for (index, stored) in view.record.instances.iter().enumerate() {
                let key = (name.clone(), index);
                if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.epoch == stored.epoch) {
                    tell(&self.common.reporter, self.dc, &own, &key, entry);
                }
                let Some(placement) = stored.placement.as_ref().filter(|it| it.node == own && it.leaves) else {
                    continue;
                };
                self.report_over(name, index, view, stored, &placement.node, standings);
            }
        }
        // A life that is over, of what stands here no more.
        self.entries.retain(|(name, index), entry| {
            let is_placed = services.get(name).and_then(|view| view.record.instances.get(*index)).is_some_and(|it| {
                it.epoch == entry.epoch && it.placement.as_ref().is_some_and(|placement| placement.node == own)
            });
            is_placed || !matches!(entry.life.state(), ServiceState::Stopped | ServiceState::Failed)
        });
    }

    /// Once nothing of the epoch runs here or ever will.
    fn report_over(
        &mut self,
        name: &str,
        index: usize,
        view: &ServiceView,
        stored: &StoredInstance,
        node: &str,
        standings: &[RunStanding],
    ) {
        if view.over.get(&(index, node.to_owned())).is_some_and(|over| *over >= stored.epoch) {
            return;
        }
        let of = instance(name, index);
        let standing = standings.iter().find(|standing| standing.instance == of);
        let is_closed = standing.is_some_and(|standing| standing.closed >= stored.epoch);
        if !is_closed {
            // Looked at again at once; when it was not done, after a while.
            if self.keeper.as_ref().is_some_and(|keeper| keeper.close_run(&of, stored.epoch).is_ok()) {
                self.bell.ring();
            }
            return;
        }
        if standing.is_none_or(|standing| !standing.is_held || standing.last.epoch > stored.epoch) {
            self.say_over(name, index, node, stored.epoch);
        }
    }

    fn say_over(&self, name: &str, index: usize, node: &str, epoch: u64) {
        let key = over_key(self.dc, name, index, node);
        self.common.reporter.tell(key, encode(&epoch), service_key(self.dc, name));
    }

    /// Of a container that is stopped: no keeper is there, and none begins what leaves.
    fn report_over_without_a_keeper(&self, services: &BTreeMap<String, ServiceView>) {
        let own = &self.context().config.node;
        for (name, view) in services {
            for (index, stored) in view.record.instances.iter().enumerate() {
                let Some(placement) = &stored.placement else { continue };
                let is_told = view.over.get(&(index, own.clone())).is_some_and(|over| *over >= stored.epoch);
                if placement.node == *own
                    && stored.decided().placement.is_some_and(|it| it.stay == Staying::Leaves)
                    && !is_told
                {
                    self.say_over(name, index, own, stored.epoch);
                }
            }
        }
    }
}

/// What leaves, or was in an incarnation that is over, has not ended for good: it may be on its way to another node.
fn tell(reporter: &Reporter, dc: u32, own: &str, key: &Key, entry: &mut Entry) {
    let (run, state) = (entry.life.run(), entry.life.state());
    if entry.is_leaving && matches!(state, ServiceState::Stopped | ServiceState::Failed) {
        return;
    }
    let since_s = entry.told.as_ref().filter(|told| told.state == state).map_or_else(now_s, |told| told.since_s);
    let told = Told {
        epoch: run.epoch,
        number: run.number,
        times: entry.times,
        state,
        // A daemon that is new knows what the one before told.
        exit: entry.life.exit().or_else(|| entry.told.as_ref().filter(|told| told.number == run.number)?.exit),
        pid: entry.pid,
        since_s,
        node: own.to_owned(),
        problem: entry.problem.clone(),
    };
    if entry.told.as_ref() == Some(&told) {
        return;
    }
    reporter.tell(told_key(dc, &key.0, key.1), encode(&told), service_key(dc, &key.0));
    entry.told = Some(told);
}

/// Whether those that come after a service may begin.
fn is_up(view: &ServiceView) -> bool {
    let states: Vec<(ServiceState, Option<u8>)> = (0..view.record.instances.len())
        .map(|index| view.told(index).map_or((ServiceState::Waiting, None), |told| (told.state, told.exit)))
        .collect();
    order::is_up(&states, view.record.spec.health.is_some())
}

fn instance(name: &str, index: usize) -> String {
    format!("{name}/{index}")
}

fn check_of(name: &str, index: usize) -> String {
    format!("{name}/{index}/check")
}

/// The instance of what a keeper names, and whether it is a check of it.
fn parse(text: &str) -> Option<(Key, bool)> {
    let mut parts = text.split('/');
    let (name, index) = (parts.next()?, parts.next()?.parse().ok()?);
    Some(((name.to_owned(), index), parts.next().is_some()))
}

fn request(spec: &ServiceSpec) -> RunRequest {
    // It was checked when it was asked for; what the keeper cannot read either, it refuses.
    let read = |user: &String| user.parse().unwrap_or_else(|NoUser(user)| ProgramUser::Named(user));
    let (uid, gid, user) = spec.user.as_ref().map(read).unwrap_or_default().of_request();
    RunRequest {
        argv: spec.command.clone(),
        node: None,
        env: spec.env.clone(),
        workdir: Some(spec.workdir.clone().unwrap_or_else(|| Bytes::from("/"))),
        root: spec.root.clone().map_or(RootFs::Host, RootFs::Tree),
        uid,
        gid,
        terminal: None,
        interactive: false,
        detach: true,
        unlogged: false,
        user,
        ulimits: Vec::new(),
        cap_drop: Vec::new(),
    }
}
