//! Single promises of `vos_api::fs` that no random run would pin down.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use crate::common::{self, Client, attr_of, create_data, scaled};
use fs_core::device::{BlockDevice, DeviceError};
use fs_core::testing::MemoryDevice;
use fs_core::{Call, End, Fs, Options, Reply, VOLUME_BYTES_MIN};
use vos_api::fs as api;
use zerocopy::FromBytes;

const EINTR: u32 = 4;
const ESTALE: u32 = 116;
const O_TRUNC: u64 = 0o1000;
const SET_IDS: u32 = 0o106_771;
const PLAIN: u32 = 0o100_771;

fn open(device: &Arc<MemoryDevice>, seed: u64) -> Arc<Fs> {
    Fs::open(device.clone(), Options::inline(seed)).expect("the volume opens")
}

fn new() -> (Arc<MemoryDevice>, Arc<Fs>) {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = open(&device, 1);
    (device, fs)
}

fn submit(fs: &Arc<Fs>, call: Call) -> Receiver<Reply> {
    let (sender, receiver) = sync_channel(1);
    fs.submit(call, Box::new(move |reply| _ = sender.send(reply)));
    receiver
}

fn poll_events(client: &Client) -> Receiver<Reply> {
    submit(&client.fs, Call { session: client.session, op: api::EVENTS, capacity: 4096, ..Call::default() })
}

/// Recall numbers and inodes of an answer.
fn events(reply: &Reply) -> Vec<(u64, u64)> {
    let mut data = reply.data.as_slice();
    let mut found = Vec::new();
    while !data.is_empty() {
        let (event, rest) = api::Event::read_from_prefix(data).expect("an event");
        found.push((event.recall.get(), event.ino.get()));
        data = &rest[(event.name_bytes.get() as usize).next_multiple_of(8)..];
    }
    found
}

#[test]
fn server_that_ends_leaves_nothing_behind_of_what_was_asked_over_two_rings_and_waits() {
    let (_, fs) = new();
    let (mut one, two) = (Client::new(&fs, 7), Client::new(&fs, 8));
    one.make(api::MKNOD, 1, "file", PLAIN, 1);
    two.attr(1);
    // The second node has the directory in its caches, so this waits.
    let call = one.change_call(api::MKNOD, 0, [1, 5, 1], &create_data("other", PLAIN, 2));
    let answers = [(); 2].map(|()| {
        let (kept, (sender, receiver)) = (fs.clone(), sync_channel(1));
        fs.submit(call.clone(), Box::new(move |reply| drop((sender.send(reply), kept))));
        receiver
    });
    assert!(answers.iter().all(|answer| answer.try_recv().is_err()), "it waits");
    fs.abandon();
    let left = Arc::downgrade(&fs);
    drop((one, two, fs));
    assert!(left.upgrade().is_none(), "nobody will answer that");
}

