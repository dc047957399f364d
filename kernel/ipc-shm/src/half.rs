//! A channel as one of its parties holds it: every word of the layout by name, and the protocol of sleeping and waking.
//!
//! Nothing here decides; what the words mean for a call is in `kernel/ipc`. Names follow `docs/design/channel.md`:
//! "own" is this party's side, "peer" the other's. A loaded value is whatever the peer left there.

#![allow(clippy::expect_used, reason = "a side was measured when it was mapped: what the layout names lies inside")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use abi::Message;
use abi::layout::{Role, Size, parked, shared, side};
use abi::limits::INLINE_BYTES_MAX;
use abi::ring::ENTRY_BYTES;
use ipc_core::posting::Posting;
use ipc_core::slot::{self, Slot};
use ipc_core::wake::{self, Words};
use ipc_core::{Data, Word};
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

/// How a party sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Not at all: it looks by itself.
    Awake,
    Futex,
    EventFd,
}

/// Whose direction a state word belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Messages of this party.
    Own,
    /// Messages of the peer.
    Peer,
}

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

    #[inline]
    pub fn peer_word(&self) -> u32 {
        self.peer.load(side::MESSAGE_WORD, Ordering::Acquire)
    }

    #[inline]
    pub fn own_word(&self) -> u32 {
        self.own.load(side::MESSAGE_WORD, Ordering::Relaxed)
    }

    /// Writes the line and the inline data, then publishes with Release. `data` is at most INLINE_BYTES_MAX bytes, and
    /// there is some exactly when the word says so.
    #[inline]
    pub fn publish_message(&self, word: Word, kind: i32, payload: &[u8; Message::PAYLOAD_BYTES], data: &[u8]) {
        self.own.store(side::MESSAGE_KIND, kind as u32, Ordering::Relaxed);
        for (index, bytes) in payload.chunks_exact(8).enumerate() {
            let mut eight = [0; 8];
            eight.copy_from_slice(bytes);
            self.own.store_u64(side::MESSAGE_PAYLOAD + index * 8, u64::from_le_bytes(eight), Ordering::Relaxed);
        }
        if word.data == Data::Inline {
            self.write_inline(data);
        }
        self.own.store(side::MESSAGE_WORD, word.raw(), Ordering::Release);
    }

    /// Before the next message is published although the last was not taken, but taken back: its receiver may be
    /// copying it.
    #[cold]
    pub fn begin_anew(&self) {
        slot::begin_anew(self);
    }

    /// Copies the peer's message and answers its kind: nothing of it is to be believed. `None` when the inline data
    /// cannot be, or when the message is not, or no more, the one with this word.
    #[inline]
    pub fn copy_message(
        &self,
        word: Word,
        payload: &mut [u8; Message::PAYLOAD_BYTES],
        data: &mut Vec<u8>,
    ) -> Option<i32> {
        slot::copy_whole(self, word.raw(), || {
            let kind = self.copy_line(payload);
            self.copy_inline(word.data, data).then_some(kind)
        })?
    }

    #[inline]
    fn copy_line(&self, payload: &mut [u8; Message::PAYLOAD_BYTES]) -> i32 {
        self.peer.copy_out(side::MESSAGE_PAYLOAD, payload).expect("the payload lies inside its side");
        self.peer.load(side::MESSAGE_KIND, Ordering::Relaxed) as i32
    }

    /// Copies the inline data that belongs to the peer's message; `false` when there cannot be so much.
    #[inline]
    fn copy_inline(&self, kind: Data, data: &mut Vec<u8>) -> bool {
        data.clear();
        kind == Data::None || self.read_inline(data)
    }

    #[inline]
    pub fn own_taken(&self) -> u32 {
        self.own.load(side::TAKEN, Ordering::Relaxed)
    }

    #[inline]
    pub fn set_own_taken(&self, word: u32) {
        self.own.store(side::TAKEN, word, Ordering::Release);
    }

    #[inline]
    pub fn peer_taken(&self) -> u32 {
        self.peer.load(side::TAKEN, Ordering::Acquire)
    }

    #[inline]
    pub fn own_awaits(&self) -> u32 {
        self.own.load(side::AWAITS, Ordering::Relaxed)
    }

    #[inline]
    pub fn set_own_awaits(&self, word: u32) {
        self.own.store(side::AWAITS, word, Ordering::Release);
    }

    #[inline]
    pub fn peer_awaits(&self) -> u32 {
        self.peer.load(side::AWAITS, Ordering::Acquire)
    }

    /// The code of the reason for which the peer closed the channel; 0 while it is open.
    #[inline]
    pub fn peer_closed(&self) -> u32 {
        self.peer.load(side::CLOSED, Ordering::Acquire)
    }

    #[inline]
    pub fn own_closed(&self) -> u32 {
        self.own.load(side::CLOSED, Ordering::Relaxed)
    }

    pub fn set_own_closed(&self, code: u32) {
        self.own.store(side::CLOSED, code, Ordering::Release);
    }

    /// Says in memory why this party closes the channel, and wakes the peer.
    pub fn close(&self, code: u32) {
        self.set_own_closed(code);
        self.kick();
    }

    // State words, writable by both.

    #[inline]
    pub fn state(&self, direction: Direction) -> u32 {
        self.shared.load(self.state_offset(direction), Ordering::Acquire)
    }

    #[inline]
    pub fn set_state(&self, direction: Direction, value: u32) {
        self.shared.store(self.state_offset(direction), value, Ordering::Release);
    }

    #[inline]
    pub fn exchange_state(&self, direction: Direction, current: u32, new: u32) -> Result<(), u32> {
        self.shared.compare_exchange(self.state_offset(direction), current, new)
    }

    /// The reply word of this party as a caller (`Own`), or of the peer as a caller (`Peer`).
    #[inline]
    pub fn reply_state(&self, caller: Direction) -> u32 {
        self.shared.load(self.reply_offset(caller), Ordering::Acquire)
    }

    #[inline]
    pub fn set_reply_state(&self, caller: Direction, value: u32) {
        self.shared.store(self.reply_offset(caller), value, Ordering::Release);
    }

    #[inline]
    pub fn exchange_reply_state(&self, caller: Direction, current: u32, new: u32) -> Result<(), u32> {
        self.shared.compare_exchange(self.reply_offset(caller), current, new)
    }

    // Notifications.

    /// Sets bits for the peer. Needs [`ChannelHalf::kick`].
    pub fn post_notification(&self, mask: u64) {
        // Acquire, for the look whether the channel was closed: see `ipc_core::posting`.
        self.shared.fetch_or_u64(self.notify_offset(Direction::Own), mask, Ordering::AcqRel);
        let posted = self.own.load(side::NOTIFIED, Ordering::Relaxed).wrapping_add(1);
        self.own.store(side::NOTIFIED, posted, Ordering::Release);
    }

    /// Changes whenever the peer posted.
    #[inline]
    pub fn peer_notified(&self) -> u32 {
        self.peer.load(side::NOTIFIED, Ordering::Acquire)
    }

    pub fn take_notifications(&self) -> u64 {
        self.shared.swap_u64(self.notify_offset(Direction::Peer), 0, Ordering::AcqRel)
    }

    /// Puts bits where the peer puts those it posts.
    pub fn post_for_peer(&self, mask: u64) {
        self.shared.fetch_or_u64(self.notify_offset(Direction::Peer), mask, Ordering::Release);
    }

    // Notifications that a proxy carries. Its own side keeps what it has under way, so that one that is killed loses
    // none.

    /// The number and the bits under way from the peer, when there are any.
    pub fn carried_notification(&self) -> Option<(u64, u64)> {
        let bits = self.own.load_u64(side::CARRIED_BITS, Ordering::Relaxed);
        (bits != 0).then(|| (self.own.load_u64(side::CARRIED_NUMBER, Ordering::Relaxed), bits))
    }

    /// Takes the peer's bits under way, with the next number. Kept first, cleared then: killed in between, they come
    /// twice.
    pub fn carry_notification(&self) -> Option<(u64, u64)> {
        let at = self.notify_offset(Direction::Peer);
        let bits = self.shared.load_u64(at, Ordering::Acquire);
        if bits == 0 {
            return None;
        }
        let number = self.own.load_u64(side::CARRIED_NUMBER, Ordering::Relaxed) + 1;
        self.own.store_u64(side::CARRIED_NUMBER, number, Ordering::Relaxed);
        self.own.store_u64(side::CARRIED_BITS, bits, Ordering::Release);
        self.shared.fetch_and_u64(at, !bits, Ordering::AcqRel);
        Some((number, bits))
    }

    /// The bits under way have arrived.
    pub fn end_carrying(&self) {
        self.own.store_u64(side::CARRIED_BITS, 0, Ordering::Release);
    }

    /// The number of the last notification of the far side that was posted here.
    pub fn posted_number(&self) -> u64 {
        self.own.load_u64(side::POSTED_NUMBER, Ordering::Relaxed)
    }

    /// A proxy's: the far side has the channel.
    pub fn set_open(&self) {
        self.own.store(side::OPENED, 1, Ordering::Release);
    }

    pub fn was_open(&self) -> bool {
        self.own.load(side::OPENED, Ordering::Acquire) != 0
    }

    pub fn set_posted_number(&self, number: u64) {
        self.own.store_u64(side::POSTED_NUMBER, number, Ordering::Release);
    }

    // The ring.

    #[inline]
    pub fn own_tail(&self) -> u32 {
        self.own.load(side::RING_TAIL, Ordering::Relaxed)
    }

    #[inline]
    pub fn set_own_tail(&self, tail: u32) {
        self.own.store(side::RING_TAIL, tail, Ordering::Release);
    }

    #[inline]
    pub fn peer_tail(&self) -> u32 {
        self.peer.load(side::RING_TAIL, Ordering::Acquire)
    }

    #[inline]
    pub fn own_head(&self) -> u32 {
        self.own.load(side::RING_HEAD, Ordering::Relaxed)
    }

    #[inline]
    pub fn set_own_head(&self, head: u32) {
        self.own.store(side::RING_HEAD, head, Ordering::Release);
    }

    #[inline]
    pub fn peer_head(&self) -> u32 {
        self.peer.load(side::RING_HEAD, Ordering::Acquire)
    }

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

    // Sleeping and waking.

    /// Wakes the peer if it sleeps. After every publication.
    #[inline]
    pub fn kick(&self) {
        wake::kick(self);
    }

    /// Whether the peer sleeps or polls in a wait, as far as one can see.
    #[inline]
    pub fn is_peer_parked(&self) -> bool {
        self.peer.load(side::PARKED, Ordering::Relaxed) != parked::AWAKE
    }

    #[inline]
    pub fn peer_event(&self) -> u32 {
        self.peer.load(side::EVENT, Ordering::Acquire)
    }

    /// Says how this party is about to sleep. Look at everything once more before sleeping.
    #[inline]
    pub fn prepare_sleep(&self, sleep: Sleep) {
        let word = match sleep {
            Sleep::Awake => parked::AWAKE,
            Sleep::Futex => parked::FUTEX,
            Sleep::EventFd => parked::EVENTFD,
        };
        wake::prepare_sleep(self, word);
    }

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

    #[inline]
    fn state_offset(&self, direction: Direction) -> usize {
        match (self.role, direction) {
            (Role::Left, Direction::Own) | (Role::Right, Direction::Peer) => shared::STATE_FROM_LEFT,
            (Role::Right, Direction::Own) | (Role::Left, Direction::Peer) => shared::STATE_FROM_RIGHT,
        }
    }

    #[inline]
    fn reply_offset(&self, caller: Direction) -> usize {
        match (self.role, caller) {
            (Role::Left, Direction::Own) | (Role::Right, Direction::Peer) => shared::REPLY_TO_LEFT,
            (Role::Right, Direction::Own) | (Role::Left, Direction::Peer) => shared::REPLY_TO_RIGHT,
        }
    }

    #[inline]
    fn notify_offset(&self, direction: Direction) -> usize {
        match (self.role, direction) {
            (Role::Left, Direction::Own) | (Role::Right, Direction::Peer) => shared::NOTIFY_FROM_LEFT,
            (Role::Right, Direction::Own) | (Role::Left, Direction::Peer) => shared::NOTIFY_FROM_RIGHT,
        }
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

impl Slot for ChannelHalf {
    fn clear_word(&self) {
        self.own.store(side::MESSAGE_WORD, 0, Ordering::Relaxed);
    }

    fn release_fence(&self) {
        fence(Ordering::Release);
    }

    #[inline]
    fn load_word(&self) -> u32 {
        self.peer_word()
    }

    #[inline]
    fn acquire_fence(&self) {
        fence(Ordering::Acquire);
    }
}

impl Posting for ChannelHalf {
    fn post(&self, bits: u64) {
        self.post_notification(bits);
    }

    fn wake(&self) {
        self.kick();
    }

    /// Not to be called in a channel that goes on.
    fn recall(&self, bits: u64) -> u64 {
        self.shared.fetch_and_u64(self.notify_offset(Direction::Own), !bits, Ordering::AcqRel) & bits
    }

    fn take(&self) -> u64 {
        self.take_notifications()
    }
}

fn bounded(limit: Option<Duration>) -> Option<Duration> {
    Some(limit.map_or(SLEEP_LIMIT, |limit| limit.min(SLEEP_LIMIT)))
}

impl Words for ChannelHalf {
    #[inline]
    fn peer_parked(&self) -> u32 {
        self.peer.load(side::PARKED, Ordering::Relaxed)
    }

    #[inline]
    fn set_own_parked(&self, how: u32) {
        // The peer reads this line at every message: writing what stands there would take it away.
        if self.own.load(side::PARKED, Ordering::Relaxed) != how {
            self.own.store(side::PARKED, how, Ordering::Relaxed);
        }
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn bump_event(&self) {
        self.own.fetch_add(side::EVENT, 1, Ordering::Release);
    }

    fn wake_peer(&self, how: u32) {
        match how {
            parked::EVENTFD => sys::eventfd::signal(&self.bell_out),
            _ => sys::futex::wake_all(self.own.address_u32(side::EVENT)),
        }
    }
}

/// What a sleeper saw before its last look.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub event: u32,
    pub peer_control: u32,
    pub own_control: u32,
}
