//! The thread that receives calls.
//!
//! Before a call is received any signal interrupts it, afterwards only one that kills. So this thread does nothing
//! else. It takes a few calls of each program in turn: who makes many does not keep the others waiting.
//!
//! It is also the gatekeeper of greetings: what another node's call gate says of its life is passed on only after every
//! call that was there before has been received (`proc_core::origin::Origin::greeted`).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use parking_lot::Mutex;
use proc_core::journal::{Journal, SlotIndex};
use proc_core::order::LifeNumber;
use proc_core::range::Seat;
use rustix::event::{Timespec, epoll};

use crate::calls::News;
use crate::listeners::Listeners;
use crate::memory::KeptMemory;

/// CallStates of one program that are received before it is another one's turn.
const TURN_MAX: usize = 16;
/// Listeners that are ready at once; the rest comes next.
const EVENTS_MAX: usize = 64;
/// Of the descriptor that wakes the thread; listeners have the keeper's numbers, which begin at 1.
const WAKE: u64 = 0;

/// How others speak to the receiving thread. Clones are the same.
#[derive(Clone, Debug)]
pub struct Wake {
    event: Arc<OwnedFd>,
    free: Arc<Mutex<Vec<SlotIndex>>>,
    greetings: Arc<Mutex<VecDeque<(Seat, LifeNumber)>>>,
    stop: Arc<AtomicBool>,
}

impl Wake {
    pub fn new() -> io::Result<Wake> {
        let (free, greetings, stop) = (Arc::default(), Arc::default(), Arc::default());
        Ok(Wake { event: Arc::new(sys::eventfd::create()?), free, greetings, stop })
    }

    /// There are new listeners.
    pub fn look_again(&self) {
        sys::eventfd::signal(&*self.event);
    }

    /// The call gate of another node greeted.
    pub fn greeted(&self, node: Seat, life: LifeNumber) {
        self.greetings.lock().push_back((node, life));
        self.look_again();
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.look_again();
    }

    pub(crate) fn give_back(&self, slots: impl IntoIterator<Item = SlotIndex>) {
        let was_empty = {
            let mut free = self.free.lock();
            let was_empty = free.is_empty();
            free.extend(slots);
            was_empty
        };
        if was_empty {
            self.look_again();
        }
    }
}

pub struct CallReceiver {
    wake: Wake,
    listeners: Listeners,
    memory: KeptMemory,
    journal: Journal<KeptMemory>,
    news: Sender<News>,
    epoll: OwnedFd,
    /// The largest number of a listener that is watched, or was.
    known: u64,
}

/// Whether everything that was there has been received.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Perhaps,
}

impl CallReceiver {
    pub(crate) fn new(
        wake: Wake,
        listeners: Listeners,
        memory: KeptMemory,
        journal: Journal<KeptMemory>,
        news: Sender<News>,
    ) -> io::Result<CallReceiver> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake.event, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        Ok(CallReceiver { wake, listeners, memory, journal, news, epoll, known: 0 })
    }

    /// Until it is stopped, or nobody wants its news.
    pub fn run(mut self) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut greetings = VecDeque::new();
        while !self.wake.stop.load(Ordering::Relaxed) {
            greetings.append(&mut self.wake.greetings.lock());
            // With a greeting at hand: what is ready now, without waiting for more.
            let left = self.turn((!greetings.is_empty()).then_some(&now))?;
            if left == Left::Nothing {
                for (node, life) in greetings.drain(..) {
                    if self.news.send(News::Greeted { node, life }).is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    fn turn(&mut self, limit: Option<&Timespec>) -> io::Result<Left> {
        self.watch_new();
        if self.wake.free.lock().is_empty() {
            // Listeners stay ready meanwhile; only a free slot, or a greeting, is worth waking for.
            return self.wait_for_a_slot(limit);
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(cause) => return Err(cause.into()),
        }
        let mut left = Left::Nothing;
        for epoll::Event { flags, data } in events {
            match data.u64() {
                WAKE => {
                    sys::eventfd::drain(&*self.wake.event);
                    left = Left::Perhaps;
                }
                number if flags.contains(epoll::EventFlags::IN) => {
                    self.receive(number);
                    left = Left::Perhaps;
                }
                number => self.forget(number),
            }
        }
        Ok(left)
    }

    fn wait_for_a_slot(&self, limit: Option<&Timespec>) -> io::Result<Left> {
        use rustix::event::{PollFd, PollFlags, poll};
        let event = self.wake.event.as_fd();
        match poll(&mut [PollFd::new(&event, PollFlags::IN)], limit) {
            Ok(0) => return Ok(Left::Nothing),
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(cause) => return Err(cause.into()),
        }
        sys::eventfd::drain(event);
        Ok(Left::Perhaps)
    }

    fn watch_new(&mut self) {
        for (number, listener) in self.listeners.after(self.known) {
            self.known = number;
            let data = epoll::EventData::new_u64(number);
            if let Err(cause) = epoll::add(&self.epoll, &*listener, data, epoll::EventFlags::IN) {
                // Its programs' calls wait until another gate watches it.
                tracing::error!(%cause, number, "a program's calls are not received");
            }
        }
    }

    fn receive(&mut self, number: u64) {
        let Some(listener) = self.listeners.get(number) else { return };
        for turn in 0..TURN_MAX {
            if turn > 0 && !is_ready(&listener) {
                return;
            }
            let Some(slot) = self.wake.free.lock().pop() else { return };
            self.journal.prepare(slot, number);
            if let Err(cause) = self.memory.receive(slot, &*listener) {
                self.wake.free.lock().push(slot);
                // Whoever made the call is gone: nothing else is to be expected.
                if cause.raw_os_error() != Some(libc::ENOENT) {
                    tracing::error!(%cause, number, "a call could not be received");
                }
                return;
            }
            if self.news.send(News::Received(slot)).is_err() {
                return;
            }
        }
    }

    /// The last process behind a listener ended.
    fn forget(&mut self, number: u64) {
        if let Some(listener) = self.listeners.get(number) {
            let _ = epoll::delete(&self.epoll, &*listener);
            self.listeners.remove(number);
        }
    }
}

fn is_ready(listener: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&now)), Ok(1))
}
