//! The disk as a service: which thread does what, and when a flush may be answered.
//!
//! Reads and writes go to a pool of threads, which move the bytes between the arena and the image without a copy of
//! ours. A short read that the page cache can serve is answered by the loop itself: handing it to another thread would
//! cost many times the copy; one that it cannot serve waits in a ring, if there is one ([`FileReader`]). So is a short
//! write, which is a copy to the page cache as well, unless the host lately made a writer wait (too much of its memory
//! is dirty). Flushes are gathered: one write-back answers every FLUSH that had arrived before it began. It covers all
//! writes that were completed before, because a write is completed only after `pwrite` returned.
//!
//! Lock order: `Flusher::waiting` is a leaf.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Endpoint;
use disk_core::{Access, Bulk, Durability, Volume};
use parking_lot::Mutex;
use replica_core::lease::TERM_MS;
use rustix::io::Errno;
use vos_api::disk::{
    BLOCK_BYTES, DataTold, Held, READ_ONLY, Read, Request as Ask, SPANS_MAX, Span, TellData, VolumeInfo, Write,
};
use vos_rt::{ClientId, FileReader, Handle, Hello, HelloReply, PoolError, ReadBy, Request, Service, WorkerPool};
use zerocopy::{FromBytes, IntoBytes};

use crate::entrance::Entrance;
use crate::moment::Entered;
use crate::rings::Ticket;

/// Threads that wait for the medium, at most: with more a disk of today does not do more at a time.
pub const WORKERS: usize = 16;

/// Reads up to this length may be answered by the loop: about what a hand-over to a thread costs in copying.
pub const INLINE_READ_BYTES_MAX: u32 = 128 * 1024;

/// Writes up to this length may be done by the loop.
pub const INLINE_WRITE_BYTES_MAX: u32 = 64 * 1024;
/// A write that took longer waited for something.
const WRITE_MAX: Duration = Duration::from_millis(2);
/// How long the loop keeps from writing after one waited.
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// The service of one volume.
pub struct Disk {
    volume: Arc<Volume>,
    flusher: Arc<Flusher>,
    entrance: Entrance,
    reader: FileReader,
    pool: Arc<WorkerPool>,
    epoch: u64,
    /// Until then writes go to the pool.
    slow_until: Option<Instant>,
}

impl Disk {
    pub fn new(
        volume: Volume,
        entrance: Entrance,
        epoch: u64,
        read_by: ReadBy,
        handle: &Handle,
    ) -> Result<Disk, PoolError> {
        let pool = Arc::new(WorkerPool::new("disk", WORKERS)?);
        let reader = FileReader::new(volume.file(), read_by, &pool, handle);
        let (volume, flusher) = (Arc::new(volume), Arc::default());
        Ok(Disk { volume, flusher, entrance, reader, pool, epoch, slow_until: None })
    }

    /// Finishes what was taken and brings everything to the medium.
    pub fn close(mut self) -> Result<(), Errno> {
        self.reader.end();
        self.pool.end();
        self.volume.flush()
    }

    fn info(&self, request: Request) {
        let flags = if self.volume.access() == Access::ReadOnly { READ_ONLY } else { 0 };
        let block_bytes = u64::from(BLOCK_BYTES);
        request.reply(VolumeInfo { bytes: self.volume.bytes(), block_bytes, flags, epoch: self.epoch }, 0);
    }

    fn read(&self, request: Request, ticket: Ticket, Read { offset, bytes }: Read) {
        if ticket.must_wait() || bytes > u64::from(INLINE_READ_BYTES_MAX) || !self.volume.has(offset, bytes) {
            return self.spawn(request, ticket, move |volume, request| volume.read(offset, bytes, &Arena(request)));
        }
        let length = bytes as u32;
        if self.volume.read_cached(offset, length, &Arena(&request)) {
            return request.reply([0; 4], length);
        }
        let (volume, room) = (Arc::clone(&self.volume), request.room(0, length).ok());
        let taken = self.reader.read(room, offset, move |is_read| {
            let result = if is_read { Ok(length) } else { volume.read(offset, bytes, &Arena(&request)) };
            answer(request, result);
            drop(ticket);
        });
        if let Err(error) = taken {
            tracing::error!(%error, "a read was refused");
        }
    }

