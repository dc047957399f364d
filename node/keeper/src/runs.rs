//! Runs of services: what is started at most once, held as long as it is permitted, and ended as one
//! (`docs/design/supervised-services.md`).
//!
//! A run is a program like any other, in a control group of its own. It has ended when its first process has and nobody
//! is left in the group: whoever is, is killed. What begins when, and until when it is held, `service_core::tenure`
//! decides; nothing of it outlives the keeper, and no run does.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use mgmt_api::RunRequest;
use sandbox::cgroup::RunGroup;
use service_core::restart::RunEnd;
use service_core::tenure::{Begin, EXTEND_EVERY, PERMIT, Run, RunRefusal, RunTenure};
use sys::clock::monotonic_ns;
use sys::presence::PresencePage;

use crate::keeper::Keeper;
use crate::launch::{Plan, Surroundings};
use crate::program::Program;
use crate::protocol::{Answer, Permit, PresenceWatch, RunStanding};
use crate::refusal::{Refusal, Task};

/// Instances that are remembered. The oldest that run nothing give way.
const INSTANCES_MAX: usize = 8192;
/// One that was spoken of in this time is not forgotten: what was asked for then may still be on its way.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
pub const INSTANCE_BYTES_MAX: usize = 128;
/// Between two looks at a group that is to become empty, each with a kill.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Runs {
    kept: BTreeMap<String, Kept>,
    /// Extends what is permitted while no daemon does.
    watched: Option<(PresenceWatch, PresencePage)>,
    /// When that was looked at.
    looked_at: Option<Instant>,
}

/// One instance.
struct Kept {
    tenure: RunTenure,
    /// Of the run that is held, or was.
    pid: u32,
    /// How the last run ended.
    end: Option<RunEnd>,
    /// Why its first process did.
    cause: Option<String>,
    held: Option<Held>,
    /// The epoch that may be held for longer, as a daemon said last.
    permitted: Option<u64>,
    touched: Instant,
}

/// What there is of a run that is held.
struct Held {
    /// Of the record of its program.
    program: u32,
    group: RunGroup,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Runs,
    /// Its first process ended so, or its permit did: nobody stays.
    Ends {
        end: RunEnd,
        look_at: Instant,
    },
}

impl Held {
    /// It ends, for the first reason that there was.
    fn ends(&mut self, end: RunEnd, now: Instant) {
        if self.phase == Phase::Runs {
            self.phase = Phase::Ends { end, look_at: now };
        }
    }
}

impl Runs {
    fn of(&mut self, instance: &str, now: Instant) -> Result<&mut Kept, Refusal> {
        if instance.is_empty() || instance.len() > INSTANCE_BYTES_MAX {
            return Err(Refusal::BadKey);
        }
        if self.kept.len() >= INSTANCES_MAX && !self.kept.contains_key(instance) {
            let is_idle = |kept: &Kept| kept.held.is_none() && now - kept.touched >= REMEMBERED_FOR;
            let idle = self.kept.iter().filter(|(_, kept)| is_idle(kept)).min_by_key(|(_, kept)| kept.touched);
            let idle = idle.map(|(instance, _)| instance.clone()).ok_or(Refusal::StoreFull)?;
            self.kept.remove(&idle);
        }
        let kept = match self.kept.entry(instance.to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Kept {
                tenure: RunTenure::default(),
                pid: 0,
                end: None,
                cause: None,
                held: None,
                permitted: None,
                touched: now,
            }),
        };
        kept.touched = now;
        Ok(kept)
    }

    fn watch(&mut self, presence: Option<PresenceWatch>) {
        let open = |watch: PresenceWatch| match PresencePage::open(&watch.path) {
            Ok(page) => Some((watch, page)),
            Err(error) => {
                tracing::debug!(%error, "permits end with the daemon that extends them");
                None
            }
        };
        if self.watched.as_ref().map(|(watch, _)| watch) != presence.as_ref() {
            self.watched = presence.and_then(open);
        }
    }

    /// By what the node's proxies say.
    fn extend_by_presence(&mut self) {
        self.looked_at = Some(Instant::now());
        let Some((watch, page)) = &self.watched else { return };
        let Some(there) = page.there_ns(watch.incarnation, monotonic_ns()) else { return };
        let until = moment(there.saturating_add(PERMIT.as_nanos() as u64));
        for kept in self.kept.values_mut() {
            if let Some(epoch) = kept.permitted {
                kept.tenure.extend(epoch, until);
            }
        }
    }

    /// When something has to be looked at.
    pub fn due(&self) -> Option<Instant> {
        let of = |kept: &Kept| match kept.held.as_ref()?.phase {
            Phase::Runs => Some(self.look_at(kept, kept.tenure.until()?)),
            Phase::Ends { look_at, .. } => Some(look_at),
        };
        self.kept.values().filter_map(of).min()
    }

    /// What no daemon has extended for a while, the proxies do, long before it ends: theirs may be about to be
    /// replaced, by those of a daemon that begins, and what the old ones saw last is worth a whole permit.
    fn look_at(&self, kept: &Kept, until: Instant) -> Instant {
        if self.watched.is_none() || kept.permitted.is_none() {
            return until;
        }
        let stale = until.checked_sub(PERMIT - EXTEND_EVERY).unwrap_or(until);
        let next = self.looked_at.map_or(stale, |at| stale.max(at + EXTEND_EVERY));
        until.min(next)
    }

    fn standings(&self) -> Vec<RunStanding> {
        let standing = |(instance, kept): (&String, &Kept)| RunStanding {
            instance: instance.clone(),
            last: kept.tenure.last(),
            closed: kept.tenure.closed(),
            is_held: kept.held.is_some(),
            pid: kept.pid,
            end: kept.end,
            cause: kept.cause.clone(),
        };
        self.kept.iter().map(standing).collect()
    }
}

