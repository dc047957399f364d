//! One connection: what it stands for in the protocol, and what its stream says of it.

use std::io;
use std::time::{Duration, Instant};

use quinn_proto::{
    Connection as Protocol, ConnectionError, ConnectionHandle, Dir, Event, ReadError, StreamEvent, StreamId, VarInt,
    WriteError,
};
use rustls_pki_types::CertificateDer;

use super::limits;

/// Names a connection for as long as the process lives; the protocol's handles are used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Number(pub(super) u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Dialled,
    Accepted,
}

/// Who asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holder {
    /// Nobody yet: it must be greeted by then.
    Stranger {
        until: Instant,
    },
    Backlog,
    Stream,
    /// Nobody any more: what was written is delivered until then.
    Lingering {
        until: Instant,
    },
}

enum State {
    Beginning,
    Open(StreamId),
    Ended(Ending),
}

/// How it ended, for whoever still reads.
#[derive(Clone)]
enum Ending {
    Closed,
    Failed(io::ErrorKind, String),
}

pub(super) struct Connection {
    pub(super) protocol: Protocol,
    /// `None` when the protocol is done with it; its handle may name another by then.
    pub(super) handle: Option<ConnectionHandle>,
    pub(super) holder: Holder,
    side: Side,
    state: State,
    /// Its stream, also after the end: bytes that came before may still be read.
    stream: Option<StreamId>,
    /// The peer sends nothing more, and everything was read.
    is_dry: bool,
    /// The holder was told that it ended.
    is_told: bool,
}

impl Connection {
    pub(super) fn new(protocol: Protocol, handle: ConnectionHandle, side: Side, holder: Holder) -> Connection {
        Connection {
            protocol,
            handle: Some(handle),
            holder,
            side,
            state: State::Beginning,
            stream: None,
            is_dry: false,
            is_told: false,
        }
    }

    // ---- For the core.

