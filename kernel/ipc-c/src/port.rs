//! `m3_port`: binding, and what concerns the port as a whole.

use std::ffi::{c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use abi::IpcError;
use ipc::{Endpoint, Port, Wait, WaitMode};

use crate::cell::{Cell, Pool};
use crate::failure::{DONE, Failure, Outcome, entry};
use crate::pointer;

/// What an `m3_port *` points to.
pub type Handle = Cell<Port>;

static PORTS: Pool<Port> = Pool::new();

/// Where a program of a container finds its broker.
const BROKER: &str = "/run/dvs/broker";
/// Names another place.
pub const BROKER_VARIABLE: &str = "M3IPC_BROKER";

/// Runs one call on the port of a handle.
///
/// # Safety
/// `port` is null or came from [`hand_out`].
#[inline]
pub unsafe fn with<R>(port: *const Handle, call: impl FnOnce(&mut Port) -> Outcome<R>) -> Outcome<R> {
    // SAFETY: as our caller promised; cells live for ever.
    match unsafe { port.as_ref() } {
        Some(cell) => cell.exclusive(call),
        None => Err(Failure::Ipc(IpcError::NotBound)),
    }
}

/// Binds over the container's socket.
pub fn connect(path: Option<&Path>, endpoint: Option<Endpoint>) -> Outcome<Port> {
    let path = path.map_or_else(broker, Path::to_path_buf);
    Ok(Port::connect(&path, endpoint)?)
}

/// The broker's socket when the program names none.
pub fn broker() -> PathBuf {
    std::env::var_os(BROKER_VARIABLE).filter(|path| !path.is_empty()).unwrap_or_else(|| BROKER.into()).into()
}

/// Binds as soon as a manager has bound this process.
pub fn connect_when_bound(path: Option<&Path>, wait: Wait) -> Outcome<Port> {
    let path = path.map_or_else(broker, Path::to_path_buf);
    Ok(Port::connect_when_bound(&path, wait)?)
}

pub fn hand_out(port: Port) -> &'static Handle {
    PORTS.open(port)
}

/// Gives the endpoint up and ends the handle. A forked child's copy has no endpoint to give up.
///
/// # Safety
/// As for [`with`].
pub unsafe fn close(port: *const Handle) -> Outcome {
    // SAFETY: as our caller promised.
    let cell: &'static Handle = unsafe { port.as_ref() }.ok_or(Failure::Ipc(IpcError::NotBound))?;
    match PORTS.close(cell)?.unbind() {
        // A broker that is away sees that the connection ends.
        Ok(()) | Err(IpcError::NotBound | IpcError::NoBroker | IpcError::Fenced | IpcError::Moved) => Ok(()),
        Err(error) => Err(Failure::Ipc(error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_connect(path: *const c_char, endpoint: c_int, port: *mut *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(port) }?;
        let endpoint = pointer::endpoint_or_any(endpoint)?;
        // SAFETY: the header demands a text that ends, and a place for the handle.
        let path = unsafe { pointer::path(path) };
        let bound = hand_out(connect(path, endpoint)?);
        // SAFETY: as above.
        unsafe { pointer::set(port, bound) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_connect_when_bound(
    path: *const c_char,
    timeout_ms: c_int,
    port: *mut *const Handle,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(port) }?;
        // SAFETY: the header demands a text that ends, and a place for the handle.
        let path = unsafe { pointer::path(path) };
        let bound = hand_out(connect_when_bound(path, pointer::wait(timeout_ms))?);
        // SAFETY: as above.
        unsafe { pointer::set(port, bound) }?;
        DONE
    })
}

/// # Safety
/// An open descriptor has no other owner.
pub unsafe fn own_socket(fd: c_int) -> Outcome<OwnedFd> {
    // SAFETY: any number may be asked about.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(Failure::Ipc(IpcError::BadArgument));
    }
    // SAFETY: it is open; as our caller promised.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_connect_fd(fd: c_int, endpoint: c_int, port: *mut *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(port) }?;
        // SAFETY: the header says that it is ours from now on.
        let socket = unsafe { own_socket(fd) }?;
        let endpoint = pointer::endpoint_or_any(endpoint)?;
        let bound = hand_out(Port::from_socket(socket, endpoint)?);
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::set(port, bound) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_close(port: *const Handle) -> c_int {
    entry(|| {
        // SAFETY: the header demands a port.
        unsafe { close(port) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_endpoint(port: *const Handle) -> c_int {
    // SAFETY: the header demands a port.
    entry(|| unsafe { with(port, |port| Ok(pointer::number(port.endpoint()))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_epoch(port: *const Handle, epoch: *mut u64) -> c_int {
    entry(|| {
        // SAFETY: the header demands a port.
        let value = unsafe { with(port, |port| Ok(port.epoch().0)) }?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(epoch, value) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_fd(port: *const Handle) -> c_int {
    // SAFETY: the header demands a port.
    entry(|| unsafe { with(port, |port| Ok(port.fd().as_raw_fd())) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_set_wait_mode(port: *const Handle, mode: c_int) -> c_int {
    entry(|| {
        let mode = match mode {
            0 => WaitMode::Adaptive,
            1 => WaitMode::Park,
            2 => WaitMode::Spin,
            _ => return Err(Failure::Ipc(IpcError::BadArgument)),
        };
        // SAFETY: the header demands a port.
        unsafe {
            with(port, |port| {
                port.set_wait_mode(mode);
                DONE
            })
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_getep(port: *const Handle, pid: c_int) -> c_int {
    // SAFETY: the header demands a port.
    entry(|| unsafe { with(port, |port| Ok(pointer::number(port.getep(pid)?))) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wait4bind(port: *const Handle, endpoint: c_int, timeout_ms: c_int) -> c_int {
    entry(|| {
        let (endpoint, wait) = (pointer::endpoint(endpoint)?, pointer::wait(timeout_ms));
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.wait4bind(endpoint, wait)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wait4unbind(port: *const Handle, endpoint: c_int, timeout_ms: c_int) -> c_int {
    entry(|| {
        let (endpoint, wait) = (pointer::endpoint(endpoint)?, pointer::wait(timeout_ms));
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.wait4unbind(endpoint, wait)?)) }?;
        DONE
    })
}
