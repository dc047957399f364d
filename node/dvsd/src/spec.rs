//! Checks the description of a container, and says what follows from the position of a node in it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

use abi::limits::{
    COPIES_PER_DC, DISKS_PER_DC, ENDPOINTS_PER_DC, ENDPOINTS_PROMISED, NODES_PER_DC, PIDS_PER_NODE,
    WELL_KNOWN_ENDPOINTS,
};
use mgmt_api::{DcSpec, EgressRule, ErrorBody, ErrorKind, PortProtocol, valid_name};
use rustix::thread::CpuSet;
use sandbox::overlay::{OverlayError, Subnet};
use vos_api::fs::VOLUME_BYTES_MIN;
use vos_api::ports::PORTS_MAX;

use crate::kinds::KINDS;

const DISK_BLOCK: u64 = 4096;
/// Of a disk beside that of the file tree, which has to hold [`VOLUME_BYTES_MIN`].
const DISK_BYTES_MIN: u64 = 16 << 20;
/// Within what any file system of a host takes as one file.
const DISK_BYTES_MAX: u64 = 8 << 40;
const EGRESS_RULES_MAX: usize = 256;
const CPU_LIST_BYTES_MAX: usize = 256;
const CPU_WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// A program alone needs some; less is a slip of the pen.
const MEMORY_BYTES_MIN: u64 = 4 << 20;

/// A shell needs a few dozen; more than a million no kernel gives unless told to.
const OPEN_FILES: RangeInclusive<u64> = 64..=1 << 20;
/// All of a machine are 4,096 unless it is told otherwise.
const TERMINALS: RangeInclusive<u32> = 1..=1 << 16;

/// The nodes of the cluster, each with its list of CPUs as the kernel writes it; empty when that is not known.
pub type KnownNodes = BTreeMap<String, String>;

/// What is wrong with a description, if anything is.
pub fn check(spec: &DcSpec, known_nodes: &KnownNodes) -> Result<(), ErrorBody> {
    if !valid_name(&spec.name) {
        return Err(bad(format!("{:?} is not a name for a container", spec.name))
            .hint("1 to 32 of a-z, 0-9 and -, beginning with a letter"));
    }
    check_nodes(spec, known_nodes)?;
    let last = u8::try_from(spec.nodes.len().saturating_sub(1)).unwrap_or(u8::MAX);
    if subnet(&spec.subnet)?.address(last).is_err() {
        return Err(bad(format!("the network {} has no {} addresses", spec.subnet, spec.nodes.len()))
            .hint("a larger network such as 10.1.0.0/24"));
    }
    service_core::wish::check_env(&spec.env)?;
    check_limits(spec)?;
    check_cpus(spec, known_nodes)?;
    check_servers(spec)?;
    check_disks(spec)?;
    check_ports(spec)?;
    check_egress(spec)?;
    check_nbd(spec)?;
    crate::volumes::check(spec)?;
    service_core::wish::check(&spec.services, &spec.nodes)
}

fn check_nodes(spec: &DcSpec, known: &KnownNodes) -> Result<(), ErrorBody> {
    if spec.nodes.is_empty() || spec.nodes.len() > NODES_PER_DC {
        return Err(bad(format!("a container spans 1 to {NODES_PER_DC} nodes, not {}", spec.nodes.len()))
            .hint("name its nodes: --nodes n1,n2"));
    }
    let mut seen = BTreeSet::new();
    for node in &spec.nodes {
        if !known.contains_key(node) {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            return Err(
                bad(format!("there is no node {node:?}")).hint(format!("nodes of this cluster: {}", names.join(", ")))
            );
        }
        if !seen.insert(node) {
            return Err(bad(format!("node {node:?} is named twice"))
                .hint("name each node once: its position gives its addresses"));
        }
    }
    Ok(())
}

