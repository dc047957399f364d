//! Sessions that change files before they tell (`vos_api::fs::EXCLUSIVE`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use crate::common::{self, Client, Random, attr_of, create_data, entries, scaled};
use fs_core::testing::MemoryDevice;
use fs_core::{Call, Fs, Options, Reply, VOLUME_BYTES_MIN};
use vos_api::fs as api;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const FILE: u32 = 0o100_600;
const ENOSPC: u32 = 28;
const ESTALE: u32 = 116;
const EXCLUSIVE: u64 = api::LEASE | api::DELEGATES | api::EXCLUSIVE | api::ROOM;
/// What an answer says of names as well is for tests of names.
const OF_FILES: u64 = !(api::EXCLUSIVE_NAMES | api::MOVES_BETWEEN);

fn open(device: &Arc<MemoryDevice>, seed: u64) -> Arc<Fs> {
    Fs::open(device.clone(), Options::inline(seed)).expect("the volume opens")
}

fn new() -> (Arc<MemoryDevice>, Arc<Fs>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let fs = open(&device, 1);
    (device, fs)
}

fn behind(fs: &Arc<Fs>, session: u64) -> Client {
    let client = Client::new(fs, session);
    assert_eq!(client.read_call(api::WRITES_BEHIND, [0; 3], &[]).status, 0);
    client
}

fn submit(fs: &Arc<Fs>, call: Call) -> Receiver<Reply> {
    let (sender, receiver) = sync_channel(1);
    fs.submit(call, Box::new(move |reply| _ = sender.send(reply)));
    receiver
}

fn look(client: &Client, op: u16, args: [u64; 3], data: &[u8]) -> Receiver<Reply> {
    let (session, data) = (client.session, data.to_vec());
    submit(&client.fs, Call { session, op, args, data, capacity: common::ROOM, ..Call::default() })
}

thread_local! {
    /// Requests for events that have no answer yet, by server and session.
    static POLLS: RefCell<HashMap<(usize, u64), Receiver<Reply>>> = RefCell::default();
}

/// Recall numbers, inodes and kinds.
fn events(client: &Client) -> Vec<(u64, u64, u32)> {
    let key = (Arc::as_ptr(&client.fs).addr(), client.session);
    let parked = POLLS.with_borrow_mut(|polls| polls.remove(&key));
    let poll = parked.unwrap_or_else(|| look(client, api::EVENTS, [0; 3], &[]));
    let Ok(reply) = poll.try_recv() else {
        POLLS.with_borrow_mut(|polls| polls.insert(key, poll));
        return Vec::new();
    };
    let (mut data, mut found) = (reply.data.as_slice(), Vec::new());
    while !data.is_empty() {
        let (event, rest) = api::Event::read_from_prefix(data).expect("an event");
        found.push((event.recall.get(), event.ino.get(), event.kind.get()));
        data = &rest[(event.name_bytes.get() as usize).next_multiple_of(8)..];
    }
    found
}

/// Makes a file, for which another gives back what it is asked for.
fn make_beside(client: &mut Client, name: &str, other: Option<&Client>) -> (u64, u64) {
    let attributes = look(client, api::GETATTR, [1, 0, 0], &[]);
    if let Some(other) = other {
        tell(other);
    }
    assert_eq!(attributes.try_recv().expect("an answer").status, 0);
    let call = client.change_call(api::CREATE, 0, [1, name.len() as u64, 1], &create_data(name, FILE, 1));
    let made = submit(&client.fs, call);
    if let Some(other) = other {
        give_back(other);
    }
    let made = made.try_recv().expect("an answer");
    (attr_of(&made).ino.get(), made.results[3])
}

fn make(client: &mut Client, name: &str) -> (u64, u64) {
    make_beside(client, name, None)
}

fn bytes_of(reply: &Reply) -> Vec<u8> {
    reply.parts.iter().flat_map(|part| part.bytes().to_vec()).chain(reply.data.iter().copied()).collect()
}

fn tell(client: &Client) {
    for (recall, ..) in events(client) {
        client.read_call(api::TOLD, [recall, 0, 0], &[]);
    }
}

fn give_back(client: &Client) {
    for (recall, ..) in events(client) {
        client.read_call(api::RELEASED, [recall, 0, 0], &[]);
    }
}

fn write_behind(client: &mut Client, ino: u64, offset: u64, data: &[u8]) -> Reply {
    client.change(api::WRITE, api::BEHIND, [ino, offset, 5], data)
}

fn waits(reply: &Receiver<Reply>) -> bool {
    matches!(reply.try_recv(), Err(TryRecvError::Empty))
}

#[test]
fn file_that_nobody_else_has_is_given_exclusively_to_a_session_that_asked_for_that_once() {
    let (device, fs) = new();
    let (mut own, mut plain) = (behind(&fs, 7), Client::new(&fs, 8));
    let (ino, terms) = make(&mut own, "a");
    assert_eq!(terms & OF_FILES, EXCLUSIVE);
    assert_eq!(own.write(ino, 0, b"one", 2).results[3], EXCLUSIVE);
    let set = api::SetAttr { valid: (api::valid::MODE | api::valid::BEHIND).into(), ..api::SetAttr::new_zeroed() };
    assert_eq!(own.change(api::SETATTR, 0, [ino, 3, 0], set.as_bytes()).results[3], EXCLUSIVE);
    let made = own.make(api::MKDIR, 1, "d", 0o755, 4);
    assert_eq!(made.results[3] & api::EXCLUSIVE, 0, "that is said of files");
    let (_, terms) = make_beside(&mut plain, "b", Some(&own));
    assert_eq!(terms & api::EXCLUSIVE, 0, "it did not ask");
    drop((own, plain, fs));
    let fs = open(&device, 2);
    fs.open_session(7, 0).expect("the session goes on");
    let own = Client { fs: fs.clone(), session: 7, sequence: 100 };
    let everything = events(&own);
    assert_eq!(everything.len(), 1);
    let other = Client::new(&fs, 9);
    assert!(waits(&look(&other, api::GETATTR, [ino, 0, 0], &[])), "the next server knows that it asked");
}

