//! What gate and kernel agree on when a mount begins.

use sys::without::{Feature, without};
use zerocopy::IntoBytes;

use crate::kernel::{self, InitIn, InitOut, init};
use crate::state::Negotiated;

/// Bytes of one read or write: what one ring entry carries.
pub const TRANSFER_BYTES: u32 = abi::limits::TRANSFER_BYTES_MAX;
const PAGES: u16 = (TRANSFER_BYTES / 4096) as u16;
/// The kernel reads ahead at most as far as the mount's `read_ahead_kb` says; this does not limit it further.
const READ_AHEAD_BYTES: u32 = 4 << 20;
/// Read-ahead and asynchronous requests in flight; a part of what the ring holds, so that others are not kept out.
const BACKGROUND: u16 = 96;
const CONGESTED: u16 = 72;

/// Taken when the kernel offers them.
const WISHES: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::BIG_WRITES
    | init::FLOCK_LOCKS
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::ABORT_ERROR
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::HAS_RESEND;

/// What INIT comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Agreed {
        agreed: Negotiated,
        answer: Vec<u8>,
    },
    /// The kernel is newer by a major version: it asks again after this answer.
    AskAgain {
        answer: Vec<u8>,
    },
    /// Too old to serve.
    Refused,
}

pub fn negotiate(head: &InitIn, flags2: u32) -> Outcome {
    if head.major > kernel::VERSION_MAJOR {
        let out = InitOut { major: kernel::VERSION_MAJOR, minor: kernel::VERSION_MINOR, ..InitOut::default() };
        return Outcome::AskAgain { answer: out.as_bytes().to_vec() };
    }
    if head.major < kernel::VERSION_MAJOR || head.minor < kernel::VERSION_MINOR_MIN {
        return Outcome::Refused;
    }
    let mut offered = u64::from(head.flags) | u64::from(flags2) << 32;
    if without(Feature::FuseResend) {
        offered &= !init::HAS_RESEND;
    }
    let mut flags = offered & WISHES;
    if offered & init::INIT_EXT != 0 {
        flags |= init::INIT_EXT;
    } else {
        flags &= u64::from(u32::MAX);
    }
    let minor = head.minor.min(kernel::VERSION_MINOR);
    let agreed = Negotiated { minor, flags, max_write: TRANSFER_BYTES };
    Outcome::Agreed { agreed, answer: answer(&agreed, head.max_readahead) }
}

/// The answer to INIT. A resent INIT gets the same one again.
fn answer(agreed: &Negotiated, offered_read_ahead: u32) -> Vec<u8> {
    let out = InitOut {
        major: kernel::VERSION_MAJOR,
        minor: agreed.minor,
        max_readahead: READ_AHEAD_BYTES.max(offered_read_ahead),
        flags: agreed.flags as u32,
        max_background: BACKGROUND,
        congestion_threshold: CONGESTED,
        max_write: agreed.max_write,
        time_gran: 1,
        max_pages: PAGES,
        flags2: (agreed.flags >> 32) as u32,
        ..InitOut::default()
    };
    out.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_back_is_never_taken_and_unknown_offers_are_ignored() {
        let head = InitIn { major: 7, minor: 99, max_readahead: 128 << 10, flags: u32::MAX };
        let Outcome::Agreed { agreed, answer } = negotiate(&head, u32::MAX) else { panic!("not agreed") };
        assert_eq!(agreed.flags & (1 << 16), 0);
        assert_eq!(agreed.flags & !(WISHES | init::INIT_EXT), 0);
        assert_eq!((agreed.minor, answer.len()), (kernel::VERSION_MINOR, 64));
    }

    #[test]
    fn old_kernel_is_refused_and_a_newer_major_asks_again() {
        let head = InitIn { major: 7, minor: 8, ..InitIn::default() };
        assert_eq!(negotiate(&head, 0), Outcome::Refused);
        assert!(matches!(negotiate(&InitIn { major: 8, ..head }, 0), Outcome::AskAgain { .. }));
    }
}
