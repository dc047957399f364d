//! The store's file on a virtual disk, which has copies on several nodes.
//!
//! | blocks | what |
//! |---|---|
//! | 0, 1 | head, in turn: how long the file is, and how far the disk was ever written |
//! | from 2 on | the file |
//!
//! What is written stays here until it is synced, as in the page cache of a host, and goes to the disk together then.
//! So a server that dies takes along what was not synced, which the store does not rely on. The length is another
//! matter: where the file ends may have anything behind it, so a head is on the medium before anything is written
//! behind the earlier end, and what a shorter file left there is cleared before the file has it again.
//!
//! The disk takes changes from the newest server alone (`docs/design/placement.md`). Who is refused has a successor: it
//! answers nothing more and ends.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use libvos::{DiskClient, Durability, Need};
use parking_lot::Mutex;
use redb::StorageBackend;
use rustix::io::Errno;
use vos_api::disk::BLOCK_BYTES;
use vos_rt::{Failure, Handle};

const BLOCK: u64 = BLOCK_BYTES as u64;
const HEADS: u64 = 2;
const MAGIC: [u8; 8] = *b"dvs-ds\0\x01";
/// Magic, number, length, how far it was written, CRC32 of these.
const HEAD_BYTES: usize = 36;
/// Of what is not synced: more goes to the disk before.
const PENDING_BLOCKS_MAX: usize = 4096;
/// Of one write.
const RUN_BLOCKS_MAX: usize = 256;

/// What the file lies on, in blocks.
pub trait Blocks: fmt::Debug + Send + Sync {
    fn bytes(&self) -> u64;
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// In no order.
    fn write_together(&self, writes: &[(u64, &[u8])]) -> io::Result<()>;
    /// What was written before survives loss of power.
    fn flush(&self) -> io::Result<()>;
    /// `ENOSPC` now instead of at a write.
    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()>;
    /// The range reads as zeros.
    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()>;
}

/// A disk of the container.
#[derive(Clone)]
pub struct StoreDisk {
    client: DiskClient,
    bytes: u64,
    handle: Handle,
}

impl StoreDisk {
    /// `handle`: of the server that is to end when the disk refuses it.
    pub fn open(client: DiskClient, handle: Handle) -> Result<StoreDisk, Failure> {
        match client.info() {
            Ok(info) => Ok(StoreDisk { client, bytes: info.bytes, handle }),
            Err(errno) => Err(client.session().fenced().map_or_else(|| errno.into(), Failure::from)),
        }
    }

    /// For how long, from when this was called, no other server is served.
    pub fn hold(&self) -> io::Result<Duration> {
        self.answered(self.client.hold())
    }

    fn answered<T>(&self, answer: Result<T, Errno>) -> io::Result<T> {
        if let Err(Errno::STALE) = answer {
            tracing::error!("the disk refuses this server, which has a successor: ending");
            self.handle.cut();
        }
        Ok(answer?)
    }
}

impl fmt::Debug for StoreDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreDisk").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Blocks for StoreDisk {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.answered(self.client.read_into(offset, out))
    }

    fn write_together(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
        self.answered(self.client.write_together(writes, Durability::Server))
    }

    fn flush(&self) -> io::Result<()> {
        self.answered(self.client.flush())
    }

    fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        match self.client.allocate(offset, bytes, Need::Users) {
            // Its host cannot: a write may fail there.
            Err(Errno::OPNOTSUPP) => Ok(()),
            answer => self.answered(answer),
        }
    }

    fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.answered(self.client.discard(offset, bytes))
    }
}

/// Clones are the same file.
#[derive(Clone, Debug)]
pub struct DiskFile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    blocks: Box<dyn Blocks>,
    head: Mutex<Head>,
    unsynced: Mutex<Unsynced>,
    syncing: Mutex<()>,
}

/// By the number of the block in the file.
type Kept = BTreeMap<u64, Arc<[u8]>>;

#[derive(Debug, Default)]
struct Unsynced {
    pending: Kept,
    /// On the way to the disk; still here, because it is not there yet.
    leaving: Kept,
}

impl DiskFile {
    /// The file on `blocks`, which have none if they were never written.
    pub fn open(blocks: impl Blocks + 'static) -> io::Result<DiskFile> {
        let mut heads = vec![0; (HEADS * BLOCK) as usize];
        blocks.read(0, &mut heads)?;
        let head = Head::newest(&heads).ok_or_else(|| io::Error::other("the disk of the store has no sound head"))?;
        let (unsynced, syncing) = Default::default();
        Ok(DiskFile {
            shared: Arc::new(Shared { blocks: Box::new(blocks), head: Mutex::new(head), unsynced, syncing }),
        })
    }
}

