//! Messages over one channel: the sender's, the receiver's, the caller's and the replier's part of
//! `docs/design/channel.md`.
//!
//! A party has at most one message outstanding. `send` and `sendrec` do not return before their message was taken,
//! withdrawn or lost with the peer, so that only a reply may still lie untaken when the next message is written.

use std::time::Duration;

use abi::layout::{state, word};
use abi::{Calls, Endpoint, IpcError, Message};
use ipc_core::{Both, Budget, Data, Kind, Owed, Timing, Word, both_send};
use ipc_shm::{ChannelHalf, ControlPage, Direction};

use crate::lanes::Attend;
use crate::wait::{Deadline, Wait};
use crate::waiting::{Failure, Stop, Terms, gone, wait_for};

/// How long a peer may take between winning a state word and what must follow at once; longer is a broken peer.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

/// Exchanges of a state word that may fail: an honest peer changes it once.
const SETTLE_TRIES_MAX: u32 = 16;

/// What a party remembers of its talk with one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Talk {
    /// The peer's word that was taken or passed over last.
    seen: u32,
    /// The request that was taken last, until it is answered.
    owes: Owes,
    /// The own word. Not read from the own line, which is with the peer that read it.
    own: u32,
    /// The own word that was no reply. The next one counts on from it, and not from a reply, which has the number of
    /// its request: so no word comes twice, and a peer that never saw the reply between does not take the message for
    /// an earlier one.
    counted: u32,
    /// Whether the own word is known to be taken, so that nobody has to ask the peer's memory.
    is_free: bool,
    /// The peer's count of notifications that was looked at last.
    notified: u32,
    pub rights: Rights,
}

/// Which calls the parties of a channel may make; an answer needs no right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub own: Calls,
    pub peer: Calls,
}

impl Rights {
    pub fn check_own(&self, call: Calls) -> Result<(), IpcError> {
        if self.own.contains(call) { Ok(()) } else { Err(IpcError::Denied) }
    }
}

/// The right that a message of this kind needs.
pub(crate) fn right_for(kind: Kind) -> Calls {
    match kind {
        Kind::Send => Calls::SEND,
        Kind::Request => Calls::SENDREC,
        Kind::Reply => Calls::NONE,
    }
}

/// What is owed to the peer.
#[derive(Clone, Copy, Debug)]
enum Owes {
    Nothing,
    Seen(Word),
    /// The request with this word was relayed. Its answer is published in the slot behind this talk's back, which
    /// therefore does not know what the slot holds.
    Relayed(u32),
}

/// Where messages are taken to. One place, because each move of a message that was just written stalls the processor
/// for as long as the rest of taking it.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub message: Message,
    /// What travelled with it.
    pub data: Vec<u8>,
}

/// Who talks: what stays the same during one call.
pub(crate) struct Parties<'a> {
    pub half: &'a ChannelHalf,
    pub own_control: &'a ControlPage,
    pub own: Endpoint,
    pub peer: Endpoint,
    /// A proxy plays the peer: withdrawing has to be asked for.
    pub proxied: Proxied,
    pub budget: &'a mut Budget,
    pub attend: Attend<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proxied {
    No,
    Yes,
}

/// What a waiting sender saw.
enum Seen {
    Taken,
    GiveWay,
}

/// What a waiting caller saw.
enum Reply {
    Published(Word),
    GiveWay,
    Corrupt,
}

impl Talk {
    pub fn over(half: &ChannelHalf, rights: Rights) -> Talk {
        Talk {
            seen: 0,
            owes: Owes::Nothing,
            own: half.own_word(),
            counted: half.own_word(),
            is_free: false,
            notified: 0,
            rights,
        }
    }

