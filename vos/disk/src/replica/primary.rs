//! The replicated disk as clients see it: [`Primary`] between their rings, links to the copies, and the desk at which
//! the record changes.
//!
//! The process has nothing that it could lose: who is current stands in the record, what was written on the copies. It
//! becomes primary of the next epoch when it starts, by compare-and-set.
//!
//! Requests are taken apart into *pieces*, which the machine orders; one is answered when all its pieces are. Reads
//! come from the image of the own copy, which is opened for that alone. One that would wait does so elsewhere, and is
//! read again when a write to the same blocks was asked for meanwhile: what a reader saw must not be lost with a write
//! that nobody acknowledged.
//!
//! Whoever has news carries on: the server's loop with what clients ask, and the thread of a link with what its copy
//! answered, so that no thread has to wake another one for that. All of the disk is under one lock, of which whoever
//! waits for the medium has nothing. Lock order: the disk, then a link, then its inbox.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::Endpoint;
use disk_core::{Durability, ReadInto, Volume};
use libvos::{BlockingSession, Identity, PortConnect, SharedPort, Size};
use parking_lot::Mutex;
use replica_core::{
    AWAY_MS, BlockRange, CopyState, CopyVerdict, Decided, DiskReply, DiskRequest, ENCODED_BYTES_MAX, EXTENT_BLOCKS,
    Layout, Primary, PrimaryAct, RangeSet, Replica, ReplicaAnswer, ReplicaMessage, ReplicaRecord, encode_behind, judge,
};
use rustix::io::Errno;
use vos_api::copy::{Greet, MarkCopy};
use vos_api::desk::{DeskQuestion, Edit, FromDesk, Given, Known, Stay, ToDesk, Unanswered};
use vos_api::disk::{BLOCK_BYTES, Held, Need, Request as Ask, SPANS_MAX, Span, TellData, VolumeInfo};
use vos_rt::{
    ClientId, DeskSocket, Failure, FileReader, Handle, Hello, HelloReply, ReadBy, Request, Service, WorkerPool,
};
use zerocopy::FromBytes;

use super::link::{Content, Link, LinkInbox, LinkSaid};
use super::{PoolResults, endpoint_of};
use crate::entrance::Entrance;
use crate::moment::Entered;
use crate::rings::Ticket;
use crate::service::{Arena, INLINE_READ_BYTES_MAX, WORKERS, tell_data};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How long the daemon may take to tell what is in the engine, and to write what was asked.
const PREPARATION: Duration = Duration::from_secs(100);
/// How often the machine is told the time.
const TICK: Duration = Duration::from_millis(50);
/// A copy that says nothing for this long, though asked, is taken for away; leases ask it every 150 ms.
const SILENT: Duration = Duration::from_millis(400);
/// The same while it catches up: what others ask waits meanwhile, but its medium has much to do, and it would begin
/// anew.
const SILENT_BEHIND: Duration = Duration::from_secs(3);
/// Before a link that broke begins anew.
const LINK_PAUSE: Duration = Duration::from_millis(20);
/// Before there is one to a copy whose medium has no room: it is left behind meanwhile, and nobody waits for it.
const FULL_PAUSE: Duration = Duration::from_secs(1);
const _: () = assert!(FULL_PAUSE.as_millis() > 2 * AWAY_MS as u128);
/// Before there is one to a node that was given up.
const LOST_PAUSE: Duration = Duration::from_secs(1);
/// Before the engine is asked again.
const DESK_PAUSE: Duration = Duration::from_millis(200);
/// Blocks of one piece of what is set aside: their number is one of 32 bits.
const ALLOCATE_BLOCKS: u64 = 1 << 31;
/// Blocks of one piece of a discard.
const DISCARD_BLOCKS: u64 = 32 * EXTENT_BLOCKS;
const GREETING: Size = Size { entries: 4, arena_bytes: 4 << 20 };

/// What the disk is told.
#[derive(Clone, Debug)]
pub struct SetOptions {
    pub set: u64,
    /// The copy beside it.
    pub own: Replica,
    pub others: Vec<Replica>,
    /// On nodes that the cluster gave up.
    pub lost: Vec<Replica>,
    /// Of the record, at the desk.
    pub key: String,
    pub read_by: ReadBy,
}

/// The record as the engine has it, and where it is changed.
struct RecordDesk {
    socket: DeskSocket,
    key: String,
    /// Of the newest that was heard.
    modified: u64,
    next_id: u64,
    proposed: Option<(u64, ReplicaRecord)>,
    ask_again: Option<Instant>,
    is_listed: bool,
    heard: Option<ReplicaRecord>,
}

/// The disk, for its server's loop.
pub struct MirroredDisk(Arc<Mutex<Mirror>>);

