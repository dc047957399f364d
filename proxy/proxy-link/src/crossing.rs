//! One channel that crosses the link: what of the local memory has been told to the far side, and what the far side
//! said.
//!
//! Everything here except the stage and the open tags can be lost at any moment: [`Crossing::restart`] forgets it,
//! RESYNC brings it back. The rules, for a word or entry `x` of the local party:
//!
//! - told at most once per connection (`forwarded`, `sent`);
//! - `mark_taken` and `confirm` only when the far side holds `x`;
//! - a RESYNC that shows `x` at the far side counts as told.
//!
//! **Acknowledgement is lazy.** TAKEN of a request is implied by its reply, and what was put into a ring is told with
//! the next entry of the other direction. Only what nobody will imply is told at once; the rest with the next tick.

use abi::layout::word;
use abi::ring::RingSpec;
use abi::{Carried, IpcError, LocalRole, Settled};
use wire::frame::OpenTags;
use wire::{Frame, OpenTag, Resync, RingEntry, RingHead, WireChannel};

use crate::body::Outgoing;
use crate::channel::{Ends, LocalChannel};
use crate::limits;
use crate::link::{Class, Link};
use crate::tags::Tags;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Opener only: OPENED has not come.
    Opening(Asking),
    Open,
    /// The local party is gone; CLOSE follows what it had published.
    Draining(IpcError),
    /// CLOSE was told. The memory stays until CLOSED: what is lost with the connection is told again in the next.
    Ending(IpcError),
}

/// How far an OPEN has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asking {
    Untold,
    Told,
    /// The peer's own channel of the same pair and lane goes first; it is under way at the broker.
    GivingWay,
}

/// How a turn ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// All is told.
    Idle,
    /// There is more, others first.
    More,
    /// There is more, but no room.
    Blocked,
    /// All is told and the local party is gone: close.
    Drained(IpcError),
}

/// Whether lazy acknowledgements go too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Telling {
    Needed,
    All,
}

pub(crate) struct Crossing<C> {
    pub(crate) local: C,
    pub(crate) stage: Stage,
    /// The peer listed the channel in this connection's RESYNC.
    pub(crate) listed: bool,
    wire: WireChannel,
    pub(crate) ends: Ends,
    /// Times the peer has answered OPEN with its own channel, and that came to nothing.
    pub(crate) refusals: u32,
    /// Handed over from a proxy before us: the peer knows the open tags better.
    resumed: bool,
    /// Word of the local party's message that the far side has.
    forwarded: u32,
    cancel_told: u32,
    taken_told: u32,
    /// A message the far party wants back: its fate is to be told.
    wanted_back: Option<u32>,
    /// A reply nobody waits for: its sender gets it back.
    dropped: Option<u32>,
    /// Next entry of the local party to be sent.
    sent: u32,
    put_told: u32,
    /// Number of the local party's notification that the far side was told of last.
    notify_told: u64,
    /// Number of the far party's notification that was posted here and confirmed last.
    notified_told: u64,
    tags: Tags,
    /// Entries were put and the local party was not woken.
    pub(crate) unkicked: bool,
    /// It stands in the queue of those that may have something to tell.
    pub(crate) queued: bool,
}

impl<C: LocalChannel> Crossing<C> {
    pub(crate) fn new(wire: WireChannel, ends: Ends, local: C, stage: Stage) -> Crossing<C> {
        let put = if ends.ring.is_some() { local.put_count() } else { 0 };
        let sent = if ends.ring.is_some() { local.entries().map_or(0, |cursor| cursor.head) } else { 0 };
        Crossing {
            local,
            stage,
            listed: false,
            wire,
            ends,
            refusals: 0,
            resumed: false,
            forwarded: 0,
            cancel_told: 0,
            taken_told: 0,
            wanted_back: None,
            dropped: None,
            sent,
            put_told: put,
            notify_told: 0,
            notified_told: 0,
            tags: Tags::new(ends.ring.map_or(0, |ring| ring.entries)),
            unkicked: false,
            queued: false,
        }
    }

