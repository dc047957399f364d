//! This node in the cluster: its number, its incarnation, its lease.
//!
//! The lease says that the daemon lives, nothing more: containers go on without it. When the lease is lost (the machine
//! was suspended, the engine was away) a new one is taken and everybody who puts leased keys is told to put them again.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cluster::lease::KeptLease;
use cluster::{Compare, Engine, EngineError, LeaseId, OPS_PER_TRANSACTION_MAX, Op, Outcome};
use parking_lot::Mutex;
use sandbox::links::Links;
use sandbox::overlay::NoIpv6;

use crate::config::Config;
use crate::level::{self, LevelError, Newcomer};
use crate::records::{self, DcKey, NodeHealth, NodeRecord};
use crate::transports::{self, Transport};

/// Slow backstop; links notice a dead node in a fraction of it.
const LEASE: Duration = Duration::from_secs(5);
/// Between attempts to come back, and the longest a stop waits for the thread.
const RETRY: Duration = Duration::from_millis(250);
/// Of IPv6, of one machine, in its record. Of one that has more, containers reach the doors at the others.
const ADDRESSES_MAX: usize = 512;
const NODE_IDS: std::ops::RangeInclusive<u32> = 1..=abi::limits::NODES_PER_CLUSTER as u32;

#[derive(Debug, thiserror::Error)]
pub enum PresenceError {
    #[error("no number for this node")]
    Number(#[source] cluster::allocate::AllocateError),
    #[error("node '{0}' was taken out of the cluster")]
    Removed(String),
    #[error("this release of dvs cannot be in the cluster as it is")]
    Level(#[from] LevelError),
    #[error("this node could not be registered")]
    Register(#[from] EngineError),
    #[error("no thread")]
    Thread(#[source] std::io::Error),
}

/// Takes the node's number and next incarnation and makes its record (not yet alive: [`Presence::start`]).
pub fn register(engine: &dyn Engine, config: &Config, ports: Ports) -> Result<NodeRecord, PresenceError> {
    if engine.read(&records::removed_key(&config.node))?.is_some() {
        return Err(PresenceError::Removed(config.node.clone()));
    }
    let id = cluster::allocate::number(engine, "node", &config.node, NODE_IDS).map_err(PresenceError::Number)?;
    let epoch = records::raise(engine, &format!("/epochs/node/{}", config.node))?;
    forget_shares(engine, &config.node)?;
    let own = Newcomer::own(&config.node);
    if let Err(why) = sandbox::overlay::ipv6_here(config.addresses().own()) {
        tracing::info!(%why, "containers have no IPv6 on this node");
    }
    let ipv6 = Ipv6OfNode::of_machine(config).unwrap_or_default();
    let record = NodeRecord {
        name: config.node.clone(),
        id: u16::try_from(id).unwrap_or(u16::MAX),
        epoch,
        address: config.advertise.to_string(),
        proxy_port: ports.proxy,
        proxy_quic_port: ports.proxy_quic,
        proxy_socket: config.transports.contains(&Transport::Unix).then(|| config.proxy_socket.display().to_string()),
        proxy_mac: ports.proxy_mac,
        proxy_tipc: ports.proxy_tipc,
        pairs: config.pairs,
        boot_id: transports::boot_id().to_owned(),
        api_port: ports.api,
        cpus: std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        cpu_list: cpu_list(),
        memory_bytes: memory_bytes(),
        release: own.release.clone(),
        records: own.reads,
        volumes: config.volumes.clone(),
        services: true,
        ipv6: ipv6.is_there,
        addresses_ipv6: ipv6.addresses,
    };
    let removed = records::removed_key(&record.name);
    loop {
        let (same_level, level) = level::admit(engine, &own)?;
        // Somebody may take it out at this moment.
        let compares = [Compare::Absent { key: removed.clone() }, same_level];
        let ops = [level, Op::put(records::member_key(&record.name), records::encode(&record))];
        if let Outcome::Done(_) = engine.transact(&compares, &ops)? {
            return Ok(record);
        }
        if engine.read(&removed)?.is_some() {
            return Err(PresenceError::Removed(record.name));
        }
        // The level rose, or another node came: both happen a few times in the life of a cluster.
    }
}

/// What a node's record says of IPv6.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Ipv6OfNode {
    /// Containers have it.
    is_there: bool,
    addresses: Vec<Ipv6Addr>,
}

impl Ipv6OfNode {
    fn of_machine(config: &Config) -> Result<Ipv6OfNode, NoIpv6> {
        let is_there = match sandbox::overlay::ipv6_here(config.addresses().own()) {
            // As it was: a node that has it for nobody for a moment would end all connections.
            Err(cause @ (NoIpv6::Unknown(_) | NoIpv6::Unread(_))) => return Err(cause),
            found => found.is_ok(),
        };
        let mut addresses = Links::here()?.addresses_ipv6()?;
        if addresses.len() > ADDRESSES_MAX {
            let more = addresses.len() - ADDRESSES_MAX;
            tracing::warn!(
                most = ADDRESSES_MAX,
                more,
                "containers with a way out are not kept from all addresses of IPv6"
            );
        }
        // The same ones, whatever the order.
        addresses.sort_unstable();
        addresses.truncate(ADDRESSES_MAX);
        Ok(Ipv6OfNode { is_there, addresses })
    }

    fn of_record(record: &NodeRecord) -> Ipv6OfNode {
        Ipv6OfNode { is_there: record.ipv6, addresses: record.addresses_ipv6.clone() }
    }
}

/// What the record says of IPv6 is brought to what is so. `known`: the record as this daemon was told of it.
pub fn follow_ipv6(engine: &dyn Engine, config: &Config, known: Option<NodeRecord>) -> Result<(), EngineError> {
    let is = match Ipv6OfNode::of_machine(config) {
        Ok(is) => is,
        Err(cause) => {
            tracing::warn!(%cause, "what this machine has of IPv6 cannot be found out");
            return Ok(());
        }
    };
    if known.is_none_or(|known| Ipv6OfNode::of_record(&known) == is) {
        return Ok(());
    }
    let key = records::member_key(&config.node);
    let Some((record, at)) = records::read::<NodeRecord>(engine, &key)? else { return Ok(()) };
    if Ipv6OfNode::of_record(&record) != is {
        tracing::info!(containers = is.is_there, addresses = ?is.addresses, "IPv6 of this node is another one");
        let record = NodeRecord { ipv6: is.is_there, addresses_ipv6: is.addresses, ..record };
        let same = Compare::Modified { key: key.clone(), at };
        // Who changed it meanwhile did not know this: it is said when this is called next.
        engine.transact(&[same], &[Op::put(key, records::encode(&record))])?;
    }
    Ok(())
}

/// What the daemon before said of containers: its lease may outlive the machine that ran them by seconds, in which
/// others would take this one for running them.
fn forget_shares(engine: &dyn Engine, node: &str) -> Result<(), EngineError> {
    let entries = engine.list(records::DCS)?.entries;
    let is_own = |key: &str| matches!(records::parse_dc_key(key), Some(DcKey::Share { node: of, .. }) if of == node);
    let stale: Vec<Op> = entries.into_iter().filter(|it| is_own(&it.key)).map(|it| Op::delete(it.key)).collect();
    stale.chunks(OPS_PER_TRANSACTION_MAX).try_for_each(|some| engine.transact(&[], some).map(drop))
}

#[derive(Clone, Debug)]
pub struct Ports {
    pub api: u16,
    pub proxy: u16,
    pub proxy_quic: u16,
    pub proxy_mac: Option<String>,
    pub proxy_tipc: Option<String>,
}

/// Keeps the node's lease; ends when dropped (the lease is then revoked).
pub struct Presence {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    engine: Arc<dyn Engine>,
    node: String,
    /// Keys and values that live as long as the node does.
    besides: Vec<(String, Vec<u8>)>,
    health: Mutex<NodeHealth>,
    lease: Mutex<Option<Arc<KeptLease>>>,
    stopping: AtomicBool,
}

impl Presence {
    /// `besides` are keys that live as long as the node does. `renewed` is called (on the thread of this) each time
    /// there is a new lease.
    pub fn start(
        engine: &Arc<dyn Engine>,
        node: &str,
        besides: Vec<(String, Vec<u8>)>,
        renewed: impl Fn() + Send + 'static,
    ) -> Result<Presence, PresenceError> {
        let shared = Arc::new(Shared {
            engine: Arc::clone(engine),
            node: node.to_owned(),
            besides,
            health: Mutex::default(),
            lease: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let lease = shared.come_alive()?;
        let also = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("presence".to_owned())
            .spawn(move || also.stay_alive(lease, &renewed))
            .map_err(PresenceError::Thread)?;
        Ok(Presence { shared, thread: Some(thread) })
    }

    /// `None` while there is none.
    pub fn lease(&self) -> Option<LeaseId> {
        self.shared.lease()
    }
}

/// Tells the cluster what is not well here. The engine may take its time; nobody who asks for the lease waits for it:
/// what this node says against an accusation would come too late.
pub fn report(of: &Mutex<Option<Presence>>, health: NodeHealth) {
    let Some(shared) = of.lock().as_ref().map(|presence| Arc::clone(&presence.shared)) else { return };
    let changed = std::mem::replace(&mut *shared.health.lock(), health.clone()) != health;
    if let (true, Some(lease)) = (changed, shared.lease())
        && let Err(error) = shared.put(lease)
    {
        tracing::warn!(%error, "cannot report this node's health");
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the presence thread had panicked");
        }
        self.shared.lease.lock().take();
    }
}

impl Shared {
    fn lease(&self) -> Option<LeaseId> {
        self.lease.lock().as_ref().filter(|lease| lease.is_running()).map(|lease| lease.id())
    }

    fn come_alive(&self) -> Result<Arc<KeptLease>, EngineError> {
        let lease = KeptLease::hold(&self.engine, LEASE)?;
        self.put(lease.id())?;
        *self.lease.lock() = Some(Arc::clone(&lease));
        Ok(lease)
    }

    fn put(&self, lease: LeaseId) -> Result<(), EngineError> {
        let health = self.health.lock().clone();
        let own = (records::node_key(&self.node), records::encode(&health));
        let all = std::iter::once(&own).chain(&self.besides);
        let ops: Vec<Op> = all.map(|(key, value)| Op::put_leased(&**key, value.clone(), lease)).collect();
        self.engine.transact(&[], &ops).map(|_| ())
    }

    fn stay_alive(&self, mut lease: Arc<KeptLease>, renewed: &impl Fn()) {
        while !self.stopping.load(Ordering::Acquire) {
            if !lease.wait_lost(RETRY) {
                continue;
            }
            tracing::warn!("this node's lease was lost; taking a new one");
            match self.come_alive() {
                Ok(fresh) => {
                    lease = fresh;
                    renewed();
                }
                Err(error) => {
                    tracing::warn!(%error, "no new lease yet");
                    // A lost lease answers at once; this is the pause between attempts.
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}

fn cpu_list() -> String {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    list.trim().to_owned()
}

fn memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib =
        info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use cluster::Lookup;
    use cluster::local::{LocalConfig, LocalEngine};
    use cluster::steered::{Course, EngineCall, Steered};

    use super::*;

    #[test]
    fn node_that_begins_says_nothing_yet_of_any_container() {
        let place = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let config = LocalConfig::new(place.path().join("engine.db"), place.path().join("volatile"));
        let engine = LocalEngine::open(config).expect("an engine");
        let keys = [records::dc_key("n1"), records::share_key("n1", "n1"), records::share_key("n1", "n2")];
        let ops: Vec<Op> = keys.iter().map(|key| Op::put(&**key, b"{}".to_vec())).collect();
        engine.transact(&[], &ops).expect("written");
        forget_shares(&engine, "n1").expect("forgotten");
        let left: Vec<String> =
            engine.list(records::DCS).expect("listed").entries.into_iter().map(|it| it.key).collect();
        assert_eq!(left, [keys[0].clone(), keys[2].clone()]);
    }

    #[test]
    fn lease_is_told_while_the_engine_takes_its_time_for_a_report() {
        let place = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let config = LocalConfig::new(place.path().join("engine.db"), place.path().join("volatile"));
        let ((began, has_begun), (go, go_on)) = (channel(), channel());
        let (is_slow, go_on) = (Arc::new(AtomicBool::new(false)), Mutex::new(go_on));
        let also = Arc::clone(&is_slow);
        // Once it is told to, it answers no transaction before it may.
        let slow = Steered::new(LocalEngine::open(config).expect("an engine"), move |call| {
            if call == EngineCall::Transact && also.load(Ordering::Acquire) {
                began.send(()).expect("somebody listens");
                go_on.lock().recv().expect("somebody says so");
            }
            Course::Happens
        });
        let engine: Arc<dyn Engine> = Arc::new(slow);
        let presence = Mutex::new(Some(Presence::start(&engine, "n1", Vec::new(), || ()).expect("a lease")));
        is_slow.store(true, Ordering::Release);
        std::thread::scope(|scope| {
            let health = NodeHealth { problems: vec!["something".to_owned()], ..NodeHealth::default() };
            scope.spawn(|| report(&presence, health));
            has_begun.recv().expect("it reports");
            let free = presence.try_lock().map(|presence| presence.as_ref().and_then(Presence::lease).is_some());
            is_slow.store(false, Ordering::Release);
            go.send(()).expect("it waits");
            assert_eq!(free, Some(true));
        });
    }
}
