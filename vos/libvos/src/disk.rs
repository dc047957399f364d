//! The disk's client: any offset and length in blocks, split into transfers that travel at the same time.

use std::collections::VecDeque;
use std::time::Duration;

use abi::limits::TRANSFER_BYTES_MAX;
use rustix::io::Errno;
pub use vos_api::disk::{Access, Durability, Need};
use vos_api::disk::{
    Allocate, BLOCK_BYTES, Discard, Flush, Freeze, Hold, Info, READ_ONLY, Read, ReadOther, SPANS_MAX, Span, TellData,
    Wanted, Write,
};
use vos_api::{Class, Operation};
use zerocopy::FromBytes;

use ipc::Arena;

use crate::blocking::{BlockingSession, Fetched, RequestRoom, Started};
use crate::op::Op;

/// Transfers of one call that are in flight at a time: enough to keep a link busy, few enough to leave others room.
pub const TRANSFERS_IN_FLIGHT: usize = 16;

/// Of numbers of extents in one answer.
const WANTED_BYTES: u32 = 4096;

/// What a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskInfo {
    pub bytes: u64,
    pub block_bytes: u32,
    pub access: Access,
    pub epoch: u64,
}

/// A virtual disk. Clones share the session; all calls may be made from any thread and repeated freely.
#[derive(Clone)]
pub struct DiskClient {
    session: BlockingSession,
}

impl DiskClient {
    pub fn new(session: BlockingSession) -> DiskClient {
        DiskClient { session }
    }

    pub fn session(&self) -> &BlockingSession {
        &self.session
    }

    pub fn info(&self) -> Result<DiskInfo, Errno> {
        let (info, _) = self.session.ask(Info {}, 0)?;
        let access = if info.flags & READ_ONLY == 0 { Access::ReadWrite } else { Access::ReadOnly };
        let block_bytes = u32::try_from(info.block_bytes).map_err(|_| Errno::PROTO)?;
        Ok(DiskInfo { bytes: info.bytes, block_bytes, access, epoch: info.epoch })
    }

    /// Fills `into` from `offset` on. Offset and length are multiples of the block.
    pub fn read_into(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        check(offset, into.len())?;
        let mut flying: VecDeque<(Started, &mut [u8])> = VecDeque::with_capacity(TRANSFERS_IN_FLIGHT);
        let mut at = offset;
        for piece in into.chunks_mut(TRANSFER_BYTES_MAX as usize) {
            let bytes = piece.len() as u32;
            let read = Read { offset: at, bytes: u64::from(bytes) }.encode();
            let op = Op::of(&read, Class::Repeatable, bytes);
            let started = loop {
                if flying.len() < TRANSFERS_IN_FLIGHT
                    && let Some(started) = self.session.try_start(op)?
                {
                    break started;
                }
                match flying.pop_front() {
                    Some((oldest, place)) => finish_read(oldest, place)?,
                    None => break self.session.start(op)?,
                }
            };
            flying.push_back((started, piece));
            at += u64::from(bytes);
        }
        flying.into_iter().try_for_each(|(started, place)| finish_read(started, place))
    }

