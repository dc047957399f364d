//! A channel as one of its parties holds it: the memory for [`ipc_core::words`], the message line, entries of the ring,
//! and sleeping.
//!
//! Nothing here decides: the steps of the protocol are in `ipc-core`, the calls in `kernel/ipc`. Names follow
//! `docs/design/channel.md`: "own" is this party's side, "peer" the other's.

#![allow(clippy::expect_used, reason = "a side was measured when it was mapped: what the layout names lies inside")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::Message;
use abi::layout::{Role, Size, parked, shared, side};
use abi::limits::INLINE_BYTES_MAX;
use abi::ring::ENTRY_BYTES;
use ipc_core::words::{Fence, Memory, Object};
use ipc_core::{Data, Word, Words};
use sys::futex::{Expected, Woken};

use crate::arena::Arena;
use crate::control::ControlPage;
use crate::mapping::{Access, Mapping};
use crate::objects::PartyFiles;

/// Words a sleeper on one channel waits for in any case.
const OWN_WORDS: usize = 3;
/// Words of other channels that may end a sleep on one.
pub const OTHERS_MAX: usize = sys::futex::WORDS_MAX - OWN_WORDS;
const _: () = assert!(OTHERS_MAX >= abi::limits::WORDS_OF_LANES);

/// Another channel whose news end a sleep on one.
#[derive(Debug)]
pub struct Other<'a> {
    pub half: &'a ChannelHalf,
    /// Its peer's event, as it was seen.
    pub event: u32,
    /// The event of its peer's control page, when the end of the peer is news too.
    pub peer_control: Option<u32>,
}

/// A sleeper looks again after this long at the latest. Every member that talks to an endpoint maps its control page,
/// and the kernel lets whoever maps a word move its sleepers to another word (FUTEX_REQUEUE), where the broker's wake
/// does not find them.
const SLEEP_LIMIT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct ChannelHalf {
    own: Mapping,
    peer: Mapping,
    shared: Arc<Mapping>,
    bell_in: OwnedFd,
    bell_out: OwnedFd,
    /// Held for `bell_in`, which hears it.
    _lifeline: OwnedFd,
    role: Role,
    size: Size,
    peer_control: Arc<ControlPage>,
}

impl ChannelHalf {
    /// Maps what the broker handed over. Sizes are checked against `size`; the objects' descriptors are closed.
    pub fn map(files: PartyFiles, role: Role, size: Size, peer_control: Arc<ControlPage>) -> io::Result<ChannelHalf> {
        Ok(ChannelHalf {
            own: Mapping::of(&files.own, size.side_bytes(), Access::ReadWrite)?,
            peer: Mapping::of(&files.peer, size.side_bytes(), Access::Read)?,
            shared: Arc::new(Mapping::of(&files.shared, size.shared_bytes(), Access::ReadWrite)?),
            bell_in: files.bell_in,
            bell_out: files.bell_out,
            _lifeline: files.lifeline,
            role,
            size,
            peer_control,
        })
    }

    pub fn size(&self) -> Size {
        self.size
    }

    pub fn role(&self) -> Role {
        self.role
    }

    #[inline]
    pub fn peer_control(&self) -> &Arc<ControlPage> {
        &self.peer_control
    }

    pub fn arena(&self) -> Arena {
        Arena::of(self.shared.clone(), shared::ARENA)
    }

    // The message line.

    /// Writes the line and the inline data; nobody sees them before the word is published. `data` is at most
    /// INLINE_BYTES_MAX bytes, and there is some exactly when the word says so.
    #[inline]
    pub fn write_line(&self, word: Word, kind: i32, payload: &[u8; Message::PAYLOAD_BYTES], data: &[u8]) {
        self.own.store(side::MESSAGE_KIND, kind as u32, Ordering::Relaxed);
        for (index, bytes) in payload.chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            self.own.store_u64(side::MESSAGE_PAYLOAD + index * 8, u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        if word.data == Data::Inline {
            self.write_inline(data);
        }
    }

    /// Copies the peer's message and answers its kind: nothing of it is to be believed, not even that it is one message
    /// (`ipc_core::slot`). `None` when there cannot be so much inline data.
    #[inline]
    pub fn copy_line(&self, word: Word, payload: &mut [u8; Message::PAYLOAD_BYTES], data: &mut Vec<u8>) -> Option<i32> {
        self.peer.copy_out(side::MESSAGE_PAYLOAD, payload).expect("the payload lies inside its side");
        let kind = self.peer.load(side::MESSAGE_KIND, Ordering::Relaxed) as i32;
        data.clear();
        (word.data == Data::None || self.read_inline(data)).then_some(kind)
    }

    // The ring.

    /// Writes the entry with this index into the own ring; nobody sees it before `set_own_tail`.
    pub fn write_entry(&self, index: u32, entry: &[u8; ENTRY_BYTES]) {
        if let Some(at) = self.entry_offset(index) {
            self.own.copy_in(at, entry).expect("an entry lies inside its side");
        }
    }

    /// Copies the entry with this index of the peer's ring. The index is below a tail that was loaded with Acquire.
    pub fn read_entry(&self, index: u32) -> [u8; ENTRY_BYTES] {
        Self::entry_of(&self.peer, self.entry_offset(index))
    }

    /// Copies an entry of the own ring: what a resumed proxy forwarded last.
    pub fn read_own_entry(&self, index: u32) -> [u8; ENTRY_BYTES] {
        Self::entry_of(&self.own, self.entry_offset(index))
    }

    // Sleeping.

    /// A short sleep while the peer's event is this. What anybody else says is seen afterwards.
    pub fn nap(&self, event: u32, limit: Duration) -> io::Result<Woken> {
        sys::futex::wait_for_one(self.expect_event(event), limit)
    }

    /// Sleeps until the peer's event, the peer's control page or `own_control` differs from what was seen, or for no
    /// reason.
    pub fn sleep(&self, seen: Seen, own_control: &ControlPage, limit: Option<Duration>) -> io::Result<Woken> {
        sys::futex::wait(&self.words(seen, own_control), bounded(limit))
    }

    /// `sleep` that also ends with news of one of `others`: at most [`OTHERS_MAX`] words.
    pub fn sleep_among<'a>(
        &self,
        seen: Seen,
        own_control: &ControlPage,
        others: impl Iterator<Item = Other<'a>>,
        limit: Option<Duration>,
    ) -> io::Result<Woken> {
        let mut others = others.peekable();
        if others.peek().is_none() {
            return self.sleep(seen, own_control, limit);
        }
        let mut words = [self.expect_event(seen.event); sys::futex::WORDS_MAX];
        let (first, rest) = words.split_at_mut(OWN_WORDS);
        first.copy_from_slice(&self.words(seen, own_control));
        let expected = others.flat_map(|other| {
            let control = other.peer_control.map(|value| other.half.peer_control.expect(value));
            [Some(other.half.expect_event(other.event)), control].into_iter().flatten()
        });
        let mut count = OWN_WORDS;
        for (place, word) in rest.iter_mut().zip(expected) {
            *place = word;
            count += 1;
        }
        sys::futex::wait(words.get(..count).unwrap_or(&words), bounded(limit))
    }

