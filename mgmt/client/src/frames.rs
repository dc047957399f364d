//! The `dvs-stream` after the upgrade: frames in, frames out, each half on its own.

use mgmt_api::stream::{Decoder, Kind, PAYLOAD_BYTES_MAX, header};
use mgmt_api::{ErrorBody, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
    /// The next frame. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Result<Frame, Error> {
        let mut chunk = [0; PAYLOAD_BYTES_MAX];
        loop {
            if let Some((kind, payload)) = self.decoder.pop().map_err(Error::BadFrame)? {
                return parse(kind, payload);
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
        Kind::Stdin | Kind::Resize | Kind::Signal => Err(foreign()),
    }
}

pub struct FrameWriter {
    socket: OwnedWriteHalf,
}

impl FrameWriter {
    /// Sends input of any length. Not cancel-safe: half a frame would be left behind.
    pub async fn stdin(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for chunk in bytes.chunks(PAYLOAD_BYTES_MAX) {
            self.send(Kind::Stdin, chunk).await?;
        }
        Ok(())
    }

    pub async fn end_of_input(&mut self) -> Result<(), Error> {
        self.send(Kind::Stdin, &[]).await
    }

    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), Error> {
        let mut payload = [0; 4];
        payload[..2].copy_from_slice(&size.rows.to_le_bytes());
        payload[2..].copy_from_slice(&size.columns.to_le_bytes());
        self.send(Kind::Resize, &payload).await
    }

    pub async fn signal(&mut self, signal: u8) -> Result<(), Error> {
        self.send(Kind::Signal, &[signal]).await
    }

    /// Lets go without ending the direction: half a shutdown would look like the end of input, which a terminal
    /// answers by ending its shell. The connection closes, as a whole, with the reader.
    pub fn forget(self) {
        self.socket.forget();
    }

    async fn send(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Error> {
        let mut frame = Vec::with_capacity(mgmt_api::stream::HEADER_BYTES + payload.len());
        frame.extend_from_slice(&header(kind, payload.len()));
        frame.extend_from_slice(payload);
        self.socket.write_all(&frame).await.map_err(Error::broken)
    }
}
