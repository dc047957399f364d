//! What the callers of each call with messages can hear, besides errors of the kernel ([`IpcError::Os`]).
//!
//! Whatever only goes on inside, as a channel that gave way or a peer that was handed over, is no error:
//! `waiting::Failure`. A manual page lists the errors of its calls; a test of the C library compares.

use IpcError::{
    BadArgument, BadEndpoint, Corrupt, DcNotRunning, Deadlock, Denied, DestinationDied, Fenced, Moved, NoBroker,
    NoLink, NoSuchEndpoint, NotBound, NotWaiting, SourceDied, TableFull, TimedOut, WokenUp,
};
use abi::IpcError;

/// Of `send`.
pub const SEND: &[IpcError] = &[
    NotBound,
    Moved,
    Fenced,
    BadEndpoint,
    NoSuchEndpoint,
    DcNotRunning,
    Denied,
    DestinationDied,
    SourceDied,
    NoLink,
    TimedOut,
    Deadlock,
    TableFull,
    Corrupt,
    BadArgument,
    NoBroker,
];

/// Of `sendrec`: after `SourceDied`, `NoLink` and `Denied` it is unknown whether the peer acted.
pub const SENDREC: &[IpcError] = SEND;

/// Of `reply`.
pub const REPLY: &[IpcError] = &[
    NotBound,
    Moved,
    Fenced,
    NotWaiting,
    NoSuchEndpoint,
    DcNotRunning,
    DestinationDied,
    Denied,
    NoLink,
    TimedOut,
    TableFull,
    Corrupt,
    BadArgument,
    NoBroker,
];

/// Of `notify`.
pub const NOTIFY: &[IpcError] = &[
    NotBound,
    Moved,
    Fenced,
    BadEndpoint,
    NoSuchEndpoint,
    DcNotRunning,
    Denied,
    DestinationDied,
    NoLink,
    TableFull,
    NoBroker,
];

/// Of `receive` from anybody, `rcvrqst` and `wait_event`: what ends between others and this endpoint is no error of
/// theirs.
pub const RECEIVE_ANY: &[IpcError] = &[NotBound, Moved, Fenced, TimedOut, WokenUp];

/// Of `receive` and `wait_event_from` of one peer.
pub const RECEIVE_FROM: &[IpcError] = &[
    NotBound,
    Moved,
    Fenced,
    BadEndpoint,
    NoSuchEndpoint,
    DcNotRunning,
    Denied,
    DestinationDied,
    SourceDied,
    NoLink,
    TimedOut,
    WokenUp,
    Deadlock,
    TableFull,
    Corrupt,
    BadArgument,
    NoBroker,
];

/// Why a channel is said to have ended, besides the death of its other party. Whatever else stands there, the other
/// party is gone: it writes what it likes, and must not choose what our caller hears.
pub(crate) const CHANNEL_ENDS: &[IpcError] =
    &[NoSuchEndpoint, DcNotRunning, NoLink, Fenced, Denied, TableFull, Corrupt, BadArgument, NoBroker];
