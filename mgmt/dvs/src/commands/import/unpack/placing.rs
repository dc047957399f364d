//! Short files in one step: the whole file goes to the gate as a command to its directory ([`vos_api::fs::PlaceHead`]).
//!
//! What is not a tree of ours knows no such command; a name that is taken must be replaced first: both say [`Placed::No`], and the file
//! is made as any program makes one.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vos_api::fs::{PLACE_BYTES_MAX, PLACE_GROUP, PLACE_NUMBER, PlaceHead};
use zerocopy::IntoBytes;

use super::{Meta, make_missing_parent};

/// Directories that are kept open.
const DIRECTORIES_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Placer {
    is_unknown: AtomicBool,
    directories: Mutex<HashMap<PathBuf, Arc<File>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    Yes,
    No,
}

/// Whether a file fits into one command.
pub(super) fn is_short(path: &Path, bytes: u64) -> bool {
    let name_bytes = path.file_name().map_or(0, |name| name.len());
    bytes <= (PLACE_BYTES_MAX - size_of::<PlaceHead>()).saturating_sub(name_bytes) as u64
}

impl Placer {
    /// Makes a whole file, unless that cannot be done in one step.
    pub(super) fn place(&self, path: &Path, meta: &Meta, content: &[u8]) -> io::Result<Placed> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Placed::No) };
        let Some(mtime_ns) = nanoseconds(meta) else { return Ok(Placed::No) };
        if self.is_unknown.load(Ordering::Relaxed) {
            return Ok(Placed::No);
        }
        let head = PlaceHead {
            mode: (meta.mode & 0o7777).into(),
            uid: meta.uid.into(),
            gid: meta.gid.into(),
            name_bytes: (name.len() as u32).into(),
            mtime_ns: mtime_ns.into(),
        };
        let command = [head.as_bytes(), name.as_bytes(), content].concat();
        let directory = self.directory(parent, path)?;
        match sys::ioctl::give(&*directory, PLACE_GROUP, PLACE_NUMBER, &command) {
            Ok(_) => Ok(Placed::Yes),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOTTY | libc::EPERM | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS) => {
                    self.is_unknown.store(true, Ordering::Relaxed);
                    Ok(Placed::No)
                }
                Some(libc::EEXIST) => Ok(Placed::No),
                _ => Err(error),
            },
        }
    }

    fn directory(&self, parent: &Path, path: &Path) -> io::Result<Arc<File>> {
        let lock = || self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(directory) = lock().get(parent) {
            return Ok(directory.clone());
        }
        let directory = Arc::new(make_missing_parent(path, || File::open(parent))?);
        let mut directories = lock();
        if directories.len() >= DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(parent.to_owned(), directory.clone());
        Ok(directory)
    }
}

/// `None` before 1970.
fn nanoseconds(meta: &Meta) -> Option<u64> {
    let seconds = u64::try_from(meta.mtime.tv_sec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(meta.mtime.tv_nsec).ok()?)
}
