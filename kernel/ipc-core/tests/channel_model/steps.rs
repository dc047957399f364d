//! What the parties do, in the steps of `ipc-core` that the library makes too.

use abi::layout::state;
use abi::{Calls, Settled};
use ipc_core::exchange::{self, Numbers, Proxied, Replied, Sending};
use ipc_core::wake::fall_asleep;
use ipc_core::{Data, Direction, Kind, Sleep, Timing, Word, Words, posting, slot};
use loom::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use crate::memory::{Channel, Fences, Party, Without};

/// What a sleeper did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    No,
    /// While the peer's event and the page's event are these.
    While([u32; 2]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    Message(u32),
    /// Its sender had taken it back.
    Lost,
    /// There was none yet.
    Nothing,
}

/// What the lower of two senders did.
pub struct Lower {
    pub slept: Slept,
    pub sees_withdrawn: bool,
}

const LOWER: Numbers = Numbers { own: 1, peer: 2 };
const HIGHER: Numbers = Numbers { own: 2, peer: 1 };

impl Channel {
    /// What the broker does with a page.
    pub fn say_dead(&self) {
        if self.lacks(Without::PageBeforeItsEvent) {
            self.page_event.fetch_add(1, Release);
            self.page.store(1, Release);
            return;
        }
        self.page.store(1, Release);
        self.page_event.fetch_add(1, Release);
    }

    pub fn is_dead(&self) -> bool {
        self.page.load(Acquire) != 0
    }
}

impl Party {
    // Sleeping.

    /// The two events that this party sleeps on.
    pub fn seen(&self) -> [u32; 2] {
        [self.peer_event(), self.channel.page_event.load(Acquire)]
    }

    pub fn has_word(&self) -> bool {
        self.peer_word() != 0
    }

    /// Until the peer publishes or its page says that it is dead.
    pub fn sleep_on_both(&self) -> Slept {
        self.sleep_unless(|| self.has_word() || self.channel.is_dead())
    }

    /// First for a while on the peer's event alone, then on all.
    pub fn nap_and_sleep(&self) -> Slept {
        if self.sleep_a_while(Sleep::Futex) { Slept::No } else { self.sleep_on_both() }
    }

    fn sleep_unless(&self, look: impl Fn() -> bool) -> Slept {
        let Err(mut seen) = fall_asleep(self, Sleep::Futex, || self.seen(), |_| look().then_some(())) else {
            return Slept::No;
        };
        if self.lacks(Without::EventBeforeLook) {
            seen = self.seen();
        }
        // The kernel compares and sleeps in one step; whoever changes an event afterwards wakes.
        if self.seen_by_kernel() == seen { Slept::While(seen) } else { Slept::No }
    }

    fn seen_by_kernel(&self) -> [u32; 2] {
        [self.peer().event_now(), self.channel.page_event.fetch_add(0, SeqCst)]
    }

    /// A sleep that ends by itself; `true` for news.
    fn sleep_a_while(&self, sleep: Sleep) -> bool {
        self.make(Fences::OfNap);
        let is_news = fall_asleep(self, sleep, || (), |()| self.has_word().then_some(())).is_ok();
        self.make(Fences::All);
        if !is_news {
            self.prepare_sleep(Sleep::Awake);
        }
        is_news || self.has_word()
    }

    /// The channel is armed and looked at once more; `true` for news.
    pub fn arm_and_look(&self) -> bool {
        fall_asleep(self, Sleep::EventFd, || (), |()| self.has_word().then_some(())).is_ok()
    }

    /// The channel dozes, until another rings; then its party sleeps again.
    pub fn doze_and_arm(&self) -> bool {
        self.sleep_a_while(Sleep::EventFd) || self.arm_and_look()
    }

    pub fn has_heard_a_ring(&self) -> bool {
        self.peer_event() != 0
    }

    // Messages.

    /// Publishes the message that follows `previous`.
    pub fn publish(&self, previous: u32, kind: Kind, timing: Timing, value: u32) -> Word {
        let word = Word::after(previous, kind, timing, Data::None);
        exchange::publish(self, word, || self.own().write_line(value));
        word
    }

    pub fn send(&self, timing: Timing, value: u32) -> Word {
        self.publish(0, Kind::Send, timing, value)
    }

    pub fn publish_anything(&self) {
        self.send(Timing::Untimed, 42);
    }

    /// `true`: the slot is the sender's again.
    pub fn take_back(&self, word: Word) -> bool {
        exchange::take_back(self, word, Proxied::No) == Some(Settled::Withdrawn)
    }

    pub fn is_taken(&self, word: Word) -> bool {
        exchange::left_slot(self, word) == Some(Settled::Taken)
    }

