//! Closing what members sent, away from the broker's thread.
//!
//! Kernels before Linux 6.16 let members send descriptors to the broker, and to close one can block for hours: a stream
//! with a long linger, a file of a server that is stopped. There a thread of the container closes them, and its
//! members' connections, in which more may lie unread. The thread waits for that container's own only, and what may
//! wait for it is bounded: with [`DESCRIPTORS_MAX`] unclosed descriptors all members of the container are dropped, with
//! [`WAITING_MAX`] sockets nobody of it is accepted.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Unclosed descriptors that members sent. An honest one sends none.
const DESCRIPTORS_MAX: usize = 64;
/// Everything unclosed. A thread that is not held up closes a socket in microseconds.
const WAITING_MAX: usize = 1024;

/// What is to be closed.
pub(crate) enum Waste {
    Descriptors(Vec<OwnedFd>),
    /// A member's, shut down already, or one that nobody accepted.
    Socket(OwnedFd),
}

#[derive(Debug, Default)]
struct Unclosed {
    descriptors: AtomicUsize,
    sockets: AtomicUsize,
}

#[derive(Debug, Default)]
pub(crate) struct Closer {
    unclosed: Arc<Unclosed>,
    /// Started when there is something to close; it ends with the container, and when all is closed.
    thread: Option<Sender<Waste>>,
}

impl Closer {
    pub fn take(&mut self, waste: Waste) {
        match &waste {
            Waste::Descriptors(descriptors) => {
                self.unclosed.descriptors.fetch_add(descriptors.len(), Ordering::Relaxed)
            }
            Waste::Socket(_) => self.unclosed.sockets.fetch_add(1, Ordering::Relaxed),
        };
        if self.thread.is_none() {
            self.thread = self.start();
        }
        // Without a thread it is closed here, which may block: better than to keep it for ever.
        let left = match &self.thread {
            Some(thread) => thread.send(waste).err().map(|unsent| unsent.0),
            None => Some(waste),
        };
        if let Some(waste) = left {
            self.unclosed.close(waste);
        }
    }

    /// Whether the members sent so much that none of them is served any more.
    pub fn is_abused(&self) -> bool {
        self.unclosed.descriptors.load(Ordering::Relaxed) > DESCRIPTORS_MAX
    }

    /// Whether another connection would be one too many.
    pub fn is_full(&self) -> bool {
        self.is_abused() || self.unclosed.sockets.load(Ordering::Relaxed) > WAITING_MAX
    }

    fn start(&self) -> Option<Sender<Waste>> {
        let (sender, receiver) = channel::<Waste>();
        let unclosed = Arc::clone(&self.unclosed);
        let close_all = move || receiver.iter().for_each(|waste| unclosed.close(waste));
        match std::thread::Builder::new().name("dvs-closer".to_owned()).spawn(close_all) {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::error!(%error, "nobody closes what members send but the broker itself");
                None
            }
        }
    }
}

impl Unclosed {
    fn close(&self, waste: Waste) {
        match waste {
            Waste::Descriptors(descriptors) => {
                for descriptor in descriptors {
                    drop(descriptor);
                    self.descriptors.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Waste::Socket(socket) => {
                // The shelf may hold it for longer than we do, and must find nothing in it to close.
                drain(&socket);
                drop(socket);
                self.sockets.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

fn drain(socket: &OwnedFd) {
    let mut byte = [0; 1];
    while let Ok((received, _)) = sys::seqpacket::receive_whatever(socket, &mut byte) {
        if received.bytes == 0 && received.descriptors.is_empty() {
            return;
        }
    }
}
