//! The tables, and the one place where SQL is written.
//!
//! ```text
//! meta(name, number)                       revision, compacted (history before is gone), leases (last given), format
//! kv(key, value, created, modified, lease)
//! history(revision, place, key, value, created, lease)    value NULL: deleted
//! leases(lease)                            deadlines are in memory-backed files
//! ```

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::millis;
use crate::engine::{
    Compare, Conflict, EngineError, Entry, Event, EventKind, LEASES_MAX, LIST_ENTRIES_MAX, LeaseId, Listing,
    OPS_PER_TRANSACTION_MAX, Op, Outcome, Revision, bounded,
};

/// Of the tables; a file of another one is refused.
const FORMAT: i64 = 1;
/// History is trimmed when it is this much longer than wanted.
const TRIM_EVERY: u64 = 256;
/// Pages that the file has beyond what it needs: 4 MiB.
const PAGES_KEPT_BACK: i64 = 1024;
/// Between attempts to open the file while another process makes it.
const OPENING_RETRY: Duration = Duration::from_millis(2);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS kv (key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL,
        modified INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS kv_lease ON kv (lease) WHERE lease IS NOT NULL;
    CREATE TABLE IF NOT EXISTS history (revision INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL, value BLOB,
        created INTEGER NOT NULL, lease INTEGER, PRIMARY KEY (revision, place)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS leases (lease INTEGER PRIMARY KEY);
    INSERT OR IGNORE INTO meta VALUES ('revision', 0), ('compacted', 0), ('leases', 0), ('format', 1);";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Write,
    Read,
}

pub struct Store {
    connection: Connection,
    path: PathBuf,
    patience: Duration,
}

#[derive(Debug, thiserror::Error)]
#[error("{} has format {found}, this program knows {FORMAT}", .path.display())]
struct ForeignFormat {
    path: PathBuf,
    found: i64,
}

impl Store {
    pub fn open(path: &Path, busy: Duration, usage: Use) -> Result<Store, EngineError> {
        // For root alone, like what SQLite makes beside it: the mode of its files is that of the first.
        let _ = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        let connection = Connection::open(path)
            .map_err(|error| super::file_error("cannot open", path, std::io::Error::other(error)))?;
        let mut store = Store { connection, path: path.to_owned(), patience: Duration::ZERO };
        store.set_patience(busy)?;
        let until = Instant::now() + busy;
        // SQLite refuses at once, without its own waiting, where two openings at a time could block each other.
        while let Err(error) = store.prepare(usage) {
            if !is_busy(&error) || Instant::now() >= until {
                return Err(store.told(error));
            }
            std::thread::sleep(OPENING_RETRY);
        }
        let format = store.meta("format")?;
        if format != FORMAT {
            return Err(EngineError::Storage(Box::new(ForeignFormat { path: path.to_owned(), found: format })));
        }
        Ok(store)
    }

    fn prepare(&mut self, usage: Use) -> rusqlite::Result<()> {
        self.connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        // An acknowledged transaction survives loss of power.
        self.connection.pragma_update(None, "synchronous", "FULL")?;
        if usage == Use::Write {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(TABLES)?;
            transaction.commit()?;
            self.keep_pages_back()?;
        }
        Ok(())
    }

    /// Makes the file, and the log beside it, larger than they need to be: SQLite uses free pages first and the log
    /// again from its start, so that writing goes on for long when the file system is full. That nothing could be kept
    /// back is no reason not to open.
    fn keep_pages_back(&mut self) -> rusqlite::Result<()> {
        let free: i64 = self.connection.pragma_query_value(None, "freelist_count", |row| row.get(0))?;
        if free >= PAGES_KEPT_BACK / 2 {
            return Ok(());
        }
        let page: i64 = self.connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        let mut step = |sql: &str| {
            let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction.execute_batch(sql)?;
            transaction.commit()?;
            // Readers may be in the way of what SQLite moves to the file by itself.
            begin_log_anew(&self.connection)
        };
        // In two transactions: pages that one alone took and freed would not be written. Others that open the file do
        // the same.
        let filling = format!(
            "DROP TABLE IF EXISTS kept_back; CREATE TABLE kept_back (filling BLOB);
             INSERT INTO kept_back VALUES (zeroblob({}))",
            (PAGES_KEPT_BACK - free) * page
        );
        let kept = step(&filling).and_then(|()| step("DROP TABLE IF EXISTS kept_back"));
        match kept {
            Err(error) if is_full(&error) => {
                tracing::warn!(path = %self.path.display(), %error, "no space was kept back for the engine");
                Ok(())
            }
            done => done,
        }
    }

    /// How long the next calls wait for the lock of another process.
    pub fn set_patience(&mut self, patience: Duration) -> Result<(), EngineError> {
        self.patience = patience.max(Duration::from_millis(1));
        self.connection.busy_timeout(self.patience).map_err(|error| self.told(error))
    }

    /// Moves everything from the log to the file, so that the next transaction writes at the log's beginning. SQLite
    /// does so by itself where no reader is in the way at that moment; this waits for the readers.
    pub fn begin_log_anew(&self) -> Result<(), EngineError> {
        begin_log_anew(&self.connection).map_err(|error| self.told(error))
    }

    pub fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        read(&self.connection, key).map_err(|error| self.told(error))
    }

    pub fn list(&mut self, prefix: &str) -> Result<Listing, EngineError> {
        let (low, high) = (prefix.to_owned(), end_of(prefix));
        let listed = (|| {
            // One read transaction: revision and entries belong together.
            let snapshot = self.connection.transaction()?;
            let revision = meta(&snapshot, "revision")?;
            let mut rows = snapshot.prepare_cached(
                "SELECT key, value, created, modified, lease FROM kv WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
            )?;
            let limit = i64::try_from(LIST_ENTRIES_MAX + 1).unwrap_or(i64::MAX);
            let entries = rows.query_map(params![low, high, limit], entry)?.collect::<rusqlite::Result<Vec<_>>>()?;
            Ok(Listing { revision: revision_of(revision), entries })
        })()
        .map_err(|error| self.told(error))?;
        bounded("a list", listed.entries.len(), LIST_ENTRIES_MAX)?;
        Ok(listed)
    }

    pub fn transact(
        &mut self,
        compares: &[Compare],
        ops: &[Op],
        history: u64,
        lease_runs: impl Fn(LeaseId) -> Result<bool, EngineError>,
    ) -> Result<Outcome, EngineError> {
        let (path, patience) = (self.path.clone(), self.patience);
        let told = |error| tell(error, &path, patience);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(told)?;
        let current = compares
            .iter()
            .map(|compare| read(&transaction, compare.key()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(told)?;
        let before = revision_of(meta(&transaction, "revision").map_err(told)?);
        if !compares.iter().zip(&current).all(|(compare, found)| compare.holds(found.as_ref())) {
            return Ok(Outcome::Conflict(Conflict { revision: before, current }));
        }
        for op in ops {
            if let Op::Put { lease: Some(lease), .. } = op
                && (!is_listed(&transaction, *lease).map_err(told)? || !lease_runs(*lease)?)
            {
                return Err(EngineError::LeaseGone(*lease));
            }
        }
        let revision = apply(&transaction, before, ops).map_err(told)?;
        trim(&transaction, revision, history).map_err(told)?;
        transaction.commit().map_err(told)?;
        Ok(Outcome::Done(revision))
    }

    /// Events after a revision, whole transactions, at least `batch` of them when there are; and how far that is.
    pub fn history(
        &mut self,
        prefix: &str,
        after: Revision,
        batch: usize,
    ) -> Result<(Vec<Event>, Revision), EngineError> {
        let (low, high) = (prefix.to_owned(), end_of(prefix));
        let read = (|| {
            let snapshot = self.connection.transaction()?;
            let compacted = revision_of(meta(&snapshot, "compacted")?);
            let newest = revision_of(meta(&snapshot, "revision")?);
            let mut rows = snapshot.prepare_cached(
                "SELECT revision, key, value, created, lease FROM history WHERE revision > ?1 AND key >= ?2 AND key < ?3
                 ORDER BY revision, place LIMIT ?4",
            )?;
            // One transaction more than the batch always fits, so that the last one can be cut off whole.
            let limit = batch + OPS_PER_TRANSACTION_MAX;
            let mut events = rows
                .query_map(params![signed(after.0), low, high, signed(limit as u64)], event)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let mut reached = newest;
            if events.len() == limit {
                let cut = events.last().map_or(after, |last| last.revision);
                if events.first().is_some_and(|first| first.revision != cut) {
                    events.retain(|event| event.revision != cut);
                }
                reached = events.last().map_or(after, |last| last.revision);
            }
            Ok((compacted, events, reached))
        })();
        let (compacted, events, reached) = read.map_err(|error| self.told(error))?;
        if after < compacted {
            Err(EngineError::Compacted { up_to: compacted })
        } else {
            Ok((events, reached.max(after)))
        }
    }

    /// Of an empty one: revisions go on after this one.
    pub fn continue_after(&mut self, revision: Revision) -> Result<(), EngineError> {
        let (path, patience) = (self.path.clone(), self.patience);
        let told = |error| tell(error, &path, patience);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(told)?;
        let has_keys = transaction.prepare("SELECT 1 FROM kv").and_then(|mut some| some.exists([])).map_err(told)?;
        if has_keys {
            return Err(EngineError::NotEmpty);
        }
        let last = unsigned(meta(&transaction, "revision").map_err(told)?).max(revision.0);
        transaction.execute("DELETE FROM history", []).map_err(told)?;
        for name in ["revision", "compacted"] {
            set_meta(&transaction, name, signed(last)).map_err(told)?;
        }
        transaction.commit().map_err(told)
    }

    pub fn leases(&self) -> Result<Vec<LeaseId>, EngineError> {
        let listed = (|| {
            let mut rows = self.connection.prepare_cached("SELECT lease FROM leases")?;
            rows.query_map([], |row| Ok(LeaseId(unsigned(row.get(0)?))))?.collect::<rusqlite::Result<Vec<_>>>()
        })();
        listed.map_err(|error| self.told(error))
    }

    /// A new lease; `record` makes its deadline before anybody can see it.
    pub fn grant(&mut self, record: impl FnOnce(LeaseId) -> Result<(), EngineError>) -> Result<LeaseId, EngineError> {
        let (path, patience) = (self.path.clone(), self.patience);
        let told = |error| tell(error, &path, patience);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(told)?;
        let alive: i64 = transaction.query_row("SELECT count(*) FROM leases", [], |row| row.get(0)).map_err(told)?;
        bounded("the table of leases", usize::try_from(alive).unwrap_or(usize::MAX).saturating_add(1), LEASES_MAX)?;
        let lease = meta(&transaction, "leases").map_err(told)? + 1;
        set_meta(&transaction, "leases", lease).map_err(told)?;
        transaction.execute("INSERT INTO leases VALUES (?1)", params![lease]).map_err(told)?;
        record(LeaseId(unsigned(lease)))?;
        transaction.commit().map_err(told)?;
        Ok(LeaseId(unsigned(lease)))
    }

    /// Deletes the lease and its keys when `close` says that it is over. False: it is not, or was not there.
    pub fn end_lease(
        &mut self,
        lease: LeaseId,
        close: impl FnOnce() -> Result<bool, EngineError>,
    ) -> Result<bool, EngineError> {
        let (path, patience) = (self.path.clone(), self.patience);
        let told = |error| tell(error, &path, patience);
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(told)?;
        if !is_listed(&transaction, lease).map_err(told)? || !close()? {
            return Ok(false);
        }
        let keys = keys_of(&transaction, lease).map_err(told)?;
        let before = revision_of(meta(&transaction, "revision").map_err(told)?);
        let ops: Vec<Op> = keys.into_iter().map(Op::delete).collect();
        // Transactions stay below the bound that readers of the history rely on.
        let mut revision = before;
        for some in ops.chunks(OPS_PER_TRANSACTION_MAX) {
            revision = apply(&transaction, revision, some).map_err(told)?;
        }
        transaction.execute("DELETE FROM leases WHERE lease = ?1", params![signed(lease.0)]).map_err(told)?;
        transaction.commit().map_err(told)?;
        Ok(true)
    }

    fn meta(&self, name: &str) -> Result<i64, EngineError> {
        meta(&self.connection, name).map_err(|error| self.told(error))
    }

    fn told(&self, error: rusqlite::Error) -> EngineError {
        tell(error, &self.path, self.patience)
    }
}

fn begin_log_anew(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
}

fn apply(transaction: &Transaction<'_>, before: Revision, ops: &[Op]) -> rusqlite::Result<Revision> {
    let revision = Revision(before.0 + 1);
    let mut place = 0;
    for op in ops {
        let found = read(transaction, op.key())?;
        match op {
            Op::Put { key, value, lease } => {
                let created = found.map_or(revision, |entry| entry.created);
                let lease = lease.map(|lease| signed(lease.0));
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO kv VALUES (?1, ?2, ?3, ?4, ?5)")?
                    .execute(params![key, value, signed(created.0), signed(revision.0), lease])?;
                record(transaction, revision, place, (key, Some(value), created, lease))?;
            }
            Op::Delete { .. } if found.is_none() => continue,
            Op::Delete { key } => {
                transaction.prepare_cached("DELETE FROM kv WHERE key = ?1")?.execute(params![key])?;
                record(transaction, revision, place, (key, None, Revision(0), None))?;
            }
        }
        place += 1;
    }
    if place == 0 {
        return Ok(before);
    }
    set_meta(transaction, "revision", signed(revision.0))?;
    Ok(revision)
}

type Change<'a> = (&'a str, Option<&'a Vec<u8>>, Revision, Option<i64>);

fn record(transaction: &Transaction<'_>, revision: Revision, place: i64, change: Change<'_>) -> rusqlite::Result<()> {
    let (key, value, created, lease) = change;
    transaction.prepare_cached("INSERT INTO history VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(params![
        signed(revision.0),
        place,
        key,
        value,
        signed(created.0),
        lease
    ])?;
    Ok(())
}

fn trim(transaction: &Transaction<'_>, revision: Revision, kept: u64) -> rusqlite::Result<()> {
    let compacted = unsigned(meta(transaction, "compacted")?);
    let up_to = revision.0.saturating_sub(kept);
    if up_to < compacted + TRIM_EVERY.min(kept.max(1)) {
        return Ok(());
    }
    transaction.execute("DELETE FROM history WHERE revision <= ?1", params![signed(up_to)])?;
    set_meta(transaction, "compacted", signed(up_to))
}

fn keys_of(connection: &Connection, lease: LeaseId) -> rusqlite::Result<Vec<String>> {
    let mut rows = connection.prepare_cached("SELECT key FROM kv WHERE lease = ?1 ORDER BY key")?;
    rows.query_map(params![signed(lease.0)], |row| row.get(0))?.collect()
}

fn is_listed(connection: &Connection, lease: LeaseId) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM leases WHERE lease = ?1")?.exists(params![signed(lease.0)])
}