#[test]
fn whoever_looks_waits_until_it_was_told_and_sees_it() {
    let (_, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), Client::new(&fs, 8));
    type Looked = (u16, fn(u64) -> [u64; 3], &'static [u8]);
    let looks: [Looked; 6] = [
        (api::GETATTR, |ino| [ino, 0, 0], b""),
        (api::READ, |ino| [ino, 0, 100], b""),
        (api::LSEEK, |ino| [ino, 0, 4], b""),
        (api::FSYNC, |ino| [ino, 0, 0], b""),
        (api::FSYNC, |_| [0; 3], b""),
        (api::LOOKUP, |_| [1, 0, 0], b"f"),
    ];
    for (number, (op, args, data)) in looks.into_iter().enumerate() {
        let name = format!("f{number}");
        let (ino, terms) = make(&mut own, &name);
        assert_eq!(terms & OF_FILES, EXCLUSIVE);
        let data = if op == api::LOOKUP { name.as_bytes() } else { data };
        let seen = look(&other, op, args(ino), data);
        assert!(waits(&seen), "operation {op}");
        if op == api::LOOKUP {
            // The directory comes first.
            tell(&own);
        }
        let asked = events(&own);
        assert!(asked.iter().any(|event| (event.1, event.2) == (ino, api::TELL)));
        let last = asked.iter().map(|event| event.0).max().expect("an event");
        assert_eq!(write_behind(&mut own, ino, 0, &[7; 5000]).status, 0, "the promise waits for nobody");
        assert!(waits(&seen), "there may be more");
        own.read_call(api::TOLD, [last, 0, 0], &[]);
        let seen = seen.try_recv().expect("an answer");
        assert_eq!(seen.status, 0, "operation {op}");
        match op {
            api::READ => assert_eq!(bytes_of(&seen), [7; 100]),
            api::GETATTR | api::LOOKUP => assert_eq!(attr_of(&seen).bytes.get(), 5000),
            api::LSEEK => assert_eq!(seen.results[0], 5000),
            _ => (),
        }
        own.read_call(api::RELEASED, [last, 0, 0], &[]);
        // What the owner keeps it keeps; its next change asks who looked.
        assert_eq!(own.read_call(api::GETATTR, [ino, 0, 0], &[]).results[3] & api::LEASE, api::LEASE);
        let again = own.change_call(api::WRITE, 0, [ino, 0, 6], b"x");
        let again = submit(&fs, again);
        give_back(&other);
        assert_eq!(again.try_recv().expect("an answer").status, 0);
    }
    // Changes, and what reads beside one.
    let (source, terms) = make_beside(&mut own, "source", Some(&other));
    assert_eq!(terms & OF_FILES, EXCLUSIVE);
    let target = make_beside(&mut other, "target", Some(&own)).0;
    let copy: Vec<u8> = [0u64, 0, 5000, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    let copied = other.change_call(api::COPY_RANGE, 0, [source, target, 0], &copy);
    let opened = other.change_call(api::OPEN, 0, [source, 0, 0], &[]);
    let existing = other.change_call(api::CREATE, 0, [1, 6, 0], &create_data("source", FILE, 1));
    let replies = [copied, opened, existing].map(|call| submit(&fs, call));
    assert!(replies.iter().all(waits));
    assert_eq!(write_behind(&mut own, source, 0, &[9; 5000]).status, 0);
    for (recall, ..) in events(&own) {
        own.read_call(api::TOLD, [recall, 0, 0], &[]);
    }
    let [copied, opened, existing] = replies.map(|reply| reply.try_recv().expect("an answer"));
    assert_eq!((copied.results[0], opened.status, attr_of(&existing).bytes.get()), (5000, 0, 5000));
    let more = own.change_call(api::WRITE, 0, [source, 0, 9], b"x");
    let more = submit(&fs, more);
    give_back(&other);
    assert_eq!(more.try_recv().expect("an answer").results[3] & api::EXCLUSIVE, 0, "another has it open");
}

/// Numbers for inodes.
fn numbers(client: &Client) -> std::ops::Range<u64> {
    let given = client.read_call(api::NUMBERS, [0; 3], &[]);
    assert_eq!(given.status, 0);
    given.results[0]..given.results[0] + given.results[1]
}

fn makes(ino: u64, mode: u32, time_ns: u64) -> api::NameChange {
    let (time, mode) = (time_ns.into(), mode.into());
    api::NameChange {
        ino: ino.into(),
        kind: api::MAKES.into(),
        mode,
        time_ns: time,
        atime_ns: time,
        mtime_ns: time,
        ctime_ns: time,
        ..api::NameChange::new_zeroed()
    }
}

fn other_change(kind: u16, ino: u64, time_ns: u64) -> api::NameChange {
    api::NameChange { kind: kind.into(), ..makes(ino, 0, time_ns) }
}

fn names_call(client: &mut Client, marks: u16, changes: &[(api::NameChange, &str, &[u8])]) -> Call {
    let mut bytes = Vec::new();
    changes.iter().for_each(|(change, name, more)| change.push(name.as_bytes(), more, &mut bytes));
    let time_ns = changes.last().map_or(0, |(change, ..)| change.time_ns.get());
    client.change_call(api::NAMES, marks, [1, time_ns, 0], &bytes)
}

fn name_behind(client: &mut Client, changes: &[(api::NameChange, &str, &[u8])]) -> Reply {
    let call = names_call(client, api::BEHIND, changes);
    client.fs.call(call)
}

#[test]
fn names_of_a_directory_that_one_session_has_are_changed_together_or_not_at_all() {
    let (device, fs) = new();
    let mut own = behind(&fs, 7);
    assert_eq!(make(&mut own, "old").1 & api::EXCLUSIVE_NAMES, api::EXCLUSIVE_NAMES);
    let old = own.lookup(1, "old").expect("it is there");
    let numbers = numbers(&own);
    let [file, link, gone, directory] = [0, 1, 2, 3].map(|at| numbers.start + at);
    let changes: [(api::NameChange, &str, &[u8]); 7] = [
        (makes(file, FILE, 10), "file", b"content"),
        (makes(link, 0o120_777, 11), "link", b"target"),
        (makes(gone, FILE, 12), "gone", b"of no use"),
        (makes(directory, 0o40_700, 13), "d", b""),
        (other_change(api::REMOVES, gone, 14), "gone", b""),
        (other_change(api::MOVES, file, 15), "file", b"moved"),
        (other_change(api::REMOVES, old, 16), "old", b""),
    ];
    let call = names_call(&mut own, api::BEHIND, &changes);
    let told = fs.call(call.clone());
    let terms = api::LEASE | api::DELEGATES | api::EXCLUSIVE_NAMES | api::MOVES_BETWEEN | api::ROOM;
    assert_eq!((told.status, told.results[3]), (0, terms));
    assert_eq!(fs.call(call.clone()).status, 0, "once");
    let look = |client: &Client| {
        let mut names: Vec<(String, u64)> = client.list(1);
        names.sort();
        assert_eq!(names, [("d".to_owned(), directory), ("link".to_owned(), link), ("moved".to_owned(), file)]);
        assert_eq!(client.read_all(file), b"content");
        assert_eq!(client.read_call(api::READLINK, [link, 0, 0], &[]).data, b"target");
        let attr = client.attr(file);
        assert_eq!((attr.bytes.get(), attr.mtime_ns.get(), attr.ctime_ns.get()), (7, 10, 15));
        let parent = client.attr(1);
        assert_eq!((parent.links.get(), parent.mtime_ns.get(), parent.ctime_ns.get()), (3, 16, 16));
        assert_eq!((client.attr(directory).links.get(), client.attr(directory).ino.get()), (2, directory));
    };
    look(&own);
    // One that cannot be: none of the others either.
    let refused: [(api::NameChange, &str, &[u8]); 6] = [
        (makes(file, FILE, 20), "again", b""),
        (makes(numbers.end + 5, FILE, 20), "never given", b""),
        (makes(numbers.start + 9, FILE, 20), "moved", b""),
        (other_change(api::REMOVES, old, 20), "old", b""),
        (other_change(api::REMOVES, old, 20), "moved", b""),
        (other_change(api::MOVES, file, 20), "moved", b"d"),
    ];
    for (number, change) in refused.into_iter().enumerate() {
        let first = (makes(numbers.start + 10, FILE, 20), "first", &b"bytes"[..]);
        assert_ne!(name_behind(&mut own, &[first, change]).status, 0, "change {number}");
        look(&own);
    }
    let malformed = [&b"short"[..], &[0xff; 64], &[0xff; 4096]];
    for bytes in malformed {
        assert_eq!(own.change(api::NAMES, api::BEHIND, [1, 0, 0], bytes).status, 22);
    }
    fs.checkpoint().expect("a checkpoint");
    drop((own, fs));
    let fs = open(&device, 2);
    fs.open_session(7, 0).expect("the session goes on");
    assert_eq!(fs.call(call).status, 0, "once, over restarts");
    let own = Client { fs, session: 7, sequence: 100 };
    look(&own);
    assert!(numbers_do_not_overlap(&own, numbers));
}

#[test]
fn names_that_lead_to_the_same_file_come_and_go_behind() {
    let (_, fs) = new();
    let mut own = behind(&fs, 7);
    make(&mut own, "old");
    let old = own.lookup(1, "old").expect("it is there");
    let first = numbers(&own).start;
    let (file, directory) = (first, first + 1);
    let changes: [(api::NameChange, &str, &[u8]); 6] = [
        (makes(file, FILE, 10), "tmp", b"an object"),
        (other_change(api::LINKS, file, 11), "object", b""),
        (other_change(api::REMOVES, file, 12), "tmp", b""),
        (other_change(api::LINKS, old, 13), "second", b""),
        (other_change(api::LINKS, old, 14), "third", b""),
        (other_change(api::REMOVES, old, 15), "old", b""),
    ];
    assert_eq!(name_behind(&mut own, &changes).status, 0);
    let mut names: Vec<(String, u64)> = own.list(1);
    names.sort();
    assert_eq!(names, [("object".to_owned(), file), ("second".to_owned(), old), ("third".to_owned(), old)]);
    assert_eq!(own.read_all(file), b"an object");
    let seen = |ino| (own.attr(ino).links.get(), own.attr(ino).ctime_ns.get());
    assert_eq!((seen(file).0, seen(old)), (1, (2, own.attr(old).ctime_ns.get().max(15))));
    let refused: [(api::NameChange, &str, &[u8]); 4] = [
        (other_change(api::LINKS, file, 20), "second", b""),
        (other_change(api::LINKS, directory, 20), "of a directory", b""),
        (other_change(api::LINKS, first + 9, 20), "of nothing", b""),
        (other_change(api::LINKS, 1, 20), "of the root", b""),
    ];
    for (number, change) in refused.into_iter().enumerate() {
        let before = (makes(directory, 0o40_700, 20), "d", &b""[..]);
        assert_ne!(name_behind(&mut own, &[before, change]).status, 0, "change {number}");
    }
    assert_eq!(own.list(1).len(), 3);
}

/// [`api::OF`] and [`api::MOVES_TO`].
fn of(directory: u64, time_ns: u64) -> (api::NameChange, &'static str, &'static [u8]) {
    (other_change(api::OF, directory, time_ns), "", b"")
}

#[test]
fn names_move_between_directories_that_one_session_has_together_or_not_at_all() {
    let (device, fs) = new();
    let mut own = behind(&fs, 7);
    make(&mut own, "old");
    let old = own.lookup(1, "old").expect("it is there");
    let there = attr_of(&own.make(api::MKDIR, 1, "there", 0o40_700, 1)).ino.get();
    let numbers = numbers(&own);
    let [file, directory, made] = [0, 1, 2].map(|at| numbers.start + at);
    let to = |directory: u64, name: &str| [&directory.to_le_bytes()[..], name.as_bytes()].concat();
    let goals = [to(there, "file"), to(there, "d"), to(made, "old"), to(1, "replaced")];
    let changes: [(api::NameChange, &str, &[u8]); 10] = [
        (makes(file, FILE, 10), "tmp", b"content"),
        (makes(directory, 0o40_700, 11), "d", b""),
        (other_change(api::MOVES_TO, file, 12), "tmp", &goals[0]),
        (other_change(api::MOVES_TO, directory, 13), "d", &goals[1]),
        // Where something goes to a directory that is made with it.
        (makes(made, 0o40_700, 14), "made", b""),
        (other_change(api::MOVES_TO, old, 15), "old", &goals[2]),
        of(there, 17),
        (other_change(api::MOVES, file, 16), "file", b"moved on"),
        (makes(numbers.start + 3, FILE, 17), "x", b""),
        of(made, 15),
    ];
    let call = names_call(&mut own, api::BEHIND, &changes);
    let call = Call { args: [1, 15, 0], ..call };
    let told = fs.call(call.clone());
    let terms = api::LEASE | api::DELEGATES | api::EXCLUSIVE_NAMES | api::MOVES_BETWEEN | api::ROOM;
    assert_eq!((told.status, told.results[3]), (0, terms));
    assert_eq!(fs.call(call.clone()).status, 0, "once");
    let look = |client: &Client| {
        let list = |ino| {
            let mut names: Vec<(String, u64)> = client.list(ino);
            names.sort();
            names
        };
        assert_eq!(list(1), [("made".to_owned(), made), ("there".to_owned(), there)]);
        let inside = [("d".to_owned(), directory), ("moved on".to_owned(), file), ("x".to_owned(), numbers.start + 3)];
        assert_eq!(list(there), inside);
        assert_eq!(list(made), [("old".to_owned(), old)]);
        assert_eq!(client.read_all(file), b"content");
        assert_eq!(client.lookup(directory, ".."), Some(there));
        let seen = |ino| {
            let attr = client.attr(ino);
            (attr.links.get(), attr.mtime_ns.get(), attr.ctime_ns.get())
        };
        assert_eq!([seen(1), seen(there), seen(made)], [(4, 15, 15), (3, 17, 17), (2, 15, 15)]);
        assert_eq!((client.attr(file).ctime_ns.get(), client.attr(directory).ctime_ns.get()), (16, 13));
    };
    look(&own);
    let below = [to(directory, "inside"), to(made, "nothing"), to(99, "nowhere"), to(there, "d")];
    let refused: [Vec<(api::NameChange, &str, &[u8])>; 6] = [
        vec![of(there, 20), (other_change(api::MOVES_TO, directory, 20), "d", &below[0])],
        vec![(other_change(api::MOVES_TO, made, 20), "made", &below[1])],
        vec![of(there, 20), (other_change(api::MOVES_TO, file, 20), "moved on", &below[2])],
        vec![of(there, 20), (other_change(api::MOVES_TO, file, 20), "x", &below[1])],
        vec![of(made, 20), (other_change(api::MOVES_TO, old, 20), "old", &below[3])],
        vec![of(99, 20)],
    ];
    for (number, changes) in refused.into_iter().enumerate() {
        let first = (makes(numbers.start + 10, FILE, 20), "first", &b"bytes"[..]);
        let all: Vec<_> = [first].into_iter().chain(changes).collect();
        assert_ne!(name_behind(&mut own, &all).status, 0, "change {number}");
        look(&own);
    }
    for short in [&b""[..], b"1234567", b"12345678", b"12345678a/b"] {
        assert_eq!(name_behind(&mut own, &[(other_change(api::MOVES_TO, old, 20), "old", short)]).status, 22);
    }
    // What is not told is what others wait for, in both.
    let other = Client::new(&fs, 8);
    for directory in [1, there] {
        let seen = self::look(&other, api::LOOKUP, [directory, 0, 0], b"nothing");
        assert!(waits(&seen), "{directory}");
        for (recall, ..) in events(&own) {
            own.read_call(api::TOLD, [recall, 0, 0], &[]);
        }
        assert!(!waits(&seen));
    }
    fs.checkpoint().expect("a checkpoint");
    drop((own, other, fs));
    let fs = open(&device, 2);
    fs.open_session(7, 0).expect("the session goes on");
    assert_eq!(fs.call(call).status, 0, "once, over restarts");
    let own = Client { fs, session: 7, sequence: 100 };
    look(&own);
    assert!(own.fs.check(fs_core::Depth::Data).expect("it is looked at").is_empty());
}

#[test]
fn rename_gives_both_directories_to_a_session_that_has_them_alone() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let [one, two] = ["one", "two"].map(|name| attr_of(&own.make(api::MKDIR, 1, name, 0o40_700, 1)).ino.get());
    assert_eq!(own.make(api::MKNOD, one, "f", FILE, 1).status, 0);
    let both = api::EXCLUSIVE_NAMES | api::MOVES_BETWEEN | api::ROOM;
    for (from, to) in [(one, two), (two, one), (one, two)] {
        // Whoever looks waits until it was told, of each.
        for directory in [one, two] {
            let seen = look(&other, api::GETATTR, [directory, 0, 0], &[]);
            for (recall, ..) in events(&own) {
                own.read_call(api::TOLD, [recall, 0, 0], &[]);
            }
            assert_eq!(seen.try_recv().expect("it was told").status, 0);
        }
        let call = own.change_call(api::RENAME, 0, [from, to, 5], &common::rename_data("f", "f"));
        let renamed = submit(&fs, call);
        for (recall, ..) in events(&other) {
            other.read_call(api::RELEASED, [recall, 0, 0], &[]);
        }
        let renamed = renamed.try_recv().expect("the lease was given back");
        assert_eq!((renamed.status, renamed.results[3] & both), (0, both));
    }
}

