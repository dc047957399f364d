//! What a volume lies on, and the other end of its transfers.
//!
//! The rules a volume relies on: a write that returned is seen by every later read, also after the death of this
//! process; what had returned before [`Medium::flush`] began survives loss of power once it returned. Overlapping
//! transfers at the same time have no order, as on any disk. All calls may be made by several threads at once.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
pub use vos_api::disk::{Access, Need};

/// Memory that a transfer fills or empties. Bytes go between it and a file without a copy of ours. `at` counts from the
/// beginning of the transfer; `EINVAL` or `ERANGE` when it has not so many bytes.
pub trait Bulk {
    /// Fills `bytes` bytes from `at` on. Answers how many there were, fewer at the end of the file.
    fn fill(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<u32, Errno>;

    /// As [`Bulk::fill`], but only if nothing must be waited for. Answers whether all was filled.
    fn fill_cached(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<bool, Errno>;

    /// Writes its first `bytes` bytes to the file.
    fn drain(&self, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<(), Errno>;
}

/// Offsets and lengths are whole blocks inside the medium; the volume has checked them. What [`Bulk`] refuses is passed
/// on as it is; other errors are Linux's.
pub trait Medium: Send + Sync {
    /// Does not change while the medium is open.
    fn bytes(&self) -> u64;

    fn access(&self) -> Access;

    /// Fills `into` from `at` on.
    fn read(&self, offset: u64, bytes: u32, into: &dyn Bulk, at: u32) -> Result<(), Errno>;

    /// As [`Medium::read`], but only if nothing must be waited for.
    fn read_cached(&self, offset: u64, bytes: u32, into: &dyn Bulk) -> bool;

    fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk) -> Result<(), Errno>;

    fn flush(&self) -> Result<(), Errno>;

    /// The first range from there on that may hold other than zeros; `None`: all of the rest is zeros.
    fn data_from(&self, offset: u64) -> Option<(u64, u64)>;

    /// The range reads as zeros afterwards.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Writes to the range fail no more for want of space afterwards; what it holds stays. `EOPNOTSUPP`: the host
    /// cannot tell.
    fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno>;
}
