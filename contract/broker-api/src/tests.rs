//! Every message survives its bytes, and bytes that nobody sends are refused.

use std::fmt::Debug;

use abi::layout::Size;
use abi::{ChannelId, Endpoint, Epoch, IpcError, Lane, NodeId, Privileges};
use proptest::prelude::*;

use crate::packet::{Fault, Slots};
use crate::{
    Answer, BetweenBrokers, Errand, FromPort, FromProxy, HoldId, IfAbsent, Malformed, Message, Open, PACKET_BYTES,
    ToPort, ToProxy, brokers,
};

const BROKERS: &[u16] = &[brokers::DISOWN_HOLDS, brokers::PROBE, brokers::REFUSE_WAIT, brokers::MOVED_TO];

/// Takes each message of a direction out of the same slots, whatever of them it has; how many there were.
fn survive<M: Message + PartialEq + Debug>(operations: &[u16], slots: &Slots, request: u32) -> usize {
    let message = |operation: &u16| M::take(*operation, &mut slots.clone()).ok();
    let messages: Vec<M> = operations.iter().filter_map(message).collect();
    for message in &messages {
        let bytes = message.to_bytes(request);
        assert_eq!(M::from_bytes(&bytes).as_ref().map(|(of, read)| (*of, read)), Ok((request, message)));
    }
    messages.len()
}

fn is_stable<M: Message + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok((request, message)) = M::from_bytes(bytes) {
        assert_eq!(M::from_bytes(&message.to_bytes(request)), Ok((request, message)));
    }
}

prop_compose! {
    fn slots()(
        (is_right, waits, own, peer) in (any::<bool>(), any::<bool>(), 0..8192u32, 0..8192u32),
        (node, lane, channel, epoch) in (1..=u16::MAX, any::<u16>(), any::<u64>(), 1..=u64::MAX),
        // A number that is a process, an error, a state, calls, or a topic.
        (dc, value, far, incarnation) in (any::<u32>(), prop_oneof![0..6u32, 1..30u32, 1..1000u32], any::<u64>(), any::<u64>()),
        (entries, arena_bytes) in (1..=u32::MAX, prop_oneof![Just(0), any::<u32>()]),
        body in prop_oneof![
            Just(Privileges::server().to_bytes()),
            Just(b"name".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..40),
        ],
    ) -> Slots {
        let (own, peer) = (Endpoint::new(own), Endpoint::new(peer));
        let size = Size { entries, arena_bytes };
        Slots { is_right, waits, dc, own, peer, node, lane, channel, epoch, size, value, far, incarnation, body }
    }
}

proptest! {
    #[test]
    fn message_survives_the_round_trip_through_bytes(slots in slots(), request in any::<u32>()) {
        survive::<FromPort>(FromPort::OPERATIONS, &slots, request);
        survive::<ToPort>(ToPort::OPERATIONS, &slots, request);
        survive::<FromProxy>(FromProxy::OPERATIONS, &slots, request);
        survive::<ToProxy>(ToProxy::OPERATIONS, &slots, request);
        survive::<BetweenBrokers>(&[Errand::OPERATIONS, Answer::OPERATIONS, BROKERS].concat(), &slots, request);
        survive::<BetweenBrokers>(&[brokers::DISOWN_HOLDS], &Slots { peer: None, ..slots }, request);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_what_is_read_is_read_again_as_the_same(
        bytes in proptest::collection::vec(prop_oneof![4 => Just(0u8), 1 => any::<u8>()], 0..PACKET_BYTES + 6),
        operation in 0..120u8,
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = operation;
        }
        is_stable::<FromPort>(&bytes);
        is_stable::<ToPort>(&bytes);
        is_stable::<FromProxy>(&bytes);
        is_stable::<ToProxy>(&bytes);
        is_stable::<BetweenBrokers>(&bytes);
    }
}

