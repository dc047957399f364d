//! Where endpoints live: the broker's view of the cluster.
//!
//! What the broker says of its own endpoints goes to the engine by way of a table of what is to be written (coalesced, hence bounded
//! by the number of endpoints) and one thread; what other nodes wrote arrives from the follower and is remembered here, so that the broker's
//! questions are answered without waiting.
//!
//! Records of endpoints are not bound to the node's lease: a lease ends when a daemon dies, its servers go on. They are replaced by
//! later incarnations, removed when unbound, and swept by their node when its daemon starts. That a node is gone, the links say.
//!
//! Lock order: `Shared::known`, `Shared::pairs` and `Shared::pending` are never held together, nor across a call of the broker or the engine.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::{DcId, Endpoint, Epoch, NodeId};
use broker::{Broker, Directory, Home, Location, Snapshot};
use cluster::{Compare, Engine, EngineError, Op, Outcome};

use crate::records::{self, EndpointRecord, NodeRecord};

const RETRY: Duration = Duration::from_millis(200);

/// Container and endpoint.
type Key = (u32, u32);

struct Shared {
    own: NodeId,
    /// Pairs of proxies that each node has by its record.
    pairs: Mutex<HashMap<NodeId, u8>>,
    /// As the engine has them, those of this node included.
    known: Mutex<HashMap<Key, EndpointRecord>>,
    pending: Mutex<Pending>,
    added: Condvar,
}

#[derive(Default)]
struct Pending {
    writes: BTreeMap<Key, Write>,
    stopping: bool,
}

#[derive(Clone, Copy)]
enum Write {
    Bound { epoch: Epoch, pid: i32 },
    Unbound(Epoch),
}

/// The half the broker holds.
pub struct BrokerSide(Arc<Shared>);

/// The half the daemon holds.
pub struct EndpointDirectory {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

impl EndpointDirectory {
    pub fn start(engine: &Arc<dyn Engine>, own: NodeId) -> std::io::Result<(EndpointDirectory, BrokerSide)> {
        let shared = Arc::new(Shared {
            own,
            pairs: Mutex::default(),
            known: Mutex::default(),
            pending: Mutex::default(),
            added: Condvar::new(),
        });
        let (also, engine) = (Arc::clone(&shared), Arc::clone(engine));
        let writer =
            std::thread::Builder::new().name("directory".to_owned()).spawn(move || also.write_all(&*engine))?;
        Ok((EndpointDirectory { shared: Arc::clone(&shared), writer: Some(writer) }, BrokerSide(shared)))
    }

    /// Members of the cluster, this node among them.
    pub fn learned_members(&self, members: &BTreeMap<String, NodeRecord>) {
        *lock(&self.shared.pairs) = members.values().map(|member| (NodeId(member.id), member.pairs)).collect();
    }

    /// What the broker took over from its predecessor. An endpoint of another node that the follower does not list ended
    /// meanwhile: that shows only if it was known.
    pub fn remember(&self, taken_over: &Snapshot) {
        let mut known = lock(&self.shared.known);
        for info in &taken_over.dcs {
            for endpoint in &info.endpoints {
                if let Home::Remote { node } = endpoint.home {
                    let record = EndpointRecord { node: node.0, epoch: endpoint.epoch.0, pid: 0 };
                    known.insert((info.dc.0, endpoint.endpoint.number()), record);
                }
            }
        }
    }

    /// The follower saw a record.
    pub fn learned(&self, broker: &Broker, key: Key, record: EndpointRecord) {
        let before = lock(&self.shared.known).insert(key, record);
        let Some((dc, endpoint)) = ids(key) else { return };
        if record.node == self.shared.own.0 || before == Some(record) {
            return;
        }
        if let Err(error) = broker.remote_bound(dc, endpoint, NodeId(record.node), Epoch(record.epoch)) {
            // The container has no share here: nobody can ask for it.
            tracing::trace!(%dc, %endpoint, %error, "remote endpoint not taken");
        }
    }

    /// The follower saw a record go.
    pub fn forgot(&self, broker: &Broker, key: Key) {
        let before = lock(&self.shared.known).remove(&key);
        let (Some(before), Some((dc, endpoint))) = (before, ids(key)) else { return };
        if before.node == self.shared.own.0 {
            return;
        }
        if let Err(error) = broker.remote_unbound(dc, endpoint, NodeId(before.node), Epoch(before.epoch)) {
            tracing::trace!(%dc, %endpoint, %error, "remote endpoint not taken away");
        }
    }

    /// The follower listed everything anew.
    pub fn learned_all(&self, broker: &Broker, all: &HashMap<Key, EndpointRecord>) {
        let gone: Vec<Key> = lock(&self.shared.known).keys().filter(|key| !all.contains_key(key)).copied().collect();
        gone.into_iter().for_each(|key| self.forgot(broker, key));
        all.iter().for_each(|(key, record)| self.learned(broker, *key, *record));
    }

