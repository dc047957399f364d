//! Decides where the servers of a container stand, and what its nodes promise it. Pure: who knows the same decides the
//! same.
//!
//! What the description says is kept. What it leaves open goes to the node of the container with the fewest of its
//! servers, the first of several, unless its kind belongs beside another one; a disk only where there is room for it.
//! Not here: whether a description makes sense (`spec`), who writes the placement (`api/dcs.rs`), how two who place at
//! the same time share what is left (`ledger`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use abi::limits::DISKS_PER_DC;
use mgmt_api::{DcSpec, DiskSpec, DiskStore, Instance, Placement, Promise, Role, STORE_DISK, ServerKind, Volume, Why};

use crate::kinds::{COPY, Kind, NBD, Stands};
use crate::ledger::{Accounts, Shortage};

/// Of the disk that a container has when its description names none.
const DEFAULT_DISK_BYTES: u64 = 1 << 30;
/// Of a disk whose description says nothing of copies, where there are as many nodes: the loss of one loses nothing.
const DEFAULT_REPLICAS: usize = 2;
/// Of the disk of the key-value server, which takes space as it is used: what the store may hold, and as much again for
/// what is written anew before the earlier is given up, and its file doubles as it grows.
const STORE_DISK_BYTES: u64 = 4 << 30;
/// Its position: that which disks of people get last.
pub const STORE_DISK_INDEX: usize = DISKS_PER_DC as usize - 1;
/// Of what was placed for the first time.
const FIRST_EPOCH: u64 = 1;

/// The placement of a container whose description was checked, or what a node lacks for it.
pub fn place(wish: &DcSpec, kinds: &[Kind], accounts: &Accounts) -> Result<Placement, Shortage> {
    let instances = instances(wish, kinds, accounts);
    let promised = promises(wish, &instances);
    let known = promised.iter().filter_map(|(node, promise)| Some((node, promise, accounts.get(node)?)));
    for (node, promise, account) in known {
        account.admits(node, promise)?;
    }
    Ok(Placement { instances, promised })
}

/// What each node promises to a container with these servers.
pub fn promises(wish: &DcSpec, instances: &[Instance]) -> BTreeMap<String, Promise> {
    let each = Promise { containers: 1, memory_bytes: wish.limits.memory_bytes.unwrap_or(0), disk_bytes: 0 };
    let mut promised: BTreeMap<String, Promise> = wish.nodes.iter().map(|node| (node.clone(), each)).collect();
    for (node, volume) in images(instances).filter(|(_, volume)| volume.store == DiskStore::Image) {
        let of_node = promised.entry(node.clone()).or_default();
        of_node.disk_bytes = of_node.disk_bytes.saturating_add(volume.bytes);
    }
    promised
}

/// All images, each with its node: of a disk that has copies these are the images.
pub fn images(instances: &[Instance]) -> impl Iterator<Item = (&String, &Volume)> {
    let is_image = |one: &&Instance| one.kind.name() == COPY || copies_of(instances, one).next().is_none();
    instances.iter().filter(is_image).filter_map(|one| Some((&one.node, one.volume.as_ref()?)))
}

/// Those of a disk.
pub fn copies_of<'a>(instances: &'a [Instance], disk: &'a Instance) -> impl Iterator<Item = &'a Instance> {
    let name = disk.volume.as_ref().map(|volume| volume.name.as_str());
    instances.iter().filter(move |one| one.kind.name() == COPY && name.is_some_and(|name| is_volume(one, name)))
}

/// Gives the copies of each disk the number of their set.
pub fn number_sets<E>(instances: &mut [Instance], mut draw: impl FnMut() -> Result<u64, E>) -> Result<(), E> {
    let copies = instances.iter().filter(|one| one.kind.name() == COPY);
    let disks: BTreeSet<String> = copies.filter_map(|one| Some(one.volume.as_ref()?.name.clone())).collect();
    for disk in disks {
        let set = draw()?;
        let volumes = instances.iter_mut().filter_map(|one| one.volume.as_mut());
        volumes.filter(|volume| volume.name == disk).for_each(|volume| volume.set = Some(set));
    }
    Ok(())
}

