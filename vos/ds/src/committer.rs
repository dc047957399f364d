//! The thread that makes changes durable: everything that arrived while the last transaction was written is the next.
//!
//! Order of one turn: take a batch, write it, remember replies, announce events, answer. A batch is answered before the
//! next one is written, which is what makes the bound of remembered replies exact (`vos_rt::SessionTable`). A batch
//! ends after a change of subscriptions, so that changes after it see them.
//!
//! When a transaction fails, nobody is answered on a guess: the file is opened again, and every request is answered by
//! what is found there. When that fails too, the process ends without answering; clients ask its successor.
//!
//! Lock order: `queue`, `memory`; never both.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use vos_rt::{AbortOnPanic, Lookup, Reply, Request, Running, SessionTable, answer_all};

use crate::change::{Change, Order};
use crate::store::{Outcome, ReplyOrders, Store, StoreError};
use crate::watch::{Catalog, Watch};

/// Changes in one transaction: bounds how long the first of them waits for the last.
pub const BATCH_MAX: usize = 256;

/// What the loop and the committer share.
pub struct Memory {
    pub sessions: SessionTable,
    pub running: Running,
    pub watch: Watch,
}

/// A change and who asked for it. `None` for a session the server itself ends.
pub struct Job {
    pub order: Order,
    pub request: Option<Request>,
}

pub struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

pub struct Shared {
    pub store: Store,
    memory: Mutex<Memory>,
    queue: Mutex<Queue>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    is_closing: bool,
}

impl Shared {
    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }
}

impl Committer {
    pub fn start(store: Store) -> Result<Committer, StoreError> {
        let (loaded, orders) = store.load()?;
        let watch = Watch::new(loaded.catalog.clone());
        let memory = Memory { sessions: loaded.sessions, running: Running::new(), watch };
        let (memory, queue) = (Mutex::new(memory), Mutex::new(Queue::default()));
        let shared = Arc::new(Shared { store, memory, queue, arrived: Condvar::new() });
        let mut worker = Worker { shared: Arc::clone(&shared), catalog: loaded.catalog, orders };
        let thread = std::thread::Builder::new().name("committer".to_owned()).spawn(move || worker.run());
        let thread = thread.map_err(|error| StoreError::File(redb::Error::Io(error)))?;
        Ok(Committer { shared, thread: Some(thread) })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Hands a change over. The queue is bounded by what rings hold in flight.
    pub fn hand_over(&self, job: Job) {
        lock(&self.shared.queue).jobs.push_back(job);
        self.shared.arrived.notify_one();
    }
}

impl Drop for Committer {
    /// What was handed over is committed first.
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closing = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    /// What was committed. The loop's own view follows.
    catalog: Catalog,
    orders: ReplyOrders,
}

impl Worker {
    fn run(&mut self) {
        let _abort = AbortOnPanic;
        while let Some(jobs) = self.take() {
            let (orders, requests): (Vec<Order>, Vec<_>) = jobs.into_iter().map(|job| (job.order, job.request)).unzip();
            let outcomes = self.shared.store.apply(&orders, &self.catalog, &mut self.orders);
            match outcomes {
                Ok(outcomes) => self.settle(&orders, requests, outcomes),
                Err(error) => self.recover(&orders, requests, &error),
            }
        }
    }

    /// The next batch, `None` when the server is ending and nothing is left.
    fn take(&self) -> Option<Vec<Job>> {
        let mut queue = lock(&self.shared.queue);
        while queue.jobs.is_empty() {
            if queue.is_closing {
                return None;
            }
            queue = self.shared.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let room = queue.jobs.len().min(BATCH_MAX);
        let ends = queue.jobs.iter().take(room).position(|job| job.order.change.touches_subscriptions());
        let count = ends.map_or(room, |last| last + 1);
        Some(queue.jobs.drain(..count).collect())
    }

    /// The batch is durable: tell everybody.
    fn settle(&mut self, orders: &[Order], requests: Vec<Option<Request>>, outcomes: Vec<Outcome>) {
        let mut answers = Vec::with_capacity(requests.len());
        let mut memory = self.shared.memory();
        for ((order, request), outcome) in orders.iter().zip(requests).zip(outcomes) {
            self.catalog.take_in(order, &outcome);
            let others = memory.remember(order, &outcome);
            answers.push((request, others, outcome.reply));
        }
        memory.watch.announce();
        drop(memory);
        for (request, others, reply) in answers {
            match request {
                Some(request) => answer_all(request, others, &reply),
                None => others.into_iter().for_each(|other| other.answer(&reply)),
            }
        }
    }

    /// Whether a failed batch happened is what the file says when it is opened again.
    fn recover(&mut self, orders: &[Order], requests: Vec<Option<Request>>, error: &StoreError) {
        tracing::error!(error = %Chain(error), changes = orders.len(), "a transaction failed; opening the store again");
        let errno = if error.is_full() { Errno::NOSPC } else { Errno::IO };
        let loaded = self.shared.store.reopen().and_then(|()| self.shared.store.load());
        let (loaded, reply_orders) = match loaded {
            Ok(loaded) if error.is_full() => loaded,
            // Unanswered requests come again; an answer now might be a lie.
            Ok(_) => std::process::exit(1),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "the store does not open again");
                std::process::exit(1);
            }
        };
        self.orders = reply_orders;
        self.catalog = loaded.catalog.clone();
        let mut memory = self.shared.memory();
        memory.replace(loaded.sessions, loaded.catalog);
        for (order, request) in orders.iter().zip(requests) {
            let reply = match memory.sessions.look(order.session, order.sequence) {
                Lookup::Answered(reply) => reply.clone(),
                Lookup::Fresh | Lookup::Unknown => Reply::failed(errno.raw_os_error() as u32),
            };
            let others = memory.running.finish(order.session, order.sequence);
            if let Some(request) = request {
                answer_all(request, others, &reply);
            }
        }
    }
}

impl Memory {
    /// Takes a committed change in; returns the repetitions that wait for the same reply.
    fn remember(&mut self, order: &Order, outcome: &Outcome) -> Vec<Request> {
        if order.change == Change::EndSession {
            self.watch.end_session(order.session);
        } else {
            self.sessions.record(order.session, order.sequence, outcome.reply.clone());
        }
        self.watch.catalog.take_in(order, outcome);
        self.running.finish(order.session, order.sequence)
    }

    /// Puts what was read from the file in the place of what was in memory; rings and waiters stay.
    fn replace(&mut self, mut sessions: SessionTable, catalog: Catalog) {
        sessions.adopt_rings(&self.sessions);
        self.sessions = sessions;
        self.watch.catalog = catalog;
        self.watch.announce();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The committer ends the process when it panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
