//! What one node has to bring about of a container: derived from its record, changed by nothing.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use abi::Endpoint;
use mgmt_api::{DcSpec, Instance, Placement, PortSpec, ServerState, ServerStatus};
use serde_json::{Map, Value, json};

use super::plan::Part;
use crate::kinds::{CALLS, KINDS, Kind, NBD, Setting};
use crate::placer;
use crate::records::{DcRecord, Desired, GoBack};
use crate::spec;

#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    pub id: u32,
    pub spec: DcSpec,
    pub placement: Placement,
    /// This node's seat in the container.
    pub index: usize,
    /// All nodes, each with its seat.
    pub seated: Vec<(usize, String)>,
    pub address: Ipv4Addr,
    /// Where the node has IPv6.
    pub address_ipv6: Ipv6Addr,
    pub pid_base: u32,
    /// Those that this node gives to programs.
    pub endpoints: Range<u32>,
    /// Its programs stand still.
    pub paused: bool,
    /// What is to become of its tree first.
    pub go_back: Option<GoBack>,
    /// In the order in which they are made.
    pub parts: Vec<Part>,
}

impl Share {
    /// `None`: the container does not span this node, or its record cannot be understood.
    pub fn of(record: &DcRecord, node: &str) -> Option<Share> {
        Share::with_kinds(record, node, KINDS)
    }

    pub fn with_kinds(record: &DcRecord, node: &str, kinds: &'static [Kind]) -> Option<Share> {
        let (spec, placement) = (record.spec.clone(), record.placement.clone());
        let index = record.seat_of(node)?;
        let mut parts = vec![Part::Broker, Part::Cgroup, Part::Keeper, Part::Network, Part::Mount];
        for instance in placement.instances.iter().filter(|instance| instance.node == node) {
            let kind = kinds.iter().find(|kind| kind.name == instance.kind.name())?;
            parts.push(Part::Server(kind, instance.index));
        }
        if spec.ports.iter().any(|port| port.is_at(node)) {
            parts.push(Part::Ports);
        }
        if spec.egress.is_some() {
            parts.push(Part::Egress);
        }
        let seat = u8::try_from(index).ok()?;
        let address = spec::subnet(&spec.subnet).ok()?.address(seat).ok()?;
        let address_ipv6 = sandbox::overlay::address_ipv6(record.id, seat);
        let (pid_base, endpoints) = (spec::pid_base(index), record.endpoints_of(index)?);
        let seated = record.seated().map(|(seat, node)| (seat, node.clone())).collect();
        // What stands still does not end.
        let (id, paused) = (record.id, record.paused && record.desired == Desired::Running);
        let go_back = record.go_back.clone();
        Some(Share {
            id,
            spec,
            placement,
            index,
            seated,
            address,
            address_ipv6,
            pid_base,
            endpoints,
            paused,
            go_back,
            parts,
        })
    }

    /// Of a server or gate: where it was placed.
    pub fn instance(&self, part: &Part) -> Option<&Instance> {
        let Part::Server(kind, index) = part else { return None };
        self.placement.instances.iter().find(|one| one.kind.name() == kind.name && one.index == *index)
    }

    /// The number a server or gate binds.
    pub fn endpoint(&self, part: &Part) -> Option<Endpoint> {
        Endpoint::new(self.instance(part)?.endpoint)
    }

    /// How a part is called in records, logs and for people; `None` for what is no process.
    pub fn role_name(&self, part: &Part) -> Option<&str> {
        match part {
            Part::Keeper => Some("keeper"),
            Part::Ports => Some("ports"),
            Part::Egress => Some("egress"),
            part => self.instance(part).map(|instance| instance.name.as_str()),
        }
    }

    /// What is said of a server or gate: as of one about which nothing is known but where it should be.
    pub fn status(&self, part: &Part) -> Option<ServerStatus> {
        let Instance { name, kind, endpoint, .. } = self.instance(part)?.clone();
        Some(ServerStatus { name, kind, endpoint, state: ServerState::Unknown, pid: None, restarts: 0 })
    }

    /// Whether it is a disk with several copies.
    pub fn is_replicated(&self, part: &Part) -> bool {
        self.copies(part).next().is_some()
    }

