//! The words of one channel, as one of its parties reads and writes them: each access with its order, which stands here
//! and nowhere else. What the words mean, and who writes which, is in `docs/design/channel.md`.
//!
//! "Own" is this party's side, "peer" the other's. An own word is stored with Release, the peer loads it with Acquire,
//! and only its owner writes it, and reads it back with Relaxed. A loaded value is whatever the peer left there.
//!
//! The memory is whatever implements [`Memory`]: that of a channel (`kernel/ipc-shm`), or the one that loom watches
//! (`tests/channel_model.rs`).

use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

use abi::layout::{Role, parked, shared, side};

use crate::wake::{self, Sleep};

/// One of the three objects of a channel, as a party sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    Own,
    Peer,
    /// Both write it.
    Shared,
}

/// Whose direction a word of the shared object belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Messages of this party.
    Own,
    /// Messages of the peer.
    Peer,
}

/// The fences of the protocol. Each has a model that fails without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fence {
    /// Between a publication and the look whether the peer sleeps, see [`crate::wake`].
    Publisher,
    /// Between "I sleep" and the last look.
    Sleeper,
    /// Before a slot is written that may be being copied, see [`crate::slot`].
    Anew,
    /// After a copy.
    Copied,
}

impl Fence {
    #[inline]
    pub const fn order(self) -> Ordering {
        match self {
            Fence::Publisher | Fence::Sleeper => SeqCst,
            Fence::Anew => Release,
            Fence::Copied => Acquire,
        }
    }
}

/// The memory of one channel, as one of its parties reaches it. `at` is an offset of [`abi::layout`].
pub trait Memory {
    fn role(&self) -> Role;
    fn load(&self, object: Object, at: usize, order: Ordering) -> u32;
    fn store(&self, object: Object, at: usize, value: u32, order: Ordering);
    /// Adds one to a word of the own side.
    fn increment(&self, at: usize, order: Ordering);
    /// Replaces `current` by `new` in the shared object, with Acquire and Release; the value found otherwise.
    fn exchange(&self, at: usize, current: u32, new: u32) -> Result<(), u32>;
    fn load_u64(&self, object: Object, at: usize, order: Ordering) -> u64;
    fn store_u64(&self, object: Object, at: usize, value: u64, order: Ordering);
    /// Each of these in one step, in the shared object; what was there before.
    fn or_u64(&self, at: usize, bits: u64, order: Ordering) -> u64;
    fn and_u64(&self, at: usize, bits: u64, order: Ordering) -> u64;
    fn swap_u64(&self, at: usize, value: u64, order: Ordering) -> u64;
    fn fence(&self, fence: Fence);
    /// Wakes a peer that sleeps in the way it said: one of [`parked`].
    fn wake_peer(&self, how: u32);
}

impl<M: Memory> Words for M {}

/// Every word by its name.
pub trait Words: Memory + Sized {
    // The message line.

    #[inline]
    fn peer_word(&self) -> u32 {
        self.load(Object::Peer, side::MESSAGE_WORD, Acquire)
    }

    #[inline]
    fn own_word(&self) -> u32 {
        self.load(Object::Own, side::MESSAGE_WORD, Relaxed)
    }

    /// What the line and the inline data hold is published with it.
    #[inline]
    fn publish_word(&self, word: u32) {
        self.store(Object::Own, side::MESSAGE_WORD, word, Release);
    }

    /// Nothing lies in the own slot; see [`crate::slot`].
    fn clear_word(&self) {
        self.store(Object::Own, side::MESSAGE_WORD, 0, Relaxed);
    }

    #[inline]
    fn own_taken(&self) -> u32 {
        self.load(Object::Own, side::TAKEN, Relaxed)
    }

    #[inline]
    fn set_own_taken(&self, word: u32) {
        self.store(Object::Own, side::TAKEN, word, Release);
    }

    #[inline]
    fn peer_taken(&self) -> u32 {
        self.load(Object::Peer, side::TAKEN, Acquire)
    }

    #[inline]
    fn set_own_awaits(&self, word: u32) {
        self.store(Object::Own, side::AWAITS, word, Release);
    }

