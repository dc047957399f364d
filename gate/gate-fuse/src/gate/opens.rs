//! Files that are opened and closed without a word to the server, and how it is told when it has to be.
//!
//! Under a lease that delegates opens an OPEN is answered here and written into the table of open files, where the next
//! gate finds it. Before the lease of an inode that is open like that is given back, one open file of the server stands
//! for all of them ([`crate::opens`]). A change of our own that takes a last name says that there are such files; the
//! server keeps what it leads to, and its answer has the open file. While a change is under way that did not say so,
//! opens of what loses its name are the server's, and all of them when nobody knows what that is.

use vos_api::fs::OPEN;
use zerocopy::IntoBytes;

use super::{Backend, Gate, GateError, Handled, IN_FLIGHT_MAX, stand_key};
use crate::backend::{Done, Op};
use crate::flight::Flight;
use crate::kernel::{self, OpenIn};
use crate::request::Request;
use crate::state::Handle;
use crate::translate::{self, Then};

/// Of what a recall waits for, so many at a time, beside the requests of programs.
const TELLS_MAX: usize = IN_FLIGHT_MAX / 4;

impl<B: Backend> Gate<B> {
    /// Answers an OPEN, if that can be done without the server.
    pub(super) fn open_here(&mut self, request: &Request<'_>, head: &OpenIn) -> Result<bool, GateError> {
        let (unique, key, ino) = (request.header.unique, request.key(), request.header.nodeid);
        let is_resent = unique & kernel::UNIQUE_RESEND != 0;
        // A gate that died between the table and the answer had opened it.
        let is_open = is_resent && self.state.delegated(ino, key).is_some();
        // Of one without a name the server would not know that it has to stay.
        let has_name = self.cache.memory.attr(ino).is_some_and(|attr| attr.links.get() > 0);
        let may = self.cache.delegates(ino)
            && has_name
            && self.is_heard()
            && head.flags & libc::O_TRUNC as u32 == 0
            && self.state.noted(key).is_none()
            && !self.flights.is_blind(ino)
            && !self.is_full();
        if !may && !is_open {
            return Ok(false);
        }
        let is_leased = self.cache.is_leased(ino);
        let Some(out) = self.of_what_is_known(None).open(Handle::delegated(ino, key, head.flags), is_leased) else {
            return Ok(false);
        };
        self.answer(unique, 0, out.as_bytes())?;
        Ok(true)
    }

    /// Closes a file that the server does not know to be open.
    pub(super) fn close_here(&mut self, request: &Request<'_>, fh: u64) -> Result<Handled, GateError> {
        self.cache.closed(fh);
        self.state.leave(fh)?;
        self.finish(request.header.unique, request.key(), 0, &[])
    }

    /// Tells the server of what is open, as far as a recall waits for it, or everything does.
    pub(super) fn tell_opens(&mut self) -> Result<(), GateError> {
        if self.owed.is_empty() && !self.recalls.has_untold() {
            return Ok(());
        }
        self.owed.retain(|ino| self.state.is_untold(*ino));
        let wanted: Vec<u64> = self.owed.iter().copied().chain(self.recalls.untold()).collect();
        for ino in wanted {
            let key = stand_key(ino);
            let is_told = !self.state.is_untold(ino) || self.flights.by_key(key).is_some();
            if is_told || self.behind.is_unborn(ino) {
                continue;
            }
            if self.flights.standing() >= TELLS_MAX {
                break;
            }
            let plan = translate::stand(ino);
            let sequence = Some(self.state.note(key, 0, OPEN)?);
            let Ok(token) = self.backend.submit(&Op::of(&plan.asked, plan.in_capacity, sequence)) else {
                self.state.answered_once(key)?;
                break;
            };
            self.flights.insert(token, Flight { is_left: true, ..Flight::new(key, key, ino, Then::Stands) });
        }
        Ok(())
    }

    /// A dead gate may have been telling what is open: it is told first, with the numbers that it had.
    pub(super) fn go_on_telling(&mut self) {
        for ino in self.state.opens().untold() {
            if self.state.claim(stand_key(ino)).is_some() {
                self.owed.push(ino);
            }
        }
    }

    /// The server has `ino` open, for those of ours that it was not told of.
    pub(super) fn stands(&mut self, ino: u64, handle: u64) {
        if let Err(error) = self.state.stand(ino, handle) {
            // It stays open at the server until the session ends, which harms nobody.
            tracing::warn!(ino, %error, "an open file of the server has no place in the table");
            self.state.opens().refused(ino);
        }
    }

    /// The answer to what was told.
    pub(super) fn stood(&mut self, flight: &Flight, done: &Done<B::Data>) -> Result<(), GateError> {
        if done.status == 0 {
            self.stands(flight.ino, done.results[0]);
        } else {
            tracing::warn!(
                ino = flight.ino,
                errno = done.status,
                "the server does not open a file that programs have open"
            );
            self.state.opens().refused(flight.ino);
        }
        // The next time it is told of the same inode is another one.
        Ok(self.state.answered_once(flight.key)?)
    }
}
