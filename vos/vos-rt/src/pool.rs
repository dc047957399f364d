//! Threads that do what would block a server's loop.
//!
//! The queue is bounded by what can be in flight at all ([`JOBS_MAX`]): rings refuse a client's request beyond their
//! entries long before, so a full pool means that a server handed over more than one job per request.
//!
//! A job that panics ends the process: state it held may be half changed, and a restarted server recovers from its
//! store, while one that limps on may lie.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::RINGS_MAX;

/// Jobs that may wait: one per request that all rings together may hold.
pub const JOBS_MAX: usize = RINGS_MAX * abi::limits::RING_ENTRIES_MAX as usize;
/// Threads of one pool.
pub const THREADS_MAX: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    #[error("more than {JOBS_MAX} jobs wait")]
    Full,
    #[error("a pool has 1 to {THREADS_MAX} threads")]
    BadSize,
    #[error("a worker thread could not be started")]
    Spawn(#[source] std::io::Error),
}

/// A bounded pool of worker threads, which begin when there is work for them. Dropping it lets the jobs that were
/// handed over finish first.
pub struct WorkerPool {
    shared: Arc<Shared>,
    name: String,
    most: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Nothing panics while it holds this lock: jobs run outside it.
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    closing: bool,
}

impl WorkerPool {
    /// At most `threads`, the first of which begins now.
    pub fn new(name: &str, threads: usize) -> Result<WorkerPool, PoolError> {
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(PoolError::BadSize);
        }
        let (shared, name) = (Arc::new(Shared::default()), name.to_owned());
        let pool = WorkerPool { shared, name, most: threads, threads: Mutex::default() };
        pool.begin()?;
        Ok(pool)
    }

    /// Hands a job to the next free thread.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), PoolError> {
        let is_short = {
            let mut state = self.shared.state.lock();
            if state.jobs.len() >= JOBS_MAX {
                return Err(PoolError::Full);
            }
            state.jobs.push_back(Box::new(job));
            if state.idle > 0 {
                self.shared.work.notify_one();
            }
            state.jobs.len() > state.idle && !state.closing
        };
        if is_short && let Err(error) = self.begin() {
            // Those that there are do it.
            tracing::debug!(%error, "a pool stays as it is");
        }
        Ok(())
    }

    /// One more thread, if there may be one.
    fn begin(&self) -> Result<(), PoolError> {
        let mut threads = self.threads.lock();
        if threads.len() < self.most {
            let shared = Arc::clone(&self.shared);
            let builder = std::thread::Builder::new().name(format!("{}-{}", self.name, threads.len()));
            threads.push(builder.spawn(move || work(&shared)).map_err(PoolError::Spawn)?);
        }
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl WorkerPool {
    /// Returns when the jobs that were handed over are finished. What is handed over later may not be done.
    pub fn end(&self) {
        self.shared.state.lock().closing = true;
        self.shared.work.notify_all();
        let this_thread = std::thread::current().id();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // The last owner may be a job itself; a thread cannot wait for its own end.
            if thread.thread().id() != this_thread {
                let _ = thread.join();
            }
        }
    }
}

fn work(shared: &Shared) {
    let _abort = AbortOnPanic;
    while let Some(job) = take(shared) {
        job();
    }
}

fn take(shared: &Shared) -> Option<Job> {
    let mut state = shared.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            return Some(job);
        }
        if state.closing {
            return None;
        }
        state.idle += 1;
        shared.work.wait(&mut state);
        state.idle -= 1;
    }
}

/// Ends the process when the thread that holds it unwinds; the message was printed by the panic hook.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_run_at_the_same_time_and_all_finish_before_the_pool_is_gone() {
        let pool = WorkerPool::new("test", 2).expect("threads");
        let (there, wait) = mpsc::channel::<()>();
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        // The first job ends only when the second has begun.
        pool.run(move || {
            let _ = wait.recv();
            count.fetch_add(1, Ordering::Relaxed);
        })
        .expect("room");
        let count = Arc::clone(&done);
        pool.run(move || {
            let _ = there.send(());
            count.fetch_add(1, Ordering::Relaxed);
        })
        .expect("room");
        for _ in 0..100 {
            let count = Arc::clone(&done);
            pool.run(move || _ = count.fetch_add(1, Ordering::Relaxed)).expect("room");
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 102);
    }

    #[test]
    fn threads_begin_when_those_that_there_are_have_work() {
        const MOST: usize = 3;
        let pool = WorkerPool::new("test", MOST).expect("threads");
        let count = |pool: &WorkerPool| pool.threads.lock().len();
        assert_eq!(count(&pool), 1);
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (begun, begins) = mpsc::channel();
        for _ in 0..2 * MOST {
            let (wait, begun) = (Arc::clone(&wait), begun.clone());
            pool.run(move || {
                let _ = begun.send(());
                let _ = wait.lock().recv();
            })
            .expect("room");
        }
        (0..MOST).for_each(|_| begins.recv().expect("as many run at the same time"));
        assert_eq!(count(&pool), MOST);
        drop(release);
        drop(pool);
        assert_eq!(begins.try_iter().count(), MOST, "the others run after them");
    }

    #[test]
    fn pool_without_threads_is_refused() {
        assert!(matches!(WorkerPool::new("test", 0), Err(PoolError::BadSize)));
    }
}
