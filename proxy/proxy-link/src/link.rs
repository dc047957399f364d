//! The link as such: greeting, fencing, silence, credit, counters. Knows frames, not channels.

use std::time::Duration;

use abi::{Epoch, IpcError, NodeId, PairId};
use versions::Versions;
use wire::frame::feature;
use wire::{Frame, Hello, Packing, Refusal, WireChannel};

use crate::body::Outgoing;
use crate::buffer::OutBuffer;
use crate::channel::LocalChannel;
use crate::in_place::{Bodies, Insertions};
use crate::presence::{Confirmed, Opinion};
use crate::thrift::{Packer, Thrift};
use crate::{LinkError, limits};

/// So many times the limit of silence connections may come to nothing, before the peer is given up: one that has just
/// been started may be slow to answer.
const ATTEMPTS: u32 = 3;

/// Who a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub cluster: String,
    pub node: String,
    pub id: NodeId,
}

/// When a link acts on silence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkTimes {
    /// A heartbeat goes out when nothing else did for this long.
    pub heartbeat: Duration,
    /// Silence after which the peer is suspected.
    pub suspect: Duration,
    /// Silence, or time without a connection, after which the peer is given up; three times that when connections come
    /// to nothing.
    pub down: Duration,
}

impl Default for LinkTimes {
    /// Three heartbeats make a suspicion; ten make a dead node.
    fn default() -> LinkTimes {
        LinkTimes {
            heartbeat: Duration::from_millis(100),
            suspect: Duration::from_millis(300),
            down: Duration::from_millis(1000),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// No connection.
    Apart,
    /// Connected, the peer's HELLO has not come.
    Greeting,
    /// Both sides tell what their channels hold.
    Resyncing,
    Up,
}

/// What passed, over all connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub sent_frames: u64,
    pub sent_bytes: u64,
    pub received_frames: u64,
    pub received_bytes: u64,
    /// Messages among the frames.
    pub sent_messages: u64,
    pub received_messages: u64,
    /// Entries of rings among the frames.
    pub sent_entries: u64,
    pub received_entries: u64,
    /// Plain bytes of data that was packed, and what they became on the wire.
    pub packed_from: u64,
    pub packed_to: u64,
    /// Connections that reached `Up`.
    pub connections: u64,
}

/// Whether a frame waits for credit and for its place in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Control,
    Bulk,
}

pub(crate) struct Link {
    pub(crate) me: Identity,
    pub(crate) peer: Identity,
    incarnation: Epoch,
    /// Of both ends.
    pair: PairId,
    times: LinkTimes,
    pub(crate) phase: Phase,
    pub(crate) out: OutBuffer,
    /// Data of the frame that was put last, if it is not all in the out buffer yet: nothing else is put before.
    pub(crate) body: Option<Outgoing>,
    /// Data that goes from where it lies, and whether there may be such.
    pub(crate) in_place: Insertions,
    pub(crate) bodies: Bodies,
    pub(crate) counters: Counters,
    /// Packs data, if this side can; and whether the peer can too.
    thrift: Option<Thrift>,
    peer_unpacks: bool,
    /// What both sides of the connection speak; `None` before the peer's HELLO.
    pub(crate) version: Option<u8>,
    /// Highest incarnation of the peer that was ever let in, and its connection number.
    seen: (Epoch, u64),
    /// Connections we dialled.
    dialled: u64,
    /// On this connection.
    last_heard: Duration,
    /// When the peer was heard last while the link was up. Connections that come to nothing do not count, however many
    /// there are.
    last_reached: Duration,
    last_sent: Duration,
    heartbeat: u64,
    heartbeat_echo: u64,
    /// A heartbeat that the peer answers at once, and when it went.
    probe: Option<(u64, Duration)>,
    /// The peer's probe is to be answered.
    answer_due: bool,
    confirmed: Confirmed,
    /// Of the peer.
    pub(crate) opinion: Opinion,
    pub(crate) round_trip: Option<Duration>,
    /// Bytes of this connection that were processed, and what of it was told.
    processed: u64,
    processed_told: u64,
    /// Bytes of ours that the peer has processed, and how many it takes beyond.
    peer_processed: u64,
    peer_window: u64,
}

