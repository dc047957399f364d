//! The thread that judges, and the one that writes down what was decided.
//!
//! The first looks at links and at what the engine's follower told, and never waits for the engine; it hands what is to
//! be done to the second one, which may wait. As long as that is busy nothing more is handed on: what is still to be
//! done then is found again. Lock order: none of the locks here is held while another one is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::etcd::EtcdEngine;
use cluster::follow::{Change, Follower};
use cluster::{Compare, Engine, EngineError, EventKind, OPS_PER_TRANSACTION_MAX, Op, Revision};
use mgmt_api::LinkState;
use parking_lot::Mutex;

use super::judge::{Accusation, Act, Isolation, Judge, Known, Second};
use super::{
    JUDGING, OBJECTIONS, SECONDS, SUSPICIONS, VERDICTS, Verdict, objection_key, second_key, suspicion_key, verdict_key,
};
use crate::context::{Context, Ending};
use crate::observed::understood;
use crate::records::{self, NodeRecord, encode, now_s};

/// Whoever decided so long ago decides again.
const STALE: Duration = Duration::from_millis(500);
/// A request that was handed to a leader that is lost is sent again after so long: elections take one to two seconds,
/// and what is decided here must not wait for longer.
const HURRY: Duration = Duration::from_millis(400);

/// When it was decided, and what.
type Orders = (Instant, Vec<Act>);

/// Ends when dropped.
pub struct Court {
    shared: Arc<Shared>,
    wake: Sender<Wake>,
    follower: Option<Follower>,
    threads: Vec<JoinHandle<()>>,
}

enum Wake {
    Look,
    Stop,
}

/// What both threads and the daemon know.
struct Shared {
    docket: Mutex<Docket>,
    /// Whom this node accuses, or may yet: from before it is written until it was taken back. Proxies are told first.
    accused: Mutex<BTreeSet<String>>,
    /// When the engine was asked last of what it answered.
    confirmed: Mutex<Option<Instant>>,
    is_busy: AtomicBool,
    is_cut_off: AtomicBool,
    objections: AtomicU64,
    /// [`Judge::ended_hearings`]
    ended: Mutex<BTreeMap<String, (u64, Instant)>>,
}

/// What the engine holds below [`JUDGING`].
#[derive(Clone, Default)]
struct Docket {
    suspicions: Said<(u64, Revision)>,
    seconds: Said<Second>,
    objections: BTreeMap<String, Revision>,
    verdicts: BTreeMap<String, u64>,
}

/// About whom, and by whom.
type Said<T> = BTreeMap<String, BTreeMap<String, T>>;

fn whose<'a>(key: &'a str, prefix: &str) -> Option<(&'a str, &'a str)> {
    key.strip_prefix(prefix)?.split_once('/')
}

fn unsaid<T>(all: &mut Said<T>, (node, accuser): (&str, &str)) {
    if let Some(said) = all.get_mut(node) {
        said.remove(accuser);
    }
    all.retain(|_, said| !said.is_empty());
}

impl Docket {
    fn put(&mut self, key: &str, value: &[u8], at: Revision) {
        if let Some((node, accuser)) = whose(key, SUSPICIONS) {
            if let Some(epoch) = understood(key, value) {
                self.suspicions.entry(node.to_owned()).or_default().insert(accuser.to_owned(), (epoch, at));
            }
        } else if let Some((node, accuser)) = whose(key, SECONDS) {
            if let Some((objection, has_met)) = understood::<(u64, bool)>(key, value) {
                let second = Second { objection: (objection > 0).then_some(Revision(objection)), has_met, at };
                self.seconds.entry(node.to_owned()).or_default().insert(accuser.to_owned(), second);
            }
        } else if let Some(node) = key.strip_prefix(OBJECTIONS) {
            self.objections.insert(node.to_owned(), at);
        } else if let Some(node) = key.strip_prefix(VERDICTS)
            && let Some(verdict) = understood::<Verdict>(key, value)
        {
            self.verdicts.insert(node.to_owned(), verdict.epoch);
        }
    }

    fn delete(&mut self, key: &str) {
        if let Some(whose) = whose(key, SUSPICIONS) {
            unsaid(&mut self.suspicions, whose);
        } else if let Some(whose) = whose(key, SECONDS) {
            unsaid(&mut self.seconds, whose);
        } else if let Some(node) = key.strip_prefix(OBJECTIONS) {
            self.objections.remove(node);
        } else if let Some(node) = key.strip_prefix(VERDICTS) {
            self.verdicts.remove(node);
        }
    }

