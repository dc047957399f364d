//! Where a file has holes, for who packs it.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const BLOCK_BYTES: usize = 512;
/// A file in more parts is packed as if it had no holes: the list is in memory.
const PARTS_MAX: usize = 1 << 16;

/// Offset and length of what is no hole. `None`: it has none, or nobody can tell.
pub(super) fn parts(file: &File, meta: &Metadata) -> Option<Vec<(u64, u64)>> {
    let bytes = meta.len();
    if meta.blocks().saturating_mul(512) >= bytes {
        return None;
    }
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < bytes {
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => begin.min(bytes),
            Err(Errno::NXIO) => bytes,
            Err(_) => return None,
        };
        if begin == bytes {
            break;
        }
        let end = seek(file, SeekFrom::Hole(begin)).ok()?.min(bytes);
        if end <= begin || parts.len() == PARTS_MAX {
            return None;
        }
        parts.push((begin, end - begin));
        at = end;
    }
    // The last part says how long the file is, for readers that look there.
    if parts.last().is_none_or(|(offset, length)| offset + length < bytes) {
        parts.push((bytes, 0));
    }
    (parts != [(0, bytes)]).then_some(parts)
}

/// A name that readers of lines would take for several records is not said in one.
pub(super) fn can_be_named(name: &Path) -> bool {
    !name.as_os_str().as_bytes().contains(&b'\n')
}

/// The list of parts before the data: a number in a line, up to the end of a block.
pub(super) fn map(parts: &[(u64, u64)]) -> Vec<u8> {
    let numbers = parts.iter().flat_map(|(offset, bytes)| [*offset, *bytes]);
    let lines = std::iter::once(parts.len() as u64).chain(numbers).map(|number| format!("{number}\n"));
    let mut map = lines.collect::<String>().into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
    map
}

/// What a file has in its parts, one after the other. What was a part and is cut off by now is zeros.
pub(super) struct Stored<'a> {
    file: &'a File,
    parts: &'a [(u64, u64)],
    /// The part that is being read, and what was read of it.
    at: (usize, u64),
}

impl Stored<'_> {
    pub(super) fn of<'a>(file: &'a File, parts: &'a [(u64, u64)]) -> Stored<'a> {
        Stored { file, parts, at: (0, 0) }
    }
}

impl Read for Stored<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (index, done) = &mut self.at;
        while self.parts.get(*index).is_some_and(|(_, bytes)| *done == *bytes) {
            (*index, *done) = (*index + 1, 0);
        }
        let Some((offset, bytes)) = self.parts.get(*index) else { return Ok(0) };
        let room = (bytes - *done).min(buffer.len() as u64) as usize;
        let place = buffer.get_mut(..room).unwrap_or_default();
        let count = match self.file.read_at(place, offset + *done)? {
            0 => {
                place.fill(0);
                room
            }
            count => count,
        };
        *done += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_one_after_the_other_and_what_is_cut_off_is_zeros() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(b"abcdef", 0).unwrap();
        let parts = [(0, 2), (3, 0), (4, 4), (100, 1)];
        let mut read = Vec::new();
        Stored::of(&file, &parts).read_to_end(&mut read).unwrap();
        assert_eq!(read, b"abef\0\0\0");
    }
}
