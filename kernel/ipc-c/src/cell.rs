//! What a handle points to.
//!
//! A cell is closed, open, or in use by so many calls. Cells are never freed: one that was closed waits in its pool
//! until the next handle is made. So a call with a closed handle reads memory that is still a cell, and answers
//! `NotBound`.
//!
//! A call that panics leaves its cell closed for good, with what is in it.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use abi::IpcError;

use crate::failure::{Failure, Outcome};

const CLOSED: u32 = 0;
const OPEN: u32 = 1;

/// See the module. Its address is the handle.
#[derive(Debug)]
pub struct Cell<T> {
    /// `CLOSED`, or `OPEN` and one more for each call.
    state: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is reached only as `state` allows: by one call at a time, or by shared reference from several, for
// which `shared` demands Sync.
unsafe impl<T: Send> Sync for Cell<T> {}

/// Cells of one kind that wait for their next handle.
#[derive(Debug)]
pub struct Pool<T: 'static> {
    closed: Mutex<Vec<&'static Cell<T>>>,
}

impl<T: Send + 'static> Pool<T> {
    pub const fn new() -> Pool<T> {
        Pool { closed: Mutex::new(Vec::new()) }
    }

    /// A handle of `value`.
    pub fn open(&self, value: T) -> &'static Cell<T> {
        let closed = self.lock().pop();
        let cell = closed.unwrap_or_else(|| {
            Box::leak(Box::new(Cell { state: AtomicU32::new(CLOSED), value: UnsafeCell::new(None) }))
        });
        // SAFETY: nobody uses a closed cell, and it is in no pool now.
        unsafe { *cell.value.get() = Some(value) };
        cell.state.store(OPEN, Ordering::Release);
        cell
    }

    /// Ends a handle that no call uses, and gives back what was in it.
    pub fn close(&self, cell: &'static Cell<T>) -> Outcome<T> {
        cell.change(OPEN, CLOSED)?;
        // SAFETY: the state was `OPEN`, so no call uses the cell, and closed no other begins.
        let value = unsafe { (*cell.value.get()).take() };
        self.lock().push(cell);
        value.ok_or(Failure::Ipc(IpcError::NotBound))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<&'static Cell<T>>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send> Cell<T> {
    /// Runs one call that has the value for itself. `Busy` when another call is under way.
    #[inline]
    pub fn exclusive<R>(&self, call: impl FnOnce(&mut T) -> Outcome<R>) -> Outcome<R> {
        self.change(OPEN, OPEN + 1)?;
        let _leaving = LeavingAlone { state: &self.state };
        // SAFETY: the state says that this call is the only one.
        match unsafe { &mut *self.value.get() } {
            Some(value) => call(value),
            None => Err(Failure::Ipc(IpcError::NotBound)),
        }
    }

    fn change(&self, from: u32, to: u32) -> Outcome {
        match self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(CLOSED) => Err(Failure::Ipc(IpcError::NotBound)),
            Err(_) => Err(Failure::Busy),
        }
    }
}

impl<T: Send + Sync> Cell<T> {
    /// Runs one call of possibly several at the same time.
    pub fn shared<R>(&self, call: impl FnOnce(&T) -> Outcome<R>) -> Outcome<R> {
        let more = |state: u32| if state == CLOSED { None } else { state.checked_add(1) };
        let begun = self.state.fetch_update(Ordering::Acquire, Ordering::Relaxed, more);
        begun.map_err(|_| Failure::Ipc(IpcError::NotBound))?;
        let _leaving = Leaving { state: &self.state };
        // SAFETY: the state says that calls are under way, so nobody changes the value; those with it alone do not mix
        // with these, because a kind of handle uses one of the two methods only.
        match unsafe { &*self.value.get() } {
            Some(value) => call(value),
            None => Err(Failure::Ipc(IpcError::NotBound)),
        }
    }
}

/// Ends a call that had the value for itself, also one that panicked.
struct LeavingAlone<'a> {
    state: &'a AtomicU32,
}

impl Drop for LeavingAlone<'_> {
    #[inline]
    fn drop(&mut self) {
        self.state.store(if std::thread::panicking() { CLOSED } else { OPEN }, Ordering::Release);
    }
}

/// Ends one of several calls, also one that panicked.
struct Leaving<'a> {
    state: &'a AtomicU32,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.state.store(CLOSED, Ordering::Relaxed);
            return;
        }
        // Closed by the panic of another call, it stays closed.
        let _ = self.state.fetch_update(Ordering::Release, Ordering::Relaxed, |state| state.checked_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Failure = Failure::Ipc(IpcError::NotBound);

    #[test]
    fn second_call_at_the_same_time_is_refused_and_so_is_closing() {
        static POOL: Pool<u32> = Pool::new();
        let cell = POOL.open(7);
        let inner = cell.exclusive(|value| {
            *value += 1;
            assert_eq!(POOL.close(cell), Err(Failure::Busy));
            cell.exclusive(|_| Ok(()))
        });
        assert_eq!(inner, Err(Failure::Busy));
        assert_eq!(POOL.close(cell), Ok(8));
    }

    #[test]
    fn closed_handle_answers_an_error_until_its_place_is_used_again() {
        static POOL: Pool<u32> = Pool::new();
        let first = POOL.open(1);
        assert_eq!(POOL.close(first), Ok(1));
        assert_eq!(first.exclusive(|_| Ok(())), Err(GONE));
        assert_eq!(first.shared(|_| Ok(())), Err(GONE));
        assert_eq!(POOL.close(first), Err(GONE));
        let second = POOL.open(2);
        assert!(std::ptr::eq(first, second));
        assert_eq!(second.shared(|value| Ok(*value)), Ok(2));
    }

    #[test]
    fn handle_is_closed_only_when_no_shared_call_is_left() {
        static POOL: Pool<u32> = Pool::new();
        let cell = POOL.open(3);
        let sum = cell.shared(|one| {
            assert_eq!(POOL.close(cell), Err(Failure::Busy));
            cell.shared(|other| Ok(one + other))
        });
        assert_eq!((sum, POOL.close(cell)), (Ok(6), Ok(3)));
    }

    #[test]
    fn call_that_panicked_leaves_its_handle_closed() {
        static POOL: Pool<u32> = Pool::new();
        let cell = POOL.open(4);
        let panicked = crate::failure::entry(|| cell.exclusive(|_| panic!("on purpose")));
        assert_eq!(panicked, crate::failure::PANICKED);
        assert_eq!(cell.exclusive(|_| Ok(())), Err(GONE));
        assert_eq!(POOL.close(cell), Err(GONE));
    }
}
