//! The thread that makes changes durable: everything that arrived while the last transaction was written is the next.
//!
//! Order of one turn: take a batch; write it in one transaction, with the replies; announce its events; answer. A batch
//! is answered before the next one is written, and in its order: the bound of remembered replies relies on this
//! (`sessions::Table`). A batch ends after a change of subscriptions, so that the changes after it see the new ones.
//!
//! When a transaction fails, nobody is answered on a guess. The file is opened again, which finds out whether the
//! transaction took effect. If the host's disk was full, every request is answered by what the file holds now. After
//! any other failure, or when the file does not open, the process ends without an answer, and clients ask its
//! successor.
//!
//! Locks: `queue`, `sessions`, `watch`, never two of these; below `sessions` the store's `database`. `sessions` is held
//! over reads of the file in one case only: after a failed transaction, when the table is filled again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use sessions::{Record, Reply, Table};
use vos_rt::{AbortOnPanic, Request, answer_all};

use crate::change::{Change, Order};
use crate::store::{Outcome, Store, StoreError};
use crate::watch::{Catalog, Watch};

/// Changes in one transaction: bounds how long the first of them waits for the last.
pub const BATCH_MAX: usize = 256;

/// A change and who asked for it. `None` for a session the server itself ends.
pub struct Job {
    pub order: Order,
    pub request: Option<Request>,
}

pub struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the loop and the committer share.
pub struct Shared {
    pub store: Store,
    pub sessions: Mutex<Table<Request>>,
    pub watch: Mutex<Watch>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closing: bool,
}

impl Committer {
    pub fn start(store: Store) -> Result<Committer, StoreError> {
        let (catalog, sessions) = (store.load()?, Mutex::new(Table::load(&store, 0)?));
        let (watch, queue) = (Mutex::new(Watch::new(catalog.clone())), Mutex::new(Queue::default()));
        let shared = Arc::new(Shared { store, sessions, watch, queue, arrived: Condvar::new() });
        let mut worker = Worker { shared: Arc::clone(&shared), catalog };
        let thread = std::thread::Builder::new().name("committer".to_owned()).spawn(move || worker.run());
        let thread = thread.map_err(|error| StoreError::File(redb::Error::Io(error)))?;
        Ok(Committer { shared, thread: Some(thread) })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Hands a change over. The queue is bounded by what rings hold in flight.
    pub fn hand_over(&self, job: Job) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.arrived.notify_one();
    }
}

impl Drop for Committer {
    /// What was handed over is committed first.
    fn drop(&mut self) {
        self.shared.queue.lock().is_closing = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    /// Events and subscriptions as of the last commit. The loop has its own copy (`Watch`), which follows after each
    /// commit.
    catalog: Catalog,
}

impl Worker {
    fn run(&mut self) {
        let _abort = AbortOnPanic;
        while let Some(jobs) = self.take() {
            let (orders, requests): (Vec<Order>, Vec<_>) = jobs.into_iter().map(|job| (job.order, job.request)).unzip();
            let outcomes = self.shared.store.apply(&orders, &self.catalog, &self.shared.sessions);
            match outcomes {
                Ok(outcomes) => self.settle(&orders, requests, outcomes),
                Err(error) => self.recover(&orders, requests, &error),
            }
        }
    }

    /// The next batch, `None` when the server is ending and nothing is left.
    fn take(&self) -> Option<Vec<Job>> {
        let mut queue = self.shared.queue.lock();
        while queue.jobs.is_empty() {
            if queue.is_closing {
                return None;
            }
            self.shared.arrived.wait(&mut queue);
        }
        let room = queue.jobs.len().min(BATCH_MAX);
        let ends = queue.jobs.iter().take(room).position(|job| job.order.change.touches_subscriptions());
        let count = ends.map_or(room, |last| last + 1);
        Some(queue.jobs.drain(..count).collect())
    }

    /// The batch is durable: tell everybody.
    fn settle(&mut self, orders: &[Order], requests: Vec<Option<Request>>, outcomes: Vec<Outcome>) {
        let mut answers = Vec::with_capacity(requests.len());
        let mut watch = self.shared.watch.lock();
        for (order, outcome) in orders.iter().zip(&outcomes) {
            self.catalog.take_in(order, outcome);
            watch.take_in(order, outcome);
        }
        watch.announce();
        drop(watch);
        let mut sessions = self.shared.sessions.lock();
        for ((order, request), outcome) in orders.iter().zip(requests).zip(outcomes) {
            answers.push((request, sessions.finish(order.mark()), outcome.reply));
            if order.change == Change::EndSession {
                sessions.forget(order.session);
            }
        }
        drop(sessions);
        for (request, others, reply) in answers {
            match request {
                Some(request) => answer_all(request, others, &reply),
                None => others.into_iter().for_each(|other| other.answer(&reply)),
            }
        }
    }

    /// Answers a batch whose transaction failed: by what the file holds, when the disk was full. Otherwise ends the
    /// process.
    fn recover(&mut self, orders: &[Order], requests: Vec<Option<Request>>, error: &StoreError) {
        tracing::error!(error = %Chain(error), changes = orders.len(), "a transaction failed; opening the store again");
        let errno = if error.is_full() { Errno::NOSPC } else { Errno::IO };
        let catalog = match self.reload() {
            Ok(catalog) if error.is_full() => catalog,
            // Unanswered requests come again; an answer now might be a lie.
            Ok(_) => std::process::exit(1),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "the store does not open again");
                std::process::exit(1);
            }
        };
        self.catalog = catalog.clone();
        {
            let mut watch = self.shared.watch.lock();
            watch.catalog = catalog;
            watch.announce();
        }
        for (order, request) in orders.iter().zip(requests) {
            let (place, others) = {
                let mut sessions = self.shared.sessions.lock();
                (sessions.executed(order.mark()), sessions.finish(order.mark()))
            };
            let stored = place.and_then(|place| self.shared.store.reply(order.session, place).ok().flatten());
            let reply = stored.unwrap_or_else(|| Reply::failed(errno.raw_os_error() as u32));
            if let Some(request) = request {
                answer_all(request, others, &reply);
            }
        }
    }

    fn reload(&self) -> Result<Catalog, StoreError> {
        self.shared.store.reopen()?;
        self.shared.sessions.lock().reload(&self.shared.store, 0)?;
        self.shared.store.load()
    }
}

/// An error with its causes, on one line of the log.
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(next) = cause {
            write!(f, ": {next}")?;
            cause = next.source();
        }
        Ok(())
    }
}
