//! A volume: blocks in a file or block device of the host.
//!
//! A volume is *sound* or *poisoned*. It becomes poisoned when the kernel reports that a write-back failed: the kernel
//! then forgets which pages were lost, so a later flush would succeed without the data being there. A poisoned volume
//! refuses everything that changes or promises (`EIO`) until the server is started again; reads go on.
//!
//! All calls may be made by several threads at once. Overlapping transfers at the same time have no order, as on any
//! disk.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, FileType, OFlags, SeekFrom};
use rustix::io::Errno;
use vos_api::disk::{BLOCK_BYTES, host_reserve_bytes};

/// What a punched hole is written with when the host's file system cannot make holes.
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// The descriptor of an image and what is wanted of it.
#[derive(Debug)]
pub struct Image {
    pub file: OwnedFd,
    /// Size it must have; a smaller file is made larger. `None` takes what it has.
    pub bytes: Option<u64>,
    pub access: Access,
}

#[derive(Debug)]
pub struct Volume {
    file: OwnedFd,
    bytes: u64,
    access: Access,
    space: Space,
    is_poisoned: AtomicBool,
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

/// Who needs space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Not what the host keeps back for itself.
    Users,
    /// The server that works on the volume.
    Server,
}

impl Volume {
    pub fn open(image: Image) -> Result<Volume, VolumeError> {
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
            _ => return Err(VolumeError::NotAnImage),
        };
        let bytes = fit(&image.file, kind, access, found, image.bytes)?;
        if bytes == 0 || bytes % u64::from(BLOCK_BYTES) != 0 {
            return Err(VolumeError::BadSize { found: bytes });
        }
        let space = space_of(&image.file, kind, bytes).map_err(|errno| os("examine", errno))?;
        Ok(Volume { file: image.file, bytes, access, space, is_poisoned: AtomicBool::new(false) })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn access(&self) -> Access {
        self.access
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Whether this range can be read: whole blocks inside the volume.
    pub fn check_read(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let block = u64::from(BLOCK_BYTES);
        let end = offset.checked_add(bytes).ok_or(Errno::INVAL)?;
        if !offset.is_multiple_of(block) || !bytes.is_multiple_of(block) || end > self.bytes {
            Err(Errno::INVAL)
        } else {
            Ok(())
        }
    }

    /// Whether this range can be changed now.
    pub fn check_write(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.check_read(offset, bytes)?;
        self.check_sound()
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.check_read(offset, into.len() as u64)?;
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.file, &mut into[done..], offset + done as u64) {
                // Somebody cut the image: what is missing is not zeros.
                Ok(0) => return Err(Errno::IO),
                Ok(got) => done += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(medium(errno)),
            }
        }
        Ok(())
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.check_write(offset, data.len() as u64)?;
        self.write_all(offset, data)
    }

    /// Everything written before is on the medium when this returns.
    pub fn flush(&self) -> Result<(), Errno> {
        self.check_sound_for_flush()?;
        let synced = rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file));
        synced.map_err(|errno| self.poison(errno))
    }

    /// The range reads as zeros afterwards.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.check_write(offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        // What has its space keeps it.
        let how = if self.space == Space::Whole { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        match self.fallocate(how, offset, bytes) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(offset, bytes),
            Err(errno) => Err(medium(errno)),
        }
    }

    /// Writes to the range fail no more for want of space afterwards; what it holds stays.
    pub fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno> {
        self.check_write(offset, bytes)?;
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
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(Errno::OPNOTSUPP),
            done => done.map_err(medium),
        }
    }

    /// Whether every block of the range was written before, so that it has its space.
    fn is_written(&self, offset: u64, bytes: u64) -> bool {
        // Nobody uses the position: all transfers name theirs.
        rustix::fs::seek(&self.file, SeekFrom::Hole(offset)).is_ok_and(|hole| hole >= offset + bytes)
    }

    /// Whether the host's file system would have too little left for itself.
    fn host_lacks(&self, bytes: u64) -> Result<bool, Errno> {
        let host = rustix::fs::fstatvfs(&self.file).map_err(medium)?;
        let (free, whole) = (host.f_bavail.saturating_mul(host.f_frsize), host.f_blocks.saturating_mul(host.f_frsize));
        Ok(free < bytes.saturating_add(host_reserve_bytes(whole)))
    }

    fn fallocate(&self, how: FallocateFlags, offset: u64, bytes: u64) -> Result<(), Errno> {
        let flags = how | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, bytes))
    }

    /// What an error of a transfer on [`Volume::fd`] means to the client.
    pub fn transfer_error(&self, errno: Errno) -> Errno {
        medium(errno)
    }

    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Acquire)
    }

    fn check_sound(&self) -> Result<(), Errno> {
        match self.access {
            Access::ReadOnly => Err(Errno::ROFS),
            Access::ReadWrite if self.is_poisoned() => Err(Errno::IO),
            Access::ReadWrite => Ok(()),
        }
    }

    /// A flush of what cannot change promises nothing that is not so.
    fn check_sound_for_flush(&self) -> Result<(), Errno> {
        if self.is_poisoned() { Err(Errno::IO) } else { Ok(()) }
    }

    fn poison(&self, errno: Errno) -> Errno {
        if !self.is_poisoned.swap(true, Ordering::AcqRel) {
            tracing::error!(%errno, "write-back failed: the volume refuses changes until the server is started again");
        }
        Errno::IO
    }

    fn write_zeros(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes {
            let piece = (bytes - done).min(ZEROS.len() as u64);
            self.write_all(offset + done, &ZEROS[..piece as usize])?;
            done += piece;
        }
        Ok(())
    }

    fn write_all(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.file, &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(got) => done += got,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(medium(errno)),
            }
        }
        Ok(())
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
fn fit(file: &OwnedFd, kind: FileType, access: Access, found: u64, wanted: Option<u64>) -> Result<u64, VolumeError> {
    let Some(wanted) = wanted else { return Ok(found) };
    if wanted == 0 || wanted % u64::from(BLOCK_BYTES) != 0 {
        return Err(VolumeError::BadSize { found: wanted });
    }
    if kind == FileType::BlockDevice || access == Access::ReadOnly {
        return if wanted <= found { Ok(wanted) } else { Err(VolumeError::BadSize { found }) };
    }
    if wanted < found {
        return Err(VolumeError::WouldShrink { found, wanted });
    }
    rustix::fs::ftruncate(file, wanted).map_err(|errno| os("enlarge", errno))?;
    Ok(wanted)
}

