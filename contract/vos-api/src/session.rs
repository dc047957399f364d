//! Sessions: how an operation outlives the restart of the server that was executing it.
//!
//! A client opens a ring and sends `HELLO` with the session number it chose (random, once per life of the client).
//! Operations that change something carry a `sequence`, starting at 1 and rising by one. After the server or the link
//! came back, the client opens a new ring, says `HELLO` with the same session number, and sends again, in the order
//! of their sequences, all operations that have no completion. The server answers one it executed already from its
//! record of the session, and executes the others: each is applied exactly once.
//!
//! A server may fence a session that does not give back what others need: leases and locks are gone, and whatever it
//! asks is answered `ESTALE`. Its record is kept, so a client that dropped what it had cached may revive it by a
//! `HELLO` that says so ([`Progress`]), and sends again what has no completion. `docs/design/sessions.md` has the
//! states.
//!
//! `HELLO` says of which placements the client knows ([`Epochs`]), for every request of its ring. A server that knows
//! of other ones answers `ESTALE` with [`Outdated`].
//!
//! A completion promises that the operation survives the death of the server process (not of the disk's power: that
//! is what the flush operations are for).

use versions::Versions;

use crate::operation::{Decoder, Empty, Encoder, Field, operations, replies};

operations! {
    enum Request;

    /// A client opened a ring. May be repeated over each new one. `EPERM`: a program said an epoch. `EAGAIN`: what the
    /// session had in flight when it was fenced is still coming to its end; greet again.
    HELLO = 1: repeatable Hello {
        session: u64,
        progress: Progress,
        epochs: Epochs,
        /// Of [`versions::SERVERS`].
        speaks: Versions,
    } -> Greeting [NoSpace, NotPermitted, TryAgain];

    /// Ends the session for good: the server forgets it and releases its locks and leases.
    GOODBYE = 2: repeatable Goodbye {} -> Empty [NoSpace];
}

replies! {
    /// What a server says of itself and of the session.
    Greeting {
        /// Of the server.
        incarnation,
        /// Highest sequence that it has executed.
        highest,
        /// Requests in flight that it accepts, 0 for as many as the ring holds; above these 32 bits the version that is
        /// spoken from now on ([`Greeting::version`]).
        in_flight,
        /// Of the service.
        service
    };

    /// Words of the `ESTALE` that answers a greeting. Both 0: the session was fenced or forgotten.
    Outdated {
        /// Epoch of the server's own placement, when the client said another one.
        server,
        /// The highest epoch of who the client is, when the client said a lower one.
        own
    };
}

impl Greeting {
    /// The requests in flight, and the version, in one word.
    pub fn terms(in_flight: u32, version: u8) -> u64 {
        u64::from(in_flight) | u64::from(version) << 32
    }

    pub fn in_flight(&self) -> u32 {
        self.in_flight as u32
    }

    /// `None` for what is none.
    pub fn version(&self) -> Option<u8> {
        u8::try_from(self.in_flight >> 32).ok()
    }
}

replies! {
    /// Words of the `EOPNOTSUPP` that answers a greeting: client and server share no version.
    OtherVersion {
        /// What the server speaks.
        oldest,
        newest
    };
}

impl OtherVersion {
    pub fn of(speaks: Versions) -> OtherVersion {
        OtherVersion { oldest: speaks.oldest.into(), newest: speaks.newest.into() }
    }

    /// `None` for what nobody speaks.
    pub fn speaks(&self) -> Option<Versions> {
        let (oldest, newest) = (u8::try_from(self.oldest).ok()?, u8::try_from(self.newest).ok()?);
        Versions::from_u16(Versions { oldest, newest }.to_u16())
    }
}

/// In the flags.
impl Field<'_> for Versions {
    fn put(&self, to: &mut Encoder<'_>) {
        self.to_u16().put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Option<Versions> {
        Versions::from_u16(u16::take(from)?)
    }
}

/// How far a client has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Everything up to it has been completed; the server may forget. Below 2^63.
    pub acknowledged: u64,
    /// The client knows that the session was fenced: it keeps nothing that a lease covered. A server that knows of no
    /// revival takes this for a client that it has forgotten.
    pub revives: bool,
}

const REVIVES: u64 = 1 << 63;

/// Both in one argument.
impl Field<'_> for Progress {
    fn put(&self, to: &mut Encoder<'_>) {
        (self.acknowledged & !REVIVES | if self.revives { REVIVES } else { 0 }).put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Option<Progress> {
        let both = u64::take(from)?;
        Some(Progress { acknowledged: both & !REVIVES, revives: both & REVIVES != 0 })
    }
}

/// Epochs of placements (`docs/design/placement.md`), as a client was told them when it started; 0 when it was told
/// none, which is all that a program may say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Epochs {
    /// Of the server.
    pub server: u32,
    /// Of the client itself.
    pub own: u32,
}

/// Both in one argument.
impl Field<'_> for Epochs {
    fn put(&self, to: &mut Encoder<'_>) {
        (u64::from(self.own) << 32 | u64::from(self.server)).put(to);
    }

    fn take(from: &mut Decoder<'_>) -> Option<Epochs> {
        let both = u64::take(from)?;
        Some(Epochs { server: both as u32, own: (both >> 32) as u32 })
    }
}

/// First operation number that is a service's own.
pub const FIRST_SERVICE_OP: u16 = 16;

/// Changing operations that one session may have in flight. A server keeps twice as many replies
/// (`sessions::REPLIES_KEPT`).
pub const IN_FLIGHT_MAX: u32 = abi::limits::RING_ENTRIES_MAX;
/// Sessions that one server remembers. When there is no room, one without a ring is forgotten: a fenced one first, then
/// the one that has been without a ring for longest. When all have rings, HELLO answers `ENOSPC`.
pub const SESSIONS_MAX: usize = 1024;
