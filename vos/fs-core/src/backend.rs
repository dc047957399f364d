//! The metadata region as a file for redb.
//!
//! The file's length is a number of its own, kept in two checksummed blocks written in turn: redb grows by doubling
//! and trusts the length when it opens. Growing costs nothing; only a write beyond the region fails.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::aside::Aside;
use crate::device::{BLOCK, BLOCK64, BlockDevice, Need};
use crate::error::OpenError;
use crate::layout::{LENGTH_AT, Layout};
use crate::model::Reader;

const LENGTH_MAGIC: [u8; 8] = *b"DVSFSlen";
/// A store of which every page lies in the region is at most twice as long. A number that is much larger is none that
/// redb wrote, and redb would take memory for all of it.
const GROWN_MOST: u64 = 4;

pub struct RegionBackend {
    device: Arc<dyn BlockDevice>,
    aside: Arc<Aside>,
    layout: Layout,
    length: Mutex<Length>,
    /// Serialises read-modify-write of partly written blocks.
    partial: Mutex<()>,
}

#[derive(Clone, Copy)]
struct Length {
    bytes: u64,
    /// Which of the two records is newer; the other one is written next.
    turn: u64,
}

impl std::fmt::Debug for RegionBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionBackend").field("layout", &self.layout).finish()
    }
}

impl RegionBackend {
    /// For a volume that is being made: the store begins empty.
    pub fn create(
        device: Arc<dyn BlockDevice>,
        layout: &Layout,
        aside: Arc<Aside>,
    ) -> Result<RegionBackend, OpenError> {
        device.discard(layout.meta_start, layout.meta_bytes)?;
        aside.own()?;
        let backend = RegionBackend::new(device, layout, aside, Length { bytes: 0, turn: 0 });
        for turn in 1..=2 {
            backend.write_length(Length { bytes: 0, turn })?;
        }
        backend.length.lock().turn = 2;
        backend.device.flush()?;
        Ok(backend)
    }

    pub fn open(device: Arc<dyn BlockDevice>, layout: &Layout, aside: Arc<Aside>) -> Result<RegionBackend, OpenError> {
        let mut newest: Option<Length> = None;
        for at in LENGTH_AT {
            let mut block = [0u8; BLOCK];
            device.read(at, &mut block)?;
            if let Some(length) = decode_length(&block) {
                newest = newest.filter(|known| known.turn > length.turn).or(Some(length));
            }
        }
        let most = layout.meta_bytes.saturating_mul(GROWN_MOST);
        let length = newest.filter(|length| (1..=most).contains(&length.bytes)).ok_or(OpenError::Length)?;
        aside.store_has(length.bytes);
        aside.own_again()?;
        Ok(RegionBackend::new(device, layout, aside, length))
    }

    fn new(device: Arc<dyn BlockDevice>, layout: &Layout, aside: Arc<Aside>, length: Length) -> RegionBackend {
        RegionBackend { device, aside, layout: *layout, length: Mutex::new(length), partial: Mutex::new(()) }
    }

    fn write_length(&self, length: Length) -> Result<(), crate::device::DeviceError> {
        let mut block = [0u8; BLOCK];
        block[..8].copy_from_slice(&LENGTH_MAGIC);
        block[8..16].copy_from_slice(&length.bytes.to_le_bytes());
        block[16..24].copy_from_slice(&length.turn.to_le_bytes());
        let crc = crc32fast::hash(&block[..24]);
        block[24..28].copy_from_slice(&crc.to_le_bytes());
        let [even, odd] = LENGTH_AT;
        self.device.write(if length.turn.is_multiple_of(2) { even } else { odd }, &block)
    }

