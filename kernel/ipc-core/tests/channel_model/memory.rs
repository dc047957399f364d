//! The memory of one channel, as loom sees it, and what of the protocol is left out.

use abi::layout::parked;
use ipc_core::posting::Posting;
use ipc_core::slot::Slot;
use ipc_core::wake::Words;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// One thing the protocol relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    Nothing,
    /// Between a publication and the look whether the peer sleeps.
    PublishersFence,
    /// Between "I sleep" and the last look.
    SleepersFence,
    /// The same of the nap before the sleep, or of the last sleep but one.
    EarlierFence,
    /// The event is read before the last look, not after it.
    EventBeforeLook,
    /// The control page changes before its event does.
    PageBeforeItsEvent,
    /// A publication releases what was written before.
    PublicationRelease,
    /// A timed message is offered before its word can be seen.
    OfferBeforeWord,
    /// Taking is one step from offered to taken.
    TakersExchange,
    WithdrawersExchange,
    /// The line is copied before it is said to be taken.
    CopyBeforeTaken,
    TakenRelease,
    TakenAcquire,
    /// The reply word is offered, and the caller awaits, before the request can be seen.
    ReplyWordBeforeWord,
    AwaitsBeforeWord,
    RepliersExchange,
    CallersExchange,
    /// Who gives way takes its message back before it takes the peer's.
    WithdrawnBeforeTaken,
    MasksExchange,
    MasksOr,
    /// The bits are there before the count says so.
    MaskBeforeCount,
    /// A party that posts after the closer's last look sees what the closer did before.
    PostersAcquire,
    ClosersRelease,
    ClosedBeforeLastLook,
    RecallInOneStep,
    /// A slot that may be being copied says so, and to whoever copies what comes next.
    WordCleared,
    FenceBeforeAnew,
    FenceAfterCopy,
    TailRelease,
    TailAcquire,
    HeadRelease,
    HeadAcquire,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Left,
    Right,
}

impl Role {
    pub fn other(self) -> Role {
        match self {
            Role::Left => Role::Right,
            Role::Right => Role::Left,
        }
    }
}

/// What one party writes, or both where `docs/design/channel.md` says so. Only what the models use.
#[derive(Default)]
pub struct Side {
    pub word: AtomicU32,
    /// Stands for the line, its data, or an entry of the ring.
    line: AtomicU32,
    /// Touched with the line, so that loom sees when two parties are at it at once.
    at_line: UnsafeCell<()>,
    pub event: AtomicU32,
    pub parked: AtomicU32,
    pub taken: AtomicU32,
    pub awaits: AtomicU32,
    pub notified: AtomicU32,
    pub closed: AtomicU32,
    pub tail: AtomicU32,
    pub head: AtomicU32,
    /// In the shared object: state of this party's message, of its call, and its mask.
    pub state: AtomicU32,
    pub reply: AtomicU32,
    pub mask: AtomicU32,
}

/// See `docs/design/channel.md`.
pub struct Channel {
    left: Side,
    right: Side,
    pub page: AtomicU32,
    pub page_event: AtomicU32,
    pub wrongly_taken: AtomicU32,
    without: Without,
}

// SAFETY: the cell is empty; loom checks who is at it, and nothing is read or written through it.
unsafe impl Sync for Channel {}

impl Side {
    pub fn write_line(&self, value: u32) {
        self.at_line.with_mut(|_| self.line.store(value, Ordering::Relaxed));
    }

    pub fn read_line(&self) -> u32 {
        self.at_line.with(|_| self.line.load(Ordering::Relaxed))
    }

    /// Where the peer may copy at the same moment, and finds out.
    pub fn write_line_anew(&self, value: u32) {
        self.line.store(value, Ordering::Relaxed);
    }

    pub fn copy_line(&self) -> u32 {
        self.line.load(Ordering::Relaxed)
    }
}

impl Channel {
    pub fn new(without: Without) -> Channel {
        Channel {
            left: Side::default(),
            right: Side::default(),
            page: AtomicU32::new(0),
            page_event: AtomicU32::new(0),
            wrongly_taken: AtomicU32::new(0),
            without,
        }
    }

    pub fn side(&self, role: Role) -> &Side {
        match role {
            Role::Left => &self.left,
            Role::Right => &self.right,
        }
    }

