//! Reading and writing bytes.
//!
//! A write goes to blocks that nobody uses, and a record says that they belong to the file. So the bytes of a file are
//! never half of one write and half of another, and what a record names is there (or the record does not count: see
//! `open.rs`). Long data is written first, short data together with the record; until then it is read from the cache,
//! or waited for. Bytes after the end of a file inside its last block are zero.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use vos_api::disk::{SPANS_MAX, Span};
use vos_api::fs::{self as api, CopyRange, Read, ReadReply, Request, Setattr, Write, Written};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::alloc::{Claim, Generation};
use crate::cache::Part;
use crate::calls::{Call, Job, Reply};
use crate::core::{Fs, Growth};
use crate::device::{BLOCK, BLOCK64, DeviceError};
use crate::error::Errno;
use crate::extents::{Piece, Place, Run, WINDOW_BLOCKS, Window};
use crate::log::DataWrite;
use crate::model::{Inode, key2, tag};
use crate::ops::attr::kill_set_id_if_asked;
use crate::readahead::Load;
use crate::snapshots::is_shown;
use crate::txn::Txn;

/// Reads and writes up to this size leave their blocks in the cache; larger ones would empty it.
const CACHED_BYTES_MAX: usize = 128 << 10;
pub(super) const WINDOW_BYTES: u64 = WINDOW_BLOCKS * BLOCK64;
/// A copy without a link is asked again, so often and after such a pause.
const AGAIN: i32 = 11;
const MEND_PATIENCE: u32 = 50;
const MEND_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
/// Copies of a disk, at most.
const COPIES_MAX: u64 = abi::limits::COPIES_PER_DC as u64;
const COPY_BYTES_MAX: u64 = abi::limits::TRANSFER_BYTES_MAX as u64;

pub(super) fn read(fs: &Arc<Fs>, call: &Call, Read { marks, ino, offset, bytes }: Read) -> Result<Reply, Errno> {
    let seen = fs.leases.register(call.session, ino);
    let bytes = bytes.min(call.capacity as u64).min(u64::from(abi::limits::TRANSFER_BYTES_MAX));
    // Such a client reads ahead by itself, and what it reads does not come by here.
    let is_long = marks & api::WHERE != 0 && bytes >= u64::from(api::WHERE_BYTES_MIN);
    let is_told = is_long && fs.leases.holds(call.session, ino);
    let ahead = if is_told { Ahead::No } else { Ahead::Yes };
    if let Some(parts) = fs.read_parts(ino, offset, bytes, ahead)? {
        let got = parts.iter().map(|part| part.bytes().len() as u64).sum();
        return Ok(Reply { parts, ..Reply::done(ReadReply { bytes: got, ..ReadReply::default() }) }.seen([seen]));
    }
    if is_told && let Some(reply) = fs.places(ino, offset, bytes)? {
        return Ok(reply.seen([seen]));
    }
    let mut data = vec![0; bytes as usize];
    let got = fs.read_range(ino, offset, &mut data)?;
    data.truncate(got);
    Ok(Reply::with_data(ReadReply { bytes: got as u64, ..ReadReply::default() }, data).seen([seen]))
}

/// Whether more is loaded than was asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ahead {
    Yes,
    No,
}

