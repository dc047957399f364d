//! What each target begins with: what honest parties really say, and for channels short lists of steps that reach every branch.

use abi::layout::word;
use ipc::ChannelId;
use ipc::protocol::{Op, Packet, Patience};
use ipc_shm::Size;

use crate::engine::WITH_BODY;
use crate::link::Pair;
use crate::member::SERVER;

fn said() -> Vec<Packet> {
    let ring = Size { entries: 8, arena_bytes: 4096 };
    let ops = [
        Op::Bind,
        Op::Open,
        Op::AwaitBound,
        Op::AwaitUnbound,
        Op::GetEndpoint,
        Op::WakeUp,
        Op::Cancel,
        Op::Close,
        Op::Inform,
        Op::SetName,
        Op::Find,
    ];
    let proxys = [Op::OpenIn, Op::RemoteGone, Op::Link, Op::Unbind];
    let plain = ops.into_iter().chain(proxys);
    let mut packets: Vec<Packet> = plain
        .zip(2..)
        .map(|(op, request)| Packet { request, peer: Some(SERVER), value: 1, ..Packet::new(op) })
        .collect();
    packets.push(Packet {
        request: 90,
        peer: Some(SERVER),
        size: ring,
        patience: Patience::UntilBound,
        ..Packet::new(Op::Open)
    });
    packets.push(Packet { request: 91, channel: ChannelId(1), far: 7, own: Some(SERVER), ..Packet::new(Op::OpenIn) });
    packets
}

/// Requests with a name behind them: names that are claimed and sought, and what is none.
fn named() -> Vec<(Packet, &'static [u8])> {
    let request = |op, request, patience| Packet { request, patience, ..Packet::new(op) };
    vec![
        (request(Op::Find, 95, Patience::UntilBound), b"name"),
        (request(Op::SetName, 96, Patience::AtOnce), b"name"),
        (request(Op::Find, 97, Patience::AtOnce), b"name"),
        (request(Op::SetName, 98, Patience::AtOnce), b"other"),
        (request(Op::SetName, 99, Patience::AtOnce), b"no/name"),
    ]
}

pub fn packets() -> Vec<Vec<u8>> {
    said().iter().map(|packet| packet.to_bytes().to_vec()).collect()
}

/// Each packet over each kind of connection, and all of them in a row.
pub fn engine() -> Vec<Vec<u8>> {
    let behind = |place: u8, packet: &Packet| [&[place][..], &packet.to_bytes()].concat();
    let with_body = |place: u8, packet: &Packet, body: &[u8]| {
        [&[place | WITH_BODY][..], &packet.to_bytes(), &[body.len() as u8], body].concat()
    };
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for place in 0..4 {
        inputs.push(said().iter().flat_map(|packet| behind(place, packet)).collect());
        inputs.extend(said().iter().map(|packet| behind(place, packet)));
        inputs.push(named().iter().flat_map(|(packet, name)| with_body(place, packet, name)).collect());
        // Sought over one connection, claimed over another.
        inputs
            .push(named().iter().zip(1..).flat_map(|((it, name), at)| with_body((place + at) % 3, it, name)).collect());
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
