//! Taking over from an earlier broker.
//!
//! Everything is as it was: sockets, bindings with their pages and pidfds, channels. What the last broker was doing
//! when it was killed is settled here:
//!
//! - a process that died meanwhile: its pidfd is readable, so the loop finds it like any other death;
//! - a binding whose connection does not know of it (killed between two records): it ends, and its owner asks again;
//! - a page that says dead already: the ending is done again from its beginning;
//! - a channel that may not have been told: both parties are told again, who knows it ignores that;
//! - a request that was read and not answered: `Restarted` makes whoever waits ask again. What the last broker
//!   did answer lies before it in the socket. What the last broker did not read comes to us anyway; the number says so.
//!
//! Waits for an endpoint (`AwaitBound`, opens that wait) are such requests: they are not kept.

use std::io;
use std::os::fd::OwnedFd;

use abi::{DcId, Endpoint, Epoch, IpcError, Lane, NodeId, PairId};
use broker_api::{ToPort, ToProxy};
use ipc_core::ChannelId;
use ipc_core::table::{Binding, Channel, Ending, Event, Home, OwnerId, Reservation, Told};
use ipc_shm::{CHANNEL_DESCRIPTORS, ChannelFiles, ControlWriter, Life};
use sys::eventfd::Trigger;

use super::opening::lines_of;
use super::{EventLoop, Token};
use crate::connection::{Bound, Connection, Party};
use crate::container::{Container, Kept, KeptBinding, Origin};
use crate::ledger::Cost;
use crate::limits::CONNECTION_DESCRIPTORS;
use crate::shelf::record::{self, Record};
use crate::{DcOptions, ServerIdentity, Shelf};

/// What is to be done once everything was taken over.
enum Unfinished {
    /// Both parties of a channel are to be told again.
    Telling { dc: DcId, channel: Channel, files: ChannelFiles, request: u32, far: u64 },
    /// A binding ended, and not everybody heard that this channel of it did.
    Ending { dc: DcId, channel: Channel },
}

impl EventLoop {
    pub(super) fn adopt(&mut self, shelf: Shelf) -> io::Result<()> {
        self.connect_shelf(shelf.socket)?;
        let mut held = shelf.held;
        // Containers before what is in them, bindings before their channels.
        held.sort_by_key(|(record, _)| match record {
            Record::NodeDown { .. } => 0,
            Record::Dc { .. } => 1,
            Record::Connection { .. } => 2,
            Record::Binding { .. } => 3,
            Record::Channel(_) | Record::Reservation { .. } => 4,
        });
        let records = held.len();
        let mut unfinished = Vec::new();
        for (record, descriptors) in held {
            let key = record.key();
            match self.adopt_record(record, descriptors) {
                Ok(None) => {}
                Ok(Some(more)) => unfinished.push(more),
                // What belonged to a container that was being removed.
                Err(error) => tracing::warn!(key, %error, "not taken over from the last broker"),
            }
        }
        self.end_what_was_ending();
        unfinished.into_iter().for_each(|one| self.finish(one));
        self.announce_restart();
        self.drop_doomed();
        if records > 0 {
            tracing::info!(records, connections = self.connections.len(), "took over from the last broker");
        }
        Ok(())
    }

    fn adopt_record(&mut self, record: Record, descriptors: Vec<OwnedFd>) -> io::Result<Option<Unfinished>> {
        match record {
            Record::NodeDown { node, pair } => {
                if let Some(pair) = PairId::new(pair).filter(|pair| pair.number() < self.pairs) {
                    self.links.adopt_down(NodeId(node), pair);
                }
            }
            Record::Dc { dc, listen, programs, privileges } => {
                let options = DcOptions {
                    listen,
                    program_endpoints: programs.0..programs.1,
                    program_privileges: privileges.read()?,
                };
                self.adopt_dc(DcId(dc), options, descriptors.into_iter().next())?;
            }
            Record::Connection { owner, party, bound } => {
                self.adopt_connection(OwnerId(owner), party, bound, descriptors)?;
            }
            Record::Binding { dc, endpoint, epoch, home } => {
                let endpoint = Endpoint::new(endpoint).ok_or(io::ErrorKind::InvalidData)?;
                self.adopt_binding(DcId(dc), endpoint, Epoch(epoch), home, descriptors)?;
            }
            Record::Channel(channel) => return self.adopt_channel(channel, descriptors),
            Record::Reservation { dc, endpoint, pid, by } => {
                let endpoint = Endpoint::new(endpoint).ok_or(io::ErrorKind::InvalidData)?;
                let container = self.containers.get_mut(&DcId(dc)).ok_or(io::ErrorKind::NotFound)?;
                // One that was used at the moment the last broker was killed is refused, and was not needed any more.
                let _ = container.table.reserve(Some(endpoint), Reservation { pid, by: OwnerId(by) });
            }
        }
        Ok(None)
    }

