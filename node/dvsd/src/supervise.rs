//! One supervised process: start, readiness, death, rest, start again.
//!
//! ```text
//! Absent ──start──> Starting ──R──> Running
//!    ^                 │ died, too slow │ died
//!    └──── rest over ──┴──── Resting <──┘
//! ```
//!
//! How long it rests depends on what went wrong. A process that cannot start will hardly be able to a moment later: the
//! rest doubles with each attempt, up to seconds. One that served and died is missed by everybody who waits for its
//! answer: it is started at once, unless it dies again and again, and even then the rest stays short. Nothing here
//! blocks but [`Supervised::end`].

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mgmt_api::ServerState;
use rustix::process::Signal;

use crate::reconcile::plan::Standing;
use crate::spawn::{self, Readiness, Role};
use crate::state::{self, Child, StateError};

/// After the first attempt to start that failed.
const REST_FIRST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(5);
/// Deaths in service that are answered by a new start at once.
const DEATHS_WITHOUT_REST: u32 = 3;
/// After the next one; a process that dies of every request must not take the machine's time.
const REST_AFTER_DEATH_FIRST: Duration = Duration::from_millis(10);
const REST_AFTER_DEATH_MAX: Duration = Duration::from_millis(200);
/// Deaths before a process ran this long are forgotten.
const PROVEN: Duration = Duration::from_secs(10);
/// Opening a large volume after a crash takes its time, and so does waiting for a disk on another node.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Between closing its ready descriptor and its end.
const LAST_WORDS: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Supervised {
    name: String,
    run_dir: PathBuf,
    log_dir: PathBuf,
    life: Life,
    /// In a row, since the last that became ready.
    failed_starts: u32,
    /// Of processes that had become ready, in a row.
    deaths: u32,
    restarts: u64,
    problem: Option<String>,
    /// Where in the log this incarnation's words begin.
    log_from: u64,
}

#[derive(Debug)]
enum Life {
    Absent,
    Starting { child: Child, ready: OwnedFd, since: Instant },
    Running { child: Child, since: Instant, fitness: Fitness },
    Resting { until: Instant },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fitness {
    Fit,
    /// Its connection ended with the daemon that made it, or it is of an earlier release.
    Stale,
    /// It knows an earlier placement: what it would still write goes to who does not stand there any more.
    Misled,
}

/// Whether what a process was given by an earlier daemon is still of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnAdoption {
    /// It needs nothing of the daemon.
    GoesOn,
    /// It holds a connection to the earlier daemon: serves its present clients, but no new one.
    MustBeReplaced,
}

impl Supervised {
    /// With the process an earlier daemon may have left.
    pub fn adopt(
        name: &str,
        run_dir: &Path,
        log_dir: &Path,
        on_adoption: OnAdoption,
    ) -> Result<Supervised, StateError> {
        Supervised::adopt_if(name, run_dir, log_dir, |_| on_adoption)
    }

    /// The same, decided by the process number of what was left.
    pub fn adopt_if(
        name: &str,
        run_dir: &Path,
        log_dir: &Path,
        on_adoption: impl FnOnce(i32) -> OnAdoption,
    ) -> Result<Supervised, StateError> {
        let mut supervised = Supervised {
            name: name.to_owned(),
            run_dir: run_dir.to_owned(),
            log_dir: log_dir.to_owned(),
            life: Life::Absent,
            failed_starts: 0,
            deaths: 0,
            restarts: 0,
            problem: None,
            log_from: 0,
        };
        if let Some(child) = state::adopt(&run_dir.join(format!("{name}.json")))? {
            tracing::info!(role = name, pid = child.record.pid, "adopted");
            supervised.restarts = child.record.restarts;
            // One that had not said yet that it serves has nobody to say it to.
            let fit = child.record.ready && on_adoption(child.record.pid) == OnAdoption::GoesOn;
            let fitness = if fit { Fitness::Fit } else { Fitness::Stale };
            supervised.life = Life::Running { child, since: Instant::now(), fitness };
        }
        Ok(supervised)
    }

    pub fn standing(&self) -> Standing {
        match &self.life {
            Life::Absent => Standing::Absent,
            Life::Starting { .. } => Standing::Coming,
            Life::Running { fitness: Fitness::Fit, .. } => Standing::Ready,
            Life::Running { fitness: Fitness::Stale | Fitness::Misled, .. } => Standing::Stale,
            Life::Resting { .. } => Standing::Resting,
        }
    }

    pub fn state(&self) -> ServerState {
        match &self.life {
            Life::Absent => ServerState::Stopped,
            Life::Starting { .. } => ServerState::Starting,
            Life::Running { .. } => ServerState::Running,
            Life::Resting { .. } => ServerState::Resting,
        }
    }