#[test]
fn what_was_not_changed_for_a_minute_is_told_before_anybody_asks() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let (idle, terms) = make(&mut own, "idle");
    assert_eq!(terms & EXCLUSIVE, EXCLUSIVE);
    let (busy, _) = make(&mut own, "busy");
    assert!(fs.needs_time());
    for now_ms in (0..=90_000).step_by(250) {
        fs.tick(now_ms);
        // What is told of it counts.
        if now_ms % 10_000 == 0 {
            assert_eq!(own.write(busy, 0, b"x", 5).results[3] & api::EXCLUSIVE, api::EXCLUSIVE);
        }
    }
    let asked = events(&own);
    assert_eq!(
        asked.iter().map(|(_, ino, kind)| (*ino, *kind)).collect::<BTreeMap<_, _>>(),
        [(1, api::TELL), (idle, api::TELL)].into()
    );
    own.read_call(api::TOLD, [asked.last().expect("an event").0, 0, 0], &[]);
    for (ino, is_told) in [(idle, true), (1, true), (busy, false)] {
        let seen = look(&other, api::GETATTR, [ino, 0, 0], &[]);
        assert_eq!(!waits(&seen), is_told, "{ino}");
    }
    // It has it back with the next change.
    let call = own.change_call(api::WRITE, 0, [idle, 0, 6], b"y");
    let written = submit(&fs, call);
    for (recall, ..) in events(&other) {
        other.read_call(api::RELEASED, [recall, 0, 0], &[]);
    }
    let written = written.try_recv().expect("the lease was given back");
    assert_eq!((written.status, written.results[3] & api::EXCLUSIVE), (0, api::EXCLUSIVE));
}

