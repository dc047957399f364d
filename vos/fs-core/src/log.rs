//! The redo log: a ring of batches on the volume, and the queue of what waits to be written there.
//!
//! A record is one operation's effect: changed keys, allocated and freed blocks, counters. Records are queued in the
//! order in which they are applied. A thread that finds nobody writing becomes the *leader* and writes everything that
//! is queued, in batches; all others go on without waiting. A batch is complete when its write returned and all earlier
//! ones did: only one is under way at a time. Then the operations in it are answered.
//!
//! Short data travels with its record: the leader writes the batch and the data of its records at the same time, so
//! that a small write waits for one round trip to the disk, not two. The record counts only if the data is there, which
//! its checksums tell (`open.rs`); until the batch is complete [`Log::is_unwritten`] keeps readers from the blocks.
//!
//! A position (`lsn`) only rises; its place in the ring is the remainder. A batch never wraps: what does not fit before
//! the end of the ring begins at its start. A batch is believed when magic, epoch, position, predecessor and
//! checksums agree; each opening of the volume has an epoch of its own, so that remains of earlier lives never count.
//!
//! Locks: `queue`, then `ring`; `unwritten` is a leaf. None is held while the device works.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::device::{BLOCK, BLOCK64, BlockDevice, DeviceError};
use crate::error::Errno;
use crate::extents::Run;
use crate::layout::Layout;
use crate::model::Reader;
use crate::store::{Change, Key};

const MAGIC: u64 = u64::from_le_bytes(*b"DVSFSlog");
const HEADER_BYTES: usize = 64;
/// Payload of one batch. Larger ones do not write faster, and a reader must hold one in memory.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// One record; operations that would change more do it in steps.
pub const RECORD_BYTES_MAX: usize = 512 << 10;
/// Data that is written together with one batch. A batch ends when it has as much.
const BATCH_DATA_BYTES_MAX: usize = 4 << 20;
/// What must stay free beyond the queue: one batch under way, one lost at the ring's end, one record, rounding.
const ROOM_BYTES: u64 = (2 * BATCH_BYTES_MAX + RECORD_BYTES_MAX + (256 << 10)) as u64;

/// A write that is synced right after is made durable with its batch, for which all others wait: only where that is
/// soon over.
const SHORT_FLUSH: Duration = Duration::from_millis(2);

/// Numbers that are handed out once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    pub next_ino: u64,
    pub next_handle: u64,
    pub inodes: u64,
}

impl Counters {
    pub fn decode(reader: &mut Reader<'_>) -> Option<Counters> {
        Some(Counters { next_ino: reader.count()?, next_handle: reader.count()?, inodes: reader.count()? })
    }
}

/// The effect of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Record {
    pub counters: Counters,
    pub allocated: Vec<Run>,
    pub freed: Vec<Run>,
    pub changes: Vec<(Key, Change)>,
}

/// Data of a record that is not on the volume yet: where it goes, and what.
pub type DataWrite = (u64, Arc<Vec<u8>>);

/// Called when a record, and all before it, was written; or with the reason why not.
pub type Done = Box<dyn FnOnce(Result<(), Errno>) + Send>;

struct Item {
    /// `None`: a reply that waits for the records before it.
    record: Option<Vec<u8>>,
    writes: Vec<DataWrite>,
    done: Option<Done>,
}

/// What is written in one go.
struct Outgoing {
    /// Where records go, and how they are written there.
    record: Option<(u64, Vec<u8>)>,
    items: Vec<Item>,
    /// It survives loss of power when it is written.
    is_through: bool,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    queued_bytes: u64,
    /// Number of the first record in `items`.
    first: u64,
    /// Somebody is writing.
    is_writing: bool,
    /// Whoever queued last will ask for a flush next.
    expects_sync: bool,
    failed: Option<Errno>,
}

struct Ring {
    head: u64,
    /// Where the last batch ended; `head` unless the end of the ring was skipped.
    tail: u64,
    /// Where the batch that is being written begins.
    under_way: Option<u64>,
    /// Records up to and including this number are written, or flushed.
    written: u64,
    flushed: u64,
    epoch: u64,
}

