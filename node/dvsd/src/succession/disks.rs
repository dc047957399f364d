//! Disks that are made, made larger and removed after their container.
//!
//! A disk that is made gets a position that was not given for the longest time, and a serial number that is in the
//! names of its files: what a node that was away has left of an earlier one of its name is never taken for it. One that
//! is removed is placed no more, and nodes that see that end its servers and remove its images. One with copies is made
//! larger in two steps: first all copies, then the disk, so whoever writes behind its earlier end meets no copy that
//! ends there. When the file tree is on it the file server follows.

use std::collections::{BTreeMap, BTreeSet};

use abi::limits::DISKS_PER_DC;
use cluster::{Engine, EngineError, Op, Revision};
use mgmt_api::{DcSpec, DiskSpec, Instance, Promise, ServerKind, Volume};

use super::copies::{self, CopyRefusal};
use super::{Succession, sets};
use crate::kinds::{COPY, KINDS};
use crate::ledger::{self, Accounts, Booking, Change, Shortage};
use crate::placer;
use crate::records::{DcRecord, Desired};

/// What became of a wish about disks.
pub enum DiskAsked {
    /// The record that says so.
    Placed(Box<DcRecord>),
    IsSo,
    Refused(DiskRefusal),
    /// Something changed meanwhile: to be asked again.
    Changed,
}

/// Why disks stay as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DiskRefusal {
    NoDisk {
        known: Vec<String>,
    },
    /// Another one has its name.
    Exists,
    /// All positions, or numbers of copies, are given away.
    TooMany,
    NoRoom(Shortage),
    /// For so many copies.
    FewNodes {
        usable: Vec<String>,
    },
    /// The file tree is on it.
    IsTree,
    /// The key-value server has its file there.
    IsStore,
    /// Clients of NBD have it.
    IsExported,
    /// Its nodes do not look.
    Stopped,
    /// It has more.
    WouldShrink {
        bytes: u64,
    },
}

impl From<CopyRefusal> for DiskRefusal {
    fn from(why: CopyRefusal) -> DiskRefusal {
        match why {
            CopyRefusal::NoDisk { known } => DiskRefusal::NoDisk { known },
            _ => DiskRefusal::TooMany,
        }
    }
}

/// What no other disk has: of itself, and of the set of its copies.
#[derive(Clone, Copy)]
pub struct Drawn {
    pub serial: u64,
    pub set: u64,
}

/// The part of making a disk larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Of a disk that has some.
    Copies,
    Disk,
    /// What is not used yet is as before.
    BackTo(u64),
    /// The file server, if the tree is on it: a volume is as large as its disk once it is opened anew.
    Tree,
}

/// A record as it is to be, and what nodes promise more or less.
type Changed = Result<Option<(DcRecord, BTreeMap<String, Promise>)>, DiskRefusal>;

/// A disk more, on nodes that are `usable`, which are some of the container's.
pub fn create(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    wanted: &DiskSpec,
    usable: &[String],
    drawn: Drawn,
) -> Result<DiskAsked, EngineError> {
    let accounts = ledger::accounts(engine)?;
    place(engine, at, &accounts, with_disk(at.0, wanted, (usable, &accounts), drawn), Change::Promise)
}

pub fn delete(engine: &dyn Engine, at: (&DcRecord, Revision), disk: &str) -> Result<DiskAsked, EngineError> {
    place(engine, at, &ledger::accounts(engine)?, without_disk(at.0, disk), Change::GiveBack)
}

pub fn grow(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    disk: &str,
    bytes: u64,
    step: Step,
) -> Result<DiskAsked, EngineError> {
    let change = if let Step::BackTo(_) = step { Change::GiveBack } else { Change::Promise };
    place(engine, at, &ledger::accounts(engine)?, grown(at.0, disk, bytes, step), change)
}

