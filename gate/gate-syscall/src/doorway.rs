//! The socket to the keeper, over which the listeners of programs come (`keeper/src/callgate.rs` is the other side).

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};

use crate::listeners::Listeners;

/// A count, and as many numbers as a packet has descriptors.
const PACKET_BYTES_MAX: usize = 8 * (1 + sys::seqpacket::DESCRIPTORS_MAX);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// What is there now.
    No,
    /// For one more, if there is none.
    Yes,
}

pub struct Doorway {
    socket: OwnedFd,
    last: u64,
}

impl Doorway {
    pub fn new(socket: OwnedFd) -> Doorway {
        Doorway { socket, last: 0 }
    }

    /// All listeners that there are now.
    ///
    /// # Errors
    /// The keeper is gone, or another call gate took this one's place.
    pub fn fetch_all(&mut self, listeners: &Listeners) -> io::Result<()> {
        while self.fetch(listeners, Wait::No)? > 0 {}
        Ok(())
    }

    /// The next ones, as soon as there are any.
    ///
    /// # Errors
    /// As of [`Doorway::fetch_all`].
    pub fn fetch_further(&mut self, listeners: &Listeners) -> io::Result<()> {
        self.fetch(listeners, Wait::Yes).map(drop)
    }

    fn fetch(&mut self, listeners: &Listeners, wait: Wait) -> io::Result<usize> {
        let asked: Vec<u8> =
            [self.last, u64::from(wait == Wait::Yes)].iter().flat_map(|word| word.to_le_bytes()).collect();
        sys::seqpacket::send(&self.socket, &asked, &[] as &[OwnedFd])?;
        let mut packet = [0; PACKET_BYTES_MAX];
        let received = loop {
            match sys::seqpacket::receive(&self.socket, &mut packet) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None);
                }
                received => break received?,
            }
        };
        let words = packet.get(..received.bytes).unwrap_or_default().chunks_exact(8);
        let mut words = words.filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes);
        let count = words.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let numbers: Vec<u64> = words.collect();
        if numbers.len() as u64 != count || numbers.len() != received.descriptors.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        for (number, listener) in numbers.iter().zip(received.descriptors) {
            listeners.insert(*number, listener);
            self.last = self.last.max(*number);
        }
        Ok(numbers.len())
    }
}
