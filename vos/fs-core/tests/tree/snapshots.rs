//! A snapshot shows the tree as it was when it was taken, whatever came later, until it is removed.

use std::sync::Arc;

use crate::common::model::{Model, difference, dump, dump_at, run};
use crate::common::{Client, Random, attr_of, create_data, rename_data, scaled, seeds};
use fs_core::device::BlockDevice;
use fs_core::testing::{MemoryDevice, Recorder, Step, after_crash};
use fs_core::{Depth, Fs, GoBack, OpenError, Options};
use vos_api::fs::{self as api, SNAPSHOTS};
use zerocopy::{FromZeros, IntoBytes};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 256 << 20;
const FILE: u32 = 0o100_600;
const ENOENT: u32 = 2;
const EEXIST: u32 = 17;
const ENOSPC: u32 = 28;
const EROFS: u32 = 30;
const EMLINK: u32 = 31;
const ENOTEMPTY: u32 = 39;
const ENODATA: u32 = 61;

fn take(client: &mut Client, name: &str) -> u64 {
    let taken = client.make(api::MKDIR, SNAPSHOTS, name, 0o755, 5);
    assert_eq!(taken.status, 0, "taking {name}");
    attr_of(&taken).ino.get()
}

fn remove(client: &mut Client, name: &str) -> u32 {
    client.change(api::RMDIR, 0, [SNAPSHOTS, 0, 9], name.as_bytes()).status
}

fn assert_sound(fs: &Arc<Fs>) {
    assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new());
}

/// Blocks that can still be had.
fn free(client: &Client) -> u64 {
    client.fs.checkpoint().expect("a checkpoint");
    client.read_call(api::STATFS, [0; 3], &[]).results[1]
}

#[test]
fn snapshots_show_what_was_whatever_comes_later() {
    for seed in seeds(4) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let mut random = Random::new(seed);
        let mut model = Model::new();
        let mut fs = Fs::open(device.clone(), Options::inline(seed)).expect("a new volume");
        let mut client = Client::new(&fs, 7);
        let mut taken: Vec<(String, u64, Model)> = Vec::new();
        for number in 1..=scaled(900) {
            let op = model.random_op(&mut random);
            let (status, made) = run(&mut client, &op, number);
            let expected = model.apply(&op, number, made).err().unwrap_or(0);
            assert_eq!(status, expected, "seed {seed}, operation {number}: {op:?}");
            match random.below(160) {
                0 | 1 => fs.checkpoint().expect("a checkpoint"),
                2 | 3 if taken.len() < 6 => {
                    let name = format!("s{number}");
                    let root = take(&mut client, &name);
                    taken.push((name, root, model.clone()));
                }
                4 if !taken.is_empty() => {
                    let (name, root, _) = taken.remove(random.below(taken.len() as u64) as usize);
                    assert_eq!(remove(&mut client, &name), 0);
                    assert_eq!((client.lookup(SNAPSHOTS, &name), client.lookup(root, "a")), (None, None));
                }
                5 => {
                    let sequence = client.sequence;
                    drop((client, fs));
                    fs = Fs::open(device.clone(), Options::inline(seed + number)).expect("the same volume");
                    fs.open_session(7, sequence).expect("the same session");
                    client = Client { fs: fs.clone(), session: 7, sequence };
                }
                6 if !taken.is_empty() => {
                    let (name, root, then) = random.pick(&taken);
                    let found = dump_at(&client, *root);
                    assert!(found == *then, "seed {seed}, {name} at {number}: {}", difference(&found, then));
                }
                _ => (),
            }
        }
        let listed: Vec<(String, u64)> = client.list(SNAPSHOTS);
        assert_eq!(listed, taken.iter().map(|(name, root, _)| (name.clone(), *root)).collect::<Vec<_>>());
        for (name, root, then) in &taken {
            let found = dump_at(&client, *root);
            assert!(found == *then, "seed {seed}, {name}: {}", difference(&found, then));
        }
        assert_eq!(dump(&client), model, "seed {seed}");
        assert_sound(&fs);
    }
}

fn open_as_wished(device: &Arc<dyn BlockDevice>, seed: u64, number: u64, name: &str) -> Arc<Fs> {
    let wish = GoBack { number, name: name.as_bytes().to_vec() };
    Fs::open(device.clone(), Options { go_back: Some(wish), ..Options::inline(seed) }).expect("the volume opens")
}

