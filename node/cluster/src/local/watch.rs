//! A watch: a revision, and what was read ahead of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Shared;
use crate::engine::{Canceller, EngineError, Event, Revision, Watch};

/// Events read at a time; a transaction is never cut.
const BATCH_EVENTS: usize = 256;

pub struct LocalWatch {
    shared: Arc<Shared>,
    prefix: String,
    /// History up to here was read.
    read_to: Revision,
    ahead: VecDeque<Event>,
    cancelled: Arc<AtomicBool>,
    lost: Option<Revision>,
}

impl LocalWatch {
    pub fn new(shared: Arc<Shared>, prefix: &str, after: Revision) -> LocalWatch {
        let cancelled = Arc::new(AtomicBool::new(false));
        LocalWatch { shared, prefix: prefix.to_owned(), read_to: after, ahead: VecDeque::new(), cancelled, lost: None }
    }

    fn read_ahead(&mut self) -> Result<(), EngineError> {
        let (prefix, after) = (&self.prefix, self.read_to);
        let read = self.shared.with(&self.shared.reader, |store| store.history(prefix, after, BATCH_EVENTS));
        if let Err(EngineError::Compacted { up_to }) = read {
            self.lost = Some(up_to);
        }
        let (events, read_to) = read?;
        self.ahead.extend(events);
        self.read_to = read_to;
        Ok(())
    }
}

impl Watch for LocalWatch {
    fn recv(&mut self, timeout: Duration) -> Result<Option<Event>, EngineError> {
        let until = Instant::now() + timeout;
        loop {
            if self.cancelled.load(Ordering::Acquire) {
                return Err(EngineError::Cancelled);
            }
            if let Some(event) = self.ahead.pop_front() {
                return Ok(Some(event));
            }
            if let Some(up_to) = self.lost {
                return Err(EngineError::Compacted { up_to });
            }
            // Counted before the look: a change after the look moves the count and ends the wait at once.
            let count = self.shared.hub.count();
            let before = self.read_to;
            self.read_ahead()?;
            if !self.ahead.is_empty() || self.read_to != before {
                continue;
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            self.shared.hub.wait(count, until);
        }
    }

    fn seen(&self) -> Revision {
        self.ahead.front().map_or(self.read_to, |next| Revision(next.revision.0.saturating_sub(1)))
    }

    fn canceller(&self) -> Canceller {
        let (cancelled, shared) = (Arc::clone(&self.cancelled), Arc::clone(&self.shared));
        Canceller::new(move || {
            cancelled.store(true, Ordering::Release);
            shared.hub.wake();
        })
    }
}
