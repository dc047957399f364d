//! The broker's table of one container on one node: who is bound, which channels exist, who waits for whom.
//!
//! A number is free, in transit, or has a binding: a connection of this node has it (`Local`), or another node
//! (`Remote`). A binding has an epoch; a number never goes back to a lower one. A channel exists only while both its
//! endpoints have a binding. An [`Event`] says what happened to a number, an [`Effect`] what is to be done: `life.rs`.
//!
//! Not here: memory objects, sockets, processes (`kernel/broker`), where endpoints live in the cluster (`node/`).

mod channels;
mod life;
mod reservations;
mod waiters;

pub use channels::{Channel, Channels, LaneWish};
pub use life::{Asking, Change, Claim, Effect, Ending, Event, Parting, Place, Rest};
pub use reservations::{Reservation, Reservations};
pub use waiters::{Awaited, Waiter, Waiters};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use abi::limits::{ENDPOINTS_PER_DC, WELL_KNOWN_ENDPOINTS};
use abi::{Endpoint, Epoch, IpcError, NodeId};
use life::{Hold, Number, Own, Past, Present, State, Transit};

/// A connection to the broker. Once a process is bound over it, that process is the owner of a number; before, of none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OwnerId(pub u64);

/// Where the process that has a number is, as seen from this node. (The *home* of the design pages is a node.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    Local { owner: OwnerId },
    Remote { node: NodeId },
}

/// How the broker knows of a binding on another node.
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

/// See the module. `A` is who asks for a number to be handed over.
#[derive(Clone, Debug)]
pub struct DcTable<A> {
    programs: Range<u32>,
    next_program: u32,
    /// Numbers that somebody has, had a moment ago, or will have.
    present: BTreeMap<Endpoint, Present<A>>,
    /// Numbers that ever were among them: at most one entry for each number.
    past: BTreeMap<Endpoint, Past>,
    channels: Channels,
    reservations: Reservations,
    waiters: Waiters,
}

impl<A: Asking> DcTable<A> {
    /// `programs` are the numbers that this node gives to programs.
    pub fn new(programs: Range<u32>) -> DcTable<A> {
        let programs = programs.start.max(WELL_KNOWN_ENDPOINTS)..programs.end.min(ENDPOINTS_PER_DC);
        DcTable {
            next_program: programs.start,
            programs,
            present: BTreeMap::new(),
            past: BTreeMap::new(),
            channels: Channels::default(),
            reservations: Reservations::default(),
            waiters: Waiters::default(),
        }
    }

    pub fn binding(&self, endpoint: Endpoint) -> Option<Binding> {
        self.present.get(&endpoint)?.binding()
    }

    pub fn bindings(&self) -> impl Iterator<Item = (Endpoint, Binding)> {
        bound_among(self.present.range(..))
    }

    /// In order of their numbers, from this one on.
    pub fn bindings_from(&self, first: Endpoint) -> impl Iterator<Item = (Endpoint, Binding)> {
        bound_among(self.present.range(first..))
    }

    /// Numbers that this node gives to programs.
    pub fn programs(&self) -> Range<u32> {
        self.programs.clone()
    }

    /// The highest epoch the number ever had here.
    pub fn highest_epoch(&self, endpoint: Endpoint) -> Epoch {
        self.past.get(&endpoint).map_or(Epoch(0), |past| past.epoch)
    }

    /// Numbers of which anything is known.
    pub fn numbers(&self) -> BTreeSet<Endpoint> {
        self.past.keys().chain(self.present.keys()).copied().collect()
    }

    /// Numbers of which there is more than a past.
    pub fn living(&self) -> impl Iterator<Item = Endpoint> {
        self.present.keys().copied()
    }

    /// Whether its owner, on another node, is as good as gone.
    pub fn is_leaving(&self, endpoint: Endpoint) -> bool {
        matches!(self.present.get(&endpoint), Some(Present { state: State::Leaving { .. }, .. }))
    }

