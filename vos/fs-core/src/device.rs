//! What the file system stands on: a blocking, thread-safe block device.
//!
//! The rules it relies on, and that the devices of `testing` enforce: a block of [`BLOCK`] bytes is written as a whole
//! or not at all; a write that returned is seen by every later read, also after the death of this process; after
//! [`BlockDevice::flush`] everything that had returned before survives loss of power; writes that were not flushed may
//! survive or not, each for itself, in any order.

use std::time::Duration;

use thiserror::Error;
pub use vos_api::disk::Need;

/// Unit of allocation, of checksums and of atomicity.
pub const BLOCK: usize = vos_api::disk::BLOCK_BYTES as usize;
pub const BLOCK64: u64 = BLOCK as u64;

/// Offsets and lengths are multiples of [`BLOCK`].
pub trait BlockDevice: Send + Sync {
    /// Bytes; does not change while the device is open.
    fn bytes(&self) -> u64;
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError>;
    /// The same from another copy than the one that is read usually, the first of which is 0. `false`: so many there
    /// are not. Nobody may write there meanwhile.
    fn read_other(&self, _which: u64, _offset: u64, _out: &mut [u8]) -> Result<bool, DeviceError> {
        Ok(false)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError>;
    /// Several writes that may be under way together and reach the device in any order. On failure any of them may be
    /// there.
    fn write_together(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        writes.iter().try_for_each(|(offset, data)| self.write(*offset, data))
    }
    /// Likewise; what was written so, and all that had returned before, survives loss of power when this returns.
    fn write_through(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        self.write_together(writes)?;
        self.flush()
    }
    fn flush(&self) -> Result<(), DeviceError>;
    /// Sets space aside: writes to the range do not fail afterwards for want of space (`ENOSPC` now instead). What the
    /// range holds stays. A device that has all its space, or cannot set any aside, does nothing.
    fn allocate(&self, _offset: u64, _bytes: u64, _need: Need) -> Result<(), DeviceError> {
        Ok(())
    }
    /// For how long, from when this was called, what is there is changed by nobody else: until then it may be told from
    /// memory. A device that only this process has needs no asking.
    fn hold(&self) -> Result<Duration, DeviceError> {
        Ok(Duration::MAX)
    }
    /// The range reads as zeros afterwards.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError>;
}

/// The device refused; the number is Linux's errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the disk failed (errno {0})")]
pub struct DeviceError(pub i32);

impl From<DeviceError> for std::io::Error {
    fn from(error: DeviceError) -> std::io::Error {
        std::io::Error::from_raw_os_error(error.0)
    }
}
