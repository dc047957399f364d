//! Full volumes, failing and damaged ones, and what other sessions hold.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use crate::common::{self, Client, Random, attr_of};
use fs_core::device::{BlockDevice, DeviceError};
use fs_core::testing::{FailingDevice, MemoryDevice, SparseDevice};
use fs_core::{AWAY_MS_MAX, Call, Depth, End, Fs, OpenError, Options, Reply, VOLUME_BYTES_MIN};
use vos_api::fs as api;
use vos_api::session::Progress;
use zerocopy::{FromBytes, IntoBytes};

const ENOSPC: u32 = 28;
const EIO: u32 = 5;
const EIDRM: u32 = 43;
const FILE: u32 = 0o100_600;

fn open(device: &Arc<impl BlockDevice + 'static>, seed: u64) -> Arc<Fs> {
    Fs::open(device.clone(), Options::inline(seed)).expect("the volume opens")
}

fn make(client: &mut Client, name: &str) -> u64 {
    attr_of(&client.make(api::MKNOD, 1, name, FILE, 1)).ino.get()
}

fn assert_sound(fs: &Fs) {
    assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
}

/// Submits without waiting.
fn start(client: &mut Client, op: u16, args: [u64; 3], data: &[u8]) -> Receiver<Reply> {
    let call = client.change_call(op, 0, args, data);
    submit(&client.fs, call)
}

fn submit(fs: &Arc<Fs>, call: Call) -> Receiver<Reply> {
    let (sender, receiver) = sync_channel(1);
    fs.submit(call, Box::new(move |reply| _ = sender.send(reply)));
    receiver
}

#[test]
fn full_volume_answers_enospc_and_can_be_emptied_and_filled_again() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let mut rounds = Vec::new();
    for _ in 0..2 {
        let mut files = 0u64;
        'full: loop {
            let ino = make(&mut client, &format!("f{files}"));
            files += 1;
            for part in 0..4 {
                match client.write(ino, part << 20, &vec![files as u8; 1 << 20], 1).status {
                    0 => (),
                    ENOSPC => break 'full,
                    other => panic!("errno {other}"),
                }
            }
        }
        assert_sound(&fs);
        let used = client.read_call(api::STATFS, [0; 3], &[]).results;
        assert!(used[1] < 256, "{} blocks are free on a full volume", used[1]);
        // Truncation to the middle of a block writes one.
        let first = client.lookup(1, "f0").expect("the first file");
        let set = api::SetAttr {
            valid: api::valid::BYTES.into(),
            bytes: 100.into(),
            ..api::SetAttr::read_from_bytes(&[0; 48]).expect("zeros")
        };
        assert_eq!(client.change(api::SETATTR, 0, [first, 2, 0], set.as_bytes()).status, 0);
        for file in 0..files {
            assert_eq!(client.change(api::UNLINK, 0, [1, 0, 3], format!("f{file}").as_bytes()).status, 0);
        }
        rounds.push(files);
    }
    assert_eq!(rounds[0], rounds[1]);
    assert_sound(&fs);
}

/// The disk is sparse, and its host is full before the volume is.
#[test]
fn full_host_is_enospc_for_who_wants_more_and_nothing_else_fails() {
    let (bytes, room) = (256 << 20, 96 << 20);
    let device = Arc::new(SparseDevice::new(bytes, room));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let kept = make(&mut client, "kept");
    assert_eq!(client.write(kept, 0, &[1; 1 << 20], 1).status, 0);
    let fill = |client: &mut Client, ino: u64| {
        let mut parts = 0;
        loop {
            match client.write(ino, parts * 300_000, &vec![2; 300_000], 1).status {
                0 => parts += 1,
                ENOSPC => return parts,
                other => panic!("errno {other}"),
            }
        }
    };
    let big = make(&mut client, "big");
    let parts = fill(&mut client, big);
    assert!(parts > 100, "{parts}");
    // Everything that needs no more of the host goes on: metadata, checkpoints, what is there.
    for round in 0..50 {
        make(&mut client, &format!("f{round}"));
        fs.checkpoint().expect("a checkpoint");
    }
    assert_eq!((fs.failed(), client.read(kept, 0, 4096)), (None, vec![1; 4096]));
    // Space that the volume has is used again although the host has none.
    assert_eq!(client.change(api::UNLINK, 0, [1, 0, 3], b"big").status, 0);
    fs.checkpoint().expect("a checkpoint");
    let again = make(&mut client, "again");
    assert!(fill(&mut client, again) * 10 > parts * 9);
    let sequence = client.sequence;
    drop((client, fs));
    // So it does after a restart, and when the host has room there is more.
    let fs = open(&device, 2);
    assert_sound(&fs);
    fs.open_session(7, sequence).expect("the session is known");
    let mut client = Client { fs: fs.clone(), session: 7, sequence };
    device.set_room(bytes);
    let more = make(&mut client, "more");
    assert!(fill(&mut client, more) > parts);
    assert_sound(&fs);
}

