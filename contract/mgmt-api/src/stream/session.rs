//! A stream that outlives its connections: what each side must remember, without any socket.
//!
//! A client that comes by other daemons names a session: a number of its own choice, `?session=N` with the request. The
//! keeper's first frame on each connection of a session is [`Kind::Session`]: how many of the client's frames it has
//! heard. A stream that begins with another frame has no session, and ends with its connection.
//!
//! ```text
//!            connection breaks                    the client asks again: ?session=N&heard=H
//! Connected ───────────────────▶ Away ─────────────────────────────────────────────────────▶ Connected
//!     │ Leave, or the last word      │ AWAY_LIMIT, or too much is kept for a spectator
//!     │ was confirmed                ▼
//!     └───────────────────────────▶ Over: who ran the program in the foreground was its input, which ends
//! ```
//!
//! Both sides count the frames they hear, all but `Session`, and keep those they said until the other confirms them
//! ([`Kind::Heard`]). After a break each tells how many it has heard, and the other goes on after that one: nothing is
//! lost, nothing comes twice. A side that keeps [`WINDOW_BYTES`] says nothing more until something is confirmed: a
//! program's output waits, as for a slow reader, and so does a client's input. A keeper never stops to read in a
//! session, because confirmations come the same way as input; it holds back its own confirmation while the program does
//! not take its input.
//!
//! A session has no half-closed connection: input ends by an empty `Stdin`, a client goes by `Leave`, which the daemon
//! that saw it die says in its stead. Any other end of a connection is a break.

use std::collections::VecDeque;
use std::time::Duration;

use super::{HEADER_BYTES, Kind, header};

/// What a side says before it waits to hear of it: more than what is under way between two nodes, so that waiting costs
/// nothing.
pub const WINDOW_BYTES: usize = 1 << 20;
/// Bytes of frames after which the hearer confirms them.
pub const CONFIRM_BYTES: usize = WINDOW_BYTES / 8;
/// How long a client tries to come back: a daemon that is started again needs a few seconds.
pub const RESUME_LIMIT: Duration = Duration::from_secs(30);
/// How long a keeper waits for it: it may have seen the break first, by the 9 s after which a silent node is taken for
/// lost.
pub const AWAY_LIMIT: Duration = Duration::from_secs(40);
const _: () = assert!(RESUME_LIMIT.as_secs() + 9 < AWAY_LIMIT.as_secs());

/// The other side has counted frames that there were not, or that are not kept any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{heard} frames cannot have been heard: {confirmed} to {said} can")]
pub struct Miscounted {
    pub heard: u64,
    pub confirmed: u64,
    pub said: u64,
}

/// How long a frame is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeping {
    UntilSent,
    UntilConfirmed,
}

/// What one side says: frames that wait for the socket, and in a session those that wait to be confirmed.
#[derive(Debug)]
pub struct Outgoing {
    keeping: Keeping,
    /// The first frame of a connection, which does not count.
    opening: VecDeque<u8>,
    kept: VecDeque<u8>,
    /// Bytes of `kept` that were given to the connection.
    sent: usize,
    confirmed: u64,
    said: u64,
}

impl Outgoing {
    pub fn new(keeping: Keeping) -> Outgoing {
        Outgoing { keeping, opening: VecDeque::new(), kept: VecDeque::new(), sent: 0, confirmed: 0, said: 0 }
    }

    /// Adds a frame.
    pub fn say(&mut self, kind: Kind, payload: &[u8]) {
        self.said += 1;
        self.kept.extend(header(kind, payload.len()));
        self.kept.extend(payload);
    }

    /// Adds bytes that are no frame; only where nothing is confirmed.
    pub fn say_plain(&mut self, bytes: &[u8]) {
        debug_assert_eq!(self.keeping, Keeping::UntilSent);
        self.kept.extend(bytes);
    }

    /// The next bytes for the connection; empty: everything was given to it.
    pub fn unsent(&self) -> &[u8] {
        if !self.opening.is_empty() {
            return self.opening.as_slices().0;
        }
        let (front, back) = self.kept.as_slices();
        match front.get(self.sent..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => back.get(self.sent - front.len()..).unwrap_or_default(),
        }
    }

    /// The connection took so many bytes of [`Outgoing::unsent`].
    pub fn advance(&mut self, bytes: usize) {
        match self.keeping {
            _ if !self.opening.is_empty() => drop(self.opening.drain(..bytes)),
            Keeping::UntilSent => drop(self.kept.drain(..bytes)),
            Keeping::UntilConfirmed => self.sent += bytes,
        }
    }

    pub fn is_sent(&self) -> bool {
        self.unsent().is_empty()
    }

    /// Nothing needs to be kept: all was sent, and in a session heard.
    pub fn is_settled(&self) -> bool {
        self.opening.is_empty() && self.kept.is_empty()
    }

    pub fn kept_bytes(&self) -> usize {
        self.kept.len()
    }

    /// There will be no confirmations.
    pub fn forget_sent(&mut self) {
        self.keeping = Keeping::UntilSent;
        self.kept.drain(..self.sent);
        self.sent = 0;
    }

    /// The other side has heard so many frames. An old number is nothing new.
    pub fn confirm(&mut self, heard: u64) -> Result<(), Miscounted> {
        if heard > self.said || self.keeping == Keeping::UntilSent {
            return Err(self.miscounted(heard));
        }
        while self.confirmed < heard {
            let length = self.first_length();
            self.kept.drain(..length);
            self.sent = self.sent.saturating_sub(length);
            self.confirmed += 1;
        }
        Ok(())
    }

    /// On a new connection: what the other side has not heard is said again, after the `opening` of a keeper.
    pub fn resume(&mut self, heard: u64, opening: Option<u64>) -> Result<(), Miscounted> {
        if heard < self.confirmed {
            return Err(self.miscounted(heard));
        }
        self.confirm(heard)?;
        self.sent = 0;
        self.open(opening);
        Ok(())
    }

    /// Begins a connection with [`Kind::Session`].
    pub fn open(&mut self, heard: Option<u64>) {
        self.opening.clear();
        if let Some(heard) = heard {
            self.opening.extend(header(Kind::Session, 8));
            self.opening.extend(heard.to_le_bytes());
        }
    }

    fn first_length(&self) -> usize {
        let byte = |at: usize| self.kept.get(at).copied().unwrap_or_default();
        let length = HEADER_BYTES + usize::from(u16::from_le_bytes([byte(2), byte(3)]));
        length.min(self.kept.len())
    }

    fn miscounted(&self, heard: u64) -> Miscounted {
        Miscounted { heard, confirmed: self.confirmed, said: self.said }
    }
}

/// What one side has heard.
#[derive(Clone, Copy, Default, Debug)]
pub struct Incoming {
    heard: u64,
    unconfirmed_bytes: usize,
}

impl Incoming {
    /// One frame more, which is not `Session`.
    pub fn count(&mut self, payload_bytes: usize) {
        self.heard += 1;
        self.unconfirmed_bytes += HEADER_BYTES + payload_bytes;
    }

    pub fn heard(&self) -> u64 {
        self.heard
    }

    pub fn unconfirmed_bytes(&self) -> usize {
        self.unconfirmed_bytes
    }

    /// Whether it is time for [`Kind::Heard`].
    pub fn is_due(&self) -> bool {
        self.unconfirmed_bytes >= CONFIRM_BYTES
    }

    /// What to confirm now: the payload of [`Kind::Heard`].
    pub fn confirm(&mut self) -> [u8; 8] {
        self.unconfirmed_bytes = 0;
        self.heard.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