#[test]
fn tree_goes_back_to_any_snapshot_and_all_snapshots_stay() {
    for seed in seeds(4) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let mut random = Random::new(seed + 40);
        let mut model = Model::new();
        let mut fs = Fs::open(device.clone(), Options::inline(seed)).expect("a new volume");
        let mut client = Client::new(&fs, 7);
        let mut taken: Vec<(String, u64, Model)> = Vec::new();
        for number in 1..=scaled(700) {
            let op = model.random_op(&mut random);
            let (status, made) = run(&mut client, &op, number);
            assert_eq!(status, model.apply(&op, number, made).err().unwrap_or(0), "seed {seed}, {number}: {op:?}");
            match random.below(70) {
                0 => fs.checkpoint().expect("a checkpoint"),
                1 if taken.len() < 8 => {
                    let name = format!("s{number}");
                    let root = take(&mut client, &name);
                    taken.push((name, root, model.clone()));
                }
                2 if !taken.is_empty() => {
                    let (name, _, then) = random.pick(&taken).clone();
                    drop((client, fs));
                    fs = open_as_wished(&device, seed + number, number, &name);
                    model = then;
                    client = Client::new(&fs, 100 + number);
                    let found = dump(&client);
                    assert!(found == model, "seed {seed}, {name} at {number}: {}", difference(&found, &model));
                    assert_sound(&fs);
                }
                3 if taken.len() > 3 => {
                    let (name, ..) = taken.remove(random.below(taken.len() as u64) as usize);
                    assert_eq!(remove(&mut client, &name), 0);
                }
                _ => (),
            }
        }
        for (name, root, then) in &taken {
            let found = dump_at(&client, *root);
            assert!(found == *then, "seed {seed}, {name}: {}", difference(&found, then));
        }
        assert_sound(&fs);
    }
}

#[test]
fn wish_to_go_back_is_heeded_once_and_whoever_had_something_has_it_no_more() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let empty = free(&client);
    let ino = attr_of(&client.make(api::MKNOD, 1, "file", FILE, 1)).ino.get();
    assert_eq!(client.write(ino, 0, &[1; MIB as usize], 1).status, 0);
    assert_eq!(client.change(api::OPEN, 0, [ino, 2, 0], &[]).status, 0);
    assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], b"file").status, 0);
    take(&mut client, "then");
    assert_eq!(client.make(api::MKNOD, 1, "later", FILE, 1).status, 0);
    drop((client, fs));

    let fs = open_as_wished(&device, 2, 5, "then");
    let mut client = Client::new(&fs, 8);
    assert_eq!(client.lookup(1, "later"), None);
    assert!(fs.open_session(7, 3).is_err(), "it was in the tree that is no more");
    assert_eq!(client.make(api::MKNOD, 1, "after", FILE, 1).status, 0);
    assert_eq!(remove(&mut client, "then"), 0);
    fs.checkpoint().expect("a checkpoint");
    assert_eq!(free(&client), empty, "what only the dead had is gone");
    take(&mut client, "then");
    assert_sound(&fs);
    drop((client, fs));

    let never = GoBack { number: 6, name: b"never".to_vec() };
    let refused = Fs::open(device.clone(), Options { go_back: Some(never), ..Options::inline(3) }).err();
    assert!(matches!(refused, Some(OpenError::NoSnapshot(name)) if name == "never"));
    let fs = open_as_wished(&device, 3, 5, "then");
    let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    assert!(client.lookup(1, "after").is_some(), "it was heeded before");
    assert_sound(&fs);
}

