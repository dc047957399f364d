//! A replicated disk whose servers are killed under load: nothing acknowledged is lost, no client sees an error, and in
//! the end the images are equal. The cluster engine is a table of the test behind the desks of the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use abi::Endpoint;
use abi::ring::{Completion, Submission};
use histories::rng::{Rng, seeds};
use libvos::{Connect, DiskClient, Durability, Epochs, Need, PortConnect, SharedPort, Size};
use replica_core::{CopyState, ENCODED_BYTES_MAX, EXTENT_BLOCKS, Recent, Replica, ReplicaRecord};
use rustix::fs::Advice;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use serde_json::json;
use vos_api::desk::{DeskQuestion, Edit, FromDesk, Given, Known, PACKET_BYTES_MAX, ToDesk, Unanswered};
use vos_api::session::Greeting;
use vos_api::{Encoded, Operation, copy, session};
use vos_rt::testkit::{Ended, Event, Process, Program, RingId, RingServer, Wait, World};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;
const SIZE: Size = Size { entries: 64, arena_bytes: 8 << 20 };
const SET: u64 = 77;
/// So long a disk may answer without asking its copies.
const LEASE: Duration = Duration::from_millis(500);
/// All that is waited for here comes in seconds.
const SOON: Duration = Duration::from_secs(30);

fn main() -> std::process::ExitCode {
    vos_rt::testkit::main(
        server,
        &[
            ("what_is_written_is_on_all_copies", what_is_written_is_on_all_copies),
            ("copy_that_dies_is_left_behind_and_catches_up", copy_that_dies_is_left_behind_and_catches_up),
            (
                "another_copy_takes_over_with_all_that_was_acknowledged",
                another_copy_takes_over_with_all_that_was_acknowledged,
            ),
            (
                "reads_that_wait_see_what_was_acknowledged_with_a_ring_and_without",
                reads_that_wait_see_what_was_acknowledged_with_a_ring_and_without,
            ),
            ("disk_is_read_as_it_was_while_others_write", disk_is_read_as_it_was_while_others_write),
            ("nothing_is_decided_while_the_engine_is_away", nothing_is_decided_while_the_engine_is_away),
            (
                "owner_whose_successor_came_meanwhile_is_not_told_that_it_holds_the_volume",
                owner_whose_successor_came_meanwhile_is_not_told_that_it_holds_the_volume,
            ),
            (
                "owner_who_was_replaced_is_refused_by_a_disk_that_came_from_elsewhere",
                owner_who_was_replaced_is_refused_by_a_disk_that_came_from_elsewhere,
            ),
            (
                "write_that_the_own_copy_has_no_room_for_is_refused_and_all_copies_stay_equal",
                write_that_the_own_copy_has_no_room_for_is_refused_and_all_copies_stay_equal,
            ),
            (
                "copy_that_has_no_room_is_left_behind_and_comes_back_with_it",
                copy_that_has_no_room_is_left_behind_and_comes_back_with_it,
            ),
            (
                "primary_of_an_earlier_release_is_not_told_that_a_copy_has_no_room",
                primary_of_an_earlier_release_is_not_told_that_a_copy_has_no_room,
            ),
            (
                "copy_of_an_earlier_release_is_asked_to_write_and_then_to_flush",
                copy_of_an_earlier_release_is_asked_to_write_and_then_to_flush,
            ),
            (
                "copy_that_stands_still_while_it_catches_up_keeps_nobody_waiting",
                copy_that_stands_still_while_it_catches_up_keeps_nobody_waiting,
            ),
            ("disk_tells_where_it_has_data", disk_tells_where_it_has_data),
            ("copies_come_and_go_while_the_disk_serves", copies_come_and_go_while_the_disk_serves),
            (
                "copies_are_compared_and_what_differs_becomes_what_the_primary_has",
                copies_are_compared_and_what_differs_becomes_what_the_primary_has,
            ),
            (
                "disk_is_refused_a_copy_of_another_set_or_one_that_lost_its_data",
                disk_is_refused_a_copy_of_another_set_or_one_that_lost_its_data,
            ),
            ("servers_killed_at_any_moment_lose_nothing", servers_killed_at_any_moment_lose_nothing),
        ],
    )
}

/// A copy has a file for what it knows of itself.
fn server() -> std::process::ExitCode {
    let record = std::env::var(vos_rt::SPAWN_VARIABLE).unwrap_or_default();
    if record.contains("\"kept\"") { disk::copy_main_from_spawn() } else { disk::main_from_spawn() }
}

/// Values, and the revision in which each became what it is.
type Entries = BTreeMap<String, (Vec<u8>, u64)>;

#[derive(Default)]
struct Engine {
    /// After the revision of the last change.
    entries: Mutex<(u64, Entries)>,
    is_away: AtomicBool,
    /// The engine's ends of desks of servers that live.
    desks: Mutex<Vec<OwnedFd>>,
}

impl Engine {
    /// The server's end of a desk.
    fn desk(self: &Arc<Engine>) -> OwnedFd {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket pair");
        let engine = Arc::clone(self);
        self.desks.lock().expect("nobody panicked").push(ours.try_clone().expect("a descriptor"));
        std::thread::spawn(move || engine.serve(&ours));
        theirs
    }

