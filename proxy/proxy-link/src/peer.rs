//! A peer: the link to one node and all channels that cross it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use abi::{Epoch, IpcError};
use wire::{Frame, Hello, Next, RingHead, WireChannel};

use crate::body::{Incoming, Outgoing};
use crate::buffer::{InBuffer, OutBuffer};
use crate::channel::{Ends, LocalChannel, Pair};
use crate::link::{Class, Counters, Identity, Link, LinkTimes, Phase};
use crate::relay::{Asking, Relay, Stage, Turn};
use crate::{LinkError, limits};

/// What the caller has to do.
#[derive(Debug)]
pub enum Action<C> {
    /// Ask the broker for a channel from a remote caller, answer with [`Peer::opened_in`].
    OpenIn {
        channel: WireChannel,
        ends: Ends,
    },
    /// The far side ended the channel: close it at the broker.
    Close {
        channel: WireChannel,
        local: C,
        reason: IpcError,
    },
    /// The channel's memory is not needed any more; the broker knows already.
    Forget {
        channel: WireChannel,
        local: C,
    },
    /// All channels were compared: the peer's endpoints can be reached.
    Up,
    Suspect,
    /// The limit passed: the peer's endpoints cannot be reached, its channels are gone (each was told by `Forget`).
    Down,
}

enum Slot<C> {
    /// Acceptor only: the broker has been asked.
    Asked {
        ends: Ends,
        listed: bool,
    },
    Relay(Box<Relay<C>>),
}

/// To be told: a channel comes or goes. Told in the order in which this node's broker decided it, because the peer
/// concludes from one about the other: an OPEN means that whatever the pair had before is gone, and a refusal with
/// `EndpointInUse` means that the channel in its way has been told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    Open(WireChannel),
    /// How an OPEN of the peer ended.
    Opened(WireChannel, Result<(), IpcError>),
    /// It ended here.
    Close(WireChannel, IpcError),
}

struct Draining {
    channel: WireChannel,
    /// The pair's next channel, whose OPEN waits.
    next: Option<WireChannel>,
}

/// See the crate's head.
pub struct Peer<C> {
    link: Link,
    slots: HashMap<WireChannel, Slot<C>>,
    /// Channels that may have something to tell; each once.
    ready: VecDeque<WireChannel>,
    news: VecDeque<News>,
    /// The channel of a pair that is `Draining`; the pair's next OPEN goes behind its CLOSE.
    draining: HashMap<Pair, Draining>,
    /// Channels that give way to one of the peer's ([`Asking::GivingWay`]): few, and each for a moment.
    giving_way: Vec<WireChannel>,
    /// Channels not listed yet in this connection; then the end mark.
    unlisted: Vec<WireChannel>,
    end_told: bool,
    end_heard: bool,
    actions: VecDeque<Action<C>>,
    suspected: bool,
    given_up: bool,
    /// A frame whose data is not all here yet.
    incoming: Option<Incoming>,
    unkicked: Vec<WireChannel>,
    lazily_told: Duration,
}

impl<C: LocalChannel> Peer<C> {
    /// `now` counts from any fixed moment, the same for all calls.
    pub fn new(me: Identity, incarnation: Epoch, peer: Identity, times: LinkTimes, now: Duration) -> Peer<C> {
        Peer {
            link: Link::new(me, incarnation, peer, times, now),
            slots: HashMap::new(),
            ready: VecDeque::new(),
            news: VecDeque::new(),
            draining: HashMap::new(),
            giving_way: Vec::new(),
            unlisted: Vec::new(),
            end_told: false,
            end_heard: false,
            actions: VecDeque::new(),
            suspected: false,
            given_up: false,
            incoming: None,
            unkicked: Vec::new(),
            lazily_told: now,
        }
    }

    /// Connections are counted from here instead of 0: a number that grows over the lives of this node's proxies keeps
    /// even two of the same incarnation apart.
    pub fn count_connections_from(&mut self, first: u64) {
        self.link.count_connections_from(first);
    }

    pub fn identity(&self) -> &Identity {
        &self.link.peer
    }

    pub fn phase(&self) -> Phase {
        self.link.phase
    }

