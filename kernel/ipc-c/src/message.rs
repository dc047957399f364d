//! Messages and notifications.

use std::ffi::{c_int, c_void};

use ipc::{Port, Source};

use crate::failure::{DONE, Outcome, entry};
use crate::pointer;
use crate::port::{Handle, with};
use crate::types::CMessage;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_send(port: *const Handle, to: c_int, message: *const CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: the same conditions; no data.
    unsafe { m3_send_data(port, to, message, std::ptr::null(), 0, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_send_data(
    port: *const Handle,
    to: c_int,
    message: *const CMessage,
    data: *const c_void,
    bytes: usize,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a message and that many bytes.
        let (message, data) = unsafe { (pointer::object(message)?.to_message(), pointer::bytes(data.cast(), bytes)?) };
        let (to, wait) = (pointer::endpoint(to)?, pointer::wait(timeout_ms));
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.send_inline(to, &message, data, wait)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_sendrec(
    port: *const Handle,
    to: c_int,
    message: *mut CMessage,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the same conditions; no data.
    unsafe { m3_sendrec_data(port, to, message, std::ptr::null(), 0, timeout_ms) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_sendrec_data(
    port: *const Handle,
    to: c_int,
    message: *mut CMessage,
    data: *const c_void,
    bytes: usize,
    timeout_ms: c_int,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a message and that many bytes.
        let (request, data) = unsafe { (pointer::object(message)?.to_message(), pointer::bytes(data.cast(), bytes)?) };
        let (to, wait) = (pointer::endpoint(to)?, pointer::wait(timeout_ms));
        // SAFETY: the header demands a port.
        let reply = unsafe { with(port, |port| Ok(port.sendrec_inline(to, &request, data, wait)?)) }?;
        // SAFETY: the header demands a message.
        unsafe { pointer::set(message, CMessage::of(&reply)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_receive(
    port: *const Handle,
    from: c_int,
    message: *mut CMessage,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the header demands a port and a place for the message.
    unsafe {
        taking(port, message, |port| {
            let source = pointer::endpoint_or_any(from)?.map_or(Source::Any, Source::From);
            Ok(port.receive(source, pointer::wait(timeout_ms))?)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_rcvrqst(port: *const Handle, message: *mut CMessage, timeout_ms: c_int) -> c_int {
    // SAFETY: the header demands a port and a place for the message.
    unsafe { taking(port, message, |port| Ok(port.rcvrqst(pointer::wait(timeout_ms))?)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_reply(port: *const Handle, to: c_int, message: *const CMessage) -> c_int {
    // SAFETY: the same conditions; no data.
    unsafe { m3_reply_data(port, to, message, std::ptr::null(), 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_reply_data(
    port: *const Handle,
    to: c_int,
    message: *const CMessage,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a message and that many bytes.
        let (reply, data) = unsafe { (pointer::object(message)?.to_message(), pointer::bytes(data.cast(), bytes)?) };
        let to = pointer::endpoint(to)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.reply_inline(to, &reply, data)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_notify(port: *const Handle, to: c_int, mask: u64) -> c_int {
    entry(|| {
        let to = pointer::endpoint(to)?;
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.notify(to, mask)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_data(port: *const Handle, data: *mut *const c_void) -> c_int {
    entry(|| {
        // SAFETY: the header demands a port, and that the data is used only until the next call.
        let (first, bytes) = unsafe { with(port, |port| Ok((port.inline().as_ptr(), port.inline().len()))) }?;
        // SAFETY: the header demands a place for it.
        unsafe { pointer::set(data, first.cast()) }?;
        Ok(c_int::try_from(bytes).unwrap_or(c_int::MAX))
    })
}

/// Runs a call that takes a message. Null is found before one is taken.
///
/// # Safety
/// `port` as for [`with`]; `place` is null or has room for a message.
unsafe fn taking(
    port: *const Handle,
    place: *mut CMessage,
    call: impl FnOnce(&mut Port) -> Outcome<ipc::Message>,
) -> c_int {
    entry(|| {
        pointer::check(place)?;
        // SAFETY: as our caller promised.
        let message = unsafe { with(port, call) }?;
        // SAFETY: as our caller promised.
        unsafe { pointer::set(place, CMessage::of(&message)) }?;
        DONE
    })
}
