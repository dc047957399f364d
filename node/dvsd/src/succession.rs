//! Where disks with copies, file servers and key-value servers stand next, when the node of one was lost, or when a
//! disk gave way to a copy that knows more. Decided by the living node with the lowest number, as for services; every
//! change compares the records that it came from.
//!
//! The container's record says where a disk stands, the record of the disk which copy is primary. One transaction
//! changes both, and a disk server becomes primary of the next epoch only where the record says so. So two never stand
//! by turns. What the old one still does is refused: by the copies, which know a later epoch, and by clients, which
//! were told the epoch of the placement. And it answers nobody any more when its successor does: a primary reads under
//! leases of its copies, a file server under a hold of its disk.

pub mod copies;
pub mod disks;

use std::collections::{BTreeMap, BTreeSet};

use cluster::{Compare, Engine, EngineError, Lookup, Op, Outcome, Revision};
use mgmt_api::{
    DiskCopies, DiskCopy, DiskCopyState, DiskDifference, DiskVerification, Instance, Placement, ServerKind, Why,
};
use replica_core::{Replica, ReplicaRecord, ReplicaStanding, Verification, Verified};
use vos_api::desk::disk_of_key;
use vos_api::disk::BLOCK_BYTES;

use crate::desks;
use crate::kinds::{COPY, NBD};
use crate::ledger::Booking;
use crate::placer;
use crate::records::{self, DcRecord, Desired};

/// What is known of nodes.
pub trait NodeSight {
    /// The present incarnation is over.
    fn is_lost(&self, node: &str) -> bool;
    /// Alive, and not lost.
    fn is_there(&self, node: &str) -> bool;
}

/// Another placement, and what changes with it in the records of disks.
#[derive(Clone, PartialEq, Debug)]
struct Succession {
    placement: Placement,
    /// By the position of the disk.
    sets: BTreeMap<usize, ReplicaRecord>,
}

/// What is kept under the number of a container about its disks: by position, the record, its key, and since when it is
/// so.
type Sets = BTreeMap<usize, (ReplicaRecord, String, Revision)>;

fn sets(told: &dyn Lookup, dc: u32) -> Result<Sets, EngineError> {
    let prefix = desks::disks_prefix(dc);
    let mut sets = BTreeMap::new();
    for entry in told.list(&prefix)?.entries {
        let Some(index) = entry.key.strip_prefix(&prefix).and_then(disk_of_key) else { continue };
        sets.insert(index as usize, (records::decode(&entry)?, entry.key, entry.modified));
    }
    Ok(sets)
}

fn by_disk(known: &Sets) -> BTreeMap<usize, ReplicaRecord> {
    known.iter().map(|(index, (set, ..))| (*index, set.clone())).collect()
}

fn number_of(copy: &Instance) -> Option<Replica> {
    u8::try_from(copy.index).ok().map(Replica)
}

/// What people are told of the copies of its disks.
pub fn copies(told: &dyn Lookup, record: &DcRecord) -> Result<Vec<DiskCopies>, EngineError> {
    let instances = &record.placement.instances;
    let sets = sets(told, record.id)?;
    let disks = instances.iter().filter(|one| one.kind == ServerKind::DISK);
    let described = disks.filter_map(|disk| {
        let (set, ..) = sets.get(&disk.index)?;
        let copies = placer::copies_of(instances, disk).filter_map(|copy| {
            let number = number_of(copy)?;
            let state = match set.members.get(&number) {
                Some(ReplicaStanding::Current) if set.primary == number => DiskCopyState::Primary,
                Some(ReplicaStanding::Current) => DiskCopyState::Current,
                Some(ReplicaStanding::Behind { .. }) => DiskCopyState::Behind,
                // Its disk has not heard of it yet, or needs it no more.
                None => return None,
            };
            Some(DiskCopy { node: copy.node.clone(), state })
        });
        let verification = set.verification.as_ref().map(|it| verification(it, instances, disk));
        let (disk, copies) = (disk.volume.as_ref()?.name.clone(), copies.collect());
        Some(DiskCopies { disk, epoch: set.epoch, generation: set.generation, copies, verification })
    });
    Ok(described.collect())
}

