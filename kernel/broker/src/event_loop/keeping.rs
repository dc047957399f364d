//! What is put on the shelf, and when: before anybody is told of it.
//!
//! Without a shelf all of this does nothing. A shelf that fails is given up with an error in the log; the daemon may
//! bring another one, which then gets everything.

use std::os::fd::{AsFd, BorrowedFd};

use abi::{DcId, Endpoint, NodeId, PairId};
use ipc_core::ChannelId;
use ipc_core::table::{Home, OwnerId, Told};
use ipc_shm::ChannelFiles;
use sys::eventfd::Trigger;

use super::{EventLoop, Token};
use crate::connection::Party;
use crate::container::{Container, Kept};
use crate::shelf::outgoing::Outgoing;
use crate::shelf::record::{self, Record, key};
use crate::{BrokerError, Shelf};

impl EventLoop {
    /// Another shelf, instead of one that failed: gets everything there is. What it holds already is of nobody.
    pub(super) fn change_shelf(&mut self, shelf: Shelf) -> Result<(), BrokerError> {
        self.connect_shelf(shelf.socket).map_err(|cause| crate::handle::os("watch the shelf", cause))?;
        self.drop_all_kept("");
        let owners: Vec<_> = self.connections.keys().copied().collect();
        owners.into_iter().for_each(|owner| self.keep_connection(owner));
        self.links.all_down().into_iter().for_each(|(node, pair)| self.keep_link_down(node, pair));
        let dcs: Vec<_> = self.containers.keys().copied().collect();
        dcs.into_iter().for_each(|dc| self.keep_everything_of(dc));
        Ok(())
    }

    fn keep_everything_of(&mut self, dc: DcId) {
        self.keep_dc(dc);
        let Some(container) = self.containers.get(&dc) else { return };
        let numbers = container.table.numbers();
        let channels: Vec<_> = container.table.channels().iter().map(|channel| channel.id).collect();
        let reserved: Vec<_> = container.table.reservations().iter().map(|(endpoint, _)| endpoint).collect();
        numbers.into_iter().for_each(|endpoint| self.keep_binding(dc, endpoint));
        channels.into_iter().for_each(|channel| self.keep_channel(dc, channel));
        reserved.into_iter().for_each(|endpoint| self.keep_reservation(dc, endpoint));
    }

    pub(super) fn connect_shelf(&mut self, socket: std::os::fd::OwnedFd) -> std::io::Result<()> {
        self.lose_shelf();
        self.poller.add(&socket, Token::Shelf.to_u64(), Trigger::Level)?;
        self.shelf = Some(Outgoing { socket });
        Ok(())
    }

