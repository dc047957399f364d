//! The file system as one object: what all operations share, and how an operation's changes become permanent.
//!
//! [`Fs::transact`] is the only way to change anything. Under the lock of `progress` it collects the changes, queues
//! their record and applies them in memory, so that the order of application is the order of the log. The answer goes
//! out when the record was written.
//!
//! Lock order, outermost first: a file's stripe (`files`), `checkpointing`, `progress`, `blocks`, then the leaves (log,
//! store, cache, leases, sessions, waiting locks, lingering inodes, quotas to be counted). Only `checkpointing` and
//! stripes are held while the device works; the lock of `progress` may wait for a page of the metadata store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::alloc::{Allocator, Claim, Generation};
use crate::aside::{self, Aside};
use crate::cache::Cache;
use crate::calls::Responder;
use crate::clock::Clock;
use crate::device::{BlockDevice, Need};
use crate::error::{Errno, OpenError, StoreError};
use crate::extents::Run;
use crate::layout::Layout;
use crate::leases::Leases;
use crate::linger::Lingering;
use crate::locks::Waiting;
use crate::log::{Counters, Done, Log, RECORD_BYTES_MAX, Tail};
use crate::model::{key, key1, tag};
use crate::ops::quotas::Counting;
use crate::quotas::Quotas;
use crate::readahead::ReadAhead;
use crate::sessions::Mark;
use crate::snapshots;
use crate::store::{Change, Key, Room, Store};
use crate::txn::Txn;

/// Stripes of the lock that serialises changes of one file's data.
const FILE_STRIPES: usize = 256;
/// Others fill what a checkpoint has made room for.
const TRIES_WHEN_FULL: u32 = 4;
/// Changed metadata in memory that makes a checkpoint due.
const ACTIVE_BYTES_DUE: usize = 32 << 20;
/// Data written that makes a checkpoint due: recovery may have to verify this much.
const WRITTEN_BYTES_DUE: u64 = 1 << 30;

/// What a session adds to a record besides the reply: the keys of the newest and the oldest reply, and of itself.
const MARK_BYTES: usize = 128;

/// Data up to this length travels with its record. Longer data takes longer than the round trip that this saves.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

/// Somebody wants the tree back as it was when a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoBack {
    /// Of the wish: the last one that was heeded is not heeded again. Not 0.
    pub number: u64,
    /// Of the snapshot, as its name says in `.snapshots`.
    pub name: Vec<u8>,
}

/// Runs work on another thread, or at once.
pub type Spawn = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

#[derive(Clone)]
pub struct Options {
    /// Clean data kept in memory.
    pub cache_bytes: usize,
    /// Metadata pages kept in memory by redb.
    pub meta_cache_bytes: usize,
    /// Threads that read ahead; 0 turns it off.
    pub readahead_threads: usize,
    /// How many small writes after opening wait for their data before their record is made. When the medium takes no
    /// more, data that travels with its record can only fail the whole server; so the one after that must find out
    /// alone.
    pub careful_writes: u32,
    /// Where operations go on that had to wait.
    pub spawn: Spawn,
    /// Distinguishes the lives of one volume and names it when it is made; random.
    pub seed: [u8; 16],
    pub clock: Clock,
    /// Time of the root directory when the volume is made: nanoseconds since 1970.
    pub made_ns: u64,
    /// Owner and group of the root directory, likewise.
    pub made_by: (u32, u32),
    /// What is done before anything else, once. Nobody may use the tree meanwhile.
    pub go_back: Option<GoBack>,
}

impl Options {
    /// Everything on the caller's thread, for tests.
    pub fn inline(seed: u64) -> Options {
        let mut bytes = [0x5a; 16];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Options {
            cache_bytes: 4 << 20,
            meta_cache_bytes: 8 << 20,
            readahead_threads: 0,
            careful_writes: 0,
            spawn: Arc::new(|work| work()),
            seed: bytes,
            clock: Clock::default(),
            made_ns: 0,
            made_by: (0, 0),
            go_back: None,
        }
    }
}

