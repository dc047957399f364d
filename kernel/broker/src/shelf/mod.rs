//! The shelf: a process that holds what must outlive a broker, and does nothing else.
//!
//! A broker that is killed takes its sockets, pidfds and descriptors with it, unless somebody holds copies. The shelf
//! does: of every listening socket, every connection, the pidfd of every bound process, every control page, every
//! channel's lines (of a proxied channel all its objects), each under a key and with a [`record::Record`]. So while
//! there is no broker nobody notices: connections stay open, requests wait in them. The next broker takes everything
//! back ([`Shelf::connect`]) and is the same broker to everybody: nothing is bound anew, nobody has to prove who he is,
//! and no process number can have changed its owner, because the pidfd is the one of the binding.
//!
//! States of a shelf: `Waiting` for a broker, `Serving` one. It serves the next one only when the connection of the
//! last has ended, so that everything a killed broker said was taken before its successor asks.
//!
//! A record is on the shelf before anybody is told of what it says. Which of two brokers answers a request is settled
//! by the request's number: see `event_loop/adopting.rs`.
//!
//! **Versions.** A shelf is of the version of the binary that started it, and what lies on it of the version of the
//! broker that put it there; both outlive daemons. The first packet of a connection is `HELLO` with the versions of the
//! conversation that the broker speaks; the shelf answers with the newest that both speak, or with its own. A shelf
//! that closes the connection instead is of version 1, which has no greeting. What the records mean has a version of
//! its own, which lies among them ([`VERSION_KEY`]); without it, it is 1. A broker speaks and reads its own version and
//! the one before. When there is none in common nothing is taken: the daemon starts a new shelf and replaces the
//! servers, as when the shelf died too.
//!
//! Not here: starting the process (`node/dvsd`), what the records mean to a broker (`event_loop/`).

pub(crate) mod outgoing;
pub(crate) mod record;
mod serve;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use abi::{DcId, Endpoint};
use rustix::event::{PollFd, PollFlags, Timespec};

use record::{Home, Record};
pub use serve::serve;
pub use versions::Versions;

/// A shelf answers at once; before that it only reads what an ended broker left in its socket.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of one packet: a key and a record. The longest record lists the peers of one endpoint by number.
const PACKET_BYTES_MAX: usize = 64 << 10;
/// Records of one shelf: containers, connections, bindings and channels of a node, all far below.
const RECORDS_MAX: usize = 1 << 20;

/// What a packet says, in its first byte.
mod op {
    /// A key and a record; descriptors come along. Replaces what the key held.
    pub const PUT: u8 = 1;
    /// A key.
    pub const DROP: u8 = 2;
    /// The beginning of keys.
    pub const DROP_ALL: u8 = 3;
    /// Everything is wanted.
    pub const TAKE: u8 = 4;
    /// Answer: one record with its descriptors.
    pub const HELD: u8 = 5;
    /// Answer: that was all.
    pub const END: u8 = 6;
    /// The oldest and the newest version that the broker speaks.
    pub const HELLO: u8 = 7;
    /// Answer: in this version it goes on.
    pub const WELCOME: u8 = 8;
    /// Answer: there is none in common; the oldest and the newest that the shelf speaks.
    pub const OTHER_VERSION: u8 = 9;
}

/// Of a shelf that knows no greeting.
const UNGREETED: u8 = 1;
/// The conversation, as a broker of this source speaks it. Version 2 differs from version 1 by the greeting.
const SPOKEN: Versions = versions::SHELF.speaks;
const _: () = assert!(SPOKEN.oldest < SPOKEN.newest, "a broker speaks with a shelf of the version before");
/// The records, as a broker of this source reads them. It writes the newest.
const READ: Versions = versions::SHELF_RECORDS.speaks;
/// Where the version of the records lies: one byte, not a record.
const VERSION_KEY: &str = "version";
/// Before that byte, so that it is no record to who looks for one.
const VERSION_MARK: u8 = b'v';

#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    #[error("no shelf listens at {}", .path.display())]
    NotThere {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("the shelf ended")]
    Ended,
    #[error("the shelf did not answer within {ANSWER_LIMIT:?}")]
    Silent,
    #[error("the conversation with the shelf broke")]
    Conversation(#[source] io::Error),
    #[error("the shelf said something that makes no sense")]
    Confused,
    #[error("the shelf speaks versions {} to {}, this broker {} to {}", shelf.oldest, shelf.newest, SPOKEN.oldest, SPOKEN.newest)]
    OtherVersion { shelf: Versions },
    #[error("what lies on the shelf is of version {records}, this broker reads {} to {}", READ.oldest, READ.newest)]
    OtherRecords { records: u8 },
}

