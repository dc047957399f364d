//! The process: from its spawn record to a service, and from requests to calls.
//!
//! Spawn record: options `disk` (endpoint number of the volume) and `disk_epoch` (of its placement), `cache_bytes`
//! (clean data kept in memory), `made_by_uid` and `made_by_gid` (of the root directory when it makes one), `go_back`
//! (name of the snapshot to go back to before anything else) and `go_back_number` (of that wish, which is heeded once),
//! `read_only` (1: the volume stays as it is, and what the server writes for itself is in its memory);
//! descriptor `lost` (which nodes are lost, whose gates need not be waited for).
//!
//! Nothing is answered while the volume is not held (`libvos::OwnHold`). The loop only hands over: workers execute.
//! What never waits (events, releases, cancellations) the loop does itself. Checkpoints and everything that depends on
//! time are jobs of the same workers, started by the loop's tick.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use abi::Endpoint;
use libvos::{BlockingSession, DiskClient, Epochs, Identity, OwnHold, PortConnect, Size};
use rustix::io::Errno as Os;
use vos_api::fs as api;
use vos_rt::{Boot, ClientId, Failure, Handle, Hello, HelloReply, Kind, Request, Service, WorkerPool, run};

use fs_core::device::BlockDevice;
use fs_core::{Call, Clock, Fs, GoBack, Options, Reply, Scratch};

use crate::disk::DiskDevice;

const KIND: Kind = Kind { name: "fs", system_calls: &[libc::SYS_pread64] };

/// Operations that may wait for the disk at a time.
const WORKERS: usize = 16;
const READAHEAD_THREADS: usize = 4;
const CAREFUL_WRITES: u32 = 16;
const CACHE_BYTES: u64 = 64 << 20;
const META_CACHE_BYTES: usize = 64 << 20;
/// The disk's ring: 1 MiB for each of 16 workers and 4 read-ahead threads, more than twice, so that none waits for
/// room.
const DISK_RING: Size = Size { entries: 256, arena_bytes: 48 << 20 };
/// How often time is told while something depends on it.
const TICK: Duration = Duration::from_millis(250);
/// How old a change may become before a checkpoint takes it in: bounds the log that a restart has to read.
const CHECKPOINT_AGE: Duration = Duration::from_secs(2);

/// Runs `dvs server fs`.
pub fn main_from_spawn() -> ExitCode {
    run(&KIND, open, |service| service.close())
}

fn open(boot: &mut Boot) -> Result<FsService, Failure> {
    let disk = boot.spawn.option_as("disk", Endpoint::from_u64)?.unwrap_or(Endpoint::DISK);
    let cache_bytes = boot.spawn.option_u64("cache_bytes")?.unwrap_or(CACHE_BYTES);
    let connect = PortConnect::new(boot.port.clone(), disk, DISK_RING);
    let epochs = Epochs { server: boot.spawn.option_epoch("disk_epoch")?, own: boot.spawn.placement_epoch };
    let session = BlockingSession::open(Box::new(connect), DISK_RING, Identity { epochs, ..Identity::default() })?;
    let device = DiskDevice::open(DiskClient::new(session), boot.handle.clone())?;
    let maker = |name| boot.spawn.option_as(name, |number| u32::try_from(number).ok());
    let made_by = (maker("made_by_uid")?.unwrap_or(0), maker("made_by_gid")?.unwrap_or(0));
    let number = boot.spawn.option_u64("go_back_number")?.unwrap_or(0);
    let go_back = boot.spawn.option_str("go_back")?.map(|name| GoBack { number, name: name.as_bytes().to_vec() });
    let opening = Opening { cache_bytes: cache_bytes as usize, made_by, go_back };
    let device: Arc<dyn BlockDevice> = match boot.spawn.option_u64("read_only")? {
        None | Some(0) => Arc::new(device),
        Some(_) if !Fs::is_on(&device)? => return Err("the volume holds nothing yet".into()),
        Some(_) => Arc::new(Scratch::new(device)),
    };
    let service = FsService::open_as(device, boot.handle.clone(), opening)?;
    let mut lost = boot.spawn.take_fd("lost").map(|page| LostSeats { page, known: 0 });
    fence_seats(&service.fs, lost.as_mut().map_or(0, LostSeats::since)).map_err(|errno| errno.to_string())?;
    Ok(FsService { lost, ..service })
}

