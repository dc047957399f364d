//! What a client that reads the volume itself is told: the bytes there are the file's, whatever was done to it before.

use std::sync::Arc;

use crate::common::{Client, Random, attr_of};
use fs_core::device::{BLOCK, BlockDevice};
use fs_core::testing::MemoryDevice;
use fs_core::{Call, Fs, Options, Reply, VOLUME_BYTES_MIN};
use vos_api::disk::Span;
use vos_api::fs as api;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const BYTES_MAX: u64 = 3 << 20;

/// A new volume with one file, and a session that may hold leases.
fn empty_file() -> (Arc<MemoryDevice>, Client, u64) {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES_MIN));
    let fs = Fs::open(device.clone(), Options::inline(1)).expect("the volume opens");
    let mut client = Client::new(&fs, 7);
    let ino = attr_of(&client.make(api::MKNOD, 1, "f", 0o100_600, 1)).ino.get();
    (device, client, ino)
}

fn ask(client: &Client, ino: u64, offset: u64, bytes: u64) -> Reply {
    let (session, args) = (client.session, [ino, offset, bytes]);
    let call = Call { session, op: api::READ, flags: api::WHERE, args, capacity: 1 << 20, ..Call::default() };
    let reply = client.fs.call(call);
    assert_eq!(reply.status, 0);
    reply
}

/// The bytes of an answer, fetched from the volume when it says where they lie.
fn fetch(device: &MemoryDevice, reply: &Reply) -> (bool, Vec<u8>) {
    if reply.results[3] & api::PLACES == 0 {
        let parts = reply.parts.iter().flat_map(|part| part.bytes().to_vec());
        return (false, reply.data.iter().copied().chain(parts).collect());
    }
    let (spans, crcs) = reply.data.split_at(reply.results[1] as usize * size_of::<Span>());
    let (spans, crcs) = (<[Span]>::ref_from_bytes(spans).unwrap(), <[U32]>::ref_from_bytes(crcs).unwrap());
    let mut bytes = Vec::new();
    for span in spans {
        let mut part = vec![0; span.bytes.get() as usize];
        device.read(span.offset.get(), &mut part).expect("inside the volume");
        bytes.extend(part);
    }
    let found: Vec<u32> = bytes.chunks_exact(BLOCK).map(crc32fast::hash).collect();
    assert_eq!(found, crcs.iter().map(|crc| crc.get()).collect::<Vec<_>>());
    bytes.truncate(reply.results[0] as usize);
    (true, bytes)
}

#[test]
fn bytes_at_the_places_are_those_of_the_file_after_any_changes() {
    let (device, mut client, ino) = empty_file();
    let mut model: Vec<u8> = Vec::new();
    let (mut random, mut told, mut given) = (Random::new(11), 0, 0);
    for step in 0..400_u64 {
        if random.chance(10) {
            let bytes = random.below(BYTES_MAX);
            assert_eq!(client.change(api::SETATTR, 0, [ino, step, 0], &size(bytes)).status, 0);
            model.resize(bytes as usize, 0);
        } else {
            let offset = random.below(BYTES_MAX - (600 << 10));
            let offset = if random.chance(50) { offset / 4096 * 4096 } else { offset };
            let data: Vec<u8> = (0..1 + random.below(600 << 10)).map(|n| (n + step * 7) as u8).collect();
            assert_eq!(client.write(ino, offset, &data, step).status, 0);
            let end = offset as usize + data.len();
            model.resize(model.len().max(end), 0);
            model[offset as usize..end].copy_from_slice(&data);
        }
        for _ in 0..4 {
            let offset = random.below(BYTES_MAX) / 4096 * 4096;
            let bytes = random.below(1 << 20) + 1;
            let (is_told, found) = fetch(&device, &ask(&client, ino, offset, bytes));
            let end = model.len().min((offset + bytes) as usize);
            assert!(found == model.get(offset as usize..end).unwrap_or_default(), "step {step} at {offset}");
            *if is_told { &mut told } else { &mut given } += 1;
        }
        if random.chance(5) {
            client.fs.checkpoint().expect("a checkpoint");
        }
    }
    assert!(told > 100 && given > 100, "{told} told, {given} given");
}

fn size(bytes: u64) -> Vec<u8> {
    let attr = api::SetAttr { valid: api::valid::BYTES.into(), bytes: bytes.into(), ..api::SetAttr::new_zeroed() };
    attr.as_bytes().to_vec()
}

#[test]
fn short_reads_holes_and_starts_inside_a_block_are_answered_with_bytes() {
    let (device, mut client, ino) = empty_file();
    assert_eq!(client.write(ino, 0, &[1; 512 << 10], 2).status, 0);
    assert_eq!(client.write(ino, 600 << 10, &[2; 512 << 10], 2).status, 0);
    let is_told = |offset, bytes| fetch(&device, &ask(&client, ino, offset, bytes)).0;
    assert!(is_told(0, 512 << 10));
    assert!(is_told(600 << 10, 1 << 20));
    assert!(!is_told(0, 4096));
    assert!(!is_told(1, 400 << 10));
    assert!(!is_told(0, 1 << 20), "a hole is nowhere");
    assert_eq!(ask(&client, ino, 4 << 20, 1 << 20).results[0], 0);
    // Who did not ask for it is not told.
    assert_eq!(client.read(ino, 0, 512 << 10), vec![1; 512 << 10]);
    // While a lease lasts the answer carries it.
    assert_ne!(ask(&client, ino, 0, 512 << 10).results[3] & api::LEASE, 0);
}
