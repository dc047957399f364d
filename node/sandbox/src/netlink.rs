//! A routing socket: messages with attributes out, acknowledgements and dumps in.
//!
//! Seven kinds of message are all we need, so they are written here by hand, checked, against `linux/rtnetlink.h`; a
//! general library would be larger than this crate and does not offer the classic filter programs of `filter`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// Requests sent at once: each acknowledgement takes about 800 bytes of the socket's buffer (212,992 bytes).
const BATCH_MAX: usize = 128;
/// Bytes of requests sent at once.
const BATCH_BYTES_MAX: usize = 128 * 1024;
/// A dump is repeated when the table changed meanwhile, this often.
const DUMP_TRIES: usize = 16;
/// The kernel's dumps come in pieces of at most 32 KiB.
const RECEIVE_BYTES: usize = 64 * 1024;

const HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const FLAG_REQUEST: u16 = 0x1;
const FLAG_ACK: u16 = 0x4;
const FLAG_DUMP: u16 = 0x300;
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;
const ATTRIBUTE_NESTED: u16 = 0x8000;
const ATTRIBUTE_KIND_MASK: u16 = 0x3fff;

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("could not open a routing socket")]
    Open(#[source] io::Error),
    #[error("the routing socket failed")]
    Socket(#[source] io::Error),
    #[error("the kernel refused to {what}")]
    Refused {
        what: String,
        #[source]
        cause: io::Error,
    },
    #[error("the kernel's answer is not what the routing protocol says")]
    Malformed,
    #[error("the kernel's tables changed during each of {DUMP_TRIES} readings")]
    Unsteady,
}

impl NetlinkError {
    /// The kernel's reason, when it refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            NetlinkError::Refused { cause, .. } => cause.raw_os_error(),
            _ => None,
        }
    }
}

/// What to do when the object is, or is not, there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Fails when it exists.
    Create,
    /// Makes or overwrites it.
    Replace,
    /// Changes or deletes what exists.
    Change,
}

/// One request under construction.
#[derive(Debug)]
pub struct Request {
    bytes: Vec<u8>,
    what: String,
}

impl Request {
    /// `what` completes "the kernel refused to …"; `head` is the fixed part of the message.
    pub fn new(kind: u16, mode: Mode, head: &[u8], what: impl Into<String>) -> Request {
        let flags = match mode {
            Mode::Create => 0x400 | 0x200,
            Mode::Replace => 0x400 | 0x100,
            Mode::Change => 0,
        };
        Request::with_flags(kind, FLAG_REQUEST | FLAG_ACK | flags, head, what.into())
    }

