//! The socket to the daemon's desk. Whoever is the daemon holds the other end, and the keeper keeps it over a restart:
//! questions wait in it while there is none.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vos_api::desk::{FromDesk, PACKET_BYTES_MAX, ToDesk};

use crate::service::Handle;

/// What was read, and not taken by the loop. The daemon sends as fast as it is read, so this is bounded by how many
/// keys a container has.
#[derive(Default)]
struct Inbox {
    read: Mutex<VecDeque<FromDesk>>,
    arrived: Condvar,
}

/// A server's end.
pub struct DeskSocket {
    socket: Arc<OwnedFd>,
    inbox: Arc<Inbox>,
    /// What found no room in the socket.
    unsent: VecDeque<Vec<u8>>,
}

impl DeskSocket {
    /// Reads from now on, in a thread of its own, which pokes the loop. The loop ends when nobody holds the other end.
    pub fn open(socket: OwnedFd, handle: Handle) -> io::Result<DeskSocket> {
        let (socket, inbox) = (Arc::new(socket), Arc::new(Inbox::default()));
        let (also, into) = (Arc::clone(&socket), Arc::clone(&inbox));
        std::thread::Builder::new().name("desk".to_owned()).spawn(move || {
            read(&also, &into, &handle);
            tracing::error!("the daemon's desk is gone");
            handle.stop();
        })?;
        Ok(DeskSocket { socket, inbox, unsent: VecDeque::new() })
    }

    pub fn ask(&mut self, asked: &ToDesk) {
        self.unsent.push_back(asked.encode());
        self.flush();
    }

    /// Sends what there is room for. True when something is left.
    pub fn flush(&mut self) -> bool {
        while let Some(packet) = self.unsent.front() {
            match send(&*self.socket, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return true,
                // One that cannot be sent is asked again by nobody: the thread that reads finds that the desk is gone.
                _ => drop(self.unsent.pop_front()),
            }
        }
        false
    }

    /// What the desk said since.
    pub fn heard(&self) -> VecDeque<FromDesk> {
        std::mem::take(&mut self.inbox.read.lock())
    }

    /// Waits until the desk says something.
    pub fn wait(&self, at_most: std::time::Duration) {
        let mut read = self.inbox.read.lock();
        if read.is_empty() {
            self.inbox.arrived.wait_for(&mut read, at_most);
        }
    }
}

fn read(socket: &OwnedFd, inbox: &Inbox, handle: &Handle) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    loop {
        let received = match recv(socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, received)) => received,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if received == 0 {
            return;
        }
        match buffer.get(..received).and_then(FromDesk::decode) {
            Some(FromDesk::Hello(theirs)) if let Err(mismatch) = versions::DESK.agree(theirs) => {
                tracing::error!(%mismatch, "the daemon is of another release; this server ends, for its own to take its place");
                std::process::exit(1);
            }
            Some(said) => {
                inbox.read.lock().push_back(said);
                inbox.arrived.notify_one();
                handle.poke();
            }
            None => tracing::error!(received, "the daemon said what makes no sense"),
        }
    }
}
