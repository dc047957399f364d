//! Copies of disks that people want, or want no more, in containers that run or do not.
//!
//! Where copies are says the container's record; who is a member of the set, and what it has, says the record of the
//! disk. A copy that comes is placed first, and becomes a member that is behind (`members`), so its primary hears of it
//! and gives it what there is. One that goes is dismissed first: its primary takes it out when it is sure to need
//! nothing of it, and only then it is not placed any more, which ends its server and removes its image.

use std::collections::{BTreeMap, BTreeSet};

use abi::limits::COPIES_PER_DC;
use cluster::{Engine, EngineError, Revision};
use mgmt_api::{DiskStore, Instance, Promise, ServerKind, Why};
use replica_core::{Replica, ReplicaRecord, ReplicaStanding};

use super::{Sets, Succession, by_disk, number_of, sets};
use crate::kinds::{COPY, KINDS};
use crate::ledger::{self, Booking, Change, Shortage};
use crate::placer;
use crate::records::{DcRecord, Desired};

/// What became of a wish about copies.
pub enum CopyAsked {
    /// The record that says so.
    Placed(Box<DcRecord>),
    IsSo,
    /// The primary of the disk has to say so first.
    AwaitsPrimary,
    Refused(CopyRefusal),
    /// Something changed meanwhile: to be asked again.
    Changed,
}

impl From<Option<DcRecord>> for CopyAsked {
    fn from(written: Option<DcRecord>) -> CopyAsked {
        written.map_or(CopyAsked::Changed, |record| CopyAsked::Placed(Box::new(record)))
    }
}

/// Why copies stay as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CopyRefusal {
    NoDisk {
        known: Vec<String>,
    },
    NoCopy {
        nodes: Vec<String>,
    },
    /// All numbers are given away.
    TooMany,
    NoRoom(Shortage),
    /// The one there was is being removed.
    Leaves,
    /// The disk stands beside it.
    IsPrimary,
    /// Nobody can say that it is not needed.
    Stopped,
    /// Nobody is there who could compare copies.
    NotServed,
    /// It has everything: to be moved to, not forced.
    IsCurrent,
    /// It never had everything.
    NeverCurrent,
    /// The one that has everything is on a node that is there.
    PrimaryThere {
        node: String,
    },
}

/// Who are members, as copies are placed. `None`: they are.
pub fn members(instances: &[Instance], disk: &Instance, set: &ReplicaRecord) -> Option<ReplicaRecord> {
    let placed: BTreeSet<Replica> = placer::copies_of(instances, disk).filter_map(number_of).collect();
    let mut next = set.clone();
    let known: BTreeSet<Replica> = set.members.keys().chain(&set.leaving).chain(&placed).copied().collect();
    for copy in known {
        let (is_member, leaves) = (next.members.contains_key(&copy), next.leaving.contains(&copy));
        let changed = match placed.contains(&copy) {
            true if !is_member => next.joined_by(copy),
            false if is_member && !leaves => next.dismissed(copy),
            false if !is_member && leaves => Some(next.forgotten(copy)),
            _ => None,
        };
        next = changed.unwrap_or(next);
    }
    (next != *set).then_some(next)
}

/// Has a copy of a disk on a node of the container. `draw`: the number of a set that begins.
pub fn add(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    disk: &str,
    node: &str,
    draw: u64,
) -> Result<CopyAsked, EngineError> {
    let (record, known) = (at.0, sets(engine, at.0.id)?);
    let (next, bytes) = match with_copy(record, &by_disk(&known), disk, node, draw) {
        Ok(Some(next)) => next,
        Ok(None) => return Ok(CopyAsked::IsSo),
        Err(why) => return Ok(CopyAsked::Refused(why)),
    };
    let accounts = ledger::accounts(engine)?;
    let promise = Promise { disk_bytes: bytes, ..Promise::default() };
    if let Some(Err(shortage)) = accounts.get(node).map(|account| account.admits(node, &promise)) {
        return Ok(CopyAsked::Refused(CopyRefusal::NoRoom(shortage)));
    }
    let booking = ledger::book(&accounts, &BTreeMap::from([(node.to_owned(), promise)]), Change::Promise);
    place(engine, at, known, (next, BTreeMap::new()), booking)
}

