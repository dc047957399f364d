//! The cluster engine with a tally on it: calls, errors, and how long calls took. A wait for changes is no call.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster::{Compare, Engine, EngineError, Entry, LeaseId, Listing, Lookup, Op, Outcome, Revision, Watch};

use super::text::Distribution;

/// From an answer out of memory to a call that lasts as long as any may.
pub const BOUNDS_S: [f64; 9] = [0.0005, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.5, 2.0, 8.0];
const BUCKETS: usize = BOUNDS_S.len() + 1;

/// What can be asked of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Read,
    List,
    Transact,
    Watch,
    Grant,
    Renew,
    Revoke,
}

impl Call {
    pub const ALL: [Call; 7] =
        [Call::Read, Call::List, Call::Transact, Call::Watch, Call::Grant, Call::Renew, Call::Revoke];

    pub fn name(self) -> &'static str {
        match self {
            Call::Read => "read",
            Call::List => "list",
            Call::Transact => "transact",
            Call::Watch => "watch",
            Call::Grant => "grant",
            Call::Renew => "renew",
            Call::Revoke => "revoke",
        }
    }
}

/// What was counted. Numbers that belong together may differ by calls that just end.
#[derive(Default)]
pub struct Tally {
    calls: [OfCall; Call::ALL.len()],
}

struct OfCall {
    errors: AtomicU64,
    took: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for OfCall {
    fn default() -> OfCall {
        OfCall {
            errors: AtomicU64::default(),
            took: array::from_fn(|_| AtomicU64::default()),
            sum_us: AtomicU64::default(),
        }
    }
}

/// Of one kind of call.
pub struct Counted {
    pub errors: u64,
    pub took: [u64; BUCKETS],
    pub sum_s: f64,
}

impl Counted {
    pub fn calls(&self) -> u64 {
        self.took.iter().sum()
    }

    pub fn distribution(&self) -> Distribution<'_> {
        Distribution { bounds_s: &BOUNDS_S, counts: &self.took, sum_s: self.sum_s }
    }
}

impl Tally {
    pub fn counted(&self, call: Call) -> Option<Counted> {
        let of = self.calls.get(call as usize)?;
        let took = array::from_fn(|at| of.took.get(at).map_or(0, |count| count.load(Ordering::Relaxed)));
        let sum_s = Duration::from_micros(of.sum_us.load(Ordering::Relaxed)).as_secs_f64();
        Some(Counted { errors: of.errors.load(Ordering::Relaxed), took, sum_s })
    }

    fn count<T>(&self, call: Call, began: Instant, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        let took = began.elapsed();
        let bucket = BOUNDS_S.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS_S.len());
        let Some(of) = self.calls.get(call as usize) else { return answer };
        if let Some(count) = of.took.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        of.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        of.errors.fetch_add(u64::from(answer.is_err()), Ordering::Relaxed);
        answer
    }
}

/// An engine whose calls are counted.
pub struct Measured {
    engine: Arc<dyn Engine>,
    tally: Arc<Tally>,
}

impl Measured {
    pub fn new(engine: Arc<dyn Engine>, tally: &Arc<Tally>) -> Measured {
        Measured { engine, tally: Arc::clone(tally) }
    }

    fn call<T>(&self, call: Call, ask: impl FnOnce(&dyn Engine) -> Result<T, EngineError>) -> Result<T, EngineError> {
        let began = Instant::now();
        self.tally.count(call, began, ask(&*self.engine))
    }
}

impl Lookup for Measured {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        self.call(Call::Read, |engine| engine.read(key))
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        self.call(Call::List, |engine| engine.list(prefix))
    }

    /// One call, as it is one request.
    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        self.call(Call::List, |engine| engine.lists(prefixes))
    }
}

impl Engine for Measured {
    fn transact(&self, compares: &[Compare], ops: &[Op]) -> Result<Outcome, EngineError> {
        self.call(Call::Transact, |engine| engine.transact(compares, ops))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, EngineError> {
        self.call(Call::Watch, |engine| engine.watch(prefix, after))
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EngineError> {
        self.call(Call::Grant, |engine| engine.grant(ttl))
    }

    fn renew(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.call(Call::Renew, |engine| engine.renew(lease))
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.call(Call::Revoke, |engine| engine.revoke(lease))
    }

    fn continue_after(&self, revision: Revision) -> Result<(), EngineError> {
        self.engine.continue_after(revision)
    }

    /// Counted with the others.
    fn hurried(&self, attempt: Duration) -> Option<Arc<dyn Engine>> {
        let hurried = self.engine.hurried(attempt)?;
        Some(Arc::new(Measured::new(hurried, &self.tally)))
    }

    fn connections(&self) -> u64 {
        self.engine.connections()
    }
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};
    use cluster::steered::{Course, Steered};

    use super::*;

    #[test]
    fn calls_errors_and_times_are_counted_and_answers_pass_as_they_are() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let tally = Arc::new(Tally::default());
        let engine = Measured::new(Arc::new(LocalEngine::open(config).unwrap()), &tally);
        engine.transact(&[], &[Op::put("/a", "1")]).unwrap();
        assert_eq!(engine.read("/a").unwrap().unwrap().value, b"1");
        assert!(engine.read("a").is_err());
        let counted = |call| tally.counted(call).map(|counted| (counted.calls(), counted.errors)).unwrap();
        assert_eq!(counted(Call::Read), (2, 1));
        assert_eq!(counted(Call::Transact), (1, 0));
        assert_eq!(counted(Call::Grant), (0, 0));
        assert_eq!(engine.connections(), 1);
    }

    #[test]
    fn several_lists_are_one_call_and_calls_of_whoever_is_in_a_hurry_are_counted_with_the_others() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let (tally, asked) = (Arc::new(Tally::default()), Arc::new(AtomicU64::new(0)));
        let also = Arc::clone(&asked);
        let engine = Steered::new(LocalEngine::open(config).unwrap(), move |_| {
            also.fetch_add(1, Ordering::Relaxed);
            Course::Happens
        });
        let engine = Measured::new(Arc::new(engine), &tally);
        let hurried = engine.hurried(Duration::from_millis(400)).unwrap();
        let counted = |call| tally.counted(call).unwrap().calls();
        hurried.transact(&[], &[Op::put("/a", "1"), Op::put("/b", "1")]).unwrap();
        assert_eq!((counted(Call::Transact), asked.load(Ordering::Relaxed)), (1, 1));
        assert_eq!(hurried.lists(&["/a", "/b"]).unwrap().len(), 2);
        assert_eq!((counted(Call::List), asked.load(Ordering::Relaxed)), (1, 2));
        assert!(hurried.read("a").is_err());
        assert_eq!(tally.counted(Call::Read).unwrap().errors, 1);
    }

    #[test]
    fn a_call_is_in_the_first_bucket_that_holds_it() {
        let tally = Tally::default();
        let long_ago = Instant::now().checked_sub(Duration::from_millis(300)).unwrap();
        tally.count(Call::Renew, long_ago, Ok(())).unwrap();
        let counted = tally.counted(Call::Renew).unwrap();
        assert_eq!(counted.took.iter().position(|count| *count == 1), BOUNDS_S.iter().position(|bound| *bound == 0.5));
        assert!(counted.sum_s >= 0.3);
    }
}