fn verification(known: &Verification, instances: &[Instance], disk: &Instance) -> DiskVerification {
    let of_nodes = |found: &Verified| {
        let differs = |copy: &Instance| {
            let blocks = *found.different.get(&number_of(copy)?)?;
            Some(DiskDifference { node: copy.node.clone(), blocks })
        };
        placer::copies_of(instances, disk).filter_map(differs).collect()
    };
    let blocks = known.found.iter().flat_map(|found| &found.blocks);
    DiskVerification {
        asked_s: known.asked_s,
        repair: known.repair,
        found: known.found.as_ref().map(of_nodes),
        offsets: blocks.map(|block| block.saturating_mul(u64::from(BLOCK_BYTES))).collect(),
    }
}

/// Writes what follows for a container. `told`: what the engine's follower knows, with the records of its disks.
pub fn follow(
    engine: &dyn Engine,
    told: &dyn Lookup,
    (record, modified): (&DcRecord, Revision),
    sight: &dyn NodeSight,
) -> Result<(), EngineError> {
    let known = sets(told, record.id)?;
    let sets = by_disk(&known);
    let Some(next) = succeed(record, &sets, sight) else { return Ok(()) };
    // If it changed meanwhile, news come.
    write(engine, (record, modified), known, next, Booking::default()).map(drop)
}

/// `None`: something of it changed meanwhile. What is the same in the container's record is not written again.
fn write(
    engine: &dyn Engine,
    (record, modified): (&DcRecord, Revision),
    known: Sets,
    next: Succession,
    booking: Booking,
) -> Result<Option<DcRecord>, EngineError> {
    let key = records::dc_key(&record.spec.name);
    let Booking { mut compares, mut ops } = booking;
    compares.push(Compare::Modified { key: key.clone(), at: modified });
    let mut changed = record.clone();
    if next.placement != record.placement {
        changed = DcRecord { placement: next.placement, generation: record.generation + 1, ..changed };
        ops.push(Op::put(key, records::encode(&changed)));
    }
    for (index, (_, key, at)) in known {
        compares.push(Compare::Modified { key: key.clone(), at });
        ops.extend(next.sets.get(&index).map(|set| Op::put(key, records::encode(set))));
    }
    match engine.transact(&compares, &ops)? {
        Outcome::Done(_) => {
            tracing::info!(dc = record.spec.name, sets = ?next.sets, "servers or copies stand elsewhere");
            Ok(Some(changed))
        }
        Outcome::Conflict(_) => Ok(None),
    }
}

/// What became of a server that people want elsewhere.
pub enum Asked {
    /// The record that says so.
    Moves(Box<DcRecord>),
    StandsThere,
    Refused(Immovable),
    /// The record, or one of a disk, changed meanwhile: to be asked again.
    Changed,
}

/// Why a server does not stand elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Immovable {
    Unknown {
        known: Vec<String>,
    },
    EachNode,
    /// It has nothing anywhere else.
    DataThere {
        node: String,
    },
    NoCopy {
        nodes: Vec<String>,
    },
    /// The copy there misses something.
    Behind,
}

/// Has a server stand on a node, which is one of the container's.
pub fn ask(
    engine: &dyn Engine,
    (record, modified): (&DcRecord, Revision),
    server: &str,
    node: &str,
) -> Result<Asked, EngineError> {
    let known = sets(engine, record.id)?;
    let sets = by_disk(&known);
    let next = match moved(record, &sets, server, node) {
        Ok(next) if next.placement == record.placement => return Ok(Asked::StandsThere),
        Ok(next) => next,
        Err(why) => return Ok(Asked::Refused(why)),
    };
    let written = write(engine, (record, modified), known, next, Booking::default())?;
    Ok(written.map_or(Asked::Changed, |record| Asked::Moves(Box::new(record))))
}

