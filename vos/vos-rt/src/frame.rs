//! The main loop every server runs in.
//!
//! One thread waits on the port, takes submissions from rings that have some, and hands them to the [`Service`] as
//! [`Request`]s. It knows of each ring whether its client greeted; HELLO and GOODBYE end here. Answers do not pass
//! through this loop.
//!
//! A server that learns that it has a successor executes nothing more and answers nothing more, as if it had been
//! killed: its clients ask the successor, so that none of them is told of a failure.
//!
//! A ring with more than [`TURN_REQUESTS`] waiting submissions gets its next turn after the others had theirs. A ring
//! whose client breaks the protocol is dropped; the client learns it and opens another one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use abi::limits::RING_ENTRIES_MAX;
use abi::ring::{Completion, Submission};
use abi::{Endpoint, IpcError, Message};
use ipc::{Event, RingId, RingServer, Wait};
use libvos::SharedPort;
use rustix::io::Errno;
use sessions::{Speaker, Tenure, Unwelcome};
use vos_api::Operation;
use vos_api::session::{FIRST_SERVICE_OP, GOODBYE, Greeting, HELLO, Hello, OtherVersion};

use crate::RINGS_MAX;
use crate::request::{ClientId, Life, Request, RingCell};
use crate::service::{Handle, HelloReply, Service};

/// Requests taken from one ring before the others have their turn.
pub const TURN_REQUESTS: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the server's port does not work any more")]
    Port(#[source] IpcError),
    #[error("this server was placed in epoch {own}, and a client knows epoch {successor}: another one is in its place")]
    LeftBehind { own: u32, successor: u32 },
}

/// Serves until `handle` says stop, and gives the service back so that it can finish what it took and store what it
/// holds. Requests it cannot answer any more it may drop: its successor will be asked again. `epoch` is the
/// incarnation.
pub fn serve<S: Service>(
    port: &SharedPort,
    epoch: u64,
    tenure: Tenure,
    service: S,
    handle: &Handle,
) -> Result<S, FrameError> {
    let (life, rings, busy) = (handle.life(), HashMap::new(), VecDeque::new());
    let mut frame = Frame { service, epoch, tenure, life, rings, busy, next_client: 1 };
    while !handle.is_stopping() {
        let event = match port.turn(|port| port.wait_event(frame.wait())) {
            Ok(event) => Some(event),
            Err(IpcError::TimedOut | IpcError::WokenUp) => None,
            Err(error) => return Err(FrameError::Port(error)),
        };
        if let Some(event) = event {
            frame.dispatch(port, event);
        }
        frame.turn();
        if let Some(successor) = frame.tenure.successor() {
            return Err(FrameError::LeftBehind { own: frame.tenure.epoch(), successor });
        }
        frame.service.tick(Instant::now());
    }
    frame.life.end();
    Ok(frame.service)
}

struct Frame<S> {
    service: S,
    epoch: u64,
    tenure: Tenure,
    life: Arc<Life>,
    rings: HashMap<RingId, Ring>,
    /// Rings that may have submissions, each once.
    busy: VecDeque<RingId>,
    next_client: u64,
}

struct Ring {
    cell: Arc<RingCell>,
    client: ClientId,
    /// `None` until HELLO was welcomed.
    session: Option<u64>,
    is_busy: bool,
}

/// What a turn left behind.
enum Left {
    Nothing,
    More,
    Broken(IpcError),
}

impl<S: Service> Frame<S> {
    fn wait(&self) -> Wait {
        if !self.busy.is_empty() {
            return Wait::NoWait;
        }
        match self.service.deadline() {
            None => Wait::Forever,
            Some(deadline) => Wait::For(deadline.saturating_duration_since(Instant::now())),
        }
    }

    fn dispatch(&mut self, port: &SharedPort, event: Event) {
        match event {
            Event::Message(message) => refuse(port, &message),
            Event::RingOpened(ring) => self.open(ring),
            Event::RingReady(id) => self.mark(id),
            Event::RingClosed(id, reason) => self.close(id, reason),
            Event::Notified { .. } | Event::Woken => {}
        }
    }

    fn open(&mut self, ring: RingServer) {
        if self.rings.len() >= RINGS_MAX {
            tracing::warn!(client = %ring.client(), "refused a ring: {RINGS_MAX} are open");
            return;
        }
        let (id, from, arena) = (ring.id(), ring.client(), ring.arena());
        let client = ClientId(self.next_client);
        self.next_client += 1;
        let cell = Arc::new(RingCell { ring, arena, from, epoch: self.epoch, life: Arc::clone(&self.life) });
        self.rings.insert(id, Ring { cell, client, session: None, is_busy: false });
        self.mark(id);
    }

