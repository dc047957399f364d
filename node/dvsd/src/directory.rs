//! Where endpoints live: the broker's view of the cluster.
//!
//! What the broker says of its own endpoints goes to the engine by way of a table of what is to be written (coalesced,
//! hence bounded by the number of endpoints) and one thread; what other nodes wrote arrives from the follower and is
//! remembered here, so that the broker's questions are answered without waiting.
//!
//! Names (`registry.rs`) of this node's endpoints are known from that thread, and end with the broker's word; those of
//! others come from the follower. One that is handed over is known here from the one or from the other at every moment.
//!
//! Records of endpoints are not bound to the node's lease: a lease ends when a daemon dies, its servers go on. They are
//! replaced by later incarnations, removed when unbound, and swept by their node when its daemon starts. That a node is
//! gone, the links say.
//!
//! Lock order: `Shared::known`, `Shared::pairs` and `Shared::pending` are never held together, nor across a call of the
//! broker or the engine.

#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use abi::{DcId, Endpoint, EndpointName, Epoch, IpcError, NodeId};
use broker::{Broker, Claim, Directory, Home, Location, Names, Snapshot};
use cluster::Engine;
use parking_lot::{Condvar, Mutex};

use crate::records::{EndpointRecord, NodeRecord};
use crate::registry::{self, Before, Key, Wish, Write};

const RETRY: Duration = Duration::from_millis(200);

struct Shared {
    own: NodeId,
    /// Pairs of proxies that each node has by its record.
    pairs: Mutex<HashMap<NodeId, u8>>,
    known: Mutex<Known>,
    pending: Mutex<Pending>,
    added: Condvar,
}

#[derive(Default)]
struct Known {
    /// As the engine has them, those of this node included.
    records: HashMap<Key, EndpointRecord>,
    /// Of the endpoints of other nodes.
    names: Names,
}

#[derive(Default)]
struct Pending {
    writes: BTreeMap<Key, Write>,
    /// Each is decided after the write of its endpoint, whose record it wants there.
    wishes: BTreeMap<Key, Wish>,
    /// Where the writer was in either table, so that nobody's flood keeps it at its beginning, and in which of the two.
    last_written: Key,
    last_decided: Key,
    is_turn_of_wishes: bool,
    /// Of the endpoints of this node.
    names: Names,
    /// Who hears what became of the wishes; until it is there they wait.
    broker: Option<Weak<Broker>>,
    stopping: bool,
}

impl Pending {
    /// A write and a wish in turn, and each of them in turn.
    fn next_work(&mut self) -> Option<Work> {
        self.is_turn_of_wishes = !self.is_turn_of_wishes;
        if self.is_turn_of_wishes {
            self.next_wish().or_else(|| self.next_write())
        } else {
            self.next_write().or_else(|| self.next_wish())
        }
    }

    fn next_write(&mut self) -> Option<Work> {
        let key = next_after(&self.writes, self.last_written, |_| true)?;
        self.last_written = key;
        Some(Work::Write(key, self.writes.remove(&key)?))
    }

    fn next_wish(&mut self) -> Option<Work> {
        // Nobody would hear of it yet.
        self.broker.as_ref()?;
        let key = next_after(&self.wishes, self.last_decided, |key| !self.writes.contains_key(key))?;
        self.last_decided = key;
        Some(Work::Decide(key, self.wishes.remove(&key)?))
    }

    /// Whether the owner of that epoch has ended, and the engine has not heard of it.
    fn has_ended(&self, key: Key, epoch: Epoch) -> bool {
        match self.writes.get(&key) {
            Some(Write::Unbound(ended)) => *ended >= epoch,
            Some(Write::Bound { before, .. }) => *before == Before::Ended,
            None => false,
        }
    }
}

/// What the writer does next.
enum Work {
    Write(Key, Write),
    Decide(Key, Wish),
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

