//! Space that is set aside on the disk before it is written: no write that the file system depends on finds the disk's
//! host full.
//!
//! A disk may be sparse: its host has the space of a block only once it was written. Were that found out while a record
//! or a page of the metadata store is written, the whole server would fail. So space is asked for first, and only
//! whoever wants more of it hears `ENOSPC`:
//!
//! - head and log when the volume is opened, and of the metadata region twice what the store has ([`Aside::own`]); when
//!   the store grew, more is asked for before the next operation that needs metadata ([`Aside::metadata`]). A volume
//!   that was in use opens with less ([`Aside::own_again`]), or nobody could remove anything until somebody else makes
//!   room;
//! - data in chunks, or less when there is no more, before blocks of them are handed out ([`Aside::data`]).
//!
//! On a disk that has all its space this costs one request per chunk and life of the server.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::device::{BLOCK64, BlockDevice, DeviceError, Need};
use crate::error::Errno;
use crate::extents::Run;
use crate::layout::Layout;

/// Data blocks of which is known whether their space is set aside.
pub const PIECE_BLOCKS: u64 = 256;
/// Pieces that are asked for together, as long as the host has as much.
const CHUNK_PIECES: u64 = 16;
/// Metadata that is set aside beyond what the store has, if the region and the host have as much.
const META_BYTES_MORE: u64 = 128 << 20;
/// Less is too little: one checkpoint may add about as much.
const META_BYTES_LEAST: u64 = 96 << 20;

/// Halvings with which is found how much an earlier server set aside: what remains unknown is below a hundredth.
const META_TRIES: usize = 7;

pub struct Aside {
    device: Arc<dyn BlockDevice>,
    layout: Layout,
    /// Bytes from the start of the metadata region that are set aside, and that should be.
    meta: AtomicU64,
    meta_wanted: AtomicU64,
    store_bytes: AtomicU64,
    /// A bit for each piece of the data.
    pieces: Mutex<Vec<u64>>,
}

impl Aside {
    pub fn new(device: Arc<dyn BlockDevice>, layout: Layout) -> Aside {
        let (meta, meta_wanted, store_bytes) = Default::default();
        let words = layout.data_blocks.div_ceil(PIECE_BLOCKS).div_ceil(64) as usize;
        Aside { device, layout, meta, meta_wanted, store_bytes, pieces: Mutex::new(vec![0; words]) }
    }

    /// What a new volume cannot do without.
    pub fn own(&self) -> Result<(), DeviceError> {
        self.device.allocate(0, self.layout.meta_start, Need::Server)?;
        self.want_meta(META_BYTES_MORE);
        self.set_meta_aside(Need::Server)
    }

    /// As [`Aside::own`], for a volume that was in use. The servers before this one set aside what they needed, perhaps
    /// not all that they wanted. What is missing is missed by operations that make the metadata grow, and asked for
    /// with each of them.
    pub fn own_again(&self) -> Result<(), DeviceError> {
        match self.own() {
            Err(error) if error == NO_SPACE => (),
            done => return done,
        }
        self.device.allocate(0, self.layout.meta_start, Need::Server)?;
        let (mut has, mut lacks) = (self.least_meta(), self.meta_wanted.load(Ordering::Relaxed));
        if !self.try_meta(has)? {
            tracing::warn!("the disk's host is full: nothing can be made until it has room again");
            return Ok(());
        }
        for _ in 0..META_TRIES {
            let middle = has.midpoint(lacks) / BLOCK64 * BLOCK64;
            *if self.try_meta(middle)? { &mut has } else { &mut lacks } = middle;
        }
        Ok(())
    }

