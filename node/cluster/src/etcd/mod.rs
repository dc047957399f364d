//! The engine of several machines: a cluster of etcd (3.4 or later), given or started by the daemons.
//!
//! | | |
//! |---|---|
//! | `messages.rs` | etcd's messages, as far as they are used |
//! | `connection.rs` | one connection to one member, and the change to the next |
//! | `caller.rs` | calls that may be repeated, users, bounds in time |
//! | `transaction.rs` | transactions, which happen once |
//! | `watch.rs` | watches that go on over lost connections |
//! | `membership.rs` | members that come and go |
//!
//! Keys lie under a root of the cluster's own, so that one etcd may serve several: `/dcs/shop` is stored as
//! `dvs/NAME/dcs/shop`. Revisions are etcd's and count what others do there, too; where this engine continues another
//! one, that one's last revision is added to all of them (`dvs/NAME.base`).
//!
//! Every call ends within [`EtcdConfig::patience`] and a little. What is refused: keys, sizes and counts as with any
//! engine; the sum of a transaction's values may not exceed what the members accept (1.5 MiB unless they were told).
//! Leases last whole seconds, at least as long as asked for: etcd has none below about two.
//!
//! One thread runs all that talks (`engine`); callers wait for it and may be any thread.

mod caller;
mod connection;
pub mod membership;
mod messages;
mod transaction;
mod watch;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::{
    Compare, Engine, EngineError, Entry, LIST_ENTRIES_MAX, LeaseId, Listing, Lookup, OPS_PER_TRANSACTION_MAX, Op,
    Outcome, Revision, TTL_MAX, TTL_MIN, Watch, bounded, check_key, check_prefix, check_transaction,
};
use caller::{Caller, Method, wait};
use messages as m;
use transaction::{MARKERS_TTL, Markers, says, signed};
use watch::EtcdWatch;

const RANGE: Method = Method::one("/etcdserverpb.KV/Range");
const KEEP_ALIVE: Method = Method::first_of_stream("/etcdserverpb.Lease/LeaseKeepAlive");
const REVOKE: Method = Method::one("/etcdserverpb.Lease/LeaseRevoke");

/// Members refuse requests of more than 1.5 MiB, unless they were told otherwise; frames and comparisons take some of
/// it.
const BYTES_PER_TRANSACTION_MAX: usize = 1_400_000;
const _: () = assert!(crate::engine::VALUE_BYTES_MAX + crate::engine::KEY_BYTES_MAX < BYTES_PER_TRANSACTION_MAX);
/// Entries of one answer to a list.
const PAGE_ENTRIES: usize = 256;
/// How long a call lasts at most, by default: a change of leader takes one to two seconds.
pub const PATIENCE_DEFAULT: Duration = Duration::from_secs(8);
/// How long one member has for one answer, by default.
pub const ATTEMPT_DEFAULT: Duration = Duration::from_secs(3);

/// Where a member serves clients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not the address of a member of etcd: HOST:PORT")]
pub struct BadMember(String);

impl std::str::FromStr for Member {
    type Err = BadMember;

