//! Signals: what becomes of a request whose program does not want to wait any more.
//!
//! The kernel tells us of the first signal that reaches a program in a request, whatever signal it is, and lets the
//! program go only with our answer: SIGKILL does not end it before. Files of a local disk are never interrupted, and
//! programs that catch signals rely on it, so an interrupted request goes on as if nothing had happened while the
//! server answers. One that is older than [`PATIENCE`] waits for a server that is away; when its thread is about to die
//! it gets EINTR, which no program sees any more, and its flight is `left`: the operation goes on at the server as one
//! of the session, its completion is dropped, and it happens once or (when this gate dies first) not at all. Who is
//! about to die the keeper tells ([`sys::dying`]), each time it is asked; the kernel does not, and an earlier release's
//! keeper does not: then whoever was signalled gets EINTR.
//!
//! A lock waits for others and not for the server: it is cancelled there at once, and left only when that has no effect
//! either.
//!
//! A killed program closes its files on the way out and cannot be interrupted then: FLUSH is answered after the same
//! time, signal or not. It only unlocks, and whoever wants the lock asks the same server, later.
//!
//! What the completion of a left flight must not leave behind: an open file at the server, which is closed here; and
//! things that the kernel keeps and that the change made wrong, of which it was told nothing: it is made to distrust
//! everything.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use sys::dying;
use vos_api::Operation;
use vos_api::fs::{Cancel, RELEASE, Release};

use super::{Backend, Gate, GateError, Handled, IN_FLIGHT_MAX, Phase, reopen_key};
use crate::backend::{Done, Op, Refused};
use crate::complete::{After, attr_of, kept};
use crate::flight::Flight;
use crate::state::Handle;
use crate::translate::Then;

/// How long a request counts on its answer. Above what the restart of a server takes, so that programs with signal
/// handlers do not notice one; below what a person with `kill -9` has.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often the loop turns at least while something is in flight. One that comes this much later stood still.
pub const TURN: Duration = Duration::from_secs(1);
/// Between two questions whether a thread is about to die.
const AGAIN: Duration = Duration::from_secs(1);

/// Somebody who knows which threads are about to die.
#[derive(Default)]
pub struct Deaths {
    /// `None`: there is nobody, or not any more.
    socket: Option<OwnedFd>,
}

impl Deaths {
    pub fn told_by(socket: OwnedFd) -> Deaths {
        Deaths { socket: Some(socket) }
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(AsFd::as_fd)
    }

    /// False: nobody will say whether this thread dies.
    fn ask(&mut self, flight: &Flight) -> bool {
        let Some(socket) = &self.socket else { return false };
        match dying::ask(socket, flight.key, flight.thread) {
            Err(cause) if cause.kind() != ErrorKind::WouldBlock => {
                // With the keeper its programs end.
                self.socket = None;
                false
            }
            _ => true,
        }
    }

    /// The next request whose thread is about to die.
    fn hear(&mut self) -> Option<u64> {
        loop {
            match dying::hear(self.socket.as_ref()?) {
                Ok(Some((key, true))) => return Some(key),
                Ok(Some((_, false))) => (),
                Ok(None) => return None,
                Err(_) => self.socket = None,
            }
        }
    }
}

/// What left flights left behind.
#[derive(Default)]
pub struct Leftovers {
    /// Files that were opened for nobody, by their number in the handle table.
    to_close: VecDeque<u64>,
    /// Something changed and the kernel was not told.
    kernel_is_wrong: bool,
}

impl Leftovers {
    /// The session was lost with a closing in flight: the file is opened again with all others, and closed again.
    pub fn lost(&mut self, flight: &Flight) {
        if let Then::Release { fh } = flight.then {
            self.to_close.push_back(fh);
        }
    }
}

impl<B: Backend> Gate<B> {
    /// A signal arrived at a program that waits for the answer to this request.
    pub(super) fn interrupt(&mut self, key: u64) -> Result<Handled, GateError> {
        let Some((token, flight)) = self.flights.by_key(key) else { return Ok(Handled::Done) };
        let Some(sequence) = flight.waiting_lock else {
            // Nobody waits until a file is closed.
            if !matches!(flight.then, Then::Release { .. }) {
                let (at, has_next) = (flight.since + PATIENCE, matches!(flight.then, Then::Told { .. }));
                self.flights.leave_at(token, at);
                if has_next {
                    self.flights.interrupted(token);
                }
            }
            return Ok(Handled::Done);
        };
        let cancel = Cancel { sequence }.encode();
        match self.backend.submit(&Op::of(&cancel, 0, None)) {
            // Its completion says nothing; the lock's own says EINTR.
            Ok(_) => self.flights.leave_at(token, Instant::now() + PATIENCE),
            Err(Refused::Full) => return Ok(Handled::Later),
            Err(Refused::TooLong) => {}
        }
        Ok(Handled::Done)
    }