    fn mark(&mut self, id: RingId) {
        if let Some(ring) = self.rings.get_mut(&id)
            && !std::mem::replace(&mut ring.is_busy, true)
        {
            self.busy.push_back(id);
        }
    }

    fn close(&mut self, id: RingId, reason: IpcError) {
        if let Some(ring) = self.rings.remove(&id) {
            tracing::debug!(client = ring.client.0, %reason, "ring closed");
            if ring.session.is_some() {
                self.service.closed(ring.client);
            }
        }
    }

    /// Every busy ring gets its turn.
    fn turn(&mut self) {
        for _ in 0..self.busy.len() {
            let Some(id) = self.busy.pop_front() else { return };
            if let Some(ring) = self.rings.get_mut(&id) {
                ring.is_busy = false;
            }
            match self.take_requests(id) {
                Left::Nothing => {}
                Left::More => self.mark(id),
                Left::Broken(reason) => self.close(id, reason),
            }
        }
    }

    fn take_requests(&mut self, id: RingId) -> Left {
        for _ in 0..TURN_REQUESTS {
            let Some(ring) = self.rings.get(&id) else { return Left::Nothing };
            let next = ring.cell.ring.next();
            match next {
                Ok(Some(submission)) => self.request(id, submission),
                Ok(None) => return Left::Nothing,
                Err(reason) => return Left::Broken(reason),
            }
        }
        Left::More
    }

    fn request(&mut self, id: RingId, submission: Submission) {
        if self.life.is_cut() {
            return;
        }
        let Some(ring) = self.rings.get_mut(&id) else { return };
        let hello = Hello::decode(submission.flags, submission.args, &[]);
        match (submission.op, hello, ring.session) {
            (HELLO, Some(hello), None) => {
                let by = if ring.cell.from.is_well_known() { Speaker::Server } else { Speaker::Program };
                let version = match versions::SERVERS.agree(hello.speaks) {
                    Ok(version) => version,
                    Err(mismatch) => {
                        tracing::warn!(from = ring.cell.from.number(), %mismatch, "a client is of another release");
                        ring.cell.complete(&of_another_version(&submission, self.epoch));
                        return;
                    }
                };
                let reply = match self.tenure.hear(hello.epochs, by) {
                    Ok(()) => self.service.opened(ring.client, ring.cell.from, &hello),
                    Err(Unwelcome::NotPermitted) => HelloReply::Refused(Errno::PERM),
                    Err(Unwelcome::Stale(outdated)) => HelloReply::Outdated(outdated),
                };
                if matches!(reply, HelloReply::Welcome { .. }) {
                    ring.session = Some(hello.session);
                }
                ring.cell.complete(&greeting(&submission, &reply, self.epoch, version));
                if self.tenure.successor().is_some() {
                    self.life.cut();
                }
            }
            (op, _, Some(session)) if op == GOODBYE || op >= FIRST_SERVICE_OP => {
                let request = Request::new(submission, ring.client, session, Arc::clone(&ring.cell));
                if op == GOODBYE { self.service.goodbye(request) } else { self.service.submit(request) }
            }
            // Without a greeting, greeting twice, or an operation nobody has.
            _ => Request::new(submission, ring.client, 0, Arc::clone(&ring.cell)).fail(Errno::PROTO),
        }
    }
}

/// Requests come over rings. A caller that asks by a message would wait for ever without this reply. A sender that
/// waits for no reply needs none: then the call fails, which does no harm.
fn refuse(port: &SharedPort, message: &Message) {
    if let Some(from) = message.source {
        let refusal = Message::new(-Errno::NOSYS.raw_os_error());
        let _ = port.turn(|port| port.reply(from, &refusal));
    }
}

fn of_another_version(submission: &Submission, epoch: u64) -> Completion {
    let results = OtherVersion::of(versions::SERVERS.speaks).into();
    let status = Errno::OPNOTSUPP.raw_os_error() as u32;
    Completion { tag: submission.tag, status, sequence: submission.sequence, epoch, results, ..Completion::default() }
}

fn greeting(submission: &Submission, reply: &HelloReply, epoch: u64, version: u8) -> Completion {
    let (status, results) = match *reply {
        HelloReply::Welcome { highest, in_flight, service } => {
            let in_flight = Greeting::terms(in_flight.min(RING_ENTRIES_MAX), version);
            (0, Greeting { incarnation: epoch, highest, in_flight, service }.into())
        }
        HelloReply::Refused(errno) => (errno.raw_os_error() as u32, [0; 4]),
        HelloReply::Outdated(outdated) => (Errno::STALE.raw_os_error() as u32, outdated.into()),
    };
    Completion { tag: submission.tag, status, sequence: submission.sequence, epoch, results, ..Completion::default() }
}

/// The endpoint a spawn record names.
pub(crate) fn endpoint_of(number: u32) -> Option<Endpoint> {
    Endpoint::new(number)
}
