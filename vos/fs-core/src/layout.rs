//! Where things lie on the volume. `docs/design/fs-format.md` draws it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::{BLOCK, BLOCK64, BlockDevice};
use crate::error::OpenError;
use crate::extents::Run;

pub const MAGIC: [u8; 8] = *b"DVSFSvol";
/// Of a volume that is as large as it was made; 2: of one that has grown; 3: of one that had a snapshot.
pub const VERSION: u32 = 1;
const VERSION_GROWN: u32 = 2;
pub const VERSION_SNAPSHOTS: u32 = 3;
pub const VERSION_QUOTAS: u32 = 4;

/// Two copies, so that one bad block does not take the volume with it.
pub const SUPERBLOCK_AT: [u64; 2] = [0, 15 * BLOCK64];
/// Two copies written in turn: the length of the metadata store.
pub const LENGTH_AT: [u64; 2] = [8 * BLOCK64, 9 * BLOCK64];
const HEAD_BYTES: u64 = 16 * BLOCK64;

pub use vos_api::fs::VOLUME_BYTES_MIN;
const LOG_BYTES_MIN: u64 = 8 << 20;
const LOG_BYTES_MAX: u64 = 64 << 20;
const META_BYTES_MIN: u64 = 8 << 20;
/// The store may hold a fifth of its region: pages are half full at worst, and a commit writes changed pages anew
/// before it frees the old ones (`store::Room`).
const META_FILL_DIVISOR: u64 = 5;
/// How often a volume can grow.
pub const GROWTHS_MAX: usize = 15;
/// Less than this is not worth it.
pub const GROWTH_BYTES_MIN: u64 = 1 << 20;
/// Metadata one small file costs: inode, entry, cookie, extents.
const META_BYTES_PER_FILE: u64 = 320;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Superblock {
    magic: [u8; 8],
    version: U32,
    block_bytes: U32,
    pub uuid: [u8; 16],
    volume_bytes: U64,
    log_start: U64,
    log_bytes: U64,
    meta_start: U64,
    meta_bytes: U64,
    data_start: U64,
    data_blocks: U64,
    /// How long the volume was after it grew, each time; 0: it has not, any more.
    grown: [U64; GROWTHS_MAX],
    reserved: [u8; 3884],
    crc: U32,
}

const _: () = assert!(size_of::<Superblock>() == BLOCK);

/// A superblock that was checked.
///
/// The volume as it was made is its first part; each time that it grew it got another one behind it, with metadata and
/// data of its own. The metadata of all parts are one region, in their order. The data blocks are numbered through,
/// with a number that no block has between two parts: so no run of blocks is of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub uuid: [u8; 16],
    pub volume_bytes: u64,
    pub log_start: u64,
    pub log_bytes: u64,
    pub meta_start: u64,
    /// Of all parts.
    pub meta_bytes: u64,
    /// All numbers are below it.
    pub data_blocks: u64,
    /// The least version that knows what is in it. Blocks may be of snapshots: who knows of none would use them.
    pub needs: u32,
    parts: [Part; 1 + GROWTHS_MAX],
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Part {
    meta_start: u64,
    meta_bytes: u64,
    data_start: u64,
    data_blocks: u64,
    /// Number of its first data block.
    first: u64,
    end: u64,
}

/// What the head of a volume says.
pub enum Head {
    Blank,
    Formatted(Box<Layout>),
}

impl Layout {
    /// Divides a volume of `bytes`.
    pub fn plan(bytes: u64, uuid: [u8; 16]) -> Result<Layout, OpenError> {
        if bytes < VOLUME_BYTES_MIN {
            return Err(OpenError::TooSmall { bytes, least: VOLUME_BYTES_MIN });
        }
        let volume_bytes = bytes / BLOCK64 * BLOCK64;
        let log_bytes = (volume_bytes / 32).clamp(LOG_BYTES_MIN, LOG_BYTES_MAX) / BLOCK64 * BLOCK64;
        let meta_bytes = (volume_bytes / 8).max(META_BYTES_MIN) / BLOCK64 * BLOCK64;
        let log_start = HEAD_BYTES;
        let meta_start = log_start + log_bytes;
        let data_start = meta_start + meta_bytes;
        let data_blocks = (volume_bytes - data_start) / BLOCK64;
        let mut parts = [Part::default(); 1 + GROWTHS_MAX];
        let [first, ..] = &mut parts;
        *first = Part { meta_start, meta_bytes, data_start, data_blocks, first: 0, end: volume_bytes };
        Ok(Layout {
            uuid,
            volume_bytes,
            log_start,
            log_bytes,
            meta_start,
            meta_bytes,
            data_blocks,
            needs: VERSION,
            parts,
            count: 1,
        })
    }

