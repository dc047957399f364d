//! What endpoints are called.

use std::ffi::{c_char, c_int};

use crate::failure::{DONE, entry};
use crate::pointer;
use crate::port::{Handle, with};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_set_name(port: *const Handle, name: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the header demands a port, and text that ends with a zero byte.
        unsafe {
            with(port, |port| {
                port.set_name(pointer::text(name)?)?;
                DONE
            })
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn m3_find(port: *const Handle, name: *const c_char, timeout_ms: c_int) -> c_int {
    entry(|| {
        let wait = pointer::wait(timeout_ms);
        // SAFETY: the header demands a port, and text that ends with a zero byte.
        unsafe { with(port, |port| Ok(pointer::number(port.find(pointer::text(name)?, wait)?))) }
    })
}
