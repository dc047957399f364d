//! The disk as a service: which thread does what, and when a flush may be answered.
//!
//! Reads and writes go to a pool of threads, which move the bytes between the arena and the image without a copy of
//! ours. A short read that the page cache can serve is answered by the loop itself: handing it to another thread would
//! cost many times the copy. So is a short write, which is a copy to the page cache as well, unless the host lately made a
//! writer wait (too much of its memory is dirty). Flushes are gathered: one write-back answers every FLUSH that had arrived before it began. It covers all
//! writes that were completed before, because a write is completed only after `pwrite` returned.
//!
//! Lock order: `Flusher::waiting` is a leaf.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::Endpoint;
use rustix::io::Errno;
use vos_api::disk::{
    ALLOCATE, BLOCK_BYTES, DISCARD, FLUSH, FUA, INFO, READ, READ_ONLY, READV, SERVERS_OWN, SPANS_MAX, Span, WRITE,
};
use vos_rt::{ClientId, Hello, HelloReply, PoolError, Request, Service, WorkerPool};
use zerocopy::FromBytes;

use crate::rings::{Rings, Ticket};
use crate::volume::{Access, Need, Volume};

/// Threads that wait for the medium: as many transfers as a queue of a common disk takes without growing latency.
pub const WORKERS: usize = 4;

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
    rings: Arc<Rings>,
    pool: WorkerPool,
    epoch: u64,
    /// Who may change the volume; `None` for everybody.
    owner: Option<Endpoint>,
    /// Until then writes go to the pool.
    slow_until: Option<Instant>,
}

impl Disk {
    pub fn new(volume: Volume, epoch: u64) -> Result<Disk, PoolError> {
        let pool = WorkerPool::new("disk", WORKERS)?;
        let (volume, flusher, rings) = (Arc::new(volume), Arc::default(), Arc::default());
        Ok(Disk { volume, flusher, rings, pool, epoch, owner: None, slow_until: None })
    }

    /// Changes are taken from this endpoint alone; everybody who may open a ring reads.
    pub fn owned_by(self, owner: Endpoint) -> Disk {
        Disk { owner: Some(owner), ..self }
    }

    /// Finishes what was taken and brings everything to the medium.
    pub fn close(self) -> Result<(), Errno> {
        drop(self.pool);
        self.volume.flush()
    }

    fn info(&self, request: Request) {
        let flags = if self.volume.access() == Access::ReadOnly { READ_ONLY } else { 0 };
        request.reply([self.volume.bytes(), u64::from(BLOCK_BYTES), flags, self.epoch], 0);
    }

    fn read(&self, request: Request, ticket: Ticket) {
        let [offset, bytes, _] = request.args();
        let is_short = bytes <= u64::from(INLINE_READ_BYTES_MAX);
        if is_short && !ticket.must_wait() && self.volume.check_read(offset, bytes).is_ok() {
            let bytes = bytes as u32;
            if request.put_cached_from_file(0, self.volume.fd(), offset, bytes) == Ok(true) {
                return request.reply([0; 4], bytes);
            }
        }
        self.spawn(request, ticket, read);
    }

    fn write(&mut self, request: Request, ticket: Ticket) {
        let began = Instant::now();
        let is_short = request.out_bytes() <= INLINE_WRITE_BYTES_MAX && request.flags() & FUA == 0;
        if !is_short || ticket.must_wait() || self.slow_until.is_some_and(|until| began < until) {
            return self.spawn(request, ticket, write);
        }
        write(&self.volume, request);
        let ended = Instant::now();
        self.slow_until = (ended.duration_since(began) > WRITE_MAX).then(|| ended + WRITE_PAUSE);
    }

    fn flush(&self, request: Request) {
        if self.flusher.join(request) == Joined::First {
            let (volume, flusher) = (Arc::clone(&self.volume), Arc::clone(&self.flusher));
            self.run(move || flusher.run(&volume));
        }
    }