    /// The peer's message that can be taken now, if its kind is wanted.
    #[inline]
    pub fn offered(&mut self, half: &ChannelHalf) -> Result<Option<Word>, IpcError> {
        let raw = half.peer_word();
        if raw == self.seen || raw == 0 {
            return Ok(None);
        }
        let word = Word::of(raw).ok_or(IpcError::Corrupt)?;
        if !self.rights.peer.contains(right_for(word.kind)) {
            return Err(IpcError::Corrupt);
        }
        let said = half.state(Direction::Peer);
        let is_over = word.timing == Timing::Untimed && word.kind != Kind::Reply && word.is_before(said);
        if is_over || word.state_of(said) == state::WITHDRAWN {
            self.seen = raw;
            return Ok(None);
        }
        if word.kind == Kind::Reply {
            self.seen = raw;
            pass_over(half, raw);
            return Ok(None);
        }
        Ok(Some(word))
    }

    /// Takes an offered message; `false` when its sender withdrew it first.
    pub fn take(&mut self, parties: &Parties<'_>, word: Word, inbox: &mut Inbox) -> Result<bool, IpcError> {
        let half = parties.half;
        if !win_message(half, word) {
            self.seen = word.raw();
            return Ok(false);
        }
        match copy(half, word, parties.peer, inbox) {
            // Given up at this moment, and the next is there: `win_message` does not decide about it.
            Err(IpcError::Corrupt) if is_replaced_request(half, word) => {
                self.seen = word.raw();
                return Ok(false);
            }
            copied => copied?,
        }
        self.seen = word.raw();
        half.set_own_taken(word.raw());
        if word.kind == Kind::Request {
            if let Owes::Relayed(_) = self.owes {
                self.learn_own(half);
            }
            self.owes = Owes::Seen(word);
            self.know_reply_taken(parties);
        }
        // A caller waits for the reply, not for this; everybody else does.
        if word.kind == Kind::Send || parties.proxied == Proxied::Yes {
            half.kick();
        }
        Ok(true)
    }