    pub fn pid(&self) -> Option<u32> {
        match &self.life {
            Life::Starting { child, .. } | Life::Running { child, .. } => u32::try_from(child.record.pid).ok(),
            Life::Absent | Life::Resting { .. } => None,
        }
    }

    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Failures in a row.
    pub fn failures(&self) -> u32 {
        self.failed_starts.saturating_add(self.deaths)
    }

    /// A new wish: what failed before does not count against it, and need not be waited for.
    pub fn forget_failures(&mut self) {
        self.failed_starts = 0;
        self.deaths = 0;
        if let Life::Resting { until } = &mut self.life {
            *until = Instant::now();
        }
    }

    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Starts what `role` makes. A failure counts like a death.
    pub fn start(&mut self, role: impl FnOnce(u64) -> Result<Role, Problem>) {
        let now = Instant::now();
        self.log_from = std::fs::metadata(self.log_path()).map_or(0, |log| log.len());
        match role(self.restarts).and_then(|role| Ok(spawn::start(role, &self.run_dir, &self.log_dir)?)) {
            Ok(started) => self.life = Life::Starting { child: started.child, ready: started.ready, since: now },
            Err(problem) => self.failed(now, When::Starting, causes(&*problem)),
        }
    }

    /// Takes notice of readiness and death. True when something changed.
    pub fn look(&mut self, now: Instant) -> bool {
        let life = std::mem::replace(&mut self.life, Life::Absent);
        match life {
            Life::Starting { child, .. } if child.has_ended() => self.died(now, When::Starting, child),
            Life::Running { child, .. } if child.has_ended() => self.died(now, When::Serving, child),
            Life::Starting { mut child, ready, since } => match spawn::readiness(&ready) {
                Readiness::Ready => {
                    if let Err(error) = child.mark_ready() {
                        tracing::warn!(role = self.name, %error, "a restarted daemon will start this anew");
                    }
                    self.problem = None;
                    self.failed_starts = 0;
                    self.life = Life::Running { child, since: now, fitness: Fitness::Fit };
                }
                Readiness::NotYet if now < since + START_LIMIT => {
                    self.life = Life::Starting { child, ready, since };
                    return false;
                }
                // It is on its way out: its status and last words are worth the moment.
                Readiness::Never if child.wait(LAST_WORDS) => self.died(now, When::Starting, child),
                Readiness::NotYet | Readiness::Never => {
                    if let Err(error) = child.end(Duration::ZERO) {
                        tracing::warn!(role = self.name, %error, "cannot put its record away");
                    }
                    self.failed(now, When::Starting, format!("{} did not become ready", self.name));
                }
            },
            Life::Running { child, since, fitness } => {
                if now.saturating_duration_since(since) >= PROVEN {
                    self.deaths = 0;
                }
                self.life = Life::Running { child, since, fitness };
                return false;
            }
            Life::Resting { until } if now >= until => (),
            unchanged => {
                self.life = unchanged;
                return false;
            }
        }
        true
    }

