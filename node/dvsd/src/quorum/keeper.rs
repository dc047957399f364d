//! Takes the steps, and runs or ends this node's own member.
//!
//! Every daemon looks at what its follower was told: it writes what it learns to its file, tells the engine's client,
//! and starts or ends its own member. The steps themselves are taken by the living node with the smallest name, which
//! alone asks etcd for its members; during a change of who that is two may try, and the comparison with the last
//! decision lets one through.
//!
//! One thread, which may wait; the daemon's follower wakes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::etcd::EtcdEngine;
use cluster::known::Mirror;
use cluster::lease::KeptLease;
use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, lock};
use mgmt_api::MemberAddress;
use parking_lot::Mutex;

use super::file::{EngineFile, FileError, Own};
use super::step::{self, Step, View};
use super::version::EtcdVersion;
use super::{ENGINE, MEMBERS, MemberRecord, OFFERS, Offer, PLAN, Stage, member_key, offer_key, shortage};
use crate::config::Config;
use crate::engine::{EtcdChoice, Managed};
use crate::member::{self, Complaint, MemberError};
use crate::records::{self, NodeWish, encode};
use crate::supervise::{Watching, causes};

/// The list of members is that of whichever one is asked, and that may lag behind.
const MISSING_AFTER: Duration = Duration::from_secs(15);
/// Whoever is about to come, or to come back, has come by then.
const SETTLED_AFTER: Duration = Duration::from_secs(15);
/// Whose turn it is to replace its member.
const TURN: &str = "engine-member";
const TURN_LEASE: Duration = Duration::from_secs(10);
const TURN_PATIENCE: Duration = Duration::from_secs(60);
/// What etcd lists may change without a word: somebody removed a member by hand.
const LOOK: Duration = Duration::from_secs(10);
/// After a failure, and while something waits for a daemon.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// While something is under way.
const LOOK_SOON: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum QuorumError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("this node's member of the engine cannot be looked after")]
    Member(#[from] MemberError),
    #[error("no thread")]
    Thread(#[source] std::io::Error),
}

/// The members, as this daemon looks after them; ends when dropped. The member itself goes on.
pub struct Members {
    problem: Arc<Mutex<Option<String>>>,
    /// Changes of certificates, and those that the member has.
    changes: AtomicU64,
    taken: Arc<AtomicU64>,
    bell: Sender<Wake>,
    /// A look is on its way that will see all that was told.
    is_told: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

enum Wake {
    Changed,
    Certificates(u64),
    Leave,
    Stop,
}

struct Keeper {
    config: Config,
    managed: Managed,
    engine: Arc<EtcdEngine>,
    /// What the daemon's follower was told.
    told: Arc<Mirror>,
    file: EngineFile,
    /// Of the node's own member.
    watching: Option<Watching>,
    complaint: Complaint,
    problem: Arc<Mutex<Option<String>>>,
    taken: Arc<AtomicU64>,
    is_told: Arc<AtomicBool>,
    missing_since: BTreeMap<String, Instant>,
    /// Who was there at the last look, with and without a daemon, and since when nobody else was.
    settled: Option<(Instant, [BTreeSet<String>; 2])>,
}

impl Members {
    /// `watching`: the member that runs already, by what the file said; `complaint`: what is wrong with it.
    pub fn start(
        config: &Config,
        managed: &Managed,
        (engine, told): (&Arc<EtcdEngine>, &Arc<Mirror>),
        file: EngineFile,
        (watching, complaint): (Option<Watching>, Complaint),
    ) -> Result<Members, QuorumError> {
        let problem = Arc::new(Mutex::new(None));
        let (taken, is_told) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut keeper = Keeper {
            taken: Arc::clone(&taken),
            is_told: Arc::clone(&is_told),
            missing_since: BTreeMap::new(),
            settled: None,
            config: config.clone(),
            managed: managed.clone(),
            engine: Arc::clone(engine),
            told: Arc::clone(told),
            file,
            watching,
            complaint,
            problem: Arc::clone(&problem),
        };
        keeper.say_that_it_is_the_first()?;
        keeper.remember_that_it_is_founded()?;
        let (bell, wakes) = channel();
        let thread = std::thread::Builder::new()
            .name("members".to_owned())
            .spawn(move || keeper.run(&wakes))
            .map_err(QuorumError::Thread)?;
        Ok(Members { problem, changes: AtomicU64::new(0), taken, bell, is_told, thread: Some(thread) })
    }

    /// The follower was told of something that concerns them.
    pub fn look_again(&self) {
        if !self.is_told.swap(true, Ordering::AcqRel) {
            let _ = self.bell.send(Wake::Changed);
        }
    }

    /// The node shows other certificates from now on.
    pub fn certificates_changed(&self) {
        let change = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        let _ = self.bell.send(Wake::Certificates(change));
    }

    /// The member has all certificates that were changed.
    pub fn has_new_certificates(&self) -> bool {
        self.taken.load(Ordering::Acquire) == self.changes.load(Ordering::Acquire)
    }

    /// This node is no part of the cluster any more: its member ends, and its data go.
    pub fn leave(&self) {
        let _ = self.bell.send(Wake::Leave);
    }

    /// For people: of how many there are.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let _ = self.bell.send(Wake::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the engine's members had panicked");
        }
    }
}

