//! Short files in one step: the whole file goes to the gate as a command to its directory ([`vos_api::fs::PlaceHead`]).
//!
//! What is not a tree of ours knows no such command; a name that is taken must be replaced first: both say
//! [`Placed::No`], and the file is made as any program makes one.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use vos_api::fs::{PLACE_BYTES_MAX, PLACE_GROUP, PLACE_NUMBER, PlaceHead};
use zerocopy::IntoBytes;

use super::Meta;

#[derive(Default)]
pub(super) struct Placer {
    is_unknown: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    Yes,
    No,
}

/// Whether a file fits into one command.
pub(super) fn is_short(name: &OsStr, bytes: u64) -> bool {
    bytes <= (PLACE_BYTES_MAX - size_of::<PlaceHead>()).saturating_sub(name.len()) as u64
}

impl Placer {
    /// Makes a whole file, unless that cannot be done in one step.
    pub(super) fn place(&self, parent: &File, name: &OsStr, meta: &Meta, content: &[u8]) -> io::Result<Placed> {
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
        match sys::ioctl::give(parent, PLACE_GROUP, PLACE_NUMBER, &command) {
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
}

/// `None` before 1970.
fn nanoseconds(meta: &Meta) -> Option<u64> {
    let seconds = u64::try_from(meta.mtime.tv_sec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(meta.mtime.tv_nsec).ok()?)
}
