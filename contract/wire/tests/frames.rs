//! Bytes from a peer are frames or errors, never anything else.

use std::num::NonZeroU64;

use abi::ring::{Completion, RingSpec, Submission};
use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId, PairId};
use proptest::prelude::*;
use versions::Versions;
use wire::frame::{OpenTags, kind};
use wire::{Block, Frame, Hello, Next, OpenTag, Packing, Refusal, Resync, RingEntry, RingHead, WireChannel, WireError};

/// What a frame borrows.
#[derive(Debug)]
struct Bulk {
    payload: [u8; 56],
    data: Vec<u8>,
    tags: Vec<OpenTag>,
}

fn bulk() -> impl Strategy<Value = Bulk> {
    let tag = any::<(u32, u32, u32)>().prop_map(|(tag, arena_offset, in_capacity)| OpenTag {
        tag,
        arena_offset,
        in_capacity,
    });
    let payload = proptest::collection::vec(any::<u8>(), 56);
    (payload, proptest::collection::vec(any::<u8>(), 0..2048), proptest::collection::vec(tag, 0..20))
        .prop_map(|(payload, data, tags)| Bulk { payload: payload.try_into().expect("56 bytes"), data, tags })
}

/// One frame of the kind chosen by `select`, filled from four numbers.
fn frame<'a>(select: u8, bulk: &'a Bulk, a: u32, b: u32, c: u64, node: u16) -> Frame<'a> {
    let channel = WireChannel { opener: NodeId(node.max(1)), number: c };
    let word = a.max(1);
    let fault = if b.is_multiple_of(3) { IpcError::Os(a as i32) } else { IpcError::NoLink };
    match select % 19 {
        0 => Frame::Hello(Hello {
            cluster: "c1",
            node: "n-1",
            node_id: NodeId(node.max(1)),
            incarnation: Epoch(c),
            connection: c ^ 1,
            features: a,
            frame_bytes_max: b,
            window_bytes: a,
            pair: PairId::new(b as u8 % 8).expect("below 8"),
            speaks: Versions::from_to(1 + (a % 4) as u8, 7),
            release: "0.1.0",
        }),
        1 => Frame::Refuse { refusal: Refusal::Fenced, reason: "newer proxy seen" },
        2 => Frame::Resync(Resync {
            channel,
            published: a,
            taken: b,
            produced: a ^ b,
            notified: c,
            open_tags: OpenTags::Listed(&bulk.tags),
        }),
        3 => Frame::ResyncEnd,
        4 => Frame::Open {
            channel,
            dc: DcId(a % 1000 + 1),
            from: Endpoint::FS,
            to: Endpoint::DISK,
            lane: Lane((b % 2) as u16),
            ring: (b % 2 == 1).then_some(RingSpec { entries: 1 << (a % 11), arena_bytes: a % (256 << 20) }),
            incarnation: NonZeroU64::new(c),
        },
        5 => Frame::Opened { channel, result: if a.is_multiple_of(2) { Ok(()) } else { Err(fault) } },
        6 => Frame::Close { channel, reason: fault },
        7 => Frame::Message { channel, word, kind: b as i32, payload: &bulk.payload, inline: &bulk.data },
        8 => Frame::Taken { channel, word },
        9 => Frame::Withdraw { channel, word },
        10 => Frame::Withdrawn { channel, word },
        11 => Frame::Notify { channel, number: c, mask: !c },
        12 => Frame::Notified { channel, number: c },
        13 => Frame::Submit {
            channel,
            index: a,
            produced: b,
            data: &bulk.data,
            entry: Submission { tag: a, out_bytes: bulk.data.len() as u32, args: [c; 3], ..Submission::default() },
        },
        14 => Frame::Complete {
            channel,
            index: a,
            produced: b,
            data: &bulk.data,
            entry: Completion { tag: a, in_bytes: bulk.data.len() as u32, results: [c; 4], ..Completion::default() },
        },
        15 => Frame::Produced { channel, produced: a },
        16 => Frame::Heartbeat { seq: c, echo: !c },
        17 => Frame::Credit { processed: c },
        18 => Frame::Closed { channel },
        _ => Frame::Parcel { bytes: bulk.data.get(..bulk.data.len().min(1000)).unwrap_or(&[]) },
    }
}