/// Where this node's member is, or would be.
pub fn own_address(config: &Config, managed: &Managed) -> MemberAddress {
    let at = |port| cluster::etcd::Member { host: config.advertise.to_string(), port }.to_string();
    MemberAddress { client: at(managed.client_port), peer: at(managed.peer_port) }
}

impl Keeper {
    /// The first member of a cluster has nobody who invited it.
    fn say_that_it_is_the_first(&self) -> Result<(), QuorumError> {
        let Some(own) = self.file.own.as_ref().filter(|own| own.is_first) else { return Ok(()) };
        if !self.engine.list(MEMBERS)?.entries.is_empty() {
            return Ok(());
        }
        let record = MemberRecord {
            address: own_address(&self.config, &self.managed),
            stage: Stage::Voter,
            initial: own.initial.clone(),
            membership: own.membership,
        };
        let key = member_key(&self.config.node);
        let absent = [Compare::Absent { key: key.clone() }, Compare::Absent { key: PLAN.to_owned() }];
        self.engine.transact(&absent, &[Op::put(key, encode(&record)), Op::put(PLAN, encode(&1))])?;
        Ok(())
    }

    /// The engine answered, so the first member has its data.
    fn remember_that_it_is_founded(&mut self) -> Result<(), QuorumError> {
        if let Some(own) = self.file.own.as_mut().filter(|own| own.is_first && !own.is_founded) {
            own.is_founded = true;
            self.file.write(&self.config.state_dir)?;
        }
        Ok(())
    }

    fn run(mut self, wakes: &Receiver<Wake>) {
        let (mut pause, mut wanted) = (LOOK_SOON, 0);
        loop {
            if self.taken.load(Ordering::Acquire) != wanted && self.take_certificates() {
                self.taken.store(wanted, Ordering::Release);
            }
            match wakes.recv_timeout(pause) {
                Ok(Wake::Certificates(change)) => {
                    wanted = change;
                }
                Ok(Wake::Leave) => {
                    self.file.own = None;
                    // First, so that no later start begins a member that the cluster has forgotten.
                    let left = self.file.write(&self.config.state_dir).map_err(QuorumError::File);
                    if let Err(error) = left.and_then(|()| self.end_own()) {
                        tracing::error!(error = causes(&error), "this node's member of the engine does not end");
                    }
                    return;
                }
                Ok(Wake::Changed) => self.is_told.store(false, Ordering::Release),
                Err(RecvTimeoutError::Timeout) => (),
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
            pause = match self.look() {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(error = causes(&error), "the engine's members cannot be looked after");
                    LOOK_AGAIN
                }
            };
        }
    }

    /// Learns what is, does what this node has to, and takes one step. Gives back when to look again.
    fn look(&mut self) -> Result<Duration, QuorumError> {
        let Some((mut view, plan)) = self.view()? else { return Ok(LOOK_SOON) };
        self.learn(&view)?;
        if let Some(own) = view.members.get(&self.config.node).filter(|own| own.stage == Stage::Leaving) {
            // From here on this daemon asks others.
            let left = MemberRecord { stage: Stage::Left, ..own.clone() };
            self.decide(plan, Op::put(member_key(&self.config.node), encode(&left)))?;
            return Ok(LOOK_SOON);
        }
        *self.problem.lock() = self.shortage(&view);
        let is_deciding = view.alive.iter().find(|node| view.nodes.contains(*node)) == Some(&self.config.node);
        if !is_deciding {
            return Ok(LOOK);
        }
        view.listed = self.engine.listed_members()?;
        (view.missing, view.is_settled) = (self.missing(&view), self.is_settled(&view));
        let Some(step) = step::next(&view, |peer| self.url(peer)) else {
            let is_quiet = view.missing.is_empty() && self.missing_since.is_empty() && view.is_settled;
            return Ok(if is_quiet { LOOK } else { LOOK_AGAIN });
        };
        match step {
            // Asked for until it has what the others have.
            Step::Promote { .. } => tracing::debug!(?step, "the engine's members"),
            _ => tracing::info!(?step, "the engine's members"),
        }
        self.take(&view, plan, step)?;
        Ok(LOOK_SOON)
    }

