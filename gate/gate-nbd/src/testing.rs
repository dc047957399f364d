//! A store for tests, which goes every way that there is.

#![allow(clippy::indexing_slicing, reason = "who asks for what is not there fails the test")]

use std::io;
use std::os::fd::BorrowedFd;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::store::{BegunRead, BegunWrite, BlockStore, ReadData, STORE_BLOCK_BYTES, WriteRoom};

const BLOCK: usize = STORE_BLOCK_BYTES as usize;
const ZEROS: [u8; BLOCK] = [0; BLOCK];
/// Longer transfers are carried out as a whole.
const BEGUN_BYTES_MAX: u32 = 1 << 20;

/// In memory. Transfers are over as soon as they begin.
pub struct MemoryStore {
    /// Those that were never written, or were discarded, are `None`.
    blocks: Mutex<Vec<Option<Vec<u8>>>>,
    is_read_only: bool,
}

impl MemoryStore {
    pub fn of_blocks(blocks: usize) -> MemoryStore {
        MemoryStore { blocks: Mutex::new(vec![None; blocks]), is_read_only: false }
    }

    pub fn read_only(self) -> MemoryStore {
        MemoryStore { is_read_only: true, ..self }
    }

    fn change(&self) -> MutexGuard<'_, Vec<Option<Vec<u8>>>> {
        assert!(!self.is_read_only);
        self.blocks.lock()
    }
}

struct MemoryRead(Result<Vec<u8>, Errno>);

impl BegunRead for MemoryRead {
    fn is_done(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn ReadData>, Errno> {
        Ok(Box::new(MemoryData(self.0?)))
    }
}

struct MemoryData(Vec<u8>);

impl ReadData for MemoryData {
    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
        into.copy_from_slice(&self.0[..into.len()]);
        Ok(())
    }

    fn send_now(&self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        Ok(send(socket, &self.0[from..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }
}

struct MemoryRoom<'a>(&'a MemoryStore, Vec<u8>);

impl<'a> WriteRoom<'a> for MemoryRoom<'a> {
    fn put(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
        self.1[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn receive_now(&mut self, socket: BorrowedFd<'_>, at: usize) -> io::Result<usize> {
        Ok(recv(socket, &mut self.1[at..], RecvFlags::DONTWAIT)?.0)
    }

    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
        into.copy_from_slice(&self.1[..into.len()]);
        Ok(())
    }

    fn begin(self: Box<Self>, offset: u64) -> Result<Box<dyn BegunWrite + 'a>, Errno> {
        Ok(Box::new(MemoryWrite(self.0.write(offset, &self.1))))
    }
}

struct MemoryWrite(Result<(), Errno>);

impl BegunWrite for MemoryWrite {
    fn is_done(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<(), Errno> {
        self.0
    }
}

impl BlockStore for MemoryStore {
    fn bytes(&self) -> u64 {
        (self.blocks.lock().len() * BLOCK) as u64
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn begun_bytes_max(&self) -> u32 {
        BEGUN_BYTES_MAX
    }

    fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
        let mut data = vec![0; bytes as usize];
        let read = self.read(offset, &mut data);
        Ok(Some(Box::new(MemoryRead(read.map(|()| data)))))
    }

    fn write_room(&self, bytes: u32) -> Result<Option<Box<dyn WriteRoom<'_> + '_>>, Errno> {
        Ok(Some(Box::new(MemoryRoom(self, vec![0; bytes as usize]))))
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let blocks = self.blocks.lock();
        assert!((offset as usize).is_multiple_of(BLOCK) && into.len().is_multiple_of(BLOCK));
        for (at, part) in into.chunks_mut(BLOCK).enumerate() {
            let block = blocks.get(offset as usize / BLOCK + at).ok_or(Errno::INVAL)?;
            part.copy_from_slice(block.as_deref().unwrap_or(&ZEROS));
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut blocks = self.change();
        assert!((offset as usize).is_multiple_of(BLOCK) && data.len().is_multiple_of(BLOCK));
        for (at, part) in data.chunks(BLOCK).enumerate() {
            *blocks.get_mut(offset as usize / BLOCK + at).ok_or(Errno::INVAL)? = Some(part.to_vec());
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let (first, count) = (offset as usize / BLOCK, bytes as usize / BLOCK);
        self.change()[first..first + count].fill(None);
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let (first, count) = (offset as usize / BLOCK, bytes as usize / BLOCK);
        self.change()[first..first + count].iter_mut().for_each(|block| {
            block.get_or_insert_with(|| ZEROS.to_vec());
        });
        Ok(())
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        let blocks = self.blocks.lock();
        let first = (offset as usize / BLOCK..blocks.len()).find(|at| blocks[*at].is_some())?;
        let end = (first..blocks.len()).find(|at| blocks[*at].is_none()).unwrap_or(blocks.len());
        Some(((first * BLOCK) as u64, (end * BLOCK) as u64))
    }
}
