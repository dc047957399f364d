//! Whether the file tree of an image is sound, found out without changing the image.

use std::sync::Arc;

use fs_core::device::{BlockDevice, DeviceError};
use fs_core::{Clock, Depth, Errno, Fs, OpenError, Options, Scratch};

const META_CACHE_BYTES: usize = 256 << 20;
/// Nothing is written below.
const READ_ONLY: DeviceError = DeviceError(libc::EROFS);

/// How much of a tree is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoroughness {
    Metadata,
    /// What is in the files, too.
    Everything,
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Examined {
    /// Files, directories and whatever has a name.
    pub inodes: u64,
    /// Of the blocks that they have.
    pub bytes: u64,
    pub snapshots: u64,
    /// What does not fit together, in words. Empty: it is sound.
    pub findings: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    #[error("it holds nothing yet")]
    Blank,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("it cannot be read to its end: {0}")]
    Read(Errno),
}

/// Looks through an image of so many bytes, of which `read` reads blocks; an error is its errno. It is recovered as a
/// file server would, in memory.
///
/// # Errors
/// It is no file tree, or cannot be read.
pub fn examine<R>(bytes: u64, read: R, extent: Thoroughness) -> Result<Examined, ExamineError>
where
    R: Fn(u64, &mut [u8]) -> Result<(), i32> + Send + Sync + 'static,
{
    let device: Arc<dyn BlockDevice> = Arc::new(Scratch::new(Image { bytes, read }));
    if !Fs::is_on(&*device)? {
        return Err(ExamineError::Blank);
    }
    let fs = Fs::open(device, how())?;
    let depth = if extent == Thoroughness::Everything { Depth::Data } else { Depth::Metadata };
    let findings = fs.check(depth).map_err(ExamineError::Read)?;
    let census = fs.census();
    Ok(Examined { inodes: census.inodes, bytes: census.bytes, snapshots: census.snapshots, findings })
}

fn how() -> Options {
    Options {
        cache_bytes: 0,
        meta_cache_bytes: META_CACHE_BYTES,
        readahead_threads: 0,
        careful_writes: 0,
        spawn: Arc::new(|work| work()),
        seed: [1; 16],
        clock: Clock::default(),
        made_ns: 0,
        made_by: (0, 0),
        go_back: None,
    }
}

/// An image that is only read.
struct Image<R> {
    bytes: u64,
    read: R,
}

impl<R: Fn(u64, &mut [u8]) -> Result<(), i32> + Send + Sync> BlockDevice for Image<R> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        (self.read)(offset, out).map_err(DeviceError)
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Err(READ_ONLY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_tree_is_said_to_be_none() {
        let blank = examine(
            64 << 20,
            |_, out| {
                out.fill(0);
                Ok(())
            },
            Thoroughness::Metadata,
        );
        assert!(matches!(blank, Err(ExamineError::Blank)));
        let other = examine(
            64 << 20,
            |_, out| {
                out.fill(7);
                Ok(())
            },
            Thoroughness::Metadata,
        );
        assert!(matches!(other, Err(ExamineError::Open(OpenError::Unknown))), "{other:?}");
        let short = examine(4096, |_, _| Ok(()), Thoroughness::Metadata);
        assert!(matches!(short, Err(ExamineError::Open(OpenError::TooSmall { .. }))), "{short:?}");
        let failing = examine(64 << 20, |_, _| Err(5), Thoroughness::Metadata);
        assert!(matches!(failing, Err(ExamineError::Open(OpenError::Device(DeviceError(5))))), "{failing:?}");
    }
}
