//! What time it is for leases, sessions and removed files: milliseconds since the server began.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A server sets it to the machine's time ([`Clock::since`]). It does not look at the time while nothing is under way,
/// and what it asks for after that has its time from when it was asked.
///
/// Otherwise it is as late as it was said last ([`crate::Fs::tick`]), for tests.
#[derive(Clone, Default)]
pub struct Clock {
    told_ms: Arc<AtomicU64>,
    began: Option<Instant>,
}

impl Clock {
    pub fn since(began: Instant) -> Clock {
        Clock { began: Some(began), ..Clock::default() }
    }

    pub(crate) fn now(&self) -> u64 {
        match self.began {
            Some(began) => u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            None => self.told_ms.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn tell(&self, now_ms: u64) {
        self.told_ms.store(now_ms, Ordering::Relaxed);
    }
}
