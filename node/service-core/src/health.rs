//! Whether a program that runs is well: when to ask, and what follows from the answers.
//!
//! One question at a time. Until it was well once, or its start period is over, failures do not count and it is asked
//! more often: others wait for the first success.

use std::time::{Duration, Instant};

use mgmt_api::HealthSpec;

/// Between questions until it was well once.
pub const START_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wellness {
    /// Not well yet, and it has time.
    Coming,
    Healthy,
    /// So many failures in a row as are allowed; for good, the program is ended.
    Unhealthy,
}

#[derive(Clone, Debug)]
pub struct HealthWatch {
    interval: Duration,
    timeout: Duration,
    retries: u32,
    /// Until then failures do not count, unless it was well before.
    starting_until: Instant,
    /// When it was last seen to stand still, since it last went on.
    stood_at: Option<Instant>,
    was_well: bool,
    failures: u32,
    verdict: Wellness,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    AskAt(Instant),
    AskedUntil(Instant),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HealthStep {
    /// Ask, and give up at this moment.
    Ask { until: Instant },
    /// Nothing before this moment, unless the answer comes.
    Wait { until: Instant },
}

impl HealthWatch {
    /// Of a program that began at `now`.
    pub fn new(spec: &HealthSpec, now: Instant) -> HealthWatch {
        HealthWatch {
            interval: Duration::from_millis(spec.interval_ms),
            timeout: Duration::from_millis(spec.timeout_ms),
            retries: spec.retries,
            starting_until: now + Duration::from_millis(spec.start_ms),
            stood_at: None,
            was_well: false,
            failures: 0,
            verdict: Wellness::Coming,
            phase: Phase::AskAt(now),
        }
    }

    pub fn verdict(&self) -> Wellness {
        self.verdict
    }

    /// The program stands still at this moment: what it was asked says nothing, and its time to begin does not pass.
    pub fn stand(&mut self, now: Instant) {
        self.give_time(now);
        self.stood_at = Some(now);
        self.phase = Phase::AskAt(now);
    }

    fn give_time(&mut self, now: Instant) {
        if let Some(since) = self.stood_at.take() {
            self.starting_until += now.saturating_duration_since(since);
        }
    }

    /// A question without an answer in its time failed.
    pub fn look(&mut self, now: Instant) -> HealthStep {
        self.give_time(now);
        if let Phase::AskedUntil(until) = self.phase {
            if now < until {
                return HealthStep::Wait { until };
            }
            self.answered(false, now);
        }
        match self.phase {
            Phase::AskAt(at) if now >= at => {
                let until = now + self.timeout;
                self.phase = Phase::AskedUntil(until);
                HealthStep::Ask { until }
            }
            Phase::AskAt(until) | Phase::AskedUntil(until) => HealthStep::Wait { until },
        }
    }

    /// An answer to a question that was given up already says nothing.
    pub fn hear(&mut self, is_well: bool, now: Instant) {
        if matches!(self.phase, Phase::AskedUntil(until) if now < until) {
            self.answered(is_well, now);
        }
    }