fn check_limits(spec: &DcSpec) -> Result<(), ErrorBody> {
    let limits = &spec.limits;
    if limits.cpu_weight.is_some_and(|weight| !CPU_WEIGHTS.contains(&weight)) {
        return Err(bad("cpu_weight is out of range").hint("1 to 10,000; 100 is the usual one"));
    }
    if limits.cpu_max.is_some_and(|cpus| !cpus.is_finite() || !(0.01..=1024.0).contains(&cpus)) {
        return Err(bad("cpu_max is out of range").hint("0.01 to 1,024 CPUs' worth of time"));
    }
    if limits.memory_bytes.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
        return Err(bad("memory_bytes is out of range").hint(format!("at least {MEMORY_BYTES_MIN}")));
    }
    if limits.pids.is_some_and(|pids| !(2..=u64::from(PIDS_PER_NODE)).contains(&pids)) {
        return Err(bad("pids is out of range").hint(format!("2 to {PIDS_PER_NODE}")));
    }
    if limits.open_files.is_some_and(|files| !OPEN_FILES.contains(&files)) {
        return Err(bad("open_files is out of range").hint(format!("{} to {}", OPEN_FILES.start(), OPEN_FILES.end())));
    }
    if limits.terminals.is_some_and(|terminals| !TERMINALS.contains(&terminals)) {
        return Err(bad("terminals is out of range").hint(format!("{} to {}", TERMINALS.start(), TERMINALS.end())));
    }
    Ok(())
}

/// Every node must have all the CPUs of the list: the kernel refuses a group that names others.
fn check_cpus(spec: &DcSpec, known: &KnownNodes) -> Result<(), ErrorBody> {
    let Some(asked) = &spec.limits.cpus else { return Ok(()) };
    let list = cpu_ranges(asked)
        .ok_or_else(|| bad(format!("{asked:?} is not a list of CPUs")).hint("a list such as 0-1,3"))?;
    for node in &spec.nodes {
        let Some(has) = known.get(node) else { continue };
        let Some(there) = cpu_ranges(has) else { continue };
        let lacks = |cpu: &u16| !there.iter().any(|range| range.contains(cpu));
        if let Some(missing) = list.iter().cloned().flatten().find(lacks) {
            return Err(bad(format!("node {node} has no CPU {missing}, which the list {asked} names"))
                .because(format!("its CPUs are {has}"))
                .hint(format!("--cpu-list {has}, or without a list")));
        }
    }
    Ok(())
}

/// `None`: not a list of CPUs, or none that the kernel has a place for.
pub fn cpu_set(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for cpu in cpu_ranges(list)?.into_iter().flatten() {
        if usize::from(cpu) < CpuSet::MAX_CPU {
            set.set(usize::from(cpu));
        }
    }
    (set.count() > 0).then_some(set)
}

fn cpu_ranges(text: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let range = |part: &str| {
        let mut ends = part.splitn(2, '-').map(str::parse::<u16>);
        match (ends.next(), ends.next()) {
            (Some(Ok(one)), None) => Some(one..=one),
            (Some(Ok(low)), Some(Ok(high))) if low <= high => Some(low..=high),
            _ => None,
        }
    };
    if text.len() <= CPU_LIST_BYTES_MAX { text.split(',').map(range).collect() } else { None }
}

fn check_servers(spec: &DcSpec) -> Result<(), ErrorBody> {
    let mut seen = Vec::new();
    for server in &spec.servers {
        let name = server.kind.name();
        let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
            let names: Vec<&str> = KINDS.iter().filter(|kind| kind.is_chosen()).map(|kind| kind.name).collect();
            return Err(bad(format!("there is no server {name:?}")).hint(format!("one of {}", names.join(", "))));
        };
        if !kind.is_chosen() {
            return Err(bad("disk and gate are not named in servers")
                .hint("disks have a list of their own; every node gets a gate"));
        }
        if seen.contains(&kind) {
            return Err(bad(format!("the server {name} is named twice")).hint("name each server once"));
        }
        seen.push(kind);
        check_placed(spec, server.node.as_deref(), name)?;
    }
    Ok(())
}

