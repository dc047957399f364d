//! Memory of callers, which the keeper has read and written (`keeper/src/memory.rs` is the other side).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proc_core::calls::{CallArgument, Led, POINTED_BYTES_MAX, Pointed};
use proc_core::journal::{Notification, SlotIndex};
use proc_core::order::{LifeNumber, ResultBytes};
use proc_core::permission::SignalError;
use rustix::event::{PollFd, PollFlags, poll};

use crate::calls::News;

const ANSWER_BYTES: usize = 24 + POINTED_BYTES_MAX;

/// What is asked for, in the upper half of a ticket's first word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Siginfo = 0,
    Rlimit = 1,
    Descriptor = 2,
    Write = 3,
    Placeholder = 4,
    /// No call: which there are.
    Placeholders = 5,
}

const KINDS: [Kind; 6] =
    [Kind::Siginfo, Kind::Rlimit, Kind::Descriptor, Kind::Write, Kind::Placeholder, Kind::Placeholders];
/// Of [`Kind::Placeholder`], that it has ended, of which nothing is heard.
const PLACEHOLDER_ENDED: u64 = 4;
const KIND_SHIFT: u32 = 32;

impl Kind {
    fn of(pointed: Pointed) -> Kind {
        match pointed {
            Pointed::Siginfo => Kind::Siginfo,
            Pointed::Rlimit => Kind::Rlimit,
        }
    }

    /// As the keeper has it.
    fn word(self) -> u64 {
        match self {
            Kind::Siginfo | Kind::Rlimit => 0,
            Kind::Descriptor => 1,
            Kind::Write => 2,
            Kind::Placeholder => 3,
            Kind::Placeholders => 5,
        }
    }
}

/// Asks; what comes of it is told as [`News::Read`], [`News::Looked`] and [`News::Finished`]. The keeper answers each
/// question within a second or so. Clones are the same.
#[derive(Clone)]
pub struct MemoryReader {
    socket: Arc<OwnedFd>,
}

impl MemoryReader {
    /// # Errors
    /// No thread.
    pub fn start(socket: OwnedFd, news: Sender<News>) -> io::Result<MemoryReader> {
        let socket = Arc::new(socket);
        let also = Arc::clone(&socket);
        std::thread::Builder::new().name("memory".to_owned()).spawn(move || hear(&also, &news))?;
        Ok(MemoryReader { socket })
    }

    /// Where a descriptor of the calling thread leads.
    ///
    /// # Errors
    /// As of [`MemoryReader::read`].
    pub fn look(&self, slot: SlotIndex, notification: &Notification, descriptor: i32) -> Result<(), SignalError> {
        self.ask(slot, notification, Kind::Descriptor, u64::from(descriptor.unsigned_abs()), 0, &[])
    }

    /// # Errors
    /// The keeper takes no more questions now, or is gone.
    pub fn read(
        &self,
        slot: SlotIndex,
        notification: &Notification,
        address: u64,
        pointed: Pointed,
    ) -> Result<(), SignalError> {
        self.ask(slot, notification, Kind::of(pointed), address, pointed.bytes(), &[])
    }

    /// # Errors
    /// As of [`MemoryReader::read`].
    pub fn write(
        &self,
        slot: SlotIndex,
        notification: &Notification,
        address: u64,
        bytes: &ResultBytes,
    ) -> Result<(), SignalError> {
        let bytes = bytes.as_slice();
        self.ask(slot, notification, Kind::Write, address, bytes.len(), bytes)
    }

    /// The caller's answer is the descriptor of a placeholder for a process in this life of its node.
    ///
    /// # Errors
    /// As of [`MemoryReader::read`].
    pub fn give_placeholder(
        &self,
        slot: SlotIndex,
        notification: &Notification,
        process: u32,
        life: LifeNumber,
    ) -> Result<(), SignalError> {
        let [_, flags, ..] = notification.arguments;
        let more = [life.0.to_le_bytes().as_slice(), &(flags as u32).to_le_bytes()].concat();
        self.ask(slot, notification, Kind::Placeholder, u64::from(process), more.len(), &more)
    }

