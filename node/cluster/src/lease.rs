//! A lease that a thread keeps alive.
//!
//! It is `Running` until a renewal is refused or the clock passes the last renewal plus ttl; then `Lost`, for ever. The
//! clock decides even when the thread cannot run (a stopped process finds its lease lost the moment it goes on).

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::boot_clock;
use crate::engine::{Engine, EngineError, LeaseId};

/// Renewals in the life of one ttl: two may fail.
const RENEWALS_PER_TTL: u32 = 3;

pub struct KeptLease {
    engine: Arc<dyn Engine>,
    id: LeaseId,
    ttl: Duration,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
    at_end: AtEnd,
}

/// What becomes of a lease whose keeper goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtEnd {
    Revoked,
    /// Somebody may adopt it before its ttl is over.
    Left,
}

struct State {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    /// On the boot-time clock; zero once lost.
    lasts_until: Duration,
    stopping: bool,
}

impl KeptLease {
    pub fn hold(engine: &Arc<dyn Engine>, ttl: Duration) -> Result<Arc<KeptLease>, EngineError> {
        let before = boot_clock();
        let id = engine.grant(ttl)?;
        KeptLease::keep(engine, (id, ttl), before, AtEnd::Revoked)
    }

    /// Keeps a lease that was granted before, from now on. It is not revoked when this ends, so that a successor may
    /// adopt it, too. `LeaseGone` when it is too late.
    pub fn adopt(engine: &Arc<dyn Engine>, id: LeaseId, ttl: Duration) -> Result<Arc<KeptLease>, EngineError> {
        let before = boot_clock();
        engine.renew(id)?;
        KeptLease::keep(engine, (id, ttl), before, AtEnd::Left)
    }

    fn keep(
        engine: &Arc<dyn Engine>,
        (id, ttl): (LeaseId, Duration),
        before: Duration,
        at_end: AtEnd,
    ) -> Result<Arc<KeptLease>, EngineError> {
        let inner = Inner { lasts_until: before + ttl, stopping: false };
        let state = Arc::new(State { inner: Mutex::new(inner), changed: Condvar::new() });
        let (also_engine, also_state) = (Arc::clone(engine), Arc::clone(&state));
        let spawned = std::thread::Builder::new()
            .name(format!("lease-{id}"))
            .spawn(move || also_state.keep(&*also_engine, id, ttl));
        match spawned {
            Ok(thread) => {
                Ok(Arc::new(KeptLease { engine: Arc::clone(engine), id, ttl, state, thread: Some(thread), at_end }))
            }
            Err(error) => {
                engine.revoke(id)?;
                Err(EngineError::Storage(Box::new(error)))
            }
        }
    }

    pub fn id(&self) -> LeaseId {
        self.id
    }

    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Whether its keys can be relied on to exist now.
    pub fn is_running(&self) -> bool {
        self.state.inner.lock().lasts_until > boot_clock()
    }

    /// Waits until it is lost; false after `timeout`.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut inner = self.state.inner.lock();
        loop {
            let left_of_lease = inner.lasts_until.saturating_sub(boot_clock());
            if left_of_lease.is_zero() {
                return true;
            }
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            let wait = left.min(left_of_lease + Duration::from_millis(1));
            self.state.changed.wait_for(&mut inner, wait);
        }
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        self.state.inner.lock().stopping = true;
        self.state.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(lease = %self.id, "the thread of a lease had panicked");
        }
        if self.at_end == AtEnd::Revoked
            && let Err(error) = self.engine.revoke(self.id)
        {
            tracing::warn!(lease = %self.id, %error, "cannot revoke a lease; it ends by itself");
        }
    }
}

impl State {
    fn keep(&self, engine: &dyn Engine, id: LeaseId, ttl: Duration) {
        let pause = ttl / RENEWALS_PER_TTL;
        while self.pause(pause) {
            let before = boot_clock();
            let renewed = engine.renew(id);
            let mut inner = self.inner.lock();
            if inner.lasts_until <= before {
                // It passed while we could not run; others may own its keys by now.
                inner.lasts_until = Duration::ZERO;
            }
            match renewed {
                Ok(()) if !inner.lasts_until.is_zero() => inner.lasts_until = before + ttl,
                Err(EngineError::LeaseGone(_)) => inner.lasts_until = Duration::ZERO,
                Ok(()) => (),
                Err(error) => tracing::warn!(lease = %id, %error, "cannot renew a lease"),
            }
            if inner.lasts_until.is_zero() {
                self.changed.notify_all();
                return;
            }
        }
    }

    /// False when it is to stop.
    fn pause(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut inner = self.inner.lock();
        while !inner.stopping {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return true;
            };
            self.changed.wait_for(&mut inner, left);
        }
        false
    }
}
