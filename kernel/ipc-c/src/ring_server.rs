//! `m3_ring_server`: the end that completes; handed out with the event that it was opened.

use std::ffi::{c_int, c_void};

use abi::IpcError;
use ipc::RingServer;

use crate::cell::{Cell, Pool};
use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::ring::give_arena;
use crate::types::{CCompletion, CSubmission};

type Handle = Cell<RingServer>;

static SERVERS: Pool<RingServer> = Pool::new();

pub fn hand_out(server: RingServer) -> *const Handle {
    SERVERS.open(server)
}

/// # Safety
/// `server` is null or came from [`hand_out`].
unsafe fn on<R>(server: *const Handle, call: impl FnOnce(&RingServer) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: as our caller promised; cells live for ever.
    match unsafe { server.as_ref() } {
        Some(cell) => cell.shared(call),
        None => Err(Failure::Ipc(IpcError::NotBound)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_server_close(server: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        let cell: &'static Handle = unsafe { server.as_ref() }.ok_or(Failure::Ipc(IpcError::NotBound))?;
        SERVERS.close(cell)?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_server_next(server: *const Handle, submission: *mut CSubmission) -> c_int {
    entry(|| {
        pointer::check(submission)?;
        // SAFETY: the header demands a ring.
        let Some(next) = (unsafe { on(server, |server| Ok(server.next()?)) })? else { return Ok(0) };
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(submission, CSubmission::of(&next)) }?;
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_server_complete(server: *const Handle, completion: *const CCompletion) -> c_int {
    entry(|| {
        // SAFETY: the header demands a completion.
        let completion = unsafe { pointer::object(completion) }?.to_completion();
        // SAFETY: the header demands a ring.
        unsafe { on(server, |server| Ok(server.complete(&completion)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_server_publish(server: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        unsafe {
            on(server, |server| {
                server.publish();
                DONE
            })
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_server_arena(server: *const Handle, bytes: *mut usize) -> *mut c_void {
    // SAFETY: the header demands a ring.
    let arena = || unsafe { on(server, |server| Ok((server.arena().address(), server.arena().len()))) };
    // SAFETY: the header demands a place for the length, or null.
    unsafe { give_arena(arena, bytes) }
}
