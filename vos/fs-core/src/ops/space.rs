//! Changing what space a file has: truncation, holes, preallocation; and finding holes.
//!
//! What frees much does so in steps, each a record of its own that leaves the file consistent; only the last step
//! carries the operation's place in its session. A crash in between leaves a large truncation half done until the
//! client repeats it.

use std::sync::Arc;

use vos_api::fs::{self as api, Fallocate, Lseek, Offset};

use crate::alloc::Claim;
use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::device::BLOCK64;
use crate::error::Errno;
use crate::extents::{Run, WINDOW_BLOCKS, Window};
use crate::model::{key2, number_of, tag, window_of};
use crate::ops::attr::kill_set_id_if_asked;
use crate::ops::data::{Position, Prepared, WINDOW_BYTES, Writing};
use crate::ops::quotas::demand_blocks;
use crate::store::From;
use crate::txn::Txn;

pub(super) const KEEP_SIZE: u16 = 1;
const PUNCH_HOLE: u16 = 2;
const ZERO_RANGE: u16 = 16;
const SEEK_DATA: u64 = 3;
const SEEK_HOLE: u64 = 4;
/// Windows freed in one record: of single blocks they are 256 KiB of runs.
const STEP_WINDOWS: usize = 64;
/// Windows looked at in one scan for data.
const SCAN_WINDOWS: usize = 256;

/// A change of size whose last step is still to come. The file's lock is held meanwhile.
#[derive(Default)]
pub(super) struct Cut {
    bytes: u64,
    shrinks: bool,
    /// The last block with zeros after the new end.
    tail: Option<Prepared>,
    pub taken: Vec<Run>,
}

impl Fs {
    /// Everything of a change of size but its last step.
    pub(super) fn cut_in_steps(&self, ino: u64, bytes: u64) -> Result<Cut, Errno> {
        let inode = self.read_inode(ino)?;
        if bytes >= inode.bytes {
            return Ok(Cut { bytes, ..Cut::default() });
        }
        let kept_windows = bytes.div_ceil(WINDOW_BYTES);
        while self.free_windows(ino, kept_windows..u64::MAX, From::End, Size::Follows)? == Progress::More {}
        let mut cut = Cut { bytes, shrinks: true, ..Cut::default() };
        let used = bytes % BLOCK64;
        if used != 0 && self.is_mapped(ino, bytes / BLOCK64)? {
            let zeros = vec![0; (BLOCK64 - used) as usize];
            let tail = self.prepare(ino, Position::At(bytes), &zeros, Claim::Emergency, Writing::First)?;
            cut.taken = tail.runs.clone();
            cut.tail = Some(tail);
        }
        Ok(cut)
    }

    fn is_mapped(&self, ino: u64, block: u64) -> Result<bool, Errno> {
        let window = self.read_window(ino, block / WINDOW_BLOCKS)?;
        Ok(window.is_some_and(|window| matches!(window.places.get((block % WINDOW_BLOCKS) as usize), Some(Some(_)))))
    }

    /// Frees whole windows in one record, as long as more than one record's worth is there.
    fn free_windows(&self, ino: u64, range: std::ops::Range<u64>, end: From, size: Size) -> Result<Progress, Errno> {
        let (from, to) = (key2(tag::EXTENTS, ino, range.start), key2(tag::EXTENTS, ino, range.end));
        let found = self.store.scan(&from, &to, STEP_WINDOWS, end)?;
        if found.len() < STEP_WINDOWS {
            return Ok(Progress::Last);
        }
        self.demand_room_for_snapshots()?;
        self.transact_quietly(|txn| {
            let mut inode = txn.inode(ino)?;
            for (key, value) in found {
                let window = Window::decode(&value)?;
                inode.blocks = inode.blocks.saturating_sub(window.used());
                window.places.iter().flatten().for_each(|place| txn.free_block(place.block));
                let number = number_of(&key, 1).ok_or(Errno::Io)?;
                if size == Size::Follows {
                    inode.bytes = inode.bytes.min(number.saturating_mul(WINDOW_BYTES));
                }
                txn.delete(key);
            }
            txn.put_inode(ino, &inode);
            Ok(())
        })?;
        self.log.drive();
        Ok(Progress::More)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    /// What is left fits into the operation's own record.
    Last,
}

/// Whether freeing windows at the end of a file makes it shorter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Follows,
    Stays,
}

