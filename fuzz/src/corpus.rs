//! What each target begins with: what honest parties really say, and for channels short lists of steps that reach every
//! branch.

use abi::layout::word;
use abi::ring::RingSpec;
use abi::{ChannelId, Endpoint, EndpointName, IpcError, Lane, NodeId};
use broker_api::info::Question;
use broker_api::{
    BetweenBrokers, Errand, FromPort, FromProxy, IfAbsent, Inquiry, LinkState, Message, Open, OpenIn, PACKET_BYTES,
    Pid, WaitId,
};

use crate::engine::WITH_BODY;
use crate::link::Pair;
use crate::member::{DC, SERVER};

/// What honest members and proxies say, as packets.
fn said() -> Vec<Vec<u8>> {
    let (dc, node, channel, reason) = (DC, NodeId(2), ChannelId(1), IpcError::SourceDied);
    let (endpoint, peer, pid) = (SERVER, SERVER, Pid::new(1).expect("it is one"));
    let open = |ring, if_absent| FromPort::Open(Open { peer, lane: Lane::MESSAGES, ring, if_absent });
    let inquiry = Inquiry { question: Question::Endpoint(SERVER), at_most: 1 };
    let of_ports = [
        FromPort::Bind { endpoint: None, if_absent: IfAbsent::Fail, speaks: versions::PORT.speaks },
        open(None, IfAbsent::Fail),
        open(Some(RingSpec { entries: 8, arena_bytes: 4096 }), IfAbsent::Wait),
        FromPort::AwaitBound { peer },
        FromPort::AwaitUnbound { peer },
        FromPort::GetEndpoint { pid },
        FromPort::WakeUp { endpoint },
        FromPort::GetPrivileges { endpoint },
        FromPort::Waits { wait: WaitId(1), peer },
        FromPort::MigrationStart { endpoint },
        FromPort::Cancel { cancelled: 1 },
        FromPort::Close { channel, reason },
        FromPort::Inform(inquiry),
        FromPort::Unbind,
    ];
    let (caller, target, lane, peer_channel) = (Endpoint::PM, SERVER, Lane::MESSAGES, 7);
    let parcel = BetweenBrokers::Errand { dc, endpoint, errand: Errand::WakeUp };
    let of_proxies = [
        FromProxy::OpenIn(OpenIn { dc, caller, node, target, lane, ring: None, peer_channel, incarnation: None }),
        FromProxy::RemoteGone { dc, endpoint: caller, node, reason },
        FromProxy::Link { node, state: LinkState::Up },
        FromProxy::Close { channel, reason },
        FromProxy::Parcel { node, message: parcel.to_bytes(1) },
    ];
    let of_ports = of_ports.iter().zip(2..).map(|(message, request)| message.to_bytes(request));
    of_ports.chain(of_proxies.iter().zip(90..).map(|(message, request)| message.to_bytes(request))).collect()
}

/// Names that are claimed and sought, and what is none.
fn named() -> Vec<Vec<u8>> {
    let name = |name: &[u8]| EndpointName::new(name).expect("it is one");
    let find = |if_absent| FromPort::Find { name: name(b"name"), if_absent };
    let set = |of: &[u8]| FromPort::SetName { name: name(of) };
    let messages = [find(IfAbsent::Wait), set(b"name"), find(IfAbsent::Fail), set(b"other")];
    let mut packets: Vec<Vec<u8>> =
        messages.iter().zip(95..).map(|(message, request)| message.to_bytes(request)).collect();
    let mut none = set(b"no_name").to_bytes(99);
    none[PACKET_BYTES + 2] = b'/';
    packets.push(none);
    packets
}

pub fn packets() -> Vec<Vec<u8>> {
    [said(), named()].concat()
}

/// Each packet over each kind of connection, and all of them in a row.
pub fn engine() -> Vec<Vec<u8>> {
    let over = |place: u8, message: &[u8]| match message.split_at(PACKET_BYTES) {
        (packet, []) => [&[place][..], packet].concat(),
        (packet, body) => [&[place | WITH_BODY][..], packet, &[body.len() as u8], body].concat(),
    };
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for place in 0..4 {
        inputs.push(said().iter().flat_map(|message| over(place, message)).collect());
        inputs.extend(said().iter().map(|message| over(place, message)));
        inputs.push(named().iter().flat_map(|message| over(place, message)).collect());
        // Sought over one connection, claimed over another.
        inputs.push(named().iter().zip(1..).flat_map(|(message, at)| over((place + at) % 3, message)).collect());
    }
    inputs
}