    fn serve(&self, socket: &OwnedFd) {
        let say = |said: FromDesk| send(socket, &said.encode(), SendFlags::NOSIGNAL).is_ok();
        say(FromDesk::Hello(versions::DESK.speaks));
        let (revision, entries) = self.entries.lock().expect("nobody panicked").clone();
        for (key, (value, modified)) in entries {
            say(FromDesk::Put(Known { key, value, created: modified, modified }));
        }
        say(FromDesk::Listed { revision });
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        while let Ok((_, received)) = recv(socket, &mut buffer[..], RecvFlags::empty()) {
            let Some(asked) = buffer.get(..received).filter(|packet| !packet.is_empty()).and_then(ToDesk::decode)
            else {
                return;
            };
            if !say(self.answer(asked)) {
                return;
            }
        }
    }

    fn answer(&self, ToDesk { id, question }: ToDesk) -> FromDesk {
        if self.is_away.load(Ordering::Acquire) {
            return FromDesk::Failed { id, why: Unanswered::Away };
        }
        let DeskQuestion::Transact { givens, edits } = question else { panic!("nobody reads") };
        let mut guard = self.entries.lock().expect("nobody panicked");
        let (revision, entries) = &mut *guard;
        let known = |key: &str| {
            let (value, modified) = entries.get(key)?.clone();
            Some(Known { key: key.to_owned(), value, created: modified, modified })
        };
        let holds = |given: &Given| match given {
            Given::Absent(key) => !entries.contains_key(key),
            Given::Modified(key, at) => entries.get(key).is_some_and(|entry| entry.1 == *at),
            _ => false,
        };
        if !givens.iter().all(holds) {
            return FromDesk::Conflict { id, current: givens.iter().map(|given| known(given.key())).collect() };
        }
        *revision += 1;
        for edit in edits {
            let Edit::Put { key, value, .. } = edit else { panic!("nothing is deleted") };
            entries.insert(key, (value, *revision));
        }
        FromDesk::Done { id, revision: *revision }
    }

    fn record(&self) -> Option<ReplicaRecord> {
        let entries = self.entries.lock().expect("nobody panicked");
        let (value, _) = entries.1.get("disk.0")?;
        Some(serde_json::from_slice(value).expect("a record"))
    }

    /// As whoever places the disk: it is to stand beside this copy.
    fn place_at(&self, copy: usize) {
        if self.record().is_some_and(|record| record.primary == Replica(copy as u8)) {
            return;
        }
        self.edit(|record| record.succeeded_by(Replica(copy as u8)));
    }

    /// As somebody who is not the disk, which hears of it.
    fn edit(&self, change: impl FnOnce(ReplicaRecord) -> Option<ReplicaRecord>) {
        let mut guard = self.entries.lock().expect("nobody panicked");
        let (revision, entries) = &mut *guard;
        let (value, modified) = entries.get_mut("disk.0").expect("it was begun");
        let next = change(serde_json::from_slice(value).expect("a record")).expect("it can be so");
        *revision += 1;
        (*value, *modified) = (serde_json::to_vec(&next).expect("a record"), *revision);
        let known = Known { key: "disk.0".to_owned(), value: value.clone(), created: 1, modified: *modified };
        let said = FromDesk::Put(known).encode();
        self.desks.lock().expect("nobody panicked").retain(|desk| send(desk, &said, SendFlags::NOSIGNAL).is_ok());
    }
}

struct Set {
    world: World,
    engine: Arc<Engine>,
    images: Vec<tempfile::NamedTempFile>,
    kept: Vec<tempfile::NamedTempFile>,
}

fn open(file: &tempfile::NamedTempFile) -> OwnedFd {
    File::options().read(true).write(true).open(file.path()).expect("the file").into()
}

impl Set {
    fn new(copies: usize) -> Set {
        Set::in_places(&vec![std::env::temp_dir(); copies])
    }

    /// Where each image lies.
    fn in_places(places: &[PathBuf]) -> Set {
        let images: Vec<_> =
            places.iter().map(|place| tempfile::NamedTempFile::new_in(place).expect("temporary file")).collect();
        images.iter().for_each(|image| image.as_file().set_len(BLOCKS * BLOCK as u64).expect("size"));
        let kept = places.iter().map(|_| tempfile::NamedTempFile::new().expect("temporary file")).collect();
        Set { world: World::new(), engine: Arc::default(), images, kept }
    }

    fn copy(&self, number: usize) -> Process {
        self.copy_of(number, SET)
    }

    fn copy_of(&self, number: usize, set: u64) -> Process {
        self.world.start(Program {
            endpoint: Endpoint::new(Endpoint::COPY.number() + number as u32).expect("a number"),
            fds: vec![("image", open(&self.images[number])), ("kept", open(&self.kept[number]))],
            options: json!({ "set": set, "disk": Endpoint::DISK.number() }),
            epoch: 0,
        })
    }

    fn program(&self, own: usize) -> Program {
        let copies = (1_u64 << self.images.len()) - 1;
        Program {
            endpoint: Endpoint::DISK,
            fds: vec![("image", open(&self.images[own])), ("desk", self.engine.desk())],
            options: json!({ "set": SET, "own": own, "copies": copies }),
            epoch: 0,
        }
    }

    fn disk(&self, own: usize) -> Process {
        self.world.start(self.program(own))
    }

    fn client(&self) -> DiskClient {
        DiskClient::new(self.world.blocking(Endpoint::DISK, SIZE))
    }