impl Cut {
    pub fn finish(&self, txn: &mut Txn<'_>, ino: u64, time_ns: Option<u64>) -> Result<(), Errno> {
        if let Some(tail) = &self.tail {
            tail.finish(txn, ino, None)?;
        }
        if self.shrinks {
            free_blocks(txn, ino, self.bytes.div_ceil(BLOCK64)..u64::MAX / BLOCK64)?;
        }
        let mut inode = txn.inode(ino)?;
        inode.bytes = self.bytes;
        if let Some(time_ns) = time_ns {
            inode.mtime_ns = time_ns;
            inode.ctime_ns = time_ns;
        }
        txn.put_inode(ino, &inode);
        Ok(())
    }
}

/// Frees the blocks of a range within one record; not more than [`STEP_WINDOWS`] windows and two partial ones.
fn free_blocks(txn: &mut Txn<'_>, ino: u64, blocks: std::ops::Range<u64>) -> Result<(), Errno> {
    if blocks.start >= blocks.end {
        return Ok(());
    }
    let from = key2(tag::EXTENTS, ino, blocks.start / WINDOW_BLOCKS);
    let to = key2(tag::EXTENTS, ino, blocks.end.div_ceil(WINDOW_BLOCKS));
    let mut inode = txn.inode(ino)?;
    for (key, _) in txn.scan_stored(&from, &to, STEP_WINDOWS + 2)? {
        let number = number_of(&key, 1).ok_or(Errno::Io)?;
        // Looked up again: this operation may have changed it already.
        let Some(mut window) = txn.window(ino, number)? else { continue };
        for at in 0..WINDOW_BLOCKS {
            if !blocks.contains(&(number * WINDOW_BLOCKS + at)) {
                continue;
            }
            if let Some(old) = window.set(at as usize, None) {
                txn.free_block(old);
                inode.blocks = inode.blocks.saturating_sub(1);
            }
        }
        txn.put_window(ino, number, &window);
    }
    txn.put_inode(ino, &inode);
    Ok(())
}

pub(super) fn fallocate(job: &Arc<Job>, it: Fallocate) -> Result<(), Errno> {
    let Fallocate { ino, offset, bytes, .. } = it;
    let mode = it.mode & !api::KILL_SUID;
    let end = offset.checked_add(bytes).filter(|end| *end <= api::FILE_BYTES_MAX).ok_or(Errno::FileTooBig)?;
    if bytes == 0 {
        return Err(Errno::Invalid);
    }
    let inode = job.fs.read_inode(ino)?;
    match inode.is_file() {
        false if inode.is_dir() => return Err(Errno::IsDirectory),
        false => return Err(Errno::Invalid),
        true => (),
    }
    const PUNCH: u16 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u16 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 | KEEP_SIZE => reserve(job, it, (mode == 0).then_some(end)),
        PUNCH | ZERO_KEEP => punch(job, it, end, None),
        ZERO_RANGE => punch(job, it, end, Some(end)),
        _ => Err(Errno::NotSupported),
    }
}

/// Data is never written in place, so blocks set aside would not help: it is enough that there are some.
fn reserve(job: &Arc<Job>, it: Fallocate, grow_to: Option<u64>) -> Result<(), Errno> {
    let fs = &job.fs;
    let is_short = || fs.blocks.lock().available() < it.bytes / BLOCK64;
    if is_short() && (!fs.reap_lingering()? || is_short()) {
        return Err(Errno::NoSpace);
    }
    let _file = fs.lock_file(it.ino);
    job.transact(Growth::Grows, |txn| {
        let inode = txn.inode(it.ino)?;
        demand_blocks(txn, &inode, (it.bytes / BLOCK64).saturating_sub(inode.blocks))?;
        allocated(txn, it, grow_to)?;
        Ok(Reply::default())
    })
}

/// What every kind of allocation does to the inode: its times move whether its size does or not.
fn allocated(txn: &mut Txn<'_>, it: Fallocate, grow_to: Option<u64>) -> Result<(), Errno> {
    let (ino, time_ns) = (it.ino, it.time_ns.get());
    let mut inode = txn.inode(ino)?;
    inode.bytes = inode.bytes.max(grow_to.unwrap_or(0));
    inode.mtime_ns = time_ns;
    inode.ctime_ns = time_ns;
    txn.put_inode(ino, &inode);
    kill_set_id_if_asked(txn, ino, it.mode)
}