/// Small writes, long ones, new files and checkpoints: each is done or hears that there is no space.
fn use_full_host(fs: &Arc<Fs>, client: &mut Client, random: &mut Random, seed: u64, round: &str) {
    let small = client.lookup(1, "small").expect("a file");
    for step in 0..200u64 {
        let bytes = client.attr(small).bytes.get();
        let (what, status) = match random.below(6) {
            0 => ("6 bytes more", client.write(small, bytes, b"hello\n", step).status),
            1 => ("6 bytes anew", client.write(small, random.below(bytes), b"hello\n", step).status),
            2 => ("4 KiB", client.write(small, random.below(64) * 4096, &[7; 4096], step).status),
            3 => ("64 KiB", client.write(small, random.below(64) * 4096, &[8; 65536], step).status),
            4 => ("a file", client.make(api::MKNOD, 1, &format!("{round}-{step}"), FILE, 1).status),
            _ => ("a checkpoint", fs.checkpoint().map_or_else(fs_core::Errno::number, |()| 0)),
        };
        assert!(status == 0 || status == ENOSPC, "seed {seed}, {round} {step}: {what}: errno {status}");
        assert_eq!(fs.failed(), None, "seed {seed}, {round} {step}: {what}");
    }
}

#[test]
fn server_that_dies_while_its_host_is_full_opens_again_and_files_can_be_removed_at_once() {
    // The metadata region of so large a volume is set aside in parts.
    let bytes = 2 << 30;
    for seed in 0..4 {
        let mut random = Random::new(seed);
        // Log, and most or all of the metadata that is wanted; some data.
        let device = Arc::new(SparseDevice::new(bytes, (220 + random.below(40)) << 20));
        let options = || Options { careful_writes: 16, ..Options::inline(seed) };
        let mut fs = Fs::open(device.clone(), options()).expect("the volume opens");
        let mut client = Client::new(&fs, 7);
        let small = make(&mut client, "small");
        assert_eq!(client.write(small, 0, b"begin\n", 1).status, 0);
        let big = make(&mut client, "big");
        let mut parts = 0;
        while client.write(big, parts << 20, &vec![1; 1 << 20], 1).status == 0 {
            parts += 1;
        }
        device.fill_host();
        use_full_host(&fs, &mut client, &mut random, seed, "before");
        for life in 1..4 {
            let sequence = client.sequence;
            drop((client, fs));
            fs = Fs::open(device.clone(), options()).expect("the volume opens though its host is full");
            fs.open_session(7, sequence).expect("the session is known");
            client = Client { fs: fs.clone(), session: 7, sequence };
            use_full_host(&fs, &mut client, &mut random, seed, &format!("life-{life}"));
        }
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 3], b"big").status, 0);
        fs.tick(60_000);
        use_full_host(&fs, &mut client, &mut random, seed, "emptied");
        // What the big file had can be used again.
        assert_eq!(client.write(small, 0, &vec![2; 1 << 20], 1).status, 0, "seed {seed}");
        device.set_room(bytes);
        for part in 0..2 * parts {
            assert_eq!(client.write(small, part << 20, &vec![2; 1 << 20], 1).status, 0, "seed {seed}");
        }
        assert_sound(&fs);
    }
}

#[test]
fn volume_without_room_for_its_log_does_not_open_until_there_is() {
    let device = Arc::new(SparseDevice::new(256 << 20, 4 << 20));
    assert!(Fs::open(device.clone(), Options::inline(1)).is_err());
    device.set_room(64 << 20);
    assert_sound(&open(&device, 2));
}

#[test]
fn too_many_files_answer_enospc_and_can_be_removed() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let mut files = 0;
    loop {
        let reply = client.make(api::MKNOD, 1, &format!("a-file-with-number-{files}"), FILE, 1);
        match reply.status {
            0 => files += 1,
            ENOSPC => break,
            other => panic!("errno {other}"),
        }
    }
    assert!(files > 1000, "only {files} files fit");
    let [_, _, all, free] = client.read_call(api::STATFS, [0; 3], &[]).results;
    assert_eq!((all, free), (files + 1, 0), "as many as there are, the root too, and room for none");
    for file in 0..files {
        let name = format!("a-file-with-number-{file}");
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 3], name.as_bytes()).status, 0);
    }
    assert_sound(&fs);
    assert_eq!(client.make(api::MKNOD, 1, "again", FILE, 1).status, 0);
}

#[test]
fn volume_that_holds_something_else_is_left_alone() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    device.write(0, &[7; 4096]).expect("a write");
    assert!(matches!(Fs::open(device.clone(), Options::inline(1)), Err(OpenError::Unknown)));
    let mut block = [0; 4096];
    device.read(0, &mut block).expect("a read");
    assert_eq!(block, [7; 4096]);
}

