//! The disk as it is at one moment, for one who reads all of it while others write.
//!
//! ```text
//!           FREEZE: what was begun before ends                 all is read, its ring ends
//!  (none) ─────────────────────────────────────▶ held ──────────────────────────────────▶ (none)
//!                                                 │ somebody waits too long
//!                                                 └──────────────────────▶ lost: the reader hears ETIMEDOUT
//! ```
//!
//! Whoever changes an extent that was not read yet waits until it has been, and the reader is told that it is wanted
//! (`WANTED`), so that it comes next. What is changed later is as if there were no reader. Nothing is copied, and
//! nobody waits for longer than [`PATIENCE`]: then the moment is lost, and all go on.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use vos_api::disk::{EXTENT_BYTES, Request as Ask};
use vos_rt::{ClientId, Request};

use crate::rings::Ticket;

/// How long a change waits at most: less than programs, and those who watch over them, take for a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked whether somebody may go on.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Extents of one answer.
const WANTED_MAX: usize = 512;
/// The longest that a reader waits for an answer.
const LISTEN_MAX_MS: u64 = 10_000;

/// A request that was let in.
pub type Entered = (Request, Ticket, Ask);

/// A change that is under way; dropping it ends it.
struct Change(Arc<AtomicUsize>);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Extents that are read when this is dropped.
struct Reading {
    unread: Arc<Mutex<Unread>>,
    first: u64,
    end: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut unread = self.unread.lock();
        (self.first..self.end).for_each(|extent| unread.has_read(extent));
    }
}

/// A bit for each extent.
struct Unread(Vec<u64>);

impl Unread {
    fn all(extents: u64) -> Unread {
        Unread((0..extents.div_ceil(64)).map(|word| u64::MAX >> (64 - (extents - 64 * word).min(64))).collect())
    }

    fn is_there(&self, extent: u64) -> bool {
        self.0.get((extent / 64) as usize).is_some_and(|word| word >> (extent % 64) & 1 != 0)
    }

    fn has_read(&mut self, extent: u64) {
        if let Some(word) = self.0.get_mut((extent / 64) as usize) {
            *word &= !(1 << (extent % 64));
        }
    }

    fn among(&self, first: u64, end: u64) -> impl Iterator<Item = u64> {
        let end = end.min(self.0.len() as u64 * 64);
        (first..end).filter(|extent| self.is_there(*extent))
    }
}

struct Moment {
    reader: ClientId,
    bytes: u64,
    unread: Arc<Mutex<Unread>>,
    /// Somebody waits for them, and the reader has not heard of it.
    wanted: VecDeque<u64>,
    told: BTreeSet<u64>,
    /// The reader waits to hear.
    listener: Option<(Request, Instant)>,
    /// What was begun before has not ended.
    begins: Option<Request>,
    is_lost: bool,
}

/// A change that waits.
struct Waiting {
    entered: Entered,
    range: (u64, u64),
    since: Instant,
}

#[derive(Default)]
pub struct Moments {
    moment: Option<Moment>,
    waiting: VecDeque<Waiting>,
    changing: Arc<AtomicUsize>,
}

impl Moments {
    /// What goes on now. `None`: it was answered, or waits.
    pub fn pass(&mut self, (request, mut ticket, asked): Entered) -> Option<Entered> {
        let range = match &asked {
            Ask::Write(it) => (it.offset, u64::from(request.out_bytes())),
            Ask::Discard(it) => (it.offset, it.bytes),
            Ask::Read(it) => {
                if let Some(moment) = self.moment.as_ref().filter(|moment| moment.reader == request.client()) {
                    if moment.is_lost {
                        request.fail(Errno::TIMEDOUT);
                        return None;
                    }
                    ticket.keep(Box::new(moment.reading(it.offset, it.bytes)));
                }
                return Some((request, ticket, asked));
            }
            _ => return Some((request, ticket, asked)),
        };
        if self.moment.as_mut().is_some_and(|moment| moment.wants(range)) {
            self.waiting.push_back(Waiting { entered: (request, ticket, asked), range, since: Instant::now() });
            return None;
        }
        Some(self.begin((request, ticket, asked)))
    }

    fn begin(&self, (request, mut ticket, asked): Entered) -> Entered {
        self.changing.fetch_add(1, Ordering::AcqRel);
        ticket.keep(Box::new(Change(Arc::clone(&self.changing))));
        (request, ticket, asked)
    }

    /// A client wants to read the disk of `bytes` as it is now.
    pub fn freeze(&mut self, request: Request, bytes: u64) {
        if self.moment.as_ref().is_some_and(|moment| moment.reader != request.client()) {
            return request.fail(Errno::BUSY);
        }
        if let Some(Moment { begins, listener, .. }) = self.moment.take() {
            begins.into_iter().for_each(|earlier| earlier.fail(Errno::CANCELED));
            listener.into_iter().for_each(|(earlier, _)| earlier.reply([0; 4], 0));
        }
        let mut moment = Moment {
            reader: request.client(),
            bytes,
            unread: Arc::new(Mutex::new(Unread::all(bytes.div_ceil(EXTENT_BYTES)))),
            wanted: VecDeque::new(),
            told: BTreeSet::new(),
            listener: None,
            begins: Some(request),
            is_lost: false,
        };
        // They wait for this one.
        for one in &self.waiting {
            moment.wants(one.range);
        }
        self.moment = Some(moment);
    }

    /// The reader asks which extents somebody waits for.
    pub fn listen(&mut self, request: Request, for_ms: u64) {
        let Some(moment) = self.moment.as_mut().filter(|moment| moment.reader == request.client()) else {
            return request.fail(Errno::INVAL);
        };
        if moment.is_lost {
            return request.fail(Errno::TIMEDOUT);
        }
        let until = Instant::now() + Duration::from_millis(for_ms.min(LISTEN_MAX_MS));
        if let Some((earlier, _)) = moment.listener.replace((request, until)) {
            earlier.reply([0; 4], 0);
        }
        moment.tell(Instant::now());
    }

