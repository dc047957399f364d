//! A volume grows with its device, whatever was there before.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::common::{Client, attr_of};
use fs_core::device::{BlockDevice, DeviceError};
use fs_core::testing::MemoryDevice;
use fs_core::{Depth, Fs, OpenError, Options, VOLUME_BYTES_MIN};
use vos_api::fs as api;

const MIB: u64 = 1 << 20;
const ENOSPC: u32 = 28;
const FILE: u32 = 0o100_600;
const EIO: DeviceError = DeviceError(5);

/// Memory of which the beginning is the device. The rest holds what somebody left there.
struct Shown {
    memory: MemoryDevice,
    bytes: AtomicU64,
    /// Changes that still succeed; negative: no limit.
    left: AtomicI64,
}

impl Shown {
    fn new(bytes: u64, most: u64) -> Arc<Shown> {
        let memory = MemoryDevice::new(most);
        for offset in (bytes / MIB * MIB..most).step_by(MIB as usize) {
            memory.write(offset, &[0xee; MIB as usize]).expect("memory");
        }
        memory.discard(bytes / MIB * MIB, bytes % MIB).expect("memory");
        Arc::new(Shown { memory, bytes: AtomicU64::new(bytes), left: AtomicI64::new(-1) })
    }

    fn spend(&self) -> Result<(), DeviceError> {
        let spend = |left: i64| if left > 0 { Some(left - 1) } else { None };
        match self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend) {
            Err(0) => Err(EIO),
            _ => Ok(()),
        }
    }
}

impl BlockDevice for Shown {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::SeqCst)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        assert!(offset + out.len() as u64 <= self.bytes(), "behind the end");
        self.memory.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        assert!(offset + data.len() as u64 <= self.bytes(), "behind the end");
        self.spend()?;
        self.memory.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.spend()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.spend()?;
        self.memory.discard(offset, bytes)
    }
}

fn open(device: &Arc<Shown>, seed: u64) -> Arc<Fs> {
    Fs::open(device.clone(), Options::inline(seed)).expect("the volume opens")
}

/// Of no session, which nobody waits for in the next life.
fn client(fs: &Arc<Fs>) -> Client {
    Client { fs: fs.clone(), session: 0, sequence: 0 }
}

fn make(client: &mut Client, name: &str) -> Option<u64> {
    let made = client.make(api::MKNOD, 1, name, FILE, 1);
    match made.status {
        0 => Some(attr_of(&made).ino.get()),
        ENOSPC => None,
        other => panic!("errno {other}"),
    }
}

/// Writes files of a MiB, each full of its number, until there is no room; how many there are then.
fn fill(client: &mut Client, mut count: u64) -> u64 {
    loop {
        let ino = make(client, &format!("f{count}")).expect("there is room for a name");
        match client.write(ino, 0, &[count as u8; MIB as usize], 1).status {
            0 => count += 1,
            ENOSPC => {
                assert_eq!(client.change(api::UNLINK, 0, [1, 0, 3], format!("f{count}").as_bytes()).status, 0);
                return count;
            }
            other => panic!("errno {other}"),
        }
    }
}

