//! What the daemons keep in the cluster engine, and under which keys.
//!
//! | key | value | life |
//! |---|---|---|
//! | `/cluster` | `ClusterRecord`: which cluster this is, see `identity` | for ever |
//! | `/filling` | likewise | while the engine is filled from a copy; see `recovery` |
//! | `/members/NODE` | [`NodeRecord`] | for ever: a node that is down is still known |
//! | `/nodes/NODE` | [`NodeHealth`] | with the node's lease |
//! | `/dcs/NAME` | [`DcRecord`] | until deleted |
//! | `/dcs/NAME/shares/NODE` | `NodeShare` | with the node's lease |
//! | `/eps/DCID/ENDPOINT` | [`EndpointRecord`] | while bound; see `directory` |
//! | `/names/DCID/NAME` | number of the endpoint | while the record of the endpoint has the name: both are written together |
//! | `/capacity/NODE` | `Capacity` | for ever; written by the node |
//! | `/ledger/NODE` | `Promise` to all containers together | for ever; see `ledger` |
//! | `/removed/NODE` | `Removed` | until the name joins again |
//! | `/authority`, `/tokens/ID`, `/issued/NODE` | see `joining` | |
//! | `/access/NAME` | see `people` | until taken back |
//! | `/wishes/nodes/NODE` | [`NodeWish`] | until the node is removed |
//! | `/engine/…` | see `quorum` | |
//! | `/format` | number: of the shape of all this | for ever; see `level` |
//! | `/programs/DCID/…` | what the container's programs agree on; see `cs-core` | until deleted, or with the lease of the node for it; see `desks` |
//! | `/disks/DCID/disk.INDEX` | `replica_core::ReplicaRecord`: who is primary, and which copies have everything | likewise; see `desks` |
//! | `/services/DCID/…` | what is to be kept running; see `services::record` | until removed |
//! | `/loads/NODE` | thousandths of its CPUs in use | with the node's lease, while somebody wants to know |
//! | `/epochs/DCID/ENDPOINT` | number | with the container: incarnations never repeat, whichever node starts them |

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::kinds;
use crate::ledger::Accounts;
use crate::placer;
use crate::reconcile::plan::Stage;
use abi::EndpointName;
use cluster::{Compare, Engine, EngineError, Entry, Listing, Lookup, Op, Outcome, Revision};
use mgmt_api::{AllowedVolume, DcSpec, NodeShare, Placement};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use versions::{Release, Versions};

pub const MEMBERS: &str = "/members/";
pub const NODES: &str = "/nodes/";
pub const DCS: &str = "/dcs/";
pub const NODE_WISHES: &str = "/wishes/nodes/";
pub const ENDPOINTS: &str = "/eps/";
pub const NAMES: &str = "/names/";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeRecord {
    pub name: String,
    pub id: u16,
    pub epoch: u64,
    pub address: String,
    /// 0: its proxy does not listen on TCP.
    pub proxy_port: u16,
    /// UDP; 0: its proxy does not listen for QUIC.
    #[serde(default)]
    pub proxy_quic_port: u16,
    /// Of its proxy, for nodes on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_socket: Option<String>,
    /// Of its proxy, for nodes on the same Ethernet segment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_mac: Option<String>,
    /// Of its proxy, for nodes of the same TIPC network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_tipc: Option<String>,
    /// Proxies it has. Those after the first listen at the following ports, sockets and services.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub pairs: u8,
    /// Of its machine.
    #[serde(default)]
    pub boot_id: String,
    pub api_port: u16,
    pub cpus: u32,
    /// Which CPUs these are, as the kernel lists them (`0-3,8`); empty when it does not say.
    #[serde(default)]
    pub cpu_list: String,
    pub memory_bytes: u64,
    /// Of its dvs.
    #[serde(default)]
    pub release: Release,
    /// Directories that containers may have as volumes there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AllowedVolume>,
    /// It knows services, and may be given some.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub services: bool,
    /// Containers have addresses of IPv6 there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ipv6: bool,
    /// Its addresses of IPv6 that others may reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses_ipv6: Vec<Ipv6Addr>,
    /// Formats of all this that it reads.
    #[serde(default = "of_the_first_release")]
    pub records: Versions,
}

/// Who does not say what it reads.
pub fn of_the_first_release() -> Versions {
    Versions::from_to(1, 2)
}

fn one() -> u8 {
    1
}

fn is_one(pairs: &u8) -> bool {
    *pairs == 1
}