/// The servers, whether there is enough for them or not.
pub fn instances(wish: &DcSpec, kinds: &[Kind], accounts: &Accounts) -> Vec<Instance> {
    let mut disks = disks(wish);
    disks.extend(disk_of_store(wish));
    let index_of = |index: usize, disk: &DiskSpec| if disk.name == STORE_DISK { STORE_DISK_INDEX } else { index };
    let mut placing = Placing { wish, accounts, taken: BTreeMap::new(), instances: Vec::new() };
    for server in &wish.servers {
        server.node.iter().for_each(|node| placing.take(node, 0));
    }
    for disk in disks.iter().filter(|disk| !disk.is_replicated()) {
        disk.node.iter().for_each(|node| placing.take(node, set_aside(disk)));
    }
    for kind in kinds {
        match kind.stands {
            Stands::PerCopy => placing.copies(kind, &disks),
            Stands::PerDisk => {
                disks.iter().enumerate().for_each(|(index, disk)| placing.disk(kind, index_of(index, disk), disk));
            }
            Stands::Once { beside } => placing.one(kind, beside),
            Stands::Exporting => {
                placing.instances.extend(exporting(wish, kind, &placing.instances, FIRST_EPOCH));
            }
            Stands::PerNode => wish.nodes.iter().enumerate().for_each(|(index, node)| {
                placing.add(kind, index, kind.name.to_owned(), (node.clone(), Why::EachNode), None);
            }),
            Stands::PerNodeOfSeveral if wish.nodes.len() < 2 => (),
            Stands::PerNodeOfSeveral => wish.nodes.iter().enumerate().for_each(|(index, node)| {
                placing.add(kind, index, kind.name.to_owned(), (node.clone(), Why::EachNode), None);
            }),
        }
    }
    placing.instances
}

/// The servers that a node has which comes to a container on this seat: those that stand on each. `there`: the servers
/// of the others.
pub fn instances_of_another(
    wish: &DcSpec,
    kinds: &[Kind],
    node: &str,
    seat: usize,
    there: &[Instance],
) -> Vec<Instance> {
    let mut placing = Placing { wish, accounts: &Accounts::new(), taken: BTreeMap::new(), instances: Vec::new() };
    let is_there = |kind: &Kind| there.iter().any(|one| one.kind.name() == kind.name);
    let stands = |kind: &&Kind| match kind.stands {
        Stands::PerNode => true,
        Stands::PerNodeOfSeveral => is_there(kind),
        Stands::Once { .. } | Stands::Exporting | Stands::PerCopy | Stands::PerDisk => false,
    };
    for kind in kinds.iter().filter(stands) {
        placing.add(kind, seat, kind.name.to_owned(), (node.to_owned(), Why::EachNode), None);
    }
    placing.instances
}

/// Where the copies of a disk go that comes to a container with these servers, the disk beside the first; of one
/// without copies, where it goes itself.
pub fn nodes_of_another_disk(
    wish: &DcSpec,
    accounts: &Accounts,
    there: &[Instance],
    disk: &DiskSpec,
) -> Vec<(String, Why)> {
    let mut placing = Placing { wish, accounts, taken: BTreeMap::new(), instances: Vec::new() };
    for one in there.iter().filter(|one| one.why != Why::EachNode) {
        placing.take(&one.node, 0);
    }
    placing.nodes_of(disk)
}

/// As they are described, or what a container has that describes none.
pub fn disks(wish: &DcSpec) -> Vec<DiskSpec> {
    if !wish.disks.is_empty() {
        return wish.disks.clone();
    }
    vec![DiskSpec {
        name: "root".to_owned(),
        node: None,
        bytes: DEFAULT_DISK_BYTES,
        store: DiskStore::Image,
        replicas: None,
    }]
}

/// The disk of the key-value server, where the one of the file tree has copies: as many, the first where the server is
/// asked for.
pub fn disk_of_store(wish: &DcSpec) -> Option<DiskSpec> {
    let tree = wish.disks.first().filter(|disk| disk.is_replicated())?;
    let asked = wish.servers.iter().find(|server| server.kind == ServerKind::DS);
    let (name, node) = (STORE_DISK.to_owned(), asked.and_then(|server| server.node.clone()));
    Some(DiskSpec { name, node, bytes: STORE_DISK_BYTES, store: DiskStore::Sparse, replicas: tree.replicas })
}