struct Mirror {
    machine: Primary<Content>,
    port: SharedPort,
    set: u64,
    links: BTreeMap<Replica, Link>,
    /// Links that begin anew, and when.
    pausing: BTreeMap<Replica, Instant>,
    inbox: Arc<LinkInbox>,
    desk: RecordDesk,
    volume: Arc<Volume>,
    reader: FileReader,
    pool: Arc<WorkerPool>,
    entrance: Entrance,
    open: HashMap<u64, Open>,
    /// Which request a piece is of.
    pieces: HashMap<u64, u64>,
    next_number: u64,
    /// Pieces that a copy makes room for.
    reserving: HashMap<u64, Replica>,
    /// Pieces that another copy reads.
    looking: HashMap<u64, Replica>,
    /// Pieces that ask where there is data.
    telling: HashMap<u64, TellData>,
    /// Pieces that are read elsewhere.
    reading: HashMap<u64, Reading>,
    read: PoolResults<u64>,
    epoch: u64,
    handle: Handle,
    began: Instant,
    due: Instant,
    failure: Option<String>,
}

/// A request of a client.
struct Open {
    request: Arc<Request>,
    _ticket: Ticket,
    /// Pieces that are not done.
    left: BTreeSet<u64>,
    /// Of a read: where each piece goes.
    places: HashMap<u64, (BlockRange, u32)>,
    /// What follows when all are done.
    then_flush: bool,
    in_bytes: u32,
    results: [u64; 4],
    error: Option<Errno>,
}

struct Reading {
    range: BlockRange,
    /// A write to it was asked for meanwhile.
    is_stale: bool,
}

impl MirroredDisk {
    /// Becomes primary. `image`: of the own copy, for reading.
    pub fn open(
        volume: Volume,
        entrance: Entrance,
        options: &SetOptions,
        desk: OwnedFd,
        port: &SharedPort,
        epoch: u64,
        handle: &Handle,
    ) -> Result<MirroredDisk, Failure> {
        let mut desk = RecordDesk::open(desk, options.key.clone(), handle)?;
        let copy = OwnCopy::open(options, port)?;
        let record = take_over(&mut desk, options, &copy)?;
        // Nobody of an earlier epoch changes it from now on, or is promised anything.
        let (_, promised_ms) = copy.greet(record.epoch)?;
        drop(copy);
        let layout = Layout::of_disk(volume.bytes() / BLOCK);
        tracing::info!(epoch = record.epoch, generation = record.generation, members = ?record.members, "primary");
        let inbox = Arc::new(LinkInbox::default());
        let links =
            record.members.keys().map(|member| Ok((*member, Link::open(port, *member, options.set, &inbox, handle)?)));
        let links = links.collect::<std::io::Result<BTreeMap<Replica, Link>>>()?;
        let pool = Arc::new(WorkerPool::new("disk", WORKERS)?);
        let now = Instant::now();
        let mut disk = Mirror {
            machine: Primary::begin(layout, record, promised_ms),
            pausing: links.keys().map(|member| (*member, now + pause_before(member, options))).collect(),
            port: port.clone(),
            set: options.set,
            links,
            inbox,
            desk,
            reader: FileReader::new(volume.file(), options.read_by, &pool, handle),
            volume: Arc::new(volume),
            pool,
            entrance,
            open: HashMap::new(),
            pieces: HashMap::new(),
            next_number: 1,
            reserving: HashMap::new(),
            looking: HashMap::new(),
            telling: HashMap::new(),
            reading: HashMap::new(),
            read: Arc::default(),
            epoch,
            handle: handle.clone(),
            began: now,
            due: now,
            failure: None,
        };
        for member in &options.lost {
            let acts = disk.machine.lost(*member, 0);
            disk.act(acts);
        }
        disk.turn(now);
        let inbox = Arc::clone(&disk.inbox);
        let disk = Arc::new(Mutex::new(disk));
        let known = Arc::downgrade(&disk);
        inbox.tell(move || {
            let Some(disk) = known.upgrade() else { return };
            let mut disk = disk.lock();
            let before = disk.deadline();
            disk.turn(Instant::now());
            // The loop waits until then.
            if disk.deadline().is_some_and(|due| before.is_none_or(|before| due < before)) {
                disk.handle.poke();
            }
        });
        Ok(MirroredDisk(disk))
    }

    pub fn close(self) -> Result<(), Failure> {
        let mut disk = self.0.lock();
        disk.reader.end();
        disk.pool.end();
        disk.failure.clone().map_or(Ok(()), |failure| Err(failure.into()))
    }
}

impl Mirror {
    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    // ---- the machine

    fn act(&mut self, acts: Vec<PrimaryAct<Content>>) {
        let epoch = self.machine.epoch();
        for act in acts {
            match act {
                PrimaryAct::Send(to, message) => {
                    if let Some(link) = self.links.get(&to) {
                        link.say(epoch, message);
                    }
                }
                PrimaryAct::Copy { to, seq, range } => self.copy(to, epoch, seq, range),
                PrimaryAct::Read { id, range } => self.read_piece(id, range),
                PrimaryAct::Reply { id, reply: DiskReply::Written | DiskReply::Flushed } => self.done(id, Ok(())),
                PrimaryAct::Reply { id, reply: DiskReply::Refused } => self.done(id, Err(Errno::NOSPC)),
                PrimaryAct::Reply { id, reply: DiskReply::Held { for_ms } } => {
                    let Some(open) = self.pieces.get(&id).and_then(|of| self.open.get_mut(of)) else { continue };
                    let promised = self.entrance.promise(&open.request);
                    open.results = Held { for_ms }.into();
                    self.done(id, promised);
                }
                PrimaryAct::Propose(record) => self.desk.propose(record),
                PrimaryAct::Over { epoch } => self.end(format!("epoch {epoch} has another primary")),
                PrimaryAct::Better(other) => self.give_way(other),
            }
        }
    }

