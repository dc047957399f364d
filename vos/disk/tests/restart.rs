//! A disk server that is killed again and again under load: nothing acknowledged is lost, no client sees an error.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use abi::Endpoint;
use libvos::{DiskClient, Durability, Epochs, Fenced, Op, ReservedWrite, Size, WriteBegun};
use rustix::fs::Advice;
use rustix::io::Errno;
use serde_json::{Value, json};
use vos_api::disk::{READV, Span};
use vos_rt::testkit::{Ended, Process, Program, World};
use zerocopy::IntoBytes;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
const SIZE: Size = Size { entries: 64, arena_bytes: 8 << 20 };

fn main() -> std::process::ExitCode {
    vos_rt::testkit::main(
        disk::main_from_spawn,
        &[
            (
                "acknowledged_writes_survive_two_hundred_kills_and_clients_see_no_error",
                acknowledged_writes_survive_two_hundred_kills_and_clients_see_no_error,
            ),
            (
                "what_is_not_in_memory_is_read_whole_with_a_ring_and_without",
                what_is_not_in_memory_is_read_whole_with_a_ring_and_without,
            ),
            ("scattered_blocks_come_in_one_transfer", scattered_blocks_come_in_one_transfer),
            ("who_does_not_own_the_volume_only_reads_it", who_does_not_own_the_volume_only_reads_it),
            (
                "owner_with_a_successor_changes_nothing_also_after_the_disk_was_killed",
                owner_with_a_successor_changes_nothing_also_after_the_disk_was_killed,
            ),
            (
                "successor_of_an_owner_that_holds_the_volume_is_served_when_that_is_over",
                successor_of_an_owner_that_holds_the_volume_is_served_when_that_is_over,
            ),
            (
                "server_that_was_left_behind_ends_and_clients_go_on_at_its_successor",
                server_that_was_left_behind_ends_and_clients_go_on_at_its_successor,
            ),
            (
                "write_whose_bytes_came_before_its_server_ended_is_done_by_the_next_one",
                write_whose_bytes_came_before_its_server_ended_is_done_by_the_next_one,
            ),
            ("disk_is_read_as_it_was_while_others_write", disk_is_read_as_it_was_while_others_write),
            ("moment_begins_again_over_the_same_ring", moment_begins_again_over_the_same_ring),
            ("reader_that_is_too_slow_loses_the_moment", reader_that_is_too_slow_loses_the_moment),
            ("large_transfers_are_split_and_come_back_whole", large_transfers_are_split_and_come_back_whole),
        ],
    )
}

struct Image(tempfile::NamedTempFile);

impl Image {
    fn new() -> Image {
        Image(tempfile::NamedTempFile::new().expect("temporary file"))
    }

    fn open(&self) -> OwnedFd {
        let file = std::fs::File::options().read(true).write(true).open(self.0.path());
        file.expect("the image").into()
    }
}

fn start(world: &World, image: &Image) -> Process {
    world.start(program(vec![("image", image.open())], json!({ "bytes": BLOCKS * BLOCK as u64 })))
}

fn program(fds: Vec<(&'static str, OwnedFd)>, options: Value) -> Program {
    Program { endpoint: Endpoint::DISK, fds, options, epoch: 1 }
}

/// What block `index` holds after its `version`-th write: every 8 bytes say so.
fn block(index: u64, version: u64) -> Vec<u8> {
    (index << 32 | version).to_le_bytes().repeat(BLOCK / 8)
}

/// With the data in it. `None`: no server at the moment.
fn room_for(client: &DiskClient, data: &[u8]) -> Option<ReservedWrite> {
    let room = client.reserve_write(data.len() as u32).expect("possible")?;
    let (arena, offset) = room.arena().expect("it is not begun");
    arena.copy_in(offset, data).expect("inside");
    Some(room)
}

/// Writes its blocks in a fixed order of its own and reads back what it wrote. Returns the versions.
fn load(client: &DiskClient, first: u64, stop: &AtomicBool, progress: &Sender<()>) -> Vec<(u64, u64)> {
    let mut versions: Vec<(u64, u64)> = (first..BLOCKS).step_by(2).map(|index| (index, 0)).collect();
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        at = (at + 7) % versions.len();
        let (index, version) = &mut versions[at];
        let durability = if at % 50 == 0 { Durability::Power } else { Durability::Server };
        let (place, data) = (*index * BLOCK as u64, block(*index, *version + 1));
        match room_for(client, &data).filter(|_| at % 3 > 0) {
            Some(room) => room.begin(place, durability).and_then(WriteBegun::finish),
            None => client.write(place, &data, durability),
        }
        .expect("write");
        *version += 1;
        let (index, version) = versions[(at * 3) % versions.len()];
        let expected = if version == 0 { vec![0; BLOCK] } else { block(index, version) };
        assert_eq!(client.read(index * BLOCK as u64, BLOCK).expect("read"), expected, "block {index}");
        let _ = progress.send(());
    }
    versions
}