    pub fn is_suspected(&self) -> bool {
        self.suspected
    }

    /// The limit passed since the peer was heard last; until it is heard again, opening answers `NoLink`.
    pub fn is_given_up(&self) -> bool {
        self.given_up
    }

    pub fn counters(&self) -> Counters {
        self.link.counters
    }

    pub fn channel_count(&self) -> usize {
        self.slots.len()
    }

    pub fn silence(&self, now: Duration) -> Duration {
        self.link.silence(now)
    }

    pub fn next_action(&mut self) -> Option<Action<C>> {
        self.actions.pop_front()
    }

    // ---- Connections.

    /// A connection that this side dialled stands.
    pub fn dialled(&mut self, now: Duration) {
        self.forget_connection();
        self.link.dialled(now);
    }

    /// A connection that the peer dialled stands and said `hello`. An earlier connection is given up by the caller.
    ///
    /// # Errors
    /// `Refuse`: tell it to the peer ([`refusal`]) and close; nothing has changed here.
    pub fn accepted(&mut self, now: Duration, hello: &Hello<'_>) -> Result<(), LinkError> {
        self.link.accept(now, hello)?;
        self.forget_connection();
        self.begin_resync();
        Ok(())
    }

    /// The connection is gone. Channels stay until the limit has passed.
    pub fn cut(&mut self) {
        self.link.cut();
        self.forget_connection();
    }

    fn forget_connection(&mut self) {
        // An OPEN is wanted in the next connection too; the rest follows from what both list.
        self.news.retain(|news| matches!(news, News::Open(_)));
        self.unlisted.clear();
        self.incoming = None;
        (self.end_told, self.end_heard) = (false, false);
    }

