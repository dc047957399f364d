//! The server of a copy: [`Backup`] between the primary's ring and an image.
//!
//! What may wait for the medium is done by a pool, in any order. Whoever has news carries on with the machine, which is
//! under one lock: the loop with what the primary says, and a thread of the pool with what it has done. Blocks go from
//! the ring to the image without a copy of ours: the machine is given the number of the request, not its bytes. A copy
//! whose medium fails ends: silence is what its primary understands. One that has no room for a write says so
//! (`ENOSPC`), and goes on; for a primary of a release that does not understand that, it ends.
//!
//! Spawn record: descriptors `image`, `kept`; options `bytes`, `may_be_longer` (1: the image may), `disk` (the endpoint
//! that may speak with it), `set`.

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::Instant;

use abi::Endpoint;
use disk_core::{Access, Durability, Image, ImageFile, ReadInto, Volume};
use parking_lot::Mutex;
use replica_core::{
    Backup, BackupAct, BlockRange, CopyOperation, CopyState, Kept, Layout, OperationTicket, ReplicaAnswer,
    ReplicaMessage, decode_behind,
};
use rustix::io::Errno;
use vos_api::copy::{self as api, Outdated, Request as Ask, Welcomed};
use vos_api::disk::BLOCK_BYTES;
use vos_rt::{
    Boot, ClientId, Failure, Handle, Hello, HelloReply, Kind, Reply, Request, Service, SpawnError, WorkerPool,
};

use super::kept::KeptFile;
use crate::service::{Arena, WORKERS};

const KIND: Kind = Kind {
    name: "copy",
    system_calls: &[
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_fdatasync,
        libc::SYS_fallocate,
        libc::SYS_fstatfs,
        libc::SYS_fadvise64,
    ],
};
/// Blocks up to this length the loop writes itself.
const INLINE_BYTES_MAX: u32 = 64 * 1024;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Runs `dvs server copy`.
pub fn main_from_spawn() -> ExitCode {
    vos_rt::run(&KIND, open, CopyServer::close)
}

fn open(boot: &mut Boot) -> Result<CopyServer, Failure> {
    let file = boot.spawn.take_fd("image").ok_or(SpawnError::Missing("fds.image"))?;
    let kept = boot.spawn.take_fd("kept").ok_or(SpawnError::Missing("fds.kept"))?;
    let bytes = boot.spawn.option_u64("bytes")?;
    let may_be_longer = boot.spawn.option_u64("may_be_longer")? == Some(1);
    let set = boot.spawn.option_u64("set")?.ok_or(SpawnError::Missing("options.set"))?;
    let disk = boot.spawn.option_as("disk", Endpoint::from_u64)?.unwrap_or(Endpoint::DISK);
    let volume = Volume::new(ImageFile::open(Image { file, bytes, may_be_longer, access: Access::ReadWrite })?);
    tracing::info!(bytes = volume.bytes(), set, "copy opened");
    CopyServer::open(volume, kept, CopyOptions { set, disk, boot: boot_number()? }, boot.handle.clone())
}

/// Of this boot of the machine.
fn boot_number() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    Ok(u64::from_str_radix(&digits, 16)?)
}

/// What a copy is told.
#[derive(Clone, Copy, Debug)]
pub struct CopyOptions {
    pub set: u64,
    /// Who may speak with it.
    pub disk: Endpoint,
    pub boot: u64,
}

/// Of which blocks which checksums were wanted, and are made.
type Summed = Arc<Mutex<Vec<(OperationTicket, Vec<u32>)>>>;

/// The service of one copy.
pub struct CopyServer {
    copy: Arc<Mutex<ServedCopy>>,
    pool: Arc<WorkerPool>,
}

