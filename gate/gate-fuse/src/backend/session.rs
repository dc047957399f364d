//! The fs server behind a session of libvos: the real backend.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libvos::{Armed, Connect, Data, Identity, Sequenced, Session, Size, SubmitError};

use super::{Backend, BackendError, Done, Event, Op, Refused, ReplyData, Start, Token};

/// Makes connectors: one for each session that is begun.
pub type Connector = Box<dyn FnMut() -> Box<dyn Connect>>;

pub struct SessionBackend {
    connector: Connector,
    size: Size,
    session: Option<Session>,
    /// Readable never: what is waited on before the session begins.
    nothing: OwnedFd,
}

impl SessionBackend {
    pub fn new(connector: Connector, size: Size) -> io::Result<SessionBackend> {
        use rustix::event::{EventfdFlags, eventfd};
        let nothing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(SessionBackend { connector, size, session: None, nothing })
    }
}

impl Backend for SessionBackend {
    type Data = Data;

    fn begin(&mut self, start: Start) -> Result<(), BackendError> {
        self.session = None;
        let identity = Identity {
            session: Some(start.session),
            next_sequence: start.next_sequence,
            repeats_from: Some(start.acknowledged + 1),
        };
        let session = Session::open((self.connector)(), self.size, identity);
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
        let op = libvos::Op {
            op: op.op,
            flags: op.flags,
            args: op.args,
            out: op.out,
            in_capacity: op.in_capacity,
            sequenced,
        };
        match session.submit(op) {
            Ok(token) => Ok(Token(token.0)),
            Err(SubmitError::Full) => Err(Refused::Full),
            Err(SubmitError::TooLong) => Err(Refused::TooLong),
        }
    }

    fn poll(&mut self) -> Option<Event<Data>> {
        let done = self.session.as_mut()?.complete()?;
        Some(Event::Done(Done {
            token: Token(done.token.0),
            status: done.error.map_or(0, |errno| errno.raw_os_error() as u32),
            results: done.results,
            data: done.data,
        }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.session.as_ref().map_or(self.nothing.as_fd(), Session::fd)
    }

    fn may_sleep(&mut self) -> bool {
        self.session.as_mut().is_none_or(|session| session.arm() == Armed::Sleep)
    }

    fn awake(&mut self) {
        if let Some(session) = &mut self.session {
            session.on_ready();
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