#[allow(clippy::indexing_slicing, reason = "`out` was cut to the file's end, and each piece of a window to `out`")]
impl Fs {
    /// Where a range of a file lies, with the checksums of its blocks; `None` when it has holes, begins inside a block
    /// or is still on its way to the volume. No change of others frees the blocks before it has recalled the lease of
    /// whoever is told, and what a change of its own freed shows by the checksum once it is used again.
    fn places(&self, ino: u64, offset: u64, bytes: u64) -> Result<Option<Reply>, Errno> {
        let inode = self.read_inode(ino)?;
        check_file(&inode)?;
        let bytes = inode.bytes.saturating_sub(offset).min(bytes);
        if bytes == 0 || !offset.is_multiple_of(BLOCK64) {
            return Ok(None);
        }
        let (mut spans, mut crcs) = (Vec::<Span>::new(), Vec::new());
        let blocks = offset / BLOCK64..(offset + bytes).div_ceil(BLOCK64);
        for number in blocks.start / WINDOW_BLOCKS..blocks.end.div_ceil(WINDOW_BLOCKS) {
            let Some(window) = self.read_window(ino, number)? else { return Ok(None) };
            let first = number * WINDOW_BLOCKS;
            let from = blocks.start.max(first) - first;
            let to = blocks.end.min(first + WINDOW_BLOCKS) - first;
            for piece in window.pieces(from as usize, to as usize) {
                // What lies outside the volume is for an ordinary read to report.
                if !self.layout.has(piece.run) {
                    return Ok(None);
                }
                let (at, bytes) = (self.layout.data_offset(piece.run.start), piece.run.count * BLOCK64);
                if self.log.is_unwritten(at, bytes) {
                    return Ok(None);
                }
                spans.push(Span { offset: at.into(), bytes: bytes.into() });
                crcs.extend(piece.places.iter().flatten().map(|place| U32::new(place.crc)));
            }
        }
        let has_holes = crcs.len() as u64 != blocks.end - blocks.start;
        if has_holes || spans.len() > SPANS_MAX {
            return Ok(None);
        }
        let data = [spans.as_bytes(), crcs.as_bytes()].concat();
        let told = ReadReply { bytes, spans: spans.len() as u64, unused: 0, keeps: api::PLACES };
        Ok(Some(Reply::with_data(told, data)))
    }

