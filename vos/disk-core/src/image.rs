//! A file or block device of the host as a medium.
//!
//! A completed write is in the host's page cache and survives the death of this process.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Advice, FallocateFlags, FileType, MemfdFlags, OFlags, SeekFrom};
use rustix::io::Errno;
use vos_api::disk::{BLOCK_BYTES, host_reserve_bytes};

use crate::medium::{Access, Bulk, Medium, Need};

/// What a punched hole is written with when the host's file system cannot make holes.
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the image is neither a file nor a block device")]
    NotAnImage,
    #[error("the image has {found} bytes, which is no multiple of {BLOCK_BYTES} above 0")]
    BadSize { found: u64 },
    #[error("the image has {found} bytes and must have {wanted}: a volume is never cut")]
    WouldShrink { found: u64, wanted: u64 },
    #[error("could not {action} the image")]
    Os {
        action: &'static str,
        #[source]
        cause: io::Error,
    },
}

/// The descriptor of an image and what is wanted of it.
#[derive(Debug)]
pub struct Image {
    pub file: OwnedFd,
    /// Size it must have; a smaller file is made larger. `None` takes what it has.
    pub bytes: Option<u64>,
    /// What it has beyond `bytes` is left alone.
    pub may_be_longer: bool,
    pub access: Access,
}

#[derive(Debug)]
pub struct ImageFile {
    file: OwnedFd,
    bytes: u64,
    access: Access,
    space: Space,
}

/// Whether the host has the space of every block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Space {
    /// It does, and it stays so.
    Whole,
    /// Blocks get theirs when they are written or allocated.
    Sparse,
    /// In memory: setting space aside would take the memory at once.
    Memory,
}

impl ImageFile {
    pub fn open(image: Image) -> Result<ImageFile, ImageError> {
        let stat = rustix::fs::fstat(&image.file).map_err(|errno| os("examine", errno))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let flags = rustix::fs::fcntl_getfl(&image.file).map_err(|errno| os("examine", errno))?;
        let is_writable = flags & OFlags::RWMODE == OFlags::RDWR;
        let access = if is_writable { image.access } else { Access::ReadOnly };
        let found = match kind {
            FileType::RegularFile => stat.st_size as u64,
            FileType::BlockDevice => {
                rustix::fs::seek(&image.file, SeekFrom::End(0)).map_err(|errno| os("measure", errno))?
            }
            _ => return Err(ImageError::NotAnImage),
        };
        let bytes = fit(&image, kind, access, found)?;
        if bytes == 0 || bytes % u64::from(BLOCK_BYTES) != 0 {
            return Err(ImageError::BadSize { found: bytes });
        }
        let space = space_of(&image.file, kind, bytes).map_err(|errno| os("examine", errno))?;
        Ok(ImageFile { file: image.file, bytes, access, space })
    }

    /// Of memory, which goes with who has it.
    pub fn in_memory(bytes: u64) -> Result<ImageFile, ImageError> {
        let file = rustix::fs::memfd_create("dvs-disk", MemfdFlags::CLOEXEC).map_err(|errno| os("make", errno))?;
        ImageFile::open(Image { file, bytes: Some(bytes), may_be_longer: false, access: Access::ReadWrite })
    }

    /// Whether every block of the range was written before, so that it has its space.
    fn is_written(&self, offset: u64, bytes: u64) -> bool {
        rustix::fs::seek(&self.file, SeekFrom::Hole(offset)).is_ok_and(|hole| hole >= offset + bytes)
    }

    /// Whether the host's file system would have too little left for itself.
    fn host_lacks(&self, bytes: u64) -> Result<bool, Errno> {
        let host = rustix::fs::fstatvfs(&self.file)?;
        let (free, whole) = (host.f_bavail.saturating_mul(host.f_frsize), host.f_blocks.saturating_mul(host.f_frsize));
        Ok(free < bytes.saturating_add(host_reserve_bytes(whole)))
    }

    fn fallocate(&self, how: FallocateFlags, offset: u64, bytes: u64) -> Result<(), Errno> {
        let flags = how | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, bytes))
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let zeros = ZEROS.get(..(end - at) as usize).unwrap_or(&ZEROS);
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, zeros, at))? {
                0 => return Err(Errno::IO),
                written => at += written as u64,
            }
        }
        Ok(())
    }
}

impl Medium for ImageFile {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read(&self, offset: u64, bytes: u32, into: &dyn Bulk, at: u32) -> Result<(), Errno> {
        let got = into.fill(at, self.file.as_fd(), offset, bytes)?;
        // Somebody cut the image: what is missing is not zeros.
        if got == bytes { Ok(()) } else { Err(Errno::IO) }
    }