    pub fn send(
        &mut self,
        parties: &mut Parties<'_>,
        message: &Message,
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), Failure> {
        match self.waits(parties) {
            Waits::ForUs => match self.reply(parties, message, data) {
                Ok(()) if self.is_awaited(parties) => return Ok(()),
                // The peer has just given up: it takes a message.
                Ok(()) | Err(Failure::Error(IpcError::NotWaiting)) => {}
                Err(error) => return Err(error),
            },
            Waits::ForAnother => return Err(IpcError::Deadlock.into()),
            Waits::No => {}
        }
        self.rights.check_own(Calls::SEND)?;
        self.await_free_slot(parties, deadline)?;
        let word = Word::after(self.counted, Kind::Send, patience_of(deadline), Data::of(data));
        self.publish(parties, word, message, data);
        let half = parties.half;
        let (own, peer) = (parties.own.number(), parties.peer.number());
        let look = || {
            if half.peer_taken() == word.raw() {
                return Some(Seen::Taken);
            }
            pass_over_reply(half, self.seen);
            give_way(half, self.seen, word, own, peer).then_some(Seen::GiveWay)
        };
        let terms = Terms::until(deadline).calling(parties.peer);
        match wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look) {
            Ok(Seen::Taken) => Ok(()),
            Ok(Seen::GiveWay) | Err(Stop::Deadlock) => match self.give_up(parties, word)? {
                Settled::Taken => Ok(()),
                Settled::Withdrawn => Err(IpcError::Deadlock.into()),
            },
            Err(Stop::TimedOut) => match self.give_up(parties, word)? {
                Settled::Taken => Ok(()),
                Settled::Withdrawn => Err(IpcError::TimedOut.into()),
            },
            Err(Stop::PeerGone(gone)) => Err(gone.or_died(not_taken(parties.proxied))),
            Err(Stop::Own(error)) => Err(error.into()),
        }
    }

    /// The reply is in the inbox afterwards.
    pub fn sendrec(
        &mut self,
        parties: &mut Parties<'_>,
        message: &Message,
        data: &[u8],
        deadline: Deadline,
        inbox: &mut Inbox,
    ) -> Result<(), Failure> {
        if self.waits(parties) != Waits::No {
            return Err(IpcError::Deadlock.into());
        }
        self.rights.check_own(Calls::SENDREC)?;
        self.await_free_slot(parties, deadline)?;
        let word = Word::after(self.counted, Kind::Request, patience_of(deadline), Data::of(data));
        self.publish(parties, word, message, data);
        let result = self.await_answer(parties, word, deadline, inbox);
        parties.half.set_own_awaits(0);
        result
    }

    /// Until the request that was published is answered, or taken back.
    fn await_answer(
        &mut self,
        parties: &mut Parties<'_>,
        word: Word,
        deadline: Deadline,
        inbox: &mut Inbox,
    ) -> Result<(), Failure> {
        loop {
            return match self.await_reply(parties, word, deadline) {
                Ok(Reply::Published(reply)) => self.take_reply(parties, reply, inbox),
                Ok(Reply::Corrupt) => Err(IpcError::Corrupt.into()),
                Ok(Reply::GiveWay) => match self.give_up(parties, word)? {
                    // It was taken while we gave way: then its reply comes, when the peer has it.
                    Settled::Taken => continue,
                    Settled::Withdrawn => Err(IpcError::Deadlock.into()),
                },
                Err(Stop::TimedOut) => self.give_up_call(parties, word, inbox),
                // A peer that took it is stuck and answers nothing.
                Err(Stop::Deadlock) => self.give_up(parties, word).and(Err(IpcError::Deadlock.into())),
                Err(Stop::PeerGone(gone)) if parties.half.peer_taken() == word.raw() => {
                    Err(gone.or_died(IpcError::SourceDied))
                }
                Err(Stop::PeerGone(gone)) => Err(gone.or_died(not_taken(parties.proxied))),
                Err(Stop::Own(error)) => Err(error.into()),
            };
        }
    }

    pub fn reply(&mut self, parties: &mut Parties<'_>, message: &Message, data: &[u8]) -> Result<(), Failure> {
        let half = parties.half;
        let Owes::Seen(request) = self.owes else { return Err(IpcError::NotWaiting.into()) };
        self.owes = Owes::Nothing;
        if let Some(gone) = gone(half) {
            return Err(gone.or_died(IpcError::DestinationDied));
        }
        // An untimed caller here waits until it is answered or gone, so its words need not be read.
        let is_sure = parties.proxied == Proxied::No && request.timing == Timing::Untimed;
        if !is_sure && half.peer_awaits() != request.raw() {
            return Err(IpcError::NotWaiting.into());
        }
        // The caller took our last reply before it asked again; a proxy may tell us a moment later.
        if !self.is_free {
            let freed = self.await_taking(parties, Deadline::after(Wait::For(SETTLE_LIMIT)));
            if freed == Err(Failure::Error(IpcError::TimedOut)) {
                self.owes = Owes::Seen(request);
            }
            freed?;
        }
        if request.timing == Timing::Timed {
            let (waiting, answered) = (request.in_state(state::OFFERED), request.in_state(state::TAKEN));
            half.exchange_reply_state(Direction::Peer, waiting, answered).map_err(|_| IpcError::NotWaiting)?;
        }
        self.publish(parties, Word::reply_to(request, Data::of(data)), message, data);
        Ok(())
    }

    /// Whether the reply that was just published finds its caller. A proxy drops it when the caller has given up, which
    /// is not known here.
    fn is_awaited(&mut self, parties: &mut Parties<'_>) -> bool {
        if parties.proxied == Proxied::No {
            return true;
        }
        let Some(word) = Word::of(self.own) else { return true };
        let half = parties.half;
        let look = || match half.peer_taken() == word.raw() {
            true => Some(Settled::Taken),
            false => (word.state_of(half.state(Direction::Own)) == state::WITHDRAWN).then_some(Settled::Withdrawn),
        };
        let terms = Terms::until(Deadline::after(Wait::For(SETTLE_LIMIT)));
        let settled = wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look);
        // Where nothing is heard of it the caller waited when it was last heard of.
        !matches!(settled, Ok(Settled::Withdrawn))
    }

    /// The request that is owed an answer, ready to be relayed: the slot for the answer is free.
    pub fn request_to_relay(&mut self, parties: &mut Parties<'_>) -> Result<Word, Failure> {
        let Owes::Seen(request) = self.owes else { return Err(IpcError::NotWaiting.into()) };
        if let Some(gone) = gone(parties.half) {
            return Err(gone.or_died(IpcError::DestinationDied));
        }
        if parties.half.peer_awaits() != request.raw() {
            self.owes = Owes::Nothing;
            return Err(IpcError::NotWaiting.into());
        }
        self.await_free_slot(parties, Deadline::after(Wait::For(SETTLE_LIMIT)))?;
        Ok(request)
    }

    /// From now on the answer is not ours to give.
    pub fn was_relayed(&mut self) {
        if let Owes::Seen(request) = self.owes {
            self.owes = Owes::Relayed(request.raw());
        }
    }

    /// What is owed to the peer, as far as one can see.
    pub fn owed(&self, half: &ChannelHalf, proxied: Proxied) -> Owed {
        match self.owes {
            Owes::Seen(request) if gone(half).is_some() || half.peer_awaits() != request.raw() => Owed::GivenUp,
            Owes::Seen(_) if proxied == Proxied::No => Owed::Awaited,
            Owes::Seen(request) => Owed::Unseen(request.timing),
            Owes::Nothing | Owes::Relayed(_) => Owed::Nothing,
        }
    }

    /// Whether somebody may wait for an answer of ours.
    pub fn owes_answer(&self, half: &ChannelHalf, proxied: Proxied) -> bool {
        !matches!(self.owed(half, proxied), Owed::Nothing | Owed::GivenUp)
    }

    /// The request that was taken last is not answered any more: the peer gave it up.
    pub fn forget_request(&mut self) {
        if let Owes::Seen(_) = self.owes {
            self.owes = Owes::Nothing;
        }
    }

    /// For whose answer the peer waits that cannot take a message of ours.
    #[inline]
    fn waits(&mut self, parties: &Parties<'_>) -> Waits {
        match self.owes {
            Owes::Nothing => Waits::No,
            Owes::Seen(request) if parties.half.peer_awaits() == request.raw() => Waits::ForUs,
            Owes::Seen(_) => Waits::No,
            Owes::Relayed(request) => self.waits_for_another(parties, request),
        }
    }

    /// Until it is answered, or the peer is heard of again. Not by what the peer says it awaits, which a proxy does not
    /// tell.
    #[cold]
    fn waits_for_another(&mut self, parties: &Parties<'_>, request: u32) -> Waits {
        let half = parties.half;
        if half.own_taken() == request && parties.attend.lanes.relays_from(half, request) {
            return Waits::ForAnother;
        }
        self.learn_own(half);
        self.owes = Owes::Nothing;
        Waits::No
    }

    /// An answer may have been published since.
    fn learn_own(&mut self, half: &ChannelHalf) {
        // None when the slot was cleared and not written since.
        if let own @ 1.. = half.own_word() {
            (self.own, self.is_free) = (own, false);
        }
    }

    /// What a peer posted that may not is never looked at.
    pub fn has_notifications(&self, half: &ChannelHalf) -> bool {
        half.peer_notified() != self.notified && self.rights.peer.contains(Calls::NOTIFY)
    }

    /// Bits the peer posted since the last look; 0 for none.
    pub fn take_notifications(&mut self, half: &ChannelHalf) -> u64 {
        if !self.has_notifications(half) {
            return 0;
        }
        self.notified = half.peer_notified();
        half.take_notifications()
    }

    fn publish(&mut self, parties: &Parties<'_>, word: Word, message: &Message, data: &[u8]) {
        let (half, kind) = (parties.half, word.kind);
        if word.timing == Timing::Timed {
            half.set_state(Direction::Own, word.in_state(state::OFFERED));
            if kind == Kind::Request {
                half.set_reply_state(Direction::Own, word.in_state(state::OFFERED));
            }
        } else if word.is_misjudged_by(half.state(Direction::Own)) {
            // What the word said of another message, with this counter or one that looks later.
            half.set_state(Direction::Own, state::IDLE);
        }
        if kind == Kind::Request {
            half.set_own_awaits(word.raw());
        }
        (self.own, self.is_free) = (word.raw(), false);
        if kind != Kind::Reply {
            self.counted = word.raw();
        }
        half.publish_message(word, message.kind, &message.payload, data);
        half.kick();
    }

    /// A caller took the last reply before it asks again. A proxy may tell us later, and keeps its slot until it did.
    fn know_reply_taken(&mut self, parties: &Parties<'_>) {
        let is_reply = Word::of(self.own).is_some_and(|word| word.kind == Kind::Reply);
        self.is_free |= is_reply && parties.proxied == Proxied::No;
    }

    /// Waits until the last own message is out of the slot.
    #[inline]
    fn await_free_slot(&mut self, parties: &mut Parties<'_>, deadline: Deadline) -> Result<(), Failure> {
        if self.is_free { Ok(()) } else { self.await_taking(parties, deadline) }
    }

    fn await_taking(&mut self, parties: &mut Parties<'_>, deadline: Deadline) -> Result<(), Failure> {
        let (half, last) = (parties.half, self.own);
        let Some(word) = Word::of(last) else { return Ok(()) };
        let look = || match half.peer_taken() == last {
            true => Some(Settled::Taken),
            false => (word.state_of(half.state(Direction::Own)) == state::WITHDRAWN).then_some(Settled::Withdrawn),
        };
        let terms = Terms::until(deadline);
        match wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look) {
            Ok(Settled::Taken) => Ok(()),
            Ok(Settled::Withdrawn) => {
                half.begin_anew();
                Ok(())
            }
            Err(Stop::TimedOut) => Err(IpcError::TimedOut.into()),
            Err(Stop::PeerGone(gone)) => Err(gone.or_died(IpcError::DestinationDied)),
            Err(Stop::Own(error)) => Err(error.into()),
            Err(Stop::Deadlock) => Err(IpcError::Deadlock.into()),
        }
    }

    fn await_reply(&mut self, parties: &mut Parties<'_>, word: Word, deadline: Deadline) -> Result<Reply, Stop> {
        let half = parties.half;
        let seen = self.seen;
        let (own, peer) = (parties.own.number(), parties.peer.number());
        let look = || {
            let raw = half.peer_word();
            if raw == seen || raw == 0 {
                return None;
            }
            match Word::of(raw) {
                Some(reply) if reply.answers(word) => Some(Reply::Published(reply)),
                Some(reply) if reply.kind == Kind::Reply => {
                    pass_over(half, raw);
                    None
                }
                Some(_) if give_way(half, seen, word, own, peer) => Some(Reply::GiveWay),
                Some(_) => None,
                None => Some(Reply::Corrupt),
            }
        };
        let terms = Terms::until(deadline).calling(parties.peer);
        wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look)
    }

    fn take_reply(&mut self, parties: &Parties<'_>, reply: Word, inbox: &mut Inbox) -> Result<(), Failure> {
        copy(parties.half, reply, parties.peer, inbox)?;
        self.seen = reply.raw();
        self.is_free = true;
        parties.half.set_own_taken(reply.raw());
        if parties.proxied == Proxied::Yes {
            parties.half.kick();
        }
        Ok(())
    }

    /// The replier won: its reply follows at once, or it is broken or dies.
    fn late_reply(&mut self, parties: &mut Parties<'_>, word: Word, inbox: &mut Inbox) -> Result<(), Failure> {
        match self.await_reply(parties, word, Deadline::after(Wait::For(SETTLE_LIMIT))) {
            Ok(Reply::Published(reply)) => self.take_reply(parties, reply, inbox),
            Err(Stop::PeerGone(gone)) => Err(gone.or_died(IpcError::SourceDied)),
            Err(Stop::Own(error)) => Err(error.into()),
            Ok(_) | Err(Stop::TimedOut | Stop::Deadlock) => Err(IpcError::Corrupt.into()),
        }
    }

    /// A timed caller's limit passed: it takes the request back, or gives up the reply.
    fn give_up_call(&mut self, parties: &mut Parties<'_>, word: Word, inbox: &mut Inbox) -> Result<(), Failure> {
        if self.give_up(parties, word)? == Settled::Withdrawn {
            return Err(IpcError::TimedOut.into());
        }
        let (waiting, given_up) = (word.in_state(state::OFFERED), word.in_state(state::WITHDRAWN));
        match parties.half.exchange_reply_state(Direction::Own, waiting, given_up) {
            Ok(()) => {
                if parties.proxied == Proxied::Yes {
                    self.tell_given_up(parties.half, word);
                }
                Err(IpcError::TimedOut.into())
            }
            Err(_) => self.late_reply(parties, word, inbox),
        }
    }

    /// The request was taken, and its answer is not waited for any more. The far side is asked to withdraw it, which it
    /// cannot, and knows.
    fn tell_given_up(&self, half: &ChannelHalf, word: Word) {
        let (taken, cancel) = (word.in_state(state::TAKEN), word.in_state(state::CANCEL));
        if half.exchange_state(Direction::Own, taken, cancel).is_ok() {
            half.kick();
        }
    }

    /// Takes a message back, or learns that it was taken.
    fn give_up(&mut self, parties: &mut Parties<'_>, word: Word) -> Result<Settled, Failure> {
        let half = parties.half;
        let wish = match parties.proxied {
            Proxied::No => state::WITHDRAWN,
            Proxied::Yes => state::CANCEL,
        };
        match word.timing {
            // A peer that was stuck may be freed at this moment.
            Timing::Untimed if word.kind == Kind::Send && parties.proxied == Proxied::No => {
                if !settle(half, Direction::Own, word, wish) {
                    return Ok(Settled::Taken);
                }
            }
            // The proxy settles it; and who takes a request that is withdrawn at this moment finds nobody to answer.
            Timing::Untimed => half.set_state(Direction::Own, word.in_state(wish)),
            Timing::Timed => {
                let won = half.exchange_state(Direction::Own, word.in_state(state::OFFERED), word.in_state(wish));
                if won.is_err() {
                    return Ok(Settled::Taken);
                }
            }
        }
        if parties.proxied == Proxied::No {
            return Ok(Settled::Withdrawn);
        }
        half.kick();
        let look = || match word.state_of(half.state(Direction::Own)) {
            state::TAKEN => Some(Settled::Taken),
            state::WITHDRAWN => Some(Settled::Withdrawn),
            _ => (half.peer_taken() == word.raw()).then_some(Settled::Taken),
        };
        // The proxy settles it, or reports the link as down, after which the page is dead.
        let terms = Terms::until(Deadline::Never);
        match wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look) {
            Ok(settled) => Ok(settled),
            Err(Stop::PeerGone(gone)) => Err(gone.or_died(IpcError::SourceDied)),
            Err(Stop::Own(error)) => Err(error.into()),
            Err(Stop::TimedOut | Stop::Deadlock) => Err(IpcError::Corrupt.into()),
        }
    }
}

