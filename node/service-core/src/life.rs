//! The states of an instance on its node: one value for each, moved on by the worker of the container there.
//!
//! | state | moves on | by |
//! |---|---|---|
//! | `Waiting` | starting | what it comes after is up |
//! | `Starting` | running · ended | the keeper |
//! | `Running`, `Healthy` | healthy · ending · ended | answers of its check; the keeper |
//! | `Ending` | ended | the keeper, after signal and grace; SIGKILL repeated |
//! | `Resting` | starting | its delay |
//! | `Over` | – | what it became: stopped, failed |
//!
//! A placement has one life. Another epoch is another one, and nobody tells a life that it moves: it is stopped here
//! and begins there.

use std::time::{Duration, Instant};

use mgmt_api::{RestartPolicy, ServiceSpec, ServiceState};

use crate::health::{self, HealthWatch};
use crate::restart::{AfterEnd, Past, RunEnd};
use crate::tenure::Run;

/// Between two SIGKILLs at a program that does not end: it is in a call that the kernel does not interrupt.
pub const KILL_AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct InstanceLife {
    epoch: u64,
    /// Of the next or present start.
    number: u64,
    phase: Phase,
    past: Past,
    exit: Option<u8>,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    Starting,
    Running { since: Instant, health: Option<Box<HealthWatch>> },
    Ending { since: Instant, why: Why, kill_at: Instant },
    Resting { until: Instant },
    Over(ServiceState),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// It is to be stopped, and not to be started again.
    Stop,
    /// It is to be started again at once: somebody asked for it.
    Restart,
    Unhealthy,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LifeStep {
    /// Ask the keeper to begin this run. May be asked again.
    Begin(Run),
    /// Send the signal of its description.
    Signal(Run),
    Kill(Run),
    /// Ask whether it is well.
    Probe {
        run: Run,
        until: Instant,
    },
    /// Nothing before then, if it is known when.
    Wait(Option<Instant>),
}

/// What a new daemon finds of the last run of a placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundRun {
    /// Its keeper holds it.
    Held,
    /// It ended, its keeper says, and nobody reported what followed.
    Ended(RunEnd),
    /// So it was reported, of this epoch.
    Stopped,
    Failed,
}

impl InstanceLife {
    /// Of a placement that was decided on; `last` began on this node before, as its keeper says.
    pub fn new(epoch: u64, last: Run) -> InstanceLife {
        let number = if last.epoch == epoch { last.number } else { 0 };
        InstanceLife {
            epoch,
            number: number.saturating_add(1),
            phase: Phase::Waiting,
            past: Past::default(),
            exit: None,
        }
    }

    /// Of a run that a new daemon finds. What it did so far is not known: its check and its delays begin anew.
    pub fn found(run: Run, found: FoundRun, spec: &ServiceSpec, now: Instant) -> InstanceLife {
        let phase = match found {
            FoundRun::Held | FoundRun::Ended(_) => {
                let health = spec.health.as_ref().map(|health| Box::new(HealthWatch::new(health, now)));
                Phase::Running { since: now, health }
            }
            FoundRun::Stopped => Phase::Over(ServiceState::Stopped),
            FoundRun::Failed => Phase::Over(ServiceState::Failed),
        };
        let mut life = InstanceLife { epoch: run.epoch, number: run.number, phase, past: Past::default(), exit: None };
        if let FoundRun::Ended(end) = found {
            life.ended(run, end, spec, now);
        }
        life
    }

    pub fn run(&self) -> Run {
        Run { epoch: self.epoch, number: self.number }
    }

    pub fn state(&self) -> ServiceState {
        match &self.phase {
            Phase::Waiting => ServiceState::Waiting,
            Phase::Starting => ServiceState::Starting,
            Phase::Running { health, .. } => match health.as_ref().map(|health| health.verdict()) {
                None | Some(health::Wellness::Coming) => ServiceState::Running,
                Some(health::Wellness::Healthy) => ServiceState::Healthy,
                Some(health::Wellness::Unhealthy) => ServiceState::Unhealthy,
            },
            Phase::Ending { why: Why::Unhealthy, .. } => ServiceState::Unhealthy,
            Phase::Ending { .. } => ServiceState::Stopping,
            Phase::Resting { .. } => ServiceState::BackingOff,
            Phase::Over(state) => *state,
        }
    }

    /// How its last run ended, as a shell shows it.
    pub fn exit(&self) -> Option<u8> {
        self.exit
    }

    pub fn restarts(&self) -> u64 {
        self.number.saturating_sub(1)
    }

