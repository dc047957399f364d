//! The fs server behind a session of libvos: the real backend.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libvos::{Armed, Connect, Data, Epochs, Fenced, Identity, Sequenced, Session, Size, SubmitError};
use rustix::event::epoll;
use rustix::io::Errno;
use vos_api::fs::{READ, Read, WHERE, WHERE_BYTES_MIN};
use vos_api::{Class, Operation};

use super::volume::{self, Asked, Outcome, Volume};
use super::{Backend, BackendError, Done, Event, Loss, Op, Refused, ReplyData, Start, Token};

/// Makes connectors: one for each session that is begun.
pub type Connector = Box<dyn FnMut() -> Box<dyn Connect> + Send>;

pub struct SessionBackend {
    connector: Connector,
    size: Size,
    epochs: Epochs,
    session: Option<Session>,
    /// The session was begun as one that was fenced before.
    revives: bool,
    /// Where long reads go by themselves, if the container has a disk that this gate knows.
    volume: Option<Volume>,
    /// Reads whose answer may say where the bytes lie; by their number in the session.
    asked: HashMap<libvos::Token, Asked>,
    /// Reads that were asked again: what the gate knows them as.
    repeated: HashMap<libvos::Token, libvos::Token>,
    /// For which the session had no room.
    repeats: VecDeque<Asked>,
    /// Both sessions in one descriptor.
    epoll: OwnedFd,
}

impl SessionBackend {
    pub fn new(connector: Connector, size: Size) -> io::Result<SessionBackend> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(SessionBackend {
            connector,
            size,
            epochs: Epochs::default(),
            session: None,
            revives: false,
            volume: None,
            asked: HashMap::new(),
            repeated: HashMap::new(),
            repeats: VecDeque::new(),
            epoll,
        })
    }

    /// What the gate was told of the fs server's placement.
    pub fn told(self, epochs: Epochs) -> SessionBackend {
        SessionBackend { epochs, ..self }
    }

    /// Long reads go to this disk, by what the fs server says of it.
    pub fn reading_from(mut self, disk: Box<dyn Connect>, size: Size, epochs: Epochs) -> io::Result<SessionBackend> {
        let volume = Volume::open(disk, size, epochs)?;
        watch(&self.epoll, volume.fd())?;
        self.volume = Some(volume);
        Ok(self)
    }

    /// Asks the fs server for the bytes themselves, as far as it takes more.
    fn repeat(&mut self) {
        let Some(session) = &mut self.session else { return };
        while let Some(asked) = self.repeats.front() {
            let read = asked.read.encode();
            let Ok(token) = session.submit(libvos::Op::of(&read, Class::Repeatable, asked.in_capacity)) else { return };
            self.repeated.insert(token, asked.token);
            self.repeats.pop_front();
        }
    }

    fn poll_session(&mut self) -> Option<Event<Data>> {
        loop {
            let session = self.session.as_mut()?;
            let done = session.complete()?;
            if let Some(why) = session.fenced().filter(|why| !why.is_renewable()) {
                return Some(Event::Outdated(why));
            }
            if done.error == Some(Errno::STALE) {
                let has_greeted = session.incarnation() != 0;
                return Some(Event::SessionLost(loss_of(self.revives, session.fenced(), has_greeted)));
            }
            match (self.asked.remove(&done.token), &mut self.volume) {
                (Some(asked), Some(volume)) if volume::is_told(&done) => volume.read(asked, &done),
                _ => return Some(self.done(done)),
            }
        }
    }

    fn done(&mut self, done: libvos::Done) -> Event<Data> {
        let token = self.repeated.remove(&done.token).unwrap_or(done.token);
        Event::Done(Done {
            token: Token(token.0),
            status: done.error.map_or(0, |errno| errno.raw_os_error() as u32),
            results: done.results,
            data: done.data,
        })
    }

    fn poll_volume(&mut self) -> Option<Event<Data>> {
        loop {
            match self.volume.as_mut()?.poll()? {
                Outcome::Read(token, data, results) => {
                    return Some(Event::Done(Done { token: Token(token.0), status: 0, results, data }));
                }
                Outcome::Again(asked) => {
                    self.repeats.push_back(asked);
                    self.repeat();
                }
            }
        }
    }
}

