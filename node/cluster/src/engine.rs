//! The trait, its values, its errors and its bounds.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a key: `/eps/16777215/8191` is 18; names are at most 32.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of a value. etcd refuses requests above 1.5 MiB.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Comparisons, and operations, of one transaction. etcd's default is 128, of which the back end needs one.
pub const OPS_PER_TRANSACTION_MAX: usize = 127;
/// Entries one `list` may return: all endpoints of a busy cluster fit.
pub const LIST_ENTRIES_MAX: usize = 100_000;
/// Leases alive at a time: a few for each node, one for each lock held.
pub const LEASES_MAX: usize = 16_384;
/// Shorter leases would be lost to an ordinary scheduling delay.
pub const TTL_MIN: Duration = Duration::from_millis(50);
pub const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Counts the transactions that changed something, from 1. Also the fencing token of whatever that transaction
/// acquired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Never used twice in the life of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A key as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    /// Transaction that made the key (again, after it had been deleted).
    pub created: Revision,
    /// Transaction that changed it last.
    pub modified: Revision,
    /// The key goes when this lease does.
    pub lease: Option<LeaseId>,
}

/// Entries in the order of their keys, all as of `revision`: a watch after it misses nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    pub revision: Revision,
    pub entries: Vec<Entry>,
}

/// What must hold for a transaction to happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    Absent {
        key: String,
    },
    Present {
        key: String,
    },
    /// The key exists and was last changed by this transaction.
    Modified {
        key: String,
        at: Revision,
    },
    /// The key exists and was made by this transaction: a fencing token is still the owner's.
    Created {
        key: String,
        at: Revision,
    },
    Value {
        key: String,
        equals: Vec<u8>,
    },
}

impl Compare {
    pub fn key(&self) -> &str {
        match self {
            Compare::Absent { key }
            | Compare::Present { key }
            | Compare::Modified { key, .. }
            | Compare::Created { key, .. }
            | Compare::Value { key, .. } => key,
        }
    }

    /// Whether it holds for what is stored under its key.
    pub fn holds(&self, entry: Option<&Entry>) -> bool {
        match (self, entry) {
            (Compare::Absent { .. }, found) => found.is_none(),
            (_, None) => false,
            (Compare::Present { .. }, Some(_)) => true,
            (Compare::Modified { at, .. }, Some(found)) => found.modified == *at,
            (Compare::Created { at, .. }, Some(found)) => found.created == *at,
            (Compare::Value { equals, .. }, Some(found)) => found.value == *equals,
        }
    }
}

/// What a transaction does. One transaction names each key once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Replaces value and lease.
    Put { key: String, value: Vec<u8>, lease: Option<LeaseId> },
    /// Of a key that does not exist: nothing.
    Delete { key: String },
}

impl Op {
    pub fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: None }
    }

    pub fn put_leased(key: impl Into<String>, value: impl Into<Vec<u8>>, lease: LeaseId) -> Op {
        Op::Put { key: key.into(), value: value.into(), lease: Some(lease) }
    }

    pub fn delete(key: impl Into<String>) -> Op {
        Op::Delete { key: key.into() }
    }

    pub fn key(&self) -> &str {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}

/// Of a transaction that reached a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Applied, durable; the revision is the one it made, or the current one when it changed nothing.
    Done(Revision),
    /// Nothing happened: a comparison did not hold.
    Conflict(Conflict),
}

/// What the compared keys were instead, in the order of the comparisons.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    pub revision: Revision,
    pub current: Vec<Option<Entry>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Several events of one transaction share it and follow each other.
    pub revision: Revision,
    pub key: String,
    pub kind: EventKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKind {
    Put {
        value: Vec<u8>,
        created: Revision,
        lease: Option<LeaseId>,
    },
    /// Deleted, or its lease ended.
    Delete,
}