/// The one there is.
pub fn store_disk(instances: &[Instance]) -> Option<&Instance> {
    instances.iter().find(|one| is_store(one))
}

/// Whether it is that disk.
pub fn is_store(one: &Instance) -> bool {
    one.kind == ServerKind::DISK && is_volume(one, STORE_DISK)
}

/// The disk that has what a server keeps, if that is no file of its node.
pub fn disk_of_server<'a>(instances: &'a [Instance], server: &Instance) -> Option<&'a Instance> {
    match server.kind.name() {
        "fs" => instances.iter().find(|one| one.kind == ServerKind::DISK),
        "ds" => store_disk(instances),
        _ => None,
    }
}

/// The description with how many copies each disk gets of which it does not say so. It is written down with the
/// container: what is usual is decided once, and what there is stays as it is. On one node there is nothing to decide.
pub fn with_usual_copies(wish: &DcSpec) -> DcSpec {
    let mut wish = wish.clone();
    if usual_copies(wish.nodes.len()) > 1 {
        wish.disks = disks(&wish);
    }
    let nodes = wish.nodes.len();
    wish.disks.iter_mut().for_each(|disk| *disk = with_usual_copies_of(disk, nodes));
    wish
}

/// A disk of a container with so many nodes, likewise.
pub fn with_usual_copies_of(disk: &DiskSpec, nodes: usize) -> DiskSpec {
    let usual = u8::try_from(usual_copies(nodes)).ok().filter(|copies| *copies > 1);
    DiskSpec { replicas: disk.replicas.or(usual), ..disk.clone() }
}

fn usual_copies(nodes: usize) -> usize {
    DEFAULT_REPLICAS.min(nodes)
}

/// Disks that are served over NBD, each with whether clients may only read it. Those that the description names are
/// there.
pub fn exports<'a>(wish: &DcSpec, instances: &'a [Instance]) -> Vec<(&'a Instance, bool)> {
    let Some(nbd) = &wish.nbd else { return Vec::new() };
    let disks = instances.iter().filter(|one| one.kind == ServerKind::DISK && !is_store(one));
    let disks: Vec<&Instance> = disks.collect();
    let named = |name: &String| disks.iter().copied().find(|disk| is_volume(disk, name));
    let chosen: Vec<&Instance> = match (nbd.disks.as_slice(), disks.as_slice()) {
        ([], [_, further @ ..]) if !further.is_empty() => further.to_vec(),
        ([], all) => all.to_vec(),
        (named_ones, _) => named_ones.iter().filter_map(named).collect(),
    };
    // What the file server writes nobody else may.
    chosen.into_iter().map(|disk| (disk, nbd.read_only || disk.index == 0)).collect()
}

/// The gate for NBD, if there shall be one.
fn exporting(wish: &DcSpec, kind: &Kind, instances: &[Instance], epoch: u64) -> Option<Instance> {
    let nbd = wish.nbd.as_ref()?;
    let asked = nbd.node.as_ref().map(|node| (node.clone(), Why::Asked));
    let beside = exports(wish, instances).first().map(|(disk, _)| {
        let why = Why::Beside { server: disk.name.clone() };
        (disk.node.clone(), why)
    });
    let gate = instance(kind, 0, kind.name.to_owned(), asked.or(beside)?, None)?;
    Some(Instance { epoch, ..gate })
}

/// As the description says by now. `epoch`: above all that it had before.
pub fn renew_exporting(wish: &DcSpec, instances: &mut Vec<Instance>, kinds: &[Kind], epoch: u64) {
    instances.retain(|one| one.kind.name() != NBD);
    let kind = kinds.iter().find(|kind| kind.name == NBD);
    instances.extend(kind.and_then(|kind| exporting(wish, kind, instances, epoch)));
}

pub fn volume_of(disk: &DiskSpec) -> Volume {
    let (name, store) = (disk.name.clone(), disk.store.clone());
    Volume { name, bytes: disk.bytes, store, set: None, serial: None, grown_from: None }
}

fn is_volume(instance: &Instance, name: &str) -> bool {
    instance.volume.as_ref().is_some_and(|volume| volume.name == name)
}

pub fn set_aside(disk: &DiskSpec) -> u64 {
    if disk.store == DiskStore::Image { disk.bytes } else { 0 }
}

