//! A volume of the file system on which somebody wrote what is not so, and calls of clients.
//!
//! A volume that was used and not closed is changed and opened. Whether that succeeds or not: nothing panics. redb may,
//! over its own pages; the file system catches that.

use std::cell::Cell;
use std::sync::{Arc, Once, OnceLock};

use fs_core::device::{BLOCK, BlockDevice};
use fs_core::testing::MemoryDevice;
use fs_core::{Call, Depth, Fs, Options, VOLUME_BYTES_MIN};
use vos_api::fs::{self as api, ROOT};
use vos_api::operation::{AfterNul, Prefixed, Third};
use vos_api::{Class, Encoded, Errno, Measured, Operation};
use zerocopy::FromZeros;

use crate::bytes::Bytes;

const LOG_MAGIC: &[u8] = b"DVSFSlog";
const LOG_HEADER_BYTES: usize = 64;
const SESSION: u64 = 7;
const EDITS_MAX: usize = 16;
const CALLS_MAX: usize = 64;
const ROOM: usize = 4096;
const FIRST_OPERATION: u16 = 16;
/// Arguments that are worth a try, beside small ones.
const WORDS: [u64; 8] =
    [1 << 12, 1 << 20, 1 << 32, 1 << 52, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 4095, u64::MAX];
/// Arguments below it are one byte, those from it on are one of `WORDS`, or have eight bytes when there is none.
const SMALL: u8 = 0xf0;
/// Of an edit: the checksum of what lies at the start of the block is made right again.
pub const SEALED: u8 = 2;

/// What lies on a volume that was used and not closed.
struct Used {
    /// By offset; those of zeros are left out.
    blocks: Vec<(u64, Vec<u8>)>,
    /// The first batch behind the checkpoint.
    first_batch: usize,
}

fn used() -> &'static Used {
    static USED: OnceLock<Used> = OnceLock::new();
    USED.get_or_init(|| {
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
        let fs = Fs::open(device.clone(), Options::inline(1)).expect("a new volume");
        fs.open_session(SESSION, 0).expect("a new session");
        let mut sequence = 0;
        call_all(&fs, &mut sequence, &mut Bytes(&before_checkpoint()));
        fs.checkpoint().expect("a checkpoint");
        let batches = |blocks: &[(u64, Vec<u8>)]| -> Vec<u64> {
            blocks.iter().filter(|(_, block)| block.starts_with(LOG_MAGIC)).map(|(at, _)| *at).collect()
        };
        let before = batches(&blocks_of(&*device));
        call_all(&fs, &mut sequence, &mut Bytes(&behind_checkpoint()));
        let blocks = blocks_of(&*device);
        let first = *batches(&blocks).iter().find(|at| !before.contains(at)).expect("a batch behind the checkpoint");
        let first_batch = blocks.iter().position(|(at, _)| *at == first).expect("it is there");
        Used { blocks, first_batch }
    })
}

fn blocks_of(device: &dyn BlockDevice) -> Vec<(u64, Vec<u8>)> {
    let read = |at: u64| {
        let mut block = vec![0; BLOCK];
        device.read(at, &mut block).expect("memory");
        (at, block)
    };
    let all = (0..VOLUME_BYTES_MIN).step_by(BLOCK).map(read);
    all.filter(|(_, block)| block.iter().any(|byte| *byte != 0)).collect()
}

/// An input is a list of edits and a list of calls. An edit is a byte that is not 0, [`SEALED`] in it or not; the
/// number of the block and the place in it, two bytes each; how many bytes are written there, and these.
pub fn image(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut blocks = used().blocks.clone();
    for _ in 0..EDITS_MAX {
        let how = bytes.u8();
        if how == 0 {
            break;
        }
        let (block, place, count) = (usize::from(bytes.u16()), usize::from(bytes.u16()) % BLOCK, bytes.u8());
        let patch = bytes.take(usize::from(count).min(BLOCK - place));
        let count = blocks.len();
        let block = &mut blocks[block % count].1;
        block[place..place + patch.len()].copy_from_slice(patch);
        if how & SEALED != 0 {
            seal(block);
        }
    }
    open_and_call(&blocks, bytes);
}