    /// The record says so, for whoever places the disk, before this process ends.
    fn give_way(&mut self, other: Replica) {
        self.failure.get_or_insert(format!("copy {} knows more than the own one", other.0));
        match self.machine.record().succeeded_by(other) {
            Some(record) => self.desk.propose(record),
            None => self.handle.stop(),
        }
    }

    fn end(&mut self, why: String) {
        tracing::warn!(why, "not primary any more");
        self.failure.get_or_insert(why);
        self.handle.stop();
    }

    /// Nothing else happens to these blocks until the copy is accepted.
    fn copy(&mut self, to: Replica, epoch: u32, seq: u64, range: BlockRange) {
        let Some(link) = self.links.get(&to) else { return };
        let (volume, turn) = (Arc::clone(&self.volume), link.in_turn());
        let done = self.pool.run(move || match read_all(&volume, range) {
            Ok(bytes) => {
                let data = Content::Bytes(Arc::new(bytes));
                turn.say(epoch, ReplicaMessage::Copy { seq, range, data });
            }
            Err(errno) => tracing::error!(%errno, first = range.first, "the own copy cannot be read"),
        });
        if let Err(error) = done {
            tracing::error!(%error, "a copy was refused");
        }
    }

    fn turn(&mut self, now: Instant) {
        for (member, said) in self.inbox.take() {
            let now_ms = self.now_ms();
            match said {
                LinkSaid::Answer(turn, answer) => {
                    if self.links.get(&member).is_some_and(|link| link.turn() == turn) {
                        if let ReplicaAnswer::Welcome(state) = &answer {
                            self.greeted(member, state);
                        }
                        let acts = self.machine.answered(member, answer, now_ms);
                        self.act(acts);
                    }
                }
                LinkSaid::Reserved(id, result) => self.done(id, result),
                LinkSaid::Looked(id, result) => self.has_looked(id, result),
                LinkSaid::NoRoom(turn, seq) => {
                    if self.links.get(&member).is_some_and(|link| link.turn() == turn) {
                        self.finds_no_room(member, seq, now);
                    }
                }
                LinkSaid::Broken(turn) => {
                    // Unless it began anew since.
                    if self.links.get(&member).is_some_and(|link| link.turn() == turn + 1) {
                        self.lose(member, LINK_PAUSE, now);
                    }
                }
            }
        }
        let read = std::mem::take(&mut *self.read.lock());
        for (number, result) in read {
            self.has_read(number, result);
        }
        let heard = self.desk.hear(now);
        if self.failure.is_some() && !heard.is_empty() {
            self.handle.stop();
        }
        for decided in heard {
            let now_ms = self.now_ms();
            let acts = self.machine.decided(decided, now_ms);
            self.act(acts);
            self.follow_members(now);
        }
        let is_silent = |one: &(&Replica, &Link)| {
            let limit = if self.machine.record().is_current(*one.0) { SILENT } else { SILENT_BEHIND };
            one.1.silent_for() > limit && self.machine.is_waited_for(*one.0)
        };
        let silent: Vec<Replica> = self.links.iter().filter(is_silent).map(|one| *one.0).collect();
        for member in silent {
            self.lose(member, LINK_PAUSE, now);
        }
        let back: Vec<Replica> = self.pausing.iter().filter(|one| *one.1 <= now).map(|one| *one.0).collect();
        for member in back {
            self.pausing.remove(&member);
            if let Some(Err(error)) = self.links.get(&member).map(Link::begin_turn) {
                tracing::warn!(copy = member.0, %error, "no session with a copy");
                self.pausing.insert(member, now + DESK_PAUSE);
                continue;
            }
            let now_ms = self.now_ms();
            let acts = self.machine.link_up(member, now_ms);
            self.act(acts);
        }
        if now >= self.due {
            self.due = now + TICK;
            let now_ms = self.now_ms();
            let acts = self.machine.tick(now_ms);
            self.act(acts);
        }
        self.reader.submit();
    }

    fn greeted(&mut self, member: Replica, state: &CopyState) {
        if state.is_blank {
            self.machine.is_blank(member, self.extents_with_data());
        }
        if let CopyVerdict::Refused(why) = judge(self.machine.record(), member, state.mark.as_ref()) {
            tracing::warn!(copy = member.0, ?why, mark = ?state.mark, "this copy is not used: to be removed, and added anew");
        }
    }