    /// What is to be done now. `is_up`: whether all that it comes after is up.
    pub fn look(&mut self, spec: &ServiceSpec, is_up: bool, now: Instant) -> LifeStep {
        let run = self.run();
        match &mut self.phase {
            Phase::Waiting if is_up => {
                self.phase = Phase::Starting;
                LifeStep::Begin(run)
            }
            Phase::Waiting | Phase::Over(_) => LifeStep::Wait(None),
            Phase::Starting => LifeStep::Begin(run),
            Phase::Running { health: None, .. } => LifeStep::Wait(None),
            Phase::Running { health: Some(health), .. } => match health.look(now) {
                _ if health.verdict() == health::Wellness::Unhealthy => {
                    if spec.restart == RestartPolicy::Never {
                        return LifeStep::Wait(None);
                    }
                    self.end(Why::Unhealthy, spec, now)
                }
                health::HealthStep::Ask { until } => LifeStep::Probe { run, until },
                health::HealthStep::Wait { until } => LifeStep::Wait(Some(until)),
            },
            Phase::Ending { kill_at, .. } if now >= *kill_at => {
                *kill_at = now + KILL_AGAIN;
                LifeStep::Kill(run)
            }
            Phase::Ending { kill_at, .. } => LifeStep::Wait(Some(*kill_at)),
            Phase::Resting { until } if now < *until => LifeStep::Wait(Some(*until)),
            Phase::Resting { .. } => {
                self.phase = Phase::Starting;
                LifeStep::Begin(run)
            }
        }
    }

    /// The keeper began it.
    pub fn began(&mut self, run: Run, spec: &ServiceSpec, now: Instant) {
        if run == self.run() && matches!(self.phase, Phase::Starting) {
            let health = spec.health.as_ref().map(|health| Box::new(HealthWatch::new(health, now)));
            self.phase = Phase::Running { since: now, health };
        }
    }

    /// What of it runs stands still at this moment.
    pub fn stand(&mut self, now: Instant) {
        if let Phase::Running { health: Some(health), .. } = &mut self.phase {
            health.stand(now);
        }
    }

    /// The answer of its check.
    pub fn probed(&mut self, run: Run, is_well: bool, now: Instant) {
        let is_own = run == self.run();
        if let Phase::Running { health: Some(health), .. } = &mut self.phase
            && is_own
        {
            health.hear(is_well, now);
        }
    }

    /// A run ended. One that is not the present one says nothing.
    pub fn ended(&mut self, run: Run, end: RunEnd, spec: &ServiceSpec, now: Instant) {
        if run != self.run() {
            return;
        }
        if let RunEnd::Exit(exit) = end {
            self.exit = Some(exit);
        }
        let (ran, why) = match &self.phase {
            Phase::Running { since, .. } => (now.saturating_duration_since(*since), None),
            Phase::Ending { since, why, .. } => (now.saturating_duration_since(*since), Some(*why)),
            Phase::Starting => (Duration::ZERO, None),
            Phase::Waiting | Phase::Resting { .. } | Phase::Over(_) => return,
        };
        let next = match why {
            Some(Why::Stop) => AfterEnd::Stopped,
            Some(Why::Restart) => AfterEnd::Again { after: Duration::ZERO },
            Some(Why::Unhealthy) => self.past.next(spec.restart, RunEnd::Unhealthy, ran),
            None => self.past.next(spec.restart, end, ran),
        };
        self.phase = match next {
            AfterEnd::Again { after } => {
                self.number = self.number.saturating_add(1);
                Phase::Resting { until: now + after }
            }
            AfterEnd::Stopped => Phase::Over(ServiceState::Stopped),
            AfterEnd::Failed => Phase::Over(ServiceState::Failed),
        };
    }

    /// It is to end, for good. One whose start is under way is ended, too: whether it began, only the keeper knows;
    /// when it holds nothing after it closed the epoch, the run is [`RunEnd::Lost`].
    pub fn stop(&mut self, spec: &ServiceSpec, now: Instant) -> LifeStep {
        match &mut self.phase {
            Phase::Waiting | Phase::Resting { .. } => {
                self.phase = Phase::Over(ServiceState::Stopped);
                LifeStep::Wait(None)
            }
            Phase::Ending { why, kill_at, .. } => {
                *why = Why::Stop;
                LifeStep::Wait(Some(*kill_at))
            }
            Phase::Starting | Phase::Running { .. } => self.end(Why::Stop, spec, now),
            Phase::Over(_) => LifeStep::Wait(None),
        }
    }

