//! One end of the control socket. A list that is too long for one message goes in portions.
//!
//! A portion has the number of its place and says whether more follow; the list is taken when the last has come, and
//! only whole. What the socket does not take waits here, at most one list, until the other end has read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sys::eventfd::{Poller, Trigger, WriteInterest};

/// Bytes of one message as it is received. A single entry that is longer is not sent.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Bytes from which on a list is divided: a fraction of what a socket holds by default.
const PORTION_BYTES_MAX: usize = 32 * 1024;
/// Entries of one list that came in portions: as many as a cluster has nodes.
const ENTRIES_MAX: usize = abi::limits::NODES_PER_CLUSTER as usize;
/// Messages read in one look, so that an end that never stops does not hold up the reader.
const LOOK_MESSAGES: usize = 64;
/// The end has one socket to watch.
const TOKEN: u64 = 0;

const _: () = assert!(PORTION_BYTES_MAX < MESSAGE_BYTES_MAX);

/// A message with a list that may be divided.
pub trait Portioned: Serialize + DeserializeOwned {
    /// Entries in its list.
    fn entries(&self) -> usize;
    /// The same kind of message with the entries from `at` on, which are taken out of this one, and nothing else.
    fn split_off(&mut self, at: usize) -> Self;
    /// Puts the entries of the next portion after its own.
    fn append(&mut self, next: Self);
}

/// What came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said<M> {
    Nothing,
    /// Nobody is at the other end any more.
    Gone,
    Message(M),
    /// Not a message of this protocol, for people.
    Nonsense(String),
}

#[derive(Serialize, Deserialize)]
struct Portion<M> {
    #[serde(default, skip_serializing_if = "is_first")]
    part: u32,
    /// It is not the last.
    #[serde(default, skip_serializing_if = "is_last")]
    more: bool,
    #[serde(flatten)]
    said: M,
}

fn is_first(part: &u32) -> bool {
    *part == 0
}

fn is_last(more: &bool) -> bool {
    !*more
}

/// See the module. `M` is what the other end says. Its descriptor is readable when there is something to receive, or
/// when the other end has read and more can be sent: either is done by [`End::receive`].
pub struct End<M> {
    socket: OwnedFd,
    poller: Poller,
    interest: WriteInterest,
    waiting: VecDeque<Vec<u8>>,
    /// A list of which portions came, and how many.
    begun: Option<(u32, M)>,
    buffer: Box<[u8]>,
}

impl<M: Portioned> End<M> {
    /// # Errors
    /// No descriptor.
    pub fn new(socket: OwnedFd) -> io::Result<End<M>> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let poller = Poller::new()?;
        poller.add(&socket, TOKEN, Trigger::Level)?;
        let buffer = vec![0; MESSAGE_BYTES_MAX].into_boxed_slice();
        Ok(End { socket, poller, interest: WriteInterest::None, waiting: VecDeque::new(), begun: None, buffer })
    }

    /// Nothing of an earlier message waits to be sent.
    pub fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends the message, or what of it the socket takes, and keeps the rest.
    ///
    /// # Errors
    /// `WouldBlock`: an earlier message still waits, and nothing of this one was taken. Anything else: the message is
    /// lost.
    pub fn say(&mut self, message: impl Portioned) -> io::Result<()> {
        if !self.has_room() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.waiting = portions(message)?;
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        while let Some(bytes) = self.waiting.front() {
            match sys::seqpacket::send(&self.socket, bytes, &[] as &[OwnedFd]) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.waiting.clear();
                    self.mind_room()?;
                    return Err(error);
                }
            }
        }
        self.mind_room()
    }

    fn mind_room(&mut self) -> io::Result<()> {
        let interest = if self.has_room() { WriteInterest::None } else { WriteInterest::Waiting };
        if interest != self.interest {
            self.poller.set_writable_interest(&self.socket, TOKEN, interest)?;
            self.interest = interest;
        }
        Ok(())
    }

    /// Sends what waits, then receives the next whole message, if there is one.
    pub fn receive(&mut self) -> Said<M> {
        if let Err(error) = self.send() {
            tracing::warn!("the rest of a list was not sent: {error}");
        }
        for _ in 0..LOOK_MESSAGES {
            let received = match sys::seqpacket::receive(&self.socket, &mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Said::Nothing,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return self.nonsense(format!("a message is longer than {MESSAGE_BYTES_MAX} bytes"));
                }
                Err(_) => return Said::Gone,
            };
            let portion = match self.buffer.get(..received.bytes) {
                None | Some([]) => return Said::Gone,
                Some(bytes) => serde_json::from_slice::<Portion<M>>(bytes),
            };
            match portion.map_err(|error| error.to_string()).and_then(|portion| self.join(portion)) {
                Ok(None) => {}
                Ok(Some(message)) => return Said::Message(message),
                Err(why) => return self.nonsense(why),
            }
        }
        Said::Nothing
    }

    /// The message, when this was its last portion.
    fn join(&mut self, Portion { part, more, said }: Portion<M>) -> Result<Option<M>, String> {
        let message = match (part, self.begun.take()) {
            // Whoever begins anew has given up what he had begun.
            (0, _) => said,
            (_, Some((parts, mut message))) if parts == part => {
                if message.entries() + said.entries() > ENTRIES_MAX {
                    return Err(format!("a list has more than {ENTRIES_MAX} entries"));
                }
                message.append(said);
                message
            }
            _ => return Err(format!("portion {part} of a list comes without those before it")),
        };
        if more {
            self.begun = Some((part.saturating_add(1), message));
            return Ok(None);
        }
        Ok(Some(message))
    }

    fn nonsense(&mut self, why: String) -> Said<M> {
        self.begun = None;
        Said::Nonsense(why)
    }
}

impl<M> AsFd for End<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

fn portions<M: Portioned>(message: M) -> io::Result<VecDeque<Vec<u8>>> {
    let mut divided = Vec::new();
    divide(message, &mut divided)?;
    let last = divided.len().saturating_sub(1);
    let numbered = divided.into_iter().enumerate();
    let encoded = numbered.map(|(index, said)| {
        let part = u32::try_from(index).unwrap_or(u32::MAX);
        Ok(serde_json::to_vec(&Portion { part, more: index < last, said })?)
    });
    encoded.collect()
}

fn divide<M: Portioned>(mut message: M, into: &mut Vec<M>) -> io::Result<()> {
    let (bytes, entries) = (serde_json::to_vec(&message)?.len(), message.entries());
    if bytes > PORTION_BYTES_MAX && entries > 1 {
        // Entries are of different lengths, so half full is aimed at.
        let some = (entries * PORTION_BYTES_MAX / (2 * bytes)).max(1);
        while message.entries() > some {
            let rest = message.split_off(some);
            divide(std::mem::replace(&mut message, rest), into)?;
        }
        return divide(message, into);
    }
    // With room for the number.
    if bytes > MESSAGE_BYTES_MAX - PORTION_BYTES_MAX && entries == 1 {
        tracing::warn!("an entry of {bytes} bytes is too long to be told, and left out");
        drop(message.split_off(0));
    }
    into.push(message);
    Ok(())
}