fn assert_whole(client: &Client, count: u64) {
    for file in 0..count {
        let ino = client.lookup(1, &format!("f{file}")).expect("it is there");
        assert!(client.read_all(ino) == [file as u8; MIB as usize], "file {file} of {count}");
    }
    assert_eq!(client.fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
}

/// Blocks of all files together.
fn blocks(client: &Client) -> u64 {
    client.read_call(api::STATFS, [0; 3], &[]).results[0]
}

#[test]
fn volume_uses_all_of_a_device_that_has_grown() {
    let device = Shown::new(VOLUME_BYTES_MIN, 4 * VOLUME_BYTES_MIN);
    let (mut count, mut had) = (0, 0);
    for (round, more) in [0, 16 * MIB, 5 * MIB + 4096, 24 * MIB + 1000].into_iter().enumerate() {
        device.bytes.fetch_add(more, Ordering::SeqCst);
        let fs = open(&device, 1 + round as u64);
        let mut own = client(&fs);
        assert_whole(&own, count);
        let now = blocks(&own);
        assert_eq!(now - had, if round == 0 { now } else { (more / 4096) - more / 8 / 4096 }, "round {round}");
        had = now;
        let filled = fill(&mut own, count);
        assert!(round == 0 || filled - count >= more / MIB * 7 / 8 - 1, "round {round}: {count} to {filled}");
        count = filled;
        assert_whole(&own, count);
    }
    // What is free between and in the parts is used again, also by runs that would be of two.
    let fs = open(&device, 9);
    let mut own = client(&fs);
    for file in 0..count {
        assert_eq!(own.change(api::UNLINK, 0, [1, 0, 3], format!("f{file}").as_bytes()).status, 0);
    }
    fs.checkpoint().expect("a checkpoint");
    assert_eq!(fill(&mut own, 0), count);
    assert_whole(&own, count);
    drop((own, fs));
    device.bytes.fetch_sub(MIB, Ordering::SeqCst);
    let smaller = Fs::open(device, Options::inline(10)).err();
    assert!(matches!(smaller, Some(OpenError::Shrunk { .. })), "{smaller:?}");
}

#[test]
fn volume_has_room_for_more_files_when_it_has_grown() {
    let device = Shown::new(VOLUME_BYTES_MIN, 8 * VOLUME_BYTES_MIN);
    let mut counts = Vec::new();
    let name = |count: u64| format!("a file of many, with a name that takes some room: {count:090}");
    let mut count = 0;
    for seed in 1..=3 {
        let fs = open(&device, seed);
        let mut own = client(&fs);
        while make(&mut own, &name(count)).is_some() {
            count += 1;
        }
        assert_eq!(own.list(1).len() as u64, count);
        assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
        counts.push(count);
        device.bytes.fetch_add(VOLUME_BYTES_MIN, Ordering::SeqCst);
    }
    assert!(counts[1] > counts[0] * 13 / 10 && counts[2] > counts[1], "{counts:?}");
    let fs = open(&device, 9);
    let own = client(&fs);
    assert_eq!(own.list(1).len() as u64, count);
    assert!((0..count).all(|at| own.lookup(1, &name(at)).is_some()));
}

#[test]
fn growth_that_ends_anywhere_leaves_the_volume_as_it_was_or_grown() {
    for successes in 0..12 {
        let device = Shown::new(VOLUME_BYTES_MIN, 2 * VOLUME_BYTES_MIN);
        let fs = open(&device, 1);
        let mut own = client(&fs);
        let ino = make(&mut own, "f0").expect("room");
        assert_eq!(own.write(ino, 0, &[0; MIB as usize], 1).status, 0);
        fs.checkpoint().expect("a checkpoint");
        let before = blocks(&own);
        drop((own, fs));
        device.bytes.store(VOLUME_BYTES_MIN + 8 * MIB, Ordering::SeqCst);
        device.left.store(successes, Ordering::SeqCst);
        drop(Fs::open(device.clone(), Options::inline(2)));
        device.left.store(-1, Ordering::SeqCst);
        // Meanwhile there is more still.
        device.bytes.store(VOLUME_BYTES_MIN + 16 * MIB, Ordering::SeqCst);
        let fs = open(&device, 3);
        let mut own = client(&fs);
        assert_eq!(blocks(&own) - before, 14 * MIB / 4096, "after {successes}");
        assert_whole(&own, 1);
        let count = fill(&mut own, 1);
        assert_whole(&own, count);
    }
}

#[test]
fn volume_that_has_grown_too_often_stays_as_it_is() {
    let device = Shown::new(VOLUME_BYTES_MIN, 2 * VOLUME_BYTES_MIN);
    let mut sizes = Vec::new();
    for seed in 1..20 {
        let fs = open(&device, seed);
        sizes.push(blocks(&client(&fs)));
        device.bytes.fetch_add(MIB, Ordering::SeqCst);
    }
    let is_larger: Vec<bool> = sizes.windows(2).map(|pair| pair[0] < pair[1]).collect();
    assert_eq!(is_larger.iter().filter(|it| **it).count(), 15);
    assert!(is_larger[..15].iter().all(|it| *it));
    let fs = open(&device, 30);
    let mut own = client(&fs);
    let count = fill(&mut own, 0);
    assert_whole(&own, count);
}
