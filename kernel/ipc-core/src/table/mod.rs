//! The broker's table of one container on one node: who is bound, which channels exist, who waits for whom.
//!
//! A number is free, or bound by exactly one owner: a connection of this node (`Local`) or another node (`Remote`). A binding
//! has an epoch; a number never goes back to a lower one. A channel exists only while both its endpoints are bound: ending
//! a binding removes its channels and hands them to the caller, who tells the survivors.
//!
//! Not here: memory objects, sockets, processes (`kernel/broker`), where endpoints live in the cluster (`node/`).

mod channels;
mod reservations;
mod waiters;

pub use channels::{Channel, Channels, LaneWish};
pub use reservations::{Reservation, Reservations};
pub use waiters::{Awaited, Waiter, Waiters};

use std::collections::BTreeMap;
use std::ops::Range;

use abi::limits::{ENDPOINTS_PER_DC, WELL_KNOWN_ENDPOINTS};
use abi::{Endpoint, Epoch, IpcError, NodeId};

/// A connection to the broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerId(pub u64);

/// Where the process behind a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    Local { owner: OwnerId },
    Remote { node: NodeId },
}

/// How the broker knows of a remote binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// By the directory, with its epoch; the only way for local ones.
    ByDirectory,
    /// By its first message: the epoch is only a lower bound.
    ByFirstMessage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Binding {
    pub home: Home,
    pub epoch: Epoch,
    pub told: Told,
}

/// What binding a remote endpoint changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RemoteBinding {
    /// The same node and epoch were known already.
    Known,
    /// It is bound now; these channels of its predecessor ended.
    Bound { ended: Vec<Channel> },
    /// A newer epoch is known, or the number is bound on this node.
    Refused,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct DcTable {
    programs: Range<u32>,
    next_program: u32,
    bindings: BTreeMap<Endpoint, Binding>,
    /// The highest epoch each number ever had: at most one entry for each number.
    epochs: BTreeMap<Endpoint, Epoch>,
    channels: Channels,
    reservations: Reservations,
    waiters: Waiters,
}

impl DcTable {
    /// `programs` are the numbers that this node gives to programs.
    pub fn new(programs: Range<u32>) -> DcTable {
        let programs = programs.start.max(WELL_KNOWN_ENDPOINTS)..programs.end.min(ENDPOINTS_PER_DC);
        DcTable {
            next_program: programs.start,
            programs,
            bindings: BTreeMap::new(),
            epochs: BTreeMap::new(),
            channels: Channels::default(),
            reservations: Reservations::default(),
            waiters: Waiters::default(),
        }
    }

    pub fn binding(&self, endpoint: Endpoint) -> Option<&Binding> {
        self.bindings.get(&endpoint)
    }

    pub fn bindings(&self) -> impl Iterator<Item = (Endpoint, &Binding)> {
        self.bindings.iter().map(|(endpoint, binding)| (*endpoint, binding))
    }

    /// In order of their numbers, from this one on.
    pub fn bindings_from(&self, first: Endpoint) -> impl Iterator<Item = (Endpoint, &Binding)> {
        self.bindings.range(first..).map(|(endpoint, binding)| (*endpoint, binding))
    }

    /// Numbers that this node gives to programs.
    pub fn programs(&self) -> Range<u32> {
        self.programs.clone()
    }

    /// The highest epoch the number ever had here.
    pub fn highest_epoch(&self, endpoint: Endpoint) -> Epoch {
        self.epochs.get(&endpoint).copied().unwrap_or_default()
    }

    /// Numbers that were ever bound here, with their highest epochs.
    pub fn epochs(&self) -> impl Iterator<Item = (Endpoint, Epoch)> {
        self.epochs.iter().map(|(endpoint, epoch)| (*endpoint, *epoch))
    }

    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub fn reservations_mut(&mut self) -> &mut Reservations {
        &mut self.reservations
    }

    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub fn waiters_mut(&mut self) -> &mut Waiters {
        &mut self.waiters
    }

    /// Binds a server at the number and epoch its daemon foresaw.
    pub fn bind_server(&mut self, endpoint: Endpoint, owner: OwnerId, epoch: Epoch) -> Result<Vec<Channel>, IpcError> {
        match self.bindings.get(&endpoint) {
            Some(Binding { home: Home::Local { .. }, .. }) => return Err(IpcError::EndpointInUse),
            Some(Binding { home: Home::Remote { .. }, epoch: theirs, .. }) if *theirs >= epoch => {
                return Err(IpcError::Fenced);
            }
            _ => {}
        }
        if self.epochs.get(&endpoint).is_some_and(|highest| *highest > epoch) {
            return Err(IpcError::Fenced);
        }
        let ended = self.unbind(endpoint);
        self.insert(endpoint, Home::Local { owner }, epoch);
        Ok(ended)
    }

    /// Keeps the number `wish`, or a free one, for a process.
    pub fn reserve(&mut self, wish: Option<Endpoint>, reservation: Reservation) -> Result<Endpoint, IpcError> {
        let kept = self.reservations.of_process(reservation.pid);
        let endpoint = match wish.or(kept) {
            Some(endpoint) if self.bindings.contains_key(&endpoint) => return Err(IpcError::EndpointInUse),
            Some(endpoint) if !endpoint.is_well_known() && !self.programs.contains(&endpoint.number()) => {
                return Err(IpcError::BadEndpoint);
            }
            Some(endpoint) => endpoint,
            None => self.free_program().ok_or(IpcError::TableFull)?,
        };
        self.reservations.insert(endpoint, reservation)?;
        Ok(endpoint)
    }

