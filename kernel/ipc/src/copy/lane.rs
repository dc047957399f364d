//! The copier's end of a copy lane.
//!
//! A slot of the lane's arena is free, or belongs to a request in flight: of the copy that runs (`Running`), of one
//! whose limit passed (`Abandoned`), or of the one that the copier said comes next (`Ahead`). Only its completion frees
//! it; what was asked for ahead lies there until the next copy takes it or is another one (`Here`).

use abi::copy::{Chunk, Request};
use abi::limits::{COPY_CHUNK_BYTES, COPY_ENTRIES};
use abi::ring::Completion;
use abi::{GrantId, IpcError};
use ipc_core::{Budget, ChannelId, Words};
use ipc_shm::{Arena, ControlPage};

use crate::lanes::Attend;
use crate::ring::RingClient;
use crate::wait::Deadline;
use crate::waiting::{Gone, Stop, Terms, own_end, wait_for};

/// The copier's own end of the bytes.
pub(crate) enum Local<'a> {
    /// From the peer into ours.
    Into(&'a mut [u8]),
    IntoMemory(&'a Arena, usize),
    /// From ours to the peer.
    From(&'a [u8]),
    FromMemory(&'a Arena, usize),
}

impl Local<'_> {
    fn is_reading(&self) -> bool {
        matches!(self, Local::Into(_) | Local::IntoMemory(..))
    }

    /// What the death of the grant's owner means for the copy.
    pub fn owner_died(&self) -> IpcError {
        if self.is_reading() { IpcError::SourceDied } else { IpcError::DestinationDied }
    }
}

/// One copy between granted memory of the peer and ours.
pub(crate) struct Job<'a> {
    pub grant: GrantId,
    pub offset: u64,
    pub local: Local<'a>,
    pub bytes: u64,
    /// Where the copy of which this is a part ends in the grant.
    pub whole_end: u64,
    /// Where the copier reads as many bytes next, by its own word.
    pub next: Option<(GrantId, u64)>,
}

/// How the copier waits.
pub(crate) struct Waiting<'a> {
    pub own_control: &'a ControlPage,
    pub budget: &'a mut Budget,
    pub deadline: Deadline,
    pub attend: Attend<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChunkState {
    Free,
    /// The chunk's place in the copy.
    Running {
        at: u64,
        bytes: u32,
    },
    Abandoned,
    /// Of the copy that comes next: on its way, and come, with the owner's word on it.
    Ahead {
        at: u64,
        bytes: u32,
    },
    Here {
        at: u64,
        bytes: u32,
        status: u32,
    },
}

#[derive(Debug)]
pub(crate) struct CopyLane {
    ring: RingClient,
    slots: [ChunkState; COPY_ENTRIES as usize],
    ahead: Option<Ahead>,
}

/// A read that was asked for before it was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ahead {
    grant: GrantId,
    offset: u64,
    bytes: u64,
    /// Bytes asked for.
    next: u64,
}

/// Free slots for which it pays to ask ahead: each asking is a packet of its own between nodes.
const AHEAD_SLOTS_MIN: usize = 4;

/// Requests a small copy is cut into, so that one party copies out while the other copies in.
const PARTS: u64 = 4;
/// Less is not worth a request.
const PART_BYTES_MIN: u64 = 8 << 10;

impl Ahead {
    fn is_of(&self, job: &Job<'_>) -> bool {
        let Ahead { grant, offset, bytes, .. } = *self;
        job.local.is_reading()
            && (job.grant, job.offset, job.bytes, job.whole_end) == (grant, offset, bytes, offset.saturating_add(bytes))
    }
}

/// How much of a copy of `bytes` one request moves.
fn part_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(PARTS).next_multiple_of(4096).clamp(PART_BYTES_MIN, u64::from(COPY_CHUNK_BYTES))
}

/// How far a copy is.
struct Progress {
    /// Bytes asked for.
    next: u64,
    running: u32,
    /// A copy of nothing asks once all the same, so that its grant is checked.
    begun: bool,
    failed: Option<IpcError>,
}

impl CopyLane {
    pub fn new(ring: RingClient) -> CopyLane {
        CopyLane { ring, slots: [ChunkState::Free; COPY_ENTRIES as usize], ahead: None }
    }

    pub fn channel(&self) -> ChannelId {
        self.ring.channel()
    }

    pub fn is_closed(&self) -> bool {
        self.ring.is_closed().is_some()
    }

    /// Runs a copy. An error that ended the lane shows in `is_closed`.
    pub fn run(&mut self, mut job: Job<'_>, mut waiting: Waiting<'_>) -> Result<(), IpcError> {
        let mut progress = Progress { next: 0, running: 0, begun: false, failed: None };
        let result = match self.ahead.take_if(|ahead| ahead.is_of(&job)) {
            Some(ahead) => self.take_up(&ahead, &mut job, &mut progress),
            None => {
                self.forget_ahead();
                Ok(())
            }
        };
        let result = result.and_then(|()| self.run_to_end(&mut job, &mut waiting, &mut progress));
        for slot in &mut self.slots {
            if let ChunkState::Running { .. } = slot {
                *slot = ChunkState::Abandoned;
            }
        }
        if result.is_err() {
            self.forget_ahead();
        }
        result
    }