    /// Whoever wants a name hears from it what became of that.
    pub fn attach(&self, broker: &Arc<Broker>) {
        let known: Vec<_> = {
            let mut pending = self.shared.pending.lock();
            pending.broker = Some(Arc::downgrade(broker));
            pending.names.iter().collect()
        };
        self.shared.added.notify_all();
        // Those of endpoints it took over, which somebody may have sought at once.
        known.into_iter().for_each(|(dc, endpoint, name)| say(broker, dc, endpoint, name, Ok(())));
    }

    /// Members of the cluster, this node among them.
    pub fn learned_members(&self, members: &BTreeMap<String, NodeRecord>) {
        *self.shared.pairs.lock() = members.values().map(|member| (NodeId(member.id), member.pairs)).collect();
    }

    /// What the broker took over from its predecessor. An endpoint of another node that the follower does not list
    /// ended meanwhile: that shows only if it was known.
    pub fn remember(&self, taken_over: &Snapshot) {
        let mut known = self.shared.known.lock();
        for info in &taken_over.dcs {
            for endpoint in &info.endpoints {
                if let Home::Remote { node } = endpoint.home {
                    let record = EndpointRecord { node: node.0, epoch: endpoint.epoch.0, pid: 0, name: None };
                    known.records.insert((info.dc.0, endpoint.endpoint.number()), record);
                }
            }
        }
    }

    /// The follower saw a record.
    pub fn learned(&self, broker: &Broker, key: Key, record: EndpointRecord) {
        let Some((dc, endpoint)) = ids(key) else { return };
        let before = self.shared.known.lock().records.insert(key, record);
        self.learned_name(key, (dc, endpoint), record);
        if record.node == self.shared.own.0 || before == Some(record) {
            return;
        }
        if let Err(error) = broker.remote_bound(dc, endpoint, NodeId(record.node), Epoch(record.epoch)) {
            // The container has no share here: nobody can ask for it.
            tracing::trace!(%dc, %endpoint, %error, "remote endpoint not taken");
        }
    }

    fn learned_name(&self, key: Key, (dc, endpoint): (DcId, Endpoint), record: EndpointRecord) {
        if record.node == self.shared.own.0 {
            // What is written of this node's own is known already, unless it was another's until now.
            let arrived = self.shared.known.lock().names.of(dc, endpoint);
            if let Some(name) = arrived.filter(|name| record.name == Some(*name)) {
                self.shared.is_called(key, Epoch(record.epoch), name);
            }
            self.shared.known.lock().names.end(dc, endpoint);
            return;
        }
        // First here, then gone there: in between, it is known from both.
        self.shared.known.lock().names.set(dc, endpoint, record.name);
        let mut pending = self.shared.pending.lock();
        pending.names.end(dc, endpoint);
        let taken = record.name.and_then(|name| pending.names.holder(dc, name));
        if let Some(before) = taken {
            pending.names.end(dc, before);
        }
    }

    /// The follower saw a record go.
    pub fn forgot(&self, broker: &Broker, key: Key) {
        let Some((dc, endpoint)) = ids(key) else { return };
        let before = {
            let mut known = self.shared.known.lock();
            known.names.end(dc, endpoint);
            known.records.remove(&key)
        };
        let Some(before) = before.filter(|before| before.node != self.shared.own.0) else { return };
        // One that was this node's may have been called something at the moment it left.
        self.shared.pending.lock().names.end(dc, endpoint);
        if let Err(error) = broker.remote_unbound(dc, endpoint, NodeId(before.node), Epoch(before.epoch)) {
            tracing::trace!(%dc, %endpoint, %error, "remote endpoint not taken away");
        }
    }

    /// The follower listed everything anew.
    pub fn learned_all(&self, broker: &Broker, all: &HashMap<Key, EndpointRecord>) {
        let gone: Vec<Key> =
            self.shared.known.lock().records.keys().filter(|key| !all.contains_key(key)).copied().collect();
        gone.into_iter().for_each(|key| self.forgot(broker, key));
        all.iter().for_each(|(key, record)| self.learned(broker, *key, *record));
    }