/// Has no copy of a disk on a node any more. `force`: also when it may be the only one that has everything.
pub fn remove(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    disk: &str,
    node: &str,
    force: bool,
) -> Result<CopyAsked, EngineError> {
    let (record, known) = (at.0, sets(engine, at.0.id)?);
    let (next, bytes, left) = match without_copy(record, &by_disk(&known), disk, node, force) {
        Ok(Removal::AwaitsPrimary) => return Ok(CopyAsked::AwaitsPrimary),
        Ok(Removal::Dismissed(index, set)) => {
            let sets = BTreeMap::from([(index, set)]);
            let next = Succession { placement: record.placement.clone(), sets };
            let written = super::write(engine, at, known, next, Booking::default())?;
            return Ok(written.map_or(CopyAsked::Changed, |_| CopyAsked::AwaitsPrimary));
        }
        Ok(Removal::Placed { next, bytes, left }) => (*next, bytes, left),
        Err(why) => return Ok(CopyAsked::Refused(why)),
    };
    let promise = Promise { disk_bytes: bytes, ..Promise::default() };
    let promised = BTreeMap::from([(node.to_owned(), promise)]);
    let booking = ledger::book(&ledger::accounts(engine)?, &promised, Change::GiveBack);
    place(engine, at, known, (next, left.into_iter().collect()), booking)
}

/// A copy that is behind is what there is of the disk from now on, and the disk stands beside it. `is_there`: whether a
/// node is alive, and not lost.
pub fn force(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    disk: &str,
    node: &str,
    is_there: impl Fn(&str) -> bool,
) -> Result<CopyAsked, EngineError> {
    let known = sets(engine, at.0.id)?;
    match forced(at.0, &by_disk(&known), disk, node, is_there) {
        Ok(next) => Ok(super::write(engine, at, known, next, Booking::default())?.into()),
        Err(why) => Ok(CopyAsked::Refused(why)),
    }
}

/// Has the current copies of a disk compared with its primary's, by that one. While they are it is so already.
pub fn verify(
    engine: &dyn Engine,
    at: (&DcRecord, Revision),
    disk: &str,
    repair: bool,
    asked_s: u64,
) -> Result<CopyAsked, EngineError> {
    let record = at.0;
    let disk = match disk_named(record, disk) {
        Ok(disk) => disk,
        Err(why) => return Ok(CopyAsked::Refused(why)),
    };
    if placer::copies_of(&record.placement.instances, disk).next().is_none() {
        return Ok(CopyAsked::Refused(CopyRefusal::NoCopy { nodes: Vec::new() }));
    }
    let known = sets(engine, record.id)?;
    let Some((set, ..)) = known.get(&disk.index).filter(|_| record.desired == Desired::Running) else {
        return Ok(CopyAsked::Refused(CopyRefusal::NotServed));
    };
    let Some(next) = set.verifying(repair, asked_s) else { return Ok(CopyAsked::IsSo) };
    let sets = BTreeMap::from([(disk.index, next)]);
    let next = Succession { placement: record.placement.clone(), sets };
    Ok(super::write(engine, at, known, next, Booking::default())?.into())
}

fn place(
    engine: &dyn Engine,
    (record, modified): (&DcRecord, Revision),
    known: Sets,
    (next, sets): (DcRecord, BTreeMap<usize, ReplicaRecord>),
    booking: Booking,
) -> Result<CopyAsked, EngineError> {
    let changed = Succession { placement: next.placement, sets };
    let record = DcRecord { spec: next.spec, ..record.clone() };
    Ok(super::write(engine, (&record, modified), known, changed, booking)?.into())
}

/// By its name, or that of its server.
pub fn disk_named<'a>(record: &'a DcRecord, name: &str) -> Result<&'a Instance, CopyRefusal> {
    let disks = || record.placement.instances.iter().filter(|one| one.kind == ServerKind::DISK);
    let name_of = |disk: &Instance| disk.volume.as_ref().map(|volume| volume.name.clone());
    let found = disks().find(|disk| disk.name == name || name_of(disk).is_some_and(|known| known == name));
    found.ok_or_else(|| CopyRefusal::NoDisk { known: disks().filter_map(name_of).collect() })
}

