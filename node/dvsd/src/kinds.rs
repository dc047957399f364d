//! The kinds of servers, a row each: what the daemon knows of a server before it starts one. Placer, plan, uids,
//! supervision and API read rows and have no cases. How a kind is added is in `ARCHITECTURE.md`.

use std::cmp::Ordering;
use std::fmt;

use abi::Endpoint;
use abi::limits::{COPIES_PER_DC, DISKS_PER_DC, NODES_PER_DC};
use sys::launch::PidNamespace;

use crate::reconcile::plan::{Part, Stage};

#[derive(Clone, Copy)]
pub struct Kind {
    /// Its word in `dc.toml`; also the name of the server, where a container has only one of the kind.
    pub name: &'static str,
    pub stands: Stands,
    /// Number of the first; the others have the numbers after it.
    pub endpoint: Endpoint,
    /// What must be there on its node before it is started, and as long as it runs.
    pub needs: &'static [Part],
    /// In which stage of going down it ends, and its place within the stage.
    pub ends: (Stage, u8),
    /// Place among the container's uids; disks and copies have the places after it as well.
    pub uid_slot: u32,
    /// After `dvs`.
    pub arguments: &'static [&'static str],
    /// Of its spawn record.
    pub options: &'static [(&'static str, Setting)],
    /// By the names that its spawn record gives them.
    pub descriptors: &'static [(&'static str, Source)],
    /// The thread whose end is that of the server: `ChildRecord::serving`.
    pub serving: Option<&'static str>,
    /// Whether it can name processes of the node.
    pub pid_namespace: PidNamespace,
}

