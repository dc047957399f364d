//! A quota counts what is in its directory and below, exactly, whatever happens to the tree, and is not exceeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::model::{Model, Op, difference, dump, run};
use crate::common::{Client, Random, attr_of, rename_data, scaled, seeds};
use fs_core::device::BlockDevice;
use fs_core::testing::{MemoryDevice, Recorder, Step, after_crash};
use fs_core::{Depth, Fs, GoBack, Options};
use vos_api::fs::{self as api, SNAPSHOTS};

const VOLUME_BYTES: u64 = 256 << 20;
const BLOCK: u64 = 4096;
const FILE: u32 = 0o100_600;
const ENOENT: u32 = 2;
const EEXIST: u32 = 17;
const EXDEV: u32 = 18;
const ENOTDIR: u32 = 20;
const EINVAL: u32 = 22;
const EROFS: u32 = 30;
const ENODATA: u32 = 61;
const EDQUOT: u32 = 122;

fn set(client: &mut Client, ino: u64, limits: &str) -> u32 {
    let data = [api::QUOTA_NAME, limits.as_bytes()].concat();
    client.change(api::SETXATTR, 0, [ino, api::QUOTA_NAME.len() as u64, 5], &data).status
}

fn end(client: &mut Client, ino: u64) -> u32 {
    client.change(api::REMOVEXATTR, 0, [ino, 5, 0], api::QUOTA_NAME).status
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    bytes: u64,
    inodes: u64,
    used_bytes: u64,
    used_inodes: u64,
    is_counted: bool,
}

fn seen(client: &Client, ino: u64) -> Option<Seen> {
    let reply = client.read_call(api::GETXATTR, [ino, 0, 0], api::QUOTA_NAME);
    if reply.status == ENODATA {
        return None;
    }
    let text = String::from_utf8(reply.data).expect("text");
    let numbers: Vec<u64> =
        text.split(' ').map(|word| word.split_once('=').expect("a word").1.parse().expect("a number")).collect();
    let [bytes, inodes, used_bytes, used_inodes, counted] = numbers[..] else { panic!("{text}") };
    Some(Seen { bytes, inodes, used_bytes, used_inodes, is_counted: counted == 1 })
}

/// Numbers and paths.
fn listed(client: &Client) -> Vec<(u64, String)> {
    let (mut found, mut from) = (Vec::new(), 0);
    loop {
        let name = [api::QUOTAS_NAME, from.to_string().as_bytes()].concat();
        let reply = client.read_call(api::GETXATTR, [api::ROOT, 0, 0], &name);
        assert_eq!(reply.status, 0);
        if reply.data.is_empty() {
            return found;
        }
        for line in reply.data.split(|byte| *byte == 0).filter(|line| !line.is_empty()) {
            let line = String::from_utf8(line.to_vec()).expect("names of the test");
            let words: Vec<&str> = line.splitn(7, ' ').collect();
            let number = words[0].parse().expect("a number");
            found.push((number, words[6].to_owned()));
            from = number + 1;
        }
    }
}

fn assert_sound(fs: &Arc<Fs>, when: &str) {
    assert_eq!(fs.check(Depth::Metadata).expect("a readable volume"), Vec::<String>::new(), "{when}");
}

/// Which directory's quota everything counts with, kept apart from the file system.
#[derive(Clone, Default)]
struct Books {
    of: BTreeMap<u64, u64>,
}

impl Books {
    fn of(&self, ino: u64) -> Option<u64> {
        self.of.get(&ino).copied()
    }

    fn put(&mut self, ino: u64, home: Option<u64>) {
        match home {
            Some(home) => _ = self.of.insert(ino, home),
            None => _ = self.of.remove(&ino),
        }
    }