fn moved(
    record: &DcRecord,
    sets: &BTreeMap<usize, ReplicaRecord>,
    server: &str,
    node: &str,
) -> Result<Succession, Immovable> {
    let mut next = Succession { placement: record.placement.clone(), sets: BTreeMap::new() };
    let instances = &record.placement.instances;
    let Some(one) = instances.iter().find(|one| one.name == server) else {
        let known: BTreeSet<&String> = instances.iter().map(|one| &one.name).collect();
        return Err(Immovable::Unknown { known: known.into_iter().cloned().collect() });
    };
    if one.why == Why::EachNode || one.kind == ServerKind::new(COPY) {
        return Err(Immovable::EachNode);
    }
    if one.node == node {
        return Ok(next);
    }
    let data_there = || Immovable::DataThere { node: one.node.clone() };
    if one.kind == ServerKind::DISK {
        let set = sets.get(&one.index).ok_or_else(data_there)?;
        let copies: Vec<&Instance> = placer::copies_of(instances, one).collect();
        let nodes = || copies.iter().map(|copy| copy.node.clone()).collect();
        let copy = copies.iter().find(|copy| copy.node == node).ok_or_else(|| Immovable::NoCopy { nodes: nodes() })?;
        let copy = number_of(copy).ok_or(Immovable::Behind)?;
        next.sets.insert(one.index, set.succeeded_by(copy).ok_or(Immovable::Behind)?);
        next.stand_with_its_server(instances, one, node, &Why::Asked);
        return Ok(next);
    }
    if one.kind.name() == NBD {
        next.stand(one, node, &Why::Asked);
        return Ok(next);
    }
    // Whatever is no file of its node it finds from anywhere.
    let disk = placer::disk_of_server(instances, one).ok_or_else(data_there)?;
    let disk = Some(disk).filter(|disk| disk.node == node);
    next.stand(one, node, &disk.map_or(Why::Asked, |disk| Why::Beside { server: disk.name.clone() }));
    Ok(next)
}

/// `None`: all stays as it is, or nobody is there who could succeed.
fn succeed(record: &DcRecord, sets: &BTreeMap<usize, ReplicaRecord>, sight: &dyn NodeSight) -> Option<Succession> {
    if record.desired != Desired::Running {
        return None;
    }
    let mut next = Succession { placement: record.placement.clone(), sets: BTreeMap::new() };
    let before = &record.placement.instances;
    for disk in before.iter().filter(|one| one.kind == ServerKind::DISK) {
        let Some(set) = sets.get(&disk.index) else { continue };
        if let Some((node, why, changed)) = place_of(before, disk, set, sight) {
            next.stand(disk, &node, &why);
            changed.into_iter().for_each(|set| drop(next.sets.insert(disk.index, set)));
        }
        let members = copies::members(before, disk, next.sets.get(&disk.index).unwrap_or(set));
        members.into_iter().for_each(|set| drop(next.sets.insert(disk.index, set)));
    }
    for server in before {
        let Some(disk) = placer::disk_of_server(&next.placement.instances, server).cloned() else { continue };
        let was_beside = placer::disk_of_server(before, server).is_some_and(|before| before.node == server.node);
        if disk.node == server.node || sight.is_lost(&disk.node) {
            continue;
        }
        if sight.is_lost(&server.node) {
            next.stand(server, &disk.node, &Why::Lost { node: server.node.clone() });
        } else if was_beside && server.why != Why::Asked {
            next.stand(server, &disk.node, &Why::Beside { server: disk.name });
        }
    }
    next.follow_with_exports(record, sight);
    (next.placement != record.placement || !next.sets.is_empty()).then_some(next)
}

/// Where a disk is to stand, if elsewhere; why; and its record, if that changes with it.
fn place_of(
    instances: &[Instance],
    disk: &Instance,
    set: &ReplicaRecord,
    sight: &dyn NodeSight,
) -> Option<(String, Why, Option<ReplicaRecord>)> {
    let node_of = |copy: Replica| {
        let copies = placer::copies_of(instances, disk);
        copies.into_iter().find(|one| number_of(one) == Some(copy)).map(|one| one.node.clone())
    };
    let primary = node_of(set.primary)?;
    if !sight.is_lost(&primary) {
        return (primary != disk.node).then_some((primary, Why::KnowsMore, None));
    }
    let (copy, node) =
        set.current().filter_map(|copy| Some((copy, node_of(copy)?))).find(|it| sight.is_there(&it.1))?;
    Some((node, Why::Lost { node: primary }, Some(set.succeeded_by(copy)?)))
}

