//! What came: in order for the reader, and what lies after a hole.

use std::collections::{BTreeMap, VecDeque};

use super::limits::{RANGES_MAX, WINDOW_BYTES};

#[derive(Default)]
pub(super) struct Receiver {
    /// Everything below has come.
    next: u64,
    /// In order, not read yet.
    ready: VecDeque<u8>,
    /// Behind a hole, by offset. Pieces may overlap; together at most a window.
    held: BTreeMap<u64, Vec<u8>>,
    held_bytes: usize,
    /// Where the stream ends; that number counts as a byte.
    fin: Option<u64>,
    is_ended: bool,
}

impl Receiver {
    /// Data of a packet. What lies outside the window is dropped: a correct sender probes with it at most.
    pub(super) fn take(&mut self, offset: u64, data: &[u8], is_last: bool) {
        let Some(end) = offset.checked_add(data.len() as u64) else { return };
        if end > self.next + self.window() as u64 {
            return;
        }
        if is_last && self.fin.is_none() {
            self.fin = Some(end);
        }
        if offset > self.next {
            return self.hold(offset, data);
        }
        self.append(offset, data);
        while let Some(entry) = self.held.first_entry().filter(|entry| *entry.key() <= self.next) {
            let (offset, data) = entry.remove_entry();
            self.held_bytes -= data.len();
            self.append(offset, &data);
        }
        if self.fin == Some(self.next) && !self.is_ended {
            self.is_ended = true;
            self.next += 1;
        }
    }

    /// `offset` is not beyond what is due.
    fn append(&mut self, offset: u64, data: &[u8]) {
        let known = usize::try_from(self.next - offset).unwrap_or(usize::MAX);
        if let Some(fresh) = data.get(known..).filter(|fresh| !fresh.is_empty() && !self.is_ended) {
            self.ready.extend(fresh);
            self.next += fresh.len() as u64;
        }
    }

    fn hold(&mut self, offset: u64, data: &[u8]) {
        let is_known = self.held.get(&offset).is_some_and(|held| held.len() >= data.len());
        if data.is_empty() || is_known || self.held_bytes + data.len() > WINDOW_BYTES {
            return;
        }
        let before = self.held.insert(offset, data.to_vec());
        self.held_bytes += data.len();
        self.held_bytes -= before.map_or(0, |before| before.len());
    }

    pub(super) fn ack(&self) -> u64 {
        self.next
    }

    /// Bytes that are taken beyond `ack`.
    pub(super) fn window(&self) -> usize {
        WINDOW_BYTES.saturating_sub(self.ready.len())
    }

    pub(super) fn has_holes(&self) -> bool {
        !self.held.is_empty()
    }

    /// Ranges beyond `ack` that have come, the lowest first.
    pub(super) fn ranges(&self, ranges: &mut Vec<(u32, u32)>) {
        ranges.clear();
        let mut open: Option<(u64, u64)> = None;
        for (offset, data) in &self.held {
            let end = offset + data.len() as u64;
            match &mut open {
                Some((_, open_end)) if *offset <= *open_end => *open_end = end.max(*open_end),
                _ => {
                    self.push(open.replace((*offset, end)), ranges);
                    if ranges.len() == RANGES_MAX {
                        return;
                    }
                }
            }
        }
        self.push(open, ranges);
    }

    fn push(&self, range: Option<(u64, u64)>, ranges: &mut Vec<(u32, u32)>) {
        if let Some((from, end)) = range {
            ranges.push(((from - self.next) as u32, (end - from) as u32));
        }
    }

    /// Moves what is there; 0 when nothing is.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let mut taken = 0;
        let (first, second) = self.ready.as_slices();
        for part in [first, second] {
            let count = part.len().min(out.len() - taken);
            if let (Some(to), Some(from)) = (out.get_mut(taken..taken + count), part.get(..count)) {
                to.copy_from_slice(from);
                taken += count;
            }
        }
        self.ready.drain(..taken);
        taken
    }

    /// All was read, and nothing will come.
    pub(super) fn is_at_end(&self) -> bool {
        self.is_ended && self.ready.is_empty()
    }
}
