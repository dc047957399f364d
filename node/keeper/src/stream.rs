//! Who watches a program: a socket that takes output as frames or as plain text, with a bounded queue.
//!
//! How a slow client is treated is its [`Patience`]. Whoever runs a program in the foreground is its pipe or its screen: the
//! program waits for them, as it would for a real one, so that nothing of `dvs run DC -- cat big > file` is lost. Everybody else is
//! only a spectator: one whose (much longer) queue is full is sent away, the program and its log go on.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use mgmt_api::stream::{Decoder, Kind, PAYLOAD_BYTES_MAX, header};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::poll::{Interest, Watched};

/// Bytes of output that may wait for a foreground client before the program waits too.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of output that may wait for a spectator before it is sent away: a burst must not cost it its place.
const SPECTATOR_BYTES_MAX: usize = 4 << 20;
const READ_BYTES: usize = 32 * 1024;
/// Reads per readiness, so that one busy client does not keep the loop.
const READS_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Frames,
    /// Standard output and error as they come; input is ignored.
    Text,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// The program waits for this client.
    Foreground,
    /// This client is sent away when it is too slow.
    Spectator,
}

/// The client is gone; why does not matter to anybody.
#[derive(Debug)]
pub struct Gone;

/// What a client said.
#[derive(Debug)]
pub enum Said {
    Input(Vec<u8>),
    EndOfInput,
    /// The client closed its side, without a word.
    Left,
    Resize {
        rows: u16,
        columns: u16,
    },
    Signal(i32),
}

pub struct Client {
    pub number: u32,
    pub patience: Patience,
    encoding: Encoding,
    socket: Watched,
    decoder: Decoder,
    queue: VecDeque<u8>,
    reading: Reading,
    closing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    Open,
    /// The program does not take more input for now.
    Held,
    /// Nothing more will come.
    Ended,
}

impl Client {
    pub fn new(number: u32, socket: Watched, encoding: Encoding, patience: Patience, pending: &[u8]) -> Client {
        let mut decoder = Decoder::default();
        decoder.push(pending);
        let reading = Reading::Open;
        Client { number, patience, encoding, socket, decoder, queue: VecDeque::new(), reading, closing: false }
    }

    /// Adds output (or a last word) to the queue.
    pub fn push(&mut self, kind: Kind, bytes: &[u8]) {
        match self.encoding {
            Encoding::Frames => {
                for part in bytes.chunks(PAYLOAD_BYTES_MAX) {
                    self.queue.extend(header(kind, part.len()));
                    self.queue.extend(part);
                }
            }
            Encoding::Text if matches!(kind, Kind::Stdout | Kind::Stderr) => self.queue.extend(bytes),
            Encoding::Text => (),
        }
    }

    /// Whether no more output should be added for now.
    pub fn is_full(&self) -> bool {
        let limit = match self.patience {
            Patience::Foreground => QUEUE_BYTES_MAX,
            Patience::Spectator => SPECTATOR_BYTES_MAX,
        };
        self.queue.len() >= limit
    }

    /// Whether the client will say nothing more.
    pub fn is_silent(&self) -> bool {
        self.reading == Reading::Ended
    }

    /// When the queue is empty the client is done with.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Stops or resumes taking input from the client.
    pub fn hold_input(&mut self, hold: bool) {
        self.reading = match (self.reading, hold) {
            (Reading::Ended, _) => Reading::Ended,
            (_, true) => Reading::Held,
            (_, false) => Reading::Open,
        };
    }

    /// Sends what the socket takes now and sets what to wait for.
    pub fn flush(&mut self) -> Result<(), Gone> {
        while !self.queue.is_empty() {
            let (front, _) = self.queue.as_slices();
            match send(self.socket.as_fd(), front, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.queue.drain(..sent)),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                Err(_) => return Err(Gone),
            }
        }
        if self.closing && self.queue.is_empty() {
            let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
            return Err(Gone);
        }
        let interest = Interest::of(self.reading == Reading::Open, !self.queue.is_empty());
        self.socket.set(interest).map_err(|_: io::Error| Gone)
    }

    /// Takes what the client said.
    pub fn listen(&mut self) -> Result<Vec<Said>, Gone> {
        let mut said = Vec::new();
        self.decode(&mut said)?;
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            if self.reading != Reading::Open {
                break;
            }
            match recv(self.socket.as_fd(), buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.reading = Reading::Ended;
                    said.push(Said::Left);
                }
                Ok((got, _)) => {
                    self.decoder.push(buffer.get(..got).unwrap_or_default());
                    self.decode(&mut said)?;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                Err(_) => return Err(Gone),
            }
        }
        Ok(said)
    }

    fn decode(&mut self, said: &mut Vec<Said>) -> Result<(), Gone> {
        if self.encoding == Encoding::Text {
            return Ok(());
        }
        // Whoever does not speak the protocol is sent away.
        while let Some((kind, payload)) = self.decoder.pop().map_err(|_| Gone)? {
            match (kind, payload) {
                (Kind::Stdin, []) => said.push(Said::EndOfInput),
                (Kind::Stdin, bytes) => said.push(Said::Input(bytes.to_vec())),
                (Kind::Resize, &[r0, r1, c0, c1]) => {
                    said.push(Said::Resize {
                        rows: u16::from_le_bytes([r0, r1]),
                        columns: u16::from_le_bytes([c0, c1]),
                    });
                }
                (Kind::Signal, &[number]) => said.push(Said::Signal(i32::from(number))),
                _ => return Err(Gone),
            }
        }
        Ok(())
    }
}
