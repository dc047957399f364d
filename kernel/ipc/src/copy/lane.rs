//! The copier's end of a copy lane.
//!
//! A slot of the lane's arena is free, or belongs to a request in flight: of the copy that runs (`Running`) or of one
//! whose limit passed (`Abandoned`). Only its completion frees it.

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
}

#[derive(Debug)]
pub(crate) struct CopyLane {
    ring: RingClient,
    slots: [ChunkState; COPY_ENTRIES as usize],
}

/// Requests a small copy is cut into, so that one party copies out while the other copies in.
const PARTS: u64 = 4;
/// Less is not worth a request.
const PART_BYTES_MIN: u64 = 8 << 10;

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
        CopyLane { ring, slots: [ChunkState::Free; COPY_ENTRIES as usize] }
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
        let result = self.run_to_end(&mut job, &mut waiting, &mut progress);
        for slot in &mut self.slots {
            if let ChunkState::Running { .. } = slot {
                *slot = ChunkState::Abandoned;
            }
        }
        result
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
                return progress.failed.map_or(Ok(()), Err);
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
        let slot = self.slots.get_mut(completion.tag as usize).ok_or(IpcError::Corrupt)?;
        let (at, bytes) = match std::mem::replace(slot, ChunkState::Free) {
            ChunkState::Running { at, bytes } => (at as usize, bytes as usize),
            ChunkState::Abandoned => return Ok(()),
            ChunkState::Free => return Err(IpcError::Corrupt),
        };
        progress.running -= 1;
        if completion.status != 0 {
            // They come in order: the first is that of the lowest bytes.
            progress.failed.get_or_insert(refusal(completion.status)?);
            return Ok(());
        }
        if job.local.is_reading() && completion.in_bytes as usize != bytes {
            return Err(IpcError::Corrupt);
        }
        let (arena, from) = (self.ring.arena(), completion.tag as usize * COPY_CHUNK_BYTES as usize);
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