    /// Of a disk.
    pub fn copies<'a>(&'a self, disk: &Part) -> impl Iterator<Item = &'a Instance> {
        let disk = self.instance(disk).filter(|instance| instance.kind == mgmt_api::ServerKind::DISK);
        disk.into_iter().flat_map(|disk| self.copies_of(disk))
    }

    fn copies_of<'a>(&'a self, disk: &'a Instance) -> impl Iterator<Item = &'a Instance> {
        placer::copies_of(&self.placement.instances, disk)
    }

    /// On which the key-value server has its file; `None`: it is one of its node.
    pub fn store_disk(&self) -> Option<&Instance> {
        placer::store_disk(&self.placement.instances)
    }

    fn exports(&self) -> String {
        let exports = placer::exports(&self.spec, &self.placement.instances).into_iter();
        let shown = exports.filter_map(|(disk, is_read_only)| {
            let only = if is_read_only { ":ro" } else { "" };
            Some(format!("{}={}{only}", disk.volume.as_ref()?.name, disk.endpoint))
        });
        shown.collect::<Vec<_>>().join(",")
    }

    fn disk_of(&self, copy: &Instance) -> Option<&Instance> {
        let name = &copy.volume.as_ref()?.name;
        let is_disk = |one: &&Instance| one.kind == mgmt_api::ServerKind::DISK;
        self.placement
            .instances
            .iter()
            .filter(is_disk)
            .find(|one| one.volume.as_ref().is_some_and(|it| it.name == *name))
    }

    /// What it publishes on its node, which is this one.
    pub fn ports<'a>(&'a self, node: &'a str) -> impl Iterator<Item = &'a PortSpec> {
        self.spec.ports.iter().filter(move |port| port.is_at(node))
    }

    /// Whether its programs' calls to other nodes are answered.
    pub fn has_call_gate(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Server(kind, _) if kind.name == CALLS))
    }

    /// The options in a server's spawn record. `None`: the container has not what they are about.
    pub fn options(&self, part: &Part) -> Option<Value> {
        self.options_where(part, |_| true)
    }

    /// Those of which a server hears by nothing else while it runs, and that are not for its beginning alone.
    pub fn lasting_options(&self, part: &Part) -> Option<Value> {
        const BEGINNING: [Setting; 4] =
            [Setting::Copies, Setting::EpochOfOwner, Setting::GoBackTo, Setting::GoBackNumber];
        self.options_where(part, |setting| !BEGINNING.contains(&setting))
    }

    fn options_where(&self, part: &Part, is_meant: impl Fn(Setting) -> bool) -> Option<Value> {
        let Part::Server(kind, _) = part else { return None };
        let mut options = Map::new();
        for (name, setting) in kind.options.iter().filter(|option| is_meant(option.1)) {
            let first = |kind: &str| self.placement.instances.iter().find(|one| one.kind.name() == kind);
            let value = match setting {
                Setting::EndpointOf(kind) => json!(first(kind)?.endpoint),
                Setting::EpochOf(kind) => json!(first(kind)?.epoch),
                // Whether there is one at the moment or not.
                Setting::OwnerOfDisk if owner_of(self.instance(part)?) == NBD => json!(Endpoint::NBD.number()),
                Setting::OwnerOfDisk => json!(first(owner_of(self.instance(part)?))?.endpoint),
                Setting::EpochOfOwner => match first(owner_of(self.instance(part)?)) {
                    Some(owner) => json!(owner.epoch),
                    None => continue,
                },
                Setting::StoreDisk | Setting::StoreDiskEpoch => match self.store_disk() {
                    Some(disk) if *setting == Setting::StoreDisk => json!(disk.endpoint),
                    Some(disk) => json!(disk.epoch),
                    None => continue,
                },
                Setting::Exports => json!(self.exports()),
                Setting::DiskBytes => json!(self.instance(part)?.volume.as_ref()?.bytes),
                Setting::MayBeLonger if self.instance(part)?.volume.as_ref()?.grown_from.is_none() => continue,
                Setting::MayBeLonger => json!(1),
                Setting::Set => match self.instance(part)?.volume.as_ref()?.set {
                    Some(set) => json!(set),
                    None => continue,
                },
                Setting::DiskOfCopy => json!(self.disk_of(self.instance(part)?)?.endpoint),
                Setting::OwnCopy | Setting::Copies if !self.is_replicated(part) => continue,
                Setting::OwnCopy => {
                    let instance = self.instance(part)?;
                    json!(self.copies_of(instance).find(|copy| copy.node == instance.node)?.index)
                }
                Setting::Copies => {
                    json!(self.copies_of(self.instance(part)?).fold(0_u64, |bits, copy| bits | 1 << copy.index))
                }
                Setting::NodeIndex => json!(self.index),
                Setting::Seats => json!(self.seated.iter().fold(0_u64, |bits, (seat, _)| bits | 1 << seat)),
                Setting::GoBackTo | Setting::GoBackNumber if self.go_back.is_none() => continue,
                Setting::GoBackTo => json!(self.go_back.as_ref()?.snapshot),
                Setting::GoBackNumber => json!(self.go_back.as_ref()?.number),
                Setting::UidBase => json!(crate::uids::inside(self.id)),
            };
            options.insert((*name).to_owned(), value);
        }
        Some(Value::Object(options))
    }
}

