//! Everything that outlives the server, in one transactional file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `values` | key | revision, value |
//! | `history` | revision | event |
//! | `subscriptions` | session, number | first revision, prefix |
//! | `replies` | session, order of execution | sequence, reply |
//! | `counters` | name | number |
//!
//! A batch of changes is one durable transaction: their effects, their events and the replies of their sessions become
//! permanent together or not at all. After a failed transaction the file is opened again, because whether it took
//! effect is known only then.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, PoisonError, RwLock};

use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table,
    TableDefinition, WriteTransaction,
};
use rustix::io::Errno;
use vos_api::ds::{ABSENT, ANY, KEYS_MAX, SUBSCRIPTIONS_PER_SESSION, event};
use vos_api::session::IN_FLIGHT_MAX;
use vos_rt::{Reply, SessionTable};

use crate::backend::FileStore;
use crate::change::{Change, Order};
use crate::history::{Event, History};
use crate::watch::{Catalog, Subscription};

const VALUES: TableDefinition<&[u8], (u64, &[u8])> = TableDefinition::new("values");
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
const SUBSCRIPTIONS: TableDefinition<(u64, u32), (u64, &[u8])> = TableDefinition::new("subscriptions");
const REPLIES: TableDefinition<(u64, u64), (u64, &[u8])> = TableDefinition::new("replies");
const COUNTERS: TableDefinition<&str, u64> = TableDefinition::new("counters");

/// Memory for pages of the file.
const CACHE_BYTES: usize = 32 << 20;
/// Bytes before key and value of an entry of a listing.
const ENTRY_HEAD_BYTES: usize = 14;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the store cannot be opened")]
    Open(#[source] redb::Error),
    #[error("the store's file failed")]
    File(#[source] redb::Error),
    #[error("the store is not open: opening it again after a failure did not work")]
    Closed,
    #[error("the store's table '{0}' holds something that is no record of ours")]
    Corrupt(&'static str),
}

impl StoreError {
    /// Whether the file system under the store is full, which passes without a new start.
    pub fn is_full(&self) -> bool {
        let (StoreError::Open(redb::Error::Io(error)) | StoreError::File(redb::Error::Io(error))) = self else {
            return false;
        };
        matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
    }
}

/// How much a store may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub keys: u64,
    /// Keys and values together.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { keys: KEYS_MAX, bytes: 1 << 30 }
    }
}

/// What a store remembers of its clients.
pub struct Loaded {
    pub sessions: SessionTable,
    pub catalog: Catalog,
}

/// What a change did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    pub reply: Reply,
    pub event: Option<Event>,
    pub subscribed: Option<(u32, Subscription)>,
    pub unsubscribed: Option<u32>,
}

pub struct Store {
    file: FileStore,
    limits: Limits,
    /// `None` while, and if, it could not be opened again.
    database: RwLock<Option<Arc<Database>>>,
}

/// Orders of execution of the replies in the store, per session: which one goes when another comes. The committer's.
pub type ReplyOrders = HashMap<u64, VecDeque<u64>>;

impl Store {
    pub fn open(file: FileStore, limits: Limits) -> Result<Store, StoreError> {
        let database = open_database(&file)?;
        Ok(Store { file, limits, database: RwLock::new(Some(Arc::new(database))) })
    }