/// A moment of the node's monotonic clock, as this process counts. One that is far away is as far as a clock can say.
fn moment(at_ns: u64) -> Instant {
    let (now, now_ns) = (Instant::now(), monotonic_ns());
    let passed = now.checked_sub(Duration::from_nanos(now_ns.saturating_sub(at_ns))).unwrap_or(now);
    passed.checked_add(Duration::from_nanos(at_ns.saturating_sub(now_ns))).unwrap_or(passed)
}

impl Keeper {
    /// Starts a run, at most once. The answer comes when its program was executed, or was not.
    pub fn begin_run(&mut self, asker: u32, instance: &str, run: (Run, u64), is_check: bool, request: RunRequest) {
        match self.try_begin(asker, instance, run, is_check, request) {
            Ok(None) => self.set_busy(asker),
            Ok(Some(answer)) => self.answer(asker, &answer, &[]),
            Err(refusal) => self.answer(asker, &Answer::Refused(refusal), &[]),
        }
    }

    fn try_begin(
        &mut self,
        asker: u32,
        instance: &str,
        (run, until_ns): (Run, u64),
        is_check: bool,
        request: RunRequest,
    ) -> Result<Option<Answer>, Refusal> {
        self.check_room()?;
        let now = Instant::now();
        let kept = self.runs.of(instance, now)?;
        match kept.tenure.begin(run, moment(until_ns), now) {
            Begin::Begun => return Ok(Some(Answer::Begun)),
            Begin::Refused(refusal) => return Err(Refusal::Run(refusal)),
            Begin::Start => (),
        }
        (kept.end, kept.cause, kept.pid) = (None, None, 0);
        let id = self.next_id();
        match self.start_run(id, request) {
            Ok((mut program, group)) => {
                program.asker = Some(asker);
                (program.instance, program.is_check) = (Some(instance.to_owned()), is_check);
                self.programs.insert(id, program);
                if let Some(kept) = self.runs.kept.get_mut(instance) {
                    kept.held = Some(Held { program: id, group, phase: Phase::Runs });
                }
                Ok(None)
            }
            Err(refusal) => {
                if let Some(kept) = self.runs.kept.get_mut(instance) {
                    kept.tenure.ended(run);
                    kept.end = Some(RunEnd::NotStarted);
                }
                Err(refusal)
            }
        }
    }

    fn start_run(&mut self, id: u32, request: RunRequest) -> Result<(Program, RunGroup), Refusal> {
        let plan = Plan::check(&request, &self.options.hostname, &self.options.env)?;
        let fail = Task::MakeGroup;
        let groups = self.options.cgroup.as_ref().ok_or(std::io::ErrorKind::NotFound.into());
        let groups = groups.map_err(fail.failed::<std::io::Error>())?;
        let group = groups.make_run(id).map_err(fail.failed())?;
        let members: Vec<OwnedFd> = groups.member_files_of(&group).map_err(fail.failed())?;
        let (program, stdio) = self.prepare(id, request, None)?;
        self.refresh_views();
        let around = Surroundings { members: &members, ..self.surroundings(self.init.pidfd.as_fd()) };
        let launched = plan.launch(&around, stdio);
        match self.take_up(program, launched) {
            Ok(program) => Ok((program, group)),
            Err(refusal) => {
                group.kill();
                group.remove();
                Err(refusal)
            }
        }
    }

    /// Extends permits, and says how all runs stand.
    pub fn hold_runs(&mut self, permits: &[Permit], until_ns: u64, presence: Option<PresenceWatch>) -> Answer {
        let (now, until) = (Instant::now(), moment(until_ns));
        // Until this moment what was permitted before counts: a daemon that begins needs a few questions before it
        // knows what it permits.
        self.runs.extend_by_presence();
        self.runs.watch(presence);
        self.runs.kept.values_mut().for_each(|kept| kept.permitted = None);
        for permit in permits {
            if let Some(kept) = self.runs.kept.get_mut(&permit.instance) {
                kept.tenure.extend(permit.epoch, until);
                (kept.permitted, kept.touched) = (Some(permit.epoch), now);
            }
        }
        Answer::Runs(self.runs.standings())
    }