#[test]
fn removed_snapshot_gives_its_space_back_and_leaves_what_others_need() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let ino = attr_of(&client.make(api::MKNOD, 1, "file", FILE, 1)).ino.get();
    let empty = free(&client);
    let write = |client: &mut Client, byte: u8| {
        assert_eq!(client.write(ino, 0, &vec![byte; MIB as usize], 1).status, 0);
    };
    let blocks = MIB / 4096;
    write(&mut client, 1);
    let first = take(&mut client, "first");
    write(&mut client, 2);
    let second = take(&mut client, "second");
    write(&mut client, 3);
    assert_eq!(free(&client), empty - 3 * blocks);
    let in_second = client.lookup(second, "file").expect("it is there");
    assert_eq!(remove(&mut client, "second"), 0);
    // What only it had goes in a checkpoint, and can be used after the next one.
    free(&client);
    assert_eq!(free(&client), empty - 2 * blocks);
    assert_eq!(client.read_call(api::READ, [in_second, 0, 10], &[]).status, 43, "it is gone");
    let in_first = client.lookup(first, "file").expect("it is there");
    assert!(client.read_all(in_first) == vec![1; MIB as usize]);
    assert_eq!(remove(&mut client, "first"), 0);
    free(&client);
    assert_eq!(free(&client), empty - blocks);
    assert!(client.read_all(ino) == vec![3; MIB as usize]);
    assert_sound(&fs);
}

/// What, its operation, flags, words and data.
type Refused = (&'static str, u16, u16, [u64; 3], Vec<u8>);

#[test]
fn what_a_snapshot_shows_cannot_be_changed() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let file = attr_of(&client.make(api::MKNOD, 1, "file", FILE, 1)).ino.get();
    let directory = attr_of(&client.make(api::MKDIR, 1, "directory", 0o700, 1)).ino.get();
    assert_eq!(client.make(api::MKNOD, directory, "inside", FILE, 1).status, 0);
    assert_eq!(client.write(file, 0, b"then", 1).status, 0);
    let before = dump(&client);
    let root = take(&mut client, "then");
    let shown = client.lookup(root, "file").expect("it is there");
    let shown_directory = client.lookup(root, "directory").expect("it is there");
    assert_eq!(client.lookup(1, ".snapshots"), Some(SNAPSHOTS));
    assert!(client.list(1).iter().all(|(name, _)| name != ".snapshots"), "it is not listed");
    assert_eq!(client.lookup(root, ".."), Some(SNAPSHOTS));
    assert_eq!(client.lookup(SNAPSHOTS, ".."), Some(1));
    assert_eq!(client.lookup(shown_directory, ".."), Some(root));
    assert_eq!(client.lookup(root, ".snapshots"), None, "a snapshot has none");

    let open = |client: &mut Client, flags: u64| client.change(api::OPEN, 0, [shown, flags, 0], &[]);
    assert_eq!((open(&mut client, 1).status, open(&mut client, 2).status), (EROFS, EROFS));
    assert_eq!(open(&mut client, 0o1000).status, EROFS, "O_TRUNC");
    let opened = open(&mut client, 0);
    assert_eq!(opened.status, 0);
    assert_eq!(client.change(api::RELEASE, 0, [shown, opened.results[0], 0], &[]).status, 0);

    let size = api::SetAttr { valid: api::valid::BYTES.into(), bytes: 1.into(), ..api::SetAttr::new_zeroed() };
    let mode = api::SetAttr { valid: api::valid::MODE.into(), mode: 1.into(), ..api::SetAttr::new_zeroed() };
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let symlink = [create_data("new", 0o777, 1), b"\0target".to_vec()].concat();
    let into = |parent: u64, name: &str| rename_data(name, if parent == root { "new" } else { "other" });
    let refused: [Refused; 22] = [
        ("size", api::SETATTR, 0, [shown, 5, 0], size.as_bytes().to_vec()),
        ("mode", api::SETATTR, 0, [shown_directory, 5, 0], mode.as_bytes().to_vec()),
        ("write", api::WRITE, 0, [shown, 0, 5], b"now".to_vec()),
        ("xattr", api::SETXATTR, 0, [shown, 6, 5], b"user.avalue".to_vec()),
        ("punch", api::FALLOCATE, 3, [shown, 0, 4096], words(&[5])),
        ("copy", api::COPY_RANGE, 0, [file, shown, 0], words(&[0, 0, 4, 5])),
        ("file", api::CREATE, 0, [root, 3, 0], create_data("new", FILE, 1)),
        ("node", api::MKNOD, 0, [root, 3, 0], create_data("new", FILE, 1)),
        ("directory", api::MKDIR, 0, [shown_directory, 3, 0], create_data("new", 0o700, 1)),
        ("link", api::LINK, 0, [shown, 1, 5], b"new".to_vec()),
        ("link there", api::LINK, 0, [file, root, 5], b"new".to_vec()),
        ("symlink", api::SYMLINK, 0, [root, 3, 0], symlink),
        ("unlink", api::UNLINK, 0, [root, 0, 5], b"file".to_vec()),
        ("rmdir", api::RMDIR, 0, [root, 0, 5], b"directory".to_vec()),
        ("move in", api::RENAME, 0, [1, root, 5], into(root, "file")),
        ("move out", api::RENAME, 0, [root, 1, 5], into(1, "file")),
        ("move a snapshot", api::RENAME, 0, [SNAPSHOTS, SNAPSHOTS, 5], rename_data("then", "now")),
        ("a file beside", api::MKNOD, 0, [SNAPSHOTS, 3, 0], create_data("new", FILE, 1)),
        ("move the way in", api::RENAME, 0, [1, 1, 5], rename_data(".snapshots", "new")),
        ("move over it", api::RENAME, 0, [1, 1, 5], rename_data("directory", ".snapshots")),
        ("exchange", api::RENAME, 2, [1, 1, 5], rename_data("directory", ".snapshots")),
        ("place", api::PLACE, 0, [root, 3, 2], create_data("new", FILE, 1)),
    ];
    for (what, op, flags, args, data) in refused {
        let status = client.change(op, flags, args, &data).status;
        let is_full = status == ENOTEMPTY && ["move over it", "rmdir"].contains(&what);
        assert!(status == EROFS || is_full, "{what}: {status}");
    }
    assert_eq!(client.make(api::MKDIR, 1, ".snapshots", 0o700, 5).status, EEXIST);
    assert_ne!(client.change(api::RMDIR, 0, [1, 0, 5], b".snapshots").status, 0);
    let found = dump_at(&client, root);
    assert!(found == before, "{}", difference(&found, &before));
    assert_eq!(dump(&client), before);
    // Copied out it is a file like others.
    assert_eq!(client.change(api::COPY_RANGE, 0, [shown, file, 0], &words(&[0, 4, 4, 6])).status, 0);
    assert_eq!(client.read_all(file), b"thenthen");
    assert_sound(&fs);
}

