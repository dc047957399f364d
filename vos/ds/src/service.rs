//! The key-value server as a service: what is answered at once, by readers, or by the committer.
//!
//! A `NEXT` that finds no events waits in a table (`Watch`), not in a thread.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Endpoint;
use libvos::OwnHold;
use rustix::io::Errno;
use sessions::{Begun, End, Opening, Place, Record, Refusal};
use vos_api::ds::{GET, Get, KEY_BYTES_MAX, LIST, List, Listed, NEXT, Next, Revision, class_of};
use vos_api::{Class, Operation, Unreadable};
use vos_rt::{ClientId, Hello, HelloReply, Request, Service, WorkerPool};

use crate::change::{Change, Order};
use crate::committer::{Chain, Committer, Job, Shared};
use crate::disk::StoreDisk;
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

/// Whether the store may be read: nobody else serves it.
#[derive(Clone)]
pub struct StoreHold(Option<(Arc<OwnHold>, StoreDisk)>);

impl StoreHold {
    /// The file is this node's own.
    pub const fn always() -> StoreHold {
        StoreHold(None)
    }

    pub fn of(disk: StoreDisk) -> StoreHold {
        StoreHold(Some((Arc::new(OwnHold::none()), disk)))
    }

    /// Before anything is read: what is read then was so at some time after it was asked for, because only who is
    /// served by the disk changes it. Blocks as long as the disk does not answer.
    fn demand(&self) -> io::Result<()> {
        match &self.0 {
            Some((hold, disk)) if hold.is_over() => hold.renew(|| disk.hold()),
            _ => Ok(()),
        }
    }

    /// Ahead of time, when somebody was just served.
    fn prolong(&self) {
        let Some((hold, disk)) = self.0.as_ref().filter(|(hold, _)| hold.ends_soon()) else { return };
        if let Err(error) = hold.renew(|| disk.hold()) {
            tracing::warn!(%error, "the store's disk is not held any longer");
        }
    }
}

/// The service of one store.
pub struct Ds {
    shared: Arc<Shared>,
    committer: Committer,
    readers: WorkerPool,
    holding: StoreHold,
    /// Which session a ring belongs to.
    clients: std::collections::HashMap<ClientId, u64>,
    began: Instant,
}

impl Ds {
    pub fn new(store: Store) -> Result<Ds, DsError> {
        Ds::holding(store, StoreHold::always())
    }

    pub fn holding(store: Store, holding: StoreHold) -> Result<Ds, DsError> {
        let committer = Committer::start(store)?;
        let readers = WorkerPool::new("ds", READERS)?;
        let (shared, clients) = (Arc::clone(committer.shared()), Default::default());
        Ok(Ds { shared, committer, readers, holding, clients, began: Instant::now() })
    }

    /// Finishes what was taken. Everything answered is durable already.
    pub fn close(self) {
        drop(self.committer);
    }

    fn change(&self, request: Request) {
        let Some(mark) = request.mark() else { return request.fail(Errno::INVAL) };
        let change = match Change::of(&request) {
            Ok(change) => change,
            Err(errno) => return request.fail(errno),
        };
        let begun = self.shared.sessions.lock().begin(mark, request);
        match begun {
            Begun::Execute(request) => {
                let order = Order { session: mark.session, sequence: mark.sequence, change };
                self.committer.hand_over(Job { order, request: Some(request) });
            }
            Begun::Joined => {}
            Begun::Executed(request, place) => self.read(request, move |store, request| repeat(store, request, place)),
            Begun::Refused(request, refusal) => request.fail(errno_of(refusal)),
        }
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn next(&self, request: Request) {
        let Some(Next { seen, wait_ms }) = Next::decode(request.flags(), request.args(), &[]) else {
            return request.fail(Errno::INVAL);
        };
        match wait_ms {
            0 => self.next_now(request, seen),
            _ => {
                let until = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
                self.shared.watch.lock().next(request, seen, until);
            }
        }
    }

    /// Who has waited long enough, or not at all, is told also that there is nothing.
    fn next_now(&self, request: Request, seen: u64) {
        match self.holding.0 {
            Some(_) => self.held(request, move |shared, request| shared.watch.lock().now(request, seen)),
            None => self.shared.watch.lock().now(request, seen),
        }
    }

    fn read(&self, request: Request, work: impl FnOnce(&Store, Request) + Send + 'static) {
        self.held(request, move |shared, request| work(&shared.store, request));
    }

    fn held(&self, request: Request, work: impl FnOnce(&Shared, Request) + Send + 'static) {
        let (shared, holding) = (Arc::clone(&self.shared), self.holding.clone());
        let job = move || {
            match holding.demand() {
                Ok(()) => work(&shared, request),
                // Who has a successor answers nothing more.
                Err(error) => {
                    tracing::error!(%error, "the store's disk cannot be held");
                    request.fail(Errno::IO);
                }
            }
            holding.prolong();
        };
        if let Err(error) = self.readers.run(job) {
            tracing::error!(%error, "a request was refused");
        }
    }

    fn end_session(&self, session: u64, request: Option<Request>) {
        self.shared.sessions.lock().refuse(session, End::Forget);
        self.committer.hand_over(Job { order: Order { session, sequence: 0, change: Change::EndSession }, request });
    }
}

impl Service for Ds {
    fn opened(&mut self, client: ClientId, _from: Endpoint, hello: &Hello) -> HelloReply {
        let Hello { session, progress, .. } = *hello;
        let opened = self.shared.sessions.lock().open(Opening { session, progress, now_ms: self.now_ms() });
        match opened {
            Ok(opened) => {
                self.clients.insert(client, hello.session);
                if let Some(leaving) = opened.leaving {
                    self.end_session(leaving, None);
                }
                HelloReply::Welcome { highest: opened.highest, in_flight: 0, service: 0 }
            }
            Err(refusal) => HelloReply::Refused(errno_of(refusal)),
        }
    }