    /// The copy that was asked for ahead is called.
    fn take_up(&mut self, ahead: &Ahead, job: &mut Job<'_>, progress: &mut Progress) -> Result<(), IpcError> {
        (progress.next, progress.begun) = (ahead.next, ahead.next > 0);
        let mut came = Vec::new();
        for (tag, slot) in self.slots.iter_mut().enumerate() {
            match *slot {
                ChunkState::Ahead { at, bytes } => {
                    *slot = ChunkState::Running { at, bytes };
                    progress.running += 1;
                }
                ChunkState::Here { at, bytes, status } => {
                    *slot = ChunkState::Free;
                    came.push((at, bytes, status, tag));
                }
                ChunkState::Free | ChunkState::Running { .. } | ChunkState::Abandoned => {}
            }
        }
        // As if they came now, one after the other.
        came.sort_unstable();
        for (at, bytes, status, tag) in came {
            self.take(tag, (at as usize, bytes as usize), status, job, progress)?;
        }
        Ok(())
    }

    /// Another copy is called than the one that was asked for.
    fn forget_ahead(&mut self) {
        self.ahead = None;
        for slot in &mut self.slots {
            match slot {
                ChunkState::Ahead { .. } => *slot = ChunkState::Abandoned,
                ChunkState::Here { .. } => *slot = ChunkState::Free,
                ChunkState::Free | ChunkState::Running { .. } | ChunkState::Abandoned => {}
            }
        }
    }