pub struct Fs {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) layout: Layout,
    aside: Arc<Aside>,
    pub(crate) store: Store,
    pub(crate) log: Log,
    pub(crate) blocks: Mutex<Allocator>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) readahead: ReadAhead,
    pub(crate) leases: Leases,
    pub(crate) sessions: Mutex<sessions::Table<Responder>>,
    pub(crate) waiting: Mutex<Waiting>,
    pub(crate) lingering: Mutex<Lingering>,
    pub(crate) spawn: Spawn,
    pub(crate) clock: Clock,
    progress: Mutex<Progress>,
    checkpointing: Mutex<()>,
    files: Vec<Mutex<()>>,
    flush: FlushGate,
    /// Bytes of keys and values in the durable layer.
    meta_bytes: AtomicI64,
    written_bytes: AtomicU64,
    /// Small writes that must still succeed by themselves before data travels with its record.
    careful_writes: AtomicU32,
    /// A writer of files was refused space by the disk's host, and none has had any since.
    is_host_full: AtomicBool,
    /// The least version of a release that knows what is in it, as the superblock says.
    needs: AtomicU32,
    pub(crate) quotas: Quotas,
    pub(crate) counting: Mutex<Counting>,
}

pub(crate) struct Progress {
    pub counters: Counters,
    /// Number of the last record.
    pub applied: u64,
}

/// What [`Fs::new`] needs beyond the options: the state that opening or making the volume found.
pub(crate) struct Found {
    pub layout: Layout,
    pub aside: Arc<Aside>,
    pub store: Store,
    pub log: Log,
    pub blocks: Allocator,
    pub counters: Counters,
    pub applied: u64,
    pub meta_bytes: i64,
    pub quotas: Quotas,
}

/// The part of the metadata that is kept back for those who write behind.
const BEHIND_META_DIVISOR: u64 = 16;

/// Whether an operation may use up metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    Grows,
    /// Removes or replaces; works on a full volume, unless snapshots need what was there.
    Shrinks,
    /// Was promised, or ends what somebody had: works always.
    Owed,
}

/// Takes the answer of an operation to whoever asked, once its record is written.
pub(crate) type Finish<T> = Box<dyn FnOnce(Result<T, Errno>) + Send>;

/// Lets concurrent fsyncs share one flush of the device: each needs one that began after it asked.
#[derive(Default)]
struct FlushGate {
    state: Mutex<FlushState>,
    ended: Condvar,
}

#[derive(Default)]
struct FlushState {
    begun: u64,
    ended: u64,
    is_running: bool,
    failed: bool,
}

