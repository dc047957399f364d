//! Devices for tests: memory, a recorder of everything that was written and flushed, one that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::Mutex;

use crate::device::{BLOCK, BLOCK64, BlockDevice, DeviceError, Need};

const EIO: DeviceError = DeviceError(5);
const ENOSPC: DeviceError = DeviceError(28);
const EINVAL: DeviceError = DeviceError(22);

type Blocks = BTreeMap<u64, Arc<[u8]>>;

/// Blocks in memory; those never written are zero. Cloning is cheap enough to keep one per crash point.
#[derive(Default)]
pub struct MemoryDevice {
    bytes: u64,
    blocks: Mutex<Blocks>,
}

impl MemoryDevice {
    pub fn new(bytes: u64) -> MemoryDevice {
        MemoryDevice { bytes, blocks: Mutex::default() }
    }

    fn of(bytes: u64, blocks: Blocks) -> MemoryDevice {
        MemoryDevice { bytes, blocks: Mutex::new(blocks) }
    }

    /// Inverts one byte.
    #[allow(clippy::indexing_slicing, reason = "a remainder is below the bytes of a block")]
    pub fn damage(&self, offset: u64) {
        let mut blocks = self.blocks.lock();
        let block = blocks.entry(offset / BLOCK64).or_insert_with(|| vec![0; BLOCK].into());
        let mut bytes = block.to_vec();
        bytes[(offset % BLOCK64) as usize] ^= 0xff;
        *block = bytes.into();
    }

    fn check(&self, offset: u64, bytes: usize) -> Result<(), DeviceError> {
        let is_aligned = offset.is_multiple_of(BLOCK64) && bytes.is_multiple_of(BLOCK);
        let is_inside = offset.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes);
        if is_aligned && is_inside { Ok(()) } else { Err(EINVAL) }
    }
}

fn put(blocks: &mut Blocks, offset: u64, data: impl IntoIterator<Item = Arc<[u8]>>) {
    for (at, block) in (offset / BLOCK64..).zip(data) {
        blocks.insert(at, block);
    }
}

fn split(data: &[u8]) -> Vec<Arc<[u8]>> {
    data.chunks_exact(BLOCK).map(Arc::from).collect()
}

fn wipe(blocks: &mut Blocks, offset: u64, bytes: u64) {
    for block in blocks.range(offset / BLOCK64..(offset + bytes) / BLOCK64).map(|(at, _)| *at).collect::<Vec<_>>() {
        blocks.remove(&block);
    }
}

impl BlockDevice for MemoryDevice {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, out.len())?;
        let blocks = self.blocks.lock();
        for (index, part) in out.chunks_exact_mut(BLOCK).enumerate() {
            match blocks.get(&(offset / BLOCK64 + index as u64)) {
                Some(block) => part.copy_from_slice(block),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.check(offset, data.len())?;
        put(&mut self.blocks.lock(), offset, split(data));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.check(offset, bytes as usize)?;
        wipe(&mut self.blocks.lock(), offset, bytes);
        Ok(())
    }
}

/// One thing that happened to a [`Recorder`].
#[derive(Clone)]
pub enum Step {
    Write {
        offset: u64,
        blocks: Vec<Arc<[u8]>>,
    },
    Discard {
        offset: u64,
        bytes: u64,
    },
    Flush,
    /// Something the test noted.
    Note(u64),
}

/// Memory that remembers every step, so that every crash can be tried afterwards.
pub struct Recorder {
    memory: MemoryDevice,
    steps: Mutex<Vec<Step>>,
}

impl Recorder {
    pub fn new(bytes: u64) -> Recorder {
        Recorder { memory: MemoryDevice::new(bytes), steps: Mutex::default() }
    }

    pub fn note(&self, number: u64) {
        self.steps.lock().push(Step::Note(number));
    }

    pub fn steps(&self) -> Vec<Step> {
        self.steps.lock().clone()
    }
}

impl BlockDevice for Recorder {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        let mut steps = self.steps.lock();
        self.memory.write(offset, data)?;
        steps.push(Step::Write { offset, blocks: split(data) });
        Ok(())
    }

    /// In their order one time, in the opposite order the next: a death between two finds either there without the
    /// other.
    fn write_together(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        let mut writes = writes.to_vec();
        if !self.steps.lock().len().is_multiple_of(2) {
            writes.reverse();
        }
        writes.iter().try_for_each(|(offset, data)| self.write(*offset, data))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.steps.lock().push(Step::Flush);
        Ok(())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let mut steps = self.steps.lock();
        self.memory.discard(offset, bytes)?;
        steps.push(Step::Discard { offset, bytes });
        Ok(())
    }
}

