//! The loop of one container's worker.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Op, Outcome, Revision};
use mgmt_api::{DcPhase, NodeShare, ServerStatus};

use super::parts::{self, History, Parts};
use super::plan::{self, Action, Stage, Standing, Wish};
use super::share::Share;
use super::{Inbox, Order};
use crate::config::Config;
use crate::context::Context;
use crate::duties::TURN_LIMIT;
use crate::records::{self, DcRecord, Desired, Images, ShareRecord};
use crate::spawn;
use crate::state;
use crate::supervise::{Problem, causes};
use crate::waiting;

/// Without anything to do: logs are looked after, reports that failed are made again.
const IDLE: Duration = Duration::from_secs(30);
/// What a start looks like on its way is told this much later, if it still is: a write each time a part is there would
/// take longer than the parts.
const REPORT_PAUSE: Duration = Duration::from_millis(200);
/// After a failed report, image removal or unmaking.
const RETRY: Duration = Duration::from_millis(500);
/// How long a stage of going down waits for nodes that do not answer.
const STAGE_LIMIT: Duration = Duration::from_secs(20);
/// A part that failed this often in a row before everything ran once: the start has failed (attempts go on).
const FAILURES_OF_A_FAILED_START: u32 = 3;

/// The record last worked on, in the run directory: what a later daemon must know to clean up.
const RECORD: &str = "dc.json";

pub fn run(context: &Arc<Context>, inbox: &Inbox) {
    let mut worker: Option<Working> = None;
    loop {
        let (order, report_again, told) = {
            let mut inner = inbox.inner.lock();
            if inner.stopping {
                return;
            }
            (inner.order.clone(), std::mem::take(&mut inner.report_again), inner.told)
        };
        let Some(order) = order else {
            waiting::until_readable([inbox.bell.as_fd()].into_iter(), Instant::now() + IDLE);
            sys::eventfd::drain(&inbox.bell);
            continue;
        };
        let under_way = context.duties.begin(&duty(&order), TURN_LIMIT.saturating_add(grace_of(&order)));
        let working = match worker.take() {
            Some(working) => Ok(working),
            None => Working::begin(context, &order.record),
        };
        match working {
            Ok(mut working) => {
                if report_again {
                    working.reported = None;
                }
                if working.turn(&order) == Turn::Gone && inbox.ends_after(told) {
                    return;
                }
                drop(under_way);
                working.wait(inbox);
                worker = Some(working);
            }
            Err(error) => {
                drop(under_way);
                tracing::error!(dc = order.record.spec.name, error = causes(&*error), "cannot begin");
                waiting::until_readable([inbox.bell.as_fd()].into_iter(), Instant::now() + RETRY);
            }
        }
        sys::eventfd::drain(&inbox.bell);
    }
}

fn duty(order: &Order) -> String {
    format!("container '{}' (number {})", order.record.spec.name, order.record.id)
}

/// What its programs are given between the request to end and their end.
fn grace_of(order: &Order) -> Duration {
    match order.record.desired {
        Desired::Stopped { grace_ms } => Duration::from_millis(grace_ms),
        Desired::Running | Desired::Deleted { .. } => Duration::ZERO,
    }
}

/// Records of containers that an earlier daemon of this node worked on, or of which it keeps images.
pub fn remembered(config: &Config) -> Vec<DcRecord> {
    let mut found: Vec<DcRecord> = Vec::new();
    for dir in [config.run_dir.join("dcs"), config.state_dir.join("dcs")] {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path().join(RECORD);
            match std::fs::read(&path).map(|bytes| serde_json::from_slice::<DcRecord>(&bytes)) {
                Ok(Ok(record)) if !found.iter().any(|one| one.id == record.id) => found.push(record),
                Ok(Err(error)) => tracing::warn!(path = %path.display(), %error, "not a record of a container"),
                _ => (),
            }
        }
    }
    found
}

/// The record of one of them, if there is anything of it here.
pub fn remembered_of(config: &Config, dc: u32) -> Option<DcRecord> {
    let dirs = [config.dc_run_dir(dc), config.dc_state_dir(dc)];
    dirs.iter().find_map(|dir| serde_json::from_slice(&std::fs::read(dir.join(RECORD)).ok()?).ok())
}