/// RESYNC's list decodes to the encoded form; compare what it lists.
fn same(left: &Frame<'_>, right: &Frame<'_>) -> bool {
    match (left, right) {
        (Frame::Resync(l), Frame::Resync(r)) => {
            let heads = |x: &Resync<'_>| (x.channel, x.published, x.taken, x.produced, x.notified);
            heads(l) == heads(r) && l.open_tags.iter().eq(r.open_tags.iter())
        }
        _ => left == right,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_frame_survives_the_wire(bulk in bulk(), select: u8, a: u32, b: u32, c: u64, node: u16) {
        let frame = frame(select, &bulk, a, b, c, node);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), frame.encoded_bytes());
        prop_assert_eq!(wire::frame_bytes(&bytes), Ok(Some(bytes.len())));
        let back = Frame::decode(&bytes).expect("what was encoded decodes");
        prop_assert!(same(&back, &frame), "{:?} became {:?}", frame, back);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Frame::decode(&bytes);
    }

    /// Random bytes rarely pass the head, so that bodies are tried after a good one.
    #[test]
    fn arbitrary_bodies_never_panic(kind in 0_u8..=wire::frame::kind::LAST + 1, body in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend([kind, wire::LAYOUT, 0, 0]);
        bytes.extend(&body);
        if let Ok(frame) = Frame::decode(&bytes) && !may_have_been_written_later(&frame) {
            let mut again = Vec::new();
            frame.encode(&mut again);
            prop_assert_eq!(again, bytes, "a frame has one encoding");
        }
    }

    #[test]
    fn one_flipped_bit_or_missing_byte_never_panics(
        bulk in bulk(), select: u8, a: u32, b: u32, c: u64, at: proptest::sample::Index, bit in 0_u8..8,
    ) {
        let mut bytes = Vec::new();
        frame(select, &bulk, a, b, c, 1).encode(&mut bytes);
        let at = at.index(bytes.len());
        prop_assert_eq!(Frame::decode(&bytes[..at]).err(), Some(WireError::Short));
        bytes[at] ^= 1 << bit;
        let _ = Frame::decode(&bytes);
    }
}

/// What only a later release says at the end of HELLO, or as the code of REFUSE, is passed over.
fn may_have_been_written_later(frame: &Frame<'_>) -> bool {
    matches!(frame, Frame::Hello(_) | Frame::Refuse { refusal: Refusal::Other, .. })
}

/// What releases that have been published say first, as they say it: it is understood for ever.
#[test]
fn greetings_and_refusals_of_all_releases_are_understood() {
    // HELLO of 0.1.0.
    let greeting = [
        &[44, 0, 0, 0, 1, 4, 0, 0, 2, b'c', b'1', 2, b'n', b'2', 2, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]
            [..],
        &[1, 0, 0, 0, 0, 0, 16, 0, 0, 0, 64, 0, 0, 1, 1, 5][..],
        b"0.1.0",
    ]
    .concat();
    let hello = |bytes: &[u8]| match Frame::decode(bytes) {
        Ok(Frame::Hello(hello)) => (hello.node.to_owned(), hello.speaks, hello.release.to_owned(), hello.connection),
        other => panic!("{other:?}"),
    };
    let body = (greeting.len() - wire::HEAD_BYTES) as u8;
    let mut whole = greeting.clone();
    whole[0] = body;
    let expected = ("n2".to_owned(), Versions::only(1), "0.1.0".to_owned(), 9);
    assert_eq!(hello(&whole), expected);
    // A later one says more.
    let mut later = whole.clone();
    later.extend([1, 2, 3, 4, 5]);
    later[0] += 5;
    assert_eq!(hello(&later), expected);
    // And refuses for reasons of its own.
    let refusal = [5, 0, 0, 0, 2, 4, 0, 0, 77, 3, b'w', b'h', b'y'];
    assert_eq!(Frame::decode(&refusal), Ok(Frame::Refuse { refusal: Refusal::Other, reason: "why" }));
}

#[test]
fn length_beyond_the_limit_is_refused_before_any_body_arrives() {
    let head = [0xff, 0xff, 0xff, 0x7f, 8, wire::LAYOUT, 0, 0];
    assert_eq!(wire::frame_bytes(&head), Err(WireError::TooLong(0x7fff_ffff)));
}