    /// Nothing of this instance up to this epoch begins any more.
    pub fn close_run(&mut self, instance: &str, epoch: u64) -> Result<(), Refusal> {
        self.runs.of(instance, Instant::now())?.tenure.close(epoch);
        Ok(())
    }

    /// A signal for the first process of a run; SIGKILL for all of it.
    pub fn signal_run(&mut self, instance: &str, run: Run, signal: i32) -> Result<(), Refusal> {
        let kept = self.runs.kept.get_mut(instance).filter(|kept| kept.tenure.held() == Some(run));
        let Some(held) = kept.and_then(|kept| kept.held.as_mut()) else { return Err(Refusal::Run(RunRefusal::Over)) };
        if signal == libc::SIGKILL {
            held.group.kill();
            return Ok(());
        }
        let program = self.programs.get(&held.program).and_then(|program| program.pidfd.as_ref());
        // It has ended, and those that it left are being ended.
        let Some(pidfd) = program else { return Ok(()) };
        match sys::child::send_signal(pidfd, signal) {
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(Task::SendSignal.failed()(error)),
            _ => Ok(()),
        }
    }

    /// The program of a run is there.
    pub fn run_executed(&mut self, instance: &str, pid: u32) {
        if let Some(kept) = self.runs.kept.get_mut(instance) {
            kept.pid = pid;
        }
    }

    /// The first process of a run has ended, or never became its program.
    pub fn run_ended(&mut self, instance: &str, program: u32, end: RunEnd) {
        let Some(kept) = self.runs.kept.get_mut(instance) else { return };
        if let Some(held) = kept.held.as_mut().filter(|held| held.program == program) {
            held.ends(end, Instant::now());
            kept.cause = self.programs.get(&program).and_then(|program| program.cause.clone());
        }
    }

    /// Ends what is not permitted any more, and what is left of what ended.
    pub fn look_after_runs(&mut self) {
        let now = Instant::now();
        let is_due = |kept: &Kept| kept.tenure.until().is_some_and(|until| now >= self.runs.look_at(kept, until));
        if self.runs.kept.values().any(is_due) {
            self.runs.extend_by_presence();
        }
        let programs = &self.programs;
        for (instance, kept) in &mut self.runs.kept {
            let Some(held) = &mut kept.held else { continue };
            if kept.tenure.expired(now).is_some() && held.phase == Phase::Runs {
                tracing::warn!(instance, "a run is not permitted any more: ending it");
                held.ends(RunEnd::Lost, now);
            }
            let Phase::Ends { end, look_at } = held.phase else { continue };
            if now < look_at {
                continue;
            }
            let has_first = programs.get(&held.program).is_some_and(|program| program.pidfd.is_some());
            if !has_first && held.group.is_empty() && held.group.remove() {
                if let Some(run) = kept.tenure.held() {
                    kept.tenure.ended(run);
                }
                kept.end = Some(end);
                kept.held = None;
            } else {
                held.group.kill();
                held.phase = Phase::Ends { end, look_at: now + LOOK_AGAIN };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_the_same_for_everybody_on_the_node() {
        let (now, now_ns) = (Instant::now(), monotonic_ns());
        let second = Duration::from_secs(1);
        let near = |at: Instant, expected: Instant| {
            let apart = if at > expected { at - expected } else { expected - at };
            assert!(apart < Duration::from_millis(100), "{apart:?}");
        };
        near(moment(now_ns), now);
        near(moment(now_ns + 1_000_000_000), now + second);
        if let Some(before) = now.checked_sub(second) {
            near(moment(now_ns - 1_000_000_000), before);
        }
        // No number is too large.
        assert!(moment(u64::MAX) >= now);
        assert!(moment(0) <= Instant::now());
    }

    #[test]
    fn instances_that_run_nothing_give_way_when_they_are_many() {
        let mut runs = Runs::default();
        let begin = Instant::now();
        for number in 0..INSTANCES_MAX {
            runs.of(&format!("web/{number}"), begin).expect("room");
        }
        assert_eq!(runs.of("one/0", begin).err(), Some(Refusal::StoreFull));
        assert!(runs.of("web/0", begin + REMEMBERED_FOR).is_ok(), "it is there");
        assert!(runs.of("one/0", begin + REMEMBERED_FOR).is_ok());
        assert_eq!(runs.kept.len(), INSTANCES_MAX);
        assert!(runs.kept.contains_key("web/0") && !runs.kept.contains_key("web/1"));
        assert_eq!(runs.of("", begin).err(), Some(Refusal::BadKey));
    }
}