/// A connection to a shelf, with what it held when it was made: [`crate::BrokerConfig::shelf`].
#[derive(Debug)]
pub struct Shelf {
    pub(crate) socket: OwnedFd,
    pub(crate) held: Vec<(Record, Vec<OwnedFd>)>,
}

impl ShelfError {
    fn of(cause: io::Error) -> ShelfError {
        match cause.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ShelfError::Ended,
            _ => ShelfError::Conversation(cause),
        }
    }
}

impl Shelf {
    /// Connects to the shelf that serves at `path` and takes what it holds.
    pub fn connect(path: &Path) -> Result<Shelf, ShelfError> {
        let until = Instant::now() + ANSWER_LIMIT;
        let mut buffer = vec![0; PACKET_BYTES_MAX + 1];
        let socket = match greet(path, &mut buffer, until) {
            // It knows no greeting; one that ended in this moment is not there.
            Err(ShelfError::Ended) if SPOKEN.includes(UNGREETED) => call(path)?,
            greeted => greeted?,
        };
        say(&socket, &[op::TAKE])?;
        let (mut held, mut version) = (Vec::new(), 1);
        loop {
            let received = hear(&socket, &mut buffer, until)?;
            match buffer.get(..received.bytes).and_then(|packet| packet.split_first()) {
                None => return Err(ShelfError::Ended),
                Some((&op::END, _)) if READ.includes(version) => break,
                Some((&op::END, _)) => return Err(ShelfError::OtherRecords { records: version }),
                Some((&op::HELD, &[VERSION_MARK, records])) => version = records,
                Some((&op::HELD, text)) if held.len() < RECORDS_MAX => match Record::from_bytes(text) {
                    Some(record) => held.push((record, received.descriptors)),
                    // Its owner will find its connection closed.
                    None => tracing::error!("a record on the shelf is not understood"),
                },
                Some(_) => return Err(ShelfError::Confused),
            }
        }
        let key = VERSION_KEY.as_bytes();
        say(&socket, &[&[op::PUT, key.len() as u8], key, &[VERSION_MARK, READ.newest]].concat())?;
        Ok(Shelf { socket, held })
    }

    /// Endpoints of this node whose processes an earlier broker had bound.
    pub fn local_endpoints(&self) -> impl Iterator<Item = (DcId, Endpoint)> {
        self.held.iter().filter_map(|(record, _)| match record {
            Record::Binding { dc, endpoint, home: Home::Local { .. }, .. } => {
                Some((DcId(*dc), Endpoint::new(*endpoint)?))
            }
            _ => None,
        })
    }
}

fn call(path: &Path) -> Result<OwnedFd, ShelfError> {
    sys::seqpacket::connect(path).map_err(|cause| ShelfError::NotThere { path: path.to_owned(), cause })
}

/// A connection on which both speak the same version.
fn greet(path: &Path, buffer: &mut [u8], until: Instant) -> Result<OwnedFd, ShelfError> {
    let socket = call(path)?;
    say(&socket, &[op::HELLO, SPOKEN.oldest, SPOKEN.newest])?;
    let received = hear(&socket, buffer, until)?;
    match buffer.get(..received.bytes) {
        None | Some([]) => Err(ShelfError::Ended),
        Some(&[op::WELCOME, version]) if SPOKEN.includes(version) => Ok(socket),
        Some(&[op::OTHER_VERSION, oldest, newest]) => {
            Err(ShelfError::OtherVersion { shelf: Versions { oldest, newest } })
        }
        Some(_) => Err(ShelfError::Confused),
    }
}

fn say(socket: &OwnedFd, packet: &[u8]) -> Result<(), ShelfError> {
    sys::seqpacket::send(socket, packet, &[] as &[OwnedFd]).map_err(ShelfError::of)
}

fn hear(socket: &OwnedFd, buffer: &mut [u8], until: Instant) -> Result<sys::seqpacket::Received, ShelfError> {
    loop {
        if !await_ready(socket, PollFlags::IN, Some(until)) {
            return Err(ShelfError::Silent);
        }
        match sys::seqpacket::receive(socket, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received.map_err(ShelfError::of),
        }
    }
}

/// Waits until the socket is ready. False when `until` has passed.
fn await_ready(socket: &OwnedFd, flags: PollFlags, until: Option<Instant>) -> bool {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(86_400) as i64,
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match rustix::event::poll(&mut [PollFd::new(socket, flags)], limit.as_ref()) {
            Ok(0) => return false,
            Err(rustix::io::Errno::INTR) => {}
            // An error shows at the next read or write.
            Ok(_) | Err(_) => return true,
        }
    }
}

#[cfg(test)]
mod tests;