#[test]
fn names_are_given_once_and_as_many_as_there_is_room_for() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    take(&mut client, "0");
    assert_eq!(client.make(api::MKDIR, SNAPSHOTS, "0", 0o755, 5).status, EEXIST);
    assert_eq!(remove(&mut client, "1"), ENOENT);
    for number in 1..64 {
        take(&mut client, &number.to_string());
    }
    assert_eq!(client.make(api::MKDIR, SNAPSHOTS, "64", 0o755, 5).status, EMLINK);
    let roots: Vec<u64> = client.list(SNAPSHOTS).into_iter().map(|(_, root)| root).collect();
    assert_eq!(remove(&mut client, "7"), 0);
    fs.checkpoint().expect("what is left of it goes");
    assert!(!roots.contains(&take(&mut client, "7")), "another one is not taken for the one of before");
    let call = client.change_call(api::MKDIR, 0, [SNAPSHOTS, 1, 1], &create_data("8", 0o755, 5));
    assert_eq!(fs.call(call.clone()).status, EEXIST);
    assert_eq!(remove(&mut client, "8"), 0);
    fs.checkpoint().expect("what is left of it goes");
    let call = client.change_call(api::MKDIR, 0, [SNAPSHOTS, 1, 1], &create_data("8", 0o755, 5));
    let first = fs.call(call.clone());
    assert_eq!((first.status, fs.call(call)), (0, first.clone()), "asked twice, taken once");
    assert_sound(&fs);
}

