//! The process: from its spawn record to a service, and from requests to calls.
//!
//! Spawn record: options `disk` (endpoint number of the volume) and `disk_epoch` (of its placement), `cache_bytes`
//! (clean data kept in memory).
//!
//! The loop only hands over: workers execute. What never waits (events, releases, cancellations) the loop does itself.
//! Checkpoints and everything that depends on time are jobs of the same workers, started by the loop's tick.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use abi::Endpoint;
use libvos::{BlockingSession, DiskClient, Epochs, Identity, PortConnect, Size};
use rustix::io::Errno as Os;
use vos_api::fs as api;
use vos_rt::{Boot, ClientId, Failure, Handle, Hello, HelloReply, Kind, Request, Service, WorkerPool, run};

use fs_core::device::BlockDevice;
use fs_core::{Call, Fs, Options, Reply};

use crate::disk::DiskDevice;

const KIND: Kind = Kind { name: "fs", system_calls: &[] };

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
    FsService::open(Arc::new(device), cache_bytes as usize, boot.handle.clone())
}

/// The file system as a service.
pub struct FsService {
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
}

impl FsService {
    /// Opens the volume on `device` and gets ready to serve it.
    pub fn open(device: Arc<dyn BlockDevice>, cache_bytes: usize, handle: Handle) -> Result<FsService, Failure> {
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
        let options = Options {
            cache_bytes,
            meta_cache_bytes: META_CACHE_BYTES,
            readahead_threads: READAHEAD_THREADS,
            careful_writes: CAREFUL_WRITES,
            spawn,
            seed,
            now_ms: 0,
            made_ns: unix_time_ns(),
        };
        let now = Instant::now();
        Ok(FsService {
            fs: Fs::open(device, options)?,
            pool,
            handle,
            sessions: HashMap::new(),
            newest: HashMap::new(),
            began: now,
            last_tick: now,
            last_checkpoint: now,
            is_checkpointing: Arc::default(),
            is_ticking: Arc::default(),
        })
    }

    /// Brings everything to the disk.
    pub fn close(self) -> Result<(), Failure> {
        let fs = self.fs.clone();
        drop(self.pool);
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
    fn opened(&mut self, client: ClientId, _from: Endpoint, hello: &Hello) -> HelloReply {
        match self.fs.hello(hello.session, hello.progress) {
            Ok(opened) => {
                self.sessions.insert(client, hello.session);
                self.newest.insert(hello.session, client);
                let (fs, session) = (self.fs.clone(), hello.session);
                self.run(move || {
                    if let Err(errno) = fs.keep_session(session, opened) {
                        tracing::error!(session, "not kept: {errno}");
                    }
                });
                HelloReply::Welcome { highest: opened.highest, in_flight: 0, service: 0 }
            }
            Err(errno) => HelloReply::Refused(Os::from_raw_os_error(errno.number() as i32)),
        }
    }

    fn submit(&mut self, request: Request) {
        let fs = self.fs.clone();
        match request.op() {
            // A ring that was replaced must not swallow events.
            api::EVENTS if self.newest.get(&request.session()) != Some(&request.client()) => request.fail(Os::INTR),
            api::EVENTS | api::RELEASED | api::CANCEL => execute(&fs, request),
            _ => self.run(move || execute(&fs, request)),
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
        let now_ms = now.duration_since(self.began).as_millis() as u64;
        self.run_once(&self.is_ticking, move |fs| fs.tick(now_ms));
        if self.fs.is_dirty() && now >= self.last_checkpoint + CHECKPOINT_AGE {
            self.checkpoint(now);
        }
    }
}

fn execute(fs: &Arc<Fs>, request: Request) {
    let call = Call {
        session: request.session(),
        sequence: request.sequence(),
        op: request.op(),
        flags: request.flags(),
        args: request.args(),
        data: request.data(),
        capacity: request.in_capacity() as usize,
    };
    fs.submit(call, Box::new(move |reply| respond(request, reply)));
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