    /// Whether an operation that the model allows cannot be done.
    fn forbids(&self, model: &Model, op: &Op) -> bool {
        let Op::Rename { from, to, old, new, flags } = op else { return false };
        let cannot = |parent: u64, name: &str, into: u64| {
            let Some(ino) = model.nodes[&parent].entries.get(name) else { return false };
            let (own, there, node) = (self.of(*ino), self.of(into), &model.nodes[ino]);
            let is_own = own == Some(*ino);
            if own == there || is_own && there.is_none() {
                return false;
            }
            is_own || !node.entries.is_empty()
        };
        let (old_ino, new_ino) = (model.nodes[from].entries.get(old), model.nodes[to].entries.get(new));
        old_ino != new_ino && (cannot(*from, old, *to) || *flags == 2 && cannot(*to, new, *from))
    }

    fn follow(&mut self, before: &Model, after: &Model, op: &Op) {
        for ino in after.nodes.keys().filter(|ino| !before.nodes.contains_key(ino)) {
            let (Op::Make { parent, .. } | Op::Symlink { parent, .. } | Op::Place { parent, .. }) = op else {
                panic!("{op:?} makes nothing")
            };
            self.put(*ino, self.of(*parent));
        }
        if let Op::Rename { from, to, old, new, flags } = op {
            let at = |parent: &u64, name: &String| before.nodes[parent].entries.get(name).copied();
            let (moved, other) = (at(from, old), at(to, new));
            if moved == other {
                return;
            }
            let pairs = [(moved, *to), (other.filter(|_| *flags == 2), *from)];
            for (ino, into) in pairs {
                let Some(ino) = ino else { continue };
                if self.of(ino) != Some(ino) {
                    self.put(ino, self.of(into));
                }
            }
        }
        self.of.retain(|ino, _| after.nodes.contains_key(ino));
        let homes: Vec<u64> = self.of.values().copied().collect();
        for home in homes.into_iter().filter(|home| !after.nodes.contains_key(home)) {
            self.forget(home);
        }
    }

    fn forget(&mut self, home: u64) {
        self.of.retain(|_, other| *other != home);
    }

    /// A directory and all below.
    fn begin(&mut self, model: &Model, home: u64) {
        let mut left = vec![home];
        while let Some(ino) = left.pop() {
            self.of.insert(ino, home);
            left.extend(model.nodes[&ino].entries.values().filter(|child| self.of(**child).is_none()));
        }
    }

    fn may_begin(&self, model: &Model, home: u64) -> bool {
        let mut left = vec![home];
        while let Some(ino) = left.pop() {
            if self.of(ino) == Some(ino) {
                return false;
            }
            let node = &model.nodes[&ino];
            left.extend(
                node.entries
                    .values()
                    .filter(|child| !model.nodes[child].entries.is_empty() || self.of(**child) == Some(**child)),
            );
        }
        self.of(home).is_none()
    }

    fn compare(&self, client: &Client, when: &str) {
        let mut used: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        // Nobody's looks wait for nothing.
        let client = &Client { fs: client.fs.clone(), session: 0, sequence: 0 };
        for (ino, home) in &self.of {
            let entry = used.entry(*home).or_default();
            entry.0 += client.attr(*ino).blocks.get() * 512;
            entry.1 += 1;
        }
        for (home, used) in used {
            let seen = seen(client, home).unwrap_or_else(|| panic!("{when}: {home} has no quota"));
            assert_eq!((seen.used_bytes, seen.used_inodes, seen.is_counted), (used.0, used.1, true), "{when}: {home}");
            assert!(seen.bytes == 0 || seen.used_bytes <= seen.bytes, "{when}: {seen:?}");
            assert!(seen.inodes == 0 || seen.used_inodes <= seen.inodes, "{when}: {seen:?}");
        }
    }
}

struct Run {
    fs: Arc<Fs>,
    client: Client,
    model: Model,
    books: Books,
    /// How often a quota said no.
    refused: u64,
}

