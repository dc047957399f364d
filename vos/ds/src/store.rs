//! Everything that outlives the server, in one transactional file.
//!
//! | table | key | value |
//! |---|---|---|
//! | `values` | key | revision, value |
//! | `history` | revision | event |
//! | `subscriptions` | session, number | first revision, prefix |
//! | `sessions` | session | whether it may go on |
//! | `replies` | session, order of execution | sequence, reply |
//! | `counters` | name | number |
//!
//! The order of execution is counted over all sessions. Counters: `revision` (of the last change), `order` (of the last
//! execution), `bytes` (keys and values), `floor` (events up to it were dropped), `subscription` (last number given).
//!
//! A batch of changes is one durable transaction: their effects, their events and the replies of their sessions become
//! permanent together or not at all. After a failed transaction the file is opened again, because whether it took
//! effect is known only then.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table,
    TableDefinition, WriteTransaction,
};
use rustix::io::Errno;
use sessions::{Place, Record, Reply, Standing, Step, Table as Sessions};
use vos_api::ds::{ABSENT, ANY, KEYS_MAX, Reached, Revision, SUBSCRIPTIONS_PER_SESSION, Subscribed, event};

use crate::backend::StoreFile;
use crate::change::{Change, Order};
use crate::history::{Event, History};
use crate::watch::{Catalog, Subscription};

const VALUES: TableDefinition<&[u8], (u64, &[u8])> = TableDefinition::new("values");
const HISTORY: TableDefinition<u64, &[u8]> = TableDefinition::new("history");
const SUBSCRIPTIONS: TableDefinition<(u64, u32), (u64, &[u8])> = TableDefinition::new("subscriptions");
const SESSIONS: TableDefinition<u64, u8> = TableDefinition::new("sessions");
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

/// What a change did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    pub reply: Reply,
    pub event: Option<Event>,
    pub subscribed: Option<(u32, Subscription)>,
    pub unsubscribed: Option<u32>,
}

pub struct Store {
    file: StoreFile,
    limits: Limits,
    /// `None` while, and if, it could not be opened again.
    database: RwLock<Option<Arc<Database>>>,
}

impl Store {
    pub fn open(file: impl Into<StoreFile>, limits: Limits) -> Result<Store, StoreError> {
        let file = file.into();
        let database = open_database(&file)?;
        Ok(Store { file, limits, database: RwLock::new(Some(Arc::new(database))) })
    }

    /// Opens the file anew, which finds out what the last transaction did.
    pub fn reopen(&self) -> Result<(), StoreError> {
        let mut database = self.database.write();
        *database = None;
        *database = Some(Arc::new(open_database(&self.file)?));
        Ok(())
    }

    fn database(&self) -> Result<Arc<Database>, StoreError> {
        self.database.read().clone().ok_or(StoreError::Closed)
    }

    fn read(&self) -> Result<ReadTransaction, StoreError> {
        self.database()?.begin_read().map_err(file)
    }

