//! The memory of one channel, as loom sees it, and what of the protocol is left out.

use abi::layout::parked;
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
