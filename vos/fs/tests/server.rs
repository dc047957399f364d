//! The server behind real channels, ended as if killed again and again: clients see no error, nothing is lost, nothing
//! happens twice.

#[path = "../../fs-core/tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use abi::Endpoint;
use common::create_data;
use fs::FsService;
use fs_core::device::{BlockDevice, DeviceError};
use fs_core::testing::MemoryDevice;
use fs_core::{Depth, Fs, Options};
use libvos::{BlockingSession, Op, Size};
use vos_api::fs as api;
use vos_rt::testkit::{Server, World};

const VOLUME_BYTES: u64 = 64 << 20;
const RESTARTS: u64 = 20;
const OPS_BETWEEN: u64 = 15;

/// Held for moments, so that operations outlast it again and again.
struct Contested {
    device: MemoryDevice,
    term: Duration,
    asked: AtomicU64,
    /// Somebody else has it.
    is_taken: AtomicBool,
}

impl Contested {
    fn new(term: Duration) -> Arc<Contested> {
        let device = MemoryDevice::new(VOLUME_BYTES);
        Arc::new(Contested { device, term, asked: AtomicU64::new(0), is_taken: AtomicBool::new(false) })
    }
}

impl BlockDevice for Contested {
    fn bytes(&self) -> u64 {
        self.device.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.device.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.device.discard(offset, bytes)
    }

    fn hold(&self) -> Result<Duration, DeviceError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        while self.is_taken.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(self.term)
    }
}

fn serve(world: &World, device: &Arc<impl BlockDevice + 'static>) -> Server<FsService> {
    let device = device.clone();
    world.serve(Endpoint::FS, move |start| {
        FsService::open(device, 4 << 20, start.handle.clone()).expect("the volume opens")
    })
}

fn size() -> Size {
    Size { entries: 16, arena_bytes: 4 << 20 }
}

fn create(session: &BlockingSession, name: &str, time: u64) -> u64 {
    let data = create_data(name, 0o100_600, time);
    let op = Op::new(api::MKNOD, [1, name.len() as u64, 0]).out(&data).room(128).sequenced();
    let answer = session.call(op).unwrap_or_else(|errno| panic!("making '{name}': {errno}"));
    u64::from_le_bytes(answer.data[..8].try_into().expect("attributes"))
}

fn append(session: &BlockingSession, ino: u64, data: &[u8], time: u64) {
    let op = Op::new(api::WRITE, [ino, 0, time]).out(data).flags(api::APPEND).sequenced();
    let answer = session.call(op).unwrap_or_else(|errno| panic!("appending to {ino}: {errno}"));
    assert_eq!(answer.results[0], data.len() as u64);
}

#[test]
fn nothing_is_told_while_the_volume_is_not_held() {
    let world = World::new();
    let device = Contested::new(Duration::from_millis(100));
    let _server = serve(&world, &device);
    let session = world.blocking(Endpoint::FS, size());
    create(&session, "known", 1);
    let look = || {
        let op = Op::new(api::LOOKUP, [1, 0, 0]).out(b"known").room(128);
        session.call(op).map(drop)
    };
    assert_eq!(look(), Ok(()), "from memory");
    device.is_taken.store(true, Ordering::SeqCst);
    std::thread::sleep(2 * device.term);
    std::thread::scope(|scope| {
        let (told, hears) = sync_channel(1);
        scope.spawn(move || told.send(look()));
        assert!(hears.recv_timeout(5 * device.term).is_err(), "somebody else may have changed it");
        device.is_taken.store(false, Ordering::SeqCst);
        assert_eq!(hears.recv(), Ok(Ok(())));
    });
}

#[test]
fn what_outlasts_the_hold_happens_once() {
    let world = World::new();
    // Shorter than one of them takes, on a fast machine as well.
    let device = Contested::new(Duration::from_micros(50));
    let server = serve(&world, &device);
    let session = world.blocking(Endpoint::FS, size());
    let log = create(&session, "log", 1);
    for number in 0..500_u64 {
        append(&session, log, &number.to_le_bytes(), number);
    }
    assert!(device.asked.load(Ordering::SeqCst) > 500, "it asks again and again");
    drop(server);
    let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
    let client = common::Client { fs: fs.clone(), session: 0, sequence: 0 };
    let expected: Vec<u8> = (0..500).flat_map(u64::to_le_bytes).collect();
    assert_eq!(client.read_all(client.lookup(1, "log").expect("the log")), expected);
}

#[test]
fn client_that_is_asked_after_nothing_happened_for_long_has_all_its_time_to_give_back() {
    let world = World::new();
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let _server = serve(&world, &device);
    let [reader, writer] = [(); 2].map(|()| world.blocking(Endpoint::FS, size()));
    let file = create(&writer, "file", 1);
    let look = || reader.call(Op::new(api::LOOKUP, [1, 0, 0]).out(b"file").room(128));
    assert!(look().is_ok_and(|answer| answer.results[3] & api::LEASE != 0));
    // What was made is in a checkpoint by then, and the server has had nothing to look at the time for.
    std::thread::sleep(Duration::from_millis(3000 + api::RECALL_MS + 500));
    std::thread::scope(|scope| {
        let (told, hears) = sync_channel(1);
        scope.spawn(move || {
            append(&writer, file, b"more", 2);
            told.send(()).expect("the test hears it");
        });
        assert!(hears.recv_timeout(Duration::from_millis(api::RECALL_MS / 3)).is_err(), "it waits for the reader");
        reader.call(Op::new(api::RELEASED, [1 << 32, 0, 0])).expect("the reader is not fenced");
        assert_eq!(hears.recv(), Ok(()));
    });
    assert!(look().is_ok(), "the reader is not fenced");
}

#[test]
fn nothing_is_lost_or_done_twice_while_the_server_is_restarted() {
    let world = World::new();
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let mut server = serve(&world, &device);
    let session = world.blocking(Endpoint::FS, size());
    let (progress, wait) = sync_channel(0);
    let worker = std::thread::spawn(move || {
        let log = create(&session, "log", 1);
        for number in 0..RESTARTS * OPS_BETWEEN {
            // Making it a second time would fail, appending a second time would show.
            create(&session, &format!("file-{number}"), number);
            append(&session, log, &number.to_le_bytes(), number);
            if number % OPS_BETWEEN == 0 && progress.send(()).is_err() {
                return;
            }
        }
    });
    while wait.recv().is_ok() {
        server.cut();
        server = serve(&world, &device);
    }
    worker.join().expect("the client saw no error");
    drop(server);

    let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
    let client = common::Client { fs: fs.clone(), session: 0, sequence: 0 };
    let files = RESTARTS * OPS_BETWEEN;
    assert_eq!(client.list(1).len() as u64, files + 1);
    let log = client.read_all(client.lookup(1, "log").expect("the log"));
    let expected: Vec<u8> = (0..files).flat_map(u64::to_le_bytes).collect();
    assert_eq!(log, expected);
    assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
}