    /// Until the record is as `is_so` wants it.
    fn await_record(&self, what: &str, is_so: impl Fn(&ReplicaRecord) -> bool) {
        let begun = Instant::now();
        while !self.engine.record().is_some_and(|record| is_so(&record)) {
            assert!(begun.elapsed() < SOON, "not {what}: {:?}", self.engine.record());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn await_all_current(&self) {
        self.await_record("all current", |record| record.current().count() == self.images.len());
    }

    fn bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes = vec![0; BLOCKS as usize * BLOCK];
        self.images[number].as_file().read_exact_at(&mut bytes, 0).expect("the image");
        bytes
    }

    fn assert_equal(&self) {
        let first = self.bytes(0);
        for number in 1..self.images.len() {
            let other = self.bytes(number);
            let differ = (0..BLOCKS as usize).find(|at| first[at * BLOCK..][..BLOCK] != other[at * BLOCK..][..BLOCK]);
            assert_eq!(differ, None, "copy {number} differs from the first");
        }
    }
}

/// A file system that has no room for a whole image.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    /// `None`: only root may mount.
    fn new() -> Option<SmallFileSystem> {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4M", "small"]).arg(dir.path()).status();
        if !mount.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: needs to mount a file system");
            return None;
        }
        Some(SmallFileSystem(dir))
    }

    fn place(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    fn fill(&self) {
        let mut filler = File::create(self.0.path().join("filler")).expect("a file");
        while filler.write(&[1; BLOCK]).is_ok_and(|written| written > 0) {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.0.path().join("filler")).expect("it is there");
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// What block `index` holds after its `version`-th write.
fn block(index: u64, version: u64) -> Vec<u8> {
    (index << 32 | version).to_le_bytes().repeat(BLOCK / 8)
}

fn disk_is_read_as_it_was_while_others_write() {
    let set = Set::new(2);
    let _copies: Vec<Process> = (0..2).map(|number| set.copy(number)).collect();
    let _disk = set.disk(0);
    let (reader, writer) = (set.client(), set.client());
    let write = |index: u64, version: u64| {
        writer.write(index * BLOCK as u64, &block(index, version), Durability::Server).expect("written");
    };
    (0..BLOCKS).for_each(|index| write(index, 1));
    reader.freeze().expect("nobody else reads so");
    std::thread::scope(|scope| {
        let later = scope.spawn(|| (0..BLOCKS).for_each(|index| write(index, 2)));
        // Until all is read: what is wanted, and after that the next one.
        let mut left: Vec<u64> = (0..(BLOCKS * BLOCK as u64) >> 20).rev().collect();
        while let Some(next) = left.last().copied() {
            let wanted = reader.wanted(Duration::from_millis(20)).expect("told");
            let extent = wanted.into_iter().find(|extent| left.contains(extent)).unwrap_or(next);
            left.retain(|one| *one != extent);
            let was: Vec<u8> = (extent * 256..(extent + 1) * 256).flat_map(|index| block(index, 1)).collect();
            assert!(reader.read(extent << 20, 1 << 20).expect("read") == was, "extent {extent}");
        }
        later.join().expect("all is written");
    });
    assert_eq!(set.client().read(0, BLOCK).expect("read"), block(0, 2));
}

fn what_is_written_is_on_all_copies() {
    let set = Set::new(3);
    let _copies: Vec<Process> = (0..3).map(|number| set.copy(number)).collect();
    let _disk = set.disk(0);
    let client = set.client();
    assert_eq!(client.info().expect("told").bytes, BLOCKS * BLOCK as u64);
    for index in 0..100 {
        client.write(index * 7 * BLOCK as u64, &block(index, 1), Durability::Server).expect("written");
    }
    set.await_all_current();
    let allocated = |number: usize| {
        512 * std::os::unix::fs::MetadataExt::blocks(&set.images[number].as_file().metadata().expect("a file"))
    };
    let written = 3 * EXTENT_BLOCKS * BLOCK as u64;
    assert!((0..3).all(|number| allocated(number) <= written), "a blank copy is not filled with zeros");
    // Long ones, across extents, and what is read of them.
    let long: Vec<u8> = (0..256).flat_map(|index| block(index, 2)).collect();
    client.write(200 * BLOCK as u64, &long, Durability::Power).expect("written");
    assert_eq!(client.read(200 * BLOCK as u64, long.len()).expect("read"), long);
    client.discard(210 * BLOCK as u64, 300 * BLOCK as u64).expect("discarded");
    assert_eq!(client.read(209 * BLOCK as u64, 2 * BLOCK).expect("read"), [block(9, 2), vec![0; BLOCK]].concat());
    client.allocate(0, BLOCKS * BLOCK as u64, Need::Server).expect("there is room");
    client.flush().expect("flushed");
    set.assert_equal();
    assert!((0..3).all(|number| allocated(number) >= BLOCKS * BLOCK as u64), "room was made on each");
}

/// A page is forgotten before it is read, so that reads wait for the medium while writes to the same blocks are on
/// their way.
fn reads_that_wait_see_what_was_acknowledged_with_a_ring_and_without() {
    const HOT: u64 = 8;
    const READS: u64 = 3000;
    for with_ring in [true, false] {
        let set = Set::new(2);
        let _copies: Vec<Process> = (0..2).map(|number| set.copy(number)).collect();
        let mut program = set.program(0);
        program.options["io_uring"] = u64::from(with_ring).into();
        let _disk = set.world.start(program);
        let (writer, acknowledged) = (set.client(), [const { AtomicU64::new(0) }; HOT as usize]);
        set.await_all_current();
        std::thread::scope(|scope| {
            let read = |client: &DiskClient, index: u64| {
                let (offset, page) = (index * BLOCK as u64, NonZeroU64::new(BLOCK as u64));
                let least = acknowledged[index as usize].load(Ordering::Acquire);
                rustix::fs::fadvise(set.images[0].as_file(), offset, page, Advice::DontNeed).expect("forgotten");
                let read = client.read(offset, BLOCK).expect("read");
                let version = u64::from_le_bytes(read[..8].try_into().expect("a word")) & 0xffff_ffff;
                let is_whole = read == block(index, version) || version == 0 && read == [0; BLOCK];
                assert!(is_whole && version >= least, "block {index}: {version}, not {least}");
            };
            let readers = [0, 1].map(|first| {
                let client = set.client();
                scope.spawn(move || (first..READS + first).for_each(|at| read(&client, at % HOT)))
            });
            let mut version = 0;
            while !readers.iter().all(|reader| reader.is_finished()) {
                version += 1;
                let index = version % HOT;
                // Pages that are on the medium can be forgotten.
                writer.write(index * BLOCK as u64, &block(index, version), Durability::Power).expect("written");
                acknowledged[index as usize].store(version, Ordering::Release);
            }
            assert!(version > 1);
        });
    }
}

fn copy_that_dies_is_left_behind_and_catches_up() {
    let set = Set::new(2);
    let (_own, other) = (set.copy(0), set.copy(1));
    let _disk = set.disk(0);
    let client = set.client();
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    set.await_all_current();
    other.kill();
    let begun = Instant::now();
    client.write(0, &block(0, 2), Durability::Power).expect("written without it");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    set.await_record("alone", |record| !record.is_current(Replica(1)));
    for index in 0..50 {
        client.write(index * BLOCK as u64, &block(index, 3), Durability::Server).expect("written");
    }
    assert_eq!(set.bytes(1)[..8], block(0, 1)[..8], "it missed them");
    let _other = set.copy(1);
    set.await_all_current();
    set.assert_equal();
    client.write(BLOCK as u64, &block(1, 4), Durability::Server).expect("written");
    set.assert_equal();
}

fn another_copy_takes_over_with_all_that_was_acknowledged() {
    let set = Set::new(2);
    let (own, other) = (set.copy(0), set.copy(1));
    let disk = set.disk(0);
    let client = set.client();
    set.await_all_current();
    for index in 0..200 {
        client.write(index * BLOCK as u64, &block(index, 1), Durability::Server).expect("written");
    }
    // The node is gone.
    disk.kill();
    own.kill();
    set.engine.place_at(1);
    let disk = set.disk(1);
    let begun = Instant::now();
    for index in 0..200 {
        assert_eq!(client.read(index * BLOCK as u64, BLOCK).expect("read"), block(index, 1), "block {index}");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    client.write(0, &block(0, 2), Durability::Server).expect("written alone");
    set.await_record("the other alone", |record| !record.is_current(Replica(0)) && record.primary == Replica(1));
    // It comes back, and is primary again.
    let _own = set.copy(0);
    set.await_all_current();
    // Acknowledged once it is marked: from then on it can be primary.
    client.write(0, &block(0, 3), Durability::Server).expect("written to both");
    disk.terminate();
    set.engine.place_at(0);
    let _disk = set.disk(0);
    assert_eq!(client.read(0, BLOCK).expect("read"), block(0, 3));
    set.await_all_current();
    set.assert_equal();
    drop(other);
}

fn owner_whose_successor_came_meanwhile_is_not_told_that_it_holds_the_volume() {
    let set = Set::new(2);
    let (_own, other) = (set.copy(0), set.copy(1));
    let mut program = set.program(0);
    program.options["owner"] = json!(Endpoint::FS.number());
    let _disk = set.world.start(program);
    let port = set.world.port(Endpoint::FS, 1);
    let owner =
        |own| DiskClient::new(set.world.blocking_as(port.clone(), Endpoint::DISK, SIZE, Epochs { server: 1, own }));
    let first = owner(1);
    first.info().expect("told");
    set.await_all_current();
    // Nobody is promised anything without the other one, or a decision.
    set.engine.is_away.store(true, Ordering::Release);
    other.kill();
    std::thread::sleep(2 * LEASE);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.hold());
        std::thread::sleep(LEASE);
        assert!(!waiting.is_finished());
        let second = owner(2);
        second.info().expect("told");
        set.engine.is_away.store(false, Ordering::Release);
        assert_eq!(waiting.join().expect("no panic"), Err(Errno::STALE));
        assert!(second.hold().is_ok_and(|hold| hold <= LEASE));
    });
}

