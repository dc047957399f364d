//! Who may signal whom, as `kill(2)` has it, set whose priority, as `setpriority(2)` has it, and see or set whose
//! limits, as `prlimit(2)` has it.
//!
//! A container has one user namespace, so uids are the container's own, and CAP_KILL counts for all of its processes.
//! SameSession do not span nodes; the rule about them is here because the kernel is asked the same (`tests/kernel.rs`).

/// Who signals, as the kernel shows the calling thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signaller {
    /// Process, not thread: receivers see it in `si_pid`.
    pub pid: u32,
    /// Real, which receivers see in `si_uid`.
    pub uid: u32,
    pub euid: u32,
    /// Real.
    pub gid: u32,
    /// Whether CAP_KILL is effective.
    pub power: Power,
    /// Whether CAP_SYS_NICE is.
    pub priorities: Power,
    /// Whether CAP_SYS_RESOURCE is.
    pub resources: Power,
}

/// Over whose processes a capability of the container reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Power {
    All,
    Own,
}

/// Of a process that is to be signalled, what is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receiver {
    /// Real.
    pub uid: u32,
    /// Saved.
    pub suid: u32,
    pub euid: u32,
    /// Real, effective and saved.
    pub gids: [u32; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SameSession {
    Yes,
    No,
}

/// Why a signal was not sent, or a question not answered, in words of `kill(2)` and its like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalError {
    /// There is no such process, or not any more.
    NoProcess,
    NotPermitted,
    /// There is no such signal, or a number that is none.
    Invalid,
    /// More than the process's limit allows, as `setpriority(2)` says it.
    Denied,
    /// As many signals are queued as the receiver may have.
    Full,
    /// Its node cannot be reached. It may have heard the signal or not.
    Unreachable,
    /// What the caller points at cannot be read.
    Fault,
    /// It has as many descriptors as it may have, or its node as many placeholders.
    NoDescriptor,
}

impl SignalError {
    pub const fn errno(self) -> i32 {
        match self {
            SignalError::NoProcess => libc::ESRCH,
            SignalError::NotPermitted => libc::EPERM,
            SignalError::Invalid => libc::EINVAL,
            SignalError::Denied => libc::EACCES,
            SignalError::Full => libc::EAGAIN,
            SignalError::Unreachable => libc::EHOSTUNREACH,
            SignalError::Fault => libc::EFAULT,
            SignalError::NoDescriptor => libc::EMFILE,
        }
    }

    pub fn from_errno(errno: i32) -> Option<SignalError> {
        let all = [
            SignalError::NoProcess,
            SignalError::NotPermitted,
            SignalError::Invalid,
            SignalError::Denied,
            SignalError::Full,
            SignalError::Unreachable,
            SignalError::Fault,
            SignalError::NoDescriptor,
        ];
        all.into_iter().find(|error| error.errno() == errno)
    }
}

/// Most that a signal's number is; 0 asks whether a process is there.
pub const SIGNAL_MAX: i32 = 64;

/// Whether a process that is there may be signalled, and with what. A process may signal itself always; that never
/// crosses nodes.
///
/// # Errors
/// The signal is none, or the sender may not.
pub fn check(signal: i32, sender: &Signaller, receiver: Receiver, session: SameSession) -> Result<(), SignalError> {
    if !(0..=SIGNAL_MAX).contains(&signal) {
        return Err(SignalError::Invalid);
    }
    let is_own = [sender.uid, sender.euid].iter().any(|uid| [receiver.uid, receiver.suid].contains(uid));
    let continues = signal == libc::SIGCONT && session == SameSession::Yes;
    if is_own || continues || sender.power == Power::All { Ok(()) } else { Err(SignalError::NotPermitted) }
}

/// Whether the priority of a process that is there may be set. That it may not rise is the kernel's to say.
///
/// # Errors
/// The asking one may not.
pub fn check_priority(sender: &Signaller, of: Receiver) -> Result<(), SignalError> {
    let is_own = [of.uid, of.euid].contains(&sender.euid);
    if is_own || sender.priorities == Power::All { Ok(()) } else { Err(SignalError::NotPermitted) }
}

