//! The owner's end of a copy lane: requests against the table of grants.

use abi::copy::{Chunk, Request};
use abi::limits::COPY_ENTRIES;
use abi::ring::{Completion, Submission};
use abi::{Direction, IpcError};
use ipc_core::grants::{Grants, Use};
use ipc_shm::Arena;

use crate::ring::RingServer;

/// Serves what one copier asks now; whether there was anything. A copier that is gone is not served: nobody waits for
/// it. Each completion is shown at once: the copier, or a proxy, moves one chunk while the next is copied here.
pub(crate) fn serve(lane: &RingServer, grants: &mut Grants<Arena>) -> bool {
    let mut any = false;
    for _ in 0..COPY_ENTRIES {
        if lane.is_closed().is_some() {
            return any;
        }
        // An error closed the lane.
        let Ok(Some(submission)) = lane.next() else { break };
        any = true;
        let (status, in_bytes) = match perform(lane, grants, &submission) {
            Ok(in_bytes) => (0, in_bytes),
            Err(error) => (error.code(), 0),
        };
        let done = Completion { tag: submission.tag, status, in_bytes, ..Completion::default() };
        if lane.complete(&done).is_err() {
            return any;
        }
        lane.publish();
    }
    any
}

/// The bytes that go back with the completion.
fn perform(lane: &RingServer, grants: &mut Grants<Arena>, submission: &Submission) -> Result<u32, IpcError> {
    let request = Request::from_submission(submission).ok_or(IpcError::BadArgument)?;
    let (chunk, wanted) = match request {
        Request::Read(chunk) => (chunk, Direction::Read),
        Request::Write(chunk) => (chunk, Direction::Write),
    };
    let Chunk { grant, offset, bytes, whole_end } = chunk;
    let incarnation = lane.half().peer_control().incarnation();
    let memory = grants.used(grant, &Use { by: lane.client(), incarnation, wanted, offset, end: whole_end })?;
    let (offset, bytes) = (usize::try_from(offset).map_err(|_| IpcError::OutOfGrant)?, bytes as usize);
    let (arena, arena_offset) = (lane.arena(), submission.arena_offset as usize);
    match wanted {
        Direction::Read => {
            arena.copy_from(arena_offset, memory, offset, bytes)?;
            Ok(chunk.bytes)
        }
        _ => {
            memory.copy_from(offset, &arena, arena_offset, bytes)?;
            Ok(0)
        }
    }
}