fn place(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    accounts: &Accounts,
    changed: Changed,
    change: Change,
) -> Result<DiskAsked, EngineError> {
    let (next, promised) = match changed {
        Ok(Some(changed)) => changed,
        Ok(None) => return Ok(DiskAsked::IsSo),
        Err(why) => return Ok(DiskAsked::Refused(why)),
    };
    if change == Change::Promise {
        for (node, promise) in &promised {
            if let Some(Err(shortage)) = accounts.get(node).map(|account| account.admits(node, promise)) {
                return Ok(DiskAsked::Refused(DiskRefusal::NoRoom(shortage)));
            }
        }
    }
    let known = sets(engine, at.0.id)?;
    let Booking { compares, mut ops } = ledger::book(accounts, &promised, change);
    // The record of a disk goes with it.
    let is_there = |index: &usize| next.placement.instances.iter().any(|one| is_disk(one) && one.index == *index);
    ops.extend(known.iter().filter(|(index, _)| !is_there(index)).map(|(_, (_, key, _))| Op::delete(key.clone())));
    let record = DcRecord { spec: next.spec, tree_bytes: next.tree_bytes, ..at.0.clone() };
    let changed = Succession { placement: next.placement, sets: BTreeMap::new() };
    let written = super::write(engine, (&record, at.1), known, changed, Booking { compares, ops })?;
    Ok(written.map_or(DiskAsked::Changed, |record| DiskAsked::Placed(Box::new(record))))
}

fn is_disk(one: &Instance) -> bool {
    one.kind == ServerKind::DISK
}

/// The description of a container that has this disk as well. What it has itself is described then.
pub fn described(spec: &DcSpec, wanted: &DiskSpec) -> DcSpec {
    let mut spec = spec.clone();
    spec.disks = placer::disks(&spec);
    spec.disks.push(wanted.clone());
    spec
}

/// The description of a container whose disk of this name has so many bytes.
pub fn resized(spec: &DcSpec, name: &str, bytes: u64) -> DcSpec {
    let mut spec = spec.clone();
    spec.disks = placer::disks(&spec);
    spec.disks.iter_mut().filter(|one| one.name == name).for_each(|one| one.bytes = bytes);
    spec
}

/// Whether the container has none of this name.
pub fn is_new(record: &DcRecord, name: &str) -> bool {
    copies::disk_named(record, name).is_err()
}

fn with_disk(
    record: &DcRecord,
    wanted: &DiskSpec,
    (usable, accounts): (&[String], &Accounts),
    drawn: Drawn,
) -> Changed {
    if let Ok(there) = copies::disk_named(record, &wanted.name) {
        return if is_so(record, there, wanted) { Ok(None) } else { Err(DiskRefusal::Exists) };
    }
    let mut next = record.clone();
    let exported: Vec<String> = names(&placer::exports(&record.spec, &record.placement.instances));
    next.spec = described(&record.spec, wanted);
    // It is served over NBD when somebody wants it to be.
    next.spec.nbd.iter_mut().filter(|nbd| nbd.disks.is_empty()).for_each(|nbd| nbd.disks.clone_from(&exported));
    let instances = &mut next.placement.instances;
    let wish = DcSpec { nodes: usable.to_vec(), ..record.spec.clone() };
    let nodes = placer::nodes_of_another_disk(&wish, accounts, instances, wanted);
    if nodes.len() < usize::from(wanted.replicas.unwrap_or(1)) {
        return Err(DiskRefusal::FewNodes { usable: usable.to_vec() });
    }
    let (Some((node, why)), Some(kind)) =
        (nodes.first(), KINDS.iter().find(|kind| ServerKind::DISK.name() == kind.name))
    else {
        return Err(DiskRefusal::TooMany);
    };
    let taken: BTreeSet<usize> = instances.iter().filter(|one| is_disk(one)).map(|one| one.index).collect();
    let mut of_people = taken.iter().filter(|index| **index != placer::STORE_DISK_INDEX);
    let after = of_people.next_back().map_or(0, |last| last + 1);
    let mut positions = (after..DISKS_PER_DC as usize).chain(1..after);
    let index = positions.find(|index| !taken.contains(index)).ok_or(DiskRefusal::TooMany)?;
    let set = wanted.is_replicated().then_some(drawn.set);
    let volume = Volume { serial: Some(drawn.serial), set, ..placer::volume_of(wanted) };
    let name = format!("{}-{}", kind.name, wanted.name);
    let disk = placer::instance(kind, index, name, (node.clone(), why.clone()), Some(volume));
    // Whoever had this position before it was placed earlier.
    let epoch = record.generation + 1;
    let disk = disk.map(|disk| Instance { epoch, ..disk }).ok_or(DiskRefusal::TooMany)?;
    let behind = instances.iter().rposition(is_disk).map_or(instances.len(), |last| last + 1);
    instances.insert(behind, disk.clone());
    if wanted.is_replicated() {
        nodes.iter().try_for_each(|(node, why)| copies::add_copy(instances, &disk, node, why, drawn.set))?;
    }
    let more = of_disk(placer::set_aside(wanted));
    let promised = nodes.into_iter().map(|(node, _)| (node, more)).collect();
    change_promises(&mut next, &promised, Promise::plus);
    Ok(Some((next, promised)))
}