struct ServedCopy {
    /// For threads of the pool.
    known: Weak<Mutex<ServedCopy>>,
    machine: Backup<u64>,
    options: CopyOptions,
    volume: Arc<Volume>,
    kept: Arc<Mutex<KeptFile>>,
    pool: Arc<WorkerPool>,
    handle: Handle,
    began: Instant,
    /// Open rings whose primary would not understand that there is no room.
    of_earlier_release: HashSet<ClientId>,
    /// Rings that were greeted, with the epoch.
    greeted: HashMap<ClientId, u32>,
    /// By the number that the machine knows them by.
    requests: HashMap<u64, Arc<Request>>,
    next_request: u64,
    /// Requests that wait for an answer, by epoch and what was asked.
    waiting: HashMap<(u32, Awaited), Vec<u64>>,
    /// Checksums that the pool has made.
    summed: Summed,
    /// Operations that wait for the next flush.
    to_flush: Vec<OperationTicket>,
    is_flushing: bool,
    has_failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Awaited {
    Welcome,
    /// A write or a copy.
    Accepted(u64),
    Durable(u64),
    Sums(u64),
    Marked(u64, bool),
    Granted(u64),
}

impl CopyServer {
    pub fn open(
        volume: Volume,
        kept: rustix::fd::OwnedFd,
        options: CopyOptions,
        handle: Handle,
    ) -> Result<CopyServer, Failure> {
        let (file, kept) = KeptFile::open(kept)?;
        let layout = Layout::of_disk(volume.bytes() / BLOCK);
        let pool = Arc::new(WorkerPool::new("copy", WORKERS)?);
        let also = Arc::clone(&pool);
        let copy = |known: &Weak<Mutex<ServedCopy>>| ServedCopy {
            known: Weak::clone(known),
            machine: Backup::begin(layout, options.set, options.boot, kept, 0),
            options,
            volume: Arc::new(volume),
            kept: Arc::new(Mutex::new(file)),
            pool: also,
            handle,
            began: Instant::now(),
            of_earlier_release: HashSet::new(),
            greeted: HashMap::new(),
            requests: HashMap::new(),
            next_request: 1,
            waiting: HashMap::new(),
            summed: Arc::default(),
            to_flush: Vec::new(),
            is_flushing: false,
            has_failed: false,
        };
        Ok(CopyServer { copy: Arc::new_cyclic(|known| Mutex::new(copy(known))), pool })
    }

    /// Everything that was accepted is made durable.
    pub fn close(self) -> Result<(), Failure> {
        self.pool.end();
        let copy = self.copy.lock();
        if copy.has_failed {
            return Err("the medium failed".into());
        }
        Ok(copy.volume.flush()?)
    }
}

impl ServedCopy {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// What the machine hears, and what it will answer. `None`: it is nothing that makes sense.
    fn message(&self, ask: &Ask<'_>, number: u64, out_bytes: u32) -> Option<(ReplicaMessage<u64>, Awaited)> {
        let blocks = self.volume.bytes() / BLOCK;
        let range = |first: u64, count: u64| {
            let is_inside = count > 0 && first.checked_add(count).is_some_and(|end| end <= blocks);
            Some(BlockRange { first, count: u32::try_from(count).ok()? }).filter(|_| is_inside)
        };
        let data = || Some(u64::from(out_bytes)).filter(|bytes| bytes.is_multiple_of(BLOCK)).map(|bytes| bytes / BLOCK);
        let write = |seq: u64, behind: api::Behind, range, durable| ReplicaMessage::Write {
            seq,
            floor: behind.floor(seq),
            flushed: behind.flushed(seq),
            range,
            data: number,
            durable,
        };
        Some(match ask {
            Ask::Greet(_) => (ReplicaMessage::Hello, Awaited::Welcome),
            Ask::PutBlocks(it) => {
                (write(it.seq, it.behind, range(it.first, data()?)?, false), Awaited::Accepted(it.seq))
            }
            Ask::PutDurable(it) => {
                (write(it.seq, it.behind, range(it.first, data()?)?, true), Awaited::Accepted(it.seq))
            }
            Ask::PutZeros(it) => {
                (write(it.seq, it.behind, range(it.first, it.count.get())?, false), Awaited::Accepted(it.seq))
            }
            Ask::CopyBlocks(it) => {
                let range = range(it.first, data()?)?;
                (ReplicaMessage::Copy { seq: it.seq, range, data: number }, Awaited::Accepted(it.seq))
            }
            Ask::SyncCopy(it) => (ReplicaMessage::Flush { seq: it.seq }, Awaited::Durable(it.seq)),
            Ask::MarkCopy(it) => {
                let (generation, whole, behind) = (it.generation, it.whole != 0, decode_behind(it.missing)?);
                (ReplicaMessage::Mark { generation, whole, behind }, Awaited::Marked(generation, whole))
            }
            Ask::AskLease(it) => (ReplicaMessage::Lease { asked_ms: it.asked_ms }, Awaited::Granted(it.asked_ms)),
            Ask::SumBlocks(it) => {
                let range = range(it.first, it.count).filter(|_| it.count <= api::SUMS_MAX)?;
                (ReplicaMessage::Sum { seq: it.seq, range }, Awaited::Sums(it.seq))
            }
            Ask::Reserve(_) | Ask::LookAt(_) => return None,
        })
    }

