//! What a file of an archive holds, and where it has holes.
//!
//! GNU tar writes sparse files in three forms: an entry type of its own, which the `tar` crate reads, and two of PAX
//! records: a list of parts in the record `GNU.sparse.map` (0.1), or before the data (1.0, what `tar --sparse
//! --format=posix` writes today). The oldest form of PAX records (0.0), which nothing writes any more, is refused.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::PathBuf;

const BLOCK_BYTES: usize = 512;
/// Parts of a sparse file. Their list is in memory.
const PARTS_MAX: u64 = 1 << 17;

/// What PAX records say of a sparse file.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Sparse {
    pub name: Option<PathBuf>,
    /// Length of the file.
    pub bytes: Option<u64>,
    /// `offset,length,offset,length`; before the data when absent.
    pub map: Option<String>,
    pub is_unknown: bool,
}

impl Sparse {
    /// One record whose key begins with `GNU.sparse.`.
    pub(super) fn learn(&mut self, key: &str, value: &[u8]) {
        use std::os::unix::ffi::OsStrExt;
        let text = std::str::from_utf8(value).unwrap_or_default();
        match key {
            "name" => self.name = Some(PathBuf::from(std::ffi::OsStr::from_bytes(value))),
            "realsize" | "size" => self.bytes = text.parse().ok(),
            "map" => self.map = Some(text.to_owned()),
            "major" => self.is_unknown |= text != "1",
            "offset" | "numbytes" => self.is_unknown = true,
            _ => (),
        }
    }
}

/// What a file has, piece by piece. What is in no piece is zeros.
pub(super) struct Contents<'a> {
    source: &'a mut dyn Read,
    /// Offset and length of what is left, in order, not overlapping.
    parts: VecDeque<(u64, u64)>,
    holes: Holes,
    pub bytes: u64,
}

/// Where a file's zeros are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holes {
    None,
    /// Between the parts.
    Listed,
    /// The source gives them, too.
    AsZeros,
}

/// Bytes of a file.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub offset: u64,
    pub data: Vec<u8>,
}

impl<'a> Contents<'a> {
    pub(super) fn plain(source: &'a mut dyn Read, bytes: u64) -> Contents<'a> {
        Contents { source, parts: VecDeque::from([(0, bytes)]), holes: Holes::None, bytes }
    }

    /// A file whose holes `source` gives as zeros.
    pub(super) fn filled(source: &'a mut dyn Read, bytes: u64) -> Contents<'a> {
        Contents { holes: Holes::AsZeros, ..Contents::plain(source, bytes) }
    }

    /// `stored`: bytes of the archive that belong to the entry.
    pub(super) fn sparse(source: &'a mut dyn Read, stored: u64, sparse: &Sparse) -> io::Result<Contents<'a>> {
        let (Some(bytes), false) = (sparse.bytes, sparse.is_unknown) else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a sparse file of a form that is not known"));
        };
        let (numbers, map_bytes) = match &sparse.map {
            Some(map) => (map.split(',').map(number).collect::<io::Result<Vec<u64>>>()?, 0),
            None => read_map(source)?,
        };
        let parts = in_order(&numbers, bytes, stored.checked_sub(map_bytes).ok_or_else(wrong)?)?;
        Ok(Contents { source, parts, holes: Holes::Listed, bytes })
    }

    pub(super) fn has_holes(&self) -> bool {
        self.holes != Holes::None
    }

    /// The next bytes that are stored, at most so many; `None` after the last.
    pub(super) fn next(&mut self, bytes_max: usize) -> io::Result<Option<Piece>> {
        loop {
            while self.parts.front().is_some_and(|(_, length)| *length == 0) {
                self.parts.pop_front();
            }
            let Some((offset, length)) = self.parts.front_mut() else { return Ok(None) };
            let (at, count) = (*offset, (*length).min(bytes_max as u64));
            (*offset, *length) = (at + count, *length - count);
            // Of the allocator, whose pages are zero before anybody writes there.
            let mut data = vec![0; count as usize];
            self.source.read_exact(&mut data)?;
            if self.holes != Holes::AsZeros || data.iter().any(|byte| *byte != 0) {
                return Ok(Some(Piece { offset: at, data }));
            }
        }
    }
}

fn wrong() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "its list of holes makes no sense")
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| wrong())
}

/// A number of parts, then offset and length of each, a line each, up to the end of a block.
fn read_map(source: &mut dyn Read) -> io::Result<(Vec<u64>, u64)> {
    let (mut text, mut numbers, mut wanted, mut bytes) = (String::new(), Vec::new(), None, 0);
    while wanted.is_none_or(|wanted| (numbers.len() as u64) < wanted) {
        let mut block = [0; BLOCK_BYTES];
        source.read_exact(&mut block)?;
        bytes += BLOCK_BYTES as u64;
        for byte in block {
            match (byte, wanted) {
                (b'0'..=b'9', _) if text.len() < 20 => text.push(char::from(byte)),
                (b'\n', None) => {
                    let parts = number(&std::mem::take(&mut text))?;
                    wanted = Some(Some(parts).filter(|parts| *parts <= PARTS_MAX).ok_or_else(wrong)? * 2);
                }
                (b'\n', Some(wanted)) if (numbers.len() as u64) < wanted => {
                    numbers.push(number(&std::mem::take(&mut text))?);
                }
                (0, Some(wanted)) if numbers.len() as u64 == wanted => (),
                _ => return Err(wrong()),
            }
        }
    }
    Ok((numbers, bytes))
}

fn in_order(numbers: &[u64], bytes: u64, stored: u64) -> io::Result<VecDeque<(u64, u64)>> {
    let (mut end, mut sum, mut parts) = (0, 0, VecDeque::new());
    for pair in numbers.chunks(2) {
        let &[offset, length] = pair else { return Err(wrong()) };
        let next = offset.checked_add(length).filter(|next| offset >= end && *next <= bytes).ok_or_else(wrong)?;
        (end, sum) = (next, sum + length);
        parts.push_back((offset, length));
    }
    if sum > stored || parts.len() as u64 > PARTS_MAX {
        return Err(wrong());
    }
    Ok(parts)
}