/// Before anything is made, so that whatever is there can be found again.
fn remember(config: &Config, record: &DcRecord) -> Result<(), Problem> {
    for dir in [config.dc_run_dir(record.id), config.dc_state_dir(record.id)] {
        std::fs::create_dir_all(&dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
        state::write(&dir.join(RECORD), record)?;
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    GoOn,
    Gone,
}

struct Working {
    context: Arc<Context>,
    parts: Parts,
    /// What the engine has of ours.
    reported: Option<Vec<u8>>,
    report_due: Option<Instant>,
    /// When what a start looks like is told next.
    starting_told_at: Option<Instant>,
    /// Generation of the order worked on, and whether everything ran since.
    generation: u64,
    ran: bool,
    /// Since when this node waits for others in the same stage.
    stage_since: (Stage, Instant),
    retry_at: Option<Instant>,
}

impl Working {
    fn begin(context: &Arc<Context>, record: &DcRecord) -> Result<Working, Problem> {
        let share = Share::of(record, &context.config.node).ok_or("the container has no share on this node")?;
        let run_dir = context.config.dc_run_dir(share.id);
        let history = if run_dir.join(RECORD).exists() { History::Earlier } else { History::None };
        let earlier = remembered_of(&context.config, share.id);
        remember(&context.config, record)?;
        let earlier = earlier.filter(|_| history == History::Earlier);
        let earlier = earlier.and_then(|record| Share::of(&record, &context.config.node));
        let parts = Parts::open(context, share, history, earlier)?;
        Ok(Working {
            context: Arc::clone(context),
            parts,
            reported: None,
            report_due: None,
            starting_told_at: None,
            generation: record.generation,
            ran: false,
            stage_since: (Stage::Up, Instant::now()),
            retry_at: None,
        })
    }

    fn state_dir(&self) -> PathBuf {
        self.context.config.dc_state_dir(self.parts.share.id)
    }

    /// Acts until nothing is left to do at once.
    fn turn(&mut self, order: &Order) -> Turn {
        if order.record.generation != self.generation {
            self.generation = order.record.generation;
            self.ran = false;
            // A node that was taken out of it ends what it has.
            if let Some(share) = Share::of(&order.record, &self.context.config.node) {
                self.parts.follow(share);
            }
            self.parts.forget_failures();
            if let Err(error) = remember(&self.context.config, &order.record) {
                tracing::warn!(dc = order.record.spec.name, error = causes(&*error), "cannot remember a container");
            }
        }
        self.parts.hear_verdicts();
        self.retry_at = None;
        let has_followed = self.parts.catch_up();
        if let Err(error) = &has_followed {
            tracing::error!(dc = order.record.spec.name, error = causes(&**error), "cannot follow a change");
            self.retry_at = Some(Instant::now() + RETRY);
        }
        let wish = match order.record.desired {
            Desired::Running => Wish::Up,
            Desired::Stopped { .. } | Desired::Deleted { .. } => Wish::Down,
        };
        let grace = grace_of(order);
        if wish == Wish::Down {
            // What somebody stopped would not hear what those say that end before it.
            self.parts.processes_mut().for_each(|process| process.go_on());
            self.parts.close_hatch();
        }
        loop {
            let now = Instant::now();
            for process in self.parts.processes_mut() {
                process.look(now);
            }
            if wish == Wish::Up && self.context.renewal.is_wanted() {
                self.parts.renew_next();
            }
            if wish == Wish::Up {
                self.parts.publish();
                self.parts.look_after_network();
                self.parts.look_after_egress();
                self.parts.tell_names();
                self.parts.open_hatch();
            }
            self.parts.hold_desks();
            let observed = self.parts.observed();
            let others = self.others(order, plan::stage(&observed));
            let actions = plan::plan(wish, &self.parts.share.parts, &observed, others);
            self.report(order, wish, &observed);
            if actions.is_empty() {
                break;
            }
            if !self.act(&actions, grace) {
                self.retry_at = Some(Instant::now() + RETRY);
                break;
            }
        }
        self.finish(order)
    }

    /// False when something could not be unmade: what comes after it must wait.
    fn act(&mut self, actions: &[Action], grace: Duration) -> bool {
        actions.iter().all(|action| match action {
            Action::Make(part) => {
                self.parts.make(part);
                true
            }
            Action::Unmake(part) => self.parts.unmake(part, grace),
        })
    }

    /// How far all other nodes are down, of those that answer, as far as this matters; silence is not waited for for
    /// ever.
    fn others(&mut self, order: &Order, own: Stage) -> Stage {
        if self.stage_since.0 != own {
            self.stage_since = (own, Instant::now());
        }
        if self.stage_since.1.elapsed() > STAGE_LIMIT {
            return Stage::Down;
        }
        let others = order.shares.iter().filter(|(node, _)| **node != self.context.config.node);
        // A share of an older order has not heard of this one yet.
        let stages =
            others.map(|(_, share)| if share.generation < order.record.generation { Stage::Up } else { share.stage });
        stages.min().unwrap_or(Stage::Down)
    }

    // ---- reports

    fn report(&mut self, order: &Order, wish: Wish, observed: &plan::Observed) {
        let all_ready = self.parts.share.parts.iter().all(|part| observed.get(part) == Some(&Standing::Ready));
        self.ran |= wish == Wish::Up && all_ready;
        let stage = plan::stage(observed);
        let record = ShareRecord {
            id: self.parts.share.id,
            generation: order.record.generation,
            stage: if wish == Wish::Up { Stage::Up } else { stage },
            gone: false,
            share: self.describe(wish, stage, all_ready),
        };
        if record.share.phase == DcPhase::Starting {
            let due = *self.starting_told_at.get_or_insert_with(|| Instant::now() + REPORT_PAUSE);
            if Instant::now() < due {
                self.report_due = Some(due);
                return;
            }
        }
        self.starting_told_at = None;
        self.publish(&order.record.spec.name, &record);
    }

    fn describe(&self, wish: Wish, stage: Stage, all_ready: bool) -> NodeShare {
        let problems = self.parts.problems();
        let failed = !self.ran && self.parts.worst_failures() >= FAILURES_OF_A_FAILED_START;
        let ports = self.parts.published();
        let phase = match wish {
            Wish::Up if all_ready && ports.iter().any(|port| port.problem.is_some()) => DcPhase::Degraded,
            Wish::Up if all_ready => DcPhase::Running,
            Wish::Up if failed => DcPhase::Failed,
            Wish::Up if self.ran => DcPhase::Degraded,
            Wish::Up => DcPhase::Starting,
            Wish::Down if stage == Stage::Down => DcPhase::Stopped,
            Wish::Down => DcPhase::Stopping,
        };
        let servers = self.parts.processes().filter_map(|(part, process)| {
            let (state, pid, restarts) = (process.state(), process.pid(), process.restarts());
            Some(ServerStatus { state, pid, restarts, ..self.parts.share.status(part)? })
        });
        NodeShare {
            node: self.context.config.node.clone(),
            phase,
            address: self.parts.share.address.to_string(),
            address_ipv6: self.context.has_ipv6(&self.context.config.node).then_some(self.parts.share.address_ipv6),
            pid_base: self.parts.share.pid_base,
            endpoints: self.parts.share.endpoints.clone(),
            servers: servers.collect(),
            ports,
            problems,
        }
    }

    fn publish(&mut self, dc: &str, record: &ShareRecord) {
        let value = records::encode(record);
        self.report_due = None;
        if self.reported.as_ref() == Some(&value) {
            return;
        }
        let key = records::share_key(dc, &self.context.config.node);
        // Without a lease: there will be a call when there is a new one.
        let Some(lease) = self.context.lease() else { return };
        // A container whose record is gone has nobody left to report to; another one may have its name by now.
        let put = match records::is_still(&self.context.answers, dc, record.id) {
            Ok(None) => Ok(Outcome::Done(Revision(0))),
            Ok(Some(same)) => self.context.engine.transact(&[same], &[Op::put_leased(key, value.clone(), lease)]),
            Err(error) => Err(error),
        };
        match put {
            Ok(Outcome::Done(_)) => self.reported = Some(value),
            // Its record is another one by now, and will be heard of.
            Ok(Outcome::Conflict(_)) => self.report_due = Some(Instant::now() + RETRY),
            Err(error) => {
                tracing::warn!(dc, %error, "cannot report");
                self.report_due = Some(Instant::now() + RETRY);
            }
        }
    }

    // ---- the end

    /// Of a deleted container, once nothing of it runs here.
    fn finish(&mut self, order: &Order) -> Turn {
        let Desired::Deleted { images } = order.record.desired else { return Turn::GoOn };
        if plan::stage(&self.parts.observed()) != Stage::Down {
            return Turn::GoOn;
        }
        if let Err(error) = self.remove_remains(&order.record, images) {
            tracing::warn!(dc = order.record.spec.name, error = causes(&*error), "cannot remove what is left");
            self.retry_at = Some(Instant::now() + RETRY);
            return Turn::GoOn;
        }
        let share = self.describe(Wish::Down, Stage::Down, false);
        let gone = ShareRecord {
            id: self.parts.share.id,
            generation: order.record.generation,
            stage: Stage::Down,
            gone: true,
            share,
        };
        self.publish(&order.record.spec.name, &gone);
        // Without the report nobody knows that it is gone. Where there is no lease it is made with the next one.
        if self.reported == Some(records::encode(&gone)) { Turn::Gone } else { Turn::GoOn }
    }

    fn remove_remains(&self, record: &DcRecord, images: Images) -> Result<(), Problem> {
        let state_dir = self.state_dir();
        if images == Images::Keep && state_dir.exists() {
            let kept = self.context.config.state_dir.join("kept");
            std::fs::create_dir_all(&kept)?;
            let place = kept.join(format!("{}-{}", record.spec.name, record.id));
            std::fs::rename(&state_dir, &place)?;
            // A kept image is no leftover.
            state::remove(&place.join(RECORD))?;
        }
        parts::remove_tree(&state_dir)?;
        // The run directory last: as long as its record is there, a later daemon goes on where this one was.
        self.parts.clear_run_dir()?;
        Ok(())
    }

    // ---- waiting

    fn wait(&self, inbox: &Inbox) {
        let now = Instant::now();
        // While others are waited for, the limit of the stage may pass without any event.
        let stage_limit = Some(self.stage_since.1 + STAGE_LIMIT).filter(|limit| *limit > now);
        let due = [self.parts.due(), self.retry_at, self.report_due, stage_limit, Some(now + IDLE)];
        let until = due.into_iter().flatten().min().unwrap_or(now);
        let children = self.parts.processes().flat_map(|(_, process)| process.descriptors());
        waiting::until_readable(children.chain([inbox.bell.as_fd()]), until);
        for (_, process) in self.parts.processes() {
            spawn::bound_log(&process.log_path());
        }
    }
}