    /// Several reads that are under way together, each of one transfer at most.
    pub fn read_each(&self, reads: &mut [(u64, Vec<u8>)]) -> Vec<Result<(), Errno>> {
        let mut flying: VecDeque<(usize, Started)> = VecDeque::with_capacity(reads.len());
        let mut results: Vec<(usize, Result<(), Errno>)> = Vec::with_capacity(reads.len());
        let land = |reads: &mut [(u64, Vec<u8>)], (at, started): (usize, Started)| {
            (at, reads.get_mut(at).map_or(Err(Errno::INVAL), |(_, place)| finish_read(started, place)))
        };
        for at in 0..reads.len() {
            let begun = reads.get(at).ok_or(Errno::INVAL).and_then(|(offset, place)| {
                check(*offset, place.len())?;
                let bytes = u32::try_from(place.len()).ok().filter(|bytes| *bytes <= TRANSFER_BYTES_MAX);
                Ok((*offset, bytes.ok_or(Errno::RANGE)?))
            });
            let started = begun.and_then(|(offset, bytes)| {
                let read = Read { offset, bytes: bytes.into() }.encode();
                let op = Op::of(&read, Class::Repeatable, bytes);
                loop {
                    if let Some(started) = self.session.try_start(op)? {
                        return Ok(started);
                    }
                    match flying.pop_front() {
                        Some(oldest) => results.push(land(reads, oldest)),
                        None => return self.session.start(op),
                    }
                }
            });
            match started {
                Ok(started) => flying.push_back((at, started)),
                Err(errno) => results.push((at, Err(errno))),
            }
        }
        results.extend(flying.into_iter().map(|one| land(reads, one)));
        results.sort_by_key(|(at, _)| *at);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Begins a read of one transfer at most, which goes on beside others. `None`: there is no room for it until one of
    /// those is finished.
    pub fn begin_read(&self, offset: u64, bytes: u32) -> Result<Option<ReadBegun>, Errno> {
        check(offset, bytes as usize)?;
        let read = Read { offset, bytes: bytes.into() }.encode();
        let started = self.session.try_start(Op::of(&read, Class::Repeatable, bytes))?;
        Ok(started.map(|started| ReadBegun { started, bytes }))
    }

    /// Room for a write of one transfer at most, whose bytes are put into it before it begins. `None`: there is none
    /// until others are finished, or no server at the moment.
    pub fn reserve_write(&self, bytes: u32) -> Result<Option<ReservedWrite>, Errno> {
        Ok(self.session.try_reserve(bytes)?.map(|room| ReservedWrite { room, bytes }))
    }

    /// The same from one of the other copies of the disk, at most one transfer. `ENXIO`: so many there are not.
    pub fn read_other(&self, which: u64, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        check(offset, into.len())?;
        let bytes = u32::try_from(into.len()).map_err(|_| Errno::RANGE)?;
        let read = ReadOther { which, offset, bytes: bytes.into() }.encode();
        finish_read(self.session.start(Op::of(&read, Class::Repeatable, bytes))?, into)
    }

    pub fn read(&self, offset: u64, bytes: usize) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; bytes];
        self.read_into(offset, &mut data)?;
        Ok(data)
    }

    pub fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), Errno> {
        self.write_together(&[(offset, data)], durability)
    }

    /// Several writes that are under way together, in no order. After a failure any of them may have happened.
    pub fn write_together(&self, writes: &[(u64, &[u8])], durability: Durability) -> Result<(), Errno> {
        writes.iter().try_for_each(|(offset, data)| check(*offset, data.len()))?;
        let mut flying: VecDeque<Started> = VecDeque::with_capacity(TRANSFERS_IN_FLIGHT);
        let pieces = writes.iter().flat_map(|(offset, data)| {
            let pieces = data.chunks(TRANSFER_BYTES_MAX as usize);
            (*offset..).step_by(TRANSFER_BYTES_MAX as usize).zip(pieces)
        });
        for (at, piece) in pieces {
            let write = Write { durability, offset: at }.encode();
            let op = Op::of(&write, Class::Repeatable, 0).out(piece);
            let started = loop {
                if flying.len() < TRANSFERS_IN_FLIGHT
                    && let Some(started) = self.session.try_start(op)?
                {
                    break started;
                }
                match flying.pop_front() {
                    Some(oldest) => oldest.wait().map(drop)?,
                    None => break self.session.start(op)?,
                }
            };
            flying.push_back(started);
        }
        flying.into_iter().try_for_each(|started| started.wait().map(drop))
    }

    /// Where a range may hold other than zeros, from where to where, and how far that reaches. `EOPNOTSUPP`, `ENOSYS`:
    /// its server is of a release that does not tell.
    pub fn data_in(&self, offset: u64, bytes: u64) -> Result<(Vec<(u64, u64)>, u64), Errno> {
        let room = (SPANS_MAX * size_of::<Span>()) as u32;
        let (told, data) = self.session.ask(TellData { offset, bytes }, room)?;
        let spans = <[Span]>::ref_from_bytes(&data).map_err(|_| Errno::IO)?;
        let spans = spans.iter().map(|span| (span.offset.get(), span.offset.get().saturating_add(span.bytes.get())));
        Ok((spans.collect(), told.until))
    }

    /// Everything completed before survives the loss of power.
    pub fn flush(&self) -> Result<(), Errno> {
        self.session.ask(Flush {}, 0).map(drop)
    }

    /// Sets the space of the range aside, whose content stays: `ENOSPC` now instead of at a write.
    pub fn allocate(&self, offset: u64, bytes: u64, need: Need) -> Result<(), Errno> {
        self.session.ask(Allocate { need, offset, bytes }, 0).map(drop)
    }

    /// For how long, from when this was called, no other owner is served.
    pub fn hold(&self) -> Result<Duration, Errno> {
        let (held, _) = self.session.ask(Hold {}, 0)?;
        Ok(Duration::from_millis(held.for_ms))
    }

    /// Over this ring the disk is read from now on as it is at this moment, each extent once and as a whole: others who
    /// change it wait meanwhile. It is over when another ring was opened (`restarts` of the session).
    pub fn freeze(&self) -> Result<(), Errno> {
        self.session.ask(Freeze {}, 0).map(drop)
    }

    /// Which extents others wait for; none when nobody did for so long.
    pub fn wanted(&self, limit: Duration) -> Result<Vec<u64>, Errno> {
        let for_ms = limit.as_millis() as u64;
        let (_, data) = self.session.ask(Wanted { for_ms }, WANTED_BYTES)?;
        Ok(data.chunks_exact(8).filter_map(|number| Some(u64::from_le_bytes(number.try_into().ok()?))).collect())
    }

    /// The range reads as zeros afterwards.
    pub fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        self.session.ask(Discard { offset, bytes }, 0).map(drop)
    }
}