impl Run {
    fn step(&mut self, random: &mut Random, number: u64, when: &str) {
        let op = self.model.random_op(random);
        let (status, made) = run(&mut self.client, &op, number);
        let mut after = self.model.clone();
        let expected = after.apply(&op, number, made).err().unwrap_or(0);
        let forbids = expected == 0 && self.books.forbids(&self.model, &op);
        match status {
            EXDEV => return assert!(forbids, "{when}: {op:?}"),
            EDQUOT => {
                self.refused += 1;
                return assert!(expected == 0, "{when}: {op:?} should say {expected}");
            }
            _ => assert!(status == expected && !forbids, "{when}: {op:?} says {status}, not {expected}, {forbids}"),
        }
        if status == 0 {
            self.books.follow(&self.model, &after, &op);
            self.model = after;
        }
    }

    fn random_quota(&mut self, random: &mut Random, when: &str) {
        let directories: Vec<u64> = self
            .model
            .nodes
            .iter()
            .filter(|(ino, node)| node.mode & 0o170_000 == 0o040_000 && **ino != 1)
            .map(|(ino, _)| *ino)
            .collect();
        let Some(ino) = directories.get(random.below(directories.len().max(1) as u64) as usize).copied() else {
            return;
        };
        if self.books.of(ino) == Some(ino) {
            assert_eq!(end(&mut self.client, ino), 0, "{when}");
            self.books.forget(ino);
            return;
        }
        let may = self.books.may_begin(&self.model, ino);
        // What is there already may be more than a small limit.
        let status = set(&mut self.client, ino, "");
        assert_eq!(status, if may { 0 } else { EEXIST }, "{when}: {ino}");
        if !may {
            return;
        }
        self.books.begin(&self.model, ino);
        let now = seen(&self.client, ino).expect("it has one now");
        let limits = match random.below(3) {
            0 => String::new(),
            1 => format!(
                "bytes={} inodes={}",
                now.used_bytes + random.below(40) * BLOCK + 1,
                now.used_inodes + random.below(9)
            ),
            _ => format!("bytes={}", now.used_bytes + random.below(200) * BLOCK + 1),
        };
        assert_eq!(set(&mut self.client, ino, &limits), 0, "{when}");
    }
}

#[test]
fn quotas_count_what_is_there_and_are_not_exceeded() {
    let mut refused = 0;
    for seed in seeds(6) {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
        let mut random = Random::new(seed + 9);
        let fs = Fs::open(device.clone(), Options::inline(seed)).expect("a new volume");
        let client = Client::new(&fs, 7);
        let mut it = Run { fs, client, model: Model::new(), books: Books::default(), refused: 0 };
        let mut taken: Vec<(String, Model, Books)> = Vec::new();
        for number in 1..=scaled(900) {
            let when = format!("seed {seed}, operation {number}");
            it.step(&mut random, number, &when);
            match random.below(60) {
                0 => it.fs.checkpoint().expect("a checkpoint"),
                1..=3 => it.random_quota(&mut random, &when),
                4 => it.books.compare(&it.client, &when),
                5 => {
                    let Client { session, sequence, .. } = it.client;
                    drop((it.client, it.fs));
                    it.fs = Fs::open(device.clone(), Options::inline(seed + number)).expect("the same volume");
                    it.fs.open_session(session, sequence).expect("the same session");
                    it.client = Client { fs: it.fs.clone(), session, sequence };
                    it.books.compare(&it.client, &when);
                }
                6 if taken.len() < 4 => {
                    let name = format!("s{number}");
                    assert_eq!(it.client.make(api::MKDIR, SNAPSHOTS, &name, 0o755, 5).status, 0);
                    taken.push((name, it.model.clone(), it.books.clone()));
                }
                7 if !taken.is_empty() => {
                    let (name, model, books) = random.pick(&taken).clone();
                    drop((it.client, it.fs));
                    let wish = GoBack { number, name: name.as_bytes().to_vec() };
                    let options = Options { go_back: Some(wish), ..Options::inline(seed + number) };
                    it.fs = Fs::open(device.clone(), options).expect("the volume opens");
                    it.client = Client::new(&it.fs, 100 + number);
                    (it.model, it.books) = (model, books);
                    it.books.compare(&it.client, &when);
                    assert_sound(&it.fs, &when);
                }
                _ => (),
            }
        }
        let when = format!("seed {seed}, in the end");
        it.books.compare(&it.client, &when);
        let found = dump(&it.client);
        assert!(found == it.model, "{when}: {}", difference(&found, &it.model));
        assert_sound(&it.fs, &when);
        let homes: std::collections::BTreeSet<u64> = it.books.of.values().copied().collect();
        assert_eq!(listed(&it.client).len(), homes.len(), "{when}");
        refused += it.refused;
    }
    assert!(refused > 0, "no quota ever said no");
}