pub(super) fn bytes_of(disk: &Instance) -> u64 {
    let image = disk.volume.as_ref().filter(|volume| volume.store == DiskStore::Image);
    image.map_or(0, |volume| volume.bytes)
}

fn copy_on<'a>(record: &'a DcRecord, disk: &'a Instance, node: &str) -> Result<&'a Instance, CopyRefusal> {
    let copies = || placer::copies_of(&record.placement.instances, disk);
    let found = copies().find(|copy| copy.node == node);
    found.ok_or_else(|| CopyRefusal::NoCopy { nodes: copies().map(|copy| copy.node.clone()).collect() })
}

/// With what its node promises for it. `None`: there is one.
fn with_copy(
    record: &DcRecord,
    sets: &BTreeMap<usize, ReplicaRecord>,
    disk: &str,
    node: &str,
    draw: u64,
) -> Result<Option<(DcRecord, u64)>, CopyRefusal> {
    let disk = disk_named(record, disk)?.clone();
    let mut next = record.clone();
    let instances = &mut next.placement.instances;
    let is_replicated = placer::copies_of(instances, &disk).next().is_some();
    if let Ok(there) = copy_on(record, &disk, node) {
        let leaves = |set: &ReplicaRecord| number_of(there).is_some_and(|copy| set.leaving.contains(&copy));
        return if sets.get(&disk.index).is_some_and(leaves) { Err(CopyRefusal::Leaves) } else { Ok(None) };
    }
    if !is_replicated {
        if disk.node == node {
            return Ok(None);
        }
        // What it is becomes the first copy.
        let volumes = instances.iter_mut().filter(|one| one.kind == disk.kind && one.index == disk.index);
        volumes.filter_map(|one| one.volume.as_mut()).for_each(|volume| volume.set = Some(draw));
        add_copy(instances, &disk, &disk.node, &disk.why, draw)?;
    }
    let set = disk.volume.as_ref().and_then(|volume| volume.set).unwrap_or(draw);
    add_copy(instances, &disk, node, &Why::Asked, set)?;
    describe(&mut next, &disk);
    let bytes = bytes_of(&disk);
    let promise = next.placement.promised.entry(node.to_owned()).or_default();
    promise.disk_bytes = promise.disk_bytes.saturating_add(bytes);
    Ok(Some((next, bytes)))
}

pub(super) fn add_copy(
    instances: &mut Vec<Instance>,
    disk: &Instance,
    node: &str,
    why: &Why,
    set: u64,
) -> Result<(), CopyRefusal> {
    let kind = KINDS.iter().find(|kind| kind.name == COPY).ok_or(CopyRefusal::TooMany)?;
    let taken: BTreeSet<usize> = instances.iter().filter(|one| one.kind.name() == COPY).map(|one| one.index).collect();
    // One that was given away before is given again as late as possible.
    let next = taken.last().map_or(0, |last| last + 1);
    let mut numbers = (next..COPIES_PER_DC as usize).chain(0..next);
    let free = numbers.find(|number| !taken.contains(number)).ok_or(CopyRefusal::TooMany)?;
    let volume = disk.volume.clone().map(|volume| mgmt_api::Volume { set: Some(set), ..volume });
    let name = volume.as_ref().map_or_else(|| COPY.to_owned(), |volume| format!("{COPY}-{}", volume.name));
    let place = (node.to_owned(), why.clone());
    let copy = placer::instance(kind, free, name, place, volume).ok_or(CopyRefusal::TooMany)?;
    // Before the disks, which are made after their copies.
    let place = instances.iter().position(|one| one.kind == ServerKind::DISK).unwrap_or(instances.len());
    instances.insert(place, copy);
    Ok(())
}

/// The description says how many there are.
pub(super) fn describe(record: &mut DcRecord, disk: &Instance) {
    let Some(volume) = &disk.volume else { return };
    let copies = placer::copies_of(&record.placement.instances, disk).count();
    if record.spec.disks.is_empty() {
        record.spec.disks = placer::disks(&record.spec);
    }
    let described = record.spec.disks.iter_mut().filter(|one| one.name == volume.name);
    described.for_each(|one| one.replicas = u8::try_from(copies).ok());
}