struct Placing<'a> {
    wish: &'a DcSpec,
    accounts: &'a Accounts,
    /// Servers that each node has, gates left out, and the bytes of their disks; what was asked for is counted from the
    /// start.
    taken: BTreeMap<String, (usize, u64)>,
    instances: Vec<Instance>,
}

impl Placing<'_> {
    /// Of each disk that has several: the first where the disk is to stand, the others on other nodes.
    fn copies(&mut self, kind: &Kind, disks: &[DiskSpec]) {
        let mut number = 0;
        for disk in disks.iter().filter(|disk| disk.is_replicated()) {
            for place in self.nodes_of(disk) {
                self.add(kind, number, format!("{}-{}", kind.name, disk.name), place, Some(volume_of(disk)));
                number += 1;
            }
        }
    }

    fn nodes_of(&mut self, disk: &DiskSpec) -> Vec<(String, Why)> {
        let bytes = set_aside(disk);
        let (mut places, mut nodes) = (Vec::new(), Vec::new());
        for _ in 0..disk.replicas.unwrap_or(1).max(1) {
            let asked = self.asked(disk.node.as_deref()).filter(|_| nodes.is_empty());
            // What was asked for is counted in any case.
            asked.iter().for_each(|(node, _)| self.take(node, bytes));
            let Some(place) = asked.or_else(|| self.choose_beside(bytes, &nodes)) else { break };
            nodes.push(place.0.clone());
            places.push(place);
        }
        places
    }

    fn disk(&mut self, kind: &Kind, index: usize, disk: &DiskSpec) {
        let copy = |one: &&Instance| one.kind.name() == COPY && is_volume(one, &disk.name);
        let beside = self.instances.iter().find(copy).map(|copy| (copy.node.clone(), copy.why.clone()));
        let place = beside.or_else(|| self.asked(disk.node.as_deref())).unwrap_or_else(|| self.choose(set_aside(disk)));
        self.add(kind, index, format!("{}-{}", kind.name, disk.name), place, Some(volume_of(disk)));
    }

    fn one(&mut self, kind: &Kind, beside: Option<&'static str>) {
        let asked = self.wish.servers.iter().find(|server| server.kind.name() == kind.name);
        let is_meant = |one: &&Instance| beside.is_some_and(|name| one.kind.name() == name || one.name == name);
        let neighbour = self.instances.iter().find(is_meant);
        let place = self
            .asked(asked.and_then(|server| server.node.as_deref()))
            .or_else(|| neighbour.map(|it| (it.node.clone(), Why::Beside { server: it.name.clone() })))
            .unwrap_or_else(|| self.choose(0));
        self.add(kind, 0, kind.name.to_owned(), place, None);
    }

    fn asked(&self, node: Option<&str>) -> Option<(String, Why)> {
        node.map(|node| (node.to_owned(), Why::Asked))
    }

    fn choose(&mut self, disk_bytes: u64) -> (String, Why) {
        self.choose_beside(disk_bytes, &[]).unwrap_or((String::new(), Why::FewestServers))
    }

    /// None of these. Where none has room, the one that has most of it. `None`: there is no other.
    fn choose_beside(&mut self, disk_bytes: u64, taken: &[String]) -> Option<(String, Why)> {
        let rank = |node: &&String| {
            let (servers, taken) = self.taken.get(*node).copied().unwrap_or_default();
            let left = self.accounts.get(*node).map_or(u64::MAX, |account| account.left().disk_bytes);
            let room = left.saturating_sub(taken);
            if room >= disk_bytes { (Reverse(u64::MAX), servers) } else { (Reverse(room), servers) }
        };
        let chosen = self.wish.nodes.iter().filter(|node| !taken.contains(node)).min_by_key(rank)?.clone();
        self.take(&chosen, disk_bytes);
        Some((chosen, Why::FewestServers))
    }

    fn take(&mut self, node: &str, disk_bytes: u64) {
        let (servers, bytes) = self.taken.entry(node.to_owned()).or_default();
        (*servers, *bytes) = (*servers + 1, bytes.saturating_add(disk_bytes));
    }

    fn add(&mut self, kind: &Kind, index: usize, name: String, place: (String, Why), volume: Option<Volume>) {
        // A description that was checked has no more of a kind than there are endpoints.
        self.instances.extend(instance(kind, index, name, place, volume));
    }
}

