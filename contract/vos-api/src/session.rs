//! Sessions: how an operation outlives the restart of the server that was executing it.
//!
//! A client opens a ring and sends `HELLO` with the session number it chose (random, once per life of the client).
//! Operations that change something carry a `sequence`, starting at 1 and rising by one. After the server or the link
//! came back, the client opens a new ring, says `HELLO` with the same session number, and sends again, in the order
//! of their sequences, all operations that have no completion. The server answers one it executed already from its
//! record of the session, and executes the others: each is applied exactly once.
//!
//! A completion promises that the operation survives the death of the server process (not of the disk's power: that
//! is what the flush operations are for).

use crate::operation::{Empty, operations, replies};

operations! {
    enum Request;

    /// A client opened a ring. May be repeated over each new one.
    HELLO = 1: repeatable Hello {
        session: u64,
        /// Everything up to it has been completed; the server may forget.
        acknowledged: u64,
        /// The client's capability bits: none yet.
        capabilities: u64,
    } -> Greeting [NoSpace];

    /// Ends the session for good: the server forgets it and releases its locks and leases.
    GOODBYE = 2: repeatable Goodbye {} -> Empty [NoSpace];
}

replies! {
    /// What a server says of itself and of the session.
    Greeting {
        /// The server's incarnation.
        epoch,
        /// Highest sequence that it has executed.
        highest,
        /// Requests in flight that it accepts; 0 for as many as the ring holds.
        in_flight,
        /// Of the service.
        service
    };
}

/// First operation number that is a service's own.
pub const FIRST_SERVICE_OP: u16 = 16;

/// Changing operations that one session may have in flight. A server keeps twice as many replies
/// (`sessions::REPLIES_KEPT`).
pub const IN_FLIGHT_MAX: u32 = abi::limits::RING_ENTRIES_MAX;
/// Sessions that one server remembers. When there is no room, one without a ring is forgotten: a fenced one first, then
/// the one that has been without a ring for longest. When all have rings, HELLO answers `ENOSPC`.
pub const SESSIONS_MAX: usize = 1024;
