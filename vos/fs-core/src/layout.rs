//! Where things lie on the volume. `docs/design/fs-format.md` draws it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::{BLOCK, BLOCK64, BlockDevice};
use crate::error::OpenError;
use crate::extents::Run;

pub const MAGIC: [u8; 8] = *b"DVSFSvol";
pub const VERSION: u32 = 1;

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
    reserved: [u8; 4004],
    crc: U32,
}

const _: () = assert!(size_of::<Superblock>() == BLOCK);

/// A superblock that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub uuid: [u8; 16],
    pub volume_bytes: u64,
    pub log_start: u64,
    pub log_bytes: u64,
    pub meta_start: u64,
    pub meta_bytes: u64,
    pub data_start: u64,
    pub data_blocks: u64,
}

/// What the head of a volume says.
pub enum Head {
    Blank,
    Formatted(Layout),
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
        Ok(Layout { uuid, volume_bytes, log_start, log_bytes, meta_start, meta_bytes, data_start, data_blocks })
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
        run.start.checked_add(run.count).is_some_and(|end| end <= self.data_blocks)
    }

    /// Byte offset of a data block.
    pub fn data_offset(&self, block: u64) -> u64 {
        self.data_start + block * BLOCK64
    }

    pub fn write(&self, device: &dyn BlockDevice) -> Result<(), OpenError> {
        let block = self.encode();
        for at in [SUPERBLOCK_AT[1], SUPERBLOCK_AT[0]] {
            device.write(at, block.as_bytes())?;
            device.flush()?;
        }
        Ok(())
    }

    fn encode(&self) -> Superblock {
        let mut block = Superblock {
            magic: MAGIC,
            version: VERSION.into(),
            block_bytes: (BLOCK as u32).into(),
            uuid: self.uuid,
            volume_bytes: self.volume_bytes.into(),
            log_start: self.log_start.into(),
            log_bytes: self.log_bytes.into(),
            meta_start: self.meta_start.into(),
            meta_bytes: self.meta_bytes.into(),
            data_start: self.data_start.into(),
            data_blocks: self.data_blocks.into(),
            reserved: [0; 4004],
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
        (Ok(layout), Ok(_)) => Ok(Head::Formatted(layout)),
        (Ok(layout), Err(_)) | (Err(OpenError::Superblocks), Ok(layout)) => {
            tracing::warn!("one superblock was damaged and is written anew");
            layout.write(device)?;
            Ok(Head::Formatted(layout))
        }
        // Only the second copy was written: the volume was being made, or something overwrote its start.
        (Err(OpenError::Unknown), Ok(layout)) if blocks[0].iter().all(|byte| *byte == 0) => {
            layout.write(device)?;
            Ok(Head::Formatted(layout))
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
    if superblock.version.get() != VERSION || superblock.block_bytes.get() != BLOCK as u32 {
        return Err(OpenError::Version { found: superblock.version.get(), known: VERSION });
    }
    let planned = Layout::plan(superblock.volume_bytes.get(), superblock.uuid)?;
    let stored = Layout {
        uuid: superblock.uuid,
        volume_bytes: superblock.volume_bytes.get(),
        log_start: superblock.log_start.get(),
        log_bytes: superblock.log_bytes.get(),
        meta_start: superblock.meta_start.get(),
        meta_bytes: superblock.meta_bytes.get(),
        data_start: superblock.data_start.get(),
        data_blocks: superblock.data_blocks.get(),
    };
    if stored != planned {
        return Err(OpenError::Superblocks);
    }
    if stored.volume_bytes > bytes {
        return Err(OpenError::Shrunk { made: stored.volume_bytes, bytes });
    }
    Ok(stored)
}