fn check_disks(spec: &DcSpec) -> Result<(), ErrorBody> {
    demand_few_disks(spec, DISKS_PER_DC as usize)?;
    let mut seen = BTreeSet::new();
    for (index, disk) in spec.disks.iter().enumerate() {
        if !valid_name(&disk.name) || !seen.insert(&disk.name) {
            return Err(bad(format!("{:?} is not a name for a disk, or is named twice", disk.name))
                .hint("1 to 32 of a-z, 0-9 and -, beginning with a letter"));
        }
        // The file tree is on the first one.
        let (least, whose) =
            if index == 0 { (VOLUME_BYTES_MIN, "the disk of the file tree") } else { (DISK_BYTES_MIN, "a disk") };
        if disk.bytes % DISK_BLOCK != 0 || !(least..=DISK_BYTES_MAX).contains(&disk.bytes) {
            let (least, most) = (least >> 20, DISK_BYTES_MAX >> 40);
            let range = format!("{whose} has {least}M to {most}T, in steps of {DISK_BLOCK} bytes: --disk {least}M");
            return Err(bad(format!("disk {:?} cannot have {} bytes", disk.name, disk.bytes)).hint(range));
        }
        check_placed(spec, disk.node.as_deref(), &disk.name)?;
        let replicas = disk.replicas.unwrap_or(1);
        if !(1..=spec.nodes.len()).contains(&usize::from(replicas)) {
            let what = format!("disk {:?} cannot have {replicas} replicas", disk.name);
            return Err(bad(what).hint(format!("1 to {}: each on another node of the container", spec.nodes.len())));
        }
    }
    demand_few_copies(spec, 0)
}

/// A container that is made gets one disk more for its key-value server, where its tree has copies. One that is there
/// has it, or has not.
pub fn check_with_store(spec: &DcSpec) -> Result<(), ErrorBody> {
    let Some(of_store) = crate::placer::disk_of_store(spec) else { return Ok(()) };
    demand_few_disks(spec, DISKS_PER_DC as usize - 1)?;
    demand_few_copies(spec, of_store.replicas.map_or(0, u32::from))
}

fn demand_few_disks(spec: &DcSpec, most: usize) -> Result<(), ErrorBody> {
    if spec.disks.len() > most {
        return Err(bad(format!("{} disks are too many", spec.disks.len())).hint(format!("at most {most}")));
    }
    Ok(())
}

/// `of_store`: of the key-value server's disk.
fn demand_few_copies(spec: &DcSpec, of_store: u32) -> Result<(), ErrorBody> {
    let replicated = spec.disks.iter().filter(|disk| disk.is_replicated());
    let copies = replicated.map(|disk| u32::from(disk.replicas.unwrap_or(1))).sum::<u32>() + of_store;
    if copies <= COPIES_PER_DC {
        return Ok(());
    }
    let store = if of_store > 0 { format!(", with {of_store} of the key-value server's disk") } else { String::new() };
    Err(bad(format!("{copies} copies of disks are too many")).hint(format!(
        "all replicas of a container together are at most {COPIES_PER_DC}{store}: replicas = 1 for some"
    )))
}

fn check_nbd(spec: &DcSpec) -> Result<(), ErrorBody> {
    let Some(nbd) = &spec.nbd else { return Ok(()) };
    check_placed(spec, nbd.node.as_deref(), "nbd")?;
    if nbd.listen.port() == 0 {
        return Err(bad("clients of NBD cannot know port 0").hint("--listen 127.0.0.1:10809"));
    }
    let disks: Vec<String> = crate::placer::disks(spec).into_iter().map(|disk| disk.name).collect();
    let mut seen = BTreeSet::new();
    for name in &nbd.disks {
        if !disks.contains(name) {
            let what = format!("there is no disk {name:?} that could be served over NBD");
            return Err(bad(what).hint(format!("its disks are {}", disks.join(", "))));
        }
        if !seen.insert(name) {
            return Err(bad(format!("disk {name:?} is named twice for NBD")).hint("each once"));
        }
    }
    Ok(())
}