    /// All of this copy is asked for: what comes next fills the slots that are free, if there are so many.
    fn ask_ahead(&mut self, job: &Job<'_>, slots_min: usize) -> Result<(), IpcError> {
        let Some((grant, offset)) = job.next else { return Ok(()) };
        let mut ahead = self.ahead.unwrap_or(Ahead { grant, offset, bytes: job.bytes, next: 0 });
        let free = self.slots.iter().filter(|slot| **slot == ChunkState::Free).count();
        let Some(whole_end) = offset.checked_add(ahead.bytes).filter(|_| free >= slots_min.max(1)) else {
            return Ok(());
        };
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if ahead.next == ahead.bytes {
                break;
            }
            if *slot != ChunkState::Free {
                continue;
            }
            let (at, tag) = (ahead.next, number as u32);
            let bytes = (ahead.bytes - at).min(part_bytes(ahead.bytes)) as u32;
            let chunk = Chunk { grant, offset: offset + at, bytes, whole_end };
            let submission = Request::Read(chunk).to_submission(tag, tag * COPY_CHUNK_BYTES);
            self.ring.submit(&submission).map_err(|_| IpcError::Corrupt)?;
            *slot = ChunkState::Ahead { at, bytes };
            ahead.next = at + u64::from(bytes);
        }
        self.ahead = Some(ahead);
        self.ring.publish();
        Ok(())
    }

    fn run_to_end(
        &mut self,
        job: &mut Job<'_>,
        waiting: &mut Waiting<'_>,
        progress: &mut Progress,
    ) -> Result<(), IpcError> {
        loop {
            self.submit_all(job, progress)?;
            while let Some(completion) = self.poll(job, waiting)? {
                self.complete(&completion, job, progress)?;
            }
            let is_asked = progress.begun && progress.next == job.bytes || progress.failed.is_some();
            if is_asked && progress.running == 0 {
                if progress.failed.is_none() {
                    self.ask_ahead(job, 1)?;
                }
                return progress.failed.map_or(Ok(()), Err);
            }
            if is_asked && progress.failed.is_none() {
                self.ask_ahead(job, AHEAD_SLOTS_MIN)?;
            }
            // More to ask, and a slot became free.
            if !is_asked && self.slots.contains(&ChunkState::Free) {
                continue;
            }
            self.wait(job, waiting)?;
        }
    }

    fn poll(&self, job: &Job<'_>, waiting: &Waiting<'_>) -> Result<Option<Completion>, IpcError> {
        // Its reason may be the end of either party.
        let told = |reason| own_end(waiting.own_control).unwrap_or_else(|| ended(reason, job.local.owner_died()));
        self.ring.poll().map_err(told)
    }

    fn submit_all(&mut self, job: &Job<'_>, progress: &mut Progress) -> Result<(), IpcError> {
        let arena = self.ring.arena();
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if progress.failed.is_some() || progress.begun && progress.next == job.bytes {
                break;
            }
            if *slot != ChunkState::Free {
                continue;
            }
            let bytes = (job.bytes - progress.next).min(part_bytes(job.bytes)) as u32;
            let (at, tag) = (progress.next, number as u32);
            let arena_offset = tag * COPY_CHUNK_BYTES;
            let chunk = Chunk { grant: job.grant, offset: job.offset + at, bytes, whole_end: job.whole_end };
            let from = at as usize..at as usize + bytes as usize;
            let request = match &job.local {
                Local::Into(_) | Local::IntoMemory(..) => Request::Read(chunk),
                Local::From(data) => {
                    arena.copy_in(arena_offset as usize, data.get(from).ok_or(IpcError::BadArgument)?)?;
                    Request::Write(chunk)
                }
                Local::FromMemory(memory, first) => {
                    arena.copy_from(arena_offset as usize, memory, first + from.start, bytes as usize)?;
                    Request::Write(chunk)
                }
            };
            // An owner takes a request before it completes it: whoever freed the slot has room in its ring, or lies.
            self.ring.submit(&request.to_submission(tag, arena_offset)).map_err(|_| IpcError::Corrupt)?;
            *slot = ChunkState::Running { at, bytes };
            (progress.next, progress.begun) = (at + u64::from(bytes), true);
            progress.running += 1;
            // As the owner does with what it copies.
            if !job.local.is_reading() && !self.ring.half().is_peer_parked() {
                self.ring.publish();
            }
        }
        self.ring.publish();
        Ok(())
    }

    fn complete(
        &mut self,
        completion: &Completion,
        job: &mut Job<'_>,
        progress: &mut Progress,
    ) -> Result<(), IpcError> {
        let Completion { tag, status, in_bytes, .. } = *completion;
        let slot = self.slots.get_mut(tag as usize).ok_or(IpcError::Corrupt)?;
        let is_whole = |bytes: u32| status != 0 || in_bytes == bytes;
        match std::mem::replace(slot, ChunkState::Free) {
            ChunkState::Running { at, bytes } if !job.local.is_reading() || is_whole(bytes) => {
                progress.running -= 1;
                self.take(tag as usize, (at as usize, bytes as usize), status, job, progress)
            }
            ChunkState::Ahead { at, bytes } if is_whole(bytes) => {
                *slot = ChunkState::Here { at, bytes, status };
                Ok(())
            }
            ChunkState::Abandoned => Ok(()),
            _ => Err(IpcError::Corrupt),
        }
    }

    /// A chunk of the copy is done, or refused.
    fn take(
        &self,
        tag: usize,
        (at, bytes): (usize, usize),
        status: u32,
        job: &mut Job<'_>,
        progress: &mut Progress,
    ) -> Result<(), IpcError> {
        if status != 0 {
            // They come in order: the first is that of the lowest bytes.
            progress.failed.get_or_insert(refusal(status)?);
            return Ok(());
        }
        let (arena, from) = (self.ring.arena(), tag * COPY_CHUNK_BYTES as usize);
        match &mut job.local {
            Local::Into(data) => {
                arena.copy_out(from, data.get_mut(at..at + bytes).ok_or(IpcError::BadArgument)?)?;
            }
            Local::IntoMemory(memory, first) => memory.copy_from(*first + at, arena, from, bytes)?,
            Local::From(_) | Local::FromMemory(..) => {}
        }
        Ok(())
    }

    fn wait(&mut self, job: &Job<'_>, waiting: &mut Waiting<'_>) -> Result<(), IpcError> {
        let ring = &self.ring;
        let look = || ring.has_news().then_some(());
        let Waiting { own_control, budget, deadline, attend } = waiting;
        match wait_for(ring.half(), own_control, budget, Terms::until(*deadline), attend, look) {
            Ok(()) => Ok(()),
            Err(Stop::TimedOut) => Err(IpcError::TimedOut),
            Err(Stop::PeerGone(Gone::Died | Gone::Replaced(_))) => Err(job.local.owner_died()),
            Err(Stop::PeerGone(Gone::For(reason))) => Err(ended(reason, job.local.owner_died())),
            Err(Stop::Own(error)) => Err(error),
            Err(Stop::Deadlock) => Err(IpcError::Deadlock),
        }
    }
}

/// What the end of a lane tells the copier. The owner may have written any reason; what would speak of the copier
/// itself says only that the owner ended, as one does that was handed over, since its grants do not go with it.
fn ended(reason: IpcError, died: IpcError) -> IpcError {
    match reason {
        IpcError::NoLink | IpcError::Denied | IpcError::TableFull | IpcError::BadArgument | IpcError::Corrupt => reason,
        _ => died,
    }
}

/// Why the owner refuses a request: the errors of its table of grants. Others are none of a completion.
fn refusal(status: u32) -> Result<IpcError, IpcError> {
    match IpcError::from_code(status) {
        error @ (IpcError::UnknownGrant
        | IpcError::Revoked
        | IpcError::Denied
        | IpcError::WrongDirection
        | IpcError::OutOfGrant
        | IpcError::BadArgument) => Ok(error),
        _ => Err(IpcError::Corrupt),
    }
}