#[test]
fn volume_full_of_what_snapshots_need_refuses_until_one_is_removed() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let fs = Fs::open(device.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    // Metadata, which is scarcer: names without data.
    let mut count = 0;
    let mut fill = |client: &mut Client| {
        let before = count;
        loop {
            let made = client.make(api::MKNOD, 1, &format!("file {count}"), FILE, 1);
            match made.status {
                0 => count += 1,
                ENOSPC => return (before, count),
                other => panic!("errno {other}"),
            }
        }
    };
    let (_, made) = fill(&mut client);
    for number in 0..100 {
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], format!("file {number}").as_bytes()).status, 0);
    }
    fs.checkpoint().expect("a checkpoint");
    take(&mut client, "full");
    let mut unlinked = 100;
    while client.change(api::UNLINK, 0, [1, 0, 9], format!("file {unlinked}").as_bytes()).status == 0 {
        unlinked += 1;
    }
    assert!(unlinked < made, "what was there is kept, and has no room");
    assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], format!("file {unlinked}").as_bytes()).status, ENOSPC);
    assert_sound(&fs);
    assert_eq!(remove(&mut client, "full"), 0);
    while fs.is_dirty() {
        fs.checkpoint().expect("a checkpoint");
    }
    for number in unlinked..made {
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], format!("file {number}").as_bytes()).status, 0);
    }
    let (from, to) = fill(&mut client);
    assert!(to - from > made * 9 / 10, "{} files instead of {made}", to - from);
    assert_sound(&fs);
}

/// What happened to a snapshot, in the upper bits of a note; the lower ones are its number.
const EVENTS: [u64; 3] = [TAKEN, REMOVING, REMOVED];
const TAKEN: u64 = 1 << 60;
const REMOVING: u64 = 2 << 60;
const REMOVED: u64 = 3 << 60;

struct History {
    steps: Vec<Step>,
    /// The tree after each operation.
    states: Vec<Model>,
    /// After which operation each snapshot was taken.
    taken: Vec<usize>,
}

fn record(seed: u64, operations: u64) -> History {
    let recorder = Arc::new(Recorder::new(64 << 20));
    let mut random = Random::new(seed);
    let fs = Fs::open(recorder.clone(), Options::inline(seed)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let mut model = Model::new();
    let (mut states, mut taken, mut living) = (vec![model.clone()], Vec::new(), Vec::new());
    for number in 1..=operations {
        let op = model.random_op(&mut random);
        let (status, made) = run(&mut client, &op, number);
        assert_eq!(status, model.apply(&op, number, made).err().unwrap_or(0), "seed {seed}: {op:?}");
        states.push(model.clone());
        match random.below(9) {
            0 => fs.checkpoint().expect("a checkpoint"),
            1 if living.len() < 4 => {
                living.push(taken.len() as u64);
                take(&mut client, &taken.len().to_string());
                recorder.note(TAKEN | taken.len() as u64);
                taken.push(number as usize);
            }
            2 if !living.is_empty() => {
                let which = living.remove(random.below(living.len() as u64) as usize);
                recorder.note(REMOVING | which);
                assert_eq!(remove(&mut client, &which.to_string()), 0);
                recorder.note(REMOVED | which);
            }
            _ => (),
        }
    }
    History { steps: recorder.steps(), states, taken }
}

fn assert_recovers(device: MemoryDevice, history: &History, steps: &[Step], what: &str) {
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut fs = Fs::open(device.clone(), Options::inline(99)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let happened = |event: u64| {
        let notes = steps.iter().filter_map(|step| if let Step::Note(note) = step { Some(*note) } else { None });
        notes.filter(move |note| note >> 60 == event >> 60).map(|note| note & !(3 << 60)).collect::<Vec<_>>()
    };
    let [taken, removing, removed] = EVENTS.map(happened);
    for life in 0..2 {
        let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
        let found = dump(&client);
        assert!(history.states.contains(&found), "{what}");
        let listed = client.list(SNAPSHOTS);
        for which in taken.iter().filter(|which| !removing.contains(which)) {
            assert!(listed.iter().any(|(name, _)| *name == which.to_string()), "{what}: snapshot {which} is lost");
        }
        for (name, root) in &listed {
            let which: usize = name.parse().expect("a number");
            assert!(!removed.contains(&(which as u64)), "{what}: snapshot {which} is back");
            let (found, then) = (dump_at(&client, *root), &history.states[history.taken[which]]);
            assert!(found == *then, "{what}: snapshot {which}: {}", difference(&found, then));
        }
        assert_eq!(fs.check(Depth::Data).expect("a readable volume"), Vec::<String>::new(), "{what}");
        // What is written now takes nothing from them, and the next life finds the same.
        fs.goodbye(7).expect("the old client is gone");
        drop(client);
        let mut client = Client::new(&fs, 8 + life);
        let made = client.make(api::MKNOD, 1, "x", FILE, 1);
        let ino = attr_of(&made).ino.get();
        for at in 0..8 {
            assert_eq!(client.write(ino, at * MIB, &[9; MIB as usize / 2], 1).status, 0, "{what}");
            fs.checkpoint().expect("a checkpoint");
        }
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], b"x").status, 0, "{what}");
        fs.goodbye(8 + life).expect("it is gone");
        assert_eq!(client.fs.sync(), Ok(()));
        drop(client);
        drop(fs);
        fs = Fs::open(device.clone(), Options::inline(98 - life)).unwrap_or_else(|error| panic!("{what}: {error}"));
        let set = api::SetAttr { valid: api::valid::MTIME.into(), ..api::SetAttr::new_zeroed() };
        let mtime = found.nodes.get(&1).map_or(0, |root| root.mtime);
        let set = api::SetAttr { mtime_ns: mtime.into(), ..set };
        let mut client = Client { fs: fs.clone(), session: 0, sequence: 0 };
        assert_eq!(client.change(api::SETATTR, 0, [1, 1, 0], set.as_bytes()).status, 0, "{what}");
    }
}

