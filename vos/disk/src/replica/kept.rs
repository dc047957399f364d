//! The file beside a copy: what it knows of itself ([`Kept`]), of which a loss of power leaves the one before or this.
//!
//! Two places, [`PLACE_BYTES`] apart, written in turn: `[number u64][bytes u32][crc32 u32]`, little-endian, then the
//! bytes. The valid one with the higher number holds. The checksum covers number and bytes.

use std::os::fd::OwnedFd;

use replica_core::{ENCODED_BYTES_MAX, Kept};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const HEAD_BYTES: usize = 16;
const PLACE_BYTES: u64 = 2 << 20;
/// Of a place: some thousand ranges.
const USUAL_BYTES: u64 = 64 << 10;
const _: () = assert!(HEAD_BYTES + ENCODED_BYTES_MAX <= PLACE_BYTES as usize);

pub struct KeptFile {
    file: OwnedFd,
    /// Of what it holds.
    number: u64,
}

impl KeptFile {
    /// `EILSEQ`: something was written, and neither place is valid.
    pub fn open(file: OwnedFd) -> Result<(KeptFile, Kept), Errno> {
        let places = [read(&file, 0)?, read(&file, 1)?];
        let is_empty = rustix::fs::fstat(&file)?.st_size == 0;
        let newest = places.into_iter().flatten().max_by_key(|place| place.0);
        match newest {
            Some((number, kept)) => Ok((KeptFile { file, number }.with_room(), kept)),
            None if is_empty => Ok((KeptFile { file, number: 0 }.with_room(), Kept::default())),
            None => Err(Errno::ILSEQ),
        }
    }

    /// A copy that cannot keep what it knows ends, so what it usually knows has its space, whoever fills the host.
    fn with_room(self) -> KeptFile {
        for place in [0, PLACE_BYTES] {
            let set_aside = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, place, USUAL_BYTES);
            if let Err(error) = set_aside {
                tracing::debug!(%error, "no space is set aside for what a copy knows");
            }
        }
        self
    }

    /// Durable when it returns.
    pub fn keep(&mut self, kept: &Kept) -> Result<(), Errno> {
        let number = self.number + 1;
        let bytes = kept.encode();
        let mut out = Vec::with_capacity(HEAD_BYTES + bytes.len());
        out.extend(number.to_le_bytes());
        out.extend(u32::try_from(bytes.len()).map_err(|_| Errno::FBIG)?.to_le_bytes());
        out.extend(checksum(number, &bytes).to_le_bytes());
        out.extend(bytes);
        let mut rest = &out[..];
        let mut at = number % 2 * PLACE_BYTES;
        while !rest.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, rest, at))? {
                0 => return Err(Errno::IO),
                written => {
                    rest = rest.get(written..).unwrap_or_default();
                    at += written as u64;
                }
            }
        }
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file))?;
        self.number = number;
        Ok(())
    }
}

/// `None`: that place holds nothing.
fn read(file: &OwnedFd, place: u64) -> Result<Option<(u64, Kept)>, Errno> {
    let mut head = [0; HEAD_BYTES];
    if read_at(file, place * PLACE_BYTES, &mut head)? < HEAD_BYTES {
        return Ok(None);
    }
    let [number, lengths] = [0, 8].map(|at| word(&head, at));
    let (bytes, sum) = (lengths as u32 as usize, (lengths >> 32) as u32);
    if bytes > ENCODED_BYTES_MAX {
        return Ok(None);
    }
    let mut data = vec![0; bytes];
    if read_at(file, place * PLACE_BYTES + HEAD_BYTES as u64, &mut data)? < bytes || checksum(number, &data) != sum {
        return Ok(None);
    }
    Ok(Kept::decode(&data).map(|kept| (number, kept)))
}

fn word(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    let place = bytes.get(at..).and_then(|rest| rest.first_chunk());
    place.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn read_at(file: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, offset + done as u64))? {
            0 => break,
            got => done += got,
        }
    }
    Ok(done)
}

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use replica_core::CopyMark;

    use super::*;

    fn kept(generation: u64) -> Kept {
        let mark = CopyMark { set: 7, generation, whole: true, boot: 3 };
        Kept { mark: Some(mark), fence: 9, ..Kept::default() }
    }

    fn open(file: &File) -> Result<(KeptFile, Kept), Errno> {
        KeptFile::open(file.try_clone().expect("a descriptor").into())
    }

    #[test]
    fn what_was_kept_is_read_and_a_torn_one_is_the_one_before() {
        let file = tempfile::tempfile().expect("a file");
        let (mut place, first) = open(&file).expect("empty");
        assert_eq!(first, Kept::default());
        for generation in 1..=4 {
            place.keep(&kept(generation)).expect("kept");
            assert_eq!(open(&file).expect("read").1, kept(generation));
        }
        let whole = std::io::Read::bytes(&file).count();
        assert!(whole < 2 * PLACE_BYTES as usize);
        // The fifth is torn at every byte: all but the whole one are the fourth.
        let (mut before, mut after) = (vec![0; 256], vec![0; 256]);
        file.read_at(&mut before, PLACE_BYTES).expect("read");
        place.keep(&kept(5)).expect("kept");
        file.read_at(&mut after, PLACE_BYTES).expect("read");
        for torn in 0..after.len() {
            let bytes = [&after[..torn], &before[torn..]].concat();
            file.write_all_at(&bytes, PLACE_BYTES).expect("written");
            let wanted = if bytes == after { 5 } else { 4 };
            assert_eq!(open(&file).expect("read").1, kept(wanted), "{torn}");
        }
    }

    #[test]
    fn file_of_something_else_is_refused() {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&[0x5a; 5000], 0).expect("written");
        assert_eq!(open(&file).err(), Some(Errno::ILSEQ));
    }
}