    fn read_cached(&self, offset: u64, bytes: u32, into: &dyn Bulk) -> bool {
        into.fill_cached(0, self.file.as_fd(), offset, bytes) == Ok(true)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn write(&self, offset: u64, bytes: u32, from: &dyn Bulk) -> Result<(), Errno> {
        from.drain(self.file.as_fd(), offset, bytes)
    }

    fn flush(&self) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file))
    }

    fn data_from(&self, offset: u64) -> Option<(u64, u64)> {
        // Nobody uses the position: all transfers name theirs.
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(first) => {
                let end = rustix::fs::seek(&self.file, SeekFrom::Hole(first)).unwrap_or(self.bytes);
                Some((first, end)).filter(|_| first < self.bytes)
            }
            Err(Errno::NXIO) => None,
            // Who cannot tell may have data everywhere.
            Err(_) => Some((offset, self.bytes)).filter(|_| offset < self.bytes),
        }
    }

    fn forget(&self, offset: u64, bytes: u64) {
        if let Some(bytes) = NonZeroU64::new(bytes)
            && let Err(error) = rustix::fs::fadvise(&self.file, offset, Some(bytes), Advice::DontNeed)
        {
            tracing::debug!(%error, "pages of an image stay");
        }
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        // What has its space keeps it.
        let how = if self.space == Space::Whole { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        match self.fallocate(how, offset, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, bytes),
            done => done,
        }
    }

    fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno> {
        if bytes == 0 || self.space == Space::Whole {
            return Ok(());
        }
        if need == Need::Users && self.host_lacks(bytes)? && !self.is_written(offset, bytes) {
            return Err(Errno::NOSPC);
        }
        if self.space == Space::Memory {
            return Ok(());
        }
        match self.fallocate(FallocateFlags::empty(), offset, bytes) {
            Err(Errno::NOSYS) => Err(Errno::OPNOTSUPP),
            done => done,
        }
    }
}

/// What the kernel calls `TMPFS_MAGIC`.
const MEMORY_FILES: u32 = 0x0102_1994;
/// In which `fstat` counts space.
const SECTOR_BYTES: u64 = 512;

fn space_of(file: &OwnedFd, kind: FileType, bytes: u64) -> Result<Space, Errno> {
    if kind == FileType::BlockDevice {
        return Ok(Space::Whole);
    }
    // Blocks that were set aside and never written count as well.
    let has = rustix::fs::fstat(file)?.st_blocks as u64 * SECTOR_BYTES;
    let is_memory = rustix::fs::fstatfs(file)?.f_type as u32 == MEMORY_FILES;
    Ok(match (is_memory, has >= bytes) {
        (true, _) => Space::Memory,
        (false, true) => Space::Whole,
        (false, false) => Space::Sparse,
    })
}

/// Brings a file to the wanted size; a device has the size it has.
fn fit(image: &Image, kind: FileType, access: Access, found: u64) -> Result<u64, ImageError> {
    let Some(wanted) = image.bytes else { return Ok(found) };
    if wanted == 0 || wanted % u64::from(BLOCK_BYTES) != 0 {
        return Err(ImageError::BadSize { found: wanted });
    }
    if kind == FileType::BlockDevice || access == Access::ReadOnly {
        return if wanted <= found { Ok(wanted) } else { Err(ImageError::BadSize { found }) };
    }
    if wanted < found {
        return if image.may_be_longer { Ok(wanted) } else { Err(ImageError::WouldShrink { found, wanted }) };
    }
    rustix::fs::ftruncate(&image.file, wanted).map_err(|errno| os("enlarge", errno))?;
    Ok(wanted)
}

