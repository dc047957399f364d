//! What the gate asks of the file system, whoever answers: the fs server over a ring ([`session`]), or a model in a
//! test.
//!
//! The shape is that of a ring: operations go in, completions come out in any order. A backend keeps an operation until
//! it has its completion, across restarts of the server: the gate never repeats by itself. Only [`Event::SessionLost`]
//! and [`Event::Outdated`] are the gate's to act on.

pub mod session;
mod volume;

use std::io;
use std::os::fd::BorrowedFd;

use libvos::Fenced;
use vos_api::Encoded;

/// One operation of `vos_api::fs`.
#[derive(Clone, Copy, Debug)]
pub struct Op<'a> {
    pub op: u16,
    pub flags: u16,
    pub args: [u64; 3],
    pub out: &'a [u8],
    pub in_capacity: u32,
    /// Number in the session, for operations that change something. The gate chooses it, because it writes it down
    /// first.
    pub sequence: Option<u64>,
}

impl<'a> Op<'a> {
    pub fn of(asked: &'a Encoded<'_>, in_capacity: u32, sequence: Option<u64>) -> Op<'a> {
        let Encoded { op, flags, args, ref data } = *asked;
        Op { op, flags, args, out: data, in_capacity, sequence }
    }
}

/// Names an operation in flight. Never used twice by one backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

#[derive(Debug)]
pub struct Done<D> {
    pub token: Token,
    /// 0 or a Linux errno.
    pub status: u32,
    pub results: [u64; 4],
    pub data: D,
}

#[derive(Debug)]
pub enum Event<D> {
    /// Never with `ESTALE`, which is said of the session and not of a file.
    Done(Done<D>),
    /// The session goes on no further as it is. Operations in flight get no completion.
    SessionLost(Loss),
    /// What this gate was told of placements is old; the session goes on with a gate that knows better.
    Outdated(Fenced),
}

/// What became of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loss {
    /// It can be begun once more, as one that is revived.
    Fenced,
    /// Nobody knows what it did.
    Forgotten,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Take completions, then try again.
    #[error("too many operations are in flight")]
    Full,
    #[error("the operation is longer than a transfer")]
    TooLong,
}

#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    #[error("the session with the fs server could not be begun")]
    Begin(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("waiting for the fs server failed")]
    Wait(#[source] io::Error),
}

/// With which session a backend begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    pub session: u64,
    /// The lowest number that was never used.
    pub next_sequence: u64,
    /// Every operation up to this number has been answered.
    pub acknowledged: u64,
    /// It was fenced, and nothing is kept that a lease covered.
    pub revives: bool,
}

pub trait Backend {
    type Data: ReplyData;

    /// Begins or continues a session. Must not wait for the server: operations submitted meanwhile are kept.
    fn begin(&mut self, start: Start) -> Result<(), BackendError>;

    fn submit(&mut self, op: &Op<'_>) -> Result<Token, Refused>;

    /// The next thing that happened, if any.
    fn poll(&mut self) -> Option<Event<Self::Data>>;

    /// The server takes back what it told of this inode, `None`: of all. What was read by its word and has not arrived
    /// must be asked for again.
    fn recalled(&mut self, ino: Option<u64>);

    /// Whether the server is within reach, as far as one knows.
    fn is_up(&self) -> bool {
        true
    }

    /// Readable when [`Backend::poll`] may have something; only asked after [`Backend::may_sleep`] said yes.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Makes what was submitted visible and arms the descriptor. `false`: something is there already, poll again.
    fn may_sleep(&mut self) -> bool;

    /// The sleep is over.
    fn awake(&mut self);
}

/// Reply data in place. The other side may change it at any time: copy what is parsed.
pub trait ReplyData {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the first bytes into `into`; `false` when there are fewer.
    fn copy_to(&self, into: &mut [u8]) -> bool;

    /// Writes `head` and the first `bytes` of the data with one system call.
    fn write_after(&self, head: &[u8], bytes: usize, to: BorrowedFd<'_>) -> io::Result<()>;

    fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        if self.copy_to(&mut bytes) { bytes } else { Vec::new() }
    }
}

/// Data in memory of our own, as tests have it.
impl ReplyData for Vec<u8> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn copy_to(&self, into: &mut [u8]) -> bool {
        self.get(..into.len()).map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    fn write_after(&self, head: &[u8], bytes: usize, to: BorrowedFd<'_>) -> io::Result<()> {
        let data = self.get(..bytes).unwrap_or(self);
        rustix::io::writev(to, &[io::IoSlice::new(head), io::IoSlice::new(data)])?;
        Ok(())
    }
}