    fn adopt_dc(&mut self, dc: DcId, options: DcOptions, listener: Option<OwnedFd>) -> io::Result<()> {
        if let Some(listener) = &listener {
            self.poller.add(listener, Token::Listener(dc).to_u64(), Trigger::Level)?;
        }
        let container = Container { origin: Origin::Shelf, ..Container::new(options, listener) };
        self.containers.insert(dc, container);
        Ok(())
    }

    fn adopt_connection(
        &mut self,
        owner: OwnerId,
        party: record::Party,
        bound: Option<record::Bound>,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
        self.next_owner = self.next_owner.max(owner.0.saturating_add(1));
        let party = party_of(party, &socket)?;
        let mut connection = Connection::new(socket, party);
        if let Some(bound) = bound {
            let endpoint = Endpoint::new(bound.endpoint).ok_or(io::ErrorKind::InvalidData)?;
            let pidfd = descriptors.next().ok_or(io::ErrorKind::InvalidData)?;
            self.poller.add(&pidfd, Token::Process(owner).to_u64(), Trigger::Level)?;
            let record::Bound { pid, inner_pid, privileges, .. } = bound;
            connection.bound = Some(Bound { endpoint, pid, inner_pid, pidfd, privileges: privileges.read()? });
        }
        self.poller.add(&connection.socket, Token::Connection(owner).to_u64(), Trigger::Level)?;
        connection.charge =
            connection.member().map(|it| self.ledger.charge_anyway(it, Cost::of_descriptors(CONNECTION_DESCRIPTORS)));
        match (&connection.party, connection.dc().and_then(|dc| self.containers.get_mut(&dc))) {
            // The newest is the proxy.
            (Party::Proxy { pair }, _) if self.links.proxy(*pair) < Some(owner) => {
                self.links.set_proxy(*pair, owner);
            }
            (Party::Proxy { .. }, _) => {}
            (_, Some(container)) => container.connections += 1,
            // Its container was being removed.
            (_, None) => self.doom(owner),
        }
        self.connections.insert(owner, connection);
        Ok(())
    }

    /// This node may have fewer pairs now. The channels of one that is no more are given to the first proxy, whose peer
    /// does not know them: so they end.
    fn pair_kept(&self, number: u8) -> PairId {
        PairId::new(number).filter(|pair| pair.number() < self.pairs).unwrap_or_default()
    }

    fn adopt_binding(
        &mut self,
        dc: DcId,
        endpoint: Endpoint,
        epoch: Epoch,
        home: record::Home,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let container = self.containers.get_mut(&dc).ok_or(io::ErrorKind::NotFound)?;
        let (home, told) = match home {
            record::Home::Free => {
                container.table.remember_epoch(endpoint, epoch);
                return Ok(());
            }
            record::Home::Local { owner } => (Home::Local { owner: OwnerId(owner) }, Told::ByDirectory),
            record::Home::Remote { node, by_directory } => {
                let told = if by_directory { Told::ByDirectory } else { Told::ByFirstMessage };
                (Home::Remote { node: NodeId(node) }, told)
            }
        };
        let page = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        let page = ControlWriter::adopt(page)?;
        // What was held for somebody, who learns that when he commits.
        page.set_hold(0);
        container.bindings.insert(endpoint, KeptBinding::new(page));
        container.table.adopt(endpoint, Binding { home, epoch, told });
        Ok(())
    }

    fn adopt_channel(&mut self, kept: record::Channel, descriptors: Vec<OwnedFd>) -> io::Result<Option<Unfinished>> {
        let number = |number| Endpoint::new(number).ok_or(io::ErrorKind::InvalidData);
        let dc = DcId(kept.dc);
        let channel = Channel {
            id: ChannelId(kept.id),
            left: number(kept.left)?,
            right: number(kept.right)?,
            lane: Lane(kept.lane),
            entries: kept.entries,
            arena_bytes: kept.arena_bytes,
            proxied: kept.proxied.map(NodeId),
            pair: self.pair_kept(kept.pair),
        };
        self.next_channel = self.next_channel.max(kept.id.saturating_add(1));
        let charge = self.charge_of_channel(dc, channel.left, channel.right, channel.arena_bytes);
        let container = self.containers.get_mut(&dc).ok_or(io::ErrorKind::NotFound)?;
        let far = kept.far;
        let (held, unfinished) = match (<[OwnedFd; CHANNEL_DESCRIPTORS]>::try_from(descriptors), kept.told) {
            (Ok(all), told) => {
                let files = ChannelFiles::adopt(all);
                let unfinished = match told {
                    record::Told::Perhaps { request } => {
                        Some(Unfinished::Telling { dc, channel, files: files.try_clone()?, request, far })
                    }
                    record::Told::Surely => None,
                };
                let meter = self.meters.over(&files, &channel);
                let held = match channel.proxied {
                    Some(_) => Kept::Proxied { files, far, charge, meter },
                    None => lines_of(files, charge, meter),
                };
                (held, unfinished)
            }
            (Err(some), _) => {
                let [left, right] = <[OwnedFd; 2]>::try_from(some).map_err(|_| io::ErrorKind::InvalidData)?;
                (Kept::Lines { left, right, charge, meter: None }, None)
            }
        };
        container.kept.insert(channel.id, held);
        match container.table.open(channel) {
            Ok(()) => Ok(unfinished),
            Err(_) => Ok(Some(Unfinished::Ending { dc, channel })),
        }
    }