#[test]
fn whoever_asks_for_the_directory_above_waits_until_that_was_told() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let above = attr_of(&own.make(api::MKDIR, 1, "above", 0o40_700, 1)).ino.get();
    let below = attr_of(&own.make(api::MKDIR, above, "below", 0o40_700, 1)).ino.get();
    other.attr(below);
    let made = own.make(api::MKNOD, above, "first", FILE, 1);
    assert_eq!(made.results[3] & api::EXCLUSIVE_NAMES, api::EXCLUSIVE_NAMES);
    let seen = look(&other, api::LOOKUP, [below, 0, 0], b"..");
    assert!(waits(&seen));
    let valid = (api::valid::MTIME | api::valid::BEHIND).into();
    let utimes = api::SetAttr { valid, mtime_ns: 77.into(), ..api::SetAttr::new_zeroed() };
    assert_eq!(own.change(api::SETATTR, 0, [above, 1 << 60, 0], utimes.as_bytes()).status, 0);
    assert!(waits(&seen));
    for (recall, ..) in events(&own) {
        own.read_call(api::TOLD, [recall, 0, 0], &[]);
    }
    let seen = attr_of(&seen.try_recv().expect("it was told"));
    assert_eq!((seen.ino.get(), seen.mtime_ns.get()), (above, 77));
}

fn numbers_do_not_overlap(client: &Client, before: std::ops::Range<u64>) -> bool {
    numbers(client).start >= before.end
}

