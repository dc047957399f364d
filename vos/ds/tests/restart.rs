//! A key-value server that is killed again and again: each change happens once, each event arrives once.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use abi::Endpoint;
use disk::{Disk, Entrance, KeptFence};
use disk_core::{Access, Image, ImageFile, Volume};
use libvos::{DsClient, DsEvent, Epochs, EventKind, Fenced, Size};
use rustix::io::Errno;
use serde_json::json;
use vos_api::ds::{ABSENT, ANY};
use vos_rt::ReadBy;
use vos_rt::testkit::{Ended, Process, Program, Server, World};

const SIZE: Size = Size { entries: 32, arena_bytes: 4 << 20 };
const LONG: Duration = Duration::from_secs(60);

fn main() -> std::process::ExitCode {
    vos_rt::testkit::main(
        ds::main_from_spawn,
        &[
            (
                "changes_and_events_happen_once_over_a_hundred_kills",
                changes_and_events_happen_once_over_a_hundred_kills,
            ),
            (
                "conditions_listings_subscriptions_and_messages_work_as_the_contract_says",
                conditions_listings_subscriptions_and_messages_work_as_the_contract_says,
            ),
            (
                "changes_and_events_on_a_disk_happen_once_over_a_hundred_kills",
                changes_and_events_on_a_disk_happen_once_over_a_hundred_kills,
            ),
            ("program_that_says_an_enormous_epoch_ends_no_server", program_that_says_an_enormous_epoch_ends_no_server),
        ],
    )
}

/// Where the store is.
enum Place {
    File(tempfile::NamedTempFile),
    /// Of the same container, which lives as long.
    Disk {
        _server: Server<Disk>,
    },
}

impl Place {
    fn file() -> Place {
        Place::File(tempfile::NamedTempFile::new().expect("temporary file"))
    }

    fn disk(world: &World) -> Place {
        let file = tempfile::tempfile().expect("temporary file");
        file.set_len(1 << 30).expect("a sparse file");
        let _server = world.serve(Endpoint::DISK, move |start| {
            let image = Image { file: file.into(), bytes: None, may_be_longer: false, access: Access::ReadWrite };
            let volume = Volume::new(ImageFile::open(image).expect("an image"));
            Disk::new(volume, Entrance::of_owner(Endpoint::DS, KeptFence::default()), 1, ReadBy::Ring, &start.handle)
                .expect("threads")
        });
        Place::Disk { _server }
    }
}

fn start(world: &World, place: &Place) -> Process {
    let (fds, options) = match place {
        Place::File(file) => {
            let file = std::fs::File::options().read(true).write(true).open(file.path());
            (vec![("image", OwnedFd::from(file.expect("the image")))], json!({}))
        }
        Place::Disk { .. } => (Vec::new(), json!({ "disk": Endpoint::DISK.number() })),
    };
    world.start(Program { endpoint: Endpoint::DS, fds, options, epoch: 1 })
}

fn client(world: &World) -> DsClient {
    DsClient::new(world.blocking(Endpoint::DS, SIZE))
}

/// Changes one key, each time on condition of the revision it wrote before: a change that happened twice, or was lost,
/// breaks the chain. Returns how many it made.
fn load(client: &DsClient, key: &[u8], stop: &AtomicBool, progress: &Sender<()>) -> u64 {
    let (mut revision, mut count) = (ABSENT, 0_u64);
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        revision = client.put(key, &count.to_le_bytes(), revision).expect("put");
        if count % 5 == 0 {
            assert_eq!(client.get(key).expect("get"), (count.to_le_bytes().to_vec(), revision));
        }
        let _ = progress.send(());
    }
    count
}

fn changes_and_events_happen_once_over_a_hundred_kills() {
    let world = World::new();
    kill_again_and_again(&world, &Place::file());
}

fn changes_and_events_on_a_disk_happen_once_over_a_hundred_kills() {
    let world = World::new();
    kill_again_and_again(&world, &Place::disk(&world));
}

fn kill_again_and_again(world: &World, place: &Place) {
    const KILLS: u64 = 100;
    let first_server = start(world, place);
    let stop = AtomicBool::new(false);
    let (progress, seen) = channel();
    let watcher = client(world);
    let (subscription, begin) = watcher.subscribe(b"key", 0).expect("subscribe");
    let (counts, events, server) = std::thread::scope(|scope| {
        let mut server = first_server;
        let watching = scope.spawn(|| watch(&watcher, begin));
        let threads: Vec<_> = (0..2)
            .map(|index| {
                let (client, stop, progress) = (client(world), &stop, progress.clone());
                scope.spawn(move || load(&client, format!("key{index}").as_bytes(), stop, &progress))
            })
            .collect();
        drop(progress);
        for kill in 0..KILLS {
            for _ in 0..kill * 5 % 7 {
                seen.recv().expect("progress");
            }
            server.kill();
            server = start(world, place);
        }
        stop.store(true, Ordering::Relaxed);
        let counts: Vec<u64> = threads.into_iter().map(|thread| thread.join().expect("no error")).collect();
        client(world).publish(b"key-end", b"").expect("publish");
        (counts, watching.join().expect("no error"), server)
    });
    assert!(events.iter().all(|event| event.subscription == subscription));
    for (index, count) in counts.iter().enumerate() {
        let key = format!("key{index}").into_bytes();
        let of_key: Vec<u64> = events
            .iter()
            .filter(|event| event.key == key)
            .map(|event| u64::from_le_bytes(event.value.as_slice().try_into().expect("eight bytes")))
            .collect();
        assert_eq!(of_key, (1..=*count).collect::<Vec<_>>(), "events of key {index}");
    }
    let revisions: Vec<u64> = events.iter().map(|event| event.revision).collect();
    assert!(revisions.is_sorted_by(|a, b| a < b));
    eprintln!("{KILLS} kills, {} changes, {} events", counts.iter().sum::<u64>(), events.len());
    assert_eq!(server.terminate(), Ended::Exit(0));
}

