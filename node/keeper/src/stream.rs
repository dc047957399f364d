//! Who watches a program: a socket that takes output as frames or as plain text, with a bounded queue.
//!
//! How a slow client is treated is its [`Audience`]. Whoever runs a program in the foreground is its pipe or its
//! screen: the program waits for them, as it would for a real one, so that nothing of `dvs run DC -- cat big > file` is
//! lost. Everybody else is only a spectator: one whose (much longer) queue is full is sent away, the program and its
//! log go on.
//!
//! A client with a session (`mgmt_api::stream::session`) may lose its connection and come back: it is `away` until
//! then.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use mgmt_api::stream::session::{AWAY_LIMIT, Incoming, Keeping, Miscounted, Outgoing, WINDOW_BYTES};
use mgmt_api::stream::{Decoder, Kind, PAYLOAD_BYTES_MAX};
use mgmt_api::{LogForm, LogStream};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::log::{self, Piece, now_ms};
use crate::poll::{Interest, Watched};

/// Bytes of output that may wait for a foreground client before the program waits too.
pub const QUEUE_BYTES_MAX: usize = 256 * 1024;
/// Bytes of output that may wait for a spectator before it is sent away: a burst must not cost it its place.
const SPECTATOR_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(SPECTATOR_BYTES_MAX >= 2 * WINDOW_BYTES, "what a spectator has not confirmed yet is no slowness");
/// Input that a client of a session may have said unconfirmed: its window, and signals and sizes beside.
const UNCONFIRMED_BYTES_MAX: usize = 2 * WINDOW_BYTES;
const READ_BYTES: usize = 32 * 1024;
/// Reads per readiness, so that one busy client does not keep the loop.
const READS_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    Frames,
    /// Standard output and error as they come, as a log tells them; input is ignored.
    Log(LogForm),
}

