//! The control socket, seen from the proxy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::control::{FromProxy, MESSAGE_BYTES_MAX, ToProxy};

pub(crate) struct Controller {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// What came.
pub(crate) enum Said {
    Nothing,
    /// Nobody is at the other end any more. The proxy goes on with what it knows.
    Gone,
    Message(ToProxy),
    /// Not a message of this protocol.
    Nonsense(String),
}

impl Controller {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Controller> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Controller { socket, buffer: vec![0; MESSAGE_BYTES_MAX].into_boxed_slice() })
    }

    pub(crate) fn receive(&mut self) -> Said {
        let received = match sys::seqpacket::receive(&self.socket, &mut self.buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Said::Nothing,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Said::Nonsense("too long".to_owned()),
            Err(_) => return Said::Gone,
        };
        match self.buffer.get(..received.bytes) {
            None | Some([]) => Said::Gone,
            Some(bytes) => match serde_json::from_slice(bytes) {
                Ok(message) => Said::Message(message),
                Err(error) => Said::Nonsense(error.to_string()),
            },
        }
    }

    /// Tells the daemon; when it does not read, this state is lost and a later one tells more.
    pub(crate) fn tell(&self, status: &FromProxy) {
        let sent = serde_json::to_vec(status)
            .map_err(io::Error::from)
            .and_then(|bytes| sys::seqpacket::send(&self.socket, &bytes, &[] as &[OwnedFd]));
        if let Err(error) = sent {
            tracing::debug!("the daemon was not told: {error}");
        }
    }
}

impl AsFd for Controller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
