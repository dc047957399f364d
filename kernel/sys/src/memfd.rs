//! Anonymous files that several processes map: made by one owner, handed out read-write or read-only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

/// Makes a file of `bytes` zeroes, mode 0600 of the caller's uid, that can neither shrink nor grow, and whose seals are
/// final. Mode 0600 matters: a read-only descriptor of a file that others may write can be reopened through `/proc`.
pub fn create_sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&file, bytes)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A second descriptor of the same file that cannot write.
pub fn reopen_read_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether the file has exactly this size and can never change it. A mapping of any other could fault its reader.
pub fn is_sealed_at(file: impl AsFd, bytes: u64) -> io::Result<bool> {
    let seals = rustix::fs::fcntl_get_seals(&file)?;
    let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
    Ok(seals.contains(SealFlags::SHRINK | SealFlags::GROW) && size == bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_cannot_change_its_size() {
        let file = create_sealed("test", 4096).unwrap();
        assert!(is_sealed_at(&file, 4096).unwrap());
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 8192).is_err());
    }

    #[test]
    fn read_only_descriptor_does_not_write() {
        let file = create_sealed("test", 4096).unwrap();
        let reader = reopen_read_only(file.as_fd()).unwrap();
        assert!(rustix::io::pwrite(&reader, b"x", 0).is_err());
    }
}
