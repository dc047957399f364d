//! Grants and copies.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use abi::{Direction, GrantId, IpcError};
use ipc::Arena;
use ipc_shm::Access;

use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, with};
use crate::types::CPlace;

/// `M3_READ`, `M3_WRITE`, or both.
fn direction(access: c_int) -> Outcome<(Direction, Access)> {
    match access {
        1 => Ok((Direction::Read, Access::Read)),
        2 => Ok((Direction::Write, Access::ReadWrite)),
        3 => Ok((Direction::ReadWrite, Access::ReadWrite)),
        _ => Err(Failure::Ipc(IpcError::BadArgument)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_grant(
    port: *const Handle,
    to: c_int,
    memory: *mut c_void,
    bytes: usize,
    access: c_int,
    grant: *mut u64,
) -> c_int {
    entry(|| {
        pointer::check(grant)?;
        let (to, (direction, access)) = (pointer::endpoint(to)?, direction(access)?);
        if bytes == 0 {
            return Err(Failure::Ipc(IpcError::BadArgument));
        }
        // SAFETY: the header demands that the memory stays as it is until the grant is revoked or the port closed.
        let lent = unsafe { lent(memory, bytes, access) }?;
        // SAFETY: the header demands a port.
        let id = unsafe { with(port, |port| Ok(port.grant(to, &lent, direction)?)) }?;
        // SAFETY: the header demands a place for the number.
        unsafe { pointer::set(grant, id.number()) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_revoke(port: *const Handle, grant: u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.revoke(GrantId::from_number(grant))?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_vcopy(
    port: *const Handle,
    from: *const CPlace,
    to: *const CPlace,
    bytes: usize,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands two places.
        let (from, to) = unsafe { (pointer::object(from)?.to_place()?, pointer::object(to)?.to_place()?) };
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.vcopy(from, to, bytes, pointer::wait(timeout_ms))?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_copy_from(
    port: *const Handle,
    from: *const CPlace,
    data: *mut c_void,
    bytes: usize,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place.
        let from = unsafe { pointer::object(from)?.to_place() }?;
        // SAFETY: the header demands writable memory for the time of the call.
        let memory = unsafe { lent(data, bytes, Access::ReadWrite) }?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.copy_into_memory(from, &memory, pointer::wait(timeout_ms))?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_copy_to(
    port: *const Handle,
    data: *const c_void,
    bytes: usize,
    to: *const CPlace,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place.
        let to = unsafe { pointer::object(to)?.to_place() }?;
        // SAFETY: the header demands readable memory for the time of the call; nothing is written to it.
        let memory = unsafe { lent(data.cast_mut(), bytes, Access::Read) }?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.copy_out_of_memory(&memory, to, pointer::wait(timeout_ms))?)) }?;
        DONE
    })
}

/// Memory of the program. No bytes are memory too, wherever they are.
///
/// # Safety
/// As for [`Arena::lent`], unless `memory` is null.
pub unsafe fn lent(memory: *mut c_void, bytes: usize, access: Access) -> Outcome<Arena> {
    let base = match NonNull::new(memory.cast()) {
        Some(base) => base,
        None if bytes == 0 => NonNull::dangling(),
        None => return Err(Failure::Ipc(IpcError::BadArgument)),
    };
    if bytes > isize::MAX as usize {
        return Err(Failure::Ipc(IpcError::BadArgument));
    }
    // SAFETY: 1. As our caller promised; no bytes are always there. 2. Only C refers to it. 3. It is touched during
    // calls on one port alone, none of which has a reference into it.
    Ok(unsafe { Arena::lent(base, bytes, access) })
}
