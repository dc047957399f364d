//! The memory of one channel, as loom sees it, and what of the protocol is left out.

use std::cell::Cell;

use abi::layout::{Role, parked, shared, side};
use ipc_core::words::{Fence, Memory, Object};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

/// One thing the protocol relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    Nothing,
    Fence(Fence),
    /// The sleeper's, of the nap before the sleep, or of the last sleep but one.
    EarlierFence,
    /// What that party's stores of the word release.
    Release(Role, Place),
    /// What that party's loads of the word acquire.
    Acquire(Role, Place),
    /// The party looks and changes in one step.
    OneStep(Role, Step),
    /// The first word is stored before the second.
    Order(Place, Place),
    /// A slot that may be being copied says so.
    WordCleared,
    /// The line is copied before it is said to be taken.
    CopyBeforeTaken,
    /// The event is read before the last look, not after it.
    EventBeforeLook,
    /// The control page changes before its event does.
    PageBeforeItsEvent,
    /// Who gives way takes its message back before it takes the peer's.
    WithdrawnBeforeTaken,
    ClosedBeforeLastLook,
}

/// A word, of whichever party.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Word,
    Taken,
    Awaits,
    Parked,
    Event,
    Notified,
    Closed,
    Tail,
    Head,
    State,
    Reply,
    Mask,
}

/// What is one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Exchange(Place),
    Post,
    Recall,
    Take,
}

/// Which fences a party makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fences {
    All,
    /// The sleeper's is the one of a sleep that ends by itself.
    OfNap,
    /// None: the promise has no use for the fence of a wake-up.
    NotOfWaking,
}

/// What one party writes, or both where `docs/design/channel.md` says so. Only what the models use.
#[derive(Default)]
pub struct Side {
    word: AtomicU32,
    /// Stands for the line, its data, or an entry of the ring.
    line: AtomicU32,
    /// Touched with the line, so that loom sees when two parties are at it at once.
    at_line: UnsafeCell<()>,
    event: AtomicU32,
    parked: AtomicU32,
    taken: AtomicU32,
    awaits: AtomicU32,
    notified: AtomicU32,
    closed: AtomicU32,
    tail: AtomicU32,
    head: AtomicU32,
    /// In the shared object: state of this party's message, of its call, and its mask.
    state: AtomicU32,
    reply: AtomicU32,
    mask: AtomicU64,
}

/// See `docs/design/channel.md`.
pub struct Channel {
    left: Side,
    right: Side,
    pub page: AtomicU32,
    pub page_event: AtomicU32,
    without: Without,
}

// SAFETY: the cell is empty; loom checks who is at it, and nothing is read or written through it.
unsafe impl Sync for Channel {}

/// A channel as one party reaches it.
pub struct Party {
    pub channel: Arc<Channel>,
    role: Role,
    fences: Cell<Fences>,
    /// A store that comes too late.
    held: Cell<Option<(Object, usize, u64)>>,
}

impl Side {
    pub fn write_line(&self, value: u32) {
        self.at_line.with_mut(|_| self.line.store(value, Relaxed));
    }

    pub fn read_line(&self) -> u32 {
        self.at_line.with(|_| self.line.load(Relaxed))
    }

    /// Where the peer may copy at the same moment, and finds out.
    pub fn write_line_anew(&self, value: u32) {
        self.line.store(value, Relaxed);
    }

    pub fn copy_line(&self) -> u32 {
        self.line.load(Relaxed)
    }

    /// As the kernel compares it.
    pub fn event_now(&self) -> u32 {
        self.event.fetch_add(0, Ordering::SeqCst)
    }

    fn word(&self, at: usize) -> (Place, &AtomicU32) {
        match at {
            side::MESSAGE_WORD => (Place::Word, &self.word),
            side::TAKEN => (Place::Taken, &self.taken),
            side::AWAITS => (Place::Awaits, &self.awaits),
            side::PARKED => (Place::Parked, &self.parked),
            side::EVENT => (Place::Event, &self.event),
            side::NOTIFIED => (Place::Notified, &self.notified),
            side::CLOSED => (Place::Closed, &self.closed),
            side::RING_TAIL => (Place::Tail, &self.tail),
            side::RING_HEAD => (Place::Head, &self.head),
            at => panic!("no model uses the word at {at}"),
        }
    }
}

impl Channel {
    pub fn new(without: Without) -> Channel {
        let (left, right) = (Side::default(), Side::default());
        Channel { left, right, page: AtomicU32::new(0), page_event: AtomicU32::new(0), without }
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

    fn shared(&self, at: usize) -> (Place, &AtomicU32) {
        match at {
            shared::STATE_FROM_LEFT => (Place::State, &self.left.state),
            shared::STATE_FROM_RIGHT => (Place::State, &self.right.state),
            shared::REPLY_TO_LEFT => (Place::Reply, &self.left.reply),
            shared::REPLY_TO_RIGHT => (Place::Reply, &self.right.reply),
            at => panic!("no model uses the shared word at {at}"),
        }
    }

    fn mask(&self, at: usize) -> &AtomicU64 {
        if at == shared::NOTIFY_FROM_LEFT { &self.left.mask } else { &self.right.mask }
    }
}

/// Both ends, left first.
pub fn parties(channel: Arc<Channel>) -> (Party, Party) {
    (Party::of(channel.clone(), Role::Left), Party::of(channel, Role::Right))
}

impl Party {
    pub fn of(channel: Arc<Channel>, role: Role) -> Party {
        Party { channel, role, fences: Cell::new(Fences::All), held: Cell::new(None) }
    }