enum Removal {
    /// It is dismissed, and still a member.
    AwaitsPrimary,
    /// The record of the disk at that position.
    Dismissed(usize, ReplicaRecord),
    Placed {
        next: Box<DcRecord>,
        /// That its node promises no more.
        bytes: u64,
        /// Of the disk at that position, if it was a member.
        left: Option<(usize, ReplicaRecord)>,
    },
}

fn without_copy(
    record: &DcRecord,
    sets: &BTreeMap<usize, ReplicaRecord>,
    disk: &str,
    node: &str,
    force: bool,
) -> Result<Removal, CopyRefusal> {
    let disk = disk_named(record, disk)?.clone();
    let copy = copy_on(record, &disk, node)?;
    let number = number_of(copy).ok_or(CopyRefusal::TooMany)?;
    if disk.node == node {
        return Err(CopyRefusal::IsPrimary);
    }
    if record.desired != Desired::Running && !force {
        return Err(CopyRefusal::Stopped);
    }
    let set = sets.get(&disk.index);
    let mut left = None;
    if let Some((set, standing)) = set.and_then(|set| Some((set, set.members.get(&number)?))) {
        if set.primary == number {
            return Err(CopyRefusal::IsPrimary);
        }
        // Nobody needs what one has that is behind.
        if force || *standing != ReplicaStanding::Current {
            left = set.left_by(number);
        } else if set.leaving.contains(&number) {
            return Ok(Removal::AwaitsPrimary);
        } else {
            return Ok(Removal::Dismissed(disk.index, set.dismissed(number).ok_or(CopyRefusal::IsPrimary)?));
        }
    }
    let mut next = record.clone();
    next.placement.instances.retain(|one| one.kind.name() != COPY || one.index != copy.index);
    describe(&mut next, &disk);
    let bytes = bytes_of(&disk);
    if let Some(promise) = next.placement.promised.get_mut(node) {
        promise.disk_bytes = promise.disk_bytes.saturating_sub(bytes);
    }
    Ok(Removal::Placed { next: Box::new(next), bytes, left: left.map(|set| (disk.index, set)) })
}

