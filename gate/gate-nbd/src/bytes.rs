//! Any range of a store that has whole blocks.
//!
//! A block that is written in part is read first; nobody writes meanwhile, or what he wrote would be undone.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::io::Errno;

use crate::store::{BegunRead, BegunWrite, BlockStore, STORE_BLOCK_BYTES, WriteRoom};

const ZEROS: [u8; STORE_BLOCK_BYTES as usize] = [0; STORE_BLOCK_BYTES as usize];
/// Of the memory that all clients share.
const PATIENT_BYTES_MAX: u64 = 16 << 20;
/// Many blocks of zeros, in one write.
static PIECE: [u8; 1 << 20] = [0; 1 << 20];

/// May zeros take no space?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holes {
    Allowed,
    Refused,
}

pub struct ByteStore {
    store: Box<dyn BlockStore>,
    /// Written by who changes a part of a block, read by who changes whole ones.
    parts: RwLock<()>,
    /// Held by those who wait for their clients.
    patient_bytes: AtomicU64,
}

/// Room for a write of whole blocks. Nobody changes a part of a block meanwhile: it waits for no client for long.
pub struct WholeRoom<'a> {
    room: Box<dyn WriteRoom<'a> + 'a>,
    whole: RwLockReadGuard<'a, ()>,
}

impl<'a> WholeRoom<'a> {
    pub fn room(&mut self) -> &mut (dyn WriteRoom<'a> + 'a) {
        &mut *self.room
    }

    pub fn begin(self, offset: u64) -> Result<WholeWrite<'a>, Errno> {
        Ok(WholeWrite { write: self.room.begin(offset)?, _whole: self.whole })
    }
}

/// A write of whole blocks that is under way.
pub struct WholeWrite<'a> {
    write: Box<dyn BegunWrite + 'a>,
    _whole: RwLockReadGuard<'a, ()>,
}

impl WholeWrite<'_> {
    pub fn is_done(&self) -> bool {
        self.write.is_done()
    }

    pub fn finish(self) -> Result<(), Errno> {
        self.write.finish()
    }
}

/// See [`ByteStore::patience`]; it is over when this is dropped.
pub struct Patience<'a> {
    shared: &'a AtomicU64,
    bytes: u64,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        self.shared.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A range, cut at the borders of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    /// ByteStore before the first border; all of them, when the range has none.
    head: u64,
    middle: u64,
    tail: u64,
}

fn cut(offset: u64, bytes: u64) -> Cut {
    let head = (offset.next_multiple_of(STORE_BLOCK_BYTES) - offset).min(bytes);
    let middle = (bytes - head) / STORE_BLOCK_BYTES * STORE_BLOCK_BYTES;
    Cut { head, middle, tail: bytes - head - middle }
}

