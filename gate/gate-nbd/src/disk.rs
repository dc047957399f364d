//! A container's disk as what is exported: every call goes over a ring to its server, wherever that is.
//!
//! All calls may be repeated, so the session goes on when the disk's server is started again, or elsewhere: clients
//! wait meanwhile. Nobody told this gate in which epoch the disk stands: a client of one that has moved finds the one
//! that is there.

use abi::Endpoint;
use abi::limits::TRANSFER_BYTES_MAX;
use libvos::{
    Access, BlockingSession, DiskClient, Durability, Epochs, Identity, Need, PortConnect, ReadBegun, SharedPort, Size,
};
use rustix::io::Errno;

use crate::store::{BegunRead, BlockStore};

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

    fn finish(self: Box<Self>, into: &mut [u8]) -> Result<(), Errno> {
        self.0.finish(into)
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
