//! How long the loop looks again before it sleeps.
//!
//! A wake-up of an idle processor costs more than a whole round trip, so after work the loop looks a few more times, and
//! yields between, so that a party that shares the processor can run. Whether that pays off is measured: a round that
//! found something makes the next attempt longer, an attempt in vain halves it. An idle proxy sleeps at once.

/// Rounds of one attempt: each costs about two system calls.
const ROUNDS_MAX: u32 = 64;
const ROUNDS_MIN: u32 = 2;

pub(crate) struct Pace {
    budget: u32,
    used: u32,
}

/// What to do after a round that found nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    LookAgain,
    Sleep,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { budget: ROUNDS_MIN, used: 0 }
    }

    pub(crate) fn found(&mut self) {
        if self.used > 0 {
            self.budget = (self.budget + self.budget / 2 + 1).min(ROUNDS_MAX);
        }
        self.used = 0;
    }

    pub(crate) fn found_nothing(&mut self) -> Next {
        if self.used < self.budget {
            self.used += 1;
            return Next::LookAgain;
        }
        if self.used > 0 {
            self.budget = (self.budget / 2).max(ROUNDS_MIN);
        }
        Next::Sleep
    }

    /// The loop slept: the next attempt begins anew.
    pub(crate) fn slept(&mut self) {
        self.used = 0;
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
}