    fn submit(&mut self, request: Request) {
        match request.op() {
            GET => self.read(request, get),
            LIST => self.read(request, list),
            NEXT => self.next(request),
            op if class_of(op) == Some(Class::Once) => self.change(request),
            _ => request.refuse(Unreadable::Unknown),
        }
    }

    fn closed(&mut self, client: ClientId) {
        self.shared.watch.lock().forget(client);
        if let Some(session) = self.clients.remove(&client) {
            self.shared.sessions.lock().detach(session, self.now_ms());
        }
    }

    fn goodbye(&mut self, request: Request) {
        self.end_session(request.session(), Some(request));
    }

    fn deadline(&self) -> Option<Instant> {
        self.shared.watch.lock().deadline()
    }

    fn tick(&mut self, now: Instant) {
        let overdue = self.shared.watch.lock().overdue(now);
        overdue.into_iter().for_each(|(request, seen)| self.next_now(request, seen));
    }
}

fn errno_of(refusal: Refusal) -> Errno {
    Errno::from_raw_os_error(vos_api::Errno::from(refusal).number() as i32)
}

/// What the operation answered when it was executed.
fn repeat(store: &Store, request: Request, place: Place) {
    match store.reply(request.session(), place) {
        Ok(Some(reply)) => request.answer(&reply),
        // Dropped meanwhile: a client that keeps to the rules does not ask so late.
        Ok(None) => request.fail(Errno::STALE),
        Err(error) => fail(request, &error),
    }
}

fn get(store: &Store, request: Request) {
    let data = request.data();
    let key = Get::decode(request.flags(), request.args(), &data).map(|get| get.key.0);
    let Some(key) = key.filter(|key| (1..=KEY_BYTES_MAX).contains(&key.len())) else {
        return request.fail(Errno::INVAL);
    };
    match store.get(key) {
        Ok(Some((revision, value))) => match request.put(0, &value) {
            Ok(()) => request.reply(Revision { revision }, value.len() as u32),
            Err(errno) => request.fail(errno),
        },
        Ok(None) => request.fail(Errno::NOENT),
        Err(error) => fail(request, &error),
    }
}

fn list(store: &Store, request: Request) {
    let data = request.data();
    let list = List::decode(request.flags(), request.args(), &data);
    let is_sound = |list: &List<'_>| list.prefix.0.len().max(list.after.0.len()) <= KEY_BYTES_MAX;
    let Some(List { prefix, after }) = list.filter(is_sound) else { return request.fail(Errno::INVAL) };
    match store.list(prefix.0, after.0, request.in_capacity() as usize) {
        // A client without room for one entry would ask for ever.
        Ok((_, 0, true)) => request.fail(Errno::RANGE),
        Ok((bytes, entries, has_more)) => match request.put(0, &bytes) {
            Ok(()) => request.reply(Listed { entries, has_more: u64::from(has_more) }, bytes.len() as u32),
            Err(errno) => request.fail(errno),
        },
        Err(error) => fail(request, &error),
    }
}

fn fail(request: Request, error: &StoreError) {
    tracing::error!(error = %Chain(error), "reading failed");
    request.fail(Errno::IO);
}
