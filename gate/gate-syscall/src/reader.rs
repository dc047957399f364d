//! Memory of callers, which the keeper has read (`keeper/src/memory.rs` is the other side).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use proc_core::calls::{SIGINFO_BYTES, payload_of};
use proc_core::journal::{Notification, SlotIndex};
use proc_core::order::Payload;
use proc_core::permission::SignalError;
use rustix::event::{PollFd, PollFlags, poll};

use crate::calls::News;

/// In the first word of a ticket: where a descriptor leads is asked.
const LOOKS: u64 = 1 << 63;
const ANSWER_BYTES: usize = 24 + SIGINFO_BYTES;

/// Asks; what comes of it is told as [`News::Read`]. The keeper answers each question within a second or so.
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

    /// Where a descriptor of the calling thread leads; told as [`News::Looked`].
    ///
    /// # Errors
    /// As of [`MemoryReader::ask`].
    pub fn look(&self, slot: SlotIndex, notification: &Notification, descriptor: i32) -> Result<(), SignalError> {
        let descriptor = u64::from(descriptor.unsigned_abs());
        let slot = slot.first_word() as u64 | LOOKS;
        let words = [slot, notification.id, u64::from(notification.thread), descriptor, 0];
        let packet: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        sys::seqpacket::send(&*self.socket, &packet, &[] as &[OwnedFd]).map_err(|_| SignalError::Full)
    }

    /// # Errors
    /// The keeper takes no more questions now, or is gone.
    pub fn ask(&self, slot: SlotIndex, notification: &Notification, address: u64) -> Result<(), SignalError> {
        let words = [slot.first_word() as u64, notification.id, u64::from(notification.thread), address];
        let packet: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
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
    let first = u64::from_le_bytes(*first);
    let (looks, first) = (first & LOOKS != 0, usize::try_from(first & !LOOKS).ok()?);
    let slot = SlotIndex::all().find(|slot| slot.first_word() == first)?;
    if looks {
        let process = u64::from_le_bytes(*errno) == 0;
        let process = process.then(|| payload_of_look(read)).flatten();
        return Some(News::Looked { slot, id: id.try_into().ok().map(u64::from_le_bytes)?, process });
    }
    let read = match i32::try_from(u64::from_le_bytes(*errno)).ok()? {
        0 => Ok(payload_of(read.first_chunk::<SIGINFO_BYTES>()?)),
        libc::ESRCH => Err(SignalError::NoProcess),
        libc::EAGAIN => Err(SignalError::Full),
        _ => Err(SignalError::Fault),
    };
    Some(News::Read { slot, id: id.try_into().ok().map(u64::from_le_bytes)?, read })
}

/// The process, in the first bytes; 0 if there is none.
fn payload_of_look(read: &[u8]) -> Option<u32> {
    let word = u64::from_le_bytes(*read.first_chunk::<8>()?);
    u32::try_from(word).ok().filter(|process| *process != 0)
}

/// What was read for a call.
pub type ReadPayload = Result<Payload, SignalError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_those_of_the_keeper_and_nonsense_is_none() {
        let slot = SlotIndex::new(5).unwrap();
        let packet = |first: u64, errno: u64| {
            let mut siginfo = [0; SIGINFO_BYTES];
            siginfo[8..12].copy_from_slice(&libc::SI_QUEUE.to_ne_bytes());
            siginfo[24..32].copy_from_slice(&9_u64.to_ne_bytes());
            let words: Vec<u8> = [first, 77, errno].into_iter().flat_map(u64::to_le_bytes).collect();
            <[u8; ANSWER_BYTES]>::try_from([words, siginfo.to_vec()].concat()).unwrap()
        };
        let first = slot.first_word() as u64;
        let told = |read| Some(News::Read { slot, id: 77, read });
        assert_eq!(decoded(&packet(first, 0)), told(Ok(Payload { code: libc::SI_QUEUE, value: 9 })));
        assert_eq!(decoded(&packet(first, libc::EPERM as u64)), told(Err(SignalError::Fault)));
        assert_eq!(decoded(&packet(first, libc::ESRCH as u64)), told(Err(SignalError::NoProcess)));
        assert_eq!((decoded(&packet(first + 1, 0)), decoded(&packet(u64::MAX, 0))), (None, None));
        assert_eq!(decoded(&packet(first, u64::MAX)), None);
        let mut led = packet(first | LOOKS, 0);
        led[24..32].copy_from_slice(&131_072_u64.to_le_bytes());
        assert_eq!(decoded(&led), Some(News::Looked { slot, id: 77, process: Some(131_072) }));
        let nowhere = packet(first | LOOKS, libc::ENOENT as u64);
        assert_eq!(decoded(&nowhere), Some(News::Looked { slot, id: 77, process: None }));
    }
}