    /// It is to begin once more, whatever its policy says.
    pub fn restart(&mut self, spec: &ServiceSpec, now: Instant) -> LifeStep {
        match &mut self.phase {
            Phase::Running { .. } => self.end(Why::Restart, spec, now),
            Phase::Ending { why, kill_at, .. } => {
                if *why == Why::Unhealthy {
                    *why = Why::Restart;
                }
                LifeStep::Wait(Some(*kill_at))
            }
            Phase::Resting { until } => {
                *until = now;
                LifeStep::Wait(Some(now))
            }
            Phase::Over(_) => {
                self.number = self.number.saturating_add(1);
                self.phase = Phase::Resting { until: now };
                LifeStep::Wait(Some(now))
            }
            Phase::Waiting | Phase::Starting => LifeStep::Wait(Some(now)),
        }
    }

    fn end(&mut self, why: Why, spec: &ServiceSpec, now: Instant) -> LifeStep {
        let since = match &self.phase {
            Phase::Running { since, .. } => *since,
            _ => now,
        };
        self.phase = Phase::Ending { since, why, kill_at: now + Duration::from_millis(spec.stop.grace_ms) };
        LifeStep::Signal(self.run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restart::DELAY_MIN;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn spec(lines: &str) -> ServiceSpec {
        toml::from_str(&format!("name = 'web'\ncommand = ['web']\n{lines}")).unwrap()
    }

    fn run(number: u64) -> Run {
        Run { epoch: 3, number }
    }

    fn running(spec: &ServiceSpec, now: Instant) -> InstanceLife {
        let mut life = InstanceLife::new(3, Run::default());
        assert_eq!(life.look(spec, true, now), LifeStep::Begin(run(1)));
        life.began(run(1), spec, now);
        life
    }

    #[test]
    fn it_waits_for_others_starts_and_is_started_again_after_its_delay() {
        let (web, now) = (spec(""), Instant::now());
        let mut life = InstanceLife::new(3, Run { epoch: 2, number: 9 });
        assert_eq!((life.look(&web, false, now), life.state()), (LifeStep::Wait(None), ServiceState::Waiting));
        assert_eq!((life.look(&web, true, now), life.state()), (LifeStep::Begin(run(1)), ServiceState::Starting));
        assert_eq!(life.look(&web, false, now), LifeStep::Begin(run(1)));
        life.began(run(1), &web, now);
        assert_eq!(life.state(), ServiceState::Running);
        life.ended(run(1), RunEnd::Exit(137), &web, now);
        assert_eq!((life.state(), life.exit()), (ServiceState::BackingOff, Some(137)));
        assert_eq!(life.look(&web, true, now), LifeStep::Wait(Some(now + DELAY_MIN)));
        assert_eq!(life.look(&web, false, now + DELAY_MIN), LifeStep::Begin(run(2)));
        assert_eq!(life.restarts(), 1);
        // Late words of the first run.
        life.began(run(1), &web, now);
        life.ended(run(1), RunEnd::Exit(0), &web, now);
        assert_eq!(life.state(), ServiceState::Starting);
    }

    #[test]
    fn policy_ends_a_life() {
        let now = Instant::now();
        for (policy, exit, state) in [
            ("never", 0, ServiceState::Stopped),
            ("never", 1, ServiceState::Failed),
            ("on-failure", 0, ServiceState::Stopped),
            ("on-failure", 1, ServiceState::BackingOff),
        ] {
            let web = spec(&format!("restart = '{policy}'"));
            let mut life = running(&web, now);
            life.ended(run(1), RunEnd::Exit(exit), &web, now);
            assert_eq!(life.state(), state, "{policy} {exit}");
        }
    }

    #[test]
    fn stop_is_signal_grace_and_kill() {
        let (web, now) = (spec("stop = { grace_ms = 500 }"), Instant::now());
        let mut life = running(&web, now);
        assert_eq!((life.stop(&web, now), life.state()), (LifeStep::Signal(run(1)), ServiceState::Stopping));
        assert_eq!(life.stop(&web, now), LifeStep::Wait(Some(now + MS(500))));
        assert_eq!(life.look(&web, true, now + MS(499)), LifeStep::Wait(Some(now + MS(500))));
        assert_eq!(life.look(&web, true, now + MS(500)), LifeStep::Kill(run(1)));
        assert_eq!(life.look(&web, true, now + MS(1499)), LifeStep::Wait(Some(now + MS(1500))));
        assert_eq!(life.look(&web, true, now + MS(1500)), LifeStep::Kill(run(1)));
        life.ended(run(1), RunEnd::Exit(143), &web, now + MS(1600));
        assert_eq!(life.state(), ServiceState::Stopped);
        assert_eq!(life.look(&web, true, now + MS(9000)), LifeStep::Wait(None));
    }

    #[test]
    fn stop_reaches_every_state() {
        let (web, now) = (spec(""), Instant::now());
        let mut waiting = InstanceLife::new(3, Run::default());
        waiting.stop(&web, now);
        let mut resting = running(&web, now);
        resting.ended(run(1), RunEnd::Exit(1), &web, now);
        resting.stop(&web, now);
        for life in [waiting, resting] {
            assert_eq!(life.state(), ServiceState::Stopped);
        }
        let mut starting = InstanceLife::new(3, Run::default());
        starting.look(&web, true, now);
        assert_eq!(starting.stop(&web, now), LifeStep::Signal(run(1)));
        starting.ended(run(1), RunEnd::Lost, &web, now);
        assert_eq!(starting.state(), ServiceState::Stopped);
        let mut again = running(&web, now);
        again.restart(&web, now);
        again.stop(&web, now);
        again.ended(run(1), RunEnd::Exit(0), &web, now);
        assert_eq!(again.state(), ServiceState::Stopped, "a stop is stronger than a restart");
    }

    #[test]
    fn restart_begins_at_once_whatever_the_policy() {
        let (web, now) = (spec("restart = 'never'"), Instant::now());
        let mut life = running(&web, now);
        assert_eq!(life.restart(&web, now), LifeStep::Signal(run(1)));
        life.ended(run(1), RunEnd::Exit(143), &web, now);
        assert_eq!(life.look(&web, false, now), LifeStep::Begin(run(2)));
        life.began(run(2), &web, now);
        life.ended(run(2), RunEnd::Exit(1), &web, now);
        assert_eq!(life.state(), ServiceState::Failed);
        life.restart(&web, now);
        assert_eq!(life.look(&web, false, now), LifeStep::Begin(run(3)));
    }

    #[test]
    fn unhealthy_program_is_ended_and_started_again_unless_its_policy_is_never() {
        let now = Instant::now();
        let health = "health = { tcp = 80, retries = 1, start_ms = 0, timeout_ms = 100 }\n";
        let web = spec(health);
        let mut life = running(&web, now);
        assert_eq!(life.look(&web, true, now), LifeStep::Probe { run: run(1), until: now + MS(100) });
        life.probed(run(1), true, now);
        assert_eq!(life.state(), ServiceState::Healthy);
        let LifeStep::Wait(Some(next)) = life.look(&web, true, now) else { panic!() };
        assert_eq!(life.look(&web, true, next), LifeStep::Probe { run: run(1), until: next + MS(100) });
        life.probed(run(1), false, next);
        assert_eq!(life.look(&web, true, next), LifeStep::Signal(run(1)));
        assert_eq!(life.state(), ServiceState::Unhealthy);
        life.ended(run(1), RunEnd::Exit(0), &web, next);
        assert_eq!(life.state(), ServiceState::BackingOff);

        let web = spec(&format!("restart = 'never'\n{health}"));
        let mut life = running(&web, now);
        life.look(&web, true, now);
        life.probed(run(1), false, now);
        assert_eq!((life.look(&web, true, now), life.state()), (LifeStep::Wait(None), ServiceState::Unhealthy));
    }

    #[test]
    fn daemon_that_is_new_goes_on_with_what_its_keeper_holds() {
        let (web, now) = (spec(""), Instant::now());
        let mut life = InstanceLife::found(run(4), FoundRun::Held, &web, now);
        assert_eq!((life.state(), life.restarts()), (ServiceState::Running, 3));
        life.ended(run(4), RunEnd::Exit(1), &web, now);
        assert_eq!(life.look(&web, true, now + DELAY_MIN), LifeStep::Begin(run(5)));
        assert_eq!(InstanceLife::new(3, run(5)).run(), run(6));
    }

    #[test]
    fn what_is_over_is_not_begun_again_by_a_new_daemon() {
        let (web, now) = (spec("restart = 'never'"), Instant::now());
        for (found, state) in [
            (FoundRun::Ended(RunEnd::Exit(0)), ServiceState::Stopped),
            (FoundRun::Ended(RunEnd::Exit(1)), ServiceState::Failed),
            (FoundRun::Stopped, ServiceState::Stopped),
            (FoundRun::Failed, ServiceState::Failed),
        ] {
            let mut life = InstanceLife::found(run(4), found, &web, now);
            assert_eq!((life.look(&web, true, now), life.state()), (LifeStep::Wait(None), state), "{found:?}");
        }
        let lost = InstanceLife::found(run(4), FoundRun::Ended(RunEnd::Lost), &web, now);
        assert_eq!((lost.state(), lost.run()), (ServiceState::BackingOff, run(5)));
    }
}