#[test]
fn one_damaged_superblock_is_mended_two_are_reported() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    drop(open(&device, 1));
    device.damage(100);
    drop(open(&device, 2));
    device.damage(15 * 4096 + 100);
    drop(open(&device, 3));
    device.damage(100);
    device.damage(15 * 4096 + 100);
    assert!(matches!(Fs::open(device, Options::inline(4)), Err(OpenError::Superblocks)));
}

#[test]
fn length_that_no_store_has_is_refused_before_memory_is_taken_for_it() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    drop(open(&device, 1));
    for at in [8 * 4096, 9 * 4096] {
        let mut record = [0; 4096];
        record[..8].copy_from_slice(b"DVSFSlen");
        record[8..16].copy_from_slice(&(1_u64 << 50).to_le_bytes());
        record[16..24].copy_from_slice(&1000_u64.to_le_bytes());
        let crc = crc32fast::hash(&record[..24]);
        record[24..28].copy_from_slice(&crc.to_le_bytes());
        device.write(at, &record).expect("memory");
    }
    assert!(matches!(Fs::open(device, Options::inline(2)), Err(OpenError::Length)));
}

#[test]
fn damaged_volume_gives_an_error_or_opens_soundly_but_never_panics() {
    let pristine = || {
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
        let fs = open(&device, 1);
        let mut client = Client::new(&fs, 7);
        for file in 0..50 {
            let ino = make(&mut client, &format!("f{file}"));
            client.write(ino, 0, &[file; 5000], 1);
        }
        fs.checkpoint().expect("a checkpoint");
        device
    };
    let mut random = Random::new(5);
    for _ in 0..20 {
        let device = pristine();
        for _ in 0..8 {
            // Superblocks, lengths, log and the beginning of the metadata.
            device.damage(random.below(10 << 20));
        }
        if let Ok(fs) = Fs::open(device, Options::inline(2)) {
            let client = Client { fs, session: 0, sequence: 0 };
            let _ = client.read_call(api::READDIR, [1, 0, 1], &[]);
        }
    }
}

#[test]
fn damaged_data_is_eio_not_wrong_bytes() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let ino = make(&mut client, "f");
    client.write(ino, 0, &[1; 300_000], 1);
    fs.checkpoint().expect("a checkpoint");
    drop((client, fs));
    // The data region begins after 64 KiB, 8 MiB of log and 8 MiB of metadata; the file is the first there.
    device.damage((64 << 10) + (16 << 20) + 20 * 4096 + 5);
    let fs = open(&device, 2);
    let client = Client { fs, session: 0, sequence: 0 };
    assert_eq!(client.read_call(api::READ, [ino, 0, 300_000], &[]).status, EIO);
    assert_eq!(client.read_call(api::READ, [ino, 0, 4096], &[]).status, 0);
}

#[test]
fn after_a_failed_write_nothing_is_promised_and_a_new_start_finds_what_was() {
    for left in 0..40 {
        let device = Arc::new(FailingDevice::new(VOLUME_BYTES_MIN));
        let fs = open(&device, 1);
        let mut client = Client::new(&fs, 7);
        device.fail_after(left);
        let mut answered = 0;
        for file in 0..100u64 {
            let reply = client.make(api::MKNOD, 1, &format!("f{file}"), FILE, 1);
            if reply.status != 0 {
                assert_eq!(reply.status, EIO);
                break;
            }
            answered += 1;
            if file % 7 == 6 && client.read_call(api::FSYNC, [0; 3], &[]).status != 0 {
                break;
            }
        }
        assert!(answered < 100);
        drop((client, fs));
        device.fail_after(-1);
        let fs = open(&device, 2);
        let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
        assert!(client.list(1).len() >= answered, "{left} writes: {answered} were answered");
        assert_sound(&fs);
    }
}

#[test]
fn failing_reads_are_eio() {
    let device = Arc::new(FailingDevice::new(VOLUME_BYTES_MIN));
    let mut options = Options::inline(1);
    options.cache_bytes = 0;
    let fs = Fs::open(device.clone(), options).expect("the volume opens");
    let mut client = Client::new(&fs, 7);
    let ino = make(&mut client, "f");
    client.write(ino, 0, &[1; 8192], 1);
    device.fails_reads.store(true, Ordering::SeqCst);
    assert_eq!(client.read_call(api::READ, [ino, 0, 8192], &[]).status, EIO);
    device.fails_reads.store(false, Ordering::SeqCst);
    assert_eq!(client.read(ino, 0, 8192), [1; 8192]);
}

/// Two copies, of which the first is read, or cannot be.
struct Mirror {
    copies: [MemoryDevice; 2],
    is_unreadable: AtomicBool,
}

impl BlockDevice for Mirror {
    fn bytes(&self) -> u64 {
        self.copies[0].bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if self.is_unreadable.load(Ordering::SeqCst) {
            return Err(DeviceError(EIO as i32));
        }
        self.copies[0].read(offset, out)
    }