#[test]
fn snapshots_survive_crashes_at_any_point() {
    for seed in seeds(2) {
        let history = record(seed + 200, scaled(60));
        let mut random = Random::new(seed);
        for round in 0..scaled(120) {
            let end = 1 + random.below(history.steps.len() as u64) as usize;
            let steps = &history.steps[..end];
            let percent = *random.pick(&[0, 10, 50, 90, 100]);
            let mut luck = Random::new(seed * 1000 + round);
            let device = after_crash(64 << 20, steps, || luck.chance(percent));
            let what = format!("seed {seed}, round {round}, crash after step {end}, {percent} % survive");
            assert_recovers(device, &history, steps, &what);
        }
    }
}

#[test]
fn wish_to_go_back_survives_crashes_at_any_point() {
    let recorder = Arc::new(Recorder::new(64 << 20));
    let mut random = Random::new(3);
    let mut model = Model::new();
    let fs = Fs::open(recorder.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let (mut then, mut root) = (model.clone(), 0);
    for number in 1..=120 {
        let op = model.random_op(&mut random);
        let (status, made) = run(&mut client, &op, number);
        assert_eq!(status, model.apply(&op, number, made).err().unwrap_or(0));
        if number == 60 {
            root = take(&mut client, "then");
            then = model.clone();
        }
    }
    assert_eq!(fs.sync(), Ok(()));
    drop((client, fs));
    let from = recorder.steps().len();
    let device: Arc<dyn BlockDevice> = recorder.clone();
    drop(open_as_wished(&device, 2, 1, "then"));
    let steps = recorder.steps();
    for end in from..=steps.len() {
        for percent in [0, 50, 100] {
            let mut luck = Random::new(end as u64 * 100 + percent);
            let device: Arc<dyn BlockDevice> = Arc::new(after_crash(64 << 20, &steps[..end], || luck.chance(percent)));
            let fs = open_as_wished(&device, 3, 1, "then");
            let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
            let found = dump(&client);
            assert!(found == then, "after step {end}, {percent} %: {}", difference(&found, &then));
            let found = dump_at(&client, root);
            assert!(found == then, "after step {end}, {percent} %: {}", difference(&found, &then));
            assert_sound(&fs);
        }
    }
}

#[test]
fn large_files_of_a_snapshot_do_not_overfill_the_metadata_when_they_go() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let mut fs = Fs::open(device.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    let mut inos = Vec::new();
    // Blocks apart from each other cost most.
    'full: for file in 0.. {
        let made = client.make(api::MKNOD, 1, &format!("f{file}"), FILE, 1);
        if made.status != 0 {
            break;
        }
        let ino = attr_of(&made).ino.get();
        inos.push(ino);
        for at in 0..64 {
            if client.write(ino, at * 8192, &[file as u8; 100], 1).status != 0 {
                break 'full;
            }
        }
    }
    for ino in inos.drain(..4) {
        let size = api::SetAttr { valid: api::valid::BYTES.into(), ..api::SetAttr::new_zeroed() };
        assert_eq!(client.change(api::SETATTR, 0, [ino, 5, 0], size.as_bytes()).status, 0);
    }
    fs.checkpoint().expect("a checkpoint");
    let root = take(&mut client, "full");
    let then = dump_at(&client, root);
    for number in 4.. {
        match client.change(api::UNLINK, 0, [1, 0, 9], format!("f{number}").as_bytes()).status {
            0 => fs.tick(number * 4000),
            2 | ENOSPC => break,
            other => panic!("errno {other}"),
        }
        if number % 10 == 0 {
            drop((client, fs));
            fs = Fs::open(device.clone(), Options::inline(number)).expect("it opens, however full");
            client = Client { fs: fs.clone(), session: 0, sequence: 0 };
        }
    }
    let found = dump_at(&client, root);
    assert!(found == then, "{}", difference(&found, &then));
    assert_sound(&fs);
    assert_eq!(remove(&mut client, "full"), 0);
    while fs.is_dirty() {
        fs.checkpoint().expect("a checkpoint");
    }
    fs.tick(1 << 40);
    assert_sound(&fs);
}