fn acknowledged_writes_survive_two_hundred_kills_and_clients_see_no_error() {
    const KILLS: u64 = 200;
    let (world, image) = (World::new(), Image::new());
    let first_server = start(&world, &image);
    let client = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    let stop = AtomicBool::new(false);
    let (progress, seen) = channel();
    let (versions, server) = std::thread::scope(|scope| {
        let mut server = first_server;
        let threads = [0, 1].map(|first| {
            let (client, stop, progress) = (client.clone(), &stop, progress.clone());
            scope.spawn(move || load(&client, first, stop, &progress))
        });
        drop(progress);
        for kill in 0..KILLS {
            // Different moments, without a clock.
            for _ in 0..kill * 7 % 11 {
                seen.recv().expect("progress");
            }
            server.kill();
            server = start(&world, &image);
        }
        stop.store(true, Ordering::Relaxed);
        (threads.map(|thread| thread.join().expect("the client saw no error")).concat(), server)
    });
    let restarts = client.session().restarts();
    assert_eq!(server.terminate(), Ended::Exit(0));
    let content = std::fs::read(image.0.path()).expect("the image");
    for (index, version) in versions {
        let found = &content[index as usize * BLOCK..][..BLOCK];
        let expected = if version == 0 { vec![0; BLOCK] } else { block(index, version) };
        assert_eq!(found, expected, "block {index} version {version}");
    }
    eprintln!("{KILLS} kills, {restarts} new rings");
    assert!(restarts > 0);
}

fn write_whose_bytes_came_before_its_server_ended_is_done_by_the_next_one() {
    let (world, image) = (World::new(), Image::new());
    let mut server = start(&world, &image);
    let client = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    client.write(0, &block(0, 1), Durability::Server).expect("written");
    let data = |index, version| (index..index + 64).flat_map(|index| block(index, version)).collect::<Vec<u8>>();
    let at = |index: u64| index * BLOCK as u64;
    // Before the first greeting, after it, and with a write under way.
    for round in 0..3_u64 {
        let [early, late, never] = [0, 64, 128].map(|first| {
            let room = room_for(&client, &data(first, round)).expect("there is room");
            assert!(room.arena().is_some());
            room
        });
        server.stand_still();
        let begun = (round == 2).then(|| {
            let room = room_for(&client, &data(192, round)).expect("there is room");
            room.begin(at(192), Durability::Server).expect("begun")
        });
        server.kill();
        let early = early.begin(at(0), Durability::Server).expect("begun");
        assert!(round == 2 || !early.is_done());
        server = start(&world, &image);
        if round == 1 {
            assert_eq!(client.read(at(500), BLOCK).expect("read"), vec![0; BLOCK]);
        }
        let late = late.begin(at(64), Durability::Server).expect("begun");
        [Some(late), begun, Some(early)].into_iter().flatten().for_each(|write| write.finish().expect("written"));
        drop(never);
        let read = client.begin_read(at(0), 128 * BLOCK as u32).expect("begun").expect("there is room");
        let fetched = read.fetch().expect("read");
        let mut seen = vec![0; fetched.len()];
        fetched.copy_to(&mut seen).expect("it is all there");
        assert!(seen == data(0, round).into_iter().chain(data(64, round)).collect::<Vec<u8>>(), "round {round}");
    }
    // What was given back is had by others: all of it.
    let all: Vec<ReservedWrite> =
        (0..8).map(|_| client.reserve_write(1 << 20).expect("possible").expect("room")).collect();
    assert!(client.reserve_write(BLOCK as u32).expect("possible").is_none());
    drop(all);
    let entries = (0..SIZE.entries).map(|_| client.reserve_write(BLOCK as u32).expect("possible").expect("room"));
    let all: Vec<ReservedWrite> = entries.collect();
    assert!(client.reserve_write(BLOCK as u32).expect("possible").is_none());
    let waits = std::thread::scope(|scope| {
        let reader = scope.spawn(|| client.read(0, BLOCK).expect("read"));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reader.is_finished());
        drop(all);
        reader.join().expect("it has room now")
    });
    assert_eq!(waits, block(0, 2));
}