pub struct Log {
    device: Arc<dyn BlockDevice>,
    start: u64,
    bytes: u64,
    queue: Mutex<Queue>,
    ring: Mutex<Ring>,
    /// The last flush took longer than [`SHORT_FLUSH`].
    is_flush_long: AtomicBool,
    /// Ranges of the device whose data waits or is under way: offset and bytes.
    unwritten: Mutex<BTreeMap<u64, u64>>,
    idle: Condvar,
}

/// Where replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    pub epoch: u64,
    pub lsn: u64,
    /// Records up to and including this number are in the checkpoint.
    pub applied: u64,
}

impl Log {
    pub fn new(device: Arc<dyn BlockDevice>, layout: &Layout, tail: Tail) -> Log {
        let ring = Ring {
            head: tail.lsn,
            tail: tail.lsn,
            under_way: None,
            written: tail.applied,
            flushed: tail.applied,
            epoch: tail.epoch,
        };
        let queue = Queue { first: tail.applied + 1, ..Default::default() };
        Log {
            device,
            start: layout.log_start,
            bytes: layout.log_bytes,
            queue: Mutex::new(queue),
            ring: Mutex::new(ring),
            is_flush_long: AtomicBool::new(false),
            unwritten: Mutex::default(),
            idle: Condvar::new(),
        }
    }

    /// Whether one more record can be queued; else a checkpoint must come first.
    pub fn has_room(&self) -> bool {
        self.used_bytes() + ROOM_BYTES <= self.bytes
    }

    /// Whether a checkpoint should be made soon.
    pub fn is_filling(&self) -> bool {
        self.used_bytes() > self.bytes / 4
    }

    fn used_bytes(&self) -> u64 {
        let queue = self.queue.lock();
        let ring = self.ring.lock();
        // Each batch is rounded up to blocks; batches are at least half full when many wait.
        let batches = queue.queued_bytes / (BATCH_BYTES_MAX as u64 / 2) + 1;
        ring.head - ring.tail + queue.queued_bytes + batches * 2 * BLOCK64
    }

    /// Queues a record and its data. The caller serialises this with applying the record, and applies it afterwards.
    pub fn push(&self, record: &Record, writes: Vec<DataWrite>, done: Done) {
        let encoded = record.encode();
        self.unwritten.lock().extend(writes.iter().map(|(offset, data)| (*offset, data.len() as u64)));
        let mut queue = self.queue.lock();
        queue.queued_bytes += encoded.len() as u64;
        queue.items.push_back(Item { record: Some(encoded), writes, done: Some(done) });
    }

    /// Whether data in this range of the device is still to be written: wait with [`Log::settle`] before reading it.
    pub fn is_unwritten(&self, offset: u64, bytes: u64) -> bool {
        let unwritten = self.unwritten.lock();
        unwritten.range(..offset + bytes).next_back().is_some_and(|(start, bytes)| start + bytes > offset)
    }

    pub fn has_unwritten(&self) -> bool {
        !self.unwritten.lock().is_empty()
    }

    /// Calls `done` when everything queued so far is written; at once when it is already.
    pub fn after(&self, done: Done) {
        let failed = {
            let mut queue = self.queue.lock();
            if queue.failed.is_none() && (queue.is_writing || !queue.items.is_empty()) {
                queue.items.push_back(Item { record: None, writes: Vec::new(), done: Some(done) });
                return;
            }
            queue.failed
        };
        done(failed.map_or(Ok(()), Err));
    }

