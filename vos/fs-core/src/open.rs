//! Making and opening a volume.
//!
//! Opening is recovery, always the same way: the last durable checkpoint, then the log's unbroken records after it in
//! order. A record that no flush has certainly covered counts only if the data it allocated is there (its checksums
//! match); the first one that is not ends the replay, so what remains is a prefix of what was done. At the end a new
//! checkpoint with a new epoch makes the remains of the old log invalid.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redb::{Builder, Database};

use crate::alloc::Allocator;
use crate::aside::Aside;
use crate::backend::RegionBackend;
use crate::core::{Found, Fs, Options, State};
use crate::device::{BLOCK, BLOCK64, BlockDevice};
use crate::error::{Errno, OpenError, StoreError};
use crate::extents::{Run, Window};
use crate::layout::{GROWTH_BYTES_MIN, Head, Layout, read_head};
use crate::log::{Counters, GAP_BYTES, Log, Record, Tail, scan};
use crate::model::{DIRECTORY, Inode, key, key1, number_of, tag};
use crate::quotas::Quotas;
use crate::store::{From, Room, Store};

/// Below this much metadata every page's checksum is verified at opening, not only after damage was seen.
const VERIFY_BYTES_MAX: u64 = 16 << 20;
/// Cookies of entries begin here: 1 and 2 are left to "." and "..".
pub const FIRST_COOKIE: u64 = 3;
const SCAN_ENTRIES: usize = 1024;

impl Fs {
    /// Whether the volume holds a file system, or nothing at all yet. What holds anything else is an error.
    pub fn is_on(device: &dyn BlockDevice) -> Result<bool, OpenError> {
        Ok(matches!(read_head(device)?, Head::Formatted(_)))
    }

    /// Opens the file system on a volume; makes one when the volume is blank. A volume that holds anything else is left
    /// alone.
    pub fn open(device: Arc<dyn BlockDevice>, options: Options) -> Result<Arc<Fs>, OpenError> {
        let layout = match read_head(&*device)? {
            Head::Formatted(layout) => grow(&device, *layout)?,
            Head::Blank => make(&device, &options)?,
        };
        let aside = Arc::new(Aside::new(device.clone(), layout));
        // redb trusts its pages: what it makes of damaged ones may be a panic.
        catch_unwind(AssertUnwindSafe(|| recover_as_wished(device, layout, aside, options)))
            .unwrap_or_else(|_| Err(OpenError::Metadata("its pages make no sense".into())))
    }
}

/// Goes back to a snapshot first, if that is wished and can be.
fn recover_as_wished(
    device: Arc<dyn BlockDevice>,
    layout: Layout,
    aside: Arc<Aside>,
    options: Options,
) -> Result<Arc<Fs>, OpenError> {
    let begin = |options| recover(device.clone(), layout, aside.clone(), options);
    let after = Options { go_back: None, ..options.clone() };
    let Some(wish) = options.go_back.clone() else { return begin(after)?.begin() };
    let fs = begin(options)?;
    if !fs.go_back(&wish)? {
        return fs.begin();
    }
    drop(fs);
    begin(after)?.begin()
}

/// Takes what the device has more than the volume. It is of the volume once both superblocks say so: until then nobody
/// has used it.
fn grow(device: &Arc<dyn BlockDevice>, layout: Layout) -> Result<Layout, OpenError> {
    let Some(grown) = layout.grown_to(device.bytes()) else {
        if device.bytes() >= layout.volume_bytes + GROWTH_BYTES_MIN {
            tracing::warn!(bytes = device.bytes(), "the volume has grown too often: the rest of its disk is not used");
        }
        return Ok(layout);
    };
    let (offset, bytes) = grown.last_metadata();
    // redb reads zeros where it has not written.
    match device.discard(offset, bytes).and_then(|()| device.flush()) {
        Ok(()) => {}
        Err(error) => {
            tracing::warn!(%error, "the volume stays as it is: the rest of its disk cannot be used");
            return Ok(layout);
        }
    }
    tracing::info!(from = layout.volume_bytes, to = grown.volume_bytes, "the volume has grown");
    grown.write(&**device)?;
    Ok(grown)
}