/// Why the engine did not answer. `Unknown`: read before repeating. With any other, nothing happened, and where the
/// reason passes (`Busy`, `Full`, `NoQuorum`, `Unreachable`), a retry is safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("the engine's file stayed locked for {waited_ms} ms{}", holder(*.pid))]
    Busy { waited_ms: u64, pid: Option<u32> },
    #[error("the history up to revision {up_to} is gone; list again and watch from there")]
    Compacted { up_to: Revision },
    #[error("lease {0} has ended")]
    LeaseGone(LeaseId),
    #[error("the watch was cancelled")]
    Cancelled,
    #[error("not a usable key: {0:?}")]
    BadKey(String),
    #[error("the key {0:?} is named twice in one transaction")]
    KeyNamedTwice(String),
    #[error("a lease of {0:?} is outside {TTL_MIN:?} to {TTL_MAX:?}")]
    BadTtl(Duration),
    #[error("{what} has {count}, the limit is {limit}")]
    TooMany { what: &'static str, count: usize, limit: usize },
    #[error("too few members of the engine are there to decide anything")]
    NoQuorum(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine and this node do not accept each other's certificates")]
    Untrusted(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine does not allow this node to do that")]
    Denied(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine did not say whether the transaction happened")]
    Unknown(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine has no space left")]
    Full(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the engine's storage failed")]
    Storage(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("what is stored under {0:?} cannot be understood")]
    BadValue(String),
    #[error("the engine is another one than the one that was opened")]
    Replaced,
    #[error("the engine is not empty: it cannot continue another one")]
    NotEmpty,
}

impl EngineError {
    /// The engine is away, and may come back: what is known of it is all there is until then.
    pub fn is_absence(&self) -> bool {
        matches!(self, EngineError::NoQuorum(_) | EngineError::Unreachable(_))
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" by process {pid}")).unwrap_or_default()
}

/// What can be looked up: in an engine, or in what a daemon knows of it ([`crate::known`]).
pub trait Lookup {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError>;

    /// All keys that begin with `prefix`.
    fn list(&self, prefix: &str) -> Result<Listing, EngineError>;

    /// The same of several prefixes, at most [`OPS_PER_TRANSACTION_MAX`], without waiting for each by itself. Each
    /// listing is of one moment, which need not be that of the others, and is not before that of the listing before it.
    /// Without a default, so that whoever only passes calls on cannot forget this one: it would work, and take a round
    /// trip for each prefix. See [`each_listed`].
    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError>;
}

/// [`Lookup::lists`] where a list costs no round trip: one after the other.
pub fn each_listed(lookup: &dyn Lookup, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
    bounded("prefixes to list", prefixes.len(), OPS_PER_TRANSACTION_MAX)?;
    prefixes.iter().map(|prefix| lookup.list(prefix)).collect()
}

/// [`Lookup::lists`] of a number of prefixes that is known.
pub fn listed<const N: usize>(lookup: &dyn Lookup, prefixes: [&str; N]) -> Result<[Listing; N], EngineError> {
    let listings = lookup.lists(&prefixes)?;
    listings.try_into().map_err(|_| EngineError::Storage("fewer prefixes were listed than asked for".into()))
}

/// A cluster engine. Every call blocks at most a bound the back end states, and may be made from any thread. What it
/// answers to a look-up is not older than the question.
pub trait Engine: Lookup + Send + Sync {
    /// All of `ops` when all of `compares` hold, else nothing. Linearisable.
    fn transact(&self, compares: &[Compare], ops: &[Op]) -> Result<Outcome, EngineError>;

    /// Every change of keys that begin with `prefix` made after the revision: in order, each once.
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, EngineError>;

    /// A lease that ends `ttl` from now unless renewed.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, EngineError>;

    /// Lets it last its ttl from now. Repeatable.
    fn renew(&self, lease: LeaseId) -> Result<(), EngineError>;

    /// Ends it with its keys, in one transaction. Repeatable.
    fn revoke(&self, lease: LeaseId) -> Result<(), EngineError>;

    /// Lets all revisions from now on be greater than this one, of the engine whose state comes here. Only while
    /// nothing is stored; who has opened it already opens it again.
    fn continue_after(&self, revision: Revision) -> Result<(), EngineError>;

    /// The same engine for whoever cannot wait as long as somebody who is lost may be waited for: after `attempt`
    /// without an answer a request is sent again. `None` where there is nobody to wait for.
    fn hurried(&self, attempt: Duration) -> Option<Arc<dyn Engine>> {
        let _ = attempt;
        None
    }

    /// How often a connection to it was made; 1 where there is none to lose.
    fn connections(&self) -> u64 {
        1
    }
}

/// Changes as they come. Dropping it ends it.
pub trait Watch: Send {
    /// The next change, or `None` when there was none for `timeout`. After `Compacted` or `Cancelled` it stays so.
    fn recv(&mut self, timeout: Duration) -> Result<Option<Event>, EngineError>;

    /// Everything up to here has been returned by `recv` (keys elsewhere change, too).
    fn seen(&self) -> Revision;

    fn canceller(&self) -> Canceller;
}

/// Ends a `recv` that waits in another thread.
#[derive(Clone)]
pub struct Canceller(Arc<dyn Fn() + Send + Sync>);

impl Canceller {
    pub fn new(cancel: impl Fn() + Send + Sync + 'static) -> Canceller {
        Canceller(Arc::new(cancel))
    }

    pub fn cancel(&self) {
        (self.0)();
    }
}

/// A key begins with `/` and is printable ASCII.
pub fn check_key(key: &str) -> Result<(), EngineError> {
    check_prefix(key)?;
    if key.ends_with('/') { Err(EngineError::BadKey(key.to_owned())) } else { Ok(()) }
}

pub fn check_prefix(prefix: &str) -> Result<(), EngineError> {
    let good =
        prefix.starts_with('/') && prefix.len() <= KEY_BYTES_MAX && prefix.bytes().all(|byte| byte.is_ascii_graphic());
    if good { Ok(()) } else { Err(EngineError::BadKey(prefix.chars().take(KEY_BYTES_MAX).collect())) }
}

pub fn check_transaction(compares: &[Compare], ops: &[Op]) -> Result<(), EngineError> {
    bounded("a transaction", compares.len().max(ops.len()), OPS_PER_TRANSACTION_MAX)?;
    compares.iter().try_for_each(|compare| check_key(compare.key()))?;
    let mut named = HashSet::new();
    for op in ops {
        check_key(op.key())?;
        if !named.insert(op.key()) {
            return Err(EngineError::KeyNamedTwice(op.key().to_owned()));
        }
        if let Op::Put { value, .. } = op {
            bounded("a value", value.len(), VALUE_BYTES_MAX)?;
        }
    }
    Ok(())
}

pub(crate) fn bounded(what: &'static str, count: usize, limit: usize) -> Result<(), EngineError> {
    if count > limit { Err(EngineError::TooMany { what, count, limit }) } else { Ok(()) }
}

/// Time since boot, sleep included: the clock of leases. Steps of the wall clock do not touch it.
pub fn boot_clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
