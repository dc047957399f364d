//! The one epoll set: descriptors that take themselves out of it when they are dropped.
//!
//! Taking out is explicit, because a forked child may hold a copy of a descriptor for a moment, and as long as a copy
//! lives the kernel goes on reporting it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Readiness reported at once; the rest comes with the next call.
const EVENTS_MAX: usize = 128;

/// Whose descriptor it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Listener,
    Signals,
    Init,
    Connection(u32),
    /// A helper process that ended.
    Helper(u32),
    /// A program's report pipe.
    Report(u32),
    /// A program ended.
    End(u32),
    /// A program's output, by its place in the list.
    Output(u32, u8),
    Input(u32),
    /// A client of a program, by its number.
    Client(u32, u32),
    /// The call gate.
    CallGate,
    /// A descriptor by which calls of a program come, and of what it started.
    Calls(u32),
    /// The call gate, which asks for far ends of jobs.
    Jobs,
    /// The call gate, which asks for memory.
    Memory,
    /// A child that read some ended.
    Reader(u32),
    /// The call gate, which asks for a looker.
    Looks,
    /// A looker ended.
    Looker(u32),
    /// The file gate, which asks who is about to die.
    Deaths,
    /// A placeholder ended, by the number of the process that it stood for.
    Placeholder(u32),
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    Nothing,
    Read,
    Write,
    Both,
    /// Only that the other end is gone.
    End,
}

impl Interest {
    pub fn of(read: bool, write: bool) -> Interest {
        match (read, write) {
            (false, false) => Interest::Nothing,
            (true, false) => Interest::Read,
            (false, true) => Interest::Write,
            (true, true) => Interest::Both,
        }
    }

    fn flags(self) -> epoll::EventFlags {
        match self {
            // The kernel reports a hang-up to whoever is in the set.
            Interest::Nothing | Interest::End => epoll::EventFlags::empty(),
            Interest::Read => epoll::EventFlags::IN,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::Both => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub source: Source,
    /// The other end is gone altogether.
    pub hung_up: bool,
}

#[derive(Clone, Debug)]
pub struct Poll(Rc<OwnedFd>);

/// A descriptor in the set.
#[derive(Debug)]
pub struct Watched {
    fd: OwnedFd,
    token: u64,
    interest: Interest,
    poll: Rc<OwnedFd>,
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        Ok(Poll(Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?)))
    }

    pub fn watch(&self, fd: OwnedFd, source: Source, interest: Interest) -> io::Result<Watched> {
        let mut watched = Watched { fd, token: encode(source), interest: Interest::Nothing, poll: self.0.clone() };
        watched.set(interest)?;
        Ok(watched)
    }

    /// A new pair of sockets: our end is watched in the place of the earlier one, which is closed first, so that
    /// whoever has its other end knows that it is not heard any more. Gives the other end.
    pub fn open_door(&self, place: &mut Option<Watched>, source: Source) -> io::Result<OwnedFd> {
        let (ours, theirs) = sys::seqpacket::pair()?;
        *place = None;
        *place = Some(self.watch(ours, source, Interest::Read)?);
        Ok(theirs)
    }

    pub fn wait(&self, limit: Option<Duration>) -> io::Result<Vec<Ready>> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        // Rounded up: a wait that ends early would spin.
        let limit =
            limit.map(|limit| limit + Duration::from_micros(999)).and_then(|limit| Timespec::try_from(limit).ok());
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events), limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(cause) => return Err(cause.into()),
        }
        Ok(events.iter().filter_map(ready).collect())
    }
}

impl Watched {
    pub fn set(&mut self, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(self.token);
        match (self.interest, interest) {
            (old, new) if old == new => return Ok(()),
            // Out altogether: the kernel reports a hang-up even to a poll that waits for nothing.
            (_, Interest::Nothing) => epoll::delete(&self.poll, &self.fd)?,
            (Interest::Nothing, _) => epoll::add(&self.poll, &self.fd, data, interest.flags())?,
            _ => epoll::modify(&self.poll, &self.fd, data, interest.flags())?,
        }
        self.interest = interest;
        Ok(())
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.set(Interest::Nothing);
    }
}

fn ready(event: &epoll::Event) -> Option<Ready> {
    use epoll::EventFlags;
    let flags = event.flags;
    let hung_up = flags.intersects(EventFlags::HUP | EventFlags::ERR);
    Some(Ready { source: decode(event.data.u64())?, hung_up })
}

/// kind, 32 bits of owner, 24 bits of part.
fn encode(source: Source) -> u64 {
    let (kind, owner, part) = match source {
        Source::Listener => (0, 0, 0),
        Source::Signals => (1, 0, 0),
        Source::Init => (2, 0, 0),
        Source::Connection(id) => (3, id, 0),
        Source::Helper(id) => (4, id, 0),
        Source::Report(id) => (5, id, 0),
        Source::End(id) => (6, id, 0),
        Source::Output(id, at) => (7, id, u32::from(at)),
        Source::Input(id) => (8, id, 0),
        Source::Client(id, client) => (9, id, client & 0xff_ffff),
        Source::CallGate => (10, 0, 0),
        Source::Calls(id) => (11, id, 0),
        Source::Jobs => (12, 0, 0),
        Source::Memory => (13, 0, 0),
        Source::Reader(id) => (14, id, 0),
        Source::Looks => (15, 0, 0),
        Source::Looker(id) => (16, id, 0),
        Source::Placeholder(process) => (17, process, 0),
        Source::Deaths => (18, 0, 0),
    };
    kind << 56 | u64::from(owner) << 24 | u64::from(part)
}

fn decode(token: u64) -> Option<Source> {
    let (owner, part) = ((token >> 24) as u32, (token & 0xff_ffff) as u32);
    Some(match token >> 56 {
        0 => Source::Listener,
        1 => Source::Signals,
        2 => Source::Init,
        3 => Source::Connection(owner),
        4 => Source::Helper(owner),
        5 => Source::Report(owner),
        6 => Source::End(owner),
        7 => Source::Output(owner, part as u8),
        8 => Source::Input(owner),
        9 => Source::Client(owner, part),
        10 => Source::CallGate,
        11 => Source::Calls(owner),
        12 => Source::Jobs,
        13 => Source::Memory,
        14 => Source::Reader(owner),
        15 => Source::Looks,
        16 => Source::Looker(owner),
        17 => Source::Placeholder(owner),
        18 => Source::Deaths,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_comes_back_as_it_was() {
        for source in [
            Source::Listener,
            Source::Signals,
            Source::Init,
            Source::Connection(u32::MAX),
            Source::Helper(1),
            Source::Report(2),
            Source::End(3),
            Source::Output(u32::MAX, 2),
            Source::Input(4),
            Source::Client(u32::MAX, 0xff_ffff),
            Source::CallGate,
            Source::Deaths,
            Source::Calls(u32::MAX),
            Source::Jobs,
            Source::Memory,
            Source::Reader(u32::MAX),
            Source::Looks,
            Source::Looker(u32::MAX),
            Source::Placeholder(u32::MAX),
        ] {
            assert_eq!(decode(encode(source)), Some(source));
        }
    }
}
