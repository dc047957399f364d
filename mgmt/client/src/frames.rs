//! The `dvs-stream` after the upgrade: frames in, frames out, each half on its own.

use std::cell::RefCell;
use std::io;

use mgmt_api::ErrorBody;
use mgmt_api::stream::session::Outgoing;
use mgmt_api::stream::{Decoder, Kind, PAYLOAD_BYTES_MAX};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::Error;

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
        let (read, write) = socket.into_split();
        let mut decoder = Decoder::default();
        decoder.push(early);
        Stream {
            reader: FrameReader { socket: read, decoder },
            writer: FrameWriter { socket: write },
            notes: Vec::new(),
        }
    }
}

pub struct FrameReader {
    socket: OwnedReadHalf,
    decoder: Decoder,
}

impl FrameReader {
    /// The next frame, and the bytes of its payload. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Result<(Frame, usize), Error> {
        let mut chunk = [0; PAYLOAD_BYTES_MAX];
        loop {
            if let Some((kind, payload)) = self.decoder.pop().map_err(Error::BadFrame)? {
                return Ok((parse(kind, payload)?, payload.len()));
            }
            match self.socket.read(&mut chunk).await {
                Ok(0) => return Err(Error::StreamEnded),
                Ok(count) => self.decoder.push(chunk.get(..count).unwrap_or_default()),
                Err(cause) => return Err(Error::broken(cause)),
            }
        }
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
    socket: OwnedWriteHalf,
}

impl FrameWriter {
    /// Sends a part of what is unsent. Cancel-safe: `outgoing` says what was sent.
    pub async fn send_some(&mut self, outgoing: &RefCell<Outgoing>) -> Result<(), Error> {
        self.socket.writable().await.map_err(Error::broken)?;
        let mut outgoing = outgoing.borrow_mut();
        match self.socket.try_write(outgoing.unsent()) {
            Ok(sent) => outgoing.advance(sent),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => (),
            Err(cause) => return Err(Error::broken(cause)),
        }
        Ok(())
    }

    /// Lets go without ending the direction: half a shutdown would look like the end of input, which a terminal
    /// answers by ending its shell. The connection closes, as a whole, with the reader.
    pub fn forget(self) {
        self.socket.forget();
    }
}