fn owner_who_was_replaced_is_refused_by_a_disk_that_came_from_elsewhere() {
    let set = Set::new(2);
    let _copies = [set.copy(0), set.copy(1)];
    let fences = [(); 2].map(|()| tempfile::NamedTempFile::new().expect("temporary file"));
    let disk = |own: usize, owner_epoch: u32| {
        let mut program = set.program(own);
        program.options["owner"] = json!(Endpoint::NBD.number());
        program.options["owner_epoch"] = json!(owner_epoch);
        program.fds.push(("fence", open(&fences[own])));
        set.world.start(program)
    };
    let first = disk(0, 1);
    // A gate is not told where the disk stands.
    let port = set.world.port(Endpoint::NBD, 1);
    let gate =
        |own| DiskClient::new(set.world.blocking_as(port.clone(), Endpoint::DISK, SIZE, Epochs { server: 0, own }));
    let write = |gate: &DiskClient, version| gate.write(0, &block(0, version), Durability::Server);
    assert_eq!(write(&gate(1), 1), Ok(()));
    assert_eq!(write(&gate(2), 2), Ok(()));
    set.await_all_current();
    first.kill();
    set.engine.place_at(1);
    let _second = disk(1, 2);
    // It comes first.
    assert_eq!(write(&gate(1), 3), Err(Errno::STALE));
    let successor = gate(2);
    assert_eq!(successor.read(0, BLOCK), Ok(block(0, 2)));
    assert_eq!(write(&successor, 4), Ok(()));
}

