//! What follows when a program of a service ended by itself: policy and growing delay.

use std::time::Duration;

use mgmt_api::RestartPolicy;
use serde::{Deserialize, Serialize};

/// After the first end; twice as long after each further one.
pub const DELAY_MIN: Duration = Duration::from_millis(100);
/// A program that cannot start costs this node one start a minute.
pub const DELAY_MAX: Duration = Duration::from_secs(60);
/// A program that ran so long starts without a past: a minute at the longest delay is no storm.
pub const STEADY: Duration = Duration::from_secs(60);

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RunEnd {
    /// As a shell shows it: 128 and the signal for one that was killed.
    Exit(u8),
    /// It never became a program: there is none of the name, or it cannot be executed.
    NotStarted,
    /// It was ended because its check failed.
    Unhealthy,
    /// Its keeper ended, or its permit.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterEnd {
    Again { after: Duration },
    Stopped,
    Failed,
}

/// Of one instance in one placement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Past {
    ends: u32,
}

impl Past {
    /// It ended like this after it had run so long.
    pub fn next(&mut self, policy: RestartPolicy, end: RunEnd, ran: Duration) -> AfterEnd {
        if ran >= STEADY {
            self.ends = 0;
        }
        let is_again = match (policy, end) {
            // Nothing that the program did.
            (_, RunEnd::Lost) => true,
            (RestartPolicy::Always, _) => true,
            (RestartPolicy::OnFailure, end) => end != RunEnd::Exit(0),
            (RestartPolicy::Never, _) => false,
        };
        if !is_again {
            return if end == RunEnd::Exit(0) { AfterEnd::Stopped } else { AfterEnd::Failed };
        }
        let after = delay(self.ends);
        self.ends = self.ends.saturating_add(1);
        AfterEnd::Again { after }
    }

    pub fn ends(&self) -> u32 {
        self.ends
    }
}

fn delay(ends: u32) -> Duration {
    DELAY_MIN.saturating_mul(1_u32.checked_shl(ends).unwrap_or(u32::MAX)).min(DELAY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn policy_decides_whether_it_is_started_again() {
        use RestartPolicy::*;
        let cases = [
            (Always, RunEnd::Exit(0), true, AfterEnd::Stopped),
            (Always, RunEnd::NotStarted, true, AfterEnd::Failed),
            (OnFailure, RunEnd::Exit(0), false, AfterEnd::Stopped),
            (OnFailure, RunEnd::Exit(137), true, AfterEnd::Failed),
            (OnFailure, RunEnd::Unhealthy, true, AfterEnd::Failed),
            (Never, RunEnd::Exit(0), false, AfterEnd::Stopped),
            (Never, RunEnd::Exit(1), false, AfterEnd::Failed),
            (Never, RunEnd::NotStarted, false, AfterEnd::Failed),
            (Never, RunEnd::Lost, true, AfterEnd::Failed),
        ];
        for (policy, end, again, otherwise) in cases {
            let next = Past::default().next(policy, end, SHORT);
            let expected = if again { AfterEnd::Again { after: DELAY_MIN } } else { otherwise };
            assert_eq!(next, expected, "{policy:?} {end:?}");
        }
    }

    #[test]
    fn delay_doubles_to_a_minute_and_begins_anew_after_a_steady_run() {
        let mut past = Past::default();
        let mut delays = Vec::new();
        for _ in 0..40 {
            let AfterEnd::Again { after } = past.next(RestartPolicy::Always, RunEnd::Exit(1), SHORT) else { panic!() };
            delays.push(after.as_millis());
        }
        assert_eq!(delays[..11], [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 51_200, 60_000]);
        assert!(delays[10..].iter().all(|delay| *delay == 60_000));
        let next = past.next(RestartPolicy::Always, RunEnd::Exit(1), STEADY);
        assert_eq!(next, AfterEnd::Again { after: DELAY_MIN });
    }
}
