//! A virtual disk as the device of the file system.
//!
//! The disk takes changes from the newest fs server alone (`docs/design/placement.md`). A server that is refused has a
//! successor: it answers nothing more and ends, so that its clients repeat there what has no answer.

use std::time::Duration;

use libvos::{DiskClient, Durability};
use rustix::io::Errno;
use vos_rt::{Failure, Handle};

use fs_core::device::{BlockDevice, DeviceError, Need};

/// A disk that knows of no holds is asked for one so often.
const ASK_AGAIN: Duration = Duration::from_millis(500);

pub struct DiskDevice {
    client: DiskClient,
    bytes: u64,
    handle: Handle,
}

impl DiskDevice {
    /// `handle`: of the server that is to end when the disk refuses it.
    pub fn open(client: DiskClient, handle: Handle) -> Result<DiskDevice, Failure> {
        match client.info() {
            Ok(info) => Ok(DiskDevice { client, bytes: info.bytes, handle }),
            Err(errno) => Err(client.session().fenced().map_or_else(|| errno.into(), Failure::from)),
        }
    }

    fn failed(&self, errno: Errno) -> DeviceError {
        if errno == Errno::STALE {
            tracing::error!("the disk refuses this server, which has a successor: ending");
            self.handle.cut();
        }
        DeviceError(errno.raw_os_error())
    }
}

impl BlockDevice for DiskDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.client.read_into(offset, out).map_err(|errno| self.failed(errno))
    }

    fn read_other(&self, which: u64, offset: u64, out: &mut [u8]) -> Result<bool, DeviceError> {
        match self.client.read_other(which, offset, out) {
            // A disk of an earlier release knows of no others.
            Err(Errno::NXIO | Errno::OPNOTSUPP) => Ok(false),
            answered => answered.map(|()| true).map_err(|errno| self.failed(errno)),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.client.write(offset, data, Durability::Server).map_err(|errno| self.failed(errno))
    }

    fn write_together(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        self.client.write_together(writes, Durability::Server).map_err(|errno| self.failed(errno))
    }

    fn write_through(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        self.client.write_together(writes, Durability::Power).map_err(|errno| self.failed(errno))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.client.flush().map_err(|errno| self.failed(errno))
    }

    fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), DeviceError> {
        match self.client.allocate(offset, bytes, need) {
            // Its host cannot: a write may fail there.
            Err(Errno::OPNOTSUPP) => Ok(()),
            answered => answered.map_err(|errno| self.failed(errno)),
        }
    }

    fn hold(&self) -> Result<Duration, DeviceError> {
        match self.client.hold() {
            // Of an earlier release: perhaps the next one that serves it is not.
            Err(Errno::OPNOTSUPP) => Ok(ASK_AGAIN),
            answered => answered.map_err(|errno| self.failed(errno)),
        }
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.client.discard(offset, bytes).map_err(|errno| self.failed(errno))
    }
}