/// How many of a kind a container has, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stands {
    /// One, where `servers` of the description says. Where it says nothing: beside the first of another kind, or the
    /// server of a name, if one is named here and there.
    Once { beside: Option<&'static str> },
    /// One for each copy of each disk that has several, the first where the description of the disk says.
    PerCopy,
    /// One for each disk, where the description of the disk says.
    PerDisk,
    /// One, where the description says that disks are served over NBD.
    Exporting,
    /// One on each node.
    PerNode,
    /// One on each node of a container that was made for several: what its programs begin with depends on it, so it is
    /// not added later.
    PerNodeOfSeveral,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// The endpoint of the first of a kind.
    EndpointOf(&'static str),
    /// The epoch in which the first of a kind was placed.
    EpochOf(&'static str),
    /// The endpoint of who may change its disk.
    OwnerOfDisk,
    /// The epoch in which that was placed, for the disk's beginning: it may stand where nobody has greeted it yet. Of a
    /// disk of which nobody is the owner now: not told.
    EpochOfOwner,
    /// The endpoint of the disk on which the key-value server has its file. It has a file of its node: not told.
    StoreDisk,
    /// The epoch in which that was placed. Likewise.
    StoreDiskEpoch,
    /// The disks that are served over NBD: `NAME=ENDPOINT`, `:ro` behind those that clients only read, with commas.
    Exports,
    DiskBytes,
    /// 1 of a disk that was made larger: an image that was so in vain is longer. Of others: not told.
    MayBeLonger,
    /// The number of the set of its disk's copies.
    Set,
    /// The endpoint of the disk of which it is a copy.
    DiskOfCopy,
    /// Which copy of the disk is beside it. It has none of several: not told.
    OwnCopy,
    /// All copies of the disk, a bit for each number, for the beginning of their set. Likewise.
    Copies,
    /// Position of the node in the container.
    NodeIndex,
    /// Positions of all its nodes, a bit each.
    Seats,
    /// First uid of the container's programs.
    UidBase,
    /// The snapshot to which its tree is to go back. It is not: not told.
    GoBackTo,
    /// The number of that wish. Likewise.
    GoBackNumber,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The image of its disk.
    Disk,
    /// The file beside the image that keeps the epoch of the disk's owner.
    Fence,
    /// The file beside the image of a copy that keeps what it knows.
    Kept,
    /// A file of its own beside the images of disks, unless there is a disk for it.
    Store,
    /// What the keeper holds under this name.
    Keeper(&'static str),
    /// Likewise, but an earlier release's holds no such thing.
    KeeperIfAny(&'static str),
    /// Eight bytes that say which nodes are lost, as of now.
    LostSeats,
    /// A socket to this node's daemon, whoever that is (`desks`).
    Desk,
    /// Likewise, of a disk that has copies.
    DiskDesk,
    /// A socket at which clients of NBD connect.
    NbdListener,
    /// A file in the node's directory of certificates for NBD, where it is encrypted.
    NbdTls(&'static str),
    /// What the keeper has ready for a call gate.
    CallGate(CallGatePart),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallGatePart {
    Keeper,
    Journal,
    Init,
    Memory,
    JobDoor,
    JobStarter,
    ProcFuse,
    NativeProc,
    Looks,
}

impl CallGatePart {
    /// The others are there where programs see a socket of the container, and where `/proc` shows all nodes.
    pub fn is_needed(self) -> bool {
        matches!(self, CallGatePart::Keeper | CallGatePart::Journal | CallGatePart::Init | CallGatePart::Memory)
    }
}

/// Names of descriptors that the keeper holds for the gate.
const FUSE: &str = keeper::FUSE_KEY;
pub const GATE_STATE: &str = "gate-state";

/// The call gate.
pub const CALLS: &str = "calls";

/// The gate that serves disks over NBD.
pub const NBD: &str = "nbd";

/// The server of the disk on which the key-value server has its file.
const STORE_DISK_SERVER: &str = "disk-_ds";
const _: () = assert!(STORE_DISK_SERVER.len() == "disk-".len() + mgmt_api::STORE_DISK.len());

/// One of several images of a disk.
pub const COPY: &str = "copy";

const ON_A_BROKER: &[Part] = &[Part::Broker, Part::Cgroup];

/// In the order in which they are placed.
pub static KINDS: &[Kind] = &[
    Kind {
        name: COPY,
        stands: Stands::PerCopy,
        endpoint: Endpoint::COPY,
        needs: ON_A_BROKER,
        // After the disk, which tells it the last that is to be known.
        ends: (Stage::Down, 1),
        uid_slot: 40,
        arguments: &["server", "copy"],
        options: &[
            ("bytes", Setting::DiskBytes),
            ("may_be_longer", Setting::MayBeLonger),
            ("set", Setting::Set),
            ("disk", Setting::DiskOfCopy),
        ],
        descriptors: &[("image", Source::Disk), ("kept", Source::Kept)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: "disk",
        stands: Stands::PerDisk,
        endpoint: Endpoint::DISK,
        needs: ON_A_BROKER,
        ends: (Stage::Down, 0),
        uid_slot: 8,
        arguments: &["server", "disk"],
        options: &[
            ("bytes", Setting::DiskBytes),
            ("may_be_longer", Setting::MayBeLonger),
            ("owner", Setting::OwnerOfDisk),
            ("owner_epoch", Setting::EpochOfOwner),
            ("set", Setting::Set),
            ("own", Setting::OwnCopy),
            ("copies", Setting::Copies),
        ],
        descriptors: &[("image", Source::Disk), ("fence", Source::Fence), ("desk", Source::DiskDesk)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: "fs",
        stands: Stands::Once { beside: Some("disk") },
        endpoint: Endpoint::FS,
        needs: ON_A_BROKER,
        ends: (Stage::Settled, 0),
        uid_slot: 0,
        arguments: &["server", "fs"],
        options: &[
            ("disk", Setting::EndpointOf("disk")),
            ("disk_epoch", Setting::EpochOf("disk")),
            ("go_back", Setting::GoBackTo),
            ("go_back_number", Setting::GoBackNumber),
        ],
        descriptors: &[("lost", Source::LostSeats)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: "ds",
        stands: Stands::Once { beside: Some(STORE_DISK_SERVER) },
        endpoint: Endpoint::DS,
        needs: ON_A_BROKER,
        ends: (Stage::Settled, 1),
        uid_slot: 1,
        arguments: &["server", "ds"],
        options: &[("disk", Setting::StoreDisk), ("disk_epoch", Setting::StoreDiskEpoch)],
        descriptors: &[("image", Source::Store)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: "gate",
        stands: Stands::PerNode,
        endpoint: Endpoint::GATE,
        needs: &[Part::Broker, Part::Cgroup, Part::Mount],
        ends: (Stage::Quiet, 2),
        uid_slot: 2,
        arguments: &["gate", "fuse"],
        options: &[
            ("fs", Setting::EndpointOf("fs")),
            ("fs_epoch", Setting::EpochOf("fs")),
            ("disk", Setting::EndpointOf("disk")),
            ("disk_epoch", Setting::EpochOf("disk")),
            ("node_index", Setting::NodeIndex),
        ],
        descriptors: &[
            ("fuse", Source::Keeper(FUSE)),
            ("state", Source::Keeper(GATE_STATE)),
            ("deaths", Source::KeeperIfAny(keeper::DEATHS_KEY)),
        ],
        serving: Some("serve"),
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: NBD,
        stands: Stands::Exporting,
        endpoint: Endpoint::NBD,
        needs: ON_A_BROKER,
        ends: (Stage::Settled, 4),
        uid_slot: 56,
        arguments: &["gate", "nbd"],
        options: &[("exports", Setting::Exports)],
        descriptors: &[
            ("listener", Source::NbdListener),
            ("authority", Source::NbdTls("ca-cert.pem")),
            ("certificate", Source::NbdTls("server-cert.pem")),
            ("key", Source::NbdTls("server-key.pem")),
        ],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: "cs",
        stands: Stands::PerNode,
        endpoint: Endpoint::CS,
        // Without the keeper there is no program to serve, and nobody who holds the desk over the daemon's end.
        needs: &[Part::Broker, Part::Cgroup, Part::Keeper],
        ends: (Stage::Settled, 2),
        uid_slot: 4,
        arguments: &["server", "cs"],
        options: &[("node_index", Setting::NodeIndex)],
        descriptors: &[("desk", Source::Desk)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    },
    Kind {
        name: CALLS,
        stands: Stands::PerNodeOfSeveral,
        endpoint: Endpoint::CALLS,
        // Its descriptors are the keeper's.
        needs: &[Part::Broker, Part::Cgroup, Part::Keeper],
        ends: (Stage::Settled, 3),
        uid_slot: 5,
        arguments: &["gate", "calls"],
        options: &[("node_index", Setting::NodeIndex), ("seats", Setting::Seats), ("uid_base", Setting::UidBase)],
        descriptors: &[
            ("keeper", Source::CallGate(CallGatePart::Keeper)),
            ("journal", Source::CallGate(CallGatePart::Journal)),
            ("init", Source::CallGate(CallGatePart::Init)),
            ("memory", Source::CallGate(CallGatePart::Memory)),
            ("job_door", Source::CallGate(CallGatePart::JobDoor)),
            ("job_starter", Source::CallGate(CallGatePart::JobStarter)),
            ("proc_fuse", Source::CallGate(CallGatePart::ProcFuse)),
            ("proc_native", Source::CallGate(CallGatePart::NativeProc)),
            ("looks", Source::CallGate(CallGatePart::Looks)),
        ],
        // The kernel says who calls by numbers of the node.
        serving: None,
        pid_namespace: PidNamespace::Shared,
    },
];

/// What the daemon starts each kind with, for who links the programs.
pub fn server_arguments() -> impl Iterator<Item = &'static [&'static str]> {
    KINDS.iter().map(|kind| kind.arguments)
}

/// Those that daemons of all nodes know, where records have this format: the release before knows no call gate, no
/// copies, and no gate for NBD.
pub fn known_at(level: u64) -> Vec<Kind> {
    let is_new = |kind: &Kind| matches!(kind.stands, Stands::PerNodeOfSeveral | Stands::PerCopy | Stands::Exporting);
    let is_known = |kind: &&Kind| level >= crate::records::FORMAT || !is_new(kind);
    KINDS.iter().filter(is_known).copied().collect()
}

impl Kind {
    /// Whether `servers` of a description may say where it stands.
    pub fn is_chosen(&self) -> bool {
        matches!(self.stands, Stands::Once { .. })
    }

    /// Most that a container has of it.
    fn count_max(&self) -> usize {
        match self.stands {
            Stands::Once { .. } | Stands::Exporting => 1,
            Stands::PerCopy => COPIES_PER_DC as usize,
            Stands::PerDisk => DISKS_PER_DC as usize,
            Stands::PerNode | Stands::PerNodeOfSeveral => NODES_PER_DC,
        }
    }

    /// `None`: a container has no so many.
    pub fn endpoint_of(&self, index: usize) -> Option<Endpoint> {
        let index = Some(index).filter(|index| *index < self.count_max())?;
        Endpoint::new(self.endpoint.number() + u32::try_from(index).ok()?)
    }

    /// Of several on a node each has its own.
    pub fn uid_slot_of(&self, index: usize) -> u32 {
        let place = u32::try_from(index).unwrap_or(0);
        match self.stands {
            Stands::PerDisk => self.uid_slot + place.min(DISKS_PER_DC - 1),
            Stands::PerCopy => self.uid_slot + place.min(COPIES_PER_DC - 1),
            Stands::Once { .. } | Stands::Exporting | Stands::PerNode | Stands::PerNodeOfSeveral => self.uid_slot,
        }
    }
}

// A row is known by its name.
impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Kind) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Kind) -> Ordering {
        self.name.cmp(other.name)
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
pub fn server(kind: &str) -> Part {
    Part::Server(KINDS.iter().find(|row| row.name == kind).expect("a kind"), 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use abi::limits::WELL_KNOWN_ENDPOINTS;
    use mgmt_api::DcSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::ledger::Accounts;
    use crate::placer;
    use crate::reconcile::plan::{Action, Observed, Standing, Wish, plan};
    use crate::reconcile::share::Share;
    use crate::uids::SLOTS_PER_DC;

    /// Of the contract of the new kind.
    const ECHO_ENDPOINT: Endpoint = Endpoint::new(3).expect("a number of servers");

    /// All that a new kind needs here.
    const ECHO: Kind = Kind {
        name: "echo",
        stands: Stands::Once { beside: Some("ds") },
        endpoint: ECHO_ENDPOINT,
        needs: &[Part::Broker, Part::Network],
        ends: (Stage::Settled, 2),
        uid_slot: 3,
        arguments: &["server", "echo"],
        options: &[("store", Setting::EndpointOf("ds")), ("node_index", Setting::NodeIndex)],
        descriptors: &[("image", Source::Store)],
        serving: None,
        pid_namespace: PidNamespace::Own,
    };

    fn with_echo() -> &'static [Kind] {
        Box::leak([KINDS, &[ECHO]].concat().into_boxed_slice())
    }

    fn wish(more: Value) -> DcSpec {
        let mut wish = json!({ "name": "shop", "nodes": ["n1", "n2"] });
        wish.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(wish).unwrap()
    }

    /// What the node has to bring about, and the part of kind `echo` there.
    fn share(wish: DcSpec, node: &str) -> (Share, Option<Part>) {
        let placement = placer::place(&wish, with_echo(), &Accounts::new()).unwrap();
        let record = json!({
            "id": 7, "spec": wish, "placement": placement, "desired": { "kind": "running" }, "generation": 1, "created_s": 0,
            "endpoints": crate::spec::share_endpoints(2),
        });
        let share = Share::with_kinds(&serde_json::from_value(record).unwrap(), node, with_echo()).unwrap();
        let echo =
            share.parts.iter().find(|part| matches!(part, Part::Server(kind, _) if kind.name == "echo")).copied();
        (share, echo)
    }

    #[test]
    fn kind_is_placed_planned_and_started_by_its_row_alone() {
        assert_eq!(share(wish(json!({ "servers": [{ "kind": "echo", "node": "n1" }] })), "n2").1, None);
        let (share, echo) = share(wish(json!({})), "n2");
        let echo = echo.expect("the key-value server is on n2, and it is beside it");
        assert_eq!((share.role_name(&echo), share.endpoint(&echo)), (Some("echo"), Some(ECHO.endpoint)));
        assert_eq!(share.options(&echo), Some(json!({ "store": Endpoint::DS.number(), "node_index": 1 })));
        assert_eq!(share.status(&echo).unwrap().kind.name(), "echo");

        let mut observed: Observed =
            [Part::Broker, Part::Cgroup, Part::Keeper].map(|part| (part, Standing::Ready)).into();
        let makes_echo =
            |observed: &Observed| plan(Wish::Up, &share.parts, observed, Stage::Up).contains(&Action::Make(echo));
        assert!(!makes_echo(&observed), "without a network");
        observed.insert(Part::Network, Standing::Ready);
        assert!(makes_echo(&observed));
        observed = [echo, server("disk")].map(|part| (part, Standing::Ready)).into();
        assert_eq!(plan(Wish::Down, &share.parts, &observed, Stage::Quiet), [Action::Unmake(echo)]);
    }

    #[test]
    fn share_of_a_container_with_a_kind_that_nobody_knows_is_not_made_up() {
        let wish = wish(json!({}));
        let record = json!({
            "id": 7, "placement": placer::place(&wish, with_echo(), &Accounts::new()).unwrap(), "spec": wish, "desired": { "kind": "running" },
            "generation": 1, "created_s": 0, "endpoints": crate::spec::share_endpoints(2),
        });
        let record = serde_json::from_value(record).unwrap();
        assert_eq!(Share::of(&record, "n2"), None);
        assert!(Share::of(&record, "n1").is_some(), "it has none there");
    }

    #[test]
    fn no_two_servers_of_a_container_have_a_number_a_uid_on_a_node_or_an_image_in_common() {
        let (mut endpoints, mut slots, mut stores) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for kind in with_echo() {
            for index in 0..kind.count_max() {
                let endpoint = kind.endpoint_of(index).expect("a number");
                assert!(endpoint.number() < WELL_KNOWN_ENDPOINTS && endpoints.insert(endpoint), "{kind:?} {index}");
                assert!(kind.uid_slot_of(index) < SLOTS_PER_DC);
                let is_per_node = matches!(kind.stands, Stands::PerNode | Stands::PerNodeOfSeveral);
                assert!(slots.insert(kind.uid_slot_of(index)) || is_per_node, "{kind:?} {index}");
            }
            assert_eq!(kind.endpoint_of(kind.count_max()), None);
            assert!(stores.insert(kind.name));
        }
    }
}