fn check_egress(spec: &DcSpec) -> Result<(), ErrorBody> {
    let rules = spec.egress.iter().flat_map(|egress| &egress.allow);
    if rules.clone().count() > EGRESS_RULES_MAX {
        return Err(bad("too many networks are allowed").hint(format!("at most {EGRESS_RULES_MAX}; larger ones")));
    }
    for rule in rules {
        rule.parse::<EgressRule>()
            .map_err(|error| bad(error.to_string()).hint("0.0.0.0/0 is all of IPv4, ::/0 all of IPv6"))?;
    }
    Ok(())
}

pub fn check_ports(spec: &DcSpec) -> Result<(), ErrorBody> {
    if spec.ports.len() > PORTS_MAX {
        let what = format!("{} published ports are too many", spec.ports.len());
        return Err(bad(what).hint(format!("at most {PORTS_MAX}")));
    }
    for (index, port) in spec.ports.iter().enumerate() {
        if spec.ports.iter().skip(index + 1).any(|other| port.collides(other)) {
            let (published, protocol) = (port.published, port.protocol.name());
            let what = format!("port {published}/{protocol} is published twice");
            return Err(ErrorBody::new(ErrorKind::Conflict, what).hint("once for each port, address and node"));
        }
        if port.proxy_protocol && port.protocol == PortProtocol::Udp {
            return Err(bad("datagrams have no beginning that could say who the client is")
                .hint("without proxy_protocol, or tcp"));
        }
        if port.address.is_some_and(|address| address.is_multicast()) {
            return Err(bad(format!("nobody listens at {port}")).hint("an address of the nodes"));
        }
        port.nodes.iter().try_for_each(|node| check_placed(spec, Some(node), &format!("port {port}")))?;
    }
    Ok(())
}

fn check_placed(spec: &DcSpec, node: Option<&str>, what: &str) -> Result<(), ErrorBody> {
    match node {
        Some(node) if !spec.nodes.iter().any(|one| one == node) => {
            Err(bad(format!("{what} is placed on {node:?}, which the container does not span"))
                .hint(format!("one of {}", spec.nodes.join(", "))))
        }
        _ => Ok(()),
    }
}

fn bad(what: impl Into<String>) -> ErrorBody {
    ErrorBody::new(ErrorKind::BadRequest, what)
}

/// A private IPv4 network.
pub fn subnet(text: &str) -> Result<Subnet, ErrorBody> {
    let subnet: Subnet = text
        .parse()
        .map_err(|error: OverlayError| bad(error.to_string()).hint("a private network such as 10.1.0.0/24"))?;
    let base = subnet.base();
    if base.is_loopback() || base.is_multicast() || base.is_unspecified() || base.octets()[0] >= 240 {
        return Err(bad(format!("{text} cannot be the network of a container")).hint("use a private range"));
    }
    Ok(subnet)
}

/// Endpoints that each node of a container gives to programs when it spans as many as it may.
const ENDPOINTS_OF_MANY: u32 = (ENDPOINTS_PER_DC - WELL_KNOWN_ENDPOINTS) / NODES_PER_DC as u32;

/// Endpoints that each node of a new container gives to programs, in the order of its nodes: alike, and together what a
/// container is promised. They are kept with the container, because a node that comes later must take nothing from
/// those that have bound theirs.
pub fn share_endpoints(nodes: usize) -> Vec<Range<u32>> {
    let count = u32::try_from(nodes).unwrap_or(u32::MAX).clamp(1, NODES_PER_DC as u32);
    let each = ENDPOINTS_PROMISED.div_ceil(count).max(ENDPOINTS_OF_MANY);
    let firsts = (WELL_KNOWN_ENDPOINTS..=ENDPOINTS_PER_DC - each).step_by(each as usize);
    firsts.map(|first| first..first + each).take(nodes).collect()
}