    /// A container begins here: tells the broker what is known of its endpoints elsewhere.
    pub fn introduce(&self, broker: &Broker, dc: u32) {
        let known: Vec<_> = lock(&self.shared.known)
            .iter()
            .filter(|(key, _)| key.0 == dc)
            .map(|(key, record)| (*key, *record))
            .collect();
        for (key, record) in known {
            let Some((dc, endpoint)) = ids(key).filter(|_| record.node != self.shared.own.0) else { continue };
            if let Err(error) = broker.remote_bound(dc, endpoint, NodeId(record.node), Epoch(record.epoch)) {
                tracing::warn!(%dc, %endpoint, %error, "the broker does not take a remote endpoint");
            }
        }
    }
}

impl Drop for EndpointDirectory {
    fn drop(&mut self) {
        lock(&self.shared.pending).stopping = true;
        self.shared.added.notify_all();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the directory's thread had panicked");
        }
    }
}

/// Removes what an earlier daemon of this node wrote and `keep` does not want.
pub fn sweep(engine: &dyn Engine, own: NodeId, keep: impl Fn(u32, u32) -> bool) -> Result<(), EngineError> {
    for entry in engine.list(records::ENDPOINTS)?.entries {
        let Some((dc, endpoint)) = records::parse_endpoint_key(&entry.key) else { continue };
        let record: EndpointRecord = records::decode(&entry)?;
        if record.node == own.0 && !keep(dc, endpoint) {
            engine.transact(
                &[Compare::Modified { key: entry.key.clone(), at: entry.modified }],
                &[Op::delete(entry.key)],
            )?;
        }
    }
    Ok(())
}

impl Shared {
    fn add(&self, dc: DcId, endpoint: Endpoint, write: Write) {
        lock(&self.pending).writes.insert((dc.0, endpoint.number()), write);
        self.added.notify_all();
    }

    fn write_all(&self, engine: &dyn Engine) {
        while let Some((key, write)) = self.next() {
            if let Err(error) = store(engine, self.own, key, write) {
                tracing::warn!(dc = key.0, endpoint = key.1, %error, "cannot write where an endpoint lives");
                // Anything newer said meanwhile counts.
                let mut pending = lock(&self.pending);
                pending.writes.entry(key).or_insert(write);
                if !pending.stopping {
                    drop(self.added.wait_timeout(pending, RETRY).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Waits for something to write; `None` when it is time to end (what is pending then is swept at the next start).
    fn next(&self) -> Option<(Key, Write)> {
        let mut pending = lock(&self.pending);
        loop {
            if pending.stopping {
                return None;
            }
            if let Some(next) = pending.writes.pop_first() {
                return Some(next);
            }
            pending = self.added.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn store(engine: &dyn Engine, own: NodeId, (dc, endpoint): Key, write: Write) -> Result<(), EngineError> {
    let key = records::endpoint_key(dc, endpoint);
    loop {
        let found = records::read::<EndpointRecord>(engine, &key)?;
        let op = match (write, &found) {
            (Write::Bound { epoch, .. }, Some((there, _))) if there.epoch > epoch.0 => {
                tracing::warn!(dc, endpoint, ours = epoch.0, theirs = there.epoch, "a later incarnation is registered");
                return Ok(());
            }
            (Write::Bound { epoch, pid }, _) => {
                Op::put(&*key, records::encode(&EndpointRecord { node: own.0, epoch: epoch.0, pid }))
            }
            (Write::Unbound(epoch), Some((there, _))) if there.node == own.0 && there.epoch <= epoch.0 => {
                Op::delete(&*key)
            }
            (Write::Unbound(_), _) => return Ok(()),
        };
        let compare = match found {
            Some((_, modified)) => Compare::Modified { key: key.clone(), at: modified },
            None => Compare::Absent { key: key.clone() },
        };
        if let Outcome::Done(_) = engine.transact(&[compare], &[op])? {
            return Ok(());
        }
    }
}

impl Directory for BrokerSide {
    fn locate(&mut self, dc: DcId, endpoint: Endpoint) -> Location {
        match lock(&self.0.known).get(&(dc.0, endpoint.number())) {
            // Ours, but not bound any more, or the broker would not ask.
            Some(record) if record.node != self.0.own.0 => {
                Location::Remote { node: NodeId(record.node), epoch: Epoch(record.epoch) }
            }
            _ => Location::Unknown,
        }
    }

    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        self.0.add(dc, endpoint, Write::Bound { epoch, pid });
    }

    fn find(&mut self, dc: DcId, pid: i32) -> Option<Endpoint> {
        let known = lock(&self.0.known);
        let found =
            known.iter().find(|(key, record)| key.0 == dc.0 && record.pid == pid && record.node != self.0.own.0);
        found.and_then(|(key, _)| Endpoint::new(key.1))
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch) {
        self.0.add(dc, endpoint, Write::Unbound(epoch));
    }

    fn pairs(&self, node: NodeId) -> u8 {
        lock(&self.0.pairs).get(&node).copied().unwrap_or(1)
    }
}

fn ids((dc, endpoint): Key) -> Option<(DcId, Endpoint)> {
    Some((DcId(dc), Endpoint::new(endpoint)?))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