/// Whether the disk of its name is the one that is wanted.
fn is_so(record: &DcRecord, there: &Instance, wanted: &DiskSpec) -> bool {
    let copies = placer::copies_of(&record.placement.instances, there).count().max(1);
    let of_disk = there.volume.as_ref().map(|volume| (volume.bytes, &volume.store));
    there.index > 0
        && of_disk == Some((wanted.bytes, &wanted.store))
        && wanted.replicas.is_none_or(|wanted| copies == usize::from(wanted))
        && wanted.node.as_ref().is_none_or(|node| *node == there.node)
}

fn names(exports: &[(&Instance, bool)]) -> Vec<String> {
    exports.iter().filter_map(|(disk, _)| Some(disk.volume.as_ref()?.name.clone())).collect()
}

fn of_disk(disk_bytes: u64) -> Promise {
    Promise { disk_bytes, ..Promise::default() }
}

fn change_promises(record: &mut DcRecord, by: &BTreeMap<String, Promise>, join: fn(Promise, Promise) -> Promise) {
    for (node, promise) in by {
        let of_node = record.placement.promised.entry(node.clone()).or_default();
        *of_node = join(*of_node, *promise);
    }
}

fn without_disk(record: &DcRecord, disk: &str) -> Changed {
    let disk = copies::disk_named(record, disk)?.clone();
    if disk.index == 0 {
        return Err(DiskRefusal::IsTree);
    }
    if placer::is_store(&disk) {
        return Err(DiskRefusal::IsStore);
    }
    let exports = placer::exports(&record.spec, &record.placement.instances);
    if exports.iter().any(|(exported, _)| exported.index == disk.index) {
        return Err(DiskRefusal::IsExported);
    }
    if record.desired != Desired::Running {
        return Err(DiskRefusal::Stopped);
    }
    let Some(volume) = &disk.volume else { return Ok(None) };
    let mut next = record.clone();
    next.spec.disks.retain(|one| one.name != volume.name);
    let is_of_it = |one: &Instance| {
        let is_image = one.kind == ServerKind::DISK || one.kind.name() == COPY;
        is_image && one.volume.as_ref().is_some_and(|it| it.name == volume.name)
    };
    next.placement.instances.retain(|one| !is_of_it(one));
    let less = of_disk(copies::bytes_of(&disk));
    let given_back = nodes_with_images(record, &disk).into_iter().map(|node| (node, less)).collect();
    change_promises(&mut next, &given_back, Promise::minus);
    Ok(Some((next, given_back)))
}

/// Where its copies are, or itself.
pub fn nodes_with_images(record: &DcRecord, disk: &Instance) -> Vec<String> {
    let copies: Vec<String> =
        placer::copies_of(&record.placement.instances, disk).map(|copy| copy.node.clone()).collect();
    if copies.is_empty() { vec![disk.node.clone()] } else { copies }
}