    fn answered(&mut self, is_well: bool, now: Instant) {
        if is_well {
            self.was_well = true;
            self.failures = 0;
        } else if self.was_well || now >= self.starting_until {
            self.failures = self.failures.saturating_add(1);
        }
        self.verdict = match self.verdict {
            Wellness::Unhealthy => Wellness::Unhealthy,
            _ if self.failures >= self.retries => Wellness::Unhealthy,
            _ if self.was_well => Wellness::Healthy,
            before => before,
        };
        let pause = if self.was_well { self.interval } else { self.interval.min(START_INTERVAL) };
        self.phase = Phase::AskAt(now + pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn spec() -> HealthSpec {
        HealthSpec {
            command: None,
            tcp: Some(80),
            http: None,
            interval_ms: 1000,
            timeout_ms: 200,
            retries: 3,
            start_ms: 5000,
        }
    }

    /// Asks at each moment when something is to be asked; `well` says what is answered after `delay`, if anything.
    fn run(well: impl Fn(Duration) -> Option<bool>, delay: Duration, time: Duration) -> (Vec<u128>, HealthWatch) {
        let begin = Instant::now();
        let (mut health, mut asked) = (HealthWatch::new(&spec(), begin), Vec::new());
        let mut answer = None;
        let mut now = begin;
        while now < begin + time && health.verdict() != Wellness::Unhealthy {
            if let Some((at, is_well)) = answer.filter(|(at, _)| *at <= now) {
                health.hear(is_well, at);
                answer = None;
            }
            if let HealthStep::Ask { .. } = health.look(now) {
                asked.push((now - begin).as_millis());
                answer = well(now - begin).map(|is_well| (now + delay, is_well));
            }
            now += MS(10);
        }
        (asked, health)
    }

    #[test]
    fn it_is_asked_often_until_it_is_well_and_then_at_its_interval() {
        let (asked, health) = run(|at| Some(at >= MS(300)), MS(10), MS(4000));
        assert_eq!(asked, [0, 110, 220, 330, 1340, 2350, 3360]);
        assert_eq!(health.verdict(), Wellness::Healthy);
    }

    #[test]
    fn failures_count_when_the_start_period_is_over_or_it_was_well() {
        let (asked, health) = run(|_| Some(false), MS(0), MS(20_000));
        assert_eq!(health.verdict(), Wellness::Unhealthy);
        let last = asked.last().copied().unwrap_or_default();
        assert!((5200..5500).contains(&last), "{last}");
        let (asked, health) = run(|at| Some(at < MS(100)), MS(0), MS(20_000));
        assert_eq!(health.verdict(), Wellness::Unhealthy);
        assert_eq!(asked.len(), 4, "{asked:?}");
    }

    #[test]
    fn one_success_between_failures_is_enough() {
        let (_, health) = run(|at| Some(at.as_millis() / 1000 % 3 == 0), MS(0), MS(60_000));
        assert_eq!(health.verdict(), Wellness::Healthy);
    }

    #[test]
    fn no_answer_is_a_failure_and_a_late_one_says_nothing() {
        let (_, health) = run(|at| (at < MS(50)).then_some(true), MS(0), MS(20_000));
        assert_eq!(health.verdict(), Wellness::Unhealthy);
        let begin = Instant::now();
        let mut health = HealthWatch::new(&spec(), begin);
        assert_eq!(health.look(begin), HealthStep::Ask { until: begin + MS(200) });
        assert_eq!(health.look(begin + MS(100)), HealthStep::Wait { until: begin + MS(200) });
        health.hear(true, begin + MS(200));
        assert_eq!(health.verdict(), Wellness::Coming);
    }

    #[test]
    fn what_stands_still_is_not_blamed_for_it_and_keeps_its_time() {
        let begin = Instant::now();
        let at = |ms| begin + MS(ms);
        let mut health = HealthWatch::new(&HealthSpec { retries: 1, ..spec() }, begin);
        assert_eq!(health.look(at(0)), HealthStep::Ask { until: at(200) });
        for ms in (100..20_000).step_by(100) {
            health.stand(at(ms));
            health.hear(false, at(ms));
        }
        // It stood for almost 20 s of which none counts: its start period goes on for five.
        assert_eq!(health.look(at(20_000)), HealthStep::Ask { until: at(20_200) });
        health.hear(false, at(20_100));
        assert_eq!(health.verdict(), Wellness::Coming);
        assert_eq!(health.look(at(20_200)), HealthStep::Ask { until: at(20_400) });
        health.hear(true, at(20_300));
        assert_eq!(health.verdict(), Wellness::Healthy);
        // A question that was under way, and one for which its time has passed.
        assert_eq!(health.look(at(21_300)), HealthStep::Ask { until: at(21_500) });
        health.stand(at(21_400));
        health.stand(at(30_000));
        assert_eq!(health.look(at(30_100)), HealthStep::Ask { until: at(30_300) });
        assert_eq!(health.verdict(), Wellness::Healthy);
        assert_eq!(health.look(at(30_300)), HealthStep::Wait { until: at(31_300) });
        assert_eq!(health.verdict(), Wellness::Unhealthy);
    }
}