fn forced(
    record: &DcRecord,
    sets: &BTreeMap<usize, ReplicaRecord>,
    disk: &str,
    node: &str,
    is_there: impl Fn(&str) -> bool,
) -> Result<Succession, CopyRefusal> {
    let disk = disk_named(record, disk)?;
    let copies = || placer::copies_of(&record.placement.instances, disk);
    let number = number_of(copy_on(record, disk, node)?).ok_or(CopyRefusal::TooMany)?;
    let set = sets.get(&disk.index).ok_or(CopyRefusal::NeverCurrent)?;
    if set.is_current(number) {
        return Err(CopyRefusal::IsCurrent);
    }
    let has_all = copies().filter(|copy| number_of(copy).is_some_and(|copy| set.is_current(copy)));
    if let Some(other) = has_all.map(|copy| &copy.node).find(|node| is_there(node)) {
        return Err(CopyRefusal::PrimaryThere { node: other.clone() });
    }
    let forced = set.forced(number).ok_or(CopyRefusal::NeverCurrent)?;
    let mut next = Succession { placement: record.placement.clone(), sets: BTreeMap::from([(disk.index, forced)]) };
    next.stand_with_its_server(&record.placement.instances, disk, node, &Why::Asked);
    Ok(next)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ledger::Accounts;

    const DRAWN: u64 = 99;

    fn record(replicas: u8) -> DcRecord {
        let disk = json!({ "name": "root", "bytes": 1 << 30, "node": "n1", "replicas": replicas });
        let spec = json!({ "name": "shop", "nodes": ["n1", "n2", "n3"], "disks": [disk] });
        let wish = serde_json::from_value(spec.clone()).unwrap();
        let mut placement = placer::place(&wish, KINDS, &Accounts::new()).unwrap();
        placer::number_sets(&mut placement.instances, || Ok::<u64, ()>(7)).unwrap();
        let record = json!({
            "id": 7, "spec": spec, "placement": placement, "desired": { "kind": "running" }, "generation": 1,
            "created_s": 0,
        });
        serde_json::from_value(record).unwrap()
    }

    fn disk(record: &DcRecord) -> &Instance {
        record.placement.first(&ServerKind::DISK).unwrap()
    }

    /// Node, number and set of each copy.
    fn copies(record: &DcRecord) -> Vec<(&str, usize, Option<u64>)> {
        let copies = placer::copies_of(&record.placement.instances, disk(record));
        copies.map(|copy| (copy.node.as_str(), copy.index, copy.volume.as_ref().and_then(|it| it.set))).collect()
    }

    fn both_current() -> ReplicaRecord {
        ReplicaRecord::new(7, Replica(0), &[Replica(1)]).with(Replica(1))
    }

    fn with(record: &DcRecord, set: Option<ReplicaRecord>, node: &str) -> Result<Option<(DcRecord, u64)>, CopyRefusal> {
        with_copy(record, &set.map(|set| (0, set)).into_iter().collect(), "root", node, DRAWN)
    }

    fn without(record: &DcRecord, set: ReplicaRecord, node: &str, force: bool) -> Result<Removal, CopyRefusal> {
        without_copy(record, &BTreeMap::from([(0, set)]), "root", node, force)
    }

    #[test]
    fn disk_without_copies_becomes_the_first_of_two() {
        let plain = record(1);
        assert_eq!(with(&plain, None, "n1"), Ok(None), "there it is");
        let (both, bytes) = with(&plain, None, "n3").unwrap().unwrap();
        assert_eq!((copies(&both), bytes), (vec![("n1", 0, Some(DRAWN)), ("n3", 1, Some(DRAWN))], 1 << 30));
        assert_eq!(disk(&both).volume.as_ref().unwrap().set, Some(DRAWN));
        assert_eq!((both.spec.disks[0].replicas, disk(&both).epoch), (Some(2), disk(&plain).epoch));
        let promised = |record: &DcRecord, node: &str| record.placement.promised[node].disk_bytes;
        assert_eq!((promised(&both, "n1"), promised(&both, "n3")), (promised(&plain, "n1"), 1 << 30));
        // Before the disk, which asks the one beside it first.
        let kinds: Vec<&str> = both.placement.instances.iter().map(|one| one.kind.name()).take(3).collect();
        assert_eq!(kinds, [COPY, COPY, "disk"]);
        assert_eq!(with(&both, None, "n3"), Ok(None), "once more changes nothing");
        let unknown = with_copy(&plain, &BTreeMap::new(), "x", "n3", DRAWN);
        assert_eq!(unknown, Err(CopyRefusal::NoDisk { known: vec!["root".to_owned()] }));
    }

    #[test]
    fn what_is_described_by_nothing_is_described_once_it_has_copies() {
        let mut plain = record(1);
        plain.spec.disks.clear();
        let (both, _) = with(&plain, None, "n2").unwrap().unwrap();
        assert_eq!(both.spec.disks.iter().map(|disk| disk.replicas).collect::<Vec<_>>(), [Some(2)]);
    }

    #[test]
    fn numbers_are_given_again_late_and_no_more_than_there_are() {
        // The store has as many.
        let mut now = record(2);
        for number in 4..COPIES_PER_DC as usize {
            now = with(&now, Some(both_current()), &format!("m{number}")).unwrap().unwrap().0;
            assert_eq!(copies(&now).iter().map(|copy| copy.1).max(), Some(number));
        }
        assert_eq!(with(&now, Some(both_current()), "n4"), Err(CopyRefusal::TooMany));
        now.placement.instances.retain(|one| one.kind.name() != COPY || one.index != 5);
        let again = with(&now, Some(both_current()), "n4").unwrap().unwrap().0;
        assert!(copies(&again).contains(&("n4", 5, Some(7))));
    }

    #[test]
    fn copy_that_may_be_needed_is_spared_by_the_primary_first() {
        let two = record(2);
        let dismissed = match without(&two, both_current(), "n2", false).unwrap() {
            Removal::Dismissed(0, set) => set,
            _ => panic!("it is current"),
        };
        assert!(dismissed.is_current(Replica(1)) && dismissed.leaving.contains(&Replica(1)));
        assert!(matches!(without(&two, dismissed.clone(), "n2", false), Ok(Removal::AwaitsPrimary)));
        assert_eq!(with(&two, Some(dismissed.clone()), "n2"), Err(CopyRefusal::Leaves));
        let spared = dismissed.left_by(Replica(1)).unwrap();
        // Until it is not placed any more it is no member again.
        assert_eq!(members(&two.placement.instances, disk(&two), &spared), None);
        let Ok(Removal::Placed { next, bytes, left }) = without(&two, spared.clone(), "n2", false) else {
            panic!("nobody needs it")
        };
        assert_eq!((copies(&next), bytes, left), (vec![("n1", 0, Some(7))], 1 << 30, None));
        assert_eq!((next.spec.disks[0].replicas, next.placement.promised["n2"].disk_bytes), (Some(1), 0));
        let forgotten = members(&next.placement.instances, disk(&next), &spared).unwrap();
        assert_eq!((forgotten.leaving, forgotten.members.len()), (BTreeSet::new(), 1));
    }

    #[test]
    fn copy_that_nobody_needs_goes_at_once_and_the_primary_never() {
        let two = record(2);
        let behind = both_current().without(&[Replica(1)]);
        let Ok(Removal::Placed { left: Some((0, left)), .. }) = without(&two, behind.clone(), "n2", false) else {
            panic!("it is behind")
        };
        assert!(!left.members.contains_key(&Replica(1)));
        assert!(matches!(without(&two, both_current(), "n2", true), Ok(Removal::Placed { left: Some(_), .. })));
        assert!(matches!(without(&two, both_current(), "n1", true), Err(CopyRefusal::IsPrimary)));
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        assert!(
            matches!(without(&two, behind, "n3", false), Err(CopyRefusal::NoCopy { nodes: known }) if known == nodes)
        );
        let stopped = DcRecord { desired: Desired::Stopped { grace_ms: 0 }, ..two };
        assert!(matches!(without(&stopped, both_current(), "n2", false), Err(CopyRefusal::Stopped)));
        assert!(matches!(without(&stopped, both_current(), "n2", true), Ok(Removal::Placed { .. })));
    }

    #[test]
    fn copies_are_members_as_they_are_placed() {
        let two = record(2);
        let of_one = ReplicaRecord::new(7, Replica(0), &[]);
        assert_eq!(members(&two.placement.instances, disk(&two), &both_current()), None);
        let joined = members(&two.placement.instances, disk(&two), &of_one).unwrap();
        assert_eq!(joined.behind().collect::<Vec<_>>(), [Replica(1)]);
        // One that is placed no more, whoever forgot to say so.
        let three = both_current().joined_by(Replica(2)).unwrap();
        let fewer = members(&two.placement.instances, disk(&two), &three).unwrap();
        assert_eq!(fewer.leaving, BTreeSet::from([Replica(2)]));
    }

    #[test]
    fn force_is_for_when_nobody_is_there_who_has_everything() {
        let two = record(2);
        let alone = both_current().without(&[Replica(1)]);
        let force = |set: ReplicaRecord, node: &str, there: &'static [&'static str]| {
            forced(&two, &BTreeMap::from([(0, set)]), "root", node, |node| there.contains(&node))
        };
        let next = force(alone.clone(), "n2", &["n2", "n3"]).unwrap();
        assert_eq!(next.sets[&0], alone.forced(Replica(1)).unwrap());
        let stands = |kind| next.placement.first(&kind).map(|one| one.node.clone()).unwrap();
        assert_eq!((stands(ServerKind::DISK), stands(ServerKind::FS)), ("n2".to_owned(), "n2".to_owned()));
        let there = CopyRefusal::PrimaryThere { node: "n1".to_owned() };
        assert_eq!(force(alone.clone(), "n2", &["n1", "n2"]), Err(there));
        assert_eq!(force(both_current(), "n2", &["n2"]), Err(CopyRefusal::IsCurrent));
        let never = ReplicaRecord::new(7, Replica(0), &[Replica(1)]);
        assert_eq!(force(never, "n2", &["n2"]), Err(CopyRefusal::NeverCurrent));
    }
}