    /// Writes what waits, unless somebody else is at it.
    pub fn drive(&self) {
        while let Some(Outgoing { record, items, is_through }) = self.begin_batch() {
            let data = items.iter().flat_map(|item| &item.writes).map(|(offset, data)| (*offset, data.as_slice()));
            let records = record.iter().map(|(offset, bytes)| (*offset, bytes.as_slice()));
            let writes: Vec<(u64, &[u8])> = data.chain(records).collect();
            let result = match writes.as_slice() {
                [] => Ok(()),
                writes if is_through => self.time_flush(|| self.device.write_through(writes)).map_err(Errno::from),
                [(offset, bytes)] => self.device.write(*offset, bytes).map_err(Errno::from),
                writes => self.device.write_together(writes).map_err(Errno::from),
            };
            self.end_batch(&items, is_through, result);
            for done in items.into_iter().filter_map(|item| item.done) {
                done(result);
            }
        }
    }

    /// Waits until everything queued so far is written.
    pub fn settle(&self) -> Result<(), Errno> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.after(Box::new(move |result| _ = sender.send(result)));
        self.drive();
        receiver.recv().unwrap_or(Err(Errno::Io))
    }

    /// What was queued just now is made durable with its write, if nobody else has to wait for that.
    pub fn expect_sync(&self) {
        let mut queue = self.queue.lock();
        queue.expects_sync = !queue.items.is_empty();
    }

    /// Of a flush, or a write with one.
    pub fn time_flush<T>(&self, flush: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = flush();
        self.is_flush_long.store(begun.elapsed() > SHORT_FLUSH, Ordering::Relaxed);
        done
    }

    fn begin_batch(&self) -> Option<Outgoing> {
        let mut queue = self.queue.lock();
        if queue.is_writing || queue.items.is_empty() {
            return None;
        }
        queue.is_writing = true;
        let first = queue.first;
        let mut payload = vec![0; HEADER_BYTES];
        let mut items = Vec::new();
        let (mut records, mut data_bytes) = (0, 0);
        while let Some(mut item) = queue.items.pop_front() {
            if let Some(record) = &item.record {
                let is_full = payload.len() + record.len() > BATCH_BYTES_MAX || data_bytes > BATCH_DATA_BYTES_MAX;
                if records > 0 && is_full {
                    queue.items.push_front(item);
                    break;
                }
                payload.extend_from_slice(record);
                queue.queued_bytes -= record.len() as u64;
                data_bytes += item.writes.iter().map(|(_, data)| data.len()).sum::<usize>();
                records += 1;
                item.record = Some(Vec::new());
            }
            items.push(item);
        }
        if let Some(errno) = queue.failed {
            drop(queue);
            self.fail(items, errno);
            return None;
        }
        queue.first += u64::from(records);
        if records == 0 {
            return Some(Outgoing { record: None, items, is_through: false });
        }
        let is_expected = std::mem::take(&mut queue.expects_sync);
        let is_alone = records == 1 && queue.items.is_empty() && !self.is_flush_long.load(Ordering::Relaxed);
        let offset = self.seal(&mut payload, first, records);
        Some(Outgoing { record: Some((offset, payload)), items, is_through: is_expected && is_alone })
    }

    /// Everything waits for something that will never be written.
    fn fail(&self, items: Vec<Item>, errno: Errno) {
        let rest = {
            let mut queue = self.queue.lock();
            queue.is_writing = false;
            queue.queued_bytes = 0;
            std::mem::take(&mut queue.items)
        };
        for done in items.into_iter().chain(rest).filter_map(|item| item.done) {
            done(Err(errno));
        }
    }

    /// Gives a batch its place and writes its header.
    #[allow(clippy::indexing_slicing, reason = "a batch begins with room for its header")]
    fn seal(&self, batch: &mut Vec<u8>, first: u64, records: u32) -> u64 {
        let payload_bytes = (batch.len() - HEADER_BYTES) as u32;
        let payload_crc = crc32fast::hash(&batch[HEADER_BYTES..]);
        batch.resize(batch.len().next_multiple_of(BLOCK), 0);
        let mut ring = self.ring.lock();
        let previous = ring.head;
        let place = ring.head % self.bytes;
        let skip = if place + batch.len() as u64 > self.bytes { self.bytes - place } else { 0 };
        let lsn = previous + skip;
        let words = [MAGIC, ring.epoch, lsn, previous, first, ring.flushed];
        for (slot, word) in batch.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        for (slot, word) in batch[48..60].chunks_exact_mut(4).zip([payload_bytes, records, payload_crc]) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        let crc = crc32fast::hash(&batch[..60]);
        batch[60..64].copy_from_slice(&crc.to_le_bytes());
        ring.under_way = Some(previous);
        ring.head = lsn + batch.len() as u64;
        assert!(ring.head - ring.tail <= self.bytes, "the log's room was checked before the record was made");
        self.start + lsn % self.bytes
    }

    fn end_batch(&self, items: &[Item], is_through: bool, result: Result<(), Errno>) {
        let mut queue = self.queue.lock();
        let mut ring = self.ring.lock();
        queue.is_writing = false;
        ring.under_way = None;
        match result {
            Ok(()) => {
                ring.written += items.iter().filter(|item| item.record.is_some()).count() as u64;
                if is_through {
                    // All batches before it had been written.
                    ring.flushed = ring.written;
                }
                let mut unwritten = self.unwritten.lock();
                items.iter().flat_map(|item| &item.writes).for_each(|(offset, _)| _ = unwritten.remove(offset));
            }
            Err(errno) => queue.failed = Some(errno),
        }
        self.idle.notify_all();
    }

    pub fn failed(&self) -> Option<Errno> {
        self.queue.lock().failed
    }

    /// Refuses everything from now on.
    pub fn poison(&self, errno: Errno) {
        self.queue.lock().failed.get_or_insert(errno);
    }

    /// Records written so far: what a flush that begins now makes durable.
    pub fn written(&self) -> u64 {
        self.ring.lock().written
    }

    pub fn flushed(&self) -> u64 {
        self.ring.lock().flushed
    }

    /// Whether everything that is written survives loss of power.
    pub fn is_flushed(&self) -> bool {
        let ring = self.ring.lock();
        ring.flushed >= ring.written
    }

    pub fn set_flushed(&self, written: u64) {
        let mut ring = self.ring.lock();
        ring.flushed = ring.flushed.max(written);
    }

    /// A checkpoint begins that contains all records up to `applied`: where replay after it must begin.
    pub fn tail_for(&self, applied: u64) -> Tail {
        let ring = self.ring.lock();
        Tail { epoch: ring.epoch, lsn: ring.under_way.unwrap_or(ring.head), applied }
    }

    /// The checkpoint is durable.
    pub fn advance(&self, tail: Tail) {
        let mut ring = self.ring.lock();
        ring.tail = ring.tail.max(tail.lsn);
    }
}

