//! The control socket, seen from the proxy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::control::{End, FromProxy, Said, ToProxy};

/// The proxy goes on with what it knows when the daemon is gone.
pub(crate) struct Controller {
    end: End<ToProxy>,
    /// A state could not be told because an earlier one was still on its way.
    is_behind: bool,
}

impl Controller {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Controller> {
        Ok(Controller { end: End::new(socket)?, is_behind: false })
    }

    pub(crate) fn receive(&mut self) -> Said<ToProxy> {
        match self.end.receive() {
            // As if the daemon had asked only now.
            Said::Nothing if self.is_behind && self.end.has_room() => Said::Message(ToProxy::default()),
            said => said,
        }
    }

    /// Tells the daemon. While it has not read what was told before, only that there is something new is kept.
    pub(crate) fn tell(&mut self, mut status: FromProxy) {
        self.is_behind = !self.end.has_room();
        if self.is_behind {
            return;
        }
        status.shorten_texts();
        match self.end.say(status) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => tracing::debug!("the daemon is gone"),
            Err(error) => tracing::warn!("the daemon was not told: {error}"),
            Ok(()) => {}
        }
    }
}

impl AsFd for Controller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}
