//! Single promises of `vos_api::fs` that no random run would pin down.

mod common;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use common::{Client, attr_of};
use fs::testing::MemoryDevice;
use fs::{Call, Fs, Options, Reply, VOLUME_BYTES_MIN};
use vos_api::fs as api;
use zerocopy::FromBytes;

const EINTR: u32 = 4;
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