    /// Without what etcd lists. `None`: nothing was told yet.
    fn view(&self) -> Result<Option<(View, Compare)>, QuorumError> {
        let mut view = View::default();
        let Ok(engine) = self.told.list(ENGINE) else { return Ok(None) };
        let mut plan = Compare::Absent { key: PLAN.to_owned() };
        for entry in engine.entries {
            if let Some(node) = entry.key.strip_prefix(MEMBERS) {
                view.members.insert(node.to_owned(), records::decode::<MemberRecord>(&entry)?);
            } else if let Some(node) = entry.key.strip_prefix(OFFERS) {
                view.offers.insert(node.to_owned(), records::decode::<Offer>(&entry)?);
            } else if entry.key == PLAN {
                plan = Compare::Modified { key: PLAN.to_owned(), at: entry.modified };
            }
        }
        let names = |prefix: &str| -> Result<BTreeSet<String>, EngineError> {
            let entries = self.told.list(prefix)?.entries;
            Ok(entries.into_iter().filter_map(|entry| entry.key.strip_prefix(prefix).map(str::to_owned)).collect())
        };
        (view.nodes, view.alive) = (names(records::MEMBERS)?, names(records::NODES)?);
        for entry in self.told.list(records::NODE_WISHES)?.entries {
            let (wish, node) =
                (records::decode::<NodeWish>(&entry)?, entry.key.trim_start_matches(records::NODE_WISHES));
            if wish.cordoned {
                view.cordoned.insert(node.to_owned());
            }
            if wish.leaving {
                view.leaving.insert(node.to_owned());
            }
        }
        Ok(Some((view, plan)))
    }

    /// Members with records that etcd has not listed for [`MISSING_AFTER`], whoever of its members was asked.
    fn missing(&mut self, view: &View) -> BTreeSet<String> {
        let now = Instant::now();
        let is_listed = |record: &MemberRecord| {
            let peer = self.url(&record.address.peer);
            view.listed.iter().any(|listed| listed.peer_url == peer)
        };
        let missing: BTreeSet<&String> =
            view.members.iter().filter(|(_, record)| !is_listed(record)).map(|(node, _)| node).collect();
        self.missing_since.retain(|node, _| missing.contains(node));
        for node in missing {
            self.missing_since.entry(node.clone()).or_insert(now);
        }
        let for_long = self.missing_since.iter().filter(|(_, since)| now.duration_since(**since) >= MISSING_AFTER);
        for_long.map(|(node, _)| node.clone()).collect()
    }

    fn is_settled(&mut self, view: &View) -> bool {
        let (now, there) = (Instant::now(), [view.nodes.clone(), view.alive.clone()]);
        let since = self.settled.take().filter(|(_, before)| *before == there).map_or(now, |(since, _)| since);
        self.settled = Some((since, there));
        now.duration_since(since) >= SETTLED_AFTER
    }

    /// Where the members are, and whether this node has one.
    fn learn(&mut self, view: &View) -> Result<(), QuorumError> {
        let serves = |record: &MemberRecord| matches!(record.stage, Stage::Learner | Stage::Voter);
        let own = own_from(view, &self.config.node, self.file.own.as_ref());
        let members = view.members.iter().filter(|(_, record)| serves(record));
        let members = members.map(|(node, record)| (node.clone(), record.address.clone())).collect();
        let file = EngineFile { members, own };
        if file == self.file || file.members.is_empty() {
            return Ok(());
        }
        let is_other = file.own != self.file.own;
        if is_other {
            // Of a membership before, or of a beginning that failed: no member could go on with them.
            self.end_own()?;
        }
        file.write(&self.config.state_dir)?;
        self.file = file;
        self.engine.set_members(self.managed.voters(&self.file))?;
        if is_other {
            self.look_after_own();
        }
        Ok(())
    }

    /// Ends this node's member, and puts its data aside.
    fn end_own(&mut self) -> Result<(), QuorumError> {
        drop(self.watching.take());
        member::look_after(&self.config, None, &self.complaint)?;
        member::put_data_aside(&self.config);
        Ok(())
    }