    /// A link to each member that came, and none to who left.
    fn follow_members(&mut self, now: Instant) {
        let members = &self.machine.record().members;
        let gone: Vec<Replica> = self.links.keys().filter(|member| !members.contains_key(member)).copied().collect();
        let came = members.keys().filter(|member| !self.links.contains_key(member)).copied();
        for member in came.collect::<Vec<_>>() {
            match Link::open(&self.port, member, self.set, &self.inbox, &self.handle) {
                Ok(link) => {
                    tracing::info!(copy = member.0, "a copy more");
                    self.links.insert(member, link);
                    self.pausing.insert(member, now);
                }
                Err(error) => tracing::error!(copy = member.0, %error, "no such copy"),
            }
        }
        for member in gone {
            tracing::info!(copy = member.0, "a copy less");
            self.lose(member, LINK_PAUSE, now);
            self.pausing.remove(&member);
            self.links.remove(&member);
        }
    }

    fn extents_with_data(&self) -> RangeSet {
        let data_from = |block: u64| {
            let (first, end) = self.volume.data_from(block * BLOCK)?;
            Some((first / BLOCK, end.div_ceil(BLOCK)))
        };
        Layout::of_disk(self.volume.bytes() / BLOCK).extents_with_data(data_from)
    }

    /// The own copy's want of room is what clients hear; another one goes on without.
    fn finds_no_room(&mut self, member: Replica, seq: u64, now: Instant) {
        if member == self.machine.record().primary {
            let now_ms = self.now_ms();
            let acts = self.machine.answered(member, ReplicaAnswer::NoRoom { seq }, now_ms);
            return self.act(acts);
        }
        tracing::warn!(copy = member.0, "a copy is left behind: its node has no room for it");
        self.lose(member, FULL_PAUSE, now);
    }

    fn lose(&mut self, member: Replica, pause: Duration, now: Instant) {
        if self.pausing.contains_key(&member) {
            return;
        }
        tracing::info!(copy = member.0, "no link to a copy");
        self.pausing.insert(member, now + pause);
        if let Some(link) = self.links.get(&member) {
            link.end_turn();
        }
        let unseen: Vec<u64> = self.looking.iter().filter(|one| *one.1 == member).map(|one| *one.0).collect();
        for piece in unseen {
            self.done(piece, Err(Errno::AGAIN));
        }
        // Whoever comes back has no room made, and does not need it to be right.
        let unreserved: Vec<u64> = self.reserving.iter().filter(|one| *one.1 == member).map(|one| *one.0).collect();
        for piece in unreserved {
            self.done(piece, Ok(()));
        }
        let now_ms = self.now_ms();
        let acts = self.machine.link_down(member, now_ms);
        self.act(acts);
    }

    // ---- clients

    fn take(&mut self, request: Request, ticket: Ticket) -> u64 {
        let number = self.number();
        let open = Open {
            request: Arc::new(request),
            _ticket: ticket,
            left: BTreeSet::new(),
            places: HashMap::new(),
            then_flush: false,
            in_bytes: 0,
            results: [0; 4],
            error: None,
        };
        self.open.insert(number, open);
        number
    }

    /// A piece of a request; what it is done with comes by [`Mirror::done`].
    fn piece(&mut self, of: u64) -> u64 {
        let number = self.number();
        self.pieces.insert(number, of);
        if let Some(open) = self.open.get_mut(&of) {
            open.left.insert(number);
        }
        number
    }

    fn ask(&mut self, piece: u64, request: DiskRequest<Content>) {
        if let DiskRequest::Write { range, .. } = &request {
            let touches =
                |reading: &&mut Reading| reading.range.first < range.end() && range.first < reading.range.end();
            self.reading.values_mut().filter(touches).for_each(|reading| reading.is_stale = true);
        }
        let now_ms = self.now_ms();
        let acts = self.machine.ask(piece, request, now_ms);
        self.act(acts);
    }

    fn done(&mut self, piece: u64, result: Result<(), Errno>) {
        self.reserving.remove(&piece);
        self.looking.remove(&piece);
        let Some(of) = self.pieces.remove(&piece) else { return };
        let Some(open) = self.open.get_mut(&of) else { return };
        open.left.remove(&piece);
        open.places.remove(&piece);
        if let Err(errno) = result {
            open.error.get_or_insert(errno);
        }
        self.answer_if_done(of);
    }

    fn answer_if_done(&mut self, of: u64) {
        let Some(open) = self.open.get_mut(&of).filter(|open| open.left.is_empty()) else { return };
        if open.error.is_none() && std::mem::take(&mut open.then_flush) {
            let piece = self.piece(of);
            return self.ask(piece, DiskRequest::Flush);
        }
        let Some(Open { request, in_bytes, results, error, .. }) = self.open.remove(&of) else { return };
        // Nobody reads into it any more.
        let Some(request) = Arc::into_inner(request) else { return };
        match error {
            None => request.reply(results, in_bytes),
            Some(errno) => request.fail(errno),
        }
    }

