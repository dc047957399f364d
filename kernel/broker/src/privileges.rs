//! Who may open which channels. Enforced where a channel is made.

use abi::Endpoint;

/// A set of peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peers {
    None,
    /// The servers of the container.
    WellKnown,
    Any,
    Only(Vec<Endpoint>),
}

impl Peers {
    pub fn contains(&self, peer: Endpoint) -> bool {
        match self {
            Peers::None => false,
            Peers::WellKnown => peer.is_well_known(),
            Peers::Any => true,
            Peers::Only(listed) => listed.contains(&peer),
        }
    }
}

/// What one endpoint may open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Privileges {
    /// To whom it may open a message channel. Whoever accepts may answer.
    pub messages: Peers,
    /// To whom it may open a ring.
    pub rings: Peers,
}

impl Privileges {
    /// The default of a program of the container: calls servers, no rings but to the key-value server. A ring to the
    /// file server would let a program claim any user.
    pub fn program() -> Privileges {
        Privileges { messages: Peers::WellKnown, rings: Peers::Only(vec![Endpoint::DS]) }
    }

    pub fn server() -> Privileges {
        Privileges { messages: Peers::Any, rings: Peers::Any }
    }
}