    /// A ring is there no more, or another one is in its place.
    pub fn closed(&mut self, client: ClientId) {
        if self.moment.as_ref().is_some_and(|moment| moment.reader == client) {
            self.moment = None;
        }
        // Whoever asked over it asks again, or is gone.
        let (gone, stay) =
            std::mem::take(&mut self.waiting).into_iter().partition(|one| one.entered.0.client() == client);
        self.waiting = stay;
        let gone: VecDeque<Waiting> = gone;
        gone.into_iter().for_each(|Waiting { entered: (request, ..), .. }| request.fail(Errno::STALE));
    }

    pub fn due(&self, now: Instant) -> Option<Instant> {
        let moment = self.moment.as_ref();
        let begins = moment.is_some_and(|moment| moment.begins.is_some());
        let look = (begins || !self.waiting.is_empty()).then(|| now + LOOK_EVERY);
        let listener = moment.and_then(|moment| Some(moment.listener.as_ref()?.1));
        look.into_iter().chain(listener).min()
    }

    /// Who goes on.
    pub fn tick(&mut self, now: Instant) -> Vec<Entered> {
        if let Some(moment) = &mut self.moment {
            if self.changing.load(Ordering::Acquire) == 0
                && let Some(request) = moment.begins.take()
            {
                request.reply([0; 4], 0);
            }
            let is_late = |one: &Waiting| now.saturating_duration_since(one.since) > PATIENCE;
            if !moment.is_lost && self.waiting.front().is_some_and(is_late) {
                tracing::warn!("who reads the disk as it was at a moment is too slow: others go on");
                moment.is_lost = true;
                moment.begins.take().into_iter().for_each(|request| request.fail(Errno::TIMEDOUT));
                moment.listener.take().into_iter().for_each(|(request, _)| request.fail(Errno::TIMEDOUT));
            }
            moment.tell(now);
        }
        let mut going = Vec::new();
        for one in std::mem::take(&mut self.waiting) {
            match self.moment.as_ref().is_some_and(|moment| moment.holds(one.range)) {
                true => self.waiting.push_back(one),
                false => going.push(self.begin(one.entered)),
            }
        }
        going
    }
}

impl Moment {
    fn extents((offset, bytes): (u64, u64)) -> (u64, u64) {
        (offset / EXTENT_BYTES, offset.saturating_add(bytes).div_ceil(EXTENT_BYTES))
    }

    /// Whether a change of these bytes has to wait.
    fn holds(&self, range: (u64, u64)) -> bool {
        let (first, end) = Moment::extents(range);
        !self.is_lost && self.unread.lock().among(first, end).next().is_some()
    }

    /// Likewise, and the reader is to hear of it.
    fn wants(&mut self, range: (u64, u64)) -> bool {
        if !self.holds(range) {
            return false;
        }
        let (first, end) = Moment::extents(range);
        let unread = self.unread.lock();
        let fresh = unread.among(first, end).filter(|extent| self.told.insert(*extent));
        self.wanted.extend(fresh);
        true
    }

    fn reading(&self, offset: u64, bytes: u64) -> Reading {
        let Range { start: first, end } = whole_extents(offset, bytes, self.bytes);
        Reading { unread: Arc::clone(&self.unread), first, end }
    }

    fn tell(&mut self, now: Instant) {
        let is_due = self.listener.as_ref().is_some_and(|(_, until)| now >= *until);
        if self.wanted.is_empty() && !is_due {
            return;
        }
        let Some((request, _)) = self.listener.take() else { return };
        let count = WANTED_MAX.min(request.in_capacity() as usize / size_of::<u64>()).min(self.wanted.len());
        let told: Vec<u8> = self.wanted.drain(..count).flat_map(u64::to_le_bytes).collect();
        match request.put(0, &told) {
            Ok(()) => request.reply([0; 4], told.len() as u32),
            Err(errno) => request.fail(errno),
        }
    }
}

/// Only what is read as a whole is read; of a disk of so many bytes. What does not lie on it is refused later.
fn whole_extents(offset: u64, bytes: u64, disk_bytes: u64) -> Range<u64> {
    let first = offset.div_ceil(EXTENT_BYTES);
    match offset.checked_add(bytes) {
        Some(end) if end == disk_bytes => first..end.div_ceil(EXTENT_BYTES),
        Some(end) if end < disk_bytes => first..end / EXTENT_BYTES,
        _ => first..first,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_extents_that_are_on_the_disk_are_read() {
        const MIB: u64 = EXTENT_BYTES;
        let bytes = 2 * MIB + 4096;
        for (offset, length, expected) in [
            (0, MIB, 0..1),
            (4096, 2 * MIB - 4096, 1..2),
            (0, bytes, 0..3),
            (2 * MIB, 4096, 2..3),
            (0, bytes + 1, 0..0),
            (0, u64::MAX, 0..0),
            (MIB, u64::MAX, 1..1),
        ] {
            assert_eq!(whole_extents(offset, length, bytes), expected, "{offset} {length}");
        }
    }

    #[test]
    fn extents_are_unread_until_all_of_them_were_read() {
        for extents in [1, 63, 64, 65, 200] {
            let mut unread = Unread::all(extents);
            assert_eq!(unread.among(0, u64::MAX).count() as u64, extents);
            unread.has_read(0);
            unread.has_read(u64::MAX);
            assert_eq!((unread.is_there(0), unread.among(0, extents).count() as u64), (false, extents - 1));
        }
        assert_eq!(Unread::all(0).among(0, 9).count(), 0);
    }
}