    fn check(&self, offset: u64, bytes: usize) -> io::Result<()> {
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= self.layout.meta_bytes => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::StorageFull, "the metadata region is full")),
        }
    }

    /// The aligned range around an unaligned one, with its present content.
    fn around(&self, offset: u64, bytes: usize) -> io::Result<(u64, Vec<u8>)> {
        let first = offset / BLOCK64 * BLOCK64;
        let end = (offset + bytes as u64).div_ceil(BLOCK64) * BLOCK64;
        let mut buffer = vec![0; (end - first) as usize];
        self.read_blocks(first, &mut buffer)?;
        Ok((first, buffer))
    }

    /// Whole blocks, wherever they lie.
    fn read_blocks(&self, at: u64, mut out: &mut [u8]) -> io::Result<()> {
        for (offset, bytes) in self.layout.metadata(at, out.len() as u64) {
            let (part, rest) = std::mem::take(&mut out).split_at_mut(bytes as usize);
            self.device.read(offset, part)?;
            out = rest;
        }
        Ok(())
    }

    fn write_blocks(&self, at: u64, mut data: &[u8]) -> io::Result<()> {
        for (offset, bytes) in self.layout.metadata(at, data.len() as u64) {
            let (part, rest) = data.split_at(bytes as usize);
            self.device.write(offset, part)?;
            data = rest;
        }
        Ok(())
    }
}

fn decode_length(block: &[u8; BLOCK]) -> Option<Length> {
    let crc = u32::from_le_bytes(block[24..28].try_into().ok()?);
    if block[..8] != LENGTH_MAGIC || crc != crc32fast::hash(&block[..24]) {
        return None;
    }
    let mut reader = Reader(&block[8..24]);
    Some(Length { bytes: reader.u64()?, turn: reader.count()? })
}

fn is_aligned(offset: u64, bytes: usize) -> bool {
    offset.is_multiple_of(BLOCK64) && bytes.is_multiple_of(BLOCK)
}

#[allow(clippy::indexing_slicing, reason = "`around` reads at least the range that it was asked for")]
impl redb::StorageBackend for RegionBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.length.lock().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(offset, out.len())?;
        if is_aligned(offset, out.len()) {
            return self.read_blocks(offset, out);
        }
        let (first, buffer) = self.around(offset, out.len())?;
        let skip = (offset - first) as usize;
        out.copy_from_slice(&buffer[skip..skip + out.len()]);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let region_bytes = self.layout.meta_bytes;
        if bytes > region_bytes.saturating_mul(GROWN_MOST) {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the metadata region is full"));
        }
        let mut length = self.length.lock();
        // What is cut off must read as zeros should the file grow again.
        if bytes < length.bytes && bytes < region_bytes {
            let from = bytes.div_ceil(BLOCK64) * BLOCK64;
            let to = length.bytes.min(region_bytes) / BLOCK64 * BLOCK64;
            if from < to {
                let spans: Vec<(u64, u64)> = self.layout.metadata(from, to - from).collect();
                spans.iter().try_for_each(|(offset, bytes)| self.device.discard(*offset, *bytes))?;
                // Others on its host may have taken the space: then it is asked for again before the metadata grows.
                let allocate = |span: &(u64, u64)| self.device.allocate(span.0, span.1, Need::Server).is_ok();
                if !spans.iter().all(allocate) {
                    self.aside.store_was_cut(from);
                }
            }
        }
        self.aside.store_has(bytes);
        let next = Length { bytes, turn: length.turn + 1 };
        self.write_length(next)?;
        *length = next;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.device.flush()?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset, data.len())?;
        if is_aligned(offset, data.len()) {
            return self.write_blocks(offset, data);
        }
        let _guard = self.partial.lock();
        let (first, mut buffer) = self.around(offset, data.len())?;
        let skip = (offset - first) as usize;
        buffer[skip..skip + data.len()].copy_from_slice(data);
        self.write_blocks(first, &buffer)
    }
}

#[cfg(test)]
mod tests {
    use redb::StorageBackend;

    use super::*;
    use crate::testing::SparseDevice;

    #[test]
    fn store_that_became_shorter_keeps_its_space_on_a_host_that_others_fill() {
        let bytes = 2 << 30;
        let device = Arc::new(SparseDevice::new(bytes, 400 << 20));
        let layout = Layout::plan(bytes, [1; 16]).expect("a plan");
        let aside = Arc::new(Aside::new(device.clone(), layout));
        let backend = RegionBackend::create(device.clone(), &layout, aside).expect("room");
        backend.set_len(64 << 20).expect("it grows");
        backend.set_len(1 << 20).expect("it shrinks");
        device.fill_host();
        backend.set_len(64 << 20).expect("it grows again");
        let mut block = [1; BLOCK];
        backend.read(40 << 20, &mut block).expect("it is read");
        assert_eq!(block, [0; BLOCK]);
        backend.write(40 << 20, &[7; BLOCK]).expect("its space is still there");
    }
}