/// As it is placed for the first time. `None`: a container has no so many.
pub fn instance(
    kind: &Kind,
    index: usize,
    name: String,
    (node, why): (String, Why),
    volume: Option<Volume>,
) -> Option<Instance> {
    let endpoint = kind.endpoint_of(index)?.number();
    let (kind, role, epoch) = (ServerKind::new(kind.name), Role::Primary, FIRST_EPOCH);
    Some(Instance { name, kind, index, node, endpoint, role, epoch, why, volume })
}

#[cfg(test)]
mod tests {
    use mgmt_api::{Capacity, NbdSpec, ServerSpec};
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::KINDS;
    use crate::ledger::{Account, Resource};

    fn wish(more: Value) -> DcSpec {
        let mut wish = json!({ "name": "shop", "nodes": ["n1", "n2", "n3"] });
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(wish).unwrap()
    }

    fn places(placement: &Placement) -> Vec<(&str, &str, &Why)> {
        placement.instances.iter().map(|it| (it.name.as_str(), it.node.as_str(), &it.why)).collect()
    }

    #[test]
    fn what_was_left_open_is_placed_the_same_way_each_time() {
        let placed = || place(&wish(json!({})), KINDS, &Accounts::new()).unwrap();
        let one = placed();
        assert_eq!(one, placed());
        let beside = Why::Beside { server: "disk-root".to_owned() };
        let mut expected =
            vec![("disk-root", "n1", &Why::FewestServers), ("fs", "n1", &beside), ("ds", "n2", &Why::FewestServers)];
        for kind in ["gate", "cs", "calls"] {
            expected.extend(["n1", "n2", "n3"].map(|node| (kind, node, &Why::EachNode)));
        }
        assert_eq!(places(&one), expected);
        let numbers: Vec<u32> = one.instances.iter().map(|it| it.endpoint).collect();
        assert_eq!(numbers, [16, 1, 2, 64, 65, 66, 192, 193, 194, 128, 129, 130]);
    }

    #[test]
    fn store_is_on_a_disk_of_its_own_where_the_tree_has_copies_and_is_no_disk_of_people() {
        let tree = json!([{ "name": "root", "bytes": 1 << 30, "node": "n1", "replicas": 2 }]);
        let nbd = json!({ "listen": "127.0.0.1:10809" });
        let placed = |more: Value| {
            let mut all = json!({ "disks": tree, "nbd": nbd });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let wish = wish(all);
            (wish.clone(), place(&wish, KINDS, &Accounts::new()).unwrap())
        };
        let (spec, open) = placed(json!({}));
        let disk = store_disk(&open.instances).unwrap();
        let ds = open.first(&ServerKind::DS).unwrap();
        assert_eq!((disk.index, disk.name.as_str(), ds.node.as_str()), (STORE_DISK_INDEX, "disk-_ds", &*disk.node));
        assert_eq!(copies_of(&open.instances, disk).count(), 2);
        assert_eq!(ds.why, Why::Beside { server: "disk-_ds".to_owned() });
        assert_eq!(disk_of_server(&open.instances, ds), Some(disk));
        let exported = exports(&spec, &open.instances);
        assert_eq!(exported.iter().map(|(disk, _)| disk.name.as_str()).collect::<Vec<_>>(), ["disk-root"]);
        assert_eq!(open.promised.values().map(|promise| promise.disk_bytes).sum::<u64>(), 2 << 30);
        let (_, asked) = placed(json!({ "servers": [{ "kind": "ds", "node": "n3" }] }));
        let on = |kind| asked.first(&kind).map(|one| one.node.as_str());
        assert_eq!((on(ServerKind::DS), store_disk(&asked.instances).map(|one| &*one.node)), (Some("n3"), Some("n3")));
        let (_, one) = placed(json!({ "disks": [{ "name": "root", "bytes": 1 << 30 }] }));
        assert_eq!(store_disk(&one.instances), None);
    }

