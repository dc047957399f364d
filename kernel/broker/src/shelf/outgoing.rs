//! The broker's end: what is put on the shelf.
//!
//! A packet is in the shelf's socket when a call returns, and the socket outlives the broker: so whatever the broker
//! says afterwards, its successor knows. The shelf reads all the time; should its socket be full the broker waits for
//! it, the one place where it waits for anybody, and for a limited time.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::record::Record;
use super::{await_ready, op};

/// A shelf that takes nothing for so long is stopped or broken, and given up.
const FULL_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Outgoing {
    pub socket: OwnedFd,
}

impl Outgoing {
    /// An error is final: the shelf is gone.
    pub fn put(&mut self, record: &Record, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let key = record.key();
        let mut packet = vec![op::PUT, key.len() as u8];
        packet.extend_from_slice(key.as_bytes());
        record.append_to(&mut packet);
        self.send(&packet, descriptors)
    }

    pub fn drop_one(&mut self, key: &str) -> io::Result<()> {
        self.send(&[&[op::DROP], key.as_bytes()].concat(), &[])
    }

    pub fn drop_all(&mut self, beginning: &str) -> io::Result<()> {
        self.send(&[&[op::DROP_ALL], beginning.as_bytes()].concat(), &[])
    }

    fn send(&mut self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let until = Instant::now() + FULL_LIMIT;
        loop {
            match sys::seqpacket::send(&self.socket, packet, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !await_ready(&self.socket, PollFlags::OUT, Some(until)) {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                sent => return sent,
            }
        }
    }
}
