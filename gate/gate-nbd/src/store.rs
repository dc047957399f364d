//! What is exported.

use rustix::io::Errno;

/// Offsets and lengths are multiples of it.
pub const STORE_BLOCK_BYTES: u64 = 4096;

/// A read that is under way.
pub trait BegunRead {
    /// Whether [`BegunRead::finish`] has nothing to wait for.
    fn is_done(&self) -> bool;

    /// Waits for it. `into` has as many bytes as were asked for.
    fn finish(self: Box<Self>, into: &mut [u8]) -> Result<(), Errno>;
}

/// Whole blocks inside `bytes`; calls come from several threads at once. Errors are Linux's.
pub trait BlockStore: Send + Sync {
    /// Does not change.
    fn bytes(&self) -> u64;

    fn is_read_only(&self) -> bool;

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// The longest read that [`BlockStore::begin_read`] takes; 0: none, and whoever reads long ones asks first where
    /// there is data.
    fn begun_bytes_max(&self) -> u32 {
        0
    }

    /// Begins a read, which goes on beside others. `None`: there is no room for it at the moment.
    fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
        let _ = (offset, bytes);
        Ok(None)
    }

    /// It is seen by later reads, of whoever asks.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// These blocks survive loss of power when this returns.
    fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.write(offset, data)?;
        self.flush()
    }

    /// What was written before survives loss of power.
    fn flush(&self) -> Result<(), Errno>;

    /// The range reads as zeros, and may take no space.
    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// Writes to the range fail no more for want of space. `EOPNOTSUPP`: nobody can tell.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno>;

    /// The first range from there on that may hold other than zeros, from where to where.
    fn data_from(&self, offset: u64) -> Option<(u64, u64)>;

    /// Those of a range, `most` of them at most, and how far that reaches.
    fn data_in(&self, offset: u64, bytes: u64, most: usize) -> (Vec<(u64, u64)>, u64) {
        let (mut found, mut at, end) = (Vec::new(), offset, offset + bytes);
        while at < end && found.len() < most {
            let Some((first, last)) = self.data_from(at).filter(|data| data.0 < end) else { return (found, end) };
            let (first, last) = (first.max(at), last.min(end));
            if last <= first {
                // Whoever says nonsense has data.
                found.push((at, end));
                return (found, end);
            }
            found.push((first, last));
            at = last;
        }
        (found, at)
    }
}
