//! One TLS connection without buffers of its own: ciphertext is decrypted where it was read to and encrypted to where
//! it is written from, which leaves out three of the copies that rustls' buffered connections make of every byte.
//!
//! ```text
//! stream → received ─ decrypt in place ─▶ a record ─▶ arena or frames' buffer (the rest waits in `overflow`)
//! frames ─ encrypt ─▶ sealed → stream
//! ```
//!
//! A turn of rustls handles one record or one step of the handshake. It may meet bytes for us while we want to send,
//! and have an answer of its own to send while we read; so both directions take turns the same way and keep what they
//! find.

use std::io::{Read, Write};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CommonState, Error};

use crate::error::CutReason;
use crate::limits;
use crate::secure::{Flow, Inward, unless_blocked};

/// What a record has beside its bytes: a head of 5, the type, and the tag of 16; room to spare.
const RECORD_OVERHEAD: usize = 64;
/// Bytes in a record.
const RECORD_BYTES: usize = 16 * 1024;
/// What fits into `sealed` at once: the plain bytes, their records' overhead, and a message of the handshake.
const SEALED_BYTES: usize =
    limits::WRITE_BYTES + (limits::WRITE_BYTES / RECORD_BYTES + 1) * RECORD_OVERHEAD + HANDSHAKE_BYTES_MAX;
/// rustls refuses longer messages.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;

pub enum End {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

pub struct Tls {
    end: End,
    received: Window,
    sealed: Window,
    /// Decrypted, and the frames' buffer was full.
    overflow: Vec<u8>,
}

/// A buffer and the part of it that is in use.
struct Window {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// What a turn of rustls came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// Take another.
    Again,
    /// The handshake waits for the peer.
    Blocked,
    /// It stands, and nothing more is to be read; so many plain bytes were sealed.
    Ready(usize),
    Closed,
}

impl Tls {
    pub fn new(end: End) -> Tls {
        let (received, sealed) = (Window::new(limits::READ_BYTES), Window::new(SEALED_BYTES));
        Tls { end, received, sealed, overflow: Vec::new() }
    }

    /// For a stream of which the beginning was read already.
    #[allow(clippy::indexing_slicing, reason = "a window has room for one byte")]
    pub fn begun(end: End, first: u8) -> Tls {
        let mut tls = Tls::new(end);
        tls.received.bytes[0] = first;
        tls.received.end = 1;
        tls
    }

    pub fn state(&self) -> &CommonState {
        match &self.end {
            End::Client(connection) => connection,
            End::Server(connection) => connection,
        }
    }

    pub fn wants_write(&self) -> bool {
        !self.sealed.is_empty() || self.state().wants_write()
    }

    /// Reads once and decrypts that to where `inward` says, as far as there is room. More at a time would only
    /// pile up unfinished frames, which are moved when the buffer ends.
    pub fn read(&mut self, stream: &mut impl Read, inward: &mut Inward<'_>) -> Result<Flow, CutReason> {
        let mut after = None;
        loop {
            self.pour_overflow(inward);
            inward.check()?;
            if !self.overflow.is_empty() || inward.is_full() {
                return Ok(Flow::Full);
            }
            // With nothing to decrypt a turn would only say so, and before every read that finds nothing.
            let turn = match self.received.is_empty() && !self.state().is_handshaking() {
                true => Turn::Ready(0),
                false => self.turn(Some(&mut *inward), &[])?,
            };
            match (turn, after) {
                (Turn::Again, _) => continue,
                (Turn::Closed, _) => return Err(CutReason::Closed),
                (Turn::Blocked | Turn::Ready(_), Some(flow)) => return Ok(flow),
                (Turn::Blocked | Turn::Ready(_), None) => {}
            }
            let space = self.received.space();
            let wanted = space.len();
            match unless_blocked(stream.read(space))? {
                None => return Ok(Flow::Dry),
                Some(0) => return Err(CutReason::Closed),
                Some(count) => {
                    self.received.end += count;
                    // A short read means that the socket was emptied.
                    after = Some(if count < wanted { Flow::Dry } else { Flow::Full });
                }
            }
        }
    }

