//! The engine of one machine: a SQLite file that all daemons of the machine open.
//!
//! What is where:
//! - the file (WAL, `synchronous=FULL`): keys, the history of the last [`LocalConfig::history`] revisions, the list of
//!   leases;
//! - a directory in memory (`/run`, `/dev/shm`): one small file per lease with its deadline on the boot-time clock, and
//!   `changed`, which is written after every commit and watched by inotify. After a reboot it is empty: every lease has
//!   ended.
//!
//! One thread per engine (`pump`) waits on inotify and on the next deadline, ends overdue leases, and wakes watchers. A
//! watcher owns nothing but its revision and reads the history itself: a slow one costs nobody anything, and learns of
//! compaction.
//!
//! A writer that dies between its commit and its write to `changed` delays watchers by [`pump::BACKSTOP`] at most. A
//! writer that is stopped inside a transaction makes transactions of others fail with `Busy` after
//! [`LocalConfig::busy`], naming its pid; reads, watches and renewals of leases do not need its lock and go on.
//!
//! Lock order: `writer` connection, then `reader` connection; never the other way, and neither across a wait of a
//! watcher.

mod leases;
mod pump;
mod store;
mod timed_lock;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine::{
    Compare, Engine, EngineError, Entry, LeaseId, Listing, Lookup, Op, Outcome, Revision, TTL_MAX, TTL_MIN, Watch,
    check_key, check_prefix, check_transaction, each_listed,
};
use leases::LeaseFiles;
use pump::{Hub, Pump};
use store::Store;
use timed_lock::TimedLock;

/// Revisions of history kept by default: hours of an ordinary cluster, a few megabytes.
pub const HISTORY_DEFAULT: u64 = 10_000;
/// How long a call waits for the file's lock by default.
pub const BUSY_DEFAULT: Duration = Duration::from_secs(2);
/// How often the log is begun anew for a transaction that found no space: a reader that was looking just then keeps the
/// log as it is until it has read.
const ANEW_TRIES: usize = 8;

#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// The SQLite file; made when absent.
    pub path: PathBuf,
    /// A directory in memory that all daemons share; made when absent.
    pub volatile_dir: PathBuf,
    pub busy: Duration,
    pub history: u64,
}

impl LocalConfig {
    pub fn new(path: impl Into<PathBuf>, volatile_dir: impl Into<PathBuf>) -> LocalConfig {
        LocalConfig {
            path: path.into(),
            volatile_dir: volatile_dir.into(),
            busy: BUSY_DEFAULT,
            history: HISTORY_DEFAULT,
        }
    }
}

/// One daemon's view of the shared file.
pub struct LocalEngine {
    shared: Arc<Shared>,
    pump: Pump,
}

pub(crate) struct Shared {
    writer: TimedLock<Store>,
    reader: TimedLock<Store>,
    leases: LeaseFiles,
    hub: Hub,
    config: LocalConfig,
}

impl LocalEngine {
    pub fn open(config: LocalConfig) -> Result<LocalEngine, EngineError> {
        let leases = LeaseFiles::open(&config.volatile_dir)?;
        let writer = Store::open(&config.path, config.busy, store::Use::Write)?;
        let reader = Store::open(&config.path, config.busy, store::Use::Read)?;
        let hub = Hub::open(&config.volatile_dir)?;
        let shared =
            Arc::new(Shared { writer: TimedLock::new(writer), reader: TimedLock::new(reader), leases, hub, config });
        let pump = Pump::start(Arc::clone(&shared))?;
        Ok(LocalEngine { shared, pump })
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.pump.stop();
    }
}

impl Shared {
    /// Runs `work` with the connection and what remains of the time allowed.
    fn with<T>(
        &self,
        slot: &TimedLock<Store>,
        work: impl FnOnce(&mut Store) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let began = Instant::now();
        let mut store =
            slot.take(self.config.busy).ok_or(EngineError::Busy { waited_ms: millis(self.config.busy), pid: None })?;
        store.set_patience(self.config.busy.saturating_sub(began.elapsed()))?;
        work(&mut store)
    }

    /// Runs `work` with the connection that writes; again, with the log begun anew, where there was no space.
    fn write<T>(&self, mut work: impl FnMut(&mut Store) -> Result<T, EngineError>) -> Result<T, EngineError> {
        self.with(&self.writer, |store| {
            let mut done = work(store);
            for _ in 0..ANEW_TRIES {
                if !matches!(done, Err(EngineError::Full(_))) {
                    break;
                }
                done = store.begin_log_anew().and_then(|()| work(store));
            }
            done
        })
    }

    /// Ends leases that are overdue and says when the next one will be.
    fn reap(&self) -> Result<Option<Duration>, EngineError> {
        let now = crate::boot_clock();
        let listed = self.with(&self.reader, |store| store.leases())?;
        let mut next: Option<Duration> = None;
        let mut overdue = Vec::new();
        for lease in listed {
            match self.leases.deadline(lease)? {
                Some(deadline) if deadline > now => next = Some(next.map_or(deadline, |other| other.min(deadline))),
                _ => overdue.push(lease),
            }
        }
        for lease in overdue {
            // Checked again under the lock: another daemon may have reaped it, its holder may have renewed it.
            let ended = self.write(|store| store.end_lease(lease, || self.leases.close_if_overdue(lease)))?;
            if ended {
                tracing::debug!(%lease, "lease ended");
                self.hub.changed();
            }
        }
        Ok(next)
    }
}

impl Lookup for LocalEngine {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        check_key(key)?;
        self.shared.with(&self.shared.reader, |store| store.read(key))
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        check_prefix(prefix)?;
        self.shared.with(&self.shared.reader, |store| store.list(prefix))
    }

    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        each_listed(self, prefixes)
    }
}

impl Engine for LocalEngine {
    fn transact(&self, compares: &[Compare], ops: &[Op]) -> Result<Outcome, EngineError> {
        check_transaction(compares, ops)?;
        let shared = &self.shared;
        let outcome = shared.write(|store| {
            store.transact(compares, ops, shared.config.history, |lease| shared.leases.is_running(lease))
        })?;
        if matches!(outcome, Outcome::Done(_)) && !ops.is_empty() {
            shared.hub.changed();
        }
        Ok(outcome)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, EngineError> {
        check_prefix(prefix)?;
        Ok(Box::new(watch::LocalWatch::new(Arc::clone(&self.shared), prefix, after)))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EngineError> {
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Err(EngineError::BadTtl(ttl));
        }
        let shared = &self.shared;
        // The file first, inside the transaction: nobody may see a lease without its deadline.
        let lease = shared.write(|store| store.grant(|lease| shared.leases.create(lease, ttl)))?;
        shared.hub.changed();
        Ok(lease)
    }

    fn renew(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.shared.leases.renew(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EngineError> {
        let shared = &self.shared;
        let ended = shared.write(|store| store.end_lease(lease, || shared.leases.close(lease)))?;
        if ended {
            shared.hub.changed();
        }
        Ok(())
    }

    fn continue_after(&self, revision: Revision) -> Result<(), EngineError> {
        self.shared.write(|store| store.continue_after(revision))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An error of the file system, told with what was being done.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", .path.display())]
struct FileError {
    doing: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

fn file_error(doing: &'static str, path: &std::path::Path, source: impl Into<std::io::Error>) -> EngineError {
    EngineError::Storage(Box::new(FileError { doing, path: path.to_owned(), source: source.into() }))
}