fn read(connection: &Connection, key: &str) -> rusqlite::Result<Option<Entry>> {
    connection
        .prepare_cached("SELECT key, value, created, modified, lease FROM kv WHERE key = ?1")?
        .query_row(params![key], entry)
        .optional()
}

fn meta(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.prepare_cached("SELECT number FROM meta WHERE name = ?1")?.query_row(params![name], |row| row.get(0))
}

fn set_meta(connection: &Connection, name: &str, number: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE meta SET number = ?2 WHERE name = ?1")?.execute(params![name, number])?;
    Ok(())
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        key: row.get(0)?,
        value: row.get(1)?,
        created: revision_of(row.get(2)?),
        modified: revision_of(row.get(3)?),
        lease: lease_of(row.get(4)?),
    })
}

fn event(row: &Row<'_>) -> rusqlite::Result<Event> {
    let value: Option<Vec<u8>> = row.get(2)?;
    let (created, lease) = (revision_of(row.get(3)?), lease_of(row.get(4)?));
    let kind = value.map_or(EventKind::Delete, |value| EventKind::Put { value, created, lease });
    Ok(Event { revision: revision_of(row.get(0)?), key: row.get(1)?, kind })
}

/// SQLite's integers are signed; ours begin at 0 and 2^63 transactions take longer than the project.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn revision_of(number: i64) -> Revision {
    Revision(unsigned(number))
}

