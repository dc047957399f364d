//! Buffers of a link: bytes are moved, never initialised twice.

#![allow(clippy::indexing_slicing, reason = "`start` is at most `end`, and `end` at most the bytes that there are")]

use wire::Sink;

use crate::limits;

/// Frames on their way out. Filled at the end, sent from the front.
pub struct OutBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes ever put, for credit.
    put_total: u64,
}

impl OutBuffer {
    pub(crate) fn new() -> OutBuffer {
        OutBuffer { bytes: vec![0; limits::OUT_BYTES].into_boxed_slice(), start: 0, end: 0, put_total: 0 }
    }

    /// What is to be sent.
    pub fn pending(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    /// The first `count` pending bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    pub(crate) fn clear(&mut self) {
        (self.start, self.end, self.put_total) = (0, 0, 0);
    }

    /// So many bytes are sent that are not here.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.put_total += bytes as u64;
    }

    pub(crate) fn put_total(&self) -> u64 {
        self.put_total
    }

    /// Whether `count` bytes fit, after moving what is pending to the front if that is what it takes.
    pub(crate) fn make_room(&mut self, count: usize) -> bool {
        if self.bytes.len() - self.end >= count {
            return true;
        }
        if self.bytes.len() - (self.end - self.start) < count {
            return false;
        }
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        true
    }

    /// Bytes that a batch still takes; room for them has been made.
    pub(crate) fn room_in_batch(&mut self) -> usize {
        let count = limits::BATCH_BYTES.saturating_sub(self.end - self.start);
        if self.make_room(count) { count } else { 0 }
    }

    /// `count` bytes at the end, for the caller to fill. Room must have been made.
    pub(crate) fn grow(&mut self, count: usize) -> &mut [u8] {
        let from = self.end;
        self.end += count;
        self.put_total += count as u64;
        &mut self.bytes[from..from + count]
    }

    /// Takes the last `count` bytes back: the frame they began cannot be finished.
    pub(crate) fn shrink(&mut self, count: usize) {
        self.end -= count;
        self.put_total -= count as u64;
    }
}

impl Sink for OutBuffer {
    fn put(&mut self, bytes: &[u8]) {
        self.grow(bytes.len()).copy_from_slice(bytes);
    }
}

/// Bytes that came and were not decoded yet.
pub struct InBuffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for InBuffer {
    fn default() -> InBuffer {
        InBuffer::new()
    }
}

impl InBuffer {
    pub fn new() -> InBuffer {
        InBuffer { bytes: vec![0; limits::IN_BYTES].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Free space to read into, never empty as long as whole frames are taken out first.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 && self.bytes.len() - self.end < limits::IN_BYTES / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }

    /// The first `count` bytes of [`InBuffer::space`] were filled.
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// Copies as much of `bytes` as fits; the number copied.
    pub fn append(&mut self, bytes: &[u8]) -> usize {
        let space = self.space();
        let count = space.len().min(bytes.len());
        space[..count].copy_from_slice(&bytes[..count]);
        self.filled(count);
        count
    }

    pub fn waiting(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}
