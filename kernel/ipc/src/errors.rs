//! What the callers of each call can hear, besides errors of the kernel ([`IpcError::Os`]).
//!
//! Whatever only goes on inside, as a channel that gave way or a peer that was handed over, is no error:
//! `waiting::Failure`. Each call passes what it answers through its set. In a test a call panics where it answers
//! anything else, so every test is one of that. A manual page lists the errors of its calls; a test of the C library
//! compares.

use IpcError::{
    BadArgument, BadEndpoint, Busy, Corrupt, DcNotRunning, Deadlock, Denied, DestinationDied, EndpointInUse, Fenced,
    Moved, NoBroker, NoLink, NoSuchEndpoint, NotBound, NotWaiting, OutOfGrant, Revoked, SourceDied, TableFull,
    TimedOut, UnknownGrant, WokenUp, WrongDirection,
};
use abi::IpcError;

/// Errors. Those of the kernel are in every set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorSet {
    /// By code.
    bits: u32,
}

impl ErrorSet {
    const fn of(errors: &[IpcError]) -> ErrorSet {
        ErrorSet { bits: 0 }.and(errors)
    }

    /// With these as well.
    const fn and(self, errors: &[IpcError]) -> ErrorSet {
        let (mut bits, mut left) = (self.bits, errors);
        while let [first, others @ ..] = left {
            bits |= 1 << first.code();
            left = others;
        }
        ErrorSet { bits }
    }

    const fn or(self, other: ErrorSet) -> ErrorSet {
        ErrorSet { bits: self.bits | other.bits }
    }

    pub fn contains(self, error: &IpcError) -> bool {
        matches!(error, IpcError::Os(_)) || self.bits & 1 << error.code() != 0
    }

    /// Without those of the kernel.
    pub fn iter(self) -> impl Iterator<Item = IpcError> {
        IpcError::ALL.iter().copied().filter(move |error| self.contains(error))
    }

    /// What a call answers whose errors these are.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn only<T>(self, result: Result<T, IpcError>) -> Result<T, IpcError> {
        if cfg!(debug_assertions)
            && let Err(error) = &result
            && !self.contains(error)
        {
            unlisted(*error);
        }
        result
    }
}

/// Tests fail (`.cargo/config.toml` sets the variable); a program that people run goes on with what it was answered.
#[cold]
#[track_caller]
fn unlisted(error: IpcError) {
    assert!(std::env::var_os("M3IPC_STRICT_ERRORS").is_none(), "the list of this call's errors lacks {error:?}");
}

/// Of whatever a port is asked for.
const BOUND: ErrorSet = ErrorSet::of(&[NotBound, Moved, Fenced]);

/// Of what the broker is asked for.
const ASKED: ErrorSet = BOUND.and(&[NoBroker, DcNotRunning]);

/// Of what needs a channel to a peer.
const OPENED: ErrorSet = ASKED.and(&[BadEndpoint, NoSuchEndpoint, Denied, NoLink, TableFull]);

/// Of what the broker of another node may be asked for.
const ERRAND: ErrorSet = ASKED.and(&[NoSuchEndpoint, NoLink, TableFull, TimedOut]);

/// Why a channel is said to have ended, besides the death of its other party. Whatever else stands there, the other
/// party is gone: it writes what it likes, and must not choose what our caller hears.
pub(crate) const CHANNEL_ENDS: ErrorSet =
    ErrorSet::of(&[NoSuchEndpoint, DcNotRunning, NoLink, Fenced, Denied, TableFull, Corrupt, BadArgument, NoBroker]);

/// What is heard of a channel that is said to have ended for `reason`, where nothing begins again.
pub(crate) fn heard(reason: IpcError) -> IpcError {
    if CHANNEL_ENDS.contains(&reason) { reason } else { SourceDied }
}

/// Of `send`.
pub const SEND: ErrorSet = OPENED.and(&[DestinationDied, SourceDied, TimedOut, Deadlock, Corrupt, BadArgument]);

/// Of `sendrec`: after `SourceDied`, `NoLink` and `Denied` it is unknown whether the peer acted.
pub const SENDREC: ErrorSet = SEND;

/// Of `reply`.
pub const REPLY: ErrorSet = ASKED.and(&[
    NotWaiting,
    NoSuchEndpoint,
    DestinationDied,
    Denied,
    NoLink,
    TimedOut,
    TableFull,
    Corrupt,
    BadArgument,
]);

/// Of `notify`.
pub const NOTIFY: ErrorSet = OPENED.and(&[DestinationDied]);

/// Of `receive` from anybody, `rcvrqst` and `wait_event`: what ends between others and this endpoint is no error of
/// theirs.
pub const RECEIVE_ANY: ErrorSet = BOUND.and(&[TimedOut, WokenUp]);