fn punch(job: &Arc<Job>, it: Fallocate, end: u64, grow_to: Option<u64>) -> Result<(), Errno> {
    let (fs, ino, offset) = (&job.fs, it.ino, it.offset);
    let _file = fs.lock_file(ino);
    let size = fs.read_inode(ino)?.bytes;
    // Behind the end there is nothing: the last block goes as a whole.
    let stop = if end >= size { end.next_multiple_of(BLOCK64) } else { end };
    let whole = offset.div_ceil(BLOCK64)..(stop / BLOCK64).max(offset.div_ceil(BLOCK64));
    let windows = whole.start.div_ceil(WINDOW_BLOCKS)..whole.end / WINDOW_BLOCKS;
    if windows.start < windows.end {
        while fs.free_windows(ino, windows.clone(), From::Start, Size::Stays)? == Progress::More {}
    }
    let edges = edges(fs, ino, offset, end.min(size))?;
    let result = job.transact(Growth::Shrinks, |txn| {
        free_blocks(txn, ino, whole)?;
        for edge in &edges {
            edge.finish(txn, ino, None)?;
        }
        allocated(txn, it, grow_to)?;
        Ok(Reply::default())
    });
    if result.is_err() {
        edges.iter().for_each(|edge| fs.give_back(&edge.runs));
    }
    result
}

/// Zeros for the parts of blocks at both ends of a range.
fn edges(fs: &Fs, ino: u64, offset: u64, end: u64) -> Result<Vec<Prepared>, Errno> {
    let mut edges: Vec<Prepared> = Vec::new();
    if offset >= end {
        return Ok(edges);
    }
    let first_end = offset.next_multiple_of(BLOCK64).min(end);
    let last_start = (end - end % BLOCK64).max(first_end);
    for (from, to) in [(offset, first_end), (last_start, end)] {
        let is_whole = from.is_multiple_of(BLOCK64) && (to - from) == BLOCK64;
        if from >= to || is_whole || !fs.is_mapped(ino, from / BLOCK64)? {
            continue;
        }
        let zeros = vec![0; (to - from) as usize];
        match fs.prepare(ino, Position::At(from), &zeros, Claim::Emergency, Writing::First) {
            Ok(edge) => edges.push(edge),
            Err(errno) => {
                edges.iter().for_each(|edge| fs.give_back(&edge.runs));
                return Err(errno);
            }
        }
    }
    Ok(edges)
}

pub(super) fn seek(fs: &Fs, call: &Call, Lseek { ino, offset, whence }: Lseek) -> Result<Reply, Errno> {
    let _generation = fs.generation();
    let seen = fs.leases.register(call.session, ino);
    let inode = fs.read_inode(ino)?;
    if offset >= inode.bytes {
        return Err(Errno::NoAddress);
    }
    let found = match whence {
        SEEK_DATA => fs.find_data(ino, offset)?.filter(|at| *at < inode.bytes).ok_or(Errno::NoAddress)?,
        SEEK_HOLE => fs.find_hole(ino, offset)?.min(inode.bytes),
        _ => return Err(Errno::Invalid),
    };
    Ok(Reply::done(Offset { offset: found }).seen([seen]))
}

impl Fs {
    fn find_data(&self, ino: u64, offset: u64) -> Result<Option<u64>, Errno> {
        let first = offset / BLOCK64;
        let from = key2(tag::EXTENTS, ino, first / WINDOW_BLOCKS);
        // Stored windows are not empty; only the first may have its data before the offset.
        for (key, value) in self.store.scan(&from, &key2(tag::EXTENTS, ino, u64::MAX), 2, From::Start)? {
            let base = window_of(&key).ok_or(Errno::Io)? * WINDOW_BLOCKS;
            let window = Window::decode(&value)?;
            let used = window.places.iter().enumerate().filter(|(_, place)| place.is_some());
            if let Some(block) = used.map(|(at, _)| base + at as u64).find(|block| *block >= first) {
                return Ok(Some(offset.max(block * BLOCK64)));
            }
        }
        Ok(None)
    }

    fn find_hole(&self, ino: u64, offset: u64) -> Result<u64, Errno> {
        let mut block = offset / BLOCK64;
        loop {
            let from = key2(tag::EXTENTS, ino, block / WINDOW_BLOCKS);
            let found = self.store.scan(&from, &key2(tag::EXTENTS, ino, u64::MAX), SCAN_WINDOWS, From::Start)?;
            for (key, value) in &found {
                if number_of(key, 1).ok_or(Errno::Io)? != block / WINDOW_BLOCKS {
                    return Ok(offset.max(block * BLOCK64));
                }
                let window = Window::decode(value)?;
                let at = (block % WINDOW_BLOCKS) as usize;
                if let Some(free) = window.places.iter().skip(at).position(Option::is_none) {
                    return Ok(offset.max((block + free as u64) * BLOCK64));
                }
                block = (block / WINDOW_BLOCKS + 1) * WINDOW_BLOCKS;
            }
            if found.len() < SCAN_WINDOWS {
                return Ok(offset.max(block * BLOCK64));
            }
        }
    }
}