    /// As it is on a device of so many bytes. `None`: there is nothing to be had.
    pub fn grown_to(&self, bytes: u64) -> Option<Layout> {
        let volume_bytes = bytes / BLOCK64 * BLOCK64;
        let more = volume_bytes.checked_sub(self.volume_bytes).filter(|more| *more >= GROWTH_BYTES_MIN)?;
        let meta_bytes = more / 8 / BLOCK64 * BLOCK64;
        let (meta_start, first) = (self.volume_bytes, self.data_blocks + 1);
        let data_start = meta_start + meta_bytes;
        let data_blocks = (volume_bytes - data_start) / BLOCK64;
        let mut next = *self;
        *next.parts.get_mut(self.count)? =
            Part { meta_start, meta_bytes, data_start, data_blocks, first, end: volume_bytes };
        next.count += 1;
        next.volume_bytes = volume_bytes;
        next.meta_bytes += meta_bytes;
        next.data_blocks = first.checked_add(data_blocks)?;
        Some(next)
    }

    pub fn needing(mut self, version: u32) -> Layout {
        self.needs = self.needs.max(version);
        self
    }

    fn parts(&self) -> &[Part] {
        self.parts.get(..self.count).unwrap_or_default()
    }

    /// The part that came last: where its metadata begin, and their bytes.
    pub fn last_metadata(&self) -> (u64, u64) {
        self.parts().last().map_or((0, 0), |part| (part.meta_start, part.meta_bytes))
    }

    /// Numbers between parts, which no block has.
    pub fn gaps(&self) -> impl Iterator<Item = u64> {
        self.parts().iter().skip(1).map(|part| part.first - 1)
    }

    /// Where a range of the metadata region lies: offsets and bytes, in order.
    pub fn metadata(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let (end, mut before) = (at.saturating_add(bytes), 0);
        self.parts().iter().filter_map(move |part| {
            let (from, to) = (at.max(before), end.min(before + part.meta_bytes));
            let found = (part.meta_start + from.saturating_sub(before), to.saturating_sub(from));
            before += part.meta_bytes;
            (found.1 > 0).then_some(found)
        })
    }

    /// Where data blocks lie: offsets and bytes, in order.
    pub fn data(&self, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        self.parts().iter().filter_map(move |part| {
            let (from, to) = (first.max(part.first), end.min(part.first + part.data_blocks));
            (from < to).then(|| (part.data_start + (from - part.first) * BLOCK64, (to - from) * BLOCK64))
        })
    }

    /// Bytes of keys and values that the store may hold.
    pub fn meta_limit(&self) -> u64 {
        self.meta_bytes / META_FILL_DIVISOR
    }

    /// How many more small files fit when the store holds `used` bytes. An estimate: names have any length.
    pub fn files_free(&self, used: u64) -> u64 {
        self.meta_limit().saturating_sub(used) / META_BYTES_PER_FILE
    }

    /// Whether these blocks are of the data region.
    pub fn has(&self, run: Run) -> bool {
        let Some(end) = run.start.checked_add(run.count) else { return false };
        self.parts().iter().any(|part| part.first <= run.start && end <= part.first + part.data_blocks)
    }

    /// Byte offset of a data block.
    pub fn data_offset(&self, block: u64) -> u64 {
        let part = self.parts().iter().rev().find(|part| part.first <= block).copied().unwrap_or_default();
        part.data_start + (block - part.first) * BLOCK64
    }

    pub fn write(&self, device: &dyn BlockDevice) -> Result<(), OpenError> {
        let block = self.encode();
        for at in [SUPERBLOCK_AT[1], SUPERBLOCK_AT[0]] {
            device.write(at, block.as_bytes())?;
            device.flush()?;
        }
        Ok(())
    }