    pub fn lacks(&self, without: Without) -> bool {
        self.without == without
    }

    /// `order`, or none at all when that is what is left out.
    pub fn order(&self, order: Ordering, needed_for: Without) -> Ordering {
        if self.lacks(needed_for) { Ordering::Relaxed } else { order }
    }

    /// One step from `from` to `to`, or a look and a store when that is left out.
    pub fn exchange(&self, word: &AtomicU32, from: u32, to: u32, needed_for: Without) -> bool {
        if self.lacks(needed_for) {
            let is_right = word.load(Ordering::Acquire) == from;
            if is_right {
                word.store(to, Ordering::Release);
            }
            return is_right;
        }
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What a party does next with the wake protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    Publisher,
    Sleeper,
    /// Its sleep ends by itself.
    EarlierSleeper,
}

/// A party as the wake protocol sees it.
pub struct Party<'a> {
    pub channel: &'a Channel,
    pub role: Role,
    pub acts_as: As,
}

impl Words for Party<'_> {
    fn peer_parked(&self) -> u32 {
        self.channel.side(self.role.other()).parked.load(Ordering::Relaxed)
    }

    fn set_own_parked(&self, how: u32) {
        self.channel.side(self.role).parked.store(how, Ordering::Relaxed);
    }

    fn fence(&self) {
        let needed_for = match self.acts_as {
            As::Publisher => Without::PublishersFence,
            As::Sleeper => Without::SleepersFence,
            As::EarlierSleeper => Without::EarlierFence,
        };
        if !self.channel.lacks(needed_for) {
            fence(Ordering::SeqCst);
        }
    }

    fn bump_event(&self) {
        self.channel.side(self.role).event.fetch_add(1, Ordering::Release);
    }

    /// A bell is its event, which never goes back.
    fn wake_peer(&self, how: u32) {
        assert_ne!(how, parked::AWAKE);
    }
}

/// The slot of `sender`, as both reach it.
pub struct SlotOf<'a> {
    pub channel: &'a Channel,
    pub sender: Role,
}

impl Slot for SlotOf<'_> {
    fn clear_word(&self) {
        if !self.channel.lacks(Without::WordCleared) {
            self.channel.side(self.sender).word.store(0, Ordering::Relaxed);
        }
    }

    fn release_fence(&self) {
        if !self.channel.lacks(Without::FenceBeforeAnew) {
            fence(Ordering::Release);
        }
    }

    fn load_word(&self) -> u32 {
        self.channel.side(self.sender).word.load(Ordering::Acquire)
    }

    fn acquire_fence(&self) {
        if !self.channel.lacks(Without::FenceAfterCopy) {
            fence(Ordering::Acquire);
        }
    }
}

/// The mask of `poster`, as both reach it.
pub struct MaskOf<'a> {
    pub channel: &'a Channel,
    pub poster: Role,
}

impl MaskOf<'_> {
    fn mask(&self) -> &AtomicU32 {
        &self.channel.side(self.poster).mask
    }
}

impl Posting for MaskOf<'_> {
    fn post(&self, bits: u64) {
        let order = if self.channel.lacks(Without::PostersAcquire) { Ordering::Release } else { Ordering::AcqRel };
        self.mask().fetch_or(bits as u32, order);
    }

    /// Nothing: the promise has no use for the fence of a wake-up.
    fn wake(&self) {}

    fn recall(&self, bits: u64) -> u64 {
        let bits = bits as u32;
        if self.channel.lacks(Without::RecallInOneStep) {
            let found = self.mask().load(Ordering::Acquire);
            self.mask().store(found & !bits, Ordering::Release);
            return (found & bits).into();
        }
        (self.mask().fetch_and(!bits, Ordering::AcqRel) & bits).into()
    }

    fn take(&self) -> u64 {
        if self.channel.lacks(Without::MasksExchange) {
            let bits = self.mask().load(Ordering::Acquire);
            self.mask().store(0, Ordering::Release);
            return bits.into();
        }
        let order = if self.channel.lacks(Without::ClosersRelease) { Ordering::Acquire } else { Ordering::AcqRel };
        self.mask().swap(0, order).into()
    }
}
