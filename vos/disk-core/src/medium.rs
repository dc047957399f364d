//! What a volume lies on, and the other end of its transfers.
//!
//! The rules a volume relies on, which [`crate::testkit`] has as a test for every medium: a write that returned is seen
//! by every later read, also after the death of this process; what had returned before [`Medium::flush`] began survives
//! loss of power once it returned. Overlapping transfers at the same time have no order, as on any disk. All calls may
//! be made by several threads at once.

use std::cell::RefCell;
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

    /// Puts bytes there that came without a file.
    fn put(&self, at: u32, data: &[u8]) -> Result<(), Errno>;

    /// What is there from `at` on.
    fn take(&self, at: u32, into: &mut [u8]) -> Result<(), Errno>;
}

/// Plain memory, for reads.
pub struct ReadInto<'a>(RefCell<&'a mut [u8]>);

impl<'a> ReadInto<'a> {
    pub fn new(memory: &'a mut [u8]) -> ReadInto<'a> {
        ReadInto(RefCell::new(memory))
    }
}

impl Bulk for ReadInto<'_> {
    fn fill(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<u32, Errno> {
        let mut memory = self.0.borrow_mut();
        let place = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..bytes as usize));
        let place = place.ok_or(Errno::RANGE)?;
        let mut done = 0;
        while done < place.len() {
            let rest = place.get_mut(done..).unwrap_or_default();
            match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, offset + done as u64))? {
                0 => break,
                got => done += got,
            }
        }
        Ok(done as u32)
    }

    fn fill_cached(&self, _: u32, _: BorrowedFd<'_>, _: u64, _: u32) -> Result<bool, Errno> {
        Ok(false)
    }

    fn drain(&self, _: BorrowedFd<'_>, _: u64, _: u32) -> Result<(), Errno> {
        Err(Errno::NOTSUP)
    }

    fn put(&self, at: u32, data: &[u8]) -> Result<(), Errno> {
        let mut memory = self.0.borrow_mut();
        let place = memory.get_mut(at as usize..).and_then(|rest| rest.get_mut(..data.len()));
        place.ok_or(Errno::RANGE)?.copy_from_slice(data);
        Ok(())
    }

    fn take(&self, _: u32, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::NOTSUP)
    }
}

/// Plain memory, for writes.
pub struct WriteFrom<'a>(pub &'a [u8]);

impl Bulk for WriteFrom<'_> {
    fn fill(&self, _: u32, _: BorrowedFd<'_>, _: u64, _: u32) -> Result<u32, Errno> {
        Err(Errno::NOTSUP)
    }

    fn fill_cached(&self, _: u32, _: BorrowedFd<'_>, _: u64, _: u32) -> Result<bool, Errno> {
        Ok(false)
    }

    fn drain(&self, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<(), Errno> {
        let data = self.0.get(..bytes as usize).ok_or(Errno::RANGE)?;
        let mut done = 0;
        while done < data.len() {
            let rest = data.get(done..).unwrap_or_default();
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(file, rest, offset + done as u64))? {
                0 => return Err(Errno::IO),
                written => done += written,
            }
        }
        Ok(())
    }

    fn put(&self, _: u32, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOTSUP)
    }

    fn take(&self, at: u32, into: &mut [u8]) -> Result<(), Errno> {
        let data = self.0.get(at as usize..).and_then(|rest| rest.get(..into.len())).ok_or(Errno::RANGE)?;
        into.copy_from_slice(data);
        Ok(())
    }
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

    /// The file of which each range is the same range of the medium, for who reads it in another way.
    fn file(&self) -> Option<BorrowedFd<'_>>;

    fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk) -> Result<(), Errno>;

    fn flush(&self) -> Result<(), Errno>;

    /// The first range from there on that may hold other than zeros; `None`: all of the rest is zeros.
    fn data_from(&self, offset: u64) -> Option<(u64, u64)>;

    /// What is read there next comes from the medium, but for what is not written back yet.
    fn forget(&self, offset: u64, bytes: u64);

    /// The range reads as zeros afterwards.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Writes to the range fail no more for want of space afterwards; what it holds stays. `EOPNOTSUPP`: the host
    /// cannot tell.
    fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno>;
}
