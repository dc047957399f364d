//! The key-value server as a service: what is answered at once, by readers, or by the committer.
//!
//! `NEXT` that finds nothing is state (`Watch`), not a blocked thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Endpoint;
use rustix::io::Errno;
use vos_api::ds::{DELETE, GET, KEY_BYTES_MAX, LIST, NEXT, PUBLISH, PUT, SUBSCRIBE, UNSUBSCRIBE};
use vos_rt::{Begun, ClientId, Hello, HelloReply, Lookup, Request, Service, WorkerPool};

use crate::change::{Change, Order};
use crate::committer::{Chain, Committer, Job, Shared};
use crate::store::{Store, StoreError};

/// Threads that read the store.
pub const READERS: usize = 2;
/// How long `NEXT` waits at most, whatever it asks for.
pub const WAIT_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, thiserror::Error)]
pub enum DsError {
    #[error("the store does not work")]
    Store(#[from] StoreError),
    #[error("the readers could not be started")]
    Pool(#[from] vos_rt::PoolError),
}

/// The service of one store.
pub struct Ds {
    shared: Arc<Shared>,
    committer: Committer,
    readers: WorkerPool,
    /// Which session a ring belongs to.
    clients: std::collections::HashMap<ClientId, u64>,
}

impl Ds {
    pub fn new(store: Store) -> Result<Ds, DsError> {
        let committer = Committer::start(store)?;
        let readers = WorkerPool::new("ds", READERS)?;
        Ok(Ds { shared: Arc::clone(committer.shared()), committer, readers, clients: Default::default() })
    }

    /// Finishes what was taken. Everything answered is durable already.
    pub fn close(self) {
        drop(self.committer);
    }

    fn change(&self, request: Request) {
        if request.sequence() == 0 {
            return request.fail(Errno::INVAL);
        }
        let change = match Change::of(&request) {
            Ok(change) => change,
            Err(errno) => return request.fail(errno),
        };
        let order = Order { session: request.session(), sequence: request.sequence(), change };
        let mut memory = self.shared.memory();
        match memory.sessions.look(order.session, order.sequence) {
            Lookup::Unknown => request.fail(Errno::STALE),
            Lookup::Answered(reply) => request.answer(&reply.clone()),
            Lookup::Fresh => {
                if let Begun::Start(request) = memory.running.begin(request) {
                    drop(memory);
                    self.committer.hand_over(Job { order, request: Some(request) });
                }
            }
        }
    }

    fn next(&self, request: Request) {
        let [seen, wait_ms, _] = request.args();
        let until = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        self.shared.memory().watch.next(request, seen, until);
    }

    fn read(&self, request: Request, work: fn(&Store, Request)) {
        let shared = Arc::clone(&self.shared);
        if let Err(error) = self.readers.run(move || work(&shared.store, request)) {
            tracing::error!(%error, "a request was refused");
        }
    }

    fn end_session(&self, session: u64, request: Option<Request>) {
        self.shared.memory().sessions.end(session);
        self.committer.hand_over(Job { order: Order { session, sequence: 0, change: Change::EndSession }, request });
    }
}

impl Service for Ds {
    fn opened(&mut self, client: ClientId, _from: Endpoint, hello: &Hello) -> HelloReply {
        let opened = self.shared.memory().sessions.open(hello.session, hello.acknowledged);
        match opened {
            Ok(opened) => {
                self.clients.insert(client, hello.session);
                if let Some(forgotten) = opened.forgotten {
                    self.end_session(forgotten, None);
                }
                HelloReply::Welcome { highest: opened.highest, in_flight: 0, service: 0 }
            }
            Err(_) => HelloReply::Refused(Errno::STALE),
        }
    }

    fn submit(&mut self, request: Request) {
        match request.op() {
            GET => self.read(request, get),
            LIST => self.read(request, list),
            NEXT => self.next(request),
            PUT | DELETE | SUBSCRIBE | UNSUBSCRIBE | PUBLISH => self.change(request),
            _ => request.fail(Errno::OPNOTSUPP),
        }
    }

    fn closed(&mut self, client: ClientId) {
        let mut memory = self.shared.memory();
        memory.watch.forget(client);
        if let Some(session) = self.clients.remove(&client) {
            memory.sessions.detach(session);
        }
    }

    fn goodbye(&mut self, request: Request) {
        self.end_session(request.session(), Some(request));
    }

    fn deadline(&self) -> Option<Instant> {
        self.shared.memory().watch.deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.shared.memory().watch.expire(now);
    }
}

fn get(store: &Store, request: Request) {
    let key = request.data();
    if key.is_empty() || key.len() > KEY_BYTES_MAX || request.args()[0] != key.len() as u64 {
        return request.fail(Errno::INVAL);
    }
    match store.get(&key) {
        Ok(Some((revision, value))) => match request.put(0, &value) {
            Ok(()) => request.reply([revision, 0, 0, 0], value.len() as u32),
            Err(errno) => request.fail(errno),
        },
        Ok(None) => request.fail(Errno::NOENT),
        Err(error) => fail(request, &error),
    }
}

fn list(store: &Store, request: Request) {
    let data = request.data();
    let [prefix_bytes, after_bytes, _] = request.args();
    let prefix_bytes = usize::try_from(prefix_bytes).unwrap_or(usize::MAX);
    let Some((prefix, after)) = data.split_at_checked(prefix_bytes) else { return request.fail(Errno::INVAL) };
    if prefix.len() > KEY_BYTES_MAX || after.len() > KEY_BYTES_MAX || after.len() as u64 != after_bytes {
        return request.fail(Errno::INVAL);
    }
    match store.list(prefix, after, request.in_capacity() as usize) {
        // A client without room for one entry would ask for ever.
        Ok((_, 0, true)) => request.fail(Errno::RANGE),
        Ok((bytes, count, has_more)) => match request.put(0, &bytes) {
            Ok(()) => request.reply([count, u64::from(has_more), 0, 0], bytes.len() as u32),
            Err(errno) => request.fail(errno),
        },
        Err(error) => fail(request, &error),
    }
}

fn fail(request: Request, error: &StoreError) {
    tracing::error!(error = %Chain(error), "reading failed");
    request.fail(Errno::IO);
}