/// Collects events until the one that says the end.
fn watch(client: &DsClient, begin: u64) -> Vec<DsEvent> {
    let (mut seen, mut all) = (begin, Vec::new());
    loop {
        for event in client.next(seen, LONG).expect("next") {
            seen = seen.max(event.revision);
            assert_ne!(event.kind, EventKind::Lost);
            if event.kind == EventKind::Message {
                return all;
            }
            all.push(event);
        }
    }
}

fn program_that_says_an_enormous_epoch_ends_no_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("m3ipc");
    let (world, place) = (World::listening(&socket), Place::file());
    let server = start(&world, &place);
    let program = |epochs| world.blocking_as(World::program_port(&socket), Endpoint::DS, SIZE, epochs);
    for (server, own) in [(u32::MAX, 0), (0, u32::MAX), (2, 0)] {
        let hostile = program(Epochs { server, own });
        assert_eq!(DsClient::new(hostile.clone()).put(b"a", b"1", ANY), Err(Errno::STALE));
        assert_eq!(hostile.fenced(), Some(Fenced::NotPermitted));
    }
    let honest = program(Epochs::default());
    assert!(DsClient::new(honest.clone()).put(b"a", b"2", ABSENT).is_ok());
    assert_eq!(honest.restarts(), 0);
    assert_eq!(server.terminate(), Ended::Exit(0));
}

fn conditions_listings_subscriptions_and_messages_work_as_the_contract_says() {
    let world = World::new();
    for place in [Place::file(), Place::disk(&world)] {
        contract(&world, &place);
    }
}

fn contract(world: &World, place: &Place) {
    let server = start(world, place);
    let (one, two) = (client(world), client(world));
    assert_eq!(one.get(b"a"), Err(Errno::NOENT));
    let first = one.put(b"a", b"1", ABSENT).expect("put");
    assert_eq!(two.put(b"a", b"2", ABSENT), Err(Errno::EXIST));
    assert_eq!(two.put(b"a", b"2", first + 1), Err(Errno::STALE));
    let (subscription, begin) = two.subscribe(b"", 0).expect("subscribe");
    assert_eq!(begin, first);
    let second = two.put(b"a", b"2", first).expect("put");
    assert_eq!(one.get(b"a"), Ok((b"2".to_vec(), second)));
    for number in 0..300_u32 {
        one.put(format!("list/{number:04}").as_bytes(), &[7; 10_000], ANY).expect("put");
    }
    let (mut keys, mut after) = (0, Vec::new());
    loop {
        let listing = two.list(b"list/", &after).expect("list");
        keys += listing.entries.len();
        after = listing.entries.last().map(|entry| entry.key.clone()).unwrap_or_default();
        if !listing.has_more {
            break;
        }
    }
    assert_eq!(keys, 300);
    assert_eq!(two.list(b"none", b"").expect("list").entries.len(), 0);
    let removal = one.delete(b"a", ANY).expect("delete");
    assert_eq!(one.delete(b"a", ANY), Err(Errno::NOENT));
    assert_eq!(one.publish(b"topic", b"hello"), Ok(1));
    let (mut seen, mut events) = (begin, Vec::new());
    while events.len() < 303 {
        let more = two.next(seen, LONG).expect("next");
        seen = more.last().map_or(seen, |event| event.revision);
        events.extend(more);
    }
    let kinds: Vec<EventKind> = events.iter().rev().take(2).map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Message, EventKind::Delete]);
    assert_eq!(events.iter().rev().nth(1).map(|event| event.revision), Some(removal));
    assert_eq!(two.next(seen, Duration::from_millis(1)), Ok(Vec::new()));
    two.unsubscribe(subscription).expect("unsubscribe");
    assert_eq!(two.unsubscribe(subscription), Err(Errno::NOENT));
    assert_eq!(one.publish(b"topic", b"hello"), Ok(0));
    assert_eq!(one.put(b"", b"", ANY), Err(Errno::INVAL));
    assert_eq!(one.put(&[b'k'; 256], b"", ANY), Err(Errno::INVAL));
    assert_eq!(server.terminate(), Ended::Exit(0));
}