/// Whether the limits of a process that is there may be seen and set. That a hard one may not rise is the kernel's to
/// say.
///
/// # Errors
/// The asking one may not.
pub fn check_limits(sender: &Signaller, of: Receiver) -> Result<(), SignalError> {
    let is_own =
        [of.uid, of.euid, of.suid].iter().all(|uid| *uid == sender.uid) && of.gids.iter().all(|gid| *gid == sender.gid);
    if is_own || sender.resources == Power::All { Ok(()) } else { Err(SignalError::NotPermitted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(uid: u32, euid: u32, power: Power) -> Signaller {
        Signaller { pid: 70_000, uid, euid, gid: 4, power, priorities: Power::Own, resources: Power::Own }
    }

    #[test]
    fn one_of_two_uids_has_to_be_one_of_two() {
        let asked = |uid, euid, receiver| {
            let of = Receiver { uid: receiver, suid: 9, euid: 8, gids: [0; 3] };
            check(15, &sender(uid, euid, Power::Own), of, SameSession::No)
        };
        assert_eq!((asked(5, 6, 5), asked(5, 6, 6), asked(9, 6, 1)), (Ok(()), Ok(()), Ok(())));
        assert_eq!(asked(5, 6, 7), Err(SignalError::NotPermitted));
        assert_eq!(asked(0, 0, 7), Err(SignalError::NotPermitted), "root without the capability is a user like others");
    }

    #[test]
    fn signal_that_is_none_is_said_before_who_may() {
        let nobody = Receiver { uid: 1, suid: 1, euid: 5, gids: [0; 3] };
        for signal in [-1, 65, i32::MIN, i32::MAX] {
            assert_eq!(check(signal, &sender(5, 5, Power::Own), nobody, SameSession::No), Err(SignalError::Invalid));
        }
        assert_eq!(check(0, &sender(5, 5, Power::Own), nobody, SameSession::No), Err(SignalError::NotPermitted));
        assert_eq!(check(64, &sender(5, 5, Power::All), nobody, SameSession::No), Ok(()));
    }

    #[test]
    fn session_lets_sigcont_pass_and_nothing_else() {
        let (other, user) = (Receiver { uid: 1, suid: 1, euid: 5, gids: [0; 3] }, sender(5, 5, Power::Own));
        assert_eq!(check(libc::SIGCONT, &user, other, SameSession::Yes), Ok(()));
        assert_eq!(check(libc::SIGCONT, &user, other, SameSession::No), Err(SignalError::NotPermitted));
        assert_eq!(check(libc::SIGTERM, &user, other, SameSession::Yes), Err(SignalError::NotPermitted));
    }

    #[test]
    fn priority_is_set_by_the_effective_uid_or_the_capability() {
        let of = Receiver { uid: 1, suid: 2, euid: 3, gids: [0; 3] };
        let asked = |uid, euid, priorities| {
            check_priority(&Signaller { priorities, ..sender(uid, euid, Power::All) }, of).is_ok()
        };
        assert_eq!([1, 2, 3, 4].map(|euid| asked(9, euid, Power::Own)), [true, false, true, false]);
        assert_eq!((asked(1, 9, Power::Own), asked(9, 9, Power::All)), (false, true));
    }

    #[test]
    fn limits_are_those_of_who_has_all_ids_or_the_capability() {
        let own = Receiver { uid: 5, suid: 5, euid: 5, gids: [4; 3] };
        let asked = |of, resources| check_limits(&Signaller { resources, ..sender(5, 6, Power::All) }, of).is_ok();
        assert!(asked(own, Power::Own), "the effective uid of who asks does not count");
        let others = [
            Receiver { uid: 6, ..own },
            Receiver { suid: 6, ..own },
            Receiver { euid: 6, ..own },
            Receiver { gids: [9, 4, 4], ..own },
            Receiver { gids: [4, 9, 4], ..own },
            Receiver { gids: [4, 4, 9], ..own },
        ];
        for other in others {
            assert_eq!((asked(other, Power::Own), asked(other, Power::All)), (false, true), "{other:?}");
        }
    }

    #[test]
    fn errors_and_their_numbers_are_one_to_one() {
        for errno in 1..=133 {
            if let Some(error) = SignalError::from_errno(errno) {
                assert_eq!(error.errno(), errno);
            }
        }
        assert_eq!(SignalError::from_errno(0), None);
    }
}
