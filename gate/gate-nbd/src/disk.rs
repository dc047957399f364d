//! A container's disk as what is exported: every call goes over a ring to its server, wherever that is.
//!
//! All calls may be repeated, so the session goes on when the disk's server is started again, or elsewhere: clients
//! wait meanwhile. Nobody told this gate in which epoch the disk stands: a client of one that has moved finds the one
//! that is there.

use std::io;
use std::os::fd::BorrowedFd;

use abi::Endpoint;
use abi::limits::TRANSFER_BYTES_MAX;
use ipc::Arena;
use libvos::{
    Access, BlockingSession, DiskClient, Durability, Epochs, Fetched, Identity, Need, PortConnect, ReadBegun,
    ReservedWrite, SharedPort, Size, WriteBegun,
};
use rustix::io::Errno;

use crate::store::{BegunRead, BegunWrite, BlockStore, ReadData, WriteRoom};

/// Transfers of 1 MiB of several clients at a time.
const SIZE: Size = Size { entries: 256, arena_bytes: 48 << 20 };

pub struct DiskStore {
    client: DiskClient,
    bytes: u64,
    is_read_only: bool,
}

impl DiskStore {
    /// Waits until the disk is there. `epoch`: of the gate's placement, by which the disk refuses the gate before it.
    ///
    /// # Errors
    /// There is no session with it, or it does not say what it is.
    pub fn open(
        port: SharedPort,
        disk: Endpoint,
        epoch: u32,
        is_read_only: bool,
    ) -> Result<DiskStore, Box<dyn std::error::Error + Send + Sync>> {
        let epochs = Epochs { server: 0, own: epoch };
        let connect = PortConnect::new(port, disk, SIZE);
        let session = BlockingSession::open(Box::new(connect), SIZE, Identity { epochs, ..Identity::default() })?;
        let client = DiskClient::new(session);
        let info = client.info()?;
        let is_read_only = is_read_only || info.access == Access::ReadOnly;
        Ok(DiskStore { client, bytes: info.bytes, is_read_only })
    }
}

struct DiskRead(ReadBegun);

impl BegunRead for DiskRead {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn ReadData>, Errno> {
        Ok(Box::new(self.0.fetch()?))
    }
}

impl ReadData for Fetched {
    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
        Fetched::copy_to(self, into)
    }

    fn send_now(&self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        let (arena, offset) = self.arena().ok_or(Errno::RANGE)?;
        arena.send_now(socket, offset + from, self.len().saturating_sub(from))
    }
}

struct DiskWriteRoom {
    room: ReservedWrite,
    bytes: usize,
}

impl DiskWriteRoom {
    /// Its arena, and where `at` lies there.
    fn place(&self, at: usize, bytes: usize) -> Result<(&Arena, usize), Errno> {
        let is_inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        let (arena, offset) = self.room.arena().filter(|_| is_inside).ok_or(Errno::RANGE)?;
        Ok((arena, offset + at))
    }
}

impl<'a> WriteRoom<'a> for DiskWriteRoom {
    fn put(&mut self, at: usize, data: &[u8]) -> Result<(), Errno> {
        let (arena, offset) = self.place(at, data.len())?;
        arena.copy_in(offset, data).map_err(|_| Errno::RANGE)
    }

    fn receive_now(&mut self, socket: BorrowedFd<'_>, at: usize) -> io::Result<usize> {
        let bytes = self.bytes.saturating_sub(at);
        let (arena, offset) = self.place(at, bytes)?;
        arena.receive_now(socket, offset, bytes)
    }

    fn copy_to(&self, into: &mut [u8]) -> Result<(), Errno> {
        let (arena, offset) = self.place(0, into.len())?;
        arena.copy_out(offset, into).map_err(|_| Errno::RANGE)
    }

    fn begin(self: Box<Self>, offset: u64) -> Result<Box<dyn BegunWrite + 'a>, Errno> {
        Ok(Box::new(self.room.begin(offset, Durability::Server)?))
    }
}

impl BegunWrite for WriteBegun {
    fn is_done(&self) -> bool {
        WriteBegun::is_done(self)
    }

    fn finish(self: Box<Self>) -> Result<(), Errno> {
        WriteBegun::finish(*self)
    }
}

impl BlockStore for DiskStore {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.client.read_into(offset, into)
    }

    fn begun_bytes_max(&self) -> u32 {
        TRANSFER_BYTES_MAX
    }

    fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
        let begun = self.client.begin_read(offset, bytes)?;
        Ok(begun.map(|begun| Box::new(DiskRead(begun)) as Box<dyn BegunRead>))
    }

    fn write_room(&self, bytes: u32) -> Result<Option<Box<dyn WriteRoom<'_> + '_>>, Errno> {
        let room = self.client.reserve_write(bytes)?;
        Ok(room.map(|room| Box::new(DiskWriteRoom { room, bytes: bytes as usize }) as Box<dyn WriteRoom<'_>>))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.client.write(offset, data, Durability::Server)
    }

    fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.client.write(offset, data, Durability::Power)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.client.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.client.discard(offset, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.client.allocate(offset, bytes, Need::Users)
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        let (data, until) = self.data_in(offset, self.bytes.saturating_sub(offset), 1);
        data.first().copied().or_else(|| (until < self.bytes).then_some((until, self.bytes)))
    }

    /// A server that does not tell may have data everywhere.
    fn data_in(&self, offset: u64, bytes: u64, most: usize) -> (Vec<(u64, u64)>, u64) {
        let end = offset + bytes;
        match self.client.data_in(offset, bytes) {
            Ok((mut data, until)) => {
                let until = data.get(most).map_or(until, |next| next.0);
                data.truncate(most);
                (data, until.min(end))
            }
            Err(errno) => {
                tracing::debug!(%errno, "not told where there is data");
                (vec![(offset, end)], end)
            }
        }
    }
}