    fn read_other(&self, which: u64, offset: u64, out: &mut [u8]) -> Result<bool, DeviceError> {
        if which > 0 { Ok(false) } else { self.copies[1].read(offset, out).map(|()| true) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.copies.iter().try_for_each(|copy| copy.write(offset, data))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.copies.iter().try_for_each(|copy| copy.flush())
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.copies.iter().try_for_each(|copy| copy.discard(offset, bytes))
    }
}

#[test]
fn block_that_is_damaged_on_one_copy_is_read_from_another_and_mended() {
    let copies = [(); 2].map(|()| MemoryDevice::new(VOLUME_BYTES_MIN));
    let device = Arc::new(Mirror { copies, is_unreadable: AtomicBool::new(false) });
    let mut options = Options::inline(1);
    options.cache_bytes = 0;
    let fs = Fs::open(device.clone(), options).expect("the volume opens");
    let mut client = Client::new(&fs, 7);
    let ino = make(&mut client, "f");
    client.write(ino, 0, &[7; 3 * 4096], 1);
    fs.checkpoint().expect("a checkpoint");
    let mut block = [0; 4096];
    let holds = |copy: usize, fill: u8| {
        let mut block = [0; 4096];
        let offsets = (0..device.bytes()).step_by(4096);
        offsets.filter(|at| device.copies[copy].read(*at, &mut block).is_ok() && block == [fill; 4096]).collect()
    };
    let places: Vec<u64> = holds(0, 7);
    assert_eq!(places.len(), 3);
    let spoil = |copy: usize, at: usize| device.copies[copy].write(places[at], &[8; 4096]).expect("memory");
    spoil(0, 1);
    assert_eq!(client.read(ino, 0, 3 * 4096), [7; 3 * 4096]);
    device.copies[0].read(places[1], &mut block).expect("memory");
    assert_eq!(block, [7; 4096], "written anew");
    // A medium that gives nothing.
    device.is_unreadable.store(true, Ordering::SeqCst);
    assert_eq!(client.read_call(api::READ, [ino, 0, 3 * 4096], &[]).data, [7; 3 * 4096]);
    device.is_unreadable.store(false, Ordering::SeqCst);
    // On both.
    [0, 1].into_iter().for_each(|copy| spoil(copy, 2));
    assert_eq!(client.read_call(api::READ, [ino, 8192, 4096], &[]).status, EIO);
    assert_eq!(client.read(ino, 0, 8192), [7; 8192]);
}

/// Memory whose writes that travel together say that they have come and wait to be let through.
struct SlowDevice {
    memory: MemoryDevice,
    came: SyncSender<()>,
    go: Mutex<Receiver<()>>,
}

impl BlockDevice for SlowDevice {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.memory.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.memory.write(offset, data)
    }

    fn write_together(&self, writes: &[(u64, &[u8])]) -> Result<(), DeviceError> {
        self.came.send(()).expect("the test waits");
        self.go.lock().expect("no panic").recv().expect("the test lets it through");
        writes.iter().try_for_each(|(offset, data)| self.memory.write(*offset, data))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.memory.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.memory.discard(offset, bytes)
    }
}

#[test]
fn data_under_way_is_read_as_new_and_waited_for_by_checkpoints_also_without_a_cache() {
    for cache_bytes in [0, 4 << 20] {
        let ((came, has_come), (let_go, go)) = (sync_channel(0), sync_channel(1));
        let device = Arc::new(SlowDevice { memory: MemoryDevice::new(VOLUME_BYTES_MIN), came, go: Mutex::new(go) });
        let mut options = Options::inline(1);
        options.cache_bytes = cache_bytes;
        let fs = Fs::open(device, options).expect("the volume opens");
        let mut client = Client::new(&fs, 7);
        let ino = make(&mut client, "f");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| client.write(ino, 0, &[1; 8192], 1).status);
            has_come.recv().expect("the data is under way");
            let other = || Client { fs: fs.clone(), session: 0, sequence: 0 };
            let reader = scope.spawn(move || other().read(ino, 0, 8192));
            let (fs, sound) = (fs.clone(), fs.clone());
            let checkpoint = scope.spawn(move || fs.checkpoint());
            let_go.send(()).expect("the device waits");
            assert_eq!(writer.join().expect("no panic"), 0);
            assert_eq!(reader.join().expect("no panic"), [1; 8192]);
            checkpoint.join().expect("no panic").expect("a checkpoint");
            assert_sound(&sound);
        });
    }
}

#[test]
fn repeated_operation_is_answered_from_the_record_also_after_a_restart() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let call = client.change_call(api::MKNOD, 0, [1, 1, 1], &common::create_data("f", FILE, 1));
    let first = fs.call(call.clone());
    assert_eq!(first.status, 0);
    assert_eq!(fs.call(call.clone()).data, first.data);
    drop((client, fs));
    let fs = open(&device, 2);
    assert_eq!(fs.open_session(7, 0), Ok(1));
    assert_eq!(fs.call(call).data, first.data);
}