    fn act(&mut self, acts: Vec<BackupAct<u64>>) {
        let mut acts: std::collections::VecDeque<BackupAct<u64>> = acts.into();
        while let Some(act) = acts.pop_front() {
            match act {
                BackupAct::Answer(epoch, answer) => self.answer(epoch, answer),
                BackupAct::Do(ticket, CopyOperation::Keep(kept)) => self.keep(ticket, kept),
                BackupAct::Do(ticket, CopyOperation::Flush) => self.flush(ticket),
                BackupAct::Do(ticket, CopyOperation::Sum(range)) => self.sum(ticket, range),
                BackupAct::Do(ticket, CopyOperation::Write { range, data }) => {
                    // Answered already, since it was said before: the same bytes are there.
                    let Some(request) = self.requests.get(&data).map(Arc::clone) else {
                        acts.extend(self.machine.done(ticket));
                        continue;
                    };
                    let volume = Arc::clone(&self.volume);
                    let work = move || write(&volume, range, &request);
                    if u64::from(range.count) * BLOCK > u64::from(INLINE_BYTES_MAX) {
                        self.later(ticket, work);
                    } else {
                        acts.extend(self.ended(ticket, work()));
                    }
                }
            }
        }
    }

    /// What follows an operation.
    fn ended(&mut self, ticket: OperationTicket, result: Result<(), Errno>) -> Vec<BackupAct<u64>> {
        match result {
            Ok(()) => self.machine.done(ticket),
            Err(Errno::NOSPC) if self.machine.is_write(ticket) => self.machine.refused(ticket),
            Err(errno) => {
                self.fail(errno);
                Vec::new()
            }
        }
    }

    /// One flush is under way at a time, of all that wait when it begins.
    fn flush(&mut self, ticket: OperationTicket) {
        self.to_flush.push(ticket);
        if std::mem::replace(&mut self.is_flushing, true) {
            return;
        }
        let (known, volume) = (Weak::clone(&self.known), Arc::clone(&self.volume));
        self.run(move || {
            while let Some(tickets) = known.upgrade().and_then(|copy| copy.lock().begin_flush()) {
                let result = volume.flush();
                let Some(copy) = known.upgrade() else { return };
                let mut copy = copy.lock();
                for ticket in tickets {
                    let acts = copy.ended(ticket, result);
                    copy.act(acts);
                }
            }
        });
    }

    fn begin_flush(&mut self) -> Option<Vec<OperationTicket>> {
        self.is_flushing = !self.to_flush.is_empty();
        self.is_flushing.then(|| std::mem::take(&mut self.to_flush))
    }

    fn keep(&mut self, ticket: OperationTicket, kept: Kept) {
        let file = Arc::clone(&self.kept);
        self.later(ticket, move || file.lock().keep(&kept));
    }

    fn later(&mut self, ticket: OperationTicket, work: impl FnOnce() -> Result<(), Errno> + Send + 'static) {
        let known = Weak::clone(&self.known);
        self.run(move || {
            let result = work();
            if let Some(copy) = known.upgrade() {
                let mut copy = copy.lock();
                let acts = copy.ended(ticket, result);
                copy.act(acts);
            }
        });
    }

    fn run(&mut self, job: impl FnOnce() + Send + 'static) {
        if let Err(error) = self.pool.run(job) {
            tracing::error!(%error, "a copy finds no place for its work");
            self.fail(Errno::AGAIN);
        }
    }

