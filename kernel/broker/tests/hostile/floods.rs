//! Attacks by wanting too much, or by never taking what comes.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::layout::side;
use abi::ring::ENTRY_BYTES;
use abi::{EndpointName, IpcError, Lane};
use broker_api::{FromPort, IfAbsent, MESSAGE_BYTES_MAX, Message as _, Open, PACKET_BYTES, Pid, ToPort};
use ipc::{ChannelId, Endpoint, Port, RingSpec, Submission};

use crate::attacker::while_it_lasts;
use crate::honest::SERVER;
use crate::memory::{Foothold, SPEC};
use crate::raw::{Chance, Member, say};

pub fn never_reads(path: &Path) -> String {
    let mut hung_up = 0;
    let mut sent = 0u32;
    let mut member = Member::join(path);
    while_it_lasts(|| {
        let asked = FromPort::GetEndpoint { pid: Pid::new(1).unwrap() }.to_bytes(10 + sent);
        sent += 1;
        match sys::seqpacket::send(&member.socket, &asked, &[] as &[OwnedFd]) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => {
                hung_up += 1;
                member = Member::join(path);
            }
        }
    });
    assert!(hung_up > 0, "the broker keeps answers for ever");
    format!("{sent}, dropped {hung_up} times")
}

/// Asks and never takes what comes: neither the reply nor the completions of its ring.
pub fn never_takes(path: &Path) -> String {
    let (mut talk, mut ring) = (Foothold::new(path, None), Foothold::new(path, Some(SPEC)));
    let mut rounds = 0;
    let count = while_it_lasts(|| {
        let channel = talk.channel();
        channel.request();
        channel.wake_peer();
        let channel = ring.channel();
        rounds += 1;
        // A quick server is never behind by more than fits.
        let asked = if rounds % 16 == 0 { SPEC.entries + 1 } else { 1 };
        let tail = channel.own.load(side::RING_TAIL, Ordering::Relaxed);
        for entry in 0..asked {
            let tag = tail.wrapping_add(entry);
            let request = Submission { tag, ..Submission::default() };
            let at = side::RING + (tag % SPEC.entries) as usize * ENTRY_BYTES;
            channel.own.copy_in(at, &request.to_bytes()).unwrap();
        }
        channel.own.store(side::RING_TAIL, tail.wrapping_add(asked), Ordering::Release);
        channel.wake_peer();
        std::thread::sleep(Duration::from_micros(200));
    });
    format!("{count}, ring {}", ring.ends())
}

pub fn floods_channels(path: &Path) -> String {
    let mut member = Member::join(path);
    let mut kept = Vec::new();
    let (mut opened, mut refused) = (0, 0);
    while_it_lasts(|| match member.open(SERVER, Some(RingSpec { entries: 1024, arena_bytes: 256 << 20 })) {
        Some(Ok(channel)) => {
            opened += 1;
            kept.push(channel);
        }
        Some(Err(_)) => {
            refused += 1;
            kept.drain(..).for_each(|channel| member.close(&channel));
        }
        None => {
            kept.clear();
            member = Member::join(path);
        }
    });
    assert!(refused > 0, "channels without end");
    format!("{opened}, refused {refused}")
}

pub fn floods_connections(path: &Path) -> String {
    let mut members = Vec::new();
    let mut sockets = Vec::new();
    let (mut bound, mut refused) = (0, 0);
    while_it_lasts(|| {
        if members.len() + sockets.len() >= 300 {
            members.clear();
            sockets.clear();
        }
        match Member::try_join(path) {
            Some(member) => {
                bound += 1;
                members.push(member);
            }
            None => refused += 1,
        }
        sockets.extend(sys::seqpacket::connect(path));
    });
    format!("{bound}, refused {refused}")
}

pub fn floods_requests(path: &Path, mut chance: Chance) -> String {
    let mut member = Member::join(path);
    let mut request = 10;
    let count = while_it_lasts(|| {
        request += 1;
        let number = if chance.below(2) == 0 { SERVER.number() } else { chance.word() % 8192 };
        let peer = Endpoint::new(number).unwrap();
        let message = match chance.below(8) {
            0 => FromPort::AwaitBound { peer },
            1 => FromPort::AwaitUnbound { peer },
            2 => {
                let ring = RingSpec { entries: chance.word() % 16, arena_bytes: chance.word() };
                let (lane, if_absent) = (Lane(chance.word() as u16 % 20), IfAbsent::Wait);
                FromPort::Open(Open { peer, lane, ring: Some(ring), if_absent })
            }
            3 => FromPort::Cancel { cancelled: chance.word() % 100 },
            4 => FromPort::GetEndpoint { pid: Pid::new(1 + chance.below(99) as i32).unwrap() },
            5 => {
                FromPort::Close { channel: ChannelId(chance.next()), reason: IpcError::from_code(chance.word() % 100) }
            }
            6 => FromPort::Bind {
                endpoint: Endpoint::new(chance.word() % 8192),
                if_absent: IfAbsent::Wait,
                speaks: versions::PORT.speaks,
            },
            _ => FromPort::WakeUp { endpoint: peer },
        };
        if !say(&member.socket, request, &message) {
            // Full, or hung up: read everything.
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            loop {
                match sys::seqpacket::receive(&member.socket, &mut buffer) {
                    Ok(received) if received.bytes > 0 => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                    _ => break member = Member::join(path),
                }
            }
        }
    });
    format!("{count}")
}

/// Claims and seeks names, and what is none, without end, and takes no answer; every now and then from another
/// endpoint.
pub fn floods_names(path: &Path, mut chance: Chance) -> String {
    let mut members: Vec<Member> = (0..8).map(|_| Member::join(path)).collect();
    let mut request = 10;
    let (mut dropped, mut refused) = (0, 0);
    let count = while_it_lasts(|| {
        request += 1;
        let bytes: Vec<u8> = match chance.below(4) {
            0 => (0..chance.below(80)).map(|_| chance.next() as u8).collect(),
            // Longer than any packet.
            1 if chance.below(16) == 0 => vec![b'x'; 4096],
            _ => format!("name{}", chance.below(64)).into_bytes(),
        };
        let name = EndpointName::new(b"name").unwrap();
        let message = match chance.below(3) {
            0 => FromPort::SetName { name },
            1 => FromPort::Find { name, if_absent: IfAbsent::Fail },
            _ => FromPort::Find { name, if_absent: IfAbsent::Wait },
        };
        let mut message = message.to_bytes(request);
        message.splice(PACKET_BYTES.., bytes);
        let at = chance.below(8) as usize;
        let said = sys::seqpacket::send(&members[at].socket, &message, &[] as &[OwnedFd]);
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        if said.is_ok() && chance.below(8) > 0 {
            if let Ok(received) = sys::seqpacket::receive(&members[at].socket, &mut buffer)
                && let Ok((_, ToPort::Failed { .. })) = ToPort::from_bytes(&buffer[..received.bytes])
            {
                refused += 1;
            }
        } else if said.is_err() || chance.below(64) == 0 {
            dropped += 1;
            members[at] = Member::join(path);
        }
    });
    assert!(refused > 0, "names without end");
    format!("{count}, dropped {dropped}, refused {refused}")
}

pub fn floods_notifications(path: &Path) -> String {
    let mut port = Port::connect(path, None).unwrap();
    let mut mask = 1u64;
    let count = while_it_lasts(|| {
        mask = mask.rotate_left(1);
        port.notify(SERVER, mask).unwrap();
    });
    let member = std::mem::ManuallyDrop::new(port);
    let _ = member.endpoint();
    format!("{count}")
}