/// Which kind may change a disk.
fn owner_of(disk: &Instance) -> &'static str {
    match disk.index {
        _ if placer::is_store(disk) => "ds",
        0 => "fs",
        _ => NBD,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn share(more: serde_json::Value) -> Option<Share> {
        let mut record = json!({
            "id": 7, "spec": { "name": "shop", "nodes": ["n1", "n2"] }, "desired": { "kind": "running" },
            "generation": 1, "created_s": 0, "endpoints": [{ "start": 256, "end": 2304 }, { "start": 2304, "end": 4352 }],
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Share::of(&serde_json::from_value(record).unwrap(), "n2")
    }

    #[test]
    fn what_follows_from_a_seat_stays_when_other_nodes_come_and_go() {
        let endpoints = json!([
            { "start": 256, "end": 2304 }, { "start": 2304, "end": 4352 }, { "start": 4352, "end": 4477 },
        ]);
        let before = share(json!({})).unwrap();
        let spec = json!({ "name": "shop", "nodes": ["n2", "n3"] });
        let seats = json!({ "n1": 0, "n2": 1, "n3": 2 });
        let after = share(json!({ "spec": spec, "endpoints": endpoints, "seats": seats })).unwrap();
        assert_eq!((after.index, after.address, after.pid_base), (1, before.address, before.pid_base));
        assert_eq!(
            (after.address_ipv6, before.address_ipv6.to_string().as_str()),
            (before.address_ipv6, "fd64:7673:0:7::2")
        );
        assert_eq!(after.endpoints, before.endpoints);
        assert_eq!(after.seated, [(1, "n2".to_owned()), (2, "n3".to_owned())]);
    }

    #[test]
    fn endpoints_are_those_of_the_record() {
        assert_eq!(share(json!({})).unwrap().endpoints, 2304..4352);
        assert_eq!(share(json!({ "endpoints": [{ "start": 256, "end": 2304 }] })), None, "nothing is made up");
    }

    #[test]
    fn who_asks_a_server_is_told_the_epoch_of_its_placement() {
        let mut share = share(json!({})).unwrap();
        let epochs = |share: &Share, kind| {
            let options = share.options(&crate::kinds::server(kind)).unwrap_or_default();
            ["fs_epoch", "disk_epoch"].map(|option| options.get(option).and_then(Value::as_u64))
        };
        share.placement.instances.iter_mut().for_each(|one| one.epoch = 10 + u64::from(one.endpoint));
        let of = |kind| share.placement.first(&kind).map(|one| one.epoch);
        let (fs, disk) = (of(mgmt_api::ServerKind::FS), of(mgmt_api::ServerKind::DISK));
        assert_eq!((epochs(&share, "gate"), epochs(&share, "fs")), ([fs, disk], [None, disk]));
    }

    #[test]
    fn disk_and_copies_are_told_of_each_other() {
        let disks = json!([
            { "name": "a", "node": "n1", "bytes": 1 << 30 },
            { "name": "b", "node": "n2", "bytes": 1 << 30, "replicas": 2 },
        ]);
        let mut share = share(json!({ "spec": { "name": "shop", "nodes": ["n1", "n2"], "disks": disks } })).unwrap();
        assert_eq!(share.parts.iter().filter(|part| share.is_replicated(part)).count(), 0, "an earlier record");
        let wish = share.spec.clone();
        share.placement = crate::placer::place(&wish, KINDS, &crate::ledger::Accounts::new()).unwrap();
        crate::placer::number_sets(&mut share.placement.instances, || Ok::<u64, ()>(5)).unwrap();
        let part = |kind: &str, index| Part::Server(KINDS.iter().find(|row| row.name == kind).unwrap(), index);
        let options = |part: Part| share.options(&part).unwrap();
        let set = json!({ "bytes": 1 << 30, "owner": 6, "set": 5, "own": 0, "copies": 0b11 });
        assert_eq!((options(part("disk", 1)), share.is_replicated(&part("disk", 1))), (set, true));
        let epoch = share.placement.first(&mgmt_api::ServerKind::FS).unwrap().epoch;
        assert_eq!(options(part("disk", 0)), json!({ "bytes": 1 << 30, "owner": 1, "owner_epoch": epoch }));
        for number in 0..2 {
            assert_eq!(options(part("copy", number)), json!({ "bytes": 1 << 30, "set": 5, "disk": 17 }));
            assert!(!share.is_replicated(&part("copy", number)), "it is none of several disks");
        }
    }

    #[test]
    fn servers_of_an_earlier_record_stand_where_its_description_says() {
        let servers = json!([{ "kind": "fs", "node": "n1" }, { "kind": "ds", "node": "n2" }]);
        let disks =
            json!([{ "name": "a", "node": "n2", "bytes": 1 << 30 }, { "name": "b", "node": "n1", "bytes": 1 << 30 }]);
        let spec = json!({ "name": "shop", "nodes": ["n1", "n2"], "servers": servers, "disks": disks });
        let share = share(json!({ "spec": spec })).unwrap();
        let names: Vec<&str> = share.parts.iter().filter_map(|part| share.role_name(part)).collect();
        assert_eq!(names, ["keeper", "disk-a", "ds", "gate", "cs"]);
    }
}