fn disk_is_read_as_it_was_while_others_write() {
    const EXTENT_BLOCKS: u64 = 256;
    let (world, image) = (World::new(), Image::new());
    let _server = start(&world, &image);
    let client = || DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    let (reader, writer) = (client(), client());
    let write = |index: u64, version: u64| {
        writer.write(index * BLOCK as u64, &block(index, version), Durability::Server).expect("written");
    };
    (0..BLOCKS).for_each(|index| write(index, 1));
    let extent = |number: u64| reader.read(number << 20, 1 << 20).expect("read");
    let as_it_was = |number: u64| {
        let first = number * EXTENT_BLOCKS;
        (first..first + EXTENT_BLOCKS).flat_map(|index| block(index, 1)).collect::<Vec<u8>>()
    };
    reader.freeze().expect("nobody else reads so");
    assert_eq!(client().freeze(), Err(Errno::BUSY));
    let is_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let later = scope.spawn(|| {
            write(300, 2);
            is_written.store(true, Ordering::Release);
            write(301, 2);
        });
        // Also part of an extent.
        assert_eq!(reader.read(300 * BLOCK as u64, BLOCK).expect("read"), block(300, 1));
        assert_eq!(reader.wanted(Duration::from_secs(10)), Ok(vec![1]));
        assert!(!is_written.load(Ordering::Acquire));
        assert!(extent(1) == as_it_was(1));
        later.join().expect("it goes on");
        // Who writes where all is read waits for nobody.
        write(302, 2);
        assert_eq!(reader.wanted(Duration::from_millis(1)), Ok(Vec::new()));
        let discarded = scope.spawn(|| writer.discard(0, BLOCKS * BLOCK as u64).expect("discarded"));
        assert_eq!(reader.wanted(Duration::from_secs(10)), Ok(vec![0]));
        assert!(extent(0) == as_it_was(0));
        discarded.join().expect("it goes on");
    });
    assert!(client().read(0, BLOCK).expect("read").iter().all(|byte| *byte == 0));
    // With its ring the moment is over.
    drop(reader);
    let (next, begun) = (client(), Instant::now());
    while let Err(errno) = next.freeze() {
        assert!(errno == Errno::BUSY && begun.elapsed() < Duration::from_secs(30), "{errno}");
        std::thread::yield_now();
    }
}

/// Who freezes over the same ring again hears of those that wait, and what it asks beyond the disk costs nothing.
fn moment_begins_again_over_the_same_ring() {
    let (world, image) = (World::new(), Image::new());
    let _server = start(&world, &image);
    let client = || DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    let (reader, writer) = (client(), client());
    reader.freeze().expect("nobody else reads so");
    assert!(reader.read(1 << 60, 1 << 20).is_err());
    std::thread::scope(|scope| {
        let later = scope.spawn(|| writer.write(0, &block(0, 2), Durability::Server).expect("it goes on"));
        assert_eq!(reader.wanted(Duration::from_secs(10)), Ok(vec![0]));
        reader.freeze().expect("its own moment");
        assert_eq!(reader.wanted(Duration::from_secs(10)), Ok(vec![0]));
        reader.read(0, 1 << 20).expect("read");
        later.join().expect("it goes on");
    });
}