impl Fs {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, options: Options, found: Found) -> Fs {
        let cache = Arc::new(Cache::new(options.cache_bytes));
        Fs {
            readahead: ReadAhead::new(device.clone(), found.layout, cache.clone(), options.readahead_threads),
            device,
            needs: AtomicU32::new(found.layout.needs),
            quotas: found.quotas,
            counting: Mutex::default(),
            layout: found.layout,
            aside: found.aside,
            store: found.store,
            log: found.log,
            blocks: Mutex::new(found.blocks),
            cache,
            leases: Leases::by(options.clock.clone()),
            sessions: Mutex::default(),
            waiting: Mutex::default(),
            lingering: Mutex::default(),
            spawn: options.spawn,
            clock: options.clock,
            progress: Mutex::new(Progress { counters: found.counters, applied: found.applied }),
            checkpointing: Mutex::new(()),
            files: (0..FILE_STRIPES).map(|_| Mutex::new(())).collect(),
            flush: FlushGate::default(),
            meta_bytes: AtomicI64::new(found.meta_bytes),
            written_bytes: AtomicU64::new(0),
            careful_writes: AtomicU32::new(options.careful_writes),
            is_host_full: AtomicBool::new(false),
        }
    }

    /// Why the volume takes no more changes, if so. The server ends itself then; a new one recovers.
    pub fn failed(&self) -> Option<Errno> {
        self.log.failed()
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Serialises changes of one file's size and data.
    #[allow(clippy::indexing_slicing, reason = "a remainder is below the number of stripes")]
    pub(crate) fn lock_file(&self, ino: u64) -> MutexGuard<'_, ()> {
        self.files[(ino % FILE_STRIPES as u64) as usize].lock()
    }

    /// Blocks freed from now on keep their content until this is dropped.
    pub(crate) fn generation(&self) -> Generation {
        self.blocks.lock().generation()
    }

    /// Changes something. On success `finish` is called with `work`'s answer as soon as the record is written (by
    /// [`Log::drive`], which the caller calls when it holds no lock); on failure it comes back uncalled.
    pub(crate) fn transact<T: Reply>(
        &self,
        growth: Growth,
        mark: Option<Mark>,
        finish: Finish<T>,
        work: impl FnOnce(&mut Txn<'_>) -> Result<T, Errno>,
    ) -> Result<(), (Errno, Finish<T>)> {
        let mut progress = match self.enter(growth) {
            Ok(progress) => progress,
            Err(errno) => return Err((errno, finish)),
        };
        // A session ends under this lock: what it holds is given up afterwards, and nothing is added to it.
        if let Some(mark) = mark
            && let Err(errno) = self.check_session(mark.session)
        {
            return Err((errno, finish));
        }
        let mut txn = Txn::new(&self.store, progress.counters);
        let reply = match work(&mut txn) {
            Ok(reply) => reply,
            Err(errno) => return Err((errno, finish)),
        };
        if let Err(errno) = self.quotas.charge(&mut txn, growth) {
            return Err((errno, finish));
        }
        let kept = mark.map(|mark| (mark, reply.to_bytes()));
        // Before the session counts the operation as executed.
        let weight = txn.weight() + kept.as_ref().map_or(0, |(_, reply)| reply.len() + MARK_BYTES);
        if weight > RECORD_BYTES_MAX {
            tracing::error!("an operation's record would have {weight} bytes");
            return Err((Errno::Io, finish));
        }
        if !txn.freed.iter().all(|run| self.layout.has(*run)) {
            tracing::error!("an operation would free blocks outside the volume");
            return Err((Errno::Io, finish));
        }
        if txn.changes_snapshots() {
            return Err((Errno::ReadOnly, finish));
        }
        if let Some((mark, reply)) = kept {
            let entry = self.sessions.lock().record(mark, progress.applied + 1);
            if let Some(Err(errno)) = entry.map(|entry| entry.put(&mut txn, &reply)) {
                return Err((errno, finish));
            }
        }
        self.apply(&mut progress, txn, Box::new(move |result| finish(result.map(|()| reply))));
        Ok(())
    }

    /// A change that nobody waits for.
    pub(crate) fn transact_quietly(&self, work: impl FnOnce(&mut Txn<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        self.transact(Growth::Owed, None, Box::new(|_| ()), work).map_err(|(errno, _)| errno)
    }

    fn apply(&self, progress: &mut Progress, mut txn: Txn<'_>, done: Done) {
        let writes = std::mem::take(&mut txn.writes);
        let record = txn.into_record();
        if record.changes.is_empty() && record.allocated.is_empty() && record.freed.is_empty() {
            return self.log.after(done);
        }
        progress.applied += 1;
        progress.counters = record.counters;
        {
            let mut blocks = self.blocks.lock();
            blocks.own(&record.allocated);
            blocks.disown(&record.freed);
        }
        self.log.push(&record, writes, done);
        self.store.apply(record.changes);
    }

    /// The lock of `progress`, with room for one record; [`Errno::NoSpace`] when the metadata region is full.
    fn enter(&self, growth: Growth) -> Result<MutexGuard<'_, Progress>, Errno> {
        let mut tries = 0;
        if growth == Growth::Grows {
            self.aside.metadata()?;
        }
        loop {
            if let Some(errno) = self.log.failed() {
                return Err(errno);
            }
            let progress = self.progress.lock();
            let fits = match growth {
                Growth::Grows => self.has_metadata(),
                Growth::Shrinks => self.store.base().newest().is_none() || self.has_metadata(),
                Growth::Owed => true,
            };
            if self.log.has_room() && fits {
                return Ok(progress);
            }
            drop(progress);
            if !fits && tries == TRIES_WHEN_FULL {
                return Err(Errno::NoSpace);
            }
            tries += 1;
            if !fits {
                self.reap_lingering()?;
            }
            // What is queued counts as used until it has its place.
            self.log.settle()?;
            self.checkpoint()?;
        }
    }

    pub(crate) fn files_free(&self) -> u64 {
        self.layout.files_free(self.meta_used())
    }

    fn meta_used(&self) -> u64 {
        self.meta_bytes.load(Ordering::Relaxed).max(0) as u64 + self.store.pending_bytes() as u64
    }

    pub(crate) fn has_metadata(&self) -> bool {
        self.meta_used() < self.layout.meta_limit()
    }

    /// Room for what snapshots have of what is to be freed. What is on its way counts as the most that it may take,
    /// until a checkpoint tells.
    pub(crate) fn demand_room_for_snapshots(&self) -> Result<(), Errno> {
        if self.may_reap() {
            return Ok(());
        }
        self.log.settle()?;
        self.checkpoint()?;
        if self.may_reap() { Ok(()) } else { Err(Errno::NoSpace) }
    }

    /// Metadata grows by what was promised, which is told whatever the host says: its word goes for what comes next.
    pub(crate) fn ask_for_metadata(&self) {
        if self.aside.metadata().is_err() {
            self.is_host_full.store(true, Ordering::Relaxed);
        }
    }

    /// Sessions that write behind came or went.
    pub(crate) fn keep_back(&self) {
        self.blocks.lock().keep_back(self.leases.behind_count());
    }

    /// Whether there is room for what sessions may have changed and not told.
    pub(crate) fn has_room_behind(&self) -> bool {
        let limit = self.layout.meta_limit();
        let is_host_full = self.is_host_full.load(Ordering::Relaxed);
        !is_host_full && self.blocks.lock().has_kept_back() && self.meta_used() < limit - limit / BEHIND_META_DIVISOR
    }

    /// Number of the last record.
    pub(crate) fn applied(&self) -> u64 {
        self.progress.lock().applied
    }

    pub(crate) fn counters(&self) -> Counters {
        self.progress.lock().counters
    }

    /// Takes blocks for data; asks for a checkpoint when that frees enough.
    pub(crate) fn take_blocks(&self, count: u64, claim: Claim) -> Result<Vec<Run>, Errno> {
        if count == 0 {
            return Ok(Vec::new());
        }
        for attempt in 0..2 {
            let pending = {
                let mut blocks = self.blocks.lock();
                let taken = blocks.take(count, claim);
                let pending = blocks.pending();
                drop(blocks);
                match taken.map(|runs| self.have_space(runs, claim)) {
                    None | Some(Err(Errno::NoSpace)) => pending,
                    Some(done) => {
                        let runs = done?;
                        self.cache.forget(&runs);
                        return Ok(runs);
                    }
                }
            };
            if attempt == 0 && (self.reap_lingering()? || pending > 0) {
                self.checkpoint()?;
            }
        }
        Err(Errno::NoSpace)
    }

    /// Blocks that were taken, once their space is set aside; when there is none to be had, others whose space is.
    fn have_space(&self, runs: Vec<Run>, claim: Claim) -> Result<Vec<Run>, Errno> {
        let need = if claim == Claim::Emergency { Need::Server } else { Need::Users };
        let mut asked = self.aside.data(&runs, need);
        if claim != Claim::Emergency {
            self.is_host_full.store(asked == Err(Errno::NoSpace), Ordering::Relaxed);
        }
        // Until it is heard that there is no more room: what was promised by then.
        if claim == Claim::Behind && asked == Err(Errno::NoSpace) {
            asked = self.aside.data(&runs, Need::Server);
        }
        let Err(errno) = asked else { return Ok(runs) };
        let mut blocks = self.blocks.lock();
        blocks.give_back(&runs);
        // After a restart nothing is known of what has its space; most of it lies at the start.
        blocks.rewind();
        let count = runs.iter().map(|run| run.count).sum();
        let is_aside = |piece| self.aside.has_piece(piece);
        match errno {
            Errno::NoSpace => blocks.take_in(count, claim, aside::PIECE_BLOCKS, is_aside).ok_or(errno),
            _ => Err(errno),
        }
    }

    pub(crate) fn give_back(&self, runs: &[Run]) {
        self.blocks.lock().give_back(runs);
    }

    /// Whether the data of a write may travel with its record.
    pub(crate) fn may_write_together(&self, bytes: usize) -> bool {
        bytes <= TOGETHER_BYTES_MAX && self.careful_writes.load(Ordering::Relaxed) == 0
    }

    /// A write succeeded by itself.
    pub(crate) fn count_careful(&self) {
        let less = |left: u32| left.checked_sub(1);
        let _ = self.careful_writes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn count_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether there is anything a checkpoint would move.
    pub fn is_dirty(&self) -> bool {
        self.store.active_bytes() > 0 || self.store.base().has_leaving()
    }

    /// Whether time must be told by [`Fs::tick`].
    pub fn needs_time(&self) -> bool {
        self.is_dirty()
            || self.leases.has_waiters()
            || self.leases.has_owners()
            || !self.waiting.lock().is_empty()
            || self.sessions.lock().has_away()
            || self.lingering.lock().needs_time()
    }

    /// Whether a checkpoint should be made without waiting for its time.
    pub fn is_checkpoint_due(&self) -> bool {
        self.log.is_filling()
            || self.store.active_bytes() > ACTIVE_BYTES_DUE
            || self.written_bytes.load(Ordering::Relaxed) > WRITTEN_BYTES_DUE
            || self.store.base().has_leaving()
    }

    /// Moves everything applied so far from the log into the metadata store, durably, so that the log's space and
    /// freed blocks can be used again. Operations go on meanwhile.
    pub fn checkpoint(&self) -> Result<(), Errno> {
        let _alone = self.checkpointing.lock();
        if let Some(errno) = self.log.failed() {
            return Err(errno);
        }
        let frozen = {
            let progress = self.progress.lock();
            let tail = self.log.tail_for(progress.applied);
            let mut blocks = self.blocks.lock();
            let changes = self.store.freeze();
            // What is freed from here on a snapshot that this checkpoint takes still has.
            if snapshots::are_changed(&changes) {
                blocks.hold_owned();
            }
            Frozen { changes, chunks: blocks.freeze(), tail, counters: progress.counters }
        };
        self.written_bytes.store(0, Ordering::Relaxed);
        // What is committed must not name blocks whose data is still on its way.
        if self.log.has_unwritten() {
            self.log.settle()?;
        }
        let meta_bytes = self.meta_bytes.load(Ordering::Relaxed);
        let room = if self.meta_used() > self.layout.meta_limit() / 2 { Room::Scarce } else { Room::Plenty };
        let state = |grown| (key(tag::STATE), Some(frozen.state(meta_bytes + grown).encode()));
        match self.store.commit(&frozen.changes, &frozen.bitmap(), room, state) {
            Ok(grown) => {
                self.meta_bytes.fetch_add(grown, Ordering::Relaxed);
                self.store.counted();
            }
            Err(error) => {
                tracing::error!("a checkpoint failed: {error}");
                let errno = error.errno();
                self.log.poison(errno);
                return Err(errno);
            }
        };
        if snapshots::are_leaving(&frozen.changes) {
            self.hold_snapshots()?;
        }
        self.log.advance(frozen.tail);
        self.blocks.lock().thaw();
        Ok(())
    }

    /// Blocks that snapshots have are not used: those that a snapshot had which is gone are free with the next
    /// checkpoint.
    fn hold_snapshots(&self) -> Result<(), Errno> {
        let held = self.store.base().held(self.layout.data_blocks).inspect_err(|error| {
            tracing::error!("what snapshots have cannot be told: {error}");
            self.log.poison(error.errno());
        });
        self.blocks.lock().hold(held?);
        Ok(())
    }

    /// Says in the superblock what earlier releases do not know, before there is any.
    pub(crate) fn come_to_need(&self, version: u32) -> Result<(), Errno> {
        let _alone = self.checkpointing.lock();
        let needs = self.needs.load(Ordering::Relaxed).max(version);
        if self.needs.load(Ordering::Relaxed) == needs {
            return Ok(());
        }
        let written = self.layout.needing(needs).write(&*self.device);
        written.map_err(|error| {
            tracing::error!("the superblock cannot be written: {error}");
            Errno::Io
        })?;
        self.needs.store(needs, Ordering::Relaxed);
        Ok(())
    }

    /// Heeds a wish, after a checkpoint and before anything else. `true`: the tree is another one, of which this object
    /// knows nothing.
    pub(crate) fn go_back(&self, wish: &GoBack) -> Result<bool, OpenError> {
        let heeded = self.store.get(&key(tag::WISH))?.and_then(|bytes| crate::model::Reader(&bytes).u64()).unwrap_or(0);
        if heeded == wish.number {
            return Ok(false);
        }
        let base = self.store.base();
        let name = String::from_utf8_lossy(&wish.name).into_owned();
        let Some(snapshot) = base.living().find(|snapshot| snapshot.name == wish.name) else {
            return Err(OpenError::NoSnapshot(name));
        };
        let progress = self.progress.lock();
        let (tail, before) = (self.log.tail_for(progress.applied), progress.counters);
        let meta_bytes = self.meta_bytes.load(Ordering::Relaxed);
        let extra = |inodes, grown| {
            let state = State { tail, counters: Counters { inodes, ..before }, meta_bytes: meta_bytes + grown };
            let wish = Some(wish.number.to_le_bytes().to_vec());
            [(key(tag::STATE), Some(state.encode())), (key(tag::WISH), wish)].into()
        };
        if let Err(cause) = self.store.go_back(snapshot.id, extra) {
            return Err(OpenError::GoBack { name, cause });
        }
        tracing::warn!(snapshot = name, "the tree is as it was then");
        Ok(true)
    }

    /// Everything completed before is durable afterwards.
    pub fn sync(&self) -> Result<(), Errno> {
        self.log.settle()?;
        let written = self.log.written();
        if written <= self.log.flushed() {
            return Ok(());
        }
        self.flush_shared()
    }

    fn flush_shared(&self) -> Result<(), Errno> {
        let gate = &self.flush;
        let mut state = gate.state.lock();
        // A flush that is running may have begun before our writes: only a later one counts.
        let wanted = state.begun + 1;
        loop {
            if state.failed {
                return Err(Errno::Io);
            }
            if state.ended >= wanted {
                return Ok(());
            }
            if state.is_running {
                gate.ended.wait(&mut state);
                continue;
            }
            state.is_running = true;
            state.begun += 1;
            let number = state.begun;
            drop(state);
            let written = self.log.written();
            let result = self.log.time_flush(|| self.device.flush());
            state = gate.state.lock();
            state.is_running = false;
            match result {
                Ok(()) => {
                    state.ended = number;
                    self.log.set_flushed(written);
                }
                // What the device lost cannot be known: nothing may be promised any more.
                Err(_) => {
                    state.failed = true;
                    self.log.poison(Errno::Io);
                }
            }
            gate.ended.notify_all();
        }
    }
}

/// An answer that is kept with its session.
pub(crate) trait Reply: Send + 'static {
    fn to_bytes(&self) -> Vec<u8>;
}

