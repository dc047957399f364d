//! Every operation as it lies in a ring: bytes that servers and clients of different versions agree on.

use vos_api::fs::{self, Create, Entries, Existing, Lock, SetAttr, Waits};
use vos_api::operation::{AfterNul, Prefixed, Third};
use vos_api::{Class, Encoded, Errno, Measured, Operation, Unreadable, disk, ds, session};
use zerocopy::{FromZeros, IntoBytes};

const CREATE: Create = Create { mode: le(0o100_644), uid: le(7), gid: le(8), rdev: le(9), time_ns: le64(10) };
const LOCK: Lock = Lock { owner: le64(1), start: le64(2), end: le64(3), kind: le(1), pid: le(4) };

const fn le(number: u32) -> zerocopy::little_endian::U32 {
    zerocopy::little_endian::U32::new(number)
}

const fn le64(number: u64) -> zerocopy::little_endian::U64 {
    zerocopy::little_endian::U64::new(number)
}

/// The operation has these bytes, and they are read as the operation.
fn check<'a, O: Operation<'a> + PartialEq + std::fmt::Debug>(
    operation: O,
    wanted: (u16, u16, [u64; 3], &'a [u8]),
    class: Class,
) {
    let Encoded { op, flags, args, data } = operation.encode();
    assert_eq!((op, flags, args, &*data), wanted, "{operation:?}");
    assert_eq!(O::decode(wanted.1, wanted.2, wanted.3).as_ref(), Some(&operation));
    assert_eq!(O::CLASS, class, "{operation:?}");
}

#[test]
fn operations_of_sessions_and_disks_lie_where_they_always_did() {
    use Class::Repeatable;
    use disk::{Allocate, Discard, Durability, Flush, Info, Need, Read, Readv, Write};
    let progress = session::Progress { acknowledged: 6, revives: false };
    let hello = |server, own| session::Hello {
        session: 5,
        progress,
        epochs: session::Epochs { server, own },
        speaks: versions::Versions::from_to(1, 2),
    };
    check(hello(0, 0), (1, 0x0201, [5, 6, 0], &[]), Repeatable);
    check(hello(7, 8), (1, 0x0201, [5, 6, 0x8_0000_0007], &[]), Repeatable);
    check(hello(u32::MAX, 0), (1, 0x0201, [5, 6, 0xffff_ffff], &[]), Repeatable);
    let revived = session::Hello { progress: session::Progress { revives: true, ..progress }, ..hello(0, 0) };
    check(revived, (1, 0x0201, [5, 1 << 63 | 6, 0], &[]), Repeatable);
    // Who says nothing of versions speaks the first.
    let silent = session::Hello::decode(0, [5, 6, 0], &[]).expect("a greeting");
    assert_eq!(silent.speaks, versions::Versions::only(1));
    assert_eq!(session::Hello::decode(0x0102, [5, 6, 0], &[]), None, "its oldest is later than its newest");
    check(session::Goodbye {}, (2, 0, [0; 3], &[]), Repeatable);
    check(Info {}, (16, 0, [0; 3], &[]), Repeatable);
    check(Read { offset: 4096, bytes: 8192 }, (17, 0, [4096, 8192, 0], &[]), Repeatable);
    check(Write { durability: Durability::Server, offset: 4096 }, (18, 0, [4096, 0, 0], &[]), Repeatable);
    check(Write { durability: Durability::Power, offset: 0 }, (18, 1, [0; 3], &[]), Repeatable);
    check(Flush {}, (19, 0, [0; 3], &[]), Repeatable);
    check(Discard { offset: 1, bytes: 2 }, (20, 0, [1, 2, 0], &[]), Repeatable);
    check(Readv {}, (21, 0, [0; 3], &[]), Repeatable);
    check(Allocate { need: Need::Server, offset: 1, bytes: 2 }, (22, 1, [1, 2, 0], &[]), Repeatable);
}

#[test]
fn operations_of_the_key_value_store_lie_where_they_always_did() {
    use Class::{Once, Repeatable};
    let key = Measured(b"key");
    check(ds::Get { key }, (16, 0, [3, 0, 0], b"key"), Repeatable);
    check(ds::Put { key, condition: 9, value: b"value" }, (17, 0, [3, 9, 0], b"keyvalue"), Once);
    check(ds::Delete { key, condition: ds::ANY }, (18, 0, [3, u64::MAX, 0], b"key"), Once);
    check(ds::List { prefix: Measured(b"k"), after: key }, (19, 0, [1, 3, 0], b"kkey"), Repeatable);
    check(ds::Subscribe { prefix: Measured(b""), revision: 4 }, (20, 0, [0, 4, 0], b""), Once);
    check(ds::Unsubscribe { subscription: 4 }, (21, 0, [4, 0, 0], b""), Once);
    check(ds::Next { seen: 4, wait_ms: 5 }, (22, 0, [4, 5, 0], b""), Repeatable);
    check(ds::Publish { topic: key, value: b"value" }, (23, 0, [3, 0, 0], b"keyvalue"), Once);
}

#[test]
fn operations_on_names_lie_where_they_always_did() {
    use Class::{Once, Repeatable};
    let (create, name) = (CREATE, Measured(b"name"));
    let made = |rest: &[u8]| [create.as_bytes(), b"name", rest].concat();
    check(fs::Lookup { parent: 2, name: b"name" }, (16, 0, [2, 0, 0], b"name"), Repeatable);
    for (existing, word) in [(Existing::Opens, 0), (Existing::Refuses, 1)] {
        check(fs::CreateFile { parent: 2, create, name, existing }, (19, 0, [2, 4, word], &made(b"")), Once);
    }
    check(fs::Mknod { parent: 2, create, name }, (20, 0, [2, 4, 0], &made(b"")), Once);
    check(fs::Mkdir { parent: 2, create, name }, (21, 0, [2, 4, 0], &made(b"")), Once);
    let target = AfterNul(b"target");
    check(fs::Symlink { parent: 2, create, name, target }, (22, 0, [2, 4, 0], &made(b"\0target")), Once);
    check(fs::Readlink { ino: 2 }, (23, 0, [2, 0, 0], b""), Repeatable);
    check(fs::Unlink { marks: 1, parent: 2, time_ns: Third(3), name: b"name" }, (24, 1, [2, 0, 3], b"name"), Once);
    check(fs::Rmdir { parent: 2, time_ns: Third(3), name: b"name" }, (25, 0, [2, 0, 3], b"name"), Once);
    let rename = fs::Rename { how: 2, from: 3, to: 4, time_ns: 5, old: Prefixed(b"old"), new: b"new" };
    check(rename, (26, 2, [3, 4, 5], b"\x03\0oldnew"), Once);
    check(fs::Link { ino: 2, parent: 3, time_ns: 4, name: b"name" }, (27, 0, [2, 3, 4], b"name"), Once);
    let place = fs::PlaceFile { parent: 2, create, name, mtime_ns: 6, content: b"content" };
    check(place, (48, 0, [2, 4, 6], &made(b"content")), Once);
}

#[test]
fn operations_on_inodes_lie_where_they_always_did() {
    use Class::{Once, Repeatable};
    let wanted = SetAttr {
        valid: le(fs::valid::MODE),
        mode: le(0o600),
        uid: le(0),
        gid: le(0),
        bytes: le64(1),
        atime_ns: le64(2),
        mtime_ns: le64(3),
        ctime_ns: le64(4),
    };
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    check(fs::Getattr { marks: fs::BEHIND, ino: 2 }, (17, 4, [2, 0, 0], b""), Repeatable);
    check(fs::Setattr { ino: 2, time_ns: 3, wanted }, (18, 0, [2, 3, 0], wanted.as_bytes()), Once);
    let open = fs::Open { marks: fs::KILL_SUID, ino: 2, flags: 3, time_ns: 4 };
    check(open, (28, 256, [2, 3, 4], b""), Once);
    check(fs::Release { ino: 2, handle: 3 }, (29, 0, [2, 3, 0], b""), Once);
    let read = fs::Read { marks: fs::WHERE | fs::WRITABLE, ino: 2, offset: 3, bytes: 4 };
    check(read, (30, 3, [2, 3, 4], b""), Repeatable);
    let write = fs::Write { marks: fs::APPEND, ino: 2, offset: 3, time_ns: 4, bytes: b"bytes" };
    check(write, (31, 1, [2, 3, 4], b"bytes"), Once);
    check(fs::Fsync { ino: 2 }, (32, 0, [2, 0, 0], b""), Repeatable);
    let readdir = fs::Readdir { ino: 2, cookie: 3, entries: Entries::WithAttributes };
    check(readdir, (33, 0, [2, 3, 1], b""), Repeatable);
    check(fs::Statfs { ino: 9 }, (34, 0, [9, 0, 0], b""), Repeatable);
    let setxattr = fs::Setxattr { how: 1, ino: 2, name: Measured(b"name"), time_ns: 3, value: b"value" };
    check(setxattr, (35, 1, [2, 4, 3], b"namevalue"), Once);
    check(fs::Getxattr { ino: 2, name: b"name" }, (36, 0, [2, 0, 0], b"name"), Repeatable);
    check(fs::Listxattr { ino: 2 }, (37, 0, [2, 0, 0], b""), Repeatable);
    check(fs::Removexattr { ino: 2, time_ns: 3, name: b"name" }, (38, 0, [2, 3, 0], b"name"), Once);
    let fallocate = fs::Fallocate { mode: 3, ino: 2, offset: 3, bytes: 4, time_ns: le64(5) };
    check(fallocate, (39, 3, [2, 3, 4], &words(&[5])), Once);
    check(fs::Lseek { ino: 2, offset: 3, whence: 4 }, (40, 0, [2, 3, 4], b""), Repeatable);
    let (from, to, bytes, time_ns) = (le64(4), le64(5), le64(6), le64(7));
    let copy = fs::CopyRange { marks: 0, source: 2, target: 3, from, to, bytes, time_ns };
    check(copy, (47, 0, [2, 3, 0], &words(&[4, 5, 6, 7])), Once);
}

#[test]
fn locks_and_events_lie_where_they_always_did() {
    use Class::{Once, Repeatable};
    let lock = LOCK;
    check(fs::Getlk { ino: 2, lock }, (41, 0, [2, 0, 0], lock.as_bytes()), Repeatable);
    check(fs::Setlk { ino: 2, waits: Waits::Yes, handle: 3, lock }, (42, 0, [2, 1, 3], lock.as_bytes()), Once);
    check(fs::Cancel { sequence: 2 }, (43, 0, [2, 0, 0], b""), Repeatable);
    check(fs::UnlockOwner { ino: 2, owner: 3 }, (44, 0, [2, 3, 0], b""), Once);
    check(fs::Events {}, (45, 0, [0; 3], b""), Repeatable);
    check(fs::Released { recall: 2 }, (46, 0, [2, 0, 0], b""), Repeatable);
    check(fs::WritesBehind {}, (49, 0, [0; 3], b""), Repeatable);
    check(fs::Told { recall: 2 }, (50, 0, [2, 0, 0], b""), Repeatable);
    check(fs::Numbers {}, (52, 0, [0; 3], b""), Repeatable);
    let names = fs::Names { marks: fs::BEHIND, parent: 2, time_ns: 3, changes: b"changes" };
    check(names, (51, 4, [2, 3, 0], b"changes"), Once);
}

#[test]
fn changes_of_names_come_apart_as_they_were_put_together() {
    let change = fs::NameChange { ino: le64(7), kind: fs::MAKES.into(), ..fs::NameChange::new_zeroed() };
    let mut bytes = Vec::new();
    change.push(b"name", b"target", &mut bytes);
    change.push(b"", b"", &mut bytes);
    assert_eq!(bytes.len(), 64 + 16 + 64);
    let (head, [name, more, rest]) = fs::NameChange::split(&bytes).expect("a change");
    assert_eq!((head.ino.get(), name, more), (7, &b"name"[..], &b"target"[..]));
    let (_, [name, more, rest]) = fs::NameChange::split(rest).expect("another");
    assert_eq!((name, more, rest), (&b""[..], &b""[..], &b""[..]));
    for short in 0..64 + 16 {
        assert!(fs::NameChange::split(&bytes[..short]).is_none(), "{short} bytes");
    }
}

#[test]
fn words_of_replies_lie_where_they_always_did() {
    let info = disk::VolumeInfo::from([1, 2, 3, 4]);
    assert_eq!((info.bytes, info.block_bytes, info.flags, info.epoch), (1, 2, 3, 4));
    let greeting = session::Greeting { incarnation: 1, highest: 2, in_flight: 3, service: 4 };
    assert_eq!(<[u64; 4]>::from(greeting), [1, 2, 3, 4]);
    let greeting = session::Greeting { in_flight: session::Greeting::terms(7, 2), ..greeting };
    assert_eq!((greeting.in_flight, greeting.in_flight(), greeting.version()), (0x2_0000_0007, 7, Some(2)));
    let refusal = session::OtherVersion::of(versions::Versions::from_to(2, 3));
    assert_eq!(<[u64; 4]>::from(refusal), [2, 3, 0, 0]);
    assert_eq!(refusal.speaks(), Some(versions::Versions::from_to(2, 3)));
    assert_eq!(<[u64; 4]>::from(session::Outdated { server: 1, own: 2 }), [1, 2, 0, 0]);
    assert_eq!(<[u64; 4]>::from(fs::Written { bytes: 1, size: 2 }), [1, 2, 0, 0]);
    assert_eq!(<[u64; 4]>::from(fs::Attributes {}), [0; 4]);
    assert_eq!(<fs::Created as vos_api::Reply>::DATA_BYTES, 72);
}

#[test]
fn what_is_no_operation_is_said_to_be_none() {
    fn decode(op: u16, flags: u16, args: [u64; 3], data: &[u8]) -> Unreadable {
        fs::Request::decode(op, flags, args, data).unwrap_err()
    }
    assert_eq!(decode(15, 0, [0; 3], b""), Unreadable::Unknown);
    assert_eq!(decode(fs::MKDIR, 0, [2, 4, 0], &CREATE.as_bytes()[1..]), Unreadable::Malformed, "half a head");
    assert_eq!(decode(fs::MKDIR, 0, [2, 5, 0], &[CREATE.as_bytes(), b"name"].concat()), Unreadable::Malformed);
    assert_eq!(decode(fs::MKDIR, 0, [2, u64::MAX, 0], CREATE.as_bytes()), Unreadable::Malformed);
    assert_eq!(decode(fs::RENAME, 0, [2, 3, 4], b"\x04\0old"), Unreadable::Malformed);
    assert_eq!(decode(fs::READDIR, 0, [2, 3, 3], b""), Unreadable::Malformed, "a word that is none");
    assert_eq!((fs::class_of(fs::WRITE), fs::class_of(15)), (Some(Class::Once), None));
    assert_eq!(fs::errors_of(fs::GETXATTR), [Errno::NoData, Errno::Gone]);
}