    fn words(&self, seen: Seen, own_control: &ControlPage) -> [Expected; OWN_WORDS] {
        let peer = self.peer_control.expect(seen.peer_control);
        [self.expect_event(seen.event), peer, own_control.expect(seen.own_control)]
    }

    fn expect_event(&self, value: u32) -> Expected {
        Expected { word: self.peer.address_u32(side::EVENT), value }
    }

    /// The values to sleep on; taken before the last look.
    pub fn seen(&self, own_control: &ControlPage) -> Seen {
        Seen { event: self.peer_event(), peer_control: self.peer_control.event(), own_control: own_control.event() }
    }

    /// Rung by the peer and, when the peer dies, by the broker.
    pub fn bell_in(&self) -> BorrowedFd<'_> {
        self.bell_in.as_fd()
    }

    #[inline]
    fn object(&self, object: Object) -> &Mapping {
        match object {
            Object::Own => &self.own,
            Object::Peer => &self.peer,
            Object::Shared => &self.shared,
        }
    }

    fn write_inline(&self, data: &[u8]) {
        let data = data.get(..INLINE_BYTES_MAX).unwrap_or(data);
        self.own.store(side::INLINE_BYTES, data.len() as u32, Ordering::Relaxed);
        self.own.copy_in(side::INLINE, data).expect("the inline area holds INLINE_BYTES_MAX");
    }

    fn read_inline(&self, data: &mut Vec<u8>) -> bool {
        let bytes = self.peer.load(side::INLINE_BYTES, Ordering::Relaxed) as usize;
        if !(1..=INLINE_BYTES_MAX).contains(&bytes) {
            return false;
        }
        data.resize(bytes, 0);
        self.peer.copy_out(side::INLINE, data).is_some()
    }

    /// `None` on a channel without a ring.
    #[inline]
    fn entry_offset(&self, index: u32) -> Option<usize> {
        let mask = self.size.entries.checked_sub(1)?;
        Some(side::RING + (index & mask) as usize * ENTRY_BYTES)
    }

    fn entry_of(side: &Mapping, at: Option<usize>) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        if let Some(at) = at {
            side.copy_out(at, &mut entry).expect("an entry lies inside its side");
        }
        entry
    }
}

impl Memory for ChannelHalf {
    #[inline]
    fn role(&self) -> Role {
        self.role
    }

    #[inline]
    fn load(&self, object: Object, at: usize, order: Ordering) -> u32 {
        self.object(object).load(at, order)
    }

    #[inline]
    fn store(&self, object: Object, at: usize, value: u32, order: Ordering) {
        self.object(object).store(at, value, order);
    }

    #[inline]
    fn increment(&self, at: usize, order: Ordering) {
        self.own.fetch_add(at, 1, order);
    }

    #[inline]
    fn exchange(&self, at: usize, current: u32, new: u32) -> Result<(), u32> {
        self.shared.compare_exchange(at, current, new)
    }

    #[inline]
    fn load_u64(&self, object: Object, at: usize, order: Ordering) -> u64 {
        self.object(object).load_u64(at, order)
    }

    #[inline]
    fn store_u64(&self, object: Object, at: usize, value: u64, order: Ordering) {
        self.object(object).store_u64(at, value, order);
    }

    #[inline]
    fn or_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.shared.fetch_or_u64(at, bits, order)
    }

    #[inline]
    fn and_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.shared.fetch_and_u64(at, bits, order)
    }

    #[inline]
    fn swap_u64(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.shared.swap_u64(at, value, order)
    }

    #[inline]
    fn fence(&self, fence: Fence) {
        std::sync::atomic::fence(fence.order());
    }

    fn wake_peer(&self, how: u32) {
        match how {
            parked::EVENTFD => sys::eventfd::signal(&self.bell_out),
            _ => sys::futex::wake_all(self.own.address_u32(side::EVENT)),
        }
    }
}

fn bounded(limit: Option<Duration>) -> Option<Duration> {
    Some(limit.map_or(SLEEP_LIMIT, |limit| limit.min(SLEEP_LIMIT)))
}

/// What a sleeper saw before its last look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub event: u32,
    pub peer_control: u32,
    pub own_control: u32,
}