    /// A range of a file as pieces of the cache, without a copy; `None` when not all of it lies there.
    fn read_parts(&self, ino: u64, offset: u64, bytes: u64, ahead: Ahead) -> Result<Option<Vec<Part>>, Errno> {
        // As in `read_range`.
        let generation = self.generation();
        let inode = self.read_inode(ino)?;
        check_file(&inode)?;
        let bytes = inode.bytes.saturating_sub(offset).min(bytes);
        let mut parts = Vec::new();
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let number = at / WINDOW_BYTES;
            let until = end.min((number + 1) * WINDOW_BYTES);
            let Some(window) = self.read_window(ino, number)? else { return Ok(None) };
            let inside = at - number * WINDOW_BYTES..until - number * WINDOW_BYTES;
            if !self.parts_of_window(&window, inside, &mut parts) {
                return Ok(None);
            }
            at = until;
        }
        if ahead == Ahead::Yes {
            self.read_ahead(ino, &inode, offset, bytes, &generation);
        }
        Ok(Some(parts))
    }

    fn parts_of_window(&self, window: &Window, inside: Range<u64>, parts: &mut Vec<Part>) -> bool {
        let blocks = (inside.start / BLOCK64) as usize..inside.end.div_ceil(BLOCK64) as usize;
        let mut at = inside.start;
        for piece in window.pieces(blocks.start, blocks.end) {
            let start = piece.at as u64 * BLOCK64;
            let stop = inside.end.min(start + piece.run.count * BLOCK64);
            // A hole is before it.
            if start > at {
                return false;
            }
            if !self.cache.read_parts(piece.run, (at - start) as usize, (stop - at) as usize, parts) {
                return false;
            }
            at = stop;
        }
        at == inside.end
    }

    /// Fills `out`, which must be zero, from a file; answers the bytes before its end.
    pub(crate) fn read_range(&self, ino: u64, offset: u64, out: &mut [u8]) -> Result<usize, Errno> {
        // Taken first: what is freed from here on keeps its content until the end of this read.
        let generation = self.generation();
        let inode = self.read_inode(ino)?;
        check_file(&inode)?;
        let bytes = inode.bytes.saturating_sub(offset).min(out.len() as u64);
        let out = &mut out[..bytes as usize];
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let number = at / WINDOW_BYTES;
            let until = end.min((number + 1) * WINDOW_BYTES);
            let part = &mut out[(at - offset) as usize..(until - offset) as usize];
            if let Some(window) = self.read_window(ino, number)? {
                self.read_in_window(ino, &window, at - number * WINDOW_BYTES, part)?;
            }
            at = until;
        }
        self.read_ahead(ino, &inode, offset, bytes, &generation);
        Ok(bytes as usize)
    }

    pub(super) fn read_window(&self, ino: u64, number: u64) -> Result<Option<Window>, Errno> {
        match self.store.get(&key2(tag::EXTENTS, ino, number))? {
            Some(bytes) => Ok(Some(Window::decode(&bytes)?)),
            None => Ok(None),
        }
    }

    /// Fills `out` from byte `from` of a window.
    fn read_in_window(&self, ino: u64, window: &Window, from: u64, out: &mut [u8]) -> Result<(), Errno> {
        let end = from + out.len() as u64;
        let blocks = (from / BLOCK64) as usize..end.div_ceil(BLOCK64) as usize;
        for piece in window.pieces(blocks.start, blocks.end) {
            let start = piece.at as u64 * BLOCK64;
            let stop = start + piece.run.count * BLOCK64;
            if start >= from && stop <= end {
                let part = &mut out[(start - from) as usize..(stop - from) as usize];
                self.read_blocks(ino, piece.run, piece.places, part)?;
                continue;
            }
            self.read_edges(ino, &piece, from, out)?;
        }
        Ok(())
    }

    /// A piece of which some bytes are not wanted: its first or last block goes through a buffer of its own.
    fn read_edges(&self, ino: u64, piece: &Piece<'_>, from: u64, out: &mut [u8]) -> Result<(), Errno> {
        let end = from + out.len() as u64;
        let first = piece.at as u64;
        let last = first + piece.run.count;
        let whole = from.div_ceil(BLOCK64).max(first)..(end / BLOCK64).min(last);
        if whole.start < whole.end {
            let skip = (whole.start - first) as usize;
            let count = whole.end - whole.start;
            let run = Run { start: piece.run.start + skip as u64, count };
            let part = (whole.start * BLOCK64 - from) as usize..(whole.end * BLOCK64 - from) as usize;
            self.read_blocks(ino, run, &piece.places[skip..skip + count as usize], &mut out[part])?;
        }
        for block in first..last {
            if whole.contains(&block) {
                continue;
            }
            let index = (block - first) as usize;
            let mut buffer = [0; BLOCK];
            let run = Run { start: piece.run.start + index as u64, count: 1 };
            self.read_blocks(ino, run, &piece.places[index..=index], &mut buffer)?;
            let start = (block * BLOCK64).max(from);
            let stop = ((block + 1) * BLOCK64).min(end);
            let inside = (start - block * BLOCK64) as usize..(stop - block * BLOCK64) as usize;
            out[(start - from) as usize..(stop - from) as usize].copy_from_slice(&buffer[inside]);
        }
        Ok(())
    }

    /// Whole blocks, from the cache or the device, verified.
    fn read_blocks(&self, ino: u64, run: Run, places: &[Option<Place>], out: &mut [u8]) -> Result<(), Errno> {
        if self.cache.read(run, out) {
            return Ok(());
        }
        if !self.layout.has(run) {
            tracing::error!(ino, "its extents lie outside the volume");
            return Err(Errno::Io);
        }
        let offset = self.layout.data_offset(run.start);
        if self.log.is_unwritten(offset, out.len() as u64) {
            self.log.settle()?;
        }
        let read = self.device.read(offset, out);
        if let Err(error) = read {
            tracing::error!(ino, %error, "blocks cannot be read");
        }
        for (place, block) in places.iter().flatten().zip(out.chunks_exact_mut(BLOCK)) {
            if read.is_err() || crc32fast::hash(block) != place.crc {
                self.mend(ino, *place, block)?;
            }
        }
        if out.len() <= CACHED_BYTES_MAX {
            self.cache.insert(run.start, out.to_vec());
        }
        Ok(())
    }

    /// A block that is not what was written is read from another copy of the disk, and written anew. Its file's blocks
    /// are used for nothing else meanwhile.
    fn mend(&self, ino: u64, place: Place, out: &mut [u8]) -> Result<(), Errno> {
        let offset = self.layout.data_offset(place.block);
        let mut patience = MEND_PATIENCE;
        let mut which = 0;
        while which < COPIES_MAX {
            match self.device.read_other(which, offset, out) {
                // There is no link to it at the moment.
                Err(DeviceError(AGAIN)) if patience > 0 => {
                    patience -= 1;
                    std::thread::sleep(MEND_PAUSE);
                    continue;
                }
                Ok(true) if crc32fast::hash(out) == place.crc => {
                    let written = self.device.write(offset, out);
                    tracing::warn!(ino, block = place.block, ?written, "a damaged block was read from another copy");
                    return Ok(());
                }
                Ok(true) | Err(_) => which += 1,
                Ok(false) => break,
            }
        }
        tracing::error!(ino, block = place.block, "checksum does not match");
        Err(Errno::Io)
    }

    fn read_ahead(&self, ino: u64, inode: &Inode, offset: u64, bytes: u64, generation: &Generation) {
        let Some((from, to)) = self.readahead.next(ino, offset, bytes) else { return };
        for number in from / WINDOW_BYTES..to.min(inode.bytes).div_ceil(WINDOW_BYTES) {
            let Ok(Some(window)) = self.read_window(ino, number) else { continue };
            for piece in window.pieces(0, window.places.len()) {
                let places = piece.places.iter().flatten().copied().collect();
                self.readahead.load(Load { run: piece.run, places, generation: generation.clone() });
            }
        }
    }

    /// One block of a file as it is; a hole is zeros.
    fn load_block(&self, ino: u64, block: u64, out: &mut [u8]) -> Result<(), Errno> {
        let Some(window) = self.read_window(ino, block / WINDOW_BLOCKS)? else { return Ok(()) };
        let at = (block % WINDOW_BLOCKS) as usize;
        let Some(places @ [Some(place)]) = window.places.get(at..=at) else { return Ok(()) };
        self.read_blocks(ino, Run { start: place.block, count: 1 }, places, out)
    }
}

