//! Mutual exclusion and leader election, first come first served.
//!
//! A client that wants a lock puts `/locks/NAME/LEASE`, bound to its lease; whose key was made first holds it, every
//! other one watches the key just before its own. The revision that made the key is the fencing token: it rises from
//! holder to holder. A holder that is stopped, cut off or dead loses the key with its lease and the next one goes on.
//!
//! The lock orders well-behaved holders; only the token, checked where the protected thing is changed, excludes a late
//! one. For changes in the engine itself that is [`Guard::fence`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{Compare, Engine, EngineError, Entry, EventKind, Op, Outcome, Revision};
use crate::lease::KeptLease;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{name:?} was not free for {waited:?}")]
    TimedOut { name: String, waited: Duration },
    #[error("this lease already holds or awaits {name:?}")]
    AlreadyWanted { name: String },
    #[error("the lease of the one who waited for {name:?} ended")]
    LeaseLost { name: String },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Held until dropped or until the lease is lost.
pub struct Guard {
    lease: Arc<KeptLease>,
    key: String,
    token: Revision,
}

impl Guard {
    pub fn token(&self) -> Revision {
        self.token
    }

    /// By the clock; a change of something outside the engine still needs the token.
    pub fn is_held(&self) -> bool {
        self.lease.is_running()
    }

    /// Makes a transaction fail unless the lock is still held.
    pub fn fence(&self) -> Compare {
        Compare::Created { key: self.key.clone(), at: self.token }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Err(error) = self.lease.engine().transact(&[self.fence()], &[Op::delete(&*self.key)]) {
            tracing::warn!(key = self.key, %error, "cannot release a lock; it ends with its lease");
        }
    }
}

/// Waits at most `patience`.
pub fn lock(lease: &Arc<KeptLease>, name: &str, patience: Duration) -> Result<Guard, LockError> {
    queue(lease, "/locks", name, b"", patience)
}

/// Becomes the leader, known to all by `value`. Leadership ends when the guard is dropped or the lease lost.
pub fn elect(lease: &Arc<KeptLease>, name: &str, value: &[u8], patience: Duration) -> Result<Guard, LockError> {
    queue(lease, "/elections", name, value, patience)
}

/// Value and token of the present leader.
pub fn leader(engine: &dyn Engine, name: &str) -> Result<Option<(Vec<u8>, Revision)>, EngineError> {
    let candidates = engine.list(&format!("/elections/{name}/"))?.entries;
    Ok(candidates.into_iter().min_by_key(|entry| entry.created).map(|entry| (entry.value, entry.created)))
}

fn queue(lease: &Arc<KeptLease>, kind: &str, name: &str, value: &[u8], patience: Duration) -> Result<Guard, LockError> {
    let engine = lease.engine();
    let prefix = format!("{kind}/{name}/");
    let key = format!("{prefix}{}", lease.id());
    let outcome = engine.transact(&[Compare::Absent { key: key.clone() }], &[Op::put_leased(&*key, value, lease.id())]);
    let token = match outcome {
        Ok(Outcome::Done(token)) => token,
        Ok(Outcome::Conflict(_)) => return Err(LockError::AlreadyWanted { name: name.to_owned() }),
        Err(EngineError::LeaseGone(_)) => return Err(LockError::LeaseLost { name: name.to_owned() }),
        Err(error) => return Err(error.into()),
    };
    // From here on dropping the guard withdraws the wish, whatever happens.
    let guard = Guard { lease: Arc::clone(lease), key, token };
    let until = Instant::now() + patience;
    loop {
        let listing = engine.list(&prefix)?;
        if !listing.entries.iter().any(|entry| entry.created == token) {
            return Err(LockError::LeaseLost { name: name.to_owned() });
        }
        let Some(before) =
            listing.entries.iter().filter(|entry| entry.created < token).max_by_key(|entry| entry.created)
        else {
            return Ok(guard);
        };
        await_removal(&guard, before, listing.revision, until, (name, patience))?;
    }
}

fn await_removal(
    guard: &Guard,
    before: &Entry,
    after: Revision,
    until: Instant,
    (name, patience): (&str, Duration),
) -> Result<(), LockError> {
    let mut watch = guard.lease.engine().watch(&before.key, after)?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match watch.recv(left.min(guard.lease.ttl())) {
            Ok(Some(event)) if event.key == before.key && event.kind == EventKind::Delete => return Ok(()),
            Err(EngineError::Compacted { .. }) => return Ok(()),
            Ok(_) => (),
            Err(error) => return Err(error.into()),
        }
        if !guard.is_held() {
            return Err(LockError::LeaseLost { name: name.to_owned() });
        }
        if Instant::now() >= until {
            return Err(LockError::TimedOut { name: name.to_owned(), waited: patience });
        }
    }
}
