//! The transports of a proxy: by name for the daemon's list, by number inside.

use std::io;
use std::time::Instant;

use rustix::io::Errno;
use sys::eventfd::{Poller, Trigger};

use crate::secure::Credentials;
use crate::transport::{Encryption, Stream, Target, Transport};
use crate::{ProxyError, limits};

/// Place of a transport among those of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Carrier(usize);

impl Carrier {
    /// There is always one.
    #[cfg(test)]
    pub(crate) const FIRST: Carrier = Carrier(0);
}

pub(crate) struct Carriers {
    all: Vec<Box<dyn Transport>>,
    /// Token of the first.
    first_token: u64,
    /// Those that let nobody in before then, and are not watched.
    pausing: Vec<(Carrier, Instant)>,
}

impl Carriers {
    /// # Errors
    /// None at all, too many, or two of one name.
    pub(crate) fn new(all: Vec<Box<dyn Transport>>) -> Result<Carriers, ProxyError> {
        let name_of = |transport: &dyn Transport| transport.name();
        let twice = all.iter().enumerate().find(|(index, transport)| {
            all.iter().take(*index).any(|earlier| earlier.name() == name_of(transport.as_ref()))
        });
        match twice {
            Some((_, transport)) => Err(ProxyError::TransportTwice(transport.name())),
            None if all.is_empty() || all.len() > limits::TRANSPORTS_MAX => Err(ProxyError::TransportCount(all.len())),
            None => Ok(Carriers { all, first_token: 0, pausing: Vec::new() }),
        }
    }

    /// Connections of transports that encrypt by themselves use these from now on.
    pub(crate) fn set_credentials(&mut self, credentials: &Credentials) -> Result<(), ProxyError> {
        self.all.iter_mut().try_for_each(|transport| transport.set_credentials(credentials))
    }

    /// Watches all of them, with numbers from `first_token`.
    pub(crate) fn watch(&mut self, poller: &Poller, first_token: u64) -> io::Result<()> {
        self.first_token = first_token;
        for (index, transport) in self.all.iter().enumerate() {
            poller.add(transport.descriptor(), first_token + index as u64, Trigger::Level)?;
        }
        Ok(())
    }

    /// Nobody can be let in at the moment, and the transport would be ready all the time: it is left alone until then.
    pub(crate) fn pause(&mut self, poller: &Poller, carrier: Carrier, until: Instant) {
        if let Some(transport) = self.all.get(carrier.0) {
            let _ = poller.remove(transport.descriptor());
            self.pausing.push((carrier, until));
        }
    }

    /// Watches again those whose pause is over: what came meanwhile is there already.
    pub(crate) fn resume(&mut self, poller: &Poller, now: Instant) {
        let Carriers { all, first_token, pausing } = self;
        pausing.retain_mut(|(carrier, until)| {
            let Some(transport) = all.get(carrier.0).filter(|_| *until <= now) else { return *until > now };
            let watched = poller.add(transport.descriptor(), *first_token + carrier.0 as u64, Trigger::Level);
            *until = now + limits::ACCEPT_PAUSE;
            watched.is_err()
        });
    }

    /// The transport whose token is `index` above the first.
    pub(crate) fn at(&self, index: u64) -> Option<Carrier> {
        let index = usize::try_from(index).ok()?;
        (index < self.all.len()).then_some(Carrier(index))
    }

    /// The transport of that name; without a name the first.
    pub(crate) fn named(&self, name: Option<&str>) -> Option<Carrier> {
        let Some(name) = name else { return self.at(0) };
        self.all.iter().position(|transport| transport.name() == name).map(Carrier)
    }

    pub(crate) fn name(&self, carrier: Carrier) -> &'static str {
        self.all.get(carrier.0).map_or("", |transport| transport.name())
    }

    pub(crate) fn check(&self, carrier: Carrier, address: &str) -> Result<(), String> {
        self.all.get(carrier.0).map_or(Ok(()), |transport| transport.check(address))
    }

    /// The next stream that somebody dialled; `WouldBlock` when there is none, or the transport pauses.
    pub(crate) fn accept(&mut self, carrier: Carrier) -> io::Result<Box<dyn Stream>> {
        if self.pausing.iter().any(|(pausing, _)| *pausing == carrier) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.all.get_mut(carrier.0).ok_or(io::ErrorKind::NotFound)?.accept()
    }

    pub(crate) fn dial(&mut self, carrier: Carrier, target: Target<'_>) -> io::Result<Box<dyn Stream>> {
        self.all.get_mut(carrier.0).ok_or(io::ErrorKind::NotFound)?.dial(target)
    }

    /// `Tls`: whatever links ask for, what it carries is encrypted.
    pub(crate) fn encryption(&self, carrier: Carrier) -> Encryption {
        self.all.get(carrier.0).map_or(Encryption::Plain, |transport| transport.encryption())
    }

    pub(crate) fn turn(&mut self, carrier: Carrier) {
        let Some(transport) = self.all.get_mut(carrier.0) else { return };
        if let Err(error) = transport.turn() {
            tracing::warn!("transport {}: {error}", transport.name());
        }
    }

    /// Transports whose time has come.
    pub(crate) fn due_by(&self, now: Instant) -> Vec<Carrier> {
        let is_due = |transport: &dyn Transport| transport.due().is_some_and(|due| due <= now);
        self.all.iter().enumerate().filter(|(_, t)| is_due(t.as_ref())).map(|(index, _)| Carrier(index)).collect()
    }

    /// When the next transport has something to do, or its pause ends.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let resumed = self.pausing.iter().map(|(_, until)| *until);
        self.all.iter().filter_map(|transport| transport.due()).chain(resumed).min()
    }

    /// Where each can be dialled.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (String, String)> {
        self.all.iter().map(|transport| (transport.name().to_owned(), transport.local_address()))
    }

    pub(crate) fn system_calls(&self) -> Vec<i64> {
        let mut calls: Vec<i64> = self.all.iter().flat_map(|transport| transport.system_calls()).copied().collect();
        calls.sort_unstable();
        calls.dedup();
        calls
    }
}

/// Whether the process or the machine has no room for another stream.
pub(crate) fn is_exhaustion(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}