    fn read(&mut self, of: u64, spans: &[(u64, u64)]) {
        let mut at = 0;
        for (offset, bytes) in spans.iter().filter(|span| span.1 > 0) {
            let range = BlockRange { first: offset / BLOCK, count: (bytes / BLOCK) as u32 };
            let piece = self.piece(of);
            if let Some(open) = self.open.get_mut(&of) {
                open.places.insert(piece, (range, at));
                open.in_bytes += *bytes as u32;
            }
            at += *bytes as u32;
        }
        let pieces: Vec<(u64, BlockRange)> = self
            .open
            .get(&of)
            .into_iter()
            .flat_map(|open| &open.places)
            .map(|(piece, place)| (*piece, place.0))
            .collect();
        for (piece, range) in pieces {
            self.ask(piece, DiskRequest::Read { range });
        }
        self.answer_if_done(of);
    }

    /// By the own copy, which is what readers see.
    fn tell_data(&mut self, piece: u64, told: TellData) {
        let Some(of) = self.pieces.remove(&piece) else { return };
        let Some(Open { request, _ticket: ticket, .. }) = self.open.remove(&of) else { return };
        let Some(request) = Arc::into_inner(request) else { return };
        let volume = Arc::clone(&self.volume);
        let done = self.pool.run(move || {
            tell_data(&volume, request, told);
            drop(ticket);
        });
        if let Err(error) = done {
            tracing::error!(%error, "a request was refused");
        }
    }

    fn read_piece(&mut self, piece: u64, range: BlockRange) {
        if let Some(told) = self.telling.remove(&piece) {
            return self.tell_data(piece, told);
        }
        let Some(open) = self.pieces.get(&piece).and_then(|of| self.open.get(of)) else { return };
        let Some((_, at)) = open.places.get(&piece).copied() else { return };
        let (offset, bytes, request) = (range.first * BLOCK, u64::from(range.count) * BLOCK, Arc::clone(&open.request));
        if at == 0 && self.volume.read_cached(offset, bytes as u32, &Arena(&request)) {
            drop(request);
            return self.done(piece, Ok(()));
        }
        self.reading.insert(piece, Reading { range, is_stale: false });
        let (volume, read, handle) = (Arc::clone(&self.volume), Arc::clone(&self.read), self.handle.clone());
        let is_short = bytes <= u64::from(INLINE_READ_BYTES_MAX);
        let room = request.room(at, bytes as u32).ok().filter(|_| is_short);
        let done = self.reader.read(room, offset, move |is_read| {
            let result = if is_read { Ok(()) } else { volume.read_at(offset, bytes, &Arena(&request), at).map(drop) };
            drop(request);
            read.lock().push((piece, result));
            handle.poke();
        });
        if let Err(error) = done {
            tracing::error!(%error, "a read was refused");
            self.reading.remove(&piece);
            self.done(piece, Err(Errno::IO));
        }
    }

    fn has_read(&mut self, piece: u64, result: Result<(), Errno>) {
        match self.reading.remove(&piece) {
            Some(Reading { range, is_stale: true }) if result.is_ok() => self.ask(piece, DiskRequest::Read { range }),
            _ => self.done(piece, result),
        }
    }

    fn write(&mut self, request: Request, ticket: Ticket, offset: u64, durability: Durability) {
        let bytes = u64::from(request.out_bytes());
        let data = Content::Bytes(Arc::new(request.data()));
        let of = self.take(request, ticket);
        let durable = durability == Durability::Power;
        if let Some(open) = self.open.get_mut(&of) {
            // Nothing to write is a flush.
            open.then_flush = durable && bytes == 0;
        }
        if bytes > 0 {
            let range = BlockRange { first: offset / BLOCK, count: (bytes / BLOCK) as u32 };
            let piece = self.piece(of);
            self.ask(piece, DiskRequest::Write { range, data, durable });
        }
        self.answer_if_done(of);
    }

    fn discard(&mut self, of: u64, offset: u64, bytes: u64) {
        // No piece touches more extents than it must.
        let ranges = ranges_in(offset, bytes, DISCARD_BLOCKS);
        let pieces: Vec<(u64, BlockRange)> = ranges.map(|range| (self.piece(of), range)).collect();
        for (piece, range) in pieces {
            self.ask(piece, DiskRequest::Write { range, data: Content::Zeros, durable: false });
        }
        self.answer_if_done(of);
    }

    /// At each current copy.
    fn allocate(&mut self, of: u64, offset: u64, bytes: u64, need: Need) {
        let current: Vec<Replica> = self.machine.record().current().filter(|it| self.links.contains_key(it)).collect();
        let ranges = || ranges_in(offset, bytes, ALLOCATE_BLOCKS);
        let wanted = current.into_iter().flat_map(|member| ranges().map(move |range| (member, range)));
        let pieces: Vec<_> = wanted.map(|(member, range)| (member, range, self.piece(of))).collect();
        for (member, range, piece) in pieces {
            match self.links.get(&member).filter(|_| !self.pausing.contains_key(&member)) {
                Some(link) => {
                    link.reserve(piece, need, range);
                    self.reserving.insert(piece, member);
                }
                None => self.done(piece, Ok(())),
            }
        }
        self.answer_if_done(of);
    }

