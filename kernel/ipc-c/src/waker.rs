//! `m3_waker`: ends a wait of another thread.

use std::ffi::c_int;

use abi::IpcError;
use ipc::Waker;

use crate::cell::{Cell, Pool};
use crate::failure::{DONE, Failure, entry};
use crate::pointer;
use crate::port::{self, with};

static WAKERS: Pool<Waker> = Pool::new();

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_waker_open(port: *const port::Handle, waker: *mut *const Cell<Waker>) -> c_int {
    entry(|| {
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::vacate(waker) }?;
        // SAFETY: the header demands a port.
        let made = unsafe { with(port, |port| Ok(port.waker())) }?;
        // SAFETY: the header demands a place for the handle.
        unsafe { pointer::set(waker, WAKERS.open(made)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_wake(waker: *const Cell<Waker>) -> c_int {
    entry(|| {
        // SAFETY: the header demands a waker.
        let cell = unsafe { waker.as_ref() }.ok_or(Failure::Ipc(IpcError::NotBound))?;
        cell.shared(|waker| {
            waker.wake();
            DONE
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_waker_close(waker: *const Cell<Waker>) -> c_int {
    entry(|| {
        // SAFETY: the header demands a waker.
        let cell: &'static Cell<Waker> = unsafe { waker.as_ref() }.ok_or(Failure::Ipc(IpcError::NotBound))?;
        WAKERS.close(cell)?;
        DONE
    })
}
