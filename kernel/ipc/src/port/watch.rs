//! What [`Port::fd`] promises between two waits for anything.
//!
//! A wait that ends for the time leaves every channel armed, so that whatever it would take makes the descriptor
//! readable. Any other call may undo that: it looks at its channel itself, opens channels, and reads what the broker
//! says. So after each such call the port arms again what is hot, and rings its own descriptor when something came that
//! will not ring.
//!
//! Nobody pays for it who never asked for the descriptor.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Port;
use super::events::Wanted;
use crate::waiting::own_end;

#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Whether the descriptor was ever asked for.
    is_polled: AtomicBool,
    /// What the wait took that ended for the time, until the next one.
    wanted: Option<Wanted>,
}

impl Watch {
    /// The descriptor is asked for; whether it was before.
    pub fn begin(&self) -> bool {
        self.is_polled.swap(true, Ordering::Relaxed)
    }

    /// A wait for anything ended for the time.
    pub fn go_on(&mut self, wanted: Wanted) {
        self.wanted = self.is_polled.load(Ordering::Relaxed).then_some(wanted);
    }

    /// A wait for anything begins.
    pub fn pause(&mut self) {
        self.wanted = None;
    }

    #[inline]
    pub fn is_kept(&self) -> bool {
        self.wanted.is_some()
    }
}

impl Port {
    /// After a call that may have looked at channels or read notices.
    #[cold]
    pub(super) fn keep_watch(&mut self) {
        let Some(wanted) = self.watch.wanted else { return };
        self.take_up_news();
        self.arm_all(wanted);
        let is_hot = !self.attached.hot().is_empty();
        if is_hot || self.woken_up || self.is_other_news(wanted) || own_end(&self.control).is_some() {
            self.waker.ring();
        }
    }
}