impl Shared {
    /// The blocks in which a range of the file is.
    fn blocks_of(offset: u64, bytes: usize) -> Range<u64> {
        let end = offset.saturating_add(bytes as u64);
        offset / BLOCK..end.div_ceil(BLOCK)
    }

    fn demand_within(&self, offset: u64, bytes: usize) -> io::Result<()> {
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.head.lock().length);
        end.map(drop).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Whole blocks of the file.
    fn fetch(&self, blocks: Range<u64>) -> io::Result<Vec<u8>> {
        let count = usize::try_from(blocks.end - blocks.start).map_err(io::Error::other)?;
        let mut bytes = vec![0; count * BLOCK as usize];
        // What is not on the disk yet is looked at first: what leaves meanwhile is there before it is gone here.
        let known: Vec<(u64, Arc<[u8]>)> = {
            let unsynced = self.unsynced.lock();
            let of = |kept: &Kept| kept.range(blocks.clone()).map(|(at, block)| (*at, Arc::clone(block))).collect();
            let (mut leaving, pending): (Vec<_>, Vec<_>) = (of(&unsynced.leaving), of(&unsynced.pending));
            leaving.extend(pending);
            leaving
        };
        let is_known = |at: u64| known.iter().any(|(one, _)| *one == at);
        if !blocks.clone().all(is_known) {
            self.blocks.read((blocks.start + HEADS) * BLOCK, &mut bytes)?;
        }
        for (at, block) in known {
            let from = ((at - blocks.start) * BLOCK) as usize;
            let place = bytes.get_mut(from..from + BLOCK as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
            place.copy_from_slice(&block);
        }
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let blocks = Shared::blocks_of(offset, data.len());
        let into = (offset - blocks.start * BLOCK) as usize;
        let is_whole = into == 0 && (data.len() as u64).is_multiple_of(BLOCK);
        let mut bytes = if is_whole { vec![0; data.len()] } else { self.fetch(blocks.clone())? };
        bytes.get_mut(into..into + data.len()).ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        let many = {
            let mut unsynced = self.unsynced.lock();
            unsynced.pending.extend(blocks.zip(bytes.chunks(BLOCK as usize).map(Arc::from)));
            unsynced.pending.len()
        };
        if many > PENDING_BLOCKS_MAX { self.settle() } else { Ok(()) }
    }

    /// Everything that was written is on the disk, whatever becomes of this server.
    fn settle(&self) -> io::Result<()> {
        let _one = self.syncing.lock();
        let leaving = {
            let mut unsynced = self.unsynced.lock();
            unsynced.leaving = std::mem::take(&mut unsynced.pending);
            unsynced.leaving.clone()
        };
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        for (at, block) in leaving {
            let offset = (at + HEADS) * BLOCK;
            match runs.last_mut() {
                Some((first, run))
                    if *first + run.len() as u64 == offset && run.len() < RUN_BLOCKS_MAX * block.len() =>
                {
                    run.extend_from_slice(&block);
                }
                _ => runs.push((offset, block.to_vec())),
            }
        }
        let writes: Vec<(u64, &[u8])> = runs.iter().map(|(offset, run)| (*offset, run.as_slice())).collect();
        let written = self.blocks.write_together(&writes);
        // After a failure the store is opened again, from what is on the disk: as after a loss of power.
        let mut unsynced = self.unsynced.lock();
        unsynced.leaving.clear();
        if written.is_err() {
            unsynced.pending.clear();
        }
        written
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let _one = self.syncing.lock();
        let mut head = self.head.lock();
        let room = self.blocks.bytes().saturating_sub(HEADS * BLOCK);
        if length > room {
            return Err(Errno::NOSPC.into());
        }
        let (old, new) = (head.length.div_ceil(BLOCK), length.div_ceil(BLOCK));
        // A file that was longer once left something here. What is cleared has no space any more.
        let soiled = head.length..length.min(head.written);
        if soiled.start < soiled.end {
            self.clear(soiled)?;
            self.blocks.flush()?;
        }
        if new > old {
            self.blocks.allocate((old + HEADS) * BLOCK, (new - old) * BLOCK)?;
        }
        let next = Head { number: head.number + 1, length, written: head.written.max(length) };
        let (place, bytes) = ((next.number % HEADS) * BLOCK, next.to_block());
        self.blocks.write_together(&[(place, &bytes)])?;
        self.blocks.flush()?;
        *head = next;
        self.unsynced.lock().pending.split_off(&new);
        if new < old {
            // What it does not need any more; it is cleared anyhow before the file has it again.
            let _ = self.blocks.clear((new + HEADS) * BLOCK, (old - new) * BLOCK);
        }
        Ok(())
    }

    /// Within the block where the file ends by itself, then all others.
    fn clear(&self, range: Range<u64>) -> io::Result<()> {
        let first_whole = range.start.next_multiple_of(BLOCK);
        if range.start < first_whole {
            let at = range.start / BLOCK;
            let mut block = self.fetch(at..at + 1)?;
            block.iter_mut().skip((range.start % BLOCK) as usize).for_each(|byte| *byte = 0);
            self.blocks.write_together(&[((at + HEADS) * BLOCK, &block)])?;
            self.unsynced.lock().pending.insert(at, Arc::from(block));
        }
        let end = range.end.next_multiple_of(BLOCK);
        if first_whole < end {
            self.blocks.clear(first_whole + HEADS * BLOCK, end - first_whole)?;
        }
        Ok(())
    }
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.shared.head.lock().length)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.shared.demand_within(offset, out.len())?;
        let blocks = Shared::blocks_of(offset, out.len());
        let from = (offset - blocks.start * BLOCK) as usize;
        let bytes = self.shared.fetch(blocks)?;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.shared.settle()?;
        self.shared.blocks.flush()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.shared.demand_within(offset, data.len())?;
        self.shared.write(offset, data)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Head {
    /// Rises with each; of two sound ones the higher counts.
    number: u64,
    length: u64,
    /// Behind it the disk has zeros.
    written: u64,
}

impl Head {
    /// `None`: something is there that is none.
    fn newest(blocks: &[u8]) -> Option<Head> {
        let sound = blocks.chunks(BLOCK as usize).filter_map(Head::from_block).max_by_key(|head| head.number);
        sound.or_else(|| blocks.iter().all(|byte| *byte == 0).then(Head::default))
    }