/// Seconds since 1970, as records have them.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Milliseconds since 1970, as what is told of an event has them.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeHealth {
    pub problems: Vec<String>,
    /// Nodes to which it has no link, with the second since 1970 at which it saw the link go. None: it had none when
    /// its daemon began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreachable: BTreeMap<String, Option<u64>>,
}

/// A container. Only people change what they asked for (`spec`, `desired`), only the placer's answer is in `placement`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(from = "StoredDc")]
pub struct DcRecord {
    pub id: u32,
    pub spec: DcSpec,
    pub placement: Placement,
    pub desired: Desired,
    /// Counts starts and stops, so that an old share is not taken for an answer to the newest wish.
    pub generation: u64,
    pub created_s: u64,
    /// Endpoints that each of its seats gives to programs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Range<u32>>,
    /// Its programs stand still; only of one that is to run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Of nodes that have one, or had: what follows from it (addresses, PIDs, endpoints) is nobody else's ever. Empty
    /// as long as no node came or went: then a node's position is its seat.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub seats: BTreeMap<String, usize>,
    /// Its tree is to be what it was for a snapshot before anybody uses it; until it is stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub go_back: Option<GoBack>,
    /// As large was the disk of its tree when its file server was last begun anew to take what there was more. `None`:
    /// never since the container was made, or a daemon wrote the record that does not know this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree_bytes: Option<u64>,
}

/// A wish, as its file server is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GoBack {
    /// Other than of the one before: it is heeded once.
    pub number: u64,
    pub snapshot: String,
}

/// As it is kept. A record without a placement is of a daemon that wrote the nodes it had chosen into the description:
/// what is placed from that description stands where it stood.
#[derive(Deserialize)]
struct StoredDc {
    id: u32,
    spec: DcSpec,
    placement: Option<Placement>,
    desired: Desired,
    generation: u64,
    created_s: u64,
    #[serde(default)]
    endpoints: Vec<Range<u32>>,
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    seats: BTreeMap<String, usize>,
    #[serde(default)]
    go_back: Option<GoBack>,
    #[serde(default)]
    tree_bytes: Option<u64>,
}

impl From<StoredDc> for DcRecord {
    fn from(stored: StoredDc) -> DcRecord {
        let StoredDc { id, spec, placement, desired, generation, created_s, endpoints, .. } = stored;
        let StoredDc { paused, seats, go_back, tree_bytes, .. } = stored;
        let placement = placement.unwrap_or_else(|| {
            // Without promises: by that `ledger::adopt` knows it.
            let instances = placer::instances(&spec, &kinds::known_at(FIRST_FORMAT), &Accounts::new());
            Placement { instances, promised: BTreeMap::new() }
        });
        DcRecord { id, spec, placement, desired, generation, created_s, endpoints, paused, seats, go_back, tree_bytes }
    }
}

impl DcRecord {
    /// Endpoints that the node on a seat gives to programs.
    pub fn endpoints_of(&self, seat: usize) -> Option<Range<u32>> {
        self.endpoints.get(seat).cloned()
    }

    /// Of a node that the container spans.
    pub fn seat_of(&self, node: &str) -> Option<usize> {
        let position = self.spec.nodes.iter().position(|one| one == node)?;
        if self.seats.is_empty() { Some(position) } else { self.seats.get(node).copied() }
    }

    /// Its nodes, each with its seat.
    pub fn seated(&self) -> impl Iterator<Item = (usize, &String)> {
        self.spec.nodes.iter().filter_map(|node| Some((self.seat_of(node)?, node)))
    }