    /// The process for which one stands has ended.
    ///
    /// # Errors
    /// As of [`MemoryReader::read`].
    pub fn end_placeholder(&self, process: u32, life: LifeNumber) -> Result<(), SignalError> {
        let words = [0, 0, PLACEHOLDER_ENDED, 0, 0, u64::from(process), 8, life.0];
        self.send(words.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    /// Each is told as [`News::Placeholder`].
    pub fn list_placeholders(&self) {
        let ticket = (Kind::Placeholders as u64) << KIND_SHIFT;
        let words = [ticket, 0, Kind::Placeholders.word(), 0, 0, 0, 0];
        // A keeper that takes nothing is gone.
        let _ = self.send(words.into_iter().flat_map(u64::to_le_bytes).collect());
    }

    fn ask(
        &self,
        slot: SlotIndex,
        notification: &Notification,
        kind: Kind,
        what: u64,
        count: usize,
        bytes: &[u8],
    ) -> Result<(), SignalError> {
        let ticket = slot.first_word() as u64 | (kind as u64) << KIND_SHIFT;
        let Notification { id, thread, listener, .. } = *notification;
        let words = [ticket, id, kind.word(), u64::from(thread), listener, what, count as u64];
        self.send(words.into_iter().flat_map(u64::to_le_bytes).chain(bytes.iter().copied()).collect())
    }

    fn send(&self, packet: Vec<u8>) -> Result<(), SignalError> {
        sys::seqpacket::send(&*self.socket, &packet, &[] as &[OwnedFd]).map_err(|_| SignalError::Full)
    }
}

/// Until the keeper is gone, or nobody wants its answers.
fn hear(socket: &OwnedFd, news: &Sender<News>) {
    let mut packet = [0; ANSWER_BYTES];
    loop {
        match sys::seqpacket::receive(socket, &mut packet) {
            Ok(received) if received.bytes == packet.len() => {
                if decoded(&packet).is_some_and(|told| news.send(told).is_err()) {
                    return;
                }
            }
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
            }
            _ => return,
        }
    }
}

fn decoded(packet: &[u8; ANSWER_BYTES]) -> Option<News> {
    let (ticket, rest) = packet.split_first_chunk::<16>()?;
    let (first, id) = ticket.split_first_chunk::<8>()?;
    let (errno, read) = rest.split_first_chunk::<8>()?;
    let (first, id) = (u64::from_le_bytes(*first), u64::from_le_bytes(id.try_into().ok()?));
    let kind = KINDS.into_iter().find(|kind| *kind as u64 == first >> KIND_SHIFT)?;
    let first = usize::try_from(first & ((1 << KIND_SHIFT) - 1)).ok()?;
    if kind == Kind::Placeholders {
        let (process, life) = read.split_first_chunk::<8>()?;
        let process = u32::try_from(u64::from_le_bytes(*process)).ok()?;
        return Some(News::Placeholder { process, life: LifeNumber(u64::from_le_bytes(*life.first_chunk()?)) });
    }
    let slot = SlotIndex::all().find(|slot| slot.first_word() == first)?;
    let done = match i32::try_from(u64::from_le_bytes(*errno)).ok()? {
        0 => Ok(()),
        libc::ESRCH => Err(SignalError::NoProcess),
        libc::EAGAIN => Err(SignalError::Full),
        libc::EMFILE => Err(SignalError::NoDescriptor),
        _ => Err(SignalError::Fault),
    };
    let pointed = |pointed: Pointed| News::Read { slot, id, read: done.map(|()| pointed.argument(read)) };
    Some(match kind {
        Kind::Siginfo => pointed(Pointed::Siginfo),
        Kind::Rlimit => pointed(Pointed::Rlimit),
        Kind::Descriptor => {
            // What nobody could see the kernel knows.
            let led = done.ok().and_then(|()| led_in(read)).unwrap_or(Led::Elsewhere);
            News::Looked { slot, id, led }
        }
        Kind::Write | Kind::Placeholder => News::Finished { slot, id, done },
        Kind::Placeholders => return None,
    })
}

/// In the first bytes.
fn led_in(read: &[u8]) -> Option<Led> {
    let word = u64::from_le_bytes(*read.first_chunk::<8>()?);
    u32::try_from(word).ok().map(Led::of_number)
}

/// What was read for a call.
pub type ReadArgument = Result<CallArgument, SignalError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_keeper_and_nonsense_is_none() {
        let slot = SlotIndex::new(5).unwrap();
        let packet = |first: u64, errno: u64| {
            let mut siginfo = [0; POINTED_BYTES_MAX];
            siginfo[8..12].copy_from_slice(&libc::SI_QUEUE.to_ne_bytes());
            siginfo[24..32].copy_from_slice(&9_u64.to_ne_bytes());
            let words: Vec<u8> = [first, 77, errno].into_iter().flat_map(u64::to_le_bytes).collect();
            <[u8; ANSWER_BYTES]>::try_from([words, siginfo.to_vec()].concat()).unwrap()
        };
        let first = slot.first_word() as u64;
        let told = |read| Some(News::Read { slot, id: 77, read });
        assert_eq!(decoded(&packet(first, 0)), told(Ok(CallArgument { code: libc::SI_QUEUE, words: [9, 0] })));
        assert_eq!(decoded(&packet(first, libc::EPERM as u64)), told(Err(SignalError::Fault)));
        assert_eq!(decoded(&packet(first, libc::ESRCH as u64)), told(Err(SignalError::NoProcess)));
        assert_eq!((decoded(&packet(first + 1, 0)), decoded(&packet(u64::MAX, 0))), (None, None));
        assert_eq!(decoded(&packet(first, u64::MAX)), None);
        let of_kind = |kind: Kind| first | (kind as u64) << KIND_SHIFT;
        let mut led = packet(of_kind(Kind::Descriptor), 0);
        led[24..32].copy_from_slice(&131_072_u64.to_le_bytes());
        assert_eq!(decoded(&led), Some(News::Looked { slot, id: 77, led: Led::To(131_072) }));
        let nowhere = packet(of_kind(Kind::Descriptor), libc::ENOENT as u64);
        assert_eq!(decoded(&nowhere), Some(News::Looked { slot, id: 77, led: Led::Elsewhere }));
        let written = |errno| decoded(&packet(of_kind(Kind::Write), errno));
        assert_eq!(written(0), Some(News::Finished { slot, id: 77, done: Ok(()) }));
        let fault = Some(News::Finished { slot, id: 77, done: Err(SignalError::Fault) });
        assert_eq!(written(libc::EFAULT as u64), fault);
        let many = decoded(&packet(of_kind(Kind::Placeholder), libc::EMFILE as u64));
        assert_eq!(many, Some(News::Finished { slot, id: 77, done: Err(SignalError::NoDescriptor) }));
        let mut one = packet((Kind::Placeholders as u64) << KIND_SHIFT, 0);
        one[24..40].copy_from_slice(&[131_072_u64.to_le_bytes(), 9_u64.to_le_bytes()].concat());
        assert_eq!(decoded(&one), Some(News::Placeholder { process: 131_072, life: LifeNumber(9) }));
        assert_eq!(decoded(&packet(first | 6 << KIND_SHIFT, 0)), None);
    }
}