/// Of a tree on a disk of so many bytes.
fn with_new_file_server(record: &DcRecord, bytes: u64) -> DcRecord {
    let mut next = DcRecord { tree_bytes: Some(bytes), ..record.clone() };
    let servers = next.placement.instances.iter_mut().filter(|one| one.kind == ServerKind::FS);
    servers.for_each(|one| one.epoch += 1);
    next
}

fn grown(record: &DcRecord, disk: &str, bytes: u64, step: Step) -> Changed {
    let disk = copies::disk_named(record, disk)?.clone();
    let Some(volume) = &disk.volume else { return Ok(None) };
    if placer::is_store(&disk) {
        return Err(DiskRefusal::IsStore);
    }
    if step == Step::Tree {
        // A file server that has begun since the disk has its size is left alone: everybody waits for a new one.
        let has_taken_it = volume.grown_from.is_none() || record.tree_bytes == Some(volume.bytes);
        let is_due = disk.index == 0 && !has_taken_it;
        return Ok(is_due.then(|| (with_new_file_server(record, volume.bytes), BTreeMap::new())));
    }
    let is_back = matches!(step, Step::BackTo(_));
    if bytes < volume.bytes {
        return Err(DiskRefusal::WouldShrink { bytes: volume.bytes });
    }
    let to = if let Step::BackTo(earlier) = step { earlier } else { bytes };
    let has_copies = placer::copies_of(&record.placement.instances, &disk).next().is_some();
    let mut next = record.clone();
    let mut booked = BTreeMap::new();
    for one in &mut next.placement.instances {
        let is_image = if has_copies { one.kind.name() == COPY } else { is_disk(one) };
        // A container that is stopped follows with its next start, all at once.
        let is_last = step == Step::Disk || record.desired != Desired::Running;
        let is_meant = is_image || is_disk(one) && is_last && !is_back;
        let Some(it) = one.volume.as_mut().filter(|it| is_meant && it.name == volume.name) else { continue };
        let is_changed = if is_back { it.bytes == bytes } else { it.bytes < to };
        if !is_changed {
            continue;
        }
        if is_image && it.store == mgmt_api::DiskStore::Image {
            booked.insert(one.node.clone(), of_disk(to.abs_diff(it.bytes)));
        }
        it.grown_from = Some(it.grown_from.unwrap_or(it.bytes).min(volume.bytes));
        it.bytes = to;
    }
    // It is so, whether the description names the disk or leaves it to us.
    if next.placement == record.placement {
        return Ok(None);
    }
    change_promises(&mut next, &booked, if is_back { Promise::minus } else { Promise::plus });
    next.spec = resized(&record.spec, &volume.name, to);
    // Who is connected over NBD knows the earlier end.
    let exports = placer::exports(&next.spec, &next.placement.instances);
    let is_exported = exports.iter().any(|(exported, _)| exported.index == disk.index);
    let is_larger = next.placement.instances.iter().any(|one| {
        is_disk(one) && one.index == disk.index && one.volume.as_ref().is_some_and(|it| it.bytes > volume.bytes)
    });
    if is_exported && is_larger {
        let generation = record.generation + 1;
        placer::renew_exporting(&next.spec, &mut next.placement.instances, KINDS, generation);
    }
    Ok((next != *record).then_some((next, booked)))
}

#[cfg(test)]
mod tests {
    use mgmt_api::{Capacity, DiskStore, Why};
    use serde_json::json;

    use super::*;
    use crate::ledger::{Account, Resource};

    const DRAWN: Drawn = Drawn { serial: 0x5e, set: 99 };

