//! Where the servers of a container stand. A description (`DcSpec`) is what people ask for, and only people change it;
//! a placement is what was decided from it, and only the placer of the daemons writes it (`docs/design/placement.md`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dc::DiskStore;

/// A kind of server, by its name. Which kinds there are says the daemon's table.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ServerKind(Cow<'static, str>);

impl ServerKind {
    /// The file server.
    pub const FS: ServerKind = ServerKind::new("fs");
    /// The key-value server.
    pub const DS: ServerKind = ServerKind::new("ds");
    /// One for each of the `disks`; cannot be named in `servers`.
    pub const DISK: ServerKind = ServerKind::new("disk");

    /// The gate that serves disks over NBD.
    pub const NBD: ServerKind = ServerKind::new("nbd");

    pub const fn new(name: &'static str) -> ServerKind {
        ServerKind(Cow::Borrowed(name))
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Placement {
    pub instances: Vec<Instance>,
    /// What each node promised to the container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub promised: BTreeMap<String, Promise>,
}

impl Placement {
    pub fn first(&self, kind: &ServerKind) -> Option<&Instance> {
        self.instances.iter().find(|instance| instance.kind == *kind)
    }
}

/// One server of a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Instance {
    pub name: String,
    pub kind: ServerKind,
    /// Which of its kind: the position of its disk or of its node, else 0.
    pub index: usize,
    pub node: String,
    pub endpoint: u32,
    pub role: Role,
    /// Raised when another node or another role is decided on.
    pub epoch: u64,
    pub why: Why,
    /// What it keeps, of a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Volume>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The one that serves; the only role as long as no server is replicated.
    Primary,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Primary => "primary",
        })
    }
}

/// Why a server stands where it stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Why {
    /// The description names the node, or people had it moved there.
    Asked,
    /// On the node of this server, on which it depends.
    Beside { server: String },
    /// Of the nodes with room for it the one with the fewest servers of the container, the first of several.
    FewestServers,
    /// One stands on each node.
    EachNode,
    /// It had stood on a node that was lost.
    Lost { node: String },
    /// A copy of its disk is there which knows more than the one beside which it had stood.
    KnowsMore,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Asked => f.write_str("asked for"),
            Why::Beside { server } => write!(f, "beside {server}"),
            Why::FewestServers => f.write_str("fewest servers there"),
            Why::EachNode => f.write_str("one on each node"),
            Why::Lost { node } => write!(f, "{node} was lost"),
            Why::KnowsMore => f.write_str("its copy knows more"),
        }
    }
}

/// Name of the disk on which the key-value server has its file, in containers whose file tree has copies: as many
/// copies, and no description names it. (Names that people give begin with a letter.)
pub const STORE_DISK: &str = "_ds";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Volume {
    /// As the description calls the disk.
    pub name: String,
    pub bytes: u64,
    pub store: DiskStore,
    /// Of one of several copies, and of the disk that they are: the number that no other set of copies ever has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<u64>,
    /// Of a disk that was made later than its container: what tells it from one of the same name that there was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<u64>,
    /// Of a disk that was made larger: the least that it ever had. An image of so much or more is made larger, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grown_from: Option<u64>,
}

impl Volume {
    /// Whether an image with so many bytes was made before the disk was made larger.
    pub fn shall_grow(&self, bytes: u64) -> bool {
        self.grown_from.is_some_and(|least| (least..self.bytes).contains(&bytes))
    }

    /// Its image, among those of the container on the node.
    pub fn file(&self) -> String {
        self.file_of("img")
    }

    /// Beside the image: the highest epoch of who may change it.
    pub fn fence_file(&self) -> String {
        self.file_of("fence")
    }

    /// Beside the image of a copy: what it knows of itself and of the others.
    pub fn kept_file(&self) -> String {
        self.file_of("copy")
    }

    fn file_of(&self, what: &str) -> String {
        let name = &self.name;
        self.serial.map_or_else(|| format!("{name}.{what}"), |serial| format!("{name}.{serial:x}.{what}"))
    }
}

/// What a node has for containers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Capacity {
    pub containers: u64,
    pub memory_bytes: u64,
    /// Of images of disks that have all their space from the start. Absent: nothing can be set aside there (files in
    /// memory).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    pub cpus: u32,
}

/// What a node has set aside for one container, or for all together. Memory counts that was asked for: a limit that
/// nobody asked for keeps a container within bounds and promises it nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Promise {
    pub containers: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl Promise {
    pub fn plus(self, other: Promise) -> Promise {
        self.each(other, u64::saturating_add)
    }

    pub fn minus(self, other: Promise) -> Promise {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Promise, join: fn(u64, u64) -> u64) -> Promise {
        Promise {
            containers: join(self.containers, other.containers),
            memory_bytes: join(self.memory_bytes, other.memory_bytes),
            disk_bytes: join(self.disk_bytes, other.disk_bytes),
        }
    }
}