#[test]
fn whoever_looks_into_a_directory_waits_until_its_names_were_told() {
    let (_, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), Client::new(&fs, 8));
    type Looked = (&'static str, fn(&mut Client, &str) -> Receiver<Reply>);
    let looks: [Looked; 9] = [
        ("lookup", |other, name| look(other, api::LOOKUP, [1, 0, 0], name.as_bytes())),
        ("listing", |other, _| look(other, api::READDIR, [1, 0, 0], &[])),
        ("attributes", |other, _| look(other, api::GETATTR, [1, 0, 0], &[])),
        ("sync", |other, _| look(other, api::FSYNC, [1, 0, 0], &[])),
        ("sync of all", |other, _| look(other, api::FSYNC, [0; 3], &[])),
        ("open", |other, name| {
            let call = other.change_call(api::CREATE, 0, [1, name.len() as u64, 0], &create_data(name, FILE, 1));
            submit(&other.fs, call)
        }),
        ("make", |other, name| {
            let call = other.change_call(api::MKDIR, 0, [1, name.len() as u64, 0], &create_data(name, 0o40_700, 1));
            submit(&other.fs, call)
        }),
        ("remove", |other, name| {
            let call = other.change_call(api::UNLINK, 0, [1, 0, 1], name.as_bytes());
            submit(&other.fs, call)
        }),
        ("move", |other, name| {
            let call = other.change_call(api::RENAME, 0, [1, 1, 1], &common::rename_data(name, "elsewhere"));
            submit(&other.fs, call)
        }),
    ];
    let mut numbers = numbers(&own);
    for (number, (what, looks)) in looks.into_iter().enumerate() {
        // Until the other has nothing of it any more.
        let (_, terms) = make_beside(&mut own, &format!("first{number}"), Some(&other));
        assert_eq!(terms & api::EXCLUSIVE_NAMES, api::EXCLUSIVE_NAMES, "{what}");
        let name = format!("promised{number}");
        let seen = looks(&mut other, &name);
        assert!(waits(&seen), "{what}");
        let ino = numbers.next().expect("a number");
        let told = name_behind(&mut own, &[(makes(ino, FILE, 5), &name, b"bytes")]);
        assert_eq!((told.status, told.results[3] & api::EXCLUSIVE_NAMES), (0, 0), "{what}: it was asked for");
        assert!(waits(&seen), "{what}: there may be more");
        for _ in 0..4 {
            for (recall, ..) in events(&own) {
                own.read_call(api::TOLD, [recall, 0, 0], &[]);
                own.read_call(api::RELEASED, [recall, 0, 0], &[]);
            }
        }
        let seen = seen.try_recv().unwrap_or_else(|_| panic!("{what} goes on"));
        match what {
            "make" => assert_eq!(seen.status, 17, "it exists"),
            "lookup" | "open" => assert_eq!((attr_of(&seen).ino.get(), attr_of(&seen).bytes.get()), (ino, 5), "{what}"),
            "listing" => assert!(entries(&seen.data).iter().any(|(_, found)| *found == name)),
            "attributes" => assert!(attr_of(&seen).mtime_ns.get() >= 5),
            _ => assert_eq!(seen.status, 0, "{what}"),
        }
        if what == "open" {
            assert_eq!(other.change(api::RELEASE, 0, [ino, seen.results[0], 0], &[]).status, 0);
        }
    }
}

#[test]
fn what_was_made_before_it_was_told_is_exclusive_from_the_beginning() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    make(&mut own, "first");
    let ino = numbers(&own).start;
    assert_eq!(name_behind(&mut own, &[(makes(ino, FILE, 5), "f", b"")]).status, 0);
    let page = look(&other, api::READDIR, [1, 0, 1], &[]);
    for _ in 0..2 {
        assert!(waits(&page));
        for (recall, asked, kind) in events(&own) {
            assert_eq!(kind, api::TELL);
            if asked == ino {
                assert_eq!(write_behind(&mut own, ino, 0, b"promised").status, 0);
            }
            own.read_call(api::TOLD, [recall, 0, 0], &[]);
        }
    }
    let page = page.try_recv().expect("an answer");
    assert_eq!(page.results[3] & api::LEASE, api::LEASE);
    assert_eq!(other.attr(ino).bytes.get(), 8);
}

fn set_lock(client: &mut Client, ino: u64, waits: api::Waits, (kind, owner): (u32, u64)) -> Receiver<Reply> {
    let lock = api::Lock { owner: owner.into(), start: 0.into(), end: 9.into(), kind: kind.into(), pid: 1.into() };
    let call = client.change_call(api::SETLK, 0, [ino, waits as u64, 0], lock.as_bytes());
    submit(&client.fs, call)
}

#[test]
fn locks_of_what_one_session_has_are_its_own_until_somebody_opens_the_file_or_wants_one() {
    const UNLOCKED: u64 = EXCLUSIVE | api::UNLOCKED;
    let (kind, unlock) = (1, 2);
    let (_, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), behind(&fs, 8));
    let (ino, _) = make(&mut own, "f");
    let set = |own: &mut Client, kind, owner| {
        set_lock(own, ino, api::Waits::No, (kind, owner)).try_recv().expect("an answer").results[3]
    };
    assert_eq!(set(&mut own, kind, 1), 0, "somebody has one");
    assert_eq!(set(&mut own, kind, 2 | 1 << 63), 0);
    assert_eq!(set(&mut own, unlock, 1), 0, "there is another");
    assert_eq!(set(&mut own, unlock, 2 | 1 << 63), UNLOCKED);
    let closed = own.change(api::UNLOCK_OWNER, 0, [ino, 1, 0], &[]);
    assert_eq!(closed.results[3], UNLOCKED);
    // It keeps one. The other's wait until that is told, which waits for nobody.
    let opened = other.change_call(api::OPEN, 0, [ino, 0, 0], &[]);
    let opened = submit(&fs, opened);
    let wanted = set_lock(&mut other, ino, api::Waits::No, (kind, 1));
    let asked = look(&other, api::GETLK, [ino, 0, 0], api::Lock::new_zeroed().as_bytes());
    assert!([&opened, &wanted, &asked].into_iter().all(waits));
    let through = own.change(api::OPEN, api::BEHIND, [ino, 0, 0], &[]);
    assert_eq!(through.status, 0);
    assert_eq!(set_lock(&mut own, ino, api::Waits::Kept, (kind, 1)).try_recv().expect("an answer").status, 0);
    assert!([&opened, &wanted, &asked].into_iter().all(waits));
    for (recall, ..) in events(&own) {
        own.read_call(api::TOLD, [recall, 0, 0], &[]);
    }
    assert_eq!(opened.try_recv().expect("an answer").status, 0);
    assert_eq!(wanted.try_recv().expect("an answer").status, 11, "it is had");
    assert_eq!(asked.try_recv().expect("an answer").status, 0);
    let last = set_lock(&mut own, ino, api::Waits::No, (unlock, 1)).try_recv().expect("an answer");
    assert_eq!(last.results[3] & api::UNLOCKED, 0, "another has it open");
}

#[test]
fn listing_waits_once_for_all_that_others_have_exclusively_and_can_be_kept() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let inos: Vec<u64> = (0..5).map(|number| make(&mut own, &format!("f{number}")).0).collect();
    let names = look(&other, api::READDIR, [1, 0, 0], &[]);
    tell(&own);
    let names = names.try_recv().expect("an answer");
    assert_eq!(entries(&names.data).len(), 5, "names alone are known");
    let page = look(&other, api::READDIR, [1, 0, 2], &[]);
    assert!(waits(&page));
    for ino in inos {
        assert_eq!(write_behind(&mut own, ino, 0, b"content").status, 0);
    }
    let last = events(&own).iter().map(|event| event.0).max().expect("an event");
    own.read_call(api::TOLD, [last, 0, 0], &[]);
    let page = page.try_recv().expect("an answer");
    assert_eq!((page.status, page.results[3] & api::LEASE), (0, api::LEASE));
    let contents = page.data.windows(7).filter(|bytes| bytes == b"content").count();
    assert_eq!(contents, 5);
}