#[test]
fn write_truncation_allocation_and_copy_take_set_user_id_away_when_asked() {
    let (_, fs) = new();
    let mut client = Client::new(&fs, 7);
    let copy: Vec<u8> = [0u64, 0, 1, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
    let source = attr_of(&client.make(api::MKNOD, 1, "source", PLAIN, 1)).ino.get();
    client.write(source, 0, b"x", 1);
    let cases: [(u16, u16, u64, u64, &[u8]); 6] = [
        (api::WRITE, 0, 0, 9, b"x"),
        (api::OPEN, 0, O_TRUNC, 9, b""),
        (api::FALLOCATE, 0, 0, 4096, &[9; 8]),
        (api::FALLOCATE, 1, 0, 4096, &[9; 8]),
        (api::FALLOCATE, 3, 0, 4096, &[9; 8]),
        (api::COPY_RANGE, 0, 0, 0, &copy),
    ];
    for (number, (op, flags, second, third, data)) in cases.into_iter().enumerate() {
        let ino = attr_of(&client.make(api::MKNOD, 1, &format!("f{number}"), SET_IDS, 1)).ino.get();
        let args = if op == api::COPY_RANGE { [source, ino, 0] } else { [ino, second, third] };
        assert_eq!(client.change(op, flags, args, data).status, 0, "operation {op}");
        assert_eq!(client.attr(ino).mode.get(), SET_IDS, "operation {op} unasked");
        assert_eq!(client.change(op, flags | api::KILL_SUID, args, data).status, 0, "operation {op}");
        assert_eq!(client.attr(ino).mode.get(), PLAIN, "operation {op}");
    }
}

#[test]
fn events_that_were_taken_and_not_released_come_again_over_a_new_ring() {
    let (_, fs) = new();
    let (mut writer, holder) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = attr_of(&writer.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    holder.attr(ino);
    let change = writer.change_call(api::WRITE, 0, [ino, 0, 1], b"x");
    let written = submit(&fs, change);
    let first = events(&poll_events(&holder).recv().expect("an answer"));
    assert_eq!(first.iter().map(|event| event.1).collect::<Vec<_>>(), [ino]);
    // The gate that took it dies with another poll open; its successor greets before the server hears of the death.
    let swallowed = poll_events(&holder);
    assert!(swallowed.try_recv().is_err());
    fs.open_session(8, 0).expect("a second ring");
    let again = poll_events(&holder);
    fs.detach(8);
    assert!(swallowed.recv().is_err(), "the dead ring's poll is given up unanswered");
    assert_eq!(events(&again.recv().expect("an answer")), first);
    assert!(written.try_recv().is_err());
    holder.read_call(api::RELEASED, [first[0].0, 0, 0], &[]);
    assert_eq!(written.recv().expect("an answer").status, 0);
    fs.open_session(8, 0).expect("a third ring");
    let later = poll_events(&holder);
    assert!(later.try_recv().is_err(), "what was released does not come again");
    assert_ne!(later.try_recv().map(|reply| reply.status).unwrap_or_default(), EINTR);
}

#[test]
fn events_of_a_restarted_server_have_higher_numbers_than_all_before() {
    let (device, fs) = new();
    let (mut writer, mut holder) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let mut highest = 0;
    for round in 0..20 {
        let ino = attr_of(&writer.make(api::MKNOD, 1, &format!("f{round}"), PLAIN, 1)).ino.get();
        holder.attr(ino);
        let change = writer.change_call(api::WRITE, 0, [ino, 0, 1], b"x");
        let written = submit(&fs, change);
        highest = events(&poll_events(&holder).recv().expect("an answer"))[0].0;
        holder.read_call(api::RELEASED, [highest, 0, 0], &[]);
        assert_eq!(written.recv().expect("an answer").status, 0);
    }
    writer.fs = fs.clone();
    drop((writer, fs));
    let fs = open(&device, 2);
    fs.open_session(8, 0).expect("the session goes on");
    holder.fs = fs.clone();
    let told = events(&poll_events(&holder).recv().expect("an answer"));
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].1, 0);
    assert!(told[0].0 > highest, "{} after {highest}", told[0].0);
}

#[test]
fn every_server_asks_for_everything_with_a_number_of_its_own_even_if_nothing_was_changed() {
    let (device, fs) = new();
    Client::new(&fs, 8);
    drop(fs);
    let mut highest = 0;
    for seed in 2..6 {
        let fs = open(&device, seed);
        fs.open_session(8, 0).expect("the session goes on");
        let holder = Client { fs, session: 8, sequence: 0 };
        let told = events(&poll_events(&holder).recv().expect("an answer"));
        assert_eq!(told.iter().map(|event| event.1).collect::<Vec<_>>(), [0]);
        assert!(told[0].0 > highest, "{} after {highest}: a client that lives on takes it for an old one", told[0].0);
        highest = told[0].0;
        holder.read_call(api::RELEASED, [highest, 0, 0], &[]);
    }
}

#[test]
fn new_volume_has_a_root_with_the_time_it_was_made() {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let options = Options { made_ns: 1_234_567_890_123_456_789, ..Options::inline(1) };
    let fs = Fs::open(device.clone(), options).expect("the volume opens");
    let attr = Client::new(&fs, 7).attr(api::ROOT);
    assert_eq!(attr.mtime_ns.get(), 1_234_567_890_123_456_789);
    assert_eq!((attr.atime_ns, attr.ctime_ns), (attr.mtime_ns, attr.mtime_ns));
    assert_eq!(attr.bytes.get(), 4096);
    drop(fs);
    assert_eq!(Client::new(&open(&device, 2), 7).attr(api::ROOT).mtime_ns.get(), 1_234_567_890_123_456_789);
}

