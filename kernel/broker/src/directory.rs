//! Where endpoints live in the cluster, as the daemon knows it.

use abi::{DcId, Endpoint, Epoch, NodeId};

/// Where an endpoint is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    Local,
    Remote { node: NodeId, epoch: Epoch },
    Unknown,
}

/// What the broker asks and tells the daemon. Called on the broker's thread: nothing here may block. When the daemon
/// learns more, it calls `Broker::remote_bound`, and whoever waits goes on.
pub trait Directory: Send {
    /// Asked only for endpoints that are not bound on this node.
    fn locate(&mut self, dc: DcId, endpoint: Endpoint) -> Location;
    /// A process of this node was bound.
    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch);
    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch);
}

/// A directory of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalOnly;

impl Directory for LocalOnly {
    fn locate(&mut self, _dc: DcId, _endpoint: Endpoint) -> Location {
        Location::Unknown
    }

    fn bound(&mut self, _dc: DcId, _endpoint: Endpoint, _pid: i32, _epoch: Epoch) {}

    fn unbound(&mut self, _dc: DcId, _endpoint: Endpoint, _epoch: Epoch) {}
}