impl Succession {
    /// A disk, and the server whose data it has with it when that stood beside it and was not asked for elsewhere.
    fn stand_with_its_server(&mut self, instances: &[Instance], disk: &Instance, node: &str, why: &Why) {
        self.stand(disk, node, why);
        let goes_with = |server: &&Instance| {
            let its = placer::disk_of_server(instances, server);
            its.is_some_and(|its| its.index == disk.index) && server.node == disk.node && server.why != Why::Asked
        };
        if let Some(server) = instances.iter().find(goes_with) {
            self.stand(server, node, &Why::Beside { server: disk.name.clone() });
        }
    }

    /// The gate for NBD goes to its first disk when its node is lost, unless people chose that node.
    fn follow_with_exports(&mut self, record: &DcRecord, sight: &dyn NodeSight) {
        let gates = record.placement.instances.iter().filter(|one| one.kind.name() == NBD);
        for gate in gates.filter(|gate| gate.why != Why::Asked && sight.is_lost(&gate.node)) {
            let exports = placer::exports(&record.spec, &self.placement.instances);
            let node = exports.first().map(|(disk, _)| disk.node.clone());
            if let Some(node) = node.filter(|node| !sight.is_lost(node)) {
                self.stand(gate, &node, &Why::Lost { node: gate.node.clone() });
            }
        }
    }