/// What one honest proxy sends another, from the greeting to open channels, whole and by frame.
pub fn frames() -> Vec<Vec<u8>> {
    let mut pair = Pair::new();
    pair.greet();
    pair.open_channels();
    let mut inputs = vec![pair.heard.clone()];
    let mut rest = pair.heard.as_slice();
    while let Ok(Some(whole)) = wire::frame_bytes(rest) {
        let Some((first, others)) = rest.split_at_checked(whole) else { break };
        inputs.push(first.to_vec());
        rest = others;
    }
    inputs
}

pub fn link() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for progress in 0..4 {
        for frame in frames() {
            let mut input = vec![progress];
            for piece in frame.chunks(0xff * 16) {
                input.push(0xff);
                input.extend(piece);
            }
            inputs.push(input);
        }
    }
    inputs
}

/// A step of the peer that writes a word, by its place in the list of words.
fn writes(place: u8, value: u32) -> Vec<u8> {
    [&[place][..], &value.to_le_bytes()].concat()
}

pub fn messages() -> Vec<Vec<u8>> {
    let (word_at, inline_at, awaits_at, state_at, reply_at) = (0, 10, 9, 84, 82);
    let mut inputs = Vec::new();
    for flags in [word::SEND, word::REQUEST, word::REPLY, word::REQUEST | word::INLINE, word::SEND | word::TIMED, 3] {
        let message = word::next(0, flags);
        let offered = message >> word::FLAG_BITS << word::FLAG_BITS | 1;
        let before =
            [writes(inline_at, 8), writes(state_at, offered), writes(reply_at, offered), writes(awaits_at, message)];
        for call in [150u8, 152, 153, 154] {
            inputs.push(
                [&before.concat()[..], &writes(word_at, message), &[call, 155, 1, 2, 3, 156, 128, 157, 1]].concat(),
            );
        }
    }
    inputs
}

pub fn requests() -> Vec<Vec<u8>> {
    let (tail_at, calls) = (6, [144u8, 144, 145, 0, 146, 147, 144]);
    [1, 2, 4, 5, u32::MAX]
        .iter()
        .map(|tail| [&writes(tail_at, *tail)[..], &calls, &[136, 144, 137, 144]].concat())
        .collect()
}

pub fn completions() -> Vec<Vec<u8>> {
    let (tail_at, submits) = (6, [144u8, 144, 145]);
    [1, 3, 4, u32::MAX]
        .iter()
        .map(|tail| [&submits[..], &writes(tail_at, *tail), &[146, 146, 147, 0, 136, 146]].concat())
        .collect()
}

/// The same with each kind of channel, and every step of the proxy behind something of each kind.
pub fn stand_in() -> Vec<Vec<u8>> {
    let (word_at, state_at, notify_at, tail_at, closed_at) = (0, 84, 86, 6, 5);
    let message = word::next(0, word::REQUEST | word::TIMED);
    let cancel = message >> word::FLAG_BITS << word::FLAG_BITS | abi::layout::state::CANCEL;
    let lies = [
        writes(word_at, message),
        [writes(word_at, message), vec![168], writes(state_at, cancel)].concat(),
        [writes(notify_at, 5), writes(4, 1)].concat(),
        writes(tail_at, 3),
        writes(closed_at, 1),
    ];
    let answer = word::next(0, word::SEND | word::INLINE).to_le_bytes();
    let publish = [&[172][..], &answer, &[1, 2, 3, 4, 5, 6, 7, 8, 9]].concat();
    let every_step = [
        &[160, 161, 162, 1, 164, 165, 0, 0, 0, 0, 166, 0, 0, 0, 0, 167, 168, 170, 171][..],
        &publish,
        &[128, 174, 175, 3],
    ];
    let behind = lies.into_iter().map(|lie| [lie, every_step.concat()].concat());
    let others = [messages(), requests(), completions()].concat();
    let inputs = Vec::from_iter(behind.chain(others));
    (0..4u8).flat_map(|kind| inputs.iter().map(move |input| [&[kind][..], input].concat())).collect()
}