impl Reply for () {
    fn to_bytes(&self) -> Vec<u8> {
        Vec::new()
    }
}

struct Frozen {
    changes: Arc<std::collections::BTreeMap<Key, Change>>,
    chunks: std::collections::BTreeMap<u64, Vec<u8>>,
    tail: Tail,
    counters: Counters,
}

impl Frozen {
    fn bitmap(&self) -> std::collections::BTreeMap<Key, Change> {
        self.chunks.iter().map(|(chunk, bytes)| (key1(tag::BITMAP, *chunk), Some(bytes.clone()))).collect()
    }

    fn state(&self, meta_bytes: i64) -> State {
        State { tail: self.tail, counters: self.counters, meta_bytes }
    }
}

/// The one record of a checkpoint that says where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub tail: Tail,
    pub counters: Counters,
    /// Bytes of keys and values, without this record.
    pub meta_bytes: i64,
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        let numbers = [
            self.tail.epoch,
            self.tail.lsn,
            self.tail.applied,
            self.counters.next_ino,
            self.counters.next_handle,
            self.counters.inodes,
            self.meta_bytes as u64,
        ];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    pub fn decode(bytes: &[u8]) -> Result<State, StoreError> {
        let mut reader = crate::model::Reader(bytes);
        let mut state = || {
            Some(State {
                tail: Tail { epoch: reader.u64()?, lsn: reader.count()?, applied: reader.count()? },
                counters: Counters::decode(&mut reader)?,
                meta_bytes: reader.u64()? as i64,
            })
        };
        state().ok_or(StoreError::Damaged("checkpoint record"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::{Place, Window};
    use crate::log::Record;
    use crate::model::{Inode, key2};
    use crate::testing::MemoryDevice;

    #[test]
    fn number_that_one_more_would_overflow_is_damage() {
        let tail = Tail { epoch: u64::MAX, lsn: 0, applied: 0 };
        let state = State { tail, counters: Counters::default(), meta_bytes: -1 };
        assert_eq!(State::decode(&state.encode()).ok(), Some(state));
        for (lsn, applied, next_ino) in [(u64::MAX, 0, 0), (0, u64::MAX, 0), (0, 0, u64::MAX)] {
            let counters = Counters { next_ino, ..Counters::default() };
            let state = State { tail: Tail { lsn, applied, ..tail }, counters, ..state };
            assert!(State::decode(&state.encode()).is_err(), "{state:?}");
        }
        let inode = Inode { links: u32::MAX / 2, next_cookie: u64::MAX / 2, ..Inode::default() };
        assert_eq!(Inode::decode(&inode.encode()).ok(), Some(inode.clone()));
        for damaged in [
            Inode { bytes: u64::MAX, ..inode.clone() },
            Inode { blocks: u64::MAX, ..inode.clone() },
            Inode { links: u32::MAX, ..inode.clone() },
            Inode { next_cookie: u64::MAX, ..inode.clone() },
        ] {
            assert!(Inode::decode(&damaged.encode()).is_err(), "{damaged:?}");
        }
    }

    #[test]
    fn part_of_a_file_that_no_file_reaches_is_found_and_not_computed_with() {
        let device = Arc::new(MemoryDevice::new(crate::layout::VOLUME_BYTES_MIN));
        let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
        let mut window = Window::default();
        window.set(0, Some(Place { block: 0, crc: 0 }));
        let put = |txn: &mut Txn<'_>| {
            txn.put(key2(tag::EXTENTS, vos_api::fs::ROOT, u64::MAX), window.encode());
            Ok(())
        };
        fs.transact_quietly(put).expect("it is stored");
        assert_eq!(fs.check(crate::Depth::Metadata), Err(Errno::Io));
    }

    #[test]
    fn block_outside_the_volume_is_not_freed() {
        let device = Arc::new(MemoryDevice::new(crate::layout::VOLUME_BYTES_MIN));
        let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
        let freed = fs.transact_quietly(|txn| {
            txn.free_block(1 << 40);
            Ok(())
        });
        assert_eq!(freed, Err(Errno::Io));
        fs.checkpoint().expect("a checkpoint");
    }

    #[test]
    fn record_that_names_the_same_blocks_again_and_again_is_damage() {
        let device = Arc::new(MemoryDevice::new(crate::layout::VOLUME_BYTES_MIN));
        let fs = Fs::open(device.clone(), Options::inline(1)).expect("the volume opens");
        let all = Run { start: 0, count: fs.layout.data_blocks };
        let record = Record { freed: vec![all; 1000], counters: fs.counters(), ..Record::default() };
        fs.log.push(&record, Vec::new(), Box::new(|_| ()));
        fs.log.settle().expect("it is written");
        fs.sync().expect("it is flushed");
        assert!(matches!(Fs::open(device, Options::inline(2)), Err(OpenError::Damaged(_))));
    }

    #[test]
    fn operation_whose_record_is_too_large_was_not_executed_for_its_session_either() {
        let device = Arc::new(MemoryDevice::new(crate::layout::VOLUME_BYTES_MIN));
        let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
        fs.open_session(7, 0).expect("a session");
        let transact = |sequence, bytes| {
            let mark = Some(Mark { session: 7, sequence });
            let work = |txn: &mut Txn<'_>| {
                txn.put(crate::model::key_name(tag::XATTR, 1, b"user.a"), vec![0; bytes]);
                Ok(())
            };
            fs.transact(Growth::Grows, mark, Box::new(|_| ()), work).map_err(|(errno, _)| errno)
        };
        assert_eq!(transact(1, RECORD_BYTES_MAX), Err(Errno::Io));
        assert_eq!(fs.open_session(7, 0), Ok(0));
        assert_eq!(transact(2, 100), Ok(()));
        assert_eq!(fs.open_session(7, 0), Ok(2));
    }
}