/// A record found on the volume.
pub struct Found {
    pub number: u64,
    pub record: Record,
}

/// What [`scan`] finds.
pub struct Scan {
    pub records: Vec<Found>,
    /// Records up to and including this number had certainly been flushed.
    pub flushed: u64,
    /// Where the last batch ends.
    pub end: u64,
}

/// How far after the end of the old log the new one begins: a batch that the old server had under way when it died
/// may reach the disk late, and must not fall on one of ours.
pub const GAP_BYTES: u64 = 2 * (BATCH_BYTES_MAX + RECORD_BYTES_MAX) as u64;

/// Reads the unbroken batches after `tail`.
pub fn scan(device: &dyn BlockDevice, layout: &Layout, tail: Tail) -> Result<Scan, DeviceError> {
    let mut found = Vec::new();
    let mut flushed = tail.applied;
    let mut position = tail.lsn;
    // A ring cannot hold more than itself.
    while position - tail.lsn < layout.log_bytes {
        let Some(batch) = read_batch(device, layout, tail.epoch, position)? else { break };
        flushed = flushed.max(batch.flushed);
        let mut reader = Reader(&batch.payload);
        for index in 0..u64::from(batch.records) {
            let Some(record) = Record::decode(&mut reader) else { break };
            if batch.first + index > tail.applied {
                found.push(Found { number: batch.first + index, record });
            }
        }
        position = batch.end;
    }
    Ok(Scan { records: found, flushed, end: position })
}

