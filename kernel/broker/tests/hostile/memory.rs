//! Attacks by what lies in a channel: garbage, lies and replays. The same near and far.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::Lane;
use abi::layout::{shared, side, state, word};
use ipc::{IpcError, RingSpec};
use ipc_shm::Mapping;

use crate::attacker::while_it_lasts;
use crate::honest::{FORGED, SERVER};
use crate::raw::{Chance, Channel, Member};

pub const SPEC: RingSpec = RingSpec { entries: 8, arena_bytes: 64 << 10 };

/// A member and its channel, both made again when the other side has had enough of them.
pub struct Foothold<'a> {
    path: &'a Path,
    ring: Option<RingSpec>,
    member: Member,
    channel: Option<Channel>,
    /// How its channels ended.
    ends: Vec<IpcError>,
}

impl<'a> Foothold<'a> {
    pub fn new(path: &'a Path, ring: Option<RingSpec>) -> Foothold<'a> {
        Foothold { path, ring, member: Member::join(path), channel: None, ends: Vec::new() }
    }

    pub fn channel(&mut self) -> &Channel {
        if let Some(end) = self.channel.as_ref().and_then(Channel::closed)
            && let Some(old) = self.channel.take()
        {
            self.ends.push(end);
            self.member.close(&old);
        }
        while self.channel.is_none() {
            match self.member.open(SERVER, self.ring) {
                Some(Ok(channel)) => self.channel = Some(channel),
                // The server's own, to tell us something: nobody here reads that.
                Some(Err(IpcError::EndpointInUse)) => self.member = Member::join(self.path),
                Some(Err(_)) => std::thread::sleep(Duration::from_millis(1)),
                None => self.member = Member::join(self.path),
            }
        }
        self.channel.as_ref().unwrap()
    }

    pub fn ends(&self) -> String {
        show(&self.ends)
    }
}

/// Each way in which channels ended, and how many did.
fn show(ends: &[IpcError]) -> String {
    let ways: BTreeSet<String> = ends.iter().map(|end| format!("{end:?}")).collect();
    format!("{} ended: {ways:?}", ends.len())
}

fn scribble(mapping: &Mapping, places: &[usize], chance: &mut Chance) {
    for _ in 0..=chance.below(6) {
        let at = match chance.below(4) {
            0 => chance.below(mapping.bytes() as u64 / 4) as usize * 4,
            _ => places[chance.below(places.len() as u64) as usize],
        };
        // Nobody goes on with a channel that its owner closed.
        if at != side::CLOSED {
            mapping.store(at, chance.word(), Ordering::Release);
        }
    }
}

pub fn garbage_in_messages(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, None);
    let sides = [
        0,
        4,
        8,
        side::EVENT,
        side::PARKED,
        side::NOTIFIED,
        side::TAKEN,
        side::AWAITS,
        side::INLINE_BYTES,
        side::INLINE,
    ];
    let both = [
        shared::STATE_FROM_LEFT,
        shared::STATE_FROM_RIGHT,
        shared::NOTIFY_FROM_LEFT,
        shared::REPLY_TO_LEFT,
        shared::REPLY_TO_RIGHT,
    ];
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        if chance.below(3) == 0 {
            // A message as it should be, but for a length that is a lie.
            let counter = chance.word() << word::FLAG_BITS;
            channel.own.store(side::INLINE_BYTES, chance.word(), Ordering::Release);
            channel.own.store(side::MESSAGE_WORD, counter | word::REQUEST | word::INLINE, Ordering::Release);
        } else {
            scribble(&channel.own, &sides, &mut chance);
            scribble(&channel.shared, &both, &mut chance);
        }
        channel.wake_peer();
    });
    format!("{count}, {}", foothold.ends())
}

