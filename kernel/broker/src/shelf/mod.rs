//! The shelf: a process that holds what must outlive a broker, and does nothing else.
//!
//! A broker that is killed takes its sockets, pidfds and descriptors with it, unless somebody holds copies. The shelf does:
//! of every listening socket, every connection, the pidfd of every bound process, every control page, every channel's lines
//! (of a proxied channel all its objects), each under a key and with a [`record::Record`]. So while there is no broker nobody
//! notices: connections stay open, requests wait in them. The next broker takes everything back ([`Shelf::connect`]) and is
//! the same broker to everybody: nothing is bound anew, nobody has to prove who he is, and no process number can have
//! changed its owner, because the pidfd is the one of the binding.
//!
//! States of a shelf: `Waiting` for a broker, `Serving` one. It serves the next one only when the connection of the last has
//! ended, so that everything a killed broker said was taken before its successor asks.
//!
//! A record is on the shelf before anybody is told of what it says. Which of two brokers answers a request is settled
//! by the request's number: see `engine/adopting.rs`.
//!
//! Not here: starting the process (`node/dvsd`), what the records mean to a broker (`engine/`).

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
}

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
}

/// A connection to a shelf, with what it held when it was made: [`crate::BrokerConfig::shelf`].
#[derive(Debug)]
pub struct Shelf {
    pub(crate) socket: OwnedFd,
    pub(crate) held: Vec<(Record, Vec<OwnedFd>)>,
}

impl Shelf {
    /// Connects to the shelf that serves at `path` and takes what it holds.
    pub fn connect(path: &Path) -> Result<Shelf, ShelfError> {
        let socket =
            sys::seqpacket::connect(path).map_err(|cause| ShelfError::NotThere { path: path.to_owned(), cause })?;
        sys::seqpacket::send(&socket, &[op::TAKE], &[] as &[OwnedFd]).map_err(ShelfError::Conversation)?;
        let mut held = Vec::new();
        let mut buffer = vec![0; PACKET_BYTES_MAX + 1];
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            if !await_ready(&socket, PollFlags::IN, Some(until)) {
                return Err(ShelfError::Silent);
            }
            let received = match sys::seqpacket::receive(&socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                received => received.map_err(ShelfError::Conversation)?,
            };
            match buffer.get(..received.bytes).and_then(|packet| packet.split_first()) {
                None => return Err(ShelfError::Ended),
                Some((&op::END, _)) => return Ok(Shelf { socket, held }),
                Some((&op::HELD, text)) if held.len() < RECORDS_MAX => match Record::from_bytes(text) {
                    Some(record) => held.push((record, received.descriptors)),
                    // Of a broker of another version: its owner will find its connection closed.
                    None => tracing::error!("a record on the shelf is not understood"),
                },
                Some(_) => return Err(ShelfError::Confused),
            }
        }
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
