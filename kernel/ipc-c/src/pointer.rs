//! What C hands over, checked as far as it can be.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use abi::{Endpoint, IpcError};
use ipc::Wait;

use crate::failure::{Failure, Outcome};

const NO_ENDPOINT: Failure = Failure::Ipc(IpcError::BadEndpoint);
const NO_ARGUMENT: Failure = Failure::Ipc(IpcError::BadArgument);

/// `M3_ANY`.
pub const ANY: c_int = -1;

/// An object that C owns.
///
/// # Safety
/// `pointer` is null or points to a `T` that nobody else uses during the call.
pub unsafe fn object<'a, T>(pointer: *const T) -> Outcome<&'a T> {
    // SAFETY: as our caller promised.
    unsafe { pointer.as_ref() }.ok_or(NO_ARGUMENT)
}

/// Where a result goes.
///
/// # Safety
/// `pointer` is null or points to memory for a `T`, aligned, that nobody else uses during the call.
pub unsafe fn set<T>(pointer: *mut T, value: T) -> Outcome {
    if pointer.is_null() {
        return Err(NO_ARGUMENT);
    }
    // SAFETY: as our caller promised.
    unsafe { pointer.write(value) };
    Ok(())
}

/// Where a handle goes once it is made. Null until then, so that who forgets to look at the result has none, instead of
/// what lay there.
///
/// # Safety
/// As of [`set`].
pub unsafe fn vacate<T>(place: *mut *const T) -> Outcome {
    // SAFETY: as our caller promised.
    unsafe { set(place, std::ptr::null()) }
}

/// Null is found before anything was done.
pub fn check<T>(pointer: *const T) -> Outcome {
    if pointer.is_null() { Err(NO_ARGUMENT) } else { Ok(()) }
}

/// Bytes to be read.
///
/// # Safety
/// `data` is null or readable for `bytes` bytes, which nobody changes during the call.
pub unsafe fn bytes<'a>(data: *const u8, bytes: usize) -> Outcome<&'a [u8]> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if data.is_null() || bytes > isize::MAX as usize {
        return Err(NO_ARGUMENT);
    }
    // SAFETY: not null, readable as our caller promised, and no longer than a slice may be.
    Ok(unsafe { std::slice::from_raw_parts(data, bytes) })
}

/// Text.
///
/// # Safety
/// `text` is null or ends with a zero byte; nobody changes it during the call.
pub unsafe fn text<'a>(text: *const c_char) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(NO_ARGUMENT);
    }
    // SAFETY: not null, and ends as our caller promised.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| NO_ARGUMENT)
}

/// A path; `None` for null.
///
/// # Safety
/// `text` is null or ends with a zero byte.
pub unsafe fn path<'a>(text: *const c_char) -> Option<&'a Path> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as our caller promised.
    Some(Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes())))
}

pub fn endpoint(number: c_int) -> Outcome<Endpoint> {
    u32::try_from(number).ok().and_then(Endpoint::new).ok_or(NO_ENDPOINT)
}

/// `None` for `M3_ANY`.
pub fn endpoint_or_any(number: c_int) -> Outcome<Option<Endpoint>> {
    if number == ANY { Ok(None) } else { endpoint(number).map(Some) }
}

/// Milliseconds; 0 for what can be done at once, below 0 for ever.
pub fn wait(timeout_ms: c_int) -> Wait {
    match u64::try_from(timeout_ms) {
        Ok(0) => Wait::NoWait,
        Ok(limit) => Wait::For(Duration::from_millis(limit)),
        Err(_) => Wait::Forever,
    }
}

/// A number that C gets back as it is.
pub fn number(endpoint: Endpoint) -> c_int {
    c_int::try_from(endpoint.number()).unwrap_or(c_int::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_outside_the_table_are_refused() {
        assert_eq!(endpoint(300).map(number), Ok(300));
        for bad in [-1, -2, 8192, 0x7ace, c_int::MIN, c_int::MAX] {
            assert_eq!(endpoint(bad), Err(NO_ENDPOINT), "{bad}");
        }
        assert_eq!(endpoint_or_any(-1), Ok(None));
        assert_eq!(endpoint_or_any(-2), Err(NO_ENDPOINT));
    }

    #[test]
    fn null_with_a_length_is_refused_and_without_one_is_nothing() {
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(bytes(std::ptr::null(), 0), Ok(&[][..]));
            assert_eq!(bytes(std::ptr::null(), 1), Err(NO_ARGUMENT));
        }
    }

    #[test]
    fn time_limits_are_milliseconds_nothing_or_for_ever() {
        assert_eq!(wait(0), Wait::NoWait);
        assert_eq!(wait(-1), Wait::Forever);
        assert_eq!(wait(c_int::MIN), Wait::Forever);
        assert_eq!(wait(1500), Wait::For(Duration::from_millis(1500)));
    }
}
