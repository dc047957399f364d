//! A channel whose peer writes what the input says, between the calls of the library.
//!
//! An input is a list of steps: one byte that says what, then its arguments. Calls never wait, so an input takes as
//! long as it has steps.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use abi::layout::{shared, side};
use ipc::{Arena, Completion, Direction, Event, Message, RingClient, RingServer, RingSpec, Source, Submission, Wait};
use ipc_shm::Mapping;

use crate::bytes::Bytes;
use crate::member::{Channel, World};

pub const SPEC: RingSpec = RingSpec { entries: 4, arena_bytes: 4096 };
const STEPS_MAX: usize = 256;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// The words that mean something; the input may also write anywhere.
const SIDE_WORDS: [usize; 12] = [
    side::MESSAGE_WORD,
    side::MESSAGE_KIND,
    side::EVENT,
    side::PARKED,
    side::NOTIFIED,
    side::CLOSED,
    side::RING_TAIL,
    side::RING_HEAD,
    side::TAKEN,
    side::AWAITS,
    side::INLINE_BYTES,
    side::RING,
];
const SHARED_WORDS: [usize; 6] = [
    shared::STATE_FROM_LEFT,
    shared::STATE_FROM_RIGHT,
    shared::NOTIFY_FROM_LEFT,
    shared::NOTIFY_FROM_RIGHT,
    shared::REPLY_TO_LEFT,
    shared::REPLY_TO_RIGHT,
];

/// The peer's steps. `false`: the step is the library's.
fn write_as_peer(step: u8, bytes: &mut Bytes<'_>, channel: &Channel) -> bool {
    match step {
        0..=79 => put(&channel.own, SIDE_WORDS[step as usize % SIDE_WORDS.len()], bytes.u32()),
        80..=119 => put(&channel.shared, SHARED_WORDS[step as usize % SHARED_WORDS.len()], bytes.u32()),
        120..=127 => {
            let at = bytes.u32() as usize % channel.own.bytes();
            let data = bytes.take(64);
            let _ = channel.own.copy_in(at.min(channel.own.bytes() - data.len()), data);
        }
        // As an honest peer would: it takes what lies there.
        128..=135 => put(&channel.own, side::TAKEN, channel.peer.load(side::MESSAGE_WORD, Ordering::Acquire)),
        136..=143 => {
            let tail = channel.peer.load(side::RING_HEAD, Ordering::Acquire).wrapping_add(u32::from(step & 3));
            put(&channel.own, side::RING_TAIL, tail);
        }
        _ => return false,
    }
    true
}

/// A channel of messages has no ring.
fn put(mapping: &Mapping, at: usize, value: u32) {
    if at < mapping.bytes() {
        mapping.store(at, value, Ordering::Release);
    }
}

pub fn run(data: &[u8], mut step_of: impl FnMut(u8, &mut Bytes<'_>), channel: &Channel) {
    let mut bytes = Bytes(data);
    for _ in 0..STEPS_MAX {
        if bytes.is_over() {
            return;
        }
        let step = bytes.u8();
        if !write_as_peer(step, &mut bytes, channel) {
            step_of(step, &mut bytes);
        }
    }
}

/// Messages, notifications and copies between the server and a peer that writes anything.
pub fn messages(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let channel = world.open(None);
        let peer = channel.offer.own;
        let server = &mut world.server;
        let memory = Arena::private(4096).unwrap();
        let call = |step: u8, bytes: &mut Bytes<'_>| match step % 10 {
            0 | 1 => drop(server.wait_event(Wait::NoWait)),
            2 => drop(server.receive(Source::From(peer), Wait::NoWait)),
            3 => drop(server.receive(Source::Any, Wait::NoWait)),
            4 => drop(server.rcvrqst(Wait::NoWait)),
            5 => drop(server.reply_inline(peer, &Message::new(1), bytes.take(9))),
            6 => drop(server.send_inline(peer, &Message::new(2), bytes.take(9), Wait::NoWait)),
            7 => drop(server.notify(peer, u64::from(bytes.u8()))),
            8 => {
                if let Ok(grant) = server.grant(peer, &memory, Direction::ReadWrite) {
                    let _ = server.revoke(grant);
                }
            }
            _ => assert!(server.inline().len() <= abi::limits::INLINE_BYTES_MAX),
        };
        run(data, call, &channel);
        world.close(channel);
        settle(world);
    });
}

/// Requests of a client that writes anything into its ring, at an honest server.
pub fn requests(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let channel = world.open(Some(SPEC));
        let mut ring: Option<RingServer> = None;
        while ring.is_none() {
            if let Ok(Event::RingOpened(opened)) =
                world.server.wait_event(Wait::For(std::time::Duration::from_secs(10)))
            {
                ring = Some(opened);
            }
        }
        let ring = ring.expect("was opened");
        let mut taken: Vec<Submission> = Vec::new();
        let server = &mut world.server;
        let call = |step: u8, bytes: &mut Bytes<'_>| match step % 4 {
            0 => {
                if let Ok(Some(request)) = ring.next() {
                    let data = ring.arena().to_vec(request.arena_offset as usize, request.out_bytes as usize);
                    assert_eq!(data.expect("was checked").len(), request.out_bytes as usize);
                    taken.push(request);
                    assert!(taken.len() <= SPEC.entries as usize, "more in flight than the ring holds");
                }
            }
            1 => {
                if let Some(request) = taken.pop() {
                    let tag = request.tag ^ u32::from(bytes.u8() & 1);
                    let _ = ring.complete(&Completion { tag, ..Completion::default() });
                }
            }
            2 => ring.publish(),
            _ => drop(server.wait_event(Wait::NoWait)),
        };
        run(data, call, &channel);
        world.close(channel);
        settle(world);
    });
}

/// Completions of a server that writes anything into its ring, at an honest client.
pub fn completions(data: &[u8]) {
    WORLD.with_borrow_mut(|world| {
        let (channel, ring) = world.accept_ring(SPEC);
        let mut polled = 0u32;
        let mut submitted = 0u32;
        let call = |step: u8, bytes: &mut Bytes<'_>| match step % 4 {
            0 | 1 => {
                let request = Submission { tag: submitted, in_capacity: 64, ..Submission::default() };
                submitted += u32::from(ring.submit(&request).is_ok());
                ring.publish();
            }
            2 => polled += u32::from(take(&ring)),
            _ => {
                let _ = (ring.is_closed(), ring.in_flight(), bytes.u8());
            }
        };
        run(data, call, &channel);
        assert!(polled <= submitted, "more answers than requests");
        drop(ring);
        world.close(channel);
        settle(world);
    });
}

fn take(ring: &RingClient) -> bool {
    match ring.poll() {
        Ok(Some(answer)) => {
            assert!(answer.in_bytes <= SPEC.arena_bytes);
            true
        }
        _ => false,
    }
}

/// Until the server knows that the channel has ended: the next input begins with none.
fn settle(world: &mut World) {
    for _ in 0..64 {
        if matches!(world.server.wait_event(Wait::NoWait), Err(ipc::IpcError::TimedOut)) {
            break;
        }
    }
    assert!(world.broker.snapshot().is_ok(), "the broker lives");
}