    /// Takes what the protocol has to say.
    pub(super) fn take_events(&mut self) {
        while let Some(event) = self.protocol.poll() {
            match event {
                Event::Connected if self.side == Side::Dialled => {
                    let opened = self.protocol.streams().open(Dir::Bi);
                    self.opened(opened);
                }
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                    let opened = self.protocol.streams().accept(Dir::Bi);
                    self.opened(opened);
                }
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. }) => self.delivered(),
                Event::ConnectionLost { reason } => self.state = State::Ended(Ending::of(&reason)),
                _ => {}
            }
        }
    }

    fn opened(&mut self, stream: Option<StreamId>) {
        if let (State::Beginning, Some(stream)) = (&self.state, stream) {
            self.state = State::Open(stream);
            self.stream = Some(stream);
            if matches!(self.holder, Holder::Stranger { .. }) {
                self.holder = Holder::Backlog;
            }
        }
    }

    /// All that was written has arrived, or is not wanted.
    fn delivered(&mut self) {
        if matches!(self.holder, Holder::Lingering { .. }) {
            self.close();
        }
    }

    fn close(&mut self) {
        self.protocol.close(Instant::now(), VarInt::from_u32(0), bytes::Bytes::new());
    }

    /// Closes it if its holder's time has passed.
    pub(super) fn tick(&mut self, now: Instant) {
        let (Holder::Stranger { until } | Holder::Lingering { until }) = self.holder else { return };
        if until <= now && !self.protocol.is_closed() {
            self.close();
        }
    }

    /// When [`Connection::tick`], a timer of the protocol, or the holder has something to do.
    pub(super) fn due(&mut self) -> Option<Instant> {
        let holders = match self.holder {
            Holder::Stranger { until } | Holder::Lingering { until } if !self.protocol.is_closed() => Some(until),
            // It learns of the end by reading, and nothing comes that would make it.
            Holder::Stream if self.has_news() => Some(Instant::now()),
            _ => None,
        };
        let timer = self.handle.and_then(|_| self.protocol.poll_timeout());
        holders.into_iter().chain(timer).min()
    }

    fn has_news(&self) -> bool {
        !self.is_told && (self.is_dry || matches!(self.state, State::Ended(_)))
    }

    pub(super) fn can_be_forgotten(&self) -> bool {
        self.handle.is_none() && !matches!(self.holder, Holder::Stream | Holder::Backlog)
    }

    // ---- For the stream.

    pub(super) fn established(&mut self) -> Option<io::Result<()>> {
        match &self.state {
            State::Beginning => None,
            State::Open(_) => Some(Ok(())),
            State::Ended(ending) => Some(Err(ending.error())),
        }
    }

    pub(super) fn round_trip(&mut self) -> Option<Duration> {
        matches!(self.state, State::Open(_)).then(|| self.protocol.rtt())
    }

    pub(super) fn peer_certificate(&mut self) -> Option<CertificateDer<'static>> {
        let identity = self.protocol.crypto_session().peer_identity()?;
        identity.downcast::<Vec<CertificateDer<'static>>>().ok()?.into_iter().next()
    }

    /// As much as is there and `buffer` takes.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        if let Some(stream) = self.stream.filter(|_| !self.is_dry) {
            let mut stream = self.protocol.recv_stream(stream);
            let mut chunks = stream.read(true).map_err(io::Error::other)?;
            while let Some(space) = buffer.get_mut(filled..).filter(|space| !space.is_empty()) {
                match chunks.next(space.len()) {
                    Ok(Some(chunk)) => {
                        let taken = space.get_mut(..chunk.bytes.len()).ok_or(io::ErrorKind::InvalidData)?;
                        taken.copy_from_slice(&chunk.bytes);
                        filled += chunk.bytes.len();
                    }
                    Ok(None) | Err(ReadError::Reset(_)) => {
                        self.is_dry = true;
                        break;
                    }
                    Err(ReadError::Blocked) => break,
                }
            }
            // Told to the peer by the core, which sends what is due after each call.
            let _ = chunks.finalize();
        }
        match &self.state {
            _ if filled > 0 || buffer.is_empty() => Ok(filled),
            State::Ended(Ending::Failed(kind, why)) => {
                self.is_told = true;
                Err(io::Error::new(*kind, why.clone()))
            }
            State::Ended(Ending::Closed) => {
                self.is_told = true;
                Ok(0)
            }
            _ if self.is_dry => {
                self.is_told = true;
                Ok(0)
            }
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stream = match &self.state {
            State::Beginning => return Err(io::ErrorKind::WouldBlock.into()),
            State::Ended(ending) => return Err(ending.error()),
            State::Open(stream) => *stream,
        };
        match self.protocol.send_stream(stream).write(bytes) {
            Ok(count) => Ok(count),
            Err(WriteError::Blocked) => Err(io::ErrorKind::WouldBlock.into()),
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Its stream was dropped. What was written is still delivered, if it can be.
    pub(super) fn let_go(&mut self) {
        self.holder = Holder::Lingering { until: Instant::now() + limits::LINGER };
        let State::Open(stream) = self.state else {
            return if !self.protocol.is_closed() {
                self.close()
            };
        };
        let _ = self.protocol.recv_stream(stream).stop(VarInt::from_u32(0));
        if self.protocol.send_stream(stream).finish().is_err() {
            self.close();
        }
    }
}

impl Ending {
    fn of(reason: &ConnectionError) -> Ending {
        let kind = match reason {
            ConnectionError::ApplicationClosed(_) | ConnectionError::LocallyClosed => return Ending::Closed,
            ConnectionError::TimedOut => io::ErrorKind::TimedOut,
            ConnectionError::Reset => io::ErrorKind::ConnectionReset,
            ConnectionError::ConnectionClosed(_) => io::ErrorKind::ConnectionRefused,
            ConnectionError::VersionMismatch | ConnectionError::TransportError(_) | ConnectionError::CidsExhausted => {
                io::ErrorKind::Other
            }
        };
        Ending::Failed(kind, reason.to_string())
    }

    fn error(&self) -> io::Error {
        match self {
            Ending::Closed => io::ErrorKind::NotConnected.into(),
            Ending::Failed(kind, why) => io::Error::new(*kind, why.clone()),
        }
    }
}
