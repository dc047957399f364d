//! A volume of this process as what is exported.

use disk_core::{Access, Durability, Need, ReadInto, Volume, WriteFrom};
use rustix::io::Errno;

use crate::store::BlockStore;

impl BlockStore for Volume {
    fn bytes(&self) -> u64 {
        Volume::bytes(self)
    }

    fn is_read_only(&self) -> bool {
        self.access() == Access::ReadOnly
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        Volume::read(self, offset, into.len() as u64, &ReadInto::new(into)).map(drop)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let bytes = u32::try_from(data.len()).map_err(|_| Errno::RANGE)?;
        Volume::write(self, offset, bytes, &WriteFrom(data), Durability::Server)
    }

    fn flush(&self) -> Result<(), Errno> {
        Volume::flush(self)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        Volume::discard(self, offset, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        Volume::allocate(self, offset, bytes, Need::Users)
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        Volume::data_from(self, offset)
    }
}