    /// From one of the other current copies.
    fn read_other(&mut self, of: u64, which: u64, range: BlockRange) {
        let own = self.machine.record().primary;
        let others = self.machine.record().current().filter(|member| *member != own);
        let other = usize::try_from(which).ok().and_then(|which| others.into_iter().nth(which));
        let piece = self.piece(of);
        let link = other.and_then(|other| Some((other, self.links.get(&other)?)));
        match link.filter(|(other, _)| !self.pausing.contains_key(other)) {
            Some((other, link)) => {
                link.look(piece, range);
                self.looking.insert(piece, other);
            }
            None => self.done(piece, Err(if other.is_some() { Errno::AGAIN } else { Errno::NXIO })),
        }
    }

    fn has_looked(&mut self, piece: u64, result: Result<Vec<u8>, Errno>) {
        let open = self.pieces.get(&piece).and_then(|of| self.open.get_mut(of));
        let put = result.and_then(|data| {
            let open = open.ok_or(Errno::STALE)?;
            open.request.put(0, &data)?;
            open.in_bytes = data.len() as u32;
            Ok(())
        });
        self.done(piece, put);
    }

    fn spans_of(&self, request: &Request) -> Result<Vec<(u64, u64)>, Errno> {
        if request.out_bytes() as usize > SPANS_MAX * size_of::<Span>() {
            return Err(Errno::INVAL);
        }
        let data = request.data();
        let spans = <[Span]>::ref_from_bytes(&data).map_err(|_| Errno::INVAL)?;
        let spans: Vec<(u64, u64)> = spans.iter().map(|span| (span.offset.get(), span.bytes.get())).collect();
        let total = spans.iter().try_fold(0_u64, |sum, span| sum.checked_add(span.1)).ok_or(Errno::RANGE)?;
        if !spans.iter().all(|span| self.volume.has(span.0, span.1)) {
            return Err(Errno::INVAL);
        }
        if total > u64::from(request.in_capacity()) { Err(Errno::RANGE) } else { Ok(spans) }
    }
}

impl Service for MirroredDisk {
    fn opened(&mut self, client: ClientId, from: Endpoint, hello: &Hello) -> HelloReply {
        self.0.lock().entrance.opened(client, from, hello)
    }

    fn submit(&mut self, request: Request) {
        let mut disk = self.0.lock();
        if let Some(entered) = disk.entrance.enter(request) {
            disk.carry_out(entered);
        }
    }

    fn closed(&mut self, client: ClientId) {
        self.0.lock().entrance.closed(client);
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.lock().deadline()
    }

    fn tick(&mut self, now: Instant) {
        let mut disk = self.0.lock();
        disk.turn(now);
        for entered in disk.entrance.tick(now) {
            disk.carry_out(entered);
        }
        disk.reader.submit();
    }
}

impl Mirror {
    fn deadline(&self) -> Option<Instant> {
        let due = Some(self.due).filter(|_| !self.machine.is_quiet(self.now_ms()));
        self.pausing.values().copied().chain(due).chain(self.entrance.due()).min()
    }

    fn carry_out(&mut self, (request, ticket, asked): Entered) {
        let range = match &asked {
            Ask::Read(it) => (it.offset, it.bytes),
            Ask::Write(it) => (it.offset, request.out_bytes().into()),
            Ask::Discard(it) => (it.offset, it.bytes),
            Ask::Allocate(it) => (it.offset, it.bytes),
            Ask::ReadOther(it) => (it.offset, it.bytes),
            Ask::TellData(it) => (it.offset, it.bytes),
            Ask::Info(_) | Ask::Readv(_) | Ask::Flush(_) | Ask::Hold(_) | Ask::Freeze(_) | Ask::Wanted(_) => (0, 0),
        };
        if !self.volume.has(range.0, range.1) {
            return request.fail(Errno::INVAL);
        }
        match asked {
            Ask::Info(_) => {
                let (bytes, block_bytes, epoch) = (self.volume.bytes(), BLOCK, self.epoch);
                request.reply(VolumeInfo { bytes, block_bytes, flags: 0, epoch }, 0);
            }
            Ask::Read(it) if it.bytes > u64::from(request.in_capacity()) => request.fail(Errno::RANGE),
            Ask::Read(it) => {
                let of = self.take(request, ticket);
                self.read(of, &[(it.offset, it.bytes)]);
            }
            Ask::ReadOther(it) if it.bytes == 0 || it.bytes > u64::from(request.in_capacity()) => {
                request.fail(Errno::RANGE);
            }
            Ask::ReadOther(it) => {
                let range = BlockRange { first: it.offset / BLOCK, count: (it.bytes / BLOCK) as u32 };
                let of = self.take(request, ticket);
                self.read_other(of, it.which, range);
            }
            Ask::TellData(it) => {
                let of = self.take(request, ticket);
                let piece = self.piece(of);
                self.telling.insert(piece, it);
                // Who may not read does not know it either; no block has to be quiet for that.
                let range = BlockRange { first: it.offset / BLOCK, count: 0 };
                self.ask(piece, DiskRequest::Read { range });
            }
            Ask::Readv(_) => match self.spans_of(&request) {
                Ok(spans) => {
                    let of = self.take(request, ticket);
                    self.read(of, &spans);
                }
                Err(errno) => request.fail(errno),
            },
            Ask::Write(it) => self.write(request, ticket, it.offset, it.durability),
            Ask::Discard(it) => {
                let of = self.take(request, ticket);
                self.discard(of, it.offset, it.bytes);
            }
            Ask::Allocate(it) => {
                let of = self.take(request, ticket);
                self.allocate(of, it.offset, it.bytes, it.need);
            }
            Ask::Freeze(_) => self.entrance.freeze(request, self.volume.bytes()),
            Ask::Wanted(it) => self.entrance.listen(request, it.for_ms),
            Ask::Flush(_) => {
                let of = self.take(request, ticket);
                let piece = self.piece(of);
                self.ask(piece, DiskRequest::Flush);
            }
            Ask::Hold(_) => {
                let of = self.take(request, ticket);
                let piece = self.piece(of);
                self.ask(piece, DiskRequest::Hold);
            }
        }
    }
}

