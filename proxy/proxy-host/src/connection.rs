//! One connection: a stream, its encryption, and what was read of it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use abi::NodeId;
use ipc_shm::{SentPart, send_parts};
use proxy_link::{Bodies, InBuffer, OutPiece, Peer};
use sys::eventfd::{Poller, WriteInterest};

use crate::carriers::Carrier;
use crate::error::CutReason;
use crate::limits;
use crate::local::Local;
use crate::secure::{Flow, Inward, Session, unless_blocked};
use crate::transport::Stream;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// We dial this node; the stream does not stand yet.
    Dialling(NodeId),
    /// Accepted; HELLO has not come.
    Stranger,
    /// It carries the link with this node.
    Joined(NodeId),
}

pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) carrier: Carrier,
    pub(crate) session: Session,
    pub(crate) input: InBuffer,
    pub(crate) stage: Stage,
    pub(crate) since: Duration,
    interest: WriteInterest,
    /// Data came straight to its place: what follows it is read in small pieces, up to the next head.
    reads_little: bool,
}

impl Connection {
    pub(crate) fn new(
        stream: Box<dyn Stream>,
        carrier: Carrier,
        session: Session,
        stage: Stage,
        since: Duration,
    ) -> Connection {
        Connection {
            stream,
            carrier,
            session,
            input: InBuffer::new(),
            stage,
            since,
            interest: WriteInterest::None,
            reads_little: false,
        }
    }

    /// The node whose link stands or falls with this connection.
    pub(crate) fn node(&self) -> Option<NodeId> {
        match self.stage {
            Stage::Dialling(node) | Stage::Joined(node) => Some(node),
            Stage::Stranger => None,
        }
    }

    /// Reads what is there, as far as it is taken: into the buffer, and to the `link` what need not lie there first.
    /// Adds what came to `bytes`.
    pub(crate) fn read(
        &mut self,
        mut link: Option<(&mut Peer<Local>, Duration)>,
        bytes: &mut usize,
    ) -> Result<Flow, CutReason> {
        if let (Session::Plain, Some((peer, now))) = (&self.session, &mut link)
            && let Some(socket) = self.stream.socket()
        {
            let mut inward = InPlace { input: &mut self.input, reads_little: &mut self.reads_little };
            return inward.read(socket, peer, *now, bytes);
        }
        let mut inward = Inward::new(&mut self.input, link);
        let flow = self.session.read(&mut self.stream, &mut inward);
        *bytes += inward.bytes();
        flow
    }

    /// How much of `out` was taken.
    pub(crate) fn write(&mut self, out: &[u8]) -> Result<usize, CutReason> {
        self.session.write(&mut self.stream, out)
    }

    /// Whether long data is taken from where it lies.
    pub(crate) fn bodies(&self) -> Bodies {
        let is_bare = matches!(self.session, Session::Plain) && self.stream.socket().is_some();
        if is_bare { Bodies::InPlace } else { Bodies::Copied }
    }

    /// Sends what the link has: how much of it was taken.
    pub(crate) fn send(&mut self, peer: &Peer<Local>) -> Result<usize, CutReason> {
        match self.stream.socket() {
            Some(socket) if peer.has_data_in_place() => {
                let parts = peer.pieces().map(|piece| match piece {
                    OutPiece::Bytes(bytes) => SentPart::Bytes(bytes),
                    OutPiece::InArena { local, at, bytes } => {
                        SentPart::Range { arena: local.channel.arena(), offset: at as usize, bytes: bytes as usize }
                    }
                });
                Ok(unless_blocked(send_parts(socket, parts))?.unwrap_or(0))
            }
            _ => self.write(peer.outgoing().pending()),
        }
    }

    /// Asks to be told when the stream takes bytes again, or not any more. One without a descriptor is asked in every
    /// round.
    pub(crate) fn set_interest(
        &mut self,
        poller: &Poller,
        token: u64,
        interest: WriteInterest,
    ) -> Result<(), CutReason> {
        if interest != self.interest
            && let Some(descriptor) = self.stream.descriptor()
        {
            poller.set_writable_interest(descriptor, token, interest)?;
            self.interest = interest;
        }
        Ok(())
    }
}

/// Reads of a socket over which nothing is laid.
struct InPlace<'a> {
    input: &'a mut InBuffer,
    reads_little: &'a mut bool,
}

impl InPlace<'_> {
    /// Reads once: long data that is due goes to its place, the rest into the buffer.
    fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        peer: &mut Peer<Local>,
        now: Duration,
        bytes: &mut usize,
    ) -> Result<Flow, CutReason> {
        let is_empty = self.input.waiting().is_empty();
        let due = peer.due().filter(|due| is_empty && due.bytes >= limits::READ_IN_PLACE_MIN);
        let most = if due.is_some() || *self.reads_little { limits::READ_BEHIND_BYTES } else { usize::MAX };
        let free = self.input.space();
        let most = free.len().min(most);
        let space = free.get_mut(..most).unwrap_or(&mut []);
        let due_bytes = due.as_ref().map_or(0, |due| due.bytes as usize);
        let wanted = due_bytes + space.len();
        if wanted == 0 {
            return Ok(Flow::Full);
        }
        let read = match &due {
            Some(due) => due.local.channel.arena().readv_with_rest(socket, due.at as usize, due_bytes, space),
            None => rustix::io::read(socket, space).map_err(io::Error::from),
        };
        let count = match unless_blocked(read)? {
            None => return Ok(Flow::Dry),
            Some(0) => return Err(CutReason::Closed),
            Some(count) => count,
        };
        *self.reads_little = due.is_some();
        let data = count.min(due_bytes);
        if data > 0 {
            peer.data_came(data as u32, now);
        }
        self.input.filled(count - data);
        *bytes += count;
        // A short read means that the socket was emptied.
        Ok(if count < wanted { Flow::Dry } else { Flow::Full })
    }
}