impl Link {
    pub(crate) fn new(me: Identity, incarnation: Epoch, peer: Identity, times: LinkTimes, now: Duration) -> Link {
        Link {
            me,
            peer,
            incarnation,
            pair: PairId::FIRST,
            times,
            phase: Phase::Apart,
            out: OutBuffer::new(),
            body: None,
            in_place: Insertions::default(),
            bodies: Bodies::Copied,
            counters: Counters::default(),
            thrift: None,
            peer_unpacks: false,
            version: None,
            seen: (Epoch(0), 0),
            dialled: 0,
            last_heard: now,
            last_reached: now,
            last_sent: now,
            heartbeat: 0,
            heartbeat_echo: 0,
            probe: None,
            answer_due: false,
            confirmed: Confirmed::default(),
            opinion: Opinion::NONE,
            round_trip: None,
            processed: 0,
            processed_told: 0,
            peer_processed: 0,
            peer_window: u64::from(limits::WINDOW_BYTES_MIN),
        }
    }

    pub(crate) fn pack_with(&mut self, packer: Box<dyn Packer>) {
        self.thrift = Some(Thrift::new(packer));
    }

    /// What unpacks the data that the peer packs; only if it was told that we can.
    pub(crate) fn unpacker(&mut self) -> &mut Option<Thrift> {
        &mut self.thrift
    }

    /// How the data of the next entry is to travel.
    pub(crate) fn packing(&mut self, data_bytes: u32) -> Packing {
        let packs = self.peer_unpacks && self.thrift.as_mut().is_some_and(|thrift| thrift.packs(data_bytes));
        if packs { Packing::Lz4 } else { Packing::Plain }
    }

    pub(crate) fn count_connections_from(&mut self, first: u64) {
        self.dialled = self.dialled.max(first);
    }

    pub(crate) fn set_pair(&mut self, pair: PairId) {
        self.pair = pair;
    }

    /// A connection that we dialled stands: greet.
    pub(crate) fn dialled(&mut self, now: Duration) {
        self.begin(now, Phase::Greeting);
        self.dialled += 1;
        self.greet(self.dialled);
    }

    /// A connection that the peer dialled said `hello`: let it in and greet, or say why not.
    pub(crate) fn accept(&mut self, now: Duration, hello: &Hello<'_>) -> Result<(), LinkError> {
        let version = self.check(hello)?;
        let claim = (hello.incarnation, hello.connection);
        if claim <= self.seen {
            return Err(refuse(Refusal::Fenced, "a newer connection or proxy of this node was seen"));
        }
        self.begin(now, Phase::Resyncing);
        self.seen = claim;
        self.peer_window = u64::from(hello.window_bytes);
        self.peer_unpacks = hello.features & feature::LZ4 != 0;
        self.version = Some(version);
        self.greet(hello.connection);
        Ok(())
    }

    /// The answer to the HELLO of a connection that we dialled.
    pub(crate) fn greeted(&mut self, hello: &Hello<'_>) -> Result<(), LinkError> {
        let version = self.check(hello)?;
        if hello.incarnation < self.seen.0 {
            return Err(refuse(Refusal::Fenced, "a newer proxy of this node was seen"));
        }
        if hello.connection != self.dialled {
            return Err(LinkError::OutOfPlace { frame: "HELLO of another connection" });
        }
        self.seen = (hello.incarnation, 0);
        self.peer_window = u64::from(hello.window_bytes);
        self.peer_unpacks = hello.features & feature::LZ4 != 0;
        self.version = Some(version);
        self.phase = Phase::Resyncing;
        Ok(())
    }

