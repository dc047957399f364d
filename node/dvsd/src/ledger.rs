//! What the nodes have for containers, and what of it they promised.
//!
//! A node writes what it has (`/capacity/NODE`). What it promised to all containers together (`/ledger/NODE`) changes
//! only in the transaction that makes or removes the container, which compares it: of two who want the last of
//! something, one gets it, and the other looks again. What each container was promised is in its placement.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

use abi::limits::DCS_PER_CLUSTER;
use cluster::{Compare, Engine, EngineError, Listing, Lookup, Op, Outcome, Revision, listed};
use mgmt_api::{Capacity, DiskStore, ErrorBody, ErrorKind, Promise, Volume};

use crate::config::Config;
use crate::placer;
use crate::reconcile;
use crate::records::{self, DCS, DcKey, DcRecord, Desired};
use crate::space;

const CAPACITY: &str = "/capacity/";
const LEDGER: &str = "/ledger/";
/// Where accounts lie.
pub const ACCOUNTS: [&str; 2] = [CAPACITY, LEDGER];
/// Of the capacity for disks: smaller changes are not published.
const DISK_STEP: u64 = 16 << 20;
/// What `st_blocks` counts.
const STAT_BLOCK: u64 = 512;

/// How a node stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Absent: it never said what it has. Then it refuses nothing before a container is started.
    pub capacity: Option<Capacity>,
    pub promised: Promise,
    /// When `promised` was changed last.
    at: Option<Revision>,
}

pub type Accounts = BTreeMap<String, Account>;

/// What a node cannot promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortage {
    pub node: String,
    pub of: Resource,
    pub wanted: u64,
    pub left: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    Containers,
    Memory,
    Disk,
}

/// Holds as long as nothing is promised on the node, or given back.
pub fn unchanged(engine: &dyn Lookup, node: &str) -> Result<Compare, EngineError> {
    let key = format!("{LEDGER}{node}");
    Ok(match engine.read(&key)? {
        Some(entry) => Compare::Modified { key, at: entry.modified },
        None => Compare::Absent { key },
    })
}

/// The node is no part of the cluster any more.
pub fn forget(node: &str) -> [Op; 2] {
    [Op::delete(format!("{CAPACITY}{node}")), Op::delete(format!("{LEDGER}{node}"))]
}

impl Account {
    #[cfg(test)]
    pub fn new(capacity: Capacity, promised: Promise) -> Account {
        Account { capacity: Some(capacity), promised, at: None }
    }

    /// What can still be promised.
    pub fn left(&self) -> Promise {
        let whole = self.capacity.map_or(
            Promise { containers: u64::MAX, memory_bytes: u64::MAX, disk_bytes: u64::MAX },
            |it| {
                let Capacity { containers, memory_bytes, disk_bytes, .. } = it;
                Promise { containers, memory_bytes, disk_bytes: disk_bytes.unwrap_or(u64::MAX) }
            },
        );
        whole.minus(self.promised)
    }

    pub fn admits(&self, node: &str, wanted: &Promise) -> Result<(), Shortage> {
        let left = self.left();
        let resources = [
            (Resource::Containers, wanted.containers, left.containers),
            (Resource::Memory, wanted.memory_bytes, left.memory_bytes),
            (Resource::Disk, wanted.disk_bytes, left.disk_bytes),
        ];
        match resources.into_iter().find(|(_, wanted, left)| wanted > left) {
            None => Ok(()),
            Some((of, wanted, left)) => Err(Shortage { node: node.to_owned(), of, wanted, left }),
        }
    }
}

impl Shortage {
    /// What people are told who wanted a container of this name.
    pub fn refusal(&self, dc: &str) -> ErrorBody {
        let Shortage { node, of, wanted, left } = self;
        let (what, why, hint) = match of {
            Resource::Containers => (
                format!("node {node} has no place for container '{dc}'"),
                "it has as many containers as it can have".to_owned(),
                "other --nodes, or dvs dc delete one of its containers".to_owned(),
            ),
            Resource::Memory => (
                format!("node {node} cannot promise the memory of container '{dc}'"),
                format!("it is to have {} MiB, and {} MiB there are not promised yet", wanted >> 20, left >> 20),
                format!("a smaller --memory, other --nodes, or dvs node inspect {node}"),
            ),
            Resource::Disk => (
                format!("the disks of container '{dc}' do not fit on node {node}"),
                format!("they have {} MiB, and {} MiB there are not promised yet", wanted >> 20, left >> 20),
                NO_DISK.to_owned(),
            ),
        };
        ErrorBody::new(ErrorKind::NoSpace, what).because(why).hint(hint)
    }
}

/// What to try when disks do not fit.
pub const NO_DISK: &str =
    "a smaller --disk, another --disk-node, or --sparse (space is taken as it is used, and may run out)";

fn ledger_key(node: &str) -> String {
    format!("{LEDGER}{node}")
}

pub fn accounts(engine: &dyn Lookup) -> Result<Accounts, EngineError> {
    accounts_in(&listed(engine, ACCOUNTS)?)
}