fn write_that_the_own_copy_has_no_room_for_is_refused_and_all_copies_stay_equal() {
    let Some(small) = SmallFileSystem::new() else { return };
    let set = Set::in_places(&[small.place(), std::env::temp_dir()]);
    let _copies = [set.copy(0), set.copy(1)];
    let _disk = set.disk(0);
    let client = set.client();
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    set.await_all_current();
    small.fill();
    let many: Vec<u8> = (0..256).flat_map(|index| block(index, 2)).collect();
    for durability in [Durability::Server, Durability::Power] {
        // What has its place is written, and the rest of a write that is partly there is not.
        client.write(0, &block(0, 3), durability).expect("it has its place");
        assert_eq!(client.write(100 * BLOCK as u64, &block(100, 2), durability), Err(Errno::NOSPC));
        assert_eq!(client.write(512 * BLOCK as u64, &many, durability), Err(Errno::NOSPC));
        set.assert_equal();
    }
    assert_eq!(set.engine.record().expect("it is there").current().count(), 2, "nobody is left behind");
    assert_eq!(client.read(0, 101 * BLOCK).expect("read")[..8], block(0, 3)[..8]);
    small.make_room();
    client.write(512 * BLOCK as u64, &many, Durability::Power).expect("written");
    assert_eq!(client.read(512 * BLOCK as u64, many.len()).expect("read"), many);
    set.assert_equal();
}

fn copy_that_has_no_room_is_left_behind_and_comes_back_with_it() {
    let Some(small) = SmallFileSystem::new() else { return };
    let set = Set::in_places(&[std::env::temp_dir(), small.place()]);
    let _copies = [set.copy(0), set.copy(1)];
    let _disk = set.disk(0);
    let client = set.client();
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    set.await_all_current();
    small.fill();
    let begun = Instant::now();
    client.write(100 * BLOCK as u64, &block(100, 1), Durability::Power).expect("written on one copy");
    set.await_record("alone", |record| !record.is_current(Replica(1)));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // It is tried again and again, and nobody waits for it.
    for index in 0..200 {
        let begun = Instant::now();
        client.write((200 + index) * BLOCK as u64, &block(index, 1), Durability::Server).expect("written");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!set.engine.record().expect("it is there").is_current(Replica(1)));
    small.make_room();
    set.await_all_current();
    set.assert_equal();
}

fn primary_of_an_earlier_release_is_not_told_that_a_copy_has_no_room() {
    let Some(small) = SmallFileSystem::new() else { return };
    let set = Set::in_places(&[small.place()]);
    small.fill();
    let port = set.world.port(Endpoint::DISK, 1);
    let copy_endpoint = Endpoint::new(Endpoint::COPY.number()).expect("a number");
    for newest in [copy::NO_ROOM_SINCE, copy::NO_ROOM_SINCE - 1] {
        let copy = set.copy(0);
        let ring = PortConnect::new(port.clone(), copy_endpoint, SIZE).connect().expect("a ring");
        let say = |asked: Encoded<'_>, out: &[u8], room: u32| {
            ring.arena().copy_in(0, out).expect("inside");
            let (op, flags, args, out_bytes) = (asked.op, asked.flags, asked.args, out.len() as u32);
            let asked = Submission { op, flags, args, out_bytes, in_capacity: room, ..Submission::default() };
            ring.submit(&asked).expect("room");
            ring.publish();
        };
        let answer = || {
            let begun = Instant::now();
            loop {
                match ring.poll() {
                    Ok(Some(completion)) => return Ok(completion.status),
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => return Err(error),
                }
                assert!(begun.elapsed() < SOON, "no answer");
            }
        };
        let speaks = versions::Versions::from_to(1, newest);
        let (progress, epochs) = (session::Progress::default(), Epochs::default());
        say(session::Hello { session: 5, progress, epochs, speaks }.encode(), &[], 0);
        assert_eq!(answer().expect("greeted"), 0);
        say(copy::Greet { epoch: 1, set: SET }.encode(), &[], ENCODED_BYTES_MAX as u32);
        assert_eq!(answer().expect("greeted"), 0);
        let put = copy::PutBlocks { seq: 1, first: 100, behind: copy::Behind::new(1, 1, 0) };
        say(put.encode(), &block(100, 1), 0);
        if newest >= copy::NO_ROOM_SINCE {
            assert_eq!(answer().expect("answered"), Errno::NOSPC.raw_os_error() as u32);
            assert!(!copy.has_ended());
        } else {
            answer().expect_err("nobody is there any more");
            assert_ne!(copy.wait(), Ended::Exit(0));
        }
    }
}

