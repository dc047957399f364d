//! Operations of sessions that are being executed, so that a repetition joins the first instead of happening again.
//!
//! When only the link broke, the server still works on what the client repeats over its new ring. The repetition is
//! attached; whoever finishes the operation answers every request that asked for it. Requests of a ring that is gone
//! are answered into the void.

use std::collections::HashMap;

use crate::request::Request;
use crate::sessions::Reply;

/// Operations that have begun and have no reply yet, by (session, sequence). Bounded by what rings hold in flight.
#[derive(Default)]
pub struct Running {
    operations: HashMap<(u64, u64), Vec<Request>>,
}

/// What to do with a request of a session.
pub enum Begun {
    /// Execute it; call [`Running::finish`] afterwards.
    Start(Request),
    /// It is being executed already and will be answered together with the first.
    Attached,
}

impl Running {
    pub fn new() -> Running {
        Running::default()
    }

    /// Call it for requests with a sequence that the session's record does not know.
    pub fn begin(&mut self, request: Request) -> Begun {
        match self.operations.get_mut(&(request.session(), request.sequence())) {
            Some(others) => {
                others.push(request);
                Begun::Attached
            }
            None => {
                self.operations.insert((request.session(), request.sequence()), Vec::new());
                Begun::Start(request)
            }
        }
    }

    /// The operation has its reply: returns the repetitions that must be answered too.
    pub fn finish(&mut self, session: u64, sequence: u64) -> Vec<Request> {
        self.operations.remove(&(session, sequence)).unwrap_or_default()
    }

    pub fn contains(&self, session: u64, sequence: u64) -> bool {
        self.operations.contains_key(&(session, sequence))
    }
}

/// Answers `request` and everything in `others` with the same reply.
pub fn answer_all(request: Request, others: Vec<Request>, reply: &Reply) {
    for other in others {
        other.answer(reply);
    }
    request.answer(reply);
}