    fn begin_resync(&mut self) {
        for slot in self.slots.values_mut() {
            match slot {
                Slot::Asked { listed, .. } => *listed = false,
                Slot::Relay(relay) => relay.restart(),
            }
        }
        self.giving_way.clear();
        let open = self.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Relay(_)));
        self.unlisted = open.map(|(channel, _)| *channel).collect();
    }

    // ---- Channels of this node.

    /// A local endpoint opened a channel to the peer's node.
    ///
    /// # Errors
    /// The channel and why it cannot be: close it at the broker.
    pub fn open_out(&mut self, number: u64, ends: Ends, local: C) -> Result<WireChannel, (C, IpcError)> {
        let channel = WireChannel { opener: self.link.me.id, number };
        self.admit(channel, ends, local, |channel, ends, local| {
            Relay::new(channel, ends, local, Stage::Opening(Asking::Untold))
        })
    }

    /// A channel that a proxy before this one held. Call it before the first connection.
    pub fn resume(&mut self, channel: WireChannel, ends: Ends, local: C) -> Result<WireChannel, (C, IpcError)> {
        self.admit(channel, ends, local, Relay::resumed)
    }

    fn admit(
        &mut self,
        channel: WireChannel,
        ends: Ends,
        local: C,
        make: impl FnOnce(WireChannel, Ends, C) -> Relay<C>,
    ) -> Result<WireChannel, (C, IpcError)> {
        if self.given_up {
            return Err((local, IpcError::NoLink));
        }
        if self.slots.len() >= limits::CHANNELS_PER_LINK {
            return Err((local, IpcError::TableFull));
        }
        let relay = make(channel, ends, local);
        self.slots.insert(channel, Slot::Relay(Box::new(relay)));
        self.active(channel);
        Ok(channel)
    }

    /// The broker's answer to [`Action::OpenIn`].
    ///
    /// # Errors
    /// The peer does not want the channel any more: close it at the broker.
    pub fn opened_in(&mut self, channel: WireChannel, ends: Ends, result: Result<C, IpcError>) -> Result<(), C> {
        let asked = matches!(self.slots.get(&channel), Some(Slot::Asked { .. }));
        match result {
            Ok(local) if asked => {
                let mut relay = Relay::new(channel, ends, local, Stage::Open);
                relay.listed = true;
                self.slots.insert(channel, Slot::Relay(Box::new(relay)));
                self.news.push_back(News::Opened(channel, Ok(())));
                self.active(channel);
                Ok(())
            }
            Ok(local) => Err(local),
            Err(error) => {
                if asked {
                    self.slots.remove(&channel);
                    self.news.push_back(News::Opened(channel, Err(error)));
                    self.ask_again_for(ends.pair());
                }
                Ok(())
            }
        }
    }

    /// The broker says that the channel ended on this node. What the local party had published is still sent.
    pub fn closed_here(&mut self, channel: WireChannel, reason: IpcError) {
        if let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) {
            match relay.stage {
                Stage::Open => {
                    relay.stage = Stage::Draining(reason);
                    self.draining.insert(relay.ends.pair(), Draining { channel, next: None });
                }
                Stage::Draining(_) => {}
                // The peer may have been asked: it learns by CLOSE that nobody waits any more.
                Stage::Opening(_) => self.end_slot(channel, reason, Ended::Here),
            }
        }
        self.active(channel);
    }

    /// The local party of the channel did something.
    pub fn active(&mut self, channel: WireChannel) {
        if let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel)
            && !relay.queued
        {
            relay.queued = true;
            match relay.stage {
                Stage::Opening(Asking::Untold) => self.news.push_back(News::Open(channel)),
                _ => self.ready.push_back(channel),
            }
        }
    }

    // ---- Bytes.

    /// Bytes to send. After sending, call [`Peer::sent`].
    pub fn outgoing(&self) -> &OutBuffer {
        &self.link.out
    }

    pub fn sent(&mut self, now: Duration, bytes: usize) {
        self.link.sent(now, bytes);
    }

    /// Decodes every whole frame in `input` and does what it says; data of a ring's frame is taken as it comes.
    ///
    /// # Errors
    /// The connection must be cut; `Refuse` is told to the peer before.
    pub fn receive(&mut self, input: &mut InBuffer, now: Duration) -> Result<(), LinkError> {
        let result = self.receive_frames(input, now);
        for channel in std::mem::take(&mut self.unkicked) {
            if let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel)
                && std::mem::take(&mut relay.unkicked)
            {
                relay.local.kick();
            }
        }
        result
    }

    fn receive_frames(&mut self, input: &mut InBuffer, now: Duration) -> Result<(), LinkError> {
        while self.take_data(input, now) {
            let bytes = match wire::next(input.waiting())? {
                Next::Incomplete => break,
                Next::Frame(frame, bytes) => {
                    self.hear(&frame)?;
                    bytes
                }
                Next::Ring(head) => {
                    self.hear_head(&head)?;
                    Frame::RING_OVERHEAD_BYTES
                }
            };
            self.link.heard_frame(now, bytes);
            input.consume(bytes);
        }
        Ok(())
    }

    /// Goes on with the data that is due, if any. `false` when there is more to come.
    fn take_data(&mut self, input: &mut InBuffer, now: Duration) -> bool {
        let Some(mut incoming) = self.incoming.take() else { return true };
        let waiting = input.waiting();
        let count = waiting.len().min(incoming.left as usize);
        let piece = waiting.get(..count).unwrap_or(&[]);
        incoming.left -= count as u32;
        if let Some(at) = incoming.at {
            incoming.at = self.hear_piece(&incoming, at, piece).then_some(at + count as u32);
        }
        self.link.heard(now, count);
        input.consume(count);
        let is_complete = incoming.left == 0;
        if !is_complete {
            self.incoming = Some(incoming);
        }
        is_complete
    }

    /// `false` when nobody wants the rest.
    fn hear_piece(&mut self, incoming: &Incoming, at: u32, piece: &[u8]) -> bool {
        let channel = incoming.channel;
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return false };
        let mut result = relay.local.copy_in(at, piece);
        if result.is_ok() && incoming.left == 0 {
            result = relay.hear_entry(&incoming.entry);
        }
        if result.is_err() || incoming.left == 0 {
            self.heard(channel, result);
        }
        result.is_ok()
    }

    fn hear_head(&mut self, head: &RingHead) -> Result<(), LinkError> {
        match self.link.phase {
            Phase::Apart | Phase::Greeting => return Err(LinkError::OutOfPlace { frame: "a frame before HELLO" }),
            Phase::Resyncing if !self.end_heard => {
                return Err(LinkError::OutOfPlace { frame: "data before RESYNC_END" });
            }
            Phase::Resyncing | Phase::Up => {}
        }
        let RingHead { channel, entry, data_bytes: left, .. } = *head;
        let at = match self.slots.get_mut(&channel) {
            Some(Slot::Relay(relay)) => relay.hear_head(head),
            // Frames for a channel that ended here meanwhile are late, not wrong.
            _ => Err(IpcError::NotBound),
        };
        if let Err(error) = at {
            self.heard(channel, Err(error));
        }
        self.incoming = Some(Incoming { channel, entry, at: at.ok(), left });
        Ok(())
    }

    fn hear(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        match (self.link.phase, frame) {
            (_, Frame::Refuse { refusal, reason }) => {
                Err(LinkError::Refused { refusal: *refusal, reason: (*reason).to_owned() })
            }
            (Phase::Greeting, Frame::Hello(hello)) => {
                self.link.greeted(hello)?;
                self.begin_resync();
                Ok(())
            }
            (Phase::Apart | Phase::Greeting, _) => Err(LinkError::OutOfPlace { frame: "a frame before HELLO" }),
            (_, Frame::Hello(_)) => Err(LinkError::OutOfPlace { frame: "a second HELLO" }),
            (_, Frame::Heartbeat { seq, .. }) => {
                self.link.heartbeat_came(*seq);
                Ok(())
            }
            (_, Frame::Credit { processed }) => self.link.credit_came(*processed),
            (Phase::Resyncing, Frame::Resync(resync)) if !self.end_heard => {
                self.hear_resync(resync);
                Ok(())
            }
            (Phase::Resyncing, Frame::ResyncEnd) if !self.end_heard => {
                self.end_heard = true;
                self.compare();
                self.go_up();
                Ok(())
            }
            (_, Frame::Resync(_) | Frame::ResyncEnd) => Err(LinkError::OutOfPlace { frame: "RESYNC" }),
            // The peer sends data when it has both end marks, so its own came before.
            (Phase::Resyncing, _) if !self.end_heard => Err(LinkError::OutOfPlace { frame: "data before RESYNC_END" }),
            (_, frame) => self.hear_channel(frame),
        }
    }

    fn hear_resync(&mut self, resync: &wire::Resync<'_>) {
        let channel = resync.channel;
        let result = match self.slots.get_mut(&channel) {
            Some(Slot::Asked { listed, .. }) => {
                *listed = true;
                Ok(())
            }
            Some(Slot::Relay(relay)) => relay.apply(resync),
            // It ended here while the link was cut; the peer learns it from our list.
            None => Ok(()),
        };
        if let Err(error) = result {
            self.end_slot(channel, error, Ended::Broken);
        }
    }

    /// The peer's list is complete: what is not in it has ended there, unless the peer was never asked for it.
    fn compare(&mut self) {
        let gone = |(channel, slot): (&WireChannel, &Slot<C>)| match slot {
            Slot::Asked { listed, .. } => (!listed).then_some(*channel),
            Slot::Relay(relay) if relay.listed || matches!(relay.stage, Stage::Opening(_)) => None,
            Slot::Relay(_) => Some(*channel),
        };
        let gone: Vec<WireChannel> = self.slots.iter().filter_map(gone).collect();
        for channel in gone {
            self.end_slot(channel, IpcError::SourceDied, Ended::There);
        }
    }

    fn go_up(&mut self) {
        if self.link.phase != Phase::Resyncing || !self.end_told || !self.end_heard {
            return;
        }
        self.link.phase = Phase::Up;
        self.link.counters.connections += 1;
        (self.suspected, self.given_up) = (false, false);
        self.actions.push_back(Action::Up);
        let channels: Vec<WireChannel> = self.slots.keys().copied().collect();
        for channel in channels {
            self.active(channel);
        }
    }

    fn hear_channel(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        match frame {
            Frame::Open { channel, dc, from, to, lane, ring } => {
                self.hear_open(*channel, Ends { dc: *dc, from: *from, to: *to, lane: *lane, ring: *ring })
            }
            Frame::Opened { channel, result } => {
                self.hear_opened(*channel, *result);
                Ok(())
            }
            Frame::Close { channel, reason } => {
                self.end_slot(*channel, *reason, Ended::There);
                Ok(())
            }
            Frame::Message { channel, .. }
            | Frame::Taken { channel, .. }
            | Frame::Withdraw { channel, .. }
            | Frame::Withdrawn { channel, .. }
            | Frame::Notify { channel, .. }
            | Frame::Notified { channel, .. }
            | Frame::Produced { channel, .. } => {
                self.hear_data(*channel, frame);
                Ok(())
            }
            _ => Err(LinkError::OutOfPlace { frame: "a frame of no channel" }),
        }
    }

    fn hear_open(&mut self, channel: WireChannel, ends: Ends) -> Result<(), LinkError> {
        if channel.opener != self.link.peer.id {
            return Err(LinkError::OutOfPlace { frame: "OPEN of another node's channel" });
        }
        match self.slots.get(&channel) {
            Some(Slot::Asked { .. }) => {}
            Some(Slot::Relay(_)) => self.news.push_back(News::Opened(channel, Ok(()))),
            None if self.slots.len() >= limits::CHANNELS_PER_LINK => {
                if self.news.len() >= limits::NEWS_MAX {
                    return Err(LinkError::TooManyChannels(limits::CHANNELS_PER_LINK));
                }
                self.news.push_back(News::Opened(channel, Err(IpcError::TableFull)));
            }
            None => {
                self.slots.insert(channel, Slot::Asked { ends, listed: true });
                self.actions.push_back(Action::OpenIn { channel, ends });
            }
        }
        Ok(())
    }

    fn hear_opened(&mut self, channel: WireChannel, result: Result<(), IpcError>) {
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return };
        if !matches!(relay.stage, Stage::Opening(_)) {
            return;
        }
        match result {
            Ok(()) => {
                relay.stage = Stage::Open;
                self.active(channel);
            }
            Err(IpcError::EndpointInUse) if relay.refusals < limits::REFUSALS_MAX => self.give_way(channel),
            Err(reason) => self.end_slot(channel, reason, Ended::There),
        }
    }

    /// Both nodes opened the same at the same moment, and the peer's stays. Our broker ends ours when it makes the peer's,
    /// and not before, so that the local party never finds neither. Nothing is closed here.
    fn give_way(&mut self, channel: WireChannel) {
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return };
        relay.stage = Stage::Opening(Asking::GivingWay);
        relay.refusals += 1;
        let pair = relay.ends.pair();
        self.giving_way.push(channel);
        // The peer's OPEN came before its refusal.
        let is_under_way =
            self.slots.values().any(|slot| matches!(slot, Slot::Asked { ends, .. } if ends.pair() == pair));
        if !is_under_way {
            self.ask_again_for(pair);
        }
    }

    /// The peer's channel came to nothing: ours that gave way to it is wanted after all.
    fn ask_again_for(&mut self, pair: Pair) {
        let mut again = Vec::new();
        let slots = &mut self.slots;
        self.giving_way.retain(|channel| {
            let Some(Slot::Relay(relay)) = slots.get_mut(channel) else { return false };
            if relay.stage != Stage::Opening(Asking::GivingWay) {
                return false;
            }
            let is_meant = relay.ends.pair() == pair;
            if is_meant {
                relay.stage = Stage::Opening(Asking::Untold);
                again.push(*channel);
            }
            !is_meant
        });
        for channel in again {
            self.active(channel);
        }
    }

    /// Frames for a channel that ended here meanwhile are late, not wrong.
    fn hear_data(&mut self, channel: WireChannel, frame: &Frame<'_>) {
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return };
        let result = relay.hear(frame);
        self.heard(channel, result);
    }

    /// What follows from having heard something for a channel.
    fn heard(&mut self, channel: WireChannel, result: Result<(), IpcError>) {
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return };
        if relay.unkicked && self.unkicked.last() != Some(&channel) {
            self.unkicked.push(channel);
        }
        match result {
            Ok(()) => self.active(channel),
            Err(error) => self.end_slot(channel, error, Ended::Broken),
        }
    }

    /// Removes the channel and says so where it is not known.
    fn end_slot(&mut self, channel: WireChannel, reason: IpcError, ended: Ended) {
        let Some(slot) = self.slots.remove(&channel) else { return };
        keep_body(&mut self.link, channel, &slot);
        if ended != Ended::There && self.link.phase == Phase::Up {
            self.news.push_back(News::Close(channel, reason));
        }
        let pair = match &slot {
            Slot::Asked { ends, .. } => ends.pair(),
            Slot::Relay(relay) => relay.ends.pair(),
        };
        match slot {
            Slot::Asked { .. } => self.ask_again_for(pair),
            Slot::Relay(relay) => self.end_relay(channel, *relay, reason, ended),
        }
        // Behind the CLOSE.
        if self.draining.get(&pair).is_some_and(|draining| draining.channel == channel)
            && let Some(next) = self.draining.remove(&pair).and_then(|draining| draining.next)
        {
            self.active(next);
        }
    }

    fn end_relay(&mut self, channel: WireChannel, relay: Relay<C>, reason: IpcError, ended: Ended) {
        self.giving_way.retain(|giving_way| *giving_way != channel);
        let Relay { local, stage, unkicked, .. } = relay;
        if unkicked {
            local.kick();
        }
        let known_here = ended == Ended::Here || matches!(stage, Stage::Draining(_));
        self.actions.push_back(match known_here {
            true => Action::Forget { channel, local },
            false => Action::Close { channel, local, reason },
        });
    }

    /// Builds frames until nothing is left to tell or there is no more room. `true`: there is more; call again after
    /// something was sent or credit came.
    pub fn fill(&mut self, now: Duration) -> bool {
        if !self.fill_body() {
            return true;
        }
        self.link.keep_alive(now);
        match self.link.phase {
            Phase::Apart | Phase::Greeting => false,
            Phase::Resyncing => self.fill_resync(),
            Phase::Up => self.fill_channels(),
        }
    }

    /// The rest of the frame that was put last. `false` when there is no room for all of it.
    fn fill_body(&mut self) -> bool {
        let Some(channel) = self.link.body.as_ref().map(|body| body.channel) else { return true };
        let local = match self.slots.get(&channel) {
            Some(Slot::Relay(relay)) => Some(&relay.local),
            _ => None,
        };
        self.link.go_on(local)
    }

    fn fill_resync(&mut self) -> bool {
        let mut tags = Vec::new();
        while let Some(channel) = self.unlisted.last().copied() {
            if let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) {
                tags.clear();
                let resync = relay.resync(&mut tags);
                if !self.link.put(&Frame::Resync(resync), Class::Control) {
                    return true;
                }
            }
            self.unlisted.pop();
        }
        if !self.end_told {
            if !self.link.put(&Frame::ResyncEnd, Class::Control) {
                return true;
            }
            self.end_told = true;
        }
        self.go_up();
        self.link.phase == Phase::Up && self.fill_channels()
    }

    fn fill_channels(&mut self) -> bool {
        if !self.fill_news() {
            return true;
        }
        while self.link.body.is_none()
            && let Some(channel) = self.ready.pop_front()
        {
            let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { continue };
            if relay.stage == Stage::Opening(Asking::Untold) {
                // A new connection: it is to be asked for again.
                relay.queued = false;
                self.active(channel);
                continue;
            }
            match relay.tell(&mut self.link) {
                Ok(Turn::Idle) => relay.queued = false,
                Ok(Turn::More) => self.ready.push_back(channel),
                Ok(Turn::Blocked) => {
                    self.ready.push_front(channel);
                    return true;
                }
                Ok(Turn::Drained(reason)) => self.end_slot(channel, reason, Ended::Here),
                Err(error) => self.end_slot(channel, error, Ended::Broken),
            }
        }
        !self.fill_news() || self.link.body.is_some()
    }

    /// `false` when there is no room.
    fn fill_news(&mut self) -> bool {
        while let Some(news) = self.news.front().copied() {
            let told = match news {
                News::Open(channel) => self.fill_open(channel),
                News::Opened(channel, result) => self.link.put(&Frame::Opened { channel, result }, Class::Control),
                News::Close(channel, reason) => self.link.put(&Frame::Close { channel, reason }, Class::Control),
            };
            if !told {
                return false;
            }
            self.news.pop_front();
        }
        true
    }

    /// `false` when there is no room.
    fn fill_open(&mut self, channel: WireChannel) -> bool {
        let Some(Slot::Relay(relay)) = self.slots.get_mut(&channel) else { return true };
        if relay.stage != Stage::Opening(Asking::Untold) {
            // The peer listed it: it is open.
            relay.queued = false;
            self.active(channel);
            return true;
        }
        if let Some(draining) = self.draining.get_mut(&relay.ends.pair()) {
            draining.next = Some(channel);
        } else if !relay.tell_open(&mut self.link) {
            return false;
        }
        relay.queued = false;
        true
    }

    // ---- Time.

    /// When [`Peer::tick`] has something to do next, if ever. Call `tick` first: what is due already is not counted.
    pub fn next_tick(&self, now: Duration) -> Option<Duration> {
        let lazily = self.lazily_told + self.link.times().heartbeat;
        let lazily = (self.link.phase == Phase::Up && lazily > now).then_some(lazily);
        self.link.next_tick(now).into_iter().chain(lazily).min()
    }

    /// Heartbeat, lazy acknowledgements, judgement of silence. Read what the transport has before calling it: bytes that
    /// wait in a socket are not silence.
    ///
    /// # Errors
    /// Cut the connection. What follows from it has been put into the actions.
    pub fn tick(&mut self, now: Duration) -> Result<(), LinkError> {
        let times = self.link.times();
        let silence = self.link.silence(now);
        if silence >= times.suspect && !self.suspected {
            self.suspected = true;
            self.actions.push_back(Action::Suspect);
        } else if silence < times.suspect && self.link.phase == Phase::Up {
            self.suspected = false;
        }
        if silence >= times.down {
            self.give_up();
            if self.link.phase != Phase::Apart {
                let millis = |time: Duration| time.as_millis() as u64;
                return Err(LinkError::Silent { silent_ms: millis(silence), limit_ms: millis(times.down) });
            }
        }
        if self.link.body.as_ref().is_some_and(Outgoing::is_lost) {
            return Err(LinkError::Unfinished);
        }
        if self.link.phase == Phase::Up && now.saturating_sub(self.lazily_told) >= times.heartbeat {
            self.lazily_told = now;
            self.tell_lazily();
        }
        self.link.keep_alive(now);
        Ok(())
    }

    fn tell_lazily(&mut self) {
        for slot in self.slots.values_mut() {
            if let Slot::Relay(relay) = slot
                && relay.stage == Stage::Open
            {
                relay.tell_acknowledgements(&mut self.link);
            }
        }
    }

    fn give_up(&mut self) {
        if self.given_up {
            return;
        }
        self.given_up = true;
        self.ready.clear();
        self.news.clear();
        self.draining.clear();
        self.giving_way.clear();
        for (channel, slot) in self.slots.drain() {
            keep_body(&mut self.link, channel, &slot);
            if let Slot::Relay(relay) = slot {
                self.actions.push_back(Action::Forget { channel, local: relay.local });
            }
        }
        self.actions.push_back(Action::Down);
    }
}

/// The channel's memory goes, perhaps in the middle of a frame.
fn keep_body<C: LocalChannel>(link: &mut Link, channel: WireChannel, slot: &Slot<C>) {
    if let (Some(body), Slot::Relay(relay)) = (&mut link.body, slot)
        && body.channel == channel
    {
        body.keep(&relay.local);
    }
}

/// Where a channel ended first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// The broker of this node said so.
    Here,
    /// The peer said so.
    There,
    /// One of the parties broke the protocol: both must be told.
    Broken,
}

/// What to send before closing a connection that ended with `error`, when the peer is to know why.
pub fn refusal(error: &LinkError) -> Option<Vec<u8>> {
    let LinkError::Refuse { refusal, reason } = error else { return None };
    let mut bytes = Vec::new();
    Frame::Refuse { refusal: *refusal, reason }.encode(&mut bytes);
    Some(bytes)
}