/// Of `receive` and `wait_event_from` of one peer.
pub const RECEIVE_FROM: ErrorSet = SEND.or(RECEIVE_ANY);

/// Of `connect` and `from_socket`.
pub const BIND: ErrorSet =
    ErrorSet::of(&[NoBroker, DcNotRunning, NotBound, Denied, BadEndpoint, EndpointInUse, TableFull, Fenced]);

/// Of `connect_when_bound` and `stand_by`.
pub const BIND_LATER: ErrorSet = BIND.and(&[TimedOut]);

/// Of `unbind`.
pub const UNBIND: ErrorSet = BOUND.and(&[NoBroker]);

/// Of `getep`.
pub const GETEP: ErrorSet = ASKED.and(&[NoSuchEndpoint]);

/// Of `wait4bind` and `wait4unbind`: `TableFull` when too many wait on this node.
pub const WAIT4BIND: ErrorSet = ASKED.and(&[TableFull, TimedOut]);

/// Of `open_ring`.
pub const OPEN_RING: ErrorSet = OPENED.and(&[BadArgument, TimedOut]);

/// Of both ends of a ring, and of the event that says that one was closed; `BadArgument` also for one completion too
/// many.
pub const RING: ErrorSet = BOUND.or(CHANNEL_ENDS).and(&[SourceDied]);

/// Of `RingClient::wait`.
pub const RING_WAIT: ErrorSet = ErrorSet::of(&[NotBound, TimedOut]);

/// Of `grant`.
pub const GRANT: ErrorSet = BOUND.and(&[BadEndpoint, TableFull]);

/// Of `revoke`.
pub const REVOKE: ErrorSet = BOUND.and(&[UnknownGrant, Revoked]);

/// Of `vcopy` and all other copies.
pub const COPY: ErrorSet =
    OPENED.or(REVOKE).and(&[WrongDirection, OutOfGrant, BadArgument, TimedOut, SourceDied, DestinationDied, Corrupt]);

/// Of `relay`.
pub const RELAY: ErrorSet = OPENED.or(REPLY);

/// Of `notify_for`.
pub const NOTIFY_FOR: ErrorSet = NOTIFY.and(&[TimedOut]);

/// Of `privileges`. `Busy` while the endpoint is being handed over.
pub const PRIVILEGES: ErrorSet = ERRAND.and(&[Busy]);

/// Of `set_privileges` and `wakeup`.
pub const MANAGE: ErrorSet = PRIVILEGES.and(&[Denied]);

/// Of `bind_for`.
pub const BIND_FOR: ErrorSet = ASKED.and(&[Denied, BadArgument, BadEndpoint, EndpointInUse, TableFull]);

/// Of `migration_start`.
pub const MIGRATION_START: ErrorSet = MANAGE.and(&[DestinationDied]);

/// Of `migration_commit`.
pub const MIGRATION_COMMIT: ErrorSet = MIGRATION_START.and(&[BadArgument]);

/// Of `migration_rollback`.
pub const MIGRATION_ROLLBACK: ErrorSet = MANAGE;

/// Of `promote`.
pub const PROMOTE: ErrorSet = ERRAND.and(&[Denied, BadArgument]);

/// Of `set_name`.
pub const SET_NAME: ErrorSet = ASKED.and(&[BadArgument, EndpointInUse, TableFull, TimedOut]);

/// Of `find` and `find_place`.
pub const FIND: ErrorSet = ERRAND.and(&[BadArgument]);

/// Of `dc_info`.
pub const DC_INFO: ErrorSet = ASKED.and(&[Denied]);

/// Of `endpoint_info`.
pub const ENDPOINT_INFO: ErrorSet = DC_INFO.and(&[NoSuchEndpoint, NoLink, Busy]);

/// Of `endpoints_info`, `channels_info` and `proxies_info`.
pub const LIST_INFO: ErrorSet = DC_INFO.and(&[BadArgument]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::why_closed;

    /// It says it in memory, and to the broker.
    #[test]
    fn peer_that_ends_a_channel_does_not_choose_what_a_caller_hears() {
        for reason in IpcError::ALL {
            assert!(CHANNEL_ENDS.and(&[SourceDied]).contains(&heard(*reason)));
            assert!(RING.contains(&why_closed(*reason)), "{reason:?}");
        }
        assert_eq!([WokenUp, NotBound, EndpointInUse].map(why_closed), [SourceDied; 3]);
    }

    #[test]
    #[cfg(debug_assertions)]
    fn call_that_answers_what_is_not_its_own_is_found() {
        let answers = |error| std::panic::catch_unwind(|| RING_WAIT.only::<()>(Err(error)));
        assert_eq!(answers(TimedOut).unwrap(), Err(TimedOut));
        assert_eq!(answers(IpcError::Os(11)).unwrap(), Err(IpcError::Os(11)));
        assert!(answers(WokenUp).is_err());
    }
}
