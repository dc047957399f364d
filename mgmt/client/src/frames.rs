//! The `dvs-stream` after the upgrade: frames in, frames out, each half on its own.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use mgmt_api::ErrorBody;
use mgmt_api::stream::session::Outgoing;
use mgmt_api::stream::{Decoder, Kind, PAYLOAD_BYTES_MAX};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use crate::Error;
use crate::wire::Wire;

/// What the other side said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// PID in the container.
    Started(u32),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// Last one: exit status as a shell shows it.
    Exit(u8),
    /// Last one.
    Error(ErrorBody),
    /// First one of a connection of a session: how many of our frames the keeper has heard.
    Session(u64),
    /// So many of our frames were heard by now.
    Heard(u64),
    /// Last one of this connection, of a session that can go on: why it broke.
    Broken(ErrorBody),
}

/// A connection to a program. The halves are independent, so that neither direction can block the other.
pub struct Stream {
    pub reader: FrameReader,
    pub writer: FrameWriter,
    /// What people should know before they wait.
    pub notes: Vec<String>,
}

impl Stream {
    /// `early`: bytes that arrived together with the answer to the upgrade.
    pub fn new(socket: UnixStream, early: &[u8]) -> Stream {
        Stream::over(Wire::Unix(socket), early)
    }

    pub(crate) fn over(wire: Wire, early: &[u8]) -> Stream {
        let (read, write) = match wire {
            Wire::Unix(socket) => {
                let (read, write) = socket.into_split();
                (Reading::Unix(read), Writing::Unix(write))
            }
            Wire::Tls(socket) => {
                let (read, write) = tokio::io::split(*socket);
                (Reading::Tls(read), Writing::Tls(write))
            }
        };
        let mut decoder = Decoder::default();
        decoder.push(early);
        Stream {
            reader: FrameReader { socket: read, decoder },
            writer: FrameWriter { socket: write, is_unflushed: false },
            notes: Vec::new(),
        }
    }
}

pub struct FrameReader {
    socket: Reading,
    decoder: Decoder,
}

enum Reading {
    Unix(OwnedReadHalf),
    Tls(ReadHalf<TlsStream<TcpStream>>),
}

enum Writing {
    Unix(OwnedWriteHalf),
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl FrameReader {
    /// The next frame, and the bytes of its payload. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Result<(Frame, usize), Error> {
        let mut chunk = [0; PAYLOAD_BYTES_MAX];
        loop {
            if let Some((kind, payload)) = self.decoder.pop().map_err(Error::BadFrame)? {
                return Ok((parse(kind, payload)?, payload.len()));
            }
            let read = match &mut self.socket {
                Reading::Unix(socket) => socket.read(&mut chunk).await,
                Reading::Tls(socket) => socket.read(&mut chunk).await,
            };
            match read {
                Ok(0) => return Err(Error::StreamEnded),
                Ok(count) => self.decoder.push(chunk.get(..count).unwrap_or_default()),
                // TLS has a long story to tell about a daemon that was killed.
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Err(Error::StreamEnded),
                Err(cause) => return Err(Error::broken(cause)),
            }
        }
    }

    /// Reads to the end, whatever it is: a connection that closes with something unread destroys what was said last.
    pub async fn drain(&mut self) {
        while self.next().await.is_ok() {}
    }
}

fn parse(kind: Kind, payload: &[u8]) -> Result<Frame, Error> {
    let foreign = || Error::Foreign(format!("{kind:?} frame of {} bytes", payload.len()));
    let count = || payload.try_into().map(u64::from_le_bytes).map_err(|_| foreign());
    match kind {
        Kind::Stdout => Ok(Frame::Stdout(payload.to_vec())),
        Kind::Stderr => Ok(Frame::Stderr(payload.to_vec())),
        Kind::Started => {
            let pid: [u8; 4] = payload.try_into().map_err(|_| foreign())?;
            Ok(Frame::Started(u32::from_le_bytes(pid)))
        }
        Kind::Exit => match payload {
            [status] => Ok(Frame::Exit(*status)),
            _ => Err(foreign()),
        },
        Kind::Error => serde_json::from_slice(payload).map(Frame::Error).map_err(|_| foreign()),
        Kind::Session => count().map(Frame::Session),
        Kind::Heard => count().map(Frame::Heard),
        Kind::Broken => serde_json::from_slice(payload).map(Frame::Broken).map_err(|_| foreign()),
        Kind::Stdin | Kind::Resize | Kind::Signal | Kind::Leave => Err(foreign()),
    }
}

pub struct FrameWriter {
    socket: Writing,
    /// TLS keeps what it could not send at once.
    is_unflushed: bool,
}

impl FrameWriter {
    /// Sends a part of what is unsent. Cancel-safe: `outgoing` says what was sent, and [`FrameWriter::is_unflushed`]
    /// whether to call this again although nothing is.
    pub async fn send_some(&mut self, outgoing: &RefCell<Outgoing>) -> Result<(), Error> {
        match &mut self.socket {
            Writing::Unix(socket) => {
                socket.writable().await.map_err(Error::broken)?;
                let mut outgoing = outgoing.borrow_mut();
                match socket.try_write(outgoing.unsent()) {
                    Ok(sent) => outgoing.advance(sent),
                    Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => (),
                    Err(cause) => return Err(Error::broken(cause)),
                }
            }
            Writing::Tls(socket) => {
                let some = std::future::poll_fn(|task| {
                    let mut outgoing = outgoing.borrow_mut();
                    if outgoing.unsent().is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    Pin::new(&mut *socket).poll_write(task, outgoing.unsent()).map_ok(|sent| outgoing.advance(sent))
                });
                some.await.map_err(Error::broken)?;
                self.is_unflushed = true;
                socket.flush().await.map_err(Error::broken)?;
                self.is_unflushed = false;
            }
        }
        Ok(())
    }

    pub fn is_unflushed(&self) -> bool {
        self.is_unflushed
    }

    /// No daemon of this machine sees our death, to say farewell for us.
    pub fn is_far(&self) -> bool {
        matches!(self.socket, Writing::Tls(_))
    }

    /// Lets go without ending the direction: half a shutdown would look like the end of input, which a terminal
    /// answers by ending its shell. The connection closes, as a whole, with the reader.
    pub fn forget(self) {
        match self.socket {
            Writing::Unix(socket) => socket.forget(),
            Writing::Tls(socket) => drop(socket),
        }
    }
}