    /// Encrypts and writes. Returns how many bytes of `out` were taken.
    pub fn write(&mut self, stream: &mut impl Write, out: &[u8]) -> Result<usize, CutReason> {
        let mut taken = 0;
        loop {
            while !self.sealed.is_empty() {
                match unless_blocked(stream.write(self.sealed.used()))? {
                    None => return Ok(taken),
                    Some(count) => self.sealed.consume(count),
                }
            }
            let rest = out.get(taken..).unwrap_or(&[]);
            if rest.is_empty() && !self.state().wants_write() {
                return Ok(taken);
            }
            let piece = match self.state().is_handshaking() {
                true => &[],
                false => rest.get(..limits::WRITE_BYTES).unwrap_or(rest),
            };
            match self.turn(None, piece)? {
                Turn::Again => {}
                Turn::Blocked | Turn::Ready(0) if self.sealed.is_empty() => return Ok(taken),
                Turn::Blocked => {}
                Turn::Ready(count) => taken += count,
                Turn::Closed => return Err(CutReason::Closed),
            }
        }
    }

    fn pour_overflow(&mut self, inward: &mut Inward<'_>) {
        if !self.overflow.is_empty() {
            let count = inward.take(&self.overflow);
            self.overflow.drain(..count);
        }
    }

    /// One step, with what was received and not handled yet. What it finds for us goes to `inward`, as far as there is
    /// one and it has room; when nothing is to be read, `plain` is sealed.
    fn turn(&mut self, inward: Option<&mut Inward<'_>>, plain: &[u8]) -> Result<Turn, CutReason> {
        let Tls { end, received, sealed, overflow } = self;
        let mut hands = Hands { inward, overflow, sealed, plain };
        let incoming = received.used_mut();
        let (discard, turn) = match end {
            End::Client(connection) => hands.client(connection.process_tls_records(incoming)),
            End::Server(connection) => hands.server(connection.process_tls_records(incoming)),
        };
        received.consume(discard);
        Ok(turn?)
    }
}

/// Where a turn puts what it finds, and takes from.
struct Hands<'a, 'b> {
    inward: Option<&'a mut Inward<'b>>,
    overflow: &'a mut Vec<u8>,
    sealed: &'a mut Window,
    plain: &'a [u8],
}

impl Hands<'_, '_> {
    fn client(&mut self, status: UnbufferedStatus<'_, '_, ClientConnectionData>) -> (usize, Result<Turn, Error>) {
        (status.discard, status.state.and_then(|state| self.handle(state)))
    }

    fn server(&mut self, status: UnbufferedStatus<'_, '_, ServerConnectionData>) -> (usize, Result<Turn, Error>) {
        (status.discard, status.state.and_then(|state| self.handle(state)))
    }

    fn handle<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> Result<Turn, Error> {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    self.keep(record?.payload);
                }
                Ok(Turn::Again)
            }
            ConnectionState::EncodeTlsData(mut data) => match data.encode(self.sealed.space()) {
                Ok(count) => {
                    self.sealed.end += count;
                    Ok(Turn::Again)
                }
                Err(EncodeError::InsufficientSize(_) | EncodeError::AlreadyEncoded) => {
                    Err(Error::General("an answer of the handshake has no room".to_owned()))
                }
            },
            // It is written, in its order, with all that is sealed.
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(Turn::Again)
            }
            ConnectionState::BlockedHandshake => Ok(Turn::Blocked),
            ConnectionState::WriteTraffic(_) if self.plain.is_empty() => Ok(Turn::Ready(0)),
            ConnectionState::WriteTraffic(mut traffic) => match traffic.encrypt(self.plain, self.sealed.space()) {
                Ok(count) => {
                    self.sealed.end += count;
                    Ok(Turn::Ready(self.plain.len()))
                }
                Err(EncryptError::InsufficientSize(_)) => Err(Error::General("a record has no room".to_owned())),
                Err(EncryptError::EncryptExhausted) => Err(Error::EncryptError),
            },
            // Closed, or early data, which is not offered.
            _ => Ok(Turn::Closed),
        }
    }

    fn keep(&mut self, plain: &[u8]) {
        let taken = match &mut self.inward {
            Some(inward) if self.overflow.is_empty() => inward.take(plain),
            _ => 0,
        };
        self.overflow.extend_from_slice(plain.get(taken..).unwrap_or(&[]));
    }
}

impl Window {
    fn new(bytes: usize) -> Window {
        Window { bytes: vec![0; bytes].into_boxed_slice(), start: 0, end: 0 }
    }

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn used(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or(&[])
    }

    fn used_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..self.end).unwrap_or(&mut [])
    }

    /// What is free after the part in use, which is moved to the front first.
    fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.get_mut(self.end..).unwrap_or(&mut [])
    }

    fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }
}
