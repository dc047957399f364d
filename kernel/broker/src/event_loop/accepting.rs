//! Who may connect.
//!
//! Somebody who holds too much is answered all the same, with the reason, and let go: a listener that accepted nobody
//! would be ready for ever. Only when the process has no descriptor left is nobody accepted for a while.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use abi::{DcId, IpcError};
use broker_api::{MESSAGE_BYTES_MAX, Message, ToPort};
use rustix::io::Errno;
use sys::eventfd::Trigger;
use sys::seqpacket::Sender;

use super::{EventLoop, Token};
use crate::closer::Waste;
use crate::connection::Party;
use crate::ledger::{Charge, Cost, Member, Person};
use crate::limits::{ACCEPT_PAUSE, ACCEPTS_PER_TURN, CONNECTION_DESCRIPTORS, CONNECTIONS_PER_DC};

impl EventLoop {
    pub(super) fn accept(&mut self, dc: DcId) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(container) = self.containers.get(&dc) else { return };
            let Some(listener) = container.listener.as_ref() else { return };
            if container.closer.is_full() {
                // What its members sent is to be closed first.
                let _ = self.poller.remove(listener);
                self.accepts_again.get_or_insert_with(|| Instant::now() + ACCEPT_PAUSE);
                return;
            }
            match sys::seqpacket::accept(listener) {
                Ok(socket) => self.admit(dc, socket),
                Err(error) if is_exhaustion(&error) => return self.pause_accepting(&error),
                // Nobody is waiting any more, or the caller is gone already.
                Err(_) => return,
            }
        }
    }

    /// Listens again after a pause.
    pub(super) fn accept_again(&mut self) {
        if self.accepts_again.is_none_or(|end| end > Instant::now()) {
            return;
        }
        self.accepts_again = None;
        for (dc, container) in &self.containers {
            if let Some(listener) = &container.listener {
                // One that came during the pause is there already.
                let _ = self.poller.add(listener, Token::Listener(*dc).to_u64(), Trigger::Level);
            }
        }
    }

    fn admit(&mut self, dc: DcId, socket: OwnedFd) {
        let Ok(peer) = sys::seqpacket::peer(&socket) else { return };
        match self.charge_connection(dc, peer) {
            Ok(charge) => {
                let party = Party::Program { dc, pid: peer.pid, uid: peer.uid };
                if let Err(error) = self.add_connection(socket, party, Some(charge)) {
                    tracing::warn!(%dc, %error, "a connection could not be watched");
                }
            }
            Err(error) => {
                tracing::debug!(%dc, pid = peer.pid, uid = peer.uid, %error, "a connection was refused");
                refuse(&socket, error);
                if !sys::seqpacket::can_refuse_descriptors()
                    && let Some(container) = self.containers.get_mut(&dc)
                {
                    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Read);
                    container.closer.take(Waste::Socket(socket));
                }
            }
        }
    }

    fn charge_connection(&self, dc: DcId, peer: Sender) -> Result<Charge, IpcError> {
        let container = self.containers.get(&dc).ok_or(IpcError::DcNotRunning)?;
        if container.connections >= CONNECTIONS_PER_DC {
            return Err(IpcError::TableFull);
        }
        let person = Person { uid: peer.uid, pid: peer.pid };
        self.ledger.charge(Member { dc, person: Some(person) }, Cost::of_descriptors(CONNECTION_DESCRIPTORS))
    }

    /// The listeners would be ready all the time and nobody could be let in.
    fn pause_accepting(&mut self, error: &io::Error) {
        tracing::error!(%error, pause = ?ACCEPT_PAUSE, "nobody can be accepted");
        self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
        for listener in self.containers.values().filter_map(|container| container.listener.as_ref()) {
            let _ = self.poller.remove(listener);
        }
    }
}

/// Says why, as an answer to nothing in particular: the request may not be here yet.
fn refuse(socket: &OwnedFd, error: IpcError) {
    let _ = sys::seqpacket::send(socket, &ToPort::Failed { error }.to_bytes(0), &[] as &[OwnedFd]);
    if sys::seqpacket::can_refuse_descriptors() {
        // What lies here unread would be told to the other end instead of what was said.
        let _ = sys::seqpacket::receive(socket, &mut [0; MESSAGE_BYTES_MAX]);
    }
}

fn is_exhaustion(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}