fn check_file(inode: &Inode) -> Result<(), Errno> {
    match inode.is_file() {
        true => Ok(()),
        false if inode.is_dir() => Err(Errno::IsDirectory),
        false => Err(Errno::Invalid),
    }
}

/// When data goes to the volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// At once, before there is a record.
    First,
    /// Together with the record, if it is short.
    Together,
}

/// Data that has its place and waits for its record.
#[derive(Default)]
pub(super) struct Prepared {
    offset: u64,
    end: u64,
    places: Vec<Place>,
    pub runs: Vec<Run>,
    /// What is not on the volume yet.
    writes: Vec<DataWrite>,
}

/// Where a write begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Position {
    At(u64),
    End,
}

impl Fs {
    /// Writes `data` to fresh blocks. The caller holds the file's lock until [`Prepared::finish`].
    pub(super) fn prepare(
        &self,
        ino: u64,
        position: Position,
        data: &[u8],
        claim: Claim,
        writing: Writing,
    ) -> Result<Prepared, Errno> {
        let inode = self.read_inode(ino)?;
        check_file(&inode)?;
        let offset = match position {
            Position::At(offset) => offset,
            Position::End => inode.bytes,
        };
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= api::FILE_BYTES_MAX);
        let end = end.ok_or(Errno::FileTooBig)?;
        if data.is_empty() {
            return Ok(Prepared { offset, end, ..Prepared::default() });
        }
        let buffer = self.fill_blocks(ino, &inode, offset, data)?;
        self.prepare_blocks(offset..end, &buffer, claim, writing)
    }

    /// As [`Fs::prepare`], for a file that does not exist yet.
    pub(super) fn prepare_new(&self, data: &[u8], claim: Claim, writing: Writing) -> Result<Prepared, Errno> {
        let mut buffer = data.to_vec();
        buffer.resize(data.len().next_multiple_of(BLOCK), 0);
        self.prepare_blocks(0..data.len() as u64, &buffer, claim, writing)
    }

    fn prepare_blocks(
        &self,
        Range { start: offset, end }: Range<u64>,
        buffer: &[u8],
        claim: Claim,
        writing: Writing,
    ) -> Result<Prepared, Errno> {
        let runs = self.take_blocks((buffer.len() / BLOCK) as u64, claim)?;
        let is_together = writing == Writing::Together && self.may_write_together(buffer.len());
        let mut prepared = Prepared { offset, end, runs, ..Prepared::default() };
        let mut rest = buffer;
        for run in &prepared.runs {
            let (part, behind) = rest.split_at(run.count as usize * BLOCK);
            let crcs = part.chunks_exact(BLOCK).map(crc32fast::hash);
            prepared.places.extend((run.start..).zip(crcs).map(|(block, crc)| Place { block, crc }));
            if is_together {
                let part = Arc::new(part.to_vec());
                self.cache.insert(run.start, part.clone());
                prepared.writes.push((self.layout.data_offset(run.start), part));
            } else if let Err(errno) = self.write_part(run.start, part) {
                self.give_back(&prepared.runs);
                return Err(errno);
            }
            rest = behind;
        }
        self.count_written(buffer.len() as u64);
        Ok(prepared)
    }

    /// Small parts stay in memory.
    fn write_part(&self, start: u64, part: &[u8]) -> Result<(), Errno> {
        self.device.write(self.layout.data_offset(start), part)?;
        self.count_careful();
        if part.len() <= CACHED_BYTES_MAX {
            self.cache.insert(start, part.to_vec());
        }
        Ok(())
    }

    /// The blocks around `data`, with what the file has in them beside it.
    #[allow(clippy::indexing_slicing, reason = "the buffer holds every block that `data` touches")]
    fn fill_blocks<'a>(&self, ino: u64, inode: &Inode, offset: u64, data: &'a [u8]) -> Result<Cow<'a, [u8]>, Errno> {
        let end = offset + data.len() as u64;
        let skip = (offset % BLOCK64) as usize;
        if skip == 0 && end.is_multiple_of(BLOCK64) {
            return Ok(Cow::Borrowed(data));
        }
        let first = offset / BLOCK64;
        let count = (end.div_ceil(BLOCK64) - first) as usize;
        let mut buffer = vec![0; count * BLOCK];
        if skip != 0 && first * BLOCK64 < inode.bytes {
            self.load_block(ino, first, &mut buffer[..BLOCK])?;
        }
        let is_loaded = skip != 0 && count == 1;
        if !end.is_multiple_of(BLOCK64) && end < inode.bytes && !is_loaded {
            self.load_block(ino, end / BLOCK64, &mut buffer[(count - 1) * BLOCK..])?;
        }
        buffer[skip..skip + data.len()].copy_from_slice(data);
        Ok(Cow::Owned(buffer))
    }
}