    #[inline]
    fn peer_awaits(&self) -> u32 {
        self.load(Object::Peer, side::AWAITS, Acquire)
    }

    /// The code of the reason for which the peer closed the channel; 0 while it is open.
    #[inline]
    fn peer_closed(&self) -> u32 {
        self.load(Object::Peer, side::CLOSED, Acquire)
    }

    #[inline]
    fn own_closed(&self) -> u32 {
        self.load(Object::Own, side::CLOSED, Relaxed)
    }

    fn set_own_closed(&self, code: u32) {
        self.store(Object::Own, side::CLOSED, code, Release);
    }

    /// Says in memory why this party closes the channel, and wakes the peer.
    fn close(&self, code: u32) {
        self.set_own_closed(code);
        self.kick();
    }

    // State words, writable by both.

    #[inline]
    fn state(&self, direction: Direction) -> u32 {
        self.load(Object::Shared, self.state_at(direction), Acquire)
    }

    #[inline]
    fn set_state(&self, direction: Direction, value: u32) {
        self.store(Object::Shared, self.state_at(direction), value, Release);
    }

    #[inline]
    fn exchange_state(&self, direction: Direction, current: u32, new: u32) -> Result<(), u32> {
        self.exchange(self.state_at(direction), current, new)
    }

    /// The reply word of this party as a caller (`Own`), or of the peer as a caller (`Peer`).
    #[inline]
    fn set_reply_state(&self, caller: Direction, value: u32) {
        self.store(Object::Shared, self.reply_at(caller), value, Release);
    }

    #[inline]
    fn exchange_reply_state(&self, caller: Direction, current: u32, new: u32) -> Result<(), u32> {
        self.exchange(self.reply_at(caller), current, new)
    }

    // Notifications.

    /// Sets bits for the peer. Needs [`Words::kick`].
    fn post_notification(&self, mask: u64) {
        // Acquire, for the look whether the channel was closed: see `posting`.
        self.or_u64(self.notify_at(Direction::Own), mask, AcqRel);
        let posted = self.load(Object::Own, side::NOTIFIED, Relaxed).wrapping_add(1);
        self.store(Object::Own, side::NOTIFIED, posted, Release);
    }

    /// Changes whenever the peer posted.
    #[inline]
    fn peer_notified(&self) -> u32 {
        self.load(Object::Peer, side::NOTIFIED, Acquire)
    }

    /// All bits that the peer posted.
    fn take_notifications(&self) -> u64 {
        self.swap_u64(self.notify_at(Direction::Peer), 0, AcqRel)
    }

    /// Takes own bits back that lie there. Not to be called in a channel that goes on.
    fn recall_notification(&self, bits: u64) -> u64 {
        self.and_u64(self.notify_at(Direction::Own), !bits, AcqRel) & bits
    }

    /// Puts bits where the peer puts those it posts.
    fn post_for_peer(&self, mask: u64) {
        self.or_u64(self.notify_at(Direction::Peer), mask, Release);
    }

    // Notifications that a proxy carries. Its own side keeps what it has under way, so that one that is killed loses
    // none.

    /// The number and the bits under way from the peer, when there are any.
    fn carried_notification(&self) -> Option<(u64, u64)> {
        let bits = self.load_u64(Object::Own, side::CARRIED_BITS, Relaxed);
        (bits != 0).then(|| (self.load_u64(Object::Own, side::CARRIED_NUMBER, Relaxed), bits))
    }

    /// Takes the peer's bits under way, with the next number. Kept first, cleared then: killed in between, they come
    /// twice.
    fn carry_notification(&self) -> Option<(u64, u64)> {
        let at = self.notify_at(Direction::Peer);
        let bits = self.load_u64(Object::Shared, at, Acquire);
        if bits == 0 {
            return None;
        }
        let number = self.load_u64(Object::Own, side::CARRIED_NUMBER, Relaxed) + 1;
        self.store_u64(Object::Own, side::CARRIED_NUMBER, number, Relaxed);
        self.store_u64(Object::Own, side::CARRIED_BITS, bits, Release);
        self.and_u64(at, !bits, AcqRel);
        Some((number, bits))
    }

