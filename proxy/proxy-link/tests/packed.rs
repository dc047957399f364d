//! Data that travels packed: it arrives as it was, only where both sides agreed, and damage cuts the link.

#[path = "sim/memory.rs"]
mod memory;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use abi::ring::Submission;
use abi::{DcId, Endpoint, Epoch, Lane, NodeId};
use memory::{ARENA_BYTES, ENTRIES, Memory, SimChannel};
use proptest::prelude::*;
use proxy_link::{
    Action, Ends, Identity, InBuffer, LinkError, LinkTimes, LocalChannel, LocalRole, NotPacked, Packer, Peer, Phase,
    RingSpec,
};

const NOW: Duration = Duration::from_secs(1);
/// More than a block, and not a whole number of them.
const LONG: u32 = ARENA_BYTES / 2 - 100;

/// Runs of equal bytes as (count, byte).
struct Runs;

impl Packer for Runs {
    fn pack(&mut self, plain: &[u8], packed: &mut [u8]) -> (Option<usize>, Duration) {
        let mut length = 0;
        for run in plain.chunk_by(|a, b| a == b).flat_map(|run| run.chunks(255)) {
            let Some(place) = packed.get_mut(length..length + 2) else { return (None, Duration::from_micros(10)) };
            place.copy_from_slice(&[run.len() as u8, run[0]]);
            length += 2;
        }
        (Some(length), Duration::from_micros(10))
    }