/// Keeps nothing and does what it is asked, as a copy of version 3 does; tells what that was.
fn serve_as_earlier_release(port: &SharedPort, asked: &Sender<u16>, stop: &AtomicBool) {
    let mut rings: BTreeMap<RingId, RingServer> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        match port.turn(|port| port.wait_event(Wait::For(Duration::from_millis(1)))) {
            Ok(Event::RingOpened(ring)) => drop(rings.insert(ring.id(), ring)),
            Ok(Event::RingClosed(id, _)) => drop(rings.remove(&id)),
            _ => (),
        }
        for ring in rings.values() {
            while let Ok(Some(submission)) = ring.next() {
                let Submission { tag, op, sequence, arena_offset, .. } = submission;
                let _ = asked.send(op);
                let mut completion = Completion { tag, sequence, epoch: 1, ..Completion::default() };
                if op == session::HELLO {
                    let in_flight = Greeting::terms(SIZE.entries, copy::PUT_DURABLE_SINCE - 1);
                    completion.results = Greeting { incarnation: 1, highest: 0, in_flight, service: 0 }.into();
                } else if op == copy::GREET {
                    let (recent, hot, behind) = (Recent::Extents(BTreeSet::new()), BTreeSet::new(), BTreeMap::new());
                    let data =
                        CopyState { mark: None, is_doubtful: false, is_blank: true, recent, hot, behind }.encode();
                    ring.arena().copy_in(arena_offset as usize, &data).expect("it has room");
                    completion.in_bytes = data.len() as u32;
                    completion.results = copy::Welcomed { promised_ms: 0, bytes: data.len() as u64 }.into();
                } else if op == copy::PUT_DURABLE {
                    completion.status = Errno::OPNOTSUPP.raw_os_error() as u32;
                } else if op == copy::SYNC {
                    std::thread::sleep(FLUSH_TAKES);
                }
                // A primary that has ended since it asked is no fault; `RingClosed` says the same.
                if ring.complete(&completion).is_ok() {
                    ring.publish();
                }
            }
        }
    }
}

const FLUSH_TAKES: Duration = Duration::from_millis(50);

fn copy_of_an_earlier_release_is_asked_to_write_and_then_to_flush() {
    let set = Set::new(2);
    let _own = set.copy(0);
    let port = set.world.port(Endpoint::new(Endpoint::COPY.number() + 1).expect("a number"), 1);
    let stop = AtomicBool::new(false);
    let (asked, heard) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| serve_as_earlier_release(&port, &asked, &stop));
        let disk = set.disk(0);
        let client = set.client();
        client.write(0, &block(0, 1), Durability::Server).expect("written");
        set.await_all_current();
        client.flush().expect("flushed");
        let _ = heard.try_iter().count();
        let begun = Instant::now();
        client.write(BLOCK as u64, &block(1, 1), Durability::Power).expect("written");
        assert!(begun.elapsed() >= FLUSH_TAKES, "it waited for the flush");
        let told: Vec<u16> = heard.try_iter().filter(|op| *op != copy::LEASE).collect();
        assert_eq!(told, [copy::PUT, copy::SYNC]);
        assert_eq!(client.read(BLOCK as u64, BLOCK).expect("read"), block(1, 1));
        drop(disk);
        stop.store(true, Ordering::Relaxed);
    });
}

fn copy_that_stands_still_while_it_catches_up_keeps_nobody_waiting() {
    let set = Set::new(2);
    let _own = set.copy(0);
    let mut other = set.copy(1);
    let _disk = set.disk(0);
    let client = set.client();
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    set.await_all_current();
    let many = |from: u64, version| (from..from + 32).flat_map(|at| block(at, version)).collect::<Vec<u8>>();
    let write_all = |version| {
        for from in (0..BLOCKS).step_by(32) {
            let (at, data) = (from * BLOCK as u64, many(from, version));
            client.write(at, &data, Durability::Server).expect("written");
        }
    };
    let mut version = 1;
    loop {
        version += 1;
        other.kill();
        client.write(0, &block(0, 1), Durability::Server).expect("written without it");
        set.await_record("alone", |record| !record.is_current(Replica(1)));
        write_all(version);
        other = set.copy(1);
        let begun = Instant::now();
        let mut first = [0; 8];
        while first[..] != block(0, version)[..8] {
            assert!(begun.elapsed() < SOON, "it does not catch up");
            set.images[1].as_file().read_exact_at(&mut first, 0).expect("the image");
        }
        other.stand_still();
        if set.engine.record().is_some_and(|record| !record.is_current(Replica(1))) {
            break;
        }
        // It was too fast for this.
        assert!(version < 50);
        other.go_on();
        set.await_all_current();
    }
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        scope.spawn(move || {
            write_all(version + 1);
            done.send(())
        });
        let begun = Instant::now();
        let heard = is_done.recv_timeout(SOON);
        other.go_on();
        heard.expect("all is written");
        eprintln!("all was written {:?} after it stood still", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    });
    set.await_all_current();
    set.assert_equal();
}

fn disk_tells_where_it_has_data() {
    let set = Set::new(1);
    let _copy = set.copy(0);
    let _disk = set.disk(0);
    let client = set.client();
    let at = |block: u64| block * BLOCK as u64;
    for block_number in [300, 1024, 2047] {
        client.write(at(block_number), &block(block_number, 1), Durability::Server).expect("written");
    }
    let (data, until) = client.data_in(0, at(BLOCKS)).expect("told");
    let has = |block: u64| data.iter().any(|data| (data.0..data.1).contains(&at(block)));
    assert!(until == at(BLOCKS) && [300, 1024, 2047].into_iter().all(has), "{data:?}");
    assert!(![0, 600, 1700].into_iter().any(has), "{data:?}");
    assert_eq!(client.data_in(at(1024), at(1)), Ok((vec![(at(1024), at(1025))], at(1025))));
    assert_eq!(client.data_in(at(BLOCKS), at(1)).err(), Some(Errno::INVAL));
}

