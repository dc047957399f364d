//! What endpoints are called: `docs/design/names.md`.

use abi::{Endpoint, EndpointName, IpcError, NodeId};
use broker_api::{FromPort, IfAbsent, ToPort};

use super::Port;
use crate::errors;
use crate::wait::Wait;

impl Port {
    /// Calls this endpoint `name`, for all of the container and until it ends: whoever succeeds to it is called the
    /// same. A name is 1 to [`abi::limits::ENDPOINT_NAME_BYTES_MAX`] printable ASCII characters without blanks and `/`
    /// (`BadArgument`); an endpoint has one at most (`TableFull`). `EndpointInUse` when another one has it, on
    /// whichever node. Asking again is safe; `TimedOut`, after ten seconds, and `NoBroker`: whether it is called so is
    /// unknown. Errors: [`errors::SET_NAME`].
    pub fn set_name(&mut self, name: &str) -> Result<(), IpcError> {
        self.check_bound()?;
        let name = checked(name)?;
        self.ask(errors::SET_NAME, &FromPort::SetName { name }).map(drop)
    }

    /// The endpoint of the container that is called `name`, on whichever node; waits until there is one that can be
    /// reached. Without waiting `NoSuchEndpoint` when nobody is known here to be called so, `NoLink` when its node
    /// cannot be reached. `TableFull` when too many wait on this node. Errors: [`errors::FIND`].
    pub fn find(&mut self, name: &str, wait: Wait) -> Result<Endpoint, IpcError> {
        self.find_place(name, wait).map(|(endpoint, _)| endpoint)
    }

    /// [`Port::find`], with the node on which the endpoint is.
    pub fn find_place(&mut self, name: &str, wait: Wait) -> Result<(Endpoint, NodeId), IpcError> {
        self.check_bound()?;
        let name = checked(name)?;
        let answer = match wait {
            // Answered at once, so it is given the time for that.
            Wait::NoWait => self.ask(errors::FIND, &FromPort::Find { name, if_absent: IfAbsent::Fail }),
            wait => self.ask_waiting(errors::FIND, &FromPort::Find { name, if_absent: IfAbsent::Wait }, wait),
        }?;
        match answer.message {
            ToPort::Found { endpoint, node: Some(node) } => Ok((endpoint, node)),
            _ => Err(IpcError::NoBroker),
        }
    }
}

fn checked(name: &str) -> Result<EndpointName, IpcError> {
    EndpointName::new(name.as_bytes()).ok_or(IpcError::BadArgument)
}