#[test]
fn what_comes_and_goes_costs_a_snapshot_nothing() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    let stays = attr_of(&client.make(api::MKNOD, 1, "stays", FILE, 1)).ino.get();
    take(&mut client, "then");
    let room = |client: &Client| {
        client.fs.checkpoint().expect("a checkpoint");
        let space = client.read_call(api::STATFS, [0; 3], &[]).results;
        (space[1], space[3])
    };
    let come_and_go = |client: &mut Client, number: u64, between: bool| {
        let name = format!("journal {number}");
        let ino = attr_of(&client.make(api::MKNOD, 1, &name, FILE, 1)).ino.get();
        assert_eq!(client.write(ino, 0, b"transaction", 1).status, 0);
        let opened = client.change(api::OPEN, 0, [stays, 0, 0], &[]);
        if between {
            client.fs.checkpoint().expect("a checkpoint");
        }
        assert_eq!(client.change(api::RELEASE, 0, [stays, opened.results[0], 0], &[]).status, 0);
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], name.as_bytes()).status, 0);
        client.fs.tick(number * 4000);
    };
    for number in 1..10 {
        come_and_go(&mut client, number, number % 2 == 0);
    }
    fs.tick(1 << 40);
    let before = room(&client);
    for number in 10..200 {
        come_and_go(&mut client, number, number % 2 == 0);
    }
    fs.tick(1 << 41);
    assert_eq!(room(&client), before);
    assert_sound(&fs);
}

#[test]
fn attributes_of_all_files_change_on_a_volume_full_of_metadata() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(64 << 20));
    let fs = Fs::open(device.clone(), Options::inline(1)).expect("a new volume");
    let mut client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    let mut inos = Vec::new();
    loop {
        let made = client.make(api::MKNOD, 1, &format!("{}", inos.len()), FILE, 1);
        if made.status != 0 {
            break;
        }
        inos.push(attr_of(&made).ino.get());
    }
    for number in 0..200 {
        assert_eq!(client.change(api::UNLINK, 0, [1, 0, 9], number.to_string().as_bytes()).status, 0);
    }
    fs.tick(1 << 40);
    fs.checkpoint().expect("a checkpoint");
    take(&mut client, "full");
    for (round, checkpoints) in [(1, 1000), (2, 50_000), (3, 7)] {
        for (number, ino) in inos.iter().skip(200).enumerate() {
            let mode = api::SetAttr {
                valid: api::valid::MODE.into(),
                mode: (0o600 + round).into(),
                ..api::SetAttr::new_zeroed()
            };
            assert_eq!(client.change(api::SETATTR, 0, [*ino, 5, 0], mode.as_bytes()).status, 0, "{number}");
            if number % checkpoints == 0 {
                fs.checkpoint().expect("a checkpoint");
            }
        }
        fs.checkpoint().expect("a checkpoint");
    }
    assert_sound(&fs);
    drop((client, fs));
    let fs = Fs::open(device, Options::inline(2)).expect("it opens, however full");
    let mut client = Client { fs: fs.clone(), session: 0, sequence: 0 };
    assert_eq!(remove(&mut client, "full"), 0);
    while fs.is_dirty() {
        fs.checkpoint().expect("a checkpoint");
    }
    assert_eq!(client.make(api::MKNOD, 1, "after", FILE, 1).status, 0);
    assert_sound(&fs);
}