    pub(crate) fn resumed(wire: WireChannel, ends: Ends, local: C) -> Crossing<C> {
        let is_open = local.role() == LocalRole::Server || local.was_open();
        let stage = if is_open { Stage::Open } else { Stage::Opening(Asking::Untold) };
        Crossing { resumed: true, ..Crossing::new(wire, ends, local, stage) }
    }

    /// A new connection: nothing was told in it.
    pub(crate) fn restart(&mut self) {
        self.listed = false;
        self.forwarded = 0;
        self.cancel_told = 0;
        self.wanted_back = None;
        self.dropped = None;
        self.notify_told = 0;
        match self.stage {
            Stage::Opening(_) => self.stage = Stage::Opening(Asking::Untold),
            Stage::Ending(reason) => self.stage = Stage::Draining(reason),
            Stage::Open | Stage::Draining(_) => {}
        }
    }

    /// The far side has it.
    pub(crate) fn opened(&mut self) {
        self.local.mark_open();
        self.stage = Stage::Open;
    }

    /// Nothing more is told or heard for it in this connection.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_))
    }

    /// What this side holds; `tags` is storage for the frame.
    pub(crate) fn resync<'a>(&mut self, tags: &'a mut Vec<OpenTag>) -> Resync<'a> {
        self.taken_told = self.local.taken();
        self.notified_told = self.local.notified();
        let mut produced = 0;
        if self.ends.ring.is_some() {
            produced = self.local.put_count();
            *tags = self.tags.list();
        }
        self.put_told = produced;
        Resync {
            channel: self.wire,
            published: self.local.published(),
            taken: self.taken_told,
            produced,
            notified: self.notified_told,
            open_tags: OpenTags::Listed(tags),
        }
    }

    /// What the far side holds.
    pub(crate) fn apply(&mut self, far: &Resync<'_>) -> Result<(), IpcError> {
        self.listed = true;
        if matches!(self.stage, Stage::Opening(_)) {
            self.opened();
        }
        if far.published != 0 {
            self.forwarded = far.published;
            if far.taken == far.published {
                self.local.mark_taken(far.taken);
            }
        }
        self.local.confirm_notification(far.notified);
        if let Some(ring) = self.ends.ring {
            let cursor = self.local.entries()?;
            if far.produced.wrapping_sub(cursor.head) > cursor.tail.wrapping_sub(cursor.head) {
                return Err(IpcError::Corrupt);
            }
            self.tags.confirm(far.produced.wrapping_sub(cursor.head));
            self.tags.forget_sent();
            self.local.confirm(far.produced);
            self.sent = far.produced;
            if std::mem::take(&mut self.resumed) {
                self.tags.merge(far.open_tags.iter(), ring.arena_bytes);
            }
        }
        Ok(())
    }

    // ---- To the far side.

    /// Tells the far side what it does not know yet, as far as there is room and it is this channel's turn.
    pub(crate) fn tell(&mut self, link: &mut Link) -> Result<Turn, IpcError> {
        if matches!(self.stage, Stage::Opening(_) | Stage::Ending(_)) {
            return Ok(Turn::Idle);
        }
        let draining = matches!(self.stage, Stage::Draining(_));
        let telling = if draining { Telling::All } else { Telling::Needed };
        let turn = match self.ends.ring {
            None => self.tell_messages(link, telling)?,
            Some(ring) => self.tell_entries(link, ring, telling)?,
        };
        let turn = if turn == Turn::Idle { self.tell_notifications(link) } else { turn };
        match (turn, self.stage) {
            (Turn::Idle, Stage::Draining(reason)) if self.local.pending_notification().is_none() => {
                Ok(Turn::Drained(reason))
            }
            _ => Ok(turn),
        }
    }

    /// Tells what `tell` left to be implied by a later frame that did not come.
    pub(crate) fn tell_acknowledgements(&mut self, link: &mut Link) {
        let channel = self.wire;
        if let Some(ring) = self.ends.ring {
            self.tell_put_count(link, ring, Telling::All);
        } else {
            let taken = self.local.taken();
            if taken != 0
                && taken != self.taken_told
                && link.put(&Frame::Taken { channel, word: taken }, Class::Control)
            {
                self.taken_told = taken;
            }
        }
    }

    /// `false` when there is no room.
    pub(crate) fn tell_open(&mut self, link: &mut Link) -> bool {
        let Ends { dc, from, to, lane, ring, incarnation } = self.ends;
        let open = Frame::Open { channel: self.wire, dc, from, to, lane, ring, incarnation };
        let told = link.put(&open, Class::Control);
        if told {
            self.stage = Stage::Opening(Asking::Told);
        }
        told
    }

    fn tell_messages(&mut self, link: &mut Link, telling: Telling) -> Result<Turn, IpcError> {
        let channel = self.wire;
        if let Some(word) = self.wanted_back
            && let Some(settled) = self.give_back(word)
        {
            let frame = match settled {
                Settled::Withdrawn => Frame::Withdrawn { channel, word },
                Settled::Taken => Frame::Taken { channel, word },
            };
            if !link.put(&frame, Class::Control) {
                return Ok(Turn::Blocked);
            }
            self.wanted_back = None;
        }
        if let Some(word) = self.dropped {
            if !link.put(&Frame::Withdrawn { channel, word }, Class::Control) {
                return Ok(Turn::Blocked);
            }
            self.dropped = None;
        }
        let taken = self.local.taken();
        if taken == 0 && self.taken_told != 0 {
            // Nobody takes back that something was taken, and no frame says so: the peer would cut the link, which is
            // everybody's.
            return Err(IpcError::Corrupt);
        }
        let implied = taken & word::KIND_MASK == word::REQUEST && telling == Telling::Needed;
        if taken != self.taken_told && !implied {
            if !link.put(&Frame::Taken { channel, word: taken }, Class::Control) {
                return Ok(Turn::Blocked);
            }
            self.taken_told = taken;
        }
        if self.tell_cancel(link) == Turn::Blocked {
            return Ok(Turn::Blocked);
        }
        self.tell_outbound(link)
    }

    /// `None` while the local party is taking it.
    fn give_back(&self, word: u32) -> Option<Settled> {
        let never_came = self.local.published() != word;
        if never_came { Some(Settled::Withdrawn) } else { self.local.withdraw(word) }
    }

    fn tell_cancel(&mut self, link: &mut Link) -> Turn {
        let Some(word) = self.local.cancel_requested() else { return Turn::Idle };
        if word != self.forwarded {
            self.local.settle_withdrawn(word);
        } else if word != self.cancel_told {
            if !link.put(&Frame::Withdraw { channel: self.wire, word }, Class::Control) {
                return Turn::Blocked;
            }
            self.cancel_told = word;
        }
        Turn::Idle
    }

    fn tell_outbound(&mut self, link: &mut Link) -> Result<Turn, IpcError> {
        let Some(message) = self.local.outbound(self.forwarded)? else { return Ok(Turn::Idle) };
        // A reply implies that its request was taken; what was taken before it has been told, what was taken after it
        // is told by itself.
        let taken = self.local.taken();
        let frame = Frame::Message {
            channel: self.wire,
            word: message.word,
            kind: message.kind,
            payload: &message.payload,
            inline: &message.inline,
        };
        if !link.put(&frame, Class::Bulk) {
            return Ok(Turn::Blocked);
        }
        self.forwarded = message.word;
        if word::answers(message.word, taken) {
            self.taken_told = taken;
        }
        Ok(Turn::Idle)
    }

    fn tell_notifications(&mut self, link: &mut Link) -> Turn {
        let channel = self.wire;
        let notified = self.local.notified();
        if notified != self.notified_told {
            if !link.put(&Frame::Notified { channel, number: notified }, Class::Control) {
                return Turn::Blocked;
            }
            self.notified_told = notified;
        }
        if let Some((number, mask)) = self.local.pending_notification()
            && number != self.notify_told
        {
            if !link.put(&Frame::Notify { channel, number, mask }, Class::Bulk) {
                return Turn::Blocked;
            }
            self.notify_told = number;
        }
        // While one is unconfirmed the local party's further bits coalesce in its own mask.
        Turn::Idle
    }

    fn tell_entries(&mut self, link: &mut Link, ring: RingSpec, telling: Telling) -> Result<Turn, IpcError> {
        let mut bytes = 0;
        for _ in 0..limits::TURN_ENTRIES {
            let cursor = self.local.entries()?;
            if cursor.tail.wrapping_sub(self.sent) > ring.entries {
                return Err(IpcError::Corrupt);
            }
            if cursor.tail == self.sent {
                return Ok(self.tell_put_count(link, ring, telling));
            }
            if bytes >= limits::TURN_BYTES {
                break;
            }
            let sent = match self.local.role() {
                LocalRole::Client => self.tell_submission(link)?,
                LocalRole::Server => self.tell_completion(link)?,
            };
            match sent {
                None if bytes == 0 => return Ok(Turn::Blocked),
                // The batch is full, and the next one is another channel's.
                None => break,
                Some(count) => bytes += count,
            }
        }
        Ok(Turn::More)
    }

    fn tell_put_count(&mut self, link: &mut Link, ring: RingSpec, telling: Telling) -> Turn {
        let put = self.local.put_count();
        let untold = put.wrapping_sub(self.put_told);
        if untold >= ring.entries.div_ceil(2) && untold > 1 || untold > 0 && telling == Telling::All {
            if !link.put(&Frame::Produced { channel: self.wire, produced: put }, Class::Control) {
                return Turn::Blocked;
            }
            self.put_told = put;
        }
        Turn::Idle
    }

    /// Bytes that were put, `None` when there is no room.
    fn tell_submission(&mut self, link: &mut Link) -> Result<Option<usize>, IpcError> {
        let entry = self.local.submission(self.sent)?;
        if !entry.fits(self.local.arena_bytes()) || entry.reserved != 0 {
            return Err(IpcError::Corrupt);
        }
        if !link.has_room_for_entry(entry.out_bytes) {
            return Ok(None);
        }
        if !self.tags.insert(&entry) {
            return Err(IpcError::Corrupt);
        }
        let put = self.local.put_count();
        let packing = link.packing(entry.out_bytes);
        wire::submit_head(&mut link.out, self.wire, self.sent, put, &entry, (entry.out_bytes, packing));
        self.put_data(link, Outgoing::new(self.wire, entry.arena_offset, entry.out_bytes, packing), put).map(Some)
    }

    fn tell_completion(&mut self, link: &mut Link) -> Result<Option<usize>, IpcError> {
        let entry = self.local.completion(self.sent)?;
        // After both proxies of a channel were lost together the ranges of open requests are unknown, and its client
        // must repeat them.
        let offset = self.tags.range_of(&entry, IpcError::SourceDied)?;
        if entry.reserved != 0 {
            return Err(IpcError::Corrupt);
        }
        if !link.has_room_for_entry(entry.in_bytes) {
            return Ok(None);
        }
        let put = self.local.put_count();
        let packing = link.packing(entry.in_bytes);
        wire::complete_head(&mut link.out, self.wire, self.sent, put, &entry, (entry.in_bytes, packing));
        let bytes = self.put_data(link, Outgoing::new(self.wire, offset, entry.in_bytes, packing), put)?;
        self.tags.completion_sent(entry.tag);
        Ok(Some(bytes))
    }

    /// The data after a head that was put just now; the bytes of the whole frame.
    fn put_data(&mut self, link: &mut Link, data: Outgoing, put: u32) -> Result<usize, IpcError> {
        let bytes = data.left();
        link.put_data(data, &self.local)?;
        self.put_told = put;
        self.sent = self.sent.wrapping_add(1);
        Ok(Frame::RING_OVERHEAD_BYTES + bytes as usize)
    }

    // ---- From the far side.

    /// The far side's frame for this channel. An error closes the channel.
    pub(crate) fn hear(&mut self, frame: &Frame<'_>) -> Result<(), IpcError> {
        match frame {
            Frame::Message { word, kind, payload, inline, .. } => self.hear_message(*word, *kind, payload, inline),
            Frame::Taken { word, .. } => {
                self.local.mark_taken(*word);
                Ok(())
            }
            Frame::Withdraw { word, .. } => {
                self.wanted_back = Some(*word);
                Ok(())
            }
            Frame::Withdrawn { word, .. } => {
                self.local.settle_withdrawn(*word);
                Ok(())
            }
            Frame::Notify { number, mask, .. } => {
                self.local.notify(*number, *mask);
                Ok(())
            }
            Frame::Notified { number, .. } => {
                self.local.confirm_notification(*number);
                Ok(())
            }
            Frame::Produced { produced, .. } if self.ends.ring.is_some() => self.confirm(*produced),
            _ => Err(IpcError::Corrupt),
        }
    }

    /// The head of an entry came: where its data goes in the arena. Nothing of it can be seen by the local party yet.
    pub(crate) fn hear_head(&mut self, head: &RingHead) -> Result<u32, IpcError> {
        let role = match head.entry {
            RingEntry::Submission(_) => LocalRole::Server,
            RingEntry::Completion(_) => LocalRole::Client,
        };
        self.expect(role, head.index, head.produced)?;
        match &head.entry {
            RingEntry::Submission(entry) if entry.fits(self.local.arena_bytes()) => Ok(entry.arena_offset),
            RingEntry::Submission(_) => Err(IpcError::Corrupt),
            RingEntry::Completion(entry) => self.tags.range_of(entry, IpcError::Corrupt),
        }
    }

    /// All data of the entry is in the arena.
    pub(crate) fn hear_entry(&mut self, entry: &RingEntry) -> Result<(), IpcError> {
        self.unkicked = true;
        match entry {
            RingEntry::Submission(entry) if self.tags.insert(entry) => self.local.put_submission(entry),
            RingEntry::Submission(_) => Err(IpcError::Corrupt),
            RingEntry::Completion(entry) => {
                self.tags.remove(entry.tag);
                self.local.put_completion(entry)
            }
        }
    }

    fn hear_message(&mut self, word: u32, kind: i32, payload: &[u8; 56], inline: &[u8]) -> Result<(), IpcError> {
        if inline.len() > abi::limits::INLINE_BYTES_MAX {
            return Err(IpcError::Corrupt);
        }
        if word::answers(word, self.forwarded) {
            self.local.mark_taken(self.forwarded);
        }
        match self.local.publish(Carried { word, kind, payload: *payload, inline: inline.to_vec() }) {
            Err(IpcError::NotWaiting) => {
                self.dropped = Some(word);
                Ok(())
            }
            other => other,
        }
    }

    /// An entry must be the next one, and of the kind that comes in this direction.
    fn expect(&mut self, role: LocalRole, index: u32, produced: u32) -> Result<(), IpcError> {
        if self.ends.ring.is_none() || self.local.role() != role || index != self.local.put_count() {
            return Err(IpcError::Corrupt);
        }
        self.confirm(produced)
    }

    /// The far side has everything of ours below `produced`.
    fn confirm(&mut self, produced: u32) -> Result<(), IpcError> {
        let head = self.local.entries()?.head;
        let count = produced.wrapping_sub(head);
        if count > self.sent.wrapping_sub(head) {
            return Err(IpcError::Corrupt);
        }
        if count > 0 {
            self.tags.confirm(count);
            self.local.confirm(produced);
        }
        Ok(())
    }
}