    fn accusations(&self) -> Said<Accusation> {
        let of = |(node, said): (&String, &BTreeMap<String, (u64, Revision)>)| {
            let seconds = self.seconds.get(node);
            let accusation = |(accuser, (epoch, at)): (&String, &(u64, Revision))| {
                // One that is older is another accusation's.
                let second = seconds.and_then(|of| of.get(accuser)).filter(|second| second.at > *at).copied();
                (accuser.clone(), Accusation { epoch: *epoch, at: *at, second })
            };
            (node.clone(), said.iter().map(accusation).collect())
        };
        self.suspicions.iter().map(of).collect()
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::All(entries) => {
                *self = Docket::default();
                entries.iter().for_each(|entry| self.put(&entry.key, &entry.value, entry.modified));
            }
            Change::One(event) => match &event.kind {
                EventKind::Put { value, .. } => self.put(&event.key, value, event.revision),
                EventKind::Delete => self.delete(&event.key),
            },
            Change::Unknown(_) => (),
        }
    }
}

impl Court {
    /// `etcd`: when the engine is etcd, so that a member on a node of which nothing is heard is left for another one.
    /// `judged` is called whenever verdicts are others.
    pub fn start(
        context: &Arc<Context>,
        etcd: Option<Arc<EtcdEngine>>,
        judged: impl Fn() + Send + 'static,
    ) -> std::io::Result<Court> {
        let engine = context.engine.hurried(HURRY).unwrap_or_else(|| Arc::clone(&context.engine));
        let shared = Arc::new(Shared {
            docket: Mutex::default(),
            accused: Mutex::default(),
            confirmed: Mutex::default(),
            is_busy: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            objections: AtomicU64::new(0),
            ended: Mutex::default(),
        });
        let (wake, wakes) = channel();
        let (also, told, of_context) = (Arc::clone(&shared), wake.clone(), Arc::downgrade(context));
        let follower = Follower::start(&context.engine, JUDGING, move |change| {
            let verdicts = {
                let mut docket = also.docket.lock();
                let before = docket.verdicts.clone();
                docket.take(change);
                (docket.verdicts != before).then(|| docket.verdicts.clone())
            };
            if let (Some(verdicts), Some(context)) = (verdicts, of_context.upgrade()) {
                context.judged(verdicts);
                judged();
            }
            let _ = told.send(Wake::Look);
        })?;
        let told = wake.clone();
        context.proxy.on_news(move || drop(told.send(Wake::Look)));
        let (orders, ordered) = sync_channel(1);
        let (objections, wanted) = sync_channel(1);
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let (also, of_context, told) = (Arc::clone(&shared), Arc::downgrade(context), Arc::clone(&engine));
        let clerk = thread("clerk").spawn(move || write_down(&*told, &of_context, &also, &ordered))?;
        let (also, of_context) = (Arc::clone(&shared), Arc::downgrade(context));
        let objecting = thread("objector").spawn(move || object(&*engine, &of_context, &also, &wanted))?;
        let (also, of_context) = (Arc::clone(&shared), Arc::downgrade(context));
        let judge = Judge::new(&context.config.node, context.node.epoch);
        let judging = thread("judge")
            .spawn(move || sit(judge, &of_context, &also, &wakes, (&orders, &objections), etcd.as_deref()))?;
        let threads = vec![judging, clerk, objecting];
        Ok(Court { shared, wake, follower: Some(follower), threads })
    }

    /// The incarnation of a node that was sentenced while this daemon heard it, and when that hearing began.
    pub fn ended_hearing(&self, node: &str) -> Option<(u64, Instant)> {
        self.shared.ended.lock().get(node).copied()
    }

    /// This node hears of few others and the engine does not answer it: what it owns alone, others may take soon.
    pub fn is_cut_off(&self) -> bool {
        self.shared.is_cut_off.load(Ordering::Acquire)
    }
}

impl Drop for Court {
    fn drop(&mut self) {
        drop(self.follower.take());
        let _ = self.wake.send(Wake::Stop);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that judges had panicked");
            }
        }
    }
}