/// In which stream of a log it is.
pub fn log_stream(kind: Kind) -> Option<LogStream> {
    match kind {
        Kind::Stdout => Some(LogStream::Stdout),
        Kind::Stderr => Some(LogStream::Stderr),
        _ => None,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audience {
    /// The program waits for this client.
    Foreground,
    /// This client is sent away when it is too slow.
    Spectator,
}

/// A connection is done with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// All that there was to say is said, and confirmed where that is usual.
    Done,
    /// It broke. A client that has a session may come back.
    Broken,
    /// The client does not speak the protocol.
    Misspoke,
}

/// What a client said.
#[derive(Debug)]
pub enum Said {
    Input(Vec<u8>),
    EndOfInput,
    /// The client closed its side, without a word.
    Left,
    /// In a session: the connection broke.
    Parted,
    /// In a session: it does not come back.
    Farewell,
    Resize {
        rows: u16,
        columns: u16,
    },
    Signal(i32),
}

/// Which client it is when it comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u64);

/// What a client with a session has said, and where it is.
struct Session {
    token: Token,
    incoming: Incoming,
    /// The program does not take its input: no confirmation until it does.
    held: bool,
    away_until: Option<Instant>,
}

pub struct Client {
    pub number: u32,
    pub patience: Audience,
    encoding: Encoding,
    /// None: away.
    socket: Option<Watched>,
    session: Option<Session>,
    decoder: Decoder,
    outgoing: Outgoing,
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
    pub fn new(number: u32, socket: Watched, encoding: Encoding, patience: Audience, pending: &[u8]) -> Client {
        let mut decoder = Decoder::default();
        decoder.push(pending);
        Client {
            number,
            patience,
            encoding,
            socket: Some(socket),
            session: None,
            decoder,
            outgoing: Outgoing::new(Keeping::UntilSent),
            reading: Reading::Open,
            closing: false,
        }
    }

    /// Gives it a session; before anything is said to it.
    pub fn with_session(self, token: Option<Token>) -> Client {
        let Some(token) = token else { return self };
        let session = Session { token, incoming: Incoming::default(), held: false, away_until: None };
        let mut outgoing = Outgoing::new(Keeping::UntilConfirmed);
        outgoing.open(Some(0));
        Client { session: Some(session), outgoing, ..self }
    }

    pub fn has_session(&self, token: Token) -> bool {
        self.session.as_ref().is_some_and(|session| session.token == token)
    }

    /// It is back, on a new connection, and has heard so many of our frames.
    pub fn resume(&mut self, socket: Watched, heard: u64, pending: &[u8]) -> Result<(), Miscounted> {
        let Some(session) = &mut self.session else { return Ok(()) };
        self.outgoing.resume(heard, Some(session.incoming.heard()))?;
        session.away_until = None;
        // The last one may have broken in the middle of a frame.
        self.decoder = Decoder::default();
        self.decoder.push(pending);
        self.socket = Some(socket);
        Ok(())
    }

    /// Its connection is no use any more. Whether it may come back.
    pub fn part(&mut self, gone: Gone) -> Return {
        self.socket = None;
        match &mut self.session {
            Some(session) if gone == Gone::Broken => {
                session.away_until.get_or_insert_with(|| Instant::now() + AWAY_LIMIT);
                Return::Possible
            }
            _ => Return::Excluded,
        }
    }

    /// Until when it is waited for.
    pub fn away_until(&self) -> Option<Instant> {
        self.session.as_ref().and_then(|session| session.away_until)
    }

    /// Adds output (or a last word) to the queue.
    pub fn push(&mut self, kind: Kind, bytes: &[u8]) {
        match self.encoding {
            Encoding::Frames => {
                bytes.chunks(PAYLOAD_BYTES_MAX).for_each(|part| self.outgoing.say(kind, part));
            }
            Encoding::Log(form) => {
                let Some(stream) = log_stream(kind) else { return };
                let piece = Piece { time_ms: Some(now_ms()), stream, bytes: bytes.to_vec() };
                self.outgoing.say_plain(&log::encode(vec![piece], form));
            }
        }
    }

    /// Adds what was encoded before.
    pub fn say(&mut self, bytes: &[u8]) {
        self.outgoing.say_plain(bytes);
    }

    /// Whether no more output should be added for now.
    pub fn is_full(&self) -> bool {
        let limit = match (self.patience, &self.session) {
            (Audience::Foreground, None) => QUEUE_BYTES_MAX,
            (Audience::Foreground, Some(_)) => WINDOW_BYTES,
            (Audience::Spectator, _) => SPECTATOR_BYTES_MAX,
        };
        self.outgoing.kept_bytes() >= limit
    }

    /// Whether the client will say nothing more.
    pub fn is_silent(&self) -> bool {
        self.reading == Reading::Ended
    }

    /// When the queue is empty the client is done with.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Stops or resumes taking input from the client. One with a session is heard on, and waits for our confirmation.
    pub fn hold_input(&mut self, hold: bool) {
        if let Some(session) = &mut self.session {
            session.held = hold;
            return self.confirm_if_due();
        }
        self.reading = match (self.reading, hold) {
            (Reading::Ended, _) => Reading::Ended,
            (_, true) => Reading::Held,
            (_, false) => Reading::Open,
        };
    }

    fn confirm_if_due(&mut self) {
        if let Some(session) = self.session.as_mut().filter(|session| !session.held && session.incoming.is_due()) {
            self.outgoing.say(Kind::Heard, &session.incoming.confirm());
        }
    }

    /// Sends what the socket takes now and sets what to wait for.
    pub fn flush(&mut self) -> Result<(), Gone> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        while !self.outgoing.is_sent() {
            match send(socket.as_fd(), self.outgoing.unsent(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => self.outgoing.advance(sent),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                Err(_) => return Err(Gone::Broken),
            }
        }
        if self.closing && self.outgoing.is_settled() {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Write);
            return Err(Gone::Done);
        }
        let interest = Interest::of(self.reading == Reading::Open, !self.outgoing.is_sent());
        socket.set(interest).map_err(|_: io::Error| Gone::Broken)
    }

    /// Takes what the client said.
    pub fn listen(&mut self) -> Result<Vec<Said>, Gone> {
        let mut said = Vec::new();
        self.decode(&mut said)?;
        let mut buffer = vec![0; READ_BYTES];
        for _ in 0..READS_MAX {
            let Some(socket) = self.socket.as_ref().filter(|_| self.reading == Reading::Open) else { break };
            match recv(socket.as_fd(), buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((0, _)) if self.session.is_none() => {
                    self.reading = Reading::Ended;
                    said.push(Said::Left);
                }
                Ok((got, _)) if got > 0 => {
                    self.decoder.push(buffer.get(..got).unwrap_or_default());
                    self.decode(&mut said)?;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => (),
                // What was said before counts: it will not be said again.
                _ if self.session.is_some() => {
                    said.push(Said::Parted);
                    break;
                }
                _ => return Err(Gone::Broken),
            }
        }
        self.confirm_if_due();
        Ok(said)
    }

    fn decode(&mut self, said: &mut Vec<Said>) -> Result<(), Gone> {
        if self.encoding != Encoding::Frames {
            return Ok(());
        }
        // Whoever does not speak the protocol is sent away.
        while let Some((kind, payload)) = self.decoder.pop().map_err(|_| Gone::Misspoke)? {
            if let Some(session) = &mut self.session {
                session.incoming.count(payload.len());
                if session.incoming.unconfirmed_bytes() > UNCONFIRMED_BYTES_MAX {
                    return Err(Gone::Misspoke);
                }
            }
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
                (Kind::Leave, []) => said.push(Said::Farewell),
                (Kind::Heard, bytes) => {
                    let heard = bytes.try_into().map(u64::from_le_bytes).map_err(|_| Gone::Misspoke)?;
                    self.outgoing.confirm(heard).map_err(|_| Gone::Misspoke)?;
                }
                _ => return Err(Gone::Misspoke),
            }
        }
        Ok(())
    }
}

/// Whether a client whose connection ended may come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Return {
    Possible,
    Excluded,
}