fn copies_come_and_go_while_the_disk_serves() {
    let set = Set::new(3);
    let _first_two = (set.copy(0), set.copy(1));
    let mut program = set.program(0);
    program.options["copies"] = json!(0b11);
    let _disk = set.world.start(program);
    let client = set.client();
    set.await_record("two", |record| record.current().count() == 2);
    let write = |index: u64, version| {
        client.write(index * BLOCK as u64, &block(index, version), Durability::Server).expect("written");
    };
    (0..300).for_each(|index| write(index, 1));
    let third = set.copy(2);
    set.engine.edit(|record| record.joined_by(Replica(2)));
    (0..300).for_each(|index| write(index * 3, 2));
    set.await_all_current();
    set.assert_equal();
    // What it misses from then on nobody knows, and nobody needs to.
    set.engine.edit(|record| record.dismissed(Replica(2)));
    set.await_record("two again", |record| !record.members.contains_key(&Replica(2)));
    write(0, 3);
    third.kill();
    (0..10).for_each(|index| write(index, 4));
    set.engine.edit(|record| Some(record.forgotten(Replica(2))));
    assert_ne!(set.bytes(2), set.bytes(0));
    let _third = set.copy(2);
    set.engine.edit(|record| record.joined_by(Replica(2)));
    set.await_all_current();
    write(0, 5);
    set.assert_equal();
}

fn copies_are_compared_and_what_differs_becomes_what_the_primary_has() {
    let set = Set::new(3);
    let _copies: Vec<Process> = (0..3).map(|number| set.copy(number)).collect();
    let mut disk = Some(set.disk(0));
    let client = set.client();
    (0..600).for_each(|index| {
        client.write(index * 3 * BLOCK as u64, &block(index, 1), Durability::Server).expect("written");
    });
    set.await_all_current();
    let verify = |repair: bool| {
        set.engine.edit(|record| record.verifying(repair, 1));
        let is_over = |record: &ReplicaRecord| record.verification.as_ref().is_some_and(|it| it.found.is_some());
        set.await_record("compared", is_over);
        let record = set.engine.record().expect("a record");
        let found = record.verification.and_then(|it| it.found).expect("it is over");
        let count = |member: u8| found.different.get(&Replica(member)).copied();
        (count(0), count(1), count(2), found.blocks.into_iter().collect::<Vec<u64>>())
    };
    assert_eq!(verify(false), (None, Some(0), Some(0), vec![]));
    let spoil = |copy: usize, index: u64| {
        let image = set.images[copy].as_file();
        image.write_all_at(b"rotten", index * BLOCK as u64 + 100).expect("the image");
        image.sync_all().expect("the image");
    };
    [(1, 6), (1, 2001), (2, 2001), (2, 0)].into_iter().for_each(|(copy, index)| spoil(copy, index));
    let damaged = (None, Some(2), Some(2), vec![0, 6, 2001]);
    assert_eq!(verify(false), damaged);
    // Whoever can tell what is right finds it on another copy.
    let mut seen = vec![0; BLOCK];
    let mut look = |which, index: u64| client.read_other(which, index * BLOCK as u64, &mut seen).map(|()| seen.clone());
    assert_eq!(look(1, 6), Ok(block(2, 1)));
    assert_eq!(look(0, 6).expect("read")[100..106], *b"rotten");
    assert_eq!(look(2, 6), Err(Errno::NXIO));
    // While somebody writes to the same blocks and others; its primary is killed meanwhile.
    set.engine.edit(|record| record.verifying(true, 2));
    for version in 2..30 {
        client.write(3 * BLOCK as u64, &block(1, version), Durability::Server).expect("written");
        client.write(1990 * BLOCK as u64, &block(1990, version), Durability::Server).expect("written");
        if let Some(killed) = disk.take_if(|_| version == 4) {
            killed.kill();
            disk = Some(set.disk(0));
        }
    }
    set.await_record("compared", |record| record.verification.as_ref().is_some_and(|it| it.found.is_some()));
    set.await_all_current();
    assert_eq!(verify(false), (None, Some(0), Some(0), vec![]));
    client.flush().expect("flushed");
    set.assert_equal();
}

fn nothing_is_decided_while_the_engine_is_away() {
    let set = Set::new(2);
    let (_own, other) = (set.copy(0), set.copy(1));
    let _disk = set.disk(0);
    let client = set.client();
    set.await_all_current();
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    set.engine.is_away.store(true, Ordering::Release);
    client.write(0, &block(0, 2), Durability::Server).expect("nobody leaves: nothing is decided");
    other.kill();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| client.write(0, &block(0, 3), Durability::Server));
        std::thread::sleep(Duration::from_secs(2));
        assert!(!waiting.is_finished(), "nobody decides alone that a copy is behind");
        assert_eq!(set.engine.record().map(|record| record.current().count()), Some(2));
        set.engine.is_away.store(false, Ordering::Release);
        waiting.join().expect("no panic").expect("written when it is decided");
    });
    set.await_record("alone", |record| !record.is_current(Replica(1)));
}

fn disk_is_refused_a_copy_of_another_set_or_one_that_lost_its_data() {
    let set = Set::new(1);
    let own = set.copy(0);
    let disk = set.disk(0);
    set.client().write(0, &block(0, 1), Durability::Power).expect("written");
    disk.kill();
    own.kill();
    let is_refused = |what: &str| {
        let begun = std::panic::catch_unwind(AssertUnwindSafe(|| set.disk(0)));
        assert!(begun.is_err(), "{what}");
    };
    // The record says another set.
    let foreign = set.copy_of(0, SET + 1);
    is_refused("of another set");
    foreign.kill();
    // Somebody took the engine's data away: the copy has a mark of more than a beginning, or of this one.
    let record = set.engine.record().expect("there is one");
    let key = || "disk.0".to_owned();
    let later = ReplicaRecord { generation: record.generation, set: SET + 2, ..record };
    let value = serde_json::to_vec(&later).expect("text");
    set.engine.entries.lock().expect("nobody panicked").1.insert(key(), (value, 900));
    let _own = set.copy(0);
    is_refused("the record is of another set");
}