    /// Whether it is the peer, and in which version the two talk.
    fn check(&self, hello: &Hello<'_>) -> Result<u8, LinkError> {
        if hello.cluster != self.me.cluster {
            return Err(refuse(Refusal::Cluster, "the peer belongs to another cluster"));
        }
        if hello.node != self.peer.node || hello.node_id != self.peer.id {
            return Err(refuse(Refusal::Identity, "the peer is not the node that is known under this number"));
        }
        if hello.pair != self.pair {
            return Err(refuse(Refusal::Identity, "the peer's proxy is of another pair"));
        }
        let frame_bytes_max = wire::limits::FRAME_BYTES_MAX as u32;
        if hello.frame_bytes_max < frame_bytes_max || hello.window_bytes < limits::WINDOW_BYTES_MIN {
            return Err(refuse(Refusal::Version, "the peer takes only shorter frames than this version needs"));
        }
        versions::LINK.agree(hello.speaks).map_err(|mismatch| LinkError::Refuse {
            refusal: Refusal::Version,
            reason: in_words(&self.me.node, hello, mismatch),
        })
    }

    fn begin(&mut self, now: Duration, phase: Phase) {
        self.forget_outgoing();
        self.phase = phase;
        (self.last_heard, self.last_sent) = (now, now);
        if let Some(thrift) = &mut self.thrift {
            thrift.restart();
        }
        (self.processed, self.processed_told, self.peer_processed) = (0, 0, 0);
        (self.heartbeat_echo, self.probe, self.answer_due) = (0, None, false);
        self.confirmed.begin(now);
        self.version = None;
    }

    fn greet(&mut self, connection: u64) {
        let hello = Frame::Hello(Hello {
            cluster: &self.me.cluster,
            node: &self.me.node,
            node_id: self.me.id,
            incarnation: self.incarnation,
            connection,
            features: if self.thrift.is_some() { feature::LZ4 } else { 0 },
            frame_bytes_max: wire::limits::FRAME_BYTES_MAX as u32,
            window_bytes: limits::WINDOW_BYTES,
            pair: self.pair,
            speaks: versions::LINK.speaks,
            release: versions::Release::NAME,
        });
        hello.encode(&mut self.out);
        self.counters.sent_frames += 1;
    }

    pub(crate) fn cut(&mut self) {
        self.phase = Phase::Apart;
        self.forget_outgoing();
    }

    fn forget_outgoing(&mut self) {
        self.out.clear();
        self.body = None;
        self.in_place.clear();
        self.bodies = Bodies::Copied;
    }

    /// A frame came, or a ring's frame up to its data.
    pub(crate) fn heard_frame(&mut self, now: Duration, bytes: usize) {
        self.counters.received_frames += 1;
        self.heard(now, bytes);
    }

    /// Bytes came and were processed.
    pub(crate) fn heard(&mut self, now: Duration, bytes: usize) {
        self.last_heard = now;
        if self.phase == Phase::Up {
            self.last_reached = now;
        }
        self.processed += bytes as u64;
        self.counters.received_bytes += bytes as u64;
    }

    pub(crate) fn heartbeat_came(&mut self, now: Duration, seq: u64, echo: u64) {
        // An answer repeats the speaker's last number, so that it is not answered in turn.
        self.answer_due |= seq > self.heartbeat_echo && is_probe(seq);
        self.heartbeat_echo = seq;
        let (number, opinion) = Opinion::taken_from(echo, self.version);
        self.confirmed.echo(now, number, opinion, self.times.suspect);
        if let Some((_, sent)) = self.probe.take_if(|(probe, _)| *probe <= number) {
            self.round_trip = Some(now.saturating_sub(sent));
        }
    }

    pub(crate) fn credit_came(&mut self, processed: u64) -> Result<(), LinkError> {
        if processed < self.peer_processed || processed > self.out.put_total() {
            return Err(LinkError::OutOfPlace { frame: "CREDIT" });
        }
        self.peer_processed = processed;
        Ok(())
    }

    /// Whether a frame of `bytes` may be put now.
    fn has_room(&mut self, bytes: usize, class: Class) -> bool {
        self.body.is_none()
            && (class == Class::Control || self.bulk_may_go(bytes))
            && self.out.make_room(bytes + limits::RESERVE_BYTES)
    }

    /// Whether the head of a ring entry's frame may be put now, with so much data to follow.
    pub(crate) fn has_room_for_entry(&mut self, data_bytes: u32) -> bool {
        let head = Frame::RING_OVERHEAD_BYTES;
        self.body.is_none()
            && self.bulk_may_go(head + data_bytes as usize)
            && self.out.make_room(head + limits::RESERVE_BYTES)
    }

