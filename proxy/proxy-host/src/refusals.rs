//! Who dials and is not let in: what he is told, and what the log is told.

use std::time::Duration;

use proxy_link::{LinkError, Refusal};
use wire::WireError;

use crate::error::CutReason;
use crate::limits;

/// What the peer is told before its connection is closed.
pub(crate) fn refusal_of(reason: &CutReason) -> Option<Vec<u8>> {
    let refusal = match reason {
        // It understands at least that this writes other frames.
        CutReason::Link(LinkError::Wire(WireError::Layout(_))) => Refusal::Version,
        CutReason::Link(error) => return proxy_link::refusal(error),
        CutReason::Stranger(_) | CutReason::Name { .. } | CutReason::NotEncrypted => Refusal::Identity,
        _ => return None,
    };
    proxy_link::refusal(&LinkError::Refuse { refusal, reason: reason.in_full() })
}

/// Anybody may dial, as often as he likes, so the log is told of a few in each while.
#[derive(Default)]
pub(crate) struct RefusalLog {
    /// When the while began.
    begun: Duration,
    told: u32,
    passed_over: u32,
}

impl RefusalLog {
    pub(crate) fn tell(&mut self, now: Duration, reason: &CutReason) {
        match self.next(now) {
            Some(0) => tracing::info!("a connection was refused: {}", reason.in_full()),
            Some(more) => tracing::info!("a connection was refused, and {more} more before: {}", reason.in_full()),
            None => tracing::debug!("a connection was refused: {}", reason.in_full()),
        }
    }

    /// Whether the log is told of one more, and of how many it was not told before.
    fn next(&mut self, now: Duration) -> Option<u32> {
        if now.saturating_sub(self.begun) >= limits::REFUSALS_LOGGED_WITHIN {
            (self.begun, self.told) = (now, 0);
        }
        if self.told >= limits::REFUSALS_LOGGED {
            self.passed_over = self.passed_over.saturating_add(1);
            return None;
        }
        self.told += 1;
        Some(std::mem::take(&mut self.passed_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_refusals_costs_a_few_lines_of_the_log_and_is_counted() {
        let mut log = RefusalLog::default();
        let first: Vec<_> = (0..100).map(|_| log.next(Duration::from_secs(1))).collect();
        assert_eq!(first.iter().flatten().count(), limits::REFUSALS_LOGGED as usize);
        let passed_over = 100 - limits::REFUSALS_LOGGED;
        let later = Duration::from_secs(1) + limits::REFUSALS_LOGGED_WITHIN;
        assert_eq!([log.next(later), log.next(later)], [Some(passed_over), Some(0)]);
    }
}