impl Prepared {
    /// Makes the blocks the file's. Answers its size.
    pub fn finish(&self, txn: &mut Txn<'_>, ino: u64, time_ns: Option<u64>) -> Result<u64, Errno> {
        let mut inode = txn.inode(ino)?;
        let mut block = self.offset / BLOCK64;
        let mut places = self.places.as_slice();
        while !places.is_empty() {
            let number = block / WINDOW_BLOCKS;
            let at = (block % WINDOW_BLOCKS) as usize;
            let (here, behind) = places.split_at(places.len().min(WINDOW_BLOCKS as usize - at));
            let mut window = txn.window(ino, number)?.unwrap_or_default();
            for (index, place) in here.iter().enumerate() {
                match window.set(at + index, Some(*place)) {
                    Some(old) => txn.free_block(old),
                    None => inode.blocks += 1,
                }
            }
            txn.put_window(ino, number, &window);
            block += here.len() as u64;
            places = behind;
        }
        txn.allocated.extend_from_slice(&self.runs);
        txn.writes.extend_from_slice(&self.writes);
        inode.bytes = inode.bytes.max(self.end);
        if let Some(time_ns) = time_ns {
            inode.mtime_ns = time_ns;
            inode.ctime_ns = time_ns;
        }
        txn.put_inode(ino, &inode);
        Ok(inode.bytes)
    }
}

/// Where a change of bytes ends.
pub(super) enum End {
    At(u64),
    /// So many after the end of the file.
    Appended(u64),
}