    fn version(&self) -> u32 {
        self.needs.max(if self.count == 1 { VERSION } else { VERSION_GROWN })
    }

    fn encode(&self) -> Superblock {
        let [first, later @ ..] = &self.parts;
        let mut block = Superblock {
            magic: MAGIC,
            version: self.version().into(),
            block_bytes: (BLOCK as u32).into(),
            uuid: self.uuid,
            volume_bytes: first.end.into(),
            log_start: self.log_start.into(),
            log_bytes: self.log_bytes.into(),
            meta_start: first.meta_start.into(),
            meta_bytes: first.meta_bytes.into(),
            data_start: first.data_start.into(),
            data_blocks: first.data_blocks.into(),
            grown: later.map(|part| part.end.into()),
            reserved: [0; 3884],
            crc: 0.into(),
        };
        let bytes: [u8; BLOCK] = zerocopy::transmute!(block);
        block.crc = crc32fast::hash(&bytes[..BLOCK - 4]).into();
        block
    }
}

/// Reads both superblocks and mends a damaged one from the other.
pub fn read_head(device: &dyn BlockDevice) -> Result<Head, OpenError> {
    let bytes = device.bytes();
    if bytes < VOLUME_BYTES_MIN {
        return Err(OpenError::TooSmall { bytes, least: VOLUME_BYTES_MIN });
    }
    let mut blocks = [[0u8; BLOCK]; 2];
    for (block, at) in blocks.iter_mut().zip(SUPERBLOCK_AT) {
        device.read(at, block)?;
    }
    if blocks.iter().flatten().all(|byte| *byte == 0) {
        return Ok(Head::Blank);
    }
    let found: Vec<Result<Layout, OpenError>> = blocks.iter().map(|block| decode(block, bytes)).collect();
    let [first, second] = <[_; 2]>::try_from(found).map_err(|_| OpenError::Superblocks)?;
    match (first, second) {
        (Ok(layout), Ok(_)) => Ok(Head::Formatted(Box::new(layout))),
        (Ok(layout), Err(_)) | (Err(OpenError::Superblocks), Ok(layout)) => {
            tracing::warn!("one superblock was damaged and is written anew");
            layout.write(device)?;
            Ok(Head::Formatted(Box::new(layout)))
        }
        // Only the second copy was written: the volume was being made, or something overwrote its start.
        (Err(OpenError::Unknown), Ok(layout)) if blocks[0].iter().all(|byte| *byte == 0) => {
            layout.write(device)?;
            Ok(Head::Formatted(Box::new(layout)))
        }
        (Err(error), _) => Err(error),
    }
}

fn decode(block: &[u8; BLOCK], bytes: u64) -> Result<Layout, OpenError> {
    let Ok(superblock) = Superblock::read_from_bytes(block) else { return Err(OpenError::Superblocks) };
    if superblock.magic != MAGIC {
        return Err(OpenError::Unknown);
    }
    if superblock.crc.get() != crc32fast::hash(&block[..BLOCK - 4]) {
        return Err(OpenError::Superblocks);
    }
    let version = superblock.version.get();
    if !(VERSION..=VERSION_QUOTAS).contains(&version) || superblock.block_bytes.get() != BLOCK as u32 {
        return Err(OpenError::Version { found: version, known: VERSION_QUOTAS });
    }
    let mut layout = Layout::plan(superblock.volume_bytes.get(), superblock.uuid)?;
    layout.needs = if version >= VERSION_SNAPSHOTS { version } else { VERSION };
    let grown = superblock.grown.iter().map(|end| end.get()).take_while(|end| *end > 0);
    for end in grown.filter(|_| version != VERSION) {
        layout = layout.grown_to(end).ok_or(OpenError::Superblocks)?;
    }
    // Whatever else it says.
    if layout.encode().as_bytes() != block {
        return Err(OpenError::Superblocks);
    }
    if layout.volume_bytes > bytes {
        return Err(OpenError::Shrunk { made: layout.volume_bytes, bytes });
    }
    Ok(layout)
}