/// Endpoints of a node that comes later: a part of those that no seat has, so that others can come as well. `None`:
/// there are too few.
pub fn further_endpoints(taken: &[Range<u32>]) -> Option<Range<u32>> {
    let first = taken.iter().map(|range| range.end).max().unwrap_or(WELL_KNOWN_ENDPOINTS);
    let left = ENDPOINTS_PER_DC.checked_sub(first)?;
    let most = taken.iter().map(|range| range.end - range.start).max().unwrap_or(left);
    let each = (left / 8).clamp(ENDPOINTS_OF_MANY, most.max(ENDPOINTS_OF_MANY));
    (each <= left).then(|| first..first + each)
}

/// First PID of the node on a seat.
pub fn pid_base(index: usize) -> u32 {
    (u32::try_from(index).unwrap_or(0) + 1) * PIDS_PER_NODE
}

/// Seat of the node that a PID belongs to; `None` for those that belong to no node.
pub fn index_of_pid(pid: u32) -> Option<usize> {
    (pid / PIDS_PER_NODE).checked_sub(1).map(|index| index as usize)
}

#[cfg(test)]
mod tests {
    use mgmt_api::{DiskSpec, DiskStore, ServerKind, ServerSpec};

    use super::*;

    fn known() -> KnownNodes {
        [("n1", "0-1"), ("n2", "0-1,4-7"), ("n3", "")].map(|(name, cpus)| (name.to_owned(), cpus.to_owned())).into()
    }

    fn spec(nodes: &[&str]) -> DcSpec {
        let nodes: Vec<&str> = nodes.to_vec();
        serde_json::from_value(serde_json::json!({ "name": "shop", "nodes": nodes })).unwrap()
    }

    #[test]
    fn nodes_that_come_later_get_endpoints_as_long_as_there_are_some() {
        for nodes in [1, 2, 3, 20, NODES_PER_DC] {
            let mut taken = share_endpoints(nodes);
            while let Some(further) = further_endpoints(&taken) {
                assert!(further.end <= ENDPOINTS_PER_DC && further.len() >= ENDPOINTS_OF_MANY as usize);
                assert!(taken.iter().all(|range| range.end <= further.start), "{further:?} is nobody else's");
                taken.push(further);
            }
            assert!(taken.len() >= (nodes + 10).min(NODES_PER_DC), "{nodes}: {}", taken.len());
        }
    }

