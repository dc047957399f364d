//! The broker's end: what is to be put on the shelf, in order.
//!
//! The shelf reads all the time, so the socket takes packets at once; what it does not take waits here. A broker
//! killed meanwhile takes that with it, which a successor sees as requests that were never read.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::op;
use super::record::Record;

/// Packets that wait. A shelf so far behind is stopped or broken, and given up.
const WAITING_MAX: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Outgoing {
    pub socket: OwnedFd,
    waiting: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Whether the poller reports when the socket takes more.
    pub waits_to_write: bool,
}

impl Outgoing {
    pub fn new(socket: OwnedFd) -> Outgoing {
        Outgoing { socket, waiting: VecDeque::new(), waits_to_write: false }
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// An error is final: the shelf is gone.
    pub fn put(&mut self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let key = record.key();
        let mut packet = vec![op::PUT, key.len() as u8];
        packet.extend_from_slice(key.as_bytes());
        record.append_to(&mut packet);
        self.send(packet, descriptors)
    }

    pub fn drop_one(&mut self, key: &str) -> io::Result<()> {
        self.send([&[op::DROP], key.as_bytes()].concat(), &[])
    }

    pub fn drop_all(&mut self, beginning: &str) -> io::Result<()> {
        self.send([&[op::DROP_ALL], beginning.as_bytes()].concat(), &[])
    }

    pub fn flush(&mut self) -> io::Result<()> {
        while let Some((packet, descriptors)) = self.waiting.front() {
            match sys::seqpacket::send(&self.socket, packet, descriptors) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send(&mut self, packet: Vec<u8>, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.waiting.is_empty() {
            match sys::seqpacket::send(&self.socket, &packet, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent,
            }
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let descriptors = descriptors.iter().map(|one| one.try_clone_to_owned()).collect::<io::Result<_>>()?;
        self.waiting.push_back((packet, descriptors));
        Ok(())
    }
}