#[test]
fn change_of_another_comes_after_what_was_promised_before() {
    let (_, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), behind(&fs, 8));
    let (ino, _) = make(&mut own, "f");
    let change = other.change_call(api::WRITE, api::APPEND, [ino, 0, 6], b"two");
    let changed = submit(&fs, change);
    assert!(waits(&changed));
    assert_eq!(write_behind(&mut own, ino, 0, b"one").status, 0);
    let asked = events(&own);
    assert_eq!(asked.last().map(|event| event.2), Some(api::INODE));
    own.read_call(api::TOLD, [asked.last().expect("an event").0, 0, 0], &[]);
    assert!(waits(&changed), "its pages are still there");
    own.read_call(api::RELEASED, [asked.last().expect("an event").0, 0, 0], &[]);
    let changed = changed.try_recv().expect("an answer");
    // The first session has it open, so nobody has it exclusively.
    assert_eq!((changed.results[1], changed.results[3] & api::EXCLUSIVE), (6, 0));
    assert_eq!(other.read(ino, 0, 100), b"onetwo");
}

#[test]
fn restarted_server_lets_nobody_look_before_all_have_told_and_waits_for_no_other_lease() {
    let (device, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), behind(&fs, 8));
    let (ino, _) = make(&mut own, "f");
    let (also, _) = make_beside(&mut other, "g", Some(&own));
    let sequences = (own.sequence, other.sequence);
    drop((own, other, fs));
    let fs = open(&device, 2);
    for session in [7, 8] {
        fs.open_session(session, 0).expect("the session goes on");
    }
    let mut own = Client { fs: fs.clone(), session: 7, sequence: sequences.0 };
    let mut other = Client { fs: fs.clone(), session: 8, sequence: sequences.1 };
    // Each reads what the other has: neither gives anything back before it is answered.
    let seen = (look(&other, api::READ, [ino, 0, 9], &[]), look(&own, api::READ, [also, 0, 9], &[]));
    assert!(waits(&seen.0) && waits(&seen.1));
    assert_eq!(write_behind(&mut own, ino, 0, b"one").status, 0);
    assert_eq!(write_behind(&mut other, also, 0, b"two").status, 0);
    for client in [&own, &other] {
        let everything = events(client);
        assert_eq!(everything.iter().map(|event| event.1).collect::<Vec<_>>(), [0]);
        client.read_call(api::TOLD, [everything[0].0, 0, 0], &[]);
    }
    assert_eq!(bytes_of(&seen.0.try_recv().expect("an answer")), b"one");
    assert_eq!(bytes_of(&seen.1.try_recv().expect("an answer")), b"two");
}

#[test]
fn session_that_goes_to_a_client_of_an_earlier_release_has_nothing_exclusively() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let (ino, terms) = make(&mut own, "f");
    assert_eq!(terms & OF_FILES, EXCLUSIVE);
    fs.understands(7, false);
    let seen = look(&other, api::READ, [ino, 0, 9], &[]);
    let asked = events(&own);
    assert_eq!(asked.iter().map(|event| (event.1, event.2)).collect::<Vec<_>>(), [(0, api::INODE)], "as it always was");
    own.read_call(api::RELEASED, [asked[0].0, 0, 0], &[]);
    assert_eq!(seen.try_recv().expect("an answer").status, 0);
    give_back(&other);
    let (_, terms) = make_beside(&mut own, "g", Some(&other));
    assert_eq!(terms & api::EXCLUSIVE, 0);
}

#[test]
fn who_has_a_file_to_itself_learns_so_without_waiting_for_anybody() {
    let (device, fs) = new();
    let (mut own, mut other) = (behind(&fs, 7), behind(&fs, 8));
    let (ino, _) = make(&mut own, "f");
    let looks = |client: &Client, ino: u64| {
        let (session, args) = (client.session, [ino, 0, 0]);
        let call = Call { session, op: api::GETATTR, flags: api::BEHIND, args, capacity: 100, ..Call::default() };
        submit(&client.fs, call)
    };
    let is_exclusive = |reply: Receiver<Reply>| reply.try_recv().expect("an answer").results[3] & api::EXCLUSIVE != 0;
    assert!(is_exclusive(looks(&own, ino)));
    let foreign = looks(&other, ino);
    assert!(waits(&foreign));
    let asked = events(&own);
    own.read_call(api::TOLD, [asked[0].0, 0, 0], &[]);
    assert!(!is_exclusive(foreign) && !is_exclusive(looks(&own, ino)));
    // Both have to tell of everything, and look first.
    other.sequence += 1;
    drop((own, other, fs));
    let fs = open(&device, 2);
    let clients = [7, 8].map(|session| {
        fs.open_session(session, 0).expect("the session goes on");
        Client { fs: fs.clone(), session, sequence: 100 }
    });
    assert!(clients.iter().all(|client| is_exclusive(looks(client, ino))));
}

#[test]
fn session_that_does_not_tell_is_fenced_and_others_go_on() {
    let (_, fs) = new();
    let (mut own, other) = (behind(&fs, 7), Client::new(&fs, 8));
    let (ino, _) = make(&mut own, "f");
    let (seen, all) = (look(&other, api::GETATTR, [ino, 0, 0], &[]), look(&other, api::FSYNC, [0; 3], &[]));
    assert!(fs.needs_time());
    fs.tick(api::RECALL_MS - 1);
    assert!(waits(&seen) && waits(&all));
    fs.tick(api::RECALL_MS);
    assert_eq!((seen.try_recv().expect("an answer").status, all.try_recv().expect("an answer").status), (0, 0));
    assert_eq!(write_behind(&mut own, ino, 0, b"late").status, ESTALE);
    // Who waits and is fenced itself is told so.
    let (mut third, fourth) = (behind(&fs, 9), Client::new(&fs, 10));
    let (ino, _) = make(&mut third, "g");
    let parked = [look(&fourth, api::READ, [ino, 0, 9], &[]), look(&fourth, api::FSYNC, [0; 3], &[])];
    fs.end_session(10, fs_core::End::Fence).expect("it ends");
    assert!(parked.map(|reply| reply.try_recv().expect("an answer").status).iter().all(|status| *status == ESTALE));
}

