//! The transports of a proxy: by name for the daemon's list, by number inside.

use std::io;
use std::time::Instant;

use sys::eventfd::{Poller, Trigger};

use crate::transport::{Encryption, Stream, Target, Transport};
use crate::{ProxyError, limits};

/// Place of a transport among those of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Carrier(usize);

pub(crate) struct Carriers {
    all: Vec<Box<dyn Transport>>,
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
            None => Ok(Carriers { all }),
        }
    }

    /// Watches all of them, with numbers from `first_token`.
    pub(crate) fn watch(&self, poller: &Poller, first_token: u64) -> io::Result<()> {
        for (index, transport) in self.all.iter().enumerate() {
            poller.add(transport.descriptor(), first_token + index as u64, Trigger::Level)?;
        }
        Ok(())
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

    pub(crate) fn accept(&mut self, carrier: Carrier) -> io::Result<Box<dyn Stream>> {
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

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.all.iter().filter_map(|transport| transport.due()).min()
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