struct Batch {
    first: u64,
    flushed: u64,
    records: u32,
    payload: Vec<u8>,
    end: u64,
}

/// The batch whose predecessor ended at `position`.
#[allow(clippy::indexing_slicing, reason = "`whole` holds a block and the payload behind the header")]
fn read_batch(
    device: &dyn BlockDevice,
    layout: &Layout,
    epoch: u64,
    position: u64,
) -> Result<Option<Batch>, DeviceError> {
    let place = position % layout.log_bytes;
    let next_start = position + (layout.log_bytes - place);
    for lsn in [position, next_start] {
        let mut block = vec![0; BLOCK];
        device.read(layout.log_start + lsn % layout.log_bytes, &mut block)?;
        let Some((mut batch, payload_bytes, crc)) = parse_header(&block, epoch, lsn, position) else { continue };
        let whole = (HEADER_BYTES + payload_bytes).next_multiple_of(BLOCK);
        if lsn % layout.log_bytes + whole as u64 > layout.log_bytes {
            continue;
        }
        block.resize(whole, 0);
        if whole > BLOCK {
            device.read(layout.log_start + lsn % layout.log_bytes + BLOCK64, &mut block[BLOCK..])?;
        }
        batch.payload = block[HEADER_BYTES..HEADER_BYTES + payload_bytes].to_vec();
        batch.end = lsn + whole as u64;
        if crc32fast::hash(&batch.payload) == crc {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

fn parse_header(block: &[u8], epoch: u64, lsn: u64, previous: u64) -> Option<(Batch, usize, u32)> {
    let mut reader = Reader(block);
    let head = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
    if head != [MAGIC, epoch, lsn, previous] {
        return None;
    }
    let (first, flushed) = (reader.count()?, reader.u64()?);
    let (payload_bytes, records, payload_crc) = (reader.u32()? as usize, reader.u32()?, reader.u32()?);
    if reader.u32()? != crc32fast::hash(block.get(..60)?) || payload_bytes > BATCH_BYTES_MAX + RECORD_BYTES_MAX {
        return None;
    }
    Some((Batch { first, flushed, records, payload: Vec::new(), end: 0 }, payload_bytes, payload_crc))
}

impl Record {
    /// Bytes it will have, without encoding it.
    pub fn weight(&self) -> usize {
        let changes: usize =
            self.changes.iter().map(|(key, change)| 6 + key.len() + change.as_ref().map_or(0, Vec::len)).sum();
        40 + 16 * (self.allocated.len() + self.freed.len()) + changes
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.weight());
        let counters = self.counters;
        for number in [counters.next_ino, counters.next_handle, counters.inodes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for count in [self.allocated.len(), self.freed.len(), self.changes.len()] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        for run in self.allocated.iter().chain(&self.freed) {
            out.extend_from_slice(&run.start.to_le_bytes());
            out.extend_from_slice(&run.count.to_le_bytes());
        }
        for (key, change) in &self.changes {
            out.extend_from_slice(&(key.len() as u16).to_le_bytes());
            let bytes = change.as_ref().map_or(u32::MAX, |value| value.len() as u32);
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(key);
            out.extend_from_slice(change.as_deref().unwrap_or_default());
        }
        out
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Record> {
        let counters = Counters::decode(reader)?;
        let (allocated, freed, changes) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let mut record = Record { counters, ..Default::default() };
        for _ in 0..allocated {
            record.allocated.push(Run { start: reader.u64()?, count: reader.u64()? });
        }
        for _ in 0..freed {
            record.freed.push(Run { start: reader.u64()?, count: reader.u64()? });
        }
        for _ in 0..changes {
            let (key_bytes, value_bytes) = (reader.u16()?, reader.u32()?);
            let key = reader.take(usize::from(key_bytes))?.to_vec();
            let change = if value_bytes == u32::MAX { None } else { Some(reader.take(value_bytes as usize)?.to_vec()) };
            record.changes.push((key, change));
        }
        Some(record)
    }
}