    fn to_block(self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK as usize);
        block.extend_from_slice(&MAGIC);
        [self.number, self.length, self.written].iter().for_each(|word| block.extend_from_slice(&word.to_le_bytes()));
        block.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
        block.resize(BLOCK as usize, 0);
        block
    }

    fn from_block(block: &[u8]) -> Option<Head> {
        let (said, sum) = block.get(..HEAD_BYTES)?.split_at(HEAD_BYTES - 4);
        let words: Vec<u64> = said
            .get(MAGIC.len()..)?
            .chunks_exact(8)
            .map(|word| word.try_into().map(u64::from_le_bytes))
            .collect::<Result<_, _>>()
            .ok()?;
        let is_sound = said.starts_with(&MAGIC) && sum == crc32fast::hash(said).to_le_bytes();
        match *words {
            [number, length, written] if is_sound && length <= written => Some(Head { number, length, written }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A disk that loses power: what was not flushed is there, or not, block by block.
    #[derive(Clone, Debug)]
    struct Memory(Arc<Mutex<(Vec<u8>, Vec<u8>)>>);

    const BYTES: usize = 64 * BLOCK as usize;

    impl Memory {
        fn new() -> Memory {
            Memory(Arc::new(Mutex::new((vec![0; BYTES], vec![0; BYTES]))))
        }

        /// `keeps`: blocks that were on their way to the medium and arrived.
        fn lose_power(&self, keeps: impl Fn(usize) -> bool) {
            let (now, durable) = &mut *self.0.lock();
            for (at, (new, old)) in now.chunks_mut(BLOCK as usize).zip(durable.chunks_mut(BLOCK as usize)).enumerate() {
                if keeps(at) { old.copy_from_slice(new) } else { new.copy_from_slice(old) }
            }
        }
    }

    impl Blocks for Memory {
        fn bytes(&self) -> u64 {
            BYTES as u64
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            out.copy_from_slice(&self.0.lock().0[offset as usize..offset as usize + out.len()]);
            Ok(())
        }

        fn write_together(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
            for (offset, data) in writes {
                self.0.lock().0[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
            }
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            self.lose_power(|_| true);
            Ok(())
        }

        fn allocate(&self, offset: u64, bytes: u64) -> io::Result<()> {
            if offset + bytes > BYTES as u64 { Err(Errno::NOSPC.into()) } else { Ok(()) }
        }

        fn clear(&self, offset: u64, bytes: u64) -> io::Result<()> {
            self.write_together(&[(offset, &vec![0; bytes as usize])])
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// Against a file in memory, over restarts and losses of power.
    #[test]
    fn file_is_what_was_synced_and_what_is_new_of_it_reads_as_zeros() {
        for seed in 0..300 {
            let mut state = seed;
            let memory = Memory::new();
            let mut store = DiskFile::open(memory.clone()).unwrap();
            // Those that may be found after a loss of power: as of the last sync, and what left since. Which blocks
            // were changed since.
            let (mut file, mut left, mut changed) = (Vec::new(), vec![Vec::new()], BTreeSet::new());
            for _ in 0..60 {
                match random(&mut state) % 8 {
                    0 => {
                        let length = (random(&mut state) % (62 * BLOCK)) as usize;
                        store.set_len(length as u64).unwrap();
                        // What is in the block of the end may leave with it.
                        left.push(file.clone());
                        let blocks = |length: usize| length as u64 / BLOCK;
                        changed.extend(blocks(length.min(file.len()))..=blocks(length.max(file.len())));
                        file.resize(length, 0);
                        // A length is durable at once.
                        left.iter_mut().for_each(|one| one.resize(length, 0));
                    }
                    1 => {
                        store.sync_data().unwrap();
                        (left, changed) = (vec![file.clone()], BTreeSet::new());
                    }
                    7 => {
                        store.shared.settle().unwrap();
                        left.push(file.clone());
                    }
                    2 => {
                        memory.lose_power(|at| (at as u64 + seed).is_multiple_of(3));
                        store = DiskFile::open(memory.clone()).unwrap();
                        let mut now = vec![0; file.len()];
                        store.read(0, &mut now).unwrap();
                        for (at, byte) in now.iter().enumerate() {
                            let is_changed = changed.contains(&(at as u64 / BLOCK));
                            let is_known = left[0][at] == *byte
                                || is_changed && (*byte == 0 || left.iter().any(|one| one[at] == *byte));
                            assert!(is_known, "{seed}: byte {at}");
                        }
                        (file, left, changed) = (now.clone(), vec![now], BTreeSet::new());
                    }
                    _ if file.is_empty() => (),
                    what => {
                        let at = random(&mut state) as usize % file.len();
                        let most = (file.len() - at).min(3 * BLOCK as usize);
                        let bytes = random(&mut state) as usize % (most + 1);
                        if what < 6 {
                            let data = vec![random(&mut state) as u8; bytes];
                            store.write(at as u64, &data).unwrap();
                            file[at..at + bytes].copy_from_slice(&data);
                            changed.extend(at as u64 / BLOCK..=(at + bytes) as u64 / BLOCK);
                        }
                        let mut read = vec![0; bytes];
                        store.read(at as u64, &mut read).unwrap();
                        assert!(read == file[at..at + bytes], "{seed}");
                    }
                }
                assert_eq!(store.len().unwrap(), file.len() as u64);
            }
        }
    }

    #[test]
    fn what_is_behind_the_end_cannot_be_read_and_a_full_disk_says_so() {
        let store = DiskFile::open(Memory::new()).unwrap();
        store.set_len(100).unwrap();
        assert!(store.read(90, &mut [0; 11]).is_err() && store.write(101, &[]).is_err());
        assert!(store.write(u64::MAX, &[1]).is_err());
        let full = store.set_len(BYTES as u64).unwrap_err();
        assert_eq!(Errno::from_io_error(&full), Some(Errno::NOSPC));
        assert_eq!(store.len().unwrap(), 100);
    }

    #[test]
    fn head_that_is_torn_is_passed_over_and_a_disk_of_something_else_is_refused() {
        let memory = Memory::new();
        let store = DiskFile::open(memory.clone()).unwrap();
        store.set_len(5000).unwrap();
        store.set_len(6000).unwrap();
        let place = 2 % HEADS * BLOCK;
        memory.write_together(&[(place, &[7; 100])]).unwrap();
        assert_eq!(DiskFile::open(memory.clone()).unwrap().len().unwrap(), 5000);
        memory.write_together(&[(0, &[7; 100]), (BLOCK, &[7; 100])]).unwrap();
        assert!(DiskFile::open(memory).is_err());
    }
}