#[test]
fn other_layout_is_refused_by_its_head() {
    assert_eq!(wire::frame_bytes(&[0, 0, 0, 0, 4, 9, 0, 0]), Err(WireError::Layout(9)));
}

#[test]
fn submission_whose_data_is_longer_than_it_says_is_refused() {
    let channel = WireChannel { opener: NodeId(1), number: 1 };
    let mut bytes = Vec::new();
    let entry = Submission { out_bytes: 3, ..Submission::default() };
    wire::submit_head(&mut bytes, channel, 0, 0, &entry, (4, Packing::Plain));
    bytes.extend([0; 4]);
    assert_eq!(Frame::decode(&bytes), Err(WireError::Field("bytes of data")));
}

#[test]
fn head_of_a_ring_frame_is_taken_before_its_data_and_any_other_frame_as_a_whole() {
    let channel = WireChannel { opener: NodeId(1), number: 1 };
    let entry = Completion { in_bytes: 1000, ..Completion::default() };
    let mut bytes = Vec::new();
    wire::complete_head(&mut bytes, channel, 3, 4, &entry, (1000, Packing::Plain));
    let mut head = RingHead {
        channel,
        index: 3,
        produced: 4,
        entry: RingEntry::Completion(entry),
        data_bytes: 1000,
        packing: Packing::Plain,
    };
    assert_eq!(wire::next(&bytes), Ok(Next::Ring(head)));
    let mut packed = Vec::new();
    wire::complete_head(&mut packed, channel, 3, 4, &entry, (1000, Packing::Lz4));
    head.packing = Packing::Lz4;
    assert_eq!(wire::next(&packed), Ok(Next::Ring(head)));
    assert_eq!(wire::next(&bytes[..bytes.len() - 1]), Ok(Next::Incomplete));
    let mut bytes = Vec::new();
    Frame::Credit { processed: 7 }.encode(&mut bytes);
    assert_eq!(wire::next(&bytes), Ok(Next::Frame(Frame::Credit { processed: 7 }, bytes.len())));
    assert_eq!(wire::next(&bytes[..bytes.len() - 1]), Ok(Next::Incomplete));
}

#[test]
fn only_a_ring_frame_may_be_as_long_as_a_transfer() {
    let head = |kind| [0, 0, 16, 0, kind, wire::LAYOUT, 0, 0];
    assert_eq!(wire::frame_bytes(&head(kind::COMPLETE)), Ok(Some((1 << 20) + wire::HEAD_BYTES)));
    assert_eq!(wire::frame_bytes(&head(kind::HEARTBEAT)), Err(WireError::TooLong(1 << 20)));
    assert_eq!(wire::frame_bytes(&head(kind::RESYNC)), Err(WireError::TooLong(1 << 20)));
}

#[test]
fn packing_is_for_data_of_rings_only_and_of_a_known_kind() {
    let head = |kind, packing| [100, 0, 0, 0, kind, wire::LAYOUT, packing, 0];
    assert_eq!(wire::frame_bytes(&head(kind::SUBMIT, 1)), Ok(Some(108)));
    for (kind, packing) in [(kind::SUBMIT, 2), (kind::MESSAGE, 1), (kind::HELLO, 1)] {
        assert_eq!(wire::frame_bytes(&head(kind, packing)), Err(WireError::Field("packing")));
    }
}

#[test]
fn block_is_shorter_than_what_it_unpacks_to_or_stored() {
    let head = |word: u32| word.to_le_bytes();
    let block = |bytes, is_stored| Ok(Some(Block { bytes, is_stored }));
    assert_eq!(Block::decode(&head(99), 100), block(99, false));
    assert_eq!(Block::decode(&head(100 | 1 << 31), 100), block(100, true));
    for wrong in [0, 100, 101, 1 << 30, 99 | 1 << 31, 101 | 1 << 31, u32::MAX] {
        assert_eq!(Block::decode(&head(wrong), 100), Err(WireError::Field("block length")));
    }
    assert_eq!(Block::decode(&[1, 0, 0], 100), Ok(None));
    let mut bytes = Vec::new();
    Block { bytes: 70_000, is_stored: true }.encode(&mut bytes);
    assert_eq!(Block::decode(&bytes, 70_000), block(70_000, true));
}