    fn from_str(text: &str) -> Result<Member, BadMember> {
        let bad = || BadMember(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(bad)?;
        if host.is_empty() || host.contains(['/', ' ']) {
            return Err(bad());
        }
        Ok(Member { host: host.to_owned(), port })
    }
}

#[derive(Clone)]
pub struct User {
    pub name: String,
    pub password: String,
}

#[derive(Clone)]
pub struct EtcdConfig {
    pub members: Vec<Member>,
    /// Which of them is asked first; counted round.
    pub first_member: usize,
    /// What all keys begin with, without a slash at its end: `dvs/NAME`.
    pub root: String,
    /// How members prove who they are, and this node to them. Without: no encryption.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    pub user: Option<User>,
    /// A host of members that cannot be reached by that name from here, and where it is instead: this machine, whose
    /// address for others is translated on the way (NAT). What its certificate says is the former.
    pub translated: Option<(String, IpAddr)>,
    pub patience: Duration,
    pub attempt: Duration,
}

impl EtcdConfig {
    pub fn new(members: Vec<Member>, root: impl Into<String>) -> EtcdConfig {
        EtcdConfig {
            members,
            first_member: 0,
            root: root.into(),
            tls: None,
            user: None,
            translated: None,
            patience: PATIENCE_DEFAULT,
            attempt: ATTEMPT_DEFAULT,
        }
    }
}

/// One node's view of the cluster.
pub struct EtcdEngine {
    /// Of the view that was opened first, with which those derived of it end.
    owned: Option<tokio::runtime::Runtime>,
    runtime: tokio::runtime::Handle,
    caller: Arc<Caller>,
    keys: Arc<Keys>,
    markers: Arc<Markers>,
}

impl EtcdEngine {
    /// Talks to a member before it returns, so that what is wrong is known at once.
    pub fn open(mut config: EtcdConfig) -> Result<EtcdEngine, EngineError> {
        if let Some(tls) = &mut config.tls {
            // Members serve two protocols at one address.
            Arc::make_mut(tls).alpn_protocols = vec![b"h2".to_vec()];
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("engine")
            .enable_all()
            .build()
            .map_err(|error| EngineError::Storage(Box::new(error)))?;
        let keys = Arc::new(Keys { root: config.root.clone(), base: AtomicU64::new(0) });
        let caller = Arc::new(Caller::new(Arc::new(config)));
        let markers = Arc::new(Markers::new()?);
        let engine = EtcdEngine { runtime: runtime.handle().clone(), owned: Some(runtime), caller, keys, markers };
        let base = engine.call(|caller, keys| async move {
            let asked = m::RangeRequest { key: keys.base_key(), ..m::RangeRequest::default() };
            let mut found: m::RangeResponse = caller.repeat(RANGE, &asked).await?;
            found.kvs.pop().map(|kv| base_of(&kv)).transpose()
        })?;
        engine.keys.base.store(base.unwrap_or(0), Ordering::Relaxed);
        let (caller, markers) = (Arc::clone(&engine.caller), Arc::clone(&engine.markers));
        engine.runtime.spawn(keep_markers(caller, markers));
        Ok(engine)
    }

    fn call<T, F>(&self, work: impl FnOnce(Arc<Caller>, Arc<Keys>) -> F) -> Result<T, EngineError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, EngineError>> + Send + 'static,
    {
        wait(&self.runtime, work(Arc::clone(&self.caller), Arc::clone(&self.keys)))
    }
}

impl Drop for EtcdEngine {
    fn drop(&mut self) {
        // The engine may be dropped by a thread that serves async tasks, where waiting is not allowed.
        if let Some(runtime) = self.owned.take() {
            let (caller, lease) = (Arc::clone(&self.caller), self.markers.lease());
            if let Some(id) = lease {
                let _ = wait(runtime.handle(), async move {
                    let asked = m::LeaseRequest { id };
                    let attempt = caller.once::<_, m::LeaseRevokeResponse>(REVOKE, asked, caller.config.attempt);
                    // What is not revoked now ends by itself.
                    let _ = attempt.await;
                    Ok(())
                });
            }
            runtime.shutdown_background();
        }
    }
}

async fn keep_markers(caller: Arc<Caller>, markers: Arc<Markers>) {
    loop {
        tokio::time::sleep(MARKERS_TTL / 4).await;
        if let Some(id) = markers.lease() {
            // What is not renewed is noticed by the next transaction.
            let _ = renew(&caller, LeaseId(id.unsigned_abs())).await;
        }
    }
}

async fn renew(caller: &Caller, lease: LeaseId) -> Result<(), EngineError> {
    let asked = m::LeaseRequest { id: signed(lease) };
    let left: m::LeaseResponse = caller.repeat(KEEP_ALIVE, &asked).await?;
    if left.ttl_seconds > 0 { Ok(()) } else { Err(EngineError::LeaseGone(lease)) }
}

async fn list(caller: &Caller, keys: &Keys, prefix: &str) -> Result<Listing, EngineError> {
    let (mut key, range_end) = keys.range(prefix);
    let (mut entries, mut revision) = (Vec::new(), 0);
    loop {
        let limit = PAGE_ENTRIES as i64;
        let asked = m::RangeRequest { key, range_end: range_end.clone(), limit, revision };
        let page: m::RangeResponse = caller.repeat(RANGE, &asked).await.map_err(compacted)?;
        // All pages are of the revision of the first.
        if revision == 0 {
            revision = page.header.map_or(0, |header| header.revision);
        }
        let last = page.kvs.last().map(|kv| kv.key.clone());
        for kv in page.kvs {
            entries.push(entry(keys, kv)?);
        }
        if entries.len() > LIST_ENTRIES_MAX {
            return Err(EngineError::TooMany { what: "a list", count: entries.len(), limit: LIST_ENTRIES_MAX });
        }
        match last.filter(|_| page.more) {
            Some(last) => key = [last.as_slice(), &[0]].concat(),
            None => return Ok(Listing { revision: keys.revision(revision), entries }),
        }
    }
}

/// The first pages of all in one request. What has more pages is listed by itself.
async fn lists(caller: &Caller, keys: &Keys, prefixes: &[String]) -> Result<Vec<Listing>, EngineError> {
    let first = |prefix: &String| {
        let (key, range_end) = keys.range(prefix);
        let asked = m::RangeRequest { key, range_end, limit: PAGE_ENTRIES as i64, revision: 0 };
        m::RequestOp { request: Some(m::Request::Range(asked)) }
    };
    let success = prefixes.iter().map(first).collect();
    let asked = m::TxnRequest { compare: Vec::new(), success, failure: Vec::new() };
    let answer: m::TxnResponse = caller.repeat(transaction::TXN, &asked).await?;
    let revision = keys.revision(answer.header.as_ref().map_or(0, |header| header.revision));
    let mut pages = answer.responses.into_iter();
    let mut listings = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        listings.push(match pages.next().and_then(|page| page.response) {
            Some(m::Response::Range(page)) if !page.more => {
                let entries = page.kvs.into_iter().map(|kv| entry(keys, kv)).collect::<Result<_, _>>()?;
                Listing { revision, entries }
            }
            _ => list(caller, keys, prefix).await?,
        });
    }
    Ok(listings)
}

/// Only a list that takes as long as all history.
fn compacted(error: EngineError) -> EngineError {
    match error {
        EngineError::Storage(status) if says(&*status, "etcdserver: mvcc: required revision has been compacted") => {
            EngineError::Compacted { up_to: Revision(0) }
        }
        other => other,
    }
}

impl Lookup for EtcdEngine {
    fn read(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        check_key(key)?;
        let key = self.keys.stored(key);
        self.call(|caller, keys| async move {
            let asked = m::RangeRequest { key, ..m::RangeRequest::default() };
            let mut found: m::RangeResponse = caller.repeat(RANGE, &asked).await?;
            found.kvs.pop().map(|kv| entry(&keys, kv)).transpose()
        })
    }