fn reader_that_is_too_slow_loses_the_moment() {
    let (world, image) = (World::new(), Image::new());
    let _server = start(&world, &image);
    let client = || DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    let (reader, writer) = (client(), client());
    reader.freeze().expect("nobody else reads so");
    writer.write(0, &block(0, 1), Durability::Server).expect("it goes on after a while");
    assert_eq!(reader.read(0, 1 << 20), Err(Errno::TIMEDOUT));
    assert_eq!(reader.wanted(Duration::from_millis(1)), Err(Errno::TIMEDOUT));
    assert_eq!(client().read(0, BLOCK).expect("read"), block(0, 1));
}

/// With up to 64 reads under way, over pages that the kernel was told to forget. Says how fast that was.
fn what_is_not_in_memory_is_read_whole_with_a_ring_and_without() {
    const BLOCKS: u64 = 16 << 10;
    for with_ring in [true, false] {
        let world = World::new();
        let image = Image(tempfile::NamedTempFile::new_in("/var/tmp").expect("a file on a disk"));
        let content: Vec<u8> = (0..BLOCKS).flat_map(|index| block(index, 7)).collect();
        std::fs::write(image.0.path(), &content).expect("written");
        image.0.as_file().sync_all().expect("on the disk");
        let options = json!({ "bytes": BLOCKS * BLOCK as u64, "io_uring": u64::from(with_ring) });
        let server = world.start(program(vec![("image", image.open())], options));
        let client = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
        let read = |depth: usize| {
            rustix::fs::fadvise(image.0.as_file(), 0, None, Advice::DontNeed).expect("forgotten");
            let order = (0..BLOCKS).map(|index| index * 7919 % BLOCKS);
            let mut reads: Vec<(u64, Vec<u8>)> = order.map(|index| (index * BLOCK as u64, vec![0; BLOCK])).collect();
            let began = Instant::now();
            let results: Vec<_> = reads.chunks_mut(depth).flat_map(|part| client.read_each(part)).collect();
            let rate = BLOCKS as f64 / began.elapsed().as_secs_f64();
            println!("{}, {depth} at a time: {rate:.0} reads a second", if with_ring { "ring" } else { "threads" });
            (reads, results)
        };
        for depth in [1, 16, BLOCKS as usize] {
            let (reads, results) = read(depth);
            assert!(results.iter().all(|result| *result == Ok(())));
            for (offset, found) in reads {
                assert!(found == block(offset / BLOCK as u64, 7), "at {offset}");
            }
        }
        // Somebody cuts the image.
        image.0.as_file().set_len((BLOCKS / 2 * BLOCK as u64) + 512).expect("cut");
        let (reads, results) = read(BLOCKS as usize);
        for ((offset, _), result) in reads.iter().zip(results) {
            let is_there = *offset < BLOCKS / 2 * BLOCK as u64;
            assert_eq!(result, if is_there { Ok(()) } else { Err(Errno::IO) }, "at {offset}");
        }
        assert_eq!(server.terminate(), Ended::Exit(0));
    }
}