    pub fn lacks(&self, without: Without) -> bool {
        self.channel.lacks(without)
    }

    pub fn own(&self) -> &Side {
        self.channel.side(self.role)
    }

    pub fn peer(&self) -> &Side {
        self.channel.side(self.role.other())
    }

    pub fn make(&self, fences: Fences) {
        self.fences.set(fences);
    }

    fn word(&self, object: Object, at: usize) -> (Place, &AtomicU32) {
        match object {
            Object::Own => self.own().word(at),
            Object::Peer => self.peer().word(at),
            Object::Shared => self.channel.shared(at),
        }
    }

    /// `order`, or what remains of it.
    fn order(&self, order: Ordering, place: Place) -> Ordering {
        match order {
            Release if self.lacks(Without::Release(self.role, place)) => Relaxed,
            AcqRel if self.lacks(Without::Release(self.role, place)) => Acquire,
            Acquire if self.lacks(Without::Acquire(self.role, place)) => Relaxed,
            AcqRel if self.lacks(Without::Acquire(self.role, place)) => Release,
            order => order,
        }
    }

    /// Whether the store is held back until another.
    fn is_held(&self, place: Place, store: (Object, usize, u64)) -> bool {
        let is_late = matches!(self.channel.without, Without::Order(first, _) if first == place);
        if is_late {
            self.held.set(Some(store));
        }
        is_late
    }

    /// Makes the store that was held back until one of `place`.
    fn let_go(&self, place: Place) {
        if !matches!(self.channel.without, Without::Order(_, second) if second == place) {
            return;
        }
        match self.held.take() {
            Some((Object::Shared, at, bits)) if [shared::NOTIFY_FROM_LEFT, shared::NOTIFY_FROM_RIGHT].contains(&at) => {
                self.channel.mask(at).fetch_or(bits, AcqRel);
            }
            Some((object, at, value)) => self.word(object, at).1.store(value as u32, Release),
            None => {}
        }
    }

    /// Changes a mask by `step`, or looks and then stores what `changed` says.
    fn change_mask(
        &self,
        at: usize,
        order: Ordering,
        (which, step): (Step, impl FnOnce(&AtomicU64, Ordering) -> u64),
        changed: impl FnOnce(u64) -> u64,
    ) -> u64 {
        let mask = self.channel.mask(at);
        if self.lacks(Without::OneStep(self.role, which)) {
            let found = mask.load(Acquire);
            mask.store(changed(found), Release);
            return found;
        }
        step(mask, self.order(order, Place::Mask))
    }
}

impl Memory for Party {
    fn role(&self) -> Role {
        self.role
    }

    fn load(&self, object: Object, at: usize, order: Ordering) -> u32 {
        let (place, word) = self.word(object, at);
        match object {
            // SAFETY: nobody else writes a word of this party's side.
            // As a step it would be the last access that loom knows of, and would hide an earlier one of the peer.
            Object::Own => unsafe { word.unsync_load() },
            Object::Peer | Object::Shared => word.load(self.order(order, place)),
        }
    }

    fn store(&self, object: Object, at: usize, value: u32, order: Ordering) {
        let (place, word) = self.word(object, at);
        let is_left_out = place == Place::Word && value == 0 && self.lacks(Without::WordCleared);
        if !is_left_out && !self.is_held(place, (object, at, value.into())) {
            word.store(value, self.order(order, place));
            self.let_go(place);
        }
    }

    fn increment(&self, at: usize, order: Ordering) {
        let (place, word) = self.own().word(at);
        word.fetch_add(1, self.order(order, place));
    }

    fn exchange(&self, at: usize, current: u32, new: u32) -> Result<(), u32> {
        let (place, word) = self.channel.shared(at);
        if self.lacks(Without::OneStep(self.role, Step::Exchange(place))) {
            let found = word.load(Acquire);
            if found == current {
                word.store(new, Release);
            }
            return if found == current { Ok(()) } else { Err(found) };
        }
        word.compare_exchange(current, new, self.order(AcqRel, place), self.order(Acquire, place)).map(drop)
    }

    fn load_u64(&self, _: Object, at: usize, _: Ordering) -> u64 {
        panic!("no model uses the long word at {at}")
    }

    fn store_u64(&self, _: Object, at: usize, _: u64, _: Ordering) {
        panic!("no model uses the long word at {at}")
    }

    fn or_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        if self.is_held(Place::Mask, (Object::Shared, at, bits)) {
            return 0;
        }
        self.change_mask(at, order, (Step::Post, |mask, order| mask.fetch_or(bits, order)), |found| found | bits)
    }

    fn and_u64(&self, at: usize, bits: u64, order: Ordering) -> u64 {
        self.change_mask(at, order, (Step::Recall, |mask, order| mask.fetch_and(bits, order)), |found| found & bits)
    }

    fn swap_u64(&self, at: usize, value: u64, order: Ordering) -> u64 {
        self.change_mask(at, order, (Step::Take, |mask, order| mask.swap(value, order)), |_| value)
    }

    fn fence(&self, which: Fence) {
        let is_left_out = match self.fences.get() {
            Fences::All => self.lacks(Without::Fence(which)),
            Fences::OfNap => self.lacks(Without::EarlierFence),
            Fences::NotOfWaking => true,
        };
        if !is_left_out {
            fence(which.order());
        }
    }

    /// A bell is its event, which never goes back.
    fn wake_peer(&self, how: u32) {
        assert_ne!(how, parked::AWAKE);
    }
}
