//! What a call of M3-IPC can answer instead of success.

use core::fmt;

/// A situation a caller can act on. The numbers of the published interface are in [`errno`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IpcError {
    /// The caller is not bound, or its binding ended.
    NotBound,
    /// The number is outside the table, or is the caller's own.
    BadEndpoint,
    /// Nobody is bound to the endpoint. A retry after `wait4bind` is safe.
    NoSuchEndpoint,
    /// The number or the name is already somebody else's.
    EndpointInUse,
    /// The table of endpoints, channels, lanes or grants is full, or the endpoint has a name already.
    TableFull,
    /// The peer died before it took the message: nothing happened there.
    DestinationDied,
    /// The peer died while the caller waited for its message or reply. Whether it acted is unknown.
    SourceDied,
    /// The time limit passed; the message was withdrawn and will not be delivered.
    TimedOut,
    /// A manager woke the caller.
    WokenUp,
    /// `reply` to somebody who does not wait for it.
    NotWaiting,
    /// The peer waits for the caller, directly or over others: the highest endpoint of the circle is refused. A message
    /// was not delivered; a request may have been taken by a peer that something else freed meanwhile.
    Deadlock,
    /// The caller's privileges do not allow this call or this peer.
    Denied,
    /// A copy outside what its owner granted.
    OutOfGrant,
    /// Length or alignment that the call does not take.
    BadArgument,
    /// No link to the peer's node. Whether the peer acted is unknown when the call had been sent.
    NoLink,
    /// The caller carries an epoch that is no longer valid: another owner was promoted.
    Fenced,
    /// What the peer wrote into the channel makes no sense; the channel is closed.
    Corrupt,
    /// The broker cannot be reached; channels that exist go on working. A retry is safe.
    NoBroker,
    /// The container is not running here.
    DcNotRunning,
    /// Nobody ever gave a grant with this number.
    UnknownGrant,
    /// The grant was taken back, or given to an earlier owner of the copier's number.
    Revoked,
    /// The grant is for reading and the copy writes, or the reverse.
    WrongDirection,
    /// The endpoint still owes answers, or is being handed over already. Nothing was done; a retry is safe.
    Busy,
    /// The endpoint has another owner now, to whom it was handed over: its old owner learns this, and clients of its
    /// rings, whose open requests the old one did not complete. Calls with messages go on with the new owner by
    /// themselves.
    Moved,
    /// The kernel refused; the number is Linux's errno.
    Os(i32),
}

impl IpcError {
    /// Kernel errors carry their errno in the low bits of the code.
    const OS: u32 = 1 << 16;

    /// Every error but those of the kernel, in the order of their codes.
    pub const ALL: &[IpcError] = &[
        IpcError::NotBound,
        IpcError::BadEndpoint,
        IpcError::NoSuchEndpoint,
        IpcError::EndpointInUse,
        IpcError::TableFull,
        IpcError::DestinationDied,
        IpcError::SourceDied,
        IpcError::TimedOut,
        IpcError::WokenUp,
        IpcError::NotWaiting,
        IpcError::Deadlock,
        IpcError::Denied,
        IpcError::OutOfGrant,
        IpcError::BadArgument,
        IpcError::NoLink,
        IpcError::Fenced,
        IpcError::Corrupt,
        IpcError::NoBroker,
        IpcError::DcNotRunning,
        IpcError::UnknownGrant,
        IpcError::Revoked,
        IpcError::WrongDirection,
        IpcError::Busy,
        IpcError::Moved,
    ];

    /// The number by which this error travels between processes; never 0.
    pub const fn code(self) -> u32 {
        match self {
            IpcError::NotBound => 1,
            IpcError::BadEndpoint => 2,
            IpcError::NoSuchEndpoint => 3,
            IpcError::EndpointInUse => 4,
            IpcError::TableFull => 5,
            IpcError::DestinationDied => 6,
            IpcError::SourceDied => 7,
            IpcError::TimedOut => 8,
            IpcError::WokenUp => 9,
            IpcError::NotWaiting => 10,
            IpcError::Deadlock => 11,
            IpcError::Denied => 12,
            IpcError::OutOfGrant => 13,
            IpcError::BadArgument => 14,
            IpcError::NoLink => 15,
            IpcError::Fenced => 16,
            IpcError::Corrupt => 17,
            IpcError::NoBroker => 18,
            IpcError::DcNotRunning => 19,
            IpcError::UnknownGrant => 20,
            IpcError::Revoked => 21,
            IpcError::WrongDirection => 22,
            IpcError::Busy => 23,
            IpcError::Moved => 24,
            IpcError::Os(number) => IpcError::OS | (number as u32 & 0xffff),
        }
    }

    /// The reverse of [`IpcError::code`]; a code nobody gave is `Corrupt`.
    pub const fn from_code(code: u32) -> IpcError {
        match code {
            1 => IpcError::NotBound,
            2 => IpcError::BadEndpoint,
            3 => IpcError::NoSuchEndpoint,
            4 => IpcError::EndpointInUse,
            5 => IpcError::TableFull,
            6 => IpcError::DestinationDied,
            7 => IpcError::SourceDied,
            8 => IpcError::TimedOut,
            9 => IpcError::WokenUp,
            10 => IpcError::NotWaiting,
            11 => IpcError::Deadlock,
            12 => IpcError::Denied,
            13 => IpcError::OutOfGrant,
            14 => IpcError::BadArgument,
            15 => IpcError::NoLink,
            16 => IpcError::Fenced,
            18 => IpcError::NoBroker,
            19 => IpcError::DcNotRunning,
            20 => IpcError::UnknownGrant,
            21 => IpcError::Revoked,
            22 => IpcError::WrongDirection,
            23 => IpcError::Busy,
            24 => IpcError::Moved,
            os if os & IpcError::OS == IpcError::OS && os >> 17 == 0 => IpcError::Os((os & 0xffff) as i32),
            _ => IpcError::Corrupt,
        }
    }
}