    #[test]
    fn call_gates_are_for_containers_that_are_made_for_several_nodes_where_all_know_them() {
        let gates = |kinds: &[Kind], nodes: &[&str]| {
            let placed = place(&wish(json!({ "nodes": nodes })), kinds, &Accounts::new()).unwrap();
            placed.instances.into_iter().filter(|one| one.kind.name() == "calls").collect::<Vec<_>>()
        };
        assert_eq!((gates(KINDS, &["n1", "n2"]).len(), gates(KINDS, &["n1"]).len()), (2, 0));
        let of_before = crate::records::of_the_first_release();
        for level in of_before.oldest..=of_before.newest {
            assert_eq!(gates(&crate::kinds::known_at(level.into()), &["n1", "n2"]), []);
        }
        assert_eq!(gates(&crate::kinds::known_at(crate::records::FORMAT), &["n1", "n2"]).len(), 2);
        // A node that comes later has one if the others do.
        let (one, two) = (gates(KINDS, &["n1"]), gates(KINDS, &["n1", "n2"]));
        let of_another = |there: &[Instance]| {
            let further = instances_of_another(&wish(json!({})), KINDS, "n3", 2, there);
            further.iter().map(|one| one.kind.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of_another(&one), ["gate", "cs"]);
        assert_eq!(of_another(&two), ["gate", "cs", "calls"]);
    }

    #[test]
    fn each_copy_is_on_another_node_with_room_and_the_disk_beside_the_first() {
        let disks = json!([
            { "name": "a", "node": "n2", "bytes": 1 << 30, "replicas": 2 },
            { "name": "b", "bytes": 1 << 30 },
            { "name": "c", "bytes": 2_u64 << 30, "replicas": 3 },
        ]);
        let mut placed = place(&wish(json!({ "disks": disks })), KINDS, &Accounts::new()).unwrap();
        let of = |kind: &str, name: &str| {
            let named = placed.instances.iter().filter(|one| one.kind.name() == kind && is_volume(one, name));
            named.map(|one| (one.node.as_str(), one.endpoint)).collect::<Vec<_>>()
        };
        assert_eq!((of("copy", "a"), of("disk", "a")), (vec![("n2", 48), ("n1", 49)], vec![("n2", 16)]));
        assert_eq!(of("copy", "b"), []);
        let nodes: BTreeSet<&str> = of("copy", "c").into_iter().map(|(node, _)| node).collect();
        assert_eq!((nodes.len(), of("copy", "c")[0].0), (3, of("disk", "c")[0].0));
        // An image counts once, and that of "b" is the disk's own.
        let promised = placed.promised.values().map(|promise| promise.disk_bytes >> 30).sum::<u64>();
        assert_eq!(promised, 2 + 1 + 6);

        let mut last = 0;
        let mut draw = || -> Result<u64, ()> {
            last += 1;
            Ok(last)
        };
        number_sets(&mut placed.instances, &mut draw).unwrap();
        let sets = placed.instances.iter().filter_map(|one| one.volume.as_ref());
        let sets: BTreeSet<(&str, Option<u64>)> = sets.map(|volume| (volume.name.as_str(), volume.set)).collect();
        assert_eq!(sets, BTreeSet::from([(STORE_DISK, Some(1)), ("a", Some(2)), ("b", None), ("c", Some(3))]));

        // Where the second copy has no room nothing is made.
        let small = Capacity { containers: 9, memory_bytes: 1 << 30, disk_bytes: Some(1 << 20), cpus: 1 };
        let accounts = ["n1", "n3"].map(|node| (node.to_owned(), Account::new(small, Default::default())));
        let two = json!({ "disks": [{ "name": "a", "node": "n2", "bytes": 1 << 30, "replicas": 2 }] });
        let shortage = place(&wish(two), KINDS, &Accounts::from(accounts)).unwrap_err();
        assert_eq!((shortage.node.as_str(), shortage.of), ("n1", Resource::Disk));
    }

    #[test]
    fn placement_that_was_asked_for_is_kept() {
        let mut asked = wish(json!({ "disks": [{ "name": "a", "node": "n3", "bytes": 1 << 30 }] }));
        asked.servers.push(ServerSpec { kind: ServerKind::FS, node: Some("n2".to_owned()) });
        let placed = place(&asked, KINDS, &Accounts::new()).unwrap();
        let expected = [("disk-a", "n3", &Why::Asked), ("fs", "n2", &Why::Asked), ("ds", "n1", &Why::FewestServers)];
        assert_eq!(places(&placed)[..3], expected);
        assert_eq!(placed.instances[0].volume.as_ref().map(|volume| volume.bytes), Some(1 << 30));
    }

    /// Numbers that follow from a seed (xorshift).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }

        fn perhaps<T>(&mut self, value: T) -> Option<T> {
            (self.below(2) == 0).then_some(value)
        }
    }