/// A tree, a quota that is set while it is there, and what goes on then.
fn recorded(seed: u64) -> (Vec<Step>, u64) {
    let recorder = Arc::new(Recorder::new(VOLUME_BYTES));
    let device: Arc<dyn BlockDevice> = recorder.clone();
    let mut random = Random::new(seed);
    let fs = Fs::open(device, Options::inline(seed)).expect("a new volume");
    let client = Client::new(&fs, 7);
    let mut it = Run { fs, client, model: Model::new(), books: Books::default(), refused: 0 };
    let home = attr_of(&it.client.make(api::MKDIR, 1, "home", 0o700, 1)).ino.get();
    for number in 0..5 {
        let inner = attr_of(&it.client.make(api::MKDIR, home, &format!("d{number}"), 0o700, 1)).ino.get();
        for file in 0..90 {
            let made = it.client.make(api::MKNOD, inner, &format!("f{file}"), FILE, 1);
            if file % 30 == 0 {
                assert_eq!(it.client.write(attr_of(&made).ino.get(), 0, &[1; 5000], 1).status, 0);
            }
        }
    }
    it.fs.checkpoint().expect("a checkpoint");
    recorder.note(1);
    assert_eq!(set(&mut it.client, home, "bytes=9000000 inodes=900"), 0);
    it.model = dump(&it.client);
    it.books.begin(&it.model, home);
    for number in 1..40 {
        it.step(&mut random, number, &format!("seed {seed}, operation {number}"));
    }
    (recorder.steps(), home)
}

#[test]
fn what_quotas_say_is_so_wherever_a_server_ends() {
    for seed in seeds(2) {
        let (steps, home) = recorded(seed);
        let first = steps.iter().position(|step| matches!(step, Step::Note(1))).expect("the note");
        let mut random = Random::new(seed + 5);
        let all = steps.len() - first;
        for at in 0..scaled(40) {
            let end = first + random.below(all as u64 + 1) as usize;
            let loses = at % 2 == 1;
            let device: Arc<dyn BlockDevice> =
                Arc::new(after_crash(VOLUME_BYTES, &steps[..end], || !loses || random.chance(60)));
            let fs = Fs::open(device, Options::inline(seed + 77)).expect("it opens");
            let when = format!("seed {seed}, after {end} of {} steps, losing {loses}", steps.len());
            assert_sound(&fs, &when);
            let client = Client { fs: fs.clone(), session: 0, sequence: 0 };
            let (model, mut books) = (dump(&client), Books::default());
            // All that was there is counted, by whichever server.
            if seen(&client, home).is_some() {
                books.begin(&model, home);
                books.compare(&client, &when);
            }
        }
    }
}

