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
    /// A process of this node was bound. `pid` is what the container knows it by; 0 for a server, which it does not know.
    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch);
    /// The endpoint of a process of another node, by its pid in the container.
    fn find(&mut self, dc: DcId, pid: i32) -> Option<Endpoint>;
    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch);
    /// Pairs of proxies that a node has according to its record; of this node it is asked once.
    fn pairs(&self, _node: NodeId) -> u8 {
        1
    }
}

/// A directory of one node.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalOnly;

impl Directory for LocalOnly {
    fn locate(&mut self, _dc: DcId, _endpoint: Endpoint) -> Location {
        Location::Unknown
    }

    fn bound(&mut self, _dc: DcId, _endpoint: Endpoint, _pid: i32, _epoch: Epoch) {}

    fn find(&mut self, _dc: DcId, _pid: i32) -> Option<Endpoint> {
        None
    }

    fn unbound(&mut self, _dc: DcId, _endpoint: Endpoint, _epoch: Epoch) {}
}