    fn with_flags(kind: u16, flags: u16, head: &[u8], what: String) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(head);
        let mut request = Request { bytes, what };
        request.pad();
        request
    }

    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Request {
        self.bytes.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
        self
    }

    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Request {
        self.attribute(kind, &[value])
    }

    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Request {
        self.attribute(kind, &value.to_ne_bytes())
    }

    pub fn text(&mut self, kind: u16, value: &str) -> &mut Request {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes)
    }

    /// Attributes within an attribute.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Request)) -> &mut Request {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | ATTRIBUTE_NESTED).to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.write_at(start, &length.to_ne_bytes());
        self
    }

    /// A fixed part inside a nested attribute.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Request {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn seal(&mut self, sequence: u32) {
        let length = self.bytes.len() as u32;
        self.write_at(0, &length.to_ne_bytes());
        self.write_at(8, &sequence.to_ne_bytes());
    }

    #[allow(
        clippy::indexing_slicing,
        reason = "the head and the beginning of an attribute were put before they are known"
    )]
    fn write_at(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// A routing socket of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens one in the calling thread's namespace; it stays there whoever uses it.
    pub fn open() -> Result<Socket, NetlinkError> {
        // No protocol number is 0, the one of NETLINK_ROUTE.
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map(|fd| Socket { fd, sequence: 0 })
            .map_err(|cause| NetlinkError::Open(cause.into()))
    }

    /// One request; waits for the kernel's word.
    pub fn perform(&mut self, request: Request) -> Result<(), NetlinkError> {
        self.perform_all(vec![request])
    }

    /// Many requests in few system calls. All are carried out; the first refusal is reported.
    pub fn perform_all(&mut self, mut requests: Vec<Request>) -> Result<(), NetlinkError> {
        let mut outcome = Ok(());
        let mut done = 0;
        while done < requests.len() {
            let (mut batch, first, begin) = (Vec::new(), self.sequence.wrapping_add(1), done);
            for request in requests.iter_mut().skip(done).take(BATCH_MAX) {
                if !batch.is_empty() && batch.len() + request.bytes.len() > BATCH_BYTES_MAX {
                    break;
                }
                self.sequence = self.sequence.wrapping_add(1);
                request.seal(self.sequence);
                batch.extend_from_slice(&request.bytes);
                done += 1;
            }
            self.send(&batch)?;
            let refused = self.acknowledgements(first, done - begin)?;
            if let (Ok(()), Some((at, cause))) = (&outcome, refused) {
                let what = requests.get(begin + at).map(|request| request.what.clone()).unwrap_or_default();
                outcome = Err(NetlinkError::Refused { what, cause });
            }
        }
        outcome
    }

    /// Receives `count` acknowledgements; gives the first refusal with its place.
    fn acknowledgements(&self, first: u32, count: usize) -> Result<Option<(usize, io::Error)>, NetlinkError> {
        let (mut seen, mut refused) = (0, None);
        while seen < count {
            let bytes = self.receive()?;
            for message in messages(&bytes) {
                let message = message?;
                let at = message.sequence.wrapping_sub(first) as usize;
                if message.kind != NLMSG_ERROR || at >= count {
                    continue;
                }
                seen += 1;
                if let (Some(cause), None) = (message.refusal()?, &refused) {
                    refused = Some((at, cause));
                }
            }
        }
        Ok(refused)
    }

    /// Reads a whole table; `each` sees the body (fixed part and attributes) of every message of kind `answer`.
    pub fn dump(
        &mut self,
        kind: u16,
        head: &[u8],
        answer: u16,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), NetlinkError> {
        for _ in 0..DUMP_TRIES {
            let mut request = Request::with_flags(kind, FLAG_REQUEST | FLAG_DUMP, head, "list a table".into());
            self.sequence = self.sequence.wrapping_add(1);
            request.seal(self.sequence);
            self.send(&request.bytes)?;
            let mut found = Vec::new();
            if self.collect(answer, &mut found)? {
                found.iter().for_each(|body| each(body));
                return Ok(());
            }
        }
        Err(NetlinkError::Unsteady)
    }

    /// False when the table changed while it was read.
    fn collect(&self, answer: u16, found: &mut Vec<Vec<u8>>) -> Result<bool, NetlinkError> {
        let mut steady = true;
        loop {
            let bytes = self.receive()?;
            for message in messages(&bytes) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                steady &= message.flags & FLAG_DUMP_INTERRUPTED == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(steady),
                    NLMSG_ERROR => {
                        if let Some(cause) = message.refusal()? {
                            return Err(NetlinkError::Refused { what: "list a table".into(), cause });
                        }
                    }
                    kind if kind == answer => found.push(message.body.to_vec()),
                    _ => (),
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), NetlinkError> {
        send(&self.fd, bytes, SendFlags::empty()).map(|_| ()).map_err(|cause| NetlinkError::Socket(cause.into()))
    }

    fn receive(&self) -> Result<Vec<u8>, NetlinkError> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            match recv(&self.fd, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((got, whole)) if whole <= buffer.len() => {
                    buffer.truncate(got);
                    return Ok(buffer);
                }
                Ok(_) => return Err(NetlinkError::Malformed),
                Err(Errno::INTR) => (),
                Err(cause) => return Err(NetlinkError::Socket(cause.into())),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

impl Message<'_> {
    /// For an error message: the refusal, or `None` when it is an acknowledgement.
    fn refusal(&self) -> Result<Option<io::Error>, NetlinkError> {
        match read_u32(self.body, 0).ok_or(NetlinkError::Malformed)? as i32 {
            0 => Ok(None),
            negative => Ok(Some(io::Error::from_raw_os_error(negative.wrapping_neg()))),
        }
    }
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Message<'_>, NetlinkError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let parsed = parse_message(bytes);
        bytes = match &parsed {
            Some((_, rest)) => rest,
            None => &[],
        };
        Some(parsed.map(|(message, _)| message).ok_or(NetlinkError::Malformed))
    })
}

fn parse_message(bytes: &[u8]) -> Option<(Message<'_>, &[u8])> {
    let length = read_u32(bytes, 0)? as usize;
    let body = bytes.get(HEADER_BYTES..length)?;
    let message =
        Message { kind: read_u16(bytes, 4)?, flags: read_u16(bytes, 6)?, sequence: read_u32(bytes, 8)?, body };
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

/// The attributes in `bytes`: (kind, value). Ends at the first that is cut off.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(read_u16(bytes, 0)?);
        let kind = read_u16(bytes, 2)? & ATTRIBUTE_KIND_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_off_messages_and_attributes_are_errors_or_ends_not_panics() {
        let mut request = Request::new(16, Mode::Create, &[0; 16], "test");
        request.text(3, "eth0").nested(18, |info| {
            info.text(1, "veth");
        });
        request.seal(7);
        for length in 1..request.bytes.len() {
            let cut = &request.bytes[..length];
            assert!(messages(cut).any(|message| message.is_err()), "{length}");
            assert!(attributes(cut).count() < 64);
        }
        let whole: Vec<_> = messages(&request.bytes).collect();
        let body = whole[0].as_ref().expect("whole").body;
        let kinds: Vec<u16> = attributes(&body[16..]).map(|(kind, _)| kind).collect();
        assert_eq!(kinds, [3, 18]);
    }
}