/// What is listed below [`ACCOUNTS`], perhaps among others.
pub fn accounts_in(listings: &[Listing]) -> Result<Accounts, EngineError> {
    let mut accounts = Accounts::new();
    for entry in listings.iter().flat_map(|listing| &listing.entries) {
        if let Some(node) = entry.key.strip_prefix(CAPACITY) {
            accounts.entry(node.to_owned()).or_default().capacity = Some(records::decode(entry)?);
        } else if let Some(node) = entry.key.strip_prefix(LEDGER) {
            let account = accounts.entry(node.to_owned()).or_default();
            (account.promised, account.at) = (records::decode(entry)?, Some(entry.modified));
        }
    }
    Ok(accounts)
}

/// A part of a transaction: what changes with the container, and what must not have changed since it was read.
#[derive(Default)]
pub struct Booking {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Promise,
    GiveBack,
}

pub fn book(accounts: &Accounts, promised: &BTreeMap<String, Promise>, change: Change) -> Booking {
    let mut booking = Booking::default();
    for (node, promise) in promised {
        let key = ledger_key(node);
        let account = accounts.get(node).cloned().unwrap_or_default();
        let all = match change {
            Change::Promise => account.promised.plus(*promise),
            Change::GiveBack => account.promised.minus(*promise),
        };
        booking.compares.push(match account.at {
            Some(at) => Compare::Modified { key: key.clone(), at },
            None => Compare::Absent { key: key.clone() },
        });
        booking.ops.push(Op::put(key, records::encode(&all)));
    }
    booking
}

/// Tells the others what this node has, when that is no more what it `said` before. Gives what they know then.
pub fn publish(engine: &dyn Engine, config: &Config, said: Option<Capacity>) -> Result<Capacity, EngineError> {
    let has = capacity(config);
    if let Some(said) = said.filter(|said| is_much_the_same(*said, has)) {
        return Ok(said);
    }
    engine.transact(&[], &[Op::put(format!("{CAPACITY}{}", config.node), records::encode(&has))])?;
    Ok(has)
}

/// What others write to the disk is not worth a message each time.
fn is_much_the_same(one: Capacity, other: Capacity) -> bool {
    let disk = one.disk_bytes.unwrap_or(u64::MAX).abs_diff(other.disk_bytes.unwrap_or(u64::MAX));
    disk < DISK_STEP && Capacity { disk_bytes: None, ..one } == Capacity { disk_bytes: None, ..other }
}

fn capacity(config: &Config) -> Capacity {
    Capacity {
        containers: u64::from(DCS_PER_CLUSTER),
        memory_bytes: sandbox::cgroup::Capacity::of_this_node().memory_of_all(),
        disk_bytes: disk_bytes(config),
        cpus: std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
    }
}

/// What images have and may still take.
fn disk_bytes(config: &Config) -> Option<u64> {
    let is_memory = File::open(&config.state_dir).is_ok_and(space::is_memory);
    if is_memory {
        return None;
    }
    // One that is made or removed meanwhile is rather left out than counted with the space that it had.
    let before = held_by_images(config);
    let free = space::Space::at(&config.state_dir).ok()?.for_images();
    Some(free.saturating_add(before.min(held_by_images(config))))
}

/// By images whose space is promised.
fn held_by_images(config: &Config) -> u64 {
    let blocks = |record: DcRecord| {
        let images = config.dc_state_dir(record.id).join("images");
        let of = |volume: &Volume| {
            let metadata = std::fs::metadata(images.join(volume.file())).ok()?;
            Some(metadata.blocks().saturating_mul(STAT_BLOCK).min(volume.bytes))
        };
        let here = placer::images(&record.placement.instances).filter(|(node, _)| **node == config.node);
        let volumes = here.map(|(_, volume)| volume).filter(|volume| volume.store == DiskStore::Image);
        volumes.filter_map(of).sum::<u64>()
    };
    reconcile::remembered(config).into_iter().map(blocks).sum()
}

/// Takes into the ledger what containers have that an earlier daemon made without one. What they have they keep, also
/// when it is more than there is.
pub fn adopt(engine: &dyn Engine) -> Result<(), EngineError> {
    for entry in engine.list(DCS)?.entries {
        let Some(DcKey::Record(dc)) = records::parse_dc_key(&entry.key) else { continue };
        let key = records::dc_key(dc);
        // Whoever changes the record meanwhile leaves it as it is in this respect.
        while let Some((mut record, at)) = records::read::<DcRecord>(engine, &key)? {
            // What is being deleted has given it back, or never had it.
            if !record.placement.promised.is_empty() || matches!(record.desired, Desired::Deleted { .. }) {
                break;
            }
            record.placement.promised = placer::promises(&record.spec, &record.placement.instances);
            let mut booking = book(&accounts(engine)?, &record.placement.promised, Change::Promise);
            booking.compares.push(Compare::Modified { key: key.clone(), at });
            booking.ops.push(Op::put(&*key, records::encode(&record)));
            if let Outcome::Done(_) = engine.transact(&booking.compares, &booking.ops)? {
                tracing::info!(dc, "taken into the ledger of promises");
                break;
            }
        }
    }
    Ok(())
}
