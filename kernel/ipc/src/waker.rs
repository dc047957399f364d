//! Ends the wait of another thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes the port it came from return [`crate::Event::Woken`], once for any number of wakes before it looks.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    pub(crate) fn of(event: Arc<OwnedFd>) -> Waker {
        Waker { event }
    }

    /// Never blocks; may be called from any thread, any number of times.
    pub fn wake(&self) {
        sys::eventfd::signal(&*self.event);
    }
}