/// A read that is under way.
#[must_use = "what nobody waits for is lost"]
pub struct ReadBegun {
    started: Started,
    bytes: u32,
}

impl ReadBegun {
    /// Whether [`ReadBegun::fetch`] has nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.started.is_done()
    }

    /// Waits for it, and leaves what was read where it is: as many bytes as were asked for.
    pub fn fetch(self) -> Result<Fetched, Errno> {
        let fetched = self.started.fetch()?;
        if fetched.len() == self.bytes as usize { Ok(fetched) } else { Err(Errno::IO) }
    }
}

/// Where the bytes of a write belong.
pub struct ReservedWrite {
    room: RequestRoom,
    bytes: u32,
}

impl ReservedWrite {
    /// The arena that takes them, and from where on.
    pub fn arena(&self) -> Option<(&Arena, usize)> {
        self.room.arena()
    }

    /// Begins the write, which goes on beside others.
    pub fn begin(self, offset: u64, durability: Durability) -> Result<WriteBegun, Errno> {
        check(offset, self.bytes as usize)?;
        let write = Write { durability, offset }.encode();
        Ok(WriteBegun(self.room.start(Op::of(&write, Class::Repeatable, 0))?))
    }
}

/// A write that is under way.
#[must_use = "nobody knows whether it happened"]
pub struct WriteBegun(Started);

impl WriteBegun {
    /// Whether [`WriteBegun::finish`] has nothing to wait for.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    pub fn finish(self) -> Result<(), Errno> {
        self.0.wait().map(drop)
    }
}

fn finish_read(started: Started, place: &mut [u8]) -> Result<(), Errno> {
    match started.wait_into(place)? {
        (_, got) if got == place.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn check(offset: u64, bytes: usize) -> Result<(), Errno> {
    let block = u64::from(BLOCK_BYTES);
    let is_aligned = offset.is_multiple_of(block) && (bytes as u64).is_multiple_of(block);
    if is_aligned && offset.checked_add(bytes as u64).is_some() { Ok(()) } else { Err(Errno::INVAL) }
}