/// Nodes that the cluster gave up, a bit for each seat: eight bytes (little-endian) that the daemon keeps up to date.
struct LostSeats {
    page: OwnedFd,
    known: u64,
}

impl LostSeats {
    /// Those that were given up since it was looked at.
    fn since(&mut self) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::retry_on_intr(|| rustix::io::pread(&self.page, &mut bytes, 0)) {
            Ok(got) if got == bytes.len() => {
                let now = u64::from_le_bytes(bytes);
                now & !std::mem::replace(&mut self.known, now)
            }
            _ => 0,
        }
    }
}

/// Nobody waits for what their file gates hold.
fn fence_seats(fs: &Fs, seats: u64) -> Result<(), vos_api::Errno> {
    let is_lost = |client| gate_seat(client).is_some_and(|seat| seats >> seat & 1 == 1);
    if seats == 0 { Ok(()) } else { fs.fence_clients(is_lost) }
}

/// The seat of the node whose file gate has this endpoint.
fn gate_seat(endpoint: u32) -> Option<u32> {
    endpoint.checked_sub(Endpoint::GATE.number()).filter(|seat| *seat < u64::BITS)
}

/// The file system as a service.
pub struct FsService {
    calls: Arc<Calls>,
    fs: Arc<Fs>,
    pool: Arc<WorkerPool>,
    handle: Handle,
    /// The session of each ring.
    sessions: HashMap<ClientId, u64>,
    /// The newest ring of each session that has one.
    newest: HashMap<u64, ClientId>,
    began: Instant,
    last_tick: Instant,
    last_checkpoint: Instant,
    is_checkpointing: Arc<AtomicBool>,
    is_ticking: Arc<AtomicBool>,
    /// `None`: the daemon tells nothing.
    lost: Option<LostSeats>,
    _parked: Parked,
}

/// How a volume is opened.
#[derive(Default)]
pub struct Opening {
    pub cache_bytes: usize,
    /// Owner and group of the root directory when the volume is made.
    pub made_by: (u32, u32),
    pub go_back: Option<GoBack>,
}

/// What is parked has the file system, which has what is parked: it goes with the service.
struct Parked {
    fs: Arc<Fs>,
    pool: Arc<WorkerPool>,
}

impl Drop for Parked {
    fn drop(&mut self) {
        // A job that still runs might park something more.
        self.pool.end();
        self.fs.abandon();
    }
}

impl FsService {
    /// Opens the volume on `device` and gets ready to serve it.
    pub fn open(device: Arc<dyn BlockDevice>, cache_bytes: usize, handle: Handle) -> Result<FsService, Failure> {
        FsService::open_as(device, handle, Opening { cache_bytes, ..Opening::default() })
    }

    /// Likewise.
    pub fn open_as(
        device: Arc<dyn BlockDevice>,
        handle: Handle,
        Opening { cache_bytes, made_by, go_back }: Opening,
    ) -> Result<FsService, Failure> {
        let pool = Arc::new(WorkerPool::new("fs", WORKERS)?);
        let mut seed = [0; 16];
        let got = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        if got != seed.len() {
            return Err("the kernel gave no random numbers".into());
        }
        let spawner = Arc::downgrade(&pool);
        let spawn = Arc::new(move |work: Box<dyn FnOnce() + Send>| match spawner.upgrade() {
            Some(pool) => {
                if let Err(error) = pool.run(work) {
                    tracing::error!("a parked operation was dropped: {error}");
                }
            }
            // The server is ending: what waited is sent again to its successor.
            None => drop(work),
        });
        let now = Instant::now();
        let options = Options {
            cache_bytes,
            meta_cache_bytes: META_CACHE_BYTES,
            readahead_threads: READAHEAD_THREADS,
            careful_writes: CAREFUL_WRITES,
            spawn,
            seed,
            clock: Clock::since(now),
            made_ns: unix_time_ns(),
            made_by,
            go_back,
        };
        let fs = Fs::open(Arc::clone(&device), options)?;
        let pool_of_calls = Arc::downgrade(&pool);
        let calls = Calls {
            fs: fs.clone(),
            device,
            hold: OwnHold::none(),
            pool: pool_of_calls,
            is_renewing: AtomicBool::new(false),
        };
        let parked = Parked { fs: fs.clone(), pool: Arc::clone(&pool) };
        Ok(FsService {
            calls: Arc::new(calls),
            fs,
            pool,
            handle,
            sessions: HashMap::new(),
            newest: HashMap::new(),
            began: now,
            last_tick: now,
            last_checkpoint: now,
            is_checkpointing: Arc::default(),
            is_ticking: Arc::default(),
            lost: None,
            _parked: parked,
        })
    }

