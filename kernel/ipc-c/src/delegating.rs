//! What servers do in the name of others: requests passed on, notifications on behalf of others.

use std::ffi::{c_int, c_void};

use crate::failure::{DONE, entry};
use crate::pointer;
use crate::port::{Handle, with};
use crate::types::CMessage;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_relay(port: *const Handle, of: c_int, to: c_int, message: *const CMessage) -> c_int {
    // SAFETY: the same conditions; no data.
    unsafe { m3_relay_data(port, of, to, message, std::ptr::null(), 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_relay_data(
    port: *const Handle,
    of: c_int,
    to: c_int,
    message: *const CMessage,
    data: *const c_void,
    bytes: usize,
) -> c_int {
    entry(|| {
        // SAFETY: the header demands a message and that many bytes.
        let (request, data) = unsafe { (pointer::object(message)?.to_message(), pointer::bytes(data.cast(), bytes)?) };
        let (of, to) = (pointer::endpoint(of)?, pointer::endpoint(to)?);
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.relay_inline(of, to, &request, data)?)) }?;
        DONE
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_notify_for(port: *const Handle, source: c_int, to: c_int, mask: u64) -> c_int {
    entry(|| {
        let (source, to) = (pointer::endpoint(source)?, pointer::endpoint(to)?);
        // SAFETY: the header demands a port.
        unsafe { with(port, |port| Ok(port.notify_for(source, to, mask)?)) }?;
        DONE
    })
}