impl ByteStore {
    pub fn new(store: Box<dyn BlockStore>) -> ByteStore {
        ByteStore { store, parts: RwLock::new(()), patient_bytes: AtomicU64::new(0) }
    }

    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        let Cut { head, middle, tail } = cut(offset, into.len() as u64);
        if head == 0 && tail == 0 {
            return if middle == 0 { Ok(()) } else { self.store.read(offset, into) };
        }
        let (first, rest) = into.split_at_mut_checked(head as usize).ok_or(Errno::INVAL)?;
        let (whole, last) = rest.split_at_mut_checked(middle as usize).ok_or(Errno::INVAL)?;
        self.read_part(offset, first)?;
        if middle > 0 {
            self.store.read(offset + head, whole)?;
        }
        self.read_part(offset + head + middle, last)
    }

    pub fn begun_bytes_max(&self) -> u32 {
        self.store.begun_bytes_max()
    }

    /// Of whole blocks.
    pub fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<Box<dyn BegunRead>>, Errno> {
        self.store.begin_read(offset, bytes)
    }

    /// Of whole blocks. `None`: there is none at the moment, or somebody is to change a part of a block.
    pub fn write_room(&self, bytes: u32) -> Result<Option<WholeRoom<'_>>, Errno> {
        // Whoever has writes under way already would wait for who waits for those.
        let Some(whole) = self.parts.try_read() else { return Ok(None) };
        Ok(self.store.write_room(bytes)?.map(|room| WholeRoom { room, whole }))
    }

    /// A share of the room for requests, for who waits for a client and has so much of it; others are left the most of
    /// it. `None`: give it back first.
    pub fn patience(&self, bytes: u64) -> Option<Patience<'_>> {
        let shared = &self.patient_bytes;
        let add = |now: u64| now.checked_add(bytes).filter(|now| *now <= PATIENT_BYTES_MAX);
        shared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok().then_some(Patience { shared, bytes })
    }

    /// Inside one block.
    fn read_part(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if into.is_empty() {
            return Ok(());
        }
        let mut block = ZEROS;
        let at = (offset % STORE_BLOCK_BYTES) as usize;
        self.store.read(offset - at as u64, &mut block)?;
        into.copy_from_slice(block.get(at..at + into.len()).ok_or(Errno::INVAL)?);
        Ok(())
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Cut { head, middle, tail } = cut(offset, data.len() as u64);
        if head == 0 && tail == 0 {
            let _whole = self.parts.read();
            return if middle == 0 { Ok(()) } else { self.store.write(offset, data) };
        }
        let _parts = self.parts.write();
        let (first, rest) = data.split_at_checked(head as usize).ok_or(Errno::INVAL)?;
        let (whole, last) = rest.split_at_checked(middle as usize).ok_or(Errno::INVAL)?;
        self.write_part(offset, first)?;
        if middle > 0 {
            self.store.write(offset + head, whole)?;
        }
        self.write_part(offset + head + middle, last)
    }

    /// As [`ByteStore::write`]; it survives loss of power.
    pub fn write_through(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let Cut { head, middle, tail } = cut(offset, data.len() as u64);
        if head == 0 && tail == 0 && middle > 0 {
            let _whole = self.parts.read();
            return self.store.write_through(offset, data);
        }
        self.write(offset, data)?;
        self.flush()
    }

    /// Inside one block; nobody else writes.
    fn write_part(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if data.is_empty() {
            return Ok(());
        }
        let mut block = ZEROS;
        let at = (offset % STORE_BLOCK_BYTES) as usize;
        self.store.read(offset - at as u64, &mut block)?;
        block.get_mut(at..at + data.len()).ok_or(Errno::INVAL)?.copy_from_slice(data);
        self.store.write(offset - at as u64, &block)
    }

    /// A wish: blocks that lie in the range as a whole become zeros.
    pub fn trim(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let Cut { head, middle, .. } = cut(offset, bytes);
        if middle == 0 {
            return Ok(());
        }
        let _whole = self.parts.read();
        self.store.discard(offset + head, middle)
    }

    pub fn zero(&self, offset: u64, bytes: u64, holes: Holes) -> Result<(), Errno> {
        let Cut { head, middle, tail } = cut(offset, bytes);
        let _parts = self.parts.write();
        let zeros = |bytes: u64| ZEROS.get(..bytes as usize).ok_or(Errno::INVAL);
        self.write_part(offset, zeros(head)?)?;
        self.write_part(offset + head + middle, zeros(tail)?)?;
        if middle == 0 {
            return Ok(());
        }
        self.store.discard(offset + head, middle)?;
        if holes == Holes::Allowed {
            return Ok(());
        }
        match self.store.allocate(offset + head, middle) {
            Err(Errno::OPNOTSUPP) => {
                let pieces = (0..middle).step_by(PIECE.len());
                pieces.into_iter().try_for_each(|at| {
                    let zeros = PIECE.get(..(middle - at) as usize).unwrap_or(&PIECE);
                    self.store.write(offset + head + at, zeros)
                })
            }
            done => done,
        }
    }

    pub fn flush(&self) -> Result<(), Errno> {
        self.store.flush()
    }

    /// Of a range, one after the other: how many bytes, and whether they may be other than zeros. `most` of them.
    pub fn pieces(&self, offset: u64, bytes: u64, most: usize) -> Vec<(u64, bool)> {
        let (mut at, end) = (offset, offset + bytes);
        let from = at / STORE_BLOCK_BYTES * STORE_BLOCK_BYTES;
        let whole = end.next_multiple_of(STORE_BLOCK_BYTES) - from;
        let (data, until) = self.store.data_in(from, whole, most);
        let mut pieces: Vec<(u64, bool)> = Vec::new();
        let mut put = |to: u64, is_data: bool| {
            let to = to.min(end);
            if to > at && pieces.len() < most {
                pieces.push((to - at, is_data));
                at = to;
            }
        };
        for (first, last) in data {
            put(first, false);
            put(last, true);
        }
        put(until, false);
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::MemoryStore;

    const BLOCK: usize = STORE_BLOCK_BYTES as usize;

    const BLOCKS: usize = 6;
    const SIZE: usize = BLOCKS * BLOCK;

    #[derive(Clone, Debug)]
    enum Step {
        Write { at: usize, bytes: usize, fill: u8 },
        Zero { at: usize, bytes: usize, holes: bool },
        Trim { at: usize, bytes: usize },
    }

    fn range() -> impl Strategy<Value = (usize, usize)> {
        (0..SIZE).prop_flat_map(|at| (Just(at), 0..=SIZE - at))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (range(), 1..=255_u8).prop_map(|((at, bytes), fill)| Step::Write { at, bytes, fill }),
            (range(), any::<bool>()).prop_map(|((at, bytes), holes)| Step::Zero { at, bytes, holes }),
            range().prop_map(|(at, bytes)| Step::Trim { at, bytes }),
        ]
    }

    proptest! {
        #[test]
        fn any_range_is_as_in_plain_memory(steps in prop::collection::vec(step(), 1..20), looks in prop::collection::vec(range(), 1..8)) {
            let bytes = ByteStore::new(Box::new(MemoryStore::of_blocks(BLOCKS)));
            let mut model = vec![0_u8; SIZE];
            for step in steps {
                match step {
                    Step::Write { at, bytes: count, fill } => {
                        bytes.write(at as u64, &vec![fill; count]).unwrap();
                        model[at..at + count].fill(fill);
                    }
                    Step::Zero { at, bytes: count, holes } => {
                        let holes = if holes { Holes::Allowed } else { Holes::Refused };
                        bytes.zero(at as u64, count as u64, holes).unwrap();
                        model[at..at + count].fill(0);
                    }
                    Step::Trim { at, bytes: count } => {
                        bytes.trim(at as u64, count as u64).unwrap();
                        let (first, end) = (at.next_multiple_of(BLOCK), (at + count) / BLOCK * BLOCK);
                        if first < end {
                            model[first..end].fill(0);
                        }
                    }
                }
            }
            for (at, count) in looks {
                let mut seen = vec![0xee; count];
                bytes.read(at as u64, &mut seen).unwrap();
                prop_assert_eq!(&seen, &model[at..at + count]);
                let pieces = bytes.pieces(at as u64, count as u64, usize::MAX);
                prop_assert_eq!(pieces.iter().map(|piece| piece.0).sum::<u64>(), count as u64);
                let mut from = at;
                for (length, is_data) in pieces {
                    prop_assert!(length > 0);
                    prop_assert!(is_data || model[from..from + length as usize].iter().all(|byte| *byte == 0));
                    from += length as usize;
                }
            }
        }
    }
}