/// A server that refuses to revive a session does not know it any more. One that has greeted knew it then: what it
/// refuses since is to be revived once more, or what was in flight would happen twice.
fn loss_of(revives: bool, why: Option<Fenced>, has_greeted: bool) -> Loss {
    if revives && why == Some(Fenced::Forgotten) && !has_greeted { Loss::Forgotten } else { Loss::Fenced }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(io::Error::from)
}

impl Backend for SessionBackend {
    type Data = Data;

    fn begin(&mut self, start: Start) -> Result<(), BackendError> {
        self.session = None;
        self.revives = start.revives;
        self.asked.clear();
        self.repeated.clear();
        self.repeats.clear();
        if let Some(volume) = &mut self.volume {
            volume.forget();
        }
        let identity = Identity {
            session: Some(start.session),
            next_sequence: start.next_sequence,
            repeats_from: Some(start.acknowledged + 1),
            revives: start.revives,
            epochs: self.epochs,
        };
        let session = Session::open((self.connector)(), self.size, identity);
        let session = session.and_then(|session| watch(&self.epoll, session.fd()).map(|()| session));
        self.session = Some(session.map_err(|cause| BackendError::Begin(Box::new(cause)))?);
        Ok(())
    }

    fn submit(&mut self, op: &Op<'_>) -> Result<Token, Refused> {
        let session = self.session.as_mut().ok_or(Refused::Full)?;
        let sequenced = match op.sequence {
            None => Sequenced::No,
            Some(sequence) if sequence == session.next_sequence() => Sequenced::Yes,
            Some(sequence) => Sequenced::As(sequence),
        };
        let is_long = op.op == READ && op.in_capacity >= WHERE_BYTES_MIN;
        let is_direct = is_long && self.volume.as_ref().is_some_and(Volume::is_up);
        let read = Read::decode(op.flags, op.args, &[]).filter(|_| is_direct);
        let op = libvos::Op {
            op: op.op,
            flags: if read.is_some() { op.flags | WHERE } else { op.flags },
            args: op.args,
            out: op.out,
            in_capacity: op.in_capacity,
            sequenced,
        };
        match session.submit(op) {
            Ok(token) => {
                if let Some(read) = read {
                    self.asked.insert(token, Asked { token, read, in_capacity: op.in_capacity });
                }
                Ok(Token(token.0))
            }
            Err(SubmitError::Full) => Err(Refused::Full),
            Err(SubmitError::TooLong) => Err(Refused::TooLong),
        }
    }

    fn poll(&mut self) -> Option<Event<Data>> {
        self.repeat();
        // The session first, so that a recall is known before what was read by the word it takes back.
        self.poll_session().or_else(|| self.poll_volume())
    }

    fn recalled(&mut self, ino: Option<u64>) {
        if let Some(volume) = &mut self.volume {
            volume.recalled(ino);
        }
    }

    fn is_up(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_up)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn may_sleep(&mut self) -> bool {
        // Completions make room for what waits to be repeated.
        let volume = self.volume.as_mut().is_none_or(Volume::may_sleep);
        volume && self.session.as_mut().is_none_or(|session| session.arm() == Armed::Sleep)
    }

    fn awake(&mut self) {
        if let Some(session) = &mut self.session {
            session.on_ready();
        }
        if let Some(volume) = &mut self.volume {
            volume.awake();
        }
    }
}

impl ReplyData for Data {
    fn len(&self) -> usize {
        Data::len(self)
    }

    fn copy_to(&self, into: &mut [u8]) -> bool {
        Data::copy_to(self, 0, into).is_ok()
    }

    fn write_after(&self, head: &[u8], bytes: usize, to: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = bytes.min(Data::len(self));
        match self.arena() {
            Some((arena, offset)) => arena.writev_with_header(to, head, offset, bytes).map(|_| ()),
            None => rustix::io::write(to, head).map(|_| ()).map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_that_is_fenced_again_after_it_was_revived_is_not_forgotten() {
        let refused = Some(Fenced::Forgotten);
        assert_eq!(loss_of(false, refused, true), Loss::Fenced);
        assert_eq!(loss_of(false, refused, false), Loss::Fenced, "it did not say yet that it knows");
        assert_eq!(loss_of(true, refused, true), Loss::Fenced, "it was revived, and fenced since");
        assert_eq!(loss_of(true, refused, false), Loss::Forgotten);
    }
}