    /// Opens the file anew, which finds out what the last transaction did.
    pub fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        *database = None;
        *database = Some(Arc::new(open_database(&self.file)?));
        Ok(())
    }

    fn database(&self) -> Result<Arc<Database>, StoreError> {
        self.database.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(StoreError::Closed)
    }

    fn read(&self) -> Result<ReadTransaction, StoreError> {
        self.database()?.begin_read().map_err(file)
    }

    /// Reads what the server keeps in memory.
    pub fn load(&self) -> Result<(Loaded, ReplyOrders), StoreError> {
        let transaction = self.read()?;
        let counters = transaction.open_table(COUNTERS).map_err(file)?;
        let floor = counters.get("floor").map_err(file)?.map_or(0, |number| number.value());
        let mut catalog = Catalog::new(load_history(&transaction, floor)?);
        let subscriptions = transaction.open_table(SUBSCRIPTIONS).map_err(file)?;
        for row in subscriptions.iter().map_err(file)? {
            let (key, value) = row.map_err(file)?;
            let ((session, number), (begin, prefix)) = (key.value(), value.value());
            catalog.subscribe(session, number, Subscription { prefix: prefix.to_vec(), begin });
        }
        let (sessions, orders) = load_replies(&transaction)?;
        Ok((Loaded { sessions, catalog }, orders))
    }

    /// The value of a key and its revision.
    pub fn get(&self, key: &[u8]) -> Result<Option<(u64, Vec<u8>)>, StoreError> {
        let values = self.read()?.open_table(VALUES).map_err(file)?;
        let found = values.get(key).map_err(file)?;
        Ok(found.map(|found| {
            let (revision, value) = found.value();
            (revision, value.to_vec())
        }))
    }

    /// Entries with `prefix` after the key `after`, as many as fit into `room`: bytes, count, whether there are more.
    pub fn list(&self, prefix: &[u8], after: &[u8], room: usize) -> Result<(Vec<u8>, u64, bool), StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let values = self.read()?.open_table(VALUES).map_err(file)?;
        let from = if after >= prefix && !after.is_empty() { Excluded(after) } else { Included(prefix) };
        let (mut out, mut count) = (Vec::new(), 0);
        for row in values.range::<&[u8]>((from, Unbounded)).map_err(file)? {
            let (key, value) = row.map_err(file)?;
            let (key, (revision, value)) = (key.value(), value.value());
            if !key.starts_with(prefix) {
                break;
            }
            if out.len() + ENTRY_HEAD_BYTES + key.len() + value.len() > room {
                return Ok((out, count, true));
            }
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(&revision.to_le_bytes());
            out.extend_from_slice(key);
            out.extend_from_slice(value);
            count += 1;
        }
        Ok((out, count, false))
    }

    /// Carries out `batch` in one durable transaction. `catalog` is what was committed before. At most the last change may
    /// touch subscriptions. An error says nothing about whether it happened: [`Store::reopen`], then look.
    pub fn apply(
        &self,
        batch: &[Order],
        catalog: &Catalog,
        orders: &mut ReplyOrders,
    ) -> Result<Vec<Outcome>, StoreError> {
        let database = self.database()?;
        let mut transaction = database.begin_write().map_err(file)?;
        transaction.set_durability(Durability::Immediate).map_err(file)?;
        transaction.set_quick_repair(true);
        let outcomes = {
            let mut open = Open::new(&transaction, self.limits)?;
            let outcomes =
                batch.iter().map(|order| open.carry_out(order, catalog, orders)).collect::<Result<Vec<_>, _>>()?;
            open.finish(&outcomes, &catalog.history)?;
            outcomes
        };
        transaction.commit().map_err(file)?;
        Ok(outcomes)
    }
}

fn open_database(file_store: &FileStore) -> Result<Database, StoreError> {
    let open = |error: redb::Error| StoreError::Open(error);
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let database = builder.create_with_backend(file_store.clone()).map_err(|error| open(error.into()))?;
    // Readers find every table, also in a new file.
    let transaction = database.begin_write().map_err(|error| open(error.into()))?;
    transaction.open_table(VALUES).map_err(|error| open(error.into()))?;
    transaction.open_table(HISTORY).map_err(|error| open(error.into()))?;
    transaction.open_table(SUBSCRIPTIONS).map_err(|error| open(error.into()))?;
    transaction.open_table(REPLIES).map_err(|error| open(error.into()))?;
    transaction.open_table(COUNTERS).map_err(|error| open(error.into()))?;
    transaction.commit().map_err(|error| open(error.into()))?;
    Ok(database)
}

fn load_history(transaction: &ReadTransaction, floor: u64) -> Result<History, StoreError> {
    let mut history = History::new(floor);
    for row in transaction.open_table(HISTORY).map_err(file)?.iter().map_err(file)? {
        let (revision, bytes) = row.map_err(file)?;
        history.push(Event::from_bytes(revision.value(), bytes.value()).ok_or(StoreError::Corrupt("history"))?);
    }
    Ok(history)
}

