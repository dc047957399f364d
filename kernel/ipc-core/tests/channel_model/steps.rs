//! The steps of the parties, in the order in which `kernel/ipc` makes them.

use abi::layout::{parked, state, word};
use ipc_core::wake::{kick, prepare_sleep};
use ipc_core::{Both, Data, Kind, Timing, Word, both_send, posting, slot};
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::memory::{As, Channel, MaskOf, Party, Role, SlotOf, Without};

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

impl Channel {
    // Sleeping.

    fn kick(&self, role: Role) {
        kick(&Party { channel: self, role, acts_as: As::Publisher });
    }

    fn prepare_sleep(&self, role: Role, how: u32) {
        prepare_sleep(&Party { channel: self, role, acts_as: As::Sleeper }, how);
    }

    /// A sleep that ends by itself; `true` for news.
    fn sleep_a_while(&self, role: Role, how: u32) -> bool {
        prepare_sleep(&Party { channel: self, role, acts_as: As::EarlierSleeper }, how);
        let is_news = self.has_word(role.other());
        self.prepare_sleep(role, parked::AWAKE);
        is_news || self.has_word(role.other())
    }

    /// The two events that `role` sleeps on.
    pub fn seen(&self, role: Role) -> [u32; 2] {
        [self.side(role.other()).event.load(Acquire), self.page_event.load(Acquire)]
    }

    pub fn publish_plain(&self, role: Role) {
        self.side(role).word.store(1 << word::FLAG_BITS, Release);
        self.kick(role);
    }

    pub fn has_word(&self, role: Role) -> bool {
        self.side(role).word.load(Acquire) != 0
    }

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

    /// Until the peer publishes or its page says that it is dead.
    pub fn sleep_on_both(&self, role: Role) -> Slept {
        self.sleep_unless(role, || self.has_word(role.other()) || self.is_dead())
    }

    /// First for a while on the peer's event alone, then on all.
    pub fn nap_and_sleep(&self, role: Role) -> Slept {
        if self.sleep_a_while(role, parked::FUTEX) { Slept::No } else { self.sleep_on_both(role) }
    }

    fn sleep_unless(&self, role: Role, look: impl Fn() -> bool) -> Slept {
        let mut seen = self.seen(role);
        self.prepare_sleep(role, parked::FUTEX);
        if look() {
            self.prepare_sleep(role, parked::AWAKE);
            return Slept::No;
        }
        if self.lacks(Without::EventBeforeLook) {
            seen = self.seen(role);
        }
        // The kernel compares and sleeps in one step; whoever changes an event afterwards wakes.
        let now = [&self.side(role.other()).event, &self.page_event].map(|event| event.fetch_add(0, SeqCst));
        if now == seen { Slept::While(seen) } else { Slept::No }
    }

    /// A channel is armed and looked at once more; `true` for news.
    pub fn arm_and_look(&self, role: Role) -> bool {
        self.prepare_sleep(role, parked::EVENTFD);
        self.has_word(role.other())
    }

    /// The channel dozes, until another rings; then its party sleeps again.
    pub fn doze_and_arm(&self, role: Role) -> bool {
        self.sleep_a_while(role, parked::EVENTFD) || self.arm_and_look(role)
    }

    pub fn has_rung(&self, publisher: Role) -> bool {
        self.side(publisher).event.load(Acquire) != 0
    }

    // Messages.

    pub fn write_line(&self, role: Role, value: u32) {
        self.side(role).write_line(value);
    }

    pub fn line(&self, role: Role) -> u32 {
        self.side(role).read_line()
    }

    fn publish(&self, role: Role, word: Word, value: u32) {
        self.write_line(role, value);
        self.side(role).word.store(word.raw(), self.order(Release, Without::PublicationRelease));
    }

    pub fn publish_untimed(&self, role: Role, value: u32) {
        self.publish(role, Word::after(0, Kind::Send, Timing::Untimed, Data::None), value);
    }

    pub fn publish_timed(&self, role: Role, value: u32) -> Word {
        let word = Word::after(0, Kind::Send, Timing::Timed, Data::None);
        let offer = || self.side(role).state.store(word.in_state(state::OFFERED), Release);
        if self.lacks(Without::OfferBeforeWord) {
            self.publish(role, word, value);
            offer();
        } else {
            offer();
            self.publish(role, word, value);
        }
        word
    }

    /// `true`: it is the sender's again.
    pub fn withdraw(&self, role: Role, word: Word) -> bool {
        let (from, to) = (word.in_state(state::OFFERED), word.in_state(state::WITHDRAWN));
        self.exchange(&self.side(role).state, from, to, Without::WithdrawersExchange)
    }

