//! Where endpoints live in the cluster, as the daemon knows it.

use abi::{DcId, Endpoint, EndpointName, Epoch, IpcError, NodeId};

use crate::Names;

/// Where an endpoint is bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    Local,
    Remote { node: NodeId, epoch: Epoch },
    Unknown,
}

/// How it stands with the wish for a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim {
    Granted,
    /// The daemon calls `Broker::name_claimed` when it is decided.
    UnderWay,
}

/// What the broker asks and tells the daemon. Called on the broker's thread: nothing here may block. When the daemon
/// learns more, it calls `Broker::remote_bound`, and whoever waits goes on.
pub trait Directory: Send {
    /// Asked only for endpoints that are not bound on this node.
    fn locate(&mut self, dc: DcId, endpoint: Endpoint) -> Location;
    /// A process of this node was bound. `pid` is what the container knows it by; 0 for a server, which it does not
    /// know.
    fn bound(&mut self, dc: DcId, endpoint: Endpoint, pid: i32, epoch: Epoch);
    /// The endpoint of a process of another node, by its pid in the container.
    fn find(&mut self, dc: DcId, pid: i32) -> Option<Endpoint>;
    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, epoch: Epoch);
    /// A process of this node, which was `bound`, wants to be called `name`. First come, first served, wherever they
    /// are: `EndpointInUse` when somebody else has the name, `TableFull` when the endpoint has another. Asked again, it
    /// says the same again. The name ends with `unbound`; an owner that was `bound` without that before is a successor,
    /// and called as the one before. `lost`: the node of the endpoint that has the name, when no link leads there; if
    /// the daemon knows too that it is gone, so is the name.
    fn claim(
        &mut self,
        _dc: DcId,
        _endpoint: Endpoint,
        _epoch: Epoch,
        _name: EndpointName,
        _lost: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        Err(IpcError::Denied)
    }
    /// Who has the name, on any node; one that has ended on this node has it no more.
    fn named(&mut self, _: DcId, _: EndpointName) -> Option<Endpoint> {
        None
    }
    /// The reverse.
    fn name_of(&mut self, _: DcId, _: Endpoint) -> Option<EndpointName> {
        None
    }
    /// Pairs of proxies that a node has according to its record; of this node it is asked once.
    fn pairs(&self, _node: NodeId) -> u8 {
        1
    }
}

/// A directory of one node. Names end with it.
#[derive(Clone, Debug, Default)]
pub struct LocalOnly(Names);

impl Directory for LocalOnly {
    fn locate(&mut self, _dc: DcId, _endpoint: Endpoint) -> Location {
        Location::Unknown
    }

    fn bound(&mut self, _dc: DcId, _endpoint: Endpoint, _pid: i32, _epoch: Epoch) {}

    fn find(&mut self, _dc: DcId, _pid: i32) -> Option<Endpoint> {
        None
    }

    fn unbound(&mut self, dc: DcId, endpoint: Endpoint, _epoch: Epoch) {
        self.0.end(dc, endpoint);
    }

    fn claim(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        _: Epoch,
        name: EndpointName,
        _: Option<NodeId>,
    ) -> Result<Claim, IpcError> {
        self.0.claim(dc, endpoint, name).map(|()| Claim::Granted)
    }

    fn named(&mut self, dc: DcId, name: EndpointName) -> Option<Endpoint> {
        self.0.holder(dc, name)
    }

    fn name_of(&mut self, dc: DcId, endpoint: Endpoint) -> Option<EndpointName> {
        self.0.of(dc, endpoint)
    }
}