/// A range of bytes in pieces of so many blocks at most, each of which ends at a multiple of that, or with the range.
fn ranges_in(offset: u64, bytes: u64, most: u64) -> impl Iterator<Item = BlockRange> {
    let (mut first, end) = (offset / BLOCK, (offset + bytes) / BLOCK);
    std::iter::from_fn(move || {
        let next = ((first / most + 1) * most).min(end);
        let range = BlockRange { first, count: (next.saturating_sub(first)) as u32 };
        first = next;
        (range.count > 0).then_some(range)
    })
}

fn read_all(volume: &Volume, range: BlockRange) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; range.count as usize * BLOCK as usize];
    volume.read(range.first * BLOCK, bytes.len() as u64, &ReadInto::new(&mut bytes))?;
    Ok(bytes)
}

// ---- how it becomes primary

/// Nobody waits for a node that was given up; it may come back all the same.
fn pause_before(member: &Replica, options: &SetOptions) -> Duration {
    if options.lost.contains(member) { LOST_PAUSE } else { Duration::ZERO }
}

/// The record of the epoch that begins now.
fn take_over(desk: &mut RecordDesk, options: &SetOptions, copy: &OwnCopy) -> Result<ReplicaRecord, Failure> {
    let until = Instant::now() + PREPARATION;
    desk.wait_until(until, |desk| desk.is_listed)?;
    loop {
        let next = match &desk.heard {
            Some(record) if record.set != options.set => {
                return Err(format!("the record is of set {}, and this disk of {}", record.set, options.set).into());
            }
            // Whoever places the disk elsewhere says so in the record first.
            Some(record) if record.primary != options.own => {
                let (primary, own) = (record.primary.0, options.own.0);
                return Err(format!("copy {primary} is to be primary, and copy {own} is beside this disk").into());
            }
            Some(record) => {
                record.succeeded_by(options.own).ok_or("the own copy is behind: another one is to be primary")?
            }
            None => begin_set(options, copy)?,
        };
        desk.propose(next.clone());
        let mut decided = Vec::new();
        while decided.is_empty() {
            if Instant::now() >= until {
                return Err("the cluster engine does not answer".into());
            }
            desk.socket.wait(DESK_PAUSE);
            decided = desk.hear(Instant::now());
        }
        if decided.contains(&Decided::Accepted) {
            return Ok(next);
        }
    }
}

/// A set that nobody has begun: its first copy is what is there. It is marked before the record says so.
fn begin_set(options: &SetOptions, copy: &OwnCopy) -> Result<ReplicaRecord, Failure> {
    let record = ReplicaRecord::new(options.set, options.own, &options.others);
    let (state, _) = copy.greet(record.epoch)?;
    match state.mark {
        None => {
            let missing = encode_behind(&BTreeMap::new());
            copy.session.ask(MarkCopy { generation: record.generation, whole: 1, missing: &missing }, 0)?;
        }
        Some(mark) if mark.set == options.set && mark.generation == record.generation && mark.whole => (),
        Some(mark) => {
            let what = format!(
                "the engine has no record of this disk, and its copy is of set {}, generation {}",
                mark.set, mark.generation
            );
            return Err(what.into());
        }
    }
    Ok(record)
}

/// The copy beside it, before there are links.
struct OwnCopy {
    session: BlockingSession,
    set: u64,
}

impl OwnCopy {
    fn open(options: &SetOptions, port: &SharedPort) -> Result<OwnCopy, Failure> {
        let endpoint = endpoint_of(options.own).ok_or("no such copy")?;
        let connect = PortConnect::new(port.clone(), endpoint, GREETING);
        let session = BlockingSession::open(Box::new(connect), GREETING, Identity::default())?;
        Ok(OwnCopy { session, set: options.set })
    }

    /// What it says, and for how many milliseconds nobody may become primary.
    fn greet(&self, epoch: u32) -> Result<(CopyState, u64), Failure> {
        let greet = Greet { epoch: epoch.into(), set: self.set };
        let (welcomed, data) = self.session.ask(greet, ENCODED_BYTES_MAX as u32)?;
        let state = CopyState::decode(&data).ok_or("the copy says what makes no sense")?;
        Ok((state, welcomed.promised_ms))
    }
}