#[test]
fn what_was_promised_has_room_on_a_volume_that_is_full_for_everybody_else() {
    let (_, fs) = new();
    let mut own = behind(&fs, 7);
    let (ino, terms) = make(&mut own, "f");
    assert_eq!(terms & OF_FILES, EXCLUSIVE);
    let (big, _) = make(&mut own, "big");
    let mut at = 0;
    for bytes in [1 << 20, 4096] {
        loop {
            match own.write(big, at, &vec![1; bytes], 1).status {
                0 => at += bytes as u64,
                ENOSPC => break,
                other => panic!("errno {other}"),
            }
        }
    }
    let free = own.read_call(api::STATFS, [0; 3], &[]).results[1];
    assert_eq!(free, 0, "blocks are free for everybody");
    // As much as may be under way, twice, each in the least favourable pieces.
    for round in 0..2 {
        for number in 0..api::BEHIND_COUNT_MAX as u64 {
            let bytes = api::BEHIND_BYTES_MAX / api::BEHIND_COUNT_MAX;
            let offset = (round * api::BEHIND_COUNT_MAX as u64 + number) * 16_384 + 4095;
            let told = write_behind(&mut own, ino, offset, &vec![2; bytes]);
            assert_eq!((told.status, told.results[3] & api::ROOM), (0, 0));
        }
    }
    let cut = api::SetAttr { valid: api::valid::BYTES.into(), ..api::SetAttr::new_zeroed() };
    assert_eq!(own.change(api::SETATTR, 0, [big, 3, 0], cut.as_bytes()).status, 0);
    fs.checkpoint().expect("a checkpoint");
    fs.checkpoint().expect("a checkpoint");
    assert_eq!(own.write(ino, 0, b"x", 4).results[3] & api::ROOM, api::ROOM, "there is room again");
    let small = Client::new(&open(&Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN)), 3), 7);
    let asked = small.read_call(api::WRITES_BEHIND, [0; 3], &[]);
    assert_eq!(asked.status, ENOSPC, "a volume that is too small for it");
}

#[test]
fn names_are_told_up_to_so_many_bytes_of_which_the_directory_that_a_name_moves_to_is_a_part() {
    let told = |excess: usize| {
        let (_, fs) = new();
        let mut own = behind(&fs, 7);
        make(&mut own, "old");
        let old = own.lookup(1, "old").expect("it is there");
        let there = attr_of(&own.make(api::MKDIR, 1, "there", 0o40_700, 1)).ino.get();
        let numbers = numbers(&own);
        let goal = [&there.to_le_bytes()[..], b"new"].concat();
        let names: Vec<String> = (0..65).map(|number| format!("link {number:03}")).collect();
        let mut rest = api::NAMES_BYTES_MAX + excess - "old".len() - goal.len();
        let targets = (0..65).map(|number| {
            let share = rest / (65 - number);
            rest -= share;
            vec![b't'; share - names[number].len()]
        });
        let targets: Vec<Vec<u8>> = targets.collect();
        let links = names.iter().zip(&targets).zip(numbers.start..);
        let mut changes: Vec<(api::NameChange, &str, &[u8])> =
            links.map(|((name, target), ino)| (makes(ino, 0o120_777, 10), name.as_str(), target.as_slice())).collect();
        changes.push((other_change(api::MOVES_TO, old, 11), "old", &goal));
        changes.push(of(there, 11));
        name_behind(&mut own, &changes).status
    };
    assert_eq!((told(0), told(1)), (0, 22));
}

/// What a program did, and when it was answered.
#[derive(Clone, Copy, Debug)]
struct Deed {
    value: u64,
    began: u64,
    ended: u64,
}

/// A gate as the server sees one: it promises while it may, tells in order, and does what it is asked to.
struct Gate {
    client: Client,
    /// By file: whether it has it exclusively, and values that it has not told.
    files: Vec<(bool, VecDeque<u64>)>,
    /// File, value, and the call; told in this order, again after a restart of the server.
    telling: Option<(usize, Call, Receiver<Reply>)>,
    /// A change that is not promised: file, what its program waits for, and the call.
    changing: Option<(usize, Deed, Call, Receiver<Reply>)>,
    looking: Option<(usize, u64, Call, Receiver<Reply>)>,
    /// Events that were taken: number, and the file if it is one.
    asked: VecDeque<(u64, Option<usize>, bool)>,
}

