//! What lies on the shelf. JSON, so that a later version reads what it knows.
//!
//! | record | descriptors |
//! |---|---|
//! | `Dc` | the listening socket, if it has one |
//! | `Connection` | the socket; when bound, the pidfd |
//! | `Binding` | the control page, writable; none when `Free` |
//! | `Channel` | the lines to its parties when `Told` and both are of this node; else all its objects |
//! | `Reservation`, `NodeDown` | |

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Record {
    Dc {
        dc: u32,
        listen: Option<PathBuf>,
        programs: (u32, u32),
        privileges: Privileges,
    },
    Connection {
        owner: u64,
        party: Party,
        bound: Option<Bound>,
    },
    Binding {
        dc: u32,
        endpoint: u32,
        epoch: u64,
        home: Home,
    },
    Channel(Channel),
    /// A manager keeps the number for a process.
    Reservation {
        dc: u32,
        endpoint: u32,
        pid: i32,
        by: u64,
    },
    /// The proxy said that the link to this node is down.
    NodeDown {
        node: u16,
        #[serde(default, skip_serializing_if = "is_first")]
        pair: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Party {
    Program {
        dc: u32,
        pid: i32,
    },
    Server {
        dc: u32,
        endpoint: u32,
        epoch: u64,
        uid: Option<u32>,
        privileges: Privileges,
    },
    /// Of the first pair.
    Proxy,
    ProxyOf {
        pair: u8,
    },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub endpoint: u32,
    pub pid: i32,
    pub inner_pid: i32,
    pub privileges: Privileges,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Home {
    Local {
        owner: u64,
    },
    Remote {
        node: u16,
        by_directory: bool,
    },
    /// Nobody: what is remembered is the epoch.
    Free,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Channel {
    pub dc: u32,
    pub id: u64,
    pub left: u32,
    pub right: u32,
    pub lane: u16,
    pub entries: u32,
    pub arena_bytes: u32,
    pub proxied: Option<u16>,
    #[serde(default, skip_serializing_if = "is_first")]
    pub pair: u8,
    pub far: u64,
    pub told: Told,
}

/// Whether both parties surely know of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Tell both parties again; one that knows it already ignores that.
    Perhaps {
        request: u32,
    },
    Surely,
}

/// As they travel, see `abi::Privileges::to_bytes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Privileges(Vec<u8>);

impl From<&abi::Privileges> for Privileges {
    fn from(privileges: &abi::Privileges) -> Privileges {
        Privileges(privileges.to_bytes())
    }
}

impl Privileges {
    pub fn read(&self) -> std::io::Result<abi::Privileges> {
        abi::Privileges::from_bytes(&self.0).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }
}

impl Record {
    pub fn key(&self) -> String {
        match self {
            Record::Dc { dc, .. } => key::dc(*dc),
            Record::Connection { owner, .. } => key::connection(*owner),
            Record::Binding { dc, endpoint, .. } => key::binding(*dc, *endpoint),
            Record::Channel(channel) => key::channel(channel.dc, channel.id),
            Record::Reservation { dc, endpoint, .. } => key::reservation(*dc, *endpoint),
            Record::NodeDown { node, pair } => key::link_down(*node, *pair),
        }
    }

    pub fn append_to(&self, packet: &mut Vec<u8>) {
        // Our own records always turn into JSON: they have no maps.
        packet.extend_from_slice(&serde_json::to_vec(self).unwrap_or_default());
    }

    pub fn from_bytes(text: &[u8]) -> Option<Record> {
        serde_json::from_slice(text).ok()
    }
}

/// What earlier versions do not know is not written where there is one pair only.
fn is_first(pair: &u8) -> bool {
    *pair == 0
}

/// Everything of one container, but its connections, begins with the container's key.
pub(crate) mod key {
    pub fn dc(dc: u32) -> String {
        format!("dc{dc}/")
    }

    pub fn connection(owner: u64) -> String {
        format!("connection{owner}")
    }

    pub fn binding(dc: u32, endpoint: u32) -> String {
        format!("dc{dc}/endpoint{endpoint}")
    }

    pub fn channel(dc: u32, id: u64) -> String {
        format!("dc{dc}/channel{id}")
    }

    pub fn reservation(dc: u32, endpoint: u32) -> String {
        format!("dc{dc}/reserved{endpoint}")
    }

    pub fn link_down(node: u16, pair: u8) -> String {
        match pair {
            0 => format!("node-down{node}"),
            pair => format!("node-down{node}/{pair}"),
        }
    }
}