    pub fn node_on(&self, seat: usize) -> Option<&String> {
        self.seated().find(|(other, _)| *other == seat).map(|(_, node)| node)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Desired {
    Running,
    Stopped {
        grace_ms: u64,
    },
    /// Like stopped, then images are removed (or moved aside) and the record goes.
    Deleted {
        images: Images,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Images {
    Remove,
    Keep,
}

/// A node's report: the share, and to which wish it answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ShareRecord {
    /// Of the container: its name may have been used before.
    pub id: u32,
    pub generation: u64,
    /// How far down it is.
    pub stage: Stage,
    /// Nothing of the container is left on this node, its images included when they were to go.
    pub gone: bool,
    pub share: NodeShare,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndpointRecord {
    pub node: u16,
    pub epoch: u64,
    /// Of a program: its pid in the container; 0 for a server.
    #[serde(default)]
    pub pid: i32,
    /// What it is called.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "name_as_text")]
    pub name: Option<EndpointName>,
}

mod name_as_text {
    use abi::EndpointName;
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Serialize, Serializer};

    pub fn serialize<S: Serializer>(name: &Option<EndpointName>, serializer: S) -> Result<S::Ok, S::Error> {
        name.as_ref().map(EndpointName::as_str).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<EndpointName>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        let parse = |text: String| EndpointName::new(text.as_bytes()).ok_or_else(|| D::Error::custom("not a name"));
        text.map(parse).transpose()
    }
}

pub fn member_key(node: &str) -> String {
    format!("{MEMBERS}{node}")
}

/// What people want of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeWish {
    /// Nothing new is placed there.
    #[serde(default)]
    pub cordoned: bool,
    /// It is about to be taken out: what it has for the cluster goes elsewhere first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A node that was taken out of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removed {
    pub since_s: u64,
    /// Its last one: whoever acts in it is late.
    pub epoch: u64,
}

pub fn node_wish_key(node: &str) -> String {
    format!("{NODE_WISHES}{node}")
}

pub fn removed_key(node: &str) -> String {
    format!("/removed/{node}")
}

pub fn node_key(node: &str) -> String {
    format!("{NODES}{node}")
}

pub fn dc_key(dc: &str) -> String {
    format!("{DCS}{dc}")
}

pub fn share_key(dc: &str, node: &str) -> String {
    format!("{DCS}{dc}/shares/{node}")
}

pub fn endpoint_key(dc: u32, endpoint: u32) -> String {
    format!("{ENDPOINTS}{dc}/{endpoint}")
}

pub fn name_key(dc: u32, name: EndpointName) -> String {
    format!("{NAMES}{dc}/{name}")
}

/// What a key below `/dcs/` is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DcKey<'a> {
    Record(&'a str),
    Share { dc: &'a str, node: &'a str },
}

pub fn parse_dc_key(key: &str) -> Option<DcKey<'_>> {
    let parts: Vec<&str> = key.strip_prefix(DCS)?.split('/').collect();
    match parts.as_slice() {
        [dc] => Some(DcKey::Record(dc)),
        [dc, "shares", node] => Some(DcKey::Share { dc, node }),
        _ => None,
    }
}

/// Container and endpoint of a key below `/eps/`.
pub fn parse_endpoint_key(key: &str) -> Option<(u32, u32)> {
    let (dc, endpoint) = key.strip_prefix(ENDPOINTS)?.split_once('/')?;
    Some((dc.parse().ok()?, endpoint.parse().ok()?))
}

pub fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, EngineError> {
    serde_json::from_slice(&entry.value).map_err(|_| EngineError::BadValue(entry.key.clone()))
}

/// Our own records always turn into JSON: their maps have string keys.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

pub fn read<T: DeserializeOwned>(engine: &dyn Lookup, key: &str) -> Result<Option<(T, Revision)>, EngineError> {
    let Some(entry) = engine.read(key)? else { return Ok(None) };
    Ok(Some((decode(&entry)?, entry.modified)))
}

/// What a list says of each name; keys are `prefix` and a name.
pub fn by_name<T: DeserializeOwned>(prefix: &str, listing: &Listing) -> Result<BTreeMap<String, T>, EngineError> {
    let entries = listing.entries.iter();
    entries.map(|entry| Ok((entry.key.trim_start_matches(prefix).to_owned(), decode(entry)?))).collect()
}

/// All nodes that were ever here, by name.
pub fn members(engine: &dyn Lookup) -> Result<BTreeMap<String, NodeRecord>, EngineError> {
    let entries = engine.list(MEMBERS)?.entries;
    entries.iter().map(|entry| decode(entry).map(|record: NodeRecord| (record.name.clone(), record))).collect()
}

/// A container with what its nodes say of it, all from one moment.
#[derive(Clone, Debug)]
pub struct DcView {
    pub record: DcRecord,
    pub modified: Revision,
    pub shares: BTreeMap<String, ShareRecord>,
}

impl DcView {
    fn add_share(&mut self, node: &str, share: ShareRecord) {
        if share.id == self.record.id {
            self.shares.insert(node.to_owned(), share);
        }
    }
}

/// Writes a container's record as it was changed, under the next generation. False: somebody else changed it first.
pub fn renew_dc(engine: &dyn Engine, view: &mut DcView) -> Result<bool, EngineError> {
    view.record.generation += 1;
    let key = dc_key(&view.record.spec.name);
    let unchanged = Compare::Modified { key: key.clone(), at: view.modified };
    match engine.transact(&[unchanged], &[Op::put(key, encode(&view.record))])? {
        Outcome::Done(modified) => {
            view.modified = modified;
            Ok(true)
        }
        Outcome::Conflict(_) => Ok(false),
    }
}

pub fn dc_views(engine: &dyn Lookup) -> Result<BTreeMap<String, DcView>, EngineError> {
    dc_views_in(&engine.list(DCS)?)
}

pub fn dc_views_in(listing: &Listing) -> Result<BTreeMap<String, DcView>, EngineError> {
    let mut views = BTreeMap::new();
    // Records come before their shares in the order of keys: "/dcs/a" < "/dcs/a/shares/n1".
    for entry in &listing.entries {
        match parse_dc_key(&entry.key) {
            Some(DcKey::Record(dc)) => {
                let view = DcView { record: decode(entry)?, modified: entry.modified, shares: BTreeMap::new() };
                views.insert(dc.to_owned(), view);
            }
            Some(DcKey::Share { dc, node }) => {
                if let Some(view) = views.get_mut(dc) {
                    view.add_share(node, decode(entry)?);
                }
            }
            None => (),
        }
    }
    Ok(views)
}

/// That the container of this name is still the one with this number. None: it is not, by now.
pub fn is_still(known: &dyn Lookup, dc: &str, id: u32) -> Result<Option<Compare>, EngineError> {
    let key = dc_key(dc);
    let found: Option<(DcRecord, Revision)> = read(known, &key)?;
    Ok(found.filter(|(record, _)| record.id == id).map(|(_, at)| Compare::Modified { key, at }))
}

pub fn dc_view(engine: &dyn Lookup, dc: &str) -> Result<Option<DcView>, EngineError> {
    // The prefix also matches longer names; few.
    let mut found: Option<DcView> = None;
    for entry in engine.list(&dc_key(dc))?.entries {
        match (parse_dc_key(&entry.key), &mut found) {
            (Some(DcKey::Record(name)), None) if name == dc => {
                found = Some(DcView { record: decode(&entry)?, modified: entry.modified, shares: BTreeMap::new() });
            }
            (Some(DcKey::Share { dc: name, node }), Some(view)) if name == dc => {
                view.add_share(node, decode(&entry)?);
            }
            _ => (),
        }
    }
    Ok(found)
}

/// Of records without placements.
const FIRST_FORMAT: u64 = 1;
/// The newest of these records that this daemon reads and writes. [`FIRST_FORMAT`], or nothing under the key: without
/// placements. 2: without call gates, ports, way out and environment (release 0.1).
pub const FORMAT: u64 = versions::RECORDS.speaks.newest as u64;
pub const FORMAT_KEY: &str = "/format";

/// A number that rises at each call, for ever, under a key: incarnations of nodes and servers.
pub fn raise(engine: &dyn Engine, key: &str) -> Result<u64, EngineError> {
    loop {
        let known = read(engine, key)?;
        if let Some(next) = raise_if(engine, key, known, Vec::new())? {
            return Ok(next);
        }
    }
}

/// Incarnation of a server that begins, as long as the container's record places it so. Whoever is to start it there
/// and has not heard that it stands elsewhere by now would have a higher one than the server that does. `known`: what
/// was just read under the key. `None`: it is not placed so any more.
pub fn raise_where_placed(
    engine: &dyn Engine,
    key: &str,
    mut known: Option<(u64, Revision)>,
    dc: &str,
    is_placed: impl Fn(&DcRecord) -> bool,
) -> Result<Option<u64>, EngineError> {
    let dc = dc_key(dc);
    loop {
        let Some((_, at)) = read::<DcRecord>(engine, &dc)?.filter(|(record, _)| is_placed(record)) else {
            return Ok(None);
        };
        if let Some(next) = raise_if(engine, key, known, vec![Compare::Modified { key: dc.clone(), at }])? {
            return Ok(Some(next));
        }
        known = read(engine, key)?;
    }
}

/// `None`: somebody else was quicker.
fn raise_if(
    engine: &dyn Engine,
    key: &str,
    known: Option<(u64, Revision)>,
    mut compares: Vec<Compare>,
) -> Result<Option<u64>, EngineError> {
    let (compare, next) = match known {
        Some((last, at)) => (Compare::Modified { key: key.to_owned(), at }, last + 1),
        None => (Compare::Absent { key: key.to_owned() }, 1),
    };
    compares.push(compare);
    let outcome = engine.transact(&compares, &[Op::put(key, encode(&next))])?;
    Ok(matches!(outcome, Outcome::Done(_)).then_some(next))
}

#[cfg(test)]
mod tests {
    use cluster::local::{LocalConfig, LocalEngine};

