//! `m3_ring`: the end that submits.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use abi::IpcError;
use ipc::{Arming, RingClient, RingSpec};

use crate::cell::{Cell, Pool};
use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port::{self, with};
use crate::types::{CCompletion, CSubmission};

type Handle = Cell<RingClient>;

static RINGS: Pool<RingClient> = Pool::new();

/// # Safety
/// `ring` is null or came from `m3_ring_open`.
unsafe fn on<R>(ring: *const Handle, call: impl FnOnce(&RingClient) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: as our caller promised; cells live for ever.
    match unsafe { ring.as_ref() } {
        Some(cell) => cell.shared(call),
        None => Err(Failure::Ipc(IpcError::NotBound)),
    }
}

/// What a forked child inherited did nothing.
fn check_own(ring: &RingClient) -> Outcome<()> {
    if ring.is_inherited() { Err(Failure::Ipc(IpcError::NotBound)) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_open(
    port: *const port::Handle,
    to: c_int,
    entries: u32,
    arena_bytes: u32,
    timeout_ms: c_int,
    ring: *mut *const Handle,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(ring) }?;
        let (to, spec) = (pointer::endpoint(to)?, RingSpec { entries, arena_bytes });
        // SAFETY: the header demands a port.
        let opened = unsafe { with(port, |port| Ok(port.open_ring(to, spec, pointer::wait(timeout_ms))?)) }?;
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::set(ring, RINGS.open(opened)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_close(ring: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        let cell: &'static Handle = unsafe { ring.as_ref() }.ok_or(Failure::Ipc(IpcError::NotBound))?;
        RINGS.close(cell)?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_submit(ring: *const Handle, submission: *const CSubmission) -> c_int {
    entry(|| {
        // SAFETY: the header demands a submission.
        let submission = unsafe { pointer::object(submission) }?.to_submission();
        // SAFETY: the header demands a ring.
        unsafe {
            on(ring, |ring| {
                let submitted = ring.submit(&submission);
                check_own(ring)?;
                submitted.map_err(|_| Failure::Busy)
            })
        }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_publish(ring: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        unsafe {
            on(ring, |ring| {
                ring.publish();
                check_own(ring)?;
                DONE
            })
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_poll(ring: *const Handle, completion: *mut CCompletion) -> c_int {
    entry(|| {
        pointer::check(completion)?;
        // SAFETY: the header demands a ring.
        let Some(polled) = (unsafe { on(ring, |ring| Ok(ring.poll()?)) })? else { return Ok(0) };
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(completion, CCompletion::of(&polled)) }?;
        Ok(1)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_wait(ring: *const Handle, timeout_ms: c_int) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        unsafe { on(ring, |ring| Ok(ring.wait(pointer::wait(timeout_ms))?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_arena(ring: *const Handle, bytes: *mut usize) -> *mut c_void {
    // SAFETY: the header demands a ring.
    let arena = || unsafe { on(ring, |ring| Ok((ring.arena().address(), ring.arena().len()))) };
    // SAFETY: the header demands a place for the length, or null.
    unsafe { give_arena(arena, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_fd(ring: *const Handle) -> c_int {
    // SAFETY: the header demands a ring.
    entry(|| unsafe { on(ring, |ring| Ok(ring.fd().as_raw_fd())) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_arm(ring: *const Handle) -> c_int {
    // SAFETY: the header demands a ring.
    let armed = || unsafe {
        on(ring, |ring| {
            let armed = ring.arm();
            check_own(ring)?;
            Ok(armed)
        })
    };
    entry(|| Ok(c_int::from(armed()? == Arming::Ready)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_ring_disarm(ring: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a ring.
        unsafe {
            on(ring, |ring| {
                ring.disarm();
                check_own(ring)?;
                DONE
            })
        }
    })
}

/// Address and length; null when the ring is gone or has none.
///
/// # Safety
/// `bytes` is null or has room for the length.
pub unsafe fn give_arena(arena: impl FnOnce() -> Outcome<(*mut u8, usize)>, bytes: *mut usize) -> *mut c_void {
    let mut found = (std::ptr::null_mut(), 0);
    entry(|| {
        let (address, length) = arena()?;
        if length > 0 {
            found = (address, length);
        }
        DONE
    });
    // SAFETY: as our caller promised; nobody waits for the length when it is null.
    let _ = unsafe { pointer::set(bytes, found.1) };
    found.0.cast()
}