    const MIB: u64 = 1 << 20;

    fn some_accounts(numbers: &mut Numbers) -> Accounts {
        let account = |numbers: &mut Numbers| {
            let (memory_bytes, disk) = (numbers.below(4000) * MIB, numbers.below(8000) * MIB);
            let capacity =
                Capacity { containers: 1 + numbers.below(6), memory_bytes, disk_bytes: numbers.perhaps(disk), cpus: 2 };
            Account::new(capacity, Promise::default())
        };
        (0..4).map(|index| (format!("n{index}"), account(numbers))).collect()
    }

    fn some_wish(numbers: &mut Numbers) -> DcSpec {
        let nodes: Vec<String> = (0..4).filter(|_| numbers.below(3) > 0).map(|index| format!("n{index}")).collect();
        let nodes = if nodes.is_empty() { vec!["n0".to_owned()] } else { nodes };
        let mut wish = wish(json!({ "nodes": nodes }));
        let node = |numbers: &mut Numbers| {
            let index = numbers.below(nodes.len() as u64) as usize;
            numbers.perhaps(nodes[index].clone())
        };
        for index in 0..numbers.below(4) {
            let (node, bytes) = (node(numbers), (16 + numbers.below(2000)) * MIB);
            let store = if numbers.below(4) == 0 { DiskStore::Sparse } else { DiskStore::Image };
            wish.disks.push(DiskSpec { name: format!("d{index}"), node, bytes, store, replicas: None });
        }
        for kind in [ServerKind::FS, ServerKind::DS] {
            let node = node(numbers);
            wish.servers.extend(numbers.perhaps(ServerSpec { kind, node }));
        }
        wish.limits.memory_bytes = numbers.perhaps(()).map(|()| (4 + numbers.below(1500)) * MIB);
        wish
    }

    /// What must hold of every placement.
    fn check(wish: &DcSpec, placed: &Placement) {
        let count = |kind: &str| placed.instances.iter().filter(|it| it.kind.name() == kind).count();
        let counts = ["disk", "fs", "ds", "gate"].map(count);
        assert_eq!(counts, [wish.disks.len().max(1), 1, 1, wish.nodes.len()]);
        assert!(placed.instances.iter().all(|it| wish.nodes.contains(&it.node)));
        for (index, disk) in wish.disks.iter().enumerate() {
            let instance = placed.instances.iter().find(|it| it.kind == ServerKind::DISK && it.index == index).unwrap();
            assert!(disk.node.as_ref().is_none_or(|node| (node, &Why::Asked) == (&instance.node, &instance.why)));
        }
        for server in &wish.servers {
            let instance = placed.first(&server.kind).unwrap();
            assert!(server.node.as_ref().is_none_or(|node| (node, &Why::Asked) == (&instance.node, &instance.why)));
        }
    }

    fn within(accounts: &Accounts) -> bool {
        accounts.values().all(|account| {
            let (has, promised) = (account.capacity.unwrap(), account.promised);
            promised.containers <= has.containers
                && promised.memory_bytes <= has.memory_bytes
                && has.disk_bytes.is_none_or(|bytes| promised.disk_bytes <= bytes)
        })
    }