    #[test]
    fn mistakes_are_refused_with_a_reason() {
        let mut wrong: Vec<(&str, DcSpec)> =
            vec![("unknown", spec(&["n9"])), ("none", spec(&[])), ("twice", spec(&["n1", "n1"]))];
        let mut with = |what: &'static str, change: fn(&mut DcSpec)| {
            let mut one = spec(&["n1"]);
            change(&mut one);
            wrong.push((what, one));
        };
        with("name", |spec| spec.name = "../x".to_owned());
        with("host bits", |spec| spec.subnet = "10.1.0.1/24".to_owned());
        with("prefix", |spec| spec.subnet = "10.1.0.0/33".to_owned());
        with("odd size", |spec| {
            spec.disks =
                vec![serde_json::from_value(serde_json::json!({ "name": "a", "bytes": (1_u64 << 30) + 1 })).unwrap()]
        });
        with("foreign node", |spec| {
            spec.servers = vec![ServerSpec { kind: ServerKind::DS, node: Some("n2".to_owned()) }]
        });
        with("kind", |spec| spec.servers = vec![ServerSpec { kind: ServerKind::new("gate"), node: None }]);
        with("no kind", |spec| {
            spec.servers = vec![ServerSpec { kind: ServerKind::new("nfs"), node: None }];
        });
        with("cpus", |spec| spec.limits.cpus = Some("3-1".to_owned()));
        with("open_files", |spec| spec.limits.open_files = Some(3));
        with("terminals", |spec| spec.limits.terminals = Some(0));
        with("cpu_max", |spec| spec.limits.cpu_max = Some(f64::NAN));
        for (what, spec) in wrong {
            assert!(check(&spec, &known()).is_err(), "{what}");
        }
    }

    #[test]
    fn disk_on_which_no_file_tree_fits_is_refused_before_anything_is_made() {
        let with = |sizes: &[u64]| {
            let mut one = spec(&["n1"]);
            let disk = |(index, bytes): (usize, &u64)| DiskSpec {
                name: format!("d{index}"),
                node: None,
                bytes: *bytes,
                store: DiskStore::Image,
                replicas: None,
            };
            one.disks = sizes.iter().enumerate().map(disk).collect();
            check(&one, &known()).map_err(|body| body.hint.unwrap_or_default())
        };
        assert_eq!(with(&[VOLUME_BYTES_MIN]), Ok(()));
        assert_eq!(with(&[VOLUME_BYTES_MIN, DISK_BYTES_MIN]), Ok(()), "the second one has no tree");
        let refused = with(&[16 << 20]).unwrap_err();
        assert!(refused.contains("the disk of the file tree has 32M to 8T"), "{refused}");
        let refused = with(&[VOLUME_BYTES_MIN, 8 << 20]).unwrap_err();
        assert!(refused.contains("a disk has 16M"), "{refused}");
        assert!(with(&[VOLUME_BYTES_MIN + 1]).is_err() && with(&[DISK_BYTES_MAX + 4096]).is_err());
    }

    #[test]
    fn list_of_cpus_names_only_those_that_every_node_has() {
        let with = |nodes: &[&str], cpus: &str| {
            let mut one = spec(nodes);
            one.limits.cpus = Some(cpus.to_owned());
            check(&one, &known()).map_err(|body| body.what)
        };
        assert!(with(&["n1", "n2"], "0-1").is_ok());
        assert!(with(&["n2"], "1,4-6").is_ok());
        assert!(with(&["n3"], "700").is_ok(), "nothing is known of its CPUs");
        let refused = with(&["n2", "n1"], "1,4-6").unwrap_err();
        assert!(refused.contains("node n1 has no CPU 4"), "{refused}");
    }

    #[test]
    fn list_of_cpus_becomes_the_set_of_them() {
        let set = cpu_set("0-1,4").unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|cpu| set.is_set(cpu)), [true, true, false, false, true, false]);
        assert_eq!((cpu_set("3-1"), cpu_set("60000")), (None, None));
    }

    #[test]
    fn addresses_and_pids_follow_from_the_position() {
        assert_eq!(subnet("10.1.0.0/24").unwrap().address(0).unwrap().to_string(), "10.1.0.1");
        assert_eq!((pid_base(0), index_of_pid(65_536 + 7), index_of_pid(1)), (65_536, Some(0), None));
    }

    #[test]
    fn nodes_of_a_container_share_at_least_what_is_promised_and_no_number_twice() {
        for nodes in 1..=NODES_PER_DC {
            let shares = share_endpoints(nodes);
            assert_eq!(shares.len(), nodes);
            let mut next = WELL_KNOWN_ENDPOINTS;
            for share in &shares {
                assert_eq!((share.start, share.len()), (next, shares[0].len()), "{nodes} nodes: {shares:?}");
                next = share.end;
            }
            assert!(next <= ENDPOINTS_PER_DC && next - WELL_KNOWN_ENDPOINTS >= ENDPOINTS_PROMISED, "{shares:?}");
            let later = (ENDPOINTS_PER_DC - next) as usize;
            assert!(later >= 60 * (NODES_PER_DC - nodes), "{nodes} nodes leave {later} to those that come later");
        }
        assert_eq!(share_endpoints(1).first(), Some(&(256..4352)));
        assert_eq!(share_endpoints(3), [256..1622, 1622..2988, 2988..4354]);
    }

    #[test]
    fn container_of_an_earlier_daemon_keeps_its_endpoints() {}
}