    fn bulk_may_go(&self, bytes: usize) -> bool {
        let under_way = self.out.put_total() - self.peer_processed;
        self.has_room_in_batch() && under_way + bytes as u64 <= self.peer_window
    }

    fn has_room_in_batch(&self) -> bool {
        self.out.pending().len() < limits::BATCH_BYTES
            && self.in_place.bytes() < limits::TURN_BYTES
            && !self.in_place.is_full()
    }

    /// Bytes to be sent, wherever they lie.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.out.pending().len() + self.in_place.bytes()
    }

    /// The channel's memory goes, perhaps in the middle of a frame.
    pub(crate) fn keep_data<C: LocalChannel>(&mut self, channel: WireChannel, local: &C) {
        if let Some(body) = self.body.as_mut().filter(|body| body.channel == channel) {
            body.keep(local);
        }
        self.in_place.keep(channel, local);
    }

    /// Data that cannot be had any more, although it was announced.
    pub(crate) fn has_lost_data(&self) -> bool {
        self.body.as_ref().is_some_and(Outgoing::is_lost) || self.in_place.is_lost()
    }

    /// The data after a head that was put just now: what the batch takes of it; the rest follows ([`Link::go_on`]).
    /// After an error the head is taken back.
    pub(crate) fn put_data<C: LocalChannel>(&mut self, mut body: Outgoing, local: &C) -> Result<(), IpcError> {
        if self.bodies == Bodies::InPlace
            && body.packing() == Packing::Plain
            && body.left() >= limits::IN_PLACE_BYTES_MIN
        {
            self.out.count(body.left() as usize);
            self.in_place.push(body, &self.out);
            self.counters.sent_frames += 1;
            self.counters.sent_entries += 1;
            return Ok(());
        }
        if let Err(error) = self.put_body(&mut body, Some(local)) {
            self.out.shrink(Frame::RING_OVERHEAD_BYTES);
            return Err(error);
        }
        self.counters.sent_frames += 1;
        self.counters.sent_entries += 1;
        self.body = (!body.is_complete()).then_some(body);
        Ok(())
    }

    /// Goes on with the data of the frame that was put last. `false` when there is more of it than room.
    pub(crate) fn go_on<C: LocalChannel>(&mut self, local: Option<&C>) -> bool {
        if let Some(mut body) = self.body.take() {
            let put = self.put_body(&mut body, local);
            self.body = (put.is_err() || !body.is_complete()).then_some(body);
        }
        self.body.is_none()
    }

    fn put_body<C: LocalChannel>(&mut self, body: &mut Outgoing, local: Option<&C>) -> Result<(), IpcError> {
        let (Packing::Lz4, Some(thrift)) = (body.packing(), &mut self.thrift) else {
            return body.put(&mut self.out, local);
        };
        let (from, to) = body.put_blocks(&mut self.out, local, thrift)?;
        self.counters.packed_from += from;
        self.counters.packed_to += to;
        Ok(())
    }

    /// Puts the frame when there is room for it; otherwise the caller tries again when something was sent.
    #[must_use]
    pub(crate) fn put(&mut self, frame: &Frame<'_>, class: Class) -> bool {
        let room = self.has_room(frame.encoded_bytes(), class);
        if room {
            frame.encode(&mut self.out);
            self.counters.sent_frames += 1;
            self.counters.sent_messages += u64::from(matches!(frame, Frame::Message { .. }));
        }
        room
    }

    /// Credit and heartbeat, from the reserve.
    pub(crate) fn keep_alive(&mut self, now: Duration) {
        if self.phase == Phase::Apart || self.phase == Phase::Greeting || self.body.is_some() {
            return;
        }
        if self.processed - self.processed_told >= limits::CREDIT_STEP_BYTES {
            let frame = Frame::Credit { processed: self.processed };
            if self.put_from_reserve(&frame) {
                self.processed_told = self.processed;
            }
        }
        let is_idle = now.saturating_sub(self.last_sent) >= self.times.heartbeat && self.pending_bytes() == 0;
        // A link that is busy says, too, what it heard of the peer.
        let is_due = is_idle || now.saturating_sub(self.confirmed.last_sent()) >= self.times.heartbeat;
        if !is_due && !self.answer_due {
            return;
        }
        let seq = self.heartbeat + u64::from(is_due);
        let echo = self.opinion.beside(self.heartbeat_echo, self.version);
        if self.put_from_reserve(&Frame::Heartbeat { seq, echo }) {
            (self.heartbeat, self.last_sent, self.answer_due) = (seq, now, false);
            if is_due {
                self.confirmed.sent(seq, now);
            }
            if is_idle && is_probe(seq) {
                self.probe = Some((seq, now));
            }
        }
    }

    fn put_from_reserve(&mut self, frame: &Frame<'_>) -> bool {
        let room = self.out.make_room(frame.encoded_bytes());
        if room {
            frame.encode(&mut self.out);
            self.counters.sent_frames += 1;
        }
        room
    }

    /// The transport took `bytes`.
    pub(crate) fn sent(&mut self, now: Duration, bytes: usize) {
        self.in_place.sent(bytes, &mut self.out);
        self.counters.sent_bytes += bytes as u64;
        if let Some(thrift) = &mut self.thrift {
            let is_left = self.out.pending().len() + self.in_place.bytes() > 0;
            thrift.sent(now, bytes, is_left);
        }
        if bytes > 0 {
            self.last_sent = now;
        }
    }

    pub(crate) fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.last_heard)
    }

    /// All channels were compared.
    pub(crate) fn go_up(&mut self) {
        self.phase = Phase::Up;
        self.last_reached = self.last_heard;
        self.counters.connections += 1;
    }

    /// Whether too long no connection let both sides compare their channels. One that does may take its time, as long
    /// as it is not silent.
    pub(crate) fn is_out_of_reach(&self, now: Duration) -> bool {
        matches!(self.phase, Phase::Apart | Phase::Greeting) && now >= self.reach_ends()
    }

    fn reach_ends(&self) -> Duration {
        self.last_reached + ATTEMPTS * self.times.down
    }

    pub(crate) fn times(&self) -> LinkTimes {
        self.times
    }

    pub(crate) fn confirmed(&self) -> Option<&Confirmed> {
        (self.phase == Phase::Up).then_some(&self.confirmed)
    }

    /// When `keep_alive` or a judgement of silence is due next, after `now`.
    pub(crate) fn next_tick(&self, now: Duration) -> Option<Duration> {
        let silence = [self.times.suspect, self.times.down].into_iter().map(|limit| self.last_heard + limit);
        let reach = matches!(self.phase, Phase::Apart | Phase::Greeting).then_some(self.reach_ends());
        let last_beat = self.last_sent.min(self.confirmed.last_sent());
        let beat = (self.phase != Phase::Apart).then_some(last_beat + self.times.heartbeat);
        silence.chain(reach).chain(beat).filter(|due| *due > now).min()
    }
}

/// Whether the heartbeat of that number is answered at once, which tells the round trip: one in a while, since an
/// answer is a wake-up more on both nodes.
fn is_probe(seq: u64) -> bool {
    seq % limits::HEARTBEATS_PER_PROBE == 1
}

/// For both sides, so that each finds itself in it.
fn in_words(own: &str, hello: &Hello<'_>, mismatch: versions::Mismatch) -> String {
    let versions::Mismatch { own: ours, theirs, .. } = mismatch;
    let Hello { node, release, .. } = hello;
    let older = if theirs.newest < ours.oldest { node } else { own };
    let spoken = |versions: Versions| versions.to_string();
    format!(
        "{own} (release {}) speaks {} of links, {node} (release {release}) {}; only releases that follow one another \
         talk: dvs node upgrade on {older}",
        versions::Release::NAME,
        spoken(ours),
        spoken(theirs),
    )
}

fn refuse(refusal: Refusal, reason: &str) -> LinkError {
    LinkError::Refuse { refusal, reason: reason.to_owned() }
}