/// Gives back all that the session has been asked for.
fn give_back(client: &Client) {
    let asked = events(&poll_events(client).recv().expect("it is asked"));
    let last = asked.last().expect("an event").0;
    client.read_call(api::RELEASED, [last, 0, 0], &[]);
}

fn read_call(client: &Client, flags: u16, ino: u64) -> Call {
    Call { session: client.session, op: api::READ, flags, args: [ino, 0, 100], capacity: 100, ..Call::default() }
}

#[test]
fn writer_is_asked_for_what_it_wrote_whenever_another_writes_after_it() {
    let (_, fs) = new();
    let mut clients = [Client::new(&fs, 7), Client::new(&fs, 8)];
    let ino = attr_of(&clients[0].make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    assert_ne!(clients[0].write(ino, 0, b"0", 1).results[3] & api::LEASE, 0);
    for round in 0..6 {
        let call = clients[(round + 1) % 2].change_call(api::WRITE, 0, [ino, 0, 1], b"x");
        let written = submit(&fs, call);
        assert!(written.try_recv().is_err(), "the kernel of the one before keeps what it wrote");
        give_back(&clients[round % 2]);
        assert_ne!(written.recv().expect("an answer").results[3] & api::LEASE, 0);
    }
}

#[test]
fn bytes_are_read_behind_a_change_that_waits_and_under_a_lease() {
    let (_, fs) = new();
    let (mut writer, holder, reader) = (Client::new(&fs, 7), Client::new(&fs, 8), Client::new(&fs, 9));
    let ino = attr_of(&writer.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    holder.attr(ino);
    let call = writer.change_call(api::WRITE, 0, [ino, 0, 1], b"new");
    let written = submit(&fs, call);
    let read = submit(&fs, read_call(&reader, 0, ino));
    assert!(written.try_recv().is_err() && read.try_recv().is_err());
    // Who has been asked is answered at once, and may keep nothing of it.
    let asked = submit(&fs, read_call(&holder, api::WRITABLE, ino)).try_recv().expect("an answer");
    assert_eq!((asked.results[0], asked.results[3] & api::LEASE), (0, 0));
    give_back(&holder);
    assert_eq!(written.recv().expect("an answer").status, 0);
    let read = read.recv().expect("an answer");
    assert_eq!((read.results[0], read.results[3] & api::LEASE), (3, api::LEASE));
}

#[test]
fn reader_that_may_change_what_it_keeps_is_the_only_one_and_sees_what_others_had_changed_so() {
    let (_, fs) = new();
    let (mut one, two) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = attr_of(&one.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    let call = one.change_call(api::WRITE, 0, [ino, 0, 1], b"before");
    assert_eq!(submit(&fs, call).recv().expect("an answer").status, 0);
    assert_ne!(submit(&fs, read_call(&one, api::WRITABLE, ino)).try_recv().expect("nobody else").results[3], 0);
    // The other one has a lease, too, and will be asked for it.
    two.attr(ino);
    let read = submit(&fs, read_call(&two, api::WRITABLE, ino));
    assert!(read.try_recv().is_err());
    // What lies after the end of the file was in the same page, and makes it no longer.
    let call = one.change_call(api::WRITE, api::LATE, [ino, 0, 1], b"mapped, and the rest of the page");
    let late = submit(&fs, call).try_recv().expect("it waits for nobody who waits for it");
    assert_eq!(late.status, 0);
    give_back(&one);
    assert_eq!(read.recv().expect("an answer").results[0], 6);
}

#[test]
fn who_has_a_file_open_hears_before_it_becomes_longer_even_without_a_lease() {
    let (_, fs) = new();
    let (mut writer, mut reader) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = attr_of(&writer.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    let call = reader.change_call(api::OPEN, 0, [ino, 0, 1], b"");
    let handle = submit(&fs, call).recv().expect("an answer").results[0];
    let mut write = |flags, offset, end: u64| {
        let call = writer.change_call(api::WRITE, flags, [ino, offset, 1], b"12345");
        let written = submit(&fs, call);
        assert!(written.try_recv().is_err());
        let events = submit(&fs, Call { session: 8, op: api::EVENTS, capacity: 4096, ..Call::default() });
        let events = events.recv().expect("an answer").data;
        let (event, bytes) = api::Event::read_from_prefix(&events).expect("an event");
        assert_eq!((event.ino.get(), event.kind.get(), bytes), (ino, api::INODE, end.to_le_bytes().as_slice()));
        let args = [event.recall.get(), 0, 0];
        drop(submit(&fs, Call { session: 8, op: api::RELEASED, args, ..Call::default() }));
        assert_eq!(written.recv().expect("an answer").status, 0);
    };
    write(0, 100, 105);
    write(0, 101, 106);
    write(api::APPEND, 0, 111);
    // What makes it no longer asks nobody, and who has closed it is not told.
    let call = writer.change_call(api::WRITE, 0, [ino, 0, 1], b"12345");
    assert_eq!(submit(&fs, call).try_recv().expect("an answer at once").status, 0);
    let call = reader.change_call(api::RELEASE, 0, [ino, handle, 0], b"");
    assert_eq!(submit(&fs, call).recv().expect("an answer").status, 0);
    let call = writer.change_call(api::WRITE, 0, [ino, 200, 1], b"12345");
    assert_eq!(submit(&fs, call).try_recv().expect("an answer at once").status, 0);
}

fn lookup_call(session: u64, name: &str) -> Call {
    let data = name.as_bytes().to_vec();
    Call { session, op: api::LOOKUP, args: [api::ROOT, 0, 0], data, capacity: 4096, ..Call::default() }
}

/// Size, and whether it may be kept.
fn told(reply: &Reply) -> (u64, bool) {
    (attr_of(reply).bytes.get(), reply.results[3] & api::LEASE != 0)
}

/// A kernel that puts the answer into effect late would ignore those to later questions.
#[test]
fn size_from_before_a_change_is_not_told_to_who_has_let_that_change_pass() {
    let (_, fs) = new();
    let (mut writer, reader, other) = (Client::new(&fs, 7), Client::new(&fs, 8), Client::new(&fs, 9));
    let ino = attr_of(&writer.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    let look = || submit(&fs, Call { session: 8, op: api::GETATTR, args: [ino, 0, 0], ..Call::default() });
    for round in 0..scaled(2) {
        reader.attr(ino);
        other.attr(ino);
        let call = writer.change_call(api::WRITE, api::APPEND, [ino, 0, 1], b"12345");
        let written = submit(&fs, call);
        let asked = look();
        assert!(asked.try_recv().is_err());
        give_back(&reader);
        // The change waits for the third one only.
        let looks = [asked, look(), submit(&fs, lookup_call(8, "f"))];
        assert!(written.try_recv().is_err() && looks.iter().all(|look| look.try_recv().is_err()));
        give_back(&other);
        assert_eq!(written.recv().expect("an answer").status, 0);
        let size = 5 * (round + 1);
        for look in looks {
            assert_eq!(told(&look.recv().expect("an answer")), (size, true));
        }
    }
}

/// The kernel holds the directory's lock during a look-up, and what the session is asked for may need that lock.
#[test]
fn look_up_does_not_wait_while_its_session_is_asked_for_anything() {
    let (_, fs) = new();
    let mut clients = [7, 8, 9].map(|session| Client::new(&fs, session));
    let ino = attr_of(&clients[0].make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    let second = attr_of(&clients[0].make(api::MKNOD, 1, "g", PLAIN, 1)).ino.get();
    clients[1].attr(second);
    clients[2].attr(ino);
    let call = clients[0].change_call(api::WRITE, 0, [ino, 0, 1], b"12345");
    let written = submit(&fs, call);
    let parked = submit(&fs, lookup_call(8, "f"));
    assert!(parked.try_recv().is_err());
    let call = clients[0].change_call(api::WRITE, 0, [second, 0, 1], b"x");
    let other = submit(&fs, call);
    assert_eq!(told(&parked.try_recv().expect("an answer at once")), (0, false));
    assert_eq!(told(&submit(&fs, lookup_call(8, "f")).try_recv().expect("an answer at once")), (0, false));
    give_back(&clients[1]);
    give_back(&clients[2]);
    assert_eq!([written, other].map(|change| change.recv().expect("an answer").status), [0, 0]);
}

#[test]
fn what_a_fenced_session_had_parked_for_a_lease_does_not_happen() {
    let (_, fs) = new();
    let (mut doomed, holder) = (Client::new(&fs, 7), Client::new(&fs, 8));
    let ino = attr_of(&doomed.make(api::MKNOD, 1, "f", PLAIN, 1)).ino.get();
    holder.attr(ino);
    holder.attr(api::ROOT);
    let write = doomed.change_call(api::WRITE, 0, [ino, 0, 1], b"late");
    let create = doomed.change_call(api::CREATE, 0, [api::ROOT, 1, 1], &create_data("g", PLAIN, 1));
    let parked = [write, create].map(|call| submit(&fs, call));
    assert!(parked.iter().all(|answer| answer.try_recv().is_err()));
    fs.end_session(7, End::Fence).expect("it ends");
    for answer in parked {
        assert_eq!(answer.recv().expect("it ends with its session").status, ESTALE);
    }
    give_back(&holder);
    assert_eq!(holder.read(ino, 0, 10), b"");
    assert_eq!(holder.lookup(api::ROOT, "g"), None);
}

/// A checkpoint that finds no room would end the server.
#[test]
fn volume_full_of_names_refuses_more_and_goes_on() {
    const ENOSPC: u32 = 28;
    for is_scattered in [false, true] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let fs = open(&device, 1);
        let mut client = Client::new(&fs, 7);
        let file = attr_of(&client.make(api::MKNOD, 1, "file", PLAIN, 1)).ino.get();
        let directory = attr_of(&client.make(api::MKDIR, 1, "links", 0o40_755, 1)).ino.get();
        // In no order, so that every checkpoint changes pages all over the store; or one after the other.
        let number = |at: u64| if is_scattered { at.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { at };
        let (mut made, mut gone) = (0, 0);
        for round in 0..6 {
            let refused = loop {
                let (hard, soft) = (format!("hard-{}", number(made)), format!("soft-{}", number(made)));
                let linked = client.change(api::LINK, 0, [file, directory, 1], hard.as_bytes()).status;
                let target = [create_data(&soft, 0o777, 1), vec![0], hard.into_bytes()].concat();
                let named = client.change(api::SYMLINK, 0, [directory, soft.len() as u64, 0], &target).status;
                made += 1;
                if let Some(refused) = [linked, named].into_iter().find(|status| *status != 0) {
                    break refused;
                }
            };
            assert_eq!(refused, ENOSPC, "round {round}, after {made}");
            fs.checkpoint().expect("a volume that is full can be written down");
            // Some go, so that further ones fit.
            for at in (gone..made).filter(|at| at % (round + 2) == 0) {
                for name in [format!("hard-{}", number(at)), format!("soft-{}", number(at))] {
                    client.change(api::UNLINK, 0, [directory, 0, 1], name.as_bytes());
                }
            }
            gone = made;
        }
        println!("{made} pairs");
        drop((client, fs));
        open(&device, 2);
    }
}

/// Memory that takes its time where a disk does.
struct SlowToFlush(MemoryDevice);

impl BlockDevice for SlowToFlush {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(offset, out)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        std::thread::sleep(Duration::from_millis(15));
        self.0.flush()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.0.discard(offset, bytes)
    }
}

/// What a checkpoint under way writes counts, although it is neither in the store yet nor waits for the next one.
#[test]
fn names_that_come_during_a_checkpoint_find_no_room_that_it_will_take() {
    let device = Arc::new(SlowToFlush(MemoryDevice::new(64 << 20)));
    let fs = Fs::open(device, Options::inline(1)).expect("the volume opens");
    let mut client = Client::new(&fs, 7);
    let file = attr_of(&client.make(api::MKNOD, 1, "file", PLAIN, 1)).ino.get();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let checkpoints = scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                fs.checkpoint().expect("the volume is never written beyond its end");
            }
        });
        for round in 0..scaled(2) {
            let name = |at: u64| format!("hard-{round}-{}-{:0200}", at.wrapping_mul(0x9e37_79b9_7f4a_7c15), at);
            let mut made = 0;
            while client.change(api::LINK, 0, [file, 1, 1], name(made).as_bytes()).status == 0 {
                made += 1;
            }
            for at in 0..made {
                client.change(api::UNLINK, 0, [1, 0, 1], name(at).as_bytes());
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        checkpoints.join().expect("no checkpoint failed");
    });
}

#[test]
fn session_that_takes_the_last_name_of_what_it_may_have_open_is_given_a_handle() {
    let (device, mut fs) = new();
    let mut own = Client::new(&fs, 7);
    for (number, (marks, is_held)) in [(0, true), (api::DELEGATED, false), (api::DELEGATED, true)].iter().enumerate() {
        let mut nobody = Client::new(&fs, 0);
        let [name, onto] = ["a", "b"].map(|letter| format!("{letter}{number}"));
        let ino = attr_of(&nobody.make(api::MKNOD, 1, &name, PLAIN, 1)).ino.get();
        nobody.write(ino, 0, b"content", 2);
        nobody.make(api::MKNOD, 1, &onto, PLAIN, 1);
        if *is_held {
            let told = own.read_call(api::GETATTR, [ino, 0, 0], &[]);
            assert_eq!(told.results[3] & (api::LEASE | api::DELEGATES), api::LEASE | api::DELEGATES);
        }
        // Another name is left: nothing to keep.
        let linked = own.change(api::LINK, 0, [ino, 1, 3], format!("c{number}").as_bytes());
        assert_eq!(linked.status, 0);
        let removed = own.change(api::UNLINK, *marks, [1, 0, 4], name.as_bytes());
        assert_eq!((removed.status, removed.results), (0, [ino, 0, 0, 0]));
        let renamed = own.change(api::RENAME, *marks, [1, 1, 5], &common::rename_data(&onto, &format!("c{number}")));
        assert_eq!((renamed.status, renamed.results[1]), (0, ino), "what was replaced");
        // A link is a change of its own session, which leaves it a lease or not: that of `GETATTR` counts.
        let handle = renamed.results[2];
        if *marks == 0 {
            assert_eq!(handle, 0);
            continue;
        }
        if handle == 0 {
            assert!(!is_held);
            continue;
        }
        let sequence = own.sequence;
        drop((own, nobody, fs));
        fs = open(&device, 10 + number as u64);
        fs.open_session(7, 0).expect("the session goes on");
        own = Client { fs: fs.clone(), session: 7, sequence };
        fs.tick(60_000);
        assert_eq!(own.read(ino, 0, 100), b"content", "it stays, over a restart as well");
        assert_eq!(own.change(api::RELEASE, 0, [ino, handle, 0], &[]).status, 0);
        fs.tick(120_000);
        assert_eq!(own.read_call(api::GETATTR, [ino, 0, 0], &[]).status, vos_api::Errno::Gone.number());
        return;
    }
    panic!("nothing was kept");
}

#[test]
fn listings_bring_the_bytes_of_small_files_to_whoever_asks() {
    let (_, fs) = new();
    let mut client = Client::new(&fs, 7);
    let sizes = [0, 1, 4096, api::CONTENT_BYTES_MAX as usize, api::CONTENT_BYTES_MAX as usize + 1];
    for (number, bytes) in sizes.into_iter().enumerate() {
        let ino = attr_of(&client.make(api::MKNOD, 1, &format!("f{number}"), PLAIN, 1)).ino.get();
        client.write(ino, 0, &vec![number as u8; bytes], 2);
    }
    client.make(api::MKDIR, 1, "d", 0o755, 1);
    let mut cookie = 0;
    let mut seen = Vec::new();
    loop {
        let page = client.read_call(api::READDIR, [1, cookie, 2], &[]);
        assert_eq!((page.status, page.results[3] & api::LEASE), (0, api::LEASE));
        let mut data = page.data.as_slice();
        while !data.is_empty() {
            let (entry, rest) = api::DirEntry::read_from_prefix(data).expect("an entry");
            let (name, rest) = rest.split_at((entry.name_bytes.get() as usize).next_multiple_of(8));
            let (attr, rest) = api::Attr::read_from_prefix(rest).expect("attributes");
            let has = attr.marks.get() & api::CONTENT != 0;
            let (content, rest) = rest.split_at(if has { attr.bytes.get().next_multiple_of(8) as usize } else { 0 });
            seen.push((name[..entry.name_bytes.get() as usize].to_vec(), has, content.to_vec()));
            (data, cookie) = (rest, entry.cookie.get());
        }
        if page.results[1] == 1 {
            break;
        }
    }
    let expected = sizes.iter().enumerate().map(|(number, bytes)| {
        let has = *bytes as u64 <= api::CONTENT_BYTES_MAX;
        let mut content = if has { vec![number as u8; *bytes] } else { Vec::new() };
        content.resize(content.len().next_multiple_of(8), 0);
        (format!("f{number}").into_bytes(), has, content)
    });
    let expected: Vec<_> = expected.chain([(b"d".to_vec(), false, Vec::new())]).collect();
    assert_eq!(seen, expected);
}
