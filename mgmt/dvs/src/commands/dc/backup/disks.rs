//! What a backup has of a disk that holds no file tree.
//!
//! ```text
//! disk.json            DiskHead
//! 0000000000100000     bytes from this offset on; what is between them in an extent of 1 MiB is zeros
//! …                    extents in any order, each once, its parts one after the other; empty: all of it is zeros
//! sums                 of each extent that is not zeros: its number u64 little-endian, its SHA-256
//! ```
//!
//! Extents that are not there are zeros; in a backup of what changed they are as the earlier one has them, and so are
//! their sums. Pure: from streams to streams.

use std::collections::BTreeMap;
use std::io::{self, Read};

use mgmt_api::content::{BLOCK_BYTES, Decoder, EXTENT_BYTES, Item, is_in_an_extent};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::form::FormError;

const BUFFER_BYTES: usize = 256 << 10;
const SUM_BYTES: usize = 8 + DIGEST_BYTES;
const DIGEST_BYTES: usize = 32;

pub type ExtentDigest = [u8; DIGEST_BYTES];
/// Of each extent that is not zeros, by its number.
pub type DiskSums = BTreeMap<u64, ExtentDigest>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskHead {
    pub bytes: u64,
    /// Else what was written while it was read may be there in part.
    pub is_of_one_moment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFile {
    Head,
    Extent(u64),
    Sums,
}

/// What is told of disks, in order.
#[derive(PartialEq, Eq, Debug)]
pub enum DiskPart<'a> {
    Begin { name: &'a str, bytes: u64 },
    Extent { offset: u64, bytes: u64, runs: &'a [(u64, Vec<u8>)] },
    End,
}

/// One extent, as its parts come.
struct Collected {
    at: u64,
    bytes: u64,
    runs: Vec<(u64, Vec<u8>)>,
}

impl Collected {
    fn of(at: u64, disk_bytes: u64) -> Collected {
        let bytes = disk_bytes.saturating_sub(at.saturating_mul(EXTENT_BYTES)).min(EXTENT_BYTES);
        Collected { at, bytes, runs: Vec::new() }
    }

    fn offset(&self) -> u64 {
        self.at * EXTENT_BYTES
    }

    fn end(&self) -> u64 {
        self.runs.last().map_or(self.offset(), |(offset, data)| offset + data.len() as u64)
    }

    /// `None`: it is zeros.
    fn digest(&self) -> Option<ExtentDigest> {
        let zeros = [0; BLOCK_BYTES as usize];
        let (mut digest, mut end, mut has_some) = (Sha256::new(), self.offset(), false);
        let gap = |digest: &mut Sha256, mut bytes: u64| {
            while bytes > 0 {
                let part = bytes.min(BLOCK_BYTES);
                digest.update(zeros.get(..part as usize).unwrap_or_default());
                bytes -= part;
            }
        };
        for (offset, data) in &self.runs {
            gap(&mut digest, offset.saturating_sub(end));
            digest.update(data);
            has_some |= data.iter().any(|byte| *byte != 0);
            end = offset + data.len() as u64;
        }
        gap(&mut digest, (self.offset() + self.bytes).saturating_sub(end));
        has_some.then(|| digest.finalize().into())
    }
}

/// A disk on its way into a backup.
pub struct DiskWriting<R> {
    disk: String,
    bytes: u64,
    pub is_of_one_moment: bool,
    source: R,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// The first part of the extent after this one.
    ahead: Option<(u64, Vec<u8>)>,
    extent: Option<Collected>,
    sums: DiskSums,
}

/// What came.
enum Came {
    Head(u64, bool),
    Piece(u64, Vec<u8>),
    Zeros,
    End,
}

impl<R: Read> DiskWriting<R> {
    pub fn begin(disk: &str, bytes: u64, source: R) -> Result<DiskWriting<R>, FormError> {
        let mut writing = DiskWriting {
            disk: disk.to_owned(),
            bytes,
            is_of_one_moment: false,
            source,
            decoder: Decoder::default(),
            buffer: vec![0; BUFFER_BYTES],
            ahead: None,
            extent: None,
            sums: DiskSums::new(),
        };
        match writing.next()? {
            Came::Head(told, is_of_one_moment) if told == bytes => {
                writing.is_of_one_moment = is_of_one_moment;
                Ok(writing)
            }
            _ => Err(writing.failed(io::Error::other("its length changed"))),
        }
    }

    fn failed(&self, cause: io::Error) -> FormError {
        FormError::Content { disk: self.disk.clone(), cause }
    }

    fn next(&mut self) -> Result<Came, FormError> {
        loop {
            let came = match self.decoder.pop() {
                Ok(Some(Item::Head { bytes, is_of_one_moment })) => Some(Came::Head(bytes, is_of_one_moment)),
                Ok(Some(Item::Piece { offset, data })) => Some(Came::Piece(offset, data.to_vec())),
                Ok(Some(Item::Zeros { .. })) => Some(Came::Zeros),
                Ok(Some(Item::End)) => Some(Came::End),
                Ok(None) => None,
                Err(bad) => return Err(self.failed(io::Error::other(bad))),
            };
            if let Some(came) = came {
                return Ok(came);
            }
            match self.source.read(&mut self.buffer) {
                Ok(0) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.decoder.push(self.buffer.get(..count).unwrap_or_default()),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => (),
                Err(cause) => return Err(self.failed(cause)),
            }
        }
    }

    /// The next one that is not zeros, by its number.
    pub fn next_extent(&mut self) -> Result<Option<(u64, ExtentDigest)>, FormError> {
        loop {
            let mut extent = None;
            while let Some((offset, data)) = self.next_piece()? {
                let at = offset / EXTENT_BYTES;
                let collected = extent.get_or_insert_with(|| Collected::of(at, self.bytes));
                if collected.at != at {
                    self.ahead = Some((offset, data));
                    break;
                }
                if offset < collected.end() {
                    return Err(self.failed(io::Error::other("parts of an extent overlap")));
                }
                collected.runs.push((offset, data));
            }
            let Some(extent) = extent else { return Ok(None) };
            let (at, digest) = (extent.at, extent.digest());
            self.extent = Some(extent);
            let Some(digest) = digest else { continue };
            if self.sums.insert(at, digest).is_some() {
                return Err(self.failed(io::Error::other("an extent comes twice")));
            }
            return Ok(Some((at, digest)));
        }
    }

    fn next_piece(&mut self) -> Result<Option<(u64, Vec<u8>)>, FormError> {
        if let Some(ahead) = self.ahead.take() {
            return Ok(Some(ahead));
        }
        if self.decoder.is_over() {
            return Ok(None);
        }
        loop {
            match self.next()? {
                Came::Piece(offset, data) => return Ok(Some((offset, data))),
                Came::Zeros => (),
                Came::End => return Ok(None),
                Came::Head(..) => return Err(self.failed(io::ErrorKind::InvalidData.into())),
            }
        }
    }

    /// Of the extent that was told last.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.extent.iter().flat_map(|extent| extent.runs.iter().map(|(offset, data)| (*offset, data.as_slice())))
    }

    pub fn finish(self) -> DiskSums {
        self.sums
    }
}

/// A disk on its way out of a backup.
pub struct DiskReading {
    disk: String,
    bytes: u64,
    /// Of the earlier backup.
    known: Option<DiskSums>,
    extent: Option<Collected>,
    /// What came; `None`: zeros.
    found: BTreeMap<u64, Option<ExtentDigest>>,
}

impl DiskReading {
    pub fn begin(disk: &str, bytes: u64, known: Option<DiskSums>) -> DiskReading {
        DiskReading { disk: disk.to_owned(), bytes, known, extent: None, found: BTreeMap::new() }
    }

    fn bad(&self, why: &'static str) -> FormError {
        FormError::BadDisk { disk: self.disk.clone(), why }
    }

    /// One file of the archive.
    pub fn take(
        &mut self,
        offset: u64,
        data: Vec<u8>,
        each: &mut impl FnMut(DiskPart<'_>) -> io::Result<()>,
    ) -> Result<(), FormError> {
        let is_empty = data.is_empty() && offset.is_multiple_of(EXTENT_BYTES) && offset < self.bytes;
        if !is_empty && !is_in_an_extent(offset, data.len() as u64, self.bytes) {
            return Err(self.bad("a part of it lies where nothing can be"));
        }
        let at = offset / EXTENT_BYTES;
        if self.extent.as_ref().is_some_and(|extent| extent.at != at) {
            self.put(each)?;
        }
        if self.found.contains_key(&at) {
            return Err(self.bad("an extent comes twice"));
        }
        let is_first = self.extent.is_none();
        let extent = self.extent.get_or_insert_with(|| Collected::of(at, self.bytes));
        if offset < extent.end() || is_empty && !is_first {
            return Err(self.bad("parts of an extent overlap"));
        }
        extent.runs.push((offset, data));
        Ok(())
    }

    fn put(&mut self, each: &mut impl FnMut(DiskPart<'_>) -> io::Result<()>) -> Result<(), FormError> {
        let Some(extent) = self.extent.take() else { return Ok(()) };
        self.found.insert(extent.at, extent.digest());
        let (offset, bytes) = (extent.offset(), extent.bytes);
        each(DiskPart::Extent { offset, bytes, runs: &extent.runs }).map_err(FormError::Write)
    }

    /// All came, and is what these sums are of.
    pub fn finish(
        mut self,
        sums: &[u8],
        each: &mut impl FnMut(DiskPart<'_>) -> io::Result<()>,
    ) -> Result<DiskSums, FormError> {
        self.put(each)?;
        let told = self.told(sums).ok_or_else(|| self.bad("its sums cannot be understood"))?;
        let is_right = |(at, digest): (&u64, &Option<ExtentDigest>)| told.get(at) == digest.as_ref();
        let is_whole = match self.known.take() {
            None => self.found.iter().all(is_right),
            Some(mut now) => {
                now.retain(|at, _| at.saturating_mul(EXTENT_BYTES) < self.bytes);
                for (at, digest) in &self.found {
                    match digest {
                        Some(digest) => now.insert(*at, *digest),
                        None => now.remove(at),
                    };
                }
                now == told
            }
        };
        match is_whole {
            true => Ok(told),
            false => Err(self.bad("it is not what its sums are of, nor what the earlier backup has")),
        }
    }

    fn told(&self, sums: &[u8]) -> Option<DiskSums> {
        let (mut told, mut before) = (DiskSums::new(), None);
        let lines = sums.chunks_exact(SUM_BYTES);
        if !lines.remainder().is_empty() {
            return None;
        }
        for line in lines {
            let (at, digest) = line.split_first_chunk()?;
            let at = u64::from_le_bytes(*at);
            if before.is_some_and(|before| at <= before) || at.checked_mul(EXTENT_BYTES)? >= self.bytes {
                return None;
            }
            before = Some(at);
            told.insert(at, digest.try_into().ok()?);
        }
        Some(told)
    }
}