    fn write(&mut self, request: Request, ticket: Ticket, Write { durability, offset }: Write) {
        let work = move |volume: &Volume, request: &Request| {
            volume.write(offset, request.out_bytes(), &Arena(request), Durability::Server)
        };
        let began = Instant::now();
        let is_short = request.out_bytes() <= INLINE_WRITE_BYTES_MAX;
        let flusher = (durability == Durability::Power).then(|| Arc::clone(&self.flusher));
        if !is_short || ticket.must_wait() || self.slow_until.is_some_and(|until| began < until) {
            let volume = Arc::clone(&self.volume);
            return self.run(move || {
                ticket.wait();
                let result = work(&volume, &request);
                drop(ticket);
                if let Some(flusher) = written(request, result, flusher) {
                    flusher.run(&volume);
                }
            });
        }
        let result = work(&self.volume, &request);
        if let Some(flusher) = written(request, result, flusher) {
            let volume = Arc::clone(&self.volume);
            self.run(move || flusher.run(&volume));
        }
        let ended = Instant::now();
        self.slow_until = (ended.duration_since(began) > WRITE_MAX).then(|| ended + WRITE_PAUSE);
    }

    fn flush(&self, request: Request) {
        if self.flusher.join(request) == Joined::First {
            let (volume, flusher) = (Arc::clone(&self.volume), Arc::clone(&self.flusher));
            self.run(move || flusher.run(&volume));
        }
    }

    /// `work` answers the bytes of reply data.
    fn spawn(
        &self,
        request: Request,
        ticket: Ticket,
        work: impl FnOnce(&Volume, &Request) -> Result<u32, Errno> + Send + 'static,
    ) {
        let volume = Arc::clone(&self.volume);
        self.run(move || {
            ticket.wait();
            let result = work(&volume, &request);
            answer(request, result);
            drop(ticket);
        });
    }

    /// A job that finds no place is dropped, and its request answers `EIO`; rings are smaller than the pool's queue.
    fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(error) = self.pool.run(job) {
            tracing::error!(%error, "a request was refused");
        }
    }
}

impl Service for Disk {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        self.entrance.opened(client, from, hello)
    }

    fn submit(&mut self, request: Request) {
        if let Some(entered) = self.entrance.enter(request) {
            self.carry_out(entered);
        }
    }

    fn closed(&mut self, client: ClientId) {
        self.entrance.closed(client);
    }

    fn deadline(&self) -> Option<Instant> {
        self.entrance.due()
    }

    fn tick(&mut self, now: Instant) {
        for entered in self.entrance.tick(now) {
            self.carry_out(entered);
        }
        self.reader.submit();
    }
}

impl Disk {
    fn carry_out(&mut self, (request, ticket, asked): Entered) {
        match asked {
            Ask::Info(_) => self.info(request),
            Ask::Read(read) => self.read(request, ticket, read),
            Ask::Readv(_) => self.spawn(request, ticket, read_spans),
            Ask::Write(write) => self.write(request, ticket, write),
            Ask::Discard(it) => {
                self.spawn(request, ticket, move |volume, _| volume.discard(it.offset, it.bytes).map(|()| 0));
            }
            Ask::Allocate(it) => {
                self.spawn(request, ticket, move |volume, _| volume.allocate(it.offset, it.bytes, it.need).map(|()| 0));
            }
            Ask::TellData(it) => {
                let volume = Arc::clone(&self.volume);
                self.run(move || {
                    ticket.wait();
                    tell_data(&volume, request, it);
                    drop(ticket);
                });
            }
            // There is one.
            Ask::ReadOther(_) => request.fail(Errno::NXIO),
            Ask::Flush(_) => self.flush(request),
            Ask::Freeze(_) => self.entrance.freeze(request, self.volume.bytes()),
            Ask::Wanted(it) => self.entrance.listen(request, it.for_ms),
            Ask::Hold(_) => match self.entrance.promise(&request) {
                Ok(()) => request.reply(Held { for_ms: TERM_MS }, 0),
                Err(errno) => request.fail(errno),
            },
        }
    }
}