/// The error numbers of the published `dvk_*` interface, which the C library answers. No two errors share one: a number
/// says which error it was.
///
/// | published name | number | here |
/// |---|---|---|
/// | those of POSIX | -1 to -75 | what the interface has no name for; a time limit that passed |
/// | `LOCKED` … `DSTDIED` | -101 to -110 | between two endpoints |
/// | `DCNOTRUN` … `WOKENUP` | -301 to -348 | container, binding, privileges |
/// | `PRIMARY` | -401 | fencing |
/// | - | -1001 to -5095 | the kernel's own, -1000 less errno: beside the above they would mean something else |
pub mod errno {
    use super::IpcError;

    /// Errors of the kernel are this less their errno.
    const OS: i32 = -1000;
    const OS_LAST: i32 = OS - 4095;

    pub const fn published(error: IpcError) -> i32 {
        match error {
            IpcError::WrongDirection => -13,
            IpcError::UnknownGrant => -14,
            IpcError::OutOfGrant => -34,
            IpcError::Corrupt => -60,
            IpcError::TimedOut => -61,
            IpcError::Deadlock => -101,
            IpcError::SourceDied => -108,
            IpcError::DestinationDied => -109,
            IpcError::DcNotRunning => -303,
            IpcError::NoSuchEndpoint => -304,
            IpcError::BadEndpoint => -306,
            IpcError::NoLink => -307,
            IpcError::NotBound => -310,
            IpcError::Busy => -317,
            IpcError::NoBroker => -318,
            IpcError::NotWaiting => -324,
            IpcError::Revoked => -331,
            IpcError::Moved => -332,
            IpcError::Denied => -335,
            IpcError::EndpointInUse => -337,
            IpcError::TableFull => -338,
            IpcError::BadArgument => -339,
            IpcError::WokenUp => -348,
            IpcError::Fenced => -401,
            IpcError::Os(number) => OS - (number & 0xfff),
        }
    }

    /// The reverse; `None` for a number that no error has.
    pub fn from_published(number: i32) -> Option<IpcError> {
        if (OS_LAST..=OS).contains(&number) {
            return Some(IpcError::Os(OS - number));
        }
        IpcError::ALL.iter().copied().find(|error| published(*error) == number)
    }
}

impl fmt::Display for IpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            IpcError::NotBound => "the caller is not bound to an endpoint",
            IpcError::BadEndpoint => "not a valid endpoint for this call",
            IpcError::NoSuchEndpoint => "nobody is bound to this endpoint",
            IpcError::EndpointInUse => "the endpoint is already bound",
            IpcError::TableFull => "a table is full",
            IpcError::DestinationDied => "the destination died before it took the message",
            IpcError::SourceDied => "the peer died before it answered",
            IpcError::TimedOut => "the time limit passed",
            IpcError::WokenUp => "a manager ended the wait",
            IpcError::NotWaiting => "the destination does not wait for this reply",
            IpcError::Deadlock => "both sides were sending to each other",
            IpcError::Denied => "privileges do not allow this call",
            IpcError::OutOfGrant => "the copy lies outside the granted memory",
            IpcError::BadArgument => "a length or argument is out of range",
            IpcError::NoLink => "no link to the node of the peer",
            IpcError::Fenced => "another owner was promoted; this one's epoch is old",
            IpcError::Corrupt => "the peer wrote garbage into the channel",
            IpcError::NoBroker => "the node daemon cannot be reached",
            IpcError::DcNotRunning => "the container is not running on this node",
            IpcError::UnknownGrant => "no such grant was ever given",
            IpcError::Revoked => "the grant was taken back",
            IpcError::WrongDirection => "the grant does not allow this direction",
            IpcError::Busy => "the endpoint owes answers or is being handed over",
            IpcError::Moved => "the endpoint was handed over to another owner",
            IpcError::Os(number) => return write!(f, "the kernel refused (errno {number})"),
        };
        f.write_str(text)
    }
}

impl core::error::Error for IpcError {}

#[cfg(test)]
mod tests {
    use super::{IpcError, errno};

    #[test]
    fn every_code_names_the_error_it_came_from() {
        for (index, error) in IpcError::ALL.iter().enumerate() {
            assert_eq!(error.code(), index as u32 + 1, "the list is in the order of the codes, without a gap");
            assert_eq!(IpcError::from_code(error.code()), *error);
        }
        let after_the_last = IpcError::ALL.len() as u32 + 1;
        assert_eq!(IpcError::from_code(after_the_last), IpcError::Corrupt, "an error is missing in the list");
        assert_eq!(IpcError::from_code(IpcError::Os(11).code()), IpcError::Os(11));
        assert_eq!(IpcError::from_code(u32::MAX), IpcError::Corrupt);
    }

    #[test]
    fn published_number_says_which_error_it_was() {
        let of_the_kernel = [1, 11, 110, 133, 4095].map(IpcError::Os);
        for error in IpcError::ALL.iter().chain(&of_the_kernel) {
            let number = errno::published(*error);
            assert!(number < 0, "{error:?}");
            assert_eq!(errno::from_published(number), Some(*error));
        }
        for number in [0, 1, -2, -999, -5096, i32::MIN] {
            assert_eq!(errno::from_published(number), None, "{number}");
        }
    }
}