pub fn garbage_in_rings(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, Some(SPEC));
    let heads = [side::RING_TAIL, side::RING_HEAD, side::PARKED, side::EVENT];
    let mut tail = 0u32;
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        for entry in 0..SPEC.entries as usize {
            let mut bytes = [0; 64];
            bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&chance.word().to_le_bytes()));
            if chance.below(2) == 0 {
                // Nearly right: only the range is a lie, or not even that.
                bytes[16..28]
                    .chunks_exact_mut(4)
                    .for_each(|four| four.copy_from_slice(&(chance.word() & 0x1ffff).to_le_bytes()));
                bytes[28..32].fill(0);
            }
            channel.own.copy_in(side::RING + entry * 64, &bytes).unwrap();
        }
        tail = match chance.below(4) {
            0 => chance.word(),
            _ => channel.peer.load(side::RING_HEAD, Ordering::Acquire).wrapping_add(chance.below(3) as u32),
        };
        channel.own.store(side::RING_TAIL, tail, Ordering::Release);
        if chance.below(4) == 0 {
            scribble(&channel.own, &heads, &mut chance);
        }
        scribble(&channel.shared, &[shared::ARENA], &mut chance);
        channel.wake_peer();
    });
    format!("{count}, {}", foothold.ends())
}

pub fn garbage_in_copies(path: &Path, mut chance: Chance) -> String {
    let mut member = Member::join(path);
    let _talk = member.open(SERVER, None).unwrap().unwrap();
    let lane = Lane::copies(member.endpoint, SERVER);
    let mut channel: Option<Channel> = None;
    let mut ends = Vec::new();
    let count = while_it_lasts(|| {
        if let Some(old) = channel.take_if(|it| it.closed().is_some()) {
            ends.extend(old.closed());
            member.close(&old);
        }
        if channel.is_none() {
            channel = member.open_lane(SERVER, lane, Some(ipc::COPY_SPEC)).unwrap().ok();
        }
        let Some(channel) = &channel else { return };
        let mut bytes = [0; 64];
        bytes.chunks_exact_mut(4).for_each(|four| four.copy_from_slice(&chance.word().to_le_bytes()));
        bytes[28..32].fill(0);
        let head = channel.peer.load(side::RING_HEAD, Ordering::Acquire);
        let at = side::RING + (head % ipc::COPY_SPEC.entries) as usize * 64;
        channel.own.copy_in(at, &bytes).unwrap();
        channel.own.store(side::RING_TAIL, head.wrapping_add(1 + chance.below(2) as u32), Ordering::Release);
        channel.wake_peer();
    });
    format!("{count}, {}", show(&ends))
}

pub fn replays(path: &Path, mut chance: Chance) -> String {
    let mut foothold = Foothold::new(path, None);
    let mut words: Vec<u32> = Vec::new();
    let count = while_it_lasts(|| {
        let channel = foothold.channel();
        let last = channel.own.load(side::MESSAGE_WORD, Ordering::Relaxed);
        let flags = [word::REQUEST, word::SEND, word::SEND | word::TIMED, word::REQUEST | word::TIMED];
        let next = match chance.below(4) {
            // One that was used, one that is far ahead, or a reply that nobody awaits.
            0 if !words.is_empty() => words[chance.below(words.len() as u64) as usize],
            1 => word::next(chance.word(), word::REPLY),
            _ => word::next(last, flags[chance.below(4) as usize]),
        };
        if words.len() < 64 {
            words.push(next);
        }
        if next & word::TIMED != 0 {
            let offered = next >> word::FLAG_BITS << word::FLAG_BITS | state::OFFERED;
            channel.shared.store(shared::STATE_FROM_LEFT, offered, Ordering::Release);
            channel.shared.store(shared::REPLY_TO_LEFT, offered, Ordering::Release);
        }
        channel.own.store(side::AWAITS, next, Ordering::Release);
        channel.own.store(side::MESSAGE_KIND, FORGED as u32, Ordering::Relaxed);
        channel.own.store(side::MESSAGE_WORD, next, Ordering::Release);
        channel.wake_peer();
        if next & word::TIMED != 0 {
            // Taken back and offered again while it is being taken.
            for _ in 0..chance.below(50) {
                let wanted = [state::WITHDRAWN, state::OFFERED, state::TAKEN][chance.below(3) as usize];
                let value = next >> word::FLAG_BITS << word::FLAG_BITS | wanted;
                channel.shared.store(shared::STATE_FROM_LEFT, value, Ordering::Release);
            }
        }
    });
    format!("{count}, {}", foothold.ends())
}
