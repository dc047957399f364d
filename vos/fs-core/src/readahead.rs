//! Brings what a sequential reader will ask for next into the cache, on threads of its own.
//!
//! A reader is sequential when a read begins where its last one ended. The distance read ahead doubles with each such
//! read up to [`AHEAD_BYTES_MAX`]. Loads may be dropped at any time: a reader that finds nothing reads for itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::alloc::Generation;
use crate::cache::Cache;
use crate::device::{BLOCK, BlockDevice};
use crate::extents::{Place, Run};
use crate::layout::Layout;

const AHEAD_BYTES_MIN: u64 = 1 << 20;
const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// How far from where the last read ended a read of the same stream may begin: a kernel's read-ahead window.
const REORDERED_BYTES_MAX: u64 = 4 << 20;
/// Readers that are remembered.
const STREAMS_MAX: usize = 1024;
/// Loads that may wait; a full queue drops new ones.
const LOADS_MAX: usize = 64;

pub struct ReadAhead {
    streams: Mutex<HashMap<u64, Stream>>,
    sender: Option<SyncSender<Load>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
struct Stream {
    next: u64,
    distance: u64,
    /// Up to where loads were asked for.
    asked: u64,
}

pub struct Load {
    pub run: Run,
    pub places: Vec<Place>,
    /// Keeps the blocks from being reused while they are read.
    pub generation: Generation,
}

impl ReadAhead {
    pub fn new(device: Arc<dyn BlockDevice>, layout: Layout, cache: Arc<Cache>, threads: usize) -> ReadAhead {
        let mut readahead = ReadAhead { streams: Mutex::default(), sender: None, threads: Vec::new() };
        if threads == 0 {
            return readahead;
        }
        let (sender, receiver) = sync_channel(LOADS_MAX);
        let receiver = Arc::new(Mutex::new(receiver));
        for index in 0..threads {
            let (device, cache, receiver) = (device.clone(), cache.clone(), receiver.clone());
            let work = move || load_all(&*device, &layout, &cache, &receiver);
            // Without the thread there is less read ahead, nothing worse.
            if let Ok(thread) = std::thread::Builder::new().name(format!("fs-ahead-{index}")).spawn(work) {
                readahead.threads.push(thread);
            }
        }
        if !readahead.threads.is_empty() {
            readahead.sender = Some(sender);
        }
        readahead
    }

    /// A read happened: the range to load now, if any.
    pub fn next(&self, ino: u64, offset: u64, bytes: u64) -> Option<(u64, u64)> {
        self.sender.as_ref()?;
        let mut streams = self.streams.lock();
        let end = offset + bytes;
        let Some(stream) = streams.get_mut(&ino) else {
            if streams.len() >= STREAMS_MAX {
                streams.clear();
            }
            // Who begins at the start of a file will probably go on.
            let distance = if offset == 0 { AHEAD_BYTES_MIN / 2 } else { 0 };
            streams.insert(ino, Stream { next: end, distance, asked: end });
            return None;
        };
        // A client's own read-ahead has several requests under way, which arrive here in any order.
        if offset.abs_diff(stream.next) > REORDERED_BYTES_MAX {
            *stream = Stream { next: end, distance: 0, asked: end };
            return None;
        }
        stream.next = stream.next.max(end);
        stream.distance = (stream.distance * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let from = stream.asked.max(stream.next);
        let to = stream.next + stream.distance;
        if to < from + AHEAD_BYTES_MIN / 2 {
            return None;
        }
        stream.asked = to;
        Some((from, to))
    }

    pub fn load(&self, load: Load) {
        if let Some(sender) = &self.sender {
            let _ = sender.try_send(load);
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.sender = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn load_all(device: &dyn BlockDevice, layout: &Layout, cache: &Cache, receiver: &Mutex<Receiver<Load>>) {
    loop {
        let Ok(load) = receiver.lock().recv() else { return };
        let Some(loading) = cache.begin_load(load.run) else { continue };
        let mut data = cache.buffer(load.run.count as usize * BLOCK);
        if device.read(layout.data_offset(load.run.start), &mut data).is_err() {
            continue;
        }
        let is_right = |(block, place): (&[u8], &Place)| crc32fast::hash(block) == place.crc;
        // A wrong block is the reader's to report.
        if data.chunks_exact(BLOCK).zip(&load.places).all(is_right) {
            cache.insert(load.run.start, data);
        }
        drop(loading);
        drop(load.generation);
    }
}
