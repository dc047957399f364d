//! What a broker is told at its start and of each container.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use abi::limits::{ENDPOINTS_PER_DC, WELL_KNOWN_ENDPOINTS};
use abi::{Endpoint, Epoch, NodeId};

use crate::limits::UNMANNED_MAX;
use crate::{Directory, LocalOnly, Privileges, Shelf};

/// Start values of a broker.
pub struct BrokerConfig {
    /// The node this broker serves.
    pub node: NodeId,
    pub directory: Box<dyn Directory>,
    /// Where what must outlive this broker is kept. What an earlier broker put there is taken back: connections,
    /// bindings, channels. `None`: a successor begins with nothing.
    pub shelf: Option<Shelf>,
    /// How long the links of a pair outlive their proxy while none comes that says something.
    pub unmanned_max: Duration,
}

impl BrokerConfig {
    /// A broker that knows one node only.
    pub fn local() -> BrokerConfig {
        BrokerConfig {
            node: NodeId(1),
            directory: Box::new(LocalOnly::default()),
            shelf: None,
            unmanned_max: UNMANNED_MAX,
        }
    }
}

/// What the broker is told of a container.
#[derive(Clone, Debug)]
pub struct DcOptions {
    /// Where programs connect, if they may; the broker makes the socket file, mode 0666.
    pub listen: Option<PathBuf>,
    /// Numbers this node gives to programs. Nodes of one container need disjoint ranges.
    pub program_endpoints: Range<u32>,
    pub program_privileges: Privileges,
}

impl Default for DcOptions {
    fn default() -> DcOptions {
        DcOptions {
            listen: None,
            program_endpoints: WELL_KNOWN_ENDPOINTS..ENDPOINTS_PER_DC,
            program_privileges: Privileges::program(),
        }
    }
}

/// Who will bind over a socket that the daemon hands to a child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerIdentity {
    /// The one number it may bind.
    pub endpoint: Endpoint,
    /// The incarnation; a binding of a lower epoch is refused once a higher one was seen.
    pub epoch: Epoch,
    /// The uid (of the host) that its messages must come from; `None` for any.
    pub uid: Option<u32>,
    pub privileges: Privileges,
}

impl ServerIdentity {
    pub fn new(endpoint: Endpoint, epoch: Epoch) -> ServerIdentity {
        ServerIdentity { endpoint, epoch, uid: None, privileges: Privileges::server() }
    }
}
