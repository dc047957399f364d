//! A value that one thread uses at a time, waited for with a limit: a mutex would let one stuck call hang all others.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

pub struct TimedLock<T> {
    value: Mutex<Option<T>>,
    returned: Condvar,
}

/// Gives the value back when dropped.
pub struct Taken<'a, T> {
    slot: &'a TimedLock<T>,
    value: Option<T>,
}

impl<T> TimedLock<T> {
    pub fn new(value: T) -> TimedLock<T> {
        TimedLock { value: Mutex::new(Some(value)), returned: Condvar::new() }
    }

    /// `None` when others kept it for `patience`.
    pub fn take(&self, patience: Duration) -> Option<Taken<'_, T>> {
        let until = Instant::now() + patience;
        let mut value = self.value.lock();
        loop {
            if let Some(found) = value.take() {
                return Some(Taken { slot: self, value: Some(found) });
            }
            let left = until.checked_duration_since(Instant::now())?;
            self.returned.wait_for(&mut value, left);
        }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        *self.slot.value.lock() = self.value.take();
        self.slot.returned.notify_one();
    }
}

#[allow(clippy::expect_used, reason = "the value is there from `take` to `drop`; nothing else empties it")]
impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("present until dropped")
    }
}

#[allow(clippy::expect_used, reason = "as above")]
impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("present until dropped")
    }
}