    fn offered(&self) -> Option<Word> {
        exchange::offered(self, &mut 0, Calls::ALL).expect("is a word")
    }

    fn take(&self, word: Word) -> Option<u32> {
        let copy = || {
            if self.lacks(Without::CopyBeforeTaken) {
                self.set_own_taken(word.raw());
            }
            Some(self.peer().read_line())
        };
        exchange::take(self, word, Proxied::No, copy).expect("is whole")
    }

    pub fn receive(&self) -> Taken {
        let Some(word) = self.offered() else { return Taken::Nothing };
        if let Some(value) = self.take(word) {
            return Taken::Message(value);
        }
        let found = word.state_of(self.state(Direction::Peer));
        assert_eq!(found, state::WITHDRAWN, "passed over although nobody took it back");
        Taken::Lost
    }

    // A slot that is written anew while its receiver copies.

    /// Two requests without a limit, of which the first is taken back.
    pub fn request_and_request_anew(&self) {
        let word = |previous| Word::after(previous, Kind::Request, Timing::Untimed, Data::None);
        let first = word(0);
        exchange::publish(self, first, || self.own().write_line_anew(41));
        assert!(self.take_back(first), "a request without a limit is not settled");
        slot::begin_anew(self);
        exchange::publish(self, word(first.raw()), || self.own().write_line_anew(42));
    }

    /// The request that was copied, and what it was.
    pub fn copy_request(&self) -> Option<(Word, u32)> {
        let word = self.offered()?;
        let copied = exchange::take(self, word, Proxied::No, || Some(self.peer().copy_line()));
        copied.expect("is replaced, not corrupt").map(|value| (word, value))
    }

    // Calls.

    /// `true`: no reply will come.
    pub fn give_up_call(&self, request: Word) -> bool {
        self.take_back(request) || exchange::give_up_reply(self, request, Proxied::No)
    }

    /// The reply to a request, if it is there.
    pub fn reply_to(&self, request: Word) -> Option<u32> {
        match exchange::replied(self, 0, request, LOWER) {
            Some(Replied::Published(reply)) => self.take(reply),
            _ => None,
        }
    }

    /// `None`: nothing was there to be taken, or it had been taken back. Else whether the reply went out.
    pub fn take_and_reply(&self, value: u32) -> Option<bool> {
        let request = self.offered()?;
        self.take(request)?;
        assert_eq!(self.peer_awaits(), request.raw(), "seems to await nothing");
        if let Err(found) = exchange::win_reply(self, request) {
            assert_eq!(request.state_of(found), state::WITHDRAWN, "refused although the caller waits");
            return Some(false);
        }
        exchange::publish(self, Word::reply_to(request, Data::None), || self.own().write_line(value));
        Some(true)
    }

    // Both send.

    pub fn send_as_lower(&self) -> Lower {
        let word = self.send(Timing::Untimed, 42);
        let is_taken = || exchange::sent(self, 0, word, LOWER) == Some(Sending::Taken);
        let slept = self.sleep_unless(is_taken);
        // When the call is over the next looks at what the peer offers.
        Lower { slept, sees_withdrawn: is_taken() && self.offered().is_some() }
    }

    pub fn send_as_higher(&self) -> Slept {
        let own = self.send(Timing::Untimed, 41);
        let gives_way = || exchange::sent(self, 0, own, HIGHER) == Some(Sending::GiveWay);
        let slept = self.sleep_unless(gives_way);
        if !gives_way() {
            return slept;
        }
        if self.lacks(Without::WithdrawnBeforeTaken) {
            self.receive();
            self.take_back(own);
        } else {
            self.take_back(own);
            self.receive();
        }
        Slept::No
    }

    // Notifications.

    pub fn notify(&self, bits: u64) {
        posting::post(self, bits, || false);
    }

    /// What nobody will take, because the channel is closed.
    pub fn post_and_look(&self, bits: u64) -> u64 {
        self.make(Fences::NotOfWaking);
        posting::post(self, bits, || self.peer_closed() != 0)
    }

    /// The bits that are found in the channel that this party closes.
    pub fn close_and_take(&self) -> u64 {
        let say_closed = || self.set_own_closed(1);
        if self.lacks(Without::ClosedBeforeLastLook) {
            let bits = posting::close(self, || {});
            say_closed();
            return bits;
        }
        posting::close(self, say_closed)
    }

    // Rings.

    pub fn put_entry(&self, value: u32) {
        self.own().write_line(value);
        self.set_own_tail(1);
    }

    pub fn take_entry(&self) -> Option<u32> {
        if self.peer_tail() == 0 {
            return None;
        }
        let value = self.peer().read_line();
        self.set_own_head(1);
        Some(value)
    }

    pub fn is_entry_consumed(&self) -> bool {
        self.peer_head() == 1
    }
}