    fn fail(&mut self, errno: Errno) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::error!(%errno, "a copy cannot be changed any more, and ends");
        }
        self.handle.stop();
    }

    fn answer(&mut self, epoch: u32, answer: ReplicaAnswer) {
        let awaited = match &answer {
            ReplicaAnswer::Welcome(_) => Awaited::Welcome,
            ReplicaAnswer::Accepted { seq } | ReplicaAnswer::NoRoom { seq } => Awaited::Accepted(*seq),
            ReplicaAnswer::Durable { seq } => Awaited::Durable(*seq),
            ReplicaAnswer::Sums { seq, .. } => Awaited::Sums(*seq),
            ReplicaAnswer::Marked { generation, whole } => Awaited::Marked(*generation, *whole),
            ReplicaAnswer::Granted { asked_ms } => Awaited::Granted(*asked_ms),
            ReplicaAnswer::Outdated { epoch: now } => return self.end_epochs_before(*now),
        };
        let promised_ms = self.machine.promised_until_ms().saturating_sub(self.now_ms());
        let reply = match answer {
            ReplicaAnswer::Welcome(state) => {
                // Nothing is under way when it is welcomed.
                let data = CopyState { is_blank: self.volume.data_from(0).is_none(), ..state }.encode();
                let results = Welcomed { promised_ms, bytes: data.len() as u64 }.into();
                Reply { status: 0, results, data }
            }
            ReplicaAnswer::NoRoom { .. } => {
                let asks = self.waiting.get(&(epoch, awaited)).into_iter().flatten();
                let mut clients = asks.filter_map(|number| self.requests.get(number)).map(|request| request.client());
                if clients.any(|client| self.of_earlier_release.contains(&client)) {
                    return self.fail(Errno::NOSPC);
                }
                Reply { status: Errno::NOSPC.raw_os_error() as u32, results: [0; 4], data: Vec::new() }
            }
            ReplicaAnswer::Sums { sums, .. } => {
                let data = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
                Reply { status: 0, results: [0; 4], data }
            }
            _ => Reply { status: 0, results: [0; 4], data: Vec::new() },
        };
        self.answer_all((epoch, awaited), &reply);
    }

    fn answer_all(&mut self, awaited: (u32, Awaited), reply: &Reply) {
        for number in self.waiting.remove(&awaited).unwrap_or_default() {
            match self.requests.remove(&number).map(Arc::try_unwrap) {
                Some(Ok(request)) => request.answer(reply),
                // It was said twice, and its bytes are being written again: answered when that is done.
                Some(Err(busy)) => {
                    self.requests.insert(number, busy);
                    self.waiting.entry(awaited).or_default().push(number);
                }
                None => (),
            }
        }
    }

    fn end_epochs_before(&mut self, now: u32) {
        let over: Vec<(u32, Awaited)> = self.waiting.keys().filter(|(epoch, _)| *epoch < now).copied().collect();
        over.into_iter().for_each(|key| self.answer_all(key, &outdated(now)));
    }

    fn sum(&mut self, ticket: OperationTicket, range: BlockRange) {
        let (volume, summed, handle) = (Arc::clone(&self.volume), Arc::clone(&self.summed), self.handle.clone());
        self.run(move || {
            let sums = sums(&volume, range).unwrap_or_else(|errno| {
                tracing::error!(%errno, first = range.first, count = range.count, "blocks of this copy cannot be read");
                Vec::new()
            });
            summed.lock().push((ticket, sums));
            handle.poke();
        });
    }

    fn look(&self, request: Request, it: &api::LookAt) {
        let (offset, bytes) = (it.first.checked_mul(BLOCK), it.count.checked_mul(BLOCK));
        let range = offset.zip(bytes).filter(|range| range.1 <= u64::from(request.in_capacity()));
        let Some((offset, bytes)) = range else { return request.fail(Errno::INVAL) };
        let volume = Arc::clone(&self.volume);
        let done = self.pool.run(move || match volume.read_medium(offset, bytes, &Arena(&request)) {
            Ok(bytes) => request.reply([0; 4], bytes),
            Err(errno) => request.fail(errno),
        });
        if let Err(error) = done {
            tracing::error!(%error, "a request was refused");
        }
    }

    fn reserve(&self, request: Request, it: &api::Reserve) {
        let volume = Arc::clone(&self.volume);
        let (need, first, count) = (it.need, it.first, it.count);
        let done = self.pool.run(move || {
            let range = first.checked_mul(BLOCK).zip(count.checked_mul(BLOCK)).ok_or(Errno::INVAL);
            match range.and_then(|(offset, bytes)| volume.allocate(offset, bytes, need)) {
                Ok(()) => request.reply([0; 4], 0),
                Err(errno) => request.fail(errno),
            }
        });
        if let Err(error) = done {
            tracing::error!(%error, "a request was refused");
        }
    }
}