    /// What is read at each connection is copied at once. A member that has to be replaced, for another root, is
    /// replaced while no other one is. False: it has not what it should have.
    fn take_certificates(&mut self) -> bool {
        if self.file.own.is_none() {
            return true;
        }
        let Ok(choice) = self.managed.choice(&self.config, &self.file) else { return false };
        if !member::has_another_root(&self.config, &choice) {
            return self.look_after_own();
        }
        let engine: Arc<dyn Engine> = self.engine.clone();
        let turn = KeptLease::hold(&engine, TURN_LEASE)
            .map_err(|error| causes(&error))
            .and_then(|lease| lock::lock(&lease, TURN, TURN_PATIENCE).map_err(|error| causes(&error)));
        match turn {
            Ok(_turn) => self.look_after_own() && self.await_own(),
            Err(error) => {
                tracing::warn!(error, "it is not yet this member's turn to get another root");
                false
            }
        }
    }

    /// Until this node's member answers as one of the majority, or does not for a time.
    fn await_own(&self) -> bool {
        let choice = self.managed.choice(&self.config, &self.file);
        let own = own_address(&self.config, &self.managed).client.parse();
        let (Ok(mut choice), Ok(own)) = (choice, own) else { return false };
        choice.members = vec![own];
        let credentials = choice.tls_dir.as_deref().map(pki::NodeCredentials::load).transpose();
        let Ok(credentials) = credentials else { return false };
        match crate::engine::ask_once(&choice, &self.config.node, credentials.as_ref()) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(error = causes(&error), "this node's member does not answer yet with another root");
                false
            }
        }
    }

    fn look_after_own(&mut self) -> bool {
        drop(self.watching.take());
        let choice = self.managed.choice(&self.config, &self.file);
        match choice.map_err(|error| causes(&error)).and_then(|choice: EtcdChoice| {
            member::look_after(&self.config, Some(&choice), &self.complaint).map_err(|error| causes(&error))
        }) {
            Ok(watching) => {
                self.watching = watching;
                true
            }
            Err(error) => {
                tracing::error!(error, "this node's member of the engine cannot be looked after");
                false
            }
        }
    }

    fn url(&self, peer: &str) -> String {
        format!("{}://{peer}", if self.managed.tls_dir.is_some() { "https" } else { "http" })
    }

    fn take(&self, view: &View, plan: Compare, step: Step) -> Result<(), QuorumError> {
        if matches!(step, Step::Add(_) | Step::Promote { .. } | Step::Remove { .. }) {
            // Etcd's own members are changed by no transaction: what was told must still be so.
            let now = self.engine.read(PLAN)?;
            if !plan.holds(now.as_ref()) {
                return Ok(());
            }
        }
        let change = |node: &str, stage: Stage, initial: Option<_>| {
            let record = view.members.get(node).cloned();
            record.map(|record| {
                let initial = initial.unwrap_or(record.initial.clone());
                Op::put(member_key(node), encode(&MemberRecord { stage, initial, ..record }))
            })
        };
        let op = match step {
            Step::Invite(node) => view.offers.get(&node).map(|offer| {
                let address = offer.address.clone();
                // Decisions have a revision each, and this one is later than the last.
                let membership = match &plan {
                    Compare::Modified { at, .. } => at.0.saturating_add(1),
                    _ => 1,
                };
                let record = MemberRecord { address, stage: Stage::Invited, initial: Default::default(), membership };
                Op::put(member_key(&node), encode(&record))
            }),
            Step::Begin { node, initial } => change(&node, Stage::Learner, Some(initial)),
            Step::Confirm(node) => change(&node, Stage::Voter, None),
            Step::Dismiss(node) => change(&node, Stage::Leaving, None),
            Step::Forget(node) => Some(Op::delete(member_key(&node))),
            Step::Add(node) => {
                if let Some(record) = view.members.get(&node) {
                    self.engine.add_learner(&self.url(&record.address.peer))?;
                }
                return Ok(());
            }
            Step::Promote { id, .. } => return Ok(self.engine.promote(id).map(drop)?),
            Step::Remove { id, .. } => return Ok(self.engine.remove_member(id)?),
        };
        op.map_or(Ok(()), |op| self.decide(plan, op))
    }

    /// Changes a record, unless somebody else decided meanwhile: then the next look sees what.
    fn decide(&self, plan: Compare, op: Op) -> Result<(), QuorumError> {
        let count = crate::records::read::<u64>(&*self.engine, PLAN)?.map_or(0, |(count, _)| count);
        if let Outcome::Conflict(_) = self.engine.transact(&[plan], &[op, Op::put(PLAN, encode(&(count + 1)))])? {
            tracing::debug!("another node was faster");
        }
        Ok(())
    }

    /// What people should know who think that the engine survives a member.
    fn shortage(&self, view: &View) -> Option<String> {
        if crate::engine::has_lost_data(&self.config, &self.file) {
            let node = &self.config.node;
            return Some(format!(
                "engine: the data of this node's member are gone (dvs node remove {node} --lost elsewhere, then join again)"
            ));
        }
        shortage::words(view, &self.config.node)
    }
}