    /// The bits under way have arrived.
    fn end_carrying(&self) {
        self.store_u64(Object::Own, side::CARRIED_BITS, 0, Release);
    }

    /// The number of the last notification of the far side that was posted here.
    fn posted_number(&self) -> u64 {
        self.load_u64(Object::Own, side::POSTED_NUMBER, Relaxed)
    }

    fn set_posted_number(&self, number: u64) {
        self.store_u64(Object::Own, side::POSTED_NUMBER, number, Release);
    }

    /// A proxy's: the far side has the channel.
    fn set_open(&self) {
        self.store(Object::Own, side::OPENED, 1, Release);
    }

    fn was_open(&self) -> bool {
        self.load(Object::Own, side::OPENED, Acquire) != 0
    }

    // The ring.

    #[inline]
    fn own_tail(&self) -> u32 {
        self.load(Object::Own, side::RING_TAIL, Relaxed)
    }

    /// Shows the entries below to the peer.
    #[inline]
    fn set_own_tail(&self, tail: u32) {
        self.store(Object::Own, side::RING_TAIL, tail, Release);
    }

    #[inline]
    fn peer_tail(&self) -> u32 {
        self.load(Object::Peer, side::RING_TAIL, Acquire)
    }

    #[inline]
    fn own_head(&self) -> u32 {
        self.load(Object::Own, side::RING_HEAD, Relaxed)
    }

    /// Hands the places of the entries below back to the peer.
    #[inline]
    fn set_own_head(&self, head: u32) {
        self.store(Object::Own, side::RING_HEAD, head, Release);
    }

    #[inline]
    fn peer_head(&self) -> u32 {
        self.load(Object::Peer, side::RING_HEAD, Acquire)
    }

    // Sleeping and waking, see `wake`.

    /// Wakes the peer if it sleeps. After every publication.
    #[inline]
    fn kick(&self) {
        wake::kick(self);
    }

    /// Says how this party is about to sleep. Look at everything once more before sleeping.
    #[inline]
    fn prepare_sleep(&self, sleep: Sleep) {
        wake::prepare_sleep(self, sleep);
    }

    /// How the peer waits: one of [`parked`].
    #[inline]
    fn peer_parked(&self) -> u32 {
        self.load(Object::Peer, side::PARKED, Relaxed)
    }

    /// Whether the peer sleeps or polls in a wait, as far as one can see.
    #[inline]
    fn is_peer_parked(&self) -> bool {
        self.peer_parked() != parked::AWAKE
    }

    #[inline]
    fn set_own_parked(&self, how: u32) {
        // The peer reads this line at every message: writing what stands there would take it away.
        if self.load(Object::Own, side::PARKED, Relaxed) != how {
            self.store(Object::Own, side::PARKED, how, Relaxed);
        }
    }

    /// What this party sleeps on.
    #[inline]
    fn peer_event(&self) -> u32 {
        self.load(Object::Peer, side::EVENT, Acquire)
    }

    /// Adds one to the word that the peer sleeps on.
    fn bump_event(&self) {
        self.increment(side::EVENT, Release);
    }

    // Where the words of a direction lie.

    #[inline]
    fn state_at(&self, direction: Direction) -> usize {
        of_sender(self.role(), direction, [shared::STATE_FROM_LEFT, shared::STATE_FROM_RIGHT])
    }

    #[inline]
    fn reply_at(&self, caller: Direction) -> usize {
        of_sender(self.role(), caller, [shared::REPLY_TO_LEFT, shared::REPLY_TO_RIGHT])
    }

    #[inline]
    fn notify_at(&self, direction: Direction) -> usize {
        of_sender(self.role(), direction, [shared::NOTIFY_FROM_LEFT, shared::NOTIFY_FROM_RIGHT])
    }
}

/// The first for what left sends, the second for what right sends.
#[inline]
fn of_sender(role: Role, direction: Direction, [from_left, from_right]: [usize; 2]) -> usize {
    match (role, direction) {
        (Role::Left, Direction::Own) | (Role::Right, Direction::Peer) => from_left,
        (Role::Right, Direction::Own) | (Role::Left, Direction::Peer) => from_right,
    }
}
