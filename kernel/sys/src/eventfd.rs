//! Event descriptors and epoll, in the few forms that M3-IPC uses.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll};

/// A non-blocking event descriptor.
pub fn create() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes the descriptor readable. A full counter is readable already, so nothing is lost when it refuses more.
pub fn signal(event: impl AsFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// One descriptor that is readable when one of `events` was signalled since it was heard last. Whoever holds nothing
/// else can listen, but neither signal nor fill an event, nor make its next signal block: flags of a descriptor belong
/// to all who share it. An event that nobody holds any more is forgotten, even if it was signalled.
pub fn ear(events: [BorrowedFd<'_>; 2]) -> io::Result<OwnedFd> {
    let poller = Poller::new()?;
    for event in events {
        poller.add(event, 0, Trigger::Edge)?;
    }
    Ok(poller.epoll)
}

/// Makes an ear unreadable until the next signal.
pub fn hear(ear: impl AsFd) {
    let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let _ = epoll::wait(ear, &mut [empty; 2][..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
}

/// Makes the descriptor unreadable again.
pub fn drain(event: impl AsFd) {
    let mut counter = [0; 8];
    let _ = rustix::io::read(event, &mut counter);
}

/// Whether readiness is told for as long as it lasts, or once for each change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    Level,
    Edge,
}

/// A set of descriptors whose readability is waited for, each with a number of the owner's.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

/// Readiness one `wait` may report; the rest comes with the next.
pub const READY_MAX: usize = 64;

impl Poller {
    pub fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub fn add(&self, source: impl AsFd, token: u64, trigger: Trigger) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        if trigger == Trigger::Edge {
            flags |= epoll::EventFlags::ET;
        }
        Ok(epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), flags)?)
    }

    /// Reports also when the descriptor takes bytes again.
    pub fn set_writable_interest(&self, source: impl AsFd, token: u64, interest: WriteInterest) -> io::Result<()> {
        let mut flags = epoll::EventFlags::IN;
        if interest == WriteInterest::Waiting {
            flags |= epoll::EventFlags::OUT;
        }
        Ok(epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token), flags)?)
    }

    pub fn remove(&self, source: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, source)?)
    }

    /// Appends the tokens of what is ready to `ready`, waiting at most `limit` (rounded up to a millisecond).
    pub fn wait(&self, ready: &mut Vec<u64>, limit: Option<Duration>) -> io::Result<()> {
        let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; READY_MAX];
        let limit = limit.map(rounded_up);
        match epoll::wait(&self.epoll, &mut events[..], limit.as_ref()) {
            Ok(count) => {
                ready.extend(events.iter().take(count).map(|event| event.data.u64()));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether somebody waits for a descriptor to take bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteInterest {
    None,
    Waiting,
}

impl AsFd for Poller {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Milliseconds are what every kernel takes; a wait must not end early and spin. A day is as good as for ever.
fn rounded_up(limit: Duration) -> Timespec {
    let millis = limit.as_nanos().div_ceil(1_000_000).min(86_400_000) as i64;
    Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(descriptor: &OwnedFd) -> bool {
        let mut polled = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn ear_is_readable_from_a_signal_until_it_is_heard() {
        let (one, other) = (create().unwrap(), create().unwrap());
        let ear = ear([one.as_fd(), other.as_fd()]).unwrap();
        for event in [&one, &other, &one] {
            assert!(!is_readable(&ear));
            signal(event);
            assert!(is_readable(&ear));
            hear(&ear);
        }
    }

    #[test]
    fn what_a_pipe_said_before_its_writer_closed_is_heard_by_an_ear_over_an_end_that_is_held() {
        let event = create().unwrap();
        for _ in 0..2 {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            let (poller, ear) = (Poller::new().unwrap(), ear([event.as_fd(), reader.as_fd()]).unwrap());
            poller.add(&ear, 7, Trigger::Edge).unwrap();
            rustix::io::write(&writer, &[1]).unwrap();
            drop(writer);
            let mut ready = Vec::new();
            poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, [7]);
            assert!(is_readable(&ear));
        }
    }

    #[test]
    fn poller_is_told_of_every_signal_of_an_ear_that_nobody_empties() {
        let (one, other) = (create().unwrap(), create().unwrap());
        let (poller, ear) = (Poller::new().unwrap(), ear([one.as_fd(), other.as_fd()]).unwrap());
        poller.add(&ear, 7, Trigger::Edge).unwrap();
        for event in [&one, &one, &other, &one] {
            signal(event);
            let mut ready = Vec::new();
            poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert_eq!(ready, [7]);
        }
    }

    #[test]
    fn edge_is_told_once_for_each_signal() {
        let (poller, event) = (Poller::new().unwrap(), create().unwrap());
        poller.add(&event, 7, Trigger::Edge).unwrap();
        let mut ready = Vec::new();
        signal(&event);
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        signal(&event);
        poller.wait(&mut ready, Some(Duration::ZERO)).unwrap();
        assert_eq!(ready, [7, 7]);
    }
}
