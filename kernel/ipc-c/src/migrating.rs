//! Endpoints that change their owner.

use std::ffi::{c_char, c_int};

use abi::{Epoch, IpcError, NodeId};
use ipc::Port;

use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, broker, hand_out, own_socket, with};

fn node(number: c_int) -> Outcome<NodeId> {
    u16::try_from(number).map(NodeId).map_err(|_| Failure::Ipc(IpcError::BadArgument))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_stand_by(
    path: *const c_char,
    endpoint: c_int,
    timeout_ms: c_int,
    port: *mut *const Handle,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(port) }?;
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a text that ends, and a place for the handle.
        let path = unsafe { pointer::path(path) }.map_or_else(broker, Into::into);
        let bound = hand_out(Port::stand_by(&path, endpoint, pointer::wait(timeout_ms))?);
        // SAFETY: as above.
        unsafe { pointer::set(port, bound) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_stand_by_fd(
    fd: c_int,
    endpoint: c_int,
    timeout_ms: c_int,
    port: *mut *const Handle,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(port) }?;
        // SAFETY: the header says that it is ours from now on.
        let socket = unsafe { own_socket(fd) }?;
        let endpoint = pointer::endpoint(endpoint)?;
        let bound = hand_out(Port::stand_by_over(socket, endpoint, pointer::wait(timeout_ms))?);
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::set(port, bound) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_migration_start(port: *const Handle, endpoint: c_int, timeout_ms: c_int) -> c_int {
    entry(|| {
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.migration_start(endpoint, pointer::wait(timeout_ms))?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_migration_commit(
    port: *const Handle,
    endpoint: c_int,
    to: c_int,
    pid: c_int,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        let (endpoint, to, wait) = (pointer::endpoint(endpoint)?, node(to)?, pointer::wait(timeout_ms));
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.migration_commit(endpoint, to, pid, wait)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_migration_rollback(port: *const Handle, endpoint: c_int) -> c_int {
    entry(|| {
        let endpoint = pointer::endpoint(endpoint)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.migration_rollback(endpoint)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_promote(port: *const Handle, endpoint: c_int, to: c_int, pid: c_int, epoch: u64) -> c_int {
    entry(|| {
        let (endpoint, to) = (pointer::endpoint(endpoint)?, node(to)?);
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.promote(endpoint, to, pid, Epoch(epoch))?)) }?;
        DONE
    })
}