fn lease_of(number: Option<i64>) -> Option<LeaseId> {
    number.map(|number| LeaseId(unsigned(number)))
}

/// The first string after all that begin with `prefix`; keys are printable ASCII, so that one character suffices.
fn end_of(prefix: &str) -> String {
    format!("{prefix}\u{7f}")
}

fn tell(error: rusqlite::Error, path: &Path, patience: Duration) -> EngineError {
    if is_busy(&error) {
        EngineError::Busy { waited_ms: millis(patience), pid: writer_of(path) }
    } else if is_full(&error) {
        EngineError::Full(Box::new(error))
    } else {
        EngineError::Storage(Box::new(error))
    }
}

fn is_full(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Who holds the WAL's write lock (byte 120 of the shared-memory file, see SQLite's wal.c): an operator wants to know.
fn writer_of(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    const WRITE_LOCK_BYTE: u64 = 120;
    let mut shm = path.as_os_str().to_owned();
    shm.push("-shm");
    let inode = std::fs::metadata(&shm).ok()?.ino().to_string();
    // "1: POSIX  ADVISORY  WRITE 4711 fe:00:262147 120 120"
    std::fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX", _, "WRITE", pid, file, first, last] = fields.as_slice() else { return None };
        let covers = first.parse::<u64>().ok()? <= WRITE_LOCK_BYTE
            && last.parse::<u64>().map_or(true, |last| last >= WRITE_LOCK_BYTE);
        (file.rsplit(':').next() == Some(inode.as_str()) && covers).then(|| pid.parse().ok())?
    })
}