#[test]
fn what_a_quota_does_not_allow_is_edquot_and_changes_nothing() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let home = attr_of(&client.make(api::MKDIR, 1, "home", 0o700, 1)).ino.get();
    let file = attr_of(&client.make(api::MKNOD, home, "file", FILE, 1)).ino.get();
    let outside = attr_of(&client.make(api::MKNOD, 1, "outside", FILE, 1)).ino.get();
    assert_eq!(client.write(outside, 0, &[7; 8 * BLOCK as usize], 1).status, 0);
    assert_eq!(set(&mut client, home, "bytes=20000 inodes=3"), 0);
    let expected = Seen { bytes: 5 * BLOCK, inodes: 3, used_bytes: 0, used_inodes: 2, is_counted: true };
    assert_eq!(seen(&client, home), Some(expected));
    assert_eq!(client.write(file, 0, &[1; 5 * BLOCK as usize], 1).status, 0);
    let before = dump(&client);
    assert_eq!(client.write(file, 5 * BLOCK, &[1], 1).status, EDQUOT);
    assert_eq!(client.change(api::RENAME, 0, [1, home, 5], &rename_data("outside", "inside")).status, EDQUOT);
    assert_eq!(client.change(api::FALLOCATE, 0, [file, 0, 6 * BLOCK], &[0; 8]).status, EDQUOT);
    let words = [0_u64, 5 * BLOCK, BLOCK, 5].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    assert_eq!(client.change(api::COPY_RANGE, 0, [outside, file, 0], &words).status, EDQUOT);
    assert_eq!(dump(&client), before);
    // Over what is there is no more than what is there.
    assert_eq!(client.change(api::FALLOCATE, 0, [file, 0, 5 * BLOCK], &[0; 8]).status, 0);
    assert_eq!(client.write(file, 0, &[2; BLOCK as usize], 1).status, 0);
    assert_eq!(client.make(api::MKNOD, home, "third", FILE, 1).status, 0);
    for (op, name) in [(api::MKNOD, "more"), (api::MKDIR, "more"), (api::CREATE, "more")] {
        assert_eq!(client.make(op, home, name, FILE, 1).status, EDQUOT);
    }
    let space = client.read_call(api::STATFS, [home, 0, 0], &[]).results;
    assert_eq!(space, [5, 0, 3, 0], "what df says there");
    assert!(client.read_call(api::STATFS, [0; 3], &[]).results[0] > 1000);
    // What is open and has no name counts, and what nobody has does not.
    let opened = client.change(api::OPEN, 0, [file, 2, 0], &[]).results[0];
    assert_eq!(client.change(api::UNLINK, 0, [home, 0, 9], b"file").status, 0);
    assert_eq!(seen(&client, home).map(|seen| (seen.used_bytes, seen.used_inodes)), Some((5 * BLOCK, 3)));
    assert_eq!(client.change(api::RELEASE, 0, [file, opened, 0], &[]).status, 0);
    assert_eq!(seen(&client, home).map(|seen| (seen.used_bytes, seen.used_inodes)), Some((0, 2)));
    assert_eq!(client.change(api::RENAME, 0, [1, home, 5], &rename_data("outside", "inside")).status, EDQUOT);
    assert_eq!(set(&mut client, home, "bytes=32768"), 0);
    assert_eq!(client.change(api::RENAME, 0, [1, home, 5], &rename_data("outside", "inside")).status, 0);
    assert_eq!(client.change(api::RENAME, 0, [home, 1, 5], &rename_data("inside", "outside")).status, 0);
    assert_eq!(seen(&client, home).map(|seen| (seen.used_bytes, seen.used_inodes)), Some((0, 2)));
    assert_sound(&fs, "in the end");
}

