//! The socket to the container's init on this node, who carries orders out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proc_core::errand::{FROM_INIT_BYTES_MAX, ForInit, FromInit};
use proc_core::order::{LifeNumber, Order};
use proc_core::range::Seats;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Init answers in microseconds; while programs fork as fast as they can, in milliseconds.
const BEGIN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct InitSocket(OwnedFd);

impl InitSocket {
    pub fn new(socket: OwnedFd) -> InitSocket {
        InitSocket(socket)
    }

    /// Tells init its life, if none was told before; gives the one it has.
    ///
    /// # Errors
    /// Init is gone, or does not answer.
    pub fn begin(&self, life: LifeNumber, peers: Seats) -> io::Result<LifeNumber> {
        let until = Instant::now() + BEGIN_LIMIT;
        // A call gate before this one may have asked for more than it read: init goes on when that is read.
        while let Err(cause) = self.send(&ForInit::Begin { life, peers }) {
            if cause.kind() != io::ErrorKind::WouldBlock || Instant::now() >= until {
                return Err(cause);
            }
            self.receive(Some(until))?;
        }
        while Instant::now() < until {
            // What a call gate before this one did not read may come first.
            if let Some(FromInit::Begun { life }) = self.receive(Some(until))? {
                return Ok(life);
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// # Errors
    /// Init is gone. `WouldBlock`: it has more to do than the socket holds.
    pub fn carry(&self, order: &Order) -> io::Result<()> {
        self.send(&ForInit::Carry(*order))
    }

    fn send(&self, said: &ForInit) -> io::Result<()> {
        sys::seqpacket::send(&self.0, &said.encode(), &[] as &[BorrowedFd<'_>])
    }

    /// The next thing that init says; `None`: nothing until then.
    ///
    /// # Errors
    /// Init is gone.
    pub fn receive(&self, until: Option<Instant>) -> io::Result<Option<FromInit>> {
        let mut packet = [0; FROM_INIT_BYTES_MAX];
        loop {
            match sys::seqpacket::receive(&self.0, &mut packet) {
                Ok(received) if received.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(received) => match FromInit::decode(packet.get(..received.bytes).unwrap_or_default()) {
                    Ok(said) => return Ok(Some(said)),
                    Err(_) => tracing::error!("init said what no init says"),
                },
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let limit = until.map(|until| until.saturating_duration_since(Instant::now()));
                    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
                    if poll(&mut [PollFd::new(&self.0.as_fd(), PollFlags::IN)], limit.as_ref()) == Ok(0) {
                        return Ok(None);
                    }
                }
                Err(cause) => return Err(cause),
            }
        }
    }
}