#[test]
fn unlinked_file_lives_until_its_last_handle_is_closed_also_over_a_restart() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    let created = client.make(api::CREATE, 1, "f", FILE, 1);
    let (ino, handle) = (attr_of(&created).ino.get(), created.results[0]);
    client.write(ino, 0, b"still here", 1);
    assert_eq!(client.change(api::UNLINK, 0, [1, 0, 2], b"f").status, 0);
    assert_eq!(client.read(ino, 0, 100), b"still here");
    let sequence = client.sequence;
    drop((client, fs));
    let fs = open(&device, 2);
    fs.open_session(7, 1).expect("the session is known");
    let mut client = Client { fs: fs.clone(), session: 7, sequence };
    assert_eq!(client.read(ino, 0, 100), b"still here");
    assert_sound(&fs);
    assert_eq!(client.change(api::RELEASE, 0, [ino, handle, 0], &[]).status, 0);
    assert_sound(&fs);
    fs.tick(60_000);
    assert_eq!(client.read_call(api::GETATTR, [ino, 0, 0], &[]).status, EIDRM);
    assert_sound(&fs);
}

#[test]
fn replaced_file_can_still_be_opened_by_who_has_just_looked_it_up() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    // Blocks, free ones, files that are there. How many more fit depends on records that are not yet merged.
    let counts = |client: &mut Client| {
        let [blocks, free, files, files_free] = client.read_call(api::STATFS, [0; 3], &[]).results;
        [blocks, free, files - files_free]
    };
    let before = counts(&mut client);
    let ino = make(&mut client, "f");
    client.write(ino, 0, b"old", 1);
    let new = make(&mut client, "g");
    assert_eq!(client.change(api::RENAME, 0, [1, 1, 2], &common::rename_data("g", "f")).status, 0);
    assert_eq!(client.lookup(1, "f"), Some(new));
    assert_eq!(client.attr(ino).links.get(), 0);
    let opened = client.change(api::OPEN, 0, [ino, 0, 0], &[]);
    assert_eq!(opened.status, 0);
    fs.tick(60_000);
    assert_eq!(client.read(ino, 0, 10), b"old");
    assert_eq!(client.change(api::RELEASE, 0, [ino, opened.results[0], 0], &[]).status, 0);
    assert_eq!(client.change(api::UNLINK, 0, [1, 0, 2], b"f").status, 0);
    // Neither its inode nor its block is missed.
    assert_eq!(counts(&mut client), before);
    fs.tick(120_000);
    for gone in [ino, new] {
        assert_eq!(client.change(api::OPEN, 0, [gone, 0, 0], &[]).status, EIDRM);
    }
    assert_eq!(counts(&mut client), before);
    assert_sound(&fs);
}

#[test]
fn locks_go_with_the_handle_through_which_they_were_set_also_over_a_restart() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let mut fs = open(&device, 1);
    let (mut one, mut two) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = make(&mut one, "f");
    let handles = [(); 2].map(|()| one.change(api::OPEN, 0, [ino, 0, 0], &[]).results[0]);
    let byte = |at: u64| {
        api::Lock { owner: 5.into(), start: at.into(), end: at.into(), kind: 1.into(), pid: 9.into() }
            .as_bytes()
            .to_vec()
    };
    // Two neighbours of one owner, each through a handle of its own.
    for (at, handle) in handles.into_iter().enumerate() {
        assert_eq!(one.change(api::SETLK, 0, [ino, 0, handle], &byte(at as u64)).status, 0);
    }
    let sequences = [one.sequence, two.sequence];
    drop((one, two, fs));
    fs = open(&device, 2);
    for (session, acknowledged) in [(7, sequences[0]), (8, sequences[1])] {
        fs.open_session(session, acknowledged).expect("the session is known");
    }
    let mut one = Client { fs: fs.clone(), session: 7, sequence: sequences[0] };
    two = Client { fs: fs.clone(), session: 8, sequence: sequences[1] };
    let waiting = start(&mut two, api::SETLK, [ino, 1, 0], &byte(0));
    assert!(waiting.try_recv().is_err());
    assert_eq!(one.change(api::RELEASE, 0, [ino, handles[0], 0], &[]).status, 0);
    assert_eq!(waiting.try_recv().expect("granted").status, 0);
    assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], &byte(1)).status, 11);
    // What asks too late leaves nothing behind.
    assert_eq!(one.change(api::SETLK, 0, [ino, 0, handles[0]], &byte(2)).status, 9);
    assert_eq!(one.change(api::RELEASE, 0, [ino, handles[1], 0], &[]).status, 0);
    assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], &byte(1)).status, 0);
}