/// Where the bytes of a change end; `None` when it makes no file longer.
pub(super) fn end_of(fs: &Fs, request: Request<'_>) -> Option<End> {
    match request {
        // What a mapping changed lies within the file.
        Request::Write(it) if it.bytes.is_empty() || it.marks & api::LATE != 0 => None,
        Request::Write(it) if it.marks & api::APPEND != 0 => Some(End::Appended(it.bytes.len() as u64)),
        Request::Write(it) => Some(End::At(it.offset.saturating_add(it.bytes.len() as u64))),
        Request::Setattr(Setattr { wanted, .. }) => {
            (wanted.valid.get() & api::valid::BYTES != 0).then_some(End::At(wanted.bytes.get()))
        }
        Request::Fallocate(it) if it.mode & super::space::KEEP_SIZE == 0 => {
            Some(End::At(it.offset.saturating_add(it.bytes)))
        }
        Request::CopyRange(it) => {
            let there = fs.read_inode(it.source).ok()?.bytes.saturating_sub(it.from.get());
            Some(End::At(it.to.get().saturating_add(it.bytes.get().min(COPY_BYTES_MAX).min(there))))
        }
        _ => None,
    }
}

pub(super) fn write(job: &Arc<Job>, it: Write<'_>) -> Result<(), Errno> {
    let position = if it.marks & api::APPEND != 0 { Position::End } else { Position::At(it.offset) };
    put(job, it.ino, position, it.bytes, it.time_ns, it.marks)?;
    if it.marks & api::SYNC_FOLLOWS != 0 {
        job.fs.log.expect_sync();
    }
    Ok(())
}

fn put(job: &Arc<Job>, ino: u64, position: Position, data: &[u8], time_ns: u64, marks: u16) -> Result<(), Errno> {
    let fs = &job.fs;
    let _file = fs.lock_file(ino);
    // A mapping makes no file longer, but the kernel may have been told already of an end that is yet to come.
    let data = match position {
        Position::At(offset) if marks & api::LATE != 0 => {
            let left = fs.read_inode(ino)?.bytes.saturating_sub(offset);
            data.get(..left as usize).unwrap_or(data)
        }
        _ => data,
    };
    // What was promised has its room.
    let (claim, growth) = match marks & (api::BEHIND | api::PROMISED) {
        0 => (Claim::Normal, Growth::Grows),
        _ => (Claim::Behind, Growth::Owed),
    };
    let prepared = fs.prepare(ino, position, data, claim, Writing::Together)?;
    let result = job.transact(growth, |txn| {
        if data.is_empty() {
            return Ok(Reply::done(Written { bytes: 0, size: txn.inode(ino)?.bytes }));
        }
        let bytes = prepared.finish(txn, ino, Some(time_ns))?;
        kill_set_id_if_asked(txn, ino, marks)?;
        // The writer's kernel keeps the pages it has written.
        fs.leases.grant_own(job.call.session, ino);
        let written = Written { bytes: data.len() as u64, size: bytes };
        let inode = txn.inode(ino)?;
        let attr = match job.call.capacity >= size_of::<api::Attr>() {
            true => inode.attr(ino, 0).as_bytes().to_vec(),
            false => Vec::new(),
        };
        Ok(Reply::with_data(written, attr).lease_on([ino]).changes(ino, &inode))
    });
    if result.is_err() {
        fs.give_back(&prepared.runs);
    }
    result
}

pub(super) fn copy(job: &Arc<Job>, it: CopyRange) -> Result<(), Errno> {
    let (source, target) = (it.source, it.target);
    let (from, to, bytes) = (it.from.get(), it.to.get(), it.bytes.get().min(COPY_BYTES_MAX));
    if from.checked_add(bytes).is_none() || to.checked_add(bytes).is_none() {
        return Err(Errno::Invalid);
    }
    if source == target && from < to + bytes && to < from + bytes {
        return Err(Errno::Invalid);
    }
    let mut data = vec![0; bytes as usize];
    let got = job.fs.read_range(source, from, &mut data)?;
    if is_shown(source) {
        // Of one that was removed meanwhile these may be holes that there were not.
        job.fs.read_inode(source)?;
    }
    data.truncate(got);
    // Of the marks the one that both operations have.
    put(job, target, Position::At(to), &data, it.time_ns.get(), it.marks & api::KILL_SUID)
}