    fn record(more: serde_json::Value) -> DcRecord {
        let mut spec = json!({ "name": "shop", "nodes": ["n1", "n2", "n3"] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let wish = serde_json::from_value(spec.clone()).unwrap();
        let placement = placer::place(&wish, KINDS, &Accounts::new()).unwrap();
        let record = json!({
            "id": 7, "spec": spec, "placement": placement, "desired": { "kind": "running" }, "generation": 4,
            "created_s": 0,
        });
        serde_json::from_value(record).unwrap()
    }

    fn disk(name: &str, more: serde_json::Value) -> DiskSpec {
        let mut disk = json!({ "name": name, "bytes": 1 << 30 });
        disk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(disk).unwrap()
    }

    fn with(record: &DcRecord, wanted: &DiskSpec) -> DcRecord {
        with_disk(record, wanted, (&record.spec.nodes, &Accounts::new()), DRAWN).unwrap().unwrap().0
    }

    fn instance<'a>(record: &'a DcRecord, name: &str) -> &'a Instance {
        record.placement.instances.iter().find(|one| one.name == name).unwrap()
    }

    fn promised(record: &DcRecord) -> Vec<u64> {
        ["n1", "n2", "n3"].map(|node| record.placement.promised[node].disk_bytes >> 20).to_vec()
    }

    #[test]
    fn another_disk_is_described_placed_and_promised_and_nothing_else_is_other_than_before() {
        let before = record(json!({}));
        let after = with(&before, &disk("data", json!({ "node": "n3" })));
        let names: Vec<&str> = after.spec.disks.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(names, ["root", "data"], "what it has by itself is described, too");
        let made = instance(&after, "disk-data");
        assert_eq!((made.index, made.endpoint, made.node.as_str(), made.epoch), (1, 17, "n3", 5));
        assert_eq!(made.volume.as_ref().unwrap().file(), "data.5e.img");
        assert_eq!(after.placement.first(&ServerKind::DISK).unwrap().name, "disk-root");
        assert_eq!(promised(&after), [1024, 0, 1024]);
        let mut rest = after.placement.instances.clone();
        rest.retain(|one| one.name != "disk-data");
        assert_eq!(rest, before.placement.instances);
        // Once more, or as something else.
        let nodes = ["n1", "n2"].map(str::to_owned);
        let again = |wanted| with_disk(&after, &wanted, (&nodes, &Accounts::new()), DRAWN);
        assert_eq!(again(disk("data", json!({}))), Ok(None));
        assert_eq!(again(disk("data", json!({ "bytes": 2_u64 << 30 }))), Err(DiskRefusal::Exists));
        assert_eq!(again(disk("data", json!({ "node": "n1" }))), Err(DiskRefusal::Exists));
        assert_eq!(again(disk("root", json!({}))), Err(DiskRefusal::Exists), "the tree's is none of them");
        let three = again(disk("more", json!({ "replicas": 3 })));
        assert_eq!(three, Err(DiskRefusal::FewNodes { usable: nodes.to_vec() }));
    }

    #[test]
    fn copies_of_another_disk_have_numbers_that_nobody_had() {
        let root = json!({ "name": "root", "bytes": 1 << 30, "replicas": 2 });
        let mut before = record(json!({ "disks": [root] }));
        placer::number_sets(&mut before.placement.instances, || Ok::<u64, ()>(7)).unwrap();
        let after = with(&before, &disk("data", json!({ "replicas": 2, "node": "n2" })));
        let copies = placer::copies_of(&after.placement.instances, instance(&after, "disk-data"));
        let copies: Vec<_> =
            copies.map(|copy| (copy.index, copy.node.as_str(), copy.volume.as_ref().unwrap().set)).collect();
        assert_eq!(copies.len(), 2);
        assert_eq!((copies[0], copies[1].0, copies[1].2), ((4, "n2", Some(99)), 5, Some(99)));
        assert_ne!(copies[1].1, "n2");
        assert_eq!(promised(&after).iter().sum::<u64>(), 4 * 1024);
    }

    #[test]
    fn disk_without_room_is_refused_and_one_that_takes_space_as_it_is_used_needs_none() {
        let small = Capacity { containers: 9, memory_bytes: 1 << 30, disk_bytes: Some(1 << 20), cpus: 1 };
        let accounts = ["n1", "n2", "n3"].map(|node| (node.to_owned(), Account::new(small, Default::default())));
        let accounts = Accounts::from(accounts);
        let promises = |store: DiskStore| {
            let wanted = DiskSpec { store, ..disk("data", json!({ "node": "n1" })) };
            let before = record(json!({}));
            let (_, promises) = with_disk(&before, &wanted, (&before.spec.nodes, &accounts), DRAWN).unwrap().unwrap();
            accounts["n1"].admits("n1", &promises["n1"]).map_err(|shortage| shortage.of)
        };
        assert_eq!(promises(DiskStore::Image), Err(Resource::Disk));
        assert_eq!(promises(DiskStore::Sparse), Ok(()));
    }