/// The property above would hold of messages that nothing can be taken for.
#[test]
fn every_operation_can_be_said() {
    // Not every number is a pair of versions.
    let with = |body: &[u8], value: u32| Slots {
        own: Some(Endpoint::FS),
        peer: Some(Endpoint::DS),
        node: 1,
        value,
        epoch: 1,
        size: Size { entries: 8, arena_bytes: 0 },
        body: body.to_vec(),
        ..Slots::default()
    };
    let privileges = Privileges::server().to_bytes();
    let said = |count: fn(&[u16], &Slots, u32) -> usize, operations: &[u16]| {
        for operation in operations {
            let of = [&privileges[..], b"name"]
                .map(|body| [1, 0x0201].map(|value| count(&[*operation], &with(body, value), 7)));
            assert_ne!(of, [[0, 0]; 2], "operation {operation}");
        }
    };
    said(survive::<FromPort>, FromPort::OPERATIONS);
    said(survive::<ToPort>, ToPort::OPERATIONS);
    said(survive::<FromProxy>, FromProxy::OPERATIONS);
    said(survive::<ToProxy>, ToProxy::OPERATIONS);
    said(survive::<BetweenBrokers>, &[Errand::OPERATIONS, Answer::OPERATIONS, BROKERS].concat());
}

/// Libraries inside containers and brokers of other nodes may be older or newer: the bytes stay.
#[test]
fn fields_lie_where_they_always_lay() {
    let open = Open { peer: Endpoint::DS, lane: Lane(0x0102), ring: None, if_absent: IfAbsent::Wait };
    let mut expected = [0; PACKET_BYTES];
    (expected[0], expected[2], expected[4]) = (3, 2, 9);
    expected[12..16].fill(0xff);
    expected[16] = 2;
    (expected[22], expected[23]) = (2, 1);
    assert_eq!(FromPort::Open(open).to_bytes(9), expected);

    let closed = FromPort::Close { channel: ChannelId(0x0807_0605_0403_0201), reason: IpcError::TableFull };
    let bytes = closed.to_bytes(0);
    assert_eq!((bytes[0], &bytes[24..32], bytes[48]), (8, &[1, 2, 3, 4, 5, 6, 7, 8][..], 5));

    let news = BetweenBrokers::MovedTo { dc: abi::DcId(3), endpoint: Endpoint::FS, to: Some((NodeId(4), Epoch(5))) };
    let bytes = news.to_bytes(0);
    assert_eq!((bytes[0], bytes[8], bytes[16], bytes[20], bytes[32]), (31, 3, 1, 4, 5));
}

#[test]
fn what_no_sender_writes_is_refused_and_says_why() {
    let drained = FromPort::Drained { hold: HoldId(7) }.to_bytes(9);
    assert_eq!(FromPort::from_bytes(&drained), Ok((9, FromPort::Drained { hold: HoldId(7) })));
    let changed = |at: usize, byte: u8| {
        let mut bytes = drained.clone();
        bytes[at] = byte;
        FromPort::from_bytes(&bytes).unwrap_err()
    };
    assert_eq!(changed(0, 99), Malformed::UnknownOperation(99));
    assert_eq!(changed(0, 100), Malformed::UnknownOperation(100), "an answer is no request");
    assert_eq!(changed(2, 4), Malformed::Layout);
    assert_eq!(changed(71, 1), Malformed::Layout);
    assert_eq!(changed(12, 1), Malformed::Layout, "a number that no endpoint has");
    assert_eq!(changed(24, 1), Malformed::Unused("channel"));
    assert_eq!(changed(0, 9), Malformed::Value { request: 9, field: "endpoint" });
    assert_eq!(FromPort::from_bytes(&drained[1..]), Err(Malformed::Layout));
    assert_eq!(FromPort::from_bytes(&[&drained[..], b"x"].concat()), Err(Malformed::Unused("body")));
    assert!(matches!(Answer::take(1, &mut Slots::default()), Err(Fault::Operation)));
}
