//! How long a call waits.

use std::time::{Duration, Instant};

/// Every call that can block takes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Only what can be done at once.
    NoWait,
    Forever,
    For(Duration),
}

/// A wait that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    Never,
    At(Instant),
}

impl Deadline {
    pub(crate) fn after(wait: Wait) -> Deadline {
        match wait {
            Wait::Forever => Deadline::Never,
            Wait::NoWait => Deadline::At(Instant::now()),
            Wait::For(limit) => Instant::now().checked_add(limit).map_or(Deadline::Never, Deadline::At),
        }
    }

    /// What is left; `None` for ever. Zero when it has passed.
    pub(crate) fn left(self) -> Option<Duration> {
        match self {
            Deadline::Never => None,
            Deadline::At(end) => Some(end.saturating_duration_since(Instant::now())),
        }
    }

    /// The earlier of this and that.
    pub(crate) fn or_after(self, limit: Duration) -> Deadline {
        match (self, Deadline::after(Wait::For(limit))) {
            (Deadline::At(one), Deadline::At(other)) => Deadline::At(one.min(other)),
            (Deadline::Never, other) => other,
            (own, Deadline::Never) => own,
        }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