    /// A container begins here: tells the broker what is known of its endpoints elsewhere.
    pub fn introduce(&self, broker: &Broker, dc: u32) {
        let known: Vec<_> = self
            .shared
            .known
            .lock()
            .records
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
        self.shared.pending.lock().stopping = true;
        self.shared.added.notify_all();
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the directory's thread had panicked");
        }
    }
}

impl Shared {
    fn write_all(&self, engine: &dyn Engine) {
        while let Some((work, broker)) = self.next() {
            let broker = broker.as_deref();
            let failed = match work {
                Work::Write(key, write) => self.write(engine, key, write, broker),
                Work::Decide(key, wish) => self.decide(engine, key, wish, broker),
            };
            if failed {
                let mut pending = self.pending.lock();
                if !pending.stopping {
                    self.added.wait_for(&mut pending, RETRY);
                }
            }
        }
    }

    /// Whether it failed, and is to be done again.
    fn write(&self, engine: &dyn Engine, key: Key, write: Write, broker: Option<&Broker>) -> bool {
        match registry::store(engine, self.own, key, write) {
            Ok(name) => {
                if let (Write::Bound { epoch, .. }, Some(name)) = (write, name) {
                    self.is_called(key, epoch, name);
                    // Somebody may have sought it since a broker took over.
                    if let (Some(broker), Some((dc, endpoint))) = (broker, ids(key)) {
                        say(broker, dc, endpoint, name, Ok(()));
                    }
                }
                false
            }
            Err(error) => {
                tracing::warn!(dc = key.0, endpoint = key.1, %error, "cannot write where an endpoint lives");
                let has_ended = matches!(write, Write::Unbound(_) | Write::Bound { before: Before::Ended, .. });
                match self.pending.lock().writes.entry(key) {
                    Entry::Vacant(place) => {
                        place.insert(write);
                    }
                    // Anything newer said meanwhile counts.
                    Entry::Occupied(mut newer) => {
                        if let (Write::Bound { before, .. }, true) = (newer.get_mut(), has_ended) {
                            *before = Before::Ended;
                        }
                    }
                }
                true
            }
        }
    }

    /// Whether it failed, and is to be done again.
    fn decide(&self, engine: &dyn Engine, key: Key, wish: Wish, broker: Option<&Broker>) -> bool {
        let Some((dc, endpoint)) = ids(key) else { return false };
        let result = match registry::claim(engine, self.own, key, wish) {
            Ok(result) => result,
            Err(error) => {
                tracing::warn!(dc = key.0, endpoint = key.1, %error, "cannot write what an endpoint is called");
                // A newer one counts.
                self.pending.lock().wishes.entry(key).or_insert(wish);
                return true;
            }
        };
        if result.is_ok() {
            self.is_called(key, wish.epoch, wish.name);
        }
        if let Some(broker) = broker {
            say(broker, dc, endpoint, wish.name, result);
        }
        false
    }

    /// An endpoint of this node has a name, unless it ended meanwhile.
    fn is_called(&self, key: Key, epoch: Epoch, name: EndpointName) {
        let Some((dc, endpoint)) = ids(key) else { return };
        let mut pending = self.pending.lock();
        if !pending.has_ended(key, epoch) {
            pending.names.set(dc, endpoint, Some(name));
        }
    }

    /// Waits for something to do; `None` when it is time to end (what is pending then is swept at the next start).
    fn next(&self) -> Option<(Work, Option<Arc<Broker>>)> {
        let mut pending = self.pending.lock();
        loop {
            if pending.stopping {
                return None;
            }
            if let Some(work) = pending.next_work() {
                return Some((work, pending.broker.as_ref().and_then(Weak::upgrade)));
            }
            self.added.wait(&mut pending);
        }
    }
}