fn known(context: &Context, shared: &Shared) -> Known {
    let docket = shared.docket.lock().clone();
    let epochs = context.members.read().iter().map(|(name, record)| (name.clone(), record.epoch)).collect();
    let alive = context.observed.lock().alive.clone();
    Known {
        epochs,
        alive,
        links: context.proxy.link_states(),
        suspicions: docket.accusations(),
        accused: shared.accused.lock().clone(),
        objections: docket.objections,
        verdicts: docket.verdicts,
    }
}

fn sit(
    mut judge: Judge,
    context: &Weak<Context>,
    shared: &Shared,
    wakes: &Receiver<Wake>,
    (orders, objections): (&SyncSender<Orders>, &SyncSender<()>),
    etcd: Option<&EtcdEngine>,
) {
    let (mut isolation, mut silent) = (Isolation::new(), BTreeSet::new());
    loop {
        let Some(context) = context.upgrade() else { return };
        let (known, now) = (known(&context, shared), Instant::now());
        if let Some(etcd) = etcd {
            leave_silent_members(&context, &known, &mut silent, etcd);
        }
        let mut acts = judge.look(&known, now);
        if *judge.ended_hearings() != *shared.ended.lock() {
            *shared.ended.lock() = judge.ended_hearings().clone();
        }
        if acts.contains(&Act::BeginAnew) {
            tracing::warn!("the others decided that this node was lost; its daemon begins anew");
            context.end(Ending::Fenced);
            return;
        }
        let confirmed = *shared.confirmed.lock();
        let was_cut_off = shared.is_cut_off.load(Ordering::Acquire);
        let is_cut_off = isolation.look(&known, &context.config.node, confirmed, now);
        if is_cut_off != was_cut_off {
            shared.is_cut_off.store(is_cut_off, Ordering::Release);
            tracing::warn!(is_cut_off, "whether this node is cut off from the others and from the engine");
        }
        // An objection must not wait for anything else.
        if let Some(at) = acts.iter().position(|act| *act == Act::Object) {
            acts.remove(at);
            if objections.try_send(()).is_ok() {
                judge.objects(now);
            }
        }
        if isolation.is_asking() && acts.is_empty() {
            acts.push(Act::Probe);
        }
        let hands_on = !acts.is_empty() && !shared.is_busy.swap(true, Ordering::AcqRel);
        // Nothing of the accused is vouched for from before it is written, and until it was taken back.
        let accused = accused(shared, &known, &context.config.node, acts.iter().filter(|_| hands_on));
        context.proxy.accuse(&accused);
        if hands_on && orders.send((now, acts)).is_err() {
            return;
        }
        let pause = judge.pause(&known);
        drop(context);
        match wakes.recv_timeout(pause) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            // Several that came together are one look.
            Ok(Wake::Look) => {
                for wake in wakes.try_iter() {
                    if matches!(wake, Wake::Stop) {
                        return;
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => (),
        }
    }
}

/// Those that are about to be, those that may be, and those of whom an earlier daemon of this node said it.
fn accused<'a>(shared: &Shared, known: &Known, own: &str, acts: impl Iterator<Item = &'a Act>) -> BTreeSet<String> {
    let mut accused = shared.accused.lock();
    accused.extend(acts.filter_map(|act| match act {
        Act::Accuse { node, .. } => Some(node.clone()),
        _ => None,
    }));
    let before = known.suspicions.iter().filter(|(_, said)| said.contains_key(own));
    accused.iter().cloned().chain(before.map(|(node, _)| node.clone())).collect()
}

/// A call to a member that says nothing would wait for seconds.
fn leave_silent_members(context: &Context, known: &Known, before: &mut BTreeSet<String>, etcd: &EtcdEngine) {
    let silent = known.links.iter().filter(|(_, state)| **state != LinkState::Up && **state != LinkState::Unknown);
    let silent: BTreeSet<String> = silent.map(|(node, _)| node.clone()).collect();
    if silent != *before {
        etcd.set_silent(silent.iter().filter_map(|node| Some(context.member(node)?.address)).collect());
        *before = silent;
    }
}

fn write_down(engine: &dyn Engine, context: &Weak<Context>, shared: &Shared, orders: &Receiver<Orders>) {
    for (decided, acts) in orders {
        let Some(context) = context.upgrade() else { return };
        let asked = Instant::now();
        match carry_out(engine, &context, decided, &acts) {
            Ok(()) => {
                *shared.confirmed.lock() = Some(asked);
                let mut accused = shared.accused.lock();
                for act in &acts {
                    if let Act::Withdraw { node } = act {
                        accused.remove(node);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the engine was not told what this node sees"),
        }
        shared.is_busy.store(false, Ordering::Release);
    }
}

/// What is seen of all nodes in one transaction; then, one by one, what follows of it.
fn carry_out(engine: &dyn Engine, context: &Context, decided: Instant, acts: &[Act]) -> Result<(), EngineError> {
    let own = &context.config.node;
    let mut said = Vec::new();
    for act in acts {
        match (act, context.lease()) {
            (Act::Accuse { node, epoch }, Some(lease)) => {
                tracing::info!(node, "nothing is heard of this node");
                said.push(Op::put_leased(suspicion_key(node, own), encode(epoch), lease));
            }
            (Act::Second { node, objection, has_met }, Some(lease)) => {
                let second = (objection.map_or(0, |at| at.0), has_met);
                said.push(Op::put_leased(second_key(node, own), encode(&second), lease));
            }
            (Act::Withdraw { node }, _) => {
                said.extend([Op::delete(suspicion_key(node, own)), Op::delete(second_key(node, own))]);
            }
            _ => (),
        }
    }
    for some in said.chunks(OPS_PER_TRANSACTION_MAX) {
        engine.transact(&[], some)?;
    }
    if said.is_empty() {
        engine.read(&records::member_key(own))?;
    }
    for act in acts {
        if let Act::Sentence { node, epoch, objection, accusers } = act {
            // What was decided long ago may be different now.
            if decided.elapsed() < STALE {
                sentence(engine, node, (*epoch, *objection), accusers)?;
            }
        }
    }
    Ok(())
}

fn object(engine: &dyn Engine, context: &Weak<Context>, shared: &Shared, wanted: &Receiver<()>) {
    for () in wanted {
        let Some(context) = context.upgrade() else { return };
        let (asked, own) = (Instant::now(), &context.config.node);
        let Some(lease) = context.lease() else { continue };
        let count = shared.objections.fetch_add(1, Ordering::Relaxed);
        // It goes with the lease: one that is taken back would look like none at all.
        match engine.transact(&[], &[Op::put_leased(objection_key(own), encode(&count), lease)]) {
            Ok(_) => *shared.confirmed.lock() = Some(asked),
            Err(error) => tracing::debug!(%error, "the engine was not told that this node lives"),
        }
    }
}

/// Raises what is over of a node. Nothing happens when it objected meanwhile, came back, or was sentenced by another
/// one, or when somebody hears of it again.
fn sentence(
    engine: &dyn Engine,
    node: &str,
    (epoch, objection): (u64, Option<Revision>),
    accusers: &BTreeMap<String, Accusation>,
) -> Result<(), EngineError> {
    let member = records::read::<NodeRecord>(engine, &records::member_key(node))?;
    let Some((_, at)) = member.filter(|(record, _)| record.epoch == epoch) else { return Ok(()) };
    let as_it_was = match objection {
        Some(at) => Compare::Modified { key: objection_key(node), at },
        None => Compare::Absent { key: objection_key(node) },
    };
    let before = match engine.read(&verdict_key(node))? {
        Some(entry) if records::decode::<Verdict>(&entry)?.epoch >= epoch => return Ok(()),
        Some(entry) => Compare::Modified { key: entry.key.clone(), at: entry.modified },
        None => Compare::Absent { key: verdict_key(node) },
    };
    let verdict = Verdict { epoch, since_s: now_s(), accusers: accusers.keys().cloned().collect() };
    let mut compares = vec![Compare::Modified { key: records::member_key(node), at }, as_it_was, before];
    for (accuser, said) in accusers {
        compares.push(Compare::Modified { key: suspicion_key(node, accuser), at: said.at });
        let second = said.second.map(|second| second.at);
        compares.extend(second.map(|at| Compare::Modified { key: second_key(node, accuser), at }));
    }
    let done = engine.transact(&compares, &[Op::put(verdict_key(node), encode(&verdict))])?;
    if matches!(done, cluster::Outcome::Done(_)) {
        tracing::warn!(node, epoch, accusers = ?verdict.accusers, "the node is lost: its incarnation is over");
    }
    Ok(())
}