    /// Brings everything to the disk.
    pub fn close(self) -> Result<(), Failure> {
        let fs = self.fs.clone();
        self.pool.end();
        match fs.failed() {
            Some(errno) => Err(format!("the volume failed: {errno}").into()),
            None => fs.sync().and_then(|()| fs.checkpoint()).map_err(|errno| errno.to_string().into()),
        }
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        // The job's request, if any, answers EIO when it is dropped.
        if let Err(error) = self.pool.run(job) {
            tracing::error!("a job was refused: {error}");
        }
    }

    fn run_once(&self, flag: &Arc<AtomicBool>, job: impl FnOnce(Arc<Fs>) + Send + 'static) {
        if flag.swap(true, Ordering::AcqRel) {
            return;
        }
        let (fs, flag) = (self.fs.clone(), flag.clone());
        self.run(move || {
            job(fs);
            flag.store(false, Ordering::Release);
        });
    }

    fn checkpoint(&mut self, now: Instant) {
        self.last_checkpoint = now;
        self.run_once(&self.is_checkpointing, |fs| {
            if let Err(errno) = fs.checkpoint() {
                tracing::error!("checkpoint: {errno}");
            }
        });
    }
}

impl Service for FsService {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        match self.fs.hello(hello.session, hello.progress) {
            Ok(opened) => {
                self.sessions.insert(client, hello.session);
                self.newest.insert(hello.session, client);
                self.fs.understands(hello.session, hello.speaks.newest >= api::TELL_SINCE);
                let (fs, session) = (self.fs.clone(), hello.session);
                self.run(move || {
                    if let Err(errno) = fs.keep_session(session, from.number(), opened) {
                        tracing::error!(session, "not kept: {errno}");
                    }
                });
                HelloReply::Welcome { highest: opened.highest, in_flight: 0, service: 0 }
            }
            Err(errno) => HelloReply::Refused(Os::from_raw_os_error(errno.number() as i32)),
        }
    }

    fn submit(&mut self, request: Request) {
        match request.op() {
            // A ring that was replaced must not swallow events.
            api::EVENTS if self.newest.get(&request.session()) != Some(&request.client()) => request.fail(Os::INTR),
            // Nothing of a file is told with these.
            api::EVENTS | api::RELEASED | api::TOLD | api::CANCEL => {
                self.fs.submit(call(&request), Box::new(move |reply| respond(request, reply)));
            }
            _ => {
                let calls = Arc::clone(&self.calls);
                self.run(move || calls.execute(request));
            }
        }
    }

    fn closed(&mut self, client: ClientId) {
        if let Some(session) = self.sessions.remove(&client) {
            if self.newest.get(&session) == Some(&client) {
                self.newest.remove(&session);
            }
            self.fs.detach(session);
        }
    }

    fn goodbye(&mut self, request: Request) {
        let fs = self.fs.clone();
        self.run(move || match fs.goodbye(request.session()) {
            Ok(()) => request.reply([0; 4], 0),
            Err(errno) => request.fail(Os::from_raw_os_error(errno.number() as i32)),
        });
    }

    fn deadline(&self) -> Option<Instant> {
        self.fs.needs_time().then(|| self.last_tick + TICK)
    }

    fn tick(&mut self, now: Instant) {
        if let Some(errno) = self.fs.failed() {
            // A new server recovers from what is on the disk; this one knows nothing for certain.
            tracing::error!("the volume failed ({errno}); ending");
            return self.handle.stop();
        }
        if self.fs.is_checkpoint_due() {
            self.checkpoint(now);
        }
        if now < self.last_tick + TICK {
            return;
        }
        self.last_tick = now;
        let lost = self.lost.as_mut().map_or(0, LostSeats::since);
        if lost != 0 {
            let fs = self.fs.clone();
            self.run(move || {
                if let Err(errno) = fence_seats(&fs, lost) {
                    tracing::error!("clients that are lost are waited for: {errno}");
                }
            });
        }
        let now_ms = now.duration_since(self.began).as_millis() as u64;
        self.run_once(&self.is_ticking, move |fs| fs.tick(now_ms));
        if self.fs.is_dirty() && now >= self.last_checkpoint + CHECKPOINT_AGE {
            self.checkpoint(now);
        }
    }
}

