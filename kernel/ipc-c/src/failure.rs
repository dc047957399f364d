//! Why a call failed, as a number.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use abi::{IpcError, errno};

/// A handle that another thread uses at this moment.
pub const BUSY: c_int = -16;
/// The library panicked: an error of its own.
pub const PANICKED: c_int = -999;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    Ipc(IpcError),
    Busy,
}

impl Failure {
    pub fn number(self) -> c_int {
        match self {
            Failure::Ipc(error) => errno::published(error),
            Failure::Busy => BUSY,
        }
    }
}

impl From<IpcError> for Failure {
    fn from(error: IpcError) -> Failure {
        Failure::Ipc(error)
    }
}

pub type Outcome<T = ()> = Result<T, Failure>;

/// What a function without a result of its own returns.
pub const DONE: Outcome<c_int> = Ok(0);

/// Runs the body of an exported function: its value, or the number of what went wrong.
#[inline]
pub fn entry(body: impl FnOnce() -> Outcome<c_int>) -> c_int {
    // Nothing that a panic left half done is looked at again: the cell of its handle stays closed.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failure.number(),
        Err(_) => PANICKED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_a_number() {
        assert_eq!(entry(|| panic!("on purpose")), PANICKED);
    }

    #[test]
    fn numbers_of_the_library_are_no_errors_of_a_call() {
        assert_eq!([BUSY, PANICKED].map(errno::from_published), [None, None]);
    }
}
