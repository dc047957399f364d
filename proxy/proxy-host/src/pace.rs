//! How long the loop looks again before it sleeps.
//!
//! A wake-up of an idle processor costs more than a whole round trip, so after work the loop looks a few more times,
//! and yields between, so that a party that shares the processor can run. Whether that pays off is measured: a round
//! that found something makes the next attempt longer, an attempt in vain halves it. An idle proxy sleeps at once.
//!
//! A yield that was away for long gave the processor to somebody who computes. Whatever comes meanwhile waits for the
//! end of his slice, while the wake-up of a sleeper preempts him: so the loop sleeps at once for a while, before it
//! tries a yield again.

use std::time::{Duration, Instant};

use ipc::stand_in::CROWDED_AFTER;

/// Rounds of one attempt: each costs about two system calls.
const ROUNDS_MAX: u32 = 64;
const ROUNDS_MIN: u32 = 2;
/// Sleeps between two yields that went to somebody who computes: doubled with each.
const REST_FIRST: u32 = 8;
const REST_MAX: u32 = 1024;

pub(crate) struct Pace {
    budget: u32,
    used: u32,
    /// Sleeps until the loop looks again before it sleeps.
    resting: u32,
    next_rest: u32,
}

/// What to do after a round that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    LookAgain,
    Sleep,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { budget: ROUNDS_MIN, used: 0, resting: 0, next_rest: REST_FIRST }
    }

    pub(crate) fn found(&mut self) {
        if self.used > 0 {
            self.budget = (self.budget + self.budget / 2 + 1).min(ROUNDS_MAX);
            self.next_rest = REST_FIRST;
        }
        self.used = 0;
    }

    pub(crate) fn found_nothing(&mut self) -> Next {
        if self.resting == 0 && self.used < self.budget {
            self.used += 1;
            return Next::LookAgain;
        }
        if self.used > 0 {
            self.budget = (self.budget / 2).max(ROUNDS_MIN);
        }
        Next::Sleep
    }

    /// Lets others run before the loop looks again.
    pub(crate) fn yield_cpu(&mut self) {
        let before = Instant::now();
        std::thread::yield_now();
        self.was_away(before.elapsed());
    }

    fn was_away(&mut self, away: Duration) {
        if away > CROWDED_AFTER {
            self.used = 0;
            self.resting = self.next_rest;
            self.next_rest = (self.next_rest * 2).min(REST_MAX);
        }
    }

    /// The loop slept: the next attempt begins anew.
    pub(crate) fn slept(&mut self) {
        self.used = 0;
        self.resting = self.resting.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_again_in_vain_becomes_short_and_paying_off_becomes_long() {
        let mut pace = Pace::new();
        for _ in 0..20 {
            assert_eq!(pace.found_nothing(), Next::LookAgain);
            pace.found();
        }
        assert_eq!(pace.budget, ROUNDS_MAX);
        for _ in 0..20 {
            while pace.found_nothing() == Next::LookAgain {}
            pace.slept();
        }
        assert_eq!(pace.budget, ROUNDS_MIN);
    }

    /// Sleeps until the loop looks again, when every yield goes to somebody who computes.
    fn sleeps_between_yields(pace: &mut Pace) -> u32 {
        assert_eq!(pace.found_nothing(), Next::LookAgain);
        pace.was_away(CROWDED_AFTER * 2);
        let mut sleeps = 0;
        while pace.resting > 0 {
            assert_eq!(pace.found_nothing(), Next::Sleep);
            pace.slept();
            pace.found();
            sleeps += 1;
        }
        sleeps
    }

    #[test]
    fn loop_beside_somebody_who_computes_sleeps_at_once_and_tries_again_ever_more_rarely() {
        let mut pace = Pace::new();
        let sleeps: Vec<u32> = (0..10).map(|_| sleeps_between_yields(&mut pace)).collect();
        assert_eq!(sleeps, [8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        assert_eq!(pace.found_nothing(), Next::LookAgain);
        pace.was_away(CROWDED_AFTER / 2);
        pace.found();
        assert_eq!(sleeps_between_yields(&mut pace), REST_FIRST, "a yield that paid off");
    }
}
