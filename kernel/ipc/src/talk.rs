//! Messages over one channel: what a party remembers, and the waits between the steps of [`ipc_core::exchange`].
//!
//! A party has at most one message outstanding. `send` and `sendrec` do not return before their message was taken,
//! withdrawn or lost with the peer, so that only a reply may still lie untaken when the next message is written.

use std::time::Duration;

use abi::{Calls, Endpoint, IpcError, Message, Settled};
use ipc_core::exchange::{self, Numbers, Proxied, Replied, Sending};
use ipc_core::{Budget, Data, Kind, Owed, Timing, Word, Words, posting, slot};
use ipc_shm::{ChannelHalf, ControlPage};

use crate::lanes::Attend;
use crate::wait::{Deadline, Wait};
use crate::waiting::{Failure, Stop, Terms, gone, wait_for};

/// How long a peer may take between winning a state word and what must follow at once; longer is a broken peer.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

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
    pub proxied: Proxied,
    pub budget: &'a mut Budget,
    pub attend: Attend<'a>,
}

impl Parties<'_> {
    #[inline]
    fn numbers(&self) -> Numbers {
        Numbers { own: self.own.number(), peer: self.peer.number() }
    }
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
        exchange::offered(half, &mut self.seen, self.rights.peer)
    }

    /// Takes an offered message; `false` when its sender withdrew it first.
    pub fn take(&mut self, parties: &Parties<'_>, word: Word, inbox: &mut Inbox) -> Result<bool, IpcError> {
        let is_taken = take_into(inbox, parties, word)?;
        self.seen = word.raw();
        if is_taken && word.kind == Kind::Request {
            if let Owes::Relayed(_) = self.owes {
                self.learn_own(parties.half);
            }
            self.owes = Owes::Seen(word);
            self.know_reply_taken(parties);
        }
        Ok(is_taken)
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
        let (seen, numbers) = (self.seen, parties.numbers());
        let look = || exchange::sent(half, seen, word, numbers);
        let terms = Terms::until(deadline).calling(parties.peer);
        match wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look) {
            Ok(Sending::Taken) => Ok(()),
            Ok(Sending::GiveWay) | Err(Stop::Deadlock) => match self.give_up(parties, word)? {
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
                Ok(Replied::Published(reply)) => self.take_reply(parties, reply, inbox),
                Ok(Replied::Corrupt) => Err(IpcError::Corrupt.into()),
                Ok(Replied::GiveWay) => match self.give_up(parties, word)? {
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
        exchange::win_reply(half, request).map_err(|_| IpcError::NotWaiting)?;
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
        let look = || exchange::left_slot(half, word);
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
        posting::is_posted(half, self.notified) && self.rights.peer.contains(Calls::NOTIFY)
    }

    /// Bits the peer posted since the last look; 0 for none.
    pub fn take_notifications(&mut self, half: &ChannelHalf) -> u64 {
        if self.has_notifications(half) { posting::take(half, &mut self.notified) } else { 0 }
    }

    fn publish(&mut self, parties: &Parties<'_>, word: Word, message: &Message, data: &[u8]) {
        (self.own, self.is_free) = (word.raw(), false);
        if word.kind != Kind::Reply {
            self.counted = word.raw();
        }
        publish(parties.half, word, message, data);
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
        let half = parties.half;
        let Some(word) = Word::of(self.own) else { return Ok(()) };
        let look = || exchange::left_slot(half, word);
        let terms = Terms::until(deadline);
        match wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look) {
            Ok(Settled::Taken) => Ok(()),
            Ok(Settled::Withdrawn) => {
                slot::begin_anew(half);
                Ok(())
            }
            Err(Stop::TimedOut) => Err(IpcError::TimedOut.into()),
            Err(Stop::PeerGone(gone)) => Err(gone.or_died(IpcError::DestinationDied)),
            Err(Stop::Own(error)) => Err(error.into()),
            Err(Stop::Deadlock) => Err(IpcError::Deadlock.into()),
        }
    }

    fn await_reply(&mut self, parties: &mut Parties<'_>, word: Word, deadline: Deadline) -> Result<Replied, Stop> {
        let half = parties.half;
        let (seen, numbers) = (self.seen, parties.numbers());
        let look = || exchange::replied(half, seen, word, numbers);
        let terms = Terms::until(deadline).calling(parties.peer);
        wait_for(half, parties.own_control, parties.budget, terms, &mut parties.attend, look)
    }

    fn take_reply(&mut self, parties: &Parties<'_>, reply: Word, inbox: &mut Inbox) -> Result<(), Failure> {
        take_into(inbox, parties, reply)?;
        self.seen = reply.raw();
        self.is_free = true;
        Ok(())
    }

    /// The replier won: its reply follows at once, or it is broken or dies.
    fn late_reply(&mut self, parties: &mut Parties<'_>, word: Word, inbox: &mut Inbox) -> Result<(), Failure> {
        match self.await_reply(parties, word, Deadline::after(Wait::For(SETTLE_LIMIT))) {
            Ok(Replied::Published(reply)) => self.take_reply(parties, reply, inbox),
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
        if exchange::give_up_reply(parties.half, word, parties.proxied) {
            return Err(IpcError::TimedOut.into());
        }
        self.late_reply(parties, word, inbox)
    }

    /// Takes a message back, or learns that it was taken.
    fn give_up(&mut self, parties: &mut Parties<'_>, word: Word) -> Result<Settled, Failure> {
        let half = parties.half;
        if let Some(settled) = exchange::take_back(half, word, parties.proxied) {
            return Ok(settled);
        }
        let look = || exchange::settled(half, word);
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
    publish(half, Word::reply_to(request, Data::of(data)), message, data);
}

#[inline]
fn publish(half: &ChannelHalf, word: Word, message: &Message, data: &[u8]) {
    exchange::publish(half, word, || half.write_line(word, message.kind, &message.payload, data));
}

/// Whether the caller of a request that was relayed waits for its answer. It cannot give up any more afterwards.
pub(crate) fn claim_reply(half: &ChannelHalf, request: Word) -> bool {
    let is_latest = half.own_taken() == request.raw() && half.peer_awaits() == request.raw();
    if !is_latest || half.own_closed() != 0 || gone(half).is_some() {
        return false;
    }
    exchange::win_reply(half, request).is_ok()
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

/// Takes a message into the inbox; `false` when its sender withdrew it first.
#[inline]
fn take_into(inbox: &mut Inbox, parties: &Parties<'_>, word: Word) -> Result<bool, IpcError> {
    let (half, mut is_copied) = (parties.half, false);
    let Inbox { message, data } = inbox;
    let copy = || {
        is_copied = true;
        message.source = Some(parties.peer);
        message.kind = half.copy_line(word, &mut message.payload, data)?;
        Some(())
    };
    let taken = exchange::take(half, word, parties.proxied, copy);
    if is_copied && taken != Ok(Some(())) {
        data.clear();
    }
    Ok(taken?.is_some())
}