/// An input is a batch of the log, in the place of the first one behind the checkpoint, and a list of calls. Of the
/// batch there is a byte with the number of its records, and the top bit if they were flushed; the length of its
/// payload in two bytes, and the payload.
pub fn log(data: &[u8]) {
    let mut bytes = Bytes(data);
    let (head, length) = (bytes.u8(), bytes.u16());
    let payload = bytes.take(usize::from(length));
    let Used { blocks, first_batch } = used();
    let (at, first) = &blocks[*first_batch];
    let mut batch = [&first[..LOG_HEADER_BYTES], payload].concat();
    if head & 0x80 != 0 {
        batch[40..48].fill(0xff);
    }
    batch[48..52].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    batch[52..56].copy_from_slice(&u32::from(head & 0x7f).to_le_bytes());
    batch[56..60].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    batch.resize(batch.len().next_multiple_of(BLOCK), 0);
    seal(&mut batch);
    let mut blocks = blocks.clone();
    blocks.push((*at, batch));
    open_and_call(&blocks, bytes);
}

/// Makes the checksum right of what begins a block: a batch of the log, a length of the store, or a superblock.
fn seal(block: &mut [u8]) {
    let place = match block.first_chunk() {
        Some(b"DVSFSlog") => 60,
        Some(b"DVSFSlen") => 24,
        _ => BLOCK - 4,
    };
    let crc = crc32fast::hash(&block[..place]);
    block[place..place + 4].copy_from_slice(&crc.to_le_bytes());
}

fn open_and_call(blocks: &[(u64, Vec<u8>)], mut calls: Bytes<'_>) {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    for (at, block) in blocks {
        let _ = device.write(*at, block);
    }
    note_panics();
    PANICKED.set(false);
    let opened = Fs::open(device, Options::inline(2));
    assert!(!PANICKED.take(), "opening panicked");
    let Ok(fs) = opened else { return };
    let mut sequence = fs.open_session(SESSION, 0).unwrap_or(0);
    call_all(&fs, &mut sequence, &mut calls);
    fs.tick(1 << 20);
    let _ = fs.check(Depth::Data);
    let _ = fs.checkpoint();
}

thread_local! {
    static PANICKED: Cell<bool> = const { Cell::new(false) };
}

/// Tells panics of the file system, which it catches while it opens a volume, from those of redb.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.location().is_some_and(|at| at.file().contains("redb-")) {
                return;
            }
            PANICKED.set(true);
            others(info);
        }));
    });
}

/// Calls of one client, each an operation, flags, three arguments, and data behind its length.
fn call_all(fs: &Arc<Fs>, sequence: &mut u64, bytes: &mut Bytes<'_>) {
    for _ in 0..CALLS_MAX {
        if bytes.is_over() {
            return;
        }
        let (op, flags) = (FIRST_OPERATION + u16::from(bytes.u8()), u16::from(bytes.u8()));
        let args = [word(bytes), word(bytes), word(bytes)];
        let length = usize::from(bytes.u8());
        let data = bytes.take(length).to_vec();
        let is_once = api::class_of(op) == Some(Class::Once);
        *sequence += u64::from(is_once);
        let numbered = if is_once { *sequence } else { 0 };
        let call = Call { session: SESSION, sequence: numbered, op, flags, args, data, capacity: ROOM };
        let is_declared = move |status: u32| {
            let mut errors = api::errors_of(op).iter().chain(Errno::ANY);
            status == 0 || errors.any(|errno| errno.number() == status)
        };
        fs.submit(call, Box::new(move |reply| assert!(is_declared(reply.status), "{op}: {}", reply.status)));
    }
}

fn word(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.u8() {
        small @ ..SMALL => u64::from(small),
        other => WORDS.get(usize::from(other - SMALL)).copied().unwrap_or_else(|| bytes.u64()),
    }
}

/// An operation as [`call_all`] reads it.
fn call<'a>(operation: impl Operation<'a>) -> Vec<u8> {
    let Encoded { op, flags, args, data } = operation.encode();
    let mut out = vec![(op - FIRST_OPERATION) as u8, flags as u8];
    for arg in args {
        match u8::try_from(arg) {
            Ok(small @ ..SMALL) => out.push(small),
            _ => out.extend([&[0xff][..], &arg.to_le_bytes()].concat()),
        }
    }
    out.push(data.len() as u8);
    out.extend_from_slice(&data);
    out
}

fn created(name: &str) -> api::CreateFile<'_> {
    let create = api::Create { mode: 0o644.into(), ..api::Create::new_zeroed() };
    api::CreateFile { parent: ROOT, create, name: Measured(name.as_bytes()), existing: api::Existing::Opens }
}

fn written(ino: u64, offset: u64) -> Vec<u8> {
    call(api::Write { marks: 0, ino, offset, time_ns: 1, bytes: &[b'w'; 100] })
}

const DIRECTORY: u64 = ROOT + 1;
const FILE: u64 = ROOT + 2;