    #[test]
    fn no_node_promises_more_than_it_has_whatever_comes_and_goes_and_refusals_are_true() {
        let (mut placed_in_all, mut refused_in_all) = (0, 0);
        for seed in 1..=200_u64 {
            let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut accounts = some_accounts(&mut numbers);
            let mut there: Vec<Placement> = Vec::new();
            for _ in 0..40 {
                if numbers.below(3) == 0 && !there.is_empty() {
                    let gone = there.swap_remove(numbers.below(there.len() as u64) as usize);
                    for (node, promise) in &gone.promised {
                        let account = accounts.get_mut(node).unwrap();
                        account.promised = account.promised.minus(*promise);
                    }
                    continue;
                }
                let wish = some_wish(&mut numbers);
                let asked = wish.clone();
                let answer = place(&wish, KINDS, &accounts);
                assert_eq!((&answer, &asked), (&place(&asked, KINDS, &accounts), &wish), "seed {seed}");
                match answer {
                    Ok(placed) => {
                        check(&wish, &placed);
                        for (node, promise) in &placed.promised {
                            let account = accounts.get_mut(node).unwrap();
                            account.promised = account.promised.plus(*promise);
                        }
                        there.push(placed);
                        placed_in_all += 1;
                    }
                    Err(shortage) => {
                        assert!(shortage.wanted > shortage.left && wish.nodes.contains(&shortage.node), "seed {seed}");
                        refused_in_all += 1;
                    }
                }
                assert!(within(&accounts), "seed {seed}: {accounts:?}");
            }
            let none = Promise::default();
            let all = |node| there.iter().filter_map(|it| it.promised.get(node)).fold(none, |sum, it| sum.plus(*it));
            accounts.iter().for_each(|(node, account)| assert_eq!(account.promised, all(node), "seed {seed}"));
        }
        assert!(placed_in_all > 500 && refused_in_all > 500, "{placed_in_all} placed, {refused_in_all} refused");
    }

    #[test]
    fn disk_for_which_no_node_was_named_goes_where_there_is_room() {
        let room = |mib: u64| {
            Account::new(
                Capacity { containers: 1, memory_bytes: 0, disk_bytes: Some(mib * MIB), cpus: 1 },
                Promise::default(),
            )
        };
        let accounts: Accounts =
            [("n1", 1500), ("n2", 100), ("n3", 1100)].map(|(node, mib)| (node.to_owned(), room(mib))).into();
        let disks = json!([{ "name": "a", "bytes": 1 << 30 }, { "name": "b", "bytes": 1 << 30 }]);
        let placed = place(&wish(json!({ "disks": disks })), KINDS, &accounts).unwrap();
        assert_eq!(
            places(&placed)[..2],
            [("disk-a", "n1", &Why::FewestServers), ("disk-b", "n3", &Why::FewestServers)]
        );
        let too_many = json!([{ "name": "a", "bytes": 1 << 30 }, { "name": "b", "bytes": 1 << 30 }, { "name": "c", "bytes": 1 << 30 }]);
        let refused = place(&wish(json!({ "disks": too_many })), KINDS, &accounts).unwrap_err();
        assert_eq!((refused.of, refused.wanted), (Resource::Disk, 2 << 30));
    }

    #[test]
    fn disks_over_nbd_are_those_that_are_named_or_all_but_the_first() {
        let disks = json!([
            { "name": "root", "bytes": 1 << 30 }, { "name": "a", "bytes": 1 << 30 }, { "name": "b", "bytes": 1 << 30 },
        ]);
        let exported = |disks: Value, nbd: NbdSpec| {
            let wish = DcSpec { nbd: Some(nbd), ..wish(json!({ "disks": disks })) };
            let placed = instances(&wish, KINDS, &Accounts::new());
            let gate = placed.iter().find(|one| one.kind.name() == NBD).cloned().unwrap();
            let exports = exports(&wish, &placed);
            assert!(wish.nbd.is_some_and(|nbd| nbd.node.is_some()) || gate.node == exports[0].0.node);
            exports.iter().map(|(disk, only)| (disk.name.clone(), *only)).collect::<Vec<_>>()
        };
        let named =
            |names: &[&str]| NbdSpec { disks: names.iter().map(|&it| it.to_owned()).collect(), ..Default::default() };
        let pair = |name: &str, only| (format!("disk-{name}"), only);
        assert_eq!(exported(disks.clone(), named(&[])), [pair("a", false), pair("b", false)]);
        assert_eq!(exported(disks.clone(), named(&["b", "root"])), [pair("b", false), pair("root", true)]);
        let only = NbdSpec { read_only: true, node: Some("n3".to_owned()), ..named(&["a"]) };
        assert_eq!(exported(disks, only), [pair("a", true)]);
        assert_eq!(exported(json!([]), named(&[])), [pair("root", true)], "there is no other");
        assert!(instances(&wish(json!({})), KINDS, &Accounts::new()).iter().all(|one| one.kind.name() != NBD));
    }
}
