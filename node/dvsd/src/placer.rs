//! Decides where the servers of a container stand. Pure: the same description gives the same placement.
//!
//! What the description says is kept. What it leaves open goes to the node of the container with the fewest of its servers, the first
//! of several, unless its kind belongs beside another one. Not here: whether a description makes sense (`spec`), who writes the
//! placement (`api/dcs.rs`).

use std::collections::BTreeMap;

use mgmt_api::{DcSpec, DiskSpec, DiskStore, Instance, Placement, Role, ServerKind, Volume, Why};

use crate::kinds::{Kind, Stands};

/// Of the disk that a container has when its description names none.
const DEFAULT_DISK_BYTES: u64 = 1 << 30;
/// Of what was placed for the first time.
const FIRST_EPOCH: u64 = 1;

/// The servers of a container whose description was checked.
pub fn place(wish: &DcSpec, kinds: &[Kind]) -> Placement {
    let disks = disks(wish);
    let asked = wish.servers.iter().filter_map(|server| server.node.as_deref());
    let asked = disks.iter().filter_map(|disk| disk.node.as_deref()).chain(asked);
    let mut placing = Placing { wish, servers: BTreeMap::new(), instances: Vec::new() };
    asked.for_each(|node| placing.count(node));
    for kind in kinds {
        match kind.stands {
            Stands::PerDisk => disks.iter().enumerate().for_each(|(index, disk)| placing.disk(kind, index, disk)),
            Stands::Once { beside } => placing.one(kind, beside),
            Stands::PerNode => wish.nodes.iter().enumerate().for_each(|(index, node)| {
                placing.add(kind, index, kind.name.to_owned(), (node.clone(), Why::EachNode), None);
            }),
        }
    }
    Placement { instances: placing.instances }
}

fn disks(wish: &DcSpec) -> Vec<DiskSpec> {
    if !wish.disks.is_empty() {
        return wish.disks.clone();
    }
    vec![DiskSpec { name: "root".to_owned(), node: None, bytes: DEFAULT_DISK_BYTES, store: DiskStore::Image }]
}

struct Placing<'a> {
    wish: &'a DcSpec,
    /// How many servers each node has, gates left out; those that were asked for are counted from the start.
    servers: BTreeMap<String, usize>,
    instances: Vec<Instance>,
}

impl Placing<'_> {
    fn disk(&mut self, kind: &Kind, index: usize, disk: &DiskSpec) {
        let place = self.asked(disk.node.as_deref()).unwrap_or_else(|| self.choose());
        let volume = Volume { name: disk.name.clone(), bytes: disk.bytes, store: disk.store.clone() };
        self.add(kind, index, format!("{}-{}", kind.name, disk.name), place, Some(volume));
    }

    fn one(&mut self, kind: &Kind, beside: Option<&'static str>) {
        let asked = self.wish.servers.iter().find(|server| server.kind.name() == kind.name);
        let neighbour = beside.and_then(|name| self.instances.iter().find(|instance| instance.kind.name() == name));
        let place = self
            .asked(asked.and_then(|server| server.node.as_deref()))
            .or_else(|| neighbour.map(|it| (it.node.clone(), Why::Beside { server: it.name.clone() })))
            .unwrap_or_else(|| self.choose());
        self.add(kind, 0, kind.name.to_owned(), place, None);
    }

    fn asked(&self, node: Option<&str>) -> Option<(String, Why)> {
        node.map(|node| (node.to_owned(), Why::Asked))
    }

    fn choose(&mut self) -> (String, Why) {
        let count = |node: &&String| self.servers.get(*node).copied().unwrap_or(0);
        let chosen = self.wish.nodes.iter().min_by_key(count).cloned().unwrap_or_default();
        self.count(&chosen);
        (chosen, Why::FewestServers)
    }

    fn count(&mut self, node: &str) {
        *self.servers.entry(node.to_owned()).or_default() += 1;
    }

    fn add(&mut self, kind: &Kind, index: usize, name: String, (node, why): (String, Why), volume: Option<Volume>) {
        // A description that was checked has no more of a kind than there are endpoints.
        let Some(endpoint) = kind.endpoint_of(index) else { return };
        let (kind, endpoint) = (ServerKind::new(kind.name), endpoint.number());
        let (role, epoch) = (Role::Primary, FIRST_EPOCH);
        self.instances.push(Instance { name, kind, index, node, endpoint, role, epoch, why, volume });
    }
}

#[cfg(test)]
mod tests {
    use mgmt_api::ServerSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::KINDS;

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
        let one = place(&wish(json!({})), KINDS);
        assert_eq!(one, place(&wish(json!({})), KINDS));
        let beside = Why::Beside { server: "disk-root".to_owned() };
        let mut expected =
            vec![("disk-root", "n1", &Why::FewestServers), ("fs", "n1", &beside), ("ds", "n2", &Why::FewestServers)];
        expected.extend(["n1", "n2", "n3"].map(|node| ("gate", node, &Why::EachNode)));
        assert_eq!(places(&one), expected);
        let numbers: Vec<u32> = one.instances.iter().map(|it| it.endpoint).collect();
        assert_eq!(numbers, [16, 1, 2, 64, 65, 66]);
    }

    #[test]
    fn placement_that_was_asked_for_is_kept() {
        let mut asked = wish(json!({ "disks": [{ "name": "a", "node": "n3", "bytes": 1 << 30 }] }));
        asked.servers.push(ServerSpec { kind: ServerKind::FS, node: Some("n2".to_owned()) });
        let placed = place(&asked, KINDS);
        let expected = [("disk-a", "n3", &Why::Asked), ("fs", "n2", &Why::Asked), ("ds", "n1", &Why::FewestServers)];
        assert_eq!(places(&placed)[..3], expected);
        assert_eq!(placed.instances[0].volume.as_ref().map(|volume| volume.bytes), Some(1 << 30));
    }
}