impl RecordDesk {
    fn open(socket: OwnedFd, key: String, handle: &Handle) -> Result<RecordDesk, Failure> {
        Ok(RecordDesk {
            socket: DeskSocket::open(socket, handle.clone())?,
            key,
            modified: 0,
            next_id: 1,
            proposed: None,
            ask_again: None,
            is_listed: false,
            heard: None,
        })
    }

    fn wait_until(&mut self, until: Instant, is_so: impl Fn(&RecordDesk) -> bool) -> Result<(), Failure> {
        while !is_so(self) {
            if Instant::now() >= until {
                return Err("the daemon did not tell what is in the cluster engine".into());
            }
            self.socket.wait(DESK_PAUSE);
            self.hear(Instant::now());
        }
        Ok(())
    }

    fn propose(&mut self, record: ReplicaRecord) {
        self.next_id += 1;
        self.proposed = Some((self.next_id, record));
        self.ask();
    }

    fn ask(&mut self) {
        let Some((id, record)) = &self.proposed else { return };
        let given = match self.modified {
            0 => Given::Absent(self.key.clone()),
            modified => Given::Modified(self.key.clone(), modified),
        };
        let value = serde_json::to_vec(record).unwrap_or_default();
        let edits = vec![Edit::Put { key: self.key.clone(), value, stay: Stay::Kept }];
        let question = DeskQuestion::Transact { givens: vec![given], edits };
        self.ask_again = None;
        self.socket.ask(&ToDesk { id: *id, question });
    }

    /// What was decided about the record since.
    fn hear(&mut self, now: Instant) -> Vec<Decided> {
        self.socket.flush();
        if self.ask_again.is_some_and(|at| at <= now) {
            self.ask();
        }
        let mut decided = Vec::new();
        for said in self.socket.heard() {
            match said {
                // Another daemon: what was not answered is asked again.
                FromDesk::Hello(_) => self.ask(),
                FromDesk::Put(known) if known.key == self.key => decided.extend(self.learn(&known)),
                FromDesk::Listed { .. } => self.is_listed = true,
                FromDesk::Done { id, revision } if self.is_proposed(id) => {
                    let proposed = self.proposed.take();
                    self.modified = self.modified.max(revision);
                    self.heard = proposed.map(|it| it.1).or(self.heard.take());
                    decided.push(Decided::Accepted);
                }
                FromDesk::Conflict { id, current } if self.is_proposed(id) => {
                    let known = current.into_iter().flatten().find(|known| known.key == self.key);
                    let is_mine = known.as_ref().and_then(parse) == self.proposed.as_ref().map(|it| it.1.clone());
                    self.proposed = None;
                    match known {
                        // It had happened.
                        Some(known) if is_mine => {
                            self.modified = self.modified.max(known.modified);
                            self.heard = parse(&known);
                            decided.push(Decided::Accepted);
                        }
                        Some(known) => {
                            (self.modified, self.heard) = (known.modified, parse(&known));
                            decided.extend(self.heard.clone().map(Decided::Conflict));
                        }
                        None => tracing::error!("the record of this disk is gone"),
                    }
                }
                FromDesk::Failed { id, why } if self.is_proposed(id) => {
                    if matches!(why, Unanswered::Full | Unanswered::Refused) {
                        tracing::error!(?why, "the record cannot be changed");
                    }
                    self.ask_again = Some(now + DESK_PAUSE);
                }
                _ => (),
            }
        }
        decided
    }

    fn is_proposed(&self, id: u64) -> bool {
        self.proposed.as_ref().is_some_and(|proposed| proposed.0 == id)
    }

    /// Told by the daemon: also what this process wrote itself.
    fn learn(&mut self, known: &Known) -> Option<Decided> {
        if known.modified <= self.modified {
            return None;
        }
        let record = parse(known)?;
        let is_own = self.proposed.as_ref().is_some_and(|proposed| proposed.1 == record);
        if !is_own {
            self.modified = known.modified;
            self.heard = Some(record.clone());
            return Some(Decided::Conflict(record)).filter(|_| self.is_listed && self.proposed.is_none());
        }
        None
    }
}

fn parse(known: &Known) -> Option<ReplicaRecord> {
    let parsed = serde_json::from_slice(&known.value);
    if let Err(error) = &parsed {
        tracing::error!(%error, "the record of this disk makes no sense");
    }
    parsed.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_more_blocks_than_a_number_holds_is_in_pieces_that_leave_nothing_out() {
        let whole = 5 << 32;
        let ranges: Vec<BlockRange> = ranges_in(7 * BLOCK, whole * BLOCK, ALLOCATE_BLOCKS).collect();
        let mut next = 7;
        for range in &ranges {
            assert_eq!(range.first, next);
            next = range.end();
        }
        assert_eq!((next, ranges.len()), (7 + whole, 11));
        assert_eq!(ranges_in(0, 0, ALLOCATE_BLOCKS).count(), 0);
        let small: Vec<u32> = ranges_in(3 * BLOCK, 10 * BLOCK, 8).map(|range| range.count).collect();
        assert_eq!(small, [5, 5]);
    }
}