#[test]
fn quotas_are_of_directories_apart_from_one_another() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let make =
        |client: &mut Client, parent, name: &str| attr_of(&client.make(api::MKDIR, parent, name, 0o700, 1)).ino.get();
    let a = make(&mut client, 1, "a");
    let (b, c) = (make(&mut client, a, "b"), make(&mut client, 1, "c"));
    let inner = make(&mut client, b, "inner");
    let file = attr_of(&client.make(api::MKNOD, c, "file", FILE, 1)).ino.get();
    assert_eq!(set(&mut client, file, "bytes=1"), ENOTDIR);
    for bad in ["bytes", "bytes=x", "bytes=-1", "bytes=1 bytes=2", "colour=1", "bytes=99999999999999999999"] {
        assert_eq!(set(&mut client, b, bad), EINVAL, "{bad}");
    }
    assert_eq!(end(&mut client, b), ENODATA);
    assert_eq!(set(&mut client, b, "inodes=100"), 0);
    assert_eq!((set(&mut client, a, "inodes=9"), set(&mut client, inner, "inodes=9")), (EEXIST, EEXIST));
    assert_eq!(set(&mut client, c, "inodes=100"), 0);
    let rename = |client: &mut Client, (from, old): (u64, &str), (to, new): (u64, &str)| {
        client.change(api::RENAME, 0, [from, to, 5], &rename_data(old, new)).status
    };
    assert_eq!(rename(&mut client, (b, "inner"), (c, "inner")), 0, "it is empty");
    make(&mut client, inner, "more");
    assert_eq!(rename(&mut client, (c, "inner"), (b, "inner")), EXDEV);
    assert_eq!(rename(&mut client, (a, "b"), (c, "b")), EXDEV, "one inside the other");
    assert_eq!(rename(&mut client, (a, "b"), (1, "moved")), 0);
    assert_eq!(listed(&client), [(1, "/moved".to_owned()), (2, "/c".to_owned())]);
    assert_eq!(seen(&client, b).map(|seen| seen.used_inodes), Some(1));
    assert_eq!(seen(&client, c).map(|seen| seen.used_inodes), Some(4));
    assert_eq!(client.change(api::LISTXATTR, 0, [b, 0, 0], &[]).data, b"");
    // A snapshot shows none, and takes none.
    let shown = attr_of(&client.make(api::MKDIR, SNAPSHOTS, "s", 0o755, 5)).ino.get();
    let there = client.lookup(shown, "c").expect("it is there");
    assert_eq!((seen(&client, there), set(&mut client, there, "bytes=1")), (None, EROFS));
    // With its directory it goes, and what is left of another one's is counted again by whoever comes next.
    assert_eq!(client.change(api::RMDIR, 0, [1, 0, 9], b"moved").status, 0);
    assert_eq!(end(&mut client, c), 0);
    assert_eq!(listed(&client), []);
    assert_eq!(set(&mut client, 1, "inodes=100"), 0);
    assert_eq!(seen(&client, 1).map(|seen| (seen.used_inodes, seen.is_counted)), Some((6, true)));
    assert_eq!(client.change(api::RMDIR, 0, [1, 0, 9], b"none").status, ENOENT);
    assert_sound(&fs, "in the end");
}

#[test]
fn what_was_there_may_be_opened_again_in_a_full_quota() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let fs = Fs::open(device, Options::inline(1)).expect("a new volume");
    let mut client = Client::new(&fs, 7);
    let home = attr_of(&client.make(api::MKDIR, 1, "home", 0o700, 1)).ino.get();
    assert_eq!(set(&mut client, home, "inodes=2"), 0);
    let file = attr_of(&client.make(api::MKNOD, home, "file", FILE, 1)).ino.get();
    assert_eq!(client.change(api::UNLINK, 0, [home, 0, 9], b"file").status, 0);
    assert_eq!(client.make(api::MKNOD, home, "other", FILE, 1).status, 0);
    const O_TRUNC: u64 = 0o1000;
    assert_eq!(client.change(api::OPEN, 0, [file, O_TRUNC | 2, 0], &[]).status, 0, "it lingers");
    assert_eq!(seen(&client, home).map(|seen| seen.used_inodes), Some(3));
    assert_eq!(client.make(api::MKNOD, home, "more", FILE, 1).status, EDQUOT);
    assert_sound(&fs, "in the end");
}
