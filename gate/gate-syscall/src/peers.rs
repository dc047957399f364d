//! Questions to the call gates of other nodes that are given up after a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use abi::Endpoint;
use libvos::{Armed, Identity, Op, PortConnect, Session, SharedPort, Size, SubmitError};
use parking_lot::Mutex;
use proc_core::range::Seat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vos_api::{Operation, Reply};

/// Rings to a node that are kept for the next question.
const IDLE_MAX: usize = 4;

/// Why there is no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoAnswer {
    Unreachable,
    Failed(Errno),
}

/// A session for each question that is under way.
pub struct PeerSessions {
    port: SharedPort,
    size: Size,
    /// For a ring to a call gate.
    reach: Duration,
    idle: Mutex<BTreeMap<Seat, Vec<Session>>>,
}

impl PeerSessions {
    pub fn new(port: SharedPort, size: Size, reach: Duration) -> PeerSessions {
        PeerSessions { port, size, reach, idle: Mutex::default() }
    }

    /// Asks, and says what the answer is, with its data: at most `room` bytes.
    ///
    /// # Errors
    /// The call gate there refuses, or does not answer within `limit`.
    pub fn ask<'a, O: Operation<'a>>(
        &self,
        seat: Seat,
        operation: O,
        room: u32,
        limit: Duration,
    ) -> Result<(O::Reply, Vec<u8>), NoAnswer> {
        let begun = Instant::now();
        let mut session = self.session(seat)?;
        let encoded = operation.encode();
        let op = Op::of(&encoded, O::CLASS, room.max(O::Reply::DATA_BYTES));
        let token = match session.submit(op) {
            Ok(token) => token,
            Err(SubmitError::Full | SubmitError::TooLong) => return Err(NoAnswer::Failed(Errno::IO)),
        };
        session.flush();
        loop {
            session.on_ready();
            while let Some(done) = session.complete() {
                if done.token == token {
                    let (error, results, data) = (done.error, done.results, done.data.to_vec());
                    drop(done);
                    self.keep(seat, session);
                    return error.map_or(Ok((results.into(), data)), |errno| Err(NoAnswer::Failed(errno)));
                }
            }
            let limit = if session.is_up() { limit } else { limit.min(self.reach) };
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(NoAnswer::Unreachable);
            }
            if session.arm() == Armed::Sleep {
                let left = Timespec::try_from(left).ok();
                // A signal, or the end of the time, is seen above.
                let _ = poll(&mut [PollFd::new(&session.fd(), PollFlags::IN)], left.as_ref());
            }
        }
    }

    fn session(&self, seat: Seat) -> Result<Session, NoAnswer> {
        if let Some(session) = self.idle.lock().get_mut(&seat).and_then(Vec::pop) {
            return Ok(session);
        }
        let server = Endpoint::new(Endpoint::CALLS.number() + seat.index() as u32);
        let server = server.ok_or(NoAnswer::Failed(Errno::INVAL))?;
        let connect = PortConnect::new(self.port.clone(), server, self.size);
        Session::open(Box::new(connect), self.size, Identity::default()).map_err(|_| NoAnswer::Failed(Errno::NOMEM))
    }

    fn keep(&self, seat: Seat, session: Session) {
        let mut idle = self.idle.lock();
        let of_node = idle.entry(seat).or_default();
        if of_node.len() < IDLE_MAX && session.fenced().is_none() {
            of_node.push(session);
        }
    }
}
