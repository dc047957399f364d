//! What a call of M3-IPC can answer instead of success.

use core::fmt;

/// An error a line: the number by which it travels between processes, the published number ([`errno`]), what it says.
macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $published:literal: $text:literal;)*) => {
        /// A situation a caller can act on. The numbers of the published interface are in [`errno`].
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum IpcError {
            $($(#[$doc])* $name,)*
            /// The kernel refused; the number is Linux's errno.
            Os(i32),
        }

        impl IpcError {
            /// Every error but those of the kernel, in the order of their codes.
            pub const ALL: &[IpcError] = &[$(IpcError::$name,)*];

            /// The number by which this error travels between processes; never 0.
            pub const fn code(self) -> u32 {
                match self {
                    $(IpcError::$name => $code,)*
                    IpcError::Os(number) => IpcError::OS | (number as u32 & 0xffff),
                }
            }

            /// `None`: no error but those of the kernel has this code.
            pub const fn known(code: u32) -> Option<IpcError> {
                match code {
                    $($code => Some(IpcError::$name),)*
                    _ => None,
                }
            }

            const fn published(self) -> i32 {
                match self {
                    $(IpcError::$name => $published,)*
                    IpcError::Os(number) => errno::OS - (number & 0xfff),
                }
            }
        }

        impl fmt::Display for IpcError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(IpcError::$name => f.write_str($text),)*
                    IpcError::Os(number) => write!(f, "the kernel refused (errno {number})"),
                }
            }
        }
    };
}

errors! {
    /// The caller is not bound, or its binding ended.
    NotBound = 1, -310: "the caller is not bound to an endpoint";
    /// The number is outside the table, or is the caller's own.
    BadEndpoint = 2, -306: "not a valid endpoint for this call";
    /// Nobody is bound to the endpoint. A retry after `wait4bind` is safe.
    NoSuchEndpoint = 3, -304: "nobody is bound to this endpoint";
    /// The number or the name is already somebody else's.
    EndpointInUse = 4, -337: "the endpoint is already bound";
    /// The table of endpoints, channels, lanes or grants is full, or the endpoint has a name already.
    TableFull = 5, -338: "a table is full";
    /// The peer died before it took the message: nothing happened there.
    DestinationDied = 6, -109: "the destination died before it took the message";
    /// The peer died while the caller waited for its message or reply. Whether it acted is unknown.
    SourceDied = 7, -108: "the peer died before it answered";
    /// The time limit passed; the message was withdrawn and will not be delivered.
    TimedOut = 8, -61: "the time limit passed";
    /// A manager woke the caller.
    WokenUp = 9, -348: "a manager ended the wait";
    /// `reply` to somebody who does not wait for it.
    NotWaiting = 10, -324: "the destination does not wait for this reply";
    /// The peer waits for the caller, directly or over others: the highest endpoint of the circle is refused. A message
    /// was not delivered; a request may have been taken by a peer that something else freed meanwhile.
    Deadlock = 11, -101: "both sides were sending to each other";
    /// The caller's privileges do not allow this call or this peer.
    Denied = 12, -335: "privileges do not allow this call";
    /// A copy outside what its owner granted.
    OutOfGrant = 13, -34: "the copy lies outside the granted memory";
    /// Length or alignment that the call does not take.
    BadArgument = 14, -339: "a length or argument is out of range";
    /// No link to the peer's node. Whether the peer acted is unknown when the call had been sent.
    NoLink = 15, -307: "no link to the node of the peer";
    /// The caller carries an epoch that is no longer valid: another owner was promoted.
    Fenced = 16, -401: "another owner was promoted; this one's epoch is old";
    /// What the peer wrote into the channel makes no sense; the channel is closed.
    Corrupt = 17, -60: "the peer wrote garbage into the channel";
    /// The broker cannot be reached; channels that exist go on working. A retry is safe.
    NoBroker = 18, -318: "the node daemon cannot be reached";
    /// The container is not running here.
    DcNotRunning = 19, -303: "the container is not running on this node";
    /// Nobody ever gave a grant with this number.
    UnknownGrant = 20, -14: "no such grant was ever given";
    /// The grant was taken back, or given to an earlier owner of the copier's number.
    Revoked = 21, -331: "the grant was taken back";
    /// The grant is for reading and the copy writes, or the reverse.
    WrongDirection = 22, -13: "the grant does not allow this direction";
    /// The endpoint still owes answers, or is being handed over already. Nothing was done; a retry is safe.
    Busy = 23, -317: "the endpoint owes answers or is being handed over";
    /// The endpoint has another owner now, to whom it was handed over: its old owner learns this, and clients of its
    /// rings, whose open requests the old one did not complete. Calls with messages go on with the new owner by
    /// themselves.
    Moved = 24, -332: "the endpoint was handed over to another owner";
}

impl IpcError {
    /// Kernel errors carry their errno in the low bits of the code.
    const OS: u32 = 1 << 16;

    /// The reverse of [`IpcError::code`]; a code nobody gave is `Corrupt`.
    pub const fn from_code(code: u32) -> IpcError {
        match IpcError::known(code) {
            Some(error) => error,
            None if code & IpcError::OS == IpcError::OS && code >> 17 == 0 => IpcError::Os((code & 0xffff) as i32),
            None => IpcError::Corrupt,
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
    pub(super) const OS: i32 = -1000;
    const OS_LAST: i32 = OS - 4095;

    pub const fn published(error: IpcError) -> i32 {
        error.published()
    }

    /// The reverse; `None` for a number that no error has.
    pub fn from_published(number: i32) -> Option<IpcError> {
        if (OS_LAST..=OS).contains(&number) {
            return Some(IpcError::Os(OS - number));
        }
        IpcError::ALL.iter().copied().find(|error| published(*error) == number)
    }
}

impl core::error::Error for IpcError {}

/// What the kernel refused; an error that is not the kernel's has number 0.
impl From<std::io::Error> for IpcError {
    fn from(error: std::io::Error) -> IpcError {
        IpcError::Os(error.raw_os_error().unwrap_or(0))
    }
}

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
