//! What is exported.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// Offsets and lengths are multiples of it.
pub const STORE_BLOCK_BYTES: u64 = 4096;

/// A read that is under way.
pub trait BegunRead {
    /// Whether [`BegunRead::finish`] has nothing to wait for.
    fn is_done(&self) -> bool;

    /// Waits for it: as many bytes as were asked for.
    fn finish(self: Box<Self>) -> Result<Box<dyn ReadData>, Errno>;
}

/// What was read, where the store has it; others have the room when this is dropped.
pub trait ReadData {
    /// All of it, or from its beginning as many bytes as `into` has.
    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno>;

    /// From the byte `from` on, as much as a socket takes. `WouldBlock`: nothing at the moment.
    fn send_now(&self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize>;
}

/// Where the store wants the bytes of a write; others have the room when this is dropped.
pub trait WriteRoom<'a> {
    fn put(&mut self, at: usize, data: &[u8]) -> Result<(), Errno>;

    /// From the byte `at` on, what has come over a socket. `WouldBlock`: nothing; 0: its end.
    fn receive_now(&mut self, socket: BorrowedFd<'_>, at: usize) -> io::Result<usize>;

    /// From its beginning, what was put or received.
    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno>;

    /// All bytes are there: they are written, beside what else is under way.
    fn begin(self: Box<Self>, offset: u64) -> Result<Box<dyn BegunWrite + 'a>, Errno>;
}

/// A write that is under way.
pub trait BegunWrite {
    /// Whether [`BegunWrite::finish`] has nothing to wait for.
    fn is_done(&self) -> bool;

    fn finish(self: Box<Self>) -> Result<(), Errno>;
}

/// Whole blocks inside `bytes`; calls come from several threads at once. Errors are Linux's.
pub trait BlockStore: Send + Sync {
    /// Does not change.
    fn bytes(&self) -> u64;

    fn is_read_only(&self) -> bool;

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// The most that [`BlockStore::begin_read`] and [`BlockStore::write_room`] take; 0: nothing, and whoever reads long
    /// ranges asks first where there is data.
    fn begun_bytes_max(&self) -> u32 {
        0
    }

    /// Begins a read, which goes on beside others. `None`: there is no room for it at the moment.
    fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
        let _ = (offset, bytes);
        Ok(None)
    }

    /// Room for a write of so many bytes, which goes on beside others. `None`: there is none at the moment.
    fn write_room(&self, bytes: u32) -> Result<Option<Box<dyn WriteRoom<'_> + '_>>, Errno> {
        let _ = bytes;
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