    /// Reads what the server keeps in memory besides its sessions.
    pub fn load(&self) -> Result<Catalog, StoreError> {
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
        Ok(catalog)
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

    /// Carries out `batch` in one durable transaction. `catalog` is what was committed before. At most the last change
    /// may touch subscriptions. An error says nothing about whether it happened: [`Store::reopen`], then look.
    pub fn apply<W>(
        &self,
        batch: &[Order],
        catalog: &Catalog,
        sessions: &Mutex<Sessions<W>>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let database = self.database()?;
        let mut transaction = database.begin_write().map_err(file)?;
        transaction.set_durability(Durability::Immediate).map_err(file)?;
        transaction.set_quick_repair(true);
        let outcomes = {
            let mut open = Open::new(&transaction, self.limits)?;
            let outcomes =
                batch.iter().map(|order| open.carry_out(order, catalog, sessions)).collect::<Result<Vec<_>, _>>()?;
            open.finish(&outcomes, &catalog.history)?;
            outcomes
        };
        transaction.commit().map_err(file)?;
        Ok(outcomes)
    }
}

fn open_database(file: &StoreFile) -> Result<Database, StoreError> {
    let open = |error: redb::Error| StoreError::Open(error);
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let database = builder.create_with_backend(file.clone()).map_err(|error| open(error.into()))?;
    // Readers find every table, also in a new file.
    let transaction = database.begin_write().map_err(|error| open(error.into()))?;
    transaction.open_table(VALUES).map_err(|error| open(error.into()))?;
    transaction.open_table(HISTORY).map_err(|error| open(error.into()))?;
    transaction.open_table(SUBSCRIPTIONS).map_err(|error| open(error.into()))?;
    transaction.open_table(SESSIONS).map_err(|error| open(error.into()))?;
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

const LIVE: u8 = 0;
const ENDED: u8 = 1;
const FENCED: u8 = 2;

impl Record for Store {
    type Error = StoreError;

    fn standings(&self) -> Result<Vec<(u64, Standing)>, StoreError> {
        let transaction = self.read()?;
        let mut standings = BTreeMap::new();
        // A session that has replies is known, also when an earlier version kept no standing for it.
        for row in transaction.open_table(REPLIES).map_err(file)?.iter().map_err(file)? {
            standings.insert(row.map_err(file)?.0.value().0, Standing::Live);
        }
        for row in transaction.open_table(SESSIONS).map_err(file)?.iter().map_err(file)? {
            let (session, standing) = row.map_err(file)?;
            let standing = match standing.value() {
                LIVE => Standing::Live,
                FENCED => Standing::Fenced,
                _ => Standing::Ended,
            };
            standings.insert(session.value(), standing);
        }
        Ok(standings.into_iter().collect())
    }

    fn places(&self, session: u64) -> Result<Vec<Place>, StoreError> {
        let replies = self.read()?.open_table(REPLIES).map_err(file)?;
        let rows = replies.range((session, 0)..=(session, u64::MAX)).map_err(file)?;
        let mut places = Vec::new();
        for row in rows {
            let (key, value) = row.map_err(file)?;
            places.push(Place { order: key.value().1, sequence: value.value().0 });
        }
        Ok(places)
    }

    fn reply(&self, session: u64, place: Place) -> Result<Option<Reply>, StoreError> {
        let replies = self.read()?.open_table(REPLIES).map_err(file)?;
        let Some(found) = replies.get((session, place.order)).map_err(file)? else { return Ok(None) };
        let (sequence, reply) = found.value();
        let reply = Reply::from_bytes(reply).filter(|_| sequence == place.sequence);
        reply.map(Some).ok_or(StoreError::Corrupt("replies"))
    }
}

impl Step for Open<'_> {
    type Error = StoreError;

    fn put_standing(&mut self, session: u64, standing: Standing) -> Result<(), StoreError> {
        let kept = match standing {
            Standing::Live => LIVE,
            Standing::Fenced => FENCED,
            Standing::Ended => ENDED,
        };
        self.sessions.insert(session, kept).map(drop).map_err(file)
    }

    fn drop_standing(&mut self, session: u64) -> Result<(), StoreError> {
        self.sessions.remove(session).map(drop).map_err(file)
    }

    fn put_reply(&mut self, session: u64, place: Place, reply: &[u8]) -> Result<(), StoreError> {
        self.replies.insert((session, place.order), (place.sequence, reply)).map(drop).map_err(file)
    }

    fn drop_reply(&mut self, session: u64, place: Place) -> Result<(), StoreError> {
        self.replies.remove((session, place.order)).map(drop).map_err(file)
    }
}

/// The tables of a transaction that is being made.
struct Open<'t> {
    values: Table<'t, &'static [u8], (u64, &'static [u8])>,
    history: Table<'t, u64, &'static [u8]>,
    subscriptions: Table<'t, (u64, u32), (u64, &'static [u8])>,
    sessions: Table<'t, u64, u8>,
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
            sessions: transaction.open_table(SESSIONS).map_err(file)?,
            replies: transaction.open_table(REPLIES).map_err(file)?,
            counters,
            limits,
            revision,
            order,
            bytes,
        })
    }

    fn carry_out<W>(
        &mut self,
        order: &Order,
        catalog: &Catalog,
        sessions: &Mutex<Sessions<W>>,
    ) -> Result<Outcome, StoreError> {
        let outcome = match &order.change {
            Change::Put { key, value, condition } => self.put(key, value, *condition)?,
            Change::Delete { key, condition } => self.delete(key, *condition)?,
            Change::Publish { topic, value } => self.publish(topic, value, catalog.subscribers(topic)),
            Change::Subscribe { prefix, revision } => self.subscribe(order.session, prefix, *revision, catalog)?,
            Change::Unsubscribe { subscription } => self.unsubscribe(order.session, *subscription)?,
            Change::EndSession => {
                let places = sessions.lock().clear(order.session, usize::MAX);
                self.end_session(order.session, places)?;
                return Ok(Outcome::default());
            }
        };
        self.order += 1;
        let entry = sessions.lock().record(order.mark(), self.order);
        entry.map_or(Ok(()), |entry| entry.put(self, &outcome.reply.to_bytes()))?;
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
        Ok(self.changed(event::PUT, key, value, Revision { revision: self.revision }))
    }

    fn delete(&mut self, key: &[u8], condition: u64) -> Result<Outcome, StoreError> {
        let Some(old) = self.old(key)? else { return Ok(failed(Errno::NOENT)) };
        if let Err(errno) = check(condition, Some(old), Errno::STALE) {
            return Ok(failed(errno));
        }
        self.bytes -= old.1;
        self.revision += 1;
        self.values.remove(key).map_err(file)?;
        Ok(self.changed(event::DELETE, key, &[], Revision { revision: self.revision }))
    }

    fn publish(&mut self, topic: &[u8], value: &[u8], subscribers: u64) -> Outcome {
        self.revision += 1;
        self.changed(event::MESSAGE, topic, value, Reached { subscribers })
    }

    /// Revision of a key and its share of the store.
    fn old(&self, key: &[u8]) -> Result<Option<(u64, u64)>, StoreError> {
        let old = self.values.get(key).map_err(file)?;
        Ok(old.map(|old| {
            let (revision, value) = old.value();
            (revision, (key.len() + value.len()) as u64)
        }))
    }

    fn changed(&self, kind: u8, key: &[u8], value: &[u8], words: impl Into<[u64; 4]>) -> Outcome {
        let event = Event { revision: self.revision, kind, key: key.into(), value: value.into() };
        Outcome { reply: Reply::done(words), event: Some(event), ..Outcome::default() }
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
            reply: Reply::done(Subscribed { subscription: u64::from(number), begin }),
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

    fn end_session(&mut self, session: u64, places: Vec<Place>) -> Result<(), StoreError> {
        places.into_iter().try_for_each(|place| self.drop_reply(session, place))?;
        self.drop_standing(session)?;
        self.subscriptions.retain_in((session, 0)..=(session, u32::MAX), |_, _| false).map_err(file)
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

#[cfg(test)]
mod tests {
    use sessions::conformance::{Fate, Subject, Work, check};

    use super::*;
    use crate::backend::FileStore;

    impl Subject for Store {
        fn step(&mut self, fate: Fate, work: Work<'_, StoreError>) -> Result<(), StoreError> {
            let database = self.database()?;
            let transaction = database.begin_write().map_err(file)?;
            work(&mut Open::new(&transaction, self.limits)?)?;
            match fate {
                Fate::Happens => transaction.commit().map_err(file),
                Fate::Fails => transaction.abort().map_err(file),
            }
        }

        fn restart(&mut self) {
            self.reopen().expect("the file opens again");
        }
    }

    #[test]
    fn store_of_sessions_conforms() {
        check(|| {
            let image = FileStore::new(tempfile::tempfile().expect("temporary file").into());
            Store::open(image, Limits::default()).expect("the store opens")
        });
    }

    #[test]
    fn session_of_which_an_earlier_version_kept_replies_alone_is_known() {
        let image = FileStore::new(tempfile::tempfile().expect("temporary file").into());
        let mut store = Store::open(image, Limits::default()).expect("the store opens");
        let place = Place { order: 1, sequence: 1 };
        let put = &mut |step: &mut dyn Step<Error = StoreError>| step.put_reply(7, place, &Reply::default().to_bytes());
        store.step(Fate::Happens, put).expect("a step");
        assert_eq!(store.standings().expect("readable"), [(7, Standing::Live)]);
    }
}