/// A reply that nobody waits for: its caller's wait ended for another reason. Taking it frees the slot of the replier,
/// who may sleep until it is free.
#[cold]
fn pass_over(half: &ChannelHalf, reply: u32) {
    if half.own_taken() != reply {
        half.set_own_taken(reply);
        half.kick();
    }
}

fn pass_over_reply(half: &ChannelHalf, seen: u32) {
    let raw = half.peer_word();
    if raw != seen && raw & word::KIND_MASK == word::REPLY {
        pass_over(half, raw);
    }
}

/// Whether the request, which has no limit, lies there no more.
#[cold]
fn is_replaced_request(half: &ChannelHalf, word: Word) -> bool {
    word.kind == Kind::Request && word.timing == Timing::Untimed && half.peer_word() != word.raw()
}

/// Agrees with the sender that the message is taken. `false` when it was withdrawn first.
fn win_message(half: &ChannelHalf, word: Word) -> bool {
    match (word.kind, word.timing) {
        (Kind::Send | Kind::Request, Timing::Timed) => {
            let (offered, taken) = (word.in_state(state::OFFERED), word.in_state(state::TAKEN));
            half.exchange_state(Direction::Peer, offered, taken).is_ok()
        }
        (Kind::Send, Timing::Untimed) => settle(half, Direction::Peer, word, state::TAKEN),
        // Its sender waits for the answer in any case.
        (Kind::Request, Timing::Untimed) | (Kind::Reply, _) => true,
    }
}