    /// Time in which this process stood still, with its machine perhaps, is none in which the server was away: requests
    /// would be given up in the moment in which both go on.
    pub(super) fn count_time(&mut self) {
        let now = Instant::now();
        let since = now.saturating_duration_since(std::mem::replace(&mut self.turned, now));
        if since > 2 * TURN {
            self.flights.postpone(since);
        }
    }

    /// Takes what is said of threads that are about to die.
    pub(super) fn hear_deaths(&mut self) {
        while let Some(key) = self.deaths.hear() {
            self.flights.dies(key);
        }
    }

    /// Answers for requests that waited long enough.
    pub(super) fn leave_due(&mut self) -> Result<(), GateError> {
        let now = Instant::now();
        if self.flights.next_leave().is_none_or(|at| at > now) {
            return Ok(());
        }
        self.hear_deaths();
        while let Some((token, flight)) = self.flights.due(now) {
            let is_for_anybody = flight.waiting_lock.is_some() || matches!(flight.then, Then::Unlocked { .. });
            let is_known = is_for_anybody || flight.is_dying || flight.thread == 0;
            if !is_known && self.deaths.ask(flight) {
                self.flights.leave_rather_at(token, now + AGAIN);
                continue;
            }
            let Some((unique, then)) = self.flights.leave(token) else { continue };
            let errno = if matches!(then, Then::Unlocked { .. }) { 0 } else { libc::EINTR };
            tracing::info!(unique, errno, "the server is away: a request is answered without it");
            self.answer(unique, -errno, &[])?;
        }
        Ok(())
    }

    /// The operation of a request that has its answer already.
    pub(super) fn complete_left(&mut self, flight: &Flight, done: &Done<B::Data>) -> Result<(), GateError> {
        if !matches!(flight.then, Then::Behind | Then::Looks | Then::Opens { .. }) {
            self.state.answered(flight.key);
        }
        match flight.then {
            Then::Release { fh } => {
                self.cache.closed(fh);
                self.state.leave(fh)?;
                return Ok(());
            }
            Then::Stands => return self.stood(flight, done),
            Then::Behind => return self.told(flight, done),
            Then::Looks => return self.looked(flight, done),
            Then::Opens { fh } => return self.opened_for_lock(flight, fh, done),
            Then::Told { fh } if done.status == 0 => {
                match self.state.handle(fh) {
                    Some(_) => self.state.replace(fh, done.results[0])?,
                    None => self.stands(flight.ino, done.results[0]),
                }
                return Ok(());
            }
            Then::Told { .. } => return Ok(()),
            _ => {}
        }
        let asked = self.changed(flight, done);
        self.learnt(flight, done, asked);
        if done.status == 0
            && let After::Stands { ino, handle } = kept(flight.then, done.results)
        {
            self.stands(ino, handle);
        }
        // What the cache says of locks stays: their owner may have others by now.
        self.leftovers.kernel_is_wrong |=
            flight.changes && !matches!(flight.then, Then::Lock { .. } | Then::Unlocked { .. });
        let opened = match flight.then {
            _ if done.status != 0 => None,
            Then::Open { ino, flags } => Some((ino, flags)),
            Then::Create { flags } => attr_of(&done.data).map(|attr| (attr.ino.get(), flags)),
            _ => None,
        };
        if let Some((ino, flags)) = opened {
            let fh = self.state.enter(Handle { ino, fs_handle: done.results[0], flags })?;
            self.leftovers.to_close.push_back(fh);
        }
        Ok(())
    }

    /// Puts right what left flights left behind.
    pub(super) fn clear_up(&mut self) -> Result<(), GateError> {
        if self.leftovers.kernel_is_wrong {
            let everything = self.everything(None);
            // A full queue: once more, later.
            self.leftovers.kernel_is_wrong = !self.notifier.give(everything);
        }
        while let Some(fh) = self.state.opens().useless() {
            self.leftovers.to_close.push_back(fh);
        }
        while matches!(self.phase, Phase::Serving)
            && self.flights.len() < IN_FLIGHT_MAX
            && let Some(fh) = self.leftovers.to_close.pop_front()
        {
            let Some(Handle { ino, fs_handle, .. }) = self.state.handle(fh) else { continue };
            let key = reopen_key(fh);
            let sequence = Some(self.state.note(key, 0, RELEASE)?);
            let release = Release { ino, handle: fs_handle }.encode();
            let Ok(token) = self.backend.submit(&Op::of(&release, 0, sequence)) else {
                self.leftovers.to_close.push_front(fh);
                break;
            };
            self.flights.insert(token, Flight { is_left: true, ..Flight::new(key, key, ino, Then::Release { fh }) });
        }
        Ok(())
    }
}
