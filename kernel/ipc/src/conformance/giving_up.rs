//! Calls that are given up after their request was taken.
//!
//! No clock decides whether it was: the two sides tell each other, and the call is made again with more patience until
//! it was.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::{Endpoint, IpcError, Message, Port, Wait};

const FIRST: Duration = Duration::from_millis(10);

/// Whether the call that ended is the one to be given up.
enum Verdict {
    WasTaken,
    /// It was withdrawn.
    Again,
}

/// The side that calls.
pub(super) struct Caller {
    ended: Sender<()>,
    verdict: Receiver<Verdict>,
}

/// The side that takes the request.
pub(super) struct Taker {
    ended: Receiver<()>,
    verdict: Sender<Verdict>,
}

pub(super) fn sides() -> (Caller, Taker) {
    let ((ended, hear_ended), (verdict, hear_verdict)) = (channel(), channel());
    (Caller { ended, verdict: hear_verdict }, Taker { ended: hear_ended, verdict })
}

impl Caller {
    /// Calls `to` until the call is given up after its request was taken.
    pub fn give_up(&self, client: &mut Port, to: Endpoint, message: &Message) {
        let mut timing = FIRST;
        loop {
            assert_eq!(client.sendrec(to, message, Wait::For(timing)), Err(IpcError::TimedOut));
            self.ended.send(()).unwrap();
            if matches!(self.verdict.recv().unwrap(), Verdict::WasTaken) {
                return;
            }
            timing *= 2;
        }
    }
}

impl Taker {
    /// What `take` made of the request; it answers `NotWaiting` when the caller was too fast for what it did beyond
    /// taking it.
    pub fn take<T>(&self, mut take: impl FnMut(Wait) -> Result<T, IpcError>) -> T {
        loop {
            match take(Wait::For(FIRST)) {
                Ok(taken) => return taken,
                Err(IpcError::TimedOut | IpcError::NotWaiting) => {}
                Err(error) => panic!("{error:?}"),
            }
            if self.ended.try_recv().is_ok() {
                self.verdict.send(Verdict::Again).unwrap();
            }
        }
    }

    /// Waits until the call whose request was taken is given up. The caller goes on then.
    pub fn wait_until_given_up(&self) {
        self.ended.recv().unwrap();
        self.verdict.send(Verdict::WasTaken).unwrap();
    }
}