/// Brings an untimed message to its end, which both parties try in their own way; nothing was said of it before.
/// `false` when the other was first.
pub(crate) fn settle(half: &ChannelHalf, direction: Direction, word: Word, end: u32) -> bool {
    let mut found = half.state(direction);
    for _ in 0..SETTLE_TRIES_MAX {
        if word.is_misjudged_by(found) {
            break;
        }
        match half.exchange_state(direction, found, word.in_state(end)) {
            Ok(()) => return true,
            Err(now) => found = now,
        }
    }
    found == word.in_state(end)
}

/// Whether the peer waits for an answer, and so takes no message of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    No,
    ForUs,
    /// It is to come from the one to whom its request was relayed.
    ForAnother,
}

/// Answers a request that was relayed, unless its caller waits for it no more. Nothing else was published or taken on
/// this channel since the request was relayed, or its caller gave it up.
pub(crate) fn answer_relayed(half: &ChannelHalf, request: Word, message: &Message, data: &[u8]) {
    if !claim_reply(half, request) {
        return;
    }
    let word = Word::reply_to(request, Data::of(data));
    if word.state_of(half.state(Direction::Own)) != state::IDLE {
        half.set_state(Direction::Own, state::IDLE);
    }
    half.publish_message(word, message.kind, &message.payload, data);
    half.kick();
}