    fn win(&self, from: Role, word: Word) -> bool {
        let (offered, taken) = (word.in_state(state::OFFERED), word.in_state(state::TAKEN));
        self.exchange(&self.side(from).state, offered, taken, Without::TakersExchange)
    }

    fn offered(&self, from: Role) -> Option<Word> {
        Word::of(self.side(from).word.load(Acquire))
    }

    pub fn take_timed(&self, from: Role) -> Taken {
        let Some(word) = self.offered(from) else { return Taken::Nothing };
        if !self.win(from, word) {
            let found = word.state_of(self.side(from).state.load(Acquire));
            assert_eq!(found, state::WITHDRAWN, "passed over although nobody took it back");
            return Taken::Lost;
        }
        Taken::Message(self.line(from))
    }

    pub fn take_untimed(&self, from: Role) -> Taken {
        let Some(word) = self.offered(from) else { return Taken::Nothing };
        let say_taken = || self.side(from.other()).taken.store(word.raw(), self.order(Release, Without::TakenRelease));
        if self.lacks(Without::CopyBeforeTaken) {
            say_taken();
            return Taken::Message(self.line(from));
        }
        let value = self.line(from);
        say_taken();
        Taken::Message(value)
    }

    /// Brings an untimed message to its end, as taker or as its sender that gives way; `false` when the other was
    /// first.
    fn settle(&self, sender: Role, word: Word, end: u32, needed_for: Without) -> bool {
        let state_word = &self.side(sender).state;
        let found = state_word.load(Acquire);
        if word.state_of(found) != state::IDLE {
            return found == word.in_state(end);
        }
        self.exchange(state_word, found, word.in_state(end), needed_for)
    }

    /// Of the sender of an untimed message, which a broker told to give way. `true`: it is the sender's again.
    pub fn give_way(&self, sender: Role) -> bool {
        let word = Word::of(self.side(sender).word.load(Relaxed)).expect("was published");
        self.settle(sender, word, state::WITHDRAWN, Without::WithdrawersExchange)
    }

    pub fn take_unless_given_way(&self, from: Role) -> Taken {
        let Some(word) = self.offered(from) else { return Taken::Nothing };
        if !self.settle(from, word, state::TAKEN, Without::TakersExchange) {
            return Taken::Lost;
        }
        Taken::Message(self.line(from))
    }

    // A slot that is written anew while its receiver copies.

    fn request_without_limit(previous: u32) -> Word {
        Word::after(previous, Kind::Request, Timing::Untimed, Data::None)
    }

    pub fn publish_anew(&self, role: Role, previous: u32, value: u32) -> u32 {
        if previous != 0 {
            slot::begin_anew(&SlotOf { channel: self, sender: role });
        }
        let word = Channel::request_without_limit(previous);
        self.side(role).write_line_anew(value);
        self.side(role).word.store(word.raw(), self.order(Release, Without::PublicationRelease));
        word.raw()
    }

    /// The counter of what was copied, and what it was.
    pub fn copy_request(&self, from: Role) -> Option<(u32, u32)> {
        let word = self.offered(from)?.raw();
        let slot = SlotOf { channel: self, sender: from };
        slot::copy_whole(&slot, word, || self.side(from).copy_line()).map(|value| (word >> word::FLAG_BITS, value))
    }

    pub fn is_taken(&self, sender: Role) -> bool {
        let own = self.side(sender).word.load(Relaxed);
        self.side(sender.other()).taken.load(self.order(Acquire, Without::TakenAcquire)) == own
    }

    // Calls.

    pub fn publish_request(&self, role: Role, value: u32) -> Word {
        let word = Word::after(0, Kind::Request, Timing::Timed, Data::None);
        let side = self.side(role);
        side.state.store(word.in_state(state::OFFERED), Release);
        if !self.lacks(Without::ReplyWordBeforeWord) {
            side.reply.store(word.in_state(state::OFFERED), Release);
        }
        if !self.lacks(Without::AwaitsBeforeWord) {
            side.awaits.store(word.raw(), Release);
        }
        self.publish(role, word, value);
        if self.lacks(Without::ReplyWordBeforeWord) {
            side.reply.store(word.in_state(state::OFFERED), Release);
        }
        if self.lacks(Without::AwaitsBeforeWord) {
            side.awaits.store(word.raw(), Release);
        }
        word
    }

    /// `true`: no reply will come.
    pub fn give_up_call(&self, role: Role, word: Word) -> bool {
        if self.withdraw(role, word) {
            return true;
        }
        let (from, to) = (word.in_state(state::OFFERED), word.in_state(state::WITHDRAWN));
        self.exchange(&self.side(role).reply, from, to, Without::CallersExchange)
    }