    use super::*;
    use crate::{ledger, level};

    #[test]
    fn keys_are_read_back_as_what_they_were_made_of() {
        assert_eq!(parse_dc_key(&dc_key("a")), Some(DcKey::Record("a")));
        assert_eq!(parse_dc_key(&share_key("a", "n1")), Some(DcKey::Share { dc: "a", node: "n1" }));
        assert_eq!(parse_dc_key("/dcs/a/b"), None);
        assert_eq!(parse_endpoint_key(&endpoint_key(7, 16)), Some((7, 16)));
    }

    #[test]
    fn server_has_a_new_incarnation_only_where_the_record_places_it() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).expect("the engine opens");
        let put = |key: &str, value: Vec<u8>| drop(engine.transact(&[], &[Op::put(key, value)]).expect("written"));
        let placed_on = |node: &str| {
            let spec = serde_json::json!({
                "name": "shop", "nodes": ["n1", "n2"], "disks": [{"name": "root", "bytes": 1 << 30, "node": node}],
            });
            let wish = serde_json::from_value(spec.clone()).unwrap();
            let placement = crate::placer::place(&wish, crate::kinds::KINDS, &ledger::Accounts::new()).unwrap();
            serde_json::json!({
                "id": 7, "spec": spec, "placement": placement, "desired": {"kind": "running"}, "generation": 1,
                "created_s": 0,
            })
        };
        let disk_is_on = |record: &DcRecord, node: &str| {
            record.placement.first(&mgmt_api::ServerKind::DISK).is_some_and(|disk| disk.node == node)
        };
        let raise = |node: &str| {
            let is_placed = |record: &DcRecord| disk_is_on(record, node);
            let known = read(&engine, "/epochs/7/16").expect("read");
            raise_where_placed(&engine, "/epochs/7/16", known, "shop", is_placed).expect("asked")
        };
        assert_eq!(raise("n1"), None, "there is no such container");
        put(&dc_key("shop"), encode(&placed_on("n1")));
        assert_eq!((raise("n1"), raise("n2"), raise("n1")), (Some(1), None, Some(2)));
        put(&dc_key("shop"), encode(&placed_on("n2")));
        assert_eq!((raise("n1"), raise("n2")), (None, Some(3)));
        // It is placed elsewhere in the moment after it was looked at.
        let moved = std::cell::Cell::new(false);
        let is_placed = |record: &DcRecord| {
            let is_here = disk_is_on(record, "n2");
            if is_here && !moved.replace(true) {
                put(&dc_key("shop"), encode(&placed_on("n1")));
            }
            is_here
        };
        let known = read(&engine, "/epochs/7/16").expect("read");
        assert_eq!(raise_where_placed(&engine, "/epochs/7/16", known, "shop", is_placed).expect("asked"), None);
        assert_eq!(read::<u64>(&engine, "/epochs/7/16").expect("read").map(|known| known.0), Some(3));
    }

    /// What an earlier version wrote (`tests/formats`).
    #[test]
    fn records_of_november_2026_are_read() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/formats/2026-11/engine.db");
        std::fs::copy(file, dir.path().join("engine.db")).expect("copied");
        let config = LocalConfig::new(dir.path().join("engine.db"), dir.path().join("volatile"));
        let engine = LocalEngine::open(config).expect("the engine opens");
        assert_eq!(members(&engine).expect("read").into_keys().collect::<Vec<_>>(), ["n1", "n2"]);
        let views = dc_views(&engine).expect("read");
        assert_eq!(views.keys().collect::<Vec<_>>(), ["plain", "shop"]);
        let shop = &views["shop"].record;
        assert_eq!((shop.id, shop.desired), (1, Desired::Stopped { grace_ms: 10_000 }));
        assert_eq!(shop.endpoints_of(1), Some(2304..4352));
        let asked = shop.spec.servers.iter().map(|server| (server.kind.name(), server.node.clone().unwrap()));
        let placed = |kind| shop.placement.instances.iter().find(|it| it.kind.name() == kind).unwrap().node.clone();
        assert!(
            asked.clone().count() == 2 && asked.clone().all(|(kind, node)| node == placed(kind)),
            "it stands where it stood"
        );
        level::check(&engine, &level::Newcomer::own("n1")).expect("earlier records are understood");
        let readable = u64::from(of_the_first_release().newest);
        assert_eq!(level::raise(&engine, versions::RECORDS.speaks).expect("raised"), readable);
        ledger::adopt(&engine).expect("read");
        assert_eq!(ledger::accounts(&engine).expect("read")["n2"].promised.containers, 2);
    }
}