struct World {
    device: Arc<MemoryDevice>,
    fs: Arc<Fs>,
    /// Another server, of another volume.
    nobody: Arc<Fs>,
    gates: Vec<Gate>,
    inos: Vec<u64>,
    /// Of each file.
    written: Vec<Vec<Deed>>,
    now: u64,
    values: u64,
    promised: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let device = Arc::new(MemoryDevice::new(512 << 20));
        let fs = open(&device, seed);
        let mut maker = Client::new(&fs, 99);
        let inos: Vec<u64> = (0..3)
            .map(|number| attr_of(&maker.make(api::MKNOD, 1, &format!("f{number}"), FILE, 1)).ino.get())
            .collect();
        for ino in &inos {
            maker.write(*ino, 0, &0_u64.to_le_bytes(), 1);
        }
        fs.goodbye(99).expect("it leaves");
        let gates = (0..3).map(|number| Gate {
            client: behind(&fs, 1 + number),
            files: vec![(false, VecDeque::new()); inos.len()],
            telling: None,
            changing: None,
            looking: None,
            asked: VecDeque::new(),
        });
        let first = Deed { value: 0, began: 0, ended: 0 };
        World {
            written: vec![vec![first]; inos.len()],
            gates: gates.collect(),
            device,
            fs,
            nobody: open(&Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN)), seed),
            inos,
            now: 1,
            values: 0,
            promised: 0,
        }
    }

    fn step(&mut self, random: &mut Random) {
        self.now += 1;
        if random.chance(1) {
            return self.restart(random.next());
        }
        let who = random.below(self.gates.len() as u64) as usize;
        match random.below(8) {
            0..3 => self.write(who, random),
            3 | 4 => self.read(who, random),
            5 => self.hear(who),
            6 => self.tell(who),
            _ => self.collect(who),
        }
    }

    fn write(&mut self, who: usize, random: &mut Random) {
        let file = if random.chance(70) { who } else { random.below(self.inos.len() as u64) as usize };
        let gate = &mut self.gates[who];
        if gate.changing.is_some() {
            return;
        }
        self.values += 1;
        let deed = Deed { value: self.values, began: self.now, ended: self.now };
        let (is_exclusive, chain) = &mut gate.files[file];
        if *is_exclusive && chain.len() < 5 {
            chain.push_back(self.values);
            self.promised += 1;
            return self.written[file].push(deed);
        }
        // What is not promised comes behind the chain.
        if chain.is_empty() && gate.telling.as_ref().is_none_or(|telling| telling.0 != file) {
            let call =
                gate.client.change_call(api::WRITE, 0, [self.inos[file], 0, self.now], &self.values.to_le_bytes());
            gate.changing = Some((file, deed, call.clone(), submit(&self.fs, call)));
        }
    }

    fn read(&mut self, who: usize, random: &mut Random) {
        let file = if random.chance(70) { who } else { random.below(self.inos.len() as u64) as usize };
        let gate = &mut self.gates[who];
        let is_busy = !gate.files[file].1.is_empty() || gate.telling.as_ref().is_some_and(|telling| telling.0 == file);
        if gate.looking.is_none() && !is_busy {
            let (session, args) = (gate.client.session, [self.inos[file], 0, 8]);
            let call = Call { session, op: api::READ, args, capacity: 8, ..Call::default() };
            gate.looking = Some((file, self.now, call.clone(), submit(&self.fs, call)));
        }
    }

    fn hear(&mut self, who: usize) {
        // Answers that were given before an event come before it.
        self.collect(who);
        for (recall, ino, kind) in events(&self.gates[who].client) {
            let file = self.inos.iter().position(|known| *known == ino);
            let gate = &mut self.gates[who];
            gate.files
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| file.is_none_or(|file| file == *at))
                .for_each(|(_, file)| file.0 = false);
            gate.asked.push_back((recall, file, kind == api::TELL));
        }
        let gate = &mut self.gates[who];
        let is_told = |at: usize| {
            let is_telling = gate.telling.as_ref().is_some_and(|telling| telling.0 == at);
            gate.files[at].1.is_empty() && !is_telling
        };
        let are_told = |file: Option<usize>| file.map_or_else(|| (0..gate.files.len()).all(is_told), is_told);
        // As a kernel may make a gate wait: for the answer to a read of its own.
        let is_read = |file: Option<usize>| {
            gate.looking.as_ref().is_some_and(|looking| file.is_none_or(|file| looking.0 == file))
        };
        let told = gate.asked.iter().take_while(|(_, file, _)| are_told(*file)).last().map(|asked| asked.0);
        let dropped = |asked: &&(u64, Option<usize>, bool)| are_told(asked.1) && (asked.2 || !is_read(asked.1));
        let released = gate.asked.iter().take_while(dropped).last().map(|asked| asked.0);
        if let Some(recall) = told {
            gate.client.read_call(api::TOLD, [recall, 0, 0], &[]);
        }
        if let Some(recall) = released {
            gate.client.read_call(api::RELEASED, [recall, 0, 0], &[]);
            gate.asked.retain(|asked| asked.0 > recall);
        }
    }

    fn tell(&mut self, who: usize) {
        let gate = &mut self.gates[who];
        if gate.telling.is_some() {
            return;
        }
        let Some(file) = gate.files.iter().position(|(_, chain)| !chain.is_empty()) else { return };
        let value = gate.files[file].1.pop_front().expect("a promise");
        let call =
            gate.client.change_call(api::WRITE, api::BEHIND, [self.inos[file], 0, self.now], &value.to_le_bytes());
        gate.telling = Some((file, call.clone(), submit(&self.fs, call)));
    }

    fn collect(&mut self, who: usize) {
        let gate = &mut self.gates[who];
        if let Some((_, _, reply)) = &gate.telling
            && let Ok(reply) = reply.try_recv()
        {
            assert_eq!(reply.status, 0);
            gate.telling = None;
        }
        if let Some((file, deed, _, reply)) = &gate.changing
            && let Ok(reply) = reply.try_recv()
        {
            assert_eq!(reply.status, 0);
            // An event that was taken later than the answer was given asks for what the answer brought.
            gate.files[*file].0 = reply.results[3] & api::EXCLUSIVE != 0;
            self.written[*file].push(Deed { ended: self.now, ..*deed });
            gate.changing = None;
        }
        if let Some((file, began, _, reply)) = &gate.looking
            && let Ok(reply) = reply.try_recv()
        {
            assert_eq!(reply.status, 0);
            let value = u64::from_le_bytes(bytes_of(&reply).try_into().expect("eight bytes"));
            let (file, began) = (*file, *began);
            gate.looking = None;
            self.check(file, value, began);
        }
    }

    /// A register: what is read was written, and nothing that was written after it had ended before it was read.
    fn check(&self, file: usize, value: u64, began: u64) {
        let unfinished = self.gates.iter().filter_map(|gate| gate.changing.as_ref());
        let unfinished =
            unfinished.filter(|changing| changing.0 == file).map(|(_, deed, ..)| Deed { ended: u64::MAX, ..*deed });
        let all: Vec<Deed> = self.written[file].iter().copied().chain(unfinished).collect();
        let read = all.iter().find(|deed| deed.value == value).expect("somebody wrote it");
        let later = all.iter().find(|deed| deed.began > read.ended && deed.ended < began);
        assert!(later.is_none(), "file {file} was {read:?}, although {later:?} came later, before {began}");
    }

    /// Everything that has no answer comes again.
    fn restart(&mut self, seed: u64) {
        POLLS.with_borrow_mut(HashMap::clear);
        // The old server is gone before the new one opens the volume.
        for gate in &mut self.gates {
            gate.client.fs = self.nobody.clone();
        }
        self.fs = self.nobody.clone();
        self.fs = open(&self.device, seed);
        for gate in &mut self.gates {
            gate.client.fs = self.fs.clone();
            self.fs.open_session(gate.client.session, 0).expect("the session goes on");
            if let Some((_, call, reply)) = &mut gate.telling {
                *reply = submit(&self.fs, call.clone());
            }
            if let Some((_, _, call, reply)) = &mut gate.changing {
                *reply = submit(&self.fs, call.clone());
            }
            if let Some((_, _, call, reply)) = &mut gate.looking {
                *reply = submit(&self.fs, call.clone());
            }
        }
    }

    fn told(&self) -> String {
        let told = |gate: &Gate| {
            let telling = gate.telling.as_ref().map(|(file, ..)| *file);
            let changing = gate.changing.as_ref().map(|(file, ..)| *file);
            let looking = gate.looking.as_ref().map(|(file, ..)| *file);
            format!("tells {telling:?}, changes {changing:?}, looks {looking:?}, was asked {:?}; ", gate.asked)
        };
        self.gates.iter().map(told).collect()
    }

    fn is_idle(&self) -> bool {
        let is_idle = |gate: &Gate| gate.telling.is_none() && gate.changing.is_none() && gate.looking.is_none();
        self.gates.iter().all(is_idle)
    }
}

/// Three gates with one server, which restarts; nobody is ever fenced, so a circle of waiting shows.
#[test]
fn what_programs_read_is_what_was_written_last_whoever_promised_it() {
    let mut promised = 0;
    for seed in 0..scaled(60) {
        let mut random = Random::new(seed);
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step(&mut random);
        }
        let mut left = 20_000;
        while !world.is_idle() {
            left -= 1;
            assert!(left > 0, "seed {seed}: they wait for each other: {}", world.told());
            world.now += 1;
            let who = random.below(3) as usize;
            match random.below(3) {
                0 => world.hear(who),
                1 => world.tell(who),
                _ => world.collect(who),
            }
        }
        promised += world.promised;
    }
    assert!(promised > 1000, "{promised} promises say nothing");
}
