//! The intercepted calls of one node: from the kernel's notification to the one answer.
//!
//! Events in, [`CallEffect`]s out, the time passed in. What must outlive a kill is in the [`Journal`] before the effect
//! that depends on it is given; what is only here is found again from the journal by [`Origin::resume`].
//!
//! A call that points at something is read first, once; it is of the life that its node had when it was received. What
//! comes back for the caller's memory is written before the answer. Until it is written the call has its order: a
//! successor asks again and is told the same. From the outcome on nothing but the writing ends it, for what is written
//! after the answer would be written into what the caller does next. A descriptor is given likewise, and with it the
//! answer.
//!
//! A call has one order on its way at a time:
//!
//! ```text
//!            ask: the node is up              outcome · other life · given up · fenced
//! Received ─────────────────────────▶ Asked ──────────────────────────────────────────▶ Settled ─▶ answered, free
//!     │                                 ▲ │ everybody: the next node                       ▲
//!     │ waits: the node is away         └─┘                                                │
//!     └────────────────────────────────────────────────────────────────────────────────────┘ nobody to ask
//! ```
//!
//! States of another node, as this one sees it:
//!
//! | state | calls to it | until |
//! |---|---|---|
//! | away | wait | its call gate greets; [`PATIENCE_MS`] later it is given up |
//! | up | are asked, in order | the connection ends: away |
//! | given up | EHOSTUNREACH | it greets |
//! | fenced | ESRCH | it greets, in another life |
//!
//! A greeting says which life the node's executor has. When it is another one than before, everything that was asked
//! or waited is ESRCH: the processes that were meant are gone, and their numbers may be others'.

use std::collections::{BTreeMap, BTreeSet};