/// A request's part of its ring's arena.
pub(crate) struct Arena<'a>(pub &'a Request);

impl Bulk for Arena<'_> {
    fn fill(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<u32, Errno> {
        self.0.put_from_file(at, file, offset, bytes)
    }

    fn fill_cached(&self, at: u32, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<bool, Errno> {
        self.0.put_cached_from_file(at, file, offset, bytes)
    }

    fn drain(&self, file: BorrowedFd<'_>, offset: u64, bytes: u32) -> Result<(), Errno> {
        self.0.data_to_file(0, file, offset, bytes)
    }

    fn put(&self, at: u32, data: &[u8]) -> Result<(), Errno> {
        self.0.put(at, data)
    }

    fn take(&self, at: u32, into: &mut [u8]) -> Result<(), Errno> {
        self.0.data_into(at, into)
    }
}

fn read_spans(volume: &Volume, request: &Request) -> Result<u32, Errno> {
    if request.out_bytes() as usize > SPANS_MAX * size_of::<Span>() {
        return Err(Errno::INVAL);
    }
    // Copied out before the reply is put over them.
    let data = request.data();
    let spans = <[Span]>::ref_from_bytes(&data).map_err(|_| Errno::INVAL)?;
    volume.read_spans(spans, &Arena(request))
}

/// Where there is data, as far as the client has room for it.
pub(crate) fn tell_data(volume: &Volume, request: Request, TellData { offset, bytes }: TellData) {
    let most = (request.in_capacity() as usize / size_of::<Span>()).min(SPANS_MAX);
    let told = volume.data_in(offset, bytes, most).and_then(|(spans, until)| {
        request.put(0, spans.as_bytes())?;
        Ok((DataTold { until }, size_of_val(&spans[..]) as u32))
    });
    match told {
        Ok((told, bytes)) => request.reply(told, bytes),
        Err(errno) => request.fail(errno),
    }
}

/// Answers a write, or lets it wait for the next write-back, if there is to be one: by the caller, if it is given back.
fn written(request: Request, result: Result<(), Errno>, flusher: Option<Arc<Flusher>>) -> Option<Arc<Flusher>> {
    match flusher.filter(|_| result.is_ok()) {
        Some(flusher) => (flusher.join(request) == Joined::First).then_some(flusher),
        None => {
            answer(request, result.map(|()| 0));
            None
        }
    }
}

fn answer(request: Request, result: Result<u32, Errno>) {
    match result {
        Ok(in_bytes) => request.reply([0; 4], in_bytes),
        Err(errno) => request.fail(errno),
    }
}

/// Flushes that wait for the next write-back.
#[derive(Default)]
struct Flusher {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    is_running: bool,
}

#[derive(PartialEq, Eq)]
enum Joined {
    /// Nobody is writing back: the caller must see to it.
    First,
    Running,
}

impl Flusher {
    fn join(&self, request: Request) -> Joined {
        let mut waiting = self.waiting.lock();
        waiting.requests.push(request);
        if std::mem::replace(&mut waiting.is_running, true) { Joined::Running } else { Joined::First }
    }

    /// Writes back until nobody waits. Bounded by the clients, who wait for their answers.
    fn run(&self, volume: &Volume) {
        loop {
            let requests = {
                let mut waiting = self.waiting.lock();
                waiting.is_running = !waiting.requests.is_empty();
                std::mem::take(&mut waiting.requests)
            };
            if requests.is_empty() {
                return;
            }
            let result = volume.flush();
            requests.into_iter().for_each(|request| answer(request, result.map(|()| 0)));
        }
    }
}