    fn stand(&mut self, server: &Instance, node: &str, why: &Why) {
        let is_meant = |one: &&mut Instance| one.kind == server.kind && one.index == server.index;
        if let Some(one) = self.placement.instances.iter_mut().find(is_meant) {
            one.node = node.to_owned();
            one.epoch += 1;
            one.why = why.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::KINDS;
    use crate::ledger::Accounts;

    #[derive(Default)]
    struct Nodes(Vec<&'static str>);

    impl NodeSight for Nodes {
        fn is_lost(&self, node: &str) -> bool {
            self.0.contains(&node)
        }

        fn is_there(&self, node: &str) -> bool {
            !self.is_lost(node)
        }
    }

    /// With copies 0 and 1 on n1 and n2.
    fn record(servers: serde_json::Value) -> DcRecord {
        record_with(servers, json!([{ "name": "root", "bytes": 1 << 30, "node": "n1", "replicas": 2 }]))
    }

    fn record_with(servers: serde_json::Value, disks: serde_json::Value) -> DcRecord {
        let spec = json!({ "name": "shop", "nodes": ["n1", "n2", "n3"], "disks": disks, "servers": servers });
        let wish = serde_json::from_value(spec.clone()).unwrap();
        let placement = placer::place(&wish, KINDS, &Accounts::new()).unwrap();
        let record = json!({
            "id": 7, "spec": spec, "placement": placement, "desired": { "kind": "running" }, "generation": 1,
            "created_s": 0,
        });
        serde_json::from_value(record).unwrap()
    }

    fn set() -> ReplicaRecord {
        ReplicaRecord::new(9, Replica(0), &[Replica(1)]).with(Replica(1))
    }

    fn next(record: &DcRecord, set: ReplicaRecord, lost: &[&'static str]) -> Option<Succession> {
        succeed(record, &BTreeMap::from([(0, set)]), &Nodes(lost.to_vec()))
    }

    fn stands<'a>(next: &'a Succession, kind: &ServerKind) -> (&'a str, u64) {
        let one = next.placement.first(kind).unwrap();
        (&one.node, one.epoch)
    }

    #[test]
    fn disk_of_a_lost_node_stands_beside_a_current_copy_and_its_file_server_with_it() {
        let record = record(json!([]));
        assert_eq!(next(&record, set(), &[]), None);
        assert_eq!(next(&record, set(), &["n2"]), None, "its primary goes on");
        let next_one = next(&record, set(), &["n1"]).unwrap();
        assert_eq!(stands(&next_one, &ServerKind::DISK), ("n2", 2));
        assert_eq!(stands(&next_one, &ServerKind::FS), ("n2", 2));
        assert_eq!((next_one.sets[&0].primary, next_one.sets[&0].epoch), (Replica(1), set().epoch + 1));
        // Decided: once more changes nothing.
        let decided = DcRecord { placement: next_one.placement.clone(), ..record.clone() };
        assert_eq!(next(&decided, next_one.sets[&0].clone(), &["n1"]), None);
        assert_eq!(next(&record, set(), &["n1", "n2"]), None, "nobody is there");
        let alone = set().without(&[Replica(1)]);
        assert_eq!(next(&record, alone, &["n1"]), None, "the other one misses something");
        let stopped = DcRecord { desired: Desired::Stopped { grace_ms: 0 }, ..record };
        assert_eq!(next(&stopped, set(), &["n1"]), None);
    }

    #[test]
    fn file_server_that_was_asked_for_elsewhere_stays_until_its_own_node_is_lost() {
        let record = record(json!([{ "kind": "fs", "node": "n3" }]));
        let moved = next(&record, set(), &["n1"]).unwrap();
        assert_eq!((stands(&moved, &ServerKind::DISK), stands(&moved, &ServerKind::FS)), (("n2", 2), ("n3", 1)));
        let moved = next(&record, set(), &["n3"]).unwrap();
        assert_eq!((stands(&moved, &ServerKind::DISK), stands(&moved, &ServerKind::FS)), (("n1", 1), ("n1", 2)));
    }

    #[test]
    fn people_move_what_can_stand_elsewhere() {
        let record = record(json!([]));
        let sets = |set| BTreeMap::from([(0, set)]);
        let both = sets(set());
        let moved = |server: &str, node: &str| moved(&record, &both, server, node);
        let away = moved("fs", "n3").unwrap();
        assert_eq!((stands(&away, &ServerKind::FS), stands(&away, &ServerKind::DISK)), (("n3", 2), ("n1", 1)));
        assert_eq!(away.placement.first(&ServerKind::FS).unwrap().why, Why::Asked);
        let disk = moved("disk-root", "n2").unwrap();
        assert_eq!((stands(&disk, &ServerKind::DISK), stands(&disk, &ServerKind::FS)), (("n2", 2), ("n2", 2)));
        assert_eq!(disk.sets[&0], set().succeeded_by(Replica(1)).unwrap());
        assert_eq!(moved("fs", "n1").unwrap().placement, record.placement, "it stands there");
        let back = DcRecord { placement: away.placement, ..record.clone() };
        let back = super::moved(&back, &both, "fs", "n1").unwrap();
        let beside = Why::Beside { server: "disk-root".to_owned() };
        assert_eq!(back.placement.first(&ServerKind::FS).unwrap().why, beside);
        let refused = |server, node| moved(server, node).unwrap_err();
        assert_eq!(refused("disk-root", "n3"), Immovable::NoCopy { nodes: vec!["n1".to_owned(), "n2".to_owned()] });
        assert!(matches!(refused("nope", "n2"), Immovable::Unknown { known } if known.contains(&"fs".to_owned())));
        let each = record.placement.instances.iter().filter(|one| one.why == Why::EachNode);
        assert!(each.into_iter().all(|one| refused(&one.name, "n2") == Immovable::EachNode));
        let alone = sets(set().without(&[Replica(1)]));
        assert_eq!(super::moved(&record, &alone, "disk-root", "n2"), Err(Immovable::Behind));
        let plain = super::moved(&record, &BTreeMap::new(), "disk-root", "n2");
        assert_eq!(plain, Err(Immovable::DataThere { node: "n1".to_owned() }));
    }

    #[test]
    fn file_server_goes_to_a_disk_that_has_no_copies() {
        let disks = json!([{ "name": "root", "bytes": 1 << 30, "node": "n2" }]);
        let record = record_with(json!([{ "kind": "fs", "node": "n1" }]), disks);
        let follows = |lost: &[&'static str]| succeed(&record, &BTreeMap::new(), &Nodes(lost.to_vec()));
        assert_eq!((follows(&[]), follows(&["n2"]), follows(&["n1", "n2"])), (None, None, None));
        let moved = follows(&["n1"]).unwrap();
        assert_eq!((stands(&moved, &ServerKind::DISK), stands(&moved, &ServerKind::FS)), (("n2", 1), ("n2", 2)));
        assert_eq!(moved.sets, BTreeMap::new());
    }

    #[test]
    fn gate_for_nbd_goes_with_its_disk_unless_people_chose_its_node() {
        let disks = json!([
            { "name": "root", "bytes": 1 << 30, "node": "n3" },
            { "name": "data", "bytes": 1 << 30, "node": "n1", "replicas": 2 },
        ]);
        let place = |node: Option<&str>| {
            let mut record = record_with(json!([{ "kind": "ds", "node": "n3" }]), disks.clone());
            record.spec.nbd = Some(mgmt_api::NbdSpec { node: node.map(str::to_owned), ..Default::default() });
            placer::renew_exporting(&record.spec, &mut record.placement.instances, KINDS, 5);
            record
        };
        let nbd = ServerKind::new(NBD);
        let (beside, asked) = (place(None), place(Some("n1")));
        assert_eq!(beside.placement.first(&nbd).map(|one| (one.node.as_str(), one.epoch)), Some(("n1", 5)));
        let sets = BTreeMap::from([(1, set())]);
        let next = |record: &DcRecord, lost: &[&'static str]| succeed(record, &sets, &Nodes(lost.to_vec()));
        assert_eq!(next(&beside, &[]), None);
        assert_eq!(stands(&next(&beside, &["n1"]).unwrap(), &nbd), ("n2", 6));
        assert_eq!(stands(&next(&asked, &["n1"]).unwrap(), &nbd), ("n1", 5));
        assert_eq!(stands(&moved(&asked, &sets, "nbd", "n3").unwrap(), &nbd), ("n3", 6));
    }

    #[test]
    fn store_goes_on_with_its_disk_and_where_people_want_it() {
        let open = record(json!([]));
        let place = |record: &DcRecord| {
            let store = placer::store_disk(&record.placement.instances).unwrap();
            let ds = record.placement.first(&ServerKind::DS).unwrap();
            (store.clone(), ds.clone())
        };
        let (disk, ds) = place(&open);
        let copies: Vec<Instance> = placer::copies_of(&open.placement.instances, &disk).cloned().collect();
        let [first, second] = [0, 1].map(|index: usize| number_of(&copies[index]).unwrap());
        let set = ReplicaRecord::new(9, first, &[second]).with(second);
        let sets = BTreeMap::from([(disk.index, set)]);
        let lost: &'static str = Box::leak(disk.node.clone().into_boxed_str());
        let next = succeed(&open, &sets, &Nodes(vec![lost])).unwrap();
        let after = DcRecord { placement: next.placement, ..open.clone() };
        let (moved_disk, moved_ds) = place(&after);
        assert_eq!((&moved_disk.node, &moved_ds.node), (&copies[1].node, &copies[1].node));
        assert_eq!((moved_disk.epoch, moved_ds.epoch), (disk.epoch + 1, ds.epoch + 1));
        // Its disk is found from anywhere; a store that is a file of its node is not.
        let elsewhere = ["n1", "n2", "n3"].into_iter().find(|node| *node != ds.node).unwrap();
        assert!(moved(&open, &sets, "ds", elsewhere).is_ok());
        let file = record_with(json!([]), json!([{ "name": "root", "bytes": 1 << 30, "node": "n1" }]));
        let (ds, other) = (file.placement.first(&ServerKind::DS).unwrap().node.clone(), "n1");
        assert_eq!(moved(&file, &BTreeMap::new(), "ds", other), Err(Immovable::DataThere { node: ds }));
    }

    #[test]
    fn disk_that_gave_way_stands_where_it_said() {
        let record = record(json!([]));
        let gave_way = set().succeeded_by(Replica(1)).unwrap();
        let moved = next(&record, gave_way.clone(), &[]).unwrap();
        assert_eq!(stands(&moved, &ServerKind::DISK), ("n2", 2));
        assert_eq!(moved.sets, BTreeMap::new(), "its record says so already");
        // To one that was lost meanwhile.
        assert_eq!(next(&record, gave_way, &["n2"]).unwrap().sets[&0].primary, Replica(0));
    }
}
