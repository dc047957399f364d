//! Ends the wait of another thread.
//!
//! The same two-sided look as between two parties of a channel, within one process: the waker says so and then looks
//! whether the port sleeps; the port says that it sleeps and then looks whether it was woken. A wake of an awake port
//! is no system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes the port it came from return [`crate::Event::Woken`], once for any number of wakes before it looks.
#[derive(Clone, Debug)]
pub struct Waker {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    event: OwnedFd,
    woken: AtomicBool,
    asleep: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> std::io::Result<Waker> {
        let (woken, asleep) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Waker { inner: Arc::new(Inner { event: sys::eventfd::create()?, woken, asleep }) })
    }

    /// Never blocks; may be called from any thread, any number of times.
    pub fn wake(&self) {
        self.inner.woken.store(true, Ordering::SeqCst);
        if self.inner.asleep.load(Ordering::SeqCst) {
            sys::eventfd::signal(&self.inner.event);
        }
    }

    /// Rings the descriptor without a wake.
    pub(crate) fn ring(&self) {
        sys::eventfd::signal(&self.inner.event);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.inner.event.as_fd()
    }

    /// Takes the wakes so far.
    pub(crate) fn take(&self) -> bool {
        self.inner.woken.load(Ordering::Relaxed) && self.inner.woken.swap(false, Ordering::SeqCst)
    }

    /// From now on a wake rings the descriptor. Look at `is_woken` before sleeping.
    pub(crate) fn fall_asleep(&self) {
        self.inner.asleep.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.inner.woken.load(Ordering::SeqCst)
    }

    pub(crate) fn get_up(&self) {
        if self.inner.asleep.load(Ordering::Relaxed) {
            self.inner.asleep.store(false, Ordering::SeqCst);
        }
    }
}