    #[test]
    fn positions_are_given_again_late_and_no_more_than_there_are() {
        let mut now = record(json!({}));
        for count in 1..DISKS_PER_DC {
            now = with(&now, &disk(&format!("d{count}"), json!({})));
        }
        let one_more = with_disk(&now, &disk("more", json!({})), (&now.spec.nodes, &Accounts::new()), DRAWN);
        assert_eq!(one_more, Err(DiskRefusal::TooMany));
        now = without_disk(&now, "d2").unwrap().unwrap().0;
        now.generation = 40;
        let again = with(&now, &disk("more", json!({})));
        assert_eq!((instance(&again, "disk-more").index, instance(&again, "disk-more").epoch), (2, 41));
    }

    #[test]
    fn disk_that_somebody_needs_stays() {
        let data = disk("data", json!({}));
        let plain = with(&record(json!({})), &data);
        assert_eq!(without_disk(&plain, "root"), Err(DiskRefusal::IsTree));
        let known = vec!["root".to_owned(), "data".to_owned()];
        assert_eq!(without_disk(&plain, "x"), Err(DiskRefusal::NoDisk { known }));
        let (gone, given_back) = without_disk(&plain, "data").unwrap().unwrap();
        assert_eq!((promised(&gone).iter().sum::<u64>(), given_back.len()), (1024, 1));
        assert_eq!(gone.spec.disks.len(), 1);
        let mut exported = plain.clone();
        exported.spec.nbd = Some(serde_json::from_value(json!({ "listen": "127.0.0.1:10809" })).unwrap());
        assert_eq!(without_disk(&exported, "data"), Err(DiskRefusal::IsExported));
        // One that comes is not served to those who are there already, and does not take the place of one that is.
        let more = with(&exported, &disk("more", json!({})));
        assert_eq!(more.spec.nbd.as_ref().unwrap().disks, ["data"]);
        assert!(without_disk(&more, "more").is_ok());
        let stopped = DcRecord { desired: Desired::Stopped { grace_ms: 0 }, ..plain };
        assert_eq!(without_disk(&stopped, "data"), Err(DiskRefusal::Stopped));
    }

    /// Bytes of the disk, and of each image, in GiB; what a node promises more.
    fn sizes(record: &DcRecord) -> (u64, Vec<u64>) {
        let disk = instance(record, "disk-data");
        let gib = |one: &Instance| one.volume.as_ref().unwrap().bytes >> 30;
        (gib(disk), placer::copies_of(&record.placement.instances, disk).map(gib).collect())
    }

    #[test]
    fn file_server_follows_a_larger_disk_of_the_tree_and_no_other() {
        let before = with(&record(json!({})), &disk("data", json!({})));
        let larger = grown(&before, "root", 4 << 30, Step::Copies).unwrap().unwrap().0;
        assert_eq!(instance(&larger, "disk-root").volume.as_ref().unwrap().bytes, 4 << 30);
        assert_eq!(larger.spec.disks[0].bytes, 4 << 30);
        assert_eq!(grown(&larger, "root", 4 << 30, Step::Disk), Ok(None), "without copies that was all");
        let epoch = |record: &DcRecord| instance(record, "fs").epoch;
        let followed = grown(&larger, "root", 4 << 30, Step::Tree).unwrap().unwrap().0;
        assert_eq!((epoch(&larger), epoch(&followed)), (epoch(&before), epoch(&before) + 1));
        assert_eq!(grown(&larger, "data", 4 << 30, Step::Tree), Ok(None));
        assert_eq!(grown(&followed, "root", 4 << 30, Step::Tree), Ok(None), "it has what there is");
        let again = grown(&followed, "root", 5 << 30, Step::Copies).unwrap().unwrap().0;
        let again = grown(&again, "root", 5 << 30, Step::Tree).unwrap().unwrap().0;
        assert_eq!((epoch(&again), again.tree_bytes), (epoch(&before) + 2, Some(5 << 30)));
        assert_eq!(grown(&larger, "root", 1 << 30, Step::Copies), Err(DiskRefusal::WouldShrink { bytes: 4 << 30 }));
    }