    /// Sets so much of the metadata region aside. `false`: the host has no room.
    fn try_meta(&self, bytes: u64) -> Result<bool, DeviceError> {
        match self.allocate_meta(0, bytes, Need::Server) {
            Ok(()) => _ = self.meta.fetch_max(bytes, Ordering::Relaxed),
            Err(error) if error == NO_SPACE => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// The metadata store has so many bytes now.
    pub fn store_has(&self, bytes: u64) {
        self.store_bytes.store(bytes, Ordering::Relaxed);
        self.want_meta(bytes.saturating_mul(2).max(bytes.saturating_add(META_BYTES_MORE)));
    }

    /// The store gave back everything from `bytes` on.
    pub fn store_was_cut(&self, bytes: u64) {
        self.meta.fetch_min(bytes, Ordering::Relaxed);
    }

    /// Room for an operation that makes the metadata grow.
    pub fn metadata(&self) -> Result<(), Errno> {
        self.set_meta_aside(Need::Users).or_else(|error| {
            let is_enough = self.meta.load(Ordering::Relaxed) >= self.least_meta();
            if error == NO_SPACE && is_enough { Ok(()) } else { Err(refused(error)) }
        })
    }

    fn least_meta(&self) -> u64 {
        self.store_bytes.load(Ordering::Relaxed).saturating_add(META_BYTES_LEAST).min(self.layout.meta_bytes)
    }

    fn want_meta(&self, bytes: u64) {
        self.meta_wanted.fetch_max(bytes.min(self.layout.meta_bytes), Ordering::Relaxed);
    }

    fn set_meta_aside(&self, need: Need) -> Result<(), DeviceError> {
        let (has, wanted) = (self.meta.load(Ordering::Relaxed), self.meta_wanted.load(Ordering::Relaxed));
        if has < wanted {
            self.allocate_meta(has, wanted - has, need)?;
            // Two may have asked for the same, which does no harm.
            self.meta.fetch_max(wanted, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Room for data in these blocks. A host that is nearly full may have no chunk any more, but a piece, or the few
    /// blocks that are wanted.
    pub fn data(&self, runs: &[Run], need: Need) -> Result<(), Errno> {
        for run in runs {
            for piece in run.start / PIECE_BLOCKS..(run.start + run.count).div_ceil(PIECE_BLOCKS) {
                if self.has_piece(piece) {
                    continue;
                }
                let chunk = piece / CHUNK_PIECES * CHUNK_PIECES;
                match self.pieces(chunk..chunk + CHUNK_PIECES, need) {
                    Err(Errno::NoSpace) => (),
                    done => {
                        done?;
                        continue;
                    }
                }
                match self.pieces(piece..piece + 1, need) {
                    Err(Errno::NoSpace) => (),
                    done => {
                        done?;
                        continue;
                    }
                }
                let first = run.start.max(piece * PIECE_BLOCKS);
                self.allocate(first, (run.start + run.count).min((piece + 1) * PIECE_BLOCKS), need)?;
            }
        }
        Ok(())
    }

    pub fn has_piece(&self, piece: u64) -> bool {
        self.pieces.lock().get((piece / 64) as usize).is_some_and(|word| word & (1 << (piece % 64)) != 0)
    }

    fn pieces(&self, pieces: Range<u64>, need: Need) -> Result<(), Errno> {
        self.allocate(pieces.start * PIECE_BLOCKS, (pieces.end * PIECE_BLOCKS).min(self.layout.data_blocks), need)?;
        let mut known = self.pieces.lock();
        for piece in pieces {
            if let Some(word) = known.get_mut((piece / 64) as usize) {
                *word |= 1 << (piece % 64);
            }
        }
        Ok(())
    }

    fn allocate(&self, first: u64, end: u64, need: Need) -> Result<(), Errno> {
        let mut spans = self.layout.data(first, end);
        spans.try_for_each(|(offset, bytes)| self.device.allocate(offset, bytes, need)).map_err(refused)
    }

    fn allocate_meta(&self, at: u64, bytes: u64, need: Need) -> Result<(), DeviceError> {
        self.layout.metadata(at, bytes).try_for_each(|(offset, bytes)| self.device.allocate(offset, bytes, need))
    }
}

/// As Linux numbers it.
const NO_SPACE: DeviceError = DeviceError(28);

/// That there is no room is no failure of the disk, and no word in the log.
fn refused(error: DeviceError) -> Errno {
    if error == NO_SPACE { Errno::NoSpace } else { error.into() }
}