fn scattered_blocks_come_in_one_transfer() {
    let (world, image) = (World::new(), Image::new());
    let server = start(&world, &image);
    let client = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    for index in [3, 4, 9] {
        client.write(index * BLOCK as u64, &block(index, 1), Durability::Server).expect("write");
    }
    let read = |spans: &[(u64, u64)], room: u32| {
        let spans: Vec<Span> = spans
            .iter()
            .map(|&(first, blocks)| Span {
                offset: (first * BLOCK as u64).into(),
                bytes: blocks.saturating_mul(BLOCK as u64).into(),
            })
            .collect();
        let answer = client.session().call(Op::new(READV, [0; 3]).out(spans.as_bytes()).room(room));
        answer.map(|answer| answer.data)
    };
    let expected = [block(9, 1), block(3, 1), block(4, 1), vec![0; BLOCK]].concat();
    assert_eq!(read(&[(9, 1), (3, 3)], 1 << 20), Ok(expected));
    assert_eq!(read(&[], 1 << 20), Ok(Vec::new()));
    assert_eq!(read(&[(BLOCKS - 1, 2)], 1 << 20), Err(Errno::INVAL));
    assert_eq!(read(&[(0, 1), (0, u64::MAX)], 1 << 20), Err(Errno::INVAL));
    assert_eq!(read(&[(0, 1), (3, 2)], 2 * BLOCK as u32), Err(Errno::RANGE));
    assert_eq!(read(&[(0, 1); 257], 1 << 20), Err(Errno::INVAL));
    let torn = client.session().call(Op::new(READV, [0; 3]).out(&[0; 17]).room(4096));
    assert_eq!(torn.map(|answer| answer.data), Err(Errno::INVAL));
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn who_does_not_own_the_volume_only_reads_it() {
    let (world, image) = (World::new(), Image::new());
    let options = json!({ "bytes": BLOCKS * BLOCK as u64, "owner": Endpoint::FS.number() });
    let server = world.start(program(vec![("image", image.open())], options));
    let client = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    assert_eq!(client.write(0, &[1; BLOCK], Durability::Server), Err(Errno::ACCESS));
    assert_eq!(client.discard(0, BLOCK as u64), Err(Errno::ACCESS));
    assert_eq!(client.read(0, BLOCK), Ok(vec![0; BLOCK]));
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn owner_with_a_successor_changes_nothing_also_after_the_disk_was_killed() {
    let (world, image, fence) = (World::new(), Image::new(), Image::new());
    let start = || {
        let options = json!({ "bytes": BLOCKS * BLOCK as u64, "owner": Endpoint::FS.number() });
        world.start(program(vec![("image", image.open()), ("fence", fence.open())], options))
    };
    let port = world.port(Endpoint::FS, 1);
    let owner = |own| DiskClient::new(world.blocking_as(port.clone(), Endpoint::DISK, SIZE, Epochs { server: 1, own }));
    let server = start();
    let (old, write) = (owner(1), |owner: &DiskClient, version| owner.write(0, &block(0, version), Durability::Server));
    assert_eq!(write(&old, 1), Ok(()));
    let new = owner(2);
    assert_eq!(new.read(0, BLOCK), Ok(block(0, 1)));
    assert_eq!(write(&old, 2), Err(Errno::STALE));
    assert_eq!(old.discard(0, BLOCK as u64), Err(Errno::STALE));
    server.kill();
    let server = start();
    for (late, told) in [(owner(0), 0), (owner(1), 1), (old, 1)] {
        assert_eq!(write(&late, 3), Err(Errno::STALE));
        assert_eq!(late.session().fenced(), Some(Fenced::Replaced { told, now: 2 }));
    }
    assert_eq!(new.read(0, BLOCK), Ok(block(0, 1)), "nothing of it has landed");
    assert_eq!(write(&new, 4), Ok(()), "a restart changes nothing for who has the epoch of today");
    assert!(new.session().restarts() > 0);
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn successor_of_an_owner_that_holds_the_volume_is_served_when_that_is_over() {
    let (world, image, fence) = (World::new(), Image::new(), Image::new());
    let start = || {
        let options = json!({ "bytes": BLOCKS * BLOCK as u64, "owner": Endpoint::FS.number() });
        world.start(program(vec![("image", image.open()), ("fence", fence.open())], options))
    };
    let port = world.port(Endpoint::FS, 1);
    let owner = |own| DiskClient::new(world.blocking_as(port.clone(), Endpoint::DISK, SIZE, Epochs { server: 1, own }));
    let server = start();
    let reader = DiskClient::new(world.blocking(Endpoint::DISK, SIZE));
    assert_eq!(reader.hold(), Err(Errno::ACCESS));
    let first = owner(1);
    let until = Instant::now() + first.hold().expect("it is the owner");
    assert_eq!(first.write(0, &block(0, 1), Durability::Server), Ok(()));
    let second = owner(2);
    assert_eq!(second.read(0, BLOCK), Ok(block(0, 1)));
    assert!(Instant::now() >= until, "it was told that nobody follows it before");
    assert_eq!(first.hold(), Err(Errno::STALE));
    // The disk forgets whom it promised what.
    let until = Instant::now() + second.hold().expect("it is the owner");
    server.kill();
    let server = start();
    let began = Instant::now();
    assert_eq!(reader.read(0, BLOCK), Ok(block(0, 1)));
    assert_eq!(second.write(0, &block(0, 2), Durability::Server), Ok(()));
    assert!(began.elapsed() < Duration::from_millis(400), "who had come before waits for nobody");
    assert_eq!(owner(3).read(0, BLOCK), Ok(block(0, 2)));
    assert!(Instant::now() >= until, "it was told that nobody follows it before");
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn server_that_was_left_behind_ends_and_clients_go_on_at_its_successor() {
    let (world, image) = (World::new(), Image::new());
    let start = |epoch| {
        let options = json!({ "bytes": BLOCKS * BLOCK as u64 });
        world.start(Program { epoch, ..program(vec![("image", image.open())], options) })
    };
    let client = |server| {
        let epochs = Epochs { server, own: 0 };
        DiskClient::new(world.blocking_as(world.client_port(), Endpoint::DISK, SIZE, epochs))
    };
    let write = |client: &DiskClient, index| client.write(index * BLOCK as u64, &block(index, 1), Durability::Server);
    let (left, plain, old, new) = (start(1), client(0), client(1), client(2));
    assert_eq!((write(&plain, 0), write(&old, 1)), (Ok(()), Ok(())));
    let server = std::thread::scope(|scope| {
        let newer = scope.spawn(|| write(&new, 2));
        assert_eq!(left.wait(), Ended::Exit(1));
        let server = start(2);
        assert_eq!(newer.join().expect("no panic"), Ok(()));
        server
    });
    assert_eq!((write(&plain, 3), plain.session().restarts()), (Ok(()), 1));
    assert_eq!(write(&old, 4), Err(Errno::STALE));
    assert_eq!(old.session().fenced(), Some(Fenced::ServerMoved { told: 1, now: 2 }));
    for (index, version) in [(0, 1), (1, 1), (2, 1), (3, 1)] {
        assert_eq!(plain.read(index * BLOCK as u64, BLOCK), Ok(block(index, version)), "block {index}");
    }
    assert_eq!(plain.read(4 * BLOCK as u64, BLOCK), Ok(vec![0; BLOCK]));
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn large_transfers_are_split_and_come_back_whole() {
    const BYTES: u64 = 8 << 20;
    let (world, image) = (World::new(), Image::new());
    let options = json!({ "bytes": BYTES });
    let server = world.start(program(vec![("image", image.open())], options));
    // An arena that cannot hold a whole call at once.
    let client = DiskClient::new(world.blocking(Endpoint::DISK, Size { entries: 8, arena_bytes: 2 << 20 }));
    assert_eq!(client.info().map(|info| (info.bytes, info.epoch)), Ok((BYTES, 1)));
    let data: Vec<u8> = (0..BYTES / 8).flat_map(|word| word.to_le_bytes()).collect();
    std::thread::scope(|scope| {
        for half in 0..2_u64 {
            let (client, data) = (client.clone(), &data);
            scope.spawn(move || {
                let from = half * BYTES / 2;
                let part = &data[from as usize..][..(BYTES / 2) as usize];
                client.write(from, part, Durability::Server).expect("write");
                assert!(client.read(from, part.len()).expect("read") == part);
            });
        }
    });
    client.flush().expect("flush");
    client.discard(4096, 8192).expect("discard");
    let head = client.read(0, 16_384).expect("read");
    assert!(head[..4096] == data[..4096] && head[12_288..] == data[12_288..16_384]);
    assert!(head[4096..12_288].iter().all(|byte| *byte == 0));
    assert_eq!(client.write(BYTES, &[0; 4096], Durability::Server), Err(Errno::INVAL));
    assert_eq!(client.read(100, 4096), Err(Errno::INVAL));
    assert_eq!(client.discard(0, BYTES + 4096), Err(Errno::INVAL));
    assert_eq!(server.terminate(), Ended::Exit(0));
}