    fn list(&self, prefix: &str) -> Result<Listing, EngineError> {
        check_prefix(prefix)?;
        let prefix = prefix.to_owned();
        self.call(|caller, keys| async move { list(&caller, &keys, &prefix).await })
    }

    fn lists(&self, prefixes: &[&str]) -> Result<Vec<Listing>, EngineError> {
        bounded("prefixes to list", prefixes.len(), OPS_PER_TRANSACTION_MAX)?;
        prefixes.iter().try_for_each(|prefix| check_prefix(prefix))?;
        if prefixes.is_empty() {
            return Ok(Vec::new());
        }
        let prefixes: Vec<String> = prefixes.iter().map(|&prefix| prefix.to_owned()).collect();
        self.call(|caller, keys| async move { lists(&caller, &keys, &prefixes).await })
    }
}

impl Engine for EtcdEngine {
    fn transact(&self, compares: &[Compare], ops: &[Op]) -> Result<Outcome, EngineError> {
        check_transaction(compares, ops)?;
        let bytes = |op: &Op| match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } => key.len(),
        };
        bounded("what a transaction writes, in bytes,", ops.iter().map(bytes).sum(), BYTES_PER_TRANSACTION_MAX)?;
        let (compares, ops, markers) = (compares.to_vec(), ops.to_vec(), Arc::clone(&self.markers));
        self.call(|caller, keys| async move { transaction::transact(&caller, &keys, &markers, &compares, &ops).await })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, EngineError> {
        check_prefix(prefix)?;
        let (caller, keys) = (Arc::clone(&self.caller), Arc::clone(&self.keys));
        Ok(Box::new(EtcdWatch::start(&self.runtime, caller, keys, prefix, after)))
    }

    fn continue_after(&self, revision: Revision) -> Result<(), EngineError> {
        if !self.list("/")?.entries.is_empty() {
            return Err(EngineError::NotEmpty);
        }
        let base = self.keys.base.load(Ordering::Relaxed).max(revision.0);
        self.call(move |caller, keys| async move {
            let put = m::PutRequest { key: keys.base_key(), value: base.to_string().into_bytes(), lease: 0 };
            let op = m::RequestOp { request: Some(m::Request::Put(put)) };
            // It may happen more than once: the same is written.
            let asked = m::TxnRequest { compare: Vec::new(), success: vec![op], failure: Vec::new() };
            caller.repeat::<_, m::TxnResponse>(transaction::TXN, &asked).await.map(drop)
        })?;
        self.keys.base.store(base, Ordering::Relaxed);
        Ok(())
    }

