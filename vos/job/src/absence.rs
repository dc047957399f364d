//! Whether the other end of a job is gone, from what the broker says when it is asked for.

use std::time::{Duration, Instant};

use abi::IpcError;

use crate::door::OtherNode;

/// Nodes hear of an endpoint a moment after it is there: the order to start a far end may be faster.
const NEW_WITHIN: Duration = Duration::from_secs(5);
/// Of an endpoint that was there, and whose link was.
const GONE_AFTER: Duration = Duration::from_millis(600);
/// A link that is back brings the endpoints behind it a moment later.
const BACK_WITHIN: Duration = Duration::from_secs(3);
/// For how long it counts that a link was away.
const LATELY: Duration = Duration::from_secs(5);

/// What was heard since there was a ring last.
#[derive(Debug)]
pub struct Absence {
    node: OtherNode,
    was_there: bool,
    /// Since when nobody knows the endpoint.
    unknown: Option<Instant>,
    cut: Option<Instant>,
}

impl Absence {
    /// The other end is on this node, and was not heard yet.
    pub fn new(node: OtherNode) -> Absence {
        Absence { node, was_there: false, unknown: None, cut: None }
    }

    /// There is a ring.
    pub fn is_there(&mut self) {
        (self.was_there, self.unknown) = (true, None);
    }

    /// Whether this means that it is gone, and will not come back.
    pub fn is_for_good(&mut self, said: IpcError) -> bool {
        let now = Instant::now();
        match said {
            IpcError::DestinationDied | IpcError::SourceDied => true,
            IpcError::NoSuchEndpoint => {
                let was_cut = self.cut.is_some_and(|at| now.duration_since(at) < LATELY);
                let patience = match (self.was_there, was_cut) {
                    (false, _) => NEW_WITHIN,
                    (true, true) => BACK_WITHIN,
                    (true, false) => GONE_AFTER,
                };
                now.duration_since(*self.unknown.get_or_insert(now)) >= patience || self.node.is_lost()
            }
            said => {
                if said == IpcError::NoLink {
                    self.cut = Some(now);
                }
                self.unknown = None;
                self.node.is_lost()
            }
        }
    }

    /// The cluster has given its node up.
    pub fn is_lost(&mut self) -> bool {
        self.node.is_lost()
    }
}