use crate::calls::{self, Asked, CallArgument, Destination, Led, Pointed};
use crate::journal::{CallAnswer, CallStep, Journal, JournalMemory, Notification, SlotIndex};
use crate::limits::{PATIENCE_MS, WINDOW};
use crate::order::{Deed, LifeNumber, Order, OrderResult, Outcome, ResultBytes, Sequence, Stale, StateQuestion};
use crate::permission::{SignalError, Signaller};
use crate::range::{Seat, Seats};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallEffect {
    /// To the call gate of the order's node, over the connection that greeted.
    Send { to: Seat, order: Order },
    /// What lies there in the memory of the calling thread; then [`Origin::read`]. Nothing else waits for it.
    Read { slot: SlotIndex, notification: Notification, address: u64, pointed: Pointed },
    /// Where a descriptor of the calling thread leads; then [`Origin::looked`]. Nothing else waits for it.
    Look { slot: SlotIndex, notification: Notification, descriptor: i32 },
    /// Into the memory of the calling thread; then [`Origin::finished`]. Nothing else waits for it.
    Write { slot: SlotIndex, notification: Notification, address: u64, bytes: ResultBytes },
    /// The descriptor of a placeholder for a process in this life of its node; it is the answer. Then
    /// [`Origin::finished`]. Nothing else waits for it.
    Hold { slot: SlotIndex, notification: Notification, process: u32, life: LifeNumber },
    /// To the kernel; then [`Origin::answered`], whatever the kernel said.
    Answer { slot: SlotIndex, notification: Notification, answer: CallAnswer },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Peer {
    Away { since_ms: u64 },
    Up(LifeNumber),
    GivenUp,
    Fenced,
}

/// Of which order the result is being brought to the caller, and what is answered then.
#[derive(Clone, Copy, Debug)]
struct Finishing {
    which: (Seat, Sequence),
    value: u32,
}

/// A call that is not settled.
#[derive(Clone, Copy, Debug)]
struct Call {
    deed: Deed,
    destination: Destination,
    /// The node that is asked now, or waited for.
    node: Seat,
}

#[derive(Debug)]
pub struct Origin<M> {
    own: Seat,
    journal: Journal<M>,
    peers: BTreeMap<Seat, Peer>,
    calls: BTreeMap<SlotIndex, Call>,
    /// Orders without an outcome.
    asked: BTreeMap<(Seat, Sequence), SlotIndex>,
    /// Calls that wait until a node is up, or its window has room.
    waiting: BTreeMap<Seat, BTreeSet<SlotIndex>>,
    /// Calls whose memory is being read, and for which node.
    reading: BTreeMap<SlotIndex, Seat>,
    /// Calls of which it is not known for which node they are.
    looking: BTreeSet<SlotIndex>,
    /// Calls whose result is being brought to the caller.
    finishing: BTreeMap<SlotIndex, Finishing>,
}

/// Slots as a successor finds them.
#[derive(Debug, Default)]
pub struct Found {
    /// Whose caller has to be looked at: [`Origin::received`].
    pub received: Vec<SlotIndex>,
    pub free: Vec<SlotIndex>,
}

impl<M: JournalMemory> Origin<M> {
    /// Over a journal that was just made, or that of a predecessor. `others`: the other nodes of the container.
    pub fn resume(own: Seat, others: Seats, journal: Journal<M>, now_ms: u64) -> (Origin<M>, Found, Vec<CallEffect>) {
        let away = |seat| (seat, Peer::Away { since_ms: now_ms });
        let peers = Seat::all().filter(|seat| *seat != own && others.contains(*seat)).map(away).collect();
        let (calls, asked, waiting, reading) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (looking, finishing) = (BTreeSet::new(), BTreeMap::new());
        let mut origin = Origin { own, journal, peers, calls, asked, waiting, reading, looking, finishing };
        let (mut found, mut acts) = (Found::default(), Vec::new());
        for slot in SlotIndex::all() {
            let Some(notification) = origin.journal.notification(slot) else {
                found.free.push(slot);
                continue;
            };
            match origin.journal.step(slot) {
                CallStep::Received => found.received.push(slot),
                CallStep::Settled(answer) => acts.push(CallEffect::Answer { slot, notification, answer }),
                CallStep::Asked { node, sequence } => origin.adopt(slot, notification, node, sequence, &mut acts),
            }
        }
        (origin, found, acts)
    }

    fn adopt(
        &mut self,
        slot: SlotIndex,
        notification: Notification,
        node: Seat,
        sequence: Sequence,
        acts: &mut Vec<CallEffect>,
    ) {
        let read = self.journal.argument(slot);
        match calls::asked(notification.number, &notification.arguments, self.own, read) {
            Asked::Forward { to, deed } if self.peers.contains_key(&node) => {
                self.calls.insert(slot, Call { deed, destination: to, node });
                self.asked.insert((node, sequence), slot);
            }
            // Of a node that is not of the container any more, or of a release that knew more calls.
            _ => self.settle(slot, CallAnswer::Failed(SignalError::Unreachable), acts),
        }
    }

    /// The kernel wrote a call into a slot, and this is who makes it; the kernel said after the look that the call is
    /// still under way. `None`: it is not, or the caller is nobody of this container.
    pub fn received(&mut self, slot: SlotIndex, sender: Option<Signaller>) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        let Some(notification) = self.journal.notification(slot) else { return acts };
        let Some(sender) = sender else {
            self.settle(slot, CallAnswer::Failed(SignalError::NoProcess), &mut acts);
            return acts;
        };
        self.journal.set_sender(slot, &sender);
        self.begin(slot, notification, &mut acts);
        acts
    }

    /// What was read for a call, or why it could not be. The kernel said after that that the call is still under way.
    pub fn read(&mut self, slot: SlotIndex, id: u64, read: Result<CallArgument, SignalError>) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        // It may be over by now, and the slot another one's.
        let notification = self.journal.notification(slot).filter(|notification| notification.id == id);
        let (Some(notification), Some(_)) = (notification, self.reading.get(&slot)) else { return acts };
        self.reading.remove(&slot);
        match read {
            Ok(argument) => {
                self.journal.set_argument(slot, argument);
                self.begin(slot, notification, &mut acts);
            }
            Err(error) => self.settle(slot, CallAnswer::Failed(error), &mut acts),
        }
        acts
    }

    /// Where a descriptor leads, for which [`CallEffect::Look`] was asked. The kernel said after that that the call is
    /// still under way. Of what leads elsewhere, or what nobody could see, the kernel knows what to say.
    pub fn looked(&mut self, slot: SlotIndex, id: u64, led: Led) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        let notification = self.journal.notification(slot).filter(|notification| notification.id == id);
        let Some(notification) = notification else { return acts };
        if self.looking.remove(&slot) {
            self.journal.set_looked(slot, led);
            self.begin(slot, notification, &mut acts);
        }
        acts
    }

    fn begin(&mut self, slot: SlotIndex, notification: Notification, acts: &mut Vec<CallEffect>) {
        let read = self.journal.argument(slot);
        match calls::asked(notification.number, &notification.arguments, self.own, read) {
            Asked::Reads { to, address, pointed } => {
                self.reading.insert(slot, to);
                acts.push(CallEffect::Read { slot, notification, address, pointed });
            }
            Asked::Looks { descriptor } => {
                self.looking.insert(slot);
                acts.push(CallEffect::Look { slot, notification, descriptor });
            }
            Asked::Failed(error) => self.settle(slot, CallAnswer::Failed(error), acts),
            // Nothing was decided about it, so nothing is lost when the kernel reads its arguments again.
            Asked::Unknown => self.settle(slot, CallAnswer::Native, acts),
            Asked::Forward { to: destination, deed } => {
                let first = match destination {
                    Destination::Node(node) => Some(node),
                    Destination::AllOthers => self.others().next(None),
                };
                match first {
                    None => self.settle(slot, CallAnswer::Native, acts),
                    Some(node) => {
                        self.calls.insert(slot, Call { deed, destination, node });
                        self.go_on(slot, acts);
                    }
                }
            }
        }
    }

    /// The answer was given, or nobody waited for it: the slot is free.
    pub fn answered(&mut self, slot: SlotIndex) {
        self.journal.free(slot);
    }

    /// A connection to the call gate of a node begins. What it carried before is lost, on the way there or back.
    ///
    /// Before it calls this, a call gate receives and looks at every call that is there: one that was made before the
    /// node's executor began anew must not be asked of the new one.
    pub fn greeted(&mut self, node: Seat, life: LifeNumber) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        let known = self.journal.executor_life(node);
        // Lives only rise: this is what a connection says that was overtaken by another one.
        if !self.peers.contains_key(&node) || known.is_some_and(|known| life < known) {
            return acts;
        }
        if known != Some(life) {
            if known.is_some() {
                self.end_all(node, SignalError::NoProcess, &mut acts);
            }
            self.journal.set_executor_life(node, life);
        }
        self.peers.insert(node, Peer::Up(life));
        let again: Vec<(Sequence, SlotIndex)> = self.unanswered_of(node);
        acts.extend(again.into_iter().filter_map(|(sequence, slot)| self.order(slot, node, sequence, life)));
        self.pump(node, &mut acts);
        acts
    }

    /// The connection ended. Its link is still there, or not known to be gone.
    pub fn parted(&mut self, node: Seat, now_ms: u64) {
        if let Some(peer @ Peer::Up(_)) = self.peers.get_mut(&node) {
            *peer = Peer::Away { since_ms: now_ms };
        }
    }

    /// The link to a node is given up. That is no news of one that is lost.
    pub fn given_up(&mut self, node: Seat) -> Vec<CallEffect> {
        if self.peers.get(&node) == Some(&Peer::Fenced) {
            return Vec::new();
        }
        self.leave(node, Peer::GivenUp, SignalError::Unreachable)
    }

    /// The engine decided that a node is lost.
    pub fn fenced(&mut self, node: Seat) -> Vec<CallEffect> {
        self.leave(node, Peer::Fenced, SignalError::NoProcess)
    }

    pub fn outcome(&mut self, node: Seat, outcome: Outcome) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        if outcome.origin_life != self.journal.life() {
            return acts;
        }
        let which = (node, outcome.sequence);
        let asked = self.asked.get(&which).copied().filter(|slot| !self.finishing.contains_key(slot));
        if let Some(slot) = asked {
            if let Some(finish) = self.finish(slot, which, &outcome) {
                acts.push(finish);
                return acts;
            }
            self.asked.remove(&which);
            let answer = match outcome.carried {
                OrderResult::Done(value) => match self.calls.get(&slot).map(|call| call.deed) {
                    Some(Deed::Ask(_)) => CallAnswer::Value(value),
                    _ => CallAnswer::Done,
                },
                OrderResult::Failed(error) => CallAnswer::Failed(error),
                OrderResult::Refused(Stale::Executor) => CallAnswer::Failed(SignalError::NoProcess),
                OrderResult::Refused(Stale::Origin | Stale::Sequence) => CallAnswer::Failed(SignalError::Unreachable),
            };
            self.end(slot, answer, &mut acts);
            self.pump(node, &mut acts);
        }
        acts
    }

    /// Where the outcome is not yet the answer.
    fn finish(&mut self, slot: SlotIndex, which: (Seat, Sequence), outcome: &Outcome) -> Option<CallEffect> {
        let OrderResult::Done(value) = outcome.carried else { return None };
        let notification = self.journal.notification(slot)?;
        let effect = match self.calls.get(&slot)?.deed {
            Deed::Ask(StateQuestion::PidfdOpen(process)) => {
                // That of the node now: if it began another life since, this call had ended.
                let life = self.journal.executor_life(which.0)?;
                CallEffect::Hold { slot, notification, process, life }
            }
            _ if outcome.data == ResultBytes::NONE => return None,
            _ => {
                let (address, bytes) = calls::placed(notification.number, &notification.arguments, &outcome.data)?;
                CallEffect::Write { slot, notification, address, bytes }
            }
        };
        self.finishing.insert(slot, Finishing { which, value });
        Some(effect)
    }

    /// The result is in the caller's memory, or it has the descriptor; or that cannot be.
    pub fn finished(&mut self, slot: SlotIndex, id: u64, done: Result<(), SignalError>) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        let is_it = self.journal.notification(slot).is_some_and(|notification| notification.id == id);
        let Some(Finishing { which, value }) = self.finishing.get(&slot).copied().filter(|_| is_it) else {
            return acts;
        };
        self.finishing.remove(&slot);
        self.asked.remove(&which);
        self.end(slot, done.map_or_else(CallAnswer::Failed, |()| CallAnswer::Value(value)), &mut acts);
        self.pump(which.0, &mut acts);
        acts
    }

    /// Gives up who has been away for too long.
    pub fn tick(&mut self, now_ms: u64) -> Vec<CallEffect> {
        let late = |peer: &Peer| matches!(*peer, Peer::Away { since_ms } if now_ms >= since_ms + PATIENCE_MS);
        let late: Vec<Seat> = self.peers.iter().filter(|(_, peer)| late(peer)).map(|(seat, _)| *seat).collect();
        late.into_iter().flat_map(|node| self.given_up(node)).collect()
    }

    /// When [`Origin::tick`] has something to do next.
    pub fn next_tick_ms(&self) -> Option<u64> {
        let ends = self.peers.values().filter_map(|peer| match peer {
            Peer::Away { since_ms } => Some(since_ms + PATIENCE_MS),
            _ => None,
        });
        ends.min()
    }

    pub fn journal(&self) -> &Journal<M> {
        &self.journal
    }

    pub fn journal_mut(&mut self) -> &mut Journal<M> {
        &mut self.journal
    }

    /// Calls that are not settled.
    pub fn open(&self) -> usize {
        self.calls.len() + self.reading.len() + self.looking.len()
    }

    fn others(&self) -> Seats {
        self.peers.keys().copied().collect()
    }

    /// Asks the node whose turn it is, waits for it, or ends the call there.
    fn go_on(&mut self, slot: SlotIndex, acts: &mut Vec<CallEffect>) {
        let Some(node) = self.calls.get(&slot).map(|call| call.node) else { return };
        match self.peers.get(&node) {
            Some(Peer::Up(life)) if self.has_room(node) => {
                let life = *life;
                let sequence = self.journal.ask(slot, node);
                self.asked.insert((node, sequence), slot);
                acts.extend(self.order(slot, node, sequence, life));
            }
            Some(Peer::Up(_) | Peer::Away { .. }) => drop(self.waiting.entry(node).or_default().insert(slot)),
            Some(Peer::GivenUp) => self.end(slot, CallAnswer::Failed(SignalError::Unreachable), acts),
            Some(Peer::Fenced) | None => self.end(slot, CallAnswer::Failed(SignalError::NoProcess), acts),
        }
    }

    /// A node said its word, or never will: the call goes on to the next one, or is settled.
    fn end(&mut self, slot: SlotIndex, answer: CallAnswer, acts: &mut Vec<CallEffect>) {
        let others = self.others();
        let Some(call) = self.calls.get_mut(&slot) else { return };
        if call.destination != Destination::AllOthers {
            return self.settle(slot, answer, acts);
        }
        match others.next(Some(call.node)) {
            Some(next) => {
                call.node = next;
                self.go_on(slot, acts);
            }
            None => self.settle(slot, CallAnswer::Native, acts),
        }
    }

    fn settle(&mut self, slot: SlotIndex, answer: CallAnswer, acts: &mut Vec<CallEffect>) {
        self.journal.settle(slot, answer);
        self.calls.remove(&slot);
        if let Some(notification) = self.journal.notification(slot) {
            acts.push(CallEffect::Answer { slot, notification, answer });
        }
    }

    fn leave(&mut self, node: Seat, peer: Peer, error: SignalError) -> Vec<CallEffect> {
        let mut acts = Vec::new();
        if let Some(known) = self.peers.get_mut(&node) {
            *known = peer;
            self.end_all(node, error, &mut acts);
        }
        acts
    }

    /// Everything that was asked of a node, waits for it, or is read for it.
    fn end_all(&mut self, node: Seat, error: SignalError, acts: &mut Vec<CallEffect>) {
        let asked = self.unanswered_of(node);
        self.asked.retain(|(of, _), slot| *of != node || self.finishing.contains_key(slot));
        let waiting = self.waiting.remove(&node).unwrap_or_default();
        for slot in asked.into_iter().map(|(_, slot)| slot).chain(waiting) {
            self.end(slot, CallAnswer::Failed(error), acts);
        }
        if error == SignalError::NoProcess {
            // In the journal: a successor asks again where it leads.
            self.looking.iter().for_each(|slot| self.journal.note_ended(*slot, node));
            // Whose result is on its way gets it from this gate. A successor would ask the node's next life.
            let finishing = self.finishing.iter().filter(|(_, finishing)| finishing.which.0 == node);
            finishing.for_each(|(slot, _)| self.journal.settle(*slot, CallAnswer::Failed(error)));
        }
        let reading: Vec<SlotIndex> =
            self.reading.iter().filter(|(_, of)| **of == node).map(|(slot, _)| *slot).collect();
        for slot in reading {
            self.reading.remove(&slot);
            self.settle(slot, CallAnswer::Failed(error), acts);
        }
    }

    /// Asks what waits for a node, as long as there is room.
    fn pump(&mut self, node: Seat, acts: &mut Vec<CallEffect>) {
        while self.has_room(node) && matches!(self.peers.get(&node), Some(Peer::Up(_))) {
            let Some(slot) = self.waiting.get_mut(&node).and_then(BTreeSet::pop_first) else { break };
            self.go_on(slot, acts);
        }
    }

    fn has_room(&self, node: Seat) -> bool {
        self.journal.next(node).0 - self.settled_below(node).0 < WINDOW
    }

    fn asked_of(&self, node: Seat) -> impl Iterator<Item = (Sequence, SlotIndex)> + '_ {
        let range = (node, Sequence(0))..=(node, Sequence(u64::MAX));
        self.asked.range(range).map(|((_, sequence), slot)| (*sequence, *slot))
    }

    /// But for those whose outcome is there.
    fn unanswered_of(&self, node: Seat) -> Vec<(Sequence, SlotIndex)> {
        self.asked_of(node).filter(|(_, slot)| !self.finishing.contains_key(slot)).collect()
    }

    fn settled_below(&self, node: Seat) -> Sequence {
        let first = self.asked_of(node).next().map(|(sequence, _)| sequence);
        first.unwrap_or_else(|| self.journal.next(node))
    }

    fn order(&self, slot: SlotIndex, node: Seat, sequence: Sequence, life: LifeNumber) -> Option<CallEffect> {
        let call = self.calls.get(&slot)?;
        let order = Order {
            origin: self.own,
            origin_life: self.journal.life(),
            sequence,
            settled_below: self.settled_below(node),
            executor_life: life,
            sender: self.journal.sender(slot),
            deed: call.deed,
        };
        Some(CallEffect::Send { to: node, order })
    }
}
