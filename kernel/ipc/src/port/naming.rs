//! What endpoints are called: `docs/design/names.md`.

use abi::{Endpoint, EndpointName, IpcError, NodeId};

use super::Port;
use crate::protocol::{Op, Packet, Patience};
use crate::wait::Wait;

impl Port {
    /// Calls this endpoint `name`, for all of the container and until it ends: whoever succeeds to it is called the same. A name is 1 to
    /// [`abi::limits::ENDPOINT_NAME_BYTES_MAX`] printable ASCII characters without blanks and `/` (`BadArgument`); an endpoint has one at
    /// most (`TableFull`). `EndpointInUse` when another one has it, on whichever node. Asking again is safe; `TimedOut`, after ten
    /// seconds, and `NoBroker`: whether it is called so is unknown.
    pub fn set_name(&mut self, name: &str) -> Result<(), IpcError> {
        self.check_bound()?;
        let name = checked(name)?;
        self.beside_watch(|port| port.connection.call_with_body(Packet::new(Op::SetName), name.as_bytes())).map(drop)
    }

    /// The endpoint of the container that is called `name`, on whichever node; waits until there is one that can be reached. Without waiting
    /// `NoSuchEndpoint` when nobody is known here to be called so, `NoLink` when its node cannot be reached. `TableFull` when too many
    /// wait on this node.
    pub fn find(&mut self, name: &str, wait: Wait) -> Result<Endpoint, IpcError> {
        self.find_place(name, wait).map(|(endpoint, _)| endpoint)
    }

    /// [`Port::find`], with the node on which the endpoint is.
    pub fn find_place(&mut self, name: &str, wait: Wait) -> Result<(Endpoint, NodeId), IpcError> {
        self.check_bound()?;
        let name = checked(name)?;
        let patience = if wait == Wait::NoWait { Patience::AtOnce } else { Patience::UntilBound };
        let request = Packet { patience, ..Packet::new(Op::Find) };
        let answer = self.beside_watch(|port| match wait {
            // Answered at once, so it is given the time for that.
            Wait::NoWait => port.connection.call_with_body(request, name.as_bytes()),
            wait => port.connection.call_waiting_with_body(request, name.as_bytes(), wait),
        })?;
        let endpoint = answer.packet.peer.ok_or(IpcError::NoBroker)?;
        Ok((endpoint, answer.packet.node))
    }
}

fn checked(name: &str) -> Result<EndpointName, IpcError> {
    EndpointName::new(name.as_bytes()).ok_or(IpcError::BadArgument)
}