    /// What becomes readable when [`Supervised::look`] has something to see.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (child, ready) = match &self.life {
            Life::Starting { child, ready, .. } => (Some(child), Some(ready)),
            Life::Running { child, .. } => (Some(child), None),
            Life::Absent | Life::Resting { .. } => (None, None),
        };
        child.map(Child::pidfd).into_iter().chain(ready.map(AsFd::as_fd))
    }

    /// When to look although no descriptor is readable.
    pub fn due(&self) -> Option<Instant> {
        match &self.life {
            Life::Starting { since, .. } => Some(*since + START_LIMIT),
            Life::Resting { until } => Some(*until),
            Life::Absent | Life::Running { .. } => None,
        }
    }

    /// What runs, or is about to, is to be replaced.
    pub fn make_stale(&mut self) {
        self.is_to_go(Fitness::Stale);
    }

    /// Likewise, and at once, because it knows an earlier placement.
    pub fn make_misled(&mut self) {
        self.is_to_go(Fitness::Misled);
    }

    pub fn is_misled(&self) -> bool {
        matches!(self.life, Life::Running { fitness: Fitness::Misled, .. })
    }

    fn is_to_go(&mut self, fitness: Fitness) {
        self.life = match std::mem::replace(&mut self.life, Life::Absent) {
            // What was true of it stays so.
            life @ Life::Running { fitness: Fitness::Misled, .. } => life,
            Life::Starting { child, since, .. } | Life::Running { child, since, .. } => {
                Life::Running { child, since, fitness }
            }
            life @ (Life::Absent | Life::Resting { .. }) => life,
        };
    }

    /// One that somebody stopped does so no more.
    pub fn go_on(&self) {
        if let Life::Starting { child, .. } | Life::Running { child, .. } = &self.life {
            child.signal(Signal::CONT);
        }
    }

    /// SIGTERM, after `grace` SIGKILL. Blocks for at most a little more than `grace`.
    pub fn end(&mut self, grace: Duration) -> Result<(), StateError> {
        match std::mem::replace(&mut self.life, Life::Absent) {
            Life::Starting { child, .. } | Life::Running { child, .. } => child.end(grace),
            Life::Absent | Life::Resting { .. } => Ok(()),
        }
    }

    /// Leaves it to itself: it ends when it is done, and nobody looks after it any more.
    pub fn release(&mut self) -> Result<(), StateError> {
        match std::mem::replace(&mut self.life, Life::Absent) {
            Life::Starting { child, .. } | Life::Running { child, .. } => child.release(),
            Life::Absent | Life::Resting { .. } => Ok(()),
        }
    }

    /// Ends one that does not serve any more as it should, which counts as its death. Blocks like [`Supervised::end`].
    pub fn give_up(&mut self, now: Instant, grace: Duration, why: String) {
        if let Err(error) = self.end(grace) {
            tracing::warn!(role = self.name, %error, "cannot put its record away");
        }
        self.failed(now, When::Serving, why);
    }

    pub fn log_path(&self) -> PathBuf {
        self.log_dir.join(format!("{}.log", self.name))
    }

    fn died(&mut self, now: Instant, when: When, child: Child) {
        let status = child.bury().unwrap_or_else(|error| Some(error.to_string()));
        let mut said = format!("{} ended", self.name);
        if let Some(status) = status {
            said.push_str(&format!(" ({status})"));
        }
        if let Some(line) = spawn::last_words(&self.log_path(), self.log_from) {
            said.push_str(&format!("; its last words: {line}"));
        }
        self.failed(now, when, said);
    }

    fn failed(&mut self, now: Instant, when: When, problem: String) {
        let failures = match when {
            When::Starting => &mut self.failed_starts,
            When::Serving => &mut self.deaths,
        };
        let rest = when.rest(*failures);
        *failures = failures.saturating_add(1);
        tracing::warn!(role = self.name, problem, rest_ms = rest.as_millis(), "resting");
        self.restarts += 1;
        self.problem = Some(problem);
        self.life = Life::Resting { until: now + rest };
    }
}

/// In which part of its life a process failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    Starting,
    Serving,
}

impl When {
    /// How long to rest after the same happened `earlier` times in a row before.
    fn rest(self, earlier: u32) -> Duration {
        let doubled = |first: Duration, times: u32, max: Duration| first.saturating_mul(1 << times.min(10)).min(max);
        match self {
            When::Starting => doubled(REST_FIRST, earlier, REST_MAX),
            When::Serving => match earlier.checked_sub(DEATHS_WITHOUT_REST) {
                None => Duration::ZERO,
                Some(times) => doubled(REST_AFTER_DEATH_FIRST, times, REST_AFTER_DEATH_MAX),
            },
        }
    }
}

/// A thread that looks after a process of the node. Dropped, the thread ends; the process goes on.
pub struct Watching {
    name: &'static str,
    stop: Arc<(AtomicBool, OwnedFd)>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    /// `look_after` returns soon after the flag is set, which the descriptor tells.
    pub fn start(
        name: &'static str,
        look_after: impl FnOnce(&AtomicBool, &OwnedFd) + Send + 'static,
    ) -> std::io::Result<Watching> {
        let stop = Arc::new((AtomicBool::new(false), sys::eventfd::create()?));
        let also = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || look_after(&also.0, &also.1))?;
        Ok(Watching { name, stop, thread: Some(thread) })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::SeqCst);
        sys::eventfd::signal(&self.stop.1);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(of = self.name, "the thread that looks after a process had panicked");
        }
    }
}

/// Anything that kept a part from being made.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;

/// An error with everything that caused it, outermost first.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_that_served_is_started_at_once_and_rests_only_when_it_dies_again_and_again() {
        let rests: Vec<Duration> = (0..20).map(|earlier| When::Serving.rest(earlier)).collect();
        assert!(rests.iter().take(3).all(Duration::is_zero), "{rests:?}");
        assert!(rests.is_sorted() && rests[3] > Duration::ZERO, "{rests:?}");
        assert_eq!(rests.last(), Some(&REST_AFTER_DEATH_MAX));
        assert_eq!(When::Serving.rest(u32::MAX), REST_AFTER_DEATH_MAX);
    }

    #[test]
    fn process_that_cannot_start_is_tried_less_and_less_often() {
        let rests: Vec<Duration> = (0..20).map(|earlier| When::Starting.rest(earlier)).collect();
        assert_eq!(rests.first(), Some(&REST_FIRST));
        assert!(rests.is_sorted(), "{rests:?}");
        assert_eq!(rests.last(), Some(&REST_MAX));
    }
}