/// As `vos_api::fs::SINCE_NAME`; `None`: there is no such earlier one.
fn changed(client: &Client, root: u64, earlier: u64) -> Option<Vec<u64>> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let name = [api::SINCE_NAME, format!("{earlier}.{from}").as_bytes()].concat();
        let reply = client.read_call(api::GETXATTR, [root, 0, 0], &name);
        if reply.status == ENODATA {
            return None;
        }
        assert_eq!(reply.status, 0);
        let part: Vec<u64> = reply
            .data
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        let Some(last) = part.last() else { return Some(found) };
        assert!(part.is_sorted() && part.iter().all(|ino| *ino >= from));
        from = last + 1;
        found.extend(part);
    }
}

#[test]
fn what_differs_between_two_snapshots_is_told_and_not_much_more() {
    for seed in seeds(4) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let mut random = Random::new(seed + 70);
        let fs = Fs::open(device, Options::inline(seed)).expect("a new volume");
        let mut client = Client::new(&fs, 7);
        // A crowd that nothing changes, and more than one answer has room for that comes in between.
        let crowd = attr_of(&client.make(api::MKDIR, 1, "crowd", 0o700, 1)).ino.get();
        for number in 0..200 {
            assert_eq!(client.make(api::MKNOD, crowd, &format!("{number}"), FILE, 1).status, 0);
        }
        let mut model = dump(&client);
        let still: Vec<u64> = model.nodes[&crowd].entries.values().copied().collect();
        let mut taken: Vec<(u64, String, Model)> = Vec::new();
        for number in 1..=scaled(500) {
            let op = model.random_op(&mut random);
            let touches_crowd = format!("{op:?}")
                .split(|c: char| !c.is_ascii_digit())
                .any(|word| word.parse::<u64>().is_ok_and(|ino| ino == crowd || still.contains(&ino)));
            if touches_crowd {
                continue;
            }
            let (status, made) = run(&mut client, &op, number);
            assert_eq!(status, model.apply(&op, number, made).err().unwrap_or(0), "seed {seed}, {number}: {op:?}");
            match random.below(60) {
                0 => fs.checkpoint().expect("a checkpoint"),
                1 if taken.len() < 8 => {
                    let name = format!("s{number}");
                    taken.push((take(&mut client, &name), name, model.clone()));
                }
                2 if taken.len() > 4 => {
                    let (_, name, _) = taken.remove(1 + random.below(taken.len() as u64 - 1) as usize);
                    assert_eq!(remove(&mut client, &name), 0);
                }
                _ => (),
            }
        }
        let id = |root: u64| (root & !SNAPSHOTS) >> api::SNAPSHOT_INO_BITS;
        for (at, (later, _, now)) in taken.iter().enumerate() {
            for (earlier, _, then) in &taken[..at] {
                let told = changed(&client, *later, id(*earlier)).expect("both are there");
                let all: std::collections::BTreeSet<u64> = then.nodes.keys().chain(now.nodes.keys()).copied().collect();
                for ino in all.iter().filter(|ino| then.nodes.get(ino) != now.nodes.get(ino)) {
                    assert!(told.contains(ino), "seed {seed}: {ino} changed from {earlier:x} to {later:x}");
                }
                assert!(told.iter().all(|ino| !still.contains(ino)), "seed {seed}: what nobody touched");
                assert_eq!(changed(&client, *earlier, id(*later)), None, "backwards");
            }
            assert_eq!(changed(&client, *later, id(*later)), None, "itself");
        }
        assert_eq!(changed(&client, 1, 1), None, "of the tree of now");
    }
}

#[test]
fn more_changes_than_one_answer_has_room_for_are_all_told() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let first = take(&mut client, "first");
    let made: Vec<u64> =
        (0..9000).map(|n| attr_of(&client.make(api::MKNOD, 1, &format!("{n}"), FILE, 1)).ino.get()).collect();
    take(&mut client, "between");
    let later = take(&mut client, "later");
    let told = changed(&client, later, (first & !SNAPSHOTS) >> api::SNAPSHOT_INO_BITS).expect("both are there");
    assert_eq!(told, [&[1], &made[..]].concat());
    assert_eq!(remove(&mut client, "first"), 0);
    assert_eq!(changed(&client, later, (first & !SNAPSHOTS) >> api::SNAPSHOT_INO_BITS), None);
}