#[test]
fn conflicting_change_waits_until_the_lease_is_given_back_and_ones_own_does_not() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let mut two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    let read = two.read_call(api::GETATTR, [ino, 0, 0], &[]);
    assert_eq!(read.results[3] & api::LEASE, api::LEASE);
    // The holder changes its own file: one asks nobody but the maker, who holds a lease too.
    let events_one = submit(&fs, Call { session: 7, op: api::EVENTS, capacity: 4096, ..Call::default() });
    let events_two = submit(&fs, Call { session: 8, op: api::EVENTS, capacity: 4096, ..Call::default() });
    let write = start(&mut one, api::WRITE, [ino, 0, 2], b"x");
    assert!(write.try_recv().is_err(), "the other's lease is out");
    let event = events_two.try_recv().expect("an event");
    let recall = api::Event::read_from_prefix(&event.data).expect("an event").0;
    assert_eq!((recall.ino.get(), recall.kind.get()), (ino, api::INODE));
    assert!(events_one.try_recv().is_err(), "nobody recalls from himself");
    // While it is being recalled nobody gets a new one.
    let look = submit(&fs, Call { session: 8, op: api::GETATTR, args: [ino, 0, 0], ..Call::default() });
    assert!(look.try_recv().is_err(), "it waits for the change");
    two.read_call(api::RELEASED, [recall.recall.get(), 0, 0], &[]);
    assert_eq!(write.try_recv().expect("the write went on").status, 0);
    assert_eq!(look.try_recv().expect("the look went on").results[3] & api::LEASE, api::LEASE);
    let write = start(&mut one, api::WRITE, [ino, 1, 3], b"y");
    assert!(write.try_recv().is_err(), "the lease of the look is asked back");
    two.read_call(api::RELEASED, [recall.recall.get() + 1, 0, 0], &[]);
    assert_eq!(write.try_recv().expect("the write went on").status, 0);
    assert_eq!(two.read(ino, 0, 10), b"xy");
    let _ = two.sequence;
    two.sequence = 0;
}

#[test]
fn silent_holder_is_fenced_and_learns_it() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    two.read_call(api::GETATTR, [ino, 0, 0], &[]);
    let write = start(&mut one, api::WRITE, [ino, 0, 2], b"x");
    fs.tick(api::RECALL_MS - 1);
    assert!(write.try_recv().is_err());
    fs.tick(api::RECALL_MS + 1);
    assert_eq!(write.try_recv().expect("the write went on").status, 0);
    assert_eq!(two.read_call(api::GETATTR, [ino, 0, 0], &[]).status, 116);
    assert!(fs.open_session(8, 1).is_err());
}

#[test]
fn client_that_is_lost_is_not_waited_for_by_the_next_server() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let two = Client::new(&fs, 8);
    for (session, client) in [(7, 70), (8, 80)] {
        let opened = fs.hello(session, Progress { acknowledged: 0, revives: false }).expect("a second ring");
        fs.keep_session(session, client, opened).expect("it is kept");
    }
    let ino = make(&mut one, "f");
    two.read_call(api::GETATTR, [ino, 0, 0], &[]);
    let sequence = one.sequence;
    drop((one, two, fs));
    let fs = open(&device, 2);
    let mut one = Client { fs: fs.clone(), session: 7, sequence };
    fs.open_session(7, sequence).expect("it goes on");
    let before = start(&mut one, api::WRITE, [ino, 0, 2], b"x");
    assert!(before.try_recv().is_err(), "the other one may have a lease of the server before");
    fs.fence_clients(|client| client == 80).expect("it is fenced");
    assert_eq!(before.try_recv().expect("the write went on").status, 0);
    assert!(fs.open_session(8, 0).is_err(), "it learns of that");
    assert!(fs.open_session(7, sequence).is_ok());
    fs.fence_clients(|client| client == 80).expect("once more changes nothing");
}

#[test]
fn revived_session_has_its_replies_and_open_files_and_neither_leases_nor_locks() {
    for restarts in [false, true] {
        let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
        let mut fs = open(&device, 1);
        let (mut one, mut two) = (Client::new(&fs, 7), Client::new(&fs, 8));
        let ino = make(&mut one, "f");
        let handle = one.change(api::OPEN, 0, [ino, 2, 0], &[]).results[0];
        assert_eq!(one.change(api::UNLINK, 0, [1, 0, 3], b"f").status, 0);
        let lock = api::Lock { owner: 1.into(), start: 0.into(), end: 9.into(), kind: 1.into(), pid: 1.into() };
        let append = one.change_call(api::WRITE, api::APPEND, [ino, 0, 2], b"once");
        let locks = one.change_call(api::SETLK, 0, [ino, 0, 0], lock.as_bytes());
        assert_eq!([&append, &locks].map(|call| fs.call(call.clone()).status), [0, 0]);
        fs.end_session(7, End::Fence).expect("it is fenced");
        assert_eq!(fs.call(append.clone()).status, 116);
        assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], lock.as_bytes()).status, 0, "the lock is free");
        if restarts {
            drop((one, two));
            drop(fs);
            fs = open(&device, 2);
            one = Client { fs: fs.clone(), session: 7, sequence: locks.sequence };
            two = Client { fs: fs.clone(), session: 8, sequence: 1 };
        }
        assert!(fs.open_session(7, 1).is_err(), "who does not know of the fence");
        assert_eq!(one.revive().expect("it is revived"), locks.sequence);
        assert_eq!(fs.call(append).status, 0);
        assert_eq!(one.read(ino, 0, 100), b"once");
        assert_eq!(fs.call(locks.clone()).status, 11, "a lock is asked for again");
        let unlock = api::Lock { kind: 2.into(), ..lock };
        assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], unlock.as_bytes()).status, 0);
        assert_eq!([fs.call(locks.clone()).status, fs.call(locks).status], [0, 0]);
        assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], lock.as_bytes()).status, 11, "it is held");
        assert_eq!(one.change(api::RELEASE, 0, [ino, handle, 0], &[]).status, 0);
        drop(two);
        assert_sound(&fs);
    }
}