    /// Whether an owner of this node is being handed over, or nobody knows yet what came of that.
    pub fn is_migrating(&self, endpoint: Endpoint) -> bool {
        self.present.get(&endpoint).is_some_and(|it| it.hold().is_some() || it.departure.is_some())
    }

    /// Where a number was whose next owner is not known yet.
    pub fn left_from(&self, endpoint: Endpoint) -> Option<NodeId> {
        self.present.get(&endpoint)?.transit().map(|transit| transit.from)
    }

    /// Those that were there.
    pub fn in_transit_from(&self, from: NodeId) -> impl Iterator<Item = Endpoint> {
        let of_node = move |it: &&Transit| it.from == from;
        let all = self.present.iter();
        all.filter(move |(_, it)| it.transit().as_ref().filter(of_node).is_some()).map(|(endpoint, _)| *endpoint)
    }

    /// Those that are held on behalf of whoever is meant.
    pub fn held_for(&self, is_meant: impl Fn(&A) -> bool) -> impl Iterator<Item = Endpoint> {
        let is_held = move |hold: &Hold<A>| is_meant(hold.holder());
        self.present.iter().filter(move |(_, it)| it.hold().is_some_and(&is_held)).map(|(endpoint, _)| *endpoint)
    }

    /// Of which number this one waits for a hand-over.
    pub fn awaited_by(&self, asker: &A) -> Option<Endpoint> {
        self.present.iter().find(|(_, it)| it.is_awaited_by(asker)).map(|(endpoint, _)| *endpoint)
    }

