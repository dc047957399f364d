//! The file under the store: on a disk of the container ([`DiskFile`]), or a descriptor that was handed over, without
//! locks of its own.
//!
//! Who may open the image is decided by the daemon, which starts a server only after its predecessor is dead. A lock on
//! the file would outlive the predecessor wherever somebody kept a copy of its descriptor.
//!
//! When a write-back failed once, the kernel has forgotten which pages were lost: from then on every write-back fails.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;

use crate::disk::DiskFile;

/// Clones are the same file.
#[derive(Clone, Debug)]
pub enum StoreFile {
    /// Of the node.
    Own(FileStore),
    OnDisk(DiskFile),
}

impl From<FileStore> for StoreFile {
    fn from(file: FileStore) -> StoreFile {
        StoreFile::Own(file)
    }
}

impl From<DiskFile> for StoreFile {
    fn from(file: DiskFile) -> StoreFile {
        StoreFile::OnDisk(file)
    }
}

impl StoreFile {
    fn backend(&self) -> &dyn StorageBackend {
        match self {
            StoreFile::Own(file) => file,
            StoreFile::OnDisk(file) => file,
        }
    }
}

impl StorageBackend for StoreFile {
    fn len(&self) -> io::Result<u64> {
        self.backend().len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend().read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend().set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.backend().sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend().write(offset, data)
    }
}

/// Clones are the same file.
#[derive(Clone, Debug)]
pub struct FileStore {
    file: Arc<File>,
    is_poisoned: Arc<AtomicBool>,
}

impl FileStore {
    pub fn new(file: OwnedFd) -> FileStore {
        FileStore { file: Arc::new(file.into()), is_poisoned: Arc::new(AtomicBool::new(false)) }
    }
}

impl StorageBackend for FileStore {
    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&*self.file)?.st_size).unwrap_or(0))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    /// Grows with its space: a host that is full refuses here, where the transaction just fails, and not while pages
    /// are written back.
    fn set_len(&self, len: u64) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let old = self.len()?;
        if len > old {
            match rustix::io::retry_on_intr(|| fallocate(&*self.file, FallocateFlags::empty(), old, len - old)) {
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => (),
                grown => grown?,
            }
        }
        Ok(rustix::fs::ftruncate(&*self.file, len)?)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_poisoned.load(Ordering::Acquire) {
            return Err(rustix::io::Errno::IO.into());
        }
        let synced = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&*self.file));
        if synced.is_err() {
            self.is_poisoned.store(true, Ordering::Release);
        }
        Ok(synced?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}