fn load_replies(transaction: &ReadTransaction) -> Result<(SessionTable, ReplyOrders), StoreError> {
    let (mut sessions, mut orders) = (SessionTable::new(), ReplyOrders::new());
    for row in transaction.open_table(REPLIES).map_err(file)?.iter().map_err(file)? {
        let (key, value) = row.map_err(file)?;
        let ((session, order), (sequence, reply)) = (key.value(), value.value());
        sessions.restore(session, sequence, Reply::from_bytes(reply).ok_or(StoreError::Corrupt("replies"))?);
        orders.entry(session).or_default().push_back(order);
    }
    Ok((sessions, orders))
}

/// The tables of a transaction that is being made.
struct Open<'t> {
    values: Table<'t, &'static [u8], (u64, &'static [u8])>,
    history: Table<'t, u64, &'static [u8]>,
    subscriptions: Table<'t, (u64, u32), (u64, &'static [u8])>,
    replies: Table<'t, (u64, u64), (u64, &'static [u8])>,
    counters: Table<'t, &'static str, u64>,
    limits: Limits,
    revision: u64,
    order: u64,
    bytes: u64,
}

impl<'t> Open<'t> {
    fn new(transaction: &'t WriteTransaction, limits: Limits) -> Result<Open<'t>, StoreError> {
        let counters = transaction.open_table(COUNTERS).map_err(file)?;
        let counter = |name: &str| -> Result<u64, StoreError> {
            Ok(counters.get(name).map_err(file)?.map_or(0, |number| number.value()))
        };
        let (revision, order, bytes) = (counter("revision")?, counter("order")?, counter("bytes")?);
        Ok(Open {
            values: transaction.open_table(VALUES).map_err(file)?,
            history: transaction.open_table(HISTORY).map_err(file)?,
            subscriptions: transaction.open_table(SUBSCRIPTIONS).map_err(file)?,
            replies: transaction.open_table(REPLIES).map_err(file)?,
            counters,
            limits,
            revision,
            order,
            bytes,
        })
    }

    fn carry_out(&mut self, order: &Order, catalog: &Catalog, orders: &mut ReplyOrders) -> Result<Outcome, StoreError> {
        let outcome = match &order.change {
            Change::Put { key, value, condition } => self.put(key, value, *condition)?,
            Change::Delete { key, condition } => self.delete(key, *condition)?,
            Change::Publish { topic, value } => self.publish(topic, value, catalog.subscribers(topic)),
            Change::Subscribe { prefix, revision } => self.subscribe(order.session, prefix, *revision, catalog)?,
            Change::Unsubscribe { subscription } => self.unsubscribe(order.session, *subscription)?,
            Change::EndSession => {
                self.end_session(order.session, orders)?;
                return Ok(Outcome::default());
            }
        };
        self.remember(order, &outcome.reply, orders)?;
        Ok(outcome)
    }

    fn put(&mut self, key: &[u8], value: &[u8], condition: u64) -> Result<Outcome, StoreError> {
        let old = self.old(key)?;
        if let Err(errno) = check(condition, old, Errno::EXIST) {
            return Ok(failed(errno));
        }
        let bytes = self.bytes - old.map_or(0, |(_, bytes)| bytes) + (key.len() + value.len()) as u64;
        let is_over = old.is_none() && self.values.len().map_err(file)? >= self.limits.keys;
        if is_over || bytes > self.limits.bytes {
            return Ok(failed(Errno::NOSPC));
        }
        self.bytes = bytes;
        self.revision += 1;
        self.values.insert(key, (self.revision, value)).map_err(file)?;
        Ok(self.changed(event::PUT, key, value, self.revision))
    }

    fn delete(&mut self, key: &[u8], condition: u64) -> Result<Outcome, StoreError> {
        let Some(old) = self.old(key)? else { return Ok(failed(Errno::NOENT)) };
        if let Err(errno) = check(condition, Some(old), Errno::STALE) {
            return Ok(failed(errno));
        }
        self.bytes -= old.1;
        self.revision += 1;
        self.values.remove(key).map_err(file)?;
        Ok(self.changed(event::DELETE, key, &[], self.revision))
    }

    fn publish(&mut self, topic: &[u8], value: &[u8], subscribers: u64) -> Outcome {
        self.revision += 1;
        self.changed(event::MESSAGE, topic, value, subscribers)
    }

    /// Revision of a key and its share of the store.
    fn old(&self, key: &[u8]) -> Result<Option<(u64, u64)>, StoreError> {
        let old = self.values.get(key).map_err(file)?;
        Ok(old.map(|old| {
            let (revision, value) = old.value();
            (revision, (key.len() + value.len()) as u64)
        }))
    }

    fn changed(&self, kind: u8, key: &[u8], value: &[u8], result: u64) -> Outcome {
        let event = Event { revision: self.revision, kind, key: key.into(), value: value.into() };
        Outcome { reply: Reply::done([result, 0, 0, 0]), event: Some(event), ..Outcome::default() }
    }

    fn subscribe(&mut self, session: u64, prefix: &[u8], after: u64, catalog: &Catalog) -> Result<Outcome, StoreError> {
        if catalog.subscriptions_of(session) >= SUBSCRIPTIONS_PER_SESSION {
            return Ok(failed(Errno::NOSPC));
        }
        let last = self.counters.get("subscription").map_err(file)?.map_or(0, |number| number.value());
        let Ok(number) = u32::try_from(last + 1) else { return Ok(failed(Errno::NOSPC)) };
        self.counters.insert("subscription", last + 1).map_err(file)?;
        let begin = if after == 0 { self.revision } else { after };
        self.subscriptions.insert((session, number), (begin, prefix)).map_err(file)?;
        let subscription = Subscription { prefix: prefix.to_vec(), begin };
        Ok(Outcome {
            reply: Reply::done([u64::from(number), begin, 0, 0]),
            subscribed: Some((number, subscription)),
            ..Outcome::default()
        })
    }

    fn unsubscribe(&mut self, session: u64, number: u32) -> Result<Outcome, StoreError> {
        if self.subscriptions.remove((session, number)).map_err(file)?.is_none() {
            return Ok(failed(Errno::NOENT));
        }
        Ok(Outcome { unsubscribed: Some(number), ..Outcome::default() })
    }

    fn end_session(&mut self, session: u64, orders: &mut ReplyOrders) -> Result<(), StoreError> {
        orders.remove(&session);
        self.replies.retain_in((session, 0)..=(session, u64::MAX), |_, _| false).map_err(file)?;
        self.subscriptions.retain_in((session, 0)..=(session, u32::MAX), |_, _| false).map_err(file)
    }

    /// Puts the reply beside the effect, and drops the one that nobody can ask for any more.
    fn remember(&mut self, order: &Order, reply: &Reply, orders: &mut ReplyOrders) -> Result<(), StoreError> {
        self.order += 1;
        let bytes = reply.to_bytes();
        self.replies.insert((order.session, self.order), (order.sequence, bytes.as_slice())).map_err(file)?;
        let of_session = orders.entry(order.session).or_default();
        of_session.push_back(self.order);
        if of_session.len() > IN_FLIGHT_MAX as usize
            && let Some(oldest) = of_session.pop_front()
        {
            self.replies.remove((order.session, oldest)).map_err(file)?;
        }
        Ok(())
    }

    fn finish(mut self, outcomes: &[Outcome], history: &History) -> Result<(), StoreError> {
        let events: Vec<Event> = outcomes.iter().filter_map(|outcome| outcome.event.clone()).collect();
        for event in &events {
            self.history.insert(event.revision, event.to_bytes().as_slice()).map_err(file)?;
        }
        let floor = history.floor_with(&events);
        if floor > history.floor() {
            self.history.retain_in(..=floor, |_, _| false).map_err(file)?;
        }
        let counters = [("revision", self.revision), ("order", self.order), ("bytes", self.bytes), ("floor", floor)];
        for (name, number) in counters {
            self.counters.insert(name, number).map_err(file)?;
        }
        Ok(())
    }
}

/// Whether a change may go ahead; `exists` is the error when the key should have been absent.
fn check(condition: u64, old: Option<(u64, u64)>, exists: Errno) -> Result<(), Errno> {
    match (condition, old) {
        (ANY, _) | (ABSENT, None) => Ok(()),
        (ABSENT, Some(_)) => Err(exists),
        (_, None) => Err(Errno::NOENT),
        (wanted, Some((revision, _))) if wanted == revision => Ok(()),
        _ => Err(Errno::STALE),
    }
}

fn failed(errno: Errno) -> Outcome {
    Outcome { reply: Reply::failed(errno.raw_os_error() as u32), ..Outcome::default() }
}

fn file(error: impl Into<redb::Error>) -> StoreError {
    StoreError::File(error.into())
}