fn make(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Layout, OpenError> {
    let layout = Layout::plan(device.bytes(), options.seed)?;
    let aside = Arc::new(Aside::new(device.clone(), layout));
    let db = open_database(RegionBackend::create(device.clone(), &layout, aside)?, options, Verify::No)?;
    let store = Store::new(db)?;
    let made = options.made_ns;
    let root = Inode { mode: DIRECTORY | 0o755, links: 2, next_cookie: FIRST_COOKIE, parent: 1, ..Inode::default() };
    let (uid, gid) = options.made_by;
    let root = Inode { atime_ns: made, mtime_ns: made, ctime_ns: made, uid, gid, ..root };
    store.apply([(key1(tag::INODE, vos_api::fs::ROOT), Some(root.encode()))]);
    let state = State {
        tail: Tail { epoch: epoch_of(&options.seed), lsn: 0, applied: 0 },
        counters: Counters { next_ino: vos_api::fs::ROOT + 1, next_handle: 1, inodes: 1 },
        meta_bytes: 0,
    };
    let frozen = store.freeze();
    let state = |meta_bytes| (key(tag::STATE), Some(State { meta_bytes, ..state }.encode()));
    store.commit(&frozen, &Default::default(), Room::Plenty, state)?;
    drop(store);
    device.flush()?;
    // Last: a volume whose making was interrupted is still blank.
    layout.write(&**device)?;
    Ok(layout)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verify {
    Yes,
    No,
}

fn open_database(backend: RegionBackend, options: &Options, verify: Verify) -> Result<Database, OpenError> {
    Builder::new()
        .set_cache_size(options.meta_cache_bytes)
        .set_check_integrity_on_open(verify == Verify::Yes)
        .create_with_backend(backend)
        .map_err(|error| OpenError::Metadata(error.to_string()))
}

/// Never 0, and different in each life.
fn epoch_of(seed: &[u8; 16]) -> u64 {
    let (low, high) = seed.split_at(8);
    let number = |half: &[u8]| half.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    (number(low) ^ number(high).rotate_left(32)) | 1
}

fn recover(
    device: Arc<dyn BlockDevice>,
    layout: Layout,
    aside: Arc<Aside>,
    options: Options,
) -> Result<Arc<Fs>, OpenError> {
    let backend = RegionBackend::open(device.clone(), &layout, aside.clone())?;
    let is_small = redb::StorageBackend::len(&backend).is_ok_and(|bytes| bytes <= VERIFY_BYTES_MAX);
    let db = open_database(backend, &options, if is_small { Verify::Yes } else { Verify::No })?;
    let store = Store::new(db)?;
    let state = store.get(&key(tag::STATE))?.ok_or(OpenError::Damaged("no checkpoint record"))?;
    let state = State::decode(&state)?;
    let mut blocks = load_bitmap(&store, &layout)?;
    blocks.hold(store.base().held(layout.data_blocks)?);

    let mut counters = state.counters;
    let mut applied = state.tail.applied;
    let log = scan(&*device, &layout, state.tail)?;
    let found_records = log.records.len();
    for found in log.records {
        if found.number != applied + 1 {
            return Err(OpenError::Damaged("log records are out of order"));
        }
        if found.number > log.flushed && !is_data_there(&*device, &layout, &found.record)? {
            break;
        }
        let mut runs = found.record.allocated.iter().chain(&found.record.freed);
        let named = runs.try_fold(0, |named, run| layout.has(*run).then_some(named + run.count));
        // Who names blocks again and again would keep us busy for days.
        if named.is_none_or(|named| named > 2 * layout.data_blocks) {
            return Err(OpenError::Damaged("a log record names blocks outside the volume, or too many"));
        }
        applied = found.number;
        counters = found.record.counters;
        blocks.own(&found.record.allocated);
        blocks.disown(&found.record.freed);
        store.apply(found.record.changes);
    }
    tracing::info!(checkpoint = state.tail.applied, found_records, applied, "opened");

    // The epoch must differ from the one before even if the seed does not.
    let epoch = epoch_of(&options.seed) ^ state.tail.epoch.rotate_left(17) | 1;
    let epoch = if epoch == state.tail.epoch { epoch.wrapping_add(2) } else { epoch };
    let tail = Tail { epoch, lsn: log.end.next_multiple_of(BLOCK64) + GAP_BYTES, applied };
    let log = Log::new(device.clone(), &layout, tail);
    let (meta_bytes, quotas) = (state.meta_bytes, Quotas::load(&store)?);
    let found = Found { layout, aside, store, log, blocks, counters, applied, meta_bytes, quotas };
    let fs = Arc::new(Fs::new(device, options, found));
    fs.checkpoint().map_err(broken)?;
    Ok(fs)
}

impl Fs {
    /// What is left to be done for those who used the volume before.
    fn begin(self: Arc<Fs>) -> Result<Arc<Fs>, OpenError> {
        self.restore_sessions().map_err(broken)?;
        self.reap_orphans().map_err(broken)?;
        self.go_on_counting().map_err(broken)?;
        Ok(self)
    }
}

fn broken(errno: Errno) -> OpenError {
    tracing::error!("recovery failed: {errno}");
    OpenError::Damaged("recovery failed")
}

fn load_bitmap(store: &Store, layout: &Layout) -> Result<Allocator, OpenError> {
    let mut blocks = Allocator::new(layout.data_blocks);
    layout.gaps().for_each(|gap| blocks.hide(gap));
    let mut from = key(tag::BITMAP);
    let to = key(tag::BITMAP + 1);
    loop {
        let chunks = store.scan(&from, &to, SCAN_ENTRIES, From::Start)?;
        for (chunk_key, bytes) in &chunks {
            let chunk = number_of(chunk_key, 0).ok_or(StoreError::Damaged("bitmap key"))?;
            blocks.load(chunk, bytes).ok_or(StoreError::Damaged("bitmap record"))?;
        }
        match chunks.last() {
            Some((last, _)) if chunks.len() == SCAN_ENTRIES => {
                from = last.clone();
                from.push(0);
            }
            _ => return Ok(blocks),
        }
    }
}

/// Whether the blocks that a record allocated hold what it says.
fn is_data_there(device: &dyn BlockDevice, layout: &Layout, record: &Record) -> Result<bool, OpenError> {
    let is_new = |block: u64| record.allocated.iter().any(|run| (run.start..run.start + run.count).contains(&block));
    for (key, change) in &record.changes {
        let (Some(&tag::EXTENTS), Some(bytes)) = (key.first(), change) else { continue };
        let window = Window::decode(bytes)?;
        for piece in window.pieces(0, window.places.len()) {
            let Run { start, count } = piece.run;
            if !layout.has(piece.run) {
                return Err(OpenError::Damaged("a log record names blocks outside the volume"));
            }
            if !(start..start + count).any(is_new) {
                continue;
            }
            let mut data = vec![0; count as usize * BLOCK];
            device.read(layout.data_offset(start), &mut data)?;
            for (place, block) in piece.places.iter().flatten().zip(data.chunks_exact(BLOCK)) {
                if is_new(place.block) && crc32fast::hash(block) != place.crc {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}