/// Whether the caller of a request that was relayed waits for its answer. It cannot give up any more afterwards.
pub(crate) fn claim_reply(half: &ChannelHalf, request: Word) -> bool {
    let is_latest = half.own_taken() == request.raw() && half.peer_awaits() == request.raw();
    if !is_latest || half.own_closed() != 0 || gone(half).is_some() {
        return false;
    }
    if request.timing == Timing::Untimed {
        return true;
    }
    let (waiting, answered) = (request.in_state(state::OFFERED), request.in_state(state::TAKEN));
    half.exchange_reply_state(Direction::Peer, waiting, answered).is_ok()
}

/// How a message that was to be withdrawn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settled {
    Taken,
    Withdrawn,
}

/// What the death of a peer means that was not seen to take the message. Over a proxy it may have taken it and died
/// before that was told.
fn not_taken(proxied: Proxied) -> IpcError {
    match proxied {
        Proxied::No => IpcError::DestinationDied,
        Proxied::Yes => IpcError::SourceDied,
    }
}

fn patience_of(deadline: Deadline) -> Timing {
    match deadline {
        Deadline::Never => Timing::Untimed,
        Deadline::At(_) => Timing::Timed,
    }
}

/// Whether the peer sends to us while we send to it, and we are the one to give way.
fn give_way(half: &ChannelHalf, seen: u32, own_word: Word, own: u32, peer: u32) -> bool {
    let raw = half.peer_word();
    if raw == seen || half.peer_taken() == own_word.raw() {
        return false;
    }
    let word = Word::of(raw);
    let said = half.state(Direction::Peer);
    let is_over = word.is_some_and(|word| word.state_of(said) == state::WITHDRAWN || word.is_before(said));
    !is_over && both_send(own, peer, word) == Both::GiveWay
}

/// Copies the peer's message and checks that it did not change meanwhile.
#[inline]
fn copy(half: &ChannelHalf, word: Word, source: Endpoint, inbox: &mut Inbox) -> Result<(), IpcError> {
    let Inbox { message, data } = inbox;
    message.source = Some(source);
    let Some(kind) = half.copy_message(word, &mut message.payload, data) else {
        data.clear();
        return Err(IpcError::Corrupt);
    };
    message.kind = kind;
    Ok(())
}