/// Writes its blocks in an order of its own and reads back what it wrote. Returns the versions.
fn load(client: &DiskClient, first: u64, stop: &AtomicBool, progress: &Sender<()>) -> Vec<(u64, u64)> {
    let mut versions: Vec<(u64, u64)> = (first..BLOCKS).step_by(2).map(|index| (index, 0)).collect();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        at = (at + 37) % versions.len();
        let (index, version) = &mut versions[at];
        let durability = if at % 4 == 0 { Durability::Power } else { Durability::Server };
        client.write(*index * BLOCK as u64, &block(*index, *version + 1), durability).expect("write");
        *version += 1;
        let (index, version) = versions[(at * 3) % versions.len()];
        let expected = if version == 0 { vec![0; BLOCK] } else { block(index, version) };
        assert_eq!(client.read(index * BLOCK as u64, BLOCK).expect("read"), expected, "block {index}");
        let _ = progress.send(());
    }
    versions
}

/// The servers of a set, and who looks after the one that is the disk: where it stands, the record says.
struct Running<'a> {
    set: &'a Set,
    copies: Vec<Option<Process>>,
    disk: Option<Process>,
    primary: usize,
}

impl Running<'_> {
    fn start_disk(&mut self, own: usize) {
        self.disk = None;
        self.set.engine.place_at(own);
        self.primary = own;
        self.disk = Some(self.set.disk(own));
    }

    /// One that gave way goes on where it said.
    fn look_after(&mut self) {
        if self.disk.as_ref().is_none_or(Process::has_ended) {
            let record = self.set.engine.record().expect("there is one");
            self.start_disk(record.primary.0 as usize);
        }
    }

    fn await_all_current(&mut self) {
        let begun = Instant::now();
        let is_all = |record: ReplicaRecord| record.current().count() == self.set.images.len();
        while !self.set.engine.record().is_some_and(is_all) {
            assert!(begun.elapsed() < SOON, "not all current: {:?}", self.set.engine.record());
            self.look_after();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill_copy(&mut self, number: usize, is_away_for_long: bool) {
        self.copies[number] = None;
        if is_away_for_long {
            std::thread::sleep(Duration::from_millis(900));
        }
        self.copies[number] = Some(self.set.copy(number));
    }

    fn await_progress(&mut self, seen: &Receiver<()>) {
        let begun = Instant::now();
        while seen.recv_timeout(Duration::from_millis(50)).is_err() {
            assert!(begun.elapsed() < SOON, "clients do not go on: {:?}", self.set.engine.record());
            self.look_after();
        }
    }

    fn trouble(&mut self, rng: &mut Rng) {
        let other = (self.primary + 1 + rng.below(2) as usize) % 3;
        match rng.below(4) {
            // The server of the disk alone: it goes on where it was.
            0 => self.start_disk(self.primary),
            // The copy of a backup, for a moment or for longer than is waited for.
            1 | 2 => self.kill_copy(other, rng.one_in(2)),
            // The node of the primary: another current one takes over.
            _ => {
                self.await_all_current();
                let (lost, next) = (self.primary, (self.primary + 1 + rng.below(2) as usize) % 3);
                self.disk = None;
                self.copies[lost] = None;
                self.start_disk(next);
                self.kill_copy(lost, rng.one_in(2));
            }
        }
    }
}

fn servers_killed_at_any_moment_lose_nothing() {
    seeds(1, 12).for_each(kill_at_any_moment);
}

fn kill_at_any_moment(seed: u64) {
    const KILLS: u32 = 25;
    let set = Set::new(3);
    let copies = (0..3).map(|number| Some(set.copy(number))).collect();
    let mut running = Running { set: &set, copies, disk: Some(set.disk(0)), primary: 0 };
    let client = set.client();
    running.await_all_current();
    let stop = AtomicBool::new(false);
    let (progress, seen) = channel();
    let rng = &mut Rng::new(seed);
    let versions = std::thread::scope(|scope| {
        let threads = [0, 1].map(|first| {
            let (client, stop, progress) = (client.clone(), &stop, progress.clone());
            scope.spawn(move || load(&client, first, stop, &progress))
        });
        drop(progress);
        // Threads that wait for a disk would outlive a failure for ever.
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..KILLS {
                for _ in 0..rng.below(40) {
                    running.await_progress(&seen);
                }
                running.trouble(rng);
            }
            stop.store(true, Ordering::Relaxed);
            // Each has an operation under way, also at a disk that gives way.
            let begun = Instant::now();
            while !threads.iter().all(|thread| thread.is_finished()) {
                assert!(begun.elapsed() < SOON, "clients do not end: {:?}", set.engine.record());
                running.look_after();
                std::thread::sleep(Duration::from_millis(5));
            }
        }));
        if let Err(failure) = done {
            eprintln!("{:?}", failure.downcast_ref::<String>());
            (running.disk, running.copies) = (None, Vec::new());
            std::process::exit(1);
        }
        threads.map(|thread| thread.join().expect("the client saw no error")).concat()
    });
    running.await_all_current();
    for (index, version) in versions {
        let expected = if version == 0 { vec![0; BLOCK] } else { block(index, version) };
        assert_eq!(client.read(index * BLOCK as u64, BLOCK).expect("read"), expected, "block {index}");
    }
    set.assert_equal();
}