fn os(action: &'static str, errno: Errno) -> ImageError {
    ImageError::Os { action, cause: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::testkit;

    #[test]
    fn space_that_was_set_aside_stays_so_through_writes_and_discards() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
        let path = dir.path().join("image");
        let open = || {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("image");
            let image =
                Image { file: file.into(), bytes: Some(1 << 20), may_be_longer: false, access: Access::ReadWrite };
            ImageFile::open(image).expect("image")
        };
        let has = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).expect("image")) * SECTOR_BYTES;
        let content = || std::fs::read(&path).expect("image")[8192..12288].to_vec();
        let image = open();
        if image.space == Space::Memory {
            eprintln!("SKIPPED: needs a directory that is on a disk");
            return;
        }
        rustix::io::pwrite(&image.file, &[7; 4096], 8192).expect("write");
        assert!(image.is_written(8192, 4096) && !image.is_written(8192, 8192) && !image.is_written(0, 12288));
        assert_eq!((image.data_from(0), image.data_from(12288)), (Some((8192, 12288)), None));
        let before = has();
        image.allocate(0, 1 << 19, Need::Users).expect("room");
        assert!(before < 1 << 19 && has() >= 1 << 19, "{before} {}", has());
        assert!(has() < 1 << 20, "the rest is sparse");
        image.allocate(0, 1 << 20, Need::Server).expect("room");
        assert_eq!(image.data_from(0), Some((8192, 12288)), "space that was set aside and never read is no data");
        assert_eq!(content(), [7; 4096]);
        drop(image);
        let image = open();
        assert_eq!(image.space, Space::Whole);
        image.discard(0, 1 << 20).expect("discard");
        assert_eq!((content(), has() >= 1 << 20), (vec![0; 4096], true));
    }

    #[test]
    fn files_memory_and_devices_are_media() {
        const BYTES: u64 = 4 << 20;
        for seed in 1..4 {
            let named = tempfile::NamedTempFile::new_in("/var/tmp").expect("temporary file");
            let open = || {
                let file = named.reopen().expect("it is there").into();
                let image = Image { file, bytes: Some(BYTES), may_be_longer: false, access: Access::ReadWrite };
                ImageFile::open(image).expect("an image")
            };
            let model = testkit::behaves(&open(), seed);
            testkit::holds(&open(), &model);
            testkit::behaves(&ImageFile::in_memory(BYTES).expect("memory"), seed);
        }
        let Some(device) = Loop::of(BYTES) else {
            eprintln!("SKIPPED: no loop device can be made here (root has them)");
            return;
        };
        let open = |bytes| {
            let file = File::options().read(true).write(true).open(&device.0).expect("a device").into();
            ImageFile::open(Image { file, bytes, may_be_longer: false, access: Access::ReadWrite })
        };
        let image = open(None).expect("a device");
        assert_eq!((image.bytes(), image.space), (BYTES, Space::Whole));
        let model = testkit::behaves(&image, 5);
        drop(image);
        testkit::holds(&open(Some(BYTES)).expect("the same"), &model);
        assert!(matches!(open(Some(2 * BYTES)), Err(ImageError::BadSize { found: BYTES })), "no device grows");
    }

    /// A loop device over a file that has no name, until it is dropped.
    struct Loop(String);

    impl Loop {
        fn of(bytes: u64) -> Option<Loop> {
            let file = tempfile::NamedTempFile::new_in("/var/tmp").ok()?;
            file.as_file().set_len(bytes).ok()?;
            let made =
                std::process::Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output().ok()?;
            let path = String::from_utf8(made.stdout).ok()?.trim().to_owned();
            (made.status.success() && !path.is_empty()).then_some(Loop(path))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
        }
    }

    #[test]
    fn writers_of_files_leave_the_host_its_reserve() {
        let file = tempfile::tempfile().expect("temporary file").into();
        let image =
            ImageFile::open(Image { file, bytes: Some(65536), may_be_longer: false, access: Access::ReadWrite })
                .expect("image");
        assert_eq!(image.host_lacks(0), Ok(false));
        assert_eq!(image.host_lacks(u64::MAX / 2), Ok(true));
    }

    #[test]
    fn image_opened_for_reading_becomes_a_read_only_medium() {
        let named = tempfile::NamedTempFile::new().expect("temporary file");
        named.as_file().set_len(8192).expect("size");
        let file = File::open(named.path()).expect("open").into();
        let image = ImageFile::open(Image { file, bytes: None, may_be_longer: false, access: Access::ReadWrite })
            .expect("image");
        assert_eq!((image.access(), image.bytes()), (Access::ReadOnly, 8192));
    }

    #[test]
    fn image_is_never_cut_and_never_has_half_a_block() {
        let open = |bytes: Option<u64>, found: u64| {
            let file = tempfile::tempfile().expect("temporary file");
            file.set_len(found).expect("size");
            ImageFile::open(Image { file: file.into(), bytes, may_be_longer: false, access: Access::ReadWrite })
        };
        assert!(matches!(open(Some(4096), 8192), Err(ImageError::WouldShrink { .. })));
        assert!(matches!(open(None, 5000), Err(ImageError::BadSize { found: 5000 })));
        assert!(matches!(open(None, 0), Err(ImageError::BadSize { found: 0 })));
        assert!(open(Some(8192), 4096).is_ok());
        let pipe = std::fs::File::open("/dev/null").expect("open").into();
        let result = ImageFile::open(Image { file: pipe, bytes: None, may_be_longer: false, access: Access::ReadOnly });
        assert!(matches!(result, Err(ImageError::NotAnImage)));
    }
}