fn before_checkpoint() -> Vec<u8> {
    let create = api::Create { mode: 0o755.into(), ..api::Create::new_zeroed() };
    [
        call(api::Mkdir { parent: ROOT, create, name: Measured(b"d") }),
        call(created("f")),
        written(FILE, 0),
        written(FILE, 3 << 12),
        call(api::Symlink { parent: DIRECTORY, create, name: Measured(b"s"), target: AfterNul(b"../f") }),
        call(api::Setxattr { how: 0, ino: FILE, name: Measured(b"user.a"), time_ns: 1, value: b"value" }),
    ]
    .concat()
}

fn behind_checkpoint() -> Vec<u8> {
    let lock = api::Lock { owner: 1.into(), end: 9.into(), kind: 1.into(), ..api::Lock::new_zeroed() };
    [
        written(FILE, 2 << 20),
        call(created("g")),
        call(api::Symlink { parent: ROOT, create: created("").create, name: Measured(b"t"), target: AfterNul(b"d") }),
        call(api::Setxattr { how: 0, ino: FILE, name: Measured(b"user.b"), time_ns: 1, value: b"value" }),
        call(api::Setlk { ino: FILE, waits: api::Waits::No, handle: 1, lock }),
        call(api::Link { ino: FILE, parent: DIRECTORY, time_ns: 2, name: b"l" }),
        call(api::Rename { how: 0, from: ROOT, to: DIRECTORY, time_ns: 3, old: Prefixed(b"g"), new: b"h" }),
        call(api::Unlink { marks: 0, parent: ROOT, time_ns: Third(4), name: b"f" }),
        call(api::Fallocate { mode: 0, ino: FILE, offset: 1 << 14, bytes: 1 << 14, time_ns: 5.into() }),
        written(FILE, 1 << 14),
    ]
    .concat()
}

/// A look at everything, and changes of what may be there.
fn closing() -> Vec<u8> {
    let mut calls = Vec::new();
    for ino in ROOT..ROOT + 5 {
        calls.extend(call(api::Getattr { marks: 0, ino }));
        calls.extend(call(api::Read { marks: 0, ino, offset: 0, bytes: ROOM as u64 }));
        calls.extend(call(api::Readdir { ino, cookie: 0, entries: api::Entries::WithAttributes }));
        calls.extend(call(api::Readlink { ino }));
        calls.extend(call(api::Listxattr { ino }));
        calls.extend(call(api::Lseek { ino, offset: 1, whence: 3 }));
        calls.extend(written(ino, 100));
    }
    let wanted = api::SetAttr { valid: api::valid::BYTES.into(), bytes: 50.into(), ..api::SetAttr::new_zeroed() };
    calls.extend(call(api::Setattr { ino: FILE, time_ns: 6, wanted }));
    calls.extend(call(api::CopyRange {
        marks: 0,
        source: FILE,
        target: FILE + 2,
        from: 0.into(),
        to: 10.into(),
        bytes: 40.into(),
        time_ns: 7.into(),
    }));
    calls.extend(call(api::Release { ino: FILE, handle: 1 }));
    calls.extend(call(api::Unlink { marks: 0, parent: DIRECTORY, time_ns: Third(8), name: b"l" }));
    calls.extend(call(api::Rmdir { parent: ROOT, time_ns: Third(9), name: b"d" }));
    calls
}

/// Nothing damaged, and one large number in each block.
pub fn images() -> Vec<Vec<u8>> {
    let used = used();
    let edit = |index: usize, place: u8| {
        [&[1 | SEALED][..], &(index as u16).to_le_bytes(), &[place, 0, 8], &[0xff; 8]].concat()
    };
    let edits = (0..used.blocks.len()).flat_map(|index| [8, 16, 24, 40].map(|place| edit(index, place)));
    edits.chain([Vec::new()]).map(|edit| [edit, vec![0], closing()].concat()).collect()
}

pub fn logs() -> Vec<Vec<u8>> {
    let Used { blocks, first_batch } = used();
    let batches = blocks[*first_batch..].iter().take_while(|(_, block)| block.starts_with(LOG_MAGIC));
    let input = |block: &[u8], flushed: u8| {
        let length = u32::from_le_bytes(block[48..52].try_into().expect("four bytes")) as usize;
        let payload = &block[LOG_HEADER_BYTES..(LOG_HEADER_BYTES + length).min(BLOCK)];
        let head = block[52] | flushed;
        [&[head][..], &(payload.len() as u16).to_le_bytes(), payload, &closing()].concat()
    };
    batches.flat_map(|(_, block)| [input(block, 0), input(block, 0x80)]).collect()
}
