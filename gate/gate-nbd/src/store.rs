//! What is exported.

use rustix::io::Errno;

/// Offsets and lengths are multiples of it.
pub const STORE_BLOCK_BYTES: u64 = 4096;

/// Whole blocks inside `bytes`; calls come from several threads at once. Errors are Linux's.
pub trait BlockStore: Send + Sync {
    /// Does not change.
    fn bytes(&self) -> u64;

    fn is_read_only(&self) -> bool;

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Whether [`BlockStore::read_each`] is better than as many threads, each with a read.
    fn takes_many(&self) -> bool {
        false
    }

    /// Each as [`BlockStore::read`], all under way together.
    fn read_each(&self, reads: &mut [(u64, Vec<u8>)]) -> Vec<Result<(), Errno>> {
        reads.iter_mut().map(|(offset, into)| self.read(*offset, into)).collect()
    }

    /// It is seen by later reads, of whoever asks.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// What was written before survives loss of power.
    fn flush(&self) -> Result<(), Errno>;

    /// The range reads as zeros, and may take no space.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Writes to the range fail no more for want of space. `EOPNOTSUPP`: nobody can tell.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// The first range from there on that may hold other than zeros, from where to where.
    fn data_from(&self, offset: u64) -> Option<(u64, u64)>;
}