    /// `None`: nothing was there to be taken, or it had been taken back. Else whether the reply went out.
    pub fn take_and_reply(&self, from: Role, value: u32) -> Option<bool> {
        let request = self.offered(from)?;
        if !self.win(from, request) {
            return None;
        }
        assert_eq!(self.side(from).awaits.load(Acquire), request.raw(), "seems to await nothing");
        let (waiting, answered) = (request.in_state(state::OFFERED), request.in_state(state::TAKEN));
        if !self.exchange(&self.side(from).reply, waiting, answered, Without::RepliersExchange) {
            let found = request.state_of(self.side(from).reply.load(Acquire));
            assert_eq!(found, state::WITHDRAWN, "refused although the caller waits");
            return Some(false);
        }
        self.publish(from.other(), Word::reply_to(request, Data::None), value);
        Some(true)
    }

    // Both send.

    pub fn send_as_lower(&self, role: Role) -> Slept {
        self.publish_untimed(role, 42);
        self.kick(role);
        let slept = self.sleep_unless(role, || self.is_taken(role));
        if self.is_taken(role) {
            // The call is over; the next looks at what the peer offers.
            if let Some(word) = self.offered(role.other())
                && word.state_of(self.side(role.other()).state.load(Acquire)) != state::WITHDRAWN
            {
                self.wrongly_taken.store(1, Relaxed);
            }
        }
        slept
    }

    pub fn send_as_higher(&self, role: Role) -> Slept {
        let own = Word::after(0, Kind::Send, Timing::Untimed, Data::None);
        self.publish_untimed(role, 41);
        self.kick(role);
        let sees_peer = || both_send(2, 1, self.offered(role.other())) == Both::GiveWay;
        let slept = self.sleep_unless(role, sees_peer);
        if !sees_peer() {
            return slept;
        }
        let withdraw = || self.side(role).state.store(own.in_state(state::WITHDRAWN), Release);
        if self.lacks(Without::WithdrawnBeforeTaken) {
            self.take_untimed(role.other());
            withdraw();
        } else {
            withdraw();
            self.take_untimed(role.other());
        }
        self.kick(role);
        Slept::No
    }

    pub fn lower_took_what_was_withdrawn(&self) -> bool {
        self.wrongly_taken.load(Relaxed) != 0
    }

    // Notifications.

    pub fn notify(&self, role: Role, bits: u32) {
        let side = self.side(role);
        let count = || side.notified.store(side.notified.load(Relaxed) + 1, Release);
        if self.lacks(Without::MaskBeforeCount) {
            count();
        }
        if self.lacks(Without::MasksOr) {
            side.mask.store(side.mask.load(Relaxed) | bits, Release);
        } else {
            side.mask.fetch_or(bits, Release);
        }
        if !self.lacks(Without::MaskBeforeCount) {
            count();
        }
    }

    pub fn take_notifications(&self, from: Role, seen: &mut u32) -> u32 {
        let side = self.side(from);
        let posted = side.notified.load(Acquire);
        if posted == *seen {
            return 0;
        }
        *seen = posted;
        if self.lacks(Without::MasksExchange) {
            let bits = side.mask.load(Acquire);
            side.mask.store(0, Release);
            return bits;
        }
        side.mask.swap(0, AcqRel)
    }

    /// What nobody will take, because the channel is closed.
    pub fn post_and_look(&self, role: Role, bits: u64) -> u64 {
        let is_closed = || self.side(role.other()).closed.load(Acquire) != 0;
        posting::post(&MaskOf { channel: self, poster: role }, bits, is_closed)
    }

    /// The bits that `role` finds in the channel that it closes.
    pub fn close_and_take(&self, role: Role) -> u64 {
        let mask = MaskOf { channel: self, poster: role.other() };
        let say_closed = || self.side(role).closed.store(1, Release);
        if self.lacks(Without::ClosedBeforeLastLook) {
            let bits = posting::close(&mask, || {});
            say_closed();
            return bits;
        }
        posting::close(&mask, say_closed)
    }

    // Rings.

    pub fn put_entry(&self, role: Role, value: u32) {
        self.write_line(role, value);
        self.side(role).tail.store(1, self.order(Release, Without::TailRelease));
    }

    pub fn take_entry(&self, from: Role) -> Option<u32> {
        if self.side(from).tail.load(self.order(Acquire, Without::TailAcquire)) == 0 {
            return None;
        }
        let value = self.line(from);
        self.side(from.other()).head.store(1, self.order(Release, Without::HeadRelease));
        Some(value)
    }

    pub fn is_entry_consumed(&self, producer: Role) -> bool {
        self.side(producer.other()).head.load(self.order(Acquire, Without::HeadAcquire)) == 1
    }
}