impl Directory for BrokerSide {
    fn locate(&mut self, dc: DcId, endpoint: Endpoint) -> Location {
        match self.0.known.lock().records.get(&(dc.0, endpoint.number())) {
            // Ours, but not bound any more, or the broker would not ask.
            Some(record) if record.node != self.0.own.0 => {
                Location::Remote { node: NodeId(record.node), epoch: Epoch(record.epoch) }
            }
            _ => Location::Unknown,
        }
    }

    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch) {
        let key = (dc.0, endpoint.number());
        let mut pending = self.0.pending.lock();
        let before = match pending.writes.get(&key) {
            Some(Write::Unbound(_) | Write::Bound { before: Before::Ended, .. }) => Before::Ended,
            _ => Before::Predecessor,
        };
        pending.writes.insert(key, Write::Bound { epoch, pid, before });
        self.0.added.notify_all();
    }

    fn find(&mut self, dc: DcId, pid: i32) -> Option<Endpoint> {
        let known = self.0.known.lock();
        let found = known
            .records
            .iter()
            .find(|(key, record)| key.0 == dc.0 && record.pid == pid && record.node != self.0.own.0);
        found.and_then(|(key, _)| Endpoint::new(key.1))
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch) {
        let key = (dc.0, endpoint.number());
        {
            let mut pending = self.0.pending.lock();
            pending.writes.insert(key, Write::Unbound(epoch));
            pending.wishes.remove(&key);
            pending.names.end(dc, endpoint);
        }
        self.0.added.notify_all();
        let mut known = self.0.known.lock();
        // A successor elsewhere, of whom the broker has not heard yet, keeps it.
        let has_successor = |record: &EndpointRecord| record.node != self.0.own.0 && record.epoch > epoch.0;
        if !known.records.get(&key).is_some_and(has_successor) {
            known.names.end(dc, endpoint);
        }
    }

    fn claim(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        epoch: Epoch,
        name: EndpointName,
        lost: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        let mut pending = self.0.pending.lock();
        match (pending.names.of(dc, endpoint), pending.names.holder(dc, name)) {
            (Some(own), _) if own == name => return Ok(Claim::Granted),
            (Some(_), _) => return Err(IpcError::TableFull),
            (None, Some(_)) => return Err(IpcError::EndpointInUse),
            (None, None) => {}
        }
        pending.wishes.insert((dc.0, endpoint.number()), Wish { epoch, name, lost });
        self.0.added.notify_all();
        Ok(Claim::UnderWay)
    }

    fn named(&mut self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        let own = self.0.pending.lock().names.holder(dc, name);
        own.or_else(|| self.0.known.lock().names.holder(dc, name))
    }

    fn name_of(&mut self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        let own = self.0.pending.lock().names.of(dc, endpoint);
        own.or_else(|| self.0.known.lock().names.of(dc, endpoint))
    }

    fn pairs(&self, node: NodeId) -> u8 {
        self.0.pairs.lock().get(&node).copied().unwrap_or(1)
    }
}

/// The next that may be taken, from the beginning again after the last one.
fn next_after<T>(table: &BTreeMap<Key, T>, last: Key, may: impl Fn(&Key) -> bool) -> Option<Key> {
    let behind = table.range((Bound::Excluded(last), Bound::Unbounded));
    behind.chain(table.iter()).map(|(key, _)| *key).find(may)
}

/// A broker that has ended, or has nothing of the container any more, need not hear it.
fn say(broker: &Broker, dc: DcId, endpoint: Endpoint, name: EndpointName, result: Result<(), IpcError>) {
    if let Err(error) = broker.name_claimed(dc, endpoint, name, result) {
        tracing::trace!(%dc, %endpoint, %error, "nobody hears of a name");
    }
}

fn ids((dc, endpoint): Key) -> Option<(DcId, Endpoint)> {
    Some((DcId(dc), Endpoint::new(endpoint)?))
}
