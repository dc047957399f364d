//! Waiting for descriptors, with a limit.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Returns when one of them is readable (or closed), or at `until`. A signal may end it early.
pub fn until_readable<'a>(fds: impl Iterator<Item = BorrowedFd<'a>>, until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    let timeout =
        Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    let fds: Vec<BorrowedFd<'a>> = fds.collect();
    let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let _ = poll(&mut polled, Some(&timeout));
}