#[test]
fn fenced_session_that_stays_away_leaves_nothing_behind() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    assert_eq!(one.change(api::OPEN, 0, [ino, 2, 0], &[]).status, 0);
    assert_eq!(one.change(api::UNLINK, 0, [1, 0, 3], b"f").status, 0);
    fs.detach(7);
    fs.tick(AWAY_MS_MAX);
    assert_eq!(two.read(ino, 0, 1), b"", "it is open");
    fs.tick(AWAY_MS_MAX + 1);
    fs.tick(AWAY_MS_MAX + 2);
    assert!(one.revive().is_err());
    fs.tick(AWAY_MS_MAX * 2);
    assert_eq!(two.read_call(api::READ, [ino, 0, 1], &[]).status, EIDRM);
    assert_sound(&fs);
    let fs = open(&device, 2);
    assert!(fs.open_session(7, 0).is_err(), "its number stays refused");
}

#[test]
fn session_that_is_revived_is_asked_for_what_it_got_since_and_not_for_what_it_had() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let (mut one, two) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = make(&mut one, "f");
    two.attr(ino);
    let write = start(&mut one, api::WRITE, [ino, 0, 2], b"x");
    assert!(write.try_recv().is_err());
    fs.end_session(8, End::Fence).expect("it is fenced");
    assert_eq!(write.try_recv().expect("the write went on").status, 0);
    two.revive().expect("it is revived");
    assert_eq!(start(&mut one, api::WRITE, [ino, 0, 2], b"y").try_recv().expect("nobody is asked").status, 0);
    two.attr(ino);
    let write = start(&mut one, api::WRITE, [ino, 0, 2], b"z");
    // What an earlier ring said of an earlier event says nothing of this one.
    two.read_call(api::RELEASED, [1, 0, 0], &[]);
    assert!(write.try_recv().is_err());
    two.read_call(api::RELEASED, [2, 0, 0], &[]);
    assert_eq!(write.try_recv().expect("the write went on").status, 0);
}

#[test]
fn lock_request_waits_as_state_and_is_granted_when_the_holder_or_its_session_ends() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let mut two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    let lock = |owner: u64, kind: u32| api::Lock {
        owner: owner.into(),
        start: 0.into(),
        end: 9.into(),
        kind: kind.into(),
        pid: 1.into(),
    };
    assert_eq!(one.change(api::SETLK, 0, [ino, 0, 0], lock(1, 1).as_bytes()).status, 0);
    assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], lock(1, 1).as_bytes()).status, 11);
    let waiting = start(&mut two, api::SETLK, [ino, 1, 0], lock(1, 1).as_bytes());
    assert!(waiting.try_recv().is_err());
    assert_eq!(one.change(api::SETLK, 0, [ino, 0, 0], lock(1, 2).as_bytes()).status, 0);
    assert_eq!(waiting.try_recv().expect("granted").status, 0);
    let waiting = start(&mut one, api::SETLK, [ino, 1, 0], lock(2, 0).as_bytes());
    fs.end_session(8, End::Forget).expect("it ends");
    assert_eq!(waiting.try_recv().expect("granted").status, 0);
    let cancelled = {
        let mut three = Client::new(&fs, 9);
        let waiting = start(&mut three, api::SETLK, [ino, 1, 0], lock(5, 1).as_bytes());
        three.read_call(api::CANCEL, [three.sequence, 0, 0], &[]);
        waiting
    };
    assert_eq!(cancelled.try_recv().expect("cancelled").status, 4);
}