/// Calls that are answered while the volume is held.
struct Calls {
    fs: Arc<Fs>,
    device: Arc<dyn BlockDevice>,
    hold: OwnHold,
    pool: Weak<WorkerPool>,
    is_renewing: AtomicBool,
}

impl Calls {
    /// On a worker: the device is waited for.
    fn execute(self: Arc<Self>, request: Request) {
        if self.hold.is_over()
            && let Err(error) = self.hold.renew(|| self.device.hold())
        {
            tracing::error!(%error, "the volume cannot be held");
            return request.fail(Os::from_raw_os_error(error.0));
        }
        let fs = self.fs.clone();
        fs.submit(call(&request), Box::new(move |reply| self.answer(request, reply)));
    }

    /// By anybody, perhaps under a lock: nothing is waited for.
    fn answer(self: Arc<Self>, request: Request, reply: Reply) {
        if self.hold.is_over() {
            // Recorded, or repeatable.
            let calls = Arc::clone(&self);
            return self.later(move || calls.execute(request));
        }
        respond(request, reply);
        if self.hold.ends_soon() && !self.is_renewing.swap(true, Ordering::AcqRel) {
            let calls = Arc::clone(&self);
            self.later(move || {
                if let Err(error) = calls.hold.renew(|| calls.device.hold()) {
                    tracing::warn!(%error, "the volume is not held any longer");
                }
                calls.is_renewing.store(false, Ordering::Release);
            });
        }
    }

    fn later(&self, job: impl FnOnce() + Send + 'static) {
        // Without a pool the server is ending: what has no answer is sent again to its successor.
        if let Some(Err(error)) = self.pool.upgrade().map(|pool| pool.run(job)) {
            tracing::error!("a job was refused: {error}");
        }
    }
}

fn call(request: &Request) -> Call {
    Call {
        session: request.session(),
        sequence: request.sequence(),
        op: request.op(),
        flags: request.flags(),
        args: request.args(),
        data: request.data(),
        capacity: request.in_capacity() as usize,
    }
}

fn unix_time_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn respond(request: Request, reply: Reply) {
    if reply.parts.is_empty() {
        let Reply { status, results, data, .. } = reply;
        return request.answer(&vos_rt::Reply { status, results, data });
    }
    let mut at = 0;
    for part in &reply.parts {
        if let Err(errno) = request.put(at, part.bytes()) {
            return request.fail(errno);
        }
        at += part.bytes().len() as u32;
    }
    request.reply(reply.results, at);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn who_is_lost_is_told_once_and_again_when_it_was_back() {
        let page = tempfile::tempfile().expect("a file");
        let mut lost = LostSeats { page: page.try_clone().expect("a descriptor").into(), known: 0b1 };
        assert_eq!(lost.since(), 0, "nothing was written yet");
        let mut tell = |seats: u64| {
            page.write_all_at(&seats.to_le_bytes(), 0).expect("written");
            lost.since()
        };
        assert_eq!((tell(0b1), tell(0b101), tell(0b101)), (0, 0b100, 0));
        assert_eq!((tell(0b1), tell(0b101)), (0, 0b100));
    }
}