    /// Whether to believe that `node` has the number with `epoch`.
    pub fn judge(&self, endpoint: Endpoint, node: NodeId, epoch: Epoch, told: Told) -> Claim {
        self.number(endpoint).judge(node, epoch, told)
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

    /// Whether a server may begin at the number and epoch its daemon foresaw.
    pub fn place_server(&self, endpoint: Endpoint, epoch: Epoch) -> Result<(), IpcError> {
        self.number(endpoint).may_begin(epoch)
    }

    /// Keeps the number `wish`, or a free one, for a process.
    pub fn reserve(&mut self, wish: Option<Endpoint>, reservation: Reservation) -> Result<Endpoint, IpcError> {
        let kept = self.reservations.of_process(reservation.pid);
        let endpoint = match wish.or(kept) {
            Some(endpoint) if self.is_bound(endpoint) => return Err(IpcError::EndpointInUse),
            Some(endpoint) if !endpoint.is_well_known() && !self.programs.contains(&endpoint.number()) => {
                return Err(IpcError::BadEndpoint);
            }
            Some(endpoint) => endpoint,
            None => self.free_program().ok_or(IpcError::TableFull)?,
        };
        self.reservations.insert(endpoint, reservation)?;
        Ok(endpoint)
    }

    /// Where a program may begin: at the number it wishes, at the one that is kept for it, or at a free one. `pid` is
    /// the container's.
    pub fn place_program(&mut self, wish: Option<Endpoint>, pid: i32) -> Result<(Endpoint, Epoch), IpcError> {
        let kept = self.reservations.of_process(pid);
        let endpoint = match wish.or(kept) {
            Some(endpoint) if kept == Some(endpoint) && !self.is_bound(endpoint) => endpoint,
            Some(endpoint) if endpoint.is_well_known() => return Err(IpcError::Denied),
            Some(endpoint) if !self.programs.contains(&endpoint.number()) => return Err(IpcError::BadEndpoint),
            Some(endpoint) if self.is_bound(endpoint) || self.reservations.has(endpoint) => {
                return Err(IpcError::EndpointInUse);
            }
            Some(endpoint) => endpoint,
            None => self.free_program().ok_or(IpcError::TableFull)?,
        };
        let epoch = Epoch(self.past.get(&endpoint).map_or(1, |last| last.epoch.0.saturating_add(1)));
        Ok((endpoint, epoch))
    }

    /// Lets something happen to a number; what is to be done, with the number that it concerns. An error refuses the
    /// event: nothing has changed.
    pub fn step(&mut self, endpoint: Endpoint, event: Event<A>) -> Result<Vec<(Endpoint, Effect<A>)>, IpcError> {
        let mut number = self.number(endpoint);
        let effects = number.step(event, Own { endpoint, channels: &self.channels })?;
        let Number { past, present } = number;
        if present.is_over() {
            self.present.remove(&endpoint);
        } else {
            self.present.insert(endpoint, present);
        }
        if past != Past::default() {
            self.past.insert(endpoint, past);
        }
        if effects.iter().any(|effect| matches!(effect, Effect::EndChannel { .. })) {
            self.channels.remove_of(endpoint);
        }
        let mut all = Vec::new();
        for effect in effects {
            let ended = if let Effect::EndChannel { channel, .. } = &effect { channel.peer_of(endpoint) } else { None };
            all.push((endpoint, effect));
            if let Some(peer) = ended {
                all.extend(self.step(peer, Event::LosesChannel)?);
            }
        }
        Ok(all)
    }

    fn number(&self, endpoint: Endpoint) -> Number<A> {
        Number {
            past: self.past.get(&endpoint).copied().unwrap_or_default(),
            present: self.present.get(&endpoint).cloned().unwrap_or_else(Present::free),
        }
    }

    /// A binding of an earlier broker.
    pub fn adopt(&mut self, endpoint: Endpoint, binding: Binding) {
        self.present.insert(endpoint, Present::bound(binding));
        self.remember_epoch(endpoint, binding.epoch);
    }

    /// The number had this epoch with an earlier broker.
    pub fn remember_epoch(&mut self, endpoint: Endpoint, epoch: Epoch) {
        let past = self.past.entry(endpoint).or_default();
        past.epoch = epoch.max(past.epoch);
    }

    /// Records a channel between two bound endpoints. The caller made sure of privileges.
    pub fn open(&mut self, channel: Channel) -> Result<(), IpcError> {
        if channel.left == channel.right {
            return Err(IpcError::BadEndpoint);
        }
        if !self.is_bound(channel.left) {
            return Err(IpcError::NotBound);
        }
        if !self.is_bound(channel.right) {
            return Err(IpcError::NoSuchEndpoint);
        }
        self.channels.insert(channel)
    }

    /// The lane a new channel between the two gets.
    pub fn lane_for(&self, one: Endpoint, other: Endpoint, wish: LaneWish) -> Result<abi::Lane, IpcError> {
        self.channels.lane_for(one, other, wish)
    }

    /// Removes one channel. Its parties hear of it by [`Event::LosesChannel`], unless there is another one in the next
    /// moment.
    pub fn close(&mut self, channel: crate::ChannelId) -> Option<Channel> {
        self.channels.remove(channel)
    }

    fn is_bound(&self, endpoint: Endpoint) -> bool {
        self.binding(endpoint).is_some()
    }

    /// Numbers are given in turn, so that one that just became free is not reused at once.
    fn free_program(&mut self) -> Option<Endpoint> {
        let count = self.programs.end.saturating_sub(self.programs.start);
        for _ in 0..count {
            let number = self.next_program;
            self.next_program = if number + 1 >= self.programs.end { self.programs.start } else { number + 1 };
            match Endpoint::new(number) {
                Some(endpoint) if !self.is_bound(endpoint) && !self.reservations.has(endpoint) => {
                    return Some(endpoint);
                }
                _ => {}
            }
        }
        None
    }
}

fn bound_among<'a, A: Asking + 'a>(
    numbers: impl Iterator<Item = (&'a Endpoint, &'a Present<A>)>,
) -> impl Iterator<Item = (Endpoint, Binding)> {
    numbers.filter_map(|(endpoint, it)| Some((*endpoint, it.binding()?)))
}

#[cfg(test)]
mod tests;