    #[test]
    fn disk_that_has_its_size_already_is_left_alone_and_so_is_its_file_server() {
        let plain = record(json!({}));
        let root = json!({ "name": "root", "bytes": 1 << 30, "replicas": 2 });
        let copied = record(json!({ "disks": [root] }));
        for before in [plain, copied] {
            for step in [Step::Copies, Step::Disk, Step::Tree] {
                assert_eq!(grown(&before, "root", 1 << 30, step), Ok(None), "{step:?}");
            }
        }
    }

    #[test]
    fn copies_are_larger_before_their_disk_and_as_before_when_one_cannot() {
        let before = with(&record(json!({})), &disk("data", json!({ "replicas": 2 })));
        let wanted = 3 << 30;
        let step = |record: &DcRecord, step| grown(record, "data", wanted, step).unwrap();
        let (copies, booked) = step(&before, Step::Copies).unwrap();
        assert_eq!(sizes(&copies), (1, vec![3, 3]));
        assert!(booked.values().all(|promise| promise.disk_bytes == 2 << 30) && booked.len() == 2);
        assert_eq!(step(&copies, Step::Copies), None, "once more changes nothing");
        let (whole, booked) = step(&copies, Step::Disk).unwrap();
        assert_eq!((sizes(&whole), booked.len()), ((3, vec![3, 3]), 0));
        assert_eq!(step(&whole, Step::Disk), None);
        let volume = instance(&whole, "disk-data").volume.clone().unwrap();
        assert_eq!((volume.grown_from, whole.spec.disks[1].bytes), (Some(1 << 30), wanted));
        let (back, given_back) = step(&copies, Step::BackTo(1 << 30)).unwrap();
        assert_eq!((sizes(&back), promised(&back)), ((1, vec![1, 1]), promised(&before)));
        assert_eq!((back.spec.disks[1].bytes, given_back.len()), (1 << 30, 2));
        assert_eq!(grown(&whole, "data", 1 << 30, Step::Copies), Err(DiskRefusal::WouldShrink { bytes: wanted }));
        // One without copies is larger at once, one of a container that is stopped, too.
        let plain = with(&record(json!({})), &disk("data", json!({})));
        assert_eq!(sizes(&step(&plain, Step::Copies).unwrap().0), (3, vec![]));
        let stopped = DcRecord { desired: Desired::Stopped { grace_ms: 0 }, ..before };
        assert_eq!(sizes(&step(&stopped, Step::Copies).unwrap().0), (3, vec![3, 3]));
    }

    #[test]
    fn clients_of_nbd_see_the_later_end_when_they_connect_again() {
        let mut exported = with(&record(json!({})), &disk("data", json!({})));
        exported.spec.nbd = Some(serde_json::from_value(json!({ "listen": "127.0.0.1:10809" })).unwrap());
        placer::renew_exporting(&exported.spec.clone(), &mut exported.placement.instances, KINDS, 2);
        let gate = |record: &DcRecord| record.placement.first(&ServerKind::NBD).unwrap().epoch;
        let (larger, _) = grown(&exported, "data", 3 << 30, Step::Copies).unwrap().unwrap();
        assert_eq!((gate(&exported), gate(&larger)), (2, 5));
    }

    #[test]
    fn what_why_says_of_a_place_that_was_asked_for_stays_so() {
        let made = with(&record(json!({})), &disk("data", json!({ "node": "n2" })));
        assert_eq!(instance(&made, "disk-data").why, Why::Asked);
    }
}