#[test]
fn flock_that_cannot_become_a_write_lock_at_once_is_lost_first_so_that_two_who_want_more_go_on() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let mut two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    let flock = |kind: u32| {
        let (owner, end) = (1 << 63 | 1, u64::MAX);
        api::Lock { owner: owner.into(), start: 0.into(), end: end.into(), kind: kind.into(), pid: 1.into() }
            .as_bytes()
            .to_vec()
    };
    let (read, write, unlock) = (flock(0), flock(1), flock(2));
    let (tries, waits) = ([ino, 0, 0], [ino, 1, 0]);
    // Who only tries: the read lock is gone although there is no write lock, and the other gets one.
    assert_eq!(one.change(api::SETLK, 0, tries, &read).status, 0);
    assert_eq!(two.change(api::SETLK, 0, tries, &read).status, 0);
    assert_eq!(two.change(api::SETLK, 0, tries, &write).status, 11);
    assert_eq!(one.change(api::SETLK, 0, tries, &write).status, 0);
    // Who waits: the one that asks second finds the first one's lock gone.
    assert_eq!(one.change(api::SETLK, 0, tries, &read).status, 0);
    assert_eq!(two.change(api::SETLK, 0, tries, &read).status, 0);
    let first = start(&mut one, api::SETLK, waits, &write);
    assert!(first.try_recv().is_err());
    let second = start(&mut two, api::SETLK, waits, &write);
    assert_eq!(second.try_recv().expect("granted").status, 0);
    assert!(first.try_recv().is_err());
    assert_eq!(two.change(api::SETLK, 0, tries, &unlock).status, 0);
    assert_eq!(first.try_recv().expect("granted").status, 0);
}

#[test]
fn circle_of_waiting_owners_is_edeadlk() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut one = Client::new(&fs, 7);
    let mut two = Client::new(&fs, 8);
    let ino = make(&mut one, "f");
    let byte = |at: u64| api::Lock { owner: 1.into(), start: at.into(), end: at.into(), kind: 1.into(), pid: 1.into() };
    assert_eq!(one.change(api::SETLK, 0, [ino, 0, 0], byte(0).as_bytes()).status, 0);
    assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], byte(1).as_bytes()).status, 0);
    let waiting = start(&mut one, api::SETLK, [ino, 1, 0], byte(1).as_bytes());
    assert_eq!(two.change(api::SETLK, 0, [ino, 1, 0], byte(0).as_bytes()).status, 35);
    assert_eq!(two.change(api::SETLK, 0, [ino, 0, 0], api::Lock { kind: 2.into(), ..byte(1) }.as_bytes()).status, 0);
    assert_eq!(waiting.try_recv().expect("granted").status, 0);
}

#[test]
fn readdir_shows_every_entry_that_stays_once_while_others_come_and_go() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    let mut client = Client::new(&fs, 7);
    for file in 0..2000 {
        make(&mut client, &format!("stays-{file}"));
    }
    let mut seen = Vec::new();
    let (mut cookie, mut round) = (0, 0);
    loop {
        let call = Call { session: 7, op: api::READDIR, args: [1, cookie, 0], capacity: 4096, ..Call::default() };
        let reply = fs.call(call);
        for (entry, name) in common::entries(&reply.data) {
            cookie = entry.cookie.get();
            seen.push(name);
        }
        if reply.results[1] == 1 {
            break;
        }
        round += 1;
        // Each page of the directory sees other names come and go; bounded, or it would never end.
        if round < 30 {
            make(&mut client, &format!("comes-{round}"));
            let gone = seen.iter().rposition(|name| name.starts_with("comes"));
            if let Some(gone) = gone {
                let name = seen.remove(gone);
                client.change(api::UNLINK, 0, [1, 0, 1], name.as_bytes());
            }
        }
    }
    let mut stays: Vec<_> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    assert_eq!(stays.len(), 2000);
    stays.dedup();
    assert_eq!(stays.len(), 2000);
}

#[test]
fn many_threads_write_and_sync_and_everything_is_there_afterwards() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let mut options = Options::inline(1);
    options.readahead_threads = 2;
    let fs = Fs::open(device.clone(), options).expect("the volume opens");
    let inos = Arc::new(Mutex::new(Vec::new()));
    let workers: Vec<_> = (0..6u64)
        .map(|worker| {
            let (fs, inos) = (fs.clone(), inos.clone());
            std::thread::spawn(move || {
                let mut client = Client { fs, session: 0, sequence: 0 };
                let ino = make(&mut client, &format!("w{worker}"));
                for part in 0..60u64 {
                    let data = vec![(worker * 60 + part) as u8; 30_000];
                    assert_eq!(client.write(ino, part * 30_000, &data, part).status, 0);
                    if part % 20 == 0 {
                        assert_eq!(client.read_call(api::FSYNC, [0; 3], &[]).status, 0);
                        client.fs.checkpoint().expect("a checkpoint");
                    }
                }
                inos.lock().expect("no panic").push((worker, ino));
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    for (worker, ino) in inos.lock().expect("no panic").iter() {
        let data = client.read_all(*ino);
        assert_eq!(data.len(), 60 * 30_000);
        assert!(
            data.chunks(30_000).zip(0u64..).all(|(part, at)| part.iter().all(|byte| *byte == (worker * 60 + at) as u8))
        );
    }
    assert_sound(&fs);
}