/// What a volume may hold after a crash that follows `steps`: everything before the last flush, and of what came after
/// it each block for which `survives` says so, in the order of the writes. (A block that is written twice keeps the
/// newest surviving content: which is every order a device may choose, over enough seeds.)
pub fn after_crash(bytes: u64, steps: &[Step], mut survives: impl FnMut() -> bool) -> MemoryDevice {
    let flushed = steps.iter().rposition(|step| matches!(step, Step::Flush)).map_or(0, |at| at + 1);
    let mut blocks = Blocks::new();
    for (at, step) in steps.iter().enumerate() {
        let mut is_kept = || at < flushed || survives();
        match step {
            Step::Write { offset, blocks: data } => {
                for (index, block) in data.iter().enumerate() {
                    if is_kept() {
                        put(&mut blocks, offset + index as u64 * BLOCK64, [block.clone()]);
                    }
                }
            }
            Step::Discard { offset, bytes } if is_kept() => wipe(&mut blocks, *offset, *bytes),
            _ => (),
        }
    }
    MemoryDevice::of(bytes, blocks)
}

/// Memory on a host that has room for a part of it: blocks take room when they are written or set aside.
pub struct SparseDevice {
    memory: MemoryDevice,
    taken: Mutex<std::collections::BTreeSet<u64>>,
    /// Blocks for which the host has room altogether.
    room: AtomicI64,
}

impl SparseDevice {
    pub fn new(bytes: u64, room_bytes: u64) -> SparseDevice {
        let device =
            SparseDevice { memory: MemoryDevice::new(bytes), taken: Mutex::default(), room: AtomicI64::new(0) };
        device.set_room(room_bytes);
        device
    }

    pub fn set_room(&self, bytes: u64) {
        self.room.store((bytes / BLOCK64) as i64, Ordering::SeqCst);
    }

    /// Somebody else takes what the host has left.
    pub fn fill_host(&self) {
        let taken = self.taken.lock().len();
        self.room.store(taken as i64, Ordering::SeqCst);
    }

    fn take(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let mut taken = self.taken.lock();
        let blocks = offset / BLOCK64..(offset + bytes) / BLOCK64;
        let fresh: Vec<u64> = blocks.filter(|block| !taken.contains(block)).collect();
        // As ever when room was taken away meanwhile: what needs no more of it succeeds.
        if !fresh.is_empty() && (taken.len() + fresh.len()) as i64 > self.room.load(Ordering::SeqCst) {
            return Err(ENOSPC);
        }
        taken.extend(fresh);
        Ok(())
    }
}

impl BlockDevice for SparseDevice {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.take(offset, data.len() as u64)?;
        self.memory.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate(&self, offset: u64, bytes: u64, _need: Need) -> Result<(), DeviceError> {
        self.take(offset, bytes)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let mut taken = self.taken.lock();
        (offset / BLOCK64..(offset + bytes) / BLOCK64).for_each(|block| _ = taken.remove(&block));
        self.memory.discard(offset, bytes)
    }
}

/// Memory that can be told to refuse.
pub struct FailingDevice {
    memory: MemoryDevice,
    /// Writes and flushes that still succeed; negative: no limit.
    left: AtomicI64,
    pub fails_reads: AtomicBool,
}

impl FailingDevice {
    pub fn new(bytes: u64) -> FailingDevice {
        FailingDevice {
            memory: MemoryDevice::new(bytes),
            left: AtomicI64::new(-1),
            fails_reads: AtomicBool::new(false),
        }
    }

    pub fn fail_after(&self, writes: i64) {
        self.left.store(writes, Ordering::SeqCst);
    }

    fn spend(&self) -> Result<(), DeviceError> {
        let spend = |left: i64| if left > 0 { Some(left - 1) } else { None };
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend) {
            Ok(_) => Ok(()),
            Err(left) if left < 0 => Ok(()),
            Err(_) => Err(EIO),
        }
    }
}

impl BlockDevice for FailingDevice {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.fails_reads.load(Ordering::SeqCst) { Err(EIO) } else { self.memory.read(offset, out) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.spend()?;
        self.memory.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.spend()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.spend()?;
        self.memory.discard(offset, bytes)
    }
}