    fn spawn(&self, request: Request, ticket: Ticket, work: fn(&Volume, Request)) {
        let volume = Arc::clone(&self.volume);
        self.run(move || {
            ticket.wait();
            work(&volume, request);
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
    fn opened(&mut self, client: ClientId, from: Endpoint, _hello: &Hello) -> HelloReply {
        self.rings.opened(from, client);
        HelloReply::STATELESS
    }

    fn submit(&mut self, request: Request) {
        // The client of a ring that was replaced asks again over the new one.
        let Some(ticket) = self.rings.begin(request.from(), request.client()) else { return request.fail(Errno::IO) };
        let changes = matches!(request.op(), WRITE | DISCARD | ALLOCATE);
        if changes && self.owner.is_some_and(|owner| owner != request.from()) {
            return request.fail(Errno::ACCESS);
        }
        match request.op() {
            INFO => self.info(request),
            READ => self.read(request, ticket),
            READV => self.spawn(request, ticket, read_spans),
            WRITE => self.write(request, ticket),
            DISCARD => self.spawn(request, ticket, discard),
            ALLOCATE => self.spawn(request, ticket, allocate),
            FLUSH => self.flush(request),
            _ => request.fail(Errno::OPNOTSUPP),
        }
    }

    fn closed(&mut self, client: ClientId) {
        self.rings.closed(client);
    }
}

fn read(volume: &Volume, request: Request) {
    let [offset, bytes, _] = request.args();
    let wanted = u32::try_from(bytes).map_err(|_| Errno::INVAL);
    let result = wanted.and_then(|wanted| {
        volume.check_read(offset, bytes)?;
        let got = request.put_from_file(0, volume.fd(), offset, wanted)?;
        // Somebody cut the image: what is missing is not zeros.
        if got == wanted { Ok(wanted) } else { Err(Errno::IO) }
    });
    match result {
        Ok(bytes) => request.reply([0; 4], bytes),
        Err(errno) => request.fail(answer_of(volume, errno)),
    }
}

fn read_spans(volume: &Volume, request: Request) {
    match put_spans(volume, &request) {
        Ok(bytes) => request.reply([0; 4], bytes),
        Err(errno) => request.fail(answer_of(volume, errno)),
    }
}

fn put_spans(volume: &Volume, request: &Request) -> Result<u32, Errno> {
    if request.out_bytes() as usize > SPANS_MAX * size_of::<Span>() {
        return Err(Errno::INVAL);
    }
    // Copied out before the reply is put over them.
    let data = request.data();
    let spans = <[Span]>::ref_from_bytes(&data).map_err(|_| Errno::INVAL)?;
    let mut at = 0;
    for span in spans {
        let (offset, bytes) = (span.offset.get(), span.bytes.get());
        volume.check_read(offset, bytes)?;
        let wanted = u32::try_from(bytes).map_err(|_| Errno::RANGE)?;
        if request.put_from_file(at, volume.fd(), offset, wanted)? != wanted {
            return Err(Errno::IO);
        }
        // Within the room for the reply, which is a u32.
        at += wanted;
    }
    Ok(at)
}

fn write(volume: &Volume, request: Request) {
    let [offset, ..] = request.args();
    let bytes = request.out_bytes();
    let result = volume.check_write(offset, u64::from(bytes)).and_then(|()| {
        request.data_to_file(0, volume.fd(), offset, bytes)?;
        if request.flags() & FUA == 0 { Ok(()) } else { volume.flush() }
    });
    match result {
        Ok(()) => request.reply([0; 4], 0),
        Err(errno) => request.fail(answer_of(volume, errno)),
    }
}

fn discard(volume: &Volume, request: Request) {
    let [offset, bytes, _] = request.args();
    match volume.discard(offset, bytes) {
        Ok(()) => request.reply([0; 4], 0),
        Err(errno) => request.fail(errno),
    }
}

fn allocate(volume: &Volume, request: Request) {
    let [offset, bytes, _] = request.args();
    let need = if request.flags() & SERVERS_OWN == 0 { Need::Users } else { Need::Server };
    match volume.allocate(offset, bytes, need) {
        Ok(()) => request.reply([0; 4], 0),
        Err(errno) => request.fail(errno),
    }
}

/// Errors the contract names go to the client as they are, the host's others as the medium's failure.
fn answer_of(volume: &Volume, errno: Errno) -> Errno {
    match errno {
        Errno::INVAL | Errno::RANGE | Errno::ROFS => errno,
        other => volume.transfer_error(other),
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
        let mut waiting = self.lock();
        waiting.requests.push(request);
        if std::mem::replace(&mut waiting.is_running, true) { Joined::Running } else { Joined::First }
    }

    /// Writes back until nobody waits. Bounded by the clients, who wait for their answers.
    fn run(&self, volume: &Volume) {
        loop {
            let requests = {
                let mut waiting = self.lock();
                waiting.is_running = !waiting.requests.is_empty();
                std::mem::take(&mut waiting.requests)
            };
            if requests.is_empty() {
                return;
            }
            let result = volume.flush();
            for request in requests {
                match result {
                    Ok(()) => request.reply([0; 4], 0),
                    Err(errno) => request.fail(errno),
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