    /// The poller has news of the shelf: it says nothing by itself, so it has ended.
    pub(super) fn serve_shelf(&mut self) {
        let Some(shelf) = &self.shelf else { return };
        match sys::seqpacket::receive(&shelf.socket, &mut [0; 1]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => self.after_keeping(Err(error)),
            Ok(_) => self.after_keeping(Err(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    pub(super) fn keep_dc(&mut self, dc: DcId) {
        let Some(container) = self.containers.get(&dc) else { return };
        let options = &container.options;
        let record = Record::Dc {
            dc: dc.0,
            listen: options.listen.clone(),
            programs: (options.program_endpoints.start, options.program_endpoints.end),
            privileges: (&options.program_privileges).into(),
        };
        let listener: Vec<_> = container.listener.iter().map(AsFd::as_fd).collect();
        let result = keep_in(&mut self.shelf, |shelf| shelf.put(&record, &listener));
        self.after_keeping(result);
    }

    pub(super) fn drop_kept_dc(&mut self, dc: DcId) {
        self.drop_all_kept(&key::dc(dc.0));
    }

    pub(super) fn keep_connection(&mut self, owner: OwnerId) {
        let Some(connection) = self.connections.get(&owner) else { return };
        let party = match &connection.party {
            Party::Program { dc, pid, .. } => record::Party::Program { dc: dc.0, pid: *pid },
            Party::Server { dc, identity } => record::Party::Server {
                dc: dc.0,
                endpoint: identity.endpoint.number(),
                epoch: identity.epoch.0,
                uid: identity.uid,
                privileges: (&identity.privileges).into(),
            },
            Party::Proxy { pair } if *pair == PairId::FIRST => record::Party::Proxy,
            Party::Proxy { pair } => record::Party::ProxyOf { pair: pair.number() },
        };
        let bound = connection.bound.as_ref().map(|bound| record::Bound {
            endpoint: bound.endpoint.number(),
            pid: bound.pid,
            inner_pid: bound.inner_pid,
            privileges: (&bound.privileges).into(),
        });
        let mut descriptors = vec![connection.socket.as_fd()];
        descriptors.extend(connection.bound.as_ref().map(|bound| bound.pidfd.as_fd()));
        let record = Record::Connection { owner: owner.0, party, bound };
        let result = keep_in(&mut self.shelf, |shelf| shelf.put(&record, &descriptors));
        self.after_keeping(result);
    }

    pub(super) fn drop_kept_connection(&mut self, owner: OwnerId) {
        self.keep(|shelf| shelf.drop_one(&key::connection(owner.0)));
    }

    /// Who has the number now; when nobody has it, its epoch.
    pub(super) fn keep_binding(&mut self, dc: DcId, endpoint: Endpoint) {
        let Some(container) = self.containers.get(&dc) else { return };
        let binding = container.table.binding(endpoint);
        let home = match binding.map(|binding| (binding.home, binding.told)) {
            Some((Home::Local { owner }, _)) => record::Home::Local { owner: owner.0 },
            Some((Home::Remote { node }, told)) => {
                record::Home::Remote { node: node.0, by_directory: told == Told::ByDirectory }
            }
            None => record::Home::Free,
        };
        let epoch = binding.map_or_else(|| container.table.highest_epoch(endpoint), |binding| binding.epoch);
        let page: Vec<_> = container.page(endpoint).map(|page| page.file().as_fd()).into_iter().collect();
        let record = Record::Binding { dc: dc.0, endpoint: endpoint.number(), epoch: epoch.0, home };
        let result = keep_in(&mut self.shelf, |shelf| shelf.put(&record, &page));
        self.after_keeping(result);
    }

    /// A channel that both parties know of.
    pub(super) fn keep_channel(&mut self, dc: DcId, channel: ChannelId) {
        self.put_channel(dc, channel, record::Told::Surely, None);
    }

    /// A channel about to be handed out: with all its objects, so that a successor can hand it out again.
    pub(super) fn keep_untold_channel(&mut self, dc: DcId, channel: ChannelId, request: u32, files: &ChannelFiles) {
        self.put_channel(dc, channel, record::Told::Perhaps { request }, Some(files));
    }

    fn put_channel(&mut self, dc: DcId, channel: ChannelId, told: record::Told, files: Option<&ChannelFiles>) {
        let Some(container) = self.containers.get(&dc) else { return };
        let Some(record) = channel_record(container, dc, channel, told) else { return };
        let descriptors: Vec<BorrowedFd<'_>> = match (files, container.kept.get(&channel)) {
            (Some(files), _) | (None, Some(Kept::Proxied { files, .. })) => files.descriptors().to_vec(),
            (None, Some(Kept::Lines { left, right, .. })) => vec![left.as_fd(), right.as_fd()],
            (None, None) => return,
        };
        let result = keep_in(&mut self.shelf, |shelf| shelf.put(&record, &descriptors));
        self.after_keeping(result);
    }

    pub(super) fn drop_kept_channel(&mut self, dc: DcId, channel: ChannelId) {
        self.keep(|shelf| shelf.drop_one(&key::channel(dc.0, channel.0)));
    }

    pub(super) fn keep_reservation(&mut self, dc: DcId, endpoint: Endpoint) {
        let Some(container) = self.containers.get(&dc) else { return };
        let Some((_, of)) = container.table.reservations().iter().find(|(kept, _)| *kept == endpoint) else { return };
        let record = Record::Reservation { dc: dc.0, endpoint: endpoint.number(), pid: of.pid, by: of.by.0 };
        self.keep(|shelf| shelf.put(&record, &[]));
    }

    pub(super) fn drop_kept_reservation(&mut self, dc: DcId, endpoint: Endpoint) {
        self.keep(|shelf| shelf.drop_one(&key::reservation(dc.0, endpoint.number())));
    }

    pub(super) fn keep_link_down(&mut self, node: NodeId, pair: PairId) {
        self.keep(|shelf| shelf.put(&Record::NodeDown { node: node.0, pair: pair.number() }, &[]));
    }

    pub(super) fn drop_kept_link_down(&mut self, node: NodeId, pair: PairId) {
        self.keep(|shelf| shelf.drop_one(&key::link_down(node.0, pair.number())));
    }

    fn drop_all_kept(&mut self, beginning: &str) {
        self.keep(|shelf| shelf.drop_all(beginning));
    }

    fn keep(&mut self, what: impl FnOnce(&mut Outgoing) -> std::io::Result<()>) {
        let result = keep_in(&mut self.shelf, what);
        self.after_keeping(result);
    }

    fn after_keeping(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result {
            tracing::error!(%error, "the shelf is gone: until there is another one, this broker cannot be replaced");
            self.lose_shelf();
        }
    }

    fn lose_shelf(&mut self) {
        if let Some(shelf) = self.shelf.take() {
            let _ = self.poller.remove(&shelf.socket);
        }
    }
}

/// Apart from the methods of the loop, because the descriptors are borrowed from its tables.
fn keep_in(
    shelf: &mut Option<Outgoing>,
    what: impl FnOnce(&mut Outgoing) -> std::io::Result<()>,
) -> std::io::Result<()> {
    shelf.as_mut().map_or(Ok(()), what)
}

fn channel_record(container: &Container, dc: DcId, channel: ChannelId, told: record::Told) -> Option<Record> {
    let of = container.table.channels().get(channel)?;
    let far = match container.kept.get(&channel) {
        Some(Kept::Proxied { far, .. }) => *far,
        Some(Kept::Lines { .. }) | None => 0,
    };
    Some(Record::Channel(record::Channel {
        dc: dc.0,
        id: channel.0,
        left: of.left.number(),
        right: of.right.number(),
        lane: of.lane.0,
        entries: of.entries,
        arena_bytes: of.arena_bytes,
        proxied: of.proxied.map(|node| node.0),
        pair: of.pair.number(),
        far,
        told,
    }))
}