/// Whether this node has a member, and what that begins with; `own`: so far. A daemon sees the last state of a record,
/// not each one that it had.
fn own_from(view: &View, node: &str, own: Option<&Own>) -> Option<Own> {
    let Some(record) = view.members.get(node) else {
        // Perhaps nobody has said yet who the members are.
        return own.filter(|_| view.members.is_empty()).cloned();
    };
    // A voter has data, and a learner may be told anew with whom it begins.
    if record.stage != Stage::Learner {
        return own.cloned();
    }
    let is_same = |own: &&Own| match record.membership {
        0 => own.is_first || own.initial == record.initial,
        membership => own.membership == membership && own.initial == record.initial,
    };
    own.filter(is_same).cloned().or_else(|| {
        let (initial, membership) = (record.initial.clone(), record.membership);
        Some(Own { initial, is_first: false, token: None, is_founded: false, membership })
    })
}

/// A key for the node's lease, and its value: that it could run a member, and of which version.
pub fn offer(config: &Config, managed: &Managed) -> Option<(String, Vec<u8>)> {
    let (address, program) = (own_address(config, managed), installed(managed)?);
    let version = EtcdVersion::of_program(&program).map(|version| version.to_string());
    if version.is_none() {
        tracing::warn!(program = %program.display(), "it does not say which version of etcd it is");
    }
    Some((offer_key(&config.node), encode(&Offer { address, version })))
}

/// Where the program is.
fn installed(managed: &Managed) -> Option<PathBuf> {
    if managed.program.is_absolute() {
        return managed.program.exists().then(|| managed.program.clone());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).map(|dir| dir.join(&managed.program)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(stage: Stage, initial: &[&str], membership: u64) -> View {
        let address = MemberAddress { client: "n2:2379".to_owned(), peer: "n2:2380".to_owned() };
        let initial = initial.iter().map(|node| ((*node).to_owned(), format!("{node}:2380"))).collect();
        let record = MemberRecord { address, stage, initial, membership };
        View { members: [("n2".to_owned(), record)].into(), ..View::default() }
    }

    #[test]
    fn member_begins_anew_in_each_membership_also_if_nothing_between_was_seen() {
        let both = &["n1", "n2"];
        let first = own_from(&view(Stage::Learner, both, 5), "n2", None);
        assert_eq!(first.as_ref().map(|own| own.membership), Some(5));
        for stage in [Stage::Learner, Stage::Voter, Stage::Leaving, Stage::Left, Stage::Invited] {
            assert_eq!(own_from(&view(stage, both, 5), "n2", first.as_ref()), first, "{stage:?}");
        }
        // Dismissed, forgotten and invited once more, while this daemon was told nothing.
        let second = own_from(&view(Stage::Learner, both, 9), "n2", first.as_ref());
        assert_eq!(second.as_ref().map(|own| own.membership), Some(9));
        // Told anew with whom it begins.
        let other = own_from(&view(Stage::Learner, &["n1", "n2", "n3"], 9), "n2", second.as_ref());
        assert_eq!(other.map(|own| own.initial.len()), Some(3));
        assert_eq!(own_from(&View::default(), "n2", second.as_ref()), second, "nobody has said who the members are");
        let mut others = view(Stage::Voter, both, 1);
        let record = others.members.remove("n2").unwrap();
        others.members.insert("n1".to_owned(), record);
        assert_eq!(own_from(&others, "n2", second.as_ref()), None);
    }

    #[test]
    fn first_member_that_comes_back_is_another_one_and_an_earlier_release_says_nothing_of_it() {
        let founder = Own {
            initial: [("n2".to_owned(), "n2:2380".to_owned())].into(),
            is_first: true,
            token: None,
            is_founded: true,
            membership: 0,
        };
        let back = own_from(&view(Stage::Learner, &["n1", "n2"], 7), "n2", Some(&founder)).unwrap();
        assert!(!back.is_first && back.membership == 7);
        let untold = own_from(&view(Stage::Learner, &["n1", "n2"], 0), "n2", Some(&founder));
        assert_eq!(untold.as_ref(), Some(&founder));
    }
}
