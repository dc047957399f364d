//! What one node has to bring about of a container: derived from its record, changed by nothing.

use std::net::Ipv4Addr;
use std::ops::Range;

use abi::Endpoint;
use mgmt_api::{DcSpec, DiskSpec, ServerKind};

use super::plan::Part;
use crate::records::DcRecord;
use crate::spec::{self, Subnet};

#[derive(Clone, PartialEq, Debug)]
pub struct Share {
    pub id: u32,
    pub spec: DcSpec,
    /// Position of this node in the container's node list.
    pub index: usize,
    pub address: Ipv4Addr,
    pub pid_base: u32,
    /// Those that this node gives to programs.
    pub endpoints: Range<u32>,
    /// In the order in which they are made.
    pub parts: Vec<Part>,
}

impl Share {
    /// `None`: the container does not span this node, or its record cannot be understood.
    pub fn of(record: &DcRecord, node: &str) -> Option<Share> {
        let spec = record.spec.clone();
        let index = spec.nodes.iter().position(|one| one == node)?;
        let here = |placed: &Option<String>| placed.as_deref() == Some(node);
        let mut parts = vec![Part::Broker, Part::Cgroup, Part::Keeper, Part::Network];
        parts.extend((0..spec.disks.len()).filter(|index| here(&spec.disks[*index].node)).map(Part::Disk));
        for (kind, part) in [(ServerKind::Fs, Part::Fs), (ServerKind::Ds, Part::Ds)] {
            if spec.servers.iter().any(|server| server.kind == kind && here(&server.node)) {
                parts.push(part);
            }
        }
        parts.extend([Part::Mount, Part::Gate]);
        let address = Subnet::parse(&spec.subnet).ok()?.address(index);
        let endpoints = record.endpoints_of(index)?;
        Some(Share { id: record.id, index, address, pid_base: spec::pid_base(index), endpoints, parts, spec })
    }

    pub fn disk(&self, index: usize) -> Option<&DiskSpec> {
        self.spec.disks.get(index)
    }

    /// The number a server or gate binds.
    pub fn endpoint(&self, part: &Part) -> Option<Endpoint> {
        match part {
            Part::Fs => Some(Endpoint::FS),
            Part::Ds => Some(Endpoint::DS),
            Part::Disk(index) => spec::disk_endpoint(*index),
            Part::Gate => spec::gate_endpoint(self.index),
            Part::Broker | Part::Cgroup | Part::Keeper | Part::Network | Part::Mount => None,
        }
    }

    /// How a part is called in records, logs and for people; `None` for what is no process.
    pub fn role_name(&self, part: &Part) -> Option<String> {
        match part {
            Part::Fs => Some("fs".to_owned()),
            Part::Ds => Some("ds".to_owned()),
            Part::Gate => Some("gate".to_owned()),
            Part::Keeper => Some("keeper".to_owned()),
            Part::Disk(index) => self.disk(*index).map(|disk| format!("disk-{}", disk.name)),
            Part::Broker | Part::Cgroup | Part::Network | Part::Mount => None,
        }
    }
}

pub fn kind(part: &Part) -> Option<ServerKind> {
    match part {
        Part::Fs => Some(ServerKind::Fs),
        Part::Ds => Some(ServerKind::Ds),
        Part::Gate => Some(ServerKind::Gate),
        Part::Disk(_) => Some(ServerKind::Disk),
        Part::Broker | Part::Cgroup | Part::Keeper | Part::Network | Part::Mount => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn share(more: serde_json::Value) -> Option<Share> {
        let mut record = json!({
            "id": 7, "spec": { "name": "shop", "nodes": ["n1", "n2"] }, "desired": { "kind": "running" },
            "generation": 1, "created_s": 0,
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Share::of(&serde_json::from_value(record).unwrap(), "n2")
    }

    #[test]
    fn endpoints_are_those_of_the_record_and_of_an_earlier_one_those_it_had() {
        let kept = json!({ "endpoints": [{ "start": 256, "end": 2304 }, { "start": 2304, "end": 4352 }] });
        assert_eq!(share(kept).unwrap().endpoints, 2304..4352);
        assert_eq!(share(json!({})).unwrap().endpoints, 381..506);
        assert_eq!(share(json!({ "endpoints": [{ "start": 256, "end": 2304 }] })), None, "nothing is made up");
    }
}