    fn unpack(&mut self, packed: &[u8], plain: &mut [u8]) -> Result<(), NotPacked> {
        let mut rest = plain;
        for pair in packed.chunks(2) {
            let [count, byte] = pair else { return Err(NotPacked) };
            let (run, left) = rest.split_at_mut_checked(usize::from(*count)).ok_or(NotPacked)?;
            run.fill(*byte);
            rest = left;
        }
        if rest.is_empty() { Ok(()) } else { Err(NotPacked) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Can {
    Pack,
    Not,
}

fn peer(me: u16, far: u16, can: Can) -> Peer<SimChannel> {
    let identity = |id: u16| Identity { cluster: "c1".into(), node: format!("n{id}"), id: NodeId(id) };
    let mut peer = Peer::new(identity(me), Epoch(1), identity(far), LinkTimes::default(), NOW);
    if can == Can::Pack {
        peer.pack_with(Box::new(Runs));
    }
    peer
}

fn outgoing(from: &mut Peer<SimChannel>, now: Duration) -> Vec<u8> {
    from.fill(now);
    let bytes = from.outgoing().pending().to_vec();
    from.sent(now, bytes.len());
    bytes
}

fn carry(from: &mut Peer<SimChannel>, to: &mut Peer<SimChannel>, now: Duration) -> Result<(), LinkError> {
    let bytes = outgoing(from, now);
    let mut input = InBuffer::new();
    input.append(&bytes);
    if to.phase() == Phase::Apart && !bytes.is_empty() {
        let Ok(wire::Next::Frame(wire::Frame::Hello(hello), whole)) = wire::next(&bytes) else { panic!("HELLO") };
        to.accepted(now, &hello)?;
        input.consume(whole);
    }
    to.receive(&mut input, now)
}

struct World {
    a: Peer<SimChannel>,
    b: Peer<SimChannel>,
    client: SimChannel,
    server: SimChannel,
    channel: proxy_link::WireChannel,
}

impl World {
    /// Two linked peers and an open ring from `a` to `b`, over a wire that was seen to be slow.
    fn new(a_can: Can, b_can: Can) -> World {
        let (mut a, mut b) = (peer(1, 2, a_can), peer(2, 1, b_can));
        let memory = |role| SimChannel(Rc::new(RefCell::new(Memory::new(role))));
        let (client, server) = (memory(LocalRole::Client), memory(LocalRole::Server));
        let ring = Some(RingSpec { entries: ENTRIES, arena_bytes: ARENA_BYTES });
        let ends = Ends { dc: DcId(1), from: Endpoint::GATE, to: Endpoint::FS, lane: Lane(1), ring, incarnation: None };
        a.dialled(NOW);
        let Ok(channel) = a.open_out(7, ends, client.clone()) else { panic!("admitted") };
        let mut opened = false;
        for _ in 0..10 {
            carry(&mut a, &mut b, NOW).expect("correct");
            carry(&mut b, &mut a, NOW).expect("correct");
            while let Some(action) = b.next_action() {
                if let Action::OpenIn { channel, ends } = action {
                    opened |= b.opened_in(channel, ends, Ok(server.clone())).is_ok();
                }
            }
        }
        assert!(opened);
        World { a, b, client, server, channel }
    }

    fn submit(&mut self, tag: u32, bytes: u32) {
        let mut memory = self.client.0.borrow_mut();
        let tail = memory.submission_cursor.tail;
        let entry = Submission { tag, out_bytes: bytes, in_capacity: 8, ..Submission::default() };
        memory.submissions.insert(tail % ENTRIES, entry);
        memory.submission_cursor.tail += 1;
        drop(memory);
        self.a.active(self.channel);
    }

    /// The wire takes nothing for a while.
    fn hold_up(&mut self) {
        self.submit(50, 4);
        self.a.fill(NOW);
        self.a.sent(NOW, 0);
        self.a.sent(NOW + Duration::from_millis(20), 0);
    }

    fn exchange(&mut self) -> Result<(), LinkError> {
        for _ in 0..20 {
            carry(&mut self.a, &mut self.b, NOW)?;
            carry(&mut self.b, &mut self.a, NOW)?;
        }
        Ok(())
    }
}

/// Half of it runs, half of it in which no two neighbours are equal.
fn mixed() -> Vec<u8> {
    (0..LONG).map(|at| if at < LONG / 2 { (at / 1000) as u8 } else { (at * 7 + at / 251) as u8 }).collect()
}

#[test]
fn packed_data_arrives_as_it_was_and_takes_less_of_the_wire() {
    let mut world = World::new(Can::Pack, Can::Pack);
    world.hold_up();
    world.client.0.borrow_mut().arena[..LONG as usize].copy_from_slice(&mixed());
    world.submit(1, LONG);
    world.exchange().expect("correct");
    assert_eq!(world.server.put_count(), 2);
    assert_eq!(world.server.0.borrow().arena[..LONG as usize], mixed()[..]);
    let counters = world.a.counters();
    assert_eq!(counters.packed_from, u64::from(LONG));
    assert!(counters.packed_to < u64::from(LONG) * 3 / 4 && counters.packed_to > u64::from(LONG) / 4, "{counters:?}");
}

#[test]
fn nothing_is_packed_for_a_peer_that_cannot_unpack_or_by_one_that_cannot_pack() {
    for (a, b) in [(Can::Pack, Can::Not), (Can::Not, Can::Pack)] {
        let mut world = World::new(a, b);
        world.hold_up();
        world.submit(1, LONG);
        world.exchange().expect("correct");
        assert_eq!((world.server.put_count(), world.a.counters().packed_from), (2, 0));
    }
}

#[test]
fn packed_data_nobody_agreed_on_cuts_the_link() {
    let mut world = World::new(Can::Not, Can::Not);
    let entry = Submission { out_bytes: 100, ..Submission::default() };
    let mut bytes = Vec::new();
    wire::submit_head(&mut bytes, world.channel, 0, 0, &entry, (100, wire::Packing::Lz4));
    let mut input = InBuffer::new();
    input.append(&bytes);
    assert!(matches!(world.b.receive(&mut input, NOW), Err(LinkError::OutOfPlace { .. })));
}

#[test]
fn half_a_packed_frame_is_forgotten_with_its_connection_and_sent_again() {
    let mut world = World::new(Can::Pack, Can::Pack);
    world.hold_up();
    world.client.0.borrow_mut().arena[..LONG as usize].copy_from_slice(&mixed());
    world.submit(1, LONG);
    let bytes = outgoing(&mut world.a, NOW);
    let mut input = InBuffer::new();
    input.append(&bytes[..bytes.len() - 10]);
    world.b.receive(&mut input, NOW).expect("correct so far");
    assert!(world.server.put_count() < 2);
    world.a.cut();
    world.b.cut();
    world.a.dialled(NOW);
    world.exchange().expect("correct");
    assert_eq!(world.server.put_count(), 2);
    assert_eq!(world.server.0.borrow().arena[..LONG as usize], mixed()[..]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Cut or taken, in whatever pieces it comes: never a panic, and never a byte outside the entry's range.
    #[test]
    fn damaged_packed_data_never_panics(
        at in any::<proptest::sample::Index>(), flip in 1_u8.., piece in 1_usize..5000,
    ) {
        let mut world = World::new(Can::Pack, Can::Pack);
        world.hold_up();
        world.client.0.borrow_mut().arena[..LONG as usize].copy_from_slice(&mixed());
        world.submit(1, LONG);
        let mut bytes = outgoing(&mut world.a, NOW);
        bytes.extend(outgoing(&mut world.a, NOW));
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut input = InBuffer::new();
        for piece in bytes.chunks(piece) {
            input.append(piece);
            if world.b.receive(&mut input, NOW).is_err() {
                break;
            }
        }
        prop_assert!(world.server.0.borrow().arena[LONG as usize..].iter().all(|byte| *byte == 0));
    }
}