/// Errors of the host that mean something to a client; the rest is the medium's failure.
fn medium(errno: Errno) -> Errno {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Errno::NOSPC,
        _ => Errno::IO,
    }
}

fn os(action: &'static str, errno: Errno) -> VolumeError {
    VolumeError::Os { action, cause: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use proptest::prelude::*;

    use super::*;

    const BLOCK: usize = BLOCK_BYTES as usize;
    const BLOCKS: usize = 16;

    fn volume(access: Access) -> Volume {
        let file = tempfile::tempfile().expect("temporary file").into();
        Volume::open(Image { file, bytes: Some((BLOCKS * BLOCK) as u64), access: Access::ReadWrite })
            .map(|volume| Volume { access, ..volume })
            .expect("volume")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write { block: usize, blocks: usize, fill: u8 },
        Read { block: usize, blocks: usize },
        Discard { block: usize, blocks: usize },
        Flush,
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = || (0..BLOCKS + 2, 0..BLOCKS);
        prop_oneof![
            (range(), any::<u8>()).prop_map(|((block, blocks), fill)| Step::Write { block, blocks, fill }),
            range().prop_map(|(block, blocks)| Step::Read { block, blocks }),
            range().prop_map(|(block, blocks)| Step::Discard { block, blocks }),
            Just(Step::Flush),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn volume_behaves_like_an_array_of_bytes(steps in proptest::collection::vec(step(), 1..40)) {
            let volume = volume(Access::ReadWrite);
            let mut model = vec![0_u8; BLOCKS * BLOCK];
            for step in steps {
                match step {
                    Step::Write { block, blocks, fill } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let result = volume.write(from as u64, &vec![fill; to - from]);
                        match model.get_mut(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); place.fill(fill); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Read { block, blocks } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let mut data = vec![0xee; to - from];
                        let result = volume.read(from as u64, &mut data);
                        match model.get(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); prop_assert_eq!(&data[..], place); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Discard { block, blocks } => {
                        let (from, to) = (block * BLOCK, (block + blocks) * BLOCK);
                        let result = volume.discard(from as u64, (to - from) as u64);
                        match model.get_mut(from..to) {
                            Some(place) => { prop_assert_eq!(result, Ok(())); place.fill(0); }
                            None => prop_assert_eq!(result, Err(Errno::INVAL)),
                        }
                    }
                    Step::Flush => prop_assert_eq!(volume.flush(), Ok(())),
                }
            }
        }
    }

    #[test]
    fn space_that_was_set_aside_stays_so_through_writes_and_discards() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
        let path = dir.path().join("image");
        let open = || {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("image");
            let image = Image { file: file.into(), bytes: Some(1 << 20), access: Access::ReadWrite };
            Volume::open(image).expect("volume")
        };
        let has = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).expect("image")) * SECTOR_BYTES;
        let volume = open();
        if volume.space == Space::Memory {
            eprintln!("SKIPPED: needs a directory that is on a disk");
            return;
        }
        volume.write(8192, &[7; 4096]).expect("write");
        assert!(volume.is_written(8192, 4096) && !volume.is_written(8192, 8192) && !volume.is_written(0, 12288));
        let before = has();
        volume.allocate(0, 1 << 19, Need::Users).expect("room");
        assert!(before < 1 << 19 && has() >= 1 << 19, "{before} {}", has());
        assert!(has() < 1 << 20, "the rest is sparse");
        volume.allocate(0, 1 << 20, Need::Server).expect("room");
        let mut block = [0; 4096];
        volume.read(8192, &mut block).expect("read");
        assert_eq!(block, [7; 4096]);
        drop(volume);
        let volume = open();
        assert_eq!(volume.space, Space::Whole);
        volume.discard(0, 1 << 20).expect("discard");
        volume.read(8192, &mut block).expect("read");
        assert_eq!((block, has() >= 1 << 20), ([0; 4096], true));
    }

    #[test]
    fn writers_of_files_leave_the_host_its_reserve() {
        let volume = volume(Access::ReadWrite);
        assert_eq!(volume.host_lacks(0), Ok(false));
        assert_eq!(volume.host_lacks(u64::MAX / 2), Ok(true));
    }

    #[test]
    fn ranges_beside_blocks_or_beyond_the_end_are_refused() {
        let volume = volume(Access::ReadWrite);
        let end = volume.bytes();
        assert_eq!(volume.check_read(1, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_read(0, 100), Err(Errno::INVAL));
        assert_eq!(volume.check_read(end, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_read(u64::MAX - 4095, 4096), Err(Errno::INVAL));
        assert_eq!(volume.check_read(end - 4096, 4096), Ok(()));
    }

    #[test]
    fn poisoned_volume_refuses_changes_and_promises_but_reads() {
        let volume = volume(Access::ReadWrite);
        assert_eq!(volume.poison(Errno::IO), Errno::IO);
        assert_eq!(volume.write(0, &[1; BLOCK]), Err(Errno::IO));
        assert_eq!(volume.flush(), Err(Errno::IO));
        assert_eq!(volume.discard(0, 4096), Err(Errno::IO));
        assert_eq!(volume.read(0, &mut [0; BLOCK]), Ok(()));
    }

    #[test]
    fn read_only_volume_refuses_changes() {
        let volume = volume(Access::ReadOnly);
        assert_eq!(volume.write(0, &[1; BLOCK]), Err(Errno::ROFS));
        assert_eq!(volume.discard(0, 4096), Err(Errno::ROFS));
        assert_eq!(volume.flush(), Ok(()));
    }

    #[test]
    fn image_opened_for_reading_becomes_a_read_only_volume() {
        let named = tempfile::NamedTempFile::new().expect("temporary file");
        named.as_file().set_len(8192).expect("size");
        let file = File::open(named.path()).expect("open").into();
        let volume = Volume::open(Image { file, bytes: None, access: Access::ReadWrite }).expect("volume");
        assert_eq!((volume.access(), volume.bytes()), (Access::ReadOnly, 8192));
    }

    #[test]
    fn volume_is_never_cut_and_never_has_half_a_block() {
        let open = |bytes: Option<u64>, found: u64| {
            let file = tempfile::tempfile().expect("temporary file");
            file.set_len(found).expect("size");
            Volume::open(Image { file: file.into(), bytes, access: Access::ReadWrite })
        };
        assert!(matches!(open(Some(4096), 8192), Err(VolumeError::WouldShrink { .. })));
        assert!(matches!(open(None, 5000), Err(VolumeError::BadSize { found: 5000 })));
        assert!(matches!(open(None, 0), Err(VolumeError::BadSize { found: 0 })));
        assert!(open(Some(8192), 4096).is_ok());
        let pipe = std::fs::File::open("/dev/null").expect("open").into();
        let result = Volume::open(Image { file: pipe, bytes: None, access: Access::ReadOnly });
        assert!(matches!(result, Err(VolumeError::NotAnImage)));
    }
}