    /// Bindings that only one of two records knows, and pages that say that the end had begun.
    fn end_what_was_ending(&mut self) {
        self.unbind_replaced();
        let mut ending = Vec::new();
        for (dc, container) in &self.containers {
            for (endpoint, binding) in container.table.bindings() {
                let life = container.page(endpoint).map_or(Life::Dead, ControlWriter::life);
                let is_known = match binding.home {
                    Home::Remote { .. } => true,
                    Home::Local { owner } => self.is_bound_to(owner, *dc, endpoint),
                };
                if life != Life::Alive || !is_known {
                    ending.push((*dc, endpoint, binding.home, life));
                } else if matches!(binding.home, Home::Local { .. }) {
                    self.directory.bound(*dc, endpoint, self.inner_pid_of(binding.home), binding.epoch);
                }
            }
        }
        for (dc, endpoint, home, life) in ending {
            if let Home::Local { owner } = home
                && self.is_bound_to(owner, dc, endpoint)
            {
                self.unbind(owner, IpcError::SourceDied);
                continue;
            }
            let (ending, reason) = match life {
                Life::Unreachable => (Ending::Unreachable, IpcError::NoLink),
                Life::Fenced => (Ending::Fenced, IpcError::SourceDied),
                // One that was being handed over has no owner now.
                Life::Alive | Life::Dead | Life::Moved => (Ending::Dead, IpcError::SourceDied),
            };
            self.happens(dc, endpoint, Event::Ends { ending, reason });
        }
    }

    /// Connections whose number belongs to somebody else by now.
    fn unbind_replaced(&mut self) {
        for (owner, connection) in &mut self.connections {
            let (Some(bound), Some(dc)) = (&connection.bound, connection.dc()) else { continue };
            let binding = self.containers.get(&dc).and_then(|container| container.table.binding(bound.endpoint));
            if binding.map(|binding| binding.home) != Some(Home::Local { owner: *owner }) {
                let _ = self.poller.remove(&bound.pidfd);
                connection.bound = None;
            }
        }
    }

    fn is_bound_to(&self, owner: OwnerId, dc: DcId, endpoint: Endpoint) -> bool {
        self.connections.get(&owner).is_some_and(|connection| {
            connection.dc() == Some(dc) && connection.bound.as_ref().is_some_and(|bound| bound.endpoint == endpoint)
        })
    }

    fn inner_pid_of(&self, home: Home) -> i32 {
        let Home::Local { owner } = home else { return 0 };
        self.connections.get(&owner).and_then(|connection| connection.bound.as_ref()).map_or(0, |bound| bound.inner_pid)
    }

    fn finish(&mut self, unfinished: Unfinished) {
        match unfinished {
            Unfinished::Ending { dc, channel } => self.channel_ended(dc, channel, None, IpcError::SourceDied),
            Unfinished::Telling { dc, channel, files, request, far } => {
                match self.notices(dc, &channel, &files, request, far) {
                    Ok(notices) => self.tell(dc, channel.id, notices),
                    // One of its parties is gone: its end was told already.
                    Err(error) => tracing::debug!(channel = %channel.id, %error, "not told again"),
                }
            }
        }
    }

    fn announce_restart(&mut self) {
        let owners: Vec<_> = self.connections.iter().map(|(owner, connection)| (*owner, connection.dc())).collect();
        for (owner, dc) in owners {
            match dc {
                Some(_) => self.send(owner, &ToPort::Restarted),
                None => self.send(owner, &ToProxy::Restarted),
            };
            // Whoever waits for one peer tells it again.
            self.announce(owner);
        }
    }
}

fn party_of(party: record::Party, socket: &OwnedFd) -> io::Result<Party> {
    Ok(match party {
        record::Party::Program { dc, pid } => {
            Party::Program { dc: DcId(dc), pid, uid: sys::seqpacket::peer(socket)?.uid }
        }
        record::Party::Server { dc, endpoint, epoch, uid, privileges } => {
            let endpoint = Endpoint::new(endpoint).ok_or(io::ErrorKind::InvalidData)?;
            let identity = ServerIdentity { endpoint, epoch: Epoch(epoch), uid, privileges: privileges.read()? };
            Party::Server { dc: DcId(dc), identity }
        }
        record::Party::Proxy => Party::Proxy { pair: PairId::FIRST },
        record::Party::ProxyOf { pair } => Party::Proxy { pair: PairId::new(pair).ok_or(io::ErrorKind::InvalidData)? },
    })
}