    /// Binds a program at the number it wishes, at the one that is kept for it, or at a free one. `pid` is the container's.
    pub fn bind_program(
        &mut self,
        wish: Option<Endpoint>,
        pid: i32,
        owner: OwnerId,
    ) -> Result<(Endpoint, Epoch), IpcError> {
        let kept = self.reservations.of_process(pid);
        let endpoint = match wish.or(kept) {
            Some(endpoint) if kept == Some(endpoint) && !self.bindings.contains_key(&endpoint) => {
                self.reservations.remove(endpoint);
                endpoint
            }
            Some(endpoint) if endpoint.is_well_known() => return Err(IpcError::Denied),
            Some(endpoint) if !self.programs.contains(&endpoint.number()) => return Err(IpcError::BadEndpoint),
            Some(endpoint) if self.bindings.contains_key(&endpoint) || self.reservations.has(endpoint) => {
                return Err(IpcError::EndpointInUse);
            }
            Some(endpoint) => endpoint,
            None => self.free_program().ok_or(IpcError::TableFull)?,
        };
        let epoch = Epoch(self.epochs.get(&endpoint).map_or(1, |last| last.0.saturating_add(1)));
        self.insert(endpoint, Home::Local { owner }, epoch);
        Ok((endpoint, epoch))
    }

    /// Another node bound the number.
    pub fn bind_remote(&mut self, endpoint: Endpoint, node: NodeId, epoch: Epoch, told: Told) -> RemoteBinding {
        match self.bindings.get_mut(&endpoint) {
            // The directory says more of a caller that is known by its first message: the same process.
            Some(known)
                if known.home == (Home::Remote { node })
                    && known.told == Told::ByFirstMessage
                    && known.epoch <= epoch =>
            {
                (known.epoch, known.told) = (epoch, told);
                self.epochs.insert(endpoint, epoch);
                return RemoteBinding::Known;
            }
            Some(known) if known.home == (Home::Remote { node }) && known.epoch == epoch => {
                return RemoteBinding::Known;
            }
            Some(known) if known.epoch >= epoch => return RemoteBinding::Refused,
            _ => {}
        }
        if self.epochs.get(&endpoint).is_some_and(|highest| *highest > epoch) {
            return RemoteBinding::Refused;
        }
        let ended = self.unbind(endpoint);
        self.bindings.insert(endpoint, Binding { home: Home::Remote { node }, epoch, told });
        self.epochs.insert(endpoint, epoch);
        RemoteBinding::Bound { ended }
    }

    /// A binding of an earlier broker.
    pub fn adopt(&mut self, endpoint: Endpoint, binding: Binding) {
        self.bindings.insert(endpoint, binding);
        self.remember_epoch(endpoint, binding.epoch);
    }

    /// The number had this epoch with an earlier broker.
    pub fn remember_epoch(&mut self, endpoint: Endpoint, epoch: Epoch) {
        let highest = self.epochs.entry(endpoint).or_default();
        *highest = epoch.max(*highest);
    }

    /// Frees the number; its channels are removed and returned.
    pub fn unbind(&mut self, endpoint: Endpoint) -> Vec<Channel> {
        if self.bindings.remove(&endpoint).is_none() {
            return Vec::new();
        }
        self.channels.remove_of(endpoint)
    }

    /// Records a channel between two bound endpoints. The caller made sure of privileges.
    pub fn open(&mut self, channel: Channel) -> Result<(), IpcError> {
        if channel.left == channel.right {
            return Err(IpcError::BadEndpoint);
        }
        if !self.bindings.contains_key(&channel.left) {
            return Err(IpcError::NotBound);
        }
        if !self.bindings.contains_key(&channel.right) {
            return Err(IpcError::NoSuchEndpoint);
        }
        self.channels.insert(channel)
    }

    /// The lane a new channel between the two gets.
    pub fn lane_for(&self, one: Endpoint, other: Endpoint, wish: LaneWish) -> Result<abi::Lane, IpcError> {
        self.channels.lane_for(one, other, wish)
    }

    /// Removes one channel.
    pub fn close(&mut self, channel: crate::ChannelId) -> Option<Channel> {
        self.channels.remove(channel)
    }

    fn insert(&mut self, endpoint: Endpoint, home: Home, epoch: Epoch) {
        self.bindings.insert(endpoint, Binding { home, epoch, told: Told::ByDirectory });
        self.epochs.insert(endpoint, epoch);
    }

    /// Numbers are given in turn, so that one that just became free is not reused at once.
    fn free_program(&mut self) -> Option<Endpoint> {
        let count = self.programs.end.saturating_sub(self.programs.start);
        for _ in 0..count {
            let number = self.next_program;
            self.next_program = if number + 1 >= self.programs.end { self.programs.start } else { number + 1 };
            match Endpoint::new(number) {
                Some(endpoint) if !self.bindings.contains_key(&endpoint) && !self.reservations.has(endpoint) => {
                    return Some(endpoint);
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