    /// A member hands requests to the leader, and waits for one that was lost with it.
    fn hurried(&self, attempt: Duration) -> Option<Arc<dyn Engine>> {
        let (keys, markers) = (Arc::clone(&self.keys), Arc::clone(&self.markers));
        let caller = Arc::new(self.caller.hurried(attempt));
        Some(Arc::new(EtcdEngine { owned: None, runtime: self.runtime.clone(), caller, keys, markers }))
    }

    fn connections(&self) -> u64 {
        self.caller.connections()
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EngineError> {
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            return Err(EngineError::BadTtl(ttl));
        }
        self.call(|caller, _| async move { Ok(LeaseId(transaction::grant(&caller, ttl).await?.unsigned_abs())) })
    }

    fn renew(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.call(|caller, _| async move { renew(&caller, lease).await })
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EngineError> {
        self.call(|caller, _| async move {
            let asked = m::LeaseRequest { id: signed(lease) };
            match caller.repeat::<_, m::LeaseRevokeResponse>(REVOKE, &asked).await {
                Err(EngineError::Storage(status)) if says(&*status, "etcdserver: requested lease not found") => Ok(()),
                done => done.map(drop),
            }
        })
    }
}

/// How keys of the cluster are stored.
pub struct Keys {
    root: String,
    /// Revisions of the engines that this one continues.
    base: AtomicU64,
}

impl Keys {
    fn stored(&self, key: &str) -> Vec<u8> {
        [self.root.as_bytes(), key.as_bytes()].concat()
    }

    fn shown(&self, key: &[u8]) -> Option<String> {
        String::from_utf8(key.strip_prefix(self.root.as_bytes())?.to_vec()).ok()
    }

    /// From the first key with the prefix to the first one after them all.
    fn range(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let first = self.stored(prefix);
        // Keys are ASCII: one more in the last place is after all that begin so.
        let mut end = first.clone();
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        (first, end)
    }

    /// What etcd's revision is called here. 0 of an answer that says none.
    fn revision(&self, number: i64) -> Revision {
        match u64::try_from(number) {
            Ok(number @ 1..) => Revision(self.base.load(Ordering::Relaxed).saturating_add(number)),
            _ => Revision(0),
        }
    }

    /// The other way. `None`: it is of an engine before this one.
    fn number(&self, revision: Revision) -> Option<i64> {
        i64::try_from(revision.0.checked_sub(self.base.load(Ordering::Relaxed))?).ok()
    }

    /// Beside the cluster's keys, which begin with a slash after the root.
    fn base_key(&self) -> Vec<u8> {
        format!("{}.base", self.root).into_bytes()
    }

    /// Beside them, too.
    fn marker(&self, view: u64, number: i64) -> Vec<u8> {
        format!("{}.marker/{view:016x}/{number}", self.root).into_bytes()
    }
}

fn entry(keys: &Keys, kv: m::KeyValue) -> Result<Entry, EngineError> {
    let bad = || EngineError::BadValue(String::from_utf8_lossy(&kv.key).into_owned());
    Ok(Entry {
        key: keys.shown(&kv.key).ok_or_else(bad)?,
        value: kv.value,
        created: keys.revision(kv.create_revision),
        modified: keys.revision(kv.mod_revision),
        lease: lease_of(kv.lease),
    })
}

fn base_of(kv: &m::KeyValue) -> Result<u64, EngineError> {
    let number = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| EngineError::BadValue(String::from_utf8_lossy(&kv.key).into_owned()))
}

fn lease_of(number: i64) -> Option<LeaseId> {
    u64::try_from(number).ok().filter(|number| *number != 0).map(LeaseId)
}

/// Etcd's leases are positive numbers; one that was ever given is not given again, as far as chance goes: of 63 bits.
fn lease_number(random: u64) -> i64 {
    i64::try_from(random >> 1).unwrap_or(0).max(1)
}

fn random() -> Result<u64, EngineError> {
    let mut bytes = [0; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) => Err(EngineError::Storage("too few random bytes".into())),
        Err(error) => Err(EngineError::Storage(Box::new(error))),
    }
}
