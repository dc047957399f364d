//! Frames between `dvs run` and the keeper of a program, after the HTTP upgrade to `dvs-stream`.
//!
//! `kind u8, reserved 0 u8, length u16 little-endian`, then `length` bytes (at most [`PAYLOAD_BYTES_MAX`]). Both
//! directions are ordered; flow control is the socket's. The server ends the stream after `EXIT` or `ERROR`. A client
//! that goes away leaves the program running when it was started detached or with a terminal, else the program's stdin
//! ends and its output goes to the log alone. A client that comes by other daemons may have a [`session`], in which the
//! stream outlives its connections.

pub mod session;

pub const PROTOCOL: &str = "dvs-stream";
pub const HEADER_BYTES: usize = 4;
pub const PAYLOAD_BYTES_MAX: usize = 32 * 1024;

/// What a frame says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Client to program. Empty: end of input.
    Stdin = 1,
    /// Program to client.
    Stdout = 2,
    Stderr = 3,
    /// Client: rows u16, columns u16, little-endian.
    Resize = 4,
    /// Client: signal number u8.
    Signal = 5,
    /// Server, first frame: PID in the container u32, little-endian.
    Started = 6,
    /// Server, last frame: exit status u8 as a shell shows it.
    Exit = 7,
    /// Server, last frame: JSON of [`crate::ErrorBody`].
    Error = 8,
    /// Server, first frame of each connection of a [`session`]: client's frames heard so far u64, little-endian.
    Session = 9,
    /// In a session, both ways: frames heard so far u64, little-endian.
    Heard = 10,
    /// In a session, client or the daemon that saw it die: it does not come back.
    Leave = 11,
    /// In a session, last frame of a connection, from a daemon on the way: JSON of [`crate::ErrorBody`], why it broke.
    Broken = 12,
}

impl Kind {
    pub fn from_byte(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Stdin, Stdout, Stderr, Resize, Signal, Started, Exit, Error, Session, Heard, Leave, Broken]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Header of a frame with `payload_bytes`.
pub fn header(kind: Kind, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(payload_bytes <= PAYLOAD_BYTES_MAX);
    let [low, high] = (payload_bytes as u16).to_le_bytes();
    [kind as u8, 0, low, high]
}

/// Collects bytes of a stream and gives back whole frames.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    taken: usize,
}

/// The other side does not speak this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of unknown kind {kind} or length {length}")]
pub struct BadFrame {
    pub kind: u8,
    pub length: usize,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.taken);
        self.taken = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    pub fn pop(&mut self) -> Result<Option<(Kind, &[u8])>, BadFrame> {
        let rest = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((&[kind, reserved, low, high], rest)) = rest.split_first_chunk() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([low, high]));
        let is_known = |_: &Kind| reserved == 0 && length <= PAYLOAD_BYTES_MAX;
        let known = Kind::from_byte(kind).filter(is_known).ok_or(BadFrame { kind, length })?;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        self.taken += HEADER_BYTES + length;
        Ok(Some((known, payload)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_however_the_bytes_arrive() {
        let mut bytes = header(Kind::Stdout, 5).to_vec();
        bytes.extend_from_slice(b"hello");
        bytes.extend_from_slice(&header(Kind::Exit, 1));
        bytes.push(3);
        let mut decoder = Decoder::default();
        let mut frames = Vec::new();
        for byte in bytes {
            decoder.push(&[byte]);
            while let Some((kind, payload)) = decoder.pop().unwrap() {
                frames.push((kind, payload.to_vec()));
            }
        }
        assert_eq!(frames, [(Kind::Stdout, b"hello".to_vec()), (Kind::Exit, vec![3])]);
    }

    #[test]
    fn garbage_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(b"HTTP/1.1");
        assert!(decoder.pop().is_err());
    }
}