fn outdated(epoch: u32) -> Reply {
    let results = Outdated { server: 0, own: epoch.into() }.into();
    Reply { status: Errno::STALE.raw_os_error() as u32, results, data: Vec::new() }
}

fn sums(volume: &Volume, range: BlockRange) -> Result<Vec<u32>, Errno> {
    let mut bytes = vec![0; range.count as usize * BLOCK as usize];
    volume.read_medium(range.first * BLOCK, bytes.len() as u64, &ReadInto::new(&mut bytes))?;
    Ok(bytes.chunks_exact(BLOCK as usize).map(crc32fast::hash).collect())
}

fn write(volume: &Volume, range: BlockRange, request: &Request) -> Result<(), Errno> {
    let (offset, bytes) = (range.first * BLOCK, u64::from(range.count) * BLOCK);
    if request.op() == api::PUT_ZEROS {
        return volume.discard(offset, bytes);
    }
    // What nobody ever wrote takes no space where the image is sparse; what was set aside stays so.
    let is_bare = || volume.data_from(offset).is_none_or(|(first, _)| first >= offset + bytes);
    if request.op() == api::COPY && is_bare() && request.data().iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    volume.write(offset, bytes as u32, &Arena(request), Durability::Server)
}

impl Service for CopyServer {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        let mut copy = self.copy.lock();
        if from != copy.options.disk {
            return HelloReply::Refused(Errno::ACCESS);
        }
        if hello.speaks.newest < api::NO_ROOM_SINCE {
            copy.of_earlier_release.insert(client);
        }
        HelloReply::STATELESS
    }

    fn submit(&mut self, request: Request) {
        self.copy.lock().submit(request);
    }

    fn closed(&mut self, client: ClientId) {
        let mut copy = self.copy.lock();
        copy.greeted.remove(&client);
        copy.of_earlier_release.remove(&client);
    }

    fn tick(&mut self, _now: Instant) {
        self.copy.lock().take_sums();
    }
}

impl ServedCopy {
    fn submit(&mut self, request: Request) {
        let is_short = matches!(request.op(), api::PUT_ZEROS | api::MARK);
        let data = if is_short { request.data() } else { Vec::new() };
        let ask = match Ask::decode(request.op(), request.flags(), request.args(), &data) {
            Ok(ask) => ask,
            Err(why) => return request.refuse(why),
        };
        if let Ask::Greet(greet) = &ask {
            let Some(epoch) = u32::try_from(greet.epoch).ok().filter(|_| greet.set == self.options.set) else {
                return request.fail(Errno::INVAL);
            };
            self.greeted.insert(request.client(), epoch);
        }
        let Some(epoch) = self.greeted.get(&request.client()).copied() else { return request.fail(Errno::STALE) };
        if epoch < self.machine.fence() {
            return request.answer(&outdated(self.machine.fence()));
        }
        match &ask {
            Ask::Reserve(it) => return self.reserve(request, it),
            Ask::LookAt(it) => return self.look(request, it),
            _ => (),
        }
        let number = self.next_request;
        let Some((message, awaited)) = self.message(&ask, number, request.out_bytes()) else {
            return request.fail(Errno::INVAL);
        };
        self.next_request += 1;
        self.requests.insert(number, Arc::new(request));
        self.waiting.entry((epoch, awaited)).or_default().push(number);
        let acts = self.machine.hear(epoch, message, self.now_ms());
        self.end_epochs_before(self.machine.fence());
        self.act(acts);
    }

    fn take_sums(&mut self) {
        let summed = std::mem::take(&mut *self.summed.lock());
        for (ticket, sums) in summed {
            let acts = self.machine.summed(ticket, sums);
            self.act(acts);
        }
    }
}
